//! Messages to training programs: assignments, and answers to reports.

use trainmaster_core::{Allocation, EventError, Job, Span, State};
use trainmaster_feed::{JobAssignment, Standing};
use trainmaster_proto::{batch_to_wire, slots_to_wire, work_to_wire};

/// For each report, the reason if it was ignored.
pub type Answers = Vec<Result<(), String>>;

/// The answer to a report.
///
/// # Errors
/// The reason why the report is ignored.
pub fn answer(taken: Result<(), EventError>) -> Result<(), String> {
    taken.map_err(|error| match error {
        EventError::Report { problem, .. } => problem.to_owned(),
        error => error.to_string(),
    })
}

/// The assignment of an active job. Its programs run in these slots, or stop if it has none. It has the job's issued
/// incarnation and revision. `grace` is the maximum time to stop.
pub fn assignment(state: &State, job: &Job, slots: Option<&Allocation>, grace: Span) -> JobAssignment {
    JobAssignment {
        name: job.spec.name.clone(),
        tenant: job.spec.tenant.clone(),
        cluster: job.external.as_ref().map_or_else(String::new, |external| external.cluster.clone()),
        token_hash: job.token_hash,
        incarnation: job.issued.incarnation,
        revision: job.issued.revision,
        standing: if slots.is_some() { Standing::Run } else { Standing::Stop },
        slots: slots.map(|allocation| slots_to_wire(state, allocation)).unwrap_or_default(),
        work: slots.map(work_to_wire).unwrap_or_default(),
        batch: slots.and_then(|_| job.batch()).map(|batch| batch_to_wire(batch, job.spec.batch)),
        grace,
        accepted: job.learnt.reported.clone(),
    }
}

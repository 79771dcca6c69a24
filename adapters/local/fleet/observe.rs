//! The observation of a job for the manager protocol.

use trainmaster_proto::v1::{ObservedJob, ObservedPhase};

use super::{
    job::{Job, Now, Outcome},
    plan::Goal,
};

/// The existing slots, and the job's phase.
pub(super) fn job(id: u64, job: &Job, now: Now) -> ObservedJob {
    let planned = job.run().map(|run| run.incarnation);
    // A program releases a device between two steps, faster than its manager could check.
    let rests =
        |incarnation, slot| job.run().is_some_and(|run| run.incarnation == incarnation && run.idle.contains(&slot));
    let incarnation = job.processes.keys().map(|(incarnation, _)| *incarnation).max().or(planned);
    ObservedJob {
        job: id,
        incarnation: incarnation.unwrap_or(0),
        slots: job
            .processes
            .iter()
            .map(|(&(incarnation, slot), process)| process.placement.to_wire(slot, rests(incarnation, slot)))
            .collect(),
        phase: phase(job, now, incarnation).into(),
        message: job.note.clone(),
        failures: job.failures(),
    }
}

fn phase(job: &Job, now: Now, incarnation: Option<u32>) -> ObservedPhase {
    match job.outcome {
        Some(Outcome::Completed) => return ObservedPhase::Completed,
        Some(Outcome::Failed) => return ObservedPhase::Failed,
        None => {}
    }
    let leaving = if job.processes.is_empty() { ObservedPhase::Stopped } else { ObservedPhase::Stopping };
    if now.ending {
        return leaving;
    }
    match job.wanted.as_ref().map(|wanted| &wanted.goal) {
        // Not claimed yet, or released: existing processes continue.
        None if job.is_unclaimed() && !job.processes.is_empty() => ObservedPhase::Running,
        Some(Goal::Release) if !job.processes.is_empty() => ObservedPhase::Running,
        None | Some(Goal::Wait | Goal::End | Goal::Release) => leaving,
        Some(Goal::Run(run)) if incarnation != Some(run.incarnation) || job.has_left() => ObservedPhase::Stopping,
        Some(Goal::Run(_)) if job.is_restarting() || job.processes.is_empty() => ObservedPhase::Starting,
        Some(Goal::Run(_)) => ObservedPhase::Running,
    }
}

//! Conversion of issues to the plans of managers.

use trainmaster_core::{Issue, JobSpec, Reason, Span, State, Verdict};

use crate::{
    slot::{slots_to_wire, work_to_wire},
    v1,
};

/// Facts about a job that a plan contains beside the decision.
#[derive(Clone, Debug)]
pub struct JobFacts<'a> {
    /// Name of the job, also after its end.
    pub name: &'a str,
    /// Owner of the job, also after its end.
    pub tenant: &'a str,
    /// The job file. None after the job's end.
    pub spec: Option<&'a JobSpec>,
    /// The job's external id, also after its end.
    pub external: Option<v1::ExternalId>,
    /// The final state as in its last status. Empty while the job is active.
    pub ended: &'a str,
    /// Token for its processes. Empty if it has none.
    pub token: &'a str,
    /// Time within which a stopping program has to end.
    pub grace: Span,
}

/// Converts an issue for the wire.
pub fn job_plan(state: &State, issue: &Issue, facts: JobFacts<'_>) -> v1::JobPlan {
    let mut plan = v1::JobPlan {
        job: issue.job.0,
        name: facts.name.to_owned(),
        tenant: facts.tenant.to_owned(),
        incarnation: issue.incarnation.0,
        revision: issue.revision.0,
        grace_ms: facts.grace.0,
        external: facts.external,
        ended: facts.ended.to_owned(),
        ..v1::JobPlan::default()
    };
    let told = |reason: &Reason| match facts.spec {
        // Managers show the reason to the job's owner.
        Some(spec) => reason.describe_to(state, &spec.tenant),
        None => reason.describe(state),
    };
    if let Some(reason) = issue.verdict.reason() {
        (plan.reason, plan.reason_kind) = (told(reason), reason.kind().to_string());
    }
    let action = match &issue.verdict {
        Verdict::Run(allocation) => {
            plan.slots = slots_to_wire(state, allocation);
            plan.work = work_to_wire(allocation);
            facts.token.clone_into(&mut plan.token);
            if let Some(spec) = facts.spec {
                plan.worker_command.clone_from(&spec.worker.command);
                let kind = state.known_job(issue.job).and_then(|job| job.gpu_kind());
                let kind = kind.map(|kind| state.resources.name(kind));
                plan.worker_demand = spec.worker.demand_with(kind).into_iter().collect();
                if let Some(server) = &spec.server {
                    plan.server_command.clone_from(&server.command);
                    plan.server_demand = server.demand_with(None).into_iter().collect();
                }
                let environment =
                    state.known_job(issue.job).map_or_else(|| spec.environment(), |job| job.environment());
                plan.environment = environment.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
            }
            v1::Action::Run
        }
        Verdict::Wait(_) => v1::Action::Wait,
        Verdict::Reject(_) => v1::Action::Reject,
        Verdict::Stop(_) => v1::Action::Stop,
        Verdict::Release(shape) => {
            plan.reason = format!("handed back to the manager as {shape}");
            (plan.workers, plan.servers) = (shape.workers, shape.servers);
            facts.token.clone_into(&mut plan.token);
            v1::Action::Release
        }
    };
    plan.action = action.into();
    plan
}

#[cfg(test)]
mod tests {
    use trainmaster_core::{Event, Incarnation, JobId, Revision, Scheduler, ServerSpec, Settings, Shape, Time};

    use super::*;

    #[test]
    fn each_verdict_has_its_action() {
        let mut scheduler = Scheduler::new(Settings { engine: "fifo".into(), ..Settings::default() }).unwrap();
        let server = ServerSpec {
            name: "node1".into(),
            capacity: [("cpu".to_owned(), 16_000)].into(),
            devices: vec!["gpu:a100".into(); 2],
            ..ServerSpec::default()
        };
        scheduler.apply(Time(0), Event::ServerSet { manager: "local".into(), server }).unwrap();
        let mut spec = JobSpec::minimal("mnist");
        spec.worker.demand = [("gpu:h100|a100".to_owned(), 1000), ("cpu".to_owned(), 2000)].into();
        let event = Event::JobSubmitted { spec: Box::new(spec.clone()), external: None, token_hash: None };
        scheduler.apply(Time(1), event).unwrap();
        scheduler.decide(Time(2));
        let external = Some(v1::ExternalId { cluster: "local".into(), native: "job-9".into() });
        let facts = JobFacts {
            name: "mnist",
            tenant: "vision",
            spec: Some(&spec),
            external,
            ended: "",
            token: "secret",
            grace: Span(30_000),
        };
        let issues = scheduler.take_issues();
        let plan = job_plan(scheduler.state(), &issues[0], facts.clone());
        assert_eq!(plan.external.as_ref().unwrap().native, "job-9");
        assert_eq!((plan.action(), plan.incarnation, plan.slots.len()), (v1::Action::Run, 1, 2));
        assert_eq!((plan.slots[0].server.as_str(), plan.token.as_str()), ("node1", "secret"));
        assert_eq!(plan.environment["TRAINMASTER_MODE"], "sync");
        assert_eq!(plan.worker_demand, [("gpu:a100".to_owned(), 1000), ("cpu".to_owned(), 2000)].into());

        let other = |verdict| Issue { job: JobId(1), verdict, incarnation: Incarnation(1), revision: Revision(0) };
        let plan = job_plan(scheduler.state(), &other(Verdict::Wait(Reason::Held)), facts.clone());
        assert_eq!(plan.action(), v1::Action::Wait);
        assert!(plan.reason.contains("held") && plan.token.is_empty() && plan.slots.is_empty());
        assert_eq!((plan.reason_kind.as_str(), plan.worker_demand.len()), ("held", 0));
        // The job's owner reads this. The job ahead belongs to another tenant.
        let ahead = Verdict::Wait(Reason::Behind { job: JobId(1), position: 2 });
        let theirs = JobSpec { tenant: "theirs".into(), ..spec.clone() };
        let told = [&spec, &theirs].map(|spec| {
            job_plan(scheduler.state(), &other(ahead.clone()), JobFacts { spec: Some(spec), ..facts.clone() }).reason
        });
        assert_eq!(told.map(|reason| reason.contains("mnist")), [true, false]);
        let shape = Shape { workers: 2, servers: 1 };
        let plan = job_plan(scheduler.state(), &other(Verdict::Release(shape)), facts);
        assert_eq!((plan.action(), plan.reason.contains("2w+1p")), (v1::Action::Release, true));
        assert_eq!((plan.workers, plan.servers), (2, 1));
    }
}

//! Follows the plan: keeps each job's order.

use std::{collections::BTreeSet, time::Duration};

use trainmaster_core::{DecisionId, Enactment, End, Issue, JobId, Scheduler, Span, State};
use trainmaster_manager::{Action, Follower, Follows, Named, Order, Taken};
use trainmaster_proto::{JobFacts, end_name, external_to_wire, job_plan, v1};

use super::{Ordered, Translator, enacted};

/// What changed in a scheduler's plan since the last call, or all of it. `None`: nothing changed.
pub fn plan_of(scheduler: &mut Scheduler, full: bool) -> Option<v1::Plan> {
    let changed = scheduler.take_issues();
    if changed.is_empty() && !full {
        return None;
    }
    let issues = if full { scheduler.all_issues() } else { changed };
    let state = scheduler.state();
    let jobs = issues.iter().map(|issue| job_plan(state, issue, facts(state, issue))).collect();
    Some(v1::Plan { term: state.term.0, decision: state.decision.0, ttl_ms: 0, jobs, full })
}

/// The facts of a job that a translator needs. Slurm has the job's name, owner, token and programs.
fn facts<'a>(state: &'a State, issue: &Issue) -> JobFacts<'a> {
    let active = state.job(issue.job);
    let job = active.or_else(|| state.leaving_jobs().get(&issue.job));
    JobFacts {
        name: "",
        tenant: "",
        spec: active.map(|job| &*job.spec),
        external: job.and_then(|job| job.external.as_ref()).map(external_to_wire),
        // A job that ended here ends by itself in Slurm, or has ended there first.
        ended: if active.is_some() { "" } else { end_name(End::Completed) },
        token: "",
        grace: Span::ZERO,
    }
}

impl Translator {
    /// Takes a plan: all of it, or its changes. O(its jobs), and O(known jobs) if it is full.
    pub fn plan(&mut self, plan: v1::Plan) {
        let now = Duration::from_secs(self.now.unsigned_abs());
        let decision = DecisionId(plan.decision);
        for answer in self.follow(now, plan) {
            if let Some(cause) = answer.refused {
                let refusal = Enactment::Refused { cause: cause.into(), retry_after: None };
                self.events.extend(enacted(Some(JobId(answer.job)), decision, refusal));
            }
        }
    }
}

impl Follows for Translator {
    fn follower(&mut self) -> &mut Follower {
        &mut self.follower
    }

    /// Slurm checks the nodes of a call, and chooses their devices.
    fn devices(&self, _server: &str) -> Option<Option<usize>> {
        Some(None)
    }

    fn order(&mut self, _now: Duration, job: &Named, order: Result<Order, String>) -> Taken {
        let id = JobId(job.job);
        let external = job.external.as_ref().filter(|external| external.cluster == self.config.manager);
        let native = external.and_then(|external| external.native.parse().ok());
        let Some(native) = native.or_else(|| self.native(id)) else { return Taken::Ignored };
        let known = self.orders.get_mut(&native);
        // After Slurm's numbers began again, the newer job has the number.
        if known.as_ref().is_some_and(|known| known.job > id) {
            return Taken::Ignored;
        }
        let order = match order {
            Ok(order) => order,
            Err(cause) => return Taken::Refused(cause),
        };
        let mut known = known.filter(|known| known.job == id);
        if let Some(known) = known.as_mut().filter(|known| known.order == order) {
            known.decision = DecisionId(job.decision);
            return Taken::Same;
        }
        // A slot that was given stays charged until it is observed to be gone, even if the job never started there, and
        // even if it was taken away before a plan gave it.
        let gave = known.map_or(order.incarnation > 0, |known| {
            let before = &known.order;
            known.frees || before.run().is_some() || before.incarnation < order.incarnation
        });
        let frees = gave && order.run().is_none();
        self.by_core.insert(id, native);
        self.orders.insert(native, Ordered { job: id, decision: DecisionId(job.decision), order, frees });
        // The call's result is the answer.
        Taken::Later
    }

    fn unlisted(&mut self, _now: Duration, _decision: u64, listed: &BTreeSet<u64>) {
        for ordered in self.orders.values_mut().filter(|ordered| !listed.contains(&ordered.job.0)) {
            ordered.order.action = Action::Stop { completed: true };
        }
    }
}

impl Ordered {
    /// Whether the scheduler considers the job ended. A job that it stops is active until its end is observed.
    pub(super) fn is_over(&self) -> bool {
        self.order.action == Action::Stop { completed: true }
    }
}

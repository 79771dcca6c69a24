//! Follows the plan: keeps each job's order.

use std::{collections::BTreeSet, time::Duration};

use trainmaster_core::{DecisionId, Enactment, JobId};
use trainmaster_manager::{Action, Follower, Follows, Named, Order, Taken};
use trainmaster_proto::v1;

use super::{Ordered, Translator, enacted};

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
        let known = self.orders.get(&native);
        // After Slurm's numbers began again, the newer job has the number.
        if known.is_some_and(|known| known.job > id) {
            return Taken::Ignored;
        }
        let order = match order {
            Ok(order) => order,
            Err(cause) => return Taken::Refused(cause),
        };
        let known = known.filter(|known| known.job == id);
        if known.is_some_and(|known| known.order == order) {
            return Taken::Same;
        }
        // A slot that was given stays charged until it is observed to be gone, even if the job never started there.
        let gave = known.map_or(order.incarnation > 0, |known| known.frees || known.order.run().is_some());
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
    /// Whether the scheduler considers the job ended.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.order.action, Action::Stop { .. })
    }
}

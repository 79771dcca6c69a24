//! Following the scheduler's plans.

use std::{collections::BTreeSet, time::Duration};

use trainmaster_proto::v1;

use super::{order::Order, outbox::PlanAnswer};

/// Carries out orders: the part of an adapter that depends on the manager.
pub trait Follows {
    /// Returns the state of the followed plan.
    fn follower(&mut self) -> &mut Follower;

    /// The number of a server's listed devices: `None` if there is no such server, `Some(None)` if the manager chooses
    /// devices.
    fn devices(&self, server: &str) -> Option<Option<usize>>;

    /// Takes a job's order, which replaces the last one. `order` is an error with its cause if the order is invalid.
    /// Then the last one stays in force.
    fn order(&mut self, now: Duration, job: &Named, order: Result<Order, String>) -> Taken;

    /// Called with a full plan. Jobs that aren't listed are no longer the scheduler's.
    fn unlisted(&mut self, now: Duration, decision: u64, listed: &BTreeSet<u64>);

    /// Called after the whole plan was taken. Returns the answers to orders that were taken [`Later`](Taken::Later).
    fn taken(&mut self, _now: Duration) -> Vec<PlanAnswer> {
        Vec::new()
    }

    /// Takes a plan, except for invalid orders. Returns answers for the jobs that it changes. For the first plan after
    /// the scheduler attaches, and for a plan that isn't full, returns answers for all of its jobs. Adapters call it;
    /// they don't implement it.
    fn follow(&mut self, now: Duration, plan: v1::Plan) -> Vec<PlanAnswer> {
        let Some(answers_all) = self.follower().begin(now, &plan) else { return Vec::new() };
        let mut answers = Vec::new();
        let mut listed = BTreeSet::new();
        for wanted in plan.jobs {
            let job = Named {
                job: wanted.job,
                decision: plan.decision,
                name: wanted.name.clone(),
                tenant: wanted.tenant.clone(),
                external: wanted.external.clone(),
                runs: wanted.action() == v1::Action::Run,
            };
            if !listed.insert(job.job) {
                answers.push(PlanAnswer::refused(job.job, "the plan names this job twice".into()));
                continue;
            }
            let order = Order::read(wanted, |server| self.devices(server));
            match self.order(now, &job, order) {
                Taken::New => answers.push(PlanAnswer::accepted(job.job)),
                Taken::Same if answers_all => answers.push(PlanAnswer::accepted(job.job)),
                Taken::Refused(cause) => answers.push(PlanAnswer::refused(job.job, cause)),
                Taken::Same | Taken::Ignored | Taken::Later => {}
            }
        }
        if plan.full {
            self.unlisted(now, plan.decision, &listed);
        }
        answers.extend(self.taken(now));
        answers
    }
}

/// The job of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its number.
    pub job: u64,
    /// The order's decision.
    pub decision: u64,
    /// Its name, also if the order is invalid.
    pub name: String,
    /// Its owner.
    pub tenant: String,
    /// Its identity in the manager's cluster, if it came from there.
    pub external: Option<v1::ExternalId>,
    /// Whether the order's action is `RUN`.
    pub runs: bool,
}

/// The result of taking an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is followed from now on.
    New,
    /// It is already followed.
    Same,
    /// It can't be followed, with the cause.
    Refused(String),
    /// It isn't this manager's, or needs no answer.
    Ignored,
    /// It is answered after the whole plan was taken.
    Later,
}

/// The stamp of the followed plan, and its expiry.
#[derive(Clone, Debug, Default)]
pub struct Follower {
    /// (term, decision) of the newest plan.
    stamp: Option<(u64, u64)>,
    /// When the plan expires.
    expires: Option<Duration>,
    knows_all: bool,
    /// Whether the first plan since the scheduler attached (again) was answered.
    answered: bool,
}

impl Follower {
    /// The scheduler is connected: all orders of its next plan are answered.
    pub fn attached(&mut self) {
        self.answered = false;
    }

    /// (term, decision) of the newest plan; `None` before the first.
    pub fn stamp(&self) -> Option<(u64, u64)> {
        self.stamp
    }

    /// When the plan expires; `None`: never.
    pub fn expires(&self) -> Option<Duration> {
        self.expires
    }

    /// Whether a plan is in force.
    pub fn stands(&self, now: Duration) -> bool {
        self.stamp.is_some() && self.expires.is_none_or(|at| now < at)
    }

    /// Whether a full plan arrived. Then jobs that it doesn't name aren't the scheduler's.
    pub fn knows_all(&self) -> bool {
        self.knows_all
    }

    /// Takes the stamp of a plan. Returns whether all of its orders are answered. Returns `None` for a plan older than
    /// the one in force, which isn't followed.
    fn begin(&mut self, now: Duration, plan: &v1::Plan) -> Option<bool> {
        let stamp = (plan.term, plan.decision);
        if self.stamp.is_some_and(|applied| stamp < applied) {
            tracing::warn!(?stamp, applied = ?self.stamp, "ignoring a plan older than the one in force");
            return None;
        }
        self.stamp = Some(stamp);
        let ttl = u64::try_from(plan.ttl_ms).unwrap_or(0);
        self.expires = (ttl > 0).then(|| now.saturating_add(Duration::from_millis(ttl)));
        self.knows_all |= plan.full;
        Some(!std::mem::replace(&mut self.answered, true) || !plan.full)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Follows every order on server "a".
    #[derive(Default)]
    struct Obedient {
        follower: Follower,
        orders: BTreeMap<u64, Order>,
    }

    impl Follows for Obedient {
        fn follower(&mut self) -> &mut Follower {
            &mut self.follower
        }

        fn devices(&self, server: &str) -> Option<Option<usize>> {
            (server == "a").then_some(None)
        }

        fn order(&mut self, _: Duration, job: &Named, order: Result<Order, String>) -> Taken {
            match order {
                Err(cause) => Taken::Refused(cause),
                Ok(order) if self.orders.get(&job.job) == Some(&order) => Taken::Same,
                Ok(order) => {
                    self.orders.insert(job.job, order);
                    Taken::New
                }
            }
        }

        fn unlisted(&mut self, _: Duration, _: u64, listed: &BTreeSet<u64>) {
            self.orders.retain(|job, _| listed.contains(job));
        }
    }

    fn plan(decision: u64, full: bool, jobs: &[(u64, &str)]) -> v1::Plan {
        let job = |&(job, server): &(u64, &str)| v1::JobPlan {
            job,
            slots: vec![v1::Slot { server: server.into(), ..v1::Slot::default() }],
            ..v1::JobPlan::default()
        };
        v1::Plan { term: 1, decision, ttl_ms: 1000, full, jobs: jobs.iter().map(job).collect() }
    }

    #[test]
    fn the_first_plan_is_answered_whole_and_later_ones_where_they_change_something() {
        let mut manager = Obedient::default();
        let now = Duration::ZERO;
        assert!(!manager.follower.stands(now));
        let answers = manager.follow(now, plan(1, true, &[(1, "a"), (2, "a")]));
        assert_eq!(answers, [PlanAnswer::accepted(1), PlanAnswer::accepted(2)]);
        assert_eq!(manager.follow(now, plan(2, true, &[(1, "a"), (2, "a")])), []);
        manager.follower.attached();
        let answers = manager.follow(now, plan(3, true, &[(1, "a")]));
        assert_eq!((answers, manager.orders.len()), (vec![PlanAnswer::accepted(1)], 1), "the other one isn't listed");
        // A plan that isn't full lists changes only.
        assert_eq!(manager.follow(now, plan(3, false, &[(1, "a")])), [PlanAnswer::accepted(1)]);
        let refused = manager.follow(now, plan(4, false, &[(1, "b"), (3, "a"), (3, "a")]));
        assert_eq!(
            refused.iter().map(|answer| (answer.job, answer.refused.is_some())).collect::<Vec<_>>(),
            [(1, true), (3, false), (3, true)]
        );
        assert_eq!(manager.orders[&1].run().unwrap().slots.len(), 1, "the last order stands");
    }

    #[test]
    fn an_older_plan_changes_nothing_and_a_plan_runs_out() {
        let mut manager = Obedient::default();
        manager.follow(Duration::ZERO, plan(5, true, &[(1, "a")]));
        assert_eq!(manager.follow(Duration::from_secs(9), plan(4, true, &[])), []);
        assert_eq!((manager.orders.len(), manager.follower.stamp()), (1, Some((1, 5))));
        assert!(
            manager.follower.stands(Duration::from_millis(999)) && !manager.follower.stands(Duration::from_secs(1))
        );
        let forever = v1::Plan { ttl_ms: 0, ..plan(5, false, &[]) };
        manager.follow(Duration::from_secs(2), forever);
        assert!(manager.follower.stands(Duration::MAX));
    }
}

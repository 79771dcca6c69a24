//! Converts the plan's orders to calls of Slurm's API: at most one update for each job.

use std::collections::BTreeSet;

use trainmaster_core::{DecisionId, Enactment, Incarnation, JobId, Mode, Role, event::ObservedSlot};
use trainmaster_manager::{Action as Wanted, Run};

use super::{
    super::{
        call::{Action, Purpose, SlurmCall, Update},
        comment::Given,
        hostlist,
        reservation::reservation,
        seen::{Job, JobPhase, Memory},
    },
    Leaving, Ordered, Pending, Tracked, Translator, Why, enacted,
};

/// Maximum length of the reason in an admin comment, in characters. Slurm limits comments, and the allocation is before
/// the reason.
const LONGEST_REASON: usize = 300;
/// Seconds within which a process that closed its stream of the feed ends.
const ENDS_WITHIN: i64 = 5;
/// The kind of the reason of jobs about which nothing is decided yet.
const NOT_CONSIDERED: &str = "not_considered";

/// The next action for one job.
enum Next {
    Nothing,
    Call(Action),
    /// It is impossible, with the cause.
    Refuse(String),
}

impl Translator {
    /// Returns the calls that are due, for the plan and the scheduler's mode: at most one for each job. For a
    /// heterogeneous job it is at most one for each component, the leader's last. Each must be answered
    /// ([`answered`](Self::answered)), in this order, before the next observation. `writes`: whether decisions are on
    /// disk. `has_left` tells whether the program of a slot has ended by itself.
    pub fn calls(
        &mut self,
        mode: Mode,
        writes: bool,
        has_left: impl Fn(JobId, Incarnation, (Role, u32)) -> bool,
    ) -> Vec<SlurmCall> {
        let now = self.now;
        if !self.synced {
            return Vec::new();
        }
        let lease = self.config.lease;
        let (patience, grace, feed) = (self.config.patience, self.config.grace, self.config.feed.is_some());
        let times = Times { now, lease, patience, grace, feed, writes };
        let mut calls = Vec::new();
        let priority = self.config.priority;
        for (id, job) in &mut self.jobs {
            if job.called || job.retry.0 > now {
                continue;
            }
            job.pending = None;
            let ordered = self.orders.get(id);
            let next = match ordered {
                // In other modes the owner has to end it.
                Some(ordered) if ordered.is_over() && mode != Mode::Active => Next::Nothing,
                Some(ordered) => {
                    let default = self.defaults.get(&job.seen.partition).copied().unwrap_or_default();
                    let has_left = |incarnation, slot| has_left(ordered.job, Incarnation(incarnation), slot);
                    job.next(ordered, times, default, &has_left)
                }
                None if mode == Mode::Active => {
                    let why = job.refused.clone().map(|text| (Why::NotTaken, text));
                    Next::of(job.keep(now, lease, why))
                }
                // No plan exists for it, so Slurm schedules it, as it was submitted.
                None => job.unknown_is_released(now),
            };
            match next {
                Next::Nothing => {}
                Next::Call(mut action) => {
                    if let Action::Update(update) = &mut action {
                        match update.purpose {
                            Purpose::Start => update.priority = priority,
                            // Slurm chooses its priority again.
                            Purpose::Release => update.priority = priority.map(|_| u32::MAX),
                            Purpose::Hold | Purpose::Shrink => {}
                        }
                    }
                    calls.extend(job.with_servers(*id, action));
                }
                Next::Refuse(cause) => {
                    if let Some(ordered) = ordered {
                        let refusal = Enactment::Refused { cause: cause.into(), retry_after: None };
                        self.events.extend(enacted(Some(ordered.job), ordered.decision, refusal));
                    }
                    // The refusal is reported once. The core's answer is a new plan.
                    job.retry = (now + 1, job.retry.1);
                    if job.seen.phase() == JobPhase::Pending {
                        job.let_go = None;
                        let hold = job.keep(now, lease, None);
                        calls.extend(hold.into_iter().flat_map(|action| job.with_servers(*id, action)));
                    }
                }
            }
        }
        calls
    }
}

/// Now, as a Unix time, and the configured times, in seconds.
#[derive(Clone, Copy)]
struct Times {
    now: i64,
    lease: i64,
    patience: i64,
    grace: i64,
    /// Whether jobs have the feed's address.
    feed: bool,
    /// Whether decisions are on disk.
    writes: bool,
}

/// Whether the program of a slot of this incarnation has ended by itself.
type HasLeft<'a> = dyn Fn(u32, (Role, u32)) -> bool + 'a;

/// Which of the processes that have to leave have done so.
enum Left {
    All,
    Some,
    /// They can't be told, or they stay.
    Never,
}

impl Next {
    fn of(action: Option<Action>) -> Self {
        action.map_or(Self::Nothing, Self::Call)
    }
}

impl Tracked {
    fn next(&mut self, ordered: &Ordered, times: Times, default: Memory, has_left: &HasLeft<'_>) -> Next {
        let (order, now) = (&ordered.order, times.now);
        match (self.seen.phase(), &order.action) {
            (_, Wanted::Stop { completed: true }) => self.done(now, times.grace),
            (JobPhase::Over(_) | JobPhase::Leaving { .. }, _) => Next::Nothing,
            (_, Wanted::Stop { completed: false }) => Next::Call(Action::Cancel),
            // The owner has to release it.
            (JobPhase::Pending, _) if self.seen.is_held() => Next::Nothing,
            (JobPhase::Pending, Wanted::Run(_) | Wanted::Release(_)) if self.requeued >= now => Next::Nothing,
            (JobPhase::Pending, Wanted::Run(run)) => self.start(ordered, run, now, times.patience),
            (JobPhase::Pending, Wanted::Wait | Wanted::Reject) => {
                let why = (Why::Reason(order.reason_kind.clone()), order.reason.clone());
                Next::of(self.keep(now, times.lease, Some(why)))
            }
            (JobPhase::Pending, Wanted::Release(shape)) => {
                let begin = self.tag.begin.max(now);
                let asked = self.given.as_ref().is_some_and(|given| given.shape() != *shape);
                // Backfill sets the start time to its estimate of the start.
                let there = (self.let_go.is_some() || self.seen.start <= begin) && !asked;
                if there { Next::Nothing } else { self.release(begin, asked, default) }
            }
            (_, Wanted::Run(run)) => self.change(ordered, run, times, has_left),
            // It started by itself while no agent ran. It isn't decided yet whether it may stay.
            (_, Wanted::Wait) if order.reason_kind == NOT_CONSIDERED => Next::Nothing,
            (_, Wanted::Wait | Wanted::Reject) => {
                self.pending = Some(Pending { decision: ordered.decision, gives: None });
                Next::Call(Action::Requeue)
            }
            (_, Wanted::Release(_)) => Next::Nothing,
        }
    }

    /// A call for the job, preceded by the call for its other component, if it needs one. It needs none for a
    /// requeue or a cancel. It needs none for a shrink either, because only nodes of workers can be given up.
    fn with_servers(&mut self, id: u32, action: Action) -> impl Iterator<Item = SlurmCall> + use<> {
        let beside = self.servers.as_mut().and_then(|servers| {
            servers.refused = false;
            let update = servers.update.take();
            let update = match &action {
                Action::Update(hold) if hold.purpose == Purpose::Hold => Some((**hold).clone()),
                Action::Update(leaders) => update.map(|update| Update { priority: leaders.priority, ..update }),
                Action::Requeue | Action::Cancel => None,
            };
            // The allocation is in the leader's comment.
            let update = update.map(|update| Update { admin_comment: None, ..update });
            update.map(|update| SlurmCall { id: servers.seen.id, action: Action::Update(Box::new(update)) })
        });
        beside.into_iter().chain([SlurmCall { id, action }])
    }

    fn unknown_is_released(&mut self, now: i64) -> Next {
        let begin = self.tag.begin.max(now);
        let pending = self.seen.phase() == JobPhase::Pending && !self.seen.is_held() && !self.seen.waits_for_jobs();
        let there = self.let_go.is_some() || self.seen.start <= begin;
        if pending && !there { self.release(begin, false, Memory::Unset) } else { Next::Nothing }
    }

    fn release(&mut self, begin: i64, as_asked: bool, default: Memory) -> Next {
        let update = Update::release(begin, as_asked.then_some(&self.tag.asked), default);
        if let Some(servers) = &mut self.servers {
            servers.update = Some(Update::release(begin, as_asked.then_some(&servers.part.asked), default));
        }
        Next::Call(Action::Update(Box::new(update)))
    }

    /// Holds a pending job. The lease is renewed when half of it is over, or if there is another kind of reason. It
    /// never ends before the owner's own begin time.
    fn keep(&mut self, now: i64, lease: i64, why: Option<(Why, String)>) -> Option<Action> {
        if self.seen.phase() != JobPhase::Pending || self.seen.is_held() || self.seen.waits_for_jobs() {
            return None;
        }
        let begin = self.tag.begin.max(now + lease);
        let due = self.seen.start < now + lease / 2 && self.seen.start < begin;
        let (kind, text) = why.unzip();
        let considered = |kind: &Why| !matches!(kind, Why::Reason(kind) if kind == NOT_CONSIDERED);
        let news = kind.as_ref().is_some_and(considered) && self.said != kind;
        if !due && !news {
            return None;
        }
        self.said = kind;
        let comment = text.map(|text| {
            let given =
                self.given.as_ref().map_or_else(|| super::super::comment::MARK.to_owned(), |given| given.to_string());
            format!("{given};why={}", text.chars().take(LONGEST_REASON).collect::<String>())
        });
        Some(Action::Update(Box::new(Update::hold(begin, comment))))
    }

    fn start(&mut self, ordered: &Ordered, run: &Run, now: i64, patience: i64) -> Next {
        let given = Given::of(ordered.job, ordered.decision, &ordered.order, run);
        // The start time doesn't show this, because backfill sets it to its estimate of the start.
        if self.given.as_ref().is_some_and(|before| before.gives_as(&given))
            && let Some(since) = self.let_go
        {
            return match now - since > patience {
                true => Next::Refuse(format!("Slurm hasn't started it for {} s: {}", now - since, waits(&self.seen))),
                false => Next::Nothing,
            };
        }
        let reserved = |roles: &[Role]| reservation(run, roles);
        let reserved = match &mut self.servers {
            None => reserved(&[Role::Worker, Role::Server]),
            Some(servers) => reserved(&[Role::Server]).and_then(|of_servers| {
                servers.update = Some(Update::start(&of_servers, &given, now, false));
                reserved(&[Role::Worker])
            }),
        };
        match reserved {
            Err(cause) => Next::Refuse(cause),
            Ok(reservation) => {
                let per_job = !self.seen.tres_per_job.is_empty() && self.seen.tres_per_job != "(null)";
                let update = Update::start(&reservation, &given, now, per_job);
                self.pending = Some(Pending { decision: ordered.decision, gives: Some(given) });
                self.said = None;
                Next::Call(Action::Update(Box::new(update)))
            }
        }
    }

    /// Changes a running job's shape: in place if Slurm can, otherwise from a checkpoint.
    fn change(&mut self, ordered: &Ordered, run: &Run, times: Times, has_left: &HasLeft<'_>) -> Next {
        let next = Given::of(ordered.job, ordered.decision, &ordered.order, run);
        let Some(given) = self.given.as_ref().filter(|given| given.incarnation == next.incarnation) else {
            return self.restart(ordered.decision);
        };
        if given.revision == next.revision {
            return Next::Nothing;
        }
        let have: BTreeSet<String> = hostlist::expand(&self.seen.nodes).unwrap_or_default().into_iter().collect();
        let keep: BTreeSet<String> = next.slots.iter().map(|slot| slot.server.clone()).collect();
        if keep == have {
            if given.slots == next.slots {
                // Processes that were told to leave are wanted again. Some may be gone.
                if self.leaving.take().is_some() {
                    return self.restart(ordered.decision);
                }
                self.given = Some(next);
                return Next::Nothing;
            }
            return Next::Refuse("Slurm can't change what a running job has of a node, only take nodes away".into());
        }
        if !keep.is_subset(&have) {
            return Next::Refuse("Slurm can't add nodes to a running job that holds GPUs".into());
        }
        if !keep.contains(&self.seen.batch_host) {
            return Next::Refuse(format!(
                "Slurm can't take {} away: the batch script runs there",
                self.seen.batch_host
            ));
        }
        let stay: BTreeSet<_> = next.slots.iter().map(|slot| (slot.role, slot.index)).collect();
        let gone: Vec<_> =
            given.slots.iter().filter(|slot| !stay.contains(&(slot.role, slot.index))).cloned().collect();
        match self.leave(&next, &gone, times, has_left) {
            Left::All => {}
            Left::Some => return Next::Nothing,
            Left::Never => return self.restart(ordered.decision),
        }
        let of_servers = self.servers.as_ref().and_then(|servers| hostlist::expand(&servers.seen.nodes));
        let keep: Vec<String> =
            keep.into_iter().filter(|node| !of_servers.iter().flatten().any(|of| of == node)).collect();
        let update = Update::shrink(&keep, &next);
        self.pending = Some(Pending { decision: ordered.decision, gives: Some(next) });
        Next::Call(Action::Update(Box::new(update)))
    }

    /// Lets processes leave for the change to `next`.
    fn leave(&mut self, next: &Given, slots: &[ObservedSlot], times: Times, has_left: &HasLeft<'_>) -> Left {
        if !times.feed {
            return Left::Never;
        }
        // Nobody is told of a decision that a restart of the host would forget.
        if !times.writes {
            return Left::Some;
        }
        let Given { incarnation, revision, .. } = *next;
        let ids = slots.iter().map(|slot| (slot.role, slot.index)).collect();
        let before = self.leaving.take().filter(|before| before.incarnation == incarnation);
        let leaving = self.leaving.insert(match before {
            Some(before) if before.slots.is_superset(&ids) => Leaving { revision, slots: ids, ..before },
            before => {
                let left = before.and_then(|before| before.left);
                Leaving { incarnation, revision, slots: ids, since: times.now, left }
            }
        });
        let here: Vec<_> = slots.iter().filter(|slot| !has_left(incarnation, (slot.role, slot.index))).collect();
        let Some(first) = here.first() else {
            let left = *leaving.left.get_or_insert(times.now);
            return if times.now - left >= ENDS_WITHIN { Left::All } else { Left::Some };
        };
        leaving.left = None;
        if times.now - leaving.since <= times.grace + ENDS_WITHIN {
            return Left::Some;
        }
        tracing::info!(
            job = self.seen.id,
            processes = here.len(),
            "restarts, because processes that have to leave are still there, such as {} {} on {}",
            first.role,
            first.index,
            first.server
        );
        Left::Never
    }

    /// Starts the job again, as the plan says by then.
    fn restart(&mut self, decision: DecisionId) -> Next {
        self.leaving = None;
        self.pending = Some(Pending { decision, gives: None });
        Next::Call(Action::Requeue)
    }

    /// The job's training is done. It ends by itself within the grace, or is cancelled.
    fn done(&mut self, now: i64, grace: i64) -> Next {
        let since = *self.done_since.get_or_insert(now);
        match self.seen.phase() {
            JobPhase::Over(_) | JobPhase::Leaving { requeued: false } => Next::Nothing,
            _ if now - since >= grace => Next::Call(Action::Cancel),
            _ => Next::Nothing,
        }
    }
}

fn waits(job: &Job) -> &str {
    if job.reason.is_empty() || job.reason == "None" { "it says no reason" } else { &job.reason }
}

//! Waiting jobs of a higher priority than others: they get the room of these at once, or it is held for them.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    ledger::Ledger,
    placing::Placing,
    round::{Round, leaving},
};
use crate::{
    decision::{Allocation, Verdict},
    ids::{JobId, ServerId},
    job::Job,
    reason::Reason,
    resources::Amounts,
    state::{Keeps, Mandate},
    time::{Span, Time},
};

/// The number of waiting jobs that are considered, and of their different priorities.
const MOST_TRIED: usize = 8;

/// Room is held for as many jobs at most.
const MOST_HELD: usize = 4;

/// The engine isn't woken up sooner than this for jobs that may leave.
const SOONEST: Span = Span::seconds(1);

impl<'a, I> Round<'a, I> {
    /// Gives waiting jobs the room of jobs of a lower priority, from the lowest on, in their smallest shapes. If these
    /// can't leave yet (stability), room is held: servers are chosen that could hold the waiting job without all jobs
    /// of a lower priority, and there these gain nothing that it needs. The engine wakes up when the first of them may
    /// leave. The last step of a decision; if the budget is used up, the decision stands as it is.
    ///
    /// O(jobs) without priorities. Otherwise O(jobs · log jobs), and for each considered job as much as
    /// [`make_room`](Self::make_room), or a copy of the board and a placement, or both.
    pub(crate) fn prefer(&mut self, placing: Placing) {
        let state = self.state;
        let mut priorities = state.jobs.values().map(|job| state.priority(job));
        let first = priorities.next();
        if priorities.all(|priority| Some(priority) == first) {
            return;
        }
        let (mut held, mut places) = (BTreeSet::new(), 0);
        let mut next = None;
        let (mut tried, mut ledgers) = (0, 0);
        let mut above: Option<(i32, Ledger)> = None;
        for job in self.overtaken() {
            let priority = state.priority(job);
            if above.as_ref().is_none_or(|(of, _)| *of != priority) {
                ledgers += 1;
                above = Some((priority, self.above(priority)));
            }
            // Jobs that others of their priority or their limits keep out don't count.
            let fits = above.as_ref().is_some_and(|(_, above)| above.has(job, &job.total(job.bounds().least())));
            tried += usize::from(fits);
            if tried > MOST_TRIED || ledgers > MOST_TRIED {
                break;
            }
            if !fits {
                continue;
            }
            if self.displace_for(job, placing) {
                above = None;
                continue;
            }
            if places == MOST_HELD {
                continue;
            }
            let Some(place) = self.place_above(job, placing) else { continue };
            if self.hold(job, &place, placing) {
                places += 1;
                let servers: BTreeSet<ServerId> = place.slots().iter().map(|slot| slot.server).collect();
                next = next.into_iter().chain(self.next_leave(priority, &servers)).min();
                // Later jobs get no room there in this decision.
                servers.iter().for_each(|server| self.board.room.close(*server));
                held.extend(servers);
            }
        }
        if places > 0 {
            self.bring_back();
        }
        held.iter().for_each(|server| self.board.room.reopen(state, *server));
        self.proposal.wake_at = self.proposal.wake_at.into_iter().chain(next).min();
    }

    /// Waiting jobs of a higher priority than some with slots, in the order of priority, then arrival.
    fn overtaken(&self) -> Vec<&'a Arc<Job>> {
        let state = self.state;
        let Some(lowest) = self.planned().map(|(job, _)| state.priority(job)).min() else { return Vec::new() };
        let changes: BTreeMap<JobId, &Verdict> = { self.proposal.changes.iter() }.map(|(id, to)| (*id, to)).collect();
        let waits = |job: &&Arc<Job>| {
            state.priority(job) > lowest
                && matches!(changes.get(&job.id).copied().unwrap_or(&job.verdict), Verdict::Wait(_))
                && state.mandate(job) == Mandate::Free
                && !job.is_in_transit(state.now)
        };
        let mut overtaken: Vec<_> = state.jobs.values().filter(waits).collect();
        overtaken.sort_by_key(|job| (Reverse(state.priority(job)), job.arrival, job.id));
        overtaken
    }

    /// Starts a job in place of jobs of a lower priority. Returns whether it found a place.
    fn displace_for(&mut self, job: &'a Arc<Job>, placing: Placing) -> bool {
        let state = self.state;
        let least = job.bounds().least();
        let mut order = vec![(job, least)];
        let mut above = Ledger::of(state);
        for (other, has) in self.planned() {
            if state.priority(other) < state.priority(job) && state.mandate(other) == Mandate::Free {
                order.push((other, has.shape()));
            } else {
                above.take(other, &other.total(has.shape()), 1);
            }
        }
        if order.len() == 1 || !above.has(job, &job.total(least)) {
            return false;
        }
        order.sort_by_key(|(job, _)| Reverse(state.priority(job)));
        let served = self.make_room(&order, above, placing).is_ok();
        served && self.proposal.changes.iter().any(|(id, verdict)| *id == job.id && verdict.allocation().is_some())
    }

    /// The place that a job would get if jobs of a lower priority had no slots. Nothing is taken.
    fn place_above(&mut self, job: &'a Arc<Job>, placing: Placing) -> Option<Arc<Allocation>> {
        let state = self.state;
        self.budget.spend((state.jobs.len() + state.servers.len()) as u64).ok()?;
        let mut above = self.board.clone();
        for (other, has) in self.planned().filter(|(other, _)| state.priority(other) < state.priority(job)) {
            above.give_back(state, other, has);
        }
        let least = job.bounds().least();
        // A fixed start of round-robin: the place stays the same while jobs of a lower priority come and go.
        placing.place(state, &mut above, job, least, &mut 0, self.budget).ok()?
    }

    /// Takes back what jobs of a lower priority gained on the servers of a place, as far as `job` needs it there. Jobs
    /// that were to start there start elsewhere, or wait behind it. False, without any effect, if the budget is too
    /// small.
    fn hold(&mut self, job: &'a Arc<Job>, place: &Allocation, placing: Placing) -> bool {
        let state = self.state;
        let needs = by_server(job, place);
        let leaving = leaving(state);
        let mut gains: Vec<Gain<'a>> = Vec::new();
        for (other, has) in self.planned().filter(|(other, _)| state.priority(other) < state.priority(job)) {
            // A job isn't brought back to a server that drains.
            let gained = if leaving(other) { BTreeMap::new() } else { gained(other, has, &needs) };
            if !gained.is_empty() {
                gains.push(Gain { job: other, new: has.clone(), gained });
            }
        }
        let slots: usize = gains.iter().map(|gain| gain.new.slots().len()).sum();
        if self.budget.spend((place.slots().len() + slots) as u64).is_err() {
            return false;
        }
        // What can be held on each server: all that the job needs there, unless others have it already.
        let mut most: BTreeMap<ServerId, Amounts> =
            needs.keys().map(|server| (*server, self.board.room.free(*server).clone())).collect();
        for (server, gained) in gains.iter().flat_map(|gain| &gain.gained) {
            *most.entry(*server).or_default() += gained;
        }
        for (server, free) in &mut most {
            let held = needs[server].iter().map(|(resource, need)| (resource, need.min(free[resource]).max(0)));
            *free = Amounts::of(&held.collect::<Vec<_>>());
        }
        // The last of the lowest priority loses first.
        gains.sort_by_key(|gain| (state.priority(gain.job), Reverse((gain.job.arrival, gain.job.id))));
        let mut left = self.left();
        let (mut taken, mut waiting) = (BTreeSet::new(), Vec::new());
        loop {
            let before = gains.len();
            gains.retain(|gain| {
                let is_short = gain.gained.iter().any(|(server, gained)| {
                    let (most, free) = (&most[server], self.board.room.free(*server));
                    gained.iter().any(|(resource, amount)| amount > 0 && most[resource] > free[resource])
                });
                if !is_short {
                    return true;
                }
                self.board.give_back(state, gain.job, &gain.new);
                left.take(gain.job, &gain.job.total(gain.new.shape()), -1);
                if let Some(old) = gain.job.verdict.allocation() {
                    let total = gain.job.total(old.shape());
                    if !left.has(gain.job, &total) || !self.board.restore(state, gain.job, old) {
                        // Others have its old room, or what its owner may have.
                        self.board.restore(state, gain.job, &gain.new);
                        left.take(gain.job, &gain.job.total(gain.new.shape()), 1);
                        return true;
                    }
                    left.take(gain.job, &total, 1);
                } else {
                    waiting.push(gain.job);
                }
                taken.insert(gain.job.id);
                false
            });
            // Those that went back may have left the old room of others.
            if gains.len() == before {
                break;
            }
        }
        self.proposal.changes.retain(|(id, _)| !taken.contains(id));
        needs.keys().for_each(|server| self.board.room.close(*server));
        let mut position = 0;
        for other in waiting.into_iter().rev() {
            let (least, total) = (other.bounds().least(), other.total(other.bounds().least()));
            let found = if left.has(other, &total) { self.place(other, least, placing) } else { Ok(None) };
            if let Ok(Some(found)) = found {
                left.take(other, &total, 1);
                self.proposal.run(other, found);
                continue;
            }
            position += 1;
            let ahead = |verdict: &Verdict| match verdict {
                Verdict::Wait(Reason::Behind { job, .. }) => Some(*job),
                _ => None,
            };
            if ahead(&other.verdict) != Some(job.id) {
                let behind = Verdict::Wait(Reason::Behind { job: job.id, position });
                self.proposal.changes.push((other.id, behind));
            }
        }
        true
    }

    /// Jobs that would stop keep their slots, if nobody got their room.
    fn bring_back(&mut self) {
        let state = self.state;
        let leaving = leaving(state);
        let stops = { self.proposal.changes.iter() }.filter(|(_, verdict)| matches!(verdict, Verdict::Wait(_)));
        let jobs = stops.filter_map(|(id, _)| state.jobs.get(id)).filter(|job| !leaving(job));
        let mut stopped: Vec<_> = jobs.filter_map(|job| Some((job, job.verdict.allocation()?))).collect();
        stopped.sort_by_key(|(job, _)| (Reverse(state.priority(job)), job.arrival, job.id));
        let mut left = self.left();
        let mut back = BTreeSet::new();
        for (job, old) in stopped {
            let total = job.total(old.shape());
            if left.has(job, &total) && self.board.restore(state, job, old) {
                left.take(job, &total, 1);
                back.insert(job.id);
            }
        }
        self.proposal.changes.retain(|(id, _)| !back.contains(id));
    }

    /// The totals and limits that the proposal leaves.
    fn left(&self) -> Ledger {
        self.above(i32::MIN)
    }

    /// The totals and limits that jobs of this priority and higher ones leave.
    fn above(&self, priority: i32) -> Ledger {
        let mut left = Ledger::of(self.state);
        for (job, has) in self.planned().filter(|(job, _)| self.state.priority(job) >= priority) {
            left.take(job, &job.total(has.shape()), 1);
        }
        left
    }

    /// When the first job of a lower priority on these servers may leave its slots, of those that stability keeps.
    fn next_leave(&self, priority: i32, servers: &BTreeSet<ServerId>) -> Option<Time> {
        let state = self.state;
        let left = |job: &Arc<Job>| match state.stability(job)? {
            Keeps::MinRun { left } => Some(left),
            Keeps::Rescales { left } => left,
            // Its end is an event.
            Keeps::NearEnd { .. } => None,
        };
        let is_there = |has: &Allocation| has.slots().iter().any(|slot| servers.contains(&slot.server));
        let lower = self.planned().filter(|(job, has)| state.priority(job) < priority && is_there(has));
        lower.filter_map(|(job, _)| left(job)).map(|left| state.now + left.max(SOONEST)).min()
    }
}

/// What a job of a lower priority gained in this round.
struct Gain<'a> {
    job: &'a Arc<Job>,
    new: Arc<Allocation>,
    /// By server.
    gained: BTreeMap<ServerId, Amounts>,
}

/// The amounts of a job's slots on each server.
fn by_server(job: &Job, allocation: &Allocation) -> BTreeMap<ServerId, Amounts> {
    let mut amounts: BTreeMap<ServerId, Amounts> = BTreeMap::new();
    for slot in allocation.slots() {
        *amounts.entry(slot.server).or_default() += &job.demand(slot.role).amounts;
    }
    amounts
}

/// What a job's new slots take beyond its current ones, on some servers.
fn gained(job: &Job, new: &Allocation, on: &BTreeMap<ServerId, Amounts>) -> BTreeMap<ServerId, Amounts> {
    let old = job.verdict.allocation().map(|old| by_server(job, old)).unwrap_or_default();
    let mut gained = by_server(job, new);
    gained.retain(|server, amounts| {
        if let Some(old) = old.get(server) {
            *amounts -= old;
        }
        on.contains_key(server) && amounts.iter().any(|(_, amount)| amount > 0)
    });
    gained
}

//! Asynchronous training: every worker gets the next batch as soon as it is done with its last.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use super::{Chief, Phase, ledger::Step};
use crate::{chunks::Portion, feed::Feed, id::Id, net::Net, tally::Tally, wire::Message};

/// A batch that a worker has.
struct Ticket {
    step: u64,
    attempt: u64,
    portion: Option<Portion>,
    sent: Instant,
}

/// The batches under way.
pub(super) struct Tickets {
    open: BTreeMap<u32, Ticket>,
    next: u64,
    /// Batches whose worker was lost: given to the next one that asks.
    again: BTreeSet<u64>,
    last: Instant,
}

impl Tickets {
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(super) fn has(&self, worker: u32) -> bool {
        self.open.contains_key(&worker)
    }

    pub(super) fn oldest(&self) -> Option<Instant> {
        self.open.values().map(|ticket| ticket.sent).min()
    }

    pub(super) fn lost(&mut self, id: Id) {
        if id.is_worker()
            && let Some(ticket) = self.open.remove(&id.index)
        {
            self.again.insert(ticket.step);
        }
    }
}

impl Chief {
    /// Starts handing out batches.
    pub(super) fn stream(&mut self, net: &mut Net) {
        if !matches!(self.phase, Phase::Stream(_)) {
            let (next, last) = (self.ledger.step, Instant::now());
            self.phase = Phase::Stream(Tickets { open: BTreeMap::new(), next, again: BTreeSet::new(), last });
        }
        self.issue(net);
    }

    /// Gives a batch to every worker that has none, unless something waits for all to be done.
    pub(super) fn issue(&mut self, net: &mut Net) {
        let halt = self.ledger.done.is_some() || self.stop.is_some() || self.checkpoint_due();
        let workers: Vec<_> = self.workers().into_iter().map(|worker| (worker, self.portion(worker))).collect();
        let most = self.settings.pace.max_steps.unwrap_or(u64::MAX);
        let Phase::Stream(tickets) = &mut self.phase else { return };
        for (worker, portion) in workers {
            let used_up = tickets.again.is_empty() && tickets.next >= most;
            if halt || used_up || tickets.open.contains_key(&worker) {
                continue;
            }
            let step = tickets.again.pop_first().unwrap_or_else(|| {
                tickets.next += 1;
                tickets.next - 1
            });
            self.attempt += 1;
            let attempt = self.attempt;
            tickets.open.insert(worker, Ticket { step, attempt, portion, sent: Instant::now() });
            net.send(Id::worker(worker), Message::Ticket { step, attempt, portion });
        }
    }

    /// A worker's gradients have been applied.
    pub(super) fn answered(
        &mut self,
        step: u64,
        attempt: u64,
        tally: Tally,
        times: &[(u32, f32)],
        net: &mut Net,
        feed: &Feed,
    ) {
        let shape = (self.workers().len() as u32, self.servers.len() as u32);
        let Phase::Stream(tickets) = &mut self.phase else { return };
        let Some((worker, _)) = times.first().copied() else { return };
        if tickets.open.get(&worker).is_none_or(|ticket| (ticket.step, ticket.attempt) != (step, attempt)) {
            return;
        }
        let Some(ticket) = tickets.open.remove(&worker) else { return };
        let took = tickets.last.elapsed();
        tickets.last = Instant::now();
        // Batches still under way when the job got done don't count.
        if self.ledger.done.is_none() {
            let times = [(worker, ticket.sent.elapsed().as_secs_f32() * 1e3)];
            let portions = ticket.portion.as_slice();
            let reports = self.ledger.record(&Step { tally, took, times: &times, shape, portions });
            self.publish(reports, feed);
            self.look(net);
        }
        self.proceed(net, feed);
    }
}

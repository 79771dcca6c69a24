//! Asynchronous training: each worker (for a model in partitions: each replica) gets the next batch when it has
//! finished the last one.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use super::{
    Chief,
    ledger::CompletedStep,
    phase::{Phase, Ticket, Tickets},
};
use crate::{
    feed::Feed,
    id::Id,
    net::Net,
    tally::Tally,
    wire::{Collected, Message},
};

impl Chief {
    /// Starts to assign batches.
    pub(super) fn stream(&mut self, net: &mut Net) {
        if !matches!(self.phase, Phase::Stream(_)) {
            let (next, last) = (self.ledger.step, Instant::now());
            let (parts, open, again) = (self.parts(), BTreeMap::new(), BTreeSet::new());
            self.phase = Phase::Stream(Tickets { parts, open, next, again, last });
        }
        self.issue(net);
    }

    /// Assigns a batch to each free replica, unless a change waits for all batches to end.
    pub(super) fn issue(&mut self, net: &mut Net) {
        let halt = self.ledger.done.is_some() || self.stop.is_some() || self.checkpoint_due();
        let parts = self.parts();
        let first = self.workers().into_iter().filter(|worker| parts.of(*worker) == 0);
        let replicas: Vec<_> = first.map(|worker| (parts.replica(worker), self.portion(worker))).collect();
        let most = self.settings.pace.max_steps.unwrap_or(u64::MAX);
        let Phase::Stream(tickets) = &mut self.phase else { return };
        for (replica, portion) in replicas {
            let used_up = tickets.again.is_empty() && tickets.next >= most;
            if halt || used_up || tickets.open.contains_key(&replica) {
                continue;
            }
            let step = tickets.again.pop_first().unwrap_or_else(|| {
                tickets.next += 1;
                tickets.next - 1
            });
            self.attempt += 1;
            let attempt = self.attempt;
            let (sent, missing) = (Instant::now(), parts.workers(replica).collect());
            let (tally, times) = (Tally::default(), Vec::new());
            tickets.open.insert(replica, Ticket { step, attempt, portion, sent, missing, tally, times });
            for worker in parts.workers(replica) {
                net.send(Id::worker(worker), Message::Ticket { step, attempt, portion });
            }
        }
    }

    /// A worker's gradients are applied.
    pub(super) fn answered(&mut self, collected: Collected, net: &mut Net, feed: &Feed) {
        let Collected { step, attempt, tally, times } = collected;
        let shape = (self.workers().len() as u32, self.servers.len() as u32);
        let Phase::Stream(tickets) = &mut self.phase else { return };
        let Some((worker, _)) = times.first().copied() else { return };
        let replica = tickets.parts.replica(worker);
        let Some(ticket) = tickets.open.get_mut(&replica).filter(|it| (it.step, it.attempt) == (step, attempt)) else {
            return;
        };
        if !ticket.missing.remove(&worker) {
            return;
        }
        ticket.times.push((worker, ticket.sent.elapsed().as_secs_f32() * 1e3));
        // All partitions of a replica train the same examples.
        if tickets.parts.closes(worker) {
            ticket.tally = tally;
        }
        if !ticket.missing.is_empty() {
            return;
        }
        let Some(Ticket { portion, tally, times, .. }) = tickets.open.remove(&replica) else { return };
        let took = tickets.last.elapsed();
        tickets.last = Instant::now();
        // Batches in progress at the end of the job don't count.
        if self.ledger.done.is_none() {
            let portions = portion.as_slice();
            let reports = self.ledger.record(&CompletedStep { tally, took, times: &times, shape, portions });
            self.publish(reports, feed);
            self.look(net);
        }
        self.proceed(net, feed);
    }
}

//! Single steps: sync training and all-reduce.

use std::{collections::BTreeSet, time::Instant};

use super::{
    Chief,
    ledger::CompletedStep,
    phase::{Phase, Stepping},
};
use crate::{
    chunks::Portion,
    feed::Feed,
    id::Id,
    net::Net,
    tally::Tally,
    wire::{Collected, Message},
};

impl Chief {
    /// Orders the next step, or repeats one after a failed attempt.
    pub(super) fn step(&mut self, workers: Vec<u32>, net: &mut Net) {
        self.attempt += 1;
        // A copy of the model that misses a step has to be loaded again.
        self.loaded.retain(|id| !id.is_worker() || workers.contains(&id.index));
        let trainers = workers.iter().map(|index| Id::worker(*index));
        let missing: BTreeSet<Id> =
            if self.servers.is_empty() { trainers.clone().collect() } else { self.servers.iter().copied().collect() };
        let (step, attempt, revision) = (self.ledger.step, self.attempt, self.revision);
        let portions: Vec<Portion> = workers.iter().filter_map(|worker| self.portion(*worker)).collect();
        for id in self.servers.iter().copied().chain(trainers) {
            let (workers, portions) = (workers.clone(), portions.clone());
            net.send(id, Message::Step { step, attempt, revision, workers, portions });
        }
        let (tally, times, sent) = (Tally::default(), Vec::new(), Instant::now());
        self.phase = Phase::Step(Stepping { attempt, workers, portions, missing, tally, times, sent });
    }

    /// A holder has all gradients of a step.
    pub(super) fn collected(&mut self, from: Id, collected: Collected, net: &mut Net, feed: &Feed) {
        let Collected { attempt, tally, times, .. } = collected;
        let Phase::Step(stepping) = &mut self.phase else { return };
        if stepping.attempt != attempt || !stepping.missing.remove(&from) {
            return;
        }
        // Each parameter server counts the same examples, and so do all partitions of a replica in a ring.
        let ring = self.servers.is_empty();
        let counts = if ring { self.settings.parts.closes(from.index) } else { from == self.me };
        if counts {
            stepping.tally.add(tally);
        }
        if ring || from == self.me {
            stepping.times.extend(times);
        }
        if !stepping.missing.is_empty() {
            return;
        }
        let step = CompletedStep {
            tally: stepping.tally,
            took: stepping.sent.elapsed(),
            times: &stepping.times,
            shape: (stepping.workers.len() as u32, self.servers.len() as u32),
            portions: &stepping.portions,
        };
        let reports = self.ledger.record(&step);
        self.phase = Phase::Idle(Instant::now());
        self.publish(reports, feed);
        self.look(net);
        self.boundary(net, feed);
    }
}

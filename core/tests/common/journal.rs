//! Journals of simulation runs.

use trainmaster_core::{
    journal::Record,
    replay::{Replay, Replayed},
};
use trainmaster_sim::Host;

/// Collects the journal.
#[derive(Default)]
pub struct Keeper(pub Vec<Vec<u8>>);

impl Host for Keeper {
    fn records(&mut self, records: Vec<Vec<u8>>) {
        self.0.extend(records);
    }
}

/// Returns the numbers of equal decisions, different decisions, and inconsistent snapshots, from the first snapshot on.
pub fn verify(records: &[Record]) -> (u32, u32, u32) {
    let Record::Snapshot(saved) = &records[0] else { panic!("a journal begins with a snapshot") };
    let mut replay = Replay::new((**saved).clone()).unwrap();
    let mut counts = (0, 0, 0);
    for record in &records[1..] {
        match replay.step(record).unwrap() {
            Replayed::Decided(Ok(_)) => counts.0 += 1,
            Replayed::Decided(Err(_)) => counts.1 += 1,
            Replayed::Snapshot { follows: false } => counts.2 += 1,
            _ => {}
        }
    }
    counts
}

//! Uploads of a job's data to its servers. A chunk that is scheduled separately stays on its server, even while the job
//! or the server is away. A job that is scheduled as a whole moves its data with it.

use std::{collections::BTreeMap, sync::Arc};

use trainmaster_core::{
    decision::Allocation,
    ids::ServerId,
    server::Place,
    shape::Role,
    time::{Span, Time},
};

/// Locations of the servers of a job's slots.
pub(super) type Places = BTreeMap<ServerId, Arc<Place>>;

/// Completed and current uploads.
#[derive(Clone, Debug, Default)]
pub(super) struct Uploads {
    /// For a job that isn't scheduled by chunk: number of chunks on each server, and time of their arrival.
    held: BTreeMap<ServerId, (u32, Time)>,
    /// Number of chunks sent.
    pub(super) sent: u64,
    /// Total time with an upload.
    pub(super) time: Span,
    until: Time,
}

impl Uploads {
    /// Sends chunks to a server. The upload takes `takes`, independent of their number. Returns the time of arrival. A
    /// server without an upload label takes no time, and nothing is sent.
    pub(super) fn send(&mut self, now: Time, chunks: u32, takes: Span) -> Time {
        if chunks == 0 || takes <= Span::ZERO {
            return now;
        }
        let there = now + takes;
        self.sent += u64::from(chunks);
        self.time.0 += (there - self.until.max(now)).0.max(0);
        self.until = self.until.max(there);
        there
    }

    /// Ensures that one chunk is at a server, and returns the time of its arrival. A chunk that was sent before chunks
    /// were scheduled separately counts.
    pub(super) fn one(&mut self, now: Time, server: ServerId, takes: Span) -> Time {
        match self.held.get_mut(&server) {
            Some((count, ready)) if *count > 0 => {
                *count -= 1;
                *ready
            }
            _ => self.send(now, 1, takes),
        }
    }

    /// Spreads all data evenly over these workers. Missing chunks are sent to each server, and chunks elsewhere are
    /// dropped. Returns the time when every server has its share.
    pub(super) fn spread(
        &mut self,
        now: Time,
        chunks: u32,
        slots: &Allocation,
        takes: impl Fn(ServerId) -> Span,
    ) -> Time {
        let workers = slots.of(Role::Worker);
        let count = workers.len().max(1) as u32;
        let mut needs: BTreeMap<ServerId, u32> = BTreeMap::new();
        for (number, slot) in (0..).zip(workers) {
            *needs.entry(slot.server).or_default() += chunks / count + u32::from(number < chunks % count);
        }
        self.held.retain(|server, _| needs.contains_key(server));
        for (server, need) in needs {
            let (had, ready) = self.held.get(&server).copied().unwrap_or((0, now));
            let there = self.send(now, need.saturating_sub(had), takes(server));
            self.held.insert(server, (had.max(need), ready.max(there)));
        }
        self.held.values().map(|(_, ready)| *ready).max().unwrap_or(now).max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainmaster_core::decision::{Devices, Slot};

    fn on(servers: &[u32]) -> Allocation {
        let slot = |(index, server): (u32, &u32)| Slot {
            role: Role::Worker,
            index,
            server: ServerId(*server),
            devices: Devices::new(),
        };
        Allocation::new((0..).zip(servers).map(slot).collect())
    }

    #[test]
    fn only_missing_chunks_are_sent() {
        let hours = |hours: i64| Span::seconds(3600 * hours);
        let at = |span: Span| Time(0) + span;
        let takes = |server: ServerId| hours(i64::from(server.0));
        let mut uploads = Uploads::default();
        // Ten chunks over three workers: 4 + 3 on server 1, 3 on server 2.
        assert_eq!(uploads.spread(at(hours(0)), 10, &on(&[1, 1, 2]), takes), at(hours(2)));
        assert_eq!((uploads.sent, uploads.time), (10, hours(2)));
        // Paused after an hour, and resumed after another one: the pending upload has arrived.
        assert_eq!(uploads.spread(at(hours(2)), 10, &on(&[1, 1, 2]), takes), at(hours(2)));
        assert_eq!(uploads.sent, 10);
        // Another worker: 3 + 3 and 2 + 2. Server 1 has more than it needs, server 2 lacks one.
        assert_eq!(uploads.spread(at(hours(3)), 10, &on(&[1, 1, 2, 2]), takes), at(hours(5)));
        assert_eq!((uploads.sent, uploads.time), (11, hours(4)));
        // The job leaves and returns, and everything is sent again.
        uploads.spread(at(hours(6)), 10, &on(&[3]), takes);
        assert_eq!(uploads.spread(at(hours(7)), 10, &on(&[1, 1]), takes), at(hours(8)));
        // The upload to server 3 continued in the meantime.
        assert_eq!((uploads.sent, uploads.time), (31, hours(7)));
        // No upload time: nothing is sent.
        assert_eq!(uploads.spread(at(hours(9)), 10, &on(&[0]), takes), at(hours(9)));
        assert_eq!(uploads.sent, 31);
    }
}

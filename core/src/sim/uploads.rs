//! A job's data on its way to the servers that train it. A chunk that is scheduled by itself stays where it was sent, also
//! while the job is away or the server itself is; a job that is scheduled whole takes its data along.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    decision::Allocation,
    ids::ServerId,
    server::Place,
    shape::Role,
    time::{Span, Time},
};

/// Where the servers of a job's slots are.
pub(super) type Places = BTreeMap<ServerId, Arc<Place>>;

/// What was sent, and what it took.
#[derive(Clone, Debug, Default)]
pub(super) struct Uploads {
    /// Of a job that nobody schedules by chunk: how many each server has, and from when.
    held: BTreeMap<ServerId, (u32, Time)>,
    /// Chunks.
    pub(super) sent: u64,
    /// With an upload under way.
    pub(super) time: Span,
    until: Time,
}

impl Uploads {
    /// Sends so many chunks to a server, which takes so long however many there are; when they are there. Where it takes
    /// no time nothing is sent: that server has no upload label.
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

    /// One chunk has to be at a server; when it is. One that was sent there while nobody told them apart will do.
    pub(super) fn one(&mut self, now: Time, server: ServerId, takes: Span) -> Time {
        match self.held.get_mut(&server) {
            Some((count, ready)) if *count > 0 => {
                *count -= 1;
                *ready
            }
            _ => self.send(now, 1, takes),
        }
    }

    /// All data has to be with these workers, evenly: what a server lacks is sent, what is elsewhere is dropped. Returns when
    /// every server has its share.
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
    use crate::decision::{Devices, Slot};

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
    fn only_what_a_server_lacks_is_sent_to_it() {
        let hours = |hours: i64| Span::seconds(3600 * hours);
        let at = |span: Span| Time(0) + span;
        let takes = |server: ServerId| hours(i64::from(server.0));
        let mut uploads = Uploads::default();
        // Ten chunks over three workers: 4 + 3 on server 1, 3 on server 2.
        assert_eq!(uploads.spread(at(hours(0)), 10, &on(&[1, 1, 2]), takes), at(hours(2)));
        assert_eq!((uploads.sent, uploads.time), (10, hours(2)));
        // Paused after an hour and back after another: what was under way has come.
        assert_eq!(uploads.spread(at(hours(2)), 10, &on(&[1, 1, 2]), takes), at(hours(2)));
        assert_eq!(uploads.sent, 10);
        // Another worker there: 3 + 3 and 2 + 2. Server 1 has more than it needs, server 2 lacks one.
        assert_eq!(uploads.spread(at(hours(3)), 10, &on(&[1, 1, 2, 2]), takes), at(hours(5)));
        assert_eq!((uploads.sent, uploads.time), (11, hours(4)));
        // Away and back again: all is sent anew.
        uploads.spread(at(hours(6)), 10, &on(&[3]), takes);
        assert_eq!(uploads.spread(at(hours(7)), 10, &on(&[1, 1]), takes), at(hours(8)));
        // The upload to server 3 was under way all the time.
        assert_eq!((uploads.sent, uploads.time), (31, hours(7)));
        // No upload time: nothing is sent.
        assert_eq!(uploads.spread(at(hours(9)), 10, &on(&[0]), takes), at(hours(9)));
        assert_eq!(uploads.sent, 31);
    }
}

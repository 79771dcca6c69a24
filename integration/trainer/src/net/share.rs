//! One direction of an emulated network interface: concurrent transfers share its rate equally.
//!
//! Processor sharing in virtual time. The virtual clock counts the bytes that *each* open transfer has moved, so it
//! runs at rate / n. A transfer of B bytes that starts at virtual time V ends at V + B, whatever other transfers start
//! or end meanwhile. Only the mapping to real time changes. Each event costs O(log n). Times are nanoseconds since any
//! fixed time.

use std::collections::BTreeMap;

/// Transfers through one direction of an interface.
#[derive(Debug)]
pub(crate) struct Share<T> {
    bytes_per_ns: f64,
    moved: f64,
    at: u64,
    serial: u64,
    // By end in virtual time (the bits of a non-negative f64 order like it), then by arrival.
    open: BTreeMap<(u64, u64), T>,
}

impl<T> Share<T> {
    pub(crate) fn new(mbit_per_s: f64) -> Self {
        Self { bytes_per_ns: mbit_per_s / 8e3, moved: 0.0, at: 0, serial: 0, open: BTreeMap::new() }
    }

    /// Starts a transfer. Returns the transfers that ended until `now`, in order of their ends.
    pub(crate) fn start(&mut self, now: u64, bytes: u64, item: T) -> Vec<T> {
        let ended = self.advance(now);
        self.serial += 1;
        self.open.insert(((self.moved + bytes as f64).to_bits(), self.serial), item);
        ended
    }

    /// Advances time. Returns the transfers that ended.
    pub(crate) fn advance(&mut self, now: u64) -> Vec<T> {
        let mut ended = Vec::new();
        while let Some(due) = self.due().filter(|due| *due <= now)
            && let Some(((end, _), item)) = self.open.pop_first()
        {
            self.moved = f64::from_bits(end);
            self.at = due;
            ended.push(item);
        }
        if self.open.is_empty() {
            self.moved = 0.0; // keeps the sums small, so they stay exact
        } else {
            self.moved += now.saturating_sub(self.at) as f64 * self.bytes_per_ns / self.open.len() as f64;
        }
        self.at = self.at.max(now);
        ended
    }

    /// End of the next transfer, if no other one starts.
    pub(crate) fn due(&self) -> Option<u64> {
        let ((end, _), _) = self.open.first_key_value()?;
        let left = (f64::from_bits(*end) - self.moved).max(0.0) * self.open.len() as f64 / self.bytes_per_ns;
        Some(self.at + left.ceil() as u64)
    }

    /// Removes transfers. Their rate goes to the others from now on.
    pub(crate) fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        self.open.retain(|_, item| keep(item));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// 80 Mbit/s move 10,000 bytes in a millisecond.
    fn share() -> Share<&'static str> {
        Share::new(80.0)
    }

    #[test]
    fn a_lone_transfer_has_the_whole_rate() {
        let mut share = share();
        share.start(5 * MS, 30_000, "a");
        assert_eq!(share.due(), Some(8 * MS));
        assert!(share.advance(7 * MS).is_empty());
        assert_eq!(share.advance(8 * MS), ["a"]);
        assert_eq!(share.due(), None);
    }

    #[test]
    fn equal_transfers_end_together_after_their_sum() {
        let mut share = share();
        for name in ["a", "b", "c", "d"] {
            share.start(0, 10_000, name);
        }
        assert_eq!(share.due(), Some(4 * MS));
        assert_eq!(share.advance(4 * MS), ["a", "b", "c", "d"]);
    }

    #[test]
    fn a_latecomer_slows_the_first_down_from_then_on() {
        let mut share = share();
        share.start(0, 20_000, "a"); // alone until 1 ms, then half the rate: ends at 3 ms
        share.start(MS, 20_000, "b"); // 10,000 moved at 3 ms, then alone: ends at 4 ms
        assert_eq!(share.due(), Some(3 * MS));
        assert_eq!(share.advance(10 * MS), ["a", "b"]);
        let mut again = self::share();
        again.start(0, 20_000, "a");
        again.start(MS, 20_000, "b");
        assert_eq!(again.advance(3 * MS), ["a"]);
        assert_eq!(again.due(), Some(4 * MS));
    }

    #[test]
    fn a_cancelled_transfer_frees_its_share() {
        let mut share = share();
        share.start(0, 10_000, "a");
        share.start(0, 10_000, "b");
        share.advance(MS);
        share.retain(|name| *name != "b");
        assert_eq!(share.due(), Some(MS + MS / 2));
    }
}

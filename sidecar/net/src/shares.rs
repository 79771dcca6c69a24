//! Use of shares by callers.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tonic::Status;

/// Limits on all callers of one key together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The key in words: `job 7`, `tenant vision`.
    pub key: Arc<str>,
    /// Bytes of unanswered requests and of unsent answers.
    pub bytes: usize,
    /// Lists that are being read, including watched ones. As many logs may be read besides.
    pub lists: usize,
    /// Number of connections.
    pub connections: usize,
}

/// The counted object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Bytes,
    Lists,
    Logs,
    Connections,
    Streams,
}

/// Maximum number of endless streams of one caller: one, and its successor.
const STREAMS: usize = 2;

impl What {
    fn word(self) -> &'static str {
        match self {
            Self::Bytes => "bytes of requests under way",
            Self::Lists => "lists being read",
            Self::Logs => "logs being read",
            Self::Connections => "connections",
            Self::Streams => "streams that never end",
        }
    }

    fn most(self, share: &Share) -> usize {
        match self {
            Self::Bytes => share.bytes,
            Self::Lists | Self::Logs => share.lists,
            Self::Connections => share.connections,
            Self::Streams => STREAMS,
        }
    }
}

/// By key: bytes, lists, logs, connections, streams.
type Table = HashMap<Arc<str>, [usize; 5]>;

/// Current use of all shares. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shares(Arc<Mutex<Table>>);

impl Shares {
    fn table(&self) -> MutexGuard<'_, Table> {
        // Each change leaves it consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `count` of each share, until the result is dropped.
    ///
    /// # Errors
    /// One share has less left. Then nothing is taken.
    pub(crate) fn take(&self, shares: &[Share], what: What, count: usize) -> Result<Taken, Status> {
        let mut taken = Taken { shares: self.clone(), keys: Vec::with_capacity(shares.len()), what, count: 0 };
        taken.more(shares, count)?;
        taken.keys.extend(shares.iter().map(|share| share.key.clone()));
        Ok(taken)
    }
}

/// The use by one call or connection.
#[derive(Debug)]
pub(crate) struct Taken {
    shares: Shares,
    keys: Vec<Arc<str>>,
    what: What,
    count: usize,
}

impl Taken {
    /// Takes more of the same shares.
    ///
    /// # Errors
    /// As [`Shares::take`].
    pub(crate) fn more(&mut self, shares: &[Share], count: usize) -> Result<(), Status> {
        let shared = self.shares.clone();
        let mut table = shared.table();
        let at = self.what as usize;
        let full = shares.iter().find(|share| {
            let has = table.get(&share.key).map_or(0, |counts| counts[at]);
            has.saturating_add(count) > self.what.most(share)
        });
        if let Some(share) = full {
            let (most, word, key) = (self.what.most(share), self.what.word(), &share.key);
            return Err(Status::resource_exhausted(format!("{key} may have {most} {word} at a time; try again later")));
        }
        self.add(&mut table, shares, count);
        Ok(())
    }

    /// Takes more of the same shares, even beyond their limits.
    pub(crate) fn anyway(&mut self, shares: &[Share], count: usize) {
        let shared = self.shares.clone();
        self.add(&mut shared.table(), shares, count);
    }

    /// Returns a part of it.
    pub(crate) fn give_back(&mut self, count: usize) {
        let shared = self.shares.clone();
        let mut table = shared.table();
        for key in &self.keys {
            if let Some(counts) = table.get_mut(key) {
                counts[self.what as usize] -= count;
            }
        }
        self.count -= count;
    }

    fn add(&mut self, table: &mut Table, shares: &[Share], count: usize) {
        for share in shares {
            table.entry(share.key.clone()).or_default()[self.what as usize] += count;
        }
        self.count += count;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut table = self.shares.table();
        for key in &self.keys {
            let Some(counts) = table.get_mut(key) else { continue };
            counts[self.what as usize] -= self.count;
            if *counts == [0; 5] {
                table.remove(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(key: &str, bytes: usize) -> Share {
        Share { key: key.into(), bytes, lists: 1, connections: 1 }
    }

    #[test]
    fn only_callers_within_their_share_get_more() {
        let shares = Shares::default();
        let (mine, other) = ([share("job 1", 10), share("tenant a", 15)], [share("job 2", 10), share("tenant a", 15)]);
        let mut first = shares.take(&mine, What::Bytes, 6).unwrap();
        let full = first.more(&mine, 5).unwrap_err();
        assert_eq!(full.message(), "job 1 may have 10 bytes of requests under way at a time; try again later");
        first.more(&mine, 4).unwrap();
        assert!(shares.take(&other, What::Bytes, 6).unwrap_err().message().starts_with("tenant a may have 15"));
        let second = shares.take(&other, What::Bytes, 5).unwrap();
        assert!(shares.take(&other, What::Lists, 1).is_ok());
        drop(first);
        shares.take(&other, What::Bytes, 5).unwrap();
        drop(second);
        assert!(shares.table().is_empty(), "nothing is kept of who holds nothing");
    }
}

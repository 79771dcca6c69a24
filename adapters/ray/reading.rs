//! Which keys of Ray's key-value store are asked for at once, and what is kept of what stands there. No I/O.

use std::collections::BTreeMap;

/// A look at what stands under some keys, answer by answer. One value keeps nobody from reading the others.
#[derive(Debug)]
pub(super) struct Reading {
    /// Keys that are still to be asked for, each list in one call; the last is the next.
    asked: Vec<Vec<String>>,
    longest: usize,
    room: usize,
    pub(super) found: BTreeMap<String, Vec<u8>>,
    /// The keys of what is longer than it may be.
    pub(super) too_long: Vec<String>,
}

impl Reading {
    /// Of values of at most `longest` bytes, until `room` bytes are there.
    pub(super) fn new(keys: Vec<String>, longest: usize, room: usize) -> Self {
        Self { asked: vec![keys], longest, room, found: BTreeMap::new(), too_long: Vec::new() }
    }

    /// What to ask for now; `None` where all was read, or there is no more room.
    pub(super) fn next(&mut self) -> Option<Vec<String>> {
        self.asked.retain(|keys| !keys.is_empty());
        self.asked.pop().filter(|_| self.room > 0)
    }

    /// What stands under these keys was too much for one answer.
    pub(super) fn refuse(&mut self, mut keys: Vec<String>) {
        if keys.len() > 1 {
            // The first ones first.
            let rest = keys.split_off(keys.len() / 2);
            self.asked.extend([rest, keys]);
        } else {
            self.too_long.append(&mut keys);
        }
    }

    pub(super) fn take(&mut self, answer: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) {
        for (key, value) in answer {
            let Ok(key) = String::from_utf8(key) else { continue };
            if value.len() > self.longest {
                self.too_long.push(key);
            } else {
                self.room = self.room.saturating_sub(value.len());
                self.found.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From a store whose answers have at most so many bytes; and how often it was asked.
    fn read(store: &[(&str, usize)], most: usize, longest: usize, room: usize) -> (Reading, usize) {
        let sizes: BTreeMap<_, _> = store.iter().copied().collect();
        let keys = store.iter().map(|(key, _)| (*key).to_owned()).collect();
        let (mut reading, mut calls) = (Reading::new(keys, longest, room), 0);
        while let Some(keys) = reading.next() {
            calls += 1;
            let answer: Vec<_> = keys.iter().map(|key| (key.clone().into_bytes(), vec![0; sizes[&**key]])).collect();
            if answer.iter().map(|(_, value)| value.len()).sum::<usize>() > most {
                reading.refuse(keys);
            } else {
                reading.take(answer);
            }
        }
        (reading, calls)
    }

    #[test]
    fn one_call_is_enough_for_what_fits() {
        let (reading, calls) = read(&[("a", 2), ("b", 3)], 5, 3, 100);
        assert_eq!((reading.found.len(), reading.too_long.len(), calls), (2, 0, 1));
        assert_eq!(read(&[], 5, 3, 100).1, 0, "nothing is asked for nothing");
    }

    #[test]
    fn what_is_too_long_keeps_nobody_from_the_others() {
        let mut store = vec![("a", 1); 1000];
        let names: Vec<String> = (0..1000).map(|at| format!("k{at:03}")).collect();
        for (entry, name) in store.iter_mut().zip(&names) {
            entry.0 = name;
        }
        // One that no answer can hold, one that may not be so long.
        (store[7].1, store[500].1) = (5000, 20);
        let (reading, calls) = read(&store, 4000, 10, 10_000);
        assert_eq!(reading.found.len(), 998);
        assert_eq!(reading.too_long, ["k007", "k500"]);
        assert!(calls < 30, "{calls}: by halves, not one by one");
    }

    #[test]
    fn it_ends_where_there_is_no_more_room() {
        let (reading, calls) = read(&[("a", 9), ("b", 9), ("c", 9), ("d", 9)], 10, 10, 15);
        assert_eq!(reading.found.into_keys().collect::<Vec<_>>(), ["a", "b"], "the first ones first");
        assert_eq!(calls, 4);
    }
}

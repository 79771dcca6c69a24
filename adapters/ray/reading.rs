//! Reading values of Ray's key-value store: which keys are requested together, and which values are kept. No I/O.

use std::collections::BTreeMap;

/// The reading of several keys' values, one answer at a time. A single large value doesn't prevent reading the others.
#[derive(Debug)]
pub(super) struct Reading {
    /// Keys that are still to be requested. Each list is one call. The last list is next.
    asked: Vec<Vec<String>>,
    longest: usize,
    room: usize,
    pub(super) found: BTreeMap<String, Vec<u8>>,
    /// The keys of values that are too long.
    pub(super) too_long: Vec<String>,
}

impl Reading {
    /// Reads values of at most `longest` bytes each, and about `room` bytes in total.
    pub(super) fn new(keys: Vec<String>, longest: usize, room: usize) -> Self {
        Self { asked: vec![keys], longest, room, found: BTreeMap::new(), too_long: Vec::new() }
    }

    /// Returns the next keys to request. Returns `None` if everything was read or there is no room left.
    pub(super) fn next(&mut self) -> Option<Vec<String>> {
        self.asked.retain(|keys| !keys.is_empty());
        self.asked.pop().filter(|_| self.room > 0)
    }

    /// Handles an answer that was too long: halves the keys, or gives up a single one.
    pub(super) fn refuse(&mut self, mut keys: Vec<String>) {
        if keys.len() > 1 {
            // The first half comes first.
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

    /// Reads from a store whose answers have a maximum size. Returns the reading and the number of calls.
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
        // One value is too long for any answer, and another exceeds the limit.
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

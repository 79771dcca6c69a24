//! A queue of future happenings.

use std::{cmp::Reverse, collections::BinaryHeap};

use trainmaster_core::time::Time;

/// Happenings in order of time, then of insertion.
#[derive(Debug)]
pub(super) struct Queue<T> {
    heap: BinaryHeap<Reverse<Entry<T>>>,
    put: u64,
}

#[derive(Debug)]
struct Entry<T> {
    at: Time,
    number: u64,
    what: T,
}

impl<T> Queue<T> {
    pub(super) fn new() -> Self {
        Self { heap: BinaryHeap::new(), put: 0 }
    }

    pub(super) fn put(&mut self, at: Time, what: T) {
        self.heap.push(Reverse(Entry { at, number: self.put, what }));
        self.put += 1;
    }

    /// Time of the next happening.
    pub(super) fn next(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }

    pub(super) fn take(&mut self) -> Option<(Time, T)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.what))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T> Eq for Entry<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_by_time_then_insertion() {
        let mut queue = Queue::new();
        for (at, what) in [(5, 'a'), (3, 'b'), (5, 'c'), (3, 'd'), (9, 'e'), (5, 'f')] {
            queue.put(Time(at), what);
        }
        assert_eq!(queue.next(), Some(Time(3)));
        let order: String = std::iter::from_fn(|| queue.take()).map(|(_, what)| what).collect();
        assert_eq!(order, "bdacfe");
    }
}

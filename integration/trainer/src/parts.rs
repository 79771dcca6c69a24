//! A model in partitions, each with some of its layers, and their workers.
//!
//! Worker i trains partition i mod K of replica i / K.

use std::ops::Range;

/// The number of partitions, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts(u32);

/// An impossible partition of a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the messages say
pub(crate) enum PartsError {
    /// A partition has at least one layer.
    #[error(
        "--partitions (TRAINMASTER_PARTITIONS) is {count}, but the model has {layers} layers (--hidden); 1 to {layers} \
         are allowed"
    )]
    Count { count: u32, layers: usize },
    /// The layers are a chain.
    #[error(
        "--partitions-after (TRAINMASTER_PARTITIONS_AFTER) is {after}: this program trains chains only, in which \
         each part comes after the one before it, as in {chain}; write partitions = {count}"
    )]
    NoChain { after: String, chain: String, count: u32 },
    /// Replicas are complete.
    #[error(
        "{workers} workers can't train a model in {count} parts (--partitions, TRAINMASTER_PARTITIONS); a multiple of \
         {count} is allowed"
    )]
    Workers { workers: usize, count: u32 },
}

impl Parts {
    /// `count` partitions of a model with `layers` layers. `after`: the predecessors of the partitions, as the
    /// scheduler writes them; empty if unknown.
    pub(crate) fn new(count: u32, after: &str, layers: usize) -> Result<Self, PartsError> {
        if count == 0 || count as usize > layers {
            return Err(PartsError::Count { count, layers });
        }
        let befores =
            (0..count).map(|part| part.checked_sub(1).map_or_else(|| "-".to_owned(), |part| part.to_string()));
        let chain = befores.collect::<Vec<_>>().join(":");
        if !after.is_empty() && after != chain {
            return Err(PartsError::NoChain { after: after.to_owned(), chain, count });
        }
        Ok(Self(count))
    }

    /// Number of partitions.
    pub(crate) fn count(self) -> usize {
        self.0 as usize
    }

    /// The partition of a worker.
    pub(crate) fn of(self, worker: u32) -> usize {
        (worker % self.0) as usize
    }

    /// Whether this worker has the last partition, which computes the loss.
    pub(crate) fn closes(self, worker: u32) -> bool {
        worker % self.0 == self.0 - 1
    }

    /// The replica of a worker.
    pub(crate) fn replica(self, worker: u32) -> u32 {
        worker / self.0
    }

    /// All workers of a replica.
    pub(crate) fn workers(self, replica: u32) -> Range<u32> {
        replica * self.0..(replica + 1) * self.0
    }

    /// The workers, ascending, whose replicas are complete.
    pub(crate) fn whole(self, workers: &[u32]) -> Vec<u32> {
        let replicas = workers.chunk_by(|a, b| self.replica(*a) == self.replica(*b));
        replicas.filter(|replica| replica.len() == self.count()).flatten().copied().collect()
    }

    /// Checks that the number of workers is a multiple of the partitions.
    pub(crate) fn check(self, workers: usize) -> Result<(), PartsError> {
        let whole = workers.is_multiple_of(self.count());
        if whole { Ok(()) } else { Err(PartsError::Workers { workers, count: self.0 }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_chains_of_at_most_as_many_parts_as_layers() {
        assert_eq!(Parts::new(3, "-:0:1", 3), Parts::new(3, "", 4));
        assert_eq!(Parts::new(1, "-", 1).map(Parts::count), Ok(1));
        let parts = Parts::new(3, "", 3).unwrap();
        assert_eq!((parts.of(5), parts.replica(5), parts.workers(1)), (2, 1, 3..6));
        for (count, after, expected) in [
            (4, "-:0:1:2", "TRAINMASTER_PARTITIONS) is 4, but the model has 3 layers (--hidden); 1 to 3 are"),
            (0, "", "1 to 3 are"),
            (3, "-:0:0", "TRAINMASTER_PARTITIONS_AFTER) is -:0:0: this program trains chains only"),
            (3, "-:0:0+1", "as in -:0:1; write partitions = 3"),
        ] {
            let error = Parts::new(count, after, 3).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn an_incomplete_replica_does_not_count() {
        let parts = Parts::new(2, "", 2).unwrap();
        assert_eq!(parts.whole(&[0, 1, 3, 4, 5]), [0, 1, 4, 5]);
        assert_eq!(parts.whole(&[1, 2]), [0; 0]);
        assert!(parts.check(4).is_ok());
        assert!(parts.check(3).unwrap_err().to_string().contains("a multiple of 2"));
        assert!(parts.closes(3) && !parts.closes(2));
    }
}

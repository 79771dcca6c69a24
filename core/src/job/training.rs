//! A job's training in time slots: the work model of OASiS (§III), for engines and metrics that count in slots.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{active::Job, learnt::Progress, spec::Bounds, spec::JobSpec};
use crate::{
    shape::Shape,
    time::{Span, Time},
};

/// Bits per MiB that is sent and received.
const TWO_WAY_BITS: u128 = 2 * 8 * (1 << 20);

/// Maximum number of chunk trainings. Larger numbers are mistakes.
const MOST_WORK: u64 = 1 << 40;

/// The amount of a job's training, and how fast workers do it: E epochs over N data chunks. Each chunk keeps one worker
/// busy for M·(τ + 2e/b): M mini-batches of time τ, with gradients of e bytes over bandwidth b. The time of a chunk is
/// an exact fraction. ⌈d·m⌉ workers finish d chunks in a slot, and with a rounded m that could be one worker too many.
///
/// The work of asynchronous training adds up over workers, whatever their number in each slot. For the other modes this
/// is an approximation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Training {
    /// E.
    pub epochs: u32,
    /// N. The job has at most that many workers at once (constraint 3).
    pub chunks: u32,
    /// Worker-milliseconds per chunk, as a fraction in lowest terms.
    chunk: (u128, u128),
    /// The job's bounds, with at most N workers.
    bounds: Bounds,
    /// b and B in Mbit/s. b = 0 if none is reserved.
    bandwidth: (i64, i64),
}

/// Why a job's training can't be counted in slots.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TrainingError {
    /// E, N or M is unknown.
    #[error("dataset: is missing; give its chunks, batches_per_chunk and epochs")]
    NoDataset,
    /// τ is unknown.
    #[error("dataset.batch_time: is missing, and no speed was measured or profiled yet that would tell it")]
    NoBatchTime,
    /// Workers need more bandwidth than the same number of parameter servers has (constraints 6 and 7).
    #[error("worker.bandwidth: {worker} Mbit must be at most the {server} Mbit of a parameter server")]
    Bandwidth {
        /// b.
        worker: i64,
        /// B.
        server: i64,
    },
    /// No allowed number of workers has an allowed number of parameter servers.
    #[error("server.max: no allowed number of workers (up to {workers}) goes with {least} to {most} parameter servers")]
    NoShape {
        /// The maximum number of workers.
        workers: u32,
        /// The minimum number of parameter servers.
        least: u32,
        /// The maximum number of parameter servers.
        most: u32,
    },
    /// m > N: even all workers of the job can't finish one chunk in a slot.
    #[error("dataset.batches_per_chunk: a chunk takes {needed} workers in a slot of {slot}; it may have {most}")]
    ChunkTooLong {
        /// ⌈m⌉.
        needed: u128,
        /// Length of the slot.
        slot: Span,
        /// The maximum number of workers at once.
        most: u32,
    },
    /// Numbers too large for any cluster.
    #[error("dataset: its chunks, batches and times are too large to be counted")]
    TooLarge,
}

impl Training {
    /// The training of an active job. τ is the owner's value, or else comes from the fitted speed of one worker.
    ///
    /// # Errors
    /// The job can't be counted in slots.
    pub fn of(job: &Job) -> Result<Self, TrainingError> {
        let servers = job.bounds().servers.1.min(1);
        Self::new(&job.spec, job.learnt.fits.speed.as_ref().map(|fit| fit.speed(servers, 1)))
    }

    /// The training of a job's description. `speed` is the speed of one worker in mini-batches per second, including
    /// communication. It is used if the description has no `batch_time`.
    ///
    /// # Errors
    /// The job can't be counted in slots.
    pub fn new(spec: &JobSpec, speed: Option<f64>) -> Result<Self, TrainingError> {
        let data = spec.dataset.as_ref().ok_or(TrainingError::NoDataset)?;
        let bandwidth = |table: &super::RoleSpec| table.demand.get("bandwidth").copied().unwrap_or(0);
        let (worker, server) = (bandwidth(&spec.worker), spec.server.as_ref().map(bandwidth));
        if let Some(server) = server.filter(|server| worker > *server) {
            return Err(TrainingError::Bandwidth { worker, server });
        }
        let batches = u128::from(data.batches_per_chunk);
        let (batch, parts) = match (data.batch_time, speed) {
            (Some(time), _) if worker > 0 => {
                let (compute, sent) = (1000 * worker as u128 * time.0 as u128, spec.model_size.max(0) as u128);
                (compute.checked_add(TWO_WAY_BITS * sent), 1000 * worker as u128)
            }
            (Some(time), _) => (Some(time.0 as u128), 1),
            (None, Some(speed)) if speed > 0.0 => (Some(libm::round((1e6 / speed).clamp(1.0, 1e15)) as u128), 1000),
            (None, _) => return Err(TrainingError::NoBatchTime),
        };
        let chunk = batch.and_then(|batch| batches.checked_mul(batch)).ok_or(TrainingError::TooLarge)?;
        let divisor = gcd(chunk, parts).max(1);
        let chunk = (chunk / divisor, parts / divisor);
        let bounds = spec.bounds();
        let most = bounds.workers.1.min(data.chunks);
        let training = Self {
            epochs: data.epochs,
            chunks: data.chunks,
            chunk,
            bounds: Bounds { workers: (bounds.workers.0, most), ..bounds },
            bandwidth: if server.is_some() { (worker, server.unwrap_or(0)) } else { (0, 0) },
        };
        if training.work() > MOST_WORK || u128::from(training.work()).checked_mul(chunk.0).is_none() {
            return Err(TrainingError::TooLarge);
        }
        if !training.shapes().any(|_| true) {
            let (least, most) = training.bounds.servers;
            return Err(TrainingError::NoShape { workers: training.bounds.workers.1, least, most });
        }
        Ok(training)
    }

    /// D = E·N: total number of chunk trainings, with one per chunk and epoch.
    pub fn work(&self) -> u64 {
        u64::from(self.epochs) * u64::from(self.chunks)
    }

    /// ⌈d·m⌉: number of workers that finish d chunks within a slot of this length. Over many slots: worker-slots.
    pub fn workers_for(&self, chunks: u64, slot: Span) -> u64 {
        let time = u128::from(chunks) * self.chunk.0;
        u64::try_from(time.div_ceil(self.chunk.1 * slot.0.max(1) as u128)).unwrap_or(u64::MAX)
    }

    /// Time of one worker for `chunks` passes over a chunk, rounded up.
    pub fn time_of(&self, chunks: u64) -> Span {
        let time = (u128::from(chunks) * self.chunk.0).div_ceil(self.chunk.1.max(1));
        Span(i64::try_from(time).unwrap_or(i64::MAX))
    }

    /// ⌊y/m⌋: number of chunks that y workers finish within a slot of this length.
    pub fn chunks_of(&self, workers: u64, slot: Span) -> u64 {
        let time = u128::from(workers) * self.chunk.1 * slot.0.max(0) as u128;
        u64::try_from(time / self.chunk.0.max(1)).unwrap_or(u64::MAX)
    }

    /// ⌈E·m⌉: number of slots of the shortest run, with N workers in each.
    pub fn shortest(&self, slot: Span) -> u64 {
        self.workers_for(self.epochs.into(), slot)
    }

    /// m, for display.
    pub fn slots_per_chunk(&self, slot: Span) -> f64 {
        self.chunk.0 as f64 / (self.chunk.1 as f64 * slot.0.max(1) as f64)
    }

    /// The shape with this number of workers and the fewest parameter servers that have their bandwidth (constraint 6),
    /// and no more of them than workers (constraint 7). `None` outside the job's bounds.
    pub fn shape(&self, workers: u32) -> Option<Shape> {
        let ((fewest, most), (least, limit)) = (self.bounds.workers, self.bounds.servers);
        let (worker, server) = self.bandwidth;
        let needed = if worker > 0 { (u64::from(workers) * worker as u64).div_ceil(server as u64) } else { 0 };
        let servers = u32::try_from(needed).ok()?.max(least);
        let allowed = (fewest..=most).contains(&workers) && servers <= limit && servers <= workers;
        allowed.then_some(Shape { workers, servers })
    }

    /// All allowed shapes, by number of workers.
    pub fn shapes(&self) -> impl Iterator<Item = Shape> + '_ {
        let (fewest, most) = self.bounds.workers;
        (fewest..=most).filter_map(|workers| self.shape(workers))
    }

    /// Refuses m > N: a chunk that doesn't fit in a slot of this length.
    ///
    /// # Errors
    /// The chunk doesn't fit.
    pub fn check(&self, slot: Span) -> Result<(), TrainingError> {
        let most = self.shapes().map(|shape| shape.workers).max().unwrap_or(0);
        let needed = self.workers_for(1, slot);
        if needed > most.into() {
            return Err(TrainingError::ChunkTooLong { needed: needed.into(), slot, most });
        }
        Ok(())
    }

    /// Number of chunks trained so far, from the job's reports.
    pub fn done(&self, progress: &Progress) -> u64 {
        self.done_since(progress, Span::ZERO)
    }

    /// The same, plus the chunks trained in `since` of worker-time after the last report.
    pub fn done_since(&self, progress: &Progress, since: Span) -> u64 {
        // Fractions of a chunk, so that two of them can add up to one.
        const PARTS: u128 = 1 << 20;
        let (chunks, epochs) = (u128::from(self.chunks), u128::from(progress.epoch));
        let part = match u128::from(progress.steps_per_epoch) {
            0 => 0,
            steps => {
                let steps_done = u128::from(progress.step).saturating_sub(epochs * steps).min(steps);
                chunks * steps_done * PARTS / steps
            }
        };
        let since = (since.0.max(0) as u128).saturating_mul(self.chunk.1).saturating_mul(PARTS) / self.chunk.0.max(1);
        let done = chunks * epochs + (part.saturating_add(since)) / PARTS;
        u64::try_from(done).unwrap_or(u64::MAX).min(self.work())
    }
}

/// Time slots of equal length, counted from the origin of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slots {
    /// Length of a slot.
    pub length: Span,
}

impl Slots {
    /// The slot of a point in time.
    pub fn of(self, at: Time) -> i64 {
        at.0.div_euclid(self.length.0)
    }

    /// The start of a slot.
    pub fn start(self, slot: i64) -> Time {
        Time(slot.saturating_mul(self.length.0))
    }

    /// The rest of the slot at a point in time. At its start: the whole slot.
    pub fn left(self, at: Time) -> Span {
        Span(self.length.0 - at.0.rem_euclid(self.length.0))
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Dataset;

    const HOUR: Span = Span::seconds(3600);

    fn spec(chunks: u32, batches: u32, epochs: u32, batch_time: Span) -> JobSpec {
        let mut spec = JobSpec::minimal("a");
        spec.worker.max = 100;
        spec.worker.demand.insert("bandwidth".into(), 1000);
        let server = spec.server.as_mut().unwrap();
        server.max = 100;
        server.demand.insert("bandwidth".into(), 4000);
        spec.dataset = Some(Dataset {
            chunks,
            batches_per_chunk: batches,
            epochs,
            batch_time: Some(batch_time),
            ..Dataset::default()
        });
        spec
    }

    #[test]
    fn workers_and_chunks_are_exact() {
        // 30 batches of 40 s each take a third of an hour. One worker trains exactly three chunks per hour.
        let training = Training::new(&spec(10, 30, 7, Span::seconds(40)), None).unwrap();
        assert_eq!(training.work(), 70);
        assert_eq!([1, 3, 4, 6, 70].map(|chunks| training.workers_for(chunks, HOUR)), [1, 1, 2, 2, 24]);
        assert_eq!([1, 2, 10].map(|workers| training.chunks_of(workers, HOUR)), [3, 6, 30]);
        assert_eq!(training.shortest(HOUR), 3);
        for chunks in 1..100 {
            let workers = training.workers_for(chunks, HOUR);
            assert!(training.chunks_of(workers, HOUR) >= chunks && training.chunks_of(workers - 1, HOUR) < chunks);
        }
    }

    #[test]
    fn gradients_take_their_time_over_the_workers_bandwidth() {
        // 125 MB in both directions over 1 Gbit/s: 2 s per batch, and 1 s of computing. 1000 · 3 s in an hour.
        let mut spec = spec(10, 1, 1, Span::seconds(1));
        spec.model_size = 119;
        let training = Training::new(&spec, None).unwrap();
        let expected = (1.0 + 2.0 * 119.0 * 1_048_576.0 * 8.0 / 1e9) / 3600.0;
        assert!((training.slots_per_chunk(HOUR) - expected).abs() < 1e-12);
        // Without a batch time, the time comes from the speed, including communication.
        spec.dataset.as_mut().unwrap().batch_time = None;
        assert_eq!(Training::new(&spec, None), Err(TrainingError::NoBatchTime));
        let fitted = Training::new(&spec, Some(0.5)).unwrap();
        assert!((fitted.slots_per_chunk(HOUR) - 2.0 / 3600.0).abs() < 1e-12);
    }

    #[test]
    fn shapes_keep_constraints_3_6_and_7() {
        let training = Training::new(&spec(10, 30, 7, Span::seconds(40)), None).unwrap();
        let shapes: Vec<_> = training.shapes().map(|shape| (shape.workers, shape.servers)).collect();
        let expected: Vec<_> = (1..=10).map(|workers: u32| (workers, workers.div_ceil(4))).collect();
        assert_eq!(shapes, expected);
        let mut narrow = spec(10, 30, 7, Span::seconds(40));
        narrow.worker.demand.insert("bandwidth".into(), 4001);
        assert_eq!(Training::new(&narrow, None), Err(TrainingError::Bandwidth { worker: 4001, server: 4000 }));
        let mut fixed = spec(10, 30, 7, Span::seconds(40));
        fixed.worker.min = 9;
        fixed.server.as_mut().unwrap().max = 2;
        let problem = Training::new(&fixed, None).unwrap_err().to_string();
        assert!(problem.contains("up to 10"), "{problem}");
    }

    #[test]
    fn a_chunk_must_fit_a_slot() {
        let training = Training::new(&spec(5, 451, 1, Span::seconds(40)), None).unwrap();
        let problem = training.check(HOUR).unwrap_err().to_string();
        assert!(problem.contains("takes 6 workers") && problem.contains("may have 5"), "{problem}");
        assert!(training.check(Span::seconds(7200)).is_ok());
    }

    #[test]
    fn reports_tell_the_chunks_that_are_done() {
        let training = Training::new(&spec(10, 30, 7, Span::seconds(40)), None).unwrap();
        let at = |epoch, step| training.done(&Progress { epoch, step, steps_per_epoch: 20, ..Progress::default() });
        assert_eq!([at(0, 0), at(0, 5), at(2, 50), at(2, 90), at(9, 0)], [0, 2, 25, 30, 70]);
        // 30 batches of 40 s are one chunk. Half a chunk was reported, and the other half was trained since.
        let half = Progress { step: 5, steps_per_epoch: 20, ..Progress::default() };
        let since = |seconds| training.done_since(&half, Span::seconds(seconds));
        assert_eq!([since(0), since(599), since(600), since(1800), since(1_000_000)], [2, 2, 3, 4, 70]);
    }

    #[test]
    fn absurd_numbers_are_refused_and_not_wrapped() {
        let mut spec = spec(u32::MAX, u32::MAX, u32::MAX, Span(1_000_000_000_000_000));
        spec.worker.demand.insert("bandwidth".into(), 999_999_999_999);
        spec.server.as_mut().unwrap().demand.insert("bandwidth".into(), 1_000_000_000_000);
        spec.model_size = i64::MAX;
        assert_eq!(Training::new(&spec, None), Err(TrainingError::TooLarge));
    }
}

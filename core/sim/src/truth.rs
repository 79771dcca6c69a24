//! The truth about a simulated job that engines don't see: its speed in a placement, its completion, and the costs of
//! interruptions. Engines know only the reports of its training program.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{draws::Draws, noise::TrueNoise};
use trainmaster_core::{
    decision::Allocation,
    fit::{LossFit, SpeedCurve},
    ids::ServerId,
    job::{JobSpec, TrainingMode},
    place::{crossing, transfer_time},
    shape::{Role, Shape},
    time::Span,
};

/// The truth about one job.
#[derive(Clone, Debug, PartialEq)]
pub struct Truth {
    /// Speed of training.
    pub speed: Speed,
    /// Condition of completion.
    pub goal: Goal,
    /// Steps per epoch. None: from the dataset's chunks, or else from the examples.
    pub epoch_steps: Option<u64>,
    /// Relative deviation of the time of an epoch.
    pub speed_noise: f64,
    /// Time from the allocation of slots to the first step: start of the program, and loading of the checkpoint.
    pub start: Span,
    /// Time from the order to stop to the release of the slots: writing the checkpoint.
    pub checkpoint: Span,
    /// Workers that are slow for a while.
    pub stragglers: Option<Stragglers>,
    /// Accuracy of the trained model, reached when the loss reaches its end. None: no accuracy is reported.
    pub accuracy: Option<f64>,
    /// True use of its slots. None: slots use their whole demand, without measurement and without slow-down.
    pub load: Option<SlotLoad>,
    /// Noise of its gradients, if its batch may change. None: it trains with the submitted batch.
    pub noise: Option<TrueNoise>,
}

/// True use of one slot, as fractions of its demand. It varies between windows of ten minutes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlotLoad {
    /// Fraction of its GPUs.
    pub gpu: f64,
    /// Fraction of its CPUs.
    pub cpu: f64,
    /// Fraction of its memory, which is constant.
    pub memory: f64,
    /// Relative deviation between windows.
    pub wavers: f64,
    /// Total speed of slots that share a device, relative to a slot that has it alone. None: they don't delay each
    /// other while the device isn't overloaded.
    pub together: Option<f64>,
}

/// Length of a window with constant load.
pub(super) const LOAD_WINDOW: Span = Span::seconds(600);

impl SlotLoad {
    /// The fractions of GPU and CPU in a window. `draws` are the slot's.
    pub fn at(&self, window: u64, draws: Draws) -> (f64, f64) {
        let wavers = |part: f64, key: u64| (part * (1.0 + self.wavers * draws.of(key).normal(window))).clamp(0.02, 1.0);
        (wavers(self.gpu, 1), wavers(self.cpu, 2))
    }
}

/// Steps per second of a job, by its slots and their servers.
#[derive(Clone, Debug, PartialEq)]
pub enum Speed {
    /// Workers exchange gradients in every step.
    Steps(StepTime),
    /// Workers take separate mini-batches and don't wait for each other. A step is one mini-batch (OASiS, A_online).
    MiniBatches {
        /// Seconds of one mini-batch on one worker, including transfer of gradients and parameters.
        seconds: f64,
        /// Number of workers that one parameter server's bandwidth serves (B/b). More workers share it. Infinite: no
        /// limit.
        per_server: f64,
        /// Seconds if the whole job is on one server or in the cloud, so that gradients cross no slow link. None: the
        /// same.
        together: Option<f64>,
    },
    /// A function that was fitted to the reports of a real job. It doesn't depend on the servers.
    Fitted(SpeedCurve),
    /// Measured in the requested shape on each type of GPU. Several types are as fast as the slowest of them.
    OfTypes {
        /// The type of each server, by its number in the workload.
        servers: Arc<[u8]>,
        /// Steps per second by type, on one server and on several.
        speeds: Arc<[(f64, f64)]>,
    },
    /// Measured in placements of workers on servers.
    Placed(Arc<[PlacedSpeed]>),
    /// Partitions of a model exchange activations and gradients, in the requested shape.
    Partitioned {
        /// Seconds of an iteration without traffic between servers.
        seconds: f64,
        /// Additional seconds if all traffic is between servers.
        exchange: f64,
        /// Megabits in that case.
        megabits: f64,
    },
}

/// A speed that was measured in one placement.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedSpeed {
    /// Workers on each server, descending.
    pub placement: Vec<u32>,
    /// Steps per second.
    pub speed: f64,
}

impl PlacedSpeed {
    /// The number of workers.
    pub fn gpus(&self) -> u32 {
        self.placement.iter().sum()
    }

    /// How far a placement of as many workers is from the measured one: in the number of servers, then in the workers
    /// on each.
    fn distance(&self, placement: &[u32]) -> (usize, u32) {
        let measured = self.placement.iter().copied().chain(std::iter::repeat(0));
        let on_each = placement.iter().zip(measured).map(|(here, there)| here.abs_diff(there)).sum();
        (self.placement.len().abs_diff(placement.len()), on_each)
    }

    /// The speed in the nearest measured placement of as many workers, descending. 0 if there is none. O(measured ·
    /// servers of the job).
    fn nearest(measured: &[Self], placement: &[u32]) -> f64 {
        let workers = placement.iter().sum::<u32>();
        let of_size = measured.iter().filter(|row| row.gpus() == workers);
        of_size.min_by_key(|row| row.distance(placement)).map_or(0.0, |row| row.speed)
    }
}

/// Duration of a step in seconds (Optimus, Eq. 2 and 4), with network terms by the true placement:
///
/// `per_example · m + per_step · ⌈m / at_once⌉ + network · (exchange · w/p + shard / p + ring · (w − 1)/w) +
/// per_worker · w + per_server · p`
///
/// where m = batch/w (sync, all-reduce) or the batch (async). `network` is 1 if no two slots share a server, and
/// `local` if all do. In between it is proportional to the transfer time of the placement ([`transfer_time`]), divided
/// by that of a placement with each slot on its own server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepTime {
    /// Forward pass of one example.
    pub per_example: f64,
    /// Constant time of a pass: kernel launches, what the backward pass doesn't owe to its examples.
    pub per_step: f64,
    /// Number of examples that a worker's memory holds, at least 1. More are computed in several passes, whose
    /// gradients are added up before the exchange.
    pub at_once: u32,
    /// Gradients and parameters of all workers through one of p parameter servers.
    pub exchange: f64,
    /// The part of the exchange that doesn't grow with the workers: processing of 1/p of the parameters.
    pub shard: f64,
    /// All-reduce of all gradients.
    pub ring: f64,
    /// Overhead per worker.
    pub per_worker: f64,
    /// Overhead per parameter server.
    pub per_server: f64,
    /// Time of an exchange inside one server, divided by that between two servers, from 0 to 1.
    pub local: f64,
}

impl StepTime {
    /// All terms zero, as a base for struct updates.
    pub const ZERO: Self = Self {
        per_example: 0.0,
        per_step: 0.0,
        at_once: u32::MAX,
        exchange: 0.0,
        shard: 0.0,
        ring: 0.0,
        per_worker: 0.0,
        per_server: 0.0,
        local: 1.0,
    };

    /// The exact [speed](Self::speed) with each slot on its own server, with each term divided by a factor. Of
    /// all-reduce, also that on one server.
    pub(super) fn curve(&self, spec: &JobSpec, error: impl Fn(u64) -> f64) -> SpeedCurve {
        let terms =
            [self.per_example, self.per_step, self.exchange, self.shard, self.ring, self.per_worker, self.per_server];
        let mut at = 0;
        let [example, step, exchange, shard, ring, worker, server] = terms.map(|term| {
            at += 1;
            term / error(at)
        });
        let batch = spec.batch as f64;
        let passes = batch / f64::from(self.at_once);
        match spec.mode {
            TrainingMode::AllReduce => {
                let (near, far) = (self.local * ring, (1.0 - self.local) * ring);
                let rest = [far - near, near - far, 0.0, worker, far, 0.0, -far, 0.0];
                SpeedCurve::of_terms([example * batch, step], passes, rest)
            }
            TrainingMode::Sync => SpeedCurve::of_terms(
                [example * batch, step],
                passes,
                [0.0, 0.0, exchange, worker, server, shard, 0.0, 0.0],
            ),
            // The workers' steps don't wait for each other: all terms are divided by w.
            TrainingMode::Async => SpeedCurve::of_terms(
                [example * batch + step * libm::ceil(passes).max(1.0), 0.0],
                1.0,
                [0.0, worker, 0.0, 0.0, 0.0, exchange, server, shard],
            ),
        }
    }

    /// Examples of one worker in a step.
    fn examples(spec: &JobSpec, workers: f64) -> f64 {
        let examples = spec.batch as f64;
        if spec.mode == TrainingMode::Async { examples } else { examples / workers }
    }

    /// Computation time of one worker in a step.
    fn compute(&self, spec: &JobSpec, workers: f64) -> f64 {
        let examples = Self::examples(spec, workers);
        let passes = libm::ceil(examples / f64::from(self.at_once)).max(1.0);
        self.per_example * examples + self.per_step * passes
    }

    fn rest(&self, shape: Shape, network: f64) -> f64 {
        let (w, p) = (f64::from(shape.workers), f64::from(shape.servers));
        let transfer =
            if shape.servers > 0 { self.exchange * w / p + self.shard / p } else { self.ring * (w - 1.0) / w.max(1.0) };
        network * transfer + self.per_worker * w + self.per_server * p
    }

    /// Steps per second. `slow` are the factors by which the computation of single workers is slowed.
    fn speed(&self, spec: &JobSpec, shape: Shape, network: f64, slow: &[f64]) -> f64 {
        let w = f64::from(shape.workers);
        let (compute, rest) = (self.compute(spec, w), self.rest(shape, network));
        if spec.mode == TrainingMode::Async {
            let of_slow: f64 = slow.iter().map(|factor| 1.0 / (compute * factor + rest)).sum();
            return (w - slow.len() as f64).max(0.0) / (compute + rest) + of_slow;
        }
        let slowest = slow.iter().copied().fold(1.0, f64::max);
        1.0 / (compute * slowest + rest)
    }
}

/// Distance of a placement: 0 if all slots share one server, 1 if each slot is alone. It is larger in worse placements,
/// such as all parameter servers on one server and all workers elsewhere.
fn apart(allocation: &Allocation) -> f64 {
    let shape = allocation.shape();
    let (w, p) = (f64::from(shape.workers), f64::from(shape.servers));
    if shape.servers > 0 {
        // Per unit of gradients and bandwidth. With each slot alone, the busiest one is a parameter server with all
        // workers, or a worker with all parameter servers.
        return transfer_time(allocation, 1.0, 1.0, 1.0) / f64::max(w / p, 1.0);
    }
    let on: BTreeMap<ServerId, ()> = allocation.slots().iter().map(|slot| (slot.server, ())).collect();
    f64::from(u8::from(on.len() > 1))
}

impl Speed {
    /// Steps per second with these slots on their servers. `together`: they share one server, or all are in the cloud.
    /// `slow` are (worker, factor by which its computation is slowed). Zero for a shape that can't train.
    pub fn of(&self, spec: &JobSpec, allocation: &Allocation, together: bool, slow: &[(u32, f64)]) -> f64 {
        let busy = |slot: &&trainmaster_core::decision::Slot| allocation.work().is_empty() || allocation.is_busy(slot);
        let mut shape = allocation.shape();
        if !allocation.work().is_empty() {
            shape.workers = allocation.of(Role::Worker).iter().filter(busy).count() as u32;
        }
        let needs_servers = spec.mode != TrainingMode::AllReduce;
        if shape.workers == 0 || (needs_servers && shape.servers == 0) {
            return 0.0;
        }
        let slow: Vec<f64> = slow
            .iter()
            .filter(|(worker, _)| allocation.of(Role::Worker).iter().any(|slot| slot.index == *worker && busy(&slot)))
            .map(|(_, factor)| *factor)
            .collect();
        match self {
            Self::Steps(time) => {
                let network = time.local + (1.0 - time.local) * apart(allocation);
                time.speed(spec, shape, network, &slow)
            }
            Self::MiniBatches { .. } => {
                let lost: f64 = slow.iter().map(|factor| 1.0 - 1.0 / factor).sum();
                let apart = self.alone(spec, shape);
                let full = if together { apart / (1.0 - self.exchange()) } else { apart };
                full * (1.0 - lost / f64::from(shape.workers))
            }
            Self::Partitioned { seconds, exchange, .. } => {
                let slowest = slow.iter().copied().fold(1.0, f64::max);
                1.0 / (seconds * slowest + exchange * crossing(spec, allocation))
            }
            Self::OfTypes { servers, speeds } => {
                let on: BTreeSet<ServerId> = allocation.slots().iter().map(|slot| slot.server).collect();
                let types = on.iter().filter_map(|server| speeds.get(usize::from(*servers.get(server.index())?)));
                let of = |(together, apart): &(f64, f64)| if on.len() > 1 { *apart } else { *together };
                types.map(of).fold(f64::INFINITY, f64::min) / slow.iter().copied().fold(1.0, f64::max)
            }
            Self::Placed(measured) => {
                let mut on: BTreeMap<ServerId, u32> = BTreeMap::new();
                for slot in allocation.of(Role::Worker) {
                    *on.entry(slot.server).or_default() += 1;
                }
                let mut placement: Vec<u32> = on.into_values().collect();
                placement.sort_unstable_by(|a, b| b.cmp(a));
                PlacedSpeed::nearest(measured, &placement) / slow.iter().copied().fold(1.0, f64::max)
            }
            Self::Fitted(curve) => {
                let slowed = |factor: f64| curve.computing_faster(1.0 / factor).speed(shape.servers, shape.workers);
                if spec.mode == TrainingMode::Async {
                    let workers = f64::from(shape.workers);
                    let fast = (workers - slow.len() as f64).max(0.0) * slowed(1.0);
                    return (fast + slow.iter().map(|factor| slowed(*factor)).sum::<f64>()) / workers;
                }
                slowed(slow.iter().copied().fold(1.0, f64::max))
            }
        }
    }

    /// The same with each slot on its own server, as profiling before the job measures it.
    pub fn alone(&self, spec: &JobSpec, shape: Shape) -> f64 {
        match self {
            Self::Steps(time) => time.speed(spec, shape, 1.0, &[]),
            Self::MiniBatches { seconds, per_server, .. } => {
                let w = f64::from(shape.workers);
                let served = if spec.server.is_some() { f64::from(shape.servers) * per_server } else { w };
                w.min(served) / seconds
            }
            Self::Fitted(curve) => curve.speed(shape.servers, shape.workers),
            // The fastest type.
            Self::OfTypes { speeds, .. } => speeds.iter().map(|(_, apart)| *apart).fold(0.0, f64::max),
            Self::Placed(measured) => PlacedSpeed::nearest(measured, &vec![1; shape.workers as usize]),
            Self::Partitioned { seconds, exchange, .. } => {
                1.0 / (seconds + if shape.workers + shape.servers > 1 { *exchange } else { 0.0 })
            }
        }
    }

    /// The fraction of a mini-batch's time in exchanging gradients, if the job isn't together. 0 if unknown.
    pub fn exchange(&self) -> f64 {
        match self {
            Self::MiniBatches { seconds, together: Some(together), .. } => 1.0 - together / seconds,
            _ => 0.0,
        }
    }

    /// Megabits per step between servers: gradients and parameters of all workers with work, or of one worker if each
    /// makes its own steps.
    pub fn traffic(&self, spec: &JobSpec, allocation: &Allocation) -> f64 {
        if let Self::Partitioned { megabits, .. } = self {
            return megabits * crossing(spec, allocation);
        }
        let busy = |slot: &&trainmaster_core::decision::Slot| allocation.is_busy(slot);
        let w = allocation.of(Role::Worker).iter().filter(busy).count() as f64;
        let shape = allocation.shape();
        let p = f64::from(shape.servers);
        let megabits = spec.model_size as f64 * 8.388_608;
        let mut on: BTreeMap<ServerId, (f64, f64)> = BTreeMap::new();
        for slot in allocation.slots().iter().filter(busy) {
            let here = on.entry(slot.server).or_default();
            match slot.role {
                Role::Worker => here.0 += 1.0,
                Role::Server => here.1 += 1.0,
            }
        }
        if shape.servers == 0 {
            // A ring sends 2·(w − 1)/w of all gradients over each link that leaves a server.
            return if on.len() > 1 { 2.0 * megabits * (w - 1.0) / w * on.len() as f64 } else { 0.0 };
        }
        let crossing: f64 = on.values().map(|(workers, servers)| workers * (p - servers)).sum();
        let own_steps = spec.mode == TrainingMode::Async || matches!(self, Self::MiniBatches { .. });
        2.0 * megabits / p * crossing / if own_steps { w.max(1.0) } else { 1.0 }
    }
}

/// Condition of a job's completion.
#[derive(Clone, Debug, PartialEq)]
pub enum Goal {
    /// The loss meets the convergence rule, evaluated by the training program in each epoch.
    Converges(Loss),
    /// A number of epochs. The loss, if any, is only reported.
    Epochs(u32, Option<Loss>),
}

/// Training losses by epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// The curve without noise.
    pub curve: Curve,
    /// Relative deviation of the first epoch's mean loss. It shrinks with the root of the epoch, as measured curves do.
    pub noise: f64,
}

/// Mean loss after k epochs.
#[derive(Clone, Debug, PartialEq)]
pub enum Curve {
    /// 1/(β0·k + β1) + β2 (Optimus, Eq. 1).
    Inverse([f64; 3]),
    /// The loss of each epoch, from the first. The last one is repeated.
    Measured(Arc<[f64]>),
    /// A curve that was fitted to the reports of a real job.
    Fitted(Arc<LossFit>),
}

impl Curve {
    /// Loss after epoch `k`, from 1.
    pub fn at(&self, k: u32) -> f64 {
        match self {
            Self::Inverse([b0, b1, b2]) => 1.0 / (b0 * f64::from(k) + b1) + b2,
            Self::Measured(losses) => {
                let at = (k.max(1) as usize - 1).min(losses.len().saturating_sub(1));
                losses.get(at).copied().unwrap_or(0.0)
            }
            Self::Fitted(fit) => fit.loss_at(k.into()),
        }
    }
}

impl Loss {
    /// Loss with noise after epoch `k`, from 1, as the training program measures it. `draws` are the job's.
    pub fn seen(&self, k: u32, draws: Draws) -> f64 {
        let deviation = self.noise / f64::from(k.max(1)).sqrt();
        self.curve.at(k) * (1.0 + deviation * draws.of(u64::from(k)).normal(0)).max(0.0)
    }
}

impl Goal {
    /// The epoch after which the job is done: `patience` consecutive epochs lower the loss by less than δ times the
    /// first loss each (Optimus, §2.1), or the maximum is reached.
    pub fn epochs(&self, spec: &JobSpec, draws: Draws) -> u32 {
        let loss = match self {
            Self::Epochs(epochs, _) => return (*epochs).max(1),
            Self::Converges(loss) => loss,
        };
        let rule = &spec.convergence;
        let first = loss.seen(1, draws);
        let (mut before, mut flat) = (first, 0);
        for k in 2..=rule.max_epochs {
            let now = loss.seen(k, draws);
            flat = if before - now < rule.delta * first { flat + 1 } else { 0 };
            if flat >= rule.patience {
                return k;
            }
            before = now;
        }
        rule.max_epochs.max(1)
    }

    /// The reported loss, if any.
    pub fn loss(&self) -> Option<&Loss> {
        match self {
            Self::Converges(loss) => Some(loss),
            Self::Epochs(_, loss) => loss.as_ref(),
        }
    }
}

/// Workers that are slow for a while, independently of each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stragglers {
    /// Frequency per worker and hour of training.
    pub per_hour: f64,
    /// Factor by which its computation takes longer.
    pub slowdown: f64,
    /// Duration, unless the worker is replaced.
    pub length: Span,
}

impl Truth {
    /// A job that starts and stops in no time, at a constant speed, and has none of the rest.
    pub fn of(speed: Speed, goal: Goal) -> Self {
        Self {
            speed,
            goal,
            epoch_steps: None,
            speed_noise: 0.0,
            start: Span::ZERO,
            checkpoint: Span::ZERO,
            stragglers: None,
            accuracy: None,
            load: None,
            noise: None,
        }
    }

    /// Steps per epoch.
    pub fn steps_per_epoch(&self, spec: &JobSpec) -> u64 {
        match (self.epoch_steps, &spec.dataset) {
            (Some(steps), _) => steps.max(1),
            (None, Some(data)) => u64::from(data.chunks.max(1)) * u64::from(data.batches_per_chunk.max(1)),
            (None, None) => spec.examples.div_ceil(spec.batch).max(1),
        }
    }

    /// Accuracy after epoch `k` of `epochs`. It rises as the loss falls.
    pub fn accuracy_at(&self, k: u32, epochs: u32) -> Option<f64> {
        let best = self.accuracy?;
        let share = match self.goal.loss().map(|loss| &loss.curve) {
            Some(curve) => {
                let (first, last) = (curve.at(0), curve.at(epochs));
                if first > last { (first - curve.at(k)) / (first - last) } else { 1.0 }
            }
            None => f64::from(k) / f64::from(epochs.max(1)),
        };
        Some(best * share.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainmaster_core::decision::{Devices, Slot};

    fn placed(counts: &[(u32, u32)]) -> Allocation {
        let mut slots: Vec<Slot> = Vec::new();
        for (server, &(workers, servers)) in counts.iter().enumerate() {
            for (role, count) in [(Role::Worker, workers), (Role::Server, servers)] {
                let taken = slots.iter().filter(|slot| slot.role == role).count() as u32;
                let server = ServerId(server as u32);
                slots.extend((taken..taken + count).map(|index| Slot { role, index, server, devices: Devices::new() }));
            }
        }
        Allocation::new(slots)
    }

    fn time() -> StepTime {
        StepTime { per_example: 0.01, per_step: 0.1, exchange: 0.5, local: 0.2, ..StepTime::ZERO }
    }

    fn spec() -> JobSpec {
        JobSpec { batch: 100, examples: 1000, ..JobSpec::minimal("job") }
    }

    #[test]
    fn a_step_takes_the_sum_of_its_terms() {
        let speed = Speed::Steps(time());
        // 100 examples on 2 workers: 0.5 s, 0.1 s, and 2 workers through 1 server: 1 s.
        let alone = speed.alone(&spec(), Shape { workers: 2, servers: 1 });
        assert!((1.0 / alone - 1.6).abs() < 1e-12);
        assert_eq!(speed.of(&spec(), &placed(&[(1, 0), (1, 0), (0, 1)]), false, &[]), alone);
        // All slots are on one server, so the exchange takes a fifth.
        assert!((1.0 / speed.of(&spec(), &placed(&[(2, 1)]), false, &[]) - 0.8).abs() < 1e-12);
    }

    #[test]
    fn what_exceeds_a_workers_memory_takes_several_passes() {
        let time = StepTime { at_once: 20, exchange: 0.0, ..time() };
        let step = |mode, workers| {
            let spec = JobSpec { mode, ..spec() };
            let network = if mode == TrainingMode::Async { f64::from(workers) } else { 1.0 };
            network / Speed::Steps(time).alone(&spec, Shape { workers, servers: 1 })
        };
        // 50 examples in three passes, 20 in one, and each worker's 100 in five.
        let expected = [(TrainingMode::Sync, 2, 0.8), (TrainingMode::Sync, 5, 0.3), (TrainingMode::Async, 5, 1.5)];
        for (mode, workers, seconds) in expected {
            assert!((step(mode, workers) - seconds).abs() < 1e-12, "{mode:?}, {workers}: {}", step(mode, workers));
        }
    }

    #[test]
    fn the_exact_curve_is_the_speed_of_slots_apart_and_of_rings_together() {
        let one_pass = StepTime { shard: 0.2, ring: 0.3, per_worker: 0.02, per_server: 0.01, ..time() };
        let several = StepTime { at_once: 12, ..one_pass };
        let modes = [TrainingMode::Sync, TrainingMode::Async, TrainingMode::AllReduce];
        for (time, mode) in [one_pass, several].into_iter().flat_map(|time| modes.map(|mode| (time, mode))) {
            let spec = JobSpec { mode, ..spec() };
            for (servers, workers) in [(1, 1), (1, 9), (3, 5), (8, 2), (17, 40)] {
                let is_ring = mode == TrainingMode::AllReduce;
                let shape = Shape { workers, servers: if is_ring { 0 } else { servers } };
                let truth = Speed::Steps(time).alone(&spec, shape);
                let places = if is_ring { 2 } else { servers };
                let curve = time.curve(&spec, |_| 1.0);
                let there = curve.speed(places, workers);
                assert!((there / truth - 1.0).abs() < 1e-12, "{mode:?} {servers}/{workers}: {there} {truth}");
                let near = Speed::Steps(time).of(&spec, &placed(&[(workers, 0)]), true, &[]);
                let here = curve.speed(1, workers);
                assert!(!is_ring || (here / near - 1.0).abs() < 1e-12, "{workers} on one: {here} {near}");
            }
        }
    }

    #[test]
    fn closer_placements_are_faster() {
        let speed = Speed::Steps(time());
        let of = |counts: &[(u32, u32)]| speed.of(&spec(), &placed(counts), false, &[]);
        assert!(of(&[(2, 2), (2, 2)]) > of(&[(4, 0), (0, 4)]));
        assert!(of(&[(4, 4)]) > of(&[(2, 2), (2, 2)]));
    }

    #[test]
    fn a_straggler_delays_all_in_sync_and_only_itself_in_async() {
        let speed = Speed::Steps(time());
        let placed = placed(&[(4, 4)]);
        let sync = spec();
        let fast = speed.of(&sync, &placed, false, &[]);
        let slow = speed.of(&sync, &placed, false, &[(2, 3.0)]);
        // Computation takes 0.35 s of the step. Three times as long adds 0.7.
        assert!((1.0 / slow - 1.0 / fast - 0.7).abs() < 1e-12);
        let asynchronous = JobSpec { mode: TrainingMode::Async, ..sync };
        let (fast, slow) =
            (speed.of(&asynchronous, &placed, false, &[]), speed.of(&asynchronous, &placed, false, &[(2, 1e12)]));
        assert!((slow / fast - 0.75).abs() < 1e-9);
        // An absent worker has no effect.
        assert_eq!(speed.of(&asynchronous, &placed, false, &[(9, 1e12)]), fast);
    }

    #[test]
    fn mini_batches_go_with_the_workers_up_to_the_servers_bandwidth() {
        let speed = Speed::MiniBatches { seconds: 2.0, per_server: 4.0, together: Some(0.5) };
        let of = |workers, servers| speed.alone(&spec(), Shape { workers, servers });
        assert_eq!([of(1, 1), of(4, 1), of(8, 1), of(8, 2)], [0.5, 2.0, 2.0, 4.0]);
        assert_eq!(speed.of(&spec(), &placed(&[(4, 1)]), false, &[(0, 2.0)]), 1.75);
        // On one server or in the cloud, a mini-batch takes only the computation time.
        assert_eq!(speed.of(&spec(), &placed(&[(4, 1)]), true, &[]), 8.0);
        assert_eq!((speed.exchange(), Speed::Steps(time()).exchange()), (0.75, 0.0));
    }

    #[test]
    fn measured_speeds_are_by_type_and_several_types_go_as_the_slowest() {
        let speeds = [(1.0, 0.5), (4.0, 3.0)].into();
        let speed = Speed::OfTypes { servers: [0, 1, 1].into(), speeds };
        let of = |counts: &[(u32, u32)], slow: &[(u32, f64)]| {
            let spec = JobSpec { mode: TrainingMode::AllReduce, server: None, ..spec() };
            speed.of(&spec, &placed(counts), false, slow)
        };
        assert_eq!(
            [of(&[(2, 0)], &[]), of(&[(0, 0), (2, 0)], &[]), of(&[(0, 0), (1, 0), (1, 0)], &[])],
            [1.0, 4.0, 3.0]
        );
        assert_eq!([of(&[(1, 0), (1, 0)], &[]), of(&[(0, 0), (2, 0)], &[(1, 2.0)])], [0.5, 2.0]);
    }

    #[test]
    fn a_fitted_speed_equals_its_steps() {
        use trainmaster_core::fit::SpeedModel;
        // The same job twice: from terms without an advantage of proximity, and from a fit.
        let (spec, near) = (spec(), StepTime { local: 1.0, ..time() });
        let terms = Speed::Steps(near);
        let fitted = Speed::Fitted(SpeedCurve::new(SpeedModel::Sync { batch: 100.0 }, &[0.01, 0.1, 0.5, 0.0, 0.0]));
        let asynchronous = JobSpec { mode: TrainingMode::Async, ..spec.clone() };
        let async_fit = Speed::Fitted(SpeedCurve::new(SpeedModel::Async, &[1.1, 0.5, 0.0, 0.0, 0.0]));
        for counts in [&[(4, 4)][..], &[(1, 0), (2, 1)], &[(3, 2), (0, 2)]] {
            for slow in [&[][..], &[(1, 3.0)], &[(0, 2.0), (9, 5.0)]] {
                for (spec, fit) in [(&spec, &fitted), (&asynchronous, &async_fit)] {
                    let (a, b) =
                        (terms.of(spec, &placed(counts), false, slow), fit.of(spec, &placed(counts), false, slow));
                    assert!((a / b - 1.0).abs() < 1e-9, "{a} and {b} with {counts:?}, {slow:?}");
                }
            }
        }
    }

    #[test]
    fn traffic_is_what_crosses_between_servers() {
        let speed = Speed::Steps(time());
        let megabits = 10.0 * 8.388_608;
        let spec = JobSpec { model_size: 10, ..spec() };
        assert_eq!(speed.traffic(&spec, &placed(&[(3, 2)])), 0.0);
        // Each of 2 workers exchanges half of the parameters with the other server.
        assert!((speed.traffic(&spec, &placed(&[(1, 1), (1, 1)])) - 2.0 * megabits).abs() < 1e-9);
        // In asynchronous training, a step is one worker's.
        let asynchronous = JobSpec { mode: TrainingMode::Async, ..spec };
        assert!((speed.traffic(&asynchronous, &placed(&[(1, 1), (1, 1)])) - megabits).abs() < 1e-9);
    }

    #[test]
    fn a_job_ends_when_its_rule_is_met() {
        let mut spec = spec();
        spec.convergence = trainmaster_core::job::Convergence { delta: 0.01, patience: 3, max_epochs: 200 };
        let curve = Curve::Inverse([0.2, 1.0, 0.1]);
        let smooth = Goal::Converges(Loss { curve: curve.clone(), noise: 0.0 });
        let epochs = smooth.epochs(&spec, Draws::new(1));
        let falls = |k: u32| curve.at(k - 1) - curve.at(k) >= 0.01 * curve.at(1);
        assert!((epochs - 2..=epochs).all(|k| !falls(k)) && falls(epochs - 3), "{epochs}");
        let noisy = Goal::Converges(Loss { curve, noise: 0.02 });
        assert_eq!(noisy.epochs(&spec, Draws::new(5)), noisy.epochs(&spec, Draws::new(5)));
        spec.convergence.max_epochs = 4;
        assert_eq!(smooth.epochs(&spec, Draws::new(1)), 4);
        assert_eq!(Goal::Epochs(7, None).epochs(&spec, Draws::new(1)), 7);
    }
}

//! A worker's place in its replica's pipeline: it has one partition of the model, and its neighbours have those before
//! and after.
//!
//! A replica's share of a step passes through the partitions in micro-batches, forward and back, so that the partitions
//! work on different ones at the same time (GPipe, Huang et al. 2019). A partition stores its inputs, and computes its
//! outputs again on the way back. A whole model is a pipeline of one partition.
//!
//! A micro-batch consists of whole micro-shards, and neighbours exchange exact numbers. So the gradients are
//! bit-identical for all cuts of the model.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
    rc::Rc,
    time::{Duration, Instant},
};

use super::role::Stuck;
use crate::{
    id::Id,
    net::Net,
    settings::{MICRO_BATCHES, Settings},
    trainer::{Sums, Target, Trainer},
    wire::Message,
};

/// The work of an order.
#[derive(Clone, Copy)]
pub(super) struct ReplicaWork {
    pub(super) step: u64,
    pub(super) attempt: u64,
    /// The replica's position, and the number of replicas.
    pub(super) place: (usize, usize),
    /// Other processes with which gradients or parameters are exchanged.
    pub(super) connections: usize,
}

/// Progress of a micro-batch.
enum Stage {
    /// The previous partition works on it.
    Awaited,
    /// Its inputs are stored until it returns.
    Passed(Vec<f32>),
    Learnt,
}

struct Work {
    step: u64,
    attempt: u64,
    parameters: Vec<f32>,
    micro_batches: Vec<(Range<u64>, Stage)>,
    sums: Sums,
    /// Results with the time at which the emulated device has them. Each has a message to send, or only takes time.
    computed: VecDeque<(Instant, Option<(Id, Message)>)>,
    busy: Instant,
}

/// Values that arrived before their attempt began here, because the neighbour was faster.
type Early = BTreeMap<(u64, Id, u32), Vec<f32>>;

pub(super) struct Pipeline {
    me: Id,
    settings: Rc<Settings>,
    before: Option<Id>,
    after: Option<Id>,
    pub(super) trainer: Trainer,
    work: Option<Work>,
    attempt: u64,
    early: Early,
    /// A disconnected neighbour, since when, and how long that may last.
    apart: Option<(Id, Instant, Duration)>,
    met: bool,
}

impl Pipeline {
    pub(super) fn new(settings: &Rc<Settings>, me: Id) -> Self {
        let (parts, part) = (settings.parts, settings.parts.of(me.index));
        Self {
            me,
            settings: Rc::clone(settings),
            before: (part > 0).then(|| Id::worker(me.index - 1)),
            after: (!parts.closes(me.index)).then(|| Id::worker(me.index + 1)),
            trainer: Trainer::new(settings, part),
            work: None,
            attempt: 0,
            early: Early::new(),
            apart: None,
            met: false,
        }
    }

    /// The neighbours with the previous and the next partition.
    pub(super) fn neighbours(&self) -> impl Iterator<Item = Id> + use<> {
        [self.before, self.after].into_iter().flatten()
    }

    /// Whether all of them are connected.
    pub(super) fn linked(&mut self, net: &Net) -> bool {
        let missing = self.neighbours().find(|id| !net.is_up(*id));
        self.met |= missing.is_none();
        self.apart = missing.map(|id| match self.apart {
            Some((before, since, patience)) if before == id => (id, since, patience),
            // A neighbour that was connected before is replaced soon or never. At first, processes take time to start.
            _ => (id, Instant::now(), if self.met { self.settings.pace.replace } else { self.settings.pace.start }),
        });
        missing.is_none()
    }

    /// Abandons the work in progress.
    pub(super) fn abandon(&mut self) {
        self.work = None;
    }

    /// Starts a replica's share of a step, with these parameters of the own partition.
    pub(super) fn begin(&mut self, order: ReplicaWork, parameters: Vec<f32>, net: &mut Net) -> Result<(), Stuck> {
        let ReplicaWork { step, attempt, place, connections } = order;
        let shards = self.settings.batches.share(step, place.0, place.1);
        let (start, length) = (shards.start, shards.end - shards.start);
        let count = length.clamp(1, MICRO_BATCHES);
        let at = |number: u64| start + length * number / count;
        let connections = connections + self.neighbours().count();
        self.attempt = attempt;
        self.work = Some(Work {
            step,
            attempt,
            sums: Sums::zero(parameters.len()),
            parameters,
            micro_batches: (0..count).map(|number| (at(number)..at(number + 1), Stage::Awaited)).collect(),
            computed: VecDeque::new(),
            busy: Instant::now() + self.settings.device.connections(connections),
        });
        if self.before.is_none() {
            for number in 0..count as u32 {
                self.advance(number, None, net)?;
            }
        }
        let early = std::mem::take(&mut self.early);
        early.into_iter().try_for_each(|((of, from, number), values)| self.receive(from, of, number, values, net))
    }

    /// Takes sums that were computed already since `since`, with the time of a computation here.
    pub(super) fn hold(&mut self, order: ReplicaWork, sums: Sums, since: Instant) -> Result<(), Stuck> {
        let ReplicaWork { step, attempt, connections, .. } = order;
        let busy = self
            .settings
            .turns
            .book(since, self.settings.device.compute(self.me.index, sums.tally.examples, connections))?;
        let computed = VecDeque::from([(busy, None)]);
        let (parameters, micro_batches) = (Vec::new(), Vec::new());
        self.work = Some(Work { step, attempt, parameters, micro_batches, sums, computed, busy });
        Ok(())
    }

    /// Books other computation time from now on. Returns when the device is through.
    pub(super) fn book(&self, time: Duration) -> Result<Instant, Stuck> {
        Ok(self.settings.turns.book(Instant::now(), time)?)
    }

    /// Receives a neighbour's values for a micro-batch: the outputs of the previous partition, or the derivatives from
    /// the next one.
    pub(super) fn receive(
        &mut self,
        from: Id,
        attempt: u64,
        number: u32,
        values: Vec<f32>,
        net: &mut Net,
    ) -> Result<(), Stuck> {
        if self.work.as_ref().is_some_and(|work| work.attempt == attempt) {
            return self.take(from, number, values, net);
        }
        // Older values belong to an abandoned attempt.
        if attempt > self.attempt {
            self.early.insert((attempt, from, number), values);
        }
        Ok(())
    }

    fn take(&mut self, from: Id, number: u32, values: Vec<f32>, net: &mut Net) -> Result<(), Stuck> {
        let misfit = Stuck::Misfit { me: self.me, from, number, values: values.len() };
        let Some(work) = &self.work else { return Ok(()) };
        let Some((shards, stage)) = work.micro_batches.get(number as usize) else { return Err(misfit) };
        let (inputs, outputs) = self.trainer.width();
        let width = match stage {
            Stage::Awaited if self.before == Some(from) => inputs,
            Stage::Passed(_) if self.after == Some(from) => outputs,
            _ => return Err(misfit),
        };
        if self.settings.batches.examples_in(work.step, shards) * width as u64 != values.len() as u64 {
            return Err(misfit);
        }
        self.advance(number, Some(values), net)
    }

    /// Advances a micro-batch by a stage. `values`: the neighbour's values; none for the first partition's own
    /// examples.
    fn advance(&mut self, number: u32, values: Option<Vec<f32>>, net: &mut Net) -> Result<(), Stuck> {
        let arrived = Instant::now();
        let Some(work) = &mut self.work else { return Ok(()) };
        let (step, attempt) = (work.step, work.attempt);
        let steps = self.settings.parts.count() as u32 * work.micro_batches.len() as u32;
        let (shards, stage) = &mut work.micro_batches[number as usize];
        let on = (step, shards.clone());
        let forward = self.settings.device.forward(self.me.index, self.settings.batches.examples_in(step, shards));
        let (forward, backward) =
            (forward / self.settings.parts.count() as u32, self.settings.device.backward(self.me.index) / steps);
        let trainer = &mut self.trainer;
        let back = |values| self.before.map(|id| (id, Message::Deltas { attempt, number, values }));
        let (time, message) = match (std::mem::replace(stage, Stage::Learnt), values, self.after) {
            (Stage::Awaited, values, Some(after)) => {
                let inputs = values.unwrap_or_else(|| trainer.draw(step, shards.clone()).0);
                let values = trainer.forward(&work.parameters, &inputs);
                *stage = Stage::Passed(inputs);
                (forward, Some((after, Message::Activations { attempt, number, values })))
            }
            (Stage::Awaited, values, None) => {
                let (features, labels) = trainer.draw(step, shards.clone());
                let (inputs, target) = (values.unwrap_or(features), Target::Labels(&labels));
                let below = trainer.learn(&work.parameters, on, &inputs, target, &mut work.sums)?;
                (forward + backward, back(below))
            }
            (Stage::Passed(inputs), Some(deltas), _) => {
                let target = Target::Deltas(&deltas);
                let below = trainer.learn(&work.parameters, on, &inputs, target, &mut work.sums)?;
                (backward, back(below))
            }
            (Stage::Passed(_), None, _) | (Stage::Learnt, ..) => return Ok(()),
        };
        work.busy = self.settings.turns.book(work.busy.max(arrived), time)?;
        work.computed.push_back((work.busy, message));
        self.pass_on(net);
        Ok(())
    }

    /// Sends the results that the emulated device has by now.
    fn pass_on(&mut self, net: &mut Net) {
        let Some(work) = &mut self.work else { return };
        let now = Instant::now();
        while let Some((_, message)) = work.computed.pop_front_if(|(done, _)| *done <= now) {
            if let Some((to, message)) = message {
                let bytes = match &message {
                    Message::Activations { values, .. } | Message::Deltas { values, .. } => {
                        self.settings.device.bytes(values.len(), self.settings.network.parameters())
                    }
                    _ => 0,
                };
                net.transfer(to, message, bytes);
            }
        }
    }

    /// Time of its next own action.
    pub(super) fn due(&self) -> Option<Instant> {
        let work = self.work.as_ref();
        let computed = work.and_then(|work| work.computed.front().map(|(done, _)| *done));
        let finished = work.filter(|work| work.is_finished()).map(|work| work.busy);
        let apart = self.apart.map(|(_, since, patience)| since + patience);
        [computed, finished, apart].into_iter().flatten().min()
    }

    /// Performs due actions. Returns the sums of the own partition when all is done.
    pub(super) fn tick(&mut self, net: &mut Net) -> Result<Option<Sums>, Stuck> {
        if let Some((neighbour, _, waited)) = self.apart.take_if(|(_, since, patience)| since.elapsed() >= *patience) {
            return Err(Stuck::Apart { me: self.me, neighbour, waited });
        }
        self.pass_on(net);
        Ok(self.work.take_if(|work| work.is_finished()).map(|work| work.sums))
    }
}

impl Work {
    fn is_finished(&self) -> bool {
        self.computed.is_empty() && self.micro_batches.iter().all(|(_, stage)| matches!(stage, Stage::Learnt))
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::TcpListener,
        sync::{LazyLock, mpsc},
    };

    use tokio::runtime::Runtime;

    use super::*;
    use crate::{
        settings::tests::settings,
        wire::{Hello, PROTOCOL},
    };

    /// There are no peers, so messages are queued.
    fn net(me: Id) -> Net {
        static IO: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let hello = Hello { protocol: PROTOCOL, job: 1, incarnation: 0, id: me, proof: [0; 32] };
        Net::new(hello, listener, IO.handle().clone(), mpsc::channel(), None, 1 << 16).unwrap()
    }

    fn order(settings: &Settings, attempt: u64) -> (ReplicaWork, Vec<f32>) {
        let parameters = settings.network.initial(1);
        (ReplicaWork { step: 3, attempt, place: (0, 1), connections: 0 }, parameters)
    }

    #[test]
    fn micro_batches_make_the_whole_share() {
        // 40 micro-shards aren't a multiple of the micro-batches.
        let settings = settings(&["--hidden=6", "--batch=40", "--examples=400"]);
        let me = Id::worker(0);
        let (mut pipeline, mut net) = (Pipeline::new(&settings, me), net(me));
        let (order, parameters) = order(&settings, 1);
        pipeline.begin(order, parameters.clone(), &mut net).unwrap();
        let sums = pipeline.tick(&mut net).unwrap().unwrap();
        let mut trainer = Trainer::new(&settings, 0);
        let (features, labels) = trainer.draw(3, 0..40);
        let mut expected = Sums::zero(parameters.len());
        trainer.learn(&parameters, (3, 0..40), &features, Target::Labels(&labels), &mut expected).unwrap();
        assert_eq!((sums.values, sums.tally), (expected.values, expected.tally));
        assert!(pipeline.due().is_none() && pipeline.tick(&mut net).unwrap().is_none());
    }

    #[test]
    fn invalid_values_are_refused_and_early_ones_are_kept() {
        // Six examples in six micro-batches, with 5 input and 4 output numbers each.
        let settings = settings(&["--features=3", "--hidden=5,4", "--batch=6", "--partitions=3"]);
        let me = Id::worker(1);
        let (before, after) = (Id::worker(0), Id::worker(2));
        let (mut pipeline, mut net) = (Pipeline::new(&settings, me), net(me));
        assert!(pipeline.neighbours().eq([before, after]));
        let (order, whole) = order(&settings, 7);
        pipeline.receive(before, 8, 0, vec![0.5; 9], &mut net).unwrap();
        pipeline.receive(before, 7, 4, vec![0.5; 5], &mut net).unwrap();
        pipeline.begin(order, whole[settings.network.range(1, 3)].to_vec(), &mut net).unwrap();
        pipeline.receive(before, 6, 0, vec![0.5; 9], &mut net).unwrap();
        for (from, number, values) in [
            (before, 0, 4),        // too few
            (before, 6, 5),        // no such micro-batch
            (before, 4, 5),        // arrived before
            (after, 0, 4),         // not sent to it yet
            (after, 4, 5),         // too many
            (Id::worker(5), 0, 5), // not a neighbour
        ] {
            let refused = pipeline.receive(from, 7, number, vec![0.5; values], &mut net);
            assert_eq!(refused.unwrap_err().to_string(), Stuck::Misfit { me, from, number, values }.to_string());
        }
        pipeline.receive(after, 7, 4, vec![0.5; 4], &mut net).unwrap();
        assert!(pipeline.tick(&mut net).unwrap().is_none(), "others are still to come");
        for number in [0, 1, 2, 3, 5] {
            pipeline.receive(before, 7, number, vec![0.5; 5], &mut net).unwrap();
            pipeline.receive(after, 7, number, vec![0.5; 4], &mut net).unwrap();
        }
        let sums = pipeline.tick(&mut net).unwrap().unwrap();
        assert_eq!((sums.tally.examples, sums.tally.loss, sums.values.len()), (6, 0, 24));
        assert_eq!(pipeline.early.len(), 1, "of attempt 8");
    }

    #[test]
    fn a_missing_neighbour_is_named() {
        let settings = settings(&["--hidden=4", "--partitions=2", "--start-ms=3600000"]);
        let me = Id::worker(2);
        let (mut pipeline, mut net) = (Pipeline::new(&settings, me), net(me));
        assert!(!pipeline.linked(&net));
        assert!(pipeline.due().is_some_and(|due| due > Instant::now()) && pipeline.tick(&mut net).is_ok());
        let waited = Duration::from_secs(3600);
        pipeline.apart = pipeline.apart.map(|(neighbour, since, _)| (neighbour, since, Duration::ZERO));
        let error = pipeline.tick(&mut net).unwrap_err();
        assert!(matches!(error, Stuck::Apart { waited: Duration::ZERO, .. }) && error.code() == 40);
        assert!(
            Stuck::Apart { me, neighbour: Id::worker(3), waited }
                .to_string()
                .contains("worker 2 has had no connection to worker 3")
        );
        assert!(pipeline.tick(&mut net).is_ok(), "it is said once");
    }
}

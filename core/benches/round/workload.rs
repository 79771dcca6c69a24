//! The benchmark's fixed cluster and jobs, with an own generator, so that library updates don't change them.

use std::collections::BTreeMap;

use trainmaster_core::{
    End, Event, JobSpec, ObservedSlot, Phase, Role, Scheduler, ServerSpec, Settings, Time, TrainingMode,
    batch::GradientNoise,
    job::{ProfiledSpeed, Sizes},
    settings::Stability,
    topology::Topology,
};

pub(crate) struct Workload {
    pub(crate) jobs: u32,
    pub(crate) servers: u32,
    pub(crate) kind: Kind,
    pub(crate) engine: &'static str,
}

/// What the scheduler has to choose for each job beside its shape and place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing.
    Plain,
    /// One of three types of GPU.
    Types,
    /// A rack of 80 servers, which the job requires.
    Racks,
    /// Nothing, on servers in racks.
    InRacks,
    /// Nothing, but only even numbers of workers are allowed.
    Sizes,
    /// The batch, if the job is synchronous. The noise of its gradients is known once it runs, so in steady rounds.
    Batches,
    /// Whether all-reduce jobs, of up to 32 workers, share a server.
    AllReduce,
    /// The type and the batch of all-reduce jobs.
    All,
}

impl Kind {
    pub(crate) const ALL: [(&str, Self); 8] = [
        ("plain", Self::Plain),
        ("types", Self::Types),
        ("racks", Self::Racks),
        ("in-racks", Self::InRacks),
        ("sizes", Self::Sizes),
        ("batches", Self::Batches),
        ("all-reduce", Self::AllReduce),
        ("all", Self::All),
    ];

    fn has_types(self) -> bool {
        matches!(self, Self::Types | Self::All)
    }

    fn has_batches(self) -> bool {
        matches!(self, Self::Batches | Self::All)
    }

    fn is_all_reduce(self) -> bool {
        matches!(self, Self::AllReduce | Self::All)
    }
}

/// SplitMix64.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn between(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn count(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to - from + 1)
    }
}

impl Workload {
    pub(crate) fn new(scale: f64, kind: Kind, engine: &'static str) -> Self {
        Self { jobs: (4000.0 * scale) as u32, servers: (16_000.0 * scale) as u32, kind, engine }
    }

    /// 100 jobs on 68 GPUs.
    pub(crate) fn small(kind: Kind, engine: &'static str) -> Self {
        Self { jobs: 100, servers: 26, kind, engine }
    }

    pub(crate) fn time(&self, seconds: i64) -> Time {
        Time(1_000_000 + seconds * 1000)
    }

    /// Five in eight servers have 4 GPUs, the others none. There are three sizes of each.
    pub(crate) fn load(&self) -> Scheduler {
        let settings = Settings {
            engine: self.engine.into(),
            stability: Stability { enabled: false, ..Stability::default() },
            ..Settings::default()
        };
        let mut scheduler = Scheduler::new(settings).expect("the engine exists");
        for number in 0..self.servers {
            let size = i64::from(number % 3) + 2;
            let gpus = if number % 8 < 5 { 4 } else { 0 };
            let capacity = [("cpu", 16_000 * size), ("memory", 65_536 * size), ("bandwidth", 5000 * size)];
            let device = if self.kind.has_types() {
                ["gpu:a100", "gpu:h100", "gpu:v100"][number as usize / 8 % 3]
            } else {
                "gpu"
            };
            let path = [("block", number / 1600), ("rack", number / 80)];
            let is_placed = matches!(self.kind, Kind::Racks | Kind::InRacks);
            let path = path.into_iter().filter(|_| is_placed);
            let server = ServerSpec {
                name: format!("node{number}"),
                capacity: capacity.map(|(name, value)| (name.to_owned(), value)).into(),
                devices: vec![device.into(); gpus],
                labels: path.map(|(level, at)| (level.to_owned(), format!("{level}{at}"))).collect(),
                ..ServerSpec::default()
            };
            scheduler.apply(self.time(0), Event::ServerSet { manager: "bench".into(), server }).expect("a good server");
        }
        for number in 0..self.jobs {
            self.submit(&mut scheduler, self.time(0), number);
        }
        scheduler
    }

    /// Demands of 1 GPU and 2–8 CPUs per worker, and 1–6 CPUs per parameter server. Speeds of Eq. 3 and 4 with drawn θ,
    /// profiled in six shapes. At most 16 + 16 slots (24 per job on average at this load).
    fn submit(&self, scheduler: &mut Scheduler, at: Time, number: u32) {
        let mut draws = Draws(u64::from(number));
        let mut spec = JobSpec::minimal(&format!("job{number}"));
        if self.kind == Kind::Racks {
            spec.labels.insert(Topology::REQUIRE.into(), "rack".into());
        }
        if self.kind == Kind::Sizes {
            spec.labels.insert(Sizes::LABEL.into(), "multiples of 2".into());
            spec.worker.requested = 2;
        }
        let all_reduce = self.kind.is_all_reduce();
        let asynchronous = number % 2 == 1 && !all_reduce;
        if all_reduce {
            spec.mode = TrainingMode::AllReduce;
            spec.worker.max = 32;
        } else if asynchronous {
            spec.mode = TrainingMode::Async;
        }
        let demand = |gpu: i64, cpu: u64, gib: u64, mbit: u64| {
            let pairs =
                [("gpu", gpu), ("cpu", cpu as i64 * 1000), ("memory", gib as i64 * 1024), ("bandwidth", mbit as i64)];
            pairs
                .into_iter()
                .filter(|(_, value)| *value > 0)
                .map(|(name, value)| (name.to_owned(), value))
                .collect::<BTreeMap<_, _>>()
        };
        spec.worker.demand = demand(1000, draws.count(2, 8), draws.count(4, 16), draws.count(100, 1000));
        let server = demand(0, draws.count(1, 6), draws.count(2, 12), draws.count(200, 2000));
        match &mut spec.server {
            Some(role) if !all_reduce => role.demand = server,
            role => *role = None,
        }
        spec.batch = 256;
        if self.kind.has_batches() && !asynchronous {
            spec.labels.insert("batch.max".into(), "4096".into());
        }
        spec.examples = draws.count(20, 400) * 256;
        let theta = [
            draws.between(0.5, 4.0),
            draws.between(0.05, 0.3),
            draws.between(0.1, 0.8),
            draws.between(0.001, 0.01),
            draws.between(0.001, 0.01),
        ];
        let speed = |p: f64, w: f64| {
            if asynchronous {
                w / (theta[0] + theta[2] * w / p + theta[3] * w + theta[4] * p)
            } else {
                1.0 / (theta[0] / w + theta[1] + theta[2] * w / p + theta[3] * w + theta[4] * p)
            }
        };
        let shapes = if all_reduce {
            [(0, 1), (0, 2), (0, 4), (0, 8), (0, 16), (0, 32)]
        } else {
            [(1, 1), (1, 4), (4, 4), (8, 2), (6, 12), (12, 12)]
        };
        let profiled = shapes.map(|(servers, workers)| {
            // All-reduce is as fast as with a parameter server for each worker.
            let speed = speed(if all_reduce { workers } else { servers }.into(), workers.into());
            ProfiledSpeed { servers, workers, speed }
        });
        spec.profile = profiled.into();
        let event = Event::JobSubmitted { spec: Box::new(spec), external: None, token_hash: None };
        scheduler.apply(at, event).expect("a good job");
    }

    /// The manager enacts all issues.
    pub(crate) fn observe_all(&self, scheduler: &mut Scheduler) {
        // Releases come first, because other issues wait for their room.
        for _ in 0..3 {
            for issue in scheduler.take_issues() {
                if scheduler.state().job(issue.job).is_none() {
                    // The end of the job was observed already.
                    continue;
                }
                let slots = match &issue.verdict {
                    trainmaster_core::Verdict::Run(allocation) => allocation.slots(),
                    _ => &[],
                };
                let slots = slots
                    .iter()
                    .map(|slot| ObservedSlot {
                        role: slot.role,
                        index: slot.index,
                        server: scheduler.state().server_name(slot.server).to_owned(),
                        devices: slot.devices.to_vec(),
                    })
                    .collect();
                let at = scheduler.state().now;
                let event =
                    Event::Observed { job: issue.job, incarnation: issue.incarnation, slots, phase: Phase::Running };
                scheduler.apply(at, event).expect("the job is known");
            }
        }
    }

    /// Jobs that may choose their batch report the noise of their gradients.
    pub(crate) fn report_noise(&self, scheduler: &mut Scheduler) {
        let jobs: Vec<_> = scheduler.state().jobs.values().map(|job| (job.id, job.issued.incarnation)).collect();
        let all = jobs.into_iter().filter(|_| self.kind.has_batches());
        for (seq, (job, incarnation)) in all.flat_map(|job| (1..=3).map(move |seq| (seq, job))) {
            let noise = Some(GradientNoise { sqr: 1.0, var: 2000.0 });
            let event =
                Event::BatchReported { job, incarnation, slot: (Role::Worker, 0), seq, batch: Some(256), noise };
            // A job without slots reports nothing.
            let _ = scheduler.apply(scheduler.state().now, event);
        }
    }

    /// Half a per cent of the jobs end, and as many arrive.
    pub(crate) fn change_one_percent(&self, scheduler: &mut Scheduler, turn: i64) {
        let count = (self.jobs / 200).max(1);
        let at = self.time(5 + 10 * turn);
        let every = (self.jobs / count) as usize;
        let ending: Vec<_> =
            scheduler.state().jobs.keys().copied().skip(turn as usize).step_by(every).take(count as usize).collect();
        for job in ending {
            scheduler.apply(at, Event::JobEnded { job, end: End::Completed }).expect("the job is active");
            let event =
                Event::Observed { job, incarnation: Default::default(), slots: Vec::new(), phase: Phase::Stopped };
            // A job that never ran is forgotten at once.
            let _ = scheduler.apply(at, event);
        }
        for number in 0..count {
            self.submit(scheduler, at, self.jobs + turn as u32 * count + number);
        }
        while let Some(fits) = scheduler.prepare_fits(at) {
            scheduler.commit_fits(at, fits.run()).expect("no other fit ticket is open");
        }
    }
}

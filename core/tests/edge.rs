//! Properties of the edge-cloud engine: the sum of increases, preemption, and fixed assignments.

use std::collections::BTreeMap;

use crate::common::{
    build::{amounts, cluster, plain, plain_with, role, server},
    config,
};
use proptest::{collection::vec, prelude::*, sample::select};
use trainmaster_core::{
    Allocation, End, Event, JobId, JobSpec, ObservedSlot, Phase, Reason, Report, Role, Scheduler, ServerId, ServerSpec,
    Settings, Span, Time, Verdict,
    decision::{WorkItem, WorkState},
    job::Dataset,
    settings::Parameter,
};

/// A server with GPUs, plenty of other resources, and labels for uploads.
fn place(name: &str, gpus: &[&str], labels: &[(&str, &str)]) -> ServerSpec {
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    ServerSpec { labels, ..server(name, 1000, 1000, gpus) }
}

/// A job whose chunks take `seconds` each.
fn job(name: &str, chunks: u32, seconds: i64) -> JobSpec {
    JobSpec {
        worker: role(&[("gpu", 1000), ("cpu", 1000)], 1, 100, 1),
        server: Some(role(&[("cpu", 1000)], 1, 1, 1)),
        dataset: Some(Dataset {
            chunks,
            batches_per_chunk: 1,
            epochs: 1,
            batch_time: Some(Span::seconds(seconds)),
            ..Dataset::default()
        }),
        ..JobSpec::minimal(name)
    }
}

/// A manager that enacts issues at once, and programs that train their chunks in the stated time.
struct World {
    scheduler: Scheduler,
    now: Time,
    running: BTreeMap<JobId, Training>,
    /// The destination of each chunk, which never changes.
    sent: BTreeMap<(JobId, u32), ServerId>,
    /// Completion of each chunk.
    ended: BTreeMap<(JobId, u32), Time>,
    /// Interrupted (job, chunk).
    interrupted: Vec<(JobId, u32)>,
    reports: u64,
}

struct Training {
    left: BTreeMap<u32, Span>,
    runs: Vec<u32>,
}

impl World {
    fn new(settings: Settings, servers: &[ServerSpec]) -> Self {
        Self {
            scheduler: cluster(settings, servers),
            now: Time(0),
            running: BTreeMap::new(),
            sent: BTreeMap::new(),
            ended: BTreeMap::new(),
            interrupted: Vec::new(),
            reports: 0,
        }
    }

    fn apply(&mut self, event: Event) {
        self.scheduler.apply(self.now, event).expect("it makes sense");
    }

    fn submit(&mut self, spec: JobSpec) -> JobId {
        let data = spec.dataset.clone().expect("it has chunks");
        self.apply(Event::JobSubmitted { spec: Box::new(spec), external: None, token_hash: None });
        let id = *self.scheduler.state().jobs.keys().next_back().expect("just submitted");
        let each = Span(data.batch_time.unwrap().0 * i64::from(data.batches_per_chunk) * i64::from(data.epochs));
        let left = (0..data.chunks).map(|chunk| (chunk, each)).collect();
        self.running.insert(id, Training { left, runs: Vec::new() });
        id
    }

    /// Makes due decisions, and enacts them.
    fn settle(&mut self) {
        loop {
            let issues = self.scheduler.take_issues();
            for issue in &issues {
                if let (Verdict::Run(allocation), Some(_)) = (&issue.verdict, self.scheduler.state().job(issue.job)) {
                    self.enact(issue.job, &allocation.clone());
                }
                let event = self.observation(issue.job, issue.incarnation, issue.verdict.allocation());
                if self.scheduler.state().job(issue.job).is_some() {
                    self.apply(event);
                }
            }
            if self.scheduler.due().is_some_and(|due| due <= self.now) {
                self.scheduler.decide(self.now);
            } else if issues.is_empty() {
                return;
            }
        }
    }

    fn observation(
        &self,
        job: JobId,
        incarnation: trainmaster_core::Incarnation,
        allocation: Option<&std::sync::Arc<Allocation>>,
    ) -> Event {
        let state = self.scheduler.state();
        let slots = allocation.iter().flat_map(|allocation| {
            allocation.slots().iter().map(|slot| ObservedSlot {
                role: slot.role,
                index: slot.index,
                server: state.server_name(slot.server).into(),
                devices: if allocation.is_busy(slot) { slot.devices.to_vec() } else { Vec::new() },
            })
        });
        Event::Observed { job, incarnation, slots: slots.collect(), phase: Phase::Running }
    }

    fn enact(&mut self, id: JobId, allocation: &Allocation) {
        let training = self.running.get_mut(&id).expect("it was submitted");
        let mut runs = Vec::new();
        for work in allocation.work() {
            let WorkItem::Chunk(chunk) = work.item else { panic!("no such work") };
            if let Some((role, index)) = work.slot {
                let server = allocation.slot(role, index).expect("the guard looked").server;
                let first = *self.sent.entry((id, chunk)).or_insert(server);
                assert_eq!(first, server, "chunk {chunk} of {id} moved");
            }
            if work.state == WorkState::Running {
                runs.push(chunk);
            }
        }
        let stopped = training.runs.iter().filter(|chunk| !runs.contains(chunk) && training.left.contains_key(chunk));
        self.interrupted.extend(stopped.map(|chunk| (id, *chunk)));
        training.runs = runs;
    }

    /// Advances to the end of the next chunk or the engine's next decision, but not beyond `until`.
    fn pass(&mut self, until: Time) {
        self.settle();
        while self.now < until {
            let ends = self.running.values().flat_map(|job| job.runs.iter().filter_map(|chunk| job.left.get(chunk)));
            let next = ends.map(|left| self.now + *left).chain(self.scheduler.due()).min();
            let next = next.map_or(until, |next| next.clamp(self.now, until));
            let passed = next - self.now;
            self.now = next;
            let mut reports = Vec::new();
            for (id, job) in &mut self.running {
                for chunk in &job.runs {
                    let Some(left) = job.left.get_mut(chunk) else { continue };
                    left.0 -= passed.0;
                    if left.0 <= 0 {
                        job.left.remove(chunk);
                        self.ended.insert((*id, *chunk), self.now);
                        reports.push((*id, *chunk));
                    }
                }
            }
            for (id, chunk) in reports {
                let incarnation = self.scheduler.state().job(id).expect("it trains").issued.incarnation;
                self.reports += 1;
                let seq = self.reports;
                let report = Report { seq, chunks: vec![chunk], workers: 1, ..Report::default() };
                self.apply(Event::Reported { job: id, incarnation, slot: (Role::Worker, 0), report });
            }
            let over: Vec<JobId> =
                self.running.iter().filter(|(_, job)| job.left.is_empty()).map(|(id, _)| *id).collect();
            for id in over {
                self.running.remove(&id);
                self.apply(Event::JobEnded { job: id, end: End::Completed });
                let gone = self.observation(id, trainmaster_core::Incarnation(1), None);
                let _ = self.scheduler.apply(self.now, gone);
            }
            self.settle();
        }
    }

    fn until_idle(&mut self) {
        for _ in 0..100_000 {
            if self.running.is_empty() {
                return;
            }
            self.pass(Time(self.now.0 + 3_600_000));
        }
        panic!("{} jobs never end", self.running.len());
    }

    fn reading(&self, name: &str) -> f64 {
        let readings = self.scheduler.readings();
        readings.iter().find(|(known, _)| known == name).map(|(_, value)| *value).expect("the engine has it")
    }

    fn states(&self, id: JobId) -> Vec<(u32, WorkState)> {
        let allocation = self.scheduler.state().job(id).and_then(|job| job.verdict.allocation().cloned());
        let chunk = |work: &trainmaster_core::decision::Work| match work.item {
            WorkItem::Chunk(chunk) => (chunk, work.state),
            WorkItem::Task(task) => (task, work.state),
        };
        let mut states: Vec<_> = allocation.iter().flat_map(|allocation| allocation.work()).map(chunk).collect();
        states.sort_unstable_by_key(|(chunk, _)| *chunk);
        states
    }
}

/// (arrival, chunks, seconds of a chunk) of each job; (GPUs, seconds of an upload, whether it is in the cloud) of each
/// server.
type History = (Vec<(i64, u32, i64)>, Vec<(usize, i64, bool)>);

fn histories() -> impl Strategy<Value = History> {
    let jobs = vec((0..400_i64, 1..9_u32, 1..120_i64), 1..14);
    let servers = vec((1..4_usize, select(vec![0_i64, 0, 15, 40, 90]), any::<bool>()), 1..4);
    (jobs, servers)
}

fn play(jobs: &[(i64, u32, i64)], servers: &[(usize, i64, bool)], settings: Settings, zones: bool) -> (World, f64) {
    let servers: Vec<ServerSpec> = servers
        .iter()
        .enumerate()
        .map(|(at, (gpus, upload, cloud))| {
            let upload = format!("{upload}s");
            let far = format!("{}s", (at * 37) % 80);
            let zone = if *cloud { "cloud" } else { "campus" };
            let labels: &[(&str, &str)] = &[("zone", zone), ("upload", &upload), ("upload.far", &far)];
            place(&format!("s{at}"), &vec!["gpu"; *gpus], &labels[..if zones { 3 } else { 2 }])
        })
        .collect();
    let mut world = World::new(settings, &servers);
    let mut jobs = jobs.to_vec();
    jobs.sort_unstable();
    let mut total = 0.0;
    let mut ids = Vec::new();
    for (at, (arrival, chunks, seconds)) in jobs.iter().enumerate() {
        world.pass(Time(arrival * 1000));
        let mut spec = job(&format!("j{at}"), *chunks, *seconds);
        if zones && at % 2 == 1 {
            spec.dataset.as_mut().unwrap().upload = "far".into();
        }
        ids.push((world.submit(spec), *arrival, *chunks));
        world.settle();
    }
    world.until_idle();
    for (id, arrival, chunks) in ids {
        for chunk in 0..chunks {
            let took = world.ended[&(id, chunk)] - Time(arrival * 1000);
            total += took.as_seconds() / f64::from(chunks);
        }
    }
    (world, total)
}

proptest! {
    #![proptest_config(config(1500))]

    /// If uploads depend on the server alone, chunks arrive at a worker in the order of their dispatch. Then each
    /// increase is relative to all earlier chunks.
    #[test]
    fn increases_add_up_to_the_average_training_times((jobs, servers) in histories()) {
        let (world, total) = play(&jobs, &servers, plain("edge"), false);
        let increase = world.reading("increase_s");
        prop_assert!((increase - total).abs() <= 1e-6 * total.max(1.0), "Σ min Q {increase}, Σ (c − a)/D {total}");
        prop_assert_eq!(world.reading("chunks_waiting"), 0.0);
    }

    /// With different upload times of some jobs, nothing moves and all jobs end. Counting chunks that are still on
    /// their way never makes the sum of increases smaller than the paper's.
    #[test]
    fn chunks_on_their_way_are_missed_by_the_paper((jobs, servers) in histories()) {
        let (paper, _) = play(&jobs, &servers, plain("edge"), true);
        prop_assert_eq!(paper.reading("chunks_waiting"), 0.0);
        let counted = plain_with("edge", &[("count_coming", Parameter::Flag(true))]);
        let (beyond, total) = play(&jobs, &servers, counted, true);
        prop_assert!(beyond.reading("increase_s") > 0.0 && total > 0.0);
    }
}

#[test]
fn a_shorter_job_takes_single_workers_and_the_rest_continues() {
    let mut world = World::new(plain("edge"), &[place("s0", &["gpu", "gpu"], &[])]);
    let long = world.submit(job("long", 2, 1000));
    world.pass(Time(10_000));
    assert_eq!(world.states(long), [(0, WorkState::Running), (1, WorkState::Running)]);
    let short = world.submit(job("short", 1, 100));
    world.pass(Time(20_000));
    assert_eq!(world.states(short), [(0, WorkState::Running)]);
    assert_eq!(world.states(long), [(0, WorkState::Preempted), (1, WorkState::Running)]);
    let job = world.scheduler.state().job(long).unwrap();
    assert_eq!((job.issued.incarnation.0, job.issued.rescales), (1, 0), "nobody restarts and no shape changes");
    let explained = world.scheduler.explain(world.now, long).unwrap();
    let text: Vec<&str> = explained.findings.iter().map(|finding| finding.text.as_str()).collect();
    assert!(
        text.iter().any(|text| text.contains("trains 1 of its 2 chunks") && text.ends_with("on s0 waits for short")),
        "{text:?}"
    );
    world.until_idle();
    assert_eq!(world.ended[&(short, 0)], Time(110_000));
    assert_eq!(world.ended[&(long, 0)], Time(1_100_000), "it went on where it was");
    assert_eq!(world.ended[&(long, 1)], Time(1_000_000));
}

#[test]
fn the_cloud_takes_whole_jobs_single_chunks_or_none() {
    let edge = || place("e", &["gpu"], &[("upload", "10s")]);
    let cloud = |gpus: usize| place("c", &vec!["gpu"; gpus], &[("zone", "cloud"), ("upload", "60s")]);
    let on = |world: &World, id, name: &str| {
        let state = world.scheduler.state();
        let there = |chunk| state.server_name(world.sent[&(id, chunk)]) == name;
        (0..4).filter(|chunk| there(*chunk)).count()
    };
    let busy = |cloud: ServerSpec, settings: Settings, seconds| {
        let mut world = World::new(settings, &[edge(), cloud]);
        world.submit(job("first", 1, 500));
        world.settle();
        let second = world.submit(job("second", 4, seconds));
        world.settle();
        (world, second)
    };
    // Behind the first job's chunk, each would wait longer than the upload to the cloud takes.
    let (mut world, whole) = busy(cloud(4), plain("edge"), 200);
    assert_eq!(on(&world, whole, "c"), 4);
    let servers = world.scheduler.state().job(whole).unwrap().verdict.allocation().unwrap().of(Role::Server).to_vec();
    assert_eq!(world.scheduler.state().server_name(servers[0].server), "c", "parameter servers go with their job");
    world.until_idle();
    // A limited cloud: if two of four have a worker there, the third ends sooner at the edge, and the fourth there
    // behind one of the first.
    let (world, part) = busy(cloud(2), plain("edge"), 480);
    assert_eq!((on(&world, part, "c"), on(&world, part, "e")), (3, 1));
    let off = plain_with("edge", &[("cloud", Parameter::Flag(false))]);
    let (world, none) = busy(cloud(4), off, 200);
    assert_eq!(on(&world, none, "e"), 4);
}

#[test]
fn chunks_queue_in_a_full_cloud() {
    let servers =
        || [place("e", &["gpu"], &[("upload", "10s")]), place("c", &["gpu"], &[("zone", "cloud"), ("upload", "60s")])];
    let run = |settings: Settings| {
        let mut world = World::new(settings, &servers());
        let first = world.submit(job("first", 2, 500));
        world.pass(Time(100_000));
        let second = world.submit(job("second", 2, 400));
        world.until_idle();
        let ends = [(first, 0), (first, 1), (second, 0), (second, 1)].map(|chunk| world.ended[&chunk].0 / 1000);
        let far = (0..2).filter(|chunk| world.scheduler.state().server_name(world.sent[&(second, *chunk)]) == "c");
        (ends, far.count(), world.interrupted.len())
    };
    // Each worker has a chunk of the first job. The second, shorter job takes one place from it on either.
    assert_eq!(run(plain("edge")), ([910, 960, 510, 560], 1, 2));
    let apart = plain_with("edge", &[("cloud_queues", Parameter::Flag(false))]);
    assert_eq!(run(apart), ([1310, 560, 510, 910], 0, 1));
}

/// One GPU of s, or several, that idle slots keep or not.
fn keeps(gpus: usize, kept: &str) -> World {
    World::new(plain("edge"), &[place("s", &vec!["gpu"; gpus], &[("idle_gpus", kept)])])
}

#[test]
fn a_gpu_that_idle_slots_keep_has_one_job_until_that_ends() {
    let run = |kept: &str| {
        let mut world = keeps(2, kept);
        let long = world.submit(job("long", 3, 100));
        world.settle();
        let short = world.submit(job("short", 1, 10));
        world.settle();
        let reason = world.scheduler.state().job(short).unwrap().verdict.reason().cloned();
        let reason = reason.map(|reason| reason.describe(world.scheduler.state())).unwrap_or_default();
        let caveats = world.scheduler.caveats(&job("short", 1, 10));
        assert_eq!(!caveats.is_empty(), !reason.is_empty(), "it is said at submission");
        world.until_idle();
        let ended = |job, chunk| world.ended[&(job, chunk)].0 / 1000;
        (reason, ended(short, 0), world.interrupted.len(), ended(long, 2))
    };
    assert_eq!(run("no"), (String::new(), 10, 1, 200), "it interrupts the long one");
    // One GPU has nothing to do after 100 s, but its slot is kept until the job ends.
    let (reason, ended, interrupted, long) = run("kept");
    assert!(reason.contains("the 2 that suit it have other jobs"), "{reason}");
    assert_eq!((interrupted, long), (0, 200));
    assert!((210..=270).contains(&ended), "{ended}");
}

#[test]
fn foreign_use_counts_where_gpus_are_only_counted() {
    let labels = BTreeMap::from([("idle_gpus".to_owned(), "kept".to_owned())]);
    let mut spec = ServerSpec { labels, ..server("s", 1000, 1000, &[]) };
    spec.capacity.insert("gpu".into(), 2000);
    let mut world = World::new(plain("edge"), &[spec]);
    let amounts = amounts(&[("gpu", 1000)]);
    world.apply(Event::ForeignUse { server: "s".into(), amounts, devices: Vec::new() });
    let jobs = ["first", "second"].map(|name| world.submit(job(name, 1, 100)));
    world.settle();
    let plans = jobs.map(|job| world.scheduler.state().job(job).unwrap().verdict.allocation().is_some());
    assert_eq!(plans, [true, false], "one of two GPUs is in foreign use");
}

#[test]
fn a_held_job_keeps_no_gpu_and_gets_another_one() {
    let mut world = keeps(1, "kept");
    let first = world.submit(job("first", 1, 100));
    world.settle();
    world.apply(Event::JobHeld { job: first, held: true });
    world.settle();
    let second = world.submit(job("second", 1, 100));
    world.settle();
    assert!(world.scheduler.state().job(second).unwrap().verdict.allocation().is_some(), "the GPU is free");
    world.apply(Event::JobHeld { job: first, held: false });
    world.settle();
    assert!(world.scheduler.state().job(first).unwrap().verdict.allocation().is_none(), "it is the second one's");
    world.apply(Event::JobEnded { job: second, end: End::Completed });
    world.settle();
    world.now = Time(60_000);
    world.settle();
    assert!(world.scheduler.state().job(first).unwrap().verdict.allocation().is_some(), "tried again each minute");
}

#[test]
fn storage_workers_and_kinds_bound_where_chunks_go() {
    let servers = [
        place("full", &["gpu:a", "gpu:a"], &[("storage", "10MiB")]),
        place("other", &["gpu:b"; 4], &[]),
        place("room", &["gpu:a"; 4], &[("upload", "50s")]),
    ];
    let mut world = World::new(plain("edge"), &servers);
    let mut spec = job("typed", 6, 100);
    spec.worker.demand = amounts(&[("gpu:a", 1000), ("cpu", 1000)]);
    spec.worker.max = 3;
    spec.dataset.as_mut().unwrap().chunk_size = 5;
    let id = world.submit(spec);
    world.settle();
    let state = world.scheduler.state();
    let on = |name: &str| world.sent.values().filter(|server| state.server_name(**server) == name).count();
    assert_eq!((on("full"), on("other"), on("room")), (2, 0, 4), "two chunks of 5 MiB fit 10 MiB");
    assert_eq!(state.job(id).unwrap().shape().workers, 3);
    world.until_idle();
    // The storage is free again.
    let mut next = job("next", 2, 100);
    next.worker.demand = amounts(&[("gpu:a", 1000), ("cpu", 1000)]);
    next.dataset.as_mut().unwrap().chunk_size = 5;
    let next = world.submit(next);
    world.settle();
    assert_eq!(world.scheduler.state().server_name(world.sent[&(next, 0)]), "full");
    assert_eq!(world.scheduler.state().server_name(world.sent[&(next, 1)]), "full");
}

#[test]
fn jobs_without_a_place_wait_with_numbers() {
    let mut world = World::new(plain("edge"), &[server("s", 2, 4, &["gpu"])]);
    let mut big = job("big", 2, 100);
    big.worker.demand.insert("memory".into(), 3 << 10);
    let first = world.submit(JobSpec { name: "first".into(), ..big.clone() });
    let second = world.submit(big);
    world.settle();
    let state = world.scheduler.state();
    assert!(state.job(first).unwrap().verdict.allocation().is_some());
    let reason = state.job(second).unwrap().verdict.reason().cloned().expect("there is no memory for its slot");
    assert!(matches!(reason, Reason::Exhausted { needed: 3072, left: 1024, .. }), "{reason:?}");
    world.until_idle();
    assert_eq!(world.ended.len(), 4);
}

#[test]
fn retried_jobs_take_no_room() {
    let mut world = World::new(plain("edge"), &[server("s", 8, 4, &["gpu", "gpu"])]);
    let mut first = job("first", 2, 100_000);
    first.worker.demand.insert("memory".into(), 1 << 10);
    world.submit(first);
    let mut big = job("big", 2, 100);
    big.worker.demand.insert("memory".into(), 3 << 10);
    big.server.as_mut().unwrap().demand.insert("memory".into(), 512);
    world.submit(big);
    // There is no room for its workers, but for its parameter server: an hour of retries.
    world.pass(Time(3_600_000));
    let mut small = job("small", 1, 100);
    small.worker.demand.insert("memory".into(), 1 << 10);
    small.server.as_mut().unwrap().demand.insert("memory".into(), 1 << 10);
    let small = world.submit(small);
    world.pass(Time(3_700_000));
    assert!(world.ended.contains_key(&(small, 0)), "{:?}", world.states(small));
}

#[test]
fn chunks_of_a_lost_server_are_dispatched_anew_with_what_they_had_left() {
    let mut world = World::new(plain("edge"), &[place("a", &["gpu"], &[]), place("b", &["gpu"], &[])]);
    let id = world.submit(job("j", 2, 100));
    world.pass(Time(30_000));
    world.apply(Event::ServersLeft { names: vec!["b".into()] });
    // The chunk on the lost server is gone.
    let lost: Vec<u32> = (0..2).filter(|chunk| world.sent[&(id, *chunk)] == ServerId(1)).collect();
    assert_eq!(lost.len(), 1);
    world.sent.remove(&(id, lost[0]));
    let job = world.scheduler.state().job(id).unwrap().issued.incarnation;
    world.apply(Event::Observed { job: id, incarnation: job, slots: vec![], phase: Phase::Stopped });
    world.until_idle();
    let kept = 1 - lost[0];
    assert!(world.ended[&(id, kept)] <= Time(102_000), "{:?}", world.ended);
    assert!(world.ended[&(id, lost[0])] <= Time(175_000), "70 s are left of it: {:?}", world.ended);
}

#[test]
fn unsupported_jobs_are_refused_by_name() {
    let mut world = World::new(plain("edge"), &[place("s", &["gpu"; 2], &[])]);
    type Spoil = fn(&mut JobSpec);
    let cases: [(Spoil, &str); 6] = [
        (|spec| spec.dataset = None, "dataset"),
        (|spec| spec.worker.demand = amounts(&[("gpu", 500)]), "worker.gpu: 0.5 must be 1"),
        (|spec| (spec.worker.min, spec.worker.requested) = (2, 2), "worker.min: 2"),
        (|spec| spec.resize = trainmaster_core::job::Resize::Fixed, "resize"),
        (|spec| (spec.mode, spec.server) = (trainmaster_core::TrainingMode::AllReduce, None), "mode"),
        (|spec| spec.dataset.as_mut().unwrap().chunks = 10_001, "dataset.chunks: 10001"),
    ];
    for (spoil, named) in cases {
        let mut spec = job("bad", 2, 10);
        spoil(&mut spec);
        let event = Event::JobSubmitted { spec: Box::new(spec), external: None, token_hash: None };
        let error = world.scheduler.apply(world.now, event).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
    // A job with an unknown chunk time waits, with its reason.
    let mut spec = job("unknown", 2, 10);
    spec.dataset.as_mut().unwrap().batch_time = None;
    world.apply(Event::JobSubmitted { spec: Box::new(spec), external: None, token_hash: None });
    world.settle();
    let job = world.scheduler.state().find_job("unknown").unwrap().clone();
    let reason = job.verdict.reason().expect("it waits").describe(world.scheduler.state());
    assert!(reason.contains("dataset.batch_time"), "{reason}");
}

//! Random clusters, jobs and histories, as plain data that shrinks.

use std::collections::BTreeMap;

use proptest::{collection::vec, option, prelude::*, sample::select};
use trainmaster_core::{
    End, JobSpec, Mode, Report, ServerSpec, Settings, Span, TrainingMode,
    engine::{DefaultValue, Entry},
    job::{Dataset, Partition, ProfiledSpeed, Resize, RoleSpec, StopChoice, Utility, UtilityKind},
    settings::{Parameter, ShapeRules, Stability},
    topology::Topology,
};

use super::build::{amounts, role};

/// A cluster and its history.
#[derive(Clone)]
pub struct Scenario {
    pub settings: Settings,
    pub servers: Vec<ServerSpec>,
    pub steps: Vec<Step>,
}

impl std::fmt::Debug for Scenario {
    /// One line per item, so that a failing case is readable.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "\n{:?}", self.settings)?;
        for server in &self.servers {
            let ServerSpec { name, capacity, devices, labels, draining } = server;
            writeln!(f, "{name}: {capacity:?} {devices:?} {labels:?}{}", if *draining { " draining" } else { "" })?;
        }
        for step in &self.steps {
            match step {
                Step::Submit(spec) => {
                    let role =
                        |role: &RoleSpec| format!("{}..{} ({}) {:?}", role.min, role.max, role.requested, role.demand);
                    let (worker, server) = (role(&spec.worker), spec.server.as_ref().map(role));
                    let JobSpec {
                        tenant,
                        queue,
                        priority,
                        resize,
                        mode,
                        separate_roles,
                        labels,
                        time_limit,
                        restart_cost,
                        profile,
                        ..
                    } = &**spec;
                    writeln!(
                        f,
                        "Submit {mode:?} w {worker} p {server:?} {resize:?} {tenant}/{queue} {priority} {labels:?} \
                         apart {separate_roles} limit {time_limit:?} restart {restart_cost:?} profile {}",
                        profile.len()
                    )?;
                }
                step => writeln!(f, "{step:?}")?,
            }
        }
        Ok(())
    }
}

/// One step. Numbers select among the existing objects.
#[derive(Clone, Debug)]
pub enum Step {
    Advance(i64),
    Submit(Box<JobSpec>),
    End(usize, End),
    Hold(usize, bool),
    Report(usize, Box<Report>, bool),
    ServerLost(usize),
    /// The server returns, or changes: its capacity in eighths, draining or not, number of last devices removed.
    ServerSet(usize, i64, bool, usize),
    Foreign(usize, i64, i64, u16),
    /// The server is measured: hundredths in use, and hundredths of those by slots of jobs.
    Measure(usize, i64, i64),
    Configure(Box<Settings>),
    Mode(Mode),
    /// Bits of servers and jobs that the manager forgot; whether it owns the queue.
    Resync(u8, u8, bool),
    /// The manager acts on one job.
    Manage(u32),
    /// One of its observations arrives.
    Deliver(u32),
    Prepare,
    /// With a budget of a few steps, or unlimited.
    Commit(Option<u64>),
    CommitStale,
    Abandon,
    Decide,
    Snapshot,
    /// The host restarts, from the journal if the test requires it.
    Restart,
}

pub fn server(at: usize) -> impl Strategy<Value = ServerSpec> {
    let devices = prop_oneof![
        2 => Just((Vec::new(), 0)),
        // The manager picks devices itself.
        1 => (1_i64..=4).prop_map(|gpus| (Vec::new(), gpus)),
        4 => vec(select(vec!["gpu", "gpu:a100", "gpu:v100"]), 1..=4).prop_map(|kinds| (kinds, 0)),
    ];
    let hosts = select(vec![None, None, None, Some("workers"), Some("servers")]);
    let path = (select(vec![None, Some("b1"), Some("b2")]), select(vec![None, Some("r1"), Some("r1"), Some("r2")]));
    let data = (select(vec![None, Some("upload"), Some("upload.near")]), select(vec![None, None, Some("16MiB")]), path);
    (devices, 2_i64..=16, 4_i64..=64, 0..5_usize, hosts, prop::bool::weighted(0.1), data).prop_map(
        move |((kinds, gpus), cpus, gib, zone, hosts, draining, (upload, storage, (block, rack)))| {
            let mut capacity = amounts(&[("cpu", cpus * 1000), ("memory", gib * 1024), ("bandwidth", 10_000)]);
            if gpus > 0 {
                capacity.insert("gpu".into(), gpus * 1000);
            }
            let zone = ["a", "b", "cloud"].get(zone).map(|zone| ("zone".to_owned(), (*zone).to_owned()));
            let hosts = hosts.map(|hosts| ("hosts".to_owned(), hosts.to_owned()));
            let upload = upload.map(|label| (label.to_owned(), "40s".to_owned()));
            let storage = storage.map(|storage| ("storage".to_owned(), storage.to_owned()));
            let block = block.map(|block| ("block".to_owned(), block.to_owned()));
            let rack = rack.map(|rack| ("rack".to_owned(), rack.to_owned()));
            ServerSpec {
                name: format!("s{at}"),
                capacity,
                devices: kinds.into_iter().map(str::to_owned).collect(),
                labels: zone.into_iter().chain(hosts).chain(upload).chain(storage).chain(block).chain(rack).collect(),
                draining,
            }
        },
    )
}

pub fn servers() -> impl Strategy<Value = Vec<ServerSpec>> {
    (1..=6_usize).prop_flat_map(|count| (0..count).map(server).collect::<Vec<_>>())
}

pub fn job() -> impl Strategy<Value = JobSpec> {
    let counts = || (1..=2_u32, 0..=3_u32, 0..=3_u32);
    let worker = (
        select(vec![("cpu", 0), ("gpu", 1000), ("gpu", 1000), ("gpu", 2000), ("gpu", 300), ("gpu", 500)]),
        select(vec!["", "", "", ":a100", ":v100", ":v100|a100", ":a100|h100", ":*"]),
        select(vec![500_i64, 1000, 2000, 4000]),
        0..=6_i64,
    );
    let near = [None, None, None, Some(Topology::REQUIRE), Some(Topology::PREFER)];
    let near = (select(near.to_vec()), select(vec!["zone", "block", "rack", "rack", "server"]));
    let zone = select(vec![None, None, None, Some("a"), Some("b"), Some("x")]);
    let sizes =
        select(vec![None, None, None, None, Some("multiples of 2"), Some("powers of 2"), Some("1,4"), Some("2,5")]);
    let who = (0..3_usize, 0..3_usize, -1..=1_i32, zone, near, (sizes, prop::bool::weighted(0.1)));
    let how = (
        select(vec![TrainingMode::Sync, TrainingMode::Sync, TrainingMode::Async, TrainingMode::AllReduce]),
        select(vec![Resize::Any, Resize::Any, Resize::Workers, Resize::Fixed]),
        select(vec![None, None, None, Some(1_000), Some(500_000)]),
        select(vec![None, Some(20_000)]),
        any::<bool>(),
        prop::bool::weighted(0.25),
    );
    let worth = (
        option::of(select(vec![
            UtilityKind::Sigmoid,
            UtilityKind::Sigmoid,
            UtilityKind::Constant,
            UtilityKind::Linear,
            UtilityKind::Step,
        ])),
        (0.0..=100.0_f64, 0.0..=6.0_f64, 0..=86_400_i64),
        (1..=6_u32, 1..=30_u32, 1..=6_u32, option::weighted(0.8, 1..=40_i64)),
    );
    // Sometimes a demand that no server can hold.
    let impossible = prop::bool::weighted(0.03);
    let training = (select(&StopChoice::ALL[..]), select(&StopChoice::ALL[..]), option::of(0.1..1.0_f64), 0..4_u32);
    let rest = (impossible, training);
    (counts(), counts(), worker, who, how, rest, worth).prop_map(|(w, p, worker, who, how, rest, worth)| {
        let (impossible, (stop, under_load, accuracy, parts)) = rest;
        let (kind_of_utility, (value, decay, target), (chunks, batches_per_chunk, epochs, batch_time)) = worth;
        let ((gpu, milli), kind, cpu, gib) = worker;
        let gpu = if gpu == "gpu" { format!("gpu{kind}") } else { gpu.to_owned() };
        let mut demand = amounts(&[("cpu", cpu), ("memory", if impossible { 1 << 30 } else { gib * 1024 })]);
        if milli > 0 {
            demand.insert(gpu, milli);
        }
        let of = |(min, extra, requested): (u32, u32, u32)| (min, min + extra, min + requested.min(extra));
        let ((wmin, wmax, wreq), (pmin, pmax, preq)) = (of(w), of(p));
        let (tenant, queue, priority, zone, (near, level), (sizes, is_cut)) = who;
        let zone = zone.map(|zone| ("zone".to_owned(), zone.to_owned()));
        let near = near.map(|label| (label.to_owned(), level.to_owned()));
        let (mode, resize, limit, restart, profiled, apart) = how;
        let ps = mode != TrainingMode::AllReduce;
        let mut worker = role(&[], wmin, wmax, wreq);
        worker.demand = demand;
        let partitions = if resize == Resize::Fixed && worker.requested.is_multiple_of(parts.max(1)) {
            Partition::chain(parts)
        } else {
            Vec::new()
        };
        let stop = if accuracy.is_none() { stop.min(StopChoice::Optimal) } else { stop };
        let profile = [(1, 1, 1.0), (2, 1, 1.7), (1, 2, 1.2), (2, 2, 1.9), (4, 2, 3.0), (4, 4, 3.5)];
        let spec = JobSpec {
            model: format!("model{tenant}"),
            tenant: ["default", "t1", "t2"][tenant].into(),
            queue: ["default", "q1", "q2"][queue].into(),
            priority,
            resize,
            mode,
            worker,
            server: ps.then(|| role(&[("cpu", cpu), ("memory", 1024)], pmin, pmax, preq)),
            separate_roles: ps && apart,
            labels: zone.into_iter().chain(near).collect(),
            utility: kind_of_utility.map(|kind| Utility {
                value,
                decay,
                target: Span::seconds(target),
                ..Utility::new(kind)
            }),
            dataset: Some(Dataset {
                chunks,
                batches_per_chunk,
                epochs,
                batch_time: batch_time.map(Span::seconds),
                upload: if apart { "near".into() } else { String::new() },
                chunk_size: 2 * i64::from(chunks),
            }),
            deadline: limit.map(|limit| Span(3 * limit)),
            urgency: accuracy.map(|accuracy| (accuracy * 10.0) as u32),
            accuracy,
            stop,
            stop_under_load: under_load.max(stop),
            partitions,
            time_limit: limit.map(Span),
            restart_cost: restart.map(Span),
            profile: profile
                .iter()
                .filter(|_| profiled)
                .map(|&(w, p, speed)| ProfiledSpeed { workers: w, servers: if ps { p } else { 0 }, speed })
                .collect(),
            ..JobSpec::minimal("unnamed")
        };
        with_sizes(spec, sizes, is_cut)
    })
}

/// The job with sizes, if it can have them. Engines that dispatch data chunks don't know sizes.
fn with_sizes(spec: JobSpec, sizes: Option<&str>, is_cut: bool) -> JobSpec {
    let mut sized = JobSpec { dataset: None, ..spec.clone() };
    let sizes = sizes.map(|sizes| ("worker.sizes".to_owned(), sizes.to_owned()));
    let cut = is_cut.then(|| ("parallel.tp".to_owned(), "2".to_owned()));
    sized.labels.extend(sizes.into_iter().chain(cut));
    if sized.labels == spec.labels {
        return spec;
    }
    let worker = &sized.worker;
    let requested = (worker.requested..=worker.max).find(|workers| sized.sizes().has(*workers));
    let Some(requested) = requested else { return spec };
    sized.worker.requested = requested;
    if !sized.partitions.is_empty() && !(requested as usize).is_multiple_of(sized.partitions.len()) {
        sized.partitions.clear();
    }
    sized
}

/// A job that the engine usually accepts.
fn job_for(entry: &'static Entry) -> impl Strategy<Value = JobSpec> {
    (job(), prop::bool::weighted(0.1)).prop_map(move |(mut spec, refused)| {
        if entry.name == "edge" && !refused {
            let kind = spec.worker.demand.keys().find(|name| name.starts_with("gpu")).cloned();
            spec.worker.demand.insert(kind.unwrap_or_else(|| "gpu".into()), 1000);
            spec.worker.min = 1;
            spec.resize = if spec.resize == Resize::Fixed { Resize::Workers } else { spec.resize };
            if spec.server.is_none() {
                (spec.mode, spec.server) = (TrainingMode::Sync, Some(role(&[("cpu", 500)], 1, 1, 1)));
                spec.profile.clear();
            }
        }
        spec
    })
}

/// Settings for an engine, with random flags.
pub fn settings(entry: &'static Entry, shape_rules: bool) -> impl Strategy<Value = Settings> {
    let limit = |name: &'static str| {
        prop_oneof![
            3 => Just(BTreeMap::new()),
            1 => (0..=6_i64, 2..=20_i64).prop_map(move |(gpu, cpu)| {
                BTreeMap::from([(name.to_owned(), amounts(&[("gpu", gpu * 500), ("cpu", cpu * 1000)]))])
            }),
        ]
    };
    let stability = (any::<bool>(), select(vec![0_i64, 60, 300]), 0..4_u32).prop_map(|(enabled, min_run, budget)| {
        Stability { enabled, min_run: Span::seconds(min_run), rescales_per_hour: budget, payback: 2.0 }
    });
    let flags: Vec<&str> = entry
        .parameters()
        .iter()
        .filter(|parameter| matches!(parameter.default, DefaultValue::Flag(_)))
        .map(|parameter| parameter.name)
        .collect();
    // The rules must hold with short searches, early batches and low age thresholds.
    let least = [("nodes", 0), ("batch_jobs", 1), ("thresholds", 1), ("generations", 0)];
    let least = least.into_iter().find(|(name, _)| entry.has(name));
    let flags = (vec(any::<bool>(), flags.len()), 0..4_u8).prop_map(move |(on, few)| {
        let flags = flags.iter().zip(on).map(|(name, on)| ((*name).to_owned(), Parameter::Flag(on)));
        let few = least.map(|(name, least)| (name.to_owned(), Parameter::Number((least + few).into())));
        flags.chain(few).collect::<BTreeMap<_, _>>()
    });
    let rules = if shape_rules { (any::<bool>(), any::<bool>()).boxed() } else { Just((false, true)).boxed() };
    let oversubscribe = select(vec![1000, 1000, 1000, 1500, 3000]);
    (stability, flags, limit("q1"), limit("t1"), (any::<(bool, bool)>(), oversubscribe), 1..4_u32, rules).prop_map(
        move |(
            stability,
            parameters,
            queues,
            tenants,
            ((grow_in_place, early_stop), oversubscribe),
            refusals,
            rules,
        )| {
            let (equal_per_server, colocate) = rules;
            Settings {
                engine: entry.name.into(),
                parameters,
                stability,
                queues,
                tenants,
                shape: ShapeRules { equal_per_server, colocate, grow_in_place, oversubscribe },
                early_stop,
                refusals,
                refusal_backoff: Span::seconds(2),
                seed: 7,
                ..Settings::default()
            }
        },
    )
}

fn report() -> impl Strategy<Value = Report> {
    let odd = |usual: std::ops::Range<i64>| prop_oneof![8 => usual, 1 => select(vec![0, -1, i64::MAX, i64::MIN])];
    let loss = prop_oneof![8 => (0.1..3.0_f64).prop_map(Some), 1 => Just(None), 1 => select(vec![
        Some(f64::NAN), Some(f64::INFINITY), Some(-1.0), Some(f64::MAX), Some(0.0)])];
    let counts = prop_oneof![8 => (1..8_u32, 0..4_u32), 1 => select(vec![(0, 0), (u32::MAX, u32::MAX), (1, 0)])];
    let steps = prop_oneof![8 => (1..500_u32, 1..50_u64), 1 => select(vec![(0, 0), (u32::MAX, u64::MAX)])];
    let restart = prop_oneof![4 => Just(None), 1 => odd(0..60_000).prop_map(|ms| Some(Span(ms)))];
    let times = vec((0..6_u32, prop_oneof![8 => 1.0..500.0_f64, 1 => Just(f64::NAN)]), 0..4);
    (loss, counts, steps, restart, odd(1..100_000), times, 0..30_u32).prop_map(
        |(loss, (workers, servers), (steps, steps_per_epoch), restart, duration, slot_times, epoch)| Report {
            seq: 0,
            step: 0,
            epoch,
            steps_per_epoch,
            loss,
            accuracy: loss.map(|loss| loss / 4.0),
            steps,
            duration: Span(duration),
            workers,
            servers,
            slot_times,
            restart,
            chunks: if epoch % 3 == 0 { vec![epoch / 3 % 7] } else { Vec::new() },
        },
    )
}

fn step(entry: &'static Entry, shape_rules: bool) -> impl Strategy<Value = Step> {
    let end = select(vec![End::Completed, End::Failed, End::Cancelled, End::Stopped]);
    let foreign = (0..6_usize, select(vec![0, 0, 500, 1000, 4000]), select(vec![0, 0, 1000, 8000, 64_000]));
    prop_oneof![
        6 => select(vec![0, 1, 1000, 5000, 61_000, 301_000, 700_000, 4_000_000]).prop_map(Step::Advance),
        8 => job_for(entry).prop_map(|spec| Step::Submit(Box::new(spec))),
        3 => (any::<usize>(), end).prop_map(|(job, end)| Step::End(job, end)),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(job, held)| Step::Hold(job, held)),
        4 => (any::<usize>(), report(), prop::bool::weighted(0.1))
            .prop_map(|(job, report, stale)| Step::Report(job, Box::new(report), stale)),
        1 => any::<usize>().prop_map(Step::ServerLost),
        3 => (any::<usize>(), select(vec![0_i64, 2, 4, 8, 8, 8]), prop::bool::weighted(0.2), 0..3_usize)
            .prop_map(|(server, eighths, draining, fewer)| Step::ServerSet(server, eighths, draining, fewer)),
        2 => (foreign, select(vec![0_u16, 0, 500, 1000]))
            .prop_map(|((s, gpu, cpu), share)| Step::Foreign(s, gpu, cpu, share)),
        3 => (any::<usize>(), 0..130_i64, 0..=100_i64)
            .prop_map(|(server, used, ours)| Step::Measure(server, used, ours)),
        1 => settings(entry, shape_rules).prop_map(|settings| Step::Configure(Box::new(settings))),
        1 => select(vec![Mode::Active, Mode::Active, Mode::Shadow, Mode::Paused]).prop_map(Step::Mode),
        1 => (any::<u8>(), any::<u8>(), any::<bool>())
            .prop_map(|(s, j, owns)| Step::Resync(s & s >> 3, j & j >> 2, owns)),
        16 => any::<u32>().prop_map(Step::Manage),
        16 => any::<u32>().prop_map(Step::Deliver),
        3 => Just(Step::Prepare),
        3 => prop_oneof![6 => Just(None), 1 => (0..20_u64).prop_map(Some)].prop_map(Step::Commit),
        1 => Just(Step::CommitStale),
        1 => Just(Step::Abandon),
        10 => Just(Step::Decide),
        1 => Just(Step::Snapshot),
        1 => Just(Step::Restart),
    ]
}

/// A random scenario for one engine.
pub fn scenario(entry: &'static Entry, shape_rules: bool, steps: usize) -> impl Strategy<Value = Scenario> {
    (settings(entry, shape_rules), servers(), vec(step(entry, shape_rules), 1..steps))
        .prop_map(|(settings, servers, steps)| Scenario { settings, servers, steps })
}

//! What the C functions add to a decision on 4,000 jobs: the same events and calls, by the Rust API and by the C
//! functions, in turn. CPU time is the wall clock's here, so look at the ratio: `cargo bench -p trainmaster-ffi`.

use std::{ptr, time::Instant};

use trainmaster::{event::*, job::*, plan::*, scheduler::*, server::*, text::*, ticket::*};
use trainmaster_core::{Event, JobSpec, Scheduler, ServerSpec, Settings, Time, TrainingMode, Verdict, job::RoleSpec};

const JOBS: usize = 4_000;
const SERVERS: usize = 4_000;
const ROUNDS: usize = 9;
const SETTINGS: &str = "engine = \"optimus\"\nstability = \"off\"";

/// Milliseconds of loading, deciding and reading what managers are told; and the slots they are told of.
type Times = ([f64; 3], usize);

fn time<T>(into: &mut f64, body: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = body();
    *into = begun.elapsed().as_secs_f64() * 1e3;
    result
}

fn by_rust() -> Times {
    let mut times = [0.0; 3];
    let mut scheduler = Scheduler::new(Settings::from_toml(SETTINGS).unwrap()).unwrap();
    time(&mut times[0], || {
        for at in 0..SERVERS {
            let server = ServerSpec {
                name: format!("node{at}"),
                capacity: [("cpu".to_owned(), 16_000), ("memory".to_owned(), 65_536)].into(),
                devices: vec!["gpu".into(); 4],
                ..ServerSpec::default()
            };
            scheduler.apply(Time(0), Event::ServerSet { manager: "m".into(), server }).unwrap();
        }
        for at in 0..JOBS {
            let worker = RoleSpec::of(&[("gpu", 1000), ("cpu", 4000)], 1..=8, 1);
            let mode = TrainingMode::AllReduce;
            let spec = Box::new(JobSpec { worker, server: None, mode, ..JobSpec::minimal(&format!("job{at}")) });
            scheduler.apply(Time(1), Event::JobSubmitted { spec, external: None, token_hash: None }).unwrap();
        }
    });
    time(&mut times[1], || scheduler.decide(Time(2)));
    let slots = time(&mut times[2], || {
        let issues = scheduler.take_issues();
        let state = scheduler.state();
        let runs = issues.iter().filter_map(|issue| match &issue.verdict {
            Verdict::Run(allocation) => Some(allocation),
            _ => None,
        });
        runs.flat_map(|run| run.slots()).filter(|slot| !state.server_name(slot.server).is_empty()).count()
    });
    (times, slots)
}

fn text(of: &str) -> trainmaster_string {
    trainmaster_string { data: of.as_ptr().cast(), length: of.len() as u64 }
}

fn by_c() -> Times {
    let mut times = [0.0; 3];
    let mut slots = 0;
    let none = ptr::null_mut();
    // SAFETY: zero is a valid value of every struct of the header; everything that is pointed to outlives the calls.
    unsafe {
        let mut scheduler = ptr::null_mut();
        assert_eq!(trainmaster_scheduler_new(text(SETTINGS), &mut scheduler, none), 0);
        let apply = |event: trainmaster_event| {
            let stride = size_of::<trainmaster_event>() as u64;
            assert_eq!(trainmaster_scheduler_apply(scheduler, &event, 1, stride, ptr::null_mut(), none), 0);
        };
        let event = |kind: trainmaster_event_kind| {
            let mut event: trainmaster_event = std::mem::zeroed();
            (event.size, event.kind) = (size_of::<trainmaster_event>() as u32, kind as u32);
            event
        };
        let amounts = |list: &[trainmaster_amount]| trainmaster_amounts {
            data: list.as_ptr(),
            count: list.len() as u64,
            stride: size_of::<trainmaster_amount>() as u64,
        };
        let amount = |name, value| trainmaster_amount { name: text(name), value };
        time(&mut times[0], || {
            for at in 0..SERVERS {
                let name = format!("node{at}");
                let capacity = [amount("cpu", 16_000), amount("memory", 65_536)];
                let kinds = [text("gpu"); 4];
                let mut server: trainmaster_server = std::mem::zeroed();
                server.size = size_of::<trainmaster_server>() as u32;
                server.name = text(&name);
                server.capacity = amounts(&capacity);
                server.devices = trainmaster_strings { data: kinds.as_ptr(), count: 4, stride: 16 };
                apply(trainmaster_event {
                    manager: text("m"),
                    server: &server,
                    ..event(trainmaster_event_kind::ServerSet)
                });
            }
            for at in 0..JOBS {
                let name = format!("job{at}");
                let demand = [amount("gpu", 1000), amount("cpu", 4000)];
                let mut worker: trainmaster_role = std::mem::zeroed();
                (worker.size, worker.max) = (size_of::<trainmaster_role>() as u32, 8);
                worker.demand = amounts(&demand);
                let mut job: trainmaster_job = std::mem::zeroed();
                (job.size, job.mode) =
                    (size_of::<trainmaster_job>() as u32, trainmaster_training_mode::Allreduce as u32);
                (job.name, job.batch, job.worker) = (text(&name), 256, &worker);
                apply(trainmaster_event { at: 1, submitted: &job, ..event(trainmaster_event_kind::JobSubmitted) });
            }
        });
        let mut decision = ptr::null();
        time(&mut times[1], || assert_eq!(trainmaster_scheduler_decide(scheduler, 2, &mut decision, none), 0));
        let mut plan = ptr::null();
        time(&mut times[2], || {
            assert_eq!(trainmaster_scheduler_take_issues(scheduler, &mut plan, none), 0);
            let verdicts = (*plan).verdicts;
            for verdict in std::slice::from_raw_parts(verdicts.data, verdicts.count as usize) {
                let slot = |at| &*verdict.slots.data.add(at);
                slots += (0..verdict.slots.count as usize).filter(|at| slot(*at).server.length > 0).count();
            }
        });
        trainmaster_plan_free(plan);
        trainmaster_decision_free(decision);
        trainmaster_scheduler_free(scheduler);
    }
    (times, slots)
}

fn main() {
    let mut all = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        let (rust, c) = (by_rust(), by_c());
        assert!(rust.1 == c.1 && rust.1 > JOBS, "{} and {} slots", rust.1, c.1);
        all[0].push(rust.0);
        all[1].push(c.0);
    }
    let median = |times: &[[f64; 3]], at: usize| {
        let mut each: Vec<f64> = times.iter().map(|times| times[at]).collect();
        each.sort_unstable_by(f64::total_cmp);
        each[each.len() / 2]
    };
    println!("{JOBS} jobs on {SERVERS} servers, medians of {ROUNDS} rounds in turn");
    for (at, what) in ["8,000 events", "decide", "take_issues and read them"].iter().enumerate() {
        let (rust, c) = (median(&all[0], at), median(&all[1], at));
        println!("{what:28} Rust {rust:7.2} ms   C {c:7.2} ms   ratio {:.2}", c / rust);
    }
}

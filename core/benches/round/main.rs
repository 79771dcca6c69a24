//! Benchmark of one round of `optimus-paper` or `goodput` at 4,000 jobs, about 100,000 tasks and 16,000 servers, at a
//! tenth and five times that (more servers than 100,000 are refused), and with 100 jobs on 68 GPUs.
//!
//! Cold: the state is loaded; memo, index and plan are empty. Steady: the plan runs, then 1 % of the jobs change. Both
//! include the guard, the delta and the encoded journal record. Fits are reported separately, and nothing is synced to
//! disk. `plain` is the best plain algorithm that we could write for the same allocation and placement (packed arrays,
//! one binary heap, servers in a sorted array, no index, no guard, no delta), measured in the same run. Times are CPU
//! time of one thread, so that other processes on the machine only affect them through caches.
//!
//! The digests on the standard error stream show whether two builds decide the same.
//!
//! `cargo bench -p trainmaster-core --bench round` prints the table; `-- --scale 1 --repeat 9` runs one size, `--small`
//! 100 jobs, `--engine goodput` that engine. `--with types`, `racks`, `in-racks`, `sizes`, `batches`, `all-reduce` or
//! `all`: the scheduler also chooses each job's type of GPU or its rack, the servers are in racks for which no job
//! asks, jobs run only with even numbers of workers, the scheduler chooses the batch of every second job (in steady
//! rounds), all jobs are all-reduce, or it chooses their types and batches, too. The plain algorithm ignores all of
//! these.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, clippy::disallowed_macros)] // a host: it measures time

#[path = "../common/mod.rs"]
mod common;
mod plain;
mod workload;

use std::{env, process::Command};

use common::{Clock, median};
use trainmaster_core::{Budget, Decision, Scheduler, Verdict};
use workload::{Kind, Workload};

fn main() {
    let args: Vec<String> = env::args().collect();
    let value =
        |name: &str| args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1)?.parse::<f64>().ok());
    let repeat = value("--repeat").map_or(7, |repeat| repeat as usize);
    let given = args.iter().position(|arg| arg == "--with").and_then(|at| args.get(at + 1));
    let kind = Kind::ALL.into_iter().find(|(name, _)| given.is_some_and(|given| given == name));
    let kind = kind.map_or(Kind::Plain, |(_, kind)| kind);
    let engine = if args.iter().any(|arg| arg == "goodput") { "goodput" } else { "optimus-paper" };
    if args.iter().any(|arg| arg == "--small") {
        measure(&Workload::small(kind, engine), repeat);
    } else if let Some(scale) = value("--scale") {
        measure(&Workload::new(scale, kind, engine), repeat);
    } else {
        println!(
            "| engine | jobs | tasks | servers | round | total ms | prepare | engine | guard | commit (delta, journal, \
             issue) | changes | record KiB | plain ms | total / plain | engine / plain | peak MiB |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
        for arguments in RUNS {
            // One process per run, so that each has its own peak memory.
            let program = env::current_exe().expect("this program has a path");
            let run = Command::new(program).args(arguments.split(' ')).args(["--repeat", &repeat.to_string()]).status();
            assert!(run.is_ok_and(|status| status.success()), "the run with {arguments} failed");
        }
    }
}

/// The rows of the table.
const RUNS: [&str; 14] = [
    "--scale 0.1",
    "--scale 1",
    "--scale 5",
    "--scale 1 --with types",
    "--scale 1 --with in-racks",
    "--scale 1 --with racks",
    "--scale 1 --with sizes",
    "--scale 1 --with batches",
    "--engine goodput --scale 1",
    "--engine goodput --scale 1 --with all-reduce",
    "--engine goodput --scale 1 --with batches",
    "--engine goodput --scale 1 --with all",
    "--engine goodput --scale 5 --with all-reduce",
    "--engine goodput --small --with all",
];

/// Milliseconds of each part of a round.
#[derive(Clone, Copy, Default)]
struct Parts {
    prepare: f64,
    engine: f64,
    guard: f64,
    commit: f64,
}

impl Parts {
    fn total(&self) -> f64 {
        self.prepare + self.engine + self.guard + self.commit
    }
}

fn round(scheduler: &mut Scheduler, at: trainmaster_core::Time) -> (Parts, Decision, usize) {
    let clock = Clock::start();
    let ticket = scheduler.prepare(at);
    let prepare = clock.ms();
    let clock = Clock::start();
    let outcome = ticket.run(Budget::UNLIMITED);
    let run = clock.ms();
    // The guard is part of `run`. Another check of the same proposal measures its part.
    let clock = Clock::start();
    scheduler.check(outcome.proposal().expect("the round succeeds")).expect("the proposal is good");
    let guard = clock.ms();
    let clock = Clock::start();
    let decision = scheduler.commit(at, outcome).expect("no other ticket is open");
    let record: usize = scheduler.drain_journal().iter().map(Vec::len).sum();
    let commit = clock.ms();
    (Parts { prepare, engine: run - guard, guard, commit }, decision, record)
}

fn measure(workload: &Workload, repeat: usize) {
    let Workload { jobs, servers, kind, engine } = *workload;
    // Cold and plain rounds alternate, so that noise of the machine affects both.
    let (mut cold, mut plain, mut loads, mut fits) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut last = None;
    for _ in 0..repeat {
        let clock = Clock::start();
        let mut scheduler = workload.load();
        loads.push(clock.ms());
        let clock = Clock::start();
        while let Some(ticket) = scheduler.prepare_fits(workload.time(0)) {
            scheduler.commit_fits(workload.time(0), ticket.run()).expect("no other fit ticket is open");
        }
        fits.push(clock.ms());
        let input = plain::Input::of(scheduler.state());
        scheduler.start_journal();
        drop(scheduler.drain_journal());
        let (parts, decision, record) = round(&mut scheduler, workload.time(1));
        cold.push(parts);
        last = Some((scheduler, decision, record));
        let clock = Clock::start();
        let placed = plain::round(&input);
        plain.push(clock.ms());
        let (_, decision, _) = last.as_ref().expect("just set");
        // The plain algorithm tries one list of servers and one distribution of remainders, so it pauses a few jobs
        // more.
        let ours = tasks(decision);
        assert!(
            kind != Kind::Plain || engine == "goodput" || (placed <= ours && placed * 100 > ours * 97),
            "the plain algorithm places {placed} tasks, the engine {ours}"
        );
    }
    let (name, _) = Kind::ALL.into_iter().find(|(_, of)| *of == kind).expect("one of them");
    let named = |round: &str| if kind == Kind::Plain { round.to_owned() } else { format!("{round}, {name}") };
    let (mut scheduler, decision, record) = last.expect("at least one run");
    let plain_ms = median(&plain);
    let digest =
        |scheduler: &Scheduler| scheduler.digest()[..4].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let cold_digest = digest(&scheduler);
    let size = format!("{engine} | {jobs} | {} | {servers}", tasks(&decision));
    row(&size, &named("cold"), &cold, decision.changes.len(), record, plain_ms);

    workload.observe_all(&mut scheduler);
    workload.report_noise(&mut scheduler);
    let (mut steady, mut changes, mut record) = (Vec::new(), 0, 0);
    for turn in 0..repeat as i64 {
        workload.change_one_percent(&mut scheduler, turn);
        drop(scheduler.drain_journal());
        let (parts, decision, bytes) = round(&mut scheduler, workload.time(10 + 10 * turn));
        workload.observe_all(&mut scheduler);
        steady.push(parts);
        (changes, record) = (decision.changes.len(), bytes);
    }
    row(&size, &named("steady"), &steady, changes, record, plain_ms);
    eprintln!(
        "  {jobs} jobs: loading the state took {:.0} ms, fitting all of them {:.0} ms; decisions {cold_digest}, {}",
        median(&loads),
        median(&fits),
        digest(&scheduler),
    );
}

fn row(size: &str, kind: &str, runs: &[Parts], changes: usize, record: usize, plain: f64) {
    let part = |get: fn(&Parts) -> f64| median(&runs.iter().map(get).collect::<Vec<_>>());
    let (total, engine) = (part(Parts::total), part(|parts| parts.engine));
    println!(
        "| {size} | {kind} | {total:.2} | {:.2} | {engine:.2} | {:.2} | {:.2} | {changes} | {} | \
         {plain:.2} | {:.2} | {:.2} | {} |",
        part(|parts| parts.prepare),
        part(|parts| parts.guard),
        part(|parts| parts.commit),
        record / 1024,
        total / plain,
        engine / plain,
        peak_mib(),
    );
}

fn tasks(decision: &Decision) -> usize {
    decision
        .changes
        .iter()
        .filter_map(|(_, verdict)| if let Verdict::Run(a) = verdict { Some(a.slots().len()) } else { None })
        .sum()
}

/// Largest resident size of this process so far.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).map_or(0, |kib| kib / 1024)
}

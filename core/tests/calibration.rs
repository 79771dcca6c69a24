//! The workload `pollux` against the average completion times that Pollux's authors published for its files: with a
//! plain program of their Tiresias's rules, which uses nothing of the scheduler, and with the engine `tiresias`.

#![allow(clippy::disallowed_macros)] // tests print what they measure

use std::collections::BTreeMap;

use crate::fit_data::{columns, mean, shared};
use trainmaster_core::{
    Allocation, Devices, Role, ServerId, Settings, Slot, Span,
    settings::{Parameter, Stability},
};
use trainmaster_sim::{Options, SimJob, Workload, play, workload::pollux};

/// Where the files of a load are.
const LOADS: [(&str, &str); 4] =
    [("0.5", "workloads-0.5"), ("1.0", "workloads"), ("1.5", "workloads-1.5"), ("2.0", "workloads-2.0")];
const SERVERS: usize = 16;
const GPUS: u32 = 4;

/// The four files of a load with their published averages, in seconds.
fn files(load: &str, folder: &str) -> Option<Vec<(Workload, f64)>> {
    let published =
        columns(&shared("traces/pollux/published_average_jct.csv")?, ["policy", "load", "workload", "average_jct_s"]);
    let files = (1..=4).map(|number| {
        let name = format!("workload-{number}");
        let path = shared(&format!("traces/pollux/{folder}/{name}.csv"))?;
        let rows = columns(&path, ["time", "name", "application", "num_replicas", "batch_size"]);
        let rows: Vec<pollux::Row> = rows
            .into_iter()
            .map(|[time, name, application, replicas, batch]| pollux::Row {
                name,
                time: Span::from_seconds(time.parse().unwrap()),
                application,
                replicas: replicas.parse().unwrap(),
                batch: batch.parse().unwrap(),
            })
            .collect();
        let of = |row: &&[String; 4]| row[0] == "tiresias" && row[1] == load && row[2] == name;
        let average = published.iter().find(of).unwrap()[3].parse().unwrap();
        Some((pollux::from_rows(&rows, None).unwrap(), average))
    });
    files.collect()
}

/// What the plain program knows of a job.
struct Running<'a> {
    job: &'a SimJob,
    steps_left: f64,
    /// Seconds with GPUs, restarts included.
    held: f64,
    /// Seconds until it trains again.
    restart: f64,
    /// The server of each worker, while it runs.
    servers: Option<Vec<usize>>,
}

impl Running<'_> {
    fn gpus(&self) -> u32 {
        self.job.spec.worker.requested
    }

    fn steps_per_second(&self, servers: &[usize]) -> f64 {
        let slot = |(index, server): (u32, &usize)| Slot {
            role: Role::Worker,
            index,
            server: ServerId(*server as u32),
            devices: Devices::default(),
        };
        let allocation = Allocation::new((0..).zip(servers).map(slot).collect());
        self.job.truth.speed.of(&self.job.spec, &allocation, false, &[])
    }
}

/// Average completion time in seconds. Every minute, jobs get their requested GPUs in the order of arrival, those with
/// less than 16 GPU-hours first. A job starts on the servers with most free GPUs, and a start takes 30 s.
fn tiresias(jobs: &[SimJob]) -> f64 {
    const ROUND: f64 = 60.0;
    assert!(jobs.iter().all(|job| job.spec.worker.requested <= SERVERS as u32 * GPUS), "one would wait for ever");
    let mut coming = jobs.iter();
    let mut next = coming.next();
    // By arrival, and those that were demoted, by the time of that.
    let (mut young, mut old): (Vec<Running<'_>>, Vec<Running<'_>>) = (Vec::new(), Vec::new());
    let (mut now, mut times) = (0.0, Vec::new());
    while next.is_some() || !young.is_empty() || !old.is_empty() {
        for job in young.iter_mut().chain(&mut old) {
            let Some(servers) = &job.servers else { continue };
            let wait = job.restart.min(ROUND);
            let steps = job.steps_per_second(servers) * (ROUND - wait);
            if job.steps_left <= steps {
                let end = now + wait + ROUND.min(job.steps_left / steps * (ROUND - wait));
                times.push(end - job.job.arrival.0 as f64 / 1000.0);
            }
            (job.steps_left, job.restart, job.held) = (job.steps_left - steps, job.restart - wait, job.held + ROUND);
        }
        now += ROUND;
        young.retain(|job| job.steps_left > 0.0);
        old.retain(|job| job.steps_left > 0.0);
        old.extend(young.extract_if(.., |job| job.held * f64::from(job.gpus()) >= 16.0 * 3600.0));
        while let Some(job) = next.filter(|job| job.arrival.0 as f64 / 1000.0 <= now) {
            let steps = f64::from(job.spec.convergence.max_epochs) * job.truth.steps_per_epoch(&job.spec) as f64;
            young.push(Running { job, steps_left: steps, held: 0.0, restart: 0.0, servers: None });
            next = coming.next();
        }
        let mut left = SERVERS as u32 * GPUS;
        for job in young.iter_mut().chain(&mut old) {
            if job.gpus() <= left {
                left -= job.gpus();
                // To be placed, once it is known what else leaves.
                job.servers = job.servers.take().or(Some(Vec::new()));
            } else {
                job.servers = None;
            }
        }
        let mut free = [GPUS; SERVERS];
        let placed = young.iter().chain(&old).filter_map(|job| job.servers.as_ref()).flatten();
        placed.for_each(|server| free[*server] -= 1);
        for job in young.iter_mut().chain(&mut old) {
            let wanted = job.gpus();
            let Some(servers) = job.servers.as_mut().filter(|servers| servers.is_empty()) else { continue };
            while servers.len() < wanted as usize {
                let most = (0..SERVERS).rev().max_by_key(|server| free[*server]).unwrap();
                let taken = free[most].min(wanted - servers.len() as u32);
                servers.extend(vec![most; taken as usize]);
                free[most] -= taken;
            }
            job.restart = 30.0;
        }
    }
    mean(&times)
}

fn check(load: &str, within: f64, ratios: &[f64]) {
    println!("load {load}: {:.3} of the published average", mean(ratios));
    assert!((mean(ratios) - 1.0).abs() < within, "load {load}: {ratios:?}");
}

#[test]
fn jobs_take_as_long_as_those_of_the_authors() {
    for (load, folder) in LOADS {
        let Some(files) = files(load, folder) else { return };
        let ratio = |(workload, published): &(Workload, f64)| tiresias(&workload.jobs) / published;
        check(load, 0.05, &files.iter().map(ratio).collect::<Vec<_>>());
    }
}

#[test]
fn the_engine_takes_as_long_as_the_authors_policy() {
    let settings = Settings {
        engine: "tiresias".into(),
        parameters: BTreeMap::from([("thresholds".to_owned(), Parameter::Text("57600".into()))]),
        stability: Stability { enabled: false, ..Stability::default() },
        ..Settings::default()
    };
    let options = Options { settings, seed: 1, ..Options::default() };
    let ratio = |(workload, published): &(Workload, f64)| {
        let report = play(workload, &options, &mut ()).unwrap();
        let times: Vec<f64> = report.jobs.iter().map(|job| job.jct_s.expect("it ended")).collect();
        mean(&times) / published
    };
    for (load, folder) in LOADS {
        let Some(files) = files(load, folder) else { return };
        check(load, 0.1, &files.iter().map(ratio).collect::<Vec<_>>());
    }
}

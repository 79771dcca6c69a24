//! Properties of `pollux` and `sia` beyond the contract of engines.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::build::{cluster, gpus, plain, plain_with, ring, running, shape, submit};
use trainmaster_core::{
    JobId, JobSpec, Role, Scheduler, ServerId, Settings, Span, Time,
    job::{Convergence, ProfiledSpeed},
    settings::Parameter,
};

/// A ring job with up to `most` workers, whose step takes `time(w)` seconds, measured up to the largest number.
fn known(name: &str, most: u32, time: impl Fn(f64) -> f64) -> JobSpec {
    let speeds = (1..=most).map(|w| ProfiledSpeed { servers: 0, workers: w, speed: 1.0 / time(f64::from(w)) });
    JobSpec {
        examples: 256,
        convergence: Convergence::after(100_000),
        profile: speeds.collect(),
        restart_cost: Some(Span::seconds(30)),
        ..ring(name, (1, most, 1))
    }
}

fn workers(scheduler: &Scheduler, job: JobId) -> u32 {
    shape(scheduler, job).workers
}

/// Servers of a job's workers.
fn servers(scheduler: &Scheduler, job: JobId) -> BTreeSet<ServerId> {
    let verdict = &scheduler.state().job(job).unwrap().verdict;
    let workers = verdict.allocation().map(|allocation| allocation.of(Role::Worker)).unwrap_or_default();
    workers.iter().map(|slot| slot.server).collect()
}

#[test]
fn equal_jobs_share_the_cluster_equally() {
    for engine in ["pollux", "sia"] {
        let mut scheduler = cluster(plain(engine), &[gpus("s0", 4), gpus("s1", 4)]);
        let jobs = ["a", "b"].map(|name| submit(&mut scheduler, 0, known(name, 8, |w| 1.0 + 8.0 / w)));
        scheduler.decide(Time(0));
        assert_eq!(jobs.map(|job| workers(&scheduler, job)), [4, 4], "{engine}");
        assert!(jobs.iter().all(|job| servers(&scheduler, *job).len() == 1), "{engine}: one server each");
    }
}

/// Pollux's mean favours the job that scales, up to the point where the other one loses more. In Sia's sum the job that
/// doesn't scale adds 0.1 more if it waits, and the other one, with 8 workers instead of 4, 0.15 less.
#[test]
fn a_job_that_scales_gets_more() {
    for (engine, least) in [("pollux", 1), ("sia", 0)] {
        let mut scheduler = cluster(plain(engine), &[gpus("s0", 8)]);
        let scales = submit(&mut scheduler, 0, known("scales", 8, |w| 8.0 / w));
        let flat = submit(&mut scheduler, 0, known("flat", 8, |w| 8.0 + 0.1 / w));
        scheduler.decide(Time(0));
        let (scales, flat) = (workers(&scheduler, scales), workers(&scheduler, flat));
        assert!(scales > 2 * flat && flat >= least, "{engine}: {scales} and {flat}");
        assert!(engine == "pollux" || (scales, flat) == (8, 0), "{engine}: {scales} and {flat}");
    }
}

#[test]
fn only_twice_the_measured_workers_are_tried() {
    for engine in ["pollux", "sia"] {
        let mut scheduler = cluster(plain(engine), &[gpus("s0", 16)]);
        let mut three = known("three", 16, |w| 1.0 + 8.0 / w);
        three.profile.truncate(2);
        let [unknown, two] = [ring("unknown", (1, 16, 4)), three].map(|spec| submit(&mut scheduler, 0, spec));
        scheduler.decide(Time(0));
        assert_eq!((workers(&scheduler, unknown), workers(&scheduler, two)), (1, 4), "{engine}");
    }
}

/// After a minute a restart of 30 s costs a third of the job's time until then: more than two workers gain. After an
/// hour it costs 1 %.
#[test]
fn young_jobs_are_not_restarted_for_little() {
    for engine in ["pollux", "sia"] {
        let mut scheduler = cluster(plain(engine), &[gpus("s0", 1)]);
        let job = running(&mut scheduler, 0, known("job", 2, |w| 1.0 + 0.4 / w));
        crate::common::build::set(&mut scheduler, 50_000, gpus("s0", 2));
        scheduler.decide(Time(60_000));
        assert_eq!(workers(&scheduler, job), 1, "{engine}: 17 % faster, after a minute");
        scheduler.decide(Time(3_600_000));
        assert_eq!(workers(&scheduler, job), 2, "{engine}: after an hour");
    }
}

/// At most one job with workers on several servers uses a server.
#[test]
fn jobs_on_several_servers_avoid_each_other() {
    let all: Vec<_> = (0..4).map(|at| gpus(&format!("s{at}"), 2)).collect();
    let mut shared = 0;
    for (avoids, seed) in [(true, 1), (true, 2), (true, 3), (false, 1), (false, 2), (false, 3)] {
        let mut settings = plain_with("pollux", &[("avoid_interference", Parameter::Flag(avoids))]);
        settings.seed = seed;
        let mut scheduler = cluster(settings, &all);
        let jobs: Vec<JobId> =
            (0..3).map(|at| submit(&mut scheduler, 0, known(&format!("j{at}"), 8, |w| 8.0 / w))).collect();
        scheduler.decide(Time(0));
        let mut users: BTreeMap<ServerId, u32> = BTreeMap::new();
        for servers in jobs.iter().map(|job| servers(&scheduler, *job)).filter(|servers| servers.len() > 1) {
            servers.into_iter().for_each(|server| *users.entry(server).or_default() += 1);
        }
        let most = users.values().copied().max().unwrap_or(0);
        assert!(!avoids || most <= 1, "seed {seed}: {users:?}");
        shared += u32::from(most > 1);
    }
    assert!(shared > 0, "without the rule no two jobs shared a server either");
}

/// What `sia` chooses is as good as the best of all choices, for random step times.
#[test]
fn sia_finds_the_best_choice() {
    let mut state = 7_u64;
    let mut draw = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / (1_u64 << 31) as f64
    };
    for case in 0..20 {
        let settings = plain_with("sia", &[("nodes", Parameter::Number(1000.0)), ("gap", Parameter::Number(0.0))]);
        let mut scheduler = cluster(settings, &[gpus("s0", 8)]);
        let jobs: Vec<JobId> = (0..4)
            .map(|at| {
                let (fixed, shared) = (draw(), 10.0 * draw());
                submit(&mut scheduler, 0, known(&format!("j{at}"), 8, |w| fixed + shared / w))
            })
            .collect();
        scheduler.decide(Time(0));
        let worth = |job: JobId, workers: u32| {
            let job = scheduler.state().job(job).unwrap();
            let speed = |w: u32| job.speed(crate::common::build::wp(w, 0)).unwrap();
            if workers == 0 { 1.1 } else { (speed(1) / speed(workers)).sqrt() }
        };
        let cost = |choice: &[u32]| jobs.iter().zip(choice).map(|(job, workers)| worth(*job, *workers)).sum::<f64>();
        let sizes = [0, 1, 2, 4, 8];
        let all = (0..5_usize.pow(4)).map(|code| [0, 1, 2, 3].map(|at| sizes[code / 5_usize.pow(at) % 5]));
        let best = all.filter(|choice| choice.iter().sum::<u32>() <= 8).map(|choice| cost(&choice)).fold(9.0, f64::min);
        let chosen: Vec<u32> = jobs.iter().map(|job| workers(&scheduler, *job)).collect();
        assert!(cost(&chosen) < best + 1e-6, "case {case}: {chosen:?} costs {}, the best {best}", cost(&chosen));
    }
}

/// GPUs that a tenant may not have go to others.
#[test]
fn pollux_plans_within_limits() {
    let limits = [("small".to_owned(), [("gpu".to_owned(), 2000)].into())].into();
    let mut scheduler = cluster(Settings { tenants: limits, ..plain("pollux") }, &[gpus("s0", 8)]);
    let [small, other] = ["small", "other"].map(|tenant| {
        let spec = JobSpec { tenant: tenant.into(), ..known(tenant, 8, |w| 8.0 / w) };
        submit(&mut scheduler, 0, spec)
    });
    scheduler.decide(Time(0));
    assert_eq!((workers(&scheduler, small), workers(&scheduler, other)), (2, 6));
}

/// The search of `pollux` comes within 3 % of the best allocation of one server.
#[test]
fn pollux_finds_a_good_allocation() {
    for (seed, shared) in [(1, [2.0, 4.0, 8.0, 16.0]), (2, [0.1, 1.0, 10.0, 100.0]), (3, [5.0, 5.0, 5.0, 0.5])] {
        let mut settings = plain("pollux");
        settings.seed = seed;
        let mut scheduler = cluster(settings, &[gpus("s0", 16)]);
        let jobs: Vec<JobId> = (0..4)
            .map(|at| submit(&mut scheduler, 0, known(&format!("j{at}"), 16, |w| 1.0 + shared[at] / w)))
            .collect();
        scheduler.decide(Time(0));
        let speedup = |job: JobId, workers: u32| {
            let job = scheduler.state().job(job).unwrap();
            let speed = |w: u32| job.speed(crate::common::build::wp(w, 0)).unwrap();
            // A fair share is 4 GPUs, and a GPU a sixteenth of the only server.
            if workers == 0 { 0.0 } else { speed(workers) / speed(4) / 16.0 }
        };
        let mean = |choice: &[u32]| {
            4.0 / jobs.iter().zip(choice).map(|(job, w)| 1.0 / (speedup(*job, *w) + 1e-3)).sum::<f64>()
        };
        let mut best = 0.0_f64;
        for a in 1..=13 {
            for b in 1..=14 - a {
                for c in 1..=15 - a - b {
                    best = best.max(mean(&[a, b, c, 16 - a - b - c]));
                }
            }
        }
        let chosen: Vec<u32> = jobs.iter().map(|job| workers(&scheduler, *job)).collect();
        assert!(mean(&chosen) > 0.97 * best, "seed {seed}: {chosen:?} has {}, the best {best}", mean(&chosen));
    }
}

/// A job that needs two servers runs beside one that could take them all.
#[test]
fn pollux_finds_places_for_a_gang() {
    let mut scheduler = cluster(plain("pollux"), &[gpus("s0", 4), gpus("s1", 4), gpus("s2", 4)]);
    let elastic = running(&mut scheduler, 0, known("elastic", 12, |w| 12.0 / w));
    assert_eq!(workers(&scheduler, elastic), 12);
    let gang = JobSpec { worker: ring("gang", (8, 8, 8)).worker, ..known("gang", 8, |w| 8.0 / w) };
    let gang = submit(&mut scheduler, 7_200_000, gang);
    scheduler.decide(Time(7_200_000));
    assert_eq!((workers(&scheduler, gang), workers(&scheduler, elastic)), (8, 4));
}

//! What `optimus` adds to its paper, setting by setting, and the replacement of slow workers.

use crate::common::build::{cluster, gpus, plain, plain_with, report, ring, running, seen, shape, submit, wp};
use trainmaster_core::{
    End, Event, Incarnation, JobId, JobSpec, Report, Role, Scheduler, ServerId, ServerSpec, Slot, Span, Time,
    engine::DefaultValue,
    engines,
    job::{Convergence, Phase, ProfiledSpeed},
    settings::Parameter,
};

const ROUND: i64 = 600_000;

/// A ring job of 1,000 steps without a profile.
fn unknown(name: &str, workers: (u32, u32, u32)) -> JobSpec {
    JobSpec { examples: 256, convergence: Convergence::after(1000), ..ring(name, workers) }
}

/// A ring job of `steps` steps that take `seconds`/w.
fn known(name: &str, steps: u32, seconds: f64, workers: (u32, u32, u32)) -> JobSpec {
    let profile = (1..=8).map(|w| ProfiledSpeed { servers: 0, workers: w, speed: f64::from(w) / seconds }).collect();
    JobSpec { profile, convergence: Convergence::after(steps), ..unknown(name, workers) }
}

/// The job trains for a minute in its planned shape.
fn train(scheduler: &mut Scheduler, at: i64, job: JobId, step_time: impl Fn(f64) -> f64) {
    seen(scheduler, at, job);
    let workers = shape(scheduler, job).workers;
    let time = step_time(f64::from(workers));
    let steps = (60.0 / time).ceil() as u32;
    let duration = Span::from_seconds(f64::from(steps) * time);
    let trained = Report { seq: at as u64 + 1, step: 1, steps, duration, workers, ..Report::default() };
    report(scheduler, at, job, trained).unwrap();
}

/// The workers of a lone job in each of six rounds.
fn explored(settings: &[(&str, Parameter)], spec: JobSpec, step_time: impl Fn(f64) -> f64) -> Vec<u32> {
    let mut scheduler = cluster(plain_with("optimus", settings), &[gpus("s0", 16)]);
    let job = submit(&mut scheduler, 0, spec);
    let round = |number: i64| {
        scheduler.decide(Time(number * ROUND));
        train(&mut scheduler, number * ROUND + 1, job, &step_time);
        shape(&scheduler, job).workers
    };
    (0..6).map(round).collect()
}

#[test]
fn a_job_of_unknown_speed_tries_idle_room() {
    let spec = || JobSpec { restart_cost: Some(Span::seconds(10)), ..unknown("a", (1, 16, 2)) };
    // A step is computing alone: each try pays.
    let scales = explored(&[], spec(), |w| 20.0 / w);
    assert_eq!(scales.last(), Some(&16), "{scales:?}");
    // With each worker beyond four a step is longer than before: larger tries end, and it returns to the best.
    let most_at_four = |w: f64| 20.0 / w + 1.25 * w;
    let limited = explored(&[], spec(), most_at_four);
    assert!(limited.iter().max() > Some(&8) && (3..=5).contains(&limited[5]), "{limited:?}");
    let off = explored(&[("explore", Parameter::Flag(false))], spec(), most_at_four);
    assert!(off.iter().all(|workers| *workers == off[0]), "one shape tells nothing of others: {off:?}");
}

#[test]
fn tries_take_idle_room_only() {
    // The second job gains by each of its eight GPUs, which a try doesn't.
    let mut scheduler = cluster(plain("optimus"), &[gpus("s0", 16)]);
    let unknown = submit(&mut scheduler, 0, unknown("unknown", (1, 16, 16)));
    let known = submit(&mut scheduler, 0, known("known", 1_000_000, 100.0, (1, 8, 1)));
    scheduler.decide(Time(0));
    assert_eq!(shape(&scheduler, known), wp(8, 0));
    assert_eq!(shape(&scheduler, unknown).workers, 8);
}

#[test]
fn relative_gains_let_short_jobs_grow() {
    // 100 and 1,000 steps of 10/w seconds. The paper gives the fourth to seventh GPU to the long job, which gains more
    // seconds. In proportion to the time left, both gain the same.
    for (on, expected) in [(false, [2, 6]), (true, [4, 4])] {
        let settings = plain_with("optimus", &[("relative_gain", Parameter::Flag(on))]);
        let mut scheduler = cluster(settings, &[gpus("s0", 8)]);
        let jobs = [("short", 100), ("long", 1000)]
            .map(|(name, steps)| submit(&mut scheduler, 0, known(name, steps, 10.0, (1, 8, 1))));
        scheduler.decide(Time(0));
        assert_eq!(jobs.map(|job| shape(&scheduler, job).workers), expected, "relative_gain = {on}");
    }
}

#[test]
fn short_first_starts_the_short_job_until_the_long_one_has_waited() {
    for (on, waited, expected) in [(false, 0, [1, 0]), (true, 0, [0, 1]), (true, 3000, [1, 0])] {
        let settings = plain_with("optimus", &[("short_first", Parameter::Flag(on))]);
        let mut scheduler = cluster(settings, &[gpus("s0", 1)]);
        let long = submit(&mut scheduler, 0, known("long", 1000, 1.0, (1, 1, 1)));
        let short = submit(&mut scheduler, waited * 1000, known("short", 100, 1.0, (1, 1, 1)));
        let at = waited * 1000 + 1000;
        scheduler.decide(Time(at));
        assert_eq!([long, short].map(|job| shape(&scheduler, job).workers), expected, "{on} after {waited} s");
    }
}

#[test]
fn jobs_of_higher_priority_get_their_smallest_shape_first() {
    for engine in ["optimus", "optimus-paper"] {
        let mut scheduler = cluster(plain(engine), &[gpus("s0", 2)]);
        let spec = |name: &str, priority| JobSpec { priority, ..known(name, 100, 1.0, (1, 2, 1)) };
        let jobs = [("first", 0), ("second", -1), ("urgent", 5)]
            .map(|(name, priority)| submit(&mut scheduler, 0, spec(name, priority)));
        scheduler.decide(Time(0));
        assert_eq!(jobs.map(|job| shape(&scheduler, job).workers), [1, 0, 1], "{engine}");
    }
}

#[test]
fn units_that_no_restart_earns_go_to_others() {
    // When the third job ends, its GPUs are shared by the two others. One of them gains less than its restart costs, so
    // the other gets all.
    let settings = ["explore", "resize_in_place"].map(|name| (name, Parameter::Flag(false)));
    let mut scheduler = cluster(plain_with("optimus", &settings), &[gpus("s0", 8)]);
    let spec =
        |name: &str, cost| JobSpec { restart_cost: Some(Span::seconds(cost)), ..known(name, 1000, 1.0, (1, 8, 1)) };
    let dear = submit(&mut scheduler, 0, spec("dear", 100_000));
    let cheap = submit(&mut scheduler, 0, JobSpec { worker: ring("x", (1, 6, 1)).worker, ..spec("cheap", 1) });
    let ends = submit(&mut scheduler, 0, spec("ends", 100_000));
    scheduler.decide(Time(0));
    let before = shape(&scheduler, dear);
    scheduler.apply(Time(1), Event::JobEnded { job: ends, end: End::Completed }).unwrap();
    let gone = Event::Observed { job: ends, incarnation: Incarnation(1), slots: Vec::new(), phase: Phase::Stopped };
    scheduler.apply(Time(1), gone).unwrap();
    scheduler.decide(Time(ROUND));
    assert_eq!(shape(&scheduler, dear), before, "its restart costs more than it gains");
    assert_eq!(shape(&scheduler, cheap).workers, 8 - before.workers, "and the rest isn't left idle");
}

#[test]
fn the_papers_engine_has_none_of_the_additions() {
    let flags = |name: &str| {
        let read = engines::find(name).unwrap().parameters();
        let flags = read.into_iter().filter(|info| info.meaning.starts_with("beyond the paper"));
        flags.map(|info| (info.name, info.default == DefaultValue::Flag(true))).collect::<Vec<_>>()
    };
    assert!(flags("optimus-paper").iter().all(|(_, on)| !on));
    let on = flags("optimus").into_iter().filter(|(_, on)| *on).count();
    assert!(on >= 6, "{on} are on");
}

/// A job with four workers on two of three servers, of which worker 1 takes three times as long as the others, after
/// the next round.
fn with_a_slow_worker(grow_in_place: bool, servers: usize, restart_cost: i64) -> (Scheduler, JobId, ServerId) {
    let mut settings = plain("optimus-paper");
    settings.shape.grow_in_place = grow_in_place;
    let resize = [("resize_in_place".to_owned(), Parameter::Flag(true))];
    settings.parameters = resize.into();
    let servers: Vec<ServerSpec> = (0..servers).map(|at| gpus(&format!("s{at}"), 2)).collect();
    let mut scheduler = cluster(settings, &servers);
    let spec = JobSpec { restart_cost: Some(Span::seconds(restart_cost)), ..known("a", 10_000, 4.0, (4, 4, 4)) };
    let job = running(&mut scheduler, 0, spec);
    let slow = scheduler.state().job(job).unwrap().verdict.allocation().unwrap().of(Role::Worker)[1].server;
    for seq in 1..=3 {
        let slot_times = [(0, 1000.0), (1, 3000.0), (2, 1000.0), (3, 1100.0)].to_vec();
        let said =
            Report { seq, step: seq, steps: 1, duration: Span(3000), workers: 4, slot_times, ..Report::default() };
        report(&mut scheduler, seq as i64, job, said).unwrap();
    }
    scheduler.decide(Time(ROUND));
    (scheduler, job, slow)
}

#[test]
fn a_slow_worker_is_replaced_in_place() {
    let (mut scheduler, id, slow) = with_a_slow_worker(true, 3, 3600);
    let job = scheduler.state().job(id).unwrap();
    let workers = job.issued.allocation.as_ref().unwrap().of(Role::Worker);
    assert_eq!(workers.iter().map(|slot| slot.index).collect::<Vec<_>>(), [0, 2, 3, 4], "worker 4 comes for worker 1");
    assert_ne!(workers[3].server, slow);
    assert_eq!((job.issued.incarnation, job.issued.rescales), (Incarnation(1), 0), "it runs on");
    seen(&mut scheduler, ROUND, id);
    let slot_times = [(0, 1000.0), (2, 1000.0), (3, 1100.0), (4, 1000.0)].to_vec();
    let said = Report { seq: 4, step: 9, steps: 5, duration: Span(5000), workers: 4, slot_times, ..Report::default() };
    report(&mut scheduler, ROUND + 1, id, said).expect("worker 4 is one of its workers");
    assert!(scheduler.state().job(id).unwrap().learnt.stragglers.found.is_empty());
    // If its successors are as slow, each has to earn twice as much as the one before.
    let mut seq = 4;
    for round in 2..12 {
        let planned = scheduler.state().job(id).unwrap().issued.allocation.clone().unwrap();
        let newest = planned.of(Role::Worker)[3].index;
        seen(&mut scheduler, round * ROUND - 9, id);
        for _ in 0..3 {
            seq += 1;
            let time = |slot: &Slot| (slot.index, if slot.index == newest { 3000.0 } else { 1000.0 });
            let slot_times = planned.of(Role::Worker).iter().map(time).collect();
            let said =
                Report { seq, step: 20, steps: 5, duration: Span(15_000), workers: 4, slot_times, ..Report::default() };
            report(&mut scheduler, round * ROUND - 8, id, said).unwrap();
        }
        scheduler.decide(Time(round * ROUND));
    }
    let stragglers = &scheduler.state().job(id).unwrap().learnt.stragglers;
    assert!((2..=3).contains(&stragglers.replaced), "{stragglers:?}");
    assert_eq!(stragglers.found.len(), 1, "it is still known");
    scheduler.state().audit().unwrap();
}

#[test]
fn a_slow_worker_is_replaced_by_a_restart_that_pays() {
    // It takes about 10,000 s more, and two thirds of that are waiting for the slow worker.
    let (scheduler, id, slow) = with_a_slow_worker(false, 4, 60);
    let job = scheduler.state().job(id).unwrap();
    assert!(job.verdict.allocation().unwrap().slots().iter().all(|slot| slot.server != slow));
    assert!(job.learnt.stragglers.found.is_empty(), "the new workers weren't seen yet");
    scheduler.state().audit().unwrap();
    for (servers, cost) in [(4, 1_000_000), (2, 60)] {
        let (scheduler, id, _) = with_a_slow_worker(false, servers, cost);
        let job = scheduler.state().job(id).unwrap();
        assert_eq!(job.issued.incarnation, Incarnation(1), "{servers} servers, {cost} s");
        assert_eq!(job.learnt.stragglers.found.len(), 1);
        scheduler.state().audit().unwrap();
    }
}

//! Properties of `goodput` beyond the contract of engines.

use proptest::{collection::vec, prelude::*};

use crate::common::build::{
    cluster, gpus, plain, plain_with, report, ring, role, running, runs, seen, server, set, shape, submit, wp,
};
use crate::common::config;
use trainmaster_core::{
    End, Event, Incarnation, JobId, JobSpec, Phase, Report, Scheduler, ServerSpec, Settings, Span, Time, TrainingMode,
    job::{Convergence, ProfiledSpeed},
    settings::{Parameter, Stability},
};

/// A ring job of `steps` steps that takes `time(w)` seconds for each.
fn known(name: &str, steps: u32, workers: (u32, u32, u32), time: impl Fn(f64) -> f64) -> JobSpec {
    let speeds =
        (1..=workers.1).map(|w| ProfiledSpeed { servers: 0, workers: w, speed: 1.0 / time(f64::from(w)) }).collect();
    JobSpec {
        examples: 256,
        convergence: Convergence::after(steps),
        profile: speeds,
        restart_cost: Some(Span::seconds(10)),
        ..ring(name, workers)
    }
}

/// A job of one incarnation ends and is gone.
fn ends(scheduler: &mut Scheduler, at: i64, job: JobId) {
    scheduler.apply(Time(at), Event::JobEnded { job, end: End::Completed }).unwrap();
    gone(scheduler, at, job, 1);
}

fn gone(scheduler: &mut Scheduler, at: i64, job: JobId, incarnation: u32) {
    let incarnation = Incarnation(incarnation);
    let event = Event::Observed { job, incarnation, slots: Vec::new(), phase: Phase::Stopped };
    scheduler.apply(Time(at), event).unwrap();
}

fn workers(scheduler: &Scheduler, job: JobId) -> u32 {
    shape(scheduler, job).workers
}

/// A step takes 1 + 8/w seconds. The slopes of both speeds, 8/(w + 8)², are equal at their prices if w + 8 of the short
/// job is the long job's times the square root of the ratio of their prices, 2^price.
#[test]
fn shorter_jobs_get_more() {
    for (price, expected) in [(0.0, [8, 8]), (1.0, [11, 5]), (2.0, [13, 3])] {
        let settings = plain_with("goodput", &[("price", Parameter::Number(price))]);
        let mut scheduler = cluster(settings, &[gpus("s0", 16)]);
        let jobs = [("short", 100), ("long", 1000)]
            .map(|(name, steps)| submit(&mut scheduler, 0, known(name, steps, (1, 16, 1), |w| 1.0 + 8.0 / w)));
        scheduler.decide(Time(0));
        assert_eq!(jobs.map(|job| workers(&scheduler, job)), expected, "price {price}");
    }
}

proptest! {
    #![proptest_config(config(200))]

    /// No worker goes to a job that speeds up less by it, at its price, than another one would, whether the round
    /// computes all speeds or keeps those of the round before.
    #[test]
    fn each_worker_goes_where_it_is_worth_most(
        drawn in vec((1..20_u32, 1..50_u32, 100..10_000_u32, 1..12_u32), 2..12),
        more in 0..24_usize,
    ) {
        let there = drawn.len() + more;
        let mut scheduler = cluster(plain("goodput"), &[gpus("s0", there)]);
        let mut jobs = Vec::new();
        for (number, (a, b, steps, most)) in drawn.into_iter().enumerate() {
            let time = |workers: f64| f64::from(a) + f64::from(b) / workers;
            let spec = known(&format!("job-{number}"), steps, (1, most, 1), time);
            // A job that doesn't run yet would have more work by a restart.
            let spec = JobSpec { restart_cost: None, ..spec };
            jobs.push((steps, most, submit(&mut scheduler, 0, spec)));
            scheduler.decide(Time(0));
        }
        let speed = |job: JobId, workers: u32| scheduler.state().job(job).unwrap().speed(wp(workers, 0)).unwrap();
        let work = |(steps, _, job): &(u32, u32, JobId)| f64::from(*steps) / speed(*job, 1);
        // From the longest on.
        jobs.sort_by(|mine, theirs| work(theirs).total_cmp(&work(mine)));
        prop_assume!(jobs.windows(2).all(|pair| work(&pair[0]) > 1.001 * work(&pair[1])));
        let has: Vec<u32> = jobs.iter().map(|(.., job)| workers(&scheduler, *job)).collect();
        let gain = |rank: usize, from: u32| {
            let job = jobs[rank].2;
            f64::sqrt(rank as f64 + 1.0) * (speed(job, from + 1) - speed(job, from)) / speed(job, 1)
        };
        let least = (0..jobs.len()).filter(|at| has[*at] > 1).map(|at| gain(at, has[at] - 1)).fold(f64::MAX, f64::min);
        let most = (0..jobs.len()).filter(|at| has[*at] < jobs[*at].1).map(|at| gain(at, has[at])).fold(0.0, f64::max);
        prop_assert!(most <= least * 1.001, "{jobs:?} have {has:?}: {most} instead of {least}");
        let wanted: u32 = jobs.iter().map(|(_, most, _)| most).sum();
        prop_assert_eq!(has.iter().sum::<u32>(), wanted.min(there as u32));
    }
}

/// Two workers are slower than one, four are three times as fast.
#[test]
fn it_jumps_over_numbers_that_are_slower() {
    let mut scheduler = cluster(plain("goodput"), &[gpus("s0", 8)]);
    let labels = [("worker.sizes".to_owned(), "powers of 2".to_owned())];
    let spec = JobSpec {
        labels: labels.into_iter().collect(),
        ..known("jumps", 1000, (1, 4, 1), |w| if w == 2.0 { 12.0 } else { 10.0 / w })
    };
    let jumps = submit(&mut scheduler, 0, spec);
    let flat = submit(&mut scheduler, 0, known("flat", 1000, (1, 8, 1), |w| 10.0 / (1.0 + 0.01 * w)));
    scheduler.decide(Time(0));
    assert_eq!((workers(&scheduler, jumps), workers(&scheduler, flat)), (4, 4));
}

/// Free are three GPUs of one server and one of the other, but four workers are placed evenly.
#[test]
fn a_job_ahead_gets_room_that_is_scattered() {
    let mut scheduler = cluster(plain("goodput"), &[gpus("s0", 4), gpus("s1", 4)]);
    let one = running(&mut scheduler, 0, known("one", 100_000, (1, 1, 1), |_| 1.0));
    let three = running(&mut scheduler, 0, known("three", 200_000, (3, 3, 3), |_| 1.0));
    let four = submit(&mut scheduler, 1000, known("four", 60, (4, 4, 4), |_| 1.0));
    scheduler.decide(Time(1000));
    assert_eq!(runs(&scheduler, &[one, three, four]), [true, true, true]);
    let moved = |job| scheduler.state().job(job).unwrap().issued.incarnation.0 > 1;
    assert_eq!([one, three].map(moved), [false, true], "the longest makes room");
}

/// An elastic job that makes room goes on with fewer workers beside.
#[test]
fn what_makes_room_shrinks_beside() {
    let mut scheduler = cluster(plain("goodput"), &[gpus("s0", 4)]);
    let one = running(&mut scheduler, 0, known("one", 100_000, (1, 1, 1), |_| 1.0));
    set(&mut scheduler, 1, gpus("s1", 4));
    let elastic = running(&mut scheduler, 1, known("elastic", 400_000, (3, 4, 3), |w| 4.0 / w));
    let four = submit(&mut scheduler, 1000, known("four", 60, (4, 4, 4), |_| 1.0));
    scheduler.decide(Time(1000));
    assert_eq!(runs(&scheduler, &[one, elastic, four]), [true, true, true]);
    assert_eq!(workers(&scheduler, elastic), 3);
}

/// A job with a month left leaves its GPU to one that takes a minute.
#[test]
fn short_jobs_stop_long_ones() {
    for grow_in_place in [true, false] {
        let mut settings = plain("goodput");
        settings.shape.grow_in_place = grow_in_place;
        let mut scheduler = cluster(settings, &[gpus("s0", 1)]);
        let long = running(&mut scheduler, 0, known("long", 2_000_000, (1, 1, 1), |_| 1.0));
        let short = submit(&mut scheduler, 1000, known("short", 60, (1, 1, 1), |_| 1.0));
        scheduler.decide(Time(1000));
        assert_eq!(runs(&scheduler, &[long, short]), [false, true], "grow_in_place: {grow_in_place}");
    }
}

/// While a short job comes every 40 seconds, as long as one takes, the long one is last. It runs in the end.
#[test]
fn no_job_waits_for_ever() {
    let mut scheduler = cluster(plain("goodput"), &[gpus("s0", 1)]);
    let long = submit(&mut scheduler, 0, known("long", 100, (1, 1, 1), |_| 10.0));
    let (mut at, mut running): (i64, Option<JobId>) = (0, None);
    for number in 0..2000 {
        let end = running.take().filter(|job| *job != long);
        if let Some(job) = end {
            ends(&mut scheduler, at, job);
        }
        let short = submit(&mut scheduler, at, known(&format!("short-{number}"), 4, (1, 1, 1), |_| 10.0));
        scheduler.decide(Time(at));
        if runs(&scheduler, &[long])[0] {
            assert!(number > 10, "short jobs come first");
            return;
        }
        let first = scheduler.state().jobs.values().find(|job| job.verdict.allocation().is_some()).map(|job| job.id);
        running = first.or(Some(short));
        seen(&mut scheduler, at + 1, running.unwrap());
        at += 40_000;
    }
    panic!("it waited for {} s", at / 1000);
}

#[test]
fn a_job_of_higher_priority_runs_before_shorter_ones() {
    let mut scheduler = cluster(plain("goodput"), &[gpus("s0", 2)]);
    let jobs = [("first", 10, 0), ("second", 10, 0), ("urgent", 1000, 5)].map(|(name, steps, priority)| {
        let spec = JobSpec { priority, ..known(name, steps, (1, 2, 1), |w| 10.0 / w) };
        submit(&mut scheduler, 0, spec)
    });
    scheduler.decide(Time(0));
    assert_eq!(jobs.map(|job| workers(&scheduler, job)), [1, 0, 1]);
}

/// Two jobs grow when a third ends. None of them moves, though their new workers could be anywhere.
#[test]
fn growing_jobs_stay_where_they_are() {
    let servers: Vec<_> = (0..4).map(|number| gpus(&format!("s{number}"), 4)).collect();
    let mut scheduler = cluster(plain("goodput"), &servers);
    let spec = |name: &str| known(name, 100_000, (1, 16, 1), |w| 1.0 + 8.0 / w);
    let jobs = ["a", "b", "c"].map(|name| running(&mut scheduler, 0, spec(name)));
    for at in 1..4 {
        jobs.iter().for_each(|job| seen(&mut scheduler, 1000 * at, *job));
        scheduler.decide(Time(1000 * at + 1));
    }
    jobs.iter().for_each(|job| seen(&mut scheduler, 4000, *job));
    let before = jobs.map(|job| workers(&scheduler, job));
    assert_eq!(before.iter().sum::<u32>(), 16, "{before:?}");
    ends(&mut scheduler, 5000, jobs[0]);
    let slots = |scheduler: &Scheduler, job: JobId| {
        scheduler.state().job(job).unwrap().verdict.allocation().unwrap().slots().to_vec()
    };
    let old = [jobs[1], jobs[2]].map(|job| slots(&scheduler, job));
    scheduler.decide(Time(100_000));
    let new = [jobs[1], jobs[2]].map(|job| slots(&scheduler, job));
    assert_eq!(new.iter().map(Vec::len).sum::<usize>(), 16, "{before:?} {new:?}");
    for (old, new) in old.iter().zip(&new) {
        assert!(old.iter().all(|slot| new.contains(slot)), "{old:?} {new:?}");
        assert_eq!(old[0], new[0], "it keeps the parameters");
    }
}

/// A fifth worker makes a job 15 % faster. Its restart takes 20 s, which it makes up for within 150 s.
#[test]
fn a_restart_pays_soon_or_it_waits() {
    for (seconds, expected) in [(10, 4), (2000, 5)] {
        let mut settings = plain("goodput");
        settings.shape.grow_in_place = false;
        let mut scheduler = cluster(settings, &[gpus("s0", 5)]);
        let other = running(&mut scheduler, 0, known("other", 1_000_000, (1, 1, 1), |_| 1.0));
        let spec = known("grows", 1_000_000, (1, 5, 1), |w| 1.0 + 8.0 / w);
        let grows = running(&mut scheduler, 0, JobSpec { restart_cost: Some(Span::seconds(20)), ..spec });
        assert_eq!(workers(&scheduler, grows), 4);
        let at = 1000 * seconds;
        ends(&mut scheduler, at, other);
        scheduler.decide(Time(at));
        assert_eq!(workers(&scheduler, grows), expected, "after {seconds} s");
    }
}

/// The longer of two jobs becomes the shorter one. Only where workers come and go without a restart do they change
/// places.
#[test]
fn workers_that_restarts_would_move_stay() {
    for in_place in [true, false] {
        let parameters = [("resize_in_place", Parameter::Flag(in_place)), ("price", Parameter::Number(0.25))];
        let settings = plain_with("goodput", &parameters);
        let mut scheduler = cluster(settings, &[gpus("s0", 16)]);
        let jobs = [("falls", 1000), ("stays", 900)]
            .map(|(name, steps)| submit(&mut scheduler, 0, known(name, steps, (1, 16, 1), |w| 1.0 + 8.0 / w)));
        scheduler.decide(Time(0));
        jobs.iter().for_each(|job| seen(&mut scheduler, 1, *job));
        let before = jobs.map(|job| workers(&scheduler, job));
        assert!(before[0] < before[1], "{before:?}");
        for (job, step) in jobs.into_iter().zip([600, 10]) {
            let told = Report { seq: 1, step, epoch: step as u32, steps_per_epoch: 1, ..Report::default() };
            report(&mut scheduler, 5_000_000, job, told).unwrap();
        }
        scheduler.decide(Time(5_000_000));
        let after = jobs.map(|job| workers(&scheduler, job));
        if in_place {
            assert!(after[0] > after[1], "{before:?}, then {after:?}");
        } else {
            assert_eq!(after, before);
        }
    }
}

/// Three jobs end one after the other, and the fourth gets their GPUs. An hour has one restart for that.
#[test]
fn only_restarts_count_against_the_hourly_limit() {
    for (grow_in_place, expected) in [(true, [2, 3, 4]), (false, [2, 2, 2])] {
        let mut settings = plain("goodput");
        settings.shape.grow_in_place = grow_in_place;
        let min_run = Span::seconds(10);
        settings.stability = Stability { enabled: true, min_run, rescales_per_hour: 1, payback: 2.0 };
        let mut scheduler = cluster(settings, &[gpus("s0", 4)]);
        let others = ["a", "b", "c"].map(|name| running(&mut scheduler, 0, known(name, 1_000_000, (1, 1, 1), |_| 1.0)));
        let grows = running(&mut scheduler, 0, known("grows", 1_000_000, (1, 4, 1), |w| 1.0 / w));
        let after = [600, 1200, 1800].into_iter().zip(others).map(|(seconds, other)| {
            let at = 1000 * seconds;
            ends(&mut scheduler, at, other);
            scheduler.decide(Time(at));
            // What it had ends first, where it is restarted.
            let incarnation = scheduler.state().job(grows).unwrap().issued.incarnation;
            if incarnation != Incarnation(1) {
                gone(&mut scheduler, at + 1, grows, incarnation.0 - 1);
            }
            seen(&mut scheduler, at + 2, grows);
            workers(&scheduler, grows)
        });
        assert_eq!(after.collect::<Vec<_>>(), expected, "grow_in_place: {grow_in_place}");
    }
}

/// A restart of 10 s has to pay back twice, so the job keeps its slots for 20 s, though `min_run` is 5 s. A job that
/// says that restarts take it days keeps them for 25 s.
#[test]
fn a_restart_keeps_the_shape_until_it_pays_back() {
    let mut settings = plain("goodput");
    settings.shape.grow_in_place = false;
    settings.stability = Stability { enabled: true, min_run: Span::seconds(5), rescales_per_hour: 100, payback: 2.0 };
    let mut scheduler = cluster(settings, &[gpus("s0", 2)]);
    let other = running(&mut scheduler, 0, known("other", 1_000_000, (1, 1, 1), |_| 1.0));
    let grows = running(&mut scheduler, 0, known("grows", 1_000_000, (1, 2, 1), |w| 1.0 / w));
    let kept = |scheduler: &Scheduler, at: i64| {
        let findings = scheduler.explain(Time(at), grows).unwrap().findings;
        findings.into_iter().map(|finding| finding.text).find(|text| text.contains("stability.payback"))
    };
    assert_eq!(kept(&scheduler, 1000), None, "a first start isn't a restart");
    ends(&mut scheduler, 600_000, other);
    scheduler.decide(Time(600_000));
    assert_eq!(workers(&scheduler, grows), 2);
    seen(&mut scheduler, 601_000, grows);
    let text = kept(&scheduler, 612_000).expect("it is pinned");
    assert!(text.contains("for another 8s") && text.contains("slots for 20s"), "{text}");
    assert_eq!(kept(&scheduler, 621_000), None);
    let days = Some(Span::seconds(2 * 86_400));
    let told = Report { seq: 1, step: 1, epoch: 1, steps_per_epoch: 1, restart: days, ..Report::default() };
    report(&mut scheduler, 621_000, grows, told).unwrap();
    let text = kept(&scheduler, 622_000).expect("it is pinned");
    assert!(text.contains("for another 3s") && text.contains("slots for 25s"), "{text}");
    assert_eq!(kept(&scheduler, 626_000), None);
}

/// Servers of the workers of a job.
fn places(scheduler: &Scheduler, job: JobId) -> Vec<u32> {
    let state = scheduler.state();
    let allocation = state.job(job).unwrap().verdict.allocation();
    allocation.iter().flat_map(|has| has.slots()).map(|slot| slot.server.0).collect()
}

/// Steps of two workers on two servers take 12 s, those of one worker 9 s, and of four on one server 3 s. The job
/// leaves the second server, and grows once its own one has room.
#[test]
fn workers_that_are_slow_apart_share_a_server() {
    for in_place in [true, false] {
        let mut settings = plain("goodput");
        settings.shape.grow_in_place = in_place;
        let mut scheduler = cluster(settings, &[gpus("s0", 4), gpus("s1", 4)]);
        let others = ["a", "b"].map(|name| running(&mut scheduler, 0, known(name, 1_000_000, (3, 3, 3), |w| 1.0 / w)));
        let near = running(&mut scheduler, 0, known("near", 10_000, (1, 4, 1), |w| 1.0 + 8.0 / w));
        assert_eq!(places(&scheduler, near), [0, 1], "nothing is known of workers on several servers");
        for seq in 1..=20 {
            let (step, duration) = (seq * 5, Span::seconds(60));
            let told = Report { seq, step, steps: 5, duration, workers: 2, steps_per_epoch: 1, ..Report::default() };
            let told = Report { epoch: told.step as u32, ..told };
            report(&mut scheduler, 100_000 * seq as i64, near, told).unwrap();
        }
        let mut at = 2_001_000;
        scheduler.decide(Time(at));
        let here = places(&scheduler, near);
        assert_eq!(here.len(), 1, "in place: {in_place}");
        let incarnation = |scheduler: &Scheduler| scheduler.state().job(near).unwrap().issued.incarnation.0;
        let mut settle = |scheduler: &mut Scheduler| {
            at += 500_000;
            if incarnation(scheduler) > 1 {
                gone(scheduler, at, near, incarnation(scheduler) - 1);
            }
            seen(scheduler, at + 1, near);
            at
        };
        let at = settle(&mut scheduler);
        let job = others.into_iter().find(|job| places(&scheduler, *job)[0] == here[0]).unwrap();
        ends(&mut scheduler, at + 2, job);
        scheduler.decide(Time(at + 2));
        assert_eq!(places(&scheduler, near), [here[0]; 4], "in place: {in_place}");
        assert_eq!(incarnation(&scheduler) > 1, !in_place);
    }
}

/// A job is on two servers. When there is room on that of its first worker, the other one comes there, without a
/// restart.
#[test]
fn workers_come_together_without_a_restart() {
    let mut scheduler = cluster(plain("goodput"), &[gpus("s0", 4), gpus("s1", 4)]);
    let spec = |name: &str, workers: u32| known(name, 1_000_000, (workers, workers, workers), |w| 1.0 / w);
    let others = [("a", 3), ("b", 3)].map(|(name, workers)| running(&mut scheduler, 0, spec(name, workers)));
    let near = running(&mut scheduler, 0, known("near", 10_000, (1, 2, 1), |w| 1.0 / w));
    let before = places(&scheduler, near);
    assert_eq!(before, [0, 1]);
    let job = others.into_iter().find(|job| places(&scheduler, *job)[0] == before[0]).unwrap();
    ends(&mut scheduler, 10_000, job);
    scheduler.decide(Time(10_000));
    assert_eq!(places(&scheduler, near), [before[0]; 2]);
    assert_eq!(scheduler.state().job(near).unwrap().issued.incarnation, Incarnation(1));
}

/// The server of a job drains, and no other one has room for all its workers. It moves, though it is slower on two.
#[test]
fn a_job_leaves_a_draining_server_for_several() {
    let mut scheduler = cluster(plain("goodput"), &[gpus("s0", 2)]);
    let moves = running(&mut scheduler, 0, known("moves", 100_000, (2, 2, 2), |w| 1.0 + 8.0 / w));
    assert_eq!(places(&scheduler, moves), [0, 0]);
    for name in ["s1", "s2"] {
        set(&mut scheduler, 1000, gpus(name, 1));
    }
    set(&mut scheduler, 2000, ServerSpec { draining: true, ..gpus("s0", 2) });
    scheduler.decide(Time(600_000));
    assert_eq!(places(&scheduler, moves), [1, 2]);
}

/// Where no server has room for all three workers, a job on two servers grows there, and isn't restarted.
#[test]
fn a_job_that_finds_no_server_for_all_grows_where_it_is() {
    let mut scheduler = cluster(plain("goodput"), &[gpus("s0", 4), gpus("s1", 4)]);
    let spec = |name: &str, workers: u32| known(name, 1_000_000, (workers, workers, workers), |w| 1.0 / w);
    let others = [("a", 3), ("b", 2), ("c", 1)].map(|(name, w)| running(&mut scheduler, 0, spec(name, w)));
    let grows = running(&mut scheduler, 0, known("grows", 1_000_000, (1, 3, 1), |w| 1.0 / w));
    let before = places(&scheduler, grows);
    assert_eq!(before, [0, 1], "one GPU is free on each server");
    ends(&mut scheduler, 100_000, others[2]);
    scheduler.decide(Time(100_000));
    let after = places(&scheduler, grows);
    assert_eq!(
        (after.len(), scheduler.state().job(grows).unwrap().issued.incarnation),
        (3, Incarnation(1)),
        "{after:?}"
    );
}

/// What a job reports is filed by where its workers are, and while they move between one server and several not at all.
#[test]
fn speeds_are_known_by_place() {
    let mut scheduler = cluster(plain("goodput"), &[gpus("s0", 1), gpus("s1", 1)]);
    let apart = running(&mut scheduler, 0, JobSpec { examples: 256, ..ring("apart", (2, 2, 2)) });
    let tell = |scheduler: &mut Scheduler, seq: u64, steps: u32| {
        let duration = Span::seconds(10);
        report(scheduler, 10_000 * seq as i64, apart, Report { seq, steps, duration, workers: 2, ..Report::default() })
    };
    (1..4).for_each(|seq| tell(&mut scheduler, seq, 10).unwrap());
    scheduler.decide(Time(60_000));
    let job = scheduler.state().job(apart).unwrap();
    let fit = job.learnt.fits.speed.as_ref().unwrap();
    assert!((fit.speed(2, 2) - 1.0).abs() < 0.01 && fit.speed(1, 2) > 1.02, "{} {}", fit.speed(2, 2), fit.speed(1, 2));
    assert_eq!(job.speed(shape(&scheduler, apart)), Some(fit.speed(2, 2)));
    assert!(job.learnt.speeds.samples().iter().all(|sample| sample.servers == 2));
}

/// The rule of stability that pins a job at a time, as it is explained.
fn pinned(scheduler: &Scheduler, at: i64, job: JobId) -> Option<String> {
    let findings = scheduler.explain(Time(at), job).unwrap().findings;
    findings.into_iter().map(|finding| finding.text).find(|text| text.contains("(stability."))
}

#[test]
fn what_a_job_gains_in_place_pins_it_no_longer() {
    let settings = Settings { stability: Stability::default(), ..plain("goodput") };
    let mut scheduler = cluster(settings, &[gpus("s0", 2)]);
    let other = running(&mut scheduler, 0, known("other", 1_000_000, (1, 1, 1), |_| 1.0));
    let grows = running(&mut scheduler, 0, known("grows", 1_000_000, (1, 2, 1), |w| 1.0 / w));
    let text = pinned(&scheduler, 59_000, grows).expect("it started a minute ago");
    assert!(text.contains("for another 1s"), "{text}");
    assert_eq!(pinned(&scheduler, 61_000, grows), None);
    ends(&mut scheduler, 600_000, other);
    scheduler.decide(Time(600_000));
    seen(&mut scheduler, 601_000, grows);
    assert_eq!((workers(&scheduler, grows), pinned(&scheduler, 602_000, grows)), (2, None));
}

/// Each start begins a minute. Only a move counts against the hour's restarts: an owner's pause and the loss of a
/// server aren't choices of the scheduler.
#[test]
fn only_chosen_restarts_count() {
    let settings = Settings { stability: Stability::default(), ..plain("goodput") };
    let mut scheduler = cluster(settings, &[gpus("s0", 2)]);
    let job = running(&mut scheduler, 0, known("job", 1_000_000, (2, 2, 2), |w| 1.0 / w));
    let restarts = |scheduler: &Scheduler| scheduler.state().job(job).unwrap().issued.restarted_at.clone();
    let starts = |scheduler: &mut Scheduler, at: i64, server: u32| {
        scheduler.decide(Time(at));
        seen(scheduler, at + 1000, job);
        assert_eq!(places(scheduler, job), [server, server]);
        let text = pinned(scheduler, at + 30_000, job).expect("it started half a minute ago");
        assert!(text.contains("for another 30s"), "{text}");
    };
    scheduler.apply(Time(100_000), Event::JobHeld { job, held: true }).unwrap();
    scheduler.decide(Time(100_000));
    gone(&mut scheduler, 101_000, job, 1);
    scheduler.apply(Time(200_000), Event::JobHeld { job, held: false }).unwrap();
    starts(&mut scheduler, 200_000, 0);
    set(&mut scheduler, 300_000, gpus("s1", 2));
    scheduler.apply(Time(400_000), Event::ServersLeft { names: vec!["s0".into()] }).unwrap();
    starts(&mut scheduler, 400_000, 1);
    assert_eq!(restarts(&scheduler), []);
    set(&mut scheduler, 500_000, gpus("s2", 2));
    set(&mut scheduler, 500_000, ServerSpec { draining: true, ..gpus("s1", 2) });
    scheduler.decide(Time(600_000));
    assert_eq!(places(&scheduler, job), [2, 2]);
    assert_eq!(restarts(&scheduler), [Time(600_000)]);
}

/// A job with parameter servers whose step takes 8/w + w/p seconds. All four GPUs and all 16 CPUs are 4 workers and 4
/// parameter servers, though the shares of GPUs and of CPUs add up to more than 1. If another job has three CPUs, there
/// is room for three parameter servers.
#[test]
fn parameter_servers_take_the_room_that_there_is() {
    for (other, expected) in [(false, wp(4, 4)), (true, wp(4, 3))] {
        let mut scheduler = cluster(plain("goodput"), &[server("s0", 16, 64, &["gpu"; 4])]);
        if other {
            let worker = role(&[("cpu", 3000)], 1, 1, 1);
            running(&mut scheduler, 0, JobSpec { worker, ..known("other", 1_000_000, (1, 1, 1), |_| 1.0) });
        }
        let pairs = (1..=4).flat_map(|w| (1..=4).map(move |p| (w, p)));
        let time = |w: u32, p: u32| 8.0 / f64::from(w) + f64::from(w) / f64::from(p);
        let profile =
            pairs.map(|(workers, servers)| ProfiledSpeed { servers, workers, speed: 1.0 / time(workers, servers) });
        let spec = JobSpec {
            worker: role(&[("gpu", 1000), ("cpu", 1000)], 1, 4, 1),
            server: Some(role(&[("cpu", 3000)], 1, 4, 1)),
            mode: TrainingMode::Sync,
            profile: profile.collect(),
            ..known("parameters", 10_000, (1, 4, 1), |_| 1.0)
        };
        let job = submit(&mut scheduler, 0, spec);
        scheduler.decide(Time(0));
        assert_eq!(shape(&scheduler, job), expected, "beside another job: {other}");
    }
}

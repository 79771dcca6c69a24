//! Properties of `tiresias` beyond the contract: ages, queues, promotion, the Gittins order and consolidation.

use crate::common::build::{cluster, gpus, job, plain_with, ring, role, runs, server, submit, verdict};
use trainmaster_core::{
    End, Event, Incarnation, JobId, JobSpec, Phase, Scheduler, Settings, Span, Time,
    settings::{Parameter, Stability},
};

const SECOND: i64 = 1000;

/// A queue ends at 100 GPU-seconds.
fn settings(parameters: &[(&str, Parameter)]) -> Settings {
    let mut all = vec![("thresholds", Parameter::Number(100.0)), ("promote", Parameter::Number(0.0))];
    all.extend(parameters.iter().cloned());
    plain_with("tiresias", &all)
}

fn wide(name: &str, gpus: u32) -> JobSpec {
    ring(name, (gpus, gpus, gpus))
}

fn decide(scheduler: &mut Scheduler, seconds: i64) {
    scheduler.decide(Time(seconds * SECOND));
}

fn come(scheduler: &mut Scheduler, seconds: i64, spec: JobSpec) -> JobId {
    let job = submit(scheduler, seconds * SECOND, spec);
    decide(scheduler, seconds);
    job
}

fn end(scheduler: &mut Scheduler, seconds: i64, job: JobId) {
    scheduler.apply(Time(seconds * SECOND), Event::JobEnded { job, end: End::Completed }).expect("active");
    // All its slots are gone.
    let event = Event::Observed { job, incarnation: Incarnation(1), slots: vec![], phase: Phase::Stopped };
    drop(scheduler.apply(Time(seconds * SECOND), event));
}

/// The manager has released the slots.
fn gone(scheduler: &mut Scheduler, seconds: i64, job: JobId) {
    let incarnation = scheduler.state().job(job).expect("active").issued.incarnation;
    let event = Event::Observed { job, incarnation, slots: vec![], phase: Phase::Stopped };
    scheduler.apply(Time(seconds * SECOND), event).expect("active");
}

#[test]
fn a_job_past_the_threshold_makes_room_at_once() {
    let mut scheduler = cluster(settings(&[]), &[gpus("s0", 2)]);
    let old = come(&mut scheduler, 0, wide("old", 2));
    let young = come(&mut scheduler, 10, wide("young", 2));
    assert_eq!(runs(&scheduler, &[old, young]), [true, false], "both are in the first queue, and it started first");
    // Two GPUs: 100 GPU-seconds after 50 s.
    assert_eq!(scheduler.due(), Some(Time(50 * SECOND)));
    decide(&mut scheduler, 49);
    assert_eq!((runs(&scheduler, &[old, young]), scheduler.due()), (vec![true, false], Some(Time(50 * SECOND))));
    decide(&mut scheduler, 50);
    assert_eq!(runs(&scheduler, &[old, young]), [false, true]);
    let why = verdict(&scheduler, old).reason().expect("it waits").describe(scheduler.state());
    assert_eq!(why, "needs 2 gpu; the cluster has 0 left of 2");
    gone(&mut scheduler, 51, old);
    // When both are in the lower queue, the one that runs goes on, though it started later.
    decide(&mut scheduler, 102);
    assert_eq!(runs(&scheduler, &[old, young]), [false, true]);
    for at in 103..120 {
        decide(&mut scheduler, at * 10);
        assert_eq!(runs(&scheduler, &[old, young]), [false, true]);
    }
}

#[test]
fn age_is_time_by_gpus_and_only_while_slots_are_held() {
    let thresholds = [("thresholds", Parameter::Text("100, 3000".into()))];
    let mut scheduler = cluster(settings(&thresholds), &[gpus("s0", 4)]);
    let narrow = come(&mut scheduler, 0, wide("narrow", 1));
    let broad = come(&mut scheduler, 0, wide("broad", 3));
    let next = come(&mut scheduler, 0, wide("next", 1));
    // The broad job reaches 100 GPU-seconds in a third of the time.
    decide(&mut scheduler, 34);
    assert_eq!(runs(&scheduler, &[narrow, broad, next]), [true, false, true]);
    gone(&mut scheduler, 34, broad);
    // Half an hour later all are in the second queue, and those that run go on. The broad job's age doesn't grow while
    // it waits, so it is still there when the first one moves down.
    decide(&mut scheduler, 1800);
    assert_eq!(runs(&scheduler, &[narrow, broad, next]), [true, false, true]);
    decide(&mut scheduler, 3000);
    assert_eq!(runs(&scheduler, &[narrow, broad, next]), [false, true, true]);
}

#[test]
fn workers_without_gpus_count_as_if_they_had_one() {
    let mut scheduler = cluster(settings(&[]), &[server("s0", 4, 64, &[])]);
    let cores = |name| JobSpec { worker: role(&[("cpu", 2000)], 2, 2, 2), ..wide(name, 2) };
    let old = come(&mut scheduler, 0, cores("old"));
    let young = come(&mut scheduler, 0, cores("young"));
    decide(&mut scheduler, 49);
    assert_eq!(runs(&scheduler, &[old, young]), [true, false]);
    decide(&mut scheduler, 50);
    assert_eq!(runs(&scheduler, &[old, young]), [false, true]);
}

#[test]
fn there_are_as_many_queues_as_thresholds_and_one() {
    let thresholds = [("thresholds", Parameter::Text("100, 300".into()))];
    let mut scheduler = cluster(settings(&thresholds), &[gpus("s0", 1)]);
    let first = come(&mut scheduler, 0, wide("first", 1));
    decide(&mut scheduler, 100);
    let second = come(&mut scheduler, 100, wide("second", 1));
    gone(&mut scheduler, 100, first);
    assert_eq!(runs(&scheduler, &[first, second]), [false, true]);
    // Both are in the second queue, and the one that runs goes on. Then it moves down further.
    decide(&mut scheduler, 200);
    assert_eq!(runs(&scheduler, &[first, second]), [false, true]);
    assert_eq!(scheduler.due(), Some(Time(260 * SECOND)), "a round is due before the next change of queue at 400");
    decide(&mut scheduler, 399);
    assert_eq!((runs(&scheduler, &[first, second]), scheduler.due()), (vec![false, true], Some(Time(400 * SECOND))));
    decide(&mut scheduler, 400);
    assert_eq!(runs(&scheduler, &[first, second]), [true, false]);
}

#[test]
fn starving_jobs_are_promoted_if_enabled() {
    for (promote, promoted) in [(2.0, true), (0.0, false)] {
        let mut scheduler = cluster(settings(&[("promote", Parameter::Number(promote))]), &[gpus("s0", 1)]);
        let long = come(&mut scheduler, 0, wide("long", 1));
        let mut other = come(&mut scheduler, 50, wide("other0", 1));
        decide(&mut scheduler, 100);
        gone(&mut scheduler, 100, long);
        assert_eq!(runs(&scheduler, &[long, other]), [false, true]);
        // A stream of short jobs: one arrives when another ends.
        let mut back = None;
        for turn in 1..8 {
            let now = 100 + turn * 50;
            end(&mut scheduler, now, other);
            other = come(&mut scheduler, now, wide(&format!("other{turn}"), 1));
            if back.is_none() && runs(&scheduler, &[long]) == [true] {
                back = Some(now);
            }
        }
        // It ran for 100 s. After 200 s more of waiting it is back in the first queue.
        assert_eq!(back, promoted.then_some(300), "promote = {promote}");
    }
}

#[test]
fn with_too_little_history_gittins_is_las_and_then_the_index_decides() {
    let mut scheduler = cluster(settings(&[("order", Parameter::Text("gittins".into()))]), &[gpus("s0", 1)]);
    // Half of the completed jobs take 10 s, and half 250 s. A job past its first 100 s probably needs 150 more, but one
    // past 200 ends within 50.
    let history = |scheduler: &mut Scheduler, jobs: i64, start: i64| {
        let mut now = start;
        for number in 0..jobs {
            let job = come(scheduler, now, wide(&format!("past{start}-{number}"), 1));
            now += if number % 2 == 0 { 10 } else { 250 };
            end(scheduler, now, job);
        }
        now
    };
    let old_and_young = |scheduler: &mut Scheduler, now: i64| {
        let old = come(scheduler, now, wide(&format!("old{now}"), 1));
        decide(scheduler, now + 210);
        let young = come(scheduler, now + 210, wide(&format!("young{now}"), 1));
        let who = runs(scheduler, &[old, young]);
        for job in [old, young] {
            end(scheduler, now + 220, job);
        }
        (who, now + 220)
    };
    let now = history(&mut scheduler, 10, 0);
    let (who, now) = old_and_young(&mut scheduler, now);
    assert_eq!(who, [false, true], "10 jobs tell too little: the least service goes first");
    let now = history(&mut scheduler, 12, now);
    let (who, _) = old_and_young(&mut scheduler, now);
    assert_eq!(who, [true, false], "who has come so far is nearly through");
}

#[test]
fn jobs_are_consolidated_and_split_as_a_last_resort() {
    let mut scheduler = cluster(settings(&[]), &[gpus("s0", 2), gpus("s1", 4), gpus("s2", 4)]);
    let servers = |scheduler: &Scheduler, job| {
        let allocation = verdict(scheduler, job).allocation().cloned().expect("it runs");
        let mut servers: Vec<u32> = allocation.slots().iter().map(|slot| slot.server.0).collect();
        servers.sort_unstable();
        servers
    };
    let both = JobSpec { worker: role(&[("gpu", 1000), ("cpu", 1000)], 3, 3, 3), ..job("both", (3, 3, 3), (1, 1, 1)) };
    let both = come(&mut scheduler, 0, both);
    let on = servers(&scheduler, both);
    assert!(on.windows(2).all(|pair| pair[0] == pair[1]), "{on:?}");
    // 2, 4 and 1 are left: seven workers can't be spread evenly.
    let all = come(&mut scheduler, 1, wide("all", 7));
    let expected = if on[0] == 1 { [0, 0, 1, 2, 2, 2, 2] } else { [0, 0, 1, 1, 1, 1, 2] };
    assert_eq!(servers(&scheduler, all), expected);
}

#[test]
fn pinned_and_held_jobs_are_unchanged() {
    let stability = Stability { min_run: Span::seconds(300), ..Stability::default() };
    let mut scheduler = cluster(Settings { stability, ..settings(&[]) }, &[gpus("s0", 1)]);
    let old = come(&mut scheduler, 0, wide("old", 1));
    decide(&mut scheduler, 101);
    let young = come(&mut scheduler, 102, wide("young", 1));
    assert_eq!(runs(&scheduler, &[old, young]), [true, false], "it hasn't run for its minimum yet");
    scheduler.apply(Time(103 * SECOND), Event::JobHeld { job: old, held: true }).expect("active");
    decide(&mut scheduler, 103);
    assert_eq!(runs(&scheduler, &[old, young]), [false, true]);
    // A held job doesn't starve, and no round is due for it.
    decide(&mut scheduler, 100_000);
    assert!(scheduler.due() >= Some(Time(100_060 * SECOND)));
}

#[test]
fn ages_survive_a_restart_from_the_journal() {
    let mut scheduler = cluster(settings(&[]), &[gpus("s0", 1)]);
    let old = come(&mut scheduler, 0, wide("old", 1));
    decide(&mut scheduler, 60);
    scheduler.start_journal();
    let records = scheduler.drain_journal();
    let mut restored = Scheduler::restore(records.iter().map(Vec::as_slice)).expect("its own journal");
    let young = come(&mut restored, 61, wide("young", 1));
    decide(&mut restored, 100);
    assert_eq!(runs(&restored, &[old, young]), [false, true]);
}

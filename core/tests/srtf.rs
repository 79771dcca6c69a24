//! Properties of `srtf` beyond the contract: order, preemption, and unchanged jobs.

use crate::common::build::{
    cluster, gpus, plain, plain_with, ring, role, runs, server, set, shape, submit, trained, verdict, wp,
};
use trainmaster_core::{
    End, Event, JobId, JobSpec, Role, Scheduler, ServerSpec, Settings, Span, Time,
    settings::{Parameter, Stability},
};

const MINUTE: i64 = 60_000;

fn end(scheduler: &mut Scheduler, at: i64, job: JobId) {
    scheduler.apply(Time(at), Event::JobEnded { job, end: End::Completed }).expect("active");
}

fn why(scheduler: &Scheduler, job: JobId) -> String {
    verdict(scheduler, job).reason().expect("it waits").describe(scheduler.state())
}

#[test]
fn the_shortest_job_runs_and_stopped_jobs_return() {
    let mut scheduler = cluster(plain("srtf"), &[gpus("s0", 2)]);
    let long = submit(&mut scheduler, 0, trained("long", 2, 100));
    scheduler.decide(Time(0));
    let before = verdict(&scheduler, long);
    let short = submit(&mut scheduler, MINUTE, trained("short", 2, 10));
    assert_eq!(scheduler.due(), Some(Time(MINUTE)), "an arrival is decided at once");
    scheduler.decide(Time(MINUTE));
    assert_eq!(runs(&scheduler, &[long, short]), [false, true]);
    assert_eq!(why(&scheduler, long), "needs 2 gpu; the cluster has 0 left of 2");
    end(&mut scheduler, 11 * MINUTE, short);
    assert_eq!(scheduler.due(), Some(Time(11 * MINUTE)), "a departure too");
    scheduler.decide(Time(11 * MINUTE));
    assert_eq!(verdict(&scheduler, long), before);
}

#[test]
fn whole_shapes_or_nothing_and_no_room_is_left_idle() {
    let mut scheduler = cluster(plain("srtf"), &[gpus("s0", 2), gpus("s1", 2)]);
    let jobs = [("third", 1, 30), ("second", 2, 20), ("first", 3, 10)]
        .map(|(name, count, minutes)| submit(&mut scheduler, 0, trained(name, count, minutes)));
    scheduler.decide(Time(0));
    assert_eq!(jobs.map(|job| shape(&scheduler, job)), [wp(1, 0), wp(0, 0), wp(3, 0)]);
    assert_eq!(why(&scheduler, jobs[1]), "needs 2 gpu; the cluster has 0 left of 4");
}

#[test]
fn free_room_is_used_before_jobs_are_stopped() {
    let mut scheduler = cluster(plain("srtf"), &[gpus("s0", 2), gpus("s1", 2)]);
    let long = submit(&mut scheduler, 0, trained("long", 2, 100));
    scheduler.decide(Time(0));
    let before = verdict(&scheduler, long);
    let short = submit(&mut scheduler, 1, trained("short", 2, 10));
    scheduler.decide(Time(1));
    assert_eq!((verdict(&scheduler, long), runs(&scheduler, &[short])), (before, vec![true]));
}

#[test]
fn the_longest_make_room_and_the_others_keep_their_slots() {
    let mut scheduler = cluster(plain("srtf"), &[gpus("s0", 2), gpus("s1", 2)]);
    let jobs = [10, 20, 30, 40].map(|minutes| submit(&mut scheduler, 0, trained(&format!("m{minutes}"), 1, minutes)));
    scheduler.decide(Time(0));
    let before = jobs.map(|job| verdict(&scheduler, job));
    let newcomer = submit(&mut scheduler, 1, trained("newcomer", 1, 5));
    scheduler.decide(Time(1));
    assert_eq!(runs(&scheduler, &[newcomer, jobs[3]]), [true, false]);
    assert_eq!(jobs[..3].iter().map(|job| verdict(&scheduler, *job)).collect::<Vec<_>>(), before[..3]);
}

#[test]
fn jobs_that_need_not_make_room_continue() {
    let mut scheduler = cluster(plain("srtf"), &[gpus("s0", 2), gpus("s1", 2)]);
    // One after the other, each on the freest server: 10 and 30 minutes on one, 20 and 40 on the other.
    let jobs = [10, 20, 30, 40].map(|minutes| {
        let job = submit(&mut scheduler, minutes, trained(&format!("m{minutes}"), 1, minutes as u32));
        scheduler.decide(Time(minutes));
        job
    });
    let place = |scheduler: &Scheduler, job| verdict(scheduler, job).allocation().map(|held| held.slots()[0].server.0);
    assert_eq!(jobs.map(|job| place(&scheduler, job)), [Some(0), Some(1), Some(0), Some(1)]);
    let before = verdict(&scheduler, jobs[0]);
    // The job needs both GPUs of one server. Stopping the 40 and the 30 minutes frees one GPU on each server. So the 20
    // minutes stop too, and then take the place of the 30.
    let both = JobSpec { worker: role(&[("gpu", 2000), ("cpu", 1000)], 1, 1, 1), ..trained("both", 1, 5) };
    let both = submit(&mut scheduler, 100, both);
    scheduler.decide(Time(100));
    assert_eq!(verdict(&scheduler, jobs[0]), before);
    assert_eq!([both, jobs[1], jobs[2], jobs[3]].map(|job| place(&scheduler, job)), [Some(1), Some(0), None, None]);
    assert!(why(&scheduler, jobs[2]).contains("needs 1 gpu"), "{}", why(&scheduler, jobs[2]));
}

#[test]
fn ties_prefer_running_jobs_then_earlier_ones() {
    let mut scheduler = cluster(plain("srtf"), &[gpus("s0", 1)]);
    let restart = |name, minutes| JobSpec { restart_cost: Some(Span(MINUTE)), ..trained(name, 1, minutes) };
    let equal = ["a", "b"].map(|name| submit(&mut scheduler, 0, restart(name, 10)));
    scheduler.decide(Time(0));
    assert_eq!(runs(&scheduler, &equal), [true, false]);
    // Half a minute shorter, but a start takes a minute.
    let near = JobSpec { dataset: trained("near", 1, 9).dataset, ..restart("near", 9) };
    let near = submit(&mut scheduler, 1, near);
    scheduler.decide(Time(1));
    assert_eq!(runs(&scheduler, &[equal[0], near]), [true, false], "9 minutes and a restart are no less than 10");
    let shorter = submit(&mut scheduler, 2, restart("shorter", 8));
    scheduler.decide(Time(2));
    assert_eq!(runs(&scheduler, &[equal[0], shorter]), [false, true]);
}

#[test]
fn unknown_remaining_time_counts_as_the_mean_minus_the_wait() {
    let mut scheduler = cluster(plain("srtf"), &[gpus("s0", 1)]);
    let unknown = submit(&mut scheduler, 0, ring("unknown", (1, 1, 1)));
    scheduler.decide(Time(0));
    assert_eq!(runs(&scheduler, &[unknown]), [true], "nothing is known of any");
    end(&mut scheduler, 0, unknown);
    let long = submit(&mut scheduler, 0, trained("long", 1, 30));
    let unknown = submit(&mut scheduler, 0, ring("second", (1, 1, 1)));
    let short = submit(&mut scheduler, 0, trained("short", 1, 10));
    scheduler.decide(Time(0));
    assert_eq!(runs(&scheduler, &[short, unknown, long]), [true, false, false], "10 minutes before the mean of 20");
    // A stream of short jobs, one every 10 minutes. The mean is 19.5, less its wait: 9.5 after the first.
    let mut last = short;
    for turn in 1..10 {
        let now = turn * 10 * MINUTE;
        end(&mut scheduler, now, last);
        last = submit(&mut scheduler, now, trained(&format!("short{turn}"), 1, 9));
        scheduler.decide(Time(now));
        if runs(&scheduler, &[unknown]) == [true] {
            assert_eq!(turn, 2);
            // The job isn't stopped again while its remaining time is unknown.
            submit(&mut scheduler, now + 1, trained("next", 1, 1));
            scheduler.decide(Time(now + 1));
            assert_eq!(runs(&scheduler, &[unknown]), [true]);
            return;
        }
    }
    panic!("it starves");
}

#[test]
fn jobs_leave_a_server_that_drains_if_there_is_room_and_stay_if_there_is_none() {
    let mut scheduler = cluster(plain("srtf"), &[gpus("s0", 2), gpus("s1", 1)]);
    let jobs = [("a", 10), ("b", 20)].map(|(name, minutes)| submit(&mut scheduler, 0, trained(name, 1, minutes)));
    scheduler.decide(Time(0));
    end(&mut scheduler, 1, jobs[1]);
    let stays = submit(&mut scheduler, 1, trained("c", 2, 30));
    scheduler.decide(Time(1));
    let on = |scheduler: &Scheduler, job| -> Vec<u32> {
        let held = verdict(scheduler, job).allocation().cloned().unwrap_or_default();
        held.slots().iter().map(|slot| slot.server.0).collect()
    };
    assert_eq!((on(&scheduler, jobs[0]), on(&scheduler, stays)), (vec![0], vec![0, 1]));
    set(&mut scheduler, 2, ServerSpec { draining: true, ..gpus("s0", 2) });
    scheduler.decide(Time(2));
    assert_eq!((on(&scheduler, jobs[0]), on(&scheduler, stays)), (vec![0], vec![0, 1]), "nobody is stopped for that");
    set(&mut scheduler, 3, gpus("s2", 1));
    scheduler.decide(Time(3));
    assert_eq!((on(&scheduler, jobs[0]), on(&scheduler, stays)), (vec![2], vec![0, 1]));
}

#[test]
fn pinned_jobs_stay_however_long_they_are() {
    let stability = Stability { enabled: true, min_run: Span(10 * MINUTE), ..Stability::default() };
    let mut scheduler = cluster(Settings { stability, ..plain("srtf") }, &[gpus("s0", 1)]);
    let long = submit(&mut scheduler, 0, trained("long", 1, 100));
    scheduler.decide(Time(0));
    let short = submit(&mut scheduler, MINUTE, trained("short", 1, 5));
    scheduler.decide(Time(MINUTE));
    assert_eq!(runs(&scheduler, &[long, short]), [true, false]);
    scheduler.decide(Time(11 * MINUTE));
    assert_eq!(runs(&scheduler, &[long, short]), [false, true]);
}

#[test]
fn at_a_tenants_limit_the_tenants_own_jobs_make_room() {
    let mut settings = plain("srtf");
    settings.tenants = [("t".to_owned(), [("gpu".to_owned(), 1000)].into())].into();
    let mut scheduler = cluster(settings, &[gpus("s0", 2)]);
    let of = |tenant: &str, spec: JobSpec| JobSpec { tenant: tenant.into(), ..spec };
    let longest = submit(&mut scheduler, 0, of("other", trained("longest", 1, 100)));
    let own = submit(&mut scheduler, 0, of("t", trained("own", 1, 50)));
    scheduler.decide(Time(0));
    let short = submit(&mut scheduler, 1, of("t", trained("short", 1, 5)));
    scheduler.decide(Time(1));
    assert_eq!(runs(&scheduler, &[longest, own, short]), [true, false, true]);
    assert_eq!(why(&scheduler, own), "needs 1 gpu; tenant t has 0 left of 1");
}

#[test]
fn a_job_that_never_fits_stops_no_other() {
    // One server with one GPU of each of two kinds. Two GPUs of the rare kind are more than there are.
    let rare = server("s0", 16, 64, &["gpu:a100", "gpu:v100"]);
    let mut scheduler = cluster(plain("srtf"), &[rare, server("s1", 1, 64, &["gpu:a100"])]);
    let worker = role(&[("gpu:v100", 1000), ("cpu", 1000)], 1, 1, 1);
    let long = submit(&mut scheduler, 0, JobSpec { worker, ..trained("long", 1, 100) });
    scheduler.decide(Time(0));
    let before = verdict(&scheduler, long);
    // 2 workers of 2 cores: the a100 of s1 has one core beside it.
    let worker = role(&[("gpu:a100", 1000), ("cpu", 2000)], 1, 2, 2);
    let short = submit(&mut scheduler, 1, JobSpec { worker, ..trained("short", 2, 5) });
    scheduler.decide(Time(1));
    assert_eq!(verdict(&scheduler, long), before);
    assert!(why(&scheduler, short).starts_with("2w+0p has no room"), "{}", why(&scheduler, short));
}

#[test]
fn slots_of_both_roles_are_given_whatever_the_placement() {
    for placement in ["even", "spread", "pack", "round_robin"] {
        let settings = plain_with("srtf", &[("placement", Parameter::Text(placement.into()))]);
        let mut scheduler = cluster(settings, &[gpus("s0", 2), gpus("s1", 2)]);
        let spec = crate::common::build::job("both", (1, 4, 3), (1, 4, 2));
        let job = submit(&mut scheduler, 0, spec);
        scheduler.decide(Time(0));
        let allocation = verdict(&scheduler, job).allocation().cloned().expect("there is room");
        assert_eq!((allocation.of(Role::Worker).len(), allocation.of(Role::Server).len()), (3, 2), "{placement}");
    }
}

//! Jobs of a higher priority get room that others have, or it is held for them.

use crate::common::{
    build::{cluster, gpus, plain, plain_with, ring, role, running, runs, seen, submit, verdict},
    invariants::{always, before},
};
use trainmaster_core::{
    End, Event, JobId, JobSpec, Reason, Scheduler, ServerSpec, Settings, Source, Span, Time, Verdict,
    job::{Convergence, Phase},
    settings::{Parameter, Stability},
};

/// The engines that give room to jobs of a higher priority.
const ENGINES: [&str; 2] = ["optimus", "goodput"];

/// A job of one worker with this many GPUs.
fn one(name: &str, count: i64, priority: i32) -> JobSpec {
    let worker = role(&[("gpu", count * 1000)], 1, 1, 1);
    JobSpec { worker, priority, convergence: Convergence::after(100_000), ..ring(name, (1, 1, 1)) }
}

/// The same with the engine's usual rules of stability.
fn stable(settings: Settings) -> Settings {
    Settings { stability: Stability { min_run: Span::seconds(60), ..Stability::default() }, ..settings }
}

/// Decides if it is time to.
fn decide_if_due(scheduler: &mut Scheduler, at: i64) {
    if scheduler.due().is_some_and(|due| due <= Time(at)) {
        let before = before(scheduler);
        scheduler.decide(Time(at));
        always(scheduler, &before);
    }
}

/// Lets a job end.
fn end(scheduler: &mut Scheduler, at: i64, job: JobId) {
    let incarnation = scheduler.state().job(job).unwrap().issued.incarnation;
    scheduler.apply(Time(at), Event::JobEnded { job, end: End::Completed }).unwrap();
    let gone = Event::Observed { job, incarnation, slots: Vec::new(), phase: Phase::Stopped };
    scheduler.apply(Time(at), gone).unwrap();
}

/// On servers where small jobs come and go without end, the seconds until a job that needs two GPUs of one server runs.
/// `None`: more than 20 minutes. A small job lasts for `length` seconds, two always wait, and no two end at once.
fn seconds_until_wide_runs(settings: Settings, servers: &[ServerSpec], length: i64) -> Option<i64> {
    let mut scheduler = cluster(settings, servers);
    let mut small: Vec<(JobId, Option<i64>)> = Vec::new();
    let mut number = 0;
    let mut wide = None;
    for second in 0..1300 {
        let at = second * 1000;
        let over = |(_, began): &(JobId, Option<i64>)| began.is_some_and(|began| began + length <= second);
        if let Some(over) = small.iter().position(over) {
            end(&mut scheduler, at, small.remove(over).0);
        }
        while small.iter().filter(|(_, began)| began.is_none()).count() < 2 {
            small.push((submit(&mut scheduler, at, one(&format!("small-{number}"), 1, 0)), None));
            number += 1;
            decide_if_due(&mut scheduler, at);
        }
        if second == 100 {
            wide = Some(submit(&mut scheduler, at, one("wide", 2, 100)));
        }
        decide_if_due(&mut scheduler, at);
        for (job, began) in &mut small {
            let runs = scheduler.state().job(*job).unwrap().issued.allocation.is_some();
            if runs {
                began.get_or_insert(second);
                seen(&mut scheduler, at, *job);
            } else if began.take().is_some() {
                // It made room.
                let incarnation = scheduler.state().job(*job).unwrap().issued.incarnation;
                let gone = Event::Observed { job: *job, incarnation, slots: Vec::new(), phase: Phase::Stopped };
                scheduler.apply(Time(at), gone).unwrap();
            }
        }
        decide_if_due(&mut scheduler, at);
        if wide.is_some_and(|wide| scheduler.state().job(wide).unwrap().issued.allocation.is_some()) {
            return Some(second - 100);
        }
    }
    None
}

#[test]
fn a_wide_job_of_higher_priority_is_not_overtaken_for_ever() {
    // Jobs of 20 s never leave before stability lets them. Those of 150 s would leave at the next round at the latest.
    for length in [20, 150] {
        for engine in ENGINES {
            let servers = ["s0", "s1", "s2"].map(|name| gpus(name, 2));
            let waits = seconds_until_wide_runs(stable(plain(engine)), &servers, length);
            assert!(waits.is_some_and(|waits| waits <= 61), "{engine}, {length} s: {waits:?}");
        }
        let without = stable(plain_with("optimus", &[("prefer", Parameter::Flag(false))]));
        let waits = seconds_until_wide_runs(without, &[gpus("s0", 2), gpus("s1", 2), gpus("s2", 2)], length);
        assert!(waits.is_none_or(|waits| waits > 61), "the test is too easy with {length} s: {waits:?}");
    }
}

#[test]
fn a_job_of_higher_priority_runs_at_once() {
    for engine in ENGINES {
        let mut scheduler = cluster(plain(engine), &[gpus("s0", 2)]);
        let low = ["a", "b"].map(|name| running(&mut scheduler, 0, one(name, 1, 0)));
        let same = submit(&mut scheduler, 10_000, one("same", 1, 0));
        scheduler.decide(Time(10_000));
        assert_eq!(runs(&scheduler, &[low[0], low[1], same]), [true, true, false], "{engine}: equal ones wait");
        let high = submit(&mut scheduler, 11_000, one("high", 1, 1));
        scheduler.decide(Time(11_000));
        assert_eq!(runs(&scheduler, &[low[0], low[1], same, high]), [true, false, false, true], "{engine}");
    }
}

/// Settings under which nothing that started within the last hour makes room.
fn pinned(settings: Settings) -> Settings {
    Settings { stability: Stability { min_run: Span::seconds(3600), ..Stability::default() }, ..settings }
}

/// Whether a job has a slot on a server.
fn is_on(scheduler: &Scheduler, job: JobId, server: &str) -> bool {
    let state = scheduler.state();
    let mut slots = state.job(job).unwrap().verdict.allocation().into_iter().flat_map(|has| has.slots());
    slots.any(|slot| state.server_name(slot.server) == server)
}

#[test]
fn room_is_held_on_the_servers_of_one_place_only() {
    for engine in ENGINES {
        // The place is the first of two equal servers.
        for (free, starts) in [("s0", false), ("s1", true)] {
            let mut scheduler = cluster(pinned(plain(engine)), &[gpus("s0", 2), gpus("s1", 2)]);
            let low = ["a", "b", "c", "d"].map(|name| running(&mut scheduler, 0, one(name, 1, 0)));
            let wide = submit(&mut scheduler, 1000, one("wide", 2, 5));
            scheduler.decide(Time(1000));
            let there = low.into_iter().find(|job| is_on(&scheduler, *job, free)).unwrap();
            end(&mut scheduler, 2000, there);
            let small = submit(&mut scheduler, 3000, one("small", 1, 0));
            scheduler.decide(Time(3000));
            assert_eq!(runs(&scheduler, &[wide, small]), [false, starts], "{engine}: {free}");
            if !starts {
                let reason = verdict(&scheduler, small).reason().cloned();
                assert_eq!(reason, Some(Reason::Behind { job: wide, position: 1 }), "{engine}");
                // One of the same priority may have it.
                let equal = submit(&mut scheduler, 4000, one("equal", 1, 5));
                scheduler.decide(Time(4000));
                assert_eq!(runs(&scheduler, &[equal]), [true], "{engine}");
            }
        }
    }
}

#[test]
fn nothing_is_held_for_a_job_that_higher_ones_keep_out() {
    for engine in ENGINES {
        let mut scheduler = cluster(stable(plain(engine)), &[gpus("s0", 2)]);
        let high = running(&mut scheduler, 0, one("high", 1, 5));
        let wide = submit(&mut scheduler, 1000, one("wide", 2, 5));
        let low = submit(&mut scheduler, 1000, one("low", 1, 0));
        scheduler.decide(Time(1000));
        assert_eq!(runs(&scheduler, &[high, wide, low]), [true, false, true], "{engine}");
    }
}

#[test]
fn a_limit_of_its_tenant_holds_nothing() {
    for engine in ENGINES {
        let mut settings = stable(plain(engine));
        settings.tenants = [("team".into(), [("gpu".into(), 2000)].into())].into();
        let mut scheduler = cluster(settings, &[gpus("s0", 3)]);
        let of_team = |spec| JobSpec { tenant: "team".into(), ..spec };
        running(&mut scheduler, 0, of_team(one("first", 1, 5)));
        let wide = submit(&mut scheduler, 1000, of_team(one("wide", 2, 5)));
        let low = ["a", "b"].map(|name| submit(&mut scheduler, 1000, one(name, 1, 0)));
        scheduler.decide(Time(1000));
        assert_eq!(runs(&scheduler, &[wide, low[0], low[1]]), [false, true, true], "{engine}");
        let Verdict::Wait(reason) = verdict(&scheduler, wide) else { panic!("it runs") };
        assert!(!reason.waits_for_room(), "{reason:?}");
    }
}

#[test]
fn a_job_of_lower_priority_does_not_grow_into_held_room() {
    // Otherwise it is stopped for a job that then finds no room.
    let without = pinned(plain_with("optimus", &[("prefer", Parameter::Flag(false))]));
    let all = ENGINES.map(|engine| (pinned(plain(engine)), 1)).into_iter().chain([(without, 0)]);
    for (settings, expected) in all {
        let engine = settings.engine.clone();
        let mut scheduler = cluster(settings, &[gpus("s0", 2), gpus("s1", 2)]);
        let elastic = JobSpec { worker: role(&[("gpu", 1000)], 1, 2, 2), ..one("elastic", 1, 0) };
        let first = submit(&mut scheduler, 0, one("first", 1, 0));
        let elastic = submit(&mut scheduler, 0, elastic);
        let old = [first].into_iter().chain(["a", "b"].map(|name| submit(&mut scheduler, 0, one(name, 1, 0))));
        let old: Vec<_> = old.collect();
        scheduler.decide(Time(0));
        [&[elastic][..], &old].concat().into_iter().for_each(|job| seen(&mut scheduler, 0, job));
        assert!(is_on(&scheduler, elastic, "s1"));
        // These started so late that they can't make room when the first one may grow.
        old.into_iter().for_each(|job| end(&mut scheduler, 3_000_000, job));
        let low = ["d", "e", "f"].map(|name| submit(&mut scheduler, 3_000_000, one(name, 1, 0)));
        scheduler.decide(Time(3_000_000));
        low.into_iter().for_each(|job| seen(&mut scheduler, 3_000_000, job));
        let wide = submit(&mut scheduler, 3_001_000, one("wide", 2, 5));
        let on_the_first = low.into_iter().find(|job| is_on(&scheduler, *job, "s0")).unwrap();
        end(&mut scheduler, 3_700_000, on_the_first);
        scheduler.decide(Time(3_700_000));
        let workers = scheduler.state().job(elastic).unwrap().shape().workers;
        assert_eq!(workers, expected, "{engine}");
        assert_eq!(runs(&scheduler, &[wide]), [false]);
    }
}

/// Two jobs of priority 5 need two GPUs of one server each, and on each of two servers a pinned job of priority 0 has
/// one.
#[test]
fn what_is_held_for_one_job_is_not_given_away_for_the_next() {
    for engine in ENGINES {
        let mut scheduler = cluster(pinned(plain(engine)), &[gpus("s0", 2), gpus("s1", 2)]);
        let low = ["a", "b", "c", "d"].map(|name| running(&mut scheduler, 0, one(name, 1, 0)));
        let wide = ["first", "second"].map(|name| submit(&mut scheduler, 1000, one(name, 2, 5)));
        scheduler.decide(Time(1000));
        for server in ["s0", "s1"] {
            let there = low.iter().filter(|job| scheduler.state().job(**job).is_some());
            let there = *there.into_iter().find(|job| is_on(&scheduler, **job, server)).unwrap();
            end(&mut scheduler, 2000, there);
        }
        let small = ["x", "y", "z"].map(|name| submit(&mut scheduler, 3000, one(name, 1, 0)));
        scheduler.decide(Time(3000));
        assert_eq!(runs(&scheduler, &small), [false; 3], "{engine}");
        // As soon as one server is empty, the first one runs there.
        let other = *low.iter().find(|job| scheduler.state().job(**job).is_some()).unwrap();
        end(&mut scheduler, 4000, other);
        scheduler.decide(Time(4000));
        assert_eq!(runs(&scheduler, &wide), [true, false], "{engine}");
    }
}

/// A job first waits for its tenant's limit, then for the cluster's room. Both are one kind of reason.
#[test]
fn a_job_that_no_limit_keeps_any_more_gets_room() {
    for engine in ENGINES {
        let mut settings = plain(engine);
        settings.tenants = [("team".into(), [("gpu".into(), 2000)].into())].into();
        let mut scheduler = cluster(settings, &[gpus("s0", 3)]);
        let of_team = |spec| JobSpec { tenant: "team".into(), ..spec };
        let first = running(&mut scheduler, 0, of_team(one("first", 1, 9)));
        let wide = submit(&mut scheduler, 1000, of_team(one("wide", 2, 5)));
        scheduler.decide(Time(1000));
        let low = ["a", "b"].map(|name| running(&mut scheduler, 2000, one(name, 1, 0)));
        assert_eq!(runs(&scheduler, &[wide, low[0], low[1]]), [false, true, true], "{engine}");
        end(&mut scheduler, 20_000, first);
        let late = submit(&mut scheduler, 20_000, one("late", 1, 0));
        scheduler.decide(Time(20_000));
        assert_eq!(runs(&scheduler, &[wide, low[0], low[1], late]), [true, true, false, false], "{engine}");
    }
}

/// Limits of a tenant hold also for jobs that get their old slots back.
#[test]
fn a_job_that_others_replaced_within_a_limit_stays_away() {
    for engine in ENGINES {
        let mut settings = pinned(plain(engine));
        settings.tenants = [("team".into(), [("gpu".into(), 4000)].into())].into();
        settings.shape.grow_in_place = false;
        let zone = |name: &str, count, zone: &str| ServerSpec {
            labels: [("zone".to_owned(), zone.to_owned())].into(),
            ..gpus(name, count)
        };
        let servers = [zone("s0", 2, "a"), zone("s1", 4, "a"), zone("s2", 2, "b"), zone("s3", 2, "a")];
        let mut scheduler = cluster(settings, &servers);
        let of_team = |spec| JobSpec { tenant: "team".into(), ..spec };
        let elastic = JobSpec { worker: role(&[("gpu", 1000)], 1, 4, 4), ..one("elastic", 1, 0) };
        running(&mut scheduler, 0, of_team(elastic));
        running(&mut scheduler, 3_000_000, one("pin", 1, 0));
        submit(&mut scheduler, 3_700_000, one("wide", 4, 5));
        let labels = [("zone".to_owned(), "b".to_owned())].into();
        submit(&mut scheduler, 3_700_000, of_team(JobSpec { labels, ..one("labelled", 2, 0) }));
        for at in 0..20 {
            let before = before(&scheduler);
            let decision = scheduler.decide(Time(3_700_000 + at * 10_000));
            assert!(decision.dropped.is_empty() && decision.source == Source::Engine, "{engine}: {decision:?}");
            always(&scheduler, &before);
        }
    }
}

/// Nine jobs of a tenant at its limit wait, all before the one that others have the room of.
#[test]
fn jobs_that_cannot_run_do_not_hide_the_one_that_can() {
    for engine in ENGINES {
        let mut settings = plain(engine);
        settings.tenants = [("team".into(), [("gpu".into(), 1000)].into())].into();
        let mut scheduler = cluster(settings, &[gpus("s0", 3)]);
        let of_team = |spec| JobSpec { tenant: "team".into(), ..spec };
        let first = running(&mut scheduler, 0, of_team(one("first", 1, 5)));
        let low = ["a", "b"].map(|name| running(&mut scheduler, 1000, one(name, 1, 0)));
        for number in 0..9 {
            submit(&mut scheduler, 2000, of_team(one(&format!("team-{number}"), 1, 5)));
        }
        let wide = submit(&mut scheduler, 3000, one("wide", 2, 5));
        scheduler.decide(Time(3000));
        assert_eq!(runs(&scheduler, &[first, low[0], low[1], wide]), [true, false, false, true], "{engine}");
    }
}

/// What a job gained that the waiting one doesn't lack stays.
#[test]
fn a_job_without_gpus_starts_beside_held_ones() {
    for engine in ENGINES {
        let mut scheduler = cluster(pinned(plain(engine)), &[gpus("s0", 2)]);
        let low = ["a", "b"].map(|name| running(&mut scheduler, 0, one(name, 1, 0)));
        let wide = submit(&mut scheduler, 1000, one("wide", 2, 5));
        end(&mut scheduler, 2000, low[0]);
        let cpus = JobSpec { worker: role(&[("cpu", 1000)], 1, 1, 1), ..one("cpus", 1, -1) };
        let jobs = [submit(&mut scheduler, 3000, cpus), submit(&mut scheduler, 3000, one("gpu", 1, 0)), wide];
        scheduler.decide(Time(3000));
        assert_eq!(runs(&scheduler, &jobs), [true, false, false], "{engine}");
    }
}

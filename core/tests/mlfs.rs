//! Properties of `mlfs` beyond the contract: order and places of tasks, departures from overloaded servers, and stops.

use crate::common::build::{amounts, cluster, plain, plain_with, ring, runs, server, set, shape, submit, wp};
use trainmaster_core::{
    DeviceShare, End, Event, Incarnation, JobId, JobSpec, Mode, Report, Role, Scheduler, ServerSpec, Settings, SlotUse,
    Source, Span, Time, Verdict,
    job::{Partition, Phase, Resize, StopChoice},
    settings::Parameter,
};

const MINUTE: i64 = 60_000;

fn mlfs(flags: &[(&str, bool)], oversubscribe: u16) -> Settings {
    let flags: Vec<_> = flags.iter().map(|(name, on)| (*name, Parameter::Flag(*on))).collect();
    let mut settings = plain_with("mlfs", &flags);
    settings.shape.oversubscribe = oversubscribe;
    settings
}

fn gpus(name: &str, count: usize) -> ServerSpec {
    server(name, 16, 64, &vec!["gpu"; count])
}

/// An all-reduce job with a fixed number of GPUs.
fn fixed(name: &str, workers: u32) -> JobSpec {
    JobSpec { resize: Resize::Fixed, model: "m".into(), ..ring(name, (workers, workers, workers)) }
}

fn why(scheduler: &Scheduler, job: JobId) -> String {
    let job = scheduler.state().job(job).expect("active");
    job.verdict.reason().expect("it doesn't run").describe(scheduler.state())
}

/// Server and devices by index.
fn places(scheduler: &Scheduler, job: JobId) -> Vec<(u32, Vec<u16>)> {
    let job = scheduler.state().job(job).expect("active");
    let slots = job.verdict.allocation().expect("it runs").of(Role::Worker);
    slots.iter().map(|slot| (slot.server.0, slot.devices.iter().map(|share| share.device).collect())).collect()
}

/// The manager has started all issued slots.
fn observe(scheduler: &mut Scheduler, at: i64, job: JobId) {
    let state = scheduler.state();
    let known = state.job(job).expect("active").clone();
    let slots =
        known.issued.allocation.iter().flat_map(|issued| issued.slots()).map(|slot| trainmaster_core::ObservedSlot {
            role: slot.role,
            index: slot.index,
            server: state.server_name(slot.server).to_owned(),
            devices: slot.devices.to_vec(),
        });
    let slots = slots.collect();
    let event = Event::Observed { job, incarnation: known.issued.incarnation, slots, phase: Phase::Running };
    scheduler.apply(Time(at), event).expect("as told");
}

/// Each worker of these jobs on a server uses these thousandths of its device, and all of them use `cpu`.
fn measure(scheduler: &mut Scheduler, at: i64, name: &str, cpu: i64, uses: &[(JobId, u16)]) {
    let state = scheduler.state();
    let id = state.find_server(name).expect("known").id;
    let mut slots = Vec::new();
    let mut busy = std::collections::BTreeMap::<u16, u16>::new();
    for (job, milli) in uses {
        let job = state.job(*job).expect("active");
        let here = job.issued.allocation.iter().flat_map(|issued| issued.slots()).filter(|slot| slot.server == id);
        for slot in here {
            let devices: Vec<_> = slot.devices.iter().map(|share| DeviceShare { milli: *milli, ..*share }).collect();
            devices.iter().for_each(|share| *busy.entry(share.device).or_default() += share.milli);
            let used = amounts(&[("cpu", 200)]);
            slots.push(SlotUse { job: job.id, slot: (slot.role, slot.index), used, devices });
        }
    }
    let devices = busy.into_iter().map(|(device, milli)| DeviceShare { device, milli: milli.min(1000) }).collect();
    let event = Event::Utilisation { server: name.into(), used: amounts(&[("cpu", cpu)]), devices, slots };
    scheduler.apply(Time(at), event).expect("known");
}

fn report(scheduler: &mut Scheduler, at: i64, job: JobId, epoch: u32, accuracy: f64) {
    let known = scheduler.state().job(job).expect("active").clone();
    let report = Report {
        seq: epoch.into(),
        step: u64::from(epoch) * 10,
        epoch,
        steps_per_epoch: 10,
        accuracy: Some(accuracy),
        ..Report::default()
    };
    let event =
        Event::Reported { job, incarnation: Incarnation(known.issued.incarnation.0), slot: (Role::Worker, 0), report };
    scheduler.apply(Time(at), event).expect("in order");
}

fn fit(scheduler: &mut Scheduler, at: i64) {
    if let Some(ticket) = scheduler.prepare_fits(Time(at)) {
        scheduler.commit_fits(Time(at), ticket.run()).expect("just opened");
    }
}

#[test]
fn urgency_deadlines_and_waiting_time_decide_the_order() {
    let first = |settings: Settings, change: fn(&mut JobSpec), later: i64| {
        let mut scheduler = cluster(settings, &[gpus("s0", 1)]);
        let plain = submit(&mut scheduler, 0, fixed("plain", 1));
        let mut spec = fixed("other", 1);
        change(&mut spec);
        let other = submit(&mut scheduler, later, spec);
        scheduler.decide(Time(later));
        runs(&scheduler, &[plain, other])
    };
    assert_eq!(first(mlfs(&[], 1000), |_| {}, 0), [true, false], "who came first");
    assert_eq!(first(mlfs(&[], 1000), |spec| spec.urgency = Some(8), 0), [false, true]);
    assert_eq!(first(mlfs(&[("urgency", false)], 1000), |spec| spec.urgency = Some(8), 0), [true, false]);
    let soon = |spec: &mut JobSpec| spec.deadline = Some(Span(30 * MINUTE));
    let late = |spec: &mut JobSpec| {
        (spec.deadline, spec.name) = (Some(Span(3000 * MINUTE)), "late".into());
    };
    // Compared with a job whose deadline is far away.
    let mut scheduler = cluster(mlfs(&[], 1000), &[gpus("s0", 1)]);
    let jobs = [late as fn(&mut JobSpec), soon].map(|change| {
        let mut spec = fixed("soon", 1);
        change(&mut spec);
        submit(&mut scheduler, 0, spec)
    });
    scheduler.decide(Time(0));
    assert_eq!(runs(&scheduler, &jobs), [false, true]);
}

#[test]
fn early_jobs_go_before_jobs_with_little_gain() {
    let mut scheduler = cluster(mlfs(&[], 1000), &[gpus("s0", 1), gpus("s1", 1)]);
    let old = submit(&mut scheduler, 0, fixed("old", 2));
    scheduler.decide(Time(0));
    observe(&mut scheduler, 1, old);
    let known = scheduler.state().job(old).expect("active").issued.incarnation;
    for epoch in 1..=20_u32 {
        let loss = Some(1.0 / f64::from(epoch));
        let report = Report {
            seq: epoch.into(),
            step: u64::from(epoch) * 10,
            epoch,
            steps_per_epoch: 10,
            loss,
            ..Report::default()
        };
        let event = Event::Reported { job: old, incarnation: known, slot: (Role::Worker, 0), report };
        scheduler.apply(Time(i64::from(epoch) * MINUTE), event).expect("in order");
    }
    // A server fails under the job, and it waits together with a new one.
    scheduler.apply(Time(30 * MINUTE), Event::ServersLeft { names: vec!["s1".into()] }).expect("known");
    let new = submit(&mut scheduler, 30 * MINUTE, fixed("new", 1));
    set(&mut scheduler, 30 * MINUTE, gpus("s1", 1));
    scheduler.decide(Time(30 * MINUTE));
    assert_eq!(runs(&scheduler, &[old, new]), [false, true]);
    assert_eq!(why(&scheduler, old), "needs 2 gpu; the cluster has 1 left of 2");
}

#[test]
fn partitions_are_placed_close_unless_bandwidth_is_ignored() {
    let placed = |flags: &[(&str, bool)]| {
        let mut scheduler = cluster(mlfs(flags, 1000), &[gpus("s0", 2), gpus("s1", 2)]);
        let spec = JobSpec { partitions: Partition::chain(2), ..fixed("cut", 2) };
        let job = submit(&mut scheduler, 0, spec);
        scheduler.decide(Time(0));
        let places = places(&scheduler, job);
        places[0].0 == places[1].0
    };
    assert!(placed(&[]));
    assert!(!placed(&[("bandwidth", false)]), "the least used server");
}

#[test]
fn measured_use_counts_not_reservations() {
    let mut scheduler = cluster(mlfs(&[], 1000), &[gpus("s0", 2), gpus("s1", 2)]);
    let resident = submit(&mut scheduler, 0, fixed("resident", 2));
    scheduler.decide(Time(0));
    observe(&mut scheduler, 1, resident);
    let home = places(&scheduler, resident)[0].0;
    assert_eq!(home, places(&scheduler, resident)[1].0);
    // Foreign processes use 15 of the 16 cores of the other server.
    let (other, mine) = if home == 0 { ("s1", "s0") } else { ("s0", "s1") };
    measure(&mut scheduler, 2, other, 15_000, &[]);
    let job = submit(&mut scheduler, 3, JobSpec { model: "other".into(), ..fixed("job", 1) });
    scheduler.decide(Time(3));
    // No slots share that server yet, so a single task may be placed there, as reserved. Two tasks would be too much.
    assert_eq!(runs(&scheduler, &[job]), [true]);
    observe(&mut scheduler, 4, job);
    measure(&mut scheduler, 5, other, 15_500, &[(job, 800)]);
    let second = submit(&mut scheduler, 6, JobSpec { model: "other".into(), ..fixed("second", 1) });
    scheduler.decide(Time(6));
    let text = why(&scheduler, second);
    assert!(text.contains("carry too much") && text.contains("cpu") && text.contains(other), "{text} ({mine})");
}

#[test]
fn measured_tasks_share_a_gpu_where_the_pool_oversubscribes() {
    let two = |oversubscribe: u16, measured: Option<u16>| {
        let mut scheduler = cluster(mlfs(&[], oversubscribe), &[gpus("s0", 1)]);
        let first = submit(&mut scheduler, 0, fixed("first", 1));
        scheduler.decide(Time(0));
        observe(&mut scheduler, 1, first);
        if let Some(milli) = measured {
            // Its use during the start is no evidence about training.
            measure(&mut scheduler, 2, "s0", 1000, &[(first, 1)]);
            report(&mut scheduler, 2, first, 1, 0.1);
            measure(&mut scheduler, 2, "s0", 1000, &[(first, milli)]);
        }
        let second = submit(&mut scheduler, 3, fixed("second", 1));
        scheduler.decide(Time(3));
        runs(&scheduler, &[first, second])
    };
    assert_eq!(two(2000, Some(400)), [true, true]);
    assert_eq!(two(1000, Some(400)), [true, false], "the pool doesn't oversubscribe");
    assert_eq!(two(2000, None), [true, false], "nobody knows what it uses");
    assert_eq!(two(2000, Some(500)), [true, false], "both would use more than nine tenths");
}

/// Reports a server's load without its slots' parts, as managers do that don't know them.
fn measure_whole(scheduler: &mut Scheduler, at: i64, name: &str, cpu: i64) {
    measure(scheduler, at, name, cpu, &[]);
}

#[test]
fn servers_of_managers_that_reserve_by_themselves_are_not_oversubscribed() {
    let two = |kept: &str| {
        let labels = [("idle_gpus".to_owned(), kept.to_owned())].into();
        let mut scheduler = cluster(mlfs(&[], 2000), &[ServerSpec { labels, ..gpus("s0", 1) }]);
        let first = submit(&mut scheduler, 0, fixed("first", 1));
        scheduler.decide(Time(0));
        observe(&mut scheduler, 1, first);
        // Its GPU isn't listed, so it counts as idle.
        measure_whole(&mut scheduler, 2, "s0", 1000);
        let second = submit(&mut scheduler, 3, fixed("second", 1));
        scheduler.decide(Time(3));
        let found = runs(&scheduler, &[first, second]);
        // The label also counts if the settings or the labels come later.
        scheduler.apply(Time(4), Event::Configured(Box::new(mlfs(&[], 1000)))).expect("valid");
        scheduler.apply(Time(4), Event::Configured(Box::new(mlfs(&[], 3000)))).expect("valid");
        let bookable = |scheduler: &Scheduler| scheduler.state().find_server("s0").expect("known").bookable;
        let configured = bookable(&scheduler);
        set(&mut scheduler, 5, gpus("s0", 1));
        (found, configured, bookable(&scheduler))
    };
    assert_eq!(two("no"), (vec![true, true], 3000, 3000));
    assert_eq!(two("kept"), (vec![true, false], 1000, 3000));
}

#[test]
fn a_load_without_the_slots_parts_ends_and_moves_nothing() {
    let mut scheduler = cluster(mlfs(&[], 1000), &[gpus("s0", 4), gpus("s1", 4)]);
    let residents = ["a", "b"].map(|name| submit(&mut scheduler, 0, fixed(name, 2)));
    scheduler.decide(Time(0));
    residents.iter().for_each(|job| observe(&mut scheduler, 1, *job));
    let before = residents.map(|job| places(&scheduler, job));
    for minute in 1..=120 {
        let at = minute * MINUTE;
        ["s0", "s1"].iter().for_each(|server| measure_whole(&mut scheduler, at, server, 16_000));
        let decision = scheduler.decide(Time(at));
        assert_eq!((decision.source, decision.changes.len()), (Source::Engine, 0), "after {minute} min");
    }
    assert_eq!(residents.map(|job| places(&scheduler, job)), before);
    // Servers that are shared and full take no more until they are less busy.
    let late = submit(&mut scheduler, 121 * MINUTE, fixed("late", 1));
    scheduler.decide(Time(121 * MINUTE));
    let full = runs(&scheduler, &[late]);
    ["s0", "s1"].iter().for_each(|server| measure_whole(&mut scheduler, 122 * MINUTE, server, 4_000));
    assert_eq!(scheduler.decide(Time(122 * MINUTE)).source, Source::Engine, "the guard had nothing to refuse");
    assert_eq!((full, runs(&scheduler, &[late])), (vec![false], vec![true]));
}

#[test]
fn a_server_with_more_reserved_than_it_has_has_nothing_free() {
    let mut scheduler = cluster(mlfs(&[], 2000), &[gpus("s0", 1)]);
    let mut jobs = Vec::new();
    for (at, name) in [(10, "first"), (20, "second")] {
        let job = submit(&mut scheduler, at, fixed(name, 1));
        scheduler.decide(Time(at));
        observe(&mut scheduler, at + 1, job);
        jobs.push(job);
        let used: Vec<_> = jobs.iter().map(|job| (*job, 200)).collect();
        measure(&mut scheduler, at + 2, "s0", 1000, &used);
        report(&mut scheduler, at + 3, job, 1, 0.1);
        measure(&mut scheduler, at + 4, "s0", 1000, &used);
    }
    let third = submit(&mut scheduler, 30, fixed("third", 1));
    scheduler.decide(Time(30));
    assert_eq!(runs(&scheduler, &[jobs[0], jobs[1], third]), [true, true, false]);
    let findings = scheduler.explain(Time(31), third).unwrap().findings;
    assert!(findings.iter().any(|found| found.text.contains("the largest free is 0 (s0)")), "{findings:#?}");
}

#[test]
fn who_submits_is_told_that_nothing_is_measured() {
    let mut scheduler = cluster(mlfs(&[], 2000), &[gpus("s0", 1)]);
    let caveats = scheduler.caveats(&fixed("job", 1));
    assert_eq!(caveats.len(), 1);
    assert!(caveats[0].starts_with("engine mlfs: no manager has reported the load of a server"), "{caveats:?}");
    measure(&mut scheduler, 1, "s0", 0, &[]);
    assert!(scheduler.caveats(&fixed("job", 1)).is_empty());
}

#[test]
fn who_submits_is_told_that_a_rule_for_early_stops_has_no_effect() {
    let under = |stop, settings: Settings| {
        let spec = JobSpec { stop_under_load: stop, ..fixed("job", 1) };
        cluster(settings, &[gpus("s0", 1)]).caveats(&spec)
    };
    let told = under(StopChoice::Accuracy, plain("drf"));
    let expected = "job: stop and stop_under_load have no effect: early_stop is off in [scheduler], and engine drf \
                    ends no job early";
    assert_eq!(told, [expected]);
    assert!(under(StopChoice::Epochs, plain("drf")).is_empty());
    assert!(under(StopChoice::Accuracy, Settings { early_stop: true, ..plain("drf") }).is_empty());
    let told = |flags| under(StopChoice::Optimal, mlfs(flags, 2000)).len();
    assert_eq!((told(&[]), told(&[("stop", false)])), (1, 2), "the load isn't measured");
}

/// Two jobs on one GPU of s0, the second with a higher priority, and s1 beside it.
fn crowded(flags: &[(&str, bool)]) -> (Scheduler, JobId, JobId) {
    let mut scheduler = cluster(mlfs(flags, 2000), &[gpus("s0", 1)]);
    let low = submit(&mut scheduler, 0, fixed("low", 1));
    scheduler.decide(Time(0));
    observe(&mut scheduler, 1, low);
    report(&mut scheduler, 2, low, 1, 0.1);
    measure(&mut scheduler, 2, "s0", 1000, &[(low, 300)]);
    let high = submit(&mut scheduler, 3, JobSpec { urgency: Some(9), ..fixed("high", 1) });
    scheduler.decide(Time(3));
    observe(&mut scheduler, 4, high);
    assert_eq!(runs(&scheduler, &[low, high]), [true, true]);
    set(&mut scheduler, 5, gpus("s1", 1));
    (scheduler, low, high)
}

#[test]
fn the_least_important_task_leaves_an_overloaded_gpu() {
    let (mut scheduler, low, high) = crowded(&[("weighed", false)]);
    measure(&mut scheduler, 6, "s0", 1000, &[(low, 600), (high, 600)]);
    scheduler.decide(Time(MINUTE));
    assert_eq!((places(&scheduler, low)[0].0, places(&scheduler, high)[0].0), (1, 0));
    let (mut scheduler, low, high) = crowded(&[("migrate", false)]);
    measure(&mut scheduler, 6, "s0", 1000, &[(low, 600), (high, 600)]);
    scheduler.decide(Time(MINUTE));
    assert_eq!((places(&scheduler, low)[0].0, places(&scheduler, high)[0].0), (0, 0));
}

/// Two jobs on the one GPU of s0, whose restarts take 20 s, and s1 beside it. The first usually uses 800 thousandths.
fn sharing(usual: u16) -> (Scheduler, [JobId; 2]) {
    let spec = |name: &str| JobSpec { restart_cost: Some(Span::seconds(20)), ..fixed(name, 1) };
    let mut scheduler = cluster(mlfs(&[], 2000), &[gpus("s0", 1)]);
    let first = submit(&mut scheduler, 0, spec("first"));
    scheduler.decide(Time(0));
    observe(&mut scheduler, 1, first);
    report(&mut scheduler, 2, first, 1, 0.1);
    measure(&mut scheduler, 2, "s0", 1000, &[(first, 300)]);
    let second = submit(&mut scheduler, 3, spec("second"));
    scheduler.decide(Time(3));
    observe(&mut scheduler, 4, second);
    (0..100).for_each(|_| measure(&mut scheduler, 5, "s0", 1000, &[(first, usual)]));
    set(&mut scheduler, 6, gpus("s1", 1));
    scheduler.decide(Time(6));
    assert_eq!([first, second].map(|job| places(&scheduler, job)[0].0), [0, 0]);
    (scheduler, [first, second])
}

/// Minutes until a task leaves, where their uses alternate from minute to minute.
fn minutes(usual: u16, uses: [[u16; 2]; 2]) -> Option<i64> {
    let (mut scheduler, jobs) = sharing(usual);
    (1..60).find(|minute| {
        let [first, second] = uses[*minute as usize % 2];
        measure(&mut scheduler, MINUTE * minute - 1, "s0", 1000, &[(jobs[0], first), (jobs[1], second)]);
        scheduler.decide(Time(MINUTE * minute));
        jobs.iter().any(|job| places(&scheduler, *job)[0].0 == 1)
    })
}

#[test]
fn a_task_leaves_once_as_much_time_is_lost_as_its_restart_takes() {
    // 1.5 GPUs are wanted of one: both jobs lose a third of their time, 40 s in a minute together.
    assert_eq!(minutes(300, [[750, 750]; 2]), Some(1));
    // A fiftieth: 2.35 s in a minute.
    assert_eq!(minutes(300, [[510, 510]; 2]), Some(9));
    // Every other minute: 16 s then, and nothing in between.
    assert_eq!(minutes(300, [[400, 400], [600, 550]]), Some(3));
    assert_eq!(minutes(300, [[500, 460]; 2]), None, "above nine tenths, but nobody loses anything");
    // The GPU is full, and its tasks use less than usual: 1.5 GPUs are wanted again. What they use there isn't usual.
    assert_eq!(minutes(750, [[500, 500]; 2]), Some(1));
    assert_eq!(minutes(500, [[500, 500]; 2]), None, "full, but as usual");
}

#[test]
fn a_loss_on_one_gpu_moves_no_task_of_another() {
    let mut scheduler = cluster(mlfs(&[], 2000), &[gpus("s0", 2)]);
    let spec = |name: String| JobSpec { restart_cost: Some(Span::seconds(20)), ..fixed(&name, 1) };
    let jobs: Vec<JobId> = (0..4)
        .map(|at| {
            let job = submit(&mut scheduler, at, spec(format!("j{at}")));
            scheduler.decide(Time(at));
            observe(&mut scheduler, at, job);
            report(&mut scheduler, at, job, 1, 0.1);
            let here: Vec<(JobId, u16)> = scheduler.state().jobs.keys().map(|job| (*job, 300)).collect();
            measure(&mut scheduler, at, "s0", 1000, &here);
            job
        })
        .collect();
    set(&mut scheduler, 5, gpus("s1", 2));
    let device = |job: &JobId| places(&scheduler, *job)[0].1[0];
    let uses: Vec<(JobId, u16)> = jobs.iter().map(|job| (*job, if device(job) == 0 { 750 } else { 475 })).collect();
    measure(&mut scheduler, 6, "s0", 1000, &uses);
    scheduler.decide(Time(MINUTE));
    let moved: Vec<u16> = uses.iter().filter(|(job, _)| places(&scheduler, *job)[0].0 == 1).map(|it| it.1).collect();
    assert_eq!(moved, [750], "one of the GPU that costs time");
}

#[test]
fn a_task_stays_without_a_target_and_waits_if_all_are_overloaded() {
    // The other server has no GPU, but isn't overloaded.
    let (mut scheduler, low, high) = crowded(&[("weighed", false)]);
    set(&mut scheduler, 5, gpus("s1", 0));
    measure(&mut scheduler, 6, "s0", 1000, &[(low, 600), (high, 600)]);
    scheduler.decide(Time(MINUTE));
    assert_eq!((places(&scheduler, low)[0].0, places(&scheduler, high)[0].0), (0, 0));
    // There is no other server: one of them waits, with a reason.
    let (mut scheduler, low, high) = crowded(&[("weighed", false)]);
    scheduler.apply(Time(5), Event::ServersLeft { names: vec!["s1".into()] }).expect("known");
    measure(&mut scheduler, 6, "s0", 1000, &[(low, 600), (high, 600)]);
    scheduler.decide(Time(MINUTE));
    assert_eq!(runs(&scheduler, &[low, high]), [false, true]);
    assert!(why(&scheduler, low).contains("100.0 % of gpu are in use on s0"), "{}", why(&scheduler, low));
}

/// A job on one GPU that has reached its accuracy and stops under load, with settings for `early_stop`.
fn trained(settings: Settings) -> (Scheduler, JobId) {
    let mut scheduler = cluster(Settings { early_stop: true, ..settings }, &[gpus("s0", 3)]);
    let stop_under_load = StopChoice::Accuracy;
    let job = submit(&mut scheduler, 0, JobSpec { accuracy: Some(0.8), stop_under_load, ..fixed("job", 1) });
    scheduler.decide(Time(0));
    observe(&mut scheduler, 1, job);
    report(&mut scheduler, MINUTE, job, 1, 0.9);
    fit(&mut scheduler, MINUTE);
    scheduler.decide(Time(MINUTE));
    (scheduler, job)
}

#[test]
fn a_tenants_limit_is_no_load_for_others() {
    let mut settings = plain("fifo");
    settings.tenants.insert("poor".into(), amounts(&[("gpu", 1000)]));
    let (mut scheduler, job) = trained(settings);
    let [_, poor] = ["first", "second"]
        .map(|name| submit(&mut scheduler, 2 * MINUTE, JobSpec { tenant: "poor".into(), ..fixed(name, 1) }));
    scheduler.decide(Time(2 * MINUTE));
    scheduler.decide(Time(3 * MINUTE));
    assert!(why(&scheduler, poor).contains("poor"), "{}", why(&scheduler, poor));
    assert_eq!(runs(&scheduler, &[job]), [true]);
    submit(&mut scheduler, 4 * MINUTE, fixed("large", 2));
    scheduler.decide(Time(4 * MINUTE));
    assert_eq!(scheduler.due(), Some(Time(4 * MINUTE)), "the job can end now");
    scheduler.decide(Time(4 * MINUTE));
    assert!(matches!(scheduler.state().job(job).unwrap().verdict, Verdict::Stop(_)));
}

#[test]
fn load_that_is_gone_stops_no_job() {
    let (mut scheduler, job) = trained(plain("fifo"));
    let large = submit(&mut scheduler, 2 * MINUTE, fixed("large", 3));
    scheduler.decide(Time(2 * MINUTE));
    scheduler.apply(Time(3 * MINUTE), Event::JobEnded { job: large, end: End::Cancelled }).unwrap();
    scheduler.decide(Time(3 * MINUTE));
    assert_eq!(runs(&scheduler, &[job]), [true]);
}

#[test]
fn an_early_stop_of_shadow_mode_is_void() {
    for held in [false, true] {
        void_after_shadow(held);
    }
}

fn void_after_shadow(held: bool) {
    let (mut scheduler, job) = trained(plain("fifo"));
    let at = |minutes| Time(minutes * MINUTE);
    scheduler.apply(at(2), Event::ModeSet(Mode::Shadow)).unwrap();
    submit(&mut scheduler, 2 * MINUTE, fixed("large", 3));
    for minute in 3..6 {
        scheduler.decide(at(minute));
    }
    assert!(matches!(scheduler.state().job(job).unwrap().verdict, Verdict::Stop(_)), "shadow mode shows it");
    if held {
        scheduler.apply(at(6), Event::JobHeld { job, held }).unwrap();
    }
    scheduler.apply(at(6), Event::ModeSet(Mode::Active)).unwrap();
    assert_eq!(runs(&scheduler, &[job]), [!held]);
    scheduler.decide(at(6));
    assert!(!matches!(scheduler.state().job(job).unwrap().verdict, Verdict::Stop(_)), "no decision found load yet");
    scheduler.state().audit().unwrap();
}

#[test]
fn a_job_stops_by_its_rule_and_under_load_by_its_other_one() {
    stops_by_its_rules(&mlfs(&[], 1000));
    for engine in ["drf", "fifo", "optimus", "srtf", "tiresias"] {
        stops_by_its_rules(&Settings { early_stop: true, ..plain(engine) });
    }
}

fn stops_by_its_rules(settings: &Settings) {
    let stopped = |stop: StopChoice, under_load: StopChoice, accuracies: &[f64], waits: bool| {
        let mut scheduler = cluster(settings.clone(), &[gpus("s0", 1)]);
        let mut spec = JobSpec { accuracy: Some(0.8), stop, stop_under_load: under_load, ..fixed("job", 1) };
        spec.convergence.max_epochs = 100;
        let job = submit(&mut scheduler, 0, spec);
        scheduler.decide(Time(0));
        observe(&mut scheduler, 1, job);
        for (epoch, accuracy) in (1..).zip(accuracies) {
            report(&mut scheduler, i64::from(epoch) * MINUTE, job, epoch, *accuracy);
        }
        if waits {
            submit(&mut scheduler, 200 * MINUTE, fixed("next", 1));
        }
        fit(&mut scheduler, 200 * MINUTE);
        let now = Time(200 * MINUTE);
        scheduler.decide(now);
        // The scheduler knows that the other job waits after the decision that found no room, and asks for the next.
        if let Some(next) = scheduler.due() {
            scheduler.decide(next);
        }
        match &scheduler.state().job(job).expect("active").verdict {
            Verdict::Stop(reason) => Some(reason.describe(scheduler.state())),
            _ => None,
        }
    };
    use StopChoice::{Accuracy, Epochs, Optimal};
    let good = [0.3, 0.6, 0.81];
    assert_eq!(stopped(Epochs, Epochs, &good, true), None);
    assert_eq!(stopped(Epochs, Accuracy, &good, false), None, "nobody waits");
    let reached = Some("its accuracy is 81.0 %; 80.0 % was asked for".to_owned());
    assert_eq!(stopped(Epochs, Accuracy, &good, true), reached);
    assert_eq!(stopped(Accuracy, Accuracy, &good, false), reached);
    assert_eq!(stopped(Accuracy, Accuracy, &[0.3, 0.6, 0.7], true), None);
    let hopeless: Vec<f64> = (0..60).map(|epoch| 0.5 - 0.3 / f64::from(epoch + 1)).collect();
    let text = stopped(Optimal, Optimal, &hopeless, false).expect("it can't get there");
    assert!(text.contains("less than the 80.0 %"), "{text}");
    assert_eq!(stopped(Accuracy, Accuracy, &hopeless, true), None, "its owner wants that accuracy");
}

#[test]
fn a_round_without_changes_moves_no_task() {
    let mut scheduler = cluster(mlfs(&[], 2000), &[gpus("s0", 2), gpus("s1", 2)]);
    let jobs: Vec<JobId> = (0..3).map(|n| submit(&mut scheduler, 0, fixed(&format!("j{n}"), 1))).collect();
    scheduler.decide(Time(0));
    jobs.iter().for_each(|job| observe(&mut scheduler, 1, *job));
    let before: Vec<_> = jobs.iter().map(|job| places(&scheduler, *job)).collect();
    let decision = scheduler.decide(Time(MINUTE));
    assert!(decision.changes.is_empty());
    assert_eq!(jobs.iter().map(|job| places(&scheduler, *job)).collect::<Vec<_>>(), before);
    assert_eq!(shape(&scheduler, jobs[0]), wp(1, 0));
}

#[test]
fn no_task_is_placed_on_a_server_that_tasks_leave() {
    // s1 has cores but no GPU. The job that should leave s0 stays, and its cores aren't free.
    let mut scheduler = cluster(mlfs(&[], 2000), &[gpus("s0", 2), gpus("s1", 0)]);
    let hungry = |name: &str, model: &str| {
        let worker = crate::common::build::role(&[("gpu", 1000), ("cpu", 6000)], 1, 1, 1);
        JobSpec { worker, model: model.into(), ..fixed(name, 1) }
    };
    let jobs = [hungry("a", "m"), hungry("b", "m")].map(|spec| submit(&mut scheduler, 0, spec));
    scheduler.decide(Time(0));
    jobs.iter().for_each(|job| observe(&mut scheduler, 1, *job));
    let uses = [(jobs[0], 300), (jobs[1], 300)];
    measure(&mut scheduler, 2, "s0", 15_500, &uses);
    let late = submit(&mut scheduler, 3, JobSpec { urgency: Some(10), ..hungry("late", "other") });
    let decision = scheduler.decide(Time(3));
    assert_eq!(decision.source, Source::Engine, "the guard had nothing to refuse");
    assert_eq!(runs(&scheduler, &[jobs[0], jobs[1], late]), [true, true, false]);
}

#[test]
fn impossible_measurements_are_refused_and_unknown_slots_ignored() {
    let mut scheduler = cluster(mlfs(&[], 1000), &[gpus("s0", 1), gpus("s1", 1)]);
    let job = submit(&mut scheduler, 0, fixed("job", 1));
    scheduler.decide(Time(0));
    observe(&mut scheduler, 1, job);
    let mut say = |server: &str, used: &[(&str, i64)], device: u16, milli: u16, index: u32| {
        let devices = vec![DeviceShare { device, milli }];
        let slots = vec![SlotUse { job, slot: (Role::Worker, index), used: amounts(&[]), devices: devices.clone() }];
        let event = Event::Utilisation { server: server.into(), used: amounts(used), devices, slots };
        scheduler.apply(Time(2), event).map_err(|error| error.to_string())
    };
    for (said, expected) in [
        (say("nowhere", &[], 0, 1, 0), "no server \"nowhere\""),
        (say("s0", &[("cpu", -1)], 0, 1, 0), "cpu = -1"),
        (say("s0", &[("gpu", 1)], 0, 1, 0), "device by device"),
        (say("s0", &[], 1, 1, 0), "device 1 is measured; it lists 1"),
        (say("s0", &[], 0, 1001, 0), "1001 thousandths"),
    ] {
        let error = said.expect_err(expected);
        assert!(error.contains(expected), "{error}");
    }
    say("s0", &[], 0, 500, 7).expect("a slot that isn't there is left out");
    let measured = scheduler.state().find_server("s0").expect("known").measured.clone().expect("just now");
    assert!(measured.slots.is_empty());
    assert_eq!(measured.total.devices[0], 500);
}

//! Tests of OASiS: admission, execution by slot, repair, and the treatment of rejected jobs.

use std::collections::BTreeMap;

use crate::common::build::{amounts, plain_with, role, set, submit, wp};
use trainmaster_core::{
    Budget, Event, EventError, JobId, JobSpec, ObservedSlot, Phase, Reason, Report, Role, Scheduler, ServerSpec, Shape,
    Span, Time, Verdict,
    engines::oasis::{Memo, known_bounds},
    job::{Dataset, ProfiledSpeed, Utility, UtilityKind},
    reason::ReasonKind,
    settings::{Parameter, Stability},
};

const MINUTE: i64 = 60_000;
const SLOT: i64 = 20 * MINUTE;

fn text(text: &str) -> Parameter {
    Parameter::Text(text.into())
}

fn server(name: &str, hosts: &str, cpus: i64) -> ServerSpec {
    ServerSpec {
        name: name.into(),
        capacity: amounts(&[("cpu", cpus * 1000)]),
        labels: [("hosts".to_owned(), hosts.to_owned())].into(),
        ..ServerSpec::default()
    }
}

/// One chunk per worker and slot; one parameter server for up to eight workers.
fn job(name: &str, chunks: u32, epochs: u32, utility: Utility) -> JobSpec {
    JobSpec {
        worker: role(&[("cpu", 1000), ("bandwidth", 1000)], 1, 16, 1),
        server: Some(role(&[("cpu", 1000), ("bandwidth", 8000)], 1, 16, 1)),
        dataset: Some(Dataset {
            chunks,
            batches_per_chunk: 10,
            epochs,
            batch_time: Some(Span(SLOT / 10)),
            ..Dataset::default()
        }),
        utility: Some(utility),
        ..JobSpec::minimal(name)
    }
}

fn constant(value: f64) -> Utility {
    Utility { value, ..Utility::new(UtilityKind::Constant) }
}

/// Utility within a number of slots only.
fn within(slots: i64, value: f64) -> Utility {
    Utility { value, target: Span((slots - 1) * SLOT), ..Utility::new(UtilityKind::Step) }
}

fn cluster(parameters: &[(&str, Parameter)], cpus: (i64, i64)) -> Scheduler {
    let mut all = vec![("horizon", Parameter::Number(20.0))];
    all.extend(parameters.iter().cloned());
    let mut scheduler = Scheduler::new(plain_with("oasis", &all)).expect("settings are allowed");
    for (name, hosts, cpus) in [("h", "workers", cpus.0), ("k", "servers", cpus.1)] {
        let mut spec = server(name, hosts, cpus);
        spec.capacity.insert("bandwidth".into(), 1_000_000);
        set(&mut scheduler, 0, spec);
    }
    scheduler
}

/// The manager enacts all issues at once.
fn obey(scheduler: &mut Scheduler) {
    for _ in 0..3 {
        for issue in scheduler.take_issues() {
            let slots = match &issue.verdict {
                Verdict::Run(allocation) => allocation.slots().to_vec(),
                _ => Vec::new(),
            };
            let seen = slots.iter().map(|slot| ObservedSlot {
                role: slot.role,
                index: slot.index,
                server: scheduler.state().server_name(slot.server).to_owned(),
                devices: slot.devices.to_vec(),
            });
            let event = Event::Observed {
                job: issue.job,
                incarnation: issue.incarnation,
                slots: seen.collect(),
                phase: Phase::Running,
            };
            let now = scheduler.state().now;
            scheduler.apply(now, event).expect("the job is known");
        }
    }
}

/// One decision and its enactment.
fn decide(scheduler: &mut Scheduler, at: i64) {
    let decision = scheduler.decide(Time(at));
    assert_eq!(scheduler.last_error(), None, "{decision:?}");
    obey(scheduler);
}

fn shape(scheduler: &Scheduler, job: JobId) -> Shape {
    scheduler.state().job(job).expect("active").shape()
}

fn reason(scheduler: &Scheduler, job: JobId) -> Reason {
    let verdict = &scheduler.state().job(job).expect("active").verdict;
    verdict.reason().unwrap_or_else(|| panic!("{verdict:?}")).clone()
}

fn report(scheduler: &mut Scheduler, at: i64, job: JobId, seq: u64, epochs: f64) {
    let incarnation = scheduler.state().job(job).unwrap().issued.incarnation;
    let report =
        Report { seq, step: (epochs * 100.0) as u64, epoch: epochs as u32, steps_per_epoch: 100, ..Report::default() };
    let event = Event::Reported { job, incarnation, slot: (Role::Worker, 0), report };
    scheduler.apply(Time(at), event).expect("a good report");
}

#[test]
fn a_schedule_is_deployed_slot_by_slot() {
    let mut scheduler = cluster(&[], (4, 4));
    // Eight chunks, at most four at once: two slots of four workers have more utility than any later end.
    let a = submit(&mut scheduler, 0, job("a", 4, 2, within(2, 100.0)));
    decide(&mut scheduler, 0);
    assert_eq!(shape(&scheduler, a), wp(4, 1));
    assert_eq!(scheduler.due(), Some(Time(SLOT)), "it wants to run at the next slot");
    // All servers are booked until then, so b has its turn afterwards, at a known time.
    let b = submit(&mut scheduler, MINUTE, job("b", 4, 1, constant(100.0)));
    decide(&mut scheduler, MINUTE);
    assert_eq!(reason(&scheduler, b), Reason::Scheduled { next_start: Time(2 * SLOT) });
    let words = reason(&scheduler, b).describe(scheduler.state());
    assert!(words.contains("39m"), "{words}");
    decide(&mut scheduler, SLOT);
    assert_eq!((shape(&scheduler, a), shape(&scheduler, b)), (wp(4, 1), wp(0, 0)));
    scheduler
        .apply(Time(2 * SLOT), Event::JobEnded { job: a, end: trainmaster_core::End::Completed })
        .expect("it is active");
    obey(&mut scheduler);
    decide(&mut scheduler, 2 * SLOT);
    assert!(shape(&scheduler, b).workers > 0, "{:?}", scheduler.state().job(b).unwrap().verdict);
}

#[test]
fn rejected_jobs_are_held_cancelled_or_tried_again() {
    // A job of small utility, when a job of large utility has booked everything.
    let rejected = |parameters: &[(&str, Parameter)]| {
        let mut scheduler = cluster(parameters, (4, 4));
        let great = submit(&mut scheduler, 0, job("great", 4, 2, within(2, 100.0)));
        decide(&mut scheduler, 0);
        let small = submit(&mut scheduler, 0, job("small", 2, 1, within(3, 0.001)));
        decide(&mut scheduler, 0);
        (scheduler, great, small)
    };
    let (mut scheduler, great, small) = rejected(&[("horizon", Parameter::Number(2.0))]);
    let Verdict::Reject(Reason::Unfinishable { needed: 2, free: 0, until }) =
        scheduler.state().job(small).unwrap().verdict
    else {
        panic!("{:?}", scheduler.state().job(small).unwrap().verdict)
    };
    assert_eq!(until, Time(2 * SLOT));
    // A held job only returns by a user's command.
    scheduler.apply(Time(0), Event::JobEnded { job: great, end: trainmaster_core::End::Completed }).unwrap();
    obey(&mut scheduler);
    decide(&mut scheduler, 0);
    assert!(matches!(scheduler.state().job(small).unwrap().verdict, Verdict::Reject(_)));
    for held in [true, false] {
        scheduler.apply(Time(0), Event::JobHeld { job: small, held }).unwrap();
    }
    decide(&mut scheduler, 0);
    assert!(shape(&scheduler, small).workers > 0);

    let two_slots = ("horizon", Parameter::Number(2.0));
    let (scheduler, _, small) = rejected(&[two_slots.clone(), ("rejected", text("cancelled"))]);
    assert!(matches!(scheduler.state().job(small).unwrap().verdict, Verdict::Stop(Reason::Unfinishable { .. })));

    let (mut scheduler, great, small) =
        rejected(&[two_slots, ("rejected", text("retry")), ("retry_after", text("20m"))]);
    assert!(matches!(scheduler.state().job(small).unwrap().verdict, Verdict::Wait(Reason::Unfinishable { .. })));
    assert_eq!(scheduler.due(), Some(Time(SLOT)));
    scheduler.apply(Time(MINUTE), Event::JobEnded { job: great, end: trainmaster_core::End::Completed }).unwrap();
    obey(&mut scheduler);
    decide(&mut scheduler, 2 * MINUTE);
    assert_eq!(shape(&scheduler, small), wp(0, 0));
    assert_eq!(scheduler.due(), Some(Time(SLOT)), "the one that is tried again wakes it");
    decide(&mut scheduler, SLOT);
    assert!(shape(&scheduler, small).workers > 0);
}

#[test]
fn an_admission_check_predicts_rejections() {
    for action in ["held", "cancelled", "retry"] {
        let mut scheduler = cluster(&[("horizon", Parameter::Number(2.0)), ("rejected", text(action))], (4, 4));
        let ask = |scheduler: &Scheduler, spec: JobSpec| {
            let admission = scheduler.admission(spec).expect("it can be submitted");
            admission.expect("the engine decides at arrivals").run(Budget::UNLIMITED)
        };
        let small = || job("small", 2, 1, within(3, 0.001));
        assert_eq!(ask(&scheduler, small()), Ok(()));
        submit(&mut scheduler, 0, job("great", 4, 2, within(2, 100.0)));
        decide(&mut scheduler, 0);
        let (digest, told) = (scheduler.digest(), ask(&scheduler, small()));
        assert_eq!(scheduler.digest(), digest, "nothing is changed");
        let id = submit(&mut scheduler, 0, small());
        decide(&mut scheduler, 0);
        // A job that is tried again isn't refused.
        let refused = (action != "retry").then(|| reason(&scheduler, id).describe(scheduler.state()));
        assert_eq!(told.err(), refused);
    }
}

#[test]
fn a_priced_out_reason_names_the_resource() {
    let mut scheduler = cluster(&[("rejected", text("retry"))], (4, 4));
    // Two workers each for ten slots. After three of them no slot is empty, and ten slots have room for two more
    // workers.
    for number in 0..3 {
        submit(&mut scheduler, 0, job(&format!("great{number}"), 2, 10, within(20, 100.0)));
    }
    let small = submit(&mut scheduler, 0, job("small", 3, 2, within(20, 0.5)));
    decide(&mut scheduler, 0);
    let Reason::PricedOut(priced) = reason(&scheduler, small) else { panic!("{:?}", reason(&scheduler, small)) };
    assert!(priced.payoff.0 <= 0 && priced.cost.0 >= priced.utility.0, "{priced:?}");
    assert!((priced.utility.0 - priced.cost.0 - priced.payoff.0).abs() <= 1, "{priced:?}");
    assert!(priced.price > priced.idle, "{priced:?}");
    assert_eq!(priced.retry_at, Some(Time(60 * MINUTE)));
    let words = reason(&scheduler, small).describe(scheduler.state());
    assert!(words.contains("worth 0.500") && words.contains("1h"), "{words}");
    let explained = scheduler.explain(Time(0), small).unwrap();
    assert!(explained.findings.iter().any(|finding| finding.blocks && finding.text == words));
}

#[test]
fn prices_are_read_as_they_rise() {
    let mut scheduler = cluster(&[], (4, 4));
    let price = |scheduler: &Scheduler, of: &str| {
        let readings: BTreeMap<String, f64> = scheduler.readings().into_iter().collect();
        readings.get(of).copied()
    };
    assert!(scheduler.readings().is_empty(), "nothing was learnt yet");
    submit(&mut scheduler, 0, job("one", 2, 10, within(10, 100.0)));
    decide(&mut scheduler, 0);
    let low = price(&scheduler, "cpu of workers").expect("learnt from the first job");
    // The same job again adds no information, and has to run at the same time.
    submit(&mut scheduler, 0, job("two", 2, 10, within(10, 100.0)));
    decide(&mut scheduler, 0);
    let high = price(&scheduler, "cpu of workers").expect("as before");
    assert!(0.0 < low && low < high, "{low} {high}");
    assert!(price(&scheduler, "bandwidth of parameter servers").is_some());
}

#[test]
fn caps_limit_claimed_utility() {
    let mut scheduler = cluster(&[], (4, 4));
    let mut settings = scheduler.state().settings.as_ref().clone();
    settings.caps.utility = 2.0;
    scheduler.apply(Time(0), Event::Configured(Box::new(settings))).unwrap();
    let loud = submit(&mut scheduler, 0, job("loud", 4, 2, constant(1e9)));
    let state = scheduler.state();
    let utility = state.utility(state.job(loud).unwrap()).unwrap();
    assert_eq!(utility.at(Span::ZERO), 2.0);
}

#[test]
fn progress_off_schedule_is_rescheduled() {
    let mut scheduler = cluster(&[], (8, 8));
    // Eight chunks in four slots of two workers.
    let mut spec = job("a", 2, 4, constant(10.0));
    spec.worker.max = 2;
    let a = submit(&mut scheduler, 0, spec);
    decide(&mut scheduler, 0);
    assert_eq!(shape(&scheduler, a), wp(2, 1));
    // On schedule: one epoch a slot.
    report(&mut scheduler, SLOT - 1, a, 1, 1.0);
    decide(&mut scheduler, SLOT);
    // Then nothing for two slots. The rest takes two more slots, so it still runs after the fourth.
    decide(&mut scheduler, 2 * SLOT);
    decide(&mut scheduler, 3 * SLOT);
    for slot in 4..6 {
        report(&mut scheduler, slot * SLOT - 1, a, slot as u64, slot as f64 - 2.0);
        decide(&mut scheduler, slot * SLOT);
        assert_eq!(shape(&scheduler, a), wp(2, 1), "slot {slot}");
    }
    // Faster than planned: almost everything is done, so its last slots are released for other jobs.
    let mut scheduler = cluster(&[("horizon", Parameter::Number(4.0))], (2, 2));
    let a = submit(&mut scheduler, 0, job("a", 2, 4, constant(10.0)));
    decide(&mut scheduler, 0);
    let b = submit(&mut scheduler, 0, job("b", 2, 2, constant(10.0)));
    decide(&mut scheduler, 0);
    assert_eq!(reason(&scheduler, b).kind(), ReasonKind::Unfinishable);
    report(&mut scheduler, SLOT - 1, a, 1, 3.0);
    decide(&mut scheduler, SLOT);
    assert_eq!(shape(&scheduler, a), wp(2, 1));
    for held in [true, false] {
        scheduler.apply(Time(SLOT), Event::JobHeld { job: b, held }).unwrap();
    }
    decide(&mut scheduler, SLOT);
    assert_eq!(reason(&scheduler, b), Reason::Scheduled { next_start: Time(2 * SLOT) });
}

/// The last slot with a booking.
fn last_booked(scheduler: &Scheduler) -> Option<i64> {
    let mut memo = scheduler.memo();
    let memo = memo.own().downcast_ref::<Memo>().expect("oasis is in charge");
    memo.bookings().map(|(slot, ..)| slot).max()
}

#[test]
fn rare_reports_are_no_drift() {
    // Twelve chunks in six slots of two workers. An epoch takes three slots, with one report at its end.
    let mut scheduler = cluster(&[], (8, 8));
    let mut spec = job("a", 6, 2, constant(10.0));
    spec.worker.max = 2;
    let a = submit(&mut scheduler, 0, spec);
    decide(&mut scheduler, 0);
    for slot in 1..6 {
        if slot == 3 {
            report(&mut scheduler, 3 * SLOT - 1, a, 1, 1.0);
        }
        decide(&mut scheduler, slot * SLOT);
        assert_eq!((shape(&scheduler, a), last_booked(&scheduler)), (wp(2, 1), Some(5)), "slot {slot}");
    }
    // At half the speed, the report after four slots contains the work of two, and the plan grows by two slots.
    let mut scheduler = cluster(&[], (8, 8));
    let mut spec = job("a", 6, 2, constant(10.0));
    spec.worker.max = 2;
    let a = submit(&mut scheduler, 0, spec);
    for slot in 0..4 {
        decide(&mut scheduler, slot * SLOT);
    }
    report(&mut scheduler, 4 * SLOT - 1, a, 1, 0.67);
    decide(&mut scheduler, 4 * SLOT);
    assert_eq!((shape(&scheduler, a), last_booked(&scheduler)), (wp(2, 1), Some(7)));
}

#[test]
fn a_profile_that_is_fitted_later_lets_a_waiting_job_run() {
    let mut scheduler = cluster(&[], (4, 4));
    let mut spec = job("a", 4, 1, constant(1.0));
    spec.dataset.as_mut().expect("it has one").batch_time = None;
    // A mini-batch takes two minutes, so a chunk takes a slot.
    let pairs = [(1, 1, 1.0), (2, 1, 2.0), (4, 1, 4.0), (2, 2, 2.0), (4, 2, 4.0)];
    spec.profile = pairs.map(|(w, p, speed)| ProfiledSpeed { workers: w, servers: p, speed: speed / 120.0 }).to_vec();
    let a = submit(&mut scheduler, 0, spec);
    // A host waits for fits only for a short time.
    let outcome = scheduler.prepare(Time(0)).run(Budget::UNLIMITED);
    scheduler.commit(Time(0), outcome).expect("the only ticket");
    assert_eq!(reason(&scheduler, a).kind(), ReasonKind::Unsupported);
    let outcome = scheduler.prepare_fits(Time(MINUTE)).expect("a profile to fit").run();
    scheduler.commit_fits(Time(MINUTE), outcome).expect("the only ticket");
    assert_eq!(scheduler.due(), Some(Time(MINUTE)));
    decide(&mut scheduler, MINUTE);
    assert!(shape(&scheduler, a).workers > 0, "{:?}", scheduler.state().job(a).unwrap().verdict);
}

#[test]
fn a_job_waits_for_servers_that_hold_it_rather_than_being_rejected() {
    let mut scheduler = Scheduler::new(plain_with("oasis", &[])).unwrap();
    let a = submit(&mut scheduler, 0, job("a", 2, 1, constant(1.0)));
    decide(&mut scheduler, 0);
    assert!(matches!(scheduler.state().job(a).unwrap().verdict, Verdict::Wait(Reason::Unfinishable { free: 0, .. })));
    for (at, name, hosts) in [(1, "h", "workers"), (2, "k", "servers")] {
        assert_eq!(shape(&scheduler, a), wp(0, 0));
        let mut spec = server(name, hosts, 4);
        spec.capacity.insert("bandwidth".into(), 1_000_000);
        set(&mut scheduler, at, spec);
        assert_eq!(scheduler.due(), Some(Time(at)));
        decide(&mut scheduler, at);
    }
    assert_eq!(shape(&scheduler, a), wp(2, 1));
}

#[test]
fn a_job_pinned_at_a_slot_s_beginning_follows_its_schedule_soon_after() {
    let mut scheduler = cluster(&[], (8, 8));
    let mut settings = scheduler.state().settings.as_ref().clone();
    settings.stability = Stability { min_run: Span(5 * MINUTE), ..Stability::default() };
    let min_run = settings.stability.min_run.0;
    scheduler.apply(Time(0), Event::Configured(Box::new(settings))).unwrap();
    // A chunk takes two minutes. Of 44 chunks, four workers train 40 in the second slot, so three workers are needed in
    // the last three minutes of the first.
    let at = 17 * MINUTE;
    let mut spec = job("a", 4, 11, within(2, 10.0));
    spec.dataset.as_mut().expect("it has one").batches_per_chunk = 1;
    let a = submit(&mut scheduler, at, spec);
    decide(&mut scheduler, at);
    assert_eq!(shape(&scheduler, a), wp(3, 1));
    // It started too recently to be changed.
    decide(&mut scheduler, SLOT);
    assert_eq!(shape(&scheduler, a), wp(3, 1));
    assert_eq!(scheduler.due(), Some(Time(at + min_run)));
    decide(&mut scheduler, at + min_run);
    assert_eq!(shape(&scheduler, a), wp(4, 1));
}

#[test]
fn a_missed_slot_is_compensated() {
    let mut scheduler = cluster(&[("horizon", Parameter::Number(6.0))], (2, 2));
    let a = submit(&mut scheduler, 0, job("a", 2, 2, within(2, 10.0)));
    scheduler.decide(Time(0));
    assert_eq!(shape(&scheduler, a), wp(2, 1));
    // The manager refuses, and nothing runs in the first slot.
    let refused = trainmaster_core::Enactment::Refused { cause: "quota".into(), retry_after: Some(Span(SLOT / 2)) };
    let decision = scheduler.state().decision;
    scheduler.apply(Time(1), Event::Enacted { decision, job: a, result: refused }).unwrap();
    decide(&mut scheduler, SLOT);
    decide(&mut scheduler, 2 * SLOT);
    assert_eq!(shape(&scheduler, a), wp(2, 1), "a third slot makes up for the first");
}

#[test]
fn a_missed_slot_counts_however_long_the_job_has_run() {
    let mut scheduler = cluster(&[("horizon", Parameter::Number(40.0))], (2, 2));
    let a = submit(&mut scheduler, 0, job("a", 2, 20, constant(10.0)));
    decide(&mut scheduler, 0);
    for slot in 1..15 {
        report(&mut scheduler, slot * SLOT - 1, a, slot as u64, slot as f64);
        decide(&mut scheduler, slot * SLOT);
        assert_eq!(last_booked(&scheduler), Some(19), "slot {slot}");
    }
    // Its workers ran without progress.
    report(&mut scheduler, 15 * SLOT - 1, a, 15, 14.0);
    decide(&mut scheduler, 15 * SLOT);
    assert_eq!(last_booked(&scheduler), Some(20));
}

#[test]
fn a_job_of_millions_of_chunks_delays_no_decision() {
    let mut scheduler = cluster(&[("horizon", Parameter::Number(300.0))], (64, 64));
    // A worker trains 1,714 and two sevenths of them per slot.
    let mut spec = job("huge", 23_321, 211, Utility { decay: 1e-4, ..Utility::new(UtilityKind::Sigmoid) });
    spec.dataset.as_mut().expect("it has one").batches_per_chunk = 1;
    spec.dataset.as_mut().expect("it has one").batch_time = Some(Span(700));
    for number in 0..40 {
        // Makes most slots different.
        submit(
            &mut scheduler,
            0,
            job(&format!("j{number}"), 8, 1 + number % 13, within(30 + 6 * i64::from(number), 5.0)),
        );
    }
    decide(&mut scheduler, 0);
    let huge = submit(&mut scheduler, 1, spec);
    let after = submit(&mut scheduler, 1, job("after", 4, 2, constant(100.0)));
    let outcome = scheduler.prepare(Time(1)).run(Budget::steps(20_000_000));
    assert_eq!(outcome.error(), None);
    scheduler.commit(Time(1), outcome).expect("the only ticket");
    let verdict = |job| scheduler.state().job(job).expect("active").verdict.clone();
    assert!(matches!(verdict(huge), Verdict::Run(_)), "{:?}", verdict(huge));
    assert!(!matches!(&verdict(after), Verdict::Wait(reason) if reason.kind() == ReasonKind::NotConsidered));
}

#[test]
fn a_lost_server_moves_the_youngest() {
    let mut scheduler = cluster(&[], (4, 8));
    set(&mut scheduler, 0, {
        let mut other = server("h2", "workers", 4);
        other.capacity.insert("bandwidth".into(), 1_000_000);
        other
    });
    let jobs: Vec<JobId> =
        (0..2).map(|at| submit(&mut scheduler, 0, job(&format!("j{at}"), 4, 2, within(2, 10.0)))).collect();
    decide(&mut scheduler, 0);
    let places = |scheduler: &Scheduler| -> BTreeMap<JobId, Vec<String>> {
        let of = |id: &JobId| {
            let job = scheduler.state().job(*id).unwrap();
            let slots = job.verdict.allocation().map(|allocation| allocation.of(Role::Worker).to_vec());
            slots.unwrap_or_default().iter().map(|slot| scheduler.state().server_name(slot.server).to_owned()).collect()
        };
        jobs.iter().map(|id| (*id, of(id))).collect()
    };
    assert!(places(&scheduler).values().all(|servers| servers.len() == 4), "{:?}", places(&scheduler));
    scheduler.apply(Time(MINUTE), Event::ServersLeft { names: vec!["h2".into()] }).unwrap();
    obey(&mut scheduler);
    decide(&mut scheduler, MINUTE);
    // The job on it continues later with the remaining work.
    let now = places(&scheduler);
    let waiting: Vec<&JobId> = now.iter().filter(|(_, servers)| servers.is_empty()).map(|(id, _)| id).collect();
    let [waiting] = waiting[..] else { panic!("{now:?}") };
    assert_eq!(reason(&scheduler, *waiting), Reason::Scheduled { next_start: Time(2 * SLOT) });
    for slot in 1..4 {
        decide(&mut scheduler, slot * SLOT);
    }
    assert_eq!(shape(&scheduler, *waiting), wp(4, 1));
}

#[test]
fn unschedulable_jobs_are_refused_at_submission() {
    let mut scheduler = cluster(&[], (4, 4));
    let mut refuse = |spec: JobSpec| {
        let event = Event::JobSubmitted { spec: Box::new(spec), external: None, token_hash: None };
        match scheduler.apply(Time(0), event) {
            Err(EventError::Unsupported { engine, problem }) if engine == "oasis" => problem,
            other => panic!("{other:?}"),
        }
    };
    let mut narrow = job("narrow", 4, 1, constant(1.0));
    narrow.worker.demand.insert("bandwidth".into(), 8001);
    assert!(refuse(narrow).contains("worker.bandwidth: 8001"));
    let mut long = job("long", 4, 1, constant(1.0));
    long.dataset.as_mut().unwrap().batches_per_chunk = 41;
    assert!(refuse(long).contains("takes 5 workers"));
    assert!(refuse(JobSpec { dataset: None, ..job("bare", 4, 1, constant(1.0)) }).contains("dataset"));
    // An unknown speed may become known.
    let mut later = job("later", 4, 1, constant(1.0));
    later.dataset.as_mut().unwrap().batch_time = None;
    let later = submit(&mut scheduler, 0, later);
    decide(&mut scheduler, 0);
    let Reason::Unsupported { what } = reason(&scheduler, later) else { panic!("{:?}", reason(&scheduler, later)) };
    assert!(what.contains("batch_time"), "{what}");
}

#[test]
fn known_bounds_price_as_the_whole_workload_does() {
    let servers = [server("h", "workers", 4), server("k", "servers", 4)];
    let jobs: Vec<(Time, JobSpec)> = (0..6)
        .map(|at| {
            let mut spec = job(&format!("j{at}"), 4, 2, within(6, 10.0 * f64::from(at + 1)));
            for role in [Some(&mut spec.worker), spec.server.as_mut()].into_iter().flatten() {
                role.demand.remove("bandwidth");
            }
            (Time(i64::from(at) * SLOT), spec)
        })
        .collect();
    let bounds = known_bounds(&jobs, &servers, (Span(SLOT), 10), 0.01).unwrap();
    // U1 = f/w̃ of the job with the largest utility: 60 over a quarter of the CPUs.
    assert!(bounds.contains("u1 = { \"cpu\" = 2.4e2 }"), "{bounds}");
    let fixed = [("bounds", text(&bounds)), ("timespan", text("fixed")), ("horizon", Parameter::Number(10.0))];
    let mut scheduler = Scheduler::new(plain_with("oasis", &fixed)).unwrap();
    for server in servers {
        set(&mut scheduler, 0, server);
    }
    let mut admitted = 0;
    for (at, spec) in jobs {
        let id = submit(&mut scheduler, at.0, spec);
        decide(&mut scheduler, at.0);
        let verdict = &scheduler.state().job(id).unwrap().verdict;
        admitted += u32::from(!matches!(verdict, Verdict::Reject(_)));
    }
    // Forty worker slots for forty-eight workers: not all are admitted.
    assert!((1..6).contains(&admitted), "{admitted}");
    // After the last slot nothing can be scheduled.
    let mut late = job("late", 1, 1, constant(1e6));
    for role in [Some(&mut late.worker), late.server.as_mut()].into_iter().flatten() {
        role.demand.remove("bandwidth");
    }
    let late = submit(&mut scheduler, 10 * SLOT, late);
    decide(&mut scheduler, 10 * SLOT);
    assert_eq!(reason(&scheduler, late).kind(), ReasonKind::Unfinishable);
    let mistake = plain_with("oasis", &[("bounds", text("l1 = 1"))]);
    assert!(Scheduler::new(mistake).err().unwrap().to_string().contains("bounds"));
}

#[test]
fn another_engine_s_running_jobs_are_kept() {
    let mut scheduler = cluster(&[], (4, 4));
    let fifo = trainmaster_core::Settings {
        engine: "fifo".into(),
        parameters: BTreeMap::new(),
        ..(*scheduler.state().settings).clone()
    };
    let oasis = scheduler.state().settings.clone();
    scheduler.apply(Time(0), Event::Configured(Box::new(fifo))).unwrap();
    // Its utility is zero, so it would be rejected if it arrived now.
    let a = submit(&mut scheduler, 0, job("a", 4, 2, within(2, 0.0)));
    decide(&mut scheduler, 0);
    assert!(shape(&scheduler, a).workers > 0);
    scheduler.apply(Time(0), Event::Configured(Box::new((*oasis).clone()))).unwrap();
    decide(&mut scheduler, 0);
    assert_eq!(shape(&scheduler, a), wp(4, 1), "{:?}", scheduler.state().job(a).unwrap().verdict);
}

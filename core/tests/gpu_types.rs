//! Jobs whose workers may have GPUs of one of several types.

#![allow(clippy::disallowed_macros, clippy::disallowed_methods)] // a test reads a file and prints what it measures

use std::collections::BTreeSet;

use crate::common::build::{cluster, plain, report, ring, running, seen, server, set, shape, submit, wp};
use trainmaster_core::{
    Event, JobId, JobSpec, ObservedSlot, Phase, Report, Role, Scheduler, Settings, Span, Time, Verdict,
    fit::{TypeFactor, TypeSpeeds},
    job::ProfiledSpeed,
    settings::{Caps, Mode},
};

/// A ring job whose workers need one GPU of this kind.
fn wants(name: &str, kind: &str, workers: (u32, u32, u32)) -> JobSpec {
    let mut spec = ring(name, workers);
    let gpus = spec.worker.demand.remove("gpu").unwrap();
    spec.worker.demand.insert(kind.into(), gpus);
    spec
}

/// The kinds of the planned workers' GPUs.
fn kinds(scheduler: &Scheduler, id: JobId) -> BTreeSet<String> {
    let state = scheduler.state();
    let planned = state.job(id).unwrap().verdict.allocation().cloned();
    let slots = planned.iter().flat_map(|planned| planned.of(Role::Worker).to_vec()).collect::<Vec<_>>();
    let devices = slots.iter().flat_map(|slot| slot.devices.iter().map(|share| (slot.server, share.device)));
    devices
        .map(|(server, device)| state.resources.name(state.server(server).devices[usize::from(device)]).to_owned())
        .collect()
}

fn only(kind: &str) -> BTreeSet<String> {
    BTreeSet::from([kind.to_owned()])
}

/// Two GPUs of each of two types.
fn two_types(engine: &str) -> Scheduler {
    let servers = [server("a", 64, 64, &["gpu:a100"; 2]), server("v", 64, 64, &["gpu:v100"; 2])];
    cluster(plain(engine), &servers)
}

/// A report of `speed` steps a second with one worker.
fn at_speed(seq: u64, speed: u32) -> Report {
    Report {
        seq,
        step: seq * 100,
        steps: 10 * speed,
        duration: Span::seconds(10),
        workers: 1,
        steps_per_epoch: 1000,
        ..Report::default()
    }
}

#[test]
fn all_workers_of_a_job_get_one_type() {
    for engine in ["drf", "optimus", "las", "fifo"] {
        let mut scheduler = two_types(engine);
        let job = submit(&mut scheduler, 0, ring("job", (1, 4, 2)));
        scheduler.decide(Time(1));
        assert_eq!((shape(&scheduler, job), kinds(&scheduler, job).len()), (wp(2, 0), 1), "{engine}");
        // The next one gets the other type.
        let other = submit(&mut scheduler, 2, ring("other", (2, 2, 2)));
        scheduler.decide(Time(3));
        assert_eq!(shape(&scheduler, other), wp(2, 0), "{engine}");
        assert!(kinds(&scheduler, other).is_disjoint(&kinds(&scheduler, job)), "{engine}");
    }
}

#[test]
fn a_job_may_mix_types_if_it_says_so() {
    let mut scheduler = two_types("drf");
    let job = submit(&mut scheduler, 0, wants("job", "gpu:*", (1, 4, 2)));
    scheduler.decide(Time(1));
    assert_eq!((shape(&scheduler, job), kinds(&scheduler, job).len()), (wp(4, 0), 2));
}

#[test]
fn the_first_of_a_list_with_room_is_taken() {
    let mut scheduler = two_types("fifo");
    let list = "gpu:v100|a100";
    let first = running(&mut scheduler, 0, wants("first", list, (2, 2, 2)));
    let second = running(&mut scheduler, 1, wants("second", list, (2, 2, 2)));
    assert_eq!((kinds(&scheduler, first), kinds(&scheduler, second)), (only("gpu:v100"), only("gpu:a100")));
    // A third one waits, and gets whatever is free first.
    let third = submit(&mut scheduler, 2, wants("third", list, (1, 1, 1)));
    scheduler.decide(Time(3));
    assert!(matches!(scheduler.state().job(third).unwrap().verdict, Verdict::Wait(_)));
    let incarnation = scheduler.state().job(second).unwrap().issued.incarnation;
    scheduler.apply(Time(4), Event::JobEnded { job: second, end: trainmaster_core::End::Completed }).unwrap();
    let gone = Event::Observed { job: second, incarnation, slots: Vec::new(), phase: Phase::Stopped };
    scheduler.apply(Time(4), gone).unwrap();
    scheduler.decide(Time(5));
    assert_eq!(kinds(&scheduler, third), only("gpu:a100"));
    let text = scheduler.explain(Time(5), third).unwrap().findings.iter().map(|f| f.text.clone()).collect::<String>();
    assert!(text.contains("all its workers get gpu:a100") && text.contains("gpu:v100 (0 free)"), "{text}");
}

#[test]
fn a_type_that_is_nowhere_is_passed_over_and_named_if_it_is_the_only_one() {
    let mut scheduler = two_types("fifo");
    let job = submit(&mut scheduler, 0, wants("job", "gpu:h100|v100", (2, 2, 2)));
    scheduler.decide(Time(1));
    assert_eq!(kinds(&scheduler, job), only("gpu:v100"));
    let refused = |spec: JobSpec, scheduler: &mut Scheduler| {
        let event = Event::JobSubmitted { spec: Box::new(spec), external: None, token_hash: None };
        scheduler.apply(Time(2), event).unwrap_err().to_string()
    };
    let error = refused(wants("none", "gpu:h100|b200", (1, 1, 1)), &mut scheduler);
    assert!(error.contains("gpu:h100"), "{error}");
    // Three workers of one type have room nowhere, three of both have.
    let error = refused(wants("large", "gpu", (3, 3, 3)), &mut scheduler);
    assert!(error.contains("3 gpu:a100") && error.contains("\"gpu:*\" in place of gpu"), "{error}");
    submit(&mut scheduler, 2, wants("mixed", "gpu:*", (3, 3, 3)));
}

#[test]
fn a_type_that_the_tenant_has_used_up_is_passed_over() {
    let limits = [("default".to_owned(), [("gpu:a100".to_owned(), 1000)].into())].into();
    let servers = [server("a", 64, 64, &["gpu:a100"; 4]), server("v", 64, 64, &["gpu:v100"; 2])];
    let mut scheduler = cluster(Settings { tenants: limits, ..plain("fifo") }, &servers);
    let list = "gpu:a100|v100";
    let first = submit(&mut scheduler, 0, wants("first", list, (1, 1, 1)));
    scheduler.decide(Time(1));
    let second = submit(&mut scheduler, 2, wants("second", list, (1, 1, 1)));
    scheduler.decide(Time(3));
    assert_eq!((kinds(&scheduler, first), kinds(&scheduler, second)), (only("gpu:a100"), only("gpu:v100")));
}

#[test]
fn servers_that_come_and_go_change_the_choice_of_waiting_jobs() {
    let mut scheduler = two_types("fifo");
    let holder = running(&mut scheduler, 0, wants("holder", "gpu:*", (4, 4, 4)));
    let job = submit(&mut scheduler, 1, ring("job", (2, 2, 2)));
    scheduler.decide(Time(2));
    assert!(kinds(&scheduler, job).is_empty() && shape(&scheduler, holder) == wp(4, 0));
    set(&mut scheduler, 3, server("h", 64, 64, &["gpu:h100"; 2]));
    scheduler.decide(Time(3));
    assert_eq!(kinds(&scheduler, job), only("gpu:h100"));
}

#[test]
fn a_waiting_job_leaves_a_type_that_is_gone() {
    let mut scheduler = two_types("fifo");
    let holder = running(&mut scheduler, 0, wants("holder", "gpu:*", (4, 4, 4)));
    let jobs = ["first", "second"].map(|name| submit(&mut scheduler, 1, ring(name, (1, 1, 1))));
    scheduler.decide(Time(2));
    // One type is left, and later GPUs without a type come.
    scheduler.apply(Time(3), Event::ServersLeft { names: vec!["v".into()] }).unwrap();
    scheduler.apply(Time(3), Event::JobEnded { job: holder, end: trainmaster_core::End::Cancelled }).unwrap();
    let incarnation = scheduler.state().known_job(holder).unwrap().issued.incarnation;
    let gone = Event::Observed { job: holder, incarnation, slots: Vec::new(), phase: Phase::Stopped };
    scheduler.apply(Time(3), gone).unwrap();
    scheduler.decide(Time(4));
    assert_eq!(jobs.map(|job| kinds(&scheduler, job)), [only("gpu:a100"), only("gpu:a100")]);
    let third = submit(&mut scheduler, 5, ring("third", (1, 1, 1)));
    scheduler.decide(Time(6));
    set(&mut scheduler, 7, server("u", 64, 64, &["gpu"]));
    scheduler.decide(Time(8));
    assert_eq!(kinds(&scheduler, third), only("gpu"));
}

#[test]
fn a_type_counts_as_having_room_only_where_the_job_may_run() {
    let labelled = |name: &str, rack: &str, devices: &[&str]| {
        let mut spec = server(name, 64, 64, devices);
        spec.labels.insert("rack".into(), rack.into());
        spec
    };
    // Rack 1 has one A100 and two V100. There are many A100 elsewhere, and half-used ones.
    let servers = [
        labelled("a1", "1", &["gpu:a100"]),
        labelled("v1", "1", &["gpu:v100"; 2]),
        labelled("a2", "2", &["gpu:a100"; 8]),
    ];
    let mut scheduler = cluster(plain("fifo"), &servers);
    let labels = [("rack".to_owned(), "1".to_owned())].into();
    let job = JobSpec { labels, ..wants("job", "gpu:a100|v100", (2, 2, 2)) };
    let job = submit(&mut scheduler, 0, job);
    scheduler.decide(Time(1));
    assert_eq!(kinds(&scheduler, job), only("gpu:v100"));
    // Half of two devices is no whole device.
    let mut scheduler =
        cluster(plain("fifo"), &[servers[0].clone(), labelled("b", "1", &["gpu:a100"]), servers[1].clone()]);
    let mut half = wants("half", "gpu:a100", (2, 2, 2));
    half.worker.demand.insert("gpu:a100".into(), 600);
    let half = submit(&mut scheduler, 0, half);
    let whole = submit(&mut scheduler, 1, wants("whole", "gpu:a100|v100", (1, 1, 1)));
    scheduler.decide(Time(2));
    assert_eq!(shape(&scheduler, half), wp(2, 0), "{:?}", scheduler.state().job(half).unwrap().verdict);
    // The A100 that it was to have went to the other one. The next decision finds it another type.
    assert!(kinds(&scheduler, whole).is_empty());
    scheduler.decide(Time(3));
    assert_eq!(kinds(&scheduler, whole), only("gpu:v100"));
}

#[test]
fn the_requested_number_is_better_than_the_preferred_type() {
    let servers = [server("a", 64, 64, &["gpu:a100"]), server("v", 64, 64, &["gpu:v100"; 8])];
    let mut scheduler = cluster(plain("fifo"), &servers);
    let job = submit(&mut scheduler, 0, wants("job", "gpu:a100|v100", (1, 8, 8)));
    scheduler.decide(Time(1));
    assert_eq!((shape(&scheduler, job), kinds(&scheduler, job)), (wp(8, 0), only("gpu:v100")));
}

#[test]
fn a_priority_beyond_the_sites_cap_is_no_earlier_choice() {
    let caps = Caps { priority: 0, ..Caps::default() };
    let servers = [server("a", 64, 64, &["gpu:a100"]), server("v", 64, 64, &["gpu:v100"])];
    let mut scheduler = cluster(Settings { caps, ..plain("fifo") }, &servers);
    let list = |name: &str, priority: i32| JobSpec { priority, ..wants(name, "gpu:a100|v100", (1, 1, 1)) };
    let [first, second] = [list("first", 0), list("second", i32::MAX)].map(|spec| submit(&mut scheduler, 0, spec));
    scheduler.decide(Time(1));
    assert_eq!([first, second].map(|job| kinds(&scheduler, job)), [only("gpu:a100"), only("gpu:v100")]);
}

#[test]
fn more_demands_than_are_searched_at_once_take_turns() {
    let servers = [server("a", 640, 640, &["gpu:a100"; 40]), server("v", 640, 640, &["gpu:v100"; 40])];
    let mut scheduler = cluster(plain("fifo"), &servers);
    let holder = running(&mut scheduler, 0, wants("holder", "gpu:a100", (40, 40, 40)));
    let jobs: Vec<JobId> = (0..40)
        .map(|number| {
            let mut spec = wants(&format!("job{number}"), "gpu:a100|v100", (1, 1, 1));
            spec.worker.demand.insert("cpu".into(), 1000 + number);
            submit(&mut scheduler, 1, spec)
        })
        .collect();
    scheduler.decide(Time(2));
    scheduler.decide(Time(3));
    assert_eq!(shape(&scheduler, holder).workers, 40);
    assert!(jobs.iter().all(|job| kinds(&scheduler, *job) == only("gpu:v100")));
}

#[test]
fn a_profile_counts_for_whichever_type_is_chosen_until_there_is_a_report() {
    let servers = [server("a", 64, 64, &["gpu:a100"]), server("v", 64, 64, &["gpu:v100"; 4])];
    let mut scheduler = cluster(plain("fifo"), &servers);
    let profile = vec![ProfiledSpeed { servers: 0, workers: 1, speed: 3.0 }];
    let job = running(&mut scheduler, 0, JobSpec { profile, ..ring("job", (1, 1, 1)) });
    let fit = |scheduler: &mut Scheduler, at: i64| {
        if let Some(ticket) = scheduler.prepare_fits(Time(at)) {
            scheduler.commit_fits(Time(at), ticket.run()).unwrap();
        }
        scheduler.state().job(job).unwrap().learnt.fits.speed.as_ref().unwrap().speed(0, 1)
    };
    assert_eq!(kinds(&scheduler, job), only("gpu:v100"));
    assert!((fit(&mut scheduler, 1) - 3.0).abs() < 0.1);
    for seq in 1..5 {
        report(&mut scheduler, 10_000 * seq as i64, job, at_speed(seq, 1)).unwrap();
    }
    assert!((fit(&mut scheduler, 50_000) - 1.0).abs() < 0.1);
    let job = scheduler.state().job(job).unwrap();
    assert!(job.learnt.speeds.contradiction().is_none(), "nobody said that it was measured on this type");
}

#[test]
fn a_job_prefers_the_type_on_which_its_model_was_faster_or_else_other_models() {
    let servers = [server("a", 64, 64, &["gpu:a100"; 3]), server("v", 64, 64, &["gpu:v100"; 8])];
    let mut scheduler = cluster(plain("fifo"), &servers);
    let model = |name: &str, kind: &str| JobSpec { model: "net".into(), ..wants(name, kind, (1, 1, 1)) };
    let on_a = running(&mut scheduler, 0, model("on-a", "gpu:a100"));
    let on_v = running(&mut scheduler, 1, model("on-v", "gpu:v100"));
    for seq in 1..20 {
        report(&mut scheduler, 10_000 * seq as i64, on_a, at_speed(seq, 3)).unwrap();
        report(&mut scheduler, 10_000 * seq as i64, on_v, at_speed(seq, 1)).unwrap();
    }
    let at = 200_000;
    let other = submit(&mut scheduler, at, JobSpec { model: "unknown".into(), ..model("other", "gpu") });
    let known = submit(&mut scheduler, at, model("known", "gpu"));
    let ticket = scheduler.prepare_fits(Time(at)).unwrap();
    scheduler.commit_fits(Time(at), ticket.run()).unwrap();
    let state = scheduler.state();
    let speed = |id: JobId, kind: &str| {
        let fit = state.job(id).unwrap().learnt.fits.speed.clone().unwrap();
        fit.curve_on(state.resources.id(kind).unwrap().0).speed(0, 1)
    };
    // What the model's jobs showed of each type is known to each of them, whatever it has itself.
    for id in [on_a, on_v, known] {
        let found = (speed(id, "gpu:a100"), speed(id, "gpu:v100"));
        assert!((found.0 - 3.0).abs() < 0.2 && (found.1 - 1.0).abs() < 0.1, "{id}: {found:?}");
    }
    scheduler.decide(Time(at + 1));
    assert_eq!((kinds(&scheduler, known), kinds(&scheduler, other)), (only("gpu:a100"), only("gpu:a100")));
    // A model that was only on the slower type so far is expected to gain as much as the first one.
    let third = running(&mut scheduler, at + 2, JobSpec { model: "third".into(), ..model("third", "gpu:v100") });
    for seq in 1..20 {
        report(&mut scheduler, at + 10_000 * seq as i64, third, at_speed(seq, 2)).unwrap();
    }
    let at = at + 200_000;
    let fourth = submit(&mut scheduler, at, JobSpec { model: "third".into(), ..model("fourth", "gpu:a100") });
    let ticket = scheduler.prepare_fits(Time(at)).unwrap();
    scheduler.commit_fits(Time(at), ticket.run()).unwrap();
    let fit = scheduler.state().job(fourth).unwrap().learnt.fits.speed.clone().unwrap();
    assert!((fit.speed(0, 1) - 6.0).abs() < 0.5, "{}", fit.speed(0, 1));
}

#[test]
fn slots_of_another_type_that_run_already_are_taken_over() {
    take_over(two_types("fifo"), true);
    // A manager that names no devices.
    let plain_server = |name: &str, kind: &str| {
        let mut spec = server(name, 64, 64, &[]);
        spec.capacity.insert(kind.into(), 2000);
        spec
    };
    take_over(cluster(plain("fifo"), &[plain_server("a", "gpu:a100"), plain_server("v", "gpu:v100")]), false);
}

fn take_over(mut scheduler: Scheduler, names_devices: bool) {
    scheduler.apply(Time(0), Event::ModeSet(Mode::Shadow)).unwrap();
    let job = submit(&mut scheduler, 1, wants("job", "gpu:a100|v100", (2, 2, 2)));
    let slots = (0..2).map(|index| ObservedSlot {
        role: Role::Worker,
        index,
        server: "v".into(),
        devices: (0..u16::from(names_devices))
            .map(|_| trainmaster_core::DeviceShare { device: index as u16, milli: 1000 })
            .collect(),
    });
    let incarnation = scheduler.state().job(job).unwrap().issued.incarnation;
    let event = Event::Observed { job, incarnation, slots: slots.collect(), phase: Phase::Running };
    scheduler.apply(Time(2), event).unwrap();
    scheduler.apply(Time(3), Event::ModeSet(Mode::Active)).unwrap();
    scheduler.decide(Time(4));
    let state = scheduler.state();
    let chosen = state.job(job).unwrap().gpu_kind().map(|kind| state.resources.name(kind).to_owned());
    assert_eq!((shape(&scheduler, job), chosen.as_deref()), (wp(2, 0), Some("gpu:v100")));
    assert!(state.job(job).unwrap().issued.allocation.is_some(), "it runs on");
    seen(&mut scheduler, 5, job);
    scheduler.state().audit().unwrap();
}

/// A model that was measured on one type only, predicted on another from models of other families.
#[test]
fn a_type_never_tried_follows_roughly_from_what_other_models_gained() {
    let Some(path) = crate::fit_data::shared("curves/gavel_throughputs.json") else { return };
    let file: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let kinds = ["k80", "p100", "v100"];
    let alone = |kind: &str, model: &str| file[kind][model]["null"].as_f64().filter(|speed| *speed > 0.0);
    let measured = file["v100"].as_object().unwrap().keys().filter(|name| name.ends_with(", 1)"));
    let models: Vec<(&str, Vec<TypeFactor>)> = measured
        .filter_map(|name| {
            let of = |at: usize| Some(TypeFactor { server_type: at as u16 + 1, factor: alone(kinds[at], name)? });
            Some((name.split(" (batch").next().unwrap(), (0..3).map(of).collect::<Option<Vec<_>>>()?))
        })
        .collect();
    assert_eq!(models.len(), 26);
    for (from, to) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
        let mut errors: Vec<f64> = Vec::new();
        let mut right = 0;
        for (family, factors) in &models {
            let others = models.iter().filter(|(other, _)| other != family).map(|(_, factors)| factors);
            let predicted = TypeSpeeds::of(others).factor(&factors[from..=from], to as u16 + 1);
            errors.push((predicted / factors[to].factor - 1.0).abs());
            right += i32::from((predicted > factors[from].factor) == (factors[to].factor > factors[from].factor));
        }
        errors.sort_by(f64::total_cmp);
        let median = (errors[12] + errors[13]) / 2.0;
        println!("{} from {}: median error {:.0} %, order right {right} of 26", kinds[to], kinds[from], median * 100.0);
        assert!(median < 0.55 && right >= 17, "{} from {}: {median}, {right}", kinds[to], kinds[from]);
    }
}

//! Properties of `las` beyond the contract of engines.

use crate::common::build::{cluster, plain, ring, server, shape, submit, wp};
use trainmaster_core::{
    Event, JobId, ObservedSlot, Phase, Reason, Scheduler, Time, Verdict, job::Service, reason::ReasonKind,
};

/// Reports that all slots issued to a job run.
fn runs(scheduler: &mut Scheduler, at: i64, id: JobId) {
    let state = scheduler.state();
    let job = state.job(id).unwrap();
    let slots = job.issued.allocation.iter().flat_map(|issued| issued.slots()).map(|slot| ObservedSlot {
        role: slot.role,
        index: slot.index,
        server: state.server_name(slot.server).to_owned(),
        devices: slot.devices.to_vec(),
    });
    let (slots, incarnation) = (slots.collect(), job.issued.incarnation);
    let phase = if job.verdict.allocation().is_some() { Phase::Running } else { Phase::Stopped };
    let event = Event::Observed { job: id, incarnation, slots, phase };
    scheduler.apply(Time(at), event).unwrap();
}

/// Reports that no slot of a job is left.
fn is_gone(scheduler: &mut Scheduler, at: i64, id: JobId) {
    let incarnation = scheduler.state().job(id).unwrap().issued.incarnation;
    let event = Event::Observed { job: id, incarnation, slots: Vec::new(), phase: Phase::Stopped };
    scheduler.apply(Time(at), event).unwrap();
}

fn service(scheduler: &Scheduler, at: i64, id: JobId) -> Service {
    scheduler.state().job(id).unwrap().service(Time(at))
}

#[test]
fn a_newcomer_takes_the_place_of_a_job_that_has_had_more() {
    let mut scheduler = cluster(plain("las"), &[server("s0", 8, 16, &["gpu", "gpu"])]);
    let old = submit(&mut scheduler, 0, ring("old", (2, 2, 2)));
    scheduler.decide(Time(0));
    runs(&mut scheduler, 0, old);
    assert_eq!(shape(&scheduler, old), wp(2, 0));

    // Within the quantum of one GPU-hour both jobs count as equal, so the earlier one keeps running.
    let half_an_hour = 1_800_000;
    let new = submit(&mut scheduler, half_an_hour - 1, ring("new", (2, 2, 2)));
    scheduler.decide(Time(half_an_hour - 1));
    assert_eq!((shape(&scheduler, old), shape(&scheduler, new)), (wp(2, 0), wp(0, 0)));

    scheduler.decide(Time(half_an_hour));
    assert_eq!(service(&scheduler, half_an_hour, old), 2 * 1000 * half_an_hour, "two GPUs for half an hour");
    assert_eq!((shape(&scheduler, old), shape(&scheduler, new)), (wp(0, 0), wp(2, 0)));
    is_gone(&mut scheduler, half_an_hour + 10_000, old);
    assert_eq!(service(&scheduler, half_an_hour + 10_000, old), 2000 * half_an_hour, "it stopped at the decision");
    runs(&mut scheduler, half_an_hour + 10_000, new);

    // The stopped job's verdict states the engine's reason.
    scheduler.decide(Time(half_an_hour + 20_000));
    let verdict = &scheduler.state().job(old).unwrap().verdict;
    let Verdict::Wait(reason) = verdict else { panic!("it waits: {verdict:?}") };
    assert_eq!(reason.kind(), ReasonKind::Engine);
    assert!(matches!(reason, Reason::Engine(own) if &*own.kind == "more_service"), "{reason:?}");
    let found = scheduler.explain(Time(half_an_hour + 20_000), old).unwrap();
    assert!(
        found
            .findings
            .iter()
            .any(|finding| finding.text.contains("has had 1.0 GPU-hours; jobs with less than 1.0 go first")),
        "{found:?}"
    );
}

/// What a job had explains its wait only where it is what it waits for.
#[test]
fn a_limit_and_equal_service_are_not_explained_by_service() {
    let mut settings = plain("las");
    settings.tenants = [("default".to_owned(), [("gpu".to_owned(), 2000)].into())].into();
    let mut scheduler = cluster(settings, &[server("s0", 8, 16, &["gpu", "gpu", "gpu"])]);
    let first = submit(&mut scheduler, 0, ring("first", (2, 2, 2)));
    scheduler.decide(Time(0));
    runs(&mut scheduler, 0, first);
    let second = submit(&mut scheduler, 1000, ring("second", (2, 2, 2)));
    scheduler.decide(Time(1000));
    let reason = |scheduler: &Scheduler, id| scheduler.state().job(id).unwrap().verdict.reason().unwrap().kind();
    assert_eq!(reason(&scheduler, second), ReasonKind::Exhausted, "the tenant has no more");
    // An hour later the second one runs, and the tenant's limit is what the first one waits for.
    let hour = 3_600_000;
    scheduler.decide(Time(hour));
    is_gone(&mut scheduler, hour + 1000, first);
    runs(&mut scheduler, hour + 1000, second);
    scheduler.decide(Time(hour + 2000));
    assert_eq!(shape(&scheduler, second), wp(2, 0));
    assert_eq!(reason(&scheduler, first), ReasonKind::Exhausted);

    // Within a quantum whoever came first goes first, whatever each has had.
    let mut scheduler = cluster(plain("las"), &[server("s0", 8, 16, &["gpu", "gpu"])]);
    let first = submit(&mut scheduler, 0, ring("first", (2, 2, 2)));
    scheduler.apply(Time(0), Event::JobHeld { job: first, held: true }).unwrap();
    let second = submit(&mut scheduler, 0, ring("second", (2, 2, 2)));
    scheduler.decide(Time(0));
    runs(&mut scheduler, 0, second);
    scheduler.apply(Time(60_000), Event::JobHeld { job: first, held: false }).unwrap();
    scheduler.decide(Time(60_000));
    assert_eq!((shape(&scheduler, first), shape(&scheduler, second)), (wp(2, 0), wp(0, 0)));
    assert_eq!(service(&scheduler, 60_000, second), 2 * 1000 * 60_000);
    assert_eq!(reason(&scheduler, second), ReasonKind::Exhausted, "the cluster has no GPU left");
}

#[test]
fn service_counts_while_slots_are_issued_and_survives_the_journal() {
    let mut scheduler = cluster(plain("las"), &[server("s0", 8, 16, &["gpu", "gpu"])]);
    scheduler.start_journal();
    let job = submit(&mut scheduler, 0, ring("job", (1, 1, 1)));
    assert_eq!(service(&scheduler, 5000, job), 0, "it waits");
    scheduler.decide(Time(5000));
    assert_eq!(service(&scheduler, 6000, job), 1000 * 1000, "one GPU for a second");
    assert_eq!(service(&scheduler, 4000, job), 0, "no time runs backwards");
    let records = scheduler.drain_journal();
    let again = Scheduler::restore(records.iter().map(Vec::as_slice)).unwrap();
    assert_eq!(service(&again, 9000, job), 4000 * 1000);
}

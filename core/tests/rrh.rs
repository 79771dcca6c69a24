//! Properties of `rrh` beyond the contract, and round-robin placement.

use crate::common::build::{cluster, plain, plain_with, ring, server, shape, submit, wp};
use trainmaster_core::{
    End, Event, JobId, JobSpec, Scheduler, ServerSpec, Span, Time, Verdict,
    job::{Dataset, Utility, UtilityKind},
    reason::ReasonKind,
    settings::Parameter,
};

const HOUR: i64 = 3_600_000;

/// A job of two workers with one GPU each, for `hours` hours.
fn job(name: &str, hours: u32, utility: Utility) -> JobSpec {
    let data =
        Dataset { chunks: 2, batches_per_chunk: hours, epochs: 1, batch_time: Some(Span(HOUR)), ..Dataset::default() };
    JobSpec { dataset: Some(data), utility: Some(utility), ..ring(name, (2, 2, 2)) }
}

fn constant(value: f64) -> Utility {
    Utility { value, ..Utility::new(UtilityKind::Constant) }
}

fn step(value: f64, hours: i64) -> Utility {
    Utility { value, target: Span(hours * HOUR), ..Utility::new(UtilityKind::Step) }
}

fn two_gpus(threshold: f64) -> Scheduler {
    let servers = [server("s0", 16, 64, &["gpu"; 2])];
    cluster(plain_with("rrh", &[("threshold", Parameter::Number(threshold))]), &servers)
}

fn verdict(scheduler: &Scheduler, job: JobId) -> Verdict {
    scheduler.state().job(job).expect("active").verdict.clone()
}

#[test]
fn the_larger_gain_goes_first_and_the_other_job_returns_unchanged() {
    let mut scheduler = two_gpus(0.0);
    let long = submit(&mut scheduler, 1, job("long", 10, constant(10.0)));
    scheduler.decide(Time(2));
    assert_eq!(shape(&scheduler, long), wp(2, 0));
    let urgent = submit(&mut scheduler, 3, job("urgent", 2, step(50.0, 3)));
    scheduler.decide(Time(4));
    assert_eq!([long, urgent].map(|job| shape(&scheduler, job)), [wp(0, 0), wp(2, 0)]);
    assert_eq!(verdict(&scheduler, long).reason().map(|reason| reason.kind()), Some(ReasonKind::Exhausted));
    scheduler.apply(Time(2 * HOUR), Event::JobEnded { job: urgent, end: End::Completed }).expect("it runs");
    scheduler.decide(Time(2 * HOUR));
    assert_eq!(shape(&scheduler, long), wp(2, 0));
}

#[test]
fn a_job_with_a_loss_is_rejected_for_good_with_a_reason() {
    let mut scheduler = two_gpus(5.0);
    let urgent = submit(&mut scheduler, 1, job("urgent", 2, step(50.0, 4)));
    // The long job blocks the urgent one for ten hours, on the whole cluster: 30 − 50.
    let long = submit(&mut scheduler, 2, job("long", 10, constant(30.0)));
    // A job of an hour doesn't block it, but its utility isn't above the threshold.
    let cheap = submit(&mut scheduler, 3, job("cheap", 1, constant(5.0)));
    let fair = submit(&mut scheduler, 4, job("fair", 1, constant(5.1)));
    scheduler.decide(Time(5));
    let Verdict::Reject(reason) = verdict(&scheduler, long) else { panic!("{:?}", verdict(&scheduler, long)) };
    let words = reason.describe(scheduler.state());
    assert!(words.contains("worth 30") && words.contains("others 50") && words.contains("above 5"), "{words}");
    assert!(matches!(verdict(&scheduler, cheap), Verdict::Reject(_)));
    assert!(matches!(verdict(&scheduler, fair), Verdict::Wait(_)));
    scheduler.apply(Time(HOUR), Event::JobEnded { job: urgent, end: End::Completed }).expect("it runs");
    scheduler.decide(Time(HOUR));
    assert!(matches!(verdict(&scheduler, long), Verdict::Reject(_)), "nothing is in its way now, but it was rejected");
    assert_eq!(shape(&scheduler, fair), wp(2, 0));
}

#[test]
fn free_room_is_used_before_jobs_are_displaced() {
    let servers = [server("s0", 16, 64, &["gpu"; 2]), server("s1", 16, 64, &["gpu"; 2])];
    let mut scheduler = cluster(plain("rrh"), &servers);
    let long = submit(&mut scheduler, 1, job("long", 10, constant(10.0)));
    scheduler.decide(Time(2));
    let before = verdict(&scheduler, long);
    submit(&mut scheduler, 3, job("urgent", 2, step(50.0, 3)));
    scheduler.decide(Time(4));
    assert_eq!(verdict(&scheduler, long), before);
}

#[test]
fn round_robin_visits_servers_in_turn_and_continues() {
    for engine in ["rrh", "fifo"] {
        let servers: Vec<ServerSpec> = ["a", "b", "c"].map(|name| server(name, 16, 64, &["gpu"; 2])).to_vec();
        let settings = plain_with(engine, &[("placement", Parameter::Text("round_robin".into()))]);
        let mut scheduler = cluster(settings, &servers);
        let mut seen = Vec::new();
        for at in 0..3 {
            let id = submit(&mut scheduler, at, job(&format!("j{at}"), 1, constant(1.0)));
            scheduler.decide(Time(at));
            let allocation = verdict(&scheduler, id).allocation().cloned().expect("it runs");
            let mut servers: Vec<u32> = allocation.slots().iter().map(|slot| slot.server.0).collect();
            servers.sort_unstable();
            seen.push(servers);
        }
        assert_eq!(seen, [[1, 2], [0, 1], [0, 2]], "{engine}");
    }
}

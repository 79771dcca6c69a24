//! Properties of `batch` beyond the contract: completion of batches, assignment of cheap servers, and waiting jobs.

use crate::common::build::{cluster, plain_with, role, runs, server, set, submit, trained, verdict};
use trainmaster_core::{
    End, Event, JobId, JobSpec, Scheduler, ServerSpec, Settings, Shape, Time,
    job::{Dataset, TrainingMode},
    settings::Parameter,
};

const MINUTE: i64 = 60_000;

fn gpus(name: &str, zone: &str, count: usize) -> ServerSpec {
    let labels = [("zone".to_owned(), zone.to_owned())].into();
    ServerSpec { labels, ..server(name, 64, 64, &vec!["gpu"; count]) }
}

fn settings(parameters: &[(&str, Parameter)]) -> Settings {
    plain_with("batch", parameters)
}

/// Server names, one for each slot.
fn places(scheduler: &Scheduler, job: JobId) -> Vec<String> {
    let held = verdict(scheduler, job).allocation().cloned().unwrap_or_default();
    let mut names: Vec<String> =
        held.slots().iter().map(|slot| scheduler.state().server_name(slot.server).to_owned()).collect();
    names.sort_unstable();
    names
}

fn why(scheduler: &Scheduler, job: JobId) -> String {
    verdict(scheduler, job).reason().expect("it waits").describe(scheduler.state())
}

/// Submits jobs together, and schedules their batch.
fn batch<const N: usize>(scheduler: &mut Scheduler, at: i64, specs: [JobSpec; N]) -> [JobId; N] {
    let jobs = specs.map(|spec| submit(scheduler, at, spec));
    scheduler.decide(Time(at));
    scheduler.decide(Time(at + 10 * MINUTE));
    jobs
}

#[test]
fn jobs_gather_for_a_while_and_start_together() {
    let mut scheduler = cluster(settings(&[]), &[gpus("edge", "", 4)]);
    let first = submit(&mut scheduler, 0, trained("first", 1, 10));
    scheduler.decide(Time(0));
    assert_eq!(why(&scheduler, first), "scheduled; it goes on in 10m");
    let second = submit(&mut scheduler, 4 * MINUTE, trained("second", 1, 10));
    scheduler.decide(Time(4 * MINUTE));
    assert_eq!(why(&scheduler, second), "scheduled; it goes on in 6m");
    assert_eq!((runs(&scheduler, &[first, second]), scheduler.due()), (vec![false, false], Some(Time(10 * MINUTE))));
    scheduler.decide(Time(10 * MINUTE));
    assert_eq!((runs(&scheduler, &[first, second]), scheduler.due()), (vec![true, true], None));
    // The next batch's time begins with its first job.
    let third = submit(&mut scheduler, 15 * MINUTE, trained("third", 1, 10));
    scheduler.decide(Time(15 * MINUTE));
    assert_eq!((runs(&scheduler, &[third]), scheduler.due()), (vec![false], Some(Time(25 * MINUTE))));
}

#[test]
fn enough_jobs_are_a_batch_at_once() {
    let mut scheduler = cluster(settings(&[("batch_jobs", Parameter::Number(3.0))]), &[gpus("edge", "", 4)]);
    let mut jobs = Vec::new();
    for number in 0..3 {
        jobs.push(submit(&mut scheduler, number, trained(&format!("j{number}"), 1, 10)));
        scheduler.decide(Time(number));
        assert_eq!(runs(&scheduler, &jobs), vec![number == 2; jobs.len()]);
    }
}

#[test]
fn the_cheaper_zone_is_used_if_it_holds_the_whole_job() {
    for (edge, cloud, expected) in [(1.0, 0.5, "cloud"), (0.5, 1.0, "edge"), (1.0, 1.0, "edge")] {
        let prices = [("edge_price", Parameter::Number(edge)), ("cloud_price", Parameter::Number(cloud))];
        let mut scheduler = cluster(settings(&prices), &[gpus("edge", "a", 4), gpus("cloud", "cloud", 4)]);
        let [job] = batch(&mut scheduler, 0, [trained("job", 2, 10)]);
        assert_eq!(places(&scheduler, job), [expected; 2], "{edge} and {cloud}");
    }
}

#[test]
fn cheap_room_goes_to_the_job_with_the_largest_saving() {
    let mut scheduler = cluster(settings(&[]), &[gpus("edge", "a", 4), gpus("cloud", "cloud", 4)]);
    // The longest jobs by hours times slots.
    let specs = [trained("short", 2, 10), trained("long", 3, 100), trained("longest", 1, 200)];
    let jobs = batch(&mut scheduler, 0, specs);
    assert_eq!(jobs.map(|job| places(&scheduler, job)[0].clone()), ["edge", "cloud", "cloud"]);
    // A job that is bound to one zone comes before all of them.
    let mut scheduler = cluster(settings(&[]), &[gpus("edge", "a", 4), gpus("cloud", "cloud", 4)]);
    let bound = JobSpec { labels: gpus("", "cloud", 0).labels, ..trained("bound", 2, 1) };
    let jobs = batch(&mut scheduler, 0, [trained("longest", 3, 200), bound]);
    assert_eq!(jobs.map(|job| places(&scheduler, job)[0].clone()), ["edge", "cloud"]);
}

#[test]
fn a_job_is_split_between_edge_and_cloud_only_if_neither_holds_it() {
    let mut scheduler = cluster(settings(&[]), &[gpus("edge", "a", 4), gpus("cloud", "cloud", 2)]);
    let [whole] = batch(&mut scheduler, 0, [trained("whole", 3, 10)]);
    assert_eq!(places(&scheduler, whole), ["edge"; 3], "it would cost less in part");
    let [split] = batch(&mut scheduler, 20 * MINUTE, [trained("split", 3, 10)]);
    assert_eq!(places(&scheduler, split), ["cloud", "cloud", "edge"]);
}

/// 12 chunks of 10 minutes, with one parameter server and any number of workers.
fn elastic(name: &str) -> JobSpec {
    let data = Dataset { chunks: 12, batches_per_chunk: 10, epochs: 1, ..trained("", 1, 1).dataset.unwrap() };
    let (worker, server) = (role(&[("gpu", 1000)], 1, 100, 4), role(&[("cpu", 1000)], 1, 1, 1));
    JobSpec { worker, server: Some(server), mode: TrainingMode::Async, dataset: Some(data), ..trained(name, 4, 1) }
}

#[test]
fn a_job_gets_the_workers_that_cost_least_of_those_that_are_free() {
    let cases = [
        // More workers than chunks are of no use.
        ("any", 40, Some(12)),
        ("any", 6, Some(6)),
        ("any", 3, Some(3)),
        ("more", 6, Some(6)),
        ("more", 3, None),
        ("off", 40, Some(4)),
        ("off", 3, None),
    ];
    for (elastic_is, free, expected) in cases {
        let parameters = settings(&[("elastic", Parameter::Text(elastic_is.into()))]);
        let mut scheduler = cluster(parameters, &[gpus("edge", "a", free)]);
        let [job] = batch(&mut scheduler, 0, [elastic("job")]);
        let shape = verdict(&scheduler, job).allocation().map(|held| held.shape());
        let expected = expected.map(|workers| Shape { workers, servers: 1 });
        assert_eq!(shape, expected, "{elastic_is}, {free} GPUs");
    }
    // Each of a batch gets what those before it left, and a job of unknown duration what it requested.
    let any = settings(&[("elastic", Parameter::Text("any".into()))]);
    let mut scheduler = cluster(any.clone(), &[gpus("edge", "a", 30)]);
    let unknown = JobSpec { dataset: None, ..elastic("unknown") };
    let jobs = batch(&mut scheduler, 0, [elastic("first"), unknown, elastic("second"), elastic("third")]);
    let workers = jobs.map(|job| verdict(&scheduler, job).allocation().map(|held| held.shape().workers));
    assert_eq!(workers, [Some(12), Some(4), Some(12), Some(2)]);
    // Without parameter servers every number costs the same, to a millisecond for each worker.
    let mut scheduler = cluster(any, &[gpus("edge", "a", 30)]);
    let mut ring = elastic("ring");
    (ring.server, ring.mode) = (None, TrainingMode::AllReduce);
    ring.dataset.as_mut().unwrap().batch_time = Some(trainmaster_core::Span(7919));
    let [ring] = batch(&mut scheduler, 0, [ring]);
    assert_eq!(verdict(&scheduler, ring).allocation().map(|held| held.shape().workers), Some(12));
}

#[test]
fn batches_are_served_in_order_without_starvation() {
    let mut scheduler = cluster(settings(&[]), &[gpus("edge", "", 4)]);
    let [running, wide] = batch(&mut scheduler, 0, [trained("running", 2, 10), trained("wide", 3, 5)]);
    assert_eq!(runs(&scheduler, &[running, wide]), [true, false]);
    assert_eq!(why(&scheduler, wide), "needs 3 gpu; the cluster has 2 left of 4");
    let [small] = batch(&mut scheduler, 20 * MINUTE, [trained("small", 1, 1)]);
    assert_eq!(why(&scheduler, small), "number 2 in line, behind wide");
    scheduler.apply(Time(40 * MINUTE), Event::JobEnded { job: running, end: End::Completed }).expect("active");
    assert_eq!(scheduler.due(), Some(Time(40 * MINUTE)));
    scheduler.decide(Time(40 * MINUTE));
    assert_eq!(runs(&scheduler, &[wide, small]), [true, true]);
}

#[test]
fn a_tenants_limit_delays_no_other_tenant() {
    let mut settings = settings(&[]);
    settings.tenants = [("t".to_owned(), [("gpu".to_owned(), 1000)].into())].into();
    let mut scheduler = cluster(settings, &[gpus("edge", "", 4)]);
    let of = |spec: JobSpec| JobSpec { tenant: "t".into(), ..spec };
    let jobs = batch(&mut scheduler, 0, [of(trained("a", 1, 10)), of(trained("b", 1, 10))]);
    assert_eq!(runs(&scheduler, &jobs), [true, false]);
    assert_eq!(why(&scheduler, jobs[1]), "needs 1 gpu; tenant t has 0 left of 1");
    let [other] = batch(&mut scheduler, 20 * MINUTE, [trained("other", 1, 10)]);
    assert_eq!(runs(&scheduler, &[other]), [true]);
}

#[test]
fn running_jobs_stay_and_displaced_jobs_keep_their_batch() {
    let mut scheduler = cluster(settings(&[]), &[gpus("s0", "", 2), gpus("s1", "", 2)]);
    let jobs = batch(&mut scheduler, 0, [trained("a", 2, 100), trained("b", 2, 90)]);
    let before = jobs.map(|job| verdict(&scheduler, job));
    let [later] = batch(&mut scheduler, 20 * MINUTE, [trained("later", 2, 1)]);
    set(&mut scheduler, 31 * MINUTE, ServerSpec { draining: true, ..gpus("s0", "", 2) });
    scheduler.decide(Time(31 * MINUTE));
    assert_eq!(jobs.map(|job| verdict(&scheduler, job)), before, "shorter jobs and drains stop nobody");
    let lost = jobs.into_iter().find(|job| places(&scheduler, *job) == ["s0"; 2]).expect("both run");
    scheduler.apply(Time(32 * MINUTE), Event::ServersLeft { names: vec!["s0".into()] }).expect("it is there");
    scheduler.decide(Time(32 * MINUTE));
    assert!(why(&scheduler, lost).starts_with("needs 2 gpu"), "{}", why(&scheduler, lost));
    set(&mut scheduler, 33 * MINUTE, gpus("s2", "", 2));
    scheduler.decide(Time(33 * MINUTE));
    assert_eq!(runs(&scheduler, &[lost, later]), [true, false]);
    assert!(why(&scheduler, later).contains("needs 2 gpu"), "{}", why(&scheduler, later));
}

#[test]
fn without_a_cloud_batches_are_served_in_the_order_of_arrival() {
    let mut scheduler = cluster(settings(&[("batch", Parameter::Text("1s".into()))]), &[gpus("edge", "", 1)]);
    let jobs = [("a", 0), ("b", 1), ("c", 2)].map(|(name, minute)| {
        let at = minute * MINUTE;
        let job = submit(&mut scheduler, at, trained(name, 1, 10));
        scheduler.decide(Time(at));
        scheduler.decide(Time(at + 1000));
        job
    });
    for turn in 0..3 {
        assert_eq!(runs(&scheduler, &jobs[turn..]), (turn..3).map(|at| at == turn).collect::<Vec<_>>());
        let at = Time((turn as i64 + 10) * MINUTE);
        scheduler.apply(at, Event::JobEnded { job: jobs[turn], end: End::Completed }).expect("active");
        scheduler.decide(at);
    }
}

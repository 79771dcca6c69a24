//! Properties of `dorm` beyond the contract: use of the cluster within its bounds on unfairness and on changes.

use crate::common::build::{amounts, cluster, job, plain, plain_with, ring, server, set, shape, submit, wp};
use trainmaster_core::{Event, JobSpec, Scheduler, Shape, Time, decision::DeviceShare, settings::Parameter};

fn number(value: f64) -> Parameter {
    Parameter::Number(value)
}

fn used(scheduler: &Scheduler, resource: &str) -> i64 {
    let state = scheduler.state();
    let id = state.resources.id(resource).expect("in use");
    state.jobs.values().map(|job| job.total(job.shape())[id]).sum()
}

fn all_shapes(scheduler: &Scheduler) -> Vec<Shape> {
    scheduler.state().jobs.values().map(|job| job.shape()).collect()
}

#[test]
fn more_of_the_cluster_is_used_than_was_requested() {
    for (engine, gpus) in [("fifo", 2000), ("dorm", 8000)] {
        let servers = [server("s0", 16, 64, &["gpu"; 4]), server("s1", 16, 64, &["gpu"; 4])];
        let mut scheduler = cluster(plain(engine), &servers);
        submit(&mut scheduler, 1, job("a", (1, 8, 1), (1, 8, 1)));
        submit(&mut scheduler, 2, job("b", (1, 8, 1), (1, 8, 1)));
        scheduler.decide(Time(3));
        assert_eq!(used(&scheduler, "gpu"), gpus, "{engine}");
    }
}

/// Eight GPUs, and jobs of 5 and of 3 or 4 at once: the best packing isn't the first one.
#[test]
fn it_finds_the_fullest_packing() {
    let mut scheduler = cluster(plain_with("dorm", &[("fairness", number(1.0))]), &[server("s0", 32, 64, &["gpu"; 8])]);
    let fours = submit(&mut scheduler, 1, ring("fours", (4, 4, 4)));
    let threes = submit(&mut scheduler, 2, ring("threes", (3, 3, 3)));
    let fives = submit(&mut scheduler, 3, ring("fives", (5, 5, 5)));
    scheduler.decide(Time(4));
    assert_eq!([fours, threes, fives].map(|job| shape(&scheduler, job)), [wp(0, 0), wp(3, 0), wp(5, 0)]);
}

#[test]
fn no_more_running_jobs_change_than_allowed() {
    for (adjustment, most) in [(0.0, 0), (0.1, 1), (0.5, 2), (1.0, 4)] {
        let mut scheduler = cluster(
            plain_with("dorm", &[("adjustment", number(adjustment)), ("fairness", number(0.0))]),
            &[server("s0", 64, 64, &["gpu"; 8]), server("s1", 64, 64, &["gpu"; 8])],
        );
        for name in ["a", "b", "c", "d"] {
            submit(&mut scheduler, 1, ring(name, (1, 16, 1)));
        }
        scheduler.decide(Time(2));
        let before = all_shapes(&scheduler);
        assert_eq!(before, [wp(4, 0); 4], "fair shares of 16 GPUs");
        for name in ["e", "f", "g", "h"] {
            submit(&mut scheduler, 3, ring(name, (2, 16, 2)));
        }
        scheduler.decide(Time(4));
        let after = all_shapes(&scheduler);
        let changed = before.iter().zip(&after).filter(|(before, after)| before != after).count();
        assert!(changed <= most, "{changed} of at most {most} changed: {after:?}");
        assert_eq!(changed > 0, most > 0, "newcomers are let in: {after:?}");
    }
}

#[test]
fn without_unfairness_shares_are_those_of_max_min_fairness() {
    let servers = [server("s0", 64, 64, &["gpu"; 6])];
    let mut scheduler = cluster(plain_with("dorm", &[("fairness", number(0.0))]), &servers);
    // One job needs one GPU only. The others share the rest.
    let jobs =
        [ring("small", (1, 1, 1)), ring("wide", (1, 6, 1)), JobSpec { priority: 3, ..ring("urgent", (1, 6, 1)) }];
    let ids = jobs.map(|job| submit(&mut scheduler, 1, job));
    scheduler.decide(Time(2));
    let shapes = ids.map(|job| shape(&scheduler, job));
    assert_eq!(shapes[0], wp(1, 0));
    assert_eq!(shapes[1].workers + shapes[2].workers, 5);
    assert!(shapes[1].workers.abs_diff(shapes[2].workers) <= 1, "{shapes:?}");
}

#[test]
fn parameter_servers_keep_up_with_the_workers_and_never_outnumber_them() {
    let mut scheduler = cluster(plain("dorm"), &[server("s0", 64, 64, &["gpu"; 4]), server("s1", 64, 64, &[])]);
    let mut spec = job("a", (1, 8, 1), (1, 8, 1));
    spec.worker.demand.insert("bandwidth".into(), 1000);
    spec.server.as_mut().expect("has some").demand.insert("bandwidth".into(), 1500);
    let id = submit(&mut scheduler, 1, spec);
    scheduler.decide(Time(2));
    let Shape { workers, servers } = shape(&scheduler, id);
    assert!(servers <= workers && 1500 * servers >= 1000 * workers, "{workers}w+{servers}p");
    assert_eq!(workers, 4);
}

#[test]
fn a_running_job_keeps_what_it_has_on_a_draining_server() {
    let mut scheduler = cluster(plain("dorm"), &[server("s0", 64, 64, &["gpu"; 4])]);
    let id = submit(&mut scheduler, 1, ring("a", (2, 4, 2)));
    scheduler.decide(Time(2));
    let before = scheduler.state().job(id).expect("active").verdict.clone();
    set(&mut scheduler, 3, trainmaster_core::ServerSpec { draining: true, ..server("s0", 64, 64, &["gpu"; 4]) });
    submit(&mut scheduler, 4, ring("b", (1, 4, 1)));
    scheduler.decide(Time(5));
    assert_eq!(scheduler.state().job(id).expect("active").verdict, before);
}

#[test]
fn a_pool_holds_no_more_than_its_servers_one_by_one() {
    // Workers of 2 GPUs on servers of 3: the sum of four servers has room for six, the servers for four.
    let mut spec = ring("a", (1, 6, 1));
    spec.worker.demand.insert("gpu".into(), 2000);
    for pools in ["kind", "server"] {
        let servers = ["s0", "s1", "s2", "s3"].map(|name| server(name, 16, 64, &["gpu"; 3]));
        let mut scheduler = cluster(plain_with("dorm", &[("pools", Parameter::Text(pools.into()))]), &servers);
        let id = submit(&mut scheduler, 1, spec.clone());
        scheduler.decide(Time(2));
        assert_eq!(shape(&scheduler, id), wp(4, 0), "{pools}");
    }
}

#[test]
fn free_room_may_differ_between_servers_of_a_pool() {
    // Two equal servers with 4 and 1 free GPUs have room for two workers of two GPUs, both on the first.
    let mut scheduler = cluster(plain("dorm"), &[server("s0", 16, 64, &["gpu"; 4]), server("s1", 16, 64, &["gpu"; 4])]);
    scheduler
        .apply(
            Time(1),
            Event::ForeignUse {
                server: "s1".into(),
                amounts: amounts(&[("gpu", 3000)]),
                devices: (0..3).map(|device| DeviceShare { device, milli: 1000 }).collect(),
            },
        )
        .expect("a known server");
    let mut spec = ring("a", (1, 6, 1));
    spec.worker.demand.insert("gpu".into(), 2000);
    let id = submit(&mut scheduler, 1, spec);
    scheduler.decide(Time(2));
    assert_eq!(shape(&scheduler, id), wp(2, 0));
}

#[test]
fn a_solver_that_the_build_lacks_is_refused() {
    let settings = plain_with("dorm", &[("solver", Parameter::Text("cplex".into()))]);
    let error = Scheduler::new(settings).err().expect("refused").to_string();
    assert!(error.contains("solver") && error.contains("cplex") && error.contains("microlp"), "{error}");
}

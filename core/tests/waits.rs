//! Waits: since when, and what for.

use crate::{
    common::build::{cluster, plain, ring, role, server, submit},
    loop_edges::seen,
};
use trainmaster_core::{
    Event, JobSpec, Reason, Scheduler, Time, Verdict,
    resources::{CPU, GPU},
};

#[test]
fn a_wait_counts_from_the_arrival_or_the_end_of_a_pause() {
    let mut scheduler = cluster(plain("optimus"), &[]);
    let id = submit(&mut scheduler, 1000, ring("a", (1, 1, 1)));
    let since = |scheduler: &Scheduler| scheduler.state().job(id).unwrap().waits_since();
    assert_eq!(since(&scheduler), Some(Time(1000)));
    // A manager that attaches again reports that the job has no slots.
    seen(&mut scheduler, 2000, id);
    assert_eq!(since(&scheduler), Some(Time(1000)));
    scheduler.apply(Time(3000), Event::JobHeld { job: id, held: true }).unwrap();
    scheduler.apply(Time(9000), Event::JobHeld { job: id, held: false }).unwrap();
    assert_eq!(since(&scheduler), Some(Time(9000)));
}

#[test]
fn each_resource_of_a_slot_is_looked_for_once_a_round() {
    let servers = ["s0", "s1", "s2"].map(|name| server(name, 8, 64, &["gpu"; 4]));
    let mut scheduler = cluster(plain("optimus"), &servers);
    let of = |name: &str, demand: &[(&str, i64)]| JobSpec { worker: role(demand, 1, 1, 1), ..ring(name, (1, 1, 1)) };
    for (name, at) in [("r0", 1), ("r1", 2), ("r2", 3)] {
        let id = submit(&mut scheduler, at, of(name, &[("gpu", 3000), ("cpu", 5000)]));
        scheduler.decide(Time(at));
        seen(&mut scheduler, at, id);
    }
    // Each server has one GPU and three CPUs left. The second job's GPUs are known from the first one.
    let gpus = submit(&mut scheduler, 4, of("gpus", &[("gpu", 2000)]));
    let both = submit(&mut scheduler, 4, of("both", &[("gpu", 1000), ("cpu", 6000)]));
    scheduler.decide(Time(4));
    for (job, expected) in [(gpus, (GPU, 2000, 1000)), (both, (CPU, 6000, 3000))] {
        let verdict = &scheduler.state().job(job).unwrap().verdict;
        let Verdict::Wait(Reason::NoRoom { resource, needed, largest, .. }) = verdict else { panic!("{verdict:?}") };
        assert_eq!((*resource, *needed, *largest), expected);
    }
}

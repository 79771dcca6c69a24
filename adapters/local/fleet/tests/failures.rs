//! Exits: which ones are a success, which slots are started again, and when a job has failed.

use trainmaster_proto::v1::ObservedPhase;

use super::*;

/// Time from now until a process is started again, in milliseconds.
fn wait_for(world: &mut World, id: ProcessId) -> u64 {
    let begin = world.now;
    world.act();
    while !world.lives(id) {
        let wake = world.wake.expect("something to wait for");
        world.pass((wake - world.now).as_millis() as u64);
    }
    (world.now - begin).as_millis() as u64
}

#[test]
fn waits_double_up_to_a_bound_and_begin_anew_after_a_steady_run() {
    let mut world = World::new();
    world.fleet.policy.failures = 100;
    world.plan(vec![run(1, 1, 1, 2, 1)]);
    let mut waits = Vec::new();
    let failures = |world: &World| world.fleet.observe(world.now)[&1].failures;
    for count in 1..=8 {
        world.exit(worker(1, 1, 1), Exit::Code(1));
        assert_eq!(failures(&world), count);
        waits.push(wait_for(&mut world, worker(1, 1, 1)));
    }
    assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
    world.pass(59_999);
    assert_eq!(failures(&world), 8);
    world.pass(1);
    assert_eq!(failures(&world), 0);
    world.exit(worker(1, 1, 0), Exit::Code(1));
    wait_for(&mut world, worker(1, 1, 0));
    world.exit(worker(1, 1, 0), Exit::Code(0));
    assert_eq!(failures(&world), 0, "it has done its work");
    world.exit(worker(1, 1, 1), Exit::Code(1));
    assert_eq!(wait_for(&mut world, worker(1, 1, 1)), 500);
    assert_eq!(world.signals(), [], "nobody else was touched");
}

#[test]
fn a_lost_server_or_the_programs_own_wish_restarts_all_roles() {
    let lost = [Exit::Signal(11), Exit::Code(1), Exit::Unknown].map(|exit| (server(1, 1, 0), exit));
    let asks = crate::local::RESTART_ALL_EXITS.map(|code| (worker(1, 1, 0), Exit::Code(code)));
    for (id, exit) in lost.into_iter().chain(asks) {
        let mut world = World::new();
        world.plan(vec![run(1, 1, 1, 2, 1)]);
        let others: Vec<_> = world.living.iter().copied().filter(|other| *other != id).collect();
        world.exit(id, exit.clone());
        let signals = world.signals();
        assert_eq!(signals, others.iter().map(|other| (*other, Signal::Term)).collect::<Vec<_>>(), "{exit:?}");
        assert_eq!(world.phase(1), Some(ObservedPhase::Starting));
        world.pass(500);
        assert_eq!(world.living.len(), 2, "not before all are gone");
        world.exit(others[0], Exit::Code(1));
        world.exit(others[1], Exit::Code(0));
        assert_eq!(world.living.len(), 3);
        assert_eq!(world.phase(1), Some(ObservedPhase::Running));
    }
}

#[test]
fn too_many_failures_end_the_job_with_a_reason() {
    let mut world = World::new();
    world.fleet.policy.failures = 3;
    world.plan(vec![run(1, 1, 1, 2, 0)]);
    for _ in 0..2 {
        world.exit(worker(1, 1, 0), Exit::Code(9));
        wait_for(&mut world, worker(1, 1, 0));
    }
    world.fleet.not_started(world.now, worker(1, 1, 1), "ignored: it runs".into());
    world.living.remove(&worker(1, 1, 1));
    world.exit(worker(1, 1, 0), Exit::Signal(6));
    world.pass(100_000);
    let observed = world.fleet.observe(world.now);
    assert_eq!(observed[&1].phase(), ObservedPhase::Failed);
    assert_eq!(observed[&1].message, "worker 0 was ended by signal 6; given up after 3 failures");
    assert!(world.living.is_empty());
    world.plan(vec![run(1, 1, 2, 2, 0)]);
    assert!(world.living.is_empty(), "not by a change in place");
    world.plan(vec![run(1, 2, 3, 2, 0)]);
    assert_eq!(world.living.len(), 2);
}

#[test]
fn a_program_that_sees_no_hope_is_not_tried_again() {
    let mut world = World::new();
    world.plan(vec![run(1, 1, 1, 2, 0)]);
    world.exit(worker(1, 1, 0), Exit::Code(crate::local::HOPELESS_EXIT));
    assert_eq!(world.signals(), [(worker(1, 1, 1), Signal::Term)]);
    world.exit(worker(1, 1, 1), Exit::Code(0));
    world.pass(100_000);
    assert_eq!(world.phase(1), Some(ObservedPhase::Failed));
    assert!(world.living.is_empty() && world.fleet.observe(world.now)[&1].message.contains("won't help"));
}

#[test]
fn a_slot_that_cannot_start_is_tried_again() {
    let mut world = World::new();
    world.plan(vec![run(1, 1, 1, 2, 0)]);
    world.living.remove(&worker(1, 1, 1));
    world.fleet.not_started(world.now, worker(1, 1, 1), "no memory".into());
    assert_eq!(wait_for(&mut world, worker(1, 1, 1)), 500);
    assert!(world.fleet.observe(world.now)[&1].message.contains("no memory"));
}

#[test]
fn a_job_is_complete_when_all_slots_ended_well_and_nothing_else_explains_it() {
    let mut world = World::new();
    world.plan(vec![run(1, 1, 1, 1, 1)]);
    world.exit(worker(1, 1, 0), Exit::Code(0));
    world.pass(100_000);
    assert_eq!(world.phase(1), Some(ObservedPhase::Running), "the server still runs");
    world.exit(server(1, 1, 0), Exit::Code(0));
    world.pass(499);
    assert_eq!(world.phase(1), Some(ObservedPhase::Stopping));
    world.pass(1);
    assert_eq!(world.phase(1), Some(ObservedPhase::Completed));
    world.change(vec![run(1, 1, 2, 2, 1)]);
    assert!(world.living.is_empty(), "complete is complete");
}

#[test]
fn leaving_for_a_plan_that_is_on_its_way_is_not_completion() {
    let mut world = World::new();
    world.plan(vec![run(1, 1, 1, 1, 0)]);
    // The program was told of the new incarnation over the feed before the plan arrived.
    world.exit(worker(1, 1, 0), Exit::Code(0));
    world.pass(100);
    world.plan(vec![run(1, 2, 2, 2, 0)]);
    assert_eq!((world.living.len(), world.phase(1)), (2, Some(ObservedPhase::Running)));

    // The daemon isn't connected, so it is unknown why they left.
    world.exit(worker(1, 2, 0), Exit::Code(0));
    world.exit(worker(1, 2, 1), Exit::Code(0));
    world.fleet.detached();
    world.pass(100_000);
    assert_eq!(world.phase(1), Some(ObservedPhase::Stopping));
    world.fleet.attached(world.now);
    world.pass(500);
    assert_eq!(world.phase(1), Some(ObservedPhase::Completed));
}

#[test]
fn a_worker_that_left_for_a_revision_this_side_never_saw_comes_back() {
    let mut world = World::new();
    world.plan(vec![run(1, 1, 1, 2, 0)]);
    world.exit(worker(1, 1, 1), Exit::Code(0)); // dropped by revision 2
    world.plan(vec![run(1, 1, 3, 2, 0)]);
    assert_eq!(wait_for(&mut world, worker(1, 1, 1)), 500, "the others may be about to leave too");
    world.exit(worker(1, 1, 1), Exit::Code(0));
    world.exit(worker(1, 1, 0), Exit::Code(0));
    world.pass(500);
    assert_eq!(world.phase(1), Some(ObservedPhase::Completed));
}

#[test]
fn a_plan_that_comes_after_the_end_starts_nothing() {
    for (workers, servers) in [(2, 1), (3, 2)] {
        let mut world = World::new();
        world.plan(vec![run(1, 1, 1, 2, 1)]);
        world.exit(worker(1, 1, 0), Exit::Code(0));
        world.exit(worker(1, 1, 1), Exit::Code(0));
        world.change(vec![run(1, 1, 2, 2, 1)]);
        world.pass(100);
        assert_eq!(world.living, BTreeSet::from([server(1, 1, 0)]));
        world.exit(server(1, 1, 0), Exit::Code(0));
        // This was decided before the end was known.
        world.change(vec![run(1, 1, 3, workers, servers)]);
        assert!(world.living.is_empty(), "{workers} {servers}");
        world.fleet.detached();
        world.pass(10_000);
        assert!(world.living.is_empty(), "the daemon is away, but what has ended has ended");
        world.fleet.attached(world.now);
        world.pass(500);
        assert_eq!((world.phase(1), world.living.len()), (Some(ObservedPhase::Completed), 0));
    }
}

#[test]
fn people_hear_of_every_failure_and_of_nothing_else() {
    let mut world = World::new();
    world.fleet.policy.failures = 3;
    world.plan(vec![run(1, 1, 1, 3, 1)]);
    let mut ends = |id, exit| {
        let failure = Failure { exit, said: Some("boom".into()), log: Some("/l".into()) };
        world.living.remove(&id);
        let note = world.fleet.exited(world.now, id, failure).map(ToOwned::to_owned);
        world.pass(600);
        note
    };
    assert_eq!(ends(worker(1, 1, 0), Exit::Code(0)), None);
    assert_eq!(
        ends(worker(1, 1, 1), Exit::Code(3)).unwrap(),
        "worker 1 ended with exit code 3: \"boom\"; failure 1 of 3, again after 500ms (log /l)"
    );
    assert_eq!(
        ends(server(1, 1, 0), Exit::Signal(9)).unwrap(),
        "server 0 was ended by signal 9: \"boom\"; failure 1 of 3, again after 500ms, with all of the job (log /l)"
    );
    assert_eq!(ends(worker(1, 1, 2), Exit::Signal(15)), None, "it was told to");
}

#[test]
fn a_long_last_line_hides_nothing() {
    let failure = Failure { exit: Exit::Code(1), said: Some("é".repeat(1000)), log: None };
    let text = failure.describe();
    assert_eq!(text, format!("ended with exit code 1: \"{}…\"", "é".repeat(80)));
}

//! Stopping processes: which ones, when, and by which signal.

use trainmaster_proto::v1::{Action, ObservedPhase};

use super::*;

#[test]
fn a_new_incarnation_signals_at_once_and_kills_after_the_grace() {
    let mut world = World::new();
    world.plan(vec![run(1, 1, 1, 2, 0)]);
    world.plan(vec![run(1, 2, 2, 1, 0)]);
    let (first, second) = (worker(1, 1, 0), worker(1, 1, 1));
    assert_eq!(world.signals(), [(first, Signal::Term), (second, Signal::Term)]);
    world.exit(first, Exit::Code(0));
    world.pass(GRACE - 1);
    assert_eq!(world.signals(), []);
    world.pass(1);
    assert_eq!(world.signals(), [(second, Signal::Kill)]);
    assert_eq!(world.phase(1), Some(ObservedPhase::Stopping));
    world.exit(second, Exit::Signal(9));
    assert!(world.lives(worker(1, 2, 0)));
    assert_eq!(world.phase(1), Some(ObservedPhase::Running));
}

#[test]
fn a_dropped_worker_has_the_grace_to_leave_by_itself() {
    let mut world = World::new();
    world.plan(vec![run(1, 1, 1, 3, 1)]);
    world.plan(vec![run(1, 1, 2, 1, 1)]);
    world.exit(worker(1, 1, 1), Exit::Code(0));
    world.pass(GRACE - 1);
    assert_eq!(world.signals(), []);
    world.pass(1);
    assert_eq!(world.signals(), [(worker(1, 1, 2), Signal::Term)]);
    world.pass(GRACE);
    assert_eq!(world.signals(), [(worker(1, 1, 2), Signal::Kill)]);
    world.exit(worker(1, 1, 2), Exit::Signal(9));
    assert_eq!(world.phase(1), Some(ObservedPhase::Running));
    assert_eq!(world.living.len(), 2);
}

#[test]
fn who_was_told_to_leave_is_replaced_not_kept() {
    let mut world = World::new();
    world.plan(vec![run(1, 1, 1, 2, 0)]);
    world.plan(vec![run(1, 1, 2, 1, 0)]);
    world.plan(vec![run(1, 1, 3, 2, 0)]);
    assert!(world.lives(worker(1, 1, 1)));
    world.exit(worker(1, 1, 1), Exit::Code(0));
    assert!(world.lives(worker(1, 1, 1)), "wanted again, so started again");
}

#[test]
fn a_slot_that_moves_leaves_first() {
    let mut world = World::new();
    world.plan(vec![run(1, 1, 1, 2, 0)]);
    let mut moved = run(1, 1, 2, 2, 0);
    moved.slots[1].server = "b".into();
    world.plan(vec![moved]);
    world.pass(GRACE);
    assert_eq!(world.signals(), [(worker(1, 1, 1), Signal::Term)]);
    world.exit(worker(1, 1, 1), Exit::Code(0));
    let observed = world.fleet.observe(world.now);
    let places: Vec<_> = observed[&1].slots.iter().map(|slot| slot.server.as_str()).collect();
    assert_eq!(places, ["a", "b"]);
}

#[test]
fn waiting_and_ending_signal_at_once() {
    for action in [Action::Wait, Action::Stop, Action::Reject] {
        let mut world = World::new();
        world.plan(vec![run(1, 1, 1, 1, 0)]);
        let mut plan = told(1, action);
        plan.grace_ms = 10;
        world.change(vec![plan]);
        assert_eq!(world.signals(), [(worker(1, 1, 0), Signal::Term)]);
        world.pass(10);
        assert_eq!(world.signals(), [(worker(1, 1, 0), Signal::Kill)]);
        world.exit(worker(1, 1, 0), Exit::Signal(9));
        assert_eq!(world.phase(1), Some(ObservedPhase::Stopped), "{action:?}");
        world.fleet.forget_over();
        assert_eq!(world.phase(1).is_some(), action == Action::Wait, "{action:?}");
    }
}

#[test]
fn a_released_job_runs_on_unmanaged() {
    let mut world = World::new();
    world.plan(vec![run(1, 1, 1, 2, 0)]);
    world.plan(vec![told(1, Action::Release), told(2, Action::Release)]);
    world.exit(worker(1, 1, 0), Exit::Code(1));
    world.pass(100_000);
    assert_eq!((world.signals(), world.living.len()), (vec![], 1));
    assert_eq!((world.phase(1), world.phase(2)), (Some(ObservedPhase::Running), None));
    world.exit(worker(1, 1, 1), Exit::Code(0));
    world.pass(100_000);
    assert_eq!(world.phase(1), Some(ObservedPhase::Stopped), "one failed, so it isn't complete");
}

#[test]
fn a_plan_whose_time_ran_out_is_no_plan() {
    let mut world = World::new();
    world.send(v1::Plan { ttl_ms: 5000, full: true, jobs: vec![run(1, 1, 1, 2, 0)], ..v1::Plan::default() });
    world.exit(worker(1, 1, 0), Exit::Code(1));
    world.pass(500);
    assert_eq!(world.living.len(), 2, "it stands, so the crash is mended");
    world.pass(4500);
    world.exit(worker(1, 1, 0), Exit::Code(1));
    world.pass(100_000);
    assert_eq!((world.signals(), world.living.len()), (vec![], 1));
    world.plan(vec![run(1, 1, 1, 2, 0)]);
    assert_eq!(world.living.len(), 2);
}

#[test]
fn the_end_takes_everything() {
    let mut world = World::new();
    world.plan(vec![run(1, 1, 1, 1, 0), run(2, 1, 1, 1, 0)]);
    world.change(vec![told(2, Action::Release)]);
    world.fleet.end();
    world.pass(0);
    assert_eq!(world.signals(), [(worker(1, 1, 0), Signal::Term), (worker(2, 1, 0), Signal::Term)]);
    world.exit(worker(1, 1, 0), Exit::Code(1));
    world.exit(worker(2, 1, 0), Exit::Code(0));
    world.pass(100_000);
    assert!(world.fleet.is_empty() && world.living.is_empty());
}

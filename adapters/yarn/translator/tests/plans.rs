//! Plans: slots, containers, nodes and refusals.

use super::*;

#[test]
fn a_new_incarnation_comes_after_the_old_one() {
    let mut world = World::with_job("", JOB);
    world.run(1, &[(W, 0, "a")]);
    world.worker(1, 0, "a", ContainerState::Running);
    world.look();
    world.run(2, &[(W, 0, "b"), (W, 1, "b")]);
    world.look_for(40);
    let (action, slots, _) = world.enforced_for(1);
    let (zero, one) = (request(2, W, 0), request(2, W, 1));
    assert_eq!((action, slots), (wire::Action::Run, vec![(zero, "b:1".into()), (one, "b:1".into())]));
    assert_eq!(world.seen(7), (ObservedPhase::Stopping, 1, vec![(0, "a".into())]));
    // While both exist, a slot has its newer container, and the older one has to leave first.
    world.worker(2, 0, "b", ContainerState::Allocated);
    world.look_for(5);
    assert_eq!(world.seen(7), (ObservedPhase::Starting, 2, vec![(0, "b".into())]));
    assert_eq!(world.server("a").foreign["gpu"], 1000);
    world.clear(1);
    world.worker(2, 0, "b", ContainerState::Running);
    world.look();
    assert_eq!(world.seen(7).0, ObservedPhase::Running, "a worker that comes later doesn't stop it");
    assert_eq!(world.server("a").foreign.get("gpu"), None);
}

#[test]
fn all_roles_have_to_run() {
    let mut world = World::with_job("", SERVERS);
    world.run(1, &[(W, 0, "a"), (W, 1, "a"), (P, 0, "b")]);
    world.worker(1, 0, "a", ContainerState::Running);
    world.look();
    assert_eq!(world.seen(7).0, ObservedPhase::Starting);
    world.container(1, "c", request(1, P, 0), "b", ContainerState::Running);
    world.look();
    assert_eq!(world.seen(7).0, ObservedPhase::Running);
    let orders = world.orders(1);
    assert_eq!((orders.slots.len(), orders.slots[2].server, orders.server_command.as_str()), (3, true, ""));
}

#[test]
fn slots_without_containers_are_refused_with_numbers() {
    let mut world = World::with_job("placement_timeout = \"10s\"", SERVERS);
    world.run(1, &[(W, 0, "a"), (W, 1, "b"), (P, 0, "b")]);
    let asked = request(1, W, 1);
    world.app(1).requests =
        vec![Request { allocation_request: asked, node: "b".into(), count: 1, ..Request::default() }];
    world.container(1, "w", request(1, W, 0), "a", ContainerState::Running);
    world.container(1, "r", request(1, P, 0), "b", ContainerState::Reserved);
    assert_eq!(world.look_for(10).refused, []);
    let (decision, answer) = world.look().refused.remove(0);
    let cause = answer.refused.unwrap();
    assert_eq!((decision, answer.job, answer.retry_after), (2, 7, None));
    for part in [
        "2 of 3 slots got no container within 10s",
        "worker 1 on \"b\" (asked for; free there: memory-mb 6144, vcores 6, yarn.io/gpu 1)",
        "server 0 on \"b\" (not asked for",
    ] {
        assert!(cause.contains(part), "{cause}");
    }
    assert_eq!(world.look_for(20), Requests::default(), "once");
    // Workers alone can't continue.
    let (action, slots, reason) = world.enforced_for(1);
    assert_eq!((action, slots.len(), reason == cause), (wire::Action::Hold, 0, true));
    assert_eq!((world.orders(1).standing(), world.orders(1).reason), (Standing::Wait, cause));
    // The same plan again starts a new attempt.
    assert_eq!(world.run(1, &[(W, 0, "a"), (W, 1, "b"), (P, 0, "b")]), ACCEPTED);
    assert_eq!(world.enforced_for(1).1.len(), 3);
    assert_eq!(world.look_for(11).refused.len(), 1);
}

#[test]
fn what_runs_goes_on_where_more_cant_be_had() {
    let mut world = World::with_job("placement_timeout = \"10s\"", JOB);
    world.run(1, &[(W, 0, "a"), (W, 1, "b")]);
    world.worker(1, 0, "a", ContainerState::Running);
    assert_eq!(world.look_for(11).refused.len(), 1);
    assert_eq!(world.enforced_for(1).1, [(request(1, W, 0), "a:1".into())]);
    let orders = world.orders(1);
    assert_eq!((orders.standing(), orders.slots.len()), (Standing::Run, 1));
}

#[test]
fn an_application_master_that_doesnt_come_is_refused() {
    let mut world = World::with_job("master_timeout = \"10s\"", JOB);
    world.app(1).set_state(ApplicationState::Pending);
    world.run(1, &[(W, 0, "a")]);
    assert_eq!(world.look_for(10).refused, []);
    let (_, answer) = world.look().refused.remove(0);
    let cause = answer.refused.unwrap();
    assert!(cause.contains("no ApplicationMaster came within 10s") && cause.contains("queue \"dl\""), "{cause}");
    assert_eq!(answer.retry_after, Some(Duration::from_secs(10)));
}

#[test]
fn plans_that_make_no_sense_change_nothing() {
    let mut world = World::with_job("", JOB);
    world.run(1, &[(W, 0, "a")]);
    let answers = world.run(2, &[(W, 0, "nowhere")]);
    assert!(answers[0].refused.as_ref().unwrap().contains("\"nowhere\""), "{answers:?}");
    assert_eq!(world.orders(1).incarnation, 1);
    let old = Plan { term: 2, decision: 99, ttl_ms: 0, jobs: vec![other(v1::Action::Stop, "old")], full: true };
    assert_eq!(world.translator.plan(world.now(), old), []);
    assert_eq!(world.orders(1).standing(), Standing::Run);
}

#[test]
fn waiting_stopping_and_releasing() {
    let mut world = World::with_job("master_timeout = \"10s\"", JOB);
    world.run(1, &[(W, 0, "a")]);
    world.worker(1, 0, "a", ContainerState::Running);
    world.look();
    world.plan(false, vec![other(v1::Action::Wait, "others first")]);
    assert_eq!(world.enforced_for(1), (wire::Action::Hold, vec![], "others first".into()));
    assert_eq!((world.orders(1).standing(), world.orders(1).slots), (Standing::Wait, vec![]));
    assert_eq!(world.seen(7).0, ObservedPhase::Stopping);

    world.plan(false, vec![other(v1::Action::Release, "yours")]);
    assert_eq!(world.enforced_for(1).0, wire::Action::Release);
    let orders = world.orders(1);
    assert_eq!((orders.standing(), orders.reason.as_str(), orders.slots), (Standing::Released, "yours", vec![]));
    assert_eq!(world.seen(7).0, ObservedPhase::Running);

    // Its training is done. It should end by itself.
    let done = JobPlan { ended: "completed".into(), ..other(v1::Action::Stop, "completed: converged") };
    world.plan(false, vec![done]);
    assert_eq!(world.enforced_for(1).1, [(request(1, W, 0), "a:1".into())]);
    let orders = world.orders(1);
    assert_eq!((orders.standing(), orders.completed), (Standing::Over, true));
    world.look_for(14);
    assert_eq!(world.enforced_for(1).0, wire::Action::Run);
    world.look();
    assert_eq!(world.enforced_for(1).0, wire::Action::Kill, "the grace and master_timeout are over");

    let stop = JobPlan { ended: "cancelled".into(), ..other(v1::Action::Stop, "cancelled: by bob") };
    world.plan(false, vec![stop]);
    assert_eq!(world.enforced_for(1), (wire::Action::Hold, vec![], "cancelled: by bob".into()));
    assert_eq!((world.orders(1).standing(), world.orders(1).completed), (Standing::Over, false));
}

#[test]
fn plans_are_numbered_and_stand_no_longer_than_the_daemons() {
    let mut world = World::with_job("", JOB);
    let first = world.enforced();
    assert_eq!((first.term, first.ttl_ms, first.number > CLOCK as u64), (3, 15_000, true));
    world.look();
    assert_eq!(world.enforced(), first, "nothing changed");
    world.run(1, &[(W, 0, "a")]);
    let second = world.enforced();
    assert!(second.number > first.number);
    // An adapter with a slow clock follows one with a fast clock.
    world.cluster.enforced = second.number + 1000;
    world.look();
    assert_eq!(world.enforced().number, second.number + 1001);

    // The daemon isn't reachable. Its plan is valid for a minute.
    world.second += 50;
    assert!(world.enforced().ttl_ms <= 10_000);
    assert_eq!(world.orders(1).standing(), Standing::Run);
    world.second += 10;
    assert_eq!(world.translator.bridge_plan(world.now(), CLOCK), Err(NoPlan));
    let orders = world.orders(1);
    assert_eq!((orders.standing(), orders.reason.as_str()), (Standing::Released, "the scheduler is away"));
    // An empty plan renews it.
    world.plan(false, vec![]);
    assert_eq!((world.enforced().ttl_ms, world.orders(1).standing()), (15_000, Standing::Run));
}

#[test]
fn what_others_use_is_what_no_slot_has() {
    let mut world = World::with_job("", JOB);
    world.run(1, &[(W, 0, "a")]);
    world.look();
    world.worker(1, 0, "a", ContainerState::Running);
    // The use is reported a moment later than the container, and includes the ApplicationMaster's.
    world.cluster.nodes[0].allocated = resource(2048 + 512, 2 + 1, 1);
    world.look();
    assert!(world.server("a").foreign.is_empty(), "more is believed late");
    world.look_for(3);
    let foreign = &world.server("a").foreign;
    assert_eq!((foreign["cpu"], foreign.get("gpu")), (1000, None));
    assert_eq!(foreign["memory"], 512 + 548, "YARN rounded the container up from 1500");
    world.clear(1);
    world.cluster.nodes[0].allocated.clear();
    world.look();
    assert!(world.server("a").foreign.is_empty(), "less is believed at once");
    // A container without a slot.
    world.container(1, "odd", 5, "a", ContainerState::Running);
    world.look_for(5);
    assert_eq!((world.server("a").foreign["gpu"], world.seen(7).2), (1000, vec![]));
}

#[test]
fn nodes_drain_leave_and_come_back() {
    let mut world = World::with_job("", JOB);
    world.run(1, &[(W, 0, "a")]);
    world.worker(1, 0, "a", ContainerState::Running);
    world.cluster.nodes[0].set_state(NodeState::Decommissioning);
    world.look();
    assert!(world.server("a").draining && !world.server("b").draining);
    world.cluster.nodes[0].set_state(NodeState::Gone);
    world.look();
    assert!(!world.translator.servers.contains_key("a"));
    assert_eq!(world.seen(7), (ObservedPhase::Starting, 1, vec![]), "what was there isn't any more");
    let (action, slots, _) = world.enforced_for(1);
    assert_eq!((action, slots), (wire::Action::Run, vec![]), "there is no node to name");
}

#[test]
fn jobs_that_are_to_run_go_before_those_that_wait() {
    let mut world = World::with_job("", JOB);
    let priority = |world: &mut World| world.enforced().applications[0].priority;
    world.app(1).set_state(ApplicationState::Pending);
    world.look();
    assert_eq!(priority(&mut world), None);
    world.run(1, &[(W, 0, "a")]);
    assert_eq!(priority(&mut world), Some(1));
    world.app(1).priority = 5;
    world.look();
    assert_eq!(priority(&mut world), Some(5), "it is never lowered");
    world.app(1).set_state(ApplicationState::Running);
    world.look();
    assert_eq!(priority(&mut world), None);
}

#[test]
fn what_no_container_can_have_is_refused() {
    let mut world = World::new("");
    world.cluster.largest_container = resource(1024, 4, 4);
    world.submit(1, JOB);
    world.look();
    world.plan(true, vec![]);
    assert_eq!(world.look().submit, []);
    let (action, _, reason) = world.enforced_for(1);
    assert_eq!(action, wire::Action::Kill);
    for part in ["a worker needs memory-mb 1500", "the largest has 1024", "yarn.scheduler.maximum-allocation-mb"] {
        assert!(reason.contains(part), "{reason}");
    }
    let spec = jobfile::read(JOB, "", "", Accounts::Yarn).unwrap();
    assert_eq!(world.translator.check_size(&spec), Err(reason));
}

#[test]
fn what_began_alone_goes_on_until_it_is_decided_about() {
    let mut world = World::new("");
    world.submit(1, JOB);
    world.app(1).set_state(ApplicationState::Running);
    world.container(1, "alone", request(ALONE, W, 0), "a", ContainerState::Running);
    world.look();
    world.plan(true, vec![]);
    world.look();
    assert_eq!(world.enforced_for(1).0, wire::Action::Release);
    assert_eq!(world.orders(1).standing(), Standing::Released);
    world.answer(1, Submitted::Job(7));
    world.look();
    assert_eq!((world.enforced_for(1).0, world.seen(7).0), (wire::Action::Release, ObservedPhase::Running));
    assert_eq!(world.seen(7).1, ALONE, "no incarnation of the daemon's");
    // Its containers leave before the planned ones count as missing.
    world.run(1, &[(W, 0, "a"), (W, 1, "b")]);
    assert_eq!(world.enforced_for(1).1.len(), 2);
    assert_eq!((world.orders(1).incarnation, world.seen(7).0), (1, ObservedPhase::Stopping));
    assert_eq!(world.look_for(60), Requests::default());
    world.clear(1);
    assert_eq!(world.look_for(31).refused.len(), 1);
}

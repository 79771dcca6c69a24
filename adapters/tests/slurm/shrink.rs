//! Running jobs that give up nodes: whole nodes, and not the one on which the batch script runs.

use std::sync::Arc;

use trainmaster_adapters::slurm::call::{Action, Purpose, SlurmCall};
use trainmaster_core::{Allocation, Event, Mode, Scheduler, Span, Verdict, engine::Engine, testing::Scripted};

use super::{RING, World, settings};

/// An engine that also decides every five seconds.
fn places(script: Vec<Vec<Vec<u32>>>) -> Scripted {
    Scripted::places(script).every(Span::seconds(5))
}

/// Three nodes with two GPUs each, and a job whose workers get these nodes, one list per decision.
fn world(script: Vec<Vec<u32>>) -> (World, u32) {
    world_every(5, script)
}

/// The same with this number of seconds between decisions.
fn world_every(seconds: i64, script: Vec<Vec<u32>>) -> (World, u32) {
    let mut world = World::new(3, 2, "fifo");
    let script = script.into_iter().map(|nodes| vec![nodes]).collect();
    let engine = places(script).every(Span::seconds(seconds));
    world.scheduler = Scheduler::with_engine(settings("fifo"), Arc::new(engine)).unwrap();
    world.restart();
    let id = world.sbatch(RING);
    (world, id)
}

fn purposes(orders: &[SlurmCall]) -> Vec<Option<Purpose>> {
    let purpose = |order: &SlurmCall| match &order.action {
        Action::Update(update) => Some(update.purpose),
        Action::Requeue | Action::Cancel => None,
    };
    orders.iter().map(purpose).collect()
}

#[test]
fn what_was_let_go_and_is_planned_elsewhere_is_held_and_its_room_is_free() {
    let whole = RING.replace("worker.gpu=1", "worker.gpu=2");
    let mut world = World::new(2, 2, "fifo");
    world.scheduler = Scheduler::with_engine(
        settings("fifo"),
        Arc::new(places(vec![vec![vec![0], vec![1]], vec![vec![1], vec![0]]])),
    )
    .unwrap();
    // Both may start, but they have to swap places before Slurm starts them.
    world.slurm.frozen = true;
    let ids = [world.sbatch(&whole), world.sbatch(&whole)];
    let mut orders = Vec::new();
    while !purposes(&orders).contains(&Some(Purpose::Hold)) {
        orders.extend(world.round());
        assert!(world.slurm.now < 1020, "{orders:?}");
    }
    world.slurm.frozen = false;
    world.rounds(5);
    assert_eq!(ids.map(|id| world.nodes(id)), [["node2"], ["node1"]]);
    ids.iter().for_each(|id| world.agrees(*id).unwrap());
}

#[test]
fn whole_nodes_are_given_up_in_place() {
    let (mut world, id) = world_every(8, vec![vec![0, 0, 1, 1, 2, 2], vec![0, 0, 1, 1], vec![0, 0]]);
    let orders = world.rounds(30);
    assert_eq!(purposes(&orders), [Some(Purpose::Start), Some(Purpose::Shrink), Some(Purpose::Shrink)]);
    assert_eq!(world.nodes(id), ["node1"]);
    world.agrees(id).unwrap();
    let job = world.core(id);
    let job = world.scheduler.state().job(job).unwrap();
    assert_eq!((job.issued.incarnation.0, job.issued.revision.0), (1, 2));
}

#[test]
fn changes_while_processes_leave_are_one_call() {
    let (mut world, id) = world_every(3, vec![vec![0, 0, 1, 1, 2, 2], vec![0, 0, 1, 1], vec![0, 0]]);
    let orders = world.rounds(30);
    assert_eq!(purposes(&orders), [Some(Purpose::Start), Some(Purpose::Shrink)]);
    assert_eq!(world.nodes(id), ["node1"]);
    world.agrees(id).unwrap();
    assert_eq!(world.translator.given(world.core(id)), Some((1, 2)));
}

#[test]
fn processes_leave_a_node_before_it_is_given_up() {
    let (mut world, id) = world(vec![vec![0, 0, 1, 1], vec![0, 0]]);
    world.leaves_after = 2;
    let mut told = None;
    let shrunk = (0..30).find_map(|_| {
        let orders = world.round();
        if told.is_none() && world.translator.given(world.core(id)) == Some((1, 1)) {
            told = Some(world.slurm.now);
        }
        purposes(&orders).contains(&Some(Purpose::Shrink)).then_some(world.slurm.now)
    });
    // Two seconds until they have left, and five in which they end.
    assert_eq!(shrunk.unwrap() - told.expect("the programs follow the revision first"), 7);
    assert_eq!(world.nodes(id), ["node1"]);
}

/// A job on two nodes whose programs were told that it gives up the second one. They don't leave. `later`: its nodes in
/// later decisions.
fn told(later: Vec<Vec<u32>>) -> (World, u32) {
    let (mut world, id) = world([vec![vec![0, 0, 1, 1], vec![0, 0]], later].concat());
    world.leaves_after = i64::MAX;
    let is_told = |world: &World| world.translator.job(id).and_then(|job| world.translator.given(job)) == Some((1, 1));
    while !is_told(&world) {
        world.round();
        assert!(world.slurm.now < 1020, "nobody is told");
    }
    (world, id)
}

#[test]
fn processes_that_do_not_leave_are_not_killed_and_the_job_restarts_on_its_new_nodes() {
    let (mut world, id) = told(Vec::new());
    let orders = world.rounds(30);
    assert_eq!(purposes(&orders), [None, Some(Purpose::Start)]);
    assert_eq!(world.nodes(id), ["node1"]);
    world.agrees(id).unwrap();
}

#[test]
fn a_job_that_cannot_be_told_restarts_at_once() {
    let (mut world, id) = world(vec![vec![0, 0, 1, 1], vec![0, 0]]);
    world.config.feed = None;
    world.restart();
    let orders = world.rounds(30);
    assert_eq!(purposes(&orders), [Some(Purpose::Start), None, Some(Purpose::Start)]);
    assert_eq!(world.nodes(id), ["node1"]);
    world.agrees(id).unwrap();
}

#[test]
fn processes_that_are_wanted_again_are_started_again() {
    let (mut world, id) = told(vec![vec![0, 0, 1, 1]]);
    // Some are about to end when the owner of the cluster pauses scheduling, and then resumes it.
    world.apply(Event::ModeSet(Mode::Paused));
    world.rounds(2);
    world.apply(Event::ModeSet(Mode::Active));
    world.leaves_after = 0;
    let orders = world.rounds(60);
    assert!(purposes(&orders).contains(&None), "it is requeued: {orders:?}");
    let state = world.scheduler.state().job(world.core(id)).unwrap();
    let issued = (state.issued.incarnation.0, state.issued.revision.0);
    assert_eq!(world.translator.given(world.core(id)), Some(issued));
    world.agrees(id).unwrap();
}

#[test]
fn nobody_leaves_for_a_decision_that_is_not_on_disk() {
    let (mut world, id) = world(vec![vec![0, 0, 1, 1], vec![0, 0]]);
    while world.nodes(id).len() < 2 {
        world.round();
    }
    world.writes = false;
    assert_eq!(purposes(&world.rounds(20)), []);
    assert_eq!(world.translator.given(world.core(id)), Some((1, 0)));
    world.writes = true;
    world.rounds(20);
    assert_eq!(world.nodes(id), ["node1"]);
    world.agrees(id).unwrap();
}

#[test]
fn after_a_restart_of_the_agent_that_forgot_who_left_the_job_restarts() {
    let (mut world, id) = told(Vec::new());
    world.restart();
    let orders = world.rounds(30);
    assert_eq!(purposes(&orders), [None, Some(Purpose::Start)]);
    assert_eq!(world.nodes(id), ["node1"]);
    world.agrees(id).unwrap();
}

#[test]
fn many_changes_in_quick_succession_do_not_put_off_the_call() {
    // A node is given up every three seconds, from ten nodes to one.
    let mut world = World::new(10, 2, "fifo");
    let nodes = |count: u32| vec![(0..count).flat_map(|node| [node, node]).collect::<Vec<_>>()];
    let engine = places((1..=10).rev().map(nodes).collect()).every(Span::seconds(3));
    world.scheduler = Scheduler::with_engine(settings("fifo"), Arc::new(engine)).unwrap();
    world.restart();
    let id = world.sbatch(&RING.replace("worker.max=8", "worker.max=20"));
    let orders = world.rounds(60);
    assert!(purposes(&orders)[1..].iter().all(|purpose| *purpose == Some(Purpose::Shrink)), "{orders:?}");
    assert!(orders.len() > 3, "one call for all changes would be too late: {orders:?}");
    assert_eq!(world.nodes(id), ["node1"]);
    world.agrees(id).unwrap();
}

#[test]
fn after_a_restart_of_the_agent_the_workers_left_have_their_own_numbers() {
    // The first nodes' workers leave, so the remaining ones don't have the first indices.
    let all = places(vec![vec![vec![1, 1, 0, 0]]]);
    let last = Scripted::new(move |round, decision| {
        all.decide(round, &mut (decision as u32))?;
        let kept = if decision == 0 { 0 } else { 2 };
        for (_, verdict) in &mut round.proposal.changes {
            let slots = verdict.allocation().unwrap().slots().to_vec();
            let slots = slots.into_iter().filter(|slot| slot.index >= kept).collect();
            *verdict = Verdict::Run(Arc::new(Allocation::new(slots)));
        }
        Ok(())
    });
    let mut world = World::new(3, 2, "fifo");
    world.scheduler = Scheduler::with_engine(settings("fifo"), Arc::new(last.every(Span::seconds(5)))).unwrap();
    let id = world.sbatch(RING);
    world.rounds(20);
    assert_eq!(world.nodes(id), ["node1"]);
    world.restart();
    world.rounds(3);
    world.agrees(id).unwrap();
    let job = world.scheduler.state().job(world.core(id)).unwrap();
    let seen = job.seen.allocation.as_ref().unwrap().slots();
    assert_eq!(seen.iter().map(|slot| slot.index).collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn a_ring_of_unknown_programs_restarts() {
    let plain = RING.replace("elastic=in_place;", "");
    for (comment, second) in [
        (plain.clone(), None),
        (format!("{plain};launcher=torchrun"), Some(Purpose::Shrink)),
        (RING.into(), Some(Purpose::Shrink)),
    ] {
        let mut world = World::new(3, 2, "fifo");
        let engine = places(vec![vec![vec![0, 0, 1, 1]], vec![vec![0, 0]]]);
        world.scheduler = Scheduler::with_engine(settings("fifo"), Arc::new(engine)).unwrap();
        world.restart();
        let id = world.sbatch(&comment);
        let orders = world.rounds(30);
        assert_eq!(purposes(&orders)[..2], [Some(Purpose::Start), second], "{comment}");
        assert_eq!(world.nodes(id), ["node1"]);
    }
}

#[test]
fn fewer_on_each_node_is_a_restart() {
    let (mut world, id) = world(vec![vec![0, 0, 1, 1], vec![0, 1]]);
    let orders = world.rounds(30);
    assert_eq!(purposes(&orders), [Some(Purpose::Start), None, Some(Purpose::Start)]);
    world.agrees(id).unwrap();
}

#[test]
fn where_the_batch_script_must_go_it_is_a_restart() {
    // The first worker, which keeps the parameters, is on node2. The batch script runs on node1.
    let (mut world, id) = world(vec![vec![1, 1, 0, 0], vec![1, 1]]);
    let orders = world.rounds(30);
    assert_eq!(purposes(&orders), [Some(Purpose::Start), None, Some(Purpose::Start)], "{orders:?}");
    assert_eq!(world.nodes(id), ["node2"]);
    world.agrees(id).unwrap();
}

#[test]
fn what_leaves_its_nodes_while_scheduling_is_paused_is_as_submitted_again() {
    let mut world = World::new(3, 2, "fifo");
    let scheduler = Scheduler::with_engine(settings("fifo"), Arc::new(places(vec![vec![vec![0, 1]]])));
    world.scheduler = scheduler.unwrap();
    let id = world.sbatch(&format!("{RING};worker.requested=4"));
    world.rounds(5);
    assert_eq!(world.nodes(id), ["node1", "node2"]);
    let job = world.core(id);
    world.apply(Event::JobHeld { job, held: true });
    assert_eq!(purposes(&world.round()), [None], "it is requeued");
    world.apply(Event::ModeSet(Mode::Paused));
    let orders = world.rounds(5);
    let [SlurmCall { action: Action::Update(update), .. }] = &orders[..] else { panic!("{orders:?}") };
    assert_eq!((update.purpose, update.nodes, update.tasks), (Purpose::Release, Some((1, 1)), Some(1)));
}

#[test]
fn slots_that_were_issued_and_revoked_between_two_plans_are_free() {
    let mut world = World::new(1, 2, "fifo");
    let script = vec![vec![vec![0, 0], vec![]], vec![vec![], vec![0, 0]]];
    world.scheduler = Scheduler::with_engine(settings("fifo"), Arc::new(places(script))).unwrap();
    let ids = [world.sbatch(RING), world.sbatch(RING)];
    world.rounds(8);
    let waits = &world.slurm.jobs[&ids[1]].admin_comment;
    assert!(waits.contains("waits until 2 gpu more is released on node1"), "{waits}");
    // One observation shows that the room is free, and that the owner holds the job.
    world.slurm.end(ids[0], 3);
    world.slurm.jobs.get_mut(&ids[1]).unwrap().priority = 0;
    world.rounds(5);
    let job = world.scheduler.state().job(world.core(ids[1])).unwrap();
    assert!(job.held && job.issued.incarnation.0 > 0, "it was issued");
    assert_eq!(job.issued.allocation, None, "its slots are charged");
}

#[test]
fn what_its_owner_holds_before_slurm_starts_it_has_no_slots() {
    let mut world = World::new(1, 2, "fifo");
    world.slurm.frozen = true;
    let id = world.sbatch(RING);
    assert!(purposes(&world.rounds(5)).contains(&Some(Purpose::Start)));
    world.slurm.jobs.get_mut(&id).unwrap().priority = 0;
    world.rounds(5);
    let job = world.scheduler.state().job(world.core(id)).unwrap();
    assert!(job.held && job.issued.incarnation.0 > 0, "it was issued");
    assert_eq!(job.issued.allocation, None, "its slots are charged");
    world.slurm.jobs.get_mut(&id).unwrap().priority = 100;
    world.slurm.frozen = false;
    world.rounds(30);
    world.agrees(id).unwrap();
}

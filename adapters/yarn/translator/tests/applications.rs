//! Applications: their submission, their ends, and restarts of either side.

use super::*;

#[test]
fn an_application_is_submitted_runs_and_ends() {
    let mut world = World::new("");
    world.submit(1, JOB);
    assert_eq!(world.look(), Requests::default(), "not before it is known which jobs there are");
    assert_eq!(world.translator.bridge_plan(world.now(), CLOCK), Err(NoPlan));
    assert_eq!(world.translator.orders(world.now(), &app(1)), Err(NoPlan));

    world.plan(true, vec![]);
    let step = world.look();
    let (id, spec) = &step.submit[0];
    assert_eq!((id, spec.name.as_str(), spec.tenant.as_str(), spec.queue.as_str()), (&app(1), "mnist", "alice", "dl"));
    assert_eq!(world.look(), Requests::default(), "once");
    let (action, slots, reason) = world.enforced_for(1);
    assert_eq!((action, slots, reason.contains("being asked")), (wire::Action::Hold, vec![], true));
    assert_eq!(world.orders(1).standing(), Standing::Wait);
    world.answer(1, Submitted::Job(7));
    assert_eq!((world.orders(1).standing(), world.orders(1).job), (Standing::Wait, 7));

    world.app(1).set_state(ApplicationState::Running);
    assert_eq!(world.run(1, &[(W, 0, "a"), (W, 1, "b")]), ACCEPTED);
    let (first, second) = (request(1, W, 0), request(1, W, 1));
    let (action, slots, _) = world.enforced_for(1);
    assert_eq!((action, slots), (wire::Action::Run, vec![(first, "a:1".into()), (second, "b:1".into())]));
    let orders = world.orders(1);
    assert_eq!((orders.standing(), orders.incarnation, orders.grace_ms), (Standing::Run, 1, 5000));
    let slot = &orders.slots[1];
    assert_eq!((slot.server, slot.index, slot.node.as_str(), slot.node_name.as_str()), (false, 1, "b:1", "b"));
    assert_eq!((slot.allocation_request, &slot.resource), (second, &resource(1500, 2, 1)));
    assert_eq!(orders.worker_command, "train");
    for (name, value) in
        [("FEED", "http://feed:1"), ("JOB", "7"), ("JOB_NAME", "mnist"), ("TOKEN", "t0ken"), ("BATCH", "64")]
    {
        assert_eq!(orders.environment[&format!("TRAINMASTER_{name}")], value);
    }

    assert_eq!(world.seen(7), (ObservedPhase::Starting, 1, vec![]));
    world.worker(1, 0, "a", ContainerState::Allocated);
    world.worker(1, 1, "b", ContainerState::Reserved);
    world.look();
    let both = vec![(0, "a".to_owned()), (1, "b".to_owned())];
    assert_eq!(world.seen(7), (ObservedPhase::Starting, 1, both.clone()));
    world.clear(1);
    world.worker(1, 0, "a", ContainerState::Running);
    world.worker(1, 1, "b", ContainerState::Running);
    world.look();
    assert_eq!(world.seen(7), (ObservedPhase::Running, 1, both));

    world.clear(1);
    world.app(1).set_state(ApplicationState::Succeeded);
    world.look();
    assert_eq!(world.seen(7), (ObservedPhase::Completed, 1, vec![]));
    assert_eq!(world.enforced().applications, []);
    let stop = JobPlan { ended: "completed".into(), ..other(v1::Action::Stop, "completed") };
    world.plan(false, vec![stop]);
    world.cluster.applications.clear();
    world.look_for(31);
    assert!(world.translator.apps.is_empty() && world.translator.jobs.is_empty());
}

#[test]
fn processes_get_the_batch_that_was_chosen() {
    let file = JOB.replace("batch = 64", "batch = { size = 64, max = 4096, local = 16 }");
    assert_ne!(file, JOB);
    let mut world = World::with_job("", &file);
    let told = |world: &World, name: &str| world.orders(1).environment[&format!("TRAINMASTER_BATCH{name}")].clone();
    // Before there is a plan: the submitted batch.
    assert_eq!(["", "_SUBMITTED"].map(|name| told(&world, name)), ["64", "64"]);
    let chosen = [("", "512"), ("_SUBMITTED", "64"), ("_LOCAL", "16"), ("_PASSES", "16")];
    let environment = chosen.map(|(name, value)| (format!("TRAINMASTER_BATCH{name}"), value.to_owned())).into();
    world.plan(false, vec![JobPlan { environment, ..run(7, 1, &[(W, 0, "a"), (W, 1, "b")]) }]);
    assert_eq!(chosen.map(|(name, _)| told(&world, name)), chosen.map(|(_, value)| value));
    let orders = world.orders(1);
    assert_eq!((orders.environment["TRAINMASTER_INCARNATION"].as_str(), orders.slots.len()), ("1", 2));
}

#[test]
fn what_fails_and_what_is_killed_is_told() {
    let mut world = World::with_job("", JOB);
    world.run(1, &[(W, 0, "a")]);
    world.app(1).set_state(ApplicationState::Failed);
    world.app(1).diagnostics = "exit 1".into();
    world.look();
    let seen = world.translator.snapshot().jobs.remove(&7).unwrap();
    assert_eq!((seen.phase(), seen.message.as_str()), (ObservedPhase::Failed, "exit 1"));

    let mut world = World::with_job("", JOB);
    world.run(1, &[(W, 0, "a")]);
    world.app(1).set_state(ApplicationState::Killed);
    assert_eq!(world.look().cancel, [7]);
    assert_eq!(world.look().cancel, Vec::<u64>::new(), "once");
    assert_eq!(world.seen(7), (ObservedPhase::Starting, 1, vec![]));
    world.translator.cancel_failed(7);
    assert_eq!(world.look().cancel, [7], "again");
    world.plan(false, vec![other(v1::Action::Stop, "cancelled")]);
    assert_eq!(world.seen(7), (ObservedPhase::Stopped, 1, vec![]), "which is news: what was issued is free");
    world.translator.cancel_failed(7);
    assert_eq!(world.look(), Requests::default());

    // A rejected application was killed because of the rejection.
    let mut world = World::with_job("", JOB);
    world.plan(false, vec![other(v1::Action::Reject, "not worth it")]);
    assert_eq!(world.enforced_for(1), (wire::Action::Kill, vec![], "not worth it".into()));
    world.app(1).set_state(ApplicationState::Killed);
    world.app(1).diagnostics = "not worth it".into();
    assert_eq!(world.look(), Requests::default());
    assert_eq!(world.seen(7).0, ObservedPhase::Failed);
}

#[test]
fn an_application_that_vanishes_has_failed_after_a_while() {
    let mut world = World::with_job("", JOB);
    world.run(1, &[(W, 0, "a")]);
    world.cluster.applications.clear();
    world.look_for(30);
    assert_eq!(world.seen(7).0, ObservedPhase::Starting);
    world.look();
    let seen = world.translator.snapshot().jobs.remove(&7).unwrap();
    assert!(seen.phase() == ObservedPhase::Failed && seen.message.contains(&app(1)), "{seen:?}");
    world.plan(false, vec![other(v1::Action::Stop, "failed")]);
    world.look();
    assert!(world.translator.apps.is_empty());
}

#[test]
fn a_job_file_that_is_told_later_is_read_then() {
    let mut world = World::new("");
    world.plan(true, vec![]);
    world.submit(1, "");
    world.app(1).untold = true;
    assert_eq!(world.look(), Requests::default());
    let (action, _, reason) = world.enforced_for(1);
    assert!(action == wire::Action::Hold && reason.contains("too long together"), "{reason}");
    assert_eq!(world.orders(1).standing(), Standing::Wait);
    let told = world.app(1);
    (told.untold, told.job) = (false, JOB.into());
    assert_eq!(world.look().submit[0].1.name, "mnist");
}

#[test]
fn what_cant_be_a_job_is_killed_with_the_reason() {
    let mut world = World::new("");
    world.submit(1, "name = 1");
    world.submit(2, JOB);
    world.submit(3, JOB);
    world.look();
    world.plan(true, vec![]);
    assert_eq!(world.look().submit.len(), 2);
    let (action, _, reason) = world.enforced_for(1);
    assert!(action == wire::Action::Kill && reason.contains("job file") && reason.contains("name"), "{reason}");
    assert_eq!(world.orders(1).standing(), Standing::Over);

    world.answer(2, Submitted::Refused("needs 9 GPUs".into()));
    assert_eq!(world.enforced_for(2), (wire::Action::Kill, vec![], "needs 9 GPUs".into()));
    // If a name is taken, the job gets a number, once.
    world.answer(3, Submitted::NameTaken("taken".into()));
    let step = world.look();
    assert_eq!(step.submit[0].1.name, "mnist-3");
    world.answer(3, Submitted::Away);
    assert_eq!(world.look().submit.len(), 1, "again, a second later");
    world.answer(3, Submitted::NameTaken("taken as well".into()));
    assert_eq!(world.enforced_for(3).2, "taken as well");
    assert_eq!(world.look(), Requests::default());
    world.cluster.applications.clear();
    world.look();
    assert!(world.translator.apps.is_empty());
}

#[test]
fn a_new_start_knows_its_jobs_from_plans_alone() {
    let mut world = World::new("");
    world.submit(1, JOB);
    world.app(1).set_state(ApplicationState::Running);
    world.worker(1, 0, "a", ContainerState::Running);
    world.look();
    assert_eq!(world.server("a").foreign["gpu"], 1000, "whose it is isn't known yet");
    world.plan(true, vec![run(7, 1, &[(W, 0, "a")])]);
    assert_eq!(world.look(), Requests::default(), "it isn't submitted again");
    assert_eq!(world.seen(7), (ObservedPhase::Running, 1, vec![(0, "a".into())]));
    assert_eq!(world.server("a").foreign.get("gpu"), None);

    // The daemon came back without the job. It is asked again, and its answer counts.
    world.translator.attached();
    world.plan(true, vec![]);
    assert_eq!(world.look().submit.len(), 1);
    world.answer(1, Submitted::Refused("has ended: cancelled".into()));
    assert_eq!(world.enforced_for(1), (wire::Action::Kill, vec![], "has ended: cancelled".into()));
}

#[test]
fn the_first_picture_knows_whose_containers_are_whose() {
    let mut world = World::new("");
    world.submit(1, JOB);
    world.app(1).set_state(ApplicationState::Running);
    world.worker(2, 0, "a", ContainerState::Running);
    world.look();
    let known = |job, number| v1::JobStatus { job, external: external(number), ..v1::JobStatus::default() };
    world.translator.learn(world.now(), vec![known(7, 1), known(8, 9)]);
    assert_eq!(world.seen(7), (ObservedPhase::Running, 2, vec![(0, "a".into())]));
    assert_eq!(world.server("a").foreign.get("gpu"), None);
    assert_eq!(world.look(), Requests::default());
    // A job whose application isn't reported was forgotten by a restarted ResourceManager.
    world.look_for(30);
    assert_eq!(world.seen(8).0, ObservedPhase::Failed);
}

#[test]
fn a_daemon_that_lost_its_state_gives_numbers_anew() {
    let mut world = World::with_job("", JOB);
    world.run(1, &[(W, 0, "a")]);
    world.submit(2, JOB);
    world.look();
    world.translator.attached();
    world.plan(true, vec![JobPlan { external: external(2), ..run(7, 1, &[(W, 0, "b")]) }]);
    assert_eq!(world.orders(2).job, 7);
    assert_eq!((world.look().submit[0].0.as_str(), world.orders(1).job), (app(1).as_str(), 0));
    world.answer(1, Submitted::Job(8));
    assert_eq!((world.orders(1).job, world.orders(2).job), (8, 7));
}

#[test]
fn a_job_that_was_just_submitted_isnt_missed_in_an_older_plan() {
    let mut world = World::with_job("", JOB);
    world.plan(true, vec![]);
    assert_eq!(world.look(), Requests::default());
    assert_eq!(world.orders(1).job, 7);
    // Jobs of other managers, and jobs without an external id, aren't this adapter's.
    let stranger = JobPlan { external: None, ..run(9, 1, &[(W, 0, "a")]) };
    let elsewhere = v1::ExternalId { cluster: "slurm".into(), native: app(1) };
    let waits = JobPlan { job: 8, external: Some(elsewhere), ..other(v1::Action::Wait, "later") };
    let answers = world.plan(false, vec![stranger, waits]);
    assert!(answers.len() == 1 && answers[0].refused.as_ref().unwrap().contains("submitted to YARN"), "{answers:?}");
}

#[test]
fn a_resource_manager_that_restarts_loses_nothing() {
    let mut world = World::with_job("", JOB);
    world.run(1, &[(W, 0, "a"), (W, 1, "b")]);
    world.worker(1, 0, "a", ContainerState::Running);
    world.worker(1, 1, "b", ContainerState::Running);
    world.look();
    let (before, orders) = (world.seen(7), world.orders(1));
    // It knows the application, whose ApplicationMaster hasn't returned, but no node.
    let (nodes, containers) = (world.cluster.nodes.clone(), world.app(1).containers.clone());
    world.cluster.started_ms += 1;
    world.cluster.nodes.clear();
    world.app(1).containers.clear();
    world.app(1).set_state(ApplicationState::Pending);
    assert_eq!(world.look_for(40), Requests::default());
    assert_eq!((world.seen(7), world.orders(1)), (before.clone(), orders.clone()));
    assert_eq!(world.enforced_for(1).1.len(), 2);
    // One node returns, and its container is reported a moment later. The other node has lost its container.
    world.cluster.nodes = nodes;
    world.app(1).set_state(ApplicationState::Running);
    world.look();
    assert_eq!(world.seen(7), before);
    world.app(1).containers = containers[..1].to_vec();
    world.look_for(5);
    assert_eq!((world.seen(7).2.len(), world.orders(1)), (1, orders));
}

#[test]
fn applications_whose_end_nobody_saw_are_asked_for() {
    let mut world = World::with_job("", JOB);
    let row = world.cluster.applications.remove(0);
    world.look();
    assert_eq!(world.enforced().missed, [app(1)]);
    assert_ne!(world.seen(7).0, ObservedPhase::Failed);
    world.cluster.applications.push(Application { state: ApplicationState::Succeeded.into(), ..row });
    world.look();
    assert_eq!((world.seen(7).0, world.enforced().missed.len()), (ObservedPhase::Completed, 0));
}

#[test]
fn garbage_is_ignored_and_nothing_lost() {
    let mut world = World::with_job("", JOB);
    world.run(1, &[(W, 0, "a")]);
    world.worker(1, 0, "a", ContainerState::Running);
    world.look();
    let before = world.seen(7);
    let first = world.cluster.applications[0].clone();
    world.cluster.applications.push(Application { job: "name = 1".into(), containers: vec![], ..first });
    world.cluster.applications.push(Application::default());
    world.cluster.nodes.push(Node { capacity: resource(1, 1, 1), ..world.cluster.nodes[0].clone() });
    world.cluster.nodes.push(Node::default());
    world.cluster.nodes[1].capacity = resource(-5, i64::MAX, 1);
    world.cluster.nodes[1].state = 99;
    world.app(1).state = 42;
    world.app(1).containers[0].state = 1;
    for (id, request, node) in [("x", -1, "a:1"), ("y", i64::MAX, "nowhere:1"), ("z", 0, "")] {
        let container =
            Container { id: id.into(), allocation_request: request, node: node.into(), ..Container::default() };
        world.app(1).containers.push(container);
    }
    let step = world.look();
    assert_eq!((step, world.seen(7)), (Requests::default(), before));
    assert_eq!((world.server("b").capacity.get("memory"), world.server("b").capacity["gpu"]), (None, 1000));
    assert_eq!(world.server("a").capacity["memory"], 8192, "the first one counts");
    assert_eq!(world.orders(1).standing(), Standing::Run);
    assert_eq!(world.translator.complaints.len(), 8, "{:?}", world.translator.complaints);
}

#[test]
fn a_secret_is_known_by_its_hash() {
    let mut world = World::with_job("", JOB);
    world.submit(2, JOB);
    world.app(2).secret_hash = String::new();
    world.look();
    assert!(world.translator.secret(&app(1)).unwrap().matches("abc"));
    assert_eq!((world.translator.secret(&app(2)), world.translator.secret("application_x")), (None, None));
}

#[test]
fn the_nodes_loads_are_told_now_and_then() {
    let mut world = World::new("measure = \"5s\"");
    let used = |memory: f64, vcores: f64| {
        [("memory-mb", memory), ("vcores", vcores)].map(|(name, used)| (name.to_owned(), used)).into()
    };
    let told = |world: &mut World| {
        world.look();
        world.translator.snapshot();
        let told = world.translator.measured(world.now());
        told.into_iter().map(|load| (load.server, load.used["memory"], load.used["cpu"])).collect::<Vec<_>>()
    };
    assert_eq!(told(&mut world), [], "plug-ins that don't tell");
    world.cluster.nodes[0].used = used(2048.0, 4.0);
    world.look_for(4);
    assert_eq!(told(&mut world), [("a".to_owned(), 2048, 4000)]);
    world.cluster.nodes[0].used = used(8192.0, 99.0);
    assert_eq!(told(&mut world), [], "soon enough");
    world.look_for(4);
    assert_eq!(told(&mut world), [("a".to_owned(), 8192, 8000)]);
    world.translator.forget_loads();
    assert_eq!(told(&mut world), [("a".to_owned(), 8192, 8000)]);

    let mut world = World::new("measure = \"off\"");
    world.cluster.nodes[0].used = used(8192.0, 8.0);
    assert_eq!(told(&mut world), []);
}

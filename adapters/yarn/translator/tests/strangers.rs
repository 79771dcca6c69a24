//! Applications without plug-ins, and applications of other users.

use super::*;

#[test]
fn nobody_gives_anothers_application_a_command() {
    let mallory = |number| {
        let mut job = known(7, number, 0, &[]);
        job.spec.as_mut().unwrap().tenant = "mallory".into();
        v1::JobStatus { tenant: "mallory".into(), ..job }
    };
    // The job is reported before the application is, and after.
    for early in [true, false] {
        let mut world = World::new("api = \"rest\"\nresourcemanager = \"http://rm:1\"");
        world.plan(true, vec![]);
        if early {
            world.translator.learn(world.now(), vec![mallory(1)]);
        }
        world.submit(1, "");
        world.look_at_roles();
        if !early {
            world.translator.learn(world.now(), vec![mallory(1)]);
        }
        world.look_at_roles();
        let runs = || JobPlan { tenant: "mallory".into(), ..run(7, 1, &[(W, 0, "a")]) };
        world.plan(true, vec![runs()]);
        world.look_at_roles();
        world.translator.learn(world.now(), vec![mallory(1)]);
        world.look_at_roles();
        let orders = world.orders(1);
        assert_eq!((orders.standing(), orders.worker_command.as_str()), (Standing::Wait, ""), "{early}");
        assert!(world.translator.apps[&app(1)].spec.is_none());
        // Only the job of the application's user runs.
        world.translator.learn(world.now(), vec![known(8, 1, 0, &[]), mallory(1)]);
        let answers = world.plan(true, vec![run(8, 1, &[(W, 0, "a")]), runs()]);
        let refused: Vec<u64> =
            answers.iter().filter(|answer| answer.refused.is_some()).map(|answer| answer.job).collect();
        assert_eq!(refused, [7], "{answers:?}");
        world.look_at_roles();
        assert_eq!(world.translator.apps[&app(1)].job(), Some(8));
        assert_ne!(world.orders(1).worker_command, "");
    }
}

#[test]
fn where_tenants_are_no_users_the_first_job_stays_the_applications() {
    let mut world = World::new("api = \"rest\"\naccounts = \"job\"\nresourcemanager = \"http://rm:1\"");
    world.plan(true, vec![]);
    world.submit(1, "");
    world.look_at_roles();
    let job = |job, tenant: &str| v1::JobStatus { tenant: tenant.into(), ..known(job, 1, 0, &[]) };
    world.translator.learn(world.now(), vec![job(8, "vision")]);
    world.translator.learn(world.now(), vec![job(8, "vision"), job(9, "mallory")]);
    let runs = |job| run(job, 1, &[(W, 0, "a")]);
    let answers = world.plan(true, vec![runs(8), runs(9)]);
    let refused: Vec<u64> = answers.iter().filter(|answer| answer.refused.is_some()).map(|answer| answer.job).collect();
    assert_eq!(refused, [9], "{answers:?}");
    world.look_at_roles();
    assert_eq!(world.translator.apps[&app(1)].job(), Some(8));
}

#[test]
fn without_plug_ins_the_daemon_says_what_applications_are() {
    let mut world = World::new("api = \"rest\"\nresourcemanager = \"http://rm:1\"");
    world.submit(1, "");
    world.submit(2, "");
    world.plan(true, vec![]);
    // The job files aren't known, but that is no reason to kill the applications.
    let step = world.look_at_roles();
    assert_eq!((step.submit.len(), step.look_up), (0, true));
    assert_eq!(world.enforced_for(1).0, wire::Action::Hold);
    assert_eq!(world.orders(1).standing(), Standing::Wait);
    world.translator.learn(world.now(), vec![known(7, 1, 0, &[])]);
    assert!(world.translator.apps[&app(1)].spec.is_some());
    // The daemon is queried for the other one for a while.
    let asked: usize = (0..40).map(|_| usize::from(world.look_at_roles().look_up)).sum();
    assert!((9..=11).contains(&asked), "{asked}");
    assert_eq!(world.enforced_for(2).0, wire::Action::Hold, "it is left alone");

    // Containers are identified by the slots planned on their nodes.
    world.app(1).set_state(ApplicationState::Running);
    world.run(1, &[(W, 0, "a"), (W, 1, "b")]);
    world.container(1, "c2", 0, "b", ContainerState::Running);
    world.container(1, "c3", 0, "a", ContainerState::Running);
    world.look_at_roles();
    let both = vec![(0, "a".to_owned()), (1, "b".to_owned())];
    assert_eq!(world.seen(7), (ObservedPhase::Running, 1, both.clone()));
    assert_eq!(world.server("a").foreign.get("cpu"), None, "they are ours");
    // A restart: the old containers leave.
    world.run(2, &[(W, 0, "a"), (W, 1, "b")]);
    world.look_at_roles();
    assert_eq!(world.seen(7), (ObservedPhase::Stopping, 1, both.clone()));
    world.clear(1);
    world.container(1, "c4", 0, "a", ContainerState::Running);
    world.look_at_roles();
    assert_eq!(world.seen(7), (ObservedPhase::Running, 2, vec![(0, "a".to_owned())]));

    // It is in its job file's queue until someone moves it.
    assert_eq!(world.translator.misplaced(), []);
    world.app(1).queue = "root.dl".into();
    world.look_at_roles();
    assert_eq!(world.translator.misplaced(), []);
    world.app(1).queue = "root.default".into();
    world.look_at_roles();
    assert_eq!(world.translator.misplaced(), [(app(1), "root.default".to_owned(), "dl".to_owned())]);
}

#[test]
fn without_plug_ins_a_new_start_takes_containers_for_what_the_daemon_gave() {
    let mut world = World::new("api = \"rest\"\nresourcemanager = \"http://rm:1\"");
    world.submit(1, "");
    world.app(1).set_state(ApplicationState::Running);
    world.container(1, "c2", 0, "b", ContainerState::Running);
    world.container(1, "c3", 0, "a", ContainerState::Running);
    world.translator.learn(world.now(), vec![known(7, 1, 3, &[(W, 0, "a"), (W, 1, "b")])]);
    world.look_at_roles();
    let both = vec![(0, "a".to_owned()), (1, "b".to_owned())];
    assert_eq!(world.seen(7), (ObservedPhase::Running, 3, both), "the daemon's first state has them");
    assert_eq!(world.server("a").foreign.get("cpu"), None);
}

#[test]
fn a_job_whose_application_never_comes_has_failed_after_a_while() {
    let mut world = World::new("api = \"rest\"\nresourcemanager = \"http://rm:1\"");
    world.plan(true, vec![]);
    world.translator.learn(world.now(), vec![known(7, 1, 0, &[])]);
    world.look_at_roles();
    assert_eq!(world.translator.unended(), [app(1)], "the ResourceManager is asked for it");
    for _ in 0..31 {
        world.look_at_roles();
    }
    let seen = world.translator.snapshot().jobs.remove(&7).unwrap();
    assert_eq!(seen.phase(), ObservedPhase::Failed);
    assert!(seen.message.contains("never told of it"), "{}", seen.message);
    // No plan contains it, so it is forgotten eventually.
    for _ in 0..60 {
        world.look_at_roles();
    }
    assert!(world.translator.snapshot().jobs.is_empty());
}

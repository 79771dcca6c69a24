//! Plans: which ones are followed, whose jobs they name, and what is refused.

use trainmaster_proto::v1::{Action, DeviceShare, ObservedPhase};

use super::*;

fn using(mut plan: v1::JobPlan, server: &str, device: u32, milli: u32) -> v1::JobPlan {
    for slot in &mut plan.slots {
        slot.server = server.into();
        slot.devices = vec![DeviceShare { device, milli }];
    }
    plan
}

#[test]
fn an_older_plan_is_ignored_and_the_same_one_changes_nothing() {
    let mut world = World::new();
    let plan = |term, decision, jobs| v1::Plan { term, decision, jobs, full: true, ttl_ms: 0 };
    let now = world.now;
    assert_eq!(world.fleet.plan(now, plan(2, 5, vec![run(1, 1, 1, 1, 0)])).len(), 1);
    for (term, decision) in [(2, 4), (1, 9)] {
        assert_eq!(world.fleet.plan(now, plan(term, decision, vec![told(1, Action::Stop)])), []);
    }
    assert_eq!(world.fleet.plan(now, plan(2, 5, vec![run(1, 1, 1, 1, 0)])), [], "nothing changed");
    world.fleet.attached(now);
    let again = world.fleet.plan(now, plan(2, 5, vec![run(1, 1, 1, 1, 0)]));
    assert_eq!(again, [PlanAnswer::accepted(1)], "a daemon that came back hears it again");
    world.pass(0);
    assert!(world.lives(worker(1, 1, 0)));
    assert_eq!(world.fleet.plan(now, plan(3, 1, vec![])), []);
    world.pass(0);
    assert_eq!(world.signals(), [(worker(1, 1, 0), Signal::Term)], "not named by a full plan");
}

#[test]
fn garbage_is_refused_with_its_cause_and_changes_nothing() {
    let mut world = World::new();
    world.plan(vec![run(1, 1, 1, 1, 0)]);
    type Spoil = fn(&mut v1::JobPlan);
    let garbage: [(&str, Spoil); 15] = [
        ("action 7", |plan| plan.action = 7),
        ("grace_ms = -5", |plan| plan.grace_ms = -5),
        ("\"\"", |plan| plan.name.clear()),
        ("../x", |plan| plan.name = "../x".into()),
        ("\"..\"", |plan| plan.name = "..".into()),
        ("0 slots", |plan| plan.slots.clear()),
        ("worker 0 is named twice", |plan| plan.slots.push(plan.slots[0].clone())),
        ("slot role 5", |plan| plan.slots[0].role = 5),
        ("\"c\", which is not one of this manager's servers", |plan| plan.slots[0].server = "c".into()),
        ("device 2 of \"a\", which has 2", |plan| plan.slots[0].devices = vec![DeviceShare { device: 2, milli: 1 }]),
        ("0 thousandths", |plan| plan.slots[0].devices = vec![DeviceShare { device: 0, milli: 0 }]),
        ("2000 thousandths", |plan| plan.slots[0].devices = vec![DeviceShare { device: 0, milli: 2000 }]),
        ("\"missing\"", |plan| plan.worker_command = "missing".into()),
        ("\"missing\"", |plan| plan.server_command = "missing".into()),
        ("\"A=B\"", |plan| drop(plan.environment.insert("A=B".into(), String::new()))),
    ];
    for (part, spoil) in garbage {
        let mut plan = run(1, 2, 2, 1, 0);
        spoil(&mut plan);
        let refused = world.change(vec![plan]);
        assert!(refused.len() == 1 && refused[0].1.contains(part), "{refused:?} should contain {part:?}");
    }
    let twice = world.change(vec![run(1, 1, 1, 1, 0), run(1, 2, 1, 1, 0)]);
    assert_eq!(twice, [(1, "the plan names this job twice".into())]);
    let mut endless = run(1, 1, 1, 1, 0);
    endless.grace_ms = i64::MAX;
    world.send(v1::Plan { ttl_ms: i64::MAX, jobs: vec![endless], ..v1::Plan::default() });
    assert_eq!((world.signals(), world.living.len()), (vec![], 1));
}

#[test]
fn a_refused_job_keeps_its_files() {
    let mut world = World::new();
    let mut plan = run(4, 1, 1, 1, 0);
    plan.worker_command = "missing".into();
    assert_eq!(world.plan(vec![plan]).len(), 1);
    assert_eq!(world.fleet.active().collect::<Vec<_>>(), [(4, "job-4")]);
    world.plan(Vec::new());
    assert_eq!(world.fleet.active().count(), 0);
}

#[test]
fn a_device_is_not_planned_twice() {
    let mut world = World::new();
    let half = |job, incarnation| using(run(job, incarnation, 1, 1, 0), "b", 0, 500);
    assert_eq!(world.plan(vec![half(1, 1), half(2, 1)]), []);
    let refused = world.change(vec![half(3, 1)]);
    assert!(refused[0].1.contains("device 0 (gpu) of \"b\" would be planned for 1500"), "{refused:?}");
    // Another job can use what one job gives up, in either order.
    for jobs in [
        vec![half(3, 1), using(run(2, 2, 1, 1, 0), "a", 1, 1000)],
        vec![using(run(3, 2, 1, 1, 0), "a", 0, 1), half(2, 3)],
    ] {
        assert_eq!(world.change(jobs), []);
    }
    // Of the changed jobs, the last named one is refused first.
    let refused = world.change(vec![half(4, 1), half(1, 2)]);
    assert_eq!(refused.iter().map(|(job, _)| *job).collect::<Vec<_>>(), [1, 4]);
}

#[test]
fn an_oversubscribed_device_is_planned_for_as_often_as_the_file_says() {
    let cluster = Cluster::parse("oversubscribe = 1.5\n[[server]]\nname = \"b\"\ngpu = 1\n", "test").unwrap();
    let mut world =
        World { fleet: Fleet::new(Arc::new(cluster), policy(), Resolve::by(resolve), Vec::new()), ..World::new() };
    let part = |job, milli| using(run(job, 1, 1, 1, 0), "b", 0, milli);
    assert_eq!(world.plan(vec![part(1, 1000), part(2, 500)]), []);
    let refused = world.change(vec![part(3, 1)]);
    assert!(refused[0].1.contains("would be planned for 1501 thousandths; it has 1500"), "{refused:?}");
}

#[test]
fn who_is_idle_shares_its_device_and_says_so() {
    let mut world = World::new();
    let whole = |job, idle| {
        let mut plan = using(run(job, 1, 1, 1, 0), "b", 0, 1000);
        plan.slots[0].idle = idle;
        plan
    };
    assert_eq!(world.plan(vec![whole(1, false), whole(2, true)]), []);
    world.pass(0);
    assert!(world.lives(worker(1, 1, 0)) && world.lives(worker(2, 1, 0)));
    let idle = |world: &World| world.fleet.observe(world.now).values().map(|job| job.slots[0].idle).collect::<Vec<_>>();
    assert_eq!(idle(&world), [false, true]);
    // They swap devices, and no process is stopped for that.
    let swapped = [whole(1, true), whole(2, false)].map(|plan| v1::JobPlan { revision: 2, ..plan });
    assert_eq!(world.change(swapped.to_vec()), []);
    assert_eq!((world.signals(), idle(&world)), (vec![], vec![true, false]));
    let refused = world.change(vec![v1::JobPlan { revision: 3, ..whole(1, false) }]);
    assert!(refused[0].1.contains("device 0 (gpu) of \"b\" would be planned for 2000"), "{refused:?}");
}

#[test]
fn adopted_jobs_are_claimed_or_given_up() {
    let mut world = World::with(vec![adopted(worker(1, 3, 0)), adopted(worker(2, 1, 0)), adopted(worker(3, 1, 0))]);
    world.pass(100_000);
    assert_eq!(world.signals(), [], "the daemon hasn't spoken yet");
    assert_eq!(world.phase(1), Some(ObservedPhase::Running));
    world.plan(vec![run(1, 3, 7, 2, 0), told(3, Action::Wait)]);
    assert_eq!(world.signals(), [(worker(3, 1, 0), Signal::Term)]);
    assert!(world.lives(worker(1, 3, 0)) && world.lives(worker(1, 3, 1)));
    world.pass(4999);
    assert!(!world.signals().contains(&(worker(2, 1, 0), Signal::Term)));
    world.pass(1);
    assert_eq!(world.signals(), [(worker(2, 1, 0), Signal::Term)]);

    // How it ended is unknown. It is started again, after a wait in which a plan may say that the job was done.
    world.exit(worker(1, 3, 0), Exit::Unknown);
    assert!(!world.lives(worker(1, 3, 0)));
    world.pass(500);
    assert!(world.lives(worker(1, 3, 0)));
}

#[test]
fn adopted_processes_outlive_a_refusal_but_not_the_next_plan_without_them() {
    let mut world = World::with(vec![adopted(worker(1, 1, 0))]);
    let mut plan = run(1, 1, 1, 1, 0);
    plan.worker_command = "missing".into();
    assert_eq!(world.plan(vec![plan]).len(), 1);
    world.pass(100_000);
    assert_eq!((world.signals(), world.phase(1)), (vec![], Some(ObservedPhase::Running)));
    world.plan(Vec::new());
    assert_eq!(world.signals(), [(worker(1, 1, 0), Signal::Term)]);
}

#[test]
fn adopted_processes_of_another_job_make_room() {
    let other_name = |plan: &mut v1::JobPlan| plan.name = "other".into();
    let other_token = |plan: &mut v1::JobPlan| plan.token = "other".into();
    for differ in [other_name as fn(&mut v1::JobPlan), other_token] {
        let mut world = World::with(vec![adopted(worker(1, 1, 0))]);
        let mut plan = run(1, 1, 1, 1, 0);
        differ(&mut plan);
        world.plan(vec![plan]);
        assert_eq!(world.signals(), [(worker(1, 1, 0), Signal::Term)]);
        world.exit(worker(1, 1, 0), Exit::Unknown);
        assert!(world.lives(worker(1, 1, 0)), "the planned one");
    }
}

#[test]
fn results_are_bounded() {
    let mut world = World::new();
    for job in 0..300 {
        world.change(vec![run(job, 1, 1, 1, 0)]);
        world.exit(worker(job, 1, 0), Exit::Code(0));
    }
    world.pass(1000);
    world.change(vec![told(1000, Action::Wait)]);
    assert_eq!(world.fleet.observe(world.now).len(), KEPT_OUTCOMES);
}

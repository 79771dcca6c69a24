//! Plans, exits and time in arbitrary order. The invariants hold, and the last plan is carried out.

use proptest::prelude::*;
use trainmaster_proto::v1::Action as Told;

use super::*;

#[derive(Clone, Debug)]
enum Event {
    Plan { full: bool, ttl_ms: i64, jobs: Vec<(u64, Told, u32, u32, u32)> },
    Pass(u64),
    Exit { which: usize, exit: Exit },
    NotStarted { which: usize },
    Away,
    Back,
}

fn event() -> impl Strategy<Value = Event> {
    let told = prop_oneof![
        4 => Just(Told::Run),
        1 => Just(Told::Wait),
        1 => Just(Told::Stop),
        1 => Just(Told::Release),
    ];
    let job = (1..4u64, told, 1..3u32, 0..4u32, 0..3u32);
    let ttl = prop_oneof![3 => Just(0), 1 => 1..5000i64];
    let exit = prop_oneof![
        Just(Exit::Code(0)),
        Just(Exit::Code(1)),
        Just(Exit::Code(crate::local::RESTART_ALL_EXITS[0])),
        Just(Exit::Code(crate::local::HOPELESS_EXIT)),
        Just(Exit::Signal(9)),
        Just(Exit::Unknown),
    ];
    prop_oneof![
        3 => (any::<bool>(), ttl, prop::collection::vec(job, 0..4))
            .prop_map(|(full, ttl_ms, jobs)| Event::Plan { full, ttl_ms, jobs }),
        3 => (0..3000u64).prop_map(Event::Pass),
        4 => (any::<usize>(), exit).prop_map(|(which, exit)| Event::Exit { which, exit }),
        1 => any::<usize>().prop_map(|which| Event::NotStarted { which }),
        1 => Just(Event::Away),
        1 => Just(Event::Back),
    ]
}

fn pick(world: &World, which: usize) -> Option<ProcessId> {
    world.living.iter().nth(which % world.living.len().max(1)).copied()
}

fn happen(world: &mut World, revision: u32, event: Event) {
    match event {
        Event::Plan { full, ttl_ms, jobs } => {
            let jobs = jobs.into_iter().map(|(job, action, incarnation, workers, servers)| match action {
                Told::Run => run(job, incarnation, revision, workers, servers),
                other => told(job, other),
            });
            world.send(v1::Plan { full, ttl_ms, jobs: jobs.collect(), ..v1::Plan::default() });
        }
        Event::Pass(ms) => world.pass(ms),
        Event::Exit { which, exit } => {
            if let Some(id) = pick(world, which) {
                world.exit(id, exit);
            }
        }
        Event::NotStarted { which } => {
            if let Some(id) = pick(world, which) {
                world.living.remove(&id);
                world.fleet.not_started(world.now, id, "no memory".into());
                world.pass(0);
            }
        }
        Event::Away => world.fleet.detached(),
        Event::Back => world.fleet.attached(world.now),
    }
}

/// Checks that the observed slots are the living processes.
fn agrees(world: &World) {
    let observed = world.fleet.observe(world.now);
    let slots: usize = observed.values().map(|job| job.slots.len()).sum();
    assert_eq!(slots, world.living.len());
    for id in &world.living {
        assert!(observed[&id.job].slots.len() <= 6, "{id}");
    }
}

/// Ends each process that got SIGKILL, and advances the time, until nothing more happens.
fn obey(world: &mut World) {
    loop {
        let signals = world.signals();
        for (id, _) in signals.iter().filter(|(_, signal)| *signal == Signal::Kill) {
            if world.lives(*id) {
                world.exit(*id, Exit::Signal(9));
            }
        }
        world.pass(10_000);
        if world.actions.is_empty() {
            return;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_last_plan_is_carried_out(events in prop::collection::vec(event(), 0..40)) {
        let mut world = World::with(vec![adopted(worker(1, 1, 0)), adopted(server(2, 2, 1))]);
        for (revision, event) in (1..).zip(events) {
            happen(&mut world, revision, event);
            agrees(&world);
            world.fleet.forget_over();
        }
        world.fleet.attached(world.now);
        world.plan(vec![run(1, 9, 100, 2, 1)]);
        obey(&mut world);
        let wanted = BTreeSet::from([server(1, 9, 0), worker(1, 9, 0), worker(1, 9, 1)]);
        prop_assert_eq!(&world.living, &wanted);

        world.plan(Vec::new());
        obey(&mut world);
        world.fleet.forget_over();
        prop_assert!(world.living.is_empty() && world.fleet.observe(world.now).is_empty());
    }
}

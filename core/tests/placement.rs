//! Theorem 1 of Optimus against every other placement, even spreads on mixed servers, shares of devices, and the index
//! of free servers against a plain sort.

use std::{collections::BTreeSet, sync::Arc};

use crate::common::{
    build::{amounts, cluster, job, plain, ring, role, server, submit, wp},
    config,
};
use proptest::{collection::vec, prelude::*, sample::select, test_runner::TestRunner};
use trainmaster_core::{
    Allocation, Budget, Devices, Event, Job, JobSpec, Role, Scheduler, ServerId, ServerSpec, Shape, Slot, State, Time,
    job::Resize,
    place::{Count, FreeIndex, Room, SortBy, assign, spread, transfer_time},
    resources::{Amounts, CPU, GPU},
};

/// The placement of a job's shape on an empty cluster.
fn place(scheduler: &Scheduler, job: &Job, shape: Shape) -> Option<Vec<Count>> {
    let state = scheduler.state();
    let room = Room::of(state);
    let index = FreeIndex::build(state, &room, SortBy::Share);
    let mut budget = Budget::UNLIMITED;
    spread(state, &room, &index, job, shape, &mut budget).expect("no bound")
}

fn only_job(scheduler: &Scheduler) -> Arc<Job> {
    scheduler.state().jobs.values().next().expect("a job").clone()
}

/// (workers, parameter servers) on each server, as slots.
fn placed(counts: &[(u32, u32)]) -> Allocation {
    let mut slots = Vec::new();
    let (mut workers, mut servers) = (0, 0);
    for (at, &(w, p)) in counts.iter().enumerate() {
        let mut add = |role, index| {
            slots.push(Slot { role, index, server: ServerId(at as u32), devices: Devices::new() });
        };
        (0..w).for_each(|n| add(Role::Worker, workers + n));
        (0..p).for_each(|n| add(Role::Server, servers + n));
        (workers, servers) = (workers + w, servers + p);
    }
    Allocation::new(slots)
}

/// All distributions of a shape over `servers` servers with `places` places each.
fn every_placement(shape: Shape, servers: usize, places: u32, visit: &mut impl FnMut(&[(u32, u32)])) {
    fn go(
        left: Shape,
        servers: usize,
        places: u32,
        counts: &mut Vec<(u32, u32)>,
        visit: &mut impl FnMut(&[(u32, u32)]),
    ) {
        if servers == 0 {
            if left.is_empty() {
                visit(counts);
            }
            return;
        }
        for w in 0..=left.workers.min(places) {
            for p in 0..=left.servers.min(places - w) {
                counts.push((w, p));
                go(wp(left.workers - w, left.servers - p), servers - 1, places, counts, visit);
                counts.pop();
            }
        }
    }
    go(shape, servers, places, &mut Vec::new(), visit);
}

#[test]
fn theorem_1_no_other_placement_moves_data_faster() {
    let (mut whole, mut uneven) = (0, 0);
    for (servers, places) in [(2, 2), (2, 3), (3, 2), (3, 3), (4, 2), (2, 5), (3, 4)] {
        // A worker and a parameter server take one CPU each, so each server has `places` places.
        let specs: Vec<ServerSpec> = (0..servers).map(|at| server(&format!("s{at}"), places.into(), 64, &[])).collect();
        let mut scheduler = cluster(plain("optimus-paper"), &specs);
        let spec = JobSpec { worker: role(&[("cpu", 1000)], 1, 16, 1), ..job("a", (1, 16, 1), (1, 16, 1)) };
        submit(&mut scheduler, 0, spec);
        let job = only_job(&scheduler);
        for (w, p) in (1..=8).flat_map(|w| (1..=8).map(move |p| (w, p))).filter(|(w, p)| w + p <= servers * places) {
            let Some(counts) = place(&scheduler, &job, wp(w, p)) else { continue };
            let mut ours = vec![(0, 0); servers as usize];
            for count in &counts {
                ours[count.server.index()] = (count.shape.workers, count.shape.servers);
            }
            let k = counts.len();
            assert!(k >= (w + p).div_ceil(places) as usize);
            let even = |count: u32, total: u32| [total / k as u32, total.div_ceil(k as u32)].contains(&count);
            assert!(
                counts.iter().all(|count| even(count.shape.workers, w) && even(count.shape.servers, p)),
                "{counts:?}"
            );
            for (per_worker, per_server) in [(1.0, 1.0), (1.0, 4.0), (4.0, 1.0)] {
                let cost = |counts: &[(u32, u32)]| transfer_time(&placed(counts), f64::from(p), per_worker, per_server);
                let mine = cost(&ours);
                // The proof's placements have both roles on each of their servers (p_jk, w_jk ∈ Z⁺).
                let both = |other: &[(u32, u32)]| other.iter().all(|(w, p)| (*w > 0) == (*p > 0));
                let divides = w % k as u32 == 0 && p % k as u32 == 0;
                if divides && k == (w + p).div_ceil(places) as usize {
                    // Equal numbers on the minimum number of servers: no placement on any number of servers is faster.
                    whole += 1;
                    every_placement(wp(w, p), servers as usize, places, &mut |other| {
                        assert!(
                            !both(other) || mine <= cost(other) + 1e-9,
                            "{ours:?} costs {mine}, {other:?} {}",
                            cost(other)
                        );
                    });
                } else {
                    // With remainders: no other placement on as many servers is faster.
                    uneven += 1;
                    every_placement(wp(w, p), k, places, &mut |other| {
                        let all = other.iter().all(|(w, p)| *w > 0 && *p > 0);
                        assert!(!all || mine <= cost(other) + 1e-9, "{ours:?} costs {mine}, {other:?} {}", cost(other));
                    });
                }
            }
        }
    }
    assert!(whole > 50 && uneven > 50, "{whole} {uneven}");
}

#[test]
fn theorem_1_is_about_servers_that_hold_both_roles() {
    // Two workers, four parameter servers, B = 4·b, unit sizes. Spread evenly over two servers, each worker fetches
    // from two parameter servers elsewhere: 2/b. With all workers beside three of the servers they fetch from one: 1/b.
    // The proof excludes such placements. So does the engine, because they need more room on one server.
    let cost = |counts: &[(u32, u32)]| transfer_time(&placed(counts), 4.0, 1.0, 4.0);
    assert_eq!(cost(&[(1, 2), (1, 2)]), 2.0);
    assert_eq!(cost(&[(0, 1), (2, 3)]), 1.0);
}

fn by_server(scheduler: &Scheduler, counts: &[Count]) -> Vec<(String, Shape)> {
    let mut list: Vec<_> =
        counts.iter().map(|count| (scheduler.state().server_name(count.server).to_owned(), count.shape)).collect();
    list.sort();
    list
}

#[test]
fn servers_that_hold_only_one_role_do_not_defeat_the_even_spread() {
    // The freest servers have no GPU.
    let mut servers: Vec<ServerSpec> = (0..3).map(|at| server(&format!("cpu{at}"), 32, 64, &[])).collect();
    servers.extend((0..2).map(|at| server(&format!("gpu{at}"), 8, 16, &["gpu"; 2])));
    let mut scheduler = cluster(plain("optimus-paper"), &servers);
    submit(&mut scheduler, 0, job("a", (1, 8, 1), (1, 8, 1)));
    let job = only_job(&scheduler);
    let counts = place(&scheduler, &job, wp(4, 2)).unwrap();
    assert_eq!(by_server(&scheduler, &counts), [("gpu0".into(), wp(2, 1)), ("gpu1".into(), wp(2, 1))]);
    assert_eq!(place(&scheduler, &job, wp(5, 2)), None, "there are four GPUs");
}

#[test]
fn parameter_servers_without_room_beside_workers_go_elsewhere() {
    let mut servers: Vec<ServerSpec> = (0..3).map(|at| server(&format!("cpu{at}"), 16, 80, &[])).collect();
    servers.extend((0..2).map(|at| server(&format!("gpu{at}"), 4, 48, &["gpu"; 2])));
    let mut scheduler = cluster(plain("optimus-paper"), &servers);
    submit(&mut scheduler, 0, job("a", (1, 8, 1), (1, 9, 1)));
    let job = only_job(&scheduler);
    let counts = place(&scheduler, &job, wp(2, 9)).expect("16 cores without a GPU beside them");
    let expected = [("cpu0", wp(0, 5)), ("gpu0", wp(2, 0)), ("gpu1", wp(0, 4))];
    assert_eq!(by_server(&scheduler, &counts), expected.map(|(name, shape)| (name.to_owned(), shape)));
}

#[test]
fn servers_for_single_roles_form_two_lists() {
    // A parameter server needs more CPUs than a GPU server has.
    let mut servers: Vec<ServerSpec> = (0..2).map(|at| server(&format!("cpu{at}"), 32, 64, &[])).collect();
    servers.extend((0..2).map(|at| server(&format!("gpu{at}"), 8, 16, &["gpu"; 2])));
    let mut scheduler = cluster(plain("optimus-paper"), &servers);
    let spec = JobSpec { server: Some(role(&[("cpu", 16_000)], 1, 8, 1)), ..job("a", (1, 8, 1), (1, 8, 1)) };
    submit(&mut scheduler, 0, spec);
    let job = only_job(&scheduler);
    let counts = place(&scheduler, &job, wp(4, 4)).unwrap();
    let expected = [("cpu0", wp(0, 2)), ("cpu1", wp(0, 2)), ("gpu0", wp(2, 0)), ("gpu1", wp(2, 0))];
    assert_eq!(by_server(&scheduler, &counts), expected.map(|(name, shape)| (name.to_owned(), shape)));
}

#[test]
fn a_server_that_holds_either_role_is_not_in_both_lists() {
    let servers = ["s0", "s1"].map(|name| server(name, 1, 8, &[]));
    let mut scheduler = cluster(plain("optimus-paper"), &servers);
    let spec = JobSpec { worker: role(&[("cpu", 1000)], 1, 8, 1), ..job("a", (1, 8, 1), (1, 8, 1)) };
    let id = submit(&mut scheduler, 0, spec);
    scheduler.decide(Time(0));
    let job = scheduler.state().job(id).unwrap();
    let allocation = job.verdict.allocation().expect("one role on each server");
    assert_ne!(allocation.slots()[0].server, allocation.slots()[1].server);
}

#[test]
fn shape_rules_of_the_pool_are_kept() {
    let servers: Vec<ServerSpec> = (0..4).map(|at| server(&format!("s{at}"), 8, 16, &["gpu"; 2])).collect();
    let mut settings = plain("optimus-paper");
    settings.shape.equal_per_server = true;
    let mut scheduler = cluster(settings, &servers);
    submit(&mut scheduler, 0, job("a", (1, 8, 1), (1, 8, 1)));
    let job = only_job(&scheduler);
    let counts = place(&scheduler, &job, wp(6, 3)).unwrap();
    assert_eq!(counts.iter().map(|count| count.shape).collect::<Vec<_>>(), [wp(2, 1); 3]);
    assert_eq!(place(&scheduler, &job, wp(5, 3)), None, "only one server would do, and that has two GPUs");

    let mut settings = plain("optimus-paper");
    settings.shape.colocate = false;
    let mut scheduler = cluster(settings, &servers);
    submit(&mut scheduler, 0, crate::common::build::job("a", (1, 8, 1), (1, 8, 1)));
    let counts = place(&scheduler, &only_job(&scheduler), wp(4, 4)).unwrap();
    assert!(counts.iter().all(|count| count.shape.workers == 0 || count.shape.servers == 0), "{counts:?}");
}

#[test]
fn jobs_leave_a_draining_server_if_there_is_room_elsewhere() {
    for engine in ["optimus-paper", "drf", "tetris"] {
        let servers = ["s0", "s1", "s2"].map(|name| server(name, 8, 16, &["gpu"; 2]));
        // On one server: two workers and one parameter server can't be spread evenly over more.
        let mut settings = plain(engine);
        settings.shape.equal_per_server = true;
        let mut scheduler = cluster(settings, &servers);
        let spec = JobSpec { resize: Resize::Fixed, ..job("a", (2, 2, 2), (1, 1, 1)) };
        let id = submit(&mut scheduler, 0, spec);
        let places = |scheduler: &Scheduler| -> BTreeSet<String> {
            let job = scheduler.state().job(id).unwrap();
            let slots = job.verdict.allocation().unwrap_or_else(|| panic!("{engine}: {:?}", job.verdict)).slots();
            slots.iter().map(|slot| scheduler.state().server_name(slot.server).to_owned()).collect()
        };
        let mut at = 0;
        let mut drain = |scheduler: &mut Scheduler, names: &[&str]| {
            for spec in &servers {
                let draining = names.contains(&spec.name.as_str());
                crate::common::build::set(scheduler, at, ServerSpec { draining, ..spec.clone() });
            }
            at += 600_000;
            scheduler.decide(Time(at));
        };
        drain(&mut scheduler, &[]);
        let at_first = places(&scheduler);
        drain(&mut scheduler, &[]);
        assert_eq!(places(&scheduler), at_first, "{engine}: nothing drains");
        let all: Vec<&str> = servers.iter().map(|server| server.name.as_str()).collect();
        drain(&mut scheduler, &all);
        assert_eq!(places(&scheduler), at_first, "{engine}: there is no better place");
        let draining: Vec<&str> = at_first.iter().map(String::as_str).collect();
        drain(&mut scheduler, &draining);
        assert!(places(&scheduler).is_disjoint(&at_first), "{engine}: {:?}", places(&scheduler));
    }
}

#[test]
fn separate_roles_are_spread_separately() {
    let gpus = (0..3).map(|at| server(&format!("gpu{at}"), 8, 16, &["gpu"; 2]));
    let servers: Vec<ServerSpec> = gpus.chain((0..2).map(|at| server(&format!("cpu{at}"), 4, 16, &[]))).collect();
    let apart = |settings| {
        let mut scheduler = cluster(settings, &servers);
        submit(&mut scheduler, 0, JobSpec { separate_roles: true, ..job("a", (1, 8, 1), (1, 8, 1)) });
        scheduler
    };
    let shapes =
        |counts: Option<Vec<Count>>| -> Vec<Shape> { counts.unwrap().iter().map(|count| count.shape).collect() };
    let mut settings = plain("optimus-paper");
    let scheduler = apart(settings.clone());
    let job = only_job(&scheduler);
    let counts = place(&scheduler, &job, wp(1, 1)).unwrap();
    assert_ne!(counts[0].server, counts[1].server, "one server would hold both");
    assert!(counts[1].server.0 >= 3, "a GPU server has more room, but GPUs too: {counts:?}");
    assert_eq!(shapes(place(&scheduler, &job, wp(5, 4))), [wp(2, 0), wp(2, 0), wp(1, 0), wp(0, 4)]);
    assert_eq!(place(&scheduler, &job, wp(7, 1)), None, "six GPUs");
    // Equal numbers of a role on each of its servers, independent of the other role.
    settings.shape.equal_per_server = true;
    let scheduler = apart(settings);
    let job = only_job(&scheduler);
    assert_eq!(shapes(place(&scheduler, &job, wp(6, 6))), [wp(2, 0), wp(2, 0), wp(2, 0), wp(0, 3), wp(0, 3)]);
    assert_eq!(shapes(place(&scheduler, &job, wp(3, 4))), [wp(1, 0), wp(1, 0), wp(1, 0), wp(0, 4)]);
    assert_eq!(place(&scheduler, &job, wp(5, 1)), None, "five are as many on each only if each has one");
}

#[test]
fn a_share_of_a_gpu_fits_one_device() {
    // Two fifths: each device holds two, so two devices hold four, although five fit in the sum of two GPUs.
    let mut scheduler = cluster(plain("optimus-paper"), &[server("s0", 8, 16, &["gpu"; 2])]);
    let spec = JobSpec { worker: role(&[("gpu", 400), ("cpu", 100)], 1, 8, 1), ..ring("a", (1, 8, 1)) };
    submit(&mut scheduler, 0, spec);
    let job = only_job(&scheduler);
    assert!(place(&scheduler, &job, wp(4, 0)).is_some());
    assert_eq!(place(&scheduler, &job, wp(5, 0)), None);
    let mut room = Room::of(scheduler.state());
    let counts = [Count { server: ServerId(0), shape: wp(4, 0) }];
    let allocation = assign(&mut room, &job, &counts, None).unwrap();
    let devices: Vec<u16> = allocation.slots().iter().map(|slot| slot.devices[0].device).collect();
    assert_eq!(devices, [0, 0, 1, 1], "best fit");
    assert_eq!(room.free(ServerId(0))[GPU], 400);
    room.release(&job, &allocation);
    assert_eq!(room.free(ServerId(0))[GPU], 2000);
}

#[test]
fn slots_that_stay_keep_index_and_device_and_new_workers_get_new_indices() {
    let servers = ["s0", "s1"].map(|name| server(name, 8, 16, &["gpu"; 4]));
    let mut scheduler = cluster(plain("optimus-paper"), &servers);
    submit(&mut scheduler, 0, ring("a", (1, 8, 1)));
    let job = only_job(&scheduler);
    let on = |first: u32, second: u32| {
        [(0, first), (1, second)]
            .into_iter()
            .filter(|(_, workers)| *workers > 0)
            .map(|(at, workers)| Count { server: ServerId(at), shape: wp(workers, 0) })
            .collect::<Vec<_>>()
    };
    let mut room = Room::of(scheduler.state());
    let before = assign(&mut room, &job, &on(3, 0), None).unwrap();
    room.release(&job, &before);
    let after = assign(&mut room, &job, &on(2, 2), Some(&before)).unwrap();
    assert_eq!(after.common(&before).slots(), &before.slots()[..2]);
    // Worker 2 left the first server. The worker on the second server has a new index.
    let indices: Vec<u32> = after.slots().iter().map(|slot| slot.index).collect();
    assert_eq!(indices, [0, 1, 3, 4]);
}

/// A sorted scan of all servers, freest first.
fn scan(state: &State, room: &Room, sort_by: SortBy, weights: &Amounts, need: &Amounts) -> Vec<ServerId> {
    let score = |id: ServerId| -> f64 {
        let counts = |(resource, free): (_, i64)| match sort_by {
            SortBy::Amount(only) if only != resource => None,
            _ => (weights[resource] > 0 && free > 0).then(|| free as f64 * (1.0 / weights[resource] as f64)),
        };
        room.free(id).iter().filter_map(counts).sum::<f64>() + 0.0
    };
    let present = state.servers.iter().filter(|server| server.present);
    let mut all: Vec<(f64, ServerId)> = present.map(|server| (score(server.id), server.id)).collect();
    all.sort_by(|(mine, a), (theirs, b)| theirs.total_cmp(mine).then(a.cmp(b)));
    all.into_iter().map(|(_, id)| id).filter(|id| need.fits(room.free(*id))).collect()
}

#[test]
fn the_index_lists_what_a_sort_lists() {
    // (server, CPUs and GPUs in foreign use, absent or present)
    let update = (any::<prop::sample::Index>(), 0..=8_i64, 0..=4_i64, prop::bool::weighted(0.1));
    let instance = (
        vec((1..=8_i64, 0..=4_i64, 1..=16_i64), 1..700),
        vec(update, 0..600),
        select(vec![SortBy::Share, SortBy::Amount(CPU), SortBy::Amount(GPU)]),
    );
    let mut runner = TestRunner::new(config(25));
    let result = runner.run(&instance, |(servers, updates, sort_by)| {
        let specs: Vec<ServerSpec> = servers
            .iter()
            .enumerate()
            .map(|(at, (cpus, gpus, gib))| ServerSpec {
                name: format!("s{at}"),
                capacity: amounts(&[("cpu", cpus * 1000), ("gpu", gpus * 1000), ("memory", gib * 1024)]),
                ..ServerSpec::default()
            })
            .collect();
        let mut scheduler = cluster(plain("fifo"), &specs);
        let mut room = Room::of(scheduler.state());
        let weights = scheduler.state().capacity.clone();
        let mut index = FreeIndex::build(scheduler.state(), &room, sort_by);
        let needs = [
            Amounts::default(),
            Amounts::of(&[(CPU, 1000)]),
            Amounts::of(&[(GPU, 2000)]),
            Amounts::of(&[(GPU, 1000), (CPU, 4000)]),
        ];
        let check = |scheduler: &Scheduler, room: &Room, index: &FreeIndex| {
            for need in &needs {
                let mut expected = scan(scheduler.state(), room, sort_by, &weights, need);
                let freest: Vec<ServerId> = index.freest(room, None, need).collect();
                assert_eq!(freest, expected, "freest first, for {need:?}");
                expected.reverse();
                let fullest: Vec<ServerId> = index.fullest(room, None, need).collect();
                assert_eq!(fullest, expected, "fullest first, for {need:?}");
            }
        };
        check(&scheduler, &room, &index);
        for (number, (at, cpus, gpus, leaves)) in updates.into_iter().enumerate() {
            let at = at.index(specs.len());
            let (name, capacity) = (specs[at].name.clone(), &specs[at].capacity);
            let event = match (leaves, scheduler.state().find_server(&name).expect("known").present) {
                (true, true) => Event::ServersLeft { names: vec![name] },
                (_, false) => Event::ServerSet { manager: "m0".into(), server: specs[at].clone() },
                _ => {
                    let foreign =
                        [("cpu", (cpus * 1000).min(capacity["cpu"])), ("gpu", (gpus * 1000).min(capacity["gpu"]))];
                    // If all memory is used, a server has no free room of a kind, or none at all.
                    let memory = if cpus == 8 { capacity["memory"] } else { 0 };
                    let foreign = [foreign[0], foreign[1], ("memory", memory)];
                    Event::ForeignUse { server: name, amounts: amounts(&foreign), devices: Vec::new() }
                }
            };
            scheduler.apply(Time(0), event).expect("a good event");
            let id = ServerId(at as u32);
            room.refresh(scheduler.state(), id);
            index.update(&room, id, scheduler.state().server(id).present);
            if number % 40 == 0 {
                check(&scheduler, &room, &index);
            }
        }
        check(&scheduler, &room, &index);
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

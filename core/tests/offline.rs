//! The offline optimum against exhaustive search, and against schedules made by hand.

use proptest::prelude::*;
use trainmaster_core::{
    JobSpec, Shape, Span, Time,
    job::{Dataset, Slots, Utility, UtilityKind},
    resources::{Amounts, BANDWIDTH, CPU, GPU, MEMORY},
    solver::{Limit, SOLVERS},
};
use trainmaster_sim::offline::{Host, Instance, Optimum, Run, Schedule, Task, solve};

fn host(gpus: i64, cpus: i64, workers: bool, servers: bool) -> Host {
    Host { capacity: Amounts::of(&[(GPU, gpus), (CPU, cpus)]), workers, servers }
}

/// Workers of `gpus` GPUs, and one parameter server of one CPU for every two of them.
fn task(arrival: u32, work: u64, most: u32, gpus: i64, worth: &[f64]) -> Task {
    Task {
        arrival,
        work,
        workers: (1, most),
        servers: (1, most),
        worker: Amounts::of(&[(GPU, gpus), (BANDWIDTH, 0)]),
        server: Amounts::of(&[(CPU, 1)]),
        bandwidth: (1, 2),
        worth: worth.to_vec(),
    }
}

fn every(instance: &Instance, check: impl Fn(&Optimum)) {
    for solver in SOLVERS {
        let best =
            solve(instance, *solver, Limit::default()).unwrap_or_else(|error| panic!("{}: {error}", solver.name()));
        let utility = instance.utility(&best.schedule).unwrap_or_else(|misfit| panic!("{}: {misfit}", solver.name()));
        assert!((utility - best.utility).abs() < 1e-9);
        check(&best);
    }
}

/// All shapes that a task can have on the hosts in one slot, by host.
fn placements(task: &Task, hosts: &[Host]) -> Vec<Vec<Shape>> {
    let mut all = vec![Vec::new()];
    for host in hosts {
        let most = |takes: bool, most: u32| if takes { most } else { 0 };
        let (w, p) = (most(host.workers, task.workers.1), most(host.servers, task.servers.1));
        let here = (0..=w).flat_map(|workers| (0..=p).map(move |servers| Shape { workers, servers }));
        let fits = |shape: &Shape| {
            let mut total = task.worker.times(shape.workers.into());
            total.add_times(&task.server, shape.servers.into());
            total.fits(&host.capacity)
        };
        let here: Vec<Shape> = here.filter(fits).collect();
        all = all.iter().flat_map(|before| here.iter().map(|shape| [&before[..], &[*shape]].concat())).collect();
    }
    all.retain(|placed| {
        let (w, p) = placed.iter().fold((0, 0), |(w, p), shape| (w + shape.workers, p + shape.servers));
        (w, p) == (0, 0)
            || (w <= task.workers.1
                && p <= w
                && p >= task.servers.0
                && i64::from(w) * task.bandwidth.0 <= i64::from(p) * task.bandwidth.1)
    });
    all
}

/// The optimum by exhaustive search over the placements of two tasks in each slot.
fn by_trying(instance: &Instance) -> f64 {
    let [a, b] = &instance.jobs[..] else { panic!("two tasks") };
    let (of_a, of_b) = (placements(a, &instance.hosts), placements(b, &instance.hosts));
    let workers = |placed: &[Shape]| placed.iter().map(|shape| shape.workers).sum::<u32>();
    let mut pairs: Vec<(u32, u32)> = Vec::new();
    for mine in &of_a {
        for theirs in &of_b {
            let fits = instance.hosts.iter().zip(mine).zip(theirs).all(|((host, x), y)| {
                let mut total = a.worker.times(x.workers.into());
                total.add_times(&a.server, x.servers.into());
                total.add_times(&b.worker, y.workers.into());
                total.add_times(&b.server, y.servers.into());
                total.fits(&host.capacity)
            });
            if fits {
                pairs.push((workers(mine), workers(theirs)));
            }
        }
    }
    pairs.sort_unstable();
    pairs.dedup();
    fn walk(instance: &Instance, pairs: &[(u32, u32)], slot: u32, done: [u64; 2], earned: [f64; 2]) -> f64 {
        if slot == instance.slots {
            return earned[0] + earned[1];
        }
        let mut best = 0.0_f64;
        for (x, y) in pairs {
            let (mut done, mut earned, mut allowed) = (done, earned, true);
            for (job, workers) in [(0, *x), (1, *y)] {
                let task = &instance.jobs[job];
                allowed &= workers == 0 || slot >= task.arrival;
                let before = done[job];
                done[job] += u64::from(workers);
                if allowed && before < task.work && done[job] >= task.work {
                    earned[job] = task.worth.get((slot - task.arrival) as usize).copied().unwrap_or(0.0);
                }
            }
            if allowed {
                best = best.max(walk(instance, pairs, slot + 1, done, earned));
            }
        }
        best
    }
    walk(instance, &pairs, 0, [0; 2], [0.0; 2])
}

fn any_task(slots: u32) -> impl Strategy<Value = Task> {
    let worth = prop::collection::vec(0..20_i32, 1..=slots as usize).prop_map(|mut worth| {
        worth.sort_unstable_by(|a, b| b.cmp(a));
        worth.into_iter().map(f64::from).collect::<Vec<_>>()
    });
    (0..slots, 1..=6_u64, 1..=3_u32, 1..=3_i64, worth)
        .prop_map(|(arrival, work, most, gpus, worth)| task(arrival, work, most, gpus, &worth))
}

fn instance() -> impl Strategy<Value = Instance> {
    let slots = 3;
    let roles = prop_oneof![Just((true, true)), Just((true, false)), Just((false, true))];
    let hosts = prop_oneof![
        prop::collection::vec(
            (0..=5_i64, 0..=2_i64, roles).prop_map(|(gpus, cpus, (w, p))| host(gpus, cpus, w, p)),
            1..=2
        ),
        // Equal hosts, so that pools hold two.
        (2..=5_i64, 1..=2_i64).prop_map(|(gpus, cpus)| vec![host(gpus, cpus, true, true); 2]),
    ];
    (hosts, any_task(slots), any_task(slots)).prop_map(move |(hosts, a, b)| Instance { slots, hosts, jobs: vec![a, b] })
}

proptest! {
    #![proptest_config(crate::common::config(400))]
    #[test]
    fn it_is_what_trying_everything_finds(instance in instance()) {
        let expected = by_trying(&instance);
        every(&instance, |best| {
            assert!(best.is_optimal(), "{best:?}");
            assert!((best.utility - expected).abs() < 1e-6, "{} rather than {expected}", best.utility);
        });
    }

    #[test]
    fn a_search_cut_short_still_bounds_the_optimum(instance in instance(), nodes in 0..3_u64) {
        let expected = by_trying(&instance);
        for solver in SOLVERS {
            let best = solve(&instance, *solver, Limit { nodes, gap: 0.0 }).expect("no failure");
            prop_assert!(best.utility <= expected + 1e-6 && expected <= best.bound + 1e-6, "{best:?}, {expected}");
        }
    }
}

#[test]
fn workers_that_fit_the_pool_but_not_its_servers_are_not_counted() {
    // Two servers of 3 GPUs, workers of 2: two in a slot, not three.
    let hosts = vec![host(3, 3, true, true), host(3, 3, true, true)];
    let instance = Instance { slots: 2, hosts, jobs: vec![task(0, 3, 3, 2, &[8.0, 5.0])] };
    every(&instance, |best| assert_eq!((best.utility, best.bound), (5.0, 5.0)));
    // Two jobs with workers of 2 GPUs and of 1: the pool's 6 GPUs hold a pair of the first and two of the second, and
    // so do the servers. Three of the first would split GPUs between servers.
    let jobs = vec![task(0, 2, 2, 2, &[4.0]), task(0, 2, 2, 1, &[4.0])];
    every(&Instance { slots: 1, hosts: instance.hosts.clone(), jobs }, |best| assert_eq!(best.utility, 8.0));
}

#[test]
fn an_invalid_schedule_names_the_place() {
    let hosts = vec![host(2, 1, true, false), host(0, 1, false, true)];
    let instance = Instance { slots: 2, hosts, jobs: vec![task(1, 2, 2, 1, &[3.0])] };
    let run = |places: Vec<(usize, Shape)>| Schedule { runs: vec![Some(Run { slots: vec![places] })] };
    let (two, one) = (Shape { workers: 2, servers: 0 }, Shape { workers: 0, servers: 1 });
    assert_eq!(instance.utility(&run(vec![(0, two), (1, one)])), Ok(3.0));
    let problem = |places| instance.utility(&run(places)).expect_err("it can't be").to_string();
    assert!(problem(vec![(0, two), (0, one)]).contains("job 0, slot 1: is on a server"));
    assert!(problem(vec![(0, two)]).contains("number of workers or parameter servers"));
    let half = Shape { workers: 1, servers: 0 };
    assert!(problem(vec![(0, half), (1, one)]).contains("work isn't done"));
}

/// Ten jobs in ten slots, with half of the servers for workers, as in Fig. 5. The jobs are smaller, so that some of
/// them end.
fn ten_jobs(seed: u64, servers: usize) -> Instance {
    let draws = trainmaster_sim::Draws::new(seed);
    let mut drawn = 0;
    let mut lot = |least: i64, most: i64| {
        drawn += 1;
        least + (draws.unit(drawn) * (most - least + 1) as f64) as i64
    };
    let kinds = [(1, 4, 61), (8, 32, 488), (16, 64, 732), (1, 16, 122), (2, 32, 244), (4, 64, 488)];
    let mut host = |at: usize| {
        let worker = at.is_multiple_of(2);
        let (gpu, cpu, memory) = if worker { kinds[lot(0, 5) as usize] } else { (0, 36, 60) };
        let capacity = Amounts::of(&[(GPU, gpu), (CPU, cpu), (MEMORY, memory), (BANDWIDTH, 10 * lot(2, 5))]);
        Host { capacity, workers: worker, servers: !worker }
    };
    let hosts = (0..servers).map(&mut host).collect();
    let mut job = |_| {
        let most = lot(5, 30) as u32;
        let bandwidth = (lot(1, 5), lot(5, 20));
        let (value, decay, target) = (lot(50, 100) as f64, lot(1, 100) as f64 / 50.0, lot(1, 10) as f64);
        Task {
            arrival: lot(0, 6) as u32,
            work: lot(5, 40) as u64,
            workers: (1, most),
            servers: (1, most),
            worker: Amounts::of(&[(GPU, lot(0, 4)), (CPU, lot(1, 10)), (MEMORY, lot(2, 32)), (BANDWIDTH, bandwidth.0)]),
            server: Amounts::of(&[(CPU, lot(1, 10)), (MEMORY, lot(2, 32)), (BANDWIDTH, bandwidth.1)]),
            bandwidth,
            worth: (0..10).map(|t| value / (1.0 + libm::exp(decay * (f64::from(t) - target)))).collect(),
        }
    };
    let jobs = (0..10).map(&mut job).collect();
    Instance { slots: 10, hosts, jobs }
}

#[test]
fn a_longer_search_is_worth_no_less_and_bounds_no_worse() {
    for (seed, servers, most) in [(0, 3, 50), (1, 3, 50), (2, 12, 0)] {
        let instance = ten_jobs(seed, servers);
        for solver in SOLVERS {
            let short = solve(&instance, *solver, Limit { nodes: 0, gap: 0.01 }).expect("no failure");
            let long = solve(&instance, *solver, Limit { nodes: most, gap: 0.01 }).expect("no failure");
            assert!(short.utility > 0.0 && long.utility >= short.utility, "{} {seed}", solver.name());
            assert!(long.bound >= long.utility && short.bound >= long.utility - 1e-6, "{} {seed}", solver.name());
            for best in [short, long] {
                let worth = instance.utility(&best.schedule).expect("it can be");
                assert!((worth - best.utility).abs() < 1e-9);
            }
        }
    }
}

#[test]
fn a_workload_becomes_an_instance() {
    let hour = Span::seconds(3600);
    let servers = [crate::common::build::server("s0", 16, 64, &["gpu:a100"; 2])];
    let mut spec = crate::common::build::job("a", (1, 4, 1), (1, 4, 1));
    spec.worker.demand.insert("bandwidth".into(), 1000);
    spec.server.as_mut().expect("has some").demand.insert("bandwidth".into(), 3000);
    let data = Dataset {
        chunks: 3,
        batches_per_chunk: 10,
        epochs: 4,
        batch_time: Some(Span(hour.0 / 10)),
        ..Dataset::default()
    };
    spec.dataset = Some(data);
    spec.utility = Some(Utility { value: 8.0, target: Span(2 * hour.0), ..Utility::new(UtilityKind::Linear) });
    let of = |spec: &JobSpec| Instance::of(&servers, [(Time(hour.0 + 5), spec)], Slots { length: hour }, 8);
    let instance = of(&spec).expect("complete");
    let task = &instance.jobs[0];
    // 12 chunks of an hour each, at most three at a time.
    assert_eq!((task.arrival, task.work, task.workers, task.bandwidth), (1, 12, (1, 3), (1000, 3000)));
    assert_eq!(task.worth, [8.0, 6.0, 4.0, 2.0, 0.0, 0.0, 0.0]);
    assert_eq!(instance.hosts[0].capacity[GPU], 2000);
    // Two GPUs, so two workers: six slots, at the end of which its utility is zero.
    every(&instance, |best| assert_eq!((best.utility, best.is_optimal()), (0.0, true)));
    spec.dataset.as_mut().expect("set").epochs = 1;
    every(&of(&spec).expect("complete"), |best| assert_eq!((best.utility, best.is_optimal()), (6.0, true)));
    spec.utility = None;
    assert!(of(&spec).expect_err("no utility").to_string().contains("job a: utility"));
    spec.dataset = None;
    assert!(of(&spec).expect_err("no dataset").to_string().contains("job a: dataset"));
}

//! Schedules against the plain recursion, the paper's constraints, and an example computed by hand.

use std::collections::BTreeMap;

use imbl::Vector;
use proptest::{collection::vec, prelude::*, sample::select};

use super::{Memo, Oasis, Problem, Schedule, best, curve::*, earliest, parameters::WorkUnit, search::promised};
use crate::engine::{Build, Engine};
use crate::{
    Event, JobId, JobSpec, Scheduler, ServerSpec, Settings, Shape, Span, Time, Verdict,
    decision::Proposal,
    engine::{Budget, Parameters, Round, board::Board},
    job::{Dataset, RoleSpec, Training, Utility, UtilityKind},
    reason::{Reason, Worth},
    resources::Amounts,
    settings::Parameter,
    state::State,
};

#[path = "../../../benches/arrival/plain.rs"]
mod plain;

const SLOT: Span = Span::seconds(1200);

fn unlimited() -> Budget {
    Budget::UNLIMITED
}

fn curves() -> impl Strategy<Value = Vec<Curve>> {
    // A few different prices, so that there are ties, or many.
    let price = prop_oneof![1..4_u64, 1..1000_u64, Just(5_u64)];
    let curve = (vec((price, 0..4_u64), 0..8), 1..6_u64, 1..6_u64, 1..5_u64).prop_map(|(workers, m, per, ratio)| {
        let (mut cost, mut choices) = (0, Vec::new());
        for (at, (price, server)) in workers.into_iter().enumerate() {
            // A parameter server for every few workers makes steps.
            cost += price + if (at as u64).is_multiple_of(ratio) { 3 * server } else { 0 };
            choices.push(Choice { work: (at as u64 + 1) * per / m, cost, workers: at as u32 + 1 });
        }
        Curve::new(choices)
    });
    vec(curve, 1..6)
}

prop_compose! {
    fn problem()(curves in curves())
        (slots in vec(0..curves.len() as u32, 1..9), falls in vec(select(vec![0_i64, 0, 0, 1, 7, 300]), 9),
         most in 0..4000_i64, work in 0..40_u64, curves in Just(curves)) -> Problem {
        let mut worth = most;
        let worth = slots.iter().zip(falls).map(|(_, fall)| { worth -= fall; worth }).collect();
        Problem { work, curves, slots, worth }
    }
}

fn check_schedule(problem: &Problem, schedule: &Schedule) {
    let curve = |slot: usize| &problem.curves[problem.slots[slot] as usize];
    assert_eq!(schedule.work.len(), schedule.end + 1);
    assert_eq!(schedule.work.iter().sum::<u64>(), problem.work);
    let cost: u64 = schedule.work.iter().enumerate().map(|(at, work)| curve(at).choice_for(*work).unwrap().cost).sum();
    assert_eq!(schedule.cost, cost);
    assert_eq!(schedule.payoff, problem.worth[schedule.end] - cost as i64);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_search_agrees_with_the_plain_recursion(problem in problem()) {
        let expected = plain::recursion(&problem);
        let found = best(&problem, &mut unlimited()).unwrap();
        let key = |schedule: &Schedule| (schedule.payoff, schedule.end, schedule.cost, schedule.work.last().copied());
        prop_assert_eq!(found.as_ref().map(key), expected.as_ref().map(key));
        prop_assert_eq!(plain::one_pass(&problem), expected.as_ref().map(|schedule| (schedule.payoff, schedule.end)));
        if let Some(found) = &found {
            check_schedule(&problem, found);
            // Only the end counts: the worth drops sharply after it.
            let first = earliest(&problem, &mut unlimited()).unwrap().unwrap();
            check_schedule(&problem, &first);
            let steep: Vec<i64> = (0..problem.slots.len() as i64).map(|at| -at * 1_000_000).collect();
            let steep = Problem { worth: steep, ..problem.clone() };
            let expected = plain::recursion(&steep).unwrap();
            prop_assert_eq!((first.end, first.cost), (expected.end, expected.cost));
        }
    }

    #[test]
    fn a_search_without_budget_ends(problem in problem(), steps in 0..60_u64) {
        let mut budget = Budget::steps(steps);
        let whole = best(&problem, &mut unlimited()).unwrap();
        if let Ok(found) = best(&problem, &mut budget) {
            prop_assert_eq!(found, whole);
            prop_assert!(budget.spent() <= steps);
        }
    }
}

fn engine(parameters: &[(&str, Parameter)]) -> Oasis {
    let given = parameters.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    Oasis::build(&mut Parameters::new(&given)).unwrap()
}

fn text(text: &str) -> Parameter {
    Parameter::Text(text.into())
}

fn server(name: &str, hosts: &str, amounts: &[(&str, i64)]) -> ServerSpec {
    ServerSpec {
        name: name.into(),
        capacity: amounts.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        labels: [("hosts".to_owned(), hosts.to_owned())].into(),
        ..ServerSpec::default()
    }
}

fn role(amounts: &[(&str, i64)], max: u32) -> RoleSpec {
    RoleSpec::of(amounts, 1..=max, 1)
}

/// A job of some chunks and epochs, a chunk per worker and slot. Its workers and parameter servers take a CPU. The
/// target of its utility is in slots.
fn training(name: &str, (chunks, epochs): (u32, u32), (kind, value, target): (UtilityKind, f64, i64)) -> JobSpec {
    let batch_time = Some(SLOT);
    JobSpec {
        worker: role(&[("cpu", 1000)], 40),
        server: Some(role(&[("cpu", 1000)], 40)),
        dataset: Some(Dataset { chunks, batches_per_chunk: 1, epochs, batch_time, ..Dataset::default() }),
        utility: Some(Utility { value, target: Span(target * SLOT.0), ..Utility::new(kind) }),
        ..JobSpec::minimal(name)
    }
}

/// One engine, its memory, and a cluster without changes.
struct Bench {
    engine: Oasis,
    scheduler: Scheduler,
    memo: Memo,
    board: Board,
}

impl Bench {
    fn new(engine: Oasis, servers: Vec<ServerSpec>) -> Self {
        let settings = Settings {
            engine: "fifo".into(),
            stability: crate::settings::Stability { enabled: false, ..Default::default() },
            ..Settings::default()
        };
        let mut scheduler = Scheduler::new(settings).unwrap();
        for server in servers {
            scheduler.apply(Time(0), Event::ServerSet { manager: "m".into(), server }).unwrap();
        }
        Self { engine, scheduler, memo: Memo::default(), board: Board::default() }
    }

    fn submit(&mut self, at: Time, spec: JobSpec) -> Option<JobId> {
        let name = spec.name.clone();
        let event = Event::JobSubmitted { spec: Box::new(spec), external: None, token_hash: None };
        self.scheduler.apply(at, event).ok()?;
        Some(self.state().find_job(&name)?.id)
    }

    fn state(&self) -> &State {
        self.scheduler.state()
    }

    /// One decision of the engine. Rejected jobs are removed.
    fn decide(&mut self) -> Proposal {
        let state = self.scheduler.state().clone();
        let (memo, board) = (&mut self.memo, &mut self.board);
        let (changes, mut budget) = (Vector::new(), unlimited());
        board.sync(&state, &changes, crate::place::SortBy::Share);
        let (mut nothing, mut last) = ((), 0);
        let mut round = Round::new(&state, &changes, board, &mut nothing, &mut last, &mut budget);
        self.engine.decide(&mut round, memo).unwrap();
        let proposal = round.proposal;
        for job in self.memo.rejected.keys().filter(|id| state.job(**id).is_some()) {
            self.scheduler.apply(state.now, Event::JobEnded { job: *job, end: crate::End::Cancelled }).unwrap();
        }
        proposal
    }

    /// The job's problem at current prices.
    fn problem(&self, id: JobId) -> Option<(Problem, f64)> {
        let state = self.state();
        self.engine.problem(state, &self.memo, &state.jobs[&id], &mut unlimited()).unwrap()
    }

    fn payoff(&self, id: JobId) -> Option<f64> {
        let (problem, unit) = self.problem(id)?;
        let schedule = best(&problem, &mut unlimited()).unwrap()?;
        Some(schedule.payoff as f64 / unit)
    }
}

/// By hand: one worker server of 4 CPUs, one parameter server of 2, four slots. Each job trains two chunks twice, a
/// chunk per worker and slot. Its utility falls linearly from v to zero after eight slots.
///
/// w̃ = 1/4, s̃ = 1/2, E·N·m = 4, so 1/η1 = 4·¼/4 = ¼ and 1/η2 = 4·½/4 = ½. With the smallest f(T−1) = 5v/8 of all
/// jobs, L1 = ¼·¼·(5v/8)/1 and L2 = ¼·½·(5v/8)/2, both 5v/128. U1 = 28 and U2 = 14 by the first job,
/// f(⌈E·m⌉−1) = f(1) = 7.
#[test]
fn prices_and_payoffs_are_those_of_the_example() {
    let servers = vec![server("h", "workers", &[("cpu", 4000)]), server("k", "servers", &[("cpu", 2000)])];
    let mut bench = Bench::new(engine(&[("horizon", Parameter::Number(4.0))]), servers);
    let spec = |name: &str, value: f64| training(name, (2, 2), (UtilityKind::Linear, value, 4));
    let close = |found: Option<f64>, expected: f64| {
        let found = found.expect("it fits");
        assert!((found - expected).abs() < 1e-9, "{found} instead of {expected}");
    };
    // Two workers and a parameter server in two slots: 7 − (4·L1/4 + 2·L2/2).
    let a = bench.submit(Time(0), spec("a", 8.0)).unwrap();
    close(bench.payoff(a), 7.0 - 0.625);
    bench.decide();
    let plan = |bench: &Bench, id: JobId| -> Vec<(i64, Shape)> {
        bench.memo.admitted[&id].plan.iter().map(|planned| (planned.slot, planned.shape())).collect()
    };
    let two = Shape { workers: 2, servers: 1 };
    assert_eq!(plan(&bench, a), [(0, two), (1, two)]);
    // Slots 0 and 1 are half full, so their prices are √(U/L) times L. L is half of its earlier value. The idle slots 2
    // and 3 cost 0.3125 and end at f(3) = 2.5.
    let b = bench.submit(Time(0), spec("b", 4.0)).unwrap();
    close(bench.payoff(b), 2.5 - 0.3125);
    bench.decide();
    assert_eq!(plan(&bench, b), [(2, two), (3, two)]);
    // All slots are half full: L = 5/128, a worker costs L·√(28/L)/4, a parameter server L·√(14/L)/2.
    let c = bench.submit(Time(0), spec("c", 1.0)).unwrap();
    let low = 5.0 / 128.0;
    let (worker, server) = (low * libm::sqrt(28.0 / low) / 4.0, low * libm::sqrt(14.0 / low) / 2.0);
    close(bench.payoff(c), 0.875 - 4.0 * worker - 2.0 * server);
    let proposal = bench.decide();
    let verdict = proposal.changes.iter().find(|(id, _)| *id == c).map(|(_, verdict)| verdict);
    let Some(Verdict::Reject(Reason::PricedOut(priced))) = verdict else { panic!("{verdict:?}") };
    assert_eq!(priced.payoff, Worth::of(0.875 - 4.0 * worker - 2.0 * server));
    assert_eq!((priced.utility, priced.cost), (Worth::of(0.875), Worth::of(4.0 * worker + 2.0 * server)));
    assert_eq!((priced.price, priced.idle), (Worth::of(worker), Worth::of(low / 4.0)));
    assert_eq!((priced.role, priced.amount, priced.end), (crate::Role::Worker, 1000, Time(2 * SLOT.0)));
    let words = Reason::PricedOut(priced.clone()).describe(bench.state());
    assert!(words.contains("payoff -0.910") && words.contains("1 cpu"), "{words}");
}

prop_compose! {
    fn cluster()(workers in vec((1..=16_i64, 0..=4_i64), 1..4), servers in vec((1..=16_i64, 5..=40_i64), 1..4),
                 both in any::<bool>()) -> Vec<ServerSpec> {
        let hosts = |role: &'static str| if both { "both" } else { role };
        let of_workers = workers.into_iter().enumerate().map(|(at, (cpu, gpu))| {
            let capacity = [("cpu", cpu * 1000), ("gpu", gpu * 1000), ("bandwidth", 20_000)];
            server(&format!("h{at}"), hosts("workers"), &capacity)
        });
        let of_servers = servers.into_iter().enumerate().map(|(at, (cpu, mbit))| {
            server(&format!("k{at}"), hosts("servers"), &[("cpu", cpu * 1000), ("bandwidth", mbit * 1000)])
        });
        of_workers.chain(of_servers).collect()
    }
}

prop_compose! {
    fn job()(worker in (1..=4_i64, 0..=1_i64, 100..=3000_i64), server in (1..=3_i64, 3000..=8000_i64),
             data in (1..=6_u32, 1..=6_u32, 1..=4_u32, 50..=700_i64), size in 0..=500_i64,
             kind in select(vec![UtilityKind::Sigmoid, UtilityKind::Constant, UtilityKind::Linear, UtilityKind::Step]),
             value in 1.0..100.0_f64, decay in 0.0..5.0_f64, target in 0..20_i64,
             after in 0..4000_i64) -> (JobSpec, i64) {
        let spec = JobSpec {
            worker: role(&[("cpu", worker.0 * 1000), ("gpu", worker.1 * 1000), ("bandwidth", worker.2)], 9),
            server: Some(role(&[("cpu", server.0 * 1000), ("bandwidth", server.1)], 9)),
            dataset: Some(Dataset {
                chunks: data.0,
                batches_per_chunk: data.1,
                epochs: data.2,
                batch_time: Some(Span::seconds(data.3)),
                ..Dataset::default()
            }),
            model_size: size,
            utility: Some(Utility { value, decay, target: Span(target * SLOT.0), ..Utility::new(kind) }),
            ..JobSpec::minimal("job")
        };
        (spec, after)
    }
}

/// Constraints (2) to (13) of every schedule, (4) and (5) over all of them.
fn check_constraints(bench: &Bench) {
    let state = bench.state();
    let mut used: BTreeMap<(i64, u32), Amounts> = BTreeMap::new();
    for (id, admission) in &bench.memo.admitted {
        let job = &state.jobs[id];
        let training = Training::of(job).unwrap();
        let data = job.spec.dataset.as_ref().unwrap();
        let arrived = bench.engine.slots.of(job.arrival);
        let (b, server_b) =
            (job.spec.worker.demand["bandwidth"], job.spec.server.as_ref().unwrap().demand["bandwidth"]);
        let mut done = 0;
        for planned in &admission.plan {
            let shape = planned.shape();
            let (y, z) = (u64::from(shape.workers), u64::from(shape.servers));
            assert!(y > 0 && planned.work > 0, "a slot that does nothing is booked");
            assert!(y <= data.chunks.into(), "(3): {y} workers for {} chunks", data.chunks);
            assert!(y as i64 * b <= z as i64 * server_b, "(6): {y} × {b} over {z} × {server_b}");
            assert!(z <= y, "(7): {z} parameter servers, {y} workers");
            assert!(planned.slot >= arrived, "(9), (10): slot {} before {arrived}", planned.slot);
            let length = if planned.slot == arrived { bench.engine.rest(job.arrival) } else { SLOT };
            let most = match bench.engine.work_unit {
                WorkUnit::Chunk => training.chunks_of(y, length),
                WorkUnit::WorkerSlot => y,
            };
            assert!(most >= planned.work, "(2): {y} workers can't do {}", planned.work);
            done += planned.work;
            for (server, count) in &planned.counts {
                for (role, count) in [(crate::Role::Worker, count.workers), (crate::Role::Server, count.servers)] {
                    assert!(count == 0 || state.server(*server).hosts.takes(role));
                }
                *used.entry((planned.slot, server.0)).or_default() += &job.total(*count);
            }
        }
        let needed = match bench.engine.work_unit {
            WorkUnit::Chunk => training.work(),
            WorkUnit::WorkerSlot => training.workers_for(training.work(), SLOT),
        };
        assert_eq!(done, needed, "(2): not all of the work is planned");
        assert!(admission.plan.iter().is_sorted_by(|a, b| a.slot < b.slot), "(8): slots out of order");
    }
    for ((slot, server), amounts) in &used {
        let server = state.server(crate::ids::ServerId(*server));
        assert!(amounts.fits(&server.capacity), "(4), (5): slot {slot}, {}: {amounts:?}", server.name);
        assert_eq!(bench.memo.booked[slot].get(&server.id), Some(amounts), "bookings differ from schedules");
    }
    assert_eq!(used.len(), bench.memo.booked.iter().map(|(_, page)| page.len()).sum::<usize>());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn schedules_satisfy_the_constraints_with_the_recursions_payoff(
        servers in cluster(), jobs in vec(job(), 1..8), horizon in 1..24_u32, chunks in any::<bool>(),
        scale in 0.1..10.0_f64,
    ) {
        let engine = engine(&[
            ("horizon", Parameter::Number(horizon.into())),
            ("price_scale", Parameter::Number(scale)),
            ("work_unit", text(if chunks { "chunk" } else { "worker_slot" })),
        ]);
        let mut bench = Bench::new(engine, servers);
        let mut at = 0;
        for (number, (spec, after)) in jobs.into_iter().enumerate() {
            // All arrive within the first slot, because nothing runs in this test.
            at = (at + after * 100).min(SLOT.0 - 1);
            let Some(id) = bench.submit(Time(at), JobSpec { name: format!("j{number}"), ..spec }) else { continue };
            let expected = bench.problem(id).and_then(|(problem, _)| {
                let found = best(&problem, &mut unlimited()).unwrap();
                let plain = plain::recursion(&problem);
                assert_eq!(
                    found.as_ref().map(|schedule| (schedule.payoff, schedule.end)),
                    plain.as_ref().map(|schedule| (schedule.payoff, schedule.end))
                );
                found
            });
            bench.decide();
            let admitted = expected.is_some_and(|schedule| schedule.payoff > 0);
            prop_assert_eq!(bench.memo.admitted.contains_key(&id), admitted);
            check_constraints(&bench);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// A chunk that may continue in the next slot costs no more than one that may not.
    #[test]
    fn worker_slots_never_cost_more_than_chunks(servers in cluster(), (spec, _) in job(), horizon in 1..24_u32) {
        let payoff = |unit: &str| {
            let engine = engine(&[("horizon", Parameter::Number(horizon.into())), ("work_unit", text(unit))]);
            let mut bench = Bench::new(engine, servers.clone());
            let id = bench.submit(Time(0), spec.clone())?;
            bench.payoff(id)
        };
        if let Some(chunks) = payoff("chunk") {
            let finer = payoff("worker_slot");
            prop_assert!(finer.is_some_and(|finer| finer >= chunks), "{finer:?} instead of {chunks}");
        }
    }
}

/// By hand: each job takes 4 worker-slots of a quarter of the workers' CPUs, and 2 slots of a quarter of those of the
/// parameter servers: 1 and ½ units. Its worth is the same until the fifth slot, and nothing seen is older than a slot:
/// there is room for 6 units of either.
#[test]
fn a_typical_lowest_price_is_the_worth_of_the_first_job_without_room() {
    let servers = vec![server("h", "workers", &[("cpu", 4000)]), server("k", "servers", &[("cpu", 4000)])];
    let horizon = ("horizon", Parameter::Number(30.0));
    let learnt = engine(std::slice::from_ref(&horizon));
    let mut bench = Bench::new(engine(&[horizon, ("bounds", text("typical"))]), servers);
    let spec = |name: &str, value: f64, target| training(name, (2, 2), (UtilityKind::Step, value, target));
    let low = |bench: &Bench, engine: &Oasis| {
        let state = bench.state();
        engine.bounds(state, &bench.memo, None, &super::Totals::of(state)).low
    };
    for value in 4..10 {
        bench.submit(Time(0), spec(&format!("j{value}"), f64::from(value), 4)).unwrap();
        bench.decide();
    }
    assert_eq!(low(&bench, &bench.engine), low(&bench, &learnt), "there is room for all of them");
    bench.submit(Time(0), spec("seventh", 10.0, 4)).unwrap();
    bench.decide();
    assert_eq!(low(&bench, &bench.engine), [4.0 / 1.5; 2]);
    // A job that is worthless whenever it ends can't wait: on average the jobs can wait for 4½ slots.
    bench.submit(Time(0), spec("hopeless", 10.0, 0)).unwrap();
    bench.decide();
    assert_eq!(low(&bench, &bench.engine), [5.0 / 1.5; 2]);
}

/// A worker's or a parameter server's price by Eq. 21 and 22, and the room for it, on every server that hosts the role.
fn quotes(bench: &Bench, job: &crate::job::Job, role: crate::Role, slot: i64) -> Vec<(u32, f64)> {
    let state = bench.state();
    let named = |name: &str| state.resources.id(name).unwrap();
    let demand: Vec<_> =
        ["cpu", "gpu", "bandwidth"].map(named).into_iter().map(|r| (r, job.demand(role).amounts[r])).collect();
    let hosts = || state.present_servers().filter(|server| server.hosts.takes(role));
    let total = |r| hosts().map(|server| server.capacity[r]).sum::<i64>() as f64;
    let (low, high) = if role == crate::Role::Worker { (0.02, 3.0) } else { (0.05, 4.0) };
    hosts()
        .map(|server| {
            let taken =
                |r| bench.memo.booked.get(&slot).and_then(|page| page.get(&server.id)).map_or(0, |booked| booked[r]);
            let needs = demand.iter().filter(|(_, need)| *need > 0);
            let room = needs.clone().map(|(r, need)| (server.capacity[*r] - taken(*r)) / need).min().unwrap();
            let price = |&(r, need): &(crate::ResourceId, i64)| {
                let has = server.capacity[r].max(1) as f64;
                need as f64 / total(r) * low * libm::pow(high / low, taken(r) as f64 / has)
            };
            let price = if room > 0 { needs.map(price).sum() } else { 0.0 };
            (room.max(0) as u32, price)
        })
        .collect()
}

/// The least sum of prices by number of slots, over all ways to put them on the servers.
fn cheapest(quotes: &[(u32, f64)]) -> BTreeMap<u32, f64> {
    let mut sums = BTreeMap::from([(0, 0.0)]);
    for (room, price) in quotes {
        let mut next: BTreeMap<u32, f64> = BTreeMap::new();
        for (count, sum) in &sums {
            for here in 0..=*room {
                let all = sum + f64::from(here) * price;
                next.entry(count + here).and_modify(|least| *least = least.min(all)).or_insert(all);
            }
        }
        sums = next;
    }
    sums
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// COST_t(d) of Alg. 2 by brute force: every number of workers and of parameter servers, on every choice of
    /// servers, that meets constraints (2) to (7).
    #[test]
    fn the_cost_of_work_in_a_slot_is_the_least_of_all_choices(
        servers in cluster(), jobs in vec(job(), 1..6), horizon in 1..8_u32,
    ) {
        let servers: Vec<ServerSpec> =
            servers.into_iter().filter(|server| server.labels["hosts"] != "both").collect();
        let table = |high: f64| format!("{{ cpu = {high}, gpu = {high}, bandwidth = {high} }}");
        let bounds = format!("l1 = 0.02, l2 = 0.05, u1 = {}, u2 = {}", table(3.0), table(4.0));
        let engine = engine(&[("horizon", Parameter::Number(horizon.into())), ("bounds", text(&bounds))]);
        let mut bench = Bench::new(engine, servers);
        for (number, (spec, _)) in jobs.into_iter().enumerate() {
            let Some(id) = bench.submit(Time(0), JobSpec { name: format!("j{number}"), ..spec }) else { continue };
            if let Some((problem, unit)) = bench.problem(id) {
                let job = &bench.state().jobs[&id];
                let data = job.spec.dataset.as_ref().unwrap();
                let mbit = |role: &RoleSpec| role.demand["bandwidth"];
                let (b, server_b) = (mbit(&job.spec.worker), mbit(job.spec.server.as_ref().unwrap()));
                // M·(τ + 2e/b), in seconds.
                let exchange = 16.0 * (job.spec.model_size << 20) as f64 / (b as f64 * 1e6);
                let chunk = f64::from(data.batches_per_chunk) * (data.batch_time.unwrap().as_seconds() + exchange);
                for (slot, curve) in problem.slots.iter().enumerate() {
                    let curve = &problem.curves[*curve as usize];
                    let of = |role| cheapest(&quotes(&bench, job, role, slot as i64));
                    let (workers, parameters) = (of(crate::Role::Worker), of(crate::Role::Server));
                    let mut least: BTreeMap<u64, f64> = BTreeMap::new();
                    for (y, worker_cost) in workers.range(1..=data.chunks.min(9)) {
                        for (z, server_cost) in parameters.range(1..=(*y).min(9)) {
                            let done = f64::from(*y) * SLOT.as_seconds() / chunk;
                            // A whole number that isn't exact in binary.
                            let done = (libm::floor(done + 1e-9) as u64).min(problem.work);
                            if i64::from(*y) * b <= i64::from(*z) * server_b && done > 0 {
                                let cost = worker_cost + server_cost;
                                least.entry(done).and_modify(|least| *least = least.min(cost)).or_insert(cost);
                            }
                        }
                    }
                    for work in 1..=problem.work {
                        let expected = least.range(work..).map(|(_, cost)| *cost).min_by(f64::total_cmp);
                        let found = curve.choice_for(work).map(|choice| choice.cost as f64 / unit);
                        prop_assert_eq!(found.is_some(), expected.is_some(), "{} in slot {}", work, slot);
                        let (found, expected) = (found.unwrap_or(0.0), expected.unwrap_or(0.0));
                        let close = (found - expected).abs() <= 1e-9 * (1.0 + expected);
                        prop_assert!(close, "{work}: {found}, {expected}");
                    }
                }
            }
            bench.decide();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_schedule_is_worth_more_than_promised_and_coarse_grains_lose_no_more(
        problem in problem(), times in 2..5_u64, steps in 0..40_u64,
    ) {
        let fine = best(&problem, &mut unlimited()).unwrap();
        let promise = promised(&problem, &mut unlimited());
        prop_assert_eq!(promise.is_some(), fine.is_some());
        if let (Some(promise), Some(fine)) = (promise, fine) {
            prop_assert!(promise >= fine.payoff, "{promise}, {}", fine.payoff);
            let rough = promised(&problem, &mut Budget::steps(steps)).unwrap();
            prop_assert!(rough >= fine.payoff, "{rough}, {}", fine.payoff);
            let coarser = |choice: &Choice| Choice { work: choice.work / times, ..*choice };
            let coarse = Problem {
                work: problem.work.div_ceil(times),
                curves: problem
                    .curves
                    .iter()
                    .map(|curve| Curve::new(curve.choices().iter().map(coarser).collect()))
                    .collect(),
                ..problem
            };
            if let Some(coarse) = best(&coarse, &mut unlimited()).unwrap() {
                prop_assert!(coarse.payoff <= fine.payoff, "{} of {}", coarse.payoff, fine.payoff);
            }
        }
    }
}

#[test]
fn a_search_that_is_too_long_is_repeated_in_coarser_grains_and_says_so() {
    let servers = vec![
        server("h", "workers", &[("cpu", 7000)]),
        server("i", "workers", &[("cpu", 3000)]),
        server("k", "servers", &[("cpu", 100_000)]),
    ];
    let spec = |name: &str, value: f64| training(name, (40, 3), (UtilityKind::Linear, value, 20));
    let mut engine = engine(&[("horizon", Parameter::Number(30.0))]);
    let bench = |engine: Oasis| {
        let mut bench = Bench::new(engine, servers.clone());
        for (name, value) in [("a", 9.0), ("b", 5.0), ("c", 0.1)] {
            bench.submit(Time(0), spec(name, value)).unwrap();
        }
        let proposal = bench.decide();
        let missed: Vec<Worth> = proposal
            .changes
            .iter()
            .filter_map(|(_, verdict)| match verdict {
                Verdict::Reject(Reason::PricedOut(priced)) => Some(priced.missed),
                _ => None,
            })
            .collect();
        (bench.memo.coarse.searches, missed)
    };
    let (searches, missed) = bench(engine.clone());
    assert_eq!(searches, 0);
    assert!(missed.iter().all(|missed| *missed == Worth::default()), "{missed:?}");
    let mut alone = Bench::new(engine.clone(), servers.clone());
    let id = alone.submit(Time(0), spec("a", 9.0)).unwrap();
    let mut budget = Budget::steps(1 << 30);
    best(&alone.problem(id).unwrap().0, &mut budget).unwrap();
    engine.most_searched = budget.spent() - 1;
    let (searches, _) = bench(engine);
    assert!(searches > 0);
}

#[test]
fn tiny_chunks_are_counted_in_grains() {
    let servers = vec![server("h", "workers", &[("cpu", 100_000)]), server("k", "servers", &[("cpu", 100_000)])];
    let mut bench = Bench::new(engine(&[("horizon", Parameter::Number(4.0))]), servers);
    // A chunk takes a millisecond: 120 million per slot, and 200 million in total.
    let data = Dataset {
        chunks: 100,
        batches_per_chunk: 1,
        epochs: 2_000_000,
        batch_time: Some(Span(1)),
        ..Dataset::default()
    };
    let spec = JobSpec {
        worker: role(&[("cpu", 1000)], 100),
        server: Some(role(&[("cpu", 1000)], 100)),
        dataset: Some(data),
        ..JobSpec::minimal("tiny")
    };
    let id = bench.submit(Time(0), spec).unwrap();
    bench.decide();
    let training = Training::of(&bench.state().jobs[&id]).unwrap();
    let plan = &bench.memo.admitted[&id].plan;
    assert_eq!(plan.len(), 2);
    let work: u64 = plan.iter().map(|planned| planned.work).sum();
    assert!((training.work()..training.work() + 10_000).contains(&work), "{work}");
    for planned in plan {
        assert!(planned.work <= training.chunks_of(planned.shape().workers.into(), SLOT));
    }
}

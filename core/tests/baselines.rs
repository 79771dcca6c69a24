//! Properties of MLFS's baselines beyond the contract: `slaq`, `gandiva`, `graphene`, `hypersched` and `fair`.

use crate::common::build::{
    amounts, cluster, gpus, plain_with, ring, role, runs, server, set, shape, submit, trained, verdict,
};
use trainmaster_core::{
    Allocation, DeviceShare, End, Event, JobId, JobSpec, ObservedSlot, Phase, Report, Role, Scheduler, Settings,
    SlotUse, Span, Time,
    job::{Convergence, Partition, ProfiledSpeed, Resize},
    settings::{Parameter, ShapeRules},
};

const SECOND: i64 = 1000;
const MINUTE: i64 = 60 * SECOND;
/// Steps per epoch.
const EPOCH: u64 = 60;

fn plain(engine: &str) -> Settings {
    plain_with(engine, &[])
}

fn wide(name: &str, gpus: u32) -> JobSpec {
    ring(name, (gpus, gpus, gpus))
}

/// A job with a speed of one step per second and worker.
fn linear(name: &str, workers: (u32, u32, u32)) -> JobSpec {
    let speed = |workers| ProfiledSpeed { servers: 0, workers, speed: f64::from(workers) };
    JobSpec { profile: (1..=8).map(speed).collect(), ..ring(name, workers) }
}

fn placed(scheduler: &Scheduler, job: JobId) -> std::sync::Arc<Allocation> {
    verdict(scheduler, job).allocation().expect("it runs").clone()
}

/// Server and first device of a job's first worker.
fn place(scheduler: &Scheduler, job: JobId) -> (String, u16) {
    let allocation = placed(scheduler, job);
    let slot = &allocation.slots()[0];
    (scheduler.state().server_name(slot.server).to_owned(), slot.devices[0].device)
}

fn come(scheduler: &mut Scheduler, at: i64, spec: JobSpec) -> JobId {
    let job = submit(scheduler, at, spec);
    decide(scheduler, at);
    job
}

/// A decision that the manager enacts at once: first the stops, then the starts.
fn decide(scheduler: &mut Scheduler, at: i64) {
    scheduler.decide(Time(at));
    let jobs: Vec<JobId> = scheduler.state().jobs.keys().copied().collect();
    for job in &jobs {
        let known = scheduler.state().job(*job).expect("active");
        if known.issued.revoked || (known.seen.allocation.is_some() && known.seen.allocation != known.issued.allocation)
        {
            see(scheduler, at, *job, false);
        }
    }
    // Released room allows further issues.
    scheduler.take_issues();
    for job in &jobs {
        if scheduler.state().job(*job).is_some_and(|known| known.issued.allocation.is_some() && !known.issued.revoked) {
            see(scheduler, at, *job, true);
        }
    }
}

/// The manager reports all issued slots of a job, or none.
fn see(scheduler: &mut Scheduler, at: i64, job: JobId, all: bool) {
    let known = scheduler.state().job(job).expect("active");
    let slots = known.issued.allocation.iter().filter(|_| all).flat_map(|issued| issued.slots());
    let slots = slots.map(|slot| ObservedSlot {
        role: slot.role,
        index: slot.index,
        server: scheduler.state().server_name(slot.server).to_owned(),
        devices: slot.devices.to_vec(),
    });
    let phase = if all { Phase::Running } else { Phase::Stopped };
    let event = Event::Observed { job, incarnation: known.issued.incarnation, slots: slots.collect(), phase };
    scheduler.apply(Time(at), event).expect("it is active");
}

fn end(scheduler: &mut Scheduler, at: i64, job: JobId) {
    see(scheduler, at, job, false);
    scheduler.apply(Time(at), Event::JobEnded { job, end: End::Completed }).expect("active");
}

/// Reports a trained epoch.
fn report(scheduler: &mut Scheduler, at: i64, job: JobId, epoch: u32, loss: Option<f64>, accuracy: Option<f64>) {
    let incarnation = scheduler.state().job(job).expect("active").issued.incarnation;
    let report = Report {
        seq: epoch.into(),
        step: u64::from(epoch) * EPOCH,
        epoch,
        steps_per_epoch: EPOCH,
        loss,
        accuracy,
        ..Report::default()
    };
    let event = Event::Reported { job, incarnation, slot: (Role::Worker, 0), report };
    scheduler.apply(Time(at), event).expect("it has such a slot");
}

fn losses(scheduler: &mut Scheduler, at: i64, job: JobId, epochs: u32, loss: impl Fn(f64) -> f64) {
    (1..=epochs).for_each(|epoch| report(scheduler, at, job, epoch, Some(loss(epoch.into())), None));
}

fn accuracies(scheduler: &mut Scheduler, at: i64, job: JobId, epochs: u32, accuracy: impl Fn(f64) -> f64) {
    (1..=epochs).for_each(|epoch| report(scheduler, at, job, epoch, None, Some(accuracy(epoch.into()))));
}

/// A steep loss: after eight epochs, an epoch lowers it by a quarter of the first epoch's decrease.
fn steep(epoch: f64) -> f64 {
    1.0 / (0.2 * epoch + 1.0)
}

/// A flat loss: after sixty epochs, an epoch lowers it by almost nothing of the first epoch's decrease, but by a larger
/// number than the other loss.
fn flat(epoch: f64) -> f64 {
    10_000.0 / (epoch + 1.0)
}

#[test]
fn slaq_gives_workers_to_the_steeper_loss_in_any_unit() {
    for steep_first in [true, false] {
        let mut scheduler = cluster(plain("slaq"), &[gpus("s0", 5)]);
        let [a, b] = ["a", "b"].map(|name| submit(&mut scheduler, 0, linear(name, (1, 4, 1))));
        decide(&mut scheduler, 0);
        let (fast, slow) = if steep_first { (a, b) } else { (b, a) };
        losses(&mut scheduler, MINUTE, fast, 8, steep);
        losses(&mut scheduler, MINUTE, slow, 60, flat);
        decide(&mut scheduler, MINUTE);
        let workers = [fast, slow].map(|job| shape(&scheduler, job).workers);
        assert_eq!(workers, [4, 1], "{steep_first}: everyone has a worker, the steep one all others");
    }
}

#[test]
fn slaq_takes_fixed_jobs_whole_by_their_gain_per_gpu_and_new_ones_first() {
    let mut scheduler = cluster(plain("slaq"), &[gpus("s0", 5)]);
    let four = submit(&mut scheduler, 0, linear("four", (4, 4, 4)));
    let one = submit(&mut scheduler, 0, linear("one", (1, 1, 1)));
    decide(&mut scheduler, 0);
    for job in [four, one] {
        losses(&mut scheduler, MINUTE, job, 8, steep);
    }
    // A GPU is removed. Four epochs of one curve lower the loss more than one epoch, but not four times as much.
    set(&mut scheduler, MINUTE, gpus("s0", 4));
    decide(&mut scheduler, MINUTE);
    assert_eq!(runs(&scheduler, &[four, one]), [false, true]);
    see(&mut scheduler, MINUTE, four, false);
    let newcomer = come(&mut scheduler, 2 * MINUTE, wide("newcomer", 4));
    assert_eq!(runs(&scheduler, &[four, one, newcomer]), [false, false, true]);
    let why = verdict(&scheduler, one).reason().expect("it waits").describe(scheduler.state());
    assert_eq!(why, "needs 1 gpu; the cluster has 0 left of 4");
}

#[test]
fn slaq_treats_no_job_as_new_forever() {
    let mut scheduler = cluster(plain("slaq"), &[gpus("s0", 1)]);
    let mute = come(&mut scheduler, 0, wide("mute", 1));
    see(&mut scheduler, 0, mute, true);
    let newcomer = come(&mut scheduler, 30 * MINUTE, wide("newcomer", 1));
    assert_eq!(runs(&scheduler, &[mute, newcomer]), [true, false], "both are new");
    decide(&mut scheduler, 61 * MINUTE);
    assert_eq!(runs(&scheduler, &[mute, newcomer]), [false, true]);
}

#[test]
fn hypersched_pauses_the_flat_job_while_others_wait() {
    let mut scheduler = cluster(plain("hypersched"), &[gpus("s0", 1)]);
    let flat = come(&mut scheduler, 0, wide("flat", 1));
    accuracies(&mut scheduler, MINUTE, flat, 12, |epoch| f64::min(0.1 * epoch, 0.5));
    decide(&mut scheduler, MINUTE);
    assert_eq!(runs(&scheduler, &[flat]), [true], "nobody waits");
    let other = come(&mut scheduler, 2 * MINUTE, wide("other", 1));
    assert_eq!(runs(&scheduler, &[flat, other]), [false, true]);
    see(&mut scheduler, 2 * MINUTE, flat, false);
    end(&mut scheduler, 3 * MINUTE, other);
    decide(&mut scheduler, 3 * MINUTE);
    assert_eq!(runs(&scheduler, &[flat]), [true], "there is room again");
}

/// Two jobs with one GPU each report accuracies; then a server leaves. Returns which job runs on the other server.
fn only_one_stays(specs: [JobSpec; 2], accuracy: [fn(f64) -> f64; 2]) -> Vec<bool> {
    let mut scheduler = cluster(plain("hypersched"), &[gpus("s0", 1), gpus("s1", 1)]);
    let jobs = specs.map(|spec| submit(&mut scheduler, 0, spec));
    decide(&mut scheduler, 0);
    for (job, accuracy) in jobs.into_iter().zip(accuracy) {
        accuracies(&mut scheduler, 2 * MINUTE, job, 10, accuracy);
    }
    scheduler.apply(Time(2 * MINUTE), Event::ServersLeft { names: vec!["s1".into()] }).expect("it was there");
    decide(&mut scheduler, 2 * MINUTE);
    runs(&scheduler, &jobs)
}

#[test]
fn hypersched_favours_the_largest_gain_before_the_deadline() {
    // 0.72 after ten epochs, towards 0.9; and 0.64, towards 0.66.
    let fast: fn(f64) -> f64 = |epoch| 0.9 - 0.54 / (0.2 * epoch + 1.0);
    let slow: fn(f64) -> f64 = |epoch| 0.66 - 0.06 / (0.2 * epoch + 1.0);
    let job = |name: &str| linear(name, (1, 1, 1));
    assert_eq!(only_one_stays([job("a"), job("b")], [fast, slow]), [true, false]);
    assert_eq!(only_one_stays([job("a"), job("b")], [slow, fast]), [false, true]);
    // After the deadline, gains don't count.
    let late = || JobSpec { deadline: Some(Span(MINUTE)), ..job("late") };
    assert_eq!(only_one_stays([late(), job("b")], [fast, slow]), [false, true]);
    assert_eq!(only_one_stays([job("a"), late()], [slow, fast]), [true, false]);
    // The same curve with less remaining time.
    let soon = || JobSpec { deadline: Some(Span(12 * MINUTE)), ..job("soon") };
    assert_eq!(only_one_stays([soon(), job("b")], [fast, fast]), [false, true]);
    assert_eq!(only_one_stays([job("a"), soon()], [fast, fast]), [true, false]);
}

#[test]
fn hypersched_gives_more_workers_to_larger_gains() {
    let job = |name| JobSpec {
        deadline: Some(Span(60 * MINUTE)),
        convergence: Convergence { max_epochs: 2000, ..Convergence::default() },
        ..linear(name, (1, 3, 1))
    };
    for fast_first in [true, false] {
        let mut scheduler = cluster(plain("hypersched"), &[gpus("s0", 4)]);
        let [a, b] = ["a", "b"].map(|name| submit(&mut scheduler, 0, job(name)));
        decide(&mut scheduler, 0);
        let (fast, slow) = if fast_first { (a, b) } else { (b, a) };
        accuracies(&mut scheduler, MINUTE, slow, 10, |epoch| 0.66 - 0.12 / (0.2 * epoch + 1.0));
        accuracies(&mut scheduler, MINUTE, fast, 10, |epoch| 0.9 - 0.54 / (0.2 * epoch + 1.0));
        decide(&mut scheduler, MINUTE);
        assert_eq!([fast, slow].map(|job| shape(&scheduler, job).workers), [3, 1]);
    }
}

/// Jobs whose accuracy stagnates, or whose deadline is over, in the order in which they would end.
#[test]
fn hypersched_gives_the_only_gpu_to_the_flat_job_that_ends_first() {
    let still: fn(f64) -> f64 = |epoch| f64::min(0.1 * epoch, 0.3);
    let job = |name: &str, max_epochs| JobSpec {
        convergence: Convergence { max_epochs, ..Convergence::default() },
        ..linear(name, (1, 1, 1))
    };
    for (long, short) in [(500, 20), (500, 499)] {
        assert_eq!(only_one_stays([job("a", long), job("b", short)], [still, still]), [false, true]);
        assert_eq!(only_one_stays([job("a", short), job("b", long)], [still, still]), [true, false]);
    }
    let late = |name: &str, epochs| JobSpec { deadline: Some(Span(MINUTE)), ..job(name, epochs) };
    let fast: fn(f64) -> f64 = |epoch| 0.9 - 0.54 / (0.2 * epoch + 1.0);
    assert_eq!(only_one_stays([late("a", 500), late("b", 20)], [fast, fast]), [false, true]);
    assert_eq!(only_one_stays([late("a", 20), late("b", 500)], [fast, fast]), [true, false]);
}

#[test]
fn hypersched_lets_flat_jobs_grow_where_nobody_gains() {
    let mut scheduler = cluster(plain("hypersched"), &[gpus("s0", 4)]);
    let job = |name| JobSpec { deadline: Some(Span(60 * MINUTE)), ..linear(name, (1, 3, 1)) };
    let [flat, rises] = ["flat", "rises"].map(|name| submit(&mut scheduler, 0, job(name)));
    decide(&mut scheduler, 0);
    accuracies(&mut scheduler, MINUTE, flat, 12, |epoch| f64::min(0.1 * epoch, 0.5));
    accuracies(&mut scheduler, MINUTE, rises, 12, |epoch| 0.9 - 0.54 / (0.2 * epoch + 1.0));
    decide(&mut scheduler, MINUTE);
    assert_eq!([flat, rises].map(|job| shape(&scheduler, job).workers), [1, 3]);
    see(&mut scheduler, 2 * MINUTE, rises, false);
    end(&mut scheduler, 2 * MINUTE, rises);
    decide(&mut scheduler, 2 * MINUTE);
    assert_eq!(shape(&scheduler, flat).workers, 3);
}

/// Rounds of a minute: which jobs ran in each. Stopped jobs are gone at once, and running jobs train.
fn rounds(scheduler: &mut Scheduler, from: i64, count: i64, jobs: &[JobId]) -> Vec<Vec<bool>> {
    let round = |at: i64| {
        decide(scheduler, at);
        for job in jobs {
            let runs = !shape(scheduler, *job).is_empty();
            see(scheduler, at, *job, runs);
            if runs {
                report(scheduler, at, *job, (at / MINUTE) as u32 + 1, None, None);
            }
        }
        runs(scheduler, jobs)
    };
    (0..count).map(|number| from + number * MINUTE).map(round).collect()
}

fn sums(rounds: &[Vec<bool>]) -> Vec<usize> {
    (0..rounds[0].len()).map(|job| rounds.iter().filter(|round| round[job]).count()).collect()
}

#[test]
fn fair_gives_all_jobs_equal_time() {
    let mut scheduler = cluster(plain("fair"), &[gpus("s0", 1)]);
    let jobs = ["a", "b", "c"].map(|name| submit(&mut scheduler, 0, wide(name, 1)));
    let seen = rounds(&mut scheduler, 0, 12, &jobs);
    assert_eq!(sums(&seen), [4, 4, 4], "{seen:?}");
    assert!(seen.windows(3).all(|three| three[0] != three[1] || three[1] != three[2]), "in turns: {seen:?}");
}

#[test]
fn engines_that_share_time_let_slow_starters_train() {
    for engine in ["fair", "slaq", "hypersched"] {
        let mut scheduler = cluster(plain(engine), &[gpus("s0", 1)]);
        let jobs = ["a", "b"].map(|name| submit(&mut scheduler, 0, wide(name, 1)));
        // A start takes five rounds.
        let mut since = [None; 2];
        let mut trained = [0; 2];
        for round in 0..200 {
            let at = round * MINUTE;
            decide(&mut scheduler, at);
            for (at_job, job) in jobs.iter().enumerate() {
                let runs = !shape(&scheduler, *job).is_empty();
                see(&mut scheduler, at, *job, runs);
                let start = runs.then(|| since[at_job].unwrap_or(round));
                since[at_job] = start;
                if start.is_some_and(|start| round >= start + 5) {
                    trained[at_job] += 1;
                    report(&mut scheduler, at, *job, round as u32, Some(1.0 / f64::from(trained[at_job])), None);
                }
            }
        }
        assert!(trained.iter().sum::<u32>() > 20, "{engine}: rounds in which they trained: {trained:?}");
        // Other engines may favour one job.
        assert!(engine != "fair" || trained.iter().all(|rounds| *rounds > 5), "{trained:?}");
    }
}

#[test]
fn fair_counts_dominant_shares() {
    let mut scheduler = cluster(plain("fair"), &[gpus("s0", 2)]);
    let jobs = [("all", 2), ("half", 1), ("other", 1)].map(|(name, gpus)| submit(&mut scheduler, 0, wide(name, gpus)));
    let seen = rounds(&mut scheduler, 0, 9, &jobs);
    assert_eq!(sums(&seen), [3, 6, 6], "twice the share for half the time: {seen:?}");
    // The same with CPUs: one job has half of them, the others a quarter.
    let mut scheduler = cluster(plain("fair"), &[server("s0", 8, 64, &[])]);
    let cpus = |name: &str, cpus: i64| JobSpec { worker: role(&[("cpu", cpus * 1000)], 1, 1, 1), ..wide(name, 1) };
    let jobs = [("all", 8), ("half", 4), ("other", 4)].map(|(name, of)| submit(&mut scheduler, 0, cpus(name, of)));
    let seen = rounds(&mut scheduler, 0, 9, &jobs);
    assert_eq!(sums(&seen), [3, 6, 6], "{seen:?}");
}

#[test]
fn fair_gives_no_credit_to_new_and_held_jobs() {
    let mut scheduler = cluster(plain("fair"), &[gpus("s0", 1)]);
    let [old, held] = ["old", "held"].map(|name| submit(&mut scheduler, 0, wide(name, 1)));
    scheduler.apply(Time(0), Event::JobHeld { job: held, held: true }).expect("active");
    rounds(&mut scheduler, 0, 30, &[old]);
    scheduler.apply(Time(30 * MINUTE), Event::JobHeld { job: held, held: false }).expect("active");
    let newcomer = submit(&mut scheduler, 30 * MINUTE, wide("newcomer", 1));
    let seen = rounds(&mut scheduler, 30 * MINUTE, 12, &[old, held, newcomer]);
    assert_eq!(sums(&seen), [4, 4, 4], "{seen:?}");
}

/// GPUs that are oversubscribed by a factor of up to two.
fn shared(engine: &str) -> Settings {
    let shape = ShapeRules { oversubscribe: 2000, ..ShapeRules::default() };
    Settings { shape, ..plain(engine) }
}

/// Measures a job's use of its first devices, and of thousandths of CPU.
fn measure(scheduler: &mut Scheduler, at: i64, server: &str, slots: &[(JobId, u16, u16, i64)]) {
    let mut devices: Vec<DeviceShare> = Vec::new();
    for (_, device, milli, _) in slots {
        match devices.iter_mut().find(|share| share.device == *device) {
            Some(share) => share.milli += milli,
            None => devices.push(DeviceShare { device: *device, milli: *milli }),
        }
    }
    let event = Event::Utilisation {
        server: server.into(),
        used: amounts(&[("cpu", slots.iter().map(|(.., cpu)| cpu).sum())]),
        devices,
        slots: slots
            .iter()
            .map(|(job, device, milli, cpu)| SlotUse {
                job: *job,
                slot: (Role::Worker, 0),
                used: amounts(&[("cpu", *cpu)]),
                devices: vec![DeviceShare { device: *device, milli: *milli }],
            })
            .collect(),
    };
    scheduler.apply(Time(at), event).expect("a server");
}

/// A job of a model whose slots use 0.3 of a GPU.
fn light(name: &str) -> JobSpec {
    JobSpec { model: "light".into(), ..wide(name, 1) }
}

/// Three jobs on two GPUs of one server: the first and the third on GPU 0.
fn crowded(settings: Settings) -> (Scheduler, [JobId; 3]) {
    let mut scheduler = cluster(settings, &[gpus("s0", 2)]);
    let first = come(&mut scheduler, 0, light("first"));
    see(&mut scheduler, 0, first, true);
    // A training job determines its model's use.
    report(&mut scheduler, 0, first, 1, None, None);
    measure(&mut scheduler, 0, "s0", &[(first, 0, 300, 1000)]);
    let second = come(&mut scheduler, 1, light("second"));
    let third = come(&mut scheduler, 2, light("third"));
    let jobs = [first, second, third];
    jobs.into_iter().for_each(|job| see(&mut scheduler, 3, job, true));
    assert_eq!(jobs.map(|job| place(&scheduler, job).1), [0, 1, 0], "each on the least used GPU");
    (scheduler, jobs)
}

#[test]
fn gandiva_moves_the_least_busy_of_an_overloaded_gpu_to_the_least_used_one() {
    for (least, uses) in [(2, [700, 300]), (0, [300, 700])] {
        let (mut scheduler, jobs) = crowded(shared("gandiva"));
        let [first, second, third] = jobs;
        set(&mut scheduler, 4, gpus("s1", 1));
        set(&mut scheduler, 4, gpus("s2", 1));
        // Foreign use of one GPU makes the last server the least used one.
        scheduler
            .apply(
                Time(4),
                Event::Utilisation {
                    server: "s1".into(),
                    used: amounts(&[]),
                    devices: vec![DeviceShare { device: 0, milli: 200 }],
                    slots: Vec::new(),
                },
            )
            .expect("a server");
        let slots = [(first, 0, uses[0], 1000), (second, 1, 300, 1000), (third, 0, uses[1], 1000)];
        // Below the threshold nothing moves.
        let calm = slots.map(|(job, device, milli, cpu)| (job, device, milli - 100, cpu));
        measure(&mut scheduler, 5, "s0", &calm);
        let before = jobs.map(|job| placed(&scheduler, job));
        scheduler.decide(Time(5));
        assert_eq!(jobs.map(|job| placed(&scheduler, job)), before);
        measure(&mut scheduler, 6, "s0", &slots);
        scheduler.decide(Time(6));
        assert_eq!(place(&scheduler, jobs[least]), ("s2".into(), 0));
        for at in (0..3).filter(|at| *at != least) {
            assert_eq!(placed(&scheduler, jobs[at]), before[at]);
        }
    }
}

#[test]
fn gandiva_also_moves_within_a_server_and_only_where_allowed() {
    let still = [("migrate", Parameter::Flag(false))];
    for (moves, settings) in [
        (true, shared("gandiva")),
        (false, Settings { parameters: plain_with("gandiva", &still).parameters, ..shared("gandiva") }),
    ] {
        let (mut scheduler, [first, second, third]) = crowded(settings);
        end(&mut scheduler, 4, second);
        // The job takes half of the server's CPUs with it, and the CPU use stays the same.
        measure(&mut scheduler, 5, "s0", &[(first, 0, 700, 10_000), (third, 0, 300, 32_000)]);
        scheduler.decide(Time(5));
        assert_eq!(place(&scheduler, first).1, 0);
        assert_eq!(place(&scheduler, third).1, u16::from(moves));
    }
}

#[test]
fn gandiva_keeps_jobs_of_one_width_together_and_a_queue() {
    let strict = plain_with("gandiva", &[("backfill", Parameter::Flag(false))]);
    let mut scheduler = cluster(strict, &[gpus("s0", 4), gpus("s1", 4)]);
    let jobs = [("a", 2), ("b", 1), ("c", 2), ("d", 1), ("e", 3), ("f", 1)]
        .map(|(name, gpus)| come(&mut scheduler, 0, wide(name, gpus)));
    let names = jobs[..4].iter().map(|job| place(&scheduler, *job).0).collect::<Vec<_>>();
    assert_eq!(names, ["s0", "s1", "s0", "s1"]);
    // Two GPUs are left, so the last job would fit.
    assert_eq!(runs(&scheduler, &jobs[4..]), [false, false]);
    let why = verdict(&scheduler, jobs[5]).reason().expect("it waits").describe(scheduler.state());
    assert_eq!(why, "number 2 in line, behind e");
}

/// Settings in which only this weight counts.
fn only(weight: &str) -> Settings {
    let of = |name| (name, Parameter::Number(if name == weight { 1.0 } else { 0.0 }));
    plain_with("graphene", &["short", "packing", "fairness", "troublesome"].map(of))
}

/// Jobs arrive at once on `count` GPUs. Returns which ones start.
fn starts(settings: Settings, count: usize, jobs: Vec<JobSpec>) -> Vec<bool> {
    let mut scheduler = cluster(settings, &[gpus("s0", count)]);
    let jobs: Vec<JobId> = jobs.into_iter().map(|job| submit(&mut scheduler, 0, job)).collect();
    scheduler.decide(Time(0));
    runs(&scheduler, &jobs)
}

fn partitioned(name: &str, after: &[&[u32]]) -> JobSpec {
    let part = |after: &&[u32]| Partition { parameters: 0, after: after.to_vec() };
    let partitions = after.iter().map(part).collect();
    JobSpec { partitions, resize: Resize::Fixed, ..wide(name, after.len() as u32) }
}

#[test]
fn graphene_weighs_short_packed_behind_and_troublesome_jobs() {
    let short = || vec![trained("hours", 1, 100), trained("minutes", 1, 10)];
    assert_eq!(starts(only("short"), 1, short()), [false, true]);
    assert_eq!(starts(only("packing"), 1, short()), [true, false], "of equals the first");
    let packed = || vec![trained("narrow", 1, 10), trained("broad", 2, 10)];
    assert_eq!(starts(only("packing"), 2, packed()), [false, true]);
    assert_eq!(starts(only("short"), 2, packed()), [true, false]);
    let troublesome = || vec![wide("replicas", 3), partitioned("chain", &[&[], &[0], &[1]])];
    assert_eq!(starts(only("troublesome"), 3, troublesome()), [false, true]);
    assert_eq!(starts(only("packing"), 3, troublesome()), [true, false]);
}

#[test]
fn graphene_equalises_tenants() {
    for (weight, expected) in [("fairness", [false, true]), ("packing", [true, false])] {
        let of = |name: &str, tenant: &str| JobSpec { tenant: tenant.into(), ..wide(name, 1) };
        let mut scheduler = cluster(only(weight), &[gpus("s0", 2)]);
        come(&mut scheduler, 0, of("running", "one"));
        let jobs = [of("more", "one"), of("first", "two")].map(|job| submit(&mut scheduler, 1, job));
        scheduler.decide(Time(1));
        assert_eq!(runs(&scheduler, &jobs), expected, "{weight}");
        // Running jobs are never stopped.
        scheduler.decide(Time(MINUTE));
        assert_eq!(runs(&scheduler, &jobs), expected);
    }
}

#[test]
fn graphene_places_troublesome_tasks_first() {
    // A server with fewer CPUs is packed better. Only the second partition has a dependent one.
    let servers = [("s0", 4), ("s1", 8), ("s2", 16)].map(|(name, cpus)| server(name, cpus, 64, &["gpu"]));
    let mut scheduler = cluster(plain("graphene"), &servers);
    let job = come(&mut scheduler, 0, partitioned("fork", &[&[], &[], &[1]]));
    let allocation = placed(&scheduler, job);
    let names: Vec<_> = allocation.slots().iter().map(|slot| scheduler.state().server_name(slot.server)).collect();
    assert_eq!(names, ["s1", "s0", "s2"]);
}

#[test]
fn remaining_epochs_bound_the_gain() {
    // Both have the same accuracies. One has two epochs left, the other many.
    let fast: fn(f64) -> f64 = |epoch| 0.9 - 0.54 / (0.2 * epoch + 1.0);
    let job = |name: &str, max_epochs| JobSpec {
        convergence: Convergence { max_epochs, ..Convergence::default() },
        ..linear(name, (1, 1, 1))
    };
    assert_eq!(only_one_stays([job("ending", 12), job("b", 200)], [fast, fast]), [false, true]);
    assert_eq!(only_one_stays([job("a", 200), job("ending", 12)], [fast, fast]), [true, false]);
}

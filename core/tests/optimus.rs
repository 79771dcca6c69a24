//! Optimus's allocation against a plain reference of the paper's rule, and small cases of its baselines checked by
//! hand.

use crate::common::{
    build::{amounts, cluster, job, plain, plain_with, profile, ring, role, seen, server, shape, submit, wp},
    config,
};
use proptest::{collection::vec, prelude::*, sample::select, test_runner::TestRunner};
use trainmaster_core::{
    End, Event, Incarnation, Job, JobId, JobSpec, Phase, Reason, Report, Role, Scheduler, ServerId, ServerSpec,
    Settings, Shape, Span, State, Time, TrainingMode, Verdict,
    fit::speed::{SpeedCurve, SpeedModel},
    job::ProfiledSpeed,
    reason::ReasonKind,
    resources::Amounts,
    settings::Parameter,
};

/// Speeds from a function of step times, over small shapes.
fn timed(most: Shape, step_time: impl Fn(f64, f64) -> f64) -> Vec<ProfiledSpeed> {
    let shapes = (1..=most.workers)
        .flat_map(|workers| (most.servers.min(1)..=most.servers).map(move |servers| (workers, servers)));
    shapes
        .map(|(workers, servers)| ProfiledSpeed {
            servers,
            workers,
            speed: 1.0 / step_time(f64::from(servers), f64::from(workers)),
        })
        .collect()
}

/// 100 remaining steps: for a job without reports, half of 200 epochs of one step are assumed.
fn hundred_steps(spec: JobSpec) -> JobSpec {
    JobSpec { examples: 0, ..spec }
}

fn gpus(count: usize) -> ServerSpec {
    server("s0", 64, 64, &vec!["gpu"; count])
}

fn shapes(scheduler: &Scheduler, ids: &[JobId]) -> Vec<Shape> {
    ids.iter().map(|id| shape(scheduler, *id)).collect()
}

/// A ring job with step times of `work`/w seconds.
fn scaling_ring(name: &str, work: f64, workers: (u32, u32, u32)) -> JobSpec {
    let spec = hundred_steps(ring(name, workers));
    JobSpec { profile: timed(wp(8, 0), |_, w| work / w), ..spec }
}

#[test]
fn units_go_where_they_save_most() {
    // Two jobs of 100 steps on 6 GPUs, with 1/w and 4/w seconds per step: 100/w and 400/w seconds remain. Both start
    // with one GPU. The second GPU of the long job saves 200 s (of the short one: 50), its third 66.7, its fourth 33.3.
    // So the order is long, long, short (50), long (33.3 over 16.7): 2 and 4.
    let mut scheduler = cluster(plain("optimus-paper"), &[gpus(6)]);
    let ids = [("short", 1.0), ("long", 4.0)]
        .map(|(name, work)| submit(&mut scheduler, 0, scaling_ring(name, work, (1, 8, 1))));
    scheduler.decide(Time(0));
    assert_eq!(shapes(&scheduler, &ids), [wp(2, 0), wp(4, 0)]);
}

/// A step takes 4/w + 0.5·w/p seconds.
fn with_servers(name: &str, most: Shape) -> JobSpec {
    let spec = hundred_steps(job(name, (1, most.workers, 1), (1, most.servers, 1)));
    JobSpec {
        worker: role(&[("gpu", 1000)], 1, most.workers, 1),
        server: Some(role(&[("cpu", 1000)], 1, most.servers, 1)),
        profile: timed(wp(8, 8), |p, w| 4.0 / w + 0.5 * w / p),
        ..spec
    }
}

#[test]
fn a_unit_that_does_not_fit_gives_way_to_the_other_kind() {
    // 3 GPUs, 8 CPUs. Times of 100 steps; gains are times 3 for a worker and times 8 for a parameter server:
    //
    //     (1,1) 450: a worker saves 150·3 = 450, a server 25·8 = 200      → (2,1) 300
    //     (2,1): a worker 16.7·3 = 50, a server 50·8 = 400                → (2,2) 250
    //     (2,2): a worker 41.7·3 = 125, a server 16.7·8 = 133             → (2,3), and so on.
    //
    // With the third GPU taken, no worker fits any more, and servers take the rest of the CPUs: each still saves a
    // little.
    let mut scheduler = cluster(plain("optimus-paper"), &[server("s0", 8, 64, &["gpu"; 3])]);
    let alone = submit(&mut scheduler, 0, with_servers("alone", wp(8, 8)));
    scheduler.decide(Time(0));
    assert_eq!(shape(&scheduler, alone), wp(3, 8));

    // The same with at most 2 workers and 3 servers: the bounds hold although there is room.
    let mut scheduler = cluster(plain("optimus-paper"), &[server("s0", 8, 64, &["gpu"; 3])]);
    let capped = submit(&mut scheduler, 0, with_servers("capped", wp(2, 3)));
    scheduler.decide(Time(0));
    assert_eq!(shape(&scheduler, capped), wp(2, 3));
}

#[test]
fn one_job_at_its_end_does_not_stop_the_others() {
    // No GPU is left after the first units. The ring leaves the queue, and the other job continues with parameter
    // servers.
    let mut scheduler = cluster(plain("optimus-paper"), &[server("s0", 6, 64, &["gpu"; 2])]);
    let spec = JobSpec { worker: role(&[("gpu", 1000)], 1, 8, 1), ..scaling_ring("ring", 100.0, (1, 8, 1)) };
    let ids = [submit(&mut scheduler, 0, spec), submit(&mut scheduler, 0, with_servers("other", wp(8, 8)))];
    scheduler.decide(Time(0));
    assert_eq!(shapes(&scheduler, &ids), [wp(1, 0), wp(1, 6)]);
}

#[test]
fn no_job_starves_behind_later_ones() {
    // Each needs two of 5 GPUs. The last would gain by far the most, but arrived last.
    let mut scheduler = cluster(plain("optimus-paper"), &[gpus(5)]);
    let works = [("a", 1.0), ("b", 2.0), ("c", 1000.0)];
    let ids = works.map(|(name, work)| submit(&mut scheduler, 0, scaling_ring(name, work, (2, 8, 2))));
    scheduler.decide(Time(0));
    assert_eq!(shapes(&scheduler, &ids), [wp(2, 0), wp(3, 0), wp(0, 0)]);
    let verdict = &scheduler.state().job(ids[2]).unwrap().verdict;
    let text = verdict.reason().unwrap().describe(scheduler.state());
    assert_eq!(text, "needs 2 gpu; the cluster has 1 left of 5");
}

#[test]
fn limits_of_tenants_and_queues_are_shared_by_their_jobs() {
    let mut settings = plain("optimus-paper");
    settings.tenants.insert("t1".into(), amounts(&[("gpu", 3000)]));
    settings.queues.insert("q1".into(), amounts(&[("gpu", 4000)]));
    let mut scheduler = cluster(settings, &[gpus(8)]);
    let spec = |name: &str, tenant: &str, work| JobSpec {
        tenant: tenant.into(),
        queue: "q1".into(),
        ..scaling_ring(name, work, (1, 8, 1))
    };
    let ids = [("a", "t1", 1.0), ("b", "t1", 100.0), ("c", "default", 1000.0)]
        .map(|(name, tenant, work)| submit(&mut scheduler, 0, spec(name, tenant, work)));
    scheduler.decide(Time(0));
    // One each. The queue's fourth GPU goes to the job with the largest gain.
    assert_eq!(shapes(&scheduler, &ids), [wp(1, 0), wp(1, 0), wp(2, 0)]);
}

/// Reports losses over a number of epochs.
fn train(scheduler: &mut Scheduler, id: JobId, epochs: u32) {
    for epoch in 1..=epochs {
        let report = Report {
            seq: epoch.into(),
            step: epoch.into(),
            epoch,
            steps_per_epoch: 1,
            loss: Some(0.5 + 2.0 / f64::from(epoch)),
            ..Report::default()
        };
        let event = Event::Reported { job: id, incarnation: Incarnation(0), slot: (Role::Worker, 0), report };
        scheduler.apply(Time(0), event).unwrap();
    }
}

#[test]
fn a_young_job_counts_for_less() {
    // At factor 0, the job without reports gets the rest after the other one has its maximum.
    for (factor, least) in [(1.0, 2), (0.0, 1)] {
        let parameters = [("young_job_factor", Parameter::Number(factor))];
        let mut scheduler = cluster(plain_with("optimus-paper", &parameters), &[gpus(6)]);
        let ids = ["young", "known"].map(|name| submit(&mut scheduler, 0, scaling_ring(name, 50.0, (1, 5, 1))));
        train(&mut scheduler, ids[1], 7);
        scheduler.decide(Time(0));
        let young = shape(&scheduler, ids[0]).workers;
        assert!(if least == 1 { young == 1 } else { young >= 2 }, "{young} at factor {factor}");
    }
}

#[test]
fn joint_steps_cross_a_valley() {
    // A step takes 4/w + 2.5·w/p + 1.3·p seconds: 7.8 at (1,1), 8.3 at (2,1), 7.85 at (1,2), but 7.1 at (2,2). From
    // there nothing is better.
    for (joint, expected) in [(false, wp(1, 1)), (true, wp(2, 2))] {
        let mut scheduler =
            cluster(plain_with("optimus-paper", &[("joint_steps", Parameter::Flag(joint))]), &[gpus(8)]);
        let spec = hundred_steps(job("valley", (1, 8, 1), (1, 8, 1)));
        let spec = JobSpec { profile: timed(wp(6, 6), |p, w| 4.0 / w + 2.5 * w / p + 1.3 * p), ..spec };
        let id = submit(&mut scheduler, 0, spec);
        scheduler.decide(Time(0));
        assert_eq!(shape(&scheduler, id), expected, "joint_steps = {joint}");
    }
}

#[test]
fn rescale_cost_avoids_unprofitable_restarts() {
    // From 2 to 4 GPUs saves 100/2 − 100/4 = 25 s.
    for (on, restart_cost, expected) in [(false, 60, 4), (true, 60, 2), (true, 20, 4)] {
        let mut scheduler = cluster(plain_with("optimus-paper", &[("rescale_cost", Parameter::Flag(on))]), &[gpus(4)]);
        let spec =
            |name| JobSpec { restart_cost: Some(Span::seconds(restart_cost)), ..scaling_ring(name, 1.0, (1, 4, 1)) };
        let [stays, ends] = ["stays", "ends"].map(|name| submit(&mut scheduler, 0, spec(name)));
        scheduler.decide(Time(0));
        assert_eq!(shape(&scheduler, stays), wp(2, 0));
        scheduler.apply(Time(1), Event::JobEnded { job: ends, end: End::Completed }).unwrap();
        scheduler.decide(Time(2));
        assert_eq!(shape(&scheduler, stays), wp(expected, 0), "rescale_cost = {on}, {restart_cost} s");
    }
}

#[test]
fn resize_in_place_keeps_running_slots() {
    // Three small jobs fill the freer server and half of the other. The fourth gets the rest there. After they end,
    // both of its workers and its parameter server fit on the freer server, with a restart. In place, the second worker
    // is added on the first one's server.
    for (on, incarnation, home) in [(false, 2, ServerId(1)), (true, 1, ServerId(0))] {
        let settings = plain_with("optimus-paper", &[("resize_in_place", Parameter::Flag(on))]);
        let servers = [server("s0", 4, 8, &["gpu"; 2]), server("s1", 16, 8, &["gpu"; 2])];
        let mut scheduler = cluster(settings, &servers);
        let small = ["a", "b", "c"].map(|name| submit(&mut scheduler, 0, with_servers(name, wp(1, 1))));
        let id = submit(&mut scheduler, 0, with_servers("grows", wp(2, 1)));
        scheduler.decide(Time(0));
        assert_eq!(shape(&scheduler, id), wp(1, 1));
        for job in small {
            scheduler.apply(Time(1), Event::JobEnded { job, end: End::Completed }).unwrap();
            let gone = Event::Observed { job, incarnation: Incarnation(1), slots: Vec::new(), phase: Phase::Stopped };
            scheduler.apply(Time(1), gone).unwrap();
        }
        scheduler.decide(Time(2));
        let job = scheduler.state().job(id).unwrap();
        let issued = job.issued.allocation.as_ref().unwrap();
        assert_eq!(
            (issued.shape(), job.issued.incarnation),
            (wp(2, 1), Incarnation(incarnation)),
            "resize_in_place = {on}"
        );
        assert!(issued.slots().iter().all(|slot| slot.server == home), "resize_in_place = {on}");
    }
}

#[test]
fn shrink_to_fit_runs_jobs_that_would_be_paused() {
    // Three workers of 2 GPUs are within the total of 6, but each server holds one of them.
    for (on, expected) in [(false, wp(0, 0)), (true, wp(2, 0))] {
        let servers = ["s0", "s1"].map(|name| server(name, 8, 8, &["gpu"; 3]));
        let mut scheduler = cluster(plain_with("optimus-paper", &[("shrink_to_fit", Parameter::Flag(on))]), &servers);
        let spec = JobSpec { worker: role(&[("gpu", 2000)], 1, 8, 1), ..scaling_ring("wide", 1.0, (1, 8, 1)) };
        let id = submit(&mut scheduler, 0, spec);
        scheduler.decide(Time(0));
        assert_eq!(shape(&scheduler, id), expected, "shrink_to_fit = {on}");
        let verdict = &scheduler.state().job(id).unwrap().verdict;
        assert_eq!(verdict.reason().map(|reason| reason.kind()), (!on).then_some(ReasonKind::NoRoom));
    }
}

#[test]
fn spare_gpus_keeps_cores_for_gpus_that_are_free() {
    for (on, expected) in [(false, wp(0, 0)), (true, wp(3, 0))] {
        let mut servers = vec![server("cpu", 16, 64, &[])];
        servers.extend(["gpu0", "gpu1"].map(|name| server(name, 4, 16, &["gpu"; 2])));
        let mut scheduler = cluster(plain_with("optimus-paper", &[("spare_gpus", Parameter::Flag(on))]), &servers);
        // On one server, its parameter servers would take the cores that the second GPU needs.
        let small = submit(&mut scheduler, 0, job("small", (1, 1, 1), (3, 3, 3)));
        let ring = submit(&mut scheduler, 0, ring("ring", (3, 3, 3)));
        scheduler.decide(Time(0));
        assert_eq!(shape(&scheduler, small), wp(1, 3), "spare_gpus = {on}");
        assert_eq!(shape(&scheduler, ring), expected, "spare_gpus = {on}");
    }
}

/// Workers of each job after a decision at a due time.
fn decide_when_due(scheduler: &mut Scheduler, at: i64, ids: &[JobId]) -> Vec<u32> {
    assert_eq!(scheduler.due(), Some(Time(at)));
    scheduler.decide(Time(at));
    ids.iter().map(|id| scheduler.state().job(*id).map_or(0, |job| job.shape().workers)).collect()
}

const MINUTE: i64 = 60_000;

/// Rounds every ten minutes, and waiting jobs start between them.
fn between_rounds() -> Settings {
    let on = ("between_rounds", Parameter::Flag(true));
    plain_with("optimus-paper", &[on, ("min_interval", Parameter::Text("600s".into()))])
}

#[test]
fn between_rounds_only_starts_waiting_jobs() {
    let mut scheduler = cluster(between_rounds(), &[gpus(4)]);
    let mut ids = vec![submit(&mut scheduler, 0, scaling_ring("first", 1.0, (1, 3, 1)))];
    assert_eq!(decide_when_due(&mut scheduler, 0, &ids), [3]);
    assert_eq!(scheduler.due(), Some(Time(10 * MINUTE)));

    ids.push(submit(&mut scheduler, MINUTE, scaling_ring("second", 9.0, (1, 4, 1))));
    assert_eq!(decide_when_due(&mut scheduler, MINUTE, &ids), [3, 1], "it starts with what is left");
    ids.push(submit(&mut scheduler, 2 * MINUTE, scaling_ring("third", 1.0, (2, 2, 2))));
    assert_eq!(decide_when_due(&mut scheduler, 2 * MINUTE, &ids), [3, 1, 0], "nobody makes room for it");
    assert_eq!(scheduler.due(), Some(Time(10 * MINUTE)), "rounds keep their own time");

    // Holding the first job frees its room at once. The second stays unchanged.
    scheduler.apply(Time(3 * MINUTE), Event::JobHeld { job: ids[0], held: true }).unwrap();
    assert_eq!(decide_when_due(&mut scheduler, 3 * MINUTE, &ids), [0, 1, 2]);
    scheduler.apply(Time(4 * MINUTE), Event::JobHeld { job: ids[0], held: false }).unwrap();
    assert_eq!(decide_when_due(&mut scheduler, 4 * MINUTE, &ids), [1, 1, 2], "resumed: one is left");
    scheduler.apply(Time(5 * MINUTE), Event::JobEnded { job: ids[2], end: End::Completed }).unwrap();
    assert_eq!(decide_when_due(&mut scheduler, 5 * MINUTE, &ids), [1, 1, 0], "nobody waits");
    assert_eq!(decide_when_due(&mut scheduler, 10 * MINUTE, &ids), [1, 3, 0], "the round hands out the rest");
    assert_eq!(scheduler.due(), Some(Time(20 * MINUTE)));
}

#[test]
fn jobs_that_come_or_end_bring_the_round_forward() {
    let mut scheduler = cluster(plain("optimus"), &[gpus(4)]);
    let mut ids = vec![submit(&mut scheduler, 0, scaling_ring("first", 1.0, (1, 4, 1)))];
    assert_eq!(decide_when_due(&mut scheduler, 0, &ids), [4]);
    assert_eq!(scheduler.due(), Some(Time(MINUTE)), "fits change with reports");
    assert_eq!(decide_when_due(&mut scheduler, MINUTE, &ids), [4]);

    // Less than ten seconds after a round, nobody makes room yet.
    let soon = MINUTE + 1000;
    ids.push(submit(&mut scheduler, soon, scaling_ring("second", 1.0, (1, 4, 1))));
    assert_eq!(decide_when_due(&mut scheduler, soon, &ids), [4, 0]);
    assert_eq!(decide_when_due(&mut scheduler, MINUTE + 10_000, &ids), [2, 2]);
    ids.iter().for_each(|id| seen(&mut scheduler, MINUTE + 10_000, *id));

    // Later, a job that ends leaves its room at once.
    let later = MINUTE + 30_000;
    scheduler.apply(Time(later), Event::JobEnded { job: ids[0], end: End::Completed }).unwrap();
    assert_eq!(decide_when_due(&mut scheduler, later, &ids[1..]), [4]);
    assert_eq!(scheduler.due(), Some(Time(later + MINUTE)));
}

#[test]
fn without_between_rounds_jobs_wait_for_the_round() {
    let mut scheduler = cluster(plain("optimus-paper"), &[gpus(4)]);
    let mut ids = vec![submit(&mut scheduler, 0, scaling_ring("first", 1.0, (1, 3, 1)))];
    assert_eq!(decide_when_due(&mut scheduler, 0, &ids), [3]);
    ids.push(submit(&mut scheduler, MINUTE, scaling_ring("second", 9.0, (1, 4, 1))));
    assert_eq!(decide_when_due(&mut scheduler, 10 * MINUTE, &ids), [1, 3]);
}

#[test]
fn a_restart_between_rounds_keeps_their_time() {
    let mut scheduler = cluster(between_rounds(), &[gpus(4)]);
    scheduler.start_journal();
    submit(&mut scheduler, 0, scaling_ring("first", 1.0, (1, 2, 1)));
    scheduler.decide(Time(0));
    submit(&mut scheduler, MINUTE, scaling_ring("second", 1.0, (1, 1, 1)));
    scheduler.decide(Time(MINUTE));
    assert!(scheduler.snapshot());
    let records = scheduler.drain_journal();
    let mut restored = Scheduler::restore(records.iter().map(Vec::as_slice)).expect("its own journal");
    let mut ids: Vec<JobId> = restored.state().jobs.keys().copied().collect();
    ids.push(submit(&mut restored, 2 * MINUTE, scaling_ring("third", 9.0, (1, 4, 1))));
    assert_eq!(decide_when_due(&mut restored, 2 * MINUTE, &ids), [2, 1, 1]);
    assert_eq!(decide_when_due(&mut restored, 10 * MINUTE, &ids), [1, 1, 2]);
}

#[test]
fn the_largest_server_in_a_reason_is_one_that_the_job_may_use() {
    // The server with most room is in another zone, and the one with most room in its own zone is draining.
    let zone = |name: &str| [("zone".to_owned(), name.to_owned())].into();
    let labelled = |at: &str, of: &str, gpus, draining| ServerSpec {
        labels: zone(of),
        draining,
        ..server(at, 16, 64, &vec!["gpu"; gpus])
    };
    let servers = [labelled("s0", "b", 8, false), labelled("s1", "a", 2, false), labelled("s2", "a", 6, true)];
    for engine in ["optimus-paper", "fifo", "drf", "tetris", "random"] {
        let mut scheduler = cluster(plain(engine), &servers);
        let spec = JobSpec { worker: role(&[("gpu", 4000)], 1, 1, 1), labels: zone("a"), ..ring("a", (1, 1, 1)) };
        let id = submit(&mut scheduler, 0, spec);
        scheduler.decide(Time(0));
        let state = scheduler.state();
        let reason = state.job(id).unwrap().verdict.reason().expect("it waits");
        assert!(
            matches!(reason, Reason::NoRoom { largest: 2000, server: Some(ServerId(1)), .. }),
            "{engine}: {}",
            reason.describe(state)
        );
    }
}

#[test]
fn sort_by_selects_the_freest_server() {
    // Of 24 CPUs and 5 GPUs in all: 16/24 + 1/5 of the first, 8/24 + 4/5 of the second.
    for (by, expected) in [("share", 1), ("cpu", 0)] {
        let servers = [server("s0", 16, 8, &["gpu"]), server("s1", 8, 8, &["gpu"; 4])];
        let mut scheduler = cluster(plain_with("optimus-paper", &[("sort_by", Parameter::Text(by.into()))]), &servers);
        let id = submit(&mut scheduler, 0, ring("a", (1, 1, 1)));
        scheduler.decide(Time(0));
        let job = scheduler.state().job(id).unwrap();
        assert_eq!(job.verdict.allocation().unwrap().slots()[0].server, ServerId(expected), "sort_by = {by}");
    }
}

// The reference.

/// (w, p) of each job by the rule, in order of arrival. `None` for jobs that don't get their minimum.
fn reference(state: &State, young_job_factor: f64, joint_steps: bool) -> Vec<Option<Shape>> {
    let jobs: Vec<&Job> = state.jobs.values().map(|job| &**job).collect();
    let mut given: Vec<Option<Shape>> = vec![None; jobs.len()];
    // All sums are recomputed for every query.
    let fits = |given: &[Option<Shape>]| {
        let sum = |of: &dyn Fn(&Job) -> bool| {
            let mut sum = Amounts::default();
            for (job, shape) in jobs.iter().zip(given) {
                if let (true, Some(shape)) = (of(job), shape) {
                    sum += &job.total(*shape);
                }
            }
            sum
        };
        let within = |sum: &Amounts, limits: &std::collections::BTreeMap<_, i64>| {
            limits.iter().all(|(r, most)| sum[*r] <= *most)
        };
        sum(&|_| true).fits(&state.usable)
            && (0..state.tenants.len())
                .all(|at| within(&sum(&|job| job.tenant.0 as usize == at), &state.tenants[at].limits))
            && (0..state.queues.len())
                .all(|at| within(&sum(&|job| job.queue.0 as usize == at), &state.queues[at].limits))
    };
    for at in 0..jobs.len() {
        given[at] = Some(jobs[at].spec.bounds().least());
        if !fits(&given) {
            given[at] = None;
        }
    }
    let time = |job: &Job, shape: Shape| {
        let speed = job.learnt.fits.speed.as_ref().expect("profiled").curve().speed(shape.servers, shape.workers);
        job.remaining_steps().0 / speed
    };
    let mut barred = vec![[false; 2]; jobs.len()];
    loop {
        // (gain, job, more workers, more servers) of the best step. The earlier job is first among equals.
        let mut best: Option<(f64, usize, u32, u32)> = None;
        for (at, job) in jobs.iter().enumerate() {
            let Some(shape) = given[at] else { continue };
            let (bounds, [no_worker, no_server]) = (job.spec.bounds(), barred[at]);
            let worker = !no_worker && shape.workers < bounds.workers.1;
            let server = !no_server && shape.servers < bounds.servers.1;
            let share = |amounts: &Amounts| amounts.dominant_share(&state.usable);
            let saved = |w, p| time(job, shape) - time(job, wp(shape.workers + w, shape.servers + p));
            let mut units = vec![];
            if worker {
                units.push((saved(1, 0) / share(&job.worker.amounts), 1, 0));
            }
            if server {
                units.push((saved(0, 1) / share(&job.server.amounts), 0, 1));
            }
            if joint_steps && worker && server && units.iter().all(|(gain, ..)| *gain <= 0.0) {
                units = vec![(saved(1, 1) / (share(&job.worker.amounts) + share(&job.server.amounts)), 1, 1)];
            }
            let young = job.learnt.losses.last_epoch().is_none_or(|epochs| epochs < 5);
            let factor = if young { young_job_factor } else { 1.0 };
            for (gain, w, p) in units.into_iter().filter(|(gain, ..)| *gain > 0.0) {
                if best.is_none_or(|(most, ..)| gain * factor > most) {
                    best = Some((gain * factor, at, w, p));
                }
            }
        }
        let Some((_, at, w, p)) = best else { return given };
        let before = given[at].expect("it has its least");
        given[at] = Some(wp(before.workers + w, before.servers + p));
        if !fits(&given) {
            given[at] = Some(before);
            barred[at] = [barred[at][0] || w > 0, barred[at][1] || p > 0];
        }
    }
}

fn random_job() -> impl Strategy<Value = JobSpec> {
    let theta = (0.001..0.1_f64, 0.0..2.0_f64, 0.0..1.0_f64, 0.0..0.2_f64, 0.0..0.2_f64);
    let bounds = ((1..=3_u32, 0..=8_u32), (1..=2_u32, 0..=6_u32));
    let demand = (select(vec![0_i64, 500, 1000, 2000]), 1..=4_i64, 0..=8_i64);
    let mode = select(vec![TrainingMode::Sync, TrainingMode::Async, TrainingMode::AllReduce]);
    (theta, bounds, demand, mode, 10..500_u32, 0..3_usize).prop_map(
        |(theta, (w, p), (gpu, cpu, gib), mode, epochs, tenant)| {
            let theta = [theta.0, theta.1, theta.2, theta.3, theta.4];
            let model = match mode {
                TrainingMode::Sync => SpeedModel::Sync { batch: 256.0 },
                TrainingMode::Async => SpeedModel::Async,
                TrainingMode::AllReduce => SpeedModel::AllReduce { batch: 256.0 },
            };
            let most_servers = if mode == TrainingMode::AllReduce { 0 } else { 5 };
            let mut spec = JobSpec {
                mode,
                tenant: format!("t{tenant}"),
                worker: role(&[("gpu", gpu), ("cpu", cpu * 1000), ("memory", gib * 1024)], w.0, w.0 + w.1, w.0),
                server: (most_servers > 0).then(|| role(&[("cpu", 1000)], p.0, p.0 + p.1, p.0)),
                profile: profile(&SpeedCurve::new(model, &theta), wp(5, most_servers)),
                ..JobSpec::minimal("unnamed")
            };
            spec.convergence.max_epochs = epochs;
            spec
        },
    )
}

#[test]
fn allocation_is_the_references() {
    let instance = (
        vec((random_job(), prop::bool::weighted(0.3)), 1..9),
        (4..60_i64, 0..24_usize, 16..200_i64),
        select(vec![1.0, 0.95, 0.5]),
        any::<bool>(),
        prop::option::of(0..8_i64),
    );
    let mut runner = TestRunner::new(config(250));
    let result = runner.run(&instance, |(specs, (cpus, gpus, gib), factor, joint, limit)| {
        let mut settings: Settings = plain_with(
            "optimus-paper",
            &[("young_job_factor", Parameter::Number(factor)), ("joint_steps", Parameter::Flag(joint))],
        );
        if let Some(limit) = limit {
            settings.tenants.insert("t1".into(), amounts(&[("gpu", limit * 1000), ("cpu", limit * 4000)]));
        }
        // One server with GPUs that the manager picks: any shape within the totals has a place.
        let mut all = server("s0", cpus, gib, &[]);
        all.capacity.insert("gpu".into(), gpus as i64 * 1000);
        let mut scheduler = cluster(settings, &[all]);
        for (at, (mut spec, known)) in specs.into_iter().enumerate() {
            spec.name = format!("j{at}");
            spec.model = spec.name.clone();
            let event = Event::JobSubmitted { spec: Box::new(spec), external: None, token_hash: None };
            if scheduler.apply(Time(0), event).is_ok() && known {
                let id = scheduler.state().find_job(&format!("j{at}")).expect("submitted").id;
                train(&mut scheduler, id, 6);
            }
        }
        if let Some(ticket) = scheduler.prepare_fits(Time(0)) {
            scheduler.commit_fits(Time(0), ticket.run()).expect("just opened");
        }
        let expected = reference(scheduler.state(), factor, joint);
        scheduler.decide(Time(0));
        let state = scheduler.state();
        for (job, expected) in state.jobs.values().zip(expected) {
            let got = job.verdict.allocation().map(|allocation| allocation.shape());
            prop_assert_eq!(got, expected, "{} of {:?}", job.id, job.spec.mode);
            prop_assert!(got.is_some() || matches!(job.verdict, Verdict::Wait(_)));
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

// The baselines.

#[test]
fn drf_gives_equal_dominant_shares() {
    // The example of the DRF paper (§4.1): 9 CPUs and 18 GB; tasks of (1 CPU, 4 GB) and (3 CPUs, 1 GB) get 3 and 2,
    // each 2/3 of its dominant resource.
    let mut scheduler = cluster(plain("drf"), &[server("s0", 9, 18, &[])]);
    let spec = |name, cpu: i64, gib: i64| JobSpec {
        worker: role(&[("cpu", cpu * 1000), ("memory", gib * 1024)], 1, 16, 1),
        ..ring(name, (1, 16, 1))
    };
    let ids = [spec("a", 1, 4), spec("b", 3, 1)].map(|spec| submit(&mut scheduler, 0, spec));
    scheduler.decide(Time(0));
    assert_eq!(shapes(&scheduler, &ids), [wp(3, 0), wp(2, 0)]);
}

#[test]
fn drf_pairs_workers_with_parameter_servers_and_spreads_them() {
    let servers = ["s0", "s1"].map(|name| server(name, 4, 8, &["gpu"; 2]));
    let mut scheduler = cluster(plain("drf"), &servers);
    let id = submit(&mut scheduler, 0, job("a", (1, 8, 1), (1, 8, 1)));
    scheduler.decide(Time(0));
    assert_eq!(shape(&scheduler, id), wp(4, 4), "all of it: work-conserving");
    let job = scheduler.state().job(id).unwrap();
    let on = |server| {
        job.verdict.allocation().unwrap().of(Role::Worker).iter().filter(|slot| slot.server == ServerId(server)).count()
    };
    assert_eq!((on(0), on(1)), (2, 2));
}

#[test]
fn drf_can_give_jobs_as_few_parameter_servers_as_carry_their_bandwidth() {
    // A parameter server carries four workers, and the server has 10 Gbit/s.
    for (servers, expected) in [("paired", wp(2, 2)), ("fewest", wp(4, 1))] {
        let mut scheduler = cluster(
            plain_with("drf", &[("servers", Parameter::Text(servers.into()))]),
            &[server("s0", 8, 64, &["gpu"; 5])],
        );
        let mut spec = job("a", (1, 8, 1), (1, 8, 1));
        spec.worker.demand = [("gpu", 1000), ("cpu", 1000), ("bandwidth", 1000)].map(named).into();
        spec.server.as_mut().unwrap().demand = [("cpu", 1500), ("bandwidth", 4000)].map(named).into();
        spec.dataset = Some(trainmaster_core::job::Dataset {
            chunks: 8,
            batches_per_chunk: 1,
            epochs: 9,
            batch_time: Some(Span(1000)),
            ..Default::default()
        });
        let id = submit(&mut scheduler, 0, spec);
        scheduler.decide(Time(0));
        assert_eq!(shape(&scheduler, id), expected, "{servers}");
    }
}

fn named((name, amount): (&str, i64)) -> (String, i64) {
    (name.to_owned(), amount)
}

#[test]
fn fifo_goes_by_priority_then_arrival_with_optional_backfill() {
    for backfill in [false, true] {
        let mut scheduler = cluster(plain_with("fifo", &[("backfill", Parameter::Flag(backfill))]), &[gpus(4)]);
        let sized = |name: &str, gpus: u32, priority| JobSpec { priority, ..ring(name, (gpus, gpus, gpus)) };
        let jobs = [("first", 2, 0), ("big", 4, 0), ("small", 1, 0), ("urgent", 1, 5)];
        let ids = jobs.map(|(name, gpus, priority)| submit(&mut scheduler, 0, sized(name, gpus, priority)));
        scheduler.decide(Time(0));
        // The urgent job and the first one have 3 of 4 GPUs. The big job waits, and the small one behind it.
        let small = if backfill { wp(1, 0) } else { wp(0, 0) };
        assert_eq!(shapes(&scheduler, &ids), [wp(2, 0), wp(0, 0), small, wp(1, 0)]);
        let text = |id: JobId| {
            let state = scheduler.state();
            state.job(id).unwrap().verdict.reason().map(|reason| reason.describe(state))
        };
        assert_eq!(text(ids[1]).unwrap(), "needs 4 gpu; the cluster has 1 left of 4");
        if !backfill {
            assert!(text(ids[2]).unwrap().ends_with("behind big"), "{:?}", text(ids[2]));
        }
    }
}

#[test]
fn tetris_takes_short_and_small_jobs_first_and_packs_them() {
    let mut scheduler = cluster(plain("tetris"), &[gpus(1)]);
    let ids = [("long", 9.0), ("short", 1.0)]
        .map(|(name, work)| submit(&mut scheduler, 0, scaling_ring(name, work, (1, 1, 1))));
    scheduler.decide(Time(0));
    assert_eq!(shapes(&scheduler, &ids), [wp(0, 0), wp(1, 0)], "the short job passes the long one");

    // Best fit: the server with less room takes a job that it holds, so that the larger room stays whole.
    let servers = [server("roomy", 8, 8, &["gpu"; 4]), server("tight", 8, 8, &["gpu"])];
    let mut scheduler = cluster(plain("tetris"), &servers);
    let id = submit(&mut scheduler, 0, scaling_ring("a", 1.0, (1, 1, 1)));
    scheduler.decide(Time(0));
    let job = scheduler.state().job(id).unwrap();
    assert_eq!(job.verdict.allocation().unwrap().slots()[0].server, ServerId(1));
}

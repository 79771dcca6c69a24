//! Jobs whose batch the scheduler may choose.

use crate::common::{
    build::{cluster, gpus, plain, report, ring, running, runs, seen, shape, submit},
    journal::verify,
};
use proptest::{collection::vec, prelude::*};
use trainmaster_core::{
    Event, EventError, Incarnation, JobId, JobSpec, Report, Role, Scheduler, Span, Time,
    batch::{Batch, BatchRange, GradientNoise, gain},
    engines,
    event::Enactment,
    fit::{NoiseCurve, NoiseHistory, SpeedCurve, SpeedModel, speed::Goodput},
    job::ProfiledSpeed,
    journal::Record,
};

/// A job with a batch of 64, which may have up to 4096, 128 of them at once on each worker.
fn free(name: &str, workers: (u32, u32, u32)) -> JobSpec {
    let labels = [("batch.min", "64"), ("batch.max", "4096"), ("batch.local", "128")];
    let mut spec = JobSpec { batch: 64, examples: 64_000, model: name.into(), ..ring(name, workers) };
    spec.labels.extend(labels.map(|(label, value)| (label.to_owned(), value.to_owned())));
    spec.validate().unwrap();
    spec
}

fn batch(scheduler: &Scheduler, job: JobId) -> Option<Batch> {
    scheduler.state().job(job).unwrap().batch()
}

/// The workers that it was given, which may be fewer than planned.
fn issued(scheduler: &Scheduler, job: JobId) -> u32 {
    let issued = scheduler.state().job(job).unwrap().issued.allocation.clone();
    issued.map_or(0, |issued| issued.shape().workers)
}

fn told(
    scheduler: &mut Scheduler,
    at: i64,
    job: JobId,
    batch: Option<u64>,
    noise: Option<(f64, f64)>,
) -> Result<(), EventError> {
    let incarnation = scheduler.state().job(job).map_or(Incarnation(0), |job| job.issued.incarnation);
    let noise = noise.map(|(sqr, var)| GradientNoise { sqr, var });
    let (slot, seq) = ((Role::Worker, 0), at as u64 + 1);
    scheduler.apply(Time(at), Event::BatchReported { job, incarnation, slot, seq, batch, noise })
}

fn fit(scheduler: &mut Scheduler, at: i64) {
    if let Some(ticket) = scheduler.prepare_fits(Time(at)) {
        scheduler.commit_fits(Time(at), ticket.run()).unwrap();
    }
}

/// Four workers that run.
fn started() -> (Scheduler, JobId) {
    let mut scheduler = cluster(plain("fifo"), &[gpus("a", 4)]);
    let job = running(&mut scheduler, 2, free("job", (4, 4, 4)));
    (scheduler, job)
}

/// A training program with 10 ms an example and 0.1 s a step, whose gradients have a noise scale of `noise` examples.
/// It reports every 10 s for a while and follows the batch that it is told. Returns its progress.
fn train(scheduler: &mut Scheduler, from: i64, job: JobId, noise: f64, reports: u64) -> f64 {
    train_at(scheduler, from, job, noise, reports, (0.1, 0.01))
}

/// The same with other times of a step and an example.
fn train_at(
    scheduler: &mut Scheduler,
    from: i64,
    job: JobId,
    noise: f64,
    reports: u64,
    (step, example): (f64, f64),
) -> f64 {
    let mut progress = scheduler.state().job(job).unwrap().learnt.progress.step as f64;
    for number in 1..=reports {
        let at = from + 10_000 * number as i64;
        let size = batch(scheduler, job).map_or(64, |batch| batch.size);
        let workers = issued(scheduler, job);
        let steps = libm::round(10.0 / (example * size as f64 / f64::from(workers) + step));
        progress += steps * gain(noise, 64.0, size as f64);
        told(scheduler, at, job, Some(size), Some((1.0, noise))).unwrap();
        let of = Report {
            seq: from as u64 + number,
            step: progress as u64,
            steps_per_epoch: 1000,
            epoch: (progress / 1000.0) as u32,
            steps: steps as u32,
            duration: Span::seconds(10),
            workers,
            ..Report::default()
        };
        report(scheduler, at, job, of).unwrap();
        fit(scheduler, at);
    }
    progress
}

#[test]
fn noisy_gradients_get_larger_batches_and_the_job_is_told() {
    let mut scheduler = cluster(plain("fifo"), &[gpus("a", 4)]);
    let job = submit(&mut scheduler, 0, free("job", (4, 4, 4)));
    assert_eq!(batch(&scheduler, job), None, "it has no slots");
    scheduler.decide(Time(1));
    seen(&mut scheduler, 2, job);
    // Without reports it has the submitted batch.
    assert_eq!(batch(&scheduler, job), Some(Batch { size: 64, local: 16, passes: 1 }));
    train(&mut scheduler, 10, job, 2000.0, 40);
    // T = 0.1 + 0.01·M/4: the best is M = √(2000 · 0.1 · 400) = 283.
    let chosen = batch(&scheduler, job).unwrap();
    assert!((180..=440).contains(&chosen.size), "{chosen:?}");
    assert_eq!(chosen.size, chosen.local * u64::from(chosen.passes) * 4);
    let active = scheduler.state().job(job).unwrap();
    let environment = active.environment();
    let of = |name: &str| environment.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
    assert_eq!(of("TRAINMASTER_BATCH"), Some(chosen.size.to_string()));
    assert_eq!(of("TRAINMASTER_BATCH_SUBMITTED").as_deref(), Some("64"));
    assert_eq!(of("TRAINMASTER_BATCH_LOCAL"), Some(chosen.local.to_string()));
    assert_eq!(of("TRAINMASTER_BATCH_PASSES"), Some(chosen.passes.to_string()));
    // The predicted speed is the true one, in steps of the submitted batch.
    let size = chosen.size as f64;
    let truth = gain(2000.0, 64.0, size) / (0.1 + 0.01 * size / 4.0);
    let predicted = active.learnt.fits.speed.as_ref().unwrap().speed(0, 4);
    assert!((predicted / truth - 1.0).abs() < 0.1, "{predicted} for {truth}");
    let explained = scheduler.explain(Time(500_000), job).unwrap();
    let texts: Vec<_> = explained.findings.iter().map(|finding| finding.text.as_str()).collect();
    let text = texts.iter().find(|text| text.starts_with("batch ")).unwrap_or_else(|| panic!("{texts:#?}"));
    for part in [&chosen.size.to_string(), "64 to 4096", "2000 examples", "%"] {
        assert!(text.contains(part), "{text}");
    }
}

/// What one job of a model teaches, the others know: at the same progress they have the same noise.
#[test]
fn a_job_begins_with_the_batch_that_its_models_jobs_found() {
    let mut scheduler = cluster(plain("fifo"), &["a", "b", "c", "d", "e"].map(|name| gpus(name, 4)));
    let of_model = |name: &str, model: &str| JobSpec { model: model.into(), ..free(name, (4, 4, 4)) };
    scheduler.start_journal();
    let first = running(&mut scheduler, 2, of_model("first", "net"));
    train(&mut scheduler, 10, first, 50_000.0, 40);
    let found = batch(&scheduler, first).unwrap().size;
    assert!(found > 1000, "{found}");
    let begin = |scheduler: &mut Scheduler, name: &str, model: &str, at: i64| {
        let job = submit(scheduler, at, of_model(name, model));
        fit(scheduler, at + 1);
        scheduler.decide(Time(at + 2));
        job
    };
    let second = begin(&mut scheduler, "second", "net", 500_000);
    assert!(batch(&scheduler, second).unwrap().size > 1000, "{:?}", batch(&scheduler, second));
    let explained = scheduler.explain(Time(500_003), second).unwrap();
    let says = |part: &str| explained.findings.iter().any(|finding| finding.text.contains(part));
    assert!(says("as its model's jobs measured with other batches"), "{:#?}", explained.findings);
    // A snapshot keeps it.
    scheduler.snapshot();
    let frames = scheduler.drain_journal();
    let mut restored = Scheduler::restore(frames.iter().map(Vec::as_slice)).unwrap();
    // A job that waits learns of it, too.
    let late = running(&mut scheduler, 600_001, of_model("late", "late"));
    let waits = submit(&mut scheduler, 600_002, of_model("waits", "late"));
    assert!(scheduler.state().job(waits).unwrap().learnt.fits.speed.is_none());
    train(&mut scheduler, 600_010, late, 50_000.0, 4);
    let knows = scheduler.state().job(waits).unwrap().learnt.fits.speed.as_ref().and_then(|fit| fit.goodput()).cloned();
    assert!(knows.is_some_and(|goodput| goodput.noise().at(64.0) > 20_000.0));
    // Another model's jobs learn nothing of it, and what a job measures itself counts more.
    let third = begin(&mut restored, "third", "net", 700_000);
    let other = begin(&mut restored, "other", "other", 700_010);
    assert!(batch(&restored, third).is_some_and(|batch| batch.size > 1000));
    assert!(batch(&restored, other).is_some_and(|batch| batch.size == 64));
    seen(&mut scheduler, 650_000, second);
    train(&mut scheduler, 700_000, second, 10.0, 40);
    assert!(batch(&scheduler, second).unwrap().size < 256, "{:?}", batch(&scheduler, second));
}

/// A profile is of the submitted batch: reports of larger ones, whose steps take longer, don't contradict it.
#[test]
fn reports_of_other_batches_leave_the_profile_alone() {
    let mut scheduler = cluster(plain("fifo"), &[gpus("a", 4)]);
    let speed = 1.0 / (0.1 + 0.01 * 64.0 / 4.0);
    let profile = vec![ProfiledSpeed { servers: 0, workers: 4, speed }];
    let job = submit(&mut scheduler, 0, JobSpec { profile, ..free("job", (4, 4, 4)) });
    fit(&mut scheduler, 0);
    scheduler.decide(Time(1));
    seen(&mut scheduler, 2, job);
    train(&mut scheduler, 10, job, 100_000.0, 40);
    assert!(batch(&scheduler, job).unwrap().size > 1000);
    let learnt = &scheduler.state().job(job).unwrap().learnt;
    assert_eq!(learnt.speeds.contradiction(), None);
    // Speeds are told in steps of the submitted batch.
    let (predicted, reported) = (learnt.fits.speed.as_ref().unwrap().speed(0, 4), learnt.progress.speed.unwrap());
    assert!((predicted / reported - 1.0).abs() < 0.1, "{predicted} {reported}");
}

/// A step that hardly depends on its batch, unlike what is assumed before another batch was measured.
#[test]
fn a_measured_batch_is_left_only_for_a_better_one() {
    for (step, example, workers) in [(0.2, 0.000_01, 1), (0.2, 0.0002, 1), (0.25, 0.0, 1), (0.2, 0.0002, 2)] {
        let mut scheduler = cluster(plain("fifo"), &[gpus("a", 4)]);
        let job = submit(&mut scheduler, 0, free("job", (workers, workers, workers)));
        scheduler.decide(Time(1));
        seen(&mut scheduler, 2, job);
        let (mut most, mut last) = (0.0_f64, 0.0);
        for part in 0..20 {
            train_at(&mut scheduler, 10 + 100_000 * part, job, 10_000.0, 9, (step, example));
            last = scheduler.state().job(job).unwrap().learnt.progress.speed.unwrap();
            // Once two batches are known, none is kept that is much worse than the best so far.
            assert!(part < 4 || last > 0.6 * most, "{step} {example} {workers}: {last} after {most}");
            most = most.max(last);
        }
        let goodput = |size: f64| gain(10_000.0, 64.0, size) / (step + example * size / f64::from(workers));
        let best = (0..=100).map(|at| goodput(64.0 * libm::pow(64.0, f64::from(at) / 100.0))).fold(0.0, f64::max);
        assert!(last > 0.9 * best, "{step} {example} {workers}: {last} of {best}");
        let learnt = &scheduler.state().job(job).unwrap().learnt;
        let predicted = learnt.fits.speed.as_ref().unwrap().speed(0, workers);
        assert!((predicted / last - 1.0).abs() < 0.25, "{step} {example} {workers}: {predicted}, but {last}");
    }
}

#[test]
fn quiet_gradients_keep_the_smallest_batch() {
    let (mut scheduler, job) = started();
    train(&mut scheduler, 10, job, 1.0, 20);
    assert_eq!(batch(&scheduler, job).unwrap().size, 64);
}

#[test]
fn a_change_of_shape_changes_the_batch() {
    let mut scheduler = cluster(plain("drf"), &[gpus("a", 8)]);
    let job = submit(&mut scheduler, 0, free("job", (1, 8, 1)));
    scheduler.decide(Time(1));
    seen(&mut scheduler, 2, job);
    let alone = shape(&scheduler, job).workers;
    train(&mut scheduler, 10, job, 4000.0, 30);
    let before = batch(&scheduler, job).unwrap();
    submit(&mut scheduler, 400_000, free("other", (1, 8, 1)));
    scheduler.decide(Time(1_000_000));
    let fewer = shape(&scheduler, job).workers;
    assert!(fewer < alone, "{fewer} of {alone}");
    let after = batch(&scheduler, job).unwrap();
    assert_eq!(after.size, after.local * u64::from(after.passes) * u64::from(fewer));
    assert!(after.size < before.size, "{after:?} after {before:?}");
}

/// With a fixed batch, 8 workers are hardly faster than 4. With noise enough for a batch of thousands, they are.
#[test]
fn engines_see_the_speed_with_the_best_batch() {
    let predicted = |noise: f64| {
        let (mut scheduler, job) = started();
        train(&mut scheduler, 10, job, noise, 40);
        let fit = scheduler.state().job(job).unwrap().learnt.fits.speed.clone().unwrap();
        fit.speed(0, 32) / fit.speed(0, 4)
    };
    let (quiet, noisy) = (predicted(1.0), predicted(100_000.0));
    assert!(quiet < 3.0 && noisy > 3.5 && noisy > 1.5 * quiet, "{quiet} {noisy}");
}

#[test]
fn strange_reports_are_counted_and_nothing_is_lost() {
    let mut scheduler = cluster(plain("fifo"), &[gpus("a", 4)]);
    let job = submit(&mut scheduler, 0, free("job", (4, 4, 4)));
    told(&mut scheduler, 0, job, Some(99), None).unwrap();
    let used = |scheduler: &Scheduler| scheduler.state().job(job).unwrap().batching().unwrap().used;
    assert_eq!(used(&scheduler), None, "it has no slots");
    scheduler.decide(Time(1));
    seen(&mut scheduler, 2, job);
    train(&mut scheduler, 10, job, 2000.0, 20);
    let before = scheduler.state().job(job).unwrap().batching().unwrap().clone();
    let ignored = |scheduler: &Scheduler| scheduler.state().job(job).unwrap().learnt.progress.ignored;
    let counted = ignored(&scheduler);
    let wrong = [(f64::NAN, 1.0), (-1.0, 1.0), (1.0, -1.0), (f64::INFINITY, 1.0), (0.0, 0.0)];
    for noise in wrong {
        told(&mut scheduler, 300_000, job, None, Some(noise)).unwrap();
    }
    for size in [0, BatchRange::MOST + 1, u64::MAX] {
        told(&mut scheduler, 300_000, job, Some(size), None).unwrap();
    }
    assert_eq!(ignored(&scheduler), counted + 8);
    assert_eq!(scheduler.state().job(job).unwrap().batching(), Some(&before));
    // A report that will be refused, as of an old incarnation or seen before, changes nothing.
    let event = |incarnation, seq| Event::BatchReported {
        job,
        incarnation: Incarnation(incarnation),
        slot: (Role::Worker, 0),
        seq,
        batch: Some(99),
        noise: Some(GradientNoise { sqr: 1.0, var: 1e9 }),
    };
    let last = *scheduler.state().job(job).unwrap().learnt.reported.values().max().unwrap();
    for event in [event(0, last + 1), event(1, last), event(1, 0)] {
        scheduler.apply(Time(300_001), event).unwrap();
    }
    assert_eq!((ignored(&scheduler), scheduler.state().job(job).unwrap().batching()), (counted + 8, Some(&before)));
    scheduler.apply(Time(300_001), event(1, last + 1)).unwrap();
    assert_eq!(used(&scheduler), Some(99));
    // A job with a fixed batch has no use for it.
    let mut scheduler = cluster(plain("fifo"), &[gpus("a", 4)]);
    let fixed = submit(&mut scheduler, 0, ring("fixed", (4, 4, 4)));
    scheduler.decide(Time(1));
    told(&mut scheduler, 2, fixed, Some(64), Some((1.0, 1.0))).unwrap();
    assert!(batch(&scheduler, fixed).is_none() && scheduler.state().job(fixed).unwrap().batching().is_none());
}

#[test]
fn ever_new_batches_are_bounded() {
    let (mut scheduler, job) = started();
    for number in 1..=5000 {
        told(&mut scheduler, 10 + number, job, Some(number as u64), Some((1.0, 1e300))).unwrap();
        let of = Report {
            seq: number as u64,
            step: number as u64,
            steps_per_epoch: 1000,
            steps: 1,
            duration: Span(100),
            workers: 4,
            ..Report::default()
        };
        report(&mut scheduler, 10 + number, job, of).unwrap();
    }
    fit(&mut scheduler, 10_000);
    assert!(scheduler.state().job(job).unwrap().learnt.speeds.len() <= 64);
    assert!(batch(&scheduler, job).unwrap().size <= 4096);
}

#[test]
fn a_journal_keeps_what_is_known_of_batches() {
    let mut scheduler = cluster(plain("optimus"), &[gpus("a", 8)]);
    scheduler.start_journal();
    let job = submit(&mut scheduler, 0, free("job", (1, 8, 2)));
    scheduler.decide(Time(1));
    seen(&mut scheduler, 2, job);
    train(&mut scheduler, 10, job, 2000.0, 20);
    scheduler.snapshot();
    let known = scheduler.state().job(job).unwrap().clone();
    let frames = scheduler.drain_journal();
    let restored = Scheduler::restore(frames.iter().map(Vec::as_slice)).unwrap();
    let again = restored.state().job(job).unwrap();
    assert_eq!(again.batching(), known.batching());
    assert_eq!(again.learnt.fits.speed, known.learnt.fits.speed);
    assert!(again.batch().is_some() && again.learnt.fits.speed.as_ref().unwrap().goodput().is_some());
    // What follows the snapshot comes out the same from it.
    train(&mut scheduler, 400_000, job, 500.0, 20);
    scheduler.decide(Time(2_000_000));
    let all: Vec<Record> =
        frames.iter().chain(&scheduler.drain_journal()).map(|frame| Record::decode(frame).unwrap()).collect();
    let (same, different, broken) = verify(&all);
    assert!(same >= 2 && different == 0 && broken == 0, "{same} {different} {broken}");
    let last = all.iter().rposition(|record| matches!(record, Record::Snapshot(_))).unwrap();
    let (same, different, broken) = verify(&all[last..]);
    assert!(same >= 1 && different == 0 && broken == 0, "{same} {different} {broken}");
}

/// The fits of a job that has lost its slots are in a snapshot, too.
#[test]
fn a_snapshot_keeps_what_a_waiting_job_learnt() {
    let mut scheduler = cluster(plain("fifo"), &[gpus("a", 4)]);
    scheduler.start_journal();
    let job = submit(&mut scheduler, 0, free("job", (4, 4, 4)));
    scheduler.decide(Time(1));
    seen(&mut scheduler, 2, job);
    train(&mut scheduler, 10, job, 2000.0, 20);
    for number in 0..20 {
        told(&mut scheduler, 300_000 + number, job, Some(64), Some((1.0, 50_000.0))).unwrap();
    }
    scheduler.apply(Time(300_100), Event::JobHeld { job, held: true }).unwrap();
    let stopped = Event::Observed {
        job,
        incarnation: Incarnation(1),
        slots: Vec::new(),
        phase: trainmaster_core::Phase::Stopped,
    };
    scheduler.apply(Time(300_200), stopped).unwrap();
    assert!(scheduler.state().job(job).unwrap().issued.allocation.is_none());
    fit(&mut scheduler, 300_300);
    scheduler.snapshot();
    let known = scheduler.state().job(job).unwrap().clone();
    let noise = known.learnt.fits.speed.as_ref().unwrap().goodput().unwrap().noise().at(64.0);
    assert!(noise > 20_000.0, "{noise}");
    let frames = scheduler.drain_journal();
    let restored = Scheduler::restore(frames.iter().map(Vec::as_slice)).unwrap();
    let again = restored.state().job(job).unwrap();
    assert_eq!((again.batching(), &again.learnt.fits.speed), (known.batching(), &known.learnt.fits.speed));
    let all: Vec<Record> = frames.iter().map(|frame| Record::decode(frame).unwrap()).collect();
    let (_, different, broken) = verify(&all);
    assert_eq!((different, broken), (0, 0));
}

#[test]
fn a_refused_change_leaves_the_batch_of_the_running_shape() {
    let mut scheduler = cluster(plain("drf"), &[gpus("a", 3)]);
    let job = submit(&mut scheduler, 0, free("job", (1, 8, 1)));
    scheduler.decide(Time(1));
    seen(&mut scheduler, 2, job);
    let before = batch(&scheduler, job);
    assert_eq!((issued(&scheduler, job), before), (3, Some(Batch { size: 66, local: 22, passes: 1 })));
    crate::common::build::set(&mut scheduler, 1_000_000, gpus("b", 5));
    scheduler.decide(Time(2_000_000));
    assert_eq!((issued(&scheduler, job), batch(&scheduler, job).unwrap().local), (8, 8));
    let decision = scheduler.state().job(job).unwrap().issued.decision;
    let result = Enactment::Refused { cause: "no".into(), retry_after: None };
    scheduler.apply(Time(2_000_001), Event::Enacted { decision, job, result }).unwrap();
    assert_eq!((issued(&scheduler, job), batch(&scheduler, job)), (3, before));
}

/// Each change sends the plan and the assignment of all slots.
#[test]
fn a_program_cannot_make_its_batch_change_all_the_time() {
    let (mut scheduler, job) = started();
    let (mut changes, mut last, mut fits) = (0, batch(&scheduler, job), 0);
    for number in 1..=6000 {
        let (at, var) = (100 * number, if number / 200 % 2 == 0 { 1.0 } else { 1e9 });
        told(&mut scheduler, at, job, Some(64), Some((1.0, var))).unwrap();
        let of = Report {
            seq: at as u64 + 1,
            step: number as u64,
            steps: 1,
            duration: Span(100),
            workers: 4,
            ..Report::default()
        };
        report(&mut scheduler, at, job, of).unwrap();
        fits += u32::from(scheduler.has_news());
        fit(&mut scheduler, at);
        changes += u32::from(batch(&scheduler, job) != last);
        last = batch(&scheduler, job);
    }
    // Ten minutes.
    assert!((2..=11).contains(&changes), "{changes}");
    assert!(fits <= 3000, "{fits}");
}

#[test]
fn every_engine_runs_jobs_that_choose_their_batch() {
    for entry in engines::REGISTRY {
        let mut scheduler = cluster(plain(entry.name), &[gpus("a", 4), gpus("b", 4)]);
        let event = |name: &str| Event::JobSubmitted {
            spec: Box::new(free(name, (1, 6, 3))),
            external: None,
            token_hash: None,
        };
        if let Err(refused) = scheduler.apply(Time(0), event("one")) {
            // Its engine dispatches data chunks, which have fixed batches.
            assert!(refused.to_string().contains("dataset"), "{}: {refused}", entry.name);
            continue;
        }
        scheduler.apply(Time(0), event("two")).unwrap();
        let jobs = ["one", "two"].map(|name| scheduler.state().find_job(name).unwrap().id);
        for round in 1..5 {
            let at = round * 3_600_000;
            scheduler.decide(Time(at));
            for (number, (job, runs)) in (0..).zip(jobs.iter().zip(runs(&scheduler, &jobs))) {
                if !runs {
                    continue;
                }
                let at = at + 200_000 * number;
                seen(&mut scheduler, at + 1, *job);
                let given = batch(&scheduler, *job).unwrap_or_else(|| panic!("{}", entry.name));
                let workers = u64::from(issued(&scheduler, *job));
                assert_eq!(given.size, given.local * u64::from(given.passes) * workers, "{}", entry.name);
                train(&mut scheduler, at + 10, *job, 3000.0, 10);
            }
        }
        assert!(runs(&scheduler, &jobs).contains(&true), "{}", entry.name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The choice of the batch needs no search: its goodput is that of the best of many batches.
    #[test]
    fn the_best_batch_is_found_on_any_curve(
        theta in [-4.0..1.0_f64, -4.0..1.0, -4.0..2.0, -5.0..0.0],
        cross in 0.0..=2.0_f64,
        noise in -2.0..8.0_f64,
        most in 0.0..5.0_f64,
        workers in 1_u32..100,
    ) {
        let [example, step, ring, worker] = theta.map(|log| libm::pow(10.0, log));
        let theta = [example, step, ring, worker, 0.0];
        let max = 1000 + (64.0 * libm::pow(10.0, most)) as u64;
        let range = BatchRange { submitted: 100, min: 100, max, local: BatchRange::MOST, group: 1 };
        let noise = 100.0 * libm::pow(10.0, noise);
        let at = |size: f64| {
            let curve = SpeedCurve::overlapping(SpeedModel::AllReduce { batch: size }, &theta, cross);
            curve.speed(0, workers) * gain(noise, 100.0, size)
        };
        let curve = SpeedCurve::overlapping(SpeedModel::AllReduce { batch: 100.0 }, &theta, cross);
        let found = Goodput::new(range, NoiseCurve::constant(noise)).speed(&curve, 0, workers);
        let sizes = (0..=400).map(|part| 100.0 * libm::pow(max as f64 / 100.0, f64::from(part) / 400.0));
        let best = sizes.map(at).fold(0.0, f64::max);
        prop_assert!(found > 0.997 * best && found < 1.003 * best, "{} of {}", found, best);
    }

    /// If the noise differs by batch, its goodput is within a thirtieth of that.
    #[test]
    fn the_best_batch_is_found_by_noise_that_grows_with_it(
        theta in [-4.0..1.0_f64, -4.0..1.0, -4.0..2.0, -5.0..0.0],
        noise in 0.0..5.0_f64,
        power in -0.9..0.9_f64,
        workers in 1_u32..100,
    ) {
        let [example, step, ring, worker] = theta.map(|log| libm::pow(10.0, log));
        let range = BatchRange { submitted: 128, min: 128, max: 128 << 7, local: BatchRange::MOST, group: 1 };
        let mut history = NoiseHistory::default();
        for octave in 0..=7 {
            let noise = 1000.0 * libm::pow(10.0, noise) * libm::exp2(power * f64::from(octave));
            (0..2).for_each(|_| history.report(128 << octave, 1e6, noise));
        }
        let curve = history.at(1e6, (range.min, range.max)).unwrap();
        let theta = [example, step, ring, worker, 0.0];
        let at = |size: f64| {
            let speed = SpeedCurve::new(SpeedModel::AllReduce { batch: size }, &theta).speed(0, workers);
            speed * gain(curve.at(size), 128.0, size)
        };
        let speeds = SpeedCurve::new(SpeedModel::AllReduce { batch: 128.0 }, &theta);
        let found = Goodput::new(range, curve.clone()).speed(&speeds, 0, workers);
        let best = (0..=400).map(|part| at(128.0 * libm::exp2(7.0 * f64::from(part) / 400.0))).fold(0.0, f64::max);
        prop_assert!(found > 0.97 * best && found < 1.003 * best, "{} of {}", found, best);
    }

    /// Whatever programs say, a batch is within its range and is what its workers can train with.
    #[test]
    fn batches_stay_within_their_range(
        least in 1_u64..500,
        times in 1_u64..100,
        local in 1_u64..300,
        workers in 1_u32..8,
        reports in vec((1_u64..100_000, -1.0..1e6_f64, -1.0..1e9_f64, 1_u32..50), 1..30),
    ) {
        let mut scheduler = cluster(plain("drf"), &[gpus("a", 8)]);
        let (least, most) = (least.max(8), least.max(8) * times);
        let mut spec = JobSpec { batch: least, examples: least * 100, ..ring("job", (1, workers, 1)) };
        for (label, value) in BatchRange::LABELS.into_iter().zip([least, most, local]) {
            spec.labels.insert(label.into(), value.to_string());
        }
        let job = submit(&mut scheduler, 0, spec);
        scheduler.decide(Time(1));
        seen(&mut scheduler, 2, job);
        for (number, (size, sqr, var, steps)) in (1_i64..).zip(reports) {
            told(&mut scheduler, 1000 * number, job, Some(size), Some((sqr, var))).unwrap();
            let of = Report {
                seq: number as u64,
                step: number as u64,
                steps,
                duration: Span(1000),
                workers: shape(&scheduler, job).workers,
                ..Report::default()
            };
            report(&mut scheduler, 1000 * number, job, of).unwrap();
            fit(&mut scheduler, 1000 * number);
            let given = batch(&scheduler, job).unwrap();
            let workers = u64::from(shape(&scheduler, job).workers);
            prop_assert_eq!(given.size, given.local * u64::from(given.passes) * workers);
            prop_assert!(given.local <= local && given.size <= most, "{:?}", given);
            // Below the range by less than one pass of all replicas, if parts of that size miss it.
            prop_assert!(given.size >= least || given.size + workers * local > most, "{:?}", given);
        }
    }
}

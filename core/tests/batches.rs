//! Jobs whose batch the scheduler may choose.

mod common;

use common::{
    build::{cluster, gpus, plain, report, ring, runs, seen, shape, submit},
    journal::verify,
};
use proptest::{collection::vec, prelude::*};
use trainmaster_core::{
    Event, EventError, Incarnation, JobId, JobSpec, Report, Role, Scheduler, Span, Time,
    batch::{Batch, BatchRange, GradientNoise, gain},
    engines,
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
    scheduler.apply(Time(at), Event::BatchReported { job, incarnation, slot: (Role::Worker, 0), batch, noise })
}

fn fit(scheduler: &mut Scheduler, at: i64) {
    if let Some(ticket) = scheduler.prepare_fits(Time(at)) {
        scheduler.commit_fits(Time(at), ticket.run()).unwrap();
    }
}

/// A training program with 10 ms an example and 0.1 s a step, whose gradients have a noise scale of `noise` examples.
/// It reports every 10 s for a while and follows the batch that it is told. Returns its progress.
fn train(scheduler: &mut Scheduler, from: i64, job: JobId, noise: f64, reports: u64) -> f64 {
    let mut progress = scheduler.state().job(job).unwrap().learnt.progress.step as f64;
    for number in 1..=reports {
        let at = from + 10_000 * number as i64;
        let size = batch(scheduler, job).map_or(64, |batch| batch.size);
        let workers = issued(scheduler, job);
        let steps = libm::round(10.0 / (0.01 * size as f64 / f64::from(workers) + 0.1));
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
    let text = texts.iter().find(|text| text.contains("batch")).unwrap_or_else(|| panic!("{texts:#?}"));
    for part in [&chosen.size.to_string(), "64 to 4096", "2000 examples", "%"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn quiet_gradients_keep_the_smallest_batch() {
    let mut scheduler = cluster(plain("fifo"), &[gpus("a", 4)]);
    let job = submit(&mut scheduler, 0, free("job", (4, 4, 4)));
    scheduler.decide(Time(1));
    seen(&mut scheduler, 2, job);
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
        let mut scheduler = cluster(plain("fifo"), &[gpus("a", 4)]);
        let job = submit(&mut scheduler, 0, free("job", (4, 4, 4)));
        scheduler.decide(Time(1));
        seen(&mut scheduler, 2, job);
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
    assert!(told(&mut scheduler, 0, job, Some(64), None).is_err(), "it has no slots");
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
    // Of an old incarnation, and of another slot: the report that follows is checked for that.
    let event = |incarnation, index| Event::BatchReported {
        job,
        incarnation: Incarnation(incarnation),
        slot: (Role::Worker, index),
        batch: Some(64),
        noise: None,
    };
    assert!(scheduler.apply(Time(300_001), event(0, 0)).is_err());
    assert!(scheduler.apply(Time(300_001), event(1, 3)).is_ok());
    // A job with a fixed batch has no use for it.
    let mut scheduler = cluster(plain("fifo"), &[gpus("a", 4)]);
    let fixed = submit(&mut scheduler, 0, ring("fixed", (4, 4, 4)));
    scheduler.decide(Time(1));
    told(&mut scheduler, 2, fixed, Some(64), Some((1.0, 1.0))).unwrap();
    assert!(batch(&scheduler, fixed).is_none() && scheduler.state().job(fixed).unwrap().batching().is_none());
}

#[test]
fn ever_new_batches_are_bounded() {
    let mut scheduler = cluster(plain("fifo"), &[gpus("a", 4)]);
    let job = submit(&mut scheduler, 0, free("job", (4, 4, 4)));
    scheduler.decide(Time(1));
    seen(&mut scheduler, 2, job);
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
            prop_assert!(given.local <= local && given.size <= most && given.size + workers > least, "{:?}", given);
        }
    }
}

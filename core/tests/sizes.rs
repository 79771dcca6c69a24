//! Jobs that run only with some numbers of workers.

use crate::common::{
    build::{cluster, gpus, plain, plain_with, report, ring, runs, seen, shape, submit},
    config,
    journal::verify,
};
use proptest::{collection::vec, prelude::*, sample::select};
use trainmaster_core::{
    Event, JobSpec, Report, Scheduler, Span, Time, engines, job::ProfiledSpeed, journal::Record, replay::Replay,
    settings::Parameter,
};

fn sized(mut spec: JobSpec, sizes: &str) -> JobSpec {
    spec.labels.insert("worker.sizes".into(), sizes.into());
    spec.validate().unwrap();
    spec
}

/// The job with speeds that were measured before.
fn measured(spec: JobSpec, speeds: &[(u32, f64)]) -> JobSpec {
    let profile = speeds.iter().map(|&(workers, speed)| ProfiledSpeed { servers: 0, workers, speed }).collect();
    JobSpec { profile, ..spec }
}

fn workers(scheduler: &Scheduler, name: &str) -> u32 {
    shape(scheduler, scheduler.state().find_job(name).unwrap().id).workers
}

#[test]
fn every_engine_gives_only_allowed_numbers() {
    for entry in engines::REGISTRY {
        let mut scheduler = cluster(plain(entry.name), &[gpus("a", 4), gpus("b", 4), gpus("c", 3)]);
        let job = |name: &str| measured(sized(ring(name, (2, 9, 4)), "multiples of 4"), &[(4, 4.0), (8, 7.5)]);
        let event = Event::JobSubmitted { spec: Box::new(job("zero")), external: None, token_hash: None };
        if let Err(refused) = scheduler.apply(Time(0), event) {
            // Its engine dispatches data chunks.
            assert!(refused.to_string().contains("dataset"), "{}: {refused}", entry.name);
            continue;
        }
        let mut jobs = vec![scheduler.state().find_job("zero").unwrap().id];
        jobs.extend(["one", "two"].map(|name| submit(&mut scheduler, 1, job(name))));
        for round in 1..4 {
            let at = round * 3_600_000;
            scheduler.decide(Time(at));
            for (job, runs) in jobs.iter().zip(runs(&scheduler, &jobs)) {
                let given = shape(&scheduler, *job).workers;
                assert!(given.is_multiple_of(4) && given <= 8, "{}: {given}", entry.name);
                if runs {
                    seen(&mut scheduler, at + 1, *job);
                }
            }
        }
        assert!(runs(&scheduler, &jobs).contains(&true), "{}", entry.name);
    }
}

#[test]
fn jobs_shrink_and_grow_from_one_size_to_another() {
    for engine in ["drf", "optimus", "tetris"] {
        let mut scheduler = cluster(plain(engine), &[gpus("a", 8)]);
        let job = |name: &str| {
            measured(sized(ring(name, (1, 8, 1)), "powers of 2"), &[(1, 1.0), (2, 2.0), (4, 4.0), (8, 8.0)])
        };
        let first = submit(&mut scheduler, 0, job("first"));
        scheduler.decide(Time(1));
        assert_eq!(workers(&scheduler, "first"), 8, "{engine}");
        seen(&mut scheduler, 2, first);
        submit(&mut scheduler, 3, job("second"));
        scheduler.decide(Time(1_000_000));
        assert_eq!((workers(&scheduler, "first"), workers(&scheduler, "second")), (4, 4), "{engine}");
        submit(&mut scheduler, 1_000_001, job("third"));
        scheduler.decide(Time(2_000_000));
        let all = ["first", "second", "third"].map(|name| workers(&scheduler, name));
        assert_eq!(all.iter().sum::<u32>(), 8, "{engine}: {all:?}");
        assert!(all.iter().all(|workers| [2, 4].contains(workers)), "{engine}: {all:?}");
    }
}

#[test]
fn optimus_weighs_a_whole_group() {
    // The next group of four doubles the speed of one job and adds a tenth to that of the other, whose workers would be
    // the cheaper ones one by one.
    let settings = plain_with("optimus", &[("explore", Parameter::Flag(false))]);
    let mut scheduler = cluster(settings, &[gpus("a", 12)]);
    let flat = measured(ring("flat", (1, 8, 1)), &[(1, 1.0), (2, 1.05), (4, 1.08), (8, 1.1)]);
    let steep = measured(sized(ring("steep", (1, 8, 4)), "multiples of 4"), &[(4, 4.0), (8, 8.0)]);
    submit(&mut scheduler, 0, flat);
    submit(&mut scheduler, 1, steep);
    scheduler.decide(Time(2));
    assert_eq!(workers(&scheduler, "steep"), 8);
    // Three GPUs are left, where no second group fits.
    let mut scheduler = cluster(plain("optimus"), &[gpus("a", 7)]);
    submit(&mut scheduler, 0, measured(sized(ring("steep", (1, 8, 4)), "multiples of 4"), &[(4, 4.0), (8, 8.0)]));
    scheduler.decide(Time(1));
    assert_eq!(workers(&scheduler, "steep"), 4);
}

#[test]
fn optimus_passes_sizes_that_are_slower() {
    // GPT-2: on 5 and 6 GPUs only slow plans run.
    let speeds = [(1, 0.28), (2, 0.55), (4, 1.04), (5, 0.96), (6, 0.32), (8, 1.89)];
    let gpt2 = || measured(sized(ring("gpt2", (1, 8, 1)), "1,2,4,5,6,8"), &speeds);
    for (free, wanted) in [(8, 8), (7, 4), (3, 2)] {
        let mut scheduler = cluster(plain("optimus"), &[gpus("a", free)]);
        submit(&mut scheduler, 0, gpt2());
        scheduler.decide(Time(1));
        assert_eq!(workers(&scheduler, "gpt2"), wanted, "{free} are free");
    }
    // Where eight have no place, it isn't six or five: the job must be on one server.
    let mut scheduler = cluster(plain("optimus"), &[gpus("a", 7), gpus("b", 6)]);
    let mut near = gpt2();
    near.labels.insert("topology.require".into(), "server".into());
    submit(&mut scheduler, 0, near);
    scheduler.decide(Time(1));
    assert_eq!(workers(&scheduler, "gpt2"), 4);
}

/// LLaMA-7B on 8 GPUs needs offloading, and on 16 it doesn't.
#[test]
fn measured_speeds_that_jump_are_known_exactly() {
    let mut scheduler = cluster(plain("optimus"), &[gpus("a", 8), gpus("b", 8), gpus("c", 8)]);
    scheduler.start_journal();
    let speeds = [(4, 0.06), (8, 0.1), (16, 0.88)];
    let known = submit(&mut scheduler, 0, measured(sized(ring("known", (4, 16, 8)), "4,8,16"), &speeds));
    scheduler.decide(Time(2));
    let predicted = |scheduler: &Scheduler, name: &str, workers: u32| {
        let state = scheduler.state();
        state.find_job(name).unwrap().learnt.fits.speed.as_ref().unwrap().speed(0, workers)
    };
    for (workers, speed) in speeds {
        let predicted = predicted(&scheduler, "known", workers);
        assert!((predicted / speed - 1.0).abs() < 1e-9, "{predicted} with {workers}");
    }
    assert_eq!(workers(&scheduler, "known"), 16);
    // It reports a lower speed, which doesn't contradict what was measured with fewer workers, and which the model's
    // other jobs learn.
    seen(&mut scheduler, 3, known);
    for seq in [1, 2] {
        let steps = Report { seq, steps: 8, duration: Span::seconds(10), workers: 16, ..Report::default() };
        report(&mut scheduler, 10_000, known, steps).unwrap();
    }
    let other = JobSpec { model: "known".into(), ..sized(ring("other", (4, 16, 4)), "4,8,16") };
    submit(&mut scheduler, 10_001, other);
    scheduler.decide(Time(700_000));
    assert!((predicted(&scheduler, "other", 16) / 0.8 - 1.0).abs() < 1e-9);
    assert!((predicted(&scheduler, "known", 8) / 0.1 - 1.0).abs() < 1e-9);
    assert_eq!((workers(&scheduler, "known"), workers(&scheduler, "other")), (16, 8));
    // The speeds survive a snapshot, and decisions from there are the same.
    assert!(scheduler.snapshot());
    let records: Vec<Record> = scheduler.drain_journal().iter().map(|frame| Record::decode(frame).unwrap()).collect();
    assert_eq!(verify(&records), (2, 0, 0));
    let Some(Record::Snapshot(saved)) = records.last() else { panic!("the last is a snapshot") };
    let restored = Replay::new((**saved).clone()).unwrap();
    let fits = |scheduler: &Scheduler| scheduler.state().job(known).unwrap().learnt.fits.clone();
    assert_eq!(fits(restored.scheduler()), fits(&scheduler));
    scheduler.apply(Time(700_001), Event::ServersLeft { names: vec!["c".into()] }).unwrap();
    scheduler.decide(Time(1_400_000));
    let later = scheduler.drain_journal();
    let later = later.iter().map(|frame| Record::decode(frame).unwrap());
    let from_there: Vec<Record> = records.last().cloned().into_iter().chain(later).collect();
    assert_eq!(verify(&from_there), (1, 0, 0));
}

#[test]
fn sizes_are_explained() {
    let mut scheduler = cluster(plain("fifo"), &[gpus("a", 8)]);
    let mut spec = ring("cut", (1, 15, 4));
    spec.labels.insert("parallel.tp".into(), "2".into());
    spec.labels.insert("parallel.pp".into(), "2".into());
    spec.validate().unwrap();
    assert_eq!(spec.environment().iter().filter(|(name, _)| name.ends_with("P")).count(), 3);
    let cut = submit(&mut scheduler, 0, spec);
    scheduler.decide(Time(1));
    let explained = scheduler.explain(Time(2), cut).unwrap();
    let texts: Vec<&str> = explained.findings.iter().map(|finding| finding.text.as_str()).collect();
    let wanted = "may have 4w+0p to 12w+0p, with multiples of 4 workers; requested 4w+0p";
    assert!(texts.contains(&wanted), "{texts:#?}");
}

const SIZES: [&str; 4] = ["multiples of 2", "multiples of 3", "powers of 2", "1,5,6"];

proptest! {
    #![proptest_config(config(64))]

    /// No number of workers that an engine gives is another than what a plain search through the numbers allows, and
    /// what it could give and doesn't is less than the next size of any job.
    #[test]
    fn drf_gives_what_fits(
        jobs in vec((1..4_u32, 4..16_u32, select(SIZES.to_vec())), 1..5),
        count in 6..24_usize,
    ) {
        let mut scheduler = cluster(plain("drf"), &[gpus("a", count)]);
        let mut ids = Vec::new();
        for (at, (min, max, sizes)) in jobs.iter().enumerate() {
            let mut spec = ring(&format!("j{at}"), (*min, *max, *min));
            spec.labels.insert("worker.sizes".into(), (*sizes).into());
            spec.count_workers(Some(*max), None);
            if spec.validate().is_err() {
                let none = (*min..=*max).all(|workers| !spec.sizes().has(workers));
                prop_assert!(none, "{:?}", spec.validate());
                continue;
            }
            ids.push((submit(&mut scheduler, at as i64, spec), (*min, *max, *sizes)));
        }
        scheduler.decide(Time(1_000_000));
        let allowed = |sizes: &str, workers: u32| match sizes {
            "multiples of 2" => workers.is_multiple_of(2),
            "multiples of 3" => workers.is_multiple_of(3),
            "powers of 2" => workers.count_ones() == 1,
            _ => [1, 5, 6].contains(&workers),
        };
        let given: Vec<u32> = ids.iter().map(|(id, _)| shape(&scheduler, *id).workers).collect();
        let left = count as u32 - given.iter().sum::<u32>();
        for ((_, (min, max, sizes)), given) in ids.iter().zip(given) {
            prop_assert!(given == 0 || (given >= *min && given <= *max && allowed(sizes, given)), "{given} of {sizes}");
            let next = (given.max(min - 1) + 1..=*max).find(|next| allowed(sizes, *next));
            prop_assert!(next.is_none_or(|next| next - given > left), "{given} of {sizes} with {left} left");
        }
    }
}

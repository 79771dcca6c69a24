//! The straggler rule on step times of real jobs, which have spikes but no straggler, and on the same with one added.

#![allow(clippy::disallowed_macros)] // tests print what they measure

use std::collections::BTreeMap;

use crate::fit_data::{columns, files};
use proptest::prelude::*;
use trainmaster_core::fit::{StragglerOptions, StragglerSignal, StragglerWatch};

/// Step times of a job's workers, by time of observation.
fn jobs() -> Vec<Vec<Vec<(u32, f64)>>> {
    let read = |path| {
        let mut by_time: BTreeMap<u64, Vec<(u32, f64)>> = BTreeMap::new();
        for [worker, time, step] in columns(path, ["worker", "time", "batch_time_norm"]) {
            let row = (worker.parse().expect("a worker"), step.parse().expect("a number"));
            by_time.entry(time.parse().expect("a time")).or_default().push(row);
        }
        by_time.into_values().collect()
    };
    files("curves/stragglers", "job_").iter().map(read).collect()
}

fn alarms(job: &[Vec<(u32, f64)>], options: StragglerOptions) -> Vec<(usize, u32)> {
    let mut watch = StragglerWatch::new(StragglerSignal::Gap, options);
    job.iter().enumerate().flat_map(|(at, row)| watch.observe(row).into_iter().map(move |s| (at, s.worker))).collect()
}

#[test]
fn real_jobs_raise_no_false_alarm() {
    let (mut rows, mut single) = (0, 0);
    for job in jobs() {
        assert!(alarms(&job, StragglerOptions::default()).is_empty());
        single += alarms(&job, StragglerOptions { patience: 1, ..StragglerOptions::default() }).len();
        rows += job.iter().map(Vec::len).sum::<usize>();
    }
    println!("{rows} step times: {single} beyond twice the median, none three times in a row");
    assert!(single <= 3, "{single}");
}

#[test]
fn a_slowed_worker_is_found_after_three_observations() {
    for mut job in jobs() {
        let from = job.len() / 2;
        let slow = job[from][2].0;
        for row in &mut job[from..] {
            row.iter_mut().filter(|(worker, _)| *worker == slow).for_each(|(_, step)| *step *= 2.6);
        }
        let found = alarms(&job, StragglerOptions::default());
        assert_eq!(found.first(), Some(&(from + 2, slow)));
        assert!(found.iter().all(|(_, worker)| *worker == slow));
    }
}

#[test]
fn speeds_and_gaps_are_two_views_of_the_same() {
    let speeds = [(0, 10.0), (1, 9.0), (2, 4.0), (3, 11.0), (4, 10.0)];
    let gaps = speeds.map(|(worker, speed)| (worker, 1.0 / speed));
    let mut by_speed = StragglerWatch::new(StragglerSignal::Speed, StragglerOptions::default());
    let mut by_gap = StragglerWatch::new(StragglerSignal::Gap, StragglerOptions::default());
    for round in 0..5 {
        let [a, b] = [by_speed.observe(&speeds), by_gap.observe(&gaps)];
        assert_eq!(a.len(), b.len());
        assert_eq!(a.first().map(|s| (s.worker, s.observations)), (round >= 2).then_some((2, round + 1)));
    }
}

#[test]
fn a_good_observation_or_a_new_worker_resets_the_count() {
    let mut watch = StragglerWatch::new(StragglerSignal::Speed, StragglerOptions::default());
    let slow = [(0, 1.0), (1, 1.0), (2, 0.3)];
    let fine = [(0, 1.0), (1, 1.0), (2, 1.0)];
    for row in [&slow, &slow, &fine, &slow, &slow] {
        assert!(watch.observe(row).is_empty());
    }
    watch.forget(2);
    assert!(watch.observe(&slow).is_empty());
    // A round without the worker's number doesn't change its count.
    assert!(watch.observe(&slow).is_empty());
    assert!(watch.observe(&[(0, 1.0), (1, 1.0), (3, 1.0)]).is_empty());
    assert_eq!(watch.observe(&slow)[0].observations, 3);
}

#[test]
fn too_few_workers_or_bad_numbers_find_no_straggler() {
    let mut watch = StragglerWatch::new(StragglerSignal::Speed, StragglerOptions { patience: 1, ..Default::default() });
    assert!(watch.observe(&[(0, 1.0), (1, 0.1)]).is_empty());
    assert!(watch.observe(&[(0, 1.0), (1, 0.1), (2, f64::NAN), (3, 0.0), (4, -1.0)]).is_empty());
    assert_eq!(watch.ignored(), 3);
    assert!(watch.observe(&[]).is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The order of workers doesn't matter, and a majority is never slow.
    #[test]
    fn order_does_not_matter(speeds in prop::collection::vec(0.01_f64..100.0, 3..20), turn in 0_usize..20) {
        let rows: Vec<(u32, f64)> = (0..).zip(speeds).collect();
        let mut turned = rows.clone();
        turned.rotate_left(turn % rows.len());
        let options = StragglerOptions { patience: 1, ..StragglerOptions::default() };
        let [a, b] = [&rows, &turned].map(|r| StragglerWatch::new(StragglerSignal::Speed, options).observe(r));
        prop_assert_eq!(&a, &b);
        prop_assert!(2 * a.len() <= rows.len());
    }
}

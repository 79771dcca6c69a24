//! Reported accuracies of real jobs: the stops of OptStop, and the calibration of its confidence.

#![allow(clippy::disallowed_macros)] // tests print what they measure

use std::collections::BTreeMap;

use crate::fit_data::{columns, files, mean, shared};
use trainmaster_core::fit::{AccuracyHistory, Forecast, OptStop, Stop, learning_curve::Options};

/// (epoch from 0, accuracy), one run each.
type Curve = Vec<(u64, f64)>;

/// Runs of one set. Those of MLPerf end when they reach their target.
fn measured(set: &str) -> Vec<Curve> {
    let number = |text: &str| text.parse::<f64>().expect("a number");
    let mut curves: Vec<Curve> = match set {
        "mlperf" => {
            let Some(path) = shared("curves/mlperf_accuracy.csv") else { return Vec::new() };
            let mut runs: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
            for [run, benchmark, epoch, accuracy] in columns(&path, ["run", "benchmark", "epoch", "eval_accuracy"]) {
                // The others have three to five points.
                if benchmark == "resnet" {
                    runs.entry(run).or_default().push((number(&epoch), number(&accuracy)));
                }
            }
            let from_0 = |mut run: Vec<(f64, f64)>| {
                run.sort_by(|a, b| a.0.total_cmp(&b.0));
                let first = run[0].0.min(0.0);
                run.into_iter().map(|(epoch, accuracy)| ((epoch - first) as u64, accuracy)).collect()
            };
            runs.into_values().map(from_0).collect()
        }
        _ => {
            let read = |path| -> Curve {
                let accuracy = |metric: f64| if set == "deepspeech2" { 1.0 - metric / 100.0 } else { metric };
                (0..)
                    .zip(columns(path, ["metric"]))
                    .map(|(epoch, [metric])| (epoch, accuracy(number(&metric))))
                    .collect()
            };
            files(&format!("curves/pollux/{set}"), "validation").iter().map(read).collect()
        }
    };
    // Some runs are recorded under several names.
    curves.sort_by(|a, b| a.partial_cmp(b).expect("numbers"));
    curves.dedup();
    curves
}

fn history(seen: &[(u64, f64)]) -> AccuracyHistory {
    let mut history = AccuracyHistory::default();
    seen.iter().for_each(|(epoch, accuracy)| history.push(*epoch, *epoch, *accuracy));
    history
}

/// Means over the runs of a set.
struct Score {
    /// Fraction of the epochs that it trained, and fraction that the best possible stop needs.
    stopped: f64,
    ideal: f64,
    /// Accuracy lost against the best of the whole run: mean and worst.
    lost: f64,
    worst: f64,
}

fn stops(curves: &[Curve], options: &Options, confidence: f64) -> Score {
    let (mut stopped, mut ideal, mut lost) = (Vec::new(), Vec::new(), Vec::new());
    for curve in curves {
        let epochs = curve.last().unwrap().0 + 1;
        let rule = OptStop { confidence, ..OptStop::new(epochs, None) };
        let best = |points: &[(u64, f64)]| points.iter().map(|point| point.1).fold(0.0, f64::max);
        let at = |points: usize| (curve[points - 1].0 + 1) as f64 / epochs as f64;
        let stop = (1..curve.len()).find(|seen| rule.decide(&history(&curve[..*seen]), options).is_some());
        let stop = stop.unwrap_or(curve.len());
        stopped.push(at(stop));
        lost.push(best(curve) - best(&curve[..stop]));
        let soonest = (1..=curve.len()).find(|seen| best(&curve[..*seen]) >= best(curve) - rule.tolerance).unwrap();
        ideal.push(at(soonest));
    }
    let worst = lost.iter().copied().fold(0.0, f64::max);
    Score { stopped: mean(&stopped), ideal: mean(&ideal), lost: mean(&lost), worst }
}

/// Stops with an ε of one percentage point. The paper's method (one smooth curve) saves most and loses most on runs
/// with a cut of the learning rate: their first plateau looks like the end.
#[test]
fn measured_runs_lose_little() {
    // (set, largest mean and worst loss, largest fraction of the epochs)
    let bars = [
        ("cifar10", 0.005, 0.01, 0.99),
        ("deepspeech2", 0.005, 0.01, 0.98),
        // Their learning rates are cut in steps, so that any of them may rise once more.
        ("imagenet", 0.001, 0.001, 1.0),
        ("mlperf", 0.001, 0.001, 1.0),
    ];
    for (set, lost_bar, worst_bar, stopped_bar) in bars {
        let curves = measured(set);
        if curves.is_empty() {
            return;
        }
        for (name, options, confidence) in [
            ("paper", Options::paper(), 0.9),
            ("segments", Options { segments: true, ..Options::paper() }, 0.9),
            ("jumps", Options { cautious: false, ..Options::default() }, 0.9),
            ("ours", Options::default(), 0.8),
            ("ours", Options::default(), 0.9),
        ] {
            let Score { stopped, ideal, lost, worst } = stops(&curves, &options, confidence);
            println!(
                "{set}, {} runs, {name} {confidence}: stopped at {stopped:.2} of the epochs (possible {ideal:.2}), \
                 lost {:.1} points, at worst {:.1}",
                curves.len(),
                100.0 * lost,
                100.0 * worst
            );
            if (name, confidence) == ("ours", 0.9) {
                assert!(lost < lost_bar && worst < worst_bar && stopped <= stopped_bar, "{set}");
            }
        }
    }
}

/// Curves of the simulated jobs' kind, 1 − 1/(rate·k/epochs + 1). With a rate of 2 the curve rises until the end, with
/// 40 it is flat in the second half. `noise`: the range of uniform errors.
fn inverse(rates: &[f64], noise: f64) -> Vec<Curve> {
    let mut random = 1_u64;
    let mut error = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        noise * ((random >> 40) as f64 / f64::from(1 << 24) - 0.5)
    };
    let mut curves = Vec::new();
    for rate in rates {
        for epochs in [20_u64, 35, 60, 100] {
            for best in [0.7, 0.83, 0.97] {
                let reached = |k: u64| 1.0 - 1.0 / (rate * k as f64 / epochs as f64 + 1.0);
                let accuracy = |k| best * reached(k) / reached(epochs);
                curves.push((0..epochs).map(|k| (k, (accuracy(k + 1) + error()).max(0.0))).collect());
            }
        }
    }
    curves
}

/// Runs whose learning rate is cut in three steps, the first in the first half. The later ones together leave at least
/// 60 % of the error, as the forecasts assume of what follows a jump: a larger gain is not foreseen.
fn steps() -> Vec<Curve> {
    let mut curves = Vec::new();
    for (first, second, third) in
        [(30, 60, 80), (30, 60, 90), (33, 66, 90), (25, 70, 90), (30, 85, 90), (30, 85, 95), (40, 75, 80), (45, 80, 95)]
    {
        for levels in [[0.45, 0.52, 0.53, 0.549], [0.5, 0.65, 0.7, 0.73], [0.8, 0.9, 0.92, 0.93]] {
            let accuracy = |k: u64| {
                let cuts = [0, first, second, third];
                let at = cuts.iter().rposition(|cut| *cut <= k).unwrap();
                let before = if at == 0 { 0.1 } else { levels[at - 1] };
                levels[at] - (levels[at] - before) * libm::exp(-((k - cuts[at] + 1) as f64) / 2.0)
            };
            curves.push((0..100).map(|k| (k, accuracy(k))).collect());
        }
    }
    curves
}

/// Fraction of the runs that count as out of reach of a target, and the mean fraction of their epochs at that moment.
/// `beyond`: distance of the target from the best accuracy of the run.
fn out_of_reach(curves: &[Curve], options: &Options, beyond: f64) -> (f64, f64) {
    let (mut stopped, mut at) = (Vec::new(), Vec::new());
    for curve in curves {
        let best = curve.iter().map(|point| point.1).fold(0.0, f64::max);
        let rule = OptStop::new(curve.last().unwrap().0 + 1, Some(best + beyond));
        let stop = (1..curve.len()).find_map(|seen| Some((seen, rule.decide(&history(&curve[..seen]), options)?)));
        let wrong = stop.filter(|(_, why)| matches!(why, Stop::OutOfReach { .. }));
        stopped.push(if wrong.is_some() { 1.0 } else { 0.0 });
        at.extend(wrong.map(|(seen, _)| seen as f64 / curve.len() as f64));
    }
    (mean(&stopped), if at.is_empty() { 1.0 } else { mean(&at) })
}

/// With a confidence of 90 %, at most a tenth of the jobs may be ended that would have reached their accuracy. Of the
/// simulated curves with noise this holds for targets below the noise of the best.
#[test]
fn a_target_within_reach_is_not_given_up() {
    for (set, curves) in [
        ("rises until the end", inverse(&[2.0, 3.0, 5.0], 0.0)),
        ("the same with noise", inverse(&[2.0, 3.0, 5.0], 0.02)),
        ("flat in the end", inverse(&[10.0, 20.0, 40.0], 0.0)),
        ("flat with noise", inverse(&[10.0, 20.0, 40.0], 0.02)),
        ("cut in steps", steps()),
        ("cifar10", measured("cifar10")),
        ("deepspeech2", measured("deepspeech2")),
        ("imagenet", measured("imagenet")),
        ("mlperf", measured("mlperf")),
    ] {
        if curves.is_empty() {
            return;
        }
        let ended = |options: &Options, beyond: f64| {
            let (ended, at) = out_of_reach(&curves, options, beyond);
            println!(
                "{set}, {} runs, {}, target {:+.0} points beyond the best: {:.0} % ended, after {at:.2} of the epochs",
                curves.len(),
                if options.cautious { "ours" } else { "without caution" },
                100.0 * beyond,
                100.0 * ended
            );
            ended
        };
        let careless = Options { cautious: false, ..Options::default() };
        for beyond in [0.05, 0.1] {
            ended(&careless, beyond);
            let found = ended(&Options::default(), beyond);
            assert!(found > 0.9 || beyond < 0.1 || set == "cut in steps", "{set}");
        }
        ended(&Options::paper(), -0.01);
        ended(&careless, -0.01);
        assert!(ended(&Options::default(), -0.01) < 0.1, "{set}");
        if !set.contains("noise") {
            assert!(ended(&Options::default(), 0.0) < 0.1, "{set}");
        }
    }
}

/// Whether events with a predicted probability of 80 % happen in eight of ten runs.
#[test]
fn its_confidence_is_calibrated() {
    let mut inside_all = Vec::new();
    for set in ["cifar10", "deepspeech2", "imagenet", "mlperf"] {
        let curves = measured(set);
        if curves.is_empty() {
            return;
        }
        for share in [0.3, 0.5, 0.7, 0.85] {
            let score = |options: &Options| {
                let (mut inside, mut errors) = (Vec::new(), Vec::new());
                for curve in &curves {
                    let (end, truth) = *curve.last().unwrap();
                    let seen = history(&curve[..(curve.len() as f64 * share) as usize]);
                    let Some(forecast) = Forecast::new(&seen, end, options) else { continue };
                    let (low, high) = (forecast.quantile(0.1), forecast.quantile(0.9));
                    inside.push(if (low..=high).contains(&truth) { 1.0 } else { 0.0 });
                    errors.push((forecast.mean() - truth).abs());
                }
                (inside, mean(&errors))
            };
            let ((paper, paper_error), (ours, error)) = (score(&Options::paper()), score(&Options::default()));
            println!(
                "{set} at {share}: {} runs; inside 80 %: {:.0} % (paper {:.0} %), error {:.1} points ({:.1})",
                ours.len(),
                100.0 * mean(&ours),
                100.0 * mean(&paper),
                100.0 * error,
                100.0 * paper_error
            );
            if share >= 0.5 {
                inside_all.push(mean(&ours));
            }
        }
    }
    let inside = mean(&inside_all);
    println!("inside from half of the run on: {:.0} %", 100.0 * inside);
    assert!((0.7..=1.0).contains(&inside));
}

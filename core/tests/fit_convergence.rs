//! Loss curves: measured ones, synthetic ones with a known truth, and degenerate ones.

#![allow(clippy::disallowed_macros)] // tests print what they measure

use std::path::PathBuf;

use crate::fit_data::{Random, columns, files, mean};
use proptest::prelude::*;
use trainmaster_core::fit::convergence::MAX_POINTS;
use trainmaster_core::fit::{Convergence, ConvergenceOptions, Family, FitError, LossFit, LossHistory};

const PATIENCE: u32 = 3;

fn history(losses: &[f64]) -> LossHistory {
    let mut history = LossHistory::default();
    for (epoch, loss) in (0..).zip(losses) {
        history.push(10 * (epoch + 1), epoch, *loss);
    }
    history
}

fn fit(losses: &[f64], options: &ConvergenceOptions) -> LossFit {
    Convergence::fit(&history(losses), options).expect("a fit")
}

/// The epoch at which a whole curve meets the rule.
fn truth(losses: &[f64], delta: f64) -> Option<usize> {
    let mut run = 0;
    (1..losses.len()).find(|&e| {
        run = if losses[e - 1] - losses[e] < delta * losses[0] { run + 1 } else { 0 };
        run == PATIENCE
    })
}

/// Measured curves that behave like a loss: an error rate, a converted accuracy, or a validation loss.
fn measured(set: &str) -> Vec<Vec<f64>> {
    let number = |text: &str| text.parse::<f64>().expect("a number");
    let read = |path: &PathBuf| -> Vec<f64> {
        match set {
            "nanogpt" => columns(path, ["val_loss"]).iter().map(|[l]| number(l)).collect(),
            "deepspeech2" => columns(path, ["metric"]).iter().map(|[m]| number(m)).collect(),
            _ => columns(path, ["metric"]).iter().map(|[m]| 1.0 - number(m)).collect(),
        }
    };
    let (folder, prefix) =
        if set == "nanogpt" { ("curves/nanogpt".into(), "") } else { (format!("curves/pollux/{set}"), "validation") };
    let mut curves: Vec<Vec<f64>> = files(&folder, prefix).iter().map(read).collect();
    // Some runs are recorded under several names.
    curves.sort_by(|a, b| a.partial_cmp(b).expect("numbers"));
    curves.dedup();
    curves
}

struct Score {
    /// Mean of |predicted − true|/true convergence epoch.
    epochs: f64,
    /// Fraction of true epochs within [low, high].
    inside: f64,
    /// Mean of |predicted − true|/true loss at the end of the run.
    end: f64,
    cases: usize,
}

/// Predictions from the first `share` of the epochs to convergence (δ from 0.5 % to 5 %), or of the whole run for
/// `end`.
fn score(curves: &[Vec<f64>], share: f64, options: &ConvergenceOptions) -> Score {
    let (mut epochs, mut inside, mut end) = (Vec::new(), Vec::new(), Vec::new());
    for curve in curves {
        for delta in [0.005, 0.01, 0.02, 0.03, 0.05] {
            // Half of less than 8 epochs is too short for three parameters.
            let Some(at) = truth(curve, delta).filter(|at| *at >= 8) else { continue };
            let seen = ((at + 1) as f64 * share) as usize;
            let p = fit(&curve[..seen], options).converges(delta, PATIENCE, 10_000, seen as u64 - 1);
            epochs.push((p.epochs as f64 / at as f64 - 1.0).abs());
            inside.push(if (p.low..=p.high).contains(&(at as u64)) { 1.0 } else { 0.0 });
        }
        let seen = (curve.len() as f64 * share) as usize;
        let last = mean(&curve[curve.len() - 3..]);
        end.push((fit(&curve[..seen], options).loss_at(curve.len() as f64 - 2.0) / last - 1.0).abs());
    }
    Score { epochs: mean(&epochs), inside: mean(&inside), end: mean(&end), cases: epochs.len() }
}

/// Measured errors at half and at three quarters of the epochs, with bars somewhat above them. The goal of 10 % is met
/// for smooth losses (nanogpt at three quarters; the synthetic jobs below). On noisy validation metrics the rule itself
/// is random: three flat epochs in a row occur by chance. imagenet's learning rate is cut after half of its run, and
/// earlier losses don't show that. After the cut, the new segment predicts the end within 2 %.
#[test]
fn measured_curves() {
    // (set, share, bar for epochs, smallest fraction inside the interval, bar for the loss at the end)
    let bars = [
        ("deepspeech2", 0.50, 0.25, 0.7, 0.22),
        ("deepspeech2", 0.75, 0.18, 0.8, 0.03),
        ("cifar10", 0.50, 0.28, 0.8, 0.22),
        ("cifar10", 0.75, 0.25, 0.8, 0.10),
        ("imagenet", 0.50, 0.32, 0.65, 0.28),
        ("imagenet", 0.75, 0.16, 0.8, 0.03),
        ("nanogpt", 0.50, 0.16, 0.8, 0.07),
        ("nanogpt", 0.75, 0.06, 0.8, 0.055),
    ];
    let mut all_inside = Vec::new();
    for (set, share, epochs_bar, inside_bar, end_bar) in bars {
        let curves = measured(set);
        if curves.is_empty() {
            return;
        }
        let paper = score(&curves, share, &ConvergenceOptions::paper());
        let ours = score(&curves, share, &ConvergenceOptions::default());
        println!(
            "{set} at {share}: {} cases; epochs {:.1} % (paper {:.1} %), inside {:.0} % ({:.0} %), end {:.1} % \
             ({:.1} %)",
            ours.cases,
            100.0 * ours.epochs,
            100.0 * paper.epochs,
            100.0 * ours.inside,
            100.0 * paper.inside,
            100.0 * ours.end,
            100.0 * paper.end
        );
        assert!(ours.epochs < epochs_bar && ours.inside >= inside_bar && ours.end < end_bar, "{set} at {share}");
        all_inside.push(ours.inside);
    }
    // The interval should contain 80 %.
    let inside = mean(&all_inside);
    assert!((0.75..0.97).contains(&inside), "{inside}");
}

/// Eq. 1 with noise of a tenth of δ, fitted to half of the epochs, is within the goal of 10 %. Measured 4 % (paper's
/// method 5 %).
#[test]
fn synthetic_jobs_meet_the_goal() {
    for options in [ConvergenceOptions::paper(), ConvergenceOptions::default()] {
        let mut errors = Vec::new();
        for seed in 0..60 {
            let mut random = Random(seed * 131 + 3);
            random.uniform();
            let beta = [0.05 + 0.4 * random.uniform(), 0.9 + 0.2 * random.uniform(), 0.3 * random.uniform()];
            let delta = 0.003 + 0.01 * random.uniform();
            let curve: Vec<f64> = (0..400)
                .map(|k| 1.0 / (beta[0] * f64::from(k) + beta[1]) + beta[2] + 0.1 * delta * random.normal())
                .collect();
            let Some(at) = truth(&curve, delta).filter(|at| *at >= 8) else { continue };
            let seen = at.div_ceil(2);
            let p = fit(&curve[..seen], &options).converges(delta, PATIENCE, 10_000, seen as u64 - 1);
            errors.push((p.epochs as f64 / at as f64 - 1.0).abs());
        }
        println!("{} synthetic jobs: {:.1} % off ({options:?})", errors.len(), 100.0 * mean(&errors));
        assert!(errors.len() > 40 && mean(&errors) < 0.1);
    }
}

#[test]
fn the_papers_curve_is_found_again() {
    let curve = |k: f64| 1.0 / (0.21 * k + 1.07) + 0.07; // the paper's Fig. 7
    let losses: Vec<f64> = (0..30).map(|k| curve(f64::from(k))).collect();
    for options in [ConvergenceOptions::paper(), ConvergenceOptions::default()] {
        let f = fit(&losses, &options);
        assert_eq!((f.family, f.origin, f.outliers), (Family::Inverse, 0.0, 0));
        for k in [0.0, 29.0, 60.0, 200.0] {
            assert!((f.loss_at(k) - curve(k)).abs() < 1e-4, "{} at {k}", f.loss_at(k));
        }
    }
}

#[test]
fn other_families_win_where_they_are_true() {
    type Curve = fn(f64) -> f64;
    let truths: [(Family, Curve); 2] = [
        (Family::Exponential, |k| 2.0 * libm_exp(-0.15 * k) + 0.5),
        (Family::Power, |k| 3.0 / (k + 1.0).sqrt().sqrt() + 0.2),
    ];
    for (family, curve) in truths {
        let losses: Vec<f64> = (0..40).map(|k| curve(f64::from(k))).collect();
        let f = fit(&losses, &ConvergenceOptions::default());
        let off = |f: &LossFit| (f.loss_at(100.0) / curve(100.0) - 1.0).abs();
        assert_eq!(f.family, family);
        assert!(off(&f) < 0.01 && off(&f) < off(&fit(&losses, &ConvergenceOptions::paper())));
    }
}

/// e^x by its series instead of the platform's function, so that the test doesn't depend on the machine.
fn libm_exp(x: f64) -> f64 {
    let half = x / 64.0;
    let mut term = 1.0;
    let mut sum = 1.0;
    for n in 1..20 {
        term *= half / f64::from(n);
        sum += term;
    }
    (0..6).fold(sum, |s, _| s * s)
}

#[test]
fn a_cut_of_the_learning_rate_starts_a_segment() {
    let mut random = Random(9);
    let curve = |k: f64| if k < 30.0 { 1.0 / (0.3 * k + 1.0) + 0.5 } else { 1.0 / (0.8 * (k - 30.0) + 8.0) + 0.3 };
    let losses: Vec<f64> = (0..45).map(|k| curve(f64::from(k)) + 0.003 * random.normal()).collect();
    let ours = fit(&losses, &ConvergenceOptions::default());
    let paper = fit(&losses, &ConvergenceOptions::paper());
    assert_eq!(ours.origin, 30.0);
    let off = |f: &LossFit| (f.loss_at(80.0) - curve(80.0)).abs();
    assert!(off(&ours) < 0.02 && off(&ours) < 0.5 * off(&paper), "{} {}", off(&ours), off(&paper));
    // Without a cut there is no segment, with or without noise.
    for noise in [0.0, 0.003, 0.03] {
        let plain: Vec<f64> =
            (0..60).map(|k| 1.0 / (0.3 * f64::from(k) + 1.0) + 0.5 + noise * random.normal()).collect();
        assert_eq!(fit(&plain, &ConvergenceOptions::default()).origin, 0.0, "noise {noise}");
    }
}

#[test]
fn an_outlier_is_replaced() {
    let mut losses: Vec<f64> = (0..20).map(|k| 1.0 / (0.2 * f64::from(k) + 1.0) + 0.1).collect();
    let clean = fit(&losses, &ConvergenceOptions::paper());
    losses[8] = 5.0;
    losses[14] = 0.01;
    let f = fit(&losses, &ConvergenceOptions::paper());
    assert_eq!((f.outliers, clean.outliers), (2, 0));
    assert!((f.loss_at(40.0) - clean.loss_at(40.0)).abs() < 0.01);
}

#[test]
fn the_rule_is_met_by_the_last_epoch_of_the_run() {
    let losses: Vec<f64> = (0..200).map(|k| 1.0 / (0.2 * f64::from(k) + 1.0) + 0.1).collect();
    let at = truth(&losses, 0.002).unwrap();
    let f = fit(&losses[..20], &ConvergenceOptions::paper());
    let p = f.converges(0.002, PATIENCE, 1000, 19);
    assert_eq!((p.epochs, p.remaining_epochs, p.capped), (at as u64, at as u64 - 19, false));
    assert_eq!(p.remaining_steps(10.0), 10.0 * (at as f64 - 19.0));
    // After a part of the run of flat epochs, only the missing epochs remain, and at least one.
    for done in [at - 2, at - 1, at, at + 5] {
        let f = fit(&losses[..=done], &ConvergenceOptions::paper());
        let left = (at as u64).saturating_sub(done as u64).max(1);
        assert_eq!(f.converges(0.002, PATIENCE, 1000, done as u64).remaining_epochs, left, "after {done}");
    }
    // Limits: max_epochs before convergence, and already reached.
    let capped = f.converges(0.002, PATIENCE, 25, 19);
    assert_eq!((capped.epochs, capped.remaining_epochs, capped.capped), (25, 6, true));
    assert_eq!(f.converges(0.002, PATIENCE, 19, 19).remaining_epochs, 0);
    assert_eq!(f.converges(0.002, PATIENCE, 10, 19).remaining_epochs, 0);
}

#[test]
fn far_convergence_is_found_without_walking_there() {
    let losses: Vec<f64> = (0..50).map(|k| 1.0 / (1e-6 * f64::from(k) + 1.0)).collect();
    for options in [ConvergenceOptions::paper(), ConvergenceOptions::default()] {
        let p = fit(&losses, &options).converges(1e-13, PATIENCE, u64::MAX, 49);
        assert!(p.epochs > 1_000_000, "{p:?}");
        // A decreasing curve never meets a threshold of zero.
        let never = fit(&losses, &ConvergenceOptions::paper()).converges(0.0, PATIENCE, 1_000_000_000, 49);
        assert!(never.capped);
    }
}

#[test]
fn too_few_points_are_an_error() {
    let options = ConvergenceOptions::default();
    assert_eq!(Convergence::fit(&LossHistory::default(), &options), Err(FitError::TooFewPoints { have: 0 }));
    for have in 1..3 {
        assert_eq!(Convergence::fit(&history(&[1.0, 0.9][..have]), &options), Err(FitError::TooFewPoints { have }));
    }
    assert!(Convergence::fit(&history(&[1.0, 0.9, 0.85]), &options).is_ok());
    assert_eq!(Convergence::fit(&history(&[f64::MAX, 0.0, -f64::MAX]), &options), Err(FitError::TooLarge));
}

#[test]
fn degenerate_curves_give_a_sane_prediction() {
    let constant = vec![0.7; 20];
    let zero = vec![0.0; 20];
    let rising: Vec<f64> = (0..20).map(|k| 1.0 + 0.1 * f64::from(k)).collect();
    let step: Vec<f64> = (0..20).map(|k| if k < 10 { 1.0 } else { 0.2 }).collect();
    let negative: Vec<f64> = (0..20).map(|k| -10.0 + 5.0 / (f64::from(k) + 1.0)).collect();
    let huge: Vec<f64> = (0..20).map(|k| 1e300 / (f64::from(k) + 1.0)).collect();
    let tiny: Vec<f64> = (0..20).map(|k| 1e-300 / (f64::from(k) + 1.0)).collect();
    for options in [ConvergenceOptions::paper(), ConvergenceOptions::default()] {
        for (name, losses) in [
            ("constant", &constant),
            ("zero", &zero),
            ("rising", &rising),
            ("step", &step),
            ("negative", &negative),
            ("huge", &huge),
            ("tiny", &tiny),
        ] {
            let f = fit(losses, &options);
            let p = f.converges(0.01, PATIENCE, 500, 19);
            assert!(f.loss_at(100.0).is_finite() && f.parameters.iter().all(|q| *q >= 0.0), "{name}: {f:?}");
            assert!((20..=500).contains(&p.epochs) && p.low <= p.epochs && p.epochs <= p.high, "{name}: {p:?}");
        }
        // A curve that no longer decreases converges as soon as the rule allows, or soon after.
        let left = |losses| fit(losses, &options).converges(0.01, PATIENCE, 500, 19).remaining_epochs;
        assert_eq!(left(&constant), 1);
        assert!(left(&rising) <= 6);
        assert!((fit(&step, &options).loss_at(30.0) - 0.2).abs() < 0.3);
    }
}

#[test]
fn histories_are_bounded_and_count_ignored_reports() {
    let mut h = LossHistory::default();
    for epoch in 0..100_000_u64 {
        h.push(2 * epoch, epoch, 2.0 / (1.0 + epoch as f64));
        h.push(2 * epoch + 1, epoch, 4.0 / (1.0 + epoch as f64));
    }
    let points = h.points();
    assert!(points.len() <= MAX_POINTS && points.len() > MAX_POINTS / 3, "{}", points.len());
    assert_eq!(points.iter().map(|p| p.epochs).sum::<f64>(), 100_000.0);
    assert!(points.windows(2).all(|w| w[0].epoch < w[1].epoch));
    assert_eq!((points[0].loss, points[63].epoch, h.first_loss()), (3.0, 63.0, Some(3.0)));
    assert_eq!((h.ignored(), h.last_epoch()), (0, Some(99_999)));
    assert!((h.steps_per_epoch().unwrap() - 2.0).abs() < 1e-3);
    assert!(serde_json::to_string(&h).unwrap().len() < 100_000);

    let mut h = history(&[1.0, 0.9]);
    h.push(1, 5, 0.5); // an earlier step
    h.push(100, 0, 0.5); // an earlier epoch
    h.push(100, 2, f64::NAN);
    h.push(100, 2, f64::INFINITY);
    h.push(100, 2, 0.8);
    h.push(100, 2, 0.6); // the same step again: averaged
    assert_eq!((h.ignored(), h.points().len()), (4, 3));
    assert!((h.points()[2].loss - 0.7).abs() < 1e-12);
}

#[test]
fn long_histories_fit_like_short_ones() {
    let curve = |k: f64| 1.0 / (0.01 * k + 0.5) + 0.1;
    let mut h = LossHistory::default();
    for epoch in 0..20_000_u64 {
        h.push(epoch, epoch, curve(epoch as f64));
    }
    for options in [ConvergenceOptions::paper(), ConvergenceOptions::default()] {
        let f = Convergence::fit(&h, &options).unwrap();
        for k in [0.0, 1000.0, 40_000.0] {
            assert!((f.loss_at(k) / curve(k) - 1.0).abs() < 0.02, "{} instead of {}", f.loss_at(k), curve(k));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 100, ..ProptestConfig::default() })]

    /// Any reports give a prediction without a panic: repeatable, within the limits, and ordered.
    #[test]
    fn any_losses_give_a_bounded_prediction(
        losses in prop::collection::vec(prop_oneof![-5.0_f64..5.0, 0.0_f64..1e9, Just(f64::NAN), Just(0.0)], 0..60),
        delta in 0.0_f64..0.2,
        patience in 0_u32..10,
        paper in any::<bool>(),
    ) {
        let options = if paper { ConvergenceOptions::paper() } else { ConvergenceOptions::default() };
        let h = history(&losses);
        let done = losses.len() as u64;
        let first = Convergence::fit(&h, &options);
        prop_assert_eq!(&first, &Convergence::fit(&h, &options));
        if let Ok(f) = first {
            let p = f.converges(delta, patience, 300, done);
            prop_assert!(p.low <= p.epochs && p.epochs <= p.high && p.high <= 300);
            prop_assert!(p.remaining_epochs == p.epochs - done && p.remaining_epochs >= 1);
            prop_assert!(f.loss_at(1e6).is_finite() && f.error_at(1e3).is_finite() && f.residual.is_finite());
        }
    }
}

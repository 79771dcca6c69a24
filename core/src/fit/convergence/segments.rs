//! The start of the current segment of a loss curve.

use super::family::{Family, Obs};

/// Number of points on each side whose means are compared.
const SIDE: usize = 3;
/// Minimum number of points after a break: three parameters and one degree of freedom.
const AFTER: usize = 4;
/// Number of examined breaks, in descending order of slope change.
const TRIED: usize = 4;
/// Required reduction: with a break, the squared error is at most this fraction of the error of one curve, whatever the
/// noise.
const GAIN: f64 = 0.5;

/// Start index of the latest segment; 0 without a sudden drop.
pub(super) fn last(points: &[Obs]) -> usize {
    let mut start = 0;
    // Each round searches after the previous break, so the number of points bounds the rounds.
    while let Some(at) = next_break(&points[start..]) {
        start += at;
    }
    start
}

fn next_break(points: &[Obs]) -> Option<usize> {
    let n = points.len();
    if n < 2 * SIDE + AFTER {
        return None;
    }
    let mean = |from: usize, of: fn(&Obs) -> f64| points[from..from + SIDE].iter().map(of).sum::<f64>() / SIDE as f64;
    // Decrease per epoch from the mean of three points to that of the next three. Merged points have larger distances.
    let slope = |from: usize| {
        let fall = mean(from, |p| p.l) - mean(from + SIDE, |p| p.l);
        fall / (mean(from + SIDE, |p| p.k) - mean(from, |p| p.k))
    };
    // After a cut of the learning rate the slope is steeper than before. On a curve that flattens out, it is always
    // gentler.
    let mut striking: Vec<(f64, usize)> = (2 * SIDE..=n - AFTER)
        .filter_map(|i| {
            let (across, before) = (slope(i - SIDE), slope(i - 2 * SIDE).max(0.0));
            (across > 1.5 * before).then_some((across - before, i))
        })
        .collect();
    striking.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    striking.truncate(TRIED);
    if striking.is_empty() {
        return None;
    }
    let one = Family::Inverse.cost(&Family::Inverse.fit(points), points);
    let mut best: Option<(f64, usize)> = None;
    for (_, at) in striking {
        let (left, right) = points.split_at(at);
        let origin = right[0].k;
        let right: Vec<Obs> = right.iter().map(|p| Obs { k: p.k - origin, ..*p }).collect();
        let left_fit = Family::Inverse.fit(left);
        let left_cost = Family::Inverse.cost(&left_fit, left);
        // The drop has to exceed the noise around the previous curve.
        let noise = (left_cost / left.iter().map(|p| p.weight).sum::<f64>()).sqrt();
        let expected = Family::Inverse.value(&left_fit, points[at + 1].k);
        if expected - points[at + 1].l < 4.0 * noise + 1e-9 {
            continue;
        }
        let two = left_cost + Family::Inverse.cost(&Family::Inverse.fit(&right), &right);
        if two < GAIN * one && best.is_none_or(|(cost, _)| two < cost) {
            best = Some((two, at));
        }
    }
    best.map(|(_, at)| at)
}

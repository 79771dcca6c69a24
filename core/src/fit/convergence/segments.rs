//! Where the current stretch of a loss curve begins.

use super::family::{Family, Obs};

/// Points on each side whose means are compared.
const SIDE: usize = 3;
/// Fewest points after a break: three parameters and one to spare.
const AFTER: usize = 4;
/// Breaks examined, the most striking first.
const TRIED: usize = 4;
/// A break must lower the squared error to this share of one curve's, whatever the noise.
const GAIN: f64 = 0.5;

/// The index at which the latest segment starts; 0 if there was no sudden drop.
pub(super) fn last(points: &[Obs]) -> usize {
    let mut start = 0;
    // Each round looks for the first break after the one before: the number of rounds is bounded by the points.
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
    // Fall per epoch (merged points lie further apart) from the means of three points to those of the next three.
    let slope = |from: usize| {
        let fall = mean(from, |p| p.l) - mean(from + SIDE, |p| p.l);
        fall / (mean(from + SIDE, |p| p.k) - mean(from, |p| p.k))
    };
    // A cut of the learning rate shows as a slope that is steeper than the one just before it: on a curve that flattens
    // out, each is gentler than the last.
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
        // The drop has to stand out of the noise around the curve before it.
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

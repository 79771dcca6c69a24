//! Losses that do not belong to their neighbourhood.

use super::LossPoint;

/// Replaces what lies outside [min of the next `window` points, max of the previous `window` points] by the mean of its
/// neighbours, and returns how many were replaced (Optimus, §3.1).
///
/// The bounds are taken from the points as reported, so that one replacement does not cause the next. The first point has
/// nothing before it and the last nothing after it: they are kept.
pub(super) fn replace(points: &mut [LossPoint], window: usize) -> usize {
    let raw: Vec<f64> = points.iter().map(|p| p.loss).collect();
    let mut replaced = 0;
    for i in 1..raw.len().saturating_sub(1) {
        let before = &raw[i.saturating_sub(window)..i];
        let after = &raw[i + 1..(i + 1 + window).min(raw.len())];
        let high = before.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let low = after.iter().copied().fold(f64::INFINITY, f64::min);
        if raw[i] > high || raw[i] < low {
            points[i].loss = 0.5 * (raw[i - 1] + raw[i + 1]);
            replaced += 1;
        }
    }
    replaced
}

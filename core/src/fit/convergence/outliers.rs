//! Outliers in the losses.

use super::LossPoint;

/// Replaces losses outside [min of the next `window` points, max of the previous `window` points] by the mean of their
/// neighbours. Returns the number of replacements (Optimus, §3.1).
///
/// The bounds come from the points as reported, so that a replacement doesn't cause another one. The first and the last
/// point are kept, because they have neighbours on one side only.
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

//! Least squares with non-negative unknowns: min ‖A·x − b‖ over x ≥ 0.
//!
//! Source: C. L. Lawson and R. J. Hanson, *Solving Least Squares Problems* (1974), ch. 23, algorithm NNLS.
//!
//! The systems are tall and thin (at most [`MAX_COLUMNS`] unknowns, up to about a thousand rows). So Householder
//! reflections first reduce the rows to a triangle, which doesn't change residuals. The active-set loop then runs on a
//! system as small as the number of unknowns. The cost is one pass over the rows, independent of the number of
//! iterations.

use serde::{Deserialize, Serialize};

/// Maximum number of unknowns of [`nnls`].
pub const MAX_COLUMNS: usize = 16;

/// A diagonal entry below this fraction of its (unit) column means that the column depends on the previous ones.
const DEPENDENT: f64 = 1e-11;
/// A gradient entry below this fraction of ‖b‖ counts as zero, because it comes from rounding.
const FLAT: f64 = 1e-13;

/// The result of [`nnls`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Nnls {
    /// The unknowns, one per column, each ≥ 0 and finite.
    pub x: Vec<f64>,
    /// ‖A·x − b‖ (Euclidean), in the unit of `b`.
    pub residual: f64,
    /// Whether the optimality conditions are met. `false`: the iteration limit was reached; `x` is feasible, but may
    /// not be optimal.
    pub converged: bool,
}

/// An invalid input of [`nnls`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum NnlsError {
    /// The length of `a` isn't `columns` times the length of `b`.
    #[error("{numbers} matrix entries do not make {rows} rows of {columns} columns")]
    Shape {
        /// Length of `a`.
        numbers: usize,
        /// Length of `b`.
        rows: usize,
        /// Requested columns.
        columns: usize,
    },
    /// More unknowns than [`MAX_COLUMNS`].
    #[error("{columns} columns; at most {MAX_COLUMNS} are allowed")]
    TooManyColumns {
        /// Requested columns.
        columns: usize,
    },
    /// A NaN or infinite entry.
    #[error("row {row} holds a number that is not finite")]
    NotFinite {
        /// The first such row.
        row: usize,
    },
}

/// Solves min ‖A·x − b‖ over x ≥ 0.
///
/// `a` is row-major with `columns` numbers per row; `b` has one entry per row. To weight a row, the caller multiplies
/// both sides by the root of the weight. Zero rows, zero columns, columns of zeros, collinear columns and fewer rows
/// than columns are allowed. If several `x` are optimal, the choice among them is deterministic.
///
/// # Errors
///
/// [`NnlsError`] if the shape is wrong, there are too many columns, or an entry is NaN or infinite.
///
/// # Examples
///
/// ```
/// use trainmaster_core::fit::nnls::nnls;
///
/// // y = 2·u − 1·v would fit exactly; v is held at zero instead.
/// let a = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0];
/// let answer = nnls(&a, 2, &[2.0, -1.0, 1.0])?;
/// assert!((answer.x[0] - 1.5).abs() < 1e-12 && answer.x[1] == 0.0);
/// # Ok::<(), trainmaster_core::fit::nnls::NnlsError>(())
/// ```
pub fn nnls(a: &[f64], columns: usize, b: &[f64]) -> Result<Nnls, NnlsError> {
    if columns > MAX_COLUMNS {
        return Err(NnlsError::TooManyColumns { columns });
    }
    if columns.checked_mul(b.len()) != Some(a.len()) {
        return Err(NnlsError::Shape { numbers: a.len(), rows: b.len(), columns });
    }
    for (row, rhs) in b.iter().enumerate() {
        let entries = &a[row * columns..(row + 1) * columns];
        if !rhs.is_finite() || entries.iter().any(|v| !v.is_finite()) {
            return Err(NnlsError::NotFinite { row });
        }
    }
    let reduced = Reduced::new(a, columns, b);
    let (unit, converged) = reduced.active_set();
    let residual = hypot_sum(reduced.tail, reduced.remainder(&unit).iter().copied()) * reduced.b_scale;
    let x = (0..columns)
        .map(|j| if unit[j] > 0.0 { (unit[j] / reduced.scale[j] * reduced.b_scale).min(f64::MAX) } else { 0.0 })
        .collect();
    Ok(Nnls { x, residual, converged })
}

type Vector = [f64; MAX_COLUMNS];

/// The problem after scaling and reduction, with at most as many rows as columns. `tail` is the part of the residual
/// that no `x` changes.
struct Reduced {
    columns: usize,
    rows: usize,
    /// `matrix[j]` is column j, of unit length (or all zero).
    matrix: [Vector; MAX_COLUMNS],
    rhs: Vector,
    tail: f64,
    /// Divisors of the columns and of `b`.
    scale: Vector,
    b_scale: f64,
}

impl Reduced {
    fn new(a: &[f64], columns: usize, b: &[f64]) -> Self {
        let m = b.len();
        // Scaling by the largest entry first prevents overflow and underflow of squares.
        let largest = |it: &mut dyn Iterator<Item = f64>| it.fold(0.0_f64, |top, v| top.max(v.abs()));
        let b_scale = match largest(&mut b.iter().copied()) {
            0.0 => 1.0,
            top => top,
        };
        let mut scale = [1.0; MAX_COLUMNS];
        let mut work: Vec<Vec<f64>> = Vec::with_capacity(columns + 1);
        for (j, scale) in scale.iter_mut().enumerate().take(columns) {
            let mut column: Vec<f64> = (0..m).map(|i| a[i * columns + j]).collect();
            let top = largest(&mut column.iter().copied());
            if top > 0.0 {
                column.iter_mut().for_each(|v| *v /= top);
                let length = norm(&column);
                column.iter_mut().for_each(|v| *v /= length);
                *scale = (top * length).min(f64::MAX);
            }
            work.push(column);
        }
        work.push(b.iter().map(|v| v / b_scale).collect());

        let rows = m.min(columns);
        for k in 0..rows {
            reflect(&mut work, k);
        }
        let mut matrix = [[0.0; MAX_COLUMNS]; MAX_COLUMNS];
        let mut rhs = [0.0; MAX_COLUMNS];
        for j in 0..columns {
            matrix[j][..rows].copy_from_slice(&work[j][..rows]);
        }
        rhs[..rows].copy_from_slice(&work[columns][..rows]);
        let tail = norm(&work[columns][rows..]);
        Self { columns, rows, matrix, rhs, tail, scale, b_scale }
    }

    /// rhs − A·x.
    fn remainder(&self, x: &Vector) -> Vector {
        let mut left = self.rhs;
        for (column, factor) in self.matrix.iter().zip(x).take(self.columns) {
            for (out, entry) in left.iter_mut().zip(column).take(self.rows) {
                *out -= entry * factor;
            }
        }
        left
    }

    /// The outer loop of NNLS: adds the unknown with the steepest descent, until none improves the result.
    fn active_set(&self) -> (Vector, bool) {
        let mut x = [0.0; MAX_COLUMNS];
        let mut passive: Vec<usize> = Vec::with_capacity(self.columns);
        let mut refused = [false; MAX_COLUMNS];
        let flat = FLAT * hypot_sum(self.tail, self.rhs.iter().copied());
        for _ in 0..10 * self.columns + 20 {
            let left = self.remainder(&x);
            let mut best: Option<(usize, f64)> = None;
            for (j, column) in self.matrix.iter().enumerate().take(self.columns) {
                if refused[j] || passive.contains(&j) {
                    continue;
                }
                let slope: f64 = (0..self.rows).map(|i| column[i] * left[i]).sum();
                if slope > flat && best.is_none_or(|(_, top)| slope > top) {
                    best = Some((j, slope));
                }
            }
            let Some((entering, _)) = best else { return (x, true) };
            passive.push(entering);
            // A column that depends on the active ones, or that rounding would push below zero, gives no improvement.
            match self.solve(&passive) {
                Some(z) if z[entering] > 0.0 => {
                    self.feasible(&mut x, &mut passive, z);
                    refused = [false; MAX_COLUMNS];
                }
                _ => {
                    passive.pop();
                    refused[entering] = true;
                }
            }
        }
        (x, false)
    }

    /// The inner loop: moves towards the unconstrained optimum `z`, and removes unknowns that reach zero.
    fn feasible(&self, x: &mut Vector, passive: &mut Vec<usize>, mut z: Vector) {
        while passive.iter().any(|&j| z[j] <= 0.0) {
            let mut step = 1.0;
            let mut first = None;
            for &j in passive.iter().filter(|&&j| z[j] <= 0.0) {
                let here = x[j] / (x[j] - z[j]).max(f64::MIN_POSITIVE);
                if first.is_none() || here < step {
                    (step, first) = (here, Some(j));
                }
            }
            for &j in passive.iter() {
                x[j] += step * (z[j] - x[j]);
            }
            passive.retain(|&j| {
                let stays = Some(j) != first && x[j] > 0.0;
                if !stays {
                    x[j] = 0.0;
                }
                stays
            });
            match self.solve(passive) {
                Some(next) => z = next,
                // A subset of independent columns is independent. If rounding contradicts this, the feasible x stays.
                None => return,
            }
        }
        *x = z;
    }

    /// The unconstrained least-squares solution over the columns in `passive`; `None` if they are dependent.
    fn solve(&self, passive: &[usize]) -> Option<Vector> {
        let k = passive.len();
        if k > self.rows {
            return None;
        }
        let mut work: Vec<Vec<f64>> = passive.iter().map(|&j| self.matrix[j][..self.rows].to_vec()).collect();
        work.push(self.rhs[..self.rows].to_vec());
        for step in 0..k {
            reflect(&mut work, step);
            if work[step][step].abs() <= DEPENDENT {
                return None;
            }
        }
        let mut z = [0.0; MAX_COLUMNS];
        for row in (0..k).rev() {
            let mut value = work[k][row];
            for col in row + 1..k {
                value -= work[col][row] * z[passive[col]];
            }
            z[passive[row]] = value / work[row][row];
        }
        Some(z)
    }
}

/// One Householder step: zeroes column `k` below its diagonal and applies the same reflection to the columns after it.
fn reflect(work: &mut [Vec<f64>], k: usize) {
    let length = norm(&work[k][k..]);
    if length == 0.0 {
        return;
    }
    let head = if work[k][k] > 0.0 { -length } else { length };
    let mut mirror = work[k][k..].to_vec();
    mirror[0] -= head;
    let square: f64 = mirror.iter().map(|v| v * v).sum();
    if square == 0.0 {
        return;
    }
    for column in work[k..].iter_mut() {
        let dot: f64 = column[k..].iter().zip(&mirror).map(|(c, v)| c * v).sum();
        let factor = 2.0 * dot / square;
        for (c, v) in column[k..].iter_mut().zip(&mirror) {
            *c -= factor * v;
        }
    }
    work[k][k] = head;
    work[k][k + 1..].iter_mut().for_each(|v| *v = 0.0);
}

fn norm(v: &[f64]) -> f64 {
    hypot_sum(0.0, v.iter().copied())
}

/// The root of the sum of squares. Callers pass numbers that are scaled to about one.
fn hypot_sum(first: f64, rest: impl Iterator<Item = f64>) -> f64 {
    // IEEE 754 defines every bit of the square root, so std's result is the same on all machines.
    rest.fold(first * first, |sum, v| sum + v * v).sqrt()
}

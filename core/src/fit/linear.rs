//! Dense symmetric systems of a few unknowns.

#![allow(clippy::needless_range_loop)] // the code follows the indices of the textbook

/// The inverse of the symmetric positive definite matrix `a`, or `None` if it isn't (numerically) definite.
///
/// Uses a Cholesky decomposition of the matrix scaled to a unit diagonal, so that unknowns of very different units
/// don't disturb each other.
pub(crate) fn inverse<const N: usize>(a: &[[f64; N]; N]) -> Option<[[f64; N]; N]> {
    let mut scale = [0.0; N];
    for i in 0..N {
        if !(a[i][i] > 0.0 && a[i][i].is_finite()) {
            return None;
        }
        scale[i] = 1.0 / a[i][i].sqrt();
    }
    let mut l = [[0.0; N]; N];
    for i in 0..N {
        for j in 0..=i {
            let mut value = a[i][j] * scale[i] * scale[j];
            for k in 0..j {
                value -= l[i][k] * l[j][k];
            }
            if i == j {
                if value.is_nan() || value <= 1e-13 {
                    return None;
                }
                l[i][i] = value.sqrt();
            } else {
                l[i][j] = value / l[j][j];
            }
        }
    }
    let mut out = [[0.0; N]; N];
    for column in 0..N {
        let mut y = [0.0; N];
        for i in 0..N {
            let mut value = if i == column { 1.0 } else { 0.0 };
            for k in 0..i {
                value -= l[i][k] * y[k];
            }
            y[i] = value / l[i][i];
        }
        for i in (0..N).rev() {
            let mut value = y[i];
            for k in i + 1..N {
                value -= l[k][i] * out[k][column];
            }
            out[i][column] = value / l[i][i];
        }
    }
    for (i, row) in out.iter_mut().enumerate() {
        for (j, value) in row.iter_mut().enumerate() {
            *value *= scale[i] * scale[j];
        }
    }
    Some(out)
}

/// vᵀ·M·v.
pub(crate) fn quadratic<const N: usize>(m: &[[f64; N]; N], v: &[f64; N]) -> f64 {
    let mut sum = 0.0;
    for (row, left) in m.iter().zip(v) {
        for (entry, right) in row.iter().zip(v) {
            sum += left * entry * right;
        }
    }
    sum
}

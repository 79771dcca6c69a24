//! Non-negative least squares against SciPy's answers, and on input that breaks naive solvers.

#![allow(clippy::disallowed_macros)] // tests print what they measure

use proptest::prelude::*;
use serde::Deserialize;
use trainmaster_core::fit::nnls::{MAX_COLUMNS, NnlsError, nnls};

#[derive(Deserialize)]
struct Case {
    kind: String,
    rows: Vec<Vec<f64>>,
    b: Vec<f64>,
    residual: f64,
}

/// ‖A·x − b‖ and the largest slope A ᵀ(b − A·x), computed independently.
fn judge(a: &[f64], columns: usize, b: &[f64], x: &[f64]) -> (f64, f64) {
    let left: Vec<f64> = b
        .iter()
        .enumerate()
        .map(|(i, rhs)| rhs - (0..columns).map(|j| a[i * columns + j] * x[j]).sum::<f64>())
        .collect();
    let slope = |j: usize| {
        let column = || (0..b.len()).map(|i| a[i * columns + j]);
        let length = column().map(|v| v * v).sum::<f64>().sqrt();
        if length == 0.0 { 0.0 } else { column().zip(&left).map(|(v, r)| v * r).sum::<f64>() / length }
    };
    (left.iter().map(|r| r * r).sum::<f64>().sqrt(), (0..columns).map(slope).fold(0.0, f64::max))
}

#[test]
fn residuals_equal_scipys() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("data/fit_nnls.json")).unwrap();
    assert!(cases.len() >= 60, "{} cases", cases.len());
    let mut worst = 0.0_f64;
    for (number, case) in cases.iter().enumerate() {
        let columns = case.rows[0].len();
        let a: Vec<f64> = case.rows.iter().flatten().copied().collect();
        let answer = nnls(&a, columns, &case.b).unwrap();
        let (residual, slope) = judge(&a, columns, &case.b, &answer.x);
        let size = case.b.iter().map(|v| v * v).sum::<f64>().sqrt().max(1e-300);
        let gap = (answer.residual - case.residual).abs() / size;
        worst = worst.max(gap);
        assert!(answer.converged, "case {number} ({}) did not converge", case.kind);
        assert!(answer.x.iter().all(|x| *x >= 0.0));
        assert!(gap < 1e-9, "case {number} ({}): {} instead of {}", case.kind, answer.residual, case.residual);
        assert!((residual - answer.residual).abs() < 1e-9 * size, "case {number} ({})", case.kind);
        assert!(slope < 1e-8 * size, "case {number} ({}): could still descend by {slope}", case.kind);
    }
    println!("{} cases, largest difference to SciPy's residual {worst:.1e} of ‖b‖", cases.len());
}

#[test]
fn empty_and_zero_input() {
    let none = nnls(&[], 3, &[]).unwrap();
    assert_eq!((none.x, none.residual, none.converged), (vec![0.0; 3], 0.0, true));
    let no_columns = nnls(&[], 0, &[3.0, 4.0]).unwrap();
    assert_eq!((no_columns.x.len(), no_columns.residual), (0, 5.0));
    let zeros = nnls(&[0.0; 6], 3, &[3.0, 4.0]).unwrap();
    assert_eq!((zeros.x, zeros.converged), (vec![0.0; 3], true));
    assert!((zeros.residual - 5.0).abs() < 1e-12);
}

#[test]
fn unsolvable_input_is_refused() {
    assert_eq!(nnls(&[1.0, f64::NAN], 1, &[1.0, 1.0]), Err(NnlsError::NotFinite { row: 1 }));
    assert_eq!(nnls(&[1.0, 2.0], 1, &[f64::INFINITY, 1.0]), Err(NnlsError::NotFinite { row: 0 }));
    assert_eq!(nnls(&[1.0, 2.0, 3.0], 2, &[1.0]), Err(NnlsError::Shape { numbers: 3, rows: 1, columns: 2 }));
    let columns = MAX_COLUMNS + 1;
    assert_eq!(nnls(&vec![0.0; columns], columns, &[1.0]), Err(NnlsError::TooManyColumns { columns }));
}

#[test]
fn extreme_scales_do_not_overflow() {
    for scale in [1e-290, 1e-150, 1e150, 1e290] {
        let answer = nnls(&[scale, 0.0, 0.0, 1.0, scale, 1.0], 2, &[1.0, 1.0, 2.0]).unwrap();
        assert!(answer.converged && (answer.x[0] * scale - 1.0).abs() < 1e-9 && (answer.x[1] - 1.0).abs() < 1e-9);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The result is feasible, finite and optimal (no column descends further), and never worse than x = 0.
    #[test]
    fn optimality_conditions_hold(
        columns in 1_usize..7,
        raw in prop::collection::vec(-10.0_f64..10.0, 7..280),
        copies in prop::option::of((0_usize..7, 0_usize..7)),
    ) {
        let rows = raw.len() / (columns + 1);
        let mut a: Vec<f64> = raw[..rows * columns].to_vec();
        let b = &raw[rows * columns..rows * (columns + 1)];
        if let Some((from, to)) = copies {
            for row in 0..rows {
                a[row * columns + to % columns] = a[row * columns + from % columns] * 3.0;
            }
        }
        let answer = nnls(&a, columns, b).unwrap();
        let (residual, slope) = judge(&a, columns, b, &answer.x);
        let size = b.iter().map(|v| v * v).sum::<f64>().sqrt();
        prop_assert!(answer.converged);
        prop_assert!(answer.x.iter().all(|x| x.is_finite() && *x >= 0.0));
        prop_assert!((residual - answer.residual).abs() <= 1e-9 * size);
        prop_assert!(residual <= size * (1.0 + 1e-12));
        prop_assert!(slope <= 1e-8 * size, "slope {slope}");
    }
}

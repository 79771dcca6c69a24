//! Mixed-integer linear programs behind one small trait, for engines and bounds that need an optimum.
//!
//! A [`Model`] has an objective to maximise. A [`Solver`] maximises it within a [`Limit`]. Its [`Solution`] contains
//! the best proven bound beside the value. Limits count nodes of the search tree instead of seconds, so the same model
//! has the same solution on every machine and in every replay.
//!
//! `microlp` (pure Rust) is always available. `highs` (C++, far faster on large programs, needs cmake and libclang to
//! build) is available with the cargo feature of that name. Both are called directly, because a common front end such
//! as `good_lp` has wall-clock limits only and doesn't expose the bound. A node limit doesn't bound the work inside a
//! node, so callers bound the model's [size](Model::size).
//!
//! ```
//! use trainmaster_core::solver::{self, Limit, Model};
//! // A knapsack of size 10: the two that fill it beat the one of best worth per size.
//! let mut model = Model::default();
//! let items = [(6.0, 7.0), (5.0, 5.0), (4.0, 5.0)].map(|(worth, size)| (model.integer(0, 1, worth), size));
//! model.at_most(items, 10.0);
//! let solution = solver::find("microlp").unwrap().solve(&model, Limit::default(), &[]).unwrap();
//! assert_eq!(solution.value, 9.0);
//! assert!(solution.optimal && solution.gap() == 0.0);
//! ```

#[cfg(feature = "highs")]
mod highs;
mod microlp;

use std::collections::BTreeMap;

use thiserror::Error;

/// The solvers of this build.
pub const SOLVERS: &[&dyn Solver] = &[
    &microlp::Microlp,
    #[cfg(feature = "highs")]
    &highs::Highs,
];

/// Finds a solver by name.
///
/// # Errors
/// This build doesn't have the solver. The error lists those that it has.
pub fn find(name: &str) -> Result<&'static dyn Solver, UnknownSolver> {
    SOLVERS.iter().copied().find(|solver| solver.name() == name).ok_or_else(|| UnknownSolver(name.into()))
}

/// A solver that this build doesn't have.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{0:?} is not a solver of this build; it has {known} (\"highs\" comes with the cargo feature \"highs\")",
    known = SOLVERS.iter().map(|solver| solver.name()).collect::<Vec<_>>().join(", ")
)]
pub struct UnknownSolver(String);

/// A solver of models.
pub trait Solver: Send + Sync {
    /// Name of the solver in settings.
    fn name(&self) -> &'static str;

    /// Returns the best assignment within the limit. `hint` is a feasible assignment of all integer variables as the
    /// start, or empty. The result is at least as good as the hint. An infeasible hint is ignored.
    ///
    /// The result depends only on model, limit and hint.
    ///
    /// # Errors
    /// There is no solution, none was found within the limit, or the solver had numerical problems.
    fn solve(&self, model: &Model, limit: Limit, hint: &[(Variable, f64)]) -> Result<Solution, SolverError>;
}

/// Limits of a search without a proven optimum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Maximum number of nodes in the search tree after the root.
    pub nodes: u64,
    /// Sufficient relative distance between value and bound.
    pub gap: f64,
}

impl Default for Limit {
    /// No limit: the search continues to the optimum.
    fn default() -> Self {
        Self { nodes: u64::MAX, gap: 0.0 }
    }
}

/// A variable of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Variable(usize);

#[derive(Clone, Debug)]
struct Column {
    least: f64,
    most: f64,
    worth: f64,
    integer: bool,
}

#[derive(Clone, Debug)]
struct Row {
    /// Each variable at most once, in order.
    terms: Vec<(usize, f64)>,
    limit: f64,
}

/// A linear objective to maximise, with linear constraints.
#[derive(Clone, Debug, Default)]
pub struct Model {
    columns: Vec<Column>,
    /// Σ terms ≤ limit.
    rows: Vec<Row>,
}

impl Model {
    /// Adds an integer variable from `least` to `most`, with `worth` per unit in the objective.
    pub fn integer(&mut self, least: i32, most: i32, worth: f64) -> Variable {
        self.column(Column { least: least.into(), most: most.into(), worth, integer: true })
    }

    /// Adds a real variable from `least` to `most`, with `worth` per unit in the objective.
    pub fn real(&mut self, least: f64, most: f64, worth: f64) -> Variable {
        self.column(Column { least, most, worth, integer: false })
    }

    fn column(&mut self, column: Column) -> Variable {
        self.columns.push(column);
        Variable(self.columns.len() - 1)
    }

    /// Adds the constraint Σ terms ≤ limit. The coefficients of a repeated variable are added.
    pub fn at_most(&mut self, terms: impl IntoIterator<Item = (Variable, f64)>, limit: f64) {
        let mut sums: BTreeMap<usize, f64> = BTreeMap::new();
        for (variable, coefficient) in terms {
            *sums.entry(variable.0).or_default() += coefficient;
        }
        let terms: Vec<_> = sums.into_iter().filter(|(_, coefficient)| *coefficient != 0.0).collect();
        self.rows.push(Row { terms, limit });
    }

    /// Adds the constraint Σ terms ≥ limit.
    pub fn at_least(&mut self, terms: impl IntoIterator<Item = (Variable, f64)>, limit: f64) {
        self.at_most(terms.into_iter().map(|(variable, coefficient)| (variable, -coefficient)), -limit);
    }

    /// Number of variables.
    pub fn variables(&self) -> usize {
        self.columns.len()
    }

    /// Size of the model: number of variables and of coefficients in constraints. The work per node of the search grows
    /// about as its square.
    pub fn size(&self) -> usize {
        self.rows.iter().map(|row| row.terms.len()).sum::<usize>() + self.columns.len()
    }

    /// Objective of an assignment.
    fn worth(&self, values: &[f64]) -> f64 {
        self.columns.iter().zip(values).map(|(column, value)| column.worth * value).sum()
    }

    /// Whether an assignment satisfies all bounds and constraints, apart from rounding.
    fn holds(&self, values: &[f64]) -> bool {
        const TOLERANCE: f64 = 1e-6;
        let within = |column: &Column, value: f64| {
            (column.least - TOLERANCE..=column.most + TOLERANCE).contains(&value)
                && (!column.integer || value == value.round())
        };
        values.len() == self.columns.len()
            && self.columns.iter().zip(values).all(|(column, value)| within(column, *value))
            && self.rows.iter().all(|row| {
                let sum: f64 = row.terms.iter().map(|(at, coefficient)| coefficient * values[*at]).sum();
                let scale: f64 = row.terms.iter().map(|(at, coefficient)| (coefficient * values[*at]).abs()).sum();
                sum <= row.limit + TOLERANCE * scale.max(1.0)
            })
    }

    /// Checks a back end's result and converts it to a solution.
    fn solution(&self, mut values: Vec<f64>, bound: f64, nodes: u64) -> Result<Solution, SolverError> {
        for (column, value) in self.columns.iter().zip(&mut values) {
            if column.integer {
                *value = value.round();
            }
        }
        if !self.holds(&values) {
            return Err(SolverError::Failed("its solution breaks a constraint".into()));
        }
        let value = self.worth(&values);
        let bound = bound.max(value);
        let optimal = bound - value <= 1e-9 * value.abs().max(1.0);
        Ok(Solution { value, bound: if optimal { value } else { bound }, optimal, nodes, values })
    }
}

/// A feasible assignment and an upper bound of the objective.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    values: Vec<f64>,
    /// Objective of the assignment.
    pub value: f64,
    /// Upper bound of the objective over all assignments.
    pub bound: f64,
    /// Whether the bound is reached.
    pub optimal: bool,
    /// Number of searched nodes after the root.
    pub nodes: u64,
}

impl Solution {
    /// Value of a variable. Integer variables have whole values.
    pub fn value(&self, variable: Variable) -> f64 {
        self.values[variable.0]
    }

    /// Value of an integer variable that is a count.
    pub fn count(&self, variable: Variable) -> u32 {
        self.value(variable).max(0.0) as u32
    }

    /// Distance to the bound, relative to the value; 0 at the optimum.
    pub fn gap(&self) -> f64 {
        gap(self.value, self.bound)
    }
}

/// Distance from a value to its bound, relative to the value. 0 if they are equal; infinite if the value is 0 and the
/// bound is larger.
pub fn gap(value: f64, bound: f64) -> f64 {
    if bound <= value { 0.0 } else { (bound - value) / value.abs() }
}

/// Reasons for a missing solution.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SolverError {
    /// No assignment satisfies all constraints.
    #[error("no assignment keeps to all constraints")]
    Infeasible,
    /// The objective is unbounded.
    #[error("the objective grows without end")]
    Unbounded,
    /// No assignment was found within the limit.
    #[error("no solution within {nodes} nodes; none is worth more than {bound}")]
    Limit {
        /// Number of searched nodes.
        nodes: u64,
        /// Upper bound of the objective; infinite if unknown.
        bound: f64,
    },
    /// The solver failed.
    #[error("the solver failed: {0}")]
    Failed(String),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn every(check: impl Fn(&dyn Solver)) {
        SOLVERS.iter().for_each(|solver| check(*solver));
    }

    #[test]
    fn an_impossible_and_an_endless_model_say_so() {
        every(|solver| {
            let mut model = Model::default();
            let x = model.integer(0, 5, 1.0);
            model.at_least([(x, 2.0)], 11.0);
            assert_eq!(solver.solve(&model, Limit::default(), &[]), Err(SolverError::Infeasible), "{}", solver.name());
            let mut model = Model::default();
            let x = model.real(0.0, f64::INFINITY, 1.0);
            let y = model.integer(0, 1, 0.0);
            model.at_most([(y, 1.0), (x, -1.0)], 0.0);
            let endless = solver.solve(&model, Limit::default(), &[]);
            assert!(matches!(endless, Err(SolverError::Unbounded | SolverError::Infeasible)), "{endless:?}");
        });
    }

    #[test]
    fn an_unknown_solver_names_those_there_are() {
        let error = find("cplex").err().expect("unknown").to_string();
        assert!(error.contains("\"cplex\"") && error.contains("microlp"), "{error}");
    }

    /// Up to four variables from 0 to 3 and three constraints.
    fn model() -> impl Strategy<Value = (Vec<i8>, Vec<(Vec<i8>, i8)>)> {
        (1..=4_usize).prop_flat_map(|count| {
            let coefficients = || prop::collection::vec(-3..=9_i8, count);
            (coefficients(), prop::collection::vec((coefficients(), 0..=25_i8), 0..=3))
        })
    }

    fn build((worths, rows): &(Vec<i8>, Vec<(Vec<i8>, i8)>)) -> (Model, Vec<Variable>) {
        let mut model = Model::default();
        let variables: Vec<_> = worths.iter().map(|worth| model.integer(0, 3, f64::from(*worth))).collect();
        for (coefficients, limit) in rows {
            let terms = variables.iter().zip(coefficients).map(|(variable, value)| (*variable, f64::from(*value)));
            model.at_most(terms, f64::from(*limit));
        }
        (model, variables)
    }

    fn best_by_trying_all(model: &Model) -> f64 {
        let count = model.variables();
        let tried = (0..4_u32.pow(count as u32))
            .map(|code| (0..count).map(|at| f64::from((code >> (2 * at)) & 3)).collect::<Vec<_>>());
        tried.filter(|values| model.holds(values)).map(|values| model.worth(&values)).fold(f64::NEG_INFINITY, f64::max)
    }

    proptest! {
        #[test]
        fn the_optimum_is_what_trying_everything_finds(spec in model()) {
            let (model, _) = build(&spec);
            let expected = best_by_trying_all(&model);
            every(|solver| {
                let solution = solver.solve(&model, Limit::default(), &[]).expect("zero is feasible");
                assert!(solution.optimal, "{}", solver.name());
                assert_eq!(solution.value, expected, "{}", solver.name());
            });
        }

        #[test]
        fn a_limited_search_keeps_its_hint_and_bounds_the_optimum(spec in model(), nodes in 0..3_u64) {
            let (model, variables) = build(&spec);
            let expected = best_by_trying_all(&model);
            let hint: Vec<_> = variables.iter().map(|variable| (*variable, 0.0)).collect();
            every(|solver| {
                let solution = solver.solve(&model, Limit { nodes, gap: 0.0 }, &hint).expect("zero is the hint");
                assert!(solution.value >= 0.0 && solution.value <= expected && expected <= solution.bound + 1e-6);
                assert_eq!(solution.optimal, solution.gap() == 0.0);
            });
        }
    }
}

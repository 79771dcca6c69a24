//! Mixed-integer linear programs behind one small trait, for the engines and bounds that need an optimum.
//!
//! A [`Model`] is what is to be maximised; a [`Solver`] maximises it within a [`Limit`] and says how near to the optimum
//! it came: a [`Solution`] carries the best proven bound beside its value. Limits count nodes of the search tree and
//! never seconds, so that the same model gives the same solution on any machine and in any replay.
//!
//! `microlp` (pure Rust) is always there; `highs` (C++, far faster on large programs, needs cmake and libclang to build)
//! with the cargo feature of that name. Both are called directly: a common front end such as `good_lp` offers wall-clock
//! limits only and keeps the bound to itself. A node limit doesn't bound the work inside a node: callers bound the
//! model's [size](Model::size).
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

/// The solver of a name.
///
/// # Errors
/// This build has none; the error lists those it has.
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

/// Maximises models.
pub trait Solver: Send + Sync {
    /// What it is called in settings.
    fn name(&self) -> &'static str;

    /// The best assignment found within the limit. `hint` is a feasible assignment (of all integer variables) to start
    /// from, or empty: what comes back is at least as good; a hint that isn't feasible is ignored.
    ///
    /// Same model, limit and hint, same answer.
    ///
    /// # Errors
    /// There is no solution, none was found within the limit, or the numbers were too much for the solver.
    fn solve(&self, model: &Model, limit: Limit, hint: &[(Variable, f64)]) -> Result<Solution, SolverError>;
}

/// When a search may end before it has proven an optimum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Nodes of the search tree after the root.
    pub nodes: u64,
    /// Relative distance between value and bound that is good enough.
    pub gap: f64,
}

impl Default for Limit {
    /// To the optimum, however long it takes.
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
    /// Each variable once, in order.
    terms: Vec<(usize, f64)>,
    limit: f64,
}

/// A linear objective to be maximised under linear constraints.
#[derive(Clone, Debug, Default)]
pub struct Model {
    columns: Vec<Column>,
    /// Σ terms ≤ limit.
    rows: Vec<Row>,
}

impl Model {
    /// An integer variable from `least` to `most`; each unit of it adds `worth` to the objective.
    pub fn integer(&mut self, least: i32, most: i32, worth: f64) -> Variable {
        self.column(Column { least: least.into(), most: most.into(), worth, integer: true })
    }

    /// A real variable.
    pub fn real(&mut self, least: f64, most: f64, worth: f64) -> Variable {
        self.column(Column { least, most, worth, integer: false })
    }

    fn column(&mut self, column: Column) -> Variable {
        self.columns.push(column);
        Variable(self.columns.len() - 1)
    }

    /// Σ terms ≤ limit. A variable named more than once counts with the sum of its coefficients.
    pub fn at_most(&mut self, terms: impl IntoIterator<Item = (Variable, f64)>, limit: f64) {
        let mut sums: BTreeMap<usize, f64> = BTreeMap::new();
        for (variable, coefficient) in terms {
            *sums.entry(variable.0).or_default() += coefficient;
        }
        let terms: Vec<_> = sums.into_iter().filter(|(_, coefficient)| *coefficient != 0.0).collect();
        self.rows.push(Row { terms, limit });
    }

    /// Σ terms ≥ limit.
    pub fn at_least(&mut self, terms: impl IntoIterator<Item = (Variable, f64)>, limit: f64) {
        self.at_most(terms.into_iter().map(|(variable, coefficient)| (variable, -coefficient)), -limit);
    }

    /// How many variables it has.
    pub fn variables(&self) -> usize {
        self.columns.len()
    }

    /// Its size: coefficients in constraints, plus variables. Work at a node of the search grows about as its square.
    pub fn size(&self) -> usize {
        self.rows.iter().map(|row| row.terms.len()).sum::<usize>() + self.columns.len()
    }

    /// What an assignment is worth.
    fn worth(&self, values: &[f64]) -> f64 {
        self.columns.iter().zip(values).map(|(column, value)| column.worth * value).sum()
    }

    /// Whether an assignment keeps to every bound and constraint, but for rounding.
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

    /// What a back end found, checked: a solver's word is not taken for it.
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

/// A feasible assignment, and how good it may be at best.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    values: Vec<f64>,
    /// Its objective.
    pub value: f64,
    /// No assignment is worth more.
    pub bound: f64,
    /// The bound is met.
    pub optimal: bool,
    /// Nodes searched after the root.
    pub nodes: u64,
}

impl Solution {
    /// A variable's value; an integer variable's is whole.
    pub fn value(&self, variable: Variable) -> f64 {
        self.values[variable.0]
    }

    /// An integer variable's value, where it is a count.
    pub fn count(&self, variable: Variable) -> u32 {
        self.value(variable).max(0.0) as u32
    }

    /// The distance to the bound, relative to the value; 0 at the optimum.
    pub fn gap(&self) -> f64 {
        gap(self.value, self.bound)
    }
}

/// The distance from a value to its bound, relative to the value: 0 where they meet, infinite above a value of 0.
pub fn gap(value: f64, bound: f64) -> f64 {
    if bound <= value { 0.0 } else { (bound - value) / value.abs() }
}

/// Why there is no solution.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SolverError {
    /// No assignment keeps to all constraints.
    #[error("no assignment keeps to all constraints")]
    Infeasible,
    /// The objective grows without end.
    #[error("the objective grows without end")]
    Unbounded,
    /// None was found within the limit.
    #[error("no solution within {nodes} nodes; none is worth more than {bound}")]
    Limit {
        /// Nodes searched.
        nodes: u64,
        /// No assignment is worth more; infinite where nothing is known.
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

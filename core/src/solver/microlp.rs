//! The `microlp` crate: revised simplex and branch and bound. It uses no threads, no hash order and, without a time
//! limit, no clock.

use microlp::{
    ComparisonOp, Error, InterruptedSolve, OptimizationDirection, Problem, SolveOptions, SolveOutcome, Stats,
};

use super::{Limit, Model, Solution, Solver, SolverError, Variable};

#[derive(Clone, Copy, Debug)]
pub(super) struct Microlp;

impl Solver for Microlp {
    fn name(&self) -> &'static str {
        "microlp"
    }

    fn solve(&self, model: &Model, limit: Limit, hint: &[(Variable, f64)]) -> Result<Solution, SolverError> {
        let mut problem = Problem::new(OptimizationDirection::Maximize);
        let columns: Vec<_> = model
            .columns
            .iter()
            .map(|column| {
                if column.integer {
                    problem.add_integer_var(column.worth, (column.least as i32, column.most as i32))
                } else {
                    problem.add_var(column.worth, (column.least, column.most))
                }
            })
            .collect();
        for row in &model.rows {
            let terms: Vec<_> = row.terms.iter().map(|(at, coefficient)| (columns[*at], *coefficient)).collect();
            problem.add_constraint(terms, ComparisonOp::Le, row.limit);
        }
        let mut options = SolveOptions::default();
        options.node_limit = (limit.nodes < u64::MAX).then_some(limit.nodes);
        options.mip_gap = limit.gap;
        options.warm_start =
            (!hint.is_empty()).then(|| hint.iter().map(|(variable, value)| (columns[variable.0], *value)).collect());
        let bound = |stats: &Stats| stats.best_bound.unwrap_or(f64::INFINITY);
        match problem.solve_with(options).map_err(error)? {
            SolveOutcome::Solution(solution) => {
                let stats = solution.stats();
                let values = columns.iter().map(|column| solution.var_value_raw(*column)).collect();
                model.solution(values, bound(&stats), stats.nodes_solved)
            }
            SolveOutcome::Interrupted(interrupted) => Err(unsolved(&interrupted)),
        }
    }
}

fn unsolved(interrupted: &InterruptedSolve) -> SolverError {
    let stats = interrupted.stats();
    SolverError::Limit { nodes: stats.nodes_solved, bound: stats.best_bound.unwrap_or(f64::INFINITY) }
}

fn error(error: Error) -> SolverError {
    match error {
        Error::Infeasible => SolverError::Infeasible,
        Error::Unbounded => SolverError::Unbounded,
        Error::InvalidOptions(why) | Error::InvalidOperation(why) | Error::InternalError(why) => {
            SolverError::Failed(why)
        }
    }
}

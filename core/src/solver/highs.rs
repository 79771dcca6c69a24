//! HiGHS with one thread, a fixed seed, and limits in nodes, so that its results are reproducible.

use highs::{HighsModelStatus, HighsSolutionStatus, RowProblem, Sense};

use super::{Limit, Model, Solution, Solver, SolverError, Variable};

#[derive(Clone, Copy, Debug)]
pub(super) struct Highs;

impl Solver for Highs {
    fn name(&self) -> &'static str {
        "highs"
    }

    fn solve(&self, model: &Model, limit: Limit, hint: &[(Variable, f64)]) -> Result<Solution, SolverError> {
        let mut problem = RowProblem::default();
        let columns: Vec<_> = model
            .columns
            .iter()
            .map(|column| problem.add_column_with_integrality(column.worth, column.least..=column.most, column.integer))
            .collect();
        for row in &model.rows {
            problem.add_row(..=row.limit, row.terms.iter().map(|(at, coefficient)| (columns[*at], *coefficient)));
        }
        let failed = |what: &str| SolverError::Failed(format!("HiGHS: {what}"));
        let mut search = problem.try_optimise(Sense::Maximise).map_err(|_| failed("the model"))?;
        search.make_quiet();
        search.set_threads(std::num::NonZeroU32::MIN);
        search.set_option("parallel", "off");
        search.set_option("random_seed", 0);
        search.set_option("mip_rel_gap", limit.gap);
        search.set_option("mip_abs_gap", 0.0);
        // HiGHS counts the root as a node.
        search.set_option("mip_max_nodes", i32::try_from(limit.nodes.saturating_add(1)).unwrap_or(i32::MAX));
        if !hint.is_empty() {
            let mut values = vec![0.0; model.columns.len()];
            hint.iter().for_each(|(variable, value)| values[variable.0] = *value);
            search.set_solution(Some(&values), None, None, None);
        }
        let solved = search.try_solve().map_err(|_| failed("the search"))?;
        match solved.status() {
            HighsModelStatus::Infeasible => return Err(SolverError::Infeasible),
            HighsModelStatus::Unbounded => return Err(SolverError::Unbounded),
            // Presolve doesn't distinguish the two.
            HighsModelStatus::UnboundedOrInfeasible => return Err(SolverError::Infeasible),
            _ => {}
        }
        let integers = model.columns.iter().any(|column| column.integer);
        let bound = match solved.double_info_value(c"mip_dual_bound") {
            Ok(bound) if integers => bound,
            _ if solved.status() == HighsModelStatus::Optimal => solved.objective_value(),
            _ => f64::INFINITY,
        };
        let nodes = solved.int_info_value(c"mip_node_count").map_or(0, |nodes| nodes.max(0) as u64);
        if solved.primal_solution_status() != HighsSolutionStatus::Feasible {
            return Err(SolverError::Limit { nodes, bound });
        }
        model.solution(solved.get_solution().columns().to_vec(), bound, nodes)
    }
}

//! `offline` among the engines: the maximum utility, or the minimum completion times, with all arrivals known in
//! advance.

use serde::Serialize;
use trainmaster_core::{
    Span, amount,
    job::{JobSpec, Slots},
    settings::Parameter,
    solver::{self, Limit, Solver},
};
use trainmaster_sim::{
    Report, Workload,
    offline::{self, Instance},
};
use trainmaster_terminal::Failure;

use super::comparison::Named;

/// Its name in the list of engines.
pub(super) const NAME: &str = "offline";

/// Maximum number of variables. More would take days, and gigabytes.
const MOST_VARIABLES: u64 = 20_000;

/// Means over seeds.
#[derive(Serialize)]
pub(super) struct Optimum {
    /// Utility of the best schedules found.
    pub(super) utility: f64,
    /// Upper bound of the utility.
    pub(super) bound: f64,
    /// Distance between the two, relative to the utility.
    pub(super) gap: f64,
    /// Number of seeds with a proven optimum.
    pub(super) proven: usize,
    /// The optimum divided by each engine's utility, over all seeds. None if the engine's utility is zero.
    pub(super) ratios: Named<Option<f64>>,
    /// The largest ratio of any seed.
    pub(super) worst: Named<Option<f64>>,
    /// The bound divided by each engine's utility, which no optimum can exceed.
    pub(super) bound_ratios: Named<Option<f64>>,
    /// The largest ratio of any seed.
    pub(super) worst_bound: Named<Option<f64>>,
}

/// Lower bounds for schedules of jobs in chunks, as means over seeds.
#[derive(Serialize)]
pub(super) struct Soonest {
    /// Lower bound of the average completion time.
    pub(super) average_jct_s: f64,
    /// The relaxed program's objective: average fractional flow time of a job's chunks, which includes half of their
    /// training.
    pub(super) fractional_s: f64,
    /// Each engine's completion times divided by the bound, over all seeds. None if a job is unfinished.
    pub(super) ratios: Named<Option<f64>>,
    /// The largest ratio of any seed.
    pub(super) worst: Named<Option<f64>>,
    /// The same with the program's objective.
    pub(super) fractional_ratios: Named<Option<f64>>,
}

/// The result.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Offline {
    /// The maximum utility of jobs with utilities.
    Utility(Optimum),
    /// The minimum completion times of jobs in chunks.
    Times(Soonest),
}

/// Parameters of the search.
pub(super) struct Search {
    solver: &'static dyn Solver,
    limit: Limit,
}

impl Search {
    /// From `--set offline.solver=…`, `offline.nodes=…`, `offline.gap=…`.
    ///
    /// # Errors
    /// Another parameter, or an invalid value.
    pub(super) fn of(sets: &[(String, String, Parameter)]) -> Result<Self, Failure> {
        let mut search = Self { solver: solver::SOLVERS[0], limit: Limit { nodes: 300, gap: 0.01 } };
        for (_, name, value) in sets.iter().filter(|(engine, ..)| engine == NAME) {
            match (name.as_str(), value) {
                ("solver", Parameter::Text(name)) => {
                    search.solver = solver::find(name).map_err(|error| Failure::Usage(error.to_string()))?;
                }
                ("nodes", Parameter::Number(nodes)) if *nodes >= 0.0 && nodes.fract() == 0.0 => {
                    search.limit.nodes = *nodes as u64
                }
                ("gap", Parameter::Number(gap)) if (0.0..=1.0).contains(gap) => search.limit.gap = *gap,
                _ => {
                    return Err(Failure::Usage(format!(
                        "--set offline.{name}={value}: offline has solver (a name), nodes (a whole number, 0 or more) \
                         and gap (0 to 1)"
                    )));
                }
            }
        }
        Ok(search)
    }

    /// Checks whether a workload can be searched.
    ///
    /// # Errors
    /// It has neither slots with an end nor jobs in chunks, or it is too large.
    pub(super) fn check(&self, workload: &Workload) -> Result<(), Failure> {
        if in_chunks(workload) { self.soonest(workload).map(drop) } else { instance(workload).map(drop) }
    }

    /// The optimum for these workloads, compared with the engines' results, by seed.
    ///
    /// # Errors
    /// As [`check`](Self::check), or a failure of the solver.
    pub(super) fn solve(&self, workloads: &[Workload], engines: &[(String, Vec<&Report>)]) -> Result<Offline, Failure> {
        if workloads.iter().all(in_chunks) {
            self.times(workloads, engines).map(Offline::Times)
        } else {
            let earned: Vec<_> = engines
                .iter()
                .map(|(name, reports)| (name.clone(), reports.iter().map(|report| report.utility).collect()))
                .collect();
            self.utility(workloads, &earned).map(Offline::Utility)
        }
    }

    fn times(&self, workloads: &[Workload], engines: &[(String, Vec<&Report>)]) -> Result<Soonest, Failure> {
        let found = workloads.iter().map(|workload| self.soonest(workload)).collect::<Result<Vec<_>, _>>()?;
        let jobs: usize = workloads.iter().map(|workload| workload.jobs.len()).sum();
        let bound = || found.iter().map(|best| best.completion_s);
        let fractional: f64 = found.iter().map(|best| best.fractional_s).sum();
        // Sums over a seed's jobs, if all of them ended.
        let taken = |reports: &[&Report]| -> Option<Vec<f64>> {
            let of = |report: &&Report| report.jobs.iter().map(|job| job.jct_s).sum();
            reports.iter().map(of).collect()
        };
        let over = |measure: &dyn Fn(&[f64]) -> f64| {
            let of = |(name, reports): &(String, Vec<&Report>)| (name.clone(), taken(reports).map(|all| measure(&all)));
            Named(engines.iter().map(of).collect())
        };
        Ok(Soonest {
            average_jct_s: bound().sum::<f64>() / jobs as f64,
            fractional_s: fractional / jobs as f64,
            ratios: over(&|taken| taken.iter().sum::<f64>() / bound().sum::<f64>()),
            worst: over(&|taken| taken.iter().zip(bound()).map(|(taken, bound)| taken / bound).fold(0.0, f64::max)),
            fractional_ratios: over(&|taken| taken.iter().sum::<f64>() / fractional),
        })
    }

    fn soonest(&self, workload: &Workload) -> Result<offline::Relaxed, Failure> {
        let length = slot(workload).ok_or_else(unfit)?;
        let jobs = workload.jobs.iter().map(|job| (job.arrival, &job.spec));
        offline::relaxed(&workload.servers, jobs, Slots { length }, self.solver)
            .map_err(|error| Failure::refused(format!("offline: {error}")))
    }

    /// The best schedules of these workloads, and bounds of all schedules. `earned` are the engines' utilities, by
    /// seed.
    fn utility(&self, workloads: &[Workload], earned: &[(String, Vec<f64>)]) -> Result<Optimum, Failure> {
        let mut found = Vec::new();
        for workload in workloads {
            let instance = instance(workload)?;
            let best = offline::solve(&instance, self.solver, self.limit)
                .map_err(|error| Failure::refused(format!("offline: {error}")))?;
            found.push(best);
        }
        let mean =
            |value: &dyn Fn(&offline::Optimum) -> f64| found.iter().map(value).sum::<f64>() / found.len().max(1) as f64;
        // Ratios of totals, because an engine's utility may be zero with some seed. The worst ratio is over the seeds
        // with a positive one.
        let total = |value: fn(&offline::Optimum) -> f64| {
            let best = mean(&value);
            let ratios = earned.iter().map(|(name, earned)| {
                let earned = earned.iter().sum::<f64>() / earned.len().max(1) as f64;
                (name.clone(), (earned > 0.0).then(|| best / earned))
            });
            Named(ratios.collect())
        };
        let worst = |value: fn(&offline::Optimum) -> f64| {
            let ratios = earned.iter().map(|(name, earned)| {
                let pairs = found.iter().zip(earned).filter(|(_, earned)| **earned > 0.0);
                (name.clone(), pairs.map(|(best, earned)| value(best) / earned).max_by(f64::total_cmp))
            });
            Named(ratios.collect())
        };
        let (utility, bound) = (mean(&|best| best.utility), mean(&|best| best.bound));
        Ok(Optimum {
            utility,
            bound,
            gap: solver::gap(utility, bound),
            proven: found.iter().filter(|best| best.is_optimal()).count(),
            ratios: total(|best| best.utility),
            worst: worst(|best| best.utility),
            bound_ratios: total(|best| best.bound),
            worst_bound: worst(|best| best.bound),
        })
    }
}

/// Whether jobs consist of chunks with a known training time, without utilities.
fn in_chunks(workload: &Workload) -> bool {
    let timed = |spec: &JobSpec| spec.dataset.as_ref().is_some_and(|data| data.batch_time.is_some());
    workload.jobs.iter().all(|job| timed(&job.spec) && job.spec.utility.is_none())
}

fn slot(workload: &Workload) -> Option<Span> {
    let Some(Parameter::Text(slot)) = workload.parameters.get("slot") else { return None };
    amount::parse_span(slot).ok().filter(|slot| *slot > Span::ZERO)
}

fn unfit() -> Failure {
    Failure::Usage(
        "offline needs a workload in slots with an end (oasis-small, oasis-timely or oasis), or one of chunks (edge)"
            .into(),
    )
}

fn instance(workload: &Workload) -> Result<Instance, Failure> {
    let length = slot(workload).ok_or_else(unfit)?;
    let end = workload.end.ok_or_else(unfit)?;
    let count = u32::try_from(end.0 / length.0).map_err(|_| unfit())?;
    let jobs = workload.jobs.iter().map(|job| (job.arrival, &job.spec));
    let instance = Instance::of(&workload.servers, jobs, Slots { length }, count)
        .map_err(|error| Failure::refused(format!("offline: {error}")))?;
    let variables = instance.variables();
    if variables > MOST_VARIABLES {
        return Err(Failure::Usage(format!(
            "offline: {variables} variables are more than {MOST_VARIABLES}; fewer jobs (--jobs) or a shorter workload \
             (oasis-small) have fewer"
        )));
    }
    Ok(instance)
}

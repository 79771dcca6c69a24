//! Episodes: a simulated workload, and its reward.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use serde::Serialize;
use trainmaster_core::{
    Settings, Span, Ticket,
    engine::Budget,
    engines::{self},
    job::StopChoice,
    policy::{Demonstration, Policy},
    scheduler::Outcome,
    settings::{Parameter, Stability},
};
use trainmaster_sim::{self as sim, Host, Options, Report, Request, SimError};

use super::{Course, TrainError};

/// An episode to run.
pub(super) struct Episode {
    pub(super) seed: u64,
    /// None: the heuristic.
    pub(super) policy: Option<Policy>,
}

/// Results of an episode.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Played {
    /// Fraction of completed jobs.
    completed: f64,
    /// Mean JCT, deadlines met, traffic between servers, accuracies met and mean accuracy, the last two by the
    /// deadline.
    goals: [f64; 5],
}

/// Means over episodes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Means {
    /// Completion time of jobs in seconds.
    pub jct_s: f64,
    /// Fraction of jobs that meet their deadlines.
    pub deadline_ratio: f64,
    /// Traffic between servers in GB.
    pub traffic_gb: f64,
    /// Fraction of jobs that reach their required accuracy by the deadline.
    pub accuracy_ratio: f64,
    /// Accuracy at the deadline.
    pub accuracy_at_deadline: f64,
}

impl Means {
    pub(super) fn of(played: &[Played]) -> Self {
        let mean = |goal: usize| played.iter().map(|one| one.goals[goal]).sum::<f64>() / played.len().max(1) as f64;
        Self {
            jct_s: mean(0),
            deadline_ratio: mean(1),
            traffic_gb: mean(2),
            accuracy_ratio: mean(3),
            accuracy_at_deadline: mean(4),
        }
    }
}

/// Weights of the goals: MLFS, Eq. 7 and §4.1.
const ALL_GOALS: [f64; 5] = [0.5, 0.55, 0.25, 0.15, 0.15];
/// Weights for an engine with one goal.
const COMPLETION_ALONE: [f64; 5] = [1.0, 0.0, 0.0, 0.0, 0.0];
/// Goals for which less is better.
const LESS: [bool; 5] = [true, false, true, false, false];
/// Maximum of a single goal, as a multiple of the heuristic's value.
const MOST: f64 = 2.0;

/// Minimum time between reports, because fits take most of an episode's time. Accuracies aren't forecast, because no
/// job is ended early.
const REPORT_EVERY: Span = Span::seconds(600);

/// The setting of episodes.
pub(super) struct Stage<'a> {
    course: &'a Course,
    settings: Settings,
    weights: [f64; 5],
    played: &'a (dyn Fn() + Sync),
}

impl<'a> Stage<'a> {
    pub(super) fn of(course: &'a Course, played: &'a (dyn Fn() + Sync)) -> Result<Self, TrainError> {
        let entry = engines::find(course.engine)?;
        let plain =
            course.workload.build(&Request { seed: course.seed, jobs: course.jobs, servers: course.servers })?;
        let known = |name: &str| entry.has(name);
        let of_engine = |key: &str| match key.split_once('.') {
            Some((engine, name)) => (engine == course.engine).then(|| name.to_owned()),
            None => Some(key.to_owned()),
        };
        let mut parameters: BTreeMap<String, Parameter> = plain
            .parameters
            .iter()
            .filter_map(|(key, value)| Some((of_engine(key).filter(|name| known(name))?, value.clone())))
            .collect();
        if known("stop") {
            // Early ends are MLF-C's task.
            parameters.insert("stop".into(), Parameter::Flag(false));
        }
        let stability = Stability { enabled: false, ..Stability::default() };
        let settings = Settings { engine: course.engine.into(), parameters, stability, ..Settings::default() };
        entry.build(&settings.parameters)?;
        let goals = known("gamma_deadline");
        Ok(Self { course, settings, weights: if goals { ALL_GOALS } else { COMPLETION_ALONE }, played })
    }

    /// Description of the workload.
    pub(super) fn name(&self) -> String {
        let Course { workload, jobs, servers, .. } = self.course;
        let own =
            |what: &str, number: &Option<u32>| number.map_or_else(String::new, |number| format!(" --{what} {number}"));
        format!("{}{}{}", workload.name, own("jobs", jobs), own("servers", servers))
    }

    /// The heuristic's own reward.
    pub(super) fn par(&self) -> f64 {
        self.weights.iter().sum()
    }

    /// Reward of an episode, relative to the heuristic's with the same seed: each goal as a multiple of the
    /// heuristic's, times the fraction of completed jobs.
    pub(super) fn reward(&self, played: &Played, heuristic: &Played) -> f64 {
        let goals = played.goals.iter().zip(&heuristic.goals).zip(self.weights.iter().zip(LESS));
        let sum: f64 = goals
            .map(|((own, other), (weight, less))| {
                let (above, below) = if less { (other, own) } else { (own, other) };
                let ratio = if *above <= 0.0 && *below <= 0.0 { 1.0 } else { above / below.max(1e-9) };
                weight * ratio.min(MOST)
            })
            .sum();
        sum * (played.completed / heuristic.completed.max(1e-9)).min(1.0)
    }

    fn one(&self, episode: &Episode, host: &mut dyn Host) -> Result<Played, SimError> {
        let Course { workload, jobs, servers, .. } = *self.course;
        let request = Request { seed: episode.seed, jobs, servers };
        let mut workload = workload.build(&request).expect("it was built with other seeds before");
        workload.report_every = workload.report_every.max(REPORT_EVERY);
        for job in &mut workload.jobs {
            (job.spec.stop, job.spec.stop_under_load) = (StopChoice::Epochs, StopChoice::Epochs);
        }
        let options = Options {
            settings: Settings { seed: episode.seed, ..self.settings.clone() },
            policies: episode.policy.clone().into_iter().collect(),
            seed: episode.seed,
            ..Options::default()
        };
        let report = sim::play(&workload, &options, host)?;
        (self.played)();
        Ok(Played::of(&report))
    }

    /// Runs episodes on the course's threads. The results don't depend on the threads.
    pub(super) fn play(&self, episodes: &[Episode]) -> Result<Vec<Played>, SimError> {
        let next = AtomicUsize::new(0);
        let done: Vec<Mutex<Option<Result<Played, SimError>>>> = episodes.iter().map(|_| Mutex::new(None)).collect();
        thread::scope(|scope| {
            for _ in 0..self.course.threads.clamp(1, episodes.len().max(1)) {
                scope.spawn(|| {
                    loop {
                        let place = next.fetch_add(1, Ordering::Relaxed);
                        let Some(result) = done.get(place) else { break };
                        let played = self.one(&episodes[place], &mut ());
                        *result.lock().expect("nobody panics while writing a result") = Some(played);
                    }
                });
            }
        });
        let taken = |result: Mutex<Option<_>>| result.into_inner().expect("as above").expect("every place was taken");
        done.into_iter().map(taken).collect()
    }

    /// The heuristic's choices with these seeds: an even sample of at most `most`.
    pub(super) fn shown(&self, seeds: &[u64], most: usize) -> Result<Vec<Demonstration>, SimError> {
        let mut shown = Vec::new();
        for seed in seeds {
            let mut onlooker = Onlooker(Vec::new());
            self.one(&Episode { seed: *seed, policy: None }, &mut onlooker)?;
            let step = onlooker.0.len().div_ceil(most / seeds.len()).max(1);
            shown.extend(onlooker.0.into_iter().step_by(step));
        }
        Ok(shown)
    }
}

/// Records choices.
struct Onlooker(Vec<Demonstration>);

impl Host for Onlooker {
    fn run(&mut self, ticket: Ticket) -> Outcome {
        self.0.extend(ticket.demonstrate());
        ticket.run(Budget::UNLIMITED)
    }
}

impl Played {
    fn of(report: &Report) -> Self {
        let completed = report.jobs.iter().filter(|job| job.fate == sim::Fate::Completed).count();
        let goals = [
            report.average_jct_s.unwrap_or(f64::MAX / 1e9),
            report.deadline_ratio.unwrap_or(0.0),
            report.traffic_gb,
            report.accuracy_ratio.unwrap_or(0.0),
            report.accuracy_at_deadline.unwrap_or(0.0),
        ];
        Self { completed: completed as f64 / report.jobs.len().max(1) as f64, goals }
    }
}

#[cfg(test)]
mod tests {
    use trainmaster_sim::workload;

    use super::*;

    #[test]
    fn the_heuristic_has_the_par_reward_and_worse_results_less() {
        let course = Course {
            engine: "mlfs",
            workload: workload::find("mlfs").unwrap(),
            jobs: Some(3),
            servers: Some(1),
            seed: 1,
            hidden: 4,
            steps: 1,
            pairs: 1,
            deviation: 0.1,
            rate: 0.1,
            selection: 1,
            validation: 1,
            threads: 1,
        };
        let stage = Stage::of(&course, &|| ()).unwrap();
        let heuristic = Played { completed: 1.0, goals: [100.0, 0.5, 0.0, 0.5, 0.5] };
        assert!((stage.reward(&heuristic, &heuristic) - stage.par()).abs() < 1e-12);
        let with = |goal: usize, value: f64| {
            let mut played = heuristic;
            played.goals[goal] = value;
            stage.reward(&played, &heuristic) - stage.par()
        };
        assert!((with(0, 200.0) + 0.25).abs() < 1e-12 && (with(0, 80.0) - 0.125).abs() < 1e-12);
        // Even with a tiny completion time.
        assert!((with(0, 1.0) - 0.5).abs() < 1e-12 && (with(1, 0.25) + 0.275).abs() < 1e-12);
        // Traffic where the heuristic had none has the worst value.
        assert!((with(2, 10.0) + 0.25).abs() < 1e-9);
        let left = Played { completed: 0.5, ..heuristic };
        assert!((stage.reward(&left, &heuristic) - stage.par() / 2.0).abs() < 1e-12);
        assert_eq!(stage.name(), "mlfs --jobs 3 --servers 1");
    }
}

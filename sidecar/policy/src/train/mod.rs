//! Training of a policy: first by imitation of the engine's heuristic, then by the gradient of a reward over whole
//! episodes.
//!
//! The core draws no random numbers, so exploration is in the weights. The weights of a policy are perturbed once per
//! episode, and the policy then decides as usual. The gradient of the mean reward is estimated from pairs of episodes
//! with the same seed and opposite perturbations. These are evolution strategies (Salimans et al., 2017), the simplest
//! policy gradients with parameter-based exploration (Sehnke et al., 2010). An episode has thousands of actions and one
//! reward at its end. In this case they are better than gradients by action, and they need no stochastic engine.
//!
//! Three sets of seeds are separate: for the training, for the choice of the best weights, and for the validation in
//! the policy's file.

mod episodes;
mod net;

use serde::Serialize;
use trainmaster_core::{
    SettingsError,
    engines::policy_inputs,
    policy::{Network, Policy, PolicyError, Validation},
};
use trainmaster_sim::{Draws, SimError, WorkloadError, workload};

pub use self::episodes::Means;
use self::{
    episodes::{Episode, Played, Stage},
    net::{Adam, Imitated, imitate, initial},
};

/// Parameters of a training.
#[derive(Clone, Copy)]
pub struct Course {
    /// The engine.
    pub engine: &'static str,
    /// The workload of its episodes.
    pub workload: &'static workload::Entry,
    /// Number of jobs, instead of the workload's own.
    pub jobs: Option<u32>,
    /// Number of servers, instead of the workload's own.
    pub servers: Option<u32>,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Units of the hidden layer.
    pub hidden: usize,
    /// Steps of the policy gradient …
    pub steps: u32,
    /// … with this number of pairs of episodes each.
    pub pairs: u32,
    /// Standard deviation of the weights' perturbation.
    pub deviation: f64,
    /// Maximum change of each weight in a step.
    pub rate: f64,
    /// Number of seeds for the choice of the best step.
    pub selection: u32,
    /// Number of seeds for the validation.
    pub validation: u32,
    /// Number of threads. The results don't depend on it.
    pub threads: usize,
}

/// Number of imitated episodes.
const SHOWN_EPISODES: u64 = 4;
/// Maximum number of imitated choices: an even sample of all.
const SHOWN: usize = 20_000;
const PASSES: u32 = 12;
/// Interval in steps at which the weights are evaluated on the seeds for the choice.
const TRY_EVERY: u32 = 4;
/// Number of seeds for the training, used in turn. The heuristic's episode with each runs once.
const TRAINED: u64 = 64;

/// The first seed of each set, from the course's own seed.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Seeds {
    /// For the training.
    pub training: u64,
    /// For the choice of the best step.
    pub selection: u64,
    /// For the validation.
    pub validation: u64,
}

impl Seeds {
    pub(crate) fn of(seed: u64) -> Self {
        let from = |set: u64| seed.wrapping_mul(10_000).wrapping_add(set);
        Self { training: from(1000), selection: from(2000), validation: from(3000) }
    }
}

/// A point of the learning curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Number of steps of the policy gradient so far.
    pub step: u32,
    /// Mean reward of the perturbed episodes of this step. None before the first step.
    pub training: Option<f64>,
    /// Mean reward of the weights on the seeds for the choice, if they were evaluated.
    pub selection: Option<f64>,
}

/// Results of a training.
#[derive(Clone, Debug, Serialize)]
pub struct Trained {
    /// The policy with its validation.
    #[serde(skip)]
    pub policy: Policy,
    /// The first seed of each set.
    pub seeds: Seeds,
    /// The heuristic's reward.
    pub par: f64,
    /// Number of imitated choices.
    pub shown: usize,
    /// Fraction of the imitated choices that the policy reproduces.
    pub agreed: f64,
    /// The learning curve, by step.
    pub curve: Vec<Point>,
    /// The step with the best weights.
    pub best_step: u32,
    /// Means of the policy in the validation.
    pub policy_means: Means,
    /// Means of the heuristic in the validation.
    pub heuristic_means: Means,
}

/// A failure of a training.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The engine follows no policy.
    #[error(transparent)]
    Engine(#[from] PolicyError),
    /// The workload's settings are invalid.
    #[error("settings: {0}")]
    Settings(#[from] SettingsError),
    /// The workload can't be made.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// An episode failed.
    #[error(transparent)]
    Play(#[from] SimError),
    /// No task ever had a choice.
    #[error("workload {0:?} gave nothing to imitate: no task ever had a choice")]
    Nothing(String),
}

impl Course {
    /// Number of episodes to run.
    pub fn episodes(&self) -> u64 {
        let tries = u64::from(self.steps.div_ceil(TRY_EVERY)) + 1;
        let trained = TRAINED.min(u64::from(self.steps) * u64::from(self.pairs));
        let trying = u64::from(self.selection) * (tries + 1);
        SHOWN_EPISODES
            + trained
            + 2 * u64::from(self.steps) * u64::from(self.pairs)
            + trying
            + 2 * u64::from(self.validation)
    }

    /// Trains a policy. `played` is called after each episode, `said` for each point of the curve.
    ///
    /// # Errors
    /// The engine uses no policy, or the workload can't be simulated.
    pub fn train(&self, played: &(dyn Fn() + Sync), said: &mut dyn FnMut(Point)) -> Result<Trained, TrainError> {
        let inputs = policy_inputs(self.engine)?;
        let sizes = (inputs.names.len(), self.hidden);
        let network = |weights: &[f32]| Network::new(sizes.0, sizes.1, weights.to_vec());
        let made = |weights: &[f32], validation: Option<Validation>| {
            Ok::<_, PolicyError>(Policy::new(self.engine, inputs.version, network(weights)?, validation))
        };
        let stage = Stage::of(self, played)?;
        let (draws, seeds) = (Draws::new(self.seed), Seeds::of(self.seed));
        let from = |first: u64, count: u64| (0..count).map(|at| first.wrapping_add(at)).collect::<Vec<u64>>();

        let shown = stage.shown(&from(seeds.training, SHOWN_EPISODES), SHOWN)?;
        if shown.is_empty() {
            return Err(TrainError::Nothing(self.workload.name.into()));
        }
        let mut weights = initial(sizes.0, sizes.1, draws.of(1));
        let Imitated { agreed, .. } = imitate(&mut weights, sizes, &shown, PASSES, draws.of(2));

        let heuristic = |seeds: &[u64]| {
            let episodes = seeds.iter().map(|seed| Episode { seed: *seed, policy: None });
            stage.play(&episodes.collect::<Vec<_>>())
        };
        let selection = from(seeds.selection, self.selection.into());
        let selection_par = heuristic(&selection)?;
        let try_on = |weights: &[f32], seeds: &[u64], par: &[Played]| -> Result<(f64, Vec<Played>), TrainError> {
            let policy = made(weights, None)?;
            let episodes: Vec<_> =
                seeds.iter().map(|seed| Episode { seed: *seed, policy: Some(policy.clone()) }).collect();
            let played = stage.play(&episodes)?;
            let rewards = played.iter().zip(par).map(|(one, par)| stage.reward(one, par));
            Ok((rewards.sum::<f64>() / seeds.len() as f64, played))
        };

        let pool = TRAINED.min(u64::from(self.steps) * u64::from(self.pairs));
        let trained = from(seeds.training, pool);
        let pool_par = heuristic(&trained)?;
        let mut adam = Adam::new(self.rate, weights.len());
        let first = try_on(&weights, &selection, &selection_par)?.0;
        let mut best = (first, 0, weights.clone());
        let mut curve = vec![Point { step: 0, training: None, selection: Some(first) }];
        said(curve[0]);
        for step in 1..=self.steps {
            let noise = |pair: u32| {
                let draws = draws.of(3).of(step.into()).of(pair.into());
                (0..weights.len()).map(move |at| draws.normal(at as u64))
            };
            let mut episodes = Vec::with_capacity(2 * self.pairs as usize);
            let places: Vec<usize> =
                (0..self.pairs).map(|pair| (u64::from((step - 1) * self.pairs + pair) % pool) as usize).collect();
            for (pair, place) in (0..self.pairs).zip(&places) {
                for sign in [1.0, -1.0] {
                    let moved: Vec<f32> = weights
                        .iter()
                        .zip(noise(pair))
                        .map(|(weight, noise)| (f64::from(*weight) + sign * self.deviation * noise) as f32)
                        .collect();
                    episodes.push(Episode { seed: trained[*place], policy: Some(made(&moved, None)?) });
                }
            }
            let played = stage.play(&episodes)?;
            let rewards: Vec<(f64, f64)> = played
                .chunks_exact(2)
                .zip(&places)
                .map(|(pair, place)| {
                    let reward = |one| stage.reward(one, &pool_par[*place]);
                    (reward(&pair[0]), reward(&pair[1]))
                })
                .collect();
            let spread = rewards.iter().map(|(up, down)| (up - down) * (up - down)).sum::<f64>();
            let spread = (spread / f64::from(self.pairs)).sqrt().max(1e-9);
            let mut gradient = vec![0.0; weights.len()];
            for (pair, (up, down)) in (0..self.pairs).zip(&rewards) {
                // Adam minimises, and the reward is maximised.
                let slope = -(up - down) / spread / f64::from(self.pairs);
                gradient.iter_mut().zip(noise(pair)).for_each(|(sum, noise)| *sum += slope * noise);
            }
            adam.step(&mut weights, &gradient);
            let mean = rewards.iter().map(|(up, down)| up + down).sum::<f64>() / (2.0 * f64::from(self.pairs));
            let tried = (step % TRY_EVERY == 0 || step == self.steps)
                .then(|| try_on(&weights, &selection, &selection_par))
                .transpose()?
                .map(|(reward, _)| reward);
            if let Some(reward) = tried.filter(|reward| *reward > best.0) {
                best = (reward, step, weights.clone());
            }
            let point = Point { step, training: Some(mean), selection: tried };
            said(point);
            curve.push(point);
        }

        let (_, best_step, weights) = best;
        let held_out = from(seeds.validation, self.validation.into());
        let par = heuristic(&held_out)?;
        let (reward, played) = try_on(&weights, &held_out, &par)?;
        let validation =
            Validation { workload: stage.name(), episodes: self.validation, policy: reward, heuristic: stage.par() };
        Ok(Trained {
            policy: made(&weights, Some(validation))?,
            seeds,
            par: stage.par(),
            shown: shown.len(),
            agreed,
            curve,
            best_step,
            policy_means: Means::of(&played),
            heuristic_means: Means::of(&par),
        })
    }
}

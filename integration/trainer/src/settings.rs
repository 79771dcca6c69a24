//! Settings of a process, combined from checked flags.

use std::{path::PathBuf, time::Duration};

use anyhow::{Result, ensure};

use crate::{
    args::{Mode, ModelArgs, TrainingArgs},
    batch::Batches,
    chunks::Chunks,
    convergence::Convergence,
    data::DataSettings,
    device::Device,
    model::Network,
    parts::Parts,
    turns::Turns,
};

/// Maximum number of micro-batches for a replica's share of a step. It keeps all partitions busy with few messages.
pub(crate) const MICRO_BATCHES: u64 = 16;

const DEFAULT_EXAMPLES: u64 = 2000;
const DEFAULT_EPOCHS: u32 = 100;
const DEFAULT_CLASSES: u32 = 10;
const DEFAULT_FEATURES: u32 = 16;
/// Maximum number of parameters. Frames contain whole parameter vectors and must fit the length field.
const MOST_PARAMETERS: u64 = 100_000_000;
/// The same for micro-batches, in bytes.
const MOST_BYTES: u64 = 1 << 30;

/// The job. The settings are the same in all of its processes.
#[derive(Clone, Debug)]
pub struct Settings {
    pub(crate) mode: Mode,
    /// Division of epochs into steps and shares.
    pub(crate) batches: Batches,
    /// Division of the dataset, if its chunks may be scheduled one by one.
    pub(crate) chunks: Option<Chunks>,
    pub(crate) convergence: Convergence,
    pub(crate) network: Network,
    pub(crate) parts: Parts,
    pub(crate) data: DataSettings,
    pub(crate) learning_rate: f32,
    pub(crate) momentum: f32,
    pub(crate) device: Device,
    pub(crate) turns: Turns,
    pub(crate) checkpoint_dir: Option<PathBuf>,
    pub(crate) pace: Pace,
}

/// Flags as durations.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    pub(crate) max_steps: Option<u64>,
    pub(crate) report: Duration,
    pub(crate) report_steps: Option<u32>,
    pub(crate) settle_steps: u32,
    pub(crate) checkpoint: Duration,
    pub(crate) checkpoint_epochs: Option<u32>,
    pub(crate) gather: Duration,
    pub(crate) replace: Duration,
    pub(crate) start: Duration,
}

impl Settings {
    /// Combines the flags.
    pub fn new(training: &TrainingArgs, checkpoint_dir: Option<PathBuf>) -> Result<Self> {
        let TrainingArgs { job, model, device, pace } = training;
        let examples = match job.examples {
            0 => model.data.examples().unwrap_or(DEFAULT_EXAMPLES),
            given => given,
        };
        let (classes, features) = shape(model)?;
        let hidden: Vec<usize> = model.hidden.iter().map(|&size| size as usize).collect();
        ensure!(hidden.len() <= 2, "--hidden names {} layers; at most 2 are allowed", hidden.len());
        let mut sizes: Vec<u64> = vec![features.into()];
        sizes.extend(model.hidden.iter().map(|&size| u64::from(size)));
        sizes.push(classes.into());
        let parameters: u64 = sizes.windows(2).map(|pair| (pair[0] + 1) * pair[1]).sum();
        ensure!(
            parameters <= MOST_PARAMETERS,
            "--features, --hidden and --classes make {parameters} parameters; at most {MOST_PARAMETERS} are allowed"
        );
        let network = Network::new(features as usize, &hidden, classes as usize);
        let parts = Parts::new(job.partitions, &job.partitions_after, network.depth())?;
        let ms = Duration::from_millis;
        let settings = Self {
            mode: job.mode,
            batches: Batches { examples, batch: job.batch.min(examples), seed: model.seed },
            // In a ring, and with partitions, all workers take part in all steps.
            chunks: (job.chunks > 0 && job.mode != Mode::Allreduce && parts.count() == 1).then_some(Chunks {
                count: job.chunks,
                epochs: job.chunk_epochs,
                batches: job.chunk_batches,
            }),
            convergence: Convergence {
                delta: job.delta,
                patience: job.patience,
                max_epochs: if job.max_epochs == 0 { DEFAULT_EPOCHS } else { job.max_epochs },
            },
            network,
            parts,
            data: DataSettings {
                kind: model.data,
                classes: classes as usize,
                features: features as usize,
                noise: model.noise,
                label_noise: model.label_noise,
                seed: model.seed,
            },
            learning_rate: model.learning_rate as f32,
            momentum: model.momentum as f32,
            device: device.clone(),
            turns: Turns::default(),
            checkpoint_dir,
            pace: Pace {
                max_steps: (pace.max_steps > 0).then_some(pace.max_steps),
                report: ms(pace.report_ms),
                report_steps: (pace.report_steps > 0).then_some(pace.report_steps),
                settle_steps: pace.settle_steps,
                checkpoint: ms(pace.checkpoint_ms),
                checkpoint_epochs: (pace.checkpoint_epochs > 0).then_some(pace.checkpoint_epochs),
                gather: ms(pace.gather_ms),
                replace: ms(pace.replace_ms),
                start: ms(pace.start_ms),
            },
        };
        ensure!(
            settings.parts.count() == 1 || settings.micro_batch_bytes() <= MOST_BYTES,
            "--batch {} and --hidden {hidden:?} make {} bytes that parts of the model exchange at once; at most \
             {MOST_BYTES} are allowed",
            job.batch,
            settings.micro_batch_bytes()
        );
        Ok(settings)
    }

    /// Maximum bytes of a partition's outputs for a micro-batch.
    fn micro_batch_bytes(&self) -> u64 {
        let shards = self.batches.batch.div_ceil(self.batches.micro()).div_ceil(MICRO_BATCHES);
        let widest = self.network.sizes().iter().max().copied().unwrap_or_default();
        4 * shards * self.batches.micro() * widest as u64
    }

    /// The values that a checkpoint must share with the job that resumes from it.
    pub fn fingerprint(&self) -> String {
        let DataSettings { kind, noise, label_noise, seed, .. } = &self.data;
        let chunks = self.chunks.map(|chunks| format!(" in {} chunks of {}", chunks.count, chunks.batches));
        format!(
            "layers {:?}, {kind:?} noise {noise} label noise {label_noise} seed {seed}, examples {} batch {}{}",
            self.network.sizes(),
            self.batches.examples,
            self.batches.batch,
            chunks.unwrap_or_default()
        )
    }

    /// Maximum frame: a holder's whole state, a step's sums (at most 10 bytes each), or a partition's outputs for a
    /// micro-batch.
    pub(crate) fn frame_limit(&self) -> usize {
        let exchanged = if self.parts.count() == 1 { 0 } else { self.micro_batch_bytes() as usize };
        (10 * self.network.parameters()).max(exchanged) + (1 << 16)
    }
}

/// Classes and features: as requested, unless real data have others.
fn shape(model: &ModelArgs) -> Result<(u32, u32)> {
    let Some((classes, features)) = model.data.shape() else {
        return Ok((model.classes.unwrap_or(DEFAULT_CLASSES), model.features.unwrap_or(DEFAULT_FEATURES)));
    };
    for (flag, given, has) in [("--classes", model.classes, classes), ("--features", model.features, features)] {
        if let Some(given) = given {
            ensure!(given == has, "{flag} {given}: this data set has {has}; leave it out");
        }
    }
    Ok((classes, features))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::rc::Rc;

    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    fn training(flags: &[&str]) -> clap::error::Result<TrainingArgs> {
        Cli::try_parse_from([&["test"], flags].concat()).map(|cli| cli.training)
    }

    fn parse(flags: &[&str]) -> Result<Settings> {
        Settings::new(&training(flags)?, None)
    }

    pub(crate) fn settings(flags: &[&str]) -> Rc<Settings> {
        Rc::new(parse(flags).unwrap())
    }

    #[test]
    fn wrong_values_are_named_with_the_allowed_ones() {
        for (flags, parts) in [
            (&["--batch=0"][..], &["--batch", "'0'", "1.."][..]),
            (&["--delta=-1"], &["--delta", "'-1'", "from 0 to 1"]),
            (&["--noise=x"], &["--noise", "'x'", "not a number"]),
            (&["--mode=ring"], &["--mode", "'ring'", "sync, async, allreduce"]),
            (&["--device-straggler=3"], &["--device-straggler", "'3'", "3:2.5"]),
            (&["--hidden=4,4,4"], &["--hidden", "3", "at most 2"]),
            (&["--hidden=4", "--partitions=3"], &["--partitions", "3", "2 layers", "1 to 2"]),
            (
                &["--hidden=4,4", "--partitions=3", "--partitions-after=-:0:0"],
                &["TRAINMASTER_PARTITIONS_AFTER", "-:0:1"],
            ),
            (
                &[
                    "--hidden=100000",
                    "--features=8",
                    "--classes=2",
                    "--partitions=2",
                    "--batch=16777216",
                    "--examples=16777216",
                ],
                &["--batch", "--hidden", "at most"],
            ),
            (&["--data=iris", "--classes=10"], &["--classes 10", "has 3"]),
            (&["--data=iris", "--features=5"], &["--features 5", "has 4"]),
            (&["--features=100000", "--hidden=100000"], &["--features", "parameters", "at most"]),
        ] {
            let message = parse(flags).unwrap_err().to_string();
            for part in parts {
                assert!(message.contains(part), "{flags:?}: {message}");
            }
        }
    }

    #[test]
    fn zeros_stand_for_defaults() {
        let settings = settings(&["--examples=0", "--max-epochs=0", "--max-steps=0"]);
        assert_eq!(settings.batches.examples, DEFAULT_EXAMPLES);
        assert_eq!(settings.convergence.max_epochs, DEFAULT_EPOCHS);
        assert_eq!(settings.pace.max_steps, None);
        let iris = self::settings(&["--data=iris", "--batch=200"]);
        assert_eq!((iris.batches.examples, iris.batches.batch), (120, 120));
        assert_eq!((iris.data.classes, iris.data.features), (3, 4));
    }

    #[test]
    fn flags_survive_being_passed_on() {
        let given = [
            "--mode=async",
            "--batch=7",
            "--data=teacher",
            "--hidden=5,4",
            "--device-nic-mbit=10.5",
            "--device-straggler=1:2,3:1.5",
        ];
        let again = training(&given).unwrap().flags();
        let again: Vec<&str> = again.iter().map(String::as_str).collect();
        assert_eq!(format!("{:?}", settings(&again)), format!("{:?}", settings(&given)));
    }
}

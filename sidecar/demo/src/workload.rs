//! The demo's cluster and jobs. Those of the comparison were fixed before any engine ran on them. The first minute has
//! four of them, with arrivals that were chosen to show changes.
//!
//! Nine jobs similar to Optimus's Table 1: the paper's models by parameter size (4 bytes each), large and small,
//! synchronous and asynchronous, one all-reduce, with convergence thresholds from 1 to 3 %. Time is about 200 times
//! faster than in the paper: a round every 3 s instead of 10 minutes, arrivals within 60 s instead of 12,000, and
//! stability rules on the same scale.
//!
//! The requested shape of a job, which it gets under `fifo`, is that of an owner without measurements: four workers for
//! the large models, two for the small ones, and a parameter server for every two workers.

use std::fmt::Write;

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{RngCore, SeedableRng},
};

/// Time between rounds, for all engines with rounds.
pub(super) const INTERVAL: &str = "3s";
/// The same for `mlfs`, whose rounds are a minute in its paper.
const MLFS_INTERVAL: &str = "2s";
/// Arrivals are uniform in this number of seconds. The first job arrives at once.
pub(super) const ARRIVALS: f64 = 60.0;
/// (p, w) of the five profiling runs of each job, as in the paper (§6.1), spread over w/p.
pub(super) const PROFILED: [(u32, u32); 5] = [(1, 1), (1, 4), (3, 2), (4, 4), (2, 6)];
/// The same for all-reduce jobs.
pub(super) const PROFILED_RING: [(u32, u32); 5] = [(0, 1), (0, 2), (0, 3), (0, 5), (0, 7)];

/// Four servers of different sizes, one without GPUs.
pub(super) const CLUSTER: &str = r#"name = "demo"
grace = "5s"

[[server]]
name = "large"
gpu = 4
cpu = 16
memory = "64GiB"

[[server]]
name = "medium"
gpu = 2
cpu = 12
memory = "48GiB"

[[server]]
name = "small"
gpu = 2
cpu = 8
memory = "32GiB"

[[server]]
name = "cpu-only"
cpu = 16
memory = "64GiB"
"#;

/// One job of the workload.
#[derive(Clone, Copy)]
pub(super) struct DemoJob {
    pub(super) name: &'static str,
    mode: &'static str,
    /// Examples per step (of one worker, if asynchronous), with ten steps per epoch.
    batch: u32,
    delta: f64,
    learning_rate: f64,
    hidden: u32,
    requested: (u32, u32),
    most: (u32, u32),
    // The emulated device.
    example_ms: f64,
    step_ms: f64,
    update_ms: f64,
    model_mib: u32,
}

const LARGE: ((u32, u32), (u32, u32)) = ((4, 2), (8, 4));
const SMALL: ((u32, u32), (u32, u32)) = ((2, 1), (6, 3));

#[rustfmt::skip] // a job in two lines
pub(super) const JOBS: [DemoJob; 9] = [
    DemoJob {
        name: "resnet-50", mode: "sync", batch: 64, delta: 0.01, learning_rate: 0.02, hidden: 32,
        requested: LARGE.0, most: LARGE.1, example_ms: 6.0, step_ms: 25.0, update_ms: 10.0, model_mib: 100,
    },
    DemoJob {
        name: "deepspeech2", mode: "async", batch: 16, delta: 0.02, learning_rate: 0.02, hidden: 24,
        requested: LARGE.0, most: LARGE.1, example_ms: 14.0, step_ms: 30.0, update_ms: 15.0, model_mib: 152,
    },
    DemoJob {
        name: "seq2seq", mode: "sync", batch: 48, delta: 0.01, learning_rate: 0.025, hidden: 24,
        requested: LARGE.0, most: LARGE.1, example_ms: 5.0, step_ms: 30.0, update_ms: 5.0, model_mib: 36,
    },
    DemoJob {
        name: "inception-bn", mode: "allreduce", batch: 48, delta: 0.015, learning_rate: 0.02, hidden: 24,
        requested: (4, 0), most: (8, 0), example_ms: 5.0, step_ms: 20.0, update_ms: 5.0, model_mib: 45,
    },
    DemoJob {
        name: "resnext-110", mode: "sync", batch: 32, delta: 0.015, learning_rate: 0.03, hidden: 16,
        requested: SMALL.0, most: SMALL.1, example_ms: 4.0, step_ms: 15.0, update_ms: 1.0, model_mib: 7,
    },
    DemoJob {
        name: "kaggle", mode: "async", batch: 8, delta: 0.03, learning_rate: 0.02, hidden: 16,
        requested: SMALL.0, most: SMALL.1, example_ms: 10.0, step_ms: 10.0, update_ms: 1.0, model_mib: 6,
    },
    DemoJob {
        name: "cnn-rand", mode: "sync", batch: 32, delta: 0.02, learning_rate: 0.03, hidden: 0,
        requested: SMALL.0, most: SMALL.1, example_ms: 2.0, step_ms: 10.0, update_ms: 2.0, model_mib: 24,
    },
    DemoJob {
        name: "dssm", mode: "async", batch: 8, delta: 0.02, learning_rate: 0.03, hidden: 0,
        requested: SMALL.0, most: SMALL.1, example_ms: 7.0, step_ms: 10.0, update_ms: 1.0, model_mib: 6,
    },
    DemoJob {
        name: "rnn-lstm", mode: "sync", batch: 32, delta: 0.01, learning_rate: 0.03, hidden: 16,
        requested: SMALL.0, most: SMALL.1, example_ms: 3.0, step_ms: 15.0, update_ms: 2.0, model_mib: 19,
    },
];

/// The first minute: arrivals in seconds and jobs. A large job has the cluster for itself, until others come.
pub(super) const FIRST: [(f64, DemoJob); 4] = [(0.0, JOBS[0]), (8.0, JOBS[6]), (9.0, JOBS[8]), (16.0, JOBS[4])];

/// Rate of each process's emulated network interface.
const NIC_MBIT: u32 = 25_000;
/// Start time of an emulated process.
const START_MS: u32 = 200;
const MAX_EPOCHS: u32 = 80;

impl DemoJob {
    pub(super) fn is_ring(&self) -> bool {
        self.mode == "allreduce"
    }

    /// Flags of `trainmaster-trainer` for the model. The data come from the seed.
    fn flags(&self, seed: u64, real: bool) -> Vec<String> {
        let mut flags =
            vec![format!("--learning-rate={}", self.learning_rate), format!("--seed={seed}"), "--report-ms=500".into()];
        if real {
            // Without emulation the computation itself has to take time, so the model and its data are much wider.
            flags.extend(["--features=128".into(), format!("--hidden={}", 8 * self.hidden.max(8))]);
            return flags;
        }
        if self.hidden > 0 {
            flags.push(format!("--hidden={}", self.hidden));
        }
        flags.extend([
            format!("--device-example-ms={}", self.example_ms),
            format!("--device-step-ms={}", self.step_ms),
            format!("--device-update-ms={}", self.update_ms),
            format!("--device-model-mib={}", self.model_mib),
            format!("--device-nic-mbit={NIC_MBIT}"),
            format!("--device-start-ms={START_MS}"),
        ]);
        flags
    }

    /// The batch and the examples per epoch, with `work` times ten steps.
    fn sizes(&self, real: bool, work: u32) -> (u32, u32) {
        let batch = if real { self.batch * 4 } else { self.batch };
        (batch, batch * 10 * work)
    }

    /// The job file, with its profile.
    pub(super) fn file(&self, seed: u64, real: bool, work: u32, profile: &[(u32, u32, f64)]) -> String {
        let (batch, examples) = self.sizes(real, work);
        let command = format!("trainmaster-trainer {}", self.flags(seed, real).join(" "));
        let Self { name, mode, delta, requested, most, model_mib, .. } = self;
        let mut file = format!(
            "name = \"{name}\"\nmode = \"{mode}\"\nbatch = {batch}\nexamples = {examples}\n\
             model_size = \"{model_mib}MiB\"\n\
             convergence = {{ delta = {delta}, patience = 3, max_epochs = {MAX_EPOCHS} }}\nrestart_cost = \"1s\"\n\
             worker = {{ gpu = 1, cpu = 2, memory = \"4GiB\", max = {}, requested = {}, command = \"{command}\" }}\n",
            most.0, requested.0
        );
        if !self.is_ring() {
            let _ = writeln!(
                file,
                "server = {{ cpu = 1, memory = \"4GiB\", max = {}, requested = {}, command = \"{command}\" }}",
                most.1, requested.1
            );
        }
        let rows: Vec<String> =
            profile.iter().map(|(p, w, speed)| format!("{{ p = {p}, w = {w}, speed = {speed} }}")).collect();
        let _ = writeln!(file, "profile = [{}]", rows.join(", "));
        file
    }

    /// Arguments of `trainmaster-trainer profile` for this job.
    pub(super) fn profile_args(&self, seed: u64, real: bool) -> Vec<String> {
        let (batch, examples) = self.sizes(real, 1);
        let pairs = if self.is_ring() { PROFILED_RING } else { PROFILED };
        let pairs: Vec<String> = pairs.iter().map(|(p, w)| format!("{p}:{w}")).collect();
        let mut args = vec![
            "profile".into(),
            format!("--pairs={}", pairs.join(",")),
            format!("--mode={}", self.mode),
            format!("--batch={batch}"),
            format!("--examples={examples}"),
            "--spread=3".into(),
            // Emulated steps mostly sleep. Real ones would slow each other down.
            format!("--concurrent={}", if real { 1 } else { pairs.len() }),
        ];
        args.extend(self.flags(seed, real));
        args
    }
}

/// Arrival of each job in seconds, in the order of [`JOBS`]. One of them arrives at once.
pub(super) fn arrivals(seed: u64) -> Vec<f64> {
    let mut draws = ChaCha8Rng::seed_from_u64(seed);
    let mut times: Vec<f64> =
        JOBS.iter().map(|_| ARRIVALS * f64::from(draws.next_u32()) / f64::from(u32::MAX)).collect();
    let first = times.iter().copied().fold(f64::INFINITY, f64::min);
    for time in &mut times {
        *time -= first;
    }
    times
}

/// The daemon's settings for an engine.
pub(super) fn settings(engine: &str) -> String {
    let parameters = match engine {
        "optimus" | "optimus-paper" | "goodput" | "drf" | "tetris" => format!("interval = \"{INTERVAL}\""),
        "mlfs" => format!("interval = \"{MLFS_INTERVAL}\""),
        _ => String::new(),
    };
    let shape = if engine == "mlfs" { "[shape]\noversubscribe = 2.0\n" } else { "" };
    // Five minutes and four restarts an hour, 200 times faster.
    format!(
        "engine = \"{engine}\"\n[parameters]\n{parameters}\n[stability]\nmin_run = \"1.5s\"\n\
         rescales_per_hour = 800\n{shape}"
    )
}

#[cfg(test)]
mod tests {
    use trainmaster_core::{JobSpec, Scheduler, Settings};

    use super::*;

    #[test]
    fn every_job_and_every_setting_is_valid() {
        for job in JOBS {
            for real in [false, true] {
                let spec = JobSpec::from_toml(&job.file(1, real, 1, &[(u32::from(!job.is_ring()), 1, 2.0)])).unwrap();
                assert_eq!(spec.name, job.name);
            }
        }
        for engine in ["optimus", "optimus-paper", "goodput", "drf", "fifo", "tetris", "random"] {
            Scheduler::new(Settings::from_toml(&settings(engine)).unwrap()).unwrap();
        }
        assert!(arrivals(7).contains(&0.0));
        assert_ne!(arrivals(1), arrivals(2));
    }
}

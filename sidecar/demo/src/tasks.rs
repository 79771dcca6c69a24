//! The demo of `mlfs`, which schedules tasks by measured load: jobs that share devices, a foreign process that
//! overloads a server, and a job that is stopped when it has no further gain.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use tokio::process::Command as AsyncCommand;
use trainmaster_proto::v1::{JobStatus, Slot, SlotRole};
use trainmaster_terminal::{
    Paper,
    sheet::{Column, Entry},
};

use super::{
    progress::{INTERRUPTED, progress},
    record::{Accuracy, Moved, Run, Tasks, Watch},
    report::sheet,
    session::{self, Plan},
};

/// The engine of this demo.
pub(super) const ENGINE: &str = "mlfs";

/// Six devices for ten tasks.
pub(super) const CLUSTER: &str = r#"name = "demo"
grace = "5s"
measure = "1s"
oversubscribe = 2.0

[[server]]
name = "node"
count = 3
gpu = 2
cpu = 16
memory = "64GiB"
"#;

/// A job: its arrival in seconds, partitions, replicas, and the condition of its end.
struct Job {
    name: &'static str,
    arrival: f64,
    /// Jobs of one model have a similar use: later ones are placed by the measurements of the first.
    model: &'static str,
    parts: u32,
    replicas: u32,
    hidden: &'static str,
    epochs: u32,
    stop: &'static str,
}

const JOBS: [Job; 5] = [
    Job { name: "gpt", arrival: 0.0, model: "parts", parts: 2, replicas: 1, hidden: "32", epochs: 90, stop: "epochs" },
    Job {
        name: "resnet",
        arrival: 0.0,
        model: "whole",
        parts: 1,
        replicas: 2,
        hidden: "24",
        epochs: 120,
        stop: "optimal",
    },
    Job { name: "vgg", arrival: 3.0, model: "whole", parts: 1, replicas: 2, hidden: "32", epochs: 90, stop: "epochs" },
    Job {
        name: "bert",
        arrival: 3.0,
        model: "parts",
        parts: 2,
        replicas: 1,
        hidden: "32,16",
        epochs: 90,
        stop: "epochs",
    },
    Job { name: "lstm", arrival: 3.0, model: "whole", parts: 1, replicas: 2, hidden: "16", epochs: 90, stop: "epochs" },
];

/// Steps per epoch.
const STEPS: u32 = 5;
const BATCH: u32 = 32;

/// Arrival and job file of each job. Data and the start of training come from the seed.
pub(super) fn jobs(seed: u64) -> Vec<(f64, String)> {
    JOBS.iter().zip(0..).map(|(job, at)| (job.arrival, job.file(seed * 100 + at))).collect()
}

impl Job {
    /// Flags of `trainmaster-trainer` for the model.
    fn model_flags(&self, seed: u64) -> [String; 4] {
        let hidden = format!("--hidden={}", self.hidden);
        [hidden, "--learning-rate=0.1".into(), "--noise=0.5".into(), format!("--seed={seed}")]
    }

    fn file(&self, seed: u64) -> String {
        let Self { name, model, parts, replicas, epochs, stop, .. } = self;
        // A step takes about a tenth of a second, and a third of that on each worker's device. The rest is on the
        // parameter server.
        let (workers, update_ms) = (parts * replicas, 60 / replicas);
        let command = format!(
            "trainmaster-trainer {} --report-ms=500 --device-example-ms=1 --device-step-ms={} \
             --device-update-ms={update_ms} --device-start-ms=200",
            self.model_flags(seed).join(" "),
            if *parts > 1 { 30 } else { 15 },
        );
        let examples = STEPS * BATCH;
        let cut = if *parts > 1 { format!("partitions = {parts}\n") } else { String::new() };
        format!(
            "name = \"{name}\"\nmodel = \"{model}\"\nmode = \"sync\"\nresize = \"fixed\"\nbatch = {BATCH}\n\
             examples = {examples}\n\
             {cut}stop = \"{stop}\"\nconvergence = {{ delta = 0.0, patience = 3, max_epochs = {epochs} }}\n\
             restart_cost = \"1s\"\n\
             worker = {{ gpu = 1, cpu = 2, memory = \"1GiB\", requested = {workers}, command = \"{command}\" }}\n\
             server = {{ cpu = 1, memory = \"1GiB\", requested = 1, command = \"{command}\" }}\n"
        )
    }

    /// Arguments of `trainmaster-trainer` for the same training on one worker, without a device, to the last epoch.
    fn reference(&self, seed: u64) -> Vec<String> {
        let mut args: Vec<String> = ["run", "--json", "--workers=1", "--servers=1", "--delta=0"].map(Into::into).into();
        args.extend([
            format!("--batch={BATCH}"),
            format!("--examples={}", STEPS * BATCH),
            format!("--max-epochs={}", self.epochs),
        ]);
        args.extend(self.model_flags(seed));
        args
    }
}

/// Runs the jobs, and a foreign process beside them.
///
/// # Errors
/// The run fails, or a job can't be trained to its end for comparison.
pub(super) async fn run(plan: &Plan<'_>) -> Result<Run> {
    let mut stranger = Stranger::new(plan.trainer, &plan.state_dir.join("daemon/adapters/local"));
    let mut run = session::run(plan, &mut |watch| stranger.look(watch)).await?;
    let mut tasks = stranger.tasks;
    let bar = progress(JOBS.len() as u64, "training each job to its last epoch, to compare accuracies");
    for (job, at) in JOBS.iter().zip(0..) {
        if let Some(record) = run.jobs.iter().find(|record| record.name == job.name) {
            let curve = curve(plan, &job.reference(plan.seed * 100 + at)).await?;
            tasks.accuracies.insert(job.name.into(), Accuracy::of(&curve, record.epochs));
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    run.tasks = Some(tasks);
    Ok(run)
}

impl Accuracy {
    /// From a curve of (epoch, accuracy), of which `epochs` epochs were trained.
    fn of(curve: &[(u32, f64)], epochs: u32) -> Self {
        let best = |last: u32| {
            curve.iter().filter(|(epoch, _)| *epoch <= last).map(|(_, accuracy)| *accuracy).fold(0.0, f64::max)
        };
        Self { best: best(epochs), possible: best(u32::MAX) }
    }
}

/// Validation accuracies by epoch.
async fn curve(plan: &Plan<'_>, args: &[String]) -> Result<Vec<(u32, f64)>> {
    #[derive(Deserialize)]
    struct Summary {
        accuracies: Vec<(u32, f64)>,
    }
    let child = AsyncCommand::new(plan.trainer)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("can't start {}", plan.trainer.display()))?;
    let output = tokio::select! {
        output = child.wait_with_output() => output.context("a comparison was lost")?,
        () = plan.stop.asked() => bail!(INTERRUPTED),
    };
    if !output.status.success() {
        bail!("a comparison failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let summary: Summary = serde_json::from_slice(&output.stdout).context("a comparison printed no accuracies")?;
    Ok(summary.accuracies)
}

/// A foreign process on a device that two tasks share. It starts when all jobs train, and ends when a task has left.
struct Stranger {
    trainer: PathBuf,
    /// State folder of the adapter.
    folder: PathBuf,
    running: Option<Overload>,
    tasks: Tasks,
}

/// State while the foreign process runs.
struct Overload {
    process: Child,
    server: String,
    device: u32,
    began_s: f64,
    /// The workers on the server at its start, as (job, worker).
    workers: Vec<(u64, u32)>,
}

impl Stranger {
    fn new(trainer: &Path, folder: &Path) -> Self {
        Self { trainer: trainer.to_owned(), folder: folder.to_owned(), running: None, tasks: Tasks::default() }
    }

    fn look(&mut self, watch: &Watch) -> Result<()> {
        let jobs: Vec<&JobStatus> = watch.latest().collect();
        if let Some(overload) = &self.running {
            self.tasks.moved = moved(overload, &jobs, watch.seconds());
            // If the other tasks ended first, the process starts again elsewhere.
            let alone =
                shared(&jobs, |server, device| (server, device) == (&overload.server, overload.device)).is_none();
            if alone || !self.tasks.moved.is_empty() {
                self.running = None;
            }
        } else if self.tasks.moved.is_empty()
            && jobs.len() == JOBS.len()
            && jobs.iter().all(|job| trains(job))
            // A full device doesn't show how much more its tasks would use. Jobs of their models elsewhere do.
            && let Some((server, device)) =
                shared(&jobs, |server, _| known_elsewhere(&jobs, server)).or_else(|| shared(&jobs, |_, _| true))
        {
            self.tasks.overloaded = Some((server.clone(), device));
            self.running = Some(self.overload(server, device, &jobs, watch.seconds())?);
        }
        Ok(())
    }

    fn overload(&self, server: String, device: u32, jobs: &[&JobStatus], began_s: f64) -> Result<Overload> {
        let state = fs::read_to_string(self.folder.join("id")).context("the adapter's state folder has no id")?;
        let devices = self.folder.join("devices").join(&server);
        let process = Command::new(&self.trainer)
            .arg("occupy")
            .arg("--device-dir")
            .arg(fs::canonicalize(&devices).with_context(|| format!("no device of {server} is in use"))?)
            .args([format!("--devices={device}"), "--share=1".into()])
            .env("TRAINMASTER_STATE", state.trim())
            .env("TRAINMASTER_SERVER", &server)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("can't start {}", self.trainer.display()))?;
        let workers = jobs.iter().flat_map(|job| workers(job).map(|slot| (job.job, slot)));
        let workers = workers.filter(|(_, slot)| slot.server == server).map(|(job, slot)| (job, slot.index)).collect();
        Ok(Overload { process, server, device, began_s, workers })
    }
}

impl Drop for Overload {
    fn drop(&mut self) {
        // The end of its input ends it.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

fn workers(job: &JobStatus) -> impl Iterator<Item = &Slot> {
    job.slots.iter().filter(|slot| slot.role() == SlotRole::Worker)
}

/// Whether the job has trained for a while and will continue.
fn trains(job: &JobStatus) -> bool {
    job.workers > 0 && job.ended_ms.is_none() && job.speed.is_some() && (2..job.max_epochs / 2).contains(&job.epoch)
}

/// A device that two tasks share, among the wanted ones.
fn shared(jobs: &[&JobStatus], wanted: impl Fn(&String, u32) -> bool) -> Option<(String, u32)> {
    let mut seen = BTreeSet::new();
    let devices = jobs
        .iter()
        .flat_map(|job| workers(job))
        .flat_map(|slot| slot.devices.iter().map(|share| (slot.server.clone(), share.device)));
    devices.filter(|(server, device)| wanted(server, *device)).find(|device| !seen.insert(device.clone()))
}

/// Whether each job with workers on the server has another of its model that has none there.
fn known_elsewhere(jobs: &[&JobStatus], server: &str) -> bool {
    let model = |job: &JobStatus| JOBS.iter().find(|known| known.name == job.name).map(|known| known.model);
    let (here, away): (Vec<&JobStatus>, Vec<_>) =
        jobs.iter().partition(|job| workers(job).any(|slot| slot.server == server));
    here.iter().all(|job| away.iter().any(|other| model(other) == model(job)))
}

/// The workers that have moved from the server to another one.
fn moved(overload: &Overload, jobs: &[&JobStatus], at_s: f64) -> Vec<Moved> {
    let of = |job: &JobStatus| {
        let was = |index: u32| overload.workers.contains(&(job.job, index));
        let left = workers(job).filter(|slot| slot.server != overload.server && was(slot.index));
        let moved = left.map(|slot| Moved {
            job: job.name.clone(),
            worker: slot.index,
            from: overload.server.clone(),
            to: slot.server.clone(),
            at_s,
            after_s: at_s - overload.began_s,
        });
        moved.collect::<Vec<_>>()
    };
    jobs.iter().flat_map(|job| of(job)).collect()
}

/// Prints the results of the tasks.
///
/// # Errors
/// No task moved from the overloaded server, or no job was stopped early.
pub(super) fn report(run: &Run) -> Result<()> {
    let Some(tasks) = &run.tasks else { return Ok(()) };
    let mut table = sheet(
        "JOB",
        [
            Column::key("TASKS"),
            Column::key("STARTS"),
            Column::key("MOVED"),
            Column::key("EPOCHS"),
            Column::key("ACCURACY"),
            Column::key("BEST OF ALL EPOCHS"),
            Column::key("END"),
        ],
    );
    for job in &JOBS {
        let Some(record) = run.jobs.iter().find(|record| record.name == job.name) else { continue };
        let moves: Vec<String> =
            tasks.moved.iter().filter(|moved| moved.job == job.name).map(Moved::to_string).collect();
        let accuracy = tasks.accuracies.get(job.name);
        let percent = |value: Option<f64>| value.map_or_else(|| "–".into(), |value| format!("{:.1} %", value * 100.0));
        table.row([
            Entry::from(job.name),
            job.tasks().into(),
            record.incarnations.into(),
            if moves.is_empty() { "–".into() } else { moves.join(", ") }.into(),
            format!("{} of {}", record.epochs, job.epochs).into(),
            percent(accuracy.map(|accuracy| accuracy.best)).into(),
            percent(accuracy.map(|accuracy| accuracy.possible)).into(),
            Entry::from(&record.state),
        ]);
    }
    println!("\n{}", table.on(&Paper::stdout()));
    match (&tasks.overloaded, tasks.moved.first()) {
        (Some((server, device)), Some(moved)) => println!(
            "Somebody else kept device {device} of {server} busy; {:.1} s later {} worker {} was sent to {}, from its \
             checkpoint.",
            moved.after_s, moved.job, moved.worker, moved.to
        ),
        (Some((server, _)), None) => bail!("{server} was overloaded, and no task left it"),
        (None, _) => bail!("the jobs never all trained at once, so no server was overloaded"),
    }
    let mut stopped = run.jobs.iter().filter(|job| job.state == "stopped").peekable();
    if stopped.peek().is_none() {
        bail!("no job was stopped before its last epoch");
    }
    stopped.for_each(|job| println!("{} was stopped after {} epochs: {}.", job.name, job.epochs, job.reason));
    Ok(())
}

impl Job {
    fn tasks(&self) -> String {
        match self.parts {
            1 => format!("{} whole", self.replicas),
            parts => format!("{parts} parts"),
        }
    }
}

impl std::fmt::Display for Moved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "worker {} {} → {} at {:.1} s", self.worker, self.from, self.to, self.at_s)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use trainmaster_core::{JobSpec, Scheduler, Settings};
    use trainmaster_proto::v1::DeviceShare;

    use super::{super::workload::settings, *};

    #[test]
    fn every_job_is_one_that_the_engine_takes() {
        Scheduler::new(Settings::from_toml(&settings(ENGINE)).unwrap()).unwrap();
        let engine = trainmaster_core::engines::find(ENGINE).unwrap().build(&BTreeMap::new()).unwrap();
        for (_, file) in jobs(3) {
            let spec = JobSpec::from_toml(&file).unwrap();
            assert_eq!(engine.accepts(&spec), Ok(()));
        }
    }

    fn job(id: u64, slots: &[(u32, &str, u32)]) -> JobStatus {
        let slot = |&(index, server, device): &(u32, &str, u32)| Slot {
            index,
            server: server.into(),
            devices: vec![DeviceShare { device, milli: 1000 }],
            ..Slot::default()
        };
        JobStatus { job: id, name: format!("job{id}"), slots: slots.iter().map(slot).collect(), ..JobStatus::default() }
    }

    #[test]
    fn shared_devices_and_moved_tasks_are_found() {
        let (one, two) = (job(1, &[(0, "a", 0), (1, "a", 1)]), job(2, &[(0, "b", 0), (1, "a", 1)]));
        assert_eq!(shared(&[&one, &two], |_, _| true), Some(("a".into(), 1)));
        assert_eq!(shared(&[&one, &two], |server, _| server == "b"), None);
        let named = |name: &str, job: &JobStatus| JobStatus { name: name.into(), ..job.clone() };
        let (vgg, gpt, lstm) = (named("vgg", &one), named("gpt", &one), named("lstm", &job(3, &[(0, "b", 0)])));
        assert!(known_elsewhere(&[&vgg, &lstm], "a"), "both are of the model whole");
        assert!(!known_elsewhere(&[&gpt, &lstm], "a"));
        assert!(!known_elsewhere(&[&vgg, &gpt, &lstm], "a"));
        let process = Command::new("true").stdin(Stdio::piped()).spawn().unwrap();
        let workers = vec![(1, 0), (1, 1), (2, 1)];
        let overload = Overload { process, server: "a".into(), device: 1, began_s: 2.0, workers };
        assert!(moved(&overload, &[&one, &two], 3.0).is_empty());
        let left = job(2, &[(0, "b", 0), (1, "b", 1)]);
        let moves = moved(&overload, &[&one, &left], 5.0);
        assert_eq!(moves.len(), 1);
        assert_eq!((moves[0].job.as_str(), moves[0].worker, moves[0].to.as_str()), ("job2", 1, "b"));
        assert_eq!((moves[0].at_s, moves[0].after_s), (5.0, 3.0));
    }

    #[test]
    fn accuracies_are_the_best_so_far_and_of_all_epochs() {
        let accuracy = Accuracy::of(&[(1, 0.4), (2, 0.7), (3, 0.6), (4, 0.8)], 3);
        assert_eq!((accuracy.best, accuracy.possible), (0.7, 0.8));
    }
}

//! `run`: one job on this machine.

use std::{collections::BTreeMap, time::Instant};

use anyhow::Result;
use serde::Serialize;
use trainmaster_proto::v1::Progress;

use super::job::{LocalJob, speed};
use crate::cli::RunArgs;

/// Summary of the run.
#[derive(Debug, Serialize)]
struct Summary {
    workers: u32,
    servers: u32,
    /// Number of partitions.
    partitions: u32,
    steps: u64,
    epochs: u32,
    loss: Option<f64>,
    /// Fraction of held-out examples with a correct label, after the last epoch or at the end.
    validation_accuracy: Option<f64>,
    /// The same by epoch.
    accuracies: Vec<(u32, f64)>,
    finished: bool,
    converged: bool,
    /// Steps per second in a constant shape.
    speed: Option<f64>,
    emulated_device: bool,
    seconds: f64,
    /// The worst exit code of the job's processes.
    exit_code: u8,
}

/// Runs a job. Prints its progress to standard error and its summary to standard output.
pub async fn run(args: &RunArgs) -> Result<u8> {
    let device = &args.local.training.device;
    let label = device.label();
    let mut job = LocalJob::new(args.workers, args.servers, &args.local)?;
    job.checkpoint_dir.clone_from(&args.checkpoint_dir);
    let begun = Instant::now();
    let ended = job
        .run(|progress| {
            let Some(loss) = progress.loss else { return };
            let speed = speed(std::slice::from_ref(progress)).map(|speed| format!(", {speed:.2} steps/s{label}"));
            let speed = speed.unwrap_or_default();
            eprintln!("step {:>6}, epoch {:>3}, loss {loss:.4}{speed}", progress.step, progress.epoch);
        })
        .await?;
    let last = ended.reports.last().cloned().unwrap_or_default();
    let summary = Summary {
        workers: args.workers,
        servers: args.servers,
        partitions: args.local.training.job.partitions,
        steps: last.step,
        epochs: last.epoch,
        loss: ended.reports.iter().rev().find_map(|progress| progress.loss),
        validation_accuracy: ended.reports.iter().rev().find_map(|progress| progress.accuracy),
        accuracies: accuracies(&ended.reports),
        finished: last.finished,
        converged: last.converged,
        speed: speed(&ended.reports),
        emulated_device: device.is_emulated(),
        seconds: begun.elapsed().as_secs_f64(),
        exit_code: ended.code,
    };
    if args.json {
        println!("{}", serde_json::to_string(&summary)?);
    } else {
        let how = match (summary.finished, summary.converged) {
            (true, true) => "converged",
            (true, false) => "out of epochs or steps",
            (false, _) => "not finished",
        };
        println!("{how} after {} steps, {} epochs, {:.1} s", summary.steps, summary.epochs, summary.seconds);
        if let (Some(loss), Some(accuracy)) = (summary.loss, summary.validation_accuracy) {
            println!("training loss {loss:.4}, validation accuracy {accuracy:.3}");
        }
        if let Some(speed) = summary.speed {
            println!("{speed:.2} steps/s with {} workers and {} servers{label}", args.workers, args.servers);
        }
    }
    Ok(ended.code)
}

/// The last reported accuracy of each epoch.
fn accuracies(reports: &[Progress]) -> Vec<(u32, f64)> {
    let of_epochs: BTreeMap<u32, f64> =
        reports.iter().filter_map(|progress| Some((progress.epoch, progress.accuracy?))).collect();
    of_epochs.into_iter().collect()
}

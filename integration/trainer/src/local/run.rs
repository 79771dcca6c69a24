//! `run`: one job, here, now.

use std::{collections::BTreeMap, time::Instant};

use anyhow::Result;
use serde::Serialize;
use trainmaster_proto::v1::Progress;

use super::job::{LocalJob, speed};
use crate::{cli::RunArgs, device::Device};

/// How it went.
#[derive(Debug, Serialize)]
struct Summary {
    workers: u32,
    servers: u32,
    /// Parts of the model.
    partitions: u32,
    steps: u64,
    epochs: u32,
    loss: Option<f64>,
    /// Share of held-out examples that are labelled correctly, after the last epoch or at the end.
    validation_accuracy: Option<f64>,
    /// The same by epoch.
    accuracies: Vec<(u32, f64)>,
    finished: bool,
    converged: bool,
    /// Steps per second at a steady shape.
    speed: Option<f64>,
    emulated_device: bool,
    seconds: f64,
    /// Of the job's processes, the worst.
    exit_code: u8,
}

/// Runs a job and prints how it goes (standard error) and how it went (standard output).
///
/// # Errors
///
/// If the flags don't fit together or a process can't be started.
pub async fn run(args: &RunArgs) -> Result<u8> {
    let device = Device::from(&args.local.training.device);
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

/// The last accuracy reported of each epoch.
fn accuracies(reports: &[Progress]) -> Vec<(u32, f64)> {
    let of_epochs: BTreeMap<u32, f64> =
        reports.iter().filter_map(|progress| Some((progress.epoch, progress.accuracy?))).collect();
    of_epochs.into_iter().collect()
}

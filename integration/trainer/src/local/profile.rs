//! `profile`: speed of a job with several numbers of parameter servers and workers.

use std::{collections::BTreeSet, io::Write, sync::Arc};

use anyhow::{Context, Result, ensure};
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{RngCore, SeedableRng},
};
use tokio::{sync::Semaphore, task::JoinSet};

use super::job::{LocalJob, speed};
use crate::{args::Mode, cli::ProfileArgs, exit};

const DEFAULT_STEPS: u64 = 10;

/// Measures, and writes the table.
pub async fn run(args: &ProfileArgs) -> Result<u8> {
    let device = &args.local.training.device;
    ensure!(
        args.concurrent == 1 || device.is_emulated(),
        "--concurrent {} needs an emulated device (--device-…): real computations would disturb each other",
        args.concurrent
    );
    let pairs = pairs(args)?;
    let turns = Arc::new(Semaphore::new(args.concurrent as usize));
    let mut runs = JoinSet::new();
    for (number, (servers, workers)) in pairs.iter().copied().enumerate() {
        let job = job(args, servers, workers)?;
        let turns = Arc::clone(&turns);
        runs.spawn(async move {
            let _turn = turns.acquire().await?;
            let ended = job.run(|_| {}).await?;
            ensure!(!ended.interrupted, "interrupted");
            ensure!(ended.code == exit::DONE, "the run with {servers} servers and {workers} workers failed");
            let speed = speed(&ended.reports).context("nothing was measured")?;
            anyhow::Ok((number, speed))
        });
    }
    let mut speeds = vec![0.0; pairs.len()];
    while let Some(run) = runs.join_next().await {
        let (number, speed) = run??;
        speeds[number] = speed;
        let (servers, workers) = pairs[number];
        eprintln!("{servers} servers, {workers} workers: {speed:.3} steps/s{}", device.label());
    }
    let mut table = String::from("p,w,speed\n");
    for ((servers, workers), speed) in pairs.iter().zip(&speeds) {
        table.push_str(&format!("{servers},{workers},{speed:.6}\n"));
    }
    match &args.csv {
        Some(file) => std::fs::write(file, table).with_context(|| format!("--csv: can't write {}", file.display()))?,
        None => std::io::stdout().write_all(table.as_bytes())?,
    }
    Ok(exit::DONE)
}

/// The job for one pair: the requested number of steps after the warm-up, without an earlier end.
fn job(args: &ProfileArgs, servers: u32, workers: u32) -> Result<LocalJob> {
    let mut job = LocalJob::new(workers, servers, &args.local)?;
    let training = &mut job.local.training;
    // A step of an asynchronous job belongs to one worker, or one replica.
    let each = if training.job.mode == Mode::Async { workers / training.job.partitions } else { 1 };
    let pace = &mut training.pace;
    let steps = if pace.max_steps == 0 { DEFAULT_STEPS } else { pace.max_steps };
    pace.max_steps = (steps + u64::from(args.warm_up)) * u64::from(each);
    pace.settle_steps = args.warm_up * each;
    training.job.delta = 0.0;
    training.job.max_epochs = u32::MAX;
    Ok(job)
}

fn pairs(args: &ProfileArgs) -> Result<Vec<(u32, u32)>> {
    let allreduce = args.local.training.job.mode == Mode::Allreduce;
    let within = |(servers, workers): (u32, u32)| -> Vec<(u32, u32)> {
        let servers = if allreduce { 0..=0 } else { 1..=servers };
        servers.flat_map(|p| (1..=workers).map(move |w| (p, w))).collect()
    };
    if let Some(limit) = args.grid {
        return Ok(within(limit));
    }
    let Some(count) = args.random else {
        ensure!(!args.pairs.is_empty(), "nothing to measure: --pairs, --grid or --random is needed");
        return Ok(args.pairs.clone());
    };
    let all = within(args.limit);
    ensure!(
        (1..=all.len()).contains(&(count as usize)),
        "--random {count}: 1 to {} different pairs are within --limit {},{}",
        all.len(),
        args.limit.0,
        args.limit.1
    );
    let mut rng = ChaCha8Rng::seed_from_u64(args.local.training.model.seed);
    let mut drawn = BTreeSet::new();
    while drawn.len() < count as usize {
        drawn.insert(all[(rng.next_u64() % all.len() as u64) as usize]);
    }
    Ok(drawn.into_iter().collect())
}

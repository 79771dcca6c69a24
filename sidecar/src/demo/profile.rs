//! Speeds measured before the jobs are submitted (Optimus §3.2: each job is pre-run at a few (p, w)).

use std::{path::Path, process::Stdio, sync::Arc};

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use tokio::{process::Command, sync::Semaphore, task::JoinSet};

use super::workload::DemoJob;

/// So many jobs are profiled side by side: emulated steps mostly sleep.
const AT_ONCE: usize = 3;

/// (p, w, steps per second).
pub(super) type Profile = Vec<(u32, u32, f64)>;

/// Profiles all jobs with the real trainer, in the order given.
pub(super) async fn profile(
    trainer: &Path,
    jobs: &[DemoJob],
    seed: u64,
    real: bool,
    bar: &ProgressBar,
) -> Result<Vec<Profile>> {
    // Without emulation, runs side by side would slow each other.
    let permits = Arc::new(Semaphore::new(if real { 1 } else { AT_ONCE }));
    let mut tasks = JoinSet::new();
    for (at, job) in jobs.iter().copied().enumerate() {
        let (trainer, permits, bar) = (trainer.to_owned(), permits.clone(), bar.clone());
        tasks.spawn(async move {
            let _permit = permits.acquire_owned().await.context("profiling was stopped")?;
            let measured = one(&trainer, &job, seed, real).await?;
            bar.inc(1);
            anyhow::Ok((at, measured))
        });
    }
    let mut profiles = vec![Profile::new(); jobs.len()];
    while let Some(done) = tasks.join_next().await {
        let (at, measured) = done.context("a profile run was lost")??;
        profiles[at] = measured;
    }
    Ok(profiles)
}

async fn one(trainer: &Path, job: &DemoJob, seed: u64, real: bool) -> Result<Profile> {
    let output = Command::new(trainer)
        .args(job.profile_args(seed, real))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("can't start {}", trainer.display()))?;
    if !output.status.success() {
        bail!("profiling {} failed: {}", job.name, String::from_utf8_lossy(&output.stderr).trim());
    }
    let mut reader = csv::Reader::from_reader(output.stdout.as_slice());
    let rows: Result<Profile, _> = reader.deserialize().collect();
    rows.with_context(|| format!("profiling {} printed no table of p,w,speed", job.name))
}

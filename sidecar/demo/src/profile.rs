//! Speeds that are measured before the jobs are submitted (Optimus §3.2: each job is pre-run at a few (p, w)).

use std::{path::Path, pin::pin, process::Stdio, sync::Arc};

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use rustix::process::{Pid, Signal, kill_process};
use tokio::{process::Command, sync::Semaphore, task::JoinSet};
use trainmaster_terminal::stop::Stop;

use super::{progress::INTERRUPTED, workload::DemoJob};

/// Number of jobs that are profiled at the same time. Emulated steps mostly sleep.
const AT_ONCE: usize = 3;

/// (p, w, steps per second).
pub(super) type Profile = Vec<(u32, u32, f64)>;

/// Profiles all jobs with the real trainer, in the given order. All its processes have ended when this returns.
pub(super) async fn profile(
    trainer: &Path,
    jobs: &[(f64, DemoJob)],
    seed: u64,
    real: bool,
    bar: &ProgressBar,
    stop: &Stop,
) -> Result<Vec<Profile>> {
    // Without emulation, simultaneous runs would slow each other down.
    let permits = Arc::new(Semaphore::new(if real { 1 } else { AT_ONCE }));
    let mut tasks = JoinSet::new();
    for (at, (_, job)) in jobs.iter().copied().enumerate() {
        let (trainer, permits, bar, stop) = (trainer.to_owned(), permits.clone(), bar.clone(), stop.clone());
        tasks.spawn(async move {
            let _permit = permits.acquire_owned().await.context("profiling was stopped")?;
            let measured = one(&trainer, &job, seed, real, &stop).await?;
            bar.inc(1);
            anyhow::Ok((at, measured))
        });
    }
    let mut profiles = vec![Profile::new(); jobs.len()];
    let mut failed = None;
    while let Some(done) = tasks.join_next().await {
        match done.context("a profile run was lost")? {
            Ok((at, measured)) => profiles[at] = measured,
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(profiles), Err)
}

async fn one(trainer: &Path, job: &DemoJob, seed: u64, real: bool, stop: &Stop) -> Result<Profile> {
    if stop.is_asked() {
        bail!(INTERRUPTED);
    }
    let child = Command::new(trainer)
        .args(job.profile_args(seed, real))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("can't start {}", trainer.display()))?;
    let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
    let mut output = pin!(child.wait_with_output());
    let output = tokio::select! {
        output = &mut output => output,
        () = stop.asked() => {
            // It ends its own processes in order.
            if let Some(pid) = pid {
                let _ = kill_process(pid, Signal::INT);
            }
            output.await
        }
    };
    let output = output.context("a profile run was lost")?;
    if stop.is_asked() {
        bail!(INTERRUPTED);
    }
    if !output.status.success() {
        bail!("profiling {} failed: {}", job.name, String::from_utf8_lossy(&output.stderr).trim());
    }
    let mut reader = csv::Reader::from_reader(output.stdout.as_slice());
    let rows: Result<Profile, _> = reader.deserialize().collect();
    rows.with_context(|| format!("profiling {} printed no table of p,w,speed", job.name))
}

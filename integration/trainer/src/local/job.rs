//! Starts a job's processes on this machine and waits for them.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::Stdio,
};

use anyhow::{Context, Result, ensure};
use tokio::{process::Command, task::JoinSet};
use trainmaster_proto::v1::Progress;

use super::board::Board;
use crate::{
    args::Mode,
    cli::LocalArgs,
    exit,
    id::{Id, Role},
    settings::Settings,
};

/// Time after which processes end if the feed dies, in milliseconds.
const ORPHAN_GRACE_MS: u64 = 10_000;
/// Time for the checkpoint after an interrupt, in milliseconds.
const STOP_GRACE_MS: i64 = 20_000;

/// A job on this machine.
#[derive(Clone, Debug)]
pub(crate) struct LocalJob {
    pub(crate) workers: u32,
    pub(crate) servers: u32,
    pub(crate) local: LocalArgs,
    pub(crate) checkpoint_dir: Option<PathBuf>,
}

/// Results of a job.
#[derive(Debug)]
pub(crate) struct Ended {
    /// All its reports.
    pub(crate) reports: Vec<Progress>,
    /// The worst exit code of its processes; 1 for a signal.
    pub(crate) code: u8,
    /// Whether it was interrupted (Ctrl-C).
    pub(crate) interrupted: bool,
}

impl LocalJob {
    /// A job of this shape.
    pub(crate) fn new(workers: u32, servers: u32, local: &LocalArgs) -> Result<Self> {
        match local.training.job.mode {
            Mode::Allreduce => {
                ensure!(servers == 0, "--mode allreduce has no parameter servers; {servers} are asked for")
            }
            Mode::Sync | Mode::Async => ensure!(servers > 0, "--mode sync and async need at least 1 parameter server"),
        }
        // Checks what each process would refuse.
        Settings::new(&local.training, None)?.parts.check(workers as usize)?;
        Ok(Self { workers, servers, local: local.clone(), checkpoint_dir: None })
    }

    /// The job's slots with their emulated machines.
    pub(crate) fn slots(&self) -> BTreeMap<Id, String> {
        let ids = (0..self.servers).map(Id::server).chain((0..self.workers).map(Id::worker));
        let place = |id: Id| match (self.local.spread, id.role) {
            (0, Role::Server) => format!("machine-s{}", id.index),
            (0, Role::Worker) => format!("machine-w{}", id.index),
            (spread, _) => format!("machine-{}", id.index % spread),
        };
        ids.map(|id| (id, place(id))).collect()
    }

    /// Runs the job to its end. An interrupt (Ctrl-C) stops it with a checkpoint. `progress` is called for every
    /// report.
    pub(crate) async fn run(&self, mut progress: impl FnMut(&Progress)) -> Result<Ended> {
        let slots = self.slots();
        let board = Board::new(1, slots.clone());
        let (feed, serving) = board.serve(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
        let mut changes = board.changes();
        let mut processes = JoinSet::new();
        for (id, machine) in &slots {
            let mut child = self.command(*id, machine, feed)?.spawn().with_context(|| format!("can't start {id}"))?;
            let id = *id;
            processes.spawn(async move { (id, child.wait().await) });
        }
        let (mut code, mut seen, mut interrupted) = (exit::DONE, 0, false);
        let mut interrupt = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())?;
        loop {
            tokio::select! {
                ended = processes.join_next() => match ended {
                    Some(Ok((id, status))) => {
                        let ended = status?.code().map_or(exit::ERROR, |code| code as u8);
                        if ended != exit::DONE {
                            eprintln!("{id} ended with code {ended}");
                        }
                        code = code.max(ended);
                    }
                    Some(Err(error)) => return Err(error.into()),
                    None => break,
                },
                Ok(()) = changes.changed() => {
                    let reports = board.reports();
                    reports[seen..].iter().for_each(&mut progress);
                    seen = reports.len();
                }
                _ = interrupt.recv() => {
                    interrupted = true;
                    board.stop(STOP_GRACE_MS);
                }
            }
        }
        serving.abort();
        let reports = board.reports();
        reports[seen..].iter().for_each(progress);
        Ok(Ended { reports, code, interrupted })
    }

    fn command(&self, id: Id, machine: &str, feed: SocketAddr) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"TRAINMASTER_") {
                command.env_remove(name); // from another job
            }
        }
        if !self.local.verbose {
            command.env("RUST_LOG", "warn");
        }
        command
            .arg(format!("--feed=http://{feed}"))
            .arg(format!("--orphan-grace-ms={ORPHAN_GRACE_MS}"))
            .args(["--job=1", if id.role == Role::Worker { "--role=worker" } else { "--role=server" }])
            .args([format!("--index={}", id.index), format!("--server={machine}")])
            .args(self.local.training.flags())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            // Ctrl-C is for the whole job, whose processes are stopped in order.
            .process_group(0);
        if let Some(folder) = &self.checkpoint_dir {
            command.arg("--checkpoint-dir").arg(folder);
        }
        Ok(command)
    }
}

/// Steps per second over all steady steps of the reports. None if there are none.
pub(crate) fn speed(reports: &[Progress]) -> Option<f64> {
    let steps: u32 = reports.iter().map(|progress| progress.steps).sum();
    let ms: f64 = reports.iter().map(|progress| progress.duration_ms).sum();
    (steps > 0 && ms > 0.0).then(|| f64::from(steps) * 1e3 / ms)
}

//! `trainmaster cancel`, `pause` and `resume`: changes of jobs by name or number.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::time::sleep;
use tonic::Code;
use trainmaster_core::text::shown;
use trainmaster_proto::v1::{CancelRequest, JobStatus, ListRequest, PauseRequest, SchedulingMode, StatusRequest};
use trainmaster_terminal::{
    Failure, Output, Paper, Show,
    client::{Daemon, ServerArgs},
};

use super::jobs::Owners;

/// Pauses in all, if the daemon refuses because of its limits.
const MOST_WAITS: u32 = 120;

/// The jobs to change.
#[derive(Args, Debug)]
pub(crate) struct ActArgs {
    /// Names or numbers of jobs
    #[arg(
        required_unless_present_any = ["all", "tenant", "queue"],
        conflicts_with_all = ["all", "tenant", "queue"],
        value_name = "JOB"
    )]
    jobs: Vec<String>,
    /// All active jobs that you see, of all tenants if your token shows them
    #[arg(long, conflicts_with_all = ["tenant", "queue"])]
    all: bool,
    #[command(flatten)]
    of: Owners,
}

/// The change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// End the job for good.
    Cancel,
    /// Release the job's slots after a checkpoint, and hold it.
    Pause,
    /// Let the job continue.
    Resume,
}

impl Act {
    fn done(self) -> &'static str {
        match self {
            Self::Cancel => "cancelled",
            Self::Pause => "paused",
            Self::Resume => "resumed",
        }
    }
}

/// Changes each job, independent of failures of others.
///
/// # Errors
/// The last refusal of the daemon. Earlier ones are printed.
pub(crate) async fn run(act: Act, args: &ActArgs, server: &ServerArgs, output: Output) -> Result<(), Failure> {
    let daemon = Daemon::connect(server).await?;
    let mut client = daemon.jobs();
    let mut refused: Option<Failure> = None;
    let is_choice = args.all || args.of.are_given();
    let chosen = if is_choice {
        let list = client.list(ListRequest::default()).await.map_err(|status| daemon.failure(&status))?.into_inner();
        let changes = |job: &&JobStatus| match act {
            Act::Cancel => true,
            Act::Pause => !job.held,
            Act::Resume => job.held,
        };
        let mine = list.jobs.iter().filter(|job| args.of.own(job)).filter(changes);
        let numbers: Vec<String> = mine.map(|job| job.job.to_string()).collect();
        if numbers.is_empty() {
            let (which, state) = match act {
                Act::Cancel => ("active", ""),
                Act::Pause => ("active", " that isn't paused"),
                Act::Resume => ("paused", ""),
            };
            eprintln!("note: no {which} job{}{state}", args.of);
        }
        numbers
    } else {
        args.jobs.clone()
    };
    let mut waits = 0;
    let mut rest = chosen.iter();
    let mut next = rest.next();
    while let Some(job) = next {
        let answer = match act {
            Act::Cancel => {
                let reply = client.cancel(CancelRequest { job: job.clone() }).await;
                reply.map(|reply| reply.into_inner().not_written)
            }
            Act::Pause | Act::Resume => {
                let resume = act == Act::Resume;
                let reply = client.pause(PauseRequest { job: job.clone(), resume }).await;
                reply.map(|reply| reply.into_inner().not_written)
            }
        };
        match answer {
            Ok(not_written) => output.stream(&Done { job: job.clone(), done: act.done(), not_written })?,
            // It has ended since.
            Err(status) if is_choice && status.code() == Code::NotFound => {}
            // The daemon limits the rate of each caller.
            Err(status) if is_choice && status.code() == Code::ResourceExhausted && waits < MOST_WAITS => {
                waits += 1;
                sleep(Duration::from_millis(500)).await;
                continue;
            }
            Err(status) => {
                let failure = daemon.failure(&status);
                let is_denied = is_choice && status.code() == Code::PermissionDenied;
                let lost = is_denied || matches!(failure, Failure::Unreachable { .. } | Failure::Unusable { .. });
                if let Some(earlier) = refused.replace(failure) {
                    eprintln!("error: {}", earlier.line());
                }
                if lost {
                    break;
                }
            }
        }
        next = rest.next();
    }
    if refused.is_none()
        && act != Act::Cancel
        && let Ok(status) = daemon.admin().status(StatusRequest {}).await
        && status.get_ref().mode() != SchedulingMode::Active
    {
        eprintln!(
            "note: scheduling isn't active, so nothing changes for programs yet; `trainmaster mode active` does it"
        );
    }
    refused.map_or(Ok(()), Err)
}

#[derive(Serialize)]
struct Done {
    job: String,
    done: &'static str,
    /// Why a restart of the daemon would lose the change.
    #[serde(skip_serializing_if = "String::is_empty")]
    not_written: String,
}

impl Show for Done {
    fn text(&self, _: &Paper) -> String {
        format!("job {} {}{}", self.job, self.done, unwritten(&self.not_written))
    }
}

/// The warning about a change that isn't in the journal yet.
pub(crate) fn unwritten(why: &str) -> String {
    match why {
        "" => String::new(),
        why => format!(" — in memory only, which a restart of the daemon would forget: {}", shown(why, 500)),
    }
}

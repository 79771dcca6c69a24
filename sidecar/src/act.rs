//! `trainmaster cancel`, `pause` and `resume`: changes of jobs by name or number.

use clap::Args;
use serde::Serialize;
use trainmaster_core::text::shown;
use trainmaster_proto::v1::{CancelRequest, ListRequest, PauseRequest, SchedulingMode, StatusRequest};
use trainmaster_terminal::{
    Failure, Output, Paper, Show,
    client::{Daemon, ServerArgs},
};

use super::jobs::Owners;

/// The jobs to change.
#[derive(Args, Debug)]
pub(crate) struct ActArgs {
    /// Names or numbers of jobs
    #[arg(required_unless_present_any = ["all", "tenant", "queue"], value_name = "JOB")]
    jobs: Vec<String>,
    /// All active jobs that your token lets you change
    #[arg(long, conflicts_with = "jobs")]
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
    let chosen = if args.all || args.of.are_given() {
        if !args.jobs.is_empty() {
            return Err(Failure::Usage("name jobs, or --tenant and --queue, not both".into()));
        }
        let list = client.list(ListRequest { all: false, specs: false }).await;
        let list = list.map_err(|status| daemon.failure(&status))?.into_inner();
        let mine = list.jobs.iter().filter(|job| args.of.own(job));
        let numbers: Vec<String> = mine.map(|job| job.job.to_string()).collect();
        if numbers.is_empty() {
            eprintln!("note: there is no such job");
        }
        numbers
    } else {
        args.jobs.clone()
    };
    for job in &chosen {
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
            Err(status) => {
                let failure = daemon.failure(&status);
                let lost = matches!(failure, Failure::Unreachable { .. });
                if let Some(earlier) = refused.replace(failure) {
                    eprintln!("error: {}", earlier.line());
                }
                if lost {
                    break;
                }
            }
        }
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

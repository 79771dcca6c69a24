//! `trainmaster cancel`, `pause` and `resume`: what is done to jobs by name or number.

use clap::Args;
use serde::Serialize;
use trainmaster_core::text::shown;
use trainmaster_proto::v1::{CancelRequest, PauseRequest};

use super::{
    Failure, Output, Paper, Show,
    client::{Daemon, ServerArgs},
};

/// The jobs it is done to.
#[derive(Args, Debug)]
pub(crate) struct ActArgs {
    /// Names or numbers of jobs
    #[arg(required = true, value_name = "JOB")]
    jobs: Vec<String>,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// End for good.
    Cancel,
    /// Give back what it has, after a checkpoint, and hold.
    Pause,
    /// Go on.
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

/// Does it to every job, whatever comes of the others.
///
/// # Errors
/// The last of the daemon's refusals; those before it are printed.
pub(crate) async fn run(act: Act, args: &ActArgs, server: &ServerArgs, output: Output) -> Result<(), Failure> {
    let daemon = Daemon::connect(server).await?;
    let mut client = daemon.jobs();
    let mut refused: Option<Failure> = None;
    for job in &args.jobs {
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
    refused.map_or(Ok(()), Err)
}

#[derive(Serialize)]
struct Done {
    job: String,
    done: &'static str,
    /// Why a restart of the daemon would forget it.
    #[serde(skip_serializing_if = "String::is_empty")]
    not_written: String,
}

impl Show for Done {
    fn text(&self, _: &Paper) -> String {
        format!("job {} {}{}", self.job, self.done, unwritten(&self.not_written))
    }
}

/// What to say of something that is done and not written down.
pub(crate) fn unwritten(why: &str) -> String {
    match why {
        "" => String::new(),
        why => format!(" — in memory only, which a restart of the daemon would forget: {}", shown(why, 500)),
    }
}

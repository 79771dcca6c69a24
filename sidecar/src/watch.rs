//! `trainmaster watch`: the list of jobs after each change.

use std::collections::BTreeMap;

use clap::Args;
use console::Term;
use trainmaster_proto::v1::ListRequest;
use trainmaster_terminal::{
    Failure, Output, Paper, Show,
    client::{Daemon, ServerArgs},
};

use super::jobs::{JobList, JobRow};

/// The command's arguments.
#[derive(Args, Debug)]
pub(crate) struct WatchArgs {
    /// Also jobs that have ended and are still kept
    #[arg(long)]
    all: bool,
    /// End when no job is left
    #[arg(long)]
    until_idle: bool,
}

/// Runs the command until Ctrl-C, or with `--until-idle` until no job is left.
///
/// # Errors
/// The daemon's, or the loss of the connection.
pub(crate) async fn run(args: &WatchArgs, server: &ServerArgs, output: Output) -> Result<(), Failure> {
    tokio::select! {
        ended = follow(args, server, output) => ended,
        interrupted = tokio::signal::ctrl_c() => Ok(interrupted?),
    }
}

async fn follow(args: &WatchArgs, server: &ServerArgs, output: Output) -> Result<(), Failure> {
    let daemon = Daemon::connect(server).await?;
    let mut stream = daemon
        .jobs()
        .watch(ListRequest { all: args.all, specs: false, ..ListRequest::default() })
        .await
        .map_err(|status| daemon.failure(&status))?
        .into_inner();
    let mut view = match output {
        Output::Json => View::Json,
        Output::Text(Paper { width: Some(_), .. }) => View::Screen { drawn: 0 },
        Output::Text(_) => View::Lines { seen: BTreeMap::new() },
    };
    while let Some(reply) = stream.message().await.map_err(|status| daemon.failure(&status))? {
        let list = JobList::from(reply);
        view.update(&list, output)?;
        if args.until_idle && list.jobs.iter().all(JobRow::has_ended) {
            return Ok(());
        }
    }
    Err(Failure::Unreachable { address: server.address(), cause: "it has ended".into() })
}

/// The form of updates.
enum View {
    /// One object per line.
    Json,
    /// A table that is drawn over its last version.
    Screen { drawn: usize },
    /// A line for each changed job.
    Lines { seen: BTreeMap<u64, JobRow> },
}

impl View {
    fn update(&mut self, list: &JobList, output: Output) -> Result<(), Failure> {
        match self {
            Self::Json => output.stream(list),
            Self::Screen { drawn } => {
                // The size of the terminal may have changed.
                let paper = Paper::stdout();
                let text = list.text(&paper);
                let room = usize::from(paper.height.unwrap_or(u16::MAX)).saturating_sub(1).max(1);
                let mut lines: Vec<_> = text.lines().collect();
                let hidden = lines.len().saturating_sub(room);
                let more = format!("… and {} lines more", hidden + 1);
                if hidden > 0 {
                    lines.truncate(room - 1);
                    lines.push(&more);
                }
                let term = Term::stdout();
                term.clear_last_lines(*drawn)?;
                term.write_line(&lines.join("\n"))?;
                *drawn = lines.len();
                Ok(())
            }
            Self::Lines { seen } => {
                for job in list.jobs.iter().filter(|job| seen.get(&job.job) != Some(job)) {
                    output.line(&job.line(list.next_decision_ms))?;
                }
                let gone: Vec<_> = seen.keys().filter(|id| !list.jobs.iter().any(|job| job.job == **id)).collect();
                for id in gone {
                    output.line(&format!("job {id} has left the list"))?;
                }
                *seen = list.jobs.iter().map(|job| (job.job, job.clone())).collect();
                Ok(())
            }
        }
    }
}

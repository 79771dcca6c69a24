//! `trainmaster plan --dry-run`: what an engine would change now.

use clap::Args;
use serde::Serialize;
use trainmaster_proto::v1::{DryRunReply, DryRunRequest};

use super::{
    Failure, Output, Paper, Show,
    client::{Daemon, ServerArgs},
};

/// The command's arguments.
#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    /// Only look: plans are carried out by the daemon, never from here
    #[arg(long, required = true)]
    dry_run: bool,
    /// Ask this engine instead of the one in charge
    #[arg(long, value_name = "NAME")]
    engine: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// The daemon's.
pub(crate) async fn run(args: &PlanArgs, server: &ServerArgs, output: Output) -> Result<(), Failure> {
    let daemon = Daemon::connect(server).await?;
    let request = DryRunRequest { engine: args.engine.clone().unwrap_or_default() };
    let reply = daemon.admin().dry_run(request).await.map_err(|status| daemon.failure(&status))?;
    output.show(&Plan::from(reply.into_inner()))
}

#[derive(Serialize)]
struct Plan {
    engine: String,
    changes: Vec<Change>,
}

#[derive(Serialize)]
struct Change {
    job: u64,
    name: String,
    before: String,
    after: String,
    reason: String,
}

impl From<DryRunReply> for Plan {
    fn from(reply: DryRunReply) -> Self {
        let changes = reply.changes.into_iter().map(|change| Change {
            job: change.job,
            name: change.name,
            before: change.before,
            after: change.after,
            reason: change.reason,
        });
        Self { changes: changes.collect(), engine: reply.engine }
    }
}

impl Show for Plan {
    fn text(&self, paper: &Paper) -> String {
        if self.changes.is_empty() {
            return format!("{} would change nothing now.", self.engine);
        }
        let mut table = paper.table(&["JOB", "NAME", "NOW", "WOULD BE", "REASON"]);
        for change in &self.changes {
            table.add_row([&change.job.to_string(), &change.name, &change.before, &change.after, &change.reason]);
        }
        format!("{}\n\n{} would change so much now; nothing was changed.", paper.finish(&table), self.engine)
    }
}

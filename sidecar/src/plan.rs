//! `trainmaster plan --dry-run`: the proposal of an engine at this moment.

use clap::Args;
use serde::Serialize;
use trainmaster_proto::v1::{DryRunReply, DryRunRequest};
use trainmaster_terminal::{
    Failure, Output, Paper, Show,
    client::{Daemon, ServerArgs},
    sheet::{Column, Entry, Sheet},
};

/// The command's arguments.
#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    /// Change nothing, as without this option: only the daemon changes the plan
    #[arg(long)]
    dry_run: bool,
    /// Use this engine instead of the one in charge
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
    reason: Option<String>,
}

impl From<DryRunReply> for Plan {
    fn from(reply: DryRunReply) -> Self {
        let changes = reply.changes.into_iter().map(|change| Change {
            job: change.job,
            name: change.name,
            before: change.before,
            after: change.after,
            reason: Some(change.reason).filter(|reason| !reason.is_empty()),
        });
        Self { changes: changes.collect(), engine: reply.engine }
    }
}

impl Show for Plan {
    fn text(&self, paper: &Paper) -> String {
        if self.changes.is_empty() {
            return format!("{} would change nothing now.", self.engine);
        }
        let mut sheet = Sheet::new([
            Column::spare("JOB", 1),
            Column::key("NAME"),
            Column::prose("NOW"),
            Column::prose("WOULD BE"),
            Column::prose("REASON"),
        ]);
        for change in &self.changes {
            let reason = change.reason.as_deref().unwrap_or_default();
            sheet.row([
                change.job.into(),
                Entry::from(&change.name),
                Entry::from(&change.before),
                Entry::from(&change.after),
                reason.into(),
            ]);
        }
        format!("{}\n\n{} would change so much now; nothing was changed.", sheet.on(paper), self.engine)
    }
}

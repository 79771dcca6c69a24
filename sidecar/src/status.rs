//! `trainmaster status`: a summary of the daemon's state.

use clap::Args;
use serde::Serialize;
use trainmaster_core::Span;
use trainmaster_proto::v1::{StatusReply, StatusRequest};
use trainmaster_terminal::{
    Failure, Mood, Output, Paper, Show,
    client::{Daemon, ServerArgs},
    output::away,
};

use super::mode::Mode;

/// The command has no arguments of its own.
#[derive(Args, Debug)]
pub(crate) struct StatusArgs {}

/// Runs the command.
///
/// # Errors
/// The daemon's.
pub(crate) async fn run(server: &ServerArgs, output: Output) -> Result<(), Failure> {
    let daemon = Daemon::connect(server).await?;
    let reply = daemon.admin().status(StatusRequest {}).await.map_err(|status| daemon.failure(&status))?;
    output.show(&Status::from(reply.into_inner()))
}

#[derive(Serialize)]
struct Status {
    version: String,
    engine: String,
    /// The fallback engine, while it decides.
    fallback: Option<String>,
    mode: Mode,
    decision: u64,
    digest: String,
    decision_age_ms: Option<i64>,
    managers: Vec<String>,
    servers: u32,
    jobs: u32,
    state_dir: String,
    next_decision_ms: Option<i64>,
    journal_error: Option<String>,
}

impl From<StatusReply> for Status {
    fn from(reply: StatusReply) -> Self {
        Self {
            mode: reply.mode().into(),
            version: reply.version,
            engine: reply.engine,
            fallback: Some(reply.fallback).filter(|fallback| !fallback.is_empty()),
            decision: reply.decision,
            digest: reply.digest,
            decision_age_ms: reply.decision_age_ms,
            managers: reply.managers,
            servers: reply.servers,
            jobs: reply.jobs,
            state_dir: reply.state_dir,
            next_decision_ms: reply.next_decision_ms,
            journal_error: Some(reply.journal_error).filter(|error| !error.is_empty()),
        }
    }
}

impl Show for Status {
    fn text(&self, paper: &Paper) -> String {
        let age = self.decision_age_ms.map_or_else(|| "none yet".into(), |age| format!("{} ago", Span(age)));
        let next = self.next_decision_ms.map_or_else(|| "when something calls for one".into(), away);
        let managers =
            if self.managers.is_empty() { paper.word("none attached", Mood::Bad) } else { self.managers.join(", ") };
        let engine = match &self.fallback {
            None => self.engine.clone(),
            Some(fallback) => {
                let text = format!("{}, which failed: {fallback} decides for ten minutes", self.engine);
                paper.word(&text, Mood::Bad)
            }
        };
        let journal = match &self.journal_error {
            None => "written".into(),
            Some(error) => paper.word(error.strip_prefix("journal ").unwrap_or(error), Mood::Bad),
        };
        format!(
            "version   {}\nengine    {engine}\nmode      {}\ndecision  {}, {age}\nnext      {next}\ndigest    {}\n\
             managers  {managers}\nservers   {}\njobs      {}\njournal   {journal}{}",
            self.version,
            self.mode.name(),
            self.decision,
            self.digest,
            self.servers,
            self.jobs,
            if self.state_dir.is_empty() { String::new() } else { format!(", in {}", self.state_dir) }
        )
    }
}

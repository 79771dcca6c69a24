//! Decisions as reviewable text.

use std::fmt::Write;

use trainmaster_core::{
    Allocation, Decision, Issue, State, Verdict,
    decision::{Work, WorkItem, WorkState},
};

use crate::scenario::Action;

/// Decisions and issues, step by step.
#[derive(Clone, Debug)]
pub struct Transcript(String);

impl Transcript {
    pub(crate) fn new(about: &str, engine: &str) -> Self {
        Self(format!("# {about}\n# engine: {engine}\n"))
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.0
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").expect("a string takes everything");
    }

    pub(crate) fn step(&mut self, at: &str, action: &Action) {
        self.line(format_args!("\n{}", heading(at, action)));
    }

    pub(crate) fn refused(&mut self, error: &str) {
        self.line(format_args!("  refused: {error}"));
    }

    pub(crate) fn decision(&mut self, state: &State, decision: &Decision) {
        self.line(format_args!("  decision {} by {:?}", decision.id.0, decision.source));
        for (id, verdict) in &decision.changes {
            self.line(format_args!("    {}: {}", state.job_name(*id), verdict_text(state, verdict)));
        }
        for id in &decision.dropped {
            self.line(format_args!("    dropped {}", state.job_name(*id)));
        }
    }

    pub(crate) fn told(&mut self, state: &State, name: &str, issue: &Issue) {
        let verdict = verdict_text(state, &issue.verdict);
        let Issue { incarnation, revision, .. } = issue;
        self.line(format_args!("  told {name} {}.{}: {verdict}", incarnation.0, revision.0));
    }
}

/// A step's first line.
pub(crate) fn heading(at: &str, action: &Action) -> String {
    let named = |table: &toml::Table| table.get("name").and_then(|name| name.as_str()).unwrap_or("?").to_owned();
    let what = match action {
        Action::Decide(_) => "decide".into(),
        Action::Server(server) => format!("server {}", server.name),
        Action::ServerLeft(name) => format!("server {name} left"),
        Action::Foreign { server, amounts } => format!("foreign use of {server}: {}", one_line(amounts)),
        Action::Submit(job) => format!("submit {}", named(job)),
        Action::End { job, how } => format!("{job} ended: {how:?}"),
        Action::Hold { job, held } => format!("{job} {}", if *held { "held" } else { "resumed" }),
        Action::Report { job, epoch, loss } => format!("{job} reports epoch {epoch}, loss {loss}"),
        Action::Trained { job, chunks } => format!("{job} reports chunks {chunks:?}"),
        Action::Seen(job) => format!("{job} seen as told"),
        Action::Gone(job) => format!("{job} seen gone"),
        Action::Refused { job, cause } => format!("{job} refused: {cause}"),
        Action::Mode(mode) => format!("mode {mode:?}"),
        Action::Configure(_) => "configure".into(),
        Action::SyncBegin(manager) => format!("snapshot of {manager} begins"),
        Action::SyncEnd(manager) => format!("snapshot of {manager} ends"),
    };
    format!("{at} {what}")
}

fn one_line(table: &toml::Table) -> String {
    table.iter().map(|(name, value)| format!("{name} = {value}")).collect::<Vec<_>>().join(", ")
}

fn verdict_text(state: &State, verdict: &Verdict) -> String {
    match verdict {
        Verdict::Run(allocation) => {
            format!("run {}: {}{}", allocation.shape(), slots_text(state, allocation), work_text(allocation))
        }
        Verdict::Wait(reason) => format!("wait: {}", reason.describe(state)),
        Verdict::Reject(reason) => format!("reject: {}", reason.describe(state)),
        Verdict::Stop(reason) => format!("stop: {}", reason.describe(state)),
        Verdict::Release(shape) => format!("release as {shape}"),
    }
}

/// `; c0 w1 runs, c1 w1 queued 0, c2 - queued 0`: chunk 0 on worker 1, and so on; chunk 2 has no worker.
fn work_text(allocation: &Allocation) -> String {
    let text = |work: &Work| {
        let (WorkItem::Chunk(item) | WorkItem::Task(item)) = work.item;
        let worker = work.slot.map_or_else(|| "-".to_owned(), |(_, index)| format!("w{index}"));
        let state = match work.state {
            WorkState::Running => "runs".to_owned(),
            WorkState::Queued(rank) => format!("queued {rank}"),
            WorkState::Preempted => "preempted".to_owned(),
            WorkState::Done => "done".to_owned(),
        };
        format!("c{item} {worker} {state}")
    };
    let work: Vec<String> = allocation.work().iter().map(text).collect();
    if work.is_empty() { String::new() } else { format!("; {}", work.join(", ")) }
}

/// `w0 s0[0,1]`: worker 0 on server s0, its devices 0 and 1; half of device 2 is `2:500`.
fn slots_text(state: &State, allocation: &Allocation) -> String {
    let slot_text = |slot: &trainmaster_core::Slot| {
        let role = match slot.role {
            trainmaster_core::Role::Worker => 'w',
            trainmaster_core::Role::Server => 'p',
        };
        let device = |share: &trainmaster_core::DeviceShare| match share.milli {
            1000 => share.device.to_string(),
            milli => format!("{}:{milli}", share.device),
        };
        let devices: Vec<String> = slot.devices.iter().map(device).collect();
        let devices = if devices.is_empty() { String::new() } else { format!("[{}]", devices.join(",")) };
        format!("{role}{} {}{devices}", slot.index, state.server_name(slot.server))
    };
    allocation.slots().iter().map(slot_text).collect::<Vec<_>>().join(", ")
}

//! `trainmaster jobs`: the list of jobs, as a table or as JSON.

use clap::Args;
use serde::Serialize;
use trainmaster_core::{Shape, Span};
use trainmaster_proto::v1::{JobStatus, ListReply, ListRequest, SlotRole};
use trainmaster_terminal::{
    Failure, Mood, Output, Paper, Show,
    client::{Daemon, ServerArgs},
    output::away,
    sheet::{Column, Entry, Sheet},
};

/// The command's arguments.
#[derive(Args, Debug)]
pub(crate) struct JobsArgs {
    /// Also the jobs that have ended and are still kept
    #[arg(long)]
    all: bool,
}

/// Runs the command.
///
/// # Errors
/// The daemon's.
pub(crate) async fn run(args: &JobsArgs, server: &ServerArgs, output: Output) -> Result<(), Failure> {
    let daemon = Daemon::connect(server).await?;
    let reply = daemon
        .jobs()
        .list(ListRequest { all: args.all, specs: false })
        .await
        .map_err(|status| daemon.failure(&status))?;
    output.show(&JobList::from(reply.into_inner()))
}

/// Jobs at one time.
#[derive(Serialize)]
pub(crate) struct JobList {
    decision: u64,
    engine: String,
    /// The fallback engine, while it decides.
    fallback: Option<String>,
    mode: String,
    /// As a Unix time.
    pub(crate) next_decision_ms: Option<i64>,
    pub(crate) jobs: Vec<JobRow>,
}

/// One job.
#[derive(Clone, PartialEq, Serialize)]
pub(crate) struct JobRow {
    pub(crate) job: u64,
    name: String,
    tenant: String,
    queue: String,
    state: String,
    reason: Option<String>,
    workers: u32,
    servers: u32,
    step: u64,
    epoch: u32,
    max_epochs: u32,
    loss: Option<f64>,
    predicted_epochs: Option<f64>,
    predicted_low: Option<f64>,
    predicted_high: Option<f64>,
    remaining_ms: Option<i64>,
    speed: Option<f64>,
    submitted_ms: i64,
    started_ms: Option<i64>,
    ended_ms: Option<i64>,
    incarnation: u32,
    revision: u32,
    rescales: u32,
    restart_ms: i64,
    slots: Vec<SlotRow>,
}

#[derive(Clone, PartialEq, Serialize)]
struct SlotRow {
    role: &'static str,
    index: u32,
    server: String,
    devices: Vec<DeviceRow>,
}

#[derive(Clone, PartialEq, Serialize)]
struct DeviceRow {
    device: u32,
    milli: u32,
}

impl From<ListReply> for JobList {
    fn from(reply: ListReply) -> Self {
        let jobs = reply.jobs.into_iter().map(JobRow::from).collect();
        Self {
            decision: reply.decision,
            engine: reply.engine,
            fallback: Some(reply.fallback).filter(|fallback| !fallback.is_empty()),
            mode: reply.mode,
            next_decision_ms: reply.next_decision_ms,
            jobs,
        }
    }
}

impl From<JobStatus> for JobRow {
    fn from(job: JobStatus) -> Self {
        let slots = job.slots.into_iter().map(|slot| SlotRow {
            role: if slot.role() == SlotRole::Server { "server" } else { "worker" },
            index: slot.index,
            server: slot.server,
            devices: slot.devices.iter().map(|one| DeviceRow { device: one.device, milli: one.milli }).collect(),
        });
        Self {
            slots: slots.collect(),
            job: job.job,
            name: job.name,
            tenant: job.tenant,
            queue: job.queue,
            state: job.state,
            reason: Some(job.reason).filter(|reason| !reason.is_empty()),
            workers: job.workers,
            servers: job.servers,
            step: job.step,
            epoch: job.epoch,
            max_epochs: job.max_epochs,
            loss: job.loss,
            predicted_epochs: job.predicted_epochs,
            predicted_low: job.predicted_low,
            predicted_high: job.predicted_high,
            remaining_ms: job.remaining_ms,
            speed: job.speed,
            submitted_ms: job.submitted_ms,
            started_ms: job.started_ms,
            ended_ms: job.ended_ms,
            incarnation: job.incarnation,
            revision: job.revision,
            rescales: job.rescales,
            restart_ms: job.restart_ms,
        }
    }
}

impl JobRow {
    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended_ms.is_some()
    }

    fn shape(&self) -> String {
        let shape = Shape { workers: self.workers, servers: self.servers };
        if shape.is_empty() { "–".into() } else { shape.to_string() }
    }

    /// Completed and predicted epochs.
    fn progress(&self) -> String {
        let certain = self.predicted_low.is_some() && self.predicted_low == self.predicted_high;
        match self.predicted_epochs {
            Some(epochs) if certain => format!("{}/{epochs:.0}", self.epoch),
            Some(epochs) => format!("{}/~{epochs:.0}", self.epoch),
            None => format!("{}/≤{}", self.epoch, self.max_epochs),
        }
    }

    fn end(&self) -> String {
        match self.remaining_ms {
            Some(left) if !self.has_ended() => format!("in {}", Span(left)),
            _ => "–".into(),
        }
    }

    fn mood(&self) -> Option<Mood> {
        match self.state.as_str() {
            "running" => Some(Mood::Good),
            "waiting" | "released" => Some(Mood::Doubtful),
            "rejected" | "failed" => Some(Mood::Bad),
            _ if self.has_ended() => Some(Mood::Faint),
            _ => None,
        }
    }

    /// The job in one line, for logs. A job that waits for a decision has the time of the next one.
    pub(crate) fn line(&self, next_decision_ms: Option<i64>) -> String {
        let mut line = format!("job {} ({}): {} {}", self.job, self.name, self.state, self.shape());
        line += &format!(", epoch {}, step {}", self.progress(), self.step);
        if let Some(loss) = self.loss {
            line += &format!(", loss {loss:.4}");
        }
        if let Some(speed) = self.speed {
            line += &format!(", {speed:.2} steps/s");
        }
        if let Some(left) = self.remaining_ms.filter(|_| !self.has_ended()) {
            line += &format!(", ends in {}", Span(left));
        }
        if let Some(reason) = &self.reason {
            line += &format!("; {reason}");
        }
        if let Some(at) = next_decision_ms.filter(|_| self.state == "waiting") {
            line += &format!("; next decision {}", away(at));
        }
        line
    }
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "–".into(), |value| format!("{value:.digits$}"))
}

impl JobList {
    fn head(&self) -> String {
        let jobs = match self.jobs.len() {
            0 => "no jobs".into(),
            1 => "1 job".into(),
            count => format!("{count} jobs"),
        };
        let next = self.next_decision_ms.map_or_else(String::new, |at| format!(", the next {}", away(at)));
        let fallback = self.fallback.as_ref();
        let instead = fallback.map_or_else(String::new, |name| format!(" (which failed: {name} decides)"));
        format!("{jobs}; engine {}{instead}, {}, decision {}{next}", self.engine, self.mode, self.decision)
    }
}

impl Show for JobList {
    fn text(&self, paper: &Paper) -> String {
        if self.jobs.is_empty() {
            return self.head();
        }
        let mut sheet = Sheet::new([
            Column::key("JOB"),
            Column::key("NAME"),
            Column::key("STATE"),
            Column::key("SHAPE"),
            Column::spare("EPOCH", 2),
            Column::spare("STEP", 5),
            Column::spare("LOSS", 3),
            Column::spare("ENDS", 1),
            Column::spare("STEPS/S", 4),
            Column::prose("REASON"),
        ]);
        for job in &self.jobs {
            sheet.row([
                job.job.into(),
                Entry::from(&job.name),
                Entry::new(&job.state, job.mood()),
                job.shape().into(),
                job.progress().into(),
                job.step.into(),
                number(job.loss, 4).into(),
                job.end().into(),
                number(job.speed, 2).into(),
                job.reason.as_deref().unwrap_or_default().into(),
            ]);
        }
        format!("{}\n\n{}", sheet.on(paper), self.head())
    }
}

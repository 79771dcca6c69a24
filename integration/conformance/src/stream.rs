//! A scenario as plain lines, for players in other languages than Rust.
//!
//! A line has a word, the time in milliseconds and the event's other fields, separated by tabs. In fields, tabs, line
//! ends and backslashes are escaped. Amounts are in sub-units, and choices are the C library's numbers. `say` has a
//! line of the transcript; `settings` comes first.

use std::{collections::BTreeMap, fmt::Display};

use toml::{Table, Value};
use trainmaster_core::{
    End, JobSpec, Mode, TrainingMode, amount,
    job::{Resize, RoleSpec, UtilityKind},
};

use crate::{
    play::PlayError,
    scenario::{Action, Scenario, Server, Step, amounts},
    transcript::{Transcript, heading},
};

struct Line(String);

impl Line {
    fn new(word: &str) -> Self {
        Self(word.into())
    }

    fn at(word: &str, at: i64) -> Self {
        Self::new(word).field(at)
    }

    fn field(mut self, field: impl Display) -> Self {
        self.0.push('\t');
        for letter in field.to_string().chars() {
            match letter {
                '\n' => self.0.push_str("\\n"),
                '\t' => self.0.push_str("\\t"),
                '\\' => self.0.push_str("\\\\"),
                other => self.0.push(other),
            }
        }
        self
    }

    fn pair(self, key: impl Display, value: impl Display) -> Self {
        self.field(format_args!("{key}={value}"))
    }

    fn some(self, key: &str, value: Option<impl Display>) -> Self {
        match value {
            Some(value) => self.pair(key, value),
            None => self,
        }
    }

    fn table(self, prefix: &str, table: &BTreeMap<String, impl Display>) -> Self {
        table.iter().fold(self, |line, (key, value)| line.pair(format_args!("{prefix}:{key}"), value))
    }
}

/// A scenario with one engine, as lines.
///
/// # Errors
/// It contains an invalid job file or quantity.
pub fn stream(scenario: &Scenario, engine: &str) -> Result<String, PlayError> {
    let mut lines = vec![Line::new("settings").field(settings(&scenario.settings, engine))];
    let head = Transcript::new(&scenario.about, engine);
    lines.extend(head.text().lines().map(say));
    for server in &scenario.server {
        lines.push(server_set(0, server)?.pair("quiet", 1));
    }
    for step in &scenario.step {
        lines.push(say(""));
        lines.push(say(&heading(&step.at, &step.action)));
        lines.push(line(step, engine)?);
    }
    Ok(lines.into_iter().map(|line| line.0 + "\n").collect())
}

fn say(text: &str) -> Line {
    Line::new("say").field(text)
}

fn settings(table: &Table, engine: &str) -> Table {
    let mut table = table.clone();
    table.insert("engine".into(), Value::String(engine.into()));
    table
}

fn line(step: &Step, engine: &str) -> Result<Line, PlayError> {
    let at = amount::parse_span(&step.at)?.0;
    Ok(match &step.action {
        Action::Decide(_) => Line::at("decide", at),
        Action::Server(server) => server_set(at, server)?,
        Action::ServerLeft(name) => Line::at("server_left", at).field(name),
        Action::Foreign { server, amounts: table } => {
            Line::at("foreign", at).field(server).table("amount", &amounts(table)?)
        }
        Action::Submit(job) => submit(at, &JobSpec::from_toml(&job.to_string())?),
        Action::End { job, how } => Line::at("end", at).field(job).field(match how {
            End::Completed => 0,
            End::Failed => 1,
            End::Cancelled => 2,
            End::Stopped => 3,
        }),
        Action::Hold { job, held } => Line::at("hold", at).field(job).field(u8::from(*held)),
        Action::Report { job, epoch, loss } => Line::at("report", at).field(job).field(epoch).field(loss),
        Action::Trained { job, chunks } => {
            chunks.iter().fold(Line::at("trained", at).field(job), |line, chunk| line.field(chunk))
        }
        Action::Seen(job) => Line::at("seen", at).field(job),
        Action::Gone(job) => Line::at("gone", at).field(job),
        Action::Refused { job, cause } => Line::at("refused", at).field(job).field(cause),
        Action::Mode(mode) => Line::at("mode", at).field(match mode {
            Mode::Active => 0,
            Mode::Shadow => 1,
            Mode::Paused => 2,
        }),
        Action::Configure(table) => Line::at("configure", at).field(settings(table, engine)),
        Action::SyncBegin(manager) => Line::at("sync_begin", at).field(manager),
        Action::SyncEnd(manager) => Line::at("sync_end", at).field(manager),
    })
}

fn server_set(at: i64, server: &Server) -> Result<Line, PlayError> {
    let line = Line::at("server", at)
        .pair("manager", &server.manager)
        .pair("name", &server.name)
        .pair("draining", u8::from(server.draining))
        .table("capacity", &amounts(&server.capacity)?)
        .table("label", &server.labels);
    Ok(server.devices.iter().fold(line, |line, kind| line.pair("device", kind)))
}

fn submit(at: i64, spec: &JobSpec) -> Line {
    let mut line = Line::at("submit", at)
        .pair("name", &spec.name)
        .pair("model", &spec.model)
        .pair("tenant", &spec.tenant)
        .pair("queue", &spec.queue)
        .pair("priority", spec.priority)
        .pair(
            "resize",
            match spec.resize {
                Resize::Any => 0,
                Resize::Workers => 1,
                Resize::Fixed => 2,
            },
        )
        .pair(
            "mode",
            match spec.mode {
                TrainingMode::Sync => 0,
                TrainingMode::Async => 1,
                TrainingMode::AllReduce => 2,
            },
        )
        .pair("batch", spec.batch)
        .pair("examples", spec.examples)
        .pair("delta", spec.convergence.delta)
        .pair("patience", spec.convergence.patience)
        .pair("max_epochs", spec.convergence.max_epochs)
        .pair("separate_roles", u8::from(spec.separate_roles))
        .pair("model_size", spec.model_size)
        .some("deadline", spec.deadline.map(|span| span.0))
        .some("accuracy", spec.accuracy)
        .pair("stop", spec.stop as u32)
        .pair("stop_under_load", spec.stop_under_load as u32)
        .some("urgency", spec.urgency)
        .some("time_limit", spec.time_limit.map(|span| span.0))
        .some("restart_cost", spec.restart_cost.map(|span| span.0))
        .table("label", &spec.labels);
    for part in &spec.partitions {
        let after: String = part.after.iter().map(|other| format!(":{other}")).collect();
        line = line.pair("partition", format_args!("{}{after}", part.parameters));
    }
    line = role(line, "worker", &spec.worker);
    if let Some(server) = &spec.server {
        line = role(line, "server", server);
    }
    if let Some(utility) = &spec.utility {
        let kind = match utility.kind {
            UtilityKind::Sigmoid => 0,
            UtilityKind::Constant => 1,
            UtilityKind::Linear => 2,
            UtilityKind::Step => 3,
            UtilityKind::Table => 4,
        };
        line = line
            .pair("utility.kind", kind)
            .pair("utility.value", utility.value)
            .pair("utility.decay", utility.decay)
            .pair("utility.target", utility.target.0);
        for (from, worth) in &utility.points {
            line = line.pair("utility.point", format_args!("{}:{worth}", from.0));
        }
    }
    if let Some(data) = &spec.dataset {
        line = line
            .pair("dataset.chunks", data.chunks)
            .pair("dataset.batches_per_chunk", data.batches_per_chunk)
            .pair("dataset.epochs", data.epochs)
            .pair("dataset.upload", &data.upload)
            .pair("dataset.chunk_size", data.chunk_size)
            .some("dataset.batch_time", data.batch_time.map(|span| span.0));
    }
    for sample in &spec.profile {
        line = line.pair("profile", format_args!("{}:{}:{}", sample.servers, sample.workers, sample.speed));
    }
    line
}

fn role(line: Line, name: &str, role: &RoleSpec) -> Line {
    line.pair(format_args!("{name}.min"), role.min)
        .pair(format_args!("{name}.max"), role.max)
        .pair(format_args!("{name}.requested"), role.requested)
        .pair(format_args!("{name}.command"), &role.command)
        .table(&format!("{name}.demand"), &role.demand)
}

//! Content of a journal.

use std::collections::BTreeMap;

use serde::Serialize;
use trainmaster_core::{
    Event, Mode, Settings, Span,
    decision::Source,
    event::End,
    journal::{self, Record},
    scheduler::Why,
};
use trainmaster_terminal::{
    Paper, Show,
    sheet::{Column, Sheet},
};

use super::records::{Records, Unreadable};

/// Counts of records, without any decisions.
#[derive(Default, Serialize)]
pub(super) struct Contents {
    journal: String,
    /// Format of the records.
    format: u8,
    /// Version of the program that wrote last.
    version: Option<String>,
    /// Whether a daemon was using it.
    in_use: bool,
    records: usize,
    first_record: u64,
    last_record: u64,
    from_ms: Option<i64>,
    to_ms: Option<i64>,
    events: BTreeMap<&'static str, u64>,
    jobs: Jobs,
    decisions: Decisions,
    fits: u64,
    engines: Vec<InCharge>,
    terms: u64,
    /// Numbers of the snapshots' records.
    snapshots: Vec<u64>,
    unreadable: Vec<Unreadable>,
    damage: Option<String>,
}

#[derive(Default, Serialize)]
struct Jobs {
    /// Active jobs in the first snapshot.
    there_before: usize,
    /// Submissions since then. Some may have been refused.
    submitted: u64,
    completed: u64,
    failed: u64,
    cancelled: u64,
    stopped: u64,
}

#[derive(Default, Serialize)]
struct Decisions {
    committed: u64,
    by_engine: u64,
    pruned: u64,
    by_fallback: u64,
    /// Failures of the engine after which the last plan stayed in force.
    kept: u64,
    /// Changed verdicts.
    changes: u64,
    late: u64,
    lost: u64,
}

/// An engine with its settings, and the time since which they apply.
#[derive(Serialize)]
struct InCharge {
    from_ms: Option<i64>,
    engine: String,
    parameters: BTreeMap<String, String>,
    stability: bool,
    mode: Mode,
}

impl Contents {
    pub(super) fn of(records: &Records) -> Self {
        let file = &records.file;
        let mut contents = Self {
            journal: records.path.clone(),
            format: journal::VERSION,
            version: file.version.clone(),
            in_use: file.in_use,
            records: file.records.len(),
            first_record: file.records.first().map_or(0, |(number, _)| *number),
            last_record: file.records.last().map_or(0, |(number, _)| *number),
            unreadable: records.unreadable.clone(),
            damage: file.damage.clone(),
            ..Self::default()
        };
        contents.jobs.there_before = records.snapshot().1.state().jobs.len();
        for (number, record) in records.readable() {
            if let Some(at) = record.at() {
                contents.from_ms.get_or_insert(at.0);
                contents.to_ms = Some(at.0);
            }
            contents.count(number, &record);
        }
        contents
    }

    fn count(&mut self, number: u64, record: &Record) {
        let at = record.at().map(|at| at.0);
        match record {
            Record::Event { event, .. } => {
                *self.events.entry(kind(event)).or_default() += 1;
                self.event(at, event);
            }
            Record::Committed { .. } => {
                self.decisions.committed += 1;
                let Some(decision) = record.decision() else { return };
                self.decisions.changes += decision.changes.len() as u64;
                *match decision.source {
                    Source::Engine => &mut self.decisions.by_engine,
                    Source::Pruned => &mut self.decisions.pruned,
                    Source::Fallback => &mut self.decisions.by_fallback,
                    Source::Kept => &mut self.decisions.kept,
                } += 1;
            }
            Record::Abandoned { why: Why::Late, .. } => self.decisions.late += 1,
            Record::Abandoned { why: Why::Lost, .. } => self.decisions.lost += 1,
            Record::FitsCommitted { .. } => self.fits += 1,
            Record::Snapshot(saved) => {
                self.snapshots.push(number);
                self.in_charge(at, &saved.state().settings, saved.state().mode);
            }
            Record::Prepared { .. } | Record::FitsPrepared { .. } => {}
        }
    }

    fn event(&mut self, at: Option<i64>, event: &Event) {
        match event {
            Event::Configured(settings) => {
                let mode = self.engines.last().map_or(Mode::Active, |last| last.mode);
                self.in_charge(at, settings, mode);
            }
            Event::ModeSet(mode) => {
                let Some(last) = self.engines.last() else { return };
                let (engine, parameters, stability) = (last.engine.clone(), last.parameters.clone(), last.stability);
                if last.mode != *mode {
                    self.engines.push(InCharge { from_ms: at, engine, parameters, stability, mode: *mode });
                }
            }
            Event::TermBegan(_) => self.terms += 1,
            Event::JobSubmitted { .. } => self.jobs.submitted += 1,
            Event::JobEnded { end, .. } => {
                *match end {
                    End::Completed => &mut self.jobs.completed,
                    End::Failed => &mut self.jobs.failed,
                    End::Cancelled => &mut self.jobs.cancelled,
                    End::Stopped => &mut self.jobs.stopped,
                } += 1;
            }
            _ => {}
        }
    }

    fn in_charge(&mut self, at: Option<i64>, settings: &Settings, mode: Mode) {
        let parameters = settings.parameters.iter().map(|(name, value)| (name.clone(), value.to_string())).collect();
        let (engine, stability) = (settings.engine.clone(), settings.stability.enabled);
        let same = |last: &InCharge| {
            (&last.engine, &last.parameters, last.stability, last.mode) == (&engine, &parameters, stability, mode)
        };
        if !self.engines.last().is_some_and(same) {
            self.engines.push(InCharge { from_ms: at, engine, parameters, stability, mode });
        }
    }
}

fn kind(event: &Event) -> &'static str {
    match event {
        Event::Configured(_) => "configured",
        Event::ModeSet(_) => "mode_set",
        Event::TermBegan(_) => "term_began",
        Event::ServerSet { .. } => "server_set",
        Event::ServersLeft { .. } => "server_left",
        Event::ForeignUse { .. } => "foreign_use",
        Event::Utilisation { .. } => "utilisation",
        Event::PolicySet { .. } => "policy_set",
        Event::JobSubmitted { .. } => "job_submitted",
        Event::JobEnded { .. } => "job_ended",
        Event::JobHeld { .. } => "job_held",
        Event::Reported { .. } => "reported",
        Event::BatchReported { .. } => "batch reported",
        Event::Observed { .. } => "observed",
        Event::Enacted { .. } => "enacted",
        Event::SyncBegin { .. } => "sync_begin",
        Event::SyncEnd { .. } => "sync_end",
        Event::ReportIgnored { .. } => "report_ignored",
        Event::Elapsed => "refused",
    }
}

/// `3 completed, 1 failed`, without zero counts.
fn list(counts: &[(u64, &str)]) -> String {
    let some = counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
    some.collect::<Vec<_>>().join(", ")
}

impl Show for Contents {
    fn text(&self, paper: &Paper) -> String {
        let mut sheet = Sheet::new([Column::key(""), Column::prose("")]);
        let mut row = |name: &str, text: String| {
            if !text.is_empty() {
                sheet.row([name.into(), text.into()]);
            }
        };
        let span = self.from_ms.zip(self.to_ms).map(|(from, to)| Span(to - from).to_string());
        let version = self.version.as_ref().map_or_else(String::new, |version| format!(", written by {version}"));
        let (first, last) = (self.first_record, self.last_record);
        row("span", span.unwrap_or_else(|| "nothing has happened".into()));
        row("records", format!("{}, from {first} to {last}; format {}{version}", self.records, self.format));
        let events: Vec<(u64, String)> =
            self.events.iter().map(|(kind, count)| (*count, kind.replace('_', " "))).collect();
        let events: Vec<(u64, &str)> = events.iter().map(|(count, kind)| (*count, kind.as_str())).collect();
        row("events", list(&events));
        let jobs = &self.jobs;
        row(
            "jobs",
            list(&[
                (jobs.there_before as u64, "there before"),
                (jobs.submitted, "submitted"),
                (jobs.completed, "completed"),
                (jobs.failed, "failed"),
                (jobs.cancelled, "cancelled"),
                (jobs.stopped, "stopped"),
            ]),
        );
        let made = &self.decisions;
        row(
            "decisions",
            list(&[
                (made.committed, "committed"),
                (made.pruned, "cut to what still fitted"),
                (made.by_fallback, "by the fallback engine"),
                (made.kept, "after a failure of the engine"),
                (made.changes, "changed verdicts"),
                (made.late, "given up late"),
                (made.lost, "lost"),
            ]),
        );
        row("fits", list(&[(self.fits, "rounds")]));
        for charge in &self.engines {
            let since = charge.from_ms.zip(self.from_ms).map_or(Span::ZERO, |(at, from)| Span(at - from));
            let mut text = format!("{} from {since} on", charge.engine);
            for (name, value) in &charge.parameters {
                text += &format!(", {name} = {value}");
            }
            if !charge.stability {
                text += ", stability off";
            }
            if charge.mode != Mode::Active {
                text += &format!("; {}", if charge.mode == Mode::Shadow { "in shadow" } else { "paused" });
            }
            row("engine", text);
        }
        let snapshots: Vec<String> = self.snapshots.iter().map(u64::to_string).collect();
        row("snapshots", format!("{}: record {}", snapshots.len(), snapshots.join(", ")));
        row("starts", list(&[(self.terms, "of a daemon")]));
        let text = sheet.on(paper);
        if self.in_use {
            return format!("{text}\n\nA daemon is using this journal: this is what it had written just now.");
        }
        text
    }
}

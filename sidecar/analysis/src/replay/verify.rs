//! `replay --verify`: repeats the same events in the same core.

use serde::Serialize;
use trainmaster_core::{
    Decision, Span, State, Time, Verdict,
    journal::Record,
    replay::{Difference, Replay, Replayed},
    text::hex,
};
use trainmaster_terminal::{
    Failure, Output, Paper, Show,
    sheet::{Column, Sheet},
};

use super::records::{Records, Unreadable};

/// Runs the comparison and prints its result.
///
/// # Errors
/// A decision differs, a record is unreadable, or the engine of the first snapshot doesn't exist any more.
pub(super) fn run(records: &Records, output: Output) -> Result<(), Failure> {
    let verified = verify(records)?;
    output.show(&verified)?;
    verified.problem.map_or(Ok(()), |problem| Err(Failure::refused(problem)))
}

#[derive(Default, Serialize)]
struct Verified {
    journal: String,
    /// Number of the first snapshot.
    from_record: u64,
    records: u64,
    decisions: Counts,
    snapshots: Snapshots,
    first_difference: Option<Found>,
    unreadable: Vec<Unreadable>,
    #[serde(skip)]
    problem: Option<String>,
}

#[derive(Default, Serialize)]
struct Counts {
    agree: u64,
    differ: u64,
    /// Decisions between a difference or an unreadable record and the next snapshot.
    not_compared: u64,
}

#[derive(Default, Serialize)]
struct Snapshots {
    /// Snapshots that are consistent with the records before them.
    follow: u64,
    differ: u64,
}

/// A decision that differs.
#[derive(Serialize)]
struct Found {
    record: u64,
    at_ms: i64,
    /// Time since the first record.
    #[serde(skip)]
    after: Span,
    ticket: u64,
    recorded: String,
    replayed: Option<String>,
    differences: Vec<Differs>,
}

#[derive(Serialize)]
struct Differs {
    what: String,
    recorded: String,
    replayed: String,
}

fn verify(records: &Records) -> Result<Verified, Failure> {
    let (from_record, saved) = records.snapshot();
    let about = |number: u64, error: &dyn std::fmt::Display| {
        Failure::refused(format!("{}: record {number}: {error}; this program no longer has it", records.path))
    };
    let mut replay = Replay::new(saved).map_err(|error| about(from_record, &error))?;
    let mut verified = Verified {
        journal: records.path.clone(),
        from_record,
        records: 1,
        unreadable: records.unreadable.clone(),
        ..Verified::default()
    };
    let all = records.readable().filter(|(number, record)| *number > from_record && is_decision(record)).count() as u64;
    let begin = records.readable().find_map(|(_, record)| record.at()).unwrap_or_default();
    let mut astray = false;
    for (number, record) in records.following() {
        if astray && !matches!(record, Record::Snapshot(_)) {
            continue;
        }
        verified.records += 1;
        match replay.step(&record).map_err(|error| about(number, &error))? {
            Replayed::Decided(Ok(_)) => verified.decisions.agree += 1,
            Replayed::Decided(Err(difference)) => {
                verified.decisions.differ += 1;
                astray = true;
                if verified.first_difference.is_none() {
                    verified.first_difference =
                        Some(Found::new(number, &record, &difference, replay.scheduler().state(), begin));
                }
            }
            Replayed::Snapshot { follows } => {
                // After a difference or a lost record, the snapshot isn't expected to follow.
                if follows {
                    verified.snapshots.follow += 1;
                } else {
                    verified.snapshots.differ += 1;
                    if !astray && records.unreadable.is_empty() {
                        verified.problem.get_or_insert_with(|| stranger(&records.path, number));
                    }
                }
                astray = false;
            }
            Replayed::Event(_) | Replayed::Ticket => {}
        }
    }
    verified.decisions.not_compared = all - verified.decisions.agree - verified.decisions.differ;
    let differs = verified.first_difference.as_ref().map(|found| {
        format!(
            "{}: record {}: the decision of ticket {} comes out differently",
            records.path, found.record, found.ticket
        )
    });
    verified.problem = differs.or_else(|| records.problem()).or(verified.problem);
    Ok(verified)
}

fn is_decision(record: &Record) -> bool {
    matches!(record, Record::Committed { .. })
}

fn stranger(path: &str, number: u64) -> String {
    format!(
        "{path}: record {number}: this snapshot isn't what the records before it lead to; some are missing, as \
         after a full disk, or were changed"
    )
}

impl Found {
    fn new(number: u64, record: &Record, difference: &Difference, state: &State, begin: Time) -> Self {
        let replayed = difference.replayed.as_ref().and_then(|made| made.decision.as_ref());
        let differences = match (&difference.recorded.decision, replayed) {
            (Some(recorded), Some(replayed)) => compare(recorded, replayed, state),
            (None, _) => vec![Differs::new("the decision", "unreadable", "a decision")],
            (_, None) => vec![Differs::new("the ticket", "open", "not open: its record is missing")],
        };
        Self {
            record: number,
            at_ms: record.at().unwrap_or_default().0,
            after: record.at().unwrap_or_default() - begin,
            ticket: difference.ticket.0,
            recorded: hex(&difference.recorded.digest),
            replayed: difference.replayed.as_ref().map(|made| hex(&made.digest)),
            differences,
        }
    }
}

impl Differs {
    fn new(what: impl Into<String>, recorded: impl Into<String>, replayed: impl Into<String>) -> Self {
        Self { what: what.into(), recorded: recorded.into(), replayed: replayed.into() }
    }
}

/// All differences between two decisions.
fn compare<'a>(recorded: &'a Decision, replayed: &'a Decision, state: &State) -> Vec<Differs> {
    let mut found = Vec::new();
    let mut field = |what: &str, recorded: String, replayed: String| {
        if recorded != replayed {
            found.push(Differs::new(what, recorded, replayed));
        }
    };
    field("number", recorded.id.0.to_string(), replayed.id.0.to_string());
    field("term", recorded.term.0.to_string(), replayed.term.0.to_string());
    field("time", recorded.at.0.to_string(), replayed.at.0.to_string());
    field("made by", format!("{:?}", recorded.source), format!("{:?}", replayed.source));
    field("dropped", format!("{:?}", recorded.dropped), format!("{:?}", replayed.dropped));
    field("wakes at", format!("{:?}", recorded.wake_at), format!("{:?}", replayed.wake_at));
    let jobs: std::collections::BTreeSet<_> =
        recorded.changes.iter().chain(&replayed.changes).map(|(job, _)| *job).collect();
    for job in jobs {
        let of = |decision: &'a Decision| decision.changes.iter().find(|(changed, _)| *changed == job).map(|(_, v)| v);
        let (before, after) = (of(recorded), of(replayed));
        if before == after {
            continue;
        }
        let name = state.job(job).map_or_else(|| job.to_string(), |known| format!("{job} ({})", known.spec.name));
        let text = |verdict: Option<&Verdict>| verdict.map_or_else(|| "no change".to_owned(), |v| describe(v, state));
        match (text(before), text(after)) {
            // The same servers with other devices.
            (a, b) if a == b => field(&name, format!("{before:?}"), format!("{after:?}")),
            (a, b) => field(&name, a, b),
        }
    }
    if found.is_empty() {
        found.push(Differs::new("the digest", "of other decisions before this one", "the same decision"));
    }
    found
}

fn describe(verdict: &Verdict, state: &State) -> String {
    match verdict {
        Verdict::Run(allocation) => {
            let mut names: Vec<_> = allocation.slots().iter().map(|slot| state.server_name(slot.server)).collect();
            names.sort_unstable();
            names.dedup();
            format!("run {} on {}", allocation.shape(), names.join(", "))
        }
        // The debug form, because words would refer to numbers that this state knows.
        Verdict::Wait(reason) => format!("wait: {reason:?}"),
        Verdict::Reject(reason) => format!("reject: {reason:?}"),
        Verdict::Stop(reason) => format!("stop: {reason:?}"),
        Verdict::Release(shape) => format!("release as {shape}"),
    }
}

impl Show for Verified {
    fn text(&self, paper: &Paper) -> String {
        let Counts { agree, differ, not_compared } = self.decisions;
        let plural = |count: u64| if count == 1 { "" } else { "s" };
        let mut text = format!(
            "{agree} decision{} came out again byte by byte, {differ} didn't, {not_compared} couldn't be compared; {} \
             records from {} on.",
            plural(agree),
            self.records,
            self.from_record,
        );
        let snapshots = self.snapshots.follow + self.snapshots.differ;
        if snapshots > 0 {
            let again = self.snapshots.follow;
            text += &format!("\n{again} of {snapshots} snapshot{} on the way came out again too.", plural(snapshots));
        }
        let Some(found) = &self.first_difference else { return text };
        text += &format!(
            "\n\nThe first that differs: record {}, {} after the beginning ({} ms), ticket {}\n  recorded {}\n  \
             replayed {}\n\n",
            found.record,
            found.after,
            found.at_ms,
            found.ticket,
            found.recorded,
            found.replayed.as_deref().unwrap_or("nothing"),
        );
        let mut sheet = Sheet::new([Column::key("WHAT"), Column::prose("RECORDED"), Column::prose("REPLAYED")]);
        for differs in &found.differences {
            sheet.row([differs.what.clone(), differs.recorded.clone(), differs.replayed.clone()].map(Into::into));
        }
        text + &sheet.on(paper)
    }
}

//! `trainmaster explain`: the reasons for a job's state and allocation.

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use trainmaster_core::text::shown;
use trainmaster_proto::{
    CRASHING,
    v1::{ExplainReply, ExplainRequest},
};
use trainmaster_terminal::{
    Failure, Mood, Output, Paper, Show,
    client::{Daemon, ServerArgs},
    sheet::{Column, Entry, Sheet},
};

/// The command's arguments.
#[derive(Args, Debug)]
pub(crate) struct ExplainArgs {
    /// Name or number of a job
    #[arg(value_name = "JOB")]
    job: String,
}

/// Runs the command.
///
/// # Errors
/// The daemon's.
pub(crate) async fn run(args: &ExplainArgs, server: &ServerArgs, output: Output) -> Result<(), Failure> {
    let daemon = Daemon::connect(server).await?;
    let request = ExplainRequest { job: args.job.clone() };
    let reply = daemon.jobs().explain(request).await.map_err(|status| daemon.failure(&status))?;
    output.show(&Explained::from(reply.into_inner()))
}

/// The daemon's JSON with all lines, and the part that is shown.
#[derive(Serialize)]
#[serde(transparent)]
struct Explained {
    whole: Value,
    /// The job and its state. None if the daemon sends no state.
    #[serde(skip)]
    head: Option<String>,
    #[serde(skip)]
    lines: Vec<Line>,
}

/// A line from the daemon, and whether it is known to block the job.
struct Line {
    text: String,
    blocks: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Known {
    job: u64,
    name: String,
    state: String,
    findings: Vec<Finding>,
}

#[derive(Deserialize)]
struct Finding {
    blocks: bool,
    text: String,
}

impl From<ExplainReply> for Explained {
    fn from(reply: ExplainReply) -> Self {
        let mut whole: Value = serde_json::from_str(&reply.json).unwrap_or_default();
        if let Some(findings) = whole.get_mut("findings").and_then(Value::as_array_mut) {
            findings.sort_by_key(|finding| finding["blocks"] != true);
        }
        // A daemon of another version may send other JSON. Then the lines are shown without their kind.
        let known = Known::deserialize(&whole).unwrap_or_default();
        // What isn't a finding is the manager's message.
        let blocks = |text: &str| {
            let finding = known.findings.iter().find(|finding| finding.text == text);
            finding.map_or(known.state == CRASHING, |finding| finding.blocks)
        };
        if !whole.is_object() {
            whole = serde_json::json!({});
        }
        whole["lines"] = reply.lines.as_slice().into();
        let mut lines: Vec<_> = reply.lines.into_iter().map(|text| Line { blocks: blocks(&text), text }).collect();
        lines.sort_by_key(|line| !line.blocks);
        let Known { job, name, state, .. } = known;
        let head = (!state.is_empty())
            .then(|| format!("job {job}, {}: {}", shown(&name, usize::MAX), shown(&state, usize::MAX)));
        Self { whole, head, lines }
    }
}

impl Show for Explained {
    fn text(&self, paper: &Paper) -> String {
        let mut sheet = Sheet::new([Column::key(""), Column::prose("")]);
        for line in &self.lines {
            let mark = if line.blocks { ("✗", Mood::Bad) } else { ("·", Mood::Faint) };
            sheet.row([Entry::new(mark.0, Some(mark.1)), Entry::from(&line.text)]);
        }
        let head = self.head.iter().map(|head| format!("{head}\n"));
        head.chain([sheet.on(paper)]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocking_findings_come_first() {
        let finding = |blocks, text| format!("{{\"topic\":\"bounds\",\"blocks\":{blocks},\"text\":\"{text}\"}}");
        let json = format!(
            "{{\"job\":3,\"name\":\"a\",STATE\"findings\":[{},{}]}}",
            finding(false, "one"),
            finding(true, "two")
        );
        let with = |state: &str| json.replace("STATE", state);
        let lines = || vec!["one".into(), "two".into()];
        let explained = Explained::from(ExplainReply { lines: lines(), json: with("") });
        assert_eq!(explained.text(&Paper::default()), "✗  two\n·  one");
        let explained = Explained::from(ExplainReply { lines: lines(), json: with("\"state\":\"paused\",") });
        assert_eq!(explained.text(&Paper::default()), "job 3, a: paused\n✗  two\n·  one");
        let message = || [vec!["it fell".to_owned()], lines()].concat();
        let crashing = ExplainReply { lines: message(), json: with("\"state\":\"crashing\",") };
        let text = Explained::from(crashing).text(&Paper::default());
        assert_eq!(text, "job 3, a: crashing\n✗  it fell\n✗  two\n·  one");
        let running = ExplainReply { lines: message(), json: with("\"state\":\"running\",") };
        assert!(Explained::from(running).text(&Paper::default()).contains("·  it fell"));
        let json = serde_json::to_value(&explained).unwrap();
        assert_eq!((&json["findings"][0]["text"], &json["lines"][0]), (&"two".into(), &"one".into()));
    }

    #[test]
    fn unknown_json_leaves_the_lines() {
        let explained = Explained::from(ExplainReply { lines: vec!["one".into(), "two".into()], json: String::new() });
        assert_eq!(explained.text(&Paper::default()), "·  one\n·  two");
    }
}

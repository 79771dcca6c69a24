//! `trainmaster explain`: why a job has what it has.

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use trainmaster_proto::v1::{ExplainReply, ExplainRequest};

use super::{
    Failure, Mood, Output, Paper, Show,
    client::{Daemon, ServerArgs},
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

/// The daemon's JSON, as it is; and what of it is shown.
#[derive(Serialize)]
#[serde(transparent)]
struct Explained {
    whole: Value,
    #[serde(skip)]
    known: Option<Known>,
    #[serde(skip)]
    lines: Vec<String>,
}

#[derive(Deserialize)]
struct Known {
    job: u64,
    name: String,
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
        // Blocking ones first; otherwise in the daemon's order.
        if let Some(findings) = whole.get_mut("findings").and_then(Value::as_array_mut) {
            findings.sort_by_key(|finding| finding["blocks"] != true);
        }
        Self { known: Known::deserialize(&whole).ok(), whole, lines: reply.lines }
    }
}

impl Show for Explained {
    fn text(&self, paper: &Paper) -> String {
        // A daemon of another version may tell of something else than findings.
        let Some(known) = &self.known else { return self.lines.join("\n") };
        let mut text = format!("job {} ({})", known.job, known.name);
        for finding in &known.findings {
            let mark = if finding.blocks { paper.word("✗", Mood::Bad) } else { paper.word("·", Mood::Faint) };
            text += &format!("\n  {mark} {}", finding.text);
        }
        let blocking = known.findings.iter().filter(|finding| finding.blocks).count();
        if blocking == 0 { text + "\nNothing keeps it from what it is planned to have." } else { text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_blocks_comes_first() {
        let finding = |blocks, text| format!("{{\"topic\":\"bounds\",\"blocks\":{blocks},\"text\":\"{text}\"}}");
        let json =
            format!("{{\"job\":3,\"name\":\"a\",\"findings\":[{},{}]}}", finding(false, "one"), finding(true, "two"));
        let explained = Explained::from(ExplainReply { lines: vec!["one".into(), "two".into()], json });
        assert_eq!(explained.text(&Paper::default()), "job 3 (a)\n  ✗ two\n  · one");
        assert_eq!(serde_json::to_value(&explained).unwrap()["findings"][0]["text"], "two");
    }

    #[test]
    fn unknown_json_leaves_the_lines() {
        let explained = Explained::from(ExplainReply { lines: vec!["one".into(), "two".into()], json: String::new() });
        assert_eq!(explained.text(&Paper::default()), "one\ntwo");
    }
}

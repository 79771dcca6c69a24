//! `trainmaster slurm …`: commands for the agent inside slurmctld, over its control socket on the controller's machine.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};

use trainmaster_manager::{AdapterCommand, CommandAnswer};

/// Maximum wait for an answer. The agent answers between two rounds.
const PATIENCE: Duration = Duration::from_secs(30);

/// The commands' descriptions for hosts.
pub const COMMANDS: &[AdapterCommand] = &[
    AdapterCommand {
        name: "status",
        arguments: "",
        about: "how Slurm's agent is doing, and what each training job has",
        asks_daemon: false,
        run: |_, _| answer(&json!({"command": "status"}), status),
    },
    AdapterCommand {
        name: "explain",
        arguments: "JOB",
        about: "why a training job has what it has; JOB is Slurm's number or its name",
        asks_daemon: false,
        run: |arguments, _| {
            let [job] = arguments else { bail!("explain takes one JOB") };
            answer(&json!({"command": "explain", "job": job}), explanation)
        },
    },
    AdapterCommand {
        name: "metrics",
        arguments: "[names]",
        about: "the agent's metrics in Prometheus's text format; names: also those of accounts, partitions and jobs",
        asks_daemon: false,
        run: |arguments, _| {
            let names = match arguments {
                [] => false,
                [word] if word == "names" => true,
                _ => bail!("metrics takes nothing or the word names"),
            };
            let mut request = json!({"command": "metrics"});
            if names {
                request["names"] = true.into();
            }
            let json = ask(&state_folder()?, &request)?;
            let metrics = json["metrics"].as_str().ok_or_else(|| anyhow!("the agent has no metrics: {json}"))?;
            Ok(CommandAnswer { text: metrics.trim_end().to_owned(), json })
        },
    },
    AdapterCommand {
        name: "mode",
        arguments: "active|shadow|paused",
        about: "set who is in charge; paused gives all training jobs back to Slurm at once",
        asks_daemon: false,
        run: |arguments, _| {
            let [mode] = arguments else { bail!("mode takes one of active, shadow and paused") };
            answer(&json!({"command": "mode", "mode": mode}), status)
        },
    },
];

fn answer(request: &Value, text: fn(&Value) -> String) -> Result<CommandAnswer> {
    let json = ask(&state_folder()?, request)?;
    Ok(CommandAnswer { text: text(&json), json })
}

/// Slurm's StateSaveLocation, as scontrol prints it.
fn state_folder() -> Result<PathBuf> {
    let shown = Command::new("scontrol").args(["show", "config"]).output().context("scontrol can't be run")?;
    if !shown.status.success() {
        bail!("scontrol show config: {}", String::from_utf8_lossy(&shown.stderr).trim());
    }
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    let line = shown.lines().find_map(|line| line.strip_prefix("StateSaveLocation"));
    let folder = line.and_then(|line| line.split_once('=')).map(|(_, folder)| folder.trim());
    folder.map(PathBuf::from).ok_or_else(|| anyhow!("scontrol show config names no StateSaveLocation"))
}

fn ask(state: &Path, request: &Value) -> Result<Value> {
    let socket = state.join("trainmaster/control");
    let connected = UnixStream::connect(&socket).with_context(|| {
        format!(
            "{}: the agent doesn't answer; it runs inside slurmctld (SlurmctldPlugstack=trainmaster), on the \
             controller's machine, for its user",
            socket.display()
        )
    });
    let mut stream = connected?;
    stream.set_read_timeout(Some(PATIENCE))?;
    writeln!(stream, "{request}")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).context("the agent doesn't answer")?;
    let answer: Value = serde_json::from_str(&line).with_context(|| format!("the agent says {line:?}"))?;
    match answer["error"].as_str() {
        Some(error) => bail!("{error}"),
        None => Ok(answer),
    }
}

fn words(value: &Value) -> String {
    match value {
        Value::Null => "–".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn status(answer: &Value) -> String {
    let ms = |key: &str| answer[key].as_f64().map_or_else(|| "–".into(), |ms| format!("{ms:.2} ms"));
    let mut text = format!(
        "mode       {}\nengine     {}\nservers    {}\ndecisions  {}, the last in {}, the slowest in {}\n\
         Slurm      answers in {}; {} orders, {} each, {} refused",
        words(&answer["mode"]),
        words(&answer["engine"]),
        answer["servers"],
        answer["decisions"],
        ms("decision_ms"),
        ms("slowest_decision_ms"),
        ms("load_ms"),
        answer["orders"],
        ms("order_ms"),
        answer["refusals"],
    );
    if let Some(fallback) = answer["fallback"].as_str() {
        text += &format!("\nfallback   {fallback} decides: the engine failed too often; slurmctld's log says how");
    }
    if let Some(problem) = answer["problem"].as_str() {
        text += &format!("\nproblem    {problem}");
    }
    if let Some(problem) = answer["not_written"].as_str() {
        text += &format!("\nnote       the mode holds, but a restart of slurmctld would forget it: {problem}");
    }
    let jobs = answer["jobs"].as_array().map(Vec::as_slice).unwrap_or_default();
    let rows: Vec<[String; 6]> = jobs
        .iter()
        .map(|job| ["id", "name", "planned", "observed", "epoch", "reason"].map(|key| words(&job[key])))
        .collect();
    let head = ["JOB", "NAME", "PLANNED", "HAS", "EPOCH", "WHY"].map(str::to_owned);
    let width = |at: usize| std::iter::once(&head).chain(&rows).map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..5).map(width).collect();
    if !rows.is_empty() {
        text.push('\n');
    }
    for row in std::iter::once(&head).chain(&rows).filter(|_| !rows.is_empty()) {
        text.push('\n');
        for (cell, width) in row.iter().zip(&widths) {
            text += &format!("{cell:width$}  ");
        }
        text += &row[5];
    }
    text
}

fn explanation(answer: &Value) -> String {
    let findings = answer["findings"].as_array().map(Vec::as_slice).unwrap_or_default();
    let lines = findings.iter().map(|finding| {
        let mark = if finding["blocks"] == true { "!" } else { " " };
        format!("{mark} {}", words(&finding["text"]))
    });
    let state = answer["state"].as_str().map(|state| format!(": {state}")).unwrap_or_default();
    std::iter::once(format!("job {} ({}){state}", words(&answer["id"]), words(&answer["name"])))
        .chain(lines)
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_read_well() {
        let status = status(&json!({
            "mode": "active", "engine": "optimus", "servers": 6, "decisions": 9, "decision_ms": 0.125,
            "slowest_decision_ms": 1.0, "load_ms": 2.5, "orders": 4, "order_ms": 1.5, "refusals": 0, "problem": null,
            "jobs": [{
                "id": 7, "name": "resnet-7", "planned": "4w+2p", "observed": "0w+0p", "epoch": 0.0, "reason": "waits",
            }],
        }));
        assert!(status.contains("the last in 0.13 ms") || status.contains("the last in 0.12 ms"), "{status}");
        assert!(status.ends_with("7    resnet-7  4w+2p    0w+0p  0.0    waits"), "{status}");
        let text = explanation(&json!({
            "id": 7, "name": "resnet-7", "state": "waiting",
            "findings": [{"blocks": true, "text": "needs 2"}, {"blocks": false, "text": "ok"}],
        }));
        assert_eq!(text, "job 7 (resnet-7): waiting\n! needs 2\n  ok");
    }

    #[test]
    fn an_agent_that_is_not_there_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = format!("{:#}", ask(folder.path(), &json!({})).unwrap_err());
        assert!(error.contains("trainmaster/control") && error.contains("SlurmctldPlugstack"), "{error}");
    }
}

//! `trainmaster submit`: submits job files to the daemon.

use std::{collections::BTreeSet, io, path::Path};

use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use trainmaster_core::{JobSpec, job::LONGEST_FILE, text::shown};
use trainmaster_host::bounded::{read_text, take_text};
use trainmaster_proto::{
    job_from_spec,
    v1::{SchedulingMode, StatusReply, StatusRequest, SubmitRequest},
};
use trainmaster_terminal::{
    Failure, Output, Paper, Show,
    client::{Daemon, ServerArgs},
    output::away,
};

/// Maximum characters of a note.
const LONGEST_NOTE: usize = 1000;
/// Maximum number of notes that are shown. The others are counted.
const MOST_NOTES: usize = 8;
/// Number of files from which a progress bar is shown.
const FEW: usize = 8;

/// The command's arguments.
#[derive(Args, Debug)]
pub(crate) struct SubmitArgs {
    /// Job files in TOML; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
    /// Show each job's token, for programs that no manager starts; the daemon shows it only now
    #[arg(long)]
    show_token: bool,
}

/// Runs the command. It reads all files first, so that an error in one submits none.
///
/// # Errors
/// A file is invalid, or the daemon refuses a job. Jobs before it are submitted.
pub(crate) async fn run(args: &SubmitArgs, server: &ServerArgs, output: Output) -> Result<(), Failure> {
    let specs = args.files.iter().map(|file| read(file)).collect::<anyhow::Result<Vec<_>>>()?;
    let daemon = Daemon::connect(server).await?;
    let mut jobs = daemon.jobs();
    // On standard error, and only on a terminal.
    let bar = if specs.len() > FEW { ProgressBar::new(specs.len() as u64) } else { ProgressBar::hidden() };
    bar.set_style(
        ProgressStyle::with_template("submitting {bar:30} {pos}/{len}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let mut notes = Notes::default();
    for spec in &specs {
        let request = SubmitRequest { job: Some(job_from_spec(spec)), external: None };
        let reply = match jobs.submit(request).await {
            Ok(reply) => reply.into_inner(),
            Err(status) => {
                bar.abandon();
                notes.say();
                return Err(daemon.failure(&status).about(&spec.name));
            }
        };
        bar.inc(1);
        reply.notes.into_iter().for_each(|note| notes.add(note));
        let submitted = Submitted {
            job: reply.job,
            name: spec.name.clone(),
            token: if args.show_token { reply.token } else { String::new() },
            next_decision_ms: reply.next_decision_ms,
        };
        bar.suspend(|| output.stream(&submitted))?;
    }
    bar.finish_and_clear();
    if let Ok(status) = daemon.admin().status(StatusRequest {}).await
        && let Some(note) = idle(status.get_ref())
    {
        say(note);
    }
    notes.say();
    Ok(())
}

/// The daemon's notes on the jobs, each once.
#[derive(Default)]
struct Notes {
    first: BTreeSet<String>,
    more: u64,
}

impl Notes {
    fn add(&mut self, note: String) {
        if self.first.contains(&note) {
            return;
        }
        if self.first.len() < MOST_NOTES {
            self.first.insert(note);
        } else {
            self.more += 1;
        }
    }

    fn say(&self) {
        self.first.iter().for_each(|note| say(note));
        if self.more > 0 {
            say(&format!("{} more notes aren't shown", self.more));
        }
    }
}

fn say(note: &str) {
    eprintln!("note: {}", shown(note, LONGEST_NOTE));
}

/// Why no waiting job is started, whatever an engine decides.
fn idle(status: &StatusReply) -> Option<&'static str> {
    match status.mode() {
        SchedulingMode::Paused => Some("scheduling is paused, so nothing starts it; `trainmaster mode active` goes on"),
        SchedulingMode::Shadow => Some("in shadow mode nothing is started; `trainmaster mode active` does"),
        SchedulingMode::Active => status.managers.is_empty().then_some("no manager is attached, so nothing starts it"),
    }
}

fn read(file: &str) -> anyhow::Result<JobSpec> {
    let most = LONGEST_FILE as u64;
    let text = match file {
        "-" => take_text(io::stdin(), most),
        file => read_text(Path::new(file), most),
    };
    let text = text.with_context(|| format!("{file} can't be read"))?;
    JobSpec::from_toml(&text).with_context(|| file.to_owned())
}

#[derive(Serialize)]
struct Submitted {
    job: u64,
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    token: String,
    /// As a Unix time. Null if the job is decided already.
    next_decision_ms: Option<i64>,
}

impl Show for Submitted {
    fn text(&self, _: &Paper) -> String {
        let next = self.next_decision_ms.map_or_else(String::new, |at| format!("; next decision {}", away(at)));
        let token =
            if self.token.is_empty() { String::new() } else { format!("; its token, shown this once: {}", self.token) };
        format!("job {} ({}) submitted{next}{token}", self.job, self.name)
    }
}

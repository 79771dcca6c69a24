//! `trainmaster submit`: job files to the daemon.

use std::{
    fs,
    io::{self, Read},
};

use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use trainmaster_core::JobSpec;
use trainmaster_proto::{job_from_spec, v1::SubmitRequest};

use super::{
    Failure, Output, Paper, Show,
    client::{Daemon, ServerArgs},
};

/// As many files pass before a bar is worth its line.
const FEW: usize = 8;

/// The command's arguments.
#[derive(Args, Debug)]
pub(crate) struct SubmitArgs {
    /// Job files in TOML; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
}

/// Runs the command: reads all files first, so that a mistake in one submits none.
///
/// # Errors
/// A file makes no sense, or the daemon refuses a job; those before it are submitted.
pub(crate) async fn run(args: &SubmitArgs, server: &ServerArgs, output: Output) -> Result<(), Failure> {
    let specs = args.files.iter().map(|file| read(file)).collect::<anyhow::Result<Vec<_>>>()?;
    let daemon = Daemon::connect(server).await?;
    let mut jobs = daemon.jobs();
    // On standard error, and only where that is a terminal.
    let bar = if specs.len() > FEW { ProgressBar::new(specs.len() as u64) } else { ProgressBar::hidden() };
    bar.set_style(
        ProgressStyle::with_template("submitting {bar:30} {pos}/{len}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    for spec in &specs {
        let request = SubmitRequest { job: Some(job_from_spec(spec)) };
        let reply = match jobs.submit(request).await {
            Ok(reply) => reply.into_inner(),
            Err(status) => {
                bar.abandon();
                return Err(daemon.failure(&status).about(&spec.name));
            }
        };
        bar.inc(1);
        let submitted = Submitted { job: reply.job, name: spec.name.clone(), token: reply.token };
        bar.suspend(|| output.stream(&submitted))?;
    }
    bar.finish_and_clear();
    Ok(())
}

fn read(file: &str) -> anyhow::Result<JobSpec> {
    let text = if file == "-" {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(file)
    };
    let text = text.with_context(|| format!("{file} can't be read"))?;
    JobSpec::from_toml(&text).with_context(|| file.to_owned())
}

#[derive(Serialize)]
struct Submitted {
    job: u64,
    name: String,
    token: String,
}

impl Show for Submitted {
    fn text(&self, _: &Paper) -> String {
        let token =
            if self.token.is_empty() { String::new() } else { format!("; its token, shown this once: {}", self.token) };
        format!("job {} ({}) submitted{token}", self.job, self.name)
    }
}

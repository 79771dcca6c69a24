//! `trainmaster wait`: waits until jobs have ended.

use std::{collections::BTreeMap, time::Duration};

use clap::Args;
use serde::Serialize;
use tokio::time::{Instant, sleep_until};
use trainmaster_core::amount::parse_span;
use trainmaster_proto::v1::{JobStatus, ListReply, ListRequest};
use trainmaster_terminal::{
    Failure, Output, Paper, Show,
    client::{Daemon, ServerArgs},
};

/// The command's arguments.
#[derive(Args, Debug)]
pub(crate) struct WaitArgs {
    /// Names or numbers of jobs
    #[arg(required = true, value_name = "JOB")]
    jobs: Vec<String>,
    /// Give up after this time, such as 30m
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,
}

fn duration(text: &str) -> Result<Duration, String> {
    let span = parse_span(text).map_err(|error| error.to_string())?;
    Ok(Duration::from_millis(span.0.unsigned_abs()))
}

/// Waits until each job has ended, and prints how. Of several jobs of a name, the newest counts.
///
/// # Errors
/// The daemon's, a job that doesn't exist, the end of the time, or a job that didn't complete.
pub(crate) async fn run(args: &WaitArgs, server: &ServerArgs, output: Output) -> Result<(), Failure> {
    let deadline = args.timeout.map(|timeout| Instant::now() + timeout);
    let over = async {
        match deadline {
            Some(deadline) => sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = follow(args, server, output) => ended,
        () = over => Err(Failure::refused("the time is over, and not all jobs have ended")),
    }
}

async fn follow(args: &WaitArgs, server: &ServerArgs, output: Output) -> Result<(), Failure> {
    let daemon = Daemon::connect(server).await?;
    let request = ListRequest { all: true, specs: false };
    let stream = daemon.jobs().watch(request).await.map_err(|status| daemon.failure(&status))?;
    let mut stream = stream.into_inner();
    // The number of each job, once it is known. A later job of the same name is another one.
    let mut numbers: BTreeMap<&str, u64> = BTreeMap::new();
    let mut ended: BTreeMap<&str, Ended> = BTreeMap::new();
    while let Some(list) = stream.message().await.map_err(|status| daemon.failure(&status))? {
        for name in &args.jobs {
            let known = numbers.get(name.as_str()).copied();
            match find(&list, name, known) {
                Some(job) => {
                    numbers.insert(name, job.job);
                    if job.ended_ms.is_some() && !ended.contains_key(name.as_str()) {
                        let now = Ended::of(job);
                        output.stream(&now)?;
                        ended.insert(name, now);
                    }
                }
                None if known.is_none() => return Err(Failure::refused(format!("there is no job {name:?}"))),
                // Only the last ended jobs are kept.
                None if !ended.contains_key(name.as_str()) => {
                    return Err(Failure::refused(format!("the daemon doesn't keep job {name:?} any more")));
                }
                None => {}
            }
        }
        if args.jobs.iter().all(|name| ended.contains_key(name.as_str())) {
            let bad: Vec<_> = ended.values().filter(|job| job.state != "completed").map(|job| &*job.name).collect();
            return if bad.is_empty() {
                Ok(())
            } else {
                Err(Failure::refused(format!("not completed: {}", bad.join(", "))))
            };
        }
    }
    Err(Failure::Unreachable { address: server.address(), cause: "it has ended".into() })
}

/// A job by its number, or the newest of a name.
fn find<'a>(list: &'a ListReply, name: &str, number: Option<u64>) -> Option<&'a JobStatus> {
    let number = number.or_else(|| name.parse().ok());
    let is_it = |job: &&JobStatus| number.map_or(job.name == name, |number| job.job == number);
    list.jobs.iter().filter(is_it).max_by_key(|job| job.job)
}

#[derive(Serialize)]
struct Ended {
    job: u64,
    name: String,
    state: String,
    reason: Option<String>,
}

impl Ended {
    fn of(job: &JobStatus) -> Self {
        let reason = Some(job.reason.clone()).filter(|reason| !reason.is_empty());
        Self { job: job.job, name: job.name.clone(), state: job.state.clone(), reason }
    }
}

impl Show for Ended {
    fn text(&self, _: &Paper) -> String {
        let reason = self.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
        format!("job {} ({}) {}{reason}", self.job, self.name, self.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_found_by_number_or_as_the_newest_of_its_name() {
        let job = |job: u64, name: &str| JobStatus { job, name: name.into(), ..JobStatus::default() };
        let list = ListReply { jobs: vec![job(3, "a"), job(1, "a"), job(2, "b")], ..ListReply::default() };
        let number = |name: &str, known: Option<u64>| find(&list, name, known).map(|job| job.job);
        assert_eq!((number("a", None), number("2", None), number("c", None)), (Some(3), Some(2), None));
        assert_eq!((number("a", Some(1)), number("a", Some(9))), (Some(1), None));
        assert!(duration("5").unwrap_err().contains("20s"));
    }
}

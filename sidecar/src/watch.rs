//! `trainmaster watch`: the jobs after each change, all of them or some with their progress.

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;
use tonic::Status;
use trainmaster_proto::v1::{ListReply, ListRequest};
use trainmaster_terminal::{
    Failure, Output, Paper, Show,
    client::{Daemon, ServerArgs},
    screen::Screen,
};

use super::{
    jobs::{JobList, JobText},
    run::{again, is_away},
    wait::{find, forgotten},
};

/// The command's arguments.
#[derive(Args, Debug)]
pub(crate) struct WatchArgs {
    /// Only these jobs, by name or number, each with its progress, until they have ended
    #[arg(value_name = "JOB", num_args = 0..=1000)]
    jobs: Vec<String>,
    /// Also jobs that have ended and are still kept
    #[arg(long, conflicts_with = "jobs")]
    all: bool,
    /// End when no job is left
    #[arg(long, conflicts_with = "jobs")]
    until_idle: bool,
}

/// Runs the command until Ctrl-C, or until the given jobs have ended, or with `--until-idle` until no job is left.
///
/// # Errors
/// The daemon's, or the loss of the connection.
pub(crate) async fn run(args: &WatchArgs, server: &ServerArgs, output: Output) -> Result<(), Failure> {
    tokio::select! {
        ended = follow(args, server, output) => ended,
        interrupted = tokio::signal::ctrl_c() => Ok(interrupted?),
    }
}

async fn follow(args: &WatchArgs, server: &ServerArgs, output: Output) -> Result<(), Failure> {
    let found = server.is_found();
    let mut daemon = Daemon::connect(server).await?;
    let mut view = match output {
        Output::Json => View::Json,
        Output::Text(Paper { width: Some(_), .. }) => View::Screen(Screen::default()),
        Output::Text(_) => View::Lines { seen: BTreeMap::new() },
    };
    let mut wanted = Wanted::new(&args.jobs);
    let (mut has_begun, mut is_told) = (false, false);
    loop {
        let request = ListRequest { all: args.all, jobs: wanted.open(), ..ListRequest::default() };
        let (mut stream, mut lost) = match daemon.jobs().watch(request).await {
            Ok(stream) => (Some(stream.into_inner()), Status::unavailable("the daemon ended the list")),
            Err(status) => (None, status),
        };
        while let Some(lists) = &mut stream {
            let mut reply = match lists.message().await {
                Ok(Some(reply)) => reply,
                Ok(None) => break,
                Err(status) => {
                    lost = status;
                    break;
                }
            };
            (has_begun, is_told) = (true, false);
            if !args.jobs.is_empty() {
                wanted.choose(&mut reply)?;
            }
            let mut list = JobList::from(reply);
            list.bars = !args.jobs.is_empty();
            view.update(&list, output)?;
            if (args.until_idle || !args.jobs.is_empty()) && list.reply.jobs.iter().all(|job| job.ended_ms.is_some()) {
                return Ok(());
            }
        }
        let failure = daemon.failure(&lost);
        if !has_begun || !is_away(&lost, &failure) {
            return Err(failure);
        }
        if !is_told {
            eprintln!("note: the daemon is away; the jobs go on, and this waits for the daemon");
            is_told = true;
        }
        daemon = again(server, found).await;
    }
}

/// The jobs that are asked for, and their numbers: a later job of the same name is another one.
struct Wanted<'a> {
    names: &'a [String],
    numbers: BTreeMap<&'a str, u64>,
    /// Those that have ended. The daemon may forget them.
    ended: BTreeSet<u64>,
}

impl<'a> Wanted<'a> {
    fn new(names: &'a [String]) -> Self {
        Self { names, numbers: BTreeMap::new(), ended: BTreeSet::new() }
    }

    /// What to ask for, by number if it is known.
    fn open(&self) -> Vec<String> {
        let asked = |name: &String| self.numbers.get(name.as_str()).map_or(name.clone(), u64::to_string);
        self.names.iter().map(asked).collect()
    }

    /// Keeps these jobs in the list.
    ///
    /// # Errors
    /// There is no such job, or not any more.
    fn choose(&mut self, list: &mut ListReply) -> Result<(), Failure> {
        for name in self.names {
            match self.numbers.get(name.as_str()) {
                Some(number) if self.ended.contains(number) || list.jobs.iter().any(|job| job.job == *number) => {}
                Some(_) => return Err(forgotten(name)),
                None => _ = self.numbers.insert(name, find(list, name)?.job),
            }
        }
        list.jobs.retain(|job| self.numbers.values().any(|number| *number == job.job));
        self.ended.extend(list.jobs.iter().filter(|job| job.ended_ms.is_some()).map(|job| job.job));
        Ok(())
    }
}

/// The form of updates.
enum View {
    /// One object per line.
    Json,
    /// A table that is drawn over its last version.
    Screen(Screen),
    /// A line for each changed job, and the last lines.
    Lines { seen: BTreeMap<u64, String> },
}

impl View {
    fn update(&mut self, list: &JobList, output: Output) -> Result<(), Failure> {
        match self {
            Self::Json => output.stream(list),
            Self::Screen(screen) => Ok(screen.draw(|paper| list.text(paper))?),
            Self::Lines { seen } => {
                let mut now = BTreeMap::new();
                for job in &list.reply.jobs {
                    // The time until the next decision passes without a change.
                    let line = job.line(None);
                    if seen.get(&job.job) != Some(&line) {
                        output.line(&job.line(list.reply.next_decision_ms))?;
                    }
                    now.insert(job.job, line);
                }
                let gone: Vec<_> =
                    seen.keys().filter(|id| !list.reply.jobs.iter().any(|job| job.job == **id)).collect();
                for id in gone {
                    output.line(&format!("job {id} has left the list"))?;
                }
                *seen = now;
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use trainmaster_proto::v1::JobStatus;

    use super::*;

    #[test]
    fn wanted_jobs_are_followed_by_number_and_may_be_forgotten_once_they_have_ended() {
        let job =
            |job: u64, name: &str, ended_ms| JobStatus { job, name: name.into(), ended_ms, ..JobStatus::default() };
        let list = |jobs: &[JobStatus]| ListReply { jobs: jobs.to_vec(), ..ListReply::default() };
        let names = ["a".to_owned(), "7".into()];
        let mut wanted = Wanted::new(&names);
        let mut seen = |jobs: &[JobStatus]| {
            let mut list = list(jobs);
            let chosen = wanted.choose(&mut list).map_err(|failure| failure.to_string());
            chosen.map(|()| list.jobs.iter().map(|job| job.job).collect::<Vec<_>>())
        };
        assert_eq!(seen(&[job(5, "a", None)]), Err("there is no job \"7\"".into()));
        assert_eq!(seen(&[job(5, "a", None), job(6, "c", None), job(7, "b", None)]), Ok(vec![5, 7]));
        // A later job of the name is another one.
        assert_eq!(seen(&[job(5, "a", Some(1)), job(7, "b", None), job(9, "a", None)]), Ok(vec![5, 7]));
        assert_eq!(seen(&[job(7, "b", None)]), Ok(vec![7]), "it had ended");
        assert_eq!(seen(&[job(9, "a", None)]), Err("the daemon doesn't keep job \"7\" any more".into()));
    }
}

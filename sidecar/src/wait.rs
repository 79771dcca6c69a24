//! `trainmaster wait`: waits until jobs have ended.

use std::{collections::BTreeMap, future::pending, time::Duration};

use clap::Args;
use serde::Serialize;
use tokio::time::sleep;
use trainmaster_core::text::shown;
use trainmaster_proto::{
    CRASHING,
    v1::{JobStatus, ListReply, ListRequest},
};
use trainmaster_terminal::{
    Failure, Output, Paper, Show,
    client::{Daemon, ServerArgs, duration},
};

use super::run::{again, is_away};

/// Pauses between questions. They grow, so that many who wait are no load.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LAST_PAUSE: Duration = Duration::from_secs(2);
/// States of jobs that may not go on without help.
const STUCK: [&str; 4] = ["paused", CRASHING, "rejected", "released"];
/// Maximum characters of a text of the daemon.
const SHOWN: usize = 500;

/// The command's arguments.
#[derive(Args, Debug)]
pub(crate) struct WaitArgs {
    /// Names or numbers of jobs, also of ended ones that are still kept
    #[arg(required = true, value_name = "JOB", num_args = 1..=1000)]
    jobs: Vec<String>,
    /// Give up after this time, such as 30m
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,
}

/// Waits until each job has ended, and prints how. A daemon that goes away meanwhile is waited for.
///
/// # Errors
/// The daemon's refusal, a job that doesn't exist, the end of the time, or a job that didn't complete.
pub(crate) async fn run(args: &WaitArgs, server: &ServerArgs, output: Output) -> Result<(), Failure> {
    let found = server.is_found();
    let daemon = Daemon::connect(server).await?;
    let mut waiting = Waiting::new(&args.jobs);
    let over = async {
        match args.timeout {
            Some(timeout) => sleep(timeout).await,
            None => pending().await,
        }
    };
    tokio::select! {
        biased;
        ended = follow(&mut waiting, daemon, server, found, output) => return ended,
        () = over => {}
    }
    Err(Failure::refused(format!("timed out; not ended: {}", waiting.left().join(", "))))
}

async fn follow(
    waiting: &mut Waiting<'_>,
    mut daemon: Daemon,
    server: &ServerArgs,
    found: bool,
    output: Output,
) -> Result<(), Failure> {
    let mut pause = FIRST_PAUSE;
    loop {
        let request = ListRequest { jobs: waiting.numbers(), ..ListRequest::default() };
        match daemon.jobs().list(request).await {
            Ok(list) => {
                for news in waiting.update(list.get_ref())? {
                    match news {
                        News::Ended(ended) => output.stream(&ended)?,
                        News::Note(note) => eprintln!("note: {note}"),
                    }
                }
                if waiting.is_over() {
                    return waiting.verdict();
                }
                sleep(pause).await;
                pause = (pause * 2).min(LAST_PAUSE);
            }
            Err(status) => {
                let failure = daemon.failure(&status);
                if !is_away(&status, &failure) || !waiting.has_begun() {
                    return Err(failure);
                }
                eprintln!("note: the daemon is away; the jobs go on, and this waits for the daemon");
                daemon = again(server, found).await;
            }
        }
    }
}

/// The job with this number, or the newest with this name. O(jobs).
///
/// # Errors
/// There is none.
pub(crate) fn find<'a>(list: &'a ListReply, name: &str) -> Result<&'a JobStatus, Failure> {
    let found = match name.parse::<u64>() {
        Ok(number) => list.jobs.iter().find(|job| job.job == number),
        Err(_) => list.jobs.iter().filter(|job| job.name == name).max_by_key(|job| job.job),
    };
    found.ok_or_else(|| Failure::refused(format!("there is no job {name:?}")))
}

/// A job that the daemon knew.
pub(crate) fn forgotten(name: &str) -> Failure {
    Failure::refused(format!("the daemon doesn't keep job {name:?} any more"))
}

enum News {
    Ended(Ended),
    Note(String),
}

/// The jobs to wait for, by name or number as given.
struct Waiting<'a> {
    /// Their numbers, once they are known: a later job of the same name is another one.
    numbers: BTreeMap<&'a str, Option<u64>>,
    /// Active ones: state and reason as last shown.
    active: BTreeMap<u64, (String, String)>,
    ended: BTreeMap<u64, Ended>,
}

impl<'a> Waiting<'a> {
    fn new(jobs: &'a [String]) -> Self {
        let numbers = jobs.iter().map(|name| (name.as_str(), None)).collect();
        Self { numbers, active: BTreeMap::new(), ended: BTreeMap::new() }
    }

    fn has_begun(&self) -> bool {
        self.numbers.values().all(Option::is_some)
    }

    /// What to ask for: jobs that haven't ended, by number if it is known.
    fn numbers(&self) -> Vec<String> {
        let open = self.numbers.iter().filter(|(_, number)| number.is_none_or(|it| !self.ended.contains_key(&it)));
        open.map(|(name, number)| number.map_or((*name).to_owned(), |number| number.to_string())).collect()
    }

    fn update(&mut self, list: &ListReply) -> Result<Vec<News>, Failure> {
        let mut news = Vec::new();
        for (name, number) in &mut self.numbers {
            let job = match number {
                None => find(list, name)?,
                Some(number) => match list.jobs.iter().find(|job| job.job == *number) {
                    Some(job) => job,
                    None if self.ended.contains_key(number) => continue,
                    None => return Err(forgotten(name)),
                },
            };
            *number = Some(job.job);
            if job.ended_ms.is_some() {
                self.active.remove(&job.job);
                self.ended.entry(job.job).or_insert_with(|| {
                    news.push(News::Ended(Ended::of(job)));
                    Ended::of(job)
                });
            } else {
                // The reason of a crash changes with each crash.
                let reason = if job.state == CRASHING { String::new() } else { job.reason.clone() };
                let now = (job.state.clone(), reason);
                let is_stuck = STUCK.contains(&job.state.as_str());
                if self.active.insert(job.job, now.clone()) != Some(now.clone()) && is_stuck {
                    let (state, reason) = (shown(&job.state, SHOWN), shown(&job.reason, SHOWN));
                    news.push(News::Note(format!(
                        "job {} ({}) is {state}: {reason}",
                        job.job,
                        shown(&job.name, SHOWN)
                    )));
                }
            }
        }
        Ok(news)
    }

    fn is_over(&self) -> bool {
        self.has_begun() && self.active.is_empty()
    }

    fn left(&self) -> Vec<&str> {
        let has_ended = |number: &Option<u64>| number.is_some_and(|number| self.ended.contains_key(&number));
        self.numbers.iter().filter(|(_, number)| !has_ended(number)).map(|(name, _)| *name).collect()
    }

    fn verdict(&self) -> Result<(), Failure> {
        let bad: Vec<_> = self.ended.values().filter(|job| job.state != "completed").map(|job| &*job.name).collect();
        if bad.is_empty() { Ok(()) } else { Err(Failure::refused(format!("not completed: {}", bad.join(", ")))) }
    }
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
        let reason = self.reason.as_ref().map_or_else(String::new, |reason| format!(": {}", shown(reason, SHOWN)));
        format!("job {} ({}) {}{reason}", self.job, shown(&self.name, SHOWN), shown(&self.state, SHOWN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(job: u64, name: &str, state: &str) -> JobStatus {
        let ended_ms = ["completed", "failed"].contains(&state).then_some(1);
        JobStatus { job, name: name.into(), state: state.into(), ended_ms, ..JobStatus::default() }
    }

    fn list(jobs: &[JobStatus]) -> ListReply {
        ListReply { jobs: jobs.to_vec(), ..ListReply::default() }
    }

    fn words(news: Vec<News>) -> Vec<String> {
        let word = |news| match news {
            News::Ended(ended) => ended.text(&Paper::default()),
            News::Note(note) => note,
        };
        news.into_iter().map(word).collect()
    }

    #[test]
    fn each_job_is_told_once_and_a_later_one_of_its_name_is_another() {
        let names = ["a".to_owned(), "7".into(), "b".into()];
        let mut waiting = Waiting::new(&names);
        assert!(!waiting.has_begun());
        let running = list(&[job(7, "a", "running"), job(9, "b", "waiting")]);
        assert!(words(waiting.update(&running).unwrap()).is_empty());
        assert_eq!((waiting.has_begun(), waiting.is_over()), (true, false));
        assert_eq!(waiting.numbers(), ["7", "7", "9"], "by number from now on");
        // It is cancelled, and submitted again under its name.
        let now = list(&[job(7, "a", "failed"), job(9, "b", "waiting"), job(12, "a", "running")]);
        assert_eq!(words(waiting.update(&now).unwrap()), ["job 7 (a) failed"]);
        assert_eq!((waiting.numbers(), waiting.left()), (vec!["9".to_owned()], vec!["b"]));
        let last = list(&[job(9, "b", "completed")]);
        assert_eq!(words(waiting.update(&last).unwrap()), ["job 9 (b) completed"]);
        assert!(waiting.is_over());
        assert_eq!(waiting.verdict().unwrap_err().to_string(), "not completed: a");
    }

    #[test]
    fn jobs_that_are_stuck_unknown_or_forgotten_are_told() {
        let names = ["a".to_owned()];
        let mut waiting = Waiting::new(&names);
        assert!(waiting.update(&list(&[])).err().unwrap().to_string().contains("there is no job \"a\""));
        let rejected = JobStatus { reason: "needs 9 GPUs\u{1b}[2J".into(), ..job(1, "a", "rejected") };
        let told = words(waiting.update(&list(std::slice::from_ref(&rejected))).unwrap());
        assert_eq!(told, ["job 1 (a) is rejected: needs 9 GPUs\\u{1b}[2J"]);
        assert!(words(waiting.update(&list(&[rejected])).unwrap()).is_empty(), "once");
        let crashed = |text: &str| JobStatus { reason: text.into(), ..job(1, "a", "crashing") };
        let told = words(waiting.update(&list(&[crashed("failure 2 of 8")])).unwrap());
        assert_eq!(told, ["job 1 (a) is crashing: failure 2 of 8"]);
        assert!(words(waiting.update(&list(&[crashed("failure 3 of 8")])).unwrap()).is_empty(), "once");
        let held = JobStatus { reason: "a user held it".into(), ..job(1, "a", "paused") };
        assert_eq!(words(waiting.update(&list(&[held])).unwrap()), ["job 1 (a) is paused: a user held it"]);
        assert!(waiting.update(&list(&[])).err().unwrap().to_string().contains("any more"));
    }
}

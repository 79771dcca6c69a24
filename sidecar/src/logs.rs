//! `trainmaster logs`: what a job's programs print, as far as its manager keeps it in the daemon.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use clap::Args;
use tokio::time::{Duration, Instant, sleep_until};
use tonic::{Status, Streaming};
use trainmaster_proto::v1::{LogsReply, LogsRequest};
use trainmaster_terminal::{
    Failure, Output,
    client::{Daemon, ServerArgs},
};

use super::run::{again, is_away};

/// Maximum bytes of a line that are kept until its end comes.
const LONGEST_LINE: usize = 64 << 10;
/// Maximum number of logs whose positions are kept: the daemon reads no more.
const MOST_LOGS: usize = 64;
/// Pause before the daemon is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// The command's arguments.
#[derive(Args, Debug)]
pub(crate) struct LogsArgs {
    /// Name or number of a job
    #[arg(value_name = "JOB")]
    job: String,
    /// Go on until the job has ended
    #[arg(long, short)]
    follow: bool,
    /// Begin with this many last lines of each process
    #[arg(long, short = 'n', value_name = "LINES")]
    tail: Option<u32>,
}

/// Runs the command.
///
/// # Errors
/// The daemon's. The job isn't known, or its logs aren't kept by the daemon.
pub(crate) async fn run(args: &LogsArgs, server: &ServerArgs, output: Output) -> Result<(), Failure> {
    if matches!(output, Output::Json) {
        return Err(Failure::Usage("logs are what programs print, not JSON; leave --json out".into()));
    }
    let mut daemon = Daemon::connect(server).await?;
    let found = server.is_found();
    let mut logs = Logs::new(&args.job, args.follow, args.tail);
    let mut is_told = false;
    loop {
        let lost = match logs.next(&daemon).await {
            Ok(Some(part)) => {
                is_told = false;
                logs.print(part, &mut io::stdout().lock())?;
                continue;
            }
            Ok(None) => return logs.finish(&mut io::stdout().lock()).map_err(Into::into),
            Err(status) => status,
        };
        let failure = daemon.failure(&lost);
        // The job goes on without its daemon.
        if !logs.has_begun() || !is_away(&lost, &failure) {
            return Err(failure);
        }
        if !is_told {
            eprintln!("trainmaster: the daemon is away; this waits for it");
            is_told = true;
        }
        daemon = again(server, found).await;
    }
}

/// The logs of a job, as far as they were printed.
pub(crate) struct Logs {
    /// Its name or number; once the daemon has told it, its number.
    job: String,
    follow: bool,
    tail: Option<u32>,
    course: Course,
    has_begun: bool,
    /// Printed bytes of the last logs.
    ends: BTreeMap<Rank, (String, u64)>,
    /// Beginnings of lines whose ends haven't come, by log.
    lines: BTreeMap<String, Vec<u8>>,
}

/// The order of logs: by incarnation, role and index, as of the daemon. Other names come first.
type Rank = (u64, bool, u64, String);

enum Course {
    /// Asks at this time.
    Asks(Instant),
    Reads(Box<Streaming<LogsReply>>),
    Over,
}

impl Logs {
    /// Those of a job, by its name or number.
    pub(crate) fn new(job: &str, follow: bool, tail: Option<u32>) -> Self {
        let (ends, lines) = Default::default();
        Self { job: job.into(), follow, tail, course: Course::Asks(Instant::now()), has_begun: false, ends, lines }
    }

    /// The next part, or `None` at the end; then it waits for ever. May be dropped before it is done. After an error,
    /// the next call asks the daemon for what is missing, after a pause.
    ///
    /// # Errors
    /// The job isn't known, its logs aren't kept by the daemon, or the daemon is away.
    pub(crate) async fn next(&mut self, daemon: &Daemon) -> Result<Option<LogsReply>, Status> {
        loop {
            let part = match &mut self.course {
                Course::Over => std::future::pending().await,
                Course::Reads(stream) => stream.message().await,
                Course::Asks(at) => {
                    sleep_until(*at).await;
                    let after = self.ends.values().cloned().collect();
                    let request = LogsRequest { job: self.job.clone(), follow: self.follow, tail: self.tail, after };
                    match daemon.jobs().logs(request).await {
                        Ok(stream) => {
                            self.course = Course::Reads(Box::new(stream.into_inner()));
                            self.has_begun = true;
                            continue;
                        }
                        Err(status) => Err(status),
                    }
                }
            };
            match &part {
                Ok(Some(_)) => {}
                Ok(None) => self.course = Course::Over,
                Err(_) => self.course = Course::Asks(Instant::now() + PAUSE),
            }
            return part;
        }
    }

    /// Whether the daemon has begun to answer.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Whether nothing more comes.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.course, Course::Over)
    }

    /// Asks for no more.
    pub(crate) fn give_up(&mut self) {
        self.course = Course::Over;
    }

    /// Prints complete lines, each with its process if there are several, and a very long line in parts.
    pub(crate) fn print(&mut self, part: LogsReply, out: &mut impl Write) -> io::Result<()> {
        let LogsReply { log, data, end, logs, job } = part;
        // Another job may get the name.
        self.job = job.to_string();
        // The daemon tells at first where each log begins.
        self.tail = None;
        self.ends.insert(rank(&log), (log.clone(), end));
        let line = self.lines.entry(log.clone()).or_default();
        line.extend(data);
        let complete = line.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1);
        let complete = complete.or_else(|| (line.len() >= LONGEST_LINE).then_some(line.len())).unwrap_or(0);
        write_lines(&log, &line[..complete], logs > 1, out)?;
        line.drain(..complete);
        while self.ends.len() > MOST_LOGS {
            // The daemon reads it no more.
            let (_, (first, _)) = self.ends.pop_first().expect("there are more");
            if let Some(line) = self.lines.remove(&first).filter(|line| !line.is_empty()) {
                write_lines(&first, &[&line[..], b"\n"].concat(), logs > 1, out)?;
            }
        }
        out.flush()
    }

    /// Prints lines without an end.
    pub(crate) fn finish(&mut self, out: &mut impl Write) -> io::Result<()> {
        for (_, line) in std::mem::take(&mut self.lines).into_iter().filter(|(_, line)| !line.is_empty()) {
            out.write_all(&line)?;
            out.write_all(b"\n")?;
        }
        out.flush()
    }
}

fn rank(log: &str) -> Rank {
    let mut parts = log.split('-');
    let mut next = || parts.next().unwrap_or_default();
    let (incarnation, role, index) = (next(), next(), next());
    (incarnation.parse().unwrap_or(0), role == "worker", index.parse().unwrap_or(0), log.to_owned())
}

fn write_lines(log: &str, text: &[u8], several: bool, out: &mut impl Write) -> io::Result<()> {
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        if several {
            write!(out, "[{log}] ")?;
        }
        out.write_all(line)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(logs: &mut Logs, log: &str, data: &[u8], count: u32) -> String {
        let mut out = Vec::new();
        let part = LogsReply { log: log.into(), data: data.into(), end: data.len() as u64, logs: count, job: 1 };
        logs.print(part, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_are_printed_whole() {
        let mut logs = Logs::new("net", false, None);
        assert_eq!(printed(&mut logs, "2-worker-0", b"a\nb", 1), "a\n");
        assert_eq!(printed(&mut logs, "10-server-0", b"served\nmore", 3), "[10-server-0] served\n");
        assert_eq!(printed(&mut logs, "2-worker-0", b"c\n", 3), "[2-worker-0] bc\n");
        let mut rest = Vec::new();
        logs.finish(&mut rest).unwrap();
        assert_eq!(rest, b"more\n");
    }

    #[test]
    fn a_line_without_end_is_printed_in_parts() {
        let mut logs = Logs::new("net", false, None);
        let part = vec![b'x'; LONGEST_LINE - 1];
        assert_eq!(printed(&mut logs, "1-worker-0", &part, 1), "");
        assert_eq!(printed(&mut logs, "1-worker-0", &part, 1).len(), 2 * part.len());
        assert!(logs.lines["1-worker-0"].is_empty());
    }

    #[test]
    fn positions_of_the_last_logs_are_kept() {
        let mut logs = Logs::new("net", true, Some(5));
        for at in (0..2 * MOST_LOGS).rev() {
            printed(&mut logs, &format!("2-worker-{at}"), b"begun", 2);
        }
        printed(&mut logs, "1-worker-5", b"earlier", 2);
        assert_eq!((logs.ends.len(), logs.lines.len()), (MOST_LOGS, MOST_LOGS));
        let first = logs.ends.first_key_value().unwrap();
        assert_eq!(first.1.0, format!("2-worker-{MOST_LOGS}"));
        assert_eq!((&*logs.job, logs.tail), ("1", None), "from now on by its number");
    }
}

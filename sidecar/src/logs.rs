//! `trainmaster logs`: what a job's programs print. The adapter `local` keeps it in the daemon's state folder.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use rustix::fs::{Mode, OFlags, open};
use trainmaster_proto::v1::{JobStatus, ListRequest};
use trainmaster_terminal::{
    Failure, Output,
    client::{Daemon, ServerArgs},
    found::Note,
};

/// How often a log that is followed is read.
pub(crate) const PACE: Duration = Duration::from_millis(200);
/// Maximum bytes that are read of a log at once, and of a line that is kept until its end comes.
const CHUNK: u64 = 64 << 10;
/// Maximum number of such parts of a log that are printed in a row, so that a signal is handled in between.
const MOST_CHUNKS: usize = 64;
/// Maximum number of a job's logs that are shown.
const MOST_LOGS: usize = 64;

/// The command's arguments.
#[derive(Args, Debug)]
pub(crate) struct LogsArgs {
    /// Name or number of a job
    #[arg(value_name = "JOB")]
    job: String,
    /// Go on until the job has ended
    #[arg(long, short)]
    follow: bool,
}

/// Runs the command.
///
/// # Errors
/// The daemon's. The job isn't known, or its logs aren't on this machine.
pub(crate) async fn run(args: &LogsArgs, server: &ServerArgs, output: Output) -> Result<(), Failure> {
    if matches!(output, Output::Json) {
        return Err(Failure::Usage("logs are what programs print, not JSON; leave --json out".into()));
    }
    let daemon = Daemon::connect(server).await?;
    let find = async || -> Result<JobStatus, Failure> {
        let request = ListRequest { all: true, specs: false, ..ListRequest::default() };
        let list = daemon.jobs().list(request).await.map_err(|status| daemon.failure(&status))?.into_inner();
        let named = list.jobs.into_iter().filter(|job| job.name == args.job || job.job.to_string() == args.job);
        // A name may have been used before.
        let job = named.max_by_key(|job| job.job);
        job.ok_or_else(|| {
            Failure::refused(format!("there is no job {:?}; `trainmaster jobs --all` lists them", args.job))
        })
    };
    let job = find().await?;
    let mut logs = Logs::of(server, job.job, &job.name).map_err(Failure::refused)?;
    loop {
        let ended = find().await?.ended_ms.is_some();
        logs.print(&mut io::stdout().lock())?;
        if ended || !args.follow {
            return logs.finish(&mut io::stdout().lock()).map_err(Into::into);
        }
        tokio::time::sleep(PACE).await;
    }
}

/// The logs of a job, as far as they were printed.
#[derive(Debug)]
pub(crate) struct Logs {
    folder: PathBuf,
    logs: BTreeMap<String, Log>,
}

#[derive(Debug, Default)]
struct Log {
    read: u64,
    /// The beginning of a line whose end hasn't come.
    line: Vec<u8>,
}

impl Logs {
    /// Those of a job of a daemon of this user on this machine.
    ///
    /// # Errors
    /// Why they can't be found.
    pub(crate) fn of(server: &ServerArgs, number: u64, name: &str) -> Result<Self, String> {
        let away = |why: &str| format!("the logs of {name} aren't here: {why}");
        let note = Note::find(&server.address());
        let note = note.ok_or_else(|| away("no daemon of this user runs on this machine at this address"))?;
        let state = note.token_file.parent().unwrap_or(Path::new("/")).join("adapters/local/logs");
        if !state.is_dir() {
            return Err(away("its manager keeps them, and not the adapter `local`"));
        }
        Ok(Self { folder: state.join(format!("{number}-{name}")), logs: BTreeMap::new() })
    }

    /// Prints the lines that were added since the last time, each with its process if there are several. The logs of
    /// the job's last incarnation come last. O(new bytes, and logs).
    pub(crate) fn print(&mut self, out: &mut impl io::Write) -> io::Result<()> {
        let mut names: Vec<_> = fs::read_dir(&self.folder)
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter_map(|name| Some((rank(&name)?, name)))
            .collect();
        // The last ones are those of the job's last incarnation.
        names.sort();
        names.drain(..names.len().saturating_sub(MOST_LOGS));
        let several = names.len() > 1;
        for (_, name) in names {
            let log = self.logs.entry(name.clone()).or_default();
            let who = if several { format!("[{}] ", name.trim_end_matches(".log")) } else { String::new() };
            for _ in 0..MOST_CHUNKS {
                if !log.read(&self.folder.join(&name))? {
                    break;
                }
                log.print(&who, out)?;
            }
        }
        out.flush()
    }

    /// Prints lines without an end.
    pub(crate) fn finish(&mut self, out: &mut impl io::Write) -> io::Result<()> {
        for log in self.logs.values_mut().filter(|log| !log.line.is_empty()) {
            log.line.push(b'\n');
            log.print("", out)?;
        }
        out.flush()
    }
}

impl Log {
    /// Reads more of the file. Returns whether there was more.
    fn read(&mut self, path: &Path) -> io::Result<bool> {
        // The file may be gone by now, or a program may have put something else in its place.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(file) = open(path, flags, Mode::empty()) else { return Ok(false) };
        let mut file = File::from(file);
        if !file.metadata()?.is_file() {
            return Ok(false);
        }
        file.seek(SeekFrom::Start(self.read))?;
        let count = file.take(CHUNK).read_to_end(&mut self.line)?;
        self.read += count as u64;
        Ok(count > 0)
    }

    /// Prints complete lines, and a very long one in parts.
    fn print(&mut self, who: &str, out: &mut impl io::Write) -> io::Result<()> {
        let end = self.line.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1);
        let end = end.or_else(|| (self.line.len() as u64 >= CHUNK).then_some(self.line.len()));
        for line in self.line[..end.unwrap_or(0)].split_inclusive(|byte| *byte == b'\n') {
            out.write_all(who.as_bytes())?;
            out.write_all(line)?;
        }
        self.line.drain(..end.unwrap_or(0));
        Ok(())
    }
}

/// The order of logs: by incarnation, role and index. `None` for other files.
fn rank(name: &str) -> Option<(u32, bool, u32)> {
    let mut parts = name.strip_suffix(".log")?.split('-');
    let (incarnation, role, index) = (parts.next()?, parts.next()?, parts.next()?);
    Some((incarnation.parse().ok()?, role == "worker", index.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(logs: &mut Logs) -> String {
        let mut out = Vec::new();
        logs.print(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_are_printed_once_and_whole() {
        let folder = tempfile::tempdir().unwrap();
        let mut logs = Logs { folder: folder.path().join("1-net"), logs: BTreeMap::new() };
        assert_eq!(printed(&mut logs), "", "nothing has started");
        fs::create_dir(&logs.folder).unwrap();
        fs::write(logs.folder.join("notes.txt"), "not a log\n").unwrap();
        fs::write(logs.folder.join("2-worker-0.log"), "a\nb").unwrap();
        assert_eq!(printed(&mut logs), "a\n");
        fs::write(logs.folder.join("2-worker-0.log"), "a\nbc\n").unwrap();
        fs::write(logs.folder.join("10-worker-1.log"), "late\n").unwrap();
        fs::write(logs.folder.join("10-server-0.log"), "served\nmore").unwrap();
        assert_eq!(printed(&mut logs), "[2-worker-0] bc\n[10-server-0] served\n[10-worker-1] late\n");
        assert_eq!(printed(&mut logs), "");
        let mut rest = Vec::new();
        logs.finish(&mut rest).unwrap();
        assert_eq!(rest, b"more\n");
    }

    #[test]
    fn only_files_of_the_folder_are_read_and_the_last_ones() {
        let folder = tempfile::tempdir().unwrap();
        let mut logs = Logs { folder: folder.path().into(), logs: BTreeMap::new() };
        fs::write(folder.path().join("secret"), "secret\n").unwrap();
        std::os::unix::fs::symlink(folder.path().join("secret"), folder.path().join("1-worker-0.log")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            folder.path().join("1-worker-1.log"),
            rustix::fs::FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .unwrap();
        assert_eq!(printed(&mut logs), "");
        for at in 0..100 {
            fs::write(folder.path().join(format!("2-worker-{at}.log")), format!("{at}\n")).unwrap();
        }
        let shown = printed(&mut logs);
        assert!(shown.lines().count() == MOST_LOGS && shown.contains("[2-worker-99] 99"), "{shown}");
    }

    #[test]
    fn a_line_without_end_is_printed_in_parts() {
        let folder = tempfile::tempdir().unwrap();
        let mut logs = Logs { folder: folder.path().into(), logs: BTreeMap::new() };
        fs::write(folder.path().join("1-worker-0.log"), vec![b'x'; 3 * CHUNK as usize + 5]).unwrap();
        assert_eq!(printed(&mut logs).len() as u64, 3 * CHUNK);
        assert_eq!(logs.logs["1-worker-0.log"].line.len(), 5);
    }
}

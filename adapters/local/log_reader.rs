//! Reading a job's logs for its users, while its programs write them.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::{self, File},
    io::{self, ErrorKind, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
};

use rustix::io::Errno;
use trainmaster_core::Role;
use trainmaster_manager::{LONGEST_PART, LogPart, Logs, LogsOf, MOST_LOGS, role};

use super::{logs, state};

/// Maximum bytes at the end of a log that are searched for its last lines.
const LONGEST_TAIL: u64 = 1 << 20;

/// The reader of one job's logs.
#[derive(Debug)]
pub(crate) struct LogReader {
    state_dir: PathBuf,
    job: u64,
    name: String,
    /// For the logs of the first round.
    tail: Option<u32>,
    /// Read bytes, by log.
    read: BTreeMap<String, u64>,
    /// The logs with new bytes, and their lengths when the round began.
    round: VecDeque<(String, u64)>,
    /// Parts that tell where logs begin.
    begins: VecDeque<LogPart>,
    is_begun: bool,
    count: usize,
}

impl LogReader {
    /// Reads in the state folder of an adapter.
    pub(crate) fn new(state_dir: &Path, of: LogsOf) -> Self {
        Self {
            state_dir: state_dir.to_owned(),
            job: of.job,
            name: of.name,
            tail: of.tail,
            read: of.after,
            round: VecDeque::new(),
            begins: VecDeque::new(),
            is_begun: false,
            count: 0,
        }
    }

    fn folder(&self) -> PathBuf {
        // Symbolic links on the way to the folder are the administrator's. Those in it are a job's.
        let root = self.state_dir.canonicalize().unwrap_or_else(|_| self.state_dir.clone());
        state::log_folder(&root, self.job, &self.name)
    }

    /// Lists the logs that have grown. O(files in the folder), and O(log size up to a bound) for a tail.
    fn begin(&mut self) -> io::Result<()> {
        let folder = self.folder();
        let files = match fs::read_dir(&folder) {
            Err(error) if is_absent(&error) => None,
            files => Some(files?),
        };
        let mut names = Vec::new();
        for file in files.into_iter().flatten() {
            let name = file?.file_name().into_string().ok().and_then(|file| file.strip_suffix(".log").map(Into::into));
            names.extend(name.and_then(|name: String| Some((rank(&name)?, name))));
        }
        names.sort();
        // The last ones are those of the job's last incarnation.
        names.drain(..names.len().saturating_sub(MOST_LOGS));
        let (mut read, mut round, mut begins) = (BTreeMap::new(), VecDeque::new(), VecDeque::new());
        for (_, log) in &names {
            let before = self.read.get(log).copied();
            // The program may have put something else in its place.
            let Some(mut file) = open(&folder, log)? else {
                read.extend(before.map(|before| (log.clone(), before)));
                continue;
            };
            let length = file.metadata()?.len();
            let start = match (before, self.tail) {
                // A shorter file is another one.
                (Some(before), _) => Some(before).filter(|before| *before <= length).unwrap_or(0),
                (None, Some(lines)) => {
                    let start = tail_start(&mut file, length, lines)?;
                    begins.push_back(LogPart { log: log.clone(), data: Vec::new(), end: start, logs: names.len() });
                    start
                }
                (None, None) => 0,
            };
            if length > start {
                round.push_back((log.clone(), length));
            }
            read.insert(log.clone(), start);
        }
        (self.read, self.round, self.begins, self.count, self.tail) = (read, round, begins, names.len(), None);
        Ok(())
    }
}

impl Logs for LogReader {
    fn next(&mut self) -> io::Result<Option<LogPart>> {
        if !self.is_begun {
            self.begin()?;
            self.is_begun = true;
        }
        if let Some(begin) = self.begins.pop_front() {
            return Ok(Some(begin));
        }
        while let Some((log, length)) = self.round.front().cloned() {
            let folder = self.folder();
            let read = self.read.entry(log.clone()).or_default();
            let most = length.saturating_sub(*read).min(LONGEST_PART as u64);
            let mut data = Vec::new();
            if let Some(mut file) = open(&folder, &log)? {
                file.seek(SeekFrom::Start(*read))?;
                file.take(most).read_to_end(&mut data)?;
            }
            *read += data.len() as u64;
            if *read >= length || data.is_empty() {
                self.round.pop_front();
            }
            if !data.is_empty() {
                return Ok(Some(LogPart { log, data, end: *read, logs: self.count }));
            }
        }
        self.is_begun = false;
        Ok(None)
    }

    fn is_written(&self) -> bool {
        let start = format!("{}-", self.job);
        let mut records = fs::read_dir(self.state_dir.join("slots")).into_iter().flatten().flatten();
        records.any(|record| record.file_name().to_str().is_some_and(|name| name.starts_with(&start)))
    }
}

/// Opens a log. `None` if there is none, or something else in its place.
fn open(folder: &Path, log: &str) -> io::Result<Option<File>> {
    match logs::open_theirs(&folder.join(format!("{log}.log"))) {
        Err(error) if is_absent(&error) => Ok(None),
        file => file.map(Some),
    }
}

/// Whether there is no such file, or a symbolic link, or something that isn't a file.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::Other)
        || error.raw_os_error() == Some(Errno::LOOP.raw_os_error())
        || error.raw_os_error() == Some(Errno::NXIO.raw_os_error())
}

/// The start of the last lines of a log, a last one without an end included.
fn tail_start(file: &mut File, length: u64, lines: u32) -> io::Result<u64> {
    let first = length.saturating_sub(LONGEST_TAIL);
    file.seek(SeekFrom::Start(first))?;
    let mut end = Vec::new();
    file.take(length - first).read_to_end(&mut end)?;
    // The line's own end isn't the start of another one.
    let searched = &end[..end.len().saturating_sub(1)];
    let starts = searched.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    let start = match lines {
        0 => end.len(),
        lines => starts.take(lines as usize).nth(lines as usize - 1).unwrap_or(0),
    };
    Ok(first + start as u64)
}

/// The order of logs: by incarnation, role and index. `None` for other names.
fn rank(name: &str) -> Option<(u32, bool, u32)> {
    let mut parts = name.split('-');
    let (incarnation, role, index) = (parts.next()?, role::of(parts.next()?)?, parts.next()?);
    let (incarnation, index): (u32, u32) = (incarnation.parse().ok()?, index.parse().ok()?);
    let is_ours = name == format!("{incarnation}-{}-{index}", role::name(role));
    is_ours.then_some((incarnation, role == Role::Worker, index))
}

#[cfg(test)]
mod tests {
    use rustix::fs::Mode;

    use super::*;

    struct Site {
        root: tempfile::TempDir,
        folder: PathBuf,
    }

    impl Site {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let folder = state::log_folder(root.path(), 1, "net");
            Self { root, folder }
        }

        fn reader(&self, tail: Option<u32>) -> LogReader {
            LogReader::new(self.root.path(), LogsOf { job: 1, name: "net".into(), tail, ..LogsOf::default() })
        }

        fn write(&self, name: &str, text: &str) {
            fs::create_dir_all(&self.folder).unwrap();
            fs::write(self.folder.join(name), text).unwrap();
        }
    }

    /// The parts of a round as `log: text`.
    fn round(reader: &mut LogReader) -> Vec<String> {
        let parts = std::iter::from_fn(|| reader.next().unwrap());
        parts.map(|part| format!("{}: {}", part.log, String::from_utf8_lossy(&part.data))).collect()
    }

    #[test]
    fn what_is_added_is_read_once_and_older_logs_come_first() {
        let site = Site::new();
        let mut reader = site.reader(None);
        assert_eq!(round(&mut reader), [""; 0], "nothing has started");
        for other in ["notes.txt", "2-worker-0-x.log", "02-worker-0.log", "2-worker-0.log.log", "2-driver-0.log"] {
            site.write(other, "not a log\n");
        }
        site.write("2-worker-0.log", "a\nb");
        assert_eq!(round(&mut reader), ["2-worker-0: a\nb"]);
        site.write("2-worker-0.log", "a\nbc\n");
        site.write("10-worker-1.log", "late\n");
        site.write("10-server-0.log", "served\nmore");
        assert_eq!(round(&mut reader), ["2-worker-0: c\n", "10-server-0: served\nmore", "10-worker-1: late\n"]);
        assert_eq!(round(&mut reader), [""; 0]);
        site.write("2-worker-0.log", "new\n");
        assert_eq!(round(&mut reader), ["2-worker-0: new\n"], "it is shorter, so it is another log");
        let after = [("10-server-0".to_owned(), 7), ("10-worker-1".to_owned(), 5)].into();
        let of = LogsOf { job: 1, name: "net".into(), tail: None, after };
        let mut again = LogReader::new(site.root.path(), of);
        assert_eq!(round(&mut again), ["2-worker-0: new\n", "10-server-0: more"]);
    }

    #[test]
    fn only_files_of_the_folder_are_read_and_the_last_ones() {
        let site = Site::new();
        site.write("secret", "secret\n");
        std::os::unix::fs::symlink(site.folder.join("secret"), site.folder.join("1-worker-0.log")).unwrap();
        let fifo = site.folder.join("1-worker-1.log");
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, fifo, kind, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert_eq!(round(&mut site.reader(None)), [""; 0]);
        for at in 0..100 {
            site.write(&format!("2-worker-{at}.log"), &format!("{at}\n"));
        }
        let parts = round(&mut site.reader(None));
        assert!(parts.len() == MOST_LOGS && parts[MOST_LOGS - 1] == "2-worker-99: 99\n", "{parts:?}");
        // The folder itself is one's own.
        let elsewhere = site.root.path().join("elsewhere");
        fs::rename(&site.folder, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &site.folder).unwrap();
        assert_eq!(round(&mut site.reader(None)), [""; 0]);
    }

    #[test]
    fn a_log_that_grows_while_it_is_read_does_not_hold_up_others() {
        let site = Site::new();
        site.write("1-worker-0.log", &"x".repeat(2 * LONGEST_PART + 5));
        site.write("1-worker-1.log", "y");
        let mut reader = site.reader(None);
        let mut sizes = Vec::new();
        while let Some(part) = reader.next().unwrap() {
            sizes.push((part.log, part.data.len()));
            site.write("1-worker-0.log", &"x".repeat((4 + sizes.len()) * LONGEST_PART));
        }
        let first = |size| ("1-worker-0".to_owned(), size);
        let expected = [first(LONGEST_PART), first(LONGEST_PART), first(5), ("1-worker-1".to_owned(), 1)];
        assert_eq!(sizes, expected);
    }

    #[test]
    fn a_tail_has_the_last_lines_of_each_log_and_all_that_comes() {
        let site = Site::new();
        for (tail, expected) in [(0, ""), (1, "c"), (2, "b\nc"), (3, "a\nb\nc"), (9, "a\nb\nc"), (u32::MAX, "a\nb\nc")]
        {
            site.write("1-worker-0.log", "a\nb\nc");
            let mut reader = site.reader(Some(tail));
            let first = reader.next().unwrap().unwrap();
            assert_eq!((first.data.len(), first.end as usize), (0, "a\nb\nc".len() - expected.len()));
            let parts = round(&mut reader);
            assert_eq!(parts, if tail == 0 { vec![] } else { vec![format!("1-worker-0: {expected}")] });
            site.write("1-worker-0.log", "a\nb\nc\nd\n");
            site.write("2-worker-0.log", "1\n2\n3\n");
            assert_eq!(round(&mut reader), ["1-worker-0: \nd\n", "2-worker-0: 1\n2\n3\n"]);
            fs::remove_file(site.folder.join("2-worker-0.log")).unwrap();
        }
        site.write("1-worker-0.log", "a\nb\n");
        assert_eq!(round(&mut site.reader(Some(1))), ["1-worker-0: ", "1-worker-0: b\n"]);
        // Only the last part of a log is searched.
        site.write("1-worker-0.log", &"long".repeat(LONGEST_TAIL as usize));
        let mut reader = site.reader(Some(1));
        let read: usize = std::iter::from_fn(|| reader.next().unwrap()).map(|part| part.data.len()).sum();
        assert_eq!(read as u64, LONGEST_TAIL);
    }

    #[test]
    fn a_log_that_can_t_be_read_for_a_moment_is_not_read_again() {
        let site = Site::new();
        site.write("1-worker-0.log", "a\n");
        let mut reader = site.reader(None);
        assert_eq!(round(&mut reader), ["1-worker-0: a\n"]);
        let (log, away) = (site.folder.join("1-worker-0.log"), site.folder.join("away"));
        fs::rename(&log, &away).unwrap();
        std::os::unix::fs::symlink(&away, &log).unwrap();
        assert_eq!(round(&mut reader), [""; 0]);
        fs::rename(&away, &log).unwrap();
        site.write("1-worker-0.log", "a\nb\n");
        assert_eq!(round(&mut reader), ["1-worker-0: b\n"]);
    }

    #[test]
    fn a_job_writes_while_it_has_processes() {
        let site = Site::new();
        assert!(!site.reader(None).is_written());
        fs::create_dir(site.root.path().join("slots")).unwrap();
        fs::write(site.root.path().join("slots/11-1-worker-0.json"), "").unwrap();
        assert!(!site.reader(None).is_written(), "another job's");
        fs::write(site.root.path().join("slots/1-1-worker-0.json"), "").unwrap();
        assert!(site.reader(None).is_written());
    }
}

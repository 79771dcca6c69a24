//! Output of processes: one file per process, for the last incarnations.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom},
    os::fd::OwnedFd,
    path::{Component, Path, PathBuf},
    time::SystemTime,
};

use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2},
    io::Errno,
};
use trainmaster_manager::role;

use super::slot::ProcessId;

/// Maximum number of bytes at the end of a log that are searched for its last line.
const TAIL: u64 = 4096;
/// Maximum number of reported characters of a line.
const LINE: usize = 200;

/// Opens the log of a process for appending. A restarted slot uses the same file. Also returns the log's current
/// length.
pub(crate) fn open(folder: &Path, id: ProcessId) -> io::Result<(PathBuf, File, u64)> {
    fs::create_dir_all(folder)?;
    let path = folder.join(format!("{}-{}-{}.log", id.incarnation, role::name(id.slot.role), id.slot.index));
    let file = OpenOptions::new().create(true).append(true).open(&path)?;
    let length = file.metadata()?.len();
    Ok((path, file, length))
}

/// Opens a file at a path that jobs can write. Fails unless it is a regular file, and never blocks.
pub(crate) fn open_theirs(path: &Path) -> io::Result<File> {
    // A symbolic link could lead to a device, and opening a device can have effects.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open_without_links(path, flags)?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    Ok(file)
}

/// Opens a path without following symbolic links.
pub(crate) fn open_without_links(path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        // Old kernels and some sandboxes, such as systemd-nspawn's, don't know the call.
        Err(Errno::NOSYS | Errno::PERM) => open_in_steps(path, flags),
        opened => opened,
    }
}

/// The same, folder by folder.
fn open_in_steps(path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let full = std::path::absolute(path).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))?;
    let (folder, name) = (full.parent().ok_or(Errno::INVAL)?, full.file_name().ok_or(Errno::INVAL)?);
    let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = openat(CWD, "/", step, Mode::empty())?;
    for part in folder.components().filter(|part| matches!(part, Component::Normal(_))) {
        at = openat(&at, part.as_os_str(), step, Mode::empty())?;
    }
    openat(&at, name, flags | OFlags::NOFOLLOW, Mode::empty())
}

/// The last line that was printed after `start`, shortened and without control characters.
pub(crate) fn last_line(path: &Path, start: u64) -> Option<String> {
    let mut file = open_theirs(path).ok()?;
    let end = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(start.max(end.saturating_sub(TAIL)))).ok()?;
    let mut tail = Vec::new();
    file.take(TAIL).read_to_end(&mut tail).ok()?;
    let tail = String::from_utf8_lossy(&tail);
    let line = tail.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    Some(line.chars().filter(|c| !c.is_control()).take(LINE).collect())
}

/// Removes the logs of all but the last few incarnations in a job's folder. The order is by time of writing: after the
/// daemon's store was lost, a job of the same number and name counts its incarnations from the start again.
pub(crate) fn prune(folder: &Path, kept: usize) {
    let mut incarnations: BTreeMap<String, (SystemTime, Vec<PathBuf>)> = BTreeMap::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some((incarnation, _)) = name.to_str().and_then(|name| name.split_once('-')) else { continue };
        let written = entry.metadata().and_then(|data| data.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
        let files = incarnations.entry(incarnation.to_owned()).or_insert((written, Vec::new()));
        files.0 = files.0.max(written);
        files.1.push(entry.path());
    }
    let mut by_age: Vec<_> = incarnations.into_values().collect();
    by_age.sort_by_key(|(written, _)| std::cmp::Reverse(*written));
    for path in by_age.into_iter().skip(kept.max(1)).flat_map(|(_, files)| files) {
        if let Err(error) = fs::remove_file(&path) {
            tracing::debug!(path = %path.display(), %error, "can't remove an old log");
        }
    }
}

#[cfg(test)]
mod tests {
    use trainmaster_core::Role;
    use trainmaster_manager::SlotId;

    use std::{fs::FileTimes, io::Write as _, time::Duration};

    use super::*;

    fn id(incarnation: u32) -> ProcessId {
        ProcessId { job: 1, incarnation, slot: SlotId::new(Role::Worker, 0) }
    }

    #[test]
    fn no_symbolic_link_is_followed_in_one_step_or_in_several() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir(root.join("real")).unwrap();
        fs::write(root.join("real/log"), "text").unwrap();
        std::os::unix::fs::symlink(root.join("real"), root.join("linked")).unwrap();
        std::os::unix::fs::symlink(root.join("real/log"), root.join("real/link")).unwrap();
        for open in [open_without_links, open_in_steps] {
            let open = |name: &str| open(&root.join(name), OFlags::RDONLY | OFlags::CLOEXEC);
            let mut text = String::new();
            File::from(open("real/log").unwrap()).read_to_string(&mut text).unwrap();
            assert_eq!(text, "text");
            for wrong in ["linked/log", "real/link", "linked/link", "real/none", "none/log"] {
                assert!(open(wrong).is_err(), "{wrong}");
            }
        }
    }

    #[test]
    fn the_last_line_is_of_this_start() {
        let folder = tempfile::tempdir().unwrap();
        let (path, mut file, start) = open(folder.path(), id(1)).unwrap();
        assert_eq!((start, last_line(&path, 0)), (0, None));
        writeln!(file, "first\nsecond \x1b[1m\n\n").unwrap();
        assert_eq!(last_line(&path, 0).unwrap(), "second [1m");
        let (_, mut file, start) = open(folder.path(), id(1)).unwrap();
        assert_eq!(last_line(&path, start), None);
        write!(file, "{}", "x".repeat(10_000)).unwrap();
        assert_eq!(last_line(&path, start).unwrap().len(), LINE);
    }

    #[test]
    fn the_incarnations_written_last_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        for (age, incarnation) in [9, 1, 10, 2].into_iter().enumerate() {
            let (_, file, _) = open(folder.path(), id(incarnation)).unwrap();
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1000 - age as u64);
            file.set_times(FileTimes::new().set_modified(time)).unwrap();
        }
        prune(folder.path(), 2);
        let mut left: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        assert_eq!(left, ["1-worker-0.log", "9-worker-0.log"]);
    }
}

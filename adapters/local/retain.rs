//! Retention of the folders of ended jobs: the last few, for a limited time.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, SystemTime},
};

use super::{Retention, logs};

/// Maximum number of a folder's entries that are examined for its age.
const LOOKED_AT: usize = 1000;

/// Removes folders beyond the limits of `retention`, except those of active jobs.
pub(crate) fn sweep(
    jobs: &Path,
    logs: &Path,
    active_jobs: &BTreeSet<PathBuf>,
    active_logs: &BTreeSet<PathBuf>,
    retention: &Retention,
) {
    sweep_folder(jobs, active_jobs, retention);
    sweep_folder(logs, active_logs, retention);
    for folder in active_logs {
        logs::prune(folder, retention.incarnations);
    }
}

fn sweep_folder(folder: &Path, active: &BTreeSet<PathBuf>, retention: &Retention) {
    let ended = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let ended = ended.filter(|path| path.is_dir() && !active.contains(path));
    let mut ended: Vec<(Duration, PathBuf)> = ended.map(|path| (age(&path), path)).collect();
    ended.sort();
    let kept = ended.iter().take(retention.jobs).take_while(|(age, _)| *age <= retention.age).count();
    for (_, path) in ended.into_iter().skip(kept) {
        match remove(&path) {
            Err(error) => tracing::warn!(path = %path.display(), %error, "can't remove the folder of a job that ended"),
            Ok(()) => tracing::debug!(path = %path.display(), "removed the folder of a job that ended"),
        }
    }
}

/// Removes a folder and its contents, if it exists. A job may have nested folders deeper than this process's
/// descriptors or stack allow, so another process does it. Neither follows symbolic links.
///
/// # Errors
/// A part of it is left.
pub(crate) fn remove(folder: &Path) -> io::Result<()> {
    let mut rm = Command::new("rm");
    rm.args(["-rf", "--one-file-system", "--"]).arg(folder);
    let said = rm.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    if said.success() { Ok(()) } else { Err(io::Error::other(format!("rm -rf: {said}"))) }
}

/// Time since the last write of the folder or of an entry directly in it.
fn age(folder: &Path) -> Duration {
    let inside = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).take(LOOKED_AT);
    let written = inside.chain([folder.to_owned()]).filter_map(|path| {
        // A symbolic link to a file that is always new isn't new itself.
        let data = path.symlink_metadata().ok()?;
        // The owner can set the modification time to the future, but not the change time.
        let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(data.ctime().try_into().ok()?);
        data.modified().ok().map(|written| written.min(changed))
    });
    let newest = written.max().unwrap_or(SystemTime::UNIX_EPOCH);
    SystemTime::now().duration_since(newest).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs::{File, FileTimes};

    use rustix::fs::{Mode, OFlags};

    use super::*;

    #[test]
    fn the_folders_of_active_and_of_the_last_ended_jobs_stay() {
        let root = tempfile::tempdir().unwrap();
        let folder = |name: &str, hours: u64| {
            let path = root.path().join(name);
            fs::create_dir(&path).unwrap();
            let time = SystemTime::now() - Duration::from_secs(hours * 3600);
            File::open(&path).unwrap().set_times(FileTimes::new().set_modified(time)).unwrap();
            path
        };
        let active = BTreeSet::from([folder("1-active", 1000)]);
        for (name, hours) in [("2-a", 1), ("3-b", 2), ("4-c", 3), ("5-d", 500)] {
            folder(name, hours);
        }
        let left = || {
            let mut left: Vec<_> =
                fs::read_dir(root.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
            left.sort();
            left
        };
        let retention = Retention { jobs: 10, age: Duration::from_secs(100 * 3600), incarnations: 1 };
        sweep_folder(root.path(), &active, &retention);
        assert_eq!(left(), ["1-active", "2-a", "3-b", "4-c"]);
        sweep_folder(root.path(), &active, &Retention { jobs: 2, ..retention });
        assert_eq!(left(), ["1-active", "2-a", "3-b"]);
    }

    #[test]
    fn a_job_cannot_make_its_folder_stay() {
        let root = tempfile::tempdir().unwrap();
        // Too deep for a process that uses a descriptor or a stack frame per level.
        let deep = root.path().join("1-deep");
        fs::create_dir(&deep).unwrap();
        let (folder, everything) = (OFlags::DIRECTORY | OFlags::RDONLY, Mode::RWXU);
        let mut inner = rustix::fs::open(&deep, folder, everything).unwrap();
        for _ in 0..5000 {
            rustix::fs::mkdirat(&inner, "d", everything).unwrap();
            inner = rustix::fs::openat(&inner, "d", folder, everything).unwrap();
        }
        let late = root.path().join("2-late");
        fs::create_dir(&late).unwrap();
        let next_year = SystemTime::now() + Duration::from_secs(365 * 86_400);
        File::open(&late).unwrap().set_times(FileTimes::new().set_modified(next_year)).unwrap();
        std::os::unix::fs::symlink("/proc/uptime", late.join("always-new")).unwrap();
        std::thread::sleep(Duration::from_millis(1100));
        let retention = Retention { jobs: 10, age: Duration::from_secs(1), incarnations: 1 };
        sweep_folder(root.path(), &BTreeSet::new(), &retention);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
        remove(&deep).unwrap();
    }
}

//! What remains of jobs that ended: the folders of the last few, for a while.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use super::{Retention, logs};

/// Removes what is older or more than `retention` allows, sparing the named folders.
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
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "can't remove the folder of a job that ended");
            }
            _ => tracing::debug!(path = %path.display(), "removed the folder of a job that ended"),
        }
    }
}

/// Since the newest of the folder and what is right in it was written.
fn age(folder: &Path) -> Duration {
    let inside = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let written =
        inside.chain([folder.to_owned()]).filter_map(|path| fs::metadata(path).and_then(|d| d.modified()).ok());
    let newest = written.max().unwrap_or(SystemTime::UNIX_EPOCH);
    SystemTime::now().duration_since(newest).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs::{File, FileTimes};

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
}

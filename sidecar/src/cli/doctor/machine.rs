//! What can be seen of this machine.

use std::{path::Path, time::Duration};

use rustix::{
    fs::{Access, access, statvfs},
    process::{Resource, getrlimit},
};
use trainmaster_adapters::{Launch, Verdict};

use super::Found;
use crate::cli::{adapter::AdapterChoice, client::ServerArgs};

const MIB: u64 = 1 << 20;
/// The journal of a busy day, and what is left for no more than a few snapshots.
const MUCH_SPACE: u64 = 1024 * MIB;
const LITTLE_SPACE: u64 = 64 * MIB;
/// A stream each for a few hundred slots.
const MANY_FILES: u64 = 1024;

/// The state folder, its disk and the limits.
pub(super) fn examine(folder: &Path) -> Vec<Found> {
    vec![state_folder(folder), disk(folder), files()]
}

/// What the adapters say of themselves.
pub(super) fn adapters(chosen: &[AdapterChoice], server: &ServerArgs, folder: &Path) -> Vec<Found> {
    let mut found = Vec::new();
    for choice in AdapterChoice::or_default(chosen) {
        let launch = Launch {
            config: choice.config.clone(),
            daemon: server.address(),
            token: server.token().ok().flatten(),
            ca: server.ca().cloned(),
            feed: server.address(),
            state_dir: folder.join(choice.info.name),
            end_jobs: false,
            orphan_grace: Duration::ZERO,
            trainer: None,
        };
        found.extend((choice.info.doctor)(&launch).into_iter().map(|check| Found::of(choice.info.name, check)));
    }
    found
}

/// The folder, or what it would be made in.
fn nearest(folder: &Path) -> &Path {
    folder.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."))
}

fn state_folder(folder: &Path) -> Found {
    let there = nearest(folder);
    let found = |verdict, detail| Found::new("machine", "state folder", verdict, detail);
    match access(there, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) if there == folder => found(Verdict::Good, format!("{} can be written", folder.display())),
        Ok(()) => found(Verdict::Good, format!("{} can be made", folder.display())),
        Err(error) => found(Verdict::Bad, format!("{} can't be written: {error}; choose --state-dir", there.display())),
    }
}

fn disk(folder: &Path) -> Found {
    let found = |verdict, detail| Found::new("machine", "disk space", verdict, detail);
    match statvfs(nearest(folder)) {
        Ok(disk) => {
            let free = disk.f_bavail.saturating_mul(disk.f_frsize);
            let detail = format!("{} MiB free for {}", free / MIB, folder.display());
            match free {
                0..LITTLE_SPACE => found(Verdict::Bad, format!("{detail}; the journal will soon be full")),
                LITTLE_SPACE..MUCH_SPACE => found(Verdict::Doubtful, format!("{detail}; 1 GiB is comfortable")),
                MUCH_SPACE.. => found(Verdict::Good, detail),
            }
        }
        Err(error) => found(Verdict::Doubtful, format!("unknown: {error}")),
    }
}

fn files() -> Found {
    let found = |verdict, detail| Found::new("machine", "open files", verdict, detail);
    match getrlimit(Resource::Nofile).current {
        Some(allowed) if allowed < MANY_FILES => {
            found(Verdict::Doubtful, format!("{allowed} allowed; {MANY_FILES} are comfortable (ulimit -n)"))
        }
        Some(allowed) => found(Verdict::Good, format!("{allowed} allowed")),
        None => found(Verdict::Good, "no limit".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_isnt_there_is_judged_by_its_parent() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("a/b");
        assert_eq!(nearest(&deep), folder.path());
        assert!(examine(&deep).iter().all(|found| found.verdict != Verdict::Bad || found.check == "disk space"));
        assert!(!deep.exists());
    }

    #[test]
    fn a_folder_in_a_file_is_bad() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(state_folder(&file.path().join("a")).verdict, Verdict::Bad);
    }
}

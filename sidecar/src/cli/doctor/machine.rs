//! What can be seen of this machine.

use std::path::{Path, PathBuf};

use rustix::{
    fs::{Access, access, statvfs},
    process::{Resource, getrlimit},
};
use trainmaster_adapters::{AdapterInfo, Launch, Verdict, all, by_name};

use super::Found;
use crate::{cli::client::ServerArgs, daemon::Config};

const MIB: u64 = 1 << 20;
/// The journal of a busy day, and what is left for no more than a few snapshots.
const MUCH_SPACE: u64 = 1024 * MIB;
const LITTLE_SPACE: u64 = 64 * MIB;
/// A stream each for a few hundred slots.
const MANY_FILES: u64 = 1024;

/// The state folder, its disk, the limits, and what the adapters say of themselves.
pub(super) fn examine(config: &Config, server: &ServerArgs) -> Vec<Found> {
    let mut found = vec![state_folder(&config.state_dir), disk(&config.state_dir), files()];
    let default = || all().iter().filter(|info| info.default).map(|info| (info.name.to_owned(), None));
    let chosen: Vec<_> = match &config.adapters {
        Some(chosen) => chosen.iter().map(|choice| (choice.name.clone(), choice.config.clone())).collect(),
        None => default().collect(),
    };
    for (name, file) in chosen {
        match by_name(&name) {
            Some(info) => found.extend(adapter(info, file, config, server)),
            None => {
                let known: Vec<_> = all().iter().map(|info| info.name).collect();
                let detail = format!("there is no adapter {name:?}; there are {}", known.join(", "));
                found.push(Found::new("machine", "adapters", Verdict::Bad, detail));
            }
        }
    }
    found
}

fn adapter(info: &AdapterInfo, file: Option<PathBuf>, config: &Config, server: &ServerArgs) -> Vec<Found> {
    let launch = Launch {
        config: file,
        daemon: server.address(),
        token: config.admin_token.clone(),
        ca: server.ca().cloned(),
        feed: config.advertise.clone().unwrap_or_else(|| server.address()),
        state_dir: config.state_dir.join("adapters").join(info.name),
        end_jobs: config.end_jobs,
        orphan_grace: config.orphan_grace,
        trainer: config.trainer.clone(),
    };
    (info.doctor)(&launch).into_iter().map(|check| Found::of(info.name, check)).collect()
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
        assert_eq!(state_folder(&deep).verdict, Verdict::Good);
        assert!(disk(&deep).detail.contains("free"));
        assert!(!deep.exists());
    }

    #[test]
    fn a_folder_in_a_file_is_bad() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(state_folder(&file.path().join("a")).verdict, Verdict::Bad);
    }
}

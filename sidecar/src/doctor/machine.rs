//! Checks of this machine.

use std::path::{Path, absolute};

use rustix::{
    fs::statvfs,
    process::{Resource, getrlimit},
};
use trainmaster_daemon::{
    Config,
    adapters::{chosen, launch},
    check_tokens, unusable_files,
};
use trainmaster_manager::{Check, Health, nearest_folder};
use trainmaster_terminal::client::ServerArgs;

use super::Found;

const MIB: u64 = 1 << 20;
/// Disk space for the journal of a busy day, and for a few snapshots only.
const MUCH_SPACE: u64 = 1024 * MIB;
const LITTLE_SPACE: u64 = 64 * MIB;
/// Open files for the streams of a few hundred slots.
const MANY_FILES: u64 = 1024;

/// Checks of the state folder, its disk, the limits, and the adapters. `theirs`: state folder of the daemon that
/// answered.
pub(super) fn examine(config: &Config, theirs: Option<&Path>, server: &ServerArgs) -> Vec<Found> {
    let mut found = vec![state_folder(&config.state_dir, theirs), disk(&config.state_dir), files()];
    if config.state_dir.is_dir() {
        found.extend(tokens(&config.state_dir));
    }
    found.extend(unusable_files(config, is_theirs(&config.state_dir, theirs)).into_iter().map(|file| {
        let detail = format!("{}; a daemon doesn't start with it", file.problem);
        Found::new("machine", file.what, Health::Bad, detail)
    }));
    for choice in chosen(config) {
        match config.available.find(&choice.name) {
            Ok(info) => {
                let launch = launch(config, &choice, server.address());
                found.extend((info.doctor)(&launch).into_iter().map(|check| Found::of(info.name, check)));
            }
            Err(problem) => {
                found.push(Found::new("machine", "adapters", Health::Bad, format!("{:?}: {problem}", choice.name)));
            }
        }
    }
    found
}

fn state_folder(folder: &Path, theirs: Option<&Path>) -> Found {
    let shown = folder.display();
    if is_theirs(folder, theirs) {
        // The daemon itself reports whether it can write there. It may belong to another user.
        return Found::new("machine", "state folder", Health::Good, format!("{shown}, the daemon's"));
    }
    let mut check = Check::folder("state folder", folder);
    if check.verdict == Health::Bad {
        check.detail += "; choose --state-dir";
    }
    if let Some(theirs) = theirs {
        check.verdict = check.verdict.max(Health::Doubtful);
        check.detail += &format!("; the daemon that answers has another, {}", theirs.display());
    }
    Found::of("machine", check)
}

fn is_theirs(folder: &Path, theirs: Option<&Path>) -> bool {
    theirs == Some(&*absolute(folder).unwrap_or_else(|_| folder.to_owned()))
}

fn tokens(folder: &Path) -> Option<Found> {
    let found = |verdict, detail| Found::new("machine", "tokens", verdict, detail);
    match check_tokens(folder) {
        Ok(None | Some(0)) => None,
        Ok(Some(1)) => Some(found(Health::Good, "1 beside the administrator's".into())),
        Ok(Some(count)) => Some(found(Health::Good, format!("{count} beside the administrator's"))),
        Err(problem) => {
            let advice = "restore it from a backup, or remove it to revoke all of its tokens";
            Some(found(Health::Bad, format!("{problem}; a daemon doesn't start with it: {advice}")))
        }
    }
}

fn disk(folder: &Path) -> Found {
    let found = |verdict, detail| Found::new("machine", "disk space", verdict, detail);
    match statvfs(nearest_folder(folder)) {
        Ok(disk) => {
            let free = disk.f_bavail.saturating_mul(disk.f_frsize);
            let detail = format!("{} MiB free for {}", free / MIB, folder.display());
            match free {
                0..LITTLE_SPACE => found(Health::Bad, format!("{detail}; the journal will soon be full")),
                LITTLE_SPACE..MUCH_SPACE => found(Health::Doubtful, format!("{detail}; 1 GiB is comfortable")),
                MUCH_SPACE.. => found(Health::Good, detail),
            }
        }
        Err(error) => found(Health::Doubtful, format!("unknown: {error}")),
    }
}

fn files() -> Found {
    let found = |verdict, detail| Found::new("machine", "open files", verdict, detail);
    match getrlimit(Resource::Nofile).current {
        Some(allowed) if allowed < MANY_FILES => {
            found(Health::Doubtful, format!("{allowed} allowed; {MANY_FILES} are comfortable (ulimit -n)"))
        }
        Some(allowed) => found(Health::Good, format!("{allowed} allowed")),
        None => found(Health::Good, "no limit".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_folder_is_checked_and_not_created() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("a/b");
        assert_eq!(state_folder(&deep, None).verdict, Health::Good);
        assert!(disk(&deep).detail.contains("free"));
        assert!(!folder.path().join("a").exists());
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(state_folder(&file.path().join("a"), None).verdict, Health::Bad);
    }

    #[test]
    fn another_folder_than_the_daemons_is_doubtful() {
        let folder = tempfile::tempdir().unwrap();
        let found = state_folder(folder.path(), Some(folder.path()));
        assert!(found.verdict == Health::Good && found.detail.ends_with("the daemon's"), "{}", found.detail);
        let found = state_folder(folder.path(), Some(Path::new("/elsewhere")));
        assert!(found.verdict == Health::Doubtful && found.detail.contains("/elsewhere"), "{}", found.detail);
    }
}

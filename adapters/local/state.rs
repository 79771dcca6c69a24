//! The state folder: who owns it, which processes were started from it, and where jobs keep their files.

use std::{
    ffi::OsStr,
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use trainmaster_manager::{Placement, role};

use super::{LocalError, RunAs, retain, slot::ProcessId, user::User};

/// An open state folder. Its lock lasts as long as this value, and dies with the process.
#[derive(Debug)]
pub(crate) struct StateDir {
    root: PathBuf,
    id: String,
    boot: String,
    /// Where jobs work, and whose their folders are, if not this process's user's.
    work: PathBuf,
    user: Option<User>,
    _lock: File,
}

/// What is known of a started process; without a pid, that it was about to be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    #[serde(flatten)]
    pub(crate) id: ProcessId,
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) placement: Placement,
    /// Fingerprint of the token in its environment.
    pub(crate) token: String,
    pub(crate) log: PathBuf,
    /// Length of the log before it started.
    pub(crate) log_start: u64,
    pub(crate) pid: Option<i32>,
    /// Clock ticks since boot.
    pub(crate) start: Option<u64>,
    /// Pids and ticks mean something only within this boot of the machine.
    pub(crate) boot: String,
}

impl StateDir {
    /// Opens the folder, making it if need be, and locks it.
    pub(crate) fn open(root: &Path, run_as: Option<&RunAs>) -> Result<Self, LocalError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| LocalError::State { path, error }
        };
        let user = run_as.map(|run_as| User::find(&run_as.user)).transpose().map_err(LocalError::User)?;
        let make = |folder: PathBuf| fs::create_dir_all(&folder).map_err(failed(&folder));
        make(root.join("slots"))?;
        make(root.join("logs"))?;
        // Programs run in their own folders, so every path they are given is absolute.
        let root = root.canonicalize().map_err(failed(root))?;
        let path = root.join("lock");
        let mut lock =
            OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(failed(&path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(LocalError::Locked { path: root }),
            Err(TryLockError::Error(error)) => return Err(LocalError::State { path, error }),
        }
        lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id())).map_err(failed(&path))?;
        let id = identity(&root.join("id")).map_err(failed(&root.join("id")))?;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
        let work = run_as.map_or_else(|| root.clone(), |run_as| run_as.folder.clone());
        if user.is_some() && !work.exists() {
            // Jobs pass through, and see nobody else's.
            DirBuilder::new().recursive(true).mode(0o711).create(&work).map_err(failed(&work))?;
        }
        let work = work.canonicalize().map_err(failed(&work))?;
        let jobs = work.join("jobs");
        if !jobs.exists() {
            DirBuilder::new().mode(0o711).create(&jobs).map_err(failed(&jobs))?;
        }
        if user.is_some() {
            // What is another's could be something else by the next time it is looked at.
            for folder in [&work, &jobs] {
                roots_own(folder).map_err(failed(folder))?;
            }
        }
        Ok(Self { root, id, boot, work, user, _lock: lock })
    }

    /// Stands in the environment of every process started from here.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// This boot of the machine.
    pub(crate) fn boot(&self) -> &str {
        &self.boot
    }

    /// Where jobs have their folders, named `<number>-<name>`.
    pub(crate) fn jobs(&self) -> PathBuf {
        self.work.join("jobs")
    }

    /// Whom jobs run as, if not as this process's user.
    pub(crate) fn user(&self) -> Option<&User> {
        self.user.as_ref()
    }

    /// Makes a job's folder with its checkpoints. Another user's takes its place once it is whole: from then on the
    /// user may have put anything in it.
    pub(crate) fn make_job(&self, folder: &Path) -> io::Result<()> {
        const CHECKPOINTS: &str = "checkpoints";
        match &self.user {
            None => fs::create_dir_all(folder.join(CHECKPOINTS)),
            Some(_) if folder.symlink_metadata().is_ok() => Ok(()),
            Some(user) => {
                let draft = self.work.join("draft");
                if draft.symlink_metadata().is_ok() {
                    retain::remove(&draft)?;
                }
                DirBuilder::new().mode(0o700).create(&draft)?;
                user.make_folder(&draft.join(CHECKPOINTS))?;
                user.give(&draft)?;
                fs::rename(&draft, folder)
            }
        }
    }

    /// The folder that a job's processes run in. The name keeps a job apart from another one that had the same number
    /// under a daemon whose store is lost.
    pub(crate) fn job(&self, id: u64, name: &str) -> PathBuf {
        self.jobs().join(format!("{id}-{name}"))
    }

    /// Where programs book emulated devices: a folder for each virtual server, and in it one for each device.
    pub(crate) fn devices(&self) -> PathBuf {
        self.work.join("devices")
    }

    /// Begins anew with these: nobody books any more.
    pub(crate) fn clear_devices(&self) {
        let devices = self.devices();
        if let Err(error) = retain::remove(&devices) {
            tracing::warn!(path = %devices.display(), %error, "can't remove what programs booked");
        }
        if let Some(user) = &self.user
            && let Err(error) = user.make_folder(&devices)
        {
            tracing::warn!(path = %devices.display(), %error, "programs can't book emulated devices");
        }
    }

    /// Where jobs have the folders of their logs, named as in [`jobs`](Self::jobs).
    pub(crate) fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// The folder of a job's logs. A name alone isn't enough: one job after the other may have it, of any tenant.
    pub(crate) fn log(&self, id: u64, name: &str) -> PathBuf {
        self.logs().join(format!("{id}-{name}"))
    }

    /// Writes a record whole or not at all.
    pub(crate) fn write(&self, record: &Record) -> io::Result<()> {
        let path = self.record(record.id);
        // A crash of the machine ends the processes too, so the record needn't outlive one: no fsync.
        let draft = path.with_extension("draft");
        fs::write(&draft, serde_json::to_vec_pretty(record)?)?;
        fs::rename(&draft, &path)
    }

    /// Removes a record, if it is there.
    pub(crate) fn remove(&self, id: ProcessId) {
        let path = self.record(id);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "can't remove a record");
            }
            _ => {}
        }
    }

    /// All records. One that can't be read is set aside; its process is found by its environment, and ended.
    pub(crate) fn records(&self) -> Vec<Record> {
        let files = fs::read_dir(self.root.join("slots")).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut records = Vec::new();
        for path in files {
            match path.extension().and_then(OsStr::to_str) {
                Some("json") => {}
                // Killed while it wrote; the record, if there was one, still stands.
                Some("draft") => {
                    let _ = fs::remove_file(&path);
                    continue;
                }
                _ => continue,
            }
            match fs::read(&path).map_err(io::Error::other).and_then(|text| Ok(serde_json::from_slice(&text)?)) {
                Ok(record) => records.push(record),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "setting an unreadable record aside");
                    let _ = fs::rename(&path, path.with_extension("unreadable"));
                }
            }
        }
        records
    }

    fn record(&self, id: ProcessId) -> PathBuf {
        let ProcessId { job, incarnation, slot } = id;
        self.root.join("slots").join(format!("{job}-{incarnation}-{}-{}.json", role::name(slot.role), slot.index))
    }
}

/// A random id, made once.
fn identity(path: &Path) -> io::Result<String> {
    match fs::read_to_string(path) {
        Ok(text) if !text.trim().is_empty() => return Ok(text.trim().to_owned()),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let id = fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim().to_owned();
    let draft = path.with_extension("draft");
    fs::write(&draft, &id)?;
    fs::rename(&draft, path)?;
    Ok(id)
}

/// Whether a folder is a folder that nobody but root can change.
fn roots_own(folder: &Path) -> io::Result<()> {
    let data = folder.symlink_metadata()?;
    if data.is_dir() && data.uid() == 0 && data.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::other(
        "it must be a folder of root's that nobody else can write to: jobs have folders of their own in it",
    ))
}

#[cfg(test)]
mod tests {
    use trainmaster_core::Role;
    use trainmaster_manager::{Share, SlotId};

    use super::*;

    fn record() -> Record {
        let slot = SlotId::new(Role::Worker, 2);
        Record {
            id: ProcessId { job: 7, incarnation: 3, slot },
            name: "mnist".into(),
            placement: Placement { server: "big-0".into(), devices: vec![Share { device: 1, milli: 500 }] },
            token: "abc".into(),
            log: "/tmp/x.log".into(),
            log_start: 9,
            pid: None,
            start: None,
            boot: "b".into(),
        }
    }

    #[test]
    fn records_read_back_as_written() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(folder.path(), None).unwrap();
        let mut record = record();
        state.write(&record).unwrap();
        record.pid = Some(12);
        record.start = Some(34);
        state.write(&record).unwrap();
        assert_eq!(state.records(), [record.clone()]);
        for name in ["1-1-worker-0.json", "7-3-worker-2.draft"] {
            fs::write(folder.path().join("slots").join(name), "{").unwrap();
        }
        assert_eq!(state.records(), [record.clone()]);
        assert!(!folder.path().join("slots/7-3-worker-2.draft").exists());
        state.remove(record.id);
        state.remove(record.id);
        assert_eq!(state.records(), []);
    }

    #[test]
    fn a_folder_has_one_owner_and_keeps_its_id() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(folder.path(), None).unwrap();
        let id = state.id().to_owned();
        assert!(matches!(StateDir::open(folder.path(), None), Err(LocalError::Locked { .. })));
        drop(state);
        assert_eq!(StateDir::open(folder.path(), None).unwrap().id(), id);
    }
}

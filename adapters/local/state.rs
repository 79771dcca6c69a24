//! The state folder: its lock, the records of started processes, and the folders of jobs.

use std::{
    ffi::OsStr,
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use procfs::sys::kernel::random;
use serde::{Deserialize, Serialize};
use trainmaster_manager::{Placement, role};

use super::{LocalError, RunAs, retain, slot::ProcessId, user::User};

/// An open state folder. Its lock is held until this value is dropped or the process ends.
#[derive(Debug)]
pub(crate) struct StateDir {
    root: PathBuf,
    id: String,
    boot: String,
    /// The folder of the jobs' files, and the files' owner, if it isn't this process's user.
    work: PathBuf,
    user: Option<User>,
    _lock: File,
}

/// The record of a process. Without a pid, the process was about to be started.
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
    /// The port of the job's store, if its processes were told one.
    #[serde(default)]
    pub(crate) port: Option<u16>,
    /// Pids and ticks are valid only within one boot of the machine.
    pub(crate) boot: String,
}

/// The folder of a job's logs. It needs the number too, because several jobs can have the same name one after another,
/// even jobs of different tenants.
pub(crate) fn log_folder(root: &Path, id: u64, name: &str) -> PathBuf {
    root.join("logs").join(format!("{id}-{name}"))
}

impl StateDir {
    /// Opens the folder, creates it if necessary, and locks it.
    pub(crate) fn open(root: &Path, run_as: Option<&RunAs>) -> Result<Self, LocalError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| LocalError::State { path, error }
        };
        let user = run_as.map(|run_as| User::find(&run_as.user)).transpose().map_err(LocalError::User)?;
        let make = |folder: PathBuf| fs::create_dir_all(&folder).map_err(failed(&folder));
        make(root.join("slots"))?;
        make(root.join("logs"))?;
        // Programs run in their own folders, so all of their paths have to be absolute.
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
        let boot = random::boot_id().unwrap_or_default();
        let work = run_as.map_or_else(|| root.clone(), |run_as| run_as.folder.clone());
        if user.is_some() && !work.exists() {
            // Jobs can pass through this folder, but can't list other jobs' folders.
            DirBuilder::new().recursive(true).mode(0o711).create(&work).map_err(failed(&work))?;
        }
        let work = work.canonicalize().map_err(failed(&work))?;
        let jobs = work.join("jobs");
        if !jobs.exists() {
            DirBuilder::new().mode(0o711).create(&jobs).map_err(failed(&jobs))?;
        }
        if user.is_some() {
            // Another user could replace its own folder between two checks.
            for folder in [&work, &jobs] {
                roots_own(folder).map_err(failed(folder))?;
            }
        }
        Ok(Self { root, id, boot, work, user, _lock: lock })
    }

    /// The folder's id, in the environment of every process that was started from it.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The id of the machine's current boot.
    pub(crate) fn boot(&self) -> &str {
        &self.boot
    }

    /// The parent of jobs' folders, which are named `<number>-<name>`.
    pub(crate) fn jobs(&self) -> PathBuf {
        self.work.join("jobs")
    }

    /// The user that runs jobs, if it isn't this process's user.
    pub(crate) fn user(&self) -> Option<&User> {
        self.user.as_ref()
    }

    /// Creates a job's folder and its checkpoint folder. For another user, the complete folder is moved into place,
    /// because afterwards that user can change its contents.
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

    /// The folder in which a job's processes run. The name distinguishes the job from another one that had the same
    /// number before the daemon's store was lost.
    pub(crate) fn job(&self, id: u64, name: &str) -> PathBuf {
        self.jobs().join(format!("{id}-{name}"))
    }

    /// The folder for bookings of emulated devices: one folder for each virtual server, with one for each device.
    pub(crate) fn devices(&self) -> PathBuf {
        self.work.join("devices")
    }

    /// Removes all bookings, because no process books devices now. For another user, creates the folder again.
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

    /// The parent of jobs' log folders, which are named as in [`jobs`](Self::jobs).
    pub(crate) fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// The folder of a job's logs.
    pub(crate) fn log(&self, id: u64, name: &str) -> PathBuf {
        log_folder(&self.root, id, name)
    }

    /// Writes a record atomically.
    pub(crate) fn write(&self, record: &Record) -> io::Result<()> {
        let path = self.record(record.id);
        // A crash of the machine ends the processes too, so the record doesn't have to survive it: no fsync.
        let draft = path.with_extension("draft");
        fs::write(&draft, serde_json::to_vec_pretty(record)?)?;
        fs::rename(&draft, &path)
    }

    /// Removes a record, if it exists.
    pub(crate) fn remove(&self, id: ProcessId) {
        let path = self.record(id);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "can't remove a record");
            }
            _ => {}
        }
    }

    /// Reads all records. An unreadable one is set aside. Its process is found by its environment, and ended.
    pub(crate) fn records(&self) -> Vec<Record> {
        let files = fs::read_dir(self.root.join("slots")).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut records = Vec::new();
        for path in files {
            match path.extension().and_then(OsStr::to_str) {
                Some("json") => {}
                // The adapter was killed while it wrote. An older record, if any, is still valid.
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

/// A random id, created once.
fn identity(path: &Path) -> io::Result<String> {
    match fs::read_to_string(path) {
        Ok(text) if !text.trim().is_empty() => return Ok(text.trim().to_owned()),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let id = random::uuid().map_err(io::Error::other)?;
    let draft = path.with_extension("draft");
    fs::write(&draft, &id)?;
    fs::rename(&draft, path)?;
    Ok(id)
}

/// Fails unless a path is a folder that only root can change.
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
            port: None,
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

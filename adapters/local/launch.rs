//! Starting the process of a slot, with its folder, log, record and environment.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use trainmaster_core::Role;
use trainmaster_manager::{Placement, role};

use super::{
    cluster::{Cluster, VirtualServer},
    fleet::plan::{Run, fingerprint},
    logs,
    process::{self, Handle, Watch},
    ranks::Ports,
    scan::MARKER,
    slot::ProcessId,
    state::{Record, StateDir},
};

/// The settings for all processes of this adapter.
pub(crate) struct Launcher {
    pub(crate) feed: String,
    pub(crate) orphan_grace: Duration,
    pub(crate) ports: Ports,
}

/// A slot to start.
pub(crate) struct SlotLaunch<'a> {
    pub(crate) id: ProcessId,
    pub(crate) name: &'a str,
    pub(crate) run: &'a Run,
    pub(crate) placement: &'a Placement,
}

/// The file that a program creates before it ends with success. After a restart of the adapter, the exit code of a
/// process that it took over is unknown.
pub(crate) fn done_file(folder: &Path, id: ProcessId) -> PathBuf {
    folder.join(format!(".done-{}-{}-{}", id.incarnation, role::name(id.slot.role), id.slot.index))
}

impl Launcher {
    /// Starts the process. Its record is written before it exists.
    ///
    /// # Errors
    /// The folder, log, record or process couldn't be created. Then nothing is left of the attempt.
    pub(crate) fn start(
        &mut self,
        state: &StateDir,
        cluster: &Cluster,
        order: &SlotLaunch<'_>,
    ) -> io::Result<(Record, Handle, Watch)> {
        let folder = state.job(order.id.job, order.name);
        state.make_job(&folder)?;
        let done = done_file(&folder, order.id);
        if done.symlink_metadata().is_ok() {
            fs::remove_file(done)?;
        }
        let (log, file, log_start) = logs::open(&state.log(order.id.job, order.name), order.id)?;
        let ranks = self.ports.variables(order.id, order.run);
        let mut record = Record {
            id: order.id,
            name: order.name.to_owned(),
            placement: order.placement.clone(),
            token: fingerprint(&order.run.token),
            log,
            log_start,
            port: ranks.as_ref().map(|(_, port)| *port),
            pid: None,
            start: None,
            boot: state.boot().to_owned(),
        };
        state.write(&record)?;
        let command = match order.id.slot.role {
            Role::Worker => &order.run.worker,
            Role::Server => &order.run.server,
        };
        let ranks = ranks.map(|(variables, _)| variables).into_iter().flatten();
        let ranks = ranks.map(|(name, value)| (name.into(), value.into()));
        let mut environment = self.environment(state, cluster, order, &folder);
        environment.extend(ranks);
        let started = process::start(command, environment, &folder, file, state.user(), (order.id, state.id()));
        let (handle, watch) = started.map_err(|error| {
            state.remove(order.id);
            let (program, folder) = (Path::new(&command.program).display(), folder.display());
            io::Error::new(error.kind(), format!("{program} in {folder}: {error}"))
        })?;
        record.pid = Some(handle.pid);
        record.start = Some(handle.start);
        if let Err(error) = state.write(&record) {
            // After a crash the process is still found, by the intent and the marker.
            tracing::warn!(slot = %order.id, %error, "can't complete a record");
        }
        Ok((record, handle, watch))
    }

    /// The environment: the daemon's own without its `TRAINMASTER_*`, then the job's, then the slot's.
    fn environment(
        &self,
        state: &StateDir,
        cluster: &Cluster,
        order: &SlotLaunch<'_>,
        folder: &Path,
    ) -> Vec<(OsString, OsString)> {
        let SlotLaunch { id, name, run, placement } = order;
        let server = cluster.server(&placement.server);
        let first = server.map_or(0, VirtualServer::first_device);
        let source = run.environment.get("TRAINMASTER_UPLOAD").map_or("", String::as_str);
        let upload = server.map_or(Duration::ZERO, |server| server.upload(source));
        let devices = |first: u32| {
            let numbers: Vec<_> = placement.devices.iter().map(|share| (first + share.device).to_string()).collect();
            numbers.join(",")
        };
        // The daemon's own settings, among them the credentials of its collector of traces, aren't the job's.
        let is_own =
            |key: &OsString| [&b"TRAINMASTER_"[..], b"OTEL_"].iter().any(|own| key.as_encoded_bytes().starts_with(own));
        let mut environment: BTreeMap<OsString, OsString> = env::vars_os()
            .filter(|(key, _)| !is_own(key))
            .chain(run.environment.iter().map(|(key, value)| (key.into(), value.into())))
            .collect();
        let mut set = |key: &str, value: String| environment.insert(key.into(), value.into());
        set("TRAINMASTER_FEED", self.feed.clone());
        set("TRAINMASTER_JOB", id.job.to_string());
        set("TRAINMASTER_JOB_NAME", (*name).to_owned());
        set("TRAINMASTER_ROLE", role::name(id.slot.role).to_owned());
        set("TRAINMASTER_INDEX", id.slot.index.to_string());
        set("TRAINMASTER_INCARNATION", id.incarnation.to_string());
        set("TRAINMASTER_REVISION", run.revision.to_string());
        set("TRAINMASTER_SERVER", placement.server.clone());
        set("TRAINMASTER_ORPHAN_GRACE_MS", self.orphan_grace.as_millis().to_string());
        set("TRAINMASTER_DEVICES", devices(0));
        // Virtual servers share one machine, whose devices are numbered consecutively.
        set("CUDA_VISIBLE_DEVICES", devices(first));
        // As NVML numbers them. By default CUDA puts the fastest first.
        set("CUDA_DEVICE_ORDER", "PCI_BUS_ID".into());
        set(MARKER, state.id().to_owned());
        if !run.token.0.is_empty() {
            set("TRAINMASTER_TOKEN", run.token.0.clone());
        }
        if let Some(user) = state.user() {
            let home = folder.display().to_string();
            for (key, value) in [("HOME", &home), ("USER", &user.name), ("LOGNAME", &user.name)] {
                set(key, value.clone());
            }
        }
        if run.environment.contains_key("TRAINMASTER_CHUNKS") {
            set("TRAINMASTER_UPLOAD_MS", upload.as_millis().to_string());
            // Each virtual server has its own disk, which the job's slots there share.
            environment.insert("TRAINMASTER_DATA_DIR".into(), folder.join("data").join(&placement.server).into());
        }
        environment.insert("TRAINMASTER_DEVICE_DIR".into(), state.devices().join(&placement.server).into());
        environment.insert("TRAINMASTER_CHECKPOINT_DIR".into(), folder.join("checkpoints").into());
        environment.insert("TRAINMASTER_DONE_FILE".into(), done_file(folder, *id).into());
        environment.into_iter().collect()
    }
}

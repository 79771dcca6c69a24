//! The agent: it connects plans, processes and time.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use tokio::{
    task::{JoinHandle, JoinSet, yield_now},
    time::{Instant, sleep, sleep_until},
};
use trainmaster_manager::{Daemon, Manager, Outbox, PlanAnswer, Snapshot};
use trainmaster_proto::v1;

use super::{
    LocalError, OnShutdown, Options, adopt,
    cluster::Cluster,
    command::Programs,
    fleet::{Action, Adopted, Exit, Failure, Fleet, Policy, plan::Resolve},
    gpus::Reader,
    launch::{self, Launcher, SlotLaunch},
    logs,
    measure::{self, Measured, Meter, Reading},
    process::{self, Handle, Watch},
    ranks::Ports,
    retain,
    slot::ProcessId,
    state::{Record, StateDir},
    user::RunAs,
};

/// Delay of the next measurement while a reading is in progress, or if measuring is off.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);
const LOCK_TRIES: u32 = 20;
const LOCK_WAIT: Duration = Duration::from_millis(25);

/// Runs the adapter until `shutdown` resolves. Attaches to the daemon, reconnects, and carries out its plans. Processes
/// continue while the daemon isn't reachable.
///
/// If the future is dropped, the adapter ends at once and leaves all processes running, as with [`OnShutdown::Keep`].
///
/// # Errors
/// The state folder can't be used or belongs to another adapter. All later errors are reported to the daemon, and the
/// adapter continues.
pub async fn run(
    cluster: Cluster,
    options: Options,
    daemon: Arc<dyn Daemon>,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), LocalError> {
    let state = lock(&options.state_dir, cluster.run_as().as_ref()).await?;
    let agent = Agent::new(cluster, options, state);
    let began = agent.began;
    trainmaster_manager::run(agent, began, daemon, shutdown).await;
    Ok(())
}

/// Opens the state folder. Retries while it is locked: a process that a killed adapter was just starting holds the lock
/// until it executes its program.
async fn lock(state_dir: &Path, run_as: Option<&RunAs>) -> Result<StateDir, LocalError> {
    for _ in 0..LOCK_TRIES {
        match StateDir::open(state_dir, run_as) {
            Err(LocalError::Locked { .. }) => sleep(LOCK_WAIT).await,
            other => return other,
        }
    }
    StateDir::open(state_dir, run_as)
}

/// A running process.
struct Running {
    handle: Handle,
    record: Record,
}

struct Agent {
    cluster: Arc<Cluster>,
    options: Options,
    state: StateDir,
    launcher: Launcher,
    fleet: Fleet,
    running: BTreeMap<ProcessId, Running>,
    /// Dropping it leaves the processes running.
    watches: JoinSet<(ProcessId, Exit)>,
    meter: Meter,
    /// `None` if devices are emulated.
    gpus: Option<Arc<Mutex<Reader>>>,
    /// Time of the next measurement.
    measure_at: Instant,
    /// Readings in progress, outside the main loop.
    readings: JoinSet<Reading>,
    /// As reported to the daemon.
    servers: Arc<BTreeMap<String, v1::Server>>,
    /// Time of the fleet's next step.
    next_step: Option<Duration>,
    /// Folders of active jobs at the last sweep for ended jobs.
    spared: BTreeSet<PathBuf>,
    sweeping: Option<JoinHandle<()>>,
    began: Instant,
    /// Whether the host ends, together with all processes.
    ending: bool,
}

impl Agent {
    fn new(cluster: Cluster, options: Options, state: StateDir) -> Self {
        let cluster = Arc::new(cluster);
        let policy = Policy {
            grace: cluster.grace(),
            first_delay: options.restart.first_delay,
            longest_delay: options.restart.longest_delay,
            steady: options.restart.steady,
            failures: options.restart.failures.max(1),
            settle: options.settle,
            claim: options.claim,
        };
        let mut running = BTreeMap::new();
        let mut watches = JoinSet::new();
        let mut adopted = Vec::new();
        let mut ports = Ports::default();
        for adopt::Found { record, handle, watch } in adopt::find(&state) {
            adopted.push(Adopted {
                id: record.id,
                name: record.name.clone(),
                placement: record.placement.clone(),
                token: record.token.clone(),
            });
            if let Some(port) = record.port {
                ports.adopt(record.id, port);
            }
            watches.spawn(watched(record.id, watch));
            running.insert(record.id, Running { handle, record });
        }
        if adopted.is_empty() {
            // No process books devices now. After a reboot the clock differs.
            state.clear_devices();
        }
        let programs = Programs::new(options.trainer_path.clone());
        let servers = cluster.servers().iter().map(|server| (server.name().to_owned(), server.to_wire())).collect();
        Self {
            servers: Arc::new(servers),
            launcher: Launcher { feed: options.feed.clone(), orphan_grace: options.orphan_grace, ports },
            fleet: Fleet::new(cluster.clone(), policy, Resolve::by(move |text| programs.resolve(text)), adopted),
            meter: Meter::new(cluster.clone()),
            gpus: (cluster.real_gpus() > 0).then(|| Arc::new(Mutex::new(Reader::start()))),
            measure_at: Instant::now(),
            readings: JoinSet::new(),
            cluster,
            options,
            state,
            running,
            watches,
            next_step: None,
            spared: BTreeSet::new(),
            sweeping: None,
            began: Instant::now(),
            ending: false,
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn start(&mut self, id: ProcessId) {
        let Some((name, run, placement)) = self.fleet.order(id) else { return };
        let order = SlotLaunch { id, name, run, placement };
        match self.launcher.start(&self.state, &self.cluster, &order) {
            Ok((record, handle, watch)) => {
                tracing::debug!(slot = %id, pid = handle.pid, server = placement.server, "started");
                self.watches.spawn(watched(id, watch));
                self.running.insert(id, Running { handle, record });
            }
            Err(error) => {
                let (now, name) = (self.now(), name.to_owned());
                if let Some(note) = self.fleet.not_started(now, id, error.to_string()) {
                    tracing::warn!(job = id.job, name, incarnation = id.incarnation, "{note}");
                }
            }
        }
    }

    fn ended(&mut self, id: ProcessId, exit: Exit, outbox: &mut Outbox) {
        let Some(Running { record, .. }) = self.running.remove(&id) else { return };
        self.state.remove(id);
        if !self.running.keys().any(|other| other.job == id.job) {
            self.launcher.ports.release(id.job);
        }
        measure::forget(&self.state.devices(), id, &record.placement);
        tracing::debug!(slot = %id, ?exit, "ended");
        let done = launch::done_file(&self.state.job(id.job, &record.name), id);
        // The name is enough: a program can only say so of itself.
        let exit = if exit == Exit::Unknown && done.symlink_metadata().is_ok() { Exit::Code(0) } else { exit };
        let said = logs::last_line(&record.log, record.log_start);
        let now = self.now();
        let failure = Failure { exit, said, log: Some(record.log) };
        if let Some(note) = self.fleet.exited(now, id, failure) {
            tracing::warn!(job = id.job, name = record.name, incarnation = id.incarnation, "{note}");
        }
        outbox.touch(now);
    }

    /// Reads the resource use of processes, outside the main loop because there may be many.
    fn measure(&mut self) {
        self.measure_at = Instant::now() + LONGEST_SLEEP;
        let slots = self.running.iter().map(|(id, running)| {
            let rests = self.fleet.order(*id).is_some_and(|(_, run, _)| run.idle.contains(&id.slot));
            let placement = running.record.placement.clone();
            (*id, Measured { group: running.handle.pid, placement, rests })
        });
        let (slots, cluster) = (slots.collect(), self.cluster.clone());
        let (state_id, devices) = (self.state.id().to_owned(), self.state.devices());
        let gpus = self.gpus.clone();
        self.readings.spawn_blocking(move || Reading::take(&state_id, &cluster, &devices, gpus.as_deref(), slots));
    }

    fn measured(&mut self, reading: Reading, outbox: &Outbox) {
        self.measure_at = Instant::now() + self.cluster.measure().unwrap_or(LONGEST_SLEEP);
        let servers = self.meter.compare(reading);
        if !outbox.measured(servers) {
            self.meter.forget_told();
        }
    }

    /// Removes the files of jobs that ended long ago. Runs outside the main loop, because checkpoints can be large.
    fn sweep(&mut self) {
        let (jobs, logs) = (self.state.jobs(), self.state.logs());
        let folders: BTreeSet<_> = self.fleet.active().map(|(id, name)| self.state.job(id, name)).collect();
        let sweeps = self.sweeping.as_ref().is_some_and(|last| !last.is_finished());
        if !self.fleet.knows_all() || sweeps || folders == self.spared {
            return;
        }
        self.spared.clone_from(&folders);
        let active_logs: BTreeSet<_> = self.fleet.active().map(|(id, name)| self.state.log(id, name)).collect();
        let retention = self.options.retention.clone();
        let sweep = move || retain::sweep(&jobs, &logs, &folders, &active_logs, &retention);
        self.sweeping = Some(tokio::task::spawn_blocking(sweep));
    }
}

#[async_trait]
impl Manager for Agent {
    fn name(&self) -> String {
        self.cluster.name().to_owned()
    }

    fn attached(&mut self, now: Duration) {
        self.fleet.attached(now);
    }

    fn detached(&mut self) {
        self.meter.forget_told();
        self.fleet.detached();
    }

    fn plan(&mut self, now: Duration, plan: v1::Plan) -> Vec<PlanAnswer> {
        let answers = self.fleet.plan(now, plan);
        self.sweep();
        answers
    }

    fn snapshot(&mut self, now: Duration) -> Snapshot {
        Snapshot { servers: self.servers.clone(), jobs: self.fleet.observe(now) }
    }

    fn told(&mut self) {
        self.fleet.forget_over();
    }

    async fn act(&mut self, now: Duration, outbox: &mut Outbox) -> Option<Duration> {
        if self.next_step.is_some_and(|at| now >= at) {
            outbox.touch(now);
        }
        loop {
            let step = self.fleet.step(self.now());
            self.next_step = step.wake;
            if step.actions.is_empty() {
                if self.ending && self.fleet.is_empty() {
                    // Ends the processes that they left outside their groups, before the daemon is told that they are
                    // gone.
                    process::end_marked(self.state.id(), |_| false);
                }
                return self.next_step;
            }
            outbox.touch(now);
            for action in step.actions {
                match action {
                    Action::Start { job, incarnation, slot } => {
                        self.start(ProcessId { job, incarnation, slot });
                        // A start takes milliseconds. The host has other work on this thread.
                        yield_now().await;
                    }
                    Action::Signal { job, incarnation, slot, signal } => {
                        let id = ProcessId { job, incarnation, slot };
                        if let Some(running) = self.running.get(&id) {
                            tracing::debug!(slot = %id, ?signal, "signalling");
                            process::signal(running.handle, signal);
                        }
                    }
                }
            }
        }
    }

    async fn stirred(&mut self, _: Duration, outbox: &mut Outbox) {
        tokio::select! {
            Some(Ok((id, exit))) = self.watches.join_next() => self.ended(id, exit, outbox),
            () = sleep_until(self.measure_at), if self.cluster.measure().is_some() => self.measure(),
            Some(Ok(reading)) = self.readings.join_next() => self.measured(reading, outbox),
            else => std::future::pending().await,
        }
    }

    fn ends_at_once(&self) -> bool {
        self.options.on_shutdown == OnShutdown::Keep
    }

    fn end(&mut self) {
        self.ending = true;
        self.fleet.end();
    }

    fn is_over(&self) -> bool {
        self.fleet.is_empty()
    }
}

async fn watched(id: ProcessId, watch: Watch) -> (ProcessId, Exit) {
    (id, watch.ended().await)
}

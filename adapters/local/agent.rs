//! The loop that ties plans, processes and time together.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::mpsc,
    task::{JoinHandle, JoinSet, yield_now},
    time::{Instant, sleep, sleep_until},
};
use trainmaster_proto::v1;

use super::{
    LocalError, OnShutdown, Options, adopt,
    cluster::Cluster,
    command::Programs,
    fleet::{Action, Adopted, Exit, Failure, Fleet, Policy},
    launch::{Launcher, Order},
    logs,
    measure::{self, Measured, Meter, Reading},
    process::{self, Handle, Watch},
    retain,
    slot::ProcessId,
    state::{Record, StateDir},
    user::RunAs,
};
use crate::attach::{Heard, Link, LinkError, Outbox, Picture};

/// Nothing is further away than this: time is looked at again then.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);
const LOCK_TRIES: u32 = 20;
const LOCK_WAIT: Duration = Duration::from_millis(25);
const LAST_WORD: Duration = Duration::from_millis(50);

/// Runs the adapter until `shutdown` resolves: attaches to the daemon, again whenever it comes back, and makes its
/// plans so. Processes go on while the daemon is away.
///
/// Dropping the future ends the adapter at once and leaves all processes running, as [`OnShutdown::Keep`] does.
///
/// # Errors
/// The state folder can't be used or belongs to another adapter, or the daemon's address is no address. Everything
/// that happens later is reported to the daemon and survived.
pub async fn run(
    cluster: Cluster,
    options: Options,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), LocalError> {
    let link = Link::new(&options.daemon, options.token.as_deref(), options.ca.as_deref())
        .map_err(|LinkError { address, problem }| LocalError::Daemon { address, problem })?;
    let state = lock(&options.state_dir, cluster.run_as()).await?;
    let (sender, mut heard) = mpsc::channel(16);
    let mut agent = Agent::new(cluster, options, state);
    let mut tasks = JoinSet::new();
    tasks.spawn(link.keep(sender));
    let mut shutdown = pin!(shutdown);
    let mut ending = false;
    loop {
        let wake = agent.act().await;
        if ending && agent.fleet.is_empty() {
            agent.finish().await;
            return Ok(());
        }
        tokio::select! {
            () = sleep_until(wake) => {}
            Some(heard) = heard.recv() => agent.hear(heard),
            Some(Ok((id, exit))) = agent.watches.join_next() => agent.ended(id, exit),
            () = sleep_until(agent.measure_at), if agent.cluster.measure().is_some() => agent.measure(),
            Some(Ok(reading)) = agent.readings.join_next() => agent.measured(reading),
            () = &mut shutdown, if !ending => {
                if agent.options.on_shutdown == OnShutdown::Keep {
                    return Ok(());
                }
                ending = true;
                agent.fleet.end();
            }
        }
    }
}

/// Opens the state folder. A process that a killed adapter was just starting holds the lock until it runs its program,
/// so a lock isn't believed at once.
async fn lock(state_dir: &Path, run_as: Option<&RunAs>) -> Result<StateDir, LocalError> {
    for _ in 0..LOCK_TRIES {
        match StateDir::open(state_dir, run_as) {
            Err(LocalError::Locked { .. }) => sleep(LOCK_WAIT).await,
            other => return other,
        }
    }
    StateDir::open(state_dir, run_as)
}

/// A process that runs.
struct Running {
    handle: Handle,
    record: Record,
}

struct Agent {
    cluster: Arc<Cluster>,
    options: Options,
    state: StateDir,
    programs: Programs,
    launcher: Launcher,
    fleet: Fleet,
    running: BTreeMap<ProcessId, Running>,
    /// Dropped with the agent, which leaves the processes running.
    watches: JoinSet<(ProcessId, Exit)>,
    meter: Meter,
    /// When to read the counters next.
    measure_at: Instant,
    /// Those that are being read, beside the loop.
    readings: JoinSet<Reading>,
    outbox: Outbox,
    /// As the daemon is told of them.
    servers: Arc<BTreeMap<String, v1::Server>>,
    /// When the fleet is to be asked again by itself.
    next_step: Option<Duration>,
    /// A full plan came: what it doesn't name has ended.
    knows_all: bool,
    /// The jobs whose files were spared when ended jobs were last looked for.
    spared: BTreeSet<PathBuf>,
    sweeping: Option<JoinHandle<()>>,
    began: Instant,
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
        for adopt::Found { record, handle, watch } in adopt::find(&state) {
            adopted.push(Adopted {
                id: record.id,
                name: record.name.clone(),
                placement: record.placement.clone(),
                token: record.token.clone(),
            });
            watches.spawn(watched(record.id, watch));
            running.insert(record.id, Running { handle, record });
        }
        if adopted.is_empty() {
            // Nobody books any more, and after a new start of the machine its clock is another one.
            state.clear_devices();
        }
        let servers = cluster.servers().iter().map(|server| (server.name().to_owned(), server.to_wire())).collect();
        Self {
            outbox: Outbox::new(cluster.name().to_owned()),
            servers: Arc::new(servers),
            programs: Programs::new(options.trainer_path.clone()),
            launcher: Launcher { feed: options.feed.clone(), orphan_grace: options.orphan_grace },
            fleet: Fleet::new(cluster.clone(), policy, adopted),
            meter: Meter::new(cluster.clone()),
            measure_at: Instant::now(),
            readings: JoinSet::new(),
            cluster,
            options,
            state,
            running,
            watches,
            next_step: None,
            knows_all: false,
            spared: BTreeSet::new(),
            sweeping: None,
            began: Instant::now(),
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Does what there is to do, tells the daemon, and says when to look again.
    async fn act(&mut self) -> Instant {
        let now = self.now();
        if self.next_step.is_some_and(|at| now >= at) {
            self.outbox.touch(now);
        }
        loop {
            let step = self.fleet.step(self.now());
            self.next_step = step.wake;
            if step.actions.is_empty() {
                break;
            }
            self.outbox.touch(now);
            for action in step.actions {
                match action {
                    Action::Start { job, incarnation, slot } => {
                        self.start(ProcessId { job, incarnation, slot });
                        // Starting takes milliseconds; the host has other work on this thread.
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
        let now = self.now();
        if self.outbox.flush(now, || picture(&self.servers, &self.fleet, now)) {
            self.fleet.forget_over();
        }
        let wake = self.next_step.into_iter().chain(self.outbox.due()).min();
        let wake = wake.unwrap_or(LONGEST_SLEEP).min(now.saturating_add(LONGEST_SLEEP));
        self.began + wake
    }

    fn hear(&mut self, heard: Heard) {
        let now = self.now();
        match heard {
            Heard::Opened(stream) => {
                self.meter.forget_told();
                self.outbox.open(stream, picture(&self.servers, &self.fleet, now));
            }
            Heard::Attached => {
                tracing::info!(daemon = self.options.daemon, "attached");
                self.fleet.attached(now);
            }
            Heard::Lost => {
                self.outbox.close();
                self.fleet.detached();
            }
            Heard::Plan(plan) => {
                self.knows_all |= plan.full;
                let decision = plan.decision;
                let answers = self.fleet.plan(now, plan, &|text| self.programs.resolve(text));
                self.outbox.answer(decision, answers);
                self.outbox.touch(now);
                self.sweep();
            }
        }
    }

    fn start(&mut self, id: ProcessId) {
        let Some((name, run, placement)) = self.fleet.order(id) else { return };
        let order = Order { id, name, run, placement };
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

    fn ended(&mut self, id: ProcessId, exit: Exit) {
        let Some(Running { record, .. }) = self.running.remove(&id) else { return };
        self.state.remove(id);
        measure::forget(&self.state.devices(), id, &record.placement);
        tracing::debug!(slot = %id, ?exit, "ended");
        let detail = detail(&record.log, record.log_start);
        let now = self.now();
        if let Some(note) = self.fleet.exited(now, id, Failure { exit, detail }) {
            tracing::warn!(job = id.job, name = record.name, incarnation = id.incarnation, "{note}");
        }
        self.outbox.touch(now);
    }

    /// Reads what processes have used so far, beside the loop: there may be many.
    fn measure(&mut self) {
        self.measure_at = Instant::now() + LONGEST_SLEEP;
        let slots = self.running.iter().map(|(id, running)| {
            let rests = self.fleet.order(*id).is_some_and(|(_, run, _)| run.idle.contains(&id.slot));
            let placement = running.record.placement.clone();
            (*id, Measured { group: running.handle.pid, placement, rests })
        });
        let (slots, cluster) = (slots.collect(), self.cluster.clone());
        let (state_id, devices) = (self.state.id().to_owned(), self.state.devices());
        self.readings.spawn_blocking(move || Reading::take(&state_id, &cluster, &devices, slots));
    }

    fn measured(&mut self, reading: Reading) {
        self.measure_at = Instant::now() + self.cluster.measure().unwrap_or(LONGEST_SLEEP);
        let servers = self.meter.compare(reading);
        if !self.outbox.measured(servers) {
            self.meter.forget_told();
        }
    }

    /// Removes the files of jobs that ended long ago, beside the loop: checkpoints can be large.
    fn sweep(&mut self) {
        let (jobs, logs) = (self.state.jobs(), self.state.logs());
        let folders: BTreeSet<_> = self.fleet.active().map(|(id, name)| self.state.job(id, name)).collect();
        let sweeps = self.sweeping.as_ref().is_some_and(|last| !last.is_finished());
        if !self.knows_all || sweeps || folders == self.spared {
            return;
        }
        self.spared.clone_from(&folders);
        let names: BTreeSet<_> = self.fleet.active().map(|(_, name)| logs.join(name)).collect();
        let retention = self.options.retention.clone();
        let sweep = move || retain::sweep(&jobs, &logs, &folders, &names, &retention);
        self.sweeping = Some(tokio::task::spawn_blocking(sweep));
    }

    /// All processes are gone; what they left outside their groups goes with them.
    async fn finish(&mut self) {
        process::end_marked(self.state.id(), |_| false);
        let now = self.now();
        self.outbox.touch(now);
        self.outbox.flush(now.saturating_add(LONGEST_SLEEP), || picture(&self.servers, &self.fleet, now));
        // The last word needs a moment to get out.
        sleep(LAST_WORD).await;
    }
}

fn picture(servers: &Arc<BTreeMap<String, v1::Server>>, fleet: &Fleet, now: Duration) -> Picture {
    Picture { servers: servers.clone(), jobs: fleet.observe(now) }
}

async fn watched(id: ProcessId, watch: Watch) -> (ProcessId, Exit) {
    (id, watch.ended().await)
}

fn detail(log: &Path, start: u64) -> String {
    match logs::last_line(log, start) {
        Some(line) => format!("log {}: {line:?}", log.display()),
        None => format!("log {}, empty", log.display()),
    }
}

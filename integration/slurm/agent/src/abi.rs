//! Interface between the plugin and its static library, the agent, beside that of trainmaster.h. agent.h is made from
//! src/abi.rs.
//!
//! An agent is used by one thread. Texts are copied; other pointers may not be NULL, but for the agent that is closed.
//! An order's texts are valid until the next round. No function panics, prints or exits.

use std::{
    ffi::{CString, c_char},
    path::PathBuf,
    ptr::null,
    time::{Duration, Instant},
};

use trainmaster::{guard::catch, text::trainmaster_c_string};
use trainmaster_adapters::slurm::{
    call::{Action, SlurmCall, SlurmError},
    seen::{Job, Memory, Node, Observation, Partition},
};

use crate::{
    agent::{Agent, Folders},
    log,
};

/// After a second panic within this time the agent pauses, so that jobs go back to Slurm.
const AGAIN: Duration = Duration::from_secs(600);
/// Wait before an agent that couldn't be opened after a panic is opened again.
const TRY_AGAIN: Duration = Duration::from_secs(30);

/// The used fields of node_info_t. Memory and disk are in MiB.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs)] // as in Slurm
pub struct CNode<'a> {
    pub name: trainmaster_c_string<'a>,
    pub features: trainmaster_c_string<'a>,
    pub gres: trainmaster_c_string<'a>,
    pub gres_drain: trainmaster_c_string<'a>,
    pub gres_used: trainmaster_c_string<'a>,
    pub memory: u64,
    pub disk: u64,
    pub used_memory: u64,
    pub state: u32,
    pub cpus: u32,
    pub threads: u32,
    pub used_cpus: u32,
    /// NO_VAL if it isn't known.
    pub cpu_load: u32,
}

/// The used fields of partition_info_t.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs)] // as in Slurm
pub struct CPartition<'a> {
    pub name: trainmaster_c_string<'a>,
    pub nodes: trainmaster_c_string<'a>,
    /// def_mem_per_cpu as Slurm encodes it, with its flag.
    pub default_memory: u64,
    /// Whether jobs can start.
    pub up: bool,
}

/// The used fields of slurm_job_info_t.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs)] // as in Slurm
pub struct CJob<'a> {
    pub name: trainmaster_c_string<'a>,
    pub user: trainmaster_c_string<'a>,
    pub account: trainmaster_c_string<'a>,
    pub partition: trainmaster_c_string<'a>,
    pub comment: trainmaster_c_string<'a>,
    pub admin_comment: trainmaster_c_string<'a>,
    /// The reason of the job's state, in squeue's spelling.
    pub reason: trainmaster_c_string<'a>,
    pub nodes: trainmaster_c_string<'a>,
    pub batch_host: trainmaster_c_string<'a>,
    pub tres: trainmaster_c_string<'a>,
    pub tres_per_job: trainmaster_c_string<'a>,
    pub start: i64,
    pub id: u32,
    pub state: u32,
    pub priority: u32,
    pub exit: u32,
    /// For a component of a heterogeneous job: its leader's id. 0 for other jobs.
    pub leader: u32,
    /// The component's number.
    pub component: u32,
}

/// The action for a job.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CAction {
    /// slurm_update_job.
    Update,
    /// slurm_requeue.
    Requeue,
    /// slurm_kill_job: sends SIGTERM, and SIGKILL after KillWait.
    Cancel,
}

/// A call of Slurm's API. An update leaves fields with -1 or NULL unchanged.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs)] // as in Slurm
pub struct COrder {
    pub job: u32,
    pub action: CAction,
    pub min_nodes: i64,
    pub max_nodes: i64,
    pub tasks: i64,
    pub tasks_per_node: i64,
    pub cpus_per_task: i64,
    pub cpus: i64,
    pub cpus_per_node: i64,
    pub priority: i64,
    pub begin: i64,
    /// pn_min_memory as Slurm encodes it, with its flag. 0 leaves the field unchanged.
    pub memory: u64,
    pub tres_per_node: *const c_char,
    pub tres_per_job: *const c_char,
    pub req_nodes: *const c_char,
    pub admin_comment: *const c_char,
}

/// An open agent.
#[derive(Debug)]
pub struct Handle {
    folders: Folders,
    agent: Option<Agent>,
    panicked: Option<Instant>,
    /// Whether it was the second panic. Then the agent continues in mode `paused`.
    again: bool,
    /// Time of the last opening, or of the last attempt.
    tried: Instant,
    seen: Observation,
    loading: Instant,
    orders: Vec<SlurmCall>,
    /// The texts to which the orders' pointers point.
    texts: Vec<CString>,
    told: Vec<COrder>,
}

impl Handle {
    /// Runs a part of a round. After a panic the agent continues from its journal. After a second one it pauses.
    fn guarded<T: Default>(&mut self, what: impl FnOnce(&mut Agent, &Observation) -> T) -> T {
        let Some(agent) = &mut self.agent else { return T::default() };
        match catch(|| what(agent, &self.seen)) {
            Ok(done) => done,
            Err(words) => {
                tracing::error!("panicked: {words}");
                self.orders.clear();
                self.recover();
                T::default()
            }
        }
    }

    fn recover(&mut self) {
        // Its port and sockets have to be free first.
        let _ = catch(|| drop(self.agent.take()));
        self.again = self.panicked.replace(Instant::now()).is_some_and(|at| at.elapsed() < AGAIN);
        self.reopen();
    }

    /// Opens the agent from its journal after a panic.
    fn reopen(&mut self) {
        let again = self.again;
        self.tried = Instant::now();
        let folders = self.folders.clone();
        let opened = catch(|| {
            let mut opened = open(&folders);
            if again && let Ok(agent) = &mut opened {
                agent.pause();
            }
            opened
        });
        match opened {
            Ok(Ok(agent)) if again => {
                tracing::error!("paused after a second panic: all jobs go back to Slurm as they were submitted");
                self.agent = Some(agent);
            }
            Ok(Ok(agent)) => {
                tracing::error!("going on from the journal after a panic");
                self.agent = Some(agent);
            }
            Ok(Err(error)) => {
                tracing::error!(%error, "can't go on after a panic; jobs start when their leases run out")
            }
            Err(words) => {
                tracing::error!("can't go on after a panic; jobs start when their leases run out: {words}")
            }
        }
    }
}

/// Opens the agent. Retries while the port is in use, because a port may not be free at once after the last agent
/// ended.
fn open(folders: &Folders) -> Result<Agent, String> {
    for _ in 0..20 {
        match Agent::open(folders) {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                std::thread::sleep(Duration::from_millis(100));
            }
            result => return result.map_err(|error| error.to_string()),
        }
    }
    Agent::open(folders).map_err(|error| error.to_string())
}

/// Reads trainmaster.toml at `config` and restores the journal under `state`. Returns NULL after an error, which it
/// logs. `log` writes a line to the log; any thread may call it.
#[unsafe(no_mangle)]
pub extern "C" fn trainmaster_agent_open(
    config: trainmaster_c_string<'_>,
    state: trainmaster_c_string<'_>,
    log: Option<extern "C" fn(is_error: bool, line: *const c_char)>,
) -> Option<Box<Handle>> {
    // First, because what catches panics has to know the log's own treatment of them.
    log.into_iter().for_each(log::start);
    let opened = catch(|| {
        let folders = Folders { config: PathBuf::from(config.to_text()), state: PathBuf::from(state.to_text()) };
        match open(&folders) {
            Ok(agent) => Some(Box::new(Handle {
                folders,
                agent: Some(agent),
                panicked: None,
                again: false,
                tried: Instant::now(),
                seen: Observation::default(),
                loading: Instant::now(),
                orders: Vec::new(),
                texts: Vec::new(),
                told: Vec::new(),
            })),
            Err(error) => {
                tracing::error!("{error}; training jobs start when their leases run out");
                None
            }
        }
    });
    opened.unwrap_or_else(|words| {
        tracing::error!("panicked: {words}");
        None
    })
}

/// Writes what is left, and frees the agent.
#[unsafe(no_mangle)]
pub extern "C" fn trainmaster_agent_close(agent: Option<Box<Handle>>) {
    let _ = catch(|| {
        if let Some(mut handle) = agent {
            handle.guarded(|agent, _| agent.finish());
        }
    });
}

/// Returns the milliseconds until the next round, unless the thread is woken earlier.
#[unsafe(no_mangle)]
pub extern "C" fn trainmaster_agent_wait(agent: &mut Handle) -> i32 {
    if agent.agent.is_none() && agent.tried.elapsed() > TRY_AGAIN {
        agent.reopen();
    }
    let wait = agent.guarded(|agent, _| agent.wait().as_millis() as i32);
    if agent.agent.is_none() { TRY_AGAIN.as_millis() as i32 } else { wait }
}

/// Begins a round. A round is these calls, in this order: begin; look, after the plugin has loaded Slurm's data; node,
/// partition and job for every item of each kind that changed; round; answered for each order; finish.
#[unsafe(no_mangle)]
pub extern "C" fn trainmaster_agent_begin(agent: &mut Handle) {
    agent.loading = Instant::now();
}

/// Says at which Unix time Slurm was looked at, and which kinds of items changed: all of a kind follow.
#[unsafe(no_mangle)]
pub extern "C" fn trainmaster_agent_look(agent: &mut Handle, now: i64, nodes: bool, partitions: bool, jobs: bool) {
    agent.seen.at = now;
    if nodes {
        agent.seen.nodes.clear();
    }
    if partitions {
        agent.seen.partitions.clear();
    }
    if jobs {
        agent.seen.jobs.clear();
    }
}

/// Shows a node.
#[unsafe(no_mangle)]
pub extern "C" fn trainmaster_agent_node(agent: &mut Handle, node: &CNode<'_>) {
    agent.seen.nodes.push(Node {
        name: node.name.to_text(),
        state: node.state,
        cpus: node.cpus,
        threads: node.threads,
        memory: node.memory,
        disk: node.disk,
        features: node.features.to_text(),
        gres: node.gres.to_text(),
        gres_drain: node.gres_drain.to_text(),
        gres_used: node.gres_used.to_text(),
        used_cpus: node.used_cpus,
        used_memory: node.used_memory,
        // NO_VAL and INFINITE are the largest numbers.
        load: (node.cpu_load < 0xffff_fffe).then_some(node.cpu_load),
    });
}

/// Shows a partition.
#[unsafe(no_mangle)]
pub extern "C" fn trainmaster_agent_partition(agent: &mut Handle, partition: &CPartition<'_>) {
    agent.seen.partitions.push(Partition {
        name: partition.name.to_text(),
        nodes: partition.nodes.to_text(),
        up: partition.up,
        default_memory: Memory::of(partition.default_memory),
    });
}

/// Shows a job.
#[unsafe(no_mangle)]
pub extern "C" fn trainmaster_agent_job(agent: &mut Handle, job: &CJob<'_>) {
    agent.seen.jobs.push(Job {
        id: job.id,
        component: (job.leader > 0).then_some((job.leader, job.component)),
        name: job.name.to_text(),
        user: job.user.to_text(),
        account: job.account.to_text(),
        partition: job.partition.to_text(),
        comment: job.comment.to_text(),
        admin_comment: job.admin_comment.to_text(),
        state: job.state,
        reason: job.reason.to_text(),
        priority: job.priority,
        start: job.start,
        nodes: job.nodes.to_text(),
        gres: Vec::new(),
        batch_host: job.batch_host.to_text(),
        tres: job.tres.to_text(),
        tres_per_job: job.tres_per_job.to_text(),
        exit: job.exit,
    });
}

/// Shows the next entry of gres_detail_str of the job that was shown last.
#[unsafe(no_mangle)]
pub extern "C" fn trainmaster_agent_job_gres(agent: &mut Handle, gres: trainmaster_c_string<'_>) {
    if let Some(job) = agent.seen.jobs.last_mut() {
        job.gres.push(gres.to_text());
    }
}

/// Returns the number of orders of this round, and points `orders` to them.
#[unsafe(no_mangle)]
pub extern "C" fn trainmaster_agent_round(agent: &mut Handle, orders: &mut *const COrder) -> usize {
    let loading = agent.loading.elapsed();
    agent.orders = agent.guarded(|agent, seen| agent.round(seen, loading));
    agent.texts.clear();
    agent.told.clear();
    for order in &agent.orders {
        agent.told.push(told(order, &mut agent.texts));
    }
    *orders = agent.told.as_ptr();
    agent.told.len()
}

fn told(order: &SlurmCall, texts: &mut Vec<CString>) -> COrder {
    let mut told = COrder {
        job: order.id,
        action: CAction::Update,
        min_nodes: -1,
        max_nodes: -1,
        tasks: -1,
        tasks_per_node: -1,
        cpus_per_task: -1,
        cpus: -1,
        cpus_per_node: -1,
        priority: -1,
        begin: -1,
        memory: Memory::Unset.raw(),
        tres_per_node: null(),
        tres_per_job: null(),
        req_nodes: null(),
        admin_comment: null(),
    };
    let update = match &order.action {
        Action::Update(update) => update,
        Action::Requeue => return COrder { action: CAction::Requeue, ..told },
        Action::Cancel => return COrder { action: CAction::Cancel, ..told },
    };
    let number = |value: Option<u32>| value.map_or(-1, i64::from);
    // A CString's text doesn't move when the list that holds it moves.
    let mut text = |value: &Option<String>| {
        value.as_ref().map_or(null(), |text| {
            texts.push(CString::new(text.replace('\0', " ")).unwrap_or_default());
            texts[texts.len() - 1].as_ptr()
        })
    };
    told.min_nodes = number(update.nodes.map(|nodes| nodes.0));
    told.max_nodes = number(update.nodes.map(|nodes| nodes.1));
    told.tasks = number(update.tasks);
    told.tasks_per_node = number(update.tasks_per_node);
    told.cpus_per_task = number(update.cpus_per_task);
    told.cpus = number(update.cpus);
    told.cpus_per_node = number(update.cpus_per_node);
    told.priority = number(update.priority);
    told.memory = update.memory.raw();
    told.begin = update.begin.unwrap_or(-1);
    told.tres_per_node = text(&update.tres_per_node);
    told.tres_per_job = text(&update.tres_per_job);
    told.req_nodes = text(&update.req_nodes);
    told.admin_comment = text(&update.admin_comment);
    told
}

/// Reports what Slurm answered to an order, by its index in this round's orders: `error` is 0, or Slurm's error number
/// with its text in `words`.
#[unsafe(no_mangle)]
pub extern "C" fn trainmaster_agent_answered(
    agent: &mut Handle,
    order: usize,
    error: u32,
    words: trainmaster_c_string<'_>,
) {
    let Some(order) = agent.orders.get(order).cloned() else { return };
    let answer = if error == 0 { Ok(()) } else { Err(SlurmError { code: error, text: words.to_text() }) };
    agent.guarded(|agent, _| agent.answered(&order, answer));
}

/// Ends the round.
#[unsafe(no_mangle)]
pub extern "C" fn trainmaster_agent_finish(agent: &mut Handle) {
    agent.guarded(|agent, _| agent.finish());
}

//! Interface between the plugin and its static library, the agent. agent.h is made from src/abi.rs.
//!
//! An agent is used by one thread. Texts are copied, end with a zero byte and may be NULL; other pointers may not, but
//! for the agent that is closed. An order's texts are valid until the next round. No function panics, prints or exits.

#![allow(clippy::missing_safety_doc)] // above, once for all functions

use std::{
    ffi::{CStr, CString, c_char},
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    time::{Duration, Instant},
};

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
pub struct CNode {
    pub name: *const c_char,
    pub features: *const c_char,
    pub gres: *const c_char,
    pub gres_drain: *const c_char,
    pub gres_used: *const c_char,
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
pub struct CPartition {
    pub name: *const c_char,
    pub nodes: *const c_char,
    /// def_mem_per_cpu as Slurm encodes it, with its flag.
    pub default_memory: u64,
    /// Whether jobs can start.
    pub up: bool,
}

/// The used fields of slurm_job_info_t.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs)] // as in Slurm
pub struct CJob {
    pub name: *const c_char,
    pub user: *const c_char,
    pub account: *const c_char,
    pub partition: *const c_char,
    pub comment: *const c_char,
    pub admin_comment: *const c_char,
    /// The reason of the job's state, in squeue's spelling.
    pub reason: *const c_char,
    pub nodes: *const c_char,
    pub batch_host: *const c_char,
    pub tres: *const c_char,
    pub tres_per_job: *const c_char,
    /// gres_detail_str.
    pub gres: *const *const c_char,
    pub gres_count: usize,
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
        if let Ok(done) = catch_unwind(AssertUnwindSafe(|| what(agent, &self.seen))) {
            return done;
        }
        self.orders.clear();
        self.recover();
        T::default()
    }

    fn recover(&mut self) {
        // Its port and sockets have to be free first.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(self.agent.take())));
        self.again = self.panicked.replace(Instant::now()).is_some_and(|at| at.elapsed() < AGAIN);
        self.reopen();
    }

    /// Opens the agent from its journal after a panic.
    fn reopen(&mut self) {
        let again = self.again;
        self.tried = Instant::now();
        let folders = self.folders.clone();
        let opened = catch_unwind(|| {
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
            Err(_) => tracing::error!("can't go on after a panic; jobs start when their leases run out"),
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

/// # Safety
/// A C string or NULL.
unsafe fn owned(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: as promised by the caller.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Reads trainmaster.toml at `config` and restores the journal under `state`. Returns NULL after an error, which it
/// logs. `log` writes a line to the log; any thread may call it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_agent_open(
    config: *const c_char,
    state: *const c_char,
    log: Option<extern "C" fn(is_error: bool, line: *const c_char)>,
) -> *mut Handle {
    let opened = catch_unwind(|| {
        log.into_iter().for_each(log::start);
        // SAFETY: as promised by the caller.
        let (config, state) = unsafe { (owned(config), owned(state)) };
        let folders = Folders { config: PathBuf::from(config), state: PathBuf::from(state) };
        match open(&folders) {
            Ok(agent) => Box::into_raw(Box::new(Handle {
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
                std::ptr::null_mut()
            }
        }
    });
    opened.unwrap_or(std::ptr::null_mut())
}

/// Writes what is left, and frees the agent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_agent_close(agent: *mut Handle) {
    if agent.is_null() {
        return;
    }
    let _ = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: it came from `trainmaster_agent_open` and isn't used again.
        let mut handle = unsafe { Box::from_raw(agent) };
        handle.guarded(|agent, _| agent.finish());
    }));
}

/// Returns the milliseconds until the next round, unless the thread is woken earlier.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_agent_wait(agent: *mut Handle) -> i32 {
    // SAFETY: as promised by the caller.
    let handle = unsafe { &mut *agent };
    if handle.agent.is_none() && handle.tried.elapsed() > TRY_AGAIN {
        handle.reopen();
    }
    let wait = handle.guarded(|agent, _| agent.wait().as_millis() as i32);
    if handle.agent.is_none() { TRY_AGAIN.as_millis() as i32 } else { wait }
}

/// Begins a round. A round is these calls, in this order: begin; look, after the plugin has loaded Slurm's data; node,
/// partition and job for every item of each kind that changed; round; answered for each order; finish.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_agent_begin(agent: *mut Handle) {
    // SAFETY: as promised by the caller.
    unsafe { (*agent).loading = Instant::now() };
}

/// Says at which Unix time Slurm was looked at, and which kinds of items changed: all of a kind follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_agent_look(
    agent: *mut Handle,
    now: i64,
    nodes: bool,
    partitions: bool,
    jobs: bool,
) {
    // SAFETY: as promised by the caller.
    let handle = unsafe { &mut *agent };
    handle.seen.at = now;
    if nodes {
        handle.seen.nodes.clear();
    }
    if partitions {
        handle.seen.partitions.clear();
    }
    if jobs {
        handle.seen.jobs.clear();
    }
}

/// Shows a node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_agent_node(agent: *mut Handle, node: *const CNode) {
    // SAFETY: as promised by the caller.
    let (handle, node) = unsafe { (&mut *agent, &*node) };
    // SAFETY: its texts are C strings or NULL.
    let node = unsafe {
        Node {
            name: owned(node.name),
            state: node.state,
            cpus: node.cpus,
            threads: node.threads,
            memory: node.memory,
            disk: node.disk,
            features: owned(node.features),
            gres: owned(node.gres),
            gres_drain: owned(node.gres_drain),
            gres_used: owned(node.gres_used),
            used_cpus: node.used_cpus,
            used_memory: node.used_memory,
            // NO_VAL and INFINITE are the largest numbers.
            load: (node.cpu_load < 0xffff_fffe).then_some(node.cpu_load),
        }
    };
    handle.seen.nodes.push(node);
}

/// Shows a partition.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_agent_partition(agent: *mut Handle, partition: *const CPartition) {
    // SAFETY: as promised by the caller.
    let (handle, partition) = unsafe { (&mut *agent, &*partition) };
    // SAFETY: its texts are C strings or NULL.
    let (name, nodes) = unsafe { (owned(partition.name), owned(partition.nodes)) };
    let default_memory = Memory::of(partition.default_memory);
    handle.seen.partitions.push(Partition { name, nodes, up: partition.up, default_memory });
}

/// Shows a job.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_agent_job(agent: *mut Handle, job: *const CJob) {
    // SAFETY: as promised by the caller.
    let (handle, job) = unsafe { (&mut *agent, &*job) };
    // SAFETY: its texts are C strings or NULL, and `gres` has `gres_count` of them.
    let job = unsafe {
        Job {
            id: job.id,
            component: (job.leader > 0).then_some((job.leader, job.component)),
            name: owned(job.name),
            user: owned(job.user),
            account: owned(job.account),
            partition: owned(job.partition),
            comment: owned(job.comment),
            admin_comment: owned(job.admin_comment),
            state: job.state,
            reason: owned(job.reason),
            priority: job.priority,
            start: job.start,
            nodes: owned(job.nodes),
            gres: (0..job.gres_count).map(|at| owned(*job.gres.add(at))).collect(),
            batch_host: owned(job.batch_host),
            tres: owned(job.tres),
            tres_per_job: owned(job.tres_per_job),
            exit: job.exit,
        }
    };
    handle.seen.jobs.push(job);
}

/// Returns the number of orders of this round, and points `orders` to them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_agent_round(agent: *mut Handle, orders: *mut *const COrder) -> usize {
    // SAFETY: as promised by the caller.
    let handle = unsafe { &mut *agent };
    let loading = handle.loading.elapsed();
    handle.orders = handle.guarded(|agent, seen| agent.round(seen, loading));
    handle.texts.clear();
    handle.told.clear();
    for order in &handle.orders {
        handle.told.push(told(order, &mut handle.texts));
    }
    // SAFETY: as promised by the caller.
    unsafe { *orders = handle.told.as_ptr() };
    handle.told.len()
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
        tres_per_node: std::ptr::null(),
        tres_per_job: std::ptr::null(),
        req_nodes: std::ptr::null(),
        admin_comment: std::ptr::null(),
    };
    let update = match &order.action {
        Action::Update(update) => update,
        Action::Requeue => return COrder { action: CAction::Requeue, ..told },
        Action::Cancel => return COrder { action: CAction::Cancel, ..told },
    };
    let number = |value: Option<u32>| value.map_or(-1, i64::from);
    // A CString's text doesn't move when the list that holds it moves.
    let mut text = |value: &Option<String>| {
        value.as_ref().map_or(std::ptr::null(), |text| {
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
pub unsafe extern "C" fn trainmaster_agent_answered(
    agent: *mut Handle,
    order: usize,
    error: u32,
    words: *const c_char,
) {
    // SAFETY: as promised by the caller.
    let (handle, words) = unsafe { (&mut *agent, owned(words)) };
    let Some(order) = handle.orders.get(order).cloned() else { return };
    let answer = if error == 0 { Ok(()) } else { Err(SlurmError { code: error, text: words }) };
    handle.guarded(|agent, _| agent.answered(&order, answer));
}

/// Ends the round.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_agent_finish(agent: *mut Handle) {
    // SAFETY: as promised by the caller.
    let handle = unsafe { &mut *agent };
    handle.guarded(|agent, _| agent.finish());
}

//! What a scheduler knows: itself, its jobs, its servers. And which library this is.

use std::ffi::{CStr, c_char};

use trainmaster_core::{Job, JobId, Mode, Scheduler, Server, Shape, State, Time, engines, job::Phase};

use crate::{
    borrow::{self, grows},
    error::{Failure, trainmaster_error as Code},
    event::{trainmaster_mode, trainmaster_phase},
    guard, owned,
    plan::{Writer, stride},
    reason::trainmaster_reason,
    scheduler::trainmaster_scheduler,
    text::{trainmaster_message, trainmaster_string},
};

/// The ABI that this header describes. It grows with each addition; what was there stays as it is: functions, numbers, and
/// the fields of structs, which are only ever added at the end.
pub const TRAINMASTER_ABI_VERSION: u32 = 1;

/// A time that never comes.
pub const TRAINMASTER_NEVER: i64 = i64::MAX;

/// What is true of a scheduler; added up in `flags` of struct trainmaster_status.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_status_flag {
    /// A panic was caught in the midst of a change: restore it from its journal.
    Poisoned = 1,
    /// The engine failed so often in a row that the fallback decides.
    Fallback = 2,
    /// A decision's ticket is open.
    Deciding = 4,
    /// A manager is telling everything that it has.
    Syncing = 8,
    /// A journal is kept.
    Journal = 16,
}

/// A scheduler as it is now.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_status {
    /// sizeof(struct trainmaster_status); set it before the call.
    pub size: u32,
    /// Sum of TRAINMASTER_STATUS_FLAG_*.
    pub flags: u32,
    /// The time of the last event or call, in milliseconds; the least there is before the first.
    pub now: i64,
    /// When the next decision is wanted; TRAINMASTER_NEVER while nothing happens. It may have passed.
    pub due: i64,
    /// When the last one was committed; TRAINMASTER_NEVER if none was since the engine was chosen.
    pub decided_at: i64,
    /// The term of the host in charge.
    pub term: u64,
    /// The last decision's number.
    pub decision: u64,
    /// Active jobs.
    pub jobs: u64,
    /// Servers that are there.
    pub servers: u64,
    /// Records of the journal that wait for trainmaster_scheduler_drain_journal().
    pub records: u64,
    /// One of TRAINMASTER_MODE_*.
    pub mode: u32,
    /// 0.
    pub reserved: u32,
    /// The engine in charge. Belongs to the library, as long as that is loaded.
    pub engine: trainmaster_string,
}

/// Everything about an active job.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_job_status {
    /// Set by the library: as much of the struct is there. What your header has beyond it isn't.
    pub size: u32,
    /// What the manager saw it do: one of TRAINMASTER_PHASE_*.
    pub phase: u32,
    /// Its number.
    pub job: u64,
    /// Its name.
    pub name: trainmaster_string,
    /// When it was submitted.
    pub arrival: i64,
    /// When it first ran; or TRAINMASTER_NEVER.
    pub started: i64,
    /// What the plan gives it.
    pub planned_workers: u32,
    /// Likewise.
    pub planned_servers: u32,
    /// What the manager was told to give it.
    pub issued_workers: u32,
    /// Likewise.
    pub issued_servers: u32,
    /// What the manager was seen to give it.
    pub observed_workers: u32,
    /// Likewise.
    pub observed_servers: u32,
    /// The incarnation that is to run; 0 before the first.
    pub incarnation: u32,
    /// Changes in place of it.
    pub revision: u32,
    /// Why it doesn't run, or has less than planned; NULL: there is no reason.
    pub reason: *const trainmaster_reason,
    /// Steps done.
    pub step: u64,
    /// Steps in an epoch.
    pub steps_per_epoch: u64,
    /// Whole epochs done.
    pub epoch: u32,
    /// 1: a person holds it.
    pub held: u32,
    /// The last loss that was reported, or not a number.
    pub loss: f64,
    /// The last accuracy that was reported, or not a number.
    pub accuracy: f64,
    /// Steps per second over the last report, or not a number.
    pub speed: f64,
    /// What a restart costs, in milliseconds.
    pub restart_cost_ms: i64,
    /// Times it changed shape while it ran.
    pub rescales: u32,
    /// Refusals in a row.
    pub refusals: u32,
    /// Reports that were ignored as nonsense.
    pub ignored_reports: u64,
}

/// Active jobs, in the order of their submission. Yours; free it with trainmaster_jobs_free(). Nothing changes in it, and it
/// outlives its scheduler.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_jobs {
    /// Set by the library: as much of the struct is there. What your header has beyond it isn't.
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// The first.
    pub data: *const trainmaster_job_status,
    /// How many.
    pub count: u64,
    /// Bytes from one to the next.
    pub stride: u64,
}

/// What becomes of one resource of a server, in its units (see struct trainmaster_amount). Never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_use {
    /// The resource.
    pub resource: trainmaster_string,
    /// What the server has, devices included.
    pub capacity: i64,
    /// What other work uses of it.
    pub foreign: i64,
    /// What the plan gives to jobs.
    pub planned: i64,
    /// What is issued to jobs or seen in use, the larger of both.
    pub charged: i64,
}

/// A server that is there.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_server_status {
    /// Set by the library: as much of the struct is there. What your header has beyond it isn't.
    pub size: u32,
    /// 1: it takes nothing new.
    pub draining: u32,
    /// Its name.
    pub name: trainmaster_string,
    /// The first of its resources.
    pub uses: *const trainmaster_use,
    /// How many.
    pub uses_count: u64,
    /// Bytes from one to the next.
    pub uses_stride: u64,
}

/// Servers, in the order in which they were first named. Yours; free it with trainmaster_servers_free(). Nothing changes in
/// it, and it outlives its scheduler.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_servers {
    /// Set by the library: as much of the struct is there. What your header has beyond it isn't.
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// The first.
    pub data: *const trainmaster_server_status,
    /// How many.
    pub count: u64,
    /// Bytes from one to the next.
    pub stride: u64,
}

grows!(
    trainmaster_status: 96,
    trainmaster_job_status: 160,
    trainmaster_jobs: 32,
    trainmaster_server_status: 48,
    trainmaster_servers: 32,
);

/// The library's version, such as "0.1.0". The text is the library's, as long as that is loaded. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn trainmaster_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };
    VERSION.as_ptr()
}

/// The TRAINMASTER_ABI_VERSION of the library: not less than that of the header you compiled with, or some of what the header
/// has is missing. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn trainmaster_abi_version() -> u32 {
    TRAINMASTER_ABI_VERSION
}

/// Tells how the scheduler is. Works on a poisoned one; `flags` and `records` are then all that counts.
///
/// Errors: NULL, SIZE, BUSY, PANIC. Threads: one at a time for a scheduler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_scheduler_status(
    scheduler: *const trainmaster_scheduler,
    status: *mut trainmaster_status,
    message: *mut trainmaster_message,
) -> u32 {
    use trainmaster_status_flag as Flag;
    guard::call(message, || {
        let inner = trainmaster_scheduler::open(scheduler)?;
        borrow::writable(status, "status")?;
        let poisoned = inner.released.is_some();
        let (core, state) = (&inner.core, inner.core.state());
        let flags = [
            (Flag::Poisoned, poisoned),
            (Flag::Fallback, core.is_fallback()),
            (Flag::Deciding, core.is_deciding()),
            (Flag::Syncing, state.is_syncing()),
            (Flag::Journal, inner.keeps_journal),
        ];
        let view = trainmaster_status {
            size: 0,
            flags: flags.iter().filter(|(_, is)| *is).map(|(flag, _)| *flag as u32).sum(),
            now: state.now.0,
            due: moment(core.due().filter(|_| !poisoned)),
            decided_at: moment(core.decided_at()),
            term: state.term.0,
            decision: state.decision.0,
            jobs: state.jobs.len() as u64,
            servers: state.present_servers().count() as u64,
            records: inner.records.len() as u64,
            mode: match state.mode {
                Mode::Active => trainmaster_mode::Active,
                Mode::Shadow => trainmaster_mode::Shadow,
                Mode::Paused => trainmaster_mode::Paused,
            } as u32,
            reserved: 0,
            engine: engine_name(core),
        };
        borrow::write(status, view, "status")
    })
}

fn engine_name(core: &Scheduler) -> trainmaster_string {
    engines::find(core.engine_name()).map_or(trainmaster_string::EMPTY, |entry| trainmaster_string::of(entry.name))
}

fn moment(at: Option<Time>) -> i64 {
    at.map_or(TRAINMASTER_NEVER, |at| at.0)
}

/// The active job of a number, or all of them for 0.
///
/// Errors: NULL, BUSY, POISONED, PANIC, UNKNOWN_JOB. Threads: one at a time for a scheduler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_scheduler_jobs(
    scheduler: *const trainmaster_scheduler,
    job: u64,
    jobs: *mut *const trainmaster_jobs,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        let inner = trainmaster_scheduler::healthy(scheduler)?;
        borrow::settable(jobs, "jobs")?;
        let state = inner.core.state();
        let mut writer = Writer::new(state);
        let all: Vec<_> = match job {
            0 => state.jobs.values().map(|job| job_status(state, job, &mut writer)).collect(),
            id => {
                let job = state.job(JobId(id)).ok_or_else(|| unknown(id))?;
                vec![job_status(state, job, &mut writer)]
            }
        };
        let mut keep = writer.into_keep();
        let (data, count) = keep.array(all);
        let size = size_of::<trainmaster_jobs>() as u32;
        let view = trainmaster_jobs { size, reserved: 0, data, count, stride: stride::<trainmaster_job_status>() };
        owned::hand_result(jobs, view, keep, "jobs")
    })
}

pub(crate) fn unknown(job: u64) -> Failure {
    Failure::new(Code::UnknownJob, format!("there is no active job {job}"))
}

fn job_status(state: &State, job: &Job, writer: &mut Writer<'_>) -> trainmaster_job_status {
    let shape =
        |slots: &Option<std::sync::Arc<trainmaster_core::Allocation>>| slots.as_ref().map(|slots| slots.shape());
    let issued = shape(&job.issued.allocation).unwrap_or_default();
    let observed = shape(&job.seen.allocation).unwrap_or_default();
    let planned: Shape = job.shape();
    let reason = job.verdict.reason().or(job.issued.reason.as_ref());
    let number = |value: Option<f64>| value.unwrap_or(f64::NAN);
    let fresh = reason.map(|reason| reason.refreshed(state, job));
    trainmaster_job_status {
        size: size_of::<trainmaster_job_status>() as u32,
        phase: match job.seen.phase {
            Phase::Stopped => trainmaster_phase::Stopped,
            Phase::Starting => trainmaster_phase::Starting,
            Phase::Running => trainmaster_phase::Running,
            Phase::Stopping => trainmaster_phase::Stopping,
        } as u32,
        job: job.id.0,
        name: writer.job_name(job.id),
        arrival: job.arrival.0,
        started: moment(job.seen.started),
        planned_workers: planned.workers,
        planned_servers: planned.servers,
        issued_workers: issued.workers,
        issued_servers: issued.servers,
        observed_workers: observed.workers,
        observed_servers: observed.servers,
        incarnation: job.issued.incarnation.0,
        revision: job.issued.revision.0,
        reason: writer.reason(fresh.as_ref()),
        step: job.learnt.progress.step,
        steps_per_epoch: job.steps_per_epoch(),
        epoch: job.learnt.progress.epoch,
        held: job.held.into(),
        loss: number(job.learnt.progress.loss),
        accuracy: number(job.learnt.progress.accuracy),
        speed: number(job.learnt.progress.speed),
        restart_cost_ms: job.learnt.restart_cost.0,
        rescales: job.issued.rescales,
        refusals: job.issued.refusals,
        ignored_reports: job.learnt.progress.ignored,
    }
}

/// Frees a list of jobs. NULL is nothing. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_jobs_free(jobs: *const trainmaster_jobs) {
    guard::quiet(|| owned::free_result(jobs));
}

/// The server of a name, or all of them for an empty one.
///
/// Errors: NULL, VALUE, BUSY, POISONED, PANIC, UNKNOWN_SERVER. Threads: one at a time for a scheduler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_scheduler_servers(
    scheduler: *const trainmaster_scheduler,
    name: trainmaster_string,
    servers: *mut *const trainmaster_servers,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        let inner = trainmaster_scheduler::healthy(scheduler)?;
        borrow::settable(servers, "servers")?;
        let name = borrow::text(name, "name")?;
        let state = inner.core.state();
        let wanted: Vec<&Server> = state
            .present_servers()
            .map(|server| &**server)
            .filter(|server| name.is_empty() || *server.name == name)
            .collect();
        if wanted.is_empty() && !name.is_empty() {
            return Err(Failure::new(Code::UnknownServer, format!("there is no server {name:?}")));
        }
        let mut writer = Writer::new(state);
        let all: Vec<_> = wanted.into_iter().map(|server| server_status(state, server, &mut writer)).collect();
        let mut keep = writer.into_keep();
        let (data, count) = keep.array(all);
        let size = size_of::<trainmaster_servers>() as u32;
        let view =
            trainmaster_servers { size, reserved: 0, data, count, stride: stride::<trainmaster_server_status>() };
        owned::hand_result(servers, view, keep, "servers")
    })
}

fn server_status(state: &State, server: &Server, writer: &mut Writer<'_>) -> trainmaster_server_status {
    let types = (0..state.resources.count()).map(|at| trainmaster_core::ResourceId(at as u16));
    let has = |id: &trainmaster_core::ResourceId| {
        let amounts = [&server.capacity, &server.foreign.amounts, &server.planned.amounts, &server.charged.amounts];
        amounts.iter().any(|amounts| amounts[*id] != 0)
    };
    let uses = types.filter(has).map(|id| trainmaster_use {
        resource: writer.keep().text(state.resources.name(id).to_owned()),
        capacity: server.capacity[id],
        foreign: server.foreign.amounts[id],
        planned: server.planned.amounts[id],
        charged: server.charged.amounts[id],
    });
    let uses = uses.collect();
    let (uses, uses_count) = writer.keep().array(uses);
    trainmaster_server_status {
        size: size_of::<trainmaster_server_status>() as u32,
        draining: server.draining.into(),
        name: writer.server(server.id),
        uses,
        uses_count,
        uses_stride: stride::<trainmaster_use>(),
    }
}

/// Frees a list of servers. NULL is nothing. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_servers_free(servers: *const trainmaster_servers) {
    guard::quiet(|| owned::free_result(servers));
}

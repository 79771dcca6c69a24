//! Status of a scheduler, its jobs and its servers, and the library's version.

use std::ffi::CStr;

use libc::c_char;
use trainmaster_core::{Job, JobId, Mode, Scheduler, Server, Shape, State, Time, engines, job::Phase};

use crate::{
    borrow::{self, grows},
    error::{Failure, trainmaster_error as Code},
    event::{TRAINMASTER_NEVER, trainmaster_mode, trainmaster_phase},
    guard,
    handle::trainmaster_scheduler,
    owned,
    plan::{Writer, stride},
    reason::trainmaster_reason,
    text::{trainmaster_message, trainmaster_string},
};

/// Version of the ABI in this header. It increases with each addition. Existing functions, numbers and fields of
/// structs never change; new fields are added at the end only.
pub const TRAINMASTER_ABI_VERSION: u32 = 1;

/// Flags of a scheduler. `flags` of struct trainmaster_status is their sum.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_status_flag {
    /// A panic was caught during a change: restore the scheduler from its journal.
    Poisoned = 1,
    /// The engine failed several times in a row, so the fallback decides.
    Fallback = 2,
    /// The ticket of a decision is open.
    Deciding = 4,
    /// A manager's resync is in progress.
    Syncing = 8,
    /// A journal is active.
    Journal = 16,
}

/// Status of a scheduler.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_status {
    /// sizeof(struct trainmaster_status); set it before the call.
    pub size: u32,
    /// Sum of TRAINMASTER_STATUS_FLAG_*.
    pub flags: u32,
    /// Time of the last event or call, in milliseconds. The minimum of its type before the first.
    pub now: i64,
    /// Time of the next decision, which may have passed. TRAINMASTER_NEVER without an event.
    pub due: i64,
    /// Time of the last commit. TRAINMASTER_NEVER if there was none since the engine was chosen.
    pub decided_at: i64,
    /// Term of the host in charge.
    pub term: u64,
    /// Number of the last decision.
    pub decision: u64,
    /// Number of active jobs.
    pub jobs: u64,
    /// Number of present servers.
    pub servers: u64,
    /// Number of records that wait for trainmaster_scheduler_drain_journal().
    pub records: u64,
    /// One of TRAINMASTER_MODE_*.
    pub mode: u32,
    /// Reserved: 0.
    pub reserved: u32,
    /// The engine in charge. The text belongs to the library, while it is loaded.
    pub engine: trainmaster_string,
}

/// Status of an active job.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_job_status {
    /// Set by the library: size of the struct in its version. Fields of your header beyond it don't exist.
    pub size: u32,
    /// Phase that the manager observed: one of TRAINMASTER_PHASE_*.
    pub phase: u32,
    /// Number of the job.
    pub job: u64,
    /// Name of the job.
    pub name: trainmaster_string,
    /// Time of its submission.
    pub arrival: i64,
    /// Time of its first start, or TRAINMASTER_NEVER.
    pub started: i64,
    /// Number of planned workers.
    pub planned_workers: u32,
    /// Number of planned parameter servers.
    pub planned_servers: u32,
    /// Number of issued workers.
    pub issued_workers: u32,
    /// Number of issued parameter servers.
    pub issued_servers: u32,
    /// Number of observed workers.
    pub observed_workers: u32,
    /// Number of observed parameter servers.
    pub observed_servers: u32,
    /// The desired incarnation; 0 before the first.
    pub incarnation: u32,
    /// Number of changes in place within it.
    pub revision: u32,
    /// Reason why it doesn't run, or has less than planned. NULL without one.
    pub reason: *const trainmaster_reason,
    /// Number of completed steps.
    pub step: u64,
    /// Steps per epoch.
    pub steps_per_epoch: u64,
    /// Number of completed epochs.
    pub epoch: u32,
    /// 1: a user holds it.
    pub held: u32,
    /// Last reported loss, or NaN.
    pub loss: f64,
    /// Last reported accuracy, or NaN.
    pub accuracy: f64,
    /// Steps per second in the last report, or NaN.
    pub speed: f64,
    /// Cost of a restart in milliseconds.
    pub restart_cost_ms: i64,
    /// Number of changes of its shape while it ran.
    pub rescales: u32,
    /// Number of consecutive refusals.
    pub refusals: u32,
    /// Number of invalid reports that were ignored.
    pub ignored_reports: u64,
}

/// Active jobs in order of submission. Yours; free it with trainmaster_jobs_free(). It doesn't change, and it outlives
/// its scheduler.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_jobs {
    /// Set by the library: size of the struct in its version. Fields of your header beyond it don't exist.
    pub size: u32,
    /// Reserved: 0.
    pub reserved: u32,
    /// The first element.
    pub data: *const trainmaster_job_status,
    /// Number of elements.
    pub count: u64,
    /// Bytes from one element to the next.
    pub stride: u64,
}

/// Use of one resource of a server, in its units (see struct trainmaster_amount). Never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_use {
    /// The resource.
    pub resource: trainmaster_string,
    /// Capacity of the server, including devices.
    pub capacity: i64,
    /// Foreign use.
    pub foreign: i64,
    /// Planned amount over all jobs.
    pub planned: i64,
    /// Charged amount over all jobs: the larger of issued and observed.
    pub charged: i64,
}

/// A present server.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_server_status {
    /// Set by the library: size of the struct in its version. Fields of your header beyond it don't exist.
    pub size: u32,
    /// 1: it takes no new slots.
    pub draining: u32,
    /// Name of the server.
    pub name: trainmaster_string,
    /// The first of its resources.
    pub uses: *const trainmaster_use,
    /// Number of elements.
    pub uses_count: u64,
    /// Bytes from one element to the next.
    pub uses_stride: u64,
}

/// Servers in the order of their first mention. Yours; free it with trainmaster_servers_free(). It doesn't change, and
/// it outlives its scheduler.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_servers {
    /// Set by the library: size of the struct in its version. Fields of your header beyond it don't exist.
    pub size: u32,
    /// Reserved: 0.
    pub reserved: u32,
    /// The first element.
    pub data: *const trainmaster_server_status,
    /// Number of elements.
    pub count: u64,
    /// Bytes from one element to the next.
    pub stride: u64,
}

grows!(
    trainmaster_status: 96,
    trainmaster_job_status: 160,
    trainmaster_jobs: 32,
    trainmaster_server_status: 48,
    trainmaster_servers: 32,
);

/// Version of the library, such as "0.1.0". The text belongs to the library, while it is loaded. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn trainmaster_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };
    VERSION.as_ptr()
}

/// The TRAINMASTER_ABI_VERSION of the library. If it is less than that of the header you compiled with, the library
/// lacks a part of the header. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn trainmaster_abi_version() -> u32 {
    TRAINMASTER_ABI_VERSION
}

/// Returns the status of a scheduler. For a poisoned scheduler, only `flags` and `records` are valid.
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

/// The active job with this number, or all active jobs for 0.
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

/// Frees a list of jobs. NULL is ignored. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_jobs_free(jobs: *const trainmaster_jobs) {
    guard::quiet(|| owned::free_result(jobs));
}

/// The server with this name, or all servers for an empty one.
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

/// Frees a list of servers. NULL is ignored. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_servers_free(servers: *const trainmaster_servers) {
    guard::quiet(|| owned::free_result(servers));
}

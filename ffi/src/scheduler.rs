//! The scheduler's handle: creation, events, issues, and destruction.

use trainmaster_core::{JobId, Proposal, Scheduler, Settings};

use crate::{
    borrow::{self, Array},
    error::{Failure, trainmaster_error as Code},
    event::trainmaster_event,
    guard,
    handle::{Place, trainmaster_scheduler},
    job::trainmaster_job,
    owned,
    plan::{Writer, trainmaster_plan},
    text::{trainmaster_message, trainmaster_string},
};

/// Creates a scheduler for an empty cluster. `*scheduler` is yours; free it with trainmaster_scheduler_free().
///
/// `settings` is TOML. Missing keys have their defaults:
///
/// ```toml
/// engine = "optimus"                 # see trainmaster_engines_list()
/// parameters = {}                    # of the engine; see struct trainmaster_engine
/// fallback = "fifo"                  # takes over ...
/// fallback_after = 3                 # ... after this many consecutive failures
/// stability = { min_run = "1m", rescales_per_hour = 12, payback = 2.0 }    # or "off"
/// shape = { equal_per_server = false, colocate = true, grow_in_place = true, oversubscribe = 1.0 }
/// caps = { urgency = 10 }            # also utility, priority: the most that owners may claim
/// queues = {}                        # such as { batch = { gpu = 8, memory = "1TiB" } }: the most they may have
/// tenants = {}                       # likewise
/// early_stop = false                 # whether jobs that have nothing to gain end, as far as their owners consent
/// share_models = false               # whether tenants learn from each other's jobs of one model
/// refusal_backoff = "5s"             # first wait after a manager's refusal; doubles
/// refusals = 5                       # after this many, others get the room
/// seed = 0                           # of engines with random numbers
/// ```
///
/// Errors: NULL, VALUE, SETTINGS. Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_scheduler_new(
    settings: trainmaster_string,
    scheduler: *mut *mut trainmaster_scheduler,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        borrow::settable(scheduler, "scheduler")?;
        let core = Scheduler::new(Settings::from_toml(&borrow::text(settings, "settings")?)?)?;
        borrow::set(scheduler, owned::hand(trainmaster_scheduler::new(core)), "scheduler")
    })
}

/// Frees a scheduler. NULL is ignored. No other call may use it. Its tickets stay valid but can't be committed any
/// more. They must be freed as well, before or after.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_scheduler_free(scheduler: *mut trainmaster_scheduler) {
    guard::quiet(|| owned::free(scheduler));
}

/// Applies events in order: `count` of them, `stride` bytes apart (sizeof(struct trainmaster_event)). It stops at the
/// first invalid one, which has no effect except that reports and late refusals are counted. `*done`, which may be
/// NULL, is the number of applied events before it. To continue after the invalid event, call it again with the rest.
///
/// Nothing is decided here. A panic poisons the scheduler.
///
/// Errors: NULL, SIZE, VALUE, BUSY, POISONED, PANIC, SETTINGS, and those from 30 to 41. Threads: one at a time for a
/// scheduler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_scheduler_apply(
    scheduler: *mut trainmaster_scheduler,
    events: *const trainmaster_event,
    count: u64,
    stride: u64,
    done: *mut u64,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        let report = |number: u64| if done.is_null() { Ok(()) } else { borrow::set(done, number, "done") };
        report(0)?;
        let mut inner = trainmaster_scheduler::healthy(scheduler)?;
        let events = Array::new(events, count, stride, "events")?;
        for index in 0..events.len() {
            let (at, event) = events.read(index, "events")?.convert()?;
            inner.change_at(Place::Apply, |core| Ok(core.apply(at, event)?))?;
            report(index as u64 + 1)?;
        }
        Ok(())
    })
}

/// Whether a job would be accepted now. Changes nothing.
///
/// Errors: as for its event. Threads: one at a time for a scheduler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_scheduler_would_accept(
    scheduler: *const trainmaster_scheduler,
    job: *const trainmaster_job,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        let inner = trainmaster_scheduler::healthy(scheduler)?;
        let submission = borrow::read(job, "job")?.convert()?;
        Ok(inner.core.would_accept(submission.spec)?)
    })
}

/// The number of the active job with this name.
///
/// Errors: NULL, VALUE, BUSY, POISONED, UNKNOWN_JOB. Threads: one at a time for a scheduler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_scheduler_find_job(
    scheduler: *const trainmaster_scheduler,
    name: trainmaster_string,
    job: *mut u64,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        let inner = trainmaster_scheduler::healthy(scheduler)?;
        let name = borrow::text(name, "name")?;
        let found = inner.core.state().find_job(&name).map(|found| found.id);
        let JobId(id) =
            found.ok_or_else(|| Failure::new(Code::UnknownJob, format!("there is no active job {name:?}")))?;
        borrow::set(job, id, "job")
    })
}

/// The issues for the manager since the last call: jobs whose issued part changed, and once the end of a job that was
/// issued before. For a poisoned scheduler: in each call all jobs, released.
///
/// Enact `*plan` and report the result: TRAINMASTER_EVENT_KIND_ENACTED for each issue, _OBSERVED for the slots.
///
/// Errors: NULL, BUSY, PANIC. Threads: one at a time for a scheduler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_scheduler_take_issues(
    scheduler: *mut trainmaster_scheduler,
    plan: *mut *const trainmaster_plan,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        let mut inner = trainmaster_scheduler::open(scheduler)?;
        borrow::settable(plan, "plan")?;
        let issues = match inner.released.clone() {
            Some(released) => released,
            None => inner.change(|core| Ok(core.take_issues()))?,
        };
        let (view, keep) = Writer::new(inner.core.state()).issues(&issues);
        owned::hand_result(plan, view, keep, "plan")
    })
}

/// The issues of all jobs, for a manager that starts or returns. A job that is not in it has ended. For a poisoned
/// scheduler: all jobs, released. Changes nothing.
///
/// Errors: NULL, BUSY, PANIC. Threads: one at a time for a scheduler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_scheduler_all_issues(
    scheduler: *const trainmaster_scheduler,
    plan: *mut *const trainmaster_plan,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        let inner = trainmaster_scheduler::open(scheduler)?;
        borrow::settable(plan, "plan")?;
        let issues = inner.released.clone().unwrap_or_else(|| inner.core.all_issues());
        let (view, keep) = Writer::new(inner.core.state()).issues(&issues);
        owned::hand_result(plan, view, keep, "plan")
    })
}

/// The proposal of an engine at this moment. `engine` empty: the engine in charge; otherwise an engine by name with its
/// default parameters. `steps` limits its work as in trainmaster_ticket_run(). Changes nothing, but takes as long as a
/// decision.
///
/// Errors: NULL, VALUE, BUSY, POISONED, PANIC, ENGINE. Threads: one at a time for a scheduler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_scheduler_preview(
    scheduler: *const trainmaster_scheduler,
    engine: trainmaster_string,
    steps: u64,
    plan: *mut *const trainmaster_plan,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        let inner = trainmaster_scheduler::healthy(scheduler)?;
        borrow::settable(plan, "plan")?;
        let name = borrow::text(engine, "engine")?;
        let ticket = inner.core.dry_ticket(Some(name.as_str()).filter(|name| !name.is_empty()))?;
        let outcome = ticket.run(crate::ticket::budget(steps));
        if let Some(error) = outcome.error() {
            return Err(error.clone().into());
        }
        let nothing = Proposal::default();
        let (view, keep) = Writer::new(inner.core.state()).proposal(outcome.proposal().unwrap_or(&nothing));
        owned::hand_result(plan, view, keep, "plan")
    })
}

//! A decision in three steps: prepare, run on any thread, commit.

use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use trainmaster_core::{
    Budget, Decision, Scheduler, Source, TicketId,
    scheduler::{FitOutcome, FitTicket, Outcome, Ticket, Why},
};

use crate::{
    borrow,
    error::{Failure, trainmaster_error as Code},
    guard,
    handle::{Inner, Place, trainmaster_scheduler},
    job::time,
    owned,
    plan::{Writer, trainmaster_decision},
    server::pick,
    text::trainmaster_message,
};

/// One attempt to decide or to fit: a consistent copy of the required state, separate from its scheduler. It is
/// prepared, run once on any thread while its scheduler is used, committed or abandoned, and freed.
pub struct trainmaster_ticket {
    id: TicketId,
    scheduler: Arc<()>,
    work: Mutex<Work>,
}

enum Work {
    Decide(Box<Ticket>),
    Fit(Box<FitTicket>),
    Decided(Box<Outcome>),
    Fitted(Box<FitOutcome>),
    Spent,
}

/// Reason to abandon a ticket.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_why {
    /// It took too long. This counts as a failure of the engine.
    Late = 0,
    /// It is no longer needed.
    Lost = 1,
}

impl trainmaster_ticket {
    fn open(&self) -> Result<MutexGuard<'_, Work>, Failure> {
        match self.work.try_lock() {
            Ok(work) => Ok(work),
            Err(TryLockError::Poisoned(work)) => Ok(work.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Failure::new(Code::Busy, "the ticket is running")),
        }
    }

    fn check(&self, inner: &Inner) -> Result<(), Failure> {
        if Arc::ptr_eq(&self.scheduler, &inner.identity) {
            return Ok(());
        }
        // The scheduler that prepared it was restored, or is another one.
        Err(Failure::new(Code::Superseded, "the ticket is of another scheduler, or of before it was restored"))
    }
}

/// 0 is unlimited.
pub(crate) fn budget(steps: u64) -> Budget {
    if steps == 0 { Budget::UNLIMITED } else { Budget::steps(steps) }
}

/// Names the missing call.
fn order(work: &Work, wanted: &str) -> Failure {
    let is = match work {
        Work::Decide(_) => "a decision's, not run yet",
        Work::Fit(_) => "of fits, not run yet",
        Work::Decided(_) => "a decision's, run already",
        Work::Fitted(_) => "of fits, run already",
        Work::Spent => "committed already, or lost by a panic",
    };
    Failure::new(Code::Order, format!("the ticket is {is}; {wanted}"))
}

fn hand(id: TicketId, inner: &Inner, work: Work, out: *mut *mut trainmaster_ticket) -> Result<(), Failure> {
    let ticket = trainmaster_ticket { id, scheduler: inner.identity.clone(), work: Mutex::new(work) };
    borrow::set(out, owned::hand(ticket), "ticket")
}

/// Begins a decision. `*ticket` is a consistent copy for the engine, created in microseconds. An open ticket is
/// superseded. `*ticket` is yours; run it, commit or abandon it, and free it. A panic poisons the scheduler.
///
/// Call it at the time `due` of struct trainmaster_status. `at`: the current time, as in events. If it is before the
/// last event, the time of that event counts.
///
/// Errors: NULL, VALUE, BUSY, POISONED, PANIC. Threads: one at a time for a scheduler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_scheduler_prepare(
    scheduler: *mut trainmaster_scheduler,
    at: i64,
    ticket: *mut *mut trainmaster_ticket,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        let mut inner = trainmaster_scheduler::healthy(scheduler)?;
        borrow::settable(ticket, "ticket")?;
        let at = time(at, "at")?;
        let prepared = inner.change(|core| Ok(core.prepare(at)))?;
        hand(prepared.id(), &inner, Work::Decide(Box::new(prepared)), ticket)
    })
}

/// Begins fits of loss and speed for jobs with reports since the last fits, at most 250. `*ticket` is NULL if there are
/// none. Run and commit such tickets before a decision, or during it, until it is NULL: decisions don't wait for fits.
/// A panic poisons the scheduler.
///
/// Errors: NULL, VALUE, BUSY, POISONED, PANIC. Threads: one at a time for a scheduler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_scheduler_prepare_fits(
    scheduler: *mut trainmaster_scheduler,
    at: i64,
    ticket: *mut *mut trainmaster_ticket,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        let mut inner = trainmaster_scheduler::healthy(scheduler)?;
        borrow::settable(ticket, "ticket")?;
        let at = time(at, "at")?;
        match inner.change(|core| Ok(core.prepare_fits(at)))? {
            Some(fits) => hand(fits.id(), &inner, Work::Fit(Box::new(fits)), ticket),
            None => borrow::set(ticket, std::ptr::null_mut(), "ticket"),
        }
    })
}

/// Runs the engine or the fits. Once per ticket, on any thread; its scheduler may be used meanwhile. Fits take about a
/// millisecond per job. `steps` limits an engine's work (a step is about one examined candidate, tens of nanoseconds),
/// 0: no limit. The journal contains the limit, so that a replay stops at the same point.
///
/// A failure of the engine (a panic, too many steps, or a proposal that breaks a rule) is no error here. The commit
/// reports it, and the last plan stays in force. After several failures in a row the fallback engine decides. If that
/// fails as often, scheduling is paused and all jobs are released.
///
/// Errors: NULL, BUSY, ORDER, PANIC. Threads: one at a time for a ticket, any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_ticket_run(
    ticket: *mut trainmaster_ticket,
    steps: u64,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        let mut work = borrow::reference(ticket, "ticket")?.open()?;
        *work = match std::mem::replace(&mut *work, Work::Spent) {
            Work::Decide(ticket) => Work::Decided(Box::new(ticket.run(budget(steps)))),
            Work::Fit(ticket) => Work::Fitted(Box::new(ticket.run())),
            other => {
                let failure = order(&other, "a ticket is run once");
                *work = other;
                return Err(failure);
            }
        };
        Ok(())
    })
}

/// Applies the proposal of the ticket's engine to the plan, as far as it still fits. `*decision` is yours; free it with
/// trainmaster_decision_free(); `decision` may be NULL. The ticket can't be used again, but must be freed. A panic
/// poisons the scheduler.
///
/// Errors: NULL, VALUE, BUSY, POISONED, PANIC, ORDER, SUPERSEDED. Threads: one at a time for a scheduler and for a
/// ticket.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_scheduler_commit(
    scheduler: *mut trainmaster_scheduler,
    at: i64,
    ticket: *mut trainmaster_ticket,
    decision: *mut *const trainmaster_decision,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        let mut inner = trainmaster_scheduler::healthy(scheduler)?;
        let ticket = borrow::reference(ticket, "ticket")?;
        let at = time(at, "at")?;
        let mut work = ticket.open()?;
        ticket.check(&inner)?;
        let outcome = match std::mem::replace(&mut *work, Work::Spent) {
            Work::Decided(outcome) => outcome,
            other => {
                let failure = order(&other, "a decision is committed once, after it was run");
                *work = other;
                return Err(failure);
            }
        };
        decide(&mut inner, decision, |core| Ok(core.commit(at, *outcome)?))
    })
}

/// Stores the results of a ticket from trainmaster_scheduler_prepare_fits(). The ticket can't be used again, but must
/// be freed. A panic poisons the scheduler.
///
/// Errors: NULL, VALUE, BUSY, POISONED, PANIC, ORDER, SUPERSEDED. Threads: one at a time for a scheduler and for a
/// ticket.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_scheduler_commit_fits(
    scheduler: *mut trainmaster_scheduler,
    at: i64,
    ticket: *mut trainmaster_ticket,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        let mut inner = trainmaster_scheduler::healthy(scheduler)?;
        let ticket = borrow::reference(ticket, "ticket")?;
        let at = time(at, "at")?;
        let mut work = ticket.open()?;
        ticket.check(&inner)?;
        let outcome = match std::mem::replace(&mut *work, Work::Spent) {
            Work::Fitted(outcome) => outcome,
            other => {
                let failure = order(&other, "fits are committed once, after they were run");
                *work = other;
                return Err(failure);
            }
        };
        inner.change_at(Place::Commit, |core| Ok(core.commit_fits(at, *outcome)?))
    })
}

/// Abandons a ticket, even while another thread runs it: its commit will fail. `why`: one of TRAINMASTER_WHY_*. Does
/// nothing if the ticket is not open any more. The ticket must be freed, after its run has ended. A panic poisons the
/// scheduler.
///
/// Errors: NULL, VALUE, BUSY, POISONED, PANIC, SUPERSEDED. Threads: one at a time for a scheduler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_scheduler_abandon(
    scheduler: *mut trainmaster_scheduler,
    at: i64,
    ticket: *const trainmaster_ticket,
    why: u32,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        let mut inner = trainmaster_scheduler::healthy(scheduler)?;
        let ticket = borrow::reference(ticket, "ticket")?;
        let at = time(at, "at")?;
        let why = pick(why, "why", &[("late", Why::Late), ("lost", Why::Lost)])?;
        ticket.check(&inner)?;
        let (was, was_deciding) = (inner.charge(), inner.core.is_deciding());
        inner.change(|core| {
            core.abandon(at, ticket.id, why);
            Ok(())
        })?;
        if why == Why::Late && was_deciding && !inner.core.is_deciding() {
            let failure = inner.core.last_error().map(ToString::to_string);
            inner.note_failure(was, failure.as_deref());
        }
        Ok(())
    })
}

/// Fits, prepares, runs and commits in one call, for callers that can wait. `*decision` is yours; free it with
/// trainmaster_decision_free(); `decision` may be NULL. A panic poisons the scheduler, except for a panic of the
/// engine; see trainmaster_ticket_run().
///
/// Errors: NULL, VALUE, BUSY, POISONED, PANIC. Threads: one at a time for a scheduler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_scheduler_decide(
    scheduler: *mut trainmaster_scheduler,
    at: i64,
    decision: *mut *const trainmaster_decision,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        let mut inner = trainmaster_scheduler::healthy(scheduler)?;
        let at = time(at, "at")?;
        decide(&mut inner, decision, |core| Ok(core.decide(at)))
    })
}

/// Frees a ticket. NULL is ignored. No thread may be running it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_ticket_free(ticket: *mut trainmaster_ticket) {
    guard::quiet(|| owned::free(ticket));
}

/// Makes a decision, and returns it.
fn decide(
    inner: &mut Inner,
    out: *mut *const trainmaster_decision,
    decide: impl FnOnce(&mut Scheduler) -> Result<Decision, Failure>,
) -> Result<(), Failure> {
    if !out.is_null() {
        borrow::settable(out, "decision")?;
    }
    let was = inner.charge();
    let made = inner.change_at(Place::Commit, decide)?;
    let failure = inner.core.last_error().filter(|_| made.source == Source::Kept).map(ToString::to_string);
    inner.note_failure(was, failure.as_deref());
    if out.is_null() {
        return Ok(());
    }
    let (view, keep) = Writer::new(inner.core.state()).decision(&made, failure);
    owned::hand_result(out, view, keep, "decision")
}

//! The parts of a host of the scheduler: the time of events, a journal over a store, tickets with their deadlines,
//! metrics, and the messages to training programs.
//!
//! The core decides from events alone. A host passes events to it, runs its tickets, and sends no result before it is
//! on disk. There are two hosts. The daemon writes and decides on separate threads. The agent inside slurmctld does
//! both on the plugin's one thread. Both are loops over the parts of this crate:
//!
//! 1. Stamp an event with [`Clock::now`] and apply it to the scheduler.
//! 2. [Open](Tickets::open) due tickets, [run](Run::run) them, and [return](Tickets::returned) them.
//! 3. Add the scheduler's records to the [`Journal`], with the effects that follow once they are on disk.

pub mod bounded;
mod census;
mod changes;
mod clock;
mod journal;
mod metrics;
mod programs;
mod start;
mod tickets;

pub use self::{
    census::{Census, has_names},
    clock::Clock,
    journal::{Beside, Journal, JournalLimits, LateReply, Outcome, Store, Write, Written},
    metrics::{ERRORS, JournalMetrics, TicketMetrics, build_info},
    programs::{Answers, answer, assignment},
    start::begin,
    tickets::{Made, Ran, Run, TicketLimits, Tickets},
};

//! What a host of the scheduler is made of: time for its events, a journal over a store, tickets that are opened, run
//! and given up in time, and what training programs are told.
//!
//! The core decides from events alone. A host brings it these events, runs its tickets, and gives nobody
//! anything before it is on disk. There are two hosts: the daemon, which writes and decides on threads of their own,
//! and the agent inside slurmctld, which does both on the plugin's one thread. Both are loops over the parts of this
//! crate:
//!
//! 1. Stamp what happened with [`Clock::now`] and give it to the scheduler.
//! 2. [`Tickets::open`] what is due, [run](Run::run) it, and give it [back](Tickets::returned).
//! 3. Add the scheduler's records to the [`Journal`], with what is to be done once they are on disk.

pub mod bounded;
mod clock;
mod journal;
mod metrics;
mod programs;
mod start;
mod tickets;

pub use self::{
    clock::Clock,
    journal::{Beside, Journal, JournalLimits, LateReply, Outcome, Store, Write, Written},
    metrics::{Adder, JournalMetrics, TicketMetrics},
    programs::{Answers, answer, assignment},
    start::begin,
    tickets::{Made, Ran, Run, TicketLimits, Tickets},
};

//! Trainmaster's policy core for C: `libtrainmaster.{so,a}` and `include/trainmaster.h`.
//!
//! What a C programmer needs is in the header, which is made from the comments in this crate. A file here is a noun of
//! the header; beside them [`borrow`] and [`owned`] have every `unsafe` block (what C hands in, what C is handed), and
//! [`guard`] keeps panics on this side.
//!
//! The functions may be called from Rust as well, as a static library does that adds symbols of its own.

#![allow(non_camel_case_types)] // names here are the header's

#[cfg(not(target_pointer_width = "64"))]
compile_error!("the header's structs are laid out for 64-bit machines");

// In the order of the header: what everybody calls, then what may be asked beside.
pub mod scheduler;

pub mod ticket;

pub mod plan;

pub mod status;

pub mod explain;

pub mod journal;

pub mod log;

pub mod engine;

pub mod fit;

pub mod paa;

pub mod error;
pub mod event;
pub mod job;
pub mod reason;
pub mod server;
pub mod text;

pub mod borrow;
#[cfg(feature = "fault-injection")]
pub mod fault;
pub mod guard;
pub mod owned;

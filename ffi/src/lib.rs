//! Trainmaster's policy core for C: `libtrainmaster.{so,a}` and `include/trainmaster.h`.
//!
//! The header documents the interface for C. It is generated from the comments in this crate. Each file is a noun of
//! the header. All `unsafe` blocks are in [`borrow`] (input from C) and [`owned`] (output for C), and [`guard`] catches
//! panics.
//!
//! The functions may also be called from Rust, for example by a static library with additional symbols.

#![allow(non_camel_case_types)] // names here are the header's

#[cfg(not(target_pointer_width = "64"))]
compile_error!("the header's structs are laid out for 64-bit machines");

// In the order of the header: the usual calls first, then queries.
pub mod handle;

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

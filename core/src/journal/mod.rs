//! The journal: everything that happened and everything that was decided, each record framed and checksummed.
//!
//! A record is its body's length (u32, little endian), the first four bytes of the body's BLAKE3 hash, and the body in
//! postcard, starting with the format's version. Recovery starts at the last snapshot and replays what follows; a
//! committed decision is made again by the same engine from the same state, and must have the same digest ([`Replay`]).

pub(crate) mod record;
mod replay;

pub use self::{
    record::{JournalError, Record, Saved, VERSION, frames},
    replay::{Difference, Made, Replay, Step},
};

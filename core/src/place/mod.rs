//! Placement of slots: room on servers, an index of servers by free room, even spreads, and communication costs.

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

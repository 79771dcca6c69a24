//! What all commands of `trainmaster` use at a terminal: errors with exit codes, tables or JSON, the connection to a
//! daemon, and signals to end.

pub mod client;
mod failure;
pub mod found;
pub mod output;
pub mod screen;
pub mod sheet;
pub mod stop;

pub use self::{
    failure::{Failure, one_line},
    output::{Answered, Mood, Output, Paper, Show},
};

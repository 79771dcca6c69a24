//! A real distributed training program, elastic and schedulable, that all of Trainmaster's manager integrations run.
//!
//! Parameter servers (synchronous or asynchronous) or a ring all-reduce, over TCP; softmax regression or a small
//! multi-layer perceptron on data generated from a seed. Synchronous and all-reduce training give bit-identical parameters
//! for every number of workers and servers and every history of resizes and restarts.
//!
//! How the parts fit together:
//!
//! - [`process`] is one process of a job: an event loop over `net` (peers), `feed` (scheduler) and timers.
//! - `node` is what a process does in its role; `chief` is what one of them does for all.
//! - `parts` and `node::pipeline`: a model that is cut into parts, each on workers of its own.
//! - `chunks` and `store`: a dataset whose chunks are scheduled one by one.
//! - `batch`, `data`, `model`, `fixed`, `holder` are the training itself, `validation` what comes of it.
//! - `device`, `turns` and the network layer emulate accelerators, those that share them and network interfaces where asked for.

pub mod args;
pub mod batch;
pub mod checkpoint;
mod chief;
pub mod chunks;
pub mod cli;
mod codec;
pub mod convergence;
pub mod data;
pub mod device;
pub mod exit;
mod feed;
pub mod fixed;
mod holder;
pub mod id;
mod iris;
pub mod layout;
pub mod local;
pub mod model;
mod net;
mod node;
mod outbox;
pub mod parts;
mod peers;
pub mod process;
pub mod settings;
mod store;
pub mod tally;
mod trainer;
pub mod turns;
mod validation;
mod wire;

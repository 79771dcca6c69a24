//! A real, elastic distributed training program. All manager integrations of Trainmaster run it.
//!
//! It has parameter servers (synchronous or asynchronous) or a ring all-reduce, over TCP, and trains softmax regression
//! or a small multi-layer perceptron on data generated from a seed. Synchronous and all-reduce training give
//! bit-identical parameters for all numbers of workers and servers, and all histories of resizes and restarts.
//!
//! The parts:
//!
//! - [`process`] is one process of a job: an event loop over `net` (peers), `feed` (scheduler) and timers.
//! - `node` is the role of a process; `chief` controls all processes.
//! - `parts` and `node::pipeline`: a model in partitions, each on its own workers.
//! - `chunks` and `store`: a dataset whose chunks are scheduled one by one.
//! - `batch`, `data`, `model`, `fixed`, `holder` are the training itself, `validation` its accuracy.
//! - `device`, `turns` and the network layer emulate accelerators, shared ones, and network interfaces on request.

mod args;
mod batch;
pub mod checkpoint;
mod chief;
mod chunks;
pub mod cli;
mod codec;
mod convergence;
mod data;
mod device;
pub mod exit;
mod feed;
mod fixed;
mod holder;
pub mod id;
mod iris;
mod layout;
pub mod local;
mod model;
mod net;
mod node;
mod outbox;
mod parts;
mod peers;
pub mod process;
pub mod settings;
mod store;
mod tally;
mod trainer;
mod turns;
mod validation;
mod wire;

//! Cluster managers, as Trainmaster sees them: an adapter for each, found by name.
//!
//! An adapter only translates: it carries out plans and reports what it sees. Each has a folder of its own, a feature of
//! its own, and one line in [`all`]; nothing outside this crate names a manager.

#[cfg(any(feature = "local", feature = "ray", feature = "yarn"))]
mod attach;
#[cfg(any(feature = "local", feature = "ray", feature = "yarn"))]
mod file;
#[cfg(any(feature = "ray", feature = "yarn"))]
mod foreign;
mod registry;

#[cfg(feature = "local")]
#[path = "../local/mod.rs"]
pub mod local;

#[cfg(feature = "ray")]
#[path = "../ray/mod.rs"]
pub mod ray;

#[cfg(feature = "slurm")]
#[path = "../slurm/mod.rs"]
pub mod slurm;

#[cfg(feature = "yarn")]
#[path = "../yarn/mod.rs"]
pub mod yarn;

#[cfg(any(feature = "local", feature = "ray", feature = "yarn"))]
pub use file::FileError;
pub use registry::{
    AdapterCommand, AdapterInfo, Answer, Check, Daemon, Launch, Running, Shutdown, Verdict, all, by_name, commands,
    nearest_folder,
};

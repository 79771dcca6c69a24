//! Adapters for cluster managers, found by name.
//!
//! An adapter only translates: it carries out plans and reports observations. Each adapter has its own folder, its own
//! feature and one line in [`ADAPTERS`]. Nothing outside this crate names a manager. The code that all adapters share
//! is in `trainmaster-manager`.

#[cfg(any(feature = "local", feature = "ray", feature = "yarn"))]
mod file;
#[cfg(any(feature = "ray", feature = "yarn"))]
mod foreign;
#[cfg(any(feature = "ray", feature = "yarn"))]
mod http;
#[cfg(any(feature = "ray", feature = "yarn"))]
mod load;

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
#[cfg(any(feature = "ray", feature = "yarn"))]
pub use http::Url;
#[cfg(feature = "registry")]
use trainmaster_manager::Adapters;

/// The adapters of this build, and their commands.
///
/// # Examples
/// ```
/// for adapter in trainmaster_adapters::ADAPTERS.all {
///     println!("{:10} {}", adapter.name, adapter.summary);
/// }
/// ```
#[cfg(feature = "registry")]
pub const ADAPTERS: Adapters = Adapters {
    all: &[
        #[cfg(feature = "local")]
        local::INFO,
        #[cfg(feature = "ray")]
        ray::INFO,
        #[cfg(feature = "yarn")]
        yarn::INFO,
    ],
    commands: &[
        #[cfg(feature = "slurm")]
        ("slurm", slurm::COMMANDS),
        #[cfg(feature = "yarn")]
        ("yarn", yarn::COMMANDS),
    ],
};

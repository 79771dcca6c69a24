//! The generated messages of `include/trainmaster/v1`, and their conversions to and from the core's types.
//!
//! Incoming messages are checked: each [`ConvertError`] names the field, its value and the allowed ones. Conversions
//! for the wire can't fail. Servers and resources have their names on the wire; the core's dense numbers stay in the
//! process.

mod assignment;
mod codec;
mod error;
mod job;
mod observation;
mod plan;
mod report;
mod server;
mod slot;
mod status;

pub use self::{
    assignment::{EncodedAssignment, SharedAssignment},
    codec::{BoundedCodec, BoundedDecoder, weigh},
    error::ConvertError,
    job::{external_from_wire, external_to_wire, job_from_spec, spec_from_job},
    observation::{JobMessage, Observed, observed},
    plan::{JobFacts, job_plan},
    report::{Progress, progress, progress_to_wire},
    server::{Foreign, server_from_wire, server_to_wire},
    slot::{
        batch_to_wire, observed_slot, observed_slot_to_wire, role_from_wire, role_to_wire, slots_to_wire, work_to_wire,
    },
    status::{
        CRASHING, Explained, JOB_STATES, end_name, job_state, job_status, mode_from_wire, mode_name, mode_to_wire,
        verdict_text,
    },
};

/// Package `trainmaster.v1`: messages, clients and servers.
#[allow(missing_docs, clippy::all, rustdoc::all)] // generated; the documentation is in the .proto files
pub mod v1 {
    tonic::include_proto!("trainmaster.v1");
}

/// The server of `Feed`, which answers with [`EncodedAssignment`]s.
#[allow(missing_docs, clippy::all, rustdoc::all)] // generated
pub mod feed_server {
    include!(concat!(env!("OUT_DIR"), "/feed/trainmaster.v1.rs"));
    pub use feed_server::*;
}

/// The encoded `FileDescriptorSet` of the package, for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/trainmaster.v1.bin"));

//! The wire contracts of `include/trainmaster/v1`, generated, and their conversions to and from the core's types.

/// Package `trainmaster.v1`: messages, clients and servers.
#[allow(missing_docs, clippy::all)] // generated; the documentation is in the .proto files
pub mod v1 {
    tonic::include_proto!("trainmaster.v1");
}

/// The encoded `FileDescriptorSet` of the package, for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/trainmaster.v1.bin"));

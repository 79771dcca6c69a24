//! Package `trainmaster.yarn.v1`: the messages between plug-ins, ApplicationMasters and this adapter.
// Generated; the documentation is in the .proto files.
#![allow(missing_docs, clippy::all, rustdoc::all)]

tonic::include_proto!("trainmaster.yarn.v1");

//! Package `trainmaster.yarn.v1`: what plug-ins, ApplicationMasters and this adapter say to each other.
// Generated; the documentation is in the .proto files.
#![allow(missing_docs, clippy::all, rustdoc::all)]

tonic::include_proto!("trainmaster.yarn.v1");

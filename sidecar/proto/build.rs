//! Compiles the public contracts under `include/` without a system protoc.
use std::{env, error::Error, fs, path::PathBuf};

use prost::Message;

const FILES: [&str; 5] = ["job", "feed", "manager", "jobs", "admin"];

fn main() -> Result<(), Box<dyn Error>> {
    let include = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../include");
    let files = FILES.map(|name| include.join(format!("trainmaster/v1/{name}.proto")));
    for file in &files {
        println!("cargo:rerun-if-changed={}", file.display());
    }
    let descriptors = protox::compile(&files, [&include])?;
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("trainmaster.v1.bin"), descriptors.encode_to_vec())?;
    let mut config = prost_build::Config::new();
    config.enable_type_names();
    // The JSON of `jobs` and of the page `/jobs`.
    for message in ["ListReply", "JobStatus", "Slot", "DeviceShare"] {
        config.type_attribute(format!(".trainmaster.v1.{message}"), "#[derive(serde::Serialize)]");
    }
    for (field, attribute) in [
        ("ListReply.fallback", "serialize_with = \"crate::status::text_to_json\""),
        ("JobStatus.reason", "serialize_with = \"crate::status::text_to_json\""),
        ("JobStatus.external", "skip"),
        ("JobStatus.spec", "skip"),
        ("Slot.role", "serialize_with = \"crate::slot::role_to_json\""),
    ] {
        config.field_attribute(format!(".trainmaster.v1.{field}"), format!("#[serde({attribute})]"));
    }
    let builder = || tonic_prost_build::configure().codec_path("crate::BoundedCodec");
    builder().compile_fds_with_config(descriptors.clone(), config)?;

    // The server of `Feed` once more, with assignments that are encoded already.
    let mut feed = descriptors;
    feed.file.iter_mut().for_each(|file| file.service.retain(|service| service.name() == "Feed"));
    let folder = PathBuf::from(env::var("OUT_DIR")?).join("feed");
    fs::create_dir_all(&folder)?;
    let server = builder().build_client(false).out_dir(folder);
    let server = server.extern_path(".trainmaster.v1.Assignment", "crate::EncodedAssignment");
    server.extern_path(".trainmaster.v1", "crate::v1").compile_fds(feed)?;
    Ok(())
}

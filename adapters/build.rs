//! Compiles the used parts of the managers' own protocols, without a system protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    #[cfg(feature = "ray")]
    ray()?;
    #[cfg(feature = "yarn")]
    yarn()?;
    Ok(())
}

#[cfg(feature = "ray")]
fn ray() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=ray/proto");
    let descriptors = protox::compile(["autoscaler.proto", "gcs.proto"], ["ray/proto"])?;
    tonic_prost_build::configure().build_server(false).compile_fds(descriptors)?;
    Ok(())
}

#[cfg(feature = "yarn")]
fn yarn() -> Result<(), Box<dyn std::error::Error>> {
    for file in ["bridge", "master"] {
        println!("cargo:rerun-if-changed=yarn/{file}.proto");
    }
    let descriptors = protox::compile(["bridge.proto", "master.proto"], ["yarn"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}

//! The header, from the sources. It lands in OUT_DIR; a test holds the committed one against it.

use std::{env, fs, path::Path};

fn main() {
    let here = env::var("CARGO_MANIFEST_DIR").expect("set by cargo");
    let here = Path::new(&here);
    for input in ["src", "cbindgen.toml", "header.txt"] {
        println!("cargo::rerun-if-changed={input}");
    }
    let mut config = cbindgen::Config::from_file(here.join("cbindgen.toml")).expect("cbindgen.toml");
    config.header = Some(fs::read_to_string(here.join("header.txt")).expect("header.txt").trim_end().to_owned());
    let header = cbindgen::Builder::new().with_crate(here).with_config(config).generate().expect("the header is made");
    header.write_to_file(Path::new(&env::var("OUT_DIR").expect("set by cargo")).join("trainmaster.h"));
}

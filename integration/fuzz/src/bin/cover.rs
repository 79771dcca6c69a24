//! libFuzzer with one target, named by `TRAINMASTER_FUZZ_TARGET`. `make fuzz` builds and runs it.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use trainmaster_fuzz::{Target, find};

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("TRAINMASTER_FUZZ_TARGET").unwrap_or_default();
    find(&name).unwrap_or_else(|| panic!("TRAINMASTER_FUZZ_TARGET={name:?} is no target"))
});

fuzz_target!(|bytes: &[u8]| (TARGET.run)(bytes));

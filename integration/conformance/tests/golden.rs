//! Every scenario with each of its engines, against its golden decisions.

#[path = "../../../ffi/tests/common/mod.rs"]
mod c;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use trainmaster_conformance::{Scenario, play, stream};
use trainmaster_core::engines::REGISTRY;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn files(name: &str) -> BTreeMap<String, PathBuf> {
    let paths = fs::read_dir(folder(name)).expect(name).map(|entry| entry.expect(name).path());
    paths.map(|path| (path.file_name().expect("a file").to_string_lossy().into_owned(), path)).collect()
}

/// (name of the golden file, scenario, engine) of all scenarios.
fn all() -> Vec<(String, Scenario, String)> {
    let mut all = Vec::new();
    for (name, path) in files("scenarios") {
        let text = fs::read_to_string(&path).expect("readable");
        let scenario = Scenario::from_toml(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let engines = scenario.played_by();
        let stem = name.strip_suffix(".toml").unwrap_or_else(|| panic!("{name} is not a .toml file"));
        all.extend(engines.into_iter().map(|engine| (format!("{stem}.{engine}.txt"), scenario.clone(), engine)));
    }
    all
}

#[test]
fn decisions_are_the_golden_ones() {
    let bless = std::env::var_os("BLESS").is_some_and(|value| value == "1");
    assert!(!(bless && std::env::var_os("CI").is_some()), "golden files are not written in CI");
    let mut wrong = Vec::new();
    for (name, scenario, engine) in all() {
        let transcript = play(&scenario, &engine).unwrap_or_else(|error| panic!("{name}: {error}"));
        let path = folder("golden").join(&name);
        if bless {
            fs::write(&path, transcript.text()).expect("writable");
            continue;
        }
        let golden = fs::read_to_string(&path).unwrap_or_default();
        if let Some((line, was, is)) = difference(&golden, transcript.text()) {
            wrong.push(format!("{name}, line {line}:\n  golden {was}\n  now    {is}"));
        }
    }
    assert!(wrong.is_empty(), "{}\n`make goldens` writes them anew", wrong.join("\n"));
}

#[test]
fn every_engine_has_a_scenario_and_every_golden_file_too() {
    let all = all();
    for entry in REGISTRY {
        assert!(all.iter().any(|(_, _, engine)| engine == entry.name), "{} has no scenario", entry.name);
    }
    let expected: BTreeSet<_> = all.into_iter().map(|(name, ..)| name).collect();
    let found: BTreeSet<_> = files("golden").into_keys().collect();
    let missing: Vec<_> = expected.difference(&found).collect();
    let unexpected: Vec<_> = found.difference(&expected).collect();
    assert!(
        missing.is_empty() && unexpected.is_empty(),
        "golden files are missing: {missing:?}, which `make goldens` writes; of no scenario: {unexpected:?}"
    );
}

/// Through the C library, with a C program that reads plain lines.
#[test]
fn decisions_through_c_are_the_golden_ones() {
    let drive = c::compile("../integration/conformance/tests/drive.c", &[c::STRICT, c::SANITIZED].concat());
    let mut wrong = Vec::new();
    for (name, scenario, engine) in all() {
        let lines = stream(&scenario, &engine).unwrap_or_else(|error| panic!("{name}: {error}"));
        let transcript = c::feed(&mut c::sanitized(&drive), &lines);
        let golden = fs::read_to_string(folder("golden").join(&name)).unwrap_or_default();
        if let Some((line, was, is)) = difference(&golden, &transcript) {
            wrong.push(format!("{name}, line {line}:\n  golden {was}\n  C      {is}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The first line that differs, with both versions.
fn difference<'a>(golden: &'a str, now: &'a str) -> Option<(usize, &'a str, &'a str)> {
    let ended = || std::iter::repeat("(nothing)");
    let lines = golden.lines().chain(ended()).zip(now.lines().chain(ended()));
    let most = golden.lines().count().max(now.lines().count());
    let found = lines.take(most).enumerate().find(|(_, (was, is))| was != is);
    found.map(|(at, (was, is))| (at + 1, was, is))
}

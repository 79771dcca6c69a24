//! The committed header is the one that the sources make.

use std::{fs, path::Path};

use trainmaster_core::Settings;

#[test]
fn the_committed_header_is_up_to_date() {
    let made = include_str!(concat!(env!("OUT_DIR"), "/trainmaster.h"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../include/trainmaster.h");
    if std::env::var_os("BLESS").is_some_and(|value| value == "1") {
        assert!(std::env::var_os("CI").is_none(), "the header is not written in CI");
        fs::write(&path, made).expect("writable");
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let differs = committed.lines().zip(made.lines()).position(|(was, is)| was != is);
    assert!(
        committed == made,
        "include/trainmaster.h differs from the sources from line {} on: BLESS=1 cargo test -p trainmaster-ffi --test \
         header writes it anew",
        differs.map_or(committed.lines().count().min(made.lines().count()), |at| at) + 1
    );
}

#[test]
fn the_settings_it_shows_are_the_defaults() {
    let header = include_str!("../../include/trainmaster.h");
    let shown = header.split("// ```").nth(1).expect("a block").strip_prefix("toml").expect("of TOML");
    let lines: Vec<&str> = shown.lines().map(|line| line.trim_start_matches("//").trim_start()).collect();
    assert_eq!(Settings::from_toml(&lines.join("\n")).unwrap(), Settings::default());
}

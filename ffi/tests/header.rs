//! The committed header is the one that the sources make.

use std::{fs, path::Path};

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
        "include/trainmaster.h differs from the sources from line {} on: BLESS=1 cargo test -p trainmaster-ffi --test header \
         writes it anew",
        differs.map_or(committed.lines().count().min(made.lines().count()), |at| at) + 1
    );
}

#[test]
fn everything_in_the_header_is_documented() {
    let header = include_str!("../../include/trainmaster.h");
    let lines: Vec<&str> = header.lines().collect();
    let mut seen = 0;
    for (at, line) in lines.iter().enumerate() {
        let before = at.checked_sub(1).map_or("", |at| lines[at].trim_start());
        let opens = (line.starts_with("struct ") || line.starts_with("enum ")) && line.ends_with('{');
        let item = opens
            || line.starts_with("typedef ")
            || (line.contains(" trainmaster_") && line.contains('(') && !line.starts_with([' ', '/', '#']));
        let field = line.starts_with("    ")
            && line.ends_with([';', ','])
            && !line.contains('(')
            && !line.starts_with("     ")
            && !line.starts_with("    //")
            && !line.starts_with("    string.")
            && !line.starts_with("    return")
            && !line.contains("string;");
        if item || field {
            seen += 1;
            assert!(before.starts_with("//"), "line {}: {line:?} has no comment", at + 1);
        }
    }
    assert!(seen > 300, "{seen}");
}

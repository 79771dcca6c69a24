//! The library as C uses it: compiled strictly, run under AddressSanitizer, UndefinedBehaviorSanitizer and Valgrind.

mod common;

use std::{fs, io::Write, process::Command};

use common::{SANITIZED, STRICT, built, cc, compile, here, run, sanitized};

fn flags<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [STRICT, more].concat()
}

#[test]
fn the_suite_holds_under_the_sanitizers() {
    let suite = compile("tests/suite.c", &flags(SANITIZED));
    let output = run(&mut sanitized(&suite));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "all promises kept\n");
}

/// Whether a tool is there; if not, the test says that it is skipped: on its output, and in the file that `make test`
/// counts.
fn has(tool: &str) -> bool {
    let is_there = Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        let reason = format!("{tool} is not installed: see scripts/install c");
        println!("skipped: {reason}");
        if let Some(file) = std::env::var_os("TRAINMASTER_SKIPS") {
            let file = fs::OpenOptions::new().append(true).create(true).open(file);
            let _ = file.and_then(|mut file| writeln!(file, "{reason}"));
        }
    }
    is_there
}

#[test]
fn the_suite_holds_under_valgrind() {
    if !has("valgrind") {
        return;
    }
    let suite = compile("tests/suite.c", &flags(&["-O1"]));
    let mut valgrind = Command::new("valgrind");
    valgrind.args([
        "--quiet",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite,indirect,possible",
        "--error-exitcode=9",
    ]);
    // A function's name is then that of the one it was inlined into.
    let suppressions = format!("--suppressions={}", here().join("tests/valgrind.supp").display());
    run(valgrind.args(["--read-inline-info=no", &suppressions]).arg(&suite.path));
}

/// A tool that finds nothing may have looked for nothing.
#[test]
fn the_sanitizers_find_what_they_are_for() {
    let folder = tempfile::tempdir().unwrap();
    let new = "struct trainmaster_scheduler *s = NULL; trainmaster_scheduler_new(trainmaster_text(\"\"), &s, NULL);";
    for (name, fault, finding) in [
        ("leak", format!("{new} s = NULL;"), "detected memory leaks"),
        (
            "twice",
            format!("{new} trainmaster_scheduler_free(s); trainmaster_scheduler_free(s);"),
            "attempting double-free|heap-use-after-free",
        ),
    ] {
        let source = folder.path().join(name).with_extension("c");
        fs::write(&source, format!("#include \"trainmaster.h\"\nint main(void) {{ {fault} return 0; }}\n")).unwrap();
        let program = compile(source.to_str().unwrap(), &flags(SANITIZED));
        // What an ended call left on the stack may still point there.
        let output = sanitized(&program).env("LSAN_OPTIONS", "use_stacks=0:use_registers=0").output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        let found = finding.split('|').any(|finding| words.contains(finding));
        assert!(!output.status.success() && found, "{name}: {words}");
    }
}

/// Random calls with two seeds, side by side: 100,000 with each, unless `TRAINMASTER_CALLS` sets it. `make test-all`
/// has a million.
#[test]
fn random_calls_neither_crash_nor_leak() {
    let calls = std::env::var("TRAINMASTER_CALLS").unwrap_or_else(|_| "100000".into());
    let fuzzer = compile("tests/fuzz.c", &flags(SANITIZED));
    std::thread::scope(|threads| {
        for seed in ["1", "2"] {
            let (fuzzer, calls) = (&fuzzer, &calls);
            threads.spawn(move || {
                let output = run(sanitized(fuzzer).args([calls.as_str(), seed]));
                assert!(String::from_utf8_lossy(&output.stdout).starts_with(&format!("{calls} calls, ")));
            });
        }
    });
}

#[test]
fn the_example_says_what_the_readme_says() {
    let first = compile("examples/first.c", &flags(SANITIZED));
    let output = run(&mut sanitized(&first));
    let said = String::from_utf8(output.stdout).unwrap();
    let readme = fs::read_to_string(here().join("README.md")).unwrap();
    assert!(readme.contains(&said), "the README's output of the example is not this:\n{said}");
    let source = fs::read_to_string(here().join("examples/first.c")).unwrap();
    assert!(readme.contains(&source), "the README's example is not examples/first.c");
}

#[test]
fn ten_rounds_of_two_types_are_as_in_the_readme() {
    let rounds = compile("examples/rounds.c", &flags(SANITIZED));
    let output = run(&mut sanitized(&rounds));
    let said = String::from_utf8(output.stdout).unwrap();
    let readme = fs::read_to_string(here().join("README.md")).unwrap();
    assert!(readme.contains(&said), "the README's output of the rounds is not this:\n{said}");
    assert!(said.contains("speech is done"), "{said}");
}

#[test]
fn the_header_is_c99_and_cpp() {
    let folder = tempfile::tempdir().unwrap();
    let source = "#include \"trainmaster.h\"\n#include \"trainmaster.h\"\n\
                  int main(void) { return trainmaster_text(NULL).length == 0 ? TRAINMASTER_OK : 1; }\n";
    if !has("g++") {
        return;
    }
    for (name, standards) in [("a.c", &["c99", "c11", "c17"][..]), ("a.cpp", &["c++11", "c++17", "c++20"])] {
        let path = folder.path().join(name);
        fs::write(&path, source).unwrap();
        for standard in standards {
            let standard = format!("-std={standard}");
            let all = [&standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"];
            run(cc(&all).arg(&path));
        }
    }
}

/// The names that a shared library shows.
fn exported(library: &std::path::Path) -> Vec<String> {
    let output = run(Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(library));
    let names = String::from_utf8(output.stdout).unwrap();
    names.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

#[test]
fn the_shared_library_exports_the_header_and_nothing_else() {
    let header = fs::read_to_string(here().join("../include/trainmaster.h")).unwrap();
    let mut exported = exported(&built().join("libtrainmaster.so"));
    // This test's own build has it; one for use doesn't.
    exported.retain(|name| name != "trainmaster_fault_inject");
    assert!(exported.len() > 30, "{exported:?}");
    for name in &exported {
        assert!(header.contains(&format!("{name}(")), "{name} is exported and not in the header");
    }
    let code = header.lines().filter(|line| !line.trim_start().starts_with("//") && !line.starts_with("static"));
    let declared =
        code.filter_map(|line| line.split_once('(')).filter_map(|(before, _)| before.split(['*', ' ']).next_back());
    for name in declared.filter(|name| name.starts_with("trainmaster_")) {
        assert!(exported.iter().any(|known| known == name), "{name} is in the header and not exported");
    }
}

#[test]
fn a_plugin_hides_the_archive_and_works() {
    let folder = tempfile::tempdir().unwrap();
    let (plugin, host) = (folder.path().join("plugin.so"), folder.path().join("host"));
    let mut link = cc(&flags(&["-shared", "-fPIC", "-Wl,--exclude-libs,ALL", "-Wl,-Bsymbolic", "-Wl,-z,nodelete"]));
    link.arg("-o").arg(&plugin).arg(here().join("tests/plugin.c")).arg(built().join("libtrainmaster.a"));
    run(link.args(["-lpthread", "-ldl", "-lm"]));
    assert_eq!(exported(&plugin), ["plugin_decide"]);
    run(cc(&flags(&[])).arg("-o").arg(&host).arg(here().join("tests/host.c")).arg("-ldl"));
    let output = run(Command::new(&host).arg(&plugin));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "the plugin decided: 1 job runs\n");
}

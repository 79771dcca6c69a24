//! Programs in C against the library that this test run has built.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use tempfile::TempDir;

/// `ffi/`.
pub(crate) fn here() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    // Other crates' tests use this as well.
    if here.ends_with("ffi") { here.into() } else { here.join("../../ffi") }
}

/// The folder of `libtrainmaster.{a,so}`: this test depends on the crate, so they were made before it.
pub(crate) fn built() -> PathBuf {
    let folder = std::env::current_exe().expect("a test knows its path").parent().expect("in a folder").to_owned();
    let library = std::fs::read(folder.join("libtrainmaster.so")).expect("libtrainmaster.so beside the test");
    let fault = b"trainmaster_fault_inject";
    assert!(
        library.windows(fault.len()).any(|bytes| bytes == fault),
        "the library in {} was last built to be used, without faults to inject: touch ffi/src/lib.rs and test again",
        folder.display()
    );
    folder
}

/// What every program is compiled with; a warning is an error.
pub(crate) const STRICT: &[&str] =
    &["-std=c99", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g"];
/// Finds misuse of memory and undefined behaviour, and leaks at the end.
pub(crate) const SANITIZED: &[&str] =
    &["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"];
/// What the archive needs of the system.
const SYSTEM: &[&str] = &["-lpthread", "-ldl", "-lm"];

/// A program in a folder of its own.
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    _folder: TempDir,
}

/// Compiles a source of this crate and links the archive.
pub(crate) fn compile(source: &str, flags: &[&str]) -> Program {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("program");
    let mut cc = cc(flags);
    cc.arg("-o").arg(&path).arg(here().join(source)).arg(built().join("libtrainmaster.a")).args(SYSTEM);
    run(&mut cc);
    Program { path, _folder: folder }
}

/// The compiler with these flags and the header.
pub(crate) fn cc(flags: &[&str]) -> Command {
    let mut cc = Command::new("cc");
    cc.args(flags).arg("-I").arg(here().join("../include"));
    cc
}

/// Runs to its end; it has to succeed.
pub(crate) fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    output
}

/// Runs to its end with this input; its output. It has to succeed.
#[allow(dead_code, reason = "not every test feeds a program")]
pub(crate) fn feed(command: &mut Command, input: &str) -> String {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut to = child.stdin.take().expect("piped");
    let input = input.to_owned();
    let writer = std::thread::spawn(move || to.write_all(input.as_bytes()));
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("no panic").expect("it reads all");
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The sanitizers' options: stacks of allocations are kept short, since collecting them takes longest.
pub(crate) fn sanitized(program: &Program) -> Command {
    let mut command = Command::new(&program.path);
    command.env("ASAN_OPTIONS", "malloc_context_size=4:detect_leaks=1").env("UBSAN_OPTIONS", "print_stacktrace=1");
    command
}

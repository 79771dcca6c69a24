//! A real Slurm for a test: `integration/slurm/cluster/start` starts it, and dropping the value ends it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// A running Slurm.
pub(crate) struct Cluster {
    folder: tempfile::TempDir,
}

/// The repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().expect("the repository")
}

/// Whether Slurm is available. It is installed if it is missing. Without it the test is skipped and counted.
pub(crate) fn available() -> bool {
    let install = Command::new(root().join("scripts/install")).arg("slurm").output().expect("a script");
    let problem = match install.status.success() {
        true if is_root() => return true,
        true => "a Slurm for tests needs root".to_owned(),
        false => format!("no Slurm: {}", String::from_utf8_lossy(&install.stderr).trim()),
    };
    skipped(&problem);
    false
}

/// Counts a skipped test. Under CI, it is a failure.
pub(crate) fn skipped(problem: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{problem}");
    println!("skipped: {problem}");
    if let Some(file) = std::env::var_os("TRAINMASTER_SKIPS") {
        use std::io::Write as _;
        let file = fs::OpenOptions::new().append(true).create(true).open(file);
        let _ = file.and_then(|mut file| writeln!(file, "{problem}"));
    }
}

/// A program without the variables by which cargo describes the tested package: a build script that sees others than
/// before runs again, and all that depends on it is built again.
pub(crate) fn outside(program: &str) -> Command {
    let mut command = Command::new(program);
    let described = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(described)).for_each(|(name, _)| {
        command.env_remove(name);
    });
    command
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata("/proc/self").is_ok_and(|data| data.uid() == 0)
}

/// The features of the workspace's tests, as in `scripts/test`: other builds would replace their programs.
pub(crate) const FEATURES: &str = "trainmaster/otel";

/// The plugins to load.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plugins {
    /// The plugins of a site.
    Product,
    /// With an agent that can be ordered to fail.
    Faulty,
}

impl Plugins {
    /// Builds the plugins, and returns their folder.
    pub(crate) fn build(self) -> PathBuf {
        static DONE: Mutex<Vec<Plugins>> = Mutex::new(Vec::new());
        // Both are linked from files with the same names.
        let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (name, features) = match self {
            Self::Product => ("slurm", ""),
            Self::Faulty => ("slurm-faulty", ",trainmaster-slurm-agent/fault-injection"),
        };
        let folder = root().join("target").join(name);
        if !done.contains(&self) {
            // The Makefile uses the cargo that runs this test. A test of all packages has built the same libraries and
            // programs, because their features depend on what is built with them.
            let mut make = outside("make");
            make.arg("-C").arg(root().join("integration/slurm"));
            make.arg("PROFILE=dev").arg(format!("PACKAGES=--workspace --lib --tests --features {FEATURES}{features}"));
            make.arg(format!("OUT={}", folder.display())).arg(format!("CARGO={}", env!("CARGO")));
            let made = make.output().expect("make");
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
            done.push(self);
        }
        folder
    }
}

impl Cluster {
    /// Starts a cluster with these lines in slurm.conf and the plugins of this folder.
    pub(crate) fn start(nodes: u32, extra: &str, plugins: Option<&Path>, prepare: impl FnOnce(&Path)) -> Self {
        Self::start_with(nodes, extra, plugins, &[], prepare)
    }

    /// The same, with variables for the start script.
    pub(crate) fn start_with(
        nodes: u32,
        extra: &str,
        plugins: Option<&Path>,
        env: &[(&str, &str)],
        prepare: impl FnOnce(&Path),
    ) -> Self {
        let folder = tempfile::Builder::new().prefix("tm-slurm").tempdir().expect("a scratch folder");
        prepare(folder.path());
        let mut start = Command::new(root().join("integration/slurm/cluster/start"));
        start.arg(folder.path()).arg(nodes.to_string()).env("EXTRA", extra).envs(env.iter().copied());
        if let Some(plugins) = plugins {
            start.env("PLUGINS", plugins);
        }
        let started = start.output().expect("a script");
        let cluster = Self { folder };
        assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
        cluster
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Runs a command of Slurm.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(program);
        command.args(arguments).env("SLURM_CONF", self.folder().join("etc/slurm.conf")).current_dir(self.folder());
        // Variables of an outer Slurm job would change the submission.
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SBATCH_")) {
            command.env_remove(name);
        }
        command.output().expect(program)
    }

    /// Submits a job, and returns its number or sbatch's error.
    pub(crate) fn sbatch(&self, arguments: &[&str], script: &str) -> Result<String, String> {
        let file = self.folder().join("job.sh");
        fs::write(&file, script).expect("a script");
        let out = self.run("sbatch", &[&["--parsable"], arguments, &[file.to_str().expect("a path")]].concat());
        match out.status.success() {
            true => Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned()),
            false => Err(String::from_utf8_lossy(&out.stderr).into_owned()),
        }
    }

    /// `scontrol show job`, with a line for each record.
    pub(crate) fn show(&self, id: &str) -> String {
        let out = self.run("scontrol", &["--oneliner", "--details", "show", "job", id]);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// The value of a field of `scontrol show job`.
    pub(crate) fn field(&self, id: &str, field: &str) -> String {
        let shown = self.show(id);
        let start = format!(" {field}=");
        shown.split_once(&start).map_or("", |(_, rest)| rest.split(' ').next().unwrap_or("")).trim().to_owned()
    }
}

impl Cluster {
    /// Prints the last output of daemons and jobs after a failure.
    fn tell(&self) {
        let files =
            ["", "log"].into_iter().filter_map(|folder| fs::read_dir(self.folder().join(folder)).ok()).flatten();
        let mut files: Vec<PathBuf> = files.flatten().map(|file| file.path()).collect();
        files.sort();
        for file in files {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            if !name.starts_with("out-") && !name.ends_with(".log") {
                continue;
            }
            let text = fs::read(&file).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<&str> = text.lines().collect();
            eprintln!("--- {name}\n{}", lines[lines.len().saturating_sub(30)..].join("\n"));
        }
    }
}

/// Waits for a condition. Some conditions need the agent's next check of all jobs, once a minute.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(600);
    while !done() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(100));
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() {
            self.tell();
        }
        let _ = Command::new(root().join("integration/slurm/cluster/stop")).arg(self.folder()).output();
    }
}

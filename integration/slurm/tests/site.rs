//! A Slurm cluster with Trainmaster.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    ops::Deref,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    time::{Duration, UNIX_EPOCH},
};

use serde_json::Value;

use super::cluster::{Cluster, FEATURES, Plugins, outside, root, until};

/// The two lines for slurm.conf.
pub(crate) const BOTH: &str = "SlurmctldPlugstack=trainmaster\nJobSubmitPlugins=trainmaster";

/// Optimus with short intervals.
pub(crate) const OPTIMUS: &str = "engine = \"optimus\"\nstability = \"off\"\n[scheduler.parameters]\n\
    interval = \"4s\"\n\
                       rescale_cost = false\nexplore = false\n";

/// Equal shares, which don't depend on the machine's speed.
pub(crate) const DRF: &str = "engine = \"drf\"\nstability = \"off\"\n[scheduler.parameters]\ninterval = \"6s\"\n";

/// Time for processes to leave a node even on a slow machine, after which their job would restart.
pub(crate) const PATIENT: &str = "grace = \"5m\"";

/// Setup of a site.
pub(crate) struct Setup<'a> {
    pub(crate) nodes: u32,
    /// Variables for `cluster/start`.
    pub(crate) env: &'a [(&'a str, &'a str)],
    pub(crate) plugins: Plugins,
    /// Keys of trainmaster.toml before its tables.
    pub(crate) keys: &'a str,
    /// Content of its table `slurm`.
    pub(crate) slurm: &'a str,
    /// Content of its table `scheduler`.
    pub(crate) scheduler: &'a str,
    /// PEM files: certificate, key.
    pub(crate) tls: Option<(PathBuf, PathBuf)>,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Self {
            nodes: 3,
            env: &[],
            plugins: Plugins::Product,
            keys: "",
            slurm: "lease = \"20s\"",
            scheduler: OPTIMUS,
            tls: None,
        }
    }
}

/// A running site.
pub(crate) struct Site {
    cluster: Cluster,
    port: u16,
}

impl Deref for Site {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

impl Setup<'_> {
    pub(crate) fn start(self) -> Site {
        let port = trainmaster_conformance::free_port();
        let Self { keys, slurm, scheduler, .. } = self;
        let (scheme, tls) = match &self.tls {
            None => ("http", String::new()),
            Some((cert, key)) => ("https", format!("cert = {cert:?}\nkey = {key:?}\n")),
        };
        let config = format!(
            "poll = \"300ms\"\n{keys}\n[feed]\nlisten = \"127.0.0.1:{port}\"\n{tls}[slurm]\nfeed = \
             \"{scheme}://localhost:{port}\"\n{slurm}\n[scheduler]\n{scheduler}"
        );
        let plugins = self.plugins.build();
        let cluster = Cluster::start_with(self.nodes, BOTH, Some(&plugins), self.env, |folder| {
            fs::create_dir_all(folder.join("etc")).unwrap();
            fs::write(folder.join("etc/trainmaster.toml"), config).unwrap();
        });
        let site = Site { cluster, port };
        until("the agent is up", || site.is_up());
        site
    }
}

/// Folder of the training program. It is built if it is missing, with the features of the workspace's tests.
pub(crate) fn programs() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let build = ["build", "--locked", "--workspace", "--bins", "--tests", "--features", FEATURES];
        let built = outside(env!("CARGO")).args(build).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        root().join("target/debug")
    })
}

/// A training job of `epochs` epochs, with additional lines at its head. GPUs and servers are emulated, all else is
/// real.
pub(crate) fn training(epochs: u32, head: &str) -> String {
    let (programs, steps) = (programs().display(), root().join("integration/slurm"));
    let steps = steps.display();
    format!(
        "#!/bin/bash\n#SBATCH -n 3 --gpus-per-node=2 -N 1 --open-mode=append\n{head}\n#TRAINMASTER mode = sync\n\
         #TRAINMASTER batch = 240\n#TRAINMASTER worker.requested = 2\n#TRAINMASTER worker.max = 8\n\
         #TRAINMASTER worker.cpu = 1\n#TRAINMASTER server.requested = 1\n#TRAINMASTER server.max = 4\n\
         #TRAINMASTER server.cpu = 1\n#TRAINMASTER convergence.delta = 0\n\
         #TRAINMASTER convergence.max_epochs = {epochs}\n\
         export PATH={programs}:{steps}:$PATH\nexport TRAINMASTER_BATCH=240 \
         TRAINMASTER_DELTA=0 TRAINMASTER_MAX_EPOCHS={epochs}\n\
         trainmaster-step -- trainmaster-trainer --device-example-ms 0.5 --device-step-ms 10 --device-update-ms 5\n"
    )
}

impl Site {
    pub(crate) fn is_up(&self) -> bool {
        UnixStream::connect(self.folder().join("state/trainmaster/control")).is_ok()
    }

    /// The feed's port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The agent's answer on its control socket.
    pub(crate) fn ask(&self, request: &str) -> Value {
        let mut stream =
            UnixStream::connect(self.folder().join("state/trainmaster/control")).expect("the agent listens");
        stream.set_read_timeout(Some(Duration::from_secs(600))).unwrap();
        writeln!(stream, "{request}").unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    pub(crate) fn status(&self) -> Value {
        self.ask(r#"{"command":"status"}"#)
    }

    /// The agent's record of a job.
    pub(crate) fn job(&self, id: &str) -> Option<Value> {
        let status = self.status();
        let jobs = status["jobs"].as_array().expect("jobs").clone();
        jobs.into_iter().find(|job| job["id"].as_u64() == id.parse().ok())
    }

    pub(crate) fn submit(&self, name: &str, script: &str) -> String {
        let out = self.folder().join(format!("out-{name}"));
        self.sbatch(&["-J", name, "-o", out.to_str().unwrap()], script).unwrap()
    }

    /// Output of a job.
    pub(crate) fn output(&self, name: &str) -> String {
        fs::read_to_string(self.folder().join(format!("out-{name}"))).unwrap_or_default()
    }

    pub(crate) fn state(&self, id: &str) -> String {
        self.field(id, "JobState")
    }

    pub(crate) fn completes(&self, id: &str) {
        until(&format!("job {id} completes"), || {
            let state = self.state(id);
            let bad = ["FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"].contains(&state.as_str());
            let said = || fs::read_to_string(self.field(id, "StdOut")).unwrap_or_default();
            assert!(!bad, "{}{}", self.show(id), said());
            state == "COMPLETED"
        });
    }

    pub(crate) fn scontrol(&self, arguments: &[&str]) {
        let done = self.run("scontrol", arguments);
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder().join("log/slurmctld.log")).unwrap()
    }

    /// Waits until Slurm has saved all jobs as they are now, because it would repeat unsaved changes after a crash. The
    /// ordinary job that was saved last stays in the queue, held.
    pub(crate) fn saves(&self) {
        let mark = format!("saved-{}", UNIX_EPOCH.elapsed().unwrap().as_nanos());
        self.sbatch(&["-H", "-J", &mark, "-n1", "-o", "/dev/null"], "#!/bin/sh\n").unwrap();
        let file = self.folder().join("state/job_state");
        until("Slurm saves its jobs", || {
            fs::read(&file).unwrap_or_default().windows(mark.len()).any(|part| part == mark.as_bytes())
        });
    }

    /// Ends the controller by this signal, and starts it again.
    pub(crate) fn restart(&self, signal: &str) {
        let file = self.folder().join("run/slurmctld.pid");
        let pid = fs::read_to_string(&file).unwrap().trim().to_owned();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        until("slurmctld ends", || !Path::new("/proc").join(&pid).exists());
        let started = self.run("slurmctld", &["-f", self.folder().join("etc/slurm.conf").to_str().unwrap()]);
        assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
        until("slurmctld is back", || self.run("scontrol", &["ping"]).status.success());
        // For the script that stops the cluster.
        let pid = fs::read_to_string(&file).unwrap();
        let mut pids = fs::OpenOptions::new().append(true).open(self.folder().join("run/pids")).unwrap();
        writeln!(pids, "{}", pid.trim()).unwrap();
    }

    /// The nodes in a field of a job, in order.
    pub(crate) fn nodes(&self, id: &str, field: &str) -> Vec<String> {
        let list = self.field(id, field);
        if list == "(null)" || list.is_empty() {
            return Vec::new();
        }
        let shown = self.run("scontrol", &["show", "hostnames", &list]);
        String::from_utf8_lossy(&shown.stdout).lines().map(str::to_owned).collect()
    }
}

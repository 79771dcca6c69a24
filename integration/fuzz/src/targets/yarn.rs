//! Input that any user of YARN can send to the adapter.

use trainmaster_adapters::yarn::{Accounts, read_job_file};

use super::seeds::{JOB, text, texts};
use crate::target::Target;

const TONY: &str = r#"
tony.application.name = "mnist"
tony.yarn.queue = "dl"
tony.worker.instances = "2"
tony.worker.max-instances = 6
tony.worker.memory = "3G"
tony.worker.vcores = 2
tony.worker.gpus = 1
tony.worker.command = "python train.py"
tony.ps.instances = 1
tony.ps.command = "python ps.py"
tony.application.node-label = "fast"
batch = 64
"#;

/// The job file of an application: ours or TonY's, percent-encoded or not, with its user and queue before it.
pub(super) const JOB_FILE: Target = Target {
    name: "yarn-job",
    run: |bytes| {
        let text = text(bytes);
        let mut parts = text.splitn(3, '\0');
        let [user, queue, file] = [(); 3].map(|()| parts.next().unwrap_or_default());
        let _ = read_job_file(file, user, queue, Accounts::Job);
        let _ = read_job_file(&text, "alice", "root.dl", Accounts::Yarn);
    },
    seeds: || {
        let encoded: String = TONY.bytes().map(|byte| format!("%{byte:02X}")).collect();
        texts(&[TONY, JOB, &encoded, &format!("alice\0root.dl\0{TONY}")])
    },
    words: &["tony.", "worker.", "ps.", "instances = ", "%0A", "%", "node-label = ", "[tony]", "\"2g\"", "a."],
};

//! Files of users and policies.

use trainmaster_adapters::{local, ray, slurm, yarn};
use trainmaster_core::{
    Budget, Event, JobSpec, Policy, Scheduler, Settings, Time,
    journal::{Record, frames},
};

use super::seeds::{JOB as JOB_FILE, JOB_WORDS, text, texts};
use crate::target::Target;

/// A job file.
pub(super) const JOB: Target = Target {
    name: "job",
    run: |bytes| {
        if let Ok(spec) = JobSpec::from_toml(&text(bytes)) {
            spec.validate().expect("what is read is valid");
        }
    },
    seeds: || {
        let parted = "name = \"a\"\nresize = \"none\"\nworker = { cpu = 1, requested = 2, min = 2 }\n\
            server = { cpu = 1 }\n\
                      partitions = [{ parameters = 1000 }, { parameters = 500, after = [0] }]\n";
        texts(&[JOB_FILE, "name = \"a\"\nmode = \"allreduce\"\nworker = { cpu = 1 }\n", parted])
    },
    words: JOB_WORDS,
};

const OPTIMUS: &str = "engine = \"optimus\"\nseed = 1\n[parameters]\nshrink_to_fit = true\ninterval = \"60s\"\n\
                        [stability]\nmin_run = \"5m\"\n[queues.batch]\ngpu = 4.5\n";

/// The scheduler's settings.
pub(super) const SETTINGS: Target = Target {
    name: "settings",
    run: |bytes| {
        if let Ok(settings) = Settings::from_toml(&text(bytes)) {
            let _ = Scheduler::new(settings);
        }
    },
    seeds: || {
        let quotas = "engine = \"drf\"\n[queues.gold]\nweight = 2\n[tenants.a]\nquota = { gpu = 4 }\n[stability]\n\
            min_run = \"5m\"";
        texts(&[OPTIMUS, quotas, "engine = \"mlfs\"\nseed = 7\n[parameters]\ninterval = \"1m\""])
    },
    words: &[
        "engine = ",
        "optimus",
        "oasis",
        "edge",
        "mlfs",
        "[parameters]",
        "interval = ",
        "[tenants.",
        "quota",
        "a.",
    ],
};

/// A learnt policy.
pub(super) const POLICY: Target = Target {
    name: "policy",
    run: |bytes| {
        let _ = Policy::from_toml(&text(bytes));
    },
    seeds: || {
        let shipped = include_str!("../../../../sidecar/policy/rl.toml");
        // Its head, because the weights are long.
        texts(&[&shipped[..shipped.len().min(2000)], shipped])
    },
    words: &["version = ", "engine = ", "weights = ", "inputs = ", "hidden = ", "hash = ", "1e30", "nan", "a."],
};

/// Configurations of the adapters. They come from administrators, but an error must not end the program.
pub(super) const CONFIGURATION: Target = Target {
    name: "configuration",
    run: |bytes| {
        let text = text(bytes);
        let _ = (slurm::Config::from_toml(&text), local::Cluster::parse(&text, "f").map(drop));
        let _ = (ray::Config::parse(&text, "f").map(drop), yarn::Config::parse(&text, "f").map(drop));
    },
    seeds: || {
        texts(&[
            include_str!("../../../../adapters/local/cluster.toml"),
            include_str!("../../../../adapters/ray/ray.toml"),
            include_str!("../../../../adapters/yarn/yarn.toml"),
            "[slurm]\nlease = \"10m\"\nfeed = \"http://c:1\"\nbandwidth = \"10Gbit\"\npriority = 7",
        ])
    },
    words: &["[[servers]]", "listen = ", "= \"1h\"", "a.", "[slurm]", "nodes = "],
};

/// Records of a journal. The target adds checksums, so that the content is parsed.
pub(super) const RECORDS: Target = Target {
    name: "records",
    run: |bytes| {
        for frame in frames(bytes).take(100) {
            let _ = Record::decode(frame);
        }
        let whole = framed(bytes);
        let _ = Record::is_snapshot(&whole);
        if let Ok(record) = Record::decode(&whole) {
            let _ = (record.at(), record.decision().map(drop));
        }
    },
    seeds: || {
        let mut scheduler = Scheduler::new(Settings::default()).expect("the defaults are allowed");
        scheduler.start_journal();
        let spec =
            Box::new(JobSpec::from_toml("name = \"a\"\nmode = \"allreduce\"\nworker = { cpu = 1 }").expect("a job"));
        scheduler.apply(Time(1), Event::JobSubmitted { spec, external: None, token_hash: None }).expect("it is taken");
        let outcome = scheduler.prepare(Time(2)).run(Budget::steps(1_000_000));
        scheduler.commit(Time(2), outcome).expect("it is the one that is open");
        scheduler.snapshot();
        // Without their frames.
        scheduler.drain_journal().into_iter().map(|record| record[9..].to_vec()).collect()
    },
    words: &["\u{7f}", "\u{1}", "\u{0}"],
};

/// A record with this content.
fn framed(body: &[u8]) -> Vec<u8> {
    let version = Scheduler::new(Settings::default()).map(|mut scheduler| {
        scheduler.start_journal();
        scheduler.drain_journal()[0][8]
    });
    let body = [&[version.expect("the defaults are allowed")], body].concat();
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.extend(&blake3::hash(&body).as_bytes()[..4]);
    frame.extend(body);
    frame
}

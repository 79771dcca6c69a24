//! The demo of `edge`, which schedules data chunks: a cluster with a cloud, jobs with more chunks than workers, and the
//! uploads that the training programs record.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result, bail};
use trainmaster_terminal::{
    Paper,
    sheet::{Column, Entry},
};

use super::{record::Run, report::sheet};

/// The engine of this demo.
pub(super) const ENGINE: &str = "edge";

/// Two servers at the edge, and a cloud with long uploads.
pub(super) const CLUSTER: &str = r#"name = "demo"
grace = "5s"

[[server]]
name = "edge-a"
gpu = 2
cpu = 16
memory = "64GiB"
labels = { zone = "campus", upload = "500ms" }

[[server]]
name = "edge-b"
gpu = 2
cpu = 16
memory = "64GiB"
labels = { zone = "campus", upload = "1s" }

[[server]]
name = "cloud"
gpu = 3
cpu = 16
memory = "64GiB"
labels = { zone = "cloud", upload = "5s" }
"#;

/// A job: its arrival in seconds, and its data.
struct Job {
    name: &'static str,
    arrival: f64,
    mode: &'static str,
    chunks: u32,
    batches: u32,
    epochs: u32,
    /// Milliseconds of a mini-batch.
    batch_ms: u32,
    /// Threshold of its convergence.
    delta: f64,
}

const JOBS: [Job; 6] = [
    Job {
        name: "resnet-50",
        arrival: 0.0,
        mode: "sync",
        chunks: 8,
        batches: 10,
        epochs: 80,
        batch_ms: 40,
        delta: 0.003,
    },
    Job {
        name: "googlenet",
        arrival: 3.0,
        mode: "async",
        chunks: 6,
        batches: 10,
        epochs: 60,
        batch_ms: 40,
        delta: 0.005,
    },
    Job { name: "lenet", arrival: 8.0, mode: "sync", chunks: 2, batches: 10, epochs: 60, batch_ms: 20, delta: 0.03 },
    Job { name: "alexnet", arrival: 12.0, mode: "sync", chunks: 4, batches: 10, epochs: 60, batch_ms: 30, delta: 0.02 },
    Job {
        name: "resnet-101",
        arrival: 15.0,
        mode: "async",
        chunks: 3,
        batches: 10,
        epochs: 60,
        batch_ms: 30,
        delta: 0.02,
    },
    Job {
        name: "inception-bn",
        arrival: 20.0,
        mode: "sync",
        chunks: 2,
        batches: 10,
        epochs: 60,
        batch_ms: 20,
        delta: 0.03,
    },
];

/// Arrival and job file of each job. Data and the start of training come from the seed.
pub(super) fn jobs(seed: u64) -> Vec<(f64, String)> {
    JOBS.iter().zip(0..).map(|(job, at)| (job.arrival, job.file(seed * 100 + at))).collect()
}

impl Job {
    fn file(&self, seed: u64) -> String {
        let Self { name, mode, chunks, batches, epochs, batch_ms, delta, .. } = self;
        let command = format!(
            "trainmaster-trainer --learning-rate=0.02 --seed={seed} --report-ms=500 --device-step-ms={batch_ms} \
             --device-start-ms=200"
        );
        // An epoch is all chunks once, with 16 examples per mini-batch.
        let examples = chunks * batches * 16;
        format!(
            "name = \"{name}\"\nmode = \"{mode}\"\nbatch = 16\nexamples = {examples}\n\
             convergence = {{ delta = {delta}, patience = 3, max_epochs = {epochs} }}\n\
             worker = {{ gpu = 1, cpu = 2, memory = \"4GiB\", max = {chunks}, command = \"{command}\" }}\n\
             server = {{ cpu = 1, memory = \"4GiB\", max = 1, command = \"{command}\" }}\n\
             dataset = {{ chunks = {chunks}, batches_per_chunk = {batches}, epochs = {epochs}, \
             batch_time = \"{batch_ms}ms\", chunk_size = \"1MiB\" }}\n"
        )
    }
}

/// Uploads of a job's data to each server, as recorded by its workers: the number for each chunk.
type Sent = BTreeMap<String, BTreeMap<u32, u32>>;

/// Reads the uploads from the folders of the jobs: `<number>-<name>/data/<server>/sent`, with a line for each upload.
fn sent(jobs: &Path) -> Result<Sent> {
    let mut sent = Sent::new();
    for folder in folders(jobs)? {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = name.split_once('-').map_or(name.clone(), |(_, name)| name.to_owned());
        for server in folders(&folder.join("data"))? {
            let lines = fs::read_to_string(server.join("sent")).unwrap_or_default();
            for line in lines.lines() {
                let chunk = line.split_whitespace().next().and_then(|chunk| chunk.parse().ok());
                let chunk = chunk.with_context(|| format!("{}: {line:?} names no chunk", server.display()))?;
                *sent.entry(name.clone()).or_default().entry(chunk).or_default() += 1;
            }
        }
    }
    Ok(sent)
}

fn folders(of: &Path) -> Result<Vec<std::path::PathBuf>> {
    let Ok(entries) = fs::read_dir(of) else { return Ok(Vec::new()) };
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    Ok(paths.into_iter().filter(|path| path.is_dir()).collect())
}

/// Prints the results for workers and chunks.
///
/// # Errors
/// A chunk was sent twice, or never.
pub(super) fn report(run: &Run, state_dir: &Path) -> Result<()> {
    let sent = sent(&state_dir.join("daemon/adapters/local/jobs"))?;
    let mut table = sheet(
        "JOB",
        [
            Column::key("CHUNKS"),
            Column::key("SENT"),
            Column::key("SENT TWICE"),
            Column::key("WORKERS LOST AND REGAINED"),
            Column::key("RESTARTS"),
            Column::spare("END", 1),
        ],
    );
    let (mut twice, mut missing) = (0, 0);
    for job in &run.jobs {
        let none = BTreeMap::new();
        let counts = sent.get(&job.name).unwrap_or(&none);
        let chunks = JOBS.iter().find(|known| known.name == job.name).map_or(0, |known| known.chunks);
        let repeated = counts.values().filter(|times| **times > 1).count();
        twice += repeated;
        missing += (chunks as usize).saturating_sub(counts.len());
        table.row([
            Entry::from(&job.name),
            chunks.into(),
            counts.values().sum::<u32>().into(),
            repeated.into(),
            job.regained.into(),
            job.incarnations.saturating_sub(1).into(),
            Entry::from(&job.reason),
        ]);
    }
    println!("{}", table.on(&Paper::stdout()));
    if twice + missing > 0 {
        bail!("{twice} chunks were sent twice, {missing} never");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use trainmaster_core::{JobSpec, Scheduler, Settings};

    use super::{super::workload::settings, *};

    #[test]
    fn every_job_is_one_that_the_engine_takes() {
        Scheduler::new(Settings::from_toml(&settings(ENGINE)).unwrap()).unwrap();
        let engine = trainmaster_core::engines::find(ENGINE).unwrap().build(&BTreeMap::new()).unwrap();
        for (_, file) in jobs(3) {
            let spec = JobSpec::from_toml(&file).unwrap();
            assert_eq!(engine.accepts(&spec), Ok(()));
        }
    }

    #[test]
    fn uploads_are_counted_chunk_by_chunk_over_all_servers() {
        let folder = tempfile::tempdir().unwrap();
        for (server, lines) in [("a", "0 21800\n3 21800\n"), ("b", "3 21800\n")] {
            let path = folder.path().join("7-res-net/data").join(server);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("sent"), lines).unwrap();
        }
        assert_eq!(sent(folder.path()).unwrap(), Sent::from([("res-net".into(), BTreeMap::from([(0, 1), (3, 2)]))]));
    }
}

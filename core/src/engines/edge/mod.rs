//! A_online: data chunks are sent to workers once, at the edge or in the cloud, and workers are preempted one by one.
//!
//! The edge-cloud scheduler of `papers/edge.txt` in the project's terms: servers at the edge hold workers (a GPU each) of
//! several types, the cloud (servers labelled `zone = "cloud"`) as many as it has, further from the data. A job's data are D chunks, each to be
//! trained E times over. On arrival each chunk goes for good to the worker where it adds least to the average training time of all
//! jobs (`dispatch.rs`, Eq. 5): its upload, the chunks that it waits for, its training, and the chunks that wait for it.
//! A worker trains the chunk with the highest average processing rate first (`queue.rs`); who is interrupted keeps its
//! place and what it has trained, and the rest of its job goes on. Data never move.
//!
//! In the plan a job has a slot for every worker that has chunks of it, from its arrival to its end, and says what each
//! chunk does ([`Work`](crate::decision::Work)). A slot without a running chunk is charged memory and disk only, so that
//! the jobs that share a GPU need that much memory on its server. Preempting is a change of work, not of slots: nobody
//! restarts, and it isn't a change of shape that stability forbids.
//!
//! Where the paper is silent, or isn't about real clusters:
//! * time isn't cut into slots: whatever happens is decided at once, jobs of one moment by id;
//! * t0 is in the future, so the queue is projected: worked off from now on in its order, with chunks that land before
//!   then. Q misses chunks of a lower rate that are still on their way at t0; with `count_coming` it counts those that would
//!   have to wait (beyond the paper);
//! * the cloud isn't endless. It takes a whole job at the rate without communication, or all remaining chunks after the
//!   first that went there, only if it has a free worker for each; else it takes chunks one by one. A worker there has
//!   chunks of one job at a time, so nobody is preempted;
//! * a job may have fewer workers than chunks (`worker.max`): past them, only its own workers are asked;
//! * parameter servers (A_ps) stay where they are, breaks included, as long as there is room: moving them is a restart. Else, and
//!   at first, they go to the edge's server with the most free bandwidth (`ps = "random"` as in the paper), where none is free to
//!   the cloud; all of a job's share one server, as many as its least;
//! * a server is asked only if its `storage` holds the chunk (§VI), and its memory another idle slot; who finds no place
//!   for some chunk waits for one with it;
//! * chunks whose server is lost are dispatched again, with what they had left to train;
//! * the time of a mini-batch is that of the job's dataset, else measured; until it is known the job waits.
//!
//! A chunk is taken as trained when the training program says so; predictions only order and weigh.
//!
//! It runs jobs with parameter servers whose workers take one whole GPU each, where managers can give a GPU to one job's process
//! while another's waits (`local`). Choose it for data that must not move, workers of several types and a cloud to fall
//! back on. Cost of an arrival with D chunks: O(W·(log n + u)) for the first, with W workers asked, n chunks
//! pending on each and u on their way there; O(log W + log n + u) for each later one. Anything else that happens costs
//! O(D) for each job, and O(log n) for each worker, that it touches.

mod dispatch;
mod index;
mod memo;
mod queue;
mod round;

use self::memo::Stage;
pub(super) use self::{index::Index, memo::Memo};
use crate::engine::{About, Build, Engine, EngineError, Gang, Parameters, Round, Triggers};
use crate::{
    job::{Dataset, JobSpec, Resize},
    place::SortBy,
    resources::is_gpu,
    settings::SettingsError,
    state::State,
    time::Span,
};

/// Who found no place is tried again after so long, whatever happens.
const RETRY: Span = Span::seconds(60);
/// A chunk doesn't take longer than thirty years.
const LONGEST: Span = Span::seconds(30 * 365 * 86_400);

/// Where parameter servers go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Servers {
    Bandwidth,
    Random,
}

/// The engine, as its module describes it.
#[derive(Clone, Debug)]
pub struct Edge {
    cloud: bool,
    servers: Servers,
    count_coming: bool,
}

impl Build for Edge {
    type Engine = Self;
    const ABOUT: About = About::new(
        "edge",
        "sends each data chunk to one worker for good, at the edge or in the cloud, and preempts workers one by one",
        "A_online: preemptive scheduling of distributed ML jobs in edge-cloud networks",
    );

    fn build(parameters: &mut Parameters<'_>) -> Result<Self, SettingsError> {
        let cloud = "off: nothing is sent to servers labelled zone = \"cloud\" (the paper's A_online-E)";
        let ps = "where parameter servers go: \"bandwidth\", where most is free, or \"random\" as in the paper";
        let choices = [("bandwidth", Servers::Bandwidth), ("random", Servers::Random)];
        let coming = "beyond the paper: chunks of a lower rate that would land while the new one is trained count as waiting for it";
        Ok(Self {
            cloud: parameters.flag("cloud", true, cloud)?,
            servers: parameters.choice("ps", "bandwidth", &choices, ps)?,
            count_coming: parameters.flag("count_coming", false, coming)?,
        })
    }
}

impl Engine for Edge {
    type Memo = Memo;
    type Index = Index;

    fn order(&self) -> Option<SortBy> {
        None
    }

    fn triggers(&self) -> Triggers {
        Triggers { interval: None, arrival: true, departure: true }
    }

    fn gang(&self) -> Gang {
        Gang::Partial
    }

    fn accepts(&self, spec: &JobSpec) -> Result<(), String> {
        runs(spec)
    }

    fn decide(&self, round: &mut Round<'_, Index>, memo: &mut Memo) -> Result<(), EngineError> {
        let chunks = round::Round::new(self, round.state, memo, round.index, round.budget);
        round.proposal = chunks.run(round.changes)?;
        Ok(())
    }

    /// `increase_s`: Σ min Q of all chunks dispatched so far; `chunks_waiting`: dispatched and not being trained.
    fn readings(&self, _: &State, memo: &Memo) -> Vec<(String, f64)> {
        let waits = |stage: Stage| matches!(stage, Stage::Queued | Stage::Preempted);
        let waiting = memo.jobs.values().flat_map(|job| &job.chunks).filter(|chunk| waits(chunk.stage)).count();
        let increase = memo.increase as f64 / queue::ONE as f64 / 1000.0;
        vec![("increase_s".into(), increase), ("chunks_waiting".into(), waiting as f64)]
    }
}

/// Whether it could ever run such a job.
fn runs(spec: &JobSpec) -> Result<(), String> {
    let Some(data) = &spec.dataset else {
        return Err(
            "dataset: is missing; edge schedules a job's data chunks: give chunks, batches_per_chunk and epochs".into(),
        );
    };
    let gpus: i64 = spec.worker.demand.iter().filter(|(name, _)| is_gpu(name)).map(|(_, amount)| amount).sum();
    let Some(server) = &spec.server else {
        return Err(
            "mode: \"allreduce\" must be \"sync\" or \"async\": in a ring no worker can be preempted alone".into()
        );
    };
    if data.chunks > Dataset::MOST_TRACKED {
        return Err(format!("dataset.chunks: {} must be at most {}", data.chunks, Dataset::MOST_TRACKED));
    }
    if gpus != 1000 {
        return Err(format!("worker.gpu: {} must be 1: a worker is one GPU", gpus as f64 / 1000.0));
    }
    if server.demand.iter().any(|(name, amount)| is_gpu(name) && *amount > 0) {
        return Err("server.gpu: must be 0: parameter servers take no worker".into());
    }
    if spec.resize == Resize::Fixed {
        return Err(
            "resize: \"fixed\" must be \"any\" or \"workers\": a job has as many workers as take its chunks".into()
        );
    }
    if spec.worker.min != 1 {
        return Err(format!("worker.min: {} must be 1: workers are preempted one by one", spec.worker.min));
    }
    Ok(())
}

//! A_online: each data chunk is assigned to one worker for good, at the edge or in the cloud, and workers are preempted
//! one by one.
//!
//! The edge-cloud scheduler A_online (preemptive scheduling of distributed ML jobs in edge-cloud networks), in the
//! project's terms: edge servers have workers (one GPU each) of several types. The cloud (servers with the label
//! `zone = "cloud"`) has more workers, farther from the data. The data of a job are D chunks, each trained E times. On
//! arrival, each chunk is assigned to the worker at which it adds least to the average training time of all jobs
//! (`dispatch.rs`, Eq. 5). This is the sum of its upload, the chunks before it, its training, and the delay of the
//! chunks after it. A worker trains the chunk with the highest average processing rate first (`queue.rs`). An
//! interrupted chunk keeps its place and its progress, and the other workers of its job continue. Data never move.
//!
//! In the plan, a job has a slot for each worker that has chunks of it, from its arrival to its end, with the state of
//! each chunk ([`Work`](crate::decision::Work)). A slot without a running chunk is charged memory and disk only. So
//! jobs that share a GPU need memory for all of them on its server. Preemption changes the work of slots, not the
//! slots: nothing restarts, and stability rules don't forbid it.
//!
//! Deviations from the paper, for open points and for real clusters:
//! * Time isn't divided into slots. Every event is decided at once, and simultaneous jobs are ordered by id.
//! * t0 is in the future, so the queue is projected: worked off from now on in its order, with the chunks that arrive
//!   before then. Q ignores chunks with a lower rate that are still on their way at t0. With `count_coming` it includes
//!   those that would have to wait (an addition to the paper).
//! * The cloud is limited. It takes a whole job at the rate without communication, or all remaining chunks after the
//!   first one that went there, only if it has a free worker for each. Otherwise it takes single chunks, which queue
//!   and preempt there as at the edge (`cloud_queues`). In the paper's cloud without end a free worker is always as
//!   good, and nothing is preempted there.
//! * A job can have fewer workers than chunks (`worker.max`). Beyond this number, only its own workers are considered.
//! * Parameter servers (A_ps) stay on their server, also during breaks, while there is room, because moving them is a
//!   restart. Otherwise, and at first, they go to the edge server with the most free bandwidth (`ps = "random"` as in
//!   the paper), or to the cloud if no edge server has room. All parameter servers of a job share one server; their
//!   number is its minimum.
//! * Where an idle slot keeps its GPUs (label `idle_gpus = "kept"`, as on Ray and YARN), jobs can't take turns on one.
//!   A worker there has chunks of one job until that ends. Chunks that find no worker wait for one.
//! * A server is only considered if its `storage` holds the chunk (§VI) and its memory another idle slot. If a chunk
//!   has no place, its job waits for one.
//! * Chunks on a lost server are dispatched again, with their remaining training.
//! * The time of a mini-batch comes from the job's dataset, or else from measurements. While it is unknown, the job
//!   waits.
//!
//! A chunk is complete when the training program reports it. Predictions only affect orders and weights.
//!
//! The engine runs jobs with parameter servers whose workers take one whole GPU each, best under managers that can give
//! a GPU to a process of one job while another job's process waits (`local`). Choose it for data that must not move,
//! several types of workers, and a cloud as overflow. Cost of an arrival with D chunks, with W workers, n pending
//! chunks on each and u on their way there: O(W·(log n + u)) for the first chunk, and O(log W + log n + u) for each
//! later one. Other events cost O(D) per affected job, and O(log n) per affected worker.

mod dispatch;
mod index;
mod kept;
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

/// Time after which jobs without a place are tried again.
const RETRY: Span = Span::seconds(60);
/// Maximum time of a chunk: thirty years.
const LONGEST: Span = Span::seconds(30 * 365 * 86_400);

/// Choice of the server for parameter servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Servers {
    Bandwidth,
    Random,
}

/// The engine, as its module describes it.
#[derive(Clone, Debug)]
pub struct Edge {
    cloud: bool,
    cloud_queues: bool,
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
        let queues = "off: a worker in the cloud has chunks of one job at a time, so chunks that find none free there \
            wait at the edge";
        let ps = "where parameter servers go: \"bandwidth\", where most is free, or \"random\" as in the paper";
        let choices = [("bandwidth", Servers::Bandwidth), ("random", Servers::Random)];
        let coming = "beyond the paper: chunks of a lower rate that would land while the new one is trained count as \
            waiting for it";
        Ok(Self {
            cloud: parameters.flag("cloud", true, cloud)?,
            cloud_queues: parameters.flag("cloud_queues", true, queues)?,
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

    fn caveat(&self, state: &State) -> Option<&'static str> {
        let kept = state.present_servers().any(|server| server.place.keeps_gpus);
        kept.then_some(
            "a manager keeps the GPU of an idle slot, so a GPU of its servers has chunks of one job until that ends",
        )
    }

    fn decide(&self, round: &mut Round<'_, Index>, memo: &mut Memo) -> Result<(), EngineError> {
        let chunks = round::Round::new(self, round.state, memo, round.index, round.budget);
        round.proposal = chunks.run(round.changes)?;
        Ok(())
    }

    /// `increase_s`: Σ min Q of all chunks dispatched so far; `chunks_waiting`: chunks that are dispatched and not in
    /// training.
    fn readings(&self, _: &State, memo: &Memo) -> Vec<(String, f64)> {
        let waits = |stage: Stage| matches!(stage, Stage::Queued | Stage::Preempted);
        let waiting = memo.jobs.values().flat_map(|job| &job.chunks).filter(|chunk| waits(chunk.stage)).count();
        let increase = memo.increase as f64 / queue::ONE as f64 / 1000.0;
        vec![("increase_s".into(), increase), ("chunks_waiting".into(), waiting as f64)]
    }
}

/// Whether the engine can run such a job.
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

use std::sync::Arc;

use super::*;
use crate::{Fate, Goal, SimJob, Speed, Truth};
use trainmaster_core::{
    decision::{DeviceShare, Proposal, Slot, Work},
    engine::{Engine, EngineError, Gang, Round, Triggers},
    ids::ServerId,
    job::{Dataset, Job, JobSpec},
    settings::Stability,
    shape::Role,
};

/// One server with one GPU. Every job has a worker slot with it, and the latest job has the GPU until all its
/// chunks are trained.
struct Last;

impl Engine for Last {
    type Memo = ();
    type Index = ();

    fn triggers(&self) -> Triggers {
        Triggers { interval: None, arrival: true, departure: true }
    }

    fn gang(&self) -> Gang {
        Gang::Partial
    }

    fn decide(&self, turn: &mut Round<'_>, (): &mut ()) -> Result<(), EngineError> {
        let state = turn.state;
        if !state.server(ServerId(0)).present {
            return Ok(());
        }
        let left = |job: &Job| (0..2).find(|chunk| !job.learnt.chunks.contains(chunk));
        let first = state.jobs.values().rev().find(|job| left(job).is_some()).map(|job| job.id);
        let give = |job: &Arc<Job>| {
            let slot = |role, devices: &[DeviceShare]| Slot {
                role,
                index: 0,
                server: ServerId(0),
                devices: devices.iter().copied().collect(),
            };
            let gpu = DeviceShare { device: 0, milli: 1000 };
            let work = (0..2).map(|chunk| Work {
                item: WorkItem::Chunk(chunk),
                slot: Some((Role::Worker, 0)),
                state: match left(job) {
                    _ if job.learnt.chunks.contains(&chunk) => WorkState::Done,
                    Some(next) if next == chunk && first == Some(job.id) => WorkState::Running,
                    _ => WorkState::Queued(0),
                },
            });
            let slots = Allocation::new(vec![slot(Role::Worker, &[gpu]), slot(Role::Server, &[])]);
            (job.id, Verdict::Run(Arc::new(slots.with_work(work.collect()))))
        };
        let changes = state.jobs.values().map(give);
        let changes = changes.filter(|(id, verdict)| state.jobs[id].verdict != *verdict).collect();
        turn.proposal = Proposal { changes, wake_at: None };
        Ok(())
    }
}

fn workload() -> Workload {
    let server = trainmaster_core::ServerSpec {
        name: "s".into(),
        capacity: [("cpu", 2000)].map(|(name, have)| (name.to_owned(), have)).into(),
        devices: vec!["gpu".into()],
        labels: [("upload", "60s")].map(|(label, value)| (label.to_owned(), value.to_owned())).into(),
        draining: false,
    };
    let job = |number: i64| {
        let data = Dataset { chunks: 2, batches_per_chunk: 10, epochs: 3, chunk_size: 5, ..Dataset::default() };
        let batch_time = Some(Span::seconds(10));
        let spec =
            JobSpec { dataset: Some(Dataset { batch_time, ..data }), ..JobSpec::minimal(&format!("job-{number}")) };
        let speed = Speed::MiniBatches { seconds: 20.0, per_server: f64::INFINITY, together: Some(10.0) };
        SimJob::new(Time(number * 500_000), spec, Truth::of(speed, Goal::Epochs(3, None)))
    };
    Workload { servers: vec![server], jobs: vec![job(0), job(1), job(2)], ..Workload::default() }
}

fn played(workload: &Workload) -> Report {
    let stability = Stability { enabled: false, ..Stability::default() };
    let options = Options { settings: Settings { stability, ..Settings::default() }, ..Options::default() };
    let scheduler = Scheduler::with_engine(options.settings.clone(), Arc::new(Last)).unwrap();
    play_with(scheduler, workload, &options, &mut ()).unwrap()
}

#[test]
fn jobs_with_chunks_take_turns_on_one_gpu() {
    let report = played(&workload());
    assert_eq!((report.failed, report.overfull, report.restarts), (0, 0, 0), "{:?}", report.failure);
    assert!(report.jobs.iter().all(|job| job.fate == Fate::Completed), "{:?}", report.jobs);
    // 300 s per chunk. Uploads take 60 s, during which the new job already has the GPU. The last job completes
    // first, then the second and the first do their remaining work.
    let ends: Vec<f64> = report.jobs.iter().map(|job| job.arrival_s + job.jct_s.unwrap()).collect();
    for (end, expected) in ends.iter().zip([1980.0, 1820.0, 1660.0]) {
        assert!((end - expected).abs() < 1.0, "{ends:?}");
    }
    // Each new job interrupts the running chunk.
    assert_eq!(report.jobs.iter().map(|job| job.preemptions).collect::<Vec<_>>(), [1, 1, 0]);
    assert_eq!((report.preemptions, report.bytes_moved), (2, (3 * 2 * 5) << 20));
    // All slots are on one server, so only uploads are communication.
    assert_eq!(report.communication_s, Some(60.0));
    assert!((report.utilisation - 1.0).abs() < 0.01 && report.edge_utilisation == report.utilisation);
    // The last job never waits. The others wait while another job has the GPU.
    assert!(report.jobs[2].waited_s < 0.1 && report.jobs[0].waited_s > 1000.0, "{:?}", report.jobs);
    assert_eq!(report, played(&workload()));
}

#[test]
fn chunks_survive_late_enactment_and_failures() {
    let mut workload = workload();
    workload.enact_delay = Span::seconds(7);
    let back = Some(Time(1_000_000));
    workload.outages = vec![super::super::Outage { server: 0, at: Time(900_000), back }];
    let report = played(&workload);
    assert_eq!((report.failed, report.overfull), (0, 0), "{:?}", report.failure);
    assert!(report.jobs.iter().all(|job| job.fate == Fate::Completed), "{:?}", report.jobs);
    assert_eq!(report.jobs.iter().map(|job| job.crashes).collect::<Vec<_>>(), [1, 1, 0]);
    // The disk still has the data.
    assert_eq!(report.bytes_moved, (3 * 2 * 5) << 20);
}

#[test]
fn waiting_jobs_and_interrupted_chunks_are_preempted() {
    let with = |states: &[WorkState]| {
        let work =
            (0..).zip(states).map(|(item, state)| Work { item: WorkItem::Chunk(item), slot: None, state: *state });
        Allocation::default().with_work(work.collect())
    };
    use WorkState::{Done, Preempted, Queued, Running};
    let ran = with(&[Running, Running, Running, Running, Queued(0)]);
    let now = with(&[Running, Queued(1), Preempted, Done, Running]);
    assert_eq!(preemptions(&ran, &Verdict::Run(now.into())), 2);
    assert_eq!(preemptions(&ran, &Verdict::Run(ran.clone().into())), 0);
    assert_eq!(preemptions(&ran, &Verdict::Wait(trainmaster_core::Reason::NotConsidered)), 1);
}

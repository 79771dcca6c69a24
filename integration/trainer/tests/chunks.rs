//! Data chunks that the scheduler interrupts and resumes one by one.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    thread::sleep,
    time::Duration,
};

use crate::common::{Job, step, wait};
use trainmaster_proto::v1::{Work, WorkState};
use trainmaster_trainer::{id::Id, local::board::Board};

const FLAGS: &[&str] = &[
    "--features=5",
    "--classes=4",
    "--noise=0.5",
    "--learning-rate=0.1",
    "--delta=0",
    "--examples=120",
    "--chunks=5",
    "--chunk-batches=4",
    "--chunk-epochs=25",
    "--upload-ms=100",
    "--device-step-ms=6",
    "--report-steps=1",
    // A resting job isn't stuck.
    "--start-ms=200",
];

/// The chunks of each worker, in order of their training.
const SENT: [&[u32]; 3] = [&[0, 3], &[1, 4], &[2]];

/// The work that a scheduler would send, with some workers interrupted.
fn work(board: &Board, interrupted: &[u32]) -> Vec<Work> {
    let done: BTreeSet<u32> = board.reports().iter().flat_map(|report| report.chunks.clone()).collect();
    let mut work = Vec::new();
    for (worker, chunks) in (0..).zip(SENT) {
        let mut rank = 0;
        for &chunk in chunks {
            let state = match rank {
                _ if done.contains(&chunk) => WorkState::Done,
                0 if interrupted.contains(&worker) => WorkState::Preempted,
                0 => WorkState::Running,
                _ => WorkState::Queued,
            };
            work.push(Work { chunk, worker: Some(worker), state: state.into(), rank });
            rank += u32::from(state != WorkState::Done);
        }
    }
    work
}

fn started(mode: &'static str) -> Job {
    let mut job = Job::prepare(3, 1, &[FLAGS, &[mode]].concat());
    job.board.direct(work(&job.board, &[]));
    crate::common::slots(3, 1).into_keys().for_each(|id| job.spawn(id));
    job
}

/// Assigns chunks as others end, until all have ended.
fn to_the_end(job: &mut Job) {
    let mut told = 0;
    job.wait("the end of all chunks", |board| {
        let ended = board.reports().iter().flat_map(|report| report.chunks.clone()).collect::<BTreeSet<_>>();
        if ended.len() > told {
            told = ended.len();
            board.direct(work(board, &[]));
        }
        ended.len() == 5
    });
    job.all_end_well();
    let last = job.board.reports().pop().unwrap();
    assert!(last.finished && !last.converged, "{last:?}");
    let saved = job.checkpoint();
    assert_eq!(saved.chunks, (0..5).map(|chunk| (chunk, 100)).collect::<Vec<_>>());
    assert_eq!((saved.losses.len(), last.epoch), (25, 25));
    assert!(saved.losses[24] < saved.losses[0] / 2.0, "it learns: {:?}", saved.losses);
}

/// Each chunk was sent once, to its worker.
fn nothing_is_sent_twice(job: &Job) {
    for (worker, chunks) in (0..).zip(SENT) {
        let folder = job.data(Id::worker(worker));
        let sent = fs::read_to_string(folder.join("sent")).unwrap();
        let sent: BTreeMap<u32, Vec<u64>> = sent.lines().fold(BTreeMap::new(), |mut sent, line| {
            let (chunk, bytes) = line.split_once(' ').unwrap();
            sent.entry(chunk.parse().unwrap()).or_insert_with(Vec::new).push(bytes.parse().unwrap());
            sent
        });
        let size = |chunk: u32| vec![fs::metadata(folder.join(format!("chunk-{chunk}"))).unwrap().len()];
        assert_eq!(sent, chunks.iter().map(|chunk| (*chunk, size(*chunk))).collect());
    }
}

/// Clock ticks of a process so far.
fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn chunks_are_interrupted_and_resumed_while_others_continue() {
    for mode in ["--mode=sync", "--mode=async"] {
        let mut job = started(mode);
        job.wait_workers(3);
        job.board.direct(work(&job.board, &[1]));
        job.wait_workers(2);
        let (pid, before) = (job.pid(Id::worker(1)), ticks(job.pid(Id::worker(1))));
        job.wait_step(step(&job.board) + 30);
        assert!(ticks(pid) <= before + 2, "who is interrupted uses no CPU");
        job.board.direct(work(&job.board, &[]));
        job.wait_workers(3);
        to_the_end(&mut job);
        nothing_is_sent_twice(&job);
    }
}

#[test]
fn a_job_without_a_running_chunk_rests() {
    let mut job = started("--mode=sync");
    job.wait_workers(3);
    job.board.direct(work(&job.board, &[0, 1, 2]));
    // The order arrives some time later. Without a chunk that runs, no step follows.
    wait("no more steps", || {
        let reached = step(&job.board);
        sleep(Duration::from_millis(500));
        step(&job.board) == reached
    });
    job.board.direct(work(&job.board, &[0, 2]));
    job.wait_workers(1);
    to_the_end(&mut job);
}

#[test]
fn restarts_keep_the_progress_and_data_of_chunks() {
    let mut job = started("--mode=sync");
    job.wait_workers(3);
    job.wait_step(step(&job.board) + 20);
    // A worker is restarted in its place, while the others rest.
    job.board.direct(work(&job.board, &[0, 1]));
    job.wait_workers(1);
    job.kill(Id::worker(2));
    let reached = step(&job.board);
    job.spawn(Id::worker(2));
    job.wait_step(reached + 10);
    job.board.stop(20_000);
    job.all_end_well();
    let saved = job.checkpoint();
    assert!(saved.chunks.iter().all(|(_, trained)| (20..100).contains(trained)), "{:?}", saved.chunks);
    // And the whole job.
    job.restart(3, 1);
    job.board.direct(work(&job.board, &[]));
    to_the_end(&mut job);
    nothing_is_sent_twice(&job);
}

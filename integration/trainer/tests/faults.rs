//! Faults around a job, and their effects.

use std::{
    collections::BTreeSet,
    io::{ErrorKind, Read, Write},
    net::TcpStream,
};

use crate::common::{Job, LIMIT, MODEL, command, slots, step, stop_and_compare, wait};
use rustix::process::Signal;
use trainmaster_trainer::id::Id;

/// Steps slow enough for interventions, without an end.
const ENDLESS: &[&str] = &["--device-step-ms=4", "--report-steps=1", "--max-epochs=1000000"];

fn endless(more: &[&'static str]) -> Vec<&'static str> {
    [MODEL, ENDLESS, more].concat()
}

#[test]
fn reports_made_while_the_feed_was_away_arrive_once() {
    let mut job = Job::start(2, 2, &endless(&["--checkpoint-epochs=1"]));
    job.wait_step(5);
    job.feed_gone();
    let before = step(&job.board);
    // There are no reports now, but checkpoints show that training continues.
    wait("steps without a feed", || saved(&job) > before + 20);
    assert_eq!(step(&job.board), before);
    job.feed_back();
    job.wait_step(before + 20);
    job.board.stop(20_000);
    job.all_end_well();
    let reports = job.board.reports();
    let numbers: Vec<u64> = reports.iter().map(|report| report.seq).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    let trained: u64 = reports.iter().map(|report| report.examples).sum();
    assert_eq!(trained, job.checkpoint().step * 24, "every step is in exactly one report");
}

#[test]
fn a_revision_made_while_the_feed_was_away_is_followed_later() {
    let mut job = Job::start(3, 1, &endless(&[]));
    job.wait_step(5);
    job.feed_gone();
    job.board.revise(slots(2, 1));
    job.feed_back();
    assert_eq!(job.code(Id::worker(2)), 0);
    job.wait_workers(2);
}

#[test]
fn orphans_end_after_the_grace() {
    let mut job = Job::start(2, 1, &endless(&["--orphan-grace-ms=300"]));
    job.wait_step(5);
    job.feed_gone();
    let codes = job.codes();
    assert!(codes.values().all(|code| *code == 43), "{codes:?}");
    assert!(job.checkpoint().step >= 5);
}

#[test]
fn garbage_on_the_ports_changes_nothing() {
    garbage_changes_nothing("--partitions=1");
}

#[test]
fn garbage_on_the_ports_of_a_models_parts_changes_nothing() {
    garbage_changes_nothing("--partitions=2");
}

fn garbage_changes_nothing(partitions: &'static str) {
    let mut job = Job::start(2, 1, &endless(&[partitions]));
    job.wait_step(2);
    let mut sockets = Vec::new();
    for id in [Id::server(0), Id::worker(0), Id::worker(1)] {
        for garbage in [
            &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
            &[0xff; 4096],
            &[0; 64],
            // A frame of two bytes of an unknown kind, the start of a greeting, and a greeting of another job.
            &[2, 0, 0, 0, 99, 0],
            &[60, 0, 0, 0, 1, 0, 0, 0, 0, 0x4d, 0x54, 0x4d, 0x52, 3],
            &[[60, 0, 0, 0, 1, 0, 0, 0, 0, 0x4d, 0x54, 0x4d, 0x52, 3, 0, 9].as_slice(), &[0; 48]].concat(),
        ] {
            let mut socket = TcpStream::connect(job.board.address(id).unwrap()).unwrap();
            let _ = socket.write_all(garbage); // the other side may close before all is sent
            sockets.push(socket);
        }
    }
    for _ in 0..200 {
        sockets.push(TcpStream::connect(job.board.address(Id::server(0)).unwrap()).unwrap());
    }
    job.wait_step(step(&job.board) + 20);
    stop_and_compare(&mut job);
}

#[test]
fn a_caller_without_the_token_is_refused() {
    let job = Job::start(1, 1, &endless(&[]));
    job.wait_step(2);
    // Magic, version, job 7, incarnation 0, worker 5, and an invalid proof.
    let mut greeting = vec![60, 0, 0, 0, 1, 0, 0, 0, 0, 0x4d, 0x54, 0x4d, 0x52, 3, 0, 7, 0, 0, 0, 0, 0, 0, 0];
    greeting.extend([0, 0, 0, 0, 1, 5, 0, 0, 0]);
    greeting.extend([0; 32]);
    let mut socket = TcpStream::connect(job.board.address(Id::server(0)).unwrap()).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket.write_all(&greeting).unwrap();
    match socket.read(&mut [0; 64]) {
        Ok(read) => assert_eq!(read, 0, "the server hangs up without a word"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
}

#[test]
fn a_lost_server_ends_the_incarnation() {
    let mut job = Job::start(2, 3, &endless(&["--checkpoint-epochs=1"]));
    job.wait_step(12);
    job.kill(Id::server(1));
    let codes = job.codes();
    assert!(codes.values().all(|code| *code == 41), "{codes:?}");
    assert!(job.checkpoint().step >= 10);
}

#[test]
fn lost_workers_without_replacement_end_the_incarnation() {
    let mut job = Job::start(2, 1, &endless(&["--replace-ms=400"]));
    job.wait_step(5);
    job.kill(Id::worker(0));
    job.kill(Id::worker(1));
    let codes = job.codes();
    assert!(codes.values().all(|code| *code == 40), "{codes:?}");
    assert!(job.checkpoint().step >= 5);
}

#[test]
fn a_hung_worker_does_not_hang_the_job() {
    for partitions in ["--partitions=1", "--partitions=2"] {
        let mut job = Job::start(2, 1, &endless(&["--replace-ms=100", partitions]));
        job.wait_step(5);
        job.signal(Id::worker(1), Signal::STOP);
        assert_eq!(job.code(Id::server(0)), 40);
        assert_eq!(job.code(Id::worker(0)), 40);
        assert!(job.checkpoint().step >= 5);
        job.kill(Id::worker(1));
    }
}

#[test]
fn a_lost_partition_without_replacement_ends_the_incarnation() {
    for (workers, servers, mode) in [(2, 1, "--mode=sync"), (2, 1, "--mode=async"), (4, 0, "--mode=allreduce")] {
        let mut job = Job::start(workers, servers, &endless(&[mode, "--partitions=2", "--replace-ms=400"]));
        job.wait_step(5);
        job.kill(Id::worker(1));
        let codes = job.codes();
        assert!(codes.values().all(|code| *code == 40), "{mode}: {codes:?}");
        assert!(job.checkpoint().step >= 5);
    }
}

#[test]
fn a_part_that_never_comes_ends_the_incarnation() {
    for (servers, mode) in [(1, "--mode=sync"), (0, "--mode=allreduce")] {
        // One hidden layer more than the model has.
        let flags = endless(&[mode, "--partitions=3", "--hidden=5", "--gather-ms=100", "--start-ms=400"]);
        let mut job = Job::prepare(3, servers, &flags);
        slots(3, servers).into_keys().filter(|id| *id != Id::worker(2)).for_each(|id| job.spawn(id));
        assert_eq!(job.code(job.chief()), 40, "{mode}");
        // On a busy machine others may join after the chief has given up.
        let codes = job.codes();
        assert!(codes.values().all(|code| [40, 42].contains(code)), "{mode}: {codes:?}");
    }
}

#[test]
fn replicas_of_parts_train_asynchronously_and_survive_losses() {
    let mut job = Job::start(4, 2, &endless(&["--mode=async", "--partitions=2", "--learning-rate=0.01"]));
    job.wait_step(30);
    job.kill(Id::worker(3));
    job.wait_workers(2);
    job.wait_step(step(&job.board) + 30);
    job.spawn(Id::worker(3));
    job.wait_workers(4);
    job.kill(Id::worker(0));
    job.spawn(Id::worker(0));
    job.wait_step(step(&job.board) + 100);
    job.board.stop(20_000);
    job.all_end_well();
    let losses = job.checkpoint().losses;
    assert!(losses.last().unwrap() + 0.1 < losses[0], "{losses:?}");
}

#[test]
fn a_stopped_worker_leaves_and_the_job_continues() {
    let mut job = Job::start(3, 1, &endless(&[]));
    job.wait_step(5);
    job.signal(Id::worker(2), Signal::TERM);
    assert_eq!(job.code(Id::worker(2)), 0);
    job.wait_workers(2);
    // The manager signals all of them at once.
    [Id::server(0), Id::worker(0), Id::worker(1)].into_iter().for_each(|id| job.signal(id, Signal::TERM));
    job.all_end_well();
    assert!(job.checkpoint().step >= 5);
}

#[test]
fn another_incarnation_ends_the_process() {
    let mut job = Job::start(2, 2, &endless(&[]));
    job.wait_step(5);
    job.board.restart(slots(1, 1));
    job.all_end_well();
    assert!(job.checkpoint().step >= 5);
    let left: BTreeSet<_> = job.board.acknowledgements().iter().map(|ack| (ack.role, ack.index, ack.leaving)).collect();
    assert_eq!(left.iter().filter(|(_, _, leaving)| *leaving).count(), 4);
}

#[test]
fn a_process_that_starts_too_late_is_dismissed() {
    let mut job = Job::prepare(1, 1, &endless(&[]));
    job.board.revise(slots(1, 1));
    job.spawn(Id::worker(4));
    assert_eq!(job.code(Id::worker(4)), 0);
}

#[test]
fn divergence_has_a_code_of_its_own() {
    for partitions in ["--partitions=1", "--partitions=2"] {
        let mut job = Job::start(2, 1, &endless(&["--learning-rate=1e30", partitions]));
        let codes = job.codes();
        assert!(codes.values().all(|code| *code == 44), "{codes:?}");
    }
}

#[test]
fn a_checkpoint_that_cannot_be_written_has_a_code_of_its_own() {
    let mut job = Job::start(1, 1, &endless(&["--checkpoint-dir=/proc/nowhere"]));
    job.wait_step(5);
    job.board.stop(10_000);
    let codes = job.codes();
    assert!(codes.values().all(|code| *code == 45), "{codes:?}");
}

#[test]
fn asynchronous_training_survives_losses_and_resumes() {
    let mut job = Job::start(3, 2, &endless(&["--mode=async", "--learning-rate=0.01"]));
    job.wait_step(30);
    job.kill(Id::worker(1));
    job.wait_step(step(&job.board) + 30);
    job.spawn(Id::worker(1));
    job.wait_workers(3);
    job.board.revise(slots(2, 2));
    assert_eq!(job.code(Id::worker(2)), 0);
    job.wait_workers(2);
    job.board.stop(20_000);
    job.all_end_well();
    let stopped = job.checkpoint();
    job.restart(1, 1);
    job.wait_step(stopped.step + 100);
    job.board.stop(20_000);
    job.all_end_well();
    let losses = job.checkpoint().losses;
    assert!(losses.last().unwrap() + 0.1 < losses[0], "{losses:?}");
}

#[test]
fn wrong_settings_are_named() {
    for (flags, parts) in [
        (&["--feed=http://127.0.0.1:1"][..], &["--role", "TRAINMASTER_ROLE", "run"][..]),
        (&["--role=worker"], &["--feed", "TRAINMASTER_FEED", "--peers"]),
        (&["--role=boss"], &["--role", "'boss'", "server, worker"]),
        (&["--role=server", "--feed=x", "--mode=allreduce"], &["TRAINMASTER_ROLE", "TRAINMASTER_MODE", "allreduce"]),
        (&["--role=worker", "--feed=ftp://a"], &["TRAINMASTER_FEED", "ftp://a", "http://host:port"]),
        (&["--role=worker", "--feed=https://a:1"], &["TRAINMASTER_FEED_CA"]),
        (&["--role=worker", "--feed=http://a:1", "--bind=0.0.0.0:0"], &["--bind", "--advertise"]),
        (&["--role=worker", "--feed=http://a:1", "--batch=many"], &["--batch", "'many'"]),
        (&["run", "--servers=2", "--mode=allreduce"], &["allreduce", "2"]),
        (&["run", "--workers=3", "--hidden=8", "--partitions=2"], &["3 workers", "--partitions", "multiple of 2"]),
        (&["run", "--partitions=2"], &["--partitions", "2", "1 layers", "1 to 1"]),
        (
            &["--role=worker", "--feed=http://a:1", "--hidden=4,4", "--partitions=3", "--partitions-after=-:0:0"],
            &["partitions", "-:0:0", "chains only", "partitions = 3"],
        ),
        (&["profile", "--pairs=1-2"], &["--pairs", "'1-2'", "2:4"]),
        (&["profile", "--pairs=1:1", "--concurrent=2"], &["--concurrent 2", "--device"]),
    ] {
        let output = command().args(flags).output().unwrap();
        assert!(matches!(output.status.code(), Some(1 | 2)), "{flags:?}: {:?}", output.status);
        let message = String::from_utf8(output.stderr).unwrap();
        for part in parts {
            assert!(message.contains(part), "{flags:?} should mention {part}: {message}");
        }
    }
}

/// The step of the newest checkpoint; 0 without one.
fn saved(job: &Job) -> u64 {
    let names = std::fs::read_dir(job.folder.path()).unwrap().flatten().map(|entry| entry.file_name());
    let steps = names.filter_map(|name| name.to_str()?.strip_prefix("step-")?.strip_suffix(".ckpt")?.parse().ok());
    steps.max().unwrap_or(0)
}

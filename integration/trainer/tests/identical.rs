//! Parameters after k steps are bit-identical, for all shapes and histories.

use std::collections::BTreeSet;

use crate::common::{Job, MODEL, assert_same, reference, slots, step, stop_and_compare};
use rustix::process::Signal;
use trainmaster_trainer::id::Id;

/// Slow enough for interventions between two steps, without an end.
const SLOW: &[&str] = &["--device-step-ms=4", "--report-steps=1", "--max-epochs=1000000"];

fn flags(more: &[&'static str]) -> Vec<&'static str> {
    [MODEL, more].concat()
}

#[test]
fn every_shape_trains_the_same() {
    let length = "--max-steps=60";
    let expected = reference(&flags(&[length]));
    assert_eq!((expected.step, expected.losses.len()), (60, 12));
    assert!(expected.losses[11] < expected.losses[0] - 0.1, "it learns: {:?}", expected.losses);
    for (workers, servers, mode) in [
        (2, 1, "--mode=sync"),
        (3, 2, "--mode=sync"),
        (1, 3, "--mode=sync"),
        (5, 4, "--mode=sync"),
        (1, 0, "--mode=allreduce"),
        (2, 0, "--mode=allreduce"),
        (3, 0, "--mode=allreduce"),
        (5, 0, "--mode=allreduce"),
    ] {
        let mut job = Job::start(workers, servers, &flags(&[mode, length]));
        job.all_end_well();
        assert_same(&job.checkpoint(), &expected);
    }
}

#[test]
fn workers_come_and_go_without_a_trace() {
    for (servers, mode) in [(2, "--mode=sync"), (0, "--mode=allreduce")] {
        let mut job = Job::start(2, servers, &flags(&[&[mode], SLOW].concat()));
        job.wait_step(8);
        job.board.revise(slots(4, servers));
        job.spawn(Id::worker(2));
        job.spawn(Id::worker(3));
        job.wait_workers(4);
        job.board.revise(slots(1, servers));
        assert_eq!([1, 2, 3].map(|index| job.code(Id::worker(index))), [0, 0, 0], "dropped workers leave in peace");
        job.wait_workers(1);
        job.wait("acknowledgements", |board| board.acknowledgements().iter().filter(|ack| ack.leaving).count() == 3);
        let left = job.board.acknowledgements().into_iter().filter(|ack| ack.leaving).map(|ack| ack.index);
        assert_eq!(left.collect::<BTreeSet<_>>(), [1, 2, 3].into());
        job.board.revise(slots(3, servers));
        job.spawn(Id::worker(1));
        job.spawn(Id::worker(2));
        job.wait_workers(3);
        stop_and_compare(&mut job);
        let followed = job.board.acknowledgements();
        let followed =
            followed.iter().filter(|ack| !ack.leaving && (ack.role, ack.index) == (servers.min(1) as i32, 0));
        assert_eq!(followed.map(|ack| ack.revision).collect::<Vec<_>>(), [0, 1, 2, 3], "{mode}");
    }
}

#[test]
fn stopped_and_resumed_in_other_shapes() {
    for (shapes, mode) in [([(2, 2), (3, 1), (1, 3)], "--mode=sync"), ([(3, 0), (1, 0), (2, 0)], "--mode=allreduce")] {
        let mut job = Job::start(shapes[0].0, shapes[0].1, &flags(&[&[mode], SLOW].concat()));
        job.wait_step(7);
        job.board.stop(20_000);
        job.all_end_well();
        let stopped = job.checkpoint();
        assert!(stopped.step >= 7, "{}", stopped.step);
        for ack in job.board.acknowledgements().iter().filter(|ack| ack.leaving) {
            assert_eq!((ack.incarnation, ack.checkpoint_step), (0, stopped.step));
        }
        job.restart(shapes[1].0, shapes[1].1);
        job.wait_step(stopped.step + 5);
        job.signal(job.chief(), Signal::TERM);
        job.all_end_well();
        job.restart(shapes[2].0, shapes[2].1);
        job.wait_step(job.checkpoint().step + 5);
        stop_and_compare(&mut job);
        assert_eq!(job.board.reports().iter().filter(|report| report.restart_ms.is_some()).count(), 3);
    }
}

#[test]
fn killed_and_resumed_from_a_periodic_checkpoint() {
    for (shapes, mode) in [([(2, 2), (3, 1)], "--mode=sync"), ([(3, 0), (2, 0)], "--mode=allreduce")] {
        let mut job = Job::start(
            shapes[0].0,
            shapes[0].1,
            &flags(&[&[mode, "--checkpoint-epochs=1", "--replace-ms=1000"], SLOW].concat()),
        );
        job.wait_step(18);
        job.kill(job.chief());
        let codes = job.codes();
        assert!(codes.values().all(|code| *code == 42), "{codes:?}");
        let saved = job.checkpoint().step;
        assert!(saved >= 15, "{saved}");
        job.restart(shapes[1].0, shapes[1].1);
        job.wait_step(saved + 5);
        stop_and_compare(&mut job);
    }
}

#[test]
fn a_killed_worker_costs_nothing_but_time() {
    for (servers, mode) in [(2, "--mode=sync"), (0, "--mode=allreduce")] {
        let mut job = Job::start(3, servers, &flags(&[&[mode], SLOW].concat()));
        job.wait_step(8);
        job.kill(Id::worker(1));
        job.wait_workers(2);
        job.spawn(Id::worker(1));
        job.wait_workers(3);
        job.kill(Id::worker(2));
        job.board.revise(slots(2, servers));
        job.wait_workers(2);
        stop_and_compare(&mut job);
    }
}

#[test]
fn a_restarted_chief_resumes_from_its_checkpoint() {
    for (servers, mode) in [(2, "--mode=sync"), (0, "--mode=allreduce")] {
        let mut job = Job::start(2, servers, &flags(&[&[mode, "--checkpoint-epochs=1"], SLOW].concat()));
        job.wait_step(12);
        let chief = job.chief();
        job.kill(chief);
        let before = job.board.reports().len();
        job.spawn(chief);
        job.wait("reports of the new chief", |board| board.reports().len() > before + 10);
        stop_and_compare(&mut job);
        let reports = job.board.reports();
        assert!(reports.windows(2).all(|pair| pair[0].seq < pair[1].seq), "numbers go on where they were");
        assert!(reports[before].restart_ms.is_some());
    }
}

/// Three layers, for up to three partitions.
const DEEP: &[&str] =
    &["--hidden=6,7", "--features=5", "--classes=4", "--examples=120", "--batch=24", "--momentum=0.5"];

#[test]
fn every_cut_trains_the_same() {
    for modes in [&["--mode=sync", "--mode=allreduce"][..], &["--mode=async"]] {
        let length = [DEEP, &["--delta=0", "--max-steps=60"]].concat();
        let expected = reference(&[&length[..], &modes[..1]].concat());
        assert_eq!((expected.step, expected.losses.len()), (60, 12));
        assert!(expected.losses[11] < expected.losses[0] - 0.1, "it learns: {:?}", expected.losses);
        for mode in modes {
            // With async, the order of two replicas isn't defined.
            let replicas: &[u32] = if *mode == "--mode=async" { &[1] } else { &[1, 2, 3] };
            for (parts, flag) in [(2, "--partitions=2"), (3, "--partitions=3")] {
                for replicas in replicas {
                    let servers = match *mode {
                        "--mode=allreduce" => 0,
                        "--mode=async" => 1, // with several, some servers may lag behind the checkpoint
                        _ => replicas % 3 + 1,
                    };
                    let mut job = Job::start(parts * replicas, servers, &[&length[..], &[mode, flag]].concat());
                    job.all_end_well();
                    assert_same(&job.checkpoint(), &expected);
                }
            }
        }
    }
}

#[test]
fn a_model_in_parts_is_stopped_and_resumed() {
    for (servers, mode) in [(2, "--mode=sync"), (0, "--mode=allreduce"), (1, "--mode=async")] {
        let workers = if servers == 1 { 2 } else { 4 };
        let mut job = Job::start(workers, servers, &flags(&[&[mode, "--partitions=2"], SLOW].concat()));
        for _ in 0..2 {
            job.wait_step(step(&job.board) + 7);
            job.board.stop(20_000);
            job.all_end_well();
            job.restart(workers, servers);
        }
        // Moved to other servers. The signal may arrive at any of its processes first.
        job.wait_step(step(&job.board) + 7);
        job.signal(Id::worker(1), Signal::TERM);
        job.all_end_well();
        job.restart(workers, servers);
        job.wait_step(step(&job.board) + 7);
        job.board.stop(20_000);
        job.all_end_well();
        let (reached, mode) = (job.checkpoint(), if servers == 1 { "--mode=async" } else { "--mode=sync" });
        let steps = format!("--max-steps={}", reached.step);
        assert_same(&reached, &reference(&[MODEL, &["--max-epochs=1000000", mode, &steps]].concat()));
    }
}

#[test]
fn a_killed_part_costs_nothing_but_time() {
    // With one replica nothing is trained until the partition is back. With two, the other one continues.
    for (replicas, servers, mode) in [(1, 2, "--mode=sync"), (2, 1, "--mode=sync"), (2, 0, "--mode=allreduce")] {
        let mut job = Job::start(2 * replicas, servers, &flags(&[&[mode, "--partitions=2"], SLOW].concat()));
        job.wait_step(8);
        job.kill(Id::worker(1));
        if replicas > 1 {
            job.wait_workers(2);
        }
        let before = step(&job.board);
        job.spawn(Id::worker(1));
        job.wait_workers(2 * replicas);
        job.wait_step(before + 8);
        stop_and_compare(&mut job);
    }
}

#[test]
fn the_only_copy_of_a_partition_is_read_from_the_checkpoint() {
    let mut job =
        Job::start(2, 0, &flags(&[&["--mode=allreduce", "--partitions=2", "--checkpoint-epochs=1"], SLOW].concat()));
    job.wait_step(18);
    job.kill(Id::worker(1));
    assert_eq!(job.code(Id::worker(0)), 40);
    let saved = job.checkpoint().step;
    assert!(saved >= 15, "{saved}");
    job.restart(2, 0);
    job.wait_step(saved + 5);
    stop_and_compare(&mut job);
}

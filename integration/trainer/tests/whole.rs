//! Whole jobs: convergence, and the commands without a scheduler.

use std::net::TcpListener;

use crate::common::{Job, command};

/// Easy enough to converge within a few epochs.
const EASY: &[&str] = &["--examples=300", "--batch=50", "--noise=0.5", "--learning-rate=0.1", "--delta=0.05"];

#[test]
fn a_job_converges_and_reports_it() {
    let mut job = Job::start(2, 1, EASY);
    job.all_end_well();
    let reports = job.board.reports();
    let (last, losses) = (reports.last().unwrap(), job.checkpoint().losses);
    assert!(last.finished && last.converged, "{last:?}");
    assert_eq!((last.epoch as usize, last.step), (losses.len(), losses.len() as u64 * 6));
    assert_eq!(reports.iter().filter(|report| report.finished).count(), 1);
    let [before, end] = [losses.len() - 4, losses.len() - 1].map(|epoch| losses[epoch]);
    assert!(before - end < 3.0 * 0.05 * losses[0], "{losses:?}");
    // Reports contain the mean loss of each epoch.
    for (epoch, loss) in losses.iter().enumerate() {
        let parts = reports.iter().filter(|report| report.examples > 0 && (report.step - 1) / 6 == epoch as u64);
        let (sum, examples) = parts.fold((0.0, 0), |(sum, examples), part| {
            (sum + part.loss.unwrap() * part.examples as f64, examples + part.examples)
        });
        assert_eq!(examples, 300);
        assert!((sum / 300.0 - loss).abs() < 1e-6);
    }
}

#[test]
fn a_finished_job_that_is_started_again_is_finished_at_once() {
    let mut job = Job::start(1, 1, EASY);
    job.all_end_well();
    let steps = job.checkpoint().step;
    job.restart(2, 2);
    job.all_end_well();
    let last = job.board.reports().pop().unwrap();
    assert!(last.finished && last.converged && last.step == steps, "{last:?}");
}

#[test]
fn real_flowers_are_distinguished() {
    for (workers, servers, mode) in [(3, 2, "--mode=sync"), (2, 0, "--mode=allreduce")] {
        let flags = ["--data=iris", "--batch=30", "--learning-rate=0.1", "--delta=0.001", mode];
        let mut job = Job::start(workers, servers, &flags);
        job.all_end_well();
        let reports = job.board.reports();
        let last = reports.last().unwrap();
        assert!(last.finished && last.converged && last.steps_per_epoch == 4, "{last:?}");
        // A linear model labels 97 of 100 held-out flowers correctly. A guess labels 33.
        assert!(last.accuracy.unwrap() > 0.93, "{mode}: {last:?}");
    }
}

#[test]
fn every_epoch_without_convergence_is_trained() {
    let mut job = Job::start(2, 1, &[EASY, &["--delta=0", "--max-epochs=9", "--data=teacher"]].concat());
    job.all_end_well();
    let last = job.board.reports().pop().unwrap();
    assert!(last.finished && !last.converged);
    assert_eq!((last.epoch, last.step, last.steps_per_epoch), (9, 54, 6));
}

#[test]
fn an_emulated_network_carries_every_mode() {
    let network = ["--device-model-mib=0.05", "--device-nic-mbit=1000", "--device-example-ms=0.01", "--max-steps=40"];
    for (workers, servers, mode, partitions) in [
        (3, 2, "--mode=sync", "--partitions=1"),
        (3, 2, "--mode=async", "--partitions=1"),
        (3, 0, "--mode=allreduce", "--partitions=1"),
        (4, 2, "--mode=sync", "--partitions=2"),
        (4, 2, "--mode=async", "--partitions=2"),
        (4, 0, "--mode=allreduce", "--partitions=2"),
    ] {
        let hidden = if partitions == "--partitions=2" { &["--hidden=8"][..] } else { &[] };
        let mut job = Job::prepare(workers, servers, &[EASY, &network, hidden, &[mode, partitions]].concat());
        let mut slots = crate::common::slots(workers, servers);
        slots.iter_mut().for_each(|(id, server)| *server = format!("machine {id}"));
        job.board.revise(slots.clone());
        slots.into_keys().for_each(|id| job.spawn(id));
        job.all_end_well();
        assert_eq!(job.board.reports().last().unwrap().step, 40);
    }
}

#[test]
fn stragglers_show_in_the_reports() {
    let mut job =
        Job::start(3, 1, &[EASY, &["--device-step-ms=2", "--device-straggler=1:10", "--max-steps=30"]].concat());
    job.all_end_well();
    let mut sums = [0.0; 3];
    for time in job.board.reports().iter().flat_map(|report| &report.slot_times) {
        sums[time.worker as usize] += time.step_ms;
    }
    assert!(sums[1] > sums[0] && sums[1] > sums[2], "{sums:?}");
}

#[test]
fn peers_can_be_named_on_the_command_line() {
    let [server, worker] = [(), ()].map(|()| TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let peers = format!("--peers=server0={server},worker0={worker}");
    let start = |role: &str, bind| {
        let bind = format!("--bind={bind}");
        command().args([role, &peers, &bind, "--max-steps=20"]).args(EASY).spawn().unwrap()
    };
    let mut both = [start("--role=server", server), start("--role=worker", worker)];
    assert!(both.iter_mut().all(|process| process.wait().unwrap().success()));
}

#[test]
fn run_prints_a_summary() {
    let output =
        command().args(["run", "--json", "--workers=2", "--servers=1", "--steps=20"]).args(EASY).output().unwrap();
    assert!(output.status.success());
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&summary["steps"], &summary["finished"]), (&20.into(), &true.into()));
    assert_eq!(summary["emulated_device"], false);
}

#[test]
fn run_trains_a_model_in_parts() {
    let flags = ["--workers=6", "--servers=2", "--hidden=12,8", "--partitions=3", "--delta=0", "--steps=150"];
    let output = command().args(["run", "--json"]).args(EASY).args(flags).output().unwrap();
    assert!(output.status.success());
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&summary["steps"], &summary["finished"], &summary["partitions"]),
        (&150.into(), &true.into(), &3.into())
    );
    assert!(summary["validation_accuracy"].as_f64().unwrap() > 0.5, "{summary}");
}

#[test]
fn profile_writes_a_table() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("speeds.csv");
    let flags = ["--pairs=1:1,2:2", "--steps=4", "--concurrent=2", "--device-step-ms=5"];
    let output = command().args(["profile", "--csv"]).arg(&file).args(flags).args(EASY).output().unwrap();
    assert!(output.status.success());
    let spoken = String::from_utf8(output.stderr).unwrap();
    assert_eq!(spoken.matches("emulated device").count(), 2, "{spoken}");
    let table = std::fs::read_to_string(file).unwrap();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!((lines[0], lines.len()), ("p,w,speed", 3));
    for (line, pair) in lines[1..].iter().zip(["1,1,", "2,2,"]) {
        let speed = line.strip_prefix(pair).unwrap().parse::<f64>().unwrap();
        assert!(speed > 0.0 && speed <= 200.0, "at least 5 ms a step: {line}");
    }
}

#[test]
fn profile_draws_pairs_by_seed() {
    let draw = |seed: &str| {
        let flags = ["profile", "--random=3", "--limit=2,2", "--steps=2", seed];
        let output = command().args(flags).args(EASY).output().unwrap();
        let table = String::from_utf8(output.stdout).unwrap();
        table.lines().map(|line| line.rsplit_once(',').unwrap().0.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(draw("--seed=3"), draw("--seed=3"));
    assert_eq!(draw("--seed=4").len(), 4);
}

#[test]
fn every_epoch_reports_the_accuracy_on_held_out_examples() {
    for (workers, servers, mode) in [(2, 2, "--mode=sync"), (2, 2, "--mode=async"), (2, 0, "--mode=allreduce")] {
        let mut job = Job::start(workers, servers, &[EASY, &["--delta=0", "--max-epochs=6", mode]].concat());
        job.all_end_well();
        let told: Vec<_> = job.board.reports().into_iter().filter(|report| report.accuracy.is_some()).collect();
        let epochs: Vec<u32> = told.iter().map(|report| report.epoch).collect();
        let accuracies: Vec<f64> = told.iter().filter_map(|report| report.accuracy).collect();
        // Blobs at this distance are almost always distinguished, but one label in 20 is random.
        assert!(accuracies.last().unwrap() > &0.8, "{accuracies:?}");
        if mode == "--mode=async" {
            // Training continues while the parameters are on their way, and may be an epoch ahead then.
            assert!(epochs.ends_with(&[6]) && epochs.is_sorted(), "{epochs:?}");
        } else {
            assert_eq!(epochs, [1, 2, 3, 4, 5, 6], "{mode}");
            assert!(accuracies[0] < accuracies[5], "{accuracies:?}");
        }
    }
}

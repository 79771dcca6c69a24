//! The printed and written results.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result};
use serde::Serialize;
use trainmaster_terminal::{
    Paper,
    sheet::{Column, Entry, Sheet},
};

use super::record::{JobRecord, Run};

/// Means over the seeds whose jobs all completed. Null if there are none.
#[derive(Serialize)]
struct Summary {
    average_jct_s: Option<f64>,
    makespan_s: Option<f64>,
    rescales: Option<f64>,
    restart_s: Option<f64>,
}

#[derive(Serialize)]
struct Record<'a> {
    emulated: bool,
    seeds: Vec<u64>,
    engines: BTreeMap<&'a str, Summary>,
    /// Average JCT of each other engine divided by that of `optimus`, as the mean over the seeds in which all jobs of
    /// both completed. Above 1, `optimus` is better.
    ratios: BTreeMap<&'a str, f64>,
    makespan_ratios: BTreeMap<&'a str, f64>,
    runs: &'a [Run],
    jobs: Vec<&'a JobRecord>,
}

/// The engine with which others are compared.
const BASE: &str = "optimus";

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The runs of an engine in which every job completed. Only these measure the engine.
fn complete<'a>(runs: &'a [Run], engine: &str) -> impl Iterator<Item = &'a Run> {
    runs.iter().filter(move |run| run.engine == engine && run.complete)
}

fn average(runs: &[Run], engine: &str, measure: fn(&Run) -> f64) -> Option<f64> {
    mean(complete(runs, engine).map(measure))
}

fn engines(runs: &[Run]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for run in runs {
        if !names.contains(&run.engine.as_str()) {
            names.push(&run.engine);
        }
    }
    names
}

/// A value divided by that of `optimus` with the same seed, as the mean over seeds.
fn ratio(runs: &[Run], engine: &str, measure: fn(&Run) -> f64) -> Option<f64> {
    let base = |seed| complete(runs, BASE).find(|run| run.seed == seed).map(measure);
    mean(complete(runs, engine).filter_map(|run| Some(measure(run) / base(run.seed)?)))
}

/// Writes the whole record as JSON.
pub(super) fn write_json(runs: &[Run], emulated: bool, file: &Path) -> Result<()> {
    let of = |engine: &str, measure| average(runs, engine, measure);
    let names = engines(runs);
    let others = |measure: fn(&Run) -> f64| {
        let others = names.iter().filter(|name| **name != BASE);
        others.filter_map(|name| Some((*name, ratio(runs, name, measure)?))).collect()
    };
    let mut seeds: Vec<u64> = runs.iter().map(|run| run.seed).collect();
    seeds.sort_unstable();
    seeds.dedup();
    let record = Record {
        emulated,
        seeds,
        engines: names
            .iter()
            .map(|name| {
                let summary = Summary {
                    average_jct_s: of(name, |run| run.average_jct_s),
                    makespan_s: of(name, |run| run.makespan_s),
                    rescales: of(name, |run| run.rescales.into()),
                    restart_s: of(name, |run| run.restart_s),
                };
                (*name, summary)
            })
            .collect(),
        ratios: others(|run| run.average_jct_s),
        makespan_ratios: others(|run| run.makespan_s),
        runs,
        jobs: runs.iter().flat_map(|run| &run.jobs).collect(),
    };
    let text = serde_json::to_string_pretty(&record).context("can't encode the record")?;
    fs::write(file, text).with_context(|| format!("can't write {}", file.display()))
}

/// A table of values, each row with a name.
pub(super) fn sheet(name: &'static str, values: impl IntoIterator<Item = Column>) -> Sheet {
    Sheet::new([Column::key(name)].into_iter().chain(values.into_iter().map(Column::right)))
}

fn or_dash(value: Option<f64>, show: impl FnOnce(f64) -> String) -> String {
    value.map_or_else(|| "–".into(), show)
}

/// For each job: epochs predicted halfway and actual ones, changes of shape and their gains, restarts, completion time.
pub(super) fn print_run(run: &Run) {
    let paper = Paper::stdout();
    let mut jobs = sheet(
        "JOB",
        [
            Column::spare("ARRIVED S", 3),
            Column::key("JCT S"),
            Column::spare("WAITED S", 4),
            Column::key("EPOCHS"),
            Column::spare("PREDICTED HALFWAY", 5),
            Column::key("ERROR"),
            Column::spare("RESCALES", 2),
            Column::spare("RESTART S", 1),
            Column::key("STATE"),
        ],
    );
    for job in &run.jobs {
        let error = job.predicted_halfway.map(|epochs| epochs / f64::from(job.epochs.max(1)) - 1.0);
        jobs.row([
            Entry::from(&job.name),
            format!("{:.1}", job.arrival_s).into(),
            format!("{:.1}", job.jct_s).into(),
            format!("{:.1}", job.waited_s).into(),
            job.epochs.into(),
            or_dash(job.predicted_halfway, |epochs| format!("{epochs:.0}")).into(),
            or_dash(error, |error| format!("{:+.0} %", error * 100.0)).into(),
            job.rescales.len().into(),
            format!("{:.1}", job.restart_s).into(),
            Entry::from(&job.state),
        ]);
    }
    println!(
        "\n{} (seed {}): average JCT {:.1} s, makespan {:.1} s\n{}",
        run.engine,
        run.seed,
        run.average_jct_s,
        run.makespan_s,
        jobs.on(&paper)
    );
    if !run.complete {
        println!("Not all jobs completed: this run counts in no mean and no ratio.");
    }
    let changes: Vec<_> =
        run.jobs.iter().flat_map(|job| job.rescales.iter().map(move |change| (job, change))).collect();
    if changes.is_empty() {
        return;
    }
    let mut gains = sheet(
        "CHANGE OF",
        [
            Column::spare("AT S", 2),
            Column::key("FROM"),
            Column::key("TO"),
            Column::spare("HOW", 1),
            Column::key("PREDICTED SPEED ×"),
            Column::key("MEASURED SPEED ×"),
        ],
    );
    for (job, change) in changes {
        let times = |gain| Entry::from(or_dash(gain, |gain| format!("{gain:.2}")));
        gains.row([
            Entry::from(&job.name),
            format!("{:.1}", change.at_s).into(),
            Entry::from(&change.from),
            Entry::from(&change.to),
            if change.restarted { "restart" } else { "in place" }.into(),
            times(change.predicted_gain),
            times(change.measured_gain),
        ]);
    }
    println!("\n{}", gains.on(&paper));
}

/// All engines side by side, and the ratios to `optimus`.
pub(super) fn print_summary(runs: &[Run], emulated: bool) {
    let mut summary = sheet(
        "ENGINE",
        [
            Column::spare("SEEDS", 3),
            Column::key("AVERAGE JCT S"),
            Column::key("MAKESPAN S"),
            Column::spare("RESCALES", 2),
            Column::spare("RESTART S", 1),
            Column::key("JCT ÷ OPTIMUS"),
            Column::key("MAKESPAN ÷ OPTIMUS"),
        ],
    );
    for name in engines(runs) {
        let all = runs.iter().filter(|run| run.engine == name).count();
        let counted = complete(runs, name).count();
        let seconds = |measure| Entry::from(or_dash(average(runs, name, measure), |value| format!("{value:.1}")));
        let times = |measure| Entry::from(or_dash(ratio(runs, name, measure), |ratio| format!("{ratio:.2}")));
        summary.row([
            name.into(),
            if counted == all { all.to_string() } else { format!("{counted} of {all}") }.into(),
            seconds(|run| run.average_jct_s),
            seconds(|run| run.makespan_s),
            seconds(|run| run.rescales.into()),
            seconds(|run| run.restart_s),
            times(|run| run.average_jct_s),
            times(|run| run.makespan_s),
        ]);
    }
    let kind = if emulated { "real gradients, step times of an emulated device" } else { "no emulation" };
    println!("\nAll runs ({kind}):\n{}", summary.on(&Paper::stdout()));
    println!("Ratios are means over seeds; above 1, optimus was faster.");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(engine: &str, seed: u64, average_jct_s: f64, complete: bool) -> Run {
        Run {
            engine: engine.into(),
            seed,
            complete,
            average_jct_s,
            makespan_s: 10.0,
            rescales: 0,
            restart_s: 0.0,
            tasks: None,
            jobs: Vec::new(),
        }
    }

    #[test]
    fn runs_with_failed_jobs_are_not_compared() {
        let jct = |runs: &[Run], engine| ratio(runs, engine, |run| run.average_jct_s);
        let mut runs = vec![
            run("optimus", 1, 10.0, true),
            run("fifo", 1, 12.0, true),
            run("optimus", 2, 10.0, true),
            // Short, because a job failed.
            run("fifo", 2, 1.0, false),
        ];
        assert_eq!(jct(&runs, "fifo"), Some(1.2));
        assert_eq!(average(&runs, "fifo", |run| run.average_jct_s), Some(12.0));
        runs[0].complete = false;
        assert_eq!(jct(&runs, "fifo"), None, "each seed lacks one of the two");
        runs[1].complete = false;
        assert_eq!(average(&runs, "fifo", |run| run.average_jct_s), None);
    }
}

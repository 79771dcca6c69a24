//! What is printed and written at the end.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets::UTF8_BORDERS_ONLY};
use serde::Serialize;

use super::record::{JobRecord, Run};

/// Means over seeds.
#[derive(Serialize)]
struct Summary {
    average_jct_s: f64,
    makespan_s: f64,
    rescales: f64,
    restart_s: f64,
}

#[derive(Serialize)]
struct Record<'a> {
    emulated: bool,
    seeds: Vec<u64>,
    engines: BTreeMap<&'a str, Summary>,
    /// Average JCT of each other engine over that of `optimus`, mean over seeds: above 1, `optimus` wins.
    ratios: BTreeMap<&'a str, f64>,
    makespan_ratios: BTreeMap<&'a str, f64>,
    runs: &'a [Run],
    jobs: Vec<&'a JobRecord>,
}

/// The engine that others are compared with.
const BASE: &str = "optimus";

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.collect();
    values.iter().sum::<f64>() / values.len().max(1) as f64
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

/// Ratio of one measure to `optimus`'s with the same seed, mean over seeds.
fn ratio(runs: &[Run], engine: &str, measure: fn(&Run) -> f64) -> Option<f64> {
    let of = |name: &str, seed: u64| runs.iter().find(|run| run.engine == name && run.seed == seed).map(measure);
    let pairs: Vec<f64> = runs
        .iter()
        .filter(|run| run.engine == engine)
        .filter_map(|run| Some(measure(run) / of(BASE, run.seed)?))
        .collect();
    (!pairs.is_empty()).then(|| mean(pairs.into_iter()))
}

/// Writes the whole record as JSON.
pub(super) fn write_json(runs: &[Run], emulated: bool, file: &Path) -> Result<()> {
    let of = |engine: &str, measure: fn(&Run) -> f64| mean(runs.iter().filter(|run| run.engine == engine).map(measure));
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

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY).set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Per job: epochs predicted halfway and actual, changes of shape and their gains, restarts, time to completion.
pub(super) fn print_run(run: &Run) {
    let mut jobs = table([
        "job",
        "arrived s",
        "JCT s",
        "waited s",
        "epochs",
        "predicted halfway",
        "error",
        "rescales",
        "restart s",
        "state",
    ]);
    for job in &run.jobs {
        let error = job.predicted_halfway.map(|epochs| epochs / f64::from(job.epochs.max(1)) - 1.0);
        jobs.add_row([
            job.name.clone(),
            format!("{:.1}", job.arrival_s),
            format!("{:.1}", job.jct_s),
            format!("{:.1}", job.waited_s),
            job.epochs.to_string(),
            job.predicted_halfway.map_or_else(|| "-".into(), |epochs| format!("{epochs:.0}")),
            error.map_or_else(|| "-".into(), |error| format!("{:+.0} %", error * 100.0)),
            job.rescales.len().to_string(),
            format!("{:.1}", job.restart_s),
            job.state.clone(),
        ]);
    }
    println!(
        "\n{} (seed {}): average JCT {:.1} s, makespan {:.1} s",
        run.engine, run.seed, run.average_jct_s, run.makespan_s
    );
    println!("{jobs}");
    let changes: Vec<_> =
        run.jobs.iter().flat_map(|job| job.rescales.iter().map(move |change| (job, change))).collect();
    if changes.is_empty() {
        return;
    }
    let mut gains = table(["change of", "at s", "from", "to", "how", "predicted speed ×", "measured speed ×"]);
    for (job, change) in changes {
        let times = |gain: Option<f64>| gain.map_or_else(|| "-".into(), |gain| format!("{gain:.2}"));
        gains.add_row([
            job.name.clone(),
            format!("{:.1}", change.at_s),
            change.from.clone(),
            change.to.clone(),
            if change.restarted { "restart" } else { "in place" }.to_owned(),
            times(change.predicted_gain),
            times(change.measured_gain),
        ]);
    }
    println!("{gains}");
}

/// All engines beside each other, and the ratios to `optimus`.
pub(super) fn print_summary(runs: &[Run], emulated: bool) {
    let mut summary = table([
        "engine",
        "seeds",
        "average JCT s",
        "makespan s",
        "rescales",
        "restart s",
        "JCT ÷ optimus",
        "makespan ÷ optimus",
    ]);
    for name in engines(runs) {
        let mine: Vec<&Run> = runs.iter().filter(|run| run.engine == name).collect();
        let of = |measure: fn(&Run) -> f64| mean(mine.iter().map(|run| measure(run)));
        let times = |measure| ratio(runs, name, measure).map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"));
        summary.add_row([
            name.to_owned(),
            mine.len().to_string(),
            format!("{:.1}", of(|run| run.average_jct_s)),
            format!("{:.1}", of(|run| run.makespan_s)),
            format!("{:.1}", of(|run| run.rescales.into())),
            format!("{:.1}", of(|run| run.restart_s)),
            times(|run| run.average_jct_s),
            times(|run| run.makespan_s),
        ]);
    }
    let kind = if emulated { "real gradients, step times of an emulated device" } else { "no emulation" };
    println!("\nAll runs ({kind}):\n{summary}");
    println!("Ratios are means over seeds; above 1, optimus was faster.");
}

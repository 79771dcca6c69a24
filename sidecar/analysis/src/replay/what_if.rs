//! `replay --what-if`: the recorded jobs under other engines.

use std::collections::BTreeMap;

use serde::Serialize;
use trainmaster_core::{Settings, replay::Replayed, settings::Parameter};
use trainmaster_daemon::Config;
use trainmaster_sim::{
    Fate, Options, Workload,
    recorded::{Recorder, Recording},
};
use trainmaster_terminal::{Failure, Output, Paper, Show};

use super::{
    ReplayArgs,
    basis::{Agreement, Basis, JobRow, Trust, rows},
    records::Records,
};
use crate::simulate::{
    Contender,
    comparison::{Comparison, Named, Over},
    policies, read_set,
    runs::{Plan, Run},
    settings,
};

/// Name of the first row, with which the others are compared.
const OWN: &str = "own";

/// Simulates, and prints the results.
///
/// # Errors
/// An engine or a parameter is unknown, no job can be simulated, a simulation fails, or records are unreadable.
pub(super) fn run(args: &ReplayArgs, records: &Records, output: Output) -> Result<(), Failure> {
    let contenders = Contender::read_all("--what-if", &args.what_if, &[])?;
    let sets = args.set.iter().map(|text| read_set(text, &contenders)).collect::<Result<Vec<_>, _>>()?;
    let (recording, replayed) = record(records)?;
    let first = recording.workload(1);
    if first.jobs.is_empty() {
        return Err(Failure::refused(format!(
            "{}: none of its {} jobs can be simulated: {}",
            records.path,
            recording.jobs.len(),
            Basis::of(&recording, replayed).left_out().unwrap_or_else(|| "there are none".into())
        )));
    }
    let own = &recording.settings;
    let mut names = vec![format!("{OWN} ({})", own.engine)];
    let mut all = vec![own.clone()];
    // An engine without settings runs with the daemon's default parameters.
    let product = Config::new("").settings;
    let mut experiment = first.parameters.clone();
    experiment
        .extend(product.parameters.into_iter().map(|(name, value)| (format!("{}.{name}", product.engine), value)));
    for one in &contenders {
        names.push(one.name.clone());
        all.push(settings(one, own, &experiment, &sets)?);
    }
    let seeds: Vec<u64> = (1..=args.draws).collect();
    let policies = policies(None);
    let plan = Plan {
        build: &|seed| Ok::<Workload, _>(recording.workload(seed)),
        jobs: first.jobs.len(),
        options: &|engine, seed, trace| Options {
            settings: Settings { seed, ..all[engine].clone() },
            seed,
            trace,
            policies: policies.clone(),
            ..Options::default()
        },
        seeds: &seeds,
        engines: &names,
        trace: false,
        threads: args.threads,
    };
    let runs = plan.play()?;
    let parameters = names.iter().zip(&all).map(|(name, settings)| (name.clone(), settings.parameters.clone()));
    let drawn = recording.simulated().any(|(_, known)| known.is_drawn());
    let over = if drawn { Over::Draws } else { Over::Nothing };
    let mut comparison = Comparison::new(&records.path, over, &names, &runs, !args.no_timing);
    comparison.recorded = Some(recording.reality());
    let what_if = WhatIf {
        comparison,
        parameters: Named(parameters.map(|(name, set)| (name, written(&set))).collect()),
        refused: refused(&names, &runs),
        trust: Trust::of(&recording, &runs[0]),
        rests_on: Basis::of(&recording, replayed),
        jobs: rows(&recording, &runs[0]),
    };
    output.show(&what_if)?;
    records.problem().map_or(Ok(()), |problem| Err(Failure::refused(problem)))
}

fn record(records: &Records) -> Result<(Recording, Agreement), Failure> {
    let gone = |number: u64, error: &dyn std::fmt::Display| {
        Failure::refused(format!("{}: record {number}: {error}; this program no longer has it", records.path))
    };
    let (number, saved) = records.snapshot();
    let mut recorder = Recorder::new(saved).map_err(|error| gone(number, &error))?;
    let mut replayed = Agreement::default();
    for (number, record) in records.following() {
        match recorder.take(&record).map_err(|error| gone(number, &error))? {
            Replayed::Decided(Ok(_)) => replayed.agree += 1,
            Replayed::Decided(Err(_)) => replayed.differ += 1,
            Replayed::Event(_) | Replayed::Ticket | Replayed::Snapshot { .. } => {}
        }
    }
    Ok((recorder.finish(), replayed))
}

/// Why engines refuse jobs.
fn refused(engines: &[String], runs: &[Vec<Run>]) -> Named<String> {
    let why = |runs: &Vec<Run>| {
        let jobs = runs.iter().flat_map(|run| &run.report.jobs);
        jobs.filter(|job| job.fate == Fate::Refused).find_map(|job| job.reason.clone())
    };
    Named(engines.iter().zip(runs).filter_map(|(engine, runs)| Some((engine.clone(), why(runs)?))).collect())
}

fn written(parameters: &BTreeMap<String, Parameter>) -> BTreeMap<String, String> {
    parameters.iter().map(|(name, value)| (name.clone(), value.to_string())).collect()
}

#[derive(Serialize)]
struct WhatIf {
    #[serde(flatten)]
    comparison: Comparison,
    /// The parameters that were set. Others have their defaults.
    parameters: Named<BTreeMap<String, String>>,
    /// Why engines refuse some of the jobs: one of the reasons for each.
    refused: Named<String>,
    trust: Option<Trust>,
    rests_on: Basis,
    jobs: Vec<JobRow>,
}

impl Show for WhatIf {
    fn text(&self, paper: &Paper) -> String {
        let mut text = self.comparison.text(paper);
        let ran = self.parameters.0.iter().map(|(engine, set)| {
            let set: Vec<String> = set.iter().map(|(name, value)| format!("{name} = {value}")).collect();
            format!("{engine}: {}.", if set.is_empty() { "its defaults".into() } else { set.join(", ") })
        });
        text += &format!("\n\nParameters. {}", ran.collect::<Vec<_>>().join(" "));
        for (engine, why) in &self.refused.0 {
            text += &format!("\n{engine} refuses some of these jobs: {why}");
        }
        let trust = match &self.trust {
            Some(trust) => trust.sentence(),
            None => "No job ended while it was recorded: nothing tells how far to trust it.".into(),
        };
        text + "\n\n" + &trust + "\n\n" + &self.rests_on.sentences()
    }
}

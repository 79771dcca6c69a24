//! `trainmaster fit speed`: the speed function of a model from measured speeds.

use std::{collections::BTreeSet, path::PathBuf};

use clap::{Args, ValueEnum};
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{RngCore, SeedableRng},
};
use serde::Serialize;
use trainmaster_core::fit::{LevelFit, SpeedFit, SpeedModel, SpeedOptions, SpeedSample, StepSample};
use trainmaster_terminal::{
    Failure, Output, Paper, Show,
    sheet::{Column, Sheet},
};

use super::columns::{Allowed, Columns, Wanted};

/// The command's arguments.
#[derive(Args, Debug)]
pub struct SpeedArgs {
    /// A file with the columns p (parameter servers), w (workers), speed (steps per second) and, if it differs between
    /// rows, batch (examples per step) or local_bsz (examples per worker and step); for all-reduce also nodes (the
    /// number of servers that the workers were on)
    #[arg(long, value_name = "FILE")]
    csv: PathBuf,
    /// How workers synchronise; all-reduce has no parameter servers and needs no column p
    #[arg(long, value_enum)]
    mode: TrainingMode,
    /// Global batch if the file has none: then θ0 is seconds per example; without it, seconds per batch
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// Fit to this number of random rows, and show the error of the prediction for the others
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    sample: Option<u32>,
    /// With --sample: choose the rows instead, as one would choose what to measure; the first is random, and the fit so
    /// far says least about each next one (at most 200)
    #[arg(long, requires = "sample")]
    choose: bool,
    /// Seed of the random rows
    #[arg(
        long,
        value_name = "S",
        default_value_t = 0,
        requires = "sample",
        allow_negative_numbers = true,
        value_parser = seed,
    )]
    seed: u64,
    /// Use plain non-negative least squares as published, without additions
    #[arg(long)]
    paper: bool,
}

fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("it must be a whole number from 0 to {}", u64::MAX))
}

/// How workers synchronise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TrainingMode {
    /// Parameter servers; all workers make steps together
    Sync,
    /// Parameter servers; each worker makes its own steps
    Async,
    /// Workers only
    #[value(name = "allreduce")]
    AllReduce,
}

impl TrainingMode {
    fn model(self, batch: f64) -> SpeedModel {
        match self {
            Self::Sync => SpeedModel::Sync { batch },
            Self::Async => SpeedModel::Async,
            Self::AllReduce => SpeedModel::AllReduce { batch },
        }
    }

    fn formula(self) -> &'static str {
        match self {
            Self::Sync => "1/speed = θ0·batch/w + θ1 + θ2·w/p + θ3·w + θ4·p",
            Self::Async => "w/speed = θ0 + θ1·w/p + θ2·w + θ3·p",
            Self::AllReduce => "1/speed = θ0·batch/w + θ1 + θ2·(w−1)/w + θ3·w",
        }
    }

    fn coefficients(self) -> usize {
        if self == Self::Sync { 5 } else { 4 }
    }
}

/// The most rows for --choose, which fits once for each of them.
const MOST_CHOSEN: u32 = 200;

/// The place of the column nodes, which only all-reduce has.
const NODES: usize = 5;

/// The most parts in which rows are left out, to compare forms.
const MOST_PARTS: usize = 20;

/// The error of a clearly better form, as a part of the other's. Few rows compare forms badly: with the smaller error
/// alone, ten measured placements took the form without levels in 9 of 20 draws (cifar10, deepspeech2; 2 for imagenet),
/// and unseen rows were off by 9.0, 8.6 and 8.2 % instead of 8.4, 7.7 and 8.1 (40 draws).
const CLEARLY: f64 = 0.6;

/// A measured speed, and the same as the step of a group if the servers of its workers are known.
#[derive(Clone, Copy)]
struct Row {
    sample: SpeedSample,
    step: Option<StepSample>,
}

/// A fitted function of the form that predicts best.
enum Fitted {
    Form(SpeedFit),
    Levels(LevelFit),
}

impl Fitted {
    /// Predicted speed of a row.
    fn speed(&self, row: &Row, batch: f64) -> f64 {
        match (self, row.step) {
            (Self::Form(fit), _) => {
                let curve = fit.curve_at_batch(row.sample.batch.unwrap_or(batch));
                curve.speed(row.sample.servers, row.sample.workers)
            }
            (Self::Levels(fit), Some(step)) => 1.0 / fit.seconds(step.workers, step.servers, step.local_batch),
            (Self::Levels(_), None) => f64::NAN,
        }
    }

    fn error(&self, row: &Row, batch: f64) -> f64 {
        (self.speed(row, batch) / row.sample.speed - 1.0).abs()
    }

    /// Whether the row's time is in the interval that should contain 90 %.
    fn covers(&self, row: &Row) -> Option<bool> {
        let (Self::Levels(fit), Some(step)) = (self, row.step) else { return None };
        let (low, high) = fit.interval(step.workers, step.servers, step.local_batch);
        Some((low..=high).contains(&step.seconds))
    }
}

/// Runs the command.
///
/// # Errors
/// The file can't be read, a value is invalid, or there are fewer rows than requested.
pub(crate) fn run(args: &SpeedArgs, output: Output) -> Result<(), Failure> {
    let rows = read(args)?;
    let drawn = match args.sample {
        None => vec![true; rows.len()],
        Some(count) if args.choose && count > MOST_CHOSEN => {
            return Err(Failure::refused(format!("--sample {count}: with --choose at most {MOST_CHOSEN} are allowed")));
        }
        Some(count) if count as usize <= rows.len() && args.choose => choose(args, &rows, count as usize),
        Some(count) if count as usize <= rows.len() => draw(rows.len(), count as usize, args.seed),
        Some(count) => {
            return Err(Failure::refused(format!(
                "--sample {count}: {} has {} rows; at most so many can be drawn",
                args.csv.display(),
                rows.len()
            )));
        }
    };
    let (chosen, unseen): (Vec<_>, Vec<_>) = rows.iter().zip(&drawn).partition(|(_, drawn)| **drawn);
    let [chosen, unseen] = [chosen, unseen].map(|rows| rows.into_iter().map(|(row, _)| *row).collect::<Vec<Row>>());
    let batch = batch(args, &rows);
    let form = form(args, batch, &chosen);
    let fit = best(args, batch, &chosen, &form);
    let samples: Vec<_> = chosen.iter().map(|row| row.sample).collect();
    let share = |covered: bool| if covered { 1.0 } else { 0.0 };
    output.show(&Report {
        mode: args.mode,
        warnings: match &fit {
            Fitted::Form(_) => warnings(args.mode, &samples),
            Fitted::Levels(_) => Vec::new(),
        },
        mape_all: mean(rows.iter().map(|row| fit.error(row, batch))).unwrap_or_default(),
        mape_unseen: mean(unseen.iter().map(|row| fit.error(row, batch))),
        covered_unseen: mean(unseen.iter().filter_map(|row| fit.covers(row)).map(share)),
        unseen: unseen.len(),
        next: match &fit {
            Fitted::Form(fit) => next(args, fit, &rows),
            Fitted::Levels(fit) => next_group(fit, &rows),
        },
        theta: match &fit {
            Fitted::Form(fit) => fit.theta[..args.mode.coefficients()].to_vec(),
            Fitted::Levels(fit) => fit.theta().to_vec(),
        },
        cross: matches!(fit, Fitted::Form(_)).then_some(form.cross),
        gamma: if let Fitted::Levels(fit) = &fit { Some(fit.overlap()) } else { None },
        points_used: form.samples,
    })
}

/// The batch of the fit. If rows have their own batches, it only sets the scale of undetermined coefficients.
fn batch(args: &SpeedArgs, rows: &[Row]) -> f64 {
    let own = mean(rows.iter().filter_map(|row| row.sample.batch));
    args.batch.map(f64::from).or(own).unwrap_or(1.0)
}

fn form(args: &SpeedArgs, batch: f64, rows: &[Row]) -> SpeedFit {
    let options = if args.paper { SpeedOptions::paper() } else { SpeedOptions::default() };
    let samples: Vec<_> = rows.iter().map(|row| row.sample).collect();
    SpeedFit::fit(args.mode.model(batch), &samples, &options)
}

/// The fit by the network's levels, if all rows tell their servers.
fn levels(args: &SpeedArgs, rows: &[Row]) -> Option<LevelFit> {
    let steps: Option<Vec<_>> = rows.iter().map(|row| row.step).collect();
    LevelFit::fit(&steps.filter(|_| !args.paper)?)
}

/// The form by the network's levels, unless the other predicts rows that were left out of its fit, one by one or in
/// twenty parts, clearly better.
fn best(args: &SpeedArgs, batch: f64, rows: &[Row], form_of_all: &SpeedFit) -> Fitted {
    let Some(of_all) = levels(args, rows) else { return Fitted::Form(form_of_all.clone()) };
    let parts = rows.len().min(MOST_PARTS);
    let (mut by_form, mut by_levels) = (0.0, 0.0);
    for part in 0..parts {
        let (out, kept): (Vec<_>, Vec<_>) = (0..rows.len()).partition(|row| row % parts == part);
        let kept: Vec<Row> = kept.into_iter().map(|row| rows[row]).collect();
        let Some(fit) = levels(args, &kept).map(Fitted::Levels) else { break };
        let form = Fitted::Form(form(args, batch, &kept));
        for row in out {
            by_form += form.error(&rows[row], batch);
            by_levels += fit.error(&rows[row], batch);
        }
    }
    if by_form < CLEARLY * by_levels { Fitted::Form(form_of_all.clone()) } else { Fitted::Levels(of_all) }
}

/// The powers of two up to twice the largest measured number, and this number.
fn up_to(most: u32) -> impl Iterator<Item = u32> {
    let twice = most.saturating_mul(2);
    (0..u32::BITS).map(|bit| 1 << bit).filter(move |one| *one <= twice && *one != most).chain([most])
}

/// The shape to measure next: one that wasn't measured, among powers of two up to twice the largest measured numbers,
/// and these numbers.
fn next(args: &SpeedArgs, fit: &SpeedFit, rows: &[Row]) -> Next {
    let servers_of = |sample: &SpeedSample| if args.mode == TrainingMode::AllReduce { 0 } else { sample.servers };
    let measured: BTreeSet<_> = rows.iter().map(|row| (servers_of(&row.sample), row.sample.workers)).collect();
    let (servers, workers) =
        measured.iter().fold((0, 1), |(servers, workers), (p, w)| (servers.max(*p), workers.max(*w)));
    let shapes = up_to(servers).flat_map(|p| up_to(workers).map(move |w| (p, w)));
    let shapes: Vec<_> = shapes.filter(|shape| !measured.contains(shape)).map(|(p, w)| (p, w, None)).collect();
    let (servers, workers, _) =
        fit.next_to_profile(shapes.iter().copied()).map_or((servers, workers, None), |at| shapes[at]);
    Next { servers, workers, nodes: None }
}

/// The same by the network's levels, at the mean batch of a worker, with no more workers on a server than were
/// measured.
fn next_group(fit: &LevelFit, rows: &[Row]) -> Next {
    let steps: Vec<_> = rows.iter().filter_map(|row| row.step).collect();
    let measured: BTreeSet<_> = steps.iter().map(|step| (step.workers, step.servers)).collect();
    let most = |of: fn(&StepSample) -> u32| steps.iter().map(of).max().unwrap_or(1);
    let (workers, nodes) = (most(|step| step.workers), most(|step| step.servers));
    let batch = mean(steps.iter().map(|step| step.local_batch)).unwrap_or(1.0);
    let dense = steps.iter().map(|step| step.workers.div_ceil(step.servers)).max().unwrap_or(1);
    let fits = move |w: u32, n: u32| n <= w && w.div_ceil(n) <= dense;
    let groups = up_to(workers).flat_map(|w| up_to(nodes).filter(move |n| fits(w, *n)).map(move |n| (w, n)));
    let error = |(w, n): &(u32, u32)| fit.relative_error(*w, *n, batch);
    let unknown = groups.filter(|group| !measured.contains(group)).max_by(|a, b| error(a).total_cmp(&error(b)));
    let (workers, nodes) = unknown.unwrap_or((workers, nodes));
    Next { servers: 0, workers, nodes: Some(nodes) }
}

fn read(args: &SpeedArgs) -> Result<Vec<Row>, Failure> {
    let servers = args.mode != TrainingMode::AllReduce;
    let column = |name, required, allowed| Wanted { name, required, allowed };
    let mut wanted = vec![
        column("p", servers, if servers { Allowed::Positive } else { Allowed::Count }),
        column("w", true, Allowed::Positive),
        column("speed", true, Allowed::Above),
        column("batch", false, Allowed::Above),
        column("local_bsz", false, Allowed::Above),
    ];
    if !servers {
        wanted.push(column("nodes", false, Allowed::Positive));
    }
    let columns = Columns::read(&args.csv, &wanted)?;
    let file = args.csv.display();
    let has = |place: usize| columns.rows().any(|row| row.get(place).is_some_and(Option::is_some));
    if has(3) && has(4) {
        return Err(Failure::refused(format!("{file}: columns \"batch\" and \"local_bsz\"; one of them is allowed")));
    }
    if let (Some(batch), Some(place)) = (args.batch, [3, 4].into_iter().find(|place| has(*place))) {
        let name = wanted[place].name;
        return Err(Failure::refused(format!("--batch {batch}: {file} has a column {name}; leave --batch out")));
    }
    let mut rows = Vec::new();
    for (at, row) in columns.rows().enumerate() {
        let whole = |place: usize| row[place].unwrap_or_default() as u32;
        let (workers, speed) = (whole(1), row[2].unwrap_or_default());
        let batch = row[3].or(row[4].map(|local| local * f64::from(workers)));
        let nodes = row.get(NODES).copied().flatten().map(|nodes| nodes as u32);
        if nodes.is_some_and(|nodes| nodes > workers) {
            return Err(columns.wrong(at, NODES, &format!("at most one for each of the {workers} workers")).into());
        }
        let of_all = batch.or(args.batch.map(f64::from)).unwrap_or(1.0);
        let local_batch = row[4].unwrap_or(of_all / f64::from(workers));
        let step = nodes.map(|servers| StepSample { workers, servers, local_batch, seconds: 1.0 / speed });
        rows.push(Row {
            sample: SpeedSample { batch, ..SpeedSample::new(whole(0), workers, speed) },
            step: step.filter(StepSample::is_usable),
        });
    }
    Ok(rows)
}

/// Marks `count` random rows of `rows`, without repetition.
fn draw(rows: usize, count: usize, seed: u64) -> Vec<bool> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut order: Vec<usize> = (0..rows).collect();
    for place in 0..count {
        let left = (rows - place) as u64;
        // 2^64 isn't a multiple of most numbers of rows. Draws that would favour the first ones are repeated.
        let fair = u64::MAX - u64::MAX % left;
        let number = std::iter::repeat_with(|| random.next_u64()).find(|number| *number < fair).unwrap_or(0);
        order.swap(place, place + (number % left) as usize);
    }
    let mut drawn = vec![false; rows];
    order[..count].iter().for_each(|&row| drawn[row] = true);
    drawn
}

/// Marks `count` rows: a random one, then each time the one about which the fit to those so far says least.
fn choose(args: &SpeedArgs, rows: &[Row], count: usize) -> Vec<bool> {
    let mut chosen = draw(rows.len(), 1, args.seed);
    let batch = batch(args, rows);
    for _ in 1..count {
        let (seen, left): (Vec<_>, Vec<_>) = (0..rows.len()).partition(|row| chosen[*row]);
        let seen: Vec<_> = seen.into_iter().map(|row| rows[row]).collect();
        let next = match levels(args, &seen) {
            Some(fit) => {
                let error = |row: &usize| {
                    rows[*row].step.map_or(0.0, |step| fit.relative_error(step.workers, step.servers, step.local_batch))
                };
                left.iter().copied().max_by(|a, b| error(a).total_cmp(&error(b)))
            }
            None => {
                let samples = left.iter().map(|row| rows[*row].sample);
                let shapes = samples.map(|sample| (sample.servers, sample.workers, sample.batch));
                form(args, batch, &seen).next_to_profile(shapes).map(|at| left[at])
            }
        };
        let Some(next) = next else { break };
        chosen[next] = true;
    }
    chosen
}

/// Why rows contain less information than their fit suggests.
fn warnings(mode: TrainingMode, rows: &[SpeedSample]) -> Vec<String> {
    let mut warnings = Vec::new();
    let shapes: BTreeSet<_> = rows.iter().map(|row| (row.servers, row.workers, row.batch.map(f64::to_bits))).collect();
    let (few, terms) = (shapes.len(), mode.coefficients());
    if few < terms {
        let differ = if few == 1 { "1 row that differs".into() } else { format!("{few} rows that differ") };
        warnings.push(format!(
            "{differ} can't determine {terms} terms: the fit goes through them and may be far off elsewhere."
        ));
    }
    if mode != TrainingMode::AllReduce && has_one_ratio(rows) {
        warnings
            .push("w/p is the same in all of them, so the terms can't be told apart: measure other ratios too.".into());
    }
    warnings
}

/// Whether w/p is constant, so that terms with it can't be distinguished from constant terms.
fn has_one_ratio(samples: &[SpeedSample]) -> bool {
    let products = |a: &SpeedSample, b: &SpeedSample| {
        (u64::from(a.workers) * u64::from(b.servers), u64::from(b.workers) * u64::from(a.servers))
    };
    samples.windows(2).map(|pair| products(&pair[0], &pair[1])).all(|(one, other)| one == other)
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

/// A shape to measure.
#[derive(Serialize)]
struct Next {
    servers: u32,
    workers: u32,
    /// The number of servers that the workers are on.
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<u32>,
}

#[derive(Serialize)]
struct Report {
    theta: Vec<f64>,
    /// Composition of a step's time from computation C and communication S: T² = C² + cross·C·S + S²; 2 = C + S.
    #[serde(skip_serializing_if = "Option::is_none")]
    cross: Option<f64>,
    /// The same by the network's levels: T^γ = C^γ + N^γ.
    #[serde(skip_serializing_if = "Option::is_none")]
    gamma: Option<f64>,
    points_used: u32,
    mape_all: f64,
    mape_unseen: Option<f64>,
    /// The part of the unseen rows in the intervals that should contain 90 %.
    #[serde(skip_serializing_if = "Option::is_none")]
    covered_unseen: Option<f64>,
    #[serde(skip)]
    mode: TrainingMode,
    #[serde(skip)]
    unseen: usize,
    /// Why the coefficients may be unreliable.
    warnings: Vec<String>,
    /// The shape about which the fit says least.
    next: Next,
}

impl Show for Report {
    fn text(&self, paper: &Paper) -> String {
        let mut sheet = Sheet::new([Column::key("COEFFICIENT"), Column::key("SECONDS").right()]);
        for (index, theta) in self.theta.iter().enumerate() {
            // Seconds per example are often tiny.
            let small = *theta > 0.0 && *theta < 1e-3;
            let seconds = if small { format!("{theta:.3e}") } else { format!("{theta:.6}") };
            sheet.row([format!("θ{index}").into(), seconds.into()]);
        }
        let overlap = if self.cross.is_some_and(|cross| cross < 2.0) {
            "\nComputing and communicating overlap: where the formula adds them, the time is less."
        } else {
            ""
        };
        let formula = match self.gamma {
            None => self.mode.formula().to_owned(),
            Some(gamma) => format!(
                "1/speed = (C^γ + N^γ)^(1/γ), γ = {gamma:.1}; C = θ0 + θ1·batch/w\n\
                 N = θ2 + θ3·(w−2) on one server, θ4 + θ5·(w−2) on several, 0 for one worker"
            ),
        };
        let unseen = self.mape_unseen.map_or_else(String::new, |error| {
            let covered = self.covered_unseen.map_or_else(String::new, |covered| {
                format!(" ({:.0} % of them are in its intervals of 90 %)", covered * 100.0)
            });
            format!("; on the {} rows it hasn't seen it is off by {:.1} %{covered}", self.unseen, error * 100.0)
        });
        let warnings: String = self.warnings.iter().map(|warning| format!("\n{warning}")).collect();
        let rows = if self.points_used == 1 { "row" } else { "rows" };
        let next = match &self.next {
            Next { workers, nodes: Some(1), .. } => format!("w = {workers} on one server"),
            Next { workers, nodes: Some(nodes), .. } => format!("w = {workers} on {nodes} servers"),
            Next { servers: 0, workers, .. } => format!("w = {workers}"),
            Next { servers, workers, .. } => format!("p = {servers}, w = {workers}"),
        };
        format!(
            "{}\n\n{}{overlap}\nFitted to {} {rows}. On all rows it is off by {:.1} % on average{unseen}.\
             \nThe fit says least about {next}: measure that next.{warnings}",
            sheet.on(paper),
            formula,
            self.points_used,
            self.mape_all * 100.0
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawing_is_even_and_repeatable() {
        let mut often = [0_u32; 7];
        for seed in 0..2000 {
            let drawn = draw(7, 3, seed);
            assert_eq!(drawn, draw(7, 3, seed));
            assert_eq!(drawn.iter().filter(|drawn| **drawn).count(), 3);
            drawn.iter().zip(&mut often).filter(|(drawn, _)| **drawn).for_each(|(_, times)| *times += 1);
        }
        assert!(often.iter().all(|times| (760..960).contains(times)), "{often:?}");
    }

    #[test]
    fn everything_can_be_drawn() {
        assert!(draw(5, 5, 1).iter().all(|drawn| *drawn));
    }
}

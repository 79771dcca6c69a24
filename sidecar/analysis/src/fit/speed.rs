//! `trainmaster fit speed`: the speed function of a model from measured speeds.

use std::{collections::BTreeSet, path::PathBuf};

use clap::{Args, ValueEnum};
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{RngCore, SeedableRng},
};
use serde::Serialize;
use trainmaster_core::fit::{SpeedFit, SpeedModel, SpeedOptions, SpeedSample};
use trainmaster_terminal::{
    Failure, Output, Paper, Show,
    sheet::{Column, Sheet},
};

use super::columns::{Allowed, Columns, Wanted};

/// The command's arguments.
#[derive(Args, Debug)]
pub struct SpeedArgs {
    /// A file with the columns p (parameter servers), w (workers), speed (steps per second) and, if it differs between
    /// rows, batch (examples per step)
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

/// Runs the command.
///
/// # Errors
/// The file can't be read, a value is invalid, or there are fewer rows than requested.
pub(crate) fn run(args: &SpeedArgs, output: Output) -> Result<(), Failure> {
    let samples = read(args)?;
    if let Some(batch) = args.batch.filter(|_| samples.iter().any(|sample| sample.batch.is_some())) {
        let file = args.csv.display();
        return Err(Failure::refused(format!("--batch {batch}: {file} has a column batch; leave --batch out")));
    }
    let drawn = match args.sample {
        None => vec![true; samples.len()],
        Some(count) if args.choose && count > MOST_CHOSEN => {
            return Err(Failure::refused(format!("--sample {count}: with --choose at most {MOST_CHOSEN} are allowed")));
        }
        Some(count) if count as usize <= samples.len() && args.choose => choose(args, &samples, count as usize),
        Some(count) if count as usize <= samples.len() => draw(samples.len(), count as usize, args.seed),
        Some(count) => {
            return Err(Failure::refused(format!(
                "--sample {count}: {} has {} rows; at most so many can be drawn",
                args.csv.display(),
                samples.len()
            )));
        }
    };
    let chosen: Vec<_> = samples.iter().zip(&drawn).filter(|(_, drawn)| **drawn).map(|(sample, _)| *sample).collect();
    let batch = batch(args, &samples);
    let fit = fit(args, batch, &chosen);
    let error = |sample: &SpeedSample| {
        let predicted = fit.curve_at_batch(sample.batch.unwrap_or(batch)).speed(sample.servers, sample.workers);
        (predicted / sample.speed - 1.0).abs()
    };
    let unseen: Vec<_> =
        samples.iter().zip(&drawn).filter(|(_, drawn)| !**drawn).map(|(sample, _)| error(sample)).collect();
    output.show(&Report {
        mode: args.mode,
        theta: fit.theta[..args.mode.coefficients()].to_vec(),
        cross: fit.cross,
        points_used: fit.samples,
        warnings: warnings(args.mode, &chosen),
        mape_all: mean(samples.iter().map(error)).unwrap_or_default(),
        mape_unseen: mean(unseen.iter().copied()),
        unseen: unseen.len(),
        next: next(args, &fit, &samples),
    })
}

/// The batch of the fit. If rows have their own batches, it only sets the scale of undetermined coefficients.
fn batch(args: &SpeedArgs, samples: &[SpeedSample]) -> f64 {
    let own = mean(samples.iter().filter_map(|sample| sample.batch));
    args.batch.map(f64::from).or(own).unwrap_or(1.0)
}

fn fit(args: &SpeedArgs, batch: f64, samples: &[SpeedSample]) -> SpeedFit {
    let options = if args.paper { SpeedOptions::paper() } else { SpeedOptions::default() };
    SpeedFit::fit(args.mode.model(batch), samples, &options)
}

/// The shape to measure next: one that wasn't measured, among powers of two up to twice the largest measured numbers,
/// and these numbers.
fn next(args: &SpeedArgs, fit: &SpeedFit, samples: &[SpeedSample]) -> Next {
    let up_to = |most: u32| {
        let twice = most.saturating_mul(2);
        (0..u32::BITS).map(|bit| 1 << bit).filter(move |one| *one <= twice && *one != most).chain([most])
    };
    let servers_of = |sample: &SpeedSample| if args.mode == TrainingMode::AllReduce { 0 } else { sample.servers };
    let measured: BTreeSet<_> = samples.iter().map(|sample| (servers_of(sample), sample.workers)).collect();
    let (servers, workers) =
        measured.iter().fold((0, 1), |(servers, workers), (p, w)| (servers.max(*p), workers.max(*w)));
    let shapes = up_to(servers).flat_map(|p| up_to(workers).map(move |w| (p, w)));
    let shapes: Vec<_> = shapes.filter(|shape| !measured.contains(shape)).map(|(p, w)| (p, w, None)).collect();
    let (servers, workers, _) =
        fit.next_to_profile(shapes.iter().copied()).map_or((servers, workers, None), |at| shapes[at]);
    Next { servers, workers }
}

fn read(args: &SpeedArgs) -> anyhow::Result<Vec<SpeedSample>> {
    let servers = args.mode != TrainingMode::AllReduce;
    let column = |name, required, allowed| Wanted { name, required, allowed };
    let columns = Columns::read(
        &args.csv,
        &[
            column("p", servers, if servers { Allowed::Positive } else { Allowed::Count }),
            column("w", true, Allowed::Positive),
            column("speed", true, Allowed::Above),
            column("batch", false, Allowed::Above),
        ],
    )?;
    let sample = |row: &[Option<f64>]| SpeedSample {
        batch: row[3],
        ..SpeedSample::new(
            row[0].unwrap_or_default() as u32,
            row[1].unwrap_or_default() as u32,
            row[2].unwrap_or_default(),
        )
    };
    Ok(columns.rows().map(sample).collect())
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
fn choose(args: &SpeedArgs, samples: &[SpeedSample], count: usize) -> Vec<bool> {
    let mut chosen = draw(samples.len(), 1, args.seed);
    let batch = batch(args, samples);
    for _ in 1..count {
        let (seen, left): (Vec<_>, Vec<_>) = (0..samples.len()).partition(|row| chosen[*row]);
        let seen: Vec<_> = seen.into_iter().map(|row| samples[row]).collect();
        let rows = left.iter().map(|row| &samples[*row]).map(|row| (row.servers, row.workers, row.batch));
        let Some(next) = fit(args, batch, &seen).next_to_profile(rows) else { break };
        chosen[left[next]] = true;
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
}

#[derive(Serialize)]
struct Report {
    theta: Vec<f64>,
    /// Composition of a step's time from computation C and communication S: T² = C² + cross·C·S + S²; 2 = C + S.
    cross: f64,
    points_used: u32,
    mape_all: f64,
    mape_unseen: Option<f64>,
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
        let overlap = if self.cross < 2.0 {
            "\nComputing and communicating overlap: where the formula adds them, the time is less."
        } else {
            ""
        };
        let unseen = self.mape_unseen.map_or_else(String::new, |error| {
            format!("; on the {} rows it hasn't seen it is off by {:.1} %", self.unseen, error * 100.0)
        });
        let warnings: String = self.warnings.iter().map(|warning| format!("\n{warning}")).collect();
        let rows = if self.points_used == 1 { "row" } else { "rows" };
        let next = match &self.next {
            Next { servers: 0, workers } => format!("w = {workers}"),
            Next { servers, workers } => format!("p = {servers}, w = {workers}"),
        };
        format!(
            "{}\n\n{}{overlap}\nFitted to {} {rows}. On all rows it is off by {:.1} % on average{unseen}.\
             \nThe fit says least about {next}: measure that next.{warnings}",
            sheet.on(paper),
            self.mode.formula(),
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

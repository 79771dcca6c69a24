//! `trainmaster train-policy`: trains a policy for an engine on a virtual cluster.

use std::{
    fs,
    io::{self, IsTerminal},
    path::{Path, PathBuf},
    thread,
};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use plotters::prelude::*;
use serde::Serialize;
use trainmaster_core::engines;
use trainmaster_policy::train::{Course, Means, Point, TrainError, Trained};
use trainmaster_sim::workload;
use trainmaster_terminal::{
    Failure, Output, Paper, Show,
    sheet::{Column, Sheet},
};

/// The command's arguments.
#[derive(Args, Debug)]
pub struct TrainPolicyArgs {
    /// Workload for the training, one of `simulate`'s; `simulate --workload list` shows them
    #[arg(long, value_name = "NAME")]
    workload: String,
    /// The file to write; the learning curve goes beside it, as .svg
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// The engine that uses the policy
    #[arg(long, value_name = "NAME", default_value = "mlfs")]
    engine: String,
    /// Seed of all random numbers: the same seed writes the same file
    #[arg(
        long,
        value_name = "SEED",
        default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(..1_000_000_000),
    )]
    seed: u64,
    /// Number of jobs in an episode, instead of the workload's own
    #[arg(long, value_name = "N")]
    jobs: Option<u32>,
    /// Number of servers, instead of the workload's own
    #[arg(long, value_name = "N")]
    servers: Option<u32>,
    /// Number of hidden units of the network
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=256))]
    hidden: u64,
    /// Number of steps of the policy gradient, after the imitation
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(..=100_000))]
    steps: u32,
    /// Pairs of episodes for each step
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pairs: u32,
    /// Standard deviation of the perturbation of the weights
    #[arg(long, value_name = "D", default_value_t = 0.15, value_parser = positive)]
    deviation: f64,
    /// Maximum change of each weight in a step
    #[arg(long, value_name = "R", default_value_t = 0.05, value_parser = positive)]
    rate: f64,
    /// Number of held-out seeds for the choice of the best step
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=900))]
    selection: u32,
    /// Number of other held-out seeds, for the validation in the file
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=900))]
    validation: u32,
    /// Number of threads [default: the number of processors]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

/// Runs the command.
///
/// # Errors
/// The workload or the engine is unknown, the engine uses no policy, or the files can't be written.
pub fn run(args: &TrainPolicyArgs, output: Output) -> Result<(), Failure> {
    let usage = |error: &dyn std::fmt::Display| Failure::Usage(error.to_string());
    let workload = workload::find(&args.workload).map_err(|error| usage(&error))?;
    let engine = engines::find(&args.engine).map_err(|error| usage(&error))?.name;
    engines::policy_inputs(engine).map_err(|error| Failure::Usage(format!("--engine: {error}")))?;
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let course = Course {
        engine,
        workload,
        jobs: args.jobs,
        servers: args.servers,
        seed: args.seed,
        hidden: args.hidden as usize,
        steps: args.steps,
        pairs: args.pairs,
        deviation: args.deviation,
        rate: args.rate,
        selection: args.selection,
        validation: args.validation,
        threads: args.threads.unwrap_or(processors).clamp(1, 4 * processors),
    };
    // An unwritable file is detected before any episode. An existing file stays until there is a better one.
    let is_new = !args.out.exists();
    let opened = fs::OpenOptions::new().append(true).create(true).open(&args.out);
    opened.map_err(|error| Failure::refused(format!("{}: {error}", args.out.display())))?;
    let bar = bar(course.episodes());
    let trained = course.train(&|| bar.inc(1), &mut |point: Point| {
        if let Some(reward) = point.selection {
            bar.set_message(format!("step {}: reward {reward:.4}", point.step));
        }
    });
    bar.finish_and_clear();
    let trained = trained.map_err(|error| match error {
        TrainError::Play(error) => Failure::refused(error.to_string()),
        error => Failure::Usage(error.to_string()),
    });
    let trained = trained.inspect_err(|_| {
        if is_new {
            let _ = fs::remove_file(&args.out);
        }
    })?;
    let refused = engines::policy_inputs(engine).and_then(|inputs| trained.policy.check(inputs)).err();
    // Engines continue to use the existing file.
    if refused.is_some() && !is_new {
        let reason = refused.map(|error| error.to_string()).unwrap_or_default();
        return Err(Failure::refused(format!(
            "{}: left as it was: the new policy can't be used: {reason}",
            args.out.display()
        )));
    }
    fs::write(&args.out, trained.policy.to_toml())?;
    let picture = args.out.with_extension("svg");
    draw(&trained, &picture).map_err(|problem| Failure::refused(format!("{}: {problem}", picture.display())))?;
    output.show(&Summary {
        engine,
        file: args.out.display().to_string(),
        picture: picture.display().to_string(),
        hash: trained.policy.id(),
        reward: trained.policy.validation().map_or(0.0, |validation| validation.policy),
        refused: refused.map(|error| error.to_string()),
        trained: &trained,
    })
}

/// Parses a positive number for changes of weights.
fn positive(text: &str) -> Result<f64, String> {
    let within = |number: &f64| (1e-6..=10.0).contains(number);
    text.parse().ok().filter(within).ok_or_else(|| "it must be a number from 0.000001 to 10".into())
}

fn bar(episodes: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {human_pos} of {human_len} episodes, {eta} left {msg}");
    ProgressBar::new(episodes).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

#[derive(Serialize)]
struct Summary<'a> {
    engine: &'static str,
    file: String,
    picture: String,
    hash: String,
    /// Reward in the validation.
    reward: f64,
    /// Why schedulers will refuse it.
    refused: Option<String>,
    #[serde(flatten)]
    trained: &'a Trained,
}

impl Show for Summary<'_> {
    fn text(&self, paper: &Paper) -> String {
        let Trained { seeds, par, shown, agreed, best_step, policy_means, heuristic_means, .. } = self.trained;
        let numbers = ["reward", "mean JCT", "deadlines", "traffic", "accuracies", "accuracy"];
        let columns = numbers.into_iter().map(|heading| Column::key(heading).right());
        let mut sheet = Sheet::new([Column::key("validation")].into_iter().chain(columns));
        for (name, reward, means) in [("policy", self.reward, policy_means), ("heuristic", *par, heuristic_means)] {
            let Means { jct_s, deadline_ratio, traffic_gb, accuracy_ratio, accuracy_at_deadline } = means;
            sheet.row(
                [
                    name.to_owned(),
                    format!("{reward:.4}"),
                    format!("{jct_s:.0} s"),
                    format!("{:.1} %", 100.0 * deadline_ratio),
                    format!("{traffic_gb:.0} GB"),
                    format!("{:.1} %", 100.0 * accuracy_ratio),
                    format!("{accuracy_at_deadline:.4}"),
                ]
                .map(Into::into),
            );
        }
        let verdict = match &self.refused {
            None => format!("engine {} may follow it", self.engine),
            Some(problem) => format!("schedulers will refuse it: {problem}"),
        };
        format!(
            "{}\n{:.1} % of {shown} choices are the heuristic's after imitation; best in step {best_step}; validated \
             on seeds {} and up.\n\
             {} ({}) and {} written; {verdict}.",
            sheet.on(paper),
            100.0 * agreed,
            seeds.validation,
            self.file,
            self.hash,
            self.picture
        )
    }
}

/// Draws the learning curve: rewards of perturbed weights in training, and of the weights themselves with other seeds.
fn draw(trained: &Trained, file: &Path) -> Result<(), String> {
    fn failed(error: impl std::fmt::Display) -> String {
        error.to_string()
    }
    let root = SVGBackend::new(file, (720, 400)).into_drawing_area();
    root.fill(&WHITE).map_err(failed)?;
    let curve = &trained.curve;
    let rewards = curve.iter().flat_map(|point| [point.training, point.selection]).flatten().chain([trained.par]);
    let (low, high) =
        rewards.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), reward| (low.min(reward), high.max(reward)));
    let margin = 0.05 * (high - low).max(0.01);
    let last = curve.last().map_or(1, |point| point.step.max(1));
    let mut chart = ChartBuilder::on(&root)
        .caption("Mean reward by step of the policy gradient", ("sans-serif", 16))
        .margin(10)
        .set_label_area_size(LabelAreaPosition::Left, 56)
        .set_label_area_size(LabelAreaPosition::Bottom, 34)
        .build_cartesian_2d(0.0..f64::from(last), low - margin..high + margin)
        .map_err(failed)?;
    chart.configure_mesh().x_desc("step").y_desc("reward").draw().map_err(failed)?;
    let line = |of: fn(&Point) -> Option<f64>| {
        curve.iter().filter_map(move |point| Some((f64::from(point.step), of(point)?))).collect::<Vec<_>>()
    };
    let par = vec![(0.0, trained.par), (f64::from(last), trained.par)];
    let lines = [
        ("heuristic", par, BLACK),
        ("training, perturbed", line(|point| point.training), BLUE),
        ("held-out seeds", line(|point| point.selection), RED),
    ];
    for (name, points, colour) in lines {
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)))
            .map_err(failed)?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    let labels = chart.configure_series_labels().background_style(WHITE).border_style(BLACK).draw();
    labels.map_err(failed)?;
    root.present().map_err(failed)
}

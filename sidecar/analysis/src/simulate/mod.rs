//! `trainmaster simulate`: a comparison of engines on a simulated workload.

pub(crate) mod comparison;
mod gavel;
mod offline;
mod page;
mod rows;
mod rubick;
pub(crate) mod runs;
mod source;

use std::{collections::BTreeMap, path::PathBuf};

use clap::Args;
use trainmaster_core::{
    Policy, Settings, Span, engines,
    settings::{Parameter, Stability},
};
use trainmaster_policy::Choice;
use trainmaster_sim::{Errors, Options, Request, Stragglers, WorkloadError};
use trainmaster_terminal::{Failure, Output};

use self::{
    comparison::{Comparison, Over},
    offline::Search,
    runs::Plan,
    source::Source,
};

/// The command's arguments.
#[derive(Args, Debug)]
pub struct SimulateArgs {
    /// The workload: a cluster, jobs and their arrivals; --workload list shows the known ones. Recorded jobs:
    /// philly:FILE, elasticflow:FILE, pollux:FILE, pollux-adaptive:FILE, rubick:FILE with --measured, or csv:FILE with
    /// --columns. Jobs on three types of GPU: gavel:FILE
    #[arg(long, value_name = "NAME")]
    workload: String,
    /// Headings of a csv:FILE: time (seconds, or date and time), gpus, duration (seconds) and, if there is one, name
    #[arg(long, value_name = "time=H,gpus=H,duration=H")]
    columns: Option<String>,
    /// The folder in which rubick:FILE finds the measured iterations of each model
    #[arg(long, value_name = "DIR")]
    measured: Option<PathBuf>,
    /// Engines to compare; the others are compared with the first one. NAME=ENGINE is an engine under another name,
    /// with parameters of its own. `offline` adds the maximum utility, or the minimum completion times of jobs in
    /// chunks
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_values_t = ["optimus".to_owned(), "drf".into(), "tetris".into()],
    )]
    engines: Vec<String>,
    /// Number of simulations, each with other arrivals, losses and random numbers; they are the same for all engines
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    seeds: u64,
    /// The first seed
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    first_seed: u64,
    /// Set an engine's parameter; may be repeated
    #[arg(long, value_name = "ENGINE.PARAMETER=VALUE")]
    set: Vec<String>,
    /// Number of jobs, instead of the workload's own
    #[arg(long, value_name = "N")]
    jobs: Option<u32>,
    /// Number of servers, instead of the workload's own
    #[arg(long, value_name = "N")]
    servers: Option<u32>,
    /// Make workers faster by this factor, while `offline` uses the original speed; only for jobs in chunks (edge)
    #[arg(long, value_name = "FACTOR")]
    speed: Option<f64>,
    /// Give engines predictions with these relative errors, decreasing with progress, instead of fitted ones
    #[arg(long, value_name = "conv=E,speed=E")]
    errors: Option<String>,
    /// Let every server fail this often per day on average, with all its slots; it returns after 10 minutes
    #[arg(long, value_name = "PER_DAY", value_parser = rate::<24>)]
    failures: Option<f64>,
    /// Let every worker slow down this often per hour of training on average, to a third of its speed for 10 minutes
    #[arg(long, value_name = "PER_HOUR", value_parser = rate::<6>)]
    stragglers: Option<f64>,
    /// The rules that keep jobs from being restarted too often, as `serve` has them; the papers don't have them
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = ["on", "off"])]
    stability: String,
    /// Let the scheduler stop jobs that have nothing to gain, as far as their owners consent, under these engines
    /// [without NAMES: under all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', num_args = 0.., require_equals = true)]
    early_stop: Option<Vec<String>>,
    /// Number of threads, at most four times the processors [default: the number of processors]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Omit the durations of decisions, so that equal runs print the same bytes
    #[arg(long)]
    no_timing: bool,
    /// Policy for engines that use one (mlfs, rl): a file of `train-policy`, or none; by default the policies that are
    /// part of the product
    #[arg(long, value_name = "FILE")]
    policy: Option<String>,
    /// Write a page with plots of the first seed into this directory
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// The arguments name an unknown workload, engine or parameter, or are out of range; a simulation fails; or the page
/// can't be written.
pub fn run(args: &SimulateArgs, output: Output) -> Result<(), Failure> {
    if args.workload == "list" {
        return output.show(&comparison::Workloads);
    }
    let source = Source::of(&args.workload, args.columns.as_deref(), args.measured.as_deref())?;
    tell(&source);
    let policies = policies(args.policy.as_deref());
    let errors = args.errors.as_deref().map(read_errors).transpose()?;
    let contenders = Contender::read_all("--engines", &args.engines, &[offline::NAME])?;
    let sets = args.set.iter().map(|text| read_set(text, &contenders)).collect::<Result<Vec<_>, _>>()?;
    let contenders: Vec<Contender> = contenders.into_iter().filter(|one| one.engine != offline::NAME).collect();
    let engines: Vec<String> = contenders.iter().map(|one| one.name.clone()).collect();
    if engines.is_empty() {
        return Err(usage("offline is compared with engines; name one, such as --engines oasis,offline"));
    }
    let search = (engines.len() < args.engines.len()).then(|| Search::of(&sets)).transpose()?;
    let plain = |seed| source.build(&Request { seed, jobs: args.jobs, servers: args.servers });
    let build = |seed| {
        let mut workload = plain(seed)?;
        if let Some(factor) = args.speed {
            workload.speed_up(factor)?;
        }
        if let Some(per_day) = args.failures {
            workload.fail_servers(per_day, WHILE, seed);
        }
        if let Some(per_hour) = args.stragglers {
            workload.slow_workers(Stragglers { per_hour, slowdown: 3.0, length: WHILE });
        }
        Ok::<_, WorkloadError>(workload)
    };
    let seeds: Vec<u64> = (0..args.seeds).map(|number| args.first_seed.wrapping_add(number)).collect();
    // Built once here, so that an invalid request is refused before any run.
    let first = build(seeds[0]).map_err(usage)?;
    if let Some(search) = &search {
        search.check(&plain(seeds[0]).map_err(usage)?)?;
    }
    let stability = Stability { enabled: args.stability == "on", ..Stability::default() };
    let base = Settings { stability, ..Settings::default() };
    let stopping = stopping(args.early_stop.as_deref(), &engines)?;
    let settings = contenders
        .iter()
        .map(|one| {
            let base = Settings { early_stop: stopping.contains(&one.name), ..base.clone() };
            settings(one, &base, &first.parameters, &sets)
        })
        .collect::<Result<Vec<_>, _>>()?;
    let plan = Plan {
        build: &build,
        jobs: first.jobs.len(),
        options: &|engine, seed, trace| Options {
            settings: Settings { seed, ..settings[engine].clone() },
            policies: policies.clone(),
            seed,
            errors,
            trace,
            journal: false,
        },
        seeds: &seeds,
        engines: &engines,
        trace: args.report.is_some(),
        threads: args.threads,
    };
    if let Some(directory) = &args.report {
        page::make_room(directory)?;
    }
    let runs = plan.play()?;
    let mut comparison = Comparison::new(&source.name, Over::Seeds, &engines, &runs, !args.no_timing);
    comparison.left_out = source.left_out.len();
    if let Some(search) = search {
        let workloads = seeds.iter().map(|seed| plain(*seed));
        let workloads = workloads.collect::<Result<Vec<_>, _>>().map_err(usage)?;
        let reports = runs.iter().map(|runs| runs.iter().map(|run| &run.report).collect());
        let played: Vec<_> = engines.iter().cloned().zip(reports).collect();
        comparison.offline = Some(search.solve(&workloads, &played)?);
    }
    let shown = output.show(&comparison);
    if let Some(directory) = &args.report {
        page::write(directory, &source, &first, &comparison, &runs)?;
    }
    shown
}

/// The engines under which the scheduler stops jobs early: `named`, or all if no name is given.
fn stopping<'a>(named: Option<&'a [String]>, engines: &'a [String]) -> Result<&'a [String], Failure> {
    match named {
        None => Ok(&[]),
        Some([]) => Ok(engines),
        Some(named) => match named.iter().find(|name| !engines.contains(name)) {
            Some(unknown) => {
                Err(usage(format!("--early-stop: {unknown:?} isn't among the engines: {}", engines.join(", "))))
            }
            None => Ok(named),
        },
    }
}

/// Duration of a server's failure, and of a worker's slow-down.
const WHILE: Span = Span::seconds(600);

/// Parses a frequency up to `MOST`.
fn rate<const MOST: u32>(text: &str) -> Result<f64, String> {
    let within = |rate: &f64| (0.0..=f64::from(MOST)).contains(rate);
    text.parse().ok().filter(within).ok_or_else(|| format!("it must be a number from 0 to {MOST}"))
}

/// The policies for engines. Warnings about them go to standard error.
pub(crate) fn policies(choice: Option<&str>) -> Vec<Policy> {
    let loaded = choice.map_or(Choice::Shipped, Choice::from).load();
    loaded.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    loaded.policies
}

/// Prints the number of rows that were left out, with the first ones.
fn tell(source: &Source) {
    const NAMED: usize = 10;
    let left_out = &source.left_out;
    for problem in left_out.iter().take(NAMED) {
        eprintln!("left out: {problem}");
    }
    if left_out.len() > NAMED {
        eprintln!("left out: {} rows in all", left_out.len());
    }
}

fn usage(error: impl std::fmt::Display) -> Failure {
    Failure::Usage(error.to_string())
}

/// A parameter of an engine with its value.
pub(crate) type Set = (String, String, Parameter);

/// An engine's settings: the common ones, the experiment's parameters, then the user's.
pub(crate) fn settings(
    contender: &Contender,
    base: &Settings,
    experiment: &BTreeMap<String, Parameter>,
    sets: &[Set],
) -> Result<Settings, Failure> {
    let engine = contender.engine.as_str();
    let entry = engines::find(engine).map_err(usage)?;
    let mut parameters = entry.parameters_of(experiment);
    let mine = sets.iter().filter(|(of, _, _)| *of == contender.name);
    parameters.extend(mine.map(|(_, name, value)| (name.clone(), value.clone())));
    let settings = Settings { engine: engine.into(), parameters, ..base.clone() };
    entry.build(&settings.parameters).map_err(usage)?;
    Ok(settings)
}

/// An engine in the comparison, under its own or another name.
pub(crate) struct Contender {
    pub(crate) name: String,
    pub(crate) engine: String,
}

impl Contender {
    /// Reads each `engine` or `name=engine`, or one of `others`, which can't be renamed.
    ///
    /// # Errors
    /// The engine is unknown, a name is used twice, or `--set` can't refer to it.
    pub(crate) fn read_all(option: &str, texts: &[String], others: &[&str]) -> Result<Vec<Self>, Failure> {
        let mut all: Vec<Self> = Vec::new();
        for text in texts {
            let one = Self::read(text, others).map_err(|problem| usage(format!("{option}: {problem}")))?;
            if all.iter().any(|other| other.name == one.name) {
                let name = &one.name;
                return Err(usage(format!("{option} names {name:?} twice; NAME=ENGINE gives one another name")));
            }
            all.push(one);
        }
        Ok(all)
    }

    fn read(text: &str, others: &[&str]) -> Result<Self, String> {
        let (name, engine) = text.split_once('=').unwrap_or((text, text));
        let (name, engine) = (name.trim(), engine.trim());
        let known: Vec<&str> = engines::REGISTRY.iter().map(|entry| entry.name).chain(others.iter().copied()).collect();
        if !known.contains(&engine) {
            return Err(format!("{engine:?} is not an engine; there are {}", known.join(", ")));
        }
        if name != engine && (others.contains(&name) || others.contains(&engine)) {
            return Err(format!("{text:?}: {} is always called that, and nothing else is", others.join(", ")));
        }
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "_-".contains(letter);
        if name.is_empty() || !name.chars().all(plain) {
            return Err(format!("{text:?}: {name:?} can't be a name; it must be of letters, digits, _ and -"));
        }
        Ok(Self { name: name.into(), engine: engine.into() })
    }
}

/// Parses `engine.parameter=value`.
pub(crate) fn read_set(text: &str, contenders: &[Contender]) -> Result<Set, Failure> {
    let parts = text.split_once('=').and_then(|(path, value)| {
        let (engine, parameter) = path.split_once('.')?;
        Some((engine.trim(), parameter.trim(), value.trim()))
    });
    let Some((engine, parameter, value)) = parts else {
        return Err(Failure::Usage(format!(
            "--set {text:?} must be ENGINE.PARAMETER=VALUE, such as optimus.interval=300s"
        )));
    };
    if !contenders.iter().any(|one| one.name == engine) {
        let named = contenders.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(Failure::Usage(format!("--set {text:?}: {engine:?} is none of the engines compared: {named}")));
    }
    let value = match value {
        "true" => Parameter::Flag(true),
        "false" => Parameter::Flag(false),
        _ => value.parse().map_or_else(|_| Parameter::Text(value.into()), Parameter::Number),
    };
    Ok((engine.into(), parameter.into(), value))
}

/// Parses `conv=0.2,speed=0.1`. Missing parts have no error.
fn read_errors(text: &str) -> Result<Errors, Failure> {
    let mut errors = Errors::default();
    for part in text.split(',') {
        let wrong = || {
            Failure::Usage(format!(
                "--errors {part:?} must be conv=E or speed=E with E from 0 to 0.9, such as conv=0.2"
            ))
        };
        let (name, value) = part.split_once('=').ok_or_else(wrong)?;
        let value = value.trim().parse().ok().filter(|value| (0.0..=0.9).contains(value)).ok_or_else(wrong)?;
        match name.trim() {
            "conv" | "convergence" => errors.convergence = value,
            "speed" => errors.speed = value,
            _ => return Err(wrong()),
        }
    }
    Ok(errors)
}

#[cfg(test)]
mod tests {
    use trainmaster_sim::workload;

    use super::*;

    /// A workload sets parameters of engines, of which two may have the same name and differ in what they take.
    #[test]
    fn every_engine_takes_what_every_workload_sets() {
        for entry in workload::WORKLOADS {
            let workload = entry.build(&Request { seed: 1, jobs: Some(2), servers: None }).unwrap();
            for engine in engines::REGISTRY {
                let contender = Contender { name: engine.name.into(), engine: engine.name.into() };
                let settings = settings(&contender, &Settings::default(), &workload.parameters, &[]);
                assert!(settings.is_ok(), "{} under {}: {:?}", engine.name, entry.name, settings.err());
            }
        }
    }

    #[test]
    fn arguments_are_read() {
        let engines = Contender::read_all("--engines", &["optimus".into(), "greedy = optimus".into()], &[]).unwrap();
        assert_eq!(read_set("greedy.joint_steps=true", &engines).unwrap().0, "greedy");
        let (_, name, value) = read_set("optimus.young_job_factor=0.95", &engines).unwrap();
        assert_eq!((name.as_str(), value), ("young_job_factor", Parameter::Number(0.95)));
        assert_eq!(read_set("optimus.joint_steps=true", &engines).unwrap().2, Parameter::Flag(true));
        assert_eq!(read_set("optimus.interval=300s", &engines).unwrap().2, Parameter::Text("300s".into()));
        assert_eq!(read_errors("conv=0.2,speed=0.1").unwrap(), Errors { convergence: 0.2, speed: 0.1 });
        assert_eq!(read_errors("speed=0.1").unwrap(), Errors { convergence: 0.0, speed: 0.1 });
    }

    #[test]
    fn errors_name_the_allowed_values() {
        let read = |text: &str| {
            let texts: Vec<String> = text.split(',').map(Into::into).collect();
            Contender::read_all("--engines", &texts, &["offline"])
        };
        let engines = read("drf,offline").unwrap();
        for (text, expected) in [
            ("=drf", "can't be a name"),
            ("a.b=drf", "letters, digits"),
            ("<b>x</b>=drf", "letters, digits"),
            ("x=offline", "always called that"),
            ("offline=drf", "always called that"),
            ("fifo,best", "\"best\" is not an engine; there are optimus, "),
            ("fifo,best", "random, offline"),
            ("fifo,", "not an engine"),
            ("fifo,drf,fifo", "twice"),
            ("fifo,offline,offline", "twice"),
        ] {
            let problem = read(text).err().unwrap().to_string();
            assert!(problem.contains("--engines") && problem.contains(expected), "{text}: {problem}");
        }
        for (error, expected) in [
            (read_set("interval=3s", &engines).unwrap_err(), "ENGINE.PARAMETER"),
            (read_set("optimus.interval=3s", &engines).unwrap_err(), "drf"),
            (read_errors("conv=2").unwrap_err(), "0.9"),
            (read_errors("loss=0.1").unwrap_err(), "speed"),
        ] {
            assert!(error.to_string().contains(expected), "{error}");
        }
        let sets = [("drf".to_owned(), "nonsense".to_owned(), Parameter::Flag(true))];
        assert!(
            settings(&engines[0], &Settings::default(), &BTreeMap::new(), &sets)
                .unwrap_err()
                .to_string()
                .contains("nonsense")
        );
    }
}

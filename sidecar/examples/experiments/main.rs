//! Runs the papers' experiments again: the commands in docs/experiments.md, with `trainmaster simulate`. Writes the
//! tables below them anew, and draws the figures. `make experiments` runs it. Its arguments are beginnings of the
//! sections to run; without any it runs all. With `--figures` it runs none and draws the figures alone.
//!
//! The text about the numbers was written by people who had seen them; a run that changes them leaves the old words.

mod figure;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use self::figure::Figure;

fn main() -> Result<()> {
    let program = program()?;
    let only: Vec<String> = std::env::args().skip(1).collect();
    let figures = only.iter().any(|only| only == "--figures");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/experiments.md");
    let folder = path.with_file_name("figures");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let mut document = Document { done: Vec::new(), left: text.lines().rev().collect(), path, on_disk: text.clone() };
    fs::create_dir_all(&folder)?;
    let (mut plays, mut played, mut failed) = (false, 0, Vec::new());
    while let Some(line) = document.copy() {
        if let Some(name) = line.strip_prefix("## ") {
            plays = !figures && (only.is_empty() || only.iter().any(|only| name.starts_with(only.as_str())));
            if plays {
                eprintln!("{name}");
            }
        } else if line == "```" && document.left.last().is_some_and(|line| line.starts_with(SIMULATE)) {
            let experiment = Experiment::read(&document.until("```"))?;
            if plays {
                document.play(&experiment, &program)?;
                // The next one may take hours.
                document.save()?;
                played += 1;
            }
        } else if let Some(figure) = Figure::read(line) {
            let figure = figure?;
            match figure.draw(&document.table()) {
                Ok(svg) => fs::write(folder.join(figure.file), svg)?,
                // The experiments below go on.
                Err(error) => failed.push(format!("{error:#}")),
            }
        }
    }
    ensure!(failed.is_empty(), "no figure: {}", failed.join("; "));
    ensure!(figures || played > 0, "no section begins with {}", only.join(" or "));
    Ok(())
}

const SIMULATE: &str = "trainmaster simulate ";
const NO_TABLE: &str = "the table of the last commands is missing: write its head";

/// The program that `make experiments` has built: beside the folder of examples.
fn program() -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let folder = exe.parent().and_then(|folder| folder.parent()).context("this program has no folder")?;
    let program = folder.join("trainmaster");
    ensure!(program.is_file(), "{} is missing: run `make experiments`", program.display());
    Ok(program)
}

/// The document, line by line.
struct Document<'a> {
    done: Vec<String>,
    /// The last one comes next.
    left: Vec<&'a str>,
    path: PathBuf,
    /// What was last read or written.
    on_disk: String,
}

impl<'a> Document<'a> {
    fn copy(&mut self) -> Option<&'a str> {
        let line = self.left.pop()?;
        self.done.push(line.to_owned());
        Some(line)
    }

    /// The lines of the last table.
    fn table(&self) -> Vec<&str> {
        let from_last = self.done.iter().rev().map(String::as_str).skip_while(|line| !line.starts_with('|'));
        let mut lines: Vec<&str> = from_last.take_while(|line| line.starts_with('|')).collect();
        lines.reverse();
        lines
    }

    /// Copies the lines before the next one like `end`.
    fn until(&mut self, end: &str) -> Vec<&'a str> {
        let mut lines = Vec::new();
        while self.left.last().is_some_and(|line| *line != end) {
            lines.extend(self.copy());
        }
        lines
    }

    /// Writes the next table anew.
    fn play(&mut self, experiment: &Experiment, program: &Path) -> Result<()> {
        while self.left.last().is_some_and(|line| !line.starts_with("| ")) {
            let line = self.copy().unwrap_or_default();
            ensure!(!line.starts_with("## ") && !line.starts_with(SIMULATE), NO_TABLE);
        }
        let head = self.copy().context(NO_TABLE)?;
        let table = Table::of(head).with_context(|| format!("{NO_TABLE}: no table has these columns: {head}"))?;
        let rule = self.copy().unwrap_or_default();
        ensure!(rule.starts_with("|---"), "{NO_TABLE}: the line |---| below {head}");
        while self.left.last().is_some_and(|line| line.starts_with('|')) {
            self.left.pop();
        }
        for (name, particular) in &experiment.runs {
            let begun = Instant::now();
            let words = [experiment.common.as_str(), particular].join(" ");
            let answer = simulate(program, &words)?;
            eprintln!("  {name}: {:.0} s", begun.elapsed().as_secs_f64());
            let engines = engines(&words);
            ensure!(table != Table::Utility || head.contains(&engines.join(" | ")), "{head} isn't for {engines:?}");
            let rows = table.rows(name, &engines, &answer)?;
            let columns = |row: &str| row.matches(" | ").count();
            ensure!(rows.iter().all(|row| columns(row) == columns(head)), "{head} has other columns than {rows:?}");
            self.done.extend(rows);
        }
        Ok(())
    }

    /// Writes the document, unless somebody else has meanwhile.
    fn save(&mut self) -> Result<()> {
        let (path, text) = (&self.path, self.text());
        let fresh = path.with_extension("new");
        fs::write(&fresh, &text)?;
        let unchanged = fs::read_to_string(path)? == self.on_disk;
        ensure!(unchanged, "{} was changed meanwhile; the tables are in {}", path.display(), fresh.display());
        fs::rename(&fresh, path)?;
        self.on_disk = text;
        Ok(())
    }

    fn text(&self) -> String {
        let lines = self.done.iter().map(String::as_str).chain(self.left.iter().rev().copied());
        lines.map(|line| format!("{line}\n")).collect()
    }
}

/// Commands of one table.
struct Experiment {
    /// What all runs have in common.
    common: String,
    /// A name and what is particular, one run each.
    runs: Vec<(String, String)>,
}

impl Experiment {
    /// Reads `trainmaster simulate WORDS` and below it lines `  NAME: WORDS`; a backslash continues a line.
    fn read(lines: &[&str]) -> Result<Self> {
        let text = lines.join("\n").replace("\\\n", " ");
        let mut lines = text.lines();
        let common = lines.next().and_then(|line| line.strip_prefix(SIMULATE)).context("no command")?.to_owned();
        let runs = lines.map(|line| {
            let (name, words) = line.split_once(':').with_context(|| format!("{line:?} isn't NAME: WORDS"))?;
            Ok((name.trim().to_owned(), words.trim().to_owned()))
        });
        let runs = runs.collect::<Result<Vec<_>>>()?;
        ensure!(!runs.is_empty(), "no run below {SIMULATE}{common}");
        Ok(Self { common, runs })
    }
}

/// What is shown of each run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Table {
    /// A line for each engine of each run: completion times, makespan and both against the first engine.
    Times,
    /// A line for each engine of each run: completion times, preemptions, and what moving data and gradients took.
    Chunks,
    /// A line for each run, a column for each engine: utility; then the first engine's over the best of the others'.
    Utility,
    /// A line for each engine of each run: completion against the target.
    Lateness,
    /// A line for each run: the offline optimum over the first engine's utility.
    Offline,
    /// A line for each run: the first engine's completion times over the relaxed optimum.
    Soonest,
    /// A line for each engine of each run: completion times, deadlines, accuracies, traffic, overloads and early stops.
    Tasks,
    /// A line for each engine of each run: what MLFS's authors measure without a part of it.
    Parts,
    /// A line for arrivals and one for each engine: share of the edge's GPUs that were held, day by day.
    Days,
}

/// Days that are shown.
const DAYS: [usize; 12] = [1, 2, 3, 4, 5, 7, 9, 10, 11, 12, 14, 21];

/// Columns that only one table has.
const COLUMNS: [(&str, Table); 9] = [
    ("| rescales |", Table::Times),
    ("| preemptions |", Table::Chunks),
    ("÷ best other |", Table::Utility),
    ("| standard deviation h |", Table::Lateness),
    ("| best schedule found |", Table::Offline),
    ("| JCT ÷ bound |", Table::Soonest),
    ("| accuracy at the end |", Table::Tasks),
    ("| of urgent jobs |", Table::Parts),
    ("| day |", Table::Days),
];

/// The names of the engines that play, in their order.
fn engines(words: &str) -> Vec<&str> {
    let list = words.split_whitespace().skip_while(|word| *word != "--engines").nth(1).unwrap_or_default();
    let names = list.split(',').map(|one| one.split('=').next().unwrap_or(one));
    names.filter(|name| *name != "offline").collect()
}

/// Runs `trainmaster simulate` with these words.
fn simulate(program: &Path, words: &str) -> Result<Value> {
    let words = words.split_whitespace();
    let output =
        Command::new(program).arg("simulate").args(words.clone()).arg("--json").stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("simulate {} ended with {}", words.collect::<Vec<_>>().join(" "), output.status);
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

impl Table {
    /// The table with this head.
    fn of(head: &str) -> Option<Self> {
        COLUMNS.iter().find(|(column, _)| head.contains(column)).map(|(_, table)| *table)
    }

    /// The lines of a run.
    fn rows(self, label: &str, names: &[&str], answer: &Value) -> Result<Vec<String>> {
        let mut rows = Vec::new();
        let engines: Vec<(&str, &Value)> = names.iter().map(|name| (*name, &answer["engines"][*name])).collect();
        let first = names.first().context("no engine")?;
        match self {
            Self::Times => {
                for (engine, means) in &engines {
                    let ratio = &answer["ratios"][format!("{engine} vs {first}")];
                    rows.push(format!(
                        "| {label} | {engine} | {} | {:.0} | {:.0} | {} | {} | {} | {:.0} | {:.0} % | {:.1} |",
                        with(number(&means["average_jct_s"])?, &means["intervals"]["average_jct_s"], 0),
                        number(&means["median_jct_s"])?,
                        number(&means["p99_jct_s"])?,
                        with(number(&means["makespan_s"])?, &means["intervals"]["makespan_s"], 0),
                        against(ratio, "average_jct"),
                        against(ratio, "makespan"),
                        number(&means["rescales"])?,
                        number(&means["utilisation"])? * 100.0,
                        number(&means["unfinished"])?,
                    ));
                }
            }
            Self::Chunks => {
                for (engine, means) in &engines {
                    let ratio = &answer["ratios"][format!("{engine} vs {first}")];
                    rows.push(format!(
                        "| {label} | {engine} | {:.1} | {:.0} | {} | {} | {:.0} | {:.1} | {:.1} | {:.0} % | {:.1} |",
                        number(&means["average_jct_s"])? / 3600.0,
                        number(&means["makespan_s"])? / 3600.0,
                        against(ratio, "average_jct"),
                        against(ratio, "makespan"),
                        number(&means["preemptions"])?,
                        number(&means["communication_s"])? / 3600.0,
                        number(&means["bytes_moved"])? / f64::from(1 << 30),
                        number(&means["edge_utilisation"])? * 100.0,
                        number(&means["unfinished"])?,
                    ));
                }
            }
            Self::Tasks => {
                for (engine, means) in &engines {
                    let ratio = &answer["ratios"][format!("{engine} vs {first}")];
                    rows.push(format!(
                        "| {label} | {engine} | {} | {} | {:.0} | {} | {:.1} % | {:.3} | {:.1} % | {:.3} | {:.0} \
                         | {:.0} | {:.0} | {:.0} |",
                        with(number(&means["average_jct_s"])?, &means["intervals"]["average_jct_s"], 0),
                        against(ratio, "average_jct"),
                        number(&means["makespan_s"])? / 3600.0,
                        against(ratio, "makespan"),
                        number(&means["deadline_ratio"])? * 100.0,
                        number(&means["accuracy_at_deadline"])?,
                        number(&means["accuracy_ratio"])? * 100.0,
                        number(&means["mean_accuracy"])?,
                        number(&means["waiting_s"])?,
                        number(&means["bytes_moved"])? / 1e12,
                        number(&means["overloads"])?,
                        number(&means["stopped_early"])?,
                    ));
                }
            }
            Self::Parts => {
                for (engine, means) in &engines {
                    let ratio = &answer["ratios"][format!("{engine} vs {first}")];
                    rows.push(format!(
                        "| {label} | {engine} | {} | {} | {:.1} % | {:.1} % | {:.3} | {:.0} | {:.0} |",
                        with(number(&means["average_jct_s"])?, &means["intervals"]["average_jct_s"], 0),
                        against(ratio, "average_jct"),
                        number(&means["deadline_ratio"])? * 100.0,
                        number(&means["urgent_deadline_ratio"])? * 100.0,
                        number(&means["accuracy_at_deadline"])?,
                        number(&means["bytes_moved"])? / 1e12,
                        number(&means["overloads"])?,
                    ));
                }
            }
            Self::Utility => {
                let utilities: Vec<f64> =
                    engines.iter().map(|(_, means)| number(&means["utility"])).collect::<Result<_>>()?;
                let best = utilities[1..].iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let cells = engines.iter().zip(&utilities);
                let cells = cells.map(|((_, means), utility)| with(*utility, &means["intervals"]["utility"], 0));
                let lead = if best > 0.0 { format!("{:.2}", utilities[0] / best) } else { "–".into() };
                rows.push(format!("| {label} | {} | {lead} |", cells.collect::<Vec<_>>().join(" | ")));
            }
            Self::Lateness => {
                for (engine, means) in &engines {
                    for class in ["sensitive", "critical"] {
                        let late = &means["lateness"][class];
                        rows.push(format!(
                            "| {label} | {engine} | {class} | {:.0} % | {:.1} | {:.1} | {:.0} |",
                            number(&late["completed"])? * 100.0,
                            number(&late["mean_h"])?,
                            number(&late["deviation_h"])?,
                            number(&means["utility"])?,
                        ));
                    }
                }
            }
            Self::Offline => {
                let offline = &answer["offline"];
                rows.push(format!(
                    "| {label} | {:.0} | {:.0} | {:.0} | {:.2} | {:.2} | {:.2} | {:.2} | {:.1} % | {} of {} |",
                    number(&engines[0].1["utility"])?,
                    number(&offline["utility"])?,
                    number(&offline["bound"])?,
                    number(&offline["ratios"][*first])?,
                    number(&offline["worst"][*first])?,
                    number(&offline["bound_ratios"][*first])?,
                    number(&offline["worst_bound"][*first])?,
                    number(&offline["gap"])? * 100.0,
                    number(&offline["proven"])?,
                    number(&answer["seeds"])?,
                ));
            }
            Self::Soonest => {
                let offline = &answer["offline"];
                rows.push(format!(
                    "| {label} | {:.1} | {:.1} | {:.3} | {:.3} | {:.1} | {:.2} |",
                    number(&engines[0].1["average_jct_s"])? / 3600.0,
                    number(&offline["average_jct_s"])? / 3600.0,
                    number(&offline["ratios"][*first])?,
                    number(&offline["worst"][*first])?,
                    number(&offline["fractional_s"])? / 3600.0,
                    number(&offline["fractional_ratios"][*first])?,
                ));
            }
            Self::Days => {
                let mut line = |name: &str, values: &Value, show: &dyn Fn(f64) -> String| -> Result<()> {
                    let values = values.as_array().with_context(|| format!("{name}: no days"))?;
                    // Nothing is left on days beyond the last one.
                    let of = |day: &usize| values.get(day - 1).map_or(Ok(0.0), number).map(show);
                    let days = DAYS.iter().map(of).collect::<Result<Vec<_>>>()?;
                    rows.push(format!("| {name} | {} |", days.join(" | ")));
                    Ok(())
                };
                line("jobs that arrive", &answer["arrivals_by_day"], &|jobs| format!("{jobs:.0}"))?;
                for (engine, means) in &engines {
                    line(engine, &means["edge_utilisation_by_day"], &|share| format!("{:.0} %", share * 100.0))?;
                }
            }
        }
        Ok(rows)
    }
}

/// A ratio to the first engine; 1 of that itself.
fn against(ratio: &Value, key: &str) -> String {
    ratio[key].as_f64().map_or_else(|| "1".into(), |value| with(value, &ratio["intervals"][key], 2))
}

fn number(value: &Value) -> Result<f64> {
    value.as_f64().with_context(|| format!("{value} is not a number"))
}

/// A mean and half its interval.
fn with(value: f64, half: &Value, digits: usize) -> String {
    half.as_f64().map_or_else(|| format!("{value:.digits$}"), |half| format!("{value:.digits$} ± {half:.digits$}"))
}

//! Writes docs/fits.md: how well `trainmaster fit` does on measured speeds and losses. `make fits` runs it.
//!
//! Reads the shared measurements in ../shared/data beside the checkout, and measures two (p, w) grids with the trainer
//! on this machine, one with emulated devices and one without.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// Samples are drawn so often, with seeds 1, 2, ….
const DRAWS: u64 = 40;

fn main() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let data = root.join("../shared/data/curves");
    ensure!(data.is_dir(), "{} is missing: the measurements this page is about", data.display());
    let tools = Tools::find()?;
    let scratch = tempfile::tempdir()?;
    println!("{INTRODUCTION}");
    placements(&tools, &data, scratch.path())?;
    grid(&tools, scratch.path())?;
    losses(&tools, &data, scratch.path())?;
    Ok(())
}

const INTRODUCTION: &str = "\
# How well the fits do

`make fits` generates this page: it runs `trainmaster fit` on every file, and nothing else. The numbers are of the
machine and the day of the run. Speed errors are mean |predicted − measured| / measured. *Unseen* rows are those that
the fit was not given; their errors are means over 40 draws. Of ten *chosen* points the first is random. Each next one
is the point about which the fit so far says least (`--choose`).";

struct Tools {
    trainmaster: PathBuf,
    trainer: PathBuf,
}

impl Tools {
    /// The programs that `make fits` has built: beside the folder of examples.
    fn find() -> Result<Self> {
        let exe = std::env::current_exe()?;
        let folder = exe.parent().and_then(Path::parent).context("this program has no folder")?;
        let tools = Self { trainmaster: folder.join("trainmaster"), trainer: folder.join("trainmaster-trainer") };
        for tool in [&tools.trainmaster, &tools.trainer] {
            ensure!(tool.is_file(), "{} is missing: run `make fits`", tool.display());
        }
        Ok(tools)
    }

    fn fit(&self, args: &[&str]) -> Result<Value> {
        let output = Command::new(&self.trainmaster).arg("fit").args(args).arg("--json").output()?;
        if !output.status.success() {
            bail!("trainmaster fit {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

fn percent(value: f64) -> String {
    format!("{:.1} %", value * 100.0)
}

fn number(value: &Value, key: &str) -> Result<f64> {
    value[key].as_f64().with_context(|| format!("no number {key} in {value}"))
}

/// A row of a table of speed errors: from all points, from ten drawn at random, from ten that the fit chose and from
/// thirty at random, and the part of the rows that ten random points leave unseen that is in its intervals.
fn speed_row(tools: &Tools, label: &str, file: &Path, mode: &str, paper: bool) -> Result<String> {
    let file = file.to_str().context("a path in UTF-8")?;
    let mut args = vec!["speed", "--csv", file, "--mode", mode];
    if paper {
        args.push("--paper");
    }
    let all = tools.fit(&args)?;
    let points = all["points_used"].as_u64().unwrap_or_default();
    let drawn = |count: &str, key: &str, choose: &[&str]| {
        let values = (1..=DRAWS).map(|seed| {
            let seed = seed.to_string();
            let fit = tools.fit(&[&args[..], &["--sample", count, "--seed", &seed], choose].concat())?;
            Ok(fit[key].as_f64())
        });
        let values = values.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect::<Vec<_>>();
        Ok::<_, anyhow::Error>(if values.is_empty() { "-".to_owned() } else { percent(mean(&values)) })
    };
    let (random, chosen) = (drawn("10", "mape_unseen", &[])?, drawn("10", "mape_unseen", &["--choose"])?);
    let (more, covered) = if points > 30 {
        (drawn("30", "mape_unseen", &[])?, drawn("10", "covered_unseen", &[])?)
    } else {
        ("-".into(), "-".into())
    };
    let of_all = percent(number(&all, "mape_all")?);
    Ok(format!("| {label} | {points} | {of_all} | {random} | {chosen} | {more} | {covered} |"))
}

const SPEED_HEADER: &str = "| rows of | points | error from all points | error on unseen rows from 10 random points | \
                            the same from 10 chosen points | from 30 random points | unseen rows in intervals of \
                            90 %, 10 random points |\n|---|---|---|---|---|---|---|";

/// Replicas, servers, batch and speed of the measured placements (all-reduce on 1 to 16 GPUs, several batch sizes).
fn placements(tools: &Tools, data: &Path, scratch: &Path) -> Result<()> {
    println!(
        "\n## Speed on measured placements\n\nAll-reduce training. The Pollux authors measured the step times at many \
         placements and batch sizes. *Servers unknown* is\n\
         the form without the network's levels. `paper` is the plain least squares of Optimus, without what was added \
         to it. The\n\
         paper's bar is 10 % from 10 pairs, ours is 5 %. Placements that are equal in everything that the model \
         considers differ\n\
         by 3 to 6 % among themselves. The usual values of the levels' terms were chosen on these files, and the rule \
         that\n\
         chooses the form was judged on them. The intervals are those of the draws in which the form with levels was \
         chosen.\n\n\
         {SPEED_HEADER}"
    );
    for app in ["cifar10", "deepspeech2", "imagenet"] {
        let (mut known, mut unknown) = (String::from("w,nodes,local_bsz,speed\n"), String::from("w,local_bsz,speed\n"));
        let mut reader = csv::Reader::from_path(data.join(format!("pollux/{app}/placements.csv")))?;
        for row in reader.deserialize() {
            let (placement, batch, step, _): (String, f64, f64, f64) = row?;
            let replicas: u32 = placement.chars().filter_map(|digit| digit.to_digit(10)).sum();
            writeln!(known, "{replicas},{},{batch},{}", placement.len(), 1.0 / step)?;
            writeln!(unknown, "{replicas},{batch},{}", 1.0 / step)?;
        }
        let [with, without] = ["", "-unknown"].map(|kind| scratch.join(format!("{app}{kind}.csv")));
        fs::write(&with, known)?;
        fs::write(&without, unknown)?;
        println!("{}", speed_row(tools, app, &with, "allreduce", false)?);
        println!("{}", speed_row(tools, &format!("{app}, servers unknown"), &without, "allreduce", false)?);
        println!("{}", speed_row(tools, &format!("{app}, paper"), &with, "allreduce", true)?);
    }
    Ok(())
}

/// Grids measured here and now with real processes: with devices that every process has to itself, which are emulated,
/// and on this machine's own processors.
fn grid(tools: &Tools, scratch: &Path) -> Result<()> {
    println!(
        "\n## Speed on grids measured with the trainer\n\nReal processes on this machine exchange gradients with \
         parameter servers. *Own devices*: 1 to 8 parameter servers and 1\n\
         to 8 workers, each with its own emulated device and network card, as on a cluster (a mini-batch of 256 takes \
         0.3 s on\n\
         one worker; 25 MiB of parameters go through 1 Gbit/s). *Shared processors*: 1 to 4 parameter servers and 1 \
         to 6 workers,\n\
         without emulation. With few cores, more processes share the same processors, and no term of the model \
         describes this.\n\
         The forms of parameter servers give no intervals.\n\n\
         {SPEED_HEADER}"
    );
    let own: &[&str] = &[
        "--grid=8,8",
        "--batch=256",
        "--steps=20",
        "--concurrent=4",
        "--device-example-ms=1",
        "--device-step-ms=40",
        "--device-update-ms=20",
        "--device-connection-ms=0.5",
        "--device-model-mib=25",
        "--device-nic-mbit=1000",
    ];
    let shared: &[&str] =
        &["--grid=4,6", "--batch=96", "--examples=9600", "--features=64", "--hidden=64", "--steps=60"];
    for (label, flags) in [("own devices", own), ("shared processors", shared)] {
        for mode in ["sync", "async"] {
            let file = scratch.join("grid.csv");
            let mut command = Command::new(&tools.trainer);
            command.args(["profile", "--mode", mode]).args(flags).arg("--csv").arg(&file);
            let status = command.stderr(std::process::Stdio::null()).status()?;
            ensure!(status.success(), "measuring the {mode} grid failed");
            println!("{}", speed_row(tools, &format!("{mode}, {label}"), &file, mode, false)?);
            println!("{}", speed_row(tools, &format!("{mode}, {label}, paper"), &file, mode, true)?);
        }
    }
    Ok(())
}

struct Curve {
    name: String,
    unit: &'static str,
    rows: Vec<(f64, f64)>,
}

/// Speech recognition (word error, a loss in all but name) and language modelling.
fn losses(tools: &Tools, data: &Path, scratch: &Path) -> Result<()> {
    let mut curves = Vec::new();
    for file in sorted(&data.join("pollux/deepspeech2"), "validation-")? {
        let mut reader = csv::Reader::from_path(&file)?;
        let rows = (1..).zip(reader.deserialize::<(f64, f64, f64, f64, f64)>());
        let rows = rows.map(|(epoch, row)| anyhow::Ok((f64::from(epoch), row?.2))).collect::<Result<_>>()?;
        curves.push(Curve { name: label("deepspeech2", &file), unit: "epoch", rows });
    }
    for file in sorted(&data.join("nanogpt"), "")? {
        let mut reader = csv::Reader::from_path(&file)?;
        // Some rows lack their time, which nothing here looks at.
        let mut rows = Vec::new();
        for row in reader.deserialize::<(f64, f64, Option<f64>)>() {
            let (step, loss, _) = row?;
            rows.push((step, loss));
        }
        curves.push(Curve { name: label("nanogpt", &file), unit: "step", rows });
    }
    println!(
        "\n## Loss\n\n`rmse` is over the fitted rows, on losses divided by the largest loss. *final* is the error of \
         the predicted last loss.\n\
         *converges* is the error of the predicted point of convergence (0.2 % of the first loss, 3 rows in a row) \
         against the\n\
         point where the measured curve meets that rule, if it meets it after the fitted rows. The paper's bar is \
         about 20 %,\n\
         ours is 10 %.\n\
         \n\
         | curve | rows | family | rmse, all | family, first half | rmse, first half | final, first half | \
         converges, first half |\n\
         |---|---|---|---|---|---|---|---|"
    );
    let file = scratch.join("curve.csv");
    let path = file.to_str().context("a path in UTF-8")?;
    let args = ["loss", "--csv", path, "--delta", "0.002", "--patience", "3"];
    let mut means = BTreeMap::<_, (Vec<f64>, Vec<f64>)>::new();
    for curve in &curves {
        let mut table = format!("{},loss\n", curve.unit);
        for (at, loss) in &curve.rows {
            writeln!(table, "{at},{loss}")?;
        }
        fs::write(&file, table)?;
        let all = tools.fit(&args)?;
        for (part, paper) in PARTS.into_iter().flat_map(|part| [(part, false), (part, true)]) {
            let flags: &[&str] = if paper { &["--until", part, "--paper"] } else { &["--until", part] };
            let fit = tools.fit(&[&args[..], flags].concat())?;
            let last = number(&fit, "predicted_final")? / number(&fit, "actual_final")? - 1.0;
            let seen = part.parse::<f64>()? * curve.rows.len() as f64;
            let end = converged(&curve.rows).filter(|(row, _)| *row as f64 >= seen);
            let end = end.and_then(|(_, at)| Some(fit["converges_at"].as_f64()? / at - 1.0));
            let (finals, ends) = means.entry((part, paper)).or_default();
            finals.push(last.abs());
            ends.extend(end.map(f64::abs));
            if (part, paper) == ("0.5", false) {
                println!(
                    "| {} | {} | {} | {:.4} | {} | {:.4} | {:+.1} % | {} |",
                    curve.name,
                    curve.rows.len(),
                    all["family"].as_str().unwrap_or("-"),
                    number(&all, "rmse")?,
                    fit["family"].as_str().unwrap_or("-"),
                    number(&fit, "rmse")?,
                    last * 100.0,
                    end.map_or_else(|| "-".into(), |error| format!("{:+.0} %", error * 100.0)),
                );
            }
        }
    }
    println!(
        "\nMeans over all curves, by the part of each that was fitted. *Paper* is Eq. 1 alone, without this project's \
         additions.\n\n| part | fit | final loss off | convergence off | curves that converge later |\n\
         |---|---|---|---|---|"
    );
    for ((part, paper), (finals, ends)) in &means {
        let fit = if *paper { "paper" } else { "ours" };
        let off = if ends.is_empty() { "-".into() } else { percent(mean(ends)) };
        println!("| {part} | {fit} | {} | {off} | {} |", percent(mean(finals)), ends.len());
    }
    Ok(())
}

/// The parts of a loss curve that are fitted.
const PARTS: [&str; 3] = ["0.25", "0.5", "0.75"];

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Row and place of the last of the first three rows in a row that each lower the loss by less than 0.2 % of the first.
fn converged(rows: &[(f64, f64)]) -> Option<(usize, f64)> {
    let threshold = 0.002 * rows.first()?.1;
    let mut run = 0;
    for (at, pair) in rows.windows(2).enumerate() {
        run = if pair[0].1 - pair[1].1 < threshold { run + 1 } else { 0 };
        if run == 3 {
            return Some((at + 1, pair[1].0));
        }
    }
    None
}

fn sorted(folder: &Path, prefix: &str) -> Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.retain(|file| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)));
    files.sort();
    Ok(files)
}

fn label(kind: &str, file: &Path) -> String {
    format!("{kind} {}", file.file_stem().unwrap_or_default().to_string_lossy())
}

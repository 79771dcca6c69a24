//! `trainmaster fit loss`: a loss curve with its prediction and its convergence.

use std::path::PathBuf;

use anyhow::{anyhow, bail};
use clap::Args;
use serde::Serialize;
use trainmaster_core::fit::{Convergence, ConvergenceOptions, Family, LossFit, LossHistory};
use trainmaster_terminal::{
    Failure, Output, Paper, Show,
    sheet::{Column, Sheet},
};

use super::columns::{Allowed, Columns, Wanted};

/// The command's arguments.
#[derive(Args, Debug)]
pub struct LossArgs {
    /// A file with the columns epoch or step, and loss
    #[arg(long, value_name = "FILE")]
    csv: PathBuf,
    /// Fit to this fraction of the rows, from the first; the rest shows the error of the prediction
    #[arg(long, value_name = "FRACTION", allow_negative_numbers = true, default_value_t = 1.0, value_parser = fraction)]
    until: f64,
    /// Converged when an epoch lowers the loss by less than this fraction of the first loss …
    #[arg(long, value_name = "D", allow_negative_numbers = true, default_value_t = 0.01, value_parser = fraction)]
    delta: f64,
    /// … in this number of consecutive epochs
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    patience: u32,
    /// The last epoch of the training [default: ten times the file's epochs, at least 1000]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    max_epochs: Option<u32>,
    /// Steps per epoch, for files with steps [default: the usual distance between two rows, so that a row is an epoch]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    steps_per_epoch: Option<u32>,
    /// Use the published method alone: one curve for all rows, without additions
    #[arg(long)]
    paper: bool,
}

fn fraction(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| *number > 0.0 && *number <= 1.0);
    number.ok_or_else(|| "it must be a number above 0, at most 1".into())
}

/// The rows of a file, in epochs.
struct Curve {
    /// The file's unit: `step` or `epoch`.
    unit: &'static str,
    epochs: Vec<u64>,
    losses: Vec<f64>,
    /// End of epoch 0, and length of an epoch, in the file's unit.
    start: f64,
    length: f64,
}

impl Curve {
    fn place(&self, epoch: u64) -> f64 {
        self.start + epoch as f64 * self.length
    }
}

/// Runs the command.
///
/// # Errors
/// The file can't be read, a value is invalid, or there are fewer than three epochs.
pub(crate) fn run(args: &LossArgs, output: Output) -> Result<(), Failure> {
    let curve = read(args)?;
    let rows = curve.losses.len();
    // A product such as 0.07 · 100 is slightly above the intended whole number.
    let fitted = ((rows as f64 * args.until - 1e-9).ceil() as usize).clamp(1, rows);
    let mut history = LossHistory::default();
    for (&epoch, &loss) in curve.epochs.iter().zip(&curve.losses).take(fitted) {
        history.push(epoch, epoch, loss);
    }
    let options = if args.paper { ConvergenceOptions::paper() } else { ConvergenceOptions::default() };
    let fit = Convergence::fit(&history, &options).map_err(|error| {
        let (file, unit) = (args.csv.display(), curve.unit);
        Failure::refused(format!("{file}: {fitted} of {rows} rows give {error} (counted by column {unit:?})"))
    })?;
    let done = curve.epochs[fitted - 1];
    let limit = args.max_epochs.map_or_else(|| (10 * curve.epochs[rows - 1]).max(1000), u64::from);
    if done > limit {
        let (file, unit, place) = (args.csv.display(), curve.unit, curve.place(done));
        return Err(Failure::refused(format!(
            "--max-epochs {limit}: the rows to fit of {file} already reach epoch {done} ({unit} {place}); allowed \
             is {done} or more"
        )));
    }
    let met = met(&curve.epochs[..fitted], &curve.losses[..fitted], args.delta * fit.first_loss, args.patience);
    let (at, low, high, capped) = match met {
        Some(Met { epoch, .. }) => (epoch, epoch, epoch, false),
        None => {
            let end = fit.converges(args.delta, args.patience, limit, done);
            (end.epochs, end.low, end.high, end.capped)
        }
    };
    output.show(&Report {
        family: name(fit.family),
        beta: fit.parameters,
        rmse: rmse(&fit, &curve, fitted),
        predicted_final: fit.loss_at(curve.epochs[rows - 1] as f64),
        actual_final: curve.losses[rows - 1],
        converges_at: curve.place(at),
        interval: [curve.place(low), curve.place(high)],
        capped,
        unit: curve.unit,
        origin: curve.start + fit.origin * curve.length,
        epoch_length: curve.length,
        scale: fit.scale,
        rows_fitted: fitted,
        rises: met.is_some_and(|met| met.rises),
        met: met.is_some(),
        rows,
    })
}

fn read(args: &LossArgs) -> anyhow::Result<Curve> {
    let headings = Columns::headings(&args.csv)?;
    let unit = if !headings.iter().any(|heading| heading == "epoch") && headings.iter().any(|heading| heading == "step")
    {
        "step"
    } else {
        "epoch"
    };
    if let (Some(steps), "epoch") = (args.steps_per_epoch, unit) {
        bail!(
            "--steps-per-epoch {steps}: {} counts in epochs already (column \"epoch\"); it is for files that count \
             in steps",
            args.csv.display()
        );
    }
    let column = |name| Wanted { name, required: true, allowed: Allowed::NotNegative };
    let columns = Columns::read(&args.csv, &[column(unit), column("loss")])?;
    let (places, losses) = (columns.column(0), columns.column(1));
    if let Some(row) = (1..places.len()).find(|&row| places[row] < places[row - 1]) {
        return Err(columns.wrong(row, 0, &format!("it must not be below the row before, {}", places[row - 1])));
    }
    if let Some(row) = places.iter().position(|place| *place > 1e15) {
        return Err(columns.wrong(row, 0, "it must be at most 1e15"));
    }
    if losses.iter().all(|loss| *loss == 0.0) {
        bail!("{}: all losses are 0; a curve needs one above", columns.file());
    }
    let (start, length) = match (unit, args.steps_per_epoch) {
        ("epoch", _) => (0.0, 1.0),
        (_, Some(steps)) => (0.0, f64::from(steps)),
        _ => {
            let length = usual_gap(&places)
                .ok_or_else(|| anyhow!("{}: all rows are of one step; a curve needs 3", columns.file()))?;
            (places[0], length)
        }
    };
    let epoch = |place: &f64| match (unit, args.steps_per_epoch) {
        ("epoch", _) => place.floor(),
        // The rows of an epoch are those up to its last step, included.
        (_, Some(_)) => (place / length).ceil(),
        _ => ((place - start) / length).round(),
    };
    let epochs = places.iter().map(|place| epoch(place) as u64).collect();
    Ok(Curve { unit, epochs, losses, start, length })
}

/// The median of the non-zero distances between neighbouring rows.
fn usual_gap(places: &[f64]) -> Option<f64> {
    let mut gaps: Vec<_> = places.windows(2).map(|pair| pair[1] - pair[0]).filter(|gap| *gap > 0.0).collect();
    gaps.sort_by(f64::total_cmp);
    gaps.get(gaps.len() / 2).copied()
}

/// The point at which the rows themselves meet the rule.
#[derive(Clone, Copy)]
struct Met {
    epoch: u64,
    /// The rule is met because the loss rises, not because it stays constant.
    rises: bool,
}

fn met(epochs: &[u64], losses: &[f64], threshold: f64, patience: u32) -> Option<Met> {
    // (epoch, sum of its losses, rows)
    let mut means: Vec<(u64, f64, f64)> = Vec::new();
    for (&epoch, &loss) in epochs.iter().zip(losses) {
        match means.last_mut() {
            Some((last, sum, rows)) if *last == epoch => (*sum, *rows) = (*sum + loss, *rows + 1.0),
            _ => means.push((epoch, loss, 1.0)),
        }
    }
    let (mut run, mut risen) = (0, 0.0);
    for pair in means.windows(2) {
        let [(from, before), (to, after)] = [pair[0], pair[1]].map(|(epoch, sum, rows)| (epoch, sum / rows));
        let gap = to - from;
        let flat = before - after < threshold * gap as f64;
        (run, risen) = if flat { (run + gap, risen + after - before) } else { (0, 0.0) };
        if run >= u64::from(patience) {
            return Some(Met { epoch: to, rises: risen > threshold });
        }
    }
    None
}

/// Error over the fitted rows, as a fraction of the largest loss of the file's examined rows.
fn rmse(fit: &LossFit, curve: &Curve, fitted: usize) -> f64 {
    let largest = curve.losses[..fitted].iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let rows = curve.epochs.iter().zip(&curve.losses).take(fitted).filter(|(epoch, _)| **epoch as f64 >= fit.origin);
    let squares: Vec<_> = rows.map(|(&epoch, loss)| ((fit.loss_at(epoch as f64) - loss) / largest).powi(2)).collect();
    (squares.iter().sum::<f64>() / squares.len().max(1) as f64).sqrt()
}

/// Formats with six decimals, or with an exponent if they are insufficient or too long.
fn short(number: f64) -> String {
    if number == 0.0 || (1e-4..1e7).contains(&number.abs()) { format!("{number:.6}") } else { format!("{number:.4e}") }
}

fn name(family: Family) -> &'static str {
    match family {
        Family::Inverse => "inverse",
        Family::Exponential => "exponential",
        Family::Power => "power",
    }
}

fn formula(family: &str) -> &'static str {
    match family {
        "exponential" => "loss/scale = β0·exp(−β1·k) + β2",
        "power" => "loss/scale = β0·(k+1)^(−β1) + β2",
        _ => "loss/scale = 1/(β0·k + β1) + β2",
    }
}

#[derive(Serialize)]
struct Report {
    family: &'static str,
    beta: [f64; 3],
    rmse: f64,
    predicted_final: f64,
    actual_final: f64,
    converges_at: f64,
    interval: [f64; 2],
    /// The rule isn't met before the last allowed epoch.
    capped: bool,
    unit: &'static str,
    /// k = (column − origin)/epoch_length.
    origin: f64,
    epoch_length: f64,
    scale: f64,
    rows_fitted: usize,
    /// The rule is met by rising losses.
    rises: bool,
    #[serde(skip)]
    met: bool,
    #[serde(skip)]
    rows: usize,
}

impl Show for Report {
    fn text(&self, paper: &Paper) -> String {
        let mut sheet = Sheet::new([Column::key(""), Column::key("VALUE").right()]);
        for (index, beta) in self.beta.iter().enumerate() {
            sheet.row([format!("β{index}").into(), short(*beta).into()]);
        }
        sheet.row(["scale".into(), short(self.scale).into()]);
        sheet.row(["error (RMSE, normalised)".into(), format!("{:.5}", self.rmse).into()]);
        sheet.row(["last loss, predicted".into(), short(self.predicted_final).into()]);
        sheet.row(["last loss, measured".into(), short(self.actual_final).into()]);
        let unit = self.unit;
        let end = match (self.met, self.capped) {
            (true, _) if self.rises => format!(
                "At {unit} {:.0} no epoch lowers the loss any more, because it rises: training would end there, \
                 but hasn't converged.",
                self.converges_at
            ),
            (true, _) => format!("Has converged at {unit} {:.0}.", self.converges_at),
            (_, true) => format!("Doesn't converge before {unit} {:.0}, the last allowed.", self.converges_at),
            _ if self.interval[0] == self.interval[1] => format!("Converges at {unit} {:.0}.", self.converges_at),
            _ => format!(
                "Converges at {unit} {:.0}; four times in five between {:.0} and {:.0}.",
                self.converges_at, self.interval[0], self.interval[1]
            ),
        };
        format!(
            "{}\n\n{}, k = ({unit} − {})/{}\nFitted to the first {} of {} rows. {end}",
            sheet.on(paper),
            formula(self.family),
            self.origin,
            self.epoch_length,
            self.rows_fitted,
            self.rows
        )
    }
}

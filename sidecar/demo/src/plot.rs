//! Plots of a run: workers and parameter servers of each job over time, and the fitted curves.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use trainmaster_core::fit::{Convergence, ConvergenceOptions, LossHistory};

use super::record::{JobRecord, Run};

const ROW: u32 = 64;
const WIDTH: u32 = 960;

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("can't draw: {error}")
}

/// A row per job: workers as a filled step line, parameter servers as a line above it.
pub(super) fn timeline(run: &Run, file: &Path) -> Result<()> {
    let rows = run.jobs.len() as u32;
    let root = SVGBackend::new(file, (WIDTH, 40 + ROW * rows + 30)).into_drawing_area();
    root.fill(&WHITE).map_err(failed)?;
    let title = format!(
        "{} (seed {}): average JCT {:.1} s, makespan {:.1} s",
        run.engine, run.seed, run.average_jct_s, run.makespan_s
    );
    let root = root.titled(&title, ("sans-serif", 18)).map_err(failed)?;
    let most = run
        .jobs
        .iter()
        .flat_map(|job| &job.samples)
        .map(|sample| sample.workers.max(sample.servers))
        .max()
        .unwrap_or(1);
    for (area, job) in root.split_evenly((run.jobs.len().max(1), 1)).iter().zip(&run.jobs) {
        let mut chart = ChartBuilder::on(area)
            .set_label_area_size(LabelAreaPosition::Left, 110)
            .set_label_area_size(LabelAreaPosition::Bottom, 14)
            .margin_right(10)
            .build_cartesian_2d(0.0..run.makespan_s.max(1.0), 0.0..f64::from(most) + 0.5)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .disable_mesh()
            .y_desc(job.name.as_str())
            .y_labels(3)
            .x_labels(10)
            .label_style(("sans-serif", 10))
            .draw()
            .map_err(failed)?;
        let workers = steps(job, |sample| sample.workers);
        let servers = steps(job, |sample| sample.servers);
        chart.draw_series(AreaSeries::new(workers, 0.0, BLUE.mix(0.3)).border_style(BLUE)).map_err(failed)?;
        chart.draw_series(LineSeries::new(servers, RED.stroke_width(2))).map_err(failed)?;
        let arrival = job.arrival_s;
        let height = f64::from(most) + 0.5;
        chart.draw_series(LineSeries::new([(arrival, 0.0), (arrival, height)], BLACK.mix(0.4))).map_err(failed)?;
    }
    root.present().map_err(failed)
}

/// Corners of a step function of time.
fn steps(job: &JobRecord, count: fn(&super::record::Sample) -> u32) -> Vec<(f64, f64)> {
    let mut corners = vec![(job.arrival_s, 0.0)];
    let mut last = 0.0;
    for sample in &job.samples {
        let now = f64::from(count(sample));
        if now != last {
            corners.extend([(sample.t, last), (sample.t, now)]);
            last = now;
        }
    }
    let end = job.arrival_s + job.jct_s;
    corners.extend([(end, last), (end, 0.0)]);
    corners
}

/// A panel per job: the losses by epoch, the curve fitted to all of them, and the one fitted to the first half.
pub(super) fn curves(run: &Run, file: &Path) -> Result<()> {
    let columns = 3;
    let rows = run.jobs.len().div_ceil(columns).max(1);
    let root = SVGBackend::new(file, (WIDTH, 220 * rows as u32 + 40)).into_drawing_area();
    root.fill(&WHITE).map_err(failed)?;
    let title =
        format!("{} (seed {}): losses, fitted to all (red) and to the first half (green)", run.engine, run.seed);
    let root = root.titled(&title, ("sans-serif", 16)).map_err(failed)?;
    for (area, job) in root.split_evenly((rows, columns)).iter().zip(&run.jobs) {
        let losses = losses(job);
        let top = losses.iter().map(|(_, loss)| *loss).fold(0.1, f64::max);
        let end = f64::from(job.epochs.max(2));
        let mut chart = ChartBuilder::on(area)
            .caption(&job.name, ("sans-serif", 13))
            .margin(6)
            .set_label_area_size(LabelAreaPosition::Left, 34)
            .set_label_area_size(LabelAreaPosition::Bottom, 18)
            .build_cartesian_2d(0.0..end, 0.0..top * 1.05)
            .map_err(failed)?;
        chart.configure_mesh().disable_mesh().x_labels(5).y_labels(4).draw().map_err(failed)?;
        chart.draw_series(losses.iter().map(|point| Circle::new(*point, 2, BLUE.filled()))).map_err(failed)?;
        for (share, colour) in [(1.0, RED), (0.5, GREEN)] {
            let mut history = LossHistory::default();
            let seen = (losses.len() as f64 * share).ceil() as usize;
            for (epoch, loss) in &losses[..seen] {
                history.push(*epoch as u64, *epoch as u64, *loss);
            }
            if let Ok(fit) = Convergence::fit(&history, &ConvergenceOptions::default()) {
                let line = (1..=60)
                    .map(|at| end * f64::from(at) / 60.0)
                    .map(|epoch| (epoch, fit.loss_at(epoch).clamp(0.0, top)));
                chart.draw_series(LineSeries::new(line, colour)).map_err(failed)?;
            }
        }
    }
    root.present().map_err(failed)
}

/// The last loss of each epoch.
fn losses(job: &JobRecord) -> Vec<(f64, f64)> {
    let mut by_epoch: Vec<(f64, f64)> = Vec::new();
    for sample in &job.samples {
        let Some(loss) = sample.loss.filter(|_| sample.epoch > 0) else { continue };
        let epoch = f64::from(sample.epoch);
        match by_epoch.last_mut() {
            Some(last) if last.0 == epoch => last.1 = loss,
            _ => by_epoch.push((epoch, loss)),
        }
    }
    by_epoch
}

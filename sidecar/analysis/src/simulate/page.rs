//! One page with all tables and plots, readable offline.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, anyhow};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use plotters::prelude::*;
use trainmaster_sim::{Place, Report, Trace, Workload};
use trainmaster_terminal::Failure;

use super::{
    comparison::{Comparison, shown, with},
    runs::Run,
    source::Source,
};

const WIDTH: u32 = 960;
/// Maximum number of servers in the plot of jobs. More rows aren't distinguishable.
const ROWS: usize = 40;
/// Number of distinguishable columns of points.
const COLUMNS: f64 = WIDTH as f64;

/// Creates the directory of a page if it doesn't exist.
///
/// # Errors
/// The directory can't be created.
pub(super) fn make_room(directory: &Path) -> Result<(), Failure> {
    Ok(fs::create_dir_all(directory).with_context(|| format!("--report {} can't be made", directory.display()))?)
}

/// Writes `index.html` into a directory.
///
/// # Errors
/// The file can't be written.
pub(super) fn write(
    directory: &Path,
    source: &Source,
    workload: &Workload,
    comparison: &Comparison,
    runs: &[Vec<Run>],
) -> Result<(), Failure> {
    let file = directory.join("index.html");
    let page = page(source, workload, comparison, runs)?;
    Ok(fs::write(&file, page).with_context(|| format!("{} can't be written", file.display()))?)
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:980px;margin:2em auto;padding:0 1em;color:#222}\
    table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd}\
    td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto}figcaption{color:#555}";

fn page(source: &Source, workload: &Workload, comparison: &Comparison, runs: &[Vec<Run>]) -> anyhow::Result<String> {
    let names: Vec<&str> = comparison.engines.0.iter().map(|(name, _)| name.as_str()).collect();
    let plural = if comparison.seeds == 1 { "" } else { "s" };
    let figures = figures(&names, workload, runs)?;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { (source.name) ": " (names.join(", ")) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (source.name) }
                p {
                    (source.summary) ": " (workload.jobs.len()) " jobs, " (workload.servers.len()) " servers, "
                    (comparison.seeds) " seed" (plural) ". Source: " (source.origin) "."
                }
                (means(comparison))
                @if !comparison.ratios.0.is_empty() { (ratios(comparison)) }
                @for note in comparison.notes() {
                    p { @for line in note.lines() { (line) br; } }
                }
                @for (svg, caption) in figures {
                    figure { (PreEscaped(svg)) figcaption { (caption) } }
                }
            }
        }
    };
    Ok(page.into_string())
}

/// The figures, each with its caption.
fn figures(names: &[&str], workload: &Workload, runs: &[Vec<Run>]) -> anyhow::Result<Vec<(String, String)>> {
    let first: Vec<&Report> = runs.iter().map(|runs| &runs[0].report).collect();
    let mut figures = vec![
        (
            completion_times(names, runs)?,
            "How long jobs took, over all seeds: the share of all jobs that were completed within so long. A curve \
             that ends below 1 leaves jobs."
                .to_owned(),
        ),
        (
            load(names, &first)?,
            "Share of the GPUs that was taken, over time (of the cores, where there are no GPUs; without the \
             cloud's). First seed."
                .to_owned(),
        ),
        (
            worth(names, workload, &first)?,
            "What the completed jobs were worth together; where jobs have no utility, how many there were. First seed."
                .to_owned(),
        ),
    ];
    let shown = if workload.servers.len() > ROWS {
        format!(", on the first {ROWS} of {} servers", workload.servers.len())
    } else {
        String::new()
    };
    for (name, trace) in names.iter().zip(&first).filter_map(|(name, report)| Some((name, report.trace.as_ref()?))) {
        if !trace.readings.is_empty() {
            let caption = format!(
                "{name}: its prices over time, what one per cent of all there is of a resource costs for a slot. \
                 First seed."
            );
            figures.push((readings(name, trace)?, caption));
        }
        let caption = format!(
            "{name}: who ran where{shown}. Each colour is a job; a job's line is as thick as it has slots there. \
             First seed."
        );
        figures.push((places(name, workload, trace)?, caption));
    }
    Ok(figures)
}

/// A table: the titles of its columns, and its rows.
fn table(titles: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Markup {
    html! {
        table {
            tr { @for title in titles { th { (title) } } }
            @for row in rows {
                tr { @for cell in row { td { (cell) } } }
            }
        }
    }
}

fn means(comparison: &Comparison) -> Markup {
    let titles = [
        "engine",
        "average JCT, s",
        "median",
        "99th percentile",
        "makespan, s",
        "utility",
        "admitted",
        "rejected",
        "refused",
        "stopped",
        "unfinished",
        "utilisation",
        "rescales",
        "preemptions",
        "overhead",
        "decision, 99th percentile",
    ];
    let tenths = |number: f64| format!("{number:.1}");
    let rows = comparison.engines.0.iter().map(|(name, means)| {
        vec![
            name.clone(),
            with(means.average_jct_s, means.intervals.average_jct_s, 0, ""),
            shown(means.median_jct_s, 0, ""),
            shown(means.p99_jct_s, 0, ""),
            with(means.makespan_s, means.intervals.makespan_s, 0, ""),
            with(comparison.earned(means.utility), means.intervals.utility, 1, ""),
            tenths(means.admitted),
            tenths(means.rejected),
            tenths(means.refused),
            tenths(means.stopped),
            tenths(means.unfinished),
            format!("{:.1} %", means.edge_utilisation * 100.0),
            tenths(means.rescales),
            tenths(means.preemptions),
            shown(means.overhead_share.map(|share| share * 100.0), 1, " %"),
            shown(means.decision_ms.as_ref().map(|time| time.p99), 2, " ms"),
        ]
    });
    table(&titles, rows)
}

fn ratios(comparison: &Comparison) -> Markup {
    let times = |ratio, half| with(ratio, half, 2, " ×");
    let rows = comparison.ratios.0.iter().map(|(name, ratios)| {
        vec![
            name.clone(),
            times(ratios.average_jct, ratios.intervals.average_jct),
            times(ratios.makespan, ratios.intervals.makespan),
            times(ratios.utility, ratios.intervals.utility),
        ]
    });
    html! {
        h2 { "Paired by seed" }
        (table(&["", "average JCT", "makespan", "utility"], rows))
    }
}

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("can't draw: {error}")
}

type Points = Vec<(f64, f64)>;

/// A line chart with a legend, from 0.
fn lines(title: &str, x: &str, y: &str, lines: &[(&str, Points)]) -> anyhow::Result<String> {
    chart(title, x, y, lines, |value| value.to_string())
}

/// A line chart with a legend, from 0 or the smallest negative value.
fn chart(title: &str, x: &str, y: &str, lines: &[(&str, Points)], label: fn(&f64) -> String) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, 320)).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let points = || lines.iter().flat_map(|(_, points)| points);
        let longest = points().map(|point| point.0).fold(1e-9, f64::max);
        let least = points().map(|point| point.1).fold(0.0, f64::min);
        let most = points().map(|point| point.1).fold(least + 1e-9, f64::max);
        let mut chart = ChartBuilder::on(&root)
            .caption(title, ("sans-serif", 18))
            .margin(10)
            .set_label_area_size(LabelAreaPosition::Left, 60)
            .set_label_area_size(LabelAreaPosition::Bottom, 40)
            .build_cartesian_2d(0.0..longest * 1.01, least..most + 0.05 * (most - least))
            .map_err(failed)?;
        let mut mesh = chart.configure_mesh();
        mesh.light_line_style(WHITE).x_desc(x).y_desc(y).y_label_formatter(&label).draw().map_err(failed)?;
        for (number, (name, points)) in lines.iter().enumerate() {
            let colour = Palette99::pick(number).to_rgba();
            chart
                .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))
                .map_err(failed)?
                .label(*name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        }
        chart
            .configure_series_labels()
            .border_style(BLACK.mix(0.3))
            .background_style(WHITE.mix(0.8))
            .draw()
            .map_err(failed)?;
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

fn completion_times(names: &[&str], runs: &[Vec<Run>]) -> anyhow::Result<String> {
    let of = |runs: &Vec<Run>| {
        let jobs = || runs.iter().flat_map(|run| &run.report.jobs);
        let mut times: Vec<f64> = jobs().filter_map(|job| job.jct_s).map(|jct| jct / 60.0).collect();
        times.sort_by(f64::total_cmp);
        let all = jobs().count() as f64;
        let shares = times.iter().enumerate().map(|(rank, time)| (*time, (rank + 1) as f64 / all));
        steps(std::iter::once((0.0, 0.0)).chain(shares))
    };
    let curves: Vec<(&str, Points)> = names.iter().zip(runs).map(|(name, runs)| (*name, of(runs))).collect();
    lines("Job completion times", "minutes from arrival to end", "share of the jobs", &curves)
}

fn load(names: &[&str], reports: &[&Report]) -> anyhow::Result<String> {
    let has_gpus = reports.iter().any(|report| report.trace.iter().flat_map(|trace| &trace.load).any(|at| at.1 > 0.0));
    let of = |report: &Report| {
        let trace = report.trace.iter().flat_map(|trace| &trace.load);
        steps(trace.map(|at| (at.0 / 3600.0, if has_gpus { at.1 } else { at.2 })))
    };
    let curves: Vec<(&str, Points)> = names.iter().zip(reports).map(|(name, report)| (*name, of(report))).collect();
    lines("Utilisation", "hours", "share taken", &curves)
}

fn worth(names: &[&str], workload: &Workload, reports: &[&Report]) -> anyhow::Result<String> {
    let has_utility = workload.jobs.iter().any(|job| job.spec.utility.is_some());
    let of = |report: &Report| {
        let mut ends: Points = report
            .jobs
            .iter()
            .filter_map(|job| {
                Some(((job.arrival_s + job.jct_s?) / 3600.0, if has_utility { job.utility } else { 1.0 }))
            })
            .collect();
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        let sums = ends.iter().scan(0.0, |sum, (at, worth)| {
            *sum += worth;
            Some((*at, *sum))
        });
        steps(std::iter::once((0.0, 0.0)).chain(sums))
    };
    let curves: Vec<(&str, Points)> = names.iter().zip(reports).map(|(name, report)| (*name, of(report))).collect();
    let (title, y) = if has_utility { ("Utility earned", "utility") } else { ("Jobs that have ended", "jobs") };
    lines(title, "hours", y, &curves)
}

/// An engine's values on a logarithmic scale, because prices span many orders of magnitude.
fn readings(name: &str, trace: &Trace) -> anyhow::Result<String> {
    let logs = |points: &[(f64, f64)]| {
        let above_zero = points.iter().filter(|(_, value)| *value > 0.0);
        steps(above_zero.map(|(at, value)| (at / 3600.0, value.log10())))
    };
    let curves: Vec<(&str, Points)> =
        trace.readings.iter().map(|(name, points)| (name.as_str(), logs(points))).collect();
    chart(&format!("Prices of {name}"), "hours", "price", &curves, |exponent| format!("{:.1e}", 10_f64.powf(*exponent)))
}

/// The corners of a step function. Each value lasts to the next one, and the last to its last occurrence.
fn steps(values: impl Iterator<Item = (f64, f64)>) -> Points {
    let mut values: Points = values.collect();
    let end = values.last().copied();
    values.dedup_by(|next, last| next.1 == last.1);
    let mut corners = Points::new();
    for (at, value) in thinned(&values) {
        if let Some(&(_, last)) = corners.last() {
            corners.push((at, last));
        }
        corners.push((at, value));
    }
    corners.extend(end.filter(|end| corners.last() != Some(end)));
    corners
}

/// The first, smallest, largest and last point of each column of points. The drawing looks the same.
fn thinned(points: &[(f64, f64)]) -> Points {
    let (Some((from, _)), Some((to, _))) = (points.first(), points.last()) else { return Points::new() };
    let column = |at: f64| ((at - from) / (to - from).max(1e-9) * COLUMNS) as u32;
    let mut kept = Points::new();
    for here in points.chunk_by(|a, b| column(a.0) == column(b.0)) {
        let by_value = |a: &usize, b: &usize| here[*a].1.total_cmp(&here[*b].1);
        let mut places = vec![0, here.len() - 1];
        places.extend((0..here.len()).min_by(by_value));
        places.extend((0..here.len()).max_by(by_value));
        places.sort_unstable();
        places.dedup();
        kept.extend(places.into_iter().map(|place| here[place]));
    }
    kept
}

/// A row per server. In it, each job has a line in its own lane while it is there.
fn places(name: &str, workload: &Workload, trace: &Trace) -> anyhow::Result<String> {
    let rows = workload.servers.len().min(ROWS);
    let end = trace.places.iter().map(|place| place.to).fold(1.0, f64::max) / 3600.0;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, 70 + 34 * rows as u32)).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(name, ("sans-serif", 18))
            .margin(10)
            .set_label_area_size(LabelAreaPosition::Left, 70)
            .set_label_area_size(LabelAreaPosition::Bottom, 40)
            .build_cartesian_2d(0.0..end, 0.0..rows as f64)
            .map_err(failed)?;
        let label = |y: &f64| {
            let row = rows as f64 - y;
            let server = workload.servers.get(row as usize).filter(|_| row >= 0.0 && row.fract() == 0.0);
            server.map_or_else(String::new, |server| server.name.clone())
        };
        let mut mesh = chart.configure_mesh();
        mesh.light_line_style(WHITE).x_desc("hours").y_labels(rows + 1).y_label_formatter(&label);
        mesh.draw().map_err(failed)?;
        let slots = |place: &Place| place.workers + place.servers;
        for (server, lanes) in lanes(trace, rows) {
            let height = 0.9 / f64::from(lanes.iter().map(|(lane, place)| lane + slots(place)).max().unwrap_or(1));
            let top = (rows - server) as f64;
            chart
                .draw_series(lanes.iter().map(|(lane, place)| {
                    let upper = top - f64::from(*lane) * height;
                    let lower = upper - f64::from(slots(place)) * height;
                    let colour = Palette99::pick(place.job).mix(0.8);
                    Rectangle::new([(place.from / 3600.0, lower), (place.to / 3600.0, upper)], colour.filled())
                }))
                .map_err(failed)?;
        }
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

/// The slots on each server, each with the lowest lane from which as many lanes as slots are free.
fn lanes(trace: &Trace, rows: usize) -> BTreeMap<usize, Vec<(u32, &Place)>> {
    let mut by_server: BTreeMap<usize, Vec<(u32, &Place)>> = BTreeMap::new();
    let mut places: Vec<&Place> = trace.places.iter().filter(|place| place.server < rows).collect();
    places.sort_by(|a, b| a.from.total_cmp(&b.from).then(a.job.cmp(&b.job)));
    for place in places {
        let row = by_server.entry(place.server).or_default();
        let mut taken: Vec<(u32, u32)> = row
            .iter()
            .filter(|(_, other)| other.to > place.from)
            .map(|(lane, other)| (*lane, lane + other.workers + other.servers))
            .collect();
        taken.sort_unstable();
        let needed = place.workers + place.servers;
        let lane = taken.iter().fold(0, |lane, (from, to)| if lane + needed <= *from { lane } else { lane.max(*to) });
        row.push((lane, place));
    }
    by_server
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(job: usize, from: f64, to: f64, workers: u32) -> Place {
        Place { job, server: 0, from, to, workers, servers: 0 }
    }

    #[test]
    fn jobs_on_one_server_never_overlap() {
        let places = [place(0, 0.0, 9.0, 2), place(1, 1.0, 3.0, 1), place(2, 2.0, 9.0, 3), place(3, 4.0, 5.0, 1)];
        let trace = Trace { places: places.to_vec(), ..Trace::default() };
        let lanes: Vec<u32> = lanes(&trace, 1)[&0].iter().map(|(lane, _)| *lane).collect();
        // The fourth takes the lane that the second left.
        assert_eq!(lanes, [0, 2, 3, 2]);
    }

    #[test]
    fn steps_keep_their_corners() {
        let corners = steps([(0.0, 1.0), (2.0, 1.0), (3.0, 5.0)].into_iter());
        assert_eq!(corners, [(0.0, 1.0), (3.0, 1.0), (3.0, 5.0)]);
        // The last value lasts to its last occurrence.
        assert_eq!(steps([(0.0, 1.0), (4.0, 1.0)].into_iter()), [(0.0, 1.0), (4.0, 1.0)]);
        // Whatever the number of points, a single peak stays, and no line is slanted.
        let many = steps((0..100_000).map(|at| (f64::from(at), if at == 77_777 { 9.0 } else { f64::from(at % 2) })));
        assert!(many.len() <= 8 * COLUMNS as usize && many.iter().any(|point| point.1 == 9.0), "{}", many.len());
        assert!(many.windows(2).all(|pair| pair[0].0 == pair[1].0 || pair[0].1 == pair[1].1));
    }
}

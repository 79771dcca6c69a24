//! Figures of docs/experiments.md: one column of the table above, with the paper's numbers beside ours.
//!
//! A line `<!-- figure FILE | COLUMN | RUN / ENGINE = NUMBER; … -->` describes one. It shows all engines of the runs
//! that are named. A number can be a range, `1.05..1.18`.

use anyhow::{Context, Result, ensure};
use plotters::prelude::*;

const WIDTH: u32 = 760;
const ROW: u32 = 18;
const LABELS: i32 = 230;
/// Rows for the legend, above the others.
const LEGEND: f64 = 2.6;

/// A figure to draw.
pub(crate) struct Figure<'a> {
    /// Its file in docs/figures.
    pub(crate) file: &'a str,
    column: &'a str,
    papers: Vec<Number<'a>>,
}

/// A number of the paper's, or a range.
struct Number<'a> {
    run: &'a str,
    engine: &'a str,
    least: f64,
    most: f64,
}

/// A row of a table: ours.
struct Row<'a> {
    run: &'a str,
    engine: &'a str,
    value: f64,
    half: f64,
}

impl<'a> Figure<'a> {
    /// The figure that a line describes. None: it describes none.
    pub(crate) fn read(line: &'a str) -> Option<Result<Self>> {
        let text = line.strip_prefix("<!-- figure ")?.strip_suffix(" -->")?;
        Some(Self::parse(text).with_context(|| format!("{line:?}")))
    }

    fn parse(text: &'a str) -> Result<Self> {
        let mut parts = text.split('|').map(str::trim);
        let mut next = || parts.next().context("it must be FILE | COLUMN | RUN / ENGINE = NUMBER; …");
        let (file, column, papers) = (next()?, next()?, next()?);
        let papers = papers.split(';').map(|one| {
            let (name, number) = one.split_once('=').context("no =")?;
            let (run, engine) = name.split_once('/').context("no /")?;
            let (least, most) = number.split_once("..").unwrap_or((number, number));
            let (least, most) = (least.trim().parse()?, most.trim().parse()?);
            Ok(Number { run: run.trim(), engine: engine.trim(), least, most })
        });
        Ok(Self { file, column, papers: papers.collect::<Result<_>>()? })
    }

    /// Its rows in a table with the columns `run` and `engine`.
    fn rows<'t>(&self, table: &[&'t str]) -> Result<Vec<Row<'t>>> {
        let cells = |line: &'t str| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>();
        let head = cells(table.first().context("no table above it")?);
        let at = |name: &str| head.iter().position(|column| *column == name).with_context(|| format!("no {name:?}"));
        let (run, engine, column) = (at("run")?, at("engine")?, at(self.column)?);
        let mut rows = Vec::new();
        for line in table.iter().skip(2) {
            let cells = cells(line);
            if self.papers.iter().any(|paper| paper.run == cells[run]) {
                let (value, half) = cells[column].split_once(" ± ").unwrap_or((cells[column], "0"));
                let (value, half) = (value.parse()?, half.parse()?);
                rows.push(Row { run: cells[run], engine: cells[engine], value, half });
            }
        }
        for paper in &self.papers {
            let known = rows.iter().any(|row| row.run == paper.run && row.engine == paper.engine);
            ensure!(known, "{} / {} isn't in the table", paper.run, paper.engine);
        }
        Ok(rows)
    }

    /// Draws it for the table above it, as SVG. The scale is logarithmic.
    pub(crate) fn draw(&self, table: &[&str]) -> Result<String> {
        let rows = self.rows(table).with_context(|| self.file.to_owned())?;
        let ends =
            || rows.iter().map(|row| (row.value, row.value)).chain(self.papers.iter().map(|it| (it.least, it.most)));
        let least = ends().map(|end| end.0).fold(f64::INFINITY, f64::min);
        let most = ends().map(|end| end.1).fold(0.0, f64::max);
        ensure!(least > 0.0, "{}: {least} must be above 0", self.file);
        let mut svg = String::new();
        {
            let most_high = rows.len() as f64 + LEGEND;
            let height = 60 + (f64::from(ROW) * most_high) as u32;
            let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
            root.fill(&WHITE)?;
            let mut chart = ChartBuilder::on(&root)
                .margin(10)
                .margin_left(LABELS)
                .set_label_area_size(LabelAreaPosition::Bottom, 40)
                .build_cartesian_2d((least / 1.1..most * 1.1).log_scale(), 0.0..most_high)?;
            let mut mesh = chart.configure_mesh();
            mesh.disable_y_mesh().y_labels(0).light_line_style(WHITE).x_desc(self.column);
            mesh.x_label_formatter(&|value| format!("{value:.2}")).draw()?;
            let (ours, papers) = (BLUE.mix(0.8), RED.mix(0.8));
            let height_of = |at: usize| (rows.len() - at) as f64 - 0.5;
            let span = |from: f64, to: f64, at: usize, colour: RGBAColor| {
                PathElement::new([(from, height_of(at)), (to, height_of(at))], colour.stroke_width(2))
            };
            let intervals = rows.iter().enumerate().filter(|(_, row)| row.half > 0.0);
            chart.draw_series(intervals.map(|(at, row)| {
                span((row.value - row.half).max(least / 1.1), (row.value + row.half).min(most * 1.1), at, ours)
            }))?;
            let dots = rows.iter().enumerate();
            chart
                .draw_series(dots.map(|(at, row)| Circle::new((row.value, height_of(at)), 4, ours.filled())))?
                .label("here, with its 95 % interval")
                .legend(move |at| Circle::new(at, 4, ours.filled()));
            let marks: Vec<(usize, &Number<'_>)> = self
                .papers
                .iter()
                .filter_map(|it| Some((rows.iter().position(|row| row.run == it.run && row.engine == it.engine)?, it)))
                .collect();
            chart.draw_series(marks.iter().map(|(at, it)| span(it.least, it.most, *at, papers)))?;
            let crosses = marks.iter().flat_map(|(at, it)| [it.least, it.most].map(|value| (value, height_of(*at))));
            chart
                .draw_series(crosses.map(|at| Cross::new(at, 5, papers.stroke_width(2))))?
                .label("the paper")
                .legend(move |at| Cross::new(at, 5, papers.stroke_width(2)));
            let font = ("sans-serif", 13).into_font();
            for (at, row) in rows.iter().enumerate() {
                let (_, y) = chart.backend_coord(&(least, height_of(at)));
                root.draw(&Text::new(format!("{}: {}", row.run, row.engine), (10, y - 6), font.clone()))?;
            }
            chart
                .configure_series_labels()
                .border_style(BLACK.mix(0.3))
                .background_style(WHITE.mix(0.8))
                .position(SeriesLabelPosition::UpperRight)
                .draw()?;
            root.present()?;
        }
        Ok(svg)
    }
}

//! The live view: a bar per job on a terminal, otherwise a line from time to time.

use std::{
    collections::BTreeMap,
    io::IsTerminal,
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use trainmaster_proto::v1::JobStatus;

/// Interval of lines without a terminal.
const LINES: Duration = Duration::from_secs(10);

pub(super) struct View {
    bars: Option<(MultiProgress, BTreeMap<u64, ProgressBar>)>,
    last_line: Option<Instant>,
    /// Shape and incarnation of each job when it trained last, with the predicted speed.
    shapes: BTreeMap<u64, Shaped>,
}

type Shaped = (u32, u32, u32, Option<f64>);

impl View {
    pub(super) fn new(title: &str) -> Self {
        let bars = std::io::stderr().is_terminal().then(|| (MultiProgress::new(), BTreeMap::new()));
        let view = Self { bars, last_line: None, shapes: BTreeMap::new() };
        view.print(title);
        view
    }

    /// A line that stays, above the bars.
    fn print(&self, line: &str) {
        match &self.bars {
            Some((multi, _)) => drop(multi.println(line)),
            None => eprintln!("{line}"),
        }
    }

    /// Shows the current jobs, `seconds` after the start.
    pub(super) fn show<'a>(&mut self, seconds: f64, jobs: impl Iterator<Item = &'a JobStatus>) {
        let jobs: Vec<&JobStatus> = jobs.collect();
        for job in jobs.iter().filter(|job| job.workers > 0 && job.ended_ms.is_none()) {
            let shaped = (job.workers, job.servers, job.incarnation, job.predicted_speed);
            if let Some(line) = change(job, self.shapes.insert(job.job, shaped)) {
                self.print(&format!("  {seconds:5.0} s  {}: {line}", job.name));
            }
        }
        let Some((multi, bars)) = &mut self.bars else {
            if self.last_line.is_some_and(|last| last.elapsed() < LINES) {
                return;
            }
            self.last_line = Some(Instant::now());
            let states: Vec<String> = jobs.into_iter().map(brief).collect();
            eprintln!("  {seconds:5.0} s  {}", states.join("  "));
            return;
        };
        for job in jobs {
            let bar = bars.entry(job.job).or_insert_with(|| multi.add(new_bar(&job.name)));
            let end = job.predicted_epochs.map_or(f64::from(job.max_epochs), |epochs| epochs.max(f64::from(job.epoch)));
            bar.set_length(end.max(1.0) as u64);
            bar.set_position(job.epoch.into());
            if job.ended_ms.is_some() {
                bar.set_length(u64::from(job.epoch.max(1)));
                bar.finish_with_message(format!("{} after {:.0} s", job.state, lasted(job)));
            } else {
                bar.set_message(detail(job));
            }
        }
    }

    /// Removes the bars.
    pub(super) fn close(self) {
        if let Some((multi, _)) = self.bars {
            let _ = multi.clear();
        }
    }
}

/// What happened to a job that was `before` so, in words. None: nothing.
fn change(job: &JobStatus, before: Option<Shaped>) -> Option<String> {
    let now = format!("{}w+{}p", job.workers, job.servers);
    let Some((workers, servers, incarnation, speed)) = before else { return Some(format!("starts with {now}")) };
    if (workers, servers) == (job.workers, job.servers) {
        return None;
    }
    let how = if incarnation == job.incarnation { "in place" } else { "from a checkpoint" };
    let ratio = job.predicted_speed.zip(speed.filter(|speed| *speed > 0.0)).map(|(now, before)| now / before);
    let faster = ratio.map_or_else(String::new, |ratio| format!(", predicted speed × {ratio:.2}"));
    Some(format!("{workers}w+{servers}p → {now} {how}{faster}"))
}

fn new_bar(name: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:14} [{bar:24}] {pos:>3}/{len:<3} epochs  {msg}")
        .expect("a template that is written here")
        .progress_chars("=> ");
    ProgressBar::new(1).with_prefix(name.to_owned()).with_style(style)
}

fn lasted(job: &JobStatus) -> f64 {
    (job.ended_ms.unwrap_or(job.submitted_ms) - job.submitted_ms) as f64 / 1000.0
}

fn detail(job: &JobStatus) -> String {
    let loss = job.loss.map_or_else(String::new, |loss| format!("  loss {loss:.3}"));
    if job.workers == 0 {
        return format!("{}{}{}", job.state, if job.reason.is_empty() { "" } else { ": " }, job.reason);
    }
    let left = job.remaining_ms.map_or_else(String::new, |ms| format!("  ends in {:.0} s", ms as f64 / 1000.0));
    format!("{}w+{}p{loss}{left}", job.workers, job.servers)
}

fn brief(job: &JobStatus) -> String {
    match (job.ended_ms, job.workers) {
        (Some(_), _) => format!("{} {}", job.name, job.state),
        (None, 0) => format!("{} waits", job.name),
        (None, _) => format!("{} {}w+{}p e{}", job.name, job.workers, job.servers, job.epoch),
    }
}

//! Runs of all engines with all seeds, in parallel on the processors.

use std::{
    io::{self, IsTerminal},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use indicatif::{ProgressBar, ProgressStyle};
use trainmaster_core::{Ticket, engine::Budget, scheduler::Outcome};
use trainmaster_sim::{self as sim, Host, Options, Report, Workload, WorkloadError};
use trainmaster_terminal::Failure;

/// The simulations to run.
pub(crate) struct Plan<'a> {
    pub(crate) build: &'a (dyn Fn(u64) -> Result<Workload, WorkloadError> + Sync),
    /// Number of jobs in one workload.
    pub(crate) jobs: usize,
    pub(crate) options: &'a (dyn Fn(usize, u64, bool) -> Options + Sync),
    pub(crate) seeds: &'a [u64],
    pub(crate) engines: &'a [String],
    /// Keep the data for the page of the first seed.
    pub(crate) trace: bool,
    pub(crate) threads: Option<usize>,
}

/// The run of one engine with one seed.
pub(crate) struct Run {
    pub(crate) report: Report,
    /// Milliseconds of each decision.
    pub(crate) decisions: Vec<f64>,
}

/// For each engine, its runs by seed.
pub(crate) type Runs = Vec<Vec<Run>>;

impl Plan<'_> {
    /// Runs all simulations. The order of the results doesn't depend on the threads.
    ///
    /// # Errors
    /// The first simulation in that order that failed.
    pub(crate) fn play(&self) -> Result<Runs, Failure> {
        let (seeds, engines) = (self.seeds.len(), self.engines.len());
        let threads = threads(self.threads, seeds * engines);
        let bar = bar(self.jobs * seeds * engines);
        let next = AtomicUsize::new(0);
        let done: Vec<Mutex<Option<Result<Run, String>>>> = (0..seeds * engines).map(|_| Mutex::new(None)).collect();
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let place = next.fetch_add(1, Ordering::Relaxed);
                        let Some(result) = done.get(place) else { break };
                        let run = self.play_one(place % engines, place / engines, &bar);
                        *result.lock().expect("nobody panics while writing a result") = Some(run);
                    }
                });
            }
        });
        bar.finish_and_clear();
        let mut runs: Runs = self.engines.iter().map(|_| Vec::with_capacity(seeds)).collect();
        for (place, result) in done.into_iter().enumerate() {
            let run = result.into_inner().expect("as above").expect("every place was taken");
            let about = |error| {
                let (engine, seed) = (&self.engines[place % engines], self.seeds[place / engines]);
                Failure::refused(format!("{engine}, seed {seed}: {error}"))
            };
            runs[place % engines].push(run.map_err(about)?);
        }
        Ok(runs)
    }

    fn play_one(&self, engine: usize, seed: usize, bar: &ProgressBar) -> Result<Run, String> {
        let number = self.seeds[seed];
        let workload = (self.build)(number).map_err(|error| error.to_string())?;
        let options = (self.options)(engine, number, self.trace && seed == 0);
        let mut host = Stopwatch { bar, over: 0, decisions: Vec::new() };
        let report = sim::play(&workload, &options, &mut host).map_err(|error| error.to_string())?;
        // Unfinished jobs count as well.
        bar.inc((workload.jobs.len() - host.over) as u64);
        Ok(Run { report, decisions: host.decisions })
    }
}

/// The number of processors by default. More than four times as many threads only use memory.
fn threads(asked: Option<usize>, plays: usize) -> usize {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    asked.unwrap_or(processors).clamp(1, 4 * processors).min(plays)
}

struct Stopwatch<'a> {
    bar: &'a ProgressBar,
    over: usize,
    decisions: Vec<f64>,
}

impl Host for Stopwatch<'_> {
    fn run(&mut self, ticket: Ticket) -> Outcome {
        let begun = Instant::now();
        let outcome = ticket.run(Budget::UNLIMITED);
        self.decisions.push(begun.elapsed().as_secs_f64() * 1000.0);
        outcome
    }

    fn over(&mut self, jobs: usize) {
        self.bar.inc((jobs - self.over) as u64);
        self.over = jobs;
    }
}

fn bar(jobs: usize) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {human_pos} of {human_len} jobs, {eta} left");
    ProgressBar::new(jobs as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_bounded_by_processors_and_plays() {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        assert_eq!(threads(Some(100_000), 200_000), 4 * processors);
        assert_eq!((threads(Some(100_000), 3), threads(Some(0), 3), threads(None, 1)), (3.min(4 * processors), 1, 1));
        assert_eq!(threads(None, 100_000), processors);
    }
}

//! Results of simulations, as a table and as JSON.

use serde::{Serialize, Serializer};
use trainmaster_sim::{Report, recorded::Reality, workload::WORKLOADS};
use trainmaster_terminal::{
    Paper, Show,
    sheet::{Column, Sheet},
};

use super::{offline::Offline, runs::Run};

/// A table of names in a given order.
pub(crate) struct Named<T>(pub(crate) Vec<(String, T)>);

impl<T: Serialize> Serialize for Named<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// The differences between the runs of an engine, which determine the meaning of an interval around their mean.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// Equally likely workloads. The interval is for the mean over all of them.
    Seeds,
    /// Truths that are consistent with a recording. The interval is for the actual one.
    Draws,
    /// Random numbers only, because no truth was drawn. There is no interval for the actual truth.
    Nothing,
}

/// All results: means over seeds, and ratios paired by seed.
#[derive(Serialize)]
pub(crate) struct Comparison {
    pub(super) workload: String,
    pub(super) seeds: usize,
    /// Mean number of arrivals on each day from the first.
    pub(super) arrivals_by_day: Vec<f64>,
    #[serde(skip)]
    over: Over,
    /// Whether jobs have utilities.
    #[serde(skip)]
    valued: bool,
    /// The actual results, if there is a recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) recorded: Option<Reality>,
    pub(super) engines: Named<Means>,
    pub(super) ratios: Named<Ratios>,
    /// The offline optimum, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) offline: Option<Offline>,
    /// Number of invalid rows in the workload's file.
    #[serde(skip_serializing_if = "no_rows")]
    pub(super) left_out: usize,
}

fn no_rows(count: &usize) -> bool {
    *count == 0
}

/// Results of one engine as means over seeds. Missing values are means over the seeds that have them.
#[derive(Serialize)]
pub(super) struct Means {
    pub(super) average_jct_s: Option<f64>,
    pub(super) median_jct_s: Option<f64>,
    pub(super) p99_jct_s: Option<f64>,
    pub(super) makespan_s: Option<f64>,
    pub(super) utility: f64,
    pub(super) admitted: f64,
    pub(super) rejected: f64,
    pub(super) refused: f64,
    pub(super) stopped: f64,
    pub(super) unfinished: f64,
    pub(super) rescales: f64,
    pub(super) restarts: f64,
    pub(super) preemptions: f64,
    pub(super) bytes_moved: f64,
    pub(super) communication_s: Option<f64>,
    pub(super) utilisation: f64,
    pub(super) edge_utilisation: f64,
    /// For each of the first 60 days on which some seed had jobs.
    pub(super) edge_utilisation_by_day: Vec<f64>,
    pub(super) cpu_utilisation: f64,
    pub(super) waiting_s: Option<f64>,
    pub(super) overhead_share: Option<f64>,
    pub(super) traffic_gb: f64,
    pub(super) deadline_ratio: Option<f64>,
    pub(super) urgent_deadline_ratio: Option<f64>,
    pub(super) accuracy_ratio: Option<f64>,
    pub(super) accuracy_at_deadline: Option<f64>,
    pub(super) mean_accuracy: Option<f64>,
    pub(super) stopped_early: f64,
    pub(super) overloads: f64,
    /// For jobs with a utility.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lateness: Option<Lateness>,
    pub(super) decisions: f64,
    pub(super) failed_decisions: f64,
    pub(super) failure: Option<String>,
    pub(super) decision_ms: Option<Milliseconds>,
    /// Half-widths of the 95 % intervals of the means over seeds.
    pub(super) intervals: Intervals,
    /// Digest over the decisions and ends of all seeds. Equal runs have equal digests.
    pub(super) digest: String,
}

/// Ends relative to targets, over all seeds.
#[derive(Serialize)]
pub(super) struct Lateness {
    /// Jobs whose utility decreases slowly, by a factor of e in an hour or more.
    pub(super) sensitive: Late,
    /// Jobs whose utility decreases at once.
    pub(super) critical: Late,
}

/// Hours from the target to the end, negative before it.
#[derive(Serialize)]
pub(super) struct Late {
    /// Fraction of completed jobs. Only these are counted below.
    pub(super) completed: f64,
    pub(super) mean_h: Option<f64>,
    pub(super) deviation_h: Option<f64>,
}

impl Lateness {
    fn of(runs: &[Run]) -> Option<Self> {
        let jobs = || runs.iter().flat_map(|run| &run.report.jobs);
        let late = |class: fn(f64) -> bool| {
            let all = || jobs().filter(move |job| job.decay.is_some_and(class));
            let hours = || all().filter_map(|job| Some(job.late_s? / 3600.0));
            let mean_h = mean(hours());
            let square = mean(hours().map(|late| late * late));
            Late {
                completed: mean(all().map(|job| f64::from(u8::from(job.late_s.is_some())))).unwrap_or(0.0),
                mean_h,
                deviation_h: square.zip(mean_h).map(|(square, mean)| (square - mean * mean).max(0.0).sqrt()),
            }
        };
        jobs()
            .any(|job| job.decay.is_some_and(|decay| decay > 0.0))
            .then(|| Self { sensitive: late(|decay| decay > 0.0 && decay <= 1.0), critical: late(|decay| decay > 1.0) })
    }
}

/// Half-widths of 95 % intervals. None for one seed.
#[derive(Serialize)]
pub(super) struct Intervals {
    pub(super) average_jct_s: Option<f64>,
    pub(super) makespan_s: Option<f64>,
    pub(super) utility: Option<f64>,
}

/// Durations of decisions over all seeds.
#[derive(Serialize)]
pub(super) struct Milliseconds {
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}

/// An engine's value divided by the first engine's with the same seed, as the mean over seeds with both. None if the
/// first engine's is zero.
#[derive(Serialize)]
pub(super) struct Ratios {
    pub(super) average_jct: Option<f64>,
    pub(super) makespan: Option<f64>,
    pub(super) utility: Option<f64>,
    pub(super) intervals: RatioIntervals,
}

/// Half-widths of 95 % intervals.
#[derive(Serialize)]
pub(super) struct RatioIntervals {
    pub(super) average_jct: Option<f64>,
    pub(super) makespan: Option<f64>,
    pub(super) utility: Option<f64>,
}

impl Comparison {
    pub(crate) fn new(workload: &str, over: Over, engines: &[String], runs: &[Vec<Run>], timing: bool) -> Self {
        let means = engines.iter().zip(runs).map(|(name, runs)| (name.clone(), Means::of(runs, over, timing)));
        let first = &runs[0];
        let others = engines.iter().zip(runs).skip(1);
        let ratios = others.map(|(name, runs)| (format!("{name} vs {}", engines[0]), Ratios::of(runs, over, first)));
        Self {
            workload: workload.into(),
            seeds: first.len(),
            arrivals_by_day: arrivals(first),
            over,
            valued: first.iter().flat_map(|run| &run.report.jobs).any(|job| job.decay.is_some()),
            recorded: None,
            engines: Named(means.collect()),
            ratios: Named(ratios.collect()),
            offline: None,
            left_out: 0,
        }
    }
}

impl Means {
    fn of(runs: &[Run], over: Over, timing: bool) -> Self {
        let all = |measure: fn(&Report) -> f64| mean(runs.iter().map(|run| measure(&run.report))).unwrap_or(0.0);
        let some = |measure: fn(&Report) -> Option<f64>| mean(runs.iter().filter_map(|run| measure(&run.report)));
        let width = |measure: fn(&Report) -> Option<f64>| {
            interval(over, runs.iter().filter_map(|run| measure(&run.report)).collect())
        };
        let mut times: Vec<f64> = runs.iter().flat_map(|run| run.decisions.iter().copied()).collect();
        times.sort_by(f64::total_cmp);
        let mut digest = blake3::Hasher::new();
        runs.iter().for_each(|run| {
            digest.update(run.report.digest.as_bytes());
        });
        Self {
            average_jct_s: some(|report| report.average_jct_s),
            median_jct_s: some(|report| report.median_jct_s),
            p99_jct_s: some(|report| report.p99_jct_s),
            makespan_s: some(|report| report.makespan_s),
            utility: all(|report| report.utility),
            admitted: all(|report| report.admitted.into()),
            rejected: all(|report| report.rejected.into()),
            refused: all(|report| report.refused.into()),
            stopped: all(|report| report.stopped.into()),
            unfinished: all(|report| report.unfinished.into()),
            rescales: all(|report| report.rescales.into()),
            restarts: all(|report| report.restarts.into()),
            preemptions: all(|report| report.preemptions.into()),
            bytes_moved: all(|report| report.bytes_moved as f64),
            communication_s: some(|report| report.communication_s),
            utilisation: all(|report| report.utilisation),
            edge_utilisation: all(|report| report.edge_utilisation),
            edge_utilisation_by_day: by_day(runs),
            cpu_utilisation: all(|report| report.cpu_utilisation),
            waiting_s: some(|report| report.waiting_s),
            overhead_share: some(|report| report.overhead_share),
            traffic_gb: all(|report| report.traffic_gb),
            deadline_ratio: some(|report| report.deadline_ratio),
            urgent_deadline_ratio: some(|report| report.urgent_deadline_ratio),
            accuracy_ratio: some(|report| report.accuracy_ratio),
            accuracy_at_deadline: some(|report| report.accuracy_at_deadline),
            mean_accuracy: some(|report| report.mean_accuracy),
            stopped_early: all(|report| report.stopped_early.into()),
            overloads: all(|report| report.overloads.into()),
            lateness: Lateness::of(runs),
            decisions: all(|report| report.decisions.into()),
            failed_decisions: all(|report| report.failed.into()),
            failure: runs.iter().find_map(|run| run.report.failure.clone()),
            decision_ms: timing.then(|| Milliseconds {
                p50: quantile(&times, 0.5),
                p99: quantile(&times, 0.99),
                max: times.last().copied().unwrap_or(0.0),
            }),
            intervals: Intervals {
                average_jct_s: width(|report| report.average_jct_s),
                makespan_s: width(|report| report.makespan_s),
                utility: width(|report| Some(report.utility)),
            },
            digest: digest.finalize().to_hex().to_string(),
        }
    }
}

impl Ratios {
    fn of(runs: &[Run], over: Over, first: &[Run]) -> Self {
        let ratios = |measure: fn(&Report) -> Option<f64>| -> Vec<f64> {
            let pairs = runs.iter().zip(first);
            let pairs = pairs.filter_map(|(mine, theirs)| measure(&mine.report).zip(measure(&theirs.report)));
            // Sums of late jobs' remaining utilities can be almost zero.
            pairs.filter(|(_, theirs)| theirs.abs() > 1e-9).map(|(mine, theirs)| mine / theirs).collect()
        };
        let (jct, makespan) = (ratios(|report| report.average_jct_s), ratios(|report| report.makespan_s));
        let utility = ratios(|report| Some(report.utility));
        Self {
            average_jct: mean(jct.iter().copied()),
            makespan: mean(makespan.iter().copied()),
            utility: mean(utility.iter().copied()),
            intervals: RatioIntervals {
                average_jct: interval(over, jct),
                makespan: interval(over, makespan),
                utility: interval(over, utility),
            },
        }
    }
}

fn arrivals(runs: &[Run]) -> Vec<f64> {
    const DAYS: usize = 60;
    let mut days = Vec::new();
    for job in runs.iter().flat_map(|run| &run.report.jobs) {
        let day = (job.arrival_s.max(0.0) / 86_400.0) as usize;
        if day < DAYS {
            days.resize(days.len().max(day + 1), 0.0);
            days[day] += 1.0 / runs.len() as f64;
        }
    }
    days
}

/// A day without jobs in a seed counts as zero use.
fn by_day(runs: &[Run]) -> Vec<f64> {
    let shares = || runs.iter().map(|run| &run.report.edge_by_day);
    let days = shares().map(Vec::len).max().unwrap_or(0);
    let of = |day| shares().map(|shares| shares.get(day).copied().unwrap_or(0.0)).sum::<f64>() / runs.len() as f64;
    (0..days).map(of).collect()
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted.get(rank - 1).or(sorted.last()).copied().unwrap_or(0.0)
}

/// Two-sided 95 % points of Student's distribution for 1 to 30 degrees of freedom, from tables.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// Half-width of the 95 % interval of the mean, or of another value of the same kind. None for fewer than two values.
fn interval(over: Over, values: Vec<f64>) -> Option<f64> {
    let count = values.len();
    let middle = mean(values.iter().copied()).filter(|_| count > 1 && over != Over::Nothing)?;
    let variance = values.iter().map(|value| (value - middle) * (value - middle)).sum::<f64>() / (count - 1) as f64;
    // Beyond the table, the next terms of the expansion around the normal distribution's 1.960.
    let t = STUDENT.get(count - 2).copied().unwrap_or(1.96 + 2.4 / (count - 1) as f64);
    let share = 1.0 / count as f64;
    Some(t * (variance * if over == Over::Draws { 1.0 + share } else { share }).sqrt())
}

/// A value with its unit, or a dash.
pub(super) fn shown(value: Option<f64>, digits: usize, unit: &str) -> String {
    with(value, None, digits, unit)
}

/// A mean with its interval and its unit, or a dash.
pub(super) fn with(value: Option<f64>, half: Option<f64>, digits: usize, unit: &str) -> String {
    let Some(value) = value else { return "–".into() };
    half.map_or_else(|| format!("{value:.digits$}{unit}"), |half| format!("{value:.digits$} ± {half:.digits$}{unit}"))
}

impl Means {
    /// Mean number of jobs that weren't completed.
    pub(super) fn left(&self) -> f64 {
        self.refused + self.rejected + self.stopped + self.unfinished
    }
}

impl Comparison {
    /// The utility, if jobs have utilities.
    pub(super) fn earned(&self, utility: f64) -> Option<f64> {
        self.valued.then_some(utility)
    }

    /// Notes below the tables, one paragraph each.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(Offline::Times(best)) = &self.offline {
            let (bound, fractional) = (best.average_jct_s, best.fractional_s);
            let mut note = format!(
                "Offline: no schedule's jobs take less than {bound:.0} s on average (fractional flow time: \
                 {fractional:.0} s)."
            );
            for ((name, ratio), (_, worst)) in best.ratios.0.iter().zip(&best.worst.0) {
                note +=
                    &format!("\n{name} over offline: {}, at worst {}.", shown(*ratio, 2, " ×"), shown(*worst, 2, " ×"));
            }
            notes.push(note);
        }
        if let Some(Offline::Utility(best)) = &self.offline {
            let mut note = format!(
                "Offline: schedules worth {:.2} exist, and none above {:.2} ({:.1} % more); proven for {} of {} seeds.",
                best.utility,
                best.bound,
                best.gap * 100.0,
                best.proven,
                self.seeds
            );
            for (name, ratio) in &best.ratios.0 {
                note += &format!("\nOffline over {name}: {}.", shown(*ratio, 2, " ×"));
            }
            notes.push(note);
        }
        let failed = self.engines.0.iter().filter_map(|(name, means)| Some((name, means, means.failure.as_ref()?)));
        notes.extend(failed.map(|(name, means, failure)| {
            let (failed, all) = (means.failed_decisions, means.decisions);
            format!("{name} failed in {failed:.1} of {all:.1} decisions, and the last plan stood: {failure}")
        }));
        if self.left_out > 0 {
            notes.push(format!("{} of the file's rows make no sense and were left out.", self.left_out));
        }
        let seeds = self.seeds;
        let over = match (self.over, seeds) {
            (Over::Seeds, 1) => "One seed, so that there are no intervals.".into(),
            (Over::Seeds, _) => format!("Means over {seeds} seeds with 95 % intervals."),
            (Over::Draws, 1) => "One draw of what isn't known for sure, so that there are no intervals.".into(),
            (Over::Draws, _) => {
                format!("Means over {seeds} draws of what isn't known for sure; ± holds 95 in 100 such draws.")
            }
            (Over::Nothing, _) => {
                "There are no intervals: speeds are as declared, nothing was drawn, and nothing tells how far off it \
                 is."
                .into()
            }
        };
        notes.push(format!(
            "{over} JCT and MAKESPAN: of the jobs that were completed, which aren't the same under every engine. \
             LEFT: jobs refused, rejected, stopped or unfinished. DECISION: 99 in 100 took at most this."
        ));
        notes
    }
}

impl Show for Comparison {
    fn text(&self, paper: &Paper) -> String {
        let number = |heading, rank| Column::spare(heading, rank).right();
        let mut sheet = Sheet::new([
            Column::key("ENGINE"),
            Column::key("AVERAGE JCT").right(),
            number("MEDIAN", 6),
            number("P99", 5),
            number("MAKESPAN", 1),
            number("UTILITY", 2),
            number("UTILISATION", 3),
            number("RESCALES", 4),
            number("PREEMPTIONS", 9),
            number("OVERHEAD", 7),
            number("LEFT", 2),
            number("DECISION", 8),
        ]);
        if let Some(recorded) = &self.recorded {
            let row = [
                "recorded".into(),
                shown(recorded.average_jct_s, 0, " s"),
                shown(recorded.median_jct_s, 0, " s"),
                shown(recorded.p99_jct_s, 0, " s"),
                shown(recorded.makespan_s, 0, " s"),
                shown(self.earned(recorded.utility), 1, ""),
                format!("{:.0} %", recorded.utilisation * 100.0),
                recorded.rescales.to_string(),
                shown(None, 0, ""),
                shown(None, 0, ""),
                recorded.left.to_string(),
                shown(None, 0, ""),
            ];
            sheet.row(row.map(Into::into));
        }
        for (name, means) in &self.engines.0 {
            let row = [
                name.clone(),
                with(means.average_jct_s, means.intervals.average_jct_s, 0, " s"),
                shown(means.median_jct_s, 0, " s"),
                shown(means.p99_jct_s, 0, " s"),
                with(means.makespan_s, means.intervals.makespan_s, 0, " s"),
                with(self.earned(means.utility), means.intervals.utility, 1, ""),
                // The cloud is unlimited, so its fraction has no meaning.
                format!("{:.0} %", means.edge_utilisation * 100.0),
                format!("{:.1}", means.rescales),
                format!("{:.1}", means.preemptions),
                shown(means.overhead_share.map(|share| share * 100.0), 1, " %"),
                format!("{:.1}", means.left()),
                shown(means.decision_ms.as_ref().map(|time| time.p99), 2, " ms"),
            ];
            sheet.row(row.map(Into::into));
        }
        let mut text = sheet.on(paper);
        if !self.ratios.0.is_empty() {
            let paired = if self.over == Over::Seeds { "PAIRED BY SEED" } else { "PAIRED BY DRAW" };
            let mut sheet = Sheet::new([
                Column::key(paired),
                Column::key("AVERAGE JCT").right(),
                number("MAKESPAN", 1),
                number("UTILITY", 2),
            ]);
            for (name, ratios) in &self.ratios.0 {
                let times = |ratio, half| with(ratio, half, 2, " ×");
                let row = [
                    name.clone(),
                    times(ratios.average_jct, ratios.intervals.average_jct),
                    times(ratios.makespan, ratios.intervals.makespan),
                    times(ratios.utility, ratios.intervals.utility),
                ];
                sheet.row(row.map(Into::into));
            }
            text = format!("{text}\n\n{}", sheet.on(paper));
        }
        for note in self.notes() {
            text = format!("{text}\n\n{note}");
        }
        text
    }
}

/// The list of workloads.
pub(super) struct Workloads;

impl Serialize for Workloads {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Row {
            name: &'static str,
            summary: &'static str,
            source: &'static str,
        }
        serializer.collect_seq(WORKLOADS.iter().map(|entry| Row {
            name: entry.name,
            summary: entry.summary,
            source: entry.source,
        }))
    }
}

impl Show for Workloads {
    fn text(&self, paper: &Paper) -> String {
        let mut sheet = Sheet::new([Column::key("WORKLOAD"), Column::prose("WHAT"), Column::spare("SOURCE", 1)]);
        for entry in WORKLOADS {
            sheet.row([entry.name, entry.summary, entry.source].map(Into::into));
        }
        sheet.on(paper)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_students() {
        // Three values with deviation 1 around 2: 4.303/√3.
        let of_mean = |values| interval(Over::Seeds, values);
        assert!((of_mean(vec![1.0, 2.0, 3.0]).unwrap() - 4.303 / 3.0_f64.sqrt()).abs() < 1e-9);
        assert_eq!(of_mean(vec![5.0]), None);
        // Another value: √(1 + 1/3) of the deviation.
        let more = interval(Over::Draws, vec![1.0, 2.0, 3.0]).unwrap();
        assert!((more - 4.303 * (4.0_f64 / 3.0).sqrt()).abs() < 1e-9);
        // 2.009 for 50 degrees of freedom.
        let many: Vec<f64> = (0..51).map(f64::from).collect();
        let deviation = (many.iter().map(|value| (value - 25.0) * (value - 25.0)).sum::<f64>() / 50.0).sqrt();
        assert!((of_mean(many).unwrap() / (2.009 * deviation / 51.0_f64.sqrt()) - 1.0).abs() < 1e-3);
    }
}

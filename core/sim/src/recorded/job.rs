//! Observations of one recorded job.

use std::{collections::BTreeMap, sync::Arc};

use trainmaster_core::{
    event::{End, Report},
    fit::{SpeedHistory, SpeedSample},
    ids::Incarnation,
    job::Job,
    time::{Span, Time},
};

/// A job, from its arrival or the start of the recording.
pub(super) struct Watched {
    pub(super) first: Arc<Job>,
    /// Its state at its end, or the last known one.
    pub(super) last: Arc<Job>,
    pub(super) since: Time,
    pub(super) end: Option<(Time, End)>,
    pub(super) lost: bool,
    pub(super) reports: u32,
    pub(super) starts: Vec<Span>,
    pub(super) waited: Span,
    counted: Time,
    has_slots: bool,
    /// Speeds from reports alone, because a profile was measured elsewhere and at another time.
    pub(super) speeds: SpeedHistory,
    /// Step times by shape.
    paces: BTreeMap<(u32, u32), Pace>,
    /// Epochs covered by reports, and the number of reports.
    covered: (f64, u32),
    /// Total time between reports of one incarnation, and their number.
    gaps: (Span, u32),
    reported: Option<(Incarnation, Time)>,
}

/// Count, mean and sum of squared deviations (Welford) of the logarithm of the step time.
#[derive(Clone, Copy, Default)]
struct Pace {
    count: f64,
    mean: f64,
    squares: f64,
}

/// Maximum deviation of an epoch's time. A larger deviation is a change of the job, not noise.
const MOST_NOISE: f64 = 0.3;

impl Watched {
    pub(super) fn new(job: Arc<Job>, from: Time) -> Self {
        let since = job.arrival.max(from);
        Self {
            since,
            counted: since,
            has_slots: job.seen.allocation.is_some(),
            first: job.clone(),
            last: job,
            end: None,
            lost: false,
            reports: 0,
            starts: Vec::new(),
            waited: Span::ZERO,
            speeds: SpeedHistory::default(),
            paces: BTreeMap::new(),
            covered: (0.0, 0),
            gaps: (Span::ZERO, 0),
            reported: None,
        }
    }

    /// Adds an accepted report. Slots of its incarnation are observed since `seen`.
    pub(super) fn reported(&mut self, at: Time, incarnation: Incarnation, report: &Report, seen: Option<Time>) {
        self.reports += 1;
        if let Some(restart) = report.restart {
            let began = Time(at.0.saturating_sub(report.duration.0));
            self.starts.push(seen.map_or(restart, |seen| (began - seen).max(restart)));
        }
        if let Some((before, last)) = self.reported.replace((incarnation, at))
            && before == incarnation
            && at > last
        {
            self.gaps = (Span((self.gaps.0.0).saturating_add((at - last).0)), self.gaps.1 + 1);
        }
        if report.steps == 0 || report.duration <= Span::ZERO {
            return;
        }
        let steps = f64::from(report.steps);
        let speed = steps / report.duration.as_seconds();
        let is_smooth = !self.last.has_speed_table();
        self.speeds.report(&SpeedSample::new(report.servers, report.workers, speed), is_smooth);
        self.paces.entry((report.servers, report.workers)).or_default().add(report.duration.as_seconds() / steps);
        if report.steps_per_epoch > 0 {
            self.covered = (self.covered.0 + steps / report.steps_per_epoch as f64, self.covered.1 + 1);
        }
    }

    pub(super) fn observed(&mut self, at: Time, has_slots: bool) {
        self.count(at);
        self.has_slots = has_slots;
    }

    fn count(&mut self, at: Time) {
        if !self.has_slots {
            self.waited.0 += (at - self.counted).0.max(0);
        }
        self.counted = at;
    }

    pub(super) fn ended(&mut self, job: Arc<Job>, end: Option<(Time, End)>) {
        self.count(end.map_or(self.counted, |(at, _)| at));
        (self.last, self.end, self.lost) = (job, end, end.is_none());
    }

    pub(super) fn left(&mut self, job: Arc<Job>, now: Time) {
        self.count(now);
        self.last = job;
    }

    /// Number of starts after the first.
    pub(super) fn restarts(&self) -> u32 {
        let before = self.first.issued.last_incarnation.0.max(1);
        self.last.issued.last_incarnation.0.saturating_sub(before)
    }

    /// Relative deviation of the time of an epoch, among epochs of one shape.
    pub(super) fn noise(&self) -> f64 {
        let spare: f64 = self.paces.values().map(|pace| pace.count - 1.0).sum();
        if spare < 1.0 {
            return 0.0;
        }
        let of_report = (self.paces.values().map(|pace| pace.squares).sum::<f64>() / spare).sqrt();
        // If an epoch has several reports, its time is their mean. If a report has several epochs, the simulator draws
        // once for it.
        let epochs = if self.covered.1 > 0 { self.covered.0 / f64::from(self.covered.1) } else { 1.0 };
        (of_report * epochs.min(1.0).sqrt()).min(MOST_NOISE)
    }

    pub(super) fn mean_gap(&self) -> Option<Span> {
        (self.gaps.1 > 0).then(|| Span(self.gaps.0.0 / i64::from(self.gaps.1)))
    }
}

impl Pace {
    fn add(&mut self, seconds: f64) {
        let log = libm::log(seconds);
        self.count += 1.0;
        let off = log - self.mean;
        self.mean += off / self.count;
        self.squares += off * (log - self.mean);
    }
}

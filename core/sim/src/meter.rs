//! Measurements of a simulation, and their report.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    program::Program,
    program::Stage,
    truth::Speed,
    workload::{SimJob, Workload},
};
use trainmaster_core::{
    ids::ServerId,
    resources::{Amounts, CPU, GPU},
    scheduler::Scheduler,
    shape::Role,
    time::{Span, Time},
};

/// Results of one job. Times in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobReport {
    /// Name of the job.
    pub name: String,
    /// Time of its submission by the owner, since the workload's origin.
    pub arrival_s: f64,
    /// Time from arrival to completion. None if the job wasn't completed.
    pub jct_s: Option<f64>,
    /// How the job ended: `completed`, `stopped` (by the scheduler, after its start), `refused` (it can never fit, or
    /// the engine can't run such jobs), `rejected` (not admitted, or stopped before its start), `unfinished`.
    pub fate: Fate,
    /// Why it wasn't completed, or not trained to its last epoch.
    pub reason: Option<String>,
    /// The scheduler ended it because further training had no gain. It counts as completed.
    pub stopped_early: bool,
    /// Time without slots since arrival.
    pub waited_s: f64,
    /// Time with slots without training: starts and checkpoints.
    pub overhead_s: f64,
    /// Number of starts after the first.
    pub restarts: u32,
    /// Number of shape changes of the running job, with or without a restart.
    pub rescales: u32,
    /// Number of decisions that made the whole job stop and wait. A restart in another shape or place doesn't count.
    /// While a job runs, each chunk that a decision interrupts counts.
    pub preemptions: u32,
    /// Number of server failures that hit the job.
    pub crashes: u32,
    /// Utility of its completion.
    pub utility: f64,
    /// Time from its utility's target to its completion, negative before the target. None without either.
    pub late_s: Option<f64>,
    /// γ2: how fast its utility decreases at the target. None without a utility.
    pub decay: Option<f64>,
    /// Accuracy at the end of the job or of the simulation.
    pub accuracy: Option<f64>,
    /// Accuracy at its deadline.
    pub accuracy_at_deadline: Option<f64>,
    /// Whether it was completed by its deadline. None without a deadline.
    pub deadline_met: Option<bool>,
    /// Traffic between servers in gigabytes.
    pub traffic_gb: f64,
    /// Uploaded bytes of data chunks; for a model in partitions, all traffic between servers.
    pub bytes_moved: u64,
    /// Time with an upload of data chunks, plus the mean time of its workers in exchanging gradients, if the workload
    /// has it.
    pub communication_s: f64,
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // see JobReport::fate
pub enum Fate {
    Completed,
    Stopped,
    Refused,
    Rejected,
    Unfinished,
}

/// Results of one run. Times in seconds, over completed jobs. `None` if no job completed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// All jobs, in the workload's order.
    pub jobs: Vec<JobReport>,
    /// Mean of end − arrival.
    pub average_jct_s: Option<f64>,
    /// Median of end − arrival.
    pub median_jct_s: Option<f64>,
    /// 99th percentile of end − arrival.
    pub p99_jct_s: Option<f64>,
    /// Time from the first arrival of any job to the last end.
    pub makespan_s: Option<f64>,
    /// Total utility.
    pub utility: f64,
    /// Number of jobs that were neither refused nor rejected.
    pub admitted: u32,
    /// Number of jobs that weren't admitted.
    pub rejected: u32,
    /// Number of jobs that can never fit, or that the engine can't run.
    pub refused: u32,
    /// Number of jobs that the scheduler stopped after their start.
    pub stopped: u32,
    /// Number of unfinished jobs.
    pub unfinished: u32,
    /// Fraction of the jobs with a deadline that met it.
    pub deadline_ratio: Option<f64>,
    /// The same for urgent jobs: urgency above 8, as in MLFS.
    pub urgent_deadline_ratio: Option<f64>,
    /// Fraction of the jobs with a required accuracy that had it by their deadline.
    pub accuracy_ratio: Option<f64>,
    /// Mean accuracy at the deadline, over all jobs with a deadline: 0 for those that hadn't reported any.
    pub accuracy_at_deadline: Option<f64>,
    /// Mean accuracy at the end.
    pub mean_accuracy: Option<f64>,
    /// Number of jobs that were ended because further training had no gain.
    pub stopped_early: u32,
    /// Number of times that a server's measured load rose above nine tenths of its cores, or of a shared device.
    pub overloads: u32,
    /// Mean time without slots.
    pub waiting_s: Option<f64>,
    /// Total of restarts.
    pub restarts: u32,
    /// Total of shape changes of running jobs.
    pub rescales: u32,
    /// Total of decisions that made a job with slots, or one of its chunks, stop and wait.
    pub preemptions: u32,
    /// Mean fraction of a job's time in starts and checkpoints.
    pub overhead_share: Option<f64>,
    /// Total traffic between servers in gigabytes.
    pub traffic_gb: f64,
    /// Total of the jobs' [`bytes_moved`](JobReport::bytes_moved).
    pub bytes_moved: u64,
    /// Mean time of a job in uploads and in exchanging gradients.
    pub communication_s: Option<f64>,
    /// Mean used fraction of the GPUs (of the cores, if there are no GPUs) while there were jobs.
    pub utilisation: f64,
    /// The same for servers outside the cloud, because the cloud is unlimited.
    pub edge_utilisation: f64,
    /// The same for each of the first 60 days.
    pub edge_by_day: Vec<f64>,
    /// The same for cores.
    pub cpu_utilisation: f64,
    /// Number of decisions.
    pub decisions: u32,
    /// Number of failed decisions. The last plan stayed in force.
    pub failed: u32,
    /// The last failure.
    pub failure: Option<String>,
    /// Number of times that slots exceeded a server's capacity. More than zero means an error in the scheduler.
    pub overfull: u32,
    /// Digest over all decisions and ends. Equal runs have equal digests.
    pub digest: String,
    /// Data for plots.
    #[serde(skip)]
    pub trace: Option<Trace>,
}

/// Data for plots.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// (seconds, used fraction of the GPUs, of the cores, both without the cloud, running jobs, waiting jobs).
    pub load: Vec<(f64, f64, f64, u32, u32)>,
    /// Slots by server and time.
    pub places: Vec<Place>,
    /// Values that the engine used, such as its prices: a name, and (seconds, value) after each decision that changed
    /// it.
    pub readings: BTreeMap<String, Vec<(f64, f64)>>,
}

/// Slots of a job on one server, for a period.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// Index of the job in the workload.
    pub job: usize,
    /// Index of the server in the workload.
    pub server: usize,
    /// Start in seconds.
    pub from: f64,
    /// End in seconds.
    pub to: f64,
    /// Number of workers.
    pub workers: u32,
    /// Number of parameter servers.
    pub servers: u32,
}

#[derive(Clone, Debug, Default)]
struct Record {
    submitted: bool,
    fate: Option<Fate>,
    end: Option<Time>,
    reason: Option<String>,
    /// End of the counted time.
    counted: Time,
    has_slots: bool,
    trains: bool,
    waited: Span,
    held: Span,
    trained: Span,
    /// Megabits sent so far, and the current rate per second.
    traffic: (f64, f64),
    bytes_moved: u64,
    communication: f64,
    starts: u32,
    rescales: u32,
    preemptions: u32,
    crashes: u32,
    early: bool,
    accuracy: Option<f64>,
    at_deadline: Option<f64>,
    since: Time,
}

impl Record {
    /// Time of its completion.
    fn completed(&self) -> Option<Time> {
        self.end.filter(|_| self.fate == Some(Fate::Completed))
    }

    fn count(&mut self, now: Time) {
        let span = now - self.counted;
        let add = |sum: &mut Span| sum.0 += span.0;
        add(if self.has_slots { &mut self.held } else { &mut self.waited });
        if self.trains {
            add(&mut self.trained);
        }
        self.traffic.0 += self.traffic.1 * span.as_seconds();
        self.counted = now;
    }
}

pub(super) struct Meter<'a> {
    workload: &'a Workload,
    records: Vec<Record>,
    over: usize,
    active: u32,
    running: u32,
    /// Used amounts on all servers, and on those in the cloud.
    used: Amounts,
    used_in_cloud: Amounts,
    all: Load,
    edge: Load,
    edge_by_day: Vec<Load>,
    decisions: u32,
    failed: u32,
    failure: Option<String>,
    overfull: u32,
    overloads: u32,
    trace: Option<Trace>,
}

/// Unit-seconds of GPUs and cores, used and available, while there were jobs.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    taken: [f64; 2],
    there: [f64; 2],
}

impl Load {
    fn add(&mut self, used: [f64; 2], capacity: [f64; 2], seconds: f64) {
        for kind in 0..2 {
            self.taken[kind] += used[kind] * seconds;
            self.there[kind] += capacity[kind] * seconds;
        }
    }

    fn cores(&self) -> f64 {
        share(self.taken[1], self.there[1])
    }

    /// Used fraction of the GPUs, or of the cores if there are no GPUs.
    fn share(&self) -> f64 {
        if self.there[0] > 0.0 { share(self.taken[0], self.there[0]) } else { self.cores() }
    }
}

/// The parts of a period that lie in each of the first days.
fn days(from: Time, to: Time) -> impl Iterator<Item = (usize, Span)> {
    const DAY: i64 = 24 * 3_600_000;
    const DAYS: i64 = 60;
    let first = from.0.div_euclid(DAY).max(0);
    (first..DAYS)
        .take_while(move |day| day * DAY < to.0)
        .map(move |day| (day as usize, Span(to.0.min((day + 1) * DAY) - from.0.max(day * DAY))))
}

fn share(taken: f64, there: f64) -> f64 {
    if there > 0.0 { taken / there } else { 0.0 }
}

impl<'a> Meter<'a> {
    pub(super) fn new(workload: &'a Workload, trace: bool) -> Self {
        let record = |job: &SimJob| Record { counted: job.arrival, ..Record::default() };
        Self {
            workload,
            records: workload.jobs.iter().map(record).collect(),
            over: 0,
            active: 0,
            running: 0,
            used: Amounts::default(),
            used_in_cloud: Amounts::default(),
            all: Load::default(),
            edge: Load::default(),
            edge_by_day: Vec::new(),
            decisions: 0,
            failed: 0,
            failure: None,
            overfull: 0,
            overloads: 0,
            trace: trace.then(Trace::default),
        }
    }

    /// Adds a period with a total capacity of `capacity`, of which `cloud` is in the cloud.
    pub(super) fn pass(&mut self, from: Time, to: Time, capacity: &Amounts, cloud: &Amounts) {
        let seconds = (to - from).as_seconds();
        if seconds <= 0.0 || self.active == 0 {
            return;
        }
        let of = |all: &Amounts, less: &Amounts| [GPU, CPU].map(|kind| (all[kind] - less[kind]) as f64);
        let none = Amounts::default();
        self.all.add(of(&self.used, &none), of(capacity, &none), seconds);
        let (used, there) = (of(&self.used, &self.used_in_cloud), of(capacity, cloud));
        self.edge.add(used, there, seconds);
        for (day, part) in days(from, to) {
            self.edge_by_day.resize_with(self.edge_by_day.len().max(day + 1), Load::default);
            self.edge_by_day[day].add(used, there, part.as_seconds());
        }
        if let Some(trace) = &mut self.trace {
            let waiting = self.active - self.running;
            let (gpus, cores) = (share(used[0], there[0]), share(used[1], there[1]));
            trace.load.push((from.0 as f64 / 1000.0, gpus, cores, self.running, waiting));
        }
    }

    /// Number of jobs that have ended.
    pub(super) fn over(&self) -> usize {
        self.over
    }

    pub(super) fn submitted(&mut self, number: usize) {
        self.records[number].submitted = true;
        self.active += 1;
    }

    pub(super) fn refused(&mut self, number: usize, reason: String) {
        let record = &mut self.records[number];
        (record.fate, record.reason) = (Some(Fate::Refused), Some(reason));
        self.over += 1;
    }

    pub(super) fn started(&mut self, number: usize, now: Time) {
        let record = &mut self.records[number];
        record.count(now);
        record.starts += 1;
    }

    pub(super) fn preempted(&mut self, number: usize, times: u32) {
        self.records[number].preemptions += times;
    }

    pub(super) fn crashed(&mut self, number: usize) {
        self.records[number].crashes += 1;
    }

    /// Records a possible change of a job's activity.
    pub(super) fn trains(&mut self, program: &Program<'_>, now: Time) {
        let job = &self.workload.jobs[program.number];
        let record = &mut self.records[program.number];
        record.count(now);
        record.trains = program.stage == Stage::Training && program.is_busy();
        record.traffic.1 = program.traffic();
        record.bytes_moved = program.moved() << 20;
        record.communication = program.communication();
        record.accuracy = program.accuracy();
        if job.spec.deadline.is_none_or(|deadline| now <= job.arrival + deadline) {
            record.at_deadline = record.accuracy;
        }
    }

    pub(super) fn shaped(&mut self, program: &Program<'_>, now: Time) {
        let record = &mut self.records[program.number];
        record.count(now);
        record.has_slots = program.is_busy();
        self.running += u32::from(record.has_slots);
        record.since = now;
    }

    pub(super) fn unshaped(&mut self, program: &Program<'_>, now: Time) {
        let record = &mut self.records[program.number];
        record.count(now);
        self.running -= u32::from(record.has_slots);
        (record.has_slots, record.trains, record.traffic.1) = (false, false, 0.0);
        self.ran(program, now);
    }

    /// Records that the job ran in its current place until now.
    pub(super) fn ran(&mut self, program: &Program<'_>, now: Time) {
        let since = self.records[program.number].since;
        let (Some(trace), Some(slots)) = (&mut self.trace, &program.slots) else { return };
        let mut there: BTreeMap<ServerId, (u32, u32)> = BTreeMap::new();
        for slot in slots.slots().iter().filter(|slot| slots.is_busy(slot)) {
            let counts = there.entry(slot.server).or_default();
            match slot.role {
                Role::Worker => counts.0 += 1,
                Role::Server => counts.1 += 1,
            }
        }
        let seconds = |at: Time| at.0 as f64 / 1000.0;
        trace.places.extend(there.into_iter().map(|(server, (workers, servers))| Place {
            job: program.number,
            server: server.index(),
            from: seconds(since),
            to: seconds(now),
            workers,
            servers,
        }));
    }

    pub(super) fn takes(&mut self, amounts: &Amounts, cloud: bool, times: i64) {
        self.used.add_times(amounts, times);
        if cloud {
            self.used_in_cloud.add_times(amounts, times);
        }
    }

    pub(super) fn overfull(&mut self, over: bool) {
        self.overfull += u32::from(over);
    }

    pub(super) fn overloaded(&mut self, over: bool) {
        self.overloads += u32::from(over);
    }

    /// Records that a job completed, or was stopped for a reason.
    ///
    /// `early`: the scheduler stopped it because it had no further gain. It counts as completed.
    pub(super) fn ended(
        &mut self,
        program: &Program<'_>,
        now: Time,
        reason: Option<String>,
        early: bool,
        rescales: u32,
    ) {
        self.trains(program, now);
        let record = &mut self.records[program.number];
        record.early = early;
        record.fate = Some(match &reason {
            None => Fate::Completed,
            Some(_) if early => Fate::Completed,
            Some(_) if record.starts > 0 => Fate::Stopped,
            Some(_) => Fate::Rejected,
        });
        (record.end, record.reason) = (Some(now), reason);
        record.rescales = rescales;
        self.over += 1;
        self.active -= 1;
    }

    pub(super) fn decided(&mut self, now: Time, scheduler: &Scheduler, failed: Option<String>) {
        self.decisions += 1;
        if let Some(trace) = &mut self.trace {
            for (name, value) in scheduler.readings() {
                let line = trace.readings.entry(name).or_default();
                if line.last().is_none_or(|(_, last)| *last != value) {
                    line.push((now.0 as f64 / 1000.0, value));
                }
            }
        }
        if let Some(failure) = failed {
            self.failed += 1;
            self.failure = Some(failure);
        }
    }

    /// Records the remaining jobs at the end: (job, whether it was rejected, why it waits).
    pub(super) fn left(&mut self, left: Vec<(usize, bool, Option<String>)>) {
        for (number, rejected, reason) in left {
            let record = &mut self.records[number];
            record.fate = Some(if rejected { Fate::Rejected } else { Fate::Unfinished });
            record.reason = Some(reason.unwrap_or_else(|| "it still ran".into()));
        }
        for record in self.records.iter_mut().filter(|record| record.fate.is_none()) {
            record.fate = Some(Fate::Unfinished);
            record.reason = Some("it had not come to the scheduler yet".into());
        }
    }

    pub(super) fn report(mut self, now: Time, decisions: [u8; 32]) -> Report {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&decisions);
        for record in &mut self.records {
            if record.end.is_none() && record.submitted {
                record.count(now.max(record.counted));
            }
            hasher.update(&record.end.map_or(-1, |end| end.0).to_le_bytes());
            hasher.update(&record.trained.0.to_le_bytes());
        }
        let digest = hasher.finalize().to_hex().to_string();
        let jobs: Vec<JobReport> =
            self.workload.jobs.iter().zip(&self.records).map(|(job, record)| of_job(job, record)).collect();
        let mut jcts: Vec<f64> = jobs.iter().filter_map(|job| job.jct_s).collect();
        jcts.sort_by(f64::total_cmp);
        let first = self.workload.jobs.iter().map(|job| job.arrival).min().unwrap_or_default();
        let last = self.records.iter().filter_map(Record::completed).max();
        let count = |fate| jobs.iter().filter(|job| job.fate == fate).count() as u32;
        let (refused, rejected) = (count(Fate::Refused), count(Fate::Rejected));
        let required = self.workload.jobs.iter().zip(&jobs).filter_map(|(job, report)| {
            let required = job.spec.accuracy?;
            Some(f64::from(u8::from(report.accuracy_at_deadline.is_some_and(|accuracy| accuracy >= required))))
        });
        // A job that didn't start by its deadline has learnt nothing.
        let learns_until = |job: &SimJob| job.spec.deadline.is_some() && job.truth.accuracy.is_some();
        let at_deadline = self.workload.jobs.iter().zip(&jobs).filter(|(job, _)| learns_until(job));
        let at_deadline = at_deadline.map(|(_, report)| report.accuracy_at_deadline.unwrap_or(0.0));
        let in_time = |job: &JobReport| Some(f64::from(u8::from(job.deadline_met?)));
        let urgent = self.workload.jobs.iter().zip(&jobs).filter(|(job, _)| job.spec.urgency > Some(8));
        Report {
            average_jct_s: mean(jcts.iter().copied()),
            median_jct_s: quantile(&jcts, 0.5),
            p99_jct_s: quantile(&jcts, 0.99),
            makespan_s: last.map(|last| (last - first).as_seconds()),
            utility: jobs.iter().map(|job| job.utility).sum(),
            admitted: jobs.len() as u32 - refused - rejected,
            rejected,
            refused,
            stopped: count(Fate::Stopped),
            unfinished: count(Fate::Unfinished),
            deadline_ratio: mean(jobs.iter().filter_map(in_time)),
            urgent_deadline_ratio: mean(urgent.filter_map(|(_, report)| in_time(report))),
            accuracy_ratio: mean(required),
            accuracy_at_deadline: mean(at_deadline),
            mean_accuracy: mean(jobs.iter().filter_map(|job| job.accuracy)),
            stopped_early: jobs.iter().filter(|job| job.stopped_early).count() as u32,
            overloads: self.overloads,
            waiting_s: mean(jobs.iter().filter(|job| job.jct_s.is_some()).map(|job| job.waited_s)),
            restarts: jobs.iter().map(|job| job.restarts).sum(),
            rescales: jobs.iter().map(|job| job.rescales).sum(),
            preemptions: jobs.iter().map(|job| job.preemptions).sum(),
            overhead_share: mean(jobs.iter().filter_map(|job| Some(job.overhead_s / job.jct_s?.max(1e-3)))),
            traffic_gb: jobs.iter().map(|job| job.traffic_gb).sum(),
            bytes_moved: jobs.iter().map(|job| job.bytes_moved).sum(),
            communication_s: mean(jobs.iter().map(|job| job.communication_s)),
            utilisation: self.all.share(),
            edge_utilisation: self.edge.share(),
            edge_by_day: self.edge_by_day.iter().map(Load::share).collect(),
            cpu_utilisation: self.all.cores(),
            decisions: self.decisions,
            failed: self.failed,
            failure: self.failure,
            overfull: self.overfull,
            digest,
            trace: self.trace,
            jobs,
        }
    }
}

fn of_job(job: &SimJob, record: &Record) -> JobReport {
    let jct = record.completed().map(|end| end - job.arrival);
    let deadline = job.spec.deadline;
    let utility = job.spec.utility.as_ref();
    JobReport {
        name: job.spec.name.clone(),
        arrival_s: job.arrival.0 as f64 / 1000.0,
        jct_s: jct.map(Span::as_seconds),
        fate: record.fate.unwrap_or(Fate::Unfinished),
        reason: record.reason.clone(),
        stopped_early: record.early,
        waited_s: record.waited.as_seconds(),
        overhead_s: (record.held.0 - record.trained.0).max(0) as f64 / 1000.0,
        restarts: record.starts.saturating_sub(1),
        rescales: record.rescales,
        preemptions: record.preemptions,
        crashes: record.crashes,
        utility: jct.and_then(|jct| Some(utility?.at(jct))).unwrap_or(0.0),
        late_s: jct.zip(utility).map(|(jct, utility)| jct.as_seconds() - utility.target.as_seconds()),
        decay: utility.map(|utility| utility.decay),
        accuracy: record.accuracy,
        accuracy_at_deadline: record.at_deadline,
        deadline_met: deadline.map(|deadline| jct.is_some_and(|jct| jct <= deadline)),
        traffic_gb: record.traffic.0 / 8000.0,
        bytes_moved: match job.truth.speed {
            Speed::Partitioned { .. } => record.bytes_moved + (record.traffic.0 * 125_000.0) as u64,
            _ => record.bytes_moved,
        },
        communication_s: record.communication,
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

/// The smallest value that is at least as large as the fraction `share` of all values.
fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let rank = (share * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted.get(rank - 1).or(sorted.last()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_counted_in_its_days() {
        let hours = |from: i64, to: i64| -> Vec<(usize, i64)> {
            let while_ = days(Time(from * 3_600_000), Time(to * 3_600_000));
            while_.map(|(day, part)| (day, part.0 / 3_600_000)).collect()
        };
        assert_eq!(hours(20, 50), [(0, 4), (1, 24), (2, 2)]);
        assert_eq!(hours(24, 48), [(1, 24)]);
        assert_eq!(hours(59 * 24 + 1, 90 * 24), [(59, 23)]);
        assert_eq!(hours(60 * 24, 61 * 24), []);
    }

    #[test]
    fn quantiles_are_values_that_occur() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        let of = |share| quantile(&values, share).unwrap();
        assert_eq!([of(0.5), of(0.99), of(1.0)], [100.0, 198.0, 200.0]);
        assert_eq!((quantile(&[], 0.5), quantile(&[7.0], 0.99)), (None, Some(7.0)));
    }
}

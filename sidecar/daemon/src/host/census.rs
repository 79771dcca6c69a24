//! Who has GPUs and who waits: metrics by type of GPU, tenant, queue, reason and job, sampled from the state.

use std::{cmp::Reverse, collections::BTreeMap};

use prometheus::{GaugeVec, IntGaugeVec};
use trainmaster_core::{
    Job, State, Time, Verdict,
    resources::{Amounts, GPU},
};
use trainmaster_net::Adder;
use trainmaster_proto::{job_state, mode_name};

/// Maximum number of tenants and of queues with values of their own. The rest is summed up as [`OTHERS`].
const MOST_NAMES: usize = 50;

/// Maximum number of jobs in each metric of jobs.
const MOST_JOBS: usize = 20;

/// The label of the sum of all others. No tenant or queue can have this name.
const OTHERS: &str = "(others)";

/// The type of GPUs that have none.
const UNTYPED: &str = "untyped";

/// The labels whose values are names that users choose.
pub(crate) const NAMES: [&str; 3] = ["tenant", "queue", "job"];

/// The metrics. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Census {
    engine: IntGaugeVec,
    mode: IntGaugeVec,
    gpus: GaugeVec,
    used_gpus: GaugeVec,
    waiting: IntGaugeVec,
    tenants: Group,
    queues: Group,
    job_gpus: GaugeVec,
    job_wait: GaugeVec,
    job_remaining: GaugeVec,
}

/// Metrics of each tenant or queue.
#[derive(Clone, Debug)]
struct Group {
    gpus: GaugeVec,
    running: IntGaugeVec,
    waiting: IntGaugeVec,
    longest_wait: GaugeVec,
}

/// The jobs of a tenant or queue.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    /// Thousandths.
    gpus: i64,
    running: i64,
    waiting: i64,
    /// Seconds.
    longest_wait: f64,
}

impl Sum {
    fn add(&mut self, other: Self) {
        self.gpus += other.gpus;
        self.running += other.running;
        self.waiting += other.waiting;
        self.longest_wait = self.longest_wait.max(other.longest_wait);
    }
}

impl Group {
    fn register(add: Adder<'_>, of: &str) -> Result<Self, prometheus::Error> {
        Ok(Self {
            gpus: add.real_gauges(
                &format!("{of}_gpus"),
                &format!("GPUs that the jobs of a {of} have; the {MOST_NAMES} {of}s with the most"),
                of,
            )?,
            running: add.gauges(&format!("{of}_running_jobs"), &format!("Running jobs of a {of}"), of)?,
            waiting: add.gauges(&format!("{of}_waiting_jobs"), &format!("Waiting jobs of a {of}"), of)?,
            longest_wait: add.real_gauges(
                &format!("{of}_longest_wait_seconds"),
                &format!("The longest present wait of a {of}'s jobs, without paused ones"),
                of,
            )?,
        })
    }

    fn set(&self, sums: BTreeMap<&str, Sum>) {
        self.gpus.reset();
        self.running.reset();
        self.waiting.reset();
        self.longest_wait.reset();
        let mut sums: Vec<(&str, Sum)> = sums.into_iter().collect();
        sums.sort_by_key(|(name, sum)| (Reverse((sum.gpus, sum.waiting, sum.running)), *name));
        let others = sums.split_off(sums.len().min(MOST_NAMES));
        if !others.is_empty() {
            let mut all = Sum::default();
            others.iter().for_each(|(_, sum)| all.add(*sum));
            sums.push((OTHERS, all));
        }
        for (name, sum) in sums {
            self.gpus.with_label_values(&[name]).set(sum.gpus as f64 / 1000.0);
            self.running.with_label_values(&[name]).set(sum.running);
            self.waiting.with_label_values(&[name]).set(sum.waiting);
            self.longest_wait.with_label_values(&[name]).set(sum.longest_wait);
        }
    }
}

impl Census {
    pub(super) fn register(add: Adder<'_>) -> Result<Self, prometheus::Error> {
        let of_jobs = |what: &str, order: &str| format!("{what}; the {MOST_JOBS} jobs with the {order}");
        Ok(Self {
            engine: add.gauges("engine_info", "1; the label is the engine that decides", "engine")?,
            mode: add.gauges("mode_info", "1; the label is the mode", "mode")?,
            gpus: add.real_gauges("gpus", "GPUs of the servers that are there, by type", "type")?,
            used_gpus: add.real_gauges(
                "used_gpus",
                "GPUs that are planned for jobs or that jobs still have, by type",
                "type",
            )?,
            waiting: add.gauges("waiting_jobs", "Waiting and rejected jobs, by reason. `held`: paused", "reason")?,
            tenants: Group::register(add, "tenant")?,
            queues: Group::register(add, "queue")?,
            job_gpus: add.real_gauges("job_gpus", &of_jobs("GPUs of a job", "most"), "job")?,
            job_wait: add.real_gauges("job_wait_seconds", &of_jobs("Present wait of a job", "longest"), "job")?,
            job_remaining: add.real_gauges(
                "job_remaining_seconds",
                &of_jobs("Predicted remaining time of a running job", "longest"),
                "job",
            )?,
        })
    }

    /// Samples the state. O(servers · types of GPU + jobs · log jobs).
    pub(super) fn sample(&self, state: &State, engine: &str, now: Time) {
        self.engine.reset();
        self.engine.with_label_values(&[engine]).set(1);
        self.mode.reset();
        self.mode.with_label_values(&[mode_name(state.mode)]).set(1);
        self.sample_servers(state);
        self.sample_jobs(state, now);
    }

    fn sample_servers(&self, state: &State) {
        let all = &state.resources;
        let ids = (0..all.count()).map(|at| trainmaster_core::ResourceId(at as u16));
        let types: Vec<_> = ids.filter_map(|id| Some((id, all.name(id).strip_prefix("gpu:")?))).collect();
        let mut sums: BTreeMap<&str, (i64, i64)> = BTreeMap::new();
        for server in state.present_servers().filter(|server| server.capacity[GPU] > 0) {
            let (there, used): (&Amounts, &Amounts) = (&server.capacity, &server.charged.amounts);
            let mut mine = types.iter().filter(|(id, _)| there[*id] > 0);
            match (mine.next(), mine.next()) {
                (Some((first, name)), Some((second, other))) => {
                    for (id, name) in
                        [(first, name), (second, other)].into_iter().chain(mine.map(|(id, name)| (id, name)))
                    {
                        let sum = sums.entry(name).or_default();
                        *sum = (sum.0 + there[*id], sum.1 + used[*id]);
                    }
                }
                (one, _) => {
                    let sum = sums.entry(one.map_or(UNTYPED, |(_, name)| *name)).or_default();
                    *sum = (sum.0 + there[GPU], sum.1 + used[GPU]);
                }
            }
        }
        self.gpus.reset();
        self.used_gpus.reset();
        for (name, (there, used)) in sums {
            self.gpus.with_label_values(&[name]).set(there as f64 / 1000.0);
            self.used_gpus.with_label_values(&[name]).set(used as f64 / 1000.0);
        }
    }

    fn sample_jobs(&self, state: &State, now: Time) {
        let (mut tenants, mut queues) = (BTreeMap::<&str, Sum>::new(), BTreeMap::<&str, Sum>::new());
        let mut waiting = BTreeMap::<String, i64>::new();
        let (mut most_gpus, mut longest_waits, mut longest) = (Vec::new(), Vec::new(), Vec::new());
        for job in state.jobs.values() {
            let name = job.spec.name.as_str();
            let verdict = state.effective(job);
            let sum = measure(state, job, &verdict, now);
            tenants.entry(&job.spec.tenant).or_default().add(sum);
            queues.entry(&job.spec.queue).or_default().add(sum);
            match &verdict {
                Verdict::Wait(reason) | Verdict::Reject(reason) => {
                    *waiting.entry(reason.kind().to_string()).or_default() += 1;
                }
                Verdict::Run(allocation) => {
                    let left = job.remaining_time(allocation.shape()).map(|left| left.as_seconds());
                    longest.extend(left.map(|left| (name, left)));
                }
                _ => {}
            }
            if sum.gpus > 0 {
                most_gpus.push((name, sum.gpus as f64 / 1000.0));
            }
            if sum.longest_wait > 0.0 {
                longest_waits.push((name, sum.longest_wait));
            }
        }
        self.tenants.set(tenants);
        self.queues.set(queues);
        self.waiting.reset();
        waiting.iter().for_each(|(reason, count)| self.waiting.with_label_values(&[reason.as_str()]).set(*count));
        set_highest(&self.job_gpus, most_gpus);
        set_highest(&self.job_wait, longest_waits);
        set_highest(&self.job_remaining, longest);
    }
}

/// A job's part of its tenant's and its queue's sums.
fn measure(state: &State, job: &Job, verdict: &Verdict, now: Time) -> Sum {
    let given = match verdict {
        Verdict::Run(allocation) => Some(allocation),
        Verdict::Release(_) => job.seen.allocation.as_ref(),
        _ => None,
    };
    let name = job_state(state, job);
    let waits = matches!(verdict, Verdict::Wait(_)) && !job.held;
    Sum {
        gpus: given.map_or(0, |given| job.total(given.shape())[GPU]),
        running: i64::from(name == "running"),
        waiting: i64::from(name == "waiting"),
        longest_wait: job.waits_since().filter(|_| waits).map_or(0.0, |since| (now - since).as_seconds().max(0.0)),
    }
}

/// Sets the gauges of the jobs with the highest values.
fn set_highest(gauges: &GaugeVec, mut values: Vec<(&str, f64)>) {
    values.sort_by(|(one, a), (other, b)| b.total_cmp(a).then(one.cmp(other)));
    gauges.reset();
    values.iter().take(MOST_JOBS).for_each(|(name, value)| gauges.with_label_values(&[*name]).set(*value));
}

//! Who has GPUs and who waits: metrics by type of GPU, tenant, queue, reason and job, sampled from the state.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use prometheus::{Gauge, GaugeVec, IntGaugeVec, Registry};
use trainmaster_core::{
    Allocation, Job, ResourceId, State, Time, Verdict,
    reason::ReasonKind,
    resources::{Amounts, GPU},
};
use trainmaster_net::Adder;
use trainmaster_proto::{CRASHING, JOB_STATES, mode_name};

/// Maximum number of tenants, and of queues, that are chosen for their GPUs. As many more are chosen for their waits.
const MOST_NAMES: usize = 25;

/// Maximum number of jobs in each metric of jobs.
const MOST_JOBS: usize = 20;

/// The value for the sum of the tenants or queues that aren't chosen. None of them can have this name.
const OTHERS: &str = "(others)";

/// The value of `type` for GPUs without a type.
const UNTYPED: &str = "untyped";

/// The value of `reason` for jobs that have slots, but whose manager hasn't started them.
const STARTING: &str = "starting";

/// The labels whose values are names that users choose. Prometheus has a label `job` of its own.
const NAMES: [&str; 3] = ["tenant", "queue", "name"];

/// Whether a metric has such a label.
pub fn has_names(metric: &prometheus::proto::Metric) -> bool {
    metric.get_label().iter().any(|label| NAMES.contains(&label.name()))
}

/// Metrics of the scheduler's state. Clones share them.
#[derive(Clone, Debug)]
pub struct Census {
    engine: IntGaugeVec,
    mode: IntGaugeVec,
    jobs: IntGaugeVec,
    gpus: GaugeVec,
    used_gpus: GaugeVec,
    free_gpus: GaugeVec,
    largest_free_gpus: GaugeVec,
    waiting: IntGaugeVec,
    longest_wait: Gauge,
    tenants: Group,
    queues: Group,
    job_gpus: GaugeVec,
    job_wait: GaugeVec,
    job_remaining: GaugeVec,
    job_restarts: GaugeVec,
    job_restart: GaugeVec,
}

/// Metrics of each tenant or queue.
#[derive(Clone, Debug)]
struct Group {
    gpus: GaugeVec,
    running: IntGaugeVec,
    waiting: IntGaugeVec,
    longest_wait: GaugeVec,
    restarts: IntGaugeVec,
    restart: GaugeVec,
}

/// The jobs of a tenant or queue, or one job.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    /// Thousandths.
    gpus: i64,
    running: i64,
    waiting: i64,
    /// Seconds.
    longest_wait: f64,
    /// Incarnations after the first.
    restarts: i64,
    /// Seconds that they cost.
    restart: f64,
}

impl Sum {
    fn add(&mut self, other: Self) {
        self.gpus += other.gpus;
        self.running += other.running;
        self.waiting += other.waiting;
        self.longest_wait = self.longest_wait.max(other.longest_wait);
        self.restarts += other.restarts;
        self.restart += other.restart;
    }
}

impl Group {
    fn register(add: Adder<'_>, of: &str) -> Result<Self, prometheus::Error> {
        let gpus = format!("GPUs that the jobs of a {of} were given or still have");
        let wait = format!("The longest present wait of a {of}'s jobs. Pauses don't count");
        let lost = format!("Time that the active jobs of a {of} lost to restarts");
        Ok(Self {
            gpus: add.real_gauges(&format!("{of}_gpus"), &gpus, of)?,
            running: add.gauges(&format!("{of}_running_jobs"), &format!("Jobs of a {of} with slots that exist"), of)?,
            waiting: add.gauges(
                &format!("{of}_waiting_jobs"),
                &format!("Jobs of a {of} that wait for slots or for their start, without paused and crashing ones"),
                of,
            )?,
            longest_wait: add.real_gauges(&format!("{of}_longest_wait_seconds"), &wait, of)?,
            restarts: add.gauges(
                &format!("{of}_restarts"),
                &format!("Incarnations after the first, of a {of}'s active jobs"),
                of,
            )?,
            restart: add.real_gauges(&format!("{of}_restart_seconds"), &lost, of)?,
        })
    }

    fn set(&self, sums: &BTreeMap<&str, Sum>) {
        self.gpus.reset();
        self.running.reset();
        self.waiting.reset();
        self.longest_wait.reset();
        self.restarts.reset();
        self.restart.reset();
        let mut others = None;
        let shown = shown(sums);
        for (name, sum) in sums {
            if shown.contains(name) {
                self.set_one(name, sum);
            } else {
                others.get_or_insert_with(Sum::default).add(*sum);
            }
        }
        if let Some(others) = others {
            self.set_one(OTHERS, &others);
        }
    }

    fn set_one(&self, name: &str, sum: &Sum) {
        self.gpus.with_label_values(&[name]).set(sum.gpus as f64 / 1000.0);
        self.running.with_label_values(&[name]).set(sum.running);
        self.waiting.with_label_values(&[name]).set(sum.waiting);
        self.longest_wait.with_label_values(&[name]).set(sum.longest_wait);
        self.restarts.with_label_values(&[name]).set(sum.restarts);
        self.restart.with_label_values(&[name]).set(sum.restart);
    }
}

/// The names with values of their own: those with the most GPUs and those with the longest waits.
fn shown<'a>(sums: &BTreeMap<&'a str, Sum>) -> BTreeSet<&'a str> {
    let mut order: Vec<(&str, &Sum)> = sums.iter().map(|(name, sum)| (*name, sum)).collect();
    order.sort_by_key(|(_, sum)| Reverse((sum.gpus, sum.running)));
    let mut shown: BTreeSet<&str> = order.iter().take(MOST_NAMES).map(|(name, _)| *name).collect();
    order.retain(|(name, _)| !shown.contains(name));
    order.sort_by(|(_, a), (_, b)| b.longest_wait.total_cmp(&a.longest_wait));
    shown.extend(order.iter().take(MOST_NAMES).map(|(name, _)| *name));
    shown
}

impl Census {
    /// Registers the metrics.
    ///
    /// # Errors
    /// The registry contains them already.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let add = Adder(registry);
        let of_jobs = |what: &str, order: &str| format!("{what}, of the {MOST_JOBS} jobs with the {order}");
        let used = "GPUs that jobs were given or still have, by type. Foreign use isn't counted";
        let waiting = "Waiting and rejected jobs, by reason. `held`: paused; `starting`: given slots, not yet started";
        Ok(Self {
            engine: add.gauges("engine_info", "1; the label is the engine that decides", "engine")?,
            mode: add.gauges("mode_info", "1; the label is the mode", "mode")?,
            jobs: add.gauges("jobs", "Active jobs, by state", "state")?,
            gpus: add.real_gauges("gpus", "GPUs of the servers that are there, by type", "type")?,
            used_gpus: add.real_gauges("used_gpus", used, "type")?,
            free_gpus: add.real_gauges(
                "free_gpus",
                "GPUs that the plan leaves free, by type. Of servers with several types, the split is approximate",
                "type",
            )?,
            largest_free_gpus: add.real_gauges(
                "largest_free_gpus",
                "The most GPUs that the plan leaves free in one server, rack, block or zone",
                "level",
            )?,
            waiting: add.gauges("waiting_jobs", waiting, "reason")?,
            longest_wait: add
                .real_gauge("longest_wait_seconds", "The longest present wait of all jobs. Pauses don't count")?,
            tenants: Group::register(add, "tenant")?,
            queues: Group::register(add, "queue")?,
            job_gpus: add.real_gauges("job_gpus", &of_jobs("GPUs", "most"), "name")?,
            job_wait: add.real_gauges("job_wait_seconds", &of_jobs("Present wait", "longest"), "name")?,
            job_remaining: add.real_gauges(
                "job_remaining_seconds",
                &of_jobs("Predicted remaining time", "longest"),
                "name",
            )?,
            job_restarts: add.real_gauges("job_restarts", &of_jobs("Incarnations after the first", "most"), "name")?,
            job_restart: add.real_gauges(
                "job_restart_seconds",
                &of_jobs("Time lost to restarts", "longest"),
                "name",
            )?,
        })
    }

    /// Samples the state, with the name of each job's state. O(servers · types of GPU + jobs · log tenants).
    pub fn sample(&self, state: &State, name_of: impl Fn(&Verdict, &Job) -> &'static str, engine: &str, now: Time) {
        self.engine.reset();
        self.engine.with_label_values(&[engine]).set(1);
        self.mode.reset();
        self.mode.with_label_values(&[mode_name(state.mode)]).set(1);
        self.sample_servers(state);
        let (_, largest) = state.free_gpus();
        // A level that no server has any more isn't reported.
        self.largest_free_gpus.reset();
        for (level, free) in largest {
            self.largest_free_gpus.with_label_values(&[level.name()]).set(free as f64 / 1000.0);
        }
        self.sample_jobs(state, name_of, now);
    }

    fn sample_servers(&self, state: &State) {
        let all = &state.resources;
        let ids = (0..all.count()).map(|at| ResourceId(at as u16));
        let types: Vec<_> = ids.filter_map(|id| Some((id, all.name(id).strip_prefix("gpu:")?))).collect();
        let mut sums: BTreeMap<&str, [i64; 3]> = BTreeMap::new();
        for server in state.present_servers().filter(|server| server.capacity[GPU] > 0) {
            let (there, used): (&Amounts, &Amounts) = (&server.capacity, &server.charged.amounts);
            // A draining server takes no slots.
            let free = |id: ResourceId| if server.draining { 0 } else { server.unplanned(id).max(0) };
            let mut add = |name, there, used, free| {
                let sum = sums.entry(name).or_default();
                *sum = [sum[0] + there, sum[1] + used, sum[2] + free];
            };
            let mine = types.iter().filter(|(id, _)| there[*id] > 0);
            if let Some((_, name)) = mine.clone().next().filter(|_| mine.clone().count() == 1) {
                // Its GPUs have this type even if jobs take any type.
                add(name, there[GPU], used[GPU], free(GPU));
                continue;
            }
            let (mut rest, mut used_rest, mut free_rest) = (there[GPU], used[GPU], free(GPU));
            for (id, name) in mine {
                // Jobs that take any type use it, too.
                let free = free(*id).min(free_rest);
                add(name, there[*id], used[*id], free);
                (rest, used_rest, free_rest) = (rest - there[*id], used_rest - used[*id], free_rest - free);
            }
            if rest > 0 || used_rest > 0 || free_rest > 0 {
                add(UNTYPED, rest, used_rest, free_rest);
            }
        }
        self.gpus.reset();
        self.used_gpus.reset();
        self.free_gpus.reset();
        for (name, [there, used, free]) in sums {
            self.gpus.with_label_values(&[name]).set(there as f64 / 1000.0);
            self.used_gpus.with_label_values(&[name]).set(used as f64 / 1000.0);
            self.free_gpus.with_label_values(&[name]).set(free as f64 / 1000.0);
        }
    }

    fn sample_jobs(&self, state: &State, name_of: impl Fn(&Verdict, &Job) -> &'static str, now: Time) {
        let mut states: BTreeMap<&str, i64> = JOB_STATES.map(|name| (name, 0)).into();
        let (mut tenants, mut queues) = (BTreeMap::<&str, Sum>::new(), BTreeMap::<&str, Sum>::new());
        let (mut waiting, mut starting) = (BTreeMap::<ReasonKind, i64>::new(), 0);
        let (mut most_gpus, mut longest_waits, mut longest) = (Vec::new(), Vec::new(), Vec::new());
        let (mut most_restarts, mut most_lost) = (Vec::new(), Vec::new());
        for job in state.jobs.values() {
            let name = job.spec.name.as_str();
            let verdict = state.effective(job);
            let now_in = name_of(&verdict, job);
            *states.entry(now_in).or_default() += 1;
            // A program that fails again and again has its slots, so its job doesn't wait for them.
            let is_waiting = now_in != CRASHING;
            let sum = measure(job, &verdict, now, is_waiting);
            tenants.entry(&job.spec.tenant).or_default().add(sum);
            queues.entry(&job.spec.queue).or_default().add(sum);
            match &verdict {
                Verdict::Wait(reason) | Verdict::Reject(reason) => *waiting.entry(reason.kind()).or_default() += 1,
                Verdict::Run(_) if job.seen.allocation.is_none() => starting += i64::from(is_waiting),
                Verdict::Run(allocation) => {
                    let left = job.remaining_time(allocation.shape()).map(|left| left.as_seconds());
                    longest.extend(left.map(|left| (name, left)));
                }
                _ => {}
            }
            most_restarts.push((name, sum.restarts as f64));
            most_lost.push((name, sum.restart));
            if sum.gpus > 0 {
                most_gpus.push((name, sum.gpus as f64 / 1000.0));
            }
            if sum.longest_wait > 0.0 {
                longest_waits.push((name, sum.longest_wait));
            }
        }
        for job in state.leaving_jobs().values() {
            let sum = Sum { gpus: gpus(job, job.seen.allocation.as_deref()), ..Sum::default() };
            tenants.entry(&job.spec.tenant).or_default().add(sum);
            queues.entry(&job.spec.queue).or_default().add(sum);
        }
        states.iter().for_each(|(name, count)| self.jobs.with_label_values(&[name]).set(*count));
        self.waiting.reset();
        self.waiting.with_label_values(&[STARTING]).set(starting);
        for (reason, count) in waiting {
            self.waiting.with_label_values(&[reason.to_string().as_str()]).set(count);
        }
        self.longest_wait.set(longest_waits.iter().map(|(_, wait)| *wait).fold(0.0, f64::max));
        self.tenants.set(&tenants);
        self.queues.set(&queues);
        set_highest(&self.job_gpus, most_gpus);
        set_highest(&self.job_wait, longest_waits);
        set_highest(&self.job_remaining, longest);
        set_highest(&self.job_restarts, most_restarts);
        set_highest(&self.job_restart, most_lost);
    }
}

/// A job's part of its tenant's and its queue's sums.
fn measure(job: &Job, verdict: &Verdict, now: Time, is_waiting: bool) -> Sum {
    let (runs, is_there) = (matches!(verdict, Verdict::Run(_)), job.seen.allocation.is_some());
    let starts = runs && !is_there && is_waiting;
    let since = match verdict {
        Verdict::Wait(_) if job.held => None,
        Verdict::Wait(_) => job.waits_since(),
        Verdict::Run(_) if starts => Some(job.issued.changed),
        _ => None,
    };
    Sum {
        gpus: gpus(job, job.issued.allocation.as_deref().or(job.seen.allocation.as_deref())),
        running: i64::from(runs && is_there),
        waiting: i64::from(starts || matches!(verdict, Verdict::Wait(_)) && !job.held),
        longest_wait: since.map_or(0.0, |since| (now - since).as_seconds().max(0.0)),
        restarts: i64::from(job.issued.incarnation.0).saturating_sub(1).max(0),
        restart: job.learnt.restart_total.as_seconds(),
    }
}

/// Thousandths of GPUs.
fn gpus(job: &Job, allocation: Option<&Allocation>) -> i64 {
    allocation.map_or(0, |allocation| job.total(allocation.shape())[GPU])
}

/// Sets the gauges of the jobs with the highest values.
fn set_highest(gauges: &GaugeVec, mut values: Vec<(&str, f64)>) {
    if values.len() > MOST_JOBS {
        values.select_nth_unstable_by(MOST_JOBS, |(one, a), (other, b)| b.total_cmp(a).then(one.cmp(other)));
    }
    gauges.reset();
    values.iter().take(MOST_JOBS).for_each(|(name, value)| gauges.with_label_values(&[*name]).set(*value));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_that_starves_is_shown() {
        let names: Vec<String> = (0..100).map(|number| format!("tenant{number:02}")).collect();
        let mut sums: BTreeMap<&str, Sum> = BTreeMap::new();
        for (number, name) in names.iter().enumerate() {
            sums.insert(name, Sum { gpus: 1000 * number as i64, ..Sum::default() });
        }
        sums.get_mut("tenant00").unwrap().longest_wait = 86_400.0;
        let shown = shown(&sums);
        assert_eq!(shown.len(), 2 * MOST_NAMES);
        assert!(["tenant00", "tenant75", "tenant99"].iter().all(|name| shown.contains(name)), "{shown:?}");
        assert_eq!(super::shown(&BTreeMap::from([("one", Sum::default())])).len(), 1);
    }
}

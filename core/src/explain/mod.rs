//! Explanations of a job's state: typed findings with numbers.

mod words;

use std::sync::Arc;

use serde::Serialize;

use crate::{
    batch::{Batch, BatchRange},
    decision::{Slot, Verdict, WorkState},
    ids::JobId,
    job::{Job, Sizes},
    reason::{Reason, ReasonKind, Scope},
    scheduler::Scheduler,
    settings::Mode,
    shape::{Role, Shape},
    state::{Keeps, Mandate, State},
    time::{Span, Time},
    topology::Topology,
};

/// The explanation of one job at a point in time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The job's number.
    pub job: JobId,
    /// The job's name.
    pub name: String,
    /// The planned shape.
    pub planned: Shape,
    /// The issued shape.
    pub issued: Shape,
    /// The last observed shape.
    pub observed: Shape,
    /// The findings, the most important first.
    pub findings: Vec<Finding>,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The topic.
    pub topic: Topic,
    /// Whether it keeps the job from running, or from its planned shape.
    pub blocks: bool,
    /// The finding in words, with numbers.
    pub text: String,
}

/// The topic of a [`Finding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Topic {
    /// Why the job doesn't run, by the kind of reason.
    Reason(ReasonKind),
    /// The plan isn't fully issued.
    Issue,
    /// The scheduling mode.
    Mode,
    /// The time of the next decision.
    Decision,
    /// The planned servers, and the limits of the owner.
    Bounds,
    /// Why the shape is pinned.
    Stability,
    /// Predicted convergence.
    Convergence,
    /// Predicted speed.
    Speed,
    /// Slow workers.
    Straggler,
    /// Past changes and their cost.
    History,
    /// Ignored reports.
    Reports,
    /// The state of the data chunks.
    Work,
}

impl Scheduler {
    /// Explains one active job at a time that isn't before the last event. `None` if there is no such job. O(servers +
    /// the job's slots). If some of its data chunks wait: O(slots of all jobs).
    pub fn explain(&self, at: Time, id: JobId) -> Option<Explanation> {
        let mut state = self.state().clone();
        state.now = state.now.max(at);
        let state = &state;
        let job = state.job(id)?;
        let shape =
            |allocation: Option<&crate::decision::Allocation>| allocation.map(|a| a.shape()).unwrap_or_default();
        let mut findings = Vec::new();
        mode(state, job, &mut findings);
        reason(state, job, &mut findings);
        if matches!(state.mandate(job), Mandate::Free) && job.verdict.allocation().is_none() {
            findings.extend(self.next_decision(state.now));
            pinned_others(state, job, &mut findings);
        }
        plan(state, job, &mut findings);
        work(state, job, &mut findings);
        predictions(job, &mut findings);
        history(job, &mut findings);
        Some(Explanation {
            job: id,
            name: job.spec.name.clone(),
            planned: job.shape(),
            issued: shape(job.issued.allocation.as_deref()),
            observed: shape(job.seen.allocation.as_deref()),
            findings,
        })
    }
}

impl Scheduler {
    /// The engine and the time of the next decision.
    fn next_decision(&self, at: Time) -> Option<Finding> {
        let (state, engine) = (self.state(), self.engine_name());
        if state.mode == Mode::Paused {
            return None;
        }
        let text = if self.is_deciding() {
            format!("{engine} is deciding now")
        } else if state.is_syncing() {
            "nothing is decided until a manager has told all that it has".into()
        } else {
            match self.due() {
                Some(due) if due <= at => format!("the next decision, by {engine}, is due now"),
                Some(due) => format!("the next decision, by {engine}, is due in {}", due - at),
                None => format!("{engine} decides next when something changes"),
            }
        };
        Some(Finding { topic: Topic::Decision, blocks: false, text })
    }
}

fn mode(state: &State, job: &Job, findings: &mut Vec<Finding>) {
    let what = match state.mode {
        Mode::Active => return,
        Mode::Shadow => "shadow mode: what is planned is only reported",
        Mode::Paused => "scheduling is paused",
    };
    // No slot runs. Not every manager starts jobs by itself.
    let whose = match job.seen.allocation {
        Some(_) => "its manager runs it on as it is",
        None => "whether it starts is up to its manager",
    };
    findings.push(Finding { topic: Topic::Mode, blocks: true, text: format!("{what}; {whose}") });
}

fn reason(state: &State, job: &Job, findings: &mut Vec<Finding>) {
    if let Some(reason) = job.verdict.reason() {
        let now = state.never_fits(job).unwrap_or_else(|| reason.refreshed(state, job));
        let label = state.missing_label(&now, &job.spec).map(|label| format!("; {label}")).unwrap_or_default();
        findings.push(Finding {
            topic: Topic::Reason(reason.kind()),
            blocks: true,
            text: now.describe_to(state, &job.spec.tenant) + &label,
        });
    }
}

fn plan(state: &State, job: &Job, findings: &mut Vec<Finding>) {
    let mut add = |topic, blocks, text: String| findings.push(Finding { topic, blocks, text });
    if let (Verdict::Run(planned), Some(reason)) = (&job.verdict, &job.issued.reason) {
        let text = format!("planned {}: {}", planned.shape(), reason.describe_to(state, &job.spec.tenant));
        add(Topic::Issue, true, text);
    }
    if let Verdict::Run(planned) = &job.verdict {
        let mut servers: Vec<_> = planned.slots().iter().map(|slot| slot.server).collect();
        servers.sort_unstable();
        servers.dedup();
        let names: Vec<_> = servers.iter().take(8).map(|id| state.server_name(*id)).collect();
        let more = if servers.len() > names.len() {
            format!(" and {} more", servers.len() - names.len())
        } else {
            String::new()
        };
        let text = format!("planned {} on {}{more}", planned.shape(), names.join(", "));
        add(Topic::Bounds, false, text);
    }
    let bounds = job.bounds();
    let (least, most) = (bounds.least(), bounds.most());
    let sizes = match bounds.sizes.within(least.workers, most.workers) {
        Sizes::Any => String::new(),
        sizes => format!(", with {sizes} workers"),
    };
    add(Topic::Bounds, false, format!("may have {least} to {most}{sizes}; requested {}", job.spec.requested()));
    let (claimed, counts) = (job.spec.priority, state.priority(job));
    if claimed != 0 {
        let cap = if counts < claimed { format!("; by the site's cap it counts as {counts}") } else { String::new() };
        add(Topic::Bounds, false, format!("priority {claimed}{cap}"));
    }
    if let Some(text) = gpu_types(state, job) {
        add(Topic::Bounds, false, text);
    }
    if let Some(text) = topology(state, job) {
        add(Topic::Bounds, false, text);
    }
    if let (Mandate::Pinned(kept), Some(rule)) = (state.mandate(job), state.stability(job)) {
        add(Topic::Stability, false, keeps(state, job, kept.shape(), rule));
    }
}

/// The type of the workers' GPUs, and the others that they could have.
fn gpu_types(state: &State, job: &Job) -> Option<String> {
    let choice = state.gpu_choice(job);
    let now = state.resources.name(job.gpu_kind().filter(|_| !choice.is_empty())?);
    let shape = if job.shape().is_empty() { job.spec.requested() } else { job.shape() };
    let (fit, types) = (job.learnt.fits.speed.as_ref(), state.type_speeds());
    let options = choice.iter().map(|(kind, free)| {
        let (types, own) = (types.of(job.tenant), job.worker.speed_type());
        let speed = fit.map(|fit| fit.speed_by(types, own, kind.0, shape.servers, shape.workers));
        let table = fit.and_then(|fit| fit.table()).map_or(1.0, |table| table.factor(shape.workers));
        let speed = speed.map(|speed| speed * table);
        let speed = speed.map_or_else(String::new, |speed| format!(", {speed:.2} steps/s with {shape}"));
        format!("{} ({} free{speed})", state.resources.name(*kind), state.resources.format(*kind, (*free).max(0)))
    });
    let options = options.collect::<Vec<_>>().join(", ");
    Some(format!("all its workers get {now}, chosen while it has no slots, of: {options}"))
}

/// The domain that the job is kept in, and the one that it asks for.
fn topology(state: &State, job: &Job) -> Option<String> {
    let Topology { require, prefer } = Topology::of(&job.spec.labels);
    let asks = match (require, prefer) {
        // A level that isn't narrower than the required one changes nothing.
        (Some(outer), Some(inner)) if inner > outer => format!("it requires one {outer} and prefers one {inner}"),
        (Some(level), _) => format!("it requires one {level}"),
        (None, Some(level)) => format!("it prefers one {level}"),
        (None, None) => return None,
    };
    let Some((domain, scarce, free)) = state.domain_room(job) else {
        let why = match job.verdict.allocation() {
            Some(_) => "no domain with all its slots has room for another worker",
            None => "none has room for its requested shape",
        };
        return Some(format!("its slots may be on any servers: {asks}, and {why}"));
    };
    let (types, needed) = (&state.resources, job.total(job.spec.requested())[scarce]);
    let (free, needed, name) = (types.format(scarce, free), types.format(scarce, needed), types.name(scarce));
    let place = &domain.name;
    Some(format!("its slots may only be in {place}: {asks}; {free} {name} are free there, {needed} are requested"))
}

/// The stability rule that pins a job, and its end.
fn keeps(state: &State, job: &Job, shape: Shape, rule: Keeps) -> String {
    let rules = &state.settings.stability;
    match rule {
        Keeps::MinRun { left } if state.keeps_for(job) > rules.min_run => format!(
            "keeps {shape} for another {left}: after a restart, which costs {}, a job keeps its slots for {} \
             (stability.min_run, stability.payback)",
            job.learnt.restart_cost,
            state.keeps_for(job)
        ),
        Keeps::MinRun { left } => {
            format!(
                "keeps {shape} for another {left}: after a start, a job keeps its slots for {} (stability.min_run)",
                rules.min_run
            )
        }
        Keeps::Rescales { left: Some(left) } => format!(
            "keeps {shape} for another {left}: an hour has at most {} of a job (stability.rescales_per_hour)",
            counted(rules.rescales_per_hour, "restart")
        ),
        Keeps::Rescales { left: None } => {
            format!("keeps {shape}: no restarts are allowed (stability.rescales_per_hour)")
        }
        Keeps::NearEnd { left } => format!(
            "keeps {shape} until its end in {left}: a restart costs {}, and must pay back {} times (stability.payback)",
            job.learnt.restart_cost, rules.payback
        ),
    }
}

/// The batch that a job with a range should train with, and why.
fn batch(job: &Job) -> Option<String> {
    let batching = job.batching()?;
    let BatchRange { submitted, min, max, .. } = batching.range;
    let range = if min < max { format!("of {min} to {max}") } else { "which is fixed".to_owned() };
    let Some(Batch { size, local, passes }) = batching.chosen else {
        return Some(format!("its batch, {range}, is chosen once it has slots; it starts with {submitted}"));
    };
    let parts = if passes > 1 { format!("{passes} passes of {local}") } else { local.to_string() };
    let why = match job.learnt.fits.speed.as_ref().and_then(|fit| fit.goodput()) {
        Some(goodput) => format!(
            "with a gradient noise of {:.0} examples, {}, its efficiency is {:.0} % of that of {submitted}",
            goodput.noise().at(size as f64),
            if batching.used == Some(size) { "as measured" } else { "as its model's jobs measured with other batches" },
            100.0 * goodput.efficiency(size)
        ),
        None if min < max => "its program has reported no usable gradient noise yet".to_owned(),
        None => "only its parts depend on the number of workers".to_owned(),
    };
    let used = batching.used.filter(|used| *used != size);
    let used = used.map_or_else(String::new, |used| format!("; its last report is of {used}"));
    Some(format!("batch {size}, {range} ({parts} on each replica): {why}{used}"))
}

/// The rule that keeps room in use while a job waits for it. It says nothing about other jobs.
fn pinned_others(state: &State, job: &Job, findings: &mut Vec<Finding>) {
    let rules = &state.settings.stability;
    let waits_for_room = job.verdict.reason().is_some_and(|reason| {
        matches!(
            reason,
            Reason::NoRoom { .. }
                | Reason::Exhausted { scope: Scope::Cluster, .. }
                | Reason::Behind { .. }
                | Reason::NotConsidered
        )
    });
    if state.mode == Mode::Active && rules.enabled && rules.min_run > Span(0) && waits_for_room {
        let text = format!("a job that starts keeps its slots for at least {} (stability.min_run)", rules.min_run);
        findings.push(Finding { topic: Topic::Stability, blocks: false, text });
    }
}

/// The job's chunks in training, and the job ahead of a waiting one.
fn work(state: &State, job: &Job, findings: &mut Vec<Finding>) {
    let Some(planned) = job.verdict.allocation().filter(|planned| !planned.work().is_empty()) else { return };
    let count = |is: fn(WorkState) -> bool| planned.work().iter().filter(|work| is(work.state)).count();
    let running = count(|state| state == WorkState::Running);
    let queued = count(|state| matches!(state, WorkState::Queued(_)));
    let preempted = count(|state| state == WorkState::Preempted);
    let done = count(|state| state == WorkState::Done);
    let workers = planned.of(Role::Worker).len();
    let mut text = format!(
        "trains {running} of its {} on {workers} workers; {queued} wait for their turn, {preempted} were interrupted, \
         {done} are done",
        counted(planned.work().len(), "chunk"),
    );
    let waits = planned.of(Role::Worker).iter().filter(|slot| {
        let mine = planned.work_of(slot);
        !planned.is_busy(slot) && mine.iter().any(|work| work.state != WorkState::Done)
    });
    let ahead = waits.flat_map(|slot| {
        let uses = move |other: &&Arc<Job>| {
            other.verdict.allocation().is_some_and(|planned| {
                let shares = |theirs: &&Slot| theirs.server == slot.server && theirs.devices == slot.devices;
                planned.of(Role::Worker).iter().filter(shares).any(|theirs| planned.is_busy(theirs))
            })
        };
        let others = state.jobs.values().filter(|other| other.id != job.id);
        others.filter(uses).take(1).map(move |other| (slot, other))
    });
    if let Some((slot, other)) = ahead.take(1).next() {
        let server = state.server_name(slot.server);
        let ahead = match other.spec.tenant == job.spec.tenant {
            true => other.spec.name.clone(),
            false => format!("another tenant's {}", other.id),
        };
        text += &format!("; worker {} on {server} waits for {ahead}", slot.index);
    }
    findings.push(Finding { topic: Topic::Work, blocks: running == 0 && done < planned.work().len(), text });
}

fn predictions(job: &Job, findings: &mut Vec<Finding>) {
    let mut add = |topic, text: String| findings.push(Finding { topic, blocks: false, text });
    let rule = &job.spec.convergence;
    let epoch = job.learnt.progress.epoch;
    let text = match (rule.fixed(), &job.learnt.fits.convergence) {
        (Some(epochs), _) => format!("at epoch {epoch} of {epochs}, a fixed number"),
        (None, Some(at)) => format!(
            "at epoch {epoch}; converges at epoch {} ({} to {}), when {} epochs in a row gain less than {} of the \
             first loss{}",
            at.epochs,
            at.low,
            at.high,
            rule.patience,
            rule.delta,
            if at.capped { "; that is its last allowed epoch" } else { "" }
        ),
        (None, None) => {
            format!("at epoch {epoch} of at most {}; too few losses to predict convergence", rule.max_epochs)
        }
    };
    add(Topic::Convergence, text);
    match &job.learnt.fits.speed {
        Some(fit) => {
            let shape = job.shape();
            let now = if shape.is_empty() { job.spec.requested() } else { shape };
            let more = job.bounds().more_workers(now.workers).map(|workers| Shape { workers, ..now });
            let text = format!(
                "{:.2} steps/s{} predicted with {now}{}, from {}{}",
                job.speed(now).unwrap_or_default(),
                if fit.goodput().is_some() { " of the submitted batch" } else { "" },
                more.map_or_else(String::new, |more| {
                    format!(", {:.2} with {more}", job.speed(more).unwrap_or_default())
                }),
                counted(fit.samples, "measured shape"),
                job.learnt.progress.speed.map_or_else(String::new, |speed| format!("; {speed:.2} reported")),
            );
            add(Topic::Speed, text);
        }
        None => add(Topic::Speed, "no speed measured yet, so a generic curve is assumed".into()),
    }
    if let Some(text) = batch(job) {
        add(Topic::Speed, text);
    }
    if let Some(at) = job.learnt.speeds.contradiction() {
        let shape = Shape { workers: at.workers, servers: at.servers };
        let text = format!(
            "its profile {}: {:.2} steps/s reported with {shape}, where it leaves {} {:.2} possible",
            if at.dropped { "isn't believed any more" } else { "counts less" },
            at.reported,
            if at.reported < at.profiled { "no less than" } else { "no more than" },
            at.profiled
        );
        add(Topic::Speed, text);
    }
    for slow in &job.learnt.stragglers.found {
        let text = format!("worker {} runs at {:.0} % of the median speed", slow.worker, slow.relative_speed * 100.0);
        add(Topic::Straggler, text);
    }
}

fn history(job: &Job, findings: &mut Vec<Finding>) {
    let mut add = |topic, text: String| findings.push(Finding { topic, blocks: false, text });
    // Without a start, all incarnations were refused.
    if job.seen.started.is_some() {
        let restarts = match job.issued.incarnation.0.saturating_sub(1) {
            0 => "no restarts".to_owned(),
            count => format!("{} that took {} in all", counted(count, "restart"), job.learnt.restart_total),
        };
        let (rescales, next) = (counted(job.issued.rescales, "time"), Span(job.learnt.restart_cost.0));
        let text = format!("changed shape {rescales}, {restarts}; the next is expected to take {next}");
        add(Topic::History, text);
    }
    if job.issued.late_refusals > 0 {
        let refusals = counted(job.issued.late_refusals, "refusal");
        let text = format!("{refusals} came when something else had been issued, and were ignored");
        add(Topic::History, text);
    }
    if job.learnt.progress.ignored > 0 {
        let reports = counted(job.learnt.progress.ignored, "report");
        add(Topic::Reports, format!("ignored {reports} as nonsense, repeated or late"));
    }
}

/// "1 restart", "2 restarts".
fn counted<N: std::fmt::Display + PartialEq + From<u8>>(number: N, thing: &str) -> String {
    format!("{number} {thing}{}", if number == N::from(1) { "" } else { "s" })
}

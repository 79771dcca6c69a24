//! Conversion of jobs' states for users.

use serde::{Serialize, Serializer};
use trainmaster_core::{End, Job, Mode, Phase, Shape, State, Verdict, explain::Explanation, fit::Prediction};

use crate::{ConvertError, job::external_to_wire, slot::slots_to_wire, v1};

/// Status of an active job.
pub fn job_status(state: &State, job: &Job) -> v1::JobStatus {
    let verdict = state.effective(job);
    // The actual slots: the planned ones, or the observed ones if none are planned.
    let given = match &verdict {
        Verdict::Run(allocation) => Some(allocation),
        Verdict::Release(_) => job.seen.allocation.as_ref(),
        _ => None,
    };
    let shape = given.map_or(Shape::default(), |allocation| allocation.shape());
    let reason = words_for(state, job, &verdict);
    // A fixed number of epochs is known before the first fit.
    let fixed = job.spec.convergence.fixed().map(f64::from);
    let predicted = |part: fn(&Prediction) -> u64| {
        fixed.or_else(|| job.learnt.fits.convergence.as_ref().map(|prediction| part(prediction) as f64))
    };
    v1::JobStatus {
        job: job.id.0,
        name: job.spec.name.clone(),
        tenant: job.spec.tenant.clone(),
        queue: job.spec.queue.clone(),
        state: job_state(&verdict, job).to_owned(),
        reason,
        workers: shape.workers,
        servers: shape.servers,
        step: job.learnt.progress.step,
        epoch: job.learnt.progress.epoch,
        loss: job.learnt.progress.loss,
        predicted_epochs: predicted(|prediction| prediction.epochs),
        predicted_low: predicted(|prediction| prediction.low),
        predicted_high: predicted(|prediction| prediction.high),
        remaining_ms: (!shape.is_empty()).then(|| job.remaining_time(shape)).flatten().map(|span| span.0),
        submitted_ms: job.arrival.0,
        started_ms: job.seen.started.map(|at| at.0),
        ended_ms: None,
        incarnation: job.issued.incarnation.0,
        revision: job.issued.revision.0,
        // A job without slots has no speed, whatever its last report.
        speed: job.learnt.progress.speed.filter(|_| !shape.is_empty()),
        slots: given.map(|allocation| slots_to_wire(state, allocation)).unwrap_or_default(),
        rescales: job.issued.rescales,
        restart_ms: job.learnt.restart_total.0,
        max_epochs: job.spec.convergence.max_epochs,
        predicted_speed: job.speed(shape).filter(|_| !shape.is_empty()),
        external: job.external.as_ref().map(external_to_wire),
        spec: None,
        held: job.held,
        failures: 0,
        failed_ms: None,
        priority: state.priority(job),
    }
}

/// The possible states of an active job: those of [`job_state`], and [`CRASHING`].
pub const JOB_STATES: [&str; 9] =
    ["waiting", "paused", "starting", "running", "restarting", CRASHING, "stopping", "rejected", "released"];

/// The state of a job whose programs fail again and again. Only its manager knows, so [`job_state`] doesn't.
pub const CRASHING: &str = "crashing";

/// State of an active job by its verdict in force, without the rest of its status. O(1).
pub fn job_state(verdict: &Verdict, job: &Job) -> &'static str {
    let is_there = job.seen.allocation.is_some();
    match verdict {
        Verdict::Run(_) if is_there && is_restarting(job) => "restarting",
        Verdict::Run(_) if is_there && job.seen.phase != Phase::Starting => "running",
        Verdict::Run(_) => "starting",
        Verdict::Release(_) => "released",
        // It gives up its slots for others that it gets.
        Verdict::Wait(_) if is_there && job.verdict.allocation().is_some() => "restarting",
        Verdict::Wait(_) | Verdict::Reject(_) | Verdict::Stop(_) if is_there => "stopping",
        Verdict::Wait(_) if job.held => "paused",
        Verdict::Wait(_) => "waiting",
        Verdict::Reject(_) => "rejected",
        // Its end follows at once.
        Verdict::Stop(_) => "stopping",
    }
}

/// An explanation with the state of its job, for JSON.
#[derive(Debug, Serialize)]
pub struct Explained<'a> {
    /// The state, as lists name it.
    pub state: &'a str,
    /// The explanation.
    #[serde(flatten)]
    pub explanation: Explanation,
}

/// Whether slots of an earlier incarnation run.
fn is_restarting(job: &Job) -> bool {
    job.seen.incarnation != job.issued.incarnation
}

/// The reason of its state, if there is one.
fn words_for(state: &State, job: &Job, verdict: &Verdict) -> String {
    let words = || verdict.reason().map(|reason| reason.describe_to(state, &job.spec.tenant)).unwrap_or_default();
    match verdict {
        Verdict::Run(allocation) if job.seen.allocation.is_none() => {
            format!("given {}; its manager is starting it", allocation.shape())
        }
        Verdict::Run(allocation) => {
            // The plan is different, but its room isn't free yet.
            let missing = job.issued.reason.as_ref().map(|reason| reason.describe_to(state, &job.spec.tenant));
            let restart = || is_restarting(job).then(|| format!("restarting as {}", allocation.shape()));
            missing.or_else(restart).unwrap_or_default()
        }
        Verdict::Wait(_) | Verdict::Reject(_) | Verdict::Stop(_) => words(),
        // The manager decides whether to start waiting jobs.
        Verdict::Release(shape) if job.seen.allocation.is_none() => {
            format!("handed back to its manager as {shape}; nothing of it runs there")
        }
        Verdict::Release(shape) => format!("handed back to its manager as {shape}"),
    }
}

/// A text in JSON. Empty: null.
#[allow(clippy::ptr_arg)] // serde calls it with a reference to the field
pub(crate) fn text_to_json<S: Serializer>(text: &String, to: S) -> Result<S::Ok, S::Error> {
    if text.is_empty() { to.serialize_none() } else { to.serialize_str(text) }
}

/// Name of an ended job's state.
pub fn end_name(end: End) -> &'static str {
    match end {
        End::Completed => "completed",
        End::Failed => "failed",
        End::Cancelled => "cancelled",
        End::Stopped => "stopped",
    }
}

/// A short text of a verdict, for tables of changes. It says what was decided, where a state says what is.
pub fn verdict_text(state: &State, verdict: &Verdict) -> String {
    match verdict {
        Verdict::Run(allocation) => {
            let mut servers: Vec<_> = allocation.slots().iter().map(|slot| state.server_name(slot.server)).collect();
            servers.sort_unstable();
            servers.dedup();
            let more = servers.len().saturating_sub(4);
            let listed = servers[..servers.len() - more].join(", ");
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("{} on {listed}{more}", allocation.shape())
        }
        Verdict::Wait(_) => "waits".into(),
        Verdict::Reject(_) => "rejected".into(),
        Verdict::Stop(_) => "stopped".into(),
        Verdict::Release(shape) => format!("released as {shape}"),
    }
}

/// Name of a mode.
pub fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Active => "active",
        Mode::Shadow => "shadow",
        Mode::Paused => "paused",
    }
}

/// Converts a mode for the wire.
pub fn mode_to_wire(mode: Mode) -> v1::SchedulingMode {
    match mode {
        Mode::Active => v1::SchedulingMode::Active,
        Mode::Shadow => v1::SchedulingMode::Shadow,
        Mode::Paused => v1::SchedulingMode::Paused,
    }
}

/// Converts a mode.
///
/// # Errors
/// The mode is unknown.
pub fn mode_from_wire(mode: i32) -> Result<Mode, ConvertError> {
    match v1::SchedulingMode::try_from(mode) {
        Ok(v1::SchedulingMode::Active) => Ok(Mode::Active),
        Ok(v1::SchedulingMode::Shadow) => Ok(Mode::Shadow),
        Ok(v1::SchedulingMode::Paused) => Ok(Mode::Paused),
        Err(_) => Err(ConvertError::unknown("mode", mode, "0 (active), 1 (shadow) or 2 (paused)")),
    }
}

#[cfg(test)]
mod tests {
    use trainmaster_core::job::Convergence;
    use trainmaster_core::{Event, Incarnation, JobSpec, ObservedSlot, Role, Scheduler, ServerSpec, Settings, Time};

    use super::*;

    #[test]
    fn a_fixed_number_of_epochs_is_known_before_the_first_report() {
        let mut scheduler = Scheduler::new(Settings { engine: "fifo".into(), ..Settings::default() }).unwrap();
        for (name, convergence) in [("counted", Convergence::after(3)), ("converging", Convergence::default())] {
            let spec = Box::new(JobSpec { convergence, ..JobSpec::minimal(name) });
            scheduler.apply(Time(1), Event::JobSubmitted { spec, external: None, token_hash: None }).unwrap();
        }
        let status = |name| {
            let status = job_status(scheduler.state(), scheduler.state().find_job(name).unwrap());
            [status.predicted_epochs, status.predicted_low, status.predicted_high]
        };
        assert_eq!(status("counted"), [Some(3.0); 3]);
        assert_eq!(status("converging"), [None; 3]);
    }

    #[test]
    fn a_state_says_what_is() {
        let mut scheduler = Scheduler::new(Settings { engine: "fifo".into(), ..Settings::default() }).unwrap();
        let server = ServerSpec {
            name: "node1".into(),
            capacity: [("cpu".to_owned(), 16_000), ("gpu".to_owned(), 2000)].into(),
            ..ServerSpec::default()
        };
        scheduler.apply(Time(0), Event::ServerSet { manager: "local".into(), server }).unwrap();
        let spec = Box::new(JobSpec::minimal("mnist"));
        scheduler.apply(Time(1), Event::JobSubmitted { spec, external: None, token_hash: None }).unwrap();
        let status = |scheduler: &Scheduler| {
            let job = scheduler.state().find_job("mnist").unwrap();
            job_status(scheduler.state(), job)
        };
        assert_eq!(status(&scheduler).state, "waiting");
        assert!(status(&scheduler).reason.contains("next decision"));
        scheduler.decide(Time(2));
        let given = status(&scheduler);
        assert_eq!((given.state.as_str(), given.workers, given.servers), ("starting", 1, 1));
        assert!(given.reason.contains("starting"), "{}", given.reason);
        let job = scheduler.state().find_job("mnist").unwrap();
        let (job, allocation) = (job.id, job.issued.allocation.clone().unwrap());
        let slots = allocation.slots().iter().map(|slot| ObservedSlot {
            role: slot.role,
            index: slot.index,
            server: "node1".into(),
            devices: Vec::new(),
        });
        let slots: Vec<_> = slots.collect();
        let seen = |slots: &[ObservedSlot], phase| Event::Observed {
            job,
            incarnation: Incarnation(1),
            slots: slots.to_vec(),
            phase,
        };
        scheduler.apply(Time(3), seen(&slots, Phase::Starting)).unwrap();
        assert_eq!(status(&scheduler).state, "starting");
        scheduler.apply(Time(3), seen(&slots, Phase::Running)).unwrap();
        let running = status(&scheduler);
        assert_eq!((running.state.as_str(), running.reason.as_str(), running.started_ms), ("running", "", Some(3)));
        assert_eq!(running.slots[0].server, "node1");
        assert_eq!(Role::Worker, crate::role_from_wire(running.slots[0].role).unwrap());
        let hold = |held| Event::JobHeld { job, held };
        scheduler.apply(Time(4), hold(true)).unwrap();
        let stopping = status(&scheduler);
        assert_eq!((stopping.state.as_str(), stopping.held), ("stopping", true));
        scheduler.apply(Time(4), seen(&[], Phase::Stopped)).unwrap();
        assert_eq!(status(&scheduler).state, "paused");
        scheduler.apply(Time(4), hold(false)).unwrap();
        scheduler.decide(Time(4));
        assert_eq!(status(&scheduler).state, "starting");
        // The old programs are seen again.
        scheduler.apply(Time(4), seen(&slots, Phase::Running)).unwrap();
        let restarting = status(&scheduler);
        assert_eq!((restarting.state.as_str(), &*restarting.reason), ("restarting", "restarting as 1w+1p"));
        scheduler.apply(Time(4), Event::ModeSet(Mode::Paused)).unwrap();
        let released = status(&scheduler);
        assert_eq!((released.state.as_str(), released.workers), ("released", 1));
        assert_eq!(released.reason, "handed back to its manager as 1w+1p");
        let spec = Box::new(JobSpec::minimal("later"));
        scheduler.apply(Time(5), Event::JobSubmitted { spec, external: None, token_hash: None }).unwrap();
        let later = scheduler.state().find_job("later").unwrap();
        let later = job_status(scheduler.state(), later);
        assert_eq!((later.state.as_str(), later.workers), ("released", 0));
        assert_eq!(later.reason, "handed back to its manager as 1w+1p; nothing of it runs there");
    }
}

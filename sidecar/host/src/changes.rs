//! The log of decisions: a line per job whose slots change.

use std::collections::HashMap;

use trainmaster_core::{Decision, Job, JobId, Shape, State, Verdict};
use trainmaster_proto::verdict_text;

/// Maximum number of lines per decision. The log's writer drops lines if too many come at once.
const MOST_LINES: usize = 1000;

/// The plan as it was logged.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// The last verdicts, by job. Jobs that have ended are removed at times.
    plan: HashMap<JobId, Verdict>,
}

impl Changes {
    /// Starts with a plan that was recovered.
    pub(crate) fn of(state: &State) -> Self {
        Self { plan: state.jobs.values().map(|job| (job.id, job.verdict.clone())).collect() }
    }

    /// Logs the changes of a decision that was just committed: at info the jobs whose slots change or that can never
    /// run, at debug those that wait for another reason. O(changes).
    pub(crate) fn log(&mut self, state: &State, engine: &str, decision: &Decision) {
        let number = decision.id.0;
        let mut lines = 0;
        for (id, verdict) in &decision.changes {
            let Some(job) = state.job(*id) else { continue };
            let before = self.plan.insert(*id, verdict.clone());
            if before.as_ref().is_some_and(|before| before.same_kind(verdict)) {
                continue;
            }
            let waits = |verdict: &Verdict| matches!(verdict, Verdict::Wait(_));
            let only_waits = waits(verdict) && before.as_ref().is_none_or(waits);
            if only_waits && !tracing::enabled!(tracing::Level::DEBUG) {
                continue;
            }
            lines += 1;
            if lines > MOST_LINES {
                continue;
            }
            let name = &*job.spec.name;
            if only_waits {
                tracing::debug!(decision = number, job = name, why = why(state, engine, job, None), "a job waits");
                continue;
            }
            // A new job waits before its first decision.
            let from = before.as_ref().map_or_else(|| "waits".into(), |before| verdict_text(state, before));
            let to = verdict_text(state, verdict);
            let had = before.as_ref().and_then(Verdict::allocation).map(|allocation| allocation.shape());
            tracing::info!(decision = number, job = name, from, to, why = why(state, engine, job, had), "a change");
        }
        if lines > MOST_LINES {
            tracing::info!(decision = number, more = lines - MOST_LINES, "the decision has more changes");
        }
        if self.plan.len() > 2 * state.jobs.len() + 64 {
            self.plan.retain(|id, _| state.job(*id).is_some());
        }
    }
}

/// The reason of a verdict without slots. For others, the engine, and the speeds that the job's fit predicts.
fn why(state: &State, engine: &str, job: &Job, had: Option<Shape>) -> String {
    if let Some(reason) = job.verdict.reason() {
        return reason.describe(state);
    }
    let speed = |shape: Shape| job.speed(shape).map(|speed| format!("{speed:.3} steps/s"));
    let has = job.verdict.allocation().map(|allocation| allocation.shape());
    match (had.and_then(speed), has.and_then(speed)) {
        (Some(before), Some(after)) if had != has => format!("{engine}; predicted speed {after}, before {before}"),
        (_, Some(after)) => format!("{engine}; predicted speed {after}"),
        (_, None) => engine.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use tracing::Level;
    use trainmaster_core::{Budget, Event, JobSpec, Scheduler, ServerSpec, Settings, Time};

    use super::*;

    const NOW: Time = Time(1_000);

    /// A writer that keeps what is written.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The lines that a decision logs at a level.
    fn logged(level: Level, changes: &mut Changes, scheduler: &Scheduler, decision: &Decision) -> Vec<String> {
        let kept = Kept::default();
        let writer = kept.clone();
        let subscriber =
            tracing_subscriber::fmt().with_max_level(level).without_time().with_ansi(false).with_target(false);
        let subscriber = subscriber.with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || changes.log(scheduler.state(), "fifo", decision));
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        text.lines().map(|line| line.trim().to_owned()).collect()
    }

    fn decided(scheduler: &mut Scheduler) -> Decision {
        let ticket = scheduler.prepare(NOW);
        scheduler.commit(NOW, ticket.run(Budget::steps(1_000_000))).unwrap()
    }

    fn submit(scheduler: &mut Scheduler, name: &str) {
        let spec = Box::new(JobSpec::minimal(name));
        scheduler.apply(NOW, Event::JobSubmitted { spec, external: None, token_hash: None }).unwrap();
    }

    fn server(scheduler: &mut Scheduler, name: &str, cpu: i64) {
        let capacity = [("cpu".to_owned(), cpu)].into();
        let server =
            ServerSpec { name: name.into(), capacity, devices: vec!["gpu".into(); 2], ..ServerSpec::default() };
        scheduler.apply(NOW, Event::ServerSet { manager: "m".into(), server }).unwrap();
    }

    #[test]
    fn a_change_of_slots_is_a_line_and_a_wait_is_one_for_debugging() {
        let settings = Settings { engine: "fifo".into(), ..Settings::default() };
        let mut scheduler = Scheduler::new(settings).unwrap();
        server(&mut scheduler, "a", 16_000);
        submit(&mut scheduler, "first");
        let mut changes = Changes::of(scheduler.state());
        let decision = decided(&mut scheduler);
        let lines = logged(Level::INFO, &mut changes, &scheduler, &decision);
        let line = "INFO a change decision=1 job=\"first\" from=\"waits\" to=\"1w+1p on a\" why=\"fifo\"";
        assert_eq!(lines, [line]);
        assert!(logged(Level::INFO, &mut changes, &scheduler, &decision).is_empty(), "it is logged once");
        // The server is gone, and the job with it.
        scheduler.apply(NOW, Event::ServersLeft { names: vec!["a".into()] }).unwrap();
        let decision = decided(&mut scheduler);
        let lines = logged(Level::INFO, &mut changes, &scheduler, &decision);
        assert!(lines.len() == 1 && lines[0].contains("from=\"1w+1p on a\" to=\"waits\" why=\""), "{lines:?}");
        submit(&mut scheduler, "second");
        let decision = decided(&mut scheduler);
        let mut again = Changes { plan: changes.plan.clone() };
        assert!(logged(Level::INFO, &mut again, &scheduler, &decision).is_empty());
        let lines = logged(Level::DEBUG, &mut changes, &scheduler, &decision);
        assert!(lines.iter().any(|line| line.starts_with("DEBUG a job waits")), "{lines:?}");
    }

    #[test]
    fn a_large_decision_has_a_bounded_number_of_lines() {
        let settings = Settings { engine: "fifo".into(), ..Settings::default() };
        let mut scheduler = Scheduler::new(settings).unwrap();
        let many = MOST_LINES + 50;
        for at in 0..many {
            server(&mut scheduler, &format!("s{at}"), 16_000);
            submit(&mut scheduler, &format!("j{at}"));
        }
        let mut changes = Changes::of(scheduler.state());
        let decision = decided(&mut scheduler);
        assert!(decision.changes.len() == many, "{}", decision.changes.len());
        let lines = logged(Level::INFO, &mut changes, &scheduler, &decision);
        assert_eq!(lines.len(), MOST_LINES + 1);
        assert_eq!(lines[MOST_LINES], "INFO the decision has more changes decision=1 more=50");
        // Ended jobs are forgotten.
        let jobs: Vec<JobId> = scheduler.state().jobs.values().map(|job| job.id).collect();
        for job in jobs {
            let end = trainmaster_core::End::Cancelled;
            scheduler.apply(NOW, Event::JobEnded { job, end }).unwrap();
        }
        let decision = decided(&mut scheduler);
        logged(Level::INFO, &mut changes, &scheduler, &decision);
        assert!(changes.plan.is_empty());
    }
}

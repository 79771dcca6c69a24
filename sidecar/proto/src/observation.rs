//! Conversion of managers' observations to events.

use std::sync::Arc;

use trainmaster_core::{DecisionId, Enactment, End, Event, Incarnation, JobId, Phase, Span};

use crate::{ConvertError, server, slot::observed_slot, v1};

/// Maximum bytes of a manager's name.
const LONGEST_NAME: usize = 128;

/// An observation as events in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// Name of the manager.
    pub manager: String,
    /// Whether it is a snapshot. Servers and jobs that it omits count as gone.
    pub is_snapshot: bool,
    /// Whether submissions may name this manager's jobs. Part of a snapshot.
    pub takes_submissions: bool,
    /// The events.
    pub events: Vec<Event>,
    /// What the manager says of each observed job.
    pub messages: Vec<JobMessage>,
}

/// A manager's message about an incarnation of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobMessage {
    /// The job.
    pub job: JobId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// For a failure: slot, exit code, and path of the log. Otherwise empty.
    pub text: String,
    /// Number of consecutive failures of the slot that failed most.
    pub failures: u32,
}

/// Converts an observation. A snapshot becomes a resync from `SyncBegin` to `SyncEnd`.
///
/// # Errors
/// The first invalid field. Then no part of the observation should be applied.
pub fn observed(observation: v1::Observation) -> Result<Observed, ConvertError> {
    let manager = observation.manager;
    if manager.is_empty() || manager.len() > LONGEST_NAME || manager.chars().any(char::is_control) {
        let start: String = manager.chars().take(LONGEST_NAME).collect();
        let problem = format!("{start:?} must be the manager's name, of 1 to {LONGEST_NAME} visible characters");
        return Err(ConvertError::new("manager", problem));
    }
    let mut read = Observed { manager: manager.clone(), ..Observed::default() };
    use v1::observation::Kind;
    match observation.kind {
        None => {
            return Err(ConvertError::new("kind", "is missing: give a snapshot, a delta, an enacted or a utilisation"));
        }
        Some(Kind::Snapshot(snapshot)) => {
            (read.is_snapshot, read.takes_submissions) = (true, snapshot.takes_submissions);
            read.events.push(Event::SyncBegin { manager: manager.clone() });
            for server in snapshot.servers {
                read.events.extend(server::events(&manager, server)?);
            }
            for job in snapshot.jobs {
                read.job(job)?;
            }
            read.events.push(Event::SyncEnd { manager, owns_queue: snapshot.owns_queue });
        }
        Some(Kind::Delta(delta)) => {
            for server in delta.servers {
                read.events.extend(server::events(&manager, server)?);
            }
            for job in delta.jobs {
                read.job(job)?;
            }
            if !delta.servers_left.is_empty() {
                read.events.push(Event::ServersLeft { names: delta.servers_left });
            }
        }
        Some(Kind::Enacted(enacted)) => read.events.push(event_of(enacted)?),
        Some(Kind::Utilisation(measured)) => {
            for server in measured.servers {
                read.events.push(server::measured(server)?);
            }
        }
    }
    Ok(read)
}

impl Observed {
    fn job(&mut self, seen: v1::ObservedJob) -> Result<(), ConvertError> {
        let job = JobId(seen.job);
        let outer = |error: ConvertError| error.inside(format_args!("jobs[job {}]", seen.job));
        let (phase, end) = phase(seen.phase).map_err(outer)?;
        let slots =
            seen.slots.into_iter().enumerate().map(|(at, slot)| {
                observed_slot(slot).map_err(|error| outer(error.inside(format_args!("slots[{at}]"))))
            });
        let slots = slots.collect::<Result<_, _>>()?;
        // The end comes first, because unobserved slots of an ended job are free.
        self.events.extend(end.map(|end| Event::JobEnded { job, end }));
        self.events.push(Event::Observed { job, incarnation: Incarnation(seen.incarnation), slots, phase });
        // An empty one ends what was said of failures.
        self.messages.push(JobMessage {
            job,
            incarnation: Incarnation(seen.incarnation),
            text: seen.message,
            failures: seen.failures,
        });
        Ok(())
    }
}

fn phase(phase: i32) -> Result<(Phase, Option<End>), ConvertError> {
    use v1::ObservedPhase as Wire;
    Ok(match Wire::try_from(phase) {
        Ok(Wire::Starting) => (Phase::Starting, None),
        Ok(Wire::Running) => (Phase::Running, None),
        Ok(Wire::Stopping) => (Phase::Stopping, None),
        Ok(Wire::Stopped) => (Phase::Stopped, None),
        Ok(Wire::Completed) => (Phase::Stopped, Some(End::Completed)),
        Ok(Wire::Failed) => (Phase::Stopped, Some(End::Failed)),
        Err(_) => return Err(ConvertError::unknown("phase", phase, "from 0 (starting) to 5 (failed)")),
    })
}

fn event_of(enacted: v1::Enacted) -> Result<Event, ConvertError> {
    use v1::EnactedResult as Wire;
    let result = match Wire::try_from(enacted.result) {
        Ok(Wire::Accepted) => Enactment::Accepted,
        Ok(Wire::Partial) => Enactment::Partial,
        Ok(Wire::Refused) => {
            if enacted.retry_after_ms < 0 {
                let problem = format!("{} must be 0 (as the scheduler thinks best) or more", enacted.retry_after_ms);
                return Err(ConvertError::new("enacted.retry_after_ms", problem));
            }
            let retry_after = (enacted.retry_after_ms > 0).then_some(Span(enacted.retry_after_ms));
            Enactment::Refused { cause: Arc::from(enacted.cause), retry_after }
        }
        Err(_) => {
            let allowed = "0 (accepted), 1 (partial) or 2 (refused)";
            return Err(ConvertError::unknown("enacted.result", enacted.result, allowed));
        }
    };
    Ok(Event::Enacted { decision: DecisionId(enacted.decision), job: JobId(enacted.job), result })
}

#[cfg(test)]
mod tests {
    use trainmaster_core::Role;

    use super::*;

    fn seen(phase: v1::ObservedPhase) -> v1::ObservedJob {
        let slot = v1::Slot { role: 1, index: 0, server: "a".into(), devices: Vec::new(), idle: false };
        v1::ObservedJob {
            job: 7,
            incarnation: 2,
            slots: vec![slot],
            phase: phase.into(),
            message: "m".into(),
            failures: 3,
        }
    }

    fn of(kind: v1::observation::Kind) -> v1::Observation {
        v1::Observation { manager: "local".into(), kind: Some(kind) }
    }

    #[test]
    fn a_snapshot_is_a_whole_resync() {
        let server = v1::Server { name: "a".into(), ..v1::Server::default() };
        let snapshot = v1::Snapshot {
            servers: vec![server],
            jobs: vec![seen(v1::ObservedPhase::Running)],
            owns_queue: true,
            takes_submissions: true,
        };
        let read = observed(of(v1::observation::Kind::Snapshot(snapshot))).unwrap();
        assert!(read.is_snapshot);
        assert!(matches!(read.events[0], Event::SyncBegin { .. }));
        assert!(matches!(read.events[2], Event::ForeignUse { .. }));
        let Event::Observed { job, slots, phase, .. } = &read.events[3] else { panic!("{:?}", read.events) };
        assert_eq!((*job, *phase, slots[0].role), (JobId(7), Phase::Running, Role::Server));
        assert!(matches!(read.events[4], Event::SyncEnd { owns_queue: true, .. }));
        let message = JobMessage { job: JobId(7), incarnation: Incarnation(2), text: "m".into(), failures: 3 };
        assert_eq!(read.messages, [message]);
    }

    #[test]
    fn an_end_comes_before_the_remaining_slots() {
        let delta = v1::Delta { jobs: vec![seen(v1::ObservedPhase::Failed)], ..v1::Delta::default() };
        let read = observed(of(v1::observation::Kind::Delta(delta))).unwrap();
        assert_eq!(read.events[0], Event::JobEnded { job: JobId(7), end: End::Failed });
        assert!(matches!(read.events[1], Event::Observed { .. }));
    }

    #[test]
    fn mistakes_are_named() {
        let with = |change: fn(&mut v1::ObservedJob)| {
            let mut job = seen(v1::ObservedPhase::Running);
            change(&mut job);
            let delta = v1::Delta { jobs: vec![job], ..v1::Delta::default() };
            observed(of(v1::observation::Kind::Delta(delta))).unwrap_err().to_string()
        };
        assert_eq!(with(|job| job.phase = 9), "jobs[job 7].phase: 9 must be from 0 (starting) to 5 (failed)");
        let share = with(|job| job.slots[0].devices = vec![v1::DeviceShare { device: 0, milli: 1001 }]);
        assert!(share.starts_with("jobs[job 7].slots[0].devices[0].milli: 1001 must be"), "{share}");
        assert!(with(|job| job.slots[0].server.clear()).contains("slots[0].server"));
        let nothing = v1::Observation { manager: "local".into(), kind: None };
        assert!(observed(nothing).unwrap_err().to_string().starts_with("kind: is missing"));
    }
}

//! Actions in the ResourceManager, as far as its REST API supports them: kill, set priorities, move to queues. The REST
//! API can't place containers.

use std::{collections::BTreeMap, time::Duration};

use reqwest::Method;
use serde_json::{Value, json};

use super::{
    cluster_state::{is_queue, queues},
    rest::{Client, RestError},
    wire,
};

/// Wait before an application that wasn't gone after a kill is killed again.
const KILL_AGAIN: Duration = Duration::from_secs(10);
/// The same after a refused kill.
const REFUSED_AGAIN: Duration = Duration::from_secs(60);

/// The planned actions.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Work {
    pub(super) plan: wire::Plan,
    /// Current priorities of applications.
    pub(super) priorities: BTreeMap<String, i32>,
    /// Applications in a wrong queue, with that queue and their jobs' queues.
    pub(super) misplaced: Vec<(String, String, String)>,
}

/// An action on an application.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Kill(String),
    Priority(i32),
    /// The current queue and the new one.
    Queue(String, String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Kill,
    Priority,
    Queue,
}

/// The previous requests, so that each is sent only once.
#[derive(Debug, Default)]
pub(super) struct Actions {
    /// The user name for YARN. `None`: YARN chooses.
    user: Option<String>,
    /// By application and kind. The time is that of the next request.
    done: BTreeMap<(String, Kind), (Action, Option<Duration>)>,
}

impl Actions {
    pub(super) fn new(user: Option<String>) -> Self {
        Self { user, ..Self::default() }
    }

    /// Sends all new requests, one after another, until the ResourceManager doesn't answer.
    pub(super) async fn carry_out(&mut self, now: Duration, work: Work, client: &mut Client) {
        for (application, action) in self.due(now, &work) {
            let answer = self.ask(&application, &action, client).await;
            let is_away = matches!(answer, Err(RestError::Away { .. }));
            self.answered(now, &application, action, answer);
            if is_away {
                return;
            }
        }
    }

    /// The planned actions that weren't requested yet.
    fn due(&mut self, now: Duration, work: &Work) -> Vec<(String, Action)> {
        let is_live = |id: &String| work.plan.applications.iter().any(|planned| planned.id == *id);
        self.done.retain(|(id, _), _| is_live(id));
        let mut due = Vec::new();
        for planned in &work.plan.applications {
            if planned.action() == wire::Action::Kill {
                due.push((planned.id.clone(), Action::Kill(planned.reason.clone())));
                continue;
            }
            if let Some(priority) = planned.priority
                && work.priorities.get(&planned.id).is_some_and(|now| *now != priority)
            {
                due.push((planned.id.clone(), Action::Priority(priority)));
            }
        }
        let moves = work.misplaced.iter().map(|(id, from, to)| (id.clone(), Action::Queue(from.clone(), to.clone())));
        due.extend(moves);
        due.retain(|(id, action)| match self.done.get(&(id.clone(), action.kind())) {
            None => true,
            // If anyone moves the application afterwards, it stays there.
            Some(_) if action.kind() == Kind::Queue => false,
            Some((done, again)) => again.map_or(done != action, |at| now >= at),
        });
        due
    }

    async fn ask(&self, application: &str, action: &Action, client: &mut Client) -> Result<(), RestError> {
        let (what, body) = match action {
            Action::Kill(reason) => ("state", json!({ "state": "KILLED", "diagnostics": reason })),
            Action::Priority(priority) => ("priority", json!({ "priority": priority })),
            Action::Queue(_, queue) => {
                let told: Value = client.read("/ws/v1/cluster/scheduler").await?;
                let all = queues(&told);
                let found: Vec<_> = all.iter().filter(|path| is_queue(path, queue)).collect();
                let path = match found[..] {
                    [one] => one,
                    // Only the CapacityScheduler lists its queues in this form.
                    [] if all.is_empty() => queue,
                    _ => {
                        let reason = format!("{} queues are called so", found.len());
                        return Err(RestError::refused(reason));
                    }
                };
                ("queue", json!({ "queue": path }))
            }
        };
        let user = self.user.as_ref().map_or_else(String::new, |user| format!("?user.name={user}"));
        let path = format!("/ws/v1/cluster/apps/{application}/{what}{user}");
        let body = client.call(Method::PUT, &path, body.to_string()).await?;
        if let Action::Priority(asked) = action {
            let told: Value = serde_json::from_slice(&body).unwrap_or_default();
            if let Some(got) = told["priority"].as_i64().filter(|got| *got != i64::from(*asked)) {
                let reason = format!("it is {got} now (yarn.cluster.max-application-priority)");
                return Err(RestError::refused(reason));
            }
        }
        Ok(())
    }

    fn answered(&mut self, now: Duration, application: &str, action: Action, answer: Result<(), RestError>) {
        let is_kill = action.kind() == Kind::Kill;
        let again = match answer {
            Ok(()) => {
                match &action {
                    Action::Kill(reason) => tracing::info!(application, reason, "an application is being killed"),
                    Action::Priority(priority) => tracing::debug!(application, priority, "an application's priority"),
                    Action::Queue(from, to) => tracing::info!(application, from, to, "moved to its job's queue"),
                }
                is_kill.then(|| now + KILL_AGAIN)
            }
            Err(RestError::Refused { reason, .. }) => {
                let known = self.done.get(&(application.to_owned(), action.kind())).map(|(done, _)| done);
                if known != Some(&action) {
                    tracing::warn!(application, ?action, reason, "the ResourceManager doesn't do what is planned");
                }
                is_kill.then(|| now + REFUSED_AGAIN)
            }
            // The next poll makes it due again.
            Err(error @ RestError::Away { .. }) => {
                tracing::debug!(application, ?action, %error, "nobody to do what is planned");
                return;
            }
        };
        self.done.insert((application.to_owned(), action.kind()), (action, again));
    }
}

impl Action {
    fn kind(&self) -> Kind {
        match self {
            Self::Kill(_) => Kind::Kill,
            Self::Priority(_) => Kind::Priority,
            Self::Queue(..) => Kind::Queue,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const APP: &str = "application_1_0001";

    fn at(second: u64) -> Duration {
        Duration::from_secs(second)
    }

    fn work(action: wire::Action, priority: Option<i32>) -> Work {
        let planned = wire::ApplicationPlan {
            id: APP.into(),
            action: action.into(),
            priority,
            reason: "why".into(),
            ..wire::ApplicationPlan::default()
        };
        Work {
            plan: wire::Plan { applications: vec![planned], ..wire::Plan::default() },
            priorities: [(APP.to_owned(), -1)].into(),
            misplaced: Vec::new(),
        }
    }

    #[test]
    fn what_was_done_is_not_asked_for_again() {
        let mut actions = Actions::default();
        let one = |actions: &mut Actions, second: u64, work: &Work| {
            actions.due(at(second), work).pop().map(|(_, action)| action)
        };
        let run = work(wire::Action::Run, Some(1));
        assert_eq!(one(&mut actions, 1, &run), Some(Action::Priority(1)));
        let away = RestError::Away { at: "rm:1".into(), problem: "gone".into() };
        actions.answered(at(1), APP, Action::Priority(1), Err(away));
        assert_eq!(one(&mut actions, 2, &run), Some(Action::Priority(1)), "nobody answered");
        actions.answered(at(2), APP, Action::Priority(1), Err(RestError::refused("no".into())));
        assert_eq!(one(&mut actions, 3, &run), None, "it was refused");
        assert_eq!(one(&mut actions, 3, &work(wire::Action::Run, Some(2))), Some(Action::Priority(2)));
        assert_eq!(one(&mut actions, 3, &work(wire::Action::Run, Some(-1))), None, "it is that already");

        let queue = Action::Queue("root.a".into(), "b".into());
        let moved =
            Work { misplaced: vec![(APP.into(), "root.a".into(), "b".into())], ..work(wire::Action::Hold, None) };
        assert_eq!(one(&mut actions, 4, &moved), Some(queue.clone()));
        actions.answered(at(4), APP, queue, Ok(()));
        assert_eq!(one(&mut actions, 5, &moved), None, "somebody moved it back");

        let kill = work(wire::Action::Kill, None);
        assert_eq!(one(&mut actions, 6, &kill), Some(Action::Kill("why".into())));
        actions.answered(at(6), APP, Action::Kill("why".into()), Ok(()));
        assert_eq!((one(&mut actions, 15, &kill), one(&mut actions, 16, &kill).is_some()), (None, true));
        actions.answered(at(16), APP, Action::Kill("why".into()), Err(RestError::refused("no".into())));
        assert_eq!((one(&mut actions, 75, &kill), one(&mut actions, 76, &kill).is_some()), (None, true));
        actions.due(at(77), &Work::default());
        assert!(actions.done.is_empty(), "who is gone is forgotten");
    }
}

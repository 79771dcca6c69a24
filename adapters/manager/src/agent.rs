//! The loop that ties a manager, the daemon and time together: the same for every manager.

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use trainmaster_proto::v1;

use super::{
    daemon::{Daemon, Heard, keep},
    outbox::{Answer, Outbox, Snapshot},
};

/// Nothing is further away than this: time is looked at again then.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);
/// The last message needs a moment to get out.
const LAST_MESSAGE: Duration = Duration::from_millis(50);

/// One manager, as an adapter translates it. `now` is the time since the agent began.
///
/// What it has to do for plans is [`Follows`](super::Follows), with a [`Follower`](super::Follower).
#[async_trait]
pub trait Manager: Send {
    /// The name under which the daemon knows it.
    fn name(&self) -> String;

    /// Whether any submitter may say which of the manager's jobs a submission is.
    fn takes_submissions(&self) -> bool {
        false
    }

    /// Whether it knows enough to attach: its first message tells all that there is, and what isn't in it counts as
    /// gone.
    fn is_ready(&self) -> bool {
        true
    }

    /// The daemon listens.
    fn attached(&mut self, now: Duration);

    /// The daemon is away.
    fn detached(&mut self) {}

    /// Takes a plan over. Returns answers for jobs that it changes.
    fn plan(&mut self, now: Duration, plan: v1::Plan) -> Vec<Answer>;

    /// All servers and jobs as they are now.
    fn snapshot(&mut self, now: Duration) -> Snapshot;

    /// The daemon knows all that the last snapshot said.
    fn told(&mut self) {}

    /// Does what there is to do, and touches the outbox where something may have changed. Returns when to act again at
    /// the latest.
    async fn act(&mut self, now: Duration, outbox: &mut Outbox) -> Option<Duration>;

    /// Waits until there is something to do. It may be dropped at any await.
    async fn stirred(&mut self, now: Duration, outbox: &mut Outbox);

    /// Whether it may be dropped when the host ends, at any await. Otherwise it is told to [end](Self::end).
    fn ends_at_once(&self) -> bool {
        true
    }

    /// The host ends: the agent goes on until the manager [is over](Self::is_over).
    fn end(&mut self) {}

    /// Whether nothing is left to end.
    fn is_over(&self) -> bool {
        true
    }
}

/// Runs a manager until `shutdown` resolves: attaches to the daemon, again whenever that comes back. Dropping the
/// future ends it at once.
pub async fn run(mut manager: impl Manager, daemon: Arc<dyn Daemon>, shutdown: impl Future<Output = ()> + Send) {
    let began = Instant::now();
    let mut outbox = Outbox::new(manager.name(), manager.takes_submissions());
    let (sender, mut heard) = mpsc::channel(16);
    let mut unattached = Some(sender);
    let mut tasks = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    let mut ending = false;
    loop {
        if manager.is_ready()
            && let Some(sender) = unattached.take()
        {
            tasks.spawn(keep(daemon.clone(), sender));
        }
        let at_once = manager.ends_at_once();
        let wake = tokio::select! {
            wake = manager.act(began.elapsed(), &mut outbox) => wake,
            () = &mut shutdown, if !ending && at_once => return,
        };
        let now = began.elapsed();
        if outbox.flush(now, || manager.snapshot(now)) {
            manager.told();
        }
        if ending && manager.is_over() {
            outbox.touch(now);
            outbox.flush(now.saturating_add(LONGEST_SLEEP), || manager.snapshot(now));
            sleep(LAST_MESSAGE).await;
            return;
        }
        let wake = wake.into_iter().chain(outbox.due()).min();
        let wake = began + wake.unwrap_or(LONGEST_SLEEP).min(now.saturating_add(LONGEST_SLEEP));
        tokio::select! {
            () = sleep_until(wake) => {}
            Some(heard) = heard.recv(), if unattached.is_none() => hear(&mut manager, &mut outbox, began.elapsed(), heard),
            () = manager.stirred(now, &mut outbox) => {}
            () = &mut shutdown, if !ending => {
                if at_once {
                    return;
                }
                ending = true;
                manager.end();
            }
        }
    }
}

fn hear(manager: &mut impl Manager, outbox: &mut Outbox, now: Duration, heard: Heard) {
    match heard {
        Heard::Opened(stream) => outbox.open(stream, manager.snapshot(now)),
        Heard::Attached => {
            tracing::info!("attached");
            manager.attached(now);
        }
        Heard::Lost => {
            outbox.close();
            manager.detached();
        }
        Heard::Plan(plan) => {
            let decision = plan.decision;
            outbox.answer(decision, manager.plan(now, plan));
            outbox.touch(now);
        }
    }
}

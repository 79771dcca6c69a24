//! The main loop of an adapter. It connects a manager with the daemon, and is the same for every manager.

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
    outbox::{Outbox, PlanAnswer, Snapshot},
};

/// Maximum time between two calls of [`Manager::act`]. It bounds the delay of changes that depend on time only.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);
/// Wait before a new connection after a panic in the old one.
const AGAIN: Duration = Duration::from_secs(1);
/// Time to send the last message.
const LAST_MESSAGE: Duration = Duration::from_millis(50);

/// One manager, as an adapter translates it. `now` is the time since [`run`]'s `began`.
///
/// An adapter implements [`Follows`](super::Follows), with a [`Follower`](super::Follower), to take plans.
#[async_trait]
pub trait Manager: Send {
    /// The manager's name at the daemon.
    fn name(&self) -> String;

    /// Whether any submitter can state which of the manager's own jobs a submission is.
    fn takes_submissions(&self) -> bool {
        false
    }

    /// Whether the manager knows enough to attach. The first message is a complete snapshot: the daemon treats servers
    /// and jobs that it lacks as gone.
    fn is_ready(&self) -> bool {
        true
    }

    /// Called when the daemon is connected.
    fn attached(&mut self, now: Duration);

    /// Called when the connection to the daemon is lost.
    fn detached(&mut self) {}

    /// Takes a plan. Returns answers for the jobs that the plan changes.
    fn plan(&mut self, now: Duration, plan: v1::Plan) -> Vec<PlanAnswer>;

    /// Returns the current state of all servers and jobs.
    fn snapshot(&mut self, now: Duration) -> Snapshot;

    /// Called when the daemon knows everything in the last snapshot, or isn't connected.
    fn told(&mut self) {}

    /// Carries out pending actions, and touches the outbox if something may have changed. Returns the latest time for
    /// the next call.
    async fn act(&mut self, now: Duration, outbox: &mut Outbox) -> Option<Duration>;

    /// Waits until there is something to do. The future can be dropped at any await.
    async fn stirred(&mut self, now: Duration, outbox: &mut Outbox);

    /// Whether the manager can be dropped at any await when the host ends. Otherwise [`end`](Self::end) is called.
    fn ends_at_once(&self) -> bool {
        true
    }

    /// Called when the host ends. The agent continues until [`is_over`](Self::is_over).
    fn end(&mut self) {}

    /// Whether the manager has finished after [`end`](Self::end).
    fn is_over(&self) -> bool {
        true
    }
}

/// Runs a manager until `shutdown` resolves. Attaches to the daemon, and attaches again after each lost connection.
/// `began` is the start of the manager's time. If the future is dropped, the manager ends at once.
pub async fn run(
    mut manager: impl Manager,
    began: Instant,
    daemon: Arc<dyn Daemon>,
    shutdown: impl Future<Output = ()> + Send,
) {
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
            tasks.spawn(keep(manager.name(), daemon.clone(), sender));
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
        let wake = began + wake.unwrap_or(Duration::MAX).min(now.saturating_add(LONGEST_SLEEP));
        tokio::select! {
            () = sleep_until(wake) => {}
            Some(heard) = heard.recv(), if unattached.is_none() => {
                hear(&mut manager, &mut outbox, began.elapsed(), heard);
            }
            () = manager.stirred(now, &mut outbox) => {}
            Some(ended) = tasks.join_next() => {
                // The task ends only by a panic while its receiver exists. The manager attaches again.
                if let Err(error) = ended {
                    tracing::error!(manager = manager.name(), %error, "the connection to the daemon failed");
                }
                hear(&mut manager, &mut outbox, began.elapsed(), Heard::Lost);
                let (sender, receiver) = mpsc::channel(16);
                (unattached, heard) = (Some(sender), receiver);
                sleep(AGAIN).await;
            }
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
            tracing::info!(manager = manager.name(), "attached");
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

#[cfg(test)]
mod tests {
    use std::{
        future::pending,
        sync::atomic::{AtomicU32, Ordering::Relaxed},
    };

    use tonic::Status;
    use trainmaster_core::JobSpec;

    use super::*;
    use crate::daemon::{Observations, Plans};

    /// Counts its calls.
    #[derive(Clone, Default)]
    struct Idle {
        acts: Arc<AtomicU32>,
        snapshots: Arc<AtomicU32>,
    }

    #[async_trait]
    impl Manager for Idle {
        fn name(&self) -> String {
            "idle".into()
        }

        fn attached(&mut self, _: Duration) {}

        fn plan(&mut self, _: Duration, _: v1::Plan) -> Vec<PlanAnswer> {
            Vec::new()
        }

        fn snapshot(&mut self, _: Duration) -> Snapshot {
            self.snapshots.fetch_add(1, Relaxed);
            Snapshot::default()
        }

        async fn act(&mut self, _: Duration, _: &mut Outbox) -> Option<Duration> {
            self.acts.fetch_add(1, Relaxed);
            None
        }

        async fn stirred(&mut self, _: Duration, _: &mut Outbox) {
            pending().await
        }
    }

    /// The daemon's behaviour when a manager attaches.
    #[derive(Clone, Copy)]
    enum Fate {
        Served,
        Away,
        /// A panic at the first attempt.
        Panic,
    }

    struct Fake {
        fate: Fate,
        tries: AtomicU32,
    }

    #[async_trait]
    impl Daemon for Fake {
        async fn attach(&self, observations: Observations) -> Result<Plans, Status> {
            let first = self.tries.fetch_add(1, Relaxed) == 0;
            match self.fate {
                Fate::Away => return Err(Status::unavailable("away")),
                Fate::Panic if first => panic!("on purpose"),
                Fate::Panic | Fate::Served => {}
            }
            let mut observations = observations.open().await?;
            tokio::spawn(async move { while observations.recv().await.is_some() {} });
            Ok(Box::pin(tokio_stream::pending()))
        }

        async fn submit(&self, _: &JobSpec, _: &str, _: &str) -> Result<u64, Status> {
            Err(Status::unimplemented("not needed"))
        }

        async fn jobs_of(&self, _: &str, _: bool) -> Result<Vec<v1::JobStatus>, Status> {
            Err(Status::unimplemented("not needed"))
        }

        async fn cancel(&self, _: u64) -> Result<(), Status> {
            Err(Status::unimplemented("not needed"))
        }

        async fn admit(&self, _: &JobSpec) -> Result<v1::AdmitReply, Status> {
            Err(Status::unimplemented("not needed"))
        }
    }

    /// Runs an idle manager for the given time. Returns the numbers of calls of `act` and `snapshot`, and of attempts
    /// to attach.
    async fn idle(fate: Fate, long: Duration) -> (u32, u32, u32) {
        let (manager, daemon) = (Idle::default(), Arc::new(Fake { fate, tries: AtomicU32::new(0) }));
        run(manager.clone(), Instant::now(), daemon.clone(), sleep(long)).await;
        (manager.acts.load(Relaxed), manager.snapshots.load(Relaxed), daemon.tries.load(Relaxed))
    }

    #[tokio::test(start_paused = true)]
    async fn a_manager_with_nothing_to_do_sleeps() {
        let (acts, snapshots, tries) = idle(Fate::Served, Duration::from_secs(24 * 3600)).await;
        assert!((24..40).contains(&acts), "{acts} looks in a day");
        assert_eq!((snapshots, tries), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_said_to_a_daemon_that_is_away() {
        let (_, snapshots, tries) = idle(Fate::Away, Duration::from_secs(60)).await;
        assert_eq!(snapshots, 0, "what nobody hears isn't taken as told");
        assert!((10..30).contains(&tries), "{tries} tries in a minute");
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_of_the_connection_is_survived() {
        let (_, snapshots, tries) = idle(Fate::Panic, Duration::from_secs(60)).await;
        assert_eq!((snapshots, tries), (1, 2));
    }
}

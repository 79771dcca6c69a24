//! The agent: it connects the daemon, the server for YARN's components, and time.

use std::{future::Future, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::task::JoinSet;
use trainmaster_manager::{Daemon, Launch, Manager, Outbox, PlanAnswer, Snapshot};
use trainmaster_proto::v1;

use super::{
    client,
    config::{Api, Config},
    error::YarnError,
    poller, server,
    shared::{Shared, TICK},
};

/// Runs the adapter until `shutdown` resolves. Attaches to the daemon, and serves the plug-ins and ApplicationMasters.
/// Running jobs continue while the daemon or this adapter isn't available.
///
/// # Errors
/// The certificate or the token can't be used, or the adapter can't listen. All later errors are reported, and the
/// adapter continues.
pub async fn run(
    config: Config,
    launch: Launch,
    daemon: Arc<dyn Daemon>,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), YarnError> {
    let config = Arc::new(config);
    let shared = Arc::new(Shared::new(config.clone(), daemon.clone(), &launch));
    let mut tasks = JoinSet::new();
    tasks.spawn(server::start(shared.clone(), &config, &launch.state_dir).await?);
    tasks.spawn(look_at_yarn(shared.clone(), config));
    let began = shared.began;
    trainmaster_manager::run(Agent { shared, tasks }, began, daemon, shutdown).await;
    Ok(())
}

/// The manager for the daemon.
struct Agent {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

#[async_trait]
impl Manager for Agent {
    fn name(&self) -> String {
        self.shared.cluster.clone()
    }

    fn takes_submissions(&self) -> bool {
        self.shared.api == Api::Rest
    }

    /// The nodes and the containers' jobs have to be known. Otherwise all running jobs would count as ended.
    fn is_ready(&self) -> bool {
        let state = self.shared.state();
        state.has_seen && state.has_learnt
    }

    fn attached(&mut self, _: Duration) {
        self.shared.state().translator.attached();
    }

    fn detached(&mut self) {
        self.shared.state().translator.forget_loads();
    }

    fn plan(&mut self, now: Duration, plan: v1::Plan) -> Vec<PlanAnswer> {
        self.shared.state().translator.plan(now, plan)
    }

    fn snapshot(&mut self, _: Duration) -> Snapshot {
        self.shared.state().translator.snapshot()
    }

    async fn act(&mut self, _: Duration, outbox: &mut Outbox) -> Option<Duration> {
        self.shared.act(outbox, &mut self.tasks);
        Some(self.shared.now() + TICK)
    }

    async fn stirred(&mut self, _: Duration, _: &mut Outbox) {
        loop {
            tokio::select! {
                () = self.shared.stirred.notified() => return,
                Some(ended) = self.tasks.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "a part of this adapter failed");
                    }
                }
            }
        }
    }
}

/// Fetches the known jobs from the daemon. Without plug-ins, polls YARN from then on.
async fn look_at_yarn(shared: Arc<Shared>, config: Arc<Config>) {
    // The daemon's jobs are needed to identify containers.
    shared.clone().learn_jobs().await;
    if config.api == Api::Rest {
        let user = client::user();
        if let Err(problem) = &user {
            tracing::warn!("YARN takes this adapter for whom it likes: {problem:#}");
        }
        poller::run(shared, config, user.ok()).await;
    }
}

//! Managers that run inside the daemon: they speak the same protocol as those outside, without a connection.

use std::{net::SocketAddr, sync::Arc};

use tokio::{sync::watch, task::JoinSet};
use trainmaster_manager::{Launch, Running, Shutdown};

use super::{
    config::{AdapterChoice, Config},
    error::ServeError,
    flags::url,
    inside::Inside,
    services::Services,
};

/// The adapters at work.
#[derive(Debug)]
pub(crate) struct RunningAdapters {
    tasks: JoinSet<()>,
    shutdown: watch::Sender<bool>,
}

impl RunningAdapters {
    /// Starts those that are chosen, or those that are there by default.
    ///
    /// # Errors
    /// There is none of that name, or its configuration can't be used.
    pub(super) fn start(config: &Config, address: SocketAddr, services: &Services) -> Result<Self, ServeError> {
        let (shutdown, told) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for choice in chosen(config) {
            let running = prepare(config, address, &choice, services, told.clone())?;
            let name = choice.name;
            tasks.spawn(async move {
                match running.await {
                    Ok(()) => tracing::info!(name, "the adapter ended"),
                    // Jobs and people are still served; another adapter of that name may attach from outside.
                    Err(error) => tracing::error!(name, error = format!("{error:#}"), "the adapter can't go on"),
                }
            });
        }
        Ok(Self { tasks, shutdown })
    }

    /// Ends them; the daemon still serves them meanwhile.
    pub(crate) async fn stop(mut self) {
        self.shutdown.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}

/// The adapters that a daemon with this configuration runs.
pub fn chosen(config: &Config) -> Vec<AdapterChoice> {
    config.adapters.clone().unwrap_or_else(|| {
        let defaults = config.available.all.iter().filter(|adapter| adapter.default);
        defaults.map(|adapter| AdapterChoice { name: adapter.name.into(), config: None }).collect()
    })
}

/// What an adapter is told by a daemon with this configuration that is reached at `url`.
pub fn launch(config: &Config, choice: &AdapterChoice, url: String) -> Launch {
    Launch {
        config: choice.config.clone(),
        feed: config.advertise.clone().unwrap_or(url),
        state_dir: config.state_dir.join("adapters").join(&choice.name),
        end_jobs: config.end_jobs,
        orphan_grace: config.orphan_grace,
        trainer: config.trainer.clone(),
    }
}

fn prepare(
    config: &Config,
    address: SocketAddr,
    choice: &AdapterChoice,
    services: &Services,
    mut told: watch::Receiver<bool>,
) -> Result<Running, ServeError> {
    let fail = |problem: String| ServeError::Adapter { name: choice.name.clone(), problem };
    let adapter = config.available.find(&choice.name).map_err(fail)?;
    let launch = launch(config, choice, url(config.tls.is_some(), address));
    let Services { jobs, manager } = services.clone();
    let daemon = Arc::new(Inside::new(jobs, manager, &choice.name));
    let shutdown: Shutdown = Box::pin(async move {
        let _ = told.wait_for(|told| *told).await;
    });
    (adapter.start)(launch, daemon, shutdown).map_err(|error| fail(format!("{error:#}")))
}

//! Managers that run inside the daemon, over the same protocol as those outside.

use std::net::SocketAddr;

use tokio::{sync::watch, task::JoinSet};
use trainmaster_adapters::{Launch, Running, Shutdown};

use super::{
    ServeError,
    config::{AdapterChoice, Config},
    flags::{adapter_folder, url},
};

/// The adapters at work.
#[derive(Debug)]
pub(crate) struct Adapters {
    tasks: JoinSet<()>,
    shutdown: watch::Sender<bool>,
}

impl Adapters {
    /// Starts those that are chosen, or those that are there by default.
    ///
    /// # Errors
    /// There is none of that name, or its configuration can't be used.
    pub(crate) fn start(config: &Config, address: SocketAddr) -> Result<Self, ServeError> {
        let (shutdown, told) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for choice in chosen(config) {
            let running = prepare(config, address, &choice, told.clone())?;
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

fn chosen(config: &Config) -> Vec<AdapterChoice> {
    config.adapters.clone().unwrap_or_else(|| {
        let defaults = trainmaster_adapters::all().iter().filter(|adapter| adapter.default);
        defaults.map(|adapter| AdapterChoice { name: adapter.name.into(), config: None }).collect()
    })
}

fn prepare(
    config: &Config,
    address: SocketAddr,
    choice: &AdapterChoice,
    mut told: watch::Receiver<bool>,
) -> Result<Running, ServeError> {
    let fail = |problem: String| ServeError::Adapter { name: choice.name.clone(), problem };
    let adapter = trainmaster_adapters::by_name(&choice.name).ok_or_else(|| {
        let known: Vec<_> = trainmaster_adapters::all().iter().map(|adapter| adapter.name).collect();
        fail(format!("there is no such adapter in this build; there are {}", known.join(", ")))
    })?;
    let daemon = url(config.tls.is_some(), address);
    let launch = Launch {
        config: choice.config.clone(),
        feed: config.advertise.clone().unwrap_or_else(|| daemon.clone()),
        daemon,
        token: config.admin_token.clone(),
        ca: config.tls.as_ref().map(|tls| tls.ca.clone().unwrap_or_else(|| tls.cert.clone())),
        state_dir: adapter_folder(&config.state_dir, &choice.name),
        end_jobs: config.end_jobs,
        orphan_grace: config.orphan_grace,
        trainer: config.trainer.clone(),
    };
    let shutdown: Shutdown = Box::pin(async move {
        let _ = told.wait_for(|told| *told).await;
    });
    (adapter.start)(launch, shutdown).map_err(|error| fail(format!("{error:#}")))
}

//! Managers that run inside the daemon, over the same protocol as those outside.

use std::{net::SocketAddr, path::PathBuf};

use tokio::{sync::watch, task::JoinSet};
use trainmaster_adapters::{AdapterInfo, Launch, Running, Shutdown};

use super::{
    ServeError,
    access::Tokens,
    config::{AdapterChoice, Config},
    flags::url,
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
    pub(crate) fn start(config: &Config, address: SocketAddr, tokens: &Tokens) -> Result<Self, ServeError> {
        let (shutdown, told) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for choice in chosen(config) {
            let running = prepare(config, address, &choice, tokens, told.clone())?;
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
pub(crate) fn chosen(config: &Config) -> Vec<AdapterChoice> {
    config.adapters.clone().unwrap_or_else(|| {
        let defaults = trainmaster_adapters::all().iter().filter(|adapter| adapter.default);
        defaults.map(|adapter| AdapterChoice { name: adapter.name.into(), config: None }).collect()
    })
}

/// The adapter of that name.
///
/// # Errors
/// There is none; says which there are.
pub(crate) fn known(name: &str) -> Result<&'static AdapterInfo, String> {
    trainmaster_adapters::by_name(name).ok_or_else(|| {
        let known: Vec<_> = trainmaster_adapters::all().iter().map(|adapter| adapter.name).collect();
        format!("there is no such adapter in this build; there are {}", known.join(", "))
    })
}

/// What an adapter is told by a daemon with this configuration, at `daemon` with certificates by `ca`.
pub(crate) fn launch(
    config: &Config,
    choice: &AdapterChoice,
    daemon: String,
    token: Option<String>,
    ca: Option<PathBuf>,
) -> Launch {
    Launch {
        config: choice.config.clone(),
        feed: config.advertise.clone().unwrap_or_else(|| daemon.clone()),
        daemon,
        token,
        ca,
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
    tokens: &Tokens,
    mut told: watch::Receiver<bool>,
) -> Result<Running, ServeError> {
    let fail = |problem: String| ServeError::Adapter { name: choice.name.clone(), problem };
    let adapter = known(&choice.name).map_err(fail)?;
    let ca = config.tls.as_ref().map(|tls| tls.ca.clone().unwrap_or_else(|| tls.cert.clone()));
    let token = tokens.inner(&choice.name).map_err(fail)?;
    let launch = launch(config, choice, url(config.tls.is_some(), address), Some(token), ca);
    let shutdown: Shutdown = Box::pin(async move {
        let _ = told.wait_for(|told| *told).await;
    });
    (adapter.start)(launch, shutdown).map_err(|error| fail(format!("{error:#}")))
}

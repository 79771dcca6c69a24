//! Managers that run inside the daemon. They use the same protocol as external ones, without a connection.

use std::{fs, net::SocketAddr, sync::Arc};

use tokio::{sync::watch, task::JoinSet};
use trainmaster_manager::{CheckJob, Launch, OpenLogs, Running, Shutdown};

use super::{
    config::{AdapterChoice, Config},
    error::ServeError,
    flags::url,
    inside::Inside,
    services::Services,
};

/// The running adapters.
#[derive(Debug)]
pub(crate) struct RunningAdapters {
    tasks: JoinSet<()>,
    shutdown: watch::Sender<bool>,
}

impl RunningAdapters {
    /// Starts the chosen adapters, or the default ones.
    ///
    /// # Errors
    /// No adapter has this name, or its configuration is invalid.
    pub(super) fn start(config: &Config, address: SocketAddr, services: &Services) -> Result<Self, ServeError> {
        let (shutdown, told) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for choice in chosen(config) {
            let running = prepare(config, address, &choice, services, told.clone())?;
            let name = choice.name;
            tasks.spawn(async move {
                match running.await {
                    Ok(()) => tracing::info!(name, "the adapter ended"),
                    // Calls are still served, and an external adapter with this name may attach.
                    Err(error) => tracing::error!(name, error = format!("{error:#}"), "the adapter can't go on"),
                }
            });
        }
        Ok(Self { tasks, shutdown })
    }

    /// Ends the adapters. The daemon still serves them until they have ended.
    pub(crate) async fn stop(mut self) {
        self.shutdown.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Checks the names of the chosen adapters, and that their configuration files exist.
///
/// # Errors
/// No adapter has this name, two have it, or its file doesn't exist.
pub(super) fn check(config: &Config) -> Result<(), ServeError> {
    let choices = chosen(config);
    for (at, AdapterChoice { name, config: file }) in choices.iter().enumerate() {
        let checked = config.available.find(name).and_then(|_| match file {
            _ if choices[..at].iter().any(|earlier| earlier.name == *name) => Err("it is given twice".into()),
            Some(file) => fs::metadata(file).map(drop).map_err(|error| format!("{}: {error}", file.display())),
            None => Ok(()),
        });
        checked.map_err(|problem| ServeError::Adapter { name: name.clone(), problem })?;
    }
    Ok(())
}

/// The adapters that run in a daemon with this configuration.
pub fn chosen(config: &Config) -> Vec<AdapterChoice> {
    config.adapters.clone().unwrap_or_else(|| {
        let defaults = config.available.all.iter().filter(|adapter| adapter.default);
        defaults.map(|adapter| AdapterChoice { name: adapter.name.into(), config: None }).collect()
    })
}

/// The arguments of an adapter in a daemon with this configuration, whose URL is `url`.
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

/// The adapter in the daemon that keeps what jobs print, with its arguments.
pub(crate) fn keeper_of_logs(config: &Config) -> Option<(Launch, OpenLogs)> {
    let url = url(config.tls.is_some(), config.listen);
    chosen(config).into_iter().find_map(|choice| {
        let logs = config.available.find(&choice.name).ok()?.logs?;
        Some((launch(config, &choice, url.clone()), logs))
    })
}

/// The check of a job's programs, with its arguments, if one adapter of the daemon starts all of them.
pub(crate) fn check_of_jobs(config: &Config) -> Option<(String, Launch, CheckJob)> {
    let [choice] = &chosen(config)[..] else { return None };
    let check = config.available.find(&choice.name).ok()?.check_job?;
    Some((choice.name.clone(), launch(config, choice, url(config.tls.is_some(), config.listen)), check))
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

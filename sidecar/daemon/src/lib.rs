//! The daemon behind `trainmaster serve`.
//!
//! [`serve`] runs the daemon until it is stopped. [`Daemon`] runs it beside other work, such as a demonstration or a
//! test. One port serves gRPC (jobs, managers, administration, the feed, health, reflection), `/metrics` and `/jobs`.
//!
//! # Examples
//! ```
//! use trainmaster_daemon::{Config, Daemon};
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let folder = tempfile::tempdir().unwrap();
//! let daemon = Daemon::start(Config::new(folder.path())).await.unwrap();
//! assert!(daemon.url().starts_with("http://127.0.0.1:"));
//! daemon.stop().await;
//! # });
//! ```

pub(crate) mod access;
pub mod adapters;
mod config;
mod ended;
mod error;
mod flags;
mod host;
mod inside;
mod log;
mod pages;
mod preflight;
mod services;
mod session;
mod settings;
mod store;

use std::{
    future::Future,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use axum::Router;
use prometheus::Registry;
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};
use trainmaster_feed::{Feed, FeedMetrics, FeedService};
use trainmaster_net::{NetMetrics, Port, guarded, secret};

pub use self::{
    access::{ADMIN_TOKEN, Role, access_table, check_tokens, is_name},
    config::{AdapterChoice, Config, DecisionConfig, JournalConfig, LimitsConfig, Tls, merge},
    error::ServeError,
    flags::Flags,
    log::{LogFormat, LogLines},
    preflight::{UnusableFile, unusable_files},
    settings::settings_table,
    store::{Audit, JournalFile, StoreError, faults::Faults, read_audit, read_journal},
};
use self::{
    access::{Keeper, Tokens},
    adapters::RunningAdapters,
    host::{Host, HostMetrics, Opened},
    log::LogMetric,
    services::{
        Services,
        admin::AdminService,
        jobs::{JobsService, ProgramCheck},
        logs::LogSource,
        manager::ManagerService,
    },
};

/// A running daemon.
///
/// A drop closes the port at once and waits for nothing. [`stop`](Self::stop) ends the daemon in good order.
#[derive(Debug)]
pub struct Daemon {
    address: SocketAddr,
    url: String,
    host: Host,
    thread: Option<thread::JoinHandle<()>>,
    port: JoinHandle<()>,
    close: Option<oneshot::Sender<()>>,
    adapters: Option<RunningAdapters>,
    admin_token: PathBuf,
}

impl Daemon {
    /// Recovers the state from its folder, opens the port and starts the adapters.
    ///
    /// # Errors
    /// See [`ServeError`]. Nothing runs after an error.
    pub async fn start(config: Config) -> Result<Self, ServeError> {
        config.check()?;
        adapters::check(&config)?;
        let tls = config.tls.as_ref().map(|tls| trainmaster_net::Tls::read(tls.files())).transpose();
        let tls = tls.map_err(|error| ServeError::Config(error.to_string()))?;
        // The port comes before any file, because another daemon may already run.
        let listen = |error| ServeError::Listen { address: config.listen, error };
        let listener = TcpListener::bind(config.listen).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let unusable = |error| {
            let folder = config.state_dir.display();
            ServeError::Config(format!("state folder {folder} can't be made: {error}; --state-dir names another"))
        };
        secret::make_folder(&config.state_dir).map_err(unusable)?;
        let tokens = Tokens::open(&config.state_dir, config.admin_token_file.as_deref()).map_err(ServeError::Tokens)?;

        let registry = Registry::new();
        let metrics = Metrics::register(&registry).expect("names are unique in a new registry");
        let feed = Feed::new(config.feed_limits(), metrics.feed);
        let (folder, settings) = (config.state_dir.clone(), config.settings.clone());
        let loaded = config.policy.load();
        loaded.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        let (kept, history, faults) = (config.journal.ended_jobs, config.journal.history_bytes, config.faults.clone());
        let opened = tokio::task::spawn_blocking(move || {
            Opened::open(&folder, settings, loaded.policies, kept, history, faults)
        });
        let opened = opened.await.map_err(std::io::Error::other)??;
        let (host, thread) = host::start(opened, config.host_options(), metrics.host, feed.clone())?;

        let check = adapters::check_of_jobs(&config);
        let check = check.map(|(name, launch, check)| ProgramCheck { manager: name.into(), launch, check });
        let logs = LogSource::new(adapters::keeper_of_logs(&config), config.grace);
        let services = Services {
            jobs: JobsService::new(host.clone(), logs, check),
            manager: ManagerService::new(host.clone(), &config),
        };
        let (close, closed) = oneshot::channel::<()>();
        let port = Port {
            listener,
            router: router(&config, &host, &services, feed, registry, &tokens, metrics.net.clone()).await,
            tls,
            metrics: metrics.net,
            connections: config.limits.connections.max(1),
        };
        let port = tokio::spawn(port.serve(async {
            let _ = closed.await;
        }));
        let url = flags::url(config.tls.is_some(), address);
        let (close, thread, admin_token) = (Some(close), Some(thread), tokens.admin_file());
        let mut daemon = Self { address, url, host, thread, port, close, adapters: None, admin_token };
        match RunningAdapters::start(&config, address, &services) {
            Ok(adapters) => daemon.adapters = Some(adapters),
            Err(error) => {
                daemon.stop().await;
                return Err(error);
            }
        }
        tracing::info!(%address, state_dir = %config.state_dir.display(), engine = config.settings.engine, "serving");
        Ok(daemon)
    }

    /// The address of the port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL for programs on this machine.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The file with the administrator's token.
    pub fn admin_token(&self) -> &Path {
        &self.admin_token
    }

    /// Waits until the scheduler's thread ends by itself, which only a bug can cause. The log has the details. Calls
    /// aren't served any more. Everything that was acknowledged is in the journal.
    pub async fn failed(&self) {
        self.host.closed().await;
    }

    /// Ends the daemon in good order: first the adapters, then pending calls, then the journal, whose last record is a
    /// snapshot.
    pub async fn stop(mut self) {
        if let Some(adapters) = self.adapters.take() {
            adapters.stop().await;
        }
        self.host.stop().await;
        if let Some(close) = self.close.take() {
            let _ = close.send(());
        }
        let _ = (&mut self.port).await;
        if let Some(thread) = self.thread.take() {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
        tracing::info!("stopped");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.port.abort();
    }
}

/// Runs the daemon until `shutdown` resolves.
///
/// # Errors
/// The daemon can't start, or failed; see [`ServeError`].
pub async fn serve(config: Config, shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
    let daemon = Daemon::start(config).await?;
    let failed = tokio::select! {
        () = shutdown => false,
        () = daemon.failed() => true,
    };
    daemon.stop().await;
    if failed { Err(ServeError::Failed) } else { Ok(()) }
}

struct Metrics {
    host: HostMetrics,
    feed: FeedMetrics,
    net: NetMetrics,
}

impl Metrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            host: HostMetrics::register(registry)?,
            feed: FeedMetrics::register(registry)?,
            net: NetMetrics::register(registry)?,
        })
    }
}

/// The services of the port.
async fn router(
    config: &Config,
    host: &Host,
    asked: &Services,
    feed: Feed,
    registry: Registry,
    tokens: &Tokens,
    metrics: NetMetrics,
) -> Router {
    let Services { jobs, manager } = asked.clone();
    let (jobs, manager) = (jobs.into_server(), manager.into_server());
    let admin = AdminService::new(host.clone(), config, tokens.clone(), metrics.clone()).into_server();
    let keeper = Keeper::new(tokens.clone(), feed.clone(), config.keeper_limits());
    let feed = FeedService::new(feed, Arc::new(host.clone())).into_server();
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_service_status("", tonic_health::ServingStatus::Serving).await;
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(trainmaster_proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let valid = "the descriptors are compiled in";
    let services = tonic::service::Routes::new(jobs)
        .add_service(manager)
        .add_service(admin)
        .add_service(feed)
        .add_service(health_service)
        .add_service(reflection().build_v1().expect(valid))
        .add_service(reflection().build_v1alpha().expect(valid));
    let log = LogMetric::register(config.log.clone(), &registry).expect("names are unique in a new registry");
    let router = services.into_axum_router().reset_fallback().merge(pages::pages(host.clone(), registry, log));
    guarded(router, config.door(), Arc::new(keeper), config.load_limits(), metrics)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_scheduler_that_fails_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let daemon = Daemon::start(Config::new(folder.path())).await.unwrap();
        let answer = daemon.host.read(|_| panic!("on purpose")).await;
        assert!(answer.is_err());
        daemon.failed().await;
        daemon.stop().await;
        // The file is closed now.
        Daemon::start(Config::new(folder.path())).await.unwrap().stop().await;
    }
}

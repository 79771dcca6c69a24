//! The daemon's flags on the command line. Each overrides the configuration file.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;

use super::{
    ServeError,
    config::{AdapterChoice, Config, Tls, parse_listen},
    log::LogFormat,
};

/// Flags of `trainmaster serve`.
#[derive(Args, Clone, Debug, Default)]
pub struct Flags {
    /// Configuration file (TOML)
    #[arg(long, env = "TRAINMASTER_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address of the one port for gRPC, metrics and JSON; by default 127.0.0.1:7070
    #[arg(long, env = "TRAINMASTER_LISTEN", value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,
    /// Folder for the journal; by default ~/.local/state/trainmaster
    #[arg(long, env = "TRAINMASTER_STATE_DIR", value_name = "FOLDER")]
    pub state_dir: Option<PathBuf>,
    /// Scheduling engine; another than the settings' comes with its own default parameters
    #[arg(long, env = "TRAINMASTER_ENGINE", value_name = "NAME")]
    pub engine: Option<String>,
    /// Policy for engines that follow one (mlfs, rl): a file of `train-policy`, or none; by default those that ship
    /// with the product
    #[arg(long, env = "TRAINMASTER_POLICY", value_name = "FILE")]
    pub policy: Option<String>,
    /// Manager to run inside the daemon, with its configuration file; "none" for none
    #[arg(long, env = "TRAINMASTER_ADAPTER", value_name = "NAME[=FILE]")]
    pub adapter: Vec<String>,
    /// Certificate for TLS (PEM)
    #[arg(long, env = "TRAINMASTER_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key for TLS (PEM)
    #[arg(long, env = "TRAINMASTER_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// File with the administrator's token, readable by its owner alone; by default one is made in the state folder
    #[arg(long, env = "TRAINMASTER_ADMIN_TOKEN_FILE", value_name = "FILE")]
    pub admin_token_file: Option<PathBuf>,
    /// The program of jobs without a command
    #[arg(long, env = "TRAINMASTER_TRAINER", value_name = "FILE")]
    pub trainer: Option<PathBuf>,
    /// End the jobs' processes with the daemon instead of leaving them for the next one
    #[arg(
        long,
        env = "TRAINMASTER_END_JOBS",
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub end_jobs: Option<bool>,
    /// Form of the log's lines on standard error; by default text
    #[arg(long, env = "TRAINMASTER_LOG_FORMAT", value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Collector for OpenTelemetry traces (OTLP over gRPC), such as http://127.0.0.1:4317; needs a build with the
    /// feature otel
    #[arg(long, env = "TRAINMASTER_OTLP", value_name = "ADDRESS")]
    pub otlp: Option<String>,
}

impl Flags {
    /// The configuration of the named file, or the default one.
    ///
    /// # Errors
    /// A file that can't be read, or a value that isn't allowed.
    pub fn file(&self) -> Result<Config, ServeError> {
        match &self.config {
            Some(path) => Config::load(path),
            None => Config::from_toml(""),
        }
    }

    /// A configuration with the flags applied.
    ///
    /// # Errors
    /// A value that isn't allowed.
    pub fn over(&self, mut config: Config) -> Result<Config, ServeError> {
        if let Some(listen) = &self.listen {
            config.listen = parse_listen(listen)?;
        }
        if let Some(folder) = &self.state_dir {
            config.state_dir.clone_from(folder);
        }
        if let Some(engine) = self.engine.as_ref().filter(|engine| **engine != config.settings.engine) {
            config.settings.engine.clone_from(engine);
            config.settings.parameters.clear();
        }
        if let Some(policy) = &self.policy {
            config.policy = policy.as_str().into();
        }
        match self.adapter.as_slice() {
            [] => {}
            [none] if none == "none" => config.adapters = Some(Vec::new()),
            chosen => config.adapters = Some(chosen.iter().map(|text| AdapterChoice::parse(text)).collect()),
        }
        if let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) {
            let given = config.tls.take().unwrap_or_else(|| Tls::new(cert, key));
            config.tls = Some(Tls { cert: cert.clone(), key: key.clone(), ..given });
        }
        if let Some(path) = &self.admin_token_file {
            config.admin_token_file = Some(path.clone());
        }
        if let Some(trainer) = &self.trainer {
            config.trainer = Some(trainer.clone());
        }
        config.end_jobs = self.end_jobs.unwrap_or(config.end_jobs);
        if let Some(format) = self.log_format {
            config.log_format = format;
        }
        if let Some(otlp) = &self.otlp {
            config.otlp = Some(otlp.clone());
        }
        Ok(config)
    }
}

/// The URL of a daemon for programs on this machine.
pub(super) fn url(tls: bool, address: SocketAddr) -> String {
    let scheme = if tls { "https" } else { "http" };
    let mut reached = address;
    if address.ip().is_unspecified() {
        // A port that listens on all addresses is reached over loopback.
        reached.set_ip(match address {
            SocketAddr::V4(_) => [127, 0, 0, 1].into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    format!("{scheme}://{reached}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_override_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("daemon.toml");
        std::fs::write(&file, "listen = \":1\"\nstate_dir = \"s\"\nadapters = [\"local=c.toml\"]").unwrap();
        let flags = Flags { config: Some(file.clone()), ..Flags::default() };
        let config = flags.over(flags.file().unwrap()).unwrap();
        assert_eq!(config.state_dir, folder.path().join("s"));
        assert_eq!(config.adapters.unwrap()[0].config, Some(folder.path().join("c.toml")));
        let flags = Flags {
            listen: Some("127.0.0.1:2".into()),
            engine: Some("fifo".into()),
            adapter: vec!["none".into()],
            end_jobs: Some(true),
            ..flags
        };
        let config = flags.over(flags.file().unwrap()).unwrap();
        assert_eq!((config.listen.port(), config.settings.engine.as_str()), (2, "fifo"));
        assert_eq!(config.adapters, Some(Vec::new()));
        assert!(config.end_jobs);
        let missing = Flags { config: Some(folder.path().join("no.toml")), ..Flags::default() };
        assert!(missing.file().unwrap_err().to_string().contains("no.toml"));
    }

    #[test]
    fn an_open_address_is_reached_over_loopback() {
        assert_eq!(url(true, "0.0.0.0:7070".parse().unwrap()), "https://127.0.0.1:7070");
        assert_eq!(url(false, "[::1]:7070".parse().unwrap()), "http://[::1]:7070");
    }
}

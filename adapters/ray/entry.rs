//! The adapter's description for hosts.

use std::sync::Arc;

use trainmaster_manager::{AdapterInfo, Check, Daemon, Launch, Running, Shutdown};

use super::{Config, doctor, run};
use crate::{FileError, file};

/// The adapter's description for hosts.
pub const INFO: AdapterInfo = AdapterInfo {
    name: "ray",
    summary: "a Ray cluster; drivers make the placement groups that plans ask for",
    default: false,
    sample: include_str!("ray.toml"),
    doctor: examine,
    start,
    logs: None,
    check_job: None,
};

fn start(launch: Launch, daemon: Arc<dyn Daemon>, shutdown: Shutdown) -> anyhow::Result<Running> {
    let config = config(&launch)?;
    Ok(Box::pin(async move {
        run(config, daemon, shutdown).await;
        Ok(())
    }))
}

fn examine(launch: &Launch) -> Vec<Check> {
    file::examine("configuration", config(launch), |config| {
        let types = match config.node_types.len() {
            0 => "no node types to come".to_owned(),
            1 => "1 node type to come".to_owned(),
            count => format!("{count} node types to come"),
        };
        (format!("{}: {types}", file::shown(launch)), doctor(config))
    })
}

fn config(launch: &Launch) -> Result<Config, FileError> {
    launch.config.as_deref().map_or_else(|| Config::parse("", "the defaults"), Config::load)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use trainmaster_manager::{
        Health,
        testing::{away, launch},
    };

    use super::*;

    #[test]
    fn the_sample_has_every_setting() {
        let config = Config::parse(INFO.sample, "sample").unwrap();
        assert_eq!(config.node_types[0].name, "burst");
        let bare = Config::parse("", "nothing").unwrap();
        assert_eq!(
            (config.poll, config.placement_timeout, config.driver_timeout, config.request_resources),
            (bare.poll, bare.placement_timeout, bare.driver_timeout, bare.request_resources)
        );
        assert_eq!((&config.name, config.address()), (&bare.name, "127.0.0.1:6379"));
        assert_eq!((config.dashboard(), config.api, config.untested), (bare.dashboard(), bare.api, bare.untested));
    }

    #[tokio::test]
    async fn it_waits_for_a_head_that_is_away_and_ends() {
        let folder = tempfile::tempdir().unwrap();
        let info = INFO;
        assert!((info.start)(launch(folder.path(), Some("pol = 1")), away(), Box::pin(async {})).is_err());
        let shutdown = Box::pin(tokio::time::sleep(Duration::from_millis(50)));
        let running = (info.start)(launch(folder.path(), Some("address = \"127.0.0.1:1\"")), away(), shutdown).unwrap();
        running.await.unwrap();
    }

    #[test]
    fn the_doctor_names_the_head_that_is_away() {
        let folder = tempfile::tempdir().unwrap();
        let checks = (INFO.doctor)(&launch(folder.path(), Some("address = \"127.0.0.1:1\"")));
        let bad = checks.iter().find(|check| check.verdict == Health::Bad).unwrap();
        assert!(bad.name == "head" && bad.detail.contains("127.0.0.1:1"), "{bad:?}");
        assert_eq!((INFO.doctor)(&launch(folder.path(), Some("oops")))[0].verdict, Health::Bad);
    }
}

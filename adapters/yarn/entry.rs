//! The adapter's description for hosts.

use std::sync::Arc;

use trainmaster_manager::{AdapterInfo, Check, Daemon, Launch, Running, Shutdown};

use super::{Config, doctor, run};
use crate::{FileError, file};

/// The adapter's description for hosts.
pub const INFO: AdapterInfo = AdapterInfo {
    name: "yarn",
    summary: "a YARN cluster; plug-ins in its ResourceManager enforce what ApplicationMasters ask for",
    default: false,
    sample: include_str!("yarn.toml"),
    doctor: examine,
    start,
    logs: None,
    check_job: None,
};

fn start(launch: Launch, daemon: Arc<dyn Daemon>, shutdown: Shutdown) -> anyhow::Result<Running> {
    let config = config(&launch)?;
    Ok(Box::pin(async move { Ok(run(config, launch, daemon, shutdown).await?) }))
}

fn examine(launch: &Launch) -> Vec<Check> {
    file::examine("configuration", config(launch), |config| (file::shown(launch), doctor(config, launch)))
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
        let sample = Config::parse(INFO.sample, "sample").unwrap();
        let bare = Config::parse("", "nothing").unwrap();
        assert_eq!((sample.bandwidth, sample.disk), (Some(10_000), Some(204_800)));
        assert_eq!(sample.resourcemanager.as_ref().map(ToString::to_string).as_deref(), Some("http://127.0.0.1:8088"));
        assert_eq!(sample.master.classpath, "/opt/trainmaster/yarn-master.jar");
        let master = bare.master.clone();
        assert_eq!(Config { bandwidth: None, disk: None, master, resourcemanager: None, ..sample }, bare);
        let whole = INFO.sample.replace("# tls", "tls").replace("# token_file", "token_file");
        let whole = Config::parse(&whole, "sample").unwrap();
        assert!(whole.tls.is_some() && whole.token_file.is_some());
    }

    #[tokio::test]
    async fn it_waits_for_plug_ins_that_are_away_and_ends() {
        let folder = tempfile::tempdir().unwrap();
        let info = INFO;
        assert!((info.start)(launch(folder.path(), Some("pol = 1")), away(), Box::pin(async {})).is_err());
        let shutdown = Box::pin(tokio::time::sleep(Duration::from_millis(50)));
        let running = (info.start)(launch(folder.path(), Some("listen = \"127.0.0.1:0\"")), away(), shutdown).unwrap();
        running.await.unwrap();
    }

    #[tokio::test]
    async fn it_says_what_keeps_it_from_listening() {
        let folder = tempfile::tempdir().unwrap();
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap().to_string();
        let short = folder.path().join("short");
        trainmaster_net::secret::write(&short, "secret\n").unwrap();
        let missing = folder.path().join("missing");
        for (config, parts) in [
            (format!("listen = {address:?}"), [address.as_str(), "listen"]),
            (format!("listen = \"127.0.0.1:0\"\ntoken_file = {short:?}"), ["short", "16 to 1024 characters"]),
            (format!("listen = \"127.0.0.1:0\"\ntoken_file = {missing:?}"), ["missing", "No such file"]),
            (
                format!("listen = \"127.0.0.1:0\"\ntls = {{ cert = {short:?}, key = {short:?} }}"),
                ["short", "no certificate"],
            ),
        ] {
            let running =
                (INFO.start)(launch(folder.path(), Some(&config)), away(), Box::pin(std::future::pending())).unwrap();
            let error = format!("{:#}", running.await.unwrap_err());
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }

    #[test]
    fn the_doctor_names_what_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let config = "listen = \"127.0.0.1:0\"\nresourcemanager = \"http://127.0.0.1:1\"";
        let checks = (INFO.doctor)(&launch(folder.path(), Some(config)));
        let bad = checks.iter().find(|check| check.verdict == Health::Bad).unwrap();
        assert!(bad.name == "resourcemanager" && bad.detail.contains("127.0.0.1:1"), "{bad:?}");
        assert_eq!((INFO.doctor)(&launch(folder.path(), Some("oops")))[0].verdict, Health::Bad);
    }
}

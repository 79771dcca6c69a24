//! This adapter's line in the registry.

use super::{Cluster, OnShutdown, Options, doctor, run};
use crate::{AdapterInfo, Check, FileError, Launch, Running, Shutdown, Verdict};

/// What hosts know of this adapter.
pub const INFO: AdapterInfo = AdapterInfo {
    name: "local",
    summary: "this machine, cut into virtual servers; starts and watches the processes itself",
    default: true,
    sample: include_str!("cluster.toml"),
    doctor: examine,
    start,
};

fn start(launch: Launch, shutdown: Shutdown) -> anyhow::Result<Running> {
    let cluster = cluster(&launch)?;
    let options = options(launch);
    Ok(Box::pin(async move { Ok(run(cluster, options, shutdown).await?) }))
}

fn examine(launch: &Launch) -> Vec<Check> {
    match cluster(launch) {
        Ok(cluster) => {
            let servers = match cluster.servers().len() {
                1 => "1 server".to_owned(),
                count => format!("{count} servers"),
            };
            let found = match &launch.config {
                Some(file) => format!("{}: {servers}", file.display()),
                None => format!("none given: {servers}, this machine"),
            };
            let mut checks = vec![Check::new("cluster file", Verdict::Good, found)];
            checks.extend(doctor(&cluster, &options(launch.clone())));
            checks
        }
        Err(error) => vec![Check::new("cluster file", Verdict::Bad, error.to_string())],
    }
}

fn cluster(launch: &Launch) -> Result<Cluster, FileError> {
    launch.config.as_deref().map_or_else(|| Ok(Cluster::this_machine()), Cluster::load)
}

fn options(launch: Launch) -> Options {
    Options {
        token: launch.token,
        ca: launch.ca,
        on_shutdown: if launch.end_jobs { OnShutdown::End } else { OnShutdown::Keep },
        orphan_grace: launch.orphan_grace,
        trainer_path: launch.trainer,
        ..Options::new(launch.daemon, launch.feed, launch.state_dir)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn launch(config: Option<&str>, folder: &std::path::Path) -> Launch {
        Launch {
            config: config.map(|text| {
                let path = folder.join("cluster.toml");
                std::fs::write(&path, text).unwrap();
                path
            }),
            daemon: "http://127.0.0.1:1".into(),
            token: None,
            ca: None,
            feed: "http://127.0.0.1:1".into(),
            state_dir: folder.join("state"),
            end_jobs: true,
            orphan_grace: Duration::from_secs(1),
            trainer: Some("/bin/sh".into()),
        }
    }

    #[test]
    fn the_sample_is_a_cluster() {
        assert!(Cluster::parse(INFO.sample, "sample").unwrap().servers().len() > 1);
    }

    #[test]
    fn the_doctor_looks_at_this_machine() {
        let folder = tempfile::tempdir().unwrap();
        let info = crate::by_name("local").unwrap();
        let checks = (info.doctor)(&launch(None, folder.path()));
        let bad: Vec<_> = checks.iter().filter(|check| check.verdict == Verdict::Bad).collect();
        assert_eq!(bad, Vec::<&Check>::new());
        assert!(!folder.path().join("state").exists(), "it only looks");
        assert!(checks.iter().any(|check| check.name == "trainer" && check.detail == "/bin/sh"));
        let checks = (info.doctor)(&launch(Some("oops"), folder.path()));
        assert_eq!(checks[0].verdict, Verdict::Bad);
    }

    #[tokio::test]
    async fn it_starts_and_ends_without_a_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let info = crate::by_name("local").unwrap();
        assert!((info.start)(launch(Some("server = 1"), folder.path()), Box::pin(async {})).is_err());
        let running = (info.start)(launch(None, folder.path()), Box::pin(async {})).unwrap();
        running.await.unwrap();
    }
}

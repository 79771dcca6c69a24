//! This adapter's line in the registry.

use super::{Cluster, OnShutdown, Options, doctor, run};
use crate::{AdapterInfo, Check, FileError, Launch, Running, Shutdown, file};

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
    file::examine("cluster file", cluster(launch), |cluster| {
        let servers = match cluster.servers().len() {
            1 => "1 server".to_owned(),
            count => format!("{count} servers"),
        };
        let machine = if launch.config.is_none() { ", this machine" } else { "" };
        let found = format!("{}: {servers}{machine}", file::shown(launch));
        (found, doctor(cluster, &options(launch.clone())))
    })
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
    use super::*;
    use crate::Verdict;

    #[test]
    fn the_sample_is_a_cluster() {
        assert!(Cluster::parse(INFO.sample, "sample").unwrap().servers().len() > 1);
    }

    #[test]
    fn the_doctor_looks_at_this_machine() {
        let folder = tempfile::tempdir().unwrap();
        let info = crate::by_name("local").unwrap();
        let checks = (info.doctor)(&Launch::for_test(folder.path(), None));
        let bad: Vec<_> = checks.iter().filter(|check| check.verdict == Verdict::Bad).collect();
        assert_eq!(bad, Vec::<&Check>::new());
        assert!(!folder.path().join("state").exists(), "it only looks");
        assert!(checks.iter().any(|check| check.name == "trainer" && check.detail == "/bin/sh"));
        let checks = (info.doctor)(&Launch::for_test(folder.path(), Some("oops")));
        assert_eq!(checks[0].verdict, Verdict::Bad);
    }

    #[tokio::test]
    async fn it_starts_and_ends_without_a_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let info = crate::by_name("local").unwrap();
        assert!((info.start)(Launch::for_test(folder.path(), Some("server = 1")), Box::pin(async {})).is_err());
        let running = (info.start)(Launch::for_test(folder.path(), None), Box::pin(async {})).unwrap();
        running.await.unwrap();
    }
}

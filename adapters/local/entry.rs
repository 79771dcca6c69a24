//! The adapter's description for hosts.

use std::sync::Arc;

use trainmaster_core::JobSpec;
use trainmaster_manager::{AdapterInfo, Check, Daemon, Launch, Logs, LogsOf, Running, Shutdown};

use super::{Cluster, OnShutdown, Options, command::Programs, doctor, log_reader::LogReader, run};
use crate::{FileError, file};

/// The adapter's description for hosts.
pub const INFO: AdapterInfo = AdapterInfo {
    name: "local",
    summary: "this machine, cut into virtual servers; starts and watches the processes itself",
    default: true,
    sample: include_str!("cluster.toml"),
    doctor: examine,
    start,
    logs: Some(logs),
    check_job: Some(check),
};

fn start(launch: Launch, daemon: Arc<dyn Daemon>, shutdown: Shutdown) -> anyhow::Result<Running> {
    let cluster = cluster(&launch)?;
    let options = options(launch);
    Ok(Box::pin(async move { Ok(run(cluster, options, daemon, shutdown).await?) }))
}

fn logs(launch: &Launch, of: LogsOf) -> Box<dyn Logs> {
    Box::new(LogReader::new(&launch.state_dir, of))
}

fn check(launch: &Launch, spec: &JobSpec) -> Result<(), String> {
    let programs = Programs::new(launch.trainer.clone());
    let server = spec.server.as_ref().map(|role| role.command.trim());
    // A server without a command runs that of the workers.
    let commands = [
        ("worker.command", Some(spec.worker.command.trim())),
        ("server.command", server.filter(|text| !text.is_empty())),
    ];
    commands
        .into_iter()
        .filter_map(|(key, command)| Some((key, command?)))
        .try_for_each(|(key, command)| programs.check(command).map_err(|problem| format!("{key}: {problem}")))
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
        on_shutdown: if launch.end_jobs { OnShutdown::End } else { OnShutdown::Keep },
        orphan_grace: launch.orphan_grace,
        trainer_path: launch.trainer,
        ..Options::new(launch.feed, launch.state_dir)
    }
}

#[cfg(test)]
mod tests {
    use trainmaster_manager::{
        Health,
        testing::{away, launch},
    };

    use super::*;

    #[test]
    fn the_sample_is_a_cluster() {
        assert!(Cluster::parse(INFO.sample, "sample").unwrap().servers().len() > 1);
    }

    #[test]
    fn the_doctor_looks_at_this_machine() {
        let folder = tempfile::tempdir().unwrap();
        let info = INFO;
        let checks = (info.doctor)(&launch(folder.path(), None));
        let bad: Vec<_> = checks.iter().filter(|check| check.verdict == Health::Bad).collect();
        assert_eq!(bad, Vec::<&Check>::new());
        assert!(!folder.path().join("state").exists(), "it only looks");
        assert!(checks.iter().any(|check| check.name == "trainer" && check.detail == "/bin/sh"));
        let checks = (info.doctor)(&launch(folder.path(), Some("oops")));
        assert_eq!(checks[0].verdict, Health::Bad);
    }

    #[tokio::test]
    async fn it_starts_and_ends_without_a_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let info = INFO;
        assert!((info.start)(launch(folder.path(), Some("server = 1")), away(), Box::pin(async {})).is_err());
        let running = (info.start)(launch(folder.path(), None), away(), Box::pin(async {})).unwrap();
        running.await.unwrap();
    }
}

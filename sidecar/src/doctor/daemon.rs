//! Checks of the daemon.

use std::path::PathBuf;

use trainmaster_core::Span;
use trainmaster_manager::Health;
use trainmaster_proto::v1::{SchedulingMode, StatusReply, StatusRequest};
use trainmaster_terminal::{
    client::{Daemon, ServerArgs},
    output::left,
};

use super::Found;

/// Age of a decision that is unusual while there are jobs: longer than engines' default intervals.
const OLD: Span = Span::seconds(20 * 60);

/// Remaining lifetime at which a certificate should be renewed. It includes weekends and holidays.
const RENEW: Span = Span::seconds(14 * 24 * 3600);

/// The daemon's information about its machine.
pub(super) struct Theirs {
    /// Its state folder.
    pub(super) state_dir: PathBuf,
    /// Its adapters, in the form of `--adapter`.
    pub(super) adapters: Vec<String>,
}

/// All checks of the daemon and its jobs. If it isn't running, the only result is that.
pub(super) async fn examine(server: &ServerArgs) -> (Vec<Found>, Option<Theirs>) {
    let status = async {
        let daemon = Daemon::connect(server).await?;
        let reply = daemon.admin().status(StatusRequest {}).await;
        reply.map(tonic::Response::into_inner).map_err(|status| daemon.failure(&status))
    };
    match status.await {
        Ok(status) => {
            let found = judge(&server.address(), &status);
            let theirs = Theirs { state_dir: status.state_dir.into(), adapters: status.adapters };
            (found, Some(theirs).filter(|theirs| !theirs.state_dir.as_os_str().is_empty()))
        }
        Err(failure) => (vec![Found::new("daemon", "answers", Health::Bad, failure.to_string())], None),
    }
}

fn judge(address: &str, status: &StatusReply) -> Vec<Found> {
    let found = |check, verdict, detail: String| Found::new("daemon", check, verdict, detail);
    let own = env!("CARGO_PKG_VERSION");
    let version = match &*status.version {
        theirs if theirs == own => found("version", Health::Good, own.into()),
        theirs => found("version", Health::Doubtful, format!("{theirs}, this program is {own}; use one version")),
    };
    let journal = match &*status.journal_error {
        "" => found("journal", Health::Good, "written".into()),
        error => {
            let why = error.strip_prefix("journal ").unwrap_or(error);
            found("journal", Health::Bad, format!("{why}; so nothing is acknowledged: free space"))
        }
    };
    let mode = match status.mode() {
        SchedulingMode::Active => found("mode", Health::Good, "active".into()),
        SchedulingMode::Shadow => found("mode", Health::Doubtful, "shadow: decisions aren't carried out".into()),
        SchedulingMode::Paused => found("mode", Health::Doubtful, "paused: nothing is decided".into()),
    };
    let managers = match &status.managers[..] {
        [] => found("managers", Health::Bad, "none attached, so no job can run; start one (--adapter)".into()),
        names => found("managers", Health::Good, names.join(", ")),
    };
    let servers = match status.servers {
        0 => found("servers", Health::Bad, "none reported by any manager".into()),
        count => found("servers", Health::Good, count.to_string()),
    };
    let log = match status.log_lines_dropped {
        0 => found("log", Health::Good, "written".into()),
        lines => {
            let why = "its reader was too slow, or it couldn't be written";
            found("log", Health::Doubtful, format!("{lines} lines are lost since the start: {why}"))
        }
    };
    let mut all = vec![
        found("answers", Health::Good, format!("at {address}")),
        version,
        journal,
        log,
        decision(status),
        mode,
        managers,
        servers,
    ];
    all.extend(status.certificate_ends_ms.map(|ends| certificate(left(ends))));
    all.extend(status.open_doors.iter().map(|door| found("open door", Health::Doubtful, door.clone())));
    if status.open_doors.is_empty() {
        all.push(found("open doors", Health::Good, "none".into()));
    }
    all
}

/// The check of the daemon's certificate with its remaining lifetime.
fn certificate(left: Option<Span>) -> Found {
    let found = |verdict, detail| Found::new("daemon", "certificate", verdict, detail);
    let renew = "renew it, for example with `trainmaster certs init`";
    match left {
        None => found(Health::Bad, format!("it has ended, and clients refuse it: {renew}")),
        Some(left) if left < RENEW => found(Health::Doubtful, format!("it ends in {left}: {renew}")),
        Some(left) => found(Health::Good, format!("it ends in {left}")),
    }
}

fn decision(status: &StatusReply) -> Found {
    let found = |verdict, detail| Found::new("daemon", "decisions", verdict, detail);
    if !status.fallback.is_empty() {
        let detail = format!("{} failed: {} decides; see the daemon's log", status.engine, status.fallback);
        return found(Health::Bad, detail);
    }
    match status.decision_age_ms.map(Span) {
        None if status.jobs == 0 => found(Health::Good, "none yet, and no job waits for one".to_owned()),
        None => found(Health::Bad, format!("none yet, with {} jobs; see the daemon's log", status.jobs)),
        Some(age) if status.jobs > 0 && age > OLD && status.mode() != SchedulingMode::Paused => {
            let detail = format!("the last {age} ago, with {} jobs; see the daemon's log", status.jobs);
            found(Health::Doubtful, detail)
        }
        Some(age) => found(Health::Good, format!("the last {age} ago")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worst(status: &StatusReply) -> (Health, &'static str) {
        let found = judge("http://a", status);
        let worst = found.iter().max_by_key(|found| found.verdict).unwrap();
        (worst.verdict, if worst.verdict == Health::Good { "" } else { worst.check })
    }

    #[test]
    fn each_problem_is_found() {
        let well = StatusReply {
            version: env!("CARGO_PKG_VERSION").into(),
            managers: vec!["local".into()],
            servers: 2,
            jobs: 3,
            decision_age_ms: Some(1000),
            ..StatusReply::default()
        };
        assert_eq!(worst(&well), (Health::Good, ""));
        let with = |change: &dyn Fn(&mut StatusReply)| {
            let mut status = well.clone();
            change(&mut status);
            worst(&status)
        };
        assert_eq!(with(&|status| status.version = "9.9.9".into()), (Health::Doubtful, "version"));
        assert_eq!(with(&|status| status.journal_error = "full".into()), (Health::Bad, "journal"));
        assert_eq!(with(&|status| status.log_lines_dropped = 3), (Health::Doubtful, "log"));
        assert_eq!(with(&|status| status.open_doors = vec!["no TLS".into()]), (Health::Doubtful, "open door"));
        assert_eq!(with(&|status| status.certificate_ends_ms = Some(1)), (Health::Bad, "certificate"));
        assert_eq!(with(&|status| status.certificate_ends_ms = Some(i64::MAX)), (Health::Good, ""));
        assert_eq!(certificate(Some(Span::seconds(13 * 86_400))).verdict, Health::Doubtful);
        assert_eq!(with(&|status| status.managers.clear()), (Health::Bad, "managers"));
        assert_eq!(with(&|status| status.servers = 0), (Health::Bad, "servers"));
        assert_eq!(with(&|status| status.decision_age_ms = None), (Health::Bad, "decisions"));
        assert_eq!(with(&|status| status.decision_age_ms = Some(7_200_000)), (Health::Doubtful, "decisions"));
        assert_eq!(with(&|status| status.fallback = "fifo".into()), (Health::Bad, "decisions"));
        assert_eq!(with(&|status| status.set_mode(SchedulingMode::Shadow)), (Health::Doubtful, "mode"));
    }
}

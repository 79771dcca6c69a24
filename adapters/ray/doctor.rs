//! Checks whether a Ray cluster can be used.

use std::{collections::BTreeSet, sync::Arc, thread, time::Duration};

use tokio::runtime;
use trainmaster_core::{Event, Scheduler, ServerSpec, Settings, Time};

use super::{
    config::Config,
    head::{Head, HeadError, Trouble, is_tested, untested},
    translator::Translator,
    view::View,
};
use trainmaster_manager::{Check, Health};

/// Checks Ray's head, its version, the token, the nodes and their labels, and the autoscaler. Writes nothing.
pub fn doctor(config: &Config) -> Vec<Check> {
    // The call runs in its own thread, because hosts may be inside another runtime.
    let looked = thread::scope(|scope| scope.spawn(|| look(config)).join());
    match looked.expect("looking doesn't panic") {
        Ok((head, view)) => judge(config, &Found::new(&head), view),
        Err(error) if error.kind == Trouble::Token => vec![Check::new("token", Health::Bad, error.to_string())],
        Err(error) => {
            let detail = format!("{error}; start it, or say where it is (address, dashboard)");
            vec![Check::new("head", Health::Bad, detail)]
        }
    }
}

fn look(config: &Config) -> Result<(Head, View), HeadError> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime of one thread");
    runtime.block_on(async {
        let mut head = Head::connect(config, None).await?;
        let none = BTreeSet::new();
        let view = match head.look(&none).await {
            Err(error) if error.kind == Trouble::Strange => {
                head = Head::connect(config, Some(error.to_string())).await?;
                head.look(&none).await?
            }
            view => view?,
        };
        Ok((head, view))
    })
}

/// The result of connecting.
struct Found<'a> {
    version: &'a str,
    /// Why the cluster can only be observed, if so.
    observing: Option<&'a str>,
    /// Whether an autoscaler reports. `None` if that can't be observed.
    has_autoscaler: Option<bool>,
}

impl<'a> Found<'a> {
    fn new(head: &'a Head) -> Self {
        let has_autoscaler = match head {
            Head::Grpc(gcs) => Some(gcs.has_autoscaler),
            Head::Dashboard { .. } => None,
        };
        Self { version: head.version(), observing: head.observing(), has_autoscaler }
    }
}

fn judge(config: &Config, found: &Found<'_>, view: View) -> Vec<Check> {
    let head = match found.observing {
        None => Check::new("head", Health::Good, format!("answers at {}", config.address())),
        Some(_) => Check::new("dashboard", Health::Good, format!("answers at {}", config.dashboard())),
    };
    let version = match found.observing {
        Some(why) => Check::new("version", Health::Doubtful, why.into()),
        None if is_tested(found.version) => Check::new("version", Health::Good, found.version.into()),
        None => Check::new("version", Health::Doubtful, untested(found.version)),
    };
    let token = match &config.token_file {
        Some(file) => Check::new("token", Health::Good, format!("{} is accepted", file.display())),
        None => {
            let detail = "none is asked for: whoever reaches the head's port can do everything; see RAY_AUTH_MODE";
            Check::new("token", Health::Doubtful, detail.into())
        }
    };
    let nodes = match view.nodes.len() {
        0 if config.node_types.is_empty() => Check::new("nodes", Health::Bad, "none; start some (ray start)".into()),
        count => Check::new("nodes", Health::Good, format!("{count} alive")),
    };
    let mut checks = vec![head, version, token, nodes, labels(config, view)];
    checks.extend(found.has_autoscaler.map(|reports| autoscaler(config, reports)));
    checks
}

/// Checks the labels. The scheduler evaluates some of them, and refuses servers with invalid values.
fn labels(config: &Config, view: View) -> Check {
    let mut translator = Translator::new(Arc::new(config.clone()));
    translator.see(Duration::ZERO, view);
    let mut scheduler = Scheduler::new(Settings::default()).expect("the defaults are settings");
    let servers = translator.snapshot().servers;
    let refused = servers.values().find_map(|server| {
        let server = ServerSpec {
            name: server.name.clone(),
            capacity: server.capacity.clone().into_iter().collect(),
            devices: server.devices.iter().map(|device| device.kind.clone()).collect(),
            labels: server.labels.clone().into_iter().collect(),
            draining: server.draining,
        };
        scheduler.apply(Time(0), Event::ServerSet { manager: config.name.clone(), server }).err()
    });
    match refused {
        None => Check::new("labels", Health::Good, "can be used on every node".into()),
        Some(error) => Check::new("labels", Health::Bad, format!("{error}; start that node with another")),
    }
}

fn autoscaler(config: &Config, reports: bool) -> Check {
    let found = |verdict, detail: &str| Check::new("autoscaler", verdict, detail.into());
    match (reports, config.node_types.is_empty(), config.request_resources) {
        (true, false, true) => found(Health::Good, "on; it is asked for the nodes that plans need"),
        (true, false, false) => found(Health::Doubtful, "on, but request_resources = false: it isn't asked for nodes"),
        (true, true, _) => found(Health::Good, "on, but there are no [[node_types]] to ask it for"),
        (false, true, _) => found(Health::Good, "off, as far as can be seen, and no [[node_types]] need it"),
        (false, false, _) => found(
            Health::Bad,
            "none of version 2 reports, so [[node_types]] never come; start the head with \
             RAY_enable_autoscaler_v2=1 and an autoscaling configuration",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ray::view::{Node, NodeId};

    fn view(label: &str) -> View {
        let node =
            Node { name: "n".into(), labels: [("upload".to_owned(), label.to_owned())].into(), ..Node::default() };
        View { nodes: [(NodeId(vec![1; 28]), node)].into(), ..View::default() }
    }

    fn worst(config: &Config, found: &Found<'_>, view: View) -> (Health, &'static str) {
        let checks = judge(config, found, view);
        let worst = checks.iter().max_by_key(|check| check.verdict).unwrap();
        (worst.verdict, if worst.verdict == Health::Good { "" } else { worst.name })
    }

    #[test]
    fn each_trouble_is_seen() {
        let types = "[[node_types]]\nname = \"b\"\ncpu = 1\nlabels = { tier = \"b\" }";
        let config = |text: &str| Config::parse(&format!("token_file = \"/t\"\n{text}"), "test").unwrap();
        let plain = config("");
        let tested = Found { version: "2.60.0", observing: None, has_autoscaler: Some(false) };
        let scaled = Found { has_autoscaler: Some(true), ..tested };
        let trusted = Found { version: "2.61.0", ..tested };
        let observed = Found { observing: Some("untested"), has_autoscaler: None, ..trusted };
        assert_eq!(worst(&plain, &tested, view("1s")), (Health::Good, ""));
        assert_eq!(worst(&plain, &trusted, view("1s")), (Health::Doubtful, "version"));
        assert_eq!(worst(&config(types), &observed, view("1s")), (Health::Doubtful, "version"));
        assert_eq!(worst(&plain, &tested, view("soon")), (Health::Bad, "labels"));
        assert_eq!(worst(&plain, &tested, View::default()), (Health::Bad, "nodes"));
        assert_eq!(worst(&config(types), &scaled, View::default()), (Health::Good, ""));
        assert_eq!(worst(&config(types), &tested, view("1s")), (Health::Bad, "autoscaler"));
        let silent = config(&format!("request_resources = false\n{types}"));
        assert_eq!(worst(&silent, &scaled, view("1s")), (Health::Doubtful, "autoscaler"));
        let mut open = plain;
        open.token_file = None;
        assert_eq!(worst(&open, &tested, view("1s")), (Health::Doubtful, "token"));
    }
}

//! Polls a ResourceManager without plug-ins for its state, and executes what its REST API supports.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use tokio::time::{Instant, sleep_until};
use trainmaster_core::Role;

use super::{
    actions::Actions,
    cluster_state::{AppRow, Apps, Attempt, Attempts, ClusterInfo, ClusterState, Containers, Info, Nodes, OneApp},
    config::Config,
    rest::{self, Client, RestError},
    shared::Shared,
    wire,
};
use crate::http::Site;

const CLUSTER: &str = "/ws/v1/cluster";
/// The query for active applications. Ended ones are queried only if necessary. Long parts of the answer are excluded.
const ACTIVE: &str = "/ws/v1/cluster/apps?applicationTypes=TRAINMASTER&states=NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING\
                      &deSelects=resourceRequests,timeouts,resourceInfo";
const ENDED: &str = "/ws/v1/cluster/apps?applicationTypes=TRAINMASTER&states=FINISHED,FAILED,KILLED\
                     &deSelects=resourceRequests,timeouts,resourceInfo";
/// Above this number, applications that aren't active any more are queried together.
const FEW: usize = 16;

/// Runs until it is dropped. If the ResourceManager doesn't answer, or the answer is invalid, its last state stays
/// valid.
pub(super) async fn run(shared: Arc<Shared>, config: Arc<Config>, user: Option<String>) {
    let site = config.site().expect("the configuration names it with this API");
    let mut poller = Poller::new(site.clone());
    let mut actions = Actions::new(user);
    let mut is_away = false;
    loop {
        let next = Instant::now() + config.poll;
        let polled = poller.poll(shared.look(|translator, _| translator.unended())).await;
        match polled {
            Ok(state) => {
                if std::mem::take(&mut is_away) {
                    tracing::info!(%site, "the ResourceManager answers again");
                }
                if let Some(work) = shared.take_over(state) {
                    actions.carry_out(shared.now(), work, &mut poller.client).await;
                }
            }
            Err(problem) if !std::mem::replace(&mut is_away, true) => {
                tracing::warn!("what the ResourceManager told last stands, since it doesn't tell more: {problem}");
            }
            Err(problem) => tracing::debug!("the ResourceManager still doesn't tell more: {problem}"),
        }
        sleep_until(next).await;
    }
}

/// The state that is kept between polls.
struct Poller {
    client: Client,
    /// The start time of the last polled ResourceManager.
    started_ms: i64,
    settings: Settings,
    /// Each active application's attempt, with a value that differs between attempts.
    attempts: BTreeMap<String, (Option<String>, Attempt)>,
    containers: BTreeMap<String, Vec<(wire::Container, Option<Role>)>>,
    /// Applications whose containers aren't reported, after a warning.
    silent: BTreeSet<String>,
}

/// The used settings of a ResourceManager, as far as they can be read.
#[derive(Default)]
struct Settings {
    with_ports: Option<bool>,
    node_expiry_ms: i64,
    largest: HashMap<String, i64>,
    /// Whether they couldn't be read.
    is_unknown: bool,
}

impl Settings {
    fn read(told: &[(String, String)]) -> Self {
        let setting = |name: &str| told.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        let number = |name: &str| setting(name).and_then(|value| value.parse::<i64>().ok());
        let largest = [
            ("memory-mb", "yarn.scheduler.maximum-allocation-mb"),
            ("vcores", "yarn.scheduler.maximum-allocation-vcores"),
        ];
        Self {
            with_ports: setting("yarn.scheduler.include-port-in-node-name").map(|value| value == "true"),
            node_expiry_ms: number("yarn.nm.liveness-monitor.expiry-interval-ms").unwrap_or(0),
            is_unknown: told.is_empty(),
            largest: largest.iter().filter_map(|(name, key)| Some(((*name).to_owned(), number(key)?))).collect(),
        }
    }
}

impl Poller {
    fn new(site: Site) -> Self {
        Self {
            client: Client::new(site),
            started_ms: 0,
            settings: Settings::default(),
            attempts: BTreeMap::new(),
            containers: BTreeMap::new(),
            silent: BTreeSet::new(),
        }
    }

    /// Returns the whole state. Of the applications that are no longer active, it includes only those in `unended`.
    async fn poll(&mut self, unended: Vec<String>) -> Result<ClusterState, String> {
        let Info { cluster_info: info } = self.client.read(&format!("{CLUSTER}/info")).await.map_err(text)?;
        if !info.is_active() {
            let ClusterInfo { state, ha_state, .. } = info;
            return Err(format!("it is {state}, {}", ha_state.as_deref().unwrap_or("not active")));
        }
        if info.started_on != self.started_ms || self.settings.is_unknown {
            self.settings = Settings::read(&self.client.settings().await);
        }
        let nodes: Nodes = self.client.read(&format!("{CLUSTER}/nodes")).await.map_err(text)?;
        let rows = self.applications(unended).await.map_err(text)?;
        // Between two attempts, and until its ApplicationMaster returns to a restarted ResourceManager, an application
        // isn't in state RUNNING, though its programs may be running.
        let active: BTreeSet<_> = rows.iter().filter(|row| row.is_active()).map(|row| row.id.clone()).collect();
        self.silent.retain(|id| active.contains(id));
        self.attempts.retain(|id, _| active.contains(id));
        self.containers.retain(|id, _| active.contains(id));
        let mut state = ClusterState::default();
        for row in rows {
            let mut application = if row.is_running() { self.running(row).await? } else { row.into_wire() };
            for (container, role) in self.containers.get(&application.id).into_iter().flatten() {
                state.roles.extend(role.map(|role| (container.id.clone(), role)));
                application.containers.push(container.clone());
            }
            state.cluster.applications.push(application);
        }
        self.started_ms = info.started_on;
        state.cluster.started_ms = info.started_on;
        state.cluster.nodes = nodes.into_wire(self.settings.with_ports);
        state.cluster.node_expiry_ms = self.settings.node_expiry_ms;
        state.cluster.largest_container.clone_from(&self.settings.largest);
        Ok(state)
    }

    async fn applications(&mut self, unended: Vec<String>) -> Result<Vec<AppRow>, RestError> {
        let mut rows = self.client.read::<Apps>(ACTIVE).await?.into_rows();
        let told: BTreeSet<_> = rows.iter().map(|row| row.id.clone()).collect();
        // A job can be submitted with any external id.
        let missed = unended.into_iter().filter(|id| !told.contains(id) && rest::is_application(id));
        let missed: BTreeSet<_> = missed.collect();
        if missed.len() > FEW {
            let ended = self.client.read::<Apps>(ENDED).await?.into_rows();
            rows.extend(ended.into_iter().filter(|row| missed.contains(&row.id)));
        } else {
            for id in missed {
                match self.client.read::<OneApp>(&format!("{CLUSTER}/apps/{id}")).await {
                    Ok(OneApp { app }) => rows.push(app),
                    // It is no longer known.
                    Err(error) if error.is_refused() => {}
                    Err(error) => return Err(error),
                }
            }
        }
        rows.retain(AppRow::is_job);
        Ok(rows)
    }

    /// Queries a running application and stores its containers. If the ResourceManager refuses to list them, as it does
    /// while an attempt ends, the last ones stay valid.
    async fn running(&mut self, row: AppRow) -> Result<wire::Application, String> {
        let marker = row.am_container_logs.clone();
        let id = row.id.clone();
        let application = |attempt| wire::Application { attempt, ..row.into_wire() };
        let asked = async {
            let known = self.attempts.get(&id).filter(|(known, _)| marker.is_some() && *known == marker);
            let attempt = match known {
                Some((_, attempt)) => attempt.clone(),
                None => {
                    let told: Attempts = self.client.read(&format!("{CLUSTER}/apps/{id}/appattempts")).await?;
                    let Some(attempt) = told.newest() else { return Ok(None) };
                    attempt
                }
            };
            let name = &attempt.app_attempt_id;
            let path = format!("{CLUSTER}/apps/{id}/appattempts/{name}/containers");
            let told: Containers = self.client.read(&path).await?;
            Ok(Some((attempt, told.into_wire())))
        };
        match asked.await {
            Ok(Some((attempt, containers))) => {
                let number = attempt.id;
                self.attempts.insert(id.clone(), (marker, attempt));
                self.silent.remove(&id);
                self.containers.insert(id, containers);
                return Ok(application(number));
            }
            Ok(None) => {}
            Err(RestError::Refused { reason, .. }) => {
                if self.silent.insert(id.clone()) {
                    tracing::warn!(application = id, reason, "its containers aren't told; the last ones stand");
                }
            }
            Err(error) => return Err(error.to_string()),
        }
        Ok(application(self.attempts.get(&id).map_or(0, |(_, attempt)| attempt.id)))
    }
}

fn text(error: RestError) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Mutex, PoisonError},
        time::Duration,
    };

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
        time::sleep,
    };

    use super::*;

    const APP: &str = "application_1_0001";

    /// A simulated ResourceManager: its answers by the beginnings of paths, and its requests.
    #[derive(Default)]
    struct Script {
        answers: Vec<(String, u16, String)>,
        /// The delay of each answer.
        delay: Duration,
        asked: Vec<String>,
        connections: u32,
    }

    #[derive(Clone, Default)]
    struct Pretended(Arc<Mutex<Script>>);

    impl Pretended {
        async fn start() -> (Self, String) {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let pretended = Self::default();
            let serving = pretended.clone();
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    serving.look(|script| script.connections += 1);
                    let serving = serving.clone();
                    // Serves until the connection is closed.
                    tokio::spawn(async move { serving.serve(stream).await });
                }
            });
            pretended.set("/ws/v1/cluster/info", 200, &info(1, "ACTIVE"));
            pretended.set("/ws/v1/cluster/nodes", 200, &nodes(&["a:1", "b:1"]));
            pretended.set("/ws/v1/cluster/apps?", 200, r#"{"apps":{}}"#);
            let conf = r#"{"properties":[{"key":"yarn.scheduler.include-port-in-node-name","value":"true"},
                {"key":"yarn.nm.liveness-monitor.expiry-interval-ms","value":"5000"}]}"#;
            pretended.set("/conf", 200, conf);
            (pretended, address)
        }

        fn look<T>(&self, look: impl FnOnce(&mut Script) -> T) -> T {
            look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
        }

        /// Of several answers, the newest counts.
        fn set(&self, path: &str, status: u16, body: &str) {
            self.look(|script| script.answers.insert(0, (path.to_owned(), status, body.to_owned())));
        }

        async fn serve(&self, mut stream: TcpStream) -> Option<()> {
            loop {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.ok()?);
                }
                let head = String::from_utf8(head).ok()?;
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
                stream.read_exact(&mut body).await.ok()?;
                let (method, rest) = head.split_once(' ')?;
                let path = rest.split(' ').next()?;
                let (delay, answer) = self.look(|script| {
                    script.asked.push(format!("{method} {path} {}", String::from_utf8_lossy(&body)));
                    let found = script.answers.iter().find(|(known, ..)| path.starts_with(known.as_str())).cloned();
                    (script.delay, found)
                });
                let unknown = r#"{"RemoteException":{"message":"not found"}}"#.to_owned();
                let (_, status, body) = answer.unwrap_or((String::new(), 404, unknown));
                sleep(delay).await;
                let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                stream.write_all(answer.as_bytes()).await.ok()?;
            }
        }
    }

    fn info(started: i64, state: &str) -> String {
        format!(r#"{{"clusterInfo":{{"startedOn":{started},"state":"STARTED","haState":"{state}"}}}}"#)
    }

    fn nodes(ids: &[&str]) -> String {
        let node = |id: &&str| format!(r#"{{"id":"{id}","state":"RUNNING","nodeHostName":"{}"}}"#, &id[..1]);
        format!(r#"{{"nodes":{{"node":[{}]}}}}"#, ids.iter().map(node).collect::<Vec<_>>().join(","))
    }

    fn app(id: &str, state: &str) -> String {
        format!(
            r#"{{"id":"{id}","state":"{state}","finalStatus":"SUCCEEDED","applicationType":"TRAINMASTER","user":"u",
            "queue":"root.dl","priority":0,"amContainerLogs":"http://a:8042/{id}"}}"#
        )
    }

    fn containers(ids: &[&str]) -> String {
        let row = |id: &&str| {
            format!(r#"{{"containerId":"{id}","assignedNodeId":"a:1","priority":20,"containerState":"RUNNING"}}"#)
        };
        format!(r#"{{"container":[{}]}}"#, ids.iter().map(row).collect::<Vec<_>>().join(","))
    }

    const ATTEMPTS: &str = r#"{"appAttempts":{"appAttempt":[{"id":1,"appAttemptId":"appattempt_1_0001_000001"}]}}"#;

    fn found(state: &ClusterState) -> Vec<(&str, i32, Vec<&str>)> {
        let apps = state.cluster.applications.iter();
        apps.map(|app| (&*app.id, app.state, app.containers.iter().map(|held| &*held.id).collect())).collect()
    }

    #[tokio::test]
    async fn a_picture_is_taken_over_one_connection() {
        let (manager, address) = Pretended::start().await;
        let mut poller = Poller::new(Site::plain(address));
        let apps = format!(r#"{{"apps":{{"app":[{}]}}}}"#, app(APP, "RUNNING"));
        manager.set("/ws/v1/cluster/apps?", 200, &apps);
        manager.set(&format!("/ws/v1/cluster/apps/{APP}/appattempts"), 200, ATTEMPTS);
        let path = format!("/ws/v1/cluster/apps/{APP}/appattempts/appattempt_1_0001_000001/containers");
        manager.set(&path, 200, &containers(&["c2", "c3"]));
        let state = poller.poll(vec![]).await.unwrap();
        assert_eq!((state.cluster.started_ms, state.cluster.node_expiry_ms), (1, 5000));
        let names: Vec<_> = state.cluster.nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, ["a:1", "b:1"], "as the ResourceManager's settings say");
        let running = wire::ApplicationState::Running.into();
        assert_eq!(found(&state), [(APP, running, vec!["c2", "c3"])]);
        assert_eq!((state.cluster.applications[0].attempt, state.roles["c2"]), (1, Role::Worker));

        // The attempt and the settings are known already.
        manager.look(|script| script.asked.clear());
        poller.poll(vec![]).await.unwrap();
        let asked = manager.look(|script| (script.asked.len(), script.connections));
        assert_eq!(asked, (4, 1), "info, nodes, applications, containers");
        // If containers can't be listed, the last ones stay valid.
        manager.set(&path, 404, r#"{"RemoteException":{"message":"no such attempt"}}"#);
        assert_eq!(found(&poller.poll(vec![]).await.unwrap())[0].2, ["c2", "c3"]);
        // It has ended. It is queried until its end is known.
        manager.set("/ws/v1/cluster/apps?", 200, r#"{"apps":{}}"#);
        manager.set(&format!("/ws/v1/cluster/apps/{APP}"), 200, &format!(r#"{{"app":{}}}"#, app(APP, "FINISHED")));
        let ended = poller.poll(vec![APP.into(), "application_1_0009".into()]).await.unwrap();
        assert_eq!(found(&ended), [(APP, wire::ApplicationState::Succeeded.into(), vec![])]);
        assert!(poller.poll(vec![]).await.unwrap().cluster.applications.is_empty());
        // Many ended applications need one request.
        let apps = format!(r#"{{"apps":{{"app":[{}]}}}}"#, app(APP, "KILLED"));
        manager.set(ENDED, 200, &apps);
        manager.look(|script| script.asked.clear());
        let many = (0..100).map(|number| format!("application_1_{number:04}")).collect();
        assert_eq!(found(&poller.poll(many).await.unwrap()).len(), 1);
        assert_eq!(manager.look(|script| script.asked.len()), 4);
    }

    #[tokio::test]
    async fn a_manager_that_makes_no_sense_tells_nothing() {
        let (manager, address) = Pretended::start().await;
        let mut poller = Poller::new(Site::plain(address.clone()));
        poller.poll(vec![]).await.unwrap();
        let garbage = ["", "<html>", "[]", "{}", "null", "{\"nodes\": 7}", "\u{0}", "{\"apps\":{\"app\":[{}]}}"];
        for path in ["/ws/v1/cluster/info", "/ws/v1/cluster/nodes", "/ws/v1/cluster/apps?"] {
            for body in garbage {
                manager.set(path, 200, body);
                let told = poller.poll(vec![]).await;
                assert!(told.is_err(), "{path} {body:?}: {told:?}");
            }
            for status in [307, 403, 500, 503] {
                manager.set(path, status, "<html>");
                let problem = poller.poll(vec![]).await.unwrap_err();
                assert!(problem.contains(&address) && problem.contains(&status.to_string()), "{problem}");
            }
            manager.look(|script| {
                script.answers.retain(|(known, status, body)| {
                    known != path || (*status == 200 && !garbage.contains(&body.as_str()))
                })
            });
            poller.poll(vec![]).await.unwrap();
        }
        manager.set("/ws/v1/cluster/info", 200, &info(1, "STANDBY"));
        assert!(poller.poll(vec![]).await.unwrap_err().contains("STANDBY"));
        // Another ResourceManager took over, and its settings can't be read.
        manager.set("/ws/v1/cluster/info", 200, &info(2, "ACTIVE"));
        manager.set("/conf", 403, "");
        let state = poller.poll(vec![]).await.unwrap();
        assert_eq!((state.cluster.started_ms, state.cluster.node_expiry_ms), (2, 0));
        assert_eq!(state.cluster.nodes[0].name, "a", "nobody says that ports are part of names");
    }

    #[tokio::test]
    async fn a_manager_that_hangs_is_given_up() {
        let (manager, address) = Pretended::start().await;
        let mut poller = Poller::new(Site::plain(address));
        manager.look(|script| script.delay = Duration::from_millis(200));
        poller.poll(vec![]).await.expect("it is only slow");
        manager.look(|script| script.delay = Duration::from_secs(3600));
        let patience = std::mem::replace(&mut poller.client.patience, Duration::from_millis(300));
        let problem = poller.poll(vec![]).await.unwrap_err();
        assert!(problem.contains("no answer within 300ms"), "{problem}");
        poller.client.patience = patience;
        manager.look(|script| script.delay = Duration::ZERO);
        poller.poll(vec![]).await.expect("it is back");
        // It stops permanently.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        assert!(Poller::new(Site::plain(address)).poll(vec![]).await.unwrap_err().contains("refused"));
    }

    #[tokio::test]
    async fn what_is_planned_is_asked_for() {
        let (manager, address) = Pretended::start().await;
        let mut client = Client::new(Site::plain(address));
        let mut actions = Actions::new(Some("tm".into()));
        let planned = |id: &str, action: wire::Action, priority| wire::ApplicationPlan {
            id: id.into(),
            action: action.into(),
            priority,
            reason: "too dear".into(),
            ..wire::ApplicationPlan::default()
        };
        let queues = r#"{"scheduler":{"schedulerInfo":{"queueName":"root","queuePath":"root","queues":{"queue":[
            {"queueName":"dl","queuePath":"root.dl"}]}}}}"#;
        manager.set("/ws/v1/cluster/scheduler", 200, queues);
        manager.set("/ws/v1/cluster/apps/", 200, r#"{"priority":1}"#);
        let work = super::super::actions::Work {
            plan: wire::Plan {
                applications: vec![
                    planned("a", wire::Action::Kill, None),
                    planned("b", wire::Action::Run, Some(1)),
                    planned("c", wire::Action::Hold, None),
                ],
                ..wire::Plan::default()
            },
            priorities: [("b".to_owned(), 0)].into(),
            misplaced: vec![
                ("b".into(), "root.default".into(), "dl".into()),
                ("c".into(), "root.default".into(), "nowhere".into()),
            ],
        };
        actions.carry_out(Duration::ZERO, work.clone(), &mut client).await;
        actions.carry_out(Duration::from_secs(1), work, &mut client).await;
        let mut asked = manager.look(|script| std::mem::take(&mut script.asked));
        asked.retain(|line| line.starts_with("PUT"));
        assert_eq!(
            asked,
            [
                r#"PUT /ws/v1/cluster/apps/a/state?user.name=tm {"diagnostics":"too dear","state":"KILLED"}"#,
                r#"PUT /ws/v1/cluster/apps/b/priority?user.name=tm {"priority":1}"#,
                r#"PUT /ws/v1/cluster/apps/b/queue?user.name=tm {"queue":"root.dl"}"#,
            ]
        );
    }
}

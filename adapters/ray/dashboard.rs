//! Ray's dashboard, over its REST API. It shows the public data of the cluster, for observation only.
//!
//! It also has the nodes' loads, which the head doesn't have.
//!
//! It doesn't report nodes' free resources, so they are computed from placement groups, actors and tasks. It doesn't
//! report the data that drivers and this adapter wrote, nor which nodes are draining.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use reqwest::{
    Method, StatusCode,
    header::{AUTHORIZATION, HeaderMap, HeaderValue},
};
use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};
use tokio::time::timeout;
use tonic::metadata::{Ascii, MetadataValue};

use super::{
    amounts::counted,
    bounds::{MOST_BYTES, MOST_NODES, words},
    config::Config,
    gcs::{TOKEN_HINT, token},
    head::{HeadError, Trouble},
    names::GroupName,
    view::{Bundle, Group, GroupState, Node, NodeId, Resources, View, why},
};
use crate::{
    file::MOST_DEVICES,
    http::{Client, Failure, Site},
    load::{Load, part},
};

/// Maximum wait for an answer. The dashboard of a large cluster takes some time to assemble it.
const ANSWER: Duration = Duration::from_secs(30);
/// Ray's label with the autoscaler's node type of a node.
const NODE_TYPE: &str = "ray.io/node-group";

const VERSION: &str = "/api/version";
/// The last statistics of each node's agent.
const LOADS: &str = "/nodes?view=summary";
// No table can have more rows than Ray's own limit.
const NODES: &str = "/api/v0/nodes?limit=10000&filter_keys=state&filter_predicates=%3D&filter_values=ALIVE";
const GROUPS: &str =
    "/api/v0/placement_groups?detail=1&limit=10000&filter_keys=state&filter_predicates=!%3D&filter_values=REMOVED";
const ACTORS: &str = "/api/v0/actors?detail=1&limit=10000&filter_keys=state&filter_predicates=%3D&filter_values=ALIVE";
const TASKS: &str = "/api/v0/tasks?detail=1&limit=10000&filter_keys=state&filter_predicates=%3D&filter_values=RUNNING";

/// Ray's dashboard.
pub(crate) struct Dashboard {
    site: Site,
    token: Option<MetadataValue<Ascii>>,
    /// Ray's version.
    pub(crate) version: String,
}

impl Dashboard {
    /// Connects, and reads the version.
    ///
    /// # Errors
    /// The token's file can't be read, there is no answer, or the token is wrong.
    pub(crate) async fn connect(config: &Config) -> Result<Self, HeadError> {
        let mut dashboard = Self::new(config)?;
        dashboard.version = words(&dashboard.ask::<Version>(VERSION).await?.ray_version);
        Ok(dashboard)
    }

    fn new(config: &Config) -> Result<Self, HeadError> {
        let mut dashboard = Self { site: config.site(), token: None, version: String::new() };
        dashboard.token = token(config).map_err(|problem| dashboard.error(&problem, Trouble::Token))?;
        Ok(dashboard)
    }

    /// Returns the loads of the nodes whose agents report, by one request.
    pub(crate) async fn loads(config: &Config) -> Result<BTreeMap<NodeId, Load>, HeadError> {
        let summary: Summary = Self::new(config)?.ask(LOADS).await?;
        let known = |row| if let Lenient::Known(row) = row { Some(row) } else { None };
        let rows = summary.data.summary.into_iter().take(MOST_NODES).filter_map(known);
        Ok(rows.filter_map(LoadRow::read).collect())
    }

    /// Returns the relevant state of the cluster, as far as the dashboard shows it.
    pub(crate) async fn look(&self) -> Result<View, HeadError> {
        let groups = self.table(GROUPS, Rows::All).await?;
        let nodes = self.table(NODES, Rows::All).await?;
        // If a part of the foreign use is missing, the rest is still useful.
        let actors = self.table(ACTORS, Rows::First).await?;
        let tasks = self.table(TASKS, Rows::First).await?;
        Ok(view(nodes, groups, actors, tasks))
    }

    async fn table<T: DeserializeOwned>(&self, path: &str, rows: Rows) -> Result<Vec<T>, HeadError> {
        let answer: Envelope<T> = self.ask(path).await?;
        let Some(table) = answer.data.and_then(|data| data.result) else {
            return Err(self.error(&format!("{path}: {}", answer.msg), Trouble::Away));
        };
        let missing = table.total > table.num_after_truncation || table.num_filtered > table.result.len() as u64;
        if rows == Rows::All && missing {
            let (told, total) = (table.result.len(), table.total);
            return Err(self.error(&format!("{path}: it tells of {told} rows out of {total}"), Trouble::Away));
        }
        Ok(table.result)
    }

    async fn ask<T: DeserializeOwned>(&self, path: &str) -> Result<T, HeadError> {
        let away = |problem: String| self.error(&format!("{path}: {problem}"), Trouble::Away);
        let answer = timeout(ANSWER, self.get(path)).await.map_err(|_| away(format!("no answer within {ANSWER:?}")))?;
        let (status, body) = answer.map_err(|error| away(error.to_string()))?;
        if !status.is_success() {
            let refused = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
            let (kind, hint) = if refused { (Trouble::Token, TOKEN_HINT) } else { (Trouble::Away, "") };
            return Err(self.error(&format!("{path}: {status}{hint}"), kind));
        }
        serde_json::from_slice(&body).map_err(|error| away(error.to_string()))
    }

    /// Sends a GET request over a new connection, because requests are few.
    async fn get(&self, path: &str) -> Result<(StatusCode, Bytes), Failure> {
        let mut headers = HeaderMap::new();
        if let Some(token) = &self.token {
            let mut token = HeaderValue::from_bytes(token.as_encoded_bytes())?;
            token.set_sensitive(true);
            headers.insert(AUTHORIZATION, token);
        }
        let mut client = Client::new(self.site.clone());
        client.send(Method::GET, path, |request| request.headers(headers.clone()), MOST_BYTES).await
    }

    fn error(&self, problem: &str, kind: Trouble) -> HeadError {
        HeadError::new(format!("Ray's dashboard at {}", self.site), problem, kind)
    }
}

/// The required part of a table.
#[derive(PartialEq)]
enum Rows {
    All,
    First,
}

#[derive(Deserialize)]
struct Version {
    ray_version: String,
}

#[derive(Deserialize)]
struct Envelope<T> {
    #[serde(default)]
    msg: String,
    data: Option<Data<T>>,
}

#[derive(Deserialize)]
struct Data<T> {
    result: Option<Table<T>>,
}

#[derive(Deserialize)]
struct Table<T> {
    total: u64,
    num_after_truncation: u64,
    num_filtered: u64,
    result: Vec<T>,
}

#[derive(Deserialize)]
struct NodeRow {
    node_id: String,
    node_ip: String,
    #[serde(default)]
    node_name: String,
    resources_total: Resources,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct GroupRow {
    placement_group_id: String,
    name: String,
    state: String,
    bundles: Option<Vec<BundleRow>>,
    stats: Option<Stats>,
}

#[derive(Deserialize)]
struct BundleRow {
    bundle_id: BundleId,
    unit_resources: Resources,
    /// Empty if it isn't placed.
    #[serde(default)]
    node_id: String,
}

#[derive(Deserialize)]
struct BundleId {
    #[serde(default)]
    bundle_index: u32,
}

#[derive(Deserialize)]
struct Stats {
    #[serde(default)]
    scheduling_state: String,
}

#[derive(Deserialize)]
struct ActorRow {
    node_id: Option<String>,
    required_resources: Option<Resources>,
    placement_group_id: Option<String>,
}

#[derive(Deserialize)]
struct TaskRow {
    /// Tasks of actors use the actor's resources.
    r#type: String,
    #[serde(flatten)]
    uses: ActorRow,
}

#[derive(Deserialize)]
struct Summary {
    data: SummaryData,
}

#[derive(Deserialize)]
struct SummaryData {
    summary: Vec<Lenient<LoadRow>>,
}

/// A row, or anything else in its place: one agent can't hide the others' figures.
#[derive(Deserialize)]
#[serde(untagged)]
enum Lenient<T> {
    Known(T),
    Other(IgnoredAny),
}

/// A node's statistics, in percent. Nodes whose agents haven't reported yet have none.
#[derive(Deserialize)]
struct LoadRow {
    cpu: Option<f64>,
    #[serde(default)]
    gpus: Vec<GpuRow>,
    raylet: RayletRow,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RayletRow {
    node_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GpuRow {
    index: u32,
    /// None where the driver doesn't tell.
    utilization_gpu: Option<f64>,
}

impl LoadRow {
    fn read(self) -> Option<(NodeId, Load)> {
        let of = |percent: Option<f64>| part(percent?, 100.0);
        let gpus = self.gpus.into_iter().take(MOST_DEVICES as usize);
        let load = Load {
            resources: of(self.cpu).map(|used| ("cpu", used)).into_iter().collect(),
            devices: gpus.filter_map(|gpu| Some((gpu.index, of(gpu.utilization_gpu)?))).collect(),
        };
        Some((node_id(&self.raylet.node_id)?, load))
    }
}

fn view(nodes: Vec<NodeRow>, groups: Vec<GroupRow>, actors: Vec<ActorRow>, tasks: Vec<TaskRow>) -> View {
    let mut view = View { silent: true, ..View::default() };
    let mut used: BTreeMap<NodeId, Resources> = BTreeMap::new();
    let mut using = |node: &NodeId, resources: &Resources| {
        let used = used.entry(node.clone()).or_default();
        for (name, amount) in resources {
            *used.entry(name.clone()).or_default() += amount;
        }
    };
    for row in groups {
        let Some(state) = GroupState::named(&row.state) else { continue };
        let mut bundles = row.bundles.unwrap_or_default();
        bundles.sort_by_key(|bundle| bundle.bundle_id.bundle_index);
        let bundle = |row: BundleRow| Bundle { node: node_id(&row.node_id), resources: counted(row.unit_resources) };
        let bundles: Vec<Bundle> = bundles.into_iter().map(bundle).collect();
        for bundle in bundles.iter().filter(|_| state != GroupState::Pending) {
            if let Some(node) = &bundle.node {
                using(node, &bundle.resources);
            }
        }
        let why = why(row.stats.as_ref().map_or("", |stats| &stats.scheduling_state));
        let name = GroupName::parse(&row.name, bundles.len());
        if let (Some(name), Some(NodeId(id))) = (name, NodeId::parse(&row.placement_group_id)) {
            view.groups.push(Group { id, name, state, why, bundles });
        }
    }
    let tasks = tasks.into_iter().filter(|task| task.r#type == "NORMAL_TASK").map(|task| task.uses);
    // Tasks and actors in a placement group use its resources.
    for row in actors.into_iter().chain(tasks).filter(|row| row.placement_group_id.is_none()) {
        if let (Some(node), Some(resources)) = (row.node_id.as_deref().and_then(node_id), row.required_resources) {
            using(&node, &resources);
        }
    }
    for row in nodes.into_iter().take(MOST_NODES) {
        let Some(id) = node_id(&row.node_id) else { continue };
        let mut available = row.resources_total.clone();
        for (name, amount) in used.get(&id).into_iter().flatten() {
            if let Some(free) = available.get_mut(name) {
                *free -= amount;
            }
        }
        let node = Node {
            name: if row.node_name.is_empty() { row.node_ip } else { row.node_name },
            node_type: row.labels.get(NODE_TYPE).cloned().unwrap_or_default(),
            total: row.resources_total,
            available,
            labels: row.labels,
            draining: false,
        };
        view.nodes.insert(id, node.bounded());
    }
    view
}

/// Parses a node's id. `None`: there is none. Some versions write that as all ones.
fn node_id(hex: &str) -> Option<NodeId> {
    NodeId::parse(hex).filter(|node| node.is_sound() && node.0.iter().any(|byte| *byte != 0xff))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    const NODE: &str = "4abfc3fde1408420f7f2c0c6ce7993521926fa86460c11d7ecde7ec0";

    fn group(name: &str, state: &str, node: &str, index: u32) -> String {
        format!(
            r#"{{"placement_group_id": "63d0db79477f061ba41260e4d04901000000", "name": "{name}", "state": "{state}",
            "creator_job_id": "01000000", "is_detached": false, "topology_strategy": {{}}, "bundles": [
            {{"bundle_id": {{"bundle_index": {index}}}, "unit_resources": {{"CPU": 1.0}}, "node_id": "{node}"}},
            {{"bundle_id": {{"bundle_index": 0}}, "unit_resources": {{"CPU": 1.0, "GPU": 1.0}}, "node_id": "{node}",
            "label_selector": {{}}}}], "stats": {{"scheduling_attempt": 1, "scheduling_state": "INFEASIBLE"}}}}"#
        )
    }

    fn using(node: &str, cpu: f64, group: &str, kind: &str) -> String {
        format!(
            r#"{{"type": "{kind}", "state": "ALIVE", "node_id": {node}, "placement_group_id": {group},
            "required_resources": {{"CPU": {cpu}, "GPU": 0.25}}, "name": ""}}"#
        )
    }

    fn table(rows: &[String], total: usize) -> String {
        let (count, rows) = (rows.len(), rows.join(","));
        format!(
            r#"{{"result": true, "msg": "", "data": {{"result": {{"total": {total}, "num_after_truncation": {count},
            "num_filtered": {count}, "partial_failure_warning": "", "warnings": null, "result": [{rows}]}}}}}}"#
        )
    }

    fn node_row() -> String {
        format!(
            r#"{{"node_id": "{NODE}", "node_ip": "127.0.0.3", "is_head_node": false, "state": "ALIVE",
            "state_message": null, "node_name": "a", "labels": {{"tier": "edge", "ray.io/node-group": "burst"}},
            "resources_total": {{"GPU": 2.0, "node:127.0.0.3": 1.0, "memory": 22162587648.0, "CPU": 8.0}}}}"#
        )
    }

    /// Serves answers by the beginning of the path, to requests with the token.
    async fn serve(answers: Vec<(&'static str, String)>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut asked = Vec::new();
                while !asked.ends_with(b"\r\n\r\n") {
                    asked.push(stream.read_u8().await.unwrap());
                }
                let asked = String::from_utf8(asked).unwrap();
                let found = answers.iter().find(|(path, _)| asked.starts_with(&format!("GET {path}")));
                let (status, body) = match found {
                    _ if !asked.contains("authorization: Bearer secret\r\n") => ("401 Unauthorized", ""),
                    _ if !asked.contains("user-agent: ") => ("500 Internal Server Error", ""),
                    Some((_, body)) => ("200 OK", body.as_str()),
                    None => ("404 Not Found", ""),
                };
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        address
    }

    fn config(address: &str, token: &str, folder: &Path) -> Config {
        let file = folder.join("token");
        trainmaster_net::secret::write(&file, token).unwrap();
        Config::parse(&format!("dashboard = \"http://{address}\"\ntoken_file = {file:?}"), "test").unwrap()
    }

    fn version() -> (&'static str, String) {
        (VERSION, r#"{"version": "4", "ray_version": "2.70.0", "session_name": "s"}"#.into())
    }

    #[tokio::test]
    async fn the_cluster_is_seen() {
        let (none, there) = ("null", format!("\"{NODE}\""));
        let groups = [
            group("trainmaster/7/1/0/w0,p0", "CREATED", NODE, 1),
            group("another's", "CREATED", NODE, 1),
            group("trainmaster/8/1/0/w0,p0", "PENDING", "", 1),
            group("trainmaster/9/1/0/w0,p0", "REMOVED", NODE, 1),
        ];
        let actors = [using(&there, 0.5, none, ""), using(&there, 1.0, "\"63d0\"", ""), using(none, 1.0, none, "")];
        let tasks = [using(&there, 1.0, none, "NORMAL_TASK"), using(&there, 1.0, none, "ACTOR_TASK")];
        let address = serve(vec![
            version(),
            ("/api/v0/nodes?", table(&[node_row()], 1)),
            ("/api/v0/placement_groups?", table(&groups, 4)),
            ("/api/v0/actors?", table(&actors, 20_000)),
            ("/api/v0/tasks?", table(&tasks, 2)),
        ])
        .await;
        let folder = tempfile::tempdir().unwrap();
        let dashboard = Dashboard::connect(&config(&address, "secret\n", folder.path())).await.unwrap();
        let view = dashboard.look().await.unwrap();
        assert_eq!(dashboard.version, "2.70.0");

        let node = &view.nodes[&NodeId::parse(NODE).unwrap()];
        assert_eq!((node.name.as_str(), node.node_type.as_str(), node.total["GPU"]), ("a", "burst", 2.0));
        // Of 8 cores, two groups use two each, an actor a half, and a task one.
        assert_eq!((node.available["CPU"], node.available["memory"]), (2.5, 22_162_587_648.0));
        assert_eq!(node.available["GPU"], 2.0 - 2.0 - 0.25 - 0.25);

        let ours: Vec<_> = view.groups.iter().map(|group| (group.name.job, group.state)).collect();
        assert_eq!(ours, [(7, GroupState::Created), (8, GroupState::Pending)]);
        assert_eq!(view.groups[0].bundles[0].resources["GPU"], 1.0, "in the order of the bundles");
        assert_eq!((view.groups[0].placed().count(), view.groups[1].placed().count()), (2, 0));
    }

    #[tokio::test]
    async fn loads_are_what_agents_say_within_reason() {
        let row = |id: u8, figures: &str| {
            format!(
                r#"{{"now": 1.5, "cpus": [2, 2], {figures}, "raylet": {{"nodeId": "{}"}}}}"#,
                format!("{id:02x}").repeat(28)
            )
        };
        let gpu = |index: i64, percent: &str| {
            format!(
                r#"{{"index": {index}, "uuid": "u", "utilizationGpu": {percent}, "processesPids": [{{"pid": 7}}]}}"#
            )
        };
        let gpus = |gpus: &[String]| format!(r#""cpu": 12.5, "gpus": [{}]"#, gpus.join(","));
        let many: Vec<_> = (0..5000).map(|index| gpu(index, "1e300")).collect();
        let rows = [
            row(1, &gpus(&[gpu(1, "50"), gpu(0, "0")])),
            row(2, r#""cpu": 1e300, "gpus": []"#),
            row(3, r#""cpu": -1.0"#),
            row(4, r#""mem": []"#),
            // A GPU whose use the driver doesn't tell, and one with an impossible index.
            row(5, &gpus(&[gpu(0, "null"), gpu(1, "-3")])),
            row(6, &gpus(&[gpu(-1, "5")])),
            row(7, &gpus(&many)),
            row(8, r#""cpu": "much""#),
            "7".into(),
            r#"{"cpu": 1.0, "gpus": [], "raylet": {}}"#.into(),
            r#"{"cpu": 1.0, "gpus": [], "raylet": {"nodeId": "\n"}}"#.into(),
        ];
        let answer = format!(r#"{{"result": true, "msg": "", "data": {{"summary": [{}]}}}}"#, rows.join(","));
        let address = serve(vec![(LOADS, answer)]).await;
        let folder = tempfile::tempdir().unwrap();
        let loads = Dashboard::loads(&config(&address, "secret", folder.path())).await.unwrap();
        let cpu = |id: u8| loads.get(&NodeId(vec![id; 28])).map(|load| load.resources.get("cpu").copied());
        let devices = |id: u8| loads[&NodeId(vec![id; 28])].devices.clone();
        assert_eq!(
            (1..=8).map(cpu).collect::<Vec<_>>(),
            [
                Some(Some(0.125)),
                Some(Some(1.0)),
                Some(None),
                Some(None),
                Some(Some(0.125)),
                None,
                Some(Some(0.125)),
                None
            ]
        );
        assert_eq!(loads.len(), 6);
        assert_eq!((devices(1), devices(5)), ([(0, 0.0), (1, 0.5)].into(), BTreeMap::new()));
        assert!(devices(7).len() == 1024 && devices(7).values().all(|used| *used == 1.0));

        // A dashboard that has no such page, or is another program's.
        for answer in ["<html>", r#"{"result": false, "msg": "Unknown view summary", "data": {}}"#, "[1]", "null"] {
            let address = serve(vec![(LOADS, answer.into())]).await;
            assert!(Dashboard::loads(&config(&address, "secret", folder.path())).await.is_err(), "{answer}");
        }
    }

    #[tokio::test]
    async fn troubles_say_where_and_what() {
        let folder = tempfile::tempdir().unwrap();
        let empty = || table(&[], 0);
        let address = serve(vec![
            version(),
            ("/api/v0/placement_groups?", empty()),
            ("/api/v0/nodes?", table(&[node_row()], 10_001)),
        ])
        .await;
        let error = Dashboard::connect(&config(&address, "wrong", folder.path())).await.err().unwrap();
        assert!(error.kind == Trouble::Token && error.to_string().contains("401"), "{error}");
        let dashboard = Dashboard::connect(&config(&address, "secret", folder.path())).await.unwrap();
        let error = dashboard.look().await.unwrap_err().to_string();
        assert!(error.contains(&address) && error.contains("1 rows out of 10001"), "{error}");

        let refuses = r#"{"result": false, "msg": "not today", "data": {}}"#.to_owned();
        for (answer, part) in [(refuses, "not today"), ("<html>".into(), "expected value")] {
            let address = serve(vec![version(), ("/api/v0/placement_groups?", answer)]).await;
            let dashboard = Dashboard::connect(&config(&address, "secret", folder.path())).await.unwrap();
            let error = dashboard.look().await.unwrap_err();
            assert!(error.kind == Trouble::Away && error.to_string().contains(part), "{error}");
        }
        let nobody = Dashboard::connect(&config("127.0.0.1:1", "secret", folder.path())).await.err().unwrap();
        assert_eq!((nobody.kind, nobody.to_string().contains("http://127.0.0.1:1:")), (Trouble::Away, true));
    }

    #[tokio::test]
    async fn the_token_goes_nowhere_else() {
        let elsewhere = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, other) = (listener.local_addr().unwrap().to_string(), elsewhere.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
            let head = format!("HTTP/1.1 302 Found\r\nlocation: http://{other}{VERSION}\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            stream.read_to_end(&mut Vec::new()).await.unwrap();
        });
        let folder = tempfile::tempdir().unwrap();
        let error = Dashboard::connect(&config(&address, "secret", folder.path())).await.err().unwrap();
        assert!(error.to_string().contains("302"), "{error}");
        let followed = timeout(Duration::from_millis(200), elsewhere.accept()).await;
        assert!(followed.is_err(), "{followed:?}");
    }

    #[tokio::test]
    async fn what_the_dashboard_says_is_told_in_few_words() {
        let folder = tempfile::tempdir().unwrap();
        let long = format!("\\u001b[2J{}", "x".repeat(1 << 20));
        for answer in [format!(r#"{{"msg": "{long}", "data": null}}"#), format!(r#"{{"data": "{long}"}}"#)] {
            let address = serve(vec![version(), ("/api/v0/placement_groups?", answer)]).await;
            let dashboard = Dashboard::connect(&config(&address, "secret", folder.path())).await.unwrap();
            let error = dashboard.look().await.unwrap_err().to_string();
            assert!(error.chars().count() < 1200 && !error.contains('\u{1b}'), "{}", error.len());
        }
    }
}

//! The data of the ResourceManager's REST API, converted to the plug-ins' messages.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Deserializer};
use trainmaster_core::Role;

use super::wire::{self, ApplicationState, ContainerState, NodeState};

/// Prefix of the tag with the SHA-256 of the application's secret. YARN converts tags to lower case.
pub(crate) const SECRET_TAG: &str = "trainmaster-secret-";
/// Priorities of the ApplicationMaster's requests for containers.
const SERVERS: i64 = 10;
const WORKERS: i64 = 20;
/// YARN's priority of the ApplicationMaster's own container.
const MASTERS: i64 = 0;

/// The state of the cluster, without the slots of containers: the REST API doesn't report those.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ClusterState {
    pub(crate) cluster: wire::Cluster,
    /// By container id.
    pub(crate) roles: BTreeMap<String, Role>,
}

/// Deserialises a field that can be null but must be present. An answer without it isn't the ResourceManager's, so it
/// doesn't count as an empty one.
fn told<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    Option::deserialize(from)
}

/// `/ws/v1/cluster/info`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Info {
    pub(crate) cluster_info: ClusterInfo,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClusterInfo {
    pub(crate) started_on: i64,
    pub(crate) state: String,
    /// Absent in old versions of Hadoop.
    #[serde(default)]
    pub(crate) ha_state: Option<String>,
}

impl ClusterInfo {
    /// Whether it schedules, and isn't a standby.
    pub(crate) fn is_active(&self) -> bool {
        self.state == "STARTED" && self.ha_state.as_deref().is_none_or(|state| state == "ACTIVE")
    }
}

/// `/ws/v1/cluster/nodes`. If there are no nodes, the inner list is absent or null.
#[derive(Debug, Deserialize)]
pub(crate) struct Nodes {
    #[serde(deserialize_with = "told")]
    nodes: Option<NodeList>,
}

#[derive(Debug, Default, Deserialize)]
struct NodeList {
    #[serde(default)]
    node: Option<Vec<NodeRow>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeRow {
    id: String,
    state: String,
    #[serde(default)]
    node_host_name: String,
    #[serde(default)]
    total_resource: Resource,
    #[serde(default)]
    used_resource: Resource,
    #[serde(default)]
    node_labels: Option<Vec<String>>,
    #[serde(default)]
    node_attributes_info: Attributes,
    #[serde(default)]
    rack: String,
    /// Absent in old versions of Hadoop.
    #[serde(default)]
    resource_utilization: Utilization,
}

/// The measured use of a node's containers.
#[derive(Debug, Default, Deserialize)]
struct Utilization {
    #[serde(rename = "aggregatedContainersPhysicalMemoryMB")]
    memory: Option<f64>,
    #[serde(rename = "containersCPUUsage")]
    vcores: Option<f64>,
}

/// Amounts of resources, by YARN's names.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Resource {
    #[serde(default)]
    resource_informations: ResourceList,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceList {
    #[serde(default)]
    resource_information: Vec<Amount>,
}

#[derive(Debug, Deserialize)]
struct Amount {
    name: String,
    value: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Attributes {
    #[serde(default)]
    node_attribute_info: Option<Vec<Attribute>>,
}

#[derive(Debug, Deserialize)]
struct Attribute {
    #[serde(default)]
    prefix: String,
    name: String,
    #[serde(default)]
    value: Option<String>,
}

impl Nodes {
    /// Converts the nodes to the plug-ins' messages. `with_ports`: requests name nodes by host and port. `None`:
    /// assumed if nodes share a host.
    pub(crate) fn into_wire(self, with_ports: Option<bool>) -> Vec<wire::Node> {
        let mut rows = self.nodes.unwrap_or_default().node.unwrap_or_default();
        // A new node isn't available yet, but isn't gone either.
        rows.retain(|row| row.state != "NEW");
        let mut hosts: HashMap<&str, u32> = HashMap::new();
        for row in &rows {
            *hosts.entry(&row.node_host_name).or_default() += 1;
        }
        let with_ports = with_ports.unwrap_or_else(|| hosts.values().any(|nodes| *nodes > 1));
        rows.into_iter().map(|row| row.into_wire(with_ports)).collect()
    }
}

impl NodeRow {
    fn into_wire(self, with_ports: bool) -> wire::Node {
        let state = match self.state.as_str() {
            "RUNNING" => NodeState::Running,
            "DECOMMISSIONING" => NodeState::Decommissioning,
            _ => NodeState::Gone,
        };
        let Utilization { memory, vcores } = self.resource_utilization;
        let used = [("memory-mb", memory), ("vcores", vcores)];
        let attributes = self.node_attributes_info.node_attribute_info.unwrap_or_default().into_iter();
        wire::Node {
            name: if with_ports { self.id.clone() } else { self.node_host_name },
            state: state.into(),
            capacity: self.total_resource.into_wire(),
            allocated: self.used_resource.into_wire(),
            partition: self.node_labels.unwrap_or_default().into_iter().next().unwrap_or_default(),
            attributes: attributes
                .map(|Attribute { prefix, name, value }| (format!("{prefix}/{name}"), value.unwrap_or_default()))
                .collect(),
            used: used.into_iter().filter_map(|(name, used)| Some((name.to_owned(), used?))).collect(),
            rack: self.rack,
            id: self.id,
        }
    }
}

impl Resource {
    pub(crate) fn into_wire(self) -> HashMap<String, i64> {
        let amounts = self.resource_informations.resource_information;
        amounts.into_iter().map(|amount| (amount.name, amount.value)).collect()
    }
}

/// `/ws/v1/cluster/apps`. If there are no applications, the inner list is absent or null.
#[derive(Debug, Deserialize)]
pub(crate) struct Apps {
    #[serde(deserialize_with = "told")]
    apps: Option<AppList>,
}

#[derive(Debug, Default, Deserialize)]
struct AppList {
    #[serde(default)]
    app: Option<Vec<AppRow>>,
}

impl Apps {
    pub(crate) fn into_rows(self) -> Vec<AppRow> {
        self.apps.unwrap_or_default().app.unwrap_or_default()
    }
}

/// `/ws/v1/cluster/apps/{id}`.
#[derive(Debug, Deserialize)]
pub(crate) struct OneApp {
    pub(crate) app: AppRow,
}

/// An application.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AppRow {
    pub(crate) id: String,
    state: String,
    #[serde(default)]
    final_status: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    user: String,
    #[serde(default)]
    queue: String,
    #[serde(default)]
    priority: i32,
    #[serde(default)]
    diagnostics: Option<String>,
    #[serde(default)]
    application_type: String,
    #[serde(default)]
    application_tags: Option<String>,
    #[serde(default)]
    master_node_id: Option<String>,
    /// Contains the id of the ApplicationMaster's container, which differs between attempts.
    #[serde(default)]
    pub(crate) am_container_logs: Option<String>,
}

impl AppRow {
    /// Whether it is a Trainmaster job.
    pub(crate) fn is_job(&self) -> bool {
        self.application_type.eq_ignore_ascii_case("TRAINMASTER")
    }

    pub(crate) fn is_active(&self) -> bool {
        !matches!(self.state.as_str(), "FINISHED" | "FAILED" | "KILLED")
    }

    /// Whether its ApplicationMaster has registered.
    pub(crate) fn is_running(&self) -> bool {
        self.state == "RUNNING"
    }

    /// Converts it to the plug-ins' message, without containers.
    pub(crate) fn into_wire(self) -> wire::Application {
        let state = match (self.state.as_str(), self.final_status.as_str()) {
            ("RUNNING", _) => ApplicationState::Running,
            ("KILLED", _) | ("FINISHED", "KILLED") => ApplicationState::Killed,
            ("FAILED", _) | ("FINISHED", "FAILED") => ApplicationState::Failed,
            ("FINISHED", _) => ApplicationState::Succeeded,
            _ => ApplicationState::Pending,
        };
        let tags = self.application_tags.unwrap_or_default();
        let secret = tags.split(',').find_map(|tag| tag.trim().strip_prefix(SECRET_TAG));
        wire::Application {
            id: self.id,
            name: self.name,
            user: self.user,
            queue: self.queue,
            priority: self.priority,
            state: state.into(),
            diagnostics: self.diagnostics.unwrap_or_default(),
            master_node: self.master_node_id.unwrap_or_default(),
            secret_hash: secret.unwrap_or_default().to_owned(),
            ..wire::Application::default()
        }
    }
}

/// `/ws/v1/cluster/apps/{id}/appattempts`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Attempts {
    #[serde(deserialize_with = "told")]
    app_attempts: Option<AttemptList>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AttemptList {
    #[serde(default)]
    app_attempt: Option<Vec<Attempt>>,
}

/// An attempt to run an ApplicationMaster.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Attempt {
    /// Counted from 1.
    pub(crate) id: u32,
    pub(crate) app_attempt_id: String,
}

impl Attempts {
    /// The newest attempt, which is the valid one.
    pub(crate) fn newest(self) -> Option<Attempt> {
        let attempts = self.app_attempts.unwrap_or_default().app_attempt.unwrap_or_default();
        attempts.into_iter().max_by_key(|attempt| attempt.id)
    }
}

/// `/ws/v1/cluster/apps/{id}/appattempts/{attempt}/containers`: the existing containers.
#[derive(Debug, Deserialize)]
pub(crate) struct Containers {
    container: Vec<ContainerRow>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerRow {
    container_id: String,
    assigned_node_id: String,
    priority: i64,
    #[serde(default)]
    container_state: String,
    #[serde(default)]
    allocated_resources: Entries,
}

#[derive(Debug, Default, Deserialize)]
struct Entries {
    #[serde(default)]
    entry: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
struct Entry {
    key: String,
    value: i64,
}

impl Containers {
    /// Converts the containers except the ApplicationMaster's, each with its role. The role is `None` if an
    /// ApplicationMaster other than Trainmaster's requested it. The slots aren't known.
    pub(crate) fn into_wire(self) -> Vec<(wire::Container, Option<Role>)> {
        let rows =
            self.container.into_iter().filter(|row| row.priority != MASTERS && row.container_state != "COMPLETE");
        rows.map(|row| {
            let role = match row.priority {
                SERVERS => Some(Role::Server),
                WORKERS => Some(Role::Worker),
                _ => None,
            };
            let container = wire::Container {
                id: row.container_id,
                allocation_request: 0,
                node: row.assigned_node_id,
                resource: row.allocated_resources.entry.into_iter().map(|entry| (entry.key, entry.value)).collect(),
                // Containers whose program hasn't started yet are also reported as running.
                state: ContainerState::Running.into(),
            };
            (container, role)
        })
        .collect()
    }
}

/// The leaf queues of `/ws/v1/cluster/scheduler`, each as its full path.
pub(crate) fn queues(told: &serde_json::Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = vec![(String::new(), &told["scheduler"]["schedulerInfo"])];
    while let Some((above, queue)) = rest.pop() {
        let Some(name) = queue["queueName"].as_str() else { continue };
        let path = match queue["queuePath"].as_str() {
            Some(path) => path.to_owned(),
            None if above.is_empty() => name.to_owned(),
            None => format!("{above}.{name}"),
        };
        match queue["queues"]["queue"].as_array() {
            Some(below) => rest.extend(below.iter().map(|queue| (path.clone(), queue))),
            None => found.push(path),
        }
    }
    found.sort();
    found
}

/// Whether a queue's path matches a job's queue: the full path, with or without its root, or the last name.
pub(crate) fn is_queue(path: &str, called: &str) -> bool {
    path == called || path.strip_prefix("root.") == Some(called) || path.rsplit('.').next() == Some(called)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<T: serde::de::DeserializeOwned>(text: &str) -> T {
        serde_json::from_str(text).unwrap()
    }

    const NODE: &str = r#"{"rack": "/default-rack", "state": "RUNNING", "id": "h:1", "nodeHostName": "h",
        "version": "3.5.0",
        "usedMemoryMB": 256, "nodeLabels": ["fast"],
        "nodeAttributesInfo": {"nodeAttributeInfo": [
            {"prefix": "rm.yarn.io", "name": "rack", "type": "STRING", "value": "r1"}]},
        "usedResource": {"memory": 256, "vCores": 1, "resourceInformations": {"resourceInformation": [
            {"name": "memory-mb", "units": "Mi", "value": 256}, {"name": "yarn.io/gpu", "units": "", "value": 1}]}},
        "totalResource": {"memory": 2048, "vCores": 8, "resourceInformations": {"resourceInformation": [
            {"name": "memory-mb", "units": "Mi", "value": 2048}, {"name": "yarn.io/gpu", "units": "", "value": 4}]}}}"#;

    #[test]
    fn nodes_are_read() {
        let nodes: Nodes = read(&format!(r#"{{"nodes": {{"node": [{NODE}]}}}}"#));
        let node = nodes.into_wire(None).remove(0);
        assert_eq!((node.id.as_str(), node.name.as_str(), node.state()), ("h:1", "h", NodeState::Running));
        assert_eq!((node.capacity["memory-mb"], node.capacity["yarn.io/gpu"]), (2048, 4));
        assert_eq!((node.allocated["memory-mb"], node.allocated["yarn.io/gpu"]), (256, 1));
        assert_eq!((node.partition.as_str(), node.attributes["rm.yarn.io/rack"].as_str()), ("fast", "r1"));
        // If nodes share a host, requests have to name the port too.
        let second = NODE.replace("h:1", "h:2").replace("RUNNING", "LOST");
        let both = || read::<Nodes>(&format!(r#"{{"nodes": {{"node": [{NODE}, {second}]}}}}"#));
        let names = |nodes: Vec<wire::Node>| nodes.into_iter().map(|node| node.name).collect::<Vec<_>>();
        assert_eq!(names(both().into_wire(None)), ["h:1", "h:2"]);
        assert_eq!(names(both().into_wire(Some(false))), ["h", "h"]);
        assert_eq!(both().into_wire(None)[1].state(), NodeState::Gone);
        for none in [r#"{"nodes": null}"#, r#"{"nodes": {}}"#, r#"{"nodes": {"node": []}}"#] {
            assert_eq!(read::<Nodes>(none).into_wire(None), [], "{none}");
        }
        for wrong in ["[]", "{}", "\"\"", r#"{"nodes": {"node": [{"state": "RUNNING"}]}}"#] {
            assert!(serde_json::from_str::<Nodes>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn applications_are_read() {
        let app = |state: &str, status: &str| {
            let text = format!(
                r#"{{"id": "application_1_0001", "user": "alice", "name": "n", "queue": "root.dl", "state": "{state}",
                "finalStatus": "{status}", "diagnostics": "why", "applicationType": "TRAINMASTER",
                "applicationTags": "other,trainmaster-secret-00ff", "priority": -1, "masterNodeId": "h:1"}}"#
            );
            let row: AppRow = read(&text);
            assert!(row.is_job());
            row.into_wire()
        };
        for (state, status, expected) in [
            ("NEW_SAVING", "UNDEFINED", ApplicationState::Pending),
            ("ACCEPTED", "UNDEFINED", ApplicationState::Pending),
            ("RUNNING", "UNDEFINED", ApplicationState::Running),
            ("FINISHED", "SUCCEEDED", ApplicationState::Succeeded),
            ("FINISHED", "FAILED", ApplicationState::Failed),
            ("FINISHED", "KILLED", ApplicationState::Killed),
            ("FAILED", "FAILED", ApplicationState::Failed),
            ("KILLED", "KILLED", ApplicationState::Killed),
        ] {
            assert_eq!(app(state, status).state(), expected, "{state} {status}");
        }
        let row = app("RUNNING", "UNDEFINED");
        assert_eq!((row.queue.as_str(), row.priority, row.secret_hash.as_str()), ("root.dl", -1, "00ff"));
        for none in [r#"{"apps": null}"#, r#"{"apps": {}}"#] {
            assert!(read::<Apps>(none).into_rows().is_empty(), "{none}");
        }
        let attempts =
            r#"{"appAttempts": {"appAttempt": [{"id": 2, "appAttemptId": "b"}, {"id": 1, "appAttemptId": "a"}]}}"#;
        assert_eq!(read::<Attempts>(attempts).newest(), Some(Attempt { id: 2, app_attempt_id: "b".into() }));
    }

    #[test]
    fn containers_have_the_roles_of_their_priorities() {
        let row = |number: u32, priority: i64| {
            format!(
                r#"{{"containerId": "c{number}", "assignedNodeId": "h:1", "priority": {priority},
                    "containerState": "RUNNING",
                "allocatedResources": {{"entry": [{{"key": "memory-mb", "value": 128}}]}}}}"#
            )
        };
        let rows = [row(1, 0), row(2, 10), row(3, 20), row(4, 7), row(5, 20).replace("RUNNING", "COMPLETE")].join(",");
        let read_well = read::<Containers>(&format!(r#"{{"container": [{rows}]}}"#)).into_wire();
        let roles: Vec<_> = read_well.iter().map(|(container, role)| (container.id.as_str(), *role)).collect();
        assert_eq!(roles, [("c2", Some(Role::Server)), ("c3", Some(Role::Worker)), ("c4", None)]);
        assert_eq!((read_well[0].0.node.as_str(), read_well[0].0.resource["memory-mb"]), ("h:1", 128));
        assert!(serde_json::from_str::<Containers>("{}").is_err() && serde_json::from_str::<Apps>("{}").is_err());
    }

    #[test]
    fn queues_are_found_wherever_they_are() {
        let told = r#"{"scheduler": {"schedulerInfo": {"queueName": "root", "queuePath": "root", "queues": {"queue": [
            {"queueName": "dl", "queuePath": "root.dl"},
            {"queueName": "a", "queues": {"queue": [{"queueName": "b"}]}}]}}}}"#;
        assert_eq!(queues(&read(told)), ["root.a.b", "root.dl"]);
        assert_eq!(queues(&read("[]")), Vec::<String>::new());
        assert!(is_queue("root.a.b", "b") && is_queue("root.a.b", "a.b") && is_queue("root.dl", "root.dl"));
        assert!(!is_queue("root.dl", "l") && !is_queue("root.dl", "default"));
    }
}

//! Ray's head, over gRPC.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::Duration,
};

use tonic::{
    Code, Request as Call, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Channel, Endpoint},
};

use self::{
    autoscaler::{
        ClusterResourceConstraint, GetClusterStatusRequest, NodeStatus, RequestClusterResourceConstraintRequest,
        ResourceRequest, ResourceRequestByCount, autoscaler_state_service_client::AutoscalerStateServiceClient,
    },
    rpc::{
        CheckAliveRequest, GcsStatus, GetAllJobInfoRequest, GetAllNodeInfoRequest, GetAllPlacementGroupRequest,
        InternalKvDelRequest, InternalKvKeysRequest, InternalKvMultiGetRequest, InternalKvPutRequest, LabelSelector,
        LabelSelectorConstraint, LabelSelectorOperator, PlacementGroupTableData, RemovePlacementGroupRequest,
        internal_kv_gcs_service_client::InternalKvGcsServiceClient,
        job_info_gcs_service_client::JobInfoGcsServiceClient, node_info_gcs_service_client::NodeInfoGcsServiceClient,
        placement_group_info_gcs_service_client::PlacementGroupInfoGcsServiceClient,
    },
};
use super::{
    config::Config,
    head::{HeadError, Trouble},
    names::GroupName,
    translator::Effect,
    view::{Ask, Bundle, Group, GroupState, Node, NodeId, Record, Request, View, why},
};

/// What Ray's head and this adapter say to each other.
#[allow(unreachable_pub, reason = "generated")]
mod rpc {
    tonic::include_proto!("ray.rpc");
}

/// The same of autoscalers.
#[allow(unreachable_pub, reason = "generated")]
mod autoscaler {
    tonic::include_proto!("ray.rpc.autoscaler");
}

/// Where drivers and adapters write.
const NAMESPACE: &[u8] = b"trainmaster";
const RECORD: &str = "job/";
const CONNECT: Duration = Duration::from_secs(5);
/// One call; the head answers in milliseconds.
const ANSWER: Duration = Duration::from_secs(10);
/// A large cluster is far larger than gRPC's default of 4 MiB allows.
const MOST_BYTES: usize = 256 << 20;
/// How prost's errors begin.
const UNREADABLE: &str = "failed to decode Protobuf message";
/// What to do where the token is refused.
pub(crate) const TOKEN_HINT: &str = "; give the file with the cluster's token (token_file)";

type Authorized = InterceptedService<Channel, Token>;

#[derive(Clone)]
struct Token(Option<MetadataValue<Ascii>>);

impl Interceptor for Token {
    fn call(&mut self, mut call: Call<()>) -> Result<Call<()>, Status> {
        if let Some(token) = &self.0 {
            call.metadata_mut().insert("authorization", token.clone());
        }
        call.set_timeout(ANSWER);
        Ok(call)
    }
}

/// A connection to Ray's head.
pub(crate) struct Gcs {
    address: String,
    /// The head's version of Ray.
    pub(crate) version: String,
    autoscaler: AutoscalerStateServiceClient<Authorized>,
    nodes: NodeInfoGcsServiceClient<Authorized>,
    jobs: JobInfoGcsServiceClient<Authorized>,
    groups: PlacementGroupInfoGcsServiceClient<Authorized>,
    store: InternalKvGcsServiceClient<Authorized>,
    /// The names of nodes that were seen: they don't change.
    names: BTreeMap<Vec<u8>, String>,
    /// Nothing was looked at yet.
    is_new: bool,
    /// An autoscaler that reports; only Ray's second one does.
    pub(crate) has_autoscaler: bool,
}

impl Gcs {
    /// Connects, and asks for the version.
    ///
    /// # Errors
    /// The token's file can't be read, nobody answers, or the token isn't the right one.
    pub(crate) async fn connect(config: &Config) -> Result<Self, HeadError> {
        let address = config.address.clone();
        let fail = |problem: String| HeadError { place: place(&address), problem, kind: Trouble::Away };
        let token = token(config).map_err(|problem| HeadError { kind: Trouble::Token, ..fail(problem) })?;
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| fail(error.to_string()))?;
        let endpoint = endpoint.connect_timeout(CONNECT).http2_keep_alive_interval(ANSWER).keep_alive_timeout(ANSWER);
        let channel = endpoint.connect().await.map_err(|error| fail(causes(&error)))?;
        let channel = InterceptedService::new(channel, Token(token));
        let mut gcs = Self {
            version: String::new(),
            autoscaler: AutoscalerStateServiceClient::new(channel.clone()).max_decoding_message_size(MOST_BYTES),
            nodes: NodeInfoGcsServiceClient::new(channel.clone()).max_decoding_message_size(MOST_BYTES),
            jobs: JobInfoGcsServiceClient::new(channel.clone()).max_decoding_message_size(MOST_BYTES),
            groups: PlacementGroupInfoGcsServiceClient::new(channel.clone()).max_decoding_message_size(MOST_BYTES),
            store: InternalKvGcsServiceClient::new(channel).max_decoding_message_size(MOST_BYTES),
            names: BTreeMap::new(),
            is_new: true,
            has_autoscaler: false,
            address,
        };
        let alive = gcs.nodes.check_alive(CheckAliveRequest {}).await;
        let alive = gcs.answer("CheckAlive", alive.map(|alive| (alive.get_ref().status.clone(), alive)))?;
        gcs.version = alive.into_inner().ray_version;
        Ok(gcs)
    }

    /// Everything that matters, as it is now: one call for each table, whatever the size of the cluster.
    pub(crate) async fn look(&mut self) -> Result<View, HeadError> {
        let mut view = View { drivers: self.drivers().await?, ..View::default() };
        let keys = self.keys(if self.is_new { "" } else { RECORD }).await?;
        let mut written = self.read(keys).await?;
        let records = written.extract_if(.., |key, _| key.starts_with(RECORD)).collect::<Vec<_>>();
        view.records = records.into_iter().filter_map(|(key, value)| record(&key, &value)).collect();
        // A driver may have come, and said so, after the drivers were asked for.
        if view.records.values().any(|record| !view.drivers.contains(&record.driver)) {
            view.drivers.extend(self.drivers().await?);
        }
        view.written = std::mem::replace(&mut self.is_new, false).then_some(written);
        view.groups = self.groups().await?;
        self.look_at_nodes(&mut view).await?;
        Ok(view)
    }

    /// Does something at the head.
    pub(crate) async fn carry_out(&mut self, effect: Effect) -> Result<(), HeadError> {
        match effect {
            Effect::Put { key, value } => {
                let request = InternalKvPutRequest {
                    key: key.into(),
                    value: value.into(),
                    overwrite: true,
                    namespace: NAMESPACE.into(),
                };
                let put = self.store.internal_kv_put(request).await;
                self.answer("InternalKVPut", put.map(|put| (put.into_inner().status, ())))
            }
            Effect::Delete { key } => {
                let request = InternalKvDelRequest { key: key.into(), namespace: NAMESPACE.into() };
                let deleted = self.store.internal_kv_del(request).await;
                self.answer("InternalKVDel", deleted.map(|deleted| (deleted.into_inner().status, ())))
            }
            Effect::RemoveGroup { id } => {
                let request = RemovePlacementGroupRequest { placement_group_id: id };
                let removed = self.groups.remove_placement_group(request).await;
                self.answer("RemovePlacementGroup", removed.map(|removed| (removed.into_inner().status, ())))
            }
            Effect::Ask(request) => {
                let request =
                    RequestClusterResourceConstraintRequest { cluster_resource_constraint: Some(constraint(&request)) };
                let asked = self.autoscaler.request_cluster_resource_constraint(request).await;
                self.answer("RequestClusterResourceConstraint", asked.map(|_| (None, ())))
            }
        }
    }

    async fn drivers(&mut self) -> Result<BTreeSet<String>, HeadError> {
        let request = GetAllJobInfoRequest {
            skip_submission_job_info_field: Some(true),
            skip_is_running_tasks_field: Some(true),
        };
        let jobs = self.jobs.get_all_job_info(request).await.map(tonic::Response::into_inner);
        let jobs = self.answer("GetAllJobInfo", jobs.map(|jobs| (jobs.status, jobs.job_info_list)))?;
        Ok(jobs.into_iter().filter(|job| !job.is_dead).map(|job| NodeId(job.job_id).to_string()).collect())
    }

    async fn keys(&mut self, prefix: &str) -> Result<Vec<Vec<u8>>, HeadError> {
        let request = InternalKvKeysRequest { prefix: prefix.into(), namespace: NAMESPACE.into() };
        let keys = self.store.internal_kv_keys(request).await.map(tonic::Response::into_inner);
        self.answer("InternalKVKeys", keys.map(|keys| (keys.status, keys.results)))
    }

    async fn read(&mut self, keys: Vec<Vec<u8>>) -> Result<BTreeMap<String, String>, HeadError> {
        if keys.is_empty() {
            return Ok(BTreeMap::new());
        }
        let request = InternalKvMultiGetRequest { keys, namespace: NAMESPACE.into() };
        let read = self.store.internal_kv_multi_get(request).await.map(tonic::Response::into_inner);
        let read = self.answer("InternalKVMultiGet", read.map(|read| (read.status, read.results)))?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(read.into_iter().map(|entry| (text(entry.key), text(entry.value))).collect())
    }

    async fn groups(&mut self) -> Result<Vec<Group>, HeadError> {
        let groups = self.groups.get_all_placement_group(GetAllPlacementGroupRequest {}).await;
        let groups = groups.map(tonic::Response::into_inner);
        let groups =
            self.answer("GetAllPlacementGroup", groups.map(|all| (all.status, all.placement_group_table_data)))?;
        Ok(groups.into_iter().filter_map(group).collect())
    }

    async fn look_at_nodes(&mut self, view: &mut View) -> Result<(), HeadError> {
        let status = self.autoscaler.get_cluster_status(GetClusterStatusRequest {}).await;
        let status = self.answer("GetClusterStatus", status.map(|status| (None, status.into_inner())))?;
        let state = status.cluster_resource_state.unwrap_or_default();
        let mut asked = state.cluster_resource_constraints.into_iter();
        view.asked = asked.next().map(|constraint| request(&constraint)).unwrap_or_default();
        let scaling = status.autoscaling_state.unwrap_or_default();
        self.has_autoscaler = scaling.autoscaler_state_version > 0;
        let infeasible = &scaling.infeasible_cluster_resource_constraints;
        view.infeasible = !view.asked.is_empty() && infeasible.iter().any(|theirs| request(theirs) == view.asked);
        let alive: Vec<_> = state.node_states.into_iter().filter(|node| node.status() != NodeStatus::Dead).collect();
        if alive.iter().any(|node| !self.names.contains_key(&node.node_id)) {
            let nodes = self.nodes.get_all_node_info(GetAllNodeInfoRequest {}).await;
            let nodes = nodes.map(tonic::Response::into_inner);
            let nodes = self.answer("GetAllNodeInfo", nodes.map(|nodes| (nodes.status, nodes.node_info_list)))?;
            self.names = nodes.into_iter().map(|node| (node.node_id, node.node_name)).collect();
        }
        for node in alive {
            let name = self.names.get(&node.node_id).filter(|name| !name.is_empty());
            view.nodes.insert(
                NodeId(node.node_id.clone()),
                Node {
                    name: name.cloned().unwrap_or_else(|| node.node_ip_address.clone()),
                    node_type: node.ray_node_type_name.clone(),
                    draining: node.status() == NodeStatus::Draining,
                    total: node.total_resources.into_iter().collect(),
                    available: node.available_resources.into_iter().collect(),
                    labels: node.labels.into_iter().collect(),
                },
            );
        }
        Ok(())
    }

    fn answer<T>(&self, call: &str, answer: Result<(Option<GcsStatus>, T), Status>) -> Result<T, HeadError> {
        let (problem, kind) = match answer {
            Ok((None | Some(GcsStatus { code: 0, .. }), answer)) => return Ok(answer),
            Ok((Some(status), _)) => (format!("{call}: {} (code {})", status.message, status.code), Trouble::Away),
            Err(status) => {
                let kind = trouble(&status);
                let hint = if kind == Trouble::Token { TOKEN_HINT } else { "" };
                (format!("{call}: {:?}: {}{hint}", status.code(), status.message()), kind)
            }
        };
        Err(HeadError { place: place(&self.address), problem, kind })
    }
}

fn place(address: &str) -> String {
    format!("Ray's head at {address}")
}

fn trouble(status: &Status) -> Trouble {
    match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => Trouble::Token,
        Code::Unimplemented => Trouble::Strange,
        // tonic's code for what it can't read, which the other end may use as well.
        Code::Internal if status.message().starts_with(UNREADABLE) => Trouble::Strange,
        _ => Trouble::Away,
    }
}

/// As a header's value.
pub(crate) fn token(config: &Config) -> Result<Option<MetadataValue<Ascii>>, String> {
    let Some(path) = &config.token_file else { return Ok(None) };
    let text = fs::read_to_string(path).map_err(|error| format!("token file {}: {error}", path.display()))?;
    let token = format!("Bearer {}", text.trim()).parse();
    let token = token.map_err(|_| format!("token file {}: characters that a header can't carry", path.display()))?;
    Ok(Some(token))
}

/// tonic's own words are "transport error"; what happened is said further down.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

fn record(key: &str, value: &str) -> Option<(u64, Record)> {
    let job = key.strip_prefix(RECORD)?.parse().ok()?;
    match serde_json::from_str(value) {
        Ok(record) => Some((job, record)),
        Err(error) => {
            tracing::warn!(key, %error, "a driver wrote what makes no sense");
            None
        }
    }
}

/// `None`: it isn't ours, or is gone.
fn group(data: PlacementGroupTableData) -> Option<Group> {
    let name = GroupName::parse(&data.name)?;
    let state = GroupState::named(data.state().as_str_name())?;
    let stats = data.stats.map(|stats| stats.scheduling_state()).unwrap_or_default();
    let why = why(stats.as_str_name());
    let mut bundles = data.bundles;
    bundles.sort_by_key(|bundle| bundle.bundle_id.map_or(0, |id| id.bundle_index));
    let bundles = bundles.into_iter().map(|bundle| Bundle {
        node: Some(NodeId(bundle.node_id)).filter(|node| node.0.iter().any(|byte| *byte != 0xff)),
        resources: bundle.unit_resources.into_iter().collect(),
    });
    Some(Group { id: data.placement_group_id, name, state, why, bundles: bundles.collect() })
}

fn constraint(request: &Request) -> ClusterResourceConstraint {
    let ask = |ask: &Ask| {
        let label = |(key, value): (&String, &String)| LabelSelectorConstraint {
            label_key: key.clone(),
            operator: LabelSelectorOperator::LabelOperatorIn.into(),
            label_values: vec![value.clone()],
        };
        let label_constraints: Vec<_> = ask.labels.iter().map(label).collect();
        let selector = (!label_constraints.is_empty()).then_some(LabelSelector { label_constraints });
        let request = ResourceRequest {
            resources_bundle: ask.resources.clone().into_iter().collect(),
            label_selectors: selector.into_iter().collect(),
        };
        ResourceRequestByCount { request: Some(request), count: ask.count }
    };
    ClusterResourceConstraint { resource_requests: request.0.iter().map(ask).collect() }
}

/// Of others' selectors, what can't be said in equal labels is named so that it is seen to be different.
fn request(constraint: &ClusterResourceConstraint) -> Request {
    let ask = |by_count: &ResourceRequestByCount| {
        let request = by_count.request.clone().unwrap_or_default();
        let selectors = request.label_selectors.into_iter().flat_map(|selector| selector.label_constraints);
        let labels = selectors.map(|one| match (one.operator(), one.label_values.as_slice()) {
            (LabelSelectorOperator::LabelOperatorIn, [value]) => (one.label_key, value.clone()),
            (operator, values) => (one.label_key, format!("{} {values:?}", operator.as_str_name())),
        });
        Ask {
            count: by_count.count,
            resources: request.resources_bundle.into_iter().collect(),
            labels: labels.collect(),
        }
    };
    Request(constraint.resource_requests.iter().map(ask).collect())
}

#[cfg(test)]
mod tests {
    use super::{rpc::placement_group_table_data::PlacementGroupState, *};

    #[test]
    fn answers_in_another_language_are_told_from_none() {
        let unreadable = <CheckAliveRequest as prost::Message>::decode(&[0xff][..]).unwrap_err();
        for (status, kind) in [
            (Status::unimplemented("no such call"), Trouble::Strange),
            (Status::internal(unreadable.to_string()), Trouble::Strange),
            (Status::internal("a bug"), Trouble::Away),
            (Status::unavailable("not now"), Trouble::Away),
            (Status::unauthenticated("who?"), Trouble::Token),
        ] {
            assert_eq!(trouble(&status), kind, "{status}");
        }
    }

    #[test]
    fn a_request_comes_back_as_it_was_asked() {
        let resources = BTreeMap::from([("CPU".to_owned(), 4.0), ("GPU".to_owned(), 0.5)]);
        let labels = BTreeMap::from([("tier".to_owned(), "burst".to_owned()), ("zone".to_owned(), "a".to_owned())]);
        let asked = Request(vec![
            Ask { count: 2, resources: resources.clone(), labels },
            Ask { count: 1, resources, labels: BTreeMap::new() },
        ]);
        assert_eq!(request(&constraint(&asked)), asked);
        assert_eq!(request(&constraint(&Request::default())), Request::default());
    }

    #[test]
    fn a_group_without_nodes_is_placed_nowhere() {
        let bundle = |index, node: &[u8]| rpc::Bundle {
            bundle_id: Some(rpc::bundle::BundleIdentifier { bundle_index: index }),
            node_id: node.to_vec(),
            ..rpc::Bundle::default()
        };
        let data = PlacementGroupTableData {
            name: "trainmaster/1/1/0/w0-1,p0".into(),
            bundles: vec![bundle(2, &[0xff; 28]), bundle(1, &[7; 28]), bundle(0, &[])],
            state: PlacementGroupState::Rescheduling.into(),
            ..PlacementGroupTableData::default()
        };
        let ours = group(data.clone()).unwrap();
        let placed: Vec<_> = ours.placed().map(|(slot, node, _)| (slot.1, node.0.len())).collect();
        assert_eq!(placed, [(1, 28)], "in the order of the bundles");
        assert_eq!(group(PlacementGroupTableData { name: "another's".into(), ..data.clone() }), None);
        assert_eq!(group(PlacementGroupTableData { state: PlacementGroupState::Removed.into(), ..data }), None);
    }

    #[test]
    fn what_makes_no_sense_is_left_out() {
        let text = r#"{"v":1,"name":"n","driver":"01000000","phase":"active",
            "running":{"incarnation":2,"revision":1,"slots":"w0"}}"#;
        let (job, read) = record("job/7", text).unwrap();
        assert_eq!((job, read.name.as_str(), read.running.unwrap().incarnation), (7, "n", 2));
        assert_eq!(record("job/7", "{}"), None);
        assert_eq!(record("job/x", text), None);
    }
}

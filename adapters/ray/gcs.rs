//! Ray's head, over gRPC.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tonic::{
    Code, Request as Call, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Channel, Endpoint},
};
use trainmaster_net::secret;

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
    amounts::counted,
    bounds::{
        LONGEST_KEY, LONGEST_PLAN, LONGEST_RECORD, MOST_BYTES, MOST_IN_RECORDS, MOST_KEYS, MOST_NODES, first, number,
        words,
    },
    config::Config,
    head::{HeadError, Trouble},
    names::GroupName,
    reading::Reading,
    translator::{Effect, PLAN, RECORD, REQUEST, SERVER},
    view::{Ask, Bundle, Group, GroupState, Node, NodeId, Record, Request, View, why},
};

/// The messages of Ray's head.
#[allow(unreachable_pub, reason = "generated")]
mod rpc {
    tonic::include_proto!("ray.rpc");
}

/// The messages of autoscalers.
#[allow(unreachable_pub, reason = "generated")]
mod autoscaler {
    tonic::include_proto!("ray.rpc.autoscaler");
}

/// The namespace for the data of drivers and adapters.
const NAMESPACE: &[u8] = b"trainmaster";
const CONNECT: Duration = Duration::from_secs(5);
/// Maximum duration of a call. The head answers in milliseconds.
const ANSWER: Duration = Duration::from_secs(10);
/// Number of polls after which values that were too long are read again.
const PATIENCE: u32 = 60;
/// The beginning of prost's errors.
const UNREADABLE: &str = "failed to decode Protobuf message";
/// Advice if the token is refused.
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
    /// The names of known nodes. They don't change.
    names: BTreeMap<Vec<u8>, String>,
    looks: u32,
    /// Keys of values that are too long.
    too_long: BTreeSet<String>,
    /// Whether a driver's record, or one in its name, was invalid, which was logged.
    said: bool,
    /// Whether an autoscaler reports. Only version 2 of Ray's autoscaler does.
    pub(crate) has_autoscaler: bool,
}

impl Gcs {
    /// Connects, and reads the version.
    ///
    /// # Errors
    /// The token's file can't be read, there is no answer, or the token is wrong.
    pub(crate) async fn connect(config: &Config) -> Result<Self, HeadError> {
        let address = config.address().to_owned();
        let fail = |problem: &str| HeadError::new(place(&address), problem, Trouble::Away);
        let token = token(config).map_err(|problem| HeadError { kind: Trouble::Token, ..fail(&problem) })?;
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| fail(&error.to_string()))?;
        let endpoint = endpoint.connect_timeout(CONNECT).http2_keep_alive_interval(ANSWER).keep_alive_timeout(ANSWER);
        let channel = endpoint.connect().await.map_err(|error| fail(&causes(&error)))?;
        let channel = InterceptedService::new(channel, Token(token));
        let mut gcs = Self {
            version: String::new(),
            autoscaler: AutoscalerStateServiceClient::new(channel.clone()).max_decoding_message_size(MOST_BYTES),
            nodes: NodeInfoGcsServiceClient::new(channel.clone()).max_decoding_message_size(MOST_BYTES),
            jobs: JobInfoGcsServiceClient::new(channel.clone()).max_decoding_message_size(MOST_BYTES),
            groups: PlacementGroupInfoGcsServiceClient::new(channel.clone()).max_decoding_message_size(MOST_BYTES),
            store: InternalKvGcsServiceClient::new(channel).max_decoding_message_size(MOST_BYTES),
            names: BTreeMap::new(),
            looks: 0,
            too_long: BTreeSet::new(),
            said: false,
            has_autoscaler: false,
            address,
        };
        let alive = gcs.nodes.check_alive(CheckAliveRequest {}).await;
        let alive = gcs.answer("CheckAlive", alive.map(|alive| (alive.get_ref().status.clone(), alive)))?;
        gcs.version = words(&alive.into_inner().ray_version);
        Ok(gcs)
    }

    /// Returns the relevant state, by one call for each table. The number of calls doesn't depend on the cluster's
    /// size. If there is too much data, `known` jobs come first.
    pub(crate) async fn look(&mut self, known: &BTreeSet<u64>) -> Result<View, HeadError> {
        let is_first = self.looks == 0;
        let mut view = View { drivers: self.drivers().await?, ..View::default() };
        let keys = self.keys(if is_first { "" } else { RECORD }, known).await?;
        let (records, others) = keys.into_iter().partition(|key| key.starts_with(RECORD));
        let records = self.read(records, LONGEST_RECORD, MOST_IN_RECORDS).await?;
        view.records = self.records(records);
        let text = |(key, value)| Some((key, String::from_utf8(value).ok()?));
        let others = self.read(others, LONGEST_PLAN, MOST_BYTES).await?;
        view.written = is_first.then(|| others.into_iter().filter_map(text).collect());
        // A driver may have started and written its record after the drivers were listed.
        if view.records.values().any(|record| !view.drivers.contains(&record.driver)) {
            view.drivers.extend(self.drivers().await?);
        }
        view.groups = self.groups().await?;
        self.look_at_nodes(&mut view).await?;
        self.looks = self.looks % PATIENCE + 1;
        if self.looks == PATIENCE {
            self.too_long.clear();
        }
        Ok(view)
    }

    /// Carries out an effect at the head.
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

    /// Lists the existing keys of drivers and adapters, up to the limit.
    async fn keys(&mut self, prefix: &str, known: &BTreeSet<u64>) -> Result<Vec<String>, HeadError> {
        let request = InternalKvKeysRequest { prefix: prefix.into(), namespace: NAMESPACE.into() };
        let keys = self.store.internal_kv_keys(request).await.map(tonic::Response::into_inner);
        if keys.as_ref().is_err_and(is_too_long) {
            if self.too_long.insert(prefix.to_owned()) {
                tracing::warn!(
                    "Ray's key-value store has too many keys to be listed: only jobs that are known are seen"
                );
            }
            return Ok(known.iter().take(MOST_KEYS).map(|job| format!("{RECORD}{job}")).collect());
        }
        let keys = self.answer("InternalKVKeys", keys.map(|keys| (keys.status, keys.results)))?;
        let ours = |key| String::from_utf8(key).ok().filter(|key| is_written(key));
        let keys = keys.into_iter().filter_map(ours).collect();
        Ok(first(keys, MOST_KEYS, |key| job_of(key).is_some_and(|job| known.contains(&job))))
    }

    /// Reads the values of keys, except values that are too long, until there is no room left.
    async fn read(
        &mut self,
        mut keys: Vec<String>,
        longest: usize,
        room: usize,
    ) -> Result<BTreeMap<String, Vec<u8>>, HeadError> {
        keys.retain(|key| !self.too_long.contains(key));
        let mut reading = Reading::new(keys, longest, room);
        while let Some(keys) = reading.next() {
            let request = InternalKvMultiGetRequest {
                keys: keys.iter().map(|key| key.clone().into_bytes()).collect(),
                namespace: NAMESPACE.into(),
            };
            let read = self.store.internal_kv_multi_get(request).await.map(tonic::Response::into_inner);
            if read.as_ref().is_err_and(is_too_long) {
                reading.refuse(keys);
            } else {
                let read = self.answer("InternalKVMultiGet", read.map(|read| (read.status, read.results)))?;
                reading.take(read.into_iter().map(|entry| (entry.key, entry.value)));
            }
        }
        let Reading { found, too_long, .. } = reading;
        if let Some(first) = too_long.first() {
            let count = too_long.len();
            tracing::warn!(
                key = first,
                count,
                longest,
                "in Ray's key-value store, what stands there is too long to be read"
            );
            self.too_long.extend(too_long);
        }
        Ok(found)
    }

    /// Parses drivers' records, and skips invalid ones.
    fn records(&mut self, written: BTreeMap<String, Vec<u8>>) -> BTreeMap<u64, Record> {
        let mut strange = None;
        let mut read = |(key, value): (String, Vec<u8>)| match Record::read(&value) {
            Ok(record) => Some((job_of(&key)?, record)),
            Err(problem) => {
                strange.get_or_insert((key, problem));
                None
            }
        };
        let records = written.into_iter().filter_map(&mut read).collect();
        if let Some((key, problem)) = strange.as_ref().filter(|_| !self.said) {
            tracing::warn!(key, problem, "a driver wrote what makes no sense");
        }
        self.said = strange.is_some();
        records
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
        let alive = state.node_states.into_iter().filter(|node| node.status() != NodeStatus::Dead).collect();
        let alive = first(alive, MOST_NODES, |node| self.names.contains_key(&node.node_id));
        if alive.iter().any(|node| !self.names.contains_key(&node.node_id)) {
            let nodes = self.nodes.get_all_node_info(GetAllNodeInfoRequest {}).await;
            let nodes = nodes.map(tonic::Response::into_inner);
            let nodes = self.answer("GetAllNodeInfo", nodes.map(|nodes| (nodes.status, nodes.node_info_list)))?;
            self.names = nodes.into_iter().map(|node| (node.node_id, node.node_name)).collect();
        }
        for node in alive {
            let name = self.names.get(&node.node_id).filter(|name| !name.is_empty());
            let (id, draining) = (NodeId(node.node_id), node.status == NodeStatus::Draining as i32);
            let node = Node {
                name: name.cloned().unwrap_or(node.node_ip_address),
                node_type: node.ray_node_type_name,
                draining,
                total: node.total_resources.into_iter().collect(),
                available: node.available_resources.into_iter().collect(),
                labels: node.labels.into_iter().collect(),
            };
            if id.is_sound() {
                view.nodes.insert(id, node.bounded());
            }
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
        Err(HeadError::new(place(&self.address), &problem, kind))
    }
}

fn place(address: &str) -> String {
    format!("Ray's head at {address}")
}

fn trouble(status: &Status) -> Trouble {
    match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => Trouble::Token,
        Code::Unimplemented => Trouble::Strange,
        // tonic's code for messages that it can't decode. The server can use the same code.
        Code::Internal if status.message().starts_with(UNREADABLE) => Trouble::Strange,
        _ => Trouble::Away,
    }
}

/// The token as a header's value. It is sent only to the configured head and dashboard.
pub(crate) fn token(config: &Config) -> Result<Option<MetadataValue<Ascii>>, String> {
    let Some(path) = &config.token_file else { return Ok(None) };
    let text = secret::read_text(path).map_err(|problem| format!("token file {}: {problem}", path.display()))?;
    let token = format!("Bearer {}", text.trim()).parse::<MetadataValue<Ascii>>();
    let mut token =
        token.map_err(|_| format!("token file {}: characters that a header can't carry", path.display()))?;
    token.set_sensitive(true);
    Ok(Some(token))
}

/// Whether either end refused an answer because of its length, without reading it.
fn is_too_long(status: &Status) -> bool {
    match status.code() {
        Code::OutOfRange => true,
        Code::ResourceExhausted => status.message().contains("larger than max"),
        _ => false,
    }
}

/// The job whose record has a key.
fn job_of(key: &str) -> Option<u64> {
    number(key.strip_prefix(RECORD)?)
}

/// Whether drivers or adapters write this key.
fn is_written(key: &str) -> bool {
    let plan = |key: &str| key.strip_prefix(PLAN).and_then(number);
    let is_server = key.starts_with(SERVER) && key.len() <= LONGEST_KEY;
    key == REQUEST || is_server || job_of(key).or_else(|| plan(key)).is_some()
}

/// tonic's own text is "transport error". The causes are in the error's sources.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

/// Converts a group. `None`: it isn't Trainmaster's, or it is gone.
fn group(data: PlacementGroupTableData) -> Option<Group> {
    let name = GroupName::parse(&data.name, data.bundles.len())?;
    let state = GroupState::named(data.state().as_str_name())?;
    let stats = data.stats.map(|stats| stats.scheduling_state()).unwrap_or_default();
    let why = why(stats.as_str_name());
    let mut bundles = data.bundles;
    bundles.sort_by_key(|bundle| bundle.bundle_id.map_or(0, |id| id.bundle_index));
    let bundles = bundles.into_iter().map(|bundle| Bundle {
        node: Some(NodeId(bundle.node_id)).filter(|node| node.0.iter().any(|byte| *byte != 0xff)),
        resources: counted(bundle.unit_resources.into_iter().collect()),
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

/// Converts a request. Others' selectors that aren't equal labels are described by a text, so that they compare as
/// different.
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
    use std::os::unix::fs::PermissionsExt as _;

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
        let placed: Vec<_> = ours.placed().map(|(slot, node, _)| (slot.index, node.0.len())).collect();
        assert_eq!(placed, [(1, 28)], "in the order of the bundles");
        assert_eq!(group(PlacementGroupTableData { name: "another's".into(), ..data.clone() }), None);
        assert_eq!(group(PlacementGroupTableData { state: PlacementGroupState::Removed.into(), ..data }), None);
    }

    #[test]
    fn what_is_too_long_is_told_from_what_goes_wrong() {
        assert!(is_too_long(&Status::out_of_range("decoded message length too large")));
        assert!(is_too_long(&Status::resource_exhausted("SERVER: Sent message larger than max (9 vs. 5)")));
        assert!(!is_too_long(&Status::resource_exhausted("try again later")));
        assert!(!is_too_long(&Status::unavailable("")));
    }

    #[test]
    fn only_keys_that_drivers_and_adapters_write_are_read() {
        for key in ["request", "server/a", "plan/7", "job/0", "job/18446744073709551615"] {
            assert!(is_written(key), "{key}");
        }
        assert!(!is_written(&format!("server/{}", "x".repeat(1000))));
        for key in ["", "x", "requests", "server", "plan/", "job/+7", "job/07", "job/7/1", "job/18446744073709551616"] {
            assert!(!is_written(key), "{key}");
        }
        assert_eq!((job_of("job/7"), job_of("job/07"), job_of("plan/7")), (Some(7), None, None));
    }

    #[test]
    fn a_token_is_not_shown_and_its_file_is_not_read_without_end() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let config = Config::parse(&format!("token_file = {file:?}"), "test").unwrap();
        secret::write(&file, "secret\n").unwrap();
        let shown = token(&config).unwrap().unwrap();
        assert!(
            shown.is_sensitive()
                && shown.to_str().unwrap() == "Bearer secret"
                && !format!("{shown:?}").contains("secret")
        );
        secret::write(&file, "two\nlines").unwrap();
        let problem = token(&config).unwrap_err();
        assert!(problem.contains("header") && !problem.contains("lines"), "{problem}");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(token(&config).unwrap_err().contains("chmod 600"));
        let endless = Config::parse("token_file = \"/dev/zero\"", "test").unwrap();
        assert!(token(&endless).is_err());
    }
}

//! A cluster in which someone registers arbitrary nodes and placement groups and writes arbitrary documents. The daemon
//! can still read all messages, and other users' nodes aren't lost.

use proptest::prelude::*;
use trainmaster_core::{Event, Scheduler, Settings, Time};
use trainmaster_proto::observed;

use super::{
    super::{
        amounts::counted,
        bounds::{MOST_DELETED, MOST_KINDS},
        names::GroupName,
        view::{Bundle, GroupState, Node, Record},
    },
    *,
};

const BURST: &str = "[[node_types]]\nname = \"burst\"\ncount = 2\ngpu = 2\ncpu = 8\nlabels = { tier = \"b\" }\n";

fn honest() -> (NodeId, Node) {
    let total: Resources = [("CPU".to_owned(), 8.0), ("GPU".to_owned(), 2.0), ("fpga".to_owned(), 1.0)].into();
    (NodeId(vec![1; 28]), Node { name: "honest".into(), available: total.clone(), total, ..Node::default() }.bounded())
}

fn plan(job: u64, decision: u64) -> v1::Plan {
    let slot = v1::Slot { server: "honest".into(), ..v1::Slot::default() };
    let job = v1::JobPlan { job, name: "n".into(), incarnation: 2, slots: vec![slot], ..v1::JobPlan::default() };
    v1::Plan { term: 1, decision, jobs: vec![job], full: true, ..v1::Plan::default() }
}

/// Handles a snapshot like the daemon, which has to be able to read all of it, and to accept the servers.
fn told(snapshot: Snapshot) -> Result<(), TestCaseError> {
    let kind = v1::observation::Kind::Snapshot(v1::Snapshot {
        servers: snapshot.servers.values().cloned().collect(),
        jobs: snapshot.jobs.into_values().collect(),
        owns_queue: false,
        takes_submissions: false,
    });
    let read = observed(v1::Observation { manager: "ray".into(), kind: Some(kind) });
    let read = read.map_err(|error| TestCaseError::fail(error.to_string()))?;
    let mut scheduler = Scheduler::new(Settings::default()).unwrap();
    for event in read.events {
        if matches!(event, Event::ServerSet { .. } | Event::ForeignUse { .. }) {
            scheduler.apply(Time(0), event).map_err(|error| TestCaseError::fail(error.to_string()))?;
        }
    }
    Ok(())
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]{1,3}",
        "\\PC{0,5}",
        Just("\u{1b}[2J".to_owned()),
        Just("x".repeat(5000)),
        Just("honest".to_owned()),
        Just("burst-0".to_owned()),
        Just("CPU_group_0_320d8ef29de2645808990ce5c6e6b9990100".to_owned()),
        prop_oneof![Just("CPU"), Just("GPU"), Just("memory"), Just("cpu"), Just("ray.io/accelerator-type")]
            .prop_map(str::to_owned),
    ]
}

fn amount() -> impl Strategy<Value = f64> {
    prop_oneof![
        0.0..100.0,
        any::<f64>(),
        prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(-1.0), Just(1e18), Just(1e300)],
    ]
}

fn resources() -> impl Strategy<Value = Resources> {
    proptest::collection::btree_map(name(), amount(), 0..8)
}

fn node() -> impl Strategy<Value = (NodeId, Node)> {
    let labels = proptest::collection::btree_map(name(), name(), 0..5);
    let id = proptest::collection::vec(2..6u8, 1..3).prop_map(NodeId);
    let node_type = prop_oneof![Just("burst".to_owned()), name()];
    (id, name(), node_type, resources(), resources(), labels, any::<bool>()).prop_map(
        |(id, name, node_type, total, available, labels, draining)| {
            (id, Node { name, node_type, total, available, labels, draining }.bounded())
        },
    )
}

fn group() -> impl Strategy<Value = Option<Group>> {
    let incarnation = prop_oneof![0..4u32, Just(u32::MAX)];
    let slots = prop_oneof![Just("w0"), Just("w0-1"), Just("w0,p0"), Just("w0-4294967295"), Just("p7")];
    let node = prop_oneof![Just(None), Just(Some(NodeId(vec![1; 28]))), Just(Some(NodeId(vec![2])))];
    let bundles = proptest::collection::vec((node, resources()), 0..3);
    (0..4u64, incarnation, slots, bundles, any::<u8>(), 0..3u8).prop_map(
        |(job, incarnation, slots, bundles, id, state)| {
            let state = [GroupState::Pending, GroupState::Created, GroupState::Rescheduling][usize::from(state)];
            let name = GroupName::parse(&format!("trainmaster/{job}/{incarnation}/0/{slots}"), bundles.len())?;
            let bundle = |(node, resources)| Bundle { node, resources: counted(resources) };
            Some(Group { id: vec![id], name, state, why: "", bundles: bundles.into_iter().map(bundle).collect() })
        },
    )
}

fn record() -> impl Strategy<Value = Option<Record>> {
    let phase = prop_oneof![Just("active"), Just("completed"), Just("failed"), Just("odd")];
    let slots = prop_oneof![Just("w0"), Just("w0-4294967295"), Just(""), Just("x")];
    (name(), prop_oneof![Just("01"), Just("02")], phase, any::<u32>(), slots, name()).prop_map(
        |(name, driver, phase, incarnation, slots, message)| {
            let name = if name.len() > 2 { "n".to_owned() } else { name };
            let text = serde_json::json!({
                "name": name, "driver": driver, "phase": phase, "message": message,
                "running": { "incarnation": incarnation, "slots": slots },
                "refused": { "incarnation": 2, "revision": 0, "cause": message },
            });
            Record::read(text.to_string().as_bytes()).ok()
        },
    )
}

/// The store's content when the adapter starts.
fn written() -> impl Strategy<Value = BTreeMap<String, String>> {
    let note = (0..4u32, any::<u32>(), any::<u32>(), name()).prop_map(|(incarnation, device, milli, server)| {
        let slot = serde_json::json!({ "role": "worker", "index": 0, "server": server, "devices": [[device, milli]] });
        serde_json::json!({
            "v": 1, "decision": 1, "name": "n", "action": "run", "incarnation": incarnation, "revision": 0,
            "reason": "", "slots": [slot],
        })
        .to_string()
    });
    let key = prop_oneof![
        (0..4u64).prop_map(|job| format!("plan/{job}")),
        name().prop_map(|name| format!("server/{name}")),
        Just("request".to_owned()),
    ];
    let value = prop_oneof![note, name(), Just("01".repeat(28)), Just("02".to_owned())];
    proptest::collection::btree_map(key, value, 0..8)
}

fn view() -> impl Strategy<Value = View> {
    (
        proptest::collection::vec(node(), 0..6),
        proptest::collection::vec(group(), 0..6),
        proptest::collection::vec((0..4u64, record()), 0..4),
        written(),
    )
        .prop_map(|(nodes, groups, records, written)| View {
            nodes: nodes.into_iter().chain([honest()]).collect(),
            groups: groups.into_iter().flatten().collect(),
            drivers: ["01".to_owned()].into(),
            records: records.into_iter().filter_map(|(job, record)| Some((job, record?))).collect(),
            written: Some(written),
            ..View::default()
        })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn whatever_is_seen_the_daemon_can_be_told(views in proptest::collection::vec(view(), 1..4)) {
        let mut translator = Translator::new(Arc::new(Config::parse(BURST, "test").unwrap()));
        for (at, view) in (1..).zip(views) {
            let now = Duration::from_secs(100 * at);
            translator.see(now, view);
            told(translator.snapshot())?;
            translator.plan(Duration::ZERO, plan(at % 3, at));
            let step = translator.step(now, 0);
            for (_, answer) in &step.refused {
                prop_assert!(answer.refused.as_ref().is_none_or(|cause| cause.chars().count() < 1100));
            }
            // Its name differs if another node has the same name.
            let own = &translator.servers[translator.names.of(&honest().0).unwrap()];
            prop_assert_eq!((own.capacity["cpu"], own.capacity["fpga"], own.devices.len()), (8000, 1000, 2));
            told(translator.snapshot())?;
        }
    }
}

#[test]
fn a_group_of_an_incarnation_that_nobody_was_told_of_is_anothers() {
    let mut translator = Translator::new(Arc::new(Config::parse("", "test").unwrap()));
    let mut view = View { nodes: [honest()].into(), ..View::default() };
    view.drivers.insert("01".into());
    let mut now = 0;
    let mut look = |translator: &mut Translator, view: &View| {
        now += 1;
        translator.see(Duration::from_secs(now), view.clone());
        translator.snapshot().jobs.remove(&1)
    };
    look(&mut translator, &view);
    translator.plan(Duration::ZERO, plan(1, 1));
    let record = r#"{"name":"n","driver":"01","phase":"active","running":{"incarnation":2,"slots":"w0"}}"#;
    view.records.insert(1, Record::read(record.as_bytes()).unwrap());
    let mut add = |incarnation: u32| {
        let resources = [("CPU".to_owned(), 1.0)].into();
        let bundles = vec![Bundle { node: Some(NodeId(vec![1; 28])), resources }];
        let name = GroupName::parse(&format!("trainmaster/1/{incarnation}/0/w0"), 1).unwrap();
        let state = GroupState::Created;
        view.groups.push(Group { id: incarnation.to_be_bytes().to_vec(), name, state, why: "", bundles });
        view.nodes.values_mut().for_each(|node| *node.available.get_mut("CPU").unwrap() -= 1.0);
        view.clone()
    };
    let own = look(&mut translator, &add(2)).unwrap();
    assert_eq!((own.phase(), own.incarnation, own.slots.len()), (v1::ObservedPhase::Running, 2, 1));
    let view = add(u32::MAX);
    for _ in 0..5 {
        assert_eq!(look(&mut translator, &view), Some(own.clone()));
    }
    assert_eq!(translator.servers["honest"].foreign["cpu"], 1000);
}

#[test]
fn what_somebody_wrote_goes_a_few_keys_at_a_time() {
    let mut translator = Translator::new(Arc::new(Config::parse("", "test").unwrap()));
    let written = (0..1000).map(|at| (format!("server/made-up-{at}"), "01".repeat(28))).collect();
    translator.see(Duration::ZERO, View { nodes: [honest()].into(), written: Some(written), ..View::default() });
    let mut deleted = 0;
    for second in 0..5 {
        let step = translator.step(Duration::from_secs(second), 0);
        let now = step.effects.iter().filter(|effect| matches!(effect, Effect::Delete { .. })).count();
        assert!(now <= MOST_DELETED);
        deleted += now;
    }
    assert_eq!(deleted, 1000);
    assert!(translator.written.keys().eq(["server/honest"]));
}

#[test]
fn nodes_that_invent_resources_keep_none_away() {
    let mut translator = Translator::new(Arc::new(Config::parse("", "test").unwrap()));
    let inventor = |at: u8| {
        let total = (0..200).map(|kind| (format!("r{at}-{kind}"), 1.0)).collect();
        (NodeId(vec![at; 28]), Node { name: format!("inventor-{at}"), total, ..Node::default() }.bounded())
    };
    let nodes: BTreeMap<_, _> = (2..50).map(inventor).chain([honest()]).collect();
    translator.see(Duration::ZERO, View { nodes, ..View::default() });
    told(translator.snapshot()).unwrap();
    let kinds: BTreeSet<_> = translator.servers.values().flat_map(|server| server.capacity.keys()).collect();
    assert!(kinds.len() <= MOST_KINDS + 2, "{}", kinds.len());
}

//! Arbitrary clusters and plans. Nothing panics, and plans, orders and observations obey the rules.

use proptest::{collection::vec, prelude::*};
use trainmaster_core::Role;
use trainmaster_manager::SlotId;
use trainmaster_proto::v1::{JobPlan, Plan, Slot};

use super::{super::slots::AllocationRequest, *};

const JOB: &str = "name = \"n\"\nworker = { cpu = 1, max = 4 }\nserver = { cpu = 1, max = 4 }";

/// Something that happens.
#[derive(Clone, Debug)]
enum Happening {
    Seen(wire::Cluster),
    Planned(Plan),
    Answered(u8, Submitted),
    Attached,
    CancelFailed(u64),
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![8 => (0..4u8).prop_map(|at| format!("n{at}")), 1 => Just(String::new())]
}

fn application() -> impl Strategy<Value = String> {
    (0..3u8).prop_map(|at| format!("application_1_{at}"))
}

fn amounts() -> impl Strategy<Value = HashMap<String, i64>> {
    let amount = prop_oneof![8 => 0..64i64, 1 => any::<i64>()];
    let name = prop_oneof![Just("memory-mb"), Just("vcores"), Just("yarn.io/gpu"), Just("x")];
    vec((name.prop_map(str::to_owned), amount), 0..4).prop_map(|pairs| pairs.into_iter().collect())
}

/// Mostly valid requests.
fn request() -> impl Strategy<Value = i64> {
    let real = (1..4u32, any::<bool>(), 0..3u32).prop_map(|(incarnation, server, index)| {
        let role = if server { Role::Server } else { Role::Worker };
        AllocationRequest::new(incarnation, SlotId::new(role, index)).unwrap().id()
    });
    prop_oneof![8 => real, 1 => any::<i64>()]
}

fn node() -> impl Strategy<Value = wire::Node> {
    let used = (any::<f64>(), any::<f64>())
        .prop_map(|(memory, vcores)| HashMap::from([("memory-mb".to_owned(), memory), ("vcores".to_owned(), vcores)]));
    (name(), name(), -1..4i32, amounts(), amounts(), used).prop_map(|(id, name, state, capacity, allocated, used)| {
        wire::Node { id, name, state, capacity, allocated, used, ..wire::Node::default() }
    })
}

fn container() -> impl Strategy<Value = wire::Container> {
    (any::<u8>(), request(), name(), amounts(), -1..4i32).prop_map(|(id, allocation_request, node, resource, state)| {
        wire::Container { id: id.to_string(), allocation_request, node, resource, state }
    })
}

fn row() -> impl Strategy<Value = wire::Application> {
    let job = prop_oneof![6 => Just(JOB), 1 => Just("name = 1"), 1 => Just("")];
    (application(), -1..6i32, job, vec(container(), 0..6)).prop_map(|(id, state, job, containers)| wire::Application {
        id,
        state,
        job: job.into(),
        containers,
        ..wire::Application::default()
    })
}

fn job_plan() -> impl Strategy<Value = JobPlan> {
    let slot =
        (-1..3i32, 0..3u32, name()).prop_map(|(role, index, server)| Slot { role, index, server, ..Slot::default() });
    let from = proptest::option::of((prop_oneof![4 => Just("yarn"), 1 => Just("other")], application()));
    (1..4u64, -1..6i32, 0..4u32, vec(slot, 0..5), from).prop_map(|(job, action, incarnation, slots, from)| JobPlan {
        job,
        action,
        incarnation,
        slots,
        external: from.map(|(cluster, native)| v1::ExternalId { cluster: cluster.into(), native }),
        ..JobPlan::default()
    })
}

fn happening() -> impl Strategy<Value = Happening> {
    let cluster = (vec(node(), 0..5), vec(row(), 0..4), any::<u64>()).prop_map(|(nodes, applications, enforced)| {
        wire::Cluster { nodes, applications, enforced, ..wire::Cluster::default() }
    });
    let plan = (0..3u64, 0..20u64, -1..20_000i64, vec(job_plan(), 0..4), any::<bool>())
        .prop_map(|(term, decision, ttl_ms, jobs, full)| Plan { term, decision, ttl_ms, jobs, full });
    let answer = prop_oneof![
        3 => (1..4u64).prop_map(Submitted::Job),
        1 => Just(Submitted::NameTaken("taken".into())),
        1 => Just(Submitted::Refused("no".into())),
        1 => Just(Submitted::Away),
    ];
    prop_oneof![
        4 => cluster.prop_map(Happening::Seen),
        4 => plan.prop_map(Happening::Planned),
        2 => (0..3u8, answer).prop_map(|(at, answer)| Happening::Answered(at, answer)),
        1 => Just(Happening::Attached),
        1 => (1..4u64).prop_map(Happening::CancelFailed),
    ]
}

fn check(translator: &mut Translator, now: Duration, cluster: &wire::Cluster) -> Result<(), TestCaseError> {
    if let Ok(plan) = translator.bridge_plan(now, 1) {
        for planned in &plan.applications {
            let mut requests = BTreeSet::new();
            for slot in &planned.slots {
                prop_assert!(requests.insert(slot.allocation_request), "two nodes for a slot: {planned:?}");
                let request = AllocationRequest::from_id(slot.allocation_request).unwrap();
                let incarnation = translator.apps[&planned.id].order.as_ref().unwrap().incarnation;
                prop_assert_eq!(request.incarnation(), incarnation);
                prop_assert!(translator.nodes.server(&slot.node).is_some());
            }
            prop_assert!(planned.slots.is_empty() || planned.action() == wire::Action::Run);
        }
    }
    for app in translator.apps.keys() {
        if let Ok(Some(orders)) = translator.orders(now, app) {
            prop_assert!(orders.slots.iter().all(|slot| slot.allocation_request > 0));
        }
    }
    let state = translator.snapshot();
    for (job, seen) in &state.jobs {
        let containers = || {
            let row = cluster.applications.iter().find(|row| row.id == translator.jobs[job]);
            row.into_iter().flat_map(|row| &row.containers)
        };
        let mut slots = BTreeSet::new();
        for slot in &seen.slots {
            prop_assert!(slots.insert((slot.role, slot.index)), "a slot that is in two places: {seen:?}");
            let is_it = |container: &wire::Container| {
                let request = AllocationRequest::from_id(container.allocation_request);
                request.is_some_and(|request| {
                    (request.slot().role == Role::Server) == (slot.role == 1) && request.slot().index == slot.index
                }) && translator.nodes.server(&container.node) == Some(slot.server.as_str())
            };
            prop_assert!(containers().any(is_it), "a slot without a container: {slot:?}");
            prop_assert!(state.servers.contains_key(&slot.server));
        }
    }
    for server in state.servers.values() {
        let amounts = server.capacity.values().chain(server.foreign.values());
        prop_assert!(amounts.copied().all(|amount| (0..=1_000_000_000_000).contains(&amount)), "{server:?}");
    }
    translator.forget_loads();
    for load in translator.measured(now) {
        let capacity = &state.servers[&load.server].capacity;
        prop_assert!(load.used.iter().all(|(name, used)| (0..=capacity[name]).contains(used)), "{load:?}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn whatever_happens_the_rules_are_kept(happenings in vec((happening(), 0..20u64), 1..30)) {
        let config = Config::parse("placement_timeout = \"5s\"\nmaster_timeout = \"5s\"", "test").unwrap();
        let mut translator = Translator::new(Arc::new(config), BTreeMap::new());
        let (mut now, mut cluster) = (Duration::ZERO, wire::Cluster::default());
        for (happening, seconds) in happenings {
            now += Duration::from_secs(seconds);
            match happening {
                Happening::Seen(seen) => {
                    cluster = seen;
                    // Of several with the same name, the first counts.
                    let mut told = BTreeSet::new();
                    let mut first = cluster.clone();
                    first.applications.retain(|row| told.insert(row.id.clone()));
                    translator.see(now, std::mem::replace(&mut cluster, first));
                }
                Happening::Planned(plan) => _ = translator.plan(now, plan),
                Happening::Answered(at, answer) => translator.submitted(now, &format!("application_1_{at}"), answer),
                Happening::Attached => translator.attached(),
                Happening::CancelFailed(job) => translator.cancel_failed(job),
            }
            translator.step(now);
            check(&mut translator, now, &cluster)?;
        }
    }
}

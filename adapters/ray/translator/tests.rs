//! Scenarios. The inputs are the state of Ray's head and the daemon's plans. The tests check the effects and the
//! observations.

use trainmaster_proto::v1::{Action, JobPlan, ObservedPhase, Plan, Server, Slot, SlotRole};

use super::{
    super::view::{Ask, Bundle, GroupState, Node, OnDriverDeath, Record, RecordPhase},
    *,
};
use crate::ray::names::GroupName;

const DRIVER: &str = "01000000";
const BURST: &str = "[[node_types]]\nname = \"burst\"\ncount = 2\ngpu = 2\ncpu = 8\nlabels = { tier = \"b\" }\n";

/// Workers with their servers.
type Slots = Vec<(u32, String)>;

/// A cluster that a test changes, and a translator that gets its state every second.
struct World {
    translator: Translator,
    /// The last state for the daemon.
    told: BTreeMap<u64, v1::ObservedJob>,
    view: View,
    second: u64,
    decision: u64,
}

impl World {
    fn new(config: &str) -> Self {
        let config = Config::parse(config, "test").unwrap();
        let mut world = Self {
            translator: Translator::new(Arc::new(config)),
            told: BTreeMap::new(),
            view: View::default(),
            second: 0,
            decision: 0,
        };
        world.view.drivers.insert(DRIVER.into());
        world.view.written = Some(BTreeMap::new());
        world
    }

    /// A world with nodes `a` and `b`.
    fn with_nodes(config: &str) -> Self {
        let mut world = Self::new(config);
        world.node(1, "a", "");
        world.node(2, "b", "");
        world
    }

    fn node(&mut self, id: u8, name: &str, node_type: &str) {
        let total: Resources = [("CPU".to_owned(), 8.0), ("GPU".to_owned(), 2.0)].into();
        let node =
            Node { name: name.into(), node_type: node_type.into(), available: total.clone(), total, ..Node::default() };
        self.view.nodes.insert(NodeId(vec![id; 28]), node);
    }

    fn take(&mut self, id: u8, resource: &str, amount: f64) {
        let node = self.view.nodes.get_mut(&NodeId(vec![id; 28])).unwrap();
        *node.available.get_mut(resource).unwrap() -= amount;
    }

    fn group(&mut self, id: u8, name: &str, state: GroupState, nodes: &[u8]) {
        self.view.groups.retain(|group| group.id != [id]);
        let bundle = |node: &u8| Bundle {
            node: (*node > 0).then(|| NodeId(vec![*node; 28])),
            resources: [("CPU".to_owned(), 1.0), ("GPU".to_owned(), 1.0)].into(),
        };
        let bundles: Vec<_> = nodes.iter().map(bundle).collect();
        let name = GroupName::parse(name, bundles.len()).unwrap();
        self.view.groups.push(Group { id: vec![id], name, state, why: "no room", bundles });
    }

    fn record(&mut self, job: u64, change: impl FnOnce(&mut Record)) {
        let new = || Record { name: format!("job{job}"), driver: DRIVER.into(), ..Record::default() };
        change(self.view.records.entry(job).or_insert_with(new));
    }

    fn running(&mut self, job: u64, incarnation: u32, slots: &str) {
        let text = format!(r#"{{"incarnation":{incarnation},"revision":0,"slots":"{slots}"}}"#);
        self.record(job, |record| record.running = serde_json::from_str(&text).unwrap());
    }

    /// Advances the time by one second, and polls the head.
    fn look(&mut self) -> Effects {
        self.second += 1;
        let now = Duration::from_secs(self.second);
        self.translator.see(now, self.view.clone());
        self.view.written = None;
        let step = self.translator.step(now, 1_000_000_000 + now.as_millis() as i64);
        self.told = self.translator.snapshot().jobs;
        for effect in &step.effects {
            if let Effect::Ask(request) = effect {
                self.view.asked = request.clone();
            }
        }
        step
    }

    fn look_for(&mut self, seconds: u64) -> Effects {
        let mut all = Effects::default();
        for _ in 0..seconds {
            let step = self.look();
            all.effects.extend(step.effects);
            all.refused.extend(step.refused);
        }
        all
    }

    fn plan(&mut self, full: bool, jobs: Vec<JobPlan>) -> Vec<PlanAnswer> {
        self.decision += 1;
        self.translator.plan(Duration::ZERO, Plan { term: 1, decision: self.decision, ttl_ms: 0, jobs, full })
    }

    fn run(&mut self, job: u64, incarnation: u32, slots: &[(u32, &str)]) -> Vec<PlanAnswer> {
        self.plan(false, vec![run(job, incarnation, slots)])
    }

    fn server(&self, name: &str) -> &Server {
        &self.translator.servers[name]
    }

    /// The phase, the incarnation, and the workers with their servers.
    fn job(&mut self, job: u64) -> Option<(ObservedPhase, u32, Slots)> {
        let seen = self.translator.snapshot().jobs.remove(&job)?;
        let slots = seen.slots.iter().map(|slot| (slot.index, slot.server.clone())).collect();
        Some((seen.phase(), seen.incarnation, slots))
    }

    fn note(&self, job: u64) -> serde_json::Value {
        serde_json::from_str(&self.translator.written[&format!("plan/{job}")]).unwrap()
    }
}

/// A plan with workers that have one GPU each.
fn run(job: u64, incarnation: u32, slots: &[(u32, &str)]) -> JobPlan {
    let slot = |&(index, server): &(u32, &str)| Slot {
        role: SlotRole::Worker.into(),
        index,
        server: server.into(),
        devices: vec![v1::DeviceShare { device: index % 2, milli: 1000 }],
        idle: false,
    };
    JobPlan {
        job,
        name: format!("job{job}"),
        action: Action::Run.into(),
        incarnation,
        slots: slots.iter().map(slot).collect(),
        ..JobPlan::default()
    }
}

fn other(job: u64, action: Action) -> JobPlan {
    JobPlan { action: action.into(), slots: Vec::new(), ..run(job, 1, &[]) }
}

fn put(step: &Effects, key: &str) -> Option<String> {
    let value = |effect: &Effect| match effect {
        Effect::Put { key: put, value } if put == key => Some(value.clone()),
        _ => None,
    };
    step.effects.iter().find_map(value)
}

fn deleted(step: &Effects, key: &str) -> bool {
    step.effects.contains(&Effect::Delete { key: key.into() })
}

fn asked(step: &Effects) -> Vec<i64> {
    let count = |effect: &Effect| match effect {
        Effect::Ask(request) => Some(request.0.iter().map(|ask| ask.count).sum()),
        _ => None,
    };
    step.effects.iter().filter_map(count).collect()
}

fn at(slots: &[(u32, &str)]) -> Slots {
    slots.iter().map(|(index, server)| (*index, (*server).to_owned())).collect()
}

#[test]
fn loads_are_told_of_servers_that_the_daemon_knows() {
    let mut world = World::with_nodes("");
    let load = || Load { resources: [("cpu", 0.5)].into(), devices: [(0, 0.0), (1, 1.0)].into() };
    let loads = |world: &mut World| {
        let told = world.translator.measured([1, 9].map(|id| (NodeId(vec![id; 28]), load())).into());
        told.into_iter().map(|used| (used.server, used.used["cpu"], used.devices)).collect::<Vec<_>>()
    };
    let of_a = [("a".to_owned(), 4000, vec![v1::DeviceShare { device: 1, milli: 1000 }])];
    assert_eq!(loads(&mut world), [], "it knows none");
    world.look();
    assert_eq!(loads(&mut world), of_a);
    assert_eq!(loads(&mut world), []);
    world.view.nodes.remove(&NodeId(vec![1; 28]));
    world.look();
    assert_eq!(loads(&mut world), []);
    world.node(1, "a", "");
    world.look();
    assert_eq!(loads(&mut world), of_a, "the node came back");
    world.translator.forget_loads();
    assert_eq!(loads(&mut world), of_a);
}

#[test]
fn nodes_are_servers_and_drivers_find_them_by_name() {
    let mut world = World::with_nodes("bandwidth = \"1Gbit\"");
    let step = world.look();
    assert_eq!(put(&step, "server/a"), Some("01".repeat(28)));
    let a = world.server("a");
    assert_eq!((a.capacity["cpu"], a.capacity["bandwidth"], a.devices.len()), (8000, 1000, 2));
    assert_eq!(world.look().effects, [], "what is there isn't written again");
    let same = world.translator.servers.clone();
    world.look();
    assert!(Arc::ptr_eq(&same, &world.translator.servers));

    world.view.nodes.get_mut(&NodeId(vec![2; 28])).unwrap().draining = true;
    world.view.nodes.remove(&NodeId(vec![1; 28]));
    let step = world.look();
    assert!(deleted(&step, "server/a") && world.server("b").draining);
    assert!(!world.translator.servers.contains_key("a"));
}

#[test]
fn a_job_runs_from_plan_to_end() {
    let mut world = World::with_nodes("");
    world.look();
    assert_eq!(world.plan(true, vec![]), []);
    assert_eq!(world.run(7, 1, &[(0, "a"), (1, "b")]), [PlanAnswer::accepted(7)]);
    let step = world.look();
    assert!(put(&step, "plan/7").is_some());
    assert_eq!(world.job(7), Some((ObservedPhase::Starting, 1, vec![])));
    assert_eq!(world.note(7)["slots"][1]["server"], "b");

    world.record(7, |_| {});
    world.group(1, "trainmaster/7/1/0/w0-1", GroupState::Pending, &[0, 0]);
    world.look();
    assert_eq!(world.job(7), Some((ObservedPhase::Starting, 1, vec![])));
    world.group(1, "trainmaster/7/1/0/w0-1", GroupState::Created, &[1, 2]);
    world.look();
    assert_eq!(world.job(7), Some((ObservedPhase::Starting, 1, at(&[(0, "a"), (1, "b")]))), "no actor yet");
    world.running(7, 1, "w0-1");
    world.look();
    assert_eq!(world.job(7), Some((ObservedPhase::Running, 1, at(&[(0, "a"), (1, "b")]))));
    let seen = &world.translator.snapshot().jobs[&7];
    assert_eq!(seen.slots[1].devices, [v1::DeviceShare { device: 1, milli: 1000 }], "as they were given");

    // A report ended the job in the daemon before its groups were gone. It is remembered until the daemon is told that
    // they are gone.
    world.plan(false, vec![other(7, Action::Stop)]);
    world.look();
    assert_eq!(world.told[&7].slots.len(), 2);
    world.view.groups.clear();
    world.record(7, |record| record.phase = RecordPhase::Completed);
    let step = world.look();
    assert!(!deleted(&step, "plan/7"), "{step:?}");
    assert_eq!((world.told[&7].phase(), world.told[&7].slots.len()), (ObservedPhase::Completed, 0));
    let step = world.look();
    assert!(deleted(&step, "plan/7") && deleted(&step, "job/7"), "{step:?}");
    world.view.records.clear();
    world.look();
    assert_eq!(world.job(7), None);
}

#[test]
fn workers_that_come_have_groups_of_their_own_and_those_that_go_are_gone() {
    let mut world = World::with_nodes("");
    world.look();
    world.run(7, 1, &[(0, "a")]);
    world.group(1, "trainmaster/7/1/0/w0", GroupState::Created, &[1]);
    world.running(7, 1, "w0");
    world.look();
    world.run(7, 1, &[(0, "a"), (1, "b")]);
    world.group(2, "trainmaster/7/1/1/w1", GroupState::Created, &[2]);
    world.look();
    assert_eq!(world.job(7), Some((ObservedPhase::Running, 1, at(&[(0, "a")]))), "its actor isn't there yet");
    world.running(7, 1, "w0-1");
    world.look();
    assert_eq!(world.job(7), Some((ObservedPhase::Running, 1, at(&[(0, "a"), (1, "b")]))));
    world.running(7, 1, "w0");
    world.look();
    assert_eq!(world.job(7).unwrap().2, at(&[(0, "a")]));
}

#[test]
fn an_old_incarnation_leaves_before_a_new_one_starts() {
    let mut world = World::with_nodes("");
    world.look();
    world.run(7, 1, &[(0, "a")]);
    world.group(1, "trainmaster/7/1/0/w0", GroupState::Created, &[1]);
    world.running(7, 1, "w0");
    world.look();
    world.run(7, 2, &[(0, "b")]);
    // The driver owes nothing yet, however long the checkpoint takes.
    assert_eq!(world.look_for(200).refused, []);
    assert_eq!(world.job(7), Some((ObservedPhase::Stopping, 1, at(&[(0, "a")]))));
    world.group(1, "trainmaster/7/2/0/w0", GroupState::Created, &[2]);
    world.look();
    assert_eq!(world.job(7), Some((ObservedPhase::Starting, 2, at(&[(0, "b")]))));
    world.plan(false, vec![other(7, Action::Wait)]);
    world.look();
    assert_eq!(world.job(7).unwrap().0, ObservedPhase::Stopping);
    world.view.groups.clear();
    world.look();
    assert_eq!(world.job(7), Some((ObservedPhase::Stopped, 1, vec![])));
}

#[test]
fn a_group_that_cant_be_placed_is_withdrawn_and_refused() {
    let mut world = World::with_nodes("placement_timeout = \"10s\"");
    world.look();
    world.run(7, 1, &[(0, "a")]);
    world.record(7, |_| {});
    world.group(1, "trainmaster/7/1/0/w0", GroupState::Pending, &[0]);
    assert_eq!(world.look_for(10).refused, []);
    let step = world.look();
    let (decision, answer) = &step.refused[0];
    let cause = answer.refused.as_deref().unwrap();
    assert_eq!((*decision, answer.job), (world.decision, 7));
    assert!(cause.contains("worker 0") && cause.contains("10s") && cause.contains("no room"), "{cause}");
    let removal = Effect::RemoveGroup { id: vec![1] };
    assert!(step.effects.contains(&removal));
    assert_eq!(world.note(7)["refused"], cause);
    assert_eq!(world.look().effects, [removal], "it is still there");
    world.view.groups.clear();
    let after = world.look_for(20);
    assert_eq!((after.refused, after.effects), (vec![], vec![]), "once is enough");
    // The daemon tries the same shape again, as a new attempt.
    world.run(7, 1, &[(0, "a")]);
    world.look();
    assert!(world.note(7).get("refused").is_none());
}

#[test]
fn growth_that_cant_be_placed_leaves_the_rest_alone() {
    let mut world = World::with_nodes("placement_timeout = \"10s\"");
    world.look();
    world.run(7, 1, &[(0, "a"), (1, "a")]);
    world.running(7, 1, "w0");
    world.group(1, "trainmaster/7/1/0/w0", GroupState::Created, &[1]);
    world.group(2, "trainmaster/7/1/1/w1", GroupState::Pending, &[0]);
    let step = world.look_for(11);
    assert_eq!(step.refused.len(), 1);
    let removed = step.effects.iter().filter(|effect| matches!(effect, Effect::RemoveGroup { .. }));
    assert_eq!(removed.collect::<Vec<_>>(), [&Effect::RemoveGroup { id: vec![2] }]);
    assert_eq!(world.job(7), Some((ObservedPhase::Running, 1, at(&[(0, "a")]))));
}

#[test]
fn a_driver_that_makes_nothing_or_never_comes_is_named() {
    let mut world = World::with_nodes("driver_timeout = \"10s\"");
    world.look();
    world.run(7, 1, &[(0, "a")]);
    let cause = |step: Effects| step.refused[0].1.refused.clone().unwrap();
    assert!(cause(world.look_for(11)).contains("no driver came"));
    world.record(7, |_| {});
    world.run(7, 1, &[(0, "a")]);
    assert!(cause(world.look_for(11)).contains("made no placement group"));
    // Added workers wait for the end of a step.
    world.run(7, 1, &[(0, "a"), (1, "a")]);
    world.group(1, "trainmaster/7/1/0/w0", GroupState::Created, &[1]);
    assert_eq!(world.look_for(50).refused, []);
}

#[test]
fn what_a_driver_cannot_follow_is_refused_with_its_words() {
    let mut world = World::with_nodes("");
    world.look();
    world.run(7, 1, &[(0, "a")]);
    world.running(7, 1, "w0");
    world.group(1, "trainmaster/7/1/0/w0", GroupState::Created, &[1]);
    assert_eq!(world.look().refused, []);
    let refuses = |revision: u32| {
        let text = format!(r#"{{"incarnation":1,"revision":{revision},"cause":"worker 1: no licence"}}"#);
        serde_json::from_str(&text).unwrap()
    };
    // A refusal of another revision doesn't count.
    world.record(7, |record| record.refused = Some(refuses(9)));
    assert_eq!(world.look().refused, []);
    world.record(7, |record| record.refused = Some(refuses(0)));
    let step = world.look();
    assert_eq!(step.refused[0].1.refused.as_deref(), Some("worker 1: no licence"));
    assert_eq!(world.job(7), Some((ObservedPhase::Running, 1, at(&[(0, "a")]))), "it goes on");
    assert_eq!(world.look().refused, [], "once is enough");
}

#[test]
fn a_lost_node_takes_its_slots_along() {
    let mut world = World::with_nodes("");
    world.look();
    world.run(7, 1, &[(0, "a"), (1, "b")]);
    world.running(7, 1, "w0-1");
    world.group(1, "trainmaster/7/1/0/w0-1", GroupState::Created, &[1, 2]);
    world.look();
    world.view.nodes.remove(&NodeId(vec![2; 28]));
    world.look();
    assert_eq!(world.job(7), Some((ObservedPhase::Running, 1, at(&[(0, "a")]))), "the group doesn't say so yet");
    world.group(1, "trainmaster/7/1/0/w0-1", GroupState::Rescheduling, &[1, 0]);
    world.running(7, 1, "");
    world.look();
    assert_eq!(world.job(7), Some((ObservedPhase::Starting, 1, vec![])));
    let answers = world.run(7, 1, &[(0, "b")]);
    assert!(answers[0].refused.as_deref().unwrap().contains("\"b\""), "{answers:?}");
}

#[test]
fn a_dead_driver_ends_its_job_or_leaves_it_to_the_next_one() {
    let mut world = World::with_nodes("");
    world.look();
    world.run(7, 1, &[(0, "a")]);
    world.run(8, 1, &[(1, "a")]);
    world.running(7, 1, "w0");
    world.running(8, 1, "w1");
    world.record(8, |record| record.on_driver_death = OnDriverDeath::Resume);
    world.group(1, "trainmaster/7/1/0/w0", GroupState::Created, &[1]);
    world.group(2, "trainmaster/8/1/0/w1", GroupState::Created, &[1]);
    assert_eq!(world.look().refused, []);
    world.view.drivers.clear();
    world.view.groups.clear();
    let step = world.look();
    let seen = world.translator.snapshot().jobs;
    assert_eq!((seen[&7].phase(), seen[&7].message.contains(DRIVER)), (ObservedPhase::Failed, true));
    assert_eq!(seen[&8].slots, []);
    assert_eq!(step.refused.len(), 1);
    assert!(step.refused[0].1.refused.as_deref().unwrap().contains("resume=True"), "{step:?}");
    // A new driver doesn't have to wait for a back-off that has grown for hours.
    assert_eq!(step.refused[0].1.retry_after, Some(Duration::from_secs(10)));
    // The next driver takes the job over.
    world.view.drivers.insert("02000000".into());
    world.record(8, |record| record.driver = "02000000".into());
    world.run(8, 1, &[(1, "a")]);
    assert_eq!(world.look().refused, []);
    assert!(world.note(8).get("refused").is_none());
    // Nothing is left of the other job after the daemon dropped it.
    world.plan(true, vec![run(8, 1, &[(1, "a")])]);
    let step = world.look_for(2);
    assert!(deleted(&step, "job/7") && deleted(&step, "plan/7"));
}

#[test]
fn what_others_use_is_foreign_and_what_ours_hold_isnt() {
    let mut world = World::with_nodes("");
    world.take(1, "CPU", 2.0);
    world.take(1, "GPU", 0.5);
    world.look();
    let a = world.server("a");
    assert_eq!((a.foreign["cpu"], a.foreign["gpu"]), (2000, 500));
    assert_eq!(a.foreign_devices, [v1::DeviceShare { device: 0, milli: 500 }]);

    world.run(7, 1, &[(0, "a")]);
    world.plan(true, vec![run(7, 1, &[(0, "a")])]);
    world.group(1, "trainmaster/7/1/0/w0", GroupState::Created, &[1]);
    world.take(1, "CPU", 1.0);
    world.take(1, "GPU", 1.0);
    world.look_for(5);
    let a = world.server("a");
    assert_eq!((a.foreign["cpu"], a.foreign["gpu"]), (2000, 500), "the group's is ours");
    assert_eq!(a.foreign_devices, [v1::DeviceShare { device: 1, milli: 500 }], "beside ours");

    // The group is gone before the node's resources are reported as free.
    world.view.groups.clear();
    world.look_for(2);
    assert_eq!(world.server("a").foreign["cpu"], 2000);
    // A group that no plan of this daemon knows is foreign use.
    world.group(2, "trainmaster/99/1/0/w0", GroupState::Created, &[1]);
    world.look_for(5);
    assert_eq!(world.server("a").foreign["cpu"], 3000);
}

#[test]
fn jobs_wait_for_nodes_to_come_and_the_request_is_merged() {
    let mut world = World::with_nodes(BURST);
    world.look();
    assert_eq!(world.server("burst-1").labels["upload"], "120000ms");
    world.run(7, 1, &[(0, "burst-0"), (1, "a")]);
    world.record(7, |_| {});
    assert_eq!(asked(&world.look()), [1]);
    world.run(8, 1, &[(0, "burst-0"), (1, "burst-1")]);
    world.record(8, |_| {});
    let step = world.look_for(60);
    assert_eq!((asked(&step), step.refused), (vec![2], vec![]), "asked once, and waiting has no end yet");
    let ask = &world.view.asked.0[0];
    assert_eq!((ask.resources["GPU"], ask.labels["tier"].as_str()), (2.0, "b"));
    let written: serde_json::Value = serde_json::from_str(&world.translator.written["request"]).unwrap();
    assert_eq!((&written["owner"], &written["bundles"][0]["count"]), (&"trainmaster ray".into(), &2.into()));
    assert_eq!(written["nodes"], serde_json::json!({ "burst": 2 }));
    assert_eq!((&written["keep"], &written["at_ms"]), (&serde_json::json!([]), &1_000_050_000.into()));

    // The node starts, with the address that all nodes have here.
    world.node(3, "a", "burst");
    let step = world.look();
    assert_eq!(put(&step, "server/burst-0"), Some("03".repeat(28)));
    assert!(!world.server("burst-0").labels.contains_key("upload"));
    let written: serde_json::Value = serde_json::from_str(&world.translator.written["request"]).unwrap();
    assert_eq!(written["keep"], serde_json::json!(["03".repeat(28)]));

    // Someone else sends another request. This adapter's request is repeated, with a warning.
    world.view.asked = Request(vec![Ask { count: 9, ..Ask::default() }]);
    assert_eq!(asked(&world.look()), [2]);
    assert_eq!(asked(&world.look_for(3)), Vec::<i64>::new());

    // The jobs are gone. The request is emptied once, and later requests of others stay.
    world.plan(true, vec![]);
    assert_eq!(asked(&world.look()), [0]);
    world.view.asked = Request(vec![Ask { count: 9, ..Ask::default() }]);
    assert_eq!(asked(&world.look_for(3)), Vec::<i64>::new());
}

#[test]
fn a_node_that_never_comes_is_refused() {
    let mut world = World::with_nodes(&format!("placement_timeout = \"10s\"\n{BURST}timeout = \"1m\""));
    world.look();
    world.run(7, 1, &[(0, "burst-0")]);
    world.record(7, |_| {});
    assert_eq!(world.look_for(60).refused, []);
    let step = world.look();
    let cause = step.refused[0].1.refused.clone().unwrap();
    assert!(cause.contains("\"burst-0\"") && cause.contains("60s"), "{cause}");
    assert_eq!(asked(&step), [0], "it isn't asked for any longer");
    // If the autoscaler reports at once that it can't provide a node, the wait is short.
    world.run(7, 1, &[(0, "burst-0")]);
    world.view.infeasible = true;
    let cause = world.look_for(11).refused[0].1.refused.clone().unwrap();
    assert!(cause.contains("can't bring"), "{cause}");
}

#[test]
fn nodes_that_others_use_are_asked_for_beside_ours() {
    let mut world = World::with_nodes(BURST);
    world.node(3, "x", "burst");
    world.take(3, "GPU", 1.0);
    world.look();
    assert_eq!(world.server("burst-0").foreign["gpu"], 1000);
    world.run(7, 1, &[(0, "burst-1")]);
    assert_eq!(asked(&world.look()), [2], "otherwise the one that is there would do");
}

#[test]
fn what_an_earlier_run_wrote_is_taken_over() {
    let mut world = World::with_nodes(BURST);
    world.node(3, "x", "burst");
    world.look();
    world.plan(true, vec![run(7, 1, &[(0, "a"), (1, "burst-0")])]);
    world.running(7, 1, "w0-1");
    world.group(1, "trainmaster/7/1/0/w0-1", GroupState::Created, &[1, 3]);
    world.look();
    let (before, written) = (world.translator.snapshot(), world.translator.written.clone());

    let mut next = World { translator: Translator::new(world.translator.config.clone()), ..world };
    next.view.written = Some(written);
    assert_eq!(next.look().effects, [], "all of it is there");
    let after = next.translator.snapshot();
    assert_eq!((after.servers, after.jobs), (before.servers, before.jobs), "before any plan");
    // The daemon no longer knows the job. The driver is told to stop.
    next.plan(true, vec![]);
    next.look();
    assert_eq!(next.note(7)["action"], "stop");
}

#[test]
fn a_head_that_starts_anew_is_written_to_anew() {
    let mut world = World::with_nodes(BURST);
    world.look();
    world.plan(true, vec![run(7, 1, &[(0, "burst-0")])]);
    world.record(7, |_| {});
    world.look();
    world.view = View { written: Some(BTreeMap::new()), ..View::default() };
    world.node(9, "a", "");
    let step = world.look();
    assert!(put(&step, "plan/7").is_some() && put(&step, "server/a") == Some("09".repeat(28)), "{step:?}");
    assert_eq!(asked(&step), [1]);
    assert!(world.translator.overwritten.is_none(), "nobody else did it");
}

#[test]
fn another_daemons_job_of_the_same_number_isnt_ours() {
    let mut world = World::with_nodes("");
    world.look();
    world.record(7, |record| record.name = "other".into());
    world.run(7, 1, &[(0, "a")]);
    let step = world.look();
    assert!(step.refused[0].1.refused.as_deref().unwrap().contains("\"other\""), "{step:?}");
    assert_eq!(world.note(7)["name"], "job7", "its driver sees that it isn't its plan");
    world.record(7, |record| record.phase = RecordPhase::Completed);
    world.look();
    assert_eq!(world.job(7).unwrap().0, ObservedPhase::Starting, "it didn't end");
}

#[test]
fn plans_are_answered_once_and_in_order() {
    let mut world = World::with_nodes("");
    world.look();
    let plan = || vec![run(7, 1, &[(0, "a")])];
    let accepted = [PlanAnswer::accepted(7)];
    assert_eq!(world.plan(true, plan()), accepted);
    assert_eq!(world.plan(true, plan()), [], "it is known");
    world.translator.attached();
    assert_eq!(world.plan(true, plan()), accepted, "a daemon that came back hears it again");
    let old = Plan { term: 1, decision: 1, ttl_ms: 0, jobs: vec![other(7, Action::Stop)], full: true };
    assert_eq!(world.translator.plan(Duration::ZERO, old), []);
    world.look();
    assert_eq!((world.note(7)["action"].as_str(), world.note(7)["decision"].as_u64()), (Some("run"), Some(1)));
    assert_eq!(world.translator.jobs[&7].decision, 3, "what a refusal is of");
}

#[test]
fn where_nothing_can_be_changed_only_what_is_there_is_accepted() {
    let mut world = World::with_nodes("driver_timeout = \"5s\"");
    let why = "Ray 9.9 is untested";
    world.translator.observe(Some(why.into()));
    (world.view.written, world.view.silent) = (None, true);
    world.view.drivers.clear();
    world.group(1, "trainmaster/7/1/0/w0-1", GroupState::Created, &[1, 2]);
    (1..=2).for_each(|node| world.take(node, "CPU", 3.0));
    assert_eq!(world.look(), Effects::default());
    assert_eq!(world.server("a").foreign["cpu"], 2000, "one of the three is a job's");
    assert_eq!(world.job(7), Some((ObservedPhase::Running, 1, at(&[(0, "a"), (1, "b")]))));

    let accepted = PlanAnswer::accepted;
    let refused = |job| PlanAnswer::refused(job, why.into());
    let plan = vec![run(7, 1, &[(0, "a"), (1, "b")]), run(8, 1, &[(0, "a")]), other(9, Action::Wait)];
    assert_eq!(world.plan(true, plan), [accepted(7), refused(8), accepted(9)]);
    assert_eq!(world.look(), Effects::default());
    assert_eq!(world.told[&7].slots[1].devices, [v1::DeviceShare { device: 1, milli: 1000 }]);
    assert_eq!(world.job(8), Some((ObservedPhase::Stopped, 0, vec![])));

    // The job can't be moved, and continues as it is.
    assert_eq!(world.run(7, 2, &[(0, "b")]), [refused(7)]);
    assert_eq!(world.run(7, 1, &[(0, "b"), (1, "b")]), [refused(7)]);
    world.look();
    assert_eq!(world.job(7), Some((ObservedPhase::Running, 1, at(&[(0, "a"), (1, "b")]))));

    // Lost slots aren't created again, and the cause is the same.
    world.view.groups.clear();
    let step = world.look_for(7);
    assert_eq!((step.refused, step.effects), (vec![(3, refused(7))], vec![]));
    assert_eq!(world.job(7).unwrap().2, []);

    // A job can't be stopped, but it can end.
    world.group(2, "trainmaster/8/1/0/w0", GroupState::Created, &[1]);
    world.look();
    assert_eq!(world.plan(false, vec![other(8, Action::Stop)]), [], "neither done nor refused");
    world.look();
    assert_eq!(world.job(8), Some((ObservedPhase::Stopping, 1, at(&[(0, "a")]))));
    world.view.groups.clear();
    world.look();
    assert_eq!((world.told[&8].phase(), world.told[&8].slots.len()), (ObservedPhase::Stopped, 0));
    world.look();
    assert_eq!(world.job(8), None);

    // After the head can be trusted again, the pending actions are carried out.
    world.translator.observe(None);
    (world.view.written, world.view.silent) = (Some(BTreeMap::new()), false);
    assert_eq!(world.run(9, 1, &[(0, "a")]), [accepted(9)]);
    let step = world.look();
    assert!(put(&step, "plan/9").is_some() && put(&step, "server/a").is_some());
}

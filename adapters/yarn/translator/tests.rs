//! Scenarios. The inputs are the ResourceManager's reports and the daemon's plans. The tests check the enforced plans,
//! the orders and the observations.

use trainmaster_core::Role;
use trainmaster_manager::SlotId;
use trainmaster_proto::v1::{JobPlan, ObservedPhase, Plan, Server, Slot, SlotRole};

use super::{
    super::{
        config::Accounts,
        slots::{ALONE, AllocationRequest},
    },
    wire::{Application, ApplicationState, Cluster, Container, ContainerState, Node, NodeState, Request, Standing},
    *,
};

const CLOCK: i64 = 1_000_000_000;
const JOB: &str = "name = \"mnist\"\nmode = \"allreduce\"\nbatch = 64\n\
    worker = { gpu = 1, cpu = 2, memory = \"1500MiB\", min = 1, max = 4, requested = 2, command = \"train\" }\n";
const SERVERS: &str = "name = \"ps\"\nworker = { cpu = 1, max = 4, command = \"w\" }\nserver = { cpu = 1, max = 4 }\n";

/// A cluster that a test changes, and a translator that gets its state every second.
struct World {
    translator: Translator,
    cluster: Cluster,
    second: u64,
    decision: u64,
}

fn app(number: u32) -> String {
    format!("application_1700000000000_{number:04}")
}

fn request(incarnation: u32, role: Role, index: u32) -> i64 {
    AllocationRequest::new(incarnation, SlotId::new(role, index)).unwrap().id()
}

fn resource(memory: i64, vcores: i64, gpus: i64) -> HashMap<String, i64> {
    let amounts = [("memory-mb", memory), ("vcores", vcores), ("yarn.io/gpu", gpus)];
    amounts.into_iter().map(|(name, amount)| (name.to_owned(), amount)).collect()
}

impl World {
    /// A world with nodes `a` and `b`.
    fn new(config: &str) -> Self {
        let config = Config::parse(config, "test").unwrap();
        let environment = [("TRAINMASTER_FEED".to_owned(), "http://feed:1".to_owned())].into();
        let translator = Translator::new(Arc::new(config), environment);
        let mut world =
            Self { translator, cluster: Cluster { started_ms: 1, ..Cluster::default() }, second: 0, decision: 0 };
        world.node("a");
        world.node("b");
        world
    }

    /// Attached, with an application that is job 7 and whose ApplicationMaster runs.
    fn with_job(config: &str, file: &str) -> Self {
        let mut world = Self::new(config);
        world.submit(1, file);
        world.look();
        world.plan(true, vec![]);
        assert_eq!(world.look().submit.len(), 1);
        world.answer(1, Submitted::Job(7));
        world.app(1).set_state(ApplicationState::Running);
        world
    }

    fn node(&mut self, name: &str) {
        let node =
            Node { id: format!("{name}:1"), name: name.into(), capacity: resource(8192, 8, 2), ..Node::default() };
        self.cluster.nodes.push(node);
    }

    fn submit(&mut self, number: u32, file: &str) {
        let application = Application {
            id: app(number),
            user: "alice".into(),
            queue: "dl".into(),
            job: file.into(),
            secret_hash: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad".into(),
            ..Application::default()
        };
        self.cluster.applications.push(application);
    }

    fn app(&mut self, number: u32) -> &mut Application {
        self.cluster.applications.iter_mut().find(|row| row.id == app(number)).unwrap()
    }

    /// Adds a container, and its use of the node.
    fn container(&mut self, number: u32, id: &str, request: i64, node: &str, state: ContainerState) {
        let node = format!("{node}:1");
        let resource = resource(2048, 2, 1);
        if let Some(there) = self.cluster.nodes.iter_mut().find(|there| there.id == node) {
            for (name, amount) in &resource {
                *there.allocated.entry(name.clone()).or_default() += amount;
            }
        }
        let state = state.into();
        let container = Container { id: id.into(), allocation_request: request, node, resource, state };
        self.app(number).containers.push(container);
    }

    fn worker(&mut self, incarnation: u32, index: u32, node: &str, state: ContainerState) {
        let id = format!("container_{incarnation}_{index}");
        self.container(1, &id, request(incarnation, Role::Worker, index), node, state);
    }

    /// Removes all containers.
    fn clear(&mut self, number: u32) {
        for container in std::mem::take(&mut self.app(number).containers) {
            let Some(node) = self.cluster.nodes.iter_mut().find(|node| node.id == container.node) else { continue };
            for (name, amount) in &container.resource {
                *node.allocated.get_mut(name).unwrap() -= amount;
            }
        }
    }

    fn now(&self) -> Duration {
        Duration::from_secs(self.second)
    }

    /// Advances the time by one second.
    fn look(&mut self) -> Requests {
        self.second += 1;
        self.translator.see(self.now(), self.cluster.clone());
        self.translator.step(self.now())
    }

    fn look_for(&mut self, seconds: u64) -> Requests {
        let mut all = Requests::default();
        for _ in 0..seconds {
            let step = self.look();
            all.submit.extend(step.submit);
            all.cancel.extend(step.cancel);
            all.refused.extend(step.refused);
        }
        all
    }

    fn answer(&mut self, number: u32, answer: Submitted) {
        self.translator.submitted(self.now(), &app(number), answer);
    }

    fn plan(&mut self, full: bool, jobs: Vec<JobPlan>) -> Vec<PlanAnswer> {
        self.decision += 1;
        let plan = Plan { term: 3, decision: self.decision, ttl_ms: 60_000, jobs, full };
        self.translator.plan(self.now(), plan)
    }

    fn run(&mut self, incarnation: u32, slots: &[(Role, u32, &str)]) -> Vec<PlanAnswer> {
        self.plan(false, vec![run(7, incarnation, slots)])
    }

    fn enforced(&mut self) -> wire::Plan {
        self.translator.bridge_plan(self.now(), CLOCK + self.second as i64).unwrap()
    }

    /// The action, the requests with their nodes, and the reason.
    fn enforced_for(&mut self, number: u32) -> (wire::Action, Vec<(i64, String)>, String) {
        let plan = self.enforced().applications.into_iter().find(|plan| plan.id == app(number)).unwrap();
        let slots = plan.slots.iter().map(|slot| (slot.allocation_request, slot.node.clone())).collect();
        (plan.action(), slots, plan.reason)
    }

    fn orders(&self, number: u32) -> wire::Orders {
        self.translator.orders(self.now(), &app(number)).unwrap().unwrap()
    }

    fn server(&self, name: &str) -> &Server {
        &self.translator.servers[name]
    }

    /// The phase, the incarnation, and the slots with their servers.
    fn seen(&self, job: u64) -> (ObservedPhase, u32, Vec<(u32, String)>) {
        let seen = self.translator.snapshot().jobs.remove(&job).unwrap();
        let slots = seen.slots.iter().map(|slot| (slot.index, slot.server.clone())).collect();
        (seen.phase(), seen.incarnation, slots)
    }
}

fn external(number: u32) -> Option<v1::ExternalId> {
    Some(v1::ExternalId { cluster: "yarn".into(), native: app(number) })
}

fn run(job: u64, incarnation: u32, slots: &[(Role, u32, &str)]) -> JobPlan {
    let slot = |&(role, index, server): &(Role, u32, &str)| Slot {
        role: if role == Role::Worker { SlotRole::Worker } else { SlotRole::Server }.into(),
        index,
        server: server.into(),
        ..Slot::default()
    };
    JobPlan {
        job,
        name: "mnist".into(),
        incarnation,
        slots: slots.iter().map(slot).collect(),
        token: "t0ken".into(),
        grace_ms: 5000,
        external: external(1),
        tenant: "alice".into(),
        ..JobPlan::default()
    }
}

fn other(action: v1::Action, reason: &str) -> JobPlan {
    JobPlan { action: action.into(), reason: reason.into(), ..run(7, 1, &[]) }
}

const W: Role = Role::Worker;
const P: Role = Role::Server;
const ACCEPTED: &[PlanAnswer] = &[PlanAnswer { job: 7, refused: None, retry_after: None }];

#[test]
fn an_application_is_submitted_runs_and_ends() {
    let mut world = World::new("");
    world.submit(1, JOB);
    assert_eq!(world.look(), Requests::default(), "not before it is known which jobs there are");
    assert_eq!(world.translator.bridge_plan(world.now(), CLOCK), Err(NoPlan));
    assert_eq!(world.translator.orders(world.now(), &app(1)), Err(NoPlan));

    world.plan(true, vec![]);
    let step = world.look();
    let (id, spec) = &step.submit[0];
    assert_eq!((id, spec.name.as_str(), spec.tenant.as_str(), spec.queue.as_str()), (&app(1), "mnist", "alice", "dl"));
    assert_eq!(world.look(), Requests::default(), "once");
    let (action, slots, reason) = world.enforced_for(1);
    assert_eq!((action, slots, reason.contains("being asked")), (wire::Action::Hold, vec![], true));
    assert_eq!(world.orders(1).standing(), Standing::Wait);
    world.answer(1, Submitted::Job(7));
    assert_eq!((world.orders(1).standing(), world.orders(1).job), (Standing::Wait, 7));

    world.app(1).set_state(ApplicationState::Running);
    assert_eq!(world.run(1, &[(W, 0, "a"), (W, 1, "b")]), ACCEPTED);
    let (first, second) = (request(1, W, 0), request(1, W, 1));
    let (action, slots, _) = world.enforced_for(1);
    assert_eq!((action, slots), (wire::Action::Run, vec![(first, "a:1".into()), (second, "b:1".into())]));
    let orders = world.orders(1);
    assert_eq!((orders.standing(), orders.incarnation, orders.grace_ms), (Standing::Run, 1, 5000));
    let slot = &orders.slots[1];
    assert_eq!((slot.server, slot.index, slot.node.as_str(), slot.node_name.as_str()), (false, 1, "b:1", "b"));
    assert_eq!((slot.allocation_request, &slot.resource), (second, &resource(1500, 2, 1)));
    assert_eq!(orders.worker_command, "train");
    for (name, value) in
        [("FEED", "http://feed:1"), ("JOB", "7"), ("JOB_NAME", "mnist"), ("TOKEN", "t0ken"), ("BATCH", "64")]
    {
        assert_eq!(orders.environment[&format!("TRAINMASTER_{name}")], value);
    }

    assert_eq!(world.seen(7), (ObservedPhase::Starting, 1, vec![]));
    world.worker(1, 0, "a", ContainerState::Allocated);
    world.worker(1, 1, "b", ContainerState::Reserved);
    world.look();
    let both = vec![(0, "a".to_owned()), (1, "b".to_owned())];
    assert_eq!(world.seen(7), (ObservedPhase::Starting, 1, both.clone()));
    world.clear(1);
    world.worker(1, 0, "a", ContainerState::Running);
    world.worker(1, 1, "b", ContainerState::Running);
    world.look();
    assert_eq!(world.seen(7), (ObservedPhase::Running, 1, both));

    world.clear(1);
    world.app(1).set_state(ApplicationState::Succeeded);
    world.look();
    assert_eq!(world.seen(7), (ObservedPhase::Completed, 1, vec![]));
    assert_eq!(world.enforced().applications, []);
    let stop = JobPlan { ended: "completed".into(), ..other(v1::Action::Stop, "completed") };
    world.plan(false, vec![stop]);
    world.cluster.applications.clear();
    world.look_for(31);
    assert!(world.translator.apps.is_empty() && world.translator.jobs.is_empty());
}

#[test]
fn what_fails_and_what_is_killed_is_told() {
    let mut world = World::with_job("", JOB);
    world.run(1, &[(W, 0, "a")]);
    world.app(1).set_state(ApplicationState::Failed);
    world.app(1).diagnostics = "exit 1".into();
    world.look();
    let seen = world.translator.snapshot().jobs.remove(&7).unwrap();
    assert_eq!((seen.phase(), seen.message.as_str()), (ObservedPhase::Failed, "exit 1"));

    let mut world = World::with_job("", JOB);
    world.run(1, &[(W, 0, "a")]);
    world.app(1).set_state(ApplicationState::Killed);
    assert_eq!(world.look().cancel, [7]);
    assert_eq!(world.look().cancel, Vec::<u64>::new(), "once");
    assert_eq!(world.seen(7), (ObservedPhase::Starting, 1, vec![]));
    world.translator.cancel_failed(7);
    assert_eq!(world.look().cancel, [7], "again");
    world.plan(false, vec![other(v1::Action::Stop, "cancelled")]);
    assert_eq!(world.seen(7), (ObservedPhase::Stopped, 1, vec![]), "which is news: what was issued is free");
    world.translator.cancel_failed(7);
    assert_eq!(world.look(), Requests::default());

    // A rejected application was killed because of the rejection.
    let mut world = World::with_job("", JOB);
    world.plan(false, vec![other(v1::Action::Reject, "not worth it")]);
    assert_eq!(world.enforced_for(1), (wire::Action::Kill, vec![], "not worth it".into()));
    world.app(1).set_state(ApplicationState::Killed);
    world.app(1).diagnostics = "not worth it".into();
    assert_eq!(world.look(), Requests::default());
    assert_eq!(world.seen(7).0, ObservedPhase::Failed);
}

#[test]
fn an_application_that_vanishes_has_failed_after_a_while() {
    let mut world = World::with_job("", JOB);
    world.run(1, &[(W, 0, "a")]);
    world.cluster.applications.clear();
    world.look_for(30);
    assert_eq!(world.seen(7).0, ObservedPhase::Starting);
    world.look();
    let seen = world.translator.snapshot().jobs.remove(&7).unwrap();
    assert!(seen.phase() == ObservedPhase::Failed && seen.message.contains(&app(1)), "{seen:?}");
    world.plan(false, vec![other(v1::Action::Stop, "failed")]);
    world.look();
    assert!(world.translator.apps.is_empty());
}

#[test]
fn a_job_file_that_is_told_later_is_read_then() {
    let mut world = World::new("");
    world.plan(true, vec![]);
    world.submit(1, "");
    world.app(1).untold = true;
    assert_eq!(world.look(), Requests::default());
    let (action, _, reason) = world.enforced_for(1);
    assert!(action == wire::Action::Hold && reason.contains("too long together"), "{reason}");
    assert_eq!(world.orders(1).standing(), Standing::Wait);
    let told = world.app(1);
    (told.untold, told.job) = (false, JOB.into());
    assert_eq!(world.look().submit[0].1.name, "mnist");
}

#[test]
fn what_cant_be_a_job_is_killed_with_the_reason() {
    let mut world = World::new("");
    world.submit(1, "name = 1");
    world.submit(2, JOB);
    world.submit(3, JOB);
    world.look();
    world.plan(true, vec![]);
    assert_eq!(world.look().submit.len(), 2);
    let (action, _, reason) = world.enforced_for(1);
    assert!(action == wire::Action::Kill && reason.contains("job file") && reason.contains("name"), "{reason}");
    assert_eq!(world.orders(1).standing(), Standing::Over);

    world.answer(2, Submitted::Refused("needs 9 GPUs".into()));
    assert_eq!(world.enforced_for(2), (wire::Action::Kill, vec![], "needs 9 GPUs".into()));
    // If a name is taken, the job gets a number, once.
    world.answer(3, Submitted::NameTaken("taken".into()));
    let step = world.look();
    assert_eq!(step.submit[0].1.name, "mnist-3");
    world.answer(3, Submitted::Away);
    assert_eq!(world.look().submit.len(), 1, "again, a second later");
    world.answer(3, Submitted::NameTaken("taken as well".into()));
    assert_eq!(world.enforced_for(3).2, "taken as well");
    assert_eq!(world.look(), Requests::default());
    world.cluster.applications.clear();
    world.look();
    assert!(world.translator.apps.is_empty());
}

#[test]
fn a_new_start_knows_its_jobs_from_plans_alone() {
    let mut world = World::new("");
    world.submit(1, JOB);
    world.app(1).set_state(ApplicationState::Running);
    world.worker(1, 0, "a", ContainerState::Running);
    world.look();
    assert_eq!(world.server("a").foreign["gpu"], 1000, "whose it is isn't known yet");
    world.plan(true, vec![run(7, 1, &[(W, 0, "a")])]);
    assert_eq!(world.look(), Requests::default(), "it isn't submitted again");
    assert_eq!(world.seen(7), (ObservedPhase::Running, 1, vec![(0, "a".into())]));
    assert_eq!(world.server("a").foreign.get("gpu"), None);

    // The daemon came back without the job. It is asked again, and its answer counts.
    world.translator.attached();
    world.plan(true, vec![]);
    assert_eq!(world.look().submit.len(), 1);
    world.answer(1, Submitted::Refused("has ended: cancelled".into()));
    assert_eq!(world.enforced_for(1), (wire::Action::Kill, vec![], "has ended: cancelled".into()));
}

#[test]
fn the_first_picture_knows_whose_containers_are_whose() {
    let mut world = World::new("");
    world.submit(1, JOB);
    world.app(1).set_state(ApplicationState::Running);
    world.worker(2, 0, "a", ContainerState::Running);
    world.look();
    let known = |job, number| v1::JobStatus { job, external: external(number), ..v1::JobStatus::default() };
    world.translator.learn(world.now(), vec![known(7, 1), known(8, 9)]);
    assert_eq!(world.seen(7), (ObservedPhase::Running, 2, vec![(0, "a".into())]));
    assert_eq!(world.server("a").foreign.get("gpu"), None);
    assert_eq!(world.look(), Requests::default());
    // A job whose application isn't reported was forgotten by a restarted ResourceManager.
    world.look_for(30);
    assert_eq!(world.seen(8).0, ObservedPhase::Failed);
}

#[test]
fn a_daemon_that_lost_its_state_gives_numbers_anew() {
    let mut world = World::with_job("", JOB);
    world.run(1, &[(W, 0, "a")]);
    world.submit(2, JOB);
    world.look();
    world.translator.attached();
    world.plan(true, vec![JobPlan { external: external(2), ..run(7, 1, &[(W, 0, "b")]) }]);
    assert_eq!(world.orders(2).job, 7);
    assert_eq!((world.look().submit[0].0.as_str(), world.orders(1).job), (app(1).as_str(), 0));
    world.answer(1, Submitted::Job(8));
    assert_eq!((world.orders(1).job, world.orders(2).job), (8, 7));
}

#[test]
fn a_job_that_was_just_submitted_isnt_missed_in_an_older_plan() {
    let mut world = World::with_job("", JOB);
    world.plan(true, vec![]);
    assert_eq!(world.look(), Requests::default());
    assert_eq!(world.orders(1).job, 7);
    // Jobs of other managers, and jobs without an external id, aren't this adapter's.
    let stranger = JobPlan { external: None, ..run(9, 1, &[(W, 0, "a")]) };
    let elsewhere = v1::ExternalId { cluster: "slurm".into(), native: app(1) };
    let waits = JobPlan { job: 8, external: Some(elsewhere), ..other(v1::Action::Wait, "later") };
    let answers = world.plan(false, vec![stranger, waits]);
    assert!(answers.len() == 1 && answers[0].refused.as_ref().unwrap().contains("submitted to YARN"), "{answers:?}");
}

#[test]
fn a_new_incarnation_comes_after_the_old_one() {
    let mut world = World::with_job("", JOB);
    world.run(1, &[(W, 0, "a")]);
    world.worker(1, 0, "a", ContainerState::Running);
    world.look();
    world.run(2, &[(W, 0, "b"), (W, 1, "b")]);
    world.look_for(40);
    let (action, slots, _) = world.enforced_for(1);
    let (zero, one) = (request(2, W, 0), request(2, W, 1));
    assert_eq!((action, slots), (wire::Action::Run, vec![(zero, "b:1".into()), (one, "b:1".into())]));
    assert_eq!(world.seen(7), (ObservedPhase::Stopping, 1, vec![(0, "a".into())]));
    // While both exist, a slot has its newer container, and the older one has to leave first.
    world.worker(2, 0, "b", ContainerState::Allocated);
    world.look_for(5);
    assert_eq!(world.seen(7), (ObservedPhase::Starting, 2, vec![(0, "b".into())]));
    assert_eq!(world.server("a").foreign["gpu"], 1000);
    world.clear(1);
    world.worker(2, 0, "b", ContainerState::Running);
    world.look();
    assert_eq!(world.seen(7).0, ObservedPhase::Running, "a worker that comes later doesn't stop it");
    assert_eq!(world.server("a").foreign.get("gpu"), None);
}

#[test]
fn all_roles_have_to_run() {
    let mut world = World::with_job("", SERVERS);
    world.run(1, &[(W, 0, "a"), (W, 1, "a"), (P, 0, "b")]);
    world.worker(1, 0, "a", ContainerState::Running);
    world.look();
    assert_eq!(world.seen(7).0, ObservedPhase::Starting);
    world.container(1, "c", request(1, P, 0), "b", ContainerState::Running);
    world.look();
    assert_eq!(world.seen(7).0, ObservedPhase::Running);
    let orders = world.orders(1);
    assert_eq!((orders.slots.len(), orders.slots[2].server, orders.server_command.as_str()), (3, true, ""));
}

#[test]
fn slots_without_containers_are_refused_with_numbers() {
    let mut world = World::with_job("placement_timeout = \"10s\"", SERVERS);
    world.run(1, &[(W, 0, "a"), (W, 1, "b"), (P, 0, "b")]);
    let asked = request(1, W, 1);
    world.app(1).requests =
        vec![Request { allocation_request: asked, node: "b".into(), count: 1, ..Request::default() }];
    world.container(1, "w", request(1, W, 0), "a", ContainerState::Running);
    world.container(1, "r", request(1, P, 0), "b", ContainerState::Reserved);
    assert_eq!(world.look_for(10).refused, []);
    let (decision, answer) = world.look().refused.remove(0);
    let cause = answer.refused.unwrap();
    assert_eq!((decision, answer.job, answer.retry_after), (2, 7, None));
    for part in [
        "2 of 3 slots got no container within 10s",
        "worker 1 on \"b\" (asked for; free there: memory-mb 6144, vcores 6, yarn.io/gpu 1)",
        "server 0 on \"b\" (not asked for",
    ] {
        assert!(cause.contains(part), "{cause}");
    }
    assert_eq!(world.look_for(20), Requests::default(), "once");
    // Workers alone can't continue.
    let (action, slots, reason) = world.enforced_for(1);
    assert_eq!((action, slots.len(), reason == cause), (wire::Action::Hold, 0, true));
    assert_eq!((world.orders(1).standing(), world.orders(1).reason), (Standing::Wait, cause));
    // The same plan again starts a new attempt.
    assert_eq!(world.run(1, &[(W, 0, "a"), (W, 1, "b"), (P, 0, "b")]), ACCEPTED);
    assert_eq!(world.enforced_for(1).1.len(), 3);
    assert_eq!(world.look_for(11).refused.len(), 1);
}

#[test]
fn what_runs_goes_on_where_more_cant_be_had() {
    let mut world = World::with_job("placement_timeout = \"10s\"", JOB);
    world.run(1, &[(W, 0, "a"), (W, 1, "b")]);
    world.worker(1, 0, "a", ContainerState::Running);
    assert_eq!(world.look_for(11).refused.len(), 1);
    assert_eq!(world.enforced_for(1).1, [(request(1, W, 0), "a:1".into())]);
    let orders = world.orders(1);
    assert_eq!((orders.standing(), orders.slots.len()), (Standing::Run, 1));
}

#[test]
fn an_application_master_that_doesnt_come_is_refused() {
    let mut world = World::with_job("master_timeout = \"10s\"", JOB);
    world.app(1).set_state(ApplicationState::Pending);
    world.run(1, &[(W, 0, "a")]);
    assert_eq!(world.look_for(10).refused, []);
    let (_, answer) = world.look().refused.remove(0);
    let cause = answer.refused.unwrap();
    assert!(cause.contains("no ApplicationMaster came within 10s") && cause.contains("queue \"dl\""), "{cause}");
    assert_eq!(answer.retry_after, Some(Duration::from_secs(10)));
}

#[test]
fn plans_that_make_no_sense_change_nothing() {
    let mut world = World::with_job("", JOB);
    world.run(1, &[(W, 0, "a")]);
    let answers = world.run(2, &[(W, 0, "nowhere")]);
    assert!(answers[0].refused.as_ref().unwrap().contains("\"nowhere\""), "{answers:?}");
    assert_eq!(world.orders(1).incarnation, 1);
    let old = Plan { term: 2, decision: 99, ttl_ms: 0, jobs: vec![other(v1::Action::Stop, "old")], full: true };
    assert_eq!(world.translator.plan(world.now(), old), []);
    assert_eq!(world.orders(1).standing(), Standing::Run);
}

#[test]
fn waiting_stopping_and_releasing() {
    let mut world = World::with_job("master_timeout = \"10s\"", JOB);
    world.run(1, &[(W, 0, "a")]);
    world.worker(1, 0, "a", ContainerState::Running);
    world.look();
    world.plan(false, vec![other(v1::Action::Wait, "others first")]);
    assert_eq!(world.enforced_for(1), (wire::Action::Hold, vec![], "others first".into()));
    assert_eq!((world.orders(1).standing(), world.orders(1).slots), (Standing::Wait, vec![]));
    assert_eq!(world.seen(7).0, ObservedPhase::Stopping);

    world.plan(false, vec![other(v1::Action::Release, "yours")]);
    assert_eq!(world.enforced_for(1).0, wire::Action::Release);
    let orders = world.orders(1);
    assert_eq!((orders.standing(), orders.reason.as_str(), orders.slots), (Standing::Released, "yours", vec![]));
    assert_eq!(world.seen(7).0, ObservedPhase::Running);

    // Its training is done. It should end by itself.
    let done = JobPlan { ended: "completed".into(), ..other(v1::Action::Stop, "completed: converged") };
    world.plan(false, vec![done]);
    assert_eq!(world.enforced_for(1).1, [(request(1, W, 0), "a:1".into())]);
    let orders = world.orders(1);
    assert_eq!((orders.standing(), orders.completed), (Standing::Over, true));
    world.look_for(14);
    assert_eq!(world.enforced_for(1).0, wire::Action::Run);
    world.look();
    assert_eq!(world.enforced_for(1).0, wire::Action::Kill, "the grace and master_timeout are over");

    let stop = JobPlan { ended: "cancelled".into(), ..other(v1::Action::Stop, "cancelled: by bob") };
    world.plan(false, vec![stop]);
    assert_eq!(world.enforced_for(1), (wire::Action::Hold, vec![], "cancelled: by bob".into()));
    assert_eq!((world.orders(1).standing(), world.orders(1).completed), (Standing::Over, false));
}

#[test]
fn plans_are_numbered_and_stand_no_longer_than_the_daemons() {
    let mut world = World::with_job("", JOB);
    let first = world.enforced();
    assert_eq!((first.term, first.ttl_ms, first.number > CLOCK as u64), (3, 15_000, true));
    world.look();
    assert_eq!(world.enforced(), first, "nothing changed");
    world.run(1, &[(W, 0, "a")]);
    let second = world.enforced();
    assert!(second.number > first.number);
    // An adapter with a slow clock follows one with a fast clock.
    world.cluster.enforced = second.number + 1000;
    world.look();
    assert_eq!(world.enforced().number, second.number + 1001);

    // The daemon isn't reachable. Its plan is valid for a minute.
    world.second += 50;
    assert!(world.enforced().ttl_ms <= 10_000);
    assert_eq!(world.orders(1).standing(), Standing::Run);
    world.second += 10;
    assert_eq!(world.translator.bridge_plan(world.now(), CLOCK), Err(NoPlan));
    let orders = world.orders(1);
    assert_eq!((orders.standing(), orders.reason.as_str()), (Standing::Released, "the scheduler is away"));
    // An empty plan renews it.
    world.plan(false, vec![]);
    assert_eq!((world.enforced().ttl_ms, world.orders(1).standing()), (15_000, Standing::Run));
}

#[test]
fn what_others_use_is_what_no_slot_has() {
    let mut world = World::with_job("", JOB);
    world.run(1, &[(W, 0, "a")]);
    world.look();
    world.worker(1, 0, "a", ContainerState::Running);
    // The use is reported a moment later than the container, and includes the ApplicationMaster's.
    world.cluster.nodes[0].allocated = resource(2048 + 512, 2 + 1, 1);
    world.look();
    assert!(world.server("a").foreign.is_empty(), "more is believed late");
    world.look_for(3);
    let foreign = &world.server("a").foreign;
    assert_eq!((foreign["cpu"], foreign.get("gpu")), (1000, None));
    assert_eq!(foreign["memory"], 512 + 548, "YARN rounded the container up from 1500");
    world.clear(1);
    world.cluster.nodes[0].allocated.clear();
    world.look();
    assert!(world.server("a").foreign.is_empty(), "less is believed at once");
    // A container without a slot.
    world.container(1, "odd", 5, "a", ContainerState::Running);
    world.look_for(5);
    assert_eq!((world.server("a").foreign["gpu"], world.seen(7).2), (1000, vec![]));
}

#[test]
fn nodes_drain_leave_and_come_back() {
    let mut world = World::with_job("", JOB);
    world.run(1, &[(W, 0, "a")]);
    world.worker(1, 0, "a", ContainerState::Running);
    world.cluster.nodes[0].set_state(NodeState::Decommissioning);
    world.look();
    assert!(world.server("a").draining && !world.server("b").draining);
    world.cluster.nodes[0].set_state(NodeState::Gone);
    world.look();
    assert!(!world.translator.servers.contains_key("a"));
    assert_eq!(world.seen(7), (ObservedPhase::Starting, 1, vec![]), "what was there isn't any more");
    let (action, slots, _) = world.enforced_for(1);
    assert_eq!((action, slots), (wire::Action::Run, vec![]), "there is no node to name");
}

#[test]
fn a_resource_manager_that_restarts_loses_nothing() {
    let mut world = World::with_job("", JOB);
    world.run(1, &[(W, 0, "a"), (W, 1, "b")]);
    world.worker(1, 0, "a", ContainerState::Running);
    world.worker(1, 1, "b", ContainerState::Running);
    world.look();
    let (before, orders) = (world.seen(7), world.orders(1));
    // It knows the application, whose ApplicationMaster hasn't returned, but no node.
    let (nodes, containers) = (world.cluster.nodes.clone(), world.app(1).containers.clone());
    world.cluster.started_ms += 1;
    world.cluster.nodes.clear();
    world.app(1).containers.clear();
    world.app(1).set_state(ApplicationState::Pending);
    assert_eq!(world.look_for(40), Requests::default());
    assert_eq!((world.seen(7), world.orders(1)), (before.clone(), orders.clone()));
    assert_eq!(world.enforced_for(1).1.len(), 2);
    // One node returns, and its container is reported a moment later. The other node has lost its container.
    world.cluster.nodes = nodes;
    world.app(1).set_state(ApplicationState::Running);
    world.look();
    assert_eq!(world.seen(7), before);
    world.app(1).containers = containers[..1].to_vec();
    world.look_for(5);
    assert_eq!((world.seen(7).2.len(), world.orders(1)), (1, orders));
}

#[test]
fn applications_whose_end_nobody_saw_are_asked_for() {
    let mut world = World::with_job("", JOB);
    let row = world.cluster.applications.remove(0);
    world.look();
    assert_eq!(world.enforced().missed, [app(1)]);
    assert_ne!(world.seen(7).0, ObservedPhase::Failed);
    world.cluster.applications.push(Application { state: ApplicationState::Succeeded.into(), ..row });
    world.look();
    assert_eq!((world.seen(7).0, world.enforced().missed.len()), (ObservedPhase::Completed, 0));
}

#[test]
fn jobs_that_are_to_run_go_before_those_that_wait() {
    let mut world = World::with_job("", JOB);
    let priority = |world: &mut World| world.enforced().applications[0].priority;
    world.app(1).set_state(ApplicationState::Pending);
    world.look();
    assert_eq!(priority(&mut world), None);
    world.run(1, &[(W, 0, "a")]);
    assert_eq!(priority(&mut world), Some(1));
    world.app(1).priority = 5;
    world.look();
    assert_eq!(priority(&mut world), Some(5), "it is never lowered");
    world.app(1).set_state(ApplicationState::Running);
    world.look();
    assert_eq!(priority(&mut world), None);
}

#[test]
fn what_no_container_can_have_is_refused() {
    let mut world = World::new("");
    world.cluster.largest_container = resource(1024, 4, 4);
    world.submit(1, JOB);
    world.look();
    world.plan(true, vec![]);
    assert_eq!(world.look().submit, []);
    let (action, _, reason) = world.enforced_for(1);
    assert_eq!(action, wire::Action::Kill);
    for part in ["a worker needs memory-mb 1500", "the largest has 1024", "yarn.scheduler.maximum-allocation-mb"] {
        assert!(reason.contains(part), "{reason}");
    }
    let spec = jobfile::read(JOB, "", "", Accounts::Yarn).unwrap();
    assert_eq!(world.translator.check_size(&spec), Err(reason));
}

#[test]
fn what_began_alone_goes_on_until_it_is_decided_about() {
    let mut world = World::new("");
    world.submit(1, JOB);
    world.app(1).set_state(ApplicationState::Running);
    world.container(1, "alone", request(ALONE, W, 0), "a", ContainerState::Running);
    world.look();
    world.plan(true, vec![]);
    world.look();
    assert_eq!(world.enforced_for(1).0, wire::Action::Release);
    assert_eq!(world.orders(1).standing(), Standing::Released);
    world.answer(1, Submitted::Job(7));
    world.look();
    assert_eq!((world.enforced_for(1).0, world.seen(7).0), (wire::Action::Release, ObservedPhase::Running));
    assert_eq!(world.seen(7).1, ALONE, "no incarnation of the daemon's");
    // Its containers leave before the planned ones count as missing.
    world.run(1, &[(W, 0, "a"), (W, 1, "b")]);
    assert_eq!(world.enforced_for(1).1.len(), 2);
    assert_eq!((world.orders(1).incarnation, world.seen(7).0), (1, ObservedPhase::Stopping));
    assert_eq!(world.look_for(60), Requests::default());
    world.clear(1);
    assert_eq!(world.look_for(31).refused.len(), 1);
}

#[test]
fn garbage_is_ignored_and_nothing_lost() {
    let mut world = World::with_job("", JOB);
    world.run(1, &[(W, 0, "a")]);
    world.worker(1, 0, "a", ContainerState::Running);
    world.look();
    let before = world.seen(7);
    let first = world.cluster.applications[0].clone();
    world.cluster.applications.push(Application { job: "name = 1".into(), containers: vec![], ..first });
    world.cluster.applications.push(Application::default());
    world.cluster.nodes.push(Node { capacity: resource(1, 1, 1), ..world.cluster.nodes[0].clone() });
    world.cluster.nodes.push(Node::default());
    world.cluster.nodes[1].capacity = resource(-5, i64::MAX, 1);
    world.cluster.nodes[1].state = 99;
    world.app(1).state = 42;
    world.app(1).containers[0].state = 1;
    for (id, request, node) in [("x", -1, "a:1"), ("y", i64::MAX, "nowhere:1"), ("z", 0, "")] {
        let container =
            Container { id: id.into(), allocation_request: request, node: node.into(), ..Container::default() };
        world.app(1).containers.push(container);
    }
    let step = world.look();
    assert_eq!((step, world.seen(7)), (Requests::default(), before));
    assert_eq!((world.server("b").capacity.get("memory"), world.server("b").capacity["gpu"]), (None, 1000));
    assert_eq!(world.server("a").capacity["memory"], 8192, "the first one counts");
    assert_eq!(world.orders(1).standing(), Standing::Run);
    assert_eq!(world.translator.complaints.len(), 8, "{:?}", world.translator.complaints);
}

#[test]
fn a_secret_is_known_by_its_hash() {
    let mut world = World::with_job("", JOB);
    world.submit(2, JOB);
    world.app(2).secret_hash = String::new();
    world.look();
    assert!(world.translator.secret(&app(1)).unwrap().matches("abc"));
    assert_eq!((world.translator.secret(&app(2)), world.translator.secret("application_x")), (None, None));
}

/// A job as the daemon reports it.
fn known(job: u64, number: u32, incarnation: u32, slots: &[(Role, u32, &str)]) -> v1::JobStatus {
    let mut spec = jobfile::read(JOB, "alice", "", Accounts::Yarn).unwrap();
    spec.queue = "dl".into();
    let slots = run(job, incarnation, slots).slots;
    let spec = Some(trainmaster_proto::job_from_spec(&spec));
    let (external, tenant) = (external(number), "alice".into());
    v1::JobStatus { job, incarnation, slots, spec, external, tenant, ..v1::JobStatus::default() }
}

impl World {
    /// Advances the time by one second, with the REST API's data.
    fn look_at_roles(&mut self) -> Requests {
        self.second += 1;
        let containers = self.cluster.applications.iter().flat_map(|app| &app.containers);
        let roles = containers.map(|held| (held.id.clone(), W)).collect();
        self.translator.see_roles(self.now(), ClusterState { cluster: self.cluster.clone(), roles });
        self.translator.step(self.now())
    }
}

#[test]
fn nobody_gives_anothers_application_a_command() {
    let mallory = |number| {
        let mut job = known(7, number, 0, &[]);
        job.spec.as_mut().unwrap().tenant = "mallory".into();
        v1::JobStatus { tenant: "mallory".into(), ..job }
    };
    // The job is reported before the application is, and after.
    for early in [true, false] {
        let mut world = World::new("api = \"rest\"\nresourcemanager = \"http://rm:1\"");
        world.plan(true, vec![]);
        if early {
            world.translator.learn(world.now(), vec![mallory(1)]);
        }
        world.submit(1, "");
        world.look_at_roles();
        if !early {
            world.translator.learn(world.now(), vec![mallory(1)]);
        }
        world.look_at_roles();
        let runs = || JobPlan { tenant: "mallory".into(), ..run(7, 1, &[(W, 0, "a")]) };
        world.plan(true, vec![runs()]);
        world.look_at_roles();
        world.translator.learn(world.now(), vec![mallory(1)]);
        world.look_at_roles();
        let orders = world.orders(1);
        assert_eq!((orders.standing(), orders.worker_command.as_str()), (Standing::Wait, ""), "{early}");
        assert!(world.translator.apps[&app(1)].spec.is_none());
        // Only the job of the application's user runs.
        world.translator.learn(world.now(), vec![known(8, 1, 0, &[]), mallory(1)]);
        let answers = world.plan(true, vec![run(8, 1, &[(W, 0, "a")]), runs()]);
        let refused: Vec<u64> =
            answers.iter().filter(|answer| answer.refused.is_some()).map(|answer| answer.job).collect();
        assert_eq!(refused, [7], "{answers:?}");
        world.look_at_roles();
        assert_eq!(world.translator.apps[&app(1)].job(), Some(8));
        assert_ne!(world.orders(1).worker_command, "");
    }
}

#[test]
fn where_tenants_are_no_users_the_first_job_stays_the_applications() {
    let mut world = World::new("api = \"rest\"\naccounts = \"job\"\nresourcemanager = \"http://rm:1\"");
    world.plan(true, vec![]);
    world.submit(1, "");
    world.look_at_roles();
    let job = |job, tenant: &str| v1::JobStatus { tenant: tenant.into(), ..known(job, 1, 0, &[]) };
    world.translator.learn(world.now(), vec![job(8, "vision")]);
    world.translator.learn(world.now(), vec![job(8, "vision"), job(9, "mallory")]);
    let runs = |job| run(job, 1, &[(W, 0, "a")]);
    let answers = world.plan(true, vec![runs(8), runs(9)]);
    let refused: Vec<u64> = answers.iter().filter(|answer| answer.refused.is_some()).map(|answer| answer.job).collect();
    assert_eq!(refused, [9], "{answers:?}");
    world.look_at_roles();
    assert_eq!(world.translator.apps[&app(1)].job(), Some(8));
}

#[test]
fn without_plug_ins_the_daemon_says_what_applications_are() {
    let mut world = World::new("api = \"rest\"\nresourcemanager = \"http://rm:1\"");
    world.submit(1, "");
    world.submit(2, "");
    world.plan(true, vec![]);
    // The job files aren't known, but that is no reason to kill the applications.
    let step = world.look_at_roles();
    assert_eq!((step.submit.len(), step.look_up), (0, true));
    assert_eq!(world.enforced_for(1).0, wire::Action::Hold);
    assert_eq!(world.orders(1).standing(), Standing::Wait);
    world.translator.learn(world.now(), vec![known(7, 1, 0, &[])]);
    assert!(world.translator.apps[&app(1)].spec.is_some());
    // The daemon is queried for the other one for a while.
    let asked: usize = (0..40).map(|_| usize::from(world.look_at_roles().look_up)).sum();
    assert!((9..=11).contains(&asked), "{asked}");
    assert_eq!(world.enforced_for(2).0, wire::Action::Hold, "it is left alone");

    // Containers are identified by the slots planned on their nodes.
    world.app(1).set_state(ApplicationState::Running);
    world.run(1, &[(W, 0, "a"), (W, 1, "b")]);
    world.container(1, "c2", 0, "b", ContainerState::Running);
    world.container(1, "c3", 0, "a", ContainerState::Running);
    world.look_at_roles();
    let both = vec![(0, "a".to_owned()), (1, "b".to_owned())];
    assert_eq!(world.seen(7), (ObservedPhase::Running, 1, both.clone()));
    assert_eq!(world.server("a").foreign.get("cpu"), None, "they are ours");
    // A restart: the old containers leave.
    world.run(2, &[(W, 0, "a"), (W, 1, "b")]);
    world.look_at_roles();
    assert_eq!(world.seen(7), (ObservedPhase::Stopping, 1, both.clone()));
    world.clear(1);
    world.container(1, "c4", 0, "a", ContainerState::Running);
    world.look_at_roles();
    assert_eq!(world.seen(7), (ObservedPhase::Running, 2, vec![(0, "a".to_owned())]));

    // It is in its job file's queue until someone moves it.
    assert_eq!(world.translator.misplaced(), []);
    world.app(1).queue = "root.dl".into();
    world.look_at_roles();
    assert_eq!(world.translator.misplaced(), []);
    world.app(1).queue = "root.default".into();
    world.look_at_roles();
    assert_eq!(world.translator.misplaced(), [(app(1), "root.default".to_owned(), "dl".to_owned())]);
}

#[test]
fn without_plug_ins_a_new_start_takes_containers_for_what_the_daemon_gave() {
    let mut world = World::new("api = \"rest\"\nresourcemanager = \"http://rm:1\"");
    world.submit(1, "");
    world.app(1).set_state(ApplicationState::Running);
    world.container(1, "c2", 0, "b", ContainerState::Running);
    world.container(1, "c3", 0, "a", ContainerState::Running);
    world.translator.learn(world.now(), vec![known(7, 1, 3, &[(W, 0, "a"), (W, 1, "b")])]);
    world.look_at_roles();
    let both = vec![(0, "a".to_owned()), (1, "b".to_owned())];
    assert_eq!(world.seen(7), (ObservedPhase::Running, 3, both), "the daemon's first state has them");
    assert_eq!(world.server("a").foreign.get("cpu"), None);
}

#[test]
fn a_job_whose_application_never_comes_has_failed_after_a_while() {
    let mut world = World::new("api = \"rest\"\nresourcemanager = \"http://rm:1\"");
    world.plan(true, vec![]);
    world.translator.learn(world.now(), vec![known(7, 1, 0, &[])]);
    world.look_at_roles();
    assert_eq!(world.translator.unended(), [app(1)], "the ResourceManager is asked for it");
    for _ in 0..31 {
        world.look_at_roles();
    }
    let seen = world.translator.snapshot().jobs.remove(&7).unwrap();
    assert_eq!(seen.phase(), ObservedPhase::Failed);
    assert!(seen.message.contains("never told of it"), "{}", seen.message);
    // No plan contains it, so it is forgotten eventually.
    for _ in 0..60 {
        world.look_at_roles();
    }
    assert!(world.translator.snapshot().jobs.is_empty());
}

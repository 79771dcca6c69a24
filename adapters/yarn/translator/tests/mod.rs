//! Scenarios. The inputs are the ResourceManager's reports and the daemon's plans. The tests check the enforced plans,
//! the orders and the observations.

mod applications;
mod plans;
mod strangers;

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
    fn seen(&mut self, job: u64) -> (ObservedPhase, u32, Vec<(u32, String)>) {
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

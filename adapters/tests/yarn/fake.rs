//! A simulated YARN: a ResourceManager with its plug-ins, and ApplicationMasters, as far as the adapter sees them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tokio::{task::JoinHandle, time::sleep};
use tonic::{Code, Request, Status, transport::Channel};
use trainmaster_adapters::yarn::wire::{
    Action, Application, ApplicationState, Cluster, Container, ContainerState, FollowRequest, Node, Orders, Plan,
    Standing, Submission, Verdict, bridge_client::BridgeClient, master_client::MasterClient,
};

const LIMIT: Duration = Duration::from_secs(600);
const ROUND: Duration = Duration::from_millis(50);
/// The plug-ins' token.
pub(crate) const TOKEN: &str = "correct-horse-battery";
/// The hash of the secret `abc`.
const HASH: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

/// The state of YARN's components.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) cluster: Cluster,
    /// The last answer to a snapshot.
    pub(crate) answer: Option<Result<Plan, Status>>,
    /// The last orders for each ApplicationMaster.
    pub(crate) orders: HashMap<String, Orders>,
}

impl World {
    pub(crate) fn app(&mut self, id: &str) -> &mut Application {
        self.cluster.applications.iter_mut().find(|app| app.id == id).expect("it was submitted")
    }

    pub(crate) fn action(&self, id: &str) -> Option<(Action, String)> {
        let plan = self.answer.as_ref()?.as_ref().ok()?;
        let app = plan.applications.iter().find(|app| app.id == id)?;
        Some((app.action(), app.reason.clone()))
    }

    /// Adds containers that are requested and allowed, and removes all others.
    fn enforce(&mut self, plan: &Plan) {
        for planned in &plan.applications {
            let Some(app) = self.cluster.applications.iter_mut().find(|app| app.id == planned.id) else { continue };
            // If it has ended meanwhile, the plan is outdated.
            let ended = [ApplicationState::Succeeded, ApplicationState::Failed, ApplicationState::Killed]
                .contains(&app.state());
            if ended {
                continue;
            }
            if planned.action() == Action::Kill {
                app.set_state(ApplicationState::Killed);
                app.diagnostics.clone_from(&planned.reason);
                app.containers.clear();
                continue;
            }
            let orders = self.orders.get(&planned.id).filter(|orders| orders.standing() == Standing::Run);
            let allowed = |request: i64, node: &str| {
                planned.slots.iter().any(|slot| slot.allocation_request == request && slot.node == node)
            };
            app.containers.retain(|container| allowed(container.allocation_request, &container.node));
            for order in orders.iter().flat_map(|orders| &orders.slots) {
                let has = app.containers.iter().any(|held| held.allocation_request == order.allocation_request);
                if !has && allowed(order.allocation_request, &order.node) {
                    app.containers.push(Container {
                        id: format!("container_{:x}", order.allocation_request),
                        allocation_request: order.allocation_request,
                        node: order.node.clone(),
                        resource: order.resource.clone(),
                        state: ContainerState::Running.into(),
                    });
                }
            }
        }
    }
}

/// The running simulation.
pub(crate) struct Yarn {
    pub(crate) world: Arc<Mutex<World>>,
    url: String,
    tasks: Vec<JoinHandle<()>>,
}

impl Yarn {
    /// Starts with nodes `a` and `b`, of two GPUs each.
    pub(crate) fn start(url: &str) -> Self {
        let world = Arc::new(Mutex::new(World::default()));
        for name in ["a", "b"] {
            let capacity = [("memory-mb", 8192), ("vcores", 8), ("yarn.io/gpu", 2)];
            let capacity = capacity.into_iter().map(|(name, amount)| (name.to_owned(), amount)).collect();
            let node = Node { id: format!("{name}:45454"), name: name.into(), capacity, ..Node::default() };
            world.lock().unwrap().cluster.nodes.push(node);
        }
        let tasks = vec![tokio::spawn(exchange(world.clone(), url.to_owned()))];
        Self { world, url: url.to_owned(), tasks }
    }

    /// Adds an application, and an ApplicationMaster that follows its orders.
    pub(crate) fn submit(&mut self, id: &str, job: &str) {
        let application = Application {
            id: id.into(),
            user: "alice".into(),
            queue: "dl".into(),
            job: job.into(),
            state: ApplicationState::Running.into(),
            secret_hash: HASH.into(),
            attempt: 1,
            ..Application::default()
        };
        self.look(|world| world.cluster.applications.push(application));
        self.tasks.push(tokio::spawn(follow(self.world.clone(), self.url.clone(), id.to_owned())));
    }

    pub(crate) fn look<T>(&self, look: impl FnOnce(&mut World) -> T) -> T {
        look(&mut self.world.lock().unwrap())
    }

    pub(crate) async fn until<T>(&self, what: &str, mut look: impl FnMut(&mut World) -> Option<T>) -> T {
        let limit = Instant::now() + LIMIT;
        loop {
            if let Some(it) = self.look(&mut look) {
                return it;
            }
            assert!(Instant::now() < limit, "waited in vain: {what}; {:?}", self.look(|world| world.answer.clone()));
            sleep(ROUND).await;
        }
    }

    pub(crate) async fn admit(&self, job: &str) -> Result<Verdict, Status> {
        let submission = Submission { user: "alice".into(), queue: "dl".into(), name: "n".into(), job: job.into() };
        Ok(BridgeClient::new(connect(&self.url).await).admit(bearing(submission, TOKEN)).await?.into_inner())
    }

    /// The result of an ApplicationMaster with another secret.
    pub(crate) async fn impostor(&self, application: &str) -> Code {
        MasterClient::new(connect(&self.url).await).follow(following(application, "abd")).await.unwrap_err().code()
    }
}

impl Drop for Yarn {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

fn following(application: &str, secret: &str) -> Request<FollowRequest> {
    let mut request = bearing(FollowRequest {}, secret);
    request.metadata_mut().insert("trainmaster-application", application.parse().unwrap());
    request
}

fn bearing<T>(message: T, token: &str) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    request
}

async fn connect(url: &str) -> Channel {
    let endpoint = Channel::from_shared(url.to_owned()).unwrap();
    loop {
        if let Ok(channel) = endpoint.connect().await {
            return channel;
        }
        sleep(ROUND).await;
    }
}

async fn exchange(world: Arc<Mutex<World>>, url: String) {
    let mut client = BridgeClient::new(connect(&url).await);
    loop {
        let cluster = world.lock().unwrap().cluster.clone();
        let answer = client.exchange(bearing(cluster, TOKEN)).await.map(tonic::Response::into_inner);
        {
            let mut world = world.lock().unwrap();
            if let Ok(plan) = &answer {
                world.enforce(plan);
                world.cluster.enforced = plan.number;
            }
            world.answer = Some(answer);
        }
        sleep(ROUND).await;
    }
}

async fn follow(world: Arc<Mutex<World>>, url: String, application: String) {
    loop {
        let mut client = MasterClient::new(connect(&url).await);
        if let Ok(stream) = client.follow(following(&application, "abc")).await {
            let mut stream = stream.into_inner();
            while let Ok(Some(orders)) = stream.message().await {
                world.lock().unwrap().orders.insert(application.clone(), orders);
            }
        }
        sleep(ROUND).await;
    }
}

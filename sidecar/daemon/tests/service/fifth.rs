//! A manager that Trainmaster doesn't know: all that its adapter needs, in one file, inside a real daemon.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use tokio::time::Instant;
use trainmaster_daemon::{AdapterChoice, Daemon};
use trainmaster_manager::{
    AdapterInfo, Adapters, Daemon as Scheduler, Follower, Follows, Launch, Manager, Named, Order, Outbox, PlanAnswer,
    Running, Shutdown, Snapshot, Taken,
};
use trainmaster_proto::v1::{self, ObservedPhase};

use super::support::{Clients, config, servers, spec};

/// How a program runs the adapter.
const TOY: AdapterInfo = AdapterInfo {
    name: "toy",
    summary: "a manager that does at once what it is told",
    default: false,
    sample: "",
    doctor: |_| Vec::new(),
    start,
    logs: None,
    check_job: None,
};

fn start(_: Launch, daemon: Arc<dyn Scheduler>, shutdown: Shutdown) -> anyhow::Result<Running> {
    let servers = servers(2, 2).into_iter().map(|server| (server.name.clone(), server));
    let machines = Machines { servers: Arc::new(servers.collect()), ..Machines::default() };
    Ok(Box::pin(async move {
        trainmaster_manager::run(Toy { machines }, Instant::now(), daemon, shutdown).await;
        Ok(())
    }))
}

/// The translator: orders become processes, and processes become observations.
struct Toy {
    machines: Machines,
}

#[derive(Default)]
struct Machines {
    follower: Follower,
    servers: Arc<BTreeMap<String, v1::Server>>,
    ordered: BTreeMap<u64, Order>,
    /// Its "processes".
    jobs: BTreeMap<u64, v1::ObservedJob>,
}

impl Follows for Machines {
    fn follower(&mut self) -> &mut Follower {
        &mut self.follower
    }

    fn devices(&self, server: &str) -> Option<Option<usize>> {
        self.servers.get(server).map(|server| Some(server.devices.len()))
    }

    fn order(&mut self, _: Duration, job: &Named, order: Result<Order, String>) -> Taken {
        match order {
            Err(cause) => Taken::Refused(cause),
            Ok(order) if order.run().is_some_and(|run| run.slots.len() > 3) => {
                Taken::Refused(format!("{} asks for more than 3 slots", order.name))
            }
            Ok(order) if self.ordered.get(&job.job) == Some(&order) => Taken::Same,
            Ok(order) => {
                self.ordered.insert(job.job, order);
                Taken::New
            }
        }
    }

    fn unlisted(&mut self, _: Duration, _: u64, listed: &BTreeSet<u64>) {
        self.ordered.retain(|job, _| listed.contains(job));
    }
}

#[async_trait]
impl Manager for Toy {
    fn name(&self) -> String {
        "toy".into()
    }

    fn attached(&mut self, _: Duration) {
        self.machines.follower.attached();
    }

    fn plan(&mut self, now: Duration, plan: v1::Plan) -> Vec<PlanAnswer> {
        self.machines.follow(now, plan)
    }

    fn snapshot(&mut self, _: Duration) -> Snapshot {
        Snapshot { servers: self.machines.servers.clone(), jobs: self.machines.jobs.clone() }
    }

    async fn act(&mut self, now: Duration, outbox: &mut Outbox) -> Option<Duration> {
        let run = |(&job, order): (&u64, &Order)| {
            let slots =
                order.run().map(|run| run.slots.iter().map(|(slot, place)| place.to_wire(*slot, false)).collect());
            let phase = if slots.is_some() { ObservedPhase::Running } else { ObservedPhase::Stopped };
            let (slots, phase) = (slots.unwrap_or_default(), phase.into());
            (
                job,
                v1::ObservedJob {
                    job,
                    incarnation: order.incarnation,
                    slots,
                    phase,
                    message: String::new(),
                    failures: 0,
                },
            )
        };
        self.machines.jobs = self.machines.ordered.iter().map(run).collect();
        // Only what changed is sent.
        outbox.touch(now);
        None
    }

    async fn stirred(&mut self, _: Duration, _: &mut Outbox) {
        pending().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_translator_is_a_whole_adapter() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.available = Adapters { all: &[TOY], commands: &[] };
    config.adapters = Some(vec![AdapterChoice { name: "toy".into(), config: None }]);
    let daemon = Daemon::start(config).await.unwrap();
    let clients = Clients::of(&daemon).await;

    let mut first = spec("first");
    (first.worker.max, first.server.as_mut().unwrap().max) = (1, 1);
    clients.submit(&first).await.unwrap();
    let running = clients.until_job("first", |status| status.state == "running").await;
    assert_eq!(running.slots.len(), 2, "{running:?}");
    clients.pause("first", false).await.unwrap();
    clients.until_job("first", |status| status.slots.is_empty() && status.reason.contains("held by a person")).await;
    clients.pause("first", true).await.unwrap();
    clients.until_job("first", |status| status.state == "running" && status.incarnation == 2).await;
    clients.cancel("first").await.unwrap();

    // What the manager can't do is shown to whoever asks.
    let mut greedy = spec("greedy");
    (greedy.worker.min, greedy.worker.requested, greedy.worker.max) = (3, 3, 3);
    clients.submit(&greedy).await.unwrap();
    clients.until_job("greedy", |status| status.reason.contains("more than 3 slots")).await;
    daemon.stop().await;
}

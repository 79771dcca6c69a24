//! The agent: it connects the daemon, Ray's head and time.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};
use trainmaster_manager::{Daemon, Manager, Outbox, PlanAnswer, Snapshot};
use trainmaster_proto::v1;

use super::{
    config::Config,
    dashboard::Dashboard,
    head::{Head, HeadError, Trouble},
    translator::{Effects, Translator},
    view::NodeId,
};
use crate::load::Load;

const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
const MOST_SAID: usize = 16;
/// Delay of the next request for loads while one is in progress, or if measuring is off.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);
/// Requests for loads keep the dashboard busy for at most one part in this many of the time.
const SPARING: u32 = 20;

/// The nodes' loads, with the time that the dashboard took to tell them.
type Loads = (Result<BTreeMap<NodeId, Load>, HeadError>, Duration);

/// Runs the adapter until `shutdown` resolves. Polls Ray's cluster, attaches to the daemon, and writes its plans to a
/// place where drivers read them. Running jobs continue while the daemon or this adapter isn't available. Errors are
/// reported, and the adapter continues.
pub async fn run(config: Config, daemon: Arc<dyn Daemon>, shutdown: impl Future<Output = ()> + Send) {
    let agent = Agent::new(Arc::new(config));
    let began = agent.began;
    trainmaster_manager::run(agent, began, daemon, shutdown).await;
}

struct Agent {
    config: Arc<Config>,
    translator: Translator,
    head: Option<Head>,
    /// The error in the head's answers, if any. Then the next connection is to the dashboard.
    strange: Option<String>,
    /// Time of the next poll of the head, or of the next attempt to connect.
    next_look: Duration,
    wait: Duration,
    /// The problems that were logged since the last successful poll.
    said: BTreeSet<String>,
    has_seen: bool,
    /// Whether there may be actions at the head before the next poll.
    is_due: bool,
    /// Time of the next request for the nodes' loads.
    measure_at: Instant,
    /// Such requests in progress, outside the main loop because a dashboard can be slow.
    readings: JoinSet<Loads>,
    /// Whether it was logged that the loads aren't known.
    said_unmeasured: bool,
    began: Instant,
}

impl Agent {
    fn new(config: Arc<Config>) -> Self {
        Self {
            translator: Translator::new(config.clone()),
            head: None,
            strange: None,
            next_look: Duration::ZERO,
            wait: FIRST_WAIT,
            said: BTreeSet::new(),
            has_seen: false,
            is_due: false,
            measure_at: Instant::now(),
            readings: JoinSet::new(),
            said_unmeasured: false,
            began: Instant::now(),
            config,
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    async fn talk(&mut self, looks: bool, outbox: &mut Outbox) -> Result<(), HeadError> {
        let mut head = match self.head.take() {
            Some(head) => head,
            None => self.connect().await?,
        };
        if looks {
            let view = head.look(&self.translator.known()).await?;
            let now = self.now();
            self.translator.see(now, view);
            self.has_seen = true;
            self.next_look = now + self.config.poll;
            self.wait = FIRST_WAIT;
            self.said.clear();
        }
        let Effects { effects, refused } = self.translator.step(self.now(), clock_ms());
        for (decision, answer) in refused {
            outbox.answer(decision, vec![answer]);
        }
        outbox.touch(self.now());
        if let Head::Grpc(gcs) = &mut head {
            for effect in effects {
                tracing::debug!(?effect, "at Ray's head");
                gcs.carry_out(effect).await?;
            }
        }
        self.head = Some(head);
        Ok(())
    }

    async fn connect(&mut self) -> Result<Head, HeadError> {
        let head = Head::connect(&self.config, self.strange.take()).await?;
        let (version, why) = (head.version(), head.observing());
        tracing::info!(version, observing = why.is_some(), "connected to Ray");
        if let Some(why) = why
            && self.translator.observing() != Some(why)
        {
            tracing::warn!("{why}");
        }
        self.translator.observe(why.map(str::to_owned));
        Ok(head)
    }

    fn measure(&mut self) {
        self.measure_at = Instant::now() + LONGEST_SLEEP;
        let config = self.config.clone();
        self.readings.spawn(async move {
            let began = Instant::now();
            (Dashboard::loads(&config).await, began.elapsed())
        });
    }

    /// Reports loads that changed. Without an answer none is known.
    fn measured(&mut self, (loads, took): Loads, outbox: &Outbox) {
        let every = self.config.measure().unwrap_or(LONGEST_SLEEP);
        self.measure_at = Instant::now() + every.max(took * SPARING);
        if let Some(error) = loads.as_ref().err().filter(|_| !self.said_unmeasured) {
            tracing::info!("the nodes' loads aren't known: {error}");
        }
        self.said_unmeasured = loads.is_err();
        let changed = self.translator.measured(loads.unwrap_or_default());
        if !outbox.measured(changed) {
            self.translator.forget_loads();
        }
    }

    /// Handles an error of the head. The last view stays valid until the head answers again.
    fn lose(&mut self, error: &HeadError) {
        // One warning per problem, and only a limited number if the problem changes each time.
        if self.said.len() < MOST_SAID && self.said.insert(error.to_string()) {
            tracing::warn!("{error}; trying again");
        } else {
            tracing::debug!(%error, wait = ?self.wait, "still so");
        }
        self.strange = (error.kind == Trouble::Strange).then(|| error.to_string());
        self.next_look = self.now() + self.wait;
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
    }
}

#[async_trait]
impl Manager for Agent {
    fn name(&self) -> String {
        self.config.name.clone()
    }

    /// With an empty cluster, all running jobs would end.
    fn is_ready(&self) -> bool {
        self.has_seen
    }

    fn attached(&mut self, _: Duration) {
        self.translator.attached();
    }

    fn detached(&mut self) {
        self.translator.forget_loads();
    }

    fn plan(&mut self, now: Duration, plan: v1::Plan) -> Vec<PlanAnswer> {
        self.is_due = true;
        self.translator.plan(now, plan)
    }

    fn snapshot(&mut self, _: Duration) -> Snapshot {
        self.translator.snapshot()
    }

    /// Polls the head if it is due, and carries out pending actions.
    async fn act(&mut self, now: Duration, outbox: &mut Outbox) -> Option<Duration> {
        let looks = now >= self.next_look;
        if looks || (self.is_due && self.head.is_some()) {
            match self.talk(looks, outbox).await {
                Ok(()) => self.is_due = false,
                Err(error) => self.lose(&error),
            }
        }
        Some(self.next_look)
    }

    async fn stirred(&mut self, _: Duration, outbox: &mut Outbox) {
        tokio::select! {
            () = sleep_until(self.measure_at), if self.config.measure().is_some() && self.has_seen => self.measure(),
            Some(Ok(loads)) = self.readings.join_next() => self.measured(loads, outbox),
            else => std::future::pending().await,
        }
    }
}

/// Unix time.
fn clock_ms() -> i64 {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    passed.as_millis() as i64
}

//! The loop that ties the daemon, Ray's head and time together.

use std::{
    collections::BTreeSet,
    future::Future,
    pin::pin,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{
    RayError,
    config::Config,
    head::{Head, HeadError, Trouble},
    translator::{Step, Translator},
};
use crate::{
    Launch,
    attach::{Answer, Heard, Link, LinkError, Outbox},
};

const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
const MOST_SAID: usize = 16;

/// Runs the adapter until `shutdown` resolves: looks at Ray's cluster, attaches to the daemon, and writes its plans
/// down where drivers read them. What runs goes on while the daemon or this adapter is away.
///
/// # Errors
/// The daemon's address is no address. Everything that happens later is reported and survived.
pub async fn run(config: Config, launch: Launch, shutdown: impl Future<Output = ()> + Send) -> Result<(), RayError> {
    let link = Link::new(&launch.daemon, launch.token.as_deref(), launch.ca.as_deref())
        .map_err(|LinkError { address, problem }| RayError::Daemon { address, problem })?;
    let mut shutdown = pin!(shutdown);
    let (sender, mut heard) = mpsc::channel(16);
    let mut agent = Agent::new(Arc::new(config));
    let mut link = Some((link, sender));
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            () = &mut shutdown => return Ok(()),
            () = agent.act() => {}
        }
        // The daemon's first word is what there is: an empty cluster would end everything that runs.
        if agent.has_seen
            && let Some((link, sender)) = link.take()
        {
            tasks.spawn(link.keep(sender));
        }
        tokio::select! {
            () = sleep_until(agent.wake()) => {}
            Some(heard) = heard.recv(), if link.is_none() => agent.hear(heard),
            () = &mut shutdown => return Ok(()),
        }
    }
}

struct Agent {
    config: Arc<Config>,
    translator: Translator,
    outbox: Outbox,
    head: Option<Head>,
    /// What was wrong with the head's answers: the next connection is to the dashboard.
    strange: Option<String>,
    /// When the head is to be looked at, or tried, again.
    next_look: Duration,
    wait: Duration,
    /// What was said to be wrong since it was last well.
    said: BTreeSet<String>,
    has_seen: bool,
    /// Something may be to do at the head before the next look.
    is_due: bool,
    began: Instant,
}

impl Agent {
    fn new(config: Arc<Config>) -> Self {
        Self {
            translator: Translator::new(config.clone()),
            outbox: Outbox::new(config.name.clone()),
            head: None,
            strange: None,
            next_look: Duration::ZERO,
            wait: FIRST_WAIT,
            said: BTreeSet::new(),
            has_seen: false,
            is_due: false,
            began: Instant::now(),
            config,
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn wake(&self) -> Instant {
        self.began + self.outbox.due().map_or(self.next_look, |due| due.min(self.next_look))
    }

    /// Looks at the head when it is time, does what there is to do, and tells the daemon.
    async fn act(&mut self) {
        let now = self.now();
        let looks = now >= self.next_look;
        if looks || (self.is_due && self.head.is_some()) {
            match self.talk(looks).await {
                Ok(()) => self.is_due = false,
                Err(error) => self.lose(&error),
            }
        }
        let now = self.now();
        let translator = &mut self.translator;
        self.outbox.flush(now, || translator.picture());
    }

    async fn talk(&mut self, looks: bool) -> Result<(), HeadError> {
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
        let Step { effects, refused } = self.translator.step(self.now(), clock_ms());
        for (decision, answer) in refused {
            self.outbox.answer(decision, vec![answer]);
        }
        self.outbox.touch(self.now());
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

    /// The head is away: what was seen last stands until it is back.
    fn lose(&mut self, error: &HeadError) {
        // Once is enough, however long it stays away, and so are a few where it says something else each time.
        if self.said.len() < MOST_SAID && self.said.insert(error.to_string()) {
            tracing::warn!("{error}; trying again");
        } else {
            tracing::debug!(%error, wait = ?self.wait, "still so");
        }
        self.strange = (error.kind == Trouble::Strange).then(|| error.to_string());
        self.next_look = self.now() + self.wait;
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
    }

    fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::Opened(stream) => self.outbox.open(stream, self.translator.picture()),
            Heard::Attached => {
                tracing::info!("attached");
                self.translator.attached();
            }
            Heard::Lost => self.outbox.close(),
            Heard::Plan(plan) => {
                let decision = plan.decision;
                let answers: Vec<Answer> = self.translator.plan(plan);
                self.outbox.answer(decision, answers);
                self.outbox.touch(self.now());
                self.is_due = true;
            }
        }
    }
}

/// Unix time.
fn clock_ms() -> i64 {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    passed.as_millis() as i64
}

//! The loop that ties the daemon, Ray's head and time together.

use std::{
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
    RayError, TESTED,
    config::Config,
    gcs::{Gcs, GcsError},
    translator::{Step, Translator},
};
use crate::{
    Launch,
    attach::{Answer, Heard, Link, LinkError, Outbox},
};

const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

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
    gcs: Option<Gcs>,
    /// When the head is to be looked at, or tried, again.
    next_look: Duration,
    wait: Duration,
    /// That the head is away was said.
    said: bool,
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
            gcs: None,
            next_look: Duration::ZERO,
            wait: FIRST_WAIT,
            said: false,
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
        if looks || (self.is_due && self.gcs.is_some()) {
            match self.talk(looks).await {
                Ok(()) => self.is_due = false,
                Err(error) => self.lose(&error),
            }
        }
        let now = self.now();
        let translator = &mut self.translator;
        self.outbox.flush(now, || translator.picture());
    }

    async fn talk(&mut self, looks: bool) -> Result<(), GcsError> {
        let mut gcs = match self.gcs.take() {
            Some(gcs) => gcs,
            None => {
                let gcs = Gcs::connect(&self.config).await?;
                tracing::info!(address = self.config.address, version = gcs.version, "connected to Ray's head");
                if !is_tested(&gcs.version) {
                    tracing::warn!(version = gcs.version, "this version of Ray is untested; tested is {TESTED}.x");
                }
                gcs
            }
        };
        if looks {
            let view = gcs.look().await?;
            let now = self.now();
            self.translator.see(now, view);
            self.has_seen = true;
            self.next_look = now + self.config.poll;
            (self.wait, self.said) = (FIRST_WAIT, false);
        }
        let Step { effects, refused } = self.translator.step(self.now(), clock_ms());
        for (decision, answer) in refused {
            self.outbox.answer(decision, vec![answer]);
        }
        self.outbox.touch(self.now());
        for effect in effects {
            tracing::debug!(?effect, "at Ray's head");
            gcs.carry_out(effect).await?;
        }
        self.gcs = Some(gcs);
        Ok(())
    }

    /// The head is away: what was seen last stands until it is back.
    fn lose(&mut self, error: &GcsError) {
        // Once is enough, however long it stays away.
        if std::mem::replace(&mut self.said, true) {
            tracing::debug!(%error, wait = ?self.wait, "Ray's head is still away");
        } else {
            tracing::warn!(%error, "Ray's head can't be asked; trying again");
        }
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

/// Whether this adapter was tested with that version of Ray.
pub(crate) fn is_tested(version: &str) -> bool {
    version.strip_prefix(TESTED).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

//! One process of a job: handles the feed, peers and timers with its node and, in one process, the chief.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::TcpListener,
    rc::Rc,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use tokio::runtime::Runtime;
use tracing::{info, warn};
use trainmaster_proto::v1::{Assignment, AssignmentPhase};

use crate::{
    args::{Mode, SlotArgs},
    chief::Chief,
    chunks::Orders,
    exit,
    feed::{Caller, Feed, News},
    id::{Id, Role},
    net::{Arrival, Event, Net, Place},
    node::{self, Node, Seat, Stuck},
    peers,
    settings::Settings,
    store::Store,
    turns::Turns,
    wire::{FinalOrder, Hello, Message, PROTOCOL},
};

/// Maximum time without a chief that was connected before. A lost chief leads to a new incarnation, not to a
/// replacement.
const CHIEF_GONE: Duration = Duration::from_secs(10);
/// The same while the job is being stopped.
const CHIEF_GONE_STOPPING: Duration = Duration::from_secs(2);
/// Maximum time of a stop without a given grace.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// Time for the last messages to peers and to the feed.
const HANG_UP: Duration = Duration::from_secs(3);
const FAREWELL: Duration = Duration::from_secs(10);

/// A process that is ready to take part in its job.
pub struct Process {
    settings: Rc<Settings>,
    slot: SlotArgs,
    me: Id,
    begun: Instant,
    /// The I/O thread.
    io: Runtime,
    net: Net,
    feed: Feed,
    part: Option<Part>,
    /// Events of peers before the first assignment.
    early: Vec<Event>,
    revision: u32,
    acknowledged: Option<u32>,
    /// When stopping: the time by which it ends, whatever the chief orders.
    stop_by: Option<Instant>,
    /// Whether a signal asked it to end.
    signalled: bool,
    /// Time since which there is no connection to the chief.
    chief_gone: Option<Instant>,
    chief_seen: bool,
    orphaned: bool,
    /// The end of this process.
    over: Option<FinalOrder>,
}

/// The role from the first assignment.
struct Part {
    node: Box<dyn Node>,
    chief_id: Id,
    chief: Option<Chief>,
}

impl Part {
    /// Tells the chief if the job can't continue.
    fn check(&self, result: Result<(), Stuck>, net: &mut Net) {
        if let Err(stuck) = result {
            net.send(self.chief_id, Message::Failed { code: stuck.code(), reason: stuck.to_string() });
        }
    }
}

impl Process {
    /// Listens, and connects to the feed. `begun`: start of the program.
    pub fn new(slot: SlotArgs, mut settings: Settings, begun: Instant) -> Result<Self> {
        let Some(role) = slot.role else {
            bail!(
                "--role (TRAINMASTER_ROLE) is missing: worker or server; to run a whole job here, use the \
                 command \"run\""
            );
        };
        if slot.feed.is_none() && slot.peers.is_empty() {
            bail!(
                "--feed (TRAINMASTER_FEED) is missing, and so is --peers; to run a whole job here, use the \
                 command \"run\""
            );
        }
        if settings.mode == Mode::Allreduce && role == Role::Server {
            bail!("--role (TRAINMASTER_ROLE) is server, but --mode (TRAINMASTER_MODE) allreduce has workers only");
        }
        let me = Id { role, index: slot.index };
        if let Some(folder) = slot.device_dir.as_deref().filter(|_| settings.device.is_emulated()) {
            let role = if me.is_worker() { "worker" } else { "server" };
            let name = format!("{}-{}-{role}-{}", slot.job, slot.incarnation, slot.index);
            settings.turns = Turns::open(folder, &slot.devices.0, &name).with_context(|| {
                format!("--device-dir (TRAINMASTER_DEVICE_DIR): can't share devices in {}", folder.display())
            })?;
        }
        let listener = TcpListener::bind(slot.bind)
            .with_context(|| format!("--bind (TRAINMASTER_BIND): can't listen on {}", slot.bind))?;
        let bound = listener.local_addr()?;
        let address = match &slot.advertise {
            Some(host) => format!("{host}:{}", bound.port()),
            None if bound.ip().is_unspecified() => {
                bail!("--bind (TRAINMASTER_BIND) is {bound}: peers need --advertise (TRAINMASTER_ADVERTISE) to find it")
            }
            None => bound.to_string(),
        };
        let caller = Caller { slot: slot.clone(), id: me, address };
        thread::sleep(settings.device.start());
        let io = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (sender, inbox) = mpsc::channel();
        let news = sender.clone();
        let feed = Feed::start(caller, io.handle(), move |event| {
            let _ = news.send(Arrival::News(event)); // fails when this process ends
        })?;
        let mut secret = blake3::Hasher::new_derive_key("trainmaster-trainer 1 greeting");
        secret.update(&slot.job.to_le_bytes()).update(&slot.incarnation.to_le_bytes()).update(slot.token.as_bytes());
        let proof = *secret.finalize().as_bytes();
        let hello = Hello { protocol: PROTOCOL, job: slot.job, incarnation: slot.incarnation, id: me, proof };
        let (nic_mbit, limit) = (settings.device.nic_mbit(), settings.frame_limit());
        let net = Net::new(hello, listener, io.handle().clone(), (sender, inbox), nic_mbit, limit)?;
        Ok(Self {
            settings: Rc::new(settings),
            slot,
            me,
            begun,
            io,
            net,
            feed,
            part: None,
            early: Vec::new(),
            revision: 0,
            acknowledged: None,
            stop_by: None,
            signalled: false,
            chief_gone: None,
            chief_seen: false,
            orphaned: false,
            over: None,
        })
    }

    /// Takes part until the job or this process ends. Returns its exit code.
    pub fn run(mut self) -> Result<u8> {
        if !self.slot.peers.is_empty() {
            // No peer knew the address before, so there are no early events.
            self.assigned(&peers::assignment(&self.slot)?)?;
        }
        loop {
            let chief = self.part.as_ref().and_then(|part| part.chief.as_ref());
            if let Some(order) = self.over.or_else(|| chief.and_then(Chief::verdict)) {
                return Ok(self.leave(order));
            }
            let event = self.net.next(self.due());
            self.handle(event)?;
        }
    }

    /// Ends this process alone.
    fn quit(&mut self, code: u8) {
        self.over.get_or_insert(FinalOrder { code, checkpoint_step: 0, checkpoint_ms: 0.0 });
    }

    fn due(&self) -> Option<Instant> {
        let part = self.part.as_ref();
        let node = part.and_then(|part| part.node.due());
        let chief = part.and_then(|part| part.chief.as_ref()).and_then(Chief::due);
        [node, chief, self.stop_by, self.patience()].into_iter().flatten().min()
    }

    /// End of the time without a chief.
    fn patience(&self) -> Option<Instant> {
        let pace = &self.settings.pace;
        let patience = match (self.stop_by, self.chief_seen) {
            (Some(_), _) => CHIEF_GONE_STOPPING,
            (None, true) => CHIEF_GONE.min(pace.replace),
            (None, false) => pace.start,
        };
        self.chief_gone.map(|since| since + patience)
    }

    fn handle(&mut self, event: Event) -> Result<()> {
        match event {
            Event::News(news) => {
                self.heard(news)?;
                if self.part.is_some() {
                    std::mem::take(&mut self.early).into_iter().try_for_each(|event| self.handle(event))?;
                }
            }
            Event::Due => self.tick(),
            event if self.part.is_none() => self.early.push(event),
            Event::Message(_, Message::Finish(order)) => _ = self.over.get_or_insert(order),
            Event::Message(from, message) => self.told(from, message),
            Event::Up(peer) => self.up(peer),
            Event::Down(peer) => self.down(peer),
        }
        Ok(())
    }

    fn tick(&mut self) {
        let now = Instant::now();
        if let Some(part) = &mut self.part {
            let ticked = part.node.tick(&mut self.net);
            part.check(ticked, &mut self.net);
            if let Some(chief) = &mut part.chief
                && chief.due().is_some_and(|due| due <= now)
            {
                return chief.tick(&mut self.net, &self.feed);
            }
        }
        if self.patience().is_some_and(|until| until <= now) {
            let code = match (self.stop_by, self.orphaned) {
                (Some(_), _) => exit::DONE,
                (None, true) => exit::ORPHANED,
                (None, false) => exit::CHIEF_LOST,
            };
            warn!(code, "the chief is gone; leaving");
            self.quit(code);
        } else if self.stop_by.is_some_and(|by| by <= now) {
            warn!("was told to stop, and the chief has not let go; leaving");
            self.quit(exit::DONE);
        }
    }

    fn heard(&mut self, news: News) -> Result<()> {
        match news {
            News::Assigned(assignment) => self.assigned(&assignment)?,
            News::Terminate => {
                info!("told to stop by a signal");
                // The second signal ends the process. The first often comes together with the feed's order, and the
                // chief still needs this process.
                match std::mem::replace(&mut self.signalled, true) {
                    true => self.quit(exit::DONE),
                    false => self.stop(Duration::ZERO, false),
                }
            }
            News::Orphaned => {
                warn!("the feed has been away for longer than --orphan-grace-ms allows");
                self.orphaned = true;
                match self.part.as_mut() {
                    Some(Part { chief: Some(chief), .. }) => {
                        chief.stop(exit::ORPHANED, Duration::ZERO, &mut self.net, &self.feed);
                    }
                    // The chief decides, if there is one.
                    Some(_) if self.chief_gone.is_none() => {}
                    _ => self.quit(exit::ORPHANED),
                }
            }
            News::Abandoned => bail!("the thread that talks to the feed has died"),
        }
        Ok(())
    }

    fn assigned(&mut self, assignment: &Assignment) -> Result<()> {
        let grace = Duration::from_millis(assignment.grace_ms.max(0) as u64);
        if assignment.incarnation != self.slot.incarnation {
            info!(now = assignment.incarnation, ours = self.slot.incarnation, "this incarnation is over");
            self.stop(grace, true);
            return Ok(());
        }
        let places = peers::places(assignment);
        let workers: BTreeSet<u32> = places.keys().filter(|id| id.is_worker()).map(|id| id.index).collect();
        self.revision = assignment.revision;
        let machine = match self.slot.server.as_str() {
            "" => places.get(&self.me).map(|place| place.machine.clone()).unwrap_or_default(),
            named => named.to_owned(),
        };
        self.net.places(&machine, &places);
        if self.part.is_none() {
            if !places.contains_key(&self.me) {
                // Not in the assignment yet (the feed is behind), or not any more.
                if assignment.revision >= self.slot.revision {
                    self.quit(exit::DONE);
                }
                return Ok(());
            }
            self.join(&places, assignment.last_seq)?;
        }
        let orders = self.settings.chunks.and_then(|chunks| Orders::read(&assignment.work, chunks));
        let trains = orders.as_ref().is_none_or(|orders| orders.running.contains_key(&self.me.index));
        // Workers without work receive no steps.
        if self.settings.mode == Mode::Async || self.me.is_worker() && !trains {
            self.follow(assignment.revision);
        }
        if let (Some(part), Some(orders)) = (&mut self.part, &orders) {
            let directed = part.node.direct(orders, &mut self.net);
            part.check(directed, &mut self.net);
        }
        if let Some(Part { chief: Some(chief), .. }) = &mut self.part {
            chief.desire(workers, orders, assignment.revision, &mut self.net, &self.feed);
        } else if !places.contains_key(&self.me) {
            info!(revision = assignment.revision, "no longer wanted; leaving at the next step boundary");
            self.stop_by.get_or_insert(Instant::now() + limit(grace));
        }
        if assignment.phase() == AssignmentPhase::Stop {
            info!("told to stop");
            self.stop(grace, true);
        }
        Ok(())
    }

    /// Takes the role of the first assignment.
    fn join(&mut self, places: &BTreeMap<Id, Place>, last_seq: u64) -> Result<()> {
        let servers: Vec<Id> = match self.settings.mode {
            Mode::Allreduce => Vec::new(),
            Mode::Sync | Mode::Async => places.keys().copied().filter(|id| !id.is_worker()).collect(),
        };
        let first_worker = places.keys().copied().find(|id| id.is_worker());
        let chief_id = match self.settings.mode {
            Mode::Allreduce => first_worker.ok_or_else(|| anyhow!("the assignment has no workers"))?,
            Mode::Sync | Mode::Async => *servers.first().ok_or_else(|| {
                anyhow!("the assignment has no parameter servers; --mode (TRAINMASTER_MODE) sync and async need them")
            })?,
        };
        self.settings.parts.check(places.keys().filter(|id| id.is_worker()).count())?;
        let upload = Duration::from_millis(self.slot.upload_ms);
        let store = |chunks| Store::new(&self.settings, chunks, self.slot.data_dir.clone(), upload);
        let store = self.settings.chunks.map(store);
        let seat = Seat { me: self.me, chief: chief_id, revision: self.revision };
        let mut node = node::new(&self.settings, seat, &servers, store)?;
        let mut chief = None;
        if chief_id == self.me {
            chief = Some(Chief::new(Rc::clone(&self.settings), self.me, &servers, self.begun, last_seq)?);
            node.up(self.me, &mut self.net);
        } else {
            self.chief_gone = Some(Instant::now());
            node.wants().into_iter().for_each(|id| self.net.want(id));
        }
        self.part = Some(Part { node, chief_id, chief });
        Ok(())
    }

    /// `all`: the whole job stops, not only this process.
    fn stop(&mut self, grace: Duration, all: bool) {
        match &mut self.part {
            Some(Part { chief: Some(chief), .. }) => chief.stop(exit::DONE, grace, &mut self.net, &self.feed),
            Some(Part { chief_id, .. }) => {
                let first = self.stop_by.replace(Instant::now() + limit(grace)).is_none();
                if first && self.net.is_up(*chief_id) {
                    self.net.send(*chief_id, Message::Leaving { all });
                }
            }
            None => self.quit(exit::DONE),
        }
    }

    fn told(&mut self, from: Id, message: Message) {
        if let Message::Step { revision, .. } = message {
            self.follow(revision);
        }
        let Some(part) = &mut self.part else { return };
        let for_chief = matches!(
            message,
            Message::Ready { .. }
                | Message::Unready
                | Message::Stored { .. }
                | Message::Leaving { .. }
                | Message::Broken { .. }
                | Message::Failed { .. }
                | Message::Collected(_)
                | Message::Shard(_)
                | Message::Shown { .. }
        );
        match (&mut part.chief, for_chief) {
            (Some(chief), true) => chief.message(from, message, &mut self.net, &self.feed),
            (None, true) => warn!(%from, "mistakes this process for the chief"),
            (_, false) => {
                let received = part.node.message(from, message, &mut self.net);
                part.check(received, &mut self.net);
            }
        }
    }

    fn follow(&mut self, revision: u32) {
        if self.acknowledged.is_none_or(|last| last < revision) {
            self.acknowledged = Some(revision);
            self.feed.acknowledge(revision, false, 0, 0.0);
        }
    }

    fn up(&mut self, peer: Id) {
        let Some(part) = &mut self.part else { return };
        if peer == part.chief_id {
            self.chief_gone = None;
            self.chief_seen = true;
            if self.stop_by.is_some() {
                self.net.send(peer, Message::Leaving { all: false });
            }
        }
        part.node.up(peer, &mut self.net);
    }

    fn down(&mut self, peer: Id) {
        let Some(part) = &mut self.part else { return };
        if peer == part.chief_id {
            self.chief_gone = Some(Instant::now());
        }
        part.node.down(peer, &mut self.net);
        if let Some(chief) = &mut part.chief {
            chief.down(peer, &mut self.net, &self.feed);
        }
    }

    fn leave(self, order: FinalOrder) -> u8 {
        let FinalOrder { code, checkpoint_step, checkpoint_ms } = order;
        self.feed.acknowledge(self.revision, true, checkpoint_step, checkpoint_ms.into());
        let is_chief = self.part.is_some_and(|part| part.chief.is_some());
        // Closing first could discard messages that peers haven't read yet, so the chief waits for them.
        self.net.linger(HANG_UP, is_chief);
        self.feed.farewell(FAREWELL, self.io.handle());
        self.io.shutdown_background();
        info!(code, checkpoint_step, "leaving");
        code
    }
}

/// Maximum time of a stop.
fn limit(grace: Duration) -> Duration {
    if grace.is_zero() { STOP_LIMIT } else { grace }
}

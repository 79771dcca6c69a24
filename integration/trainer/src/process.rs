//! One process of a job: handles the feed, peers and timers with its node and, in one process, the chief.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::TcpListener,
    os::unix::net::UnixStream,
    rc::Rc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use tracing::{info, warn};
use trainmaster_proto::v1::{Assignment, AssignmentPhase};

use crate::{
    args::{Mode, SlotArgs},
    chief::{Chief, FinalOrder},
    chunks::Orders,
    exit,
    feed::{Caller, Feed, News},
    id::{Id, Role},
    net::{Event, Net, Place},
    node::Node,
    peers,
    settings::Settings,
    store::Store,
    turns::Turns,
    wire::{Hello, Message, PROTOCOL},
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
}

/// The role from the first assignment.
struct Part {
    node: Node,
    chief_id: Id,
    chief: Option<Chief>,
}

const LEAVE_QUIETLY: FinalOrder = FinalOrder { code: exit::DONE, checkpoint_step: 0, checkpoint_ms: 0.0 };

impl Process {
    /// Listens, and connects to the feed. `begun`: start of the program.
    ///
    /// # Errors
    ///
    /// A flag or variable is missing or invalid. The message names it.
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
        let (waker, bell) = UnixStream::pair()?;
        let caller = Caller {
            url: slot.feed.clone(),
            ca: slot.feed_ca.clone(),
            token: slot.token.clone(),
            job: slot.job,
            incarnation: slot.incarnation,
            id: me,
            address,
            grace: Duration::from_millis(slot.orphan_grace_ms),
        };
        thread::sleep(settings.device.start());
        let feed = Feed::start(caller, bell)?;
        let mut secret = blake3::Hasher::new_derive_key("trainmaster-trainer 1 greeting");
        secret.update(&slot.job.to_le_bytes()).update(&slot.incarnation.to_le_bytes()).update(slot.token.as_bytes());
        let proof = *secret.finalize().as_bytes();
        let hello = Hello { protocol: PROTOCOL, job: slot.job, incarnation: slot.incarnation, id: me, proof };
        let net = Net::new(hello, listener, waker, settings.device.nic_mbit(), settings.frame_limit())?;
        Ok(Self {
            settings: Rc::new(settings),
            slot,
            me,
            begun,
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
        })
    }

    /// Takes part until the job or this process ends. Returns its exit code.
    ///
    /// # Errors
    ///
    /// Unrecoverable errors: sockets can't be polled, or the checkpoint belongs to another job.
    pub fn run(mut self) -> Result<u8> {
        if !self.slot.peers.is_empty() {
            let assignment = peers::assignment(&self.slot)?;
            if let Some(verdict) = self.assigned(&assignment)? {
                return Ok(self.leave(verdict));
            }
            // No peer knew the address before, so there are no early events.
        }
        loop {
            let due = self.due();
            let event = self.net.next(due)?;
            if let Some(verdict) = self.handle(event)? {
                return Ok(self.leave(verdict));
            }
        }
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

    fn handle(&mut self, event: Event) -> Result<Option<FinalOrder>> {
        match event {
            Event::Up(_) | Event::Down(_) | Event::Message(..) if self.part.is_none() => self.early.push(event),
            Event::Woken => {
                while let Ok(news) = self.feed.news.try_recv() {
                    if let Some(verdict) = self.heard(news)? {
                        return Ok(Some(verdict));
                    }
                }
                if self.part.is_some() {
                    for event in std::mem::take(&mut self.early) {
                        if let Some(verdict) = self.handle(event)? {
                            return Ok(Some(verdict));
                        }
                    }
                }
            }
            Event::Abandoned => bail!("the thread that talks to the feed has died"),
            Event::Message(_, Message::Finish { code, checkpoint_step, checkpoint_ms }) => {
                return Ok(Some(FinalOrder { code, checkpoint_step, checkpoint_ms }));
            }
            Event::Message(from, message) => self.told(from, message),
            Event::Up(peer) => self.up(peer),
            Event::Down(peer) => self.down(peer),
            Event::Due => return Ok(self.tick()),
        }
        Ok(self.part.as_ref().and_then(|part| part.chief.as_ref()).and_then(Chief::verdict))
    }

    fn tick(&mut self) -> Option<FinalOrder> {
        let now = Instant::now();
        if let Some(part) = &mut self.part {
            part.node.tick(&mut self.net);
            if let Some(chief) = &mut part.chief
                && chief.due().is_some_and(|due| due <= now)
            {
                chief.tick(&mut self.net, &self.feed);
                return chief.verdict();
            }
        }
        if self.patience().is_some_and(|until| until <= now) {
            let code = match (self.stop_by, self.orphaned) {
                (Some(_), _) => exit::DONE,
                (None, true) => exit::ORPHANED,
                (None, false) => exit::CHIEF_LOST,
            };
            warn!(code, "the chief is gone; leaving");
            return Some(FinalOrder { code, ..LEAVE_QUIETLY });
        }
        if self.stop_by.is_some_and(|by| by <= now) {
            warn!("was told to stop, and the chief has not let go; leaving");
            return Some(LEAVE_QUIETLY);
        }
        None
    }

    fn heard(&mut self, news: News) -> Result<Option<FinalOrder>> {
        match news {
            News::Assigned(assignment) => self.assigned(&assignment),
            News::Terminate => {
                info!("told to stop by a signal");
                // The second signal ends the process. The first often comes together with the feed's order, and the
                // chief still needs this process.
                if std::mem::replace(&mut self.signalled, true) {
                    return Ok(Some(LEAVE_QUIETLY));
                }
                Ok(self.stop(Duration::ZERO, false))
            }
            News::Orphaned => {
                warn!("the feed has been away for longer than --orphan-grace-ms allows");
                self.orphaned = true;
                match self.part.as_mut() {
                    Some(Part { chief: Some(chief), .. }) => {
                        chief.stop(exit::ORPHANED, Duration::ZERO, &mut self.net, &self.feed);
                        Ok(chief.verdict())
                    }
                    // The chief decides, if there is one.
                    Some(_) if self.chief_gone.is_none() => Ok(None),
                    _ => Ok(Some(FinalOrder { code: exit::ORPHANED, ..LEAVE_QUIETLY })),
                }
            }
        }
    }

    fn assigned(&mut self, assignment: &Assignment) -> Result<Option<FinalOrder>> {
        let grace = Duration::from_millis(assignment.grace_ms.max(0) as u64);
        if assignment.incarnation != self.slot.incarnation {
            info!(now = assignment.incarnation, ours = self.slot.incarnation, "this incarnation is over");
            return Ok(self.stop(grace, true));
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
                return Ok((assignment.revision >= self.slot.revision).then_some(LEAVE_QUIETLY));
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
            part.node.direct(orders, &mut self.net);
        }
        if let Some(Part { chief: Some(chief), .. }) = &mut self.part {
            chief.desire(workers, orders, assignment.revision, &mut self.net, &self.feed);
        } else if !places.contains_key(&self.me) {
            info!(revision = assignment.revision, "no longer wanted; leaving at the next step boundary");
            self.stop_by.get_or_insert(Instant::now() + if grace.is_zero() { STOP_LIMIT } else { grace });
        }
        if assignment.phase() == AssignmentPhase::Stop {
            info!("told to stop");
            return Ok(self.stop(grace, true));
        }
        Ok(self.part.as_ref().and_then(|part| part.chief.as_ref()).and_then(Chief::verdict))
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
        let mut node = Node::new(&self.settings, self.me, chief_id, self.revision, &servers, store)?;
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
    fn stop(&mut self, grace: Duration, all: bool) -> Option<FinalOrder> {
        match &mut self.part {
            Some(Part { chief: Some(chief), .. }) => {
                chief.stop(exit::DONE, grace, &mut self.net, &self.feed);
                chief.verdict()
            }
            Some(Part { chief_id, .. }) => {
                let limit = if grace.is_zero() { STOP_LIMIT } else { grace };
                if self.stop_by.replace(Instant::now() + limit).is_none() && self.net.is_up(*chief_id) {
                    self.net.send(*chief_id, Message::Leaving { all });
                }
                None
            }
            None => Some(LEAVE_QUIETLY),
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
                | Message::Collected { .. }
                | Message::Shard { .. }
                | Message::Shown { .. }
        );
        match (&mut part.chief, for_chief) {
            (Some(chief), true) => chief.message(from, message, &mut self.net, &self.feed),
            (None, true) => warn!(%from, "mistakes this process for the chief"),
            (_, false) => part.node.message(from, message, &mut self.net),
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

    fn leave(mut self, verdict: FinalOrder) -> u8 {
        let FinalOrder { code, checkpoint_step, checkpoint_ms } = verdict;
        self.feed.acknowledge(self.revision, true, checkpoint_step, checkpoint_ms.into());
        let is_chief = self.part.as_ref().is_some_and(|part| part.chief.is_some());
        // Closing first could discard messages that peers haven't read yet, so the chief waits for them.
        if let Err(error) = self.net.linger(Instant::now() + HANG_UP, is_chief) {
            warn!(%error, "hanging up");
        }
        self.feed.farewell(FAREWELL);
        info!(code, checkpoint_step, "leaving");
        code
    }
}

//! The connections between a job's processes, and the emulated network interface.
//!
//! The training thread takes events from [`Net::next`] and never waits for a socket. The I/O thread connects, reads and
//! writes. Of two processes, the one with the greater [`Id`] connects. A broken connection is opened again while the
//! peer is wanted. Messages to a peer without a connection are queued.
//!
//! With an emulated interface, a payload between different machines is announced by `Begin` at once, and sent when this
//! side's interface is through. The other side delivers it when its own interface is through as well. So the contention
//! of both sides counts, and an undisturbed transfer takes bytes / rate once, not twice.

mod door;
mod link;
mod nic;
mod share;

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    net::TcpListener,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use tokio::{net::TcpStream, runtime::Handle, task::AbortHandle};
use tracing::debug;

use crate::{
    feed::News,
    id::Id,
    wire::{Hello, Message},
};
pub(crate) use door::Arrival;
use door::Door;
use link::Link;
use nic::{Landed, Nic};

/// An event of [`Net::next`].
#[derive(Debug)]
pub(crate) enum Event {
    /// A peer is connected and identified.
    Up(Id),
    /// The connection to a peer is gone, with all messages on their way.
    Down(Id),
    Message(Id, Message),
    News(News),
    /// The requested time has come.
    Due,
}

/// Location of a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// host:port. Empty if unknown.
    pub(crate) address: String,
    /// Its machine.
    pub(crate) machine: String,
}

#[derive(Default)]
struct Peer {
    place: Place,
    wanted: bool,
    /// The connection that the caller knows from events.
    link: Option<u64>,
    dialling: Option<AbortHandle>,
    waiting: Vec<(Message, u64)>,
}

pub(crate) struct Net {
    io: Handle,
    door: Arc<Door>,
    inbox: mpsc::Receiver<Arrival>,
    machine: String,
    links: BTreeMap<u64, Link>,
    peers: BTreeMap<Id, Peer>,
    /// Events, and the connections that they are about.
    ready: VecDeque<(u64, Event)>,
    nic: Option<Nic>,
    start: Instant,
    serial: u64,
}

impl Net {
    /// `io`: the I/O thread. `arrivals`: both ends of its channel to this one. `nic_mbit`: rate of the emulated
    /// interface in each direction. None without emulation. `frame_limit`: maximum frame of a peer, in bytes.
    pub(crate) fn new(
        hello: Hello,
        listener: TcpListener,
        io: Handle,
        arrivals: (mpsc::Sender<Arrival>, mpsc::Receiver<Arrival>),
        nic_mbit: Option<f64>,
        frame_limit: usize,
    ) -> io::Result<Self> {
        let (sender, inbox) = arrivals;
        let door = Arc::new(Door { hello, inbox: sender, frame_limit });
        listener.set_nonblocking(true)?;
        let context = io.enter();
        io.spawn(Arc::clone(&door).accept(tokio::net::TcpListener::from_std(listener)?));
        drop(context);
        Ok(Self {
            io,
            door,
            inbox,
            machine: String::new(),
            links: BTreeMap::new(),
            peers: BTreeMap::new(),
            ready: VecDeque::new(),
            nic: nic_mbit.map(Nic::new),
            start: Instant::now(),
            serial: 0,
        })
    }

    /// Sets the locations of this process and its peers.
    pub(crate) fn places(&mut self, machine: &str, places: &BTreeMap<Id, Place>) {
        machine.clone_into(&mut self.machine);
        for (id, place) in places {
            let peer = self.peers.entry(*id).or_default();
            if peer.place != *place {
                peer.place = place.clone();
                // A new address is tried at once.
                if let Some(dialling) = peer.dialling.take() {
                    dialling.abort();
                }
            }
        }
    }

    /// Keeps a connection to this peer from now on.
    pub(crate) fn want(&mut self, id: Id) {
        self.peers.entry(id).or_default().wanted = true;
    }

    /// Calls the wanted peers without a connection.
    fn dial(&mut self) {
        for (id, peer) in self.peers.range_mut(..self.door.hello.id) {
            let lonely = peer.wanted && peer.link.is_none() && peer.dialling.is_none();
            if lonely && !peer.place.address.is_empty() {
                let task = self.io.spawn(Arc::clone(&self.door).dial(*id, peer.place.address.clone()));
                peer.dialling = Some(task.abort_handle());
            }
        }
    }

    pub(crate) fn is_up(&self, id: Id) -> bool {
        id == self.door.hello.id || self.peers.get(&id).is_some_and(|peer| peer.link.is_some())
    }

    /// Sends now, or when the peer is connected. Messages to this process itself are delivered too.
    pub(crate) fn send(&mut self, to: Id, message: Message) {
        self.transfer(to, message, 0);
    }

    /// Sends as if the payload had `bytes` bytes, if an interface is emulated and the peer is on another machine.
    pub(crate) fn transfer(&mut self, to: Id, message: Message, bytes: u64) {
        if to == self.door.hello.id {
            self.ready.push_back((0, Event::Message(to, message)));
            return;
        }
        let peer = self.peers.entry(to).or_default();
        let Some(link) = peer.link else {
            peer.waiting.push((message, bytes));
            return;
        };
        let remote = peer.place.machine != self.machine;
        match &mut self.nic {
            Some(nic) if bytes > 0 && remote => {
                let (transfer, sent) = nic.send(self.start.elapsed().as_nanos() as u64, link, bytes, &message);
                self.write(link, Message::Begin { transfer, bytes }.encode(0));
                sent.into_iter().for_each(|(link, frame)| self.write(link, frame));
            }
            _ => self.write(link, message.encode(0)),
        }
    }

    fn write(&self, key: u64, frame: Vec<u8>) {
        if let Some(link) = self.links.get(&key) {
            link.push(&frame);
        }
    }

    /// Waits for the next event, at most until `due`.
    pub(crate) fn next(&mut self, due: Option<Instant>) -> Event {
        loop {
            self.run_nic();
            if let Some(event) = self.pop() {
                return event;
            }
            self.dial();
            let nic = self.nic.as_ref().and_then(Nic::due).map(|ns| self.start + Duration::from_nanos(ns));
            let arrival = match [due, nic].into_iter().flatten().min() {
                Some(until) => self.inbox.recv_timeout(until.saturating_duration_since(Instant::now())).ok(),
                None => self.inbox.recv().ok(),
            };
            match arrival {
                Some(arrival) => self.receive(arrival),
                None if due.is_some_and(|due| due <= Instant::now()) => return Event::Due,
                None => {}
            }
        }
    }

    /// Delivers an event. From now on the caller knows of it.
    fn pop(&mut self) -> Option<Event> {
        let (key, event) = self.ready.pop_front()?;
        match event {
            Event::Up(id) => {
                let peer = self.peers.entry(id).or_default();
                peer.link = Some(key);
                for (message, bytes) in std::mem::take(&mut peer.waiting) {
                    self.transfer(id, message, bytes);
                }
            }
            Event::Down(id) => self.peers.entry(id).or_default().link = None,
            _ => {}
        }
        Some(event)
    }

    /// Hangs up when everything is sent and, if requested, all peers have closed their connections. Waits at most for
    /// `limit`.
    pub(crate) fn linger(self, limit: Duration, for_peers: bool) {
        self.io.block_on(link::hang_up(self.links.into_values().collect(), limit, for_peers));
    }

    fn run_nic(&mut self) {
        let now = self.start.elapsed().as_nanos() as u64;
        let Some(nic) = &mut self.nic else { return };
        let (sent, landed) = nic.advance(now);
        sent.into_iter().for_each(|(link, frame)| self.write(link, frame));
        self.hand_over(landed);
    }

    fn hand_over(&mut self, landed: Vec<Landed>) {
        for (key, message) in landed {
            if let Some(link) = self.links.get(&key) {
                self.ready.push_back((key, Event::Message(link.peer, message)));
            }
        }
    }

    fn receive(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Open(id, stream) => self.open(id, stream),
            Arrival::Closed(key, why) => self.close(key, &why),
            Arrival::News(news) => self.ready.push_back((0, Event::News(news))),
            Arrival::Message(key, ..) if !self.links.contains_key(&key) => {}
            Arrival::Message(key, transfer, message) => {
                let now = self.start.elapsed().as_nanos() as u64;
                let landed = match (&mut self.nic, message) {
                    (Some(nic), Message::Begin { transfer, bytes }) => nic.begin(now, key, transfer, bytes),
                    (None, Message::Begin { .. }) => Vec::new(),
                    (Some(nic), message) => {
                        nic.arrive(key, transfer, message).map(|it| (key, it)).into_iter().collect()
                    }
                    (None, message) => vec![(key, message)],
                };
                self.hand_over(landed);
            }
        }
    }

    fn open(&mut self, id: Id, stream: TcpStream) {
        let peer = self.peers.entry(id).or_default();
        peer.dialling = None;
        // The same slot again means that its process is new, or lost its connection. The old connection is dead.
        if let Some(old) = peer.link {
            self.close(old, "replaced by a new connection");
        }
        self.serial += 1;
        self.links.insert(self.serial, Link::new(&self.io, &self.door, self.serial, id, stream));
        self.ready.push_back((self.serial, Event::Up(id)));
    }

    fn close(&mut self, key: u64, why: &str) {
        let Some(link) = self.links.remove(&key) else { return };
        let peer = link.peer;
        link.abort();
        if let Some(nic) = &mut self.nic {
            nic.forget(key);
        }
        debug!(%peer, why, "connection lost");
        self.ready.push_back((key, Event::Down(peer)));
    }
}

//! The connections between a job's processes, and the emulated network interface.
//!
//! A single thread does everything. [`Net::next`] sleeps in `poll` until there is a message, the end of a connection, a
//! timer, or an event of the feed thread. Of two processes, the one with the greater [`Id`] connects. A broken
//! connection is opened again while the peer is wanted. Messages to a peer without a connection are queued.
//!
//! With an emulated interface, a payload between different machines is announced by `Begin` at once, and sent when this
//! side's interface is through. The other side delivers it when its own interface is through as well. So the contention
//! of both sides counts, and an undisturbed transfer takes bytes / rate once, not twice.

mod link;
mod nic;
mod share;

use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, ErrorKind, Read},
    net::{TcpListener, ToSocketAddrs},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::debug;

use crate::{
    id::Id,
    wire::{HELLO_LIMIT, Hello, Message},
};
use link::{Link, State};
use nic::{Landed, Nic};

const GREETING: Duration = Duration::from_secs(10);
const STRANGERS: usize = 64;
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(1);

/// An event of [`Net::next`].
#[derive(Debug)]
pub(crate) enum Event {
    /// A peer is connected and identified.
    Up(Id),
    /// The connection to a peer is gone, with all messages on their way.
    Down(Id),
    Message(Id, Message),
    /// Another thread has an event.
    Woken,
    /// The other thread is gone.
    Abandoned,
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
    /// The current connection …
    link: Option<u64>,
    /// … and the one that the caller knows from events.
    known: Option<u64>,
    waiting: Vec<(Message, u64)>,
    retry: Option<(Instant, Duration)>,
}

pub(crate) struct Net {
    hello: Hello,
    machine: String,
    listener: TcpListener,
    waker: Option<UnixStream>,
    links: BTreeMap<u64, Link>,
    peers: BTreeMap<Id, Peer>,
    ready: VecDeque<(u64, Event)>,
    nic: Option<Nic>,
    start: Instant,
    serial: u64,
    frame_limit: usize,
}

impl Net {
    /// `nic_mbit`: rate of the emulated interface in each direction. None without emulation. `waker`: readable when
    /// another thread has an event. `frame_limit`: maximum frame of a peer, in bytes.
    pub(crate) fn new(
        hello: Hello,
        listener: TcpListener,
        waker: UnixStream,
        nic_mbit: Option<f64>,
        frame_limit: usize,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        waker.set_nonblocking(true)?;
        Ok(Self {
            hello,
            machine: String::new(),
            listener,
            waker: Some(waker),
            links: BTreeMap::new(),
            peers: BTreeMap::new(),
            ready: VecDeque::new(),
            nic: nic_mbit.map(Nic::new),
            start: Instant::now(),
            serial: 0,
            frame_limit,
        })
    }

    /// Sets the locations of this process and its peers.
    pub(crate) fn places(&mut self, machine: &str, places: &BTreeMap<Id, Place>) {
        machine.clone_into(&mut self.machine);
        for (id, place) in places {
            let peer = self.peers.entry(*id).or_default();
            if peer.place != *place {
                peer.place = place.clone();
                peer.retry = None; // a new address is tried at once
            }
        }
    }

    /// Keeps a connection to this peer from now on.
    pub(crate) fn want(&mut self, id: Id) {
        self.peers.entry(id).or_default().wanted = true;
    }

    pub(crate) fn is_up(&self, id: Id) -> bool {
        id == self.hello.id || self.peers.get(&id).is_some_and(|peer| peer.known.is_some())
    }

    /// Sends now, or when the peer is connected. Messages to this process itself are delivered too.
    pub(crate) fn send(&mut self, to: Id, message: Message) {
        self.transfer(to, message, 0);
    }

    /// Tells the chief that the job can't continue, with the job's exit code.
    pub(crate) fn fail(&mut self, chief: Id, code: u8, reason: String) {
        self.send(chief, Message::Failed { code, reason });
    }

    /// Sends as if the payload had `bytes` bytes, if an interface is emulated and the peer is on another machine.
    pub(crate) fn transfer(&mut self, to: Id, message: Message, bytes: u64) {
        if to == self.hello.id {
            self.ready.push_back((0, Event::Message(to, message)));
            return;
        }
        let peer = self.peers.entry(to).or_default();
        let Some(link) = peer.known else {
            peer.waiting.push((message, bytes));
            return;
        };
        // The message was for a process that is gone. A replacement must not get it.
        if peer.link != Some(link) {
            return;
        }
        let remote = peer.place.machine != self.machine;
        match &mut self.nic {
            Some(nic) if bytes > 0 && remote => {
                let (transfer, sent) = nic.send(self.start.elapsed().as_nanos() as u64, link, bytes, &message);
                self.write(link, &Message::Begin { transfer, bytes }.encode(0));
                sent.into_iter().for_each(|(link, frame)| self.write(link, &frame));
            }
            _ => self.write(link, &message.encode(0)),
        }
    }

    /// Waits for the next event, at most until `due`.
    ///
    /// # Errors
    ///
    /// `poll` or the listener failed.
    pub(crate) fn next(&mut self, due: Option<Instant>) -> io::Result<Event> {
        loop {
            self.run_nic();
            if let Some(event) = self.pop() {
                return Ok(event);
            }
            if due.is_some_and(|due| due <= Instant::now()) {
                self.wait(Some(Instant::now()))?; // check the sockets at least once, however busy the timers are
                return Ok(self.pop().unwrap_or(Event::Due));
            }
            self.dial();
            let until = [due, self.timer()].into_iter().flatten().min();
            self.wait(until)?;
        }
    }

    /// Delivers an event. From now on the caller knows of it.
    fn pop(&mut self) -> Option<Event> {
        let (key, event) = self.ready.pop_front()?;
        match event {
            Event::Up(id) => {
                let peer = self.peers.entry(id).or_default();
                peer.known = Some(key);
                for (message, bytes) in std::mem::take(&mut peer.waiting) {
                    self.transfer(id, message, bytes);
                }
            }
            Event::Down(id) => self.peers.entry(id).or_default().known = None,
            _ => {}
        }
        Some(event)
    }

    /// Continues to send and read until everything is sent and, if requested, all peers have closed their connections.
    /// At most until `until`.
    pub(crate) fn linger(&mut self, until: Instant, for_peers: bool) -> io::Result<()> {
        self.peers.values_mut().for_each(|peer| peer.wanted = false);
        while Instant::now() < until
            && self.links.values().any(|link| link.pending() || (for_peers && link.peer().is_some()))
        {
            self.wait(Some(until))?;
            self.ready.clear();
        }
        Ok(())
    }

    /// The time of the next internal action.
    fn timer(&self) -> Option<Instant> {
        let nic = self.nic.as_ref().and_then(Nic::due).map(|ns| self.start + Duration::from_nanos(ns));
        let links = self.links.values().filter_map(Link::deadline).min();
        let dialling = |id: &Id| self.links.values().any(|link| link.dialled == Some(*id));
        let lonely = self.peers.iter().filter(|(id, peer)| peer.wanted && peer.link.is_none() && !dialling(id));
        let retries = lonely.filter_map(|(_, peer)| peer.retry.map(|(at, _)| at)).min();
        [nic, links, retries].into_iter().flatten().min()
    }

    fn run_nic(&mut self) {
        let now = self.start.elapsed().as_nanos() as u64;
        let Some(nic) = &mut self.nic else { return };
        let (sent, landed) = nic.advance(now);
        sent.into_iter().for_each(|(link, frame)| self.write(link, &frame));
        self.hand_over(landed);
    }

    fn hand_over(&mut self, landed: Vec<Landed>) {
        for (key, message) in landed {
            if let Some(id) = self.links.get(&key).and_then(Link::peer) {
                self.ready.push_back((key, Event::Message(id, message)));
            }
        }
    }

    fn wait(&mut self, until: Option<Instant>) -> io::Result<()> {
        let keys: Vec<u64> = self.links.keys().copied().collect();
        let mut fds = vec![PollFd::new(&self.listener, PollFlags::IN)];
        for link in self.links.values() {
            let flags = match link.state {
                State::Connecting(_) => PollFlags::OUT,
                _ if link.pending() => PollFlags::IN | PollFlags::OUT,
                _ => PollFlags::IN,
            };
            fds.push(PollFd::new(&link.stream, flags));
        }
        if let Some(waker) = &self.waker {
            fds.push(PollFd::new(waker, PollFlags::IN));
        }
        let timeout = until.map(|until| {
            let left = until.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let flags: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        drop(fds);
        for (key, flags) in keys.iter().zip(&flags[1..]) {
            if !flags.is_empty() {
                self.serve(*key, *flags);
            }
        }
        if flags[0].contains(PollFlags::IN) {
            self.accept()?;
        }
        if self.waker.is_some() && !flags[flags.len() - 1].is_empty() {
            self.drain_waker();
        }
        let now = Instant::now();
        for key in keys {
            if self.links.get(&key).and_then(Link::deadline).is_some_and(|deadline| deadline <= now) {
                self.close(key, "no greeting in time");
            }
        }
        Ok(())
    }

    fn drain_waker(&mut self) {
        let mut buffer = [0; 64];
        let Some(waker) = &mut self.waker else { return };
        match waker.read(&mut buffer) {
            Ok(0) => {
                self.waker = None;
                self.ready.push_back((0, Event::Abandoned));
            }
            Ok(_) => self.ready.push_back((0, Event::Woken)),
            Err(_) => {}
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            match self.listener.accept() {
                Ok((stream, from)) => {
                    let strangers: Vec<u64> =
                        self.links.iter().filter(|(_, link)| link.peer().is_none()).map(|(key, _)| *key).collect();
                    if strangers.len() >= STRANGERS {
                        self.close(strangers[0], "too many connections without a greeting");
                    }
                    match Link::accepted(stream, Instant::now() + GREETING) {
                        Ok(link) => _ = self.add(link),
                        Err(error) => debug!(%from, %error, "connection refused"),
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // The caller has disconnected, or there were no descriptors for a moment. The listener continues.
                Err(error) => {
                    debug!(%error, "accept");
                    return Ok(());
                }
            }
        }
    }

    fn add(&mut self, link: Link) -> u64 {
        self.serial += 1;
        self.links.insert(self.serial, link);
        self.serial
    }

    fn dial(&mut self) {
        let now = Instant::now();
        let me = self.hello.id;
        let due: Vec<Id> = self
            .peers
            .iter()
            .filter(|(id, peer)| **id < me && peer.wanted && peer.link.is_none() && !peer.place.address.is_empty())
            .filter(|(_, peer)| peer.retry.is_none_or(|(at, _)| at <= now))
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            if self.links.values().any(|link| link.dialled == Some(id)) {
                continue;
            }
            let Some(peer) = self.peers.get_mut(&id) else { continue };
            let pause = peer.retry.map_or(FIRST_RETRY, |(_, pause)| (pause * 2).min(LAST_RETRY));
            peer.retry = Some((now + pause, pause));
            let address = peer.place.address.clone();
            let link = address
                .to_socket_addrs()
                .and_then(|mut all| all.next().ok_or_else(|| ErrorKind::AddrNotAvailable.into()))
                .and_then(|address| Link::dial(id, address, now + GREETING));
            match link {
                Ok(link) => {
                    self.add(link);
                }
                Err(error) => debug!(peer = %id, address, %error, "can't connect"),
            }
        }
    }

    fn serve(&mut self, key: u64, flags: PollFlags) {
        let hello = Message::Hello(self.hello.clone()).encode(0);
        let Some(link) = self.links.get_mut(&key) else { return };
        let result = match link.state {
            State::Connecting(deadline) => link.connected().and_then(|()| {
                link.state = State::Greeting(deadline);
                link.push(&hello)
            }),
            _ if flags.contains(PollFlags::OUT) => link.flush(),
            _ => Ok(()),
        };
        if let Err(error) = result {
            return self.close(key, &error.to_string());
        }
        if !flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            return;
        }
        let more = link.fill();
        loop {
            let Some(link) = self.links.get_mut(&key) else { return };
            let limit = if link.peer().is_some() { self.frame_limit } else { HELLO_LIMIT };
            match link.frame(limit).and_then(|frame| frame.map(|frame| Message::decode(&frame)).transpose()) {
                Ok(Some((transfer, message))) => self.receive(key, transfer, message),
                Ok(None) => break,
                Err(_) => return self.close(key, "not our protocol"),
            }
        }
        match more {
            Ok(true) => {}
            Ok(false) => self.close(key, "closed by peer"),
            Err(error) => self.close(key, &error.to_string()),
        }
    }

    fn receive(&mut self, key: u64, transfer: u32, message: Message) {
        let Some(link) = self.links.get(&key) else { return };
        match (link.peer(), message) {
            (None, Message::Hello(hello)) => self.greet(key, &hello),
            (None, _) => self.close(key, "no greeting"),
            (Some(_), Message::Hello(_)) => self.close(key, "a second greeting"),
            (Some(_), Message::Begin { transfer, bytes }) => {
                let now = self.start.elapsed().as_nanos() as u64;
                if let Some(nic) = &mut self.nic {
                    let landed = nic.begin(now, key, transfer, bytes);
                    self.hand_over(landed);
                }
            }
            (Some(id), message) => {
                let message = match &mut self.nic {
                    Some(nic) => nic.arrive(key, transfer, message),
                    None => Some(message),
                };
                self.ready.extend(message.map(|message| (key, Event::Message(id, message))));
            }
        }
    }

    fn greet(&mut self, key: u64, hello: &Hello) {
        let Some(link) = self.links.get_mut(&key) else { return };
        let ours = &self.hello;
        let same = (hello.job, hello.incarnation, hello.proof) == (ours.job, ours.incarnation, ours.proof);
        // The greater id connects. So a caller's id is greater than ours, and a called peer must be the expected one.
        if !same || hello.id == ours.id || link.dialled.map_or(hello.id < ours.id, |wanted| wanted != hello.id) {
            return self.close(key, "a stranger");
        }
        link.state = State::Open(hello.id);
        if link.dialled.is_none() && link.push(&Message::Hello(ours.clone()).encode(0)).is_err() {
            return self.close(key, "hung up");
        }
        // The same slot again means that its process is new, or lost its connection. The old connection is dead.
        if let Some(old) = self.peers.get(&hello.id).and_then(|peer| peer.link) {
            self.close(old, "replaced by a new connection");
        }
        let peer = self.peers.entry(hello.id).or_default();
        peer.link = Some(key);
        peer.retry = None;
        self.ready.push_back((key, Event::Up(hello.id)));
    }

    fn write(&mut self, key: u64, bytes: &[u8]) {
        let Some(link) = self.links.get_mut(&key) else { return };
        if let Err(error) = link.push(bytes) {
            self.close(key, &error.to_string());
        }
    }

    fn close(&mut self, key: u64, why: &str) {
        let Some(link) = self.links.remove(&key) else { return };
        if let Some(nic) = &mut self.nic {
            nic.forget(key);
        }
        let Some(id) = link.peer() else {
            debug!(why, dialled = ?link.dialled, "connection dropped before its greeting");
            return;
        };
        debug!(peer = %id, why, "connection lost");
        if let Some(peer) = self.peers.get_mut(&id)
            && peer.link == Some(key)
        {
            peer.link = None;
            self.ready.push_back((key, Event::Down(id)));
        }
    }
}

//! A feed for one job: serves a given assignment, and stores the job's reports.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{net::TcpListener, sync::watch, task::JoinHandle};
use tokio_stream::{
    Stream, StreamExt,
    wrappers::{TcpListenerStream, WatchStream},
};
use tonic::{Request, Response, Status, transport::Server};
use trainmaster_proto::v1::{
    AcknowledgeReply, AcknowledgeRequest, Assignment, AssignmentPhase, Peer, Progress, ReportReply, ReportRequest,
    Slot, SlotRole, WatchRequest, Work,
    feed_server::{Feed, FeedServer},
};

use crate::id::Id;

/// Assignment and reports of the job. Clones share them.
#[derive(Clone)]
pub struct Board {
    inner: Arc<Mutex<Inner>>,
    changed: Arc<watch::Sender<u64>>,
}

#[derive(Default)]
struct Inner {
    /// Without peers.
    assignment: Assignment,
    slots: BTreeMap<Id, String>,
    addresses: BTreeMap<Id, (u64, String)>,
    serial: u64,
    reports: Vec<Progress>,
    last_seq: BTreeMap<Id, u64>,
    acknowledgements: Vec<AcknowledgeRequest>,
}

impl Board {
    /// A job in its first incarnation, with these slots on these (emulated) servers.
    pub fn new(job: u64, slots: BTreeMap<Id, String>) -> Self {
        let assignment = Assignment { job, phase: AssignmentPhase::Run.into(), ..Assignment::default() };
        let inner = Inner { assignment, slots, ..Inner::default() };
        Self { inner: Arc::new(Mutex::new(inner)), changed: Arc::new(watch::Sender::new(0)) }
    }

    /// Serves the feed until the handle is aborted. Needs a Tokio runtime.
    pub async fn serve(&self, address: SocketAddr) -> std::io::Result<(SocketAddr, JoinHandle<()>)> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let service = FeedServer::new(self.clone());
        let serving = Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener));
        let handle = tokio::spawn(async move {
            if let Err(error) = serving.await {
                tracing::warn!(%error, "the local feed ended");
            }
        });
        Ok((address, handle))
    }

    /// Sets the slots of a new revision.
    pub fn revise(&self, slots: BTreeMap<Id, String>) {
        let mut inner = self.inner();
        inner.assignment.revision += 1;
        inner.slots = slots;
        self.announce(inner);
    }

    /// Sets other work for the same slots in a new revision.
    pub fn direct(&self, work: Vec<Work>) {
        let mut inner = self.inner();
        inner.assignment.revision += 1;
        inner.assignment.work = work;
        self.announce(inner);
    }

    /// Starts a new incarnation with these slots. The processes of the old one save a checkpoint and end.
    pub fn restart(&self, slots: BTreeMap<Id, String>) {
        let mut inner = self.inner();
        inner.assignment.incarnation += 1;
        inner.assignment.revision = 0;
        inner.assignment.phase = AssignmentPhase::Run.into();
        inner.slots = slots;
        inner.addresses.clear();
        inner.last_seq.clear();
        self.announce(inner);
    }

    /// Stops all processes, within a time in milliseconds.
    pub fn stop(&self, grace_ms: i64) {
        let mut inner = self.inner();
        inner.assignment.phase = AssignmentPhase::Stop.into();
        inner.assignment.grace_ms = grace_ms;
        self.announce(inner);
    }

    /// Address of a slot, while it watches.
    pub fn address(&self, id: Id) -> Option<String> {
        self.inner().addresses.get(&id).map(|(_, address)| address.clone())
    }

    /// All progress so far, without repetitions.
    pub fn reports(&self) -> Vec<Progress> {
        self.inner().reports.clone()
    }

    /// All acknowledgements so far.
    pub fn acknowledgements(&self) -> Vec<AcknowledgeRequest> {
        self.inner().acknowledgements.clone()
    }

    /// Notifies of each report, acknowledgement, or other change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announce(&self, inner: MutexGuard<'_, Inner>) {
        drop(inner);
        self.changed.send_modify(|version| *version += 1);
    }

    fn assignment(&self, to: Id) -> Assignment {
        let inner = self.inner();
        let peer = |(id, server): (&Id, &String)| Peer {
            slot: Some(Slot {
                role: SlotRole::from(id.role).into(),
                index: id.index,
                server: server.clone(),
                ..Slot::default()
            }),
            address: inner.addresses.get(id).map(|(_, address)| address.clone()).unwrap_or_default(),
        };
        Assignment {
            peers: inner.slots.iter().map(peer).collect(),
            last_seq: inner.last_seq.get(&to).copied().unwrap_or_default(),
            ..inner.assignment.clone()
        }
    }
}

/// Removes a slot's address when its stream ends.
struct Registration {
    board: Board,
    id: Id,
    serial: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut inner = self.board.inner();
        if inner.addresses.get(&self.id).is_some_and(|(serial, _)| *serial == self.serial) {
            inner.addresses.remove(&self.id);
            self.board.announce(inner);
        }
    }
}

#[tonic::async_trait]
impl Feed for Board {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<Assignment, Status>> + Send>>;

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let request = request.into_inner();
        let id = Id { role: request.role().into(), index: request.index };
        let mut inner = self.inner();
        inner.serial += 1;
        let registration = Registration { board: self.clone(), id, serial: inner.serial };
        if request.incarnation == inner.assignment.incarnation {
            let serial = inner.serial;
            inner.addresses.insert(id, (serial, request.address));
        }
        self.announce(inner);
        let board = self.clone();
        let mut last = None;
        let stream = WatchStream::new(self.changed.subscribe()).filter_map(move |_| {
            let _alive = &registration;
            let assignment = board.assignment(id);
            // A change of `last_seq` alone isn't sent.
            let same = |old: &Assignment| Assignment { last_seq: assignment.last_seq, ..old.clone() } == assignment;
            let news = !last.as_ref().is_some_and(same);
            last = Some(assignment.clone());
            news.then_some(Ok(assignment))
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn report(&self, request: Request<ReportRequest>) -> Result<Response<ReportReply>, Status> {
        let request = request.into_inner();
        let id = Id { role: request.role().into(), index: request.index };
        let mut inner = self.inner();
        if request.incarnation != inner.assignment.incarnation {
            let reason = format!("incarnation is {} now", inner.assignment.incarnation);
            return Ok(Response::new(ReportReply { accepted: false, reason }));
        }
        let mut accepted = true;
        for progress in request.progress {
            if inner.last_seq.get(&id).is_some_and(|last| *last >= progress.seq) {
                accepted = false;
            } else {
                inner.last_seq.insert(id, progress.seq);
                inner.reports.push(progress);
            }
        }
        self.announce(inner);
        let reason = if accepted { String::new() } else { "seen already".to_owned() };
        Ok(Response::new(ReportReply { accepted, reason }))
    }

    async fn acknowledge(&self, request: Request<AcknowledgeRequest>) -> Result<Response<AcknowledgeReply>, Status> {
        let mut inner = self.inner();
        inner.acknowledgements.push(request.into_inner());
        self.announce(inner);
        Ok(Response::new(AcknowledgeReply {}))
    }
}

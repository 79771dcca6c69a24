//! One connection to an identified peer.

use std::{
    io::ErrorKind,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    net::{TcpStream, tcp::OwnedWriteHalf},
    runtime::Handle,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinHandle,
    time::timeout,
};

use super::door::Door;
use crate::id::Id;

pub(super) struct Link {
    pub(super) peer: Id,
    socket: Arc<Socket>,
    frames: UnboundedSender<Vec<u8>>,
    writer: JoinHandle<()>,
    reader: JoinHandle<()>,
}

struct Socket {
    half: OwnedWriteHalf,
    /// Number of frames that the writer still has.
    behind: AtomicUsize,
}

impl Link {
    /// `key`: the connection's number in arrivals.
    pub(super) fn new(io: &Handle, door: &Arc<Door>, key: u64, peer: Id, stream: TcpStream) -> Self {
        let (reading, half) = stream.into_split();
        let (frames, queue) = unbounded_channel();
        let socket = Arc::new(Socket { half, behind: AtomicUsize::new(0) });
        let writer = io.spawn(Arc::clone(&socket).write(queue));
        let reader = io.spawn(Arc::clone(door).read(key, reading));
        Self { peer, socket, frames, writer, reader }
    }

    /// Sends a frame without waiting: what the socket takes here, which is the fastest, and the rest on the I/O thread.
    pub(super) fn push(&self, frame: &[u8]) {
        let idle = self.socket.behind.load(Ordering::Acquire) == 0;
        let sent = if idle { self.socket.half.try_write(frame).unwrap_or(0) } else { 0 };
        if sent < frame.len() {
            self.socket.behind.fetch_add(1, Ordering::AcqRel);
            let _ = self.frames.send(frame[sent..].to_vec()); // fails if the connection broke, which its reader reports
        }
    }

    pub(super) fn abort(self) {
        self.writer.abort();
        self.reader.abort();
    }
}

impl Socket {
    async fn write(self: Arc<Self>, mut queue: UnboundedReceiver<Vec<u8>>) {
        while let Some(frame) = queue.recv().await {
            let mut rest = &frame[..];
            while !rest.is_empty() && self.half.writable().await.is_ok() {
                match self.half.try_write(rest) {
                    Ok(sent) => rest = &rest[sent..],
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(_) => return,
                }
            }
            self.behind.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Hangs up when everything is sent and, if requested, all peers have closed their connections. Waits at most for
/// `limit`.
pub(super) async fn hang_up(links: Vec<Link>, limit: Duration, for_peers: bool) {
    // Without senders of frames, the writers end.
    let tasks: Vec<_> = links.into_iter().map(|link| (link.writer, link.reader)).collect();
    let all = async {
        for (writer, reader) in tasks {
            let _ = writer.await;
            if for_peers {
                let _ = reader.await;
            }
        }
    };
    let _ = timeout(limit, all).await;
}

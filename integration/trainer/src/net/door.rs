//! Connections between processes of the job, from the call to the last frame. All of it runs on the I/O thread.

use std::{
    collections::VecDeque,
    io::{self, ErrorKind},
    sync::{Arc, mpsc},
    time::Duration,
};

use rustix::net::sockopt;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf},
    task::AbortHandle,
    time::{sleep, timeout},
};
use tracing::debug;

use crate::{
    feed::News,
    id::Id,
    wire::{HELLO_LIMIT, Hello, Malformed, Message},
};

const GREETING: Duration = Duration::from_secs(10);
const STRANGERS: usize = 64;
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(1);

/// What the I/O thread hands over. Connections have numbers.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// A connection to an identified peer.
    Open(Id, TcpStream),
    /// A message, and 0 or the emulated transfer whose payload it is.
    Message(u64, u32, Message),
    /// The end of a connection, and its reason.
    Closed(u64, String),
    News(News),
}

pub(super) struct Door {
    pub(super) hello: Hello,
    pub(super) inbox: mpsc::Sender<Arrival>,
    /// Maximum frame of an identified peer, in bytes.
    pub(super) frame_limit: usize,
}

impl Door {
    fn tell(&self, arrival: Arrival) {
        let _ = self.inbox.send(arrival); // fails when this process ends
    }

    /// Calls a peer until it answers.
    pub(super) async fn dial(self: Arc<Self>, to: Id, address: String) {
        let mut pause = FIRST_RETRY;
        loop {
            let call = async {
                let mut stream = TcpStream::connect(&address).await?;
                stream.write_all(&Message::Hello(self.hello.clone()).encode(0)).await?;
                let answered = self.meet(&mut stream).await?;
                if answered == to { Ok(stream) } else { Err(stranger()) }
            };
            match timeout(GREETING, call).await.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())) {
                Ok(stream) => return self.tell(Arrival::Open(to, stream)),
                Err(error) => debug!(peer = %to, address, %error, "can't connect"),
            }
            sleep(pause).await;
            pause = (pause * 2).min(LAST_RETRY);
        }
    }

    /// Answers callers. Only so many at a time can be unidentified.
    pub(super) async fn accept(self: Arc<Self>, listener: TcpListener) {
        let mut strangers: VecDeque<AbortHandle> = VecDeque::new();
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    strangers.retain(|task| !task.is_finished());
                    if strangers.len() >= STRANGERS
                        && let Some(oldest) = strangers.pop_front()
                    {
                        oldest.abort();
                    }
                    strangers.push_back(tokio::spawn(Arc::clone(&self).answer(stream)).abort_handle());
                }
                // The caller has hung up, or there were no descriptors for a moment.
                Err(error) => {
                    debug!(%error, "accept");
                    sleep(FIRST_RETRY).await;
                }
            }
        }
    }

    async fn answer(self: Arc<Self>, mut stream: TcpStream) {
        let greeting = async {
            let caller = self.meet(&mut stream).await?;
            // The greater id connects.
            if caller <= self.hello.id {
                return Err(stranger());
            }
            stream.write_all(&Message::Hello(self.hello.clone()).encode(0)).await?;
            Ok(caller)
        };
        match timeout(GREETING, greeting).await.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())) {
            Ok(caller) => self.tell(Arrival::Open(caller, stream)),
            Err(error) => debug!(%error, "connection dropped before its greeting"),
        }
    }

    /// Reads the other side's greeting.
    async fn meet(&self, stream: &mut TcpStream) -> io::Result<Id> {
        stream.set_nodelay(true)?;
        // A machine that disappears sends no reset, so the kernel has to detect it.
        sockopt::set_socket_keepalive(&*stream, true)?;
        sockopt::set_tcp_keepidle(&*stream, Duration::from_secs(10))?;
        sockopt::set_tcp_keepintvl(&*stream, Duration::from_secs(5))?;
        sockopt::set_tcp_keepcnt(&*stream, 4)?;
        sockopt::set_tcp_user_timeout(&*stream, 30_000)?;
        let ours = &self.hello;
        match frame(stream, HELLO_LIMIT).await? {
            (_, Message::Hello(hello))
                if (hello.job, hello.incarnation, hello.proof) == (ours.job, ours.incarnation, ours.proof) =>
            {
                Ok(hello.id)
            }
            _ => Err(stranger()),
        }
    }

    /// Hands over the messages of a connection until it ends.
    pub(super) async fn read(self: Arc<Self>, key: u64, stream: OwnedReadHalf) {
        let mut stream = BufReader::new(stream);
        let why = loop {
            match frame(&mut stream, self.frame_limit).await {
                Ok((_, Message::Hello(_))) => break "a second greeting".to_owned(),
                Ok((transfer, message)) => self.tell(Arrival::Message(key, transfer, message)),
                Err(error) => break error.to_string(),
            }
        };
        self.tell(Arrival::Closed(key, why));
    }
}

fn stranger() -> io::Error {
    io::Error::other("a stranger")
}

/// The next message, with its transfer.
async fn frame(stream: &mut (impl AsyncRead + Unpin), limit: usize) -> io::Result<(u32, Message)> {
    let length = stream.read_u32_le().await? as usize;
    if length > limit {
        return Err(io::Error::other(Malformed));
    }
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame).await?;
    Message::decode(&frame).map_err(io::Error::other)
}

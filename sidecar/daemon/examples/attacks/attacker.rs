//! The attacker: its tokens and connections.

use std::{
    env,
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use axum::{body::Bytes, http::uri::PathAndQuery};
use prost::bytes::{Buf as _, BufMut as _};
use serde::{Deserialize, Serialize};
use tokio::{
    task::JoinSet,
    time::{Duration, sleep},
};
use tonic::{
    Request, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    transport::Channel,
};

use crate::{kinds::ATTACKS, support::Clients};

pub(crate) type Attacking = Pin<Box<dyn Future<Output = ()> + Send>>;

/// State of an attacker.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Attacker {
    pub(crate) url: String,
    /// Tokens, if the daemon requires them: of its job, for submission, for reading, and a manager's own.
    pub(crate) own: Option<String>,
    pub(crate) submit: Option<String>,
    pub(crate) read: Option<String>,
    pub(crate) manager: Option<String>,
    pub(crate) job: u64,
    pub(crate) incarnation: u32,
    /// Number of successful and of refused calls.
    #[serde(skip)]
    pub(crate) counts: Arc<[AtomicU64; 2]>,
}

impl Attacker {
    pub(crate) async fn clients(&self, token: &Option<String>) -> Clients {
        Clients::at(&self.url, token.as_deref()).await
    }

    pub(crate) fn count<T, E>(&self, answer: std::result::Result<T, E>) {
        self.counts[usize::from(answer.is_err())].fetch_add(1, Ordering::Relaxed);
    }

    /// Several tasks of the same kind at a time.
    pub(crate) async fn crowd(self, many: usize, what: fn(Self, usize) -> Attacking) {
        let mut crowd = JoinSet::new();
        for number in 0..many {
            crowd.spawn(what(self.clone(), number));
        }
        crowd.join_all().await;
    }

    /// Calls with an encoded message.
    pub(crate) async fn send(
        &self,
        grpc: &mut Grpc<Channel>,
        path: &'static str,
        token: &Option<String>,
        message: Bytes,
    ) {
        let mut request = Request::new(message);
        if let Some(token) = token {
            request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().expect("a token"));
        }
        if grpc.ready().await.is_ok() {
            self.count(grpc.unary(request, PathAndQuery::from_static(path), Written).await);
        }
    }

    pub(crate) async fn channel(&self) -> Grpc<Channel> {
        let channel = Channel::from_shared(self.url.clone()).expect("a URL").connect().await.expect("it listens");
        Grpc::new(channel)
    }
}

/// A codec for encoded messages.
#[derive(Default)]
struct Written;

impl Codec for Written {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Written {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> std::result::Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Written {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> std::result::Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// Waits until the attack begins, after its messages are prepared.
pub(crate) async fn ready() {
    let left =
        env::var("ATTACK_AT").ok().and_then(|at| at.parse().ok()).map(|at| UNIX_EPOCH + Duration::from_millis(at));
    let left = left.and_then(|at: SystemTime| at.duration_since(SystemTime::now()).ok());
    sleep(left.unwrap_or_default()).await;
}

/// The attacker's process: attacks until the end of its standard input, and prints the numbers of successful and of
/// refused calls.
pub(crate) async fn attacker(number: usize) -> Result<()> {
    let attacker: Attacker =
        serde_json::from_str(io::stdin().lines().next().context("nobody said whom to attack")??.as_str())?;
    let attacking = tokio::spawn(ATTACKS[number].1(attacker.clone()));
    tokio::task::spawn_blocking(|| io::copy(&mut io::stdin(), &mut io::sink())).await??;
    attacking.abort();
    let [done, refused] = &*attacker.counts;
    println!("{} {}", done.load(Ordering::Relaxed), refused.load(Ordering::Relaxed));
    Ok(())
}

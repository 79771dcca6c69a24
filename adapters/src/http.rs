//! HTTP requests to a manager, whose answers have a largest size.

use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Request, StatusCode,
    body::Bytes,
    client::conn::http1::{SendRequest, handshake},
};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Why there is no answer.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A connection for requests one after the other. Dropping it closes it.
#[derive(Debug)]
pub(crate) struct Connection(SendRequest<Full<Bytes>>);

impl Connection {
    /// Connects to `host:port`. The caller limits the time of this and of [`send`](Self::send).
    ///
    /// # Errors
    /// Nothing listens there, or it doesn't speak HTTP.
    pub(crate) async fn open(address: &str) -> Result<Self, Failure> {
        let (sender, rest) = handshake(TokioIo::new(TcpStream::connect(address).await?)).await?;
        // The task ends when the sender is dropped.
        tokio::spawn(rest);
        Ok(Self(sender))
    }

    /// Sends a request. Returns the answer's status and body. It doesn't follow redirections: what the request has is
    /// for this server only.
    ///
    /// # Errors
    /// The connection is closed, or the body has more than `most` bytes.
    pub(crate) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
        most: usize,
    ) -> Result<(StatusCode, Bytes), Failure> {
        self.0.ready().await?;
        let answer = self.0.send_request(request).await?;
        let status = answer.status();
        Ok((status, Limited::new(answer.into_body(), most).collect().await?.to_bytes()))
    }
}

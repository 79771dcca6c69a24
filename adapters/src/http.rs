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

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    #[tokio::test]
    async fn an_answer_that_never_ends_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
            stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
            // Until the client hangs up.
            while stream.write_all(b"a\r\n0123456789\r\n").await.is_ok() {}
        });
        let request = Request::get("/").body(Full::default()).unwrap();
        let error = Connection::open(&address).await.unwrap().send(request, 1 << 20).await.unwrap_err();
        assert!(error.to_string().contains("length limit exceeded"), "{error}");
    }
}

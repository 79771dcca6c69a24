//! A connection with a time limit for its greeting.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// Length of the longest greeting, HTTP/2's. After it, the limits of the protocols apply.
const GREETING: usize = 24;

/// A stream with a time limit for its first bytes.
pub(crate) struct Patient<S> {
    stream: S,
    /// Until the greeting is complete: the time limit, and the number of received bytes.
    greeting: Option<(Pin<Box<Sleep>>, usize)>,
}

impl<S> Patient<S> {
    pub(crate) fn new(stream: S, patience: Duration) -> Self {
        Self { stream, greeting: Some((Box::pin(sleep(patience)), 0)) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let result = Pin::new(&mut this.stream).poll_read(context, buffer);
        let Some((patience, bytes)) = &mut this.greeting else { return result };
        if result.is_pending() {
            ready!(patience.as_mut().poll(context));
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "no request came")));
        }
        *bytes += buffer.filled().len() - before;
        if *bytes >= GREETING {
            this.greeting = None;
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn silent_connections_are_closed_and_greeted_ones_are_not() {
        let patience = Duration::from_millis(30);
        let (silent, _other) = duplex(64);
        let error = Patient::new(silent, patience).read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);

        let (stream, mut other) = duplex(64);
        let mut stream = Patient::new(stream, patience);
        other.write_all(&[1; GREETING]).await.unwrap();
        let mut greeting = [0; GREETING];
        stream.read_exact(&mut greeting).await.unwrap();
        sleep(patience * 2).await;
        other.write_all(&[2]).await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), 2);
    }
}

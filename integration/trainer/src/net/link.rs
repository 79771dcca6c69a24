//! One nonblocking TCP connection with its buffers.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt},
};

use crate::{id::Id, wire::Malformed};

/// Maximum bytes that are read from one connection before the others.
const GULP: usize = 1 << 18;

#[derive(Debug)]
pub(crate) enum State {
    /// Connecting; the other side hasn't answered yet.
    Connecting(Instant),
    /// Connected; the other side hasn't identified itself.
    Greeting(Instant),
    Open(Id),
}

pub(crate) struct Link {
    pub(crate) stream: TcpStream,
    pub(crate) state: State,
    /// The called peer. None for an incoming connection.
    pub(crate) dialled: Option<Id>,
    input: Vec<u8>,
    output: Vec<u8>,
    written: usize,
}

impl Link {
    pub(crate) fn accepted(stream: TcpStream, deadline: Instant) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Self::new(stream, State::Greeting(deadline), None)
    }

    /// Starts to connect without waiting.
    pub(crate) fn dial(to: Id, address: SocketAddr, deadline: Instant) -> io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        match connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        Self::new(TcpStream::from(socket), State::Connecting(deadline), Some(to))
    }

    fn new(stream: TcpStream, state: State, dialled: Option<Id>) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        // A machine that disappears sends no reset, so the kernel has to detect it.
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, Duration::from_secs(10))?;
        sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(5))?;
        sockopt::set_tcp_keepcnt(&stream, 4)?;
        sockopt::set_tcp_user_timeout(&stream, 30_000)?;
        Ok(Self { stream, state, dialled, input: Vec::new(), output: Vec::new(), written: 0 })
    }

    pub(crate) fn peer(&self) -> Option<Id> {
        if let State::Open(id) = self.state { Some(id) } else { None }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Connecting(at) | State::Greeting(at) => Some(at),
            State::Open(_) => None,
        }
    }

    /// The result of connecting.
    pub(crate) fn connected(&self) -> io::Result<()> {
        Ok(sockopt::socket_error(&self.stream)??)
    }

    /// Reads the available bytes. False at the end of the stream.
    pub(crate) fn fill(&mut self) -> io::Result<bool> {
        let mut buffer = [0; 16 << 10];
        let mut taken = 0;
        while taken < GULP {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(false),
                Ok(count) => {
                    self.input.extend_from_slice(&buffer[..count]);
                    taken += count;
                    if count < buffer.len() {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// The next complete frame without its length.
    pub(crate) fn frame(&mut self, limit: usize) -> Result<Option<Vec<u8>>, Malformed> {
        let Some((head, rest)) = self.input.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*head) as usize;
        if length > limit {
            return Err(Malformed);
        }
        if rest.len() < length {
            return Ok(None);
        }
        let frame = rest[..length].to_vec();
        self.input.drain(..4 + length);
        Ok(Some(frame))
    }

    /// Sends bytes, and buffers what can't be sent at once.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.output.extend_from_slice(bytes);
        self.flush()
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while self.pending() {
            match self.stream.write(&self.output[self.written..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.written = 0;
        Ok(())
    }

    pub(crate) fn pending(&self) -> bool {
        self.written < self.output.len()
    }
}

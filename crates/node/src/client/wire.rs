//! One connection to a store: requests go out, replies come in, and every wait has an end.
//!
//! The connection knows whether both sides agree on the next bytes. A call that fails or is dropped half-way
//! leaves it "out of step", and from then on it refuses every call.

use std::io;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use super::Error;
use rallypoint_protocol::{Dialect, Op, Request, encode_request};

/// Buffer for expected bytes. A length that a server announces is never allocated before the bytes arrive.
const READ_AHEAD: usize = 256 * 1024;

/// The moment when `limit` is over, from now. A limit beyond the clock's range never ends.
#[expect(clippy::arithmetic_side_effects, reason = "the clock of a computer counts further than a year")]
pub(crate) fn deadline_in(limit: Duration) -> Instant {
    Instant::now() + limit.min(Duration::from_hours(365 * 24))
}

#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
    input: BytesMut,
    output: Vec<u8>,
    max_reply: usize,
    /// The current call, for messages.
    op: Op,
    started: Instant,
    deadline: Instant,
    /// Bytes that the rest of its reply may have.
    budget: usize,
    in_step: bool,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream, max_reply: usize) -> Self {
        let now = Instant::now();
        Self {
            stream,
            input: BytesMut::new(),
            output: Vec::new(),
            max_reply,
            op: Op::Validate,
            started: now,
            deadline: now,
            budget: max_reply,
            in_step: true,
        }
    }

    /// Begins a call: sends `request`, which must be answered within `limit`.
    pub(crate) async fn send(&mut self, request: &Request<'_>, limit: Duration) -> Result<(), Error> {
        if !std::mem::replace(&mut self.in_step, false) {
            return Err(Error::OutOfStep);
        }
        self.op = request.op();
        self.budget = self.max_reply;
        self.allow(limit);
        self.put(request).await
    }

    /// Sends another request of the current call.
    pub(crate) async fn put(&mut self, request: &Request<'_>) -> Result<(), Error> {
        self.output.clear();
        // Dialect C has every operation.
        let _known = encode_request(request, Dialect::C, &mut self.output);
        let sent = timeout_at(self.deadline, self.stream.write_all(&self.output)).await;
        if self.output.capacity() > READ_AHEAD {
            self.output = Vec::new();
        }
        match sent {
            Ok(done) => done.map_err(|error| self.broken(error)),
            Err(_) => Err(self.late()),
        }
    }

    /// Gives the current call `limit` from now on.
    pub(crate) fn allow(&mut self, limit: Duration) {
        self.started = Instant::now();
        self.deadline = deadline_in(limit);
    }

    /// Ends a call whose reply was read completely.
    pub(crate) fn done(&mut self) {
        self.in_step = true;
    }

    pub(crate) async fn byte(&mut self) -> Result<u8, Error> {
        self.fill(1).await?;
        Ok(self.input.get_u8())
    }

    pub(crate) async fn nonce(&mut self) -> Result<u32, Error> {
        self.fill(4).await?;
        Ok(self.input.get_u32_le())
    }

    pub(crate) async fn number(&mut self) -> Result<i64, Error> {
        self.fill(8).await?;
        Ok(self.input.get_i64_le())
    }

    /// A count or a length.
    pub(crate) async fn count(&mut self) -> Result<u64, Error> {
        let number = self.number().await?;
        u64::try_from(number).map_err(|_| self.garbage(format!("{number} is no count")))
    }

    pub(crate) async fn string(&mut self) -> Result<Bytes, Error> {
        self.fill(8).await?;
        let len = self.input.get_u64_le();
        let too_large = Error::TooLarge { op: self.op, limit: self.max_reply };
        let Some(len) = usize::try_from(len).ok().filter(|&len| len <= self.budget) else {
            return Err(too_large);
        };
        // The length field counts, too: a reply of very many empty strings is also large.
        self.budget = self.budget.saturating_sub(len).saturating_sub(8);
        self.fill(len).await?;
        Ok(self.input.split_to(len).freeze())
    }

    /// A list of `count` strings.
    pub(crate) async fn strings(&mut self, count: u64) -> Result<Vec<Bytes>, Error> {
        let Some(count) = usize::try_from(count).ok().filter(|&count| count <= self.budget / 8) else {
            return Err(Error::TooLarge { op: self.op, limit: self.max_reply });
        };
        let mut strings = Vec::with_capacity(count.min(1024));
        for _ in 0..count {
            strings.push(self.string().await?);
        }
        Ok(strings)
    }

    /// An answer of one byte, 0 or 1.
    pub(crate) async fn code(&mut self) -> Result<bool, Error> {
        match self.byte().await? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.garbage(format!("the byte {other:#04x} is no code"))),
        }
    }

    /// The error for an impossible reply.
    pub(crate) fn garbage(&self, what: String) -> Error {
        Error::Garbage { op: self.op, what }
    }

    /// Reads until `len` bytes are there. Cancel-safe: bytes that were read are kept.
    async fn fill(&mut self, len: usize) -> Result<(), Error> {
        while self.input.len() < len {
            self.input.reserve(len.saturating_sub(self.input.len()).clamp(64, READ_AHEAD));
            match timeout_at(self.deadline, self.stream.read_buf(&mut self.input)).await {
                Ok(Ok(0)) => return Err(Error::Closed { op: self.op }),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(self.broken(error)),
                Err(_) => return Err(self.late()),
            }
        }
        Ok(())
    }

    fn late(&self) -> Error {
        Error::NoAnswer { op: self.op, after: self.deadline.saturating_duration_since(self.started) }
    }

    fn broken(&self, source: io::Error) -> Error {
        match source.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Error::Closed { op: self.op },
            _ => Error::Io { op: self.op, source },
        }
    }
}

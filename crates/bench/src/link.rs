//! One connection of the load generator: frames out, replies in. Unlike `rallypoint_node::client` it sets no
//! timer for each call and allocates nothing for each request. A section as a whole has a time limit.
#![expect(clippy::arithmetic_side_effects, reason = "numbers of the load test itself")]

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{OnceCell, Semaphore};
use tokio_util::either::Either;

use super::frame::{Answer, Frame};
use super::uplink::{Rank, Uplink};
use super::{Error, Plan, Relayed, Tally};
use rallypoint_node::client::own_nonce;
use rallypoint_protocol::{Op, Request, encode_hello};

/// Buffer for replies. Larger replies are read through it in pieces.
const READ_BUFFER: usize = 1024;

/// Buffer for the replies of a connection that reads large ones.
const LARGE_BUFFER: usize = 256 * 1024;

/// How links are opened: the target, the source addresses, how many at once, and the first bytes.
#[derive(Debug)]
pub(crate) struct Dialer {
    target: SocketAddr,
    sources: Vec<IpAddr>,
    /// More simultaneous attempts than the server's accept queue holds would only wait for retransmissions.
    turnstile: Semaphore,
    /// The question after the hello: PING, or NUM_KEYS if the server has no PING (PyTorch before 2.5).
    question: Arc<Frame>,
    hello: Vec<u8>,
    relayed: Option<Relayed>,
    /// The number of connections.
    links: usize,
    /// The links of `Relayed::Links`; the first rank of each link opens it.
    uplinks: Vec<OnceCell<Arc<Uplink>>>,
}

impl Dialer {
    /// `pings` says whether the server has PING.
    pub(crate) fn new(plan: &Plan, at_once: usize, pings: bool) -> Self {
        let question = if pings { Request::Ping { nonce: own_nonce() } } else { Request::NumKeys };
        let question = Frame::of(&question);
        let mut hello = Vec::new();
        encode_hello(&mut hello);
        hello.extend_from_slice(&question.bytes);
        let turnstile = Semaphore::new(at_once.max(1));
        let uplinks = match plan.relayed {
            Some(Relayed::Links { .. }) => plan.connections_made(),
            _ => 0,
        };
        Self {
            target: plan.target,
            sources: plan.sources.clone(),
            turnstile,
            question: Arc::new(question),
            hello,
            relayed: plan.relayed.clone(),
            links: plan.links(),
            uplinks: std::iter::repeat_with(OnceCell::new).take(uplinks).collect(),
        }
    }

    /// A dialer for a port that is not a store: it sends no hello, and ranks of a link share one connection.
    pub(crate) fn silent(plan: &Plan, at_once: usize) -> Self {
        Self { hello: Vec::new(), relayed: None, ..Self::new(plan, at_once, true) }
    }

    /// The link of a connection; a direct connection has its own number. One thread serves a link and all its
    /// ranks.
    pub(crate) fn link_of(&self, number: usize) -> usize {
        match self.relayed {
            Some(Relayed::Links { per_link, .. }) => number / per_link,
            _ => number,
        }
    }

    /// The cheapest request that every server of this kind answers.
    pub(crate) fn question(&self) -> &Arc<Frame> {
        &self.question
    }

    /// Connects, sends the hello and waits for the first answer. Records this as `connect`, without the wait
    /// for its turn.
    pub(crate) async fn open(&self, number: usize, tally: &Arc<Tally>) -> Result<Link, Error> {
        let _turn = self.turnstile.acquire().await;
        let started = Instant::now();
        let stream =
            self.connect(number, tally).await.map_err(|source| Error::connect(self.target, source))?;
        let mut link = Link { number, stream, input: BytesMut::new(), tally: Arc::clone(tally) };
        if !self.hello.is_empty() {
            // Send one segment: PyTorch's libuv server closes the connection if the hello comes in two parts.
            link.write(&self.hello, Op::Validate).await?;
            tally.sent(&[Op::Validate]);
            tally.sent(&self.question.ops);
            link.take_answers(&self.question).await?;
        }
        tally.took("connect", started.elapsed());
        Ok(link)
    }

    async fn connect(&self, number: usize, tally: &Arc<Tally>) -> io::Result<Stream> {
        match &self.relayed {
            None => self.connect_to(self.target, number).await.map(Either::Left),
            Some(Relayed::Relays(relays)) => {
                // As on real nodes, neighbours share a relay.
                let nth = number.saturating_mul(relays.len()).checked_div(self.links).unwrap_or(0);
                let relay = relays[nth.min(relays.len().saturating_sub(1))];
                self.connect_to(relay, number).await.map(Either::Left)
            }
            Some(Relayed::Links { admin, url, .. }) => {
                let at = self.link_of(number);
                let uplink = self.uplinks[at]
                    .get_or_try_init(|| async {
                        Uplink::open(url, self.connect_to(*admin, at).await?, at, tally).await
                    })
                    .await?;
                uplink.rank().map(Either::Right)
            }
        }
    }

    async fn connect_to(&self, target: SocketAddr, number: usize) -> io::Result<TcpStream> {
        let stream = match number.checked_rem(self.sources.len()).and_then(|nth| self.sources.get(nth)) {
            None => TcpStream::connect(target).await?,
            Some(&source) => {
                let socket = match source {
                    IpAddr::V4(_) => TcpSocket::new_v4()?,
                    IpAddr::V6(_) => TcpSocket::new_v6()?,
                };
                // Otherwise, ports that closed connections still hold would count as in use.
                socket.set_reuseaddr(true)?;
                socket.bind(SocketAddr::new(source, 0))?;
                socket.connect(target).await?
            }
        };
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// The transport of a connection: its own socket, or a session of a link.
type Stream = Either<TcpStream, Rank>;

/// An open connection. It counts requests when they are sent.
#[derive(Debug)]
pub(crate) struct Link {
    /// Its number in the fleet, from 0.
    pub(super) number: usize,
    stream: Stream,
    input: BytesMut,
    pub(super) tally: Arc<Tally>,
}

impl Link {
    /// Sends a frame.
    pub(crate) async fn send(&mut self, frame: &Frame) -> Result<(), Error> {
        let op = frame.ops.first().copied().unwrap_or(Op::Ping);
        self.write(&frame.bytes, op).await?;
        self.tally.sent(&frame.ops);
        Ok(())
    }

    /// Sends one request that consists of several pieces.
    pub(crate) async fn send_pieces(&mut self, op: Op, pieces: &mut [IoSlice<'_>]) -> Result<(), Error> {
        let mut rest = pieces;
        while !rest.is_empty() {
            let sent = self.stream.write_vectored(rest).await.map_err(|error| Error::broken(op, error))?;
            IoSlice::advance_slices(&mut rest, sent);
        }
        self.tally.sent(&[op]);
        Ok(())
    }

    /// Sends a frame and takes its replies.
    pub(crate) async fn ask(&mut self, frame: &Frame) -> Result<(), Error> {
        self.send(frame).await?;
        self.take_answers(frame).await
    }

    /// Takes the replies to a frame.
    pub(crate) async fn take_answers(&mut self, frame: &Frame) -> Result<(), Error> {
        for &(op, answer) in &frame.answers {
            self.take(op, answer).await?;
        }
        Ok(())
    }

    /// Takes one reply and drops it. Fails if it does not fit the request. Returns the bytes of its values.
    pub(crate) async fn take(&mut self, op: Op, answer: Answer) -> Result<u64, Error> {
        match answer {
            Answer::Code => self.code(op).await.map(|_| 0),
            Answer::Nonce => {
                self.fill(4, op).await?;
                match self.input.get_u32_le() {
                    nonce if nonce == own_nonce() => Ok(0),
                    _ => Err(Error::Garbage { op }),
                }
            }
            Answer::Number => self.number(op).await.map(|_| 0),
            Answer::Value => self.skip_value(op).await,
            Answer::Values(count) => {
                // Read many small values with few calls.
                self.input.reserve(count.saturating_mul(64).min(LARGE_BUFFER));
                let mut bytes = 0;
                for _ in 0..count {
                    bytes = u64::saturating_add(bytes, self.skip_value(op).await?);
                }
                Ok(bytes)
            }
        }
    }

    /// A reply of one byte, 0 or 1.
    pub(crate) async fn code(&mut self, op: Op) -> Result<u8, Error> {
        self.fill(1, op).await?;
        match self.input.get_u8() {
            code @ (0 | 1) => Ok(code),
            _ => Err(Error::Garbage { op }),
        }
    }

    /// The 0 that ends a WAIT or BARRIER.
    pub(crate) async fn release(&mut self, op: Op) -> Result<(), Error> {
        match self.code(op).await? {
            0 => Ok(()),
            _ => Err(Error::Garbage { op }),
        }
    }

    /// A reply that is a number.
    pub(crate) async fn number(&mut self, op: Op) -> Result<i64, Error> {
        self.fill(8, op).await?;
        Ok(self.input.get_i64_le())
    }

    /// Takes a value into `value`, and replaces its contents.
    pub(crate) async fn value(&mut self, op: Op, value: &mut Vec<u8>) -> Result<(), Error> {
        let mut missing = self.value_len(op).await?;
        value.clear();
        let ready = missing.min(self.input.len());
        value.extend_from_slice(&self.input[..ready]);
        self.input.advance(ready);
        missing = missing.saturating_sub(ready);
        while missing > 0 {
            let mut rest = (&mut self.stream).take(missing as u64);
            match rest.read_buf(value).await {
                Ok(0) => return Err(Error::Closed { op }),
                Ok(read) => missing = missing.saturating_sub(read),
                Err(error) => return Err(Error::broken(op, error)),
            }
        }
        Ok(())
    }

    /// Closes the sending side, and returns when the server has closed its side, too.
    pub(crate) async fn leave(&mut self) -> Result<(), Error> {
        let op = Op::Wait;
        self.stream.shutdown().await.map_err(|error| Error::broken(op, error))?;
        match self.stream.read_u8().await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(()),
            Err(error) => Err(Error::broken(op, error)),
            Ok(_) => Err(Error::Garbage { op }),
        }
    }

    /// Sends a request that is not for a store, and takes its answer. `length` returns the answer's length
    /// once it is known.
    pub(crate) async fn exchange(
        &mut self,
        request: &[u8],
        length: impl Fn(&[u8]) -> io::Result<Option<usize>>,
    ) -> io::Result<BytesMut> {
        self.stream.write_all(request).await?;
        loop {
            if let Some(whole) = length(&self.input)?.filter(|whole| *whole <= self.input.len()) {
                return Ok(self.input.split_to(whole));
            }
            self.input.reserve(READ_BUFFER);
            if self.stream.read_buf(&mut self.input).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    async fn skip_value(&mut self, op: Op) -> Result<u64, Error> {
        let len = self.value_len(op).await?;
        let mut missing = len;
        while missing > 0 {
            if self.input.is_empty() {
                self.fill_some(missing.min(LARGE_BUFFER), op).await?;
            }
            let ready = missing.min(self.input.len());
            self.input.advance(ready);
            missing = missing.saturating_sub(ready);
        }
        Ok(len as u64)
    }

    async fn value_len(&mut self, op: Op) -> Result<usize, Error> {
        /// No server accepts a value as large as this.
        const LIMIT: usize = 1 << 30;
        self.fill(8, op).await?;
        let len = usize::try_from(self.input.get_u64_le()).ok();
        len.filter(|&len| len <= LIMIT).ok_or(Error::Garbage { op })
    }

    async fn write(&mut self, bytes: &[u8], op: Op) -> Result<(), Error> {
        self.stream.write_all(bytes).await.map_err(|error| Error::broken(op, error))
    }

    async fn fill(&mut self, len: usize, op: Op) -> Result<(), Error> {
        while self.input.len() < len {
            self.fill_some(len, op).await?;
        }
        Ok(())
    }

    /// Reads once, into the existing buffer if possible.
    async fn fill_some(&mut self, len: usize, op: Op) -> Result<(), Error> {
        self.input.reserve(len.max(READ_BUFFER));
        match self.stream.read_buf(&mut self.input).await {
            Ok(0) => Err(Error::Closed { op }),
            Ok(_) => Ok(()),
            Err(error) => Err(Error::broken(op, error)),
        }
    }
}

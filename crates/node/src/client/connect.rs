//! The way to a store, step by step: resolve, connect, hello, ping.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use super::wire::deadline_in;
use super::{Answerer, Endpoint, StepError};
use rallypoint_protocol::{Dialect, PROBE, Request, encode_hello, encode_request};

/// A stream on which a TCPStore answers.
#[derive(Debug)]
pub(crate) struct Greeted {
    pub(super) stream: TcpStream,
    /// Whether the server knows PING (PyTorch from 2.5 on).
    pub(super) pings: bool,
}

/// Asks the resolver for the addresses of an endpoint. At least one if it succeeds.
pub async fn resolve(endpoint: &Endpoint, limit: Duration) -> Result<Vec<SocketAddr>, StepError> {
    let host = endpoint.host();
    let Ok(found) = timeout(limit, tokio::net::lookup_host((host, endpoint.port()))).await else {
        return Err(StepError::ResolverSilent { host: host.into(), after: limit });
    };
    let unresolved = |reason: String| StepError::Unresolved { host: host.into(), reason };
    let found = found.map_err(|error| {
        let words = error.to_string();
        unresolved(words.rsplit_once(": ").map_or(words.clone(), |(_, reason)| reason.to_owned()))
    })?;
    let mut addrs: Vec<SocketAddr> = Vec::new();
    for addr in found {
        if !addrs.contains(&addr) {
            addrs.push(addr);
        }
    }
    if addrs.is_empty() { Err(unresolved("no address".into())) } else { Ok(addrs) }
}

/// The address from which this host reaches `addr`. Sends nothing.
pub fn source_towards(addr: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr =
        if addr.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(addr).ok()?;
    socket.local_addr().ok().map(|own| own.ip())
}

/// Opens a TCP connection.
pub async fn open(addr: SocketAddr, limit: Duration) -> Result<TcpStream, StepError> {
    let Ok(opened) = timeout(limit, TcpStream::connect(addr)).await else {
        return Err(StepError::Unreachable { addr, after: limit });
    };
    let stream = opened.map_err(|source| match source.kind() {
        io::ErrorKind::ConnectionRefused => StepError::Refused { addr },
        _ => StepError::Connect { addr, source },
    })?;
    // If a client tries a free port of its own host again and again, it may connect to itself.
    if stream.local_addr().is_ok_and(|own| own == addr) {
        return Err(StepError::Refused { addr });
    }
    stream.set_nodelay(true).map_err(|source| StepError::Connect { addr, source })?;
    Ok(stream)
}

/// Says hello to a store and makes sure that it answers, within `limit`.
///
/// Servers of PyTorch 2.2 to 2.4 close the connection on PING. After a close, a new connection asks for the
/// number of keys instead.
pub(crate) async fn greet(addr: SocketAddr, limit: Duration) -> Result<Greeted, StepError> {
    let (soon, deadline) = (deadline_in(limit.mul_f32(0.75)), deadline_in(limit));
    let own = own_nonce();
    let nonce = own.to_le_bytes();
    let mut probe = Probe::start(addr, &Request::Ping { nonce: own }, limit).await?;
    if probe.read(4, soon).await.is_err() {
        probe.nudge(nonce, deadline, limit).await?;
    }
    if probe.answer == nonce {
        return Ok(Greeted { stream: probe.stream, pings: true });
    }
    if !probe.answer.is_empty() {
        return Err(probe.foreign());
    }
    let left = deadline.saturating_duration_since(Instant::now()).max(LEAST);
    let mut probe = Probe::start(addr, &Request::NumKeys, left).await?;
    let silent = probe.read(8, deadline.max(deadline_in(LEAST))).await.is_err();
    match probe.answer[..] {
        // A count that no memory can hold is really the text of another protocol.
        [_, _, _, _, _, 0, 0, 0] => Ok(Greeted { stream: probe.stream, pings: false }),
        [] if silent => Err(StepError::Silent { addr, after: left }),
        [] => Err(StepError::Closed { addr }),
        _ => Err(probe.foreign()),
    }
}

/// The nonce of our pings: this process, which is none of a job.
pub fn own_nonce() -> u32 {
    std::process::id() | PROBE
}

/// The shortest time for the second attempt.
const LEAST: Duration = Duration::from_millis(100);

/// A PING that is also two line ends. A server that waits for a line then reveals itself.
const NUDGE: [u8; 4] = *b"\n\r\n\n";

struct Silent;

/// A connection that has sent a hello and one question.
struct Probe {
    addr: SocketAddr,
    stream: TcpStream,
    answer: Vec<u8>,
}

impl Probe {
    async fn start(addr: SocketAddr, question: &Request<'_>, limit: Duration) -> Result<Self, StepError> {
        let mut stream = open(addr, limit).await?;
        // Send one segment: PyTorch's libuv server closes the connection if the hello comes in two parts.
        let mut bytes = Vec::new();
        encode_hello(&mut bytes);
        let _known = encode_request(question, Dialect::C, &mut bytes);
        // If the peer has closed already, reading shows it.
        let _sent = stream.write_all(&bytes).await;
        Ok(Self { addr, stream, answer: Vec::new() })
    }

    /// Reads until at least `len` bytes are there, or the peer has closed.
    async fn read(&mut self, len: usize, deadline: Instant) -> Result<(), Silent> {
        while self.answer.len() < len {
            let mut chunk = [0; 64];
            match timeout_at(deadline, self.stream.read(&mut chunk)).await {
                Ok(Ok(0) | Err(_)) => break,
                Ok(Ok(n)) => self.answer.extend_from_slice(&chunk[..n]),
                Err(_) => return Err(Silent),
            }
        }
        Ok(())
    }

    /// Makes a silent peer answer. A slow store answers both pings; the second answer is then removed.
    async fn nudge(&mut self, nonce: [u8; 4], deadline: Instant, limit: Duration) -> Result<(), StepError> {
        let mut bytes = Vec::new();
        let nudge = Request::Ping { nonce: u32::from_le_bytes(NUDGE) };
        let _known = encode_request(&nudge, Dialect::C, &mut bytes);
        let _sent = self.stream.write_all(&bytes).await;
        let silent = self.read(8, deadline).await.is_err();
        if silent && (self.answer.is_empty() || self.answer == nonce) {
            return Err(StepError::Silent { addr: self.addr, after: limit });
        }
        if self.answer.len() == 8 && self.answer.ends_with(&NUDGE) {
            self.answer.truncate(4);
        }
        Ok(())
    }

    fn foreign(&self) -> StepError {
        StepError::Foreign { addr: self.addr, answerer: Answerer::recognize(&self.answer) }
    }
}

#[cfg(test)]
mod tests;

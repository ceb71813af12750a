//! The way to a store, step by step: resolve, connect, hello, ping.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use super::{Answerer, Endpoint, StepError};
use crate::protocol::{Dialect, Request, encode_hello, encode_request};

/// A stream that a TCPStore answers on.
#[derive(Debug)]
pub(super) struct Greeted {
    pub(super) stream: TcpStream,
    /// Whether the server knows PING (PyTorch from 2.5 on).
    pub(super) pings: bool,
}

/// Asks the resolver for the addresses of an endpoint. At least one if it succeeds.
pub async fn resolve(endpoint: &Endpoint, limit: Duration) -> Result<Vec<SocketAddr>, StepError> {
    let host = endpoint.host();
    let found = match timeout(limit, tokio::net::lookup_host((host, endpoint.port()))).await {
        Ok(found) => found,
        Err(_) => return Err(StepError::ResolverSilent { host: host.into(), after: limit }),
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

/// Opens a TCP connection.
pub async fn open(addr: SocketAddr, limit: Duration) -> Result<TcpStream, StepError> {
    let opened = match timeout(limit, TcpStream::connect(addr)).await {
        Ok(opened) => opened,
        Err(_) => return Err(StepError::Unreachable { addr, after: limit }),
    };
    let stream = opened.map_err(|source| match source.kind() {
        io::ErrorKind::ConnectionRefused => StepError::Refused { addr },
        _ => StepError::Connect { addr, source },
    })?;
    stream.set_nodelay(true).map_err(|source| StepError::Connect { addr, source })?;
    Ok(stream)
}

/// Says hello to a store and makes sure that it answers, within `limit`.
///
/// Servers of PyTorch 2.2 to 2.4 close on PING, so after a close the question is asked again in the form of a count of
/// keys, on a new connection.
pub(super) async fn greet(addr: SocketAddr, limit: Duration) -> Result<Greeted, StepError> {
    let started = Instant::now();
    let nonce = std::process::id();
    let ping = Request::Ping { nonce };
    match ask(addr, &ping, 4, limit).await? {
        Answer::Bytes(stream, answer) if answer == nonce.to_le_bytes() => {
            return Ok(Greeted { stream, pings: true });
        }
        Answer::Bytes(_, answer) => return Err(foreign(addr, &answer)),
        Answer::Closed => {}
    }
    let left = limit.saturating_sub(started.elapsed()).max(Duration::from_millis(100));
    match ask(addr, &Request::NumKeys, 8, left).await? {
        // More keys than memory can hold are the text of another protocol.
        Answer::Bytes(stream, answer) if answer[5..] == [0; 3] => Ok(Greeted { stream, pings: false }),
        Answer::Bytes(_, answer) => Err(foreign(addr, &answer)),
        Answer::Closed => Err(StepError::Closed { addr }),
    }
}

fn foreign(addr: SocketAddr, answer: &[u8]) -> StepError {
    StepError::Foreign { addr, answerer: Answerer::recognize(answer) }
}

enum Answer {
    /// Exactly as many bytes as asked for.
    Bytes(TcpStream, Vec<u8>),
    /// The server closed without a byte.
    Closed,
}

/// Connects, says hello, sends `request`, and reads an answer of `len` bytes.
async fn ask(addr: SocketAddr, request: &Request<'_>, len: usize, limit: Duration) -> Result<Answer, StepError> {
    let started = Instant::now();
    let mut stream = open(addr, limit).await?;
    let mut bytes = Vec::new();
    encode_hello(&mut bytes);
    let _known = encode_request(request, Dialect::C, &mut bytes);
    // In one segment: PyTorch's libuv server closes if it reads the hello in two parts.
    if stream.write_all(&bytes).await.is_err() {
        return Ok(Answer::Closed);
    }
    let nudge_after = started + limit.mul_f32(0.75);
    let mut answer = Vec::with_capacity(64);
    let mut silent = read_at_least(&mut stream, &mut answer, len, nudge_after).await.is_none();
    if silent {
        // Line-based servers wait for the end of a line; to a TCPStore these bytes are an unfinished ping.
        let _sent = stream.write_all(b"\r\n\r\n").await;
        let end = started + limit;
        silent = read_at_least(&mut stream, &mut answer, len, end).await.is_none();
    }
    match answer.len() {
        0 if silent => Err(StepError::Silent { addr, after: limit }),
        0 => Ok(Answer::Closed),
        // Nothing was asked that has a longer answer.
        n if n == len && !silent => Ok(Answer::Bytes(stream, answer)),
        _ => Err(foreign(addr, &answer)),
    }
}

/// Reads until `answer` has `len` bytes or the peer closes. `None` if neither happens in time.
async fn read_at_least(
    stream: &mut TcpStream,
    answer: &mut Vec<u8>,
    len: usize,
    deadline: Instant,
) -> Option<()> {
    while answer.len() < len {
        let mut chunk = [0; 64];
        match timeout_at(deadline, stream.read(&mut chunk)).await.ok()? {
            Ok(0) | Err(_) => break,
            Ok(n) => answer.extend_from_slice(&chunk[..n]),
        }
    }
    Some(())
}

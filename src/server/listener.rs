//! Listening sockets: binding, accepting, who may come in, and what became of those who did.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use dashmap::DashMap;
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use super::connection::{Connection, End};
use super::throttle::Throttle;
use super::watch::Watch;
use super::workers::Rota;
use crate::config::ServerConfig;
use crate::engine::{Engine, MemoryBudget};
use crate::ids::ConnId;

/// Connections the kernel may hold ready for us. It cuts this to `net.core.somaxconn`.
const BACKLOG: i32 = 65_535;
/// Below this many a start of some hundred ranks at once may meet refused connections.
pub(super) const ENOUGH_BACKLOG: i32 = 1024;
/// A dead host is noticed after this long without an answer.
const DEAD_AFTER: Duration = Duration::from_secs(20);

/// What became of a connection, as `rallypoint_connections_total` counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A client, or a bare connect that said nothing.
    Ok,
    /// Its first bytes were wrong.
    BadHandshake,
    /// Its first request did not become whole in time.
    HandshakeTimeout,
    /// Later bytes were wrong.
    ProtocolError,
    /// It went beyond a limit.
    Limit,
    /// Its address is not allowed.
    Denied,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 6] = [
        Self::Ok,
        Self::BadHandshake,
        Self::HandshakeTimeout,
        Self::ProtocolError,
        Self::Limit,
        Self::Denied,
    ];

    /// The metric's label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::BadHandshake => "bad_handshake",
            Self::HandshakeTimeout => "handshake_timeout",
            Self::ProtocolError => "protocol_error",
            Self::Limit => "limit",
            Self::Denied => "denied",
        }
    }
}

/// What all listeners share.
#[derive(Debug)]
pub(super) struct House {
    pub(super) config: ServerConfig,
    pub(super) budget: Arc<MemoryBudget>,
    pub(super) connections: AtomicUsize,
    pub(super) by_addr: DashMap<IpAddr, usize>,
    pub(super) throttle: Throttle,
    pub(super) watch: Arc<Watch>,
}

/// One listening port and everyone who came in through it.
#[derive(Debug)]
pub struct Door {
    house: Arc<House>,
    engine: Arc<Engine>,
    outcomes: [AtomicU64; Outcome::ALL.len()],
    /// `None` until the task is started.
    tasks: DashMap<ConnId, Option<AbortHandle>>,
}

impl Door {
    pub(super) fn new(house: Arc<House>, engine: Arc<Engine>) -> Arc<Self> {
        Arc::new(Self { house, engine, outcomes: Default::default(), tasks: DashMap::new() })
    }

    pub(super) fn config(&self) -> &ServerConfig {
        &self.house.config
    }

    pub(super) fn budget(&self) -> &Arc<MemoryBudget> {
        &self.house.budget
    }

    /// The store behind the door.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// How often each outcome was seen. A client that breaks the protocol later counts as `ok` too.
    pub fn outcomes(&self) -> impl Iterator<Item = (Outcome, u64)> {
        Outcome::ALL.into_iter().zip(&self.outcomes).map(|(outcome, count)| (outcome, count.load(Relaxed)))
    }

    pub(super) fn greeted(&self) {
        self.count(Outcome::Ok);
    }

    fn count(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].fetch_add(1, Relaxed);
    }

    /// Accepts until dropped. Errors (out of descriptors, say) are reported and outlived.
    pub(super) async fn accept(self: Arc<Self>, listener: TcpListener, rota: Arc<Rota>) {
        loop {
            // Leaving this thread's reactor costs two system calls a connection and lets any thread serve it.
            let accepted = listener.accept().await;
            match accepted.and_then(|(stream, peer)| Ok((stream.into_std()?, peer))) {
                Ok((stream, peer)) => self.admit(stream, peer, &rota),
                Err(error) if is_peers_fault(&error) => {}
                Err(error) => {
                    tracing::warn!(port = self.engine.port(), %error, "cannot accept connections; trying again");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn admit(self: &Arc<Self>, stream: std::net::TcpStream, peer: SocketAddr, rota: &Rota) {
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        if !self.config().allows(peer.ip()) {
            self.count(Outcome::Denied);
            self.warn(Outcome::Denied, peer, &"its address is not allowed (--allow)");
            return;
        }
        let Some(place) = Place::take(&self.house, peer.ip()) else {
            self.count(Outcome::Limit);
            let reason = "too many connections (--max-connections, --max-connections-per-address)";
            self.warn(Outcome::Limit, peer, &reason);
            return;
        };
        let session = self.engine.connect(peer);
        let id = session.id();
        let door = Arc::clone(self);
        self.tasks.insert(id, None);
        let task = rota.spawn(async move {
            let _place = place;
            match TcpStream::from_std(stream) {
                Ok(stream) => Connection::new(stream, peer, session, Arc::clone(&door)).run().await,
                Err(error) => tracing::warn!(%peer, %error, "cannot serve a connection"),
            }
            door.tasks.remove(&id);
        });
        // A task that is over already has removed its entry.
        if let Some(mut entry) = self.tasks.get_mut(&id) {
            *entry = Some(task);
        }
    }

    /// A connection has ended.
    pub(super) fn ended(&self, peer: SocketAddr, id: ConnId, outcome: Outcome, greeted: bool, end: &End) {
        if outcome != Outcome::Ok {
            self.count(outcome);
            let is_told = end
                .foreign()
                .is_some_and(|protocol| self.house.watch.foreign(self.engine.port(), peer.ip(), protocol));
            if !is_told {
                self.warn(outcome, peer, end);
            }
            return;
        }
        if !greeted {
            // A probe: it is normal and says nothing.
            self.count(Outcome::Ok);
        }
        tracing::debug!(store = self.engine.port(), %peer, conn.id = id.serial(), "{end}");
    }

    fn warn(&self, outcome: Outcome, peer: SocketAddr, reason: &dyn std::fmt::Display) {
        let Some(held_back) = self.house.throttle.pass(outcome as usize) else { return };
        let store = self.engine.port();
        tracing::warn!(store, %peer, outcome = outcome.name(), held_back, "closed a connection: {reason}");
    }

    /// Closes every connection.
    pub(super) fn close_all(&self) {
        self.tasks.iter().filter_map(|task| task.clone()).for_each(|task| task.abort());
        self.tasks.clear();
    }
}

/// A connection's place within the limits, free again when dropped.
struct Place {
    house: Arc<House>,
    addr: IpAddr,
}

impl Place {
    fn take(house: &Arc<House>, addr: IpAddr) -> Option<Self> {
        if house.connections.load(Relaxed) >= house.config.max_connections {
            return None;
        }
        let mut here = house.by_addr.entry(addr).or_default();
        if *here >= house.config.max_connections_per_address {
            return None;
        }
        *here += 1;
        house.connections.fetch_add(1, Relaxed);
        Some(Self { house: Arc::clone(house), addr })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.house.connections.fetch_sub(1, Relaxed);
        if let Some(mut here) = self.house.by_addr.get_mut(&self.addr) {
            *here -= 1;
        }
        self.house.by_addr.remove_if(&self.addr, |_, here| *here == 0);
    }
}

/// Errors of `accept` that concern only the connection that was to be accepted.
fn is_peers_fault(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

/// Binds a listening socket whose connections notice dead hosts. `[::]` takes IPv4 too, and is `0.0.0.0` where
/// IPv6 is off.
pub fn bind(addr: SocketAddr) -> io::Result<std::net::TcpListener> {
    match bind_exactly(addr) {
        Err(error) if addr.ip() == Ipv6Addr::UNSPECIFIED && is_no_ipv6(&error) => {
            bind_exactly((Ipv4Addr::UNSPECIFIED, addr.port()).into())
        }
        bound => bound,
    }
}

fn is_no_ipv6(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn bind_exactly(addr: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    if addr.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    // Accepted sockets inherit these, which saves their system calls.
    socket.set_tcp_nodelay(true)?;
    let keepalive =
        TcpKeepalive::new().with_time(DEAD_AFTER / 2).with_interval(DEAD_AFTER / 4).with_retries(2);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(DEAD_AFTER))?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

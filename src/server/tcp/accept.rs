//! Listening sockets: binding, accepting, who may come in, and what became of those who did.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use dashmap::DashMap;
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::connection::{Connection, End};
use super::places::Places;
use super::throttle::Throttle;
use super::workers::RoundRobin;
use crate::config::ServerConfig;
use crate::core::ids::ConnId;
use crate::server::engine::{Engine, MemoryBudget};
use crate::server::observe::Watch;

/// Connections the kernel may hold ready for us. It cuts this to `net.core.somaxconn`.
const BACKLOG: i32 = 65_535;
/// Below this many a start of some hundred ranks at once may meet refused connections.
pub(in crate::server) const ENOUGH_BACKLOG: i32 = 1024;
/// A dead host is noticed after this long without an answer.
pub(in crate::server) const DEAD_AFTER: Duration = Duration::from_secs(20);

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

/// The kinds of lines that peers could repeat: one for each outcome, and that nothing can be accepted.
pub(in crate::server) const KINDS_OF_LINES: usize = Outcome::ALL.len() + 1;
const CANNOT_ACCEPT: usize = Outcome::ALL.len();

/// What all listeners share.
#[derive(Debug)]
pub(in crate::server) struct Shared {
    pub(in crate::server) config: ServerConfig,
    pub(in crate::server) budget: Arc<MemoryBudget>,
    pub(in crate::server) places: Places,
    /// What the unfinished requests of each address may hold together.
    pub(in crate::server) shares: DashMap<IpAddr, Arc<MemoryBudget>>,
    pub(in crate::server) throttle: Throttle,
    pub(in crate::server) watch: Arc<Watch>,
}

/// One listening port and everyone who came in through it.
#[derive(Debug)]
pub struct StoreListener {
    shared: Arc<Shared>,
    engine: Arc<Engine>,
    outcomes: [AtomicU64; Outcome::ALL.len()],
    /// `None` until the task is started.
    tasks: DashMap<ConnId, Option<AbortHandle>>,
}

impl StoreListener {
    pub(in crate::server) fn new(shared: Arc<Shared>, engine: Arc<Engine>) -> Arc<Self> {
        Arc::new(Self { shared, engine, outcomes: Default::default(), tasks: DashMap::new() })
    }

    pub(in crate::server) fn config(&self) -> &ServerConfig {
        &self.shared.config
    }

    pub(in crate::server) fn budget(&self) -> &Arc<MemoryBudget> {
        &self.shared.budget
    }

    /// The store behind the listener.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// How often each outcome was seen. A client that breaks the protocol later counts as `ok` too.
    pub fn outcomes(&self) -> impl Iterator<Item = (Outcome, u64)> {
        Outcome::ALL.into_iter().zip(&self.outcomes).map(|(outcome, count)| (outcome, count.load(Relaxed)))
    }

    pub(in crate::server) fn greeted(&self) {
        self.count(Outcome::Ok);
    }

    fn count(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].fetch_add(1, Relaxed);
    }

    /// Accepts until dropped. Errors (out of descriptors, say) are reported and outlived.
    pub(in crate::server) async fn accept(
        self: Arc<Self>,
        listener: AsyncFd<Arc<std::net::TcpListener>>,
        round_robin: Arc<RoundRobin>,
    ) {
        loop {
            match listener.async_io(Interest::READABLE, |socket| accept_one(socket)).await {
                Ok((stream, peer)) => self.admit(stream, peer, round_robin.next()),
                Err(error) if is_peers_fault(&error) => {}
                // The socket was shut down because the store closes; this task is about to be ended.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => {
                    std::future::pending::<()>().await;
                }
                Err(error) => {
                    if let Some(held_back) = self.shared.throttle.pass(CANNOT_ACCEPT) {
                        let port = self.engine.port();
                        tracing::warn!(port, held_back, "cannot accept connections: {error}; trying again");
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Lets a connection in, to be served by `worker`.
    fn admit(self: &Arc<Self>, stream: std::net::TcpStream, peer: SocketAddr, worker: &Handle) {
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        if !self.config().allows(peer.ip()) {
            self.count(Outcome::Denied);
            self.warn(Outcome::Denied, peer, &"its address is not allowed (--allow)");
            return;
        }
        if !self.shared.places.take(peer.ip()) {
            self.count(Outcome::Limit);
            let reason = "too many connections (--max-connections, --max-connections-per-address, or the limit on open files)";
            self.warn(Outcome::Limit, peer, &reason);
            return;
        }
        let session = self.engine.connect(peer);
        let admission = Admission {
            listener: Arc::clone(self),
            share: self.shared.share_of(peer.ip()),
            peer,
            id: session.id(),
        };
        let registered = {
            let _reactor = worker.enter();
            TcpStream::from_std(stream)
        };
        match registered {
            Ok(stream) => {
                let id = admission.id;
                self.tasks.insert(id, None);
                let task = worker.spawn(Connection::new(stream, session, admission));
                // A task that is over already has removed its entry.
                if let Some(mut entry) = self.tasks.get_mut(&id) {
                    *entry = Some(task.abort_handle());
                }
            }
            Err(error) => tracing::warn!(%peer, %error, "cannot serve a connection"),
        }
    }

    /// A connection has ended.
    fn ended(&self, peer: SocketAddr, id: ConnId, outcome: Outcome, greeted: bool, end: &End) {
        if outcome != Outcome::Ok {
            self.count(outcome);
            let is_told = end
                .foreign()
                .is_some_and(|protocol| self.shared.watch.foreign(self.engine.port(), peer.ip(), protocol));
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
        let Some(held_back) = self.shared.throttle.pass(outcome as usize) else { return };
        let store = self.engine.port();
        tracing::warn!(store, %peer, outcome = outcome.name(), held_back, "closed a connection: {reason}");
    }

    /// Closes every connection.
    pub(in crate::server) fn close_all(&self) {
        self.tasks.iter().filter_map(|task| task.clone()).for_each(|task| task.abort());
        self.tasks.clear();
    }
}

impl Shared {
    /// What the unfinished requests of an address may hold: half of the memory, so that no address can take all of it.
    fn share_of(&self, addr: IpAddr) -> Arc<MemoryBudget> {
        let share = || MemoryBudget::new(self.budget.limit() / 2);
        Arc::clone(self.shares.entry(addr).or_insert_with(share).value())
    }

    fn leave(&self, addr: IpAddr) {
        if self.places.free(addr) {
            self.shares.remove(&addr);
        }
    }
}

/// What a connection holds of the listener it came in through: its place within the limits, and its entry among the
/// tasks. Dropping it gives both back.
pub(in crate::server) struct Admission {
    pub(in crate::server) listener: Arc<StoreListener>,
    /// Its address' share of the memory.
    pub(in crate::server) share: Arc<MemoryBudget>,
    peer: SocketAddr,
    id: ConnId,
}

impl Admission {
    /// Bytes of all unfinished requests: memory that will be given back soon.
    pub(in crate::server) fn unfinished(&self) -> usize {
        self.listener.shared.shares.iter().map(|share| share.used()).sum()
    }

    /// Says how it ended.
    pub(in crate::server) fn ended(&self, outcome: Outcome, greeted: bool, end: &End) {
        self.listener.ended(self.peer, self.id, outcome, greeted, end);
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.listener.tasks.remove(&self.id);
        self.listener.shared.leave(self.peer.ip());
    }
}

/// Takes a connection from the kernel's queue. It belongs to no reactor yet: moving it from one to another would cost
/// two system calls.
fn accept_one(listener: &std::net::TcpListener) -> io::Result<(std::net::TcpStream, SocketAddr)> {
    let (stream, peer) = acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?;
    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
    Ok((stream.into(), peer.ok_or(io::ErrorKind::ConnectionAborted)?))
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
    #[expect(clippy::arithmetic_side_effects, reason = "parts of a time are less than it")]
    let keepalive =
        TcpKeepalive::new().with_time(DEAD_AFTER / 2).with_interval(DEAD_AFTER / 4).with_retries(2);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(DEAD_AFTER))?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

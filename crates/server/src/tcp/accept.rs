//! Listening sockets: binding, accepting, and admitting connections.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::set_tcp_keepidle;
use rustix::net::{SocketFlags, acceptfrom_with};
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio::runtime::Handle;

use super::admission::{Admission, CANNOT_ACCEPT, Served, StoreListener};
use super::connection::{Connection, DEAD_AFTER};
use super::end::Outcome;
use super::workers::RoundRobin;
use crate::limits::somaxconn;

/// New connections that the kernel may queue for us. It reduces this number to `net.core.somaxconn`.
const BACKLOG: i32 = 65_535;
/// A peer that has been silent for this long is probed every second until [`DEAD_AFTER`].
const PROBED_AFTER: Duration = Duration::from_secs(10);
/// With fewer than this, some hundred ranks that start at once may see refused connections.
const ENOUGH_BACKLOG: i32 = 1024;

impl StoreListener {
    /// Accepts until it is dropped. Errors (such as a lack of descriptors) are logged, and accepting goes on.
    pub async fn accept(
        self: Arc<Self>,
        listener: AsyncFd<Arc<std::net::TcpListener>>,
        round_robin: Arc<RoundRobin>,
    ) {
        loop {
            match listener.async_io(Interest::READABLE, |socket| accept_one(socket)).await {
                Ok((stream, peer)) => self.admit(stream, peer, round_robin.next()),
                Err(error) if is_peers_fault(&error) => {}
                // The socket was shut down because the store closes; this task is about to be aborted.
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

    /// Admits a connection; `worker` then serves it.
    fn admit(self: &Arc<Self>, stream: std::net::TcpStream, peer: SocketAddr, worker: &Handle) {
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        if !self.config().allows(peer.ip()) {
            self.count(Outcome::Denied);
            self.warn(Outcome::Denied, peer, &"its address is not allowed (--allow)");
            return;
        }
        if !self.shared.places.take(peer.ip()) {
            self.count(Outcome::Limit);
            let reason = "too many connections (--max-connections, --max-connections-per-address, or the \
                          limit on open files)";
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
        spread_probes(&stream, admission.id.serial());
        let registered = {
            let _reactor = worker.enter();
            TcpStream::from_std(stream)
        };
        match registered {
            Ok(stream) => {
                let id = admission.id;
                self.served.insert(id, Served::Starting);
                let task = worker.spawn(Connection::new(stream, session, admission));
                // A task that has ended already has removed its entry.
                if let Some(mut entry) = self.served.get_mut(&id) {
                    *entry = Served::Task(task.abort_handle());
                }
            }
            Err(error) => tracing::warn!(%peer, %error, "cannot serve a connection"),
        }
    }
}

/// Takes a connection from the kernel's queue. The socket is in no reactor yet: moving it to another reactor
/// would cost two system calls.
fn accept_one(listener: &std::net::TcpListener) -> io::Result<(std::net::TcpStream, SocketAddr)> {
    let (stream, peer) = acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?;
    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
    Ok((stream.into(), peer.ok_or(io::ErrorKind::ConnectionAborted)?))
}

/// Moves the probe times of a connection away from most connections that came at the same moment. The kernel
/// drops packets beyond its queues (about a thousand on loopback and between pods). So thousands of silent
/// connections that are probed at one moment would count as dead.
fn spread_probes(stream: &std::net::TcpStream, number: u32) {
    const SPREAD: u32 = 5;
    let early = Duration::from_secs((number % SPREAD).into());
    // If this fails, the probes come at the same time as the others.
    let _ = set_tcp_keepidle(stream, PROBED_AFTER.saturating_sub(early));
}

/// Errors of `accept` that concern only the connection that was to be accepted.
fn is_peers_fault(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

/// Warns if the kernel will refuse connections that come in a burst.
pub fn warn_of_small_backlog() {
    if let Some(somaxconn) = somaxconn().filter(|&somaxconn| somaxconn < ENOUGH_BACKLOG) {
        tracing::warn!(
            somaxconn,
            "the kernel queues only {somaxconn} new connections; many ranks that start at once may be \
             refused: set net.core.somaxconn to {ENOUGH_BACKLOG} or more"
        );
    }
}

/// Binds a listening socket whose connections notice dead hosts. `[::]` also accepts IPv4, and falls back to
/// `0.0.0.0` if IPv6 is off.
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
    // Accepted sockets inherit these options, which saves system calls.
    socket.set_tcp_nodelay(true)?;
    // A probe that the kernel drops only delays the answer: each connection sends ten or more.
    let keepalive =
        TcpKeepalive::new().with_time(PROBED_AFTER).with_interval(Duration::from_secs(1)).with_retries(20);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(DEAD_AFTER))?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

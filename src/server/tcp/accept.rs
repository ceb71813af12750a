//! Listening sockets: binding, accepting, and letting connections in.

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
use crate::server::limits::somaxconn;

/// Connections that the kernel may hold ready for us. It cuts this to `net.core.somaxconn`.
const BACKLOG: i32 = 65_535;
/// A peer that has been silent for this long is probed, each second until [`DEAD_AFTER`].
const PROBED_AFTER: Duration = Duration::from_secs(10);
/// With fewer than this, some hundred ranks that start at once may see refused connections.
const ENOUGH_BACKLOG: i32 = 1024;

impl StoreListener {
    /// Accepts until it is dropped. Errors (such as no descriptor left) are logged, and accepting goes on.
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
                // A task that is over already has removed its entry.
                if let Some(mut entry) = self.served.get_mut(&id) {
                    *entry = Served::Task(task.abort_handle());
                }
            }
            Err(error) => tracing::warn!(%peer, %error, "cannot serve a connection"),
        }
    }
}

/// Takes a connection from the kernel's queue. It belongs to no reactor yet: moving it from one to another would cost
/// two system calls.
fn accept_one(listener: &std::net::TcpListener) -> io::Result<(std::net::TcpStream, SocketAddr)> {
    let (stream, peer) = acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?;
    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
    Ok((stream.into(), peer.ok_or(io::ErrorKind::ConnectionAborted)?))
}

/// Lets a connection be probed at another moment than most of those that came with it. The kernel drops what is more than
/// its queues hold, a thousand packets on loopback and between pods, so thousands that are silent and probed at one moment
/// would count as dead.
fn spread_probes(stream: &std::net::TcpStream, number: u32) {
    const SPREAD: u32 = 5;
    let early = Duration::from_secs((number % SPREAD).into());
    // Without it they are probed with the others.
    let _ = set_tcp_keepidle(stream, PROBED_AFTER.saturating_sub(early));
}

/// Errors of `accept` that concern only the connection that was to be accepted.
fn is_peers_fault(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

/// Says so if the kernel will refuse connections that come in a burst.
pub fn warn_of_small_backlog() {
    if let Some(somaxconn) = somaxconn().filter(|&somaxconn| somaxconn < ENOUGH_BACKLOG) {
        tracing::warn!(
            somaxconn,
            "the kernel queues only {somaxconn} new connections; many ranks that start at once may be refused: \
             set net.core.somaxconn to {ENOUGH_BACKLOG} or more"
        );
    }
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
    // What the kernel drops of one second's probes is only late: each connection has ten or more.
    let keepalive =
        TcpKeepalive::new().with_time(PROBED_AFTER).with_interval(Duration::from_secs(1)).with_retries(20);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(DEAD_AFTER))?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

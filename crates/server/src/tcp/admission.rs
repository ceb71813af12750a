//! A listener's record of its admitted connections: their number, their memory, and their outcomes.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::Waker;

use dashmap::DashMap;
use tokio::task::AbortHandle;

use super::end::{End, Outcome};
use super::foreign::{Foreign, ForeignClients};
use super::places::Places;
use super::throttle::Throttle;
use crate::config::ServerConfig;
use crate::engine::{Engine, MemoryBudget, Session};
use rallypoint_journal::SessionId;
use rallypoint_protocol::ids::ConnId;

/// The kinds of log lines that peers could repeat: one for each outcome, and one for "cannot accept".
pub const KINDS_OF_LINES: usize = Outcome::ALL.len() + 1;
pub(super) const CANNOT_ACCEPT: usize = Outcome::ALL.len();

/// What all listeners share.
#[derive(Debug)]
pub struct Shared {
    /// The settings.
    pub config: ServerConfig,
    /// The memory of all stores and large buffers.
    pub budget: Arc<MemoryBudget>,
    /// Places for direct clients.
    pub places: Places,
    /// The places of clients that come over links: these clients take no descriptor.
    pub linked: Places,
    /// The memory that the unfinished requests of each address may use together.
    pub shares: DashMap<IpAddr, Arc<MemoryBudget>>,
    /// Limits the lines of the log.
    pub throttle: Throttle,
    /// Peers that speak another protocol.
    pub foreign: ForeignClients,
}

/// One listening port and all connections that came in through it.
#[derive(Debug)]
pub struct StoreListener {
    pub(super) shared: Arc<Shared>,
    pub(super) engine: Arc<Engine>,
    outcomes: [AtomicU64; Outcome::ALL.len()],
    pub(super) served: DashMap<ConnId, Served>,
}

/// How a client is disconnected by force.
#[derive(Debug)]
pub(super) enum Served {
    /// Its task is not started yet.
    Starting,
    /// It has a task of its own.
    Task(AbortHandle),
    /// It came over a link: set the flag and wake the link's task.
    Linked(Arc<AtomicBool>, Waker),
}

impl StoreListener {
    /// The door of one store.
    pub fn new(shared: Arc<Shared>, engine: Arc<Engine>) -> Arc<Self> {
        Arc::new(Self { shared, engine, outcomes: Default::default(), served: DashMap::new() })
    }

    /// The settings of the server.
    pub fn config(&self) -> &ServerConfig {
        &self.shared.config
    }

    /// The memory of all stores.
    pub fn budget(&self) -> &Arc<MemoryBudget> {
        &self.shared.budget
    }

    /// The store behind the listener.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// How often each outcome was seen. A client that breaks the protocol after its first request also counts
    /// as `ok`.
    pub fn outcomes(&self) -> impl Iterator<Item = (Outcome, u64)> {
        Outcome::ALL.into_iter().zip(&self.outcomes).map(|(outcome, count)| (outcome, count.load(Relaxed)))
    }

    /// Notes a client whose first request was whole.
    pub fn greeted(&self) {
        self.count(Outcome::Ok);
    }

    pub(super) fn count(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].fetch_add(1, Relaxed);
    }

    /// Records the end of a connection.
    fn ended(&self, peer: SocketAddr, id: ConnId, outcome: Outcome, greeted: bool, end: &End) {
        if outcome != Outcome::Ok {
            self.count(outcome);
            let store = self.engine.port();
            let is_told = end.foreign().is_some_and(|protocol| {
                self.shared.foreign.came(Foreign::AtStore { port: store, peer: peer.ip(), protocol })
            });
            if !is_told {
                self.warn(outcome, peer, end);
            }
            return;
        }
        if !greeted {
            // A probe: it is normal, and not worth a log line.
            self.count(Outcome::Ok);
        }
        tracing::debug!(store = self.engine.port(), %peer, conn.id = id.serial(), "{end}");
    }

    pub(super) fn warn(&self, outcome: Outcome, peer: SocketAddr, reason: &dyn std::fmt::Display) {
        let Some(held_back) = self.shared.throttle.pass(outcome as usize) else { return };
        let store = self.engine.port();
        tracing::warn!(store, %peer, outcome = outcome.name(), held_back, "closed a connection: {reason}");
    }

    /// Admits a client that came over a link. To end it, `is_closed` is set and `waker` is woken. `None` if
    /// no place is left.
    pub fn admit_linked(
        self: &Arc<Self>,
        client: SocketAddr,
        id: SessionId,
        is_closed: Arc<AtomicBool>,
        waker: Waker,
    ) -> Option<(Session, Linked)> {
        if !self.shared.linked.take(client.ip()) {
            self.count(Outcome::Limit);
            self.warn(Outcome::Limit, client, &"too many clients over links");
            return None;
        }
        let session = self.engine.connect_linked(client, id);
        let linked = self.serve_linked(&session, client, is_closed, waker);
        Some((session, linked))
    }

    /// Continues a client that came over a link of the last server, if it is known and there is room.
    pub fn resume_linked(
        self: &Arc<Self>,
        client: SocketAddr,
        id: SessionId,
        is_closed: Arc<AtomicBool>,
        waker: Waker,
    ) -> Option<(Session, Linked)> {
        let session = self.engine.resume(id)?;
        if !self.shared.linked.take(client.ip()) {
            return None;
        }
        let linked = self.serve_linked(&session, client, is_closed, waker);
        Some((session, linked))
    }

    fn serve_linked(
        self: &Arc<Self>,
        session: &Session,
        client: SocketAddr,
        is_closed: Arc<AtomicBool>,
        waker: Waker,
    ) -> Linked {
        let linked = Linked { listener: Arc::clone(self), client, id: session.id() };
        self.served.insert(linked.id, Served::Linked(is_closed, waker));
        linked
    }

    /// Closes every connection.
    pub fn close_all(&self) {
        for served in &self.served {
            match served.value() {
                Served::Starting => {}
                Served::Task(task) => task.abort(),
                Served::Linked(is_closed, waker) => {
                    is_closed.store(true, Relaxed);
                    waker.wake_by_ref();
                }
            }
        }
        self.served.clear();
    }
}

impl Shared {
    /// The memory for the unfinished requests of one address: half of all, so that no address can take all of
    /// it.
    pub(super) fn share_of(&self, addr: IpAddr) -> Arc<MemoryBudget> {
        let share = || MemoryBudget::new(self.budget.limit() / 2);
        Arc::clone(self.shares.entry(addr).or_insert_with(share).value())
    }

    fn leave(&self, addr: IpAddr) {
        if self.places.free(addr) {
            self.shares.remove(&addr);
        }
    }
}

/// A connection's hold on its listener: its place within the limits, and its entry among the tasks. Dropping
/// this gives both back.
pub(crate) struct Admission {
    pub listener: Arc<StoreListener>,
    /// The memory share of its address.
    pub share: Arc<MemoryBudget>,
    pub(super) peer: SocketAddr,
    pub(super) id: ConnId,
}

impl Admission {
    /// Bytes of all unfinished requests: this memory will be given back soon.
    pub(crate) fn unfinished(&self) -> usize {
        self.listener.shared.shares.iter().map(|share| share.used()).sum()
    }

    /// Records how the connection ended.
    pub(crate) fn ended(&self, outcome: Outcome, greeted: bool, end: &End) {
        self.listener.ended(self.peer, self.id, outcome, greeted, end);
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.listener.served.remove(&self.id);
        self.listener.shared.leave(self.peer.ip());
    }
}

/// The listener's record of a client that came over a link. Dropping this gives its place back.
pub struct Linked {
    listener: Arc<StoreListener>,
    client: SocketAddr,
    id: ConnId,
}

impl Linked {
    /// The port of its store.
    pub fn port(&self) -> u16 {
        self.listener.engine().port()
    }

    /// The client's first request was good.
    pub fn greeted(&self) {
        self.listener.greeted();
    }

    /// Records how the client ended.
    pub fn ended(&self, greeted: bool, end: &End) {
        self.listener.ended(self.client, self.id, end.outcome(greeted), greeted, end);
    }
}

impl Drop for Linked {
    fn drop(&mut self) {
        self.listener.served.remove(&self.id);
        self.listener.shared.linked.free(self.client.ip());
    }
}

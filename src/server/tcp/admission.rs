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
use crate::core::ids::ConnId;
use crate::core::journal::SessionId;
use crate::server::engine::{Engine, MemoryBudget, Session};

/// The kinds of log lines that peers could repeat: one for each outcome, and one for "cannot accept".
pub(in crate::server) const KINDS_OF_LINES: usize = Outcome::ALL.len() + 1;
pub(super) const CANNOT_ACCEPT: usize = Outcome::ALL.len();

/// What all listeners share.
#[derive(Debug)]
pub(in crate::server) struct Shared {
    pub(in crate::server) config: ServerConfig,
    pub(in crate::server) budget: Arc<MemoryBudget>,
    pub(in crate::server) places: Places,
    /// The places of clients that come over links: these clients take no descriptor.
    pub(in crate::server) linked: Places,
    /// The memory that the unfinished requests of each address may use together.
    pub(in crate::server) shares: DashMap<IpAddr, Arc<MemoryBudget>>,
    pub(in crate::server) throttle: Throttle,
    pub(in crate::server) foreign: ForeignClients,
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
    pub(in crate::server) fn new(shared: Arc<Shared>, engine: Arc<Engine>) -> Arc<Self> {
        Arc::new(Self { shared, engine, outcomes: Default::default(), served: DashMap::new() })
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

    /// How often each outcome was seen. A client that breaks the protocol after its first request also counts
    /// as `ok`.
    pub fn outcomes(&self) -> impl Iterator<Item = (Outcome, u64)> {
        Outcome::ALL.into_iter().zip(&self.outcomes).map(|(outcome, count)| (outcome, count.load(Relaxed)))
    }

    pub(in crate::server) fn greeted(&self) {
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
    pub(in crate::server) fn admit_linked(
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
    pub(in crate::server) fn resume_linked(
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
    pub(in crate::server) fn close_all(&self) {
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
pub(in crate::server) struct Admission {
    pub(in crate::server) listener: Arc<StoreListener>,
    /// The memory share of its address.
    pub(in crate::server) share: Arc<MemoryBudget>,
    pub(super) peer: SocketAddr,
    pub(super) id: ConnId,
}

impl Admission {
    /// Bytes of all unfinished requests: this memory will be given back soon.
    pub(in crate::server) fn unfinished(&self) -> usize {
        self.listener.shared.shares.iter().map(|share| share.used()).sum()
    }

    /// Records how the connection ended.
    pub(in crate::server) fn ended(&self, outcome: Outcome, greeted: bool, end: &End) {
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
pub(in crate::server) struct Linked {
    listener: Arc<StoreListener>,
    client: SocketAddr,
    id: ConnId,
}

impl Linked {
    /// The port of its store.
    pub(in crate::server) fn port(&self) -> u16 {
        self.listener.engine().port()
    }

    /// The client's first request was good.
    pub(in crate::server) fn greeted(&self) {
        self.listener.greeted();
    }

    /// Records how the client ended.
    pub(in crate::server) fn ended(&self, greeted: bool, end: &End) {
        self.listener.ended(self.client, self.id, end.outcome(greeted), greeted, end);
    }
}

impl Drop for Linked {
    fn drop(&mut self) {
        self.listener.served.remove(&self.id);
        self.listener.shared.linked.free(self.client.ip());
    }
}

//! The TCPStore server: listeners, connections, the stores behind them, and their lifecycle. Holds no store rule.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss
    )
)]

pub mod admin;
mod deadline;
pub mod engine;
mod gate;
mod limits;
pub mod metrics;
mod observe;
mod rendezvous;
mod store_events;
mod stores;
mod supervise;
mod tcp;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use dashmap::DashMap;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::AbortHandle;

use crate::config::ServerConfig;
use crate::core::gate::{Announcement, PodRefusal, PodStanding};
use crate::core::ids::{RunId, Timestamp};
use crate::core::store::{Capacity, Store};
use crate::server::engine::{Clock, Engine, MemoryBudget, Reservation};
pub use deadline::deadline_in;
pub use gate::PodGates;
pub use limits::{DescriptorShares, default_max_memory, somaxconn};
use observe::Watch;
pub use observe::{Event as InsightEvent, MAX_SUBSCRIBERS};
pub use rendezvous::{Ended, Joined, Rounds, SharedRound};
pub use store_events::{EventCounts, Notices};
use stores::RunStores;
pub use stores::{NoStore, RunStore};
pub use supervise::keep_running;
pub use tcp::Throttle;
use tcp::Workers;
use tcp::{ENOUGH_BACKLOG, Shared};
pub use tcp::{Outcome, StoreListener, bind};
pub use tcp::{Place, Places};

/// How often idle runs and stores are looked after. Their deadlines are seconds and more.
const TICK: Duration = Duration::from_millis(250);

/// A listening store.
#[derive(Debug)]
struct OpenStore {
    listener: Arc<StoreListener>,
    socket: Arc<std::net::TcpListener>,
    accepting: AbortHandle,
}

impl OpenStore {
    /// Refuses newcomers from now on. The task ends a moment later; the port is free for another store at once.
    fn stop_accepting(&self) {
        self.accepting.abort();
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    clock: Clock,
    notices: Arc<Notices>,
    watch: Arc<Watch>,
    stores: DashMap<u16, OpenStore>,
    run_stores: RunStores,
    rounds: Rounds,
    gates: PodGates,
    workers: Workers,
    stopping: AtomicBool,
}

impl Server {
    /// Starts serving on sockets that are bound already, one store each.
    pub fn start(config: ServerConfig, sockets: Vec<std::net::TcpListener>) -> io::Result<Arc<Self>> {
        let workers = Workers::start("store", config.threads)?;
        let clock = Clock::start();
        let budget = MemoryBudget::new(config.max_memory);
        let watch = Arc::new(Watch::new(&config, clock.now(), budget.reservation()));
        let shared = Shared {
            watch: Arc::clone(&watch),
            budget,
            places: Places::new(config.max_connections, config.max_connections_per_address),
            shares: DashMap::new(),
            throttle: Throttle::new(tcp::KINDS_OF_LINES),
            config,
        };
        let server = Arc::new(Self {
            rounds: Rounds::new(&shared.config, clock, &shared.budget),
            run_stores: RunStores::new(&shared.config),
            gates: PodGates::new(&shared.config, shared.budget.reservation()),
            shared: Arc::new(shared),
            clock,
            notices: Arc::new(Notices::new()),
            watch,
            stores: DashMap::new(),
            workers,
            stopping: AtomicBool::new(false),
        });
        for socket in sockets {
            server.open(socket)?;
        }
        Ok(server)
    }

    /// Serves one more store on `socket`.
    fn open(&self, socket: std::net::TcpListener) -> io::Result<u16> {
        let port = socket.local_addr()?.port();
        let config = &self.shared.config;
        let capacity = Capacity { keys: config.max_keys, bytes: config.max_memory };
        let store = Store::new(capacity, config.stale_keys.clone());
        let engine = Engine::new(
            port,
            store,
            self.clock,
            Arc::clone(&self.shared.budget),
            Arc::clone(&self.notices) as _,
            config.insight.enabled,
        );
        let listener = StoreListener::new(Arc::clone(&self.shared), engine);
        let (accepting, round_robin) = (Arc::clone(&listener), Arc::clone(self.workers.round_robin()));
        let socket = Arc::new(socket);
        let bound = Arc::clone(&socket);
        let accepting = self.workers.round_robin().next().spawn(keep_running("accept", move || {
            let (accepting, round_robin) = (Arc::clone(&accepting), Arc::clone(&round_robin));
            let socket = Arc::clone(&bound);
            async move {
                #[expect(
                    deprecated,
                    reason = "unsound for a type whose descriptor can change; this one's cannot"
                )]
                match AsyncFd::with_interest(socket, Interest::READABLE) {
                    Ok(socket) => accepting.accept(socket, round_robin).await,
                    Err(error) => tracing::error!(port, %error, "cannot accept connections"),
                }
            }
        }));
        self.stores.insert(port, OpenStore { listener, socket, accepting: accepting.abort_handle() });
        Ok(port)
    }

    /// Closes a store by force: its listener, its connections, its keys.
    fn close(&self, port: u16) {
        if let Some((_, store)) = self.stores.remove(&port) {
            store.stop_accepting();
            store.listener.close_all();
        }
    }

    /// The settings.
    pub fn config(&self) -> &ServerConfig {
        &self.shared.config
    }

    /// What all stores may hold.
    pub fn budget(&self) -> &MemoryBudget {
        &self.shared.budget
    }

    /// Counts so much memory until it is dropped, if there is room or if it `must` be.
    pub fn reserve(&self, bytes: usize, must: bool) -> Option<Reservation> {
        let mut memory = self.shared.budget.reservation();
        if must {
            memory.set(bytes);
        }
        memory.resize(bytes).then_some(memory)
    }

    /// What happened in the stores, counted.
    pub fn event_counts(&self) -> EventCounts {
        self.notices.counts()
    }

    /// The stores, by port.
    pub fn listeners(&self) -> Vec<Arc<StoreListener>> {
        let mut listeners: Vec<_> = self.stores.iter().map(|store| Arc::clone(&store.listener)).collect();
        listeners.sort_by_key(|listener| listener.engine().port());
        listeners
    }

    /// The store on `port`.
    pub fn listener(&self, port: u16) -> Option<Arc<StoreListener>> {
        self.stores.get(&port).map(|store| Arc::clone(&store.listener))
    }

    /// Whether every listener is bound and new clients are welcome.
    pub fn is_ready(&self) -> bool {
        !self.is_stopping()
    }

    /// Whether the server is about to end: nothing new is begun.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    /// Open connections to all stores.
    pub fn connections(&self) -> usize {
        self.shared.places.taken()
    }

    /// The run's own store, opened if it is not there yet.
    pub fn store_for_run(&self, run_id: &str) -> Result<RunStore, NoStore> {
        self.with_port(|open| self.run_stores.get_or_open(run_id, self.clock.now(), open))
    }

    /// Opens a run's store. If no port is left, the store that has waited the longest for a first client makes room.
    fn with_port<T>(
        &self,
        get: impl Fn(&dyn Fn(u16) -> io::Result<()>) -> Result<T, NoStore>,
    ) -> Result<T, NoStore> {
        if self.is_stopping() {
            return Err(NoStore::Stopping);
        }
        let open = |port| self.open(bind(self.run_store_addr(port))?).map(|_| ());
        loop {
            match get(&open) {
                Err(NoStore::NoPortLeft { .. }) => {}
                done => return done,
            }
            let Some(port) = self.run_stores.take_never_used(self.clock.now(), |port| self.clients_of(port))
            else {
                return get(&open);
            };
            tracing::info!(
                store = port,
                "closed a run's store that nobody has used: another run needs its port"
            );
            self.close(port);
        }
    }

    /// Open connections to the store on `port`.
    fn clients_of(&self, port: u16) -> usize {
        self.listener(port).map_or(0, |listener| listener.engine().stats().connections)
    }

    /// The native rendezvous and barriers.
    pub fn rounds(&self) -> &Rounds {
        &self.rounds
    }

    /// Opens a fresh store for a round's workers.
    fn open_for_round(&self, run_id: &RunId, round: u64, held: bool) -> Result<u16, NoStore> {
        self.with_port(|open| self.run_stores.open_for_round(run_id, round, held, self.clock.now(), open))
    }

    /// Closes a round's store by force: the fence against its workers.
    fn close_of_round(&self, port: u16, run_id: &RunId, round: u64) {
        if self.run_stores.remove_of_round(port, run_id, round, self.clock.now()) {
            self.close(port);
        }
    }

    /// Leaves a round's store to its last clients.
    fn release_of_round(&self, port: u16, run_id: &RunId, round: u64) {
        self.run_stores.release(port, run_id, round, self.clock.now());
    }

    /// The run whose own store is on `port`.
    pub fn run_of(&self, port: u16) -> Option<String> {
        self.run_stores.run_of(port)
    }

    /// Takes the announcement of a pod.
    pub fn announce(&self, run_id: &str, said: &Announcement) -> Result<PodStanding, PodRefusal> {
        // Of a pod that waits already this has been asked.
        let waits = self.gates.look().is_waiting(run_id, said);
        let finished = if waits { None } else { self.with_insight(|insight, _| insight.finished(run_id)) };
        self.gates.announce(run_id, said, finished, self.clock.now())
    }

    /// Whether this server has no store to serve: `--only-on-index` names another pod.
    pub fn is_idle(&self) -> bool {
        self.shared.config.listen.is_empty()
    }

    /// The gates of the runs.
    pub fn gates(&self) -> &PodGates {
        &self.gates
    }

    /// The time of this server's life.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Run stores listen where the first store does.
    fn run_store_addr(&self, port: u16) -> SocketAddr {
        let first = self.shared.config.listen.first().map(SocketAddr::ip);
        SocketAddr::new(first.unwrap_or(std::net::Ipv6Addr::UNSPECIFIED.into()), port)
    }

    /// Empties the store on `port`; a run's own store is closed. `false` if there is none.
    pub fn reset(&self, port: u16) -> bool {
        let Some(listener) = self.listener(port) else { return false };
        listener.engine().reset();
        if self.run_stores.remove(port, self.clock.now()) {
            self.close(port);
        }
        true
    }

    /// Forgets what is known of a run and drops the keys of its rendezvous; a native run is closed and forgotten when its
    /// last node is gone. `None` if there is no such run; else the number of keys.
    pub fn forget_run(&self, run_id: &str) -> Option<usize> {
        let native = RunId::new(run_id.as_bytes());
        let was_native = self.rounds.remove(self, &native, "an operator, to forget it");
        let dropped: usize =
            self.listeners().iter().map(|listener| listener.engine().drop_run(run_id.as_bytes())).sum();
        let was_known = self.with_insight(|insight, _| insight.forget(run_id));
        (was_native || was_known || dropped > 0).then_some(dropped)
    }

    /// Looks after what only time changes, and at what the jobs do, for ever.
    pub async fn look_after(self: Arc<Self>) {
        tokio::join!(
            keep_running("housekeeping", || {
                let server = Arc::clone(&self);
                async move { server.keep_stores().await }
            }),
            keep_running("rendezvous", || {
                let server = Arc::clone(&self);
                async move { server.rounds.keep_time(&server).await }
            }),
            keep_running("watch", || {
                let server = Arc::clone(&self);
                async move { server.watch().await }
            }),
        );
    }

    async fn keep_stores(&self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            for listener in self.listeners() {
                listener.engine().tick();
            }
            self.gates.tick(self.clock.now(), |addr| self.shared.places.has(addr));
            for port in self.run_stores.take_unused(self.clock.now(), |port| self.clients_of(port)) {
                tracing::info!(
                    store = port,
                    "closed a run's store: its round is over, or it had no client for --store-linger"
                );
                self.close(port);
            }
        }
    }

    /// Stops taking new connections and waits until the last client has left, or `--drain` is over.
    pub async fn drain(&self) {
        self.stopping.store(true, Relaxed);
        self.rounds.stop();
        self.gates.ring();
        self.stores.iter().for_each(|store| store.stop_accepting());
        let left = async {
            while self.connections() > 0 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let limit = self.shared.config.drain;
        if tokio::time::timeout(limit, left).await.is_err() {
            let connections = self.connections();
            tracing::warn!(
                connections,
                "stopping although clients are still connected: --drain {limit:?} is over"
            );
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_while_the_runs_are_looked_at_is_outlived() {
        let server = Server::start(ServerConfig::default(), Vec::new()).expect("a server");
        let wish = || crate::core::insight::Expectation { min: 2, max: 2, names: Vec::new() };
        assert!(server.with_insight(|insight, _| insight.expect("before", wish())));
        let broken = Arc::clone(&server);
        let injected = std::thread::spawn(move || broken.with_insight(|_, _| panic!("injected")));
        assert!(injected.join().is_err());
        // What was known may be half of something: it starts anew, and goes on.
        assert!(server.with_insight(|insight, _| insight.expect("after", wish())));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let looking = tokio::time::timeout(Duration::from_millis(300), Arc::clone(&server).look_after());
            assert!(looking.await.is_err(), "it goes on");
        });
        let (_, mut events) = server.subscribe().expect("a place");
        assert!(events.try_recv().is_err());
    }
}

//! The server: its parts wired together. Holds no rule of a store or a run.
// Numbers come from peers, files and the environment. A file that has only its own says so.
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
pub mod cleanup_log;
pub mod clock;
pub mod config;
pub mod engine;
pub mod gate;
pub mod journal;
pub mod limits;
pub mod link;
pub mod metrics;
pub mod observe;
pub mod rendezvous;
pub mod stores;
pub mod supervise;
pub mod tcp;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;

use crate::clock::Clock;
use crate::config::{MAIN_STORE, ServerConfig};
use crate::engine::{MemoryBudget, Reservation};
use crate::journal::etcd::Etcd;
use crate::journal::{Journal, Restored, written_ago};
pub use cleanup_log::{CleanupCounts, CleanupLog};
pub use gate::{NotHeld, PodGates};
pub use limits::{DescriptorShares, default_max_memory, somaxconn};
pub use link::{Bearer, LinkHost, LinkView};
pub use observe::{Event as InsightEvent, EventOf, MAX_SUBSCRIBERS, NotExpected, Watch};
use rallypoint_link::ServerLife;
use rallypoint_process::random_number;
use rallypoint_protocol::ids::{Elapsed, RunId, Timestamp, counted};
use rallypoint_rendezvous::gate::{Announcement, PodRefusal, PodStanding};
pub use rendezvous::{Ended, Joined, Rounds, SharedRound};
pub use stores::{NoStore, RunStore, StoreHost};
pub use supervise::keep_running;
use tcp::{ForeignClients, Shared, Workers};
pub use tcp::{Outcome, Place, Places, StoreListener, Throttle, bind, warn_of_small_backlog};

/// The version of the compiler that made this server.
pub const COMPILER: &str = env!("RALLYPOINT_RUSTC");
/// Limit on the clients of all relays together. They take counted memory, but no descriptors.
const MAX_LINKED: usize = 1 << 20;
/// How often the server checks idle runs and stores. Their deadlines are at least seconds.
const TICK: Duration = Duration::from_millis(250);

/// A running server: its parts, and the operations that need several of them.
#[derive(Debug)]
pub struct Server {
    clock: Clock,
    cleanup_log: Arc<CleanupLog>,
    stores: Arc<StoreHost>,
    rounds: Arc<Rounds>,
    gates: Arc<PodGates>,
    links: Arc<LinkHost>,
    watch: Watch,
}

impl Server {
    /// Starts serving on sockets that are bound already, one store each.
    pub fn start(config: ServerConfig, sockets: Vec<std::net::TcpListener>) -> io::Result<Arc<Self>> {
        Self::start_with(config, sockets, None)
    }

    /// Like [`Self::start`], with the journal in an etcd where this server leads.
    pub fn start_with(
        config: ServerConfig,
        sockets: Vec<std::net::TcpListener>,
        etcd: Option<&Arc<Etcd>>,
    ) -> io::Result<Arc<Self>> {
        let clock = Clock::start();
        let cleanup_log = Arc::new(CleanupLog::default());
        let written = config.journal.as_ref().and_then(|journal| written_ago(&journal.path));
        let folder = || config.journal.as_ref().map(Journal::open);
        let opened = etcd.map(Journal::lead).or_else(folder).transpose().map_err(io::Error::other)?;
        let (journal, restored) = opened.unzip();
        let mut before = restored.map_or_else(Default::default, |it: Restored| {
            it.log();
            it.image
        });
        let shared = Shared {
            budget: MemoryBudget::new(config.max_memory),
            places: Places::new(config.max_connections, config.max_connections_per_address),
            linked: Places::new(MAX_LINKED, config.max_connections_per_address),
            shares: DashMap::new(),
            throttle: Throttle::new(tcp::KINDS_OF_LINES),
            foreign: ForeignClients::new(config.insight.enabled),
            config,
        };
        let workers = Workers::start("store", shared.config.threads)?;
        let stores = StoreHost::new(shared, workers, clock, Arc::clone(&cleanup_log), journal, &mut before);
        let stores = Arc::new(stores);
        for socket in sockets {
            stores.open(socket)?;
        }
        if stores.config().relays_only {
            stores.open_without_door(MAIN_STORE);
        }
        stores.reopen();
        let gates = Arc::new(PodGates::new(Arc::clone(&stores), clock, &before));
        let rounds = Arc::new(Rounds::new(Arc::clone(&stores), clock, &before));
        let life = ServerLife(random_number());
        let links = Arc::new(LinkHost::new(Arc::clone(&stores), clock, &before, life));
        let watch = Watch::new(
            Arc::clone(&stores),
            Arc::clone(&rounds),
            Arc::clone(&gates),
            Arc::clone(&links),
            clock,
            &before,
        );
        if before.epoch.number > 0 {
            let keys: usize = stores.listeners().iter().map(|listener| listener.engine().stats().keys).sum();
            let took = Elapsed(clock.up());
            let written = written.map_or_else(String::new, |ago| {
                format!("; the journal was written last {} before that", Elapsed(ago))
            });
            let kept = counted(keys, "key is as it was", "keys are as they were");
            tracing::info!(keys, "restarted in {took}: {kept}{written}");
        }
        Ok(Arc::new(Self { clock, cleanup_log, stores, rounds, gates, links, watch }))
    }

    /// This moment.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Time since the start of the server.
    pub fn up(&self) -> Duration {
        self.clock.up()
    }

    /// Counts of what the rules for stale keys did in all stores.
    pub fn cleanup_counts(&self) -> CleanupCounts {
        self.cleanup_log.counts()
    }

    /// The stores.
    pub fn stores(&self) -> &StoreHost {
        &self.stores
    }

    /// The native rendezvous and barriers.
    pub fn rounds(&self) -> &Rounds {
        &self.rounds
    }

    /// The start gates of the runs.
    pub fn gates(&self) -> &PodGates {
        &self.gates
    }

    /// The links of the relays.
    pub fn links(&self) -> &Arc<LinkHost> {
        &self.links
    }

    /// The view of the jobs.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Whether every listener is bound, new clients are welcome, and answers may leave.
    pub fn is_ready(&self) -> bool {
        !self.stores.is_stopping() && self.stores.journal().is_none_or(|journal| journal.may_answer())
    }

    /// Whether this server has no store to serve: `--only-on-index` names another pod.
    pub fn is_idle(&self) -> bool {
        let config = self.stores.config();
        config.listen.is_empty() && !config.relays_only
    }

    /// Counts this much memory until the result is dropped. `None` if there is no room, unless it `must` be
    /// counted.
    pub fn reserve(&self, bytes: usize, must: bool) -> Option<Reservation> {
        let mut memory = self.stores.budget().reservation();
        if must {
            memory.set(bytes);
        }
        memory.resize(bytes).then_some(memory)
    }

    /// Takes the announcement of a pod, and holds the pod up to `wait` until all pods of its run are there.
    pub async fn hold(
        &self,
        run_id: &str,
        said: &Announcement,
        wait: Duration,
    ) -> Result<PodStanding, NotHeld> {
        let finished = || self.watch.with_insight(|insight, _| insight.finished(run_id));
        let standing = self.gates.hold(run_id, said, wait, finished).await;
        if let Err(NotHeld::Refused(PodRefusal::Finished { .. })) = &standing {
            self.watch.came_late(run_id, said);
        }
        standing
    }

    /// Forgets a run and drops the keys of its rendezvous. A native run is closed, and forgotten when its
    /// last node is gone. Returns the number of dropped keys, or `None` if there is no such run.
    pub fn forget_run(&self, run_id: &str) -> Option<usize> {
        let was_native = self.rounds.remove(&RunId::new(run_id.as_bytes()), "an operator, to forget it");
        let dropped = self.stores.drop_run(run_id.as_bytes());
        let was_known = self.watch.forget(run_id);
        (was_native || was_known || dropped > 0).then_some(dropped)
    }

    /// Does the periodic work, for ever: changes that only time brings, and the observation of the jobs.
    pub async fn look_after(self: Arc<Self>) {
        tokio::join!(
            keep_running("housekeeping", || {
                let server = Arc::clone(&self);
                async move { server.keep_house().await }
            }),
            keep_running("rendezvous", || {
                let rounds = Arc::clone(&self.rounds);
                async move { rounds.keep_time().await }
            }),
            keep_running("journal", || {
                let server = Arc::clone(&self);
                async move { server.keep_journal().await }
            }),
            keep_running("watch", || {
                let server = Arc::clone(&self);
                async move { server.watch.keep_looking().await }
            }),
        );
    }

    async fn keep_house(&self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.gates.tick(self.now(), &self.links.relays());
            self.stores.tick();
            self.links.tick();
        }
    }

    async fn keep_journal(&self) {
        let Some(journal) = self.stores.journal() else { return std::future::pending().await };
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            journal.tick(std::time::Instant::now());
            let others = async {
                self.links.copy(journal).await;
                self.rounds.copy().await;
                self.gates.copy().await;
                self.watch.copy().await;
            };
            self.stores.tidy_journal(others).await;
        }
    }

    /// Refuses new connections and waits until the last client has left, or `--drain` is over.
    pub async fn drain(&self) {
        self.stores.stop();
        self.rounds.stop();
        self.gates.stop();
        let left = async {
            while self.stores.mortal_clients() > 0 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let limit = self.stores.config().drain;
        if tokio::time::timeout(limit, left).await.is_err() {
            let connections = self.stores.mortal_clients();
            tracing::warn!(
                connections,
                "stopping although clients are still connected: --drain {limit:?} is over"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_while_the_runs_are_looked_at_is_outlived() {
        let server = Server::start(ServerConfig::default(), Vec::new()).expect("a server");
        let expectation = || rallypoint_insight::Expectation { min: 2, max: 2, names: Vec::new() };
        assert!(server.watch().expect("before", expectation()).is_ok());
        let broken = Arc::clone(&server);
        let injected = std::thread::spawn(move || broken.watch().with_insight(|_, _| panic!("injected")));
        assert!(injected.join().is_err());
        // The view may have been changed in part only: it starts anew, and goes on.
        assert!(server.watch().expect("after", expectation()).is_ok());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let looking = tokio::time::timeout(Duration::from_millis(300), Arc::clone(&server).look_after());
            assert!(looking.await.is_err(), "it goes on");
        });
        let (_, mut events) = server.watch().subscribe(|list| list).expect("a place");
        assert!(events.try_recv().is_err());
    }
}

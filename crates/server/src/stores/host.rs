//! The stores of this server: their listeners, the threads that serve them, and the leases of run stores and
//! round stores.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use dashmap::DashMap;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::AbortHandle;

use super::leases::{Leases, NoStore, Owner, RoundStore, RunStore};
use crate::cleanup_log::CleanupLog;
use crate::clock::{Clock, deadline_in, within};
use crate::config::ServerConfig;
use crate::engine::{Engine, Kept, LinkedBefore, MemoryBudget, Walk};
use crate::journal::Journal;
use crate::supervise::keep_running;
use crate::tcp::{Foreign, Shared, StoreListener, Workers, bind};
use rallypoint_journal::{Image, LinkId, LinkImage, SessionId, SessionState, StoreId, StoreImage};
use rallypoint_protocol::ids::RunId;
use rallypoint_store::{Capacity, Store, WaitView};

/// A store that is being served.
#[derive(Debug)]
struct OpenStore {
    listener: Arc<StoreListener>,
    /// The entrance for direct connections; `None` if only relays lead to the store.
    door: Option<Door>,
}

/// A listening socket, and the task that accepts its clients.
#[derive(Debug)]
struct Door {
    socket: Arc<std::net::TcpListener>,
    accepting: AbortHandle,
}

impl OpenStore {
    /// Refuses new clients from now on. The accepting task ends a moment later, but the port is free for
    /// another store at once.
    fn stop_accepting(&self) {
        if let Some(door) = &self.door {
            door.accepting.abort();
            let _ = rustix::net::shutdown(&door.socket, rustix::net::Shutdown::Both);
        }
    }
}

/// A log line about the stores. The code that opens a store may hold a lock; it logs the line after the
/// unlock.
#[derive(Debug)]
pub enum HostLine {
    /// Another program has the port.
    PortTaken(u16, io::Error),
    /// A store without any client made room for another one.
    MadeRoom(u16),
}

impl HostLine {
    pub fn log(&self) {
        match self {
            Self::PortTaken(port, error) => {
                tracing::warn!(port, %error, "cannot use this port of --store-ports");
            }
            Self::MadeRoom(port) => tracing::info!(
                store = port,
                "closed a run's store that nobody has used: another run needs its port"
            ),
        }
    }
}

/// All stores of the server.
#[derive(Debug)]
pub struct StoreHost {
    shared: Arc<Shared>,
    clock: Clock,
    cleanup_log: Arc<CleanupLog>,
    open: DashMap<u16, OpenStore>,
    leases: Leases,
    workers: Workers,
    stopping: AtomicBool,
    /// Ports of run stores that an operator has closed. Observations there are not read any more.
    closed_by_operator: Mutex<Vec<u16>>,
    /// The port of the store that was opened first.
    first: OnceLock<u16>,
    journal: Option<Arc<Journal>>,
    /// Stores of the last server that are not open again yet.
    restored: Mutex<BTreeMap<StoreId, StoreImage>>,
    /// The sessions of links that each of these stores had.
    linked: Mutex<HashMap<StoreId, Vec<LinkedBefore>>>,
}

impl StoreHost {
    /// Prepares stores that `workers` will serve; none is open yet.
    pub fn new(
        shared: Shared,
        workers: Workers,
        clock: Clock,
        cleanup_log: Arc<CleanupLog>,
        journal: Option<Arc<Journal>>,
        restored: &mut Image,
    ) -> Self {
        Self {
            journal,
            linked: Mutex::new(linked_clients(&restored.links)),
            restored: Mutex::new(std::mem::take(&mut restored.stores)),
            workers,
            leases: Leases::new(&shared.config),
            shared: Arc::new(shared),
            clock,
            cleanup_log,
            open: DashMap::new(),
            stopping: AtomicBool::new(false),
            closed_by_operator: Mutex::default(),
            first: OnceLock::new(),
        }
    }

    /// Serves one more store of `--listen` on `socket`.
    pub fn open(&self, socket: std::net::TcpListener) -> io::Result<u16> {
        self.open_as(socket, None)
    }

    /// The journal's side of a store. It has the store's old contents, if the owner had a store on this port
    /// before.
    fn kept(&self, port: u16, owner: &[u8]) -> Option<Kept> {
        let journal = Arc::clone(self.journal.as_ref()?);
        let mut restored = self.restored.lock().unwrap_or_else(PoisonError::into_inner);
        let before =
            restored.iter().find(|(_, it)| it.port == port && *it.owner == *owner).map(|(&id, _)| id);
        let image = before.and_then(|id| restored.remove(&id));
        let store = before.unwrap_or_else(|| journal.open_store(port, owner));
        let mut linked = self.linked.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Kept { journal, store, image, linked: linked.remove(&store).unwrap_or_default() })
    }

    /// Opens the run stores of the last server again, and closes in the journal every store that cannot be
    /// opened. Call it after the stores of `--listen` are open.
    pub fn reopen(&self) {
        let Some(journal) = &self.journal else { return };
        let leased: Vec<(u16, Owner)> = {
            let restored = self.restored.lock().unwrap_or_else(PoisonError::into_inner);
            restored.values().filter_map(|it| Some((it.port, Owner::from_bytes(&it.owner)?))).collect()
        };
        for (port, owner) in leased {
            let open = |port, owner: &Owner| {
                let opened = self.open_leased(port, owner);
                opened.map_err(|error| HostLine::PortTaken(port, error).log()).is_ok()
            };
            self.leases.reopen(owner, port, self.clock.now(), open);
        }
        let lost = std::mem::take(&mut *self.restored.lock().unwrap_or_else(PoisonError::into_inner));
        for (id, it) in lost {
            tracing::info!(
                store = it.port,
                keys = it.keys.len(),
                "a store of the last server is not open again: its keys are dropped"
            );
            journal.close_store(id);
        }
    }

    /// Copies all stores into the journal again, in small steps, if that shortens it. `others` copies the
    /// links and the runs.
    pub async fn tidy_journal(&self, others: impl Future<Output = ()>) {
        let Some(journal) = &self.journal else { return };
        let Some(tidy) = journal.begin_tidying() else { return };
        for listener in self.listeners() {
            let mut walk = Walk::default();
            while listener.engine().copy(&mut walk) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        others.await;
        let journal = Arc::clone(journal);
        // This removes files, which takes time.
        let removing = tokio::task::spawn_blocking(move || journal.is_tidy(tidy));
        let _ended = removing.await;
    }

    /// Waits until the journal has everything that has happened so far.
    pub async fn safe(&self) {
        if let Some(journal) = &self.journal {
            journal.safe(journal.commit(|_| ())).await;
        }
    }

    /// The longest time that an answer is held.
    pub const MOST_HELD: Duration = Duration::from_secs(10);

    /// The result of `work`, once it is safe to send. `None` if it would be held for too long.
    pub async fn covered<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let done = work.await;
        within(deadline_in(Self::MOST_HELD), self.safe()).await.map(|()| done)
    }

    /// The journal, if there is one.
    pub fn journal(&self) -> Option<&Arc<Journal>> {
        self.journal.as_ref()
    }

    fn open_as(&self, socket: std::net::TcpListener, owner: Option<&Owner>) -> io::Result<u16> {
        let port = socket.local_addr()?.port();
        let listener = self.listener_for(port, owner);
        let door = self.open_door(Arc::clone(&listener), socket);
        self.open.insert(port, OpenStore { listener, door: Some(door) });
        Ok(port)
    }

    /// Opens a leased store on one of our ports. It fails if another program has the port.
    fn open_leased(&self, port: u16, owner: &Owner) -> io::Result<()> {
        if self.config().relays_only {
            self.open_behind_relays(port, Some(owner));
            return Ok(());
        }
        bind(self.run_store_addr(port)).and_then(|socket| self.open_as(socket, Some(owner))).map(drop)
    }

    /// Serves a store only to clients of relays. Its port number is only its name.
    pub fn open_without_door(&self, port: u16) -> Arc<StoreListener> {
        self.open_behind_relays(port, None)
    }

    fn open_behind_relays(&self, port: u16, owner: Option<&Owner>) -> Arc<StoreListener> {
        let listener = self.listener_for(port, owner);
        self.open.insert(port, OpenStore { listener: Arc::clone(&listener), door: None });
        listener
    }

    /// Makes the listener of a store on `port`, with the contents that the journal has for it.
    fn listener_for(&self, port: u16, owner: Option<&Owner>) -> Arc<StoreListener> {
        self.first.get_or_init(|| port);
        let config = self.config();
        let capacity = Capacity { keys: config.max_keys, bytes: config.max_memory };
        let store = Store::new(capacity, config.stale_keys.clone());
        let engine = Engine::new(
            port,
            store,
            self.clock,
            Arc::clone(&self.shared.budget),
            Arc::clone(&self.cleanup_log) as _,
            config.insight.enabled,
            self.kept(port, &Owner::to_bytes(owner)),
        );
        StoreListener::new(Arc::clone(&self.shared), engine)
    }

    /// Accepts clients on a socket.
    fn open_door(&self, accepting: Arc<StoreListener>, socket: std::net::TcpListener) -> Door {
        let port = accepting.engine().port();
        let round_robin = Arc::clone(self.workers.round_robin());
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
        Door { socket, accepting: accepting.abort_handle() }
    }

    /// Closes a store by force: its listener, its connections, its keys.
    fn close(&self, port: u16) {
        if let Some((_, store)) = self.open.remove(&port) {
            store.stop_accepting();
            store.listener.close_all();
            if let (Some(journal), Some(id)) = (&self.journal, store.listener.engine().journal_id()) {
                journal.close_store(id);
            }
        }
    }

    /// The settings.
    pub fn config(&self) -> &ServerConfig {
        &self.shared.config
    }

    /// The memory budget of all stores.
    pub fn budget(&self) -> &Arc<MemoryBudget> {
        &self.shared.budget
    }

    /// The stores, by port.
    pub fn listeners(&self) -> Vec<Arc<StoreListener>> {
        let mut listeners: Vec<_> = self.open.iter().map(|store| Arc::clone(&store.listener)).collect();
        listeners.sort_by_key(|listener| listener.engine().port());
        listeners
    }

    /// The store on `port`.
    pub fn listener(&self, port: u16) -> Option<Arc<StoreListener>> {
        self.open.get(&port).map(|store| Arc::clone(&store.listener))
    }

    /// Ends the sessions of the last server whose links did not come back.
    pub fn end_unresumed(&self) {
        self.listeners().iter().for_each(|listener| listener.engine().end_unresumed());
    }

    /// The store with this number in the journal.
    pub fn listener_kept_as(&self, id: StoreId) -> Option<Arc<StoreListener>> {
        self.listeners().into_iter().find(|listener| listener.engine().journal_id() == Some(id))
    }

    /// The threads that serve the stores' clients.
    pub fn workers(&self) -> &Workers {
        &self.workers
    }

    /// The port of the first store, which is the main one.
    pub fn first_port(&self) -> Option<u16> {
        self.first.get().copied()
    }

    /// Open connections to all stores.
    pub fn connections(&self) -> usize {
        self.shared.places.taken().saturating_add(self.shared.linked.taken())
    }

    /// Clients that would not survive a restart of the server. With a journal, clients of relays do.
    pub fn mortal_clients(&self) -> usize {
        if self.journal.is_some() { self.shared.places.taken() } else { self.connections() }
    }

    /// Whether `addr` has a direct connection to any store, without a relay.
    pub fn is_connected_directly(&self, addr: IpAddr) -> bool {
        self.shared.places.has(addr)
    }

    /// Open connections to the store on `port`.
    fn clients_of(&self, port: u16) -> usize {
        self.listener(port).map_or(0, |listener| listener.engine().stats().connections)
    }

    /// Records that a client of a store came to the admin port, which is `port`.
    pub fn came_to_admin(&self, port: u16, peer: IpAddr) {
        self.shared.foreign.came(Foreign::AtAdmin { port, peer });
    }

    /// Clients of another protocol that came since the last call.
    pub fn take_foreign(&self) -> impl Iterator<Item = Foreign> {
        self.shared.foreign.take().into_iter()
    }

    /// Up to `most` outstanding waits of all stores, oldest first, each with up to `keys_each` of its missing
    /// keys. Also the number of all waits.
    pub fn open_waits(&self, most: usize, keys_each: usize) -> (usize, Vec<(u16, WaitView)>) {
        let mut total = 0;
        let mut waits = Vec::new();
        for listener in self.listeners() {
            let engine = listener.engine();
            total = usize::saturating_add(total, engine.stats().waiters);
            let own = engine.waits(most, keys_each);
            total = total.saturating_add(
                own.iter().filter(|wait| wait.counted.is_some() || wait.polled.is_some()).count(),
            );
            waits.extend(own.into_iter().map(|wait| (engine.port(), wait)));
        }
        waits.sort_by_key(|(_, wait)| std::cmp::Reverse(wait.waited));
        waits.truncate(most);
        (total, waits)
    }

    /// The run's own store. Opens it if it is absent.
    pub fn store_for_run(&self, run_id: &str) -> Result<RunStore, NoStore> {
        let mut said = Vec::new();
        let owner = Owner::Run(run_id.to_owned());
        let store =
            self.with_port(&owner, &mut said, |open| self.leases.get_or_open(run_id, self.clock.now(), open));
        said.iter().for_each(HostLine::log);
        if let Ok(RunStore { port, is_new: true }) = store {
            tracing::info!(store = port, run.id = run_id, "opened a store for run {run_id}");
        }
        store
    }

    /// Opens a fresh store for a round's workers. If `held`, it stays until it is released; otherwise it
    /// stays while it is used.
    pub fn open_for_round(
        &self,
        run_id: &RunId,
        round: u64,
        held: bool,
        said: &mut Vec<HostLine>,
    ) -> Result<RoundStore, NoStore> {
        // The last server may have died between opening a store and announcing it. Close that store: two
        // stores of one round would be confused.
        while let Some(untold) = self.leases.claim(run_id, round, false) {
            self.close_of_round(&untold);
        }
        let owner = Owner::Round(run_id.clone(), round);
        self.with_port(&owner, said, |open| {
            self.leases.open_for_round(run_id, round, held, self.clock.now(), open)
        })
    }

    /// The store of a round that goes on after a restart. Closes the stores of earlier rounds: the last
    /// server may have died before it could.
    pub fn claim(&self, run_id: &RunId, round: u64, held: bool) -> Option<RoundStore> {
        for port in self.leases.take_rounds_before(run_id, round, self.clock.now()) {
            self.close(port);
        }
        self.leases.claim(run_id, round, held)
    }

    /// Closes a round's store by force, to fence off its workers.
    pub fn close_of_round(&self, store: &RoundStore) {
        if self.leases.give_up(store, self.clock.now()) {
            self.close(store.port());
        }
    }

    /// Lets a round's store end with its last clients.
    pub fn release(&self, store: &RoundStore) {
        self.leases.release(store, self.clock.now());
    }

    /// Leases a port and opens a store on it. If no port is left, the store that has waited longest for its
    /// first client makes room.
    fn with_port<T>(
        &self,
        owner: &Owner,
        said: &mut Vec<HostLine>,
        lease: impl Fn(&mut dyn FnMut(u16) -> bool) -> Result<T, NoStore>,
    ) -> Result<T, NoStore> {
        if self.is_stopping() {
            return Err(NoStore::Stopping);
        }
        loop {
            let leased = lease(&mut |port| {
                let opened = self.open_leased(port, owner);
                opened.map_err(|error| said.push(HostLine::PortTaken(port, error))).is_ok()
            });
            if !matches!(leased, Err(NoStore::NoPortLeft { .. })) {
                return leased;
            }
            let unused = self.leases.take_never_used(self.clock.now(), |port| self.clients_of(port));
            let Some(port) = unused else { return leased };
            said.push(HostLine::MadeRoom(port));
            self.close(port);
        }
    }

    /// Run stores listen on the address of the first store.
    fn run_store_addr(&self, port: u16) -> SocketAddr {
        let first = self.config().listen.first().map(SocketAddr::ip);
        SocketAddr::new(first.unwrap_or(std::net::Ipv6Addr::UNSPECIFIED.into()), port)
    }

    /// The run whose own store is on `port`.
    pub fn run_of(&self, port: u16) -> Option<String> {
        self.leases.run_of(port)
    }

    /// The run or round that leases the store on `port`.
    pub fn owner(&self, port: u16) -> Option<Owner> {
        self.leases.owner(port)
    }

    /// Empties the store on `port`; a run's own store is closed. Returns whether it was a run's own store, or
    /// `None` if there is no store.
    pub fn reset(&self, port: u16) -> Option<bool> {
        const MOST: usize = 4096;
        let listener = self.listener(port)?;
        listener.engine().reset();
        let run = self.run_of(port);
        let is_of_run = self.leases.remove(port, self.clock.now());
        if is_of_run {
            tracing::warn!(
                store = port,
                run,
                "closed a run's store: an operator reset it; the ranks of the round are disconnected: those \
                 that have met go on until they need it again, the others have to start again"
            );
            let mut closed = self.closed_by_operator.lock().unwrap_or_else(PoisonError::into_inner);
            if closed.len() < MOST {
                closed.push(port);
            }
            drop(closed);
            self.close(port);
        }
        Some(is_of_run)
    }

    /// The ports of run stores that an operator has closed since the last call.
    pub fn take_closed_by_operator(&self) -> Vec<u16> {
        std::mem::take(&mut *self.closed_by_operator.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Drops the keys of a run's rendezvous in all stores. Returns their number.
    pub fn drop_run(&self, run_id: &[u8]) -> usize {
        self.listeners().iter().map(|listener| listener.engine().drop_run(run_id)).sum()
    }

    /// Does the changes that only time brings.
    pub fn tick(&self) {
        for listener in self.listeners() {
            listener.engine().tick();
        }
        for port in self.leases.take_unused(self.clock.now(), |port| self.clients_of(port)) {
            tracing::debug!(
                store = port,
                "closed a run's store: its round is over, or it had no client for 10 minutes"
            );
            self.close(port);
        }
    }

    /// Whether the server is about to end: it begins nothing new.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    /// Refuses new clients, and opens no more stores.
    pub fn stop(&self) {
        self.stopping.store(true, Relaxed);
        self.open.iter().for_each(|store| store.stop_accepting());
    }
}

/// The sessions of links that can go on, by store.
fn linked_clients(links: &BTreeMap<LinkId, LinkImage>) -> HashMap<StoreId, Vec<LinkedBefore>> {
    let mut by_store = HashMap::<_, Vec<_>>::new();
    for (&link, image) in links {
        for (&no, session) in &image.sessions {
            let Some(SessionState::Open { store, conn, client }) = &session.state else { continue };
            let addr = std::str::from_utf8(client).ok().and_then(|text| text.parse().ok());
            let Some(client) = addr.filter(|_| session.reached.can_go_on()) else { continue };
            let id = SessionId { link, no };
            let before = LinkedBefore { id, conn: *conn, client, reached: session.reached };
            by_store.entry(*store).or_default().push(before);
        }
    }
    by_store
}

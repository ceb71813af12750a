//! One life of the server: the real stores, links and journal, driven by hand where tasks and sockets would
//! drive them.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::BytesMut;
use dashmap::DashMap;
use tokio::sync::broadcast;

use super::disk::Noted;
use super::mutants::Mutant;
use super::plan::{Keeping, SECOND};
use super::world::LINGER;
use rallypoint_journal::Image;
use rallypoint_link::ServerLife;
use rallypoint_protocol::{
    Decoder, Dialect, LegacyRelease, Limits, Payload, ReplyBuffer, Request, encode_hello, encode_request,
};
use rallypoint_rendezvous::Terms;
use rallypoint_server::cleanup_log::CleanupLog;
use rallypoint_server::clock::Clock;
use rallypoint_server::config::{Durability, InsightConfig, JournalConfig, OnJournalError, ServerConfig};
use rallypoint_server::engine::{MemoryBudget, Walk};
use rallypoint_server::gate::PodGates;
use rallypoint_server::journal::{Failed, Journal, Tidy};
use rallypoint_server::link::{Line, LinkHost};
use rallypoint_server::observe::{Event as InsightEvent, Watch};
use rallypoint_server::rendezvous::Rounds;
use rallypoint_server::stores::StoreHost;
use rallypoint_server::tcp::{
    Conversation, ForeignClients, KINDS_OF_LINES, Places, Shared, StoreListener, Throttle, Workers,
};
use rallypoint_store::StaleKeyConfig;

/// The port of the store that all clients use.
pub(super) const PORT: u16 = 29500;
/// Short, so that a run has several segments and tidies them.
const SEGMENT: u32 = 2000;

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// One connection of a relay.
pub(super) struct ServerLine {
    /// Set when the server has accepted the relay.
    pub(super) line: Option<Line>,
    pub(super) input: BytesMut,
    pub(super) out: BytesMut,
    /// Ends when everything that `out` reports is safe. Before that, `out` must not leave.
    pub(super) held: Option<Task>,
    pub(super) has_turn: bool,
}

/// A client with a connection of its own.
pub(super) struct Direct {
    pub(super) conversation: Conversation,
    pub(super) input: BytesMut,
    pub(super) replies: ReplyBuffer,
    pub(super) woken: Arc<Flag>,
    /// Replies wait until their changes are safe.
    pub(super) is_held: bool,
    pub(super) has_turn: bool,
}

/// Set by a wake-up.
#[derive(Debug, Default)]
pub(super) struct Flag(AtomicBool);

impl Flag {
    pub(super) fn take(&self) -> bool {
        self.0.swap(false, Relaxed)
    }
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

/// The progress of writing everything again.
pub(super) enum Tidying {
    /// The stores that are still to be copied, and the progress in the last of them.
    Stores(Tidy, Vec<Arc<StoreListener>>, Walk),
    Links(Tidy, Task),
}

pub(super) struct Server {
    pub(super) stores: Arc<StoreHost>,
    pub(super) links: Arc<LinkHost>,
    pub(super) rounds: Arc<Rounds>,
    pub(super) gates: Arc<PodGates>,
    pub(super) listener: Arc<StoreListener>,
    pub(super) watch: Arc<Watch>,
    /// What insight reports.
    pub(super) said: broadcast::Receiver<InsightEvent>,
    pub(super) journal: Option<Arc<Journal>>,
    pub(super) lines: BTreeMap<u32, ServerLine>,
    pub(super) directs: BTreeMap<usize, Direct>,
    pub(super) tidying: Option<Tidying>,
    /// Whether the journal could not be written and is not whole again.
    pub(super) is_troubled: bool,
}

pub(super) fn now_or_never(task: &mut Task) -> bool {
    task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

impl Server {
    pub(super) fn start(keeping: Keeping, disk: &Noted, life: u32) -> Result<Self, Failed> {
        Self::start_within(ServerConfig::default().max_memory, keeping, disk, life)
    }

    /// A server with this memory limit.
    pub(super) fn start_within(
        max_memory: usize,
        keeping: Keeping,
        disk: &Noted,
        life: u32,
    ) -> Result<Self, Failed> {
        // The number is always equally long, as text and as a number.
        let life = ServerLife(1 << 63 | u64::from(life));
        let clock = Clock::start();
        let durability = match keeping {
            Keeping::Nothing => None,
            Keeping::Process => Some(Durability::Process),
            Keeping::Disk => Some(Durability::Disk),
        };
        let journal = durability.map(|durability| JournalConfig {
            path: "journal".into(),
            durability,
            on_error: OnJournalError::Continue,
        });
        let config = ServerConfig {
            journal,
            insight: InsightConfig { explain_after: Duration::from_secs(3), ..InsightConfig::default() },
            // The model does not contain rules that wait.
            stale_keys: StaleKeyConfig {
                forget_run_after: None,
                forget_closed_after: Duration::from_hours(1),
                reset_when_idle: None,
                ..StaleKeyConfig::default()
            },
            // There are no sockets.
            relays_only: true,
            max_memory,
            store_ports: 29510..=29517,
            store_linger: Duration::from_micros(LINGER - SECOND),
            rendezvous: Terms { join_timeout: Duration::from_micros(LINGER), ..Terms::default() },
            ..ServerConfig::default()
        };
        let mut before = Image::default();
        let mut journal = None;
        if let Some(config) = &config.journal {
            let (opened, restored) = Journal::with(Box::new(disk.clone()), config, SEGMENT, life.0)?;
            disk.written_by(&opened);
            journal = Some(opened);
            before = restored.image;
        }
        let shared = Shared {
            budget: MemoryBudget::new(config.max_memory),
            places: Places::new(config.max_connections, config.max_connections_per_address),
            linked: Places::new(config.max_connections, config.max_connections_per_address),
            shares: DashMap::new(),
            throttle: Throttle::new(KINDS_OF_LINES),
            foreign: ForeignClients::new(false),
            config,
        };
        let cleanup_log = Arc::new(CleanupLog::default());
        let stores =
            StoreHost::new(shared, Workers::none(), clock, cleanup_log, journal.clone(), &mut before);
        let stores = Arc::new(stores);
        let listener = stores.open_without_door(PORT);
        stores.reopen();
        let gates = Arc::new(PodGates::new(Arc::clone(&stores), clock, &before));
        let rounds = Arc::new(Rounds::new(Arc::clone(&stores), clock, &before));
        let links = Arc::new(LinkHost::new(Arc::clone(&stores), clock, &before, life));
        let parts = (Arc::clone(&stores), Arc::clone(&rounds), Arc::clone(&gates), Arc::clone(&links));
        let watch = Arc::new(Watch::new(parts.0, parts.1, parts.2, parts.3, clock, &before));
        let said = watch.subscribe(|list| list).expect("the first").1;
        Ok(Self {
            stores,
            links,
            rounds,
            gates,
            watch,
            said,
            listener,
            journal,
            lines: BTreeMap::new(),
            directs: BTreeMap::new(),
            tidying: None,
            is_troubled: false,
        })
    }

    /// Waits until everything that has happened may be reported.
    pub(super) fn safe(&self) -> Task {
        let stores = Arc::clone(&self.stores);
        Box::pin(async move { stores.safe().await })
    }

    /// The connections of relays that need a turn although no bytes have arrived.
    pub(super) fn take_woken(&self) -> Vec<u32> {
        let is_woken = |served: &ServerLine| {
            let Some(line) = &served.line else { return false };
            let woken = line.woken();
            now_or_never(&mut (Box::pin(async move { woken.notify.notified().await }) as Task))
        };
        self.lines.iter().filter(|(_, served)| is_woken(served)).map(|(&conn, _)| conn).collect()
    }

    /// A client connects to the store on this port, if there is one.
    pub(super) fn connect(&self, port: u16, addr: std::net::SocketAddr) -> Option<Direct> {
        let config = self.stores.config();
        let decoder = Decoder::new(config.limits, config.legacy_dialect);
        let listener = self.stores.listener(port)?;
        Some(Direct {
            conversation: Conversation::new(listener.engine().connect(addr), decoder),
            input: BytesMut::new(),
            replies: ReplyBuffer::default(),
            woken: Arc::default(),
            is_held: false,
            has_turn: false,
        })
    }

    /// One step of writing everything again, if it is worth it. Returns whether there is another step.
    pub(super) fn tidy(&mut self, mutant: Option<Mutant>) -> bool {
        let Some(journal) = &self.journal else { return false };
        let is_early = mutant == Some(Mutant::TidiedTooEarly);
        match self.tidying.take() {
            None => {
                let is_first = |it: &Arc<StoreListener>| it.engine().port() == PORT;
                let all = mutant != Some(Mutant::TidiedWithoutRoundStores);
                let stores =
                    || self.stores.listeners().into_iter().filter(|it| all || is_first(it)).collect();
                let begun = journal.begin_tidying();
                self.tidying = begun.map(|tidy| Tidying::Stores(tidy, stores(), Walk::default()));
            }
            Some(Tidying::Stores(tidy, mut stores, mut walk)) => {
                let is_over = is_early || stores.last().is_none_or(|it| !it.engine().copy(&mut walk));
                if is_over {
                    stores.pop();
                    walk = Walk::default();
                }
                self.tidying = Some(if !is_early && !stores.is_empty() {
                    Tidying::Stores(tidy, stores, walk)
                } else {
                    let (links, journal) = (Arc::clone(&self.links), Arc::clone(journal));
                    let (rounds, gates) = (Arc::clone(&self.rounds), Arc::clone(&self.gates));
                    let watch = Arc::clone(&self.watch);
                    Tidying::Links(
                        tidy,
                        Box::pin(async move {
                            links.copy(&journal).await;
                            rounds.copy().await;
                            gates.copy().await;
                            watch.copy().await;
                        }),
                    )
                });
            }
            Some(Tidying::Links(tidy, mut task)) => {
                if mutant == Some(Mutant::TidiedWithoutLinks) || now_or_never(&mut task) {
                    journal.is_tidy(tidy);
                } else {
                    self.tidying = Some(Tidying::Links(tidy, task));
                }
            }
        }
        self.tidying.is_some()
    }
}

/// A client comes, sends these requests, and leaves. Returns the replies.
pub(super) fn ask(listener: &Arc<StoreListener>, requests: &[Request<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_hello(&mut bytes);
    for request in requests {
        assert!(encode_request(request, Dialect::C, &mut bytes), "a request of this dialect");
    }
    let decoder = Decoder::new(Limits::default(), LegacyRelease::default());
    let session = listener.engine().connect(([10, 0, 0, 1], 1).into());
    let mut replies = ReplyBuffer::default();
    Conversation::new(session, decoder).apply(&bytes, None, &mut replies, Waker::noop());
    replies.drain().flat_map(|piece| piece.bytes).collect()
}

/// A client comes, sets a key made of `prefix` and its rank, lists all keys, and leaves.
pub(super) fn write_and_list(listener: &Arc<StoreListener>, prefix: &[u8], rank: u32) -> Vec<String> {
    let key = [prefix, rank.to_string().as_bytes()].concat();
    let said =
        ask(listener, &[Request::Set { key: &key, value: Payload::borrowed(b"here") }, Request::ListKeys]);
    let mut rest = &said[8..];
    let mut keys = Vec::new();
    while let Some((len, after)) = rest.split_first_chunk() {
        let (key, after) = after.split_at(u64::from_le_bytes(*len) as usize);
        keys.push(String::from_utf8_lossy(key).into_owned());
        rest = after;
    }
    keys
}

impl Direct {
    /// Takes the bytes that have arrived, and a wake-up. Returns whether there are replies.
    pub(super) fn turn(&mut self) -> bool {
        let waker = Waker::from(Arc::clone(&self.woken));
        let mut input = std::mem::take(&mut self.input);
        if self.conversation.waiting {
            let _woken = self.conversation.poll_wake_up(&mut self.replies, &waker);
        }
        let done = self.conversation.apply(&input, None, &mut self.replies, &waker);
        self.input = input.split_off(done);
        !self.replies.is_empty()
    }

    /// Whether the replies may leave.
    pub(super) fn is_safe(&self) -> bool {
        self.conversation.poll_safe(&Context::from_waker(Waker::noop())) == Poll::Ready(())
    }
}

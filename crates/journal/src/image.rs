//! The state that rows add up to.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::row::{
    BarrierPlace, ClientRow, Epoch, JobRow, LinkId, LinkRow, Reached, Row, SessionId, SessionRow, StoreId,
    Table,
};
use rallypoint_map::{HashMap, NameMap};
use rallypoint_protocol::Payload;

/// The entries of one part of the server, by id.
pub type Entries = BTreeMap<Box<[u8]>, Box<[u8]>>;

/// Everything that a journal contains, as it was after the last whole commit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    /// The last start of a server with this journal.
    pub epoch: Epoch,
    /// The open stores.
    pub stores: BTreeMap<StoreId, StoreImage>,
    /// The links of relays.
    pub links: BTreeMap<LinkId, LinkImage>,
    /// The entries of other parts of the server, by table and id.
    pub entries: BTreeMap<Table, Entries>,
    /// The highest number of any store so far.
    pub last_store: StoreId,
    /// The highest number of any link so far.
    pub last_link: LinkId,
}

/// One store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreImage {
    /// The port on which it listened.
    pub port: u16,
    /// Its owner. Empty for a store of `--listen`.
    pub owner: Box<[u8]>,
    /// Its plain values.
    pub keys: NameMap<KeyImage>,
    /// Its queues.
    pub queues: HashMap<Box<[u8]>, QueueImage>,
    /// What the stale-key rules know of connections, by the connections' numbers.
    pub clients: BTreeMap<u32, ClientImage>,
    /// What connections have read, by group of addresses.
    pub reads: HashMap<Box<[u8]>, Readers>,
    /// What is known of a job beside its connections.
    pub job: JobImage,
}

/// Ranges of ranks that were read, by connection.
pub type Readers = BTreeMap<u32, BTreeSet<(u32, u32)>>;

/// One plain value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyImage {
    /// The value.
    pub value: Bytes,
    /// The life of a barrier to which it belongs.
    pub life: u32,
    /// The connection that wrote it, for an address.
    pub writer: Option<u32>,
}

/// One queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueImage {
    /// Its items by number, the oldest first.
    pub items: BTreeMap<u64, Bytes>,
}

/// What is known of a job beside its connections, see [`JobRow`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobImage {
    /// What workers that are gone added to `init/`.
    pub gone_share: i64,
    /// What will be dropped after a pause or with the last connection.
    pub idle: u8,
    /// How runs ended, as far as it is known.
    pub runs: Vec<(Box<[u8]>, u8)>,
}

impl From<JobRow<'_>> for JobImage {
    fn from(row: JobRow<'_>) -> Self {
        let runs = row.runs.into_iter().map(|(run, is)| (run.into(), is)).collect();
        Self { gone_share: row.gone_share, idle: row.idle, runs }
    }
}

/// What the stale-key rules know of one connection, see [`ClientRow`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientImage {
    /// The number of its role.
    pub role: u8,
    /// What it added to `init/`.
    pub worker_share: i64,
    /// The runs whose keys it has used.
    pub runs: Vec<Box<[u8]>>,
    /// The barrier at which it waits: key, arrivals, life.
    pub barrier: Option<(Box<[u8]>, u32, u32)>,
    /// Its process id.
    pub pid: Option<u32>,
}

/// The link of a relay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkImage {
    /// The link's relay. Without it, the link is gone.
    pub relay: Option<RelayImage>,
    /// Its sessions, by their numbers.
    pub sessions: BTreeMap<u32, SessionImage>,
}

/// A relay, see [`LinkRow`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayImage {
    /// Its name.
    pub name: Box<[u8]>,
    /// The life of the relay with this name.
    pub life: u64,
    /// Its address, as text.
    pub addr: Box<[u8]>,
    /// The runs for which its token is valid.
    pub runs: Option<Box<[u8]>>,
}

/// A session of a link. Rows about it may come in any order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionImage {
    /// Its state. Without it, the session is gone.
    pub state: Option<SessionState>,
    /// How far it has come.
    pub reached: Reached,
    /// Replies that the relay may still need, by their offset in the stream.
    pub replies: BTreeMap<u64, Bytes>,
}

/// The state of a session, see [`SessionRow`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionState {
    /// It goes on.
    Open {
        /// Its store.
        store: StoreId,
        /// The number of its connection in the store.
        conn: u32,
        /// The client's address, as text.
        client: Box<[u8]>,
    },
    /// It has ended.
    Over,
}

impl From<LinkRow<'_>> for RelayImage {
    fn from(row: LinkRow<'_>) -> Self {
        let runs = row.runs.map(Into::into);
        Self { name: row.name.into(), life: row.life, addr: row.addr.into(), runs }
    }
}

impl From<SessionRow<'_>> for SessionState {
    fn from(row: SessionRow<'_>) -> Self {
        match row {
            SessionRow::Open { store, conn, client } => Self::Open { store, conn, client: client.into() },
            SessionRow::Over => Self::Over,
        }
    }
}

impl SessionImage {
    /// The replies that the relay may still need, in order, and the offset of the first one. Rows may
    /// overlap. If rows before them are missing, the relay had already acknowledged those replies when the
    /// journal was tidied.
    pub fn unacknowledged(&self) -> (u64, Vec<Bytes>) {
        let done = self.reached.acknowledged;
        let mut from = self.reached.replied;
        let mut pieces = Vec::new();
        for (&at, bytes) in self.replies.range(..from).rev() {
            if from <= done || at.saturating_add(bytes.len() as u64) < from {
                break;
            }
            let begin = at.max(done);
            let within = |offset: u64| usize::try_from(offset.saturating_sub(at)).unwrap_or(usize::MAX);
            let piece = within(begin)..within(from);
            if bytes.get(piece.clone()).is_none() {
                break;
            }
            pieces.push(bytes.slice(piece));
            from = begin;
        }
        pieces.reverse();
        (from, pieces)
    }

    fn reply(&mut self, at: u64, bytes: &[u8], commit: Option<&Bytes>) {
        if !self.is_acknowledged(at, bytes) {
            self.replies.insert(at, keep(bytes, commit));
        }
    }

    fn reach(&mut self, reached: Reached) {
        self.reached = reached;
        while self.replies.first_key_value().is_some_and(|(&at, bytes)| self.is_acknowledged(at, bytes)) {
            self.replies.pop_first();
        }
    }

    /// Whether the relay has acknowledged a whole piece.
    fn is_acknowledged(&self, at: u64, bytes: &[u8]) -> bool {
        at.saturating_add(bytes.len() as u64) <= self.reached.acknowledged
    }
}

impl ClientImage {
    /// The row with these contents.
    pub fn as_row(&self) -> ClientRow<'_> {
        let barrier = self.barrier.as_ref();
        ClientRow {
            role: self.role,
            worker_share: self.worker_share,
            runs: self.runs.iter().map(|run| &**run).collect(),
            barrier: barrier.map(|(key, arrivals, life)| BarrierPlace {
                key,
                arrivals: *arrivals,
                life: *life,
            }),
            pid: self.pid,
        }
    }
}

impl From<ClientRow<'_>> for ClientImage {
    fn from(row: ClientRow<'_>) -> Self {
        Self {
            role: row.role,
            worker_share: row.worker_share,
            runs: row.runs.into_iter().map(Box::from).collect(),
            barrier: row.barrier.map(|place| (place.key.into(), place.arrivals, place.life)),
            pid: row.pid,
        }
    }
}

impl Image {
    /// Applies one row. Rows about the contents of a store that is not open are skipped.
    pub fn apply(&mut self, row: Row<'_>) {
        self.apply_of(row, None);
    }

    /// Applies one row of a commit. A value that makes up nearly the whole commit is not copied.
    pub(super) fn apply_of(&mut self, row: Row<'_>, commit: Option<&Bytes>) {
        match row {
            Row::Epoch(epoch) => {
                if epoch.life != self.epoch.life {
                    // Relays do not know this server: what they had ended with the previous one.
                    self.links.clear();
                }
                self.epoch = epoch;
            }
            Row::Whole(_) => {}
            Row::Store(id, open) => {
                self.last_store = self.last_store.max(id);
                match open {
                    Some(open) => {
                        let store = self.stores.entry(id).or_default();
                        (store.port, store.owner) = (open.port, open.owner.into());
                    }
                    None => drop(self.stores.remove(&id)),
                }
            }
            Row::Link(link, None) => drop(self.links.remove(&link)),
            Row::Link(link, Some(row)) => {
                self.last_link = self.last_link.max(link);
                self.links.entry(link).or_default().relay = Some(row.into());
            }
            Row::Session(SessionId { link, no }, None) => {
                if let Some(link) = self.links.get_mut(&link) {
                    link.sessions.remove(&no);
                }
            }
            Row::Session(id, Some(row)) => self.session(id).state = Some(row.into()),
            Row::Reached(id, reached) => self.session(id).reach(reached),
            Row::Reply(id, at, bytes) => self.session(id).reply(at, bytes, commit),
            Row::Entry(table, id, body) => {
                let entries = self.entries.entry(table).or_default();
                match body {
                    Some(body) => drop(entries.insert(id.into(), body.into())),
                    None => drop(entries.remove(id)),
                }
            }
            Row::Key(store, ..)
            | Row::Part(store, ..)
            | Row::Item(store, ..)
            | Row::Queue(store, ..)
            | Row::Client(store, ..)
            | Row::Read(store, ..)
            | Row::Unread(store, ..)
            | Row::Job(store, ..) => {
                if let Some(store) = self.stores.get_mut(&store) {
                    store.apply(row, commit);
                }
            }
        }
    }

    fn session(&mut self, SessionId { link, no }: SessionId) -> &mut SessionImage {
        self.links.entry(link).or_default().sessions.entry(no).or_default()
    }

    /// Forgets links and sessions without their main row: only later rows about them were read.
    pub(super) fn drop_remains(&mut self) {
        self.links.retain(|_, link| link.relay.is_some());
        for link in self.links.values_mut() {
            link.sessions.retain(|_, session| session.state.is_some());
        }
    }
}

impl KeyImage {
    /// From byte `at` on, the value is `more`.
    fn append(&mut self, at: u64, more: &[u8]) {
        let Some(at) = usize::try_from(at).ok().filter(|at| *at <= self.value.len()) else { return };
        self.value = grown(std::mem::take(&mut self.value), at, more);
    }
}

/// The first `at` bytes of `value`, followed by `more`: in place if nobody else holds the value and it has
/// the room. A new buffer gets an eighth more than it needs; not more, because this room is not counted as
/// held memory.
#[expect(clippy::arithmetic_side_effects, reason = "sizes of what is in memory")]
pub fn grown(value: Bytes, at: usize, more: &[u8]) -> Bytes {
    let room = at + more.len() + at / 8;
    let mut own = match value.try_into_mut() {
        Ok(mut own) if own.capacity() >= at + more.len() => {
            own.truncate(at);
            own.extend_from_slice(more);
            return own.freeze();
        }
        Ok(own) => Vec::from(own),
        Err(shared) => {
            let mut own = Vec::with_capacity(room);
            own.extend_from_slice(shared.get(..at).unwrap_or_default());
            own
        }
    };
    own.truncate(at);
    own.reserve_exact(room - at);
    own.extend_from_slice(more);
    own.into()
}

/// Bytes of a commit. Bytes that make up nearly the whole commit are not copied.
fn keep(bytes: &[u8], commit: Option<&Bytes>) -> Bytes {
    match commit {
        Some(commit) => Payload::owned_by(bytes, commit).to_stored(),
        None => Bytes::copy_from_slice(bytes),
    }
}

impl StoreImage {
    /// The highest number of any connection that it names, 0 if none. A later connection gets a higher one:
    /// it would be taken for that one.
    pub fn last_conn(&self) -> u32 {
        let clients = self.clients.keys().copied();
        let writers = self.keys.entries().filter_map(|(_, key)| key.writer);
        // What a client had read stays in the journal when it has gone.
        let readers = self.reads.values().flat_map(|readers| readers.keys().copied());
        clients.chain(writers).chain(readers).max().unwrap_or(0)
    }

    fn apply(&mut self, row: Row<'_>, commit: Option<&Bytes>) {
        match row {
            Row::Key(_, key, None) => self.keys.remove(key),
            Row::Key(_, key, Some(row)) => {
                let (life, writer) = (row.life, row.writer);
                self.keys.insert(key.into(), KeyImage { value: keep(row.value, commit), life, writer });
            }
            Row::Part(_, key, at, more) => {
                // If the value itself is missing, the journal is being tidied, and a row with the whole value
                // follows.
                if let Some(it) = self.keys.get_mut(key) {
                    it.append(at, more);
                }
            }
            Row::Item(_, key, number, item) => {
                self.queues.entry(key.into()).or_default().items.insert(number, keep(item, commit));
            }
            Row::Queue(_, key, first, next) => {
                if let Some(queue) = self.queues.get_mut(key) {
                    queue.items.split_off(&next);
                    queue.items = queue.items.split_off(&first);
                    if queue.items.is_empty() {
                        self.queues.remove(key);
                    }
                }
            }
            Row::Client(_, client, None) => drop(self.clients.remove(&client)),
            Row::Client(_, client, Some(row)) => {
                self.clients.insert(client, row.into());
            }
            Row::Read(_, client, group, Some(ranks)) => {
                let reads = self.reads.entry(group.into()).or_default();
                let read = reads.entry(client).or_default();
                // Usually a range has become longer.
                read.retain(|&(first, last)| first < ranks.0 || last > ranks.1);
                read.insert(ranks);
            }
            Row::Read(_, client, group, None) => {
                if let Some(reads) = self.reads.get_mut(group) {
                    reads.remove(&client);
                }
            }
            Row::Unread(_, Some(group)) => drop(self.reads.remove(group)),
            Row::Unread(_, None) => self.reads.clear(),
            Row::Job(_, job) => self.job = job.into(),
            Row::Epoch(_)
            | Row::Whole(_)
            | Row::Store(..)
            | Row::Link(..)
            | Row::Session(..)
            | Row::Reached(..)
            | Row::Reply(..)
            | Row::Entry(..) => {}
        }
    }
}

//! The state that rows add up to.

use std::collections::{BTreeMap, HashMap};

use super::row::{BarrierPlace, ClientRow, JobRow, Row, StoreId, Table};

/// What one part of the server keeps, by id.
pub type Entries = BTreeMap<Box<[u8]>, Box<[u8]>>;

/// All that a journal says, as it was after its last whole commit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    /// How often a server has started with this journal.
    pub epoch: u64,
    /// The open stores.
    pub stores: BTreeMap<StoreId, StoreImage>,
    /// The sessions of links, by their ids.
    pub sessions: HashMap<Box<[u8]>, SessionImage>,
    /// What other parts keep, by table and id.
    pub entries: BTreeMap<Table, Entries>,
    /// The highest number that a store has had.
    pub last_store: StoreId,
}

/// One store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreImage {
    /// Where it listened.
    pub port: u16,
    /// Whose it is; empty for a store of `--listen`.
    pub owner: Box<[u8]>,
    /// Its plain values.
    pub keys: HashMap<Box<[u8]>, KeyImage>,
    /// Its queues.
    pub queues: HashMap<Box<[u8]>, QueueImage>,
    /// What the rules know of connections, by their numbers.
    pub clients: BTreeMap<u32, ClientImage>,
    /// What is left of a job.
    pub job: JobImage,
}

/// One plain value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyImage {
    /// The value.
    pub value: Box<[u8]>,
    /// Which life of a barrier it is.
    pub life: u32,
    /// Which connection wrote it, for an address.
    pub writer: Option<u32>,
}

/// One queue: its items by their numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueImage {
    /// Oldest first.
    pub items: BTreeMap<u64, Box<[u8]>>,
}

/// What is left of a job: as in [`JobRow`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobImage {
    /// What workers that are gone had added.
    pub gone_share: i64,
    /// What goes after a pause or with the last connection.
    pub idle: u8,
    /// What is known of the ends of runs.
    pub runs: Vec<(Box<[u8]>, u8)>,
}

impl From<JobRow<'_>> for JobImage {
    fn from(row: JobRow<'_>) -> Self {
        let runs = row.runs.into_iter().map(|(run, is)| (run.into(), is)).collect();
        Self { gone_share: row.gone_share, idle: row.idle, runs }
    }
}

/// What the rules know of one connection: as in [`ClientRow`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientImage {
    /// The number of its role.
    pub role: u8,
    /// What it added to `init/`.
    pub worker_share: i64,
    /// The runs whose keys it used.
    pub runs: Vec<Box<[u8]>>,
    /// Where it waits: key, arrivals, life.
    pub barrier: Option<(Box<[u8]>, u32, u32)>,
}

/// How far a session has come: as in [`super::SessionRow`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionImage {
    /// The request that was applied last.
    pub applied: u64,
    /// Replies that were not acknowledged.
    pub replies: Box<[u8]>,
}

impl ClientImage {
    /// The row that says it.
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
        }
    }
}

impl Image {
    /// Takes in one row. What a store that is not open is said to hold is passed over.
    pub fn apply(&mut self, row: Row<'_>) {
        match row {
            Row::Epoch(epoch) => self.epoch = epoch,
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
            Row::Session(id, None) => drop(self.sessions.remove(id)),
            Row::Session(id, Some(row)) => {
                let session = SessionImage { applied: row.applied, replies: row.replies.into() };
                self.sessions.insert(id.into(), session);
            }
            Row::Entry(table, id, body) => {
                let entries = self.entries.entry(table).or_default();
                match body {
                    Some(body) => drop(entries.insert(id.into(), body.into())),
                    None => drop(entries.remove(id)),
                }
            }
            Row::Key(store, ..)
            | Row::Item(store, ..)
            | Row::Queue(store, ..)
            | Row::Client(store, ..)
            | Row::Job(store, ..) => {
                if let Some(store) = self.stores.get_mut(&store) {
                    store.apply(row);
                }
            }
        }
    }
}

impl StoreImage {
    fn apply(&mut self, row: Row<'_>) {
        match row {
            Row::Key(_, key, None) => drop(self.keys.remove(key)),
            Row::Key(_, key, Some(row)) => {
                let (life, writer) = (row.life, row.writer);
                self.keys.insert(key.into(), KeyImage { value: row.value.into(), life, writer });
            }
            Row::Item(_, key, number, item) => {
                self.queues.entry(key.into()).or_default().items.insert(number, item.into());
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
            Row::Job(_, job) => self.job = job.into(),
            Row::Epoch(_) | Row::Whole(_) | Row::Store(..) | Row::Session(..) | Row::Entry(..) => {}
        }
    }
}

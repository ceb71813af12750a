//! One row: the newest state of one thing, or that the thing is gone.
//!
//! A row consists of its kind (one byte), the length of its fields, and its fields. Releases can read each
//! other's rows:
//!
//! - New fields are only added at the end. A release that knows fewer fields skips the rest. A release that
//!   knows more uses defaults for missing ones.
//! - A kind below 128 must be understood: a release that does not know it refuses the journal, because it
//!   would lose state. A kind from 128 on is skipped by a release that does not know it.

use super::codec::{BadRow, Fields, put_bytes, put_number, put_option, put_signed};

/// A store, for as long as it is open. Its number is never used for another store, while a port may be.
pub type StoreId = u32;

/// One row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Row<'a> {
    /// A server has started and writes from here on.
    Epoch(Epoch),
    /// Everything that the server holds has been written again since the segment with this number began:
    /// earlier segments are not needed.
    Whole(u64),
    /// A store was opened, or was closed with everything in it.
    Store(StoreId, Option<OpenStore<'a>>),
    /// A plain value.
    Key(StoreId, &'a [u8], Option<KeyRow<'a>>),
    /// A plain value has grown: from this byte on it is this. A reader knows the value up to there, or gets
    /// the whole value later.
    Part(StoreId, &'a [u8], u64, &'a [u8]),
    /// The item with this number in a queue. Numbers go up by one and do not repeat while the queue has
    /// items.
    Item(StoreId, &'a [u8], u64, &'a [u8]),
    /// The numbers of a queue's first item and of its next one. If they are equal, the queue is gone.
    Queue(StoreId, &'a [u8], u64, u64),
    /// What the stale-key rules of a store know of a connection, by the connection's number.
    Client(StoreId, u32, Option<ClientRow<'a>>),
    /// A connection has read the addresses of these ranks of a group, in addition to earlier ones. Without
    /// ranks, its reads in this group are forgotten.
    Read(StoreId, u32, &'a [u8], Option<(u32, u32)>),
    /// Reads of all connections in this group of addresses are forgotten. Without a group, in all groups.
    Unread(StoreId, Option<&'a [u8]>),
    /// What the stale-key rules of a store know of a job, beside its connections.
    Job(StoreId, JobRow<'a>),
    /// The link of a relay, or the end of a link with all its sessions.
    Link(LinkId, Option<LinkRow<'a>>),
    /// A session of a link. It is removed when its relay knows that it has ended.
    Session(SessionId, Option<SessionRow<'a>>),
    /// How far a session has come.
    Reached(SessionId, Reached),
    /// A piece of a session's replies: its offset in the stream, and its bytes.
    Reply(SessionId, u64, &'a [u8]),
    /// Something that another part of the server keeps, in a form of its own.
    Entry(Table, &'a [u8], Option<&'a [u8]>),
}

/// One start of a server with this journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Epoch {
    /// The number of the start: each start has one more.
    pub number: u64,
    /// The identity by which relays know the server. It stays as long as nothing that the server said is
    /// lost. 0 means none.
    pub life: u64,
}

/// A link, for as long as its relay lives. Its number is never used again.
pub type LinkId = u32;

/// A session of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId {
    /// Its link.
    pub link: LinkId,
    /// Its number there.
    pub no: u32,
}

/// An open store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenStore<'a> {
    /// The port on which it listens.
    pub port: u16,
    /// Its owner, as the part that opened it writes it. Empty for a store of `--listen`.
    pub owner: &'a [u8],
}

/// A plain value and what belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyRow<'a> {
    /// The value.
    pub value: &'a [u8],
    /// For a barrier: the life of its count. An arrival from an earlier life is not in the count.
    pub life: u32,
    /// For an address: the number of the connection that wrote it.
    pub writer: Option<u32>,
}

/// What the stale-key rules, and the barriers, know of one connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientRow<'a> {
    /// The number of its role: worker, agent, or not known.
    pub role: u8,
    /// What it added to `init/`.
    pub worker_share: i64,
    /// The ids of the runs whose keys it has used.
    pub runs: Vec<&'a [u8]>,
    /// The barrier at which it waits.
    pub barrier: Option<BarrierPlace<'a>>,
    /// Its process id, if the client has said it.
    pub pid: Option<u32>,
}

/// The arrivals of one connection at a barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BarrierPlace<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// How many arrivals of the connection are counted.
    pub arrivals: u32,
    /// The life of the key in which they are counted.
    pub life: u32,
}

/// What is known of a job beside its connections.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobRow<'a> {
    /// What workers that are gone added to the worker count (`init/`).
    pub gone_share: i64,
    /// What will be dropped: the job's keys after a pause (1), or everything else with the last connection
    /// (2).
    pub idle: u8,
    /// Runs with a sum of flags: closed (1), finished (2), to be forgotten after a pause (4).
    pub runs: Vec<(&'a [u8], u8)>,
}

/// The link of a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkRow<'a> {
    /// The name of the relay.
    pub name: &'a [u8],
    /// The life of the relay with this name.
    pub life: u64,
    /// Its address, as text.
    pub addr: &'a [u8],
    /// The runs for which its token is valid, as a pattern. All runs if there is none.
    pub runs: Option<&'a [u8]>,
}

/// A session of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionRow<'a> {
    /// It goes on.
    Open {
        /// Its store.
        store: StoreId,
        /// The number of its connection in the store.
        conn: u32,
        /// The client's address, as text.
        client: &'a [u8],
    },
    /// It has ended. The rest of its replies is for its relay.
    Over,
}

/// How far a session has come: offsets in its two streams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reached {
    /// Its requests are applied up to here. An outstanding WAIT or BARRIER is not applied yet: the relay
    /// sends it again.
    pub applied: u64,
    /// The next reply begins here.
    pub replied: u64,
    /// The relay has acknowledged the replies up to here.
    pub acknowledged: u64,
    /// The number of its dialect.
    pub dialect: u8,
    /// It cannot go on from `applied`: requests behind an outstanding WAIT were applied, or part of a long
    /// answer was sent.
    pub is_ahead: bool,
    /// This many keys of the next request are done. The session goes on behind them, even if it `is_ahead`.
    /// Older releases do not know this field.
    pub begun: u64,
}

impl Reached {
    /// Whether a server that has not seen the session before can go on with it.
    pub const fn can_go_on(&self) -> bool {
        !self.is_ahead || self.begun > 0
    }
}

/// The subject of a [`Row::Entry`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// A run of the native rendezvous.
    Run,
    /// A node in such a run.
    Member,
    /// A pod at a gate.
    Announcement,
    /// A native barrier.
    Barrier,
    /// The history of a run, and since when it has been in its present state.
    Past,
    /// What an operator expects of a run.
    Expectation,
}

impl Table {
    /// Every table.
    pub const ALL: [Self; 6] =
        [Self::Run, Self::Member, Self::Announcement, Self::Barrier, Self::Past, Self::Expectation];

    /// Its name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Member => "member",
            Self::Announcement => "announcement",
            Self::Barrier => "barrier",
            Self::Past => "past",
            Self::Expectation => "expectation",
        }
    }
}

mod kind {
    pub(super) const EPOCH: u8 = 1;
    pub(super) const WHOLE: u8 = 2;
    pub(super) const STORE: u8 = 3;
    pub(super) const KEY: u8 = 4;
    pub(super) const ITEM: u8 = 5;
    pub(super) const QUEUE: u8 = 6;
    pub(super) const CLIENT: u8 = 7;
    pub(super) const JOB: u8 = 8;
    pub(super) const LINK: u8 = 9;
    pub(super) const SESSION: u8 = 10;
    pub(super) const REACHED: u8 = 11;
    pub(super) const REPLY: u8 = 12;
    pub(super) const RUN: u8 = 13;
    pub(super) const MEMBER: u8 = 14;
    pub(super) const ANNOUNCEMENT: u8 = 15;
    pub(super) const BARRIER: u8 = 16;
    pub(super) const READ: u8 = 17;
    pub(super) const UNREAD: u8 = 18;
    pub(super) const PART: u8 = 19;
    /// From here on, unknown kinds are skipped.
    pub(super) const MAY_BE_PASSED_OVER: u8 = 128;
    pub(super) const PAST: u8 = 128;
    pub(super) const EXPECTATION: u8 = 129;
}

impl Row<'_> {
    const fn kind(&self) -> u8 {
        match self {
            Self::Epoch(_) => kind::EPOCH,
            Self::Whole(_) => kind::WHOLE,
            Self::Store(..) => kind::STORE,
            Self::Key(..) => kind::KEY,
            Self::Part(..) => kind::PART,
            Self::Item(..) => kind::ITEM,
            Self::Queue(..) => kind::QUEUE,
            Self::Client(..) => kind::CLIENT,
            Self::Read(..) => kind::READ,
            Self::Unread(..) => kind::UNREAD,
            Self::Job(..) => kind::JOB,
            Self::Link(..) => kind::LINK,
            Self::Session(..) => kind::SESSION,
            Self::Reached(..) => kind::REACHED,
            Self::Reply(..) => kind::REPLY,
            Self::Entry(Table::Run, ..) => kind::RUN,
            Self::Entry(Table::Member, ..) => kind::MEMBER,
            Self::Entry(Table::Announcement, ..) => kind::ANNOUNCEMENT,
            Self::Entry(Table::Barrier, ..) => kind::BARRIER,
            Self::Entry(Table::Past, ..) => kind::PAST,
            Self::Entry(Table::Expectation, ..) => kind::EXPECTATION,
        }
    }

    /// Appends the row to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.kind());
        // Most rows are short, so one byte is reserved for the length. It is made longer where needed.
        let at = out.len();
        out.push(0);
        self.encode_fields(out);
        let len = out.len().saturating_sub(at).saturating_sub(1);
        if let Ok(short @ ..0x80) = u8::try_from(len) {
            out[at] = short;
        } else {
            let mut long = Vec::with_capacity(10);
            put_number(&mut long, len as u64);
            out.splice(at..=at, long);
        }
    }

    fn encode_fields(&self, out: &mut Vec<u8>) {
        match self {
            Self::Epoch(Epoch { number, life }) => {
                put_number(out, *number);
                put_number(out, *life);
            }
            Self::Whole(number) => put_number(out, *number),
            Self::Store(store, open) => {
                put_number(out, (*store).into());
                put_option(out, *open, |out, open| {
                    put_number(out, open.port.into());
                    put_bytes(out, open.owner);
                });
            }
            Self::Key(store, key, row) => {
                put_number(out, (*store).into());
                put_bytes(out, key);
                put_option(out, *row, |out, row| {
                    put_bytes(out, row.value);
                    put_number(out, row.life.into());
                    put_option(out, row.writer, |out, writer| put_number(out, writer.into()));
                });
            }
            Self::Part(store, key, number, bytes) | Self::Item(store, key, number, bytes) => {
                put_number(out, (*store).into());
                put_bytes(out, key);
                put_number(out, *number);
                put_bytes(out, bytes);
            }
            Self::Queue(store, key, first, next) => {
                put_number(out, (*store).into());
                put_bytes(out, key);
                put_number(out, *first);
                put_number(out, *next);
            }
            Self::Client(store, client, row) => {
                put_number(out, (*store).into());
                put_number(out, (*client).into());
                put_option(out, row.as_ref(), put_client);
            }
            Self::Read(store, client, group, ranks) => {
                put_number(out, (*store).into());
                put_number(out, (*client).into());
                put_bytes(out, group);
                put_option(out, *ranks, |out, (first, last)| {
                    put_number(out, first.into());
                    put_number(out, last.into());
                });
            }
            Self::Unread(store, group) => {
                put_number(out, (*store).into());
                put_option(out, *group, put_bytes);
            }
            Self::Job(store, job) => {
                put_number(out, (*store).into());
                put_signed(out, job.gone_share);
                out.push(job.idle);
                put_number(out, job.runs.len() as u64);
                for (run, is) in &job.runs {
                    put_bytes(out, run);
                    out.push(*is);
                }
            }
            Self::Link(link, row) => {
                put_number(out, (*link).into());
                put_option(out, *row, |out, row| {
                    put_bytes(out, row.name);
                    put_number(out, row.life);
                    put_bytes(out, row.addr);
                    put_option(out, row.runs, put_bytes);
                });
            }
            Self::Session(id, row) => {
                put_session_id(out, *id);
                put_option(out, *row, put_session);
            }
            Self::Reached(id, reached) => {
                put_session_id(out, *id);
                put_number(out, reached.applied);
                put_number(out, reached.replied);
                put_number(out, reached.acknowledged);
                out.push(reached.dialect);
                out.push(reached.is_ahead.into());
                if reached.begun > 0 {
                    put_number(out, reached.begun);
                }
            }
            Self::Reply(id, at, bytes) => {
                put_session_id(out, *id);
                put_number(out, *at);
                put_bytes(out, bytes);
            }
            Self::Entry(_, id, body) => {
                put_bytes(out, id);
                put_option(out, *body, put_bytes);
            }
        }
    }
}

fn put_session_id(out: &mut Vec<u8>, SessionId { link, no }: SessionId) {
    put_number(out, link.into());
    put_number(out, no.into());
}

fn put_session(out: &mut Vec<u8>, row: SessionRow<'_>) {
    let open = match row {
        SessionRow::Open { store, conn, client } => Some((store, conn, client)),
        SessionRow::Over => None,
    };
    put_option(out, open, |out, (store, conn, client)| {
        put_number(out, store.into());
        put_number(out, conn.into());
        put_bytes(out, client);
    });
}

fn put_client(out: &mut Vec<u8>, row: &ClientRow<'_>) {
    out.push(row.role);
    put_signed(out, row.worker_share);
    put_number(out, row.runs.len() as u64);
    for run in &row.runs {
        put_bytes(out, run);
    }
    put_option(out, row.barrier, |out, place| {
        put_bytes(out, place.key);
        put_number(out, place.arrivals.into());
        put_number(out, place.life.into());
    });
    put_option(out, row.pid, |out, pid| put_number(out, pid.into()));
}

/// The rows of a commit, in order. `Ok(None)` is a row that is skipped.
pub fn rows(bytes: &[u8]) -> impl Iterator<Item = Result<Option<Row<'_>>, BadRow>> {
    let mut fields = Fields::new(bytes);
    std::iter::from_fn(move || {
        let kind = fields.byte()?;
        let row = match fields.bytes() {
            Some(its) => decode(kind, Fields::new(its)),
            None => Err(BadRow::Malformed(kind)),
        };
        if row.is_err() {
            // Nothing behind a bad row can be trusted.
            fields = Fields::new(&[]);
        }
        Some(row)
    })
}

fn decode(kind: u8, fields: Fields<'_>) -> Result<Option<Row<'_>>, BadRow> {
    let table = match kind {
        kind::EPOCH..=kind::REPLY | kind::READ..=kind::PART => None,
        kind::RUN => Some(Table::Run),
        kind::MEMBER => Some(Table::Member),
        kind::ANNOUNCEMENT => Some(Table::Announcement),
        kind::BARRIER => Some(Table::Barrier),
        kind::PAST => Some(Table::Past),
        kind::EXPECTATION => Some(Table::Expectation),
        kind if kind >= kind::MAY_BE_PASSED_OVER => return Ok(None),
        _ => return Err(BadRow::Newer(kind)),
    };
    fields_of(kind, table, fields).map(Some).ok_or(BadRow::Malformed(kind))
}

fn fields_of(kind: u8, table: Option<Table>, mut its: Fields<'_>) -> Option<Row<'_>> {
    if let Some(table) = table {
        return Some(Row::Entry(table, its.bytes()?, its.option(Fields::bytes)?));
    }
    Some(match kind {
        kind::EPOCH => {
            let number = its.number()?;
            // Releases without links wrote no life.
            Row::Epoch(Epoch { number, life: its.number().unwrap_or(0) })
        }
        kind::WHOLE => Row::Whole(its.number()?),
        kind::STORE => Row::Store(
            its.small()?,
            its.option(|its| Some(OpenStore { port: its.number()?.try_into().ok()?, owner: its.bytes()? }))?,
        ),
        kind::KEY => Row::Key(
            its.small()?,
            its.bytes()?,
            its.option(|its| {
                let (value, life) = (its.bytes()?, its.small()?);
                Some(KeyRow { value, life, writer: its.option(Fields::small)? })
            })?,
        ),
        kind::PART => Row::Part(its.small()?, its.bytes()?, its.number()?, its.bytes()?),
        kind::ITEM => Row::Item(its.small()?, its.bytes()?, its.number()?, its.bytes()?),
        kind::QUEUE => Row::Queue(its.small()?, its.bytes()?, its.number()?, its.number()?),
        kind::CLIENT => Row::Client(its.small()?, its.small()?, its.option(client)?),
        kind::READ => Row::Read(
            its.small()?,
            its.small()?,
            its.bytes()?,
            its.option(|its| Some((its.small()?, its.small()?)))?,
        ),
        kind::UNREAD => Row::Unread(its.small()?, its.option(Fields::bytes)?),
        kind::JOB => Row::Job(its.small()?, job(&mut its)?),
        kind::LINK => Row::Link(
            its.small()?,
            its.option(|its| {
                let (name, life, addr) = (its.bytes()?, its.number()?, its.bytes()?);
                // Older releases wrote no runs.
                Some(LinkRow { name, life, addr, runs: its.option(Fields::bytes).flatten() })
            })?,
        ),
        kind::SESSION => Row::Session(session_id(&mut its)?, its.option(session)?),
        kind::REACHED => Row::Reached(
            session_id(&mut its)?,
            Reached {
                applied: its.number()?,
                replied: its.number()?,
                acknowledged: its.number()?,
                dialect: its.byte()?,
                is_ahead: its.byte()? != 0,
                begun: its.number().unwrap_or(0),
            },
        ),
        kind::REPLY => Row::Reply(session_id(&mut its)?, its.number()?, its.bytes()?),
        _ => return None,
    })
}

fn session_id(its: &mut Fields<'_>) -> Option<SessionId> {
    Some(SessionId { link: its.small()?, no: its.small()? })
}

fn session<'a>(its: &mut Fields<'a>) -> Option<SessionRow<'a>> {
    let open = its.option(|its| {
        let (store, conn, client) = (its.small()?, its.small()?, its.bytes()?);
        Some(SessionRow::Open { store, conn, client })
    })?;
    Some(open.unwrap_or(SessionRow::Over))
}

fn job<'a>(its: &mut Fields<'a>) -> Option<JobRow<'a>> {
    let (gone_share, idle) = (its.signed()?, its.byte()?);
    let mut runs = Vec::new();
    for _ in 0..its.number()? {
        runs.push((its.bytes()?, its.byte()?));
    }
    Some(JobRow { gone_share, idle, runs })
}

fn client<'a>(its: &mut Fields<'a>) -> Option<ClientRow<'a>> {
    let (role, worker_share) = (its.byte()?, its.signed()?);
    // Each run takes at least one byte, so a false number cannot cause a long loop or a large allocation.
    let mut runs = Vec::new();
    for _ in 0..its.number()? {
        runs.push(its.bytes()?);
    }
    let barrier = its
        .option(|its| Some(BarrierPlace { key: its.bytes()?, arrivals: its.small()?, life: its.small()? }))?;
    // Older releases wrote no process id.
    let pid = its.option(Fields::small).flatten();
    Some(ClientRow { role, worker_share, runs, barrier, pid })
}

//! What the store asks of its caller: replies, wake-ups, and two kinds of facts. A [`Cleanup`] is for the log
//! and the metrics and is never lost. An [`Observed`] is for `insight`, which explains jobs.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;

use rallypoint_protocol::Reply;
use rallypoint_protocol::ids::{ConnId, RunId, Timestamp};

/// Receives the effects of one request, in the order in which the peers must see them.
pub trait Effects {
    /// The next reply to the connection that made the request.
    fn reply(&mut self, reply: Reply<'_>);

    /// Whether there is memory for more replies to this request. Requests with many replies ask this.
    #[inline]
    fn has_room(&mut self) -> bool {
        true
    }

    /// Ends the wait that `conn` began at `since` with [`Reply::StopWaiting`]. `conn` may be the requesting
    /// connection itself.
    fn wake(&mut self, conn: ConnId, since: Timestamp);

    /// What the stale-key rules did. Rare: never one per request.
    fn cleanup(&mut self, cleanup: Cleanup);

    /// Whether [`Self::observe`] wants anything. If not, only rare observations are made.
    #[inline]
    fn observes(&self) -> bool {
        false
    }

    /// A fact about a job: a client came, or a connection used a key of PyTorch in a way that shows the job's
    /// progress. At most one for each write, none for reads.
    fn observe(&mut self, _: Observed) {}
}

/// A fact about a job or its clients, for `insight`. Only the use of keys that
/// [`rallypoint_protocol::keys`] knows is observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observed {
    /// A connection uses a key of PyTorch for the first time, or a key of this run for the first time.
    Client {
        /// The connection.
        conn: ConnId,
        /// Its address.
        peer: SocketAddr,
        /// Its process id, if it has said it.
        pid: Option<u32>,
        /// The key.
        key: Box<[u8]>,
    },
    /// A value was written, by any operation. A compare-set that failed writes nothing.
    Wrote {
        /// The connection that wrote it.
        conn: ConnId,
        /// The key.
        key: Box<[u8]>,
        /// The whole value after the write; for a counter its decimal text.
        value: Bytes,
    },
    /// The stale-key rules dropped a value.
    Dropped {
        /// The key.
        key: Box<[u8]>,
        /// Why.
        cause: DropCause,
    },
    /// A client cancelled its wait, as it does after a time-out; for a key that is of no job, once a second.
    GaveUp {
        /// The connection.
        conn: ConnId,
        /// A key that was still missing.
        key: Box<[u8]>,
        /// How long the client had waited.
        waited: Duration,
    },
    /// A process published something about itself.
    Published {
        /// The connection.
        conn: ConnId,
        /// The key.
        key: Box<[u8]>,
        /// The value of a debug server's key; of others it is not for us to know.
        address: Option<Bytes>,
    },
    /// A client said its process id.
    Came {
        /// The connection.
        conn: ConnId,
        /// Its address.
        peer: SocketAddr,
        /// Its process id.
        pid: u32,
    },
    /// The connection of a job, or of a client that had said its process id, has closed.
    Gone {
        /// The connection.
        conn: ConnId,
        /// Whether it had used a key that is not PyTorch's.
        used_own_keys: bool,
    },
    /// The server lost contact with a client and gave up its connection: whether the client still runs is not
    /// known.
    CutOff {
        /// The connection.
        conn: ConnId,
        /// The relay whose link was away for too long. `None` if the client's own host did not answer.
        link: Option<Box<str>>,
    },
    /// Two live processes wrote the same address: two jobs on one store, or two nodes with one rank.
    TwoWriters {
        /// The address.
        key: Box<[u8]>,
        /// The connection that wrote it first.
        first: ConnId,
        /// The connection that wrote it now.
        second: ConnId,
    },
    /// The whole store was emptied.
    StoreReset {
        /// Why.
        cause: DropCause,
    },
    /// A run that had finished is started again.
    RunRestarted {
        /// The run.
        run_id: RunId,
    },
    /// The observations before this one describe what the store of the previous server held.
    Restored,
}

/// Why keys were dropped without a client asking for it (`proto-notes/key-patterns.md` has the rules).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DropCause {
    /// The connection that wrote an address closed.
    WriterGone,
    /// The writer of an address was paired with a process that another process has replaced.
    PairedWithGone,
    /// All workers of an attempt are gone.
    AttemptOver,
    /// All workers of an attempt are gone; the key is below a process group's prefix, but matches no pattern.
    UnknownKey,
    /// A run's last connection has been gone for `--forget-run-after`.
    RunIdle,
    /// A closed or finished run's last connection has been gone long enough.
    RunOver,
    /// A job's last connection has been gone for `--reset-when-idle`.
    StoreIdle,
    /// The last connection of a store for one job (`--one-job`) has gone.
    OneJob,
    /// An operator asked for it.
    Operator,
}

impl DropCause {
    /// Every cause.
    pub const ALL: [Self; 9] = [
        Self::WriterGone,
        Self::PairedWithGone,
        Self::AttemptOver,
        Self::UnknownKey,
        Self::RunIdle,
        Self::RunOver,
        Self::StoreIdle,
        Self::OneJob,
        Self::Operator,
    ];

    /// The name in metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WriterGone => "writer_gone",
            Self::PairedWithGone => "paired_with_gone",
            Self::AttemptOver => "attempt_over",
            Self::UnknownKey => "unknown_key",
            Self::RunIdle => "run_idle",
            Self::RunOver => "run_over",
            Self::StoreIdle => "store_idle",
            Self::OneJob => "one_job",
            Self::Operator => "operator",
        }
    }
}

/// What the stale-key rules did, for the log and the metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cleanup {
    /// Keys were dropped.
    KeysDropped {
        /// Why.
        cause: DropCause,
        /// How many.
        keys: usize,
        /// One of them.
        example: Box<[u8]>,
    },
    /// The whole store was emptied.
    StoreReset {
        /// Why.
        cause: DropCause,
        /// How many keys and queues it held.
        keys: usize,
    },
    /// The last connection of a store has gone, and keys that no rule drops stay: the next client will read
    /// them.
    KeysStay {
        /// How many plain keys there are.
        keys: usize,
        /// One that matches no pattern.
        example: Box<[u8]>,
    },
    /// A run that had finished, and whose end was noted, is started again.
    RunRestarted,
}

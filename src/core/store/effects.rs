//! What the store asks of its caller: replies, wake-ups, and two kinds of facts. A [`Cleanup`] is for the log and
//! the metrics and is never lost. An [`Observed`] is for `insight`, which explains jobs.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;

use crate::core::ids::{ConnId, RunId, Timestamp};
use crate::core::protocol::Reply;

/// Takes what follows from one request, in the order in which the peers must see it.
pub trait Effects {
    /// The next reply to the connection that made the request.
    fn reply(&mut self, reply: Reply<'_>);

    /// Whether there is memory for more replies to this request. Asked by requests that have many.
    #[inline]
    fn has_room(&mut self) -> bool {
        true
    }

    /// Ends the wait that `conn` began at `since` with [`Reply::StopWaiting`]. `conn` may be the requesting connection
    /// itself.
    fn wake(&mut self, conn: ConnId, since: Timestamp);

    /// What the rules for stale keys did. Rare: never one per request.
    fn cleanup(&mut self, cleanup: Cleanup);

    /// Whether [`Self::observe`] wants anything. If not, only rare observations are made.
    #[inline]
    fn observes(&self) -> bool {
        false
    }

    /// Who came, and what a connection does with PyTorch's own keys, as far as it tells how a job gets on: at most one
    /// for each of its writes, none for its reads.
    fn observe(&mut self, _: Observed) {}
}

/// What was seen of a job, for `insight`, and who came. Only keys that [`crate::core::protocol::keys`] knows are observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observed {
    /// A connection uses one of PyTorch's own keys for the first time, or for the first time one of this run.
    Client {
        /// Who.
        conn: ConnId,
        /// From where.
        peer: SocketAddr,
        /// Its process id, where it told it.
        pid: Option<u32>,
        /// The key.
        key: Box<[u8]>,
    },
    /// A value was written, by whatever operation; a compare-set that failed writes nothing.
    Wrote {
        /// Who wrote it.
        conn: ConnId,
        /// The key.
        key: Box<[u8]>,
        /// The whole value now; for a counter its decimal text.
        value: Bytes,
    },
    /// A value was dropped by the rules for stale keys.
    Dropped {
        /// The key.
        key: Box<[u8]>,
        /// Why.
        cause: DropCause,
    },
    /// A client cancelled its wait, which it does when it times out.
    GaveUp {
        /// Who.
        conn: ConnId,
        /// A key that was still missing.
        key: Box<[u8]>,
        /// How long it had waited.
        waited: Duration,
    },
    /// A client told its process id.
    Came {
        /// Who.
        conn: ConnId,
        /// From where.
        peer: SocketAddr,
        /// Its process id.
        pid: u32,
    },
    /// A connection of a job, or of a client that had told its process id, is gone.
    Gone {
        /// Which.
        conn: ConnId,
        /// Whether it had used a key that is none of PyTorch's.
        used_own_keys: bool,
    },
    /// Contact with it was lost, and its connection is given up: what has become of it is not known.
    CutOff {
        /// Who.
        conn: ConnId,
        /// The relay whose link was away for too long; else its host has not answered.
        link: Option<Box<str>>,
    },
    /// Two live processes wrote the same address: two jobs on one store, or two nodes with one rank.
    TwoWriters {
        /// The address.
        key: Box<[u8]>,
        /// Who wrote it first.
        first: ConnId,
        /// Who wrote it now.
        second: ConnId,
    },
    /// An address was read whose writer is gone (only where spent addresses are kept, `--drop-spent off`).
    StaleRead {
        /// The address.
        key: Box<[u8]>,
        /// Who read it.
        reader: ConnId,
        /// How long its writer has been gone.
        writer_gone_for: Duration,
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
    /// All that was observed before this came from the store of the last server.
    Restored,
}

/// Why keys were dropped without a client asking for it (`proto-notes/key-patterns.md` has the rules).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DropCause {
    /// The connection that wrote an address closed.
    WriterGone,
    /// The writer of an address was paired with a process whose place another has taken.
    PairedWithGone,
    /// All workers of an attempt are gone.
    AttemptOver,
    /// As before; the keys are below a process group's prefix, but in no row of the table.
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

/// What the rules for stale keys did, for the log and the metrics.
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
    /// The last connection of a store has gone, and keys stay that no rule drops: the next client reads them.
    KeysStay {
        /// How many plain keys there are.
        keys: usize,
        /// One that is in no row.
        example: Box<[u8]>,
    },
    /// A run that had finished, and whose end was noted, is started again.
    RunRestarted,
}

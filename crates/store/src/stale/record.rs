//! What the stale-key rules know of one name.

use super::groups::GroupId;
use super::runs::RunNumber;
use crate::DropCause;
use rallypoint_protocol::ids::ConnId;
use rallypoint_protocol::keys::{RendezvousPart, Role};

/// What is known of a key of PyTorch, beside its value.
#[derive(Debug)]
pub(crate) struct Record {
    pub(super) kind: Kind,
    /// The role of the processes that use the key.
    pub(super) user: Role,
    pub(super) run: Option<RunNumber>,
    /// The connection that wrote the present value.
    pub(super) writer: Option<ConnId>,
    /// Position in its list: the addresses of its group, the left-overs, the ends of its run, or what its
    /// writer has published.
    pub(super) at: u32,
    /// Position among the names of its run.
    pub(super) in_run: u32,
    /// Position in the list of what its writer wrote.
    pub(super) in_wrote: u32,
}

impl Record {
    /// Bytes of a record with its places in lists, roughly.
    pub(super) const BYTES: usize = size_of::<Self>() + 40;

    /// Whether a use of this name says no more about a connection than a use of `other`.
    pub(crate) fn has_same_user_as(&self, other: &Self) -> bool {
        (self.user, self.run) == (other.user, other.run)
    }

    /// Whether it tells of a job. What was published may be of none.
    pub(crate) fn is_of_job(&self) -> bool {
        self.kind != Kind::Published
    }

    /// The connection that wrote the present value, where that matters.
    pub(crate) fn writer(&self) -> Option<ConnId> {
        self.writer
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    WorkerCount,
    /// `rank` is the rank of the process that writes the key. `is_first` says that it is the first key which
    /// that process writes.
    Address {
        group: GroupId,
        rank: u32,
        is_first: bool,
    },
    AttemptLeftover,
    Unknown,
    Message,
    Published,
    Rendezvous(RendezvousPart),
    /// A key of a rendezvous that ends with its agents.
    Hosted,
}

impl Kind {
    /// Whether its value may tell that its run is over.
    pub(super) fn is_end(self) -> bool {
        use RendezvousPart::{ExitBarrier, ExitBarrierDone, State};
        matches!(self, Self::Hosted | Self::Rendezvous(State | ExitBarrierDone { .. } | ExitBarrier { .. }))
    }

    /// Why rule 2 drops it. `None` if it does not.
    pub(super) fn attempt_over(self) -> Option<DropCause> {
        match self {
            Self::AttemptLeftover => Some(DropCause::AttemptOver),
            Self::Unknown => Some(DropCause::UnknownKey),
            _ => None,
        }
    }
}

//! What the rules know of one name.

use super::groups::GroupId;
use super::runs::RunNumber;
use crate::core::ids::{ConnId, Timestamp};
use crate::core::protocol::keys::{RendezvousPart, Role};
use crate::core::store::DropCause;

/// What is known of one of PyTorch's own keys, beside its value.
#[derive(Debug)]
pub(in crate::core::store) struct Record {
    pub(super) kind: Kind,
    /// Whose key it is.
    pub(super) user: Role,
    pub(super) run: Option<RunNumber>,
    /// The connection that wrote the present value.
    pub(super) writer: Option<ConnId>,
    /// When that connection closed; only where spent addresses are kept.
    pub(super) writer_gone_at: Option<Timestamp>,
    /// Position among its like: the addresses of its group, the leftovers, or the ends of its run.
    pub(super) at: u32,
    /// Position among the names of its run.
    pub(super) in_run: u32,
    /// Position among what its writer wrote.
    pub(super) in_wrote: u32,
}

impl Record {
    /// What a record costs, with its places in the lists of others, roughly.
    pub(super) const BYTES: usize = size_of::<Self>() + 40;

    /// Whether a connection that uses the name tells no more of itself than with the `other`.
    pub(in crate::core::store) fn tells_as(&self, other: &Self) -> bool {
        (self.user, self.run) == (other.user, other.run)
    }

    /// The connection that wrote the present value, where that matters.
    pub(in crate::core::store) fn writer(&self) -> Option<ConnId> {
        self.writer
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    WorkerCount,
    /// `rank` is that of the process that writes it, `is_first` whether that is the first key it writes.
    Address {
        group: GroupId,
        rank: u32,
        is_first: bool,
    },
    AttemptLeftover,
    Unknown,
    Message,
    Rendezvous(RendezvousPart),
}

impl Kind {
    /// Whether its value may tell that its run is over.
    pub(super) fn is_end(self) -> bool {
        use RendezvousPart::{ExitBarrier, ExitBarrierDone, State};
        matches!(self, Self::Rendezvous(State | ExitBarrierDone { .. } | ExitBarrier { .. }))
    }

    /// Why rule 2 drops it.
    pub(super) fn attempt_over(self) -> Option<DropCause> {
        match self {
            Self::AttemptLeftover => Some(DropCause::AttemptOver),
            Self::Unknown => Some(DropCause::UnknownKey),
            _ => None,
        }
    }
}

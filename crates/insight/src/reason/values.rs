//! The parts of sentences: why a key is not there, how far a run had got, what was seen of somebody last.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;

use crate::presence::Presence;
use rallypoint_api::KnownFrom;
use rallypoint_protocol::ids::{Elapsed, counted};

/// What was seen of somebody last, without its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub(crate) enum Last {
    NeverSeen,
    Announced,
    Connected,
    Silent,
    Away,
    Unreachable,
    Left,
    TakenOut,
    Closed,
    Finished,
    NotBack,
    Unknown,
}

impl Last {
    /// Gone, in one of two ways.
    pub(crate) const fn gone(is_cut_off: bool) -> Self {
        if is_cut_off { Self::Unreachable } else { Self::Closed }
    }

    /// How those are listed of whom this was seen.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::NeverSeen => "never seen",
            Self::Announced => "announced itself",
            Self::Connected => "connected",
            Self::Silent => "nothing heard",
            Self::Away => "link away",
            Self::Unreachable => "given up, as its host or link did not answer",
            Self::Left => "left",
            Self::TakenOut => "taken out of the round",
            Self::Closed => "connection closed",
            Self::Finished => "finished",
            Self::NotBack => "not seen since the server was restarted",
            Self::Unknown => "in the round before",
        }
    }
}

impl From<&Presence> for Last {
    fn from(presence: &Presence) -> Self {
        match presence {
            Presence::NeverSeen => Self::NeverSeen,
            Presence::Announced => Self::Announced,
            Presence::Connected { .. } => Self::Connected,
            Presence::Silent { .. } => Self::Silent,
            Presence::Away { .. } => Self::Away,
            Presence::Unreachable { .. } => Self::Unreachable,
            Presence::Left { .. } => Self::Left,
            Presence::TakenOut { .. } => Self::TakenOut,
            Presence::Closed { .. } => Self::Closed,
            Presence::Finished => Self::Finished,
            Presence::NotBack { .. } => Self::NotBack,
            Presence::Unknown => Self::Unknown,
        }
    }
}

impl From<KnownFrom> for Last {
    fn from(known_from: KnownFrom) -> Self {
        match known_from {
            KnownFrom::Announced | KnownFrom::TurnedAway => Self::Announced,
            KnownFrom::RoleExchange | KnownFrom::Named | KnownFrom::NodeRank => Self::NeverSeen,
            KnownFrom::EarlierRound => Self::Unknown,
            KnownFrom::Died => Self::Closed,
            KnownFrom::Lost => Self::Silent,
            KnownFrom::Left => Self::Left,
            KnownFrom::Removed => Self::TakenOut,
            KnownFrom::Connected => Self::Connected,
            KnownFrom::NotBack => Self::NotBack,
        }
    }
}

/// Why a key of a program is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Absence {
    /// Nobody has written it.
    NotWritten,
    /// It was written and deleted, or it is not known any more whether it was.
    NotThere,
    /// A client deleted it, or took its last item.
    Deleted,
    /// The connection of the process that publishes it closed so long ago.
    WriterGone(Elapsed),
    /// An operator reset the store so long ago: it may have been there before.
    Reset(Elapsed),
}

impl Display for Absence {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotWritten => f.write_str("which nobody has written"),
            Self::NotThere => f.write_str("which does not exist"),
            Self::Deleted => f.write_str("which was there: a client deleted it, or took its last item"),
            Self::WriterGone(ago) => write!(f, "whose writer's connection closed {ago} ago"),
            Self::Reset(ago) => write!(f, "which does not exist; an operator reset the store {ago} ago"),
        }
    }
}

/// What a run is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Agents, one a node.
    Node,
    /// Worker processes without agents.
    Process,
}

impl Unit {
    pub(crate) const fn one(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Process => "process",
        }
    }

    pub(crate) const fn many(self) -> &'static str {
        match self {
            Self::Node => "nodes",
            Self::Process => "processes",
        }
    }

    pub(crate) fn count(self, n: u32) -> String {
        counted(n, self.one(), self.many())
    }
}

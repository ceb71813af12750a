//! The parts of reasons: durations, names, where a process is.

use serde::Serialize;
use std::fmt::{self, Display, Formatter};

use rallypoint_protocol::ids::Elapsed;

/// What to do where several runs would be complete together.
pub(super) const ONE_JOB: &str = "if these are one job, start every node with the same --rdzv-id (--run-id) and --rdzv-endpoint; else look \
                                  whether the pods of the missing nodes are scheduled and reach this server";

/// Why a key of a program is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Absence {
    /// Nobody has written it.
    NotWritten,
    /// It was written and deleted, or it is not known any more whether it was.
    NotThere,
    /// A client deleted it, or took its last item.
    Deleted,
    /// The process that publishes it has closed its connection.
    WriterGone {
        /// How long ago.
        ago: Elapsed,
    },
    /// An operator reset the store: it may have been there before.
    Reset {
        /// How long ago.
        ago: Elapsed,
    },
}

impl Display for Absence {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotWritten => f.write_str("which nobody has written"),
            Self::NotThere => f.write_str("which does not exist"),
            Self::Deleted => f.write_str("which was there: a client deleted it, or took its last item"),
            Self::WriterGone { ago } => write!(f, "whose writer's connection closed {ago} ago"),
            Self::Reset { ago } => write!(f, "which does not exist; an operator reset the store {ago} ago"),
        }
    }
}

/// Whether a node that comes had been in its round before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrival {
    /// It had not.
    First,
    /// It had, or another process in its place.
    Again,
    /// It was never away: others had taken it out, as nothing came of it, and it goes on with the round.
    Back,
}

/// Whether others have taken nodes out of the round that send no heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TakenOut {
    /// They have, and nothing came since.
    Now,
    /// They had, and something came since.
    Before,
}

/// How far a run had got when a node of it was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// It waited for the next round.
    Waiting,
    /// Its round was not complete.
    Joining,
    /// Its round was not complete, and is now: the others count on it.
    Counted,
    /// The round was complete; what its workers do is not seen here.
    RoundComplete,
    /// Its ranks come together here, and not all had published their addresses.
    RanksComing,
    /// All ranks had published their addresses here.
    RanksComplete,
}

impl Display for Moment {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Waiting => "while waiting for the next round",
            Self::Joining => "while joining",
            Self::Counted => "while joining, and the others count on it, as the round is complete",
            Self::RoundComplete => "after the round was complete",
            Self::RanksComing => "before all ranks had published their addresses",
            Self::RanksComplete => "after all ranks had published their addresses",
        })
    }
}

/// What a run is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Agents, one a node.
    Node,
    /// Worker processes without agents.
    Process,
}

impl Unit {
    pub(crate) fn count(self, n: u32) -> String {
        let one = match self {
            Self::Node => "node",
            Self::Process => "process",
        };
        format!("{n} {}", if n == 1 { one } else { self.many() })
    }

    pub(super) const fn many(self) -> &'static str {
        match self {
            Self::Node => "nodes",
            Self::Process => "processes",
        }
    }
}

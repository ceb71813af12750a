//! One process that is a rank.

use std::net::{IpAddr, SocketAddr};

use crate::facts::run::world::connected::Process;
use crate::reason::{Evidence, Presence, Sighting};
use rallypoint_api::Seen;
use rallypoint_protocol::ids::{ConnId, Timestamp};

/// One rank.
#[derive(Debug, Clone)]
pub(crate) struct RankInfo {
    pub(crate) conn: ConnId,
    pub(crate) peer: SocketAddr,
    pub(crate) pid: Option<u32>,
    pub(crate) host: Option<String>,
    /// Where it listens for the others, as it has published.
    pub(crate) listens: Option<IpAddr>,
    pub(crate) joined: Timestamp,
    pub(crate) gone: Option<Timestamp>,
    /// It is gone with its link: what has become of it is not known.
    pub(crate) is_cut_off: bool,
    /// The world size that its address is made for.
    pub(crate) size: Option<u32>,
    /// How often it had made its groups before: only ranks that have made them equally often meet.
    pub(crate) made_before: Option<u32>,
    pub(crate) standing: Standing,
    /// Other processes have its address and process id.
    pub(crate) shares: bool,
}

/// What has become of the address that a process published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is there for those who meet, or was until its process ended.
    Published,
    /// It was for the meeting before: its process had met, or ended before that.
    OfBefore,
    /// It was dropped, or written over, while the process was there.
    Dropped,
}

/// A process that has told its rank, and maybe its host.
pub(crate) fn rank_label(rank: u32, host: Option<&str>, peer: SocketAddr) -> String {
    host.map_or_else(|| format!("rank {rank} at {}", peer.ip()), |host| format!("rank {rank} on {host}"))
}

/// Who is called like others: with its process id.
pub(crate) fn with_pid(who: String, pid: Option<u32>) -> String {
    match pid.filter(|pid| !who.contains(&format!("process {pid} "))) {
        Some(pid) if !who.contains(" (pid ") => format!("{who} (pid {pid})"),
        _ => who,
    }
}

impl RankInfo {
    pub(crate) fn is_live(&self) -> bool {
        self.gone.is_none()
    }

    pub(crate) fn is_published(&self) -> bool {
        self.standing == Standing::Published
    }

    /// Its address was dropped, or written over, while it was there.
    pub(crate) fn is_dropped(&self) -> bool {
        self.standing == Standing::Dropped
    }

    /// Its connection closed.
    pub(crate) fn closed(&self, rank: u32, at: Timestamp) -> Evidence {
        let (who, peer) = (self.label(rank), Some(self.peer));
        Evidence { seen: Seen::Closed, who, peer, pid: self.pid, key: None, at }
    }

    /// How it has gone: its connection closed, or was given up.
    pub(crate) fn gone_as(&self) -> Option<Sighting> {
        Some(Sighting::at(Presence::gone(self.is_cut_off), self.gone?))
    }

    /// The process, where it told its id and no other has it.
    pub(crate) fn process(&self) -> Option<Process> {
        Some((self.peer.ip(), self.pid.filter(|_| !self.shares)?))
    }

    /// It published its address.
    pub(crate) fn wrote(&self, rank: u32) -> Evidence {
        Evidence { seen: Seen::Wrote, ..self.closed(rank, self.joined) }
    }

    pub(crate) fn label(&self, rank: u32) -> String {
        rank_label(rank, self.host.as_deref(), self.peer)
    }

    /// One process, which may have two connections: the old one closes after the new one is there.
    pub(crate) fn is_same_process(&self, other: &Self) -> bool {
        self.conn == other.conn || self.process().is_some() && self.process() == other.process()
    }
}

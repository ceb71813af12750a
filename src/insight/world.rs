//! The worker ranks of a run, as far as they use this server: who has published its address, who is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::run::GATHER;
use super::view::ExpectedFrom;
use crate::ids::{ConnId, Uptime};

/// Ranks that are tracked in one run.
pub(super) const MOST_RANKS: u32 = 131_072;

/// One rank.
#[derive(Debug, Clone)]
pub(super) struct RankInfo {
    pub(super) conn: ConnId,
    pub(super) addr: IpAddr,
    pub(super) pid: Option<u32>,
    pub(super) host: Option<String>,
    pub(super) joined: Uptime,
    pub(super) gone: Option<Uptime>,
    /// The world size that its address is made for.
    pub(super) size: Option<u32>,
}

/// The ranks of one attempt.
#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) attempt: Option<u32>,
    pub(super) ranks: BTreeMap<u32, RankInfo>,
    /// Worker processes that are connected.
    pub(super) connected: BTreeSet<ConnId>,
    pub(super) size: Option<(u32, ExpectedFrom)>,
    pub(super) started: Option<Uptime>,
    pub(super) completed: Option<Uptime>,
    /// An NCCL id was published.
    pub(super) nccl: bool,
    /// Ranks that ended before all had met, not yet told.
    pub(super) lost: Vec<(u32, Uptime)>,
    /// When the last of them ended.
    pub(super) ended: Option<Uptime>,
    /// Live ranks whose address was dropped because the other end of their connection is replaced.
    pub(super) unpublished: BTreeMap<u32, ConnId>,
    /// Ranks that two live processes have published: the first and the second.
    pub(super) claimed_twice: BTreeMap<u32, (ConnId, ConnId)>,
    /// Two ranks whose addresses are made for different world sizes.
    pub(super) differ: Option<(u32, u32, u32, u32)>,
}

/// What a gloo address tells beside the address.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct GlooAddress {
    pub(super) host: Option<String>,
    pub(super) size: Option<u32>,
}

/// Reads the value that a rank writes under `…//cpu//G/r`: a host name with its length, an address with its length,
/// and 8 bytes for each rank of the group (seen with 2.4.1 and 2.15.0 at 2, 4 and 8 ranks).
pub(super) fn read_gloo(value: &[u8]) -> GlooAddress {
    const LONGEST_HOST: usize = 256;
    let number = |bytes: &[u8]| usize::try_from(u64::from_le_bytes(bytes.try_into().ok()?)).ok();
    let read = || {
        let (len, rest) = value.split_at_checked(8)?;
        let len = number(len).filter(|len| (1..=LONGEST_HOST).contains(len))?;
        let (host, rest) = rest.split_at_checked(len)?;
        let host = std::str::from_utf8(host).ok().filter(|host| !host.chars().any(char::is_control))?;
        Some((host.to_owned(), rest))
    };
    let Some((host, rest)) = read() else { return GlooAddress::default() };
    let size = || {
        let (len, rest) = rest.split_at_checked(8)?;
        let rest = rest.get(number(len)?..)?;
        let ranks = u32::try_from(rest.len() / 8).ok()?;
        (rest.len() % 8 == 0 && (1..=MOST_RANKS).contains(&ranks)).then_some(ranks)
    };
    GlooAddress { host: Some(host), size: size() }
}

impl World {
    /// A rank published its address.
    pub(super) fn publish(&mut self, rank: u32, attempt: Option<u32>, info: RankInfo, now: Uptime) {
        let gone: Option<Vec<Uptime>> = self.ranks.values().map(|info| info.gone).collect();
        let is_long_over =
            gone.and_then(|gone| gone.into_iter().max()).is_some_and(|at| now.since(at) >= GATHER);
        if is_long_over || attempt != self.attempt {
            self.begin(attempt);
        } else if self.completed.is_some() {
            // Some of them start again.
            self.ranks.retain(|_, info| info.gone.is_none());
            self.completed = None;
            self.started = None;
            self.lost.clear();
        }
        if rank >= MOST_RANKS {
            return;
        }
        let holder = self.ranks.get(&rank).filter(|info| info.gone.is_none()).map(|info| info.conn);
        if let Some(first) = holder.or_else(|| self.unpublished.get(&rank).copied())
            && first != info.conn
            && self.connected.contains(&first)
        {
            self.claimed_twice.insert(rank, (first, info.conn));
        }
        self.started.get_or_insert(now);
        if let Some(size) = info.size {
            if self.differ.is_none()
                && let Some((&other, &RankInfo { size: Some(says), .. })) = self
                    .ranks
                    .iter()
                    .find(|(_, info)| info.gone.is_none() && info.size.is_some_and(|s| s != size))
            {
                self.differ = Some((other, says, rank, size));
            }
            if self.size.is_none_or(|(_, from)| from == ExpectedFrom::GlooAddress) {
                self.size = Some((size, ExpectedFrom::GlooAddress));
            }
        }
        self.connected.insert(info.conn);
        self.ended = None;
        self.ranks.insert(rank, info);
    }

    fn begin(&mut self, attempt: Option<u32>) {
        let connected = std::mem::take(&mut self.connected);
        let size = self.size.filter(|(_, from)| *from != ExpectedFrom::GlooAddress);
        *self = Self { attempt, connected, size, ..Self::default() };
    }

    /// The address of a live rank was dropped: it was paired with one that is gone or replaced.
    pub(super) fn unpublish(&mut self, rank: u32) {
        let Some(conn) = self.ranks.get(&rank).filter(|info| info.gone.is_none()).map(|info| info.conn)
        else {
            return;
        };
        self.unpublished.insert(rank, conn);
        if self.completed.is_none() {
            self.ranks.remove(&rank);
        }
    }

    /// A second job: each of its ranks is one of a live process already. Told once.
    pub(super) fn take_second_job(&mut self) -> Option<(u32, ConnId, ConnId)> {
        let &(first, second) = self.claimed_twice.values().next()?;
        let ranks = self.claimed_twice.len() as u32;
        if ranks < 2 || self.size.is_none_or(|(size, _)| ranks < size) {
            return None;
        }
        self.claimed_twice.clear();
        Some((ranks, first, second))
    }

    /// Sets `completed` once every rank has published its address. Returns whether that is new.
    pub(super) fn check_complete(&mut self, now: Uptime) -> bool {
        let Some((size, _)) = self.size else { return false };
        let is_complete = self.joined() >= size;
        if is_complete && self.completed.is_none() {
            self.completed = Some(self.ranks.values().map(|info| info.joined).max().unwrap_or(now));
            return true;
        }
        false
    }

    /// A worker's connection closed.
    pub(super) fn leave(&mut self, conn: ConnId, rank: Option<u32>, now: Uptime) {
        self.connected.remove(&conn);
        if let Some(rank) = rank {
            self.unpublished.retain(|&other, &mut first| (other, first) != (rank, conn));
            self.claimed_twice
                .retain(|&other, &mut (first, second)| other != rank || (first != conn && second != conn));
        }
        if let Some(rank) = rank
            && let Some(info) = self.ranks.get_mut(&rank).filter(|info| info.conn == conn)
        {
            info.gone = Some(now);
            if self.completed.is_none() && self.lost.len() < MOST_RANKS as usize {
                self.lost.push((rank, now));
            }
        }
        if self.connected.is_empty() && (!self.ranks.is_empty() || self.nccl) {
            self.ended = Some(now);
        }
    }

    /// Ranks that are there.
    pub(super) fn joined(&self) -> u32 {
        self.ranks.values().filter(|info| info.gone.is_none()).count() as u32
    }

    /// The rank that came last, and when.
    pub(super) fn last(&self) -> Option<(u32, &RankInfo)> {
        self.ranks.iter().max_by_key(|(_, info)| info.joined).map(|(&rank, info)| (rank, info))
    }

    pub(super) fn label(&self, rank: u32) -> String {
        match self.ranks.get(&rank) {
            Some(RankInfo { host: Some(host), .. }) => format!("rank {rank} on {host}"),
            Some(info) => format!("rank {rank} at {}", info.addr),
            None => format!("rank {rank}"),
        }
    }
}

//! The worker ranks of a run, as far as they use this server: which have published their address, and which are gone.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::limits::SETTLE;
use crate::api::{ExpectedFrom, Seen};
use crate::core::ids::{ConnId, Timestamp, count, is_plain};
use crate::core::insight::reason::{Evidence, Finding, Names, Reason};

/// Ranks that are tracked in one run.
pub(in crate::core::insight) const MOST_RANKS: u32 = 131_072;

/// Who has been beside a job for so long is not its next attempt.
const STRANGER: Duration = Duration::from_secs(3);
/// A rank that gives up on another ends within this time, or else goes on.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// One rank.
#[derive(Debug, Clone)]
pub(in crate::core::insight) struct RankInfo {
    pub(in crate::core::insight) conn: ConnId,
    pub(in crate::core::insight) peer: SocketAddr,
    pub(in crate::core::insight) pid: Option<u32>,
    pub(in crate::core::insight) host: Option<String>,
    pub(in crate::core::insight) joined: Timestamp,
    pub(in crate::core::insight) gone: Option<Timestamp>,
    /// It is gone with its link: what has become of it is not known.
    pub(in crate::core::insight) is_cut_off: bool,
    /// The world size that its address is made for.
    pub(in crate::core::insight) size: Option<u32>,
    /// How often it had made its groups before: only ranks that have made them equally often meet.
    pub(in crate::core::insight) made_before: Option<u32>,
    /// Its address was dropped while it was there.
    pub(in crate::core::insight) withdrawn: Option<Withdrawn>,
}

/// Why the address of a live rank is not there any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core::insight) enum Withdrawn {
    /// It was paired with a process whose place another took.
    Paired,
    /// Another process with this rank published its own, and has gone.
    Overwritten,
    /// An operator reset the store, or a rule emptied it.
    Reset(Timestamp),
}

/// The address and the process id. Containers may share both.
pub(super) type Process = (IpAddr, u32);

/// Connections of workers. A program that makes its process group again may keep the connections of the one before.
#[derive(Debug, Default)]
pub(in crate::core::insight) struct Connected {
    conns: BTreeMap<ConnId, Option<Process>>,
    /// How many connections each process has that told its id.
    processes: BTreeMap<Process, u32>,
    /// Connections whose process is not known: each is taken for one.
    unnamed: usize,
    /// How many processes there were, at most.
    most: usize,
}

impl Connected {
    fn insert(&mut self, conn: ConnId, process: Option<Process>) {
        if self.conns.insert(conn, process).is_some() {
            return;
        }
        match process {
            Some(process) => {
                let conns = self.processes.entry(process).or_default();
                *conns = conns.saturating_add(1);
            }
            None => self.unnamed = self.unnamed.saturating_add(1),
        }
        self.most = self.most.max(self.processes());
    }

    fn remove(&mut self, conn: ConnId) {
        match self.conns.remove(&conn) {
            Some(Some(process)) => {
                if let Entry::Occupied(mut conns) = self.processes.entry(process) {
                    match conns.get().saturating_sub(1) {
                        0 => drop(conns.remove()),
                        left => *conns.get_mut() = left,
                    }
                }
            }
            Some(None) => self.unnamed = self.unnamed.saturating_sub(1),
            None => {}
        }
    }

    pub(in crate::core::insight) fn is_empty(&self) -> bool {
        self.conns.is_empty()
    }

    fn contains(&self, conn: ConnId) -> bool {
        self.conns.contains_key(&conn)
    }

    fn has(&self, process: Process) -> bool {
        self.processes.contains_key(&process)
    }

    fn processes(&self) -> usize {
        self.processes.len().saturating_add(self.unnamed)
    }

    /// For the next meeting, of those that are there.
    pub(super) fn counted_anew(self) -> Self {
        Self { most: self.processes(), ..self }
    }
}

/// The ranks of one attempt.
#[derive(Debug, Default)]
pub(in crate::core::insight) struct World {
    pub(in crate::core::insight) attempt: Option<u32>,
    pub(in crate::core::insight) ranks: BTreeMap<u32, RankInfo>,
    /// Worker processes that are connected.
    pub(in crate::core::insight) connected: Connected,
    /// When they met first, if the processes of the meeting before meet once more.
    pub(super) first_met: Option<Timestamp>,
    pub(in crate::core::insight) size: Option<(u32, ExpectedFrom)>,
    pub(in crate::core::insight) started: Option<Timestamp>,
    pub(in crate::core::insight) completed: Option<Timestamp>,
    /// When all of a meeting had come last: who was connected then, and told no rank, is none of them.
    pub(in crate::core::insight) last_met: Option<Timestamp>,
    /// An NCCL id was published, or where a worker of RPC listens. Who meets like this does not tell its rank.
    pub(in crate::core::insight) meets_otherwise: bool,
    /// Ranks that ended before all had met, not yet reported.
    pub(in crate::core::insight) lost: Vec<Lost>,
    /// Ranks that gave up on others, by connection: that they end then is no other's fault.
    pub(in crate::core::insight) gave_up: BTreeMap<ConnId, Timestamp>,
    /// When the last of them ended.
    pub(in crate::core::insight) ended: Option<Timestamp>,
    /// Ranks whose process ended and whose place another took.
    pub(in crate::core::insight) replaced: BTreeSet<u32>,
    /// Who held a rank before: when the ranks met last, or until the address was dropped because the other end of its
    /// connection is replaced.
    pub(in crate::core::insight) former: BTreeMap<u32, RankInfo>,
    /// All of `former` had met and were there when processes came that are none of them: strangers, or those that take
    /// their places.
    pub(super) met_before: Option<Met>,
    /// Strangers were beside those who had met, and have outlived them.
    pub(super) outlived: bool,
    /// Ranks that two live processes have published: the first and the second.
    pub(in crate::core::insight) claimed_twice: BTreeMap<u32, (ConnId, ConnId)>,
    /// The first of these: the rank is theirs again if the second ends before all have met.
    pub(in crate::core::insight) rivals: BTreeMap<u32, RankInfo>,
    /// The world size of the last address that shows one.
    pub(in crate::core::insight) last_size: Option<u32>,
    /// Two ranks whose addresses are made for different world sizes.
    pub(in crate::core::insight) differ: Option<Differ>,
    /// Since all had met, one of them wrote what none writes before it has reached the others: a key of a sub-group, or of
    /// the program.
    pub(in crate::core::insight) went_on: bool,
    /// Some of them came before the server was restarted. Others may have come and gone then: whether all had met is not
    /// known.
    pub(super) is_of_before: bool,
}

/// A rank that ended before all had met.
#[derive(Debug)]
pub(in crate::core::insight) struct Lost {
    pub(super) closed: Evidence,
    /// It had given up on another just before.
    pub(super) gave_up: bool,
}

/// A meeting that was complete.
#[derive(Debug, Clone, Copy)]
pub(in crate::core::insight) struct Met {
    pub(in crate::core::insight) at: Timestamp,
    pub(super) ranks: u32,
}

/// Ranks that cannot meet: each is prepared for another number of ranks.
#[derive(Debug, Clone, Copy)]
pub(in crate::core::insight) struct Differ {
    rank: u32,
    says: u32,
    other: u32,
    other_says: u32,
    /// When it is told, so that others may have come by then.
    due: Timestamp,
    /// The first has met with others already, and may be about to leave them: it counts when it is still there then.
    unless_gone: bool,
    told: bool,
}

/// Two jobs that publish the same ranks.
#[derive(Debug)]
pub(in crate::core::insight) struct SecondJob {
    pub(in crate::core::insight) ranks: u32,
    /// A process of the first job.
    pub(in crate::core::insight) first: ConnId,
    /// The one with the same rank.
    pub(in crate::core::insight) second: ConnId,
}

/// What a gloo address shows besides the address.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::core::insight) struct GlooAddress {
    pub(in crate::core::insight) host: Option<String>,
    pub(in crate::core::insight) size: Option<u32>,
}

/// Reads the value that a rank writes under `…//cpu//G/r`: a host name with its length, an address with its length,
/// and 8 bytes for each rank of the group (seen with 2.4.1 and 2.15.0 at 2, 4 and 8 ranks). Older releases write a socket
/// address of 128 bytes and a number of 8 for each other rank, without a host name (seen with 2.1.2 at 2 and 3 ranks).
pub(in crate::core::insight) fn read_gloo(value: &[u8]) -> GlooAddress {
    const LONGEST_HOST: usize = 256;
    const OLD_PAIR: usize = 136;
    const INET: [[u8; 2]; 2] = [[2, 0], [10, 0]];
    if !value.is_empty()
        && value.len().is_multiple_of(OLD_PAIR)
        && value.chunks(OLD_PAIR).all(|pair| INET.iter().any(|family| pair.starts_with(family)))
    {
        let size = u32::try_from((value.len() / OLD_PAIR).saturating_add(1))
            .ok()
            .filter(|ranks| *ranks <= MOST_RANKS);
        return GlooAddress { host: None, size };
    }
    let number = |bytes: &[u8]| usize::try_from(u64::from_le_bytes(bytes.try_into().ok()?)).ok();
    let read = || {
        let (len, rest) = value.split_at_checked(8)?;
        let len = number(len).filter(|len| (1..=LONGEST_HOST).contains(len))?;
        let (host, rest) = rest.split_at_checked(len)?;
        let host = std::str::from_utf8(host).ok().filter(|host| host.chars().all(is_plain))?;
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

/// Who is called like others: with its process id.
pub(in crate::core::insight) fn with_pid(who: String, pid: Option<u32>) -> String {
    match pid.filter(|_| !who.starts_with("process ")) {
        Some(pid) if !who.contains(" (pid ") => format!("{who} (pid {pid})"),
        _ => who,
    }
}

impl RankInfo {
    fn is_live(&self) -> bool {
        self.gone.is_none()
    }

    /// That its connection closed.
    pub(in crate::core::insight) fn closed(&self, rank: u32, at: Timestamp) -> Evidence {
        let (who, peer) = (self.label(rank), Some(self.peer));
        Evidence { seen: Seen::Closed, who, peer, pid: self.pid, key: None, at }
    }

    /// The process, where it told its id.
    fn process(&self) -> Option<Process> {
        Some((self.peer.ip(), self.pid?))
    }

    /// That it published its address.
    fn wrote(&self, rank: u32) -> Evidence {
        Evidence { seen: Seen::Wrote, ..self.closed(rank, self.joined) }
    }

    fn label(&self, rank: u32) -> String {
        match &self.host {
            Some(host) => format!("rank {rank} on {host}"),
            None => format!("rank {rank} at {}", self.peer.ip()),
        }
    }

    /// One process with two connections, the old of which was seen to close after the new one was there.
    fn is_same_process(&self, other: &Self) -> bool {
        self.peer.ip() == other.peer.ip() && self.pid.is_some() && self.pid == other.pid
    }
}

impl World {
    /// A rank published its address. Returns whether a meeting begins with it of which nobody was in the one before.
    pub(super) fn publish(&mut self, rank: u32, attempt: Option<u32>, info: RankInfo) -> bool {
        let now = info.joined;
        let nobody_stays = !self.ranks.values().any(RankInfo::is_live);
        let mut begins = false;
        let gone: Option<Vec<Timestamp>> = self.ranks.values().map(|info| info.gone).collect();
        let all_gone = gone.and_then(|gone| gone.into_iter().max());
        let all_gone = all_gone.filter(|_| !self.former.values().any(RankInfo::is_live));
        // Processes that have met and meet again close their connections before.
        let is_new = |before: &RankInfo| !before.is_same_process(&info);
        let is_other_job = self.completed.is_some() && self.ranks.get(&rank).is_none_or(is_new);
        let is_over = all_gone.is_some_and(|at| is_other_job || now.since(at) >= SETTLE);
        if is_over || attempt != self.attempt {
            let former = if is_over { self.take_unmet() } else { BTreeMap::new() };
            self.begin(attempt, former);
            begins = true;
        } else if self.completed.is_some() {
            // They meet again. Some may not even have left the last meeting.
            let mut former = std::mem::take(&mut self.former);
            former.append(&mut self.ranks);
            let meets_again = former.get(&rank).is_some_and(|before| before.is_same_process(&info));
            let first_met = self.first_met.or(self.completed).filter(|_| meets_again);
            let all_are_there =
                former.values().all(|member| member.is_live() && !member.is_same_process(&info));
            let met = self.completed.filter(|_| all_are_there);
            let met_before = met.map(|at| Met { at, ranks: count(former.len()) });
            self.begin(attempt, former);
            (self.first_met, self.met_before, begins) = (first_met, met_before, true);
        }
        if rank >= MOST_RANKS {
            return false;
        }
        // One of those who met meets again: with those that have come.
        self.met_before = self.met_before.filter(|_| self.former.get(&rank).is_none_or(is_new));
        let holder = if self.met_before.is_some() {
            self.former.get(&rank).cloned()
        } else {
            self.former.remove(&rank)
        };
        let is_other = |before: &RankInfo| before.conn != info.conn && !before.is_same_process(&info);
        if self.ranks.get(&rank).or(holder.as_ref()).is_some_and(is_other) {
            self.replaced.insert(rank);
        }
        if let Some(first) = self.ranks.get(&rank).or(holder.as_ref())
            && first.conn != info.conn
            && first.is_live()
            && self.connected.contains(first.conn)
            && !first.is_same_process(&info)
        {
            self.claimed_twice.insert(rank, (first.conn, info.conn));
            if self.met_before.is_none() || self.ranks.contains_key(&rank) {
                self.rivals.insert(rank, first.clone());
            }
        }
        self.started.get_or_insert(now);
        if let Some(size) = info.size {
            // Nearly always they agree: then none is looked for.
            if self.differ.is_none() && self.last_size.is_some_and(|last| last != size) {
                // Strangers take nobody's place.
                let is_there = self.met_before.is_none() && holder.as_ref().is_some_and(RankInfo::is_live);
                let was_not_there = !is_there;
                self.differ = self.find_different(rank, size, now + SETTLE, was_not_there);
            }
            self.last_size = Some(size);
            if self.size.is_none_or(|(_, from)| from == ExpectedFrom::GlooAddress) {
                self.size = Some((size, ExpectedFrom::GlooAddress));
            }
        }
        self.enter(info.conn, info.process());
        self.ranks.insert(rank, info);
        begins && nobody_stays
    }

    /// All that came and did not meet: what became of them is told of those that the next ones wait for.
    pub(super) fn take_unmet(&mut self) -> BTreeMap<u32, RankInfo> {
        if self.completed.is_some() {
            return BTreeMap::new();
        }
        let mut unmet = std::mem::take(&mut self.former);
        unmet.append(&mut self.ranks);
        unmet.retain(|_, info| !info.is_live());
        unmet
    }

    /// A live rank that is prepared for another world size than `size`. One that has met already counts only beside a
    /// rank that was not there: else they meet again as fewer or more.
    fn find_different(&self, rank: u32, size: u32, due: Timestamp, was_not_there: bool) -> Option<Differ> {
        let find = |ranks: &BTreeMap<u32, RankInfo>, unless_gone| {
            let mut live = ranks.iter().filter(|(_, info)| info.is_live());
            let found =
                live.find_map(|(&other, info)| Some((other, info.size.filter(|&says| says != size)?)));
            found.map(|(first, says)| Differ {
                rank: first,
                says,
                other: rank,
                other_says: size,
                due,
                unless_gone,
                told: false,
            })
        };
        find(&self.ranks, false).or_else(|| if was_not_there { find(&self.former, true) } else { None })
    }

    /// Two ranks that disagree on the world size. Reported once.
    pub(super) fn take_different(&mut self, now: Timestamp) -> Option<Finding> {
        let differ = self.differ.as_mut().filter(|differ| !differ.told)?;
        if differ.unless_gone && !self.former.get(&differ.rank).is_some_and(RankInfo::is_live) {
            self.differ = None;
            return None;
        }
        if now < differ.due {
            return None;
        }
        if !differ.unless_gone {
            // Some may have ended meanwhile, and others come; of those that are there the addresses may have been dropped.
            let dropped = self.former.iter().filter(|(_, info)| info.withdrawn.is_some());
            // Of two that claim one rank each may be prepared for another number.
            let live =
                self.ranks.iter().chain(&self.rivals).chain(dropped).filter(|(_, info)| info.is_live());
            let mut sizes = live.filter_map(|(&rank, info)| Some((rank, info.size?)));
            let first = sizes.next();
            let other = first.and_then(|(_, says)| sizes.find(|&(_, other)| other != says));
            let (Some((rank, says)), Some((other, other_says))) = (first, other) else {
                self.differ = None;
                return None;
            };
            *differ = Differ { rank, says, other, other_says, ..*differ };
        }
        differ.told = true;
        let Differ { rank, says, other: other_rank, other_says, .. } = *differ;
        let (ranks, others) = (self.prepared_for(rank, says), self.prepared_for(other_rank, other_says));
        let reason = Reason::WorldSizesDiffer { rank, says, ranks, other_rank, other_says, others };
        let wrote = |rank| self.holder(rank).map(|info| info.wrote(rank));
        Some(Finding::new(reason, "", now).seen([rank, other_rank].into_iter().filter_map(wrote)))
    }

    /// The ranks that are prepared for `size` ranks: `rank`, and all that are there.
    fn prepared_for(&self, rank: u32, size: u32) -> Names {
        let all = self.former.iter().chain(&self.ranks).chain(&self.rivals);
        let is_it = |info: &RankInfo| info.is_live() && info.size == Some(size);
        let ranks: BTreeSet<u32> =
            all.filter(|(_, info)| is_it(info)).map(|(&rank, _)| rank).chain([rank]).collect();
        Names::of(ranks.iter().map(|rank| format!("rank {rank}")))
    }

    /// That a rank published its address, of those that are there.
    pub(super) fn addresses(&self) -> impl Iterator<Item = Evidence> {
        let live = self.ranks.iter().filter(|(_, info)| info.is_live());
        live.map(|(&rank, info)| info.wrote(rank))
    }

    fn begin(&mut self, attempt: Option<u32>, former: BTreeMap<u32, RankInfo>) {
        let connected = std::mem::take(&mut self.connected).counted_anew();
        // Two jobs may meet with each other's processes meanwhile.
        let claimed_twice = std::mem::take(&mut self.claimed_twice);
        let size = self.size.filter(|(_, from)| *from != ExpectedFrom::GlooAddress);
        *self = Self {
            attempt,
            connected,
            size,
            former,
            claimed_twice,
            last_size: self.last_size,
            last_met: self.last_met,
            ..Self::default()
        };
    }

    /// The address of a live rank was dropped.
    pub(super) fn unpublish(&mut self, rank: u32, why: Withdrawn) {
        // Once all have met, no rank needs it.
        // And who is a stranger beside those who have met cannot meet with them anyway.
        if self.met_at().is_none()
            && self.ranks.get(&rank).is_some_and(RankInfo::is_live)
            && let Some(info) = self.ranks.remove(&rank)
        {
            self.former.insert(rank, RankInfo { withdrawn: Some(why), ..info });
        }
    }

    /// All that was written is gone.
    pub(super) fn reset(&mut self, at: Timestamp) {
        for rank in self.ranks.keys().copied().collect::<Vec<_>>() {
            self.unpublish(rank, Withdrawn::Reset(at));
        }
    }

    /// A second job: a live process already has each of its ranks. Reported once.
    pub(super) fn take_second_job(&mut self) -> Option<SecondJob> {
        let &(first, second) = self.claimed_twice.values().next()?;
        let ranks = count(self.claimed_twice.len());
        if ranks < 2 || self.size.is_none_or(|(size, _)| ranks < size) {
            return None;
        }
        self.claimed_twice.clear();
        Some(SecondJob { ranks, first, second })
    }

    /// Sets `completed` once every rank has published its address. Returns whether that is new.
    ///
    /// Called for every rank that comes: at the next look they may have left again.
    pub(super) fn check_complete(&mut self) -> bool {
        let Some((size, _)) = self.size else { return false };
        let differ = self.differ.as_ref().is_some_and(|differ| !differ.unless_gone);
        let can_be = self.completed.is_none() && !differ && self.ranks.len() >= size as usize;
        if !can_be {
            return false;
        }
        let fits = |info: &&RankInfo| info.is_live() && info.size.is_none_or(|other| other == size);
        let mut fitting = self.ranks.values().filter(fits).peekable();
        let made_before = fitting.peek().and_then(|info| info.made_before);
        if fitting.filter(|info| info.made_before == made_before).count() < size as usize {
            return false;
        }
        self.completed = self.ranks.values().map(|info| info.joined).max();
        self.last_met = self.completed;
        // Ranks that left before that have come back.
        self.lost.clear();
        true
    }

    /// A worker is connected, as this process if that is known.
    pub(super) fn enter(&mut self, conn: ConnId, process: Option<Process>) {
        self.connected.insert(conn, process);
        self.ended = None;
    }

    /// A rank gave up on another.
    pub(super) fn gives_up(&mut self, conn: ConnId, now: Timestamp) {
        if self.connected.contains(conn) {
            self.gave_up.insert(conn, now);
        }
    }

    /// A worker's connection closed.
    pub(super) fn leave(&mut self, conn: ConnId, rank: Option<u32>, is_cut_off: bool, now: Timestamp) {
        self.connected.remove(conn);
        let gave_up = self.gave_up.remove(&conn).is_some_and(|at| now.since(at) < ENDS_WITHIN);
        if let Some(rank) = rank {
            self.claimed_twice
                .retain(|&other, &mut (first, second)| other != rank || (first != conn && second != conn));
            let of_former = self.former.get_mut(&rank).into_iter();
            let its_own = of_former.chain(self.ranks.get_mut(&rank)).filter(|info| info.conn == conn);
            let mut of_this_meeting = None;
            for info in its_own {
                (info.gone, info.is_cut_off) = (Some(now), is_cut_off);
                if info.withdrawn.is_some() || info.joined >= self.started.unwrap_or(now) {
                    of_this_meeting = Some(info.closed(rank, now));
                }
            }
            self.rivals.retain(|_, info| info.conn != conn);
            let had_met = self.completed.is_some() || self.is_of_before;
            if let Some(closed) = &mut of_this_meeting
                && !had_met
                && let Some(rival) = self.rivals.remove(&rank)
            {
                closed.who = with_pid(std::mem::take(&mut closed.who), closed.pid);
                if self.met_before.is_some() {
                    self.ranks.insert(rank, rival);
                } else {
                    self.ranks.remove(&rank);
                    self.former.insert(rank, RankInfo { withdrawn: Some(Withdrawn::Overwritten), ..rival });
                }
            }
            if let Some(closed) = of_this_meeting.filter(|_| !had_met && !is_cut_off)
                && self.lost.len() < MOST_RANKS as usize
            {
                // Another may take its place before it is told.
                self.lost.push(Lost { closed, gave_up });
            }
        }
        if self.connected.is_empty() {
            self.ended.get_or_insert(now);
        }
    }

    /// When all ended who had met. Others that are connected are none of them: a tool, a script that watches.
    fn all_ended(&self) -> Option<Timestamp> {
        let gone = |info: &RankInfo| {
            let is_there = info.process().is_some_and(|process| self.connected.has(process));
            info.gone.filter(|_| !is_there)
        };
        let gone: Option<Vec<_>> = self.ranks.values().chain(self.former.values()).map(gone).collect();
        gone?.into_iter().max().filter(|_| self.completed.is_some())
    }

    /// The meeting before, if its ranks go on while others come that are none of them.
    pub(in crate::core::insight) fn goes_on(&self) -> Option<Met> {
        self.met_before.filter(|_| self.completed.is_none())
    }

    /// Whether this rank is one of those who had met, and ended before strangers that were beside them.
    pub(in crate::core::insight) fn was_outlived(&self, rank: u32) -> bool {
        self.outlived
            && self.former.get(&rank).is_some_and(|info| info.gone.is_some() && info.withdrawn.is_none())
    }

    /// When all had met: those who are there, or those who go on beside others.
    pub(in crate::core::insight) fn met_at(&self) -> Option<Timestamp> {
        self.completed.or(self.goes_on().map(|met| met.at))
    }

    /// Those who came after all had met were strangers if they have left before them, and the next ranks if not.
    /// Returns the meeting whose ranks have all ended while others are there, and when that was.
    pub(super) fn settle(&mut self) -> Option<(Met, Timestamp)> {
        self.ended = self.ended.or_else(|| self.all_ended());
        self.settle_size();
        let met = self.met_before?;
        let is_there = |ranks: &BTreeMap<u32, RankInfo>| ranks.values().any(RankInfo::is_live);
        match (is_there(&self.former), is_there(&self.ranks)) {
            (true, true) => None,
            (false, true) => {
                self.met_before = None;
                let ended = self.former.values().filter_map(|info| info.gone).max()?;
                // The next ranks of a job may come while the last ones leave.
                self.outlived = self.started.is_some_and(|came| ended.since(came) >= STRANGER);
                Some((met, ended))
            }
            (_, false) => {
                self.return_to(met);
                None
            }
        }
    }

    /// Ranks that disagreed on the world size may have left: when all who are there agree, that is the size.
    fn settle_size(&mut self) {
        if !self.differ.as_ref().is_some_and(|differ| differ.told && !differ.unless_gone) {
            return;
        }
        let all = self.ranks.values().chain(self.former.values()).chain(self.rivals.values());
        let mut sizes = all.filter(|info| info.is_live()).filter_map(|info| info.size);
        if let Some(size) = sizes.next().filter(|size| sizes.all(|other| other == *size)) {
            self.differ = None;
            self.last_size = Some(size);
            if self.size.is_none_or(|(_, from)| from == ExpectedFrom::GlooAddress) {
                self.size = Some((size, ExpectedFrom::GlooAddress));
            }
        }
    }

    fn return_to(&mut self, met: Met) {
        self.ranks = std::mem::take(&mut self.former);
        (self.completed, self.started, self.met_before) = (Some(met.at), Some(met.at), None);
        self.last_size = self.ranks.values().find_map(|info| info.size);
        let is_told = self.size.is_some_and(|(_, from)| from != ExpectedFrom::GlooAddress);
        self.size = if is_told { self.size } else { Some((met.ranks, ExpectedFrom::GlooAddress)) };
        self.differ = None;
        self.replaced.clear();
        self.lost.clear();
    }

    /// The ranks that have ended, and when. What has become of those that are gone with their link is not known.
    pub(in crate::core::insight) fn ended_ranks(&self) -> impl Iterator<Item = (u32, &RankInfo, Timestamp)> {
        let ranks = self.meeting().0.iter().filter(|(_, info)| !info.is_cut_off);
        ranks.filter_map(|(&rank, info)| Some((rank, info, info.gone?)))
    }

    /// How many ranks there should be.
    pub(in crate::core::insight) fn size(&self) -> Option<u32> {
        self.size.map(|(ranks, _)| ranks)
    }

    /// The ranks of the meeting that counts, and how many there should be, unless they disagree on it: those who met last,
    /// while only processes have come since that are prepared for another number.
    pub(in crate::core::insight) fn meeting(&self) -> (&BTreeMap<u32, RankInfo>, Option<u32>) {
        if let Some(met) = self.goes_on() {
            return (&self.former, Some(met.ranks));
        }
        match self.differ.as_ref().filter(|differ| differ.told) {
            Some(differ) if !differ.unless_gone => (&self.ranks, self.size_that_meets()),
            Some(differ) if self.former.len() == differ.says as usize => (&self.former, Some(differ.says)),
            _ => (&self.ranks, self.size()),
        }
    }

    /// How many ranks those count on who have not met.
    pub(in crate::core::insight) fn size_to_meet(&self) -> Option<u32> {
        if self.goes_on().is_some() { self.size() } else { self.meeting().1 }
    }

    /// A world size of which all ranks are there.
    fn size_that_meets(&self) -> Option<u32> {
        let mut sizes: BTreeMap<u32, u32> = BTreeMap::new();
        let live = self.ranks.iter().filter(|(_, info)| info.is_live());
        for size in live.filter_map(|(&rank, info)| info.size.filter(|&size| rank < size)) {
            let ranks = sizes.entry(size).or_default();
            *ranks = ranks.saturating_add(1);
        }
        sizes.into_iter().find_map(|(size, ranks)| (size == ranks).then_some(size))
    }

    /// Whether the process whose connection closed is there with another one.
    pub(super) fn has_come_again(&self, closed: &Evidence) -> bool {
        let process = closed.peer.map(|peer| peer.ip()).zip(closed.pid);
        process.is_some_and(|process| self.connected.has(process))
    }

    /// Worker processes that are connected. Where containers share addresses and process ids, at least their ranks.
    pub(in crate::core::insight) fn processes(&self) -> u32 {
        count(self.connected.processes()).max(count(self.live().count()))
    }

    /// How many worker processes there were, at most.
    pub(super) fn most_processes(&self) -> u32 {
        let most = if self.outlived { 0 } else { self.connected.most };
        count(self.ranks.len().max(most))
    }

    /// Ranks that are there, whether their address still is or not: those that met before go on.
    pub(in crate::core::insight) fn present(&self) -> u32 {
        self.joined().saturating_add(count(self.without_address().count()))
    }

    /// Ranks that are there and have published their address, which may have been dropped since.
    pub(in crate::core::insight) fn published(&self) -> u32 {
        let size = self.goes_on().and(self.size());
        let fits = |info: &RankInfo| size.is_none() || info.size.is_none() || info.size == size;
        let joined = self.ranks.values().filter(|info| info.is_live() && fits(info)).count();
        if size.is_some() {
            return count(joined);
        }
        let dropped = self.without_address().filter(|(_, info)| info.withdrawn.is_some());
        count(joined.saturating_add(dropped.count()))
    }

    /// Ranks that are there and have not come again since they met.
    pub(in crate::core::insight) fn not_again(&self) -> impl Iterator<Item = u32> {
        self.without_address().filter(|(_, info)| info.withdrawn.is_none()).map(|(&rank, _)| rank)
    }

    /// Ranks that are there, and whose address is not: it was dropped, or they have not come again since they met.
    fn without_address(&self) -> impl Iterator<Item = (&u32, &RankInfo)> {
        let has_come = |rank| self.ranks.get(rank).is_some_and(RankInfo::is_live);
        self.former.iter().filter(move |(rank, info)| info.is_live() && !has_come(rank))
    }

    /// How a rank is shown beside these of the meeting that counts: see `RankGrid`.
    pub(in crate::core::insight) fn shown(&self, meeting: &BTreeMap<u32, RankInfo>, rank: u32) -> char {
        match (meeting.get(&rank), self.former.get(&rank)) {
            (Some(info), _) if info.is_live() => 'j',
            (Some(_), _) => 'x',
            (None, Some(info)) if info.is_live() => 'o',
            (None, Some(info)) if info.withdrawn.is_some() => 'x',
            (None, _) => '.',
        }
    }

    /// How many ranks all who are there count on: the least that one of them does, if they disagree.
    fn agreed_size(&self) -> Option<u32> {
        let size = self.size()?;
        if self.differ.is_none() {
            return Some(size);
        }
        let live = self.ranks.values().chain(self.former.values()).filter(|info| info.is_live());
        live.filter_map(|info| info.size).min().or(Some(size))
    }

    /// Ranks of which nobody is there, if the world size is known.
    pub(in crate::core::insight) fn absent(&self) -> impl Iterator<Item = u32> {
        let size = self.agreed_size().filter(|_| self.completed.is_none()).unwrap_or(0).min(MOST_RANKS);
        (0..size).filter(|&rank| !self.holder(rank).is_some_and(RankInfo::is_live))
    }

    /// The ranks that are there: those of the meeting before go on beside it.
    pub(in crate::core::insight) fn live(&self) -> impl Iterator<Item = (u32, &RankInfo)> {
        let (first, then) =
            if self.goes_on().is_some() { (&self.former, &self.ranks) } else { (&self.ranks, &self.former) };
        first
            .iter()
            .chain(then.iter().filter(|(rank, _)| !first.contains_key(rank)))
            .filter(|(_, info)| info.is_live())
            .map(|(&rank, info)| (rank, info))
    }

    /// Whether nobody has come as this rank, and not all who are there count on it.
    pub(in crate::core::insight) fn is_disputed(&self, rank: u32) -> bool {
        self.differ.is_some()
            && self.holder(rank).is_none()
            && self.agreed_size().is_some_and(|size| size <= rank)
    }

    /// Ranks that have published their address and are there.
    pub(in crate::core::insight) fn joined(&self) -> u32 {
        count(self.ranks.values().filter(|info| info.is_live()).count())
    }

    /// The rank that came last, and when.
    pub(super) fn last(&self) -> Option<(u32, &RankInfo)> {
        self.ranks.iter().max_by_key(|(_, info)| info.joined).map(|(&rank, info)| (rank, info))
    }

    /// The process with this rank now, or else the one that had it before.
    pub(in crate::core::insight) fn holder(&self, rank: u32) -> Option<&RankInfo> {
        if self.goes_on().is_some() {
            return self.former.get(&rank).or_else(|| self.ranks.get(&rank));
        }
        self.ranks.get(&rank).or_else(|| self.former.get(&rank))
    }

    pub(in crate::core::insight) fn label(&self, rank: u32) -> String {
        self.holder(rank).map_or_else(|| format!("rank {rank}"), |info| info.label(rank))
    }
}

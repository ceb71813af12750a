//! The worker ranks of a run, as far as they use this server: which have published their address, and which
//! are gone.
//!
//! They are divided into meetings. A process comes to those that have not met yet, and are prepared for as
//! many ranks; or in the place of one that has ended, of those who had met. Else it begins another meeting:
//! it is a stranger beside them, a copy, or one of a second job. Each meeting has its own times, sizes and
//! losses.

pub(crate) mod connected;
mod meeting;
mod rank;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::LazyLock;
use std::time::Duration;

use crate::facts::run::world::connected::Connected;
pub(crate) use crate::facts::run::world::connected::Process;
pub(crate) use crate::facts::run::world::meeting::{Lost, Meeting};
pub(crate) use crate::facts::run::world::rank::{RankInfo, Standing, rank_label, with_pid};
use crate::facts::store::Client;
use crate::reason::{Evidence, Names};
use rallypoint_protocol::addresses::MOST_RANKS;
use rallypoint_protocol::ids::{ConnId, Elapsed, Timestamp, count};

const MOST_MEETINGS: usize = 16;

/// The meeting of a run without ranks.
static NOBODY: LazyLock<Meeting> = LazyLock::new(Meeting::default);

/// The ranks of one attempt.
#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) attempt: Option<u32>,
    /// The oldest first.
    pub(crate) meetings: Vec<Meeting>,
    /// The last that ended beside others: those may still ask for its ranks.
    past: Option<Meeting>,
    /// Worker processes that are connected.
    pub(crate) connected: Connected,
    /// When the last of the attempt before ended, or of the life before.
    pub(crate) attempt_ended: Option<Timestamp>,
    /// The world size that the agents told their workers.
    told_size: Option<u32>,
    /// The process of rank 0, which has not told its rank yet: it hosts a store, and counts first who comes.
    pub(crate) host: Option<ConnId>,
    /// When all of a meeting had come last: who was connected then, and told no rank, is none of them.
    pub(crate) last_met: Option<Timestamp>,
    /// An NCCL id was published, or where a worker of RPC listens: who meets so tells no rank.
    pub(crate) meets_otherwise: bool,
    /// Who published the NCCL id of all ranks last: rank 0, the only one of them that is known.
    pub(crate) nccl_root: Option<NcclRoot>,
    /// When the last of them ended.
    pub(crate) ended: Option<Timestamp>,
    /// The connections that closed in one moment, up to the last one.
    closings: Closings,
    /// Ranks are there that are prepared for other world sizes, and that was told.
    pub(crate) differ: bool,
    /// Some of them came before the server was restarted. Others may have come and gone then: whether all had
    /// met is not known.
    pub(crate) is_of_before: bool,
}

/// Connections that closed in one moment.
#[derive(Debug, Clone, Copy, Default)]
struct Closings {
    first: Timestamp,
    last: Timestamp,
    /// How many they were…
    all: u32,
    /// …and how many of them waited for something then.
    waiting: u32,
    /// Others had closed before.
    are_last: bool,
}

impl Closings {
    const PAUSE: Duration = Duration::from_secs(1);

    fn add(&mut self, at: Timestamp, waited: bool) {
        if at.since(self.last) >= Self::PAUSE {
            *self = Self { first: at, are_last: self.all > 0, ..Self::default() };
        }
        self.last = at;
        self.all = self.all.saturating_add(1);
        self.waiting = self.waiting.saturating_add(waited.into());
    }
}

/// Processes that had met, and have all ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) at: Timestamp,
    pub(crate) processes: u32,
    /// For how long they had been there, or had met.
    pub(crate) ran: Elapsed,
    /// What ended before all others, and how long before the last one.
    pub(crate) first: Option<(String, Elapsed)>,
}

/// The process that published an NCCL id.
#[derive(Debug, Clone)]
pub(crate) struct NcclRoot {
    pub(crate) conn: ConnId,
    /// It published the id.
    pub(crate) wrote: Evidence,
    /// Where it listens for the others.
    pub(crate) listens: Option<IpAddr>,
    /// When its connection closed, or was given up.
    pub(crate) gone: Option<Timestamp>,
    pub(crate) is_cut_off: bool,
}

impl World {
    /// A rank published its address. Returns when its meeting began with it, if nobody of another one is
    /// there.
    pub(crate) fn publish(&mut self, rank: u32, attempt: Option<u32>, info: RankInfo) -> Option<Timestamp> {
        let nobody_stays =
            !self.meetings.iter().any(|meeting| meeting.ranks().any(|(_, info)| info.is_live()));
        let is_next = attempt != self.attempt;
        let is_over = is_next || self.shown().met.is_some() && self.shown().all_gone().is_some();
        let ended = Some(self.closings.last).filter(|_| is_over && self.closings.all > 0);
        if is_next {
            self.begin(attempt);
        }
        if rank >= MOST_RANKS {
            return None;
        }
        self.enter(info.conn, info.process());
        let at = self.place(rank, &info);
        // Nobody finds what it has written over.
        let number = self.meetings[at].number;
        let others = self.meetings.iter_mut().filter(|other| other.number != number);
        others.for_each(|other| other.withdraw(rank..=rank));
        let begins = self.meetings[at].publish(rank, info, self.told_size) || is_next;
        if begins {
            self.connected.most = self.connected.processes();
            self.attempt_ended = ended.or(self.attempt_ended);
            (self.meets_otherwise, self.is_of_before) = (false, false);
        }
        let at = if begins { self.unite(at) } else { at };
        self.meetings[at].started.filter(|_| begins && nobody_stays)
    }

    /// The meeting that a process comes to.
    fn place(&mut self, rank: u32, info: &RankInfo) -> usize {
        let meetings = &self.meetings;
        // Who had met may come again with another number.
        let has_met = |meeting: &Meeting| meeting.met.is_some() && meeting.rank(rank).is_some();
        let fits = |meeting: &Meeting| has_met(meeting) || meeting.fits(info.size);
        let its_own = || meetings.iter().position(|meeting| meeting.has(rank, info) && fits(meeting));
        let gathers = |meeting: &Meeting| meeting.met.is_none() && meeting.is_live();
        let gathering = || meetings.iter().rposition(|meeting| gathers(meeting) && meeting.fits(info.size));
        // All who met are there, and this process is none of them.
        let is_other = |(_, member): (u32, &RankInfo)| member.is_live() && !member.is_same_process(info);
        let goes_on = |meeting: &Meeting| meeting.ranks().all(is_other);
        let takes_place =
            |meeting: &Meeting| meeting.met.is_some() && meeting.fits(info.size) && !goes_on(meeting);
        let in_place = || meetings.iter().rposition(takes_place);
        let is_over = || meetings.iter().rposition(|meeting| !meeting.is_live());
        let found = its_own().or_else(gathering).or_else(in_place).or_else(is_over);
        found.unwrap_or_else(|| {
            if self.meetings.len() < MOST_MEETINGS {
                let number = self.meetings.last().map_or(0, |last| last.number.saturating_add(1));
                self.meetings.push(Meeting::new(number, BTreeMap::new()));
            }
            self.meetings.len().saturating_sub(1)
        })
    }

    /// Unites ranks that meet again with all that have come meanwhile and are prepared for as many.
    fn unite(&mut self, at: usize) -> usize {
        let Meeting { number, size, .. } = self.meetings[at];
        let gathers = |other: &mut Meeting| {
            other.number != number && other.met.is_none() && other.is_live() && other.size == size
        };
        let others: Vec<Meeting> = self.meetings.extract_if(.., gathers).collect();
        let at = self.meetings.iter().position(|meeting| meeting.number == number).unwrap_or_default();
        for other in others {
            self.meetings[at].take_in(other);
        }
        at
    }

    /// The next attempt, in another store.
    pub(crate) fn elsewhere(&self) -> Self {
        let ended = Some(self.closings.last).filter(|_| self.closings.all > 0);
        Self { attempt_ended: ended.or(self.attempt_ended), ..Self::default() }
    }

    /// The next attempt begins. Who is connected stays.
    fn begin(&mut self, attempt: Option<u32>) {
        let told = self.told_size;
        *self = Self {
            attempt,
            connected: std::mem::take(&mut self.connected),
            last_met: self.last_met,
            attempt_ended: self.attempt_ended,
            ..Self::default()
        };
        self.connected.begin_round();
        self.tell_size(told);
    }

    /// A round of agents begins: who met without telling a rank was of the one before.
    pub(crate) fn begin_round(&mut self) {
        self.connected.begin_round();
        self.nccl_root = None;
    }

    pub(crate) fn begin_anew(&mut self) {
        let unmet = self.meetings.iter_mut().flat_map(Meeting::take_unmet).collect();
        self.told_size = None;
        self.begin(None);
        self.meetings = vec![Meeting::new(0, unmet)];
    }

    /// The agents tell their workers how many they are.
    pub(crate) fn tell_size(&mut self, size: Option<u32>) {
        self.told_size = size;
        if self.meetings.is_empty() {
            self.meetings.push(Meeting::default());
        }
        for meeting in self.meetings.iter_mut().filter(|meeting| !meeting.is_live()) {
            meeting.size = size.or(meeting.size);
        }
    }

    /// The addresses of these ranks were dropped.
    pub(crate) fn unpublish(&mut self, ranks: &RangeInclusive<u32>) {
        self.meetings.iter_mut().for_each(|meeting| meeting.withdraw(ranks.clone()));
    }

    /// The ranks that are there and have not met published these addresses.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = Evidence> {
        let unmet = self.meetings.iter().filter(|meeting| meeting.met.is_none());
        let live = unmet.flat_map(Meeting::ranks).filter(|(_, info)| info.is_live());
        live.map(|(rank, info)| info.wrote(rank))
    }

    /// The meetings of which all ranks have published their addresses since the last call.
    pub(crate) fn take_complete(&mut self) -> Vec<usize> {
        let complete = |(at, meeting): (usize, &mut Meeting)| meeting.check_complete().then_some(at);
        let complete: Vec<usize> = self.meetings.iter_mut().enumerate().filter_map(complete).collect();
        self.last_met = complete.iter().filter_map(|&at| self.meetings[at].met).max().or(self.last_met);
        complete
    }

    pub(crate) fn enter(&mut self, conn: ConnId, process: Option<Process>) {
        self.connected.insert(conn, process);
        self.ended = None;
        if let Some(root) = self.nccl_root.as_mut().filter(|root| root.gone.is_some())
            && process.is_some()
            && root.wrote.process() == process
        {
            (root.conn, root.gone, root.is_cut_off) = (conn, None, false);
        }
    }

    /// Several processes have this address and process id.
    pub(crate) fn share(&mut self, process: Process) {
        self.connected.share(process);
        let its = self.meetings.iter_mut().flat_map(Meeting::known_mut);
        its.filter(|info| info.process() == Some(process)).for_each(|info| info.shares = true);
    }

    /// Rank 0 publishes the NCCL id of all ranks.
    pub(crate) fn publish_nccl_id(&mut self, conn: ConnId, listens: Option<IpAddr>, wrote: Evidence) {
        let is_it = |root: &NcclRoot| root.conn == conn || root.wrote.process() == wrote.process();
        if self.nccl_root.as_ref().is_some_and(|before| !is_it(before)) {
            self.connected.ended.clear();
        }
        self.nccl_root = Some(NcclRoot { conn, wrote, listens, gone: None, is_cut_off: false });
        self.meets_otherwise = true;
    }

    /// The process of a connection that has closed is there with another.
    pub(crate) fn returns(&mut self, before: ConnId, conn: ConnId, process: Process) {
        self.enter(conn, Some(process));
        self.connected.uses_group(conn);
        let its_own = self.meetings.iter_mut().flat_map(Meeting::known_mut).filter(|it| it.conn == before);
        its_own.for_each(|info| (info.conn, info.gone) = (conn, None));
    }

    /// A worker's connection closed, or was cut off. Returns whether a process has left without a rank.
    pub(crate) fn leave(&mut self, conn: ConnId, client: &Client, gave_up: bool, closed: Evidence) -> bool {
        let (&Client { rank, is_cut_off, .. }, at) = (client, closed.at);
        self.closings.add(at, closed.key.is_some());
        let was_last = self.connected.remove(conn, Some(closed).filter(|_| !is_cut_off));
        if let Some(root) = self.nccl_root.as_mut().filter(|root| root.conn == conn) {
            (root.gone, root.is_cut_off) = (Some(at), is_cut_off);
        }
        if let Some(rank) = rank {
            for meeting in &mut self.meetings {
                let closed = meeting.leave(conn, rank, is_cut_off, at).filter(|_| !self.is_of_before);
                // Another may take its place before it is told.
                meeting.lost.extend(closed.map(|closed| Lost { rank, closed, gave_up }));
            }
        }
        if self.connected.is_empty() {
            self.ended.get_or_insert(at);
        }
        was_last && self.is_unnamed()
    }

    /// Looks which meetings have ended. Returns those that had met and ended while others are there.
    pub(crate) fn settle(&mut self) -> Vec<Ended> {
        self.meetings.iter_mut().for_each(Meeting::return_to_before);
        let mut told = Vec::new();
        if self.meetings.len() > 1 {
            // Who is connected but for its rank's connection may go on.
            let is_over = |meeting: &Meeting| match meeting.met {
                Some(_) => meeting.all_ended(&self.connected).is_some(),
                None => !meeting.is_live(),
            };
            let last = |meeting: &&Meeting| (!is_over(meeting), meeting.all_gone());
            let stays = self.meetings.iter().max_by_key(last).map(|meeting| meeting.number);
            let over = |meeting: &mut Meeting| is_over(meeting) && Some(meeting.number) != stays;
            for ended in self.meetings.extract_if(.., over).collect::<Vec<_>>() {
                if let (Some(met), Some(at)) = (ended.first_met, ended.all_gone()) {
                    let (processes, first) = (count(ended.ranks().count()), ended.first_to_end());
                    told.push(Ended { at, processes, ran: Elapsed(at.since(met)), first });
                    self.past = Some(ended);
                } else if let Some(gathering) = self.meetings.iter_mut().find(|meeting| meeting.met.is_none())
                {
                    gathering.take_in(ended);
                }
            }
        }
        if self.ended.is_none() {
            self.ended = self.shown().all_ended(&self.connected);
        }
        told
    }

    /// Two meetings, one of which has not met, whose ranks are prepared for different numbers.
    pub(crate) fn different(&self) -> Option<(&Meeting, &Meeting)> {
        let live = || self.meetings.iter().filter(|meeting| meeting.size.is_some() && meeting.is_live());
        let newest = live().rfind(|meeting| meeting.met.is_none())?;
        let mut others = live().filter(|other| other.size != newest.size);
        let gathering = others.clone().find(|other| other.met.is_none());
        Some((gathering.or_else(|| others.next())?, newest))
    }

    /// What may be missed: the number of ranks and the times stay.
    pub(crate) fn summarize(&mut self) {
        self.past = None;
        for meeting in &mut self.meetings {
            meeting.summarize();
        }
    }
}

/// What others read.
impl World {
    /// The meeting that counts: the first of those who have met and are there, or else that of most ranks.
    pub(crate) fn shown(&self) -> &Meeting {
        self.meetings.get(self.shown_at()).unwrap_or(&NOBODY)
    }

    pub(crate) fn shown_at(&self) -> usize {
        if self.meetings.len() < 2 {
            return 0;
        }
        let met = |(at, meeting): (usize, &Meeting)| Some((meeting.first_met?, at));
        let live = self.meetings.iter().enumerate().filter(|(_, meeting)| meeting.is_live());
        live.filter_map(met).min().map_or_else(
            || {
                let meetings = self.meetings.iter().enumerate().rev();
                let most = meetings.max_by_key(|(_, meeting)| (meeting.present(), meeting.all_gone()));
                most.map_or(0, |(at, _)| at)
            },
            |(_, at)| at,
        )
    }

    /// The meeting that this connection of a rank is in.
    pub(crate) fn of(&self, rank: Option<u32>, conn: ConnId) -> &Meeting {
        self.meetings.get(self.of_at(rank, conn)).unwrap_or(&NOBODY)
    }

    pub(crate) fn of_at(&self, rank: Option<u32>, conn: ConnId) -> usize {
        let is_its = |info: &RankInfo| info.conn == conn;
        let has_it = |meeting: &Meeting| rank.is_some_and(|rank| meeting.known_as(rank).any(is_its));
        self.meetings.iter().position(has_it).unwrap_or_else(|| self.shown_at())
    }

    /// The first and the last of the live processes that have published this rank, if there are several.
    pub(crate) fn claimed_twice(&self, rank: u32) -> Option<(&RankInfo, &RankInfo)> {
        let live = || self.meetings.iter().flat_map(|it| it.known_as(rank)).filter(|info| info.is_live());
        let first = live().min_by_key(|info| info.joined)?;
        let last = live().filter(|info| !info.is_same_process(first)).max_by_key(|info| info.joined)?;
        Some((first, last))
    }

    /// How many ranks a second job has here: a live process has each of them already.
    pub(crate) fn second_job(&self) -> Option<u32> {
        let (_, second) = self.claimed_twice(0)?;
        let ranks = self.of(Some(0), second.conn).size.filter(|&ranks| ranks > 1)?;
        (0..ranks).all(|rank| self.claimed_twice(rank).is_some()).then_some(ranks)
    }

    /// The others of this run that have not met.
    fn gathering_beside(&self, meeting: &Meeting) -> impl Iterator<Item = &Meeting> {
        let number = meeting.number;
        self.meetings.iter().filter(move |other| other.number != number && other.met.is_none())
    }

    /// The process with this rank for those of a meeting: theirs, or another one that has not met, whose
    /// address they find; or else the one of theirs that has ended, if none is there that has met with
    /// others: who came beside that and has ended was a copy.
    pub(crate) fn holder<'w>(&'w self, meeting: &'w Meeting, rank: u32) -> Option<&'w RankInfo> {
        self.found(meeting, rank, |of| of.holder(rank))
    }

    /// The process that a rank finds there: as [`World::holder`], if its address was not dropped.
    pub(crate) fn published<'w>(&'w self, meeting: &'w Meeting, rank: u32) -> Option<&'w RankInfo> {
        self.found(meeting, rank, |of| of.rank(rank))
    }

    fn found<'w>(
        &'w self,
        meeting: &'w Meeting,
        rank: u32,
        of: impl Fn(&'w Meeting) -> Option<&'w RankInfo>,
    ) -> Option<&'w RankInfo> {
        let all = [meeting].into_iter().chain(self.gathering_beside(meeting));
        let live = all.filter_map(&of).find(|info| info.is_live());
        let is_elsewhere = || self.met_elsewhere(meeting, rank).is_some_and(RankInfo::is_live);
        live.or_else(|| of(meeting).filter(|_| !is_elsewhere()))
    }

    /// The process with this rank that has met with others, of which those of this meeting are none.
    pub(crate) fn met_elsewhere(&self, meeting: &Meeting, rank: u32) -> Option<&RankInfo> {
        let others = self.meetings.iter().rev().filter(|other| other.number != meeting.number);
        let mut met = others.filter(|other| other.met.is_some());
        let past = self.past.as_ref();
        // Who came when these had ended is of the next job.
        let past = past.filter(|past| past.all_gone().is_some_and(|ended| meeting.gathered_at(ended)));
        met.find_map(|other| other.holder(rank)).or_else(|| past?.holder(rank))
    }

    /// As many as all that gather count on.
    pub(crate) fn agreed(&self, meeting: &Meeting) -> Option<u32> {
        let others = self.gathering_beside(meeting);
        let size = meeting.size.filter(|_| meeting.met.is_none())?;
        Some(others.filter_map(|other| other.size).fold(size, u32::min))
    }

    /// Ranks of which nobody is there for those of a meeting, as far as all that gather count on them.
    pub(crate) fn absent<'w>(&'w self, meeting: &'w Meeting) -> impl Iterator<Item = u32> + 'w {
        let size = self.agreed(meeting).unwrap_or_default().min(MOST_RANKS);
        (0..size).filter(move |&rank| !self.is_there(meeting, rank))
    }

    /// Whether the process with this rank is there, in whatever meeting.
    fn is_there(&self, meeting: &Meeting, rank: u32) -> bool {
        let known = [self.holder(meeting, rank), self.met_elsewhere(meeting, rank)];
        rank == 0 && self.host.is_some() || known.into_iter().flatten().any(RankInfo::is_live)
    }

    /// How a rank of the meeting that counts is shown: see `RankGrid`.
    pub(crate) fn shown_rank(&self, rank: u32) -> char {
        let meeting = self.shown();
        let was_there = || meeting.known_as(rank).any(|info| info.standing != Standing::OfBefore);
        match self.published(meeting, rank) {
            Some(info) if info.is_live() => 'j',
            _ if self.is_there(meeting, rank) => 'o',
            _ if was_there() => 'x',
            _ => '.',
        }
    }

    /// Whether some have come, even if they have ended, and rank 0 has not.
    pub(crate) fn misses_first(&self) -> bool {
        let meeting = self.shown();
        meeting.met.is_none()
            && !meeting.is_empty()
            && !self.holder(meeting, 0).is_some_and(RankInfo::is_live)
    }

    /// In which time so many or more closed last, how many of them waited, and whether others had closed
    /// before.
    pub(crate) fn closed_at_once(&self, processes: u32) -> Option<(Elapsed, u32, bool)> {
        let Closings { first, last, all, waiting, are_last } = self.closings;
        (all >= processes).then(|| (Elapsed(last.since(first)), waiting, are_last))
    }

    /// Whether these meet without telling their ranks.
    pub(crate) fn is_unnamed(&self) -> bool {
        self.meets_otherwise && self.meetings.iter().all(Meeting::is_empty)
    }

    /// Processes that ended, the first of them first, if all meet without telling their ranks.
    pub(crate) fn ended_unnamed(&self) -> Vec<&Evidence> {
        let ended = self.connected.ended.values().filter(|_| self.is_unnamed());
        let mut ended: Vec<_> = ended.collect();
        ended.sort_by_key(|closed| closed.at);
        ended
    }

    /// Processes that have only counted themselves.
    pub(crate) fn beside_group(&self) -> Names {
        Names::of_some(self.connected.beside_group(), |(ip, pid)| format!("process {pid} at {ip}"))
    }

    /// Worker processes that are connected: where containers share process ids, at least their ranks.
    pub(crate) fn processes(&self) -> u32 {
        let live: usize = self.meetings.iter().map(|meeting| meeting.live().count()).sum();
        count(self.connected.processes().max(live))
    }

    /// How many worker processes there were, at most.
    pub(crate) fn most_processes(&self) -> u32 {
        let is_alone = self.past.is_none() && self.meetings.len() < 2;
        count(self.shown().ranks().count().max(if is_alone { self.connected.most } else { 0 }))
    }

    /// Ranks that are remembered.
    pub(crate) fn len(&self) -> usize {
        let all = self.meetings.iter().chain(&self.past);
        all.map(Meeting::len).sum()
    }
}

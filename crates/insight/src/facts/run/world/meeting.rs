//! Processes that meet, or have met: each is another rank, and all are prepared for as many ranks.

use std::collections::{BTreeMap, BTreeSet};

use crate::facts::run::limits::SETTLE;
use crate::facts::run::world::connected::Connected;
use crate::facts::run::world::rank::RankInfo;
use crate::reason::Evidence;
use rallypoint_protocol::ids::{ConnId, Elapsed, Timestamp, count};

/// Ranks that ended before all had met, and wait to be reported.
const MOST_LOST: usize = 131_072;

/// Who held a rank before, until its address was dropped or published by another: the last of them first.
pub(crate) type Former = BTreeMap<u32, Vec<RankInfo>>;

/// One meeting, with what is known of those that it follows.
#[derive(Debug, Default)]
pub(crate) struct Meeting {
    /// What tells it from the others of its run.
    pub(crate) number: u32,
    pub(crate) ranks: BTreeMap<u32, RankInfo>,
    /// How many ranks those who come are prepared for.
    pub(crate) size: Option<u32>,
    pub(crate) started: Option<Timestamp>,
    /// When all had come.
    pub(crate) met: Option<Timestamp>,
    /// When they met first, if the processes of the meeting before meet once more.
    pub(crate) first_met: Option<Timestamp>,
    pub(crate) former: Former,
    /// When those of `former` had met, and had met first, if none of them has come again since.
    before: Option<(Timestamp, Option<Timestamp>)>,
    /// Ranks whose process ended and whose place another took.
    pub(crate) replaced: BTreeSet<u32>,
    /// Ranks that ended before all had met, not yet reported.
    pub(crate) lost: Vec<Lost>,
    /// Since all had met, one of them wrote what none writes before it has reached the others: a key of a
    /// sub-group, or of the program.
    pub(crate) went_on: bool,
}

/// A rank that ended before all had met.
#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) rank: u32,
    pub(crate) closed: Evidence,
    /// It had given up on another just before.
    pub(crate) gave_up: bool,
}

/// How a connection closed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leaving {
    pub(crate) conn: ConnId,
    pub(crate) rank: u32,
    pub(crate) is_cut_off: bool,
    pub(crate) gave_up: bool,
    /// Whether all had met is not known.
    pub(crate) may_have_met: bool,
    pub(crate) at: Timestamp,
}

fn ended<'m>((&rank, info): (&u32, &'m RankInfo)) -> Option<(u32, &'m RankInfo, Timestamp)> {
    Some((rank, info, info.gone.filter(|_| !info.is_cut_off)?))
}

/// What happens to it.
impl Meeting {
    /// A rank publishes its address. Returns whether these begin to meet with it, or to meet again.
    pub(crate) fn publish(&mut self, rank: u32, info: RankInfo, told: Option<u32>) -> bool {
        let now = info.joined;
        let is_new = |before: &RankInfo| !before.is_same_process(&info);
        // Processes that have met and meet again close their connections before.
        let is_other_job = self.met.is_some() && self.ranks.get(&rank).is_none_or(is_new);
        let is_over = self.all_gone().is_some_and(|at| is_other_job || now.since(at) >= SETTLE);
        let mut begins = true;
        if is_over {
            let former = self.take_unmet();
            *self = Self::new(self.number, former);
        } else if let Some(met) = self.met {
            // They meet again. Some may not even have left the last meeting.
            for (rank, info) in std::mem::take(&mut self.ranks) {
                self.set_aside(rank, info);
            }
            let Self { number, first_met, .. } = *self;
            let former = std::mem::take(&mut self.former);
            *self = Self { before: Some((met, first_met)), ..Self::new(number, former) };
            let meets_again = self.known_as(rank).next().is_some_and(|before| !is_new(before));
            self.first_met = first_met.or(Some(met)).filter(|_| meets_again);
        } else {
            begins = false;
        }
        if self.known_as(rank).next().is_some_and(is_new) {
            self.replaced.insert(rank);
        }
        let mut former = self.former.remove(&rank).unwrap_or_default();
        self.before = self.before.filter(|_| former.iter().all(|it| it.withdrawn || is_new(it)));
        // It is theirs again if the second ends before all have met.
        former.retain_mut(|it| {
            it.withdrawn |= self.before.is_none();
            is_new(it) && (it.is_live() || !it.withdrawn)
        });
        let first = self.ranks.remove(&rank).filter(|first| first.is_live() && is_new(first));
        former.splice(0..0, first.map(|first| RankInfo { withdrawn: true, ..first }));
        former.truncate(64);
        if !former.is_empty() {
            self.former.insert(rank, former);
        }
        self.started.get_or_insert(now);
        if self.size.is_none() || self.ranks.values().all(|info| !info.is_live()) {
            self.size = info.size.or(told).or(self.size);
        }
        self.ranks.insert(rank, info);
        begins
    }

    /// Nobody has come yet; `former` had met, or ended before they met.
    pub(crate) fn new(number: u32, former: Former) -> Self {
        Self { number, former, ..Self::default() }
    }

    /// All that came and did not meet: what became of them is told of those that the next ones wait for.
    pub(crate) fn take_unmet(&mut self) -> Former {
        if self.met.is_some() {
            return Former::new();
        }
        let mut unmet = std::mem::take(&mut self.former);
        unmet.extend(std::mem::take(&mut self.ranks).into_iter().map(|(rank, info)| (rank, vec![info])));
        unmet.retain(|_, of| of.iter().all(|info| !info.is_live()));
        unmet
    }

    /// The ranks of another meeting have all ended before they met. Where this meeting misses their ranks, it
    /// tells what became of them.
    pub(crate) fn take_in(&mut self, mut other: Self) {
        let is_there = |rank: &u32| self.known_as(*rank).any(RankInfo::is_live);
        let is_missed = |rank: &u32| self.size.is_none_or(|size| *rank < size) && !is_there(rank);
        other.lost.retain(|lost| is_missed(&lost.rank));
        let mut unmet = other.take_unmet();
        unmet.retain(|rank, _| is_missed(rank));
        self.lost.append(&mut other.lost);
        self.former.append(&mut unmet);
    }

    /// These meet again, and others have come meanwhile to meet as many.
    pub(crate) fn unite(&mut self, mut other: Self) {
        other.ranks.retain(|rank, info| info.is_live() || !self.ranks.contains_key(rank));
        self.ranks.append(&mut other.ranks);
        for (rank, former) in other.former {
            self.former.entry(rank).or_default().extend(former);
        }
        self.lost.extend(other.lost);
        self.started = self.started.min(other.started).or(self.started);
    }

    /// The address of a live rank was dropped.
    pub(crate) fn withdraw(&mut self, rank: u32) {
        // Once all have met, no rank needs it.
        if self.met.is_none()
            && self.ranks.get(&rank).is_some_and(RankInfo::is_live)
            && let Some(info) = self.ranks.remove(&rank)
        {
            // It is there, and comes no more.
            self.before = None;
            self.set_aside(rank, RankInfo { withdrawn: true, ..info });
        }
    }

    /// A process held this rank.
    fn set_aside(&mut self, rank: u32, info: RankInfo) {
        let former = self.former.entry(rank).or_default();
        former.retain(|first| first.is_live() && !first.is_same_process(&info));
        former.insert(0, info);
    }

    /// The connection of a rank closed.
    pub(crate) fn leave(&mut self, leaving: Leaving) {
        let Leaving { conn, rank, is_cut_off, gave_up, may_have_met, at } = leaving;
        let of_former = self.former.get_mut(&rank).into_iter().flatten();
        let its_own = of_former.chain(self.ranks.get_mut(&rank)).filter(|info| info.conn == conn);
        let mut of_this_meeting = None;
        for info in its_own {
            (info.gone, info.is_cut_off) = (Some(at), is_cut_off);
            if info.withdrawn || info.joined >= self.started.unwrap_or(at) {
                of_this_meeting = Some(info.closed(rank, at));
            }
        }
        let had_met = self.met.is_some() || may_have_met;
        let Some(closed) = of_this_meeting.filter(|_| !had_met) else { return };
        let is_holder = self.ranks.get(&rank).is_none_or(|info| info.conn == conn);
        if is_holder && self.known_as(rank).any(RankInfo::is_live) {
            // A copy has ended. The rank is there, but for its address.
            self.ranks.remove(&rank);
            self.replaced.remove(&rank);
        } else if is_holder && !is_cut_off && self.lost.len() < MOST_LOST {
            // Another may take its place before it is told.
            self.lost.push(Lost { rank, closed, gave_up });
        }
    }

    /// Takes the ranks that ended, in that order, but for processes that came again on another connection.
    pub(crate) fn take_lost(&mut self, connected: &Connected) -> Vec<Lost> {
        let mut lost = std::mem::take(&mut self.lost);
        lost.retain(|lost| !lost.closed.process().is_some_and(|process| connected.has(process)));
        lost.sort_by_key(|lost| lost.closed.at);
        lost
    }

    /// Notes when every rank has published its address. Returns whether that is new.
    ///
    /// Called for every rank that comes: at the next look they may have left again.
    pub(crate) fn check_complete(&mut self) -> bool {
        let Some(size) = self.size.filter(|&size| self.met.is_none() && self.ranks.len() >= size as usize)
        else {
            return false;
        };
        let fits = |info: &&RankInfo| info.is_live() && info.size.is_none_or(|other| other == size);
        let mut fitting = self.ranks.values().filter(fits).peekable();
        let made_before = fitting.peek().and_then(|info| info.made_before);
        if fitting.filter(|info| info.made_before == made_before).count() < size as usize {
            return false;
        }
        // Some came before with other numbers.
        self.ranks.split_off(&size).into_iter().for_each(|(rank, info)| self.set_aside(rank, info));
        self.met = self.ranks.values().map(|info| info.joined).max();
        self.before = None;
        // Ranks that left before that have come back.
        self.lost.clear();
        true
    }

    /// Nobody comes in the place of those who have ended, and others go on with what they had met for.
    pub(crate) fn return_to_before(&mut self) {
        let nobody_comes = !self.ranks.values().any(RankInfo::is_live);
        let goes_on = || self.former.values().flatten().any(|info| info.is_live() && !info.withdrawn);
        let Some((met, first_met)) = self.before.filter(|_| nobody_comes && goes_on()) else { return };
        let mut former = std::mem::take(&mut self.former);
        let take = |(&rank, of): (&u32, &mut Vec<RankInfo>)| {
            let had_met = of.iter().position(|info| !info.withdrawn)?;
            Some((rank, of.remove(had_met)))
        };
        let ranks: BTreeMap<_, _> = former.iter_mut().filter_map(take).collect();
        former.retain(|_, of| !of.is_empty());
        let size = ranks.values().filter(|info| info.is_live()).find_map(|info| info.size).or(self.size);
        let (number, lost, met) = (self.number, std::mem::take(&mut self.lost), Some(met));
        *self = Self { number, ranks, former, size, lost, met, first_met, started: met, ..Self::default() };
    }
}

/// What others read of it.
impl Meeting {
    /// Whether nobody has come to it, or to the one before.
    pub(crate) fn is_empty(&self) -> bool {
        self.known().next().is_none()
    }

    /// Whether a process of it is there.
    pub(crate) fn is_live(&self) -> bool {
        self.known().any(RankInfo::is_live)
    }

    /// Whether these gathered at that time, and have not met since.
    pub(crate) fn gathered_at(&self, at: Timestamp) -> bool {
        self.met.is_none() && self.started.is_some_and(|started| started <= at)
    }

    /// Whether all who met are there, and this process is none of them.
    pub(crate) fn goes_on_without(&self, other: &RankInfo) -> bool {
        self.ranks.values().all(|member| member.is_live() && !member.is_same_process(other))
    }

    /// Whether this process is the one with the rank here, or was.
    pub(crate) fn has(&self, rank: u32, process: &RankInfo) -> bool {
        self.known_as(rank).any(|known| known.is_same_process(process))
    }

    /// Who has this rank here, or had it.
    pub(crate) fn known_as(&self, rank: u32) -> impl Iterator<Item = &RankInfo> {
        self.ranks.get(&rank).into_iter().chain(self.former.get(&rank).into_iter().flatten())
    }

    /// All who have a rank here, or had it.
    pub(crate) fn known(&self) -> impl Iterator<Item = &RankInfo> {
        self.ranks.values().chain(self.former.values().flatten())
    }

    pub(crate) fn known_mut(&mut self) -> impl Iterator<Item = &mut RankInfo> {
        self.ranks.values_mut().chain(self.former.values_mut().flatten())
    }

    /// Whether who is prepared for so many ranks can meet these.
    pub(crate) fn fits(&self, size: Option<u32>) -> bool {
        size.is_none() || self.size.is_none() || size == self.size
    }

    /// When the last of the ranks left, if none is there.
    pub(crate) fn all_gone(&self) -> Option<Timestamp> {
        self.ranks.values().filter_map(|info| info.gone).max().filter(|_| !self.is_live())
    }

    /// When all ended who had met, if no process of theirs is connected.
    pub(crate) fn all_ended(&self, connected: &Connected) -> Option<Timestamp> {
        self.met?;
        let is_there = |info: &RankInfo| info.process().is_some_and(|process| connected.has(process));
        self.all_gone().filter(|_| !self.known().any(is_there))
    }

    /// The ranks that have ended, and when. What has become of those that are gone with their link is not
    /// known.
    pub(crate) fn ended_ranks(&self) -> impl Iterator<Item = (u32, &RankInfo, Timestamp)> {
        self.ranks.iter().filter_map(ended)
    }

    /// As `ended_ranks`, for the ranks that had met, which may meet again now.
    pub(crate) fn ended_of_met(&self) -> impl Iterator<Item = (u32, &RankInfo, Timestamp)> {
        let before = self.before.iter().flat_map(|_| &self.former);
        let before = before.filter_map(|(rank, of)| Some((rank, of.iter().find(|info| !info.withdrawn)?)));
        self.met.iter().flat_map(|_| &self.ranks).chain(before).filter_map(ended)
    }

    /// The rank that ended before all others of those who had met, and how long before the last. A crash may
    /// take the others with it within milliseconds.
    pub(crate) fn first_to_end(&self) -> Option<(String, Elapsed)> {
        let mut ended: Vec<_> = self.ended_of_met().collect();
        ended.sort_by_key(|&(rank, _, at)| (at, rank));
        let (&(rank, info, first), &(_, _, second), &(_, _, last)) =
            (ended.first()?, ended.get(1)?, ended.last()?);
        (second > first).then(|| (info.label(rank), Elapsed(last.since(first))))
    }

    /// Ranks that have published their address and are there.
    pub(crate) fn joined(&self) -> u32 {
        count(self.ranks.values().filter(|info| info.is_live()).count())
    }

    /// Ranks that are there, whether their address still is or not: those that met before go on.
    pub(crate) fn present(&self) -> u32 {
        count(self.live().count())
    }

    /// Ranks that are there and have not come again since they met.
    pub(crate) fn not_again(&self) -> impl Iterator<Item = u32> {
        self.without_address().filter(|(_, info)| !info.withdrawn).map(|(&rank, _)| rank)
    }

    /// Ranks that are there, and whose address is not: it was dropped, or they have not come again since they
    /// met.
    pub(crate) fn without_address(&self) -> impl Iterator<Item = (&u32, &RankInfo)> {
        let has_come = |rank| self.ranks.get(rank).is_some_and(RankInfo::is_live);
        let is_of_these = |rank: u32| self.size.is_none_or(|size| rank < size);
        let former = self.former.iter().filter(move |(rank, _)| is_of_these(**rank) && !has_come(rank));
        former.filter_map(|(rank, of)| Some((rank, of.iter().find(|info| info.is_live())?)))
    }

    /// The ranks that are there.
    pub(crate) fn live(&self) -> impl Iterator<Item = (u32, &RankInfo)> {
        let all = self.ranks.iter().filter(|(_, info)| info.is_live()).chain(self.without_address());
        all.map(|(&rank, info)| (rank, info))
    }

    /// Whether somebody had come to it as this rank then, or was there.
    pub(crate) fn had_come(&self, rank: u32, then: Timestamp) -> bool {
        let was_there = |info: &&RankInfo| info.withdrawn || info.gone.is_none_or(|gone| gone >= then);
        let former = self.former.get(&rank).into_iter().flatten().filter(was_there);
        self.ranks.get(&rank).into_iter().chain(former).any(|info| info.joined <= then)
    }

    /// The rank that came last, and how long after the first of those that are here.
    pub(crate) fn last(&self) -> Option<(String, Elapsed)> {
        let first = self.ranks.values().map(|info| info.joined).min()?;
        let (&rank, last) = self.ranks.iter().max_by_key(|(_, info)| info.joined)?;
        Some((last.label(rank), Elapsed(last.joined.since(first))))
    }

    /// The process with this rank now, or else the one that had it before.
    pub(crate) fn holder(&self, rank: u32) -> Option<&RankInfo> {
        self.known_as(rank).find(|info| info.is_live()).or_else(|| self.known_as(rank).next())
    }

    /// As `holder`, for ranks that have met: the ranks before them are only known to have ended.
    pub(crate) fn who_met(&self, rank: u32) -> Option<&RankInfo> {
        self.holder(rank).filter(|_| self.ranks.contains_key(&rank))
    }
}

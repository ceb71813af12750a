//! Processes that meet, or have met: each is another rank, and all are prepared for as many ranks.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::facts::run::limits::SETTLE;
use crate::facts::run::world::connected::Connected;
use crate::facts::run::world::rank::{RankInfo, Standing};
use crate::reason::Evidence;
use rallypoint_protocol::ids::{ConnId, Elapsed, Timestamp, count};

/// Live processes of one rank, at most.
const MOST_ALIKE: usize = 64;

/// Who has published the address of each rank: the last of them first, and each process once.
pub(crate) type Publishers = BTreeMap<u32, Vec<RankInfo>>;

/// One meeting, with what is known of those that it follows.
#[derive(Debug, Default)]
pub(crate) struct Meeting {
    /// What tells it from the others of its run.
    pub(crate) number: u32,
    publishers: Publishers,
    /// How many ranks those who come are prepared for.
    pub(crate) size: Option<u32>,
    pub(crate) started: Option<Timestamp>,
    /// When all had come.
    pub(crate) met: Option<Timestamp>,
    /// When they met first: the processes of one meeting may meet once more.
    pub(crate) first_met: Option<Timestamp>,
    /// How those of before had met, if none of them has come again since.
    before: Option<Box<Self>>,
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

fn ended((rank, info): (u32, &RankInfo)) -> Option<(u32, &RankInfo, Timestamp)> {
    Some((rank, info, info.gone.filter(|_| !info.is_cut_off)?))
}

/// What happens to it.
impl Meeting {
    /// A rank publishes its address. Returns whether these begin to meet with it, or to meet again.
    pub(crate) fn publish(&mut self, rank: u32, info: RankInfo, told: Option<u32>) -> bool {
        let now = info.joined;
        let is_new = |before: &RankInfo| !before.is_same_process(&info);
        // Processes that have met and meet again close their connections before.
        let is_other_job = self.met.is_some() && self.rank(rank).is_none_or(is_new);
        let is_over = self.all_gone().is_some_and(|at| is_other_job || now.since(at) >= SETTLE);
        let mut begins = true;
        if is_over {
            *self = Self::new(self.number, self.take_unmet());
        } else if self.met.is_some() {
            // They meet again. Some may not even have left the last meeting.
            let mut before = std::mem::take(self);
            *self = Self::new(before.number, std::mem::take(&mut before.publishers));
            let meets_again = self.known_as(rank).next().is_some_and(|before| !is_new(before));
            self.first_met = before.first_met.filter(|_| meets_again);
            self.before = Some(Box::new(before));
        } else {
            begins = false;
        }
        let mut known = self.publishers.remove(&rank).unwrap_or_else(|| Vec::with_capacity(1));
        if known.iter().any(|it| !it.is_dropped() && !is_new(it)) {
            self.before = None;
        }
        // It is theirs again if the second ends before all have met.
        known.retain_mut(|it| {
            if it.is_published() {
                it.standing = Standing::Dropped;
            }
            is_new(it)
        });
        known.dedup_by(|it, later| it.is_dropped() && !it.is_live() && !later.is_live());
        known.truncate(MOST_ALIKE);
        self.started.get_or_insert(now);
        if self.size.is_none() || self.ranks().all(|(_, info)| !info.is_live()) {
            self.size = info.size.or(told).or(self.size);
        }
        known.insert(0, info);
        self.publishers.insert(rank, known);
        begins
    }

    /// What may be missed: the number of ranks and the times stay.
    pub(crate) fn summarize(&mut self) {
        self.publishers.clear();
    }

    /// Nobody has come yet; these had met, or ended before they met.
    pub(crate) fn new(number: u32, mut before: Publishers) -> Self {
        for info in before.values_mut().flatten().filter(|info| info.is_published()) {
            info.standing = Standing::OfBefore;
        }
        Self { number, publishers: before, ..Self::default() }
    }

    /// All that came and did not meet: what became of them is told of those that the next ones wait for.
    pub(crate) fn take_unmet(&mut self) -> Publishers {
        let mut unmet = std::mem::take(&mut self.publishers);
        unmet.retain(|_, of| self.met.is_none() && of.iter().all(|info| !info.is_live()));
        unmet
    }

    /// Others that have not met are of these from now on. What became of those that have ended is told where
    /// these miss their ranks.
    pub(crate) fn take_in(&mut self, mut other: Self) {
        let is_there = |rank: u32| self.known_as(rank).any(RankInfo::is_live);
        let is_missed = |rank: u32| self.size.is_none_or(|size| rank < size) && !is_there(rank);
        other.lost.retain(|lost| is_missed(lost.rank));
        other.publishers.retain(|rank, of| of.iter().any(RankInfo::is_live) || is_missed(*rank));
        self.lost.append(&mut other.lost);
        for (rank, mut others) in other.publishers {
            others.iter_mut().filter(|info| !info.is_live()).for_each(|it| it.standing = Standing::OfBefore);
            self.publishers.entry(rank).or_default().splice(0..0, others);
        }
    }

    /// The addresses of live ranks were dropped: they are there, and come no more.
    pub(crate) fn withdraw(&mut self, ranks: RangeInclusive<u32>) {
        // Once all have met, no rank needs them.
        let of_ranks = self.publishers.range_mut(ranks).filter(|_| self.met.is_none());
        let published = of_ranks.flat_map(|(_, of)| of).filter(|info| info.is_published());
        for info in published.filter(|info| info.is_live()) {
            info.standing = Standing::Dropped;
            self.before = None;
        }
    }

    /// The connection of a rank closed, or was cut off. Returns that it closed, if the rank is lost to those
    /// who have not met.
    pub(crate) fn leave(
        &mut self,
        conn: ConnId,
        rank: u32,
        is_cut_off: bool,
        at: Timestamp,
    ) -> Option<Evidence> {
        let known = self.publishers.get_mut(&rank)?;
        let info = known.iter_mut().find(|info| info.conn == conn)?;
        (info.gone, info.is_cut_off) = (Some(at), is_cut_off);
        let closed = info.closed(rank, at);
        let had_met = self.met.is_some() || info.standing == Standing::OfBefore;
        let is_holder = known.iter().find(|info| info.is_published()).is_none_or(|info| info.conn == conn);
        if had_met || !is_holder {
            return None;
        }
        if known.iter().any(RankInfo::is_live) {
            // A copy has ended. The rank is there, but for its address.
            known.retain(|info| info.conn != conn);
            return None;
        }
        Some(closed).filter(|_| !is_cut_off)
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
        let is_due = |size: &u32| self.met.is_none() && self.publishers.len() >= *size as usize;
        let Some(size) = self.size.filter(is_due) else { return false };
        let made_before = self.rank(0).and_then(|first| first.made_before);
        let fits = |info: &RankInfo| {
            info.is_live() && info.size.is_none_or(|of| of == size) && info.made_before == made_before
        };
        let fitting = self.ranks().zip(0..size).take_while(|((rank, info), next)| rank == next && fits(info));
        if fitting.count() < size as usize {
            return false;
        }
        // Some came before with other numbers.
        for info in self.publishers.range_mut(size..).flat_map(|(_, of)| of) {
            info.standing = Standing::OfBefore;
        }
        self.met = self.ranks().map(|(_, info)| info.joined).max();
        self.first_met = self.first_met.or(self.met);
        self.before = None;
        // Ranks that left before that have come back.
        self.lost.clear();
        true
    }

    /// Nobody comes in the place of those who have ended, and others go on with what they had met for.
    pub(crate) fn return_to_before(&mut self) {
        let nobody_comes = self.ranks().all(|(_, info)| !info.is_live());
        let is_of_before = |info: &RankInfo| info.standing == Standing::OfBefore;
        let goes_on = || self.known().any(|info| info.is_live() && is_of_before(info));
        if !nobody_comes || !goes_on() {
            return;
        }
        let Some(before) = self.before.take() else { return };
        let mut publishers = std::mem::take(&mut self.publishers);
        publishers.retain(|_, of| {
            of.retain(|info| !info.is_published());
            if let Some(info) = of.iter_mut().find(|info| is_of_before(info)) {
                info.standing = Standing::Published;
            }
            !of.is_empty()
        });
        *self = Self { publishers, lost: std::mem::take(&mut self.lost), ..*before };
    }
}

/// What others read of it.
impl Meeting {
    /// The ranks whose addresses are there, or were when they ended.
    pub(crate) fn ranks(&self) -> impl Iterator<Item = (u32, &RankInfo)> + Clone {
        self.with(Standing::Published)
    }

    pub(crate) fn rank(&self, rank: u32) -> Option<&RankInfo> {
        self.known_as(rank).find(|info| info.is_published())
    }

    fn with(&self, standing: Standing) -> impl Iterator<Item = (u32, &RankInfo)> + Clone {
        let last = move |of: &[RankInfo]| of.iter().position(|info| info.standing == standing);
        self.publishers.iter().filter_map(move |(&rank, of)| Some((rank, &of[last(of)?])))
    }

    /// Whether nobody has come to it, or to the one before.
    pub(crate) fn is_empty(&self) -> bool {
        self.publishers.is_empty()
    }

    /// Whether a process of it is there.
    pub(crate) fn is_live(&self) -> bool {
        self.known().any(RankInfo::is_live)
    }

    /// Whether these gathered at that time, and have not met since.
    pub(crate) fn gathered_at(&self, at: Timestamp) -> bool {
        self.met.is_none() && self.started.is_some_and(|started| started <= at)
    }

    /// How many ranks somebody has come as.
    pub(crate) fn len(&self) -> usize {
        self.publishers.len()
    }

    /// Whether this process is the one with the rank here, or was.
    pub(crate) fn has(&self, rank: u32, process: &RankInfo) -> bool {
        self.known_as(rank).any(|known| known.is_same_process(process))
    }

    /// Who has this rank here, or had it.
    pub(crate) fn known_as(&self, rank: u32) -> impl Iterator<Item = &RankInfo> {
        self.publishers.get(&rank).into_iter().flatten()
    }

    /// All who have a rank here, or had it.
    pub(crate) fn known(&self) -> impl Iterator<Item = &RankInfo> {
        self.publishers.values().flatten()
    }

    pub(crate) fn known_mut(&mut self) -> impl Iterator<Item = &mut RankInfo> {
        self.publishers.values_mut().flatten()
    }

    /// Whether who is prepared for so many ranks can meet these.
    pub(crate) fn fits(&self, size: Option<u32>) -> bool {
        size.is_none() || self.size.is_none() || size == self.size
    }

    /// When the last of the ranks left, if none is there.
    pub(crate) fn all_gone(&self) -> Option<Timestamp> {
        if self.is_live() { None } else { self.ranks().filter_map(|(_, info)| info.gone).max() }
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
        self.ranks().filter_map(ended)
    }

    /// As `ended_ranks`, for the ranks that had met, which may meet again now.
    pub(crate) fn ended_of_met(&self) -> impl Iterator<Item = (u32, &RankInfo, Timestamp)> {
        let standing = if self.met.is_some() { Standing::Published } else { Standing::OfBefore };
        let is_known = self.met.is_some() || self.before.is_some();
        self.with(standing).filter(move |_| is_known).filter_map(ended)
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
        count(self.ranks().filter(|(_, info)| info.is_live()).count())
    }

    /// Ranks that are there, whether their address still is or not: those that met before go on.
    pub(crate) fn present(&self) -> u32 {
        count(self.live().count())
    }

    /// Ranks that have come in the place of a process that has ended.
    pub(crate) fn replaced(&self) -> impl Iterator<Item = u32> {
        let has_ended = |rank: &u32| self.known_as(*rank).any(|info| !info.is_published() && !info.is_live());
        self.ranks().map(|(rank, _)| rank).filter(has_ended)
    }

    /// Ranks that are there and have not come again since they met.
    pub(crate) fn not_again(&self) -> impl Iterator<Item = u32> {
        self.live().filter(|(_, info)| info.standing == Standing::OfBefore).map(|(rank, _)| rank)
    }

    /// The ranks that are there: with the process whose address is, or else one whose address was dropped, or
    /// that has not come again since it met.
    pub(crate) fn live(&self) -> impl Iterator<Item = (u32, &RankInfo)> {
        let is_of_these = |rank: u32| self.size.is_none_or(|size| rank < size);
        self.publishers.iter().filter_map(move |(&rank, of)| {
            let live = of.iter().filter(|info| info.is_live()).min_by_key(|info| !info.is_published())?;
            (live.is_published() || is_of_these(rank)).then_some((rank, live))
        })
    }

    /// The rank that came last, and how long after the first of those that are here, or who came `before`.
    pub(crate) fn last(&self, before: Option<Timestamp>) -> Option<(String, Elapsed)> {
        let first = self.ranks().map(|(_, info)| info.joined).chain(before).min()?;
        let (rank, last) = self.ranks().max_by_key(|(_, info)| info.joined)?;
        Some((last.label(rank), Elapsed(last.joined.since(first))))
    }

    /// The process with this rank now, or else the one that had it before.
    pub(crate) fn holder(&self, rank: u32) -> Option<&RankInfo> {
        self.known_as(rank).find(|info| info.is_live()).or_else(|| self.known_as(rank).next())
    }

    /// The holders of all ranks.
    pub(crate) fn holders(&self) -> impl Iterator<Item = &RankInfo> {
        self.publishers.keys().filter_map(|rank| self.holder(*rank))
    }
}

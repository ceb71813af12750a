//! A round that outlived its server. The new server learns it from the reports of the nodes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::round::Adoption;
use super::run::{Current, HeartbeatView, Member, Run, Seat, Work};
use super::{
    Break, Decision, Did, Label, NodeInfo, RankInRound, Round, RunRefusal, Sign, Wanted, What, Who, Why,
};
use rallypoint_protocol::ids::Timestamp;

/// After the first report of a round, its other nodes have this long to report.
const GRACE: Duration = Duration::from_mins(1);
/// After this part of the time, nodes that have not reported are reported as silent. Nodes that live try
/// again sooner.
const PUBLISH_SILENT_AFTER: Duration = Duration::from_secs(8);
/// Only round numbers below this are learned from reports. So there are always greater numbers left, whatever
/// a foreign peer sends.
const MAX_LEARNED: u64 = 1 << 48;

/// What a node reports about its round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The node's id.
    pub node: Label,
    /// The id of the join that brought it into the round.
    pub join_id: Box<str>,
    /// What it says about itself.
    pub info: NodeInfo,
    /// Its round and rank.
    pub place: RankInRound,
    /// How many nodes the round has.
    pub world_size: u32,
    /// The terms that it joined with.
    pub wanted: Wanted,
}

impl Report {
    pub(super) fn check(&self) -> Result<(), RunRefusal> {
        self.wanted.check()?;
        self.place.check()?;
        if self.place.rank >= self.world_size || self.world_size > self.wanted.max_nodes {
            return Err(RunRefusal::BadTerms(
                "rank must be less than world_size, and world_size at most max_nodes".into(),
            ));
        }
        Ok(())
    }
}

impl RankInRound {
    pub(super) fn check(self) -> Result<(), RunRefusal> {
        if self.round > 0 { Ok(()) } else { Err(RunRefusal::BadTerms("round must be 1 or more".into())) }
    }

    /// Whether a server that never saw that round accepts it.
    pub(super) fn can_be_learned(self) -> bool {
        self.round < MAX_LEARNED
    }
}

impl Current {
    /// Whether no node is in it any more, and no node may still report that it is.
    pub(super) fn is_empty(&self) -> bool {
        self.present == 0 && self.unreported() == 0
    }

    /// Nodes of a learned round that may still report.
    pub(super) fn unreported(&self) -> u32 {
        self.adoption.as_ref().map_or(0, Adoption::unreported)
    }
}

impl Run {
    pub(super) fn heartbeat(
        &mut self,
        report: Report,
        now: Timestamp,
        out: &mut Vec<Decision>,
    ) -> HeartbeatView {
        let (node, round) = (report.node.clone(), report.place.round);
        let is_new = !self.seen_in_round(&node, round, now, out) && !self.members.contains_key(&node);
        if is_new && self.closed.is_none() && report.place.can_be_learned() {
            self.adopt(report, now, out);
        }
        self.settle(now, out);
        self.action(&node, round)
    }

    /// Takes over a round from a report. A report that is not accepted changes nothing, because any peer can
    /// send one.
    fn adopt(&mut self, report: Report, now: Timestamp, out: &mut Vec<Decision>) {
        let RankInRound { round, rank } = report.place;
        let who = report.info.who();
        let newer = match &self.current {
            // The nodes of the forming round have other terms, so the reported round is not theirs.
            None if self.live() > 0 && !self.terms_fit(&report) => false,
            None => round > self.last_round || self.unreported == Some(round),
            // A round that was completed here, or whose nodes are all known, is never given up because of a
            // report.
            Some(current) => current.unreported() > 0 && round > current.round.number,
        };
        if newer {
            self.start_adoption(&report, who.clone(), now, out);
        }
        let Some(current) = self.current.as_mut().filter(|c| c.round.number == round && c.broken.is_none())
        else {
            return;
        };
        let Some(adoption) = &mut current.adoption else { return };
        let fits = adoption.until.is_some() && adoption.world_size == report.world_size;
        if !fits || !adoption.ranks.insert(rank) {
            return;
        }
        current.present = current.present.saturating_add(1);
        current.watched = current.watched.saturating_add(1);
        if adoption.unreported() == 0 {
            adoption.until = None;
        }
        let member = Member::in_round(report.info, report.join_id, true, rank, now);
        self.seat(report.node, member);
        self.watch_for(now);
    }

    fn terms_fit(&self, report: &Report) -> bool {
        let wanted = &report.wanted;
        (wanted.min_nodes, wanted.max_nodes) == (self.terms.min_nodes, self.terms.max_nodes)
    }

    fn start_adoption(&mut self, report: &Report, who: Who, now: Timestamp, out: &mut Vec<Decision>) {
        let older: Vec<Label> =
            self.walk().filter(|(_, m)| matches!(m.seat, Seat::InRound(_))).map(|(n, _)| n.clone()).collect();
        for node in older {
            self.vacate(&node);
        }
        if self.settled_by.is_none() {
            self.settled_by = Some(who.clone());
            self.terms_are_learned = true;
        }
        let round = Round {
            run_id: self.id.clone(),
            number: report.place.round,
            terms: self.terms,
            participants: Vec::new(),
            completed: now,
            took: Duration::ZERO,
        };
        let adoption = Adoption {
            ranks: HashSet::new(),
            world_size: report.world_size,
            until: Some(now + GRACE),
            publish_at: Some(now + PUBLISH_SILENT_AFTER),
        };
        self.current = Some(Current {
            round: Arc::new(round),
            present: 0,
            watched: 0,
            broken: None,
            memory: 0,
            adoption: Some(adoption),
        });
        // A node that joins may have named a later round before.
        self.last_round = self.last_round.max(report.place.round);
        self.unreported = None;
        self.let_go = 0;
        self.work = Work { nodes: report.world_size, ..Work::default() };
        let what = What::Adopted { nodes: report.world_size, first: who };
        self.publish(report.place.round, what, Vec::new(), out);
    }

    /// A node that joins again was in a learned round, so it need not report any more.
    pub(super) fn count_as_reported(
        &mut self,
        place: RankInRound,
        who: &Who,
        now: Timestamp,
        out: &mut Vec<Decision>,
    ) {
        let Some(current) = self.current.as_mut().filter(|c| c.round.number == place.round) else { return };
        let Some(adoption) = &mut current.adoption else { return };
        if place.rank < adoption.world_size && adoption.ranks.insert(place.rank) {
            if adoption.unreported() == 0 {
                adoption.until = None;
            }
            self.break_round(Break::rejoined(who, place.rank, Vec::new()), now, out);
        }
    }

    /// Reports which nodes of a learned round have not reported yet.
    fn publish_unreported(&mut self, now: Timestamp, out: &mut Vec<Decision>) {
        let Some(adoption) = self.current.as_mut().and_then(|c| c.adoption.as_mut()) else { return };
        let Some(at) = adoption.publish_at.take_if(|at| *at <= now) else { return };
        let ago = PUBLISH_SILENT_AFTER.saturating_add(now.since(at));
        let sign = |rank: u32| Sign { ago, ..Sign::now(Did::Silent, &format!("node rank {rank}")) };
        let signs: Vec<Sign> = adoption.silent_ranks().map(sign).collect();
        if !signs.is_empty() && self.closed.is_none() {
            self.publish(self.last_round, What::Silent { again: Vec::new(), patience: GRACE }, signs, out);
        }
    }

    /// Gives up the round if some of its nodes have not reported in time.
    pub(super) fn end_adoption(&mut self, now: Timestamp, out: &mut Vec<Decision>) {
        self.publish_unreported(now, out);
        let Some(adoption) = self.current.as_mut().and_then(|c| c.adoption.as_mut()) else { return };
        if adoption.until.is_none_or(|until| until > now) {
            return;
        }
        let (missing, nodes) = (adoption.unreported(), adoption.world_size);
        adoption.until = None;
        if missing > 0 && self.closed.is_none() {
            self.break_round(Why::Unreported { missing, nodes }.into(), now, out);
        }
    }
}

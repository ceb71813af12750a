//! Successors: a pod was started again, and its earlier process keeps its place until its keep-alive runs
//! out.

use std::collections::BTreeMap;

use super::run::{Member, Run, Seat};
use super::{Decision, Join, Label};
use rallypoint_protocol::ids::Timestamp;

/// A node that came anew in the place of an earlier process.
pub(super) struct Successor<'r> {
    /// The earlier process, its predecessor.
    pub(super) predecessor: &'r Label,
    /// The new node.
    pub(super) node: &'r Label,
    /// The new node's record.
    pub(super) member: &'r Member,
}

impl Run {
    /// A node that comes anew takes the place of a waiting process with its name that was cut off: otherwise
    /// the round would count on a dead process. If that process is alive after all, its retry is a new join.
    pub(super) fn succeed_to(&mut self, join: &Join, now: Timestamp, out: &mut Vec<Decision>) {
        if self.doubtful.is_empty() || join.previous.is_some() || self.members.contains_key(&join.node) {
            return;
        }
        let is_predecessor = |member: &Member| member.is_cut_off(now) && member.info.name == join.info.name;
        let doubtful = self.doubtful.iter().filter_map(|node| self.members.get_key_value(node));
        let predecessors = doubtful.filter(|(_, member)| is_predecessor(member));
        // Several nodes may share a name: the best match has this address and asks for this rank.
        let predecessor = predecessors.min_by_key(|(_, member)| {
            let is_like_it = member.info.address == join.info.address && member.rank == join.rank;
            (!is_like_it, member.serial)
        });
        let Some(predecessor) = predecessor.map(|(node, _)| node.clone()) else { return };
        if self.vacate(&predecessor).is_some() {
            out.push(Decision::Ended(self.id.clone(), predecessor));
        }
    }

    /// The successors of nodes of the round that may be dead: each such node gets another new node with its
    /// name, because several nodes of the last round may share a name.
    pub(super) fn successors(&self, now: Timestamp) -> Vec<Successor<'_>> {
        if self.current.is_none() || self.joined == 0 && self.redundant.is_empty() {
            return Vec::new();
        }
        let is_predecessor =
            |member: &Member| matches!(member.seat, Seat::InRound(_)) && member.may_be_dead(now, &self.terms);
        let mut predecessors: Vec<_> = self.walk().filter(|(_, member)| is_predecessor(member)).collect();
        if predecessors.is_empty() {
            return Vec::new();
        }
        predecessors.sort_by_key(|(_, member)| member.serial);
        let is_new = |member: &Member| {
            let waits = matches!(member.seat, Seat::Forming | Seat::Redundant);
            waits && member.previous.is_none() && !member.may_be_dead(now, &self.terms)
        };
        let mut newcomers: BTreeMap<&Label, Vec<_>> = BTreeMap::new();
        for (node, member) in self.walk().filter(|(_, member)| is_new(member)) {
            newcomers.entry(&member.info.name).or_default().push((node, member));
        }
        let find = |(predecessor, was): (_, &Member)| {
            let newcomers = newcomers.get_mut(&was.info.name)?;
            let is_there = |(_, member): &(_, &Member)| member.info.address == was.info.address;
            let at = newcomers.iter().position(is_there).unwrap_or(0);
            let (node, member) = (at < newcomers.len()).then(|| newcomers.swap_remove(at))?;
            Some(Successor { predecessor, node, member })
        };
        predecessors.into_iter().filter_map(find).collect()
    }
}

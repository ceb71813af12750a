//! How many nodes an operator expects in the rounds of a run. A round is complete as soon as that many are
//! there.

use super::run::{Run, Seat};
use super::{Decision, Label, Rendezvous, Terms, Why};
use rallypoint_protocol::ids::{Nodes, RunId, Timestamp, counted};

/// An operator expects a number of nodes that the terms of the run do not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the nodes of run {run} ask for {asked}, so its rounds cannot have {expected}: say a number within that, \
     or start all nodes with another --nnodes"
)]
pub struct Unfit {
    /// The run.
    pub run: RunId,
    /// The numbers of nodes that its terms allow.
    pub asked: Nodes,
    /// The numbers of nodes that are expected.
    pub expected: Nodes,
}

impl Rendezvous {
    /// An operator expects this many nodes in the rounds of a run, which may still be unknown. If the run is
    /// known, returns in words what follows.
    pub fn expect(&mut self, id: &RunId, nodes: Nodes, now: Timestamp) -> Result<Option<String>, Unfit> {
        self.runs.get(id).map_or(Ok(()), |run| run.can_have(nodes))?;
        self.expected.insert(id.clone(), nodes.max);
        Ok(self.with(id, |run, out| run.resize(nodes.max, now, out)).flatten())
    }
}

impl Run {
    /// The most nodes of a round. What an operator expects is limited by the terms of the nodes.
    pub(super) fn most_nodes(&self) -> u32 {
        let Terms { min_nodes, max_nodes, .. } = self.terms;
        self.size.map_or(max_nodes, |size| size.clamp(min_nodes, max_nodes.max(min_nodes)))
    }

    fn can_have(&self, expected: Nodes) -> Result<(), Unfit> {
        let Terms { min_nodes: min, max_nodes: max, .. } = self.terms;
        // If no node is there, the next one brings its own terms.
        if self.live() == 0 || (min <= expected.min && expected.max <= max) {
            return Ok(());
        }
        Err(Unfit { run: self.id.clone(), asked: Nodes { min, max }, expected })
    }

    fn resize(&mut self, size: u32, now: Timestamp, out: &mut Vec<Decision>) -> Option<String> {
        self.size = Some(size);
        if self.closed.is_some() {
            return None;
        }
        let most = self.most_nodes();
        self.let_stand_by(most);
        let goes_on = self.current.as_ref().filter(|current| current.broken.is_none());
        if let Some((nodes, watched)) =
            goes_on.map(|it| (it.present.saturating_add(it.unreported()), it.watched))
            && nodes > most
            && watched > 0
        {
            self.break_round(Why::Resized { nodes, expected: most }.into(), now, out);
        }
        self.settle(now, out);
        Some(self.outlook(most))
    }

    /// If more nodes wait than a round may have, the ones that came last lose their places and stand by.
    fn let_stand_by(&mut self, most: u32) {
        let over = self.joined.saturating_sub(most) as usize;
        if over == 0 {
            return;
        }
        let forming = self.walk().filter(|(_, member)| member.seat == Seat::Forming);
        let mut forming: Vec<(u64, Label)> =
            forming.map(|(node, member)| (member.serial, node.clone())).collect();
        forming.sort_unstable();
        for (serial, node) in forming.into_iter().rev().take(over) {
            let Some(mut member) = self.vacate(&node) else { continue };
            member.seat = Seat::Redundant;
            self.parked = self.parked.saturating_add(member.parked.into());
            let is_held = member.rank.is_some_and(|rank| self.ranks.contains_key(&rank));
            self.redundant.insert(serial, member.rank, is_held, node.clone());
            self.seat(node, member);
        }
    }

    /// What will happen to the rounds of the run, in words.
    fn outlook(&self, most: u32) -> String {
        let nodes = counted(most, "node", "nodes");
        let Some(current) = &self.current else {
            let round = self.next_round();
            return match &self.forming {
                Some(_) => {
                    format!("round {round} gathers, and is complete with {nodes}; {} joined", self.joined)
                }
                None => format!("round {round} will be complete with {nodes}"),
            };
        };
        let (round, present) = (current.round.number, current.present.saturating_add(current.unreported()));
        let has = counted(present, "node", "nodes");
        match &current.broken {
            Some(why) => format!("round {round} is over ({why}), and the next one is complete with {nodes}"),
            None if self.joined > 0 => {
                format!(
                    "round {round} has {has}; they are told to join again, and the next one is complete with \
                     {nodes}"
                )
            }
            None if present > most => format!(
                "round {round} goes on with {has}, which send no heartbeats and cannot be told; the next one \
                 is complete with {nodes}"
            ),
            None if present < most => format!(
                "round {round} goes on with {has}; with the next node that joins it forms anew, and is \
                 complete with {nodes}"
            ),
            None => format!("round {round} has {has}, and goes on"),
        }
    }
}

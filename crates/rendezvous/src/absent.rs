//! Absent nodes: they could be in the forming round, but were lost, left, or may not join.

use super::reason::if_any;
use super::{Label, Who};
use rallypoint_protocol::ids::Timestamp;

/// Most absent nodes that are remembered.
const MOST: usize = 16;

/// Why a node is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It was silent for too long.
    Lost,
    /// Its connection closed, and it was silent for too long since.
    Closed,
    /// It left.
    Left,
    /// It may not join.
    Refused,
    /// It waited, and another node joined with its id.
    Displaced,
}

/// An absent node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absent {
    /// Its node id.
    pub node: Label,
    /// Its name and address.
    pub who: Who,
    /// The rank that it had in the last round.
    pub rank: Option<u32>,
    /// Why it is absent.
    pub fate: Fate,
    /// The time of its last sign of life.
    pub heard: Timestamp,
}

/// All absent nodes that are remembered.
#[derive(Debug, Default)]
pub(super) struct Absentees(Vec<Absent>);

impl Absentees {
    /// Remembers an absent node until a round is complete, or the node comes again.
    pub(super) fn note(&mut self, absent: Absent) {
        if absent.fate == Fate::Refused {
            self.forget(|other| other.who == absent.who);
        }
        if self.0.len() < MOST {
            self.0.push(absent);
        }
    }

    /// A node has joined: it is not absent any more. A new node replaces an absent one of its name or of its
    /// rank. One that joins again does not: another of its name and address may be absent.
    pub(super) fn is_back(&mut self, node: &Label, who: &Who, rank: Option<u32>, is_new: bool) {
        let was_absent = self.forget(|absent| absent.who == *who && (is_new || absent.node == *node));
        // A displaced node lost its place to another living node of its name, so a new node does not replace
        // it.
        let was_one = |absent: &Absent| absent.fate != Fate::Displaced && absent.who.name == who.name;
        if is_new && !was_absent && !self.forget(was_one) {
            self.forget(|absent| rank.is_some() && absent.rank == rank);
        }
    }

    /// Forgets one absent node that matches. Returns whether there was one.
    fn forget(&mut self, is_it: impl Fn(&Absent) -> bool) -> bool {
        let at = self.0.iter().position(is_it);
        at.map(|at| self.0.remove(at)).is_some()
    }

    /// No node is absent any more.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether one of this name and address is absent.
    pub(super) fn has(&self, who: &Who) -> bool {
        self.0.iter().any(|absent| absent.who == *who)
    }

    /// How many absent nodes are remembered.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// All absent nodes.
    pub(super) fn to_vec(&self) -> Vec<Absent> {
        self.0.clone()
    }

    /// The absent nodes in words, to be added to a sentence.
    pub(super) fn words(&self) -> String {
        let text = |Absent { node, who, rank, fate, .. }: &Absent| match (rank, fate) {
            (Some(rank), _) => format!("{who}, rank {rank}"),
            // Another process of that name and address may be there.
            (None, Fate::Refused) if *node != who.name => format!("{who}, node id {node}"),
            (None, _) => who.to_string(),
        };
        let all = |title: &str, fates: &[Fate]| {
            let absentees = self.0.iter().filter(|absent| fates.contains(&absent.fate));
            if_any(title, &absentees.map(text).collect::<Vec<_>>())
        };
        all("given up", &[Fate::Lost, Fate::Closed])
            + &all("left", &[Fate::Left])
            + &all("refused", &[Fate::Refused])
            + &all("displaced by another of the same id", &[Fate::Displaced])
    }
}

//! Who could be in the round that forms and is not: nodes that were lost, that left, or that may not join.

use super::reason::if_any;
use super::{Label, Who};
use crate::core::ids::Timestamp;

/// Most of them that are remembered.
const MOST: usize = 16;

/// Why a node is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It was silent for too long.
    Lost,
    /// It left.
    Left,
    /// It may not join.
    Refused,
    /// It waited, and another node joined with its id.
    Displaced,
}

/// A node that is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absent {
    /// Its id.
    pub node: Label,
    /// The node.
    pub who: Who,
    /// The rank that it had in the last round.
    pub rank: Option<u32>,
    /// Why it is not there.
    pub fate: Fate,
    /// When it was heard of last.
    pub heard: Timestamp,
}

/// All that are remembered.
#[derive(Debug, Default)]
pub(super) struct Absentees(Vec<Absent>);

impl Absentees {
    /// Remembers one until a round is complete, or it comes again.
    pub(super) fn note(&mut self, absent: Absent) {
        if absent.fate == Fate::Refused {
            self.forget(|other| other.who == absent.who);
        }
        if self.0.len() < MOST {
            self.0.push(absent);
        }
    }

    /// A node has joined. It is absent no more, or if it is new, the one that had its name or its rank: it replaces that one.
    pub(super) fn is_back(&mut self, who: &Who, rank: Option<u32>, is_new: bool) {
        let was_absent = self.forget(|absent| absent.who == *who);
        // Those of one name that displaced each other are several.
        let was_one = |absent: &Absent| absent.fate != Fate::Displaced && absent.who.name == who.name;
        if is_new && !was_absent && !self.forget(was_one) {
            self.forget(|absent| rank.is_some() && absent.rank == rank);
        }
    }

    /// Forgets one of them, if there is such a one.
    fn forget(&mut self, is_it: impl Fn(&Absent) -> bool) -> bool {
        let at = self.0.iter().position(is_it);
        at.map(|at| self.0.remove(at)).is_some()
    }

    /// No one is absent any more.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// How many are remembered.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Each of them.
    pub(super) fn to_vec(&self) -> Vec<Absent> {
        self.0.clone()
    }

    /// Who they are, in words that follow others.
    pub(super) fn words(&self) -> String {
        let told = |absent: &Absent| match absent.rank {
            Some(rank) => format!("{}, rank {rank}", absent.who),
            None => absent.who.to_string(),
        };
        let all = |title: &str, of: &[Fate]| {
            let those = self.0.iter().filter(|absent| of.contains(&absent.fate));
            if_any(title, &those.map(told).collect::<Vec<_>>())
        };
        all("gone", &[Fate::Lost, Fate::Left])
            + &all("refused", &[Fate::Refused])
            + &all("displaced by another of the same id", &[Fate::Displaced])
    }
}

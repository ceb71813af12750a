//! Who could be in the round that forms and is not: nodes that were lost, that left, or that may not join.

use super::Who;
use super::reason::if_any;
use super::run::Run;

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
}

/// A node that is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absent {
    /// The node.
    pub who: Who,
    /// The rank that it had in the last round.
    pub rank: Option<u32>,
    /// Why it is not there.
    pub fate: Fate,
}

impl Run {
    /// Remembers it until a round is complete, or it comes again.
    pub(super) fn note_absent(&mut self, who: &Who, rank: Option<u32>, fate: Fate) {
        if fate == Fate::Refused {
            self.forget_absent(|absent| absent.who == *who);
        }
        if self.absent.len() < MOST {
            self.absent.push(Absent { who: who.clone(), rank, fate });
        }
    }

    /// A node has joined. It is absent no more, or the one that had its name or its rank, which it replaces.
    pub(super) fn is_back(&mut self, who: &Who, rank: Option<u32>) {
        let _ = self.forget_absent(|absent| absent.who == *who)
            || self.forget_absent(|absent| absent.who.name == who.name)
            || self.forget_absent(|absent| rank.is_some() && absent.rank == rank);
    }

    /// Forgets one of them, if there is such a one.
    fn forget_absent(&mut self, is_it: impl Fn(&Absent) -> bool) -> bool {
        let at = self.absent.iter().position(is_it);
        at.map(|at| self.absent.remove(at)).is_some()
    }

    /// The absent, in words that follow others.
    pub(super) fn absences(&self) -> String {
        let told = |absent: &Absent| match absent.rank {
            Some(rank) => format!("{}, rank {rank}", absent.who),
            None => absent.who.to_string(),
        };
        let all = |title: &str, of: &[Fate]| {
            let those = self.absent.iter().filter(|absent| of.contains(&absent.fate));
            if_any(title, &those.map(told).collect::<Vec<_>>())
        };
        all("gone", &[Fate::Lost, Fate::Left]) + &all("refused", &[Fate::Refused])
    }
}

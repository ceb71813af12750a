//! Rounds: a forming round, a complete round with the ranks of its nodes, and a round that is learned from
//! its nodes.

use std::collections::HashSet;
use std::time::Duration;

use super::{Label, NodeInfo, Payload, Terms, Who};
use rallypoint_protocol::ids::{RunId, Timestamp, count};

/// How long before its deadline the end of a round is announced, but at most a fifth of its whole time.
const EXPIRING: Duration = Duration::from_mins(5);
/// No node waits longer than this, however often the deadline is moved.
pub(super) const MAX_LEFT: Duration = Duration::from_hours(7 * 24);

/// A node of a complete round. Its position in the list is its rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Participant {
    /// Its id.
    pub node: Label,
    /// What it says about itself.
    pub info: NodeInfo,
    /// What it tells its peers.
    pub payload: Option<Payload>,
    /// Whether it sends heartbeats.
    pub watched: bool,
}

impl Participant {
    /// Bytes that it takes in the list of a round, and in the list as it is sent.
    pub(super) fn memory(&self) -> usize {
        const PARTICIPANT: usize = 256;
        let payload = self.payload.as_ref().map_or(0, Payload::memory);
        [PARTICIPANT, self.node.as_str().len(), self.info.text_len(), payload].into_iter().sum()
    }
}

/// A complete round. It never changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round {
    /// The run.
    pub run_id: RunId,
    /// Its number, from 1; a run's later rounds have greater numbers.
    pub number: u64,
    /// The terms it was made with.
    pub terms: Terms,
    /// Its nodes, by rank. Empty if the round was taken over after a restart of the server.
    pub participants: Vec<Participant>,
    /// When it became complete.
    pub completed: Timestamp,
    /// From its first join to its completion.
    pub took: Duration,
}

/// What a node claims when ranks are assigned.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    /// The rank that it must get. No two claims have the same one.
    pub(super) requested: Option<u32>,
    /// The rank that it had.
    pub(super) previous: Option<u32>,
}

/// Assigns a rank to each claim, in the order of the claims: requested ranks first, then ranks that nodes had
/// before, then the ranks that are left, in order. In a round smaller than the maximum, a requested rank may
/// be too high. Nodes with such requests get the free ranks, in the order of their requests. In a round too
/// small for a rank that a node had, all nodes keep the order of their ranks instead.
pub(super) fn assign_ranks(claims: &[Claim]) -> Vec<u32> {
    let world = claims.len();
    let mut taken = vec![false; world];
    let mut ranks: Vec<Option<u32>> = vec![None; world];
    let shrinks = claims
        .iter()
        .any(|claim| claim.requested.is_none() && claim.previous.is_some_and(|rank| rank as usize >= world));
    let wishes = [|claim: &Claim| claim.requested, |claim: &Claim| claim.previous];
    for wish in wishes.into_iter().take(if shrinks { 1 } else { 2 }) {
        for (n, claim) in claims.iter().enumerate() {
            if ranks[n].is_none()
                && let Some(rank) = wish(claim)
                && let Some(free) = taken.get_mut(rank as usize).filter(|taken| !**taken)
            {
                *free = true;
                ranks[n] = Some(rank);
            }
        }
    }
    let mut rest: Vec<usize> = (0..world).filter(|&n| ranks[n].is_none()).collect();
    rest.sort_by_key(|&n| {
        let Claim { requested, previous } = claims[n];
        (requested.is_none(), requested, previous.is_none(), previous, n)
    });
    let free = (0..world).filter(|&rank| !taken[rank]);
    for (n, rank) in rest.into_iter().zip(free) {
        ranks[n] = Some(count(rank));
    }
    ranks.into_iter().map(Option::unwrap_or_default).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(claims: &[(Option<u32>, Option<u32>)]) -> Vec<u32> {
        let claims: Vec<_> =
            claims.iter().map(|&(requested, previous)| Claim { requested, previous }).collect();
        assign_ranks(&claims)
    }

    #[test]
    fn ranks_are_requested_then_kept_then_filled_up() {
        assert_eq!(ranks(&[(None, None), (None, None)]), [0, 1]);
        assert_eq!(ranks(&[(Some(1), None), (None, None), (None, Some(0))]), [1, 2, 0]);
        assert_eq!(ranks(&[(None, Some(2)), (None, Some(2)), (Some(2), Some(0))]), [0, 1, 2]);
    }

    #[test]
    fn the_survivors_of_a_round_keep_the_order_of_their_ranks() {
        // Rank 1 of 4 is lost, whoever joins again first; then rank 0.
        assert_eq!(ranks(&[(None, Some(3)), (None, Some(0)), (None, Some(2))]), [2, 0, 1]);
        assert_eq!(ranks(&[(None, Some(3)), (None, Some(1)), (None, Some(2))]), [2, 0, 1]);
        // Ranks 1 and 2 of 5 are lost, and a new node comes: it is the last.
        assert_eq!(ranks(&[(None, None), (None, Some(4)), (None, Some(0)), (None, Some(3))]), [3, 2, 0, 1]);
        // In a round of the same size nobody moves.
        assert_eq!(ranks(&[(None, None), (None, Some(3)), (None, Some(0)), (None, Some(2))]), [1, 3, 0, 2]);
    }

    #[test]
    fn a_small_round_keeps_the_order_of_ranks_that_are_too_great() {
        assert_eq!(ranks(&[(Some(3), None), (Some(0), None), (Some(2), None)]), [1, 0, 2]);
        assert_eq!(ranks(&[(Some(7), None), (Some(5), None), (None, Some(9))]), [1, 0, 2]);
    }
}

/// A forming round.
#[derive(Debug)]
pub(super) struct Forming {
    pub(super) first_join: Timestamp,
    pub(super) deadline: Timestamp,
    /// When it is complete with the nodes that it has, if they are enough.
    pub(super) last_call: Option<Timestamp>,
    /// When its end is announced. `None` after the announcement.
    pub(super) announce_at: Option<Timestamp>,
    /// The node that came last.
    pub(super) last: Who,
}

impl Forming {
    pub(super) fn start(first: Who, terms: &Terms, now: Timestamp) -> Self {
        let mut forming = Self {
            first_join: now,
            deadline: now + terms.join_timeout,
            last_call: None,
            announce_at: None,
            last: first,
        };
        forming.plan_announcement(terms);
        forming
    }

    /// Moves the deadline.
    pub(super) fn more_time(&mut self, by: Duration, terms: &Terms, now: Timestamp) {
        self.deadline = (self.deadline + by).min(now + MAX_LEFT);
        self.plan_announcement(terms);
    }

    fn plan_announcement(&mut self, terms: &Terms) {
        #[expect(clippy::arithmetic_side_effects, reason = "a fifth of a time is less than it")]
        let early = EXPIRING.min(terms.join_timeout / 5);
        self.announce_at = Some(Timestamp(self.deadline.0.saturating_sub(early)));
    }

    /// When to look at it again. The end of its last call matters only if all nodes are `heard`.
    pub(super) fn check_at(&self, heard: bool) -> Timestamp {
        let last_call = self.last_call.filter(|_| heard);
        [last_call, self.announce_at].into_iter().flatten().fold(self.deadline, Timestamp::min)
    }
}

/// Which nodes of a learned round have reported.
#[derive(Debug)]
pub(super) struct Adoption {
    /// Ranks that have reported, or have already joined again.
    pub(super) ranks: HashSet<u32>,
    pub(super) world_size: u32,
    /// Until when the other ranks may report.
    pub(super) until: Option<Timestamp>,
    /// When the other ranks are reported as silent. `None` after that.
    pub(super) publish_at: Option<Timestamp>,
}

impl Adoption {
    pub(super) fn unreported(&self) -> u32 {
        if self.until.is_none() { 0 } else { self.world_size.saturating_sub(count(self.ranks.len())) }
    }

    /// The ranks that may still report. A few of them.
    pub(super) fn silent_ranks(&self) -> impl Iterator<Item = u32> {
        const SHOWN: usize = 64;
        let is_silent = |rank: &u32| !self.ranks.contains(rank);
        (0..self.world_size).filter(is_silent).take(SHOWN.min(self.unreported() as usize))
    }

    pub(super) fn check_at(&self) -> Option<Timestamp> {
        self.until.map(|until| self.publish_at.map_or(until, |at| at.min(until)))
    }
}

//! The decisions of a c10d agent from its copy of the state, as in PyTorch's `dynamic_rendezvous.py`.

use super::super::plan::{MILLI, Micros, SECOND};
use super::{Agent, Doing, Move, Terms, Work, ask};
use rallypoint_protocol::rendezvous_state::testing;
use rallypoint_protocol::rendezvous_state::{self, NO_STATE, Node, RendezvousState, UtcMicros};
use rallypoint_store::testing::model::Act;

const HEARTBEAT: Micros = 2 * SECOND;
/// A node with an older last heartbeat is removed by the next agent that writes.
const DEAD_AFTER: Micros = 6 * SECOND;
const LAST_CALL: Micros = SECOND;
const JOIN: Micros = 30 * SECOND;

impl Agent {
    fn writes(&self) -> Move {
        let expected = if self.token.is_empty() {
            String::from_utf8_lossy(NO_STATE).into_owned()
        } else {
            self.token.clone()
        };
        Move::Ask(vec![ask(
            0,
            Act::CompareSet(self.terms.state_key(), expected, testing::encode(&self.state)),
        )])
    }

    /// Takes the state from the store, without nodes that are dead according to their heartbeats.
    pub(super) fn takes(&mut self, now: Micros, bytes: &[u8]) -> Result<(), String> {
        self.state = rendezvous_state::read(bytes)
            .map_err(|why| format!("{}: {why}", self.node))?
            .unwrap_or_else(empty);
        self.token =
            if bytes == NO_STATE { String::new() } else { String::from_utf8_lossy(bytes).into_owned() };
        let dead = time(now.saturating_sub(DEAD_AFTER));
        let dead: Vec<Node> = self
            .state
            .last_heartbeats
            .iter()
            .filter(|(_, beat)| *beat < dead)
            .map(|(node, _)| node.clone())
            .collect();
        let was_in = self.state.participants.len();
        for node in &dead {
            self.take_out(node);
        }
        if self.state.participants.len() < was_in {
            self.after_removal();
        }
        Ok(())
    }

    fn take_out(&mut self, node: &Node) {
        let it = &mut self.state;
        it.participants.retain(|(other, _)| other != node);
        it.wait_list.retain(|other| other != node);
        it.redundancy_list.retain(|other| other != node);
        it.last_heartbeats.retain(|(other, _)| other != node);
    }

    fn after_removal(&mut self) {
        let it = &mut self.state;
        if it.complete {
            if it.participants.is_empty() {
                it.complete = false;
                it.round += 1;
            }
        } else if it.participants.len() < self.terms.min {
            it.deadline = None;
        }
    }

    fn rank(&self) -> Option<u32> {
        self.state.participants.iter().find(|(node, _)| *node == self.node).map(|(_, rank)| *rank)
    }

    fn beats(&mut self, now: Micros) -> Move {
        self.state.last_heartbeats.retain(|(node, _)| *node != self.node);
        self.state.last_heartbeats.push((self.node.clone(), time(now)));
        self.writes()
    }

    fn should_beat(&self, now: Micros) -> bool {
        let own = self.state.last_heartbeats.iter().find(|(node, _)| *node == self.node);
        own.is_some_and(|(_, beat)| *beat <= time(now.saturating_sub(HEARTBEAT)))
    }

    pub(super) fn decides(&mut self, now: Micros, work: Work) -> Move {
        match self.doing {
            Doing::Begins | Doing::Leaves => {
                if self.until == 0 {
                    self.until = now + JOIN;
                }
                if self.rank().is_some() {
                    self.take_out(&self.node.clone());
                    self.after_removal();
                    return self.writes();
                }
                self.doing = Doing::Joins;
                self.joins(now)
            }
            Doing::Joins => self.joins(now),
            Doing::Trains if self.should_beat(now) => self.beats(now),
            Doing::Trains
                if work == Work::Failed || work == Work::Goes && !self.state.wait_list.is_empty() =>
            {
                (self.doing, self.until) = (Doing::Leaves, now + JOIN);
                self.looks(300 * MILLI)
            }
            Doing::Trains if work == Work::Done => self.arrives(),
            Doing::Trains => Move::Rest(SECOND),
            Doing::Closes { well } if self.state.closed => self.ends(well),
            Doing::Closes { .. } => {
                self.state.closed = true;
                self.writes()
            }
            Doing::Exchanges | Doing::AtExit | Doing::Over { .. } => Move::End,
        }
    }

    fn joins(&mut self, now: Micros) -> Move {
        let there = self.state.participants.len();
        let Terms { min, max, .. } = self.terms;
        let waits = self.state.wait_list.contains(&self.node);
        let is_redundant = self.state.redundancy_list.contains(&self.node);
        if self.state.closed {
            return self.ends(false);
        }
        let rest = |it: &mut Self| if it.should_beat(now) { it.beats(now) } else { Move::Rest(SECOND) };
        if is_redundant {
            if there == max {
                return rest(self);
            }
            self.until = now + JOIN;
            self.take_out(&self.node.clone());
            return self.writes();
        }
        let rank = self.rank();
        if let (true, Some(rank)) = (self.state.complete, rank) {
            return self.exchanges(rank as usize);
        }
        if now > self.until {
            if now <= self.until + 5 * SECOND && (rank.is_some() || waits) {
                self.take_out(&self.node.clone());
                self.after_removal();
                return self.writes();
            }
            return self.closes(false);
        }
        if self.state.complete {
            if there < max && !waits {
                self.state.wait_list.push(self.node.clone());
                return self.beats(now);
            }
            if there >= max && !waits {
                self.state.redundancy_list.push(self.node.clone());
                return self.beats(now);
            }
        } else if rank.is_some() {
            if (min..=max).contains(&there)
                && self.state.deadline.is_some_and(|deadline| deadline < time(now))
            {
                self.completes();
                return self.writes();
            }
        } else {
            self.state.wait_list.retain(|node| *node != self.node);
            self.state.participants.push((self.node.clone(), 0));
            if there + 1 == min {
                self.state.deadline = Some(time(now + LAST_CALL));
            }
            if there + 1 == max {
                self.completes();
            }
            return self.beats(now);
        }
        rest(self)
    }

    fn completes(&mut self) {
        let it = &mut self.state;
        (it.complete, it.deadline) = (true, None);
        it.participants.sort_by(|(a, _), (b, _)| (&a.addr, a.pid).cmp(&(&b.addr, b.pid)));
        (0..).zip(&mut it.participants).for_each(|(n, (_, rank))| *rank = n);
    }
}

fn time(now: Micros) -> UtcMicros {
    // The simulation begins at midnight, and times count from there.
    testing::at(u32::try_from(now).unwrap_or(u32::MAX))
}

pub(super) fn empty() -> RendezvousState {
    RendezvousState {
        round: 0,
        complete: false,
        closed: false,
        deadline: None,
        participants: Vec::new(),
        wait_list: Vec::new(),
        redundancy_list: Vec::new(),
        last_heartbeats: Vec::new(),
    }
}

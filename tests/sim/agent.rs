//! An agent of torchrun's c10d backend as a state machine: what it does next follows from its copy of the state, as in
//! PyTorch 2.15's `dynamic_rendezvous.py`. Its waits are shorter than torchrun's.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use super::plan::{MILLI, Micros, SECOND, Step};
use crate::core::insight::tests::pickle;
use crate::core::protocol::rendezvous_state::{self, NO_STATE, Node, RendezvousState, UtcMicros};
use crate::core::store::tests::Said;
use crate::core::store::tests::model::{Act, Key};

const HEARTBEAT: Micros = 2 * SECOND;
/// Whose last heartbeat is so old is taken out by the next that writes.
const DEAD_AFTER: Micros = 6 * SECOND;
const LAST_CALL: Micros = SECOND;
const JOIN: Micros = 30 * SECOND;
/// Until an agent gives up waiting for a key of another.
const READ: Micros = 10 * SECOND;
const AT_EXIT: Micros = 10 * SECOND;

/// One name of a key is kept for all worlds.
pub(super) fn key(name: &str) -> Key {
    static KNOWN: Mutex<BTreeSet<Key>> = Mutex::new(BTreeSet::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.get(name).copied().unwrap_or_else(|| {
        let key: Key = String::leak(name.to_owned());
        known.insert(key);
        key
    })
}

/// A run: what torchrun is told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) run: String,
    pub(super) min: usize,
    pub(super) max: usize,
}

impl Terms {
    pub(super) fn state_key(&self) -> Key {
        key(&format!("/torch.rendezvous.{}", self.run))
    }

    fn of_round(&self, round: u64, name: &str) -> Key {
        key(&format!("/torch.rendezvous.{}.{round}/{name}", self.run))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    /// It makes sure that there is a state.
    Begins,
    /// It leaves the round that it was in, to join the next.
    Leaves,
    Joins,
    Exchanges,
    Trains,
    AtExit,
    /// It closes the run; `well` if its workers have done their work.
    Closes {
        well: bool,
    },
    Over {
        well: bool,
    },
}

/// What has become of the workers of its round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    Goes,
    Failed,
    Done,
}

/// What it does next.
pub(super) enum Move {
    Ask(Vec<Step>),
    Rest(Micros),
    End,
}

/// What it was told of its round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) round: u64,
    pub(super) rank: usize,
    /// How many ranks there are, by node 0, which hands them out.
    pub(super) size: usize,
    /// The nodes, as it knows them.
    pub(super) nodes: Vec<Node>,
}

#[derive(Debug)]
pub(super) struct Agent {
    pub(super) terms: Terms,
    pub(super) node: Node,
    pub(super) doing: Doing,
    pub(super) place: Option<Place>,
    state: RendezvousState,
    /// The state as it is in the store.
    token: String,
    /// When it gives up to join.
    until: Micros,
    rests: bool,
}

fn ask(think: Micros, act: Act) -> Step {
    Step { think, act, patience: None }
}

/// torch's get() is a WAIT and a GET.
fn get(think: Micros, key: Key) -> [Step; 2] {
    let wait = Step { patience: Some(READ), ..ask(think, Act::Wait(vec![key])) };
    [wait, ask(0, Act::Get(key))]
}

impl Agent {
    pub(super) fn new(terms: Terms, node: Node) -> Self {
        let state = empty();
        let (doing, place) = (Doing::Begins, None);
        Self { terms, node, doing, place, state, token: String::new(), until: 0, rests: false }
    }

    /// What it asks for first.
    pub(super) fn first(&self) -> Vec<Step> {
        let desired = String::from_utf8_lossy(NO_STATE).into_owned();
        let make = Act::CompareSet(self.terms.state_key(), String::new(), desired);
        vec![ask(0, Act::Ping(self.node.pid)), ask(0, make)]
    }

    /// Its last request has had this answer, or it has rested.
    pub(super) fn goes_on(
        &mut self,
        now: Micros,
        (act, said): (&Act, &[Said]),
        work: Work,
    ) -> Result<Move, String> {
        let goes_on = match (act, said) {
            _ if std::mem::take(&mut self.rests) => self.looks(0),
            (Act::Cancel, _) => self.gives_up(),
            (Act::Get(key) | Act::CompareSet(key, ..), [Said::Bytes(bytes)])
                if *key == self.terms.state_key() =>
            {
                self.takes(now, bytes)?;
                self.decides(now, work)
            }
            (Act::Add(..), [Said::Number(count)]) => self.waits_at_exit(*count),
            _ if self.doing == Doing::Exchanges => {
                if let (Some(place), [Said::Bytes(ranks)]) = (&mut self.place, said) {
                    let [_, size, ..]: [usize; 4] =
                        serde_json::from_slice(ranks).map_err(|why| format!("{}: {why}", self.node))?;
                    place.size = size;
                }
                self.doing = Doing::Trains;
                self.looks(0)
            }
            _ if self.doing == Doing::AtExit => self.closes(true),
            _ => self.looks(0),
        };
        self.rests = matches!(goes_on, Move::Rest(_));
        Ok(goes_on)
    }

    fn looks(&self, think: Micros) -> Move {
        Move::Ask(get(think, self.terms.state_key()).into())
    }

    fn writes(&self) -> Move {
        let expected = if self.token.is_empty() {
            String::from_utf8_lossy(NO_STATE).into_owned()
        } else {
            self.token.clone()
        };
        Move::Ask(vec![ask(
            0,
            Act::CompareSet(self.terms.state_key(), expected, pickle::encode(&self.state)),
        )])
    }

    /// A wait took too long. The run is closed by that, if there is one.
    fn gives_up(&mut self) -> Move {
        match self.doing {
            Doing::AtExit => self.closes(true),
            Doing::Exchanges => self.closes(false),
            _ => self.ends(false),
        }
    }

    fn closes(&mut self, well: bool) -> Move {
        self.doing = Doing::Closes { well };
        self.looks(0)
    }

    fn ends(&mut self, well: bool) -> Move {
        self.doing = Doing::Over { well };
        Move::End
    }

    /// Takes the state from the store, without those that are dead by their heartbeats.
    fn takes(&mut self, now: Micros, bytes: &[u8]) -> Result<(), String> {
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

    fn decides(&mut self, now: Micros, work: Work) -> Move {
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

    /// The exchange of roles and ranks.
    fn exchanges(&mut self, rank: usize) -> Move {
        let round = self.state.round;
        let nodes: Vec<Node> = self.state.participants.iter().map(|(node, _)| node.clone()).collect();
        let all = nodes.len();
        self.place = Some(Place { round, rank, size: all, nodes });
        self.doing = Doing::Exchanges;
        let of_round = |name: &str| self.terms.of_round(round, name);
        let role = |rank: usize| of_round(&format!("torchelastic/role_info/{rank}"));
        let ranks = |rank: usize| of_round(&format!("torchelastic/assigned_ranks/{rank}"));
        let mut steps = Vec::new();
        if rank == 0 {
            steps.push(ask(5 * MILLI, Act::Set(of_round("MASTER_ADDR"), self.node.addr.to_string())));
            steps.push(ask(0, Act::Set(of_round("MASTER_PORT"), "41234".into())));
        }
        steps.extend(get(0, of_round("MASTER_ADDR")));
        steps.extend(get(0, of_round("MASTER_PORT")));
        let told = format!("{{\"role\": \"default\", \"rank\": {rank}, \"local_world_size\": 1}}");
        steps.push(ask(MILLI, Act::Set(role(rank), told)));
        if rank == 0 {
            let roles: Vec<Key> = (0..all).map(role).collect();
            steps.push(Step { patience: Some(READ), ..ask(0, Act::Wait(roles.clone())) });
            steps.push(ask(0, Act::MultiGet(roles)));
            let assigned = (0..all).map(|rank| (ranks(rank), format!("[{rank}, {all}, {rank}, {all}]")));
            steps.push(ask(0, Act::MultiSet(assigned.collect())));
        }
        steps.extend(get(0, ranks(rank)));
        Move::Ask(steps)
    }

    /// The exit barrier. Who is the last, the answer to ADD tells.
    fn arrives(&mut self) -> Move {
        self.doing = Doing::AtExit;
        let round = self.place.as_ref().map_or(0, |place| place.round);
        let count = self.terms.of_round(round, "torchelastic/agent/terminal_state/num_members");
        Move::Ask(vec![ask(0, Act::Add(count, 1))])
    }

    fn waits_at_exit(&self, count: i64) -> Move {
        let Some(place) = &self.place else { return Move::End };
        let last = self.terms.of_round(place.round, "torchelastic/agent/terminal_state/last_member");
        let wait = Step { patience: Some(AT_EXIT), ..ask(0, Act::Wait(vec![last])) };
        let is_last = usize::try_from(count) == Ok(place.nodes.len());
        let tell = is_last.then(|| ask(0, Act::Set(last, "<val_ignored>".into())));
        Move::Ask(tell.into_iter().chain([wait]).collect())
    }
}

fn time(now: Micros) -> UtcMicros {
    // No heartbeat is before the midnight.
    pickle::at(u32::try_from(now).unwrap_or(u32::MAX))
}

fn empty() -> RendezvousState {
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

//! An agent of torchrun as a state machine, as in PyTorch 2.15, but with shorter waits. With the c10d
//! backend, its next step follows from its copy of the state ([`dynamic`]). With the static backend, it knows
//! its rank from the start.

mod dynamic;

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use super::plan::{MILLI, Micros, SECOND, Step};
use rallypoint_protocol::rendezvous_state::{NO_STATE, Node, RendezvousState};
use rallypoint_store::testing::Said;
use rallypoint_store::testing::model::{Act, Key};

/// How long an agent waits for a key of another agent.
const READ: Micros = 10 * SECOND;
const AT_EXIT: Micros = 10 * SECOND;
/// As `READ`, with the static backend, which does not know about nodes that come late.
const STATIC_READ: Micros = 60 * SECOND;

/// Keeps one copy of each key name for all worlds.
pub(super) fn key(name: &str) -> Key {
    static KNOWN: Mutex<BTreeSet<Key>> = Mutex::new(BTreeSet::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.get(name).copied().unwrap_or_else(|| {
        let key: Key = String::leak(name.to_owned());
        known.insert(key);
        key
    })
}

/// How agents find each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Backend {
    C10d,
    /// Each agent is told its rank.
    Static,
}

/// What torchrun is told about a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) run: String,
    pub(super) backend: Backend,
    pub(super) min: usize,
    pub(super) max: usize,
}

impl Terms {
    pub(super) fn state_key(&self) -> Key {
        key(&format!("/torch.rendezvous.{}", self.run))
    }

    fn of_round(&self, round: u64, name: &str) -> Key {
        match self.backend {
            Backend::C10d => key(&format!("/torch.rendezvous.{}.{round}/{name}", self.run)),
            Backend::Static => key(&format!("/{}/{name}", self.run)),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    /// It makes sure that the store has a state.
    Begins,
    /// It leaves its round, to join the next one.
    Leaves,
    Joins,
    Exchanges,
    Trains,
    AtExit,
    /// It closes the run. `well` says that its workers have done their work.
    Closes {
        well: bool,
    },
    Over {
        well: bool,
    },
}

/// The state of the workers in its round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    Goes,
    Failed,
    Done,
}

/// What an agent does next.
pub(super) enum Move {
    Ask(Vec<Step>),
    Rest(Micros),
    End,
}

/// What an agent was told about its round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) round: u64,
    pub(super) rank: usize,
    /// The number of ranks, as node 0 says it, which assigns them.
    pub(super) size: usize,
    /// The nodes, as the agent knows them. With the static backend nobody names them.
    pub(super) nodes: Vec<Node>,
}

#[derive(Debug)]
pub(super) struct Agent {
    pub(super) terms: Terms,
    pub(super) node: Node,
    pub(super) doing: Doing,
    pub(super) place: Option<Place>,
    /// Its workers have done their work.
    pub(super) has_arrived: bool,
    state: RendezvousState,
    /// The state as it is written in the store.
    token: String,
    /// When it stops trying to join.
    until: Micros,
    rests: bool,
}

fn ask(think: Micros, act: Act) -> Step {
    Step { think, act, patience: None }
}

/// torch's get() sends a WAIT and a GET.
fn get(think: Micros, key: Key, patience: Micros) -> [Step; 2] {
    let wait = Step { patience: Some(patience), ..ask(think, Act::Wait(vec![key])) };
    [wait, ask(0, Act::Get(key))]
}

impl Agent {
    pub(super) fn new(terms: Terms, node: Node) -> Self {
        let state = dynamic::empty();
        let (doing, place) = (Doing::Begins, None);
        let has_arrived = false;
        Self { terms, node, doing, place, has_arrived, state, token: String::new(), until: 0, rests: false }
    }

    /// An agent of the static backend, with this node rank.
    pub(super) fn fixed(terms: Terms, node: Node, rank: usize) -> Self {
        let place = Place { round: 0, rank, size: terms.max, nodes: Vec::new() };
        Self { doing: Doing::Exchanges, place: Some(place), ..Self::new(terms, node) }
    }

    /// Its first requests.
    pub(super) fn first(&self) -> Vec<Step> {
        if let (Backend::Static, Some(place)) = (self.terms.backend, &self.place) {
            let exchange = self.exchange(place.round, place.rank, place.size);
            return [ask(0, Act::Ping(self.node.pid))].into_iter().chain(exchange).collect();
        }
        let desired = String::from_utf8_lossy(NO_STATE).into_owned();
        let make = Act::CompareSet(self.terms.state_key(), String::new(), desired);
        vec![ask(0, Act::Ping(self.node.pid)), ask(0, make)]
    }

    /// Its last request got this answer, or it has rested.
    pub(super) fn goes_on(
        &mut self,
        now: Micros,
        (act, said): (&Act, &[Said]),
        work: Work,
    ) -> Result<Move, String> {
        let goes_on = match (act, said) {
            _ if std::mem::take(&mut self.rests) => self.goes_on_training(work),
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
                    // The keys may have been dropped since the wait ended.
                    let Ok([_, size, ..]) = serde_json::from_slice::<[usize; 4]>(ranks) else {
                        return Ok(self.ends(false));
                    };
                    place.size = size;
                }
                self.doing = Doing::Trains;
                self.goes_on_training(Work::Goes)
            }
            _ if self.doing == Doing::AtExit => self.closes(true),
            _ => self.looks(0),
        };
        self.rests = matches!(goes_on, Move::Rest(_));
        Ok(goes_on)
    }

    /// Some time has passed.
    fn goes_on_training(&mut self, work: Work) -> Move {
        match (self.terms.backend, work) {
            (Backend::C10d, _) => self.looks(0),
            (Backend::Static, Work::Goes) => Move::Rest(100 * MILLI),
            (Backend::Static, Work::Done) => self.arrives(),
            (Backend::Static, Work::Failed) => self.ends(false),
        }
    }

    fn looks(&self, think: Micros) -> Move {
        Move::Ask(get(think, self.terms.state_key(), READ).into())
    }

    /// A wait has taken too long. The agent closes the run, if there is one.
    fn gives_up(&mut self) -> Move {
        match self.doing {
            Doing::AtExit => self.closes(true),
            Doing::Exchanges => self.closes(false),
            _ => self.ends(false),
        }
    }

    fn closes(&mut self, well: bool) -> Move {
        if self.terms.backend == Backend::Static {
            return self.ends(well);
        }
        self.doing = Doing::Closes { well };
        self.looks(0)
    }

    fn ends(&mut self, well: bool) -> Move {
        self.doing = Doing::Over { well };
        Move::End
    }

    /// The exchange of roles and ranks.
    fn exchanges(&mut self, rank: usize) -> Move {
        let round = self.state.round;
        let nodes: Vec<Node> = self.state.participants.iter().map(|(node, _)| node.clone()).collect();
        let all = nodes.len();
        self.place = Some(Place { round, rank, size: all, nodes });
        self.doing = Doing::Exchanges;
        Move::Ask(self.exchange(round, rank, all))
    }

    fn exchange(&self, round: u64, rank: usize, all: usize) -> Vec<Step> {
        let is_static = self.terms.backend == Backend::Static;
        let patience = if is_static { STATIC_READ } else { READ };
        let of_round = |name: &str| self.terms.of_round(round, name);
        let role = |rank: usize| of_round(&format!("torchelastic/role_info/{rank}"));
        let ranks = |rank: usize| of_round(&format!("torchelastic/assigned_ranks/{rank}"));
        let mut steps = Vec::new();
        if rank == 0 && !is_static {
            steps.push(ask(5 * MILLI, Act::Set(of_round("MASTER_ADDR"), self.node.addr.to_string())));
            steps.push(ask(0, Act::Set(of_round("MASTER_PORT"), "41234".into())));
        }
        if !is_static {
            steps.extend(get(0, of_round("MASTER_ADDR"), patience));
            steps.extend(get(0, of_round("MASTER_PORT"), patience));
        }
        let told = format!("{{\"role\": \"default\", \"rank\": {rank}, \"local_world_size\": 1}}");
        steps.push(ask(MILLI, Act::Set(role(rank), told)));
        if rank == 0 {
            let roles: Vec<Key> = (0..all).map(role).collect();
            steps.push(Step { patience: Some(patience), ..ask(0, Act::Wait(roles.clone())) });
            steps.push(ask(0, Act::MultiGet(roles)));
            let assigned = (0..all).map(|rank| (ranks(rank), format!("[{rank}, {all}, {rank}, {all}]")));
            steps.push(ask(0, Act::MultiSet(assigned.collect())));
        }
        steps.extend(get(0, ranks(rank), patience));
        steps
    }

    /// The exit barrier. The answer to ADD shows which agent is the last.
    fn arrives(&mut self) -> Move {
        (self.doing, self.has_arrived) = (Doing::AtExit, true);
        let round = self.place.as_ref().map_or(0, |place| place.round);
        let count = self.terms.of_round(round, "torchelastic/agent/terminal_state/num_members");
        Move::Ask(vec![ask(0, Act::Add(count, 1))])
    }

    fn waits_at_exit(&self, count: i64) -> Move {
        let Some(place) = &self.place else { return Move::End };
        let last = self.terms.of_round(place.round, "torchelastic/agent/terminal_state/last_member");
        let wait = Step { patience: Some(AT_EXIT), ..ask(0, Act::Wait(vec![last])) };
        let is_last =
            usize::try_from(count) == Ok(if place.nodes.is_empty() { place.size } else { place.nodes.len() });
        let tell = is_last.then(|| ask(0, Act::Set(last, "<val_ignored>".into())));
        Move::Ask(tell.into_iter().chain([wait]).collect())
    }
}

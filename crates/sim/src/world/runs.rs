//! The state of all runs, gates and barriers, and the checks of the whole.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use super::super::plan::{Keeping, Micros, Plan, SECOND};
use super::super::random::Random;
use super::super::runs::Wish;
use super::super::server::Flag;
use super::super::truth::RunTruth;
use super::calls::{Answer, Call, Caller};
use super::holds::{Participant, Pod, Told};
use super::nodes::{Doing, Node, run_id};
use super::{Checked, Event, World};
use rallypoint_insight::Expectation;
use rallypoint_rendezvous::RankInRound;
use rallypoint_server::NotExpected;
use rallypoint_server::stores::Owner;

/// A store that nobody uses is given up after this long (`store_linger`, and the time for joins).
pub(in super::super) const LINGER: Micros = 6 * SECOND;

type Task = Pin<Box<dyn Future<Output = ()>>>;

pub(super) struct Runs {
    /// A source of its own, so that schedules without runs stay what they are.
    pub(super) random: Random,
    pub(super) nodes: Vec<Node>,
    /// How many processes of nodes there were.
    pub(super) processes: u32,
    pub(super) participants: Vec<Participant>,
    pub(super) pods: Vec<Pod>,
    pub(super) truths: Vec<RunTruth>,
    pub(super) told: Told,
    /// When the first pod of a gate was let through.
    pub(super) went_at: BTreeMap<usize, Micros>,
    pub(super) calls: BTreeMap<u64, Call>,
    pub(super) next_call: u64,
    /// When the server last heard from each process of a node, by the process's id.
    pub(super) heard: BTreeMap<String, Micros>,
    /// How long each process had been silent when the server heard from it again, and when that was.
    pub(super) silences: BTreeMap<String, (Micros, Micros)>,
    /// Answers to nodes that are stopped.
    pub(super) late: BTreeMap<usize, Answer>,
    /// The server's timer.
    pub(super) keeper: Option<(Task, Arc<Flag>)>,
    /// When the server began to count its time.
    pub(super) started: Micros,
    /// The server dies when it next tells a rank, and is away for this long.
    pub(super) dies_at_answer: Option<Micros>,
    /// Since when a leased port has belonged to no round.
    pub(super) unused: BTreeMap<u16, Micros>,
}

impl Runs {
    pub(super) fn new(plan: &Plan) -> Self {
        let nodes = plan.runs.runs.iter().enumerate();
        let participants = plan.runs.barriers.iter().enumerate();
        let pods = plan.runs.gates.iter().enumerate();
        Self {
            random: Random::new(plan.seed ^ 0x00dd_ba11),
            nodes: nodes.flat_map(|(run, it)| (0..it.nodes.len()).map(move |n| Node::new(run, n))).collect(),
            processes: 0,
            participants: participants
                .flat_map(|(barrier, it)| {
                    (0..it.participants.len()).map(move |n| Participant::new(barrier, n))
                })
                .collect(),
            pods: pods.flat_map(|(gate, it)| (0..it.pods.len()).map(move |n| Pod::new(gate, n))).collect(),
            truths: plan.runs.runs.iter().map(|_| RunTruth::default()).collect(),
            told: Told::default(),
            went_at: BTreeMap::new(),
            calls: BTreeMap::new(),
            next_call: 0,
            heard: BTreeMap::new(),
            silences: BTreeMap::new(),
            late: BTreeMap::new(),
            keeper: None,
            started: 0,
            dies_at_answer: None,
            unused: BTreeMap::new(),
        }
    }
}

impl World {
    /// Puts the arrivals of all nodes, participants and pods on the agenda.
    pub(super) fn begin_runs(&mut self) {
        let plan = self.plan.runs.clone();
        let comes = plan.runs.iter().flat_map(|run| &run.nodes).enumerate();
        comes.for_each(|(node, &at)| self.at(at, Event::NodeComes(node, false)));
        let arrive = plan.barriers.iter().flat_map(|it| &it.participants).enumerate();
        arrive.for_each(|(n, &at)| self.at(at, Event::Arrives(n)));
        let announce = plan.gates.iter().flat_map(|it| &it.pods).enumerate();
        announce.for_each(|(pod, &at)| self.at(at, Event::Announces(pod)));
        for (n, (at, _)) in plan.faults.iter().enumerate() {
            self.at(*at, Event::NodeFault(n));
        }
        for (n, (at, _)) in plan.wishes.iter().enumerate() {
            self.at(*at, Event::Wishes(n));
        }
    }

    /// Whether the world has any of these.
    pub(super) fn has_runs(&self) -> bool {
        !self.runs.nodes.is_empty() || !self.runs.participants.is_empty() || !self.runs.pods.is_empty()
    }

    /// A stopped process continues, and finds the answer that has come in the meantime.
    pub(super) fn node_wakes(&mut self, node: usize) -> Option<Checked> {
        if self.is_node_stopped(node) {
            return None;
        }
        let answer = self.runs.late.remove(&node)?;
        Some(self.answered(Caller::Node(node), answer))
    }

    /// Runs until all faults of nodes have happened and the server knows it. A node that comes, or is told to
    /// join again, gets a new rank.
    pub(super) fn end_faults_of_nodes(&mut self) -> Checked {
        /// After this time all nodes have been heard from, or are known to be silent.
        const HEARD: Micros = 5 * SECOND;
        let is_one = |event: &Event| matches!(event, Event::NodeComes(..) | Event::NodeFault(_));
        let mut quiet_since = self.now;
        while self.now < quiet_since + HEARD {
            let is_stopped = (0..self.runs.nodes.len()).any(|node| self.is_node_stopped(node));
            let is_away = self.server.is_none() || self.relays.iter().any(|relay| relay.end.is_none());
            if is_away || is_stopped || self.agenda.values().any(is_one) {
                quiet_since = self.now;
            }
            self.run_until(self.now + SECOND / 4, |_| false)?;
        }
        Ok(())
    }

    /// Enough time for every node to do its part.
    pub(super) const RUNS_SETTLE: Micros = 150 * SECOND;

    /// What is wrong with the nodes of a run when nothing happens any more, if anything.
    pub(super) fn runs_problem(&self) -> Option<String> {
        for (run, plan) in self.plan.runs.runs.iter().enumerate() {
            let alive =
                || self.runs.nodes.iter().filter(move |it| it.run == run && it.doing != Doing::Absent);
            let count = alive().count() as u32;
            if count < plan.min {
                continue;
            }
            let place = |it: &Node| match it.doing {
                Doing::Works { place, .. } if it.is_settled => Some(place),
                _ => None,
            };
            let places: Vec<RankInRound> = alive().filter_map(place).collect();
            let is_one = places.iter().all(|it| it.round == places[0].round);
            let may_be = self.runs.truths[run].may_have(places.len() as u32, (plan.min, plan.max), count);
            if !may_be || !is_one {
                return Some(format!("the {count} nodes of run {run} are not in one round: {places:?}"));
            }
            let mut ranks: Vec<u32> = places.iter().map(|it| it.rank).collect();
            ranks.sort_unstable();
            if ranks.windows(2).any(|pair| pair[0] == pair[1]) {
                return Some(format!("ranks of run {run} are there twice: {ranks:?}"));
            }
        }
        None
    }

    /// When nothing happens any more, all nodes reach the right place.
    pub(super) fn settle_runs(&mut self) -> Checked {
        if !self.has_runs() {
            return Ok(());
        }
        self.runs.dies_at_answer = None;
        let until = self.now + Self::RUNS_SETTLE;
        let problem = |world: &Self| world.runs_problem().or_else(|| world.holds_problem());
        while let Some(why) = problem(self) {
            if self.now >= until {
                return Err(format!("{why}, and this does not end"));
            }
            self.run_until(self.now + SECOND / 4, |_| false)?;
        }
        self.end_workers()
    }

    /// What must hold at every tick of the server.
    pub(super) fn check_runs(&mut self) -> Checked {
        self.check_waiting()?;
        let Some(server) = &self.server else { return Ok(()) };
        let mut used = BTreeMap::new();
        for run in 0..self.plan.runs.runs.len() {
            let Some((it, Some(port))) = server.rounds.snapshot(&run_id(run)) else { continue };
            if it.nodes.is_empty() {
                // The round is over, and so is its store.
                continue;
            }
            if let Some(other) = used.insert(port, run) {
                return Err(format!("port {port} is leased to run {run} and to run {other}"));
            }
            let owner = server.stores.owner(port);
            if !matches!(owner, Some(Owner::Round(owner, _)) if owner == run_id(run)) {
                return Err(format!("the store on port {port} is not that of run {run}, which is told so"));
            }
        }
        let mut unused = BTreeMap::new();
        for listener in server.stores.listeners() {
            let port = listener.engine().port();
            let is_used = match server.stores.owner(port) {
                None => continue,
                Some(Owner::Run(_)) => false,
                // The store of the last round stays while nodes wait for the next round.
                Some(Owner::Round(run, _)) => {
                    server.rounds.snapshot(&run).is_some_and(|(it, _)| !it.nodes.is_empty())
                }
            };
            if !is_used {
                let since = *self.runs.unused.get(&port).unwrap_or(&self.now);
                if self.now > since + LINGER + 2 * SECOND {
                    return Err(format!("nobody uses the store on port {port}, and its lease is kept"));
                }
                unused.insert(port, since);
            }
        }
        self.runs.unused = unused;
        Ok(())
    }

    /// An operator says how many nodes to expect.
    pub(super) fn wishes(&mut self, n: usize) -> Checked {
        let (_, Wish { run, nodes, .. }) = self.plan.runs.wishes[n];
        // Two wishes at the same time could be taken in either order.
        let is_alone = !self.runs.calls.values().any(Call::is_of_operator);
        let Some(server) = self.server.as_ref().filter(|_| is_alone) else { return Ok(()) };
        let watch = Arc::clone(&server.watch);
        let expected = &mut self.runs.truths[run].expected;
        if expected.is_empty() {
            expected.insert(None);
        }
        expected.insert(Some(nodes));
        trace!(self, "an operator expects {nodes} nodes of run {run}");
        self.call(Caller::Operator(n), async move {
            let expectation = Expectation { min: nodes, max: nodes, names: Vec::new() };
            Answer::Expects(watch.expect(&format!("run-{run}"), expectation))
        })
    }

    pub(super) fn operator_hears(&mut self, n: usize, said: Result<Option<String>, NotExpected>) -> Checked {
        let (_, Wish { run, nodes, dies }) = self.plan.runs.wishes[n];
        trace!(self, "the operator hears {said:?}");
        let plan = &self.plan.runs.runs[run];
        match said {
            Ok(_) => self.runs.truths[run].expected = [Some(nodes)].into(),
            Err(_) if !(plan.min..=plan.max).contains(&nodes) => {}
            Err(why) => return Err(format!("an operator is refused: {why}")),
        }
        if let Some(away) = dies {
            self.crash(self.plan.keeping == Keeping::Disk)?;
            self.at(away, Event::Start);
        }
        Ok(())
    }

    /// The counted memory is the memory that is held.
    pub(super) fn check_memory(&self) -> Checked {
        let Some(server) = &self.server else { return Ok(()) };
        let stores: usize = server.stores.listeners().iter().map(|it| it.engine().stats().bytes).sum();
        let runs = server.rounds.inspect(|core, barriers| core.memory() + barriers.memory());
        let gates = server.gates.look().memory();
        // Without a look at bytes in flight: a frame may be cut in two now. `compare` checks those when
        // nothing is in flight.
        let (insight, (links, _)) = (server.watch.memory(), server.links.memory());
        let (counted, held) =
            (server.stores.budget().used(), stores + runs + gates + insight + links + self.used_up());
        if counted == held {
            return Ok(());
        }
        Err(format!(
            "{counted} bytes are counted; the stores have {stores}, the runs {runs}, the gates {gates}, \
             insight {insight}, the links {links}"
        ))
    }
}

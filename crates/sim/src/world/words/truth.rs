//! What is true of each run: its processes, as the judge of what is said wants them.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::super::super::agent::{Backend, key};
use super::super::super::jobs::ADDRESSES;
use super::super::super::server::PORT;
use super::super::{World, elastic};
use rallypoint_insight::testing::oracle::{Being, World as Truth};
use rallypoint_protocol::rendezvous_state::RendezvousState;
use rallypoint_store::testing::model::{Act, Key};

/// What the places of agents and of ranks are called.
pub(super) const NODE: &str = "node";
pub(super) const RANK: &str = "rank";

/// The name of the run without an id.
pub(super) fn job_name() -> String {
    format!("store:{PORT}")
}

type States = BTreeMap<Key, Rc<RendezvousState>>;
pub(super) type Runs = BTreeMap<Key, RunNow>;

/// A run at one moment.
#[derive(Default)]
pub(super) struct RunNow {
    pub(super) truth: Truth,
    /// An agent is there, or a rank of a run without agents, of which the server has heard.
    pub(super) is_known: bool,
}

impl RunNow {
    fn add(&mut self, being: Being, is_known: bool) {
        self.is_known |= is_known && being.connected;
        self.truth.beings.push(being);
    }
}

impl World {
    /// What is true of each run now, but for the nodes of native ones.
    pub(super) fn runs_now(&self, states: &States) -> Runs {
        let mut runs = Runs::new();
        let job = key(&job_name());
        for it in &self.job.processes {
            let being = self.being(it.client, RANK, it.rank as u32, vec![it.host()]);
            runs.entry(job).or_default().add(being, self.heard_of.contains(&it.client));
        }
        for it in &self.elastic.processes {
            let (run, being) = (key(&it.agent.terms.run), self.agent_now(it, states));
            // Its first request is no word about a run.
            let is_known = self.heard_of.contains(&it.client) && self.reference.come(it.client).next > 1;
            runs.entry(run).or_default().add(being, is_known);
        }
        // A restarted server cannot distinguish the ranks of one static run from those of the next. If their
        // run is not known, all of them are in one run without an id.
        let has_all = |run: Key| {
            run == job && self.plan.job.is_none() || self.server_life > 1 && run.starts_with("static-")
        };
        let of_run = |run: Key| self.workers.iter().filter(move |worker| worker.run == run || has_all(run));
        for worker in &self.workers {
            runs.entry(worker.run).or_default();
            runs.entry(job).or_default();
        }
        for (run, of) in &mut runs {
            let last = of_run(run).map(|worker| worker.place.round).max();
            for it in of_run(run) {
                let mut being = self.being(it.client, RANK, it.place.rank, vec![it.host()]);
                being.holds &= Some(it.place.round) == last;
                of.add(being, *run == job && self.heard_of.contains(&it.client));
            }
            (of.truth.place, of.truth.complete, of.truth.has_strangers) = (NODE, true, true);
        }
        runs
    }

    fn being(&self, client: usize, kind: &'static str, place: u32, mut names: Vec<String>) -> Being {
        let it = &self.clients[client];
        let has_told = it.issued.len() > 1;
        let waits = match self.asked(client) {
            Some(Act::Wait(keys)) => ADDRESSES.iter().any(|address| keys.contains(address)),
            _ => false,
        };
        names.push(format!("pid {}", 1000 + client));
        // A restarted server may know it from the journal, or not at all.
        let is_out_of_reach = self.server_life > 1 && it.plan.relay.is_some_and(|relay| !self.is_up(relay));
        // Its last words may be on their way still.
        let may_be_untold =
            is_out_of_reach || it.issued.len() > 1 && self.reference.come(client).next < it.issued.len();
        let relay = it.plan.relay.map(|relay| &self.relays[relay]);
        Being {
            names: names.into(),
            kind: Some(kind),
            place: Some(place).filter(|_| has_told),
            // What it tells may be held up at a relay whose link broke.
            holds: has_told && self.reference.come(client).next > 1,
            connected: !it.is_gone() && !is_out_of_reach,
            // It may also have died with its relay, which nobody reports.
            cut_off: relay.is_some_and(|relay| relay.was_long_away),
            unnoticed: if it.is_gone() { self.may_be_stuck(client) } else { may_be_untold },
            acts: true,
            waits: waits.then(|| (0.0, vec![0])),
            ..Being::default()
        }
    }

    fn agent_now(&self, it: &elastic::Process, states: &States) -> Being {
        let (agent, client) = (&it.agent, &self.clients[it.client]);
        let state = states.get(agent.terms.state_key());
        let waits = match self.asked(it.client) {
            Some(Act::Wait(keys)) => keys.iter().any(|key| *key != agent.terms.state_key()),
            _ => false,
        };
        let names = vec![agent.node.addr.to_string(), format!("{}_{}", agent.node.addr, agent.node.pid)];
        let being = self.being(it.client, NODE, 0, names);
        Being {
            place: it.rank.map(|rank| rank as u32),
            holds: match agent.terms.backend {
                Backend::C10d => {
                    state.is_some_and(|state| state.participants.iter().any(|(node, _)| *node == agent.node))
                }
                Backend::Static => being.holds,
            },
            away: client.plan.relay.is_some_and(|relay| !self.is_up(relay)),
            finished: agent.has_arrived,
            waits: waits.then(|| (0.0, vec![0])),
            ..being
        }
    }
}

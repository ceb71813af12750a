//! Compares what insight says with what is true. The real insight looks at the real server at each of the
//! server's ticks. What it says and shows must be true now, or must have been true a moment ago.
//!
//! The server cannot know more than it has heard. While a link or the server itself is away, "a moment ago"
//! reaches back to the last time when everything got through. Only deaths must never be reported too early.

mod links;
mod runs;
mod said;
mod truth;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::super::plan::{Micros, SECOND};
use super::{Checked, World};
use rallypoint_api::{Explanation, Run};
use rallypoint_insight::testing::{DELAY, Past, yes};
use rallypoint_protocol::rendezvous_state::RendezvousState;
use rallypoint_server::observe::Event as Told;
use rallypoint_store::testing::model::Key;

pub(super) use runs::Left;
use runs::NodeNow;

/// What is true at one moment.
struct Moment {
    /// Whether bytes pass between each relay and the server.
    up: Vec<bool>,
    nodes: Vec<NodeNow>,
    /// What the judge is to know of each run.
    runs: truth::Runs,
    /// The states of the agents' runs.
    states: BTreeMap<Key, Rc<RendezvousState>>,
    /// How many pods have announced themselves, by gate.
    announced: Vec<usize>,
}

pub(super) struct Words {
    past: Past<Moment>,
    /// Since when the server has heard everything.
    up_since: Option<f64>,
    /// The last time at which the server knew everything that had happened.
    knew: f64,
    /// Explanations of this server that it has reported.
    told: BTreeSet<u64>,
    /// When the shown state was last checked.
    shown: f64,
}

impl Words {
    pub(super) fn new() -> Self {
        Self { past: Past(Vec::new()), up_since: None, knew: 0.0, told: BTreeSet::new(), shown: 0.0 }
    }

    /// A new server knows only what it hears.
    pub(super) fn begin(&mut self) {
        self.told.clear();
    }

    /// The next server may know as little as an earlier one.
    pub(super) fn forget(&mut self) {
        (self.up_since, self.knew) = (None, 0.0);
    }
}

impl World {
    fn seconds(&self) -> f64 {
        self.now as f64 / 1e6
    }

    fn moment(&mut self) -> Moment {
        let states = self.states();
        let announced = |gate| self.runs.pods.iter().filter(|pod| pod.is_announced_at(gate)).count();
        Moment {
            up: (0..self.relays.len()).map(|relay| self.is_up(relay)).collect(),
            nodes: (0..self.runs.nodes.len()).map(|node| self.node_now(node)).collect(),
            runs: self.runs_now(&states),
            states,
            announced: (0..self.plan.runs.gates.len()).map(announced).collect(),
        }
    }

    /// Notes what is true now, whether or not there is a server to see it.
    pub(super) fn remember(&mut self) {
        /// Enough moments to outlast any absence.
        const KEPT: usize = 1000;
        /// Within this time after its start, a server has heard from everybody, or knows that they are
        /// silent.
        const HEARD: Micros = 3 * SECOND;
        let (at, moment) = (self.seconds(), self.moment());
        if self.server.is_none() || self.now < self.runs.started + HEARD || moment.up.contains(&false) {
            self.words.up_since = None;
        } else if at >= *self.words.up_since.get_or_insert(at) + DELAY {
            self.words.knew = at;
        }
        let past = &mut self.words.past.0;
        past.push((at, moment));
        if past.len() > 2 * KEPT {
            past.drain(..KEPT);
        }
    }

    /// The earliest time that a statement about the present may refer to.
    fn since(&self) -> f64 {
        self.seconds().min(self.words.knew) - DELAY
    }

    /// Whether something was true at a moment to which the server may refer.
    fn was(&self, holds: impl Fn(&Moment) -> bool, why: &str) -> Checked {
        yes(self.words.past.any_since(self.since(), self.seconds(), holds), why)
    }

    /// Insight looks at the server, and its statements are checked.
    pub(super) fn look(&mut self) -> Checked {
        const SHOWN_EVERY: f64 = 1.0;
        self.remember();
        let Some(server) = &mut self.server else { return Ok(()) };
        server.watch.look();
        let mut said = Vec::new();
        while let Ok(Told { name, data, .. }) = server.said.try_recv() {
            if name == "explanation" {
                said.push(serde_json::from_str::<Explanation>(&data).map_err(|why| why.to_string())?);
            }
        }
        for said in said {
            // What is said again and does not hold is over.
            let is_new = self.words.told.insert(said.id);
            if said.holds || is_new {
                self.check_word(&said)?;
            }
        }
        if self.seconds() >= self.words.shown + SHOWN_EVERY {
            self.words.shown = self.seconds();
            self.check_shown()?;
        }
        Ok(())
    }

    /// Checks what a person would see now.
    fn check_shown(&mut self) -> Checked {
        let Some(server) = &self.server else { return Ok(()) };
        let list = server.watch.list();
        let shown: Vec<Run> = (list.runs.iter())
            .filter_map(|run| server.watch.run(&run.run_id, run.store, Some(run.kind)))
            .collect();
        let of_runs = shown.iter().flat_map(|run| &run.explanations);
        for said in of_runs.chain(&list.explanations).filter(|said| said.holds) {
            self.check_word(said)?;
        }
        for run in &shown {
            let id = run.summary.run_id.as_str();
            let checked = if Self::is_job(id) { self.check_job(id, run) } else { self.check_run(run) };
            checked.map_err(|why| {
                let run = &run.summary;
                let (nodes, ranks) = (&run.nodes, &run.ranks);
                format!("{} is shown as {:?} with {nodes:?} and {ranks:?}: {why}", run.run_id, run.state)
            })?;
        }
        Ok(())
    }

    fn check_word(&mut self, said: &Explanation) -> Checked {
        self.tally.said += 1;
        trace!(self, "insight says ({}) {}", said.code, said.text);
        self.check_lengths(said)?;
        let id = said.run_id.as_deref().unwrap_or_default();
        let checked = match number_behind(id) {
            _ if Self::is_job(id) => self.check_said_of_job(id, said),
            Some(("run", run)) => self.check_said_of_run(run, said),
            Some(("pods", gate)) => self.check_said_of_gate(gate, said),
            _ => self.check_said_of_links(said),
        };
        checked.map_err(|why| format!("a false word: {}: {}: {why}", said.code, said.text))
    }
}

impl World {
    /// No reported duration is longer than the world has lasted, plus the difference between its servers'
    /// calendars.
    fn check_lengths(&self, said: &Explanation) -> Checked {
        let aheads = || (1..=self.server_life).map(|life| self.plan.ahead(life));
        let apart = aheads().max().unwrap_or(0) - aheads().min().unwrap_or(0);
        let most = self.seconds() + DELAY + apart as f64;
        let seen = said.facts["missing"].as_array().into_iter().flatten();
        let mut seen = seen.filter_map(|who| who["at"].as_f64());
        let is_before = seen.any(|at| said.since - at > most);
        yes(!is_before, &format!("seen before there was a world: {}: {}", said.code, said.text))
    }
}

/// Splits `run-3` into `run` and 3.
fn number_behind(name: &str) -> Option<(&str, usize)> {
    let (what, number) = name.rsplit_once('-')?;
    Some((what, number.parse().ok()?))
}

//! What insight says about the runs of torchrun's agents.

use std::rc::Rc;

use super::super::super::agent::{Backend, Doing, key};
use super::super::{Checked, World, relay_of};
use super::Moment;
use rallypoint_api::{Explanation, Run, RunState};
use rallypoint_insight::testing::{names, number, text, yes};
use rallypoint_protocol::rendezvous_state::{Node, RendezvousState};
use rallypoint_store::testing::model::Act;

/// The state of an agent at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct AgentNow {
    /// Its number among all agents so far.
    pub(super) no: usize,
    pub(super) is_alive: bool,
    /// Whether the server must know by now that it is dead.
    pub(super) is_known_dead: bool,
    /// Whether the server has heard from it.
    pub(super) is_known: bool,
    /// Whether it has shown that it is there: with the static backend, by its role.
    pub(super) has_told: bool,
    /// Whether it waits for a key of another agent.
    pub(super) waits: bool,
    pub(super) doing: Doing,
    /// Whether its workers have done their work.
    pub(super) has_finished: bool,
    /// The node rank that the state gave it last.
    pub(super) rank: Option<usize>,
}

fn is_in(state: &RendezvousState, node: &Node) -> bool {
    state.participants.iter().any(|(other, _)| other == node)
}

/// A run of agents, with what is known of it.
pub(super) struct RunOf<'w> {
    pub(super) world: &'w World,
    pub(super) run: &'w str,
}

impl RunOf<'_> {
    fn state<'m>(&self, moment: &'m Moment) -> Option<&'m Rc<RendezvousState>> {
        moment.states.get(key(&format!("/torch.rendezvous.{}", self.run)))
    }

    fn node(&self, agent: &AgentNow) -> &Node {
        &self.world.elastic.processes[agent.no].agent.node
    }

    pub(super) fn agents<'m>(&self, moment: &'m Moment) -> impl Iterator<Item = &'m AgentNow> {
        moment.agents.iter().filter(|it| self.world.elastic.processes[it.no].agent.terms.run == self.run)
    }

    pub(super) fn was(&self, holds: impl Fn(&Moment) -> bool, why: &str) -> Checked {
        self.world.was(holds, why)
    }

    fn state_was(&self, holds: impl Fn(&RendezvousState) -> bool, why: &str) -> Checked {
        self.was(|moment| self.state(moment).is_some_and(|state| holds(state)), why)
    }

    /// Whether this held for one agent.
    fn was_one(&self, no: usize, holds: impl Fn(&Moment, &AgentNow) -> bool) -> bool {
        self.was(|moment| self.agents(moment).any(|it| it.no == no && holds(moment, it)), "").is_ok()
    }

    /// Whether this held for `many` agents, not all at one moment.
    pub(super) fn were(&self, many: usize, holds: impl Fn(&Moment, &AgentNow) -> bool, why: &str) -> Checked {
        let all = 0..self.world.elastic.processes.len();
        yes(all.filter(|&no| self.was_one(no, &holds)).count() >= many, why)
    }

    /// Whether the server may have lost the agent with its link. The agent may also have died with its relay,
    /// which nobody reports.
    pub(super) fn is_cut_off(&self, agent: &AgentNow) -> bool {
        let relay = self.relay_of(agent).map(|relay| &self.world.relays[relay]);
        relay.is_some_and(|relay| relay.was_long_away || !agent.is_alive)
    }

    pub(super) fn relay_of(&self, agent: &AgentNow) -> Option<usize> {
        self.world.clients[self.world.elastic.processes[agent.no].client].plan.relay
    }

    /// Whether a name may mean this agent.
    fn is_called(&self, name: &str, agent: &AgentNow) -> bool {
        let name = name.split(" (node rank").next().unwrap_or_default();
        if name.starts_with("a process ") {
            return true;
        }
        let Node { addr, pid, .. } = self.node(agent);
        let process = name.strip_prefix("process ").and_then(|rest| rest.split(' ').next());
        match process.or_else(|| name.split_once('_')?.1.split('_').next()) {
            Some(of) => of == pid.to_string(),
            None => **addr == *name,
        }
    }

    /// Whether this held, for each name, for an agent that the name may mean.
    fn all(&self, names: &[String], holds: impl Fn(&Moment, &AgentNow) -> bool, why: &str) -> Checked {
        names.iter().try_for_each(|name| {
            let is_so =
                |moment: &Moment| self.agents(moment).any(|it| self.is_called(name, it) && holds(moment, it));
            self.was(is_so, &format!("{name} {why}"))
        })
    }

    fn is_part(&self, moment: &Moment, agent: &AgentNow) -> bool {
        self.state(moment).is_some_and(|state| is_in(state, self.node(agent)))
    }

    fn check(&self, said: &Explanation) -> Checked {
        let facts = &said.facts;
        let list = |field: &str| -> Vec<String> {
            text(facts, field).split(" and ").flat_map(|name| name.split(", ")).map(str::to_owned).collect()
        };
        // A server whose disk was full may not know how agents ended. A restarted server does not know which
        // agents had arrived at the exit barrier.
        let has_restarted = self.world.server_life > 1;
        let may_have_failed = |it: &AgentNow| !it.has_finished || has_restarted && it.doing == Doing::AtExit;
        let is_dead =
            |_: &Moment, it: &AgentNow| !it.is_alive && (may_have_failed(it) || self.world.has_lost);
        // What has ranks is said of the workers.
        if !said.facts["ranks"].is_null() {
            return self.world.check_said_of_workers(self.run, said);
        }
        match said.code.as_str() {
            "run_started" => self.all(&list("who"), |moment, it| self.is_part(moment, it), "has not joined"),
            "round_complete" => {
                let nodes = number(facts, "nodes");
                self.state_was(|it| it.complete, "it is not complete")?;
                self.were(nodes, |moment, it| self.is_part(moment, it), "not with so many")
            }
            "nodes_missing" => {
                self.state_was(|it| !it.complete, "it is complete")?;
                self.were(number(facts, "joined"), |moment, it| self.is_part(moment, it), "not so many")?;
                let is_there = |moment: &Moment, it: &AgentNow| it.is_alive && self.is_part(moment, it);
                self.all(&names(facts, "present"), is_there, "is not there")?;
                let is_out = |moment: &Moment, it: &AgentNow| !is_there(moment, it);
                self.all(&names(facts, "missing"), is_out, "is there")
            }
            // Other nodes have removed it from the state, and it goes on.
            "node_came_late" if text(facts, "arrival") == "back" => self.all(
                &list("node"),
                |moment, it| it.is_alive && !self.is_part(moment, it),
                "is in it, or dead",
            ),
            "node_came_late" => {
                self.all(&list("node"), |moment, it| self.is_part(moment, it), "has not joined")?;
                self.were(number(facts, "joined"), |moment, it| self.is_part(moment, it), "not so many")
            }
            "lost" if facts["by"].is_string() => {
                // A node that has not come back may be dead, or behind a relay that is not back.
                let may_be_dead = facts["not_back"] == true;
                let is_out = |moment: &Moment, it: &AgentNow| {
                    (it.is_alive || may_be_dead) && !self.is_part(moment, it)
                };
                self.all(&names(facts, "nodes"), is_out, "is in it, or dead")
            }
            "lost" if facts["cut_off"] == false => {
                self.all(&names(facts, "nodes"), is_dead, "is alive")?;
                let left = number(facts, "left");
                // Finished nodes belong to the round, even if other nodes have removed them from the state.
                let is_of_it = |moment: &Moment, it: &AgentNow| it.has_finished || self.is_part(moment, it);
                let goes_on = |moment: &Moment, it: &AgentNow| is_of_it(moment, it) || it.rank.is_some();
                self.were(left, |moment, it| it.is_alive && is_of_it(moment, it), "not so many are left")
                    .or_else(
                        // So do living nodes that other nodes have removed from the state.
                        |_| {
                            self.were(
                                left,
                                |moment, it| it.is_alive && goes_on(moment, it),
                                "not so many are left",
                            )
                        },
                    )
            }
            "lost" => {
                let relays: Vec<Option<usize>> =
                    names(facts, "links").iter().map(|it| relay_of(it)).collect();
                let is_behind =
                    |_: &Moment, it: &AgentNow| relays.contains(&self.relay_of(it)) && self.is_cut_off(it);
                self.all(&names(facts, "nodes"), is_behind, "is not lost with that link")?;
                let left = number(facts, "left");
                self.were(left, |moment, it| it.is_alive && self.is_part(moment, it), "not so many are left")
            }
            "node_silent" => self.all(&names(facts, "nodes"), |_, it| it.is_alive, "is dead"),
            "run_ended" | "not_back" => {
                self.was(|moment| !self.agents(moment).any(|it| it.is_alive && it.is_known), "some are there")
            }
            "run_finished" => {
                self.were(number(facts, "nodes"), |_, it| it.has_finished, "so many have not finished")
            }
            "run_closed" | "join_refused" => {
                self.state_was(|it| it.closed, "it is not closed")?;
                self.all(&names(facts, "missing"), |moment, it| !self.is_part(moment, it), "has joined")
            }
            "stands_by" => {
                let is_left = |moment: &Moment, it: &AgentNow| {
                    let waits = |state: &Rc<RendezvousState>| {
                        let waits = state.wait_list.iter().chain(&state.redundancy_list);
                        waits.clone().any(|node| node == self.node(it))
                    };
                    it.is_alive && self.state(moment).is_some_and(waits)
                };
                self.all(&names(facts, "left_over"), is_left, "is not left over")
            }
            "exit_barrier" => {
                self.were(number(facts, "arrived"), |_, it| it.has_finished, "so many have not arrived")?;
                self.all(&names(facts, "running"), |_, it| it.is_alive, "is not there")?;
                self.all(&names(facts, "taken_out"), |_, it| it.is_alive, "is not there")?;
                self.all(&names(facts, "silent"), |_, it| !it.has_finished, "has finished")?;
                self.all(&names(facts, "not_back"), is_dead, "is alive")?;
                self.all(&names(facts, "dead"), is_dead, "is alive")
            }
            "waiting" if facts["place"] == "rank" => self.world.check_said_of_workers(self.run, said),
            "waiting" => {
                let rank = rank_in(text(facts, "who"));
                let holds = |holds: &dyn Fn(&AgentNow) -> bool, why: &str| {
                    self.was(|moment| self.agents(moment).any(|it| it.rank == rank && holds(it)), why)
                };
                let is_there = |moment: &Moment| self.agents(moment).any(|it| it.rank == rank && it.is_alive);
                match (text(&facts["presence"], "is"), facts["but"]["why"].as_str()) {
                    // It was in a round that is over, or the server does not know.
                    (_, Some("round_over")) | ("unknown", _) => Ok(()),
                    ("closed" | "unreachable", None) => {
                        holds(&|it| !it.is_alive || self.is_cut_off(it), "it is alive")
                    }
                    ("away", _) => self.world.some_link_was_away(),
                    ("connected", None) if facts["presence"]["waits"] == "nothing" => {
                        holds(&|it| !it.is_known_dead && !it.waits, "it waits")
                    }
                    ("never_seen", None) => self.was(|moment| !is_there(moment), "it is there"),
                    ("left", None) => {
                        let rank = rank.and_then(|rank| u32::try_from(rank).ok());
                        let is_in =
                            |state: &RendezvousState| state.participants.iter().any(|it| Some(it.1) == rank);
                        // A node that closes a run leaves the state without any nodes.
                        let has_begun = |state: &RendezvousState| state.complete || state.closed;
                        self.state_was(|state| has_begun(state) && !is_in(state), "it is in the round")
                    }
                    ("connected", _) => holds(&|it| it.is_alive, "it is not there"),
                    other => Err(format!("it is never {other:?}")),
                }
            }
            "nnodes_differ" => Err("all ask for the same number".into()),
            "workers_elsewhere" => self.state_was(|it| it.complete, "it is not complete"),
            "gave_up" => self.all(&names(facts, "who"), |_, it| !it.is_alive || !it.waits, "waits"),
            _ => self.world.check_said_of_workers(self.run, said),
        }
    }

    fn check_shown(&self, shown: &Run) -> Checked {
        self.world.check_workers(self.run, shown)?;
        let nodes = &shown.summary.nodes;
        // A restarted server does not know which nodes have died in the meantime.
        let has_restarted = self.world.server_life > 1;
        if !shown.summary.state.is_over() {
            let is_there = |_: &Moment, it: &AgentNow| it.is_alive || it.has_finished || has_restarted;
            // Requests of an agent may arrive after its death.
            let was_there = |&no: &usize| {
                // Other nodes may have removed it from a state in which it still has its rank.
                self.was_one(no, |moment, it| self.is_part(moment, it) || it.rank.is_some())
                    && self.was_one(no, is_there)
            };
            let were_there = (0..self.world.elastic.processes.len()).filter(was_there).count();
            yes(were_there >= nodes.joined as usize, "so many were not there")?;
        }
        match shown.summary.state {
            RunState::Finished => self.were(1, |_, it| it.has_finished, "nobody has finished"),
            state if state.is_over() => {
                let is_closed = self.state_was(|it| it.closed, "it is not closed");
                let all_gone = |moment: &Moment| !self.agents(moment).any(|it| it.is_alive && it.is_known);
                is_closed.or_else(|_| self.was(all_gone, "some are there, and it is not closed"))
            }
            _ => self.was(|moment| self.agents(moment).any(|it| it.is_alive), "nobody is there"),
        }
    }
}

fn rank_in(label: &str) -> Option<usize> {
    label.split("node rank ").nth(1)?.trim_end_matches(')').parse().ok()
}

impl World {
    pub(super) fn agents_now(&self) -> Vec<AgentNow> {
        let now = |(no, it): (usize, &super::super::elastic::Process)| {
            let client = &self.clients[it.client];
            let waits = match self.asked(it.client) {
                Some(Act::Wait(keys)) => keys.iter().any(|key| *key != it.agent.terms.state_key()),
                _ => false,
            };
            AgentNow {
                no,
                is_alive: !client.is_gone(),
                is_known_dead: client.is_gone() && !self.may_be_stuck(it.client),
                is_known: self.heard_of.contains(&it.client),
                has_told: client.issued.len() > 1,
                waits,
                doing: it.agent.doing,
                has_finished: it.agent.has_arrived,
                rank: it.rank,
            }
        };
        self.elastic.processes.iter().enumerate().map(now).collect()
    }

    pub(super) fn check_said_of_agents(&self, run: &str, said: &Explanation) -> Checked {
        let run = RunOf { world: self, run };
        if run.is_static() { run.check_fixed(said) } else { run.check(said) }
    }

    /// Checks what is shown of a run of agents.
    pub(super) fn check_agents(&self, shown: &Run) -> Checked {
        let run = RunOf { world: self, run: &shown.summary.run_id };
        if run.is_static() { run.check_fixed_shown(shown) } else { run.check_shown(shown) }
    }

    /// Whether the agents that wait for a node that never comes are told so.
    pub(in super::super) fn is_told_of_agents(&self, job: usize) -> bool {
        let alive =
            self.elastic.processes.iter().rfind(|it| it.job == job && !self.clients[it.client].is_gone());
        let (Some(server), Some(it)) = (&self.server, alive) else { return false };
        let shown = server.watch.run(&it.agent.terms.run, None, None);
        let codes = match it.agent.terms.backend {
            Backend::C10d => &["nodes_missing"][..],
            Backend::Static => &["nodes_missing", "waiting"],
        };
        let is_it = |said: &Explanation| said.holds && codes.contains(&said.code.as_str());
        shown.is_some_and(|run| run.explanations.iter().any(is_it))
    }
}

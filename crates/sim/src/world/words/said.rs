//! What insight says about the runs of torchrun's agents, and about ranks.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::super::super::agent::{Backend, key};
use super::super::{Checked, World};
use super::truth::{NODE, RANK, job_name};
use super::{Moment, number_behind};
use rallypoint_api::{Explanation, Run, RunState};
use rallypoint_insight::testing::oracle::{Being, judge};
use rallypoint_insight::testing::{missing, number, waiters, yes};
use rallypoint_protocol::rendezvous_state::RendezvousState;

/// A run of agents or ranks.
struct RunOf<'w> {
    world: &'w World,
    run: &'w str,
}

/// Whether it is said of ranks, and not of nodes.
pub(super) fn is_of_ranks(said: &Explanation) -> bool {
    match said.code.as_str() {
        "waiting" | "node_silent" => said.facts["missing"][0]["what"] == RANK,
        "world_sizes_differ" => true,
        _ => said.facts["of"] == RANK || said.facts["of"] == "process",
    }
}

impl RunOf<'_> {
    fn was(&self, holds: impl Fn(&Moment) -> bool, why: &str) -> Checked {
        self.world.was(holds, why)
    }

    /// Whether this held for so many of its nodes or ranks, not all at one moment.
    fn were(&self, kind: &str, many: usize, holds: impl Fn(&Being) -> bool, why: &str) -> Checked {
        let past = &self.world.words.past;
        let those = past.between(self.world.since(), self.world.seconds());
        let those = those.filter_map(|moment| moment.runs.get(self.run));
        let beings = those.flat_map(|run| &run.truth.beings);
        let beings = beings.filter(|being| being.kind == Some(kind) && holds(being));
        let all: BTreeSet<&str> = beings.filter_map(|being| being.names.last()).map(|name| &**name).collect();
        yes(all.len() >= many, why)
    }

    fn state_was(&self, holds: impl Fn(&RendezvousState) -> bool, why: &str) -> Checked {
        let key = key(&format!("/torch.rendezvous.{}", self.run));
        let state = |moment: &Moment| moment.states.get(key).map(Rc::clone);
        self.was(|moment| state(moment).is_some_and(|state| holds(&state)), why)
    }

    fn is_c10d(&self) -> bool {
        self.run.starts_with("elastic-")
    }

    fn check(&self, said: &Explanation) -> Checked {
        let (world, facts) = (self.world, &said.facts);
        let window = (world.since(), world.seconds());
        judge(&world.words.past, |moment| Some(&moment.runs.get(self.run)?.truth), window, said)?;
        let kind = if is_of_ranks(said) || self.run == job_name() { RANK } else { NODE };
        let many =
            |holds: &dyn Fn(&Being) -> bool, why: &str| self.were(kind, number(facts, "joined"), holds, why);
        let has_come = |being: &Being| being.holds;
        let is_left = |being: &Being| being.may_be_there() && (being.holds || being.place.is_some());
        match (said.code.as_str(), kind) {
            ("round_complete", RANK) => {
                let size = world.plan.job.as_ref().filter(|_| self.run == job_name());
                let size = size.map(|job| job.ranks.len());
                yes(size.is_none_or(|size| number(facts, "joined") == size), "not with so many")?;
                many(&|being| being.place.is_some(), "so many have not come")
            }
            ("round_complete", _) => {
                let is_complete = self.state_was(|state| state.complete, "it is not complete");
                let size = world.plan.elastic.first().map_or(0, |job| job.nodes.len());
                let is_all = || yes(number(facts, "joined") == size, "not with so many");
                if self.is_c10d() { is_complete } else { is_all() }?;
                many(&has_come, "so many have not come")
            }
            ("nodes_missing", NODE) => {
                let forms = |state: &RendezvousState| !state.complete;
                if self.is_c10d() {
                    self.state_was(forms, "it is complete")?;
                }
                many(&has_come, "so many have not come")
            }
            ("lost", NODE) if !missing(facts, Some("taken_out")).is_empty() => Ok(()),
            ("lost", NODE) => {
                if missing(facts, Some("unreachable")).is_empty() {
                    let may_be = world.server_life > 1 || world.has_lost;
                    let is_dead = |being: &Being| !being.connected && (!being.finished || may_be);
                    self.were(NODE, missing(facts, None).len(), is_dead, "so many have not died")?;
                } else {
                    let was_away = world.relays.iter().any(|relay| relay.was_long_away);
                    yes(was_away, "no link was away for so long")?;
                }
                // It is told when it happens, and whether it holds later: there may be fewer then.
                if said.holds { Ok(()) } else { many(&is_left, "so many are not left") }
            }
            ("ranks_ended", RANK) => many(&Being::may_be_there, "so many are not left"),
            ("run_finished", NODE) => many(&|being| being.finished, "so many have not finished"),
            ("run_ended" | "not_back", _) => self.all_were_gone(),
            ("run_closed" | "join_refused", NODE) => self.state_was(|state| state.closed, "it is not closed"),
            ("stands_by", NODE) => {
                let left_over = waiters(facts);
                let wait = |state: &RendezvousState| state.wait_list.len() + state.redundancy_list.len();
                self.state_was(|state| wait(state) >= left_over, "so many are not left over")
            }
            ("exit_barrier", NODE) => many(&|being| being.finished, "so many have not arrived"),
            ("world_sizes_differ", RANK) => yes(world.workers_differ(self.run), "they agree"),
            ("workers_elsewhere", NODE) => self.state_was(|state| state.complete, "it is not complete"),
            ("waiting", _) => {
                if kind == RANK {
                    let waits = |being: &Being| being.may_be_there() && being.waits.is_some();
                    self.were(RANK, waiters(facts), waits, "so many do not wait")?;
                }
                match facts["missing"][0]["presence"]["is"].as_str().unwrap_or_default() {
                    "away" => world.some_link_was_away(),
                    "not_back" => yes(world.server_life > 1, "the server was not restarted"),
                    _ => Ok(()),
                }
            }
            ("node_silent", _) => {
                self.were(kind, missing(facts, None).len(), Being::may_be_there, "some are dead")
            }
            (
                "run_started" | "node_back" | "gave_up" | "duplicate_rank" | "two_jobs" | "lost"
                | "store_reset",
                _,
            ) => Ok(()),
            _ => Err("nothing of that kind is so".into()),
        }
    }

    fn check_shown(&self, shown: &Run) -> Checked {
        let (summary, has_restarted) = (&shown.summary, self.world.server_life > 1);
        if let Some(ranks) = &summary.ranks {
            self.world.check_ranks(self.run, ranks.joined)?;
        }
        let state = summary.state;
        if !state.is_over() && self.run != job_name() {
            // Requests of an agent may arrive after its death. Other nodes may have removed it from a state
            // in which it still has its rank. A restarted server does not know which nodes have died in the
            // meantime.
            let was_there = |being: &Being| {
                let was_there = being.may_be_there() || being.finished || has_restarted;
                (being.holds || being.place.is_some()) && was_there
            };
            self.were(NODE, summary.nodes.joined as usize, was_there, "so many were not there")?;
        }
        match state {
            RunState::Finished => self.were(NODE, 1, |being| being.finished, "nobody has finished"),
            // A restarted server may know some ranks of a run with agents as a run without an id.
            state if state.is_over() && self.run == job_name() && self.world.plan.job.is_none() => Ok(()),
            state if state.is_over() => {
                let is_closed = self.state_was(|state| state.closed, "it is not closed");
                is_closed.or_else(|_| self.all_were_gone())
            }
            _ => self.were_any(),
        }
    }

    fn all_were_gone(&self) -> Checked {
        let is_known = |moment: &Moment| moment.runs.get(self.run).is_some_and(|run| run.is_known);
        self.was(|moment| !is_known(moment), "some are there")
    }

    fn were_any(&self) -> Checked {
        self.were(NODE, 1, Being::may_be_there, "")
            .or_else(|_| self.were(RANK, 1, Being::may_be_there, "nobody is there"))
    }
}

impl World {
    /// What is said of a run of agents or ranks.
    pub(super) fn check_said_of_job(&self, run: &str, said: &Explanation) -> Checked {
        RunOf { world: self, run }.check(said)
    }

    /// What is shown of one.
    pub(super) fn check_job(&self, run: &str, shown: &Run) -> Checked {
        RunOf { world: self, run }.check_shown(shown)
    }

    /// How many ranks are shown to be there.
    pub(super) fn check_ranks(&self, run: &str, joined: u32) -> Checked {
        let run = RunOf { world: self, run };
        run.were(RANK, joined as usize, Being::may_be_there, "so many ranks were not there")
    }

    /// Whether two ranks of a run are prepared for different numbers.
    fn workers_differ(&self, run: &str) -> bool {
        let sizes = self.workers.iter().filter(|worker| worker.run == run || run == job_name());
        sizes.map(|worker| worker.size).collect::<BTreeSet<_>>().len() > 1
    }

    /// A rank of the job that waits for one that does not come must be told so.
    pub(in super::super) fn check_told(&self) -> Checked {
        let Some(server) = &self.server else { return Ok(()) };
        let now = self.runs_now(&std::collections::BTreeMap::new());
        let beings = now.get(job_name().as_str()).into_iter().flat_map(|run| &run.truth.beings);
        let Some(stuck) = beings.into_iter().find(|being| being.connected && being.waits.is_some()) else {
            return Ok(());
        };
        let held = server.watch.run(&job_name(), None, None).map_or_else(Vec::new, |run| run.explanations);
        let is_it = |said: &Explanation| said.holds && said.code == "waiting";
        yes(held.iter().any(is_it), &format!("nobody says why {stuck:?} waits: {held:?}"))
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

    pub(super) fn no_rank_was_there(&self) -> Checked {
        let is_rank = |being: &Being| being.kind == Some(RANK) && being.connected && being.holds;
        self.was(
            |moment| !moment.runs.values().flat_map(|run| &run.truth.beings).any(is_rank),
            "a rank is there",
        )
    }

    /// Whether a run has agents or ranks, and no nodes of the native rendezvous.
    pub(super) fn is_job(run: &str) -> bool {
        run == job_name() || matches!(number_behind(run), Some(("elastic" | "static", _)))
    }
}

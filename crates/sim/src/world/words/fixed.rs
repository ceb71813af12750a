//! What insight says about runs of torchrun's static backend, whose nodes are known by their ranks.

use super::super::super::agent::Doing;
use super::super::{Checked, relay_of};
use super::Moment;
use super::elastic::{AgentNow, RunOf};
use rallypoint_api::{Explanation, Run, RunState};
use rallypoint_insight::testing::{names, number, text, yes};

/// The rank in `node 2 at 10.0.0.3`, `node 2`, or `node rank 2`.
fn rank_of(name: &str) -> Result<usize, String> {
    let rest = name.trim_start_matches("node ").trim_start_matches("rank ");
    rest.split([' ', ':']).next().and_then(|rank| rank.parse().ok()).ok_or(format!("nobody is called {name}"))
}

impl RunOf<'_> {
    pub(super) fn is_static(&self) -> bool {
        self.run.starts_with("static-")
    }

    /// Whether this held, for each name, for an agent with the rank in that name.
    fn all_ranks(&self, names: &[String], holds: impl Fn(&AgentNow) -> bool, why: &str) -> Checked {
        names.iter().try_for_each(|name| {
            let rank = Some(rank_of(name)?);
            let is_so = |moment: &Moment| self.agents(moment).any(|it| it.rank == rank && holds(it));
            self.was(is_so, &format!("{name} {why}"))
        })
    }

    /// Whether no agent with one of these ranks was there.
    fn nobody(&self, names: &[String]) -> Checked {
        names.iter().try_for_each(|name| {
            let rank = Some(rank_of(name)?);
            let is_there = |it: &AgentNow| it.rank == rank && it.is_alive && it.has_told;
            self.was(|moment| !self.agents(moment).any(is_there), &format!("{name} is there"))
        })
    }

    /// Whether this many agents were there and had published their roles.
    fn so_many(&self, many: usize) -> Checked {
        self.were(many, |_, it| it.is_alive && it.has_told, "so many were not there")
    }

    pub(super) fn check_fixed(&self, said: &Explanation) -> Checked {
        let facts = &said.facts;
        let size = self.world.plan.elastic.first().map_or(0, |job| job.nodes.len());
        let has_restarted = self.world.server_life > 1;
        let is_dead = |it: &AgentNow| {
            let may_have_failed = !it.has_finished || has_restarted && it.doing == Doing::AtExit;
            !it.is_alive && (may_have_failed || self.world.has_lost)
        };
        // What has ranks is said of the workers.
        if !said.facts["ranks"].is_null() {
            return self.world.check_said_of_workers(self.run, said);
        }
        match said.code.as_str() {
            "run_started" => self.all_ranks(&[text(facts, "who").into()], |it| it.has_told, "has not come"),
            "round_complete" => {
                yes(number(facts, "nodes") == size, "not with so many")?;
                self.were(size, |_, it| it.has_told, "so many have not come")
            }
            "nodes_missing" => {
                yes(number(facts, "expected") == size, "others are expected")?;
                self.so_many(number(facts, "joined"))?;
                self.nobody(&names(facts, "missing"))
            }
            "node_came_late" => self.were(number(facts, "joined"), |_, it| it.has_told, "not so many"),
            "lost" if facts["cut_off"] == false => {
                self.all_ranks(&names(facts, "nodes"), is_dead, "is alive")?;
                self.so_many(number(facts, "left"))
            }
            "lost" => {
                let relays: Vec<Option<usize>> =
                    names(facts, "links").iter().map(|it| relay_of(it)).collect();
                let is_behind = |it: &AgentNow| relays.contains(&self.relay_of(it)) && self.is_cut_off(it);
                self.all_ranks(&names(facts, "nodes"), is_behind, "is not lost with that link")?;
                self.so_many(number(facts, "left"))
            }
            "run_ended" | "not_back" => {
                self.was(|moment| !self.agents(moment).any(|it| it.is_alive && it.is_known), "some are there")
            }
            "run_finished" => {
                self.were(number(facts, "nodes"), |_, it| it.has_finished, "so many have not finished")
            }
            "exit_barrier" => {
                self.were(number(facts, "arrived"), |_, it| it.has_finished, "so many have not arrived")?;
                self.all_ranks(&names(facts, "running"), |it| it.is_alive, "is not there")?;
                self.all_ranks(&names(facts, "dead"), is_dead, "is alive")
            }
            "waiting" if facts["place"] == "rank" => self.world.check_said_of_workers(self.run, said),
            "waiting" => {
                let who = [text(facts, "who").to_owned()];
                match (text(&facts["presence"], "is"), facts["but"]["why"].as_str()) {
                    ("never_seen", None) => self.nobody(&who),
                    ("not_back", None) => yes(self.world.server_life > 1, "the server was not restarted"),
                    ("closed" | "unreachable", None) => {
                        self.all_ranks(&who, |it| !it.is_alive || self.is_cut_off(it), "is alive")
                    }
                    ("away", _) => self.world.some_link_was_away(),
                    ("connected", None) if facts["presence"]["waits"] == "nothing" => {
                        self.all_ranks(&who, |it| !it.is_known_dead && !it.waits, "waits")
                    }
                    ("unknown", _) => Ok(()),
                    ("connected", _) => self.all_ranks(&who, |it| it.is_alive, "is not there"),
                    other => Err(format!("it is never {other:?}")),
                }
            }
            "two_jobs" => ["first", "second"].into_iter().try_for_each(|which| {
                let run = text(facts, which).trim_start_matches("run ");
                let it = RunOf { world: self.world, run };
                it.were(1, |_, it| it.is_alive && it.has_told, "nobody of one of them is there")
            }),
            "gave_up" => {
                let who = names(facts, "who");
                self.all_ranks(&who, |it| !it.is_alive || !it.waits, "waits")
            }
            _ => self.world.check_said_of_workers(self.run, said),
        }
    }

    pub(super) fn check_fixed_shown(&self, shown: &Run) -> Checked {
        self.world.check_workers(self.run, shown)?;
        let (nodes, state) = (&shown.summary.nodes, shown.summary.state);
        if !state.is_over() {
            let is_there = |it: &AgentNow| it.has_told && (it.is_alive || it.has_finished);
            let there = nodes.joined as usize;
            self.were(there, |_, it| is_there(it) || self.world.server_life > 1, "so many were not there")?;
        }
        match state {
            RunState::Finished => self.were(1, |_, it| it.has_finished, "nobody has finished"),
            state if state.is_over() => {
                self.was(|moment| !self.agents(moment).any(|it| it.is_alive && it.is_known), "some are there")
            }
            _ => self.was(|moment| self.agents(moment).any(|it| it.is_alive), "nobody is there"),
        }
    }
}

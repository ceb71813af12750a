//! What insight says about runs of the native rendezvous, and about pods at their gates.

use std::collections::BTreeSet;

use super::super::super::plan::{Micros, SECOND};
use super::super::calls::Caller;
use super::super::nodes::Doing;
use super::super::{Checked, World};
use super::said::is_of_ranks;
use super::{Moment, number_behind};
use rallypoint_api::{Explanation, Run, RunState};
use rallypoint_insight::testing::{DELAY, missing, number, yes};

/// The state of a node at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeNow {
    run: usize,
    doing: Doing,
    /// It has a request at the server.
    asks: bool,
    left: Option<Left>,
}

/// How a node left its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Left {
    Succeeded,
    Failed,
}

impl NodeNow {
    fn is_there(&self) -> bool {
        self.doing != Doing::Absent
    }
}

impl Moment {
    fn of_run(&self, run: usize) -> impl Iterator<Item = &NodeNow> {
        self.nodes.iter().filter(move |node| node.run == run)
    }
}

impl World {
    pub(super) fn node_now(&self, node: usize) -> NodeNow {
        let it = &self.runs.nodes[node];
        NodeNow {
            run: it.run,
            doing: it.doing,
            asks: self.has_call(Caller::Node(node)) && !self.is_node_stopped(node),
            left: it.left,
        }
    }

    /// Whether the server has heard from this many processes of a run so lately that it may still count on
    /// them.
    fn were_there(&self, run: usize, processes: usize) -> Checked {
        let since = self.since();
        let of_run = format!("node-{run}-");
        let heard = self.runs.heard.iter();
        let heard = heard.filter(|(label, at)| label.starts_with(&of_run) && **at as f64 / 1e6 >= since);
        let is_there =
            |node: usize| self.node_now(node).is_there().then(|| self.runs.nodes[node].label().to_string());
        let there =
            (0..self.runs.nodes.len()).filter(|&node| self.runs.nodes[node].run == run).filter_map(is_there);
        let all: BTreeSet<String> = heard.map(|(label, _)| label.clone()).chain(there).collect();
        yes(all.len() >= processes, &format!("there were no more than {all:?}"))
    }

    /// Whether nodes of a round from before a restart may still report to this server.
    fn may_report(&self) -> bool {
        /// The time for reports, counted from the first one, which comes soon.
        const GRACE: Micros = 70 * SECOND;
        self.server_life > 1 && self.now < self.runs.started + GRACE
    }

    /// The nodes that a text names.
    fn nodes_in(&self, text: &str) -> Vec<usize> {
        let is_named = |&node: &usize| {
            let name = self.runs.nodes[node].name();
            text.match_indices(name.as_str())
                .any(|(at, _)| !text[at + name.len()..].starts_with(|next: char| next.is_ascii_digit()))
        };
        (0..self.runs.nodes.len()).filter(is_named).collect()
    }

    /// Whether this held for each node that a text names. It must name at least one.
    fn was_so_of(&self, text: &str, holds: impl Fn(&NodeNow) -> bool, why: &str) -> Checked {
        let nodes = self.nodes_in(text);
        yes(!nodes.is_empty(), "it names nobody")?;
        nodes.into_iter().try_for_each(|node| {
            self.was(|moment| holds(&moment.nodes[node]), &format!("{} {why}", self.runs.nodes[node].name()))
        })
    }

    /// Whether each node that a text names, or an earlier process of it, has been silent for as long as the
    /// text says.
    fn were_silent(&self, named: &str, silence: f64) -> Checked {
        // The rounding of the text.
        const LESS: f64 = 0.15;
        self.nodes_in(named).into_iter().try_for_each(|node| {
            let it = &self.runs.nodes[node];
            let last = |label: &&String| label.rsplit_once('-').is_some_and(|(name, _)| name == it.name());
            let silences = self.runs.heard.keys().filter(last).map(|label| {
                let asks = *label == it.label().as_str() && self.has_call(Caller::Node(node));
                let heard = if asks { self.now } else { self.runs.heard[label] };
                // The silence may have ended just now.
                let since = ((self.seconds() - DELAY) * 1e6) as u64;
                let before = self.runs.silences.get(label).filter(|(_, at)| *at >= since);
                before.map_or(0, |(silence, _)| *silence).max(self.now - heard) as f64 / 1e6
            });
            let longest = silences.fold(0.0, f64::max);
            let why = format!("the longest silence of {} is {longest:.1} s", it.name());
            yes(longest + LESS >= silence, &why)
        })
    }

    /// Checks who is gone, how that was seen, and for how long.
    fn check_gone(&self, text: &str) -> Checked {
        let text = text.split(" is over: ").last().unwrap_or_default();
        let closed = text.split_once(" closed, and nothing came for ");
        let silent = closed.map_or(text, |(_, silent)| silent).split_once("not heard from for ");
        let parts = [closed, silent];
        yes(parts.iter().any(Option::is_some), "it says not why")?;
        parts
            .into_iter()
            .flatten()
            .try_for_each(|(who, silence)| self.were_silent(who, seconds_of(silence).ok_or("for how long?")?))
    }

    /// Checks whose connections closed.
    fn check_closed(&self, text: &str) -> Checked {
        match text.split_once(" closed, and nothing came for ") {
            Some((who, _)) => self.was_so_of(who, |node| !node.asks, "has not lost its connection"),
            None => Ok(()),
        }
    }

    pub(super) fn check_said_of_run(&self, run: usize, said: &Explanation) -> Checked {
        let text = said.text.as_str();
        let plan = self.plan.runs.runs.get(run).ok_or("there is no such run")?;
        // What has ranks is said of the workers.
        if is_of_ranks(said) {
            return self.check_said_of_job(&said_of(run), said);
        }
        match said.code.as_str() {
            "run_started" if text.contains(" gathers: ") => {
                let first = text.split(" gathers: ").nth(1).unwrap_or_default();
                self.was_so_of(first, NodeNow::is_there, "was not there")
            }
            "round_complete" => {
                let counts = [" nodes in ", " node in ", " of "];
                let nodes = counts.iter().find_map(|after| number_before(text, after));
                let nodes = nodes.ok_or("of how many nodes?")? as usize;
                yes((plan.min as usize..=plan.max as usize).contains(&nodes), "not with so many")?;
                self.were_there(run, nodes)
            }
            "lost"
                if text.contains(" left")
                    && !text.contains("nothing came")
                    && !text.contains("not heard from") =>
            {
                self.was_so_of(text, |node| node.left.is_some(), "has not left")
            }
            "lost" => self.check_gone(text),
            "node_silent" => {
                self.check_gone(text)?;
                self.check_closed(text)
            }
            "run_closed" => {
                let who = text.split(", rank").next().unwrap_or_default();
                self.was_so_of(who, |node| node.left == Some(Left::Failed), "has not failed")
            }
            "round_over" if text.contains(": joined again; ") => {
                let before = text.split(": joined again; ").next().unwrap_or_default();
                let (gone, joined) = before.rsplit_once("; ").unwrap_or(("", before));
                self.was_so_of(joined, |node| node.doing == Doing::Joins, "has not joined again")?;
                if !gone.contains("nothing came") && !gone.contains("not heard from") {
                    return Ok(());
                }
                self.check_gone(gone)?;
                self.check_closed(gone)
            }
            "round_over" if text.contains("an operator expects") => {
                yes(!self.plan.runs.wishes.is_empty(), "no operator has asked for that")
            }
            "round_over" if text.contains(": joined; ") => {
                self.was_so_of(text, |node| node.doing == Doing::Joins, "has not joined")
            }
            "stands_by" => {
                let unreported = "not reported since the server was restarted: ";
                let unreported = text.split_once(unreported).and_then(|(_, rest)| rest.split(' ').next());
                let unreported = unreported.map_or(0, |n| n.parse::<usize>().unwrap_or_default());
                yes(unreported == 0 || self.server_life > 1, "no server was before")?;
                // An operator may expect as few nodes as the terms allow.
                let fewest = if self.plan.runs.wishes.is_empty() { plan.max } else { plan.min };
                self.were_there(run, (fewest as usize + 1).saturating_sub(unreported))
            }
            "nodes_missing" | "round_deadline" => {
                let Some(joined) = number_before(text, " of ") else { return Ok(()) };
                self.were_there(run, joined as usize)
            }
            "run_started" | "not_back" | "round_over" => yes(self.server_life > 1, "no server was before"),
            "run_finished" => {
                let is_done = |node: &NodeNow| node.left == Some(Left::Succeeded);
                self.was(|moment| moment.of_run(run).any(is_done), "nobody has done its work")
            }
            _ => self.check_said_of_job(&said_of(run), said),
        }
    }

    /// Checks what is shown of a run.
    pub(super) fn check_run(&self, shown: &Run) -> Checked {
        let summary = &shown.summary;
        let run = match number_behind(&summary.run_id) {
            Some(("run", run)) => run,
            Some(("pods", gate)) => return self.check_gate(gate, shown),
            _ => return Ok(()),
        };
        yes(run < self.plan.runs.runs.len(), "there is no such run")?;
        let joined = summary.nodes.joined as usize;
        let left = (self.runs.nodes.iter()).filter(|node| node.run == run && node.left.is_some()).count();
        self.were_there(run, joined.saturating_sub(left))?;
        if let Some(ranks) = &summary.ranks {
            self.check_ranks(&said_of(run), ranks.joined)?;
        }
        for name in shown.missing.iter().filter_map(|missing| missing.name.as_deref()) {
            let is_missing = |node: &NodeNow| !(node.asks && node.doing == Doing::Joins);
            self.was_so_of(name, is_missing, "is missing, and joins")?;
        }
        match summary.state {
            // Nodes of a round that is over are about to join again.
            RunState::Joining | RunState::LastCall | RunState::Running => {
                yes(self.may_report(), "nobody may report").or_else(|_| self.were_there(run, 1))
            }
            RunState::Gone => {
                // A node whose join was just given up joins again.
                let is_out = |node: &NodeNow| !(node.asks && matches!(node.doing, Doing::Works { .. }));
                self.was(|moment| moment.of_run(run).all(is_out), "some are there")
            }
            RunState::Exiting | RunState::Finished => {
                let is_done = |node: &NodeNow| node.left == Some(Left::Succeeded);
                self.was(|moment| moment.of_run(run).any(is_done), "nobody has done its work")
            }
            other => Err(format!("it is never {other:?}")),
        }
    }

    /// Checks a gate. Its pods have no relays, so none is known to be gone.
    fn check_gate(&self, gate: usize, shown: &Run) -> Checked {
        let (nodes, all) = (&shown.summary.nodes, self.plan.runs.gates[gate].pods.len());
        yes(nodes.gone == 0, "no relay has the name of a pod")?;
        yes(
            nodes.missing.is_none_or(|missing| (nodes.joined + missing) as usize == all),
            "there are more, or fewer",
        )?;
        self.was(
            |moment| moment.announced[gate] >= nodes.joined as usize || self.server_life > 1,
            "so many have not come",
        )
    }

    pub(super) fn check_said_of_gate(&self, gate: usize, said: &Explanation) -> Checked {
        match said.code.as_str() {
            "pods_missing" => {
                let announced = number(&said.facts, "joined");
                let all = self.plan.runs.gates[gate].pods.len();
                yes(number(&said.facts, "expected") == all && announced < all, "none is missing")?;
                self.was(|moment| moment.announced[gate] >= announced, "so many have not come")?;
                self.was(|moment| moment.announced[gate] < all || self.server_life > 1, "all have come")
            }
            "pods_idle" => {
                let all = self.plan.runs.gates[gate].pods.len();
                yes(number(&said.facts, "joined") <= all, "there are not so many")?;
                yes(missing(&said.facts, None).is_empty(), "no relay has the name of a pod")?;
                self.was(|moment| moment.announced[gate] == all || self.server_life > 1, "some have not come")
            }
            _ => Err("nothing of that kind is so".into()),
        }
    }
}

fn said_of(run: usize) -> String {
    format!("run-{run}")
}

/// The number just before these words.
fn number_before(text: &str, words: &str) -> Option<u64> {
    text.split_once(words)?.0.rsplit(' ').next()?.parse().ok()
}

/// A duration as it is written for people, at the least.
fn seconds_of(text: &str) -> Option<f64> {
    let mut words = text.split([' ', ';', ',']).skip_while(|word| word.parse::<f64>().is_err());
    let number: f64 = words.next()?.parse().ok()?;
    match words.next()? {
        "ms" => Some(number / 1000.0),
        "s" => Some(number),
        "min" => Some(number * 60.0),
        _ => None,
    }
}

//! How a run ends, as a whole at the exit barrier or node by node.

use super::{MOST_NODES, Place, Run, SETTLE};
use crate::core::ids::{ConnId, Timestamp, count};
use crate::core::insight::reason::{Names, Reason, Secs, Unit};

/// A node whose connection closed, not yet told.
#[derive(Debug, Clone)]
pub(in crate::core::insight) struct Dying {
    label: String,
    at: Timestamp,
    joining: bool,
}

impl Run {
    /// An agent arrived at the exit barrier.
    pub(in crate::core::insight) fn arrive_at_exit(&mut self, conn: ConnId, now: Timestamp) {
        self.exit.insert(conn);
        self.exit_since.get_or_insert(now);
        if let Some(node) = self.nodes.iter_mut().find(|node| node.conn == Some(conn)) {
            node.finished = true;
        }
        self.touch();
    }

    /// All agents arrived there.
    pub(in crate::core::insight) fn finish(&mut self, now: Timestamp) {
        if self.exit_done.is_some() {
            return;
        }
        self.exit_done = Some(now);
        let members = self.group.unwrap_or(count(self.exit.len()));
        let ran = Secs(now.since(self.completed.unwrap_or(now)));
        self.fact(
            Reason::RunFinished { members, unit: Unit::Node, ran },
            format!("round {}", self.round),
            now,
        );
    }

    /// An agent's connection closed.
    pub(in crate::core::insight) fn agent_left(&mut self, conn: ConnId, pid: Option<u32>, now: Timestamp) {
        if !self.agents.remove(&conn) {
            return;
        }
        self.touch();
        if self.node_of(conn).is_none() {
            self.match_by_pid(conn, pid, None);
        }
        self.left.remove(&conn);
        let (joining, is_over) =
            (self.completed.is_none(), self.closed.is_some() || self.exit_done.is_some());
        let has_finished = self.exit.contains(&conn);
        if let Some(node) = self.nodes.iter_mut().find(|node| node.conn == Some(conn)) {
            node.gone = Some(now);
            node.finished |= has_finished;
            if !is_over && !has_finished && node.place == Place::Participant && self.dying.len() < MOST_NODES
            {
                let label = node.label();
                self.dying.push(Dying { label, at: now, joining });
            }
        }
        if self.agents.is_empty() {
            self.all_gone = Some(now);
        }
    }

    /// Tells the deaths that have been gathered.
    pub(in crate::core::insight) fn tell_deaths(&mut self, now: Timestamp, expected: Option<u32>) {
        let Some(first) = self.dying.first() else { return };
        if now.since(first.at) < SETTLE {
            return;
        }
        let dying = std::mem::take(&mut self.dying);
        if self.closed.is_some() || self.exit_done.is_some() {
            // The run ended in the meantime: they left with it.
            return;
        }
        if self.agents.is_empty() {
            // Told as the end of the run.
            return;
        }
        self.deaths = self.deaths.saturating_add(dying.len() as u64);
        let since = first_at(&dying, now);
        let (joining, training): (Vec<_>, Vec<_>) = dying.into_iter().partition(|one| one.joining);
        let left = count(self.participants().filter(|node| node.gone.is_none()).count());
        let names = |dead: Vec<Dying>| Names::of(dead.into_iter().map(|one| one.label));
        if !joining.is_empty() {
            let nodes = names(joining);
            let about = nodes.to_string();
            self.fact(Reason::NodeDiedJoining { nodes, joined: left, expected }, about, since);
        }
        if !training.is_empty() {
            let nodes = names(training);
            let about = nodes.to_string();
            self.fact(Reason::NodeDied { nodes, left }, about, since);
        }
    }
}

fn first_at(dying: &[Dying], now: Timestamp) -> Timestamp {
    dying.iter().map(|one| one.at).min().unwrap_or(now)
}

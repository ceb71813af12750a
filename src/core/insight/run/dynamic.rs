//! The c10d backend: rounds as the rendezvous state tells them.

use super::{MOST_NODES, Node, NodeId, Place, Run};
use crate::core::ids::{ConnId, Timestamp, count};
use crate::core::insight::expect::Plan;
use crate::core::insight::reason::{Names, Reason, Secs, Unit};
use crate::core::protocol::rendezvous_state::{Node as Desc, RendezvousState, UtcMicros};

impl Run {
    /// A new version of torchrun's c10d state, written by `conn`.
    pub(in crate::core::insight) fn fold_state(
        &mut self,
        state: &RendezvousState,
        conn: ConnId,
        now: Timestamp,
        plan: &Plan,
    ) {
        if self.has_state && state.round != self.round {
            let stays = |desc: &Desc| state.participants.iter().any(|(other, _)| other == desc);
            let gone = |node: &&Node| matches!(&node.id, NodeId::Desc(desc) if !stays(desc));
            // Those that died in this round may have been dropped from the state before it ended.
            let began = self.started.unwrap_or_default();
            self.earlier.retain(|&(_, last_seen)| last_seen >= began);
            let left: Vec<_> =
                self.participants().filter(gone).map(|n| (n.name.clone(), n.last_heartbeat)).collect();
            self.earlier.extend(left);
            self.earlier.truncate(MOST_NODES);
            self.begin_round(state.round);
            // Everybody joins anew.
            self.nodes.iter_mut().for_each(|node| node.place = Place::WaitList);
        }
        self.has_state = true;
        self.round = state.round;
        let was_complete = self.completed.is_some();
        let mut changed = Vec::new();
        let index: std::collections::HashMap<Desc, usize> = self
            .nodes
            .iter()
            .enumerate()
            .filter_map(|(at, node)| match &node.id {
                NodeId::Desc(desc) => Some((desc.clone(), at)),
                NodeId::Rank(_) | NodeId::Native { .. } => None,
            })
            .collect();
        let stamps: std::collections::HashMap<&Desc, i64> =
            state.last_heartbeats.iter().map(|(desc, at)| (desc, at.0)).collect();
        let mut seen = vec![false; self.nodes.len()];
        let lists = state
            .participants
            .iter()
            .map(|(desc, rank)| (desc, Some(*rank), Place::Participant))
            .chain(state.wait_list.iter().map(|desc| (desc, None, Place::WaitList)))
            .chain(state.redundancy_list.iter().map(|desc| (desc, None, Place::Redundant)));
        let mut joined = Vec::new();
        for (desc, rank, place) in lists {
            let rank = rank.filter(|_| state.complete);
            let stamp = stamps.get(desc).copied().unwrap_or(i64::MIN);
            if let Some(&at) = index.get(desc) {
                seen[at] = true;
                let node = &mut self.nodes[at];
                if node.stamp != stamp {
                    node.stamp = stamp;
                    node.last_heartbeat = now;
                    changed.push(at);
                }
                if node.place != place || node.rank != rank {
                    if place == Place::Participant && node.place != place {
                        node.joined = now;
                        joined.push(at);
                    }
                    if node.place != place {
                        node.place_since = now;
                    }
                    (node.place, node.rank) = (place, rank);
                    self.version = self.version.saturating_add(1);
                }
            } else if self.nodes.len() < MOST_NODES {
                let id = NodeId::Desc(desc.clone());
                let name = self.name_for(&id, plan);
                let at = self.nodes.len();
                if place == Place::Participant {
                    joined.push(at);
                }
                changed.push(at);
                self.nodes.push(Node {
                    id,
                    name,
                    conn: None,
                    peer: None,
                    pid: Some(desc.pid),
                    rank,
                    place,
                    place_since: now,
                    joined: now,
                    last_heartbeat: now,
                    stamp,
                    gone: None,
                    finished: false,
                });
                self.version = self.version.saturating_add(1);
            }
        }
        if let [at] = changed[..]
            && self.node_of(conn).is_none()
            && self.nodes[at].conn.is_none()
        {
            self.nodes[at].conn = Some(conn);
        }
        self.tell_joins(&joined, now);
        self.deadline = state.deadline.map(UtcMicros::as_secs_f64);
        let participants = count(state.participants.len());
        if participants > self.most_joined {
            self.most_joined = participants;
            self.most_present = Names::of(self.participants().map(|node| node.name.clone()));
        }
        if state.complete && !was_complete {
            self.complete(now);
        }
        if state.closed && self.closed.is_none() {
            self.close(now, plan);
        }
        // Those in no list any more.
        let mut at = 0;
        let (earlier, left) = (&mut self.earlier, &mut self.left);
        self.nodes.retain(|node| {
            let stays = seen.get(at).copied().unwrap_or(true);
            at = at.saturating_add(1);
            if !stays && node.gone.is_some() && earlier.len() < MOST_NODES {
                earlier.push((node.name.clone(), node.last_heartbeat));
            }
            if let (false, None, Some(conn)) = (stays, node.gone, node.conn)
                && left.len() < MOST_NODES
            {
                left.insert(conn, node.label());
            }
            stays
        });
    }

    pub(super) fn tell_joins(&mut self, joined: &[usize], now: Timestamp) {
        if joined.is_empty() {
            return;
        }
        let started = *self.started.get_or_insert(now);
        let total = self.joined();
        for &at in joined {
            let (name, after) = (self.nodes[at].told(), Secs(now.since(started)));
            let round = self.round;
            let text = format!("{name} joined round {round} ({}, +{after:.1})", Unit::Node.count(total));
            self.moment(now, "node_joined", text);
        }
    }

    /// The round has its members.
    fn complete(&mut self, now: Timestamp) {
        self.completed = Some(now);
        self.group = Some(self.joined());
        self.dying.clear();
        let started = self.started.unwrap_or(now);
        let Some(last) = self.participants().max_by_key(|node| node.joined) else { return };
        let reason = Reason::RoundComplete {
            nodes: self.joined(),
            took: Secs(now.since(started)),
            last: last.told(),
            last_after: Secs(last.joined.since(started)),
        };
        let about = format!("round {}", self.round);
        self.fact(reason, about, now);
    }

    fn close(&mut self, now: Timestamp, plan: &Plan) {
        self.closed = Some(now);
        self.touch();
        if self.exit_done.is_some() {
            return;
        }
        let reason = match (self.completed, self.group) {
            (Some(_), Some(nodes)) => Reason::ClosedUnfinished { finished: count(self.exit.len()), nodes },
            _ => Reason::ClosedIncomplete {
                joined: self.most_joined,
                expected: self.expected(plan).map(|expected| expected.min),
                present: self.most_present.clone(),
            },
        };
        let about = format!("round {}", self.round);
        self.fact(reason, about, now);
    }
}

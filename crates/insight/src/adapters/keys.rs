//! What agents and workers do with a run's keys, one by one.

use crate::facts::{MOST_NODES, Plan, Room, SETTLE, TrackedNode, TrackedRun};
use crate::reason::Evidence;
use crate::rules::{ends, starts, stores};
use rallypoint_protocol::ids::{ConnId, ShownKey, Timestamp};
use rallypoint_protocol::keys::RendezvousPart;
use rallypoint_protocol::rendezvous_state;

impl TrackedRun {
    /// Reports the agents that have come to the closed run, together. They may come again and again.
    pub(crate) fn tell_turned_away(&mut self, now: Timestamp) {
        if self.round.newcomers.first().is_some_and(|first| now.since(first.at) >= SETTLE) {
            let came = std::mem::take(&mut self.round.newcomers);
            self.found(ends::turned_away(self, came));
        }
    }

    /// All that its processes have written is gone, while they are there.
    pub(crate) fn store_was_reset(&mut self, at: Timestamp) {
        if self.has_state || self.is_empty() {
            self.state_dropped(at);
        }
        self.round.reset = Some(at);
        self.remember(at, "store_reset", "an operator reset its store".to_owned());
        let lost: Vec<_> = self.world.addresses().collect();
        if !lost.is_empty() {
            self.found(stores::reset(lost, at));
        }
        self.world.unpublish(&(0..=u32::MAX));
        self.touch();
    }

    /// Its rendezvous state was dropped.
    pub(crate) fn state_dropped(&mut self, at: Timestamp) {
        self.has_state = false;
        self.round.over_at.get_or_insert(at);
    }

    /// The store has forgotten a run that was over: it begins anew, if it has not yet.
    pub(crate) fn started_again(&mut self, at: Timestamp) {
        let round = &self.round;
        let has_begun = round.over_at.is_none() && round.exit_done.is_none() && round.closed.is_none();
        if !has_begun {
            self.restart(0);
            self.has_state = false;
        }
        self.found(starts::again(at));
    }

    /// Its rendezvous state was written. If the run was over, it starts again.
    pub(crate) fn state_written(
        &mut self,
        value: &[u8],
        conn: ConnId,
        wrote: &Evidence,
        plan: &Plan,
        room: &mut Room,
    ) {
        self.agents.insert(conn);
        if !self.has_state && self.round.over_at.is_some() {
            self.restart(0);
        }
        let read = rendezvous_state::read(value);
        let is_known = std::mem::replace(&mut self.is_unreadable, read.is_err());
        match read {
            Ok(None) => self.touch(),
            Ok(Some(state)) => self.fold_state(&state, conn, wrote, plan, room),
            Err(_) if is_known => {}
            Err(unreadable) => {
                self.found(stores::unreadable_state(&unreadable, wrote.at));
            }
        }
        if let (Some(peer), Some(node)) =
            (wrote.peer, self.life.nodes.iter_mut().find(|node| node.conn == Some(conn)))
        {
            node.peer = Some(peer);
        }
    }

    /// Whether nodes may have arrived at its exit barrier before the server was restarted.
    pub(crate) fn misses_exits(&self) -> bool {
        (self.round.is_of_before || self.round.follows_one_of_before) && self.round.exit_done.is_none()
    }

    /// An agent waits for others at the exit barrier. That it arrived was seen, unless it was before a
    /// restart.
    pub(crate) fn waits_at_exit(&mut self, conn: ConnId, now: Timestamp) {
        let is_new = self.agents.contains(&conn) && !self.round.exit.contains(&conn);
        if !self.misses_exits() || !is_new {
            return;
        }
        if self.round.is_of_before {
            self.arrive_at_exit(conn, now);
        } else {
            // Static: another attempt has begun since.
            self.has_finished(conn);
        }
    }

    /// A key of its rendezvous other than its state was written.
    pub(crate) fn part_written(&mut self, part: RendezvousPart, conn: ConnId, value: &[u8], at: Timestamp) {
        let text = || ShownKey(value).to_string();
        match part {
            RendezvousPart::MasterAddr => self.life.master_addr = Some(text()),
            RendezvousPart::MasterPort => {
                self.life.master_port = Some(text());
                self.life.told_elsewhere = false;
            }
            RendezvousPart::RoleInfo(rank) => {
                if self.round.roles.len() < MOST_NODES {
                    self.round.roles.insert(rank);
                }
                // A node of the round that has told its role is the one with this rank, if it is known who
                // told it.
                let is_it = |node: &&mut TrackedNode| {
                    node.is_listed() && node.rank == Some(rank) && node.conn.is_none()
                };
                if let Some(known) =
                    self.life.nodes.iter_mut().find(is_it).filter(|_| self.agents.contains(&conn))
                {
                    known.conn = Some(conn);
                }
            }
            RendezvousPart::AssignedRanks(node) => {
                // `[base_rank, world_size, base_role_rank, role_world_size]`
                if let Ok([base, world_size, ..]) = serde_json::from_slice::<[u32; 4]>(value) {
                    self.assign(node, base, world_size, at);
                }
            }
            RendezvousPart::ExitBarrier { .. } => {
                self.round.exit_counted = text().parse().ok().or(self.round.exit_counted);
                self.arrive_at_exit(conn, at);
            }
            RendezvousPart::ExitBarrierDone { .. } => self.finish(at),
            RendezvousPart::State | RendezvousPart::Other => {}
        }
        self.touch();
    }
}

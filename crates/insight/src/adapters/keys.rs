//! What agents and workers do with a run's keys, one by one.

use std::net::IpAddr;
use std::time::Duration;

use crate::facts::plan::Plan;
use crate::facts::run::TrackedRun;
use crate::facts::run::limits::{MOST_NODES, SETTLE};
use crate::facts::run::memory::Room;
use crate::facts::run::node::{Membership, TrackedNode};
use crate::facts::run::round::Dying;
use crate::facts::run::world::{Process, RankInfo};
use crate::reason::{Code, Evidence, Finding, Names};
use crate::rules::{ends, starts};
use rallypoint_api::RunKind;
use rallypoint_protocol::ids::{ConnId, ShownKey, Timestamp};
use rallypoint_protocol::keys::RendezvousPart;
use rallypoint_protocol::rendezvous_state;

impl TrackedRun {
    /// An agent, which is `came`, uses its keys for the first time.
    pub(crate) fn agent_came(
        &mut self,
        conn: ConnId,
        kind: RunKind,
        came: Option<&Evidence>,
        now: Timestamp,
    ) {
        if self.round.closed.is_some() && self.has_state && kind == RunKind::C10d {
            // Reported together.
            let has_room = self.round.newcomers.len() < MOST_NODES;
            self.round.newcomers.extend(came.cloned().filter(|_| has_room));
        }
        if self.agents.is_empty() {
            // `none` is the id of all jobs that are given none, whatever their backend.
            let follows_other = kind == RunKind::Static && self.kind == RunKind::C10d;
            if follows_other || self.kind == RunKind::Static && !self.life.nodes.is_empty() {
                // Nobody goes on with what was before, even if that has not been noticed yet.
                self.all_have_left(now);
            }
            self.hosts.clear();
        }
        let host = came.and_then(|came| Some(came.peer?.ip()));
        self.hosts.extend(host.filter(|_| self.hosts.len() < MOST_NODES));
        if self.agents.insert(conn) {
            self.touch();
        }
        self.life.all_gone = None;
        self.life.ended_with_server = false;
        if self.has_state && self.round.closed.is_none() && kind == RunKind::C10d {
            self.round.over_at = None;
        }
        if kind == RunKind::C10d && self.kind == RunKind::Static {
            self.give_way();
        }
    }

    /// Reports the agents that have come to the closed run, together. They may come again and again.
    pub(crate) fn tell_turned_away(&mut self, now: Timestamp) {
        let Some(first) = self.round.newcomers.first().map(|came| came.at) else { return };
        let Some(closed) = self.round.closed.filter(|_| now.since(first) >= SETTLE) else { return };
        let came = std::mem::take(&mut self.round.newcomers);
        let turned_away = ends::turned_away(self, closed, came, first);
        self.found(turned_away);
    }

    /// A worker wrote a key that is none of the group of all ranks.
    pub(crate) fn worker_went_on(&mut self, conn: ConnId, rank: Option<u32>) {
        let meeting = self.world.of_mut(rank, conn);
        meeting.went_on |= meeting.met.is_some();
    }

    /// A worker comes. A run without agents that is over begins anew; returns whether it did.
    pub(crate) fn worker_came(&mut self, conn: ConnId, process: Option<Process>, at: Timestamp) -> bool {
        let begins_anew = self.round.over_at.is_some() && !self.has_agents();
        if begins_anew {
            self.restart(self.round.number.saturating_add(1));
        }
        self.world.enter(conn, process);
        self.life.workers_placed = true;
        self.life.has_workers_here = true;
        if !self.has_agents() {
            self.round.started.get_or_insert(at);
        }
        self.touch();
        begins_anew
    }

    /// An agent gave up on another node, or a worker on a rank.
    pub(crate) fn gave_up(&mut self, conn: ConnId, at: Timestamp) {
        if self.agents.contains(&conn) || self.world.connected.contains(conn) {
            self.life.gave_up.insert(conn, at);
        }
    }

    /// Whether a process that leaves had given up on another just before. One that does not end soon goes on.
    pub(crate) fn had_given_up(&mut self, conn: ConnId, now: Timestamp) -> bool {
        const ENDS_WITHIN: Duration = Duration::from_secs(10);
        self.life.gave_up.remove(&conn).is_some_and(|at| now.since(at) < ENDS_WITHIN)
    }

    /// A worker's connection closed.
    pub(crate) fn worker_left(
        &mut self,
        conn: ConnId,
        rank: Option<u32>,
        is_cut_off: bool,
        closed: Evidence,
    ) {
        self.life.was_cut_off |= is_cut_off;
        // The nodes of agents are told.
        let is_told = is_cut_off && !self.has_agents() && self.life.dying.len() < MOST_NODES;
        let of_rank = rank.filter(|_| is_told).and_then(|rank| {
            let meeting = self.world.of(Some(rank), conn);
            let info = meeting.ranks.get(&rank).filter(|info| info.conn == conn)?;
            Some(info.closed(rank, closed.at))
        });
        let unnamed = is_told.then(|| Evidence { who: self.process_label(&closed), ..closed.clone() });
        let gave_up = self.had_given_up(conn, closed.at);
        let was_unnamed = self.world.leave(conn, rank, is_cut_off, gave_up, closed);
        let cut = of_rank.or(unnamed.filter(|_| was_unnamed));
        self.life.dying.extend(cut.map(|closed| Dying {
            closed,
            round: self.round.number,
            in_round: true,
            is_cut_off,
            gave_up,
        }));
        self.touch();
    }

    /// A worker of RPC publishes where it listens.
    pub(crate) fn meets_by_rpc(&mut self) {
        self.world.meets_otherwise = true;
        self.touch();
    }

    /// Rank 0 publishes the NCCL id of all ranks.
    pub(crate) fn publish_nccl_id(&mut self, conn: ConnId, listens: Option<IpAddr>, wrote: Evidence) {
        self.world.publish_nccl_id(conn, listens, wrote);
        self.touch();
    }

    /// A worker uses the keys of a group, of whichever kind.
    pub(crate) fn worker_uses_group(&mut self, conn: ConnId) {
        self.world.connected.uses_group(conn);
    }

    /// A rank published its address. Returns whether a run that was over begins anew: who is left of it may
    /// be the first of the next.
    pub(crate) fn publish(
        &mut self,
        rank: u32,
        attempt: Option<u32>,
        info: RankInfo,
        room: &mut Room,
    ) -> bool {
        if !self.takes_rank(rank, room) {
            return false;
        }
        let is_again =
            self.round.over_at.is_some() && self.worker_came(info.conn, info.process(), info.joined);
        let has_size = info.size.is_some();
        let begins = self.world.publish(rank, attempt, info);
        if begins.is_some() && !self.has_agents() && has_size {
            self.round.started = begins;
        }
        self.check_ranks();
        is_again
    }

    /// The address of a rank was dropped.
    pub(crate) fn unpublish(&mut self, rank: u32, attempt: Option<u32>) {
        // A live writer was paired with a rank that was replaced: it has to publish again.
        if attempt == self.world.attempt {
            self.world.unpublish(rank);
            self.touch();
        }
    }

    /// How its processes contradict each other: two claim one place, or they count on other numbers.
    pub(crate) fn contradiction(&self) -> Option<Code> {
        let (world, has_rival) = (&self.world, self.those(Membership::Rival).next().is_some());
        let is_twice = has_rival || !world.claimed_twice.is_empty();
        let differs = world.has_told_different().then_some(Code::WorldSizesDiffer);
        if is_twice { Some(Code::DuplicateRank) } else { differs }
    }

    /// A second job: a live process already has each of its ranks. Reported once.
    pub(crate) fn take_second_job(&mut self) -> Option<(u32, u32, [ConnId; 2])> {
        self.world.take_second_job()
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
            let ranks = Names::of(lost.iter().map(|address| address.who.clone()));
            let (addresses, are) = if ranks.count() == 1 { ("address", "is") } else { ("addresses", "are") };
            let reason = Code::StoreReset
                .says(format!(
                    "an operator reset the store before all ranks had met: the {addresses} of {ranks} {are} \
                     gone"
                ))
                .held(&ranks);
            self.found(Finding::new(reason, format!("{at:?}"), at).seen(lost));
        }
        self.world.reset();
        self.touch();
    }

    /// Its rendezvous state was dropped.
    pub(crate) fn state_dropped(&mut self, at: Timestamp) {
        self.has_state = false;
        self.round.over_at.get_or_insert(at);
    }

    /// The store has forgotten a run that was over. Returns whether it begins anew with that.
    pub(crate) fn started_again(&mut self, at: Timestamp) -> bool {
        let round = &self.round;
        let has_begun = round.over_at.is_none() && round.exit_done.is_none() && round.closed.is_none();
        if !has_begun {
            self.restart(0);
            self.has_state = false;
        }
        self.found(starts::again(at));
        !has_begun
    }

    /// Its rendezvous state was written. If the run was over, it starts again; returns whether it does.
    pub(crate) fn state_written(
        &mut self,
        value: &[u8],
        conn: ConnId,
        wrote: &Evidence,
        plan: &Plan,
        room: &mut Room,
    ) -> bool {
        self.agents.insert(conn);
        let begins_anew = !self.has_state && self.round.over_at.is_some();
        if begins_anew {
            self.restart(0);
        }
        let read = rendezvous_state::read(value);
        let is_known = std::mem::replace(&mut self.told.unreadable, read.is_err());
        match read {
            Ok(None) => self.touch(),
            Ok(Some(state)) => self.fold_state(&state, conn, wrote, plan, room),
            Err(_) if is_known => {}
            Err(unreadable) => {
                let text = format!("the rendezvous state cannot be read: {unreadable}");
                self.finds(Code::UnreadableState.says(text), "", wrote.at);
            }
        }
        if let (Some(peer), Some(node)) =
            (wrote.peer, self.life.nodes.iter_mut().find(|node| node.conn == Some(conn)))
        {
            node.peer = Some(peer);
        }
        begins_anew
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
            RendezvousPart::MasterAddr => self.round.master.host = Some(text()),
            RendezvousPart::MasterPort => {
                self.round.master.port = Some(text());
                self.life.workers_placed = false;
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

//! One run: what others read of it, and what changes it beside its traffic.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use crate::facts::plan::{Plan, short};
use crate::facts::run::key::RunKey;
use crate::facts::run::limits::{LATE, LATEST, MOST_MOMENTS, MOST_NODES, SETTLE};
use crate::facts::run::node::{Membership, NodeId, TrackedNode};
use crate::facts::run::round::{AssignedRanks, LifeFacts, Native, RoundFacts, TimelineEntry};
use crate::facts::run::world::{Meeting, RankInfo, World};
use crate::reason::{Evidence, Finding, Place, Presence, Reason, Sighting};
use rallypoint_api::{Expected, ExpectedFrom, RunKind, RunState, Seen, Severity};
use rallypoint_protocol::ids::{ConnId, Elapsed, Timestamp, count};
use rallypoint_protocol::keys::{ExpectedWriter, Wanted};

/// What is known of one run.
#[derive(Debug, Default)]
pub(crate) struct TrackedRun {
    pub(crate) key: RunKey,
    pub(crate) kind: RunKind,
    /// Goes up with every change that is shown.
    pub(crate) version: u64,
    /// The version that the subscribers have; 0: they know nothing of it.
    pub(crate) shown_version: u64,
    /// The version whose past the journal has.
    pub(crate) kept_version: u64,
    pub(crate) first_seen: Timestamp,
    /// When this server saw it first. The last one may have known it before.
    pub(crate) known_since: Timestamp,
    /// When this server read what the last one had known of it.
    pub(crate) restored: Option<Timestamp>,
    pub(crate) state: RunState,
    pub(crate) state_since: Timestamp,
    /// When it began to gather anew: all had met before, or it was over.
    pub(crate) gathers_anew: Option<Timestamp>,
    /// Agents that are connected.
    pub(crate) agents: BTreeSet<ConnId>,
    /// Where they and those before them came from, without a break.
    pub(crate) hosts: BTreeSet<IpAddr>,
    /// The store has a rendezvous state of it…
    pub(crate) has_state: bool,
    /// …and the last one could not be read.
    pub(crate) is_unreadable: bool,
    pub(crate) plan_version: u64,
    pub(crate) native: Option<Native>,
    pub(crate) round: RoundFacts,
    pub(crate) life: LifeFacts,
    pub(crate) world: World,
    /// The start that was reported.
    pub(crate) told_start: Option<Timestamp>,
    pub(crate) timeline: VecDeque<TimelineEntry>,
    pub(crate) new_moments: Vec<TimelineEntry>,
    pub(crate) findings: Vec<Finding>,
    /// It has begun anew: what was said of it before is of another.
    pub(crate) has_begun_anew: bool,
}

/// What others read.
impl TrackedRun {
    /// The first sign of what it gathers for, or has gathered for: its round, or another meeting in it.
    pub(crate) fn began(&self) -> Timestamp {
        // A round of which nobody has come yet.
        let first = if self.round.number == 0 { self.first_seen } else { self.state_since };
        let began = self.round.started.unwrap_or(first);
        self.gathers_anew.map_or(began, |anew| began.max(anew))
    }

    /// Its nodes, as the state or their roles show them.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &TrackedNode> {
        self.life.nodes.iter().filter(|node| node.is_listed())
    }

    pub(crate) fn those(&self, membership: Membership) -> impl Iterator<Item = &TrackedNode> {
        self.life.nodes.iter().filter(move |node| node.membership == membership)
    }

    /// Nodes that are in no list of the state, and are connected.
    pub(crate) fn lingering(&self) -> impl Iterator<Item = &TrackedNode> {
        self.life.nodes.iter().filter(|node| node.lingers())
    }

    /// Nodes that are in no list of the state, and are not connected, as far as is known.
    pub(crate) fn former(&self) -> impl Iterator<Item = &TrackedNode> {
        self.life.nodes.iter().filter(|node| node.is_out() && !node.lingers())
    }

    /// The store that its processes use.
    pub(crate) fn store(&self) -> Option<u16> {
        match &self.native {
            Some(native) => native.store,
            None => self.key.port(),
        }
    }

    /// The store in which those workers met that are known.
    pub(crate) fn met_at(&self) -> Option<u16> {
        self.native.as_ref().map_or(self.key.port(), |native| native.met_at)
    }

    /// The address that the workers meet at.
    pub(crate) fn workers_store(&self) -> Option<String> {
        // The agent of node rank 0, or a worker of it, holds it.
        let has_died = self.node_at(self.round.number, 0).is_some_and(TrackedNode::is_dead);
        // An earlier round may have published it.
        if self.life.has_workers_here || has_died || self.round.assigned.is_empty() {
            return None;
        }
        let LifeFacts { master_addr, master_port, .. } = &self.life;
        Some(format!("{}:{}", master_addr.as_ref()?, master_port.as_ref()?))
    }

    pub(crate) fn participants(&self) -> impl Iterator<Item = &TrackedNode> {
        self.those(Membership::Participant)
    }

    /// The nodes that have joined and are there.
    pub(crate) fn joined(&self) -> u32 {
        self.listed().saturating_add(count(self.taken_out().count()))
    }

    /// The members that are not lost.
    pub(crate) fn listed(&self) -> u32 {
        // torch notices a death late, or, with the static rendezvous, never.
        let lost = self.participants().filter(|node| node.is_lost()).count();
        self.members().saturating_sub(count(lost))
    }

    /// c10d: nodes that others have taken out of the complete round, as no heartbeats came, and that are
    /// there: they wait for something here, or are heard from again. Their ranks go on as if nothing had
    /// been.
    pub(crate) fn taken_out(&self) -> impl Iterator<Item = &TrackedNode> {
        self.life.nodes.iter().filter(|node| self.goes_on_with_round(node))
    }

    pub(crate) fn goes_on_with_round(&self, node: &TrackedNode) -> bool {
        let is_of_round = node.round == self.round.number && self.round.completed.is_some();
        let is_taken_out = node.membership == Membership::TakenOut && node.lingers();
        // Ranks may have been handed out without it.
        let has_ranks = |rank| self.round.assigned.is_empty() || self.round.assigned.contains_key(&rank);
        is_of_round && is_taken_out && node.is_heard && node.rank.is_some_and(has_ranks)
    }

    /// Who has, or had, this rank in that round.
    pub(crate) fn node_at(&self, round: u64, rank: u32) -> Option<&TrackedNode> {
        let had = |node: &&TrackedNode| node.is_out() && node.round == round && node.rank == Some(rank);
        let out = || self.life.nodes.iter().rfind(had).filter(|_| self.kind == RunKind::C10d);
        self.node_of_rank(rank).filter(|_| round == self.round.number).or_else(out)
    }

    /// The node that is to write what is wanted, if it is one that had its rank in that round.
    pub(crate) fn node_to_write(&self, wanted: &Wanted) -> Option<&TrackedNode> {
        let ExpectedWriter::Node(rank) = wanted.writer else { return None };
        self.node_at(wanted.round.unwrap_or(self.round.number), rank)
    }

    /// The names of the nodes that are there, and of others that have come as such.
    pub(crate) fn names_there(&self) -> HashSet<&str> {
        let claim = self.nodes().chain(self.those(Membership::Rival));
        let there = claim.filter(|node| node.is_there()).chain(self.taken_out());
        there.map(|node| node.name.as_str()).collect()
    }

    /// The names of those that come in the place of a lost node of the round. A complete round of the c10d
    /// backend gives nobody a place: who has come again waits for the next one, or beside it.
    pub(crate) fn names_again(&self) -> HashSet<&str> {
        if self.kind != RunKind::C10d || self.round.completed.is_none() {
            return self.names_there();
        }
        self.left_over(Membership::WaitList).map(|node| node.name.as_str()).collect()
    }

    /// The nodes of the round that are lost and have not come again.
    pub(crate) fn lost(&self) -> impl Iterator<Item = &TrackedNode> {
        let again = self.names_again();
        // Others take a dead one out of the state after a while.
        let out = self.those(Membership::TakenOut).filter(|node| node.round == self.round.number);
        let all = self.participants().chain(out);
        all.filter(move |node| node.is_lost() && !again.contains(node.name.as_str()))
    }

    /// The nodes of the round as torch counts them: those that have died, too.
    pub(crate) fn members(&self) -> u32 {
        count(self.participants().count()).saturating_add(self.round.let_go)
    }

    /// c10d: nodes that wait for the round after this one, which is complete. They are there, so none of them
    /// is missing. A native run knows who is on the way.
    pub(crate) fn waiting(&self) -> u32 {
        if self.round.completed.is_none() || self.native.is_some() {
            return 0;
        }
        count(self.left_over(Membership::WaitList).count())
    }

    /// How many nodes go on with the round: c10d's members may have left it for the next one, and wait there.
    pub(crate) fn left(&self) -> u32 {
        let there = self.participants().filter(|node| node.is_there());
        let others = there.chain(self.not_again()).chain(self.taken_out()).count();
        let waits = self.waits_for_next_round();
        // An agent takes itself out of the round in one write, and comes to the wait list with the next.
        let is_of_round = |node: &&TrackedNode| node.round == self.round.number && node.rank.is_some();
        let between = self.those(Membership::Left).filter(|node| node.lingers()).filter(is_of_round);
        let waiting = self.left_over(Membership::WaitList).filter(|node| node.was_member);
        let waiting = waiting.chain(between).filter(|_| waits).count();
        count(others.saturating_add(waiting))
    }

    /// Since when what has happened before is past: all have come or are back, or the run is over.
    pub(crate) fn mended(&self, reason: &Reason) -> Option<Timestamp> {
        let (met, is_error) = (self.world.shown().met, reason.severity == Severity::Error);
        match self.state {
            RunState::Closed => None,
            // The native rendezvous says itself how it ended.
            state if state.is_over() && self.native.is_none() => self.round.over_at,
            _ if !self.has_agents() => met,
            _ => {
                let back = self.round.back.filter(|_| !self.lingering().any(TrackedNode::is_silent));
                let completed = self.round.completed.filter(|_| !is_error || self.lost().next().is_none());
                completed.max(back).max(met.filter(|_| !reason.is_of_nodes()))
            }
        }
    }

    /// Whether one of those who were seen to go has not come again.
    pub(crate) fn still_lacks(&self, seen: &[Evidence]) -> bool {
        let gone = seen.iter().filter(|seen| matches!(seen.seen, Seen::Closed | Seen::Unreachable));
        let closed: Vec<_> = gone.filter_map(|seen| seen.peer).collect();
        let ranks = self.world.meetings.iter().flat_map(Meeting::known).filter(|info| !info.is_live());
        let mut gone = self.lost().filter_map(|node| node.peer).chain(ranks.map(|info| info.peer));
        gone.any(|peer| closed.contains(&peer))
    }

    /// Static: nodes of the attempt before that are there, and have not come to this one.
    pub(crate) fn not_again(&self) -> impl Iterator<Item = &TrackedNode> {
        self.those(Membership::Earlier).filter(|node| node.gone.is_none())
    }

    /// The nodes at this place beside a complete round.
    pub(crate) fn left_over(&self, membership: Membership) -> impl Iterator<Item = &TrackedNode> {
        self.those(membership).filter(|node| node.is_there())
    }

    /// Members have left the complete round for the next one. torch's agents do so all together.
    fn waits_for_next_round(&self) -> bool {
        self.waiting() > 0 && self.round.group.is_some_and(|group| self.members() < group)
    }

    /// Whether there is something to say of its processes: those of a closed run go on until they have left.
    pub(crate) fn goes_on(&self) -> bool {
        !self.state.is_over() || self.state == RunState::Closed && self.joined() > 0
    }

    pub(crate) fn has_agents(&self) -> bool {
        self.kind != RunKind::Env
    }

    /// c10d and static: whether a rank that comes from this address may be one of its workers. Agents start
    /// theirs beside themselves, once a round is complete. The server's own host has more than one address,
    /// and so has one that speaks IPv4 and IPv6.
    pub(crate) fn may_have_worker_at(&self, addr: IpAddr) -> bool {
        // Static agents before torch 2.4 show no role.
        let shows = self.has_state || !self.round.roles.is_empty() && self.round.assigned.is_empty();
        let first_gathers = shows && self.round.number == 0 && self.round.completed.is_none();
        let tells = |host: &IpAddr| host.is_ipv4() == addr.is_ipv4() && !host.is_loopback();
        let is_apart = self.hosts.len() < MOST_NODES
            && !addr.is_loopback()
            && self.hosts.iter().all(tells)
            && !self.hosts.contains(&addr);
        !first_gathers && !is_apart
    }

    /// What is known of those who have not come since it began.
    pub(crate) fn unseen(&self) -> Sighting {
        match (self.life.had_met_before, self.world.attempt_ended) {
            (Some(restarted), _) => Sighting::at(Presence::NotBack, restarted),
            (None, Some(ended)) => Sighting::at(Presence::NotAgain, ended),
            (None, None) => Presence::NeverSeen.into(),
        }
    }

    /// How a rank has gone, if not with the attempt before this one.
    pub(crate) fn gone_as(&self, rank: &RankInfo) -> Option<Sighting> {
        rank.gone_as().filter(|_| self.world.attempt_ended.is_none_or(|ended| rank.gone > Some(ended)))
    }

    /// Whether no process of it is connected, as far as is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.agents.is_empty() && self.world.connected.is_empty() && self.native.is_none()
    }

    /// A rank of a meeting, for people: with its host, or else its place on the node that it was given to.
    pub(crate) fn rank_label_in(&self, meeting: &Meeting, rank: u32) -> String {
        if let Some(known) = self.world.holder(meeting, rank) {
            return known.label(rank);
        }
        let Some((node, ranks)) = self.assigned_with(rank) else { return format!("rank {rank}") };
        let name = self.node_at(self.round.number, node).map(TrackedNode::told);
        let name = name.unwrap_or_else(|| format!("node {node}"));
        format!("rank {rank} (local rank {} on {name})", rank.saturating_sub(ranks.base))
    }

    /// A process that has told no rank, for people: on its node, with the ranks that the node was given, if
    /// no other node of the round has its address.
    pub(crate) fn process_label(&self, process: &Evidence) -> String {
        let who = process.process();
        let node = who.and_then(|(ip, _)| self.only_node_at(ip));
        let name = match (node, process.pid) {
            (Some(node), Some(pid)) => format!("process {pid} on {}", node.name),
            _ => process.who.clone(),
        };
        if who.is_some() && self.world.nccl_root.as_ref().is_some_and(|root| root.wrote.process() == who) {
            return format!("rank 0 ({name})");
        }
        match node.and_then(|node| self.ranks_of(node.rank?)).filter(|ranks| !ranks.is_empty()) {
            None => name,
            Some(ranks) => match (ranks.start, ranks.end.saturating_sub(1), ranks.len()) {
                (rank, _, 1) => format!("{name} (rank {rank})"),
                (first, last, 2) => format!("{name} (rank {first} or {last})"),
                (first, last, _) => format!("{name} (one of ranks {first}-{last})"),
            },
        }
    }

    /// The writer of the state, as a node where it is one.
    pub(crate) fn name_of(&self, conn: ConnId, wrote: &Evidence) -> String {
        self.node_of(conn).map_or_else(|| wrote.who.clone(), TrackedNode::label)
    }

    /// The address of a node of the round, if no other one has it.
    pub(crate) fn address_of(&self, node: &TrackedNode) -> Option<IpAddr> {
        let ip = node.peer?.ip();
        self.only_node_at(ip).map(|_| ip)
    }

    /// The node of the round with this address, if no other one has it.
    fn only_node_at(&self, ip: IpAddr) -> Option<&TrackedNode> {
        let is_at = |node: &&TrackedNode| node.peer.is_some_and(|peer| peer.ip() == ip);
        let mut nodes = self.participants().chain(self.taken_out()).filter(is_at);
        nodes.next().filter(|_| nodes.next().is_none())
    }

    /// The node rank of the node that was given this rank, with its ranks.
    fn assigned_with(&self, rank: u32) -> Option<(u32, AssignedRanks)> {
        let of_node = self.round.assigned.iter().filter(|(_, ranks)| ranks.base <= rank);
        let (&node, &ranks) = of_node.max_by_key(|(_, ranks)| ranks.base)?;
        (rank < ranks.world_size).then_some((node, ranks))
    }

    /// How many ranks the agents gave their workers.
    pub(crate) fn world_size(&self) -> Option<u32> {
        self.round.assigned.values().map(|ranks| ranks.world_size).next()
    }

    /// The ranks that this node was given.
    pub(crate) fn ranks_of(&self, node: u32) -> Option<Range<u32>> {
        let AssignedRanks { base, world_size } = *self.round.assigned.get(&node)?;
        let bases = self.round.assigned.values().map(|ranks| ranks.base);
        Some(base..bases.filter(|&next| next > base).min().unwrap_or(world_size))
    }

    /// The node that was given this rank.
    pub(crate) fn node_of_worker(&self, rank: u32) -> Option<&TrackedNode> {
        self.node_at(self.round.number, self.assigned_with(rank)?.0)
    }

    pub(crate) fn node_of(&self, conn: ConnId) -> Option<&TrackedNode> {
        let is_it = |node: &&TrackedNode| {
            node.conn == Some(conn) && !node.is_rival() && (node.is_listed() || node.is_there())
        };
        self.life.nodes.iter().find(is_it)
    }

    /// A node is silent when nothing has come of it for so long, if that is known.
    pub(crate) fn late_after(&self) -> Option<Duration> {
        let beat = self.life.beat.filter(|_| self.kind == RunKind::C10d)?;
        Some(LATEST.max(beat.saturating_mul(LATE)))
    }

    /// Nodes of which no heartbeat has come for so long.
    pub(crate) fn late_nodes(&self, now: Timestamp) -> impl Iterator<Item = &TrackedNode> {
        let late = self.late_after();
        let is_late =
            move |node: &&TrackedNode| late.is_some_and(|late| now.since(node.last_heartbeat) >= late);
        self.participants().filter(is_late)
    }

    pub(crate) fn node_of_rank(&self, rank: u32) -> Option<&TrackedNode> {
        self.participants().find(|node| node.rank == Some(rank))
    }

    /// How many nodes the exit barrier is for. Some of them may have finished and been taken out of the state
    /// before a restarted server read it; they had told their roles.
    pub(crate) fn exit_size(&self) -> Option<u32> {
        let is_of_before = self.round.is_of_before && self.kind == RunKind::C10d;
        let roles = if is_of_before { count(self.round.roles.len()) } else { 0 };
        self.round.group.map(|group| group.max(roles))
    }

    /// The nodes of the round that have not finished, and were heard of since a restart of the server.
    pub(crate) fn still_running(&self) -> impl Iterator<Item = &TrackedNode> {
        let is_heard = |node: &TrackedNode| node.conn.is_some() || !self.round.is_of_before;
        let runs = move |node: &&TrackedNode| !node.finished && node.gone.is_none() && is_heard(node);
        self.participants().filter(runs).chain(self.taken_out())
    }

    /// The number of nodes expected, with what the traffic shows.
    pub(crate) fn expected(&self, plan: &Plan) -> Option<Expected> {
        if !self.has_agents() {
            return None;
        }
        if let Some(native) = &self.native {
            return Some(native.expected);
        }
        let exactly = |n: Option<u32>, source| n.map(|n| Expected { min: n, max: n, source });
        // In the last call there may be more than there were.
        let is_enough = |&size: &u32| self.round.deadline.is_none() || size >= self.members();
        plan.expected()
            .or_else(|| exactly(self.round.role_nodes, ExpectedFrom::RoleExchange))
            .or_else(|| exactly(self.round.group, ExpectedFrom::RoundComplete))
            .or_else(|| exactly(self.life.earlier_size.filter(is_enough), ExpectedFrom::EarlierRound))
    }

    /// The state of the run now.
    pub(crate) fn state_now(&self, now: Timestamp) -> RunState {
        const WITHOUT_EXCHANGE: Duration = Duration::from_secs(10);
        if let Some(native) = &self.native {
            let are_exiting = native.state == RunState::Running && !self.round.exit.is_empty();
            return if are_exiting { RunState::Exiting } else { native.state };
        }
        let settled = |at: Option<Timestamp>| at.is_some_and(|at| now.since(at) >= SETTLE);
        let (round, world) = (&self.round, &self.world);
        if round.exit_done.is_some() {
            return RunState::Finished;
        }
        if round.closed.is_some() {
            return RunState::Closed;
        }
        if !self.has_agents() {
            let have_met = world.shown().met.is_some() || world.meets_otherwise;
            return match settled(world.ended) {
                true if have_met || world.is_of_before => RunState::Ended,
                true => RunState::Gone,
                false if have_met => RunState::Running,
                false => RunState::Joining,
            };
        }
        if self.agents.is_empty() && (self.life.ended_with_server || settled(self.life.all_gone)) {
            return RunState::Gone;
        }
        if !round.exit.is_empty() {
            return RunState::Exiting;
        }
        let Some(completed) = round.completed else {
            return if round.deadline.is_some() { RunState::LastCall } else { RunState::Joining };
        };
        if self.waits_for_next_round() {
            return RunState::Restarting;
        }
        let goes_on = round.roles.is_empty() && !round.is_awaited;
        let is_late = || now.since(completed.max(self.known_since)) >= WITHOUT_EXCHANGE;
        let exchanged = !round.assigned.is_empty() || goes_on && is_late();
        if exchanged { RunState::Running } else { RunState::Exchanging }
    }
}

/// What changes it, beside its traffic.
impl TrackedRun {
    pub(crate) fn new(key: RunKey, kind: RunKind, now: Timestamp) -> Self {
        let (first_seen, known_since, state_since) = (now, now, now);
        Self { key, kind, version: 1, first_seen, known_since, state_since, ..Self::default() }
    }

    /// All that is known of it is of before the server was restarted: there is nothing to report.
    pub(crate) fn is_of_before(&mut self, at: Timestamp) {
        self.round.is_of_before = true;
        self.restored = Some(at);
        // Its nodes were read all at once: nobody knows who of them came last.
        self.round.filled_by = None;
        // Any of the run's agents stood for the writer of its state: which node is whose, is found again.
        if self.kind == RunKind::C10d {
            self.life.nodes.iter_mut().filter(|node| node.gone.is_none()).for_each(|node| node.conn = None);
            // When their heartbeats came is not known, so nothing can be said of their clocks.
            self.life.nodes.iter_mut().for_each(|node| (node.asks_not_for, node.clock) = (None, None));
        }
        self.settle_static(at);
        self.check_ranks();
        self.life.ended_with_server = self.is_empty();
        if self.round.exit_done.is_some() {
            self.round.exit.clone_from(&self.agents);
            self.round.exit_since = self.round.exit_done;
            let members =
                self.life.nodes.iter_mut().filter(|node| node.membership == Membership::Participant);
            members.for_each(|node| node.finished = true);
        }
        self.life.dying.clear();
        self.world.meetings.iter_mut().for_each(|meeting| meeting.lost.clear());
        self.world.is_of_before = !self.world.shown().is_empty();
        self.told_start = self.round.started;
        self.findings.clear();
        self.new_moments.clear();
        self.timeline.clear();
        (self.state, self.state_since) = (self.state_now(at), at);
        if self.state.is_over() {
            self.round.over_at.get_or_insert(at);
        }
    }

    pub(crate) fn touch(&mut self) {
        self.version = self.version.saturating_add(1);
    }

    /// Something to report about it, if there is.
    pub(crate) fn found(&mut self, finding: impl Into<Option<Finding>>) {
        const MOST: usize = 256;
        let Some(mut finding) = finding.into() else { return };
        // The next round may have begun when it is told.
        finding.round.get_or_insert(self.round.number);
        let is_it = |it: &Finding| {
            (&it.reason, &it.about, it.round) == (&finding.reason, &finding.about, finding.round)
        };
        if self.findings.len() < MOST && !self.findings.iter().any(is_it) {
            self.findings.push(finding);
        }
        self.touch();
    }

    /// These of its nodes have joined the round, in this order.
    pub(crate) fn tell_joins(&mut self, joined: &[usize]) {
        let before = self.joined().saturating_sub(count(joined.len()));
        for (n, &at) in (1..).zip(joined) {
            let node = &self.life.nodes[at];
            let after = Elapsed(node.joined.since(self.round.started.unwrap_or(node.joined)));
            let nodes = Place::Node.count(before.saturating_add(n));
            let text = format!("{} joined round {} ({nodes}, +{after})", node.told(), self.round.number);
            self.moment(node.joined, "node_joined", text);
        }
    }

    pub(crate) fn moment(&mut self, at: Timestamp, code: &str, text: String) {
        if self.new_moments.len() < MOST_MOMENTS {
            self.new_moments.push(TimelineEntry { at, code: code.to_owned(), text: text.clone() });
        }
        self.remember(at, code, text);
        self.touch();
    }

    pub(crate) fn remember(&mut self, at: Timestamp, code: &str, text: String) {
        if self.timeline.len() == MOST_MOMENTS {
            self.timeline.pop_front();
        }
        self.timeline.push_back(TimelineEntry { at, code: code.to_owned(), text });
    }

    /// Gives the nodes the names of their pods.
    pub(crate) fn name_nodes(&mut self, plan: &Plan) {
        if self.plan_version == plan.version || self.native.is_some() {
            return;
        }
        self.plan_version = plan.version;
        for at in 0..self.life.nodes.len() {
            // Another may have the name of one that died: that one keeps it.
            if self.life.nodes[at].is_dead() || !self.life.nodes[at].is_listed() {
                continue;
            }
            self.life.nodes[at].name = self.name_for(&self.life.nodes[at].id, plan);
        }
        self.touch();
    }

    pub(crate) fn name_for(&self, id: &NodeId, plan: &Plan) -> String {
        const FEW: usize = 2048;
        let (pod, own) = match id {
            NodeId::Desc(desc) => (plan.pod_at(&desc.addr), short(&desc.addr).to_owned()),
            NodeId::Rank(rank) => (plan.pod_of_rank(*rank), format!("node {rank}")),
            NodeId::Native { info, .. } => (None, info.name.to_string()),
        };
        let name = pod.map_or(own, |pod| pod.pod.clone());
        // Two agents on one host. This does not occur with so many nodes that the search would take long.
        let is_taken = self.life.nodes.len() < FEW
            && self.nodes().any(|other| other.id != *id && other.name == name && other.is_there());
        match id {
            NodeId::Desc(desc) if is_taken => format!("{name}_{}", desc.pid),
            _ => name,
        }
    }

    /// Begins a round: what belonged to the one before is forgotten, but for the names.
    /// Returns what was.
    pub(crate) fn begin_round(&mut self, round: u64) -> RoundFacts {
        // Some of a complete round may have left it before a restarted server saw it.
        let group = self.round.group.filter(|_| self.kind != RunKind::C10d || !self.round.is_of_before);
        self.life.earlier_size = group.or(self.life.earlier_size);
        self.life.earlier_completed = self.round.completed.or(self.life.earlier_completed);
        self.world.begin_round();
        std::mem::replace(&mut self.round, RoundFacts { number: round, ..RoundFacts::default() })
    }

    /// Begins anew after the run was over or its state was dropped, with this round.
    pub(crate) fn restart(&mut self, round: u64) {
        let before =
            std::mem::replace(&mut self.round, RoundFacts { number: round, ..RoundFacts::default() });
        let had_met = before.completed.is_some() || self.world.shown().met.is_some();
        self.world.begin_anew();
        // Ranks have all ended, whether they had met or not.
        let is_over = before.exit_done.or(before.over_at).filter(|_| had_met || !self.has_agents());
        self.world.attempt_ended = is_over;
        self.life = LifeFacts::default();
        self.has_begun_anew = true;
        self.touch();
    }

    /// Finds the nodes of before a restart that none of the connected agents can be, given whether one of
    /// those may have a process id.
    pub(crate) fn have_agents(&mut self, is_there: impl Fn(Option<u32>) -> bool) {
        let mut has_changed = false;
        for node in self.life.nodes.iter_mut().filter(|node| node.is_listed()) {
            let is_of_before = self.restored.is_some_and(|at| node.joined <= at);
            let not_back = is_of_before && node.conn.is_none() && !is_there(node.pid);
            has_changed |= std::mem::replace(&mut node.not_back, not_back) != not_back;
        }
        if has_changed {
            self.touch();
        }
    }

    /// Takes `conn` for the one node with its process id that has no connection yet.
    pub(crate) fn match_by_pid(&mut self, conn: ConnId, pid: Option<u32>, peer: Option<SocketAddr>) {
        let Some(pid) = pid else { return };
        let is_it =
            |node: &&mut TrackedNode| node.is_listed() && node.conn.is_none() && node.pid == Some(pid);
        let mut same = self.life.nodes.iter_mut().filter(is_it);
        if let (Some(node), None) = (same.next(), same.next()) {
            node.conn = Some(conn);
            node.peer = peer.or(node.peer);
        }
    }
}

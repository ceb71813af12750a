//! What was seen of a process that others wait for, and who else is not there.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::facts::{Client, Meeting, Membership, Passed, Plan, RankInfo, TrackedNode, TrackedRun, Waiting};
use crate::identity::processes::Graph;
use crate::reason::{But, NODE, Names, Place, Presence, Sighting, Waits, if_some};
use rallypoint_api::RunKind;
use rallypoint_protocol::ids::{ConnId, Nodes, ShownKey, Timestamp};
use rallypoint_protocol::keys::{ExpectedWriter, KeyPattern, RendezvousPart, Wanted, classify, wanted};

/// Waits are told once a second, when they have lasted for one.
const UNTOLD: Duration = Duration::from_millis(2500);

/// The process that is to write a key.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Found {
    There(ConnId),
    /// Its connection closed then.
    Gone(Timestamp),
}

impl Graph<'_> {
    /// The processes of these connections, with what they wait for: that may be something else.
    fn processes_of<'c>(&self, clients: impl IntoIterator<Item = &'c Client>) -> Names {
        let processes = clients.into_iter().map(|client| (client.label(), client));
        Names::of_some(processes.collect::<BTreeMap<_, _>>(), |(label, client)| {
            let waits = self.store.waits.values().filter(|it| it.origin() == client.origin());
            let key = waits.filter_map(|wait| wait.view.missing.first()).min();
            let waits = if_some(key, |key| format!(" (waits for `{}`)", ShownKey(key)));
            format!("{label}{}{waits}", Self::group_of(client))
        })
    }

    /// A writer, if it is known which process that is.
    pub(crate) fn find(&self, run: Option<&TrackedRun>, asking: ConnId, wanted: &Wanted) -> Option<Found> {
        let run = run?;
        let of_rank = |rank: &RankInfo| (Some(rank.conn), rank.gone);
        let meeting = || self.meeting(asking, run);
        let (conn, gone) = match &wanted.writer {
            ExpectedWriter::Node(_) => run.node_to_write(wanted).map(|node| (node.conn, node.gone)),
            ExpectedWriter::Rank(rank) => run.world.published(meeting(), *rank).map(of_rank),
            ExpectedWriter::NcclRankZero => {
                let root = || run.world.nccl_root.as_ref().map(|root| (Some(root.conn), root.gone));
                // Where some groups use gloo, it has told its rank.
                run.world.holder(meeting(), 0).map(of_rank).or_else(root)
            }
            _ => None,
        }?;
        // Which connection a node had that is gone may never have been known.
        gone.map(Found::Gone).or(conn.map(Found::There))
    }

    /// Whether what is wanted had been written, and was dropped when the store was reset.
    pub(crate) fn was_dropped(&self, run: &TrackedRun, asking: ConnId, wanted: &Wanted, key: &[u8]) -> bool {
        let round = &run.round;
        let Some(reset) = round.reset else { return false };
        match wanted.writer {
            ExpectedWriter::Node(rank) if wanted.is_role => {
                round.roles.contains(&rank) && run.node_of_rank(rank).is_some_and(|node| node.joined <= reset)
            }
            ExpectedWriter::Node(_) => wanted.is_master || !round.assigned.is_empty(),
            ExpectedWriter::Rank(rank) => {
                self.meeting(asking, run).rank(rank).is_some_and(|info| info.joined <= reset)
            }
            ExpectedWriter::NcclRankZero => run.world.nccl_root.as_ref().is_some_and(|root| {
                let wrote_it =
                    root.wrote.key.as_ref().is_some_and(|wrote| *wrote == ShownKey(key).to_string());
                wrote_it && root.wrote.at <= reset
            }),
            _ => true,
        }
    }

    /// A rank that has published, as one that has made its groups more or less often than who asks for `key`.
    pub(crate) fn made_otherwise(&self, run: &TrackedRun, asking: ConnId, key: &[u8]) -> Option<But> {
        let Some(KeyPattern::Address(address)) = classify(key) else { return None };
        let (asked, rank) = (address.made_before()?, self.meeting(asking, run).rank(address.member)?);
        let made = rank.made_before.filter(|made| *made != asked)?;
        Some(But::MadeOtherwise { made: made.saturating_add(1), asked: asked.saturating_add(1) })
    }

    /// Whether a connection is a copy of a static node, which has met with the others and goes on.
    pub(crate) fn is_copy(conn: ConnId, run: Option<&TrackedRun>) -> bool {
        let met = run.filter(|run| run.round.completed.is_some());
        met.is_some_and(|run| run.those(Membership::Rival).any(|rival| rival.conn == Some(conn)))
    }

    /// A process behind a link that is away: it may be dead, whatever its relay holds.
    pub(crate) fn away_from(&self, peer: Option<SocketAddr>) -> Option<Sighting> {
        Some(Sighting::at(Presence::Away, self.jobs.links.away_since(peer?)?))
    }

    /// A process that is there, and does not wait here, as far as is known: it may have begun to just now.
    pub(crate) fn idle(&self, conn: ConnId) -> Sighting {
        self.idle.borrow_mut().insert(conn);
        let process = |conn: &ConnId| self.store.clients.get(conn).and_then(Client::process);
        let its_own = process(&conn);
        // Nothing has been asked for since the server was restarted.
        let heard = self.store.heard.iter().filter(|(_, at)| **at > Timestamp::default());
        let of_process =
            heard.filter(|(other, _)| **other == conn || its_own.is_some() && process(other) == its_own);
        let seen = Sighting::idle(of_process.map(|(_, at)| *at).max());
        let is_untold = !self.store.heard.contains_key(&conn)
            || seen.at.is_some_and(|asked| self.now.since(asked) < UNTOLD);
        if is_untold { Sighting { waits: None, ..seen } } else { seen }
    }

    /// What the process with this connection does.
    pub(crate) fn doing(&self, conn: ConnId, run: Option<&TrackedRun>) -> Sighting {
        let client = self.store.clients.get(&conn);
        if let Some(away) = self.away_from(client.map(|client| client.peer)) {
            return away;
        }
        if let Some(key) = self.wait_of(conn, run).and_then(|wait| wait.view.missing.first()) {
            return Sighting::connected(None, Waits::ForKey(ShownKey(key).to_string()));
        }
        let Some(client) = client else { return self.idle(conn) };
        let is_back = self.jobs.links.back_for(client.peer, self.now).is_some_and(|since| since < UNTOLD);
        let waits = if self.now.since(client.since) < UNTOLD || is_back {
            Waits::NotKnownYet
        } else if Self::has_alike(client, run) {
            // A wait on another connection may be its own.
            Waits::Unclear
        } else if self.store.waited_just_now(client, self.now) {
            Waits::NotKnownYet
        } else if let Some((ago, _)) = self.store.answered(conn, self.now) {
            Waits::Answered(ago)
        } else {
            return self.idle(conn);
        };
        Sighting { waits: Some(waits), ..self.idle(conn) }
    }

    /// A static node waits for its ranks, and the node with rank 0 has handed out those of others only.
    pub(crate) fn without_ranks(run: &TrackedRun, key: &[u8]) -> Option<But> {
        let (.., RendezvousPart::AssignedRanks(node)) = classify(key)?.of_rendezvous()? else { return None };
        let of_static = run.round.role_nodes.filter(|_| run.kind == RunKind::Static);
        let all = of_static.filter(|&nodes| node >= nodes)?;
        Some(But::NotCounted { by: "agents", of: Place::Node, all })
    }

    /// A node that is there, unless its link is away or nothing is heard from it.
    fn there(&self, node: &TrackedNode) -> Sighting {
        if node.is_unheard {
            return Sighting::at(Presence::Silent, node.last_heartbeat);
        }
        let idle =
            || node.conn.map_or_else(|| Sighting::idle(Some(node.last_heartbeat)), |conn| self.idle(conn));
        self.away_from(node.peer).unwrap_or_else(idle)
    }

    /// A node whose connection is not known. c10d gives a rank only to nodes that have come.
    pub(crate) fn missed_node(&self, run: &TrackedRun, rank: u32) -> Sighting {
        if let Some(node) = run.not_again().find(|node| node.rank == Some(rank)) {
            return self.there(node).but(But::MetBefore);
        }
        let node = run.node_of_rank(rank);
        if let (Some(node), Some(_), false) = (node, run.native.as_ref(), run.round.roles.contains(&rank)) {
            return self.there(node);
        }
        // Static: it ended, and the others have begun another attempt since.
        let ended = run.nodes().chain(run.former()).filter(|node| node.rank == Some(rank) && node.is_dead());
        let ended = ended.max_by_key(|node| node.gone).filter(|_| node.is_none());
        if let Some(gone) = ended.and_then(TrackedNode::gone_as) {
            // The one that takes its place may be there already.
            let may_be_there = run.kind == RunKind::Static && gone.presence == Presence::Closed;
            return if may_be_there { gone.or_one_of(self.may_be_nodes(run)) } else { gone };
        }
        match run.kind {
            _ if node.is_some() => Presence::Unknown.into(),
            RunKind::C10d if run.round.completed.is_some() => Presence::Left.into(),
            RunKind::C10d => Presence::Unknown.into(),
            // Other backends than the static one give their nodes other ranks than their pods have.
            kind => Some(self.plan(run))
                .filter(|_| kind == RunKind::Static)
                .and_then(|plan| self.announced(&plan, rank))
                .unwrap_or_else(|| run.unseen().or_one_of(self.may_be_nodes(run))),
        }
    }

    /// Rank 0, which is to publish an NCCL id: nobody else tells a rank. `gone`: when the last one ended.
    pub(crate) fn missed_nccl_root(&self, run: &TrackedRun, gone: Option<Timestamp>) -> Sighting {
        let is_cut_off = run.world.nccl_root.as_ref().is_some_and(|root| root.is_cut_off);
        let gone = gone.map(|at| Sighting::at(Presence::gone(is_cut_off), at));
        let host = run.node_of_worker(0).and_then(|node| run.address_of(node));
        let asks_for_it = |wait: &&Waiting| {
            let key = wait.view.missing.first();
            key.is_some_and(|key| wanted(key).writer == ExpectedWriter::NcclRankZero)
        };
        // Whether all processes count themselves, as with `env://`: then a connection that has not is no
        // other rank's.
        let mut count_themselves = true;
        let mut asking = HashSet::new();
        for wait in self.store.waits.values().filter(asks_for_it) {
            let client = self.store.clients.get(&wait.view.conn);
            count_themselves &= client.is_some_and(|client| client.has_counted_itself);
            asking.insert(wait.origin());
        }
        let may_be = |(conn, client): &(&ConnId, &Client)| {
            !client.is_member()
                && client.run.as_ref().is_none_or(|of| of == &run.key)
                && host.is_none_or(|host| host == client.peer.ip())
                && !self.store.waits.get(conn).as_ref().is_some_and(asks_for_it)
                // Who has come for the id that was there is another rank.
                && !(gone.is_some() && client.uses_group)
        };
        let others = self.store.clients.iter().filter(may_be).map(|(_, client)| client);
        let (alike, others): (Vec<_>, Vec<_>) = others.partition(|client| asking.contains(&client.origin()));
        let candidates = self.processes_of(others);
        match gone {
            Some(gone) => gone.or_one_of(candidates),
            None if !candidates.is_empty() => run.unseen().or_one_of(candidates),
            // A second store of a process that asks, or another one, as in containers with one network.
            None if alike.iter().any(|client| client.has_counted_itself || !count_themselves) => {
                Presence::Unknown.into()
            }
            None => self.fate_of_node(run, 0).unwrap_or_else(|| run.unseen()),
        }
    }

    /// What is known of a rank that has not come by what became of its node.
    fn fate_of_node(&self, run: &TrackedRun, rank: u32) -> Option<Sighting> {
        let node = run.node_of_worker(rank);
        let gone = node.filter(|node| node.is_dead()).and_then(TrackedNode::gone_as);
        let finished = || node.filter(|node| node.finished).map(|_| Presence::Finished.into());
        let taken_out = || {
            let node = node.filter(|node| node.is_silent())?;
            let taken_out = Sighting::at(Presence::TakenOut, node.last_heartbeat);
            Some(self.away_from(node.peer).unwrap_or(taken_out))
        };
        let of_node = gone.or_else(finished).or_else(taken_out)?;
        Some(Sighting::from(Presence::NeverSeen).behind(NODE, of_node))
    }

    /// Processes that have told no rank, and may be one of those that are missing.
    pub(crate) fn may_be_ranks(&self, run: &TrackedRun, meeting: &Meeting) -> Names {
        self.processes_of(self.may_be(run, meeting))
    }

    /// As `may_be_ranks`, for nodes: a process that has used the keys of a group is a worker.
    fn may_be_nodes(&self, run: &TrackedRun) -> Names {
        self.processes_of(self.may_be(run, run.world.shown()).into_iter().filter(|client| !client.uses_group))
    }

    /// A rank that has not come to this meeting: it may have been in the last one.
    pub(crate) fn missed(&self, run: &TrackedRun, meeting: &Meeting, rank: u32) -> Sighting {
        let before = run.world.holder(meeting, rank);
        let Some(before) = before.filter(|before| before.gone.is_none()) else {
            if let (None, Some(met)) = (before, run.world.met_elsewhere(meeting, rank)) {
                let seen = met.gone_as().unwrap_or_else(|| self.doing(met.conn, Some(run)));
                return seen.but(But::MetBefore);
            }
            let gone = before.and_then(|before| run.gone_as(before));
            let of_host = || self.fate_of_node(run, rank).or_else(|| self.announced_rank(run, meeting, rank));
            let by_pods = || Some((self.plan(run).world_size().filter(|_| !run.has_agents())?, "pods"));
            let all = run.world_size().map(|all| (all, "agents")).or_else(by_pods);
            if let (None, Some((all, by))) = (&gone, all.filter(|(all, _)| rank >= *all)) {
                return run.unseen().but(But::NotCounted { by, of: Place::Rank, all });
            }
            let seen = gone.or_else(of_host).unwrap_or_else(|| run.unseen());
            let host = seen.behind.as_ref().map(|(_, host)| host.presence);
            // None of the processes that are there can be of a pod that is gone.
            let is_gone = matches!(host, Some(Presence::Left | Presence::Unreachable));
            let candidates = if is_gone { Names::default() } else { self.may_be_ranks(run, meeting) };
            return seen.or_one_of(candidates);
        };
        let seen = self.doing(before.conn, Some(run));
        if before.is_dropped() {
            let replaced = Names::of(meeting.replaced().map(|rank| run.rank_label_in(meeting, rank)));
            return seen.but(But::Dropped { replaced });
        }
        // It met with the processes of before, of which another now has the place of at least one.
        if meeting.replaced().next().is_none() { seen } else { seen.but(But::MetBefore) }
    }

    /// All ranks of which nobody is there, but for one that others wait for: those that have ended, and those
    /// that have not come.
    pub(crate) fn absent(&self, run: &TrackedRun, meeting: &Meeting, asked: Option<u32>) -> (Names, Names) {
        let others = run.world.absent(meeting).filter(|rank| Some(*rank) != asked);
        let others = others.map(|rank| {
            let before = run.world.holder(meeting, rank);
            (rank, before.and_then(|before| run.gone_as(before)))
        });
        let (ended, unseen): (Vec<_>, Vec<_>) = others.partition(|(_, gone)| gone.is_some());
        let label = |rank| run.rank_label_in(meeting, rank);
        let with_pod = |(rank, _)| {
            let pod = self.announced_rank(run, meeting, rank).and_then(|pod| pod.behind);
            match pod.filter(|(_, pod)| pod.presence != Presence::Announced) {
                Some((what, pod)) => format!("{} ({what}: {})", label(rank), pod.says(self.now)),
                None => label(rank),
            }
        };
        let ended = ended.into_iter().filter_map(|(rank, gone)| Some((rank, gone?)));
        let ended = self.seen(ended, |(rank, gone)| (label(rank), gone));
        (ended, Names::of_some(unseen, with_pod))
    }

    /// The nodes or ranks except `writer` that are there, and go on with the attempt or the group before.
    pub(crate) fn staying(&self, run: &TrackedRun, meeting: &Meeting, writer: &ExpectedWriter) -> Names {
        match writer {
            ExpectedWriter::Node(rank) => {
                let others = run.not_again().filter(|node| node.rank != Some(*rank));
                Names::of_some(others.filter(|node| self.away_from(node.peer).is_none()), TrackedNode::label)
            }
            ExpectedWriter::Rank(rank) => {
                let is_away = |other: &u32| {
                    let peer = run.world.holder(meeting, *other).map(|info| info.peer);
                    self.away_from(peer).is_some()
                };
                let others = meeting.not_again().filter(|other| other != rank && !is_away(other));
                Names::of_some(others, |other| run.rank_label_in(meeting, other))
            }
            _ => Names::default(),
        }
    }

    /// Ranks in other stores that may be those that this run misses: they wait there for those that are here,
    /// and there are to be as many.
    pub(crate) fn elsewhere(&self, run: &TrackedRun, here: &Meeting) -> Names {
        let is_missed = |meeting: &Meeting, rank: u32| meeting.holder(rank).is_none();
        let complements = |other: &Meeting| {
            other.size == here.size
                && other.met.is_none()
                && other.ranks().all(|(rank, _)| is_missed(here, rank))
                && here.ranks().all(|(rank, _)| is_missed(other, rank))
        };
        let others = self.jobs.runs.values().filter(|other| {
            other.key.port() != run.key.port() && !other.has_agents() && !other.state.is_over()
        });
        let others = others.filter(|_| here.size.is_some());
        Names::of(others.flat_map(|other| {
            let port = other.key.port().unwrap_or_default();
            let meeting = other.world.shown();
            let live = meeting.ranks().filter(|(_, info)| info.is_live() && complements(meeting));
            live.map(move |(rank, _)| format!("{} (port {port})", other.rank_label_in(meeting, rank)))
        }))
    }

    /// Processes that ended without telling their rank while this run came together, or just before.
    pub(crate) fn ended_near(&self, run: &TrackedRun, which: impl Fn(&Passed) -> bool) -> Names {
        self.passed_since(run.round.started.unwrap_or(run.first_seen), which)
    }

    /// Processes that ended without telling who they are since then, or just before, and whose places in
    /// groups no others have taken.
    pub(crate) fn passed_since(&self, began: Timestamp, which: impl Fn(&Passed) -> bool) -> Names {
        const BEFORE: Duration = Duration::from_mins(1);
        let is_back = |process| self.store.clients.values().any(|it| it.process() == Some(process));
        let meetings = || self.jobs.runs.values().flat_map(|run| &run.world.meetings);
        let taken = |(group, rank): &(Box<[u8]>, u32)| {
            let mut published = self.store.clients.values().filter_map(|it| it.published.as_ref());
            published.any(|it| (&it.group, it.rank) == (group, *rank))
        };
        let is_rank = |it| meetings().flat_map(Meeting::known).any(|rank| rank.process() == Some(it));
        let near = self.store.passed.iter().filter(|passed| passed.closed.at + BEFORE >= began);
        let ended = near.filter(|passed| !passed.process.is_some_and(|it| is_back(it) || is_rank(it)));
        let ended = ended.filter(|passed| which(passed) && !passed.place.as_ref().is_some_and(taken));
        self.seen(ended, |Passed { closed, .. }| {
            (closed.who.clone(), Sighting::at(Presence::Closed, closed.at))
        })
    }
}

/// The pods behind those that have not come: their announcements, and what their relays did since.
impl Graph<'_> {
    fn plan(&self, run: &TrackedRun) -> Arc<Plan> {
        self.jobs.plans.of(&run.key.name(self.store.owner.as_ref()))
    }

    /// The pod of a rank, if it announced itself and has only this one.
    fn announced_rank(&self, run: &TrackedRun, of: &Meeting, rank: u32) -> Option<Sighting> {
        let plan = self.plan(run);
        let pods = plan.gate().map(|gate| gate.nodes);
        let is_its_own = !run.has_agents() && of.size.map(Nodes::exactly).is_some_and(|it| pods == Some(it));
        if is_its_own { self.announced(&plan, rank) } else { None }
    }

    fn announced(&self, plan: &Plan, rank: u32) -> Option<Sighting> {
        let (pod, seen) = plan.announced(rank)?;
        let since = self.jobs.links.since_announced(plan, pod, seen);
        Some(Sighting::from(Presence::NeverSeen).behind(format!("pod {pod}"), since))
    }
}

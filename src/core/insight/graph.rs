//! The wait graph: who waits for which key, who by pattern must write it, and what that one waits for itself.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use super::links::Links;
use super::reason::{Absence, Awaited, Evidence, Finding, Names, Reason, Whereabouts};
use super::run::{RunKey, TrackedNode, TrackedRun, Withdrawn, World};
use super::watch::{Client, CountedRanks, Passed, StoreWatch, Waiting};
use crate::api::{RunKind, Seen};
use crate::core::ids::{ConnId, Elapsed, RunId, ShownKey, Timestamp, count};
use crate::core::protocol::keys::{
    AddressKind, KeyPattern, Leftover, RendezvousPart, below_own_prefix, classify,
};
use crate::core::store::{KeyPast, WaitView};

/// Who must write a key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum ExpectedWriter {
    /// The agent with this node rank.
    Node(u32),
    /// The worker with this rank.
    Rank(u32),
    /// Rank 0 of the group with all ranks, which has told no rank (NCCL).
    NcclRankZero,
    /// A member of a sub-group, or the last to arrive at a barrier.
    Group(String),
    /// The node that arrives last at the exit barrier.
    LastAtExit,
    /// The key does not tell.
    Unknown,
}

/// A missing key, understood.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) run: Option<RunId>,
    /// The round it belongs to, where the key tells.
    pub(super) round: Option<u64>,
    pub(super) writer: ExpectedWriter,
    /// What the key holds, for people.
    pub(super) what: &'static str,
    is_master: bool,
    is_role: bool,
}

/// The connections by which ranks and agents are known, by address and process id. `None` where several are alike.
type Processes = HashMap<(IpAddr, u32), Option<ConnId>>;

/// Tells who must write `key`.
pub(super) fn wanted(key: &[u8]) -> Wanted {
    let none = Wanted {
        run: None,
        round: None,
        writer: ExpectedWriter::Unknown,
        what: "a key",
        is_master: false,
        is_role: false,
    };
    let of_run =
        |run: &[u8], writer, what| Wanted { run: Some(RunId::new(run)), writer, what, ..none.clone() };
    match classify(key) {
        Some(KeyPattern::Rendezvous { run_id, part, round }) => Wanted {
            round: round.map(u64::from),
            ..match part {
                RendezvousPart::State => of_run(run_id, ExpectedWriter::Unknown, "the rendezvous state"),
                RendezvousPart::MasterAddr | RendezvousPart::MasterPort => Wanted {
                    is_master: true,
                    ..of_run(run_id, ExpectedWriter::Node(0), "the address of the workers' store")
                },
                RendezvousPart::RoleInfo(node) => {
                    Wanted { is_role: true, ..of_run(run_id, ExpectedWriter::Node(node), "the role") }
                }
                RendezvousPart::AssignedRanks(_) => {
                    of_run(run_id, ExpectedWriter::Node(0), "the assigned ranks")
                }
                RendezvousPart::ExitBarrierDone { .. } | RendezvousPart::ExitBarrier { .. } => {
                    of_run(run_id, ExpectedWriter::LastAtExit, "the exit barrier")
                }
                RendezvousPart::Other => of_run(run_id, ExpectedWriter::Unknown, "a key of the rendezvous"),
            }
        },
        Some(KeyPattern::Address(address)) => match (address.kind, address.run_id) {
            (AddressKind::RoleInfo, Some(run)) => {
                Wanted { is_role: true, ..of_run(run, ExpectedWriter::Node(address.node_rank()), "the role") }
            }
            (AddressKind::AssignedRanks, Some(run)) => {
                of_run(run, ExpectedWriter::Node(0), "the assigned ranks")
            }
            (AddressKind::NcclId, _) if address.sub_group.is_none() && address.member == 0 => {
                Wanted { writer: ExpectedWriter::NcclRankZero, what: "the NCCL id", ..none }
            }
            (AddressKind::NcclId, _) => {
                let of = address
                    .sub_group
                    .map_or_else(String::new, |name| format!(" of the sub-group {}", ShownKey(name)));
                let writer =
                    ExpectedWriter::Group(format!("root {} of the communicator{of}", address.member));
                Wanted { writer, what: "the NCCL id", ..none }
            }
            (AddressKind::RpcWorker, _) => {
                let name = address.group.rsplit(|&b| b == b'/').next().unwrap_or_default();
                let writer = ExpectedWriter::Group(format!("the rpc worker {}", ShownKey(name)));
                Wanted { writer, what: "the address", ..none }
            }
            _ => match address.sub_group {
                None => Wanted { writer: ExpectedWriter::Rank(address.member), what: "the address", ..none },
                Some(name) => {
                    let name = ShownKey(name);
                    let writer =
                        ExpectedWriter::Group(format!("rank {} of the sub-group {name}", address.member));
                    Wanted { writer, what: "the address", ..none }
                }
            },
        },
        Some(KeyPattern::AttemptLeftover(Leftover::BarrierDone | Leftover::Barrier)) => {
            let last = format!("the last rank to arrive at {}", store_barrier(key));
            Wanted { writer: ExpectedWriter::Group(last), what: BARRIER, ..none }
        }
        Some(KeyPattern::WorkerCount) => Wanted { what: "the first worker", ..none },
        _ => none,
    }
}

impl Wanted {
    /// Whether it belongs to a round that the run has left, so that its ranks are not those of the run's nodes now.
    fn is_of_another_round(&self, run: Option<&TrackedRun>) -> bool {
        self.round.zip(run).is_some_and(|(round, run)| round != run.round().number)
    }
}

/// One wait, followed to its root.
#[derive(Debug, Clone)]
pub(super) struct Traced {
    pub(super) run: Option<RunKey>,
    pub(super) who: String,
    pub(super) writer: Option<String>,
    pub(super) root: Root,
}

/// Where a chain of waits ends.
#[derive(Debug, Clone)]
pub(super) enum Root {
    /// With someone who does not wait here.
    At { writer: ExpectedWriter, what: &'static str, whereabouts: Whereabouts },
    /// Nowhere.
    Cycle { members: Vec<ConnId>, newcomer: Option<ConnId>, rank_zero: Option<ConnId> },
}

/// What a connection may be that has told no rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Silent {
    /// A rank that has not got further.
    MayBeRank,
    /// No rank: all had met while it was there. A script that watches the store, or counts itself there.
    Stranger,
    /// A rank or an agent has its address and process id, and it counted itself besides: as in containers with one
    /// network, where it is another.
    Alike,
    /// Several ranks or agents have its address and process id: it belongs to one of them, or is another.
    Unknown,
}

/// All waits for ranks of which nothing was seen are one explanation.
const NEVER_CAME: &str = "ranks that have not come";
/// Waits that are kept as evidence of one explanation.
const WAITS_SHOWN: usize = 8;
/// Why what was written is not there after a reset.
const RESET: &str = "an operator reset the store while it was there";
/// Why the role of a node that is there is not.
const OVERWRITTEN: &str = "another process wrote it as well, and has gone";

/// What a key of a barrier of `torch.distributed` holds, for people.
const BARRIER: &str = "a barrier";

/// The barrier of `torch.distributed` that this key belongs to: `store_based_barrier_key:NAME:last_worker`.
fn store_barrier(key: &[u8]) -> String {
    const MARK: &[u8] = b"store_based_barrier_key:";
    let at = key.windows(MARK.len()).position(|part| part == MARK);
    let name = at.and_then(|at| key.get(at.saturating_add(MARK.len())..)).unwrap_or_default();
    match name.strip_suffix(b":last_worker").unwrap_or(name) {
        [] => BARRIER.to_owned(),
        name => format!("the barrier `{}`", ShownKey(name)),
    }
}

/// The name of the barrier that a program waits at with this key: a BARRIER, or a barrier of
/// `torch.distributed.elastic.utils.store`, which counts arrivals in `num_members`.
fn barrier_of(key: &[u8], size: Option<i64>) -> Option<String> {
    let name = if size.is_some() { key } else { key.strip_suffix(b"/last_member")? };
    Some(ShownKey(name).to_string())
}

/// The processes of these connections, and where one has several, how many.
fn processes_of<'c>(clients: impl Iterator<Item = &'c Client>) -> Names {
    let mut processes: BTreeMap<String, usize> = BTreeMap::new();
    for client in clients {
        let connections = processes.entry(client.label()).or_default();
        *connections = connections.saturating_add(1);
    }
    Names::of(processes.into_iter().map(|(process, connections)| match connections {
        1 => process,
        _ => format!("{process} ({connections} connections)"),
    }))
}

impl Root {
    /// The rank that it ends with.
    const fn rank(&self) -> Option<u32> {
        match self {
            Self::At { writer: ExpectedWriter::Rank(rank), .. } => Some(*rank),
            _ => None,
        }
    }
}

/// The waits of one store with what is needed to follow them.
pub(super) struct Graph<'i> {
    pub(super) store: &'i StoreWatch,
    pub(super) runs: &'i BTreeMap<RunKey, TrackedRun>,
    links: &'i Links,
    /// Since when this server has not been away.
    awake_since: Timestamp,
    now: Timestamp,
    /// Computed when one of the explanations needs them, for all of them.
    processes: OnceCell<Processes>,
    counted: OnceCell<CountedRanks>,
}

impl<'i> Graph<'i> {
    pub(super) fn new(
        store: &'i StoreWatch,
        runs: &'i BTreeMap<RunKey, TrackedRun>,
        links: &'i Links,
        awake_since: Timestamp,
        now: Timestamp,
    ) -> Self {
        let (processes, counted) = (OnceCell::new(), OnceCell::new());
        Self { store, runs, links, awake_since, now, processes, counted }
    }
}

impl Graph<'_> {
    /// A cycle is reported when each of its waits has lasted this long.
    const CYCLE_AFTER: Duration = Duration::from_secs(2);

    fn run_of(&self, client: Option<&Client>, wanted: &Wanted) -> Option<RunKey> {
        match &wanted.run {
            Some(id) => Some(self.store.key_of(id)),
            None => client?.run.clone(),
        }
    }

    /// The run that a wait belongs to.
    pub(super) fn run_waiting(&self, wait: &WaitView) -> Option<RunKey> {
        self.run_of(self.store.clients.get(&wait.conn), &wanted(wait.missing.first()?))
    }

    /// The agent with node rank 0 waits for the roles of all nodes at once: this shows how many there are.
    pub(super) fn nodes_asked_for(&self, wait: &Waiting) -> Option<(RunKey, u32)> {
        let asks = wanted(wait.view.missing.first()?);
        let nodes = u32::try_from(wait.view.keys).ok().filter(|&nodes| asks.is_role && nodes > 1)?;
        Some((self.run_waiting(&wait.view)?, nodes))
    }

    /// The name of a connection, for people.
    pub(super) fn who(&self, conn: ConnId) -> String {
        let Some(client) = self.store.clients.get(&conn) else { return "a process".into() };
        let run = client.run.as_ref().and_then(|key| self.runs.get(key));
        if let Some(run) = run {
            if let Some(node) = run.node_of(conn) {
                return node.label();
            }
            if let Some(left) = run.life().left.get(&conn) {
                return left.heard.who.clone();
            }
        }
        client.rank_label().unwrap_or_else(|| client.label())
    }

    fn writer(run: Option<&TrackedRun>, writer: &ExpectedWriter) -> Option<String> {
        match writer {
            ExpectedWriter::Node(rank) => Some(match run.and_then(|run| run.node_of_rank(*rank)) {
                Some(node) => node.label(),
                None => format!("node rank {rank}"),
            }),
            ExpectedWriter::Rank(rank) => {
                Some(run.map_or(format!("rank {rank}"), |run| run.rank_label(*rank)))
            }
            ExpectedWriter::NcclRankZero => Some("rank 0".into()),
            ExpectedWriter::Group(name) => Some(name.clone()),
            ExpectedWriter::LastAtExit => Some("the last node to finish".into()),
            ExpectedWriter::Unknown => None,
        }
    }

    /// The process that must write `key`, for people.
    pub(super) fn writer_of(&self, run: Option<&RunKey>, key: &[u8]) -> Option<String> {
        let (run, wanted) = (run.and_then(|run| self.runs.get(run)), wanted(key));
        let is_disputed = |run: &TrackedRun| matches!(wanted.writer, ExpectedWriter::Rank(rank) if run.world().is_disputed(rank));
        if run.is_some_and(|run| Self::without_ranks(run, key).is_some() || is_disputed(run)) {
            return None;
        }
        Self::writer(run.filter(|_| !wanted.is_of_another_round(run)), &wanted.writer)
    }

    /// The ranks that have not come, if the one that must write `key` is one of them.
    pub(super) fn missing_with(&self, run: Option<&RunKey>, key: &[u8]) -> Names {
        let Some(run) = run.and_then(|run| self.runs.get(run)) else { return Names::default() };
        let ExpectedWriter::Rank(rank) = wanted(key).writer else { return Names::default() };
        let never_came = |rank: &u32| run.world().holder(*rank).is_none();
        if !never_came(&rank) {
            return Names::default();
        }
        Names::of_some(run.world().absent().filter(never_came), |rank| run.rank_label(rank))
    }

    /// The connection of a writer, and since when it is gone.
    fn find(run: Option<&TrackedRun>, writer: &ExpectedWriter) -> Option<(ConnId, Option<Timestamp>)> {
        let run = run?;
        match writer {
            ExpectedWriter::Node(rank) => {
                let node = run.node_of_rank(*rank)?;
                Some((node.conn?, node.gone))
            }
            ExpectedWriter::Rank(rank) => {
                let info = run.world().ranks.get(rank)?;
                Some((info.conn, info.gone))
            }
            _ => None,
        }
    }

    /// Follows the wait of `conn` to its root.
    pub(super) fn trace(&self, conn: ConnId) -> Option<Traced> {
        let wait = self.store.waits.get(&conn)?;
        let first = wanted(wait.view.missing.first()?);
        let run_key = self.run_of(self.store.clients.get(&conn), &first);
        let run = run_key.as_ref().and_then(|key| self.runs.get(key));
        let writer = Self::writer(run.filter(|_| !first.is_of_another_round(run)), &first.writer);
        let root = self.root(conn, run);
        Some(Traced { run: run_key, who: self.who(conn), writer, root })
    }

    /// The wait of the process that has this connection: it may wait on another one.
    fn wait_of(&self, conn: ConnId, run: Option<&TrackedRun>) -> Option<&Waiting> {
        if let Some(wait) = self.store.waits.get(&conn) {
            return Some(wait);
        }
        let client = self.store.clients.get(&conn)?;
        let (ip, pid) = (client.peer.ip(), client.pid?);
        if Self::has_alike(client, run) {
            return None;
        }
        let is_its_own = |wait: &&Waiting| {
            let other = self.store.clients.get(&wait.view.conn);
            wait.view.peer.ip() == ip
                && wait.view.pid == Some(pid)
                && other.is_none_or(|other| other.rank.is_none() || other.rank == client.rank)
        };
        self.store.waits.values().filter(is_its_own).min_by_key(|wait| (wait.since, wait.view.conn))
    }

    /// Whether several ranks or nodes have the address and process id of a client, as in containers with one network: then
    /// it is not known whose another connection with them is.
    fn has_alike(client: &Client, run: Option<&TrackedRun>) -> bool {
        let Some(run) = run.filter(|_| client.pid.is_some()) else { return false };
        let is_alike = |ip: IpAddr, pid, gone: Option<Timestamp>| {
            gone.is_none() && (ip, pid) == (client.peer.ip(), client.pid)
        };
        let ranks = run.world().ranks.values().filter(|info| is_alike(info.peer.ip(), info.pid, info.gone));
        let nodes = run.nodes().iter();
        let nodes =
            nodes.filter(|node| node.peer.is_some_and(|peer| is_alike(peer.ip(), node.pid, node.gone)));
        ranks.take(2).count() > 1 || nodes.take(2).count() > 1
    }

    fn root(&self, start: ConnId, run: Option<&TrackedRun>) -> Root {
        let mut path: Vec<ConnId> = Vec::new();
        let mut at = start;
        // What the one before in the chain waits for, once that is a known process.
        let mut asked: Option<Wanted> = None;
        loop {
            let missing = self.wait_of(at, run).and_then(|wait| wait.view.missing.first());
            let next = missing.map(|key| wanted(key));
            let root = |writer: ExpectedWriter, what, whereabouts| Root::At { writer, what, whereabouts };
            let (next, key) = match (next, missing, asked) {
                (Some(next), Some(key), asked) => {
                    if let (ExpectedWriter::Unknown, Some(asked)) = (&next.writer, asked) {
                        let key = ShownKey(key).to_string();
                        return root(asked.writer, asked.what, Whereabouts::Waits { key });
                    }
                    (next, key)
                }
                // A process for which others wait, and which waits for nothing.
                (_, _, Some(asked)) => return root(asked.writer, asked.what, self.without_wait(at, run)),
                (..) => return root(ExpectedWriter::Unknown, "a key", Whereabouts::Unknown),
            };
            if let Some(from) = path.iter().position(|&member| member == at) {
                return self.cycle(&path[from..], run);
            }
            path.push(at);
            let (writer, what) = (next.writer.clone(), next.what);
            if next.is_of_another_round(run) {
                return root(writer, what, Whereabouts::WentOn);
            }
            if let Some(whereabouts) = run.and_then(|run| Self::without_ranks(run, key)) {
                return root(writer, what, whereabouts);
            }
            let found = Self::find(run, &next.writer);
            match found {
                Some((_, Some(gone))) if !matches!(next.writer, ExpectedWriter::Rank(_)) => {
                    let for_seconds = Elapsed(self.now.since(gone));
                    return root(writer, what, Whereabouts::Gone { for_seconds });
                }
                Some((_, None)) if run.is_some_and(|run| Self::was_dropped(run, &next)) => {
                    return root(writer, what, Whereabouts::Dropped { why: RESET.to_owned() });
                }
                Some((conn, None)) if next.is_role && run.is_some_and(|run| run.is_heir(conn)) => {
                    return root(writer, what, Whereabouts::Dropped { why: OVERWRITTEN.to_owned() });
                }
                Some((conn, None)) => {
                    at = conn;
                    asked = Some(next);
                }
                None | Some((_, Some(_))) => {
                    let whereabouts = match writer {
                        ExpectedWriter::Rank(rank) => {
                            run.map_or(Whereabouts::NeverCame, |run| self.missed(run, rank))
                        }
                        ExpectedWriter::Node(rank) => {
                            run.map_or(Whereabouts::NeverCame, |run| self.missed_node(run, rank))
                        }
                        _ => Whereabouts::Unknown,
                    };
                    return root(writer, what, whereabouts);
                }
            }
        }
    }

    /// Whether what is wanted had been written, and was dropped when the store was reset.
    fn was_dropped(run: &TrackedRun, wanted: &Wanted) -> bool {
        let round = run.round();
        let Some(reset) = round.reset else { return false };
        match wanted.writer {
            ExpectedWriter::Node(rank) if wanted.is_role => {
                round.roles.contains(&rank) && run.node_of_rank(rank).is_some_and(|node| node.joined <= reset)
            }
            ExpectedWriter::Node(_) => wanted.is_master || !round.assigned.is_empty(),
            ExpectedWriter::Rank(rank) => {
                run.world().ranks.get(&rank).is_some_and(|info| info.joined <= reset)
            }
            _ => true,
        }
    }

    /// When an operator's reset dropped what a node or a rank had written here.
    pub(super) fn reset_that_dropped(&self, run: Option<&RunKey>, key: &[u8]) -> Option<Timestamp> {
        let (run, wanted) = (self.runs.get(run?)?, wanted(key));
        let is_it = match wanted.writer {
            ExpectedWriter::Rank(rank) => match run.world().holder(rank)?.withdrawn {
                Some(Withdrawn::Reset(_)) => true,
                _ => Self::was_dropped(run, &wanted),
            },
            ExpectedWriter::Node(_) => {
                !wanted.is_of_another_round(Some(run)) && Self::was_dropped(run, &wanted)
            }
            _ => false,
        };
        run.round().reset.filter(|_| is_it)
    }

    /// What a process does of which no wait is known.
    fn without_wait(&self, conn: ConnId, run: Option<&TrackedRun>) -> Whereabouts {
        /// Waits are told once a second, when they have lasted for one.
        const UNTOLD: Duration = Duration::from_millis(2500);
        let client = self.store.clients.get(&conn);
        if let Some(link) = client.and_then(|client| self.links.away_at(client.peer.ip())) {
            return Whereabouts::Away {
                link: link.name.clone(),
                for_seconds: Elapsed(self.now.since(link.since)),
            };
        }
        match client {
            Some(client) if self.now.since(client.since) < UNTOLD => Whereabouts::JustCame,
            Some(client)
                if self.links.back_for(client.peer.ip(), self.now).is_some_and(|since| since < UNTOLD) =>
            {
                Whereabouts::JustCame
            }
            Some(client) if Self::has_alike(client, run) => {
                // A wait on another connection may be its own.
                if self.waits_like(client, run) { Whereabouts::Alike } else { Whereabouts::Busy }
            }
            Some(client) if self.store.waited_just_now(client, self.now) => Whereabouts::JustWaited,
            _ => Whereabouts::Busy,
        }
    }

    /// Whether a connection waits that has the address and process id of `client`, and is not known as another's.
    fn waits_like(&self, client: &Client, run: Option<&TrackedRun>) -> bool {
        self.store.waits.values().any(|wait| {
            let (conn, ip) = (wait.view.conn, wait.view.peer.ip());
            let is_known = self.store.clients.get(&conn).is_some_and(|other| other.rank.is_some())
                || run.is_some_and(|run| run.node_of(conn).is_some());
            !is_known && (ip, wait.view.pid) == (client.peer.ip(), client.pid)
        })
    }

    /// A static node waits for its ranks, and the node with rank 0 has handed out those of others only.
    fn without_ranks(run: &TrackedRun, key: &[u8]) -> Option<Whereabouts> {
        let node = match classify(key)? {
            KeyPattern::Rendezvous { part: RendezvousPart::AssignedRanks(node), .. } => node,
            KeyPattern::Address(address) if address.kind == AddressKind::AssignedRanks => address.node_rank(),
            _ => return None,
        };
        let nodes = run.counted_on().filter(|&nodes| node >= nodes)?;
        Some(Whereabouts::NotCounted { nodes })
    }

    /// Processes that ended without telling their rank while this run came together, or just before.
    fn ended_near(&self, run: &TrackedRun, which: impl Fn(&Passed) -> bool) -> Names {
        const BEFORE: Duration = Duration::from_mins(1);
        let began = run.round().started.unwrap_or(run.first_seen());
        let is_back = |process| self.counted().contains_key(&process);
        let near = self.store.passed.iter().filter(|passed| passed.closed.at + BEFORE >= began);
        let near = near.filter(|passed| !passed.process.is_some_and(is_back) && which(passed));
        Names::of(near.map(Passed::told))
    }

    /// Ranks in other stores that may be those that this run misses: they wait there for those that are here, and there are
    /// to be as many.
    fn elsewhere(&self, run: &TrackedRun) -> Names {
        let here = run.world();
        let complements = |other: &World| {
            let is_missed = |world: &World, rank: u32| world.holder(rank).is_none();
            other.size().is_some()
                && other.size() == here.size()
                && other.completed.is_none()
                && other.ranks.keys().all(|&rank| is_missed(here, rank))
                && here.ranks.keys().all(|&rank| is_missed(other, rank))
        };
        let others = self.runs.values().filter(|other| {
            other.key().port() != run.key().port() && !other.has_agents() && !other.state().is_over()
        });
        let others = others.filter(|other| complements(other.world()));
        Names::of(others.flat_map(|other| {
            let port = other.key().port().unwrap_or_default();
            let live = other.world().ranks.iter().filter(|(_, info)| info.gone.is_none());
            live.map(move |(&rank, _)| format!("{} (port {port})", other.rank_label(rank)))
        }))
    }

    /// Connections that have counted themselves, or more, and have told no rank. Of those of a process that has told one on
    /// another connection nothing is unknown.
    fn silent(&self, run: &TrackedRun) -> Vec<(&Client, Silent)> {
        let is_of_run = |client: &Client| client.run.is_none() || client.run.as_ref() == Some(run.key());
        let clients = self.store.clients.values();
        let mut silent = clients.filter(|client| !client.is_member() && is_of_run(client)).peekable();
        if silent.peek().is_none() {
            return Vec::new();
        }
        let (processes, counted) = (self.processes(), self.counted());
        let has_met = |client: &Client| run.world().last_met.is_some_and(|met| client.since < met);
        let what = |client: &Client| {
            // Clients of PyTorch before 2.5 tell no process id; they count themselves on one connection only.
            let known = client.pid.and_then(|pid| processes.get(&(client.peer.ip(), pid)));
            match known {
                Some(_) if client.has_counted_itself => {
                    let (counted, ranks) = counted.get(&client.process()?)?;
                    (*counted > ranks.len() && !has_met(client)).then_some(Silent::Alike)
                }
                Some(None) if Self::has_alike(client, Some(run)) => Some(Silent::Unknown),
                Some(_) => None,
                None if has_met(client) => Some(Silent::Stranger),
                None => Some(Silent::MayBeRank),
            }
        };
        silent.filter_map(|client| Some((client, what(client)?))).collect()
    }

    /// Where a node is whose connection is not known. torchrun's c10d backend gives a rank only to nodes that have come.
    fn missed_node(&self, run: &TrackedRun, rank: u32) -> Whereabouts {
        if run.not_again().any(|node| node.rank == Some(rank)) {
            return Whereabouts::NotAgain;
        }
        if let Some(node) = run.node_of_rank(rank).filter(|_| run.native().is_some()) {
            return match node.gone {
                Some(gone) => Whereabouts::Gone { for_seconds: Elapsed(self.now.since(gone)) },
                None if run.round().roles.contains(&rank) => Whereabouts::Unknown,
                None => Whereabouts::Joined,
            };
        }
        let is_there = run.node_of_rank(rank).is_some();
        // Static: it ended, and the others have begun another attempt since.
        let ended = run.nodes().iter().filter(|node| node.rank == Some(rank) && node.is_dead());
        if let (false, Some(gone)) = (is_there, ended.filter_map(|node| node.gone).max()) {
            return Whereabouts::Gone { for_seconds: Elapsed(self.now.since(gone)) };
        }
        match run.kind() {
            RunKind::C10d if !is_there && run.round().completed.is_some() => Whereabouts::LeftRound,
            RunKind::C10d => Whereabouts::Unknown,
            _ if is_there => Whereabouts::Unknown,
            _ => Whereabouts::NeverCame,
        }
    }

    /// Where a rank is that has not come to this meeting: it may have been in the last one.
    fn missed(&self, run: &TrackedRun, rank: u32) -> Whereabouts {
        let before = run.world().holder(rank);
        let Some(before) = before.filter(|before| before.gone.is_none()) else {
            let gone_for = before.and_then(|before| before.gone).map(|gone| Elapsed(self.now.since(gone)));
            let silent = self.silent(run);
            let those =
                |what| processes_of(silent.iter().filter(|(_, is)| *is == what).map(|(client, _)| *client));
            let (candidates, alike) = (those(Silent::MayBeRank), those(Silent::Alike));
            return match gone_for {
                // Even if none of them is likely to be it, it may have come.
                _ if !silent.is_empty() => Whereabouts::NotTold { candidates, alike, gone_for },
                Some(for_seconds) => Whereabouts::Gone { for_seconds },
                None if run.world().is_disputed(rank) => Whereabouts::Disputed,
                None => match run.node_with(rank).filter(|node| node.is_dead()).and_then(|node| node.gone) {
                    Some(gone) => Whereabouts::NodeGone { for_seconds: Elapsed(self.now.since(gone)) },
                    None => Whereabouts::NeverCame,
                },
            };
        };
        match before.withdrawn {
            Some(Withdrawn::Reset(_)) => Whereabouts::Dropped { why: RESET.to_owned() },
            Some(Withdrawn::Overwritten) => Whereabouts::Dropped { why: OVERWRITTEN.to_owned() },
            Some(Withdrawn::Paired) => {
                let replaced = Names::of(run.world().replaced.iter().map(|rank| format!("rank {rank}")));
                let (of, took) = match replaced.count() {
                    0 => ("a process of another rank".to_owned(), "another took that one's place"),
                    1 => (format!("a process of {replaced}"), "another took that one's place"),
                    _ => (format!("processes of {replaced}"), "others took their places"),
                };
                Whereabouts::Dropped { why: format!("it was paired with {of}, and {took}") }
            }
            // It may have met with a process of the other job.
            None if !run.world().claimed_twice.is_empty() => {
                let ranks = run.world().claimed_twice.keys().map(|rank| format!("rank {rank}"));
                Whereabouts::Dropped { why: format!("two live processes claim {}", Names::of(ranks)) }
            }
            // It met with the processes of before, of which another now has the place of at least one.
            None if !run.world().replaced.is_empty() => Whereabouts::NotAgain,
            None => Whereabouts::Busy,
        }
    }

    /// All ranks of which nobody is there, where others wait for `asked`. That its process ended is said already.
    fn absent(run: &TrackedRun, asked: u32, whereabouts: &Whereabouts) -> Names {
        let is_said = |rank: u32| rank == asked && matches!(whereabouts, Whereabouts::Gone { .. });
        Names::of_some(run.world().absent().filter(|rank| !is_said(*rank)), |rank| {
            match run.world().holder(rank) {
                Some(_) => format!("{} (its connection closed)", run.rank_label(rank)),
                None => run.rank_label(rank),
            }
        })
    }

    /// Those other than `writer` that are there, and go on with the attempt before.
    fn staying(run: &TrackedRun, writer: &ExpectedWriter) -> Names {
        match writer {
            ExpectedWriter::Node(rank) => {
                let others = run.not_again().filter(|node| node.rank != Some(*rank));
                Names::of_some(others, TrackedNode::label)
            }
            ExpectedWriter::Rank(rank) if !run.world().replaced.is_empty() => {
                let others = run.world().not_again().filter(|other| other != rank);
                Names::of_some(others, |other| run.rank_label(other))
            }
            _ => Names::default(),
        }
    }

    fn cycle(&self, members: &[ConnId], run: Option<&TrackedRun>) -> Root {
        let wants = |conn: &ConnId| self.wait_of(*conn, run)?.view.missing.first().map(|key| wanted(key));
        let newcomer = members.iter().copied().find(|conn| wants(conn).is_some_and(|want| want.is_master));
        let rank_zero = members.iter().copied().find(|conn| wants(conn).is_some_and(|want| want.is_role));
        Root::Cycle { members: members.to_vec(), newcomer, rank_zero }
    }

    /// Everything that the waits show, one explanation for each root.
    pub(super) fn explain(&self) -> Vec<(Option<RunKey>, Finding)> {
        struct Group {
            since: Timestamp,
            root: Root,
            waits: Vec<ConnId>,
        }
        let mut groups: HashMap<(RunKey, String), Group> = HashMap::new();
        // Waits for the same writer have the same root.
        let mut roots: HashMap<(RunKey, Option<u64>, ExpectedWriter, &str), Root> = HashMap::new();
        for (&conn, wait) in &self.store.waits {
            let Some(key) = wait.view.missing.first() else { continue };
            let first = wanted(key);
            let Some(run) = self.run_of(self.store.clients.get(&conn), &first) else { continue };
            // That is said of the node itself.
            if self.runs.get(&run).is_some_and(|run| Self::without_ranks(run, key).is_some()) {
                continue;
            }
            let root = roots
                .entry((run.clone(), first.round, first.writer, first.what))
                .or_insert_with(|| self.root(conn, self.runs.get(&run)))
                .clone();
            let about = match &root {
                Root::At { writer: ExpectedWriter::LastAtExit | ExpectedWriter::Unknown, .. } => continue,
                Root::At {
                    writer: ExpectedWriter::Rank(_),
                    whereabouts: Whereabouts::NeverCame | Whereabouts::NotTold { .. },
                    ..
                } => NEVER_CAME.to_owned(),
                Root::At { writer, what, whereabouts: Whereabouts::WentOn } => {
                    format!("{writer:?} {what} of another round")
                }
                Root::At { writer, what, .. } => format!("{writer:?} {what}"),
                Root::Cycle { members, .. } => format!("cycle {:?}", members.iter().min()),
            };
            let new = Group { since: wait.since, root: root.clone(), waits: Vec::new() };
            let group = groups.entry((run, about)).or_insert(new);
            if let (Some(of_group), Some(of_this)) = (group.root.rank(), root.rank())
                && of_this < of_group
            {
                group.root = root;
            }
            group.waits.push(conn);
            group.since = group.since.min(wait.since);
        }
        let mut told: Vec<_> = groups
            .into_iter()
            .filter_map(|((key, about), group)| {
                let run = self.runs.get(&key)?;
                let waits = || group.waits.iter().filter_map(|conn| self.store.waits.get(conn));
                let mut reason = self.reason(run, &group.root, group.waits.len(), group.since)?;
                if let Reason::WaitingForGroup { others, .. } = &mut reason {
                    let members: Option<HashSet<ConnId>> = waits().map(|wait| self.member(wait)).collect();
                    *others = members.map(|there| self.others(run, &there)).unwrap_or_default();
                }
                let waits = waits().take(WAITS_SHOWN);
                let waits = waits.map(|wait| self.evidence(wait.view.conn, wait));
                Some((Some(key), Finding::new(reason, about, group.since).seen(waits)))
            })
            .chain(self.of_unknown_keys())
            .chain(self.of_dropped_states())
            .chain(self.below_own_prefixes())
            .collect();
        told.sort_by(|(a, one), (b, other)| (a, &one.about).cmp(&(b, &other.about)));
        told
    }

    /// That the process of `conn` has this wait.
    fn evidence(&self, conn: ConnId, wait: &Waiting) -> Evidence {
        Evidence {
            seen: Seen::Waits,
            who: self.who(conn),
            peer: Some(wait.view.peer),
            pid: wait.view.pid,
            key: wait.view.missing.first().map(|key| ShownKey(key).to_string()),
            at: wait.since,
        }
    }

    /// The connections by which ranks and agents are known, by address and process id: a process may wait on another
    /// connection. `None` where several are alike.
    fn processes(&self) -> &Processes {
        self.processes.get_or_init(|| self.find_processes())
    }

    /// How often the processes of this store have counted themselves, and their ranks.
    fn counted(&self) -> &CountedRanks {
        self.counted.get_or_init(|| self.store.counted_ranks())
    }

    fn find_processes(&self) -> Processes {
        let mut processes = HashMap::new();
        for (&conn, client) in self.store.clients.iter().filter(|(_, client)| client.is_member()) {
            let Some(pid) = client.pid else { continue };
            let known = processes.entry((client.peer.ip(), pid)).or_insert(Some(conn));
            *known = known.filter(|known| *known == conn);
        }
        processes
    }

    /// The connection by which the process of a wait is known as a rank or an agent.
    fn member(&self, wait: &Waiting) -> Option<ConnId> {
        let conn = wait.view.conn;
        if self.store.clients.get(&conn).is_some_and(Client::is_member) {
            return Some(conn);
        }
        let pid = wait.view.pid?;
        *self.processes().get(&(wait.view.peer.ip(), pid))?
    }

    /// Waits for keys that are none of PyTorch's.
    fn of_unknown_keys(&self) -> Vec<(Option<RunKey>, Finding)> {
        const MOST: usize = 64;
        let is_own = |key: &[u8]| matches!(classify(key), None | Some(KeyPattern::Unknown));
        let mut by_key: BTreeMap<&[u8], Vec<(Option<ConnId>, &Waiting)>> = BTreeMap::new();
        for wait in self.store.waits.values() {
            let Some(key) = wait.view.missing.first().filter(|key| is_own(key)) else { continue };
            by_key.entry(key).or_default().push((self.member(wait), wait));
        }
        let mut found = Vec::new();
        for (key, waits) in by_key {
            // A client that is no known member of a job knows best why it waits.
            let mut by_run: BTreeMap<Option<&RunKey>, Vec<(ConnId, &Waiting)>> = BTreeMap::new();
            for (member, wait) in waits.iter().filter_map(|(member, wait)| Some(((*member)?, *wait))) {
                let run = self.store.clients.get(&member).and_then(|client| client.run.as_ref());
                by_run.entry(run).or_default().push((member, wait));
            }
            let all_are_known = waits.iter().all(|(member, _)| member.is_some());
            let found_here = by_run.into_iter().filter_map(|(run, members)| {
                Some((run.cloned(), self.unknown_key(key, run, members, all_are_known)?))
            });
            found.extend(found_here);
            if found.len() >= MOST {
                break;
            }
        }
        found
    }

    /// Agents wait for the state of their c10d rendezvous only when it was dropped: it is there from the first of them on.
    fn of_dropped_states(&self) -> Vec<(Option<RunKey>, Finding)> {
        let mut by_run: BTreeMap<RunId, Vec<&Waiting>> = BTreeMap::new();
        for wait in self.store.waits.values() {
            let key = wait.view.missing.first().and_then(|key| classify(key));
            if let Some(KeyPattern::Rendezvous { run_id, part: RendezvousPart::State, .. }) = key {
                by_run.entry(RunId::new(run_id)).or_default().push(wait);
            }
        }
        let found = by_run.into_iter().filter_map(|(id, waits)| {
            let since = waits.iter().map(|wait| wait.since).min()?;
            let (run_id, waiters) = (id.to_string(), waits.len());
            let reason = Reason::StateDropped {
                run_id: run_id.clone(),
                waiters,
                waited: Elapsed(self.now.since(since)),
            };
            let evidence = waits.iter().take(WAITS_SHOWN).map(|wait| self.evidence(wait.view.conn, wait));
            let key = Some(self.store.key_of(&id)).filter(|key| self.runs.contains_key(key));
            Some((key, Finding::new(reason, run_id, since).seen(evidence)))
        });
        found.collect()
    }

    /// Waits for members of groups on a store with a prefix of the program's own: nothing else is known of those who wait.
    fn below_own_prefixes(&self) -> Vec<(Option<RunKey>, Finding)> {
        const MOST: usize = 16;
        let mut groups: BTreeMap<(&[u8], u32), Vec<&Waiting>> = BTreeMap::new();
        for wait in self.store.waits.values() {
            let is_known = self.store.clients.get(&wait.view.conn).is_some_and(|client| client.run.is_some());
            let Some(key) = wait.view.missing.first().filter(|_| !is_known) else { continue };
            if let Some((prefix, address)) = below_own_prefix(key) {
                groups.entry((prefix, address.member)).or_default().push(wait);
            }
        }
        let explained = groups.into_iter().take(MOST).filter_map(|((prefix, rank), waits)| {
            let since = waits.iter().map(|wait| wait.since).min()?;
            let what =
                format!("the address of rank {rank} of the group below the prefix `{}`", ShownKey(prefix));
            let (waiters, about) = (waits.len(), what.clone());
            let (others, ended, waited) =
                (Names::default(), Names::default(), Elapsed(self.now.since(since)));
            let reason = Reason::WaitingForGroup { what, waiters, others, ended, waited };
            let waits = waits.into_iter().take(WAITS_SHOWN);
            let evidence = waits.map(|wait| self.evidence(wait.view.conn, wait));
            Some((None, Finding::new(reason, about, since).seen(evidence)))
        });
        explained.collect()
    }

    /// What `members` of a run, each with its wait, wait for at one key of the program. Who is not there is told only if
    /// all that wait there are known.
    fn unknown_key(
        &self,
        key: &[u8],
        run: Option<&RunKey>,
        mut members: Vec<(ConnId, &Waiting)>,
        all_are_known: bool,
    ) -> Option<Finding> {
        let rank = |conn: &ConnId| self.store.clients.get(conn).and_then(|client| client.rank);
        members.sort_by_key(|(conn, wait)| (rank(conn), *conn, wait.since));
        let size = members.first()?.1.view.barrier_size;
        let since = members.iter().map(|(_, wait)| wait.since).min()?;
        let waited = Elapsed(self.now.since(since));
        let about = ShownKey(key).to_string();
        members.dedup_by_key(|(conn, _)| *conn);
        let who = Names::of_some(&members, |(conn, _)| self.who(*conn));
        let run = run.and_then(|run| self.runs.get(run));
        let ended = run.map(|run| self.ended_ranks(run)).unwrap_or_default();
        let there: HashSet<ConnId> = members.iter().map(|(conn, _)| *conn).collect();
        let others = run.filter(|_| all_are_known).map(|run| self.others(run, &there)).unwrap_or_default();
        let reason = if let Some(barrier) = barrier_of(key, size) {
            let size = size.and_then(|size| u32::try_from(size).ok());
            let all_are_there = all_are_known && run.is_some() && others.is_empty() && ended.is_empty();
            let too_large = all_are_there && size.is_none_or(|size| who.count() < size as usize);
            Reason::WaitingAtBarrier { barrier, who, size, too_large, others, ended, waited }
        } else {
            let similar = members.iter().find_map(|(_, wait)| wait.view.similar.as_ref());
            let similar = similar.map(|key| ShownKey(key).to_string());
            let absence = self.absence(members.first()?.1, run);
            Reason::WaitingForKey { key: about.clone(), who, similar, others, ended, absence, waited }
        };
        let waits = members.iter().map(|(conn, wait)| self.evidence(*conn, wait));
        Some(Finding::new(reason, about, since).seen(waits))
    }

    /// Why the key that a program waits for is not there.
    fn absence(&self, wait: &Waiting, run: Option<&TrackedRun>) -> Absence {
        let reset = self.store.reset.filter(|at| run.is_some_and(|run| run.first_seen() <= *at));
        match (wait.view.past, reset) {
            (KeyPast::Deleted, _) => Absence::Deleted,
            (_, Some(at)) => Absence::Reset { ago: Elapsed(self.now.since(at)) },
            (KeyPast::NotDeleted, None) => Absence::NotWritten,
            (KeyPast::NotKnown, None) => Absence::NotThere,
        }
    }

    /// The ranks of a run whose processes have ended.
    fn ended_ranks(&self, run: &TrackedRun) -> Names {
        Names::of_some(run.world().ended_ranks(), |(rank, _, gone)| {
            format!("{} ({} ago)", run.rank_label(rank), Elapsed(self.now.since(gone)))
        })
    }

    /// The live processes of a run but for those of `there`: ranks if one of `there` is a rank, else nodes.
    fn others(&self, run: &TrackedRun, there: &HashSet<ConnId>) -> Names {
        let is_rank = |conn| self.store.clients.get(conn).is_some_and(|client| client.rank.is_some());
        if there.iter().any(is_rank) {
            let others = run.world().live().filter(|(_, info)| !there.contains(&info.conn));
            return Names::of_some(others, |(rank, _)| run.rank_label(rank));
        }
        let live = run.participants().filter(|node| node.gone.is_none());
        let others = live.filter(|node| node.conn.is_some_and(|conn| !there.contains(&conn)));
        Names::of_some(others, TrackedNode::told)
    }

    fn reason(&self, run: &TrackedRun, root: &Root, waiters: usize, since: Timestamp) -> Option<Reason> {
        let waited = Elapsed(self.now.since(since));
        match root {
            Root::Cycle { members, newcomer, rank_zero } => {
                let since = |conn: &ConnId| self.wait_of(*conn, Some(run)).map(|wait| wait.since);
                let youngest = members.iter().filter_map(since).max()?;
                if self.now.since(youngest) < Self::CYCLE_AFTER {
                    return None;
                }
                let waited = Elapsed(self.now.since(youngest));
                Some(match (newcomer, rank_zero) {
                    (Some(newcomer), Some(rank_zero)) => Reason::ElasticDeadlock {
                        newcomer: self.who(*newcomer),
                        rank_zero: self.who(*rank_zero),
                        waited,
                    },
                    _ => {
                        Reason::WaitCycle { members: Names::of(members.iter().map(|&m| self.who(m))), waited }
                    }
                })
            }
            Root::At { writer, what, whereabouts } => {
                let (what, whereabouts) = ((*what).to_owned(), whereabouts.clone());
                let is_now = !matches!(whereabouts, Whereabouts::WentOn);
                let missing = match (writer, &whereabouts) {
                    // Its own wait may be the cause.
                    (_, Whereabouts::JustCame | Whereabouts::JustWaited) => return None,
                    (ExpectedWriter::Rank(rank), whereabouts) => Self::absent(run, *rank, whereabouts),
                    // A static node that has come shows that there are all with lower ranks.
                    (_, Whereabouts::NeverCame) if run.kind() == RunKind::Static => {
                        Names::of(run.never_came().map(|rank| format!("node {rank}")))
                    }
                    _ => Names::default(),
                };
                let ended = match (writer, missing.is_empty()) {
                    // The other ranks of an NCCL job before have told no rank either.
                    (ExpectedWriter::NcclRankZero, _) => self.ended_near(run, |it| it.only_counted_itself),
                    (ExpectedWriter::Rank(_), false) => self.ended_near(run, |_| true),
                    _ => Names::default(),
                };
                let elsewhere = if missing.is_empty() { Names::default() } else { self.elsewhere(run) };
                let staying = Self::staying(run, writer);
                let who = Self::writer(is_now.then_some(run), writer)?;
                // Of some it is not decided yet whether they are workers.
                let undecided = || self.silent(run).iter().filter(|(client, _)| client.run.is_none()).count();
                let awaited = Awaited { whereabouts, missing, ended, elsewhere, staying, waiters, waited };
                Some(match writer {
                    ExpectedWriter::Rank(rank @ 1..) => Reason::WaitingForRank {
                        rank: run.rank_label(*rank),
                        joined: run.world().published(),
                        connected: count(run.world().connected.len().saturating_add(undecided())),
                        world_size: run.world().meeting().1,
                        awaited,
                    },
                    ExpectedWriter::Node(1..) => Reason::WaitingForNode { node: who, what, awaited },
                    ExpectedWriter::Node(0) | ExpectedWriter::Rank(_) | ExpectedWriter::NcclRankZero => {
                        let of_agent = matches!(writer, ExpectedWriter::Node(_));
                        Reason::RankZeroSlow { what, who, of_agent, awaited }
                    }
                    ExpectedWriter::Group(_) => {
                        let what = if what == BARRIER { who } else { format!("{what} of {who}") };
                        let (others, ended) = (Names::default(), self.ended_ranks(run));
                        Reason::WaitingForGroup { what, waiters, others, ended, waited }
                    }
                    ExpectedWriter::LastAtExit | ExpectedWriter::Unknown => return None,
                })
            }
        }
    }

    /// Nodes of a c10d run that have missed heartbeats. While an agent waits here it sends none.
    pub(super) fn without_heartbeat(&self, run: &TrackedRun) -> Option<Finding> {
        let late = run.late_after()?;
        let is_late = |node: &&TrackedNode| self.now.since(node.last_heartbeat) >= late;
        let may_send = |node: &&TrackedNode| {
            let client = node.conn.and_then(|conn| self.store.clients.get(&conn));
            client.is_some_and(|client| {
                let ip = client.peer.ip();
                !self.store.waited_just_now(client, self.now)
                    && self.links.away_at(ip).is_none()
                    && self.links.back_for(ip, self.now).is_none_or(|since| since >= late)
            })
        };
        let there = || run.participants().filter(|node| node.gone.is_none() && !node.finished);
        if self.now.since(self.awake_since) < late {
            return None;
        }
        let silent: Vec<_> = there().filter(is_late).filter(may_send).collect();
        let others = there().any(|node| !is_late(&node));
        if !others && silent.len() < there().count() {
            return None;
        }
        let since = silent.iter().map(|node| node.last_heartbeat).max()?;
        let nodes = Names::of(silent.iter().map(|node| node.label()));
        let about = nodes.to_string();
        let reason = Reason::NoHeartbeat { nodes, silent: Elapsed(self.now.since(since)), others };
        let heard_of = silent.iter().map(|node| node.evidence(Seen::Heard, None, node.last_heartbeat));
        Some(Finding::new(reason, about, since).seen(heard_of))
    }

    /// Why one wait lasts, in a sentence.
    pub(super) fn because(&self, traced: &Traced) -> Option<String> {
        let run = traced.run.as_ref().and_then(|key| self.runs.get(key));
        Some(match &traced.root {
            Root::At { writer: ExpectedWriter::LastAtExit, .. } => {
                let running = run.into_iter().flat_map(TrackedRun::still_running);
                let running = Names::of(running.map(TrackedNode::label));
                let dead = run.into_iter().flat_map(TrackedRun::participants).filter(|node| node.is_dead());
                let dead = Names::of(dead.map(TrackedNode::label));
                match (running.is_empty(), dead.is_empty()) {
                    (true, true) => "the other nodes have not finished".into(),
                    (true, false) => format!("died, failed or stopped: {dead}"),
                    (false, true) => format!("still running: {running}"),
                    (false, false) => format!("still running: {running}; died, failed or stopped: {dead}"),
                }
            }
            Root::At { writer: ExpectedWriter::Group(last), what: BARRIER, .. } => {
                format!("{last} ends the wait")
            }
            Root::At { writer, what, whereabouts } => {
                let run = run.filter(|_| !matches!(whereabouts, Whereabouts::WentOn));
                format!("{what} must come from {}: {whereabouts}", Self::writer(run, writer)?)
            }
            Root::Cycle { members, .. } => {
                format!(
                    "a deadlock, each waits for the next: {}",
                    Names::of(members.iter().map(|&m| self.who(m)))
                )
            }
        })
    }
}

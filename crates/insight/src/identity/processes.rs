//! The waits of one store, and the processes that have them.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use crate::facts::{
    Claim, Client, Meeting, Membership, Published, RunKey, StoreWatch, TrackedNode, TrackedRun, Waiting,
    with_pid,
};
use crate::jobs::Jobs;
use crate::reason::{Evidence, Names, Presence, Sighting, if_some};
use rallypoint_api::{RunKind, Seen};
use rallypoint_protocol::ids::{ConnId, ShownKey, Timestamp};
use rallypoint_protocol::keys::{Wanted, address_of, wanted};
use rallypoint_store::WaitView;

pub(crate) const WAITS_SHOWN: usize = 8;

/// The connections of ranks and agents by address and process id. `None` where several are alike.
type Processes = HashMap<(IpAddr, u32), Option<ConnId>>;

type PublishedFor<'i> = HashMap<&'i [u8], BTreeMap<ConnId, &'i Published>>;

/// The waits of one store with what is needed to follow them.
pub(crate) struct Graph<'i> {
    pub(crate) store: &'i StoreWatch,
    pub(crate) jobs: &'i Jobs,
    pub(crate) now: Timestamp,
    /// What is said is shown later, too: without times that are counted from now.
    pub(crate) is_of_past: bool,
    /// Computed when one of the explanations needs them, for all of them.
    pub(crate) processes: OnceCell<Processes>,
    pub(crate) published: OnceCell<PublishedFor<'i>>,
    pub(crate) everybody: OnceCell<BTreeMap<ConnId, (String, ConnId)>>,
    /// Connections of processes that others wait for, and that wait for nothing here.
    pub(crate) idle: RefCell<BTreeSet<ConnId>>,
}

impl Jobs {
    pub(crate) fn graph(&self, port: u16, now: Timestamp) -> Option<Graph<'_>> {
        Some(Graph {
            store: self.stores.get(&port)?,
            jobs: self,
            now,
            is_of_past: false,
            processes: OnceCell::new(),
            published: OnceCell::new(),
            everybody: OnceCell::new(),
            idle: RefCell::default(),
        })
    }

    /// The name of a connection, for people.
    pub(crate) fn who(&self, port: u16, conn: ConnId) -> String {
        let graph = self.graph(port, Timestamp::default());
        graph.map_or_else(|| "a process".into(), |graph| graph.who(conn))
    }

    /// The name of a process that claims what another one claims, too, and `wrote` that. Both may be the node
    /// with that rank.
    pub(crate) fn claimant(&self, port: u16, conn: ConnId, claim: &Claim, wrote: &Evidence) -> String {
        let client = self.stores.get(&port).and_then(|store| store.clients.get(&conn));
        match (claim, client) {
            (_, None) => wrote.who.clone(),
            (Claim::NodeRank(_) | Claim::NodeId(_), Some(client)) => client.label(),
            _ => with_pid(self.who(port, conn), client.and_then(|client| client.pid)),
        }
    }
}

impl Graph<'_> {
    /// All connections of the processes that others were found to wait for, and that wait for nothing here.
    pub(crate) fn idle_connections(&self) -> Vec<ConnId> {
        let idle = self.idle.borrow();
        if idle.is_empty() {
            return Vec::new();
        }
        let process = |conn: &ConnId| self.store.clients.get(conn).and_then(Client::process);
        let processes: HashSet<_> = idle.iter().filter_map(process).collect();
        let is_its_own = |(conn, client): &(&ConnId, &Client)| {
            idle.contains(conn) || client.process().is_some_and(|process| processes.contains(&process))
        };
        self.store.clients.iter().filter(is_its_own).map(|(conn, _)| *conn).collect()
    }

    pub(crate) fn run_of(&self, client: Option<&Client>, wanted: &Wanted) -> Option<RunKey> {
        match &wanted.run {
            Some(id) => Some(self.store.key_of(id)),
            None => client?.run.clone(),
        }
    }

    /// The run that a wait belongs to.
    pub(crate) fn run_waiting(&self, wait: &WaitView) -> Option<RunKey> {
        self.run_of(self.store.clients.get(&wait.conn), &wanted(wait.missing.first()?))
    }

    /// The agent with node rank 0 waits for the roles of all nodes at once: this shows how many there are.
    pub(crate) fn nodes_asked_for(&self, wait: &Waiting) -> Option<(RunKey, u32)> {
        let asks = wanted(wait.view.missing.first()?);
        let nodes = u32::try_from(wait.view.keys).ok().filter(|&nodes| asks.is_role && nodes > 1)?;
        let run = self.run_waiting(&wait.view)?;
        // A copy of it is of another job.
        let is_copy = Self::is_copy(wait.view.conn, self.jobs.runs.get(&run));
        (!is_copy).then_some((run, nodes))
    }

    /// The meeting of a process, which may wait on another connection than that of its rank.
    pub(crate) fn meeting<'r>(&self, conn: ConnId, run: &'r TrackedRun) -> &'r Meeting {
        let world = &run.world;
        if world.meetings.len() == 1 {
            return world.shown();
        }
        let member = self.store.waits.get(&conn).and_then(|wait| self.member(wait)).unwrap_or(conn);
        world.of(self.store.clients.get(&member).and_then(|client| client.rank), member)
    }

    /// The name of a connection, for people.
    pub(crate) fn who(&self, conn: ConnId) -> String {
        let Some(client) = self.store.clients.get(&conn) else { return "a process".into() };
        let run = client.run.as_ref().and_then(|key| self.jobs.runs.get(key));
        if let Some(run) = run {
            if let Some(node) = run.node_of(conn) {
                let is_one_of_two = run.those(Membership::Rival).any(|rival| rival.rank == node.rank);
                return if is_one_of_two { with_pid(node.label(), node.pid) } else { node.label() };
            }
            if let Some(node) = run.life.at_earlier_exit.get(&conn) {
                return node.name.clone();
            }
        }
        let is_one_of_two = |rank: u32| run.is_some_and(|run| run.world.claimed_twice(rank).is_some());
        match client.rank_label() {
            Some(label) if client.rank.is_some_and(is_one_of_two) => with_pid(label, client.pid),
            Some(label) => label,
            None => self.process_label(client),
        }
    }

    /// The name of who waits with a connection: its process may have told its rank on another.
    pub(crate) fn waiter(&self, conn: ConnId) -> String {
        self.who(self.store.waits.get(&conn).and_then(|wait| self.member(wait)).unwrap_or(conn))
    }

    /// A process that has told no rank.
    fn process_label(&self, client: &Client) -> String {
        let run = client.run.as_ref().and_then(|key| self.jobs.runs.get(key));
        match run.filter(|_| client.uses_group) {
            Some(run) => run.process_label(&client.evidence(Seen::Joined, client.since)),
            None => client.label(),
        }
    }

    /// Whether a client is known to be one of a job whose processes tell no rank.
    fn is_unnamed(&self, client: &Client) -> bool {
        let run = client.run.as_ref().filter(|_| client.uses_group && !client.is_member());
        run.and_then(|key| self.jobs.runs.get(key)).is_some_and(|run| run.world.is_unnamed())
    }

    /// The agents of a run that are in no list of its state, and wait for something here, or did until just
    /// now.
    pub(crate) fn waiting_outside<'r>(&'r self, run: &'r TrackedRun) -> impl Iterator<Item = ConnId> + 'r {
        let waits = move |conn: &ConnId| {
            let waited = |client: &Client| {
                self.store.waited_just_now(client, self.now) && !Self::has_alike(client, Some(run))
            };
            self.wait_of(*conn, Some(run)).is_some() || self.store.clients.get(conn).is_some_and(waited)
        };
        run.lingering().filter_map(|node| node.conn).filter(waits)
    }

    /// The wait of a connection's process, or what it asks for again and again: it may do so on another one.
    pub(crate) fn wait_of(&self, conn: ConnId, run: Option<&TrackedRun>) -> Option<&Waiting> {
        if let Some(wait) = self.store.waits.get(&conn) {
            return Some(wait);
        }
        let client = self.store.clients.get(&conn)?;
        let is_alone = client.pid.is_some() && !Self::has_alike(client, run);
        let is_its_own =
            |wait: &&Waiting| wait.view.conn == conn || is_alone && wait.origin() == client.origin();
        let first = |wait: &&Waiting| (wait.since, wait.view.conn);
        let waits = self.store.waits.values().filter(is_its_own).min_by_key(first);
        waits.or_else(|| self.store.asked.iter().filter(is_its_own).min_by_key(first))
    }

    /// Whether several ranks or nodes have the address and process id of a client, as in containers with one
    /// network: then it is not known whose another connection with them is.
    pub(crate) fn has_alike(client: &Client, run: Option<&TrackedRun>) -> bool {
        let (ip, pid) = (client.peer.ip(), client.pid);
        let is_alike = |node: &&TrackedNode| {
            node.gone.is_none() && node.pid == pid && node.peer.is_some_and(|peer| peer.ip() == ip)
        };
        let nodes = run.filter(|_| pid.is_some()).into_iter().flat_map(TrackedRun::nodes).filter(is_alike);
        client.shares || nodes.take(2).count() > 1
    }

    /// The connections by which ranks and agents are known, by address and process id: a process may wait on
    /// another connection. `None` where several are alike.
    fn processes(&self) -> &Processes {
        self.processes.get_or_init(|| {
            let mut processes = Processes::new();
            for (&conn, client) in self.store.clients.iter().filter(|(_, client)| client.is_member()) {
                let Some(process) = client.process() else { continue };
                let known = processes.entry(process).or_insert(Some(conn));
                *known = known.filter(|known| *known == conn);
            }
            processes
        })
    }

    /// Who has published last for which group, as far as they tell how many members that is to have. Where
    /// some make it anew, those that have not are members no more.
    pub(crate) fn published(&self) -> &PublishedFor<'_> {
        self.published.get_or_init(|| {
            let mut published = PublishedFor::new();
            for (&conn, client) in &self.store.clients {
                let Some(it) = client.published.as_ref().filter(|it| it.size.is_some()) else { continue };
                published.entry(&*it.group).or_default().insert(conn, it);
            }
            for members in published.values_mut() {
                let anew = members.values().filter(|it| it.again).map(|it| it.at).min();
                members.retain(|_, it| anew.is_none_or(|anew| it.at >= anew));
            }
            published
        })
    }

    /// All connections, each with the name and the connection by which its process is known: one that
    /// published an address tells its host.
    pub(crate) fn everybody(&self) -> &BTreeMap<ConnId, (String, ConnId)> {
        self.everybody.get_or_init(|| {
            let clients = &self.store.clients;
            let with_host = clients.iter().filter(|(_, client)| client.host.is_some());
            let with_host: HashMap<_, _> =
                with_host.filter_map(|(conn, client)| Some((client.process()?, *conn))).collect();
            let named = clients.iter().map(|(&conn, client)| {
                let process = client.process();
                let of_host = || with_host.get(&process?).copied();
                let known = self.member_of(conn, process).or_else(of_host).unwrap_or(conn);
                (conn, (self.who(known), known))
            });
            named.collect()
        })
    }

    /// The connection by which the process of a wait is known as a rank or an agent.
    pub(crate) fn member(&self, wait: &Waiting) -> Option<ConnId> {
        self.member_of(wait.view.conn, wait.process())
    }

    pub(crate) fn member_of(&self, conn: ConnId, process: Option<(IpAddr, u32)>) -> Option<ConnId> {
        let client = self.store.clients.get(&conn);
        if client.is_some_and(Client::is_member) {
            return Some(conn);
        }
        let known = process.and_then(|process| *self.processes().get(&process)?);
        known.or_else(|| client.is_some_and(|client| self.is_unnamed(client)).then_some(conn))
    }

    /// Connections that have told no rank, and may be of one that has not got further. Who was there when all
    /// had met is none: it watches the store, or counts itself there.
    pub(crate) fn may_be(&self, run: &TrackedRun, meeting: &Meeting) -> Vec<&Client> {
        // Until agents come it is taken for a worker that meets others without them.
        let is_of_run = |client: &Client| {
            let of = client.run.as_ref();
            of.is_none_or(|of| *of == run.key || run.kind == RunKind::Static && of.id().is_none())
        };
        let hosts = |conn| self.store.waits.get(conn).is_some_and(|wait| wait.view.counted.is_some());
        let clients = self.store.clients.iter().filter(|(conn, _)| !hosts(*conn));
        let clients = clients.map(|(_, client)| client);
        let silent = clients.filter(|client| !client.is_member() && is_of_run(client));
        // Ranks that gathered already when others met may still lack it.
        let met = run.world.last_met.filter(|met| !meeting.gathered_at(*met));
        let may_be = |client: &&Client| {
            // Clients of PyTorch before 2.5 tell no process id; they count themselves on one connection only.
            let known = client.process().and_then(|process| self.processes().get(&process));
            // A process counts itself once, unless it makes its group again.
            let is_another = |known: &Option<ConnId>| {
                let known = known.and_then(|conn| self.store.clients.get(&conn));
                client.has_counted_itself && known.is_none_or(|known| known.has_counted_itself)
            };
            known.is_none_or(is_another) && met.is_none_or(|met| client.since >= met)
        };
        silent.filter(may_be).collect()
    }

    /// The ranks of a run whose processes are gone, or its processes that have told no rank.
    pub(crate) fn ended_ranks(&self, run: &TrackedRun, meeting: &Meeting) -> Names {
        if run.world.is_unnamed() {
            let closed = |it: &Evidence| (run.process_label(it), Sighting::at(Presence::Closed, it.at));
            return self.seen(run.world.ended_unnamed(), closed);
        }
        let ended = meeting.ranks().filter_map(|(rank, info)| Some((rank, info, info.gone_as()?)));
        self.seen(ended, |(rank, info, gone)| (info.label(rank), gone))
    }

    /// The first of these, each with what was seen of it.
    pub(crate) fn seen<I: IntoIterator>(&self, all: I, of: impl Fn(I::Item) -> (String, Sighting)) -> Names {
        let mut told = Vec::new();
        let names = Names::of_some(all, |one| {
            let (who, seen) = of(one);
            told.push((who.clone(), seen.clone()));
            self.with(&who, seen)
        });
        Names { seen: told, ..names }
    }

    /// Somebody, with what was seen of it.
    pub(crate) fn with(&self, who: &str, seen: Sighting) -> String {
        let at = seen.at.filter(|_| !self.is_of_past);
        format!("{who} ({})", Sighting { at, ..seen }.says(self.now))
    }

    /// `, rank 0 of `weights/0``: the group beside that of all ranks that a client is in, for people.
    pub(crate) fn group_of(client: &Client) -> String {
        let of_group = client.published.as_ref();
        if_some(of_group, |it| format!(", rank {} of `{}`", it.rank, ShownKey(&it.group)))
    }

    /// Who has published below the sub-groups of these waits and has none of them.
    pub(crate) fn published_for(&self, waits: &[&Waiting]) -> BTreeSet<ConnId> {
        let asked = waits.iter().filter_map(|wait| address_of(wait.view.missing.first()?)?.sub_group);
        let groups: HashSet<&[u8]> = asked.collect();
        let waiting: HashSet<ConnId> = waits.iter().filter_map(|wait| self.member(wait)).collect();
        let processes: HashSet<_> = waits.iter().map(|wait| wait.origin()).collect();
        let published = self.store.clients.iter().filter_map(|(&conn, client)| {
            client.published.as_ref().filter(|it| groups.contains(&*it.group))?;
            let conn = self.member_of(conn, client.process()).unwrap_or(conn);
            let waits_itself = processes.contains(&client.origin());
            (!waits_itself && !waiting.contains(&conn)).then_some(conn)
        });
        published.collect()
    }

    /// The processes that are connected, do not wait with these and have not `published` there, with what
    /// they do: of a meeting the ranks if one of them waits, else the processes that tell no rank, or the
    /// nodes; and of those the ones that `which` takes. Of a run only if all who wait are known.
    pub(crate) fn not_among<'c>(
        &self,
        of: Option<(&TrackedRun, &Meeting)>,
        waits: &[&Waiting],
        published: impl IntoIterator<Item = &'c ConnId>,
        which: impl Fn(&Client) -> bool,
    ) -> Names {
        let clients = &self.store.clients;
        let members: Option<HashSet<ConnId>> = waits.iter().map(|wait| self.member(wait)).collect();
        if of.is_some() && members.is_none() {
            return Names::default();
        }
        let mut there = members.unwrap_or_default();
        there.extend(published);
        let of_there = there.iter().filter_map(|conn| clients.get(conn));
        let has_ranks = of_there.clone().any(|client| client.rank.is_some());
        let are_unnamed = of_there.clone().any(|client| self.is_unnamed(client));
        let origins: HashSet<_> =
            waits.iter().map(|wait| wait.origin()).chain(of_there.map(Client::origin)).collect();
        let is_other = |conn: ConnId, client: &Client| match of {
            None => !origins.contains(&client.origin()),
            Some(_) if there.contains(&conn) => false,
            Some((run, meeting)) if has_ranks => {
                let its_own = client.rank.filter(|_| client.run.as_ref() == Some(&run.key));
                its_own.is_some_and(|rank| run.world.of(Some(rank), conn).number == meeting.number)
            }
            // Who has another connection there is one of those.
            Some((run, _)) if are_unnamed => {
                let is_its_own = client.run.as_ref() == Some(&run.key) && self.is_unnamed(client);
                is_its_own && !origins.contains(&client.origin())
            }
            Some((run, _)) => run.node_of(conn).is_some_and(|node| node.is_participant() && node.is_there()),
        };
        // Who waits for nothing comes first: it is rather the cause.
        let busy: HashSet<_> = self.store.every_wait().map(Waiting::origin).collect();
        // Members of a run are known by the connections that they have told it with.
        let all: Vec<ConnId> = match of {
            Some(_) => clients.keys().copied().collect(),
            None => self.everybody().values().map(|(_, known)| *known).collect(),
        };
        let others = all.into_iter().filter_map(|conn| {
            let client = clients.get(&conn).filter(|client| which(client) && is_other(conn, client))?;
            // There may be many ranks, of which few are named; else a process is told once.
            let (who, its) = match of {
                Some(_) if has_ranks => (String::new(), (client.peer, client.pid)),
                _ => (self.who(conn), client.origin()),
            };
            Some(((busy.contains(&client.origin()), client.rank, who, its), (conn, client)))
        });
        Names::of_some(others.collect::<BTreeMap<_, _>>(), |(_, (conn, client))| {
            let who = format!("{}{}", self.who(conn), Self::group_of(client));
            self.with(&who, self.doing(conn, of.map(|(run, _)| run)))
        })
    }

    pub(crate) fn evidence(&self, conn: ConnId, wait: &Waiting) -> Evidence {
        Evidence {
            seen: Seen::Waits,
            who: self.who(conn),
            peer: Some(wait.view.peer),
            pid: wait.view.pid,
            key: wait.view.missing.first().map(|key| ShownKey(key).to_string()),
            at: wait.since,
        }
    }
}

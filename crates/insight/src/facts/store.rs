//! What is known of one store: its clients, their waits, and what to report once more of its kind may have
//! come.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt::{self, Display, Formatter};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::facts::run::{Process, RunKey, SETTLE, rank_label};
use crate::reason::{Evidence, Names};
use rallypoint_api::Seen;
use rallypoint_protocol::addresses::{GlooAddress, read_gloo};
use rallypoint_protocol::ids::{ConnId, Elapsed, RunId, Timestamp};
use rallypoint_protocol::keys::{KeyPattern, Leftover, Role, classify, debug_server_of, published_by};
use rallypoint_store::WaitView;

/// What a store was opened for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreOwner {
    /// A run of this id.
    Run(String),
    /// A round of this native run.
    Round(RunId),
}

/// A connection that uses PyTorch's keys, or has told its process id.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) peer: SocketAddr,
    pub(crate) pid: Option<u32>,
    pub(crate) role: Role,
    pub(crate) run: Option<RunKey>,
    pub(crate) rank: Option<u32>,
    /// The host that it published with its address.
    pub(crate) host: Option<String>,
    pub(crate) since: Timestamp,
    /// It has used the keys of a group: it is no client that only counts itself, or watches.
    pub(crate) uses_group: bool,
    /// The group beside that of all ranks that it has published an address for last.
    pub(crate) published: Option<Box<Published>>,
    /// In `init/`, as every process of `env://` and `tcp://` does once.
    pub(crate) has_counted_itself: bool,
    /// Contact with it was lost: its link was away for too long, or its host did not answer.
    pub(crate) is_cut_off: bool,
    /// Other processes have its address and process id.
    pub(crate) shares: bool,
}

/// What tells one process from others: its address and process id. Where several share both, each connection
/// is taken for one.
pub(crate) type Origin = (SocketAddr, Option<u32>);

fn origin(peer: SocketAddr, pid: Option<u32>, shares: bool) -> Origin {
    (if shares { peer } else { SocketAddr::new(peer.ip(), 0) }, pid)
}

impl Client {
    /// Whether it is known what it is in its job: an agent, or a rank.
    pub(crate) fn is_member(&self) -> bool {
        self.rank.is_some() || self.role == Role::Agent
    }

    /// What it calls itself, if it has told its rank. Another process may have the same rank.
    pub(crate) fn rank_label(&self) -> Option<String> {
        Some(rank_label(self.rank?, self.host.as_deref(), self.peer))
    }

    pub(crate) fn label(&self) -> String {
        match (&self.host, self.pid) {
            (Some(host), Some(pid)) => format!("process {pid} on {host}"),
            _ => process(self.pid, self.peer),
        }
    }

    /// It published an address as a member of a group beside that of all ranks.
    pub(crate) fn publishes(&mut self, group: &[u8], rank: u32, address: &[u8], at: Timestamp) {
        let GlooAddress { host, size, .. } = read_gloo(address);
        self.host = self.host.take().or(host);
        let again = self.published.as_ref().is_some_and(|before| *before.group == *group);
        self.published = Some(Box::new(Published { group: group.into(), rank, size, at, again }));
    }

    /// It was seen to do this.
    pub(crate) fn evidence(&self, seen: Seen, at: Timestamp) -> Evidence {
        Evidence { seen, who: self.label(), peer: Some(self.peer), pid: self.pid, key: None, at }
    }

    /// The address and the process id, where it told it and no other process has both.
    pub(crate) fn process(&self) -> Option<Process> {
        Some((self.peer.ip(), self.pid.filter(|_| !self.shares)?))
    }

    pub(crate) fn origin(&self) -> Origin {
        origin(self.peer, self.pid, self.shares)
    }
}

/// The host in `http://HOST:PORT`, if it is one: it becomes a link.
fn host_of(address: &[u8]) -> Option<&str> {
    const MOST: usize = 253;
    let (host, _) = std::str::from_utf8(address).ok()?.strip_prefix("http://")?.rsplit_once(':')?;
    let is_plain = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
    (is_plain && (1..=MOST).contains(&host.len())).then_some(host)
}

/// A process of which nothing else is known.
pub(crate) fn process(pid: Option<u32>, peer: SocketAddr) -> String {
    match pid {
        Some(pid) => format!("process {pid} at {}", peer.ip()),
        None => format!("a process at {}", peer.ip()),
    }
}

/// An outstanding wait, and since when.
#[derive(Debug, Clone)]
pub(crate) struct Waiting {
    pub(crate) since: Timestamp,
    /// As the store showed it last, and when.
    pub(crate) view: WaitView,
    pub(crate) shown: Timestamp,
    /// Other processes have the address and process id.
    pub(crate) shares: bool,
}

impl Waiting {
    /// As [`Client::process`].
    pub(crate) fn process(&self) -> Option<Process> {
        Some((self.view.peer.ip(), self.view.pid.filter(|_| !self.shares)?))
    }

    pub(crate) fn origin(&self) -> Origin {
        origin(self.view.peer, self.view.pid, self.shares)
    }

    /// Whether it is the same wait. A client that waits in slices continues its wait.
    pub(crate) fn is_for(&self, other: &Self) -> bool {
        self.view.missing == other.view.missing && self.view.barrier_size == other.view.barrier_size
    }

    /// Whether its client waits again at once when its time is out: torch does so at the barrier of
    /// `init_process_group`, every 10 s.
    fn goes_on(&self) -> bool {
        let key = self.view.missing.first().and_then(|key| classify(key));
        matches!(key, Some(KeyPattern::AttemptLeftover(Leftover::BarrierDone)))
    }
}

/// An address that a process has published for a sub-group, or for a group below a prefix of the program's
/// own.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) group: Box<[u8]>,
    pub(crate) rank: u32,
    /// How many members the group is to have.
    pub(crate) size: Option<u32>,
    pub(crate) at: Timestamp,
    /// It had done so for this group before: that is made anew.
    pub(crate) again: bool,
}

/// Clients that gave up on one key at about the same time, and what was known of the key then.
#[derive(Debug, Default)]
pub(crate) struct GivenUp {
    pub(crate) at: Timestamp,
    pub(crate) waited: Duration,
    pub(crate) who: Vec<(ConnId, Evidence)>,
    pub(crate) more: usize,
    /// Somebody has given up on it more than once.
    pub(crate) again: bool,
    /// It is a key of the program, which may not need it.
    pub(crate) is_of_program: bool,
    /// The process that must write it, and what is known of that.
    pub(crate) writer: Option<String>,
    /// The ranks that have not come, if that is one of them.
    pub(crate) missing: Names,
    /// Where the key does not tell which process writes it: those of the run that wait elsewhere or nowhere…
    pub(crate) others: Names,
    /// …and those that have ended.
    pub(crate) ended: Names,
}

/// A process that has published something about itself under a name.
#[derive(Debug)]
pub(crate) struct Publisher {
    pub(crate) conn: ConnId,
    /// When its connection closed.
    pub(crate) gone: Option<Timestamp>,
}

/// A process that connected and ended without telling who it is.
#[derive(Debug, Clone)]
pub(crate) struct Passed {
    pub(crate) conn: ConnId,
    /// Its connection closed.
    pub(crate) closed: Evidence,
    /// Its address and process id, unless another one may have them.
    pub(crate) process: Option<(IpAddr, u32)>,
    /// Its group beside that of all ranks, and its rank there.
    pub(crate) place: Option<(Box<[u8]>, u32)>,
    /// It did no more than to count itself.
    pub(crate) only_counted_itself: bool,
    /// It was said, or does not have to be.
    pub(crate) is_told: bool,
}

/// What two live processes claim.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Claim {
    NodeRank(u32),
    /// c10d: `train-1_1_0`, made of the host name and the process id.
    NodeId(String),
    Rank(u32),
    /// `rank 1 of the sub-group 2`.
    Member(String),
}

impl Display for Claim {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NodeRank(rank) => write!(f, "node rank {rank}"),
            Self::NodeId(node) => write!(f, "the node id {node}"),
            Self::Rank(rank) => write!(f, "rank {rank}"),
            Self::Member(member) => f.write_str(member),
        }
    }
}

/// Several processes have claimed one place.
#[derive(Debug)]
pub(crate) struct Claimed {
    pub(crate) since: Timestamp,
    /// When all that claim more with these should be known. `None`: what the one wrote was gone before the
    /// other wrote, and nobody misses it.
    pub(crate) due: Option<Timestamp>,
    /// Who is there, or was until it was due.
    pub(crate) by: BTreeMap<ConnId, Evidence>,
}

/// A client that speaks another protocol than the port that it came to.
#[derive(Debug)]
pub(crate) struct Foreign {
    pub(crate) port: u16,
    pub(crate) peer: IpAddr,
    pub(crate) protocol: &'static str,
    /// It came to the admin port, and the stores on these ports are open for all.
    pub(crate) stores: Option<Vec<u16>>,
    pub(crate) times: u64,
    pub(crate) last: Timestamp,
}

/// Clients that came to the wrong port lately.
#[derive(Debug, Default)]
pub(crate) struct ForeignClients(pub(crate) VecDeque<Foreign>);

impl ForeignClients {
    /// One of them came.
    pub(crate) fn came(&mut self, new: Foreign) {
        const MOST: usize = 256;
        let is_it = |known: &&mut Foreign| {
            (known.port, known.peer, known.protocol) == (new.port, new.peer, new.protocol)
        };
        if let Some(known) = self.0.iter_mut().find(is_it) {
            *known = Foreign { times: known.times.saturating_add(1), ..new };
            return;
        }
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back(new);
    }

    /// Lets go of those that have not come for long.
    pub(crate) fn pass_time(&mut self, now: Timestamp) {
        const SHOWN: Duration = Duration::from_mins(5);
        self.0.retain(|foreign| now.since(foreign.last) < SHOWN);
    }
}

/// A key, and the run that waits for it.
pub(crate) type Awaited = (Option<RunKey>, Box<[u8]>);

/// What is known of one store.
#[derive(Debug, Default)]
pub(crate) struct StoreWatch {
    pub(crate) port: u16,
    pub(crate) owner: Option<StoreOwner>,
    pub(crate) clients: HashMap<ConnId, Client>,
    /// What several processes have that were seen to be different, as in containers with one network.
    pub(crate) shared: HashSet<Process>,
    pub(crate) waits: HashMap<ConnId, Waiting>,
    /// When the processes that waited here just now were last seen to, by address and process id.
    pub(crate) waited: HashMap<Origin, Timestamp>,
    /// Waits that were answered, and since when: who had them has asked for nothing since.
    pub(crate) answered: HashMap<ConnId, (Timestamp, Waiting)>,
    /// Connections of processes that others wait for, and that wait for nothing here.
    pub(crate) idle: Vec<ConnId>,
    /// When those, and agents of which no heartbeat comes, asked for something last.
    pub(crate) heard: HashMap<ConnId, Timestamp>,
    pub(crate) given_up: BTreeMap<Awaited, GivenUp>,
    pub(crate) claims: BTreeMap<(Option<RunKey>, Claim), Claimed>,
    /// The last of them.
    pub(crate) passed: VecDeque<Passed>,
    /// When an operator emptied it last.
    pub(crate) reset: Option<Timestamp>,
    /// Processes that have published something, by the names that they gave themselves.
    pub(crate) publishers: BTreeMap<Box<[u8]>, Publisher>,
    /// What is asked for again and again, as the waits that they are.
    pub(crate) asked: Vec<Waiting>,
    /// Ranks whose connections, these, have just closed: their processes may go on with others.
    pub(crate) closed: HashMap<(IpAddr, u32), (ConnId, Client, Timestamp)>,
    /// Ranks that are known by other connections than these, with which they came.
    pub(crate) moved: HashMap<ConnId, ConnId>,
    /// Where rank 0 has its debug server.
    pub(crate) debug_host: Option<String>,
}

impl StoreWatch {
    /// The port of the debug server's page where nobody chose another. The store is told none.
    const DEBUG_PORT: u16 = 25999;
    /// A process whose wait was answered is not said to be busy before it has asked for nothing for so long.
    const QUIET: Duration = Duration::from_secs(5);
    /// What a client costs, roughly.
    pub(crate) const CLIENT_BYTES: usize = 2 * size_of::<(ConnId, Client)>();

    pub(crate) fn new(port: u16) -> Self {
        Self { port, ..Self::default() }
    }

    /// Where the page of torch's debug server is: with rank 0.
    pub(crate) fn debug_server(&self) -> Option<String> {
        self.debug_host.as_ref().map(|host| format!("{host}:{}", Self::DEBUG_PORT))
    }

    /// A process publishes `key`, whose name it has. `address`: that of a debug server.
    pub(crate) fn publishes(&mut self, conn: ConnId, key: &[u8], address: Option<&[u8]>) {
        const MOST: usize = 1024;
        if debug_server_of(key) == Some(0) {
            self.debug_host = address.and_then(host_of).map(str::to_owned);
        }
        let Some(name) = published_by(key) else { return };
        if self.publishers.len() >= MOST && !self.publishers.contains_key(name) {
            // The one that has been gone for longest makes room.
            let gone = self.publishers.iter().filter_map(|(name, it)| Some((it.gone?, name.clone())));
            let Some((_, oldest)) = gone.min() else { return };
            self.publishers.remove(&oldest);
        }
        self.publishers.insert(name.into(), Publisher { conn, gone: None });
    }

    /// The key of a run that has an id. Whatever the processes of a round call it, they belong to the round's
    /// run.
    pub(crate) fn key_of(&self, id: &RunId) -> RunKey {
        match &self.owner {
            Some(StoreOwner::Round(run)) => RunKey::Id(run.clone()),
            _ => RunKey::Store { port: self.port, id: Some(id.clone()) },
        }
    }

    /// Whether several processes have this address and process id, which tell nothing of a connection then.
    pub(crate) fn is_shared(&self, peer: SocketAddr, pid: Option<u32>) -> bool {
        pid.is_some_and(|pid| self.shared.contains(&(peer.ip(), pid)))
    }

    /// From now on that is known.
    pub(crate) fn share(&mut self, process: Process) {
        self.shared.insert(process);
        let clients = self.clients.values_mut().filter(|it| it.process() == Some(process));
        clients.for_each(|client| client.shares = true);
        let waits = self.waits.values_mut().chain(&mut self.asked);
        waits.filter(|it| it.process() == Some(process)).for_each(|wait| wait.shares = true);
    }

    /// What several processes have, as their waits show: of one that is no rank and no agent, no two
    /// connections wait for one key.
    pub(crate) fn alike(&self) -> HashSet<Process> {
        let mut known: HashMap<(Process, &[u8]), ConnId> = HashMap::new();
        let is_member = |conn: &ConnId| self.clients.get(conn).is_some_and(Client::is_member);
        let waits = self.every_wait().filter(|wait| !self.is_large() && !is_member(&wait.view.conn));
        let twice = waits.filter_map(|wait| {
            let (conn, process) = (wait.view.conn, wait.process()?);
            let first = *known.entry((process, wait.view.missing.first()?)).or_insert(conn);
            (first != conn).then_some(process)
        });
        twice.collect()
    }

    /// The outstanding waits at `now` take the place of those told before. Returns those.
    pub(crate) fn take_waits(
        &mut self,
        mut waits: HashMap<ConnId, Waiting>,
        now: Timestamp,
    ) -> HashMap<ConnId, Waiting> {
        const MOST: usize = 4096;
        /// A wait that goes on is told again within this time.
        const NEXT: Duration = Duration::from_secs(3);
        /// Waits are told when they have lasted for longer than this.
        const AT_ONCE: Duration = Duration::from_millis(500);
        self.waited.retain(|_, last| now.since(*last) < Self::QUIET);
        self.waited.extend(waits.values().map(|wait| (wait.origin(), now)));
        for (conn, wait) in self.waits.iter().filter(|(_, wait)| wait.goes_on()) {
            match waits.get_mut(conn) {
                Some(next) if next.is_for(wait) => next.since = next.since.min(wait.since),
                None if now.since(wait.shown) < NEXT => {
                    waits.insert(*conn, wait.clone());
                }
                _ => {}
            }
        }
        let before = std::mem::replace(&mut self.waits, waits);
        // Where there are so many, not all are told.
        let has_ended = |conn| !self.waits.contains_key(conn) && self.clients.contains_key(conn);
        let ended = before.iter().filter(|(conn, _)| self.waits.len() < MOST && has_ended(*conn));
        self.answered.extend(ended.map(|(conn, wait)| (*conn, (now, wait.clone()))));
        self.answered.retain(|conn, (_, wait)| {
            let asked = self.heard.get(conn).is_some_and(|asked| asked.since(wait.since) >= AT_ONCE);
            !asked && !self.waits.contains_key(conn)
        });
        before
    }

    /// The waits of those that block, and of those that ask again and again.
    pub(crate) fn every_wait(&self) -> impl Iterator<Item = &Waiting> {
        self.waits.values().chain(&self.asked)
    }

    /// Whether the process of a client waited here until just now: it may go on at once.
    pub(crate) fn waited_just_now(&self, client: &Client, now: Timestamp) -> bool {
        let process = client.origin();
        self.waited.get(&process).is_some_and(|last| now.since(*last) < Self::QUIET)
    }

    /// The wait of a client that was answered so long ago that it should have asked for something since.
    pub(crate) fn answered(&self, conn: ConnId, now: Timestamp) -> Option<(Elapsed, &Waiting)> {
        let (at, wait) = self.answered.get(&conn)?;
        let for_seconds = Elapsed(now.since(*at));
        (for_seconds.0 >= Self::QUIET).then_some((for_seconds, wait))
    }

    /// Lets go of those who have ended; where only one is left, not until what was due `before` is told.
    pub(crate) fn settle_claims(&mut self, before: Timestamp) {
        let is_there = |conn: &ConnId| self.clients.contains_key(conn);
        self.claims.retain(|_, Claimed { due, by, .. }| {
            let is_past = due.is_none_or(|due| due <= before);
            if is_past || by.keys().filter(|conn| is_there(conn)).count() > 1 {
                by.retain(|conn, _| is_there(conn));
            }
            by.len() > 1
        });
    }

    /// On which keys clients have given up, when it is known whether they try again.
    pub(crate) fn take_given_up(&mut self, now: Timestamp) -> Vec<(Awaited, GivenUp)> {
        /// Waits are told each second, when they have lasted for one.
        const RETRIED: Duration = Duration::from_secs(3);
        if self.given_up.is_empty() {
            return Vec::new();
        }
        // Who tries again may do so on another connection.
        let mut last_came: HashMap<(IpAddr, u32), Timestamp> = HashMap::new();
        for client in self.clients.values() {
            if let Some(process) = client.process() {
                let since = last_came.entry(process).or_default();
                *since = client.since.max(*since);
            }
        }
        let came = |gave_up: &Evidence| last_came.get(&gave_up.process()?).copied();
        let clients = &self.clients;
        let settled = self.given_up.extract_if(.., |_, given_up| {
            let is_there =
                |(conn, gave_up): &(ConnId, Evidence)| clients.contains_key(conn) || came(gave_up).is_some();
            let may_retry = given_up.who.iter().any(is_there);
            now.since(given_up.at) >= if may_retry { RETRIED } else { SETTLE }
        });
        let mut settled: Vec<_> = settled.collect();
        for (key, given_up) in &mut settled {
            let tries_again = |(conn, gave_up): &(ConnId, Evidence)| {
                self.waits.get(conn).is_some_and(|wait| wait.view.missing.contains(&key.1))
                    || came(gave_up).is_some_and(|since| since >= gave_up.at)
            };
            given_up.again |= given_up.who.iter().any(tries_again);
        }
        // A program that goes on may not need it.
        let has_gone = |conn: &ConnId| !self.clients.contains_key(conn);
        for (_, it) in settled.iter_mut().filter(|(_, it)| it.is_of_program) {
            it.who.retain(|(conn, _)| has_gone(conn));
        }
        settled.retain(|(_, it)| !it.who.is_empty());
        settled
    }

    /// Processes that only counted themselves and ended, when all that end together should be known, and
    /// since when.
    pub(crate) fn take_passed(&mut self, now: Timestamp) -> Option<(Timestamp, Vec<Passed>)> {
        let mut due: Vec<&mut Passed> = self.passed.iter_mut().filter(|passed| !passed.is_told).collect();
        let (since, last) = (due.first()?.closed.at, due.last()?.closed.at);
        let is_over = now.since(last) >= SETTLE || now.since(since) >= SETTLE.saturating_mul(2);
        let passed = due.iter_mut().map(|passed| {
            passed.is_told = is_over;
            passed.clone()
        });
        is_over.then(|| (since, passed.collect()))
    }

    /// Whether a job is in full swing here: a walk over its connections costs.
    pub(crate) fn is_large(&self) -> bool {
        self.clients.len() > 4096
    }

    /// A client left. One that has told no rank is remembered, if its process has no other connection: two
    /// that have counted themselves may be of two.
    pub(crate) fn passed_by(&mut self, conn: ConnId, client: &Client, used_own_keys: bool, now: Timestamp) {
        const MOST: usize = 32;
        let is_nobody = client.pid.is_some() && !client.is_member() && !self.is_large();
        let others = || self.clients.values().filter(|other| other.origin() == client.origin());
        let may_be_one = |other: &Client| !other.has_counted_itself || !client.has_counted_itself;
        if !is_nobody || others().any(may_be_one) {
            return;
        }
        if self.passed.len() == MOST {
            self.passed.pop_front();
        }
        let only_counted_itself = client.has_counted_itself && !client.uses_group && !used_own_keys;
        self.passed.push_back(Passed {
            conn,
            closed: client.evidence(Seen::Closed, now),
            process: client.process().filter(|_| others().next().is_none()),
            place: client.published.as_ref().map(|it| (it.group.clone(), it.rank)),
            only_counted_itself,
            is_told: !only_counted_itself || client.role != Role::Unknown,
        });
    }
}

//! The start gate of a run: pods announce themselves, and the gate opens when all are there. It holds pods
//! *before* PyTorch starts, because a server cannot lengthen PyTorch's own timers. From the gate the server
//! also learns the number of nodes, and the names of missing pods of unmodified jobs. A gate opens once:
//! later every pod passes at once, except a pod whose node rank another live pod holds. A pod lives for
//! [`Gates::pod_timeout`] after its last sign of life. Signs of life are an announcement (a waiting pod
//! repeats it every few seconds) and an open connection from its address, by a relay or to any store (the
//! shell reports these with [`Gates::tick`]). Pods behind one address keep each other alive. A pod whose
//! relay has lost its link may be dead: it keeps its rank but does not count, until it or its link comes
//! again. If the connection of a held request breaks, its pod is gone at once ([`Gates::cut`]), until it
//! comes again.
//!
//! A pod is identified by its name and its node rank, so two commands on one host are two pods. A pod with a
//! known name and rank but another UID is the successor of the earlier pod, which counts as gone. If the
//! earlier pod then announces itself again, two live pods claim one place. With a rank, the earlier pod is
//! held back and told so. Without ranks, they count as two pods. Any new pod with the name of a pod whose
//! connection broke is its successor, because the pod may have been started again with a corrected rank.
//!
//! Pure: the shell passes in time and addresses, holds the lock, and wakes the requests that wait.

mod held;
mod kept;
mod pods;
mod progress;
mod snapshot;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use kept::KeptChange;
use pods::Pods;
pub use progress::{GateProgress, Missing};
use rallypoint_map::HashMap;
use rallypoint_protocol::ids::{Elapsed, Nodes, Timestamp};
pub use snapshot::{GateSnapshot, GateState, KnownPod, TurnedAway};

/// Most pods of one run.
pub const MAX_PODS: usize = 100_000;
/// Most pods of one run that are remembered after they were refused or got a successor.
const MAX_TURNED_AWAY: usize = 256;
/// Bytes of a pod's name, UID or version, and of a run id.
const MAX_TEXT: usize = 256;

/// What a pod says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announcement {
    /// Its name.
    pub pod: String,
    /// The UID, which differs between pods with this name and node rank. May be empty.
    pub uid: String,
    /// Its node rank, if it has one.
    pub node_rank: Option<u32>,
    /// How many nodes it expects.
    pub nodes: Nodes,
    /// The address from which it connects.
    pub address: IpAddr,
    /// Its own address, if it knows it: several pods may connect from one address.
    #[serde(default)]
    pub ip: Option<IpAddr>,
    /// Its version of PyTorch, if it knows it.
    pub torch: Option<String>,
    /// How many ranks the job has, if it gives its command that number.
    #[serde(default)]
    pub world_size: Option<u32>,
    /// Whether it may start a run again that has finished.
    pub restarts: bool,
}

/// How an announced pod stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodStanding {
    /// It may start.
    Go(Opened),
    /// Other pods are missing.
    Waiting(GateProgress),
    /// Another live pod has its node rank.
    Parked {
        /// The rank.
        node_rank: u32,
        /// The pod that holds it.
        holder: String,
        /// The address of that pod.
        address: IpAddr,
        /// Time since its last sign of life.
        silent: Duration,
        /// Whether the link of its relay is away.
        is_away: bool,
    },
}

/// A gate that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// The time from the first announcement to the opening.
    pub after: Duration,
    /// How many pods were there.
    pub pods: usize,
    /// Whether this announcement opened it.
    #[serde(skip)]
    pub just_now: bool,
}

/// Why an announcement is refused. The message says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PodRefusal {
    /// Two pods of one run expect different numbers of nodes.
    #[error(
        "this pod expects {said} nodes, but pod `{other}` expects {expected} for run `{run_id}`; every pod \
         of a run must expect the same. If the run was resized, end its old pods first"
    )]
    Disagree {
        /// The run.
        run_id: String,
        /// The number that this pod expects.
        said: Nodes,
        /// A pod that expects another number.
        other: String,
        /// The number that the other pod expects.
        expected: Nodes,
    },
    /// The run has finished.
    #[error(
        "run `{run_id}` finished {} ago, and a pod that starts it again would train over its results; if it \
         is meant to run again: --restart-finished on (RALLYPOINT_RESTART_FINISHED), another --run-id, or \
         DELETE /api/v1/runs/{run_id}",
        Elapsed(*.ago)
    )]
    Finished {
        /// The run.
        run_id: String,
        /// The time since then.
        ago: Duration,
    },
    /// The node rank is too high for the number of nodes.
    #[error("node rank {rank} does not fit {nodes} nodes; ranks are 0 to {}", nodes.max.saturating_sub(1))]
    Rank {
        /// The rank.
        rank: u32,
        /// The number of nodes.
        nodes: Nodes,
    },
    /// A text is empty or too long.
    #[error("{0} must have 1 to {MAX_TEXT} bytes")]
    Text(&'static str),
    /// The run is full.
    #[error("run `{0}` has {MAX_PODS} announced pods, which is the most")]
    TooManyPods(String),
    /// The gates already use all the memory that they may.
    #[error("the server has no memory left for another announced pod; give it more with --max-memory")]
    NoMemory,
    /// The server is full.
    #[error("{0} runs gather pods on this server, which is the most (--max-runs)")]
    TooManyRuns(usize),
}

/// A name and a node rank.
type NameAndRank = (String, Option<u32>);
/// What identifies a pod: its name and rank, and its UID.
pub type PodKey = (NameAndRank, String);

impl Announcement {
    /// Bytes of a pod. Its texts are kept three times.
    fn memory(&self) -> usize {
        const POD: usize = 768;
        let texts = [self.pod.len(), self.uid.len(), self.torch.as_ref().map_or(0, String::len)];
        texts.into_iter().sum::<usize>().saturating_mul(3).saturating_add(POD)
    }

    /// Its address, for people.
    pub fn shown_at(&self) -> IpAddr {
        self.ip.unwrap_or(self.address)
    }

    fn place(&self) -> NameAndRank {
        (self.pod.clone(), self.node_rank)
    }

    fn key(&self) -> PodKey {
        (self.place(), self.uid.clone())
    }

    /// Whether one pod can be the successor of the other.
    fn is_same_place(&self, other: &Self) -> bool {
        self.pod == other.pod && self.node_rank == other.node_rank
    }
}

/// A pod that announced itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its last announcement.
    pub said: Announcement,
    /// Its last sign of life.
    pub seen: Timestamp,
    /// The number of its last request that was held here.
    request: u64,
    /// Whether the connection of that request broke and the pod has not come again.
    is_cut: bool,
    /// Whether it was let go.
    has_passed: bool,
    /// How often it has gone: such a connection broke, or it came again after it was let go.
    gone: u32,
    /// The last known state of its connection.
    contact: Contact,
}

/// What is known of the connections from an address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Contact {
    /// There is none.
    #[default]
    None,
    /// There is one.
    Connected,
    /// The link of a relay, which is away: it is not known whether the pod is there.
    Away,
}

impl Member {
    const fn new(said: Announcement, seen: Timestamp) -> Self {
        Self { said, seen, request: 0, is_cut: false, has_passed: false, gone: 0, contact: Contact::None }
    }

    /// Whether it lives, at least so far that it keeps its rank.
    pub fn is_live(&self, now: Timestamp, timeout: Duration) -> bool {
        !self.is_cut && now.since(self.seen) < timeout
    }

    /// Whether it is there, as far as is known.
    pub fn is_there(&self, now: Timestamp, timeout: Duration) -> bool {
        self.is_live(now, timeout) && self.contact != Contact::Away
    }
}

/// One run's gate.
#[derive(Debug, Clone)]
pub struct Gate {
    members: Pods,
    /// Pods that were refused: their node rank is held, or they expect another number of nodes. Until the
    /// gate opens also those that have gone since, which may come again.
    turned_away: BTreeMap<NameAndRank, Member>,
    /// Pods that have a successor, with their last signs of life.
    replaced: BTreeMap<PodKey, Timestamp>,
    since: Timestamp,
    opened: Option<Opened>,
    /// Whether the previous server opened it.
    is_restored: bool,
    /// Bytes of the largest pod.
    largest: usize,
    /// Members that were there at the last tick.
    there: usize,
    /// Members that lived at the last tick.
    live: usize,
    has_changed: bool,
    /// Pods of this gate, or of an earlier one of the run, whose changes the journal does not know.
    moved: Vec<PodKey>,
    /// A number that changes with every change.
    version: u64,
}

/// The gates of all runs.
#[derive(Debug)]
pub struct Gates {
    by_run: HashMap<String, Gate>,
    pod_timeout: Duration,
    /// Most runs at the same time.
    max_runs: usize,
    /// Bytes that all pods may take.
    max_memory: usize,
    /// Goes up with every visible change. A repeated announcement is none.
    version: u64,
    /// Changes that the journal does not know: runs, and pods of each.
    unkept: HashMap<String, BTreeSet<PodKey>>,
}

impl Gates {
    /// `pod_timeout` is how long a pod counts after its last sign of life. `max_runs` is how many runs there
    /// may be.
    pub fn new(pod_timeout: Duration, max_runs: usize) -> Self {
        let (by_run, unkept) = (HashMap::default(), HashMap::default());
        Self { by_run, pod_timeout, max_runs, max_memory: usize::MAX, version: 0, unkept }
    }

    /// Sets how many bytes all pods may take.
    pub fn limit_memory(&mut self, bytes: usize) {
        self.max_memory = bytes;
    }

    /// Bytes of all pods, here and wherever they are shown.
    pub fn memory(&self) -> usize {
        self.by_run.values().map(Gate::memory).sum()
    }

    /// How long a pod counts after its last sign of life.
    pub const fn pod_timeout(&self) -> Duration {
        self.pod_timeout
    }

    /// Whether the pod already waits, so that its announcement is a repeated one.
    pub fn is_waiting(&self, run_id: &str, said: &Announcement) -> bool {
        self.by_run.get(run_id).is_some_and(|gate| gate.opened.is_none() && gate.knows(said))
    }

    /// Takes an announcement, new or repeated. `finished` is when the run's training ended, if it did. It is
    /// not needed for a pod that [waits](Self::is_waiting).
    pub fn announce(
        &mut self,
        run_id: &str,
        said: &Announcement,
        finished: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<PodStanding, PodRefusal> {
        check(run_id, said)?;
        if let (Some(at), false) = (finished, said.restarts) {
            return Err(PodRefusal::Finished { run_id: run_id.to_owned(), ago: now.since(at) });
        }
        if !self.by_run.contains_key(run_id) && self.by_run.len() >= self.max_runs {
            return Err(PodRefusal::TooManyRuns(self.max_runs));
        }
        let is_known = self.by_run.get(run_id).is_some_and(|gate| gate.knows(said));
        if !is_known && self.memory().saturating_add(said.memory()) > self.max_memory {
            return Err(PodRefusal::NoMemory);
        }
        let timeout = self.pod_timeout;
        let gate = self.by_run.entry(run_id.to_owned()).or_insert_with(|| Gate::new(now));
        if finished.is_some_and(|at| gate.since <= at) {
            gate.begin_anew(now);
        }
        let standing = gate.announce(run_id, said, now, timeout);
        if !gate.moved.is_empty() {
            self.unkept.entry(run_id.to_owned()).or_default().extend(gate.moved.drain(..));
        }
        if std::mem::take(&mut gate.has_changed) {
            self.version = self.version.saturating_add(1);
            gate.version = self.version;
        }
        standing
    }

    /// From now on, request number `request` of the pod is held here, until [`Self::cut`] or its answer.
    pub fn park(&mut self, run_id: &str, said: &Announcement, request: u64) {
        let Some(gate) = self.by_run.get_mut(run_id) else { return };
        let is_open = gate.opened.is_some();
        let Some(held) = gate.held_mut(said) else { return };
        let is_new = request > held.request;
        held.request = held.request.max(request);
        let Some(passes) = gate.members.get_mut(&said.key()).filter(|_| is_open) else { return };
        if std::mem::replace(&mut passes.has_passed, true) && is_new {
            passes.gone = passes.gone.saturating_add(1);
            self.version = self.version.saturating_add(1);
            gate.version = self.version;
        }
    }

    /// The connection of that request broke. Unless a later request of the pod is held, the pod is gone.
    /// Returns whether it is.
    pub fn cut(&mut self, run_id: &str, said: &Announcement, request: u64, now: Timestamp) -> bool {
        let Some(gate) = self.by_run.get_mut(run_id) else { return false };
        if gate.held_mut(said).is_none_or(|held| held.request != request) {
            return false;
        }
        gate.members.cut(&said.key(), now);
        if let Some(pod) = gate.turned_away.get_mut(&said.place()).filter(|pod| pod.said == *said) {
            (pod.is_cut, pod.seen) = (true, now);
        }
        gate.replaced.remove(&said.key());
        self.version = self.version.saturating_add(1);
        gate.version = self.version;
        true
    }

    /// Notes which pods are connected, and whose links are away. Forgets runs whose pods have all been silent
    /// for the pod timeout.
    pub fn tick(&mut self, now: Timestamp, contact: impl Fn(IpAddr) -> Contact) {
        let (timeout, version, unkept) = (self.pod_timeout, &mut self.version, &mut self.unkept);
        self.by_run.retain(|run_id, gate| {
            let gathers = gate.opened.is_none();
            gate.members.look(now, timeout, |said| match contact(said.address) {
                // At an open gate nobody waits for a pod, so an absent link counts as no connection.
                Contact::Away if !gathers => Contact::None,
                contact => contact,
            });
            gate.members.call_roll(now, timeout);
            let mut have_gone = false;
            for pod in gate.turned_away.values_mut().filter(|pod| !pod.is_cut && !pod.is_live(now, timeout)) {
                (pod.is_cut, have_gone) = (true, true);
            }
            gate.turned_away.retain(|_, pod| gathers || !pod.is_cut);
            gate.replaced.retain(|_, seen| now.since(*seen) < timeout);
            let (there, live) = {
                let roll = gate.members.roll(now, timeout);
                (roll.there, roll.live())
            };
            if have_gone || (there, live) != (gate.there, gate.live) {
                *version = version.saturating_add(1);
                (gate.there, gate.live, gate.version) = (there, live, *version);
            }
            if live == 0 && gate.opened.is_some() {
                unkept.entry(run_id.clone()).or_default().extend(gate.members.behind(None).cloned());
            }
            live > 0
        });
    }

    /// A number that changes with every change.
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// The gate of a run, if any pod announced itself for it.
    pub fn of(&self, run_id: &str) -> Option<&Gate> {
        self.by_run.get(run_id)
    }

    /// How many pods of a run have a successor but may still be there.
    pub fn replaced(&self, run_id: &str) -> usize {
        self.of(run_id).map_or(0, |gate| gate.replaced.len())
    }

    /// All gates by run id, in no order.
    pub fn all(&self) -> impl Iterator<Item = (&str, &Gate)> {
        self.by_run.iter().map(|(run_id, gate)| (run_id.as_str(), gate))
    }
}

fn check(run_id: &str, said: &Announcement) -> Result<(), PodRefusal> {
    let fits = |text: &str| (1..=MAX_TEXT).contains(&text.len());
    if !fits(run_id) {
        return Err(PodRefusal::Text("a run id"));
    }
    if !fits(&said.pod) {
        return Err(PodRefusal::Text("the name of a pod"));
    }
    if said.uid.len() > MAX_TEXT || said.torch.as_ref().is_some_and(|torch| torch.len() > MAX_TEXT) {
        return Err(PodRefusal::Text("a UID or a version"));
    }
    match said.node_rank {
        Some(rank) if rank >= said.nodes.max => Err(PodRefusal::Rank { rank, nodes: said.nodes }),
        _ => Ok(()),
    }
}

impl Gate {
    fn new(now: Timestamp) -> Self {
        Self {
            members: Pods::default(),
            turned_away: BTreeMap::new(),
            replaced: BTreeMap::new(),
            since: now,
            opened: None,
            is_restored: false,
            largest: 0,
            there: 0,
            live: 0,
            has_changed: true,
            moved: Vec::new(),
            version: 0,
        }
    }

    fn memory(&self) -> usize {
        const RUN: usize = 4096;
        let pods = [self.members.len(), self.turned_away.len(), self.replaced.len()];
        pods.into_iter().sum::<usize>().saturating_mul(self.largest).saturating_add(RUN)
    }

    fn knows(&self, said: &Announcement) -> bool {
        self.members.get(&said.key()).is_some()
    }

    /// The pod, whether it was accepted or refused.
    fn held_mut(&mut self, said: &Announcement) -> Option<&mut Member> {
        let turned_away = self.turned_away.get_mut(&said.place()).filter(|pod| pod.said.uid == said.uid);
        turned_away.or_else(|| self.members.get_mut(&said.key()))
    }

    /// The pods with this name and node rank. Only without a rank can there be several.
    fn at_place(&self, said: &Announcement) -> impl Iterator<Item = &Member> {
        self.members.at_place(said.place()).map(|(_, member)| member)
    }

    fn announce(
        &mut self,
        run_id: &str,
        said: &Announcement,
        now: Timestamp,
        timeout: Duration,
    ) -> Result<PodStanding, PodRefusal> {
        self.largest = self.largest.max(said.memory());
        self.members.call_roll(now, timeout);
        let known = self.knows(said);
        let speaks_again =
            !known && self.replaced.get(&said.key()).is_some_and(|seen| now.since(*seen) < timeout);
        let is_live = |member: &&Member| member.is_live(now, timeout);
        let successor = self.at_place(said).find(is_live).filter(|_| speaks_again);
        let beside = known || successor.is_some();
        let is_other = |member: &&Member| is_live(member) && !member.said.is_same_place(said);
        let holder = said.node_rank.and_then(|rank| {
            let successor = successor.filter(|other| other.said.node_rank == Some(rank));
            successor.or_else(|| self.members.holder(rank).filter(is_other))
        });
        let live_there = self.at_place(said).filter(is_live).count();
        if !beside && self.members.roll(now, timeout).live() <= live_there {
            // No earlier pod is left: these pods belong to a new run with this id, or were held back until
            // now.
            let last = self.begin_anew(now);
            if last.opened.is_none() && last.turned_away.values().any(|pod| pod.is_live(now, timeout)) {
                self.since = last.since;
            }
            let live = last.members.iter().filter(|(_, member)| is_live(member));
            let live = live.map(|(key, member)| (key.clone(), member.seen));
            self.replaced.extend(live.take(MAX_TURNED_AWAY));
        } else if let Some(holder) = holder {
            let standing = PodStanding::Parked {
                node_rank: said.node_rank.unwrap_or_default(),
                holder: holder.said.pod.clone(),
                address: holder.said.shown_at(),
                silent: now.since(holder.seen),
                is_away: holder.contact == Contact::Away,
            };
            if let Some(seen) = self.replaced.get_mut(&said.key()) {
                *seen = now;
            }
            self.turn_away(said, now, timeout);
            return Ok(standing);
        } else if self.opened.is_none()
            && let Some(other) = self.members.with_other_nodes(said.nodes, is_other)
        {
            let refused = PodRefusal::Disagree {
                run_id: run_id.to_owned(),
                said: said.nodes,
                other: other.said.pod.clone(),
                expected: other.said.nodes,
            };
            self.turn_away(said, now, timeout);
            return Err(refused);
        }
        if !known && self.members.len() >= MAX_PODS {
            return Err(PodRefusal::TooManyPods(run_id.to_owned()));
        }
        self.take_in(said, beside, now, timeout);
        Ok(self.standing(said.nodes, now, timeout))
    }

    /// Adds a pod to the members. The pod that held its rank is removed. So is its predecessor, unless the
    /// pod stands `beside` other pods of its name. Pods of its name that were cut are predecessors of a new
    /// pod.
    fn take_in(&mut self, said: &Announcement, beside: bool, now: Timestamp, timeout: Duration) {
        let key = said.key();
        let mut leaving: Vec<PodKey> = match said.node_rank {
            Some(rank) => self.members.holder(rank).map(|holder| holder.said.key()).into_iter().collect(),
            None if beside => Vec::new(),
            None => self.members.at_place(said.place()).map(|(key, _)| key.clone()).collect(),
        };
        if !self.knows(said) {
            leaving.extend(self.members.cut_of(&said.pod).cloned());
        }
        let mut gone = 0_u32;
        for other in leaving.into_iter().filter(|other| *other != key) {
            let before = self.members.get(&other).filter(|_| other.0 == key.0);
            let times = before.map_or(0, |it| it.gone.saturating_add(it.has_passed.into()));
            gone = gone.saturating_add(times);
            let Some(seen) = self.members.remove(&other, now, timeout) else { continue };
            if other.0 == key.0 && self.replaced.len() < MAX_TURNED_AWAY {
                self.replaced.insert(other.clone(), seen);
            }
            if self.opened.is_some() {
                self.moved.push(other);
            }
        }
        self.replaced.remove(&key);
        if !self.knows(said) {
            // A pod of this name may have been refused with another rank before.
            self.turned_away.retain(|(pod, _), _| *pod != said.pod);
        }
        let lived = self.members.insert(said, now, timeout);
        self.members.have_gone(&key, gone);
        if self.opened.is_some() && lived.is_none() {
            self.moved.push(key);
        }
        self.has_changed |= lived != Some(true);
    }

    fn turn_away(&mut self, said: &Announcement, now: Timestamp, timeout: Duration) {
        let place = said.place();
        if self.turned_away.len() >= MAX_TURNED_AWAY && !self.turned_away.contains_key(&place) {
            // The one that has been gone for longest makes room.
            let gone = self.turned_away.iter().min_by_key(|(_, pod)| pod.seen);
            if let Some(gone) = gone.filter(|(_, pod)| !pod.is_live(now, timeout)) {
                let gone = gone.0.clone();
                self.turned_away.remove(&gone);
            }
        }
        if self.turned_away.len() < MAX_TURNED_AWAY || self.turned_away.contains_key(&place) {
            let before = self.turned_away.insert(place, Member::new(said.clone(), now));
            self.has_changed |= before.is_none_or(|before| before.said != *said);
        }
    }

    /// Opens the gate if all pods are there, and returns how the pod stands.
    fn standing(&mut self, nodes: Nodes, now: Timestamp, timeout: Duration) -> PodStanding {
        if let Some(opened) = self.opened {
            return PodStanding::Go(Opened { just_now: false, ..opened });
        }
        let there = self.members.roll(now, timeout).there;
        if there >= nodes.min as usize {
            let opened = Opened { after: now.since(self.since), pods: there, just_now: true };
            self.opened = Some(opened);
            self.moved.extend(self.members.behind(None).cloned());
            self.has_changed = true;
            return PodStanding::Go(opened);
        }
        PodStanding::Waiting(GateProgress::of(self, nodes, now, timeout))
    }

    fn there(&self, now: Timestamp, timeout: Duration) -> impl Iterator<Item = &Member> {
        self.members.values().filter(move |member| member.is_there(now, timeout))
    }

    /// The pods that announced themselves, by name.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// How many nodes the run has, according to its pods.
    pub fn nodes(&self) -> Option<Nodes> {
        self.members.values().map(|member| member.said.nodes).next()
    }

    /// Whether the gate is open.
    pub const fn opened(&self) -> Option<Opened> {
        self.opened
    }

    /// When the first pod announced itself.
    pub const fn since(&self) -> Timestamp {
        self.since
    }

    /// A number that changes with every change.
    pub const fn version(&self) -> u64 {
        self.version
    }
}

#[cfg(test)]
mod tests;

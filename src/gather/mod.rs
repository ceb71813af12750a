//! The start gate of a run: pods announce themselves and are let go when all are there.
//!
//! It holds pods *before* PyTorch starts, whose own timers a server cannot lengthen, and it is how the server learns the
//! number of nodes and the names of the missing for unmodified jobs. A gate opens once: later every pod passes at once,
//! but for one whose node rank another live pod holds. A pod is live for [`Gatherings::pod_timeout`] after it was last
//! heard of: an announcement (a waiting pod repeats it every few seconds), or an open connection from its address to any
//! store (which the shell reports with [`Gatherings::tick`]). Pods behind one address keep each other alive.
//!
//! Pure: time and addresses are handed in; the shell holds the lock and wakes those who wait.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::print_stdout, clippy::print_stderr)]

mod progress;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use crate::ids::Uptime;
use crate::launch::Nodes;
pub use progress::{Progress, Versions};

/// Pods of one run at the most.
pub const MAX_PODS: usize = 100_000;
/// Runs at the same time at the most.
pub const MAX_RUNS: usize = 1000;
/// Bytes of a pod's name, UID or version, and of a run id.
const MAX_TEXT: usize = 256;

/// What a pod says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    /// Its name, the key of the announcement.
    pub pod: String,
    /// Another one for each pod of that name; may be empty.
    pub uid: String,
    /// Its place among the nodes, if it has one.
    pub node_rank: Option<u32>,
    /// How many nodes the pod expects.
    pub nodes: Nodes,
    /// Where it connects from.
    pub address: IpAddr,
    /// Its version of PyTorch, if it knows it.
    pub torch: Option<String>,
}

/// Where an announced pod stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It may start.
    Go(Opened),
    /// Others are missing.
    Gathering(Progress),
    /// Another live pod has its node rank.
    Parked {
        /// The rank.
        node_rank: u32,
        /// The pod that holds it.
        holder: String,
        /// Where that pod connects from.
        address: IpAddr,
        /// When it was last heard of.
        silent: Duration,
    },
}

/// A gate that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// How long it took from the first announcement.
    pub after: Duration,
    /// How many pods were there.
    pub pods: usize,
    /// Whether this very announcement opened it.
    pub just_now: bool,
}

/// Why an announcement is not taken. The message says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Two numbers of nodes in one run.
    #[error(
        "this pod expects {said} nodes, but pod `{other}` expects {expected} for run `{run_id}`; every pod of a run must \
         expect the same. If the run was resized, end its old pods first"
    )]
    Disagree {
        /// The run.
        run_id: String,
        /// What the pod says.
        said: Nodes,
        /// A pod that says otherwise.
        other: String,
        /// What that one says.
        expected: Nodes,
    },
    /// A rank without a place.
    #[error("node rank {rank} does not fit {nodes} nodes; ranks are 0 to {}", nodes.max - 1)]
    Rank {
        /// The rank.
        rank: u32,
        /// The nodes.
        nodes: Nodes,
    },
    /// Text that is empty or too long.
    #[error("{0} must have 1 to {MAX_TEXT} bytes")]
    Text(&'static str),
    /// The run is full.
    #[error("run `{0}` has {MAX_PODS} announced pods, which is the most")]
    TooManyPods(String),
    /// The server is full.
    #[error("{MAX_RUNS} runs gather pods on this server, which is the most")]
    TooManyRuns,
}

/// A pod that announced itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// What it said last.
    pub said: Announcement,
    /// When it was last heard of.
    pub seen: Uptime,
}

/// One run's gate.
#[derive(Debug, Clone)]
pub struct Run {
    members: BTreeMap<String, Member>,
    since: Uptime,
    opened: Option<Opened>,
}

/// The gates of all runs.
#[derive(Debug)]
pub struct Gatherings {
    runs: HashMap<String, Run>,
    pod_timeout: Duration,
}

impl Gatherings {
    /// `pod_timeout` is how long a pod counts after it was last heard of.
    pub fn new(pod_timeout: Duration) -> Self {
        Self { runs: HashMap::new(), pod_timeout }
    }

    /// How long a pod counts after it was last heard of.
    pub const fn pod_timeout(&self) -> Duration {
        self.pod_timeout
    }

    /// Takes an announcement, or the same one again.
    pub fn announce(&mut self, run_id: &str, said: Announcement, now: Uptime) -> Result<Standing, Refused> {
        check(run_id, &said)?;
        if !self.runs.contains_key(run_id) && self.runs.len() >= MAX_RUNS {
            return Err(Refused::TooManyRuns);
        }
        let timeout = self.pod_timeout;
        let run = self.runs.entry(run_id.to_owned()).or_insert_with(|| Run::new(now));
        let is_live = |member: &Member| now.since(member.seen) < timeout;
        let known = run.members.get(&said.pod).is_some_and(|member| member.said.uid == said.uid);
        let others = || run.members.values().filter(|member| member.said.pod != said.pod && is_live(member));
        if !known && others().next().is_none() {
            // Nobody of the earlier pods is left: these are pods of a new run with the same id.
            *run = Run::new(now);
        } else if let Some(holder) =
            others().find(|other| said.node_rank.is_some() && other.said.node_rank == said.node_rank)
        {
            return Ok(Standing::Parked {
                node_rank: said.node_rank.unwrap_or_default(),
                holder: holder.said.pod.clone(),
                address: holder.said.address,
                silent: now.since(holder.seen),
            });
        } else if let Some(other) =
            others().find(|other| other.said.nodes != said.nodes && run.opened.is_none())
        {
            return Err(Refused::Disagree {
                run_id: run_id.to_owned(),
                said: said.nodes,
                other: other.said.pod.clone(),
                expected: other.said.nodes,
            });
        }
        if !known && run.members.len() >= MAX_PODS {
            return Err(Refused::TooManyPods(run_id.to_owned()));
        }
        // Whoever held the rank before is gone.
        run.members.retain(|_, other| said.node_rank.is_none() || other.said.node_rank != said.node_rank);
        let nodes = said.nodes;
        run.members.insert(said.pod.clone(), Member { said, seen: now });
        Ok(run.standing(nodes, now, timeout))
    }

    /// Takes note of the pods that are connected, and forgets runs of which nobody has been heard for the pod timeout.
    pub fn tick(&mut self, now: Uptime, is_connected: impl Fn(IpAddr) -> bool) {
        let timeout = self.pod_timeout;
        self.runs.retain(|_, run| {
            for member in run.members.values_mut().filter(|member| is_connected(member.said.address)) {
                member.seen = now;
            }
            run.members.values().any(|member| now.since(member.seen) < timeout)
        });
    }

    /// The run, if anybody announced himself for it.
    pub fn run(&self, run_id: &str) -> Option<&Run> {
        self.runs.get(run_id)
    }

    /// All runs by id, in no order.
    pub fn runs(&self) -> impl Iterator<Item = (&str, &Run)> {
        self.runs.iter().map(|(run_id, run)| (run_id.as_str(), run))
    }
}

fn check(run_id: &str, said: &Announcement) -> Result<(), Refused> {
    let fits = |text: &str| (1..=MAX_TEXT).contains(&text.len());
    if !fits(run_id) {
        return Err(Refused::Text("a run id"));
    }
    if !fits(&said.pod) {
        return Err(Refused::Text("the name of a pod"));
    }
    if said.uid.len() > MAX_TEXT || said.torch.as_ref().is_some_and(|torch| torch.len() > MAX_TEXT) {
        return Err(Refused::Text("a UID or a version"));
    }
    match said.node_rank {
        Some(rank) if rank >= said.nodes.max => Err(Refused::Rank { rank, nodes: said.nodes }),
        _ => Ok(()),
    }
}

impl Run {
    fn new(now: Uptime) -> Self {
        Self { members: BTreeMap::new(), since: now, opened: None }
    }

    /// Opens the gate if all are there, and says how things stand.
    fn standing(&mut self, nodes: Nodes, now: Uptime, timeout: Duration) -> Standing {
        if let Some(opened) = self.opened {
            return Standing::Go(Opened { just_now: false, ..opened });
        }
        let live = self.live(now, timeout).count();
        if live >= nodes.min as usize {
            let opened = Opened { after: now.since(self.since), pods: live, just_now: true };
            self.opened = Some(opened);
            return Standing::Go(opened);
        }
        Standing::Gathering(Progress::of(self, nodes, now, timeout))
    }

    fn live(&self, now: Uptime, timeout: Duration) -> impl Iterator<Item = &Member> {
        self.members.values().filter(move |member| now.since(member.seen) < timeout)
    }

    /// The pods that announced themselves, by name.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// How many nodes the run has, by its pods.
    pub fn nodes(&self) -> Option<Nodes> {
        self.members.values().map(|member| member.said.nodes).next()
    }

    /// Whether the gate is open.
    pub const fn opened(&self) -> Option<Opened> {
        self.opened
    }

    /// When the first pod announced itself.
    pub const fn since(&self) -> Uptime {
        self.since
    }

    /// Whether the pods have different versions of PyTorch.
    pub fn has_several_versions(&self) -> bool {
        let mut versions = self.members.values().filter_map(|member| member.said.torch.as_ref());
        let first = versions.next();
        versions.any(|version| Some(version) != first)
    }

    /// Which versions of PyTorch the pods have.
    pub fn versions(&self) -> Versions {
        Versions::of(self)
    }
}

#[cfg(test)]
mod tests;

//! The links of relays: which are away, and which were for too long. Their clients are no worse off than if
//! the server were slow, so nothing is said of them meanwhile.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::facts::plan::Plan;
use crate::reason::{But, Presence, Sighting};
use rallypoint_api::LinkCounts;
use rallypoint_protocol::ids::Timestamp;

/// A link that is away.
#[derive(Debug, Clone)]
pub struct AwayLink {
    /// The relay's name.
    pub name: String,
    /// Where it came from last.
    pub addr: IpAddr,
    /// Its clients, which its relay holds: what the server takes for their addresses.
    pub clients: Vec<SocketAddr>,
    /// Since when.
    pub since: Timestamp,
    /// What broke it, where that was seen.
    pub why: Option<String>,
}

/// A relay has come, or it has none of its clients any more.
#[derive(Debug, Clone)]
pub struct LinkNews {
    /// The relay's name.
    pub name: String,
    /// What happened.
    pub what: LinkEvent,
    /// When.
    pub at: Timestamp,
}

/// What happened to a link as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkEvent {
    /// A relay has connected that was not known, or takes the place of one with its name.
    Came,
    /// Another relay has come that has its name, and was turned away. It comes again and again.
    Namesake {
        /// Where that comes from.
        from: IpAddr,
        /// Where the one comes from that has the name.
        other: IpAddr,
    },
    /// The relay said that it goes.
    Left,
    /// It was away for too long. Its clients are gone.
    Lost {
        /// How many it had.
        clients: usize,
    },
}

/// What is known of the links.
#[derive(Debug, Default)]
pub(crate) struct Links {
    pub(crate) counts: LinkCounts,
    pub(crate) away: Vec<AwayLink>,
    /// Their clients, and since when.
    behind: HashMap<SocketAddr, Timestamp>,
    /// The clients of those that are back, and since when: for a few seconds.
    back: HashMap<SocketAddr, Timestamp>,
    /// What has happened, not yet told.
    pub(crate) untold: Vec<LinkNews>,
    /// How and when those ended whose relays have not come again.
    ended: BTreeMap<String, LinkNews>,
    /// For how long the clients of a link stay while it is away.
    pub(crate) grace: Duration,
    /// Goes up with every relay that comes or goes.
    pub(crate) version: u64,
}

impl Links {
    /// The server remembers of so many relays how they ended.
    const MOST_ENDED: usize = 4096;

    pub(crate) fn new(grace: Duration) -> Self {
        Self { grace, ..Self::default() }
    }

    /// This has happened since the last call, in this order.
    pub(crate) fn hear(&mut self, news: Vec<LinkNews>) {
        for news in news {
            self.version = self.version.saturating_add(1);
            self.untold.push(news.clone());
            match news.what {
                LinkEvent::Came => drop(self.ended.remove(&news.name)),
                LinkEvent::Namesake { .. } => {}
                LinkEvent::Lost { .. } | LinkEvent::Left => {
                    let oldest = || self.ended.values().min_by_key(|ended| ended.at);
                    if self.ended.len() >= Self::MOST_ENDED
                        && let Some(oldest) = oldest().map(|oldest| oldest.name.clone())
                    {
                        self.ended.remove(&oldest);
                    }
                    self.ended.insert(news.name.clone(), news);
                }
            }
        }
    }

    /// What was heard of a pod since it announced itself. `seen` is its last sign of life at the gate, if it
    /// does not count there any more.
    pub(crate) fn since_announced(&self, plan: &Plan, pod: &str, seen: Option<Timestamp>) -> Sighting {
        // What was before is of another job.
        let began = plan.gate().map(|gate| gate.since).unwrap_or_default();
        let of_relay = if plan.is_only(pod) { self.of_pod(pod, began) } else { None };
        let silent = || seen.map(|seen| Sighting::at(Presence::Silent, seen));
        let seen = of_relay.or_else(silent).unwrap_or_else(|| Presence::Announced.into());
        let mut in_a_loop = plan.gate().into_iter().flat_map(|gate| &gate.in_a_loop);
        match in_a_loop.find(|(name, _)| name == pod) {
            Some(&(_, times)) => seen.but(But::CameAgain { times }),
            None => seen,
        }
    }

    /// What became of the relay of a pod that is the only one of its name, if it is not connected. Outside of
    /// Kubernetes the relay has the port in its name, too.
    fn of_pod(&self, pod: &str, began: Timestamp) -> Option<Sighting> {
        let first = self.away.partition_point(|link| link.name.as_str() < pod);
        let named_so = self.away.iter().skip(first).take_while(|link| link.name.starts_with(pod));
        let away = named_so.filter(|link| link.since >= began).find(|link| is_of_pod(&link.name, pod));
        away.map(|link| Sighting::at(Presence::Away, link.since)).or_else(|| {
            let ended = self.ended_of(pod, began)?;
            let is_lost = matches!(ended.what, LinkEvent::Lost { .. });
            Some(Sighting::at(if is_lost { Presence::Unreachable } else { Presence::Left }, ended.at))
        })
    }

    /// How the relay of a pod ended that came after `began`, if it has not come again.
    fn ended_of(&self, pod: &str, began: Timestamp) -> Option<&LinkNews> {
        let ended = self.ended.range(pod.to_owned()..).take_while(|(name, _)| name.starts_with(pod));
        let ended = ended.filter(|(name, ended)| is_of_pod(name, pod) && ended.at >= began);
        ended.map(|(_, ended)| ended).max_by_key(|ended| ended.at)
    }

    /// The pods of a run that announced themselves and whose relays are gone, and since when.
    pub(crate) fn gone(&self, plan: &Plan) -> BTreeMap<String, Timestamp> {
        let Some(gate) = plan.gate().filter(|_| !self.ended.is_empty()) else { return BTreeMap::new() };
        let pods = gate.known().map(|pod| pod.name).filter(|pod| plan.is_only(pod));
        pods.filter_map(|pod| Some((pod.to_owned(), self.ended_of(pod, gate.since)?.at))).collect()
    }

    /// These are away now. Returns whether others were before.
    pub(crate) fn are_away(&mut self, mut away: Vec<AwayLink>, now: Timestamp) -> bool {
        const KEPT: Duration = Duration::from_secs(10);
        away.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        self.back.retain(|_, at| now.since(*at) < KEPT);
        self.away = away;
        let behind =
            self.away.iter().flat_map(|link| link.clients.iter().map(|client| (*client, link.since)));
        let before = std::mem::replace(&mut self.behind, behind.collect());
        let back = before.keys().filter(|client| !self.behind.contains_key(client));
        self.back.extend(back.map(|client| (*client, now)));
        before != self.behind
    }

    /// How long a client's link has been back, if it was away until lately.
    pub(crate) fn back_for(&self, client: SocketAddr, now: Timestamp) -> Option<Duration> {
        self.back.get(&client).map(|at| now.since(*at))
    }

    /// Whether a process is behind a link that is away, so that nobody knows whether it is there.
    pub(crate) fn is_away(&self, client: SocketAddr) -> bool {
        self.away_since(client).is_some()
    }

    /// Since when the link has been away that a process is behind.
    pub(crate) fn away_since(&self, client: SocketAddr) -> Option<Timestamp> {
        self.behind.get(&client).copied()
    }
}

/// Whether it is the relay of this pod: more may follow the pod's name.
fn is_of_pod(relay: &str, pod: &str) -> bool {
    relay == pod || pod_of(relay) == pod
}

/// The pod of a relay, by a default name such as `gpu:29500@10.0.0.7#2`.
fn pod_of(relay: &str) -> &str {
    let place = relay.split_once('@').map_or(relay, |(place, _)| place);
    match place.rsplit_once(':') {
        Some((pod, port)) if port.parse::<u16>().is_ok() => pod,
        _ => place,
    }
}

//! The links of relays: which are away, and which were for too long. Their clients are no worse off than if
//! the server were slow, so nothing is said of them meanwhile.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::facts::plan::Plan;
use crate::reason::presence::{Place, Presence, Sighting};
use crate::reason::words::{has, if_some, the_link};
use crate::reason::{Code, Finding, Names};
use rallypoint_api::{LinkCounts, Severity};
use rallypoint_protocol::ids::{Elapsed, Timestamp, counted};

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
    pub(crate) found: Vec<Finding>,
    /// How and when those ended whose relays have not come again.
    ended: BTreeMap<String, LinkNews>,
    /// For how long the clients of a link stay while it is away.
    pub(crate) grace: Duration,
    /// Goes up with every relay that comes or goes.
    version: u64,
}

impl Links {
    const ONE_BY_ONE: usize = 8;
    /// The server remembers of so many relays how they ended.
    const MOST_ENDED: usize = 4096;

    pub(crate) fn new(grace: Duration) -> Self {
        Self { grace, ..Self::default() }
    }

    /// A number that changes when a relay comes or goes.
    pub(crate) const fn version(&self) -> u64 {
        self.version
    }

    /// This has happened since the last call, in this order.
    pub(crate) fn hear(&mut self, news: Vec<LinkNews>) {
        let mut lost = Vec::new();
        for news in news {
            self.version = self.version.saturating_add(1);
            match news.what {
                LinkEvent::Came => {
                    self.ended.remove(&news.name);
                    continue;
                }
                LinkEvent::Namesake { from, other } => {
                    self.found.push(namesake(news.name, from, other, news.at));
                    continue;
                }
                // With one that had no clients nothing is lost.
                LinkEvent::Lost { clients: clients @ 1.. } => {
                    lost.push((news.name.clone(), clients, news.at));
                }
                LinkEvent::Lost { .. } | LinkEvent::Left => {}
            }
            if self.ended.len() >= Self::MOST_ENDED
                && let Some(oldest) = self.ended.values().min_by_key(|ended| ended.at)
            {
                let oldest = oldest.name.clone();
                self.ended.remove(&oldest);
            }
            self.ended.insert(news.name.clone(), news);
        }
        self.found.extend(self.lost(&lost));
    }

    /// What was heard of a pod since it announced itself. `seen` is its last sign of life at the gate, if it
    /// does not count there any more.
    pub(crate) fn since_announced(&self, plan: &Plan, pod: &str, seen: Option<Timestamp>) -> Sighting {
        // What was before is of another job.
        let began = plan.gate().map(|gate| gate.since).unwrap_or_default();
        let of_relay = if plan.is_only(pod) { self.of_pod(pod, began) } else { None };
        let silent = || seen.map(|seen| Sighting::at(Presence::Silent, seen));
        of_relay.or_else(silent).unwrap_or_else(|| Presence::Announced.into())
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

    /// The relays whose links are away. `behind`: the nodes and ranks of these clients.
    pub(crate) fn away(&self, behind: impl Fn(&[SocketAddr]) -> Names, now: Timestamp) -> Vec<Finding> {
        let each = if self.away.len() > Self::ONE_BY_ONE { self.away.len() } else { 1 };
        let finding = |links: &[AwayLink]| {
            let only = if let [only] = links { Some(only) } else { None };
            let since = links.iter().map(|link| link.since).min().unwrap_or(now);
            // As they are counted: 9 before 10.
            let mut names: Vec<String> = links.iter().map(|link| link.name.clone()).collect();
            names.sort_by_key(String::len);
            let (names, away) = (Names::of(names), Elapsed(now.since(since)));
            let clients: usize = links.iter().map(|link| link.clients.len()).sum();
            let addr = if_some(only, |link| format!(" at {}", link.addr));
            let behind = only.map(|link| behind(&link.clients));
            let with = if_some(behind.filter(|behind| !behind.is_empty()), |who| format!(", with {who},"));
            let why = if_some(only.and_then(|link| link.why.as_ref()), |why| format!(": {why}"));
            let keeps = if_some(Some(clients).filter(|clients| *clients > 0), |clients| {
                let (clients, grace) = (counted(clients, "client", "clients"), Elapsed(self.grace));
                format!("; the server keeps the sessions of {clients} for {grace} (--link-grace)")
            });
            let (the_link, has) = (the_link(&names), has(names.count()));
            let reason = Code::LinkAway
                .says(format!("{the_link} of {names}{addr}{with} {has} been away for {away}{why}{keeps}"))
                .misses(Place::Pod, &names, Sighting::at(Presence::Away, since));
            Finding::new(reason, only.map_or_else(String::new, |link| link.name.clone()), since)
        };
        self.away.chunks(each).map(finding).collect()
    }

    /// Links that were away for too long, each with its clients, and since when: what has come together is
    /// told together.
    fn lost(&self, lost: &[(String, usize, Timestamp)]) -> Option<Finding> {
        let since = lost.first()?.2;
        let links = Names::of(lost.iter().map(|(name, ..)| name.clone()));
        let clients: usize = lost.iter().map(|(_, clients, _)| clients).sum();
        let about = format!("lost {links}");
        let (the_link, grace) = (the_link(&links), Elapsed(self.grace));
        let was = if links.count() == 1 { "was" } else { "were" };
        let gone = counted(clients, "client is", "clients are");
        let reason = Code::LinkAway
            .says(format!(
                "{the_link} of {links} {was} away for longer than {grace} (--link-grace): {gone} disconnected"
            ))
            .severe(Severity::Error)
            .look_at(
                "look at those nodes: are they gone, or their network? A longer --link-grace rides out \
                 longer breaks",
            )
            .misses(Place::Pod, &links, Sighting::at(Presence::Unreachable, since));
        Some(Finding::new(reason, about, since))
    }
}

fn namesake(name: String, from: IpAddr, other: IpAddr, at: Timestamp) -> Finding {
    let reason = Code::JoinRefused
        .says(format!(
            "a relay named {name} at {from} was turned away: another of that name, at {other}, is connected"
        ))
        .look_at(
            "stop the pod that should not be there, or give each relay a name of its own: --name (rallypoint \
             relay), else POD_NAME and POD_UID. It tries again, and its command waits meanwhile",
        )
        .held(&Names::of([name.clone()]));
    Finding::new(reason, name, at)
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

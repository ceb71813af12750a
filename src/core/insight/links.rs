//! The links of relays: which are away, and which were for too long. Their clients are no worse off than if the server
//! were slow, so nothing is said of them meanwhile.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use super::reason::{Finding, Names, Reason, Silence};
use crate::api::{LinkCounts, Seen};
use crate::core::ids::{Elapsed, Timestamp};

/// A link that is away.
#[derive(Debug, Clone)]
pub struct AwayLink {
    /// The relay's name.
    pub name: String,
    /// Where it came from last.
    pub addr: IpAddr,
    /// Its clients, which its relay holds.
    pub clients: usize,
    /// Since when.
    pub since: Timestamp,
    /// What broke it, where that was seen.
    pub why: Option<String>,
}

/// A link that was away for too long. Its clients are gone.
#[derive(Debug, Clone)]
pub struct LostLink {
    /// The relay's name.
    pub name: String,
    /// The clients that it had.
    pub clients: usize,
    /// When it was given up.
    pub at: Timestamp,
}

/// What is known of the links.
#[derive(Debug, Default)]
pub(super) struct Links {
    pub(super) counts: LinkCounts,
    pub(super) away: Vec<AwayLink>,
    /// Addresses of those that are back, and since when: for a few seconds.
    pub(super) back: Vec<(IpAddr, Timestamp)>,
    pub(super) lost: Vec<LostLink>,
    /// For how long the clients of a link stay while it is away.
    pub(super) grace: Duration,
}

impl Links {
    /// More than this are told as one.
    const ONE_BY_ONE: usize = 8;

    /// These are away now.
    pub(super) fn are_away(&mut self, away: Vec<AwayLink>, now: Timestamp) {
        const KEPT: Duration = Duration::from_secs(10);
        self.back.retain(|(_, at)| now.since(*at) < KEPT);
        let before = std::mem::replace(&mut self.away, away);
        let still: HashSet<IpAddr> = self.away.iter().map(|link| link.addr).collect();
        let back = before.iter().map(|link| link.addr).filter(|addr| !still.contains(addr));
        self.back.extend(back.map(|addr| (addr, now)));
    }

    /// How long one of a relay at this address has been back, if it was away until lately.
    pub(super) fn back_for(&self, addr: IpAddr, now: Timestamp) -> Option<Duration> {
        self.back.iter().filter(|(back, _)| *back == addr).map(|(_, at)| now.since(*at)).min()
    }

    /// One that is away, of a relay at this address.
    pub(super) fn away_at(&self, addr: IpAddr) -> Option<&AwayLink> {
        self.away.iter().find(|link| link.addr == addr)
    }

    /// Those that are away.
    pub(super) fn away(&self, now: Timestamp) -> Vec<Finding> {
        let each = if self.away.len() > Self::ONE_BY_ONE { self.away.len() } else { 1 };
        let finding = |links: &[AwayLink]| {
            let only = if let [only] = links { Some(only) } else { None };
            let since = links.iter().map(|link| link.since).min().unwrap_or(now);
            let reason = Reason::LinkAway {
                links: Names::of(links.iter().map(|link| link.name.clone())),
                clients: links.iter().map(|link| link.clients).sum(),
                addr: only.map(|link| link.addr.to_string()),
                why: only.and_then(|link| link.why.clone()),
                away: Elapsed(now.since(since)),
                grace: Elapsed(self.grace),
            };
            Finding::new(reason, only.map_or_else(String::new, |link| link.name.clone()), since)
        };
        self.away.chunks(each).map(finding).collect()
    }

    /// A run does not know of links: nodes that were taken out of it may be behind one that is away, and be alive.
    pub(super) fn account_for(&self, finding: &mut Finding) {
        let Reason::NodeRemoved { why: why @ Silence::Connected, .. } = &mut finding.reason else { return };
        let silent = finding.evidence.iter().filter(|evidence| evidence.seen == Seen::Heard);
        let away = silent.filter_map(|node| self.away_at(node.peer?.ip()));
        let links: BTreeSet<&str> = away.map(|link| link.name.as_str()).collect();
        if !links.is_empty() {
            *why = Silence::LinkAway { links: Names::of(links.into_iter().map(str::to_owned)) };
        }
    }

    /// Takes those that were away for too long: what has come together is told together. With one that had no clients nothing
    /// is lost.
    pub(super) fn take_lost(&mut self) -> Option<Finding> {
        let mut lost = std::mem::take(&mut self.lost);
        lost.retain(|link| link.clients > 0);
        let since = lost.first()?.at;
        let links = Names::of(lost.iter().map(|link| link.name.clone()));
        let clients = lost.iter().map(|link| link.clients).sum();
        let about = links.to_string();
        let reason = Reason::LinkLost { links, clients, grace: Elapsed(self.grace) };
        Some(Finding::new(reason, about, since))
    }
}

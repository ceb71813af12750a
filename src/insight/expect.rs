//! How many nodes a run should have, and who says so.

use std::collections::BTreeMap;

use super::view::{Expected, ExpectedFrom};

/// A pod that said it will take part, before PyTorch started in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    /// The pod's name; a new announcement with the same name replaces the old one.
    pub pod: String,
    /// Tells apart two pods of one name.
    pub uid: String,
    /// Its node rank, where it knows it.
    pub node_rank: Option<u32>,
    /// The address or host name that its agent will give.
    pub addr: Option<String>,
    /// How many nodes it expects.
    pub nodes: Option<u32>,
}

/// What an operator expects of a run: the body of `PUT /api/v1/runs/{run_id}/expect`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wish {
    /// At least so many nodes.
    pub min: u32,
    /// At most so many nodes.
    pub max: u32,
    /// The nodes' names, where they are known.
    pub names: Vec<String>,
}

/// What was said about a run from outside its traffic.
#[derive(Debug, Clone, Default)]
pub(super) struct Plan {
    pub(super) wish: Option<Wish>,
    pub(super) pods: BTreeMap<String, Announcement>,
    /// `serve --nodes`.
    pub(super) flag: Option<(u32, u32)>,
    /// Goes up with every change.
    pub(super) version: u64,
}

impl Plan {
    /// Announcements kept of one run.
    const MOST_PODS: usize = 16_384;

    pub(super) fn announce(&mut self, announcement: Announcement) {
        let known = self.pods.get(&announcement.pod);
        // A pod that waits says the same every few seconds.
        if known != Some(&announcement) && (known.is_some() || self.pods.len() < Self::MOST_PODS) {
            self.version += 1;
            self.pods.insert(announcement.pod.clone(), announcement);
        }
    }

    pub(super) fn new(flag: Option<(u32, u32)>) -> Self {
        Self { flag, ..Self::default() }
    }

    /// The expectation from outside.
    pub(super) fn expected(&self) -> Option<Expected> {
        let announced = || self.pods.values().filter_map(|pod| pod.nodes).max();
        if let Some(wish) = &self.wish {
            return Some(Expected { min: wish.min, max: wish.max, source: ExpectedFrom::Api });
        }
        if let Some(nodes) = announced() {
            return Some(Expected { min: nodes, max: nodes, source: ExpectedFrom::Announced });
        }
        self.flag.map(|(min, max)| Expected { min, max, source: ExpectedFrom::Flag })
    }

    /// Two pods that expect different numbers.
    pub(super) fn disagreement(&self) -> Option<(&Announcement, &Announcement)> {
        let mut telling = self.pods.values().filter(|pod| pod.nodes.is_some());
        let first = telling.next()?;
        telling.find(|pod| pod.nodes != first.nodes).map(|other| (first, other))
    }

    /// The pod behind an agent that calls itself `addr`.
    pub(super) fn pod_at(&self, addr: &str) -> Option<&Announcement> {
        let label = short(addr);
        self.pods.get(label).or_else(|| self.pods.values().find(|pod| pod.addr.as_deref() == Some(addr)))
    }

    /// The pod with a node rank.
    pub(super) fn pod_of_rank(&self, rank: u32) -> Option<&Announcement> {
        self.pods.values().find(|pod| pod.node_rank == Some(rank))
    }
}

/// The first label of a host name; an address as it is.
pub(super) fn short(addr: &str) -> &str {
    if addr.parse::<std::net::IpAddr>().is_ok() {
        return addr;
    }
    addr.split('.').next().unwrap_or(addr)
}

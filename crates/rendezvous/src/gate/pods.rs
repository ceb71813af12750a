//! The pods of one gate, and what each announcement needs to know about all of them. 10,000 waiting pods
//! repeat their announcements every few seconds, so no answer may look at every pod.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::held::HeldRanks;
use super::{Announcement, Contact, Member, NameAndRank, PodKey};
use rallypoint_protocol::ids::{Nodes, Timestamp};

#[cfg(test)]
thread_local! {
    /// Counts the pods that were looked at one by one.
    pub(super) static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// The pods, by name, rank and UID.
#[derive(Debug, Clone, Default)]
pub(super) struct Pods {
    members: BTreeMap<Arc<PodKey>, Member>,
    by_rank: BTreeMap<u32, Arc<PodKey>>,
    by_version: BTreeMap<String, BTreeSet<Arc<PodKey>>>,
    /// How many pods expect each number of nodes (least, most).
    by_nodes: BTreeMap<(u32, u32), usize>,
    roll: Option<Roll>,
}

/// Which pods live, counted once and then kept up to date.
#[derive(Debug, Clone)]
pub(super) struct Roll {
    /// How many pods are there.
    pub(super) there: usize,
    /// Their ranks.
    pub(super) held: HeldRanks,
    /// How many more pods may live: the links of their relays are away.
    away: usize,
    /// None of them dies before this time.
    until: Timestamp,
}

impl Roll {
    /// How many pods may live.
    pub(super) fn live(&self) -> usize {
        self.there.saturating_add(self.away)
    }
}

impl Pods {
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn get(&self, key: &PodKey) -> Option<&Member> {
        self.members.get(key)
    }

    pub(super) fn get_mut(&mut self, key: &PodKey) -> Option<&mut Member> {
        self.members.get_mut(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&PodKey, &Member)> {
        self.members.iter().map(|(key, member)| (&**key, looked_at(member)))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Member> {
        self.iter().map(|(_, member)| member)
    }

    /// The pods after this one, in order.
    pub(super) fn behind(&self, last: Option<&PodKey>) -> impl Iterator<Item = &PodKey> {
        use std::ops::Bound::{Excluded, Unbounded};
        let bounds = (last.map_or(Unbounded, Excluded), Unbounded);
        self.members.range::<PodKey, _>(bounds).map(|(key, _)| &**key)
    }

    /// The pods with this name and node rank. Only without a rank can there be several.
    pub(super) fn at_place(&self, place: NameAndRank) -> impl Iterator<Item = (&PodKey, &Member)> {
        let first = (place.clone(), String::new());
        let behind =
            self.members.range::<PodKey, _>(first..).map(|(key, member)| (&**key, looked_at(member)));
        behind.take_while(move |((at, _), _)| *at == place)
    }

    fn of_name(&self, name: &str) -> impl Iterator<Item = (&PodKey, &Member)> {
        let first = ((name.to_owned(), None), String::new());
        let behind = self.members.range::<PodKey, _>(first..).map(|(key, member)| (&**key, member));
        behind.take_while(move |(key, _)| key.0.0 == name)
    }

    /// Whether no other pod has this name.
    pub(super) fn is_alone(&self, name: &str) -> bool {
        self.of_name(name).take(2).count() == 1
    }

    /// Whether a pod with this name lives.
    pub(super) fn is_there(&self, name: &str, now: Timestamp, timeout: Duration) -> bool {
        self.of_name(name).any(|(_, member)| member.is_live(now, timeout))
    }

    /// The pods of this name whose connections broke.
    pub(super) fn cut_of(&self, name: &str) -> impl Iterator<Item = &PodKey> {
        self.of_name(name).filter(|(_, member)| member.is_cut).map(|(key, _)| key)
    }

    /// The connection of a pod broke: the pod does not count until it comes again.
    pub(super) fn cut(&mut self, key: &PodKey, now: Timestamp) {
        if let Some(member) = self.members.get_mut(key) {
            // Until now the open connection was its sign of life.
            (member.is_cut, member.seen) = (true, now);
            member.gone = member.gone.saturating_add(1);
            self.roll = None;
        }
    }

    /// The predecessors of a pod have gone so often.
    pub(super) fn have_gone(&mut self, key: &PodKey, times: u32) {
        if let Some(member) = self.members.get_mut(key) {
            member.gone = member.gone.saturating_add(times);
        }
    }

    pub(super) fn has_ranks(&self) -> bool {
        !self.by_rank.is_empty()
    }

    /// The pod with this rank, alive or not.
    pub(super) fn holder(&self, rank: u32) -> Option<&Member> {
        self.by_rank.get(&rank).and_then(|key| self.get(key)).map(looked_at)
    }

    /// Among the pods for which `is_it` holds, one that expects another number of nodes.
    pub(super) fn with_other_nodes(&self, nodes: Nodes, is_it: impl Fn(&&Member) -> bool) -> Option<&Member> {
        let (same, all) = (self.by_nodes.get(&(nodes.min, nodes.max)), self.len());
        if same.copied().unwrap_or(0) == all {
            return None;
        }
        self.values().filter(is_it).find(|member| member.said.nodes != nodes)
    }

    /// The pods by their version of PyTorch.
    pub(super) fn versions(&self) -> &BTreeMap<String, BTreeSet<Arc<PodKey>>> {
        &self.by_version
    }

    /// Adds a pod, or its new announcement. If the announcement is a repeated one, returns whether the pod
    /// was there until now.
    pub(super) fn insert(&mut self, said: &Announcement, now: Timestamp, timeout: Duration) -> Option<bool> {
        let key = said.key();
        if let Some(known) = self.members.get_mut(&key).filter(|known| known.said == *said) {
            let (lived, was_there) = (known.is_live(now, timeout), known.is_there(now, timeout));
            (known.seen, known.is_cut, known.contact) = (now, false, Contact::None);
            match (lived, was_there) {
                (false, _) => self.count_in(said.node_rank),
                (true, false) => self.roll = None,
                (true, true) => {}
            }
            return Some(was_there);
        }
        self.remove(&key, now, timeout);
        let key = Arc::new(key);
        if let Some(rank) = said.node_rank {
            self.by_rank.insert(rank, Arc::clone(&key));
        }
        if let Some(version) = &said.torch {
            self.by_version.entry(version.clone()).or_default().insert(Arc::clone(&key));
        }
        let alike = self.by_nodes.entry((said.nodes.min, said.nodes.max)).or_default();
        *alike = alike.saturating_add(1);
        self.members.insert(key, Member::new(said.clone(), now));
        self.count_in(said.node_rank);
        None
    }

    /// Drops a pod. Returns its last sign of life.
    pub(super) fn remove(&mut self, key: &PodKey, now: Timestamp, timeout: Duration) -> Option<Timestamp> {
        let gone = self.members.remove(key)?;
        let said = &gone.said;
        if let Some(rank) =
            said.node_rank.filter(|rank| self.by_rank.get(rank).is_some_and(|at| **at == *key))
        {
            self.by_rank.remove(&rank);
        }
        if let Some(version) = &said.torch
            && let Some(alike) = self.by_version.get_mut(version)
        {
            alike.remove(key);
            if alike.is_empty() {
                self.by_version.remove(version);
            }
        }
        let nodes = (said.nodes.min, said.nodes.max);
        if let Some(alike) = self.by_nodes.get_mut(&nodes) {
            *alike = alike.saturating_sub(1);
            if *alike == 0 {
                self.by_nodes.remove(&nodes);
            }
        }
        match (gone.is_live(now, timeout), gone.is_there(now, timeout)) {
            (_, true) => self.count_out(said.node_rank),
            (true, false) => self.roll = None,
            (false, false) => {}
        }
        Some(gone.seen)
    }

    /// Notes the present connections of the pods. A pod that was cut must announce itself again.
    pub(super) fn look(
        &mut self,
        now: Timestamp,
        timeout: Duration,
        contact: impl Fn(&Announcement) -> Contact,
    ) {
        for member in self.members.values_mut().filter(|member| !member.is_cut) {
            let was_there = member.is_there(now, timeout);
            match (contact(&member.said), member.contact) {
                (Contact::Connected, _) => (member.seen, member.contact) = (now, Contact::Connected),
                // The pod has announced itself since the link broke, or the server has given up the link:
                // neither shows anything new.
                (Contact::Away, Contact::None) | (Contact::None, Contact::Away) => {}
                (Contact::Away, _) => member.contact = Contact::Away,
                (Contact::None, _) => member.contact = Contact::None,
            }
            if member.is_there(now, timeout) != was_there {
                self.roll = None;
            }
        }
    }

    fn count_in(&mut self, rank: Option<u32>) {
        if let Some(roll) = &mut self.roll {
            roll.there = roll.there.saturating_add(1);
            if let Some(rank) = rank {
                roll.held.insert(rank);
            }
        }
    }

    fn count_out(&mut self, rank: Option<u32>) {
        if let Some(roll) = &mut self.roll {
            roll.there = roll.there.saturating_sub(1);
            if let Some(rank) = rank {
                roll.held.remove(rank);
            }
        }
    }

    /// Counts again if a pod may have died since the last count, so that [`Self::roll`] need not.
    pub(super) fn call_roll(&mut self, now: Timestamp, timeout: Duration) {
        if self.roll.as_ref().is_none_or(|roll| now >= roll.until) {
            self.roll = Some(self.count(now, timeout));
        }
    }

    /// The count of living pods at this time.
    pub(super) fn roll(&self, now: Timestamp, timeout: Duration) -> Cow<'_, Roll> {
        match &self.roll {
            Some(roll) if now < roll.until => Cow::Borrowed(roll),
            _ => Cow::Owned(self.count(now, timeout)),
        }
    }

    fn count(&self, now: Timestamp, timeout: Duration) -> Roll {
        let mut roll = Roll { there: 0, held: HeldRanks::default(), away: 0, until: now + timeout };
        for member in self.values().filter(|member| member.is_live(now, timeout)) {
            if member.contact == Contact::Away {
                roll.away = roll.away.saturating_add(1);
            } else {
                roll.there = roll.there.saturating_add(1);
                if let Some(rank) = member.said.node_rank {
                    roll.held.insert(rank);
                }
            }
            roll.until = roll.until.min(member.seen + timeout);
        }
        roll
    }
}

fn looked_at(member: &Member) -> &Member {
    #[cfg(test)]
    LOOKS.set(LOOKS.get().saturating_add(1));
    member
}

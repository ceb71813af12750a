//! What must hold between any two requests, for tests.

use std::collections::{HashMap, HashSet};

use super::{
    GroupId, KeySpace, Kind, Notes, Record, Role, RunNumber, SlotId, StaleKeys, classify, record_of,
};
use rallypoint_protocol::ids::ConnId;

impl StaleKeys {
    pub(crate) fn check_invariants(&self, keys: &KeySpace, is_live: impl Fn(ConnId) -> bool) {
        self.check_connections(&is_live);
        self.check_addresses(keys, &is_live);
        self.check_runs(keys);
        self.check_bytes(keys);
        let mut leftovers = 0;
        for (id, slot) in keys.iter() {
            assert_eq!(slot.record.is_some(), classify(slot.key()).is_some());
            if record_of(keys, id).is_some_and(|record| record.kind.attempt_over().is_some()) {
                let at = slot.record.as_ref().map_or(0, |record| record.at as usize);
                assert_eq!(
                    self.leftovers.as_slice().get(at),
                    Some(&id),
                    "a leftover that rule 2 does not know"
                );
                leftovers += 1;
            }
        }
        assert_eq!(leftovers, self.leftovers.as_slice().len());
        assert!(self.reset_at.is_none() || self.job_connections == 0, "a job in use is to be reset");
    }

    pub(crate) fn assert_empty(&self) {
        assert_eq!((self.job_connections, self.workers, self.agents), (0, 0, 0));
        assert_eq!(self.groups.names(), HashMap::new());
        assert_eq!(self.runs.names_and_connections(), HashMap::new());
    }

    fn check_bytes(&self, keys: &KeySpace) {
        let records = keys.iter().filter(|(_, slot)| slot.record.is_some()).count() * Record::BYTES;
        let reads: usize =
            self.notes().map(|notes| &notes.read).chain(&self.forgotten).map(Notes::bytes_of).sum();
        assert_eq!(
            self.bytes(),
            records
                + reads
                + self.groups.bytes()
                + self.published.bytes()
                + self.due_bytes()
                + self.search_bytes()
        );
    }

    fn notes(&self) -> impl Iterator<Item = &Notes> {
        self.notes.iter().flatten().map(|notes| &**notes)
    }

    fn check_connections(&self, is_live: &impl Fn(ConnId) -> bool) {
        assert!(self.notes().all(|notes| is_live(notes.conn)), "notes of a connection that is gone");
        let with_role = |role| self.notes().filter(|notes| notes.role == role).count();
        assert_eq!(self.job_connections, self.notes().count());
        assert_eq!((self.workers, self.agents), (with_role(Role::Worker), with_role(Role::Agent)));
    }

    /// Each address is known to its writer, and has its place in its group.
    fn check_addresses(&self, keys: &KeySpace, is_live: &impl Fn(ConnId) -> bool) {
        let mut names: HashMap<GroupId, usize> = HashMap::new();
        let mut addresses: HashMap<GroupId, HashSet<SlotId>> = HashMap::new();
        let mut published = 0;
        for (id, slot) in keys.iter() {
            let Some(record) = record_of(keys, id) else { continue };
            if let (Kind::Published, Some(writer)) = (record.kind, record.writer) {
                let listed = self.published.at(writer, record.at);
                assert!(listed == Some(id) || !is_live(writer), "a publisher that does not know its name");
                published += usize::from(listed == Some(id));
                continue;
            }
            let Kind::Address { group, .. } = record.kind else {
                assert_eq!(record.writer, None);
                continue;
            };
            *names.entry(group).or_default() += 1;
            assert_eq!(record.writer.is_some(), slot.value().is_some(), "who wrote {:?}?", slot.key());
            let Some(writer) = record.writer else { continue };
            assert!(is_live(writer), "a spent address is kept");
            let knows = |notes: &Notes| {
                notes.conn != writer || notes.wrote.as_slice().get(record.in_wrote as usize) == Some(&id)
            };
            assert!(self.notes().all(knows), "its writer does not know of {:?}", slot.key());
            assert_eq!(self.groups.addresses(group).get(record.at as usize), Some(&id));
            addresses.entry(group).or_default().insert(id);
        }
        assert_eq!(self.published.names(), published);
        for group in self.held() {
            *names.entry(group).or_default() += 1;
        }
        assert_eq!(self.groups.names(), names);
        for &group in names.keys() {
            let listed = self.groups.addresses(group);
            assert_eq!(listed.len(), addresses.get(&group).map_or(0, HashSet::len));
        }
    }

    fn check_runs(&self, keys: &KeySpace) {
        let mut expected: HashMap<RunNumber, (usize, usize)> = HashMap::new();
        for (id, _) in keys.iter() {
            if let Some(run) = record_of(keys, id).and_then(|record| record.run) {
                expected.entry(run).or_default().0 += 1;
                let record = record_of(keys, id).expect("it has a run");
                let names = self.runs.slots(run);
                assert_eq!(names.get(record.in_run as usize), Some(&id), "a name its run does not know");
                let end = self.runs.ends(run).get(record.at as usize);
                assert!(!record.kind.is_end() || end == Some(&id), "an end its run does not know");
            }
        }
        for &run in self.notes().flat_map(|notes| &notes.runs) {
            expected.entry(run).or_default().1 += 1;
        }
        assert_eq!(self.runs.names_and_connections(), expected);
        self.runs.check_invariants();
    }
}

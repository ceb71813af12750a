//! Worker processes that are connected.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;

use crate::core::ids::ConnId;

/// The address and the process id. Containers may share both.
pub(in crate::core::insight::run) type Process = (IpAddr, u32);

/// Connections of workers. A program that makes its process group again may keep the connections of the one before.
#[derive(Debug, Default)]
pub(in crate::core::insight) struct Connected {
    conns: BTreeMap<ConnId, Option<Process>>,
    /// How many connections each process has that told its id.
    processes: BTreeMap<Process, u32>,
    /// Connections whose process is not known: each is taken for one.
    unnamed: usize,
    /// How many processes there were, at most.
    pub(super) most: usize,
}

impl Connected {
    pub(super) fn insert(&mut self, conn: ConnId, process: Option<Process>) {
        if self.conns.insert(conn, process).is_some() {
            return;
        }
        match process {
            Some(process) => {
                let conns = self.processes.entry(process).or_default();
                *conns = conns.saturating_add(1);
            }
            None => self.unnamed = self.unnamed.saturating_add(1),
        }
        self.most = self.most.max(self.processes());
    }

    pub(super) fn remove(&mut self, conn: ConnId) {
        match self.conns.remove(&conn) {
            Some(Some(process)) => {
                if let Entry::Occupied(mut conns) = self.processes.entry(process) {
                    match conns.get().saturating_sub(1) {
                        0 => drop(conns.remove()),
                        left => *conns.get_mut() = left,
                    }
                }
            }
            Some(None) => self.unnamed = self.unnamed.saturating_sub(1),
            None => {}
        }
    }

    pub(in crate::core::insight) fn is_empty(&self) -> bool {
        self.conns.is_empty()
    }

    pub(super) fn contains(&self, conn: ConnId) -> bool {
        self.conns.contains_key(&conn)
    }

    pub(super) fn has(&self, process: Process) -> bool {
        self.processes.contains_key(&process)
    }

    pub(super) fn processes(&self) -> usize {
        self.processes.len().saturating_add(self.unnamed)
    }

    /// For the next meeting, of those that are there.
    pub(in crate::core::insight::run) fn counted_anew(self) -> Self {
        Self { most: self.processes(), ..self }
    }
}

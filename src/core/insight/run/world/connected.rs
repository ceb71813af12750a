//! Worker processes that are connected.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;

use crate::core::ids::ConnId;
use crate::core::insight::reason::Evidence;

/// The address and the process id. Containers may share both.
pub(in crate::core::insight::run) type Process = (IpAddr, u32);

/// Connections of workers. A program that makes its process group again may keep the connections of the one before.
#[derive(Debug, Default)]
pub(in crate::core::insight) struct Connected {
    conns: BTreeMap<ConnId, Conn>,
    processes: BTreeMap<Process, Conns>,
    /// That the last connection of a process closed, of those that had used the keys of a group and did not come again.
    ended: BTreeMap<Process, Evidence>,
    /// Connections whose process is not known: each is taken for one.
    unnamed: usize,
    /// How many processes there were, at most.
    pub(super) most: usize,
}

#[derive(Debug)]
struct Conn {
    process: Option<Process>,
    /// It has used the keys of a group.
    is_of_group: bool,
}

/// The connections of a process that told its id.
#[derive(Debug, Default)]
struct Conns {
    open: u32,
    /// It has used the keys of a group: it is no client that only counts itself, or watches.
    is_of_group: bool,
}

impl Connected {
    /// Processes that have ended and are remembered.
    const MOST_ENDED: usize = 1024;

    pub(super) fn insert(&mut self, conn: ConnId, process: Option<Process>) {
        if self.conns.contains_key(&conn) {
            return;
        }
        self.conns.insert(conn, Conn { process, is_of_group: false });
        match process {
            Some(process) => {
                let conns = self.processes.entry(process).or_default();
                conns.open = conns.open.saturating_add(1);
                self.ended.remove(&process);
            }
            None => self.unnamed = self.unnamed.saturating_add(1),
        }
        self.most = self.most.max(self.processes());
    }

    /// A process uses the keys of a group.
    pub(super) fn uses_group(&mut self, conn: ConnId) {
        let Some(conn) = self.conns.get_mut(&conn) else { return };
        conn.is_of_group = true;
        if let Some(conns) = conn.process.and_then(|process| self.processes.get_mut(&process)) {
            conns.is_of_group = true;
        }
    }

    /// A connection closed. `closed` is that, unless it was lost with its link.
    pub(super) fn remove(&mut self, conn: ConnId, closed: Option<Evidence>) {
        match self.conns.remove(&conn).map(|conn| conn.process) {
            Some(Some(process)) => {
                if let Entry::Occupied(mut conns) = self.processes.entry(process) {
                    conns.get_mut().open = conns.get().open.saturating_sub(1);
                    if conns.get().open == 0
                        && conns.remove().is_of_group
                        && let Some(closed) = closed.filter(|_| self.ended.len() < Self::MOST_ENDED)
                    {
                        self.ended.insert(process, closed);
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

    /// The processes that have ended, and that they did.
    pub(super) fn ended(&self) -> impl Iterator<Item = (&Process, &Evidence)> {
        self.ended.iter()
    }

    /// The addresses of those that have used the keys of a group: one for each connection. `None` if processes are there
    /// that have not told their ids.
    pub(super) fn of_group(&self) -> Option<impl Iterator<Item = IpAddr>> {
        let of_group = self.conns.values().filter(|conn| conn.is_of_group);
        (self.unnamed == 0).then(|| of_group.filter_map(|conn| Some(conn.process?.0)))
    }

    /// Processes that have only counted themselves.
    pub(super) fn beside_group(&self) -> impl Iterator<Item = Process> {
        self.processes.iter().filter(|(_, conns)| !conns.is_of_group).map(|(&process, _)| process)
    }

    /// Those that have ended were of the job before.
    pub(super) fn forget_ended(&mut self) {
        self.ended.clear();
    }

    /// For the next meeting, of those that are there.
    pub(in crate::core::insight::run) fn counted_anew(self) -> Self {
        Self { most: self.processes(), ended: BTreeMap::new(), ..self }
    }
}

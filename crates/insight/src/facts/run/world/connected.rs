//! Worker processes that are connected.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;

use crate::reason::Evidence;
use rallypoint_protocol::addresses::MOST_RANKS;
use rallypoint_protocol::ids::ConnId;

/// The address and the process id. Containers may share both.
pub(crate) type Process = (IpAddr, u32);

/// Connections of workers. A program that makes its process group again may keep the connections of the one
/// before.
#[derive(Debug, Default)]
pub(crate) struct Connected {
    conns: BTreeMap<ConnId, Conn>,
    processes: BTreeMap<Process, Conns>,
    /// Processes whose last connection closed, which had used the keys of a group and did not come again.
    pub(crate) ended: BTreeMap<Process, Evidence>,
    /// The processes that have used the keys of a group in this round, gone or not: each with how many of its
    /// connections were open at once that had, as containers may share an address and a process id.
    came: BTreeMap<Process, u32>,
    /// Connections whose process is not known: each is taken for one.
    unnamed: usize,
    /// How many processes there were, at most.
    pub(crate) most: usize,
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
    /// Processes that have used the keys of a group.
    of_group: u32,
    /// One of them has, now or before: it is no client that only counts itself, or watches.
    is_of_group: bool,
}

impl Connected {
    /// Processes that have ended and are remembered.
    const MOST_ENDED: usize = 1024;

    pub(crate) fn insert(&mut self, conn: ConnId, process: Option<Process>) {
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

    /// Several processes have this address and process id: each connection is taken for one.
    pub(crate) fn share(&mut self, process: Process) {
        self.processes.remove(&process);
        for conn in self.conns.values_mut().filter(|conn| conn.process == Some(process)) {
            conn.process = None;
            self.unnamed = self.unnamed.saturating_add(1);
        }
    }

    /// A process uses the keys of a group.
    pub(crate) fn uses_group(&mut self, conn: ConnId) {
        let Some(conn) = self.conns.get_mut(&conn).filter(|conn| !conn.is_of_group) else { return };
        conn.is_of_group = true;
        let Some(process) = conn.process else { return };
        let Some(conns) = self.processes.get_mut(&process) else { return };
        conns.of_group = conns.of_group.saturating_add(1);
        conns.is_of_group = true;
        if self.came.len() < MOST_RANKS as usize || self.came.contains_key(&process) {
            let came = self.came.entry(process).or_default();
            *came = conns.of_group.max(*came);
        }
    }

    /// A connection closed. `closed` is that, unless it was cut off. Returns whether it was the last one of a
    /// process that had used the keys of a group.
    pub(crate) fn remove(&mut self, conn: ConnId, closed: Option<Evidence>) -> bool {
        let Some(Conn { process, is_of_group }) = self.conns.remove(&conn) else { return false };
        let Some(process) = process else {
            self.unnamed = self.unnamed.saturating_sub(1);
            return false;
        };
        let Entry::Occupied(mut conns) = self.processes.entry(process) else { return false };
        conns.get_mut().open = conns.get().open.saturating_sub(1);
        conns.get_mut().of_group = conns.get().of_group.saturating_sub(is_of_group.into());
        let was_last = conns.get().open == 0 && conns.remove().is_of_group;
        if was_last && let Some(closed) = closed.filter(|_| self.ended.len() < Self::MOST_ENDED) {
            self.ended.insert(process, closed);
        }
        was_last
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.conns.is_empty()
    }

    pub(crate) fn contains(&self, conn: ConnId) -> bool {
        self.conns.contains_key(&conn)
    }

    pub(crate) fn has(&self, process: Process) -> bool {
        self.processes.contains_key(&process)
    }

    pub(crate) fn processes(&self) -> usize {
        self.processes.len().saturating_add(self.unnamed)
    }

    /// The processes that have told their ids.
    pub(crate) fn named(&self) -> impl Iterator<Item = Process> {
        self.processes.keys().copied()
    }

    /// How many have used the keys of a group in this round, by address. `None` if processes are there that
    /// have not told their ids.
    pub(crate) fn came(&self) -> Option<BTreeMap<IpAddr, u32>> {
        let mut by_address: BTreeMap<IpAddr, u32> = BTreeMap::new();
        for ((ip, _), processes) in &self.came {
            let of_address = by_address.entry(*ip).or_default();
            *of_address = of_address.saturating_add(*processes);
        }
        (self.unnamed == 0).then_some(by_address)
    }

    /// Processes that have only counted themselves.
    pub(crate) fn beside_group(&self) -> impl Iterator<Item = Process> {
        let others = self.processes.iter().filter(|(process, _)| !self.came.contains_key(process));
        others.filter(|(_, conns)| !conns.is_of_group).map(|(&process, _)| process)
    }

    /// Others are to come: who has come and is not there any more belongs to the round or attempt before.
    pub(crate) fn begin_round(&mut self) {
        self.came.clear();
        self.ended.clear();
        self.most = self.processes();
    }
}

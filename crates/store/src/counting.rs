//! The wait of a process that hosts a job. A process that opens a store of its own (rank 0 of `env://`, node
//! rank 0 of a static job, unless it is told to be a client) reads `init/` every 10 ms until as many workers
//! have counted themselves there as it expects (`TCPStore::waitForWorkers`). It publishes nothing before. The
//! store answers each of these reads at once, so only the repeated reads show that the process waits.

use std::time::Duration;

use super::number::parse_counter;
use super::slot::SlotId;
use super::{Store, WaitView};
use rallypoint_protocol::ids::{ConnId, Timestamp, count};

/// A connection that reads `init/` again and again.
#[derive(Debug)]
pub(super) struct Counting {
    since: Timestamp,
    last: Timestamp,
    clients: u32,
    /// The time at which it first read this number.
    unchanged_since: Timestamp,
}

/// How many workers have counted themselves, as a waiting host has read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// Their number.
    pub clients: u32,
    /// How long it has been reading this number.
    pub unchanged: Duration,
    /// How long ago it read the number last.
    pub ago: Duration,
}

impl Store {
    /// A connection that has not read for this long does not wait any more.
    const LAST_READ: Duration = Duration::from_secs(1);
    /// A job has one host. Further ones are not shown.
    const MOST_COUNTING: usize = 64;

    /// `conn` reads `init/`, which has the slot `id`.
    pub(super) fn counts(&mut self, conn: ConnId, id: SlotId, now: Timestamp) {
        let value = self.keys.slot(id).value();
        let clients = value.and_then(|text| parse_counter(text)).unwrap_or_default();
        let clients = count(usize::try_from(clients).unwrap_or_default());
        let Some(session) = self.session_mut(conn) else { return };
        if let Some(counting) = &mut session.counting {
            counting.last = now;
            if counting.clients != clients {
                (counting.clients, counting.unchanged_since) = (clients, now);
            }
            return;
        }
        session.counting = Some(Counting { since: now, last: now, clients, unchanged_since: now });
        if self.counting.len() < Self::MOST_COUNTING && !self.counting.contains(&conn) {
            self.counting.push(conn);
        }
    }

    /// The connections that read `init/` again and again, shown as waits for that key.
    pub fn counting(&mut self, now: Timestamp) -> Vec<WaitView> {
        let mut waits = Vec::new();
        let mut conns = std::mem::take(&mut self.counting);
        conns.retain(|&conn| {
            let Some(session) = self.session_mut(conn) else { return false };
            // After a reset, a WAIT comes first: until the number is there again.
            let is_blocked = session.wait.is_some();
            session.counting.take_if(|counting| !is_blocked && now.since(counting.last) > Self::LAST_READ);
            let Some(counting) = &session.counting else { return false };
            // A connection that has read it once may only have looked.
            if !is_blocked && counting.last > counting.since {
                let (unchanged, ago) = (now.since(counting.unchanged_since), now.since(counting.last));
                let waited = now.since(counting.since);
                let wait = WaitView::new(conn, session.peer, session.pid, waited, (*b"init/").into());
                let counted = Some(Counted { clients: counting.clients, unchanged, ago });
                waits.push(WaitView { counted, ..wait });
            }
            true
        });
        self.counting = conns;
        waits
    }
}

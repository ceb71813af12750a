//! Who hosts a job, and waits until all have come. A process that opens a store of its own, as rank 0 of `env://` and node
//! rank 0 of a static job do unless they are told to be clients, reads `init/` every 10 ms until as many have counted
//! themselves there as it expects (`TCPStore::waitForWorkers`). It publishes nothing before. To the store each of these
//! reads is answered at once, so this wait is seen by its reads only.

use std::time::Duration;

use super::deleted::KeyPast;
use super::number::parse_counter;
use super::slot::SlotId;
use super::{Store, WaitView};
use crate::core::ids::{ConnId, Timestamp, count};

/// A connection reads `init/` again and again.
#[derive(Debug)]
pub(super) struct Counting {
    since: Timestamp,
    last: Timestamp,
    clients: u32,
    /// Since when it has read this number.
    unchanged_since: Timestamp,
}

/// How many have counted themselves, as one who waits for more has read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// Their number.
    pub clients: u32,
    /// For how long it has read this number.
    pub unchanged: Duration,
    /// How long ago it read it last.
    pub ago: Duration,
}

impl Store {
    /// Who has not read for so long does not wait any more.
    const LAST_READ: Duration = Duration::from_secs(1);
    /// A job has one of them. What more there are is not shown.
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

    /// Those who have read `init/` again, as waits for it.
    pub fn counting(&mut self, now: Timestamp) -> Vec<WaitView> {
        let mut waits = Vec::new();
        let mut conns = std::mem::take(&mut self.counting);
        conns.retain(|&conn| {
            let Some(session) = self.session_mut(conn) else { return false };
            // After a reset it waits until the number is there.
            let is_blocked = session.wait.is_some();
            session.counting.take_if(|counting| !is_blocked && now.since(counting.last) > Self::LAST_READ);
            let Some(counting) = &session.counting else { return false };
            // Who has read it once may only have looked.
            if !is_blocked && counting.last > counting.since {
                let (unchanged, ago) = (now.since(counting.unchanged_since), now.since(counting.last));
                waits.push(WaitView {
                    conn,
                    peer: session.peer,
                    pid: session.pid,
                    waited: now.since(counting.since),
                    barrier_size: None,
                    keys: 1,
                    missing: vec![(*b"init/").into()],
                    similar: None,
                    past: KeyPast::default(),
                    counted: Some(Counted { clients: counting.clients, unchanged, ago }),
                });
            }
            true
        });
        self.counting = conns;
        waits
    }
}

//! The results of the requests in one critical section, in order: replies, wake-ups, observations.

use std::sync::Arc;
use std::task::Waker;

use super::{Mailbox, MemoryBudget, Meter, Observations, Reservation};
use rallypoint_protocol::ids::{ConnId, Timestamp};
use rallypoint_protocol::{Reply, ReplyBuffer};
use rallypoint_store::{Cleanup, Effects, Observed};

/// One critical section's effects.
pub(super) struct BatchEffects<'t> {
    /// The connection whose requests are applied.
    pub(super) own: Option<ConnId>,
    pub(super) now: Timestamp,
    pub(super) out: &'t mut ReplyBuffer,
    pub(super) mailboxes: &'t mut slab::Slab<Mailbox>,
    pub(super) meter: &'t mut Meter,
    pub(super) cleanups: &'t mut Vec<Cleanup>,
    pub(super) observations: &'t mut Observations,
    pub(super) wakers: &'t mut Vec<Waker>,
    /// Rows about sessions of links, for the journal.
    pub(super) rows: &'t mut Vec<u8>,
    /// Bytes of replies up to which nothing more has to be counted…
    pub(super) counted: usize,
    /// …because this reservation covers them, until the connection counts the replies that it keeps.
    pub(super) reservation: Option<Reservation>,
    pub(super) budget: &'t Arc<MemoryBudget>,
}

impl BatchEffects<'_> {
    /// A value of at least this size is counted by itself: many connections may send it at the same time.
    const LENT_FROM: usize = 16 * 1024;

    #[cold]
    fn count_replies(&mut self) -> bool {
        const MORE: usize = 1 << 20;
        self.counted = self.out.own().saturating_add(MORE);
        self.reservation.get_or_insert_with(|| self.budget.reservation()).resize(self.counted)
    }
}

impl Effects for BatchEffects<'_> {
    #[inline]
    fn reply(&mut self, reply: Reply<'_>) {
        let large = ReplyBuffer::large(&reply).filter(|value| value.len() >= Self::LENT_FROM);
        match large.and_then(|value| self.budget.lend(value)) {
            Some(lent) => self.out.push_lent(&reply, lent),
            // If there is no room for the value, counting the rest of the replies shows it.
            None => self.out.push(reply),
        }
    }

    #[inline]
    fn has_room(&mut self) -> bool {
        self.out.own() <= self.counted || self.count_replies()
    }

    fn wake(&mut self, conn: ConnId, since: Timestamp) {
        self.meter.waits.record(self.now.since(since));
        if Some(conn) == self.own {
            self.out.push(Reply::StopWaiting);
            return;
        }
        let Some(mailbox) = self.mailboxes.get_mut(conn.slot()).filter(|mailbox| mailbox.id == conn) else {
            return;
        };
        mailbox.woken = true;
        if let Some(link) = &mut mailbox.link {
            link.woken(self.rows);
        }
        self.wakers.extend(mailbox.waker.take());
    }

    fn cleanup(&mut self, cleanup: Cleanup) {
        self.cleanups.push(cleanup);
    }

    #[inline]
    fn observes(&self) -> bool {
        self.observations.enabled
    }

    fn observe(&mut self, observed: Observed) {
        if self.observations.enabled {
            self.observations.push(self.now, observed);
        }
    }
}

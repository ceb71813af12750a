//! What the journal has to know of a client behind a relay, so that its conversation goes on with the next server: which of
//! its requests are applied, and which replies it is owed, in the same commit as what they changed.

use std::net::SocketAddr;

use crate::core::journal::{Reached, Row, SessionId, SessionRow, StoreId};
use crate::core::protocol::Dialect;

/// What ends a wait, on the wire.
const STOP_WAITING: &[u8] = &[0];

/// What a link says with a batch of one of its sessions.
#[derive(Debug, Clone, Copy, Default)]
pub struct LinkSide {
    /// Bytes before the first request that are of none: a hello.
    pub before: usize,
    /// In which dialect the requests are.
    pub dialect: Dialect,
    /// The relay is done with the replies up to here.
    pub acknowledged: u64,
}

/// A session of a link whose store had it when the last server ended.
#[derive(Debug, Clone, Copy)]
pub struct LinkedBefore {
    /// The session.
    pub id: SessionId,
    /// The number of its connection.
    pub conn: u32,
    /// The client.
    pub client: SocketAddr,
    /// How far it had come.
    pub reached: Reached,
}

/// A session of a link, as the journal knows it.
#[derive(Debug)]
pub(super) struct Resumable {
    pub(super) id: SessionId,
    client: SocketAddr,
    reached: Reached,
    /// Requests were taken up to here. Above what is applied, it is a WAIT that is outstanding, and what came behind it.
    taken: u64,
}

impl Resumable {
    pub(super) fn new(id: SessionId, client: SocketAddr) -> Self {
        Self { id, client, reached: Reached::default(), taken: 0 }
    }

    pub(super) fn before(&LinkedBefore { id, client, reached, .. }: &LinkedBefore) -> Self {
        Self { id, client, reached, taken: reached.applied }
    }

    /// A request of so many bytes was taken. After it, the client waits or not.
    pub(super) fn took(&mut self, len: usize, waits: bool) {
        let was_waiting = self.reached.applied < self.taken;
        self.taken = self.taken.saturating_add(len as u64);
        if waits {
            self.reached.is_ahead |= was_waiting;
        } else {
            self.wait_is_over();
        }
    }

    /// Its wait has ended, and it gets the byte that says so.
    pub(super) fn woken(&mut self, rows: &mut Vec<u8>) {
        self.wait_is_over();
        self.reply(STOP_WAITING, rows);
        self.put_reached(rows);
    }

    /// The client waits no more: all that was taken is applied.
    pub(super) fn wait_is_over(&mut self) {
        self.reached.applied = self.taken;
        self.reached.is_ahead = false;
    }

    /// A part of the answer to the request that is under way has left: the request cannot come again.
    pub(super) fn answered_in_part(&mut self) {
        self.reached.is_ahead = true;
    }

    /// Notes what the link says, before the requests of a batch.
    pub(super) fn hear(&mut self, side: &LinkSide) {
        if side.before > 0 {
            self.took(side.before, false);
        }
        self.reached.dialect = side.dialect.number();
        self.reached.acknowledged = side.acknowledged;
    }

    /// The client gets these bytes.
    pub(super) fn reply(&mut self, bytes: &[u8], rows: &mut Vec<u8>) {
        Row::Reply(self.id, self.reached.replied, bytes).encode(rows);
        self.reached.replied = self.reached.replied.saturating_add(bytes.len() as u64);
    }

    /// Says how far it has come.
    pub(super) fn put_reached(&self, rows: &mut Vec<u8>) {
        Row::Reached(self.id, self.reached).encode(rows);
    }

    /// Says what it is, and how far it has come. If it `is_woken`, the link does not have the byte for it yet.
    pub(super) fn put(&self, store: StoreId, conn: u32, is_woken: bool, rows: &mut Vec<u8>) {
        let client = self.client.to_string();
        Row::Session(self.id, Some(SessionRow::Open { store, conn, client: client.as_bytes() })).encode(rows);
        if is_woken {
            Row::Reply(self.id, self.reached.replied.saturating_sub(1), STOP_WAITING).encode(rows);
        }
        self.put_reached(rows);
    }

    /// Says that it is over.
    pub(super) fn put_over(&self, rows: &mut Vec<u8>) {
        Row::Session(self.id, Some(SessionRow::Over)).encode(rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Resumable {
        let id = SessionId { link: 1, no: 0 };
        Resumable::new(id, SocketAddr::from(([127, 0, 0, 1], 1)))
    }

    #[test]
    fn a_wait_is_applied_when_it_is_over() {
        let mut session = session();
        session.hear(&LinkSide { before: 5, ..LinkSide::default() });
        session.took(10, false);
        session.took(20, true);
        assert_eq!((session.reached.applied, session.reached.is_ahead), (15, false), "it is sent again");
        let mut rows = Vec::new();
        session.woken(&mut rows);
        assert_eq!((session.reached.applied, session.reached.replied), (35, 1));
        // A CANCEL_WAIT ends the next one.
        session.took(20, true);
        session.hear(&LinkSide::default());
        session.took(1, false);
        assert_eq!((session.reached.applied, session.reached.is_ahead), (56, false));
    }

    #[test]
    fn what_came_behind_a_wait_or_was_answered_in_part_cannot_come_again() {
        let mut session = session();
        session.took(20, true);
        session.hear(&LinkSide::default());
        session.took(10, true);
        assert_eq!((session.reached.applied, session.reached.is_ahead), (0, true));
        session.wait_is_over();
        assert_eq!((session.reached.applied, session.reached.is_ahead), (30, false));
        session.answered_in_part();
        assert!(session.reached.is_ahead);
        session.took(40, false);
        assert!(!session.reached.is_ahead, "the whole answer is there");
    }
}

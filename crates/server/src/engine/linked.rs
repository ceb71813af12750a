//! Rows about a client behind a relay, so that its conversation goes on with the next server: its applied
//! requests and the replies that are due. They are in the same commit as the changes of these requests.

use std::net::SocketAddr;

use rallypoint_journal::{Reached, Row, SessionId, SessionRow, StoreId};
use rallypoint_protocol::Dialect;

/// The reply that ends a wait, on the wire.
const STOP_WAITING: &[u8] = &[0];

/// What a link adds to a batch of one of its sessions.
#[derive(Debug, Clone, Copy, Default)]
pub struct LinkSide {
    /// Bytes before the first request that belong to no request: a hello.
    pub before: usize,
    /// The dialect of the requests.
    pub dialect: Dialect,
    /// The relay needs no replies below this position any more.
    pub acknowledged: u64,
}

/// A session of a link that the store had when the last server ended.
#[derive(Debug, Clone, Copy)]
pub struct LinkedBefore {
    /// The session.
    pub id: SessionId,
    /// The number of its connection.
    pub conn: u32,
    /// The client.
    pub client: SocketAddr,
    /// How far the session had come.
    pub reached: Reached,
}

/// A session of a link, as the journal knows it.
#[derive(Debug)]
pub(super) struct Resumable {
    pub(super) id: SessionId,
    client: SocketAddr,
    reached: Reached,
    /// Requests were taken up to here. The bytes above `applied` are an outstanding WAIT and the requests
    /// behind it.
    taken: u64,
    /// A request behind an outstanding WAIT was applied.
    is_behind: bool,
    /// How many keys of the request under way are done.
    pub(super) begun: u64,
    /// A part of the answer to that request may have left.
    is_answered: bool,
}

impl Resumable {
    pub(super) fn new(id: SessionId, client: SocketAddr) -> Self {
        Self {
            id,
            client,
            reached: Reached::default(),
            taken: 0,
            is_behind: false,
            begun: 0,
            is_answered: false,
        }
    }

    pub(super) fn before(&LinkedBefore { id, client, reached, .. }: &LinkedBefore) -> Self {
        let (taken, begun, is_answered) = (reached.applied, reached.begun, reached.is_ahead);
        Self { reached, taken, begun, is_answered, ..Self::new(id, client) }
    }

    /// Records that a request of `len` bytes was taken. `waits` says whether the client waits after it.
    pub(super) fn took(&mut self, len: usize, waits: bool) {
        let was_waiting = self.reached.applied < self.taken;
        self.taken = self.taken.saturating_add(len as u64);
        (self.begun, self.is_answered) = (0, false);
        if waits {
            self.is_behind |= was_waiting;
        } else {
            self.wait_is_over();
        }
    }

    /// The wait has ended; appends the byte that tells the client so.
    pub(super) fn woken(&mut self, rows: &mut Vec<u8>) {
        self.wait_is_over();
        self.reply(STOP_WAITING, rows);
        self.put_reached(rows);
    }

    /// The client waits no more: every request that was taken is applied.
    pub(super) fn wait_is_over(&mut self) {
        self.reached.applied = self.taken;
        self.is_behind = false;
    }

    /// Records that `keys` keys of the request under way are done, and whether a part of its answer may have
    /// left. The next server goes on behind these keys. Behind an outstanding WAIT the number of keys is not
    /// kept, so such a request cannot be repeated.
    pub(super) fn began(&mut self, keys: u64, is_answered: bool) {
        self.begun = keys;
        self.is_answered |= is_answered;
        self.is_behind |= (keys > 0 || is_answered) && self.reached.applied < self.taken;
    }

    /// Records what the link says, before the requests of a batch.
    pub(super) fn hear(&mut self, side: &LinkSide) {
        if side.before > 0 {
            self.took(side.before, false);
        }
        self.reached.dialect = side.dialect.number();
        self.reached.acknowledged = side.acknowledged;
    }

    /// Records a reply to the client.
    pub(super) fn reply(&mut self, bytes: &[u8], rows: &mut Vec<u8>) {
        Row::Reply(self.id, self.reached.replied, bytes).encode(rows);
        self.reached.replied = self.reached.replied.saturating_add(bytes.len() as u64);
    }

    /// Appends how far the session has come.
    pub(super) fn put_reached(&self, rows: &mut Vec<u8>) {
        Row::Reached(self.id, self.reached()).encode(rows);
    }

    fn reached(&self) -> Reached {
        Reached {
            is_ahead: self.is_behind || self.is_answered,
            begun: if self.is_behind { 0 } else { self.begun },
            ..self.reached
        }
    }

    /// Appends the whole session. If it `is_woken`, the byte that ends its wait is not in the link's hands
    /// yet.
    pub(super) fn put(&self, store: StoreId, conn: u32, is_woken: bool, rows: &mut Vec<u8>) {
        let client = self.client.to_string();
        Row::Session(self.id, Some(SessionRow::Open { store, conn, client: client.as_bytes() })).encode(rows);
        if is_woken {
            Row::Reply(self.id, self.reached.replied.saturating_sub(1), STOP_WAITING).encode(rows);
        }
        self.put_reached(rows);
    }

    /// Appends the end of the session.
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
        assert_eq!((session.reached.applied, session.reached().is_ahead), (15, false), "it is sent again");
        let mut rows = Vec::new();
        session.woken(&mut rows);
        assert_eq!((session.reached.applied, session.reached.replied), (35, 1));
        // A CANCEL_WAIT ends the next wait.
        session.took(20, true);
        session.hear(&LinkSide::default());
        session.took(1, false);
        assert_eq!((session.reached.applied, session.reached().is_ahead), (56, false));
    }

    #[test]
    fn what_came_behind_a_wait_or_was_answered_in_part_cannot_come_again() {
        let mut session = session();
        session.took(20, true);
        session.hear(&LinkSide::default());
        session.took(10, true);
        assert_eq!((session.reached.applied, session.reached().can_go_on()), (0, false));
        session.wait_is_over();
        assert_eq!((session.reached.applied, session.reached().can_go_on()), (30, true));
        session.began(0, true);
        assert!(!session.reached().can_go_on());
        session.took(40, false);
        assert!(!session.reached().is_ahead, "the whole answer is there");
    }

    #[test]
    fn a_request_in_slices_goes_on_behind_what_is_done() {
        let mut session = session();
        session.took(20, false);
        session.began(7, true);
        let reached = session.reached();
        assert!(reached.can_go_on() && reached.is_ahead, "a release that does not know how cannot go on");
        assert_eq!((reached.applied, reached.begun), (20, 7));
        let (id, client) = (session.id, session.client);
        let mut again = Resumable::before(&LinkedBefore { id, conn: 1, client, reached });
        assert_eq!((again.begun, again.reached()), (7, reached));
        again.took(40, false);
        assert_eq!((again.reached().begun, again.reached().is_ahead), (0, false));
        // Behind an outstanding WAIT the request would be repeated together with the WAIT.
        again.took(20, true);
        again.began(3, false);
        assert_eq!((again.reached().begun, again.reached().can_go_on()), (0, false));
        again.wait_is_over();
        assert_eq!((again.reached().begun, again.reached().can_go_on()), (3, true));
    }
}

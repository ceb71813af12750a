//! Queues: an item is offered to one waiter at a time, and to the next if that waiter does not take it.

use bytes::Bytes;

use super::capacity::Refusal;
use super::deleted::KeyPast;
use super::keyspace::Queue;
use super::slot::SlotId;
use super::waiters::WaitOn;
use super::{Effects, Store};
use rallypoint_protocol::ids::ConnId;
use rallypoint_protocol::{Payload, Reply, Request};

impl Store {
    pub(super) fn queue_push(
        &mut self,
        conn: ConnId,
        key: &[u8],
        item: Payload<'_>,
        fx: &mut impl Effects,
    ) -> Result<(), Refusal> {
        let looked = self.keys.look(key);
        let item_bytes = item.as_slice().len().saturating_add(size_of::<Bytes>());
        if looked.id.is_some() {
            self.room_for(item_bytes.saturating_add(Queue::BYTES), 0)?;
        } else {
            self.room_for_name(key, item_bytes.saturating_add(Queue::BYTES))?;
        }
        let id = looked.id.unwrap_or_else(|| self.new_slot(key.into(), looked));
        self.stale.on_plain_use();
        let appeared = !self.keys.slot(id).is_present();
        self.keys.push_item(id, item.to_stored());
        if appeared {
            self.subtract_missing(id);
        }
        self.offer_item(id, fx);
        self.polls_no_more(conn);
        Ok(())
    }

    pub(super) fn queue_pop(&mut self, conn: ConnId, key: &[u8], fx: &mut impl Effects) {
        let id = self.keys.find(key);
        let len = id.map_or(0, |id| self.keys.slot(id).queue_len());
        match len {
            _ if !fx.observes() => {}
            0 => self.looks_in_vain(conn, std::iter::once(key)),
            _ => self.finds(conn, std::iter::once(key)),
        }
        fx.reply(Reply::count(len));
        let Some(id) = id else { return };
        if let Some(item) = self.keys.pop_item(id) {
            fx.reply(Reply::Value(&item));
            if !self.keys.slot(id).is_present() {
                self.add_missing(id);
                self.deleted.add(key, KeyPast::Taken(conn, self.heard_last(conn)));
            }
        }
        self.release(id);
    }

    /// Wakes the first connection that waits for this queue and for nothing else.
    #[expect(clippy::arithmetic_side_effects, reason = "steps: no more than there are waiters")]
    pub(super) fn offer_item(&mut self, id: SlotId, fx: &mut impl Effects) {
        let ready = self.registrations.iter(&self.keys.slot(id).waiters).find(|conn| {
            self.work += 1;
            let session = self.sessions[conn.slot()].as_ref().filter(|session| session.conn == *conn);
            let wait = session.and_then(|session| session.wait.as_ref());
            wait.is_some_and(|wait| matches!(wait.on, WaitOn::Keys { missing: 0, .. }))
        });
        let Some(conn) = ready else { return };
        let Some(since) = self.end_wait(conn) else { return };
        if let Some(queue) = &mut self.keys.slot_mut(id).queue {
            queue.offered = queue.offered.saturating_add(1);
        }
        if let Some(session) = self.session_mut(conn) {
            session.offered = Some(id);
        }
        self.finds_slot(conn, id);
        fx.wake(conn, since);
    }

    /// Called with the next request of a connection that was woken for an item: it takes the item, or the
    /// item is offered to another.
    #[inline]
    pub(super) fn settle_offer(&mut self, conn: ConnId, request: &Request<'_>, fx: &mut impl Effects) {
        let Some(id) = self.session(conn).and_then(|session| session.offered) else { return };
        if let Request::QueuePop { key } = *request
            && self.keys.slot(id).key() == key
        {
            self.take_offer(conn);
            return;
        }
        self.pass_on_offer(conn, fx);
    }

    pub(super) fn take_offer(&mut self, conn: ConnId) -> Option<SlotId> {
        let id = self.session_mut(conn)?.offered.take()?;
        if let Some(queue) = &mut self.keys.slot_mut(id).queue {
            queue.offered = queue.offered.saturating_sub(1);
        }
        Some(id)
    }

    pub(super) fn pass_on_offer(&mut self, conn: ConnId, fx: &mut impl Effects) {
        if let Some(id) = self.take_offer(conn) {
            if self.keys.slot(id).queue_len() > 0 {
                self.offer_item(id, fx);
            }
            self.release(id);
        }
    }
}

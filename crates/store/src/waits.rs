//! WAIT: parks a connection until all its keys are there, and ends its wait. A wait knows how many of its
//! keys are missing. The code that makes a key appear or disappear tells the waiters of that key, and no
//! others.

use super::keyspace::{Looked, Slot};
use super::slot::SlotId;
use super::waiters::{Ended, RegistrationId, Wait, WaitOn};
use super::{Effects, Observed, Store};
use rallypoint_protocol::ids::{ConnId, Timestamp};
use rallypoint_protocol::keys::is_asked_for;

#[expect(
    clippy::arithmetic_side_effects,
    reason = "`missing` counts registrations of one wait, `waiting` sessions: each is added before it is \
              subtracted"
)]
impl Store {
    /// A wait for up to this many keys leaves its lists at once, however much work was done before.
    const FEW_KEYS: usize = 16;

    /// Registers `conn`, which has a WAIT, for one of its keys.
    pub(super) fn register(&mut self, conn: ConnId, key: &[u8], looked: Looked, fx: &mut impl Effects) {
        let id = self.slot_for(conn, key, looked, fx);
        let slot = self.keys.slot_mut(id);
        if self.registrations.is_last(slot.waiters, conn) {
            // The request names the key twice.
            return;
        }
        let wait = self.sessions[conn.slot()].as_mut().and_then(|session| session.wait.as_mut());
        if let Some(WaitOn::Keys { registrations, missing, .. }) = wait.map(|wait| &mut wait.on) {
            registrations.push(self.registrations.append(&mut slot.waiters, conn, id));
            *missing += u32::from(!slot.is_present());
        }
    }

    /// All keys of the WAIT of `conn` are registered. Returns whether none of them is missing.
    pub(super) fn is_registered(&mut self, conn: ConnId) -> bool {
        match self.session_mut(conn).and_then(|session| session.wait.as_mut()).map(|wait| &mut wait.on) {
            Some(WaitOn::Keys { missing, .. }) => {
                *missing -= 1;
                *missing == 0
            }
            _ => false,
        }
    }

    pub(super) fn begin_wait(&mut self, conn: ConnId, wait: Wait) {
        if let Some(session) = self.session_mut(conn) {
            session.wait = Some(Box::new(wait));
            self.waiting += 1;
        }
    }

    /// Tells the waiters of a slot that its plain value was written. If it `appeared`, they miss one key
    /// fewer.
    pub(super) fn wake_waiters(&mut self, id: SlotId, appeared: bool, fx: &mut impl Effects) {
        let mut to_wake = std::mem::take(&mut self.to_wake);
        self.each_missing(id, |conn, missing| {
            *missing -= u32::from(appeared);
            if *missing == 0 {
                to_wake.push(conn);
            }
        });
        for conn in to_wake.drain(..) {
            if let Some(since) = self.waiting_since(conn) {
                fx.wake(conn, since);
            }
            for other in self.others_of(conn) {
                self.work += 1;
                if let Some(since) = self.forget_wait(other) {
                    fx.wake(other, since);
                }
            }
            self.end_wait(conn);
            self.finds_slot(conn, id);
        }
        self.to_wake = to_wake;
    }

    /// The name is gone: its waiters miss one more key.
    pub(super) fn add_missing(&mut self, id: SlotId) {
        self.each_missing(id, |_, missing| *missing += 1);
    }

    /// The name is there: its waiters miss one key fewer. This wakes no connection.
    pub(super) fn subtract_missing(&mut self, id: SlotId) {
        self.each_missing(id, |_, missing| *missing -= 1);
    }

    /// Changes the number of missing keys of each WAIT on a name, oldest first.
    fn each_missing(&mut self, id: SlotId, mut change: impl FnMut(ConnId, &mut u32)) {
        for conn in self.registrations.iter(&self.keys.slot(id).waiters) {
            self.work += 1;
            let session = self.sessions[conn.slot()].as_mut().filter(|session| session.conn == conn);
            let wait = session.and_then(|session| session.wait.as_mut());
            if let Some(WaitOn::Keys { missing, .. }) = wait.map(|wait| &mut wait.on) {
                change(conn, missing);
            }
        }
    }

    /// Ends a wait before its condition: a barrier arrival is withdrawn. Returns when it began, if there was
    /// one.
    pub(super) fn end_wait(&mut self, conn: ConnId) -> Option<Timestamp> {
        let wait = self.session(conn)?.wait.as_ref()?;
        if let WaitOn::Barrier { registration, arrivals, life, .. } = wait.on {
            self.withdraw_arrivals(self.registrations.get(registration).slot, arrivals, life);
        }
        self.forget_wait(conn)
    }

    /// Removes the registrations of a wait that is over. Returns when it began.
    pub(super) fn forget_wait(&mut self, conn: ConnId) -> Option<Timestamp> {
        let wait = self.session_mut(conn)?.wait.take()?;
        self.waiting -= 1;
        match wait.on {
            WaitOn::Keys { registrations, missing, shared } => {
                let registrations = match shared {
                    None => Some(registrations),
                    Some(at) => self.hand_over(at, registrations, missing),
                };
                let Some(registrations) = registrations else { return Some(wait.since) };
                // One write may end many waits of many keys each.
                let most = if self.has_worked_enough() { Self::FEW_KEYS } else { Self::KEYS_AT_ONCE };
                if registrations.len() <= most {
                    self.work += registrations.len();
                    registrations.into_iter().for_each(|registration| self.unregister(registration));
                } else {
                    self.ended.push_back(Ended { conn, registrations });
                }
            }
            WaitOn::Shared { registration, at } => self.leave_shared(at, registration),
            WaitOn::Barrier { registration, .. } => {
                self.client_changed(conn);
                let id = self.registrations.get(registration).slot;
                if let Some(barrier) = &mut self.keys.slot_mut(id).barrier {
                    self.registrations.remove(&mut barrier.arrivals, registration);
                }
                self.release(id);
            }
        }
        Some(wait.since)
    }

    /// Removes one registration of a WAIT that is over from the list of its name.
    pub(super) fn unregister(&mut self, registration: RegistrationId) {
        let id = self.registrations.get(registration).slot;
        let list = &mut self.keys.slot_mut(id).waiters;
        self.registrations.remove(list, registration);
        if list.is_empty() {
            self.release(id);
        }
    }

    /// Whether registrations of a wait of `conn` that is over are left.
    pub(super) fn is_ending_wait(&self, conn: ConnId) -> bool {
        self.ended.iter().any(|ended| ended.conn == conn)
    }

    /// A client gives up, and may try again. In a huge wait a missing key may not be found.
    pub(super) fn gives_up(&mut self, conn: ConnId, now: Timestamp, fx: &mut impl Effects) {
        let wait = self.session(conn).and_then(|session| session.wait.as_ref());
        let Some(wait) = wait.filter(|wait| !matches!(wait.on, WaitOn::Barrier { .. })) else { return };
        let waited = now.since(wait.since);
        let some = self.registrations_of(conn).iter().take(Self::KEYS_AT_ONCE);
        let mut slots = some.map(|&id| self.keys.slot(self.registrations.get(id).slot));
        let is_told = |slot: &&Slot| slot.record.is_some() || is_asked_for(slot.key());
        let Some(slot) = slots.find(|slot| !slot.is_present() && is_told(slot)) else { return };
        let (key, is_of_job): (Box<[u8]>, bool) = (slot.key().into(), slot.record.is_some());
        self.waits_in_vain(conn, key.clone(), waited);
        if is_of_job || self.session_mut(conn).is_some_and(|session| session.asks.may_give_up(now)) {
            fx.observe(Observed::GaveUp { conn, key, waited });
        }
    }

    /// Since when `conn` has an outstanding WAIT or BARRIER, if it has one.
    pub fn waiting_since(&self, conn: ConnId) -> Option<Timestamp> {
        Some(self.session(conn)?.wait.as_ref()?.since)
    }

    /// Ends the outstanding wait of a client that cannot cancel (PyTorch 2.0) and has plainly moved on.
    pub fn abandon_wait(&mut self, conn: ConnId) {
        if !self.has_begun(conn) {
            self.end_wait(conn);
        }
    }
}

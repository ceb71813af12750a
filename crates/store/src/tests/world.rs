//! The store under test with its clock.

use std::cell::{RefCell, RefMut};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use super::client::lossy;
use super::{Client, Effect, Recorder};
use crate::{Capacity, Cleanup, DropCause, Observed, StaleKeyConfig, Store};
use rallypoint_protocol::ids::{ConnId, Timestamp};

/// A store, its clock, and the effects for its clients.
#[derive(Clone)]
pub(super) struct World(pub(super) Rc<RefCell<Inner>>);

pub(super) struct Inner {
    pub(super) store: Store,
    pub(super) now: Timestamp,
    pub(super) recorder: Recorder,
    pub(super) woken: HashMap<ConnId, usize>,
    pub(super) free: Vec<u32>,
    slots: u32,
    serial: u32,
    is_checked: bool,
}

impl World {
    pub(super) const CAPACITY: Capacity = Capacity { keys: 1 << 20, bytes: 1 << 30 };

    pub(super) fn new() -> Self {
        Self::with(Self::CAPACITY, StaleKeyConfig::default())
    }

    pub(super) fn with(capacity: Capacity, stale: StaleKeyConfig) -> Self {
        Self(Rc::new(RefCell::new(Inner {
            store: Store::new(capacity, stale),
            now: Timestamp(Duration::from_secs(1000)),
            recorder: Recorder { observing: true, ..Recorder::default() },
            woken: HashMap::new(),
            free: Vec::new(),
            slots: 0,
            serial: 0,
            is_checked: true,
        })))
    }

    /// A world that is too large for checking the invariants after each request.
    pub(super) fn unchecked() -> Self {
        let world = Self::new();
        world.0.borrow_mut().is_checked = false;
        world
    }

    pub(super) fn inner(&self) -> RefMut<'_, Inner> {
        self.0.borrow_mut()
    }

    pub(super) fn client(&self) -> Client {
        self.client_at("10.0.0.1")
    }

    pub(super) fn client_at(&self, addr: &str) -> Client {
        let mut inner = self.inner();
        let slot = inner.free.pop().unwrap_or(inner.slots);
        inner.slots = inner.slots.max(slot + 1);
        inner.serial += 1;
        let conn = ConnId::new(slot, inner.serial);
        inner
            .store
            .connect(conn, SocketAddr::new(addr.parse().expect("an address"), 40000 + conn.slot() as u16));
        Client { world: self.clone(), conn }
    }

    pub(super) fn clients<const N: usize>(&self) -> [Client; N] {
        std::array::from_fn(|_| self.client())
    }

    /// Lets time pass, with a tick at each moment the store asked for one.
    pub(super) fn pass(&self, seconds: u64) {
        let mut inner = self.inner();
        let end = inner.now + Duration::from_secs(seconds);
        while let Some(at) = inner.store.next_deadline().filter(|at| *at <= end) {
            inner.now = inner.now.max(at);
            inner.tick();
        }
        inner.now = end;
        inner.tick();
    }

    pub(super) fn reset(&self) {
        let Inner { store, recorder, .. } = &mut *self.inner();
        store.begin(recorder);
        store.reset(recorder);
        store.check_invariants();
        while store.is_unsettled() {
            store.begin(recorder);
        }
    }

    /// Finishes all drops that are done in steps.
    pub(super) fn settle(&self) {
        let Inner { store, recorder, .. } = &mut *self.inner();
        while store.is_unsettled() {
            store.begin(recorder);
        }
    }

    /// The value of a key. No client asks for it.
    pub(super) fn value(&self, key: impl AsRef<[u8]>) -> Option<String> {
        let inner = self.inner();
        let id = inner.store.keys.find(key.as_ref())?;
        inner.store.keys.slot(id).value().map(|value| lossy(value))
    }

    pub(super) fn has(&self, key: impl AsRef<[u8]>) -> bool {
        self.value(key).is_some()
    }

    /// All plain keys, sorted.
    pub(super) fn keys(&self) -> Vec<String> {
        let mut keys: Vec<_> =
            self.inner().store.key_names(usize::MAX).iter().map(|key| lossy(key)).collect();
        keys.sort();
        keys
    }

    /// What the stale-key rules did since the last call.
    pub(super) fn cleanups(&self) -> Vec<Cleanup> {
        std::mem::take(&mut self.inner().recorder.cleanups)
    }

    /// What was observed of jobs since the last call.
    pub(super) fn observed(&self) -> Vec<Observed> {
        std::mem::take(&mut self.inner().recorder.observed)
    }

    /// How many keys were dropped since the last call, by cause.
    pub(super) fn dropped(&self) -> Vec<(DropCause, usize)> {
        let drops = self.cleanups().into_iter().filter_map(|cleanup| match cleanup {
            Cleanup::KeysDropped { cause, keys, .. } => Some((cause, keys)),
            _ => None,
        });
        drops.collect()
    }

    pub(super) fn assert_no_names_but(&self, keys: &[&str]) {
        let inner = self.inner();
        let mut names: Vec<_> = inner.store.keys.iter().map(|(_, slot)| lossy(slot.key())).collect();
        names.sort();
        assert_eq!(names, keys);
    }

    /// The last client leaves, and then the store is empty.
    pub(super) fn assert_empty_after(&self, last: Client) {
        last.leave();
        self.assert_empty();
    }

    /// Everything is freed: names, registrations, and the notes of the stale-key rules.
    pub(super) fn assert_empty(&self) {
        let inner = self.inner();
        inner.store.check_invariants();
        inner.store.assert_empty();
    }
}

impl Inner {
    fn tick(&mut self) {
        self.store.begin(&mut self.recorder);
        self.store.tick(self.now, &mut self.recorder);
        while self.store.is_unsettled() {
            self.store.begin(&mut self.recorder);
        }
        let next = self.store.next_deadline();
        assert!(next.is_none_or(|at| at > self.now), "a deadline in the past after a tick");
        self.check();
    }

    pub(super) fn check(&self) {
        if self.is_checked {
            self.check_now();
        }
    }

    pub(super) fn check_now(&self) {
        self.store.check_invariants();
    }

    /// Returns the effects since the last call, and counts the wake-ups.
    pub(super) fn take_effects(&mut self) -> Vec<Effect> {
        let effects = std::mem::take(&mut self.recorder.effects);
        for effect in &effects {
            if let Effect::Wake(conn) = effect {
                *self.woken.entry(*conn).or_default() += 1;
            }
        }
        effects
    }
}

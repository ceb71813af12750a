//! Tests of the store: clients that talk to one [`World`], on an invented clock.

mod barriers;
mod costs;
mod invariants;
mod limits;
mod model;
mod plain;
mod queues;
mod random;
mod stale_idle;
mod stale_leftovers;
mod stale_pairs;
mod stale_writers;
mod views;
mod waits;
pub(super) mod work;

use std::cell::{RefCell, RefMut};
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use super::{Capacity, DropCause, Effects, Event, Refusal, StaleKeyConfig, Store};
use crate::ids::{ConnId, Uptime};
use crate::protocol::{
    Decoded, Decoder, LegacyRelease, Limits, Op, Payload, Reply, Request, encode_hello, encode_request,
};

/// A reply with its bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Said {
    Ready(bool),
    StopWaiting,
    Cancelled,
    Number(i64),
    Bytes(Vec<u8>),
    Nonce(u32),
}

impl From<Reply<'_>> for Said {
    fn from(reply: Reply<'_>) -> Self {
        match reply {
            Reply::Ready(yes) => Self::Ready(yes),
            Reply::StopWaiting => Self::StopWaiting,
            Reply::WaitCancelled => Self::Cancelled,
            Reply::Number(number) => Self::Number(number),
            Reply::Value(bytes) => Self::Bytes(bytes.to_vec()),
            Reply::Bytes(bytes) => Self::Bytes(bytes.to_vec()),
            Reply::Nonce(nonce) => Self::Nonce(nonce),
        }
    }
}

/// One step of what a request led to, in order: a reply to the one who asked, or a wake-up.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Effect {
    Reply(Said),
    Wake(ConnId),
}

#[derive(Debug, Default)]
struct Recorder {
    effects: Vec<Effect>,
    events: Vec<Event>,
}

impl Effects for Recorder {
    fn reply(&mut self, reply: Reply<'_>) {
        self.effects.push(Effect::Reply(reply.into()));
    }

    fn wake(&mut self, conn: ConnId) {
        self.effects.push(Effect::Wake(conn));
    }

    fn event(&mut self, event: Event) {
        self.events.push(event);
    }
}

/// A request of its own: made from bytes, as the lists of keys can only be.
#[derive(Debug, Clone)]
struct Bytewise(Vec<u8>);

impl Bytewise {
    fn new(request: &Request<'_>) -> Self {
        let mut wire = Vec::new();
        assert!(encode_request(request, crate::protocol::Dialect::C, &mut wire));
        Self(wire)
    }

    /// WAIT, CHECK or MULTI_GET of some keys, or MULTI_SET of keys and values in turn.
    fn list(op: Op, strings: &[&[u8]]) -> Self {
        let count = strings.len() as u64 / if op == Op::MultiSet { 2 } else { 1 };
        let mut wire = vec![op as u8];
        wire.extend_from_slice(&count.to_le_bytes());
        for string in strings {
            wire.extend_from_slice(&(string.len() as u64).to_le_bytes());
            wire.extend_from_slice(string);
        }
        Self(wire)
    }

    fn with<T>(&self, then: impl FnOnce(&Request<'_>) -> T) -> T {
        let limits = Limits { keys_per_request: 1 << 20, ..Limits::default() };
        let mut decoder = Decoder::new(limits, LegacyRelease::default());
        let mut hello = Vec::new();
        encode_hello(&mut hello);
        decoder.decode(&hello, None).expect("the hello is right");
        match decoder.decode(&self.0, None) {
            Ok(Decoded::Request { request, .. }) => then(&request),
            other => panic!("no request: {other:?}"),
        }
    }
}

/// A store, its clock, and what its clients were told.
#[derive(Clone)]
struct World(Rc<RefCell<Inner>>);

struct Inner {
    store: Store,
    now: Uptime,
    recorder: Recorder,
    woken: HashMap<ConnId, usize>,
    free: Vec<u32>,
    slots: u32,
    serial: u32,
    is_checked: bool,
}

impl World {
    const CAPACITY: Capacity = Capacity { keys: 1 << 20, bytes: 1 << 30 };

    fn new() -> Self {
        Self::with(Self::CAPACITY, StaleKeyConfig::default())
    }

    fn with(capacity: Capacity, stale: StaleKeyConfig) -> Self {
        Self(Rc::new(RefCell::new(Inner {
            store: Store::new(capacity, stale),
            now: Uptime(Duration::from_secs(1000)),
            recorder: Recorder::default(),
            woken: HashMap::new(),
            free: Vec::new(),
            slots: 0,
            serial: 0,
            is_checked: true,
        })))
    }

    /// A world too large to be looked over after each request.
    fn unchecked() -> Self {
        let world = Self::new();
        world.0.borrow_mut().is_checked = false;
        world
    }

    fn inner(&self) -> RefMut<'_, Inner> {
        self.0.borrow_mut()
    }

    fn client(&self) -> Client {
        self.client_at("10.0.0.1")
    }

    fn client_at(&self, addr: &str) -> Client {
        let mut inner = self.inner();
        let slot = inner.free.pop().unwrap_or(inner.slots);
        inner.slots = inner.slots.max(slot + 1);
        inner.serial += 1;
        let conn = ConnId::new(slot, inner.serial);
        inner.store.connect(conn, addr.parse::<IpAddr>().expect("an address"));
        Client { world: self.clone(), conn }
    }

    fn clients<const N: usize>(&self) -> [Client; N] {
        std::array::from_fn(|_| self.client())
    }

    /// Lets time pass, with a tick at each moment the store asked for one.
    fn pass(&self, seconds: u64) {
        let mut inner = self.inner();
        let end = inner.now + Duration::from_secs(seconds);
        while let Some(at) = inner.store.next_deadline().filter(|at| *at <= end) {
            inner.now = inner.now.max(at);
            inner.tick();
        }
        inner.now = end;
        inner.tick();
    }

    fn reset(&self) {
        let Inner { store, recorder, .. } = &mut *self.inner();
        store.reset(recorder);
        store.check_invariants();
    }

    /// The value of a key, by nobody's request.
    fn value(&self, key: impl AsRef<[u8]>) -> Option<String> {
        let inner = self.inner();
        let id = inner.store.keys.find(key.as_ref())?;
        inner.store.keys.slot(id).value().map(|value| lossy(value))
    }

    fn has(&self, key: impl AsRef<[u8]>) -> bool {
        self.value(key).is_some()
    }

    /// All plain keys, sorted.
    fn keys(&self) -> Vec<String> {
        let mut keys: Vec<_> =
            self.inner().store.key_names(usize::MAX).iter().map(|key| lossy(key)).collect();
        keys.sort();
        keys
    }

    /// The events since the last call.
    fn events(&self) -> Vec<Event> {
        std::mem::take(&mut self.inner().recorder.events)
    }

    /// How many keys were dropped since the last call, by cause.
    fn dropped(&self) -> Vec<(DropCause, usize)> {
        let drops = self.events().into_iter().filter_map(|event| match event {
            Event::KeysDropped { cause, keys, .. } => Some((cause, keys)),
            _ => None,
        });
        drops.collect()
    }

    /// Everything is freed: names, registrations and what the rules for stale keys remember.
    fn assert_empty(&self) {
        let inner = self.inner();
        inner.store.check_invariants();
        inner.store.assert_empty();
    }
}

impl Inner {
    fn tick(&mut self) {
        self.store.tick(self.now, &mut self.recorder);
        let next = self.store.next_deadline();
        assert!(next.is_none_or(|at| at > self.now), "a deadline in the past after a tick");
        self.check();
    }

    fn check(&self) {
        if self.is_checked {
            self.store.check_invariants();
        }
    }

    /// Hands out the effects since the last call and counts the wake-ups.
    fn take_effects(&mut self) -> Vec<Effect> {
        let effects = std::mem::take(&mut self.recorder.effects);
        for effect in &effects {
            if let Effect::Wake(conn) = effect {
                *self.woken.entry(*conn).or_default() += 1;
            }
        }
        effects
    }
}

/// One connection. Dropping it does nothing; [`Client::leave`] disconnects.
struct Client {
    world: World,
    conn: ConnId,
}

impl Client {
    fn request(&self, request: &Request<'_>) -> Result<Vec<Effect>, Refusal> {
        let mut inner = self.world.inner();
        let Inner { store, recorder, now, .. } = &mut *inner;
        let result = store.apply(self.conn, request, *now, recorder);
        inner.check();
        let effects = inner.take_effects();
        result.map(|()| effects)
    }

    fn ask(&self, request: &Request<'_>) -> Vec<Said> {
        let effects = self.request(request).expect("not refused");
        let replies = effects.into_iter().filter_map(|effect| match effect {
            Effect::Reply(said) => Some(said),
            Effect::Wake(_) => None,
        });
        replies.collect()
    }

    fn ask_list<K: AsRef<[u8]>>(&self, op: Op, strings: &[K]) -> Vec<Said> {
        let strings: Vec<&[u8]> = strings.iter().map(AsRef::as_ref).collect();
        Bytewise::list(op, &strings).with(|request| self.ask(request))
    }

    fn set(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let value = Payload::borrowed(value.as_ref());
        assert_eq!(self.ask(&Request::Set { key: key.as_ref(), value }), []);
    }

    fn get(&self, key: impl AsRef<[u8]>) -> String {
        text(self.ask(&Request::Get { key: key.as_ref() }))
    }

    /// What every PyTorch client does for `get`.
    fn wait_and_get(&self, key: impl AsRef<[u8]>) -> String {
        assert!(self.wait(&[&key]), "{} is missing", lossy(key.as_ref()));
        self.get(key)
    }

    fn compare_set(&self, key: &str, expected: &str, desired: &str) -> String {
        let desired = Payload::borrowed(desired.as_bytes());
        text(self.ask(&Request::CompareSet { key: key.as_bytes(), expected: expected.as_bytes(), desired }))
    }

    fn add(&self, key: impl AsRef<[u8]>, delta: i64) -> i64 {
        number(&self.ask(&Request::Add { key: key.as_ref(), delta }))
    }

    fn append(&self, key: &str, value: &str) {
        let request = Request::Append { key: key.as_bytes(), value: value.as_bytes() };
        assert_eq!(self.ask(&request), []);
    }

    fn delete(&self, key: impl AsRef<[u8]>) -> i64 {
        number(&self.ask(&Request::Delete { key: key.as_ref() }))
    }

    fn num_keys(&self) -> i64 {
        number(&self.ask(&Request::NumKeys))
    }

    /// The listed keys, sorted.
    fn list_keys(&self) -> Vec<String> {
        let mut said = self.ask(&Request::ListKeys);
        let keys = said.split_off(1);
        assert_eq!(said, [Said::Number(keys.len() as i64)]);
        let mut keys: Vec<_> = keys.into_iter().map(|said| text(vec![said])).collect();
        keys.sort();
        keys
    }

    fn check(&self, keys: &[&str]) -> bool {
        match self.ask_list(Op::Check, keys)[..] {
            [Said::Ready(ready)] => ready,
            ref other => panic!("CHECK says {other:?}"),
        }
    }

    fn multi_get(&self, keys: &[&str]) -> Vec<String> {
        self.ask_list(Op::MultiGet, keys).into_iter().map(|said| text(vec![said])).collect()
    }

    fn multi_set(&self, pairs: &[(&str, &str)]) {
        let strings: Vec<&str> = pairs.iter().flat_map(|&(key, value)| [key, value]).collect();
        assert_eq!(self.ask_list(Op::MultiSet, &strings), []);
    }

    /// `true` if the answer came at once.
    fn wait<K: AsRef<[u8]>>(&self, keys: &[K]) -> bool {
        is_released(&self.ask_list(Op::Wait, keys))
    }

    /// `true` if the answer came at once.
    fn barrier(&self, key: &str, world_size: i64) -> bool {
        is_released(&self.ask(&Request::Barrier { key: key.as_bytes(), world_size }))
    }

    fn cancel(&self) {
        assert_eq!(self.ask(&Request::CancelWait), [Said::Cancelled]);
    }

    fn ping(&self, nonce: u32) {
        assert_eq!(self.ask(&Request::Ping { nonce }), [Said::Nonce(nonce)]);
    }

    fn push(&self, key: &str, item: &str) {
        let value = Payload::borrowed(item.as_bytes());
        assert_eq!(self.ask(&Request::QueuePush { key: key.as_bytes(), value }), []);
    }

    fn pop(&self, key: &str) -> Option<String> {
        match &self.ask(&Request::QueuePop { key: key.as_bytes() })[..] {
            [Said::Number(0)] => None,
            [Said::Number(1..), Said::Bytes(item)] => Some(lossy(item)),
            other => panic!("QUEUE_POP says {other:?}"),
        }
    }

    fn queue_len(&self, key: &str) -> i64 {
        number(&self.ask(&Request::QueueLen { key: key.as_bytes() }))
    }

    fn is_waiting(&self) -> bool {
        self.world.inner().store.is_waiting(self.conn)
    }

    /// Whether the wait was ended by another's request since the last call.
    fn is_woken(&self) -> bool {
        let woken = self.world.inner().woken.remove(&self.conn).unwrap_or(0);
        assert!(woken <= 1, "woken {woken} times");
        assert!(woken == 0 || !self.is_waiting(), "woken, but still waiting");
        woken == 1
    }

    fn leave(self) {
        let mut inner = self.world.inner();
        let Inner { store, recorder, now, .. } = &mut *inner;
        store.disconnect(self.conn, *now, recorder);
        inner.free.push(self.conn.slot() as u32);
        inner.check();
        inner.take_effects();
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn text(said: Vec<Said>) -> String {
    match &said[..] {
        [Said::Bytes(bytes)] => lossy(bytes),
        other => panic!("not one value: {other:?}"),
    }
}

fn number(said: &[Said]) -> i64 {
    match said {
        [Said::Number(number)] => *number,
        other => panic!("not one number: {other:?}"),
    }
}

fn is_released(said: &[Said]) -> bool {
    match said {
        [] => false,
        [Said::StopWaiting] => true,
        other => panic!("neither silence nor one release: {other:?}"),
    }
}

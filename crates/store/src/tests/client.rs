//! The clients of a test: each request is one call.

use super::world::{Inner, World};
use super::{Bytewise, Effect, Said};
use crate::{Progress, Refusal};
use rallypoint_protocol::ids::ConnId;
use rallypoint_protocol::{Op, Payload, Request};

/// One connection. Dropping it does nothing; [`Client::leave`] disconnects.
pub(super) struct Client {
    pub(super) world: World,
    pub(super) conn: ConnId,
}

impl Client {
    pub(super) fn request(&self, request: &Request<'_>) -> Result<Vec<Effect>, Refusal> {
        let mut inner = self.world.inner();
        let Inner { store, recorder, now, .. } = &mut *inner;
        let result = loop {
            store.begin(recorder);
            match store.apply(self.conn, request, *now, recorder) {
                Ok(Progress::Begun) => {}
                Ok(Progress::Done) => break Ok(()),
                Err(refusal) => break Err(refusal),
            }
        };
        inner.check();
        let effects = inner.take_effects();
        result.map(|()| effects)
    }

    pub(super) fn ask(&self, request: &Request<'_>) -> Vec<Said> {
        let effects = self.request(request).expect("not refused");
        let replies = effects.into_iter().filter_map(|effect| match effect {
            Effect::Reply(said) => Some(said),
            Effect::Wake(_) => None,
        });
        replies.collect()
    }

    pub(super) fn ask_list<K: AsRef<[u8]>>(&self, op: Op, strings: &[K]) -> Vec<Said> {
        let strings: Vec<&[u8]> = strings.iter().map(AsRef::as_ref).collect();
        Bytewise::list(op, &strings).with(|request| self.ask(request))
    }

    pub(super) fn set(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let value = Payload::borrowed(value.as_ref());
        assert_eq!(self.ask(&Request::Set { key: key.as_ref(), value }), []);
    }

    pub(super) fn get(&self, key: impl AsRef<[u8]>) -> String {
        text(&self.ask(&Request::Get { key: key.as_ref() }))
    }

    /// What every PyTorch client does for `get`.
    pub(super) fn wait_and_get(&self, key: impl AsRef<[u8]>) -> String {
        assert!(self.wait(&[&key]), "{} is missing", lossy(key.as_ref()));
        self.get(key)
    }

    pub(super) fn compare_set(&self, key: &str, expected: &str, desired: &str) -> String {
        let desired = Payload::borrowed(desired.as_bytes());
        text(&self.ask(&Request::CompareSet { key: key.as_bytes(), expected: expected.as_bytes(), desired }))
    }

    pub(super) fn add(&self, key: impl AsRef<[u8]>, delta: i64) -> i64 {
        number(&self.ask(&Request::Add { key: key.as_ref(), delta }))
    }

    pub(super) fn append(&self, key: &str, value: &str) {
        let request = Request::Append { key: key.as_bytes(), value: value.as_bytes() };
        assert_eq!(self.ask(&request), []);
    }

    pub(super) fn delete(&self, key: impl AsRef<[u8]>) -> i64 {
        number(&self.ask(&Request::Delete { key: key.as_ref() }))
    }

    pub(super) fn num_keys(&self) -> i64 {
        number(&self.ask(&Request::NumKeys))
    }

    /// The listed keys, sorted.
    pub(super) fn list_keys(&self) -> Vec<String> {
        let mut said = self.ask(&Request::ListKeys);
        let keys = said.split_off(1);
        assert_eq!(said, [Said::Number(keys.len() as i64)]);
        let mut keys: Vec<_> = keys.into_iter().map(|said| text(&[said])).collect();
        keys.sort();
        keys
    }

    pub(super) fn check(&self, keys: &[&str]) -> bool {
        match self.ask_list(Op::Check, keys)[..] {
            [Said::Ready(ready)] => ready,
            ref other => panic!("CHECK says {other:?}"),
        }
    }

    pub(super) fn multi_get(&self, keys: &[&str]) -> Vec<String> {
        self.ask_list(Op::MultiGet, keys).into_iter().map(|said| text(&[said])).collect()
    }

    pub(super) fn multi_set(&self, pairs: &[(&str, &str)]) {
        let strings: Vec<&str> = pairs.iter().flat_map(|&(key, value)| [key, value]).collect();
        assert_eq!(self.ask_list(Op::MultiSet, &strings), []);
    }

    /// `true` if the answer came at once.
    pub(super) fn wait<K: AsRef<[u8]>>(&self, keys: &[K]) -> bool {
        is_released(&self.ask_list(Op::Wait, keys))
    }

    /// `true` if the answer came at once.
    pub(super) fn barrier(&self, key: &str, world_size: i64) -> bool {
        is_released(&self.ask(&Request::Barrier { key: key.as_bytes(), world_size }))
    }

    pub(super) fn cancel(&self) {
        assert_eq!(self.ask(&Request::CancelWait), [Said::Cancelled]);
    }

    pub(super) fn ping(&self, nonce: u32) {
        assert_eq!(self.ask(&Request::Ping { nonce }), [Said::Nonce(nonce)]);
    }

    pub(super) fn push(&self, key: &str, item: &str) {
        let value = Payload::borrowed(item.as_bytes());
        assert_eq!(self.ask(&Request::QueuePush { key: key.as_bytes(), value }), []);
    }

    pub(super) fn pop(&self, key: &str) -> Option<String> {
        match &self.ask(&Request::QueuePop { key: key.as_bytes() })[..] {
            [Said::Number(0)] => None,
            [Said::Number(1..), Said::Bytes(item)] => Some(lossy(item)),
            other => panic!("QUEUE_POP says {other:?}"),
        }
    }

    pub(super) fn queue_len(&self, key: &str) -> i64 {
        number(&self.ask(&Request::QueueLen { key: key.as_bytes() }))
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.world.inner().store.waiting_since(self.conn).is_some()
    }

    /// Whether another client's request has ended the wait since the last call.
    pub(super) fn is_woken(&self) -> bool {
        let woken = self.world.inner().woken.remove(&self.conn).unwrap_or(0);
        assert!(woken <= 1, "woken {woken} times");
        assert!(woken == 0 || !self.is_waiting(), "woken, but still waiting");
        woken == 1
    }

    pub(super) fn leave(self) {
        let world = self.world.clone();
        self.leave_recorded();
        world.inner().take_effects();
    }

    /// As [`Self::leave`], but the test still has to take the effects.
    pub(super) fn leave_recorded(self) {
        let mut inner = self.world.inner();
        let Inner { store, recorder, now, .. } = &mut *inner;
        store.begin(recorder);
        store.disconnect(self.conn, *now, recorder);
        inner.free.push(self.conn.slot() as u32);
        inner.check();
    }
}

pub(super) fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn text(said: &[Said]) -> String {
    match said {
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

//! Tests of the store: clients that talk to one [`World`], on an invented clock.

mod barriers;
mod client;
mod costs;
mod invariants;
mod limits;
pub(crate) mod model;
mod plain;
mod queues;
pub(crate) mod random;
mod rows;
mod slices;
mod stale_idle;
mod stale_leftovers;
mod stale_pairs;
mod stale_promises;
mod stale_resets;
mod stale_schedules;
mod stale_searches;
mod stale_writers;
mod views;
mod waits;
pub(super) mod work;
mod world;

use super::{Cleanup, Effects, Observed};
use crate::core::ids::{ConnId, Timestamp};
use crate::core::protocol::{
    Decoded, Decoder, Dialect, LegacyRelease, Limits, List, Op, Reply, Request, encode_hello, encode_request,
};
use client::Client;
use world::World;

/// A reply with its bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Said {
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
            Reply::Keys(_) | Reply::Values(_) => unreachable!("many at once"),
        }
    }
}

/// One effect of a request, in order: a reply to the client that asked, or a wake-up.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Effect {
    Reply(Said),
    Wake(ConnId),
}

#[derive(Debug, Default)]
struct Recorder {
    effects: Vec<Effect>,
    cleanups: Vec<Cleanup>,
    observing: bool,
    observed: Vec<Observed>,
}

impl Effects for Recorder {
    fn reply(&mut self, reply: Reply<'_>) {
        let all = |list: List<'_>| {
            list.iter().map(|one| Effect::Reply(Said::Bytes(one.to_vec()))).collect::<Vec<_>>()
        };
        match reply {
            Reply::Keys(keys) => self.effects.extend(all(keys)),
            Reply::Values(values) => self.effects.extend(all(values.as_list())),
            reply => self.effects.push(Effect::Reply(reply.into())),
        }
    }

    fn wake(&mut self, conn: ConnId, _: Timestamp) {
        self.effects.push(Effect::Wake(conn));
    }

    fn cleanup(&mut self, cleanup: Cleanup) {
        self.cleanups.push(cleanup);
    }

    fn observes(&self) -> bool {
        self.observing
    }

    fn observe(&mut self, observed: Observed) {
        if self.observing {
            self.observed.push(observed);
        }
    }
}

/// A request made from bytes, because lists of keys borrow from the bytes that carry them.
#[derive(Debug, Clone)]
pub(crate) struct Bytewise(pub(crate) Vec<u8>);

impl Bytewise {
    fn new(request: &Request<'_>) -> Self {
        let mut wire = Vec::new();
        assert!(encode_request(request, Dialect::C, &mut wire));
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

//! Parts of tests that several crates share: requests as data, replies with their bytes, a model of a store.
#![expect(missing_docs, reason = "it is there for tests only")]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_wrap,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::unwrap_used,
    reason = "it is there for tests only"
)]

pub mod model;

use rallypoint_protocol::{
    Decoded, Decoder, Dialect, LegacyRelease, Limits, Op, Payload, Reply, Request, encode_hello,
    encode_request,
};

use model::{Act, Key};

/// A reply with its bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Said {
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

/// A request of its own: made from bytes, as the lists of keys can only be.
#[derive(Debug, Clone)]
pub struct Bytewise(pub Vec<u8>);

impl Bytewise {
    pub fn new(request: &Request<'_>) -> Self {
        let mut wire = Vec::new();
        assert!(encode_request(request, Dialect::C, &mut wire));
        Self(wire)
    }

    /// WAIT, CHECK or MULTI_GET of some keys, or MULTI_SET of keys and values in turn.
    pub fn list(op: Op, strings: &[&[u8]]) -> Self {
        let count = strings.len() as u64 / if op == Op::MultiSet { 2 } else { 1 };
        let mut wire = vec![op as u8];
        wire.extend_from_slice(&count.to_le_bytes());
        for string in strings {
            wire.extend_from_slice(&(string.len() as u64).to_le_bytes());
            wire.extend_from_slice(string);
        }
        Self(wire)
    }

    pub fn with<T>(&self, then: impl FnOnce(&Request<'_>) -> T) -> T {
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

pub fn request(act: &Act) -> Option<Bytewise> {
    let list = |op, keys: &[Key]| {
        let strings: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        Bytewise::list(op, &strings)
    };
    let request = match act {
        Act::Check(keys) => return Some(list(Op::Check, keys)),
        Act::Wait(keys) => return Some(list(Op::Wait, keys)),
        Act::MultiGet(keys) => return Some(list(Op::MultiGet, keys)),
        Act::MultiSet(pairs) => {
            let strings: Vec<&[u8]> =
                pairs.iter().flat_map(|(key, value)| [key.as_bytes(), value.as_bytes()]).collect();
            return Some(Bytewise::list(Op::MultiSet, &strings));
        }
        Act::Abandon | Act::Leave => return None,
        Act::Set(key, value) => Request::Set { key: key.as_bytes(), value: payload(value) },
        Act::CompareSet(key, expected, desired) => Request::CompareSet {
            key: key.as_bytes(),
            expected: expected.as_bytes(),
            desired: payload(desired),
        },
        Act::Get(key) => Request::Get { key: key.as_bytes() },
        Act::Add(key, delta) => Request::Add { key: key.as_bytes(), delta: *delta },
        Act::NumKeys => Request::NumKeys,
        Act::Delete(key) => Request::Delete { key: key.as_bytes() },
        Act::Append(key, value) => Request::Append { key: key.as_bytes(), value: value.as_bytes() },
        Act::Cancel => Request::CancelWait,
        Act::Ping(nonce) => Request::Ping { nonce: *nonce },
        Act::Push(key, value) => Request::QueuePush { key: key.as_bytes(), value: payload(value) },
        Act::Pop(key) => Request::QueuePop { key: key.as_bytes() },
        Act::Len(key) => Request::QueueLen { key: key.as_bytes() },
        Act::List => Request::ListKeys,
        Act::Barrier(key, size) => Request::Barrier { key: key.as_bytes(), world_size: *size },
    };
    Some(Bytewise::new(&request))
}

fn payload(value: &str) -> Payload<'_> {
    Payload::borrowed(value.as_bytes())
}

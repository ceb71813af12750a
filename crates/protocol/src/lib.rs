//! The c10d TCPStore wire protocol: bytes to [`Request`]s and [`Reply`]s to bytes, in all three dialects, for
//! both ends of a connection. Called by `server` (decode requests, encode replies) and `client` (the
//! reverse).
//!
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss
    )
)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::print_stdout, clippy::print_stderr)]
//! Pure: no I/O, no clock, and no state beyond one decoder's progress in one request. `proto-notes/wire.md`
//! describes what the bytes mean. What a request does is the business of `rallypoint-store`.

pub mod addresses;
mod decode;
mod encode;
mod error;
pub mod ids;
pub mod keys;
mod op;
pub mod rendezvous_state;

use bytes::Bytes;

pub use decode::{Decoded, Decoder, Dialect, LegacyRelease, Limits, MAGIC};
pub use encode::{KeyList, PairList, Piece, ReplyBuffer, SharedList, encode_hello, encode_request};
pub use error::{Foreign, ProtocolError};
pub use op::Op;

/// Set in the nonce of a PING, beside the process id, by a client that only looks, as our own commands do: it
/// is no process of a job. No process id is so large.
pub const PROBE: u32 = 1 << 31;

/// One request, borrowed from the bytes it arrived in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the arguments of the operation, named as PyTorch names them")]
pub enum Request<'a> {
    /// Stores a value. No reply.
    Set { key: &'a [u8], value: Payload<'a> },
    /// Stores `desired` if the key holds `expected` (or is absent and `expected` is empty). Replies the
    /// value.
    CompareSet { key: &'a [u8], expected: &'a [u8], desired: Payload<'a> },
    /// Replies the value.
    Get { key: &'a [u8] },
    /// Adds to the decimal text in a key. Replies the sum.
    Add { key: &'a [u8], delta: i64 },
    /// Replies whether all keys are there.
    Check(List<'a>),
    /// Replies once all keys are there.
    Wait(List<'a>),
    /// Replies the number of plain keys.
    NumKeys,
    /// Replies the number of deleted keys.
    Delete { key: &'a [u8] },
    /// Appends to a value. No reply.
    Append { key: &'a [u8], value: &'a [u8] },
    /// Replies one value for each key.
    MultiGet(List<'a>),
    /// Stores several values; the list alternates keys and values. No reply.
    MultiSet(Pairs<'a>),
    /// Ends the connection's outstanding WAIT or BARRIER. Always replies.
    CancelWait,
    /// Replies the nonce, which PyTorch fills with the client's process id. See [`PROBE`].
    Ping { nonce: u32 },
    /// Appends to a queue. No reply.
    QueuePush { key: &'a [u8], value: Payload<'a> },
    /// Takes the first item of a queue. Replies the length before that, and the item if there was one.
    QueuePop { key: &'a [u8] },
    /// Replies the length of a queue.
    QueueLen { key: &'a [u8] },
    /// Replies the names of all plain keys.
    ListKeys,
    /// Counts one arrival; replies once `world_size` have arrived.
    Barrier { key: &'a [u8], world_size: i64 },
}

impl Request<'_> {
    /// Which operation this is.
    pub fn op(&self) -> Op {
        match self {
            Self::Set { .. } => Op::Set,
            Self::CompareSet { .. } => Op::CompareSet,
            Self::Get { .. } => Op::Get,
            Self::Add { .. } => Op::Add,
            Self::Check(_) => Op::Check,
            Self::Wait(_) => Op::Wait,
            Self::NumKeys => Op::NumKeys,
            Self::Delete { .. } => Op::Delete,
            Self::Append { .. } => Op::Append,
            Self::MultiGet(_) => Op::MultiGet,
            Self::MultiSet(_) => Op::MultiSet,
            Self::CancelWait => Op::CancelWait,
            Self::Ping { .. } => Op::Ping,
            Self::QueuePush { .. } => Op::QueuePush,
            Self::QueuePop { .. } => Op::QueuePop,
            Self::QueueLen { .. } => Op::QueueLen,
            Self::ListKeys => Op::ListKeys,
            Self::Barrier { .. } => Op::Barrier,
        }
    }
}

/// A value on its way into the store, with the buffer that owns it if that buffer may be kept.
#[derive(Clone, Copy)]
pub struct Payload<'a> {
    bytes: &'a [u8],
    owner: Option<&'a Bytes>,
}

impl<'a> Payload<'a> {
    /// Below this length in bytes, copying is cheaper than keeping the buffer in which the value arrived.
    const SHARE_FROM: usize = 16 * 1024;

    /// A value that will be copied when it is stored.
    pub const fn borrowed(bytes: &'a [u8]) -> Self {
        Self { bytes, owner: None }
    }

    /// A value in a buffer that may be kept.
    pub const fn owned_by(bytes: &'a [u8], owner: &'a Bytes) -> Self {
        Self { bytes, owner: Some(owner) }
    }

    /// The raw value.
    pub const fn as_slice(&self) -> &'a [u8] {
        self.bytes
    }

    /// The value to keep: a share of the receive buffer if the value is large and fills nearly the whole
    /// buffer, else an exact copy.
    pub fn to_stored(&self) -> Bytes {
        match self.owner {
            // A kept buffer is never much larger than its value.
            Some(owner) if self.bytes.len() >= Self::SHARE_FROM.max((owner.len() / 8).saturating_mul(7)) => {
                owner.slice_ref(self.bytes)
            }
            _ => Bytes::copy_from_slice(self.bytes),
        }
    }
}

impl PartialEq for Payload<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Payload<'_> {}

impl std::fmt::Debug for Payload<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Payload({} bytes)", self.bytes.len())
    }
}

/// The keys of a CHECK, WAIT or MULTI_GET, still in wire form: `count` times u64 length and bytes. Only
/// [`KeyList`], and the decoder after it has checked that the bytes are whole, make one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct List<'a> {
    count: usize,
    wire: &'a [u8],
}

impl<'a> List<'a> {
    /// Number of keys, duplicates included.
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether no key was named.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of all keys with their lengths.
    pub const fn wire_len(&self) -> usize {
        self.wire.len()
    }

    /// All keys with their lengths. Two lists are equal if these bytes are.
    pub const fn wire(&self) -> &'a [u8] {
        self.wire
    }

    /// A copy of the list that can be kept.
    pub fn to_shared(&self) -> SharedList {
        SharedList { count: self.count, wire: Bytes::copy_from_slice(self.wire) }
    }

    /// The keys in the order in which they were named.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut rest = self.wire;
        (0..self.count).map_while(move |_| decode::split_string(&mut rest))
    }
}

/// The keys and values of a MULTI_SET, still in wire form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pairs<'a> {
    count: usize,
    wire: Payload<'a>,
}

impl<'a> Pairs<'a> {
    /// Number of pairs.
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether there is no pair.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of all keys and values with their lengths.
    pub const fn wire_len(&self) -> usize {
        self.wire.bytes.len()
    }

    /// Keys and values in the order in which they were named.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], Payload<'a>)> + use<'a> {
        let Payload { bytes: mut rest, owner } = self.wire;
        (0..self.count).map_while(move |_| {
            let key = decode::split_string(&mut rest)?;
            let bytes = decode::split_string(&mut rest)?;
            Some((key, Payload { bytes, owner }))
        })
    }
}

/// What the server answers. The bytes are alike in every dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply<'a> {
    /// CHECK: all keys are there, or not.
    Ready(bool),
    /// WAIT and BARRIER: go on.
    StopWaiting,
    /// CANCEL_WAIT: the wait ended before its condition held.
    WaitCancelled,
    /// A sum, count or length.
    Number(i64),
    /// A stored value, or one value in a sequence of them.
    Value(&'a Bytes),
    /// All values for a MULTI_GET that other connections have also sent.
    Values(&'a SharedList),
    /// Names of a LIST_KEYS.
    Keys(List<'a>),
    /// Bytes that are not stored: an echo, a key name, the empty value of a missing key.
    Bytes(&'a [u8]),
    /// PING: the nonce again.
    Nonce(u32),
}

impl Reply<'_> {
    /// A number of things, or a length.
    #[inline]
    #[expect(clippy::cast_possible_wrap, reason = "nothing in memory is longer than `isize::MAX`")]
    pub const fn count(len: usize) -> Self {
        Self::Number(len as i64)
    }
}

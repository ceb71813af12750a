//! Turns replies (server side) and requests (client side) into bytes.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{Dialect, List, MAGIC, Op, Pairs, Payload, Reply, Request};

/// A piece of the bytes to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The bytes.
    pub bytes: Bytes,
    /// Whether its memory is counted elsewhere, for as long as anyone holds it.
    pub is_lent: bool,
}

impl Piece {
    /// Bytes that are counted elsewhere.
    #[inline]
    pub fn lent(&self) -> usize {
        /// Memory that lending itself takes.
        const LENDING: usize = 128;
        if self.is_lent { self.bytes.len().saturating_sub(LENDING) } else { 0 }
    }
}

impl From<Bytes> for Piece {
    fn from(bytes: Bytes) -> Self {
        Self { bytes, is_lent: false }
    }
}

/// Replies on their way to one peer. Small ones are joined in one buffer, and large values are shared with
/// the store.
#[derive(Debug, Default)]
pub struct ReplyBuffer {
    /// Finished chunks, to be sent before `tail`.
    chunks: VecDeque<Piece>,
    /// Bytes of `chunks`.
    chunked: usize,
    /// How many of these bytes are counted elsewhere.
    lent: usize,
    tail: Vec<u8>,
    /// Bytes of `tail` that were already sent. Above 0 only while `chunks` is empty.
    sent: usize,
    /// The allocation in which the next small chunks lie, side by side.
    room: BytesMut,
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "`sent` is within `tail`; shared values count as often as they are sent, but each chunk takes \
              memory"
)]
impl ReplyBuffer {
    /// A value of at least this many bytes is sent from the store's memory, without a copy.
    const SHARE_FROM: usize = 512;

    /// A long reply that is kept is split into parts of this length.
    const LONGEST_PART: usize = 64 * 1024;

    /// The size of the allocation that small chunks share. A small chunk keeps no more memory than this.
    pub const ROOM: usize = 256;

    /// Appends one reply.
    #[inline]
    pub fn push(&mut self, reply: Reply<'_>) {
        match reply {
            Reply::Ready(true) | Reply::StopWaiting => self.tail.push(0),
            Reply::Ready(false) | Reply::WaitCancelled => self.tail.push(1),
            Reply::Number(number) => self.tail.put_i64_le(number),
            Reply::Nonce(nonce) => self.tail.put_u32_le(nonce),
            Reply::Bytes(bytes) => put_string(&mut self.tail, bytes),
            Reply::Keys(keys) => self.tail.extend_from_slice(keys.wire),
            Reply::Values(values) => self.share(values.wire.clone().into()),
            Reply::Value(value) if value.len() < Self::SHARE_FROM => put_string(&mut self.tail, value),
            Reply::Value(value) => {
                self.tail.put_u64_le(value.len() as u64);
                self.share(value.clone().into());
            }
        }
    }

    /// The large part of a reply that has one: its bytes in the store's memory.
    pub fn large<'a>(reply: &Reply<'a>) -> Option<&'a Bytes> {
        match *reply {
            Reply::Values(values) => Some(&values.wire),
            Reply::Value(value) if value.len() >= Self::SHARE_FROM => Some(value),
            _ => None,
        }
    }

    /// Appends a reply whose [`Self::large`] part is counted elsewhere. `lent` are the bytes of that part.
    pub fn push_lent(&mut self, reply: &Reply<'_>, lent: Bytes) {
        if let Reply::Value(_) = reply {
            self.tail.put_u64_le(lent.len() as u64);
        }
        self.share(Piece { bytes: lent, is_lent: true });
    }

    fn share(&mut self, piece: Piece) {
        if self.sent < self.tail.len() {
            self.close_tail();
        }
        self.chunked += piece.bytes.len();
        self.lent += piece.lent();
        self.chunks.push_back(piece);
    }

    fn close_tail(&mut self) {
        let unsent = &self.tail[self.sent..];
        self.chunked += unsent.len();
        if unsent.len() < Self::ROOM / 4 {
            if self.room.capacity() < unsent.len() {
                self.room = BytesMut::with_capacity(Self::ROOM);
            }
            self.room.extend_from_slice(unsent);
            self.chunks.push_back(self.room.split().freeze().into());
        } else {
            // In parts, so that each part is freed when it is sent.
            let parts = unsent.chunks(Self::LONGEST_PART).map(Bytes::copy_from_slice);
            self.chunks.extend(parts.map(Piece::from));
        }
        self.tail.clear();
        self.sent = 0;
    }

    /// Bytes that are not sent yet.
    #[inline]
    pub fn len(&self) -> usize {
        self.chunked + self.tail.len() - self.sent
    }

    /// Bytes that are not sent yet and not counted elsewhere.
    #[inline]
    pub fn own(&self) -> usize {
        self.len() - self.lent
    }

    /// Whether everything is sent.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Points `slices` at the bytes to send next, and returns how many slices were used.
    pub fn as_slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut used = 0;
        let tail = &self.tail[self.sent..];
        for bytes in
            self.chunks.iter().map(|chunk| &chunk.bytes[..]).chain((!tail.is_empty()).then_some(tail))
        {
            let Some(slice) = slices.get_mut(used) else { break };
            *slice = IoSlice::new(bytes);
            used += 1;
        }
        used
    }

    /// The bytes behind the first `skipped` ones, in pieces.
    pub fn pieces_from(&self, mut skipped: usize) -> impl Iterator<Item = &[u8]> {
        let all = self.chunks.iter().map(|chunk| &chunk.bytes[..]).chain([&self.tail[self.sent..]]);
        all.filter_map(move |piece| {
            let from = skipped.min(piece.len());
            skipped -= from;
            Some(&piece[from..]).filter(|piece| !piece.is_empty())
        })
    }

    /// Forgets the first `sent` bytes.
    pub fn advance(&mut self, mut sent: usize) {
        while let Some(chunk) = self.chunks.front_mut() {
            let len = chunk.bytes.len();
            if sent < len {
                self.lent -= chunk.lent();
                chunk.bytes.advance(sent);
                self.lent += chunk.lent();
                self.chunked -= sent;
                return;
            }
            sent -= len;
            self.lent -= chunk.lent();
            self.chunked -= len;
            self.chunks.pop_front();
        }
        self.sent += sent;
        if self.sent >= self.tail.len() {
            self.tail.clear();
            self.sent = 0;
        }
    }

    /// Takes out all bytes in pieces that can be kept. Values stay shared with the store.
    pub fn drain(&mut self) -> impl Iterator<Item = Piece> {
        if self.sent < self.tail.len() {
            self.close_tail();
        }
        (self.chunked, self.lent) = (0, 0);
        self.chunks.drain(..)
    }

    /// Gives back the allocation for small chunks, because no more are expected now.
    pub fn rest(&mut self) {
        self.room = BytesMut::new();
    }

    /// Gives back the memory of a long reply, once everything is sent.
    #[inline]
    pub fn shrink(&mut self) {
        const KEPT: usize = 512 * 1024;
        if self.is_empty() && self.tail.capacity() + self.chunks.capacity() * size_of::<Piece>() > KEPT {
            *self = Self::default();
        }
    }

    /// The bytes to send in one vector, for tests and small clients.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.len());
        self.chunks.iter().for_each(|chunk| all.extend_from_slice(&chunk.bytes));
        all.extend_from_slice(&self.tail[self.sent..]);
        all
    }
}

/// Appends the hello of dialect C.
pub fn encode_hello(out: &mut impl BufMut) {
    out.put_u8(Op::Validate as u8);
    out.put_slice(&MAGIC);
}

/// Appends `request` as a client of `dialect` sends it. If the dialect does not have the operation, returns
/// `false` and appends nothing.
#[must_use]
pub fn encode_request(request: &Request<'_>, dialect: Dialect, out: &mut Vec<u8>) -> bool {
    let Some(code) = request.op().code(dialect) else { return false };
    out.push(code);
    match *request {
        Request::Set { key, value } | Request::QueuePush { key, value } => {
            put_string(out, key);
            put_string(out, value.as_slice());
        }
        Request::CompareSet { key, expected, desired } => {
            put_string(out, key);
            put_string(out, expected);
            put_string(out, desired.as_slice());
        }
        Request::Append { key, value } => {
            put_string(out, key);
            put_string(out, value);
        }
        Request::Get { key }
        | Request::Delete { key }
        | Request::QueuePop { key }
        | Request::QueueLen { key } => {
            put_string(out, key);
        }
        Request::Add { key, delta: number } | Request::Barrier { key, world_size: number } => {
            put_string(out, key);
            out.put_i64_le(number);
        }
        Request::Check(keys) | Request::Wait(keys) | Request::MultiGet(keys) => {
            out.put_u64_le(keys.count as u64);
            out.put_slice(keys.wire);
        }
        Request::MultiSet(pairs) => {
            out.put_u64_le(pairs.count as u64);
            out.put_slice(pairs.wire.as_slice());
        }
        Request::Ping { nonce } => out.put_u32_le(nonce),
        Request::NumKeys | Request::CancelWait | Request::ListKeys => {}
    }
    true
}

#[inline]
fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.put_u64_le(bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// A list of keys or values to send: for a CHECK, WAIT, MULTI_GET or LIST_KEYS.
#[derive(Debug, Clone, Default)]
pub struct KeyList {
    count: usize,
    wire: Vec<u8>,
}

impl KeyList {
    /// The keys as the argument of a request.
    pub fn as_list(&self) -> List<'_> {
        List { count: self.count, wire: &self.wire }
    }

    /// Adds a key.
    pub fn push(&mut self, key: &[u8]) {
        put_string(&mut self.wire, key);
        self.count = self.count.saturating_add(1);
    }

    /// The list in a form that can be sent more than once.
    pub fn share(self) -> SharedList {
        SharedList { count: self.count, wire: self.wire.into() }
    }
}

/// A list that is sent to many peers without being copied.
#[derive(Debug, PartialEq, Eq)]
pub struct SharedList {
    pub(super) count: usize,
    pub(super) wire: Bytes,
}

impl SharedList {
    /// The list.
    pub fn as_list(&self) -> List<'_> {
        List { count: self.count, wire: &self.wire }
    }
}

impl<K: AsRef<[u8]>> FromIterator<K> for KeyList {
    fn from_iter<I: IntoIterator<Item = K>>(keys: I) -> Self {
        let mut list = Self::default();
        keys.into_iter().for_each(|key| list.push(key.as_ref()));
        list
    }
}

/// The keys and values of a MULTI_SET that a client is about to send.
#[derive(Debug, Clone, Default)]
pub struct PairList(KeyList);

impl PairList {
    /// The pairs as the argument of a request.
    pub fn as_pairs(&self) -> Pairs<'_> {
        Pairs { count: self.0.count, wire: Payload::borrowed(&self.0.wire) }
    }
}

impl<K: AsRef<[u8]>, V: AsRef<[u8]>> FromIterator<(K, V)> for PairList {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut list = Self::default();
        for (key, value) in pairs {
            put_string(&mut list.0.wire, key.as_ref());
            put_string(&mut list.0.wire, value.as_ref());
            list.0.count = list.0.count.saturating_add(1);
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_sends_is_what_a_server_decodes() {
        use crate::{Decoded, Decoder, LegacyRelease, Limits};

        let keys: KeyList = ["/a", "", "/long/key"].into_iter().collect();
        let pairs: PairList = [("/a", "1"), ("/b", "")].into_iter().collect();
        let mut wire = Vec::new();
        encode_hello(&mut wire);
        let requests = [Request::Wait(keys.as_list()), Request::MultiSet(pairs.as_pairs()), Request::NumKeys];
        for request in &requests {
            assert!(encode_request(request, Dialect::C, &mut wire));
        }
        let mut decoder = Decoder::new(Limits::default(), LegacyRelease::default());
        assert_eq!(decoder.decode(&wire, None), Ok(Decoded::Hello { len: 5 }));
        let mut rest = &wire[5..];
        for sent in &requests {
            let Ok(Decoded::Request { request, len }) = decoder.decode(rest, None) else {
                panic!("no request")
            };
            assert_eq!(request, *sent);
            rest = &rest[len..];
        }
        assert!(rest.is_empty());
    }

    #[test]
    fn a_long_reply_leaves_no_large_buffer_behind() {
        let mut out = ReplyBuffer::default();
        for _ in 0..10_000 {
            out.push(Reply::Bytes(&[0; 500]));
        }
        out.shrink();
        assert_eq!(out.len(), 10_000 * 508, "what is not sent stays");
        out.advance(out.len());
        out.shrink();
        assert_eq!(out.tail.capacity(), 0);
    }

    #[test]
    fn small_pieces_that_are_kept_share_an_allocation() {
        let mut out = ReplyBuffer::default();
        let mut piece = |number| {
            out.push(Reply::Number(number));
            out.drain().next().expect("a piece").bytes
        };
        let pieces: Vec<_> = (0..32).map(&mut piece).collect();
        for (number, two) in pieces.windows(2).enumerate() {
            assert_eq!(two[0][..], (number as i64).to_le_bytes());
            assert_eq!(two[0].as_ptr_range().end, two[1].as_ptr(), "256 bytes, in a row");
        }
    }

    #[test]
    fn large_values_are_shared_and_stay_in_order() {
        let large = Bytes::from(vec![7; 2000]);
        let mut out = ReplyBuffer::default();
        out.push(Reply::Number(1));
        out.push(Reply::Value(&large));
        out.push(Reply::StopWaiting);
        let whole = out.to_vec();
        assert_eq!(whole.len(), 8 + 8 + 2000 + 1);
        let mut slices = [IoSlice::new(&[]); 8];
        assert_eq!(out.as_slices(&mut slices), 3);
        assert_eq!(slices[1].as_ptr(), large.as_ptr(), "the stored bytes themselves are sent");

        let mut sent = Vec::new();
        while !out.is_empty() {
            let mut slices = [IoSlice::new(&[]); 2];
            let used = out.as_slices(&mut slices);
            let some: Vec<u8> = slices[..used].iter().flat_map(|slice| slice.to_vec()).take(7).collect();
            sent.extend_from_slice(&some);
            out.advance(some.len());
            assert_eq!(out.len(), whole.len() - sent.len());
        }
        assert_eq!(sent, whole);
    }
}

//! The resumable request decoder. A request does not carry its length, so the decoder walks its fields. It
//! remembers how far it has walked: a request that arrives in many pieces is walked only once, and the store
//! sees nothing of it before it is complete.

use bytes::Bytes;

use super::{Foreign, List, Op, Pairs, Payload, ProtocolError, Request};

/// The four bytes after opcode 0 in the hello of dialect C (0x3c85f7ce, little-endian).
pub const MAGIC: [u8; 4] = 0x3c85_f7ce_u32.to_le_bytes();

/// How the operations are numbered on one connection (`proto-notes/wire.md`, "Dialects").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dialect {
    /// Nothing has been received yet.
    #[default]
    Unknown,
    /// PyTorch 2.0 or 2.1: no hello was sent, and no request yet has shown which of the two.
    Legacy,
    /// PyTorch 1.13 and 2.0, if the setting says so.
    A,
    /// PyTorch 2.1, proven by an operation that 2.0 does not have.
    B,
    /// PyTorch 2.2 and later.
    C,
}

impl Dialect {
    const ALL: [Self; 5] = [Self::Unknown, Self::Legacy, Self::A, Self::B, Self::C];

    /// The number that stands for the dialect in a journal.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The dialect with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|dialect| dialect.number() == number)
    }
}

/// The meaning of operation 8 from a peer without a hello: DELETE_KEY of 2.0 or APPEND of 2.1. No byte shows
/// which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LegacyRelease {
    /// PyTorch 2.0 (and 1.13).
    V2_0,
    /// PyTorch 2.1.
    #[default]
    V2_1,
}

/// The largest request a peer may send. PyTorch's libuv server has the same numbers built in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a key.
    pub key: usize,
    /// Bytes of a value.
    pub value: usize,
    /// Keys in one request.
    pub keys_per_request: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { key: 8 * 1024, value: 8 * 1024 * 1024, keys_per_request: 128 * 1024 }
    }
}

/// What the given bytes contain.
#[derive(Debug, PartialEq, Eq)]
pub enum Decoded<'a> {
    /// A whole request in the first `len` bytes.
    Request {
        /// The request, borrowed from the input.
        request: Request<'a>,
        /// Its length in bytes. The next request starts there.
        len: usize,
    },
    /// The hello of dialect C in the first `len` bytes.
    Hello {
        /// Its length in bytes.
        len: usize,
    },
    /// A request that is not complete. Call again with these bytes and more bytes after them.
    Incomplete {
        /// The least length of the request in bytes, from its start.
        need: usize,
    },
}

#[derive(Debug, Clone, Copy)]
enum Field {
    Key,
    Value,
    Int64,
    Int32,
    Keys,
    Pairs,
}

const fn fields(op: Op) -> &'static [Field] {
    use Field::{Int32, Int64, Key, Keys, Pairs, Value};
    match op {
        Op::Set | Op::Append | Op::QueuePush => &[Key, Value],
        Op::CompareSet => &[Key, Value, Value],
        Op::Get | Op::Delete | Op::QueuePop | Op::QueueLen => &[Key],
        Op::Add | Op::Barrier => &[Key, Int64],
        Op::Check | Op::Wait | Op::MultiGet => &[Keys],
        Op::MultiSet => &[Pairs],
        Op::NumKeys | Op::CancelWait | Op::ListKeys => &[],
        Op::Ping | Op::Validate => &[Int32],
    }
}

/// How far the current request has been walked.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    op: Option<Op>,
    /// Index of the next field in [`fields`].
    field: usize,
    /// Strings of a list that are still to come. `None` before its count was read.
    strings_left: Option<u64>,
    /// Bytes walked, from the start of the request.
    walked: usize,
}

/// Decodes the requests of one connection.
#[derive(Debug, Clone)]
pub struct Decoder {
    dialect: Dialect,
    legacy: LegacyRelease,
    limits: Limits,
    progress: Progress,
}

impl Decoder {
    /// A decoder at the start of a connection.
    pub fn new(limits: Limits, legacy: LegacyRelease) -> Self {
        Self { dialect: Dialect::Unknown, legacy, limits, progress: Progress::default() }
    }

    /// A decoder in the middle of a connection, at the start of a request.
    pub fn resume(limits: Limits, legacy: LegacyRelease, dialect: Dialect) -> Self {
        Self { dialect, ..Self::new(limits, legacy) }
    }

    /// The dialect, as far as it is known.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Forgets the progress through a request, so that the next call may start elsewhere.
    pub fn rewind(&mut self) {
        self.progress = Progress::default();
    }

    /// Decodes the request at the start of `input`.
    ///
    /// `owner` is the buffer that contains `input`, if values may keep a share of it. After `Incomplete`, the
    /// next call must start with the same bytes; otherwise with the bytes that follow. An error ends the
    /// connection, because the start of the next request cannot be found.
    #[inline]
    pub fn decode<'a>(
        &mut self,
        input: &'a [u8],
        owner: Option<&'a Bytes>,
    ) -> Result<Decoded<'a>, ProtocolError> {
        if self.dialect == Dialect::Unknown
            && let Some(decoded) = self.recognize(input)?
        {
            return Ok(decoded);
        }
        let Some((&code, _)) = input.split_first() else {
            return Ok(Decoded::Incomplete { need: 1 });
        };
        let op = match self.progress.op {
            Some(op) => op,
            None => self.start(code, input)?,
        };
        if let Some(need) = self.walk(op, input)? {
            return Ok(Decoded::Incomplete { need });
        }
        let len = std::mem::take(&mut self.progress).walked;
        Ok(Decoded::Request { request: build(op, &input[1..len], owner), len })
    }

    /// Recognizes the dialect by the first bytes. `None` when it is known and there is no hello to consume.
    #[cold]
    fn recognize(&mut self, input: &[u8]) -> Result<Option<Decoded<'static>>, ProtocolError> {
        match input {
            [] => return Ok(Some(Decoded::Incomplete { need: 1 })),
            // In the old dialects `00` is SET. The next four bytes decide.
            [0, rest @ ..] if rest.len() < 4 => return Ok(Some(Decoded::Incomplete { need: 5 })),
            [0, magic @ ..] if magic[..4] == MAGIC => {
                self.dialect = Dialect::C;
                return Ok(Some(Decoded::Hello { len: 5 }));
            }
            [0, length @ ..] if u32_at(length) as usize > self.limits.key => {
                return Err(ProtocolError::NotAHello);
            }
            _ => {}
        }
        if let Some(foreign) = Foreign::recognize(input) {
            return Err(ProtocolError::Foreign(foreign));
        }
        self.dialect = Dialect::Legacy;
        Ok(None)
    }

    fn start(&mut self, code: u8, input: &[u8]) -> Result<Op, ProtocolError> {
        if self.dialect == Dialect::Legacy {
            self.dialect = match (code, self.legacy) {
                (8, LegacyRelease::V2_0) => Dialect::A,
                (7..=11, _) => Dialect::B,
                _ => Dialect::Legacy,
            };
        }
        let op = Op::from_code(self.dialect, code).ok_or_else(|| match Foreign::recognize(input) {
            Some(foreign) => ProtocolError::Foreign(foreign),
            None => ProtocolError::UnknownOp(code),
        })?;
        if op == Op::Validate {
            return Err(ProtocolError::SecondHello);
        }
        self.progress = Progress { op: Some(op), walked: 1, ..Progress::default() };
        Ok(op)
    }

    /// Walks the fields that have arrived. `None` if the request is whole; otherwise the number of bytes
    /// needed to go on.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "an index into `fields`, which a `get` has found")]
    fn walk(&mut self, op: Op, input: &[u8]) -> Result<Option<usize>, ProtocolError> {
        let fields = fields(op);
        while let Some(field) = fields.get(self.progress.field) {
            let need = match field {
                Field::Key => self.walk_string(op, input, true)?,
                Field::Value => self.walk_string(op, input, false)?,
                Field::Int64 => self.walk_fixed(input, 8),
                Field::Int32 => self.walk_fixed(input, 4),
                Field::Keys => self.walk_list(op, input, 1)?,
                Field::Pairs => self.walk_list(op, input, 2)?,
            };
            if need.is_some() {
                return Ok(need);
            }
            self.progress.field += 1;
        }
        Ok(None)
    }

    #[expect(clippy::arithmetic_side_effects, reason = "`walked` is within `input`, and `size` at most 8")]
    fn walk_fixed(&mut self, input: &[u8], size: usize) -> Option<usize> {
        let end = self.progress.walked + size;
        if input.len() < end {
            return Some(end);
        }
        self.progress.walked = end;
        None
    }

    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`walked` is within `input`, and `len` within the limits, of which the largest is 1 GiB"
    )]
    fn walk_string(&mut self, op: Op, input: &[u8], is_key: bool) -> Result<Option<usize>, ProtocolError> {
        let body = self.progress.walked + 8;
        if input.len() < body {
            return Ok(Some(body));
        }
        let len = u64_at(&input[self.progress.walked..]);
        if is_key && len > self.limits.key as u64 {
            return Err(ProtocolError::KeyTooLong { op, len, limit: self.limits.key });
        }
        if !is_key && len > self.limits.value as u64 {
            return Err(ProtocolError::ValueTooLong { op, len, limit: self.limits.value });
        }
        let end = body + fits(len);
        if input.len() < end {
            return Ok(Some(end));
        }
        self.progress.walked = end;
        Ok(None)
    }

    fn walk_list(&mut self, op: Op, input: &[u8], strings_each: u64) -> Result<Option<usize>, ProtocolError> {
        let mut left = if let Some(left) = self.progress.strings_left {
            left
        } else {
            let start = self.progress.walked;
            if let Some(need) = self.walk_fixed(input, 8) {
                return Ok(Some(need));
            }
            let (count, limit) = (u64_at(&input[start..]), self.limits.keys_per_request);
            if count > limit as u64 {
                return Err(ProtocolError::TooManyKeys { op, count, limit });
            }
            count.saturating_mul(strings_each)
        };
        while left > 0 {
            let is_key = strings_each == 1 || left % 2 == 0;
            if let Some(need) = self.walk_string(op, input, is_key)? {
                self.progress.strings_left = Some(left);
                // Each further string has at least its length.
                return Ok(Some(need.saturating_add(fits(left.saturating_sub(1)).saturating_mul(8))));
            }
            left = left.saturating_sub(1);
        }
        self.progress.strings_left = None;
        Ok(None)
    }
}

/// Makes the request of a body that [`Decoder::walk`] found to be whole.
#[inline]
fn build<'a>(op: Op, mut body: &'a [u8], owner: Option<&'a Bytes>) -> Request<'a> {
    let rest = &mut body;
    match op {
        Op::Set => Request::Set { key: string(rest), value: Payload { bytes: string(rest), owner } },
        Op::CompareSet => Request::CompareSet {
            key: string(rest),
            expected: string(rest),
            desired: Payload { bytes: string(rest), owner },
        },
        Op::Get => Request::Get { key: string(rest) },
        Op::Add => Request::Add { key: string(rest), delta: i64_at(rest) },
        Op::Check => Request::Check(list(rest)),
        Op::Wait => Request::Wait(list(rest)),
        Op::NumKeys => Request::NumKeys,
        Op::Delete => Request::Delete { key: string(rest) },
        Op::Append => Request::Append { key: string(rest), value: string(rest) },
        Op::MultiGet => Request::MultiGet(list(rest)),
        Op::MultiSet => {
            let List { count, wire } = list(rest);
            Request::MultiSet(Pairs { count, wire: Payload { bytes: wire, owner } })
        }
        Op::CancelWait => Request::CancelWait,
        Op::Ping | Op::Validate => Request::Ping { nonce: u32_at(rest) },
        Op::QueuePush => {
            Request::QueuePush { key: string(rest), value: Payload { bytes: string(rest), owner } }
        }
        Op::QueuePop => Request::QueuePop { key: string(rest) },
        Op::QueueLen => Request::QueueLen { key: string(rest) },
        Op::ListKeys => Request::ListKeys,
        Op::Barrier => Request::Barrier { key: string(rest), world_size: i64_at(rest) },
    }
}

fn string<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
    split_string(rest).unwrap_or_default()
}

fn list<'a>(rest: &mut &'a [u8]) -> List<'a> {
    List { count: fits(u64_at(rest)), wire: &rest[8..] }
}

/// Removes one length-prefixed string from the front, if it is whole.
#[inline]
pub(super) fn split_string<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (len, tail) = rest.split_at_checked(8)?;
    let (string, tail) = tail.split_at_checked(usize::try_from(u64_at(len)).ok()?)?;
    *rest = tail;
    Some(string)
}

/// A length or count that was compared with its limit, which is a `usize`.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "at most the limit, or a part of it")]
const fn fits(len: u64) -> usize {
    len as usize
}

#[inline]
fn u64_at(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

#[inline]
fn i64_at(bytes: &[u8]) -> i64 {
    u64_at(bytes).cast_signed()
}

#[inline]
fn u32_at(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |chunk| u32::from_le_bytes(*chunk))
}

#[cfg(test)]
mod tests;

//! Frames: the messages between the two ends of a link, as bytes.
//!
//! A frame consists of a byte for its kind, a `u32` for the length of its body, and the body. All numbers are
//! little-endian. Rare frames are JSON, to which a later release may add fields. Frames for each request are
//! binary.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::{Hello, MAX_SESSIONS, Open, SessionNo, WINDOW, Welcome};

/// Bytes of a frame before its body.
const HEAD: usize = 5;
/// The longest body: the list of sessions in a hello or a welcome.
const LONGEST: usize = 2 * WINDOW;
/// The longest body of any other frame: the bytes of one turn, for all sessions.
const MAX_BODY: usize = WINDOW / 2;

/// The sessions that a frame is for, nearly always one.
pub type Sessions = SmallVec<[SessionNo; 4]>;
/// Numbers of bytes, each with its session.
pub type Amounts = Vec<(SessionNo, u32)>;

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// The relay says who it is.
    Hello(Hello),
    /// The server accepts the relay.
    Welcome(Welcome),
    /// The server refuses the relay.
    Refuse(Refuse),
    /// A client has come to the relay.
    Open(Open),
    /// The next bytes of a stream, shared by each of the sessions.
    Data {
        /// The sessions.
        sessions: Sessions,
        /// The next bytes of their streams.
        bytes: Bytes,
    },
    /// The receiver does not need these many more bytes any longer.
    Done(Amounts),
    /// The sender may send these many more bytes.
    Room(Amounts),
    /// A client has left the relay.
    Close(SessionNo),
    /// The server has ended a session.
    End(End),
    /// The relay knows that a session has ended.
    Forgotten(SessionNo),
    /// The relay ends, with all its sessions.
    Bye,
    /// A sign of life.
    Ping,
}

/// Why a relay is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refuse {
    /// The reason in words, for people.
    pub reason: String,
    /// Whether it makes sense for the relay to try again.
    pub retry: bool,
}

/// Why a session has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// The session.
    pub no: SessionNo,
    /// The reason in words, for people.
    pub reason: String,
}

/// Why bytes are not a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// There is no such kind.
    #[error("no frame begins with {0:#04x}")]
    UnknownKind(u8),
    /// It is longer than any frame may be.
    #[error("a frame of {0} bytes, which is more than a relay or a server sends at once")]
    TooLong(u32),
    /// The body does not fit the kind.
    #[error("the body of a frame is wrong: {0}")]
    BadBody(String),
}

#[repr(u8)]
enum Kind {
    Hello = b'H',
    Welcome = b'W',
    Refuse = b'X',
    Open = b'O',
    Data = b'D',
    Done = b'K',
    Room = b'R',
    Close = b'C',
    End = b'E',
    Forgotten = b'F',
    Bye = b'B',
    Ping = b'P',
}

impl Frame {
    /// Takes the first frame off `input`. `None` if it is not whole yet.
    pub fn take(input: &mut BytesMut) -> Result<Option<Self>, FrameError> {
        let Some((head, rest)) = input.split_at_checked(HEAD) else { return Ok(None) };
        let kind = head[0];
        if !b"HWXODKRCEFBP".contains(&kind) {
            return Err(FrameError::UnknownKind(kind));
        }
        let len = (&head[1..]).get_u32_le();
        let size = usize::try_from(len).unwrap_or(usize::MAX);
        if size > if b"HW".contains(&kind) { LONGEST } else { MAX_BODY } {
            return Err(FrameError::TooLong(len));
        }
        if rest.len() < size {
            return Ok(None);
        }
        input.advance(HEAD);
        Self::read(kind, input.split_to(size).freeze()).map(Some)
    }

    fn read(kind: u8, mut body: Bytes) -> Result<Self, FrameError> {
        Ok(match kind {
            b'H' => Self::Hello(json(&body)?),
            b'W' => Self::Welcome(json(&body)?),
            b'X' => Self::Refuse(json(&body)?),
            b'O' => Self::Open(json(&body)?),
            b'E' => Self::End(json(&body)?),
            b'D' => {
                let count = body.try_get_u16_le().map_err(too_short)?;
                if usize::from(count) > MAX_SESSIONS {
                    return Err(FrameError::BadBody("for more sessions than a link has".into()));
                }
                let session = |_| body.try_get_u32_le().map(SessionNo);
                let sessions = (0..count).map(session).collect::<Result<Sessions, _>>().map_err(too_short)?;
                Self::Data { sessions, bytes: body }
            }
            b'K' => Self::Done(amounts(&body)?),
            b'R' => Self::Room(amounts(&body)?),
            b'C' => Self::Close(SessionNo(body.try_get_u32_le().map_err(too_short)?)),
            b'F' => Self::Forgotten(SessionNo(body.try_get_u32_le().map_err(too_short)?)),
            b'B' => Self::Bye,
            _ => Self::Ping,
        })
    }

    /// Appends the frame.
    pub fn put(&self, out: &mut BytesMut) {
        match self {
            Self::Hello(hello) => put_json(Kind::Hello, hello, out),
            Self::Welcome(welcome) => put_json(Kind::Welcome, welcome, out),
            Self::Refuse(refuse) => put_json(Kind::Refuse, refuse, out),
            Self::Open(open) => put_json(Kind::Open, open, out),
            Self::End(end) => put_json(Kind::End, end, out),
            Self::Data { sessions, bytes } => put_data(sessions, bytes, out),
            Self::Done(amounts) => put_amounts(Kind::Done, amounts, out),
            Self::Room(amounts) => put_amounts(Kind::Room, amounts, out),
            Self::Close(no) => put(Kind::Close, out, |out| out.put_u32_le(no.0)),
            Self::Forgotten(no) => put(Kind::Forgotten, out, |out| out.put_u32_le(no.0)),
            Self::Bye => put(Kind::Bye, out, |_| ()),
            Self::Ping => put(Kind::Ping, out, |_| ()),
        }
    }
}

/// Appends a [`Frame::Data`] for up to all sessions of a link, with up to a window of bytes.
pub(super) fn put_data(sessions: &[SessionNo], bytes: &[u8], out: &mut BytesMut) {
    put(Kind::Data, out, |out| {
        out.put_u16_le(u16::try_from(sessions.len()).unwrap_or(u16::MAX));
        for no in sessions {
            out.put_u32_le(no.0);
        }
        out.put_slice(bytes);
    });
}

fn put_amounts(kind: Kind, amounts: &Amounts, out: &mut BytesMut) {
    put(kind, out, |out| {
        out.reserve(amounts.len().saturating_mul(size_of::<(u32, u32)>()));
        for (no, amount) in amounts {
            out.put_u32_le(no.0);
            out.put_u32_le(*amount);
        }
    });
}

fn put_json(kind: Kind, value: &impl Serialize, out: &mut BytesMut) {
    put(kind, out, |out| {
        // This cannot fail: no value has a map with keys that JSON cannot write, and writing to memory always
        // works.
        let _written = serde_json::to_writer(out.writer(), value);
    });
}

/// Appends a frame. Its body is what `body` appends.
fn put(kind: Kind, out: &mut BytesMut, body: impl FnOnce(&mut BytesMut)) {
    out.put_u8(kind as u8);
    let at = out.len();
    out.put_u32_le(0);
    let start = out.len();
    body(out);
    let len = u32::try_from(out.len().saturating_sub(start)).unwrap_or(u32::MAX);
    out[at..start].copy_from_slice(&len.to_le_bytes());
}

fn json<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, FrameError> {
    serde_json::from_slice(body).map_err(|error| FrameError::BadBody(error.to_string()))
}

fn amounts(body: &[u8]) -> Result<Amounts, FrameError> {
    let (pairs, rest) = body.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(FrameError::BadBody("half a number".into()));
    }
    let pair = |mut pair: &[u8]| (SessionNo(pair.get_u32_le()), pair.get_u32_le());
    Ok(pairs.iter().map(|bytes| pair(bytes)).collect())
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn too_short(error: bytes::TryGetError) -> FrameError {
    FrameError::BadBody(error.to_string())
}

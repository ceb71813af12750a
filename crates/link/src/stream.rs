//! The streams of a link, for both ends: the bytes that an end keeps until the other end does not need them
//! any more, and how many it may send.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use hashbrown::HashMap;
use smallvec::SmallVec;

use super::frame::{Amounts, Frame, Sessions, put_data};
use super::{LinkError, MAX_SESSIONS, Point, SessionNo, WINDOW};
use rallypoint_protocol::{Piece, ReplyBuffer};

/// Bytes that one session sends before it is the turn of others.
const TURN: usize = 64 * 1024;
/// The other end is told when it can forget, or send, this many more bytes, even if there is nothing else to
/// send.
const REPORT_FROM: usize = WINDOW / 4;
/// Memory of a piece beside its bytes: its entry in the list, and a buffer that it shares with other pieces
/// and may be the last to hold.
const PIECE: usize = size_of::<Piece>() + ReplyBuffer::ROOM;

/// Bytes, in order, that the other end has not acknowledged.
#[derive(Debug, Default)]
struct Outgoing {
    /// Bytes of the stream that the other end has acknowledged.
    done: u64,
    kept: VecDeque<Piece>,
    /// Bytes of the stream in `kept`.
    len: usize,
    /// How many of them are counted elsewhere.
    lent: usize,
    /// How many of them were sent on this connection.
    sent: usize,
    /// The position of the first unsent byte: its piece, and its offset in that piece.
    next: (usize, usize),
}

#[expect(clippy::arithmetic_side_effects, reason = "all of it counts bytes in memory")]
impl Outgoing {
    fn push(&mut self, piece: Piece) {
        if !piece.bytes.is_empty() {
            self.len += piece.bytes.len();
            self.lent += piece.lent();
            self.kept.push_back(piece);
        }
    }

    fn unsent(&self) -> usize {
        self.len - self.sent
    }

    /// Its memory. A piece of one byte takes much more than one byte.
    fn memory(&self) -> usize {
        self.len - self.lent + self.kept.len() * PIECE
    }

    /// The offset in the stream up to which bytes were sent.
    fn sent_to(&self) -> u64 {
        self.done + self.sent as u64
    }

    /// The next bytes to send, from one piece.
    fn next(&mut self, most: usize) -> Bytes {
        let (piece, at) = self.next;
        let Some(Piece { bytes, .. }) = self.kept.get(piece) else { return Bytes::new() };
        let taken = bytes.slice(at..bytes.len().min(at.saturating_add(most)));
        self.sent += taken.len();
        self.next = if at + taken.len() == bytes.len() { (piece + 1, 0) } else { (piece, at + taken.len()) };
        taken
    }

    /// The other end acknowledges the first `bytes` of the sent bytes. `false` if so many were not sent.
    fn forget(&mut self, bytes: usize) -> bool {
        if bytes > self.sent {
            return false;
        }
        self.done += bytes as u64;
        self.len -= bytes;
        self.sent -= bytes;
        let mut left = bytes;
        while let Some(first) = self.kept.front_mut() {
            if left < first.bytes.len() {
                let lent = first.lent();
                let _forgotten = first.bytes.split_to(left);
                self.lent -= lent - first.lent();
                if self.next.0 == 0 {
                    self.next.1 -= left;
                }
                break;
            }
            left -= first.bytes.len();
            self.lent -= first.lent();
            self.kept.pop_front();
            self.next = if self.next.0 == 0 { (0, 0) } else { (self.next.0 - 1, self.next.1) };
        }
        true
    }

    /// The positions, in the kept bytes, of what the other end has `received` and of what it is `done` with.
    /// `None` if it says more than was ever sent.
    fn positions(&self, received: u64, done: u64) -> Option<(usize, usize)> {
        let within = |offset: u64| {
            let at = usize::try_from(offset.checked_sub(self.done)?).ok()?;
            (at <= self.len).then_some(at)
        };
        Some((within(received)?, within(done)?)).filter(|(received, done)| done <= received)
    }

    /// Goes on from the offset `received` of the stream. The other end is `done` with a part before it. If
    /// that is impossible, returns `false` and changes nothing.
    fn go_on_from(&mut self, received: u64, done: u64) -> bool {
        let Some((sent, done)) = self.positions(received, done) else { return false };
        self.sent = sent;
        let mut left = sent;
        let mut piece = 0;
        while let Some(it) = self.kept.get(piece).filter(|it| it.bytes.len() <= left) {
            left -= it.bytes.len();
            piece += 1;
        }
        self.next = (piece, left);
        self.forget(done)
    }
}

/// The two streams of one session, as one end has them.
#[derive(Debug)]
pub(super) struct Stream {
    out: Outgoing,
    /// The offset up to which bytes may be sent.
    limit: u64,
    /// Bytes that have arrived.
    received: u64,
    /// How many of them this end has acknowledged.
    done_with: u64,
    /// The offset up to which bytes may arrive.
    allowed: u64,
    /// Acknowledged bytes, and new room, that the other end was not told of yet.
    done: u32,
    room: u32,
    is_ready: bool,
    is_to_report: bool,
    /// The bytes that the other end had not acknowledged were dropped, so what it says about them is ignored.
    is_cut: bool,
}

impl Stream {
    /// How many more bytes may arrive.
    pub(super) fn room(&self) -> u64 {
        self.allowed.saturating_sub(self.received)
    }

    /// Bytes that wait to be sent.
    pub(super) fn unsent(&self) -> usize {
        self.out.unsent()
    }

    /// Bytes that the other end has not acknowledged.
    pub(super) fn kept(&self) -> usize {
        self.out.len
    }

    /// Bytes that have arrived and that this end has not acknowledged.
    pub(super) fn owed(&self) -> usize {
        usize::try_from(self.received.saturating_sub(self.done_with)).unwrap_or(usize::MAX)
    }

    /// Whether the other end has neither answered nor acknowledged anything.
    pub(super) fn is_untouched(&self) -> bool {
        self.received == 0 && self.out.done == 0
    }

    /// Whether any byte may ever have been sent.
    pub(super) fn has_sent(&self) -> bool {
        self.out.sent_to() > 0
    }
}

/// All streams of one end of a link.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// The streams are in boxes, because a map with few streams is half empty.
    by_no: HashMap<SessionNo, Box<Stream>>,
    /// Streams with bytes to send and room for them, each once.
    ready: VecDeque<SessionNo>,
    /// Streams with something to tell the other end, each once.
    to_report: Vec<SessionNo>,
    /// Whether one of them has much to tell.
    must_report: bool,
    /// Memory of the kept bytes of all streams.
    memory: usize,
}

#[expect(clippy::arithmetic_side_effects, reason = "windows and bytes in memory")]
impl Streams {
    /// A new session: bytes may be sent up to `limit`, and may arrive up to `allowed`.
    pub(super) fn open(&mut self, no: SessionNo, limit: usize, allowed: usize) -> Result<(), LinkError> {
        if self.by_no.len() >= MAX_SESSIONS {
            return Err(LinkError::TooManySessions);
        }
        // After the error the one that is there goes on.
        if self.by_no.contains_key(&no) {
            return Err(LinkError::Unexpected("a session is opened twice"));
        }
        let stream = Stream {
            out: Outgoing::default(),
            limit: limit as u64,
            received: 0,
            done_with: 0,
            allowed: allowed as u64,
            done: 0,
            room: 0,
            is_ready: false,
            is_to_report: false,
            is_cut: false,
        };
        self.by_no.insert(no, Box::new(stream));
        Ok(())
    }

    /// Restores a session of the previous server: its requests are applied up to an offset, and the relay has
    /// acknowledged the replies before the given ones.
    pub(super) fn restore(&mut self, no: SessionNo, applied: u64, acknowledged: u64, replies: Vec<Bytes>) {
        let mut out = Outgoing { done: acknowledged, ..Outgoing::default() };
        for bytes in replies {
            out.push(bytes.into());
        }
        self.memory += out.memory();
        let stream = Stream {
            out,
            limit: acknowledged,
            received: applied,
            done_with: applied,
            allowed: applied.saturating_add(WINDOW as u64),
            done: 0,
            room: 0,
            is_ready: false,
            is_to_report: false,
            is_cut: false,
        };
        self.by_no.insert(no, Box::new(stream));
    }

    /// The two offsets of a session, and the bytes that the other end has not acknowledged, as
    /// [`Self::restore`] takes them.
    pub(super) fn to_restore(&self, no: SessionNo) -> Option<(u64, u64, impl Iterator<Item = &Bytes>)> {
        let stream = self.by_no.get(&no)?;
        Some((stream.done_with, stream.out.done, stream.out.kept.iter().map(|piece| &piece.bytes)))
    }

    /// Drops the bytes that the other end has not acknowledged, and all later ones.
    pub(super) fn cut(&mut self, no: SessionNo) {
        if let Some(stream) = self.by_no.get_mut(&no) {
            self.memory -= stream.out.memory();
            stream.out = Outgoing { done: stream.out.done + stream.out.len as u64, ..Outgoing::default() };
            stream.is_cut = true;
        }
    }

    pub(super) fn close(&mut self, no: SessionNo) {
        if let Some(stream) = self.by_no.remove(&no) {
            self.memory -= stream.out.memory();
        }
    }

    /// Bytes of memory for what the other end has not acknowledged.
    pub(super) fn memory(&self) -> usize {
        self.memory
    }

    /// [`Self::memory`], counted again.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn held(&self) -> usize {
        let held =
            |out: &Outgoing| out.kept.iter().map(|it| it.bytes.len() - it.lent() + PIECE).sum::<usize>();
        self.by_no.values().map(|stream| held(&stream.out)).sum()
    }

    pub(super) fn get(&self, no: SessionNo) -> Option<&Stream> {
        self.by_no.get(&no).map(Box::as_ref)
    }

    /// Whether there is something to send that should not wait for more.
    pub(super) fn has_something(&self) -> bool {
        self.must_report || !self.ready.is_empty()
    }

    /// Appends bytes to the stream of a session.
    pub(super) fn send(&mut self, no: SessionNo, piece: Piece) {
        if let Some(stream) = self.by_no.get_mut(&no).filter(|stream| !stream.is_cut) {
            let before = stream.out.memory();
            stream.out.push(piece);
            self.memory += stream.out.memory() - before;
            self.make_ready(no);
        }
    }

    fn make_ready(&mut self, no: SessionNo) {
        if let Some(stream) = self.by_no.get_mut(&no)
            && !stream.is_ready
            && stream.out.unsent() > 0
            && stream.out.sent_to() < stream.limit
        {
            stream.is_ready = true;
            self.ready.push_back(no);
        }
    }

    /// Bytes have arrived.
    pub(super) fn receive(&mut self, no: SessionNo, len: usize) -> Result<(), LinkError> {
        let stream = self.by_no.get_mut(&no).ok_or(LinkError::UnknownSession(no))?;
        let received = stream.received + len as u64;
        if received > stream.allowed {
            return Err(LinkError::BeyondWindow(no));
        }
        stream.received = received;
        Ok(())
    }

    /// This end does not need this many more of the arrived bytes: the other end may forget them.
    pub(super) fn done(&mut self, no: SessionNo, bytes: usize) {
        if let Some(stream) = self.by_no.get_mut(&no) {
            stream.done_with += bytes as u64;
            stream.done = stream.done.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
            self.report(no);
        }
    }

    /// The other end may send this many more bytes. If an acknowledgement makes the room, the other end knows
    /// it without a `report`.
    pub(super) fn room(&mut self, no: SessionNo, bytes: usize, report: bool) {
        if let Some(stream) = self.by_no.get_mut(&no) {
            stream.allowed += bytes as u64;
            if report {
                stream.room = stream.room.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
                self.report(no);
            }
        }
    }

    fn report(&mut self, no: SessionNo) {
        if let Some(stream) = self.by_no.get_mut(&no) {
            self.must_report |= stream.done.max(stream.room) as usize >= REPORT_FROM;
            if !std::mem::replace(&mut stream.is_to_report, true) {
                self.to_report.push(no);
            }
        }
    }

    /// The other end has acknowledged these bytes.
    pub(super) fn on_done(&mut self, amounts: &Amounts, and_room: bool) -> Result<(), LinkError> {
        for &(no, bytes) in amounts {
            // The session may have ended here in the meantime.
            let Some(stream) = self.by_no.get_mut(&no).filter(|stream| !stream.is_cut) else { continue };
            let before = stream.out.memory();
            if !stream.out.forget(bytes as usize) {
                return Err(LinkError::NeverSent(no));
            }
            self.memory -= before - stream.out.memory();
            if and_room {
                stream.limit = stream.limit.saturating_add(u64::from(bytes));
                self.make_ready(no);
            }
        }
        Ok(())
    }

    /// The other end has room for these bytes.
    pub(super) fn on_room(&mut self, amounts: &Amounts) {
        for &(no, bytes) in amounts {
            if let Some(stream) = self.by_no.get_mut(&no) {
                stream.limit = stream.limit.saturating_add(u64::from(bytes));
                self.make_ready(no);
            }
        }
    }

    /// The connection is lost, and everything that was told on it must be told again.
    pub(super) fn lost(&mut self) {
        self.ready.clear();
        self.to_report.clear();
        self.must_report = false;
        for stream in self.by_no.values_mut() {
            (stream.is_ready, stream.is_to_report) = (false, false);
        }
    }

    /// How far a session has come, for a greeting. After it, nothing of this is left to tell.
    pub(super) fn point(&mut self, no: SessionNo) -> Option<Point> {
        let stream = self.by_no.get_mut(&no)?;
        (stream.done, stream.room) = (0, 0);
        Some(Point { no, received: stream.received, done: stream.done_with, limit: stream.allowed })
    }

    /// Whether the other end can have come as far as it says.
    pub(super) fn check(&self, point: &Point) -> Result<(), LinkError> {
        let no = point.no;
        let stream = self.by_no.get(&no).ok_or(LinkError::UnknownSession(no))?;
        let positions = stream.out.positions(point.received, point.done);
        if stream.is_cut || positions.is_some() { Ok(()) } else { Err(LinkError::NeverSent(no)) }
    }

    /// On a new connection, the other end has said how far it has come.
    pub(super) fn go_on_from(&mut self, point: &Point) -> Result<(), LinkError> {
        let no = point.no;
        let stream = self.by_no.get_mut(&no).ok_or(LinkError::UnknownSession(no))?;
        if stream.is_cut {
            return Ok(());
        }
        let before = stream.out.memory();
        if !stream.out.go_on_from(point.received, point.done) {
            return Err(LinkError::NeverSent(no));
        }
        self.memory -= before - stream.out.memory();
        stream.limit = point.limit;
        if stream.done > 0 || stream.room > 0 {
            self.report(no);
        }
        self.make_ready(no);
        Ok(())
    }

    /// The other end has never heard of a session, so the session begins again.
    pub(super) fn start_anew(&mut self, no: SessionNo, limit: usize) -> Result<(), LinkError> {
        self.go_on_from(&Point { no, received: 0, done: 0, limit: limit as u64 })
    }

    /// Appends frames, acknowledgements first, until `out` has about `enough` bytes.
    pub(super) fn put_frames(&mut self, out: &mut BytesMut, enough: usize) {
        self.put_reports(out);
        while out.len() < enough && !self.ready.is_empty() {
            self.put_round(out, enough);
        }
    }

    /// One turn of each ready session at most, in their order. Equal bytes of several sessions are sent once.
    fn put_round(&mut self, out: &mut BytesMut, enough: usize) {
        let mut shared = Shared::default();
        for _ in 0..self.ready.len() {
            if out.len().saturating_add(shared.len) >= enough {
                break;
            }
            let Some(no) = self.ready.pop_front() else { break };
            let Some(stream) = self.by_no.get_mut(&no) else { continue };
            stream.is_ready = false;
            let allowed =
                usize::try_from(stream.limit.saturating_sub(stream.out.sent_to())).unwrap_or(usize::MAX);
            shared.add(no, stream.out.next(allowed.min(TURN)));
            // If it has more to send, it goes to the end of the queue.
            self.make_ready(no);
        }
        shared.put(out);
    }

    fn put_reports(&mut self, out: &mut BytesMut) {
        let mut done = Amounts::with_capacity(self.to_report.len());
        let mut room = Amounts::new();
        for no in self.to_report.drain(..) {
            let Some(stream) = self.by_no.get_mut(&no) else { continue };
            stream.is_to_report = false;
            for (list, amount) in [(&mut done, &mut stream.done), (&mut room, &mut stream.room)] {
                if *amount > 0 {
                    list.push((no, std::mem::take(amount)));
                }
            }
        }
        self.must_report = false;
        for frame in [Frame::Done(done), Frame::Room(room)] {
            if let Frame::Done(amounts) | Frame::Room(amounts) = &frame
                && !amounts.is_empty()
            {
                frame.put(out);
            }
        }
    }
}

/// Bytes to send, each with the sessions that send them.
#[derive(Default)]
struct Shared {
    groups: SmallVec<[(Bytes, Sessions); 8]>,
    by_bytes: HashMap<Bytes, usize>,
    len: usize,
}

#[expect(clippy::arithmetic_side_effects, reason = "bytes in memory")]
impl Shared {
    fn add(&mut self, no: SessionNo, bytes: Bytes) {
        // If the store has shared one answer with several sessions, its bytes need not be compared.
        let is_same = |group: &Bytes| (group.as_ptr(), group.len()) == (bytes.as_ptr(), bytes.len());
        if let Some((_, sessions)) = self.groups.last_mut().filter(|(group, _)| is_same(group)) {
            return sessions.push(no);
        }
        // Usually there is only one group, and nothing to compare.
        if let [(first, _)] = self.groups.as_slice()
            && self.by_bytes.is_empty()
        {
            self.by_bytes.insert(first.clone(), 0);
        }
        if let Some(group) = self.by_bytes.get(&bytes).and_then(|&at| self.groups.get_mut(at)) {
            group.1.push(no);
            return;
        }
        if !self.groups.is_empty() {
            self.by_bytes.insert(bytes.clone(), self.groups.len());
        }
        self.len += bytes.len();
        self.groups.push((bytes, [no].into_iter().collect()));
    }

    fn put(self, out: &mut BytesMut) {
        for (bytes, sessions) in &self.groups {
            put_data(sessions, bytes, out);
        }
    }
}

//! The server's end of a link.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::{Bytes, BytesMut};

use super::frame::{End, Frame};
use super::pulse::Pulse;
use super::stream::{Stream, Streams};
use super::{
    BROKEN_AFTER, FIRST_WINDOW, Hello, Identity, LinkError, Open, Point, ServerLife, SessionNo, WINDOW,
    Welcome,
};
use rallypoint_protocol::Piece;
use rallypoint_protocol::ids::Timestamp;

/// What the shell has to do.
#[derive(Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// A client has come. If there is no such store, the shell ends the session at once.
    Open(Open),
    /// A client has sent these bytes. The shell calls [`ServerEnd::give_room`] when it has room for more, and
    /// [`ServerEnd::applied`] when the requests in them are done.
    Request(SessionNo, Bytes),
    /// A client has left. The shell calls [`ServerEnd::end`] when what it had sent is applied.
    Close(SessionNo),
    /// The relay knows nothing of a session any more.
    Forgotten(SessionNo),
    /// The relay has ended, with all its clients.
    Bye,
}

/// How far a session has come, for a server that continues it.
#[derive(Debug)]
pub struct BeforeBreak<R> {
    /// Bytes of requests that were applied.
    pub applied: u64,
    /// Bytes of replies that the relay has acknowledged.
    pub acknowledged: u64,
    /// The replies after them.
    pub replies: R,
}

/// A session that has ended.
#[derive(Debug)]
struct Ended {
    reason: String,
    /// Whether the relay was told so on this connection.
    is_told: bool,
}

/// The server's end of a link: the sessions of one relay.
#[derive(Debug)]
pub struct ServerEnd {
    identity: Identity,
    life: ServerLife,
    streams: Streams,
    open: BTreeSet<SessionNo>,
    /// Ended sessions that the relay does not know to have ended. It is told after the last replies.
    ended: BTreeMap<SessionNo, Ended>,
    control: BytesMut,
    events: VecDeque<ServerEvent>,
    is_connected: bool,
    /// The number of the relay's last connection, as the relay counts them.
    connection: u64,
    /// Bytes that may arrive in a new session.
    first: usize,
    /// Without a connection, `heard` is the time when the last one ended.
    pulse: Pulse,
}

impl ServerEnd {
    /// The end for a relay that is not known yet.
    pub fn new(identity: Identity, life: ServerLife) -> Self {
        Self {
            identity,
            life,
            streams: Streams::default(),
            open: BTreeSet::new(),
            ended: BTreeMap::new(),
            control: BytesMut::new(),
            events: VecDeque::new(),
            is_connected: false,
            connection: 0,
            first: WINDOW,
            pulse: Pulse::default(),
        }
    }

    /// The end of a restarted server. At `now` it has no connection.
    pub fn restored(identity: Identity, life: ServerLife, now: Timestamp) -> Self {
        Self { pulse: Pulse::at(now), ..Self::new(identity, life) }
    }

    /// Restores a session of the previous server. If it cannot continue, [`Self::end`] must follow.
    pub fn restore(&mut self, no: SessionNo, it: BeforeBreak<Vec<Bytes>>) {
        self.streams.restore(no, it.applied, it.acknowledged, it.replies);
        self.open.insert(no);
    }

    /// The progress of a session, as [`Self::restore`] takes it.
    pub fn to_restore(&self, no: SessionNo) -> Option<BeforeBreak<impl Iterator<Item = &Bytes>>> {
        let (applied, acknowledged, replies) = self.streams.to_restore(no)?;
        Some(BeforeBreak { applied, acknowledged, replies })
    }

    /// All sessions, including ended ones that the relay does not know to have ended.
    pub fn all(&self) -> impl Iterator<Item = SessionNo> {
        self.open.iter().chain(self.ended.keys()).copied()
    }

    /// The offset up to which the relay has acknowledged the replies of a session.
    pub fn acknowledged(&self, no: SessionNo) -> u64 {
        self.streams.to_restore(no).map_or(0, |(_, acknowledged, _)| acknowledged)
    }

    /// The relay.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// How many sessions there are.
    pub fn sessions(&self) -> usize {
        self.open.len()
    }

    /// Whether there is a connection.
    pub fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// Whether there is a connection and something has arrived on it lately.
    pub fn is_alive(&self, now: Timestamp) -> bool {
        self.is_connected && now.since(self.pulse.heard) < BROKEN_AFTER
    }

    /// Whether something has arrived on the connection after this time.
    pub fn is_heard_after(&self, at: Timestamp) -> bool {
        self.is_connected && self.pulse.heard > at
    }

    /// Whether a later connection of this relay has already come.
    pub fn is_overtaken(&self, hello: &Hello) -> bool {
        hello.connection != 0 && hello.connection < self.connection
    }

    /// Since when there has been no connection. `None` while there is one.
    pub fn away_since(&self) -> Option<Timestamp> {
        (!self.is_connected).then_some(self.pulse.heard)
    }

    /// The relay has connected, for the first time (then it is not `known`) or again. If what it says of a
    /// session is impossible, the session ends: the relay knows more of it than the journal has kept. After
    /// an error nothing has changed.
    pub fn connected(&mut self, hello: &Hello, known: bool, now: Timestamp) -> Result<(), LinkError> {
        let told: BTreeSet<_> = hello.sessions.iter().map(|point| point.no).collect();
        if told.len() < hello.sessions.len() {
            return Err(LinkError::Unexpected("a hello that names a session twice"));
        }
        let is_here = |no| self.open.contains(&no) || self.ended.contains_key(&no);
        let (points, strange): (Vec<&Point>, Vec<&Point>) = hello
            .sessions
            .iter()
            .filter(|point| is_here(point.no))
            .partition(|point| self.streams.check(point).is_ok());
        self.lost(now);
        // The relay has received replies in these sessions that the journal did not keep.
        for point in strange {
            self.forget(point.no);
        }
        (self.is_connected, self.connection) = (true, hello.connection);
        self.first = if hello.small_first { FIRST_WINDOW } else { WINDOW };
        self.pulse = Pulse::at(now);
        // Clients of the relay that have left in the meantime.
        let gone: Vec<_> = self.all().filter(|no| !told.contains(no)).collect();
        for no in gone {
            self.forget(no);
        }
        let mut sessions = Vec::new();
        for point in points {
            // This was checked above.
            let _can_be = self.streams.go_on_from(point);
            sessions.extend(self.streams.point(point.no));
        }
        let (life, first) = (self.life, self.first);
        Frame::Welcome(Welcome { life, resumed: known, first, sessions }).put(&mut self.control);
        Ok(())
    }

    /// The connection is lost.
    pub fn lost(&mut self, now: Timestamp) {
        if std::mem::replace(&mut self.is_connected, false) {
            self.pulse.heard = now;
        }
        self.control.clear();
        self.streams.lost();
        self.ended.values_mut().for_each(|ended| ended.is_told = false);
    }

    /// Takes frames that have arrived, until one of them gives the shell something to do. `false` if none
    /// does. After an error the connection is of no use.
    pub fn receive(&mut self, input: &mut BytesMut, now: Timestamp) -> Result<bool, LinkError> {
        while self.events.is_empty() {
            let Some(frame) = Frame::take(input)? else { return Ok(false) };
            self.pulse.heard = now;
            self.on_frame(frame)?;
        }
        Ok(true)
    }

    fn on_frame(&mut self, frame: Frame) -> Result<(), LinkError> {
        match frame {
            Frame::Open(open) => {
                self.streams.open(open.no, WINDOW, self.first)?;
                self.open.insert(open.no);
                self.events.push_back(ServerEvent::Open(open));
            }
            Frame::Data { sessions, bytes } => {
                for no in sessions {
                    self.streams.receive(no, bytes.len())?;
                    if self.open.contains(&no) {
                        self.events.push_back(ServerEvent::Request(no, bytes.clone()));
                    }
                }
            }
            Frame::Done(amounts) => self.streams.on_done(&amounts, true)?,
            // A session that has ended meanwhile is not forgotten yet: its relay still has to know that.
            Frame::Close(no) => {
                if self.open.contains(&no) {
                    self.events.push_back(ServerEvent::Close(no));
                }
            }
            Frame::Forgotten(no) => self.forget(no),
            Frame::Bye => self.events.push_back(ServerEvent::Bye),
            Frame::Ping => {}
            _ => return Err(LinkError::Unexpected("from a relay")),
        }
        Ok(())
    }

    /// The relay knows nothing of a session any more.
    fn forget(&mut self, no: SessionNo) {
        if self.ended.remove(&no).is_some() || self.open.remove(&no) {
            self.streams.close(no);
            self.events.push_back(ServerEvent::Forgotten(no));
        }
    }

    /// Lets this many bytes of a session's requests come.
    pub fn give_room(&mut self, no: SessionNo, window: usize) {
        let more = window.saturating_sub(self.room(no));
        if more > 0 {
            self.streams.room(no, more, true);
        }
    }

    /// How many more bytes of a session's requests may come.
    pub fn room(&self, no: SessionNo) -> usize {
        self.streams.get(no).map_or(0, |stream| usize::try_from(stream.room()).unwrap_or(usize::MAX))
    }

    /// The window for a session in which only the beginning of a request is expected.
    pub fn first_window(&self) -> usize {
        self.first
    }

    /// This many more bytes of a session's requests are applied.
    pub fn applied(&mut self, no: SessionNo, bytes: usize) {
        self.streams.done(no, bytes);
    }

    /// Sends replies.
    pub fn reply(&mut self, no: SessionNo, piece: impl Into<Piece>) {
        self.streams.send(no, piece.into());
    }

    /// Bytes of replies that the relay's client has not received yet.
    pub fn unread(&self, no: SessionNo) -> usize {
        self.streams.get(no).map_or(0, Stream::kept)
    }

    /// Bytes of memory for replies that the relay has not acknowledged.
    pub fn memory(&self) -> usize {
        self.streams.memory()
    }

    /// [`Self::memory`], counted again.
    #[cfg(any(test, feature = "sim"))]
    pub fn held(&self) -> usize {
        self.streams.held()
    }

    /// Ends a session at once: replies that its client has not received are dropped.
    pub fn cut(&mut self, no: SessionNo, reason: String) {
        self.streams.cut(no);
        self.end(no, reason);
    }

    /// Ends a session after its replies are sent.
    pub fn end(&mut self, no: SessionNo, reason: String) {
        if self.open.remove(&no) {
            self.ended.insert(no, Ended { reason, is_told: false });
        }
    }

    /// The next thing that the shell has to do.
    pub fn next_event(&mut self) -> Option<ServerEvent> {
        self.events.pop_front()
    }

    /// Whether there are frames to send now.
    pub fn has_frames(&self) -> bool {
        self.is_connected
            && (!self.control.is_empty() || self.streams.has_something() || self.endings().next().is_some())
    }

    /// Ended sessions whose replies are all sent, and that the relay was not told of on this connection.
    fn endings(&self) -> impl Iterator<Item = SessionNo> {
        let is_out = |no| self.streams.get(no).is_none_or(|stream| stream.unsent() == 0);
        self.ended.iter().filter(|(_, ended)| !ended.is_told).map(|(&no, _)| no).filter(move |&no| is_out(no))
    }

    /// Appends frames to send, until `out` has about `enough` bytes.
    pub fn put_frames(&mut self, out: &mut BytesMut, enough: usize, now: Timestamp) {
        if !self.is_connected {
            return;
        }
        let before = out.len();
        out.extend_from_slice(&self.control);
        self.control.clear();
        self.streams.put_frames(out, enough);
        for no in self.endings().collect::<Vec<_>>() {
            if let Some(ended) = self.ended.get_mut(&no) {
                ended.is_told = true;
                Frame::End(End { no, reason: ended.reason.clone() }).put(out);
            }
        }
        if out.len() > before {
            self.pulse.said = now;
        }
    }

    /// Called now and then while there is a connection. Sends a sign of life when needed, and fails if the
    /// other end is silent.
    pub fn tick(&mut self, now: Timestamp) -> Result<(), LinkError> {
        if !self.events.is_empty() {
            // The relay is not late: what has arrived is read when these events are done.
            self.pulse.heard = now;
        }
        if self.is_connected && self.pulse.needs_ping(now)? {
            Frame::Ping.put(&mut self.control);
        }
        Ok(())
    }
}

//! The relay's end of a link.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};

use super::dialogue::{CANCELLED, Dialogue};
use super::frame::{Frame, Refuse};
use super::pulse::Pulse;
use super::stream::{Stream, Streams};
use super::{Hello, Identity, LinkError, MAX_SESSIONS, Open, ServerLife, SessionNo, WINDOW, Welcome};
use rallypoint_protocol::ids::Timestamp;

/// A client may always send this many bytes, however little memory there is.
const ALWAYS: usize = 4 * 1024;
/// Limits for clients that left before any server heard of them: how many are kept, and how many are brought
/// to the server at a time.
const MOST_PARKED: usize = 4 * MAX_SESSIONS;
const BROUGHT_AT_ONCE: usize = 64;
/// Memory of such a client, beside its requests.
const PARKED: usize = 256;

/// What the shell has to do.
#[derive(Debug, PartialEq, Eq)]
pub enum RelayEvent {
    /// Bytes for a client. When the client has them, the shell calls [`RelayEnd::delivered`].
    Reply(SessionNo, Bytes),
    /// A client's connection must be closed, once the client has its bytes.
    Lost(SessionNo, SessionLost),
    /// The server has accepted the relay: all sessions go on.
    Up,
    /// The server refuses the relay.
    Refused(Refuse),
    /// A client left while the server was away, and its last requests were dropped because there is no room
    /// for them.
    Unheard(SocketAddr),
}

/// Why a client's connection is closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionLost {
    /// The client has sent everything, and has all its replies.
    #[error("its client has gone")]
    Finished,
    /// The server ended the session.
    #[error("the server ended it: {0}")]
    Ended(String),
    /// The previous server is gone, and the next one does not know the client. It does not say why.
    #[error(
        "the server was restarted and does not have its clients any more (it has no journal, could not write \
         it, or the link was away for longer than --link-grace)"
    )]
    Forgotten,
    /// The client reads nothing, and its waiting replies take too much memory.
    #[error("it does not read its replies, and the relay has no memory for more of them (--max-memory)")]
    NotRead,
    /// The link was away for longer than the server waits. A server that was restarted with a journal that is
    /// older than the link answers in the same way.
    #[error(
        "the link was away for longer than the server waits for it (--link-grace), or the server was \
         restarted and could not write its journal before"
    )]
    AwayTooLong,
}

/// What the relay knows of one client.
#[derive(Debug)]
struct Client {
    port: u16,
    addr: SocketAddr,
    /// The last server that knew the session.
    opened: Option<ServerLife>,
    dialogue: Dialogue,
    /// The client sends nothing any more. The session stays until the server has all its requests.
    has_finished: bool,
    /// The client does not take replies any more either.
    is_gone: bool,
}

/// A client that left before any server heard of it.
#[derive(Debug)]
struct Parked {
    no: SessionNo,
    client: Client,
    said: Vec<Bytes>,
}

impl Parked {
    fn memory(&self) -> usize {
        self.said.iter().map(Bytes::len).sum::<usize>().saturating_add(PARKED)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Away,
    /// Connected, but the server has not answered the hello.
    Greeting,
    Up(ServerLife),
}

/// The relay's end of a link. Its sessions outlive its connections.
#[derive(Debug)]
pub struct RelayEnd {
    identity: Identity,
    standing: Standing,
    clients: BTreeMap<SessionNo, Client>,
    streams: Streams,
    /// Sessions whose clients send nothing any more, and whether the server was told so on this connection.
    closing: BTreeMap<SessionNo, bool>,
    /// Clients that have left. They take no place of a present client, and are brought to the server one
    /// after the other.
    parked: VecDeque<Parked>,
    parked_bytes: usize,
    /// Bytes of memory for requests that the server has not acknowledged.
    most: usize,
    /// While that memory is used up, only this client may continue a long request, so each such request comes
    /// to its end.
    urgent: Option<SessionNo>,
    is_short: bool,
    /// Whether clients that had no room may have some now.
    is_relieved: bool,
    /// Bytes that may be sent in a new session.
    first: usize,
    next_no: u32,
    /// The number of connections so far.
    connections: u64,
    /// Frames that go out before the frames of the streams.
    control: BytesMut,
    events: VecDeque<RelayEvent>,
    pulse: Pulse,
}

impl RelayEnd {
    /// A relay without clients and without a connection.
    pub fn new(identity: Identity) -> Self {
        Self {
            identity,
            standing: Standing::Away,
            clients: BTreeMap::new(),
            streams: Streams::default(),
            closing: BTreeMap::new(),
            parked: VecDeque::new(),
            parked_bytes: 0,
            most: usize::MAX,
            urgent: None,
            is_short: false,
            is_relieved: false,
            first: WINDOW,
            next_no: 0,
            connections: 0,
            control: BytesMut::new(),
            events: VecDeque::new(),
            pulse: Pulse::default(),
        }
    }

    /// Limits the memory for requests. One long request may exceed it.
    #[must_use]
    pub fn within(self, most: usize) -> Self {
        Self { most, ..self }
    }

    /// A new client wants the store on `port`. `None` if there are too many clients.
    pub fn open(&mut self, port: u16, addr: SocketAddr) -> Option<SessionNo> {
        if self.clients.len() >= MAX_SESSIONS {
            self.make_place();
        }
        let no = SessionNo(self.next_no);
        self.next_no = self.next_no.checked_add(1)?;
        self.streams.open(no, self.first, WINDOW).ok()?;
        let client = Client {
            port,
            addr,
            opened: None,
            dialogue: Dialogue::new(),
            has_finished: false,
            is_gone: false,
        };
        self.clients.insert(no, client);
        self.introduce(no);
        Some(no)
    }

    /// Tells the server of a session, if the server is there.
    fn introduce(&mut self, no: SessionNo) {
        if let (Standing::Up(life), Some(client)) = (self.standing, self.clients.get_mut(&no)) {
            client.opened = Some(life);
            Frame::Open(Open { no, port: client.port, client: client.addr }).put(&mut self.control);
        }
    }

    /// A client has sent these bytes.
    pub fn from_client(&mut self, no: SessionNo, bytes: Bytes) {
        let Some(client) = self.clients.get_mut(&no) else { return };
        client.dialogue.asked(&bytes);
        self.streams.send(no, bytes.into());
        self.answer_cancel(no);
        self.choose_urgent();
    }

    /// When memory is short, chooses the client whose unfinished request is the longest: it goes on first.
    fn choose_urgent(&mut self) {
        let kept = |no| self.streams.get(no).map_or(0, Stream::kept);
        let is_long =
            |(no, client): &(&SessionNo, &Client)| kept(**no) >= ALWAYS && client.dialogue.is_amid();
        let (before, was_short) = (self.urgent, self.is_short);
        self.is_short = self.memory() >= self.most;
        if !self.is_short {
            self.urgent = None;
        } else if !before.and_then(|no| self.clients.get_key_value(&no)).is_some_and(|it| is_long(&it)) {
            let long = self.clients.iter().filter(is_long);
            self.urgent = long.max_by_key(|(no, _)| kept(**no)).map(|(&no, _)| no);
        }
        self.is_relieved |= self.urgent != before || (was_short && !self.is_short);
    }

    /// Whether clients that had no room may have some, since the last call.
    pub fn take_relief(&mut self) -> bool {
        std::mem::take(&mut self.is_relieved)
    }

    /// While the server does not answer, a client that cancels a wait gets its answer from the relay.
    fn answer_cancel(&mut self, no: SessionNo) {
        if !matches!(self.standing, Standing::Up(_))
            && self.clients.get_mut(&no).is_some_and(|client| client.dialogue.cancels_alone())
        {
            self.events.push_back(RelayEvent::Reply(no, Bytes::from_static(CANCELLED)));
        }
    }

    /// How many more bytes may be read from a client now.
    pub fn room(&self, no: SessionNo) -> usize {
        let Some(stream) = self.streams.get(no) else { return 0 };
        let window = WINDOW.saturating_sub(stream.unsent());
        if self.memory() < self.most || self.urgent == Some(no) {
            return window;
        }
        ALWAYS.saturating_sub(stream.kept()).min(window)
    }

    /// Bytes of memory for requests that the server has not acknowledged.
    pub fn memory(&self) -> usize {
        self.streams.memory().saturating_add(self.parked_bytes)
    }

    /// A client has received this many bytes of its replies.
    pub fn delivered(&mut self, no: SessionNo, bytes: usize) {
        // Answers that the relay made itself are not from the server's stream.
        let owed = self.streams.get(no).map_or(0, Stream::owed);
        let bytes = bytes.min(owed);
        self.streams.room(no, bytes, false);
        self.streams.done(no, bytes);
    }

    /// A client will send nothing more. It gets the replies to its requests, and then
    /// [`SessionLost::Finished`].
    pub fn finish(&mut self, no: SessionNo) {
        if let Some(client) = self.clients.get_mut(&no)
            && !std::mem::replace(&mut client.has_finished, true)
        {
            self.closing.insert(no, false);
        }
    }

    /// A client has left. Its requests are still brought to the server.
    pub fn close(&mut self, no: SessionNo) {
        let Some(client) = self.clients.get_mut(&no) else { return };
        client.is_gone = true;
        if client.opened.is_some() {
            return self.finish(no);
        }
        let kept = self.streams.to_restore(no).map(|(_, _, kept)| kept.cloned().collect::<Vec<_>>());
        let Some(client) = self.forget(no) else { return };
        if let Some(said) = kept.filter(|said| !said.is_empty()) {
            self.park(Parked { no, client, said });
        }
    }

    /// Makes room for a new client: closes a client that sends nothing any more and that no server knows,
    /// because most such clients have left. Its requests are still brought to the server. `false` if there is
    /// none.
    pub fn make_place(&mut self) -> bool {
        let is_idle = |client: &Client| client.has_finished && !client.is_gone && client.opened.is_none();
        let Some(no) = self.clients.iter().find(|(_, it)| is_idle(it)).map(|(&no, _)| no) else {
            return false;
        };
        self.events.push_back(RelayEvent::Lost(no, SessionLost::Finished));
        self.close(no);
        true
    }

    /// Keeps the requests of a client that has left. If there is no room, the oldest kept client is dropped.
    fn park(&mut self, parked: Parked) {
        self.parked_bytes = self.parked_bytes.saturating_add(parked.memory());
        self.parked.push_back(parked);
        while self.parked.len() > MOST_PARKED || self.memory() > self.most {
            let Some(first) = self.take_parked() else { return };
            self.events.push_back(RelayEvent::Unheard(first.client.addr));
        }
    }

    fn take_parked(&mut self) -> Option<Parked> {
        let first = self.parked.pop_front()?;
        self.parked_bytes = self.parked_bytes.saturating_sub(first.memory());
        Some(first)
    }

    /// Brings the requests of clients that have left to the server.
    fn bring_parked(&mut self) {
        while self.is_up() && self.closing.len() < BROUGHT_AT_ONCE && self.clients.len() < MAX_SESSIONS {
            let Some(Parked { no, client, said }) = self.take_parked() else { return };
            if self.streams.open(no, self.first, WINDOW).is_err() {
                return;
            }
            self.clients.insert(no, client);
            self.introduce(no);
            for bytes in said {
                self.streams.send(no, bytes.into());
            }
            // The server may have been told so before.
            self.closing.insert(no, false);
        }
    }

    fn forget(&mut self, no: SessionNo) -> Option<Client> {
        self.streams.close(no);
        self.closing.remove(&no);
        self.clients.remove(&no)
    }

    /// The number of present clients.
    pub fn clients(&self) -> usize {
        self.clients.len().saturating_sub(self.closing.len())
    }

    /// Whether the server has accepted the relay.
    pub fn is_up(&self) -> bool {
        matches!(self.standing, Standing::Up(_))
    }

    /// There is a new connection to the server.
    pub fn connected(&mut self, now: Timestamp) {
        self.lost();
        self.standing = Standing::Greeting;
        self.pulse = Pulse::at(now);
        let told = self.clients.iter().filter(|(_, client)| client.opened.is_some());
        let sessions = told.filter_map(|(&no, _)| self.streams.point(no)).collect();
        self.connections = self.connections.saturating_add(1);
        let (identity, connection) = (self.identity.clone(), self.connections);
        Frame::Hello(Hello { identity, connection, small_first: true, sessions }).put(&mut self.control);
    }

    /// The connection is lost.
    pub fn lost(&mut self) {
        self.standing = Standing::Away;
        self.control.clear();
        self.streams.lost();
        self.closing.values_mut().for_each(|told| *told = false);
        for no in self.clients.keys().copied().collect::<Vec<_>>() {
            self.answer_cancel(no);
        }
    }

    /// The relay ends, and tells the server so.
    pub fn goodbye(&mut self) {
        if self.standing != Standing::Away {
            Frame::Bye.put(&mut self.control);
        }
    }

    /// Takes the frames that have arrived. After an error the connection is of no use.
    pub fn receive(&mut self, input: &mut BytesMut, now: Timestamp) -> Result<(), LinkError> {
        while let Some(frame) = Frame::take(input)? {
            self.pulse.heard = now;
            self.on_frame(frame)?;
        }
        self.bring_parked();
        self.choose_urgent();
        Ok(())
    }

    fn on_frame(&mut self, frame: Frame) -> Result<(), LinkError> {
        match (self.standing, frame) {
            (Standing::Greeting, Frame::Welcome(welcome)) => self.on_welcome(&welcome),
            (_, Frame::Refuse(refuse)) => {
                self.events.push_back(RelayEvent::Refused(refuse));
                Ok(())
            }
            (_, Frame::Ping) => Ok(()),
            (Standing::Up(_), Frame::Data { sessions, bytes }) => {
                sessions.into_iter().try_for_each(|no| self.on_reply(no, &bytes))
            }
            (Standing::Up(_), Frame::Done(amounts)) => self.streams.on_done(&amounts, false),
            (Standing::Up(_), Frame::Room(amounts)) => {
                self.streams.on_room(&amounts);
                Ok(())
            }
            (Standing::Up(_), Frame::End(end)) => {
                if let Some(client) = self.forget(end.no).filter(|client| !client.is_gone) {
                    let why = if client.has_finished {
                        SessionLost::Finished
                    } else {
                        SessionLost::Ended(end.reason)
                    };
                    self.events.push_back(RelayEvent::Lost(end.no, why));
                }
                Frame::Forgotten(end.no).put(&mut self.control);
                Ok(())
            }
            _ => Err(LinkError::Unexpected("from a server")),
        }
    }

    fn on_reply(&mut self, no: SessionNo, bytes: &Bytes) -> Result<(), LinkError> {
        // The client may have left in the meantime.
        let Some(client) = self.clients.get_mut(&no) else { return Ok(()) };
        self.streams.receive(no, bytes.len())?;
        if client.is_gone {
            self.streams.room(no, bytes.len(), false);
            self.streams.done(no, bytes.len());
            return Ok(());
        }
        let mut for_client = 0_usize;
        client.dialogue.answered(bytes, |bytes| {
            for_client = for_client.saturating_add(bytes.len());
            self.events.push_back(RelayEvent::Reply(no, bytes));
        });
        let kept_here = bytes.len().saturating_sub(for_client);
        self.streams.room(no, kept_here, false);
        self.streams.done(no, kept_here);
        Ok(())
    }

    fn on_welcome(&mut self, welcome: &Welcome) -> Result<(), LinkError> {
        (self.standing, self.first) = (Standing::Up(welcome.life), welcome.first);
        let known: BTreeMap<_, _> = welcome.sessions.iter().map(|point| (point.no, point)).collect();
        let nos: Vec<_> = self.clients.keys().copied().collect();
        // Clients that have left came before the present ones.
        self.bring_parked();
        for no in nos {
            if let Some(point) = known.get(&no) {
                if self.streams.go_on_from(point).is_err() {
                    // The server's journal is older than what the server had said.
                    Frame::Forgotten(no).put(&mut self.control);
                    self.lose(no, SessionLost::Forgotten);
                } else if let Some(client) = self.clients.get_mut(&no) {
                    client.opened = Some(welcome.life);
                }
                continue;
            }
            let Some(client) = self.clients.get(&no) else { continue };
            let may_have_been_heard = self.streams.get(no).is_some_and(Stream::has_sent);
            // Either the server still has this relay's sessions and has never heard of this one, or none of
            // its requests was applied.
            let is_unheard = welcome.resumed
                && client.opened == Some(welcome.life)
                && self.streams.get(no).is_some_and(Stream::is_untouched);
            if !may_have_been_heard || is_unheard {
                self.streams.start_anew(no, self.first)?;
                self.introduce(no);
                continue;
            }
            // A server that gives up a link gives up all its sessions.
            let lost = if client.opened == Some(welcome.life) && !welcome.resumed {
                SessionLost::AwayTooLong
            } else {
                SessionLost::Forgotten
            };
            self.lose(no, lost);
        }
        self.events.push_back(RelayEvent::Up);
        Ok(())
    }

    /// A session cannot continue.
    fn lose(&mut self, no: SessionNo, why: SessionLost) {
        if self.forget(no).is_some_and(|client| !client.is_gone) {
            self.events.push_back(RelayEvent::Lost(no, why));
        }
    }

    /// The next thing that the shell has to do.
    pub fn next_event(&mut self) -> Option<RelayEvent> {
        self.events.pop_front()
    }

    /// Whether there are frames to send now.
    pub fn has_frames(&self) -> bool {
        !self.control.is_empty()
            || (self.is_up() && (self.streams.has_something() || self.closings().next().is_some()))
    }

    /// Sessions whose clients have finished, with nothing left to send, and of which the server is not told
    /// yet.
    fn closings(&self) -> impl Iterator<Item = SessionNo> {
        let is_out = |no| self.streams.get(no).is_none_or(|stream| stream.unsent() == 0);
        self.closing.iter().filter(|&(_, told)| !told).map(|(&no, _)| no).filter(move |&no| is_out(no))
    }

    /// Appends frames to send, until `out` has about `enough` bytes.
    pub fn put_frames(&mut self, out: &mut BytesMut, enough: usize, now: Timestamp) {
        let before = out.len();
        out.extend_from_slice(&self.control);
        self.control.clear();
        if self.is_up() {
            self.streams.put_frames(out, enough);
            for no in self.closings().collect::<Vec<_>>() {
                Frame::Close(no).put(out);
                self.closing.insert(no, true);
            }
        }
        if out.len() > before {
            self.pulse.said = now;
        }
    }

    /// Called now and then while there is a connection. Sends a sign of life when needed, and fails if the
    /// other end is silent.
    pub fn tick(&mut self, now: Timestamp) -> Result<(), LinkError> {
        if self.pulse.needs_ping(now)? {
            Frame::Ping.put(&mut self.control);
        }
        Ok(())
    }
}

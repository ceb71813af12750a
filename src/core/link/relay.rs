//! The relay's end of a link.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};

use super::dialogue::{CANCELLED, Dialogue};
use super::frame::{Frame, Refuse};
use super::pulse::Pulse;
use super::stream::{Stream, Streams};
use super::{Hello, Identity, LinkError, MAX_SESSIONS, Open, ServerLife, SessionNo, WINDOW, Welcome};
use crate::core::ids::Timestamp;

/// A client may always send so much, however little memory there is.
const ALWAYS: usize = 4 * 1024;
/// Clients that left before any server heard of them: so many are kept, and so many are brought at the same time.
const MOST_PARKED: usize = 4 * MAX_SESSIONS;
const BROUGHT_AT_ONCE: usize = 64;
/// What such a client takes in memory beside what it said.
const PARKED: usize = 256;

/// What the shell has to do.
#[derive(Debug, PartialEq, Eq)]
pub enum RelayEvent {
    /// These bytes are for a client. The shell says [`RelayEnd::delivered`] when the client has them.
    Reply(SessionNo, Bytes),
    /// A client's connection is to be closed, once it has its bytes.
    Lost(SessionNo, SessionLost),
    /// The server has taken the relay: everything goes on.
    Up,
    /// The server does not take the relay.
    Refused(Refuse),
    /// A client left while the server was away, and there is no room for what it said last.
    Unheard(SocketAddr),
}

/// Why a client is closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionLost {
    /// The client has sent everything, and has all its replies.
    #[error("its client has gone")]
    Finished,
    /// The server ended it.
    #[error("the server ended it: {0}")]
    Ended(String),
    /// The server of before is gone, and the next one does not have the client. It does not say why.
    #[error(
        "the server was restarted and does not have its clients any more (it has no journal, could not write it, or the \
         link was away for longer than --link-grace)"
    )]
    Forgotten,
    /// It reads nothing, and what waits for it takes too much memory.
    #[error("it does not read its replies, and the relay has no memory for more of them (--max-memory)")]
    NotRead,
    /// The link was away for longer than the server waits. A server that was restarted with a journal from before the
    /// link says the same.
    #[error(
        "the link was away for longer than the server waits for it (--link-grace), or the server was restarted and could \
         not write its journal before"
    )]
    AwayTooLong,
}

/// What the relay knows of one client.
#[derive(Debug)]
struct Client {
    port: u16,
    addr: SocketAddr,
    /// The last server that knew of it.
    opened: Option<ServerLife>,
    dialogue: Dialogue,
    /// The client sends nothing any more. The session stays until the server has all that it sent.
    has_finished: bool,
    /// The client takes nothing any more either.
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
    /// Connected; the server has not answered the hello.
    Greeting,
    Up(ServerLife),
}

/// The relay's end: sessions that outlive their connections.
#[derive(Debug)]
pub struct RelayEnd {
    identity: Identity,
    standing: Standing,
    clients: BTreeMap<SessionNo, Client>,
    streams: Streams,
    /// Sessions whose clients send nothing any more, and whether the server was told so on this connection.
    closing: BTreeMap<SessionNo, bool>,
    /// They take no place of a client that is there, and are brought to the server one after the other.
    parked: VecDeque<Parked>,
    parked_bytes: usize,
    /// Bytes that all requests may take which the server is not done with.
    most: usize,
    /// While they take that much, this client alone goes on with a long request: so each comes to its end.
    urgent: Option<SessionNo>,
    is_short: bool,
    /// Clients that had no room may have some now.
    is_relieved: bool,
    /// Bytes that may be sent of a new session.
    first: usize,
    next_no: u32,
    /// How many connections there were.
    connections: u64,
    /// Frames that come before the streams' own.
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

    /// The relay may take so much memory for requests, and one long request more.
    #[must_use]
    pub fn within(self, most: usize) -> Self {
        Self { most, ..self }
    }

    /// A client has come that wants the store on `port`. `None` if there are as many as there may be.
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

    /// Tells the server of a session, if it is there.
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

    /// Where memory is short: the client whose request has come the farthest goes on first.
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

    /// Whether clients that had no room may have some since the last call.
    pub fn take_relief(&mut self) -> bool {
        std::mem::take(&mut self.is_relieved)
    }

    /// While the server does not answer, a client that gives up a wait gets its answer here.
    fn answer_cancel(&mut self, no: SessionNo) {
        if !matches!(self.standing, Standing::Up(_))
            && self.clients.get_mut(&no).is_some_and(|client| client.dialogue.cancels_alone())
        {
            self.events.push_back(RelayEvent::Reply(no, Bytes::from_static(CANCELLED)));
        }
    }

    /// How many bytes more may be read from a client now.
    pub fn room(&self, no: SessionNo) -> usize {
        let Some(stream) = self.streams.get(no) else { return 0 };
        let window = WINDOW.saturating_sub(stream.unsent());
        if self.memory() < self.most || self.urgent == Some(no) {
            return window;
        }
        ALWAYS.saturating_sub(stream.kept()).min(window)
    }

    /// Bytes of memory for requests that the other end is not done with.
    pub fn memory(&self) -> usize {
        self.streams.memory().saturating_add(self.parked_bytes)
    }

    /// A client has taken bytes of its replies.
    pub fn delivered(&mut self, no: SessionNo, bytes: usize) {
        // Answers that were given here are not the server's.
        let owed = self.streams.get(no).map_or(0, Stream::owed);
        let bytes = bytes.min(owed);
        self.streams.room(no, bytes, false);
        self.streams.done(no, bytes);
    }

    /// A client will send nothing more. It gets the replies to what it has sent, and then [`SessionLost::Finished`].
    pub fn finish(&mut self, no: SessionNo) {
        if let Some(client) = self.clients.get_mut(&no)
            && !std::mem::replace(&mut client.has_finished, true)
        {
            self.closing.insert(no, false);
        }
    }

    /// A client has gone. What it has sent is still brought to the server.
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

    /// A client that sends nothing any more, and of which no server has heard, gives its place to another: most have left.
    /// What it said is still brought to the server. `false` if there is none.
    pub fn make_place(&mut self) -> bool {
        let is_idle = |client: &Client| client.has_finished && !client.is_gone && client.opened.is_none();
        let Some(no) = self.clients.iter().find(|(_, it)| is_idle(it)).map(|(&no, _)| no) else {
            return false;
        };
        self.events.push_back(RelayEvent::Lost(no, SessionLost::Finished));
        self.close(no);
        true
    }

    /// Keeps what a client said that has left. Where there is no room for it, what was kept first is lost.
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

    /// Brings the server what clients said that have left.
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
            // It may have said so before.
            self.closing.insert(no, false);
        }
    }

    fn forget(&mut self, no: SessionNo) -> Option<Client> {
        self.streams.close(no);
        self.closing.remove(&no);
        self.clients.remove(&no)
    }

    /// How many clients there are.
    pub fn clients(&self) -> usize {
        self.clients.len().saturating_sub(self.closing.len())
    }

    /// Whether the server has taken the relay.
    pub fn is_up(&self) -> bool {
        matches!(self.standing, Standing::Up(_))
    }

    /// There is a new connection.
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

    /// The connection is gone.
    pub fn lost(&mut self) {
        self.standing = Standing::Away;
        self.control.clear();
        self.streams.lost();
        self.closing.values_mut().for_each(|told| *told = false);
        for no in self.clients.keys().copied().collect::<Vec<_>>() {
            self.answer_cancel(no);
        }
    }

    /// The relay goes: the server is told so.
    pub fn goodbye(&mut self) {
        if self.standing != Standing::Away {
            Frame::Bye.put(&mut self.control);
        }
    }

    /// Takes the frames that have come. After an error the connection is of no use.
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
                Frame::Close(end.no).put(&mut self.control);
                Ok(())
            }
            _ => Err(LinkError::Unexpected("from a server")),
        }
    }

    fn on_reply(&mut self, no: SessionNo, bytes: &Bytes) -> Result<(), LinkError> {
        // A client that has gone meanwhile.
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
        // They left before others came who are here.
        self.bring_parked();
        for no in nos {
            if let Some(point) = known.get(&no) {
                if self.streams.go_on_from(point).is_err() {
                    // A server whose journal is older than what it has said.
                    Frame::Close(no).put(&mut self.control);
                    self.lose(no, SessionLost::Forgotten);
                } else if let Some(client) = self.clients.get_mut(&no) {
                    client.opened = Some(welcome.life);
                }
                continue;
            }
            let Some(client) = self.clients.get(&no) else { continue };
            let may_have_been_heard = self.streams.get(no).is_some_and(Stream::has_sent);
            // A server that still has this relay's sessions has never heard of this one, or nothing of it was applied.
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

    /// A session cannot go on.
    fn lose(&mut self, no: SessionNo, why: SessionLost) {
        if self.forget(no).is_some_and(|client| !client.is_gone) {
            self.events.push_back(RelayEvent::Lost(no, why));
        }
    }

    /// What the shell has to do next.
    pub fn next_event(&mut self) -> Option<RelayEvent> {
        self.events.pop_front()
    }

    /// Whether there are frames that should go out now.
    pub fn has_frames(&self) -> bool {
        !self.control.is_empty()
            || (self.is_up() && (self.streams.has_something() || self.closings().next().is_some()))
    }

    /// Sessions whose clients have gone and have nothing left to send, of which the server is to be told.
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

    /// Called now and then, while there is a connection: says that this end is there, and notices when the other is not.
    pub fn tick(&mut self, now: Timestamp) -> Result<(), LinkError> {
        if self.pulse.needs_ping(now)? {
            Frame::Ping.put(&mut self.control);
        }
        Ok(())
    }
}

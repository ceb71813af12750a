//! The relay's end of a link.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};

use super::dialogue::{CANCELLED, Dialogue};
use super::frame::{Frame, Refuse};
use super::pulse::Pulse;
use super::stream::{Stream, Streams};
use super::{Hello, Identity, LinkError, Open, ServerLife, SessionNo, WINDOW, Welcome};
use crate::core::ids::Timestamp;

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
            next_no: 0,
            connections: 0,
            control: BytesMut::new(),
            events: VecDeque::new(),
            pulse: Pulse::default(),
        }
    }

    /// A client has come that wants the store on `port`. `None` if there are as many as there may be.
    pub fn open(&mut self, port: u16, addr: SocketAddr) -> Option<SessionNo> {
        let no = SessionNo(self.next_no);
        self.next_no = self.next_no.checked_add(1)?;
        self.streams.open(no).ok()?;
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
        self.streams.send(no, bytes);
        self.answer_cancel(no);
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
        self.streams.get(no).map_or(0, |stream| WINDOW.saturating_sub(stream.unsent()))
    }

    /// Bytes of memory for requests that the other end is not done with.
    pub fn memory(&self) -> usize {
        self.streams.memory()
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
        let is_known =
            client.opened.is_some() || self.streams.get(no).is_some_and(|stream| stream.kept() > 0);
        self.finish(no);
        if !is_known {
            self.forget(no);
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
        Frame::Hello(Hello { identity, connection, sessions }).put(&mut self.control);
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
        self.standing = Standing::Up(welcome.life);
        let known: BTreeMap<_, _> = welcome.sessions.iter().map(|point| (point.no, point)).collect();
        let nos: Vec<_> = self.clients.keys().copied().collect();
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
                self.streams.start_anew(no)?;
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

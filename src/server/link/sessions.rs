//! The clients of one relay: each has a conversation with its store, as a client with a connection of its own has.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

use bytes::{Bytes, BytesMut};
use tokio::sync::Notify;

use crate::core::ids::Timestamp;
use crate::core::journal::{
    LinkId, Reached, Row, SessionId, SessionImage, SessionRow, SessionState, StoreId,
};
use crate::core::link::{
    BeforeBreak, FIRST_STORE, Hello, LinkError, Open, ServerEnd, ServerEvent, SessionNo, WINDOW,
};
use crate::core::protocol::{Decoder, Dialect, ReplyBuffer};
use crate::server::clock::Clock;
use crate::server::engine::{Reservation, Session};
use crate::server::stores::StoreHost;
use crate::server::tcp::{Conversation, End, Linked};
use crate::tokens::Runs;

/// What a session takes in memory by itself.
const SESSION_BYTES: usize = 1024;

/// Sessions that something has happened to.
#[derive(Debug, Default)]
pub(in crate::server) struct Woken {
    nos: Mutex<Vec<SessionNo>>,
    pub(in crate::server) notify: Notify,
}

/// Wakes one session.
struct SessionWaker {
    no: SessionNo,
    woken: Arc<Woken>,
}

impl Wake for SessionWaker {
    fn wake(self: Arc<Self>) {
        self.woken.nos.lock().unwrap_or_else(PoisonError::into_inner).push(self.no);
        self.woken.notify.notify_one();
    }
}

struct LinkSession {
    conversation: Conversation,
    linked: Linked,
    waker: Waker,
    is_closed: Arc<AtomicBool>,
    /// Received bytes that are not applied yet.
    input: BytesMut,
    /// Bytes that have come and for which the relay got no new room yet.
    taken: usize,
    /// When something of an unfinished request came last.
    progressed: Timestamp,
    /// Bytes that are applied, of which the relay is not told: a WAIT that is outstanding, and what came behind it.
    held: usize,
}

/// The clients of one relay.
pub(super) struct LinkSessions {
    /// Its number in the journal.
    id: LinkId,
    end: ServerEnd,
    relay: IpAddr,
    /// The runs that the relay's token is for; all without.
    runs: Option<Runs>,
    stores: Arc<StoreHost>,
    clock: Clock,
    /// In boxes, as the map has room for more of them than most links have.
    sessions: BTreeMap<SessionNo, Box<LinkSession>>,
    /// Those with requests that had to wait: for room for replies, or for the turn of others.
    stalled: BTreeSet<SessionNo>,
    /// Those whose relay may send more once there is memory.
    starved: BTreeSet<SessionNo>,
    /// Bytes of all inputs.
    input: usize,
    woken: Arc<Woken>,
    replies: ReplyBuffer,
    reservation: Reservation,
    is_over: bool,
}

impl std::fmt::Debug for LinkSessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LinkSessions").field("end", &self.end).finish_non_exhaustive()
    }
}

impl LinkSessions {
    pub(super) fn new(
        id: LinkId,
        end: ServerEnd,
        relay: IpAddr,
        stores: Arc<StoreHost>,
        clock: Clock,
    ) -> Self {
        let reservation = stores.budget().reservation();
        Self {
            id,
            end,
            relay,
            runs: None,
            stores,
            clock,
            sessions: BTreeMap::new(),
            stalled: BTreeSet::new(),
            starved: BTreeSet::new(),
            input: 0,
            woken: Arc::default(),
            replies: ReplyBuffer::default(),
            reservation,
            is_over: false,
        }
    }

    fn session_id(&self, SessionNo(no): SessionNo) -> SessionId {
        SessionId { link: self.id, no }
    }

    /// A session that the last server had goes on, or is over with a reason.
    pub(super) fn restore(&mut self, no: SessionNo, image: &SessionImage) {
        let Reached { applied, dialect, .. } = image.reached;
        let (acknowledged, replies) = image.unacknowledged();
        self.end.restore(no, BeforeBreak { applied, acknowledged, replies });
        let resumed = match &image.state {
            Some(SessionState::Open { store, client, .. }) => {
                let client = std::str::from_utf8(client).ok().and_then(|text| text.parse().ok());
                client.and_then(|client| self.resume(no, *store, client, Dialect::from_number(dialect)?))
            }
            _ => None,
        };
        let Some(mut session) = resumed else {
            let why = if !image.reached.can_go_on() {
                "its client had sent more while it waited, or had got a part of a list of keys: it cannot go on after the restart \
                 of the server"
            } else {
                "it ended before the server was restarted; the log of the server says why"
            };
            self.end.end(no, why.into());
            return self
                .keep_rows(|out| Row::Session(self.session_id(no), Some(SessionRow::Over)).encode(out));
        };
        session.conversation.greeted = applied > 0;
        self.sessions.insert(no, Box::new(session));
        self.count_memory();
    }

    fn resume(
        &self,
        no: SessionNo,
        store: StoreId,
        client: SocketAddr,
        dialect: Dialect,
    ) -> Option<LinkSession> {
        let listener = self.stores.listener_kept_as(store)?;
        let (is_closed, waker) = self.waker_of(no);
        let id = self.session_id(no);
        let (session, linked) = listener.resume_linked(client, id, Arc::clone(&is_closed), waker.clone())?;
        Some(self.new_session(session, linked, waker, is_closed, dialect))
    }

    fn waker_of(&self, no: SessionNo) -> (Arc<AtomicBool>, Waker) {
        let waker = SessionWaker { no, woken: Arc::clone(&self.woken) };
        (Arc::default(), Waker::from(Arc::new(waker)))
    }

    fn new_session(
        &self,
        session: Session,
        linked: Linked,
        waker: Waker,
        is_closed: Arc<AtomicBool>,
        dialect: Dialect,
    ) -> LinkSession {
        let config = self.stores.config();
        let decoder = Decoder::resume(config.limits, config.legacy_dialect, dialect);
        LinkSession {
            conversation: Conversation::linked(session, decoder, self.stores.journal().is_some()),
            linked,
            waker,
            is_closed,
            input: BytesMut::new(),
            taken: 0,
            progressed: self.clock.now(),
            held: 0,
        }
    }

    /// Writes rows that no change of a store makes.
    fn keep_rows(&self, put: impl FnOnce(&mut Vec<u8>)) {
        if let Some(journal) = self.stores.journal() {
            journal.commit(put);
        }
    }

    /// Where the relay came from last.
    pub(super) fn relay(&self) -> IpAddr {
        self.relay
    }

    /// The relay comes from another address. Clients that are here keep theirs.
    pub(super) fn moved_to(&mut self, relay: IpAddr) {
        self.relay = relay;
    }

    /// The runs that its clients are for.
    pub(super) fn runs(&self) -> Option<&Runs> {
        self.runs.as_ref()
    }

    /// The relay's token is for these runs: clients of others end.
    pub(super) fn are_for(&mut self, runs: Option<&Runs>) {
        self.runs = runs.cloned();
        let is_other = |session: &LinkSession| !self.is_for(session.linked.port());
        let others: Vec<_> =
            self.sessions.iter().filter(|(_, session)| is_other(session)).map(|(&no, _)| no).collect();
        for no in others {
            self.end_session(no, &End::StoreClosed);
        }
    }

    /// Whether clients may use the store on `port`. One that is no run's holds keys of all.
    fn is_for(&self, port: u16) -> bool {
        let Some(runs) = &self.runs else { return true };
        self.stores.run_of(port).is_some_and(|run_id| runs.has(&run_id))
    }

    /// The server's first store; for a relay that is there for some runs only, one that these runs have for themselves.
    fn first_port(&self) -> Result<u16, String> {
        match &self.runs {
            None => self.stores.first_port().ok_or_else(|| "the server has no store".into()),
            Some(runs) => {
                let own = self.stores.store_for_run(runs.pattern());
                own.map(|store| store.port).map_err(|error| error.to_string())
            }
        }
    }

    /// Writes again what the journal knows of a session by this link, beside what the store says.
    pub(super) fn copy(&self, no: SessionNo) {
        let Some(BeforeBreak { applied, acknowledged, replies }) = self.end.to_restore(no) else { return };
        let id = self.session_id(no);
        // Its store says nothing more of one that is over.
        let is_over = !self.sessions.contains_key(&no);
        self.keep_rows(|out| {
            let mut replied = acknowledged;
            for piece in replies {
                Row::Reply(id, replied, piece).encode(out);
                replied = replied.saturating_add(piece.len() as u64);
            }
            if is_over {
                Row::Session(id, Some(SessionRow::Over)).encode(out);
                let reached = Reached { applied, replied, acknowledged, ..Reached::default() };
                Row::Reached(id, reached).encode(out);
            }
        });
    }

    pub(super) fn end(&self) -> &ServerEnd {
        &self.end
    }

    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }

    pub(super) fn woken(&self) -> Arc<Woken> {
        Arc::clone(&self.woken)
    }

    /// The relay has said that it goes.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    pub(super) fn connected(&mut self, hello: &Hello, known: bool, now: Timestamp) -> Result<(), LinkError> {
        self.sessions.values_mut().for_each(|session| session.progressed = now);
        let connected = self.end.connected(hello, known, now);
        self.woken.notify.notify_one();
        connected
    }

    pub(super) fn lost(&mut self, now: Timestamp) {
        self.end.lost(now);
    }

    pub(super) fn tick(&mut self) -> Result<(), LinkError> {
        let now = self.clock.now();
        for no in std::mem::take(&mut self.starved) {
            self.give_room(no);
        }
        let timeout = self.stores.config().request_timeout;
        let is_late = |session: &LinkSession| {
            !session.input.is_empty() && session.taken == 0 && now.since(session.progressed) > timeout
        };
        let late: Vec<_> =
            self.sessions.iter().filter(|(_, session)| is_late(session)).map(|(&no, _)| no).collect();
        for no in late {
            self.end_session(no, &End::RequestTimeout(timeout));
        }
        self.end.tick(now)
    }

    /// The link was away for too long: says so of each client, before it goes. Returns how many there are.
    pub(super) fn cut_off(&self, link: &str) -> usize {
        self.sessions.values().for_each(|session| session.conversation.cut_off(Some(link)));
        self.sessions.len()
    }

    /// The relay is gone for good.
    pub(super) fn end_all(&mut self) {
        self.sessions.clear();
        self.reservation.set(0);
        self.woken.notify.notify_one();
    }

    /// Takes what has come and does what there is to do. Returns whether there is more to do at once.
    pub(super) fn work(&mut self, input: &mut BytesMut) -> Result<bool, LinkError> {
        let received = self.end.receive(input, self.clock.now());
        while let Some(event) = self.end.next_event() {
            match event {
                ServerEvent::Open(open) => self.open(open),
                ServerEvent::Request(no, bytes) => self.request(no, &bytes),
                ServerEvent::Close(no) => {
                    if let Some(session) = self.remove(no) {
                        session.linked.ended(session.conversation.greeted, &End::Closed);
                    }
                }
                ServerEvent::Forgotten(no) => {
                    self.keep_rows(|out| Row::Session(self.session_id(no), None).encode(out));
                }
                ServerEvent::Bye => self.is_over = true,
            }
        }
        let woken = std::mem::take(&mut *self.woken.nos.lock().unwrap_or_else(PoisonError::into_inner));
        for no in woken {
            self.wake(no);
        }
        for no in std::mem::take(&mut self.stalled) {
            self.go_on(no);
        }
        self.replies.rest();
        self.count_memory();
        received?;
        let has_turn = |no: &SessionNo| self.end.unread(*no) <= WINDOW;
        Ok(self.stalled.iter().any(has_turn))
    }

    pub(super) fn put_frames(&mut self, out: &mut BytesMut, enough: usize) {
        self.end.put_frames(out, enough, self.clock.now());
    }

    pub(super) fn has_frames(&self) -> bool {
        self.end.has_frames()
    }

    fn count_memory(&mut self) {
        let sessions = self.sessions.len().saturating_mul(SESSION_BYTES);
        self.reservation.set(self.end.memory().saturating_add(self.input).saturating_add(sessions));
    }

    fn open(&mut self, open: Open) {
        let Open { no, port, client } = open;
        // The relay's own address, as the server sees it: clients on loopback are there.
        let client = SocketAddr::new(self.relay, client.port());
        let port = match if port == FIRST_STORE { self.first_port() } else { Ok(port) } {
            Ok(port) => port,
            Err(why) => return self.end.end(no, why),
        };
        let Some(listener) = self.stores.listener(port) else {
            return self.end.end(no, format!("no store listens on port {port}"));
        };
        if let Some(runs) = self.runs.as_ref().filter(|_| !self.is_for(port)) {
            let why = format!(
                "the store on port {port} is not of a run that this relay's token is for (`{}`)",
                runs.pattern()
            );
            return self.end.end(no, why);
        }
        if self.stores.budget().room() < SESSION_BYTES {
            return self.end.end(no, "the server has no memory for another client (--max-memory)".into());
        }
        let (is_closed, waker) = self.waker_of(no);
        let id = self.session_id(no);
        let Some((session, linked)) =
            listener.admit_linked(client, id, Arc::clone(&is_closed), waker.clone())
        else {
            return self.end.end(no, "the server has as many clients as it may".into());
        };
        let session = self.new_session(session, linked, waker, is_closed, Dialect::Unknown);
        self.sessions.insert(no, Box::new(session));
    }

    /// A client has sent these bytes.
    fn request(&mut self, no: SessionNo, bytes: &Bytes) {
        let is_stalled = self.stalled.contains(&no);
        let now = self.clock.now();
        let Some(session) = self.sessions.get_mut(&no) else { return };
        session.taken = session.taken.saturating_add(bytes.len());
        session.progressed = now;
        if session.input.is_empty() && !is_stalled {
            let done = self.apply(no, bytes);
            self.keep(no, &bytes[done..]);
        } else {
            self.keep(no, bytes);
            // Looking at a request that is surely not whole would only cost time.
            let is_whole = |session: &LinkSession| session.input.len() >= session.conversation.need;
            if !is_stalled && self.sessions.get(&no).is_some_and(|session| is_whole(session)) {
                self.go_on(no);
            }
        }
        self.give_room(no);
    }

    fn keep(&mut self, no: SessionNo, bytes: &[u8]) {
        if let Some(session) = self.sessions.get_mut(&no) {
            session.input.extend_from_slice(bytes);
            self.input = self.input.saturating_add(bytes.len());
        }
    }

    /// Applies what has come of a session before.
    fn go_on(&mut self, no: SessionNo) {
        let Some(session) = self.sessions.get_mut(&no) else { return };
        if self.end.unread(no) > WINDOW {
            self.stalled.insert(no);
            return;
        }
        let mut input = std::mem::take(&mut session.input);
        let done = self.apply(no, &input);
        if let Some(session) = self.sessions.get_mut(&no) {
            self.input = self.input.saturating_sub(done);
            let _applied = input.split_to(done);
            session.input = if input.is_empty() { BytesMut::new() } else { input };
        } else {
            self.input = self.input.saturating_sub(input.len());
        }
        self.give_room(no);
    }

    /// The relay may send more of a session whose requests are not held up.
    fn give_room(&mut self, no: SessionNo) {
        let Some(session) = self.sessions.get_mut(&no) else { return };
        if !self.stalled.contains(&no) && self.stores.budget().room() > WINDOW {
            self.end.taken(no, std::mem::take(&mut session.taken));
        } else if session.taken > 0 && !self.stalled.contains(&no) {
            self.starved.insert(no);
        }
    }

    /// Applies the whole requests in `input` and returns the number of bytes they took.
    fn apply(&mut self, no: SessionNo, input: &[u8]) -> usize {
        let Some(session) = self.sessions.get_mut(&no) else { return 0 };
        let conversation = &mut session.conversation;
        let was_greeted = conversation.greeted;
        if let Some(side) = &mut conversation.side {
            side.acknowledged = self.end.acknowledged(no);
        }
        let done = conversation.apply(input, None, &mut self.replies, &session.waker);
        if conversation.greeted && !was_greeted {
            session.linked.greeted();
        }
        for bytes in self.replies.drain() {
            self.end.reply(no, bytes);
        }
        self.replies.shrink();
        session.held = session.held.saturating_add(done);
        // A hello by itself is in no commit yet.
        let is_committed = conversation.side.as_ref().is_none_or(|side| side.before == 0);
        if is_committed && !conversation.waiting {
            self.end.applied(no, std::mem::take(&mut session.held));
        }
        if conversation.more_to_apply {
            conversation.pausing = false;
            self.stalled.insert(no);
        } else if let Some(end) = conversation.ending.take() {
            self.end_session(no, &end);
        }
        done
    }

    /// Something has happened to a session: its wait is over, or its store was closed.
    fn wake(&mut self, no: SessionNo) {
        let Some(session) = self.sessions.get_mut(&no) else { return };
        if session.is_closed.load(Relaxed) {
            return self.end_session(no, &End::StoreClosed);
        }
        if session.conversation.waiting
            && session.conversation.poll_wake_up(&mut self.replies, &session.waker).is_ready()
        {
            self.end.applied(no, std::mem::take(&mut session.held));
            for bytes in self.replies.drain() {
                self.end.reply(no, bytes);
            }
        }
    }

    fn remove(&mut self, no: SessionNo) -> Option<Box<LinkSession>> {
        self.stalled.remove(&no);
        self.starved.remove(&no);
        let session = self.sessions.remove(&no)?;
        self.input = self.input.saturating_sub(session.input.len());
        Some(session)
    }

    fn end_session(&mut self, no: SessionNo, end: &End) {
        if let Some(session) = self.remove(no) {
            session.linked.ended(session.conversation.greeted, end);
            self.end.end(no, end.to_string());
        }
    }
}

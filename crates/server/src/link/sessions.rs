//! The clients of one relay. Each has a conversation with its store, like a client with its own connection.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::engine::{Reservation, Session};
use crate::stores::StoreHost;
use crate::tcp::{Conversation, End, Linked};
use rallypoint_access::tokens::Runs;
use rallypoint_journal::{LinkId, Reached, Row, SessionId, SessionImage, SessionRow, SessionState, StoreId};
use rallypoint_link::{
    BeforeBreak, FIRST_STORE, FIRST_WINDOW, Hello, LinkError, Open, ServerEnd, ServerEvent, SessionNo, WINDOW,
};
use rallypoint_protocol::ids::Timestamp;
use rallypoint_protocol::{Decoder, Dialect, ReplyBuffer};

/// The memory of a session without its buffers.
const SESSION_BYTES: usize = 1024;
/// The buffers that a session may always have, however little memory there is. A direct connection has the
/// same right.
const FREE: usize = 4 * 1024;
/// Work after which it is the turn of others: bytes of requests and replies. Each session counts as some more
/// bytes.
const TURN: usize = 256 * 1024;
const EACH: usize = 1024;
/// A request waits for memory this many times longer than a request may stand still.
const PATIENCE: u32 = 4;
/// A client that has taken or sent nothing for this long may be cut off when memory is short. A relay reports
/// within three seconds what its clients have taken.
const STANDS_STILL: Duration = Duration::from_secs(4);

/// Sessions with a new event.
#[derive(Debug, Default)]
pub struct Woken {
    nos: Mutex<Vec<SessionNo>>,
    pub notify: Notify,
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
    /// What its store takes for the client's address.
    client: SocketAddr,
    conversation: Conversation,
    linked: Linked,
    waker: Waker,
    is_closed: Arc<AtomicBool>,
    /// Received bytes that are not applied yet.
    input: BytesMut,
    /// When the last bytes of an unfinished request came.
    progressed: Timestamp,
    /// Bytes that the relay may send beyond [`ServerEnd::first_window`].
    promised: usize,
    /// Applied bytes that are not acknowledged to the relay yet: an outstanding WAIT, and requests behind it.
    held: usize,
    /// Its client has gone: it ends when what the client had asked for is done.
    has_left: bool,
}

/// The clients of one relay.
pub(super) struct LinkSessions {
    /// The link's number in the journal.
    id: LinkId,
    end: ServerEnd,
    relay: IpAddr,
    /// The runs of the relay's token; `None` means all.
    runs: Option<Runs>,
    stores: Arc<StoreHost>,
    clock: Clock,
    /// Boxed: the map allocates room for more sessions than most links have.
    sessions: BTreeMap<SessionNo, Box<LinkSession>>,
    /// Sessions whose requests wait for room for replies, or for their turn.
    stalled: BTreeSet<SessionNo>,
    /// Number of the session that goes first in the next round of `stalled`.
    next_stalled: SessionNo,
    /// Sessions whose relay may send the rest of a request once there is memory, and since when they wait.
    starved: BTreeMap<SessionNo, Timestamp>,
    /// The starved session that comes first, as long as there is any memory. So one request after another is
    /// finished.
    favourite: Option<SessionNo>,
    /// Sessions whose clients have not taken all replies: the position up to which they have, and since when
    /// it has not moved.
    unread: BTreeMap<SessionNo, (u64, Timestamp)>,
    /// Bytes of all inputs, and bytes for which room was promised.
    input: usize,
    promised: usize,
    /// Received bytes without a whole frame, and frames that have not left.
    line: usize,
    /// Work done in this turn, in bytes.
    worked: usize,
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
            next_stalled: SessionNo(0),
            starved: BTreeMap::new(),
            favourite: None,
            unread: BTreeMap::new(),
            input: 0,
            promised: 0,
            line: 0,
            worked: 0,
            woken: Arc::default(),
            replies: ReplyBuffer::default(),
            reservation,
            is_over: false,
        }
    }

    fn session_id(&self, SessionNo(no): SessionNo) -> SessionId {
        SessionId { link: self.id, no }
    }

    /// Continues a session of the last server, or ends it with a reason.
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
            let why = if image.reached.can_go_on() {
                "it ended before the server was restarted; the log of the server says why"
            } else {
                "its client had sent more while it waited, or had got a part of a list of keys: it cannot go \
                 on after the restart of the server"
            };
            self.end.end(no, why.into());
            // Replies that the relay lacks are kept for it.
            self.count_memory();
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
        Some(self.new_session(client, session, linked, waker, is_closed, dialect))
    }

    fn waker_of(&self, no: SessionNo) -> (Arc<AtomicBool>, Waker) {
        let waker = SessionWaker { no, woken: Arc::clone(&self.woken) };
        (Arc::default(), Waker::from(Arc::new(waker)))
    }

    fn new_session(
        &self,
        client: SocketAddr,
        session: Session,
        linked: Linked,
        waker: Waker,
        is_closed: Arc<AtomicBool>,
        dialect: Dialect,
    ) -> LinkSession {
        let config = self.stores.config();
        let decoder = Decoder::resume(config.limits, config.legacy_dialect, dialect);
        LinkSession {
            client,
            conversation: Conversation::linked(session, decoder, self.stores.journal().is_some()),
            linked,
            waker,
            is_closed,
            input: BytesMut::new(),
            progressed: self.clock.now(),
            promised: 0,
            held: 0,
            has_left: false,
        }
    }

    /// Appends rows that belong to no change of a store.
    fn keep_rows(&self, put: impl FnOnce(&mut Vec<u8>)) {
        if let Some(journal) = self.stores.journal() {
            journal.commit(put);
        }
    }

    /// The address from which the relay last came.
    pub(super) fn relay(&self) -> IpAddr {
        self.relay
    }

    /// What the stores take for the clients' addresses.
    pub(super) fn clients(&self) -> impl Iterator<Item = SocketAddr> {
        self.sessions.values().map(|session| session.client)
    }

    /// The relay comes from another address. Its present clients keep the old address.
    pub(super) fn moved_to(&mut self, relay: IpAddr) {
        self.relay = relay;
    }

    /// The runs that the clients may touch; `None` means all.
    pub(super) fn runs(&self) -> Option<&Runs> {
        self.runs.as_ref()
    }

    /// Sets the runs of the relay's token. Clients of other runs end.
    pub(super) fn are_for(&mut self, runs: Option<&Runs>) {
        self.runs = runs.cloned();
        let is_other = |session: &LinkSession| !self.is_for(session.linked.port());
        let others: Vec<_> =
            self.sessions.iter().filter(|(_, session)| is_other(session)).map(|(&no, _)| no).collect();
        for no in others {
            self.end_session(no, &End::StoreClosed);
        }
    }

    /// Whether clients may use the store on `port`. A store without a run holds keys of all runs, so a relay
    /// for some runs may not use it.
    fn is_for(&self, port: u16) -> bool {
        let Some(runs) = &self.runs else { return true };
        self.stores.run_of(port).is_some_and(|run_id| runs.has(&run_id))
    }

    /// The port of the server's first store. A relay for some runs only gets the store of these runs instead.
    fn first_port(&self) -> Result<u16, String> {
        match &self.runs {
            None => self.stores.first_port().ok_or_else(|| "the server has no store".into()),
            Some(runs) => {
                let own = self.stores.store_for_run(runs.pattern());
                own.map(|store| store.port).map_err(|error| error.to_string())
            }
        }
    }

    /// Copies a session into the journal again: the part that its store does not copy.
    pub(super) fn copy(&self, no: SessionNo) {
        let Some(BeforeBreak { applied, acknowledged, replies }) = self.end.to_restore(no) else { return };
        let id = self.session_id(no);
        // The store no longer copies a session that is over.
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

    /// Whether the relay has said goodbye.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    pub(super) fn connected(&mut self, hello: &Hello, known: bool, now: Timestamp) -> Result<(), LinkError> {
        self.sessions.values_mut().for_each(|session| session.progressed = now);
        self.unread.clear();
        self.count_line(0);
        let connected = self.end.connected(hello, known, now);
        self.woken.notify.notify_one();
        connected
    }

    pub(super) fn lost(&mut self, now: Timestamp) {
        self.end.lost(now);
        self.count_line(0);
    }

    pub(super) fn tick(&mut self) -> Result<(), LinkError> {
        let now = self.clock.now();
        let config = self.stores.config();
        let (request_timeout, write_timeout) =
            (config.request_timeout, config.write_timeout.max(STANDS_STILL));
        self.feed();
        let is_late = |no: SessionNo, session: &LinkSession| {
            !session.input.is_empty()
                && !self.stalled.contains(&no)
                && !self.starved.contains_key(&no)
                && now.since(session.progressed) > request_timeout
        };
        let late: Vec<_> =
            self.sessions.iter().filter(|(no, it)| is_late(**no, it)).map(|(&no, _)| no).collect();
        for no in late {
            self.end_session(no, &End::RequestTimeout(request_timeout));
        }
        // One at a time: its memory may be enough for the others.
        let patience = request_timeout.saturating_mul(PATIENCE);
        let hungry = self.starved.iter().find(|(_, since)| now.since(**since) > patience);
        if let Some((&no, _)) = hungry {
            self.end_session(no, &End::OutOfMemory);
        }
        self.look_who_reads(now);
        let is_over = |(_, since): &(u64, Timestamp)| now.since(*since) > write_timeout;
        let stalled: Vec<_> = self.unread.iter().filter(|(_, it)| is_over(it)).map(|(&no, _)| no).collect();
        for no in stalled {
            self.end_session(no, &End::WriteStalled(write_timeout));
        }
        self.end.tick(now)
    }

    /// Records whose clients have not taken all replies, and since when they have taken nothing.
    fn look_who_reads(&mut self, now: Timestamp) {
        let before = std::mem::take(&mut self.unread);
        let unread = self.end.all().filter(|&no| self.end.unread(no) > 0);
        self.unread = unread
            .map(|no| {
                let taken = self.end.acknowledged(no);
                let known = before.get(&no).filter(|(at, _)| *at == taken);
                (no, known.copied().unwrap_or((taken, now)))
            })
            .collect();
    }

    /// Cuts clients off if this link leaves no memory for others: idle clients first, and of these the
    /// largest first. A request that alone may grow is spared until little is left.
    pub(super) fn relieve(&mut self) {
        if !self.is_in_the_way() {
            return;
        }
        let now = self.clock.now();
        let holds = |no| {
            let input = self.sessions.get(&no).filter(|session| !session.input.is_empty());
            let held = self.end.unread(no).saturating_add(input.map_or(0, |it| it.input.len()));
            // A request that is held up here is not idle by its own fault.
            let is_held_up = self.stalled.contains(&no) || self.starved.contains_key(&no);
            let sent = input.filter(|_| !is_held_up).map(|it| it.progressed);
            let since = self.unread.get(&no).map(|(_, since)| *since).or(sent);
            (held > FREE).then_some((since.is_some_and(|since| now.since(since) >= STANDS_STILL), held, no))
        };
        let mut holders: Vec<_> = self.end.all().filter_map(holds).collect();
        holders.sort_unstable_by(|a, b| b.cmp(a));
        for (is_still, _, no) in holders {
            let is_idle = is_still && self.favourite != Some(no);
            if self.is_far_beyond() || is_idle && self.is_in_the_way() {
                self.end_session(no, &End::OutOfMemory);
            }
        }
        self.woken.notify.notify_one();
    }

    /// Whether this link takes the memory that others need.
    fn is_in_the_way(&self) -> bool {
        const LEFT_TO_OTHERS: usize = 16;
        let budget = self.stores.budget();
        let most = self.end.memory().max(self.input);
        most > self.fair() || budget.room() < (budget.limit() / LEFT_TO_OTHERS).max(2 * WINDOW)
    }

    /// Whether this link holds many times as much as everybody else has left.
    fn is_far_beyond(&self) -> bool {
        const FAR: usize = 2;
        self.queued() / FAR > self.fair()
    }

    /// The waiting bytes: replies for clients, and requests that are not applied.
    fn queued(&self) -> usize {
        self.end.memory().saturating_add(self.input)
    }

    /// How many bytes of replies, and how many of requests, may wait here: as many as are left to everybody
    /// else. So there is always some memory left.
    fn fair(&self) -> usize {
        self.stores.budget().room().max(self.sessions.len().saturating_mul(FREE))
    }

    /// Whether there is no room for more replies.
    fn is_short(&self) -> bool {
        self.end.memory() > self.fair()
    }

    /// Whether requests of a session may be applied: there is room for their replies.
    fn may_apply(&self, no: SessionNo) -> bool {
        self.end.unread(no) <= WINDOW && !self.is_short()
    }

    /// The link was away for too long: records this for each client, before the client goes. Returns the
    /// number of clients.
    pub(super) fn cut_off(&self, link: &str) -> usize {
        self.sessions.values().for_each(|session| session.conversation.cut_off(Some(link)));
        self.sessions.len()
    }

    /// The relay is gone for ever.
    pub(super) fn end_all(&mut self) {
        self.sessions.clear();
        self.reservation.set(0);
        self.woken.notify.notify_one();
    }

    /// Does one turn of work: handles input and wake-ups, and goes on with stalled sessions. Returns whether
    /// there is more to do at once.
    pub(super) fn work(&mut self, input: &mut BytesMut) -> Result<bool, LinkError> {
        let received = self.work_off(input);
        let woken = std::mem::take(&mut *self.woken.nos.lock().unwrap_or_else(PoisonError::into_inner));
        for no in woken {
            self.wake(no);
        }
        self.go_on_with_stalled();
        self.replies.rest();
        self.count_memory();
        if self.may_take_more() {
            self.feed();
        } else if let Some(no) = self.favourite {
            self.give_room(no);
        }
        let has_more = received?;
        Ok(has_more || self.stalled.iter().any(|&no| self.may_apply(no)))
    }

    /// Handles the frames in `input`. Returns whether some are left.
    fn work_off(&mut self, input: &mut BytesMut) -> Result<bool, LinkError> {
        self.worked = 0;
        loop {
            while let Some(event) = self.end.next_event() {
                self.happens(event);
                if self.worked >= TURN {
                    return Ok(true);
                }
            }
            if !self.end.receive(input, self.clock.now())? {
                return Ok(false);
            }
        }
    }

    fn happens(&mut self, event: ServerEvent) {
        self.worked = self.worked.saturating_add(EACH);
        match event {
            ServerEvent::Open(open) => self.open(open),
            ServerEvent::Request(no, bytes) => self.request(no, &bytes),
            ServerEvent::Close(no) => {
                if let Some(session) = self.sessions.get_mut(&no) {
                    session.has_left = true;
                    self.let_go(no);
                }
            }
            ServerEvent::Forgotten(no) => {
                self.end_session(no, &End::Closed);
                self.keep_rows(|out| Row::Session(self.session_id(no), None).encode(out));
            }
            ServerEvent::Bye => self.is_over = true,
        }
    }

    /// Gives each stalled session one turn before any gets another one.
    fn go_on_with_stalled(&mut self) {
        if self.stalled.is_empty() || self.is_short() {
            return;
        }
        self.worked = 0;
        let mut first = std::mem::take(&mut self.stalled);
        let mut order = first.split_off(&self.next_stalled);
        let mut order: Vec<_> = std::mem::take(&mut order).into_iter().chain(first).collect();
        for no in order.drain(..) {
            if self.worked < TURN {
                self.next_stalled = SessionNo(no.0.saturating_add(1));
                self.go_on(no);
                self.let_go(no);
            } else {
                self.stalled.insert(no);
            }
        }
    }

    pub(super) fn put_frames(&mut self, out: &mut BytesMut, enough: usize) {
        self.end.put_frames(out, enough, self.clock.now());
    }

    pub(super) fn has_frames(&self) -> bool {
        self.end.has_frames()
    }

    /// Counts the received bytes without a whole frame, and the frames that have not left: they use memory,
    /// too.
    pub(super) fn count_line(&mut self, bytes: usize) {
        self.line = bytes;
        self.count_memory();
    }

    /// The memory that is counted, and the memory in use without the bytes in the connection, summed up anew.
    #[cfg(feature = "sim")]
    #[allow(clippy::arithmetic_side_effects, reason = "it is there for tests only")]
    pub(super) fn memory(&self) -> (usize, usize) {
        let input: usize = self.sessions.values().map(|session| session.input.len()).sum();
        (self.reservation.bytes(), self.end.held() + input + self.sessions.len() * SESSION_BYTES)
    }

    fn count_memory(&mut self) {
        let sessions = self.sessions.len().saturating_mul(SESSION_BYTES);
        self.reservation.set(self.queued().saturating_add(self.line).saturating_add(sessions));
    }

    fn open(&mut self, open: Open) {
        let Open { no, port, client } = open;
        // The relay's own address, as the server sees it: the clients run on loopback beside the relay.
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
        let session = self.new_session(client, session, linked, waker, is_closed, Dialect::Unknown);
        self.sessions.insert(no, Box::new(session));
    }

    /// A client has sent these bytes.
    fn request(&mut self, no: SessionNo, bytes: &Bytes) {
        let is_stalled = self.stalled.contains(&no);
        let now = self.clock.now();
        let Some(session) = self.sessions.get_mut(&no) else { return };
        session.progressed = now;
        self.note_promise(no);
        let Some(session) = self.sessions.get(&no) else { return };
        let (is_first, need) = (session.input.is_empty(), session.conversation.need);
        if is_first && !is_stalled && self.may_apply(no) {
            let done = self.apply(no, bytes);
            self.keep(no, &bytes[done..]);
        } else {
            self.keep(no, bytes);
            // Decoding a request that is surely incomplete would only cost time.
            let is_whole = |session: &LinkSession| is_first || session.input.len() >= need;
            if !is_stalled && self.sessions.get(&no).is_some_and(|session| is_whole(session)) {
                self.go_on(no);
            }
        }
        self.give_room(no);
    }

    /// Keeps bytes that are not applied yet. If there is no memory for them, the client is cut off.
    fn keep(&mut self, no: SessionNo, bytes: &[u8]) {
        let after = self.input.saturating_add(bytes.len());
        let is_first = self.favourite == Some(no) && self.stores.budget().room() >= bytes.len();
        let Some(session) = self.sessions.get_mut(&no).filter(|_| !bytes.is_empty()) else { return };
        session.input.extend_from_slice(bytes);
        self.input = self.input.saturating_add(bytes.len());
        self.worked = self.worked.saturating_add(bytes.len());
        if after > self.fair() && !is_first {
            return self.end_session(no, &End::OutOfMemory);
        }
        self.count_memory();
    }

    /// Applies bytes of a session that came earlier.
    fn go_on(&mut self, no: SessionNo) {
        if !self.may_apply(no) {
            self.stalled.insert(no);
            return;
        }
        let Some(session) = self.sessions.get_mut(&no) else { return };
        let mut input = std::mem::take(&mut session.input);
        let done = self.apply(no, &input);
        if let Some(session) = self.sessions.get_mut(&no) {
            self.input = self.input.saturating_sub(done);
            let _applied = input.split_to(done);
            session.input = if input.is_empty() { BytesMut::new() } else { input };
        } else {
            self.input = self.input.saturating_sub(input.len());
        }
        self.count_memory();
        self.give_room(no);
    }

    /// Lets the relay send more for a session that is not stalled. A session with an unfinished request gets
    /// a whole window, if there is memory.
    fn give_room(&mut self, no: SessionNo) {
        let Some(session) = self.sessions.get(&no).filter(|_| !self.stalled.contains(&no)) else { return };
        let is_amid = !session.input.is_empty();
        if !is_amid {
            self.is_fed(no);
        }
        let window = if is_amid { WINDOW } else { self.end.first_window() };
        let is_little = window <= FIRST_WINDOW;
        if is_little || self.may_take_more() || (self.favourite == Some(no) && self.has_room()) {
            self.starved.remove(&no);
            self.end.give_room(no, window);
            self.note_promise(no);
        } else {
            let now = self.clock.now();
            self.starved.entry(no).or_insert(now);
            if is_amid {
                self.favourite.get_or_insert(no);
            }
        }
    }

    /// Whether requests may grow, even if every promised byte comes. The same amount must stay free for bytes
    /// that need no promise.
    fn may_take_more(&self) -> bool {
        let promised = self.promised.saturating_add(WINDOW);
        let after = self.input.saturating_add(promised);
        self.has_room() && after <= self.fair().saturating_sub(promised) / 2
    }

    /// Updates the promised bytes, after the relay has sent some or got a new promise.
    fn note_promise(&mut self, no: SessionNo) {
        let promised = self.end.room(no).saturating_sub(self.end.first_window());
        if let Some(session) = self.sessions.get_mut(&no) {
            let before = std::mem::replace(&mut session.promised, promised);
            self.promised = self.promised.saturating_sub(before).saturating_add(promised);
        }
    }

    fn has_room(&self) -> bool {
        self.stores.budget().room() > WINDOW
    }

    /// Lets unfinished requests grow again, if there is memory by now.
    fn feed(&mut self) {
        for no in self.starved.keys().copied().collect::<Vec<_>>() {
            self.give_room(no);
        }
    }

    /// A session needs no more memory for the rest of a request.
    fn is_fed(&mut self, no: SessionNo) {
        self.starved.remove(&no);
        if self.favourite == Some(no) {
            self.favourite = self.starved.first_key_value().map(|(&no, _)| no);
        }
    }

    /// Applies the whole requests in `input` and returns the number of their bytes.
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
        self.worked = self.worked.saturating_add(done).saturating_add(self.replies.len());
        for piece in self.replies.drain() {
            self.end.reply(no, piece);
        }
        self.replies.shrink();
        session.held = session.held.saturating_add(done);
        // A hello without a request is in no commit yet.
        let is_committed = conversation.side.as_ref().is_none_or(|side| side.before == 0);
        if is_committed && !conversation.waiting {
            self.end.applied(no, std::mem::take(&mut session.held));
        }
        if conversation.more_to_apply {
            if std::mem::take(&mut conversation.pausing) {
                self.worked = TURN;
            }
            self.stalled.insert(no);
        } else if let Some(end) = conversation.ending.take() {
            self.end_session(no, &end);
        }
        done
    }

    /// Handles an event of a session: its wait has ended, or its store was closed.
    fn wake(&mut self, no: SessionNo) {
        let Some(session) = self.sessions.get_mut(&no) else { return };
        if session.is_closed.load(Relaxed) {
            return self.end_session(no, &End::StoreClosed);
        }
        if session.conversation.waiting
            && session.conversation.poll_wake_up(&mut self.replies, &session.waker).is_ready()
        {
            self.end.applied(no, std::mem::take(&mut session.held));
            for piece in self.replies.drain() {
                self.end.reply(no, piece);
            }
        }
    }

    /// Ends the session of a client that has left, unless requests of it wait for their turn.
    fn let_go(&mut self, no: SessionNo) {
        let has_left = self.sessions.get(&no).is_some_and(|session| session.has_left);
        if has_left && !self.stalled.contains(&no) {
            self.end_session(no, &End::Closed);
        }
    }

    fn remove(&mut self, no: SessionNo) -> Option<Box<LinkSession>> {
        self.stalled.remove(&no);
        self.is_fed(no);
        let session = self.sessions.remove(&no)?;
        self.input = self.input.saturating_sub(session.input.len());
        self.promised = self.promised.saturating_sub(session.promised);
        Some(session)
    }

    /// Ends a session. A client that is cut off gets no more of its replies.
    fn end_session(&mut self, no: SessionNo, end: &End) {
        let session = self.remove(no);
        if let Some(session) = &session {
            session.linked.ended(session.conversation.greeted, end);
        }
        if matches!(end, End::OutOfMemory | End::WriteStalled(_)) {
            self.end.cut(no, end.to_string());
        } else {
            self.end.end(no, end.to_string());
        }
        self.unread.remove(&no);
        self.count_memory();
    }
}

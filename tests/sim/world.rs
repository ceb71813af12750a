//! The world of one run: an agenda of events on an invented clock, and everything that they move.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use super::super::clock::invented;
use super::super::engine::tap::{self, Tapped};
use super::super::journal::faults::Disk;
use super::super::journal::{CommitNumber, Failed};
use super::super::link::Turn;
use super::client::{Client, Sends, State};
use super::disk::Noted;
use super::mutants::{Mutant, rewrite};
use super::plan::{
    BARRIERS, ClientPlan, Fault, Keeping, MILLI, Micros, NUMBERS, Plan, QUEUES, SECOND, Step, TEXTS,
};
use super::random::Random;
use super::reference::{Done, Kept, Reference};
use super::server::{Direct, Server, ServerLine, now_or_never};
use crate::core::ids::Timestamp;
use crate::core::link::{
    FIRST_STORE, FRAMES_AT_ONCE, Frame, Identity, RelayEnd, RelayEvent, RelayLife, SessionLost, SessionNo,
    TICK,
};
use crate::core::protocol::Request;
use crate::core::store::tests::model::{Act, Key};
use crate::core::store::tests::random::request;

/// Ports of clients begin here.
const FIRST_PORT: u16 = 10_000;
const TICK_OF_LINK: Micros = TICK.as_micros() as Micros;
const TICK_OF_SERVER: Micros = 250 * MILLI;
/// A server ends the clients of a link that has been away for this long (--link-grace).
const GRACE: Micros = 10 * SECOND;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    ToServer,
    ToRelay,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Act(usize),
    GiveUp(usize, usize),
    Reads(usize),
    DirectArrives(usize),
    DirectTurn(usize),
    DirectSafe(usize),
    Connect(usize),
    Send(usize),
    RelayTick(u32),
    Arrive(u32, Way),
    Turn(u32),
    Safe(u32),
    LineTick(u32),
    ServerTick(u32),
    Sync(u32),
    TidyStep(u32),
    Start,
    StartRelay(usize),
    Fault(usize),
    NotFull,
}

#[derive(Debug)]
enum Piece {
    Bytes(Bytes),
    End,
}

#[derive(Debug, Default)]
struct Pipe {
    pieces: VecDeque<Piece>,
    last: Micros,
    /// Nothing arrives any more, and nobody is told.
    is_dead: bool,
}

/// One TCP connection between a relay and the server.
struct Conn {
    relay: usize,
    up: Pipe,
    down: Pipe,
    relay_has: bool,
    server_has: bool,
}

struct Relay {
    end: Option<RelayEnd>,
    life: u64,
    conn: Option<u32>,
    input: BytesMut,
    /// The clients, and what each has not read yet.
    clients: BTreeMap<SessionNo, (usize, BytesMut)>,
    /// Clients that have not read an answer which the relay may have given by itself.
    early: BTreeSet<usize>,
    attempts: u32,
    partitioned_until: Micros,
    is_sending: bool,
    /// It was away for longer than the server waits.
    was_long_away: bool,
}

/// What a run was worth.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) events: u64,
    pub(super) requests: u64,
    pub(super) crashes: u64,
    pub(super) breaks: u64,
    /// How often everything stood still and was compared.
    pub(super) compared: u64,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.requests += other.requests;
        self.crashes += other.crashes;
        self.breaks += other.breaks;
        self.compared += other.compared;
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { events, requests, crashes, breaks, compared } = self;
        write!(
            f,
            "{events} events, {requests} requests, {crashes} deaths of the server, {breaks} breaks of a link, {compared} \
             comparisons at rest"
        )
    }
}

/// What was heard of the engine.
#[derive(Debug)]
enum Note {
    Connected(u32, SocketAddr),
    Applied(u32, Act),
    Left(u32),
    Restored(Vec<u32>),
    Committed(u64),
}

pub(super) struct World {
    plan: Plan,
    random: Random,
    now: Micros,
    start: Instant,
    agenda: BTreeMap<(Micros, u64), Event>,
    scheduled: u64,
    server: Option<Server>,
    server_life: u32,
    disk: Noted,
    is_full: bool,
    /// The last commit that was kept before the journal could not be written.
    troubled_since: u64,
    /// A server whose disk has stopped is away for so long.
    stopped_for: Micros,
    relays: Vec<Relay>,
    conns: BTreeMap<u32, Conn>,
    next_conn: u32,
    clients: Vec<Client>,
    reference: Reference,
    heard: Rc<RefCell<Vec<Note>>>,
    /// What was heard of the critical section that has not ended.
    section: Vec<Done>,
    is_deaf: Rc<Cell<bool>>,
    /// The faults are over.
    is_calm: bool,
    /// Clients from before a death of the server that was allowed to lose what they had been told.
    excused: BTreeSet<usize>,
    /// There was such a death.
    has_lost: bool,
    /// Clients whose GETs wait for the answers of others: a planted bug.
    merged: BTreeMap<usize, usize>,
    mutant: Option<Mutant>,
    trace: Option<Vec<String>>,
    pub(super) tally: Tally,
}

type Checked = Result<(), String>;

/// A failed run.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) why: String,
    pub(super) trace: Vec<String>,
}

macro_rules! trace {
    ($world:expr, $($words:tt)*) => {
        if $world.trace.is_some() {
            let line = format!($($words)*);
            $world.note(&line);
        }
    };
}

impl World {
    /// Runs a plan from its beginning to its end.
    pub(super) fn run(plan: &Plan, mutant: Option<Mutant>, with_trace: bool) -> Result<Tally, Failure> {
        let mut world = Self::new(plan.clone(), mutant, with_trace);
        let done = world.live();
        world.is_deaf.set(true);
        match done {
            Ok(()) => Ok(world.tally),
            Err(why) => {
                trace!(world, "FAILED: {why}");
                Err(Failure { why, trace: world.trace.take().unwrap_or_default() })
            }
        }
    }

    fn new(plan: Plan, mutant: Option<Mutant>, with_trace: bool) -> Self {
        let heard = Rc::<RefCell<Vec<Note>>>::default();
        let is_deaf = Rc::<Cell<bool>>::default();
        let (hears, deaf) = (Rc::clone(&heard), Rc::clone(&is_deaf));
        tap::listen(move |tapped| {
            if deaf.get() {
                return;
            }
            hears.borrow_mut().push(match tapped {
                Tapped::Connected(conn, addr) => Note::Connected(conn.serial(), addr),
                Tapped::Applied(conn, request) => Note::Applied(conn.serial(), act_of(request)),
                Tapped::Left(conn) => Note::Left(conn.serial()),
                Tapped::Restored(live) => Note::Restored(live.iter().map(|(conn, _)| *conn).collect()),
                Tapped::Committed(CommitNumber(number)) => Note::Committed(number),
            });
        });
        let relays = (0..plan.relays).map(|_| Relay {
            end: None,
            life: 0,
            conn: None,
            input: BytesMut::new(),
            clients: BTreeMap::new(),
            early: BTreeSet::new(),
            attempts: 0,
            partitioned_until: 0,
            is_sending: false,
            was_long_away: false,
        });
        let disk = Self::new_disk(Disk::default(), mutant);
        let mut world = Self {
            random: Random::new(plan.seed ^ 0x5eed),
            now: 0,
            start: Instant::now(),
            agenda: BTreeMap::new(),
            scheduled: 0,
            server: None,
            server_life: 0,
            disk,
            is_full: false,
            troubled_since: 0,
            stopped_for: 0,
            relays: relays.collect(),
            conns: BTreeMap::new(),
            next_conn: 0,
            clients: plan.clients.iter().cloned().map(Client::new).collect(),
            reference: Reference::new(plan.clients.len()),
            heard,
            section: Vec::new(),
            is_deaf,
            is_calm: false,
            excused: BTreeSet::new(),
            has_lost: false,
            merged: BTreeMap::new(),
            mutant,
            trace: with_trace.then(Vec::new),
            tally: Tally::default(),
            plan,
        };
        world.at(0, Event::Start);
        for relay in 0..world.relays.len() {
            world.at(0, Event::StartRelay(relay));
        }
        for client in 0..world.clients.len() {
            let after = world.random.below(30 * MILLI);
            world.at(after, Event::Act(client));
        }
        for (n, (at, _)) in world.plan.faults.clone().into_iter().enumerate() {
            world.at(at, Event::Fault(n));
        }
        world
    }

    fn new_disk(disk: Disk, mutant: Option<Mutant>) -> Noted {
        Noted::new(disk, mutant)
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn note(&mut self, line: &str) {
        let at = format!("{:>12.3} ms  ", self.now as f64 / 1000.0);
        if let Some(trace) = &mut self.trace {
            trace.push(at + line);
        }
    }

    /// The whole life of the world.
    fn live(&mut self) -> Checked {
        // All faults have come by then; those that last are ended.
        let last = self.plan.faults.last().map_or(0, |(at, _)| *at) + MILLI;
        self.run_until(last, |_| false)?;
        self.run_until(last + 5 * SECOND, Self::are_clients_still)?;
        self.is_calm = true;
        for relay in &mut self.relays {
            relay.partitioned_until = relay.partitioned_until.min(self.now);
        }
        self.fill(None);
        trace!(self, "the faults are over");
        for _ in 0..60 {
            self.settle()?;
            let waiting: Vec<_> =
                (0..self.clients.len()).filter(|&n| self.clients[n].waits().is_some()).collect();
            if waiting.is_empty() {
                break;
            }
            // Barriers that nobody completes are given up; for the others, somebody brings what they wait for.
            for &client in &waiting {
                if let Some(no) = self.clients[client].waits()
                    && matches!(self.clients[client].issued[no], Act::Barrier(..))
                {
                    self.at(0, Event::GiveUp(client, no));
                }
            }
            let texts = TEXTS.iter().map(|key| Act::Set(key, "end".into()));
            let numbers = NUMBERS.iter().map(|key| Act::Add(key, 1));
            let items = QUEUES.iter().map(|key| Act::Push(key, "end".into()));
            self.visit(texts.chain(numbers).chain(items).collect());
        }
        if let Some(client) = self.clients.iter().position(|client| !client.is_gone()) {
            return Err(format!(
                "client {client} does not come to its end: {:?}",
                self.clients[client].state
            ));
        }
        // What the store holds in the end, also after one more death.
        for is_last in [false, true] {
            let keys = || TEXTS.iter().chain(&NUMBERS).chain(&BARRIERS);
            let gets = [Act::MultiGet(keys().copied().collect()), Act::List, Act::NumKeys];
            self.visit(gets.into_iter().chain(QUEUES.map(Act::Len)).collect());
            self.settle()?;
            if is_last {
                break;
            }
            self.crash(false)?;
            self.at(10 * MILLI, Event::Start);
            self.settle()?;
        }
        self.run_until(self.now + GRACE + 2 * SECOND, |_| false)?;
        let Some(server) = &self.server else { return Err("the server is not there at the end".into()) };
        let sessions: usize = server.links.view().iter().map(|link| link.sessions).sum();
        let stats = server.listener.engine().stats();
        if sessions > 0 || stats.connections > 0 || stats.waiters > 0 {
            return Err(format!(
                "all clients have gone, and the server still has {sessions} sessions, {stats:?}"
            ));
        }
        Ok(())
    }

    /// One more client, with a connection of its own.
    fn visit(&mut self, acts: Vec<Act>) {
        let steps = acts.into_iter().map(|act| Step { think: 100, act, patience: None }).collect();
        self.clients.push(Client::new(ClientPlan { relay: None, steps }));
        self.reference.add_client();
        self.at(0, Event::Act(self.clients.len() - 1));
    }

    fn at(&mut self, after: Micros, event: Event) {
        self.scheduled += 1;
        self.agenda.insert((self.now + after, self.scheduled), event);
    }

    /// After a moment: not always in the same order.
    fn soon(&mut self, event: Event) {
        let after = self.random.below(300);
        self.at(after, event);
    }

    /// Runs until everything stands still, and clients only wait.
    fn settle(&mut self) -> Checked {
        let until = self.now + 120 * SECOND;
        self.run_until(until, |world| world.is_still() && world.are_clients_still())?;
        if self.is_still() && self.are_clients_still() {
            return self.compare();
        }
        let clients: Vec<_> = self.clients.iter().map(|client| client.state).collect();
        Err(format!("nothing ends: {clients:?}, the links stand still: {}", self.is_still()))
    }

    fn are_clients_still(&self) -> bool {
        self.clients.iter().all(|client| client.is_gone() || client.waits().is_some())
            && !self.agenda.values().any(|event| matches!(event, Event::Act(_)))
    }

    /// Whether nothing is on its way anywhere.
    fn is_still(&self) -> bool {
        let Some(server) = &self.server else { return false };
        let is_up = |relay: &Relay| {
            relay.end.as_ref().is_some_and(|end| end.is_up() && !end.has_frames())
                && !relay.is_sending
                && relay.clients.values().all(|(_, unread)| unread.is_empty())
        };
        let has_line = |conn: u32| server.lines.get(&conn).is_some_and(|line| line.line.is_some());
        self.relays.iter().all(|relay| is_up(relay) && relay.conn.is_some_and(has_line))
            && self.conns.values().all(|conn| {
                let is_empty = |pipe: &Pipe| pipe.pieces.is_empty() || pipe.is_dead;
                (!conn.server_has || is_empty(&conn.up)) && (!conn.relay_has || is_empty(&conn.down))
            })
            && server.lines.values().all(|line| line.held.is_none() && !line.has_turn)
            && server.directs.values().all(|direct| !direct.is_held && !direct.has_turn)
    }

    fn run_until(&mut self, until: Micros, is_over: impl Fn(&Self) -> bool) -> Checked {
        let mut seen = self.tally.events;
        while let Some(entry) = self.agenda.first_entry() {
            let &(at, _) = entry.key();
            if at > until {
                break;
            }
            if at >= self.now + 5 * MILLI && self.tally.events != seen && self.is_still() {
                seen = self.tally.events;
                self.compare()?;
                if is_over(self) {
                    return Ok(());
                }
            }
            let Some(((at, _), event)) = self.agenda.pop_first() else { break };
            self.now = at;
            invented::set(self.start, Duration::from_micros(at));
            self.tally.events += 1;
            if self.tally.events > 200_000 {
                return Err("it does not come to an end".into());
            }
            self.happens(event)?;
            self.after()?;
        }
        self.now = self.now.max(until);
        Ok(())
    }

    fn timestamp(&self) -> Timestamp {
        Timestamp(Duration::from_micros(self.now))
    }

    fn happens(&mut self, event: Event) -> Checked {
        match event {
            Event::Act(client) => {
                let sends = self.clients[client].act();
                self.client_sends(client, &sends)
            }
            Event::GiveUp(client, no) => match self.clients[client].give_up(no) {
                Some(sends) => {
                    trace!(self, "client {client} gives up its wait");
                    self.client_sends(client, &sends)
                }
                None => Ok(()),
            },
            Event::Reads(client) => self.client_reads(client),
            Event::DirectArrives(client) | Event::DirectTurn(client) => {
                self.direct_turn(client);
                Ok(())
            }
            Event::DirectSafe(client) => self.direct_safe(client),
            Event::Connect(relay) => {
                self.connect(relay);
                Ok(())
            }
            Event::Send(relay) => {
                self.send(relay);
                Ok(())
            }
            Event::RelayTick(conn) => {
                self.relay_tick(conn);
                Ok(())
            }
            Event::Arrive(conn, way) => self.arrive(conn, way),
            Event::Turn(conn) => self.turn(conn),
            Event::Safe(conn) => self.safe(conn),
            Event::LineTick(conn) => {
                self.line_tick(conn);
                Ok(())
            }
            Event::ServerTick(life) => self.server_tick(life),
            Event::Sync(life) => {
                if let Some(server) = self.server.as_ref().filter(|_| life == self.server_life)
                    && let Some(journal) = &server.journal
                {
                    let _synced = journal.sync();
                }
                Ok(())
            }
            Event::TidyStep(life) => {
                self.tidy(life);
                Ok(())
            }
            Event::Start => self.start_server(),
            Event::StartRelay(relay) => {
                self.start_relay(relay);
                Ok(())
            }
            Event::Fault(n) => self.fault(n),
            Event::NotFull => {
                trace!(self, "the disk has room again");
                self.fill(None);
                Ok(())
            }
        }
    }

    /// What follows from every event.
    fn after(&mut self) -> Checked {
        self.look_at_disk()?;
        self.listen()?;
        let mut ready = Vec::new();
        if let Some(server) = &self.server {
            ready.extend(server.take_woken().into_iter().map(Event::Turn));
            for (&client, direct) in &server.directs {
                if direct.woken.take() && !direct.is_held {
                    ready.push(Event::DirectTurn(client));
                }
            }
        }
        for event in ready {
            match event {
                Event::Turn(conn) => self.want_turn(conn),
                event => self.soon(event),
            }
        }
        for relay in 0..self.relays.len() {
            let it = &self.relays[relay];
            let has_frames = it.conn.is_some() && it.end.as_ref().is_some_and(RelayEnd::has_frames);
            if has_frames && !it.is_sending {
                self.relays[relay].is_sending = true;
                self.soon(Event::Send(relay));
            }
        }
        Ok(())
    }

    // ---- what the engine does

    /// Takes what was heard into the reference.
    fn listen(&mut self) -> Checked {
        let notes = std::mem::take(&mut *self.heard.borrow_mut());
        for note in notes {
            let done = match note {
                Note::Connected(conn, addr) => {
                    let client = usize::from(addr.port() - FIRST_PORT);
                    Done::Connected { conn, client }
                }
                Note::Applied(conn, act) => {
                    self.tally.requests += 1;
                    trace!(self, "    applied for connection {conn}: {act:?}");
                    Done::Applied { conn, act }
                }
                Note::Left(conn) => {
                    self.check_left(conn)?;
                    Done::Left { conn }
                }
                Note::Restored(live) => Done::Restarted { live },
                Note::Committed(number) => {
                    let is_troubled = self.server.as_ref().is_some_and(|server| server.is_troubled);
                    let kept = if is_troubled { Kept::Nowhere } else { Kept::With(number) };
                    for done in std::mem::take(&mut self.section) {
                        self.reference.done(kept, done, &self.clients)?;
                    }
                    continue;
                }
            };
            self.section.push(done);
        }
        Ok(())
    }

    /// A session ends only for a reason.
    fn check_left(&mut self, conn: u32) -> Checked {
        let Some(client) = self.reference.client_of(conn) else { return Ok(()) };
        trace!(self, "    connection {conn} of client {client} is over");
        let it = &self.clients[client];
        let is_allowed = match it.plan.relay {
            Some(relay) => self.relays[relay].end.is_none() || self.relays[relay].was_long_away,
            None => false,
        };
        if it.is_gone() || is_allowed || self.excused.contains(&client) {
            return Ok(());
        }
        Err(format!("the server has ended the session of client {client}, which is there"))
    }

    /// Everything stands still: clients have what the reference says, no more and no less.
    fn compare(&mut self) -> Checked {
        self.tally.compared += 1;
        for client in 0..self.clients.len() {
            let it = &self.clients[client];
            if it.is_gone() || it.issued.is_empty() || self.excused.contains(&client) {
                continue;
            }
            let come = self.reference.come(client);
            if come.next != it.issued.len() {
                return Err(format!(
                    "client {client}: {} of its {} requests are applied, and nothing is on its way",
                    come.next,
                    it.issued.len()
                ));
            }
            for no in 0..it.issued.len() {
                self.reference.check(client, no, &self.clients, false)?;
                if it.seen[no].is_none() && !come.answers[no].is_empty() {
                    return Err(format!(
                        "client {client} does not get the answer to its request {no} ({:?}): {:?}",
                        it.issued[no], come.answers[no]
                    ));
                }
            }
        }
        Ok(())
    }

    // ---- clients

    fn client_sends(&mut self, client: usize, sends: &Sends) -> Checked {
        if let Some(after) = sends.next_after {
            self.at(after, Event::Act(client));
        }
        if let (Some(after), State::Reading(no)) = (sends.patience, self.clients[client].state) {
            self.at(after, Event::GiveUp(client, no));
        }
        if sends.closes {
            trace!(self, "client {client} closes its connection");
            return self.client_closes(client);
        }
        if sends.bytes.is_empty() {
            return Ok(());
        }
        let act = self.clients[client].issued.last().map(|act| format!("{act:?}"));
        trace!(self, "client {client} asks: {}", act.unwrap_or_default());
        let Some(relay) = self.clients[client].plan.relay else {
            self.direct_sends(client, &sends.bytes);
            return Ok(());
        };
        let addr = SocketAddr::from(([127, 0, 0, 1], FIRST_PORT + client as u16));
        let it = &mut self.relays[relay];
        let Some(end) = &mut it.end else {
            self.client_dies(client, "there is no relay");
            return Ok(());
        };
        let known = it.clients.iter().find(|(_, (of, _))| *of == client).map(|(&no, _)| no);
        let Some(no) = known.or_else(|| end.open(FIRST_STORE, addr)) else { return Ok(()) };
        it.clients.entry(no).or_insert((client, BytesMut::new()));
        if self.mutant == Some(Mutant::GetMergedWithOlder)
            && let Some(key @ Act::Get(_)) = self.clients[client].issued.last()
        {
            let same = |other: &&(usize, BytesMut)| {
                let it = &self.clients[other.0];
                let asks = matches!(it.state, State::Reading(no) if format!("{:?}", it.issued[no]) == format!("{key:?}"));
                other.0 != client && asks
            };
            if let Some((older, _)) = it.clients.values().find(same) {
                self.merged.insert(*older, client);
                return Ok(());
            }
        }
        // In two parts, cut anywhere.
        let cut = self.random.below(sends.bytes.len() as u64 + 1) as usize;
        for part in [&sends.bytes[..cut], &sends.bytes[cut..]] {
            if !part.is_empty() {
                end.from_client(no, Bytes::copy_from_slice(part));
            }
        }
        self.deliver(relay)
    }

    fn client_closes(&mut self, client: usize) -> Checked {
        self.clients[client].state = State::Gone;
        if let Some(relay) = self.clients[client].plan.relay {
            let it = &mut self.relays[relay];
            let no = it.clients.iter().find(|(_, (of, _))| *of == client).map(|(&no, _)| no);
            if let (Some(no), Some(end)) = (no, &mut it.end) {
                it.clients.remove(&no);
                end.close(no);
            }
            return self.deliver(relay);
        }
        if let Some(server) = &mut self.server {
            server.directs.remove(&client);
        }
        self.listen()
    }

    /// A client's connection is closed by the other side.
    fn client_dies(&mut self, client: usize, why: &str) {
        trace!(self, "client {client} is closed: {why}");
        self.clients[client].state = State::Gone;
    }

    /// Bytes of replies have come to a client.
    fn client_gets(&mut self, client: usize, bytes: &[u8], is_early: bool) -> Checked {
        let it = &mut self.clients[client];
        let (answered, next) = it.receive(bytes).map_err(|why| format!("client {client}: {why}"))?;
        for no in answered {
            trace!(self, "client {client} has {:?}", self.clients[client].seen[no]);
            if !self.excused.contains(&client) {
                self.reference.check(client, no, &self.clients, is_early)?;
            }
        }
        if let Some(after) = next {
            self.at(after, Event::Act(client));
        }
        match self.merged.remove(&client) {
            Some(follower) => self.client_gets(follower, bytes, is_early),
            None => Ok(()),
        }
    }

    fn client_reads(&mut self, client: usize) -> Checked {
        let Some(relay) = self.clients[client].plan.relay else { return Ok(()) };
        let it = &mut self.relays[relay];
        let Some(end) = &mut it.end else { return Ok(()) };
        let found = it.clients.iter_mut().find(|(_, (of, _))| *of == client);
        let Some((&no, (_, unread))) = found else { return Ok(()) };
        let bytes = std::mem::take(unread);
        end.delivered(no, bytes.len());
        let is_early = it.early.remove(&client) || !end.is_up();
        self.client_gets(client, &bytes, is_early)
    }

    // ---- relays

    fn start_relay(&mut self, relay: usize) {
        let life = self.random.next();
        let it = &mut self.relays[relay];
        it.life = life;
        it.attempts = 0;
        let identity = Identity { name: format!("node-{relay}"), life: RelayLife(life) };
        it.end = Some(RelayEnd::new(identity));
        trace!(self, "relay {relay} starts");
        self.at(0, Event::Connect(relay));
    }

    /// The relay tries to connect.
    fn connect(&mut self, relay: usize) {
        let is_cut = self.relays[relay].partitioned_until > self.now;
        let now = self.timestamp();
        let it = &mut self.relays[relay];
        let Some(end) = &mut it.end else { return };
        if it.conn.is_some() {
            return;
        }
        let Some(server) = self.server.as_mut().filter(|_| !is_cut) else { return self.connect_later(relay) };
        let conn = self.next_conn;
        self.next_conn += 1;
        end.connected(now);
        it.input.clear();
        it.conn = Some(conn);
        let line = ServerLine {
            line: None,
            input: BytesMut::new(),
            out: BytesMut::new(),
            held: None,
            has_turn: false,
        };
        server.lines.insert(conn, line);
        let it =
            Conn { relay, up: Pipe::default(), down: Pipe::default(), relay_has: true, server_has: true };
        self.conns.insert(conn, it);
        trace!(self, "relay {relay} connects: connection {conn}");
        self.at(TICK_OF_LINK, Event::RelayTick(conn));
        self.at(TICK_OF_LINK, Event::LineTick(conn));
    }

    fn connect_later(&mut self, relay: usize) {
        let it = &mut self.relays[relay];
        let longest = ((50 * MILLI) << it.attempts.min(10)).min(2 * SECOND);
        it.attempts += 1;
        let after = longest / 2 + self.random.below(longest / 2);
        self.at(after, Event::Connect(relay));
    }

    /// The relay's connection is over, as it sees it.
    fn relay_loses(&mut self, conn: u32, why: &str) -> Checked {
        let Some(it) = self.conns.get_mut(&conn).filter(|it| it.relay_has) else { return Ok(()) };
        it.relay_has = false;
        let relay = it.relay;
        self.put(conn, Way::ToServer, Piece::End);
        trace!(self, "relay {relay} loses connection {conn}: {why}");
        let it = &mut self.relays[relay];
        if it.conn == Some(conn) {
            it.conn = None;
            it.attempts = 0;
            if let Some(end) = &mut it.end {
                end.lost();
            }
            self.connect_later(relay);
            self.deliver(relay)?;
        }
        Ok(())
    }

    fn send(&mut self, relay: usize) {
        let now = self.timestamp();
        let it = &mut self.relays[relay];
        it.is_sending = false;
        let (Some(end), Some(conn)) = (&mut it.end, it.conn) else { return };
        let mut out = BytesMut::new();
        end.put_frames(&mut out, FRAMES_AT_ONCE, now);
        self.put_bytes(conn, Way::ToServer, out.freeze());
    }

    fn relay_tick(&mut self, conn: u32) {
        let now = self.timestamp();
        let Some(relay) = self.conns.get(&conn).filter(|it| it.relay_has).map(|it| it.relay) else { return };
        let Some(end) = &mut self.relays[relay].end else { return };
        if let Err(why) = end.tick(now) {
            let _ = self.relay_loses(conn, &why.to_string());
        }
        self.at(TICK_OF_LINK, Event::RelayTick(conn));
    }

    /// Hands on what the relay's end has for its clients.
    fn deliver(&mut self, relay: usize) -> Checked {
        loop {
            let it = &mut self.relays[relay];
            let Some(end) = &mut it.end else { return Ok(()) };
            let is_up = end.is_up();
            let Some(event) = end.next_event() else { return Ok(()) };
            match event {
                RelayEvent::Reply(no, bytes) => {
                    let Some((client, unread)) = it.clients.get_mut(&no) else { continue };
                    let client = *client;
                    if !unread.is_empty() || self.random.one_in(4) {
                        if self.mutant == Some(Mutant::WakeUpLostAtFullBuffer)
                            && self.clients[client].waits().is_some()
                        {
                            end.delivered(no, bytes.len());
                            continue;
                        }
                        if unread.is_empty() {
                            let after = self.random.below(20 * MILLI);
                            self.at(after, Event::Reads(client));
                        }
                        let it = &mut self.relays[relay];
                        if let Some((_, unread)) = it.clients.get_mut(&no) {
                            unread.extend_from_slice(&bytes);
                        }
                        if !is_up {
                            it.early.insert(client);
                        }
                        continue;
                    }
                    end.delivered(no, bytes.len());
                    self.client_gets(client, &bytes, !is_up)?;
                }
                RelayEvent::Lost(no, why) => {
                    let Some((client, _)) = it.clients.remove(&no) else { continue };
                    end.close(no);
                    let is_allowed = match &why {
                        SessionLost::Finished => self.clients[client].is_gone(),
                        SessionLost::AwayTooLong | SessionLost::Forgotten | SessionLost::Ended(_) => {
                            it.was_long_away || self.has_lost
                        }
                    };
                    if !is_allowed {
                        return Err(format!("client {client} is closed, and should not be: {why}"));
                    }
                    self.client_dies(client, &why.to_string());
                }
                RelayEvent::Up => {
                    trace!(self, "relay {relay} has its link");
                }
                RelayEvent::Refused(refuse) => {
                    if !refuse.retry {
                        return Err(format!("relay {relay} is refused: {}", refuse.reason));
                    }
                    trace!(self, "relay {relay} is refused: {}", refuse.reason);
                    if let Some(conn) = self.relays[relay].conn {
                        self.relay_loses(conn, "refused")?;
                    }
                }
            }
        }
    }

    // ---- the network

    fn pipe(&mut self, conn: u32, way: Way) -> Option<&mut Pipe> {
        let conn = self.conns.get_mut(&conn)?;
        Some(match way {
            Way::ToServer => &mut conn.up,
            Way::ToRelay => &mut conn.down,
        })
    }

    fn put(&mut self, conn: u32, way: Way, piece: Piece) {
        let slow = self.random.one_in(10);
        let delay = self.random.between(20, if slow { 20 * MILLI } else { MILLI });
        let now = self.now;
        let Some(pipe) = self.pipe(conn, way) else { return };
        pipe.pieces.push_back(piece);
        pipe.last = pipe.last.max(now + delay);
        let after = pipe.last - now;
        self.at(after, Event::Arrive(conn, way));
    }

    /// In pieces, cut anywhere.
    fn put_bytes(&mut self, conn: u32, way: Way, mut bytes: Bytes) {
        while !bytes.is_empty() {
            let all = bytes.len() as u64;
            let len = if self.random.one_in(4) { self.random.between(1, all) } else { all };
            let piece = bytes.split_to(len as usize);
            self.put(conn, way, Piece::Bytes(piece));
        }
    }

    fn arrive(&mut self, conn: u32, way: Way) -> Checked {
        let Some(it) = self.conns.get(&conn) else { return Ok(()) };
        let until = self.relays[it.relay].partitioned_until;
        if until > self.now {
            // It comes later, in its order.
            let again = until - self.now;
            self.at(again, Event::Arrive(conn, way));
            return Ok(());
        }
        let Some(pipe) = self.pipe(conn, way).filter(|pipe| !pipe.is_dead) else { return Ok(()) };
        let Some(piece) = pipe.pieces.pop_front() else { return Ok(()) };
        match way {
            Way::ToServer => {
                self.arrives_at_server(conn, piece);
                Ok(())
            }
            Way::ToRelay => self.arrives_at_relay(conn, piece),
        }
    }

    fn arrives_at_relay(&mut self, conn: u32, piece: Piece) -> Checked {
        let now = self.timestamp();
        let Some(relay) = self.conns.get(&conn).filter(|it| it.relay_has).map(|it| it.relay) else {
            return Ok(());
        };
        let Piece::Bytes(bytes) = piece else { return self.relay_loses(conn, "closed by the server") };
        let it = &mut self.relays[relay];
        let Some(end) = &mut it.end else { return Ok(()) };
        it.input.extend_from_slice(&bytes);
        let received = end.receive(&mut it.input, now);
        self.deliver(relay)?;
        if let Err(why) = received {
            return Err(format!("relay {relay} does not understand the server: {why}"));
        }
        Ok(())
    }

    fn arrives_at_server(&mut self, conn: u32, piece: Piece) {
        if self.conns.get(&conn).is_none_or(|it| !it.server_has) {
            return;
        }
        let Some(server) = &mut self.server else { return };
        let Some(line) = server.lines.get_mut(&conn) else { return };
        match piece {
            Piece::Bytes(bytes) => line.input.extend_from_slice(&bytes),
            Piece::End => {
                self.server_loses(conn, "closed by the relay");
                return;
            }
        }
        self.want_turn(conn);
    }

    fn server_loses(&mut self, conn: u32, why: &str) {
        let Some(it) = self.conns.get_mut(&conn).filter(|it| it.server_has) else { return };
        it.server_has = false;
        self.put(conn, Way::ToRelay, Piece::End);
        trace!(self, "the server loses connection {conn}: {why}");
        if let Some(server) = &mut self.server
            && let Some(served) = server.lines.remove(&conn)
            && let Some(line) = &served.line
        {
            server.links.lost(line, why);
        }
    }

    // ---- the server

    fn start_server(&mut self) -> Checked {
        if self.server.is_some() {
            return Ok(());
        }
        self.server_life += 1;
        let left = self.disk.disk.clone();
        let left = rewrite(&left, self.mutant, &self.outstanding_waits());
        self.disk = Self::new_disk(left, self.mutant);
        trace!(self, "the server starts");
        self.server = match Server::start(self.plan.keeping, &self.disk, self.server_life) {
            Ok(server) => Some(server),
            Err(Failed::Io(why)) if !self.is_calm => {
                trace!(self, "it cannot: {why}");
                self.at(SECOND, Event::Start);
                return Ok(());
            }
            Err(why) => return Err(format!("the server cannot start: {why:?}")),
        };
        self.listen()?;
        self.at(TICK_OF_SERVER, Event::ServerTick(self.server_life));
        Ok(())
    }

    /// The waits of clients behind relays, with their bytes.
    fn outstanding_waits(&self) -> BTreeMap<(String, u32), u64> {
        let mut waits = BTreeMap::new();
        for (relay, it) in self.relays.iter().enumerate() {
            for (&SessionNo(no), &(client, _)) in &it.clients {
                let it = &self.clients[client];
                if let Some(wait) = it.waits().filter(|&wait| self.reference.come(client).next == wait) {
                    let bytes = request(&it.issued[wait]).map_or(0, |request| request.0.len() as u64);
                    waits.insert((format!("node-{relay}"), no), bytes);
                }
            }
        }
        waits
    }

    /// The server dies. If the disk goes on with what is there after a cut of power or not, the caller has said.
    fn crash(&mut self, is_power_cut: bool) -> Checked {
        if self.server.is_none() {
            return Ok(());
        }
        self.listen()?;
        self.section.clear();
        self.tally.crashes += 1;
        self.is_deaf.set(true);
        let server = self.server.take();
        if server.as_ref().is_some_and(|server| server.journal.is_none() || server.is_troubled) {
            self.has_lost = true;
            let clients = self.clients.iter().enumerate();
            self.excused.extend(clients.filter(|(_, it)| !it.issued.is_empty()).map(|(n, _)| n));
        }
        let troubled = server.as_ref().filter(|server| server.is_troubled).map(|_| self.troubled_since);
        let left =
            if is_power_cut { self.disk.after_power_cut(&mut self.random) } else { self.disk.after_kill() };
        let last = self.disk.last_commit(&left);
        // It may have been whole again, and have died before it said so.
        if let Some(whole) = troubled.and_then(|since| self.disk.whole_behind(&left, since)) {
            self.reference.is_whole(whole);
        }
        trace!(self, "the server dies (power cut: {is_power_cut}); what is left ends with commit {last}");
        // Dropping it ends its sessions, which nobody sees any more.
        drop(server);
        self.is_deaf.set(false);
        self.disk.disk = left;
        if self.plan.keeping == Keeping::Nothing {
            self.reference.forget();
        } else {
            self.reference.crash(last, &self.clients)?;
        }
        self.check_all_kept()?;
        // Its connections break.
        let conns: Vec<u32> =
            self.conns.iter().filter(|(_, it)| it.server_has).map(|(&conn, _)| conn).collect();
        for conn in conns {
            if let Some(it) = self.conns.get_mut(&conn) {
                it.server_has = false;
            }
            self.put(conn, Way::ToRelay, Piece::End);
        }
        for client in 0..self.clients.len() {
            if self.clients[client].plan.relay.is_none()
                && !self.clients[client].is_gone()
                && !self.clients[client].issued.is_empty()
            {
                self.client_dies(client, "the server is gone");
            }
        }
        Ok(())
    }

    /// What clients have been told must still be so.
    fn check_all_kept(&self) -> Checked {
        for client in 0..self.clients.len() {
            if self.clients[client].is_gone() || self.excused.contains(&client) {
                continue;
            }
            for no in 0..self.clients[client].issued.len() {
                self.reference
                    .check(client, no, &self.clients, true)
                    .map_err(|why| format!("after the death of the server: {why}"))?;
            }
        }
        Ok(())
    }

    /// The disk may have stopped in the middle of a step, or may be full.
    fn look_at_disk(&mut self) -> Checked {
        if self.server.is_some() && self.disk.disk.is_stopped() {
            trace!(self, "the disk stops in the middle of a write");
            let is_power_cut = self.plan.keeping == Keeping::Disk && self.random.one_in(2);
            if let Some(server) = self.server.as_mut().filter(|_| self.is_full) {
                // It had no room, and then it stopped.
                server.is_troubled = true;
            }
            self.at(self.stopped_for, Event::Start);
            return self.crash(is_power_cut);
        }
        if let Some(server) = &mut self.server
            && let Some(journal) = &server.journal
            && !server.is_troubled
            && journal.trouble().is_some()
        {
            server.is_troubled = true;
            let last = self.disk.last_commit(&self.disk.after_kill());
            // What was done up to here is heard of before.
            trace!(self, "the journal cannot be written; it ends with commit {last}");
            self.listen()?;
            self.reference.is_lost_behind(last);
            self.troubled_since = last;
        }
        Ok(())
    }

    fn fill(&mut self, room: Option<usize>) {
        self.is_full = room.is_some();
        self.disk.disk.limit(room);
    }

    fn want_turn(&mut self, conn: u32) {
        if let Some(server) = &mut self.server
            && let Some(line) = server.lines.get_mut(&conn)
            && !std::mem::replace(&mut line.has_turn, true)
            && line.held.is_none()
        {
            self.soon(Event::Turn(conn));
        }
    }

    fn turn(&mut self, conn: u32) -> Checked {
        let Some(relay) = self.conns.get(&conn).map(|it| it.relay) else { return Ok(()) };
        let Some(server) = &mut self.server else { return Ok(()) };
        let safe = server.safe();
        let Some(served) = server.lines.get_mut(&conn).filter(|line| line.held.is_none()) else {
            return Ok(());
        };
        served.has_turn = false;
        let ServerLine { line, input, out, .. } = served;
        if line.is_none() {
            let hello = match Frame::take(input) {
                Ok(Some(Frame::Hello(hello))) => hello,
                Ok(None) => return Ok(()),
                other => return Err(format!("relay {relay} begins with {other:?}")),
            };
            let peer = SocketAddr::from(([10, 0, 0, relay as u8 + 1], 1000 + conn as u16));
            match server.links.take_in(&hello, peer) {
                Ok(taken) => *line = Some(taken),
                Err(refuse) => {
                    let mut out = BytesMut::new();
                    Frame::Refuse(refuse).put(&mut out);
                    self.put_bytes(conn, Way::ToRelay, out.freeze());
                    self.server_loses(conn, "refused");
                    return Ok(());
                }
            }
        }
        let Some(line) = &*line else { return Ok(()) };
        match server.links.turn(line, input, out) {
            Err(why) => {
                self.listen()?;
                return Err(format!("the server does not understand relay {relay}: {why}"));
            }
            Ok(Turn::Over) => {
                server.lines.remove(&conn);
                self.server_loses(conn, "a newer one has taken over");
            }
            Ok(Turn::On { has_more, has_new }) => {
                if has_new {
                    served.held = Some(safe);
                    if self.is(Mutant::ReplyBeforeCommit) {
                        self.release(conn);
                    } else {
                        self.soon(Event::Safe(conn));
                    }
                }
                if has_more {
                    self.want_turn(conn);
                }
            }
        }
        Ok(())
    }

    /// Frames leave if all that they depend on is safe.
    fn safe(&mut self, conn: u32) -> Checked {
        let Some(server) = &mut self.server else { return Ok(()) };
        let Some(line) = server.lines.get_mut(&conn) else { return Ok(()) };
        let Some(held) = &mut line.held else { return Ok(()) };
        let is_safe = now_or_never(held);
        self.look_at_disk()?;
        if self.server.is_none() {
            return Ok(());
        }
        if is_safe {
            self.release(conn);
        } else {
            self.soon(Event::Sync(self.server_life));
            self.at(MILLI, Event::Safe(conn));
        }
        Ok(())
    }

    fn release(&mut self, conn: u32) {
        let Some(server) = &mut self.server else { return };
        let Some(line) = server.lines.get_mut(&conn) else { return };
        line.held = None;
        let out = line.out.split().freeze();
        line.has_turn = true;
        self.put_bytes(conn, Way::ToRelay, out);
        self.soon(Event::Turn(conn));
    }

    fn line_tick(&mut self, conn: u32) {
        let Some(server) = &self.server else { return };
        let Some(served) = server.lines.get(&conn) else { return };
        // A line that waits for the disk looks at nothing else.
        if served.held.is_none()
            && let Some(line) = &served.line
        {
            if let Err(why) = line.tick() {
                self.server_loses(conn, &why.to_string());
                return;
            }
            self.want_turn(conn);
        }
        self.at(TICK_OF_LINK, Event::LineTick(conn));
    }

    fn server_tick(&mut self, life: u32) -> Checked {
        if life != self.server_life {
            return Ok(());
        }
        let Some(server) = &self.server else { return Ok(()) };
        server.stores.tick();
        for link in server.links.view() {
            // The tick that ends them may be this one.
            if link.away.is_some_and(|away| away >= Duration::from_micros(GRACE))
                && let Some(relay) = relay_of(&link.name)
            {
                self.relays[relay].was_long_away = true;
            }
        }
        if !self.is(Mutant::GraceNeverEnds) {
            server.links.tick();
        }
        let is_over = |away: Duration| away > Duration::from_micros(GRACE + SECOND);
        if let Some(link) = server.links.view().into_iter().find(|link| link.away.is_some_and(is_over)) {
            return Err(format!("the link of {} is away for {:?}, and is kept", link.name, link.away));
        }
        if let Some(journal) = &server.journal {
            // It tries again after seconds of the real clock: each tick is an hour later than the one before.
            let tick = u32::try_from(self.now / TICK_OF_SERVER).unwrap_or(u32::MAX);
            journal.tick(self.start + Duration::from_hours(1) * tick);
            if server.tidying.is_none() {
                self.soon(Event::TidyStep(life));
            }
        }
        self.at(TICK_OF_SERVER, Event::ServerTick(life));
        Ok(())
    }

    fn tidy(&mut self, life: u32) {
        let Some(server) = self.server.as_mut().filter(|_| life == self.server_life) else { return };
        let Some(journal) = server.journal.clone() else { return };
        let before = journal.stats().tidied;
        let goes_on = server.tidy(self.mutant);
        if journal.stats().tidied > before && server.is_troubled && !self.disk.disk.is_stopped() {
            server.is_troubled = false;
            let CommitNumber(last) = journal.commit(|_| ());
            trace!(self, "the journal is whole again with commit {last}");
            self.reference.is_whole(last);
        }
        if goes_on {
            self.soon(Event::TidyStep(life));
        }
    }

    // ---- clients with connections of their own

    fn direct_sends(&mut self, client: usize, bytes: &[u8]) {
        let is_new = self.clients[client].issued.len() == 1;
        let Some(server) = &mut self.server else { return self.client_dies(client, "there is no server") };
        if is_new {
            let addr = SocketAddr::from(([10, 0, 1, 1], FIRST_PORT + client as u16));
            let direct: Direct = server.connect(addr);
            server.directs.insert(client, direct);
        }
        let Some(direct) = server.directs.get_mut(&client) else {
            return self.client_dies(client, "no connection");
        };
        direct.input.extend_from_slice(bytes);
        direct.has_turn = true;
        let delay = self.random.between(20, MILLI);
        self.at(delay, Event::DirectArrives(client));
    }

    fn direct_turn(&mut self, client: usize) {
        let Some(server) = &mut self.server else { return };
        let Some(direct) = server.directs.get_mut(&client).filter(|direct| !direct.is_held) else { return };
        direct.has_turn = false;
        if direct.turn() {
            direct.is_held = true;
            self.soon(Event::DirectSafe(client));
        }
    }

    fn direct_safe(&mut self, client: usize) -> Checked {
        let Some(server) = &mut self.server else { return Ok(()) };
        let Some(direct) = server.directs.get_mut(&client).filter(|direct| direct.is_held) else {
            return Ok(());
        };
        let is_safe = direct.is_safe() || self.mutant == Some(Mutant::DirectReplyBeforeCommit);
        self.look_at_disk()?;
        self.listen()?;
        let Some(server) = &mut self.server else { return Ok(()) };
        let Some(direct) = server.directs.get_mut(&client) else { return Ok(()) };
        if !is_safe {
            self.soon(Event::Sync(self.server_life));
            self.at(MILLI, Event::DirectSafe(client));
            return Ok(());
        }
        let replies: Vec<u8> = direct.replies.drain().flatten().collect();
        direct.is_held = false;
        direct.has_turn = true;
        self.soon(Event::DirectTurn(client));
        self.client_gets(client, &replies, false)
    }

    // ---- faults

    fn fault(&mut self, n: usize) -> Checked {
        let (_, fault) = self.plan.faults[n];
        trace!(self, "FAULT {fault:?}");
        match fault {
            Fault::Kill { away } => {
                if self.server.is_some() {
                    self.crash(false)?;
                    self.at(away, Event::Start);
                }
            }
            Fault::PowerCut { away } => {
                if self.server.is_some() {
                    self.crash(true)?;
                    self.at(away, Event::Start);
                }
            }
            Fault::KillInWrite { steps, away } => {
                if self.server.is_some() && self.plan.keeping != Keeping::Nothing {
                    self.disk.disk.stop_after(steps as usize);
                    self.stopped_for = away;
                }
            }
            Fault::Break { relay } => self.cut(relay, true, true),
            Fault::HalfOpen { relay } => self.cut(relay, true, false),
            Fault::HalfOpenAtServer { relay } => self.cut(relay, false, true),
            Fault::Partition { relay, lasts } => {
                self.tally.breaks += 1;
                self.relays[relay].partitioned_until = self.now + lasts;
            }
            Fault::KillRelay { relay, away } => self.kill_relay(relay, away),
            Fault::KillClient { client } => {
                if !self.clients[client].is_gone() {
                    self.client_closes(client)?;
                }
            }
            Fault::Full { lasts } => {
                let room = self.random.below(300);
                self.fill(Some(room as usize));
                self.at(lasts, Event::NotFull);
            }
        }
        Ok(())
    }

    /// A relay's connection breaks; who notices does so at once.
    fn cut(&mut self, relay: usize, at_relay: bool, at_server: bool) {
        let Some(conn) = self.relays[relay].conn else { return };
        self.tally.breaks += 1;
        if let Some(it) = self.conns.get_mut(&conn) {
            for pipe in [&mut it.up, &mut it.down] {
                // A part of what is on its way still arrives.
                let arrives = self.random.below(pipe.pieces.len() as u64 + 1) as usize;
                pipe.pieces.truncate(arrives);
            }
            it.up.is_dead = !at_server;
            it.down.is_dead = !at_relay;
        }
        if at_relay {
            self.put(conn, Way::ToRelay, Piece::End);
        }
        if at_server {
            self.put(conn, Way::ToServer, Piece::End);
        }
    }

    fn kill_relay(&mut self, relay: usize, away: Micros) {
        let it = &mut self.relays[relay];
        if it.end.take().is_none() {
            return;
        }
        let clients: Vec<usize> =
            std::mem::take(&mut it.clients).into_values().map(|(client, _)| client).collect();
        let conn = it.conn.take();
        for client in clients {
            self.client_dies(client, "its relay is gone");
        }
        if let Some(conn) = conn {
            if let Some(it) = self.conns.get_mut(&conn) {
                it.relay_has = false;
            }
            self.put(conn, Way::ToServer, Piece::End);
        }
        self.at(away, Event::StartRelay(relay));
    }
}

/// The relay whose link has this name.
fn relay_of(name: &str) -> Option<usize> {
    name.strip_prefix("node-")?.parse().ok()
}

/// A request in the words of the model.
fn act_of(request: &Request<'_>) -> Act {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match *request {
        Request::Set { key, value } => Act::Set(key_of(key), text(value.as_slice())),
        Request::CompareSet { key, expected, desired } => {
            Act::CompareSet(key_of(key), text(expected), text(desired.as_slice()))
        }
        Request::Get { key } => Act::Get(key_of(key)),
        Request::Add { key, delta } => Act::Add(key_of(key), delta),
        Request::Check(keys) => Act::Check(keys.iter().map(key_of).collect()),
        Request::Wait(keys) => Act::Wait(keys.iter().map(key_of).collect()),
        Request::NumKeys => Act::NumKeys,
        Request::Delete { key } => Act::Delete(key_of(key)),
        Request::Append { key, value } => Act::Append(key_of(key), text(value)),
        Request::MultiGet(keys) => Act::MultiGet(keys.iter().map(key_of).collect()),
        Request::MultiSet(pairs) => {
            Act::MultiSet(pairs.iter().map(|(key, value)| (key_of(key), text(value.as_slice()))).collect())
        }
        Request::CancelWait => Act::Cancel,
        Request::Ping { nonce } => Act::Ping(nonce),
        Request::QueuePush { key, value } => Act::Push(key_of(key), text(value.as_slice())),
        Request::QueuePop { key } => Act::Pop(key_of(key)),
        Request::QueueLen { key } => Act::Len(key_of(key)),
        Request::ListKeys => Act::List,
        Request::Barrier { key, world_size } => Act::Barrier(key_of(key), world_size),
    }
}

fn key_of(key: &[u8]) -> Key {
    let all = TEXTS.iter().chain(&NUMBERS).chain(&QUEUES).chain(&BARRIERS);
    all.copied().find(|known| known.as_bytes() == key).unwrap_or("?")
}

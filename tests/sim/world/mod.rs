//! The world of one run: an agenda of events on an invented clock, and everything that they move.

/// Notes a line, if somebody will read it.
macro_rules! trace {
    ($world:expr, $($words:tt)*) => {
        if $world.trace.is_some() {
            let line = format!($($words)*);
            $world.note(&line);
        }
    };
}

mod calls;
mod clients;
mod engine;
mod faults;
mod holds;
mod jobs;
mod network;
mod nodes;
mod process;
mod relays;
mod runs;
mod words;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use super::super::clock::invented;
use super::super::engine::tap;
use super::super::engine::tap::Tapped;
use super::super::journal::CommitNumber;
use super::super::journal::faults::Disk;
use super::client::Client;
use super::disk::Noted;
use super::jobs::ADDRESSES;
use super::mutants::Mutant;
use super::plan::{BARRIERS, ClientPlan, MILLI, Micros, NUMBERS, Plan, QUEUES, SECOND, Step, TEXTS};
use super::random::Random;
use super::reference::{Done, Reference};
use super::server::{PORT, Server};
use crate::core::ids::{ConnId, Timestamp};
use crate::core::link::{RelayEnd, SessionNo, TICK};
use crate::core::protocol::Request;
use crate::core::store::tests::model::{Act, Key};
use jobs::Job;
pub(super) use runs::LINGER;
use runs::Runs;
use words::Words;

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
    /// Another process comes in place of a node's last one; with the same id or not.
    NodeComes(usize, bool),
    NodeActs(usize, u32),
    NodeFault(usize),
    Arrives(usize),
    Announces(usize),
    /// The process of a rank comes, in this attempt.
    RankComes(usize, u32),
    JobFault(usize),
    /// A process of the job is killed.
    ProcessEnds(usize),
    /// The launcher of the job looks at its processes.
    Launch,
    /// A request of the HTTP API gets its turn.
    Poll(u64),
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
    /// How often a node was told its rank.
    pub(super) rounds: u64,
    /// Words of insight that were compared.
    pub(super) said: u64,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.requests += other.requests;
        self.crashes += other.crashes;
        self.breaks += other.breaks;
        self.compared += other.compared;
        self.rounds += other.rounds;
        self.said += other.said;
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { events, requests, crashes, breaks, compared, rounds, said } = self;
        write!(
            f,
            "{events} events, {requests} requests, {crashes} deaths of the server, {breaks} breaks of a link, {rounds} \
             ranks told, {said} words of insight, {compared} comparisons at rest"
        )
    }
}

/// What was heard of the engine.
#[derive(Debug)]
enum Note {
    Connected(ConnId, SocketAddr),
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
    /// The connections of clients that this server took in.
    known_as: BTreeMap<usize, ConnId>,
    /// Clients of which this server knows, or its journal.
    heard_of: BTreeSet<usize>,
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
    runs: Runs,
    job: Job,
    words: Words,
    pub(super) tally: Tally,
}

type Checked = Result<(), String>;

/// A failed run.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) why: String,
    pub(super) trace: Vec<String>,
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
        tap::listen(move |port, tapped| {
            // Stores of rounds are compared with nothing: their workers look at them themselves.
            if deaf.get() || port != PORT {
                return;
            }
            hears.borrow_mut().push(match tapped {
                Tapped::Connected(conn, addr) => Note::Connected(conn, addr),
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
            known_as: BTreeMap::new(),
            heard_of: BTreeSet::new(),
            is_calm: false,
            excused: BTreeSet::new(),
            has_lost: false,
            merged: BTreeMap::new(),
            mutant,
            trace: with_trace.then(Vec::new),
            runs: Runs::new(&plan),
            job: Job::default(),
            words: Words::new(),
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
        world.remember();
        world.begin_runs();
        world.begin_job();
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
        let of_job = self.plan.job.iter().flat_map(|job| &job.faults).map(|(at, _)| *at);
        let last = self.plan.faults.iter().map(|(at, _)| *at).chain(of_job).max().unwrap_or(0) + MILLI;
        self.run_until(last, |_| false)?;
        self.run_until(last + 5 * SECOND, Self::are_clients_still)?;
        self.is_calm = true;
        for relay in &mut self.relays {
            relay.partitioned_until = relay.partitioned_until.min(self.now);
        }
        self.fill(None);
        trace!(self, "the faults are over");
        self.end_job()?;
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
        self.settle_runs()?;
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
            self.settle_runs()?;
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
        self.check_memory()
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
                if self.is_held(client)? {
                    return Ok(());
                }
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
            Event::NodeComes(node, same_id) => {
                self.node_comes(node, same_id);
                Ok(())
            }
            Event::NodeActs(node, life) => self.node_acts(node, life),
            Event::NodeFault(n) => {
                self.node_fault(n);
                Ok(())
            }
            Event::Arrives(n) => self.arrives(n),
            Event::Announces(pod) => self.announces(pod),
            Event::RankComes(rank, attempt) => {
                self.rank_comes(rank, attempt);
                Ok(())
            }
            Event::JobFault(n) => self.job_fault(n),
            Event::ProcessEnds(client) => self.process_ends(client),
            Event::Launch => {
                self.launch();
                Ok(())
            }
            Event::Poll(call) => self.poll_call(call),
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
        if self.has_runs() {
            self.look_at_calls(false);
        }
        Ok(())
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
    let all = TEXTS.iter().chain(&NUMBERS).chain(&QUEUES).chain(&BARRIERS).chain(&ADDRESSES);
    all.copied().find(|known| known.as_bytes() == key).unwrap_or("?")
}

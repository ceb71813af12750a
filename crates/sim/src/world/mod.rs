//! The world of one run: an agenda of events on an invented clock, and everything that they move.

/// Adds a line to the trace, if somebody will read it.
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
mod elastic;
mod engine;
mod faults;
mod holds;
mod jobs;
mod life;
mod memory;
mod network;
mod nodes;
mod process;
mod relays;
mod rough;
mod runs;
mod words;
mod workers;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use super::client::Client;
use super::disk::Noted;
use super::mutants::Mutant;
use super::plan::{Cast, MILLI, Micros, Plan, SECOND};
use super::random::Random;
use super::reference::{Done, Reference};
use super::server::{PORT, Server};
use super::tally::Tally;
use elastic::Elastic;
use engine::act_of;
use jobs::Job;
use memory::Shortage;
use rallypoint_link::{RelayEnd, SessionNo, TICK};
use rallypoint_map::decided;
use rallypoint_protocol::ids::{ConnId, Timestamp};
use rallypoint_server::engine::tap;
use rallypoint_server::engine::tap::Tapped;
use rallypoint_server::journal::CommitNumber;
use rallypoint_server::journal::faults::Disk;
use rallypoint_store::KEY_BY_KEY;
use rallypoint_store::testing::model::Act;
pub(super) use runs::LINGER;
use runs::Runs;
use words::Words;
use workers::Worker;

/// The ports of clients begin here.
const FIRST_PORT: u16 = 10_000;
const TICK_OF_LINK: Micros = TICK.as_micros() as Micros;
const TICK_OF_SERVER: Micros = 250 * MILLI;
/// After a link has been away for this long, the server ends its clients (--link-grace).
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
    /// The disk has more room, and after this many more steps all of it.
    Freed {
        steps: u8,
    },
    NotRefused,
    MemoryIsFree,
    /// Another process replaces a node's last one, with the same id or with another.
    NodeComes(usize, bool),
    NodeActs(usize, u32),
    NodeFault(usize),
    /// An operator says how many nodes to expect.
    Wishes(usize),
    Arrives(usize),
    Announces(usize),
    /// The process of a rank comes, in this attempt.
    RankComes(usize, u32),
    JobFault(usize),
    /// A process of the job is killed.
    ProcessEnds(usize),
    /// The launcher of the job checks its processes.
    Launch,
    /// The agent of a node of a job comes.
    AgentComes(usize, usize),
    AgentFault(usize, usize),
    /// The launcher of a job checks its agents.
    LaunchAgents(usize),
    Rough(usize),
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
    /// Nothing arrives any more, and neither end is told.
    is_dead: bool,
}

/// One TCP connection between a relay and the server.
struct Conn {
    relay: usize,
    up: Pipe,
    down: Pipe,
    /// Bytes to the server arrive no earlier than this.
    up_comes_at: Micros,
    /// Until this time bytes are held up, because nothing gets through.
    stuck_until: Micros,
    relay_has: bool,
    server_has: bool,
}

struct Relay {
    end: Option<RelayEnd>,
    life: u64,
    conn: Option<u32>,
    input: BytesMut,
    /// The clients, with the bytes that each has not read yet.
    clients: BTreeMap<SessionNo, (usize, BytesMut)>,
    /// Clients with an unread answer that the relay may have made itself.
    early: BTreeSet<usize>,
    attempts: u32,
    partitioned_until: Micros,
    is_sending: bool,
    /// Whether it was away for longer than the server waits.
    was_long_away: bool,
    /// Whether it has died, with what it had to bring.
    was_killed: bool,
}

/// What the engine did.
#[derive(Debug)]
enum Note {
    Connected(ConnId, SocketAddr),
    Begun(u32, Act, Range<usize>),
    Applied(u32, Act, usize),
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
    shortage: Shortage,
    /// If its disk stops, the server is away for this long.
    stopped_for: Micros,
    relays: Vec<Relay>,
    conns: BTreeMap<u32, Conn>,
    next_conn: u32,
    clients: Vec<Client>,
    reference: Reference,
    heard: Rc<RefCell<Vec<Note>>>,
    /// What the engine has done in the critical section that has not ended.
    section: Vec<Done>,
    is_deaf: Rc<Cell<bool>>,
    /// The connections that this server has for its clients.
    known_as: BTreeMap<usize, ConnId>,
    /// Clients that this server or its journal knows.
    heard_of: BTreeSet<usize>,
    /// Connections of foreign peers.
    strangers: BTreeSet<u32>,
    /// Whether the faults are over.
    is_calm: bool,
    /// Clients from before a death in which the server was allowed to lose what it had told them.
    excused: BTreeSet<usize>,
    /// Whether there was such a death.
    has_lost: bool,
    /// Clients whose GETs wait for the answers of other clients: a planted bug.
    merged: BTreeMap<usize, usize>,
    mutant: Option<Mutant>,
    trace: Option<Vec<String>>,
    runs: Runs,
    job: Job,
    elastic: Elastic,
    /// All ranks of native runs and of agents so far.
    workers: Vec<Worker>,
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
            Ok(()) => Ok(Tally { course: world.tally.course ^ world.disk.digest(), ..world.tally }),
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
            // The stores of rounds are not compared here: their workers check them.
            if deaf.get() || port != PORT {
                return;
            }
            hears.borrow_mut().push(match tapped {
                Tapped::Connected(conn, addr) => Note::Connected(conn, addr),
                Tapped::Begun(conn, request, keys) => Note::Begun(conn.serial(), act_of(request), keys),
                Tapped::Applied(conn, request, before) => {
                    Note::Applied(conn.serial(), act_of(request), before)
                }
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
            was_killed: false,
        });
        decided::order_by(plan.seed);
        KEY_BY_KEY.set(Cast::of(plan.seed) == Cast::Slices);
        let disk = Noted::new(Disk::default(), mutant);
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
            shortage: Shortage::default(),
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
            strangers: BTreeSet::new(),
            is_calm: false,
            excused: BTreeSet::new(),
            has_lost: false,
            merged: BTreeMap::new(),
            mutant,
            trace: with_trace.then(Vec::new),
            runs: Runs::new(&plan),
            job: Job::default(),
            elastic: Elastic::default(),
            workers: Vec::new(),
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
        world.begin_elastic();
        world.begin_rough();
        world
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn note(&mut self, line: &str) {
        /// The state of a c10d run has thousands of characters, which would fill the screen.
        const MOST: usize = 400;
        let at = format!("{:>12.3} ms  ", self.now as f64 / 1000.0);
        if let Some(trace) = &mut self.trace {
            let rest = if line.chars().nth(MOST).is_some() { " ..." } else { "" };
            trace.push(at + line.chars().take(MOST).collect::<String>().as_str() + rest);
        }
    }

    fn at(&mut self, after: Micros, event: Event) {
        self.scheduled += 1;
        self.agenda.insert((self.now + after, self.scheduled), event);
    }

    /// Puts an event on the agenda after a short random time, so that the order varies.
    fn soon(&mut self, event: Event) {
        let after = self.random.below(300);
        self.at(after, event);
    }

    fn timestamp(&self) -> Timestamp {
        Timestamp(Duration::from_micros(self.now))
    }
}

/// The relay whose link has this name.
fn relay_of(name: &str) -> Option<usize> {
    name.strip_prefix("node-")?.parse().ok()
}

//! Arbitrary requests from several clients that come and go. The store never panics, sends the number of
//! replies that the protocol demands, ends each wait once, and forgets everything about disconnected clients.
#![no_main]

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rallypoint_protocol::ids::{ConnId, Timestamp};
use rallypoint_protocol::{Decoded, Decoder, LegacyRelease, Limits, Op, Reply, Request, encode_hello};
use rallypoint_store::{Capacity, Cleanup, Effects, Progress, StaleKeyConfig, Store};

const CLIENTS: usize = 5;

/// Few keys, so that the clients meet. The rules for stale keys act on most of them.
const KEYS: [&[u8]; 16] = [
    b"/a",
    b"/b",
    b"/queue",
    b"/barrier",
    b"",
    b"init/",
    b"/default_pg/0//cpu//0/0",
    b"/default_pg/0//cpu//0/1",
    b"/default_pg/0//cuda//0",
    b"/default_pg/store_based_barrier_key:0",
    b"/none/torchelastic/role_info/0",
    b"/none/torchelastic/assigned_ranks/1",
    b"/none/torchelastic/agent/terminal_state/last_member",
    b"/torch.rendezvous.job",
    b"/torch.rendezvous.job.0/MASTER_ADDR",
    b"/torch.rendezvous.job.0/torchelastic/agent/terminal_state/last_member",
];

#[derive(Debug, Arbitrary)]
enum Step {
    Request { client: u8, request: Command },
    Leave { client: u8 },
    Pause { seconds: u8 },
    Reset,
}

#[derive(Debug, Arbitrary)]
enum Command {
    Set(u8, Vec<u8>),
    CompareSet(u8, Vec<u8>, Vec<u8>),
    Get(u8),
    Add(u8, i64),
    Check(Vec<u8>),
    Wait(Vec<u8>),
    NumKeys,
    Delete(u8),
    Append(u8, Vec<u8>),
    MultiGet(Vec<u8>),
    MultiSet(Vec<(u8, u8)>),
    CancelWait,
    Ping(u8),
    QueuePush(u8, Vec<u8>),
    QueuePop(u8),
    QueueLen(u8),
    ListKeys,
    Barrier(u8, i8),
}

#[derive(Debug, Arbitrary)]
struct Input {
    small: bool,
    steps: Vec<Step>,
}

fn key(index: u8) -> &'static [u8] {
    KEYS[usize::from(index) % KEYS.len()]
}

/// A command on the wire: only the decoder can make a [`Request`] with a list of keys.
struct Wire(Vec<u8>);

impl Wire {
    fn new(op: Op) -> Self {
        Self(vec![op as u8])
    }

    fn number(mut self, number: i64) -> Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    fn string(mut self, bytes: &[u8]) -> Self {
        self = self.number(bytes.len() as i64);
        self.0.extend_from_slice(bytes);
        self
    }

    fn keys(self, indices: &[u8]) -> Self {
        indices.iter().fold(self.number(indices.len() as i64), |wire, &index| wire.string(key(index)))
    }
}

impl Command {
    fn to_wire(&self) -> Vec<u8> {
        let wire = match self {
            Self::Set(k, value) => Wire::new(Op::Set).string(key(*k)).string(value),
            Self::CompareSet(k, expected, desired) => {
                Wire::new(Op::CompareSet).string(key(*k)).string(expected).string(desired)
            }
            Self::Get(k) => Wire::new(Op::Get).string(key(*k)),
            Self::Add(k, delta) => Wire::new(Op::Add).string(key(*k)).number(*delta),
            Self::Check(keys) => Wire::new(Op::Check).keys(keys),
            Self::Wait(keys) => Wire::new(Op::Wait).keys(keys),
            Self::NumKeys => Wire::new(Op::NumKeys),
            Self::Delete(k) => Wire::new(Op::Delete).string(key(*k)),
            Self::Append(k, value) => Wire::new(Op::Append).string(key(*k)).string(value),
            Self::MultiGet(keys) => Wire::new(Op::MultiGet).keys(keys),
            Self::MultiSet(pairs) => {
                let wire = Wire::new(Op::MultiSet).number(pairs.len() as i64);
                pairs.iter().fold(wire, |wire, &(k, value)| wire.string(key(k)).string(&[value]))
            }
            Self::CancelWait => Wire::new(Op::CancelWait),
            Self::Ping(pid) => Wire([&[Op::Ping as u8][..], &u32::from(*pid).to_le_bytes()].concat()),
            Self::QueuePush(k, value) => Wire::new(Op::QueuePush).string(key(*k)).string(value),
            Self::QueuePop(k) => Wire::new(Op::QueuePop).string(key(*k)),
            Self::QueueLen(k) => Wire::new(Op::QueueLen).string(key(*k)),
            Self::ListKeys => Wire::new(Op::ListKeys),
            Self::Barrier(k, size) => Wire::new(Op::Barrier).string(key(*k)).number((*size).into()),
        };
        wire.0
    }
}

/// The effects of one request.
#[derive(Default)]
struct Seen {
    replies: usize,
    /// The first number in the replies.
    number: Option<i64>,
    /// Whether a reply ended the request's own wait.
    went_on: bool,
    woken: Vec<ConnId>,
}

impl Effects for Seen {
    fn reply(&mut self, reply: Reply<'_>) {
        self.replies += match reply {
            Reply::Keys(keys) => keys.len(),
            Reply::Values(values) => values.as_list().len(),
            _ => 1,
        };
        match reply {
            Reply::Number(number) if self.number.is_none() => self.number = Some(number),
            Reply::StopWaiting => self.went_on = true,
            _ => {}
        }
    }

    fn wake(&mut self, conn: ConnId, _: Timestamp) {
        self.woken.push(conn);
    }

    fn cleanup(&mut self, cleanup: Cleanup) {
        let _ = format!("{cleanup:?}");
    }
}

/// The number of replies to `request`, if its kind determines it.
fn expected_replies(request: &Request<'_>, seen: &Seen) -> usize {
    match request {
        Request::Set { .. } | Request::Append { .. } | Request::MultiSet(_) | Request::QueuePush { .. } => 0,
        Request::MultiGet(keys) => keys.len(),
        Request::QueuePop { .. } => 1 + usize::from(seen.number > Some(0)),
        Request::ListKeys => 1 + seen.number.map_or(0, |keys| keys as usize),
        Request::Wait(_) | Request::Barrier { .. } => usize::from(seen.went_on),
        _ => 1,
    }
}

struct World {
    store: Store,
    clients: [Option<ConnId>; CLIENTS],
    /// Whether the client has an outstanding wait, according to the replies.
    waits: [bool; CLIENTS],
    serial: u32,
    now: Timestamp,
    decoder: Decoder,
    /// Names that have ever been a queue: an item is offered to one waiter only, and the others go on
    /// waiting.
    queues: HashSet<Vec<u8>>,
}

impl World {
    fn new(input: &Input) -> Self {
        let capacity = match input.small {
            true => Capacity { keys: 6, bytes: 4096 },
            false => Capacity { keys: 1000, bytes: 1 << 30 },
        };
        let mut hello = Vec::new();
        encode_hello(&mut hello);
        let mut decoder = Decoder::new(Limits::default(), LegacyRelease::default());
        assert_eq!(decoder.decode(&hello, None), Ok(Decoded::Hello { len: 5 }));
        Self {
            store: Store::new(capacity, StaleKeyConfig::default()),
            clients: [None; CLIENTS],
            waits: [false; CLIENTS],
            serial: 0,
            now: Timestamp::default(),
            decoder,
            queues: HashSet::new(),
        }
    }

    fn connection(&mut self, client: usize) -> ConnId {
        *self.clients[client].get_or_insert_with(|| {
            self.serial += 1;
            let conn = ConnId::new(client as u32, self.serial);
            self.store.connect(conn, SocketAddr::from(([10, 0, 0, client as u8], 40000 + client as u16)));
            conn
        })
    }

    fn client(conn: ConnId) -> usize {
        conn.slot()
    }

    /// Checks that every wake ends an existing wait of a connected client.
    fn take_wakes(&mut self, woken: &[ConnId]) {
        for &conn in woken {
            assert_eq!(self.clients[Self::client(conn)], Some(conn), "woke a client that is gone");
            let waits = &mut self.waits[Self::client(conn)];
            assert!(std::mem::take(waits), "woke {conn:?}, which does not wait");
        }
    }

    fn request(&mut self, client: usize, command: &Command) {
        let wire = command.to_wire();
        let conn = self.connection(client);
        let decoded = self.decoder.decode(&wire, None);
        let Ok(Decoded::Request { request, len }) = decoded else {
            panic!("{command:?} is decoded as {decoded:?}");
        };
        assert_eq!(len, wire.len());
        if let Request::QueuePush { key, .. } = request {
            self.queues.insert(key.to_vec());
        }
        let before = self.store.stats();
        let mut seen = Seen::default();
        let applied = self.store.apply(conn, &request, self.now, &mut seen);
        match applied {
            Ok(progress) => {
                assert_eq!(progress, Progress::Done, "so few keys are done at once");
                assert_eq!(seen.replies, expected_replies(&request, &seen), "{request:?}");
            }
            Err(_) => {
                assert_eq!(seen.replies, 0, "a refused request is not answered");
                assert!(self.store.stats().keys <= before.keys);
            }
        }
        // The wakes precede the effects of this request on its own connection.
        let woken: Vec<_> = seen.woken.clone();
        if matches!(request, Request::CancelWait | Request::Wait(_) | Request::Barrier { .. })
            && applied.is_ok()
        {
            // These end a wait of this connection without a wake.
            let others: Vec<_> = woken.iter().copied().filter(|&other| other != conn).collect();
            self.take_wakes(&others);
            let parks = !matches!(request, Request::CancelWait) && !seen.went_on;
            self.waits[client] = parks && !woken.contains(&conn);
        } else {
            self.take_wakes(&woken);
        }
        if applied.is_err() {
            self.leave(client);
        }
    }

    fn leave(&mut self, client: usize) {
        if let Some(conn) = self.clients[client].take() {
            self.waits[client] = false;
            let mut seen = Seen::default();
            self.store.disconnect(conn, self.now, &mut seen);
            assert_eq!(seen.replies, 0);
            self.take_wakes(&seen.woken);
        }
    }

    fn idle(&mut self, doing: impl FnOnce(&mut Store, Timestamp, &mut Seen)) {
        let mut seen = Seen::default();
        doing(&mut self.store, self.now, &mut seen);
        assert_eq!((seen.replies, seen.woken.len()), (0, 0), "nothing that is dropped ends a wait");
    }

    fn check(&self) {
        let stats = self.store.stats();
        assert_eq!(stats.connections, self.clients.iter().flatten().count());
        assert_eq!(stats.waiters, self.waits.iter().filter(|&&waits| waits).count());
        for (client, conn) in self.clients.iter().enumerate() {
            assert_eq!(conn.is_some_and(|conn| self.store.waiting_since(conn).is_some()), self.waits[client]);
        }
        for wait in self.store.waits(self.now, usize::MAX, usize::MAX) {
            let on_queue = wait.missing.is_empty() && !self.queues.is_empty();
            assert!(!wait.missing.is_empty() || on_queue, "everything is there and {wait:?} still waits");
        }
    }
}

fuzz_target!(|input: Input| {
    let mut world = World::new(&input);
    for step in &input.steps {
        match step {
            Step::Request { client, request } => world.request(usize::from(*client) % CLIENTS, request),
            Step::Leave { client } => world.leave(usize::from(*client) % CLIENTS),
            Step::Pause { seconds } => {
                world.now = world.now + Duration::from_secs((*seconds).into());
                world.idle(|store, now, seen| store.tick(now, seen));
            }
            Step::Reset => world.idle(|store, _, seen| store.reset(seen)),
        }
        world.check();
    }
    for client in 0..CLIENTS {
        world.leave(client);
    }
    // A reset drops every key of a job; no name without a waiter takes room.
    world.store.reset(&mut Seen::default());
    world.check();
    let left = world.store.stats();
    assert_eq!((left.keys, left.bytes), (0, 0), "something is kept for clients that are gone");
});

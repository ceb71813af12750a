//! A broken or hostile peer must not harm others. Raw sockets against the binary.
//!
//! During each attack two good clients work, one on the attacked server and one on an idle control server.
//! The test compares their round trips, so that a slow machine slows both; no test uses absolute times.
//! Memory is the peak of the server's process, and `/metrics` shows the outcomes of the attackers.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rallypoint_protocol::Op;
use socket2::SockRef;

use crate::common::peer::{HELLO, wire};
use crate::common::{PATIENCE, StopOnDrop, TestServer, eventually, http};

const MIB: usize = 1 << 20;

// ----- bytes -----

fn request(op: Op, parts: &[&[u8]]) -> Vec<u8> {
    [&[op as u8][..], &parts.concat()].concat()
}

fn number(number: usize) -> [u8; 8] {
    (number as u64).to_le_bytes()
}

fn set(key: &[u8], value: &[u8]) -> Vec<u8> {
    request(Op::Set, &[&wire(key), &wire(value)])
}

fn key_list(op: Op, keys: impl ExactSizeIterator<Item = String>) -> Vec<u8> {
    let mut bytes = request(op, &[&number(keys.len())]);
    keys.for_each(|key| bytes.extend(wire(key.as_bytes())));
    bytes
}

/// Pseudo-random bytes, equal in every run.
fn garbage(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// torchrun's rendezvous state of a round with this many nodes: base64 of a pickle.
fn rendezvous_state(nodes: u32) -> Vec<u8> {
    let text = |text: &str| [&[0x8c, text.len() as u8], text.as_bytes()].concat();
    let class = |name: &str| {
        let module = "torch.distributed.elastic.rendezvous.dynamic_rendezvous";
        [&text(module)[..], &text(name), b"\x93)\x81}("].concat()
    };
    let participants = (0..nodes).flat_map(|n| {
        let (addr, pid) = (text(&format!("node-{n:06}.job.namespace.svc.cluster.local")), n.to_le_bytes());
        let fields = [&text("addr")[..], &addr, &text("pid"), b"J", &pid, &text("local_id"), b"K\0"].concat();
        [&class("_NodeDesc")[..], &fields, b"ub", b"J", &pid].concat()
    });
    let fields = [
        ("round", b"K\0".to_vec()),
        ("complete", vec![0x88]),
        ("deadline", b"N".to_vec()),
        ("closed", vec![0x89]),
        ("participants", [b"}(", &participants.collect::<Vec<u8>>()[..], b"u"].concat()),
        ("wait_list", b"\x8f".to_vec()),
        ("redundancy_list", b"\x8f".to_vec()),
        ("last_heartbeats", b"}".to_vec()),
    ];
    let fields: Vec<u8> = fields.iter().flat_map(|(name, value)| [&text(name)[..], value].concat()).collect();
    let pickle = [b"\x80\x04", &class("_RendezvousState")[..], &fields, b"ub."].concat();
    STANDARD.encode(pickle).into_bytes()
}

// ----- connections -----

fn connect(server: SocketAddr) -> TcpStream {
    prepared(TcpStream::connect(server).expect("the server listens"))
}

/// Connects from another of the machine's own addresses.
fn connect_from(source: Ipv4Addr, server: SocketAddr) -> TcpStream {
    prepared(crate::common::connect_from(source, server))
}

fn prepared(stream: TcpStream) -> TcpStream {
    stream.set_nodelay(true).expect("a socket option");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket option");
    stream.set_write_timeout(Some(PATIENCE)).expect("a socket option");
    stream
}

/// A connection of PyTorch 2.2 or later that has sent its hello and then `bytes`.
fn greet(server: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = connect(server);
    stream.write_all(&[&HELLO, bytes].concat()).expect("the server reads");
    stream
}

/// Makes the connection end with RST on its drop, so that no port stays in TIME_WAIT.
fn resetting(stream: TcpStream) -> TcpStream {
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("a socket option");
    stream
}

/// Reads until the server closes the connection. Panics if it does not.
fn read_until_closed(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => bytes,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => bytes,
        Err(error) => panic!("the server does not close the connection: {error}"),
    }
}

/// A client that breaks no rule.
struct Client(TcpStream);

impl Client {
    fn new(server: SocketAddr) -> Self {
        Self(greet(server, &[]))
    }

    fn ask(&mut self, bytes: &[u8], reply: usize) -> Vec<u8> {
        self.0.write_all(bytes).expect("the server reads");
        let mut answer = vec![0; reply];
        self.0.read_exact(&mut answer).expect("the server answers");
        answer
    }

    /// Stores a value and reads it back. Returns the time of the round trip.
    fn round_trip(&mut self) -> Duration {
        let started = Instant::now();
        let both = [set(b"/bystander", b"value"), request(Op::Get, &[&wire(b"/bystander")])].concat();
        assert_eq!(self.ask(&both, 13), wire(b"value"), "the reply of another");
        started.elapsed()
    }

    fn num_keys(&mut self) -> u64 {
        let reply = self.ask(&[Op::NumKeys as u8], 8);
        u64::from_le_bytes(reply.try_into().expect("8 bytes"))
    }
}

// ----- measurements -----

/// The sum of the series of `name` with `label` in their labels.
fn metric(server: &TestServer, name: &str, label: &str) -> u64 {
    let answer = http(server.admin, "GET /metrics", "", "");
    assert_eq!(answer.status, 200, "{answer:?}");
    let page = answer.body;
    let of_name = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
    let values = page.lines().filter(of_name).filter(|line| line.contains(label));
    values
        .map(|line| line.rsplit(' ').next().and_then(|n| n.parse::<f64>().ok()).expect("a number") as u64)
        .sum()
}

fn outcome(server: &TestServer, outcome: &str) -> u64 {
    metric(server, "rallypoint_connections_total", &format!("outcome=\"{outcome}\""))
}

fn connections(server: &TestServer) -> u64 {
    metric(server, "rallypoint_connections", "")
}

/// The peak memory of the server's process, in bytes.
pub(super) fn peak_memory(server: &TestServer) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux tells it");
    line.trim().trim_end_matches(" kB").trim().parse::<usize>().expect("a number") * 1024
}

/// An attacked server, a control server, and a client of each.
struct Scene {
    server: TestServer,
    bystander: Client,
    _control: TestServer,
    control: Client,
    memory_at_start: usize,
}

impl Scene {
    fn new(args: &[&str]) -> Self {
        let (server, control) = (TestServer::start(args), TestServer::start(args));
        let mut bystander = Client::new(server.store);
        let mut control_client = Client::new(control.store);
        bystander.round_trip();
        control_client.round_trip();
        let memory_at_start = peak_memory(&server);
        Self { server, bystander, _control: control, control: control_client, memory_at_start }
    }

    /// Checks that the median round trip of the attacked server is about as long as the other's. Measures the
    /// two in turns.
    fn assert_others_are_served(&mut self) {
        const AT_LEAST: usize = 400;
        const FOR: Duration = Duration::from_millis(500);
        let (mut here, mut there) = (Vec::new(), Vec::new());
        let started = Instant::now();
        while here.len() < AT_LEAST || started.elapsed() < FOR {
            here.push(self.bystander.round_trip());
            there.push(self.control.round_trip());
        }
        here.sort_unstable();
        there.sort_unstable();
        let middle = here.len() / 2;
        let (here, there) = (here[middle], there[middle]);
        println!("median of {} round trips: {here:?} during the attack, {there:?} without", 2 * middle);
        assert!(
            here <= 20 * there + Duration::from_millis(2),
            "{here:?} during the attack, {there:?} without"
        );
    }

    /// Like [`Self::assert_others_are_served`], while `attack` runs. The attack must return soon after the
    /// flag is set.
    fn assert_others_are_served_during(&mut self, attack: impl Fn(&AtomicBool) + Sync) {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| attack(&stop));
            let _stop = StopOnDrop(&stop);
            self.assert_others_are_served();
        });
    }

    /// Checks that the server's memory never grew more than a fifth above `limit`. The memory before the
    /// attack does not count: the program and its buffers are independent of the limit.
    fn assert_memory_within(&self, limit: usize) {
        let grown = peak_memory(&self.server) - self.memory_at_start;
        println!("memory grew by {} KiB, the limit is {} KiB", grown / 1024, limit / 1024);
        assert!(grown <= limit + limit / 5, "memory grew by {} KiB of {}", grown / 1024, limit / 1024);
    }
}

// ----- attacks -----

#[test]
fn an_endless_key_is_refused_when_its_length_is_read() {
    let mut scene = Scene::new(&["--max-memory", "64MiB"]);
    let announced = request(Op::Get, &[&number(1 << 40)]);
    let endless = |server: SocketAddr, start: &[u8]| {
        let mut stream = resetting(connect(server));
        let part = vec![b'k'; 64 * 1024];
        let mut sent = start.len();
        stream.write_all(start).expect("the server reads");
        // Far more than the socket buffers hold, so the server must have closed the connection.
        while sent < 256 * MIB && stream.write_all(&part).is_ok() {
            sent += part.len();
        }
        assert!(sent < 256 * MIB, "the server took an endless key");
    };
    let store = scene.server.store;
    scene.assert_others_are_served_during(|_| {
        for _ in 0..20 {
            endless(store, &[&HELLO[..], &announced].concat());
            // Without a hello, as 2.0 and 2.1 begin: ADD of an endless key.
            endless(store, &[&[3][..], &number(1 << 40)].concat());
        }
    });
    assert_eq!(outcome(&scene.server, "protocol_error"), 20);
    assert_eq!(outcome(&scene.server, "bad_handshake"), 20);
    scene.assert_memory_within(8 * MIB);
}

#[test]
fn half_a_request_then_silence_delays_nobody() {
    const PEERS: usize = 200;
    let mut scene = Scene::new(&["--test-settings", "handshake-timeout=1s"]);
    let store = scene.server.store;
    let half = &set(b"/half", &vec![b'v'; 40_000])[..20_000];
    // With a hello they count as slow clients; without one they are not known to be clients.
    let clients: Vec<_> = (0..PEERS).map(|_| greet(store, half)).collect();
    let mut strangers: Vec<_> = (0..PEERS).map(|_| connect(store)).collect();
    for stranger in &mut strangers {
        stranger.write_all(&half[..1 + 8 + 3]).expect("the server reads");
    }
    scene.assert_others_are_served();
    for stranger in &mut strangers {
        assert_eq!(read_until_closed(stranger), b"");
    }
    assert_eq!(outcome(&scene.server, "handshake_timeout"), PEERS as u64);
    eventually("who said hello may stay", || connections(&scene.server) == 1 + PEERS as u64);
    drop(clients);
    eventually("they leave", || connections(&scene.server) == 1);
    assert_eq!(scene.bystander.num_keys(), 1, "nothing of half a request is done");
}

#[test]
fn a_first_request_that_never_becomes_whole_is_given_up() {
    let mut scene = Scene::new(&["--test-settings", "handshake-timeout=300ms"]);
    // Two bytes of the hello; the start of an ADD of 2.0; and a peer that sends nothing at all.
    let mut hello = connect(scene.server.store);
    hello.write_all(&HELLO[..2]).expect("the server reads");
    let mut add = connect(scene.server.store);
    add.write_all(&[&[3][..], &number(5), b"ini"].concat()).expect("the server reads");
    let silent = connect(scene.server.store);
    assert_eq!(read_until_closed(&mut hello), b"");
    assert_eq!(read_until_closed(&mut add), b"");
    assert_eq!(outcome(&scene.server, "handshake_timeout"), 2);
    // 2.0 opens a second connection that never sends anything.
    eventually("only the silent one stays", || connections(&scene.server) == 2);
    drop(silent);
    scene.assert_others_are_served();
}

#[test]
fn garbage_is_closed_and_counted() {
    const EACH: u64 = 50;
    let mut scene = Scene::new(&["--test-settings", "handshake-timeout=1s"]);
    let store = scene.server.store;
    let before = outcome(&scene.server, "ok");
    scene.assert_others_are_served_during(|_| {
        for seed in 0..EACH {
            // At the start, and after a good hello. FIN tells the server that no more bytes will come.
            for start in [&[][..], &HELLO] {
                let mut stream = connect(store);
                let _ = stream.write_all(&[start, &garbage(seed, 3000)].concat());
                let _ = stream.shutdown(Shutdown::Write);
                read_until_closed(&mut stream);
            }
        }
    });
    let bad =
        ["bad_handshake", "handshake_timeout", "protocol_error"].map(|name| outcome(&scene.server, name));
    let begun_well = outcome(&scene.server, "ok") - before;
    assert!(bad.iter().sum::<u64>() >= EACH, "of {} pieces of garbage {bad:?} are counted", 2 * EACH);
    assert!(begun_well >= EACH, "who says hello first begins well, and is counted again when it goes wrong");
    eventually("all are closed", || connections(&scene.server) == 1);
}

#[test]
fn http_and_tls_clients_are_told_apart_and_closed() {
    let mut scene = Scene::new(&[]);
    let tls_hello = [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &garbage(1, 500)].concat();
    let starts: [&[u8]; 4] = [
        b"GET /metrics HTTP/1.1\r\nHost: store\r\n\r\n",
        b"POST / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n",
        &tls_hello,
    ];
    for start in starts {
        let mut stream = connect(scene.server.store);
        stream.write_all(start).expect("the server reads");
        assert_eq!(read_until_closed(&mut stream), b"");
    }
    assert_eq!(outcome(&scene.server, "bad_handshake"), 4);
    let log = || scene.server.log();
    eventually("the log names them", || log().contains("HTTP client") && log().contains("TLS client"));
    scene.assert_others_are_served();
}

#[test]
fn a_flood_of_connections_delays_nobody() {
    let mut scene = Scene::new(&[]);
    let store = scene.server.store;
    let before = outcome(&scene.server, "ok");
    let flooded = std::sync::atomic::AtomicU64::new(0);
    scene.assert_others_are_served_during(|stop| {
        // The number is bounded, and RST replaces FIN, so that the machine keeps ports for the other tests.
        while !stop.load(Relaxed) && flooded.load(Relaxed) < 10_000 {
            drop(resetting(connect(store)));
            flooded.fetch_add(1, Relaxed);
        }
    });
    eventually("all are gone", || connections(&scene.server) == 1);
    let (flooded, counted) = (flooded.into_inner(), outcome(&scene.server, "ok") - before);
    // A connection that is reset before it is accepted is not counted.
    assert!(counted <= flooded && 0 < counted, "{flooded} connections, {counted} counted");
    assert_eq!(outcome(&scene.server, "bad_handshake"), 0, "a bare connect is normal");
}

#[test]
fn an_address_at_its_limit_leaves_room_for_others() {
    const LIMIT: usize = 50;
    let mut scene = Scene::new(&["--max-connections-per-address", &(LIMIT + 1).to_string()]);
    let held: Vec<_> = (0..LIMIT).map(|_| greet(scene.server.store, &[])).collect();
    eventually("the address is full", || connections(&scene.server) == LIMIT as u64 + 1);
    for _ in 0..20 {
        assert_eq!(read_until_closed(&mut connect(scene.server.store)), b"");
    }
    assert_eq!(outcome(&scene.server, "limit"), 20);
    eventually("the log says why", || scene.server.log().contains("--max-connections-per-address"));
    let mut other = Client(connect_from(Ipv4Addr::new(127, 0, 0, 2), scene.server.store));
    other.0.write_all(&HELLO).expect("the server reads");
    other.round_trip();
    scene.assert_others_are_served();
    drop(held);
    eventually("the address has room again", || connections(&scene.server) == 2);
    Client::new(scene.server.store).round_trip();
}

#[test]
fn a_client_that_never_reads_is_slowed_and_then_closed() {
    const READERS: usize = 8;
    let mut scene = Scene::new(&["--test-settings", "write-timeout=2s", "--max-memory", "64MiB"]);
    let big = vec![7; 4 * MIB];
    scene.bystander.0.write_all(&set(b"/big", &big)).expect("the server reads");
    scene.bystander.round_trip();
    // 17 KB of requests ask for 16 GiB of replies.
    let many = request(Op::Get, &[&wire(b"/big")]).repeat(512);
    let readers: Vec<_> = (0..READERS).map(|_| greet(scene.server.store, &many)).collect();
    scene.assert_others_are_served();
    eventually("they are closed", || outcome(&scene.server, "limit") == READERS as u64);
    eventually("the log says why", || scene.server.log().contains("took no reply"));
    scene.assert_memory_within(64 * MIB);
    drop(readers);
    eventually("they are gone", || connections(&scene.server) == 1);
}

#[test]
fn list_keys_amplification_is_bounded() {
    const KEYS: usize = 2000;
    let mut scene = Scene::new(&["--test-settings", "write-timeout=2s", "--max-memory", "64MiB"]);
    // One byte asks for 2 MB.
    let mut keys = request(Op::MultiSet, &[&number(KEYS)]);
    for n in 0..KEYS {
        keys.extend(wire(format!("/{n:01000}").as_bytes()));
        keys.extend(wire(b"v"));
    }
    scene.bystander.0.write_all(&keys).expect("the server reads");
    assert_eq!(scene.bystander.num_keys(), KEYS as u64 + 1);
    let many = [Op::ListKeys as u8].repeat(4096);
    let readers: Vec<_> = (0..4).map(|_| greet(scene.server.store, &many)).collect();
    scene.assert_others_are_served();
    eventually("they are closed", || outcome(&scene.server, "limit") == 4);
    scene.assert_memory_within(64 * MIB);
    drop(readers);
}

#[test]
fn a_list_of_keys_that_does_not_fit_is_refused_before_it_is_made() {
    let mut scene = Scene::new(&["--max-memory", "160MiB"]);
    let mut sets = Vec::new();
    for n in 0..17_000 {
        sets.extend(set(format!("/{n:08000}").as_bytes(), b"v"));
    }
    scene.bystander.0.write_all(&sets).expect("the server reads");
    drop(sets);
    assert_eq!(scene.bystander.num_keys(), 17_001);
    // One byte asks for 136 MB.
    let mut reader = greet(scene.server.store, &[Op::ListKeys as u8]);
    read_until_closed(&mut reader);
    assert_eq!(outcome(&scene.server, "limit"), 1);
    scene.assert_others_are_served();
    scene.assert_memory_within(160 * MIB);
}

#[test]
fn what_the_rules_for_stale_keys_remember_counts_against_the_memory() {
    const IDS: usize = 10_000;
    let mut scene = Scene::new(&["--max-memory", "64MiB"]);
    // Each id is a separate group, and another client reads each one.
    let mut writers = Vec::new();
    for peer in 0..40 {
        let keys = (0..IDS).map(|n| format!("/default_pg/0//cuda//{peer}_{n}"));
        let mut ids = request(Op::MultiSet, &[&number(IDS)]);
        for key in keys.clone() {
            ids.extend(wire(key.as_bytes()));
            ids.extend(wire(&[7; 128]));
        }
        let mut client = Client(greet(scene.server.store, &ids));
        let _ = client.0.write_all(&key_list(Op::MultiGet, keys.collect::<Vec<_>>().into_iter()));
        writers.push(client);
        if outcome(&scene.server, "limit") > 0 {
            break;
        }
    }
    eventually("the memory is used up", || outcome(&scene.server, "limit") > 0);
    scene.assert_others_are_served();
    scene.assert_memory_within(64 * MIB);
    drop(writers);
    eventually("all is free again", || metric(&scene.server, "rallypoint_store_bytes", "") < MIB as u64);
}

#[test]
fn a_small_value_does_not_keep_the_large_request_it_came_in() {
    let mut scene = Scene::new(&["--max-memory", "64MiB"]);
    let large = vec![7; 6 * MIB];
    for n in 0..40 {
        let small = format!("/small/{n}");
        let pairs =
            [&wire(small.as_bytes())[..], &wire(&large[..16 * 1024]), &wire(b"/large"), &wire(&large)];
        let bytes = [&number(2)[..], &pairs.concat()].concat();
        scene.bystander.0.write_all(&request(Op::MultiSet, &[&bytes])).expect("the server reads");
        scene.bystander.0.write_all(&request(Op::Delete, &[&wire(b"/large")])).expect("the server reads");
        assert_eq!(scene.bystander.ask(&[], 8), number(1));
    }
    assert_eq!(scene.bystander.num_keys(), 41);
    scene.assert_memory_within(64 * MIB);
}

#[test]
fn waits_count_against_the_memory() {
    const KEYS: usize = 50_000;
    const PEERS: usize = 12;
    let mut scene = Scene::new(&["--max-memory", "32MiB"]);
    // Each names 50 000 own keys that nobody will ever set.
    let mut waiters: Vec<_> = (0..PEERS)
        .map(|peer| greet(scene.server.store, &key_list(Op::Wait, (0..KEYS).map(|n| format!("/{peer}/{n}")))))
        .collect();
    eventually("the memory is used up", || outcome(&scene.server, "limit") > 0);
    let settled = |waiting: u64| waiting + outcome(&scene.server, "limit") == PEERS as u64;
    eventually("each waits or is refused", || settled(metric(&scene.server, "rallypoint_waiters", "")));
    assert!(metric(&scene.server, "rallypoint_waiters", "") > 0, "the first of them fit");
    eventually("the log says why", || scene.server.log().contains("--max-memory"));
    scene.assert_others_are_served();
    scene.assert_memory_within(32 * MIB);
    waiters.clear();
    eventually("all is free again", || metric(&scene.server, "rallypoint_store_bytes", "") < MIB as u64);
    scene.bystander.round_trip();
}

#[test]
fn unfinished_requests_count_against_the_memory() {
    const PEERS: usize = 3000;
    let mut scene = Scene::new(&["--max-memory", "32MiB"]);
    rallypoint_process::raise_descriptor_limit();
    // 180 MB of unfinished requests in all.
    let half = &set(b"/half", &vec![b'v'; 64_000])[..60_000];
    let mut peers = Vec::new();
    for _ in 0..PEERS {
        let mut peer = resetting(greet(scene.server.store, &[]));
        let _ = peer.write_all(half);
        peers.push(peer);
    }
    eventually("each holds or is refused", || {
        outcome(&scene.server, "limit") + connections(&scene.server) > PEERS as u64
    });
    scene.assert_others_are_served();
    scene.assert_memory_within(32 * MIB);
}

#[test]
fn ten_thousand_parked_waiters_leave_at_once() {
    const WAITERS: usize = 10_000;
    rallypoint_process::raise_descriptor_limit();
    let mut scene = Scene::new(&[]);
    let wait = key_list(Op::Wait, ["/never".to_owned()].into_iter());
    let store = scene.server.store;
    let mut parked = Vec::with_capacity(WAITERS);
    for _ in 0..WAITERS {
        parked.push(resetting(greet(store, &wait)));
    }
    let waiting = |scene: &Scene| metric(&scene.server, "rallypoint_waiters", "");
    eventually("all wait", || waiting(&scene) == WAITERS as u64);
    scene.assert_others_are_served();
    scene.assert_memory_within(64 * MIB);

    let parked = std::sync::Mutex::new(parked);
    scene.assert_others_are_served_during(|_| parked.lock().expect("no panic").clear());
    eventually("nobody waits any more", || waiting(&scene) == 0);
    eventually("all are gone", || connections(&scene.server) == 1);
    scene.bystander.0.write_all(&set(b"/never", b"after all")).expect("the server reads");
    scene.bystander.round_trip();
}

#[test]
fn an_end_at_any_byte_of_a_request_leaves_nothing_behind() {
    let mut scene = Scene::new(&[]);
    let store = scene.server.store;
    let requests = [
        request(Op::MultiSet, &[&number(2), &wire(b"/x"), &wire(b"1"), &wire(b"/y"), &wire(b"2")]),
        request(Op::QueuePush, &[&wire(b"/q"), &wire(b"item")]),
        request(Op::Add, &[&wire(b"/n"), &number(1)]),
        request(Op::CompareSet, &[&wire(b"/c"), &wire(b""), &wire(b"new")]),
    ];
    for request in &requests {
        let bytes = [&HELLO[..], request].concat();
        for end in 0..bytes.len() {
            let mut finished = connect(store);
            finished.write_all(&bytes[..end]).expect("the server reads");
            finished.shutdown(Shutdown::Write).expect("it is open");
            assert_eq!(read_until_closed(&mut finished), b"", "FIN after {end} bytes");
            let mut reset = resetting(connect(store));
            reset.write_all(&bytes[..end]).expect("the server reads");
        }
    }
    eventually("all are gone", || connections(&scene.server) == 1);
    assert_eq!(scene.bystander.num_keys(), 1, "only the bystander's own key");
    assert_eq!(scene.bystander.ask(&request(Op::QueueLen, &[&wire(b"/q")]), 8), number(0));
    assert_eq!(outcome(&scene.server, "bad_handshake") + outcome(&scene.server, "protocol_error"), 0);

    // A FIN after a whole request does not cancel it, and its replies still come.
    for request in &requests {
        let mut stream = greet(store, request);
        stream.shutdown(Shutdown::Write).expect("it is open");
        read_until_closed(&mut stream);
    }
    assert_eq!(scene.bystander.num_keys(), 5);
    assert_eq!(scene.bystander.ask(&request(Op::QueueLen, &[&wire(b"/q")]), 8), number(1));
}

#[test]
fn a_waiter_that_ends_in_any_way_is_forgotten() {
    let mut scene = Scene::new(&[]);
    let wait = key_list(Op::Wait, ["/w".to_owned()].into_iter());
    let barrier = request(Op::Barrier, &[&wire(b"/b"), &number(100)]);
    let waiting = |scene: &Scene| metric(&scene.server, "rallypoint_waiters", "");
    for request in [wait, barrier] {
        let fin = greet(scene.server.store, &request);
        let rst = resetting(greet(scene.server.store, &request));
        let half_closed = greet(scene.server.store, &request);
        eventually("all wait", || waiting(&scene) == 3);
        drop((fin, rst));
        half_closed.shutdown(Shutdown::Write).expect("it is open");
        eventually("nobody waits", || waiting(&scene) == 0);
        eventually("all are gone", || connections(&scene.server) == 1);
    }
    let arrivals = scene.bystander.ask(&request(Op::Get, &[&wire(b"/b")]), 8 + 1);
    assert_eq!(arrivals, wire(b"0"), "arrivals of those who left are withdrawn");
}

#[test]
fn a_wake_up_never_cuts_into_replies_that_are_not_taken_yet() {
    const VALUE: usize = 200_000;
    // More than the socket buffers hold: at one of these values the peer's buffer is full.
    const VALUES: usize = 60;
    let scene = Scene::new(&["--test-settings", "threads=2"]);
    let store = scene.server.store;
    let value = wire(&vec![7; VALUE]);
    let wait = key_list(Op::Wait, ["/blink".to_owned()].into_iter());
    let value_then_wait = [request(Op::Get, &[&wire(b"/value")]), wait].concat();
    let mut reader = greet(store, &request(Op::Set, &[&wire(b"/value"), &value]));
    // A thread takes 64 connections in a row. With these connections between them, the writers are on the
    // other thread.
    let _between: Vec<Client> = (0..64).map(|_| Client::new(store)).collect();
    let stop = AtomicBool::new(false);
    let read_values = |reader: &mut TcpStream| {
        let mut replies = std::io::BufReader::new(reader);
        let mut rest = vec![0; value.len() - 1];
        for _ in 0..VALUES {
            let mut first = [0];
            // Each wake-up is a zero byte; the length of a value begins with another byte.
            while first == [0] {
                replies.read_exact(&mut first)?;
            }
            replies.read_exact(&mut rest)?;
            if first[0] != value[0] || rest != value[1..] {
                return Err(ErrorKind::InvalidData.into());
            }
        }
        Ok::<(), std::io::Error>(())
    };
    std::thread::scope(|scope| {
        // A key that comes and goes: a wait for it may end at any moment.
        for _ in 0..2 {
            scope.spawn(|| {
                let mut client = Client::new(store);
                let blink = [set(b"/blink", b""), request(Op::Delete, &[&wire(b"/blink")])].concat();
                while !stop.load(Relaxed) {
                    client.ask(&blink, 8);
                }
            });
        }
        let read = (0..20).try_for_each(|_| {
            for _ in 0..VALUES {
                reader.write_all(&value_then_wait)?;
                sleep(Duration::from_micros(500));
            }
            read_values(&mut reader)
        });
        stop.store(true, Relaxed);
        read.expect("values, whole, and wake-ups between them");
    });
}

#[test]
fn a_large_request_in_small_pieces_delays_nobody() {
    const KEYS: usize = 131_072;
    let mut scene = Scene::new(&[]);
    let store = scene.server.store;
    let check = key_list(Op::Check, (0..KEYS).map(|n| format!("/{n}")));
    scene.assert_others_are_served_during(|stop| {
        let mut stream = greet(store, &[]);
        while !stop.load(Relaxed) {
            for piece in check.chunks(1024) {
                stream.write_all(piece).expect("the server reads");
            }
            let mut reply = [9];
            stream.read_exact(&mut reply).expect("the server answers");
            assert_eq!(reply, [1], "none of the keys is there");
        }
    });
}

/// The memory for jobs is limited, too, even for running ones: beyond the limit, only numbers are kept.
#[test]
fn jobs_that_say_they_are_huge_take_no_more_memory_than_they_may() {
    const RUNS: usize = 240;
    const NODES: u32 = 1000;
    let mut scene = Scene::new(&["--max-memory", "64MiB"]);
    let state = rendezvous_state(NODES);
    let shown = |server: &TestServer| {
        let runs = http(server.admin, "GET /api/v1/runs", "", "").json();
        runs["runs"].as_array().expect("a list").clone()
    };
    let jobs: Vec<TcpStream> = (0..RUNS)
        .map(|run| {
            let key = format!("/torch.rendezvous.{run}");
            let end = request(Op::Delete, &[&wire(key.as_bytes())]);
            let mut job = greet(scene.server.store, &[set(key.as_bytes(), &state), end].concat());
            job.read_exact(&mut [0; 8]).expect("the server answers");
            if run % 20 == 19 {
                eventually("they are seen", || shown(&scene.server).len() > run);
            }
            job
        })
        .collect();
    scene.assert_memory_within(64 * MIB);
    assert!(shown(&scene.server).iter().all(|run| run["nodes"]["joined"] == NODES), "all are counted");
    let told = scene.server.log().matches("more nodes or ranks than may be remembered").count();
    assert_eq!(told, 1, "said once");
    scene.assert_others_are_served();
    drop(jobs);
}

/// Between the slices of a large request, others are served (see the tests of the engine); its own connection
/// is served after it.
#[test]
fn requests_of_very_many_keys_keep_their_place_among_those_of_their_connection() {
    const KEYS: usize = 20_000;
    let server = TestServer::start(&[]);
    let keys = || (0..KEYS).map(|n| format!("/{n}"));
    let mut pairs = request(Op::MultiSet, &[]);
    pairs.extend_from_slice(&number(KEYS));
    for key in keys() {
        pairs.extend_from_slice(&set(key.as_bytes(), b"v")[1..]);
    }
    let list = |op| key_list(op, keys());
    let wire =
        [&pairs[..], &list(Op::Wait), &list(Op::MultiGet), &list(Op::Check), &[Op::NumKeys as u8]].concat();
    let mut expected = vec![0];
    expected.extend([&number(1)[..], b"v"].concat().repeat(KEYS));
    expected.push(0);
    let mut stream = greet(server.store, &[]);
    std::thread::scope(|scope| {
        let mut writer = stream.try_clone().expect("a second handle");
        let wire = &wire;
        scope.spawn(move || writer.write_all(wire).expect("the server reads"));
        let mut reply = vec![0; expected.len() + 8];
        stream.read_exact(&mut reply).expect("the server answers");
        assert!(reply.starts_with(&expected), "in order, each once");
        let keys = u64::from_le_bytes(reply[expected.len()..].try_into().expect("8 bytes"));
        assert!(keys >= KEYS as u64);
    });
}

/// PyTorch's server looks up the name of every new client, and serves nobody meanwhile.
#[test]
fn the_server_has_no_means_to_look_up_a_peers_name() {
    // The program's file contains the names of imported functions as text.
    let imports = |name: &str| {
        let grep = std::process::Command::new("grep")
            .args(["-qaw", name, env!("CARGO_BIN_EXE_rallypoint")])
            .status();
        grep.expect("grep is there").success()
    };
    assert!(imports("accept4"), "the test would find the others, too");
    assert!(!imports("getnameinfo") && !imports("gethostbyaddr") && !imports("gethostbyaddr_r"));
}

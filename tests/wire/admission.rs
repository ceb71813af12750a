//! More clients than there is room for: long polls, idle and silent connections, unfinished requests, peers
//! that pause. Health is still answered, a client without a place is told so, and no client pays for another.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::common::peer::{HELLO, Peer, wire};
use crate::common::{HttpAnswer, PATIENCE, StopOnDrop, TestServer, connect_from, eventually, http_on};
use rallypoint_protocol::Op;

const MIB: usize = 1 << 20;

fn address(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, n)
}

fn ask(from: u8, server: &TestServer, request: &str) -> HttpAnswer {
    http_on(connect_from(address(from), server.admin), request, "", "")
}

#[track_caller]
fn assert_health_is_answered(from: u8, server: &TestServer) {
    for route in ["/livez", "/readyz", "/metrics"] {
        let answer = ask(from, server, &format!("GET {route}"));
        assert_eq!(answer.status, 200, "{route}: {answer:?}");
    }
}

#[track_caller]
fn assert_turned_away(answer: &HttpAnswer) {
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(answer.head.contains("retry-after: 1") && answer.json()["code"] == "busy", "{answer:?}");
}

/// The sum of a metric's series with `label` in their labels.
fn metric(server: &TestServer, name: &str, label: &str) -> f64 {
    let page = ask(1, server, "GET /metrics").body;
    let lines = page.lines().filter(|line| line.starts_with(name) && line.contains(label));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// Joins a native run that needs more nodes than will come.
fn join(stream: &mut TcpStream, run: &str, node: usize, terms: &str) {
    let body = format!(r#"{{"node": "{node}", "join_id": "1", "min_nodes": 10000, {terms}}}"#);
    let head = format!(
        "POST /api/v1/runs/{run}/join HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).expect("the admin port reads");
}

/// A node that waits for the others.
fn long_poll(from: u8, node: usize, server: &TestServer) -> TcpStream {
    let mut stream = connect_from(address(from), server.admin);
    join(&mut stream, "big", node, r#""wait_seconds": 60"#);
    stream
}

/// How many polls were answered, and how many were closed without an answer.
fn answered(polls: &[TcpStream]) -> (usize, usize) {
    let mut sum = (0, 0);
    for poll in polls {
        poll.set_nonblocking(true).expect("a socket");
        match poll.peek(&mut [0]) {
            Ok(1) => sum.0 += 1,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            _ => sum.1 += 1,
        }
    }
    sum
}

#[test]
fn more_long_polls_than_there_is_room_for_leave_health_and_other_addresses_alone() {
    rallypoint_process::raise_descriptor_limit();
    // The memory allows 2048 connections: 256 in the reserve, and at most half of the others for one address.
    let server = TestServer::start(&["--max-memory", "64MiB"]);
    let mut polls: Vec<_> = (0..1200).map(|node| long_poll(1, node, &server)).collect();
    eventually("those beyond the address' share are answered", || answered(&polls) == (1200 - 896, 0));
    assert_turned_away(&ask(1, &server, "GET /api/v1/runs"));
    assert_eq!(ask(2, &server, "GET /api/v1/runs").status, 200, "another address has its own share");
    assert_health_is_answered(1, &server);

    polls.extend((1200..2300).map(|node| long_poll(3, node, &server)));
    eventually("all that do not fit are answered", || answered(&polls) == (2300 - 2 * 896, 0));
    assert_turned_away(&ask(2, &server, "GET /api/v1/runs"));
    for from in [1, 2, 3] {
        assert_health_is_answered(from, &server);
    }
    let lines = server.log().lines().filter(|line| line.contains("only health and metrics")).count();
    assert!((1..=30).contains(&lines), "{lines} lines say so");

    drop(polls);
    eventually("there is room again", || ask(1, &server, "GET /api/v1/runs").status == 200);
}

#[test]
fn a_full_store_and_waiting_requests_together_stay_within_the_memory() {
    const LIMIT: usize = 64 * MIB;
    const POLLS: usize = 1700;
    rallypoint_process::raise_descriptor_limit();
    let server = TestServer::start(&["--max-memory", "64MiB"]);
    let before = server.resident();
    let mut client = greeted(4, server.store);
    for key in 0..60 {
        client.write_all(&set(format!("/{key}").as_bytes(), &vec![b'v'; MIB])).expect("the server reads");
        client.write_all(&[Op::NumKeys as u8]).expect("the server reads");
        client.read_exact(&mut [0; 8]).expect("the server answers");
    }
    let room = LIMIT - metric(&server, "rallypoint_memory_used_bytes", "") as usize;
    let polls: Vec<_> =
        (0..POLLS).map(|node| long_poll(if node < POLLS / 2 { 1 } else { 3 }, node, &server)).collect();
    let refused = || answered(&polls);
    eventually("those that have no place are answered", || refused().0 >= POLLS - room / (16 * 1024));
    let grown = server.resident() - before;
    assert!(grown <= LIMIT + LIMIT / 5, "{} MiB", grown / MIB);
    assert!(refused().0 < POLLS && refused().1 == 0, "some wait: {:?}", refused());
    assert_health_is_answered(1, &server);
    assert_turned_away(&ask(2, &server, "GET /api/v1/runs"));
    drop(polls);
    eventually("who looks has a place, however full the store is", || {
        ask(2, &server, "GET /api/v1/runs").status == 200
    });
}

/// The limit on open files decides how many polls get a place: an eighth of it. The others are turned away.
#[test]
fn six_thousand_long_polls_stay_within_the_memory() {
    const LIMIT: usize = 200 * MIB;
    const POLLS: usize = 6000;
    const EACH_RUN: usize = 50;
    rallypoint_process::raise_descriptor_limit();
    let server = TestServer::start(&["--max-memory", "200MiB"]);
    let before = server.resident();
    let mut polls = Vec::new();
    for n in 0..POLLS {
        let mut poll = connect_from(address(u8::try_from(n % 8).expect("small") + 1), server.admin);
        let run = format!("run-{}", n / EACH_RUN);
        join(&mut poll, &run, n, r#""store": false, "wait_seconds": 60"#);
        polls.push(poll);
    }
    let waiting = || metric(&server, "rallypoint_rendezvous_joined_nodes", "") as usize;
    eventually("each waits or is turned away", || waiting() + answered(&polls).0 >= POLLS);
    let (refused, broken) = answered(&polls);
    let grown = server.resident() - before;
    println!(
        "{} of {POLLS} wait, {refused} are turned away, memory grew by {} KiB",
        POLLS - refused,
        grown / 1024
    );
    assert!(POLLS - refused >= 1000 && broken == 0, "{refused} are turned away, {broken} are broken");
    assert!(grown <= LIMIT + LIMIT / 5, "{} MiB", grown / MIB);
    assert_health_is_answered(1, &server);
}

/// The kernel probes silent peers, and thousands of probes at one moment do not fit into its queues.
#[test]
fn six_thousand_that_came_at_once_and_are_silent_stay_connected() {
    const PEERS: usize = 6000;
    /// Longer than the time after which a dead host is noticed.
    const SILENCE: Duration = Duration::from_secs(24);
    rallypoint_process::raise_descriptor_limit();
    let server = TestServer::start(&[]);
    let mut peers: Vec<Peer> = (0..PEERS).map(|_| Peer::greet(server.store)).collect();
    std::thread::sleep(SILENCE);
    for peer in &mut peers {
        peer.send(&[&[Op::Ping as u8][..], &7_u32.to_le_bytes()].concat());
    }
    assert!(peers.iter_mut().all(|peer| peer.read(4).bytes == 7_u32.to_le_bytes()));
}

#[test]
fn idle_connections_to_the_admin_port_leave_health_alone() {
    rallypoint_process::raise_descriptor_limit();
    let server = TestServer::start(&["--max-memory", "64MiB"]);
    let _idle: Vec<_> = (0..2300).map(|_| connect_from(address(1), server.admin)).collect();
    assert_health_is_answered(1, &server);
    assert_health_is_answered(2, &server);
}

/// An API request waits for its turn behind all others; health does not wait.
#[test]
fn a_flood_of_expensive_requests_leaves_health_alone() {
    const NODES: usize = 500;
    const AT_ONCE: usize = 16;
    const LOOKS: usize = 7;
    let servers = [(); 2].map(|()| TestServer::start(&["--explain-after", "1h"]));
    for server in &servers {
        let mut nodes = connect_from(address(1), server.admin);
        for node in 0..NODES {
            join(&mut nodes, "big", node, r#""keep_alive_seconds": 600, "wait_seconds": 0"#);
            let answer = nodes.read(&mut [0; 4096]).expect("the admin port answers");
            assert!(answer > 0, "node {node} is turned away");
        }
    }
    let [attacked, twin] = &servers;
    let look = |server: &TestServer, request: &str| {
        let started = Instant::now();
        let answer = ask(2, server, request);
        assert_eq!(answer.status, 200, "{request}: {answer:?}");
        started.elapsed()
    };
    let stop = AtomicBool::new(false);
    let (stop, answered) = (&stop, &AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let flooding = move || {
            while !stop.load(Relaxed) {
                look(attacked, "GET /api/v1/runs/big");
                answered.fetch_add(1, Relaxed);
            }
        };
        (0..AT_ONCE).for_each(|_| drop(scope.spawn(flooding)));
        let _stopped = StopOnDrop(stop);
        eventually("the flood is there", || answered.load(Relaxed) >= AT_ONCE);
        let median = |server, request: &str| {
            let mut times: Vec<_> = (0..LOOKS).map(|_| look(server, request)).collect();
            times.sort_unstable();
            times[LOOKS / 2]
        };
        let turn = median(attacked, "GET /api/v1/runs/big");
        for route in ["GET /livez", "GET /readyz", "GET /metrics"] {
            let (here, there) = (median(attacked, route), median(twin, route));
            println!("{route}: {here:?} in the flood, {there:?} without; a request of the API {turn:?}");
            assert!(4 * here.saturating_sub(there) < turn, "{route}: {here:?}, {there:?} without; {turn:?}");
        }
    });
}

#[test]
fn silent_connections_beyond_the_limit_on_open_files_leave_health_and_clients_alone() {
    let server = TestServer::with_open_files(512, &[]);
    let mut client = greeted(1, server.store);
    set_and_get(&mut client, 100);
    let silent: Vec<_> = (0..700).map(|_| connect_from(address(2), server.store)).collect();
    let refused = || metric(&server, "rallypoint_connections_total", "outcome=\"limit\"");
    eventually("the others are refused", || refused() >= 700.0 - 448.0);
    for _ in 0..20 {
        assert_health_is_answered(1, &server);
    }
    set_and_get(&mut client, 100);
    let log = server.log();
    assert!(log.contains("the limit on open files has room for"), "it is said at the start:\n{log}");
    assert!(!log.contains("cannot accept"), "there is always a descriptor:\n{log}");
    let lines = log.lines().filter(|line| line.contains("too many connections")).count();
    assert!((1..=30).contains(&lines), "{lines} lines say so");
    drop(silent);
    eventually("there is room again", || metric(&server, "rallypoint_connections{", "") < 1.5);
    set_and_get(&mut greeted(1, server.store), 100);
}

// ----- clients of a store -----

fn greeted(from: u8, store: SocketAddr) -> TcpStream {
    let mut stream = connect_from(address(from), store);
    stream.set_nodelay(true).expect("a socket option");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket option");
    stream.set_write_timeout(Some(PATIENCE)).expect("a socket option");
    stream.write_all(&HELLO).expect("the server reads");
    stream
}

fn set(key: &[u8], value: &[u8]) -> Vec<u8> {
    [&[Op::Set as u8][..], &wire(key), &wire(value)].concat()
}

fn get(key: &[u8]) -> Vec<u8> {
    [&[Op::Get as u8][..], &wire(key)].concat()
}

/// Stores a value of `len` bytes and reads it back.
#[track_caller]
fn set_and_get(client: &mut TcpStream, len: usize) {
    let value = vec![b'v'; len];
    client.write_all(&set(b"/good", &value)).expect("the server reads");
    client.write_all(&get(b"/good")).expect("the server reads");
    let mut reply = vec![0; 8 + len];
    client.read_exact(&mut reply).expect("the server answers");
    assert_eq!(reply[8..], value[..]);
}

/// Reads until the server closes the connection. Panics if it does not.
fn read_until_closed(stream: &mut TcpStream) {
    match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the server does not close the connection: {error}"),
    }
}

#[test]
fn unfinished_requests_are_given_up_and_no_other_client_pays_for_them() {
    const PEERS: usize = 60;
    let server = TestServer::start(&["--max-memory", "128MiB", "--test-settings", "request-timeout=2s"]);
    let store = server.store;
    let unfinished = set(b"/never", &vec![b'v'; 8 * MIB]);
    let unfinished = &unfinished[..unfinished.len() - 1];
    std::thread::scope(|scope| {
        for _ in 0..PEERS {
            scope.spawn(move || {
                let mut stream = greeted(2, store);
                // The server may give up the request before all of it is sent.
                let _ = stream.write_all(unfinished);
                read_until_closed(&mut stream);
            });
        }
        eventually("they hold what one address may", || {
            metric(&server, "rallypoint_memory_used_bytes", "") > 48.0 * MIB as f64
        });
        let mut good = greeted(1, store);
        for _ in 0..5 {
            set_and_get(&mut good, 8 * MIB - 100);
        }
    });
    eventually("they hold nothing any more", || {
        metric(&server, "rallypoint_memory_used_bytes", "") < 12.0 * MIB as f64
    });
    assert_eq!(metric(&server, "rallypoint_connections_total", "outcome=\"limit\"") as usize, PEERS);
    // Lines of one kind are throttled, so either of the two may come.
    let reasons = ["an unfinished request stood still", "--max-memory"];
    eventually("the log says why", || reasons.iter().any(|why| server.log().contains(why)));
    set_and_get(&mut greeted(2, store), 8 * MIB - 100);
}

/// Nobody will free memory by finishing a request: a request that is too large is refused at once, and every
/// other one is served.
#[test]
fn a_full_store_serves_whole_requests_and_keeps_nobody_waiting_for_memory() {
    const KEYS: usize = 1000;
    let server = TestServer::start(&["--max-memory", "32MiB", "--test-settings", "request-timeout=1h"]);
    let mut client = greeted(1, server.store);
    for len in [MIB, 64 * 1024, 1024] {
        let mut key = 0;
        loop {
            let used = metric(&server, "rallypoint_memory_used_bytes", "") as usize;
            if used + 2 * len > 32 * MIB {
                break;
            }
            key += 1;
            client.write_all(&set(format!("/{len}/{key}").as_bytes(), &vec![b'v'; len])).expect("it reads");
            client.write_all(&[Op::NumKeys as u8]).expect("it reads");
            client.read_exact(&mut [0; 8]).expect("it answers");
        }
    }
    let mut check = [&[Op::Check as u8][..], &(KEYS as u64).to_le_bytes()].concat();
    (0..KEYS).for_each(|n| check.extend(wire(format!("/there/is/no/such/key/{n}").as_bytes())));
    assert!(check.len() > 16 * 1024, "more than may be kept uncounted");
    client.write_all(&check).expect("it reads");
    let mut reply = [9];
    client.read_exact(&mut reply).expect("it answers");
    assert_eq!(reply, [1]);
    let _ = client.write_all(&set(b"/large", &vec![b'v'; 8 * MIB]));
    read_until_closed(&mut client);
    eventually("the log names the flag", || server.log().contains("--max-memory"));
}

#[test]
fn a_large_value_over_a_slow_link_comes_through() {
    const PIECES: usize = 64;
    let server = TestServer::start(&["--test-settings", "request-timeout=3s"]);
    let mut slow = greeted(1, server.store);
    let value = vec![b'v'; 8 * MIB];
    let request = set(b"/slow", &value);
    // The whole request takes longer than the time-out, but the pause between two pieces is shorter.
    for piece in request.chunks(request.len().div_ceil(PIECES)) {
        slow.write_all(piece).expect("the server reads");
        std::thread::sleep(Duration::from_millis(70));
    }
    slow.write_all(&get(b"/slow")).expect("the server reads");
    let mut reply = vec![0; 8 + value.len()];
    slow.read_exact(&mut reply).expect("the server answers");
    assert_eq!(reply[8..], value[..]);
}

#[test]
fn a_request_that_comes_too_slowly_is_given_up() {
    let server = TestServer::start(&["--test-settings", "request-timeout=500ms"]);
    let mut dripping = greeted(1, server.store);
    let mut request = set(b"/drip", &[b'v'; 8000]).into_iter();
    let sent = request.by_ref().take_while(|byte| {
        std::thread::sleep(Duration::from_millis(20));
        dripping.write_all(&[*byte]).is_ok()
    });
    assert!(sent.count() < 8000, "a byte now and then is no progress");
    eventually("the log says why", || server.log().contains("an unfinished request stood still"));
}

/// By default, the kernel gives up a peer that takes nothing for 20 s.
#[test]
fn a_reader_may_pause_for_as_long_as_it_was_said() {
    const VALUE: usize = 256 * 1024;
    let server = TestServer::start(&["--test-settings", "write-timeout=1h"]);
    // One reader has replies that the server cannot send yet, and one only replies that the kernel already
    // has.
    let mut readers = [60, 1].map(|values| (greeted(1, server.store), values));
    for (stream, values) in &mut readers {
        stream.write_all(&set(b"/value", &vec![b'v'; VALUE])).expect("the server reads");
        for _ in 0..*values {
            stream.write_all(&get(b"/value")).expect("the server reads");
        }
    }
    std::thread::sleep(Duration::from_secs(26));
    for (stream, values) in &mut readers {
        let mut replies = vec![0; *values * (8 + VALUE)];
        stream.read_exact(&mut replies).expect("everything is still to be had");
    }
}

//! A relay, and clients behind one, must not harm others. During each attack a good client works. Each attack
//! has a twin: the same number of honest clients ask for as much, and read it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rallypoint_protocol::Op;
use socket2::{Domain, Socket, Type};

use crate::adversarial::peak_memory;
use crate::common::peer::HELLO;
use crate::common::relay::TestRelay;
use crate::common::{PATIENCE, StopOnDrop, TestServer, eventually, http};
use crate::links::{Client, frame, metric, raw_link, string, wait};

const MIB: usize = 1 << 20;
const LIMIT: usize = 64 * MIB;
const LIMITED: [&str; 2] = ["--max-memory", "64MiB"];

fn get(key: &[u8]) -> Vec<u8> {
    [&[Op::Get as u8][..], &string(key)].concat()
}

/// A link on which a test sends arbitrary frames.
struct RawRelay(Arc<Mutex<TcpStream>>);

impl RawRelay {
    /// Announces this many clients.
    fn with_sessions(server: &TestServer, name: &str, sessions: u32) -> Self {
        let hello = frame(b'H', &format!(r#"{{"name":"{name}","life":1,"sessions":[]}}"#));
        let open = |no| frame(b'O', &format!(r#"{{"no":{no},"port":0,"client":"127.0.0.1:1"}}"#));
        let frames = [hello].into_iter().chain((0..sessions).map(open)).collect::<Vec<_>>().concat();
        let link = raw_link(server, &frames);
        eventually("they are there", || metric(server, "rallypoint_link_sessions") == u64::from(sessions));
        let relay = Self(Arc::new(Mutex::new(link)));
        // The server gives up a relay without signs of life.
        let signs = Arc::clone(&relay.0);
        std::thread::spawn(move || {
            while signs.lock().expect("no panic").write_all(b"P\0\0\0\0").is_ok() {
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        relay
    }

    /// Sends these bytes for each of these clients.
    fn data(&self, sessions: Range<u32>, bytes: &[u8]) {
        let count = u16::try_from(sessions.len()).expect("as many as fit").to_le_bytes();
        let nos: Vec<u8> = sessions.flat_map(u32::to_le_bytes).collect();
        let body = [&count[..], &nos, bytes].concat();
        let head = [&b"D"[..], &(body.len() as u32).to_le_bytes()].concat();
        self.0.lock().expect("no panic").write_all(&[head, body].concat()).expect("the server reads");
    }
}

/// A client with a direct connection writes, reads and counts during an attack. Returns its number of rounds.
fn beside_a_good_client(server: &TestServer, attack: impl FnOnce()) -> i64 {
    let value = vec![b'g'; 256 * 1024];
    let stop = AtomicBool::new(false);
    let work = || {
        let mut client = Client::connect(server.store);
        let mut rounds = 0;
        while !stop.load(Relaxed) || rounds == 0 {
            client.set(b"good", &value);
            let read = client.ask(&get(b"good"), 8 + value.len()).expect("a good client is served");
            assert!(read[8..] == value[..]);
            rounds += 1;
            assert_eq!(client.add(b"rounds").expect("a good client is served"), rounds);
        }
        rounds
    };
    std::thread::scope(|scope| {
        let good = scope.spawn(work);
        let stop = StopOnDrop(&stop);
        attack();
        drop(stop);
        good.join().expect("a good client is served")
    })
}

fn assert_within_limit(server: &TestServer, before: usize) {
    let grown = peak_memory(server) - before;
    println!("memory grew by {} KiB, the limit is {} KiB", grown / 1024, LIMIT / 1024);
    assert!(grown <= LIMIT + LIMIT / 5, "memory grew by {} MiB", grown / MIB);
}

/// A server with names of this many bytes in total.
fn with_names(args: &[&str], bytes: usize) -> TestServer {
    let server = TestServer::start(args);
    let mut client = Client::connect(server.store);
    for n in 0..bytes / 1000 {
        client.set(format!("{n:0992}").as_bytes(), b"v");
    }
    client.add(b"written").expect("an answer");
    server
}

#[test]
fn a_frame_for_all_sessions_takes_no_more_memory_than_there_is() {
    let server = TestServer::start(&LIMITED);
    let before = peak_memory(&server);
    let relay = RawRelay::with_sessions(&server, "hostile", 4096);
    beside_a_good_client(&server, || {
        // 240 KiB of an unfinished value for each: 1 GiB.
        let start = [&HELLO[..], &[Op::Set as u8], &string(b"k"), &(MIB as u64).to_le_bytes()].concat();
        relay.data(0..4096, &start);
        for _ in 0..3 {
            relay.data(0..4096, &vec![b'x'; 80 * 1024]);
        }
        let log = || server.log();
        eventually("some are cut off", || log().contains("no memory for the connection's buffers"));
        eventually("others stay", || (1..4096).contains(&metric(&server, "rallypoint_link_sessions")));
    });
    assert_within_limit(&server, before);
    // A frame that no relay sends ends the link.
    let mut hostile = raw_link(&server, &frame(b'H', r#"{"name":"other","life":1,"sessions":[]}"#));
    hostile.write_all(&[&b"D"[..], &(271 * 1024_u32).to_le_bytes()].concat()).expect("it reads");
    let _ended = hostile.read_to_end(&mut Vec::new());
}

#[test]
fn as_many_bytes_of_honest_clients_are_all_taken() {
    const CLIENTS: usize = 100;
    const VALUE: usize = MIB;
    let server = TestServer::start(&LIMITED);
    let relay = TestRelay::start(server.admin, "honest", &[]);
    // 100 MiB in all, at the same time, into one key.
    let value = vec![b'v'; VALUE];
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = Client::connect(relay.store);
                client.set(b"large", &value);
                client.add(b"written").expect("nobody is cut off");
            });
        }
    });
    assert_eq!(Client::connect(server.store).add(b"written").expect("an answer"), CLIENTS as i64 + 1);
    assert!(!server.log().contains("closed a connection"), "{}", server.log());
}

#[test]
fn sessions_that_take_no_replies_are_cut_off() {
    let args = [&LIMITED[..], &["--test-settings", "write-timeout=5s", "--link-grace", "1s"]].concat();
    let server = with_names(&args, 240_000);
    let before = peak_memory(&server);
    let relay = RawRelay::with_sessions(&server, "hostile", 4096);
    beside_a_good_client(&server, || {
        relay.data(0..4096, &HELLO);
        // 240 KB of answers for each: 1 GB.
        relay.data(0..4096, &[Op::ListKeys as u8]);
        let log = || server.log();
        eventually("they are cut off", || log().contains("took no reply") || log().contains("--max-memory"));
        eventually("one after the other", || metric(&server, "rallypoint_link_sessions") < 4000);
        relay.0.lock().expect("no panic").shutdown(Shutdown::Both).expect("it is open");
    });
    assert_within_limit(&server, before);
    let used = || metric(&server, "rallypoint_memory_used_bytes");
    eventually("their memory is free again", || used() < 2 * MIB as u64);
}

#[test]
fn clients_of_a_relay_that_read_nothing_cost_no_direct_client() {
    const CLIENTS: usize = 100;
    let server = with_names(&[&LIMITED[..], &["--test-settings", "write-timeout=5s"]].concat(), MIB);
    let before = peak_memory(&server);
    let relay = TestRelay::start(server.admin, "train-1", &["--max-memory", "32MiB"]);
    let rounds = beside_a_good_client(&server, || {
        let many = [&HELLO[..], &[Op::ListKeys as u8; 16]].concat();
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                // With a default buffer, the kernel would take many of the replies.
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
                socket.set_recv_buffer_size(4096).expect("a socket option");
                socket.connect(&relay.store.into()).expect("the relay listens");
                let mut client = TcpStream::from(socket);
                client.write_all(&many).expect("it reads");
                client
            })
            .collect();
        let sessions = || metric(&server, "rallypoint_link_sessions");
        eventually("they are there", || sessions() == CLIENTS as u64);
        eventually("they are cut off", || sessions() < CLIENTS as u64 - 10);
        let log = || relay.log();
        eventually("they hear why", || log().contains("took no reply") || log().contains("--max-memory"));
        drop(clients);
        eventually("all have gone", || sessions() == 0);
    });
    assert!(rounds > 0);
    assert_within_limit(&server, before);
}

#[test]
fn as_many_clients_of_a_relay_that_read_are_all_answered() {
    const CLIENTS: usize = 100;
    let server = with_names(&LIMITED, MIB);
    let before = peak_memory(&server);
    let relay = TestRelay::start(server.admin, "train-1", &["--max-memory", "32MiB"]);
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = Client::connect(relay.store);
                let count = client.ask(&[Op::ListKeys as u8], 8).expect("an answer");
                let count = u64::from_le_bytes(count.try_into().expect("8 bytes"));
                for _ in 0..count {
                    let mut len = [0; 8];
                    client.0.read_exact(&mut len).expect("a name");
                    let mut name = vec![0; u64::from_le_bytes(len) as usize];
                    client.0.read_exact(&mut name).expect("a name");
                }
            });
        }
    });
    assert_within_limit(&server, before);
    assert!(!server.log().contains("closed a connection"), "{}", server.log());
}

/// The median time that a client waits for a small answer, and the time of one LIST_KEYS without other load.
/// Meanwhile `clients` connections send LIST_KEYS again and again.
fn beside_a_storm(server: &TestServer, stores: &[SocketAddr], clients: usize) -> (Duration, Duration) {
    let mut bystander = Client::connect(server.store);
    let ask_for_list = |store| {
        let mut client = TcpStream::connect(store).expect("it listens");
        client.set_read_timeout(Some(PATIENCE)).expect("a socket option");
        client.write_all(&HELLO).expect("it reads");
        client
    };
    let take = |client: &mut TcpStream, len: usize| {
        client.write_all(&[Op::ListKeys as u8]).expect("it reads");
        client.read_exact(&mut vec![0; len]).expect("an answer");
    };
    let mut alone = ask_for_list(server.store);
    alone.write_all(&[Op::ListKeys as u8]).expect("it reads");
    let mut count = [0; 8];
    alone.read_exact(&mut count).expect("an answer");
    let len = 8 + u64::from_le_bytes(count) as usize * 1000 - ("written".len().abs_diff(992));
    alone.read_exact(&mut vec![0; len - 8]).expect("an answer");
    let began = Instant::now();
    (0..5).for_each(|_| take(&mut alone, len));
    let once = began.elapsed() / 5;
    let stop = AtomicBool::new(false);
    let mut waited = std::thread::scope(|scope| {
        let stop_them = StopOnDrop(&stop);
        let running: Vec<_> = (0..clients)
            .map(|n| {
                let mut client = ask_for_list(stores[n % stores.len()]);
                let (stop, take) = (&stop, &take);
                scope.spawn(move || {
                    while !stop.load(Relaxed) {
                        take(&mut client, len);
                    }
                })
            })
            .collect();
        let waited: Vec<_> = (0..20)
            .map(|_| {
                let began = Instant::now();
                bystander.add(b"n").expect("an answer");
                began.elapsed()
            })
            .collect();
        drop(stop_them);
        for client in running {
            client.join().expect("it is answered");
        }
        waited
    });
    waited.sort_unstable();
    println!("{once:?} alone; beside {clients} of them {waited:?}");
    (waited[waited.len() / 2], once)
}

#[test]
fn a_storm_of_long_requests_leaves_others_their_turn() {
    const CLIENTS: usize = 100;
    let server = with_names(&[], 2 * MIB);
    let (waited, once) = beside_a_storm(&server, &[server.store], CLIENTS);
    // In order of arrival, the wait would be as long as all of them.
    assert!(waited < once * (CLIENTS as u32) / 3, "{waited:?}, and one of them takes {once:?}");
}

#[test]
fn a_storm_of_long_requests_behind_relays_leaves_others_their_turn() {
    const CLIENTS: usize = 100;
    let server = with_names(&[], 2 * MIB);
    let relays = ["train-0", "train-1"].map(|name| TestRelay::start(server.admin, name, &[]));
    let stores = relays.each_ref().map(|relay| relay.store);
    let (waited, once) = beside_a_storm(&server, &stores, CLIENTS);
    assert!(waited < once * (CLIENTS as u32) / 3, "{waited:?}, and one of them takes {once:?}");
}

#[test]
fn a_value_that_clients_of_many_relays_read_counts_once() {
    const VALUE: usize = 8 * MIB;
    let server = TestServer::start(&["--max-memory", "40MiB"]);
    let mut good = Client::connect(server.store);
    good.set(b"large", &vec![b'v'; VALUE]);
    good.add(b"written").expect("an answer");
    let relays: Vec<_> = (0..8).map(|n| TestRelay::start(server.admin, &format!("train-{n}"), &[])).collect();
    let reads = |store| {
        let mut client = Client::connect(store);
        client.ask(&get(b"large"), 8).expect("an answer");
        client
    };
    let readers: Vec<_> =
        relays.iter().map(|relay| reads(relay.store)).chain([reads(server.store)]).collect();
    let used = metric(&server, "rallypoint_memory_used_bytes");
    assert!((VALUE as u64..3 * VALUE as u64).contains(&used), "{used}");
    // The key is gone, and the readers still get the value.
    let delete = [&[Op::Delete as u8][..], &string(b"large")].concat();
    assert_eq!(good.ask(&delete, 8).expect("an answer"), 1_u64.to_le_bytes());
    for mut reader in readers {
        let mut value = vec![0; VALUE];
        reader.0.read_exact(&mut value).expect("an answer");
        assert!(value.iter().all(|&byte| byte == b'v'));
    }
    eventually("it is gone", || metric(&server, "rallypoint_memory_used_bytes") < VALUE as u64 / 2);
}

#[test]
fn large_values_fit_through_a_relay_with_little_memory() {
    const CLIENTS: usize = 16;
    const VALUE: usize = 8 * MIB;
    let server = TestServer::start(&[]);
    let relay = TestRelay::start(server.admin, "train-1", &["--max-memory", "32MiB"]);
    let most = |relay: &TestRelay| {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", relay.process.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux tells it");
        line.trim().trim_end_matches(" kB").trim().parse::<usize>().expect("a number") * 1024
    };
    let before = most(&relay);
    std::thread::scope(|scope| {
        for n in 0..CLIENTS {
            let relay = &relay;
            scope.spawn(move || {
                let mut client = Client::connect(relay.store);
                client.set(format!("large{n}").as_bytes(), &vec![b'v'; VALUE]);
                assert!(client.add(b"written").expect("an answer") > 0);
            });
        }
        // Small requests are not delayed.
        let mut client = Client::connect(relay.store);
        for n in 1..50 {
            assert_eq!(client.add(b"small").expect("an answer"), n);
        }
    });
    let grown = most(&relay) - before;
    println!("memory grew by {} KiB", grown / 1024);
    assert!(grown <= 32 * MIB + VALUE, "memory grew by {} MiB", grown / MIB);
}

#[test]
fn a_relay_that_may_open_few_files_refuses_clients_and_answers_its_api() {
    let server = TestServer::start(&[]);
    let relay = TestRelay::with_open_files(100, server.admin, "train-1");
    eventually("the relay has its link", || http(relay.admin, "GET /readyz", "", "").status == 200);
    let mut first = Client::connect(relay.store);
    assert_eq!(first.add(b"n").expect("an answer"), 1);
    let others: Vec<_> =
        (0..200).map(|_| TcpStream::connect(relay.store).expect("the relay listens")).collect();
    eventually("some are refused", || relay.log().contains("may not open more files"));
    for _ in 0..20 {
        assert_eq!(http(relay.admin, "GET /readyz", "", "").status, 200);
        assert_eq!(http(relay.admin, "GET /api/v1/runs", "", "").status, 200);
    }
    assert_eq!(first.add(b"n").expect("an answer"), 2);
    assert!(relay.log().lines().count() < 10, "{}", relay.log());
    drop(others);
    eventually("there is room again", || {
        let mut client = Client::connect(relay.store);
        client.add(b"others").is_ok()
    });
}

#[test]
fn clients_that_came_and_went_while_the_server_was_away_keep_nobody_out() {
    let server = TestServer::start(&[]);
    let admin = server.admin;
    let relay = TestRelay::start(admin, "train-1", &[]);
    eventually("the relay has its link", || http(relay.admin, "GET /readyz", "", "").status == 200);
    drop(server);
    eventually("the relay notices", || relay.log().contains("has been away"));
    let mut waiting = Client::connect(relay.store);
    let given_up = [&wait(b"never")[..], &[Op::CancelWait as u8]].concat();
    for _ in 0..50 {
        // A probe: it sends a hello, gets no answer, and leaves.
        for _ in 0..100 {
            let mut probe = TcpStream::connect(relay.store).expect("the relay listens");
            probe.write_all(&HELLO).expect("it reads");
        }
        // When the relay answers this, it has seen the probes.
        (0..2).for_each(|_| assert_eq!(waiting.ask(&given_up, 1).expect("an answer"), [1]));
    }
    let mut fresh = Client::connect(relay.store);
    let _server = TestServer::start_with_admin(&admin.to_string(), &[]);
    assert_eq!(waiting.add(b"n").expect("an answer"), 1);
    assert_eq!(fresh.add(b"n").expect("an answer"), 2);
    assert!(!relay.log().contains("refused"), "{}", relay.log());
}

//! Clients behind a relay: the effects of a broken connection to the server, and of a connection that stays
//! broken.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use rallypoint_protocol::Dialect;

use crate::common::cutter::Cutter;
use crate::common::peer::{HELLO, Peer};
use crate::common::relay::TestRelay;
use crate::common::{PATIENCE, StopOnDrop, TestServer, eventually, http};

/// A client like PyTorch's: one request, then its reply.
pub(super) struct Client(pub(super) TcpStream);

impl Client {
    pub(super) fn connect(store: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(store).expect("the store listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket option");
        stream.write_all(&HELLO).expect("it reads");
        Self(stream)
    }

    pub(super) fn ask(&mut self, request: &[u8], reply: usize) -> std::io::Result<Vec<u8>> {
        self.0.write_all(request)?;
        let mut bytes = vec![0; reply];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// ADD of 1.
    pub(super) fn add(&mut self, key: &[u8]) -> std::io::Result<i64> {
        let request = [&[4][..], &string(key), &1_i64.to_le_bytes()].concat();
        let sum = self.ask(&request, 8)?;
        Ok(i64::from_le_bytes(sum.try_into().expect("eight bytes")))
    }

    pub(super) fn set(&mut self, key: &[u8], value: &[u8]) {
        self.0.write_all(&[&[1][..], &string(key), &string(value)].concat()).expect("it reads");
    }

    /// GET of a key that is there.
    pub(super) fn get(&mut self, key: &[u8]) -> Vec<u8> {
        let length = self.ask(&[&[3][..], &string(key)].concat(), 8).expect("a length");
        let length = u64::from_le_bytes(length.try_into().expect("eight bytes"));
        self.ask(&[], usize::try_from(length).expect("short")).expect("a value")
    }

    /// WAIT for a key.
    pub(super) fn wait(&mut self, key: &[u8]) -> std::io::Result<u8> {
        Ok(self.ask(&wait(key), 1)?[0])
    }
}

pub(super) fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat()
}

pub(super) fn wait(key: &[u8]) -> Vec<u8> {
    [&[6][..], &1_u64.to_le_bytes(), &string(key)].concat()
}

/// A server, a network that breaks, and a relay behind it whose link is up.
fn linked(args: &[&str]) -> (TestServer, Cutter, TestRelay) {
    let server = TestServer::start(args);
    let network = Cutter::start(server.admin);
    let relay = TestRelay::start(network.addr, "train-1", &[]);
    eventually("the relay has its link", || http(relay.admin, "GET /readyz", "", "").status == 200);
    (server, network, relay)
}

/// A counter's value.
pub(super) fn metric(server: &TestServer, name: &str) -> u64 {
    let metrics = http(server.admin, "GET /metrics", "", "").body;
    let line =
        metrics.lines().find(|line| line.starts_with(name) && line[name.len()..].starts_with([' ', '{']));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("no {name}"))
}

/// The work of clients while the network breaks again and again: each counts, and waits for the others.
pub(super) fn count_together(stores: &[SocketAddr], clients: usize, rounds: i64) -> std::io::Result<()> {
    std::thread::scope(|scope| {
        let count = |n: usize| -> std::io::Result<()> {
            let mut client = Client::connect(stores[n % stores.len()]);
            for round in 1..=rounds {
                // Each sees its own additions in order, and none twice.
                assert_eq!(client.add(format!("own{n}").as_bytes())?, round);
                let done = client.add(format!("round{round}").as_bytes())?;
                assert!(done <= i64::try_from(clients).expect("few"), "{done} of {clients}");
                if done == i64::try_from(clients).expect("few") {
                    client.set(format!("go{round}").as_bytes(), b"1");
                }
                assert_eq!(client.wait(format!("go{round}").as_bytes())?, 0);
            }
            Ok(())
        };
        let threads: Vec<_> = (0..clients).map(|n| scope.spawn(move || count(n))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}

#[test]
fn breaks_of_the_network_are_not_noticed_behind_a_relay() {
    let (server, network, relay) = linked(&[]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| {
            // At odd positions: within frames, within the hello, within the answer to the upgrade.
            for bytes in (1..).map(|n: usize| n * 977 % 5000 + 1) {
                if stop.load(Relaxed) {
                    break;
                }
                network.cut_after(bytes);
                std::thread::sleep(Duration::from_millis(30));
                network.cut();
            }
            network.cut_after(usize::MAX);
        });
        count_together(&[relay.store], 8, 40).expect("no client notices");
    });
    assert!(metric(&server, "rallypoint_link_resumes_total") > 3, "the network did break");
}

#[test]
fn without_a_relay_the_same_breaks_end_the_clients() {
    let server = TestServer::start(&[]);
    let network = Cutter::start(server.store);
    network.cut_after(600);
    count_together(&[network.addr], 1, 40).expect_err("a client's connection breaks");
}

#[test]
fn large_values_and_small_ones_share_a_link_that_breaks() {
    let (_server, network, relay) = linked(&[]);
    network.cut_after(3 << 20);
    let large = vec![b'x'; 5 << 20];
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut client = Client::connect(relay.store);
            client.set(b"large", &large);
            assert_eq!(client.add(b"written").expect("an answer"), 1);
        });
        let mut small = Client::connect(relay.store);
        for n in 1..50 {
            assert_eq!(small.add(b"small").expect("an answer"), n);
        }
        // 5 MiB do not pass between two breaks; bytes that have arrived are kept.
        writer.join().expect("no panic");
        let mut reader = Client::connect(relay.store);
        let request = [&[3][..], &string(b"large")].concat();
        let reply = reader.ask(&request, 8 + large.len()).expect("an answer");
        assert!(reply[8..] == large[..]);
    });
}

#[test]
fn a_wait_is_given_up_while_the_server_is_away() {
    let (_server, network, relay) = linked(&[]);
    let mut client = Client::connect(relay.store);
    client.0.write_all(&wait(b"never")).expect("it reads");
    // When the next client is answered, the server knows the wait.
    Client::connect(relay.store).add(b"n").expect("an answer");
    network.close(true);
    network.cut();
    eventually("the relay notices", || relay.log().contains("has been away"));
    assert_eq!(client.ask(&[12], 1).expect("an answer at once"), [1]);
    network.close(false);
    // The server's answers to the wait and to its end are not for the client.
    assert_eq!(client.add(b"n").expect("an answer"), 2);
    assert_eq!(client.add(b"n").expect("an answer"), 3);
}

#[test]
fn what_a_client_wrote_before_it_left_arrives() {
    let (_server, network, relay) = linked(&[]);
    network.close(true);
    network.cut();
    eventually("the relay notices", || relay.log().contains("has been away"));
    let mut client = Client::connect(relay.store);
    client.set(b"last words", b"1");
    drop(client);
    network.close(false);
    assert_eq!(Client::connect(relay.store).wait(b"last words").expect("an answer"), 0);
}

#[test]
fn what_is_done_in_slices_is_done_to_its_end_though_the_client_has_left() {
    const MANY: u64 = 20_000;
    let (server, _network, relay) = linked(&[]);
    let pairs = (0..MANY).map(|n| [string(&n.to_le_bytes()), string(b"x")].concat());
    let multi_set = [&[11][..], &MANY.to_le_bytes(), &pairs.collect::<Vec<_>>().concat()].concat();
    Client::connect(relay.store).0.write_all(&multi_set).expect("it reads");
    let mut looks = Client::connect(server.store);
    let last = (MANY - 1).to_le_bytes();
    assert_eq!(looks.wait(&last).expect("the last key is there"), 0);
}

#[test]
fn clients_end_when_their_link_is_away_for_too_long() {
    let (server, network, relay) = linked(&["--link-grace", "1s"]);
    let mut client = Client::connect(relay.store);
    client.add(b"n").expect("an answer");
    // It counts at a barrier until it is gone.
    let barrier = [&[18][..], &string(b"b"), &2_i64.to_le_bytes()].concat();
    client.0.write_all(&barrier).expect("it reads");
    eventually("it waits", || metric(&server, "rallypoint_waiters") == 1);
    network.close(true);
    network.cut();
    eventually("its wait ends with it", || metric(&server, "rallypoint_waiters") == 0);
    let lost = "the link of train-1 was away for longer than 1 s (--link-grace): 1 client is disconnected";
    eventually("it is told", || server.log().contains(lost));
    let links = http(server.admin, "GET /api/v1/runs", "", "").json()["links"].clone();
    assert!(links.is_null(), "none is left: {links}");
    network.close(false);
    let mut rest = Vec::new();
    assert_eq!(client.0.read_to_end(&mut rest).expect("closed"), 0, "{rest:?}");
    eventually("the relay says why", || relay.log().contains("for longer than the server waits for it"));
    // The relay goes on with new clients.
    assert_eq!(Client::connect(relay.store).add(b"n").expect("an answer"), 2);
}

#[test]
fn a_server_that_was_restarted_without_a_journal_says_so_at_once() {
    let server = TestServer::start(&[]);
    let admin = server.admin;
    let relay = TestRelay::start(admin, "train-1", &[]);
    let mut client = Client::connect(relay.store);
    client.add(b"n").expect("an answer");
    client.0.write_all(&wait(b"never")).expect("it reads");
    // A client that has sent nothing yet loses nothing.
    let fresh = TcpStream::connect(relay.store).expect("the relay listens");
    fresh.set_read_timeout(Some(PATIENCE)).expect("a socket option");
    eventually("both are known", || metric(&server, "rallypoint_link_sessions") == 2);
    drop(server);
    let _server = TestServer::start_with_admin(&admin.to_string(), &[]);
    let mut rest = Vec::new();
    assert_eq!(client.0.read_to_end(&mut rest).expect("closed"), 0);
    eventually("the relay says why", || relay.log().contains("does not have its clients any more"));
    let mut fresh = Client(fresh);
    fresh.0.write_all(&HELLO).expect("it reads");
    assert_eq!(fresh.add(b"n").expect("an answer"), 1);
}

#[test]
fn a_relay_that_is_stopped_says_goodbye() {
    let (server, _network, relay) = linked(&["--link-grace", "1h"]);
    let mut client = Client::connect(relay.store);
    client.0.write_all(&wait(b"never")).expect("it reads");
    eventually("it waits", || metric(&server, "rallypoint_waiters") == 1);
    crate::common::terminate(&relay.process);
    eventually("its clients are gone", || metric(&server, "rallypoint_waiters") == 0);
    assert_eq!(metric(&server, "rallypoint_link_sessions"), 0);
    eventually("it is told", || server.log().contains("relay train-1 has gone"));
}

#[test]
fn two_relays_of_one_name_are_told_apart() {
    let (server, _network, relay) = linked(&[]);
    let other = TestRelay::start(server.admin, "train-1", &[]);
    eventually("it is told", || other.log().contains("a relay named train-1 is connected already"));
    // The first relay still sends signs of life.
    eventually("the server tells it", || {
        server.log().contains("a relay named train-1 at 127.0.0.1 was turned away")
    });
    assert_eq!(Client::connect(relay.store).add(b"n").expect("an answer"), 1);
    drop(relay);
    // Its place is free: it was killed, and its clients are gone.
    assert_eq!(Client::connect(other.store).add(b"n").expect("an answer"), 2);
}

#[test]
fn a_store_that_is_closed_closes_its_clients_behind_a_relay() {
    let server = TestServer::with_store_ports(4, &[]);
    let relay = TestRelay::start(server.admin, "train-1", &[]);
    let store = || {
        let opened = http(
            relay.admin,
            "POST /api/v1/stores",
            "Content-Type: application/json\r\n",
            r#"{"run_id":"r"}"#,
        );
        opened.json()
    };
    let own = store();
    assert_eq!(own["host"], "127.0.0.1");
    let own = SocketAddr::from(([127, 0, 0, 1], own["port"].as_u64().expect("a port") as u16));
    let mut client = Client::connect(own);
    assert_eq!(client.add(b"n").expect("an answer"), 1);
    assert_eq!(Client::connect(relay.store).add(b"n").expect("an answer"), 1, "another store");
    let stores = http(server.admin, "GET /api/v1/stores", "", "").json();
    let of_run = stores["stores"].as_array().expect("stores").iter().find(|store| store["run_id"] == "r");
    let port = &of_run.expect("the run's store")["port"];
    assert_eq!(http(server.admin, &format!("DELETE /api/v1/stores/{port}"), "", "").status, 200);
    let mut rest = Vec::new();
    assert_eq!(client.0.read_to_end(&mut rest).expect("closed"), 0);
    eventually("the relay says why", || relay.log().contains("its store was closed"));
}

#[test]
fn nodes_meet_through_their_relays() {
    let server = TestServer::with_store_ports(4, &[]);
    let relays = ["train-0", "train-1"].map(|name| TestRelay::start(server.admin, name, &[]));
    let join = |relay: &TestRelay, node: &str| {
        let body =
            format!(r#"{{"node":"{node}","min_nodes":2,"max_nodes":2,"wait_seconds":20,"store":true}}"#);
        http(relay.admin, "POST /api/v1/runs/r/join", "Content-Type: application/json\r\n", &body).json()
    };
    std::thread::scope(|scope| {
        let joins = [(0, "a"), (1, "b")].map(|(n, node)| {
            let relay = &relays[n];
            scope.spawn(move || join(relay, node))
        });
        for (relay, joined) in relays.iter().zip(joins) {
            let joined = joined.join().expect("no panic");
            assert_eq!(joined["state"], "complete", "{joined}");
            assert_eq!(joined["store"]["host"], "127.0.0.1", "{joined}");
            let port = joined["store"]["port"].as_u64().expect("a port") as u16;
            Client::connect(([127, 0, 0, 1], port).into()).add(b"here").expect("an answer");
            assert_ne!(relay.store.port(), port);
        }
    });
}

#[test]
fn hostile_bytes_end_the_link_and_nothing_else() {
    let (server, _network, relay) = linked(&[]);
    let mut good = Client::connect(relay.store);
    let hello = |body: &str| frame(b'H', body);
    for garbage in [
        b"Z\0\0\0\0".to_vec(),
        b"H\xff\xff\xff\xff".to_vec(),
        hello("{}"),
        hello(r#"{"name":"x\u001b","life":1,"sessions":[]}"#),
        b"D\x06\0\0\0\x01\0\x07\0\0\0".to_vec(),
        // A session that was never opened.
        [hello(r#"{"name":"x","life":1,"sessions":[]}"#), b"D\x06\0\0\0\x01\0\x07\0\0\0".to_vec()].concat(),
    ] {
        let mut stream = raw_link(&server, &garbage);
        let mut answer = Vec::new();
        // A reset counts as an end, too.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&answer));
        good.add(b"n").expect("an answer");
    }
    let answer = http(server.admin, "GET /api/v1/link", "", "");
    assert_eq!(answer.status, 426);
    assert!(answer.body.contains("this is where relays come"));
}

/// A connection that has become a link, with `frames` already sent.
pub(super) fn raw_link(server: &TestServer, frames: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(server.admin).expect("the admin port listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket option");
    let upgrade =
        "GET /api/v1/link HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: rallypoint-link/1\r\n\r\n";
    stream.write_all(upgrade.as_bytes()).expect("it reads");
    stream.write_all(frames).expect("it reads");
    stream
}

/// A frame with a JSON body.
pub(super) fn frame(kind: u8, body: &str) -> Vec<u8> {
    [&[kind][..], &(body.len() as u32).to_le_bytes(), body.as_bytes()].concat()
}

#[test]
fn a_session_of_which_its_relay_says_what_cannot_be_is_over() {
    let server = TestServer::start(&["--link-grace", "1h"]);
    let opens = [
        frame(b'H', r#"{"name":"x","life":1,"sessions":[]}"#),
        frame(b'O', r#"{"no":0,"port":0,"client":"127.0.0.1:1"}"#),
    ];
    let first = raw_link(&server, &opens.concat());
    eventually("its client is there", || metric(&server, "rallypoint_link_sessions") == 1);
    let wrong = r#"{"name":"x","life":1,"sessions":[{"no":0,"received":9,"done":0,"limit":0}]}"#;
    let second = raw_link(&server, &frame(b'H', wrong));
    eventually("it is over", || metric(&server, "rallypoint_link_sessions") == 0);
    let links = http(server.admin, "GET /api/v1/links", "", "").json();
    assert_eq!(links["links"][0]["name"], "x", "the link goes on: {links}");
    drop((first, second));
}

#[test]
fn a_hello_that_names_a_session_twice_is_refused_and_changes_nothing() {
    let server = TestServer::start(&["--link-grace", "1s"]);
    let opens = [
        frame(b'H', r#"{"name":"x","life":1,"sessions":[]}"#),
        frame(b'O', r#"{"no":0,"port":0,"client":"127.0.0.1:1"}"#),
    ];
    let first = raw_link(&server, &opens.concat());
    eventually("its client is there", || metric(&server, "rallypoint_link_sessions") == 1);
    let point = r#"{"no":0,"received":0,"done":0,"limit":0}"#;
    let hello = |points: &str| frame(b'H', &format!(r#"{{"name":"x","life":1,"sessions":[{points}]}}"#));
    let mut twice = raw_link(&server, &hello(&format!("{point},{point}")));
    let mut answer = Vec::new();
    let _ended = twice.read_to_end(&mut answer);
    assert!(String::from_utf8_lossy(&answer).contains("names a session twice"));
    assert_eq!(metric(&server, "rallypoint_link_sessions"), 1, "the link goes on");
    // The end of its connection counts as a broken link, so it does not stay connected for ever.
    drop(first);
    eventually("it is given up", || metric(&server, "rallypoint_link_sessions") == 0);
    drop(raw_link(&server, &hello("")));
    eventually("it may come again", || server.log().matches("relay x has connected").count() == 2);
}

/// A probe after an unfinished wait, as the peers of the replay send it, also works through a relay.
#[test]
fn an_old_client_gives_up_a_wait_through_a_relay() {
    let (server, _network, relay) = linked(&["--legacy-dialect", "2.0"]);
    let mut old = Peer::connect(relay.store, Dialect::A);
    old.send(&[&[5][..], &1_u64.to_le_bytes(), &string(b"never")].concat());
    eventually("it waits", || metric(&server, "rallypoint_waiters") == 1);
    drop(old);
    eventually("its wait ends", || metric(&server, "rallypoint_waiters") == 0);
}

//! Several servers at one etcd of three members: the state after the leader, or etcd, has died or stopped.

use std::io::{Read, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::cutter::{Cutter, Held};
use crate::common::etcd::{Cluster, Guarded, Replica, pause};
use crate::common::relay::TestRelay;
use crate::common::{eventually, http, signal, terminate, wait_for_end};
use crate::links::{Client, count_together, string};

/// A request to a server that may not answer.
struct Asking {
    request: &'static str,
    stream: std::net::TcpStream,
}

impl Asking {
    fn begin(server: &Replica, request: &'static str, body: &str) -> Self {
        let mut stream = std::net::TcpStream::connect(server.admin).expect("the kernel listens");
        let json = "Content-Type: application/json";
        let length = body.len();
        write!(
            stream,
            "{request} HTTP/1.1\r\nHost: test\r\n{json}\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .expect("the kernel takes it");
        Self { request, stream }
    }

    /// Reads until these words have come.
    fn reads_until(&mut self, words: &str) {
        let mut all = Vec::new();
        while !String::from_utf8_lossy(&all).contains(words) {
            let mut some = [0; 4096];
            let read = self.stream.read(&mut some).expect("it says so");
            assert!(read > 0, "it has ended");
            all.extend_from_slice(&some[..read]);
        }
    }

    /// Reads the bytes that have already come.
    fn reads_rest(&mut self) {
        self.stream.set_nonblocking(true).expect("a socket option");
        let _would_block = self.stream.read_to_end(&mut Vec::new());
        self.stream.set_nonblocking(false).expect("a socket option");
    }

    /// Reads until the server ends.
    fn reads_all(&mut self) -> String {
        let mut all = Vec::new();
        let _ended = self.stream.read_to_end(&mut all);
        String::from_utf8_lossy(&all).into_owned()
    }
}

/// A relay behind a name that first means this server.
fn relay(server: &Replica) -> (Cutter, TestRelay) {
    let service = Cutter::start(server.admin);
    let relay = TestRelay::start(service.addr, "train-0", &[]);
    eventually("the relay has its link", || http(relay.admin, "GET /readyz", "", "").status == 200);
    (service, relay)
}

#[test]
fn a_standby_takes_over_when_the_leader_is_killed_and_no_client_notices() {
    let mut cluster = Cluster::start();
    let leader = cluster.leader(1);
    let standby = cluster.serve(2);
    eventually("it stands by", || {
        http(standby.admin, "GET /readyz", "", "").body.contains("standby: ")
            && standby.count("rallypoint_leader") == 0
    });
    assert_eq!(http(standby.admin, "GET /livez", "", "").status, 200);
    assert_eq!(http(standby.admin, "GET /api/v1/runs", "", "").json()["code"], "standby");
    assert!(std::net::TcpStream::connect(standby.store).is_err(), "only the leader opens ports");
    let (service, relay) = relay(&leader);
    std::thread::scope(|scope| {
        let counting = scope.spawn(|| count_together(&[relay.store], 4, 80).expect("no client notices"));
        std::thread::sleep(Duration::from_millis(300));
        // The loss of one etcd member has no effect.
        cluster.members[0].kill().expect("it runs");
        std::thread::sleep(Duration::from_millis(300));
        assert!(!counting.is_finished(), "it was killed in the middle");
        drop(leader);
        let killed = Instant::now();
        service.pass_to(standby.admin);
        standby.eventually_leads();
        println!("leads {:?} after the kill", killed.elapsed());
        counting.join().expect("no panic");
    });
    assert_eq!(standby.count("rallypoint_leader"), 1);
    assert!(standby.count("rallypoint_leader_changes_total") >= 2);
    assert!(standby.count("rallypoint_etcd_commit_duration_seconds_count") >= 10);
    eventually("it says that it was restarted", || standby.log().contains("restarted in"));
}

#[test]
fn a_leader_that_stood_still_answers_nothing_any_more() {
    let cluster = Cluster::start();
    let mut old = cluster.leader(1);
    let mut client = Client::connect(old.store);
    assert_eq!(client.add(b"n").expect("an answer"), 1);
    let mut looks = Client::connect(old.store);
    assert_eq!(looks.add(b"n").expect("an answer"), 2);
    // Over HTTP: a node of a healthy round, a node that waits for another, a participant at a barrier, and a
    // reader.
    let solo = r#"{"node":"solo","join_id":"1","min_nodes":1,"store":false,
        "keep_alive_seconds":1,"wait_seconds":5}"#;
    let solo = http(old.admin, "POST /api/v1/runs/solo/join", "Content-Type: application/json\r\n", solo);
    assert_eq!(solo.json()["round"], 1, "{solo:?}");
    let mut events = Asking::begin(&old, "GET /api/v1/events", "");
    events.reads_until("event: snapshot");
    let beat =
        r#"{"node":"solo","join_id":"1","round":1,"rank":0,"world_size":1,"min_nodes":1,"wait_seconds":30}"#;
    let join = r#"{"node":"a","join_id":"1","min_nodes":2,"store":false,
        "join_timeout_seconds":4,"wait_seconds":30}"#;
    let arrive =
        r#"{"participant":"a","arrival_id":"1","world_size":2,"timeout_seconds":4,"wait_seconds":30}"#;
    let mut asking = vec![
        Asking::begin(&old, "POST /api/v1/runs/pair/join", join),
        Asking::begin(&old, "POST /api/v1/barriers/b/arrive", arrive),
    ];
    eventually("they wait", || {
        let run = http(old.admin, "GET /api/v1/runs/pair", "", "").json();
        run["nodes"]["joined"] == 1 && old.metric("rallypoint_barrier_arrived{barrier=\"b\"}") > 0.5
    });
    events.reads_until("\"pair\"");
    let new = cluster.serve(2);
    pause(&old.process);
    events.reads_rest();
    asking.push(Asking::begin(&old, "POST /api/v1/runs/solo/heartbeat", beat));
    asking.push(Asking::begin(&old, "GET /api/v1/runs", ""));
    asking.push(Asking::begin(&old, "PUT /api/v1/runs/solo/expect", r#"{"nodes":1}"#));
    asking.push(Asking::begin(&old, "DELETE /api/v1/runs/solo", ""));
    asking.push(events);
    // One asks for a change, and one only reads: a read would show the past.
    client
        .0
        .write_all(&[&[4][..], &string(b"n"), &1_i64.to_le_bytes()].concat())
        .expect("the kernel takes it");
    looks.0.write_all(&[&[3][..], &string(b"n")].concat()).expect("the kernel takes it");
    new.eventually_leads();
    let mut other = Client::connect(new.store);
    assert_eq!(other.add(b"n").expect("an answer"), 3);
    signal(&old.process, Signal::CONT);
    for stream in [&mut client.0, &mut looks.0] {
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{answer:?}");
    }
    for mut asked in asking {
        let said = asked.reads_all();
        assert!(said.is_empty(), "{}: {said}", asked.request);
    }
    assert_eq!(wait_for_end(&mut old.process), Some(1));
    assert!(old.log().contains("has lost the leadership"), "{}", old.log());
    assert_eq!(other.add(b"n").expect("an answer"), 4, "the old leader's change was refused");
    // Started again, it stands by.
    drop(old);
    let old = cluster.serve(1);
    eventually("it stands by", || http(old.admin, "GET /readyz", "", "").body.contains("leads"));
}

#[test]
fn while_etcd_is_away_answers_are_held_and_then_go_on() {
    let cluster = Cluster::start();
    let leader = cluster.leader(1);
    let standby = cluster.serve(2);
    let (_service, relay) = relay(&leader);
    let mut clients = [Client::connect(relay.store), Client::connect(leader.store)];
    for (n, client) in (1..).zip(&mut clients) {
        assert_eq!(client.add(b"n").expect("an answer"), n);
    }
    // A stopped member is not asked any more.
    cluster.pause(0..1);
    for n in 3..6 {
        assert_eq!(clients[1].add(b"n").expect("an answer"), n);
    }
    cluster.pause(0..3);
    let add = [&[4][..], &string(b"n"), &1_i64.to_le_bytes()].concat();
    for client in &mut clients {
        client.0.write_all(&add).expect("it reads");
    }
    eventually("it is said", || leader.log().contains("answers are held until it does"));
    // Longer than a term: by now another server could lead.
    eventually("nothing may leave", || leader.metric("rallypoint_etcd_renewed_seconds") > 6.0);
    assert!(leader.says_of_readiness().contains("answers are held"), "no Service sends clients here");
    for client in &mut clients {
        client.0.set_nonblocking(true).expect("a socket option");
        assert!(client.0.read(&mut [0; 8]).is_err(), "held");
        client.0.set_nonblocking(false).expect("a socket option");
    }
    assert!(leader.count("rallypoint_etcd_errors_total") > 0);
    cluster.go_on();
    let mut sums = clients.each_mut().map(|client| {
        let mut sum = [0; 8];
        client.0.read_exact(&mut sum).expect("an answer");
        i64::from_le_bytes(sum)
    });
    sums.sort_unstable();
    assert_eq!(sums, [6, 7]);
    eventually("it is said", || leader.log().contains("etcd answers again"));
    assert_eq!(leader.count("rallypoint_leader_changes_total"), 1);
    assert_eq!(standby.count("rallypoint_leader"), 0);
}

#[test]
fn on_the_side_of_a_partition_without_a_majority_nobody_answers() {
    let cluster = Cluster::start();
    let (roads, journal) = cluster.network();
    let mut old = cluster.serve_by(1, &journal);
    old.eventually_leads();
    let (other_roads, journal) = cluster.network();
    let new = cluster.serve_by(2, &journal);
    let (service, relay) = relay(&old);
    let [mut asks, mut looks] = [Client::connect(old.store), Client::connect(old.store)];
    assert_eq!(asks.add(b"n").expect("an answer"), 1);
    std::thread::scope(|scope| {
        let counting = scope.spawn(|| count_together(&[relay.store], 4, 80).expect("no client notices"));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!counting.is_finished(), "the network breaks in the middle");
        // On one side are the leader and one member; on the other are the other members, the standby, and the
        // relay's path to it.
        cluster.cut_off(0);
        roads[1..].iter().chain(&other_roads[..1]).for_each(|road| road.hold(Held::All));
        asks.0.write_all(&[&[4][..], &string(b"n"), &1_i64.to_le_bytes()].concat()).expect("it reads");
        new.eventually_leads();
        // It may not know yet that it leads no more.
        looks.0.write_all(&[&[3][..], &string(b"n")].concat()).expect("it reads");
        assert!(!old.says_of_readiness().starts_with("HTTP/1.1 200"), "a Service finds the new one only");
        service.pass_to(new.admin);
        service.cut();
        counting.join().expect("no panic");
    });
    assert_eq!(
        Client::connect(new.store).add(b"n").expect("an answer"),
        2,
        "what was asked there was not done"
    );
    cluster.heal();
    for road in &roads {
        road.hold(Held::None);
    }
    assert_eq!(wait_for_end(&mut old.process), Some(1));
    assert!(old.log().contains("has lost the leadership"), "{}", old.log());
    for stream in [&mut asks.0, &mut looks.0] {
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{answer:?}");
    }
}

#[test]
fn a_slow_member_only_slows_and_a_commit_that_is_there_in_part_is_cut() {
    let cluster = Cluster::start();
    let (roads, journal) = cluster.network();
    let leader = cluster.serve_by(1, &journal);
    leader.eventually_leads();
    let standby = cluster.serve(2);
    let (service, relay) = relay(&leader);
    let mut client = Client::connect(relay.store);
    for (n, by) in (1..).zip([100, 500]) {
        roads[0].delay(Duration::from_millis(by));
        assert_eq!(client.add(b"n").expect("an answer"), n);
    }
    roads[0].delay(Duration::from_millis(200));
    count_together(&[relay.store], 4, 1).expect("no client notices");
    assert_eq!(leader.count("rallypoint_leader_changes_total"), 1);
    assert!(!leader.log().contains("answers are held"), "{}", leader.log());
    // Killed during a large commit, which takes several transactions.
    let mut lost = Client::connect(leader.store);
    for road in &roads {
        road.delay(Duration::from_millis(20));
    }
    lost.set(b"large", &vec![b'x'; 5 << 20]);
    eventually("a part of it is written", || cluster.journal_size() > 1 << 20);
    drop(leader);
    service.pass_to(standby.admin);
    standby.eventually_leads();
    let said = "from the end of the journal: nothing in them was acknowledged";
    eventually(said, || standby.log().contains(said));
    assert_eq!(client.add(b"n").expect("an answer"), 3);
    let is_there =
        client.ask(&[&[5][..], &1_u64.to_le_bytes(), &string(b"large")].concat(), 1).expect("an answer");
    assert_eq!(is_there, [1], "not ready");
}

#[test]
fn large_values_go_in_parts_and_who_ends_hands_over_at_once() {
    let cluster = Cluster::start();
    let mut first = cluster.leader(1);
    let second = cluster.serve(2);
    let mut client = Client::connect(first.store);
    let value: Vec<u8> = (0..5_u32 << 20).map(|n| (n / 1021) as u8).collect();
    for key in [&b"a"[..], b"b", b"c"] {
        client.set(key, &value);
    }
    assert_eq!(client.add(b"n").expect("an answer"), 1);
    drop(client);
    let journal = |action: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
        command.args(["journal", action, &cluster.journal()]).env_clear().output().expect("it runs")
    };
    let check = journal("check");
    assert!(check.status.success() && check.stdout.starts_with(b"whole: "), "{check:?}");
    assert!(String::from_utf8_lossy(&journal("dump").stdout).contains("key `n` = `1`"));
    let stopped = Instant::now();
    terminate(&first.process);
    assert_eq!(wait_for_end(&mut first.process), Some(0));
    second.eventually_leads();
    println!("handed over in {:?}", stopped.elapsed());
    let mut client = Client::connect(second.store);
    let request = [&[3][..], &string(b"b")].concat();
    let answer = client.ask(&request, 8 + value.len()).expect("an answer");
    assert!(answer[8..] == value, "the value is as it was");
}

#[test]
fn an_etcd_may_want_tls_and_a_password() {
    let etcd = Guarded::start();
    let wrong = etcd.command(&["journal", "check"], "wrong").output().expect("it runs");
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(!wrong.status.success() && said.contains("authentication failed"), "{said}");
    let admin = etcd.admin.to_string();
    let mut serve =
        etcd.command(&["serve", "--listen", "127.0.0.1:0", "--admin", &admin, "--journal"], "secret\n");
    let mut server = serve.spawn().expect("it starts");
    eventually("it leads", || {
        std::net::TcpStream::connect(etcd.admin).is_ok()
            && http(etcd.admin, "GET /readyz", "", "").status == 200
    });
    let dump = etcd.command(&["journal", "dump"], "secret").output().expect("it runs");
    assert!(String::from_utf8_lossy(&dump.stdout).contains("start 1"), "{dump:?}");
    terminate(&server);
    assert_eq!(wait_for_end(&mut server), Some(0));
}

#[test]
fn flags_of_a_folder_are_refused_with_an_etcd() {
    for (flag, value) in [("--durability", "disk"), ("--on-journal-error", "continue")] {
        let mut serve = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
        serve.args(["serve", "--journal", "etcd://127.0.0.1:1/jobs", flag, value]).env_clear();
        let refused = serve.output().expect("it runs");
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains(flag), "{refused:?}");
    }
}

//! The effects of one run on others: when there are many runs, when a run starts again and again, when it is
//! abandoned, and when foreign nodes report on it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use rallypoint_protocol::Op;
use serde_json::{Value, json};

use crate::common::peer::{Peer, wire};
use crate::common::{HttpAnswer, TestServer, eventually, http};

const JSON: &str = "Content-Type: application/json\r\n";

fn post(admin: SocketAddr, path: &str, body: &Value) -> HttpAnswer {
    http(admin, &format!("POST {path}"), JSON, &body.to_string())
}

fn join(server: &TestServer, run: &str, more: &Value) -> HttpAnswer {
    let mut body = json!({"node": "a", "join_id": "1", "min_nodes": 1, "wait_seconds": 0});
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    post(server.admin, &format!("/api/v1/runs/{run}/join"), &body)
}

fn port_of(answer: &HttpAnswer) -> u64 {
    let answer = answer.json();
    answer["store"]["port"].as_u64().or_else(|| answer["port"].as_u64()).expect("a store")
}

#[test]
fn a_run_that_starts_again_and_again_leaves_the_others_their_store_ports() {
    let server = TestServer::with_store_ports(12, &[]);
    let rounds = (0..60).map(|n| join(&server, "crashes", &json!({"join_id": n.to_string()})));
    let used: BTreeSet<u64> = rounds.map(|answer| port_of(&answer)).collect();
    assert!(used.len() < 10, "{used:?}");
    // Other runs get rested ports while there are some; then they get ports of this run.
    let others: Vec<u64> = (0..11)
        .map(|n| port_of(&post(server.admin, "/api/v1/stores", &json!({"run_id": n.to_string()}))))
        .collect();
    let rested = 12 - used.len();
    assert!(others[..rested].iter().all(|port| !used.contains(port)), "{used:?} {others:?}");
    let none = post(server.admin, "/api/v1/stores", &json!({"run_id": "one too many"}));
    assert_eq!(none.status, 503);
}

#[test]
fn a_run_s_store_waits_for_its_first_client_as_long_as_a_join_may() {
    let args = ["--test-settings", "store-linger=200ms", "--join-timeout", "1h"];
    let server = TestServer::with_store_ports(2, &args);
    let open = |run: &str| post(server.admin, "/api/v1/stores", &json!({"run_id": run}));
    let (slow, used) = (port_of(&open("slow")), port_of(&open("used")));
    let store = SocketAddr::from(([127, 0, 0, 1], u16::try_from(used).expect("a port")));
    let client = Peer::greet(store);
    eventually("it is seen", || {
        let stores = http(server.admin, "GET /api/v1/stores", "", "").json();
        stores["stores"].as_array().is_some_and(|stores| stores.iter().any(|store| store["connections"] == 1))
    });
    // Longer than the housekeeping needs to notice it.
    std::thread::sleep(Duration::from_secs(1));
    drop(client);
    eventually("the used one is closed", || std::net::TcpStream::connect(store).is_err());
    let again = open("slow");
    assert_eq!((again.status, port_of(&again)), (200, slow), "the one that nobody has used yet is there");
    // It makes room when another run needs its port.
    assert_eq!((open("b").status, open("c").status, open("d").status), (201, 201, 503));
}

#[test]
fn abandoned_joins_make_room_for_runs_whose_nodes_wait() {
    let server = TestServer::start(&["--max-runs", "40", "--test-settings", "keep-alive=300ms"]);
    let (admin, body) =
        (server.admin, json!({"node": "a", "min_nodes": 2, "store": false, "wait_seconds": 60}));
    let waits = std::thread::spawn(move || post(admin, "/api/v1/runs/healthy/join", &body));
    let abandoned = json!({"min_nodes": 2, "keep_alive_seconds": 1000});
    eventually("it waits", || http(server.admin, "GET /api/v1/runs/healthy", "", "").status == 200);
    for n in 0..39 {
        assert_eq!(join(&server, &format!("abandoned-{n}"), &abandoned).status, 202);
    }
    for n in 0..60 {
        eventually("room for a run", || join(&server, &format!("late-{n}"), &abandoned).status == 202);
    }
    let other = json!({"node": "b", "min_nodes": 2, "store": false, "wait_seconds": 15});
    assert_eq!(post(server.admin, "/api/v1/runs/healthy/join", &other).json()["state"], "complete");
    assert_eq!(waits.join().expect("an answer").json()["round"], 1);
    let week = join(&server, "week", &json!({"keep_alive_seconds": 604_800}));
    assert_eq!((week.status, week.json()["code"].as_str()), (400, Some("bad_request")), "{week:?}");
}

#[test]
fn a_stranger_s_reports_do_not_poison_a_run() {
    let server = TestServer::start(&[]);
    let most = (1_u64 << 48) - 1;
    let stranger = |run: &str, round: u64| {
        let body = json!({"node": "stranger", "round": round, "rank": 0, "world_size": 1, "min_nodes": 1,
            "wait_seconds": 0});
        post(server.admin, &format!("/api/v1/runs/{run}/heartbeat"), &body).json()["action"].clone()
    };
    let store = json!({"store": false});
    for run in ["train", "twin"] {
        assert_eq!(join(&server, run, &store).json()["round"], 1);
    }
    for round in [2, most, most + 1, u64::MAX] {
        assert_eq!(stranger("train", round), "rejoin");
    }
    for run in ["train", "twin"] {
        let next = json!({"store": false, "join_id": "2", "previous": {"round": 1, "rank": 0}});
        assert_eq!(join(&server, run, &next).json()["round"], 2, "{run}");
    }
    // A foreign report that is believed, because no node contradicts it, does no lasting harm either.
    assert_eq!(stranger("early", most), "continue");
    post(server.admin, "/api/v1/runs/early/leave", &json!({"node": "stranger"}));
    for n in 1..4_u64 {
        let place = json!({"round": most + n - 1, "rank": 0});
        let answer =
            join(&server, "early", &json!({"store": false, "join_id": n.to_string(), "previous": place}));
        assert_eq!(answer.json()["round"], most + n, "{answer:?}");
        let beat = json!({"node": "a", "join_id": n.to_string(), "round": most + n, "rank": 0,
            "world_size": 1, "min_nodes": 1, "wait_seconds": 0});
        assert_eq!(post(server.admin, "/api/v1/runs/early/heartbeat", &beat).json()["action"], "continue");
    }
}

// ----- memory -----

const MIB: usize = 1 << 20;
/// The value of `--max-memory`; the stores are empty.
const LIMIT: usize = 16 * MIB;

/// The longest text that a peer may send.
fn long(what: &str, n: usize) -> String {
    format!("{what}-{n}-{}", "x".repeat(230))
}

/// Sends all bodies, many of them in one write. Returns the statuses.
fn post_all(server: &TestServer, path: &str, bodies: impl Iterator<Item = Value>) -> Vec<u16> {
    const TOGETHER: usize = 50;
    let bodies: Vec<String> = bodies.map(|body| body.to_string()).collect();
    let mut statuses = Vec::new();
    for some in bodies.chunks(TOGETHER) {
        let mut requests = String::new();
        for (n, body) in some.iter().enumerate() {
            let connection = if n + 1 == some.len() { "close" } else { "keep-alive" };
            let length = body.len();
            let _ = write!(
                requests,
                "POST {path} HTTP/1.1\r\nHost: test\r\nConnection: {connection}\r\n\
                 Content-Length: {length}\r\n{JSON}\r\n{body}"
            );
        }
        let mut stream = std::net::TcpStream::connect(server.admin).expect("the admin port listens");
        stream.write_all(requests.as_bytes()).expect("the admin port reads");
        let mut answers = String::new();
        stream.read_to_string(&mut answers).expect("the admin port answers");
        let heads = answers.split("HTTP/1.1 ").skip(1);
        statuses.extend(heads.map(|head| head[..3].parse::<u16>().expect("a status")));
    }
    assert_eq!(statuses.len(), bodies.len());
    statuses
}

#[track_caller]
fn assert_within_limit(server: &TestServer, before: usize) {
    let grown = server.resident().saturating_sub(before);
    assert!(grown <= LIMIT + LIMIT / 5, "{} MiB", grown / MIB);
}

#[test]
fn runs_that_are_over_stay_within_the_memory_and_keep_a_summary() {
    const MEETINGS: usize = 30;
    const NODES: usize = 300;
    let server = TestServer::start(&["--max-memory", "16MiB"]);
    let before = server.resident();
    for meeting in 0..MEETINGS {
        let join = |n: usize| {
            json!({"node": long("node", n), "join_id": "1", "name": long("name", n),
                "address": long("address", n),
                "role": long("role", n), "torch_version": long("torch", n), "min_nodes": NODES,
                    "heartbeat": false,
                "store": false, "wait_seconds": 0})
        };
        let path = format!("/api/v1/runs/meeting-{meeting}");
        let mut statuses = post_all(&server, &format!("{path}/join"), (0..NODES).map(join));
        assert_eq!(statuses.pop(), Some(200), "the last one completes the round");
        assert!(statuses.iter().all(|status| *status == 202), "{statuses:?}");
        assert_eq!(post(server.admin, &format!("{path}/close"), &json!({})).status, 200);
    }
    assert_within_limit(&server, before);
    let shown = |meeting: usize| {
        let run = http(server.admin, &format!("GET /api/v1/runs/meeting-{meeting}"), "", "").json();
        (
            run["state"].as_str().map(str::to_owned),
            run["nodes"]["joined"].as_u64(),
            run["participants"].as_array().map(Vec::len),
        )
    };
    let closed = || Some("closed".to_owned());
    assert_eq!(shown(MEETINGS - 1), (closed(), Some(NODES as u64), Some(NODES)));
    assert_eq!(shown(0), (closed(), Some(NODES as u64), Some(0)), "how many they were stays");
}

#[test]
fn barriers_and_announced_pods_stay_within_the_memory() {
    let server = TestServer::start(&["--max-memory", "16MiB"]);
    let before = server.resident();
    let members: Vec<String> = (0..5000).map(|n| format!("m{n}")).collect();
    let arrive = |n: usize| {
        let body = json!({"participant": "m0", "arrival_id": "1", "members": members, "wait_seconds": 0});
        post(server.admin, &format!("/api/v1/barriers/barrier-{n}/arrive"), &body)
    };
    let answers: Vec<HttpAnswer> = (0..100).map(arrive).collect();
    let (taken, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 202);
    assert!(!taken.is_empty() && !refused.is_empty());
    for answer in refused {
        assert_eq!((answer.status, answer.json()["code"].as_str()), (503, Some("no_memory")), "{answer:?}");
    }
    let announce = |n: usize| {
        json!({"pod": long("pod", n), "uid": long("uid", n), "torch": long("torch", n),
        "nodes": "5000", "wait_seconds": 0})
    };
    let statuses = post_all(&server, "/api/v1/runs/announced/announce", (0..4000).map(announce));
    assert_eq!(statuses.iter().copied().collect::<BTreeSet<u16>>(), BTreeSet::from([202, 503]));
    assert_within_limit(&server, before);
    assert_eq!(join(&server, "another", &json!({"store": false})).status, 200, "runs have their own share");
}

/// Acts as the agents of a static torchrun, for all nodes of its run, and then deletes all its keys. Only the
/// observations of the run remain.
fn unmodified_run(server: &TestServer, run: &str, nodes: usize) -> Peer {
    let role = br#"{"role": "default", "rank": 0, "local_world_size": 8}"#;
    let keys: Vec<_> =
        (0..nodes).map(|node| wire(format!("/{run}/torchelastic/role_info/{node}").as_bytes())).collect();
    let mut agent = Peer::greet(server.store);
    for key in &keys {
        agent.send(&[&[Op::Set as u8][..], key, &wire(role)].concat());
    }
    for key in &keys {
        agent.send(&[&[Op::Delete as u8][..], key].concat());
    }
    agent
}

/// The sum of a metric's series with `label` in their labels.
fn metric(server: &TestServer, name: &str, label: &str) -> usize {
    let page = http(server.admin, "GET /metrics", "", "").body;
    let lines = page.lines().filter(|line| line.starts_with(name) && line.contains(label));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() as usize
}

fn used(server: &TestServer) -> usize {
    metric(server, "rallypoint_memory_used_bytes", "")
}

#[test]
fn what_is_seen_of_unmodified_runs_counts_for_the_memory() {
    const RUNS: usize = 300;
    const NODES: usize = 300;
    const LIMIT: usize = 64 * MIB;
    let [seeing, blind] = ["on", "off"].map(|insight| {
        let server = TestServer::start(&["--max-memory", "64MiB", "--insight", insight]);
        let before = server.resident();
        let agents: Vec<_> =
            (0..RUNS).map(|run| unmodified_run(&server, &format!("run-{run}"), NODES)).collect();
        eventually("all is done", || {
            metric(&server, "rallypoint_requests_total", "\"delete\"") == RUNS * NODES
        });
        (server, before, agents)
    });
    let grown = || seeing.0.resident() - seeing.1;
    eventually("it is counted", || used(&seeing.0) > LIMIT / 12);
    println!("{} KiB are counted, memory grew by {} KiB", used(&seeing.0) / 1024, grown() / 1024);
    assert!(grown() <= LIMIT + LIMIT / 5, "{} MiB", grown() / MIB);
    assert!(used(&blind.0) < MIB, "the stores are empty, and nothing was looked at");
    drop(seeing.2);
    eventually("runs that are over make room", || used(&seeing.0) < LIMIT / 14);
}

#[test]
fn unmodified_runs_that_are_over_stay_within_the_memory() {
    let server = TestServer::start(&["--max-memory", "16MiB"]);
    let before = server.resident();
    for run in 0..120 {
        drop(unmodified_run(&server, &format!("run-{run}"), 400));
        if run % 10 == 9 {
            // The server makes room once a second.
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    assert_within_limit(&server, before);
    assert_eq!(metric(&server, "rallypoint_connections_total", "\"limit\""), 0, "nobody was refused");
}

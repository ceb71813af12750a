//! What one run does to the others when there are many, when it starts again and again, when it is abandoned, and when
//! strangers speak of it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};

mod common;

use common::{HttpAnswer, TestServer, eventually, http};

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
    // The others' ports have rested, as long as there are some; then they get those of the run.
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
    let args = ["--store-linger", "200ms", "--join-timeout", "1h"];
    let server = TestServer::with_store_ports(2, &args);
    let open = |run: &str| post(server.admin, "/api/v1/stores", &json!({"run_id": run}));
    let (slow, used) = (port_of(&open("slow")), port_of(&open("used")));
    let store = SocketAddr::from(([127, 0, 0, 1], u16::try_from(used).expect("a port")));
    let client = common::peer::Peer::greet(store);
    eventually("it is seen", || {
        let stores = http(server.admin, "GET /api/v1/stores", "", "").json();
        stores["stores"].as_array().is_some_and(|stores| stores.iter().any(|store| store["connections"] == 1))
    });
    // Longer than the housekeeping takes to see it.
    std::thread::sleep(Duration::from_secs(1));
    drop(client);
    eventually("the used one is closed", || std::net::TcpStream::connect(store).is_err());
    let again = open("slow");
    assert_eq!((again.status, port_of(&again)), (200, slow), "the one that nobody has used yet is there");
    // It makes room when its port is needed.
    assert_eq!((open("b").status, open("c").status, open("d").status), (201, 201, 503));
}

#[test]
fn abandoned_joins_make_room_for_runs_whose_nodes_wait() {
    let server = TestServer::start(&["--max-runs", "40", "--keep-alive", "300ms"]);
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
        let body = json!({"node": "stranger", "round": round, "rank": 0, "world_size": 1, "min_nodes": 1, "wait_seconds": 0});
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
    // One that is believed, because nobody is there who knows better, does no lasting harm either.
    assert_eq!(stranger("early", most), "continue");
    post(server.admin, "/api/v1/runs/early/leave", &json!({"node": "stranger"}));
    for n in 1..4_u64 {
        let place = json!({"round": most + n - 1, "rank": 0});
        let answer =
            join(&server, "early", &json!({"store": false, "join_id": n.to_string(), "previous": place}));
        assert_eq!(answer.json()["round"], most + n, "{answer:?}");
        let beat = json!({"node": "a", "join_id": n.to_string(), "round": most + n, "rank": 0, "world_size": 1, "min_nodes": 1, "wait_seconds": 0});
        assert_eq!(post(server.admin, "/api/v1/runs/early/heartbeat", &beat).json()["action"], "continue");
    }
}

//! Native runs in the common views: the API, metrics, events and log, with the workers of their stores.

use std::net::SocketAddr;
use std::thread::JoinHandle;

use crate::common::peer::Peer;
use crate::common::{HttpAnswer, TestServer, eventually, http};
use rallypoint_protocol::{Dialect, KeyList, Payload, Request, encode_request};
use serde_json::{Value, json};

const JSON: &str = "Content-Type: application/json\r\n";

fn post(admin: SocketAddr, path: &str, body: &Value) -> HttpAnswer {
    http(admin, &format!("POST {path}"), JSON, &body.to_string())
}

/// Joins as `node` with a rank and waits for the round.
fn joining(server: &TestServer, run: &str, node: &str, rank: u32, more: &Value) -> JoinHandle<Value> {
    let mut body = json!({
        "node": format!("{node}-id"), "name": node, "address": format!("{node}.example"), "join_id": "1",
            "node_rank": rank,
        "min_nodes": 2, "wait_seconds": 15,
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    let (admin, path) = (server.admin, format!("/api/v1/runs/{run}/join"));
    std::thread::spawn(move || post(admin, &path, &body).json())
}

/// Two nodes meet. Returns the answer to the first one.
fn meet(server: &TestServer, run: &str, more: &Value) -> Value {
    let first = joining(server, run, "a", 0, more);
    let second = joining(server, run, "b", 1, more);
    let answer = first.join().expect("an answer");
    assert_eq!(
        (&answer["state"], second.join().expect("an answer")["round"].clone()),
        (&json!("complete"), json!(1))
    );
    answer
}

fn run(server: &TestServer, run_id: &str) -> Value {
    http(server.admin, &format!("GET /api/v1/runs/{run_id}"), "", "").json()
}

#[track_caller]
fn eventually_run(server: &TestServer, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    eventually(what, || {
        last = run(server, "train");
        is_so(&last)
    });
    last
}

fn metrics(server: &TestServer) -> String {
    http(server.admin, "GET /metrics", "", "").body
}

#[track_caller]
fn assert_metrics(server: &TestServer, lines: &[&str]) {
    let metrics = metrics(server);
    for line in lines {
        assert!(
            metrics.lines().any(|known| known == format!("rallypoint_{line}")),
            "{line} is not in {metrics}"
        );
    }
}

fn say(peer: &mut Peer, request: &Request<'_>) {
    let mut wire = Vec::new();
    assert!(encode_request(request, Dialect::C, &mut wire));
    peer.send(&wire);
}

fn set(peer: &mut Peer, key: &str) {
    say(peer, &Request::Set { key: key.as_bytes(), value: Payload::borrowed(b"an address") });
}

/// The codes in a run's timeline.
fn codes(run: &Value) -> Vec<&str> {
    run["timeline"].as_array().expect("moments").iter().filter_map(|moment| moment["code"].as_str()).collect()
}

#[test]
fn a_round_that_gathers_names_who_is_there_and_which_rank_is_not() {
    let server = TestServer::with_store_ports(20, &["--explain-after", "1s"]);
    let waiting = joining(&server, "train", "a", 1, &json!({"local_world_size": 8}));
    let shown =
        eventually_run(&server, "the explanation", |run| run["explanation"]["code"] == "nodes_missing");
    assert_eq!(
        (&shown["kind"], &shown["state"], &shown["round"], &shown["store"]),
        (&json!("native"), &json!("joining"), &json!(1), &Value::Null)
    );
    let expected = json!({"min": 2, "max": 2, "source": "join"});
    assert_eq!(
        (&shown["nodes"]["joined"], &shown["nodes"]["missing"], &shown["nodes"]["expected"]),
        (&json!(1), &json!(1), &expected)
    );
    let node = &shown["participants"][0];
    assert_eq!(
        (
            &node["node_id"],
            &node["name"],
            &node["peer"],
            &node["rank"],
            &node["state"],
            &node["local_world_size"]
        ),
        (&json!("a-id"), &json!("a"), &json!("a.example"), &json!(1), &json!("joined"), &json!(8))
    );
    let (joined, heard) = (node["joined_at"].as_f64(), node["last_heartbeat"].as_f64());
    assert!(
        heard.zip(joined).is_some_and(|(heard, joined)| heard - joined > 0.9),
        "its request waits here, so it is heard all the time: {shown}"
    );
    assert!(shown["deadline"].as_f64() > shown["now"].as_f64(), "{shown}");
    assert_eq!(
        (&shown["missing"][0]["rank"], &shown["missing"][0]["presence"]),
        (&json!(0), &json!("never_seen"))
    );
    let said = &shown["explanation"];
    assert!(said["text"].as_str().is_some_and(|text| text.starts_with("train round 1")), "{said}");
    assert!(!said["remedy"].as_str().expect("a remedy").is_empty());
    assert_eq!(codes(&shown)[..2], ["node_joined", "run_started"]);
    assert_metrics(
        &server,
        &[
            "rendezvous_kind{kind=\"native\",run_id=\"train\"} 1",
            "rendezvous_expected_nodes{run_id=\"train\"} 2",
            "rendezvous_joined_nodes{run_id=\"train\"} 1",
            "rendezvous_missing_nodes{run_id=\"train\"} 1",
            "rendezvous_complete{run_id=\"train\"} 0",
        ],
    );
    joining(&server, "train", "b", 0, &Value::Null).join().expect("an answer");
    waiting.join().expect("an answer");
    let shown = run(&server, "train");
    assert_eq!(
        (&shown["state"], &shown["missing"], &shown["nodes"]["missing"]),
        (&json!("running"), &json!([]), &json!(0))
    );
    eventually("the wait is over", || {
        run(&server, "train")["explanations"].as_array().is_some_and(|all| {
            all.iter().all(|said| said["code"] != "nodes_missing" || said["holds"] == false)
        })
    });
}

#[test]
fn a_complete_round_has_one_line_and_its_workers_are_its_ranks() {
    let server = TestServer::with_store_ports(20, &[]);
    let answer = meet(&server, "train", &json!({"local_world_size": 1}));
    let port = answer["store"]["port"].as_u64().expect("a port");
    let store = SocketAddr::from(([127, 0, 0, 1], port as u16));
    let (mut zero, mut one) = (Peer::greet(store), Peer::greet(store));
    set(&mut zero, "/default_pg/0//cpu//0/0");
    say(&mut one, &Request::Ping { nonce: 4711 });
    set(&mut one, "init/");
    let keys: KeyList = ["/default_pg/0//cpu//0/1"].into_iter().collect();
    say(&mut zero, &Request::Wait(keys.as_list()));
    let shown = eventually_run(&server, "a rank and its wait", |run| {
        run["rank_grid"]["states"] == "j." && !run["waits"].as_array().is_none_or(Vec::is_empty)
    });
    assert_eq!(
        (&shown["kind"], &shown["store"], &shown["state"]),
        (&json!("native"), &json!(port), &json!("running"))
    );
    let wait = &shown["waits"][0];
    assert_eq!((&wait["run_id"], &wait["writer"]), (&json!("train"), &json!("rank 1")), "{wait}");
    let runs = http(server.admin, "GET /api/v1/runs", "", "").json();
    assert_eq!(runs["runs"].as_array().map(Vec::len), Some(1), "no run of its own: {runs}");
    assert_metrics(
        &server,
        &[
            "rendezvous_complete{run_id=\"train\"} 1",
            "rendezvous_rounds_total{outcome=\"complete\"} 1",
            "rendezvous_join_duration_seconds_count 1",
            "ranks_joined{run_id=\"train\"} 1",
            "ranks_expected{run_id=\"train\"} 2",
        ],
    );
    eventually("the line", || server.log().contains("train round 1 complete: 2 nodes in"));
    assert_eq!(server.log().matches("round 1 complete").count(), 1, "{}", server.log());
    assert_eq!(server.log().matches("round 1 gathers").count(), 1, "{}", server.log());
}

#[test]
fn a_lost_node_is_missing_by_name_and_counted() {
    // One request must fit into three of these intervals.
    let server = TestServer::with_store_ports(20, &["--test-settings", "keep-alive=700ms"]);
    meet(&server, "train", &Value::Null);
    // Only one node sends heartbeats, and is told.
    let beat = json!({"node": "a-id", "join_id": "1", "round": 1, "rank": 0, "world_size": 2, "min_nodes": 2,
        "wait_seconds": 15});
    eventually("it is told to join again", || {
        post(server.admin, "/api/v1/runs/train/heartbeat", &beat).json()["action"] == "rejoin"
    });
    let again = joining(&server, "train", "a", 0, &json!({"join_id": "2"}));
    let shown = eventually_run(&server, "the next round", |run| {
        run["round"] == 2 && run["nodes"]["joined"] == 1 && codes(run).contains(&"lost")
    });
    assert_eq!((&shown["state"], &shown["nodes"]["missing"]), (&json!("joining"), &json!(1)));
    assert!(
        shown["explanations"].as_array().expect("some").iter().any(|said| said["code"] == "lost"),
        "{shown}"
    );
    assert_metrics(&server, &["node_deaths_total 1", "rendezvous_complete{run_id=\"train\"} 0"]);
    joining(&server, "train", "b", 1, &json!({"join_id": "2"})).join().expect("an answer");
    assert_eq!(again.join().expect("an answer")["round"], 2);
    assert_eq!(run(&server, "train")["state"], "running");
}

#[test]
fn deleting_a_native_run_turns_its_nodes_away_and_forgets_it() {
    let server = TestServer::with_store_ports(20, &[]);
    let waiting = joining(&server, "train", "a", 0, &Value::Null);
    eventually_run(&server, "a node", |run| run["nodes"]["joined"] == 1);
    let gone = http(server.admin, "DELETE /api/v1/runs/train", "", "");
    assert_eq!((gone.status, &gone.json()["run_id"]), (200, &json!("train")), "{gone:?}");
    assert_eq!(waiting.join().expect("an answer")["code"], "closed");
    let shown = run(&server, "train");
    assert_eq!((&shown["state"], &shown["nodes"]["joined"]), (&json!("closed"), &json!(0)), "{shown}");
    assert_metrics(
        &server,
        &["rendezvous_joined_nodes{run_id=\"train\"} 0", "rendezvous_missing_nodes{run_id=\"train\"} 0"],
    );
    assert_eq!(http(server.admin, "DELETE /api/v1/runs/nobody", "", "").status, 404);
}

#[test]
fn a_run_whose_nodes_all_succeeded_has_finished_and_is_not_started_again_by_a_straggler() {
    let server = TestServer::with_store_ports(20, &[]);
    meet(&server, "train", &Value::Null);
    let leave = |node: &str, outcome: &str| {
        let left = post(server.admin, "/api/v1/runs/train/leave", &json!({"node": node, "outcome": outcome}));
        assert_eq!((left.status, &left.json()["left"]), (200, &json!(true)), "{left:?}");
    };
    post(server.admin, "/api/v1/runs/train/close", &json!({"node": "a-id"}));
    leave("a-id", "succeeded");
    let shown = eventually_run(&server, "one has done its work", |run| run["state"] == "exiting");
    assert_eq!(shown["exit"], json!({"arrived": 1, "expected": 2}), "{shown}");
    leave("b-id", "succeeded");
    let shown = eventually_run(&server, "both have", |run| run["state"] == "finished");
    assert_eq!(
        (&shown["explanation"], &shown["nodes"]["joined"], &shown["nodes"]["missing"]),
        (&Value::Null, &json!(2), &json!(0)),
        "nothing is wrong: {shown}"
    );
    eventually("the line", || server.log().contains("train finished: 2 nodes after"));
    let announce = |restart: bool| {
        let pod = json!({"pod": "train-0", "nodes": "1", "restart_finished": restart});
        post(server.admin, "/api/v1/runs/train/announce", &pod)
    };
    let refused = announce(false);
    assert_eq!(
        (refused.status, refused.body.contains("would train over its results")),
        (409, true),
        "{refused:?}"
    );
    assert_eq!(announce(true).status, 200);
}

#[test]
fn a_run_in_which_a_node_failed_is_closed_and_may_be_started_again() {
    let server = TestServer::with_store_ports(20, &[]);
    meet(&server, "train", &Value::Null);
    post(server.admin, "/api/v1/runs/train/close", &json!({"node": "a-id"}));
    for (node, outcome) in [("a-id", "failed"), ("b-id", "succeeded")] {
        post(server.admin, "/api/v1/runs/train/leave", &json!({"node": node, "outcome": outcome}));
    }
    eventually_run(&server, "it is closed", |run| run["state"] == "closed" && run["exit"]["arrived"] == 1);
    let announced =
        post(server.admin, "/api/v1/runs/train/announce", &json!({"pod": "train-0", "nodes": "1"}));
    assert_eq!(announced.status, 200, "{announced:?}");
    let wrong = json!({"node": "a-id", "outcome": "perhaps"});
    assert_eq!(post(server.admin, "/api/v1/runs/train/leave", &wrong).status, 422);
}

#[test]
fn a_spare_is_explained_and_no_alarm() {
    let server = TestServer::with_store_ports(20, &["--explain-after", "1s"]);
    meet(&server, "train", &json!({"node_rank": Value::Null}));
    let spare = joining(&server, "train", "c", 1, &json!({"node_rank": Value::Null}));
    let shown = eventually_run(&server, "the spare is explained", |run| {
        run["explanations"].as_array().is_some_and(|all| all.iter().any(|said| said["code"] == "stands_by"))
    });
    assert_eq!((&shown["state"], &shown["nodes"]["redundant"]), (&json!("running"), &json!(1)), "{shown}");
    assert_eq!(shown["explanation"], Value::Null, "the run's headline is for what is wrong: {shown}");
    let all = shown["explanations"].as_array().expect("some");
    let said = all.iter().find(|said| said["code"] == "stands_by").expect("it is there");
    assert_eq!((&said["severity"], &said["holds"]), (&json!("info"), &json!(true)));
    assert_eq!(said["facts"]["held"]["shown"], json!(["c"]));
    post(server.admin, "/api/v1/runs/train/close", &json!({"node": "a-id"}));
    assert_eq!(spare.join().expect("an answer")["code"], "graceful_exit");
}

#[test]
fn a_node_that_waits_for_the_rank_of_a_silent_one_is_told_whose_it_is() {
    let server =
        TestServer::with_store_ports(20, &["--explain-after", "1s", "--test-settings", "keep-alive=60s"]);
    meet(&server, "train", &Value::Null);
    let replacement = joining(&server, "train", "c", 1, &Value::Null);
    let shown = eventually_run(&server, "it is explained", |run| run["explanation"]["code"] == "stands_by");
    let text = shown["explanation"]["text"].as_str().expect("a text");
    assert!(text.contains('c') && text.contains("b (node rank 1)"), "{text}");
    post(server.admin, "/api/v1/runs/train/close", &json!({"node": "a-id"}));
    replacement.join().expect("an answer");
}

#[test]
fn native_runs_are_shown_without_insight_too() {
    let server = TestServer::with_store_ports(20, &["--insight", "off"]);
    meet(&server, "train", &Value::Null);
    let shown = run(&server, "train");
    assert_eq!((&shown["kind"], &shown["nodes"]["joined"]), (&json!("native"), &json!(2)));
    eventually("the line", || server.log().contains("train round 1 complete: 2 nodes in"));
    assert_metrics(&server, &["rendezvous_rounds_total{outcome=\"complete\"} 1"]);
}

#[test]
fn what_happens_in_a_store_of_a_native_run_s_own_belongs_to_the_run() {
    let server = TestServer::with_store_ports(20, &[]);
    meet(&server, "train", &json!({"store": false}));
    let opened = post(server.admin, "/api/v1/stores", &json!({"run_id": "train"})).json();
    let port = opened["port"].as_u64().expect("a port");
    let mut worker = Peer::greet(SocketAddr::from(([127, 0, 0, 1], port as u16)));
    set(&mut worker, "/default_pg/0//cpu//0/0");
    let shown = eventually_run(&server, "its rank", |run| run["rank_grid"]["states"] == "j");
    assert_eq!((&shown["kind"], &shown["store"]), (&json!("native"), &json!(port)));
    let runs = http(server.admin, "GET /api/v1/runs", "", "").json();
    assert_eq!(runs["runs"].as_array().map(Vec::len), Some(1), "{runs}");
}

#[test]
fn who_waits_at_a_native_barrier_is_counted() {
    let server = TestServer::start(&[]);
    let arrive = json!({"participant": "a", "arrival_id": "1", "world_size": 2, "timeout_seconds": 60,
        "wait_seconds": 0});
    assert_eq!(post(server.admin, "/api/v1/barriers/epoch/arrive", &arrive).status, 202);
    assert_metrics(
        &server,
        &["barrier_arrived{barrier=\"epoch\"} 1", "barrier_expected{barrier=\"epoch\"} 2"],
    );
    let arrive = json!({"participant": "b", "arrival_id": "1", "world_size": 2, "timeout_seconds": 60,
        "wait_seconds": 0});
    assert_eq!(post(server.admin, "/api/v1/barriers/epoch/arrive", &arrive).status, 200);
    assert!(!metrics(&server).contains("barrier=\"epoch\""), "nobody waits there");
}

#[test]
fn a_broken_connection_a_refusal_and_a_failure_are_explanations_of_the_run() {
    let server = TestServer::start(&[]);
    meet(&server, "train", &json!({}));
    let explained = |code: &str, name: &str| {
        let is_it = |said: &Value| {
            said["code"] == code && said["text"].as_str().is_some_and(|text| text.contains(name))
        };
        eventually_run(&server, name, |run| run["explanations"].as_array().into_iter().flatten().any(is_it))
    };
    let beat =
        json!({"node": "b-id", "name": "b", "address": "b.example", "join_id": "1", "round": 1, "rank": 1,
        "world_size": 2, "min_nodes": 2, "max_nodes": 2, "wait_seconds": 60})
        .to_string();
    let mut broken = std::net::TcpStream::connect(server.admin).expect("the admin port listens");
    let head = format!(
        "POST /api/v1/runs/train/heartbeat HTTP/1.1\r\nHost: x\r\n{JSON}Content-Length: {}\r\n\r\n",
        beat.len()
    );
    std::io::Write::write_all(&mut broken, format!("{head}{beat}").as_bytes()).expect("it reads");
    eventually_run(&server, "its request waits", |run| {
        let node = &run["participants"][1];
        node["last_heartbeat"].as_f64() >= run["now"].as_f64()
    });
    drop(broken);
    explained("node_silent", "b (b.example)");

    let stranger =
        json!({"node": "c-id", "name": "c", "address": "c.example", "join_id": "1", "min_nodes": 3});
    for _ in 0..3 {
        assert_eq!(post(server.admin, "/api/v1/runs/train/join", &stranger).status, 409);
    }
    let run = explained("join_refused", "c (c.example)");
    let refusals =
        run["timeline"].as_array().expect("a list").iter().filter(|at| at["code"] == "join_refused").count();
    assert_eq!(refusals, 1, "{run}");

    post(server.admin, "/api/v1/runs/train/close", &json!({"node": "b-id", "reason": "its agent failed"}));
    let failed = json!({"node": "b-id", "reason": "its agent failed: ChildFailedError", "outcome": "failed"});
    post(server.admin, "/api/v1/runs/train/leave", &failed);
    explained("run_closed", "b (b.example)");
}

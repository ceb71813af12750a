//! The native rendezvous and barriers over HTTP: joins, rounds and their stores, heartbeats, closing, and the
//! protection of runs from each other.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::{HttpAnswer, PATIENCE, TestServer, eventually, http};

const JSON: &str = "Content-Type: application/json\r\n";

fn server(args: &[&str]) -> TestServer {
    TestServer::with_store_ports(20, args)
}

fn post(admin: SocketAddr, path: &str, body: &Value) -> HttpAnswer {
    http(admin, &format!("POST {path}"), JSON, &body.to_string())
}

/// A request in the background.
fn posting(admin: SocketAddr, path: &str, body: Value) -> JoinHandle<HttpAnswer> {
    let path = path.to_owned();
    std::thread::spawn(move || post(admin, &path, &body))
}

const JOIN: &str = "/api/v1/runs/train/join";

/// The body of a join of at most two nodes, with a long wait.
fn join(node: &str) -> Value {
    json!({"node": node, "join_id": "1", "min_nodes": 2, "participants": true, "wait_seconds": 15})
}

fn with(mut body: Value, more: &Value) -> Value {
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

/// Both nodes join. Returns their answers.
fn meet(server: &TestServer, a: Value, b: &Value) -> (Value, Value) {
    let first = posting(server.admin, JOIN, a);
    let second = post(server.admin, JOIN, b);
    let first = first.join().expect("an answer");
    assert_eq!((first.status, second.status), (200, 200), "{first:?} {second:?}");
    (first.json(), second.json())
}

fn heartbeat(node: &str, round: u64, rank: u64) -> Value {
    json!({"node": node, "join_id": "1", "round": round, "rank": rank, "world_size": 2, "min_nodes": 2,
        "wait_seconds": 15})
}

const HEARTBEAT: &str = "/api/v1/runs/train/heartbeat";

fn store_of(joined: &Value) -> SocketAddr {
    let port = joined["store"]["port"].as_u64().expect("a store");
    SocketAddr::from(([127, 0, 0, 1], u16::try_from(port).expect("a port")))
}

/// A worker with a connection to a store that has answered.
fn worker(store: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(store).expect("the store listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream.set_nodelay(true).expect("a socket");
    stream.write_all(&crate::common::peer::unhex("00cef7853c0d4d000000")).expect("it reads");
    stream.read_exact(&mut [0; 4]).expect("it answers");
    stream
}

/// The log line may come a moment after the answer.
fn logged(server: &TestServer, words: &str) {
    eventually(words, || server.log().contains(words));
}

#[track_caller]
fn assert_problem(answer: &HttpAnswer, status: u16, code: &str, hint: &str) {
    assert_eq!((answer.status, answer.json()["code"].as_str()), (status, Some(code)), "{answer:?}");
    assert!(answer.head.contains("application/problem+json"), "{answer:?}");
    let detail = answer.json()["detail"].as_str().expect("a detail").to_owned();
    assert!(detail.contains(hint), "`{hint}` is not in {detail}");
}

#[test]
fn nodes_that_join_get_ranks_a_list_of_peers_and_a_store_that_answers() {
    let server = server(&[]);
    let (a, b) = meet(&server, with(join("a"), &json!({"node_rank": 1, "role": "head"})), &join("b"));
    assert_eq!((&a["group_rank"], &b["group_rank"]), (&json!(1), &json!(0)));
    assert_eq!(
        (&a["round"], &a["group_world_size"], &a["state"]),
        (&json!(1), &json!(2), &json!("complete"))
    );
    assert_eq!(a["participants"], b["participants"]);
    let head = json!({"group_rank": 1, "node": "a", "name": "a", "address": "127.0.0.1", "role": "head",
        "local_world_size": null});
    assert_eq!(a["participants"][1], head);
    assert_eq!(a["store"], b["store"]);
    worker(store_of(&a));
    logged(&server, "train round 1 complete: 2 nodes in");
    let retry = post(server.admin, JOIN, &with(join("b"), &json!({"participants": false}))).json();
    assert_eq!(retry["group_rank"], b["group_rank"]);
    assert_eq!(retry.get("participants"), None);
}

#[test]
fn peers_read_the_payload_of_a_join() {
    let server = server(&[]);
    let text = "gloo:1\n".repeat(585) + "x";
    let long = with(join("a"), &json!({"payload": text.clone() + "x"}));
    let refused = post(server.admin, JOIN, &long);
    assert_problem(&refused, 400, "bad_request", "`payload` has 4097 bytes, and may have at most 4096");
    let (a, b) = meet(&server, with(join("a"), &json!({"payload": text, "node_rank": 0})), &join("b"));
    assert_eq!(b["participants"], a["participants"]);
    assert_eq!(b["participants"][0]["payload"], json!(text));
    assert_eq!(b["participants"][1].get("payload"), None);
}

#[test]
fn a_round_has_as_many_nodes_as_an_operator_expects() {
    let server = server(&[]);
    let wants = json!({"max_nodes": 4, "last_call_seconds": 600});
    let [a, b] = ["a", "b"].map(|node| posting(server.admin, JOIN, with(join(node), &wants)));
    eventually("they wait", || {
        http(server.admin, "GET /api/v1/runs/train", "", "").json()["nodes"]["joined"] == 2
    });
    let expect = |nodes: u32| {
        let body = json!({"nodes": nodes}).to_string();
        http(server.admin, "PUT /api/v1/runs/train/expect", JSON, &body)
    };
    assert_problem(&expect(5), 409, "parameter_mismatch", "ask for 2:4, so its rounds cannot have 5");
    let more = expect(3).json();
    assert_eq!(more["comes"], "round 1 gathers, and is complete with 3 nodes; 2 joined");
    // Now with the command.
    let ctl = std::process::Command::new(env!("CARGO_BIN_EXE_rallypoint"))
        .args(["ctl", "expect", "train", "2", "--admin", &format!("http://{}", server.admin)])
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&ctl.stderr);
    assert!(said.contains("of run train, 2 nodes are expected; round 1 has 2 nodes, and goes on"), "{said}");
    for joined in [a, b] {
        assert_eq!(joined.join().expect("an answer").json()["group_world_size"], 2);
    }
    assert_eq!(
        post(server.admin, JOIN, &with(with(join("c"), &wants), &json!({"wait_seconds": 0}))).json()["state"],
        "redundant"
    );
}

#[test]
fn who_waits_is_told_how_far_it_is() {
    let server = server(&[]);
    let body = json!({"node": "a", "node_rank": 2, "min_nodes": 3, "wait_seconds": 0});
    let waiting = post(server.admin, JOIN, &body);
    assert_eq!(waiting.status, 202, "{waiting:?}");
    let waiting = waiting.json();
    assert_eq!(
        (&waiting["state"], &waiting["joined"], &waiting["min_nodes"]),
        (&json!("waiting"), &json!(1), &json!(3))
    );
    assert_eq!(waiting["missing_ranks"], json!([0, 1]));
    assert!(waiting["deadline_seconds"].as_f64().is_some_and(|left| left > 1700.0), "{waiting}");
    assert_eq!(waiting["reason"], "1 of 3 nodes joined; 2 more nodes are needed; node ranks not there: 0, 1");
}

#[test]
fn joins_that_cannot_be_are_refused_with_what_to_do() {
    let server = server(&[]);
    let holder = posting(server.admin, JOIN, with(join("a"), &json!({"node_rank": 0})));
    eventually("the first is there", || server.log().contains("train round 1 gathers: a"));
    let twice = post(server.admin, JOIN, &with(join("b"), &json!({"node_rank": 0})));
    assert_problem(&twice, 409, "duplicate_rank", "b (127.0.0.1), but a (127.0.0.1) has it");
    let other = post(server.admin, JOIN, &with(join("b"), &json!({"max_nodes": 4})));
    assert_problem(&other, 409, "parameter_mismatch", "max_nodes is 2 there and 4 here");
    let far = post(server.admin, JOIN, &with(join("b"), &json!({"node_rank": 2})));
    assert_problem(&far, 400, "bad_request", "ranks are below 2");
    for (more, hint) in [
        (json!({"node": ""}), "`node` must have 1 to 256 bytes"),
        (json!({"name": "a\nb"}), "`name` must have"),
        (json!({"keep_alive_seconds": 0}), "keep_alive_seconds"),
        (json!({"max_nodes": 1}), "max_nodes must not be less"),
    ] {
        assert_problem(&post(server.admin, JOIN, &with(join("b"), &more)), 400, "bad_request", hint);
    }
    let past = post(server.admin, JOIN, &with(join("b"), &json!({"wait_seconds": -1})));
    assert_problem(&past, 422, "bad_request", "wait_seconds: a time must be a number of seconds from 0");
    let newer = post(server.admin, JOIN, &with(join("a"), &json!({"join_id": "2", "wait_seconds": 0})));
    assert_eq!(newer.status, 202);
    assert_problem(&holder.join().expect("an answer"), 409, "replaced", "two processes using one node id");
}

#[test]
fn a_refused_stranger_with_a_nodes_name_disturbs_it_not() {
    let server = server(&[]);
    let three = |node: &str| with(join(node), &json!({"min_nodes": 3}));
    let parked = posting(server.admin, JOIN, three("a"));
    let probe = with(three("b"), &json!({"wait_seconds": 0}));
    eventually("both are there", || post(server.admin, JOIN, &probe).json()["joined"] == 2);
    let stranger = with(three("a"), &json!({"join_id": "x", "max_nodes": 4}));
    assert_problem(
        &post(server.admin, JOIN, &stranger),
        409,
        "parameter_mismatch",
        "max_nodes is 3 there and 4 here",
    );
    assert_eq!(post(server.admin, JOIN, &three("c")).status, 200);
    assert_eq!(parked.join().expect("an answer").status, 200);
}

#[test]
fn a_round_that_is_not_complete_in_time_says_who_is_missing() {
    let server = server(&[]);
    let body = with(join("a"), &json!({"node_rank": 0, "join_timeout_seconds": 0.2}));
    let late = post(server.admin, JOIN, &body);
    assert_problem(&late, 408, "join_timeout", "node ranks not there: 1");
    logged(&server, "train round 1 was given up after");
}

#[test]
fn what_a_newer_node_sends_is_taken_and_a_slip_of_an_operator_is_not() {
    let server = server(&[]);
    let newer = json!({"of_a_newer_release": {"x": 1}});
    let one = json!({"node": "a", "join_id": "1", "min_nodes": 1, "previous": {"round": 1, "rank": 0,
        "of_a_newer_release": 1}});
    let pod = json!({"pod": "a", "nodes": "1"});
    let arrival = json!({"participant": "a", "world_size": 1});
    let beat =
        json!({"node": "a", "round": 2, "rank": 0, "world_size": 1, "min_nodes": 1, "wait_seconds": 0});
    for (path, body) in [
        ("/api/v1/runs/train/announce", pod),
        (JOIN, one),
        (HEARTBEAT, beat),
        ("/api/v1/barriers/b/arrive", arrival),
        ("/api/v1/stores", json!({"run_id": "other"})),
        ("/api/v1/runs/train/close", json!({"node": "a"})),
        ("/api/v1/runs/train/leave", json!({"node": "a"})),
    ] {
        let answer = post(server.admin, path, &with(body, &newer));
        assert!((200..300).contains(&answer.status), "{path}: {answer:?}");
    }
    let slip = http(server.admin, "PUT /api/v1/runs/train/expect", JSON, r#"{"nodes": 2, "nmaes": ["a"]}"#);
    assert_problem(&slip, 422, "bad_request", "unknown field `nmaes`");
}

#[test]
fn the_next_round_gets_a_fresh_store_and_the_last_ones_workers_are_cut_off() {
    let server = server(&[]);
    let (first, _) = meet(&server, join("a"), &join("b"));
    let mut old = worker(store_of(&first));
    let again =
        |node, rank| with(join(node), &json!({"join_id": "2", "previous": {"round": 1, "rank": rank}}));
    let (second, _) = meet(&server, again("b", 1), &again("a", 0));
    assert_eq!(second["round"], 2);
    assert_ne!(second["store"], first["store"]);
    assert_eq!(old.read(&mut [0]).unwrap_or(0), 0, "the old store is closed by force");
    worker(store_of(&second));
    eventually("nobody listens where the old store was", || TcpStream::connect(store_of(&first)).is_err());
}

#[test]
fn a_rounds_store_stays_after_closing_until_its_last_client_has_left() {
    let server = server(&[]);
    let (a, _) = meet(&server, join("a"), &join("b"));
    let client = worker(store_of(&a));
    let closed = post(server.admin, "/api/v1/runs/train/close", &json!({"node": "a"}));
    assert_eq!(closed.json(), json!({"run_id": "train", "closed": true}));
    // The housekeeping has had its turn if it has closed another store.
    std::thread::sleep(Duration::from_millis(600));
    worker(store_of(&a));
    drop(client);
    eventually("the store is closed", || TcpStream::connect(store_of(&a)).is_err());
    assert_eq!(post(server.admin, "/api/v1/runs/train/close", &json!({"node": "a"})).json()["closed"], false);
    let late = post(server.admin, JOIN, &join("c"));
    assert_problem(&late, 410, "closed", "was closed by a");
}

#[test]
fn without_a_port_for_its_store_the_join_fails_with_that_reason() {
    let server = TestServer::with_store_ports(1, &[]);
    let one = json!({"node": "a", "min_nodes": 1});
    assert_eq!(post(server.admin, "/api/v1/runs/first/join", &one).status, 200);
    let none = post(server.admin, "/api/v1/runs/second/join", &one);
    assert_problem(&none, 503, "no_store", "--store-ports");
    let without = json!({"node": "a", "join_id": "2", "min_nodes": 1, "store": false});
    let third = post(server.admin, "/api/v1/runs/third/join", &without);
    assert_eq!((third.status, &third.json()["store"]), (200, &Value::Null));
}

#[test]
fn a_heartbeat_waits_and_hears_of_a_change_at_once() {
    let server = server(&[]);
    let (a, b) = meet(&server, join("a"), &join("b"));
    let short = with(heartbeat("a", 1, 0), &json!({"wait_seconds": 0}));
    let going_on = post(server.admin, HEARTBEAT, &short).json();
    assert_eq!((&going_on["action"], &going_on["num_nodes_waiting"]), (&json!("continue"), &json!(0)));
    assert_eq!(a["round"], 1);
    let waiting = posting(server.admin, HEARTBEAT, with(heartbeat("a", 1, 0), &json!({"wait_seconds": 60})));
    let left = post(server.admin, "/api/v1/runs/train/leave", &json!({"node": "b", "reason": "drained"}));
    assert_eq!(left.json(), json!({"left": true}));
    let told = waiting.join().expect("an answer").json();
    assert_eq!(told["action"], "rejoin");
    let rank = &b["group_rank"];
    assert_eq!(told["reason"], format!("b (127.0.0.1), rank {rank}: left (drained)"));
}

#[test]
fn a_node_whose_heartbeats_stop_is_lost_and_the_others_hear_of_it() {
    // One request must fit into three of these intervals.
    let server = server(&["--test-settings", "keep-alive=700ms"]);
    meet(&server, join("a"), &join("b"));
    // The request of b breaks off.
    let mut broken = TcpStream::connect(server.admin).expect("the admin port listens");
    let body = with(heartbeat("b", 1, 1), &json!({"wait_seconds": 60})).to_string();
    write!(
        broken,
        "POST {HEARTBEAT} HTTP/1.1\r\nHost: x\r\n{JSON}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("it reads");
    drop(broken);
    // The answer comes before the next sign of life is due.
    let beat = with(heartbeat("a", 1, 0), &json!({"wait_seconds": 60}));
    let mut told = Value::Null;
    eventually("a is told to join again", || {
        told = post(server.admin, HEARTBEAT, &beat).json();
        told["action"] == "rejoin"
    });
    // The request may break off before the server reads it.
    let is_it = |reason: &str| {
        reason.contains("b (127.0.0.1), rank")
            && (reason.contains("the connection closed") || reason.contains("not heard from"))
    };
    assert!(told["reason"].as_str().is_some_and(is_it), "{told}");
}

#[test]
fn a_restarted_server_takes_over_the_rounds_that_nodes_report() {
    let server = server(&[]);
    for (node, rank) in [("a", 0), ("b", 1)] {
        let beat = with(heartbeat(node, 5, rank), &json!({"wait_seconds": 0}));
        assert_eq!(post(server.admin, HEARTBEAT, &beat).json()["action"], "continue");
    }
    logged(&server, "round 5 of 2 nodes goes on after a restart");
    let again =
        |node, rank| with(join(node), &json!({"join_id": "2", "previous": {"round": 5, "rank": rank}}));
    let (b, a) = meet(&server, again("b", 1), &again("a", 0));
    assert_eq!((&a["round"], &a["group_rank"], &b["group_rank"]), (&json!(6), &json!(0), &json!(1)));
    let lie = with(heartbeat("c", u64::MAX, 0), &json!({}));
    assert_eq!(post(server.admin, HEARTBEAT, &lie).json()["action"], "rejoin", "nobody learns such a round");
    let none = with(heartbeat("c", 0, 0), &json!({}));
    assert_problem(&post(server.admin, HEARTBEAT, &none), 400, "bad_request", "round must be");
}

#[test]
fn who_may_close_and_extend() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("token");
    std::fs::write(&file, "s3cret\n").expect("a file");
    let server = server(&["--token-file", file.to_str().expect("utf-8")]);
    let wait = with(join("a"), &json!({"wait_seconds": 0}));
    assert_eq!(post(server.admin, JOIN, &wait).status, 202);
    let change = |what: &str, headers: &str, body: &Value| {
        http(
            server.admin,
            &format!("POST /api/v1/runs/train/{what}"),
            &format!("{JSON}{headers}"),
            &body.to_string(),
        )
    };
    let token = "Authorization: Bearer s3cret\r\n";
    let more = json!({"by_seconds": 600});
    assert_eq!(change("extend", "", &more).status, 401);
    let left = change("extend", token, &more).json()["deadline_seconds"].as_f64().expect("a number");
    assert!(left > 2300.0, "{left}");
    assert_problem(&change("close", "", &json!({})), 403, "not_a_member", "node of the run");
    assert_problem(&change("close", "", &json!({"node": "z"})), 403, "not_a_member", "z is not in run train");
    let parked = posting(server.admin, JOIN, join("a"));
    let closed = change("close", token, &json!({"reason": "enough"}));
    assert_eq!(closed.status, 200, "{closed:?}");
    assert_problem(&parked.join().expect("an answer"), 410, "closed", "closed by an operator: enough");
    assert_problem(&change("extend", token, &more), 409, "not_gathering", "train");
    let unknown = http(server.admin, "POST /api/v1/runs/none/close", &format!("{JSON}{token}"), "{}");
    assert_problem(&unknown, 404, "unknown_run", "no such run");
}

const BARRIER: &str = "/api/v1/barriers/epoch%2F1/arrive";

#[test]
fn a_barrier_releases_all_at_once_and_can_be_used_again() {
    let server = server(&[]);
    let arrive = |who: &str, id: &str| json!({"participant": who, "arrival_id": id, "world_size": 2});
    for generation in 1..=2 {
        let id = generation.to_string();
        let first = posting(server.admin, BARRIER, arrive("a", &id));
        let second = post(server.admin, BARRIER, &arrive("b", &id));
        let released =
            json!({"state": "released", "barrier": "epoch/1", "generation": generation, "world_size": 2});
        assert_eq!(first.join().expect("an answer").json(), released);
        assert_eq!(second.json(), released);
        assert_eq!(post(server.admin, BARRIER, &arrive("a", &id)).json(), released, "a retry arrives once");
    }
}

#[test]
fn a_barrier_that_is_not_reached_names_who_is_missing() {
    let server = server(&[]);
    let body = json!({"participant": "a", "members": ["a", "b", "c"], "timeout_seconds": 0.2});
    let late = post(server.admin, BARRIER, &body);
    assert_problem(&late, 408, "barrier_timeout", "1 of 3 arrived within 0.2 s; missing: b, c");
    assert_eq!((&late.json()["arrived"], &late.json()["missing"]), (&json!(1), &json!(["b", "c"])));
    let body = json!({"participant": "a", "world_size": 2, "wait_seconds": 0});
    assert_eq!(post(server.admin, BARRIER, &body).json()["arrived"], 1);
    let other = post(server.admin, BARRIER, &json!({"participant": "b", "world_size": 3}));
    assert_problem(&other, 409, "barrier_mismatch", "a arrived first and waits for 2, but b wants 3");
    let neither = post(server.admin, BARRIER, &json!({"participant": "b"}));
    assert_problem(&neither, 400, "bad_request", "world_size");
}

#[test]
fn garbage_huge_and_slow_bodies_harm_nobody() {
    let server = server(&[]);
    let garbage = http(server.admin, &format!("POST {JOIN}"), JSON, "\u{0}{[");
    assert_problem(&garbage, 400, "bad_request", "openapi.json");
    let huge = format!("{{\"node\": \"{}\"}}", "x".repeat(200_000));
    assert_eq!(http(server.admin, &format!("POST {JOIN}"), JSON, &huge).status, 413);
    let nested = "[".repeat(50_000);
    assert_eq!(http(server.admin, &format!("POST {JOIN}"), JSON, &nested).status, 422);
    let long = format!("POST /api/v1/runs/{}/join", "x".repeat(1000));
    assert_problem(&http(server.admin, &long, JSON, &join("a").to_string()), 400, "bad_request", "`run_id`");
    let mut slow = TcpStream::connect(server.admin).expect("the admin port listens");
    slow.set_read_timeout(Some(PATIENCE)).expect("a socket");
    write!(slow, "POST {JOIN} HTTP/1.1\r\nHost: x\r\n{JSON}Content-Length: 1000\r\n\r\n{{")
        .expect("it reads");
    meet(&server, join("a"), &join("b"));
    let mut text = String::new();
    // The server answers with a time-out, or closes the connection.
    let _ = slow.read_to_string(&mut text);
    assert!(text.is_empty() || text.contains(" 408 "), "{text}");
}

#[test]
fn many_parked_joins_are_answered_together() {
    const NODES: usize = 200;
    let server = server(&[]);
    let body = |n: usize| json!({"node": format!("n{n}"), "min_nodes": NODES, "wait_seconds": 60});
    let parked: Vec<_> = (1..NODES).map(|n| posting(server.admin, JOIN, body(n))).collect();
    let last = post(server.admin, JOIN, &with(body(0), &json!({"wait_seconds": 15})));
    let mut ranks: Vec<u64> = parked
        .into_iter()
        .map(|parked| parked.join().expect("an answer"))
        .chain([last])
        .map(|answer| answer.json()["group_rank"].as_u64().unwrap_or_else(|| panic!("{answer:?}")))
        .collect();
    ranks.sort_unstable();
    assert_eq!(ranks, (0..NODES as u64).collect::<Vec<_>>());
}

#[test]
fn an_arrival_whose_process_was_killed_leaves_nothing_behind() {
    let server = server(&["--test-settings", "keep-alive=50ms,keep-alive-misses=2"]);
    let body = r#"{"participant": "a", "world_size": 2, "wait_seconds": 60}"#;
    let mut killed = TcpStream::connect(server.admin).expect("the admin port listens");
    let head = format!(
        "POST /api/v1/barriers/b/arrive HTTP/1.1\r\nHost: test\r\n{JSON}Content-Length: {}\r\n\r\n",
        body.len()
    );
    killed.write_all(format!("{head}{body}").as_bytes()).expect("it reads");
    let arrived = || {
        http(server.admin, "GET /metrics", "", "")
            .body
            .contains("rallypoint_barrier_arrived{barrier=\"b\"} 1")
    };
    eventually("it has arrived", arrived);
    std::thread::sleep(Duration::from_millis(300));
    assert!(arrived(), "an arrival that waits stays");
    drop(killed);
    eventually("it is taken back without anybody's request", || !arrived());
}

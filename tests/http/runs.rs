//! The server's view of jobs: the routes that show runs, the rights to change them, live events, metrics,
//! log.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use crate::common::peer::Peer;
use crate::common::{HttpAnswer, PATIENCE, TestServer, eventually, http};
use rallypoint_protocol::{Dialect, KeyList, Payload, Request, encode_request};
use serde_json::{Value as Json, json};

const JSON: &str = "Content-Type: application/json\r\n";
const STATE: &str = "/torch.rendezvous.job";

fn get(server: &TestServer, path: &str) -> HttpAnswer {
    http(server.admin, &format!("GET {path}"), "", "")
}

fn put(server: &TestServer, path: &str, body: &Json) -> HttpAnswer {
    http(server.admin, &format!("PUT {path}"), JSON, &body.to_string())
}

/// A recorded rendezvous state of PyTorch 2.15.
fn state(stage: &str) -> String {
    let samples = include_str!("../data/samples/rdzv_states.json");
    let samples: Vec<Json> = serde_json::from_str(samples).expect("JSON");
    let sample = samples.iter().find(|sample| sample["torch"] == "2.15.0" && sample["stage"] == stage);
    sample.and_then(|sample| sample["value_base64"].as_str()).expect("a stage").to_owned()
}

/// A client that sends the requests of a real one.
struct Client(Peer);

impl Client {
    fn connect(server: &TestServer, pid: u32) -> Self {
        let mut client = Self(Peer::greet(server.store));
        client.say(&Request::Ping { nonce: pid });
        client
    }

    fn say(&mut self, request: &Request<'_>) {
        let mut wire = Vec::new();
        assert!(encode_request(request, Dialect::C, &mut wire));
        self.0.send(&wire);
    }

    fn set(&mut self, key: &str, value: &str) {
        self.say(&Request::Set { key: key.as_bytes(), value: Payload::borrowed(value.as_bytes()) });
    }

    fn wait(&mut self, key: &str) {
        let keys: KeyList = [key].into_iter().collect();
        self.say(&Request::Wait(keys.as_list()));
    }
}

fn run(server: &TestServer, run_id: &str) -> Option<Json> {
    let answer = get(server, &format!("/api/v1/runs/{run_id}"));
    (answer.status == 200).then(|| answer.json())
}

#[track_caller]
fn eventually_run(server: &TestServer, run_id: &str, what: &str, is_so: impl Fn(&Json) -> bool) -> Json {
    let mut last = Json::Null;
    eventually(what, || {
        let Some(run) = run(server, run_id) else { return false };
        last = run;
        is_so(&last)
    });
    last
}

#[test]
fn a_run_with_a_missing_node_is_shown_explained_and_counted() {
    let server = TestServer::start(&["--nodes", "4", "--explain-after", "1s"]);
    let mut agent = Client::connect(&server, 4711);
    agent.set(STATE, &state("three of four joined, still incomplete"));
    let run = eventually_run(&server, "job", "the explanation", |run| !run["explanation"].is_null());
    assert_eq!(run["kind"], "c10d");
    assert_eq!(run["state"], "joining");
    assert_eq!(run["nodes"]["joined"], 3);
    assert_eq!(run["nodes"]["missing"], 1);
    assert_eq!(run["nodes"]["expected"], json!({"min": 4, "max": 4, "source": "flag"}));
    assert_eq!(run["participants"].as_array().map(Vec::len), Some(3));
    let said = &run["explanations"][0];
    assert_eq!(said["code"], "nodes_missing");
    assert_eq!(said["facts"]["joined"], 3);
    assert!(said["text"].as_str().is_some_and(|text| text.starts_with("job round 0: ")), "{said}");
    assert!(
        run["timeline"].as_array().is_some_and(|moments| moments.iter().any(|m| m["code"] == "node_joined"))
    );
    let list = get(&server, "/api/v1/runs").json();
    assert_eq!(list["runs"][0]["run_id"], "job");
    let age = list["now"].as_f64().zip(list["knows_since"].as_f64()).map(|(now, since)| now - since);
    assert!(age.is_some_and(|age| (0.0..3600.0).contains(&age)), "since its start: {list}");
    assert_eq!(list["runs"][0]["explanation"]["code"], "nodes_missing");
    eventually("the log says it too", || {
        server.log().contains("job round 0: 3 of 4 nodes have joined, the first ")
    });
    let metrics = get(&server, "/metrics").body;
    for line in [
        "rallypoint_rendezvous_expected_nodes{run_id=\"job\"} 4",
        "rallypoint_rendezvous_joined_nodes{run_id=\"job\"} 3",
        "rallypoint_rendezvous_missing_nodes{run_id=\"job\"} 1",
        "rallypoint_rendezvous_waiting_nodes{run_id=\"job\"} 0",
        "rallypoint_rendezvous_round{run_id=\"job\"} 0",
        "rallypoint_rendezvous_complete{run_id=\"job\"} 0",
        "rallypoint_rendezvous_kind{kind=\"c10d\",run_id=\"job\"} 1",
        "rallypoint_rendezvous_rounds_total{outcome=\"complete\"} 0",
        "rallypoint_node_deaths_total 0",
        "rallypoint_rendezvous_join_duration_seconds_count 0",
    ] {
        assert!(metrics.lines().any(|other| other == line), "{line} is not in\n{metrics}");
    }

    agent.set(STATE, &state("round complete, ranks assigned"));
    let run = eventually_run(&server, "job", "completion", |run| run["state"] == "exchanging");
    assert_eq!(run["participants"][3]["rank"], 3);
    eventually("the log says who was last", || server.log().contains("job round 0 complete: 4 nodes in "));
    let metrics = get(&server, "/metrics").body;
    assert!(metrics.contains("rallypoint_rendezvous_complete{run_id=\"job\"} 1"), "{metrics}");
    assert!(metrics.contains("rallypoint_rendezvous_join_duration_seconds_count 1"), "{metrics}");
}

#[test]
fn an_operator_says_how_many_to_expect_and_forgets_a_run() {
    let server = TestServer::start(&["--explain-after", "1s"]);
    let mut agent = Client::connect(&server, 1);
    agent.set(STATE, &state("first node joined, below min_nodes"));
    eventually_run(&server, "job", "the run", |run| run["nodes"]["joined"] == 1);
    let path = "/api/v1/runs/job/expect";
    let answer = put(&server, path, &json!({"nodes": 2, "names": ["node0", "node7"]}));
    assert_eq!((answer.status, answer.json()["max"].as_u64()), (200, Some(2)));
    let run = eventually_run(&server, "job", "the name of the missing", |run| !run["missing"][0].is_null());
    assert_eq!(run["missing"][0]["name"], "node7");
    assert_eq!(run["nodes"]["expected"]["source"], "api");
    for wrong in [json!({}), json!({"nodes": 0}), json!({"min": 3, "max": 2}), json!({"nodes": 2, "min": 2})]
    {
        let answer = put(&server, path, &wrong);
        assert_eq!(answer.status, 400, "{wrong}: {answer:?}");
        assert!(answer.head.contains("application/problem+json"), "{answer:?}");
    }
    let answer = http(server.admin, "DELETE /api/v1/runs/job", "", "");
    assert_eq!((answer.status, answer.json()["dropped_keys"].as_u64()), (200, Some(1)));
    assert_eq!(get(&server, "/api/v1/runs/job").status, 404);
    assert_eq!(get(&server, "/api/v1/stores").json()["stores"][0]["keys"], 0);
    let metrics = get(&server, "/metrics").body;
    assert!(!metrics.contains("run_id=\"job\""), "the series are gone: {metrics}");
    assert_eq!(http(server.admin, "DELETE /api/v1/runs/job", "", "").status, 404);
}

#[test]
fn telling_needs_the_token_and_looking_does_not() {
    let token = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(token.path(), "secret\n").expect("a file");
    let server = TestServer::start(&["--token-file", token.path().to_str().expect("a path")]);
    let expect = "PUT /api/v1/runs/job/expect";
    let body = json!({"nodes": 2}).to_string();
    assert_eq!(http(server.admin, expect, JSON, &body).status, 401);
    assert_eq!(http(server.admin, "DELETE /api/v1/runs/job", "", "").status, 401);
    let bearer = format!("{JSON}Authorization: Bearer secret\r\n");
    assert_eq!(http(server.admin, expect, &bearer, &body).status, 200);
    assert_eq!(get(&server, "/api/v1/runs").status, 200);
}

#[test]
fn waits_name_their_writer_and_the_reason() {
    let server = TestServer::start(&["--explain-after", "1s"]);
    let mut workers: Vec<Client> = (1..3).map(|n| Client::connect(&server, 100 + n)).collect();
    for (worker, rank) in workers.iter_mut().zip(1..) {
        worker.say(&Request::Add { key: b"init/", delta: 1 });
        worker.set(&format!("/default_pg/0//cpu//0/{rank}"), "an address");
        worker.wait("/default_pg/0//cpu//0/0");
    }
    let run_id = format!("store:{}", server.store.port());
    let run = eventually_run(&server, &run_id, "why they wait", |run| !run["explanation"].is_null());
    assert_eq!(run["explanation"]["code"], "waiting");
    assert_eq!(run["ranks"]["joined"], 2);
    assert_eq!(run["rank_grid"]["states"], ".jj");
    let waits = get(&server, "/api/v1/waits").json();
    assert_eq!(waits["total"], 2);
    let wait = &waits["waits"][0];
    assert_eq!(wait["run_id"], run_id);
    assert_eq!(wait["writer"], "rank 0");
    assert_eq!(wait["missing"][0], "/default_pg/0//cpu//0/0");
    assert_eq!(wait["reason"], "the address must come from rank 0: never seen");
    assert_eq!(get(&server, "/metrics").body.lines().filter(|l| l.contains("ranks_joined")).count(), 3);
}

/// A subscriber of `/api/v1/events`.
struct Events(BufReader<TcpStream>);

impl Events {
    fn subscribe(server: &TestServer) -> Self {
        let mut stream = TcpStream::connect(server.admin).expect("the admin port listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream.write_all(b"GET /api/v1/events HTTP/1.1\r\nHost: test\r\n\r\n").expect("it reads");
        Self(BufReader::new(stream))
    }

    /// The next event: id, name, data.
    fn next(&mut self) -> Option<(u64, String, Json)> {
        let (mut id, mut name) = (None, None);
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).expect("an event comes in time") == 0 {
                return None;
            }
            if let Some(text) = line.strip_prefix("id: ") {
                id = text.trim().parse().ok();
            } else if let Some(text) = line.strip_prefix("event: ") {
                name = Some(text.trim().to_owned());
            } else if let Some(text) = line.strip_prefix("data: ") {
                let data = serde_json::from_str(text).expect("JSON");
                return Some((id.take()?, name.take()?, data));
            }
        }
    }
}

#[test]
fn events_are_a_snapshot_and_then_every_change() {
    let mut server = TestServer::start(&["--nodes", "4", "--explain-after", "1s", "--drain", "1s"]);
    let mut agent = Client::connect(&server, 1);
    agent.set(STATE, &state("first node joined, below min_nodes"));
    eventually_run(&server, "job", "the run", |run| run["nodes"]["joined"] == 1);
    let mut events = Events::subscribe(&server);
    let (first_id, name, data) = events.next().expect("a snapshot");
    assert_eq!((name.as_str(), &data["runs"][0]["run_id"]), ("snapshot", &json!("job")));
    agent.set(STATE, &state("round complete, ranks assigned"));
    let (mut last_id, mut seen) = (first_id, Vec::new());
    while !["moment", "run", "explanation"].iter().all(|name| seen.iter().any(|other| other == name)) {
        let (id, name, data) = events.next().expect("an event");
        assert!(id > last_id, "{id} after {last_id}");
        last_id = id;
        assert!(data["run_id"] == "job", "{data}");
        seen.push(name);
    }
    // A subscriber does not delay the end of the server.
    drop(agent);
    server.terminate();
    assert_eq!(server.exit_code(), Some(0));
    while events.next().is_some() {}
}

#[test]
fn a_foreign_client_is_told_once_with_its_protocol() {
    let server = TestServer::start(&[]);
    for _ in 0..3 {
        let mut stream = TcpStream::connect(server.store).expect("the store listens");
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("it reads");
    }
    eventually("the API names it", || {
        let text = &get(&server, "/api/v1/runs").json()["explanations"][0]["text"];
        text.as_str().is_some_and(|text| text.starts_with("an HTTP client"))
    });
    eventually("the log names it", || server.log().contains("HTTP client"));
    assert_eq!(server.log().matches("HTTP client").count(), 1, "{}", server.log());
}

#[test]
fn a_tcpstore_client_on_the_admin_port_is_told_where_the_store_is() {
    let server = TestServer::start(&[]);
    for _ in 0..3 {
        let mut stream = TcpStream::connect(server.admin).expect("the admin port listens");
        stream.write_all(&[0, 0xce, 0xf7, 0x85, 0x3c]).expect("it reads");
    }
    eventually("the API names it", || {
        let told = get(&server, "/api/v1/runs").json();
        told["explanations"][0]["facts"]["code"] == "wrong_port"
    });
    let store = format!("stores have ports: {}", server.store.port());
    eventually("the log names it", || server.log().contains(&store));
    assert_eq!(server.log().matches("TCPStore client").count(), 1, "{}", server.log());
}

#[test]
fn a_key_that_is_there_and_polled_is_not_missing() {
    let server = TestServer::start(&[]);
    let mut client = Client::connect(&server, 1);
    client.say(&Request::Add { key: b"/bar/init", delta: 3 });
    eventually("the poll is shown", || {
        client.say(&Request::Get { key: b"/bar/init" });
        let waits = get(&server, "/api/v1/waits").json();
        let wait = &waits["waits"][0];
        let shown = [&wait["op"], &wait["polled"], &wait["missing"]];
        wait.is_object() && {
            assert_eq!(shown, [&json!("poll"), &json!("/bar/init"), &json!([])]);
            true
        }
    });
}

#[test]
fn without_insight_nothing_is_looked_at() {
    let server = TestServer::start(&["--insight", "off"]);
    let mut agent = Client::connect(&server, 1);
    agent.set(STATE, &state("first node joined, below min_nodes"));
    let mut stream = TcpStream::connect(server.store).expect("the store listens");
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("it reads");
    eventually("foreign clients are in the log all the same", || server.log().contains("HTTP client"));
    assert_eq!(get(&server, "/api/v1/runs").json()["runs"], json!([]));
    assert_eq!(get(&server, "/api/v1/stores").json()["stores"][0]["keys"], 1);
}

#[test]
fn the_run_of_a_store_of_its_own_has_its_name() {
    let free =
        std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("a port").port();
    let ports = format!("{free}-{}", free.saturating_add(20));
    let server = TestServer::start(&["--store-ports", &ports]);
    let opened =
        http(server.admin, "POST /api/v1/stores", JSON, &json!({"run_id": "mine"}).to_string()).json();
    let port = opened["port"].as_u64().expect("a port") as u16;
    let store = std::net::SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, port));
    let mut worker = Client(Peer::greet(store));
    worker.set("/default_pg/0//cpu//0/0", "an address");
    let run = eventually_run(&server, "mine", "the run by its name", |run| run["kind"] == "env");
    assert_eq!(run["store"], port);
}

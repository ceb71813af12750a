//! The admin port: routes, errors, rights, stores of runs, and the text of the metrics.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::common::{HttpAnswer, PATIENCE, TestServer, http};

const JSON: &str = "Content-Type: application/json\r\n";

fn get(server: &TestServer, path: &str) -> HttpAnswer {
    http(server.admin, &format!("GET {path}"), "", "")
}

fn open_store(server: &TestServer, run_id: &str) -> HttpAnswer {
    let body = serde_json::json!({ "run_id": run_id }).to_string();
    http(server.admin, "POST /api/v1/stores", JSON, &body)
}

/// Sends what a client of PyTorch 2.2 or later sends. Returns the reply of `len` bytes.
fn ask(store: SocketAddr, hex: &str, len: usize) -> Vec<u8> {
    let mut stream = TcpStream::connect(store).expect("the store listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream.write_all(&crate::common::peer::unhex(&format!("00cef7853c{hex}"))).expect("it reads");
    let mut reply = vec![0; len];
    stream.read_exact(&mut reply).expect("it answers");
    reply
}

/// ADD of 1 to `/a`.
const ADD: &str = "0402000000000000002f610100000000000000";
const NUM_KEYS: &str = "07";

fn assert_problem(answer: &HttpAnswer, status: u16, hint: &str) {
    assert_eq!(answer.status, status, "{answer:?}");
    assert!(answer.head.contains("content-type: application/problem+json"), "{answer:?}");
    let problem = answer.json();
    assert_eq!(problem["status"], status);
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains(hint)), "{problem}");
}

#[test]
fn a_healthy_server_lives_and_is_ready() {
    let server = TestServer::start(&[]);
    assert_eq!((get(&server, "/livez").status, get(&server, "/readyz").status), (200, 200));
}

#[test]
fn the_page_may_run_nothing_but_itself() {
    let server = TestServer::start(&[]);
    let page = get(&server, "/");
    assert_eq!(page.status, 200);
    assert!(page.head.contains("content-type: text/html; charset=utf-8"), "{}", page.head);
    let policy = page.head.lines().find_map(|line| line.strip_prefix("content-security-policy: "));
    let policy = policy.expect("a policy");
    assert!(policy.starts_with("default-src 'none'; ") && !policy.contains("unsafe"), "{policy}");
    assert!(policy.contains("frame-ancestors 'none'") && policy.contains("trusted-types 'none'"), "{policy}");
    assert!(page.body.starts_with("<!doctype html>"));
}

#[test]
fn the_stores_are_listed_with_their_sizes() {
    let server = TestServer::start(&[]);
    ask(server.store, ADD, 8);
    let stores = get(&server, "/api/v1/stores").json();
    assert_eq!(stores["stores"][0]["port"], server.store.port());
    assert_eq!(stores["stores"][0]["keys"], 1);
    assert!(stores["stores"][0]["bytes"].as_u64().is_some_and(|bytes| bytes > 3), "{stores}");
}

#[test]
fn waits_are_shown_with_who_waits_for_what() {
    let server = TestServer::start(&[]);
    let mut stream = TcpStream::connect(server.store).expect("the store listens");
    // The PING with process id 77 has an answer. Then comes a WAIT for `/k`, and then a CHECK of no keys,
    // whose answer shows that the WAIT was taken.
    let bytes = "00cef7853c0d4d000000\
                 06010000000000000002000000000000002f6b\
                 050000000000000000";
    stream.write_all(&crate::common::peer::unhex(bytes)).expect("it reads");
    stream.read_exact(&mut [0; 5]).expect("it answers");
    let waits = get(&server, "/api/v1/waits?limit=5").json();
    assert_eq!(waits["total"], 1);
    let wait = &waits["waits"][0];
    assert_eq!(wait["store"], server.store.port());
    assert_eq!(wait["pid"], 77);
    assert_eq!(wait["op"], "wait");
    assert_eq!(wait["missing"], serde_json::json!(["/k"]));
    let own = stream.local_addr().expect("a socket").to_string();
    assert_eq!(wait["peer"], own.as_str());
}

#[test]
fn errors_are_problems_that_say_what_to_do() {
    let server = TestServer::start(&[]);
    assert_problem(&get(&server, "/nope"), 404, "no such route");
    assert_problem(&http(server.admin, "POST /livez", "", ""), 405, "method");
    assert_problem(&get(&server, "/api/v1/waits?limit=many"), 400, "limit");
    assert_problem(&http(server.admin, "POST /api/v1/stores", JSON, "{"), 400, "openapi.json");
    assert_problem(&http(server.admin, "POST /api/v1/stores", "", "{}"), 415, "application/json");
    assert_problem(&http(server.admin, "POST /api/v1/stores", JSON, r#"{"run":"x"}"#), 422, "run_id");
    let huge = format!("{{\"run_id\": \"{}\"}}", "x".repeat(100_000));
    assert_problem(&http(server.admin, "POST /api/v1/stores", JSON, &huge), 413, "");
    assert_problem(&http(server.admin, "DELETE /api/v1/stores/what", "", ""), 400, "");
    assert_problem(
        &http(server.admin, "DELETE /api/v1/stores/1", "", ""),
        404,
        &server.store.port().to_string(),
    );
    assert_problem(&open_store(&server, ""), 400, "`run_id`");
}

#[test]
fn a_run_gets_a_store_of_its_own_and_keeps_it() {
    let server = TestServer::with_store_ports(20, &["--advertise-host", "rally.example"]);
    let first = open_store(&server, "a");
    assert_eq!(first.status, 201, "{first:?}");
    let address = first.json();
    assert_eq!((&address["run_id"], &address["host"]), (&"a".into(), &"rally.example".into()));
    let again = open_store(&server, "a");
    assert_eq!((again.status, again.json()), (200, address.clone()));
    let other = open_store(&server, "b").json();
    assert_ne!(other["port"], address["port"]);

    let store = |json: &serde_json::Value| {
        SocketAddr::from(([127, 0, 0, 1], json["port"].as_u64().expect("a port") as u16))
    };
    ask(store(&address), ADD, 8);
    assert_eq!(ask(store(&address), NUM_KEYS, 8)[0], 1);
    assert_eq!(ask(store(&other), NUM_KEYS, 8)[0], 0, "stores share nothing");
}

#[test]
fn a_store_is_announced_with_the_address_that_the_request_came_in_on() {
    let server = TestServer::with_store_ports(20, &[]);
    assert_eq!(open_store(&server, "a").json()["host"], "127.0.0.1");
}

#[test]
fn resetting_a_runs_store_closes_it_and_its_port_rests() {
    let server = TestServer::with_store_ports(20, &[]);
    let port = open_store(&server, "a").json()["port"].as_u64().expect("a port") as u16;
    let store = SocketAddr::from(([127, 0, 0, 1], port));
    let mut client = TcpStream::connect(store).expect("the store listens");
    client.set_read_timeout(Some(PATIENCE)).expect("a socket");
    client.write_all(&crate::common::peer::unhex("00cef7853c0d4d000000")).expect("it reads");
    client.read_exact(&mut [0; 4]).expect("it answers");
    assert_eq!(http(server.admin, &format!("DELETE /api/v1/stores/{port}"), "", "").status, 200);
    assert_eq!(client.read(&mut [0]).unwrap_or(0), 0, "its clients are closed");
    assert_ne!(open_store(&server, "a").json()["port"], port, "late clients must not meet the new store");
}

#[test]
fn resetting_a_listeners_store_empties_it_and_keeps_its_clients() {
    let server = TestServer::start(&[]);
    ask(server.store, ADD, 8);
    let answer = http(server.admin, &format!("DELETE /api/v1/stores/{}", server.store.port()), "", "");
    assert_eq!(
        answer.json(),
        serde_json::json!({ "port": server.store.port(), "reset": true, "closed": false })
    );
    assert_eq!(ask(server.store, NUM_KEYS, 8)[0], 0);
}

#[test]
fn with_a_token_file_operators_must_send_the_token() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("token");
    std::fs::write(&file, "s3cret\n").expect("a file");
    let server = TestServer::start(&["--token-file", file.to_str().expect("utf-8")]);
    let reset = |headers: &str| {
        http(server.admin, &format!("DELETE /api/v1/stores/{}", server.store.port()), headers, "")
    };
    assert_problem(&reset(""), 401, "--token-file");
    assert_problem(&reset("Authorization: Bearer s3cre\r\n"), 401, "--token-file");
    assert_eq!(reset("Authorization: Bearer s3cret\r\n").status, 200);
    assert!(!server.log().contains("s3cret"));
}

#[test]
fn a_slow_or_broken_request_harms_nobody() {
    let server = TestServer::start(&[]);
    let mut slow = TcpStream::connect(server.admin).expect("the admin port listens");
    slow.write_all(b"GET /livez HTT").expect("it reads");
    let mut garbage = TcpStream::connect(server.admin).expect("the admin port listens");
    garbage.write_all(&[0xff; 5000]).expect("it reads");
    assert_eq!(get(&server, "/livez").status, 200);
}

#[test]
fn the_metrics_have_their_names_types_and_help() {
    let server = TestServer::start(&[]);
    ask(server.store, ADD, 8);
    let port = server.store.port();
    let text = get(&server, "/metrics").body;
    for (name, kind) in [
        ("build_info", "gauge"),
        ("connections", "gauge"),
        ("connections_total", "counter"),
        ("requests_total", "counter"),
        ("request_duration_seconds", "histogram"),
        ("wait_duration_seconds", "histogram"),
        ("waiters", "gauge"),
        ("oldest_wait_seconds", "gauge"),
        ("keys", "gauge"),
        ("store_bytes", "gauge"),
        ("store_resets_total", "counter"),
        ("keys_dropped_total", "counter"),
        ("runs_restarted_total", "counter"),
        ("received_bytes_total", "counter"),
        ("sent_bytes_total", "counter"),
    ] {
        assert!(text.contains(&format!("# TYPE rallypoint_{name} {kind}\n")), "{name} is no {kind}");
        assert!(text.contains(&format!("# HELP rallypoint_{name} ")), "{name} has no help");
    }
    for line in [
        format!("rallypoint_keys{{store=\"{port}\"}} 1"),
        format!("rallypoint_connections_total{{listener=\"{port}\",outcome=\"ok\"}} 1"),
        "rallypoint_requests_total{op=\"add\"} 1".to_owned(),
        "rallypoint_request_duration_seconds_count{op=\"add\"} 1".to_owned(),
        "rallypoint_request_duration_seconds_bucket{op=\"add\",le=\"+Inf\"} 1".to_owned(),
        "rallypoint_received_bytes_total 19".to_owned(),
        "rallypoint_sent_bytes_total 8".to_owned(),
    ] {
        assert!(text.contains(&format!("{line}\n")), "no line {line} in\n{text}");
    }
    assert!(text.contains("\nprocess_resident_memory_bytes "));
}

/// The head and the body of `/metrics` for a scrape with these headers. The body may contain chunk headers.
fn scrape(server: &TestServer, headers: &str) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(server.admin).expect("the admin port listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let request = format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("it answers");
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    let body = answer.split_off(end + 4);
    (String::from_utf8(answer).expect("text").to_ascii_lowercase(), body)
}

#[test]
fn a_scrape_gets_the_format_that_it_asks_for() {
    let server = TestServer::start(&[]);
    ask(server.store, ADD, 8);
    let (head, body) = scrape(&server, "");
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    assert!(!head.contains("content-encoding") && head.contains("vary: accept, accept-encoding"), "{head}");
    assert!(!String::from_utf8(body).expect("text").contains("# EOF"));

    let wanted = "Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5\r\n";
    let (head, plain) = scrape(&server, wanted);
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{head}");
    let (head, packed) = scrape(&server, &format!("{wanted}Accept-Encoding: gzip\r\n"));
    assert!(head.contains("content-encoding: gzip"), "{head}");
    assert!(packed.len() * 3 < plain.len(), "{} bytes packed, {} plain", packed.len(), plain.len());
    let mut unpacked = String::new();
    flate2::read::GzDecoder::new(packed.as_slice()).read_to_string(&mut unpacked).expect("gzip");
    for text in [unpacked, String::from_utf8(plain).expect("text")] {
        assert!(text.contains("# TYPE rallypoint_requests counter\n"), "{text}");
        assert!(text.contains("\nrallypoint_requests_total{op=\"add\"} 1\n"), "{text}");
        assert!(text.ends_with("\n# EOF\n"), "{text}");
    }
}

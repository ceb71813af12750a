//! Starting, draining and stopping a server, as in a pod's life.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use crate::common::{PATIENCE, TestServer, eventually, http, terminate, wait_for_end};

/// A client of PyTorch 2.2 or later that waits for a key: hello and WAIT of `/k`.
fn parked(store: SocketAddr) -> TcpStream {
    use std::io::Write;
    let mut stream = TcpStream::connect(store).expect("the store listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream
        .write_all(&crate::common::peer::unhex("00cef7853c0601000000000000000200000000000000"))
        .expect("it reads");
    stream.write_all(b"/k").expect("it reads");
    stream
}

fn waiters(server: &TestServer) -> u64 {
    http(server.admin, "GET /api/v1/waits", "", "").json()["total"].as_u64().expect("a number")
}

/// `rallypoint serve` with its own environment. Its stderr is kept.
fn serve(args: &[&str], env: &[(&str, &str)]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_rallypoint"))
        .arg("serve")
        .args(args)
        .env_clear()
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts")
}

fn stderr(mut process: Child) -> String {
    let mut text = String::new();
    process.stderr.take().expect("piped").read_to_string(&mut text).expect("text");
    text
}

#[test]
fn a_server_without_clients_stops_at_once() {
    let mut server = TestServer::start(&["--drain", "1h"]);
    server.terminate();
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn a_stopping_server_is_not_ready_refuses_newcomers_and_ends_with_its_last_client() {
    let mut server = TestServer::start(&["--drain", "1h"]);
    let waiting = parked(server.store);
    eventually("the client is parked", || waiters(&server) == 1);
    assert_eq!(http(server.admin, "GET /readyz", "", "").status, 200);
    server.terminate();
    eventually("it is not ready", || http(server.admin, "GET /readyz", "", "").status == 503);
    assert_eq!(http(server.admin, "GET /livez", "", "").status, 200, "it still lives");
    eventually("newcomers are refused", || TcpStream::connect(server.store).is_err());
    assert_eq!(waiters(&server), 1, "who is in stays in");
    assert!(!server.has_ended());
    drop(waiting);
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn a_stopping_server_waits_no_longer_than_it_was_told() {
    let mut server = TestServer::start(&["--drain", "200ms"]);
    let mut waiting = parked(server.store);
    eventually("the client is parked", || waiters(&server) == 1);
    server.terminate();
    assert_eq!(server.exit_code(), Some(0));
    assert!(server.log().contains("--drain"), "{}", server.log());
    assert_eq!(waiting.read(&mut [0]).unwrap_or(0), 0, "the wait ends with the connection, not with a byte");
}

#[test]
fn a_stopping_server_opens_no_store_and_lets_nobody_go() {
    const JSON: &str = "Content-Type: application/json\r\n";
    let mut server = TestServer::with_store_ports(4, &["--drain", "1h"]);
    let waiting = parked(server.store);
    let post = {
        let admin = server.admin;
        move |path: &str, body: &str| http(admin, &format!("POST {path}"), JSON, body)
    };
    let is_stopping = |answer: &crate::common::HttpAnswer| {
        let code = answer.json()["code"] == "stopping";
        answer.status == 503 && code && answer.head.contains("retry-after: 1")
    };
    let announce =
        |pod: &str| format!(r#"{{"pod": "{pod}", "uid": "{pod}", "nodes": "2", "wait_seconds": 8}}"#);
    let join =
        |node: &str| format!(r#"{{"node": "{node}", "join_id": "1", "min_nodes": 2, "wait_seconds": 60}}"#);
    let gates = "/api/v1/runs/pods/announce";
    let rounds = "/api/v1/runs/nodes/join";
    let (pod, node) = (announce("a"), join("a"));
    let pod = std::thread::spawn(move || post(gates, &pod));
    let node = std::thread::spawn(move || post(rounds, &node));
    eventually("both wait", || {
        let runs = http(server.admin, "GET /api/v1/runs", "", "").body;
        runs.contains("\"pods\"") && runs.contains("\"nodes\"")
    });
    server.terminate();
    // The waiting requests are answered at once, and a request that would complete them comes too late.
    let (pod, node) = (pod.join().expect("an answer"), node.join().expect("an answer"));
    assert!(is_stopping(&pod) && is_stopping(&node), "{pod:?} {node:?}");
    for (path, body) in
        [(gates, announce("b")), (rounds, join("b")), ("/api/v1/stores", r#"{"run_id": "late"}"#.to_owned())]
    {
        let answer = post(path, &body);
        assert!(is_stopping(&answer), "{path}: {answer:?}");
    }
    let stores = http(server.admin, "GET /api/v1/stores", "", "").json();
    assert_eq!(stores["stores"].as_array().map(Vec::len), Some(1), "{stores}");
    drop(waiting);
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn a_lost_terminal_stops_a_server_as_sigterm_does() {
    let mut server = TestServer::start(&["--drain", "1h"]);
    let waiting = parked(server.store);
    eventually("the client is parked", || waiters(&server) == 1);
    server.hang_up();
    eventually("it is not ready", || http(server.admin, "GET /readyz", "", "").status == 503);
    assert!(!server.has_ended(), "its client is still there");
    drop(waiting);
    assert_eq!(server.exit_code(), Some(0));
    assert!(server.log().contains("SIGHUP"), "{}", server.log());
}

#[test]
fn a_server_that_was_started_to_outlive_its_terminal_does() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let ports_file = dir.path().join("ports.json");
    let mut process = Command::new("sh")
        .args(["-c", "trap '' HUP; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_rallypoint"), "serve"])
        .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--ports-file"])
        .arg(&ports_file)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a shell");
    eventually("its ports are bound", || ports_file.exists());
    crate::common::signal(&process, rustix::process::Signal::HUP);
    terminate(&process);
    assert_eq!(wait_for_end(&mut process), Some(0));
    let said = stderr(process);
    assert!(said.contains("SIGTERM") && !said.contains("SIGHUP"), "{said}");
}

#[test]
fn a_second_signal_stops_at_once() {
    let mut server = TestServer::start(&["--drain", "1h"]);
    let _waiting = parked(server.store);
    eventually("the client is parked", || waiters(&server) == 1);
    server.terminate();
    eventually("it has heard", || server.log().contains("stopping"));
    server.terminate();
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn a_new_server_takes_the_port_of_the_last_one_though_old_connections_linger() {
    let mut first = TestServer::start(&["--drain", "0s"]);
    let address = first.store.to_string();
    let _waiting = parked(first.store);
    eventually("the client is parked", || waiters(&first) == 1);
    first.terminate();
    assert_eq!(first.exit_code(), Some(0));
    let second = TestServer::start(&["--listen", &address]);
    assert_eq!(second.stores[1].to_string(), address);
}

#[test]
fn a_port_in_use_is_a_configuration_error_that_says_so() {
    let server = TestServer::start(&[]);
    let mut process = serve(&["--listen", &server.store.to_string(), "--admin", "127.0.0.1:0"], &[]);
    assert_eq!(wait_for_end(&mut process), Some(2));
    let said = stderr(process);
    let held = format!("(pid {}) listens on {}", server.pid(), server.store);
    assert!(said.contains("--listen") && said.contains(&held), "{said}");
}

#[test]
fn a_port_that_a_connection_has_is_told_from_one_that_is_listened_on() {
    let server = TestServer::start(&[]);
    let client = std::net::TcpStream::connect(server.store).expect("connected");
    let own = client.local_addr().expect("an address").to_string();
    let mut process = serve(&["--listen", &own, "--admin", "127.0.0.1:0"], &[]);
    assert_eq!(wait_for_end(&mut process), Some(2));
    let said = stderr(process);
    let held = format!("(pid {}) has it for a connection to {}", std::process::id(), server.store);
    assert!(said.contains(&held) && said.contains("ip_local_reserved_ports"), "{said}");
}

#[test]
fn a_file_of_tokens_that_says_nothing_clear_is_a_configuration_error() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("token");
    for bad in ["", " \n", "two words", "schlüssel"] {
        std::fs::write(&file, bad).expect("a file");
        let file = file.to_str().expect("utf-8");
        let mut process =
            serve(&["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--token-file", file], &[]);
        assert_eq!(wait_for_end(&mut process), Some(2), "{bad:?}");
        let said = stderr(process);
        assert!(said.contains("--token-file") && said.contains("write TOKEN ROLE [RUN-PATTERN]"), "{said}");
    }
}

#[test]
fn every_pod_but_the_chosen_one_stays_idle_and_healthy() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let ports_file = dir.path().join("ports.json");
    let ports_flag = ports_file.to_str().expect("utf-8");
    let args = [
        "--only-on-index",
        "0",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--ports-file",
        ports_flag,
    ];
    let mut idle = serve(&args, &[("JOB_COMPLETION_INDEX", "3")]);
    eventually("its admin port is bound", || ports_file.exists());
    let ports: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&ports_file).expect("a file")).expect("json");
    assert_eq!(ports["stores"], serde_json::json!([]));
    let admin = SocketAddr::from(([127, 0, 0, 1], ports["admin"].as_u64().expect("a port") as u16));
    assert_eq!(http(admin, "GET /readyz", "", "").status, 200);
    // Behind a name of all pods, a pod may reach this one, where nobody gathers.
    let json = "Content-Type: application/json\r\n";
    let answer = http(admin, "POST /api/v1/runs/r/announce", json, r#"{"pod": "p", "nodes": "1"}"#);
    assert!(answer.status == 503 && answer.body.contains("--only-on-index"), "{}", answer.body);
    assert_eq!(http(admin, "GET /livez", "", "").status, 200);
    terminate(&idle);
    assert_eq!(wait_for_end(&mut idle), Some(0));
}

#[test]
fn a_pod_that_does_not_know_its_index_refuses_to_idle() {
    for env in [&[][..], &[("JOB_COMPLETION_INDEX", "")], &[("JOB_COMPLETION_INDEX", "two")]] {
        let mut process = serve(&["--only-on-index", "0"], env);
        assert_eq!(wait_for_end(&mut process), Some(2), "{env:?}");
        assert!(stderr(process).contains("JOB_COMPLETION_INDEX"), "{env:?}");
    }
}

#[test]
fn peers_outside_the_allowed_networks_are_turned_away() {
    let server = TestServer::start(&["--allow", "127.0.0.1", "--allow", "10.0.0.0/8"]);
    let _welcome = parked(server.store);
    eventually("the client is parked", || waiters(&server) == 1);

    let closed = TestServer::start(&["--allow", "10.0.0.0/8"]);
    // It sends nothing: the server may close the connection before that.
    let mut stranger = TcpStream::connect(closed.store).expect("the store listens");
    stranger.set_read_timeout(Some(PATIENCE)).expect("a socket");
    assert_eq!(stranger.read(&mut [0]).unwrap_or(0), 0);
    eventually("the log says why", || closed.log().contains("--allow"));
    assert_eq!(http(closed.admin, "GET /metrics", "", "").status, 403);
}

#[test]
fn two_listeners_are_two_stores() {
    let server = TestServer::start(&["--listen", "127.0.0.1:0"]);
    let _waiting = parked(server.stores[1]);
    eventually("the client is parked", || waiters(&server) == 1);
    let stores = http(server.admin, "GET /api/v1/stores", "", "").json();
    let waiters_of = |port: u16| {
        let all = stores["stores"].as_array().expect("a list");
        all.iter().find(|store| store["port"] == port).expect("the store")["waiters"].as_u64()
    };
    assert_eq!(waiters_of(server.stores[0].port()), Some(0));
    assert_eq!(waiters_of(server.stores[1].port()), Some(1));
}

#[test]
fn json_log_lines_are_json() {
    let server = TestServer::start(&["--log-format", "json"]);
    eventually("it has logged", || server.log().lines().count() > 0);
    for line in server.log().lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        assert!(line["level"].is_string() && line["message"].is_string(), "{line}");
    }
}

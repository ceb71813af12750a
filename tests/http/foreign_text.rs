//! Text from others forges no log line and controls no terminal, wherever it comes from: a job's keys and
//! values, or the answers of a foreign server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rallypoint_protocol::Op;
use serde_json::{Value, json};

use crate::common::peer::{Peer, wire};
use crate::common::{TestServer, assert_log_is_sound, eventually, http, is_harmless};

/// Ends a log line, forges another one, controls a terminal, and changes and hides text.
const EVIL: &str = "a\n2026-01-01T00:00:00.000000Z  INFO forged: all is well \u{1b}[2J\u{9b}\u{202e}\u{200b}";

fn request(op: Op, parts: &[&[u8]]) -> Vec<u8> {
    [&[op as u8][..], &parts.concat()].concat()
}

fn set(key: &str, value: &[u8]) -> Vec<u8> {
    request(Op::Set, &[&wire(key.as_bytes()), &wire(value)])
}

/// The state of a job's rendezvous, as PyTorch writes it, with the name of its node changed from `node0`.
fn state(name: [u8; 5]) -> Vec<u8> {
    let text = include_str!("../data/samples/rdzv_states.json");
    let states: Value = serde_json::from_str(text).expect("JSON");
    let mut pickle = STANDARD.decode(states[1]["value_base64"].as_str().expect("a state")).expect("base64");
    let at = pickle.windows(5).position(|window| window == b"node0").expect("its node");
    pickle[at..at + 5].copy_from_slice(&name);
    STANDARD.encode(pickle).into_bytes()
}

/// Every text in a document.
fn texts(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(items) => items.iter().flat_map(texts).collect(),
        Value::Object(fields) => {
            fields.iter().flat_map(|(name, value)| [vec![name.as_str()], texts(value)].concat()).collect()
        }
        _ => Vec::new(),
    }
}

#[test]
fn what_a_job_writes_is_escaped_in_the_log_and_in_every_document() {
    let server =
        TestServer::start(&["--explain-after", "100ms", "--forget-run-after", "300ms", "--log", "debug"]);
    let number = |number: usize| (number as u64).to_le_bytes();
    let mut job = Peer::greet(server.store);
    for run in [EVIL, "odd"] {
        let base = format!("/torch.rendezvous.{run}");
        job.send(&set(&base, &state(if run == EVIL { *b"node0" } else { *b"\n\x1b[2J" })));
        job.send(&set(&format!("{base}.0/MASTER_ADDR"), EVIL.as_bytes()));
        job.send(&set(&format!("{base}.0/MASTER_PORT"), EVIL.as_bytes()));
        job.send(&set(&format!("{base}.0/torchelastic/role_info/0"), EVIL.as_bytes()));
        job.send(&set(&format!("{base}.0/torchelastic/assigned_ranks/0"), EVIL.as_bytes()));
    }
    let gloo = [&number(EVIL.len())[..], EVIL.as_bytes(), &number(4), b"addr", &[0; 16]].concat();
    job.send(&set("/default_pg/0//cpu//0/0", &gloo));
    job.send(&set(&format!("/default_pg/{EVIL}//cpu//0/1"), &gloo));
    job.send(&set(&format!("/{EVIL}"), b"x"));
    // One client waits for a key of each kind. Another one adds to a value that is no number, so its
    // connection is closed.
    let waited = [format!("/missing{EVIL}"), format!("/torch.rendezvous.{EVIL}.0/torchelastic/role_info/1")];
    let keys: Vec<u8> = waited.iter().flat_map(|key| wire(key.as_bytes())).collect();
    let mut waiter = Peer::greet(server.store);
    waiter.send(&request(Op::Wait, &[&number(2), &keys]));
    let mut adder = Peer::greet(server.store);
    adder.send(&request(Op::Add, &[&wire(format!("/{EVIL}").as_bytes()), &number(1)]));

    let get = |path: &str| http(server.admin, &format!("GET {path}"), "", "");
    let escaped = "\\n2026-01-01T00:00:00.000000Z  INFO forged";
    eventually("the log tells of it", || server.log().contains(escaped));
    eventually("the waits are shown", || get("/api/v1/waits").json()["total"] == 1);
    eventually("the run is shown", || get("/api/v1/runs").body.contains("forged"));
    let mut documents = vec![get("/api/v1/waits").json(), get("/api/v1/runs").json()];
    let names: Vec<String> = documents[1]["runs"]
        .as_array()
        .expect("runs")
        .iter()
        .map(|run| run["run_id"].as_str().expect("a name").to_owned())
        .collect();
    for name in &names {
        let path: String = name.bytes().map(|byte| format!("%{byte:02X}")).collect::<Vec<_>>().concat();
        documents.push(get(&format!("/api/v1/runs/{path}")).json());
    }
    drop((job, waiter, adder));
    eventually("the keys are dropped", || server.log().contains("dropped"));
    documents.push(get("/api/v1/runs").json());
    for document in &documents {
        for text in texts(document) {
            assert!(text.chars().all(is_harmless), "{text:?}");
        }
    }
    let metrics = get("/metrics").body;
    assert!(metrics.lines().all(|line| line.chars().all(is_harmless)), "{metrics:?}");
    assert_log_is_sound(&server.log());
}

// ----- commands -----

/// A server that gives every connection one answer.
fn answering(answer: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(&answer);
        }
    });
    addr
}

fn http_answer(status: u16, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
    command.args(args).env_clear().env("POD_NAME", "p-0").stdin(Stdio::null());
    command
}

fn assert_harmless(ran: &Output, what: &str) {
    for text in [&ran.stdout, &ran.stderr] {
        let text = String::from_utf8_lossy(text);
        assert!(text.lines().all(|line| line.chars().all(is_harmless)), "{what}: {text:?}");
        assert!(!text.lines().any(|line| line.starts_with("2026-01-01")), "{what}: {text:?}");
    }
}

#[test]
fn what_a_server_answers_is_escaped_before_it_is_printed() {
    let waiting = json!({
        "state": "waiting", "run_id": EVIL, "round": 1, "joined": 1, "min_nodes": 2, "max_nodes": 2,
        "missing_ranks": [], "missing_nodes": [EVIL], "waited_seconds": 1, "deadline_seconds": 1,
            "reason": EVIL,
        "barrier": EVIL, "generation": 1, "arrived": 1, "world_size": 2, "missing": [EVIL],
        "expected": 2, "detail": EVIL, "warning": EVIL,
    });
    let mut gathering = waiting.clone();
    gathering["state"] = json!("gathering");
    let answers = [
        http_answer(409, &json!({"status": 409, "detail": EVIL, "code": EVIL}).to_string()),
        http_answer(500, EVIL),
        http_answer(200, EVIL),
        http_answer(202, &waiting.to_string()),
        http_answer(202, &gathering.to_string()),
        EVIL.as_bytes().to_vec(),
    ];
    let mut told = 0;
    for answer in answers {
        let server = answering(answer.clone());
        let (url, endpoint) = (format!("http://{server}"), server.to_string());
        let admin = ["--admin", &url, "--timeout", "300ms"];
        let commands: [&[&str]; 6] = [
            &["join", "--run-id", "r", "--nodes", "2", "--node", "n"],
            &["barrier", "b", "--nodes", "2", "--node", "n"],
            &["leave", "--run-id", "r", "--node", "n"],
            &["ctl", "close", "--yes", "--run-id", "r"],
            &["ctl", "extend", "--run-id", "r", "--by", "1s"],
            &["ctl", "reset", "--store", "29500", "--yes"],
        ];
        let mut all: Vec<Vec<&str>> = commands.iter().map(|args| [args, &admin[..]].concat()).collect();
        all.push(vec!["health", &url, "--timeout", "300ms"]);
        all.push(vec!["status", &url, "--timeout", "300ms"]);
        all.push(vec![
            "wait",
            &endpoint,
            "--nodes",
            "2",
            "--run-id",
            "r",
            "--admin",
            &url,
            "--timeout",
            "300ms",
        ]);
        all.push(vec!["doctor", &endpoint, "--admin", &url, "--step-timeout", "300ms"]);
        all.push(vec!["store", "--store", &endpoint, "--timeout", "300ms", "get", "k"]);
        for args in all {
            let ran = command(&args).output().expect("the binary starts");
            assert_harmless(&ran, &args.join(" "));
            assert!(!String::from_utf8_lossy(&ran.stderr).contains("Usage:"), "{args:?}: {ran:?}");
            told += usize::from(String::from_utf8_lossy(&ran.stderr).contains("\\u{1b}[2J"));
        }
    }
    assert!(told > 10, "{told}");
}

/// Runs a command on its own terminal. Returns the text that it shows.
fn on_a_terminal(mut command: Command) -> String {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&terminal).expect("a terminal");
    unlockpt(&terminal).expect("a terminal");
    let name = ptsname(&terminal, Vec::new()).expect("its name");
    let path = Path::new(name.to_str().expect("UTF-8"));
    let side = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("its other side");
    let mut child = command.stdout(side).spawn().expect("the binary starts");
    // The end is visible only when no process holds the other side open.
    drop(command);
    let mut shown = Vec::new();
    // The end of a terminal is reported as an error.
    let _ = std::fs::File::from(terminal).read_to_end(&mut shown);
    assert!(child.wait().expect("its own child").success());
    String::from_utf8_lossy(&shown).into_owned()
}

#[test]
fn a_value_is_escaped_on_a_terminal_and_left_alone_in_a_pipe() {
    let server = TestServer::start(&[]);
    let mut peer = Peer::greet(server.store);
    peer.send(&set("/k", EVIL.as_bytes()));
    peer.settle();
    let store = server.store.to_string();
    let args = ["store", "--store", &store, "get", "k"];
    let piped = command(&args).output().expect("the binary starts");
    assert_eq!(piped.stdout, EVIL.as_bytes());
    let shown = on_a_terminal(command(&args));
    assert!(shown.contains("all is well \\u{1b}[2J\\u{9b}\\u{202e}\\u{200b}"), "{shown:?}");
    assert!(shown.chars().all(|c| is_harmless(c) || matches!(c, '\r' | '\n')), "{shown:?}");
}

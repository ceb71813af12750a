//! `rallypoint status` against servers that answer, that answer something else, or that do not answer.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use crate::common::{PATIENCE, TestServer, eventually};

const LIST: &str = include_str!("../data/insight/runs.json");
const STATIC_JOB: &str = include_str!("../data/insight/run_static_rank_missing.json");

/// An admin port with these paths; every other path is 404. Also returns the requested paths.
fn admin(known: &'static [(&'static str, &'static str)]) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let addr = listener.local_addr().expect("bound");
    let asked = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.expect("a client"));
            let mut line = String::new();
            stream.read_line(&mut line).expect("a request");
            let path = line.split(' ').nth(1).expect("a path").to_owned();
            while line.trim() != "" {
                line.clear();
                stream.read_line(&mut line).expect("a head");
            }
            let found = known.iter().find(|(known, _)| *known == path);
            let (status, body) = match found {
                Some((_, body)) => ("200 OK", *body),
                None => ("404 Not Found", "{\"status\":404,\"detail\":\"nothing is known of it\"}"),
            };
            heard.lock().expect("alive").push(path);
            let head =
                format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = stream.get_mut().write_all((head + body).as_bytes());
        }
    });
    (addr, asked)
}

fn status(addr: SocketAddr, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
    command.env_clear().env("RALLYPOINT_ADMIN", addr.to_string()).arg("status").args(args);
    assert_cmd::Command::from_std(command).timeout(PATIENCE).output().expect("the binary runs")
}

#[track_caller]
fn shown(output: &Output) -> &str {
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*err), (Some(0), ""));
    std::str::from_utf8(&output.stdout).expect("UTF-8")
}

#[track_caller]
fn failed(output: &Output, code: i32, words: &str) {
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(code), 0), "{err}");
    assert!(err.contains(words), "`{words}` is not in: {err}");
}

const KNOWN: &[(&str, &str)] = &[
    ("/api/v1/runs", LIST),
    ("/api/v1/runs/static-job", STATIC_JOB),
    ("/api/v1/runs/static-job?store=29510&kind=static", STATIC_JOB),
];

#[test]
fn the_overview_has_what_is_known_of_each_run() {
    let (addr, asked) = admin(KNOWN);
    let output = status(addr, &[]);
    let text = shown(&output);
    // The document of this run is absent, so the words of the list have to do.
    assert!(
        text.contains("train-llm round 0  [##################......] 3/4 nodes  missing: 1 node, 41 s\n"),
        "{text}"
    );
    assert!(
        text.contains(
            "  38 s: rank 0, rank 1, rank 3 wait for /default_pg/0//cpu//0/2, which rank 2 writes\n"
        ),
        "{text}"
    );
    assert!(!text.contains('\x1b'), "colour only on a terminal: {text}");
    let asked = asked.lock().expect("alive");
    assert_eq!(
        *asked,
        [
            "/api/v1/runs",
            "/api/v1/runs/train-llm?store=29500&kind=c10d",
            "/api/v1/runs/static-job?store=29510&kind=static"
        ]
    );
}

#[test]
fn one_run_is_shown_alone() {
    let (addr, asked) = admin(KNOWN);
    let output = status(addr, &["--run", "static-job"]);
    assert!(shown(&output).starts_with("static-job  [########################] 2/2 nodes"));
    assert!(!shown(&output).contains("train-llm"));
    assert_eq!(*asked.lock().expect("alive"), ["/api/v1/runs/static-job"]);
}

#[test]
fn the_document_is_passed_through() {
    let (addr, _) = admin(KNOWN);
    assert_eq!(shown(&status(addr, &["--json"])).trim_end(), LIST.trim_end());
    assert_eq!(shown(&status(addr, &["--json", "--run", "static-job"])).trim_end(), STATIC_JOB.trim_end());
}

#[test]
fn a_run_id_is_one_part_of_the_path_whatever_is_in_it() {
    let (addr, asked) = admin(KNOWN);
    failed(&status(addr, &["--run", "../stores?x=ü"]), 1, "nothing is known of it (404)");
    assert_eq!(*asked.lock().expect("alive"), ["/api/v1/runs/..%2Fstores%3Fx%3D%C3%BC"]);
}

#[test]
fn a_server_that_is_not_there_is_exit_code_one() {
    let addr = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    failed(&status(addr, &[]), 1, "refused");
    failed(&status(addr, &["--json"]), 1, "refused");
}

#[test]
fn another_answer_than_expected_is_said() {
    let (addr, _) = admin(&[("/api/v1/runs", "{\"runs\": 7}")]);
    failed(&status(addr, &[]), 1, "this version does not understand the answer");
    let (addr, _) = admin(&[]);
    failed(&status(addr, &[]), 1, "nothing is known of it (404)");
}

#[test]
fn wrong_usage_is_exit_code_two() {
    let (addr, _) = admin(KNOWN);
    failed(&status(addr, &["--interval", "1ns"]), 2, "--interval is too short");
    failed(&status(addr, &["https://host"]), 1, "--tls-ca FILE");
}

#[test]
fn a_real_server_without_runs_says_so() {
    let server = TestServer::start(&[]);
    let output = status(server.admin, &[]);
    assert_eq!(shown(&output), "no runs: no client is connected to a store\n");
    let list: serde_json::Value =
        serde_json::from_slice(&status(server.admin, &["--json"]).stdout).expect("JSON");
    assert_eq!(list["runs"], serde_json::json!([]));
    // A process that has made its store, but no process group yet.
    let _client = std::net::TcpStream::connect(server.store).expect("the store listens");
    eventually("the client is counted", || {
        shown(&status(server.admin, &[]))
            .starts_with("no runs: 1 client is connected, and no keys show a job")
    });
}

//! Releases side by side: what the programs and servers of each release said was recorded
//! (`tests/data/releases/record`), and the present ones understand it.

use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use serde::Deserialize;
use serde_json::Value;

use super::common::relay::TestRelay;
use super::common::{PATIENCE, TestServer, eventually, free_ports, http};
use super::links::{Client, string};

/// A request that a program of the release sent, and what its server answered.
#[derive(Deserialize, Clone)]
struct Recorded {
    method: String,
    path: String,
    body: String,
    status: u16,
    answer: String,
}

fn releases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/releases");
    let entries = folder.read_dir().expect("a folder").map(|entry| entry.expect("an entry").path());
    let found: Vec<_> = entries.filter(|path| path.is_dir()).collect();
    assert!(!found.is_empty(), "no release is recorded");
    found
}

fn requests(release: &Path) -> Vec<Recorded> {
    let text = std::fs::read_to_string(release.join("requests.json")).expect("recorded requests");
    serde_json::from_str(&text).expect("a list of requests")
}

/// What the recorded answer has and the present one lacks. Values may differ, and fields may be added.
fn lacks(recorded: &Value, present: &Value, at: &str, found: &mut Vec<String>) {
    match (recorded, present) {
        (Value::Object(recorded), Value::Object(present)) => {
            for (name, value) in recorded {
                match present.get(name) {
                    Some(other) => lacks(value, other, &format!("{at}.{name}"), found),
                    None => found.push(format!("{at}.{name}")),
                }
            }
        }
        (Value::Array(recorded), Value::Array(present)) => {
            if let (Some(value), Some(other)) = (recorded.first(), present.first()) {
                lacks(value, other, &format!("{at}[]"), found);
            }
        }
        _ => {}
    }
}

#[test]
fn a_server_answers_the_programs_of_each_release() {
    for release in releases() {
        let ports = free_ports(2);
        let server = TestServer::start(&["--store-ports", &format!("{}-{}", ports.start(), ports.end())]);
        for asked in requests(&release) {
            // One after the other, so nobody can wait for a request that comes later.
            let mut body = asked.body.clone();
            if let Ok(mut fields) = serde_json::from_str::<Value>(&asked.body)
                && fields.get("wait_seconds").is_some()
            {
                fields["wait_seconds"] = Value::from(0);
                body = fields.to_string();
            }
            let line = format!("{} {}", asked.method, asked.path);
            let answer = http(server.admin, &line, "Content-Type: application/json\r\n", &body);
            assert!((200..300).contains(&answer.status), "{line} {body}: {} {}", answer.status, answer.body);
            if answer.status == asked.status {
                let parsed = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
                let mut found = Vec::new();
                lacks(&parsed(&asked.answer), &parsed(&answer.body), "", &mut found);
                assert!(found.is_empty(), "{line}: the answer lacks {found:?}: {}", answer.body);
            }
        }
    }
}

/// Answers a release's requests as its server did, each path in the order of its recording.
fn old_server(recorded: Vec<Recorded>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let admin = listener.local_addr().expect("an address");
    let mut answers = HashMap::<String, VecDeque<Recorded>>::new();
    for one in recorded {
        answers.entry(format!("{} {}", one.method, one.path)).or_default().push_back(one);
    }
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let Some(line) = request_line(&mut stream) else { continue };
            let (status, body) = match answers.get_mut(&line) {
                Some(queue) if queue.len() > 1 => queue.pop_front().map(|one| (one.status, one.answer)),
                Some(queue) => queue.front().map(|one| (one.status, one.answer.clone())),
                None => None,
            }
            .unwrap_or((404, r#"{"title": "Not Found", "status": 404, "detail": "no such route"}"#.into()));
            let length = body.len();
            let head = format!("HTTP/1.1 {status} As recorded\r\nConnection: close\r\n");
            let kind = "Content-Type: application/json\r\n";
            let _ = write!(stream, "{head}{kind}Content-Length: {length}\r\n\r\n{body}");
        }
    });
    admin
}

/// Reads a whole request; its method and path.
fn request_line(stream: &mut TcpStream) -> Option<String> {
    let text = head(stream)?;
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    stream.read_exact(&mut vec![0; length.unwrap_or(0)]).ok()?;
    Some(text.lines().next()?.rsplit_once(' ')?.0.to_owned())
}

/// Reads a request up to the empty line.
fn head(stream: &mut TcpStream) -> Option<String> {
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        text.push(byte[0]);
    }
    String::from_utf8(text).ok()
}

fn rallypoint(args: &[&str]) -> Output {
    let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_rallypoint"));
    command.args(args).env_clear().env("PATH", "/usr/bin:/bin").env("POD_NAME", "train-0");
    command.timeout(PATIENCE).output().expect("it runs")
}

#[test]
fn the_programs_understand_a_server_of_each_release() {
    for release in releases() {
        let store = TestServer::start(&[]);
        // The run's own store is one that is there.
        let (own, here) = ("\"port\":29510", format!("\"port\":{}", store.store.port()));
        let of_run = |one: Recorded| Recorded { answer: one.answer.replace(own, &here), ..one };
        let admin = old_server(requests(&release).into_iter().map(of_run).collect()).to_string();
        let endpoint = store.store.to_string();
        let run = ["run", "--endpoint", &endpoint, "--admin", &admin, "--run-id", "skew-run", "--nodes", "2"];
        let run = [&run[..], &["--relay", "off", "--node-rank", "0", "--", "true"]].concat();
        let calls: [&[&str]; 7] = [
            &run,
            &["join", "--admin", &admin, "--run-id", "skew-join", "--nodes", "2", "--node", "node-0"],
            &["barrier", "skew", "--admin", &admin, "--nodes", "2", "--node", "node-0"],
            &["status", "--admin", &admin],
            &["status", "--admin", &admin, "--run", "skew-join"],
            &["ctl", "expect", "skew-later", "4", "--admin", &admin],
            &["wait", &endpoint, "--admin", &admin],
        ];
        for call in calls {
            let ended = rallypoint(call);
            let said = String::from_utf8_lossy(&ended.stderr).into_owned();
            assert!(ended.status.success(), "{call:?}: {said}");
        }
    }
}

/// The frames of one end of a link: a byte for the kind, four for the length, the body.
fn frames(mut bytes: &[u8]) -> Vec<(u8, &[u8])> {
    let mut found = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<5>() {
        let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        found.push((head[0], &bytes[..5 + length]));
        bytes = &rest[length..];
    }
    found
}

/// A recorded end of a link: the head of its HTTP message, and its frames.
fn link(bytes: &[u8]) -> (&[u8], Vec<(u8, &[u8])>) {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    (&bytes[..end], frames(&bytes[end..]))
}

fn read_until(stream: &mut TcpStream, what: &[u8]) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let (mut seen, mut piece) = (Vec::new(), [0; 4096]);
    while !seen.windows(what.len()).any(|part| part == what) {
        let read = stream.read(&mut piece).expect("more comes");
        assert!(read > 0, "closed after {:?}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&piece[..read]);
    }
    seen
}

#[test]
fn a_server_serves_a_relay_of_each_release() {
    for release in releases() {
        let recorded = std::fs::read(release.join("link-from-relay")).expect("a recording");
        let (head, frames) = link(&recorded);
        let asked = frames.iter().position(|(kind, _)| *kind == b'D').expect("requests") + 1;
        let server = TestServer::start(&[]);
        let mut stream = TcpStream::connect(server.admin).expect("the admin port listens");
        stream.write_all(head).expect("it reads");
        for (_, frame) in &frames[..asked] {
            stream.write_all(frame).expect("it reads");
        }
        let seen = read_until(&mut stream, b"kept");
        assert!(seen.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&seen));
        for (_, frame) in &frames[asked..] {
            stream.write_all(frame).expect("it reads");
        }
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("the server closes after the relay's last word");
        assert_eq!(Client::connect(server.store).get(b"skew"), b"kept");
    }
}

#[test]
fn a_relay_is_served_by_a_server_of_each_release() {
    for release in releases() {
        let recorded = std::fs::read(release.join("link-from-server")).expect("a recording");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let admin = listener.local_addr().expect("an address");
        let links = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let (links, recorded) = (&links, &recorded);
            let served = scope.spawn(move || {
                let (mut stream, _) = listener.accept().expect("the relay comes");
                let asked = head(&mut stream).expect("a request");
                assert!(asked.contains("rallypoint-link/1"), "{asked}");
                links.fetch_add(1, Relaxed);
                let (head, frames) = link(recorded);
                let (welcome, rest) = frames.split_first().expect("a welcome");
                stream.write_all(&[head, welcome.1].concat()).expect("it reads");
                // The last request of the client, with the key at its end.
                read_until(&mut stream, &[&[3][..], &string(b"skew")].concat());
                for (kind, frame) in rest {
                    if *kind != b'E' {
                        stream.write_all(frame).expect("it reads");
                    }
                }
                let mut end = Vec::new();
                let _until_the_relay_ends = stream.read_to_end(&mut end);
            });
            let relay = TestRelay::start(admin, "skew", &[]);
            let mut client = Client::connect(relay.store);
            client.set(b"skew", b"kept");
            assert_eq!(client.get(b"skew"), b"kept", "{}", relay.log());
            drop((client, relay));
            served.join().expect("the server of the release");
        });
        assert_eq!(links.load(Relaxed), 1);
    }
}

#[test]
fn a_server_goes_on_with_a_journal_of_each_release() {
    for release in releases() {
        let folder = tempfile::tempdir().expect("a folder");
        for entry in release.join("journal").read_dir().expect("a folder") {
            let path = entry.expect("an entry").path();
            std::fs::copy(&path, folder.path().join(path.file_name().expect("a name"))).expect("copied");
        }
        let mut check = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
        let checked =
            check.args(["journal", "dump"]).arg(folder.path()).env_clear().output().expect("it runs");
        let said = String::from_utf8_lossy(&checked.stdout).into_owned();
        assert!(checked.status.success() && said.contains("skew"), "{said}");
        let server = TestServer::start(&["--journal", folder.path().to_str().expect("a path")]);
        let said = "read the journal of 1 earlier start ";
        eventually(said, || server.log().contains(said));
    }
}

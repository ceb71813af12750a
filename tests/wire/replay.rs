//! Replays the conversations of real PyTorch clients and servers of 14 releases (`tests/data/transcripts`).
//!
//! Recorded programs send their bytes again, and our server must answer with equal bytes. Hand-made cases are
//! compared step by step: the sent bytes, the answer, and whether the connection stays open.
//! `replay/differences.rs` lists every intended difference with our answer and the reason; nothing is left
//! out.

mod differences;
mod hand_made;
mod recorded;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use rallypoint_protocol::Dialect;
use serde_json::Value as Json;

use crate::common::TestServer;
use crate::common::peer::Peer;
use crate::common::relay::TestRelay;

fn transcripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/transcripts")
}

/// The JSON files of a folder, by name.
fn files(folder: &Path) -> Vec<(String, Json)> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .expect("the recordings are there")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .map(|path| {
            let name = path.file_stem().expect("named").to_string_lossy().into_owned();
            let text = std::fs::read(&path).expect("readable");
            (name, serde_json::from_slice(&text).expect("a recording is JSON"))
        })
        .collect();
    files.sort_by(|one, other| one.0.cmp(&other.0));
    files
}

fn array(json: &Json) -> &[Json] {
    json.as_array().expect("an array")
}

fn text(json: &Json) -> &str {
    json.as_str().expect("a string")
}

/// The client's path to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Direct,
    Relay,
}

/// A server with the settings for clients of the recorded release.
struct Replayed {
    /// The address for clients: the server's, or the relay's.
    store: SocketAddr,
    _server: TestServer,
    _relay: Option<TestRelay>,
    /// The dialect of the recorded clients.
    dialect: Dialect,
}

impl Replayed {
    fn start(recording: &str, way: Way) -> Self {
        let release = recording.trim_start_matches("master-");
        let (dialect, args): (_, &[&str]) = match release.split('.').take(2).collect::<Vec<_>>()[..] {
            ["1", "13"] | ["2", "0"] => (Dialect::A, &["--legacy-dialect", "2.0"]),
            ["2", "1"] => (Dialect::B, &[]),
            _ => (Dialect::C, &[]),
        };
        let server = TestServer::start(args);
        let relay = (way == Way::Relay).then(|| TestRelay::start(server.admin, "replay", &[]));
        let store = relay.as_ref().map_or(server.store, |relay| relay.store);
        Self { store, _server: server, _relay: relay, dialect }
    }

    fn connect(&self) -> Peer {
        Peer::connect(self.store, self.dialect)
    }
}

/// Whether two replies are equal. A server may order LIST_KEYS as it likes.
fn same_reply(expected: &[u8], found: &[u8], with_names: bool) -> bool {
    expected == found
        || with_names
            && expected.len() == found.len()
            && (0..expected.len()).any(|at| {
                expected[..at] == found[..at]
                    && names(&expected[at..]).is_some_and(|expected| names(&found[at..]) == Some(expected))
            })
}

/// The sorted names in a reply to LIST_KEYS; `None` if it is another reply.
fn names(mut reply: &[u8]) -> Option<Vec<&[u8]>> {
    let number = |reply: &mut &[u8]| {
        let (number, rest) = reply.split_first_chunk()?;
        *reply = rest;
        usize::try_from(u64::from_le_bytes(*number)).ok()
    };
    let count = number(&mut reply)?;
    let mut names = Vec::new();
    for _ in 0..count {
        let len = number(&mut reply)?;
        let (name, rest) = reply.split_at_checked(len)?;
        names.push(name);
        reply = rest;
    }
    names.sort_unstable();
    reply.is_empty().then_some(names)
}

/// Fails with a list of all mismatches.
fn assert_none(mismatches: &[String]) {
    assert!(mismatches.is_empty(), "{} mismatches:\n{}", mismatches.len(), mismatches.join("\n"));
}

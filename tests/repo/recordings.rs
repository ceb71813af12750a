//! Every key, operation, flag and method in recordings of real jobs must be in one of our tables. The
//! recordings are in `tests/data/samples`, and in the folder `RALLYPOINT_RECORDINGS`, which
//! `scripts/new-release` fills from a release that nobody has checked yet.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rallypoint_node::launch::GRAMMARS;
use rallypoint_protocol::Op;
use rallypoint_protocol::keys::{KeyPattern, RendezvousPart, classify};
use serde_json::Value as Json;

/// The methods of `TCPStore` in PyTorch 2.15 and older.
const METHODS: [&str; 23] = [
    "add",
    "append",
    "barrier",
    "check",
    "clone",
    "compare_set",
    "delete_key",
    "get",
    "has_extended_api",
    "host",
    "libuvBackend",
    "list_keys",
    "multi_get",
    "multi_set",
    "num_keys",
    "port",
    "queue_len",
    "queue_pop",
    "queue_push",
    "set",
    "set_timeout",
    "timeout",
    "wait",
];

/// Whether a key belongs to a recorded program: to `legal_jobs.py`, or to a job of the samples.
fn is_of_the_program(key: &str) -> bool {
    ["/shard-", "/epochs", "/work", "/done_"].iter().any(|prefix| key.starts_with(prefix))
}

fn is_known_key(key: &str) -> bool {
    match classify(key.as_bytes()) {
        // The rows "anything else" stand for keys that nobody has examined.
        None | Some(KeyPattern::Unknown) => is_of_the_program(key),
        Some(KeyPattern::Rendezvous { part: RendezvousPart::Other, .. }) => false,
        Some(_) => true,
    }
}

fn is_known_operation(name: &str) -> bool {
    Op::ALL.iter().any(|op| op.name().eq_ignore_ascii_case(name))
}

/// The parts of a row that no table knows. Digits become `#`, so that a thousand ranks give one line.
fn unknown(row: &Json) -> Vec<String> {
    let text = |field: &str| row[field].as_str().unwrap_or_default();
    let hidden =
        |text: &str| text.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).collect::<String>();
    match text("ev") {
        "req" => {
            let list = |field: &str| row[field].as_array().cloned().unwrap_or_default();
            let pairs = list("kv").into_iter().map(|pair| pair[0].clone());
            let keys = list("ks").into_iter().chain(pairs).chain([row["k"].clone()]);
            let keys = keys.filter_map(|key| Some(key.as_str()?.to_owned()));
            let keys = keys.filter(|key| !is_known_key(key)).map(|key| format!("key {}", hidden(&key)));
            let op = (!is_known_operation(text("op"))).then(|| format!("operation {}", text("op")));
            keys.chain(op).collect()
        }
        "unknown" => vec![format!("an operation after {}", text("after"))],
        "flag" if !GRAMMARS[0].flags().any(|flag| flag == text("name")) => {
            vec![format!("torchrun flag --{}", text("name"))]
        }
        "method" if !METHODS.contains(&text("name")) => vec![format!("TCPStore method {}", text("name"))],
        _ => Vec::new(),
    }
}

fn recordings(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.expect("readable").path());
    paths.filter(|path| path.extension().is_some_and(|end| end == "jsonl")).collect()
}

#[test]
fn everything_that_was_recorded_is_known() {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/samples");
    let (mut found, mut rows) = (BTreeSet::new(), 0);
    for folder in
        [Some(samples), std::env::var_os("RALLYPOINT_RECORDINGS").map(PathBuf::from)].into_iter().flatten()
    {
        for path in recordings(&folder) {
            let name = path.file_stem().expect("named").to_string_lossy().into_owned();
            let text = std::fs::read_to_string(&path).expect("readable");
            for line in text.lines() {
                let row = serde_json::from_str(line).expect("a line of JSON");
                found.extend(unknown(&row).into_iter().map(|what| format!("{what} ({name})")));
                rows += 1;
            }
        }
    }
    assert!(rows > 1000, "only {rows} rows were read");
    assert!(found.is_empty(), "no table knows:\n  {}", found.into_iter().collect::<Vec<_>>().join("\n  "));
}

#[test]
fn what_is_not_known_is_found() {
    let row = |text: &str| unknown(&serde_json::from_str(text).expect("JSON"));
    assert_eq!(row(r#"{"ev":"req","op":"SET","k":"/default_pg/0//cpu//0/1"}"#), [""; 0]);
    assert_eq!(
        row(r#"{"ev":"req","op":"WAIT","ks":["/default_pg/0//new//7"]}"#),
        ["key /default_pg/#//new//#"]
    );
    assert_eq!(row(r#"{"ev":"req","op":"TELEPORT"}"#), ["operation TELEPORT"]);
    assert_eq!(row(r#"{"ev":"unknown","after":"PING"}"#), ["an operation after PING"]);
    assert_eq!(row(r#"{"ev":"flag","name":"rdzv-moon"}"#), ["torchrun flag --rdzv-moon"]);
    assert_eq!(row(r#"{"ev":"method","name":"teleport"}"#), ["TCPStore method teleport"]);
}

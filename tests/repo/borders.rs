//! Which module may use which: a rule that clippy's disallowed lists cannot express. The test names each line
//! that breaks it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A room, the other rooms of this crate that it may use, and the crates that it must not use.
const BORDERS: &[(&str, &[&str], &[&str])] = &[
    ("core/ids", &[], &["tokio", "tracing", "bytes"]),
    ("core/map", &[], &["tokio", "tracing", "bytes"]),
    ("core/protocol", &["core/ids"], &["tokio", "tokio_util", "tracing"]),
    (
        "core/store",
        &["core/ids", "core/journal", "core/map", "core/protocol"],
        &["tokio", "tokio_util", "tracing"],
    ),
    ("core/rendezvous", &["core/ids", "core/map"], &["tokio", "tokio_util", "tracing", "bytes"]),
    ("core/gate", &["core/ids", "core/map"], &["tokio", "tracing"]),
    ("core/journal", &["core/map", "core/protocol"], &["tokio", "tokio_util", "tracing", "serde", "std::fs"]),
    ("core/link", &["core/ids", "core/protocol"], &["tokio", "tokio_util", "tracing"]),
    (
        "core/insight",
        &["api", "core/gate", "core/ids", "core/protocol", "core/rendezvous", "core/store"],
        &["tokio", "tokio_util", "tracing", "axum"],
    ),
    ("api", &[], &["tokio", "axum", "bytes"]),
    ("node/endpoint", &[], &["tokio", "tracing"]),
    ("node/makers", &[], &["tokio", "tracing", "std::env", "std::fs"]),
    ("node/shell", &[], &["tokio", "tracing", "std::env", "std::fs"]),
    (
        "node/launch",
        &["core/ids", "node/endpoint", "node/makers", "node/shell"],
        &["tokio", "tracing", "std::env", "std::fs"],
    ),
    (
        "node/client",
        &["api", "core/ids", "core/link", "core/protocol", "node/endpoint", "tls", "tokens"],
        &["axum", "prometheus"],
    ),
    (
        "node/doctor",
        &[
            "api",
            "core/ids",
            "core/protocol",
            "node/client",
            "node/endpoint",
            "node/launch",
            "node/makers",
            "node/shell",
            "process",
        ],
        &["axum", "prometheus", "tracing"],
    ),
    (
        "node/relay",
        &["api", "core/ids", "core/link", "node/client", "process", "tls", "tokens"],
        &["axum", "prometheus", "tracing"],
    ),
    ("server/clock", &["core/ids"], &["axum", "tracing"]),
    (
        "server/engine",
        &["core/ids", "core/journal", "core/protocol", "core/store", "server/clock", "server/journal"],
        &["tokio_util", "axum"],
    ),
    (
        "server/journal",
        &["config", "core/ids", "core/journal", "process", "tls"],
        &["tokio_util", "axum", "prometheus"],
    ),
    (
        "server",
        &[
            "api",
            "config",
            "core/gate",
            "core/ids",
            "core/insight",
            "core/journal",
            "core/link",
            "core/map",
            "core/protocol",
            "core/rendezvous",
            "core/store",
            "process",
            "server/clock",
            "server/engine",
            "server/journal",
            "tls",
            "tokens",
        ],
        &["axum", "prometheus"],
    ),
    (
        "server/metrics",
        &["api", "core/insight", "core/protocol", "core/store", "server", "server/engine", "server/journal"],
        &["axum", "tracing"],
    ),
    (
        "server/admin",
        &[
            "api",
            "config",
            "core/gate",
            "core/ids",
            "core/insight",
            "core/link",
            "core/rendezvous",
            "server",
            "server/clock",
            "server/engine",
            "server/journal",
            "server/metrics",
            "tls",
            "tokens",
        ],
        &["prometheus"],
    ),
    ("process", &[], &["tokio", "tracing"]),
    (
        "config",
        &["core/protocol", "core/rendezvous", "core/store", "tls", "tokens"],
        &["axum", "tokio", "tracing"],
    ),
    ("tokens", &[], &["axum", "tokio", "tracing"]),
    ("tls", &["config"], &["axum", "hyper", "tracing"]),
    (
        "loadgen",
        &["core/ids", "core/link", "core/protocol", "node/client", "process", "tls"],
        &["axum", "prometheus", "tracing", "indicatif"],
    ),
];

/// Whether the table has this path as a room.
fn is_room(path: &str) -> bool {
    BORDERS.iter().any(|(room, ..)| *room == path)
}

/// The files of a room, without the files of rooms inside it.
fn sources(room: &str) -> Vec<PathBuf> {
    fn collect(room: &str, dir: &Path, src: &Path, found: &mut Vec<PathBuf>) {
        for path in std::fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            let stem = path.with_extension("");
            let inside = stem.strip_prefix(src).expect("below src").to_str().expect("a name");
            let is_test = path.file_stem().is_some_and(|stem| stem == "tests");
            if is_test || (inside != room && is_room(inside)) {
                continue;
            }
            if path.is_dir() {
                collect(room, &path, src, found);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                found.push(path);
            }
        }
    }
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found: Vec<_> =
        [src.join(format!("{room}.rs"))].into_iter().filter(|file| file.exists()).collect();
    if src.join(room).is_dir() {
        collect(room, &src.join(room), &src, &mut found);
    }
    assert!(!found.is_empty(), "src has no room {room}");
    found
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The text after each `prefix` in a line of code.
fn after<'l>(line: &'l str, prefix: &str) -> Vec<&'l str> {
    line.match_indices(prefix)
        .filter(|&(at, _)| !line[..at].ends_with(is_name))
        .map(|(at, _)| &line[at + prefix.len()..])
        .collect()
}

/// The rooms of this crate in a line of code: `core/store` for `crate::core::store::Store`.
fn rooms(line: &str) -> Vec<String> {
    let room = |path: &str| {
        let mut names = path.split("::").map(|name| name.split(|c| !is_name(c)).next().unwrap_or_default());
        let first = names.next().unwrap_or_default();
        let inner = format!("{first}/{}", names.next().unwrap_or_default());
        if is_room(&inner) { inner } else { first.to_owned() }
    };
    after(line, "crate::").into_iter().map(room).collect()
}

#[test]
fn no_room_reaches_over_its_border() {
    let mut crossed = Vec::new();
    for (room, may_use, must_not) in BORDERS {
        for file in sources(room) {
            let text = std::fs::read_to_string(&file).expect("text");
            let code = text.split("\n#[cfg(test)]\nmod tests").next().unwrap_or_default();
            for (n, line) in code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"))
            {
                let strange = rooms(line)
                    .into_iter()
                    .filter(|name| name != room && !may_use.contains(&name.as_str()))
                    .map(|name| format!("crate::{}", name.replace('/', "::")));
                let forbidden = must_not
                    .iter()
                    .filter(|name| !after(line, &format!("{name}::")).is_empty())
                    .map(|name| (*name).to_owned());
                for name in strange.chain(forbidden) {
                    crossed.push(format!("{}:{}: {room} must not know {name}", file.display(), n + 1));
                }
            }
        }
    }
    assert!(crossed.is_empty(), "{}", crossed.join("\n"));
}

/// The modules of the crate with their code, without tests.
fn modules() -> BTreeMap<String, String> {
    fn collect(dir: &Path, src: &Path, found: &mut BTreeMap<String, String>) {
        for path in std::fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            if path.file_stem().is_some_and(|stem| stem == "tests") {
                continue;
            }
            if path.is_dir() {
                collect(&path, src, found);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                let stem = path.with_extension("");
                let name = stem.strip_prefix(src).expect("below src").to_str().expect("a name");
                let text = std::fs::read_to_string(&path).expect("text");
                let code = text.split("\n#[cfg(test)]\nmod tests").next().unwrap_or_default();
                let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
                let name = name.strip_suffix("/mod").unwrap_or(name).to_owned();
                found.insert(name, code.collect::<Vec<_>>().join("\n"));
            }
        }
    }
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = BTreeMap::new();
    collect(&src, &src, &mut found);
    found
}

/// The paths of a use or an expression after `crate::` or `super::`: `a::{b::C, d}` gives two.
fn paths(rest: &str) -> Vec<String> {
    let end = rest.find(|c: char| !is_name(c) && c != ':').unwrap_or(rest.len());
    let (path, rest) = rest.split_at(end);
    match rest.strip_prefix('{').and_then(|rest| rest.split_once("};")) {
        Some((names, _)) => names.split(',').map(|name| format!("{path}{}", name.trim())).collect(),
        None => vec![path.to_owned()],
    }
}

/// The modules that the code of `module` uses. A module may use its own submodules and the modules that
/// contain it.
fn known(module: &str, code: &str, all: &BTreeMap<String, String>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (start, prefix) in [(0, "crate::"), (1, "super::")] {
        for rest in after(code, prefix) {
            for path in paths(rest) {
                let mut base: Vec<&str> = if start == 0 { Vec::new() } else { module.split('/').collect() };
                base.truncate(base.len().saturating_sub(start));
                for name in path.split("::") {
                    if name == "super" {
                        base.pop();
                    } else {
                        base.push(name.split(|c| !is_name(c)).next().unwrap_or_default());
                    }
                }
                let named = (1..=base.len()).rev().map(|n| base[..n].join("/"));
                found.extend(named.into_iter().find(|name| all.contains_key(name)));
            }
        }
    }
    let is_in =
        |a: &str, b: &str| a.strip_prefix(b).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    found.retain(|other| !is_in(other, module) && !is_in(module, other));
    found
}

/// All modules that a module uses, directly or through others.
fn reach(module: &str, edges: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    let (mut found, mut to_see) = (BTreeSet::new(), vec![module.to_owned()]);
    while let Some(next) = to_see.pop() {
        for other in &edges[&next] {
            if found.insert(other.clone()) {
                to_see.push(other.clone());
            }
        }
    }
    found
}

/// Two files that use each other can only be understood together. There is no list of exceptions: move the
/// common part to a third file.
#[test]
fn no_files_go_round_in_a_circle() {
    let all = modules();
    let edges: BTreeMap<_, _> =
        all.iter().map(|(name, code)| (name.clone(), known(name, code, &all))).collect();
    assert!(
        edges["core/store"].contains("core/ids") && edges["cli/gather"].contains("cli/reach"),
        "uses are seen"
    );
    let reached: BTreeMap<_, _> = all.keys().map(|name| (name, reach(name, &edges))).collect();
    let mut circles: BTreeSet<BTreeSet<&str>> = BTreeSet::new();
    for (name, there) in &reached {
        let circle: BTreeSet<&str> =
            there.iter().filter(|other| reached[other].contains(*name)).map(String::as_str).collect();
        circles.extend((!circle.is_empty()).then_some(circle));
    }
    assert!(circles.is_empty(), "these files use each other: {circles:#?}");
}

//! Which module may know which: what clippy's disallowed lists cannot say. A line that crosses a border is named.

use std::path::{Path, PathBuf};

/// A room, the other rooms of this crate it may use, and the crates it must not.
const BORDERS: &[(&str, &[&str], &[&str])] = &[
    ("core/ids", &[], &["tokio", "tracing", "bytes"]),
    ("core/protocol", &["core/ids"], &["tokio", "tokio_util", "tracing"]),
    ("core/store", &["core/ids", "core/protocol"], &["tokio", "tokio_util", "tracing"]),
    ("core/rendezvous", &["core/ids"], &["tokio", "tokio_util", "tracing", "bytes", "serde"]),
    ("core/gate", &["core/ids"], &["tokio", "tracing"]),
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
    ("node/client", &["config", "core/ids", "core/protocol", "node/endpoint"], &["axum", "prometheus"]),
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
        ],
        &["axum", "prometheus", "tracing"],
    ),
    ("server/clock", &["core/ids"], &["axum", "tracing"]),
    ("server/engine", &["core/ids", "core/protocol", "core/store", "server/clock"], &["tokio_util", "axum"]),
    (
        "server",
        &[
            "api",
            "config",
            "core/gate",
            "core/ids",
            "core/insight",
            "core/protocol",
            "core/rendezvous",
            "core/store",
            "server/clock",
            "server/engine",
        ],
        &["axum", "prometheus"],
    ),
    (
        "server/metrics",
        &["api", "core/insight", "core/protocol", "core/store", "server", "server/engine"],
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
            "core/rendezvous",
            "server",
            "server/clock",
            "server/engine",
            "server/metrics",
        ],
        &["prometheus"],
    ),
    ("process", &[], &["tokio", "tracing"]),
    (
        "loadgen",
        &["core/ids", "core/protocol", "node/client", "process"],
        &["axum", "prometheus", "tracing", "indicatif"],
    ),
];

/// Whether the table has it as a room of its own.
fn is_room(path: &str) -> bool {
    BORDERS.iter().any(|(room, ..)| *room == path)
}

/// The files of a room, without those of the rooms inside it.
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

/// What follows each `prefix` in a line of code.
fn after<'l>(line: &'l str, prefix: &str) -> Vec<&'l str> {
    line.match_indices(prefix)
        .filter(|&(at, _)| !line[..at].ends_with(is_name))
        .map(|(at, _)| &line[at + prefix.len()..])
        .collect()
}

/// The rooms of this crate that a line of code names: `core/store` of `crate::core::store::Store`.
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

//! Which module may know which: what clippy's disallowed lists cannot say. A line that crosses a border is named.

use std::path::{Path, PathBuf};

/// A module, the other modules of this crate it may use, and the crates it must not.
const BORDERS: &[(&str, &[&str], &[&str])] = &[
    ("ids", &[], &["tokio", "tracing", "bytes"]),
    ("protocol", &["ids"], &["tokio", "tokio_util", "tracing"]),
    ("store", &["ids", "protocol"], &["tokio", "tokio_util", "tracing"]),
    (
        "insight",
        &["gather", "ids", "protocol", "rendezvous", "store"],
        &["tokio", "tokio_util", "tracing", "axum"],
    ),
    ("rendezvous", &["ids"], &["tokio", "tokio_util", "tracing", "bytes", "serde"]),
    ("api", &[], &["tokio", "axum", "bytes"]),
    ("endpoint", &[], &["tokio", "tracing"]),
    ("makers", &[], &["tokio", "tracing", "std::env", "std::fs"]),
    ("shell", &[], &["tokio", "tracing", "std::env", "std::fs"]),
    ("launch", &["endpoint", "makers", "shell"], &["tokio", "tracing", "std::env", "std::fs"]),
    ("gather", &["ids", "launch"], &["tokio", "tracing"]),
    ("engine", &["ids", "protocol", "store"], &["tokio_util", "axum"]),
    (
        "server",
        &["config", "engine", "gather", "ids", "insight", "protocol", "rendezvous", "store"],
        &["axum", "prometheus"],
    ),
    ("metrics", &["engine", "insight", "protocol", "server", "store"], &["axum", "tracing"]),
    (
        "admin",
        &["api", "config", "gather", "ids", "insight", "launch", "metrics", "rendezvous", "server"],
        &["prometheus"],
    ),
    ("client", &["config", "endpoint", "ids", "protocol"], &["axum", "prometheus"]),
    (
        "doctor",
        &["client", "endpoint", "ids", "launch", "makers", "protocol", "shell"],
        &["axum", "prometheus", "tracing"],
    ),
    ("process", &[], &["tokio", "tracing"]),
    ("loadgen", &["client", "ids", "process", "protocol"], &["axum", "prometheus", "tracing", "indicatif"]),
];

fn sources(module: &str) -> Vec<PathBuf> {
    fn collect(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            let is_test = entry.file_stem().is_some_and(|stem| stem == "tests");
            if entry.is_dir() && !is_test {
                collect(&entry, found);
            } else if entry.extension().is_some_and(|ext| ext == "rs") && !is_test {
                found.push(entry);
            }
        }
    }
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found: Vec<_> =
        [src.join(format!("{module}.rs"))].into_iter().filter(|file| file.exists()).collect();
    if src.join(module).is_dir() {
        collect(&src.join(module), &mut found);
    }
    assert!(!found.is_empty(), "src has no module {module}");
    found
}

/// The names after `prefix` in a line of code, such as `store` after `crate::`.
fn names_after<'l>(line: &'l str, prefix: &str) -> Vec<&'l str> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(prefix)
        .filter(|&(at, _)| !line[..at].ends_with(is_name))
        .map(|(at, _)| line[at + prefix.len()..].split(|c| !is_name(c)).next().unwrap_or_default())
        .collect()
}

#[test]
fn no_module_reaches_over_its_border() {
    let mut crossed = Vec::new();
    for (module, may_use, must_not) in BORDERS {
        for file in sources(module) {
            let text = std::fs::read_to_string(&file).expect("text");
            let code = text.split("\n#[cfg(test)]\nmod tests").next().unwrap_or_default();
            for (n, line) in code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"))
            {
                let strange = names_after(line, "crate::")
                    .into_iter()
                    .filter(|name| name != module && !may_use.contains(name))
                    .map(|name| format!("crate::{name}"));
                let forbidden = must_not
                    .iter()
                    .filter(|name| !names_after(line, &format!("{name}::")).is_empty())
                    .map(|name| (*name).to_owned());
                for name in strange.chain(forbidden) {
                    crossed.push(format!("{}:{}: {module} must not know {name}", file.display(), n + 1));
                }
            }
        }
    }
    assert!(crossed.is_empty(), "{}", crossed.join("\n"));
}

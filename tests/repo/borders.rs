//! What Cargo's walls between the crates cannot hold: which crates are pure, and that files do not use each
//! other in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Crates without I/O, clock, lock and log. Their first lines deny what clippy.toml lists; this table holds
/// their dependencies.
const PURE: [&str; 8] = ["insight", "journal", "link", "map", "protocol", "rendezvous", "shell", "store"];

/// What no pure crate depends on.
const SHELL: [&str; 9] =
    ["axum", "clap", "hyper", "prometheus", "rustix", "socket2", "tokio", "tokio-util", "tracing"];

/// Folders whose code reads no file and no variable: they are given what was read.
const GIVEN: [&str; 10] = [
    "crates/insight/src",
    "crates/journal/src",
    "crates/link/src",
    "crates/map/src",
    "crates/node/src/launch",
    "crates/node/src/makers",
    "crates/protocol/src",
    "crates/rendezvous/src",
    "crates/shell/src",
    "crates/store/src",
];

/// Crates, each with the others of this workspace that it uses, and the crates of others.
fn crates() -> BTreeMap<String, (BTreeSet<String>, BTreeSet<String>)> {
    let folders = std::fs::read_dir(Path::new(ROOT).join("crates")).expect("a folder");
    let folders = folders.map(|entry| entry.expect("an entry").path());
    let read = |folder: PathBuf| {
        let text = std::fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest");
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        let section = text.split("\n[dependencies]\n").nth(1).unwrap_or_default();
        let section = section.split("\n[").next().unwrap_or_default();
        let names = section.lines().filter_map(|line| line.split(['.', ' ']).next());
        let names = names.filter(|name| !name.is_empty() && !name.starts_with('#'));
        let (own, others): (BTreeSet<_>, BTreeSet<_>) =
            names.map(str::to_owned).partition(|name| name.starts_with("rallypoint-"));
        let own = own.iter().map(|name| name.trim_start_matches("rallypoint-").to_owned()).collect();
        (name, (own, others))
    };
    let mut crates: BTreeMap<_, _> = folders.map(read).collect();
    let (_, of_root) = read(PathBuf::from(ROOT));
    crates.insert("rallypoint".into(), of_root);
    crates
}

#[test]
fn pure_crates_depend_on_no_shell() {
    let crates = crates();
    for name in PURE {
        let (own, others) = &crates[name];
        let strange: Vec<_> = SHELL.iter().filter(|shell| others.contains(**shell)).collect();
        assert!(strange.is_empty(), "{name} is pure, and depends on {strange:?}");
        let impure: Vec<_> =
            own.iter().filter(|name| !PURE.contains(&name.as_str()) && *name != "api").collect();
        assert!(impure.is_empty(), "{name} is pure, and depends on {impure:?}");
        let text = std::fs::read_to_string(format!("{ROOT}/crates/{name}/src/lib.rs")).expect("text");
        assert!(
            text.contains("#![deny(clippy::disallowed_methods"),
            "{name} does not deny what clippy.toml lists"
        );
    }
}

#[test]
fn what_is_given_its_inputs_reads_none() {
    for folder in GIVEN {
        for (name, code) in code_below(Path::new(ROOT), &Path::new(ROOT).join(folder)) {
            for what in ["std::fs", "std::env"] {
                assert!(after(&code, &format!("{what}::")).is_empty(), "{name} uses {what}");
            }
        }
    }
}

/// The rooms of insight: what says something only reads the facts, and what changes them says nothing.
#[test]
fn rules_change_no_fact_and_adapters_say_nothing() {
    const FACTS: [&str; 7] = ["Jobs", "Links", "Meeting", "StoreWatch", "TrackedNode", "TrackedRun", "World"];
    let src = Path::new(ROOT).join("crates/insight/src");
    let mut seen = BTreeSet::new();
    for (name, code) in code_below(&src, &src) {
        let room = name.split('/').next().expect("a room").to_owned();
        let strange: Vec<String> = match room.as_str() {
            "rules" | "report" => FACTS.map(|fact| format!("&mut {fact}")).into(),
            "adapters" | "facts" | "identity" => vec!["Code::".into()],
            _ => continue,
        };
        let found: Vec<_> = strange.iter().filter(|what| !after(&code, what).is_empty()).collect();
        assert!(found.is_empty(), "insight's {name} has {found:?}");
        seen.insert(room);
    }
    assert_eq!(seen.len(), 5, "{seen:?}");
}

/// The graph as the architecture shows it, without edges that follow from others.
fn graph() -> String {
    let crates = crates();
    let uses = |name: &str| crates[name].0.iter().map(String::as_str);
    let mut text = String::from("```mermaid\ngraph TD\n");
    for name in crates.keys() {
        for used in uses(name) {
            let mut behind: Vec<&str> = uses(name).filter(|other| *other != used).collect();
            let mut seen = BTreeSet::new();
            while let Some(next) = behind.pop() {
                if seen.insert(next) {
                    behind.extend(uses(next));
                }
            }
            if !seen.contains(used) {
                writeln!(text, "    {name} --> {used}").expect("a text");
            }
        }
    }
    text + "```\n"
}

#[test]
fn the_graph_in_the_architecture_is_that_of_the_crates() {
    let path = Path::new(ROOT).join("docs/architecture.md");
    let page = std::fs::read_to_string(&path).expect("text");
    let start = page.find("```mermaid\n").expect("a graph");
    let end = start + page[start..].find("```\n").expect("its end") + "```\n".len();
    if std::env::var_os("RALLYPOINT_UPDATE_DOCS").is_some() {
        let page = format!("{}{}{}", &page[..start], graph(), &page[end..]);
        std::fs::write(&path, page).expect("a file that can be written");
        return;
    }
    assert!(
        page[start..end] == graph(),
        "the graph in docs/architecture.md is not that of the crates; RALLYPOINT_UPDATE_DOCS=1 \
         cargo nextest run --test repo graph writes it anew"
    );
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

/// Files below a folder by their names from `root` on, with their code, without tests.
fn code_below(root: &Path, folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for path in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        if path.file_stem().is_some_and(|stem| stem == "tests") {
            continue;
        }
        if path.is_dir() {
            found.append(&mut code_below(root, &path));
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            let stem = path.with_extension("");
            let name = stem.strip_prefix(root).expect("below root").to_str().expect("a name");
            let text = std::fs::read_to_string(&path).expect("text");
            let code = text.split("\n#[cfg(test)]\nmod tests").next().unwrap_or_default();
            let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            let name = name.strip_suffix("/mod").unwrap_or(name).to_owned();
            found.insert(name, code.collect::<Vec<_>>().join("\n"));
        }
    }
    found
}

/// The paths of a use or an expression behind `crate::` or `super::`: `a::{b::C, d}` is two.
fn paths(rest: &str) -> Vec<String> {
    let end = rest.find(|c: char| !is_name(c) && c != ':').unwrap_or(rest.len());
    let (path, rest) = rest.split_at(end);
    match rest.strip_prefix('{').and_then(|rest| rest.split_once("};")) {
        Some((names, _)) => names.split(',').map(|name| format!("{path}{}", name.trim())).collect(),
        None => vec![path.to_owned()],
    }
}

/// The modules that the code of `module` names. A module may know those it is made of, and those it is in.
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

/// All that a module knows, and what that knows, and so on.
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

/// Two files that use each other can only be understood together. What both need goes into a third. The
/// simulator is a test, and is left out.
#[test]
fn no_files_go_round_in_a_circle() {
    let mut sources = vec![PathBuf::from(ROOT).join("src")];
    sources.extend(
        crates()
            .keys()
            .filter(|name| *name != "sim")
            .map(|name| PathBuf::from(format!("{ROOT}/crates/{name}/src"))),
    );
    let mut seen = 0;
    for src in sources.iter().filter(|src| src.exists()) {
        let all = code_below(src, src);
        let edges: BTreeMap<_, _> =
            all.iter().map(|(name, code)| (name.clone(), known(name, code, &all))).collect();
        seen += edges.values().map(BTreeSet::len).sum::<usize>();
        let reached: BTreeMap<_, _> = all.keys().map(|name| (name, reach(name, &edges))).collect();
        let mut circles: BTreeSet<BTreeSet<&str>> = BTreeSet::new();
        for (name, there) in &reached {
            let circle: BTreeSet<&str> =
                there.iter().filter(|other| reached[other].contains(*name)).map(String::as_str).collect();
            circles.extend((!circle.is_empty()).then_some(circle));
        }
        assert!(circles.is_empty(), "these files of {} use each other: {circles:#?}", src.display());
    }
    assert!(seen > 500, "only {seen} uses are seen");
}

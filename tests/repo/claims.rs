//! What the documents claim in passing: files, flags, ports, commands, requests. Each kind was once untrue.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use crate::common::{TestServer, http};
use crate::docs::{blocks, documents, run};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// Folders of the repository whose files are named in documents.
const FOLDERS: [&str; 11] = [
    "crates",
    "tests",
    "docs",
    "deploy",
    "scripts",
    "benches",
    "src",
    "examples",
    "python",
    "fuzz",
    "proto-notes",
];
/// Where a command ends: at a program that `run` starts, a pipe, or a comment.
const STARTED: [&str; 7] = ["--", "|", "#", "torchrun", "accelerate", "python", "ft_launcher"];

/// The documents for users and contributors, each with its text.
fn texts() -> Vec<(PathBuf, String)> {
    let root = Path::new(ROOT);
    let more = [root.join("CONTRIBUTING.md"), root.join("SECURITY.md")];
    let all = documents().into_iter().chain(more);
    all.map(|path| (path.clone(), std::fs::read_to_string(path).expect("text"))).collect()
}

/// What stands between backticks, outside blocks.
fn spans(text: &str) -> Vec<String> {
    let outside: Vec<&str> = text.split("```").step_by(2).collect();
    let joined = outside.join("\n").replace('\n', " ");
    joined.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn files_that_a_document_names_exist() {
    let mut count = 0;
    for (document, text) in texts() {
        for span in spans(&text) {
            let Some((folder, _)) = span.split_once('/') else { continue };
            let is_path = span.chars().all(|char| char.is_alphanumeric() || "._/-".contains(char));
            if FOLDERS.contains(&folder) && is_path {
                assert!(Path::new(ROOT).join(&span).exists(), "{}: {span}", document.display());
                count += 1;
            }
        }
    }
    assert!(count > 100, "only {count} files found");
}

/// The names of subcommands in a help text.
fn subcommands(help: &str) -> Vec<String> {
    let list = help.split_once("Commands:\n").map_or("", |(_, rest)| rest);
    let names = list.lines().take_while(|line| line.starts_with("  "));
    names.filter_map(|line| Some(line.split_whitespace().next()?.to_owned())).collect()
}

fn help(command: &[&str]) -> String {
    let words = command.iter().chain(&["--help"]).map(|word| (*word).to_owned());
    String::from_utf8(run(&words.collect::<Vec<_>>()).stdout).expect("UTF-8")
}

/// Each command with the help texts of it and its own commands.
fn commands() -> HashMap<String, String> {
    let all = subcommands(&help(&[]));
    let whole = |name: &str| {
        let own = help(&[name]);
        let more: String = subcommands(&own).iter().map(|sub| help(&[name, sub])).collect();
        own + &more
    };
    all.into_iter().filter(|name| name != "help").map(|name| (name.clone(), whole(&name))).collect()
}

#[test]
fn flags_that_a_document_names_exist_and_each_command_is_named() {
    let (commands, mut named, mut count) = (commands(), BTreeSet::new(), 0);
    for (document, text) in texts() {
        for span in spans(&text).into_iter().chain(blocks(&text, "sh")).chain(blocks(&text, "bash")) {
            for words in span.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()) {
                let words = words.strip_prefix(&["rallypoint"]).unwrap_or(&words);
                let Some((command, rest)) = words.split_first() else { continue };
                let Some(help) = commands.get(*command) else { continue };
                named.insert((*command).to_owned());
                for word in rest.iter().take_while(|word| !STARTED.contains(word)) {
                    let flag = word.split(['=', ',']).next().unwrap_or_default();
                    // The tests' own settings are in no help.
                    if flag.len() > 2 && flag.starts_with("--") && flag != "--test-settings" {
                        assert!(help.contains(flag), "{}: {command} {flag}", document.display());
                        count += 1;
                    }
                }
            }
        }
    }
    assert!(count > 50, "only {count} flags found");
    let missing: Vec<_> = commands.keys().filter(|name| !named.contains(*name)).collect();
    // Both are for shells and packages.
    assert!(
        missing.iter().all(|name| ["completions", "man"].contains(&name.as_str())),
        "no document names {missing:?}"
    );
}

#[test]
fn each_backend_has_its_port() {
    let mut count = 0;
    for (document, text) in texts() {
        for line in text.lines() {
            let (Some((_, backend)), Some((_, endpoint))) =
                (line.split_once("--rdzv-backend="), line.split_once("--rdzv-endpoint="))
            else {
                continue;
            };
            let endpoint = endpoint.split([' ', '`']).next().unwrap_or_default();
            let Some((_, port)) = endpoint.rsplit_once(':') else { continue };
            let expected = match backend.split([' ', '`']).next() {
                Some("rallypoint") => "29501",
                Some("c10d") => "29500",
                _ => continue,
            };
            assert_eq!(port, expected, "{}: {line}", document.display());
            count += 1;
        }
    }
    assert!(count > 4, "only {count} endpoints found");
}

/// The bodies that docs/http-api.md shows are taken by a server, in the order of the page.
#[test]
fn the_requests_of_the_api_page_are_answered() {
    let server = TestServer::with_store_ports(2, &[]);
    let page = std::fs::read_to_string(Path::new(ROOT).join("docs/http-api.md")).expect("text");
    let mut count = 0;
    for section in page.split("\n## ").skip(1) {
        let title = section.lines().next().unwrap_or_default();
        let Some((_, route)) = title.split_once('`') else { continue };
        let (Some(route), Some(body)) = (route.strip_suffix('`'), blocks(section, "json").into_iter().next())
        else {
            continue;
        };
        let line = route.replace("{run_id}", "example").replace("{name}", "example");
        // Nobody else comes, so a wait is for nothing.
        let mut body: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        body["wait_seconds"] = 0.into();
        let body = body.to_string();
        let answer = http(server.admin, &line, "Content-Type: application/json\r\n", &body);
        assert!((200..300).contains(&answer.status), "{line} {body}: {} {}", answer.status, answer.body);
        count += 1;
    }
    assert_eq!(count, 4, "requests with a body");
}

/// The time that all tests take is said in three places.
#[test]
fn the_time_of_all_tests_is_the_same_everywhere() {
    for name in ["README.md", "scripts/test", "CONTRIBUTING.md"] {
        let text = std::fs::read_to_string(Path::new(ROOT).join(name)).expect("text");
        assert!(text.contains("about an hour"), "{name}");
    }
}

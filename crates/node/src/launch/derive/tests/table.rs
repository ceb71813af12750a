//! Checks that `docs/env.md` and the table of platforms agree.

use std::fmt::Write;

use crate::launch::Platform;
use crate::launch::platform::{Kind, Says};

fn document() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/env.md")).expect("docs/env.md")
}

/// The text between two lines.
fn part<'t>(text: &'t str, from: &str, to: &str) -> &'t str {
    let (_, rest) = text.split_once(from).unwrap_or_else(|| panic!("{from}"));
    rest.split_once(to).unwrap_or_else(|| panic!("{to}")).0
}

#[test]
fn the_document_has_every_platform_with_rules_of_its_own_in_order() {
    let text = document();
    let table = part(
        &text,
        "### Makers of pods, Slurm, and others with rules of their own",
        "### Platforms by their variables",
    );
    let rows: Vec<&str> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
        .filter(|name| *name != "platform")
        .collect();
    let own = Platform::ALL.iter().filter(|platform| platform.kind != Kind::Plain);
    assert_eq!(rows, own.map(|platform| platform.name).collect::<Vec<_>>());
    // The code must read each variable that the document names.
    let sources = [
        include_str!("../../derive.rs"),
        include_str!("../counts.rs"),
        include_str!("../place.rs"),
        include_str!("../ranks.rs"),
        include_str!("../volcano.rs"),
        include_str!("../../slurm.rs"),
        include_str!("../../platform/table.rs"),
        include_str!("../../../makers/table.rs"),
    ]
    .concat();
    for name in table.split('`').skip(1).step_by(2) {
        let is_name = name.chars().all(|c| c.is_ascii_uppercase() || c == '_' || c.is_ascii_digit());
        assert!(!is_name || name == "JOB" || sources.contains(&format!("\"{name}\"")), "{name} is not read");
    }
}

#[test]
fn the_document_has_the_rows_of_the_table() {
    let mut expected = String::from(
        "| platform | mark | node rank | nodes | of each process | endpoint | run id |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for platform in Platform::ALL.iter().filter(|platform| platform.kind == Kind::Plain) {
        let cell = |meanings: &[Says]| {
            let names = platform.says().filter(|(_, says)| {
                meanings.contains(says)
                    || matches!(says, Says::AttemptFrom(_)) && meanings.contains(&Says::RunId)
            });
            names.map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>().join(", ")
        };
        let mark: Vec<String> = platform.mark.iter().map(|mark| format!("`{mark}`")).collect();
        let cells = [
            platform.name.to_owned(),
            mark.join(", "),
            cell(&[Says::NodeRank, Says::OwnHost, Says::ClusterSpec]),
            cell(&[Says::Nodes, Says::Hosts, Says::HostSlots, Says::ClusterSpec]),
            cell(&[Says::TaskRank, Says::Tasks, Says::LocalTaskRank, Says::LocalTasks]),
            cell(&[Says::Master, Says::MasterPort, Says::Hosts, Says::HostSlots, Says::ClusterSpec]),
            cell(&[Says::RunId, Says::RunIdPart]),
        ];
        writeln!(expected, "| {} |", cells.join(" | ")).expect("a string");
    }
    let text = document();
    let found = part(&text, "### Platforms by their variables", "### What is in all pods");
    assert!(found.contains(&expected), "write into docs/env.md:\n{expected}");
}

#[test]
fn every_row_says_where_it_is_written() {
    for platform in Platform::ALL.iter().filter(|platform| platform.kind != Kind::Unknown) {
        assert!(!platform.source().is_empty() && !platform.mark.is_empty(), "{}", platform.name);
        let same =
            Platform::ALL.iter().filter(|other| other.id == platform.id || other.name == platform.name);
        assert_eq!(same.count(), 1, "{}", platform.name);
    }
}

/// The makers' table alone lists injected variables, and a maker's mark consists only of these.
#[test]
fn what_makers_inject_is_said_once() {
    /// Users set these.
    const NOT_INJECTED: [&str; 6] = [
        "JOBSET_NAME",
        "REPLICATED_JOB_NAME",
        "JOB_INDEX",
        "JOB_GLOBAL_INDEX",
        "RALLYPOINT_POD_INDEX",
        "POD_INDEX",
    ];
    let mut said = Vec::new();
    for platform in Platform::ALL {
        let mut names: Vec<&str> = platform.says().map(|(name, _)| name).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all, "{} says a variable twice", platform.name);
        let Kind::Maker(maker) = platform.kind else { continue };
        let injected: Vec<String> =
            maker.facts().variables.iter().map(|variable| variable.name.replace("{role}", "*")).collect();
        for mark in platform.mark.iter().flat_map(|mark| mark.split(" & ")) {
            let known = injected.iter().any(|name| name == mark) || NOT_INJECTED.contains(&mark);
            assert!(known, "{}: {mark}", platform.name);
        }
        said.extend(names);
    }
    for name in ["LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX", "PROCESS_ID", "NUM_PROCESSES"] {
        assert!(said.contains(&name), "{name}");
    }
}

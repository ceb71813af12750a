//! The table of rules, and that the page of the explanations has each of them.

use super::grammar::fault;
use super::lab::Lab;
use crate::adapters::journal::{row_id, run_of};
use crate::facts::RunKey;
use crate::reason::{Hold, Names};
use crate::{Expectation, RULES, Rule};
use rallypoint_protocol::ids::RunId;

/// The heading of a rule on the page.
fn heading(Rule { code, severity, hold, .. }: &Rule) -> String {
    let when = match hold {
        Hold::AtOnce | Hold::Again | Hold::Lasted => "",
        Hold::Lasting => ", after `--explain-after`",
        Hold::Soon => ", after `--explain-after`, or 5 s if that is less",
    };
    format!("`{code}` ({}{when})", severity.name())
}

#[test]
fn the_page_has_every_rule_with_its_meaning_and_an_example() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/explanations.md");
    let text = std::fs::read_to_string(path).expect("docs/explanations.md");
    let (_, codes) = text.split_once("## All of them\n\n").expect("the heading `All of them`");
    let parts: Vec<Vec<&str>> =
        codes.split("### ").skip(1).map(|part| part.trim_end().split("\n\n").collect()).collect();
    let headings: Vec<&str> = parts.iter().map(|part| part[0]).collect();
    assert_eq!(headings, RULES.iter().map(heading).collect::<Vec<_>>());
    for part in parts {
        let [_, meaning, example] = part[..] else { panic!("not a meaning and an example: {part:?}") };
        let example = example.strip_prefix("> ").unwrap_or_else(|| panic!("no example: {example}"));
        assert!(!meaning.is_empty() && fault(example).is_none(), "{example}");
    }
}

#[test]
fn names_are_listed_or_a_range_and_the_rest_is_counted() {
    let names = |names: &[&str]| Names::of(names.iter().map(|name| (*name).to_owned()));
    assert_eq!(names(&[]).to_string(), "0");
    assert_eq!(names(&["a"]).to_string(), "a");
    assert_eq!(names(&["a", "b", "c"]).to_string(), "a, b and c");
    let many = Names::of((0..20).map(|n| (2 * n).to_string()));
    assert_eq!((many.to_string().as_str(), many.count()), ("0, 2, 4, 6, 8, 10, 12, 14 and 12 more", 20));
    let said = |what: &str, numbers: std::ops::RangeInclusive<u32>| {
        Names::of(numbers.map(|number| format!("{what}{number}"))).to_string()
    };
    assert_eq!(said("", 48..=63), "48-63");
    assert_eq!(said("node ", 48..=56), "node 48-56");
    assert_eq!(said("train-", 0..=4095), "train-0 to train-4095");
    assert_eq!(said("", 48..=50), "48, 49 and 50");
    let gap = (0..=3).chain(5..=12).map(|number| number.to_string());
    assert_eq!(Names::of(gap).to_string(), "0, 1, 2, 3, 5, 6, 7, 8 and 4 more");
    let padded = (0..=20).map(|number| format!("n{number:02}"));
    assert_eq!(Names::of(padded).to_string(), "n00, n01, n02, n03, n04, n05, n06, n07 and 13 more");
    assert_eq!(Names::of((0..20).map(|_| "a".to_owned())).count(), 20);
}

#[test]
fn the_example_documents_are_what_the_types_say() {
    use rallypoint_api::{Run, RunList, WaitList};
    let read = |name: &str| {
        let path = format!("{}/../../tests/data/insight/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).expect("an example")
    };
    let list: RunList = serde_json::from_str(&read("runs.json")).expect("a list of runs");
    let codes = list.runs.iter().filter_map(|run| run.explanation.as_ref()).map(|said| said.code.as_str());
    assert!(
        codes.clone().count() > 0 && codes.clone().all(|code| RULES.iter().any(|rule| rule.code == code))
    );
    serde_json::from_str::<WaitList>(&read("waits.json")).expect("a list of waits");
    for name in ["run_4_nodes_one_missing.json", "run_static_rank_missing.json", "run_64_nodes.json"] {
        let text = read(name);
        let run: Run = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let again: serde_json::Value = serde_json::to_value(&run).expect("JSON");
        assert_eq!(again, serde_json::from_str::<serde_json::Value>(&text).expect("JSON"), "{name}");
    }
}

/// Whether the missing one is known or not.
#[test]
fn the_headline_of_64_nodes_with_one_missing_is_short() {
    const COLUMNS: usize = 110;
    for missing in [None, Some("train-llm-63")] {
        let mut lab = Lab::expecting(64, 64);
        lab.scene.is_free();
        if let Some(missing) = missing {
            let names = vec![missing.into()];
            lab.insight.expect("train-llm", Expectation { min: 64, max: 64, names });
        }
        lab.join("train-llm", 0..63);
        lab.pass(40.0);
        let said = lab.texts("nodes_missing");
        let line = format!("warning: {}", said.first().expect("one is missing"));
        assert!(
            line.len() <= COLUMNS && line.contains(missing.unwrap_or("63 of 64 nodes have joined")),
            "{line}"
        );
    }
}

#[test]
fn a_row_names_its_run() {
    let id = || RunId::new(b"train/\xff");
    let store = |id| RunKey::Store { port: 29500, id };
    for key in [RunKey::Id(id()), store(Some(id())), store(Some(RunId::new(b""))), store(None)] {
        assert_eq!(run_of(&row_id(&key)), Some(key));
    }
    assert_eq!(run_of(b"zxx"), None);
    assert_eq!(run_of(b"n"), None);
}

//! Results of `doctor` as SARIF 2.1.0, the format of code scanning.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use rallypoint_doctor::{Check, Verdict};

/// A report of one run. `files` are the names and texts of the files that were checked.
pub(super) fn report(checks: &[Check], files: &[(String, String)]) -> Value {
    let found = checks.iter().filter(|check| check.verdict != Verdict::Pass);
    let rules: BTreeSet<&str> = found.clone().map(|check| check.id).collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "rallypoint doctor",
                "version": env!("CARGO_PKG_VERSION"),
                "informationUri": env!("CARGO_PKG_REPOSITORY"),
                "rules": rules.iter().map(|id| json!({"id": id})).collect::<Vec<_>>(),
            }},
            "results": found.map(|check| result(check, files)).collect::<Vec<_>>(),
        }],
    })
}

fn result(check: &Check, files: &[(String, String)]) -> Value {
    let level = if check.verdict == Verdict::Fail { "error" } else { "warning" };
    let remedy = check.remedy.as_ref().map_or(String::new(), |remedy| format!("\n{remedy}"));
    // Code scanning refuses a result without a place. What is said of all files stands in the first one.
    let (file, object, field) = match &check.place {
        Some(place) => (place.file.as_str(), place.object.as_str(), place.field.as_str()),
        None => (files.first().map_or("-", |(name, _)| name.as_str()), "-", "-"),
    };
    json!({
        "ruleId": check.id,
        "level": level,
        "message": {"text": format!("{}{remedy}", check.evidence)},
        "locations": [{
            "physicalLocation": {
                "artifactLocation": {"uri": file},
                "region": {"startLine": line_of(object, file, files)},
            },
            "logicalLocations": [{"fullyQualifiedName": format!("{object} {field}")}],
        }],
    })
}

/// The line with the name of the object `KIND/NAME`, or 1.
fn line_of(object: &str, file: &str, files: &[(String, String)]) -> usize {
    let text = files.iter().find(|(name, _)| name == file).map_or("", |(_, text)| text);
    let name = object.rsplit('/').next().unwrap_or_default();
    let names = |line: &str| {
        line.split_once("name:").is_some_and(|(_, rest)| {
            rest.trim_start().trim_start_matches(['"', '\'']).strip_prefix(name).is_some_and(|rest| {
                !rest.starts_with(|next: char| next.is_alphanumeric() || "-.".contains(next))
            })
        })
    };
    text.lines().position(names).map_or(1, |line| line.saturating_add(1))
}

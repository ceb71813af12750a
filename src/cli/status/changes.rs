//! The changes between two looks, one line each: `--watch` without a terminal.

use std::collections::{HashMap, HashSet};

use super::render::{self, GONE, time_of_day};
use super::text_writer::clean;
use super::{Look, RunKey};
use rallypoint_api::{Explanation, NodeCounts, RunList, RunState, RunSummary, Severity};
use rallypoint_protocol::ids::counted;

/// The lines for the differences between `before` and `after`. The first look shows everything.
pub(super) fn lines(before: Option<&Look>, after: &Look) -> Vec<String> {
    let empty = Vec::new();
    let old = before.map_or(empty, summaries);
    let new = summaries(after);
    let mut said = Vec::new();

    let known: HashMap<RunKey, &RunSummary> = old.iter().map(|run| (RunKey::of(run), *run)).collect();
    for run in &new {
        let words = standing(run);
        if known.get(&RunKey::of(run)).is_none_or(|old| standing(old) != words) {
            said.push(format!("{}: {words}", render::name(run)));
        }
    }
    let there: HashSet<RunKey> = new.iter().map(|run| RunKey::of(run)).collect();
    for run in old.iter().filter(|run| !there.contains(&RunKey::of(run))) {
        said.push(format!("{}: no longer shown", render::name(run)));
    }

    let told: HashMap<u64, bool> =
        before.map(explanations).into_iter().flatten().map(|e| (e.id, e.holds)).collect();
    for explanation in explanations(after) {
        match (told.get(&explanation.id), explanation.holds) {
            (None, _) => said.push(sentence(explanation)),
            (Some(true), false) => said.push(format!("over: {}", clean(&explanation.text))),
            _ => {}
        }
    }
    let at = time_of_day(after.now());
    said.into_iter().map(|line| format!("{at} {line}")).collect()
}

fn summaries(look: &Look) -> Vec<&RunSummary> {
    match look {
        Look::All(RunList { runs, .. }, _) => runs.iter().collect(),
        Look::One(run) => vec![&run.summary],
    }
}

/// Every shown explanation, each one once.
fn explanations(look: &Look) -> Vec<&Explanation> {
    let mut all: Vec<&Explanation> = match look {
        Look::All(list, details) => {
            let of_runs = list.runs.iter().flat_map(|run| match details.get(&RunKey::of(run)) {
                Some(whole) => whole.explanations.as_slice(),
                None => run.explanation.as_slice(),
            });
            of_runs.chain(&list.explanations).collect()
        }
        Look::One(run) => run.explanations.iter().collect(),
    };
    let mut seen = HashSet::new();
    all.retain(|explanation| seen.insert(explanation.id));
    all
}

/// The state of a run, without parts that change as time passes.
fn standing(run: &RunSummary) -> String {
    let mut parts = vec![word(run.state).to_owned()];
    if run.nodes.joined > 0 || run.nodes.expected.is_some() {
        parts.push(render::nodes(run));
    }
    let NodeCounts { gone, waiting, earlier, .. } = run.nodes;
    for (n, what) in [(gone, "gone"), (waiting, "waiting"), (earlier, "not joined again")] {
        if n > 0 {
            parts.push(format!("{} {what}", counted(n, "node", "nodes")));
        }
    }
    if let Some(ranks) = &run.ranks {
        let of = ranks.expected.map_or_else(|| "?".into(), |n| n.to_string());
        let gone = if ranks.gone > 0 { format!(" ({} {GONE})", ranks.gone) } else { String::new() };
        parts.push(format!("{}/{of} ranks{gone}", ranks.joined));
    }
    if let Some(exit) = &run.exit {
        let of = exit.expected.map_or_else(|| "?".into(), |n| n.to_string());
        parts.push(format!("{}/{of} nodes finished", exit.arrived));
    }
    parts.join(", ")
}

fn word(state: RunState) -> &'static str {
    match state {
        RunState::LastCall => "last call",
        other => other.name(),
    }
}

fn sentence(explanation: &Explanation) -> String {
    let word = match explanation.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Info => "note",
    };
    let remedy = clean(&explanation.remedy);
    let remedy = if remedy.is_empty() { remedy } else { format!("; remedy: {remedy}") };
    format!("{word}: {}{remedy}", clean(&explanation.text))
}

#[cfg(test)]
mod tests;

//! The line for files in which no other check found anything.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "manifests",
    sees: "PASS: no known mistake in so many pod templates",
    examples: ["good-job-static.yaml", "sleep.yaml"],
    find: Find::After(find),
};

fn find(manifests: &Manifests, found: &[Check]) -> Vec<Check> {
    if manifests.pods.is_empty() || found.iter().any(|check| check.verdict != Verdict::Pass) {
        return Vec::new();
    }
    let training = manifests.pods.iter().filter(|pods| pods.train()).count();
    let what = match training {
        0 => "none of which launches a training as doctor knows it: what they run was not looked at".into(),
        _ => format!(
            "of which {training} launch a distributed training; what the programs themselves do was not \
             looked at"
        ),
    };
    let is_unread = manifests.calls().any(|call| call.launch.is_configured);
    let but = if is_unread { ", nor its launcher's configuration, which is not in these files" } else { "" };
    vec![Check::pass(format!("no known mistake in {} pod templates, {what}{but}", manifests.pods.len()))]
}

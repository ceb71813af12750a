//! Releases of PyTorch differ in the keys and messages of a rendezvous.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "torch-versions",
    sees: "FAIL, WARN: pods with different releases of PyTorch",
    remedy: "one image",
    find: Find::Server(|facts| find(facts).filter(|_| facts.unreachable.is_none())),
};

fn find(facts: &ServerFacts) -> Option<Check> {
    let versions = &facts.torch_versions;
    let line = |version: &str| version.split('.').take(2).map(str::to_owned).collect::<Vec<_>>();
    let first = versions.keys().next()?;
    if versions.len() == 1 {
        return Some(Check::pass(format!("every announced pod has PyTorch {first}")));
    }
    let shown: Vec<String> =
        versions.iter().map(|(version, pods)| format!("{version} ({})", pods.join(", "))).collect();
    let evidence = format!("the announced pods have different PyTorch: {}", shown.join(", "));
    let remedy = "use one image for all pods, by its digest";
    Some(if versions.keys().all(|version| line(version) == line(first)) {
        Check::warn(evidence, remedy)
    } else {
        Check::fail(evidence, remedy)
    })
}

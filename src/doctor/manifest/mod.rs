//! Mistakes in Kubernetes manifests that make training jobs hang, found before they are applied. Offline: it knows what
//! stands in the files, and says so where another file could hold the rest.
//!
//! | module | what it is for |
//! |---|---|
//! | `objects` | files to objects, and the pods that each of them makes |
//! | `containers` | a container's variables and commands |
//! | `services` | names: Services, selectors, subdomains, NetworkPolicies |
//! | `workloads` | how Jobs and StatefulSets make pods, sidecars |
//! | `commands` | what is wrong in a container |

mod commands;
mod containers;
mod objects;
mod services;
mod workloads;

use super::{Check, Verdict};
use objects::Manifests;

/// Where in the manifests something is.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Place {
    /// The file.
    pub file: String,
    /// `Kind/name`.
    pub object: String,
    /// The field, as `kubectl explain` takes it.
    pub field: String,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} {}", self.file, self.object, self.field)
    }
}

/// Checks all files of a job together: their names and texts.
pub fn check_manifests(files: &[(String, String)]) -> Vec<Check> {
    let mut checks = Vec::new();
    let manifests = Manifests::read(files, &mut checks);
    for pods in &manifests.pods {
        workloads::check(pods, &mut checks);
        commands::check(pods, &mut checks);
        services::check_names(pods, &manifests, &mut checks);
    }
    services::check_services(&manifests, &mut checks);
    services::check_network_policies(&manifests, &mut checks);
    if manifests.pods.is_empty() {
        checks.push(Check::warn(
            "pods",
            "no object in these files makes pods",
            "give all files of the job together",
        ));
    } else if checks.iter().all(|check| check.verdict == Verdict::Pass) {
        let count = manifests.pods.len();
        checks.push(Check::pass("manifests", format!("{count} pod templates without a known mistake")));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_manifests_are_said_to_be_none() {
        let check = |text: &str| check_manifests(&[("f.yaml".into(), text.into())]);
        let ids = |text: &str| check(text).iter().map(|check| (check.id, check.verdict)).collect::<Vec<_>>();
        assert_eq!(ids("a: [1"), [("yaml", Verdict::Fail), ("pods", Verdict::Warn)]);
        assert_eq!(ids("just text")[0], ("yaml", Verdict::Fail));
        assert_eq!(ids(""), [("pods", Verdict::Warn)]);
        assert_eq!(ids("# only a comment\n---\n---\n"), [("pods", Verdict::Warn)]);
        let skipped = check("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n");
        assert!(
            skipped[0].to_string().contains("ConfigMap/x") && skipped[0].verdict == Verdict::Pass,
            "{skipped:?}"
        );
    }

    #[test]
    fn odd_shapes_do_not_make_it_panic() {
        for text in [
            "kind: Job\nspec: 3",
            "kind: Job\nmetadata: []\nspec: {template: {spec: {containers: {a: 1}}}}",
            "kind: List\nitems: {a: b}",
            "kind: Service\nspec: {selector: [1], ports: x}",
            "kind: NetworkPolicy\nspec: {podSelector: 1, ingress: [3, {ports: 1}]}",
            "kind: Pod\nspec: {containers: [{command: torchrun, args: [1, {a: b}], env: [{name: 3}, 4]}]}",
            "kind: JobSet\nspec: {replicatedJobs: [{template: 1}]}",
        ] {
            check_manifests(&[("f".into(), text.into())]);
        }
    }
}

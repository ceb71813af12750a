//! Ranks connect to each other on ports that are not known beforehand. If a policy closes them, the
//! rendezvous completes, and the first collective call hangs.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "network-policy-ports",
    sees: "FAIL: a NetworkPolicy opens port 29500 only; gloo and NCCL use others",
    examples: ["network-policy-ports.yaml", "good-network-policy.yaml"],
    find: Find::Files(find),
};

fn find(manifests: &Manifests) -> Vec<Check> {
    let mut checks = Vec::new();
    for policy in manifests.of_kind("NetworkPolicy") {
        let chosen = |pods: &&Pods| {
            let total = manifests.nodes(pods).unwrap_or(1);
            total > 1
                && pods.train()
                && policy.shares_namespace(pods.namespace.as_deref())
                && is_selected(policy.value.pointer("/spec/podSelector"), pods)
        };
        let Some(pods) = manifests.pods.iter().find(chosen) else { continue };
        let types = list(&policy.value, "/spec/policyTypes");
        for (kind, field, peers_at) in [("Ingress", "ingress", "/from"), ("Egress", "egress", "/to")] {
            let named = types.iter().any(|name| name == kind);
            let implied =
                types.is_empty() && (kind == "Ingress" || policy.value.pointer("/spec/egress").is_some());
            let rules = list(&policy.value, &format!("/spec/{field}"));
            // Other policies may open more. Only policies in these files are visible, and each is checked by
            // itself.
            let opens_all = rules.iter().any(|rule| {
                let peers = list(rule, peers_at);
                let own = peers.is_empty()
                    || peers.iter().any(|peer| {
                        let of_namespace = peer.get("namespaceSelector").is_some();
                        peer.get("ipBlock").is_some_and(|block| {
                            block.get("cidr").and_then(Value::as_str) == Some("0.0.0.0/0")
                        }) || (peer.get("podSelector").is_some() || of_namespace)
                            && is_selected(peer.get("podSelector"), pods)
                    });
                let ports = list(rule, "/ports");
                let wide = ports.iter().any(|port| {
                    let number = |field: &str| port.get(field).and_then(Value::as_u64);
                    port.get("port").is_none()
                        || number("port").unwrap_or(u64::MAX) <= 1024
                            && number("endPort").unwrap_or(0) >= 60_000
                });
                own && (ports.is_empty() || wide)
            });
            if (named || implied) && !opens_all {
                let (object, direction) = (&pods.place.object, peers_at.trim_start_matches('/'));
                let evidence = format!(
                    "the pods of {object} may not connect to each other on every port: torchrun's second \
                     store, gloo and NCCL use ports of their own choice"
                );
                let remedy = format!(
                    "a rule without ports for the same pods: {field}: [{{{direction}: [{{podSelector: \
                     {{matchLabels: …}}}}]}}]"
                );
                checks.push(Check::fail(evidence, remedy).at(policy.place(&format!("spec.{field}"))));
            }
        }
    }
    checks
}

//! A pod that resolves names as its node does knows no Service and no pod: the endpoint's name never
//! resolves.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "dns-policy",
    sees: "FAIL: `hostNetwork` without `dnsPolicy: ClusterFirstWithHostNet`, or `dnsPolicy: Default`, and \
           the endpoint is a name of the cluster",
    examples: ["third-fn04-hostnetwork-jobset.yaml", "good-jobset-static.yaml"],
    find: Find::Launch(Tool::ALL, find),
};

fn find(call: &Call<'_>) -> Option<Check> {
    let (told, target) = call.meeting()?;
    let policy = call.pods.spec.get("dnsPolicy").and_then(Value::as_str).unwrap_or("ClusterFirst");
    let (seen, remedy) = match (call.pods.on_host(), policy) {
        (true, "ClusterFirst" | "Default") => {
            ("hostNetwork without dnsPolicy: ClusterFirstWithHostNet", "dnsPolicy: ClusterFirstWithHostNet")
        }
        (false, "Default") => ("dnsPolicy: Default", "dnsPolicy: ClusterFirst"),
        _ => return None,
    };
    let own_servers = call.pods.spec.pointer("/dnsConfig/nameservers").is_some();
    let of_cluster = matches!(target, Target::Pod { .. } | Target::Service(_))
        || told.text.literal().is_some_and(|host| host.split('.').any(|label| label == "svc"));
    (of_cluster && !own_servers).then(|| {
        let evidence = format!(
            "{seen}: the pods resolve names as their nodes do, and `{}` ({}) is a name of the cluster",
            told.text, told.by
        );
        Check::fail(evidence, remedy).at(call.pods.at("dnsPolicy"))
    })
}

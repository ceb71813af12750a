//! A pod that resolves names as its node does knows no Service and no pod: the endpoint's name never
//! resolves.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "dns-policy",
    sees: "FAIL: `hostNetwork` without `dnsPolicy: ClusterFirstWithHostNet`, or `dnsPolicy: Default`, and a \
           name of the cluster as endpoint, or in a command or `env`",
    examples: ["third-fn04-hostnetwork-jobset.yaml", "good-jobset-static.yaml"],
    find: Find::Files(|manifests| {
        let pods = manifests.pods.iter().filter(|pods| !pods.are_tasks());
        pods.filter_map(|pods| find(manifests, pods)).collect()
    }),
};

fn find(manifests: &Manifests, pods: &Pods) -> Option<Check> {
    let policy = pods.spec.get("dnsPolicy").and_then(Value::as_str).unwrap_or("ClusterFirst");
    let (seen, remedy) = match (pods.on_host(), policy) {
        (true, "ClusterFirst" | "Default") => {
            ("hostNetwork without dnsPolicy: ClusterFirstWithHostNet", "dnsPolicy: ClusterFirstWithHostNet")
        }
        (false, "Default") => ("dnsPolicy: Default", "dnsPolicy: ClusterFirst"),
        _ => return None,
    };
    let own_servers = pods.spec.pointer("/dnsConfig/nameservers").is_some();
    let mut calls = manifests.calls().filter(|call| std::ptr::eq(call.pods, pods));
    let name = calls.find_map(|call| of_cluster(&call)).or_else(|| written(pods)).filter(|_| !own_servers)?;
    let evidence =
        format!("{seen}: the pods resolve names as their nodes do, and {name} is a name of the cluster");
    Some(Check::fail(evidence, remedy).at(pods.at("dnsPolicy")))
}

fn of_cluster(call: &Call<'_>) -> Option<String> {
    let (told, target) = call.meeting()?;
    let is_it = matches!(target, Target::Pod { .. } | Target::Service(_))
        || told.text.literal().is_some_and(|host| host.split('.').any(|label| label == "svc"));
    is_it.then(|| format!("`{}` ({})", told.text, told.by))
}

/// A whole name of the cluster in the commands of a container, or in its variables.
fn written(pods: &Pods) -> Option<String> {
    const END: &str = ".svc.cluster.local";
    let of_commands = pods.containers.iter().flat_map(|it| &it.commands).flat_map(|command| &command.words);
    let of_env = pods
        .containers
        .iter()
        .flat_map(|it| it.own.iter().filter_map(|name| it.variables.get(name)).flatten());
    let mut texts = of_commands.chain(of_env).map(ToString::to_string);
    let is_part = |c: char| !c.is_whitespace() && !matches!(c, '/' | '"' | '\'' | ',' | '@' | '=');
    texts.find_map(|text| {
        let begin = text.split(END).next().filter(|begin| begin.len() < text.len())?;
        let at = begin.rfind(|c| !is_part(c)).map_or(0, |at| at.saturating_add(1));
        // `.svc.cluster.local` is a domain of NO_PROXY, and the API server's name stands in certificates.
        let name = begin.get(at..).filter(|it| it.contains('.') && *it != "kubernetes.default")?;
        Some(format!("`{name}{END}`"))
    })
}

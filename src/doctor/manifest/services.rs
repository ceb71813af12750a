//! Names: what the endpoint means, whether pods can be found by name, and which ports are open between them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::super::Check;
use super::commands::is_c10d;
use super::containers::Container;
use super::objects::{Maker, Manifests, Object, Pods, list, texts};

/// Labels that make a selector mean one pod.
const OF_ONE_POD: [&str; 3] = [
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/job-completion-index",
];

fn selector(service: &Object) -> BTreeMap<String, String> {
    texts(service.value.pointer("/spec/selector"))
}

fn is_headless(service: &Object) -> bool {
    service.value.pointer("/spec/clusterIP").and_then(Value::as_str) == Some("None")
}

fn is_of_one_pod(selector: &BTreeMap<String, String>) -> bool {
    OF_ONE_POD.iter().any(|label| selector.contains_key(*label))
}

/// Whether a selector takes these pods. Labels that controllers add to single pods are left out of it.
fn takes(selector: &BTreeMap<String, String>, pods: &Pods) -> bool {
    let given = |label: &str| OF_ONE_POD.contains(&label) || label == "job-name" && pods.labels.is_empty();
    !selector.is_empty()
        && selector.iter().all(|(label, value)| given(label) || pods.labels.get(label) == Some(value))
}

/// The host names that a container is told to meet at.
fn hosts(container: &Container) -> Vec<String> {
    let flag =
        |name: &str| container.torchrun.as_ref().and_then(|torchrun| torchrun.flag(name)).map(str::to_owned);
    let said = [
        flag("rdzv-endpoint"),
        flag("master-addr"),
        container.value_of("PET_RDZV_ENDPOINT").map(str::to_owned),
        container.value_of("PET_MASTER_ADDR").map(str::to_owned),
        container.value_of("MASTER_ADDR").map(str::to_owned),
        container.value_of("RALLYPOINT_ENDPOINT").map(str::to_owned),
    ];
    let mut hosts: Vec<String> = said
        .into_iter()
        .flatten()
        .map(|text| container.filled(&text).split(':').next().unwrap_or_default().to_owned())
        .filter(|host| !host.is_empty() && !host.contains('$'))
        .collect();
    hosts.sort();
    hosts.dedup();
    hosts
}

/// Whether the host name is the Service itself, and not a pod behind it.
fn means(host: &str, service: &Object) -> bool {
    let rest = host.strip_prefix(service.name.as_str());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Checks what the pods of one template are told, and how they are named.
pub(super) fn check_names(pods: &Pods, manifests: &Manifests, checks: &mut Vec<Check>) {
    for container in pods.containers.iter().filter(|container| container.trains()) {
        for host in hosts(container) {
            for service in manifests.of_kind("Service").filter(|service| means(&host, service)) {
                checks.extend(endpoint_selects_all(pods, container, service));
            }
        }
        checks.extend(service_link(pods, container, manifests));
    }
    checks.extend(subdomain(pods, manifests));
}

fn endpoint_selects_all(pods: &Pods, container: &Container, service: &Object) -> Option<Check> {
    let selector = selector(service);
    if !takes(&selector, pods) || !pods.are_several() || is_of_one_pod(&selector) {
        return None;
    }
    let (name, object) = (&service.name, &pods.place.object);
    let evidence = if is_headless(service) {
        format!(
            "the endpoint `{name}` is a headless Service over all pods of {object}: each finds its own address behind the \
             name and hosts a store of its own; with --nnodes=1:N each trains alone, and all exit 0"
        )
    } else {
        format!(
            "the endpoint `{name}` is a Service over all pods of {object}: each connection goes to another pod"
        )
    };
    let pod = match pods.subdomain() {
        Some(subdomain) => format!("{}-0.{subdomain}", object.split('/').nth(1).unwrap_or_default()),
        None => "pod 0 by name (spec.subdomain)".into(),
    };
    let remedy =
        format!("name {pod}, or a Service of a rallypoint server alone, and use --rdzv-conf=is_host=0");
    Some(
        Check::fail("endpoint-selects-all", evidence, remedy)
            .at(pods.at(&format!("{}.command", container.field))),
    )
}

/// A Service `master` puts `MASTER_PORT=tcp://…` into every pod.
fn service_link(pods: &Pods, container: &Container, manifests: &Manifests) -> Option<Check> {
    let service = manifests
        .of_kind("Service")
        .find(|service| matches!(service.name.as_str(), "master" | "pet-master") && !is_headless(service))?;
    let variable = format!("{}_PORT", service.name.to_uppercase().replace('-', "_"));
    let off = pods.spec.get("enableServiceLinks") == Some(&Value::Bool(false));
    let own = container.env.iter().any(|(name, _)| *name == variable);
    (!off && !own).then(|| {
        let evidence =
            format!("the Service `{}` makes Kubernetes set {variable}=tcp://… in every pod", service.name);
        let check = Check::fail(
            "service-link",
            evidence,
            "enableServiceLinks: false, or another name for the Service",
        );
        check.at(pods.at("enableServiceLinks"))
    })
}

/// With c10d the workers get the host name of a pod, which the others must be able to resolve.
fn subdomain(pods: &Pods, manifests: &Manifests) -> Option<Check> {
    const ID: &str = "no-subdomain";
    if !pods.are_several() || pods.maker == Maker::Operator {
        return None;
    }
    let c10d = pods.containers.iter().find(|container| is_c10d(container));
    let told = |container: &Container| {
        let by_flag = container.torchrun.as_ref().is_some_and(|torchrun| torchrun.has("local-addr"));
        let has = |name: &str| container.env.iter().any(|(known, _)| known == name);
        by_flag || has("PET_LOCAL_ADDR") || container.is_run() && has("POD_IP")
    };
    let Some(subdomain) = pods.subdomain() else {
        return c10d.filter(|container| !told(container)).map(|_| {
            let check = Check::fail(
                ID,
                "with c10d the workers' MASTER_ADDR is the bare host name of another pod: the rendezvous completes, then \
                 every rank hangs",
                "spec.subdomain naming a headless Service over the pods, or --local-addr=$(POD_IP)",
            );
            check.at(pods.at("subdomain"))
        });
    };
    let Some(service) = manifests.of_kind("Service").find(|service| service.name == subdomain) else {
        let evidence = format!(
            "the subdomain `{subdomain}` needs a headless Service of that name; it is not in these files"
        );
        let remedy = "a Service with clusterIP: None, publishNotReadyAddresses: true, and the pods' labels as selector";
        return Some(Check::warn(ID, evidence, remedy).at(pods.at("subdomain")));
    };
    let place = |field: &str| service.place(field);
    if !is_headless(service) {
        let evidence = format!("the Service `{subdomain}` is not headless, so the pods get no names");
        return Some(Check::fail(ID, evidence, "clusterIP: None").at(place("spec.clusterIP")));
    }
    if service.value.pointer("/spec/publishNotReadyAddresses") != Some(&Value::Bool(true)) {
        let evidence =
            "pods that are not Ready have no name yet, and they are not Ready while they wait for each other";
        let check = Check::warn("not-ready-addresses", evidence, "publishNotReadyAddresses: true");
        return Some(check.at(place("spec.publishNotReadyAddresses")));
    }
    None
}

/// Services that take no pod at all.
pub(super) fn check_services(manifests: &Manifests, checks: &mut Vec<Check>) {
    for service in manifests.of_kind("Service") {
        let selector = selector(service);
        if selector.is_empty()
            || manifests.pods.is_empty()
            || manifests.pods.iter().any(|pods| takes(&selector, pods))
        {
            continue;
        }
        let shown: Vec<String> = selector.iter().map(|(label, value)| format!("{label}={value}")).collect();
        let uses = |pods: &Pods| {
            let told = pods
                .containers
                .iter()
                .flat_map(hosts)
                .any(|host| means(&host, service) || host.contains(&format!(".{}", service.name)));
            told || pods.subdomain() == Some(service.name.as_str())
        };
        let evidence =
            format!("no pod in these files has the labels {}: the name never resolves", shown.join(", "));
        let remedy = "make the selector equal to the pods' labels (spec.template.metadata.labels)";
        let check = if manifests.pods.iter().any(uses) {
            Check::fail("selector-matches-none", evidence, remedy)
        } else {
            Check::warn("selector-matches-none", evidence, remedy)
        };
        checks.push(check.at(service.place("spec.selector")));
    }
}

/// Ranks connect to each other on ports that nobody knows beforehand.
pub(super) fn check_network_policies(manifests: &Manifests, checks: &mut Vec<Check>) {
    for policy in manifests.of_kind("NetworkPolicy") {
        let selector = texts(policy.value.pointer("/spec/podSelector/matchLabels"));
        let chosen = |pods: &&Pods| selector.is_empty() || takes(&selector, pods);
        let Some(pods) = manifests.pods.iter().filter(|pods| pods.train() && pods.are_several()).find(chosen)
        else {
            continue;
        };
        let types = list(&policy.value, "/spec/policyTypes");
        let for_ingress = types.is_empty() || types.iter().any(|name| name == "Ingress");
        let rules = list(&policy.value, "/spec/ingress");
        let opens_all = rules.iter().any(|rule| {
            let peers = list(rule, "/from");
            let from_pods = peers.is_empty()
                || peers
                    .iter()
                    .any(|peer| takes_peer(&texts(peer.pointer("/podSelector/matchLabels")), peer, pods));
            from_pods && list(rule, "/ports").is_empty()
        });
        if for_ingress && !opens_all {
            let check = Check::fail(
                "network-policy-ports",
                format!(
                    "the pods of {} may not connect to each other on every port: torchrun's second store, gloo and NCCL \
                         use ports of their own choice",
                    pods.place.object
                ),
                "a rule without ports from the same pods: ingress: [{from: [{podSelector: {matchLabels: …}}]}]",
            );
            checks.push(check.at(policy.place("spec.ingress")));
        }
    }
}

fn takes_peer(labels: &BTreeMap<String, String>, peer: &Value, pods: &Pods) -> bool {
    let any_pod = peer.get("podSelector").is_some() && labels.is_empty();
    any_pod || takes(labels, pods)
}

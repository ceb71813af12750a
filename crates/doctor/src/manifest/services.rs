//! Checks Services: selectors, subdomains, links, and the ports that are open between pods.

use serde_json::Value;

use super::super::Check;
use super::Manifests;
use super::commands::is_c10d;
use super::container::Container;
use super::names::{Taken, is_headless, is_selected, selector, takes};
use super::objects::list;
use super::pods::Pods;
use rallypoint_node::makers::Maker;

/// Checks the names of the pods of one template.
pub(crate) fn check_names(pods: &Pods, manifests: &Manifests, checks: &mut Vec<Check>) {
    for container in pods.containers.iter().filter(|container| container.trains()) {
        checks.extend(service_link(pods, container, manifests));
    }
    checks.extend(subdomain(pods, manifests));
}

/// A Service `master` sets `MASTER_PORT=tcp://…` in every pod.
fn service_link(pods: &Pods, container: &Container, manifests: &Manifests) -> Option<Check> {
    let service = manifests
        .of_kind("Service")
        .filter(|service| service.shares_namespace(pods.namespace.as_deref()))
        .find(|service| matches!(service.name.as_str(), "master" | "pet-master") && !is_headless(service))?;
    let variable = format!("{}_PORT", service.name.to_uppercase().replace('-', "_"));
    let off = pods.spec.get("enableServiceLinks") == Some(&Value::Bool(false));
    (!off && container.variable(&variable).is_none()).then(|| {
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

/// With c10d the workers get the host name of a pod, and the other pods must be able to resolve it.
fn subdomain(pods: &Pods, manifests: &Manifests) -> Option<Check> {
    const ID: &str = "no-subdomain";
    let by_maker = pods.facts().services.iter().any(|service| service.of_all && pods.has(service.when));
    let kubernetes =
        matches!(pods.maker, Maker::Job | Maker::IndexedJob | Maker::StatefulSet | Maker::Deployment);
    if !pods.are_several() || by_maker && pods.subdomain.is_some() || !kubernetes || !pods.train() {
        return None;
    }
    let meets = |container: &&Container| {
        is_c10d(container)
            && container.launches.iter().any(|launch| launch.most_nodes().is_some_and(|nodes| nodes > 1))
    };
    let told = |container: &Container| {
        let by_flag = container.launches.iter().any(|launch| launch.local_addr);
        let by_run = container.launches.iter().any(|launch| launch.by_rallypoint);
        by_flag || by_run && container.variable("POD_IP").is_some()
    };
    let Some(subdomain) = &pods.subdomain else {
        let lost = pods.containers.iter().find(meets).filter(|container| !told(container))?;
        let by_address = lost.launches.iter().any(|launch| {
            launch
                .host
                .as_ref()
                .is_some_and(|told| told.text.source() == Some(rallypoint_shell::Source::PodIp))
        });
        let on_host = pods.spec.get("hostNetwork") == Some(&Value::Bool(true));
        return (!by_address && !on_host).then(|| {
            let check = Check::fail(
                ID,
                "with c10d the workers' MASTER_ADDR is the bare host name of another pod: the rendezvous \
                 completes, then every rank hangs",
                "spec.subdomain naming a headless Service over the pods, or --local-addr=$(POD_IP)",
            );
            check.at(pods.at("subdomain"))
        });
    };
    let Some(service) = manifests
        .of_kind("Service")
        .find(|service| service.name == *subdomain && service.shares_namespace(pods.namespace.as_deref()))
    else {
        let evidence = format!(
            "the subdomain `{subdomain}` needs a headless Service of that name; it is not in these files"
        );
        let remedy = "a Service with clusterIP: None, publishNotReadyAddresses: true, and the pods' labels \
                      as selector";
        return Some(Check::warn(ID, evidence, remedy).at(pods.at("subdomain")));
    };
    if !is_headless(service) {
        let evidence = format!("the Service `{subdomain}` is not headless, so the pods get no names");
        return Some(Check::fail(ID, evidence, "clusterIP: None").at(service.place("spec.clusterIP")));
    }
    let probed = pods.containers.iter().any(|container| container.value.get("readinessProbe").is_some());
    if probed && service.value.pointer("/spec/publishNotReadyAddresses") != Some(&Value::Bool(true)) {
        let evidence = "with the readinessProbe a pod has no name before it is Ready, and it may not be \
                        Ready before it has met the others";
        let check = Check::warn("not-ready-addresses", evidence, "publishNotReadyAddresses: true");
        return Some(check.at(service.place("spec.publishNotReadyAddresses")));
    }
    None
}

/// Finds Services that the pods use, but that select no pod at all.
pub(crate) fn check_services(manifests: &Manifests, checks: &mut Vec<Check>) {
    let strange = manifests.pods.iter().any(|pods| pods.maker == Maker::Unknown);
    for service in manifests.of_kind("Service") {
        let selector = selector(service);
        let taken = manifests.pods.iter().any(|pods| takes(service, pods) != Taken::None);
        if selector.is_empty() || taken || strange {
            continue;
        }
        let name = &service.name;
        let uses = |pods: &&Pods| {
            let told = pods
                .containers
                .iter()
                .flat_map(|container| &container.launches)
                .filter_map(|launch| launch.host.as_ref())
                .map(|told| told.text.to_string())
                .any(|host| {
                    let mut labels = host.split('.');
                    labels.next() == Some(name) || labels.next() == Some(name)
                });
            pods.train() && (told || pods.subdomain.as_ref() == Some(name))
        };
        let Some(_) = manifests
            .pods
            .iter()
            .filter(|pods| service.shares_namespace(pods.namespace.as_deref()))
            .find(uses)
        else {
            continue;
        };
        // The selected pods may be in another file: a store, a server.
        let of_own = |pods: &Pods| {
            pods.subdomain.as_ref() == Some(name)
                || pods.labels.iter().any(|(key, value)| selector.get(key) == Some(value))
        };
        if !is_headless(service) && !manifests.pods.iter().any(of_own) {
            continue;
        }
        let shown: Vec<String> = selector.iter().map(|(label, value)| format!("{label}={value}")).collect();
        let evidence =
            format!("no pod in these files has the labels {}: the name never resolves", shown.join(", "));
        let remedy = "make the selector equal to the pods' labels (spec.template.metadata.labels)";
        let check = Check::fail("selector-matches-none", evidence, remedy);
        checks.push(check.at(service.place("spec.selector")));
    }
}

/// Ranks connect to each other on ports that are not known beforehand.
pub(crate) fn check_network_policies(manifests: &Manifests, checks: &mut Vec<Check>) {
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
                let direction = if kind == "Ingress" { "from" } else { "to" };
                let check = Check::fail(
                    "network-policy-ports",
                    format!(
                        "the pods of {} may not connect to each other on every port: torchrun's second \
                         store, gloo and NCCL use ports of their own choice",
                        pods.place.object
                    ),
                    format!(
                        "a rule without ports for the same pods: {field}: [{{{direction}: [{{podSelector: \
                         {{matchLabels: …}}}}]}}]"
                    ),
                );
                checks.push(check.at(policy.place(&format!("spec.{field}"))));
            }
        }
    }
}

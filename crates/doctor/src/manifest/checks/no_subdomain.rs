//! With c10d the workers get the host name of a pod as their `MASTER_ADDR`, and the other pods must be able
//! to resolve it. A pod has a name for others only behind a headless Service, which names only Ready pods if
//! nothing else is said, and a pod may not be Ready before it has met the others.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "no-subdomain",
    sees: "FAIL: c10d or etcd, and pods without names that others can resolve, or a Service of another \
           namespace. WARN: no headless Service in \
           these files, or a readinessProbe and a headless Service that names only Ready pods",
    examples: ["no-subdomain.yaml", "good-job-c10d.yaml"],
    find: Find::Pods(|manifests, pods| find(manifests, pods).into_iter().collect()),
};

fn find(manifests: &Manifests, pods: &Pods) -> Option<Check> {
    if !pods.need_own_service() {
        return None;
    }
    let Some(subdomain) = &pods.subdomain else { return without(pods) };
    match manifests.service(subdomain, pods) {
        None if manifests.of_kind("Service").any(|it| it.name == *subdomain) => {
            let evidence = format!("the Service `{subdomain}` is in another namespace than the pods");
            Some(Check::fail(evidence, "metadata.namespace, as the pods have it").at(pods.at("subdomain")))
        }
        None if manifests.is_beside(subdomain) => None,
        None => {
            let evidence = format!(
                "the subdomain `{subdomain}` needs a headless Service of that name; it is not in these files"
            );
            let remedy = "a Service with clusterIP: None, publishNotReadyAddresses: true, and the pods' \
                          labels as selector";
            Some(Check::warn(evidence, remedy).at(pods.at("subdomain")))
        }
        Some(service) if !is_headless(service) => {
            let evidence = format!("the Service `{subdomain}` is not headless, so the pods get no names");
            Some(Check::fail(evidence, "clusterIP: None").at(service.place("spec.clusterIP")))
        }
        Some(service) => {
            let published =
                service.value.pointer("/spec/publishNotReadyAddresses") == Some(&Value::Bool(true));
            (pods.are_probed() && !published).then(|| {
                let evidence = "with the readinessProbe a pod has no name before it is Ready, and it may \
                                not be Ready before it has met the others";
                let check = Check::warn(evidence, "publishNotReadyAddresses: true");
                check.at(service.place("spec.publishNotReadyAddresses"))
            })
        }
    }
}

fn without(pods: &Pods) -> Option<Check> {
    let meets = |container: &&Container| {
        let launches = &container.launches;
        launches.iter().any(Launch::has_a_leader)
            && launches.iter().any(|launch| launch.most_nodes().is_some_and(|nodes| nodes > 1))
    };
    let told = |container: &Container| {
        let by_flag = container.launches.iter().any(|launch| launch.local_addr);
        let by_run = container.launches.iter().any(|launch| launch.by_rallypoint);
        by_flag || by_run && container.variable("POD_IP").is_some()
    };
    let lost = pods.containers.iter().find(meets).filter(|container| !told(container))?;
    let is_address =
        |launch: &Launch| launch.host.as_ref().is_some_and(|told| told.text.source() == Some(Source::PodIp));
    (!lost.launches.iter().any(is_address) && !pods.on_host()).then(|| {
        let check = Check::fail(
            "c10d and etcd make the bare host name of a pod the workers' MASTER_ADDR: the rendezvous \
             completes, then every rank hangs",
            "spec.subdomain naming a headless Service over the pods, or --local-addr=$(POD_IP)",
        );
        check.at(pods.at("subdomain"))
    })
}

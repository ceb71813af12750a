//! An init container that waits for another pod's init containers to be done, while that pod waits here.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "init-waits",
    sees: "FAIL: an init container waits for a name or a port that is there only after it",
    examples: ["bad-init-waits-port.yaml", "good-init-waits-store.yaml"],
    find: Find::Pods(|manifests, pods| find(manifests, pods).into_iter().collect()),
};

fn find(manifests: &Manifests, pods: &Pods) -> Option<Check> {
    const ASK_NAME: [&str; 5] = ["nslookup", "getent", "dig", "host", "ping"];
    const ASK_PORT: [&str; 3] = ["nc", "ncat", "curl"];
    // The others may wait for the first.
    let are_others = pods.part_of.is_some() && pods.index > 0;
    if are_others || !pods.are_several() && pods.count != Some(1) {
        return None;
    }
    for (n, container) in pods.init_containers.iter().enumerate() {
        // A loop that only ends after some turns lets the pod go on.
        let has = |part: &str| container.argv.iter().any(|text| text.contains(part));
        if container.is_sidecar() || has("for ") && !has("exit 1") {
            continue;
        }
        let served_before = pods.init_containers[..n].iter().any(Container::serves);
        // A branch may exclude pod 0.
        for command in container.commands.iter().filter(|command| !command.conditional) {
            let program = command.words[0].literal().unwrap_or_default();
            let (asks_name, asks_port) = (ASK_NAME.contains(&program), ASK_PORT.contains(&program));
            if !asks_name && !asks_port {
                continue;
            }
            for word in &command.words[1..] {
                let host = word.split(':').swap_remove(0);
                let is_own =
                    |other: &Pods| other.object == pods.object && other.place.field == pods.place.field;
                let hides = |service: &&Object| is_headless(service) && !publishes_not_ready(service);
                let hidden = match resolve(&host, pods, manifests) {
                    Target::Pod { pods: other, .. } if is_own(other) => manifests
                        .of_kind("Service")
                        .find(|service| Some(&service.name) == other.subdomain.as_ref() && hides(service)),
                    Target::Service(service) if takes(service, pods) == Taken::All => {
                        let taken = |other: &&Pods| takes(service, other) != Taken::None;
                        if !manifests.pods.iter().filter(taken).all(is_own) {
                            continue;
                        }
                        Some(service).filter(hides)
                    }
                    _ => continue,
                };
                let place = pods.at(&container.at("command"));
                if let Some(service) = hidden.filter(|_| asks_name || !served_before) {
                    let name = &service.name;
                    let evidence = format!(
                        "it waits for the name `{host}`, which the Service `{name}` publishes only when that \
                         pod is Ready, and that pod waits here as well: for ever"
                    );
                    let remedy = "publishNotReadyAddresses: true in that Service";
                    return Some(Check::fail(evidence, remedy).at(place));
                }
                if asks_port && !served_before {
                    let evidence = format!(
                        "it waits for a port of `{host}`, but that pod has the same init container and opens \
                         no port before it is done: for ever"
                    );
                    let remedy = "take it out: torch itself waits for rank 0, or use `rallypoint wait` with \
                                  a rallypoint server";
                    return Some(Check::fail(evidence, remedy).at(place));
                }
            }
        }
    }
    None
}

fn publishes_not_ready(service: &Object) -> bool {
    service.value.pointer("/spec/publishNotReadyAddresses") == Some(&Value::Bool(true))
}

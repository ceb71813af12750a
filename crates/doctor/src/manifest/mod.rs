//! Finds mistakes in Kubernetes manifests that make training jobs hang, before the manifests are applied. It
//! works offline: it knows the contents of the files and the makers (`rallypoint_node::makers`). It says when
//! another file could hold a missing part. It reports every part that it cannot read.
//!
//! | module | what it is for |
//! |---|---|
//! | `objects` | files to documents and objects |
//! | `pods` | the pods that each object makes |
//! | `given` | the values of their variables and fields |
//! | `containers` | a container's variables and commands |
//! | `launches` | how a container launches a training |
//! | `names` | the meaning of a host name; selectors |
//! | `identity` | whether the pods can be told apart, and agree on how many they are |
//! | `runs` | the name of the run |
//! | `endpoint` | whether all pods meet at one place |
//! | `services` | Services, subdomains, NetworkPolicies |
//! | `workloads` | how Jobs and StatefulSets make pods, sidecars |
//! | `commands` | mistakes within one container |

mod commands;
mod container;
mod containers;
mod endpoint;
mod given;
mod identity;
mod launch;
mod launches;
mod names;
mod objects;
mod pods;
mod runs;
mod services;
mod workloads;

use super::{Check, Location, Verdict};
use container::Container;
use objects::Object;
use pods::Pods;
use rallypoint_node::makers::Maker;

/// Everything in the files.
struct Manifests {
    objects: Vec<Object>,
    pods: Vec<Pods>,
}

impl Manifests {
    fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Object> {
        self.objects.iter().filter(move |object| object.kind == kind)
    }

    /// The pods of this object that train.
    fn training(&self, object: usize) -> impl Iterator<Item = &Pods> {
        self.pods.iter().filter(move |pods| pods.object == object && pods.train())
    }

    /// How many pods have to meet: the training pods of the object, or the number that the maker counts.
    fn nodes(&self, pods: &Pods) -> Option<u64> {
        // The pods of a RayCluster are workers of Ray. They are no training by themselves.
        if pods.maker == Maker::Ray {
            return pods.count;
        }
        pods.nodes.max(self.training(pods.object).map(|own| own.count).sum())
    }
}

/// Checks all files of a job together. Each file is a name and a text.
pub fn check_manifests(files: &[(String, String)]) -> Vec<Check> {
    let mut checks = Vec::new();
    let objects = objects::read(files, &mut checks);
    let mut pods: Vec<Pods> =
        objects.iter().enumerate().flat_map(|(number, object)| pods::of(object, number)).collect();
    for pods in &mut pods {
        pods.containers = Container::all(pods, &objects, "containers");
        pods.init_containers = Container::all(pods, &objects, "initContainers");
    }
    let manifests = Manifests { objects, pods };
    not_looked_at(&manifests, files, &mut checks);
    for pods in &manifests.pods {
        workloads::check(pods, &mut checks);
        commands::check(pods, &mut checks);
        identity::check(pods, &manifests, &mut checks);
        runs::check(pods, &manifests, &mut checks);
        endpoint::check(pods, &manifests, &mut checks);
        services::check_names(pods, &manifests, &mut checks);
    }
    services::check_services(&manifests, &mut checks);
    services::check_network_policies(&manifests, &mut checks);
    let mut once = Vec::with_capacity(checks.len());
    for check in checks {
        if !once.contains(&check) {
            once.push(check);
        }
    }
    if once.iter().all(|check| check.verdict == Verdict::Pass) {
        let templates = manifests.pods.len();
        let training = manifests.pods.iter().filter(|pods| pods.train()).count();
        let evidence = format!(
            "no known mistake in {templates} pod templates, of which {training} launch a distributed \
             training; what the programs themselves do was not looked at"
        );
        once.push(Check::pass("manifests", evidence));
    }
    once
}

/// Reports objects that were not checked, or only in part.
fn not_looked_at(manifests: &Manifests, files: &[(String, String)], checks: &mut Vec<Check>) {
    for (number, object) in manifests.objects.iter().enumerate() {
        let mut own = manifests.pods.iter().filter(|pods| pods.object == number).peekable();
        let known = Maker::of_kind(&object.api, &object.kind) != Maker::Unknown;
        if own.peek().is_some_and(|pods| pods.maker == Maker::Unknown) {
            let check = Check::warn(
                "unknown-kind",
                format!("the kind {} is not known; only its pod templates were looked at", object.kind),
                "check by hand which variables, names and index it gives to its pods",
            );
            checks.push(check.at(object.place("kind")));
        } else if own.peek().is_none() && known {
            let check =
                Check::warn("pods", "no pod template was found in it", "see that its spec is complete");
            checks.push(check.at(object.place("spec")));
        } else if own.peek().is_none() && !matches!(object.kind.as_str(), "Service" | "NetworkPolicy") {
            let check = Check::pass("skipped", "a kind without pods or names; nothing to check");
            checks.push(check.at(object.place("kind")));
        }
    }
    for pods in &manifests.pods {
        for container in pods.containers.iter().filter(|container| !container.unread.is_empty()) {
            let plain =
                matches!(pods.maker, Maker::StatefulSet | Maker::Deployment | Maker::Pod | Maker::Unknown);
            let has = |field: &str| container.value.get(field).is_some();
            let is_server = (has("ports") || has("readinessProbe") || has("livenessProbe"))
                && container.gpus().is_none()
                && !container.own.iter().any(|name| name.starts_with("MASTER_"));
            let matters = container.trains() || pods.count != Some(1) && !(plain && is_server);
            if !matters {
                continue;
            }
            let check = Check::warn(
                "not-read",
                format!("a part of the command could not be read: {}", container.unread.join("; ")),
                "give the file that holds it (a ConfigMap) as well, or run `rallypoint doctor -- CMD` in the \
                 pod",
            );
            checks.push(check.at(pods.at(&container.at("command"))));
        }
    }
    for (file, _) in files {
        let said = checks.iter().any(|check| {
            check.verdict != Verdict::Pass && check.place.as_ref().is_some_and(|place| place.file == *file)
        });
        let understood = manifests.objects.iter().enumerate().any(|(number, object)| {
            let of_names = matches!(object.kind.as_str(), "Service" | "NetworkPolicy" | "ConfigMap");
            object.file == *file
                && (of_names && files.len() > 1 || manifests.pods.iter().any(|pods| pods.object == number))
        });
        let has_pods = !manifests.pods.is_empty();
        if !understood && !said && (files.len() == 1 || !has_pods) {
            let place = Location { file: file.clone(), object: "-".into(), field: "-".into() };
            let check = Check::warn(
                "pods",
                "no object in this file makes pods; there was nothing to check",
                "give all files of the job together",
            );
            checks.push(check.at(place));
        }
    }
}

#[cfg(test)]
mod tests;

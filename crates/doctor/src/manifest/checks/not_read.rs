//! A script that is not in these files may start the training in any way.

use super::prelude::*;

const ID: &str = "not-read";

pub(super) const RULE: Rule = Rule {
    id: ID,
    chapter: Chapter::Rest,
    sees: "WARN: a script that is not in these files",
    remedy: "give its ConfigMap; `rallypoint doctor -- CMD` in the pod",
    fails: "bad-job-unread.yaml",
    passes: "good-configmap-script.yaml",
    find: Find::Pods(find),
};

fn find(_: &Manifests, pods: &Pods) -> Vec<Check> {
    let plain = matches!(pods.maker, Maker::StatefulSet | Maker::Deployment | Maker::Pod | Maker::Unknown);
    let matters = |container: &&Container| {
        let has = |field: &str| container.value.get(field).is_some();
        let is_server = (has("ports") || has("readinessProbe") || has("livenessProbe"))
            && container.gpus().is_none()
            && !container.own.iter().any(|name| name.starts_with("MASTER_"));
        let unread = !container.unread.is_empty();
        unread && (container.trains() || pods.count != Some(1) && !(plain && is_server))
    };
    let check = |container: &Container| {
        let evidence = format!("a part of the command could not be read: {}", container.unread.join("; "));
        let remedy = "give the file that holds it (a ConfigMap) as well, or run `rallypoint doctor -- CMD` \
                      in the pod";
        Check::warn(ID, evidence, remedy).at(pods.at(&container.at("command")))
    };
    pods.containers.iter().filter(matters).map(check).collect()
}

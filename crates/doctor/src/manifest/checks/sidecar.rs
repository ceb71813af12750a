//! The server beside the training: as an ordinary container it keeps the Job from completing, as an ordinary
//! init container it keeps the training from starting. One in each pod is a store in each pod.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "sidecar",
    sees: "FAIL: the server as an ordinary container, or an init container without `restartPolicy: Always`. \
           WARN: every pod serves a store of its own, or no startupProbe",
    examples: ["sidecar-as-container.yaml", "good-indexed-job.yaml"],
    find: Find::Pods(find),
};

fn find(_: &Manifests, pods: &Pods) -> Vec<Check> {
    let ends = !matches!(
        pods.maker,
        Maker::StatefulSet | Maker::Deployment | Maker::Pod | Maker::Ray | Maker::Unknown
    );
    // Exporters of metrics serve for ever, too.
    let serves = |container: &&Container| {
        let image = container.value.get("image").and_then(Value::as_str).unwrap_or_default();
        container.serves() || basename(image).contains("-exporter") && pods.containers.len() > 1
    };
    let ordinary = pods.containers.iter().filter(|it| ends && serves(it)).map(|container| {
        let evidence = "as an ordinary container the server never ends, and the Job never completes";
        let remedy = "an init container with restartPolicy: Always";
        Check::fail(evidence, remedy).at(pods.at(&container.field))
    });
    let init = pods.init_containers.iter().filter(|container| container.serves());
    ordinary.chain(init.flat_map(|container| of_init(pods, container))).collect()
}

fn of_init(pods: &Pods, container: &Container) -> Vec<Check> {
    const PROBE: &str =
        "startupProbe: {httpGet: {path: /readyz, port: 29501}, periodSeconds: 1, failureThreshold: 60}";
    let is_told = container.argv.iter().any(|word| word.starts_with("--only-on-index"))
        || container.own.iter().any(|name| name == "RALLYPOINT_ONLY_ON_INDEX");
    let must_end = "as an ordinary init container the server must end before the training can start";
    let is_late = "without a startupProbe the training may start before the store is up";
    let in_each = Check::warn("every pod serves a store of its own", "serve --only-on-index=0");
    let lacks_probe = container.is_sidecar() && container.value.get("startupProbe").is_none();
    let all = [
        (!container.is_sidecar(), Check::fail(must_end, "restartPolicy: Always"), "restartPolicy"),
        (pods.are_several() && !is_told, in_each, "args"),
        (lacks_probe, Check::warn(is_late, PROBE), "startupProbe"),
    ];
    let found = all.into_iter().filter(|(is_found, ..)| *is_found);
    found.map(|(_, check, field)| check.at(pods.at(&container.at(field)))).collect()
}

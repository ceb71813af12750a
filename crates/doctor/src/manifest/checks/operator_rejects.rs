//! The API server, or the operator, rejects an object with a value that its kind cannot have.

use super::super::schemas;
use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "operator-rejects",
    sees: "FAIL: a PyTorchJob with two Masters, or without a container `pytorch`; two tasks of a Volcano job \
           with one name, or a `minAvailable` above their pods; a RayJob with `ttlSecondsAfterFinished` and \
           no `shutdownAfterJobFinishes`; a StatefulSet with `restartPolicy: OnFailure`, a Job without; \
           `fieldPath: metadata.labels.rank`; a Deployment whose selector is not for its pods; by the \
           published schemas: `env` that is no list, `value: 8` in it without quotes, a volume without a \
           name, `imagePullPolicy: always`",
    fails: "bad-pytorchjob-container-name.yaml",
    passes: "good-pytorchjob.yaml",
    find: Find::Files(|manifests| {
        let of_pods = |pods: &Pods| {
            let containers = pods.init_containers.iter().chain(&pods.containers);
            let paths: Vec<Check> = containers.filter_map(|own| field_path(pods, own)).collect();
            find(pods).into_iter().chain(paths)
        };
        let of_ray = manifests.of_kind("RayJob").filter_map(ray_job);
        let of_pods = manifests.pods.iter().flat_map(of_pods).chain(of_ray);
        of_pods.chain(schemas::rejected(manifests, false)).collect()
    }),
};

/// What `fieldRef` can read, beside labels and annotations by their keys.
#[rustfmt::skip]
const FIELDS: [&str; 9] = [
    "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
    "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
];

/// A field of the pod that there is not.
fn field_path(pods: &Pods, container: &Container) -> Option<Check> {
    let path = list(&container.value, "/env").iter().find_map(|item| {
        let path = item.pointer("/valueFrom/fieldRef/fieldPath")?.as_str()?;
        let is_key = path.starts_with("metadata.") && (path.contains("['") || path.contains("[\""));
        (!is_key && !FIELDS.contains(&path) && !is_placeholder(path)).then_some(path)
    })?;
    let evidence = format!("`{path}` is no field that a pod can read: the API server rejects the object");
    let remedy = "metadata.labels['KEY'], metadata.annotations['KEY'], or the value itself";
    Some(Check::fail(evidence, remedy).at(pods.at(&container.at("env"))))
}

/// KubeRay's own validation: it can end only a cluster that it shuts down.
fn ray_job(job: &Object) -> Option<Check> {
    let spec = job.value.get("spec")?;
    let ends = spec.get("shutdownAfterJobFinishes").is_some_and(|ends| *ends != Value::Bool(false));
    let is_late = spec.get("ttlSecondsAfterFinished").and_then(Value::as_u64).is_some_and(|ttl| ttl > 0);
    let is_suspended = spec.get("suspend") == Some(&Value::Bool(true));
    let field = match () {
        () if is_late => "ttlSecondsAfterFinished",
        () if is_suspended => "suspend",
        () => return None,
    };
    let evidence = format!("`{field}` without shutdownAfterJobFinishes: true: KubeRay refuses the RayJob");
    let check = Check::fail(evidence, "shutdownAfterJobFinishes: true");
    (!ends).then(|| check.at(job.place(&format!("spec.{field}"))))
}

fn find(pods: &Pods) -> Option<Check> {
    let twice = pods.roles.iter().filter(|role| **role == pods.role).count() > 1;
    if pods.maker == Maker::VolcanoJob && twice {
        let evidence = format!("two tasks are called `{}`; Volcano rejects the job", pods.role);
        return Some(Check::fail(evidence, "another name for each task").at(pods.at("")));
    }
    let replicas = |task: &Value| task.get("replicas").map_or(Some(1), Value::as_u64);
    let all: Option<u64> = list(&pods.owner, "/tasks").iter().map(replicas).sum();
    let least = pods.owner.get("minAvailable").and_then(Value::as_u64);
    if let (Some(least), Some(all)) = (least.filter(|_| pods.maker == Maker::VolcanoJob), all)
        && least > all
    {
        let evidence =
            format!("minAvailable: {least}, but the tasks have {all} pods; Volcano rejects the job");
        return Some(Check::fail(evidence, format!("minAvailable: {all}")).at(pods.of_owner("minAvailable")));
    }
    let selects = matches!(pods.maker, Maker::StatefulSet | Maker::Deployment) && !pods.is_open;
    if selects && !is_selected(pods.owner.get("selector"), pods) {
        let evidence = "the selector does not select the labels of the template: the API server rejects it";
        let remedy = "the labels of template.metadata.labels in selector.matchLabels";
        return Some(Check::fail(evidence, remedy).at(pods.of_owner("selector")));
    }
    let policy = pods.spec.get("restartPolicy").and_then(Value::as_str);
    let can_be = match pods.maker {
        Maker::StatefulSet | Maker::Deployment | Maker::LeaderWorkerSet => &["Always"][..],
        Maker::Job | Maker::IndexedJob => &["Never", "OnFailure"],
        // JobSet fills in what is missing.
        Maker::JobSet if policy.is_some() => &["Never", "OnFailure"],
        _ => &[],
    };
    let (is, said) = (policy.unwrap_or("Always"), if policy.is_none() { " (the default)" } else { "" });
    if !can_be.is_empty() && !can_be.contains(&is) && !is_placeholder(is) {
        let evidence =
            format!("restartPolicy: {is}{said}: the API server rejects it in a {}", pods.facts().name);
        let remedy = format!("restartPolicy: {}", can_be[0]);
        return Some(Check::fail(evidence, remedy).at(pods.at("restartPolicy")));
    }
    if pods.maker != Maker::PyTorchJob || !pods.train() {
        return None;
    }
    if pods.has(When::Master) && pods.role == "master" && pods.count.is_some_and(|count| count != 1) {
        let evidence = format!("{} Masters; the operator accepts one", pods.count.unwrap_or_default());
        let remedy = "replicas: 1 for the Master, the others as Worker";
        return Some(Check::fail(evidence, remedy).at(pods.at("")));
    }
    let is_named =
        |container: &Container| container.value.get("name").and_then(Value::as_str) == Some("pytorch");
    (!pods.containers.iter().any(is_named)).then(|| {
        let evidence = "no container is called `pytorch`; the operator refuses the job";
        Check::fail(evidence, "name: pytorch for the container that trains").at(pods.at("containers"))
    })
}

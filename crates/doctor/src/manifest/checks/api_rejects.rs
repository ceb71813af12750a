//! The API server, or the operator, refuses an object that cannot be: no pod is ever made.

use super::super::objects::parse;
use super::super::pods::is_patch;
use super::super::schemas;
use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "api-rejects",
    sees: "FAIL: a `volumeMount` whose volume is not there, two containers or volumes with one name, GPUs \
           in `requests` that `limits` do not have alike, more in `requests` than in `limits`, half a \
           GPU; a Service with several ports and no names for them; a label with a blank or a `/` in its \
           value; `apiVersion: v1` of a Job or RayCluster; an Indexed Job without `completions`; a \
           StatefulSet with `restartPolicy: OnFailure`, a Job without; a Deployment that does not select \
           its pods; a PyTorchJob with two Masters, or without a container `pytorch`; a TrainJob that \
           sets `PET_*`; an exported object with its `resourceVersion`; a `minAvailable` above the pods \
           of a Volcano job; a RayJob with `ttlSecondsAfterFinished` and no `shutdownAfterJobFinishes`; \
           by the published schemas: `value: 8` in `env` without quotes, a volume without a name, \
           `imagePullPolicy: always`, `backoffLimit` in the spec of a PyTorchJob; capital letters or `_` \
           in a name; what a CustomResourceDefinition in the repository forbids. WARN: a field or a \
           version that a release has no more, such as `replicas` in a RayCluster's `headGroupSpec`, \
           `kubeflow.org/v1beta1` of a PyTorchJob",
    examples: ["api-rejects.yaml", "good-job-static.yaml"],
    find: Find::Files(|manifests| {
        let of_pods = |pods: &Pods| {
            let by_kind = of_kind(pods).or_else(|| of_kubeflow(pods)).or_else(|| of_volcano(pods));
            let paths = pods.all().filter_map(|own| field_path(pods, own));
            by_kind.into_iter().chain(paths).chain(of_template(pods)).collect::<Vec<_>>()
        };
        let of_object = |object: &Object| {
            let makes_pods = manifests.of_object(object.number).next().is_some();
            let of_ray = ray_job(object).or_else(|| runtime_env(object));
            let of_ray = of_ray.or_else(|| version(object)).or_else(|| replica_policy(object));
            let of_any = || ports(object).or_else(|| label(object)).filter(|_| !object.has_blanks);
            of_ray.or_else(of_any).or_else(|| exported(object).filter(|_| makes_pods))
        };
        let found = names(manifests).into_iter().chain(manifests.pods.iter().flat_map(of_pods));
        let found = found.chain(manifests.objects.iter().filter_map(of_object));
        found.chain(schemas::rejected(manifests)).collect()
    }),
};

fn name(item: &Value) -> Option<&str> {
    item.get("name").and_then(Value::as_str).filter(|name| !is_placeholder(name))
}

/// What only reading the whole template tells.
fn of_template(pods: &Pods) -> Option<Check> {
    if pods.is_open || pods.is_container {
        return None;
    }
    let volumes = || list(&pods.spec, "/volumes");
    for items in [["/volumes", ""], ["/containers", "/initContainers"]] {
        let all = || items.iter().flat_map(|at| list(&pods.spec, at)).filter_map(name);
        if let Some(twice) = all().find(|name| all().filter(|other| other == name).count() > 1) {
            let field = items[0].trim_start_matches('/');
            let evidence = format!("two {field} are called `{twice}`: the API server rejects the object");
            return Some(Check::fail(evidence, "another name for one of them").at(pods.at(field)));
        }
    }
    // A StatefulSet and others make volumes of claims, and these operators add theirs.
    let makes = |(field, _): (&String, &Value)| field.starts_with("volumeClaim");
    let adds = matches!(pods.maker, Maker::MpiJob | Maker::TrainJob | Maker::HyperPod)
        || pods.maker == Maker::Ray && pods.owner.to_string().contains("authOptions")
        || pods.owner.as_object().is_some_and(|owner| owner.iter().any(makes));
    pods.all().find_map(|container| {
        let mounts = list(&container.value, "/volumeMounts").iter().filter_map(name);
        let is_there = |wanted: &str| volumes().iter().any(|volume| name(volume) == Some(wanted));
        if let Some(wanted) = mounts.filter(|_| !adds).find(|wanted| !is_there(wanted)) {
            let evidence = format!("no volume is called `{wanted}`: the API server rejects the object");
            let remedy = format!("{wanted} in spec.volumes, or the name that stands there");
            return Some(Check::fail(evidence, remedy).at(pods.at(&container.at("volumeMounts"))));
        }
        let limits = texts(container.value.pointer("/resources/limits"));
        let requests = texts(container.value.pointer("/resources/requests"));
        let most = |name: &str| quantity(limits.get(name)?);
        let over = requests.iter().find(|(name, wanted)| {
            most(name).zip(quantity(wanted)).is_some_and(|(most, wanted)| wanted > most)
        });
        if let Some((name, wanted)) = over {
            let evidence = format!(
                "`{name}` is {wanted} in requests, and less in limits: the API server rejects the object"
            );
            return Some(
                Check::fail(evidence, "limits that are not below the requests")
                    .at(pods.at(&container.at("resources"))),
            );
        }
        let is_device = |name: &str| name.split_once('/').is_some_and(|(domain, _)| domain.contains('.'));
        let is_part = |(name, wanted): &(&String, &String)| is_device(name) && wanted.contains('.');
        if let Some((device, wanted)) = limits.iter().chain(&requests).find(is_part) {
            let evidence = format!("`{device}` is {wanted}: the API server takes whole devices only");
            return Some(Check::fail(evidence, "a whole number").at(pods.at(&container.at("resources"))));
        }
        let differs =
            |(name, wanted): &(&String, &String)| is_device(name) && limits.get(*name) != Some(*wanted);
        let (device, wanted) = requests.iter().find(differs)?;
        let evidence = format!(
            "`{device}` is {wanted} in requests and {} in limits: the API server rejects the object",
            limits.get(device).map_or("not there", String::as_str)
        );
        let remedy = format!("limits: {{{device}: {wanted}}}, which is enough by itself");
        Some(Check::fail(evidence, remedy).at(pods.at(&container.at("resources"))))
    })
}

/// An object as a cluster shows it: a new one may not have a version yet.
fn exported(object: &Object) -> Option<Check> {
    object.value.pointer("/metadata/resourceVersion")?;
    let evidence =
        "`resourceVersion` is what the API server gives to an object: it refuses a new one with it";
    Some(Check::fail(evidence, "take it and `uid` out").at(object.place("metadata.resourceVersion")))
}

/// A kind of Kubernetes' own in another group or version than its, one of an operator's without a group, or
/// one of Kubeflow's first operators in a version that the last of them serves no more.
fn version(object: &Object) -> Option<Check> {
    let Object { api, kind, .. } = object;
    // `unknown-kind` tells that of an old MPIJob.
    let is_first = api.starts_with("kubeflow.org/") && kind != "MPIJob";
    let is_own = schemas::versions(kind).any(|known| !known.contains('.'));
    let mut known = schemas::versions(kind).filter(|known| !is_own || !known.contains('.')).peekable();
    let is_judged = is_first || !api.is_empty() && !api.contains(['.', '$', '{']);
    let right = known.peek().copied().filter(|_| is_judged)?;
    known.all(|known| known != api).then(|| {
        // A cluster may still have the operator of its day.
        let (tell, server): (fn(String, String) -> Check, _) =
            if is_first { (Check::warn, "operator") } else { (Check::fail, "API server") };
        let evidence = format!("no {server} of today has a {kind} of `{api}`");
        tell(evidence, format!("apiVersion: {right}")).at(object.place("apiVersion"))
    })
}

/// The operator hands the policy of the replicas on to their pods.
fn replica_policy(object: &Object) -> Option<Check> {
    const POLICIES: [&str; 4] = ["Always", "OnFailure", "Never", "ExitCode"];
    let mut fields = object.value.get("spec")?.as_object()?.iter();
    let (field, roles) = fields.find(|(field, _)| field.ends_with("ReplicaSpecs"))?;
    let mut policies =
        roles.as_object()?.iter().filter_map(|(role, it)| Some((role, it.get("restartPolicy")?.as_str()?)));
    let (role, policy) =
        policies.find(|(_, policy)| !POLICIES.contains(policy) && !is_placeholder(policy))?;
    let evidence = format!("restartPolicy: {policy} is none that Kubernetes knows: no pod is ever made");
    let check = Check::fail(evidence, format!("restartPolicy: {}", POLICIES[1..].join(" or ")));
    Some(check.at(object.place(&format!("spec.{field}.{role}.restartPolicy"))))
}

fn ports(object: &Object) -> Option<Check> {
    let ports = list(&object.value, "/spec/ports");
    let is_unnamed = object.kind == "Service" && ports.iter().any(|port| port.get("name").is_none());
    (is_unnamed && ports.len() > 1).then(|| {
        let evidence = "several ports, and not all have a name: the API server rejects the Service";
        Check::fail(evidence, "name: … for each port").at(object.place("spec.ports"))
    })
}

fn label(object: &Object) -> Option<Check> {
    let labels = texts(object.value.pointer("/metadata/labels"));
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_wrong = |text: &str| !text.chars().all(is_allowed) && !text.contains(['$', '{', '<', '%']);
    let (key, value) = labels.iter().find(|(_, value)| is_wrong(value))?;
    let evidence = format!("the label {key} is `{value}`: the API server rejects the object");
    let remedy = "letters, digits, `-`, `_` and `.` only; an annotation takes any text";
    Some(Check::fail(evidence, remedy).at(object.place("metadata.labels")))
}

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
    let spec = job.value.get("spec").filter(|_| job.kind == "RayJob")?;
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

/// Ray takes a runtime environment whose variables are texts by their names.
fn runtime_env(job: &Object) -> Option<Check> {
    let text = job.value.pointer("/spec/runtimeEnvYAML")?.as_str().filter(|text| !text.contains("{{"))?;
    let (why, remedy) = match parse(text) {
        Err(words) => (format!("is no YAML ({words}): KubeRay"), "correct it".to_owned()),
        Ok((Value::Object(all), _)) => {
            let variables = all.get("env_vars").filter(|it| !it.is_null())?;
            if let Some(map) = variables.as_object() {
                let (name, value) = map.iter().find(|(_, value)| !value.is_string())?;
                (format!("has {name}: {value}, which is no text: Ray"), format!("{name}: \"{value}\""))
            } else {
                ("has `env_vars` that are no map: Ray".into(), "NAME: \"VALUE\" below it".into())
            }
        }
        Ok((Value::Null, _)) => return None,
        Ok(_) => ("is no map: KubeRay".into(), "pip, env_vars, working_dir, …, each with its value".into()),
    };
    let check = Check::fail(format!("runtimeEnvYAML {why} refuses the job"), remedy);
    Some(check.at(job.place("spec.runtimeEnvYAML")))
}

fn of_volcano(pods: &Pods) -> Option<Check> {
    if pods.maker != Maker::VolcanoJob {
        return None;
    }
    if pods.roles.iter().filter(|role| **role == pods.role).count() > 1 {
        let evidence = format!("two tasks are called `{}`; Volcano rejects the job", pods.role);
        return Some(Check::fail(evidence, "another name for each task").at(pods.at("")));
    }
    let replicas = |task: &Value| task.get("replicas").map_or(Some(1), Value::as_u64);
    let all: u64 = list(&pods.owner, "/tasks").iter().map(replicas).sum::<Option<u64>>()?;
    let least = pods.owner_number("minAvailable").filter(|least| *least > all)?;
    let evidence = format!("minAvailable: {least}, but the tasks have {all} pods; Volcano rejects the job");
    Some(Check::fail(evidence, format!("minAvailable: {all}")).at(pods.of_owner("minAvailable")))
}

/// A number with a unit, such as `500m` or `64Gi`.
fn quantity(text: &str) -> Option<f64> {
    let number = text.trim_end_matches(char::is_alphabetic);
    let unit = &text[number.len()..];
    let power = ["m", "", "k", "M", "G", "T"]
        .iter()
        .position(|own| *own == unit.trim_end_matches('i').replace('K', "k"))?;
    let base: f64 = if unit.ends_with('i') { 1024.0 } else { 1000.0 };
    Some(number.parse::<f64>().ok()? * base.powi(i32::try_from(power).ok()?.saturating_sub(1)))
}

/// What the kind of the object says of its pods.
fn of_kind(pods: &Pods) -> Option<Check> {
    let selects = matches!(pods.maker, Maker::StatefulSet | Maker::Deployment) && !pods.is_open;
    if selects && !is_selected(pods.owner.get("selector"), pods) {
        let evidence = "the selector does not select the labels of the template: the API server rejects it";
        let remedy = "the labels of template.metadata.labels in selector.matchLabels";
        return Some(Check::fail(evidence, remedy).at(pods.of_owner("selector")));
    }
    let lacks = |field: &str| pods.owner.get(field).is_none_or(Value::is_null);
    if pods.maker == Maker::IndexedJob && lacks("completions") && !lacks("parallelism") {
        let evidence = "an Indexed Job without `completions`: the API server rejects it";
        return Some(
            Check::fail(evidence, "completions: the same as parallelism").at(pods.of_owner("completions")),
        );
    }
    let policy = pods.spec.get("restartPolicy").and_then(Value::as_str);
    let can_be = match pods.maker {
        _ if policy.is_none() && is_patch(&pods.spec) => return None,
        Maker::StatefulSet | Maker::Deployment | Maker::LeaderWorkerSet => &["Always"][..],
        Maker::Job | Maker::IndexedJob => &["Never", "OnFailure"],
        // JobSet fills in what is missing.
        Maker::JobSet if policy.is_some() => &["Never", "OnFailure"],
        _ => return None,
    };
    let (is, said) = (policy.unwrap_or("Always"), if policy.is_none() { " (the default)" } else { "" });
    (!can_be.contains(&is) && !is_placeholder(is)).then(|| {
        let evidence =
            format!("restartPolicy: {is}{said}: the API server rejects it in a {}", pods.facts().name);
        Check::fail(evidence, format!("restartPolicy: {}", can_be[0])).at(pods.at("restartPolicy"))
    })
}

fn of_kubeflow(pods: &Pods) -> Option<Check> {
    if !pods.train() {
        return None;
    }
    if pods.maker == Maker::TrainJob && pods.is_container {
        return pods.containers.iter().find_map(|own| trainers_variables(pods, own));
    }
    if pods.maker != Maker::PyTorchJob {
        return None;
    }
    if pods.has(When::Master) && pods.role == "master" && pods.count.is_some_and(|count| count != 1) {
        let evidence = format!("{} Masters; the operator accepts one", pods.count.unwrap_or_default());
        let remedy = "replicas: 1 for the Master, the others as Worker";
        return Some(Check::fail(evidence, remedy).at(pods.at("")));
    }
    let is_named = |container: &Container| name(&container.value) == Some("pytorch");
    (!pods.containers.iter().any(is_named)).then(|| {
        let evidence = "no container is called `pytorch`; the operator refuses the job";
        Check::fail(evidence, "name: pytorch for the container that trains").at(pods.at("containers"))
    })
}

/// The variables that Kubeflow's Trainer sets itself.
fn trainers_variables(pods: &Pods, container: &Container) -> Option<Check> {
    let is_trainers = |name: &&str| {
        name.starts_with("PET_") && pods.facts().variables.iter().any(|known| known.name == *name)
    };
    let set: Vec<&str> = container.own.iter().map(String::as_str).filter(is_trainers).collect();
    let is_nodes = |entry: &&Value| entry.get("name").is_some_and(|name| name == "PET_NNODES");
    let nodes = list(&container.value, "/env").iter().find(is_nodes).and_then(|it| it.get("value")?.as_str());
    let remedy = match nodes.filter(|nodes| nodes.contains(':')) {
        Some(nodes) => {
            format!("--nnodes={nodes} in spec.trainer.command: a flag wins over what Trainer sets")
        }
        None => "use spec.trainer.numNodes and numProcPerNode".into(),
    };
    let check = Check::fail(format!("a TrainJob that sets {} is rejected", set.join(", ")), remedy);
    (!set.is_empty()).then(|| check.at(pods.at(&container.at("env"))))
}

/// Names of objects and containers.
fn names(manifests: &Manifests) -> Vec<Check> {
    const REMEDY: &str = "a shorter name of small letters, digits and `-`";
    let wrong = |name: &str, is_label| {
        let why = mistake(name, is_label).filter(|_| !name.is_empty() && !is_placeholder(name))?;
        Some(Check::fail(format!("`{name}` {why}"), REMEDY))
    };
    let matters = |object: &&Object| {
        object.kind == "Service" || manifests.of_object(object.number).any(|it| !it.are_tasks())
    };
    let of_object = |object: &Object| {
        Some(wrong(&object.name, object.kind == "Service")?.at(object.place("metadata.name")))
    };
    let of_container = |(pods, container): (&Pods, &Container)| {
        Some(wrong(name(&container.value)?, false)?.at(pods.at(&container.at("name"))))
    };
    let containers = manifests.containers().filter(|(pods, _)| !pods.are_tasks());
    let objects = manifests.objects.iter().filter(matters).filter_map(of_object);
    objects.chain(containers.filter_map(of_container)).collect()
}

/// Why Kubernetes rejects a name. The name of a Service is a label.
fn mistake(name: &str, is_label: bool) -> Option<&'static str> {
    let ends = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let allowed = |c: char| ends(c) || c == '-' || c == '.' && !is_label;
    if !name.chars().all(allowed) {
        Some("is no name for Kubernetes, which rejects it: small letters, digits and `-` only")
    } else if !name.starts_with(ends) || !name.ends_with(ends) {
        Some("is no name for Kubernetes, which rejects it: it begins and ends with a letter or a digit")
    } else if is_label && name.len() > 63 {
        Some("is too long for a Service: 63 characters")
    } else {
        None
    }
}

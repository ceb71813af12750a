//! The API server, or the operator, refuses an object that cannot be: no pod is ever made.

use super::super::objects::parse;
use super::super::{schemas, validation};
use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "api-rejects",
    sees: "FAIL: a `volumeMount` without its volume, two containers of one name, `wait-gcs-ready` in a \
           worker of Ray, GPUs in `requests` that `limits` have not, `memory: 16GB`; `kind: job`; an \
           `apiVersion` that Kubernetes has no more; a Job without `restartPolicy`; a PyTorchJob with two \
           Masters, or a role `Workers`, or without a container `pytorch` (TFJob: `tensorflow`); a \
           Workflow that calls a template it has not; an MPIJob without Launcher; a TrainJob that sets \
           `PET_*`; by the schemas: `value: 8` in `env`; `_` in a name; what a CustomResourceDefinition \
           in the repository forbids. WARN: a field or a version that a release of an operator has no \
           more; no `image`",
    examples: ["api-rejects.yaml", "good-job-static.yaml"],
    find: Find::Files(|manifests| {
        let of_pods = |pods: &Pods| {
            let by_kind = of_kind(pods).or_else(|| of_kubeflow(pods)).or_else(|| of_volcano(pods));
            let of_own = |own| {
                let found = field_path(pods, own);
                let found = found.or_else(|| of_resources(pods, own).filter(|_| !pods.is_open));
                found.or_else(|| of_container(pods, own))
            };
            let paths = pods.all().filter_map(of_own);
            by_kind
                .into_iter()
                .chain(paths)
                .chain(of_template(pods))
                .chain(validation::of_pods(pods))
                .collect::<Vec<_>>()
        };
        let of_object = |object: &Object| OF_OBJECT.iter().find_map(|find| find(manifests, object));
        let found = names(manifests).into_iter().chain(manifests.pods.iter().flat_map(of_pods));
        let found = found.chain(manifests.objects.iter().filter_map(of_object));
        let of_roles = manifests.pods.iter().filter_map(|pods| idle_role(manifests, pods));
        found.chain(of_roles).chain(schemas::rejected(manifests)).collect()
    }),
};

/// What is refused of an object as a whole. The first of them is told.
const OF_OBJECT: [fn(&Manifests, &Object) -> Option<Check>; 11] = [
    |manifests, object| manifests.of_object(object.number).find_map(|pods| ssh_of_mpi(object, pods)),
    |_, object| ray_job(object),
    |_, object| runtime_env(object),
    |manifests, object| manifests.of_object(object.number).find_map(|pods| roles(object, pods)),
    |_, object| without_cluster(object),
    |_, object| undefined_template(object),
    |manifests, object| version(object, manifests.definition(object).is_some()),
    |_, object| replica_policy(object),
    |_, object| validation::of_object(object),
    |manifests, object| without_image(manifests, object),
    |manifests, object| exported(object).filter(|_| manifests.of_object(object.number).next().is_some()),
];

/// The init container of KubeRay's that waits for the head.
const WAITER: &str = "wait-gcs-ready";

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
    let is_waiter = |item: &Value| name(item) == Some(WAITER);
    if pods.maker == Maker::Ray
        && pods.role == "worker"
        && list(&pods.spec, "/initContainers").iter().any(is_waiter)
    {
        let evidence = format!(
            "the operator adds an init container `{WAITER}` of its own to each worker: the API server \
             rejects the pods with two of that name"
        );
        let remedy = "take it out; or ENABLE_INIT_CONTAINER_INJECTION=false of the operator";
        return Some(Check::fail(evidence, remedy).at(pods.at("initContainers")));
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
        None
    })
}

/// Requests and limits that do not fit each other.
fn of_resources(pods: &Pods, container: &Container) -> Option<Check> {
    let field =
        if pods.maker == Maker::TrainJob && pods.is_container { "resourcesPerNode" } else { "resources" };
    let at = || pods.at(&container.at(field));
    let limits = texts(container.value.pointer("/resources/limits"));
    let requests = texts(container.value.pointer("/resources/requests"));
    let most = |name: &str| quantity(limits.get(name)?);
    let over = requests
        .iter()
        .find(|(name, wanted)| most(name).zip(quantity(wanted)).is_some_and(|(most, wanted)| wanted > most));
    if let Some((name, wanted)) = over {
        let evidence = format!(
            "`{name}` is {wanted} in requests, and less in limits: the API server rejects the object"
        );
        return Some(Check::fail(evidence, "limits that are not below the requests").at(at()));
    }
    let is_device = |name: &str| name.split_once('/').is_some_and(|(domain, _)| domain.contains('.'));
    let is_part = |(name, wanted): &(&String, &String)| is_device(name) && wanted.contains('.');
    if let Some((device, wanted)) = limits.iter().chain(&requests).find(is_part) {
        let evidence = format!("`{device}` is {wanted}: the API server takes whole devices only");
        return Some(Check::fail(evidence, "a whole number").at(at()));
    }
    let differs = |(name, wanted): &(&String, &String)| is_device(name) && limits.get(*name) != Some(*wanted);
    let (device, wanted) = requests.iter().find(differs)?;
    let evidence = format!(
        "`{device}` is {wanted} in requests and {} in limits: the API server rejects the object",
        limits.get(device).map_or("not there", String::as_str)
    );
    let remedy = format!("limits: {{{device}: {wanted}}}, which is enough by itself");
    Some(Check::fail(evidence, remedy).at(at()))
}

/// What Kubernetes' own validation says of a container.
fn of_container(pods: &Pods, container: &Container) -> Option<Check> {
    let check = |field: &str, evidence: String, remedy: &str| {
        let evidence = format!("{evidence}: the API server rejects the object");
        Some(Check::fail(evidence, remedy).at(pods.at(&container.at(field))))
    };
    let kinds =
        ["limits", "requests"].map(|kind| texts(container.value.pointer(&format!("/resources/{kind}"))));
    let is_wrong = |(_, text): &(&String, &String)| !is_placeholder(text) && !is_quantity(text);
    if let Some((name, text)) = kinds.iter().flatten().find(is_wrong) {
        let remedy = "a number with a unit such as m, M, G, Mi or Gi, without a blank";
        return check("resources", format!("`{name}` cannot be {text}"), remedy);
    }
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_name = |name: &str| name.len() < 16 && name.chars().all(is_allowed);
    let mut ports = list(&container.value, "/ports").iter().filter_map(name);
    if let Some(name) = ports.find(|name| !is_name(name)) {
        let remedy = "15 small letters, digits and `-` at most";
        return check("ports", format!("a port cannot be called `{name}`"), remedy);
    }
    let has_both = |item: &&Value| {
        item.get("valueFrom").is_some_and(Value::is_object)
            && item.get("value").and_then(Value::as_str).is_some_and(|value| !value.is_empty())
    };
    let name = list(&container.value, "/env").iter().find(has_both)?.get("name")?.as_str()?;
    check("env", format!("{name} has `value` and `valueFrom`"), "one of them")
}

/// Whether Kubernetes reads a text as a quantity: `500m`, `1.5`, `64Gi`, `1e3`.
fn is_quantity(text: &str) -> bool {
    const UNITS: [&str; 16] =
        ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let begin = text.trim_start_matches(['+', '-']);
    let unit = begin.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let exponent = unit.strip_prefix(['e', 'E']).unwrap_or_default();
    unit.len() < begin.len() && (UNITS.contains(&unit) || exponent.parse::<i32>().is_ok())
}

/// Containers that are whole, but for their image.
fn without_image(manifests: &Manifests, object: &Object) -> Option<Check> {
    let lacks = |own: &Container| own.value.get("image").is_none() && own.value.get("command").is_some();
    let is_it = |pods: &&Pods| {
        let containers = pods.containers.as_slice();
        pods.are_of_kubernetes() && !containers.is_empty() && containers.iter().all(lacks)
    };
    let pods = manifests.of_object(object.number).find(is_it).filter(|_| !object.is_patch)?;
    let evidence =
        "a container without `image`: the API server rejects it, unless this is a patch of another";
    Some(Check::warn(evidence, "image: with its name").at(pods.at("containers")))
}

/// An object as a cluster shows it: a new one may not have a version yet.
fn exported(object: &Object) -> Option<Check> {
    object.value.pointer("/metadata/resourceVersion")?;
    let evidence =
        "`resourceVersion` is what the API server gives to an object: it refuses a new one with it";
    Some(Check::fail(evidence, "take it and `uid` out").at(object.place("metadata.resourceVersion")))
}

/// The kinds of Kubernetes that once had other versions: Kubernetes' "Deprecated API Migration Guide".
#[rustfmt::skip]
const SERVED: [(&str, &[&str]); 13] = [
    ("ClusterRole", &["rbac.authorization.k8s.io/v1"]),
    ("ClusterRoleBinding", &["rbac.authorization.k8s.io/v1"]),
    ("Role", &["rbac.authorization.k8s.io/v1"]),
    ("RoleBinding", &["rbac.authorization.k8s.io/v1"]),
    ("CustomResourceDefinition", &["apiextensions.k8s.io/v1"]),
    ("Ingress", &["networking.k8s.io/v1"]),
    ("NetworkPolicy", &["networking.k8s.io/v1"]),
    ("PodDisruptionBudget", &["policy/v1"]),
    ("HorizontalPodAutoscaler", &["autoscaling/v2", "autoscaling/v1"]),
    ("PriorityClass", &["scheduling.k8s.io/v1"]),
    ("StorageClass", &["storage.k8s.io/v1"]),
    ("RuntimeClass", &["node.k8s.io/v1"]),
    ("CronJob", &["batch/v1"]),
];

/// A version of a kind of Kubernetes that no server has any more.
fn withdrawn(object: &Object) -> Option<Check> {
    let (_, served) = SERVED.iter().find(|(kind, _)| *kind == object.kind)?;
    let group = |version: &str| version.split('/').next().map(str::to_owned);
    let is_of_group = object.api.starts_with("extensions/") || group(&object.api) == group(served[0]);
    (is_of_group && !served.contains(&object.api.as_str()) && !object.api.contains(['$', '{'])).then(|| {
        let evidence = format!("no API server of today has a {} of `{}`", object.kind, object.api);
        Check::fail(evidence, format!("apiVersion: {}", served[0])).at(object.place("apiVersion"))
    })
}

/// A kind of a group or a version that does not serve it, without either, or in other letters than its own.
fn version(object: &Object, is_defined: bool) -> Option<Check> {
    let Object { api, kind, .. } = object;
    let group = |version: &str| version.rsplit_once('/').map(|(group, _)| group.to_owned());
    let is_own = schemas::versions(kind).any(|known| !known.contains('.'));
    if let Some(check) = withdrawn(object) {
        return Some(check);
    }
    let Some(right) = schemas::versions(kind).find(|known| !is_own || !known.contains('.')) else {
        let right = schemas::spelled(api, kind)?;
        let evidence = format!("the API server knows no kind `{kind}`: capital letters count");
        return Some(Check::fail(evidence, format!("kind: {right}")).at(object.place("kind")));
    };
    // Dask and Spark read a Pod without it as a template.
    if object.value.get("apiVersion").is_none() && kind != "Pod" {
        let evidence = format!("a {kind} without `apiVersion`: kubectl rejects it");
        return Some(Check::fail(evidence, format!("apiVersion: {right}")).at(object.place("apiVersion")));
    }
    let is_bare = !api.is_empty() && !api.contains(['.', '$', '{']);
    // Kubeflow's first operators had all kinds in this group.
    let of_operator =
        api.starts_with("kubeflow.org/") || schemas::versions(kind).any(|it| group(it) == group(api));
    if !is_bare && (!of_operator || is_defined) || schemas::versions(kind).any(|known| known == api) {
        return None;
    }
    // A cluster may still have the operator of its day.
    let (tell, server): (fn(String, String) -> Check, _) =
        if is_bare { (Check::fail, "API server") } else { (Check::warn, "operator") };
    let evidence = format!("no {server} of today has a {kind} of `{api}`");
    let others = schemas::versions(kind).filter(|_| !is_bare).skip(1).map(|it| format!(" or {it}"));
    let remedy = format!("apiVersion: {right}{}", others.collect::<String>());
    Some(tell(evidence, remedy).at(object.place("apiVersion")))
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
        let is_key =
            ["metadata.labels[", "metadata.annotations["].iter().any(|begin| path.starts_with(begin));
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

/// What KubeRay's own validation needs beyond its schema.
fn without_cluster(object: &Object) -> Option<Check> {
    let (field, other) = match object.kind.as_str() {
        "RayService" => ("rayClusterConfig", "rayClusterConfig"),
        "RayJob" => ("rayClusterSpec", "clusterSelector"),
        _ => return None,
    };
    let spec = object.value.get("spec")?;
    let is_part = object.is_patch || object.has_blanks;
    let serves = spec.as_object()?.keys().any(|name| name.starts_with("serve"));
    if object.kind == "RayService" && object.api == "ray.io/v1" && !serves && !is_part {
        let evidence = "a RayService without `serveConfigV2`: Ray starts, and no application ever does";
        let check = Check::warn(evidence, "serveConfigV2: with its applications, or a RayCluster");
        return Some(check.at(object.place("spec")));
    }
    let has = |name: &str| spec.get(name).is_some_and(|it| !it.is_null());
    (!has(field) && !has(other) && !is_part && object.api.starts_with("ray.io/")).then(|| {
        let evidence =
            format!("a {} without `{field}`: KubeRay refuses it, and makes no cluster", object.kind);
        Check::fail(evidence, format!("{field}: {{headGroupSpec: …}}")).at(object.place("spec"))
    })
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

/// What the kind of the object says of its pods.
fn of_kind(pods: &Pods) -> Option<Check> {
    let selects = matches!(pods.maker, Maker::StatefulSet | Maker::Deployment) && !pods.is_open;
    if selects && !is_selected(pods.owner.get("selector"), pods) {
        let evidence = "the selector does not select the labels of the template: the API server rejects it";
        let remedy = "the labels of template.metadata.labels in selector.matchLabels";
        return Some(Check::fail(evidence, remedy).at(pods.of_owner("selector")));
    }
    let lacks = |field: &str| pods.owner.get(field).is_none_or(Value::is_null);
    if pods.maker == Maker::IndexedJob && !pods.is_patch && lacks("completions") && !lacks("parallelism") {
        let evidence = "an Indexed Job without `completions`: the API server rejects it";
        return Some(
            Check::fail(evidence, "completions: the same as parallelism").at(pods.of_owner("completions")),
        );
    }
    let policy = pods.spec.get("restartPolicy").and_then(Value::as_str);
    let can_be = match pods.maker {
        _ if policy.is_none() && pods.is_patch => return None,
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
    if pods.maker == Maker::TrainJob && pods.is_container {
        let mut trainers = pods.containers.iter().filter(|_| pods.train());
        return trainers.find_map(|own| trainers_variables(pods, own));
    }
    // A part of a template has no image.
    let is_whole = || pods.containers.iter().all(|own| own.value.get("image").is_some());
    let wanted =
        container_of(pods).filter(|_| pods.train() || pods.maker != Maker::PyTorchJob && is_whole())?;
    if pods.has(When::Master) && pods.role == "master" && pods.count.is_some_and(|count| count != 1) {
        let evidence = format!("{} Masters; the operator accepts one", pods.count.unwrap_or_default());
        let remedy = "replicas: 1 for the Master, the others as Worker";
        return Some(Check::fail(evidence, remedy).at(pods.at("")));
    }
    let is_named = |container: &Container| name(&container.value).is_none_or(|name| name == wanted);
    (!pods.containers.is_empty() && !pods.containers.iter().any(is_named)).then(|| {
        let evidence = format!("no container is called `{wanted}`; the operator refuses the job");
        let remedy = format!("name: {wanted} for the container that trains");
        Check::fail(evidence, remedy).at(pods.at("containers"))
    })
}

/// The name of the container that Kubeflow's training operator looks for: its `pkg/apis/kubeflow.org/v1`.
fn container_of(pods: &Pods) -> Option<&'static str> {
    match pods.place.object.split('/').next()? {
        "PyTorchJob" => Some("pytorch"),
        "TFJob" => Some("tensorflow"),
        "XGBoostJob" => Some("xgboost"),
        "PaddleJob" => Some("paddle"),
        "JAXJob" => Some("jax"),
        _ => None,
    }
}

/// A template that a Workflow of Argo's calls, and has not.
fn undefined_template(object: &Object) -> Option<Check> {
    let spec = object.value.get("spec").filter(|_| object.api.starts_with("argoproj.io/"))?;
    let spec = spec.get("workflowSpec").unwrap_or(spec);
    let templates = list(spec, "/templates");
    let is_there = |wanted: &str| templates.iter().any(|it| name(it) == Some(wanted));
    let steps = templates.iter().flat_map(|it| list(it, "/steps")).filter_map(Value::as_array).flatten();
    let tasks = templates.iter().flat_map(|it| list(it, "/dag/tasks"));
    let calls = steps.chain(tasks).filter_map(|it| it.get("template")).chain(spec.get("entrypoint"));
    let mut calls = calls.filter_map(Value::as_str).filter(|wanted| !wanted.contains(['{', '$']));
    let missing = calls.find(|wanted| !is_there(wanted)).filter(|_| !templates.is_empty())?;
    let evidence = format!("no template is called `{missing}`: Argo refuses the object");
    let remedy = format!("{missing} in spec.templates, or the name that stands there");
    Some(Check::fail(evidence, remedy).at(object.place("spec.templates")))
}

/// The roles that an operator of Kubeflow's knows, and needs.
fn roles(object: &Object, pods: &Pods) -> Option<Check> {
    let (known, needed): (&[&str], _) = match pods.maker {
        Maker::PyTorchJob => (&["Master", "Worker"], None),
        Maker::JaxJob => (&["Worker"], Some("Worker")),
        Maker::MpiJob => (&["Launcher", "Worker"], Some("Launcher")),
        _ => return None,
    };
    let is_known = known.iter().any(|known| known.eq_ignore_ascii_case(&pods.role));
    let lacks = |needed: &&str| {
        let needed = needed.to_lowercase();
        pods.role != needed && !pods.roles.contains(&needed)
    };
    let evidence = match needed.filter(lacks) {
        _ if !is_known => format!("the operator knows no role `{}`, and refuses the job", pods.role),
        Some(needed) => format!("no {needed}: the operator refuses the job, and nothing starts its ranks"),
        None => return None,
    };
    // Since v2beta1 the operator looks at its own two roles only.
    if pods.maker == Maker::MpiJob && object.api.ends_with("/v2beta1") && !is_known {
        return None;
    }
    let is_own = object.api.starts_with("kubeflow.org/");
    let tell = if is_own { Check::fail } else { Check::warn };
    Some(tell(evidence, known.join(", ")).at(pods.at("")))
}

/// A role of which the operator of an MPIJob makes nothing.
fn idle_role(manifests: &Manifests, pods: &Pods) -> Option<Check> {
    let object = manifests.objects.iter().find(|it| it.number == pods.object)?;
    let is_mpi = pods.maker == Maker::MpiJob && object.api == "kubeflow.org/v2beta1";
    (is_mpi && !["launcher", "worker"].contains(&pods.role.as_str())).then(|| {
        let evidence = format!("the operator knows no role `{}`, and makes no pod of it", pods.role);
        Check::warn(evidence, "Launcher, Worker").at(pods.at(""))
    })
}

/// The operator adds the keys of ssh to the pods of an MPIJob by itself.
fn ssh_of_mpi(object: &Object, pods: &Pods) -> Option<Check> {
    const VOLUME: &str = "ssh-auth";
    if pods.maker != Maker::MpiJob
        || object.api != "kubeflow.org/v2beta1"
        || !["launcher", "worker"].contains(&pods.role.as_str())
    {
        return None;
    }
    let is_own = |volume: &Value| name(volume) == Some(VOLUME);
    let path = pods.owner.get("sshAuthMountPath").map_or(Some("/root/.ssh"), Value::as_str)?;
    let mounts = list(&pods.containers.first()?.value, "/volumeMounts");
    let is_there = |mount: &Value| {
        let own = mount.get("mountPath").and_then(Value::as_str).unwrap_or_default();
        own.trim_end_matches('/') == path.trim_end_matches('/')
    };
    let what = match () {
        () if list(&pods.spec, "/volumes").iter().any(is_own) => format!("a volume `{VOLUME}`"),
        () if mounts.iter().any(is_there) => format!("a mount at {path}"),
        () => return None,
    };
    let evidence =
        format!("the operator adds {what} of its own to each pod: the API server rejects pods with two");
    Some(Check::fail(evidence, "take it out: the operator makes the keys").at(pods.at("volumes")))
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

/// Names of objects, containers and volumes.
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
    // Their names are parts of those of the pods.
    let of_role = |pods: &&Pods| {
        let has = matches!(pods.maker, Maker::VolcanoJob | Maker::JobSet);
        has.then(|| Some(wrong(&pods.role, true)?.at(pods.at(""))))?
    };
    let of_volumes = |pods: &Pods| {
        let mut names = list(&pods.spec, "/volumes").iter().filter_map(name);
        Some(names.find_map(|name| wrong(name, true))?.at(pods.at("volumes")))
    };
    let pods = manifests.pods.iter().filter(|pods| !pods.are_tasks());
    let of_roles = manifests.pods.iter().filter_map(|pods| of_role(&pods));
    let containers = manifests.containers().filter(|(pods, _)| !pods.are_tasks());
    let objects = manifests.objects.iter().filter(matters).filter_map(of_object);
    objects
        .chain(containers.filter_map(of_container))
        .chain(pods.filter_map(of_volumes))
        .chain(of_roles)
        .collect()
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
        Some("is too long: 63 characters are the most")
    } else {
        None
    }
}

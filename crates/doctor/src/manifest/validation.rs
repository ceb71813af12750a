//! What the API server itself says of pods, Jobs, claims and Services, beyond the schemas: Kubernetes'
//! `pkg/apis/core/validation` and `pkg/apis/batch/validation`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::objects::{Object, is_placeholder, list, texts};
use super::pods::Pods;
use crate::{Check, Location};
use rallypoint_node::makers::Maker;

/// The probes of a container. The first two end it.
pub(crate) const PROBES: [&str; 3] = ["startupProbe", "livenessProbe", "readinessProbe"];

/// A field, what is wrong with it, and what helps.
type Wrong = (String, String, &'static str);

#[expect(clippy::unnecessary_wraps, reason = "the end of functions that may find nothing")]
fn wrong(at: &str, why: impl Into<String>, what: &'static str) -> Option<Wrong> {
    Some((at.to_owned(), why.into(), what))
}

fn rejected((at, why, what): Wrong) -> (String, Check) {
    (at, Check::fail(format!("{why}: the API server rejects it"), what))
}

/// What is rejected in the pods of a template.
pub(crate) fn of_pods(pods: &Pods) -> Vec<Check> {
    if pods.is_open || pods.is_container || pods.are_tasks() {
        return Vec::new();
    }
    let mut found: Vec<Wrong> = of_spec(&pods.spec).into_iter().flatten().collect();
    found.extend(pods.labels.iter().find_map(label));
    for role in ["containers", "initContainers"] {
        let ends = |own: &Value| role == "initContainers" && own.get("restartPolicy").is_none();
        for (n, own) in list(&pods.spec, &format!("/{role}")).iter().enumerate() {
            let all = of_container(own, ends(own), pods.on_host()).into_iter().flatten();
            found.extend(all.map(|(at, why, what)| (format!("{role}[{n}].{at}"), why, what)));
        }
    }
    let template = pods.place.field.trim_end_matches("spec");
    let place = |at: &str| match at {
        "labels" => Location { field: format!("{template}metadata.labels"), ..pods.place.clone() },
        _ => pods.at(at),
    };
    let of_name =
        of_name(pods).map(|check| check.at(Location { field: "metadata.name".into(), ..pods.place.clone() }));
    found.into_iter().map(rejected).map(|(at, check)| check.at(place(&at))).chain(of_name).collect()
}

/// The name of an object is the beginning of others: of a Service, of a label, of pods.
fn of_name(pods: &Pods) -> Option<Check> {
    let name = Some(pods.name.as_str()).filter(|name| !name.is_empty() && !is_placeholder(name))?;
    let ends = pods.hosts.iter().map(|hosts| {
        let last = hosts.count.map_or(0, |count| count.saturating_sub(1));
        hosts.begin.len().saturating_add(last.to_string().len())
    });
    let longest = ends.max().unwrap_or_default();
    let (makes_service, is_long) = match pods.maker {
        Maker::PyTorchJob | Maker::KubeflowJob | Maker::JaxJob => (true, longest > 63),
        // Each group is a StatefulSet.
        Maker::LeaderWorkerSet => (true, longest > 63 || name.len() > 51),
        // Six random characters follow.
        Maker::JobSet => (true, longest > 57),
        Maker::StatefulSet => (false, name.len() > 52),
        Maker::Ray => (true, false),
        _ => return None,
    };
    let why = if makes_service && name.starts_with(|c: char| c.is_ascii_digit()) {
        format!("`{name}` begins with a digit: before Kubernetes 1.36 no Service may be called so")
    } else if is_long {
        format!(
            "`{name}` is too long: with what is put behind it for each pod it has more than 63 characters"
        )
    } else {
        return None;
    };
    // A label of a StatefulSet's pods has its revision behind the name: `-` and a number of 10 digits, or 9.
    let tell = if pods.maker == Maker::StatefulSet && name.len() < 54 { Check::warn } else { Check::fail };
    Some(tell(why, "a short name that begins with a letter"))
}

/// What is rejected in an object.
pub(crate) fn of_object(object: &Object) -> Option<Check> {
    let found = match object.kind.as_str() {
        _ if object.has_blanks || object.is_patch => None,
        _ if is_nameless(object) => wrong("metadata", "an object without a name", "metadata.name"),
        "Service" if object.api == "v1" => service(&object.value),
        "Job" if object.api.starts_with("batch/") => job(&object.value["spec"], &object.name, 63),
        "CronJob" => job(&object.value["spec"]["jobTemplate"]["spec"], &object.name, 52),
        "PersistentVolumeClaim" => claim(&object.value["spec"]),
        "StatefulSet" => {
            let mut claims = list(&object.value, "/spec/volumeClaimTemplates").iter();
            claims.find_map(|own| claim(own.get("spec")?))
        }
        _ => None,
    };
    let labels = || texts(object.value.pointer("/metadata/labels")).iter().find_map(label);
    let found = found.or_else(|| labels().filter(|_| !object.has_blanks));
    let Some(found) = found else { return node_port(object) };
    let (at, check) = rejected(found);
    let whole = if at == "labels" { "metadata.labels".into() } else { at };
    Some(check.at(object.place(&whole)))
}

/// Whether nothing gives a name to an object of the file itself. A Pod may be a template of another tool.
fn is_nameless(object: &Object) -> bool {
    let metadata = object.value.get("metadata").unwrap_or(&Value::Null);
    let maker = Maker::of_kind(&object.api, &object.kind);
    let matters = object.kind == "Service" || !matches!(maker, Maker::Unknown | Maker::Pod | Maker::Slurm);
    let is_whole = matters && object.at.is_empty() && object.api.contains('/') == (object.kind != "Service");
    is_whole && object.name.is_empty() && !is_set(metadata, "generateName") && metadata.is_object()
}

fn is_set(value: &Value, field: &str) -> bool {
    value.get(field).is_some_and(|it| !it.is_null())
}

fn is_true(value: &Value, field: &str) -> bool {
    value.get(field) == Some(&Value::Bool(true))
}

fn text<'v>(value: &'v Value, field: &str) -> Option<&'v str> {
    value.get(field)?.as_str()
}

fn u64_of(value: &Value, field: &str) -> Option<u64> {
    value.get(field)?.as_u64().filter(|number| *number > 0)
}

fn protocol(port: &Value) -> &str {
    text(port, "protocol").unwrap_or("TCP")
}

/// The first of these that is there twice.
fn twice<T: Ord + Copy>(mut all: impl Iterator<Item = T>) -> Option<T> {
    let mut seen = BTreeSet::new();
    all.find(|it| !seen.insert(*it))
}

fn label((key, value): (&String, &String)) -> Option<Wrong> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_end = |c: char| c.is_ascii_alphanumeric();
    let is_right = |text: &str| {
        text.len() < 64 && text.chars().all(is_allowed) && text.starts_with(is_end) && text.ends_with(is_end)
    };
    let is_blank = |text: &str| text.contains(['$', '{', '<', '%']);
    let name = key.rsplit('/').next().unwrap_or_default();
    let remedy = "63 letters, digits, `-`, `_` and `.` at most; an annotation takes any text";
    if !is_right(name) && !is_blank(key) {
        return wrong("labels", format!("a label cannot be called `{key}`"), remedy);
    }
    let why = || format!("the label {key} is `{value}`");
    (!value.is_empty() && !is_right(value) && !is_blank(value)).then(|| wrong("labels", why(), remedy))?
}

fn of_spec(spec: &Value) -> [Option<Wrong>; 6] {
    let is_label = |name: &str| {
        let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        name.len() < 64 && name.chars().all(is_allowed) && !name.starts_with('-') && !name.ends_with('-')
    };
    let name = ["hostname", "subdomain"].into_iter().find(|field| {
        text(spec, field).is_some_and(|name| !name.is_empty() && !is_label(name) && !is_placeholder(name))
    });
    let name = name.and_then(|at| wrong(at, format!("`{at}` is no label"), "small letters, digits and `-`"));
    let volume = list(spec, "/volumes").iter().find_map(|volume| {
        let sources = volume.as_object()?.iter().filter(|(field, it)| *field != "name" && !it.is_null());
        let name = text(volume, "name")?;
        let lacks =
            |kind: &str, field: &str| volume.get(kind).is_some_and(|it| it.is_object() && !is_set(it, field));
        if sources.count() > 1 {
            wrong("volumes", format!("the volume `{name}` has two sources"), "one source for each volume")
        } else if lacks("configMap", "name") || lacks("secret", "secretName") {
            wrong("volumes", format!("the volume `{name}` does not say of what it is"), "its name")
        } else {
            None
        }
    });
    let toleration = list(spec, "/tolerations").iter().find_map(|item| {
        let is_any = text(item, "operator") == Some("Exists");
        if is_any && text(item, "value").is_some_and(|it| !it.is_empty()) {
            let why = "a toleration with `operator: Exists` and a value";
            wrong("tolerations", why, "no value, or operator: Equal")
        } else if !is_any && text(item, "key").unwrap_or_default().is_empty() && item.is_object() {
            wrong("tolerations", "a toleration without a key is for all, by `Exists`", "operator: Exists")
        } else if is_set(item, "tolerationSeconds") && text(item, "effect") != Some("NoExecute") {
            let why = "a toleration with `tolerationSeconds` and another effect than NoExecute";
            wrong("tolerations", why, "effect: NoExecute")
        } else {
            None
        }
    });
    let both = is_true(spec, "hostPID") && is_true(spec, "shareProcessNamespace");
    let both = both.then(|| wrong("hostPID", "`hostPID` beside `shareProcessNamespace`", "one of them"));
    let has_servers = !list(spec, "/dnsConfig/nameservers").is_empty();
    let dns = (text(spec, "dnsPolicy") == Some("None") && !has_servers)
        .then(|| wrong("dnsPolicy", "`dnsPolicy: None` without nameservers", "dnsConfig.nameservers"));
    let ports = list(spec, "/containers").iter().flat_map(|own| list(own, "/ports"));
    let number = |port| Some((u64_of(port, "hostPort")?, protocol(port), text(port, "hostIP")));
    let port = twice(ports.filter_map(number));
    let port =
        port.and_then(|(it, ..)| wrong("containers", format!("hostPort {it} twice in a pod"), "one of them"));
    [name, volume, toleration, both.flatten(), dns.flatten(), port]
}

fn of_container(own: &Value, ends: bool, on_host: bool) -> [Option<Wrong>; 6] {
    let kinds = |it: &Value| {
        ["exec", "httpGet", "tcpSocket", "grpc"].into_iter().filter(|kind| is_set(it, kind)).count()
    };
    let probe = PROBES.into_iter().find_map(|name| {
        let probe = own.get(name).filter(|it| it.is_object())?;
        if ends {
            wrong(name, format!("`{name}` of an init container, which ends"), "take it out")
        } else if kinds(probe) != 1 {
            let why = format!("`{name}` asks in {} ways, and must in one", kinds(probe));
            wrong(name, why, "exec, httpGet, tcpSocket or grpc")
        } else if name != "readinessProbe" && probe.get("successThreshold").is_some_and(|it| *it != 1) {
            wrong(name, format!("`successThreshold` of a {name} is always 1"), "successThreshold: 1")
        } else {
            None
        }
    });
    let mounts = || list(own, "/volumeMounts").iter().filter_map(|mount| text(mount, "mountPath"));
    let mount = twice(mounts()).and_then(|path| {
        wrong("volumeMounts", format!("two volumes are mounted at `{path}`"), "a place for each")
    });
    let is_name = |name: &&str| !name.is_empty() && !name.contains('=');
    let names = || list(own, "/env").iter().filter_map(|item| text(item, "name"));
    let env = names().find(|name| !is_name(name));
    let env = env.and_then(|name| wrong("env", format!("a variable cannot be called `{name}`"), "its name"));
    let port = list(own, "/ports").iter().find_map(|port| {
        let number = |field: &str| port.get(field).and_then(Value::as_u64);
        let is_there = |port: &u64| (1..=65535).contains(port);
        if let Some(port) = number("containerPort").filter(|port| !is_there(port)) {
            return wrong("ports", format!("there is no port {port}"), "1 to 65535");
        }
        let (inner, outer) = (number("containerPort")?, number("hostPort").filter(|port| *port > 0)?);
        let why = || format!("`hostNetwork`, and hostPort {outer} is not containerPort {inner}");
        (on_host && inner != outer).then(|| wrong("ports", why(), "the same port twice, or no hostPort"))?
    });
    let named = twice(list(own, "/ports").iter().filter_map(|port| text(port, "name")));
    let named =
        named.and_then(|name| wrong("ports", format!("two ports are called `{name}`"), "other names"));
    let context = own.get("securityContext").filter(|it| is_true(it, "privileged"));
    let context = context.filter(|it| it.get("allowPrivilegeEscalation") == Some(&Value::Bool(false)));
    let context = context.and_then(|_| {
        let why = "`privileged` beside `allowPrivilegeEscalation: false`";
        wrong("securityContext", why, "one of them")
    });
    [probe, mount, env, port, named, context]
}

fn service(service: &Value) -> Option<Wrong> {
    let spec = service.get("spec")?;
    let ports = list(service, "/spec/ports");
    let kind = text(spec, "type").unwrap_or("ClusterIP");
    let is_headless = text(spec, "clusterIP") == Some("None");
    if is_headless && matches!(kind, "NodePort" | "LoadBalancer") {
        return wrong("spec.type", format!("`clusterIP: None` in a {kind}"), "no type, or no clusterIP");
    }
    if ports.is_empty() && !is_headless && kind != "ExternalName" {
        return wrong("spec.ports", "a Service without ports", "its ports, or clusterIP: None");
    }
    let lacks_name = ports.len() > 1 && ports.iter().any(|port| port.get("name").is_none());
    if lacks_name {
        return wrong("spec.ports", "several ports, and not all have a name", "name: … for each port");
    }
    if let Some(name) = twice(ports.iter().filter_map(|port| text(port, "name"))) {
        return wrong("spec.ports", format!("two ports are called `{name}`"), "other names");
    }
    let number = |port| Some((u64_of(port, "port")?, protocol(port)));
    let port = twice(ports.iter().filter_map(number));
    port.and_then(|(port, _)| wrong("spec.ports", format!("port {port} twice"), "each port once"))
}

/// An API server may have another range.
fn node_port(object: &Object) -> Option<Check> {
    let ports = list(&object.value, "/spec/ports").iter().filter(|_| object.kind == "Service");
    let mut ports = ports.filter_map(|port| port.get("nodePort")?.as_u64()).filter(|port| *port > 0);
    let port = ports.find(|port| !(30000..=32767).contains(port)).filter(|_| !object.has_blanks)?;
    let evidence = format!("nodePort {port} is not in the usual range: most API servers reject it");
    Some(Check::warn(evidence, "30000 to 32767, or none").at(object.place("spec.ports")))
}

fn job(spec: &Value, name: &str, most: usize) -> Option<Wrong> {
    const COUNTS: [&str; 5] =
        ["backoffLimit", "completions", "parallelism", "ttlSecondsAfterFinished", "activeDeadlineSeconds"];
    let is_negative = |field: &&str| spec.get(field).and_then(Value::as_i64).is_some_and(|it| it < 0);
    if let Some(field) = COUNTS.into_iter().find(is_negative) {
        return wrong("spec", format!("`{field}` is below 0"), "0 or more");
    }
    if name.len() > most && !is_placeholder(name) {
        return wrong("metadata.name", format!("{most} characters are the most"), "a shorter name");
    }
    let is_indexed = text(spec, "completionMode") == Some("Indexed");
    if is_set(spec, "backoffLimitPerIndex") && !is_indexed {
        let why = "`backoffLimitPerIndex` of a Job without indexes";
        return wrong("spec", why, "completionMode: Indexed");
    }
    let selects = ["matchLabels", "matchExpressions"].iter().any(|field| {
        spec.pointer(&format!("/selector/{field}")).is_some_and(|it| *it != json!({}) && *it != json!([]))
    });
    if selects && !is_true(spec, "manualSelector") {
        let why = "a `selector`, which Kubernetes makes itself";
        return wrong("spec", why, "take it out, or manualSelector: true");
    }
    let policy = spec.pointer("/template/spec/restartPolicy").and_then(Value::as_str);
    let is_other = is_set(spec, "podFailurePolicy") && policy == Some("OnFailure");
    let why = "`podFailurePolicy` beside `restartPolicy: OnFailure`";
    is_other.then(|| wrong("spec", why, "restartPolicy: Never"))?
}

fn claim(spec: &Value) -> Option<Wrong> {
    if list(spec, "/accessModes").is_empty() {
        return wrong("spec", "a claim without `accessModes`", "accessModes: [ReadWriteMany]");
    }
    let has_size = spec.pointer("/resources/requests/storage").is_some();
    (!has_size).then(|| wrong("spec", "a claim that asks for no storage", "resources.requests.storage"))?
}

//! Some mistakes pass every schema, and the API server rejects the object nevertheless: no pod is ever made.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "api-rejects",
    sees: "FAIL: a `volumeMount` whose volume is not there, two containers or volumes with one name, GPUs in \
           `requests` that `limits` do not have alike, a Service with several ports and no names for them, a \
           label with a blank or a `/` in its value",
    fails: "api-rejects.yaml",
    passes: "good-job-static.yaml",
    find: Find::Files(|manifests| {
        // A patch for another file lacks what that has.
        let is_whole = |pods: &Pods| pods.containers.iter().all(|own| own.value.get("image").is_some());
        let known = |pods: &&Pods| !pods.is_open && !pods.is_container && is_whole(pods);
        let of_pods = manifests.pods.iter().filter(known).filter_map(of_pods);
        let of_objects = manifests.objects.iter().filter(|object| !object.has_blanks);
        of_pods.chain(of_objects.filter_map(|object| ports(object).or_else(|| label(object)))).collect()
    }),
};

fn name(item: &Value) -> Option<&str> {
    item.get("name").and_then(Value::as_str).filter(|name| !is_placeholder(name))
}

fn of_pods(pods: &Pods) -> Option<Check> {
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
        || pods.owner.as_object().is_some_and(|owner| owner.iter().any(makes));
    pods.init_containers.iter().chain(&pods.containers).find_map(|container| {
        let mounts = list(&container.value, "/volumeMounts").iter().filter_map(name);
        let is_there = |wanted: &str| volumes().iter().any(|volume| name(volume) == Some(wanted));
        if let Some(wanted) = mounts.filter(|_| !adds).find(|wanted| !is_there(wanted)) {
            let evidence = format!("no volume is called `{wanted}`: the API server rejects the object");
            let remedy = format!("{wanted} in spec.volumes, or the name that stands there");
            return Some(Check::fail(evidence, remedy).at(pods.at(&container.at("volumeMounts"))));
        }
        let limits = texts(container.value.pointer("/resources/limits"));
        let requests = texts(container.value.pointer("/resources/requests"));
        let is_device = |name: &str| name.split_once('/').is_some_and(|(domain, _)| domain.contains('.'));
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

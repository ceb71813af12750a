//! A Service forwards only its own ports; a connection to another port hangs.

use super::prelude::*;
use serde_json::json;

pub(super) const RULE: Rule = Rule {
    id: "endpoint-port",
    sees: "FAIL: the Service does not have the port, or hands it on to another (`targetPort`), the port is \
           no number, or it is 0 and others are to find it",
    examples: ["case-fn38-port-differs.yaml", "good-service-of-one-pod.yaml"],
    find: Find::Files(find),
};

fn find(manifests: &Manifests) -> Vec<Check> {
    let of_rallypoint = |(pods, container): (&Pods, &Container)| {
        let (host, port) = container.rallypoint_endpoint()?;
        let Target::Service(service) = resolve(&host, pods, manifests) else { return None };
        let selects_all = takes(service, pods) == Taken::All && pods.are_several();
        let port = port.literal()?.parse().ok().filter(|_| !selects_all)?;
        Some(of_service(service, port)?.at(pods.at(&container.at("env"))))
    };
    let of_launches = manifests.calls().filter_map(|call| of_launch(&call));
    of_launches.chain(manifests.containers().filter_map(of_rallypoint)).collect()
}

fn of_launch(call: &Call<'_>) -> Option<Check> {
    let told = call.launch.port.as_ref()?;
    let text = told.text.literal().filter(|text| !text.is_empty() && !is_placeholder(text))?;
    // Another check says that each pod means itself.
    let is_own = call.launch.host.as_ref().is_some_and(|host| is_localhost(&host.text));
    let check = match text.trim().parse::<u16>() {
        Err(_) => {
            let evidence = format!("the port ({}) is `{text}`, no number up to 65535", told.by);
            Check::fail(evidence, "a port such as 29500")
        }
        Ok(0) if call.are_to_meet() && !is_own => {
            let evidence = format!(
                "the port ({}) is 0: the store takes a free one, which the others cannot know",
                told.by
            );
            Check::fail(evidence, "a port such as 29500")
        }
        Ok(port) => {
            let host = call.launch.host.as_ref()?;
            let Target::Service(service) = resolve(&host.text, call.pods, call.manifests) else {
                return None;
            };
            of_service(service, port).or_else(|| handed_on(call, service, port))?
        }
    };
    Some(check.at(call.at("command")))
}

/// The mistake if a Service over the pods with the store hands this port on to another than theirs.
fn handed_on(call: &Call<'_>, service: &Object, port: u16) -> Option<Check> {
    let ports = list(&service.value, "/spec/ports").iter();
    let target = ports.filter(|item| item["port"] == json!(port)).find_map(|item| item.get("targetPort"))?;
    let hosts = call.hosts_store() && !call.pods.serve() && !is_headless(service);
    let target = target.as_u64().filter(|target| hosts && *target != u64::from(port))?.to_string();
    let mut launches = call.manifests.together(call.pods).flat_map(Pods::launches);
    if launches.any(|launch| launch.known_port() == Some(target.as_str())) {
        return None;
    }
    let name = &service.name;
    let evidence = format!(
        "the Service `{name}` hands port {port} on to {target}, but the store listens on {port}: nobody \
         answers"
    );
    Some(Check::fail(evidence, format!("targetPort: {port}")))
}

/// The mistake if a Service does not have this port. Behind a headless Service every port can be reached.
fn of_service(service: &Object, port: u16) -> Option<Check> {
    let port_of = |item: &Value| item.get("port").and_then(Value::as_u64);
    let ports: Vec<u64> = list(&service.value, "/spec/ports").iter().filter_map(port_of).collect();
    if is_headless(service) || ports.is_empty() || ports.contains(&u64::from(port)) {
        return None;
    }
    let shown: Vec<String> = ports.iter().map(ToString::to_string).collect();
    let (name, shown) = (&service.name, shown.join(", "));
    let evidence = format!("port {port} of the Service `{name}` is asked for, but it has {shown}");
    Some(Check::fail(evidence, format!("add {{port: {port}}} to the Service, or use the port that it has")))
}

//! A Service forwards only its own ports; a connection to another port hangs.

use super::prelude::*;
use crate::manifest::launches::{flag, starts_ray};
use serde_json::json;

pub(super) const RULE: Rule = Rule {
    id: "endpoint-port",
    sees: "FAIL: the Service does not have the port, or hands it on to another (`targetPort`), the port is \
           no number, or it is 0 and others are to find it; a worker of Ray asks for another than its head's",
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
    let of_ray = |(pods, container): (&Pods, &Container)| of_ray(manifests, pods, container);
    let of_containers = |own| of_rallypoint(own).or_else(|| of_ray(own));
    of_launches.chain(manifests.containers().filter_map(of_containers)).collect()
}

/// A worker of Ray that asks for a port which its head, or the Service in front of it, does not have.
fn of_ray(manifests: &Manifests, pods: &Pods, container: &Container) -> Option<Check> {
    let starts = |own: &'_ Container, is_head: bool| {
        let commands = own.all_commands().filter(|command| starts_ray(&command.written()));
        let is_head_of = |command: &&Command| command.words.iter().any(|it| it.to_string() == "--head");
        commands.filter(|command| is_head_of(command) == is_head).cloned().collect::<Vec<_>>()
    };
    let asked = |command: Command| flag(&command.words, &["address"])?.text.split_once(':');
    let (host, port) = starts(container, false).into_iter().find_map(asked)?;
    let port: u16 = port.literal()?.parse().ok()?;
    let mut asks_at = port;
    if let Target::Service(service) = resolve(&host, pods, manifests) {
        if let Some(check) = of_service(service, port) {
            return Some(check.at(pods.at(&container.at("command"))));
        }
        let ports = list(&service.value, "/spec/ports").iter();
        let target = ports.filter(|it| it["port"] == json!(port)).find_map(|it| it.get("targetPort"));
        match target.filter(|_| !is_headless(service)) {
            Some(Value::Number(number)) => asks_at = number.as_u64()?.try_into().ok()?,
            Some(_) => return None,
            None => {}
        }
    }
    let of_head = |command: &Command| match flag(&command.words, &["port"]) {
        Some(told) => told.text.literal().and_then(|port| port.parse::<u16>().ok()),
        None => Some(6379),
    };
    let is_near = |other: &Pods| other.object == pods.object || !pods.are_tasks() && !other.are_tasks();
    let others = manifests.containers().filter(|(other, _)| is_near(other));
    let heads: Vec<Option<u16>> =
        others.flat_map(|(_, own)| starts(own, true)).map(|command| of_head(&command)).collect();
    let head = heads.first().copied().flatten()?;
    if heads.iter().any(|port| port.is_none_or(|port| port == asks_at)) {
        return None;
    }
    let evidence =
        format!("a worker of Ray asks its head at port {asks_at}, which listens on {head}: it never joins");
    Some(
        Check::fail(evidence, "one port in --port, in --address and in the Service")
            .at(pods.at(&container.at("command"))),
    )
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

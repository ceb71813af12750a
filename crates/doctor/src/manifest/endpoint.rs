//! Checks whether all pods meet at one place: what the master's name means for each of them.

use serde_json::Value;

use super::super::Check;
use super::Manifests;
use super::container::Container;
use super::launch::{Launch, Tool};
use super::names::{Taken, Target, is_headless, resolve, takes};
use super::objects::{Object, list};
use super::pods::Pods;
use rallypoint_node::launch::Backend;
use rallypoint_node::makers::{Maker, When};
use rallypoint_shell::Text;

pub(crate) fn check(pods: &Pods, manifests: &Manifests, checks: &mut Vec<Check>) {
    for container in &pods.containers {
        for launch in &container.launches {
            let found = of_launch(pods, manifests, launch);
            checks.extend(found.map(|check| check.at(pods.at(&container.at("command")))));
            let found = port(manifests, pods, launch);
            checks.extend(found.map(|check| check.at(pods.at(&container.at("command")))));
        }
        checks.extend(is_address(container).map(|check| check.at(pods.at(&container.at("env")))));
        checks.extend(of_rallypoint(pods, manifests, container));
        checks.extend(cluster_domain(container).map(|check| check.at(pods.at(&container.at("env")))));
    }
    checks.extend(waiting(pods, manifests));
}

/// Whether several pods have to meet, as far as it is known.
fn are_to_meet(pods: &Pods, manifests: &Manifests, launch: &Launch) -> bool {
    let total = manifests.nodes(pods).unwrap_or(1);
    match launch.tool {
        Tool::Torchrun | Tool::Accelerate if launch.nodes.is_none() => total > 1 && launch.host.is_some(),
        _ => launch.most_nodes().map_or(total > 1, |nodes| nodes > 1),
    }
}

fn of_launch(pods: &Pods, manifests: &Manifests, launch: &Launch) -> Option<Check> {
    if !are_to_meet(pods, manifests, launch) {
        return None;
    }
    let Some(told) = &launch.host else { return no_endpoint(pods, launch) };
    if told.text.is_empty() && told.text.literal().is_some() {
        return no_endpoint(pods, launch);
    }
    let name = &told.text;
    let several = pods.are_several();
    match resolve(name, pods, manifests) {
        Target::Own if several && !launch.conditional && !is_relayed(name, pods) => {
            let evidence = format!(
                "the endpoint `{name}` ({}) is each pod itself: every one hosts a store of its own and waits \
                 there alone",
                told.by
            );
            Some(Check::fail("endpoint-is-self", evidence, name_first(pods)))
        }
        Target::Pod { pods: other, is_first, index } => {
            other_pod(pods, manifests, launch, other, is_first, index)
        }
        Target::Service(service) => selects_all(pods, manifests, service, launch),
        Target::Nothing(why) => {
            let evidence = format!("the endpoint `{name}` ({}) names nothing: {why}", told.by);
            Some(Check::fail("endpoint-names-nothing", evidence, name_first(pods)))
        }
        // A standalone store is usually in other files.
        Target::Absent
            if matches!(launch.backend, Backend::Other(_)) || name.to_string().contains("rallypoint") =>
        {
            None
        }
        Target::Absent => {
            let evidence =
                format!("the endpoint `{name}` ({}) is no Service and no pod of these files", told.by);
            let remedy = format!("give the file with the Service `{name}` as well; or {}", name_first(pods));
            Some(Check::warn("endpoint-not-found", evidence, remedy))
        }
        Target::Own | Target::Elsewhere => None,
    }
}

/// Whether a relay listens at this address.
fn is_relayed(name: &Text, pods: &Pods) -> bool {
    let is_loopback = matches!(name.literal(), Some("127.0.0.1" | "localhost"));
    is_loopback && pods.init_containers.iter().chain(&pods.containers).any(Container::relays)
}

/// The remedy: the line to change.
fn name_first(pods: &Pods) -> String {
    match pods.first_host() {
        Some(host) => format!(
            "name the first pod, `{host}`, or a rallypoint server's Service with \
             --rdzv-conf=is_host=0"
        ),
        None => "name pod 0 (spec.subdomain and a headless Service of that name give pods names), or a \
                 rallypoint server's Service"
            .into(),
    }
}

fn no_endpoint(pods: &Pods, launch: &Launch) -> Option<Check> {
    const ID: &str = "command-endpoint";
    if launch.is_told_elsewhere
        || launch.by_rallypoint
        || launch.open
        || launch.conditional
        || !matches!(launch.tool, Tool::Torchrun | Tool::Accelerate)
    {
        return None;
    }
    // An etcd client takes its address from its own configuration.
    if matches!(launch.backend, Backend::Other(_)) {
        return None;
    }
    let nodes = launch.nodes.as_ref()?;
    let evidence = format!(
        "{} has {} = {} and no endpoint: each node waits alone on 127.0.0.1",
        launch.tool.name(),
        nodes.by,
        nodes.text
    );
    let remedy = match pods.maker {
        Maker::PyTorchJob if !pods.has(When::Master) => {
            "add a Master to pytorchReplicaSpecs (the operator then sets the endpoint), or an elasticPolicy"
                .into()
        }
        _ => match pods.first_host() {
            Some(host) => format!(
                "add --master-addr={host}, or start it with `rallypoint run`, which sets the endpoint"
            ),
            None => "add --rdzv-endpoint=HOST:29500, or start it with `rallypoint run`, which sets it".into(),
        },
    };
    // The operator sets PET_NNODES from release 1.7 on. Before that release, each pod trains alone.
    if nodes.by == "PET_NNODES" && pods.maker == Maker::PyTorchJob {
        let evidence = format!("{evidence} (PET_NNODES is set by the training operator from release 1.7 on)");
        return Some(Check::warn(ID, evidence, remedy));
    }
    Some(Check::fail(ID, evidence, remedy))
}

fn other_pod(
    pods: &Pods,
    manifests: &Manifests,
    launch: &Launch,
    other: &Pods,
    is_first: bool,
    index: u64,
) -> Option<Check> {
    let told = launch.host.as_ref()?;
    let name = &told.text;
    if other.object != pods.object {
        let serves = other.init_containers.iter().chain(&other.containers).any(Container::serves);
        let together = manifests.training(other.object).next().is_some();
        if serves || together || other.maker == Maker::Unknown {
            return None;
        }
        let evidence = format!(
            "the endpoint `{name}` ({}) is a pod of {}, which launches no training",
            told.by, other.place.object
        );
        return Some(Check::warn("endpoint-not-found", evidence, name_first(pods)));
    }
    let serves = other.init_containers.iter().chain(&other.containers).any(Container::serves);
    let fixed_rank =
        launch.needs_rank() && matches!(launch.tool, Tool::Torchrun | Tool::Accelerate | Tool::Program);
    // Each child Job may be a separate training.
    let units = pods.in_unit != pods.count;
    if is_first || !fixed_rank || serves || units || launch.conditional || launch.by_rallypoint {
        return None;
    }
    // The pod of rank 0 is known only if the rank is the index.
    let by_index = launch.node_rank.as_ref().is_none_or(|rank| {
        rank.text.source().is_some_and(|source| {
            matches!(
                source,
                rallypoint_shell::Source::Index
                    | rallypoint_shell::Source::EndOfHostName
                    | rallypoint_shell::Source::EndOfPodName
            )
        })
    });
    if !by_index || other.maker == Maker::VolcanoJob {
        return None;
    }
    let evidence = format!(
        "the endpoint `{name}` ({}) is pod {index}, but with the static backend rank 0 hosts the store: all \
         wait for a store that nobody starts",
        told.by
    );
    Some(Check::fail("endpoint-not-rank-0", evidence, name_first(pods)))
}

fn selects_all(pods: &Pods, manifests: &Manifests, service: &Object, launch: &Launch) -> Option<Check> {
    const ID: &str = "endpoint-selects-all";
    let taken: Vec<(&Pods, Taken)> = manifests
        .training(pods.object)
        .map(|own| (own, takes(service, own)))
        .filter(|(_, taken)| *taken != Taken::None)
        .collect();
    let count = taken
        .iter()
        .map(|(own, taken)| if *taken == Taken::One { Some(1) } else { own.count })
        .sum::<Option<u64>>()?;
    // A Service that selects a single pod is a good endpoint.
    if count < 2 {
        return None;
    }
    let (name, object) = (&service.name, &pods.place.object);
    let evidence = if is_headless(service) && launch.backend == Backend::C10d {
        format!(
            "the endpoint `{name}` is a headless Service over all pods of {object}: each finds its own \
             address behind the name and hosts a store of its own; with --nnodes=1:N each trains alone, and \
             all exit 0"
        )
    } else if is_headless(service) {
        format!(
            "the endpoint `{name}` is a headless Service over all pods of {object}: each connection goes to \
             any of them, and only one has the store"
        )
    } else {
        format!(
            "the endpoint `{name}` is a Service over all pods of {object}: each connection goes to another \
             pod"
        )
    };
    Some(Check::fail(ID, evidence, name_first(pods)))
}

/// Checks the port to which all pods connect.
fn port(manifests: &Manifests, pods: &Pods, launch: &Launch) -> Option<Check> {
    const ID: &str = "endpoint-port";
    let told = launch.port.as_ref()?;
    let text = told.text.literal()?;
    let Ok(port) = text.trim().parse::<u16>() else {
        let evidence = format!("the port ({}) is `{text}`, not a number", told.by);
        return (!text.is_empty()).then(|| Check::fail(ID, evidence, "a port such as 29500"));
    };
    let host = launch.host.as_ref()?;
    let Target::Service(service) = resolve(&host.text, pods, manifests) else { return None };
    service_port(service, port).map(|(evidence, remedy)| Check::fail(ID, evidence, remedy))
}

/// The mistake if a Service does not have this port. Behind a headless Service every port can be reached.
fn service_port(service: &Object, port: u16) -> Option<(String, String)> {
    let ports: Vec<u64> = list(&service.value, "/spec/ports")
        .iter()
        .filter_map(|item| item.get("port").and_then(Value::as_u64))
        .collect();
    if is_headless(service) || ports.is_empty() || ports.contains(&u64::from(port)) {
        return None;
    }
    let shown: Vec<String> = ports.iter().map(ToString::to_string).collect();
    let evidence = format!(
        "port {port} of the Service `{}` is asked for, but it has {}",
        service.name,
        shown.join(", ")
    );
    Some((evidence, format!("add {{port: {port}}} to the Service, or use the port that it has")))
}

/// Checks the endpoint of rallypoint's own commands.
fn of_rallypoint(pods: &Pods, manifests: &Manifests, container: &Container) -> Option<Check> {
    let text = container.variable("RALLYPOINT_ENDPOINT")?;
    let (host, port) = text.split_once(':').unwrap_or_else(|| (text.clone(), Text::default()));
    let place = || pods.at(&container.at("env"));
    match resolve(&host, pods, manifests) {
        Target::Service(service) => {
            let all = takes(service, pods) == Taken::All && pods.are_several();
            if all {
                let name = &service.name;
                let evidence = format!(
                    "the endpoint `{name}` is a Service over all pods of {}: each meets another store",
                    pods.place.object
                );
                return Some(Check::fail("endpoint-selects-all", evidence, name_first(pods)).at(place()));
            }
            let port = port.literal()?.parse().ok()?;
            let (evidence, remedy) = service_port(service, port)?;
            Some(Check::fail("endpoint-port", evidence, remedy).at(place()))
        }
        Target::Nothing(why) => {
            let evidence = format!("the endpoint `{host}` (RALLYPOINT_ENDPOINT) names nothing: {why}");
            Some(Check::fail("endpoint-names-nothing", evidence, name_first(pods)).at(place()))
        }
        _ => None,
    }
}

fn is_address(container: &Container) -> Option<Check> {
    let master = container
        .own
        .iter()
        .any(|name| name == "MASTER_ADDR")
        .then(|| container.variable("MASTER_ADDR"))??;
    let addr: std::net::IpAddr = master.literal()?.parse().ok()?;
    let far = !addr.is_loopback() && !addr.is_unspecified();
    (far && !container.launches.is_empty()).then(|| {
        let evidence =
            format!("MASTER_ADDR={addr} is the address of one pod; when that pod is rescheduled it changes");
        Check::warn(
            "master-is-address",
            evidence,
            "use a name: a Service, or pod 0 behind a headless Service",
        )
    })
}

fn cluster_domain(container: &Container) -> Option<Check> {
    let told = container.launches.iter().filter_map(|launch| launch.host.as_ref());
    let said = told
        .filter_map(|told| told.text.parts().last().map(|_| told.text.to_string()))
        .find(|text| text.ends_with(".svc.cluster.local"))?;
    Some(Check::warn(
        "cluster-domain",
        format!("`{said}` ends in .svc.cluster.local, which is only the usual domain of a cluster"),
        "write `name.service` or `name.service.namespace`; the resolver adds the rest",
    ))
}

/// Finds an init container that waits for something that exists only after all init containers are done.
fn waiting(pods: &Pods, manifests: &Manifests) -> Option<Check> {
    const ID: &str = "init-waits";
    const ASK_NAME: [&str; 5] = ["nslookup", "getent", "dig", "host", "ping"];
    const ASK_PORT: [&str; 3] = ["nc", "ncat", "curl"];
    if !pods.are_several() && pods.count != Some(1) {
        return None;
    }
    for (n, container) in pods.init_containers.iter().enumerate() {
        let is_sidecar = container.value.get("restartPolicy").and_then(Value::as_str) == Some("Always");
        // A branch may exclude pod 0.
        let branches = container
            .argv
            .iter()
            .any(|text| ["if ", "[[", "case ", "-ne ", "!= "].iter().any(|word| text.contains(word)));
        if is_sidecar || branches {
            continue;
        }
        let served_before = pods.init_containers[..n].iter().any(Container::serves);
        for command in &container.commands {
            let program = command.words[0].literal().unwrap_or_default();
            let (asks_name, asks_port) = (ASK_NAME.contains(&program), ASK_PORT.contains(&program));
            if !asks_name && !asks_port {
                continue;
            }
            for word in &command.words[1..] {
                let host = word.split(':').swap_remove(0);
                let Target::Pod { pods: other, .. } = resolve(&host, pods, manifests) else { continue };
                if other.object != pods.object || other.place.field != pods.place.field {
                    continue;
                }
                let hidden = other.subdomain.as_deref().and_then(|name| {
                    manifests.of_kind("Service").find(|service| {
                        service.name == name
                            && service.value.pointer("/spec/publishNotReadyAddresses")
                                != Some(&Value::Bool(true))
                    })
                });
                let place = pods.at(&container.at("command"));
                if let Some(service) = hidden.filter(|_| asks_name || !served_before) {
                    let evidence = format!(
                        "it waits for the name `{host}`, which the Service `{}` publishes only when that pod \
                         is Ready, and that pod waits here as well: for ever",
                        service.name
                    );
                    return Some(
                        Check::fail(ID, evidence, "publishNotReadyAddresses: true in that Service").at(place),
                    );
                }
                if asks_port && !served_before {
                    let evidence = format!(
                        "it waits for a port of `{host}`, but that pod has the same init container and opens \
                         no port before it is done: for ever"
                    );
                    return Some(
                        Check::fail(
                            ID,
                            evidence,
                            "take it out: torch itself waits for rank 0, or use `rallypoint wait` with a \
                             rallypoint server",
                        )
                        .at(place),
                    );
                }
            }
        }
    }
    None
}

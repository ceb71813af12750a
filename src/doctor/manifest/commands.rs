//! What is wrong in a container: its command, its variables, its image.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::{Check, check_command};
use super::containers::{Container, variables};
use super::objects::{Maker, Pods};
use crate::launch::{Backend, scripts};

pub(super) fn check(pods: &Pods, checks: &mut Vec<Check>) {
    for container in pods.init_containers.iter().chain(&pods.containers) {
        let mut found = Vec::new();
        if container.trains() {
            found.extend(of_torchrun(pods, container));
            found.extend(node_count(pods, container));
            found.extend(run_id_is_constant(container));
            found.extend(ranks(container));
            found.extend(rank_of_name(pods, container));
            found.extend(network_guesses(container));
            found.extend(master_is_address(container));
        }
        found.extend(unset_variables(container));
        found.extend(cluster_domain(container));
        found.extend(sleeps(container));
        found.extend(operator_variables(pods, container));
        if let Some((check, field)) = image(container) {
            found.push((check, field));
        }
        checks.extend(
            found
                .into_iter()
                .map(|(check, field)| check.at(pods.at(&format!("{}.{field}", container.field)))),
        );
    }
}

type Found = (Check, &'static str);

fn of_torchrun(pods: &Pods, container: &Container) -> Vec<Found> {
    let Some(torchrun) = &container.torchrun else { return Vec::new() };
    let told_later = container.is_run() || pods.maker == Maker::Operator || container.env_from;
    check_command(torchrun, &container.environment())
        .into_iter()
        .filter(|check| !(told_later && matches!(check.id, "command-endpoint" | "run-id")))
        .filter(|check| check.remedy.is_some())
        .map(|check| (check, "command"))
        .collect()
}

fn node_count(pods: &Pods, container: &Container) -> Option<Found> {
    let flag = container.torchrun.as_ref().and_then(|torchrun| torchrun.flag("nnodes"));
    let said = flag.or_else(|| container.value_of("PET_NNODES")).or_else(|| container.value_of("NNODES"))?;
    let said = container.filled(said);
    let nodes: u64 = said.parse().ok()?;
    let count = pods.count.filter(|_| pods.maker != Maker::Operator)?;
    (nodes != count).then(|| {
        let evidence = format!("the command expects {nodes} nodes, but there are {count} pods");
        (
            Check::fail("node-count", evidence, "change both together: the number of pods and --nnodes"),
            "command",
        )
    })
}

fn run_id_is_constant(container: &Container) -> Option<Found> {
    let id = container.torchrun.as_ref()?.flag("rdzv-id")?;
    let id = container.filled(id);
    (!id.is_empty() && !id.contains('$')).then(|| {
        let check = Check::warn(
            "constant-run-id",
            format!("every run is called `{id}`; on a long-lived store the next run meets what this one left"),
            "use the Job's UID: a variable JOB_UID from metadata.labels['batch.kubernetes.io/controller-uid'], and --rdzv-id=$(JOB_UID)",
        );
        (check, "command")
    })
}

fn ranks(container: &Container) -> Vec<Found> {
    let mut found = Vec::new();
    let script = container.argv.join("\n");
    let is_set = |name: &str| {
        container.env.iter().any(|(known, _)| known == name) || script.contains(&format!("export {name}="))
    };
    let set: Vec<&str> =
        ["RANK", "LOCAL_RANK", "WORLD_SIZE"].into_iter().filter(|name| is_set(name)).collect();
    let beside = container.torchrun.is_some();
    if beside && !set.is_empty() {
        let evidence =
            format!("{} set beside torchrun, which sets them for each worker itself", set.join(", "));
        found.push((Check::warn("ranks-beside-torchrun", evidence, "leave them out"), "env"));
    }
    let flag = container.torchrun.as_ref().and_then(|torchrun| torchrun.flag("nproc-per-node"));
    let processes = flag
        .or_else(|| container.value_of("PET_NPROC_PER_NODE"))
        .or_else(|| container.value_of("NPROC_PER_NODE"));
    let nodes = container.torchrun.as_ref().and_then(|torchrun| torchrun.flag("nnodes"));
    let nodes = nodes.or_else(|| container.value_of("NNODES")).or_else(|| container.value_of("POD_NUMS"));
    let (Some(world), Some(processes), Some(nodes)) = (container.value_of("WORLD_SIZE"), processes, nodes)
    else {
        return found;
    };
    let (world, processes) = (container.filled(world), container.filled(processes));
    if world == container.filled(nodes) && processes != "1" && world != "1" {
        let evidence = format!("WORLD_SIZE={world} counts pods, but each has {processes} processes");
        let remedy = "WORLD_SIZE is pods x processes; with torchrun leave it out";
        let check = if beside {
            Check::warn("world-size", evidence, remedy)
        } else {
            Check::fail("world-size", evidence, remedy)
        };
        found.push((check, "env"));
    }
    found
}

fn rank_of_name(pods: &Pods, container: &Container) -> Option<Found> {
    let numbered_by_name = matches!(pods.maker, Maker::StatefulSet | Maker::Operator | Maker::Pod);
    let takes_end = |name: &str| container.argv.iter().any(|text| text.contains(&format!("{{{name}##*-}}")));
    // The host name of an Indexed Job's pod does end in its index.
    let host_ends_in_index = pods.maker == Maker::Job { indexed: true };
    let wrong = takes_end("POD_NAME") || takes_end("HOSTNAME") && !host_ends_in_index;
    (!numbered_by_name && wrong).then(|| {
        let check = Check::fail(
            "rank-from-pod-name",
            "the rank is taken from the end of the pod's name, which is random here (`job-3-x7k2p`)",
            "use $JOB_COMPLETION_INDEX, which an Indexed Job sets",
        );
        (check, "command")
    })
}

/// Variables that nobody sets: `$(NAME)` stays as it is written, `${NAME}` becomes nothing.
fn unset_variables(container: &Container) -> Vec<Found> {
    const FROM_ELSEWHERE: [&str; 6] = ["JOB_COMPLETION_INDEX", "HOSTNAME", "HOME", "PATH", "PWD", "RANDOM"];
    const PREFIXES: [&str; 6] = ["KUBERNETES_", "PET_", "SLURM_", "LWS_", "VC_", "NVIDIA_"];
    let of_platform =
        |name: &str| FROM_ELSEWHERE.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let mut found = Vec::new();
    let mut say = |name: &str, form: String, what: &str, field| {
        let evidence = format!("{form} is used, but {what}");
        let remedy = format!("define {name} in env before its first use (the platform does not inject it)");
        found.push((Check::fail("unset-variable", evidence, remedy), field));
    };
    let is_script = !scripts(&container.argv).is_empty();
    for text in &container.argv {
        for name in variables(text, false).into_iter().filter(|_| !is_script) {
            if !container.defines(name) && !of_platform(name) {
                say(
                    name,
                    format!("$({name})"),
                    "no variable of that name is defined: it stays as it is written",
                    "command",
                );
            }
        }
    }
    for (n, (_, value)) in container.env.iter().enumerate() {
        for name in variables(value.as_deref().unwrap_or_default(), false) {
            let before = container.env[..n].iter().any(|(known, _)| known == name);
            if !before && !container.env_from {
                say(name, format!("$({name})"), "is not defined before: it stays as it is written", "env");
            }
        }
    }
    // In a script only what says where the nodes meet and who they are; any other variable may be the script's own affair.
    if is_script {
        let told = told_to_torchrun(container).into_iter().chain(exported_addresses(container));
        let names: BTreeSet<String> = told
            .flat_map(|value| variables(&value, true).into_iter().map(str::to_owned).collect::<Vec<_>>())
            .filter(|name| !container.defines(name) && !of_platform(name))
            .collect();
        for name in names {
            say(&name, format!("${{{name}}}"), "nothing sets it: it is empty", "command");
        }
    }
    found
}

/// The values of torchrun's flags that every node must agree on, or that tell the nodes apart.
fn told_to_torchrun(container: &Container) -> Vec<String> {
    const FLAGS: [&str; 7] =
        ["rdzv-endpoint", "rdzv-id", "master-addr", "master-port", "nnodes", "node-rank", "nproc-per-node"];
    let torchrun = container.torchrun.iter();
    torchrun
        .flat_map(|torchrun| FLAGS.into_iter().filter_map(|flag| torchrun.flag(flag)))
        .map(Into::into)
        .collect()
}

/// What a script assigns to the variables that torch reads.
fn exported_addresses(container: &Container) -> Vec<String> {
    const READ_BY_TORCH: [&str; 5] =
        ["MASTER_ADDR", "MASTER_PORT", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_RDZV_ENDPOINT"];
    let words = scripts(&container.argv).into_iter().flatten();
    words
        .filter_map(|word| {
            let (name, value) = word.split_once('=')?;
            READ_BY_TORCH.contains(&name).then(|| value.to_owned())
        })
        .collect()
}

fn cluster_domain(container: &Container) -> Option<Found> {
    let values = container.env.iter().filter_map(|(_, value)| value.as_ref());
    let said = container.argv.iter().chain(values).any(|text| text.contains(".svc.cluster.local"));
    said.then(|| {
        let check = Check::warn(
            "cluster-domain",
            "a name ends in .svc.cluster.local, which is only the usual domain of a cluster",
            "write `name.service` or `name.service.namespace`; the resolver adds the rest",
        );
        (check, "env")
    })
}

fn sleeps(container: &Container) -> Option<Found> {
    let sleep = scripts(&container.argv).into_iter().find(|line| {
        line.first().is_some_and(|word| word == "sleep") && line.get(1).is_none_or(|time| time != "infinity")
    })?;
    let check = Check::warn(
        "sleep-as-synchronisation",
        format!("`{}` hopes that the others are up by then", sleep.join(" ")),
        "wait for what is needed: an init container with `rallypoint wait --nodes N`, or start with `rallypoint run`",
    );
    Some((check, "command"))
}

fn network_guesses(container: &Container) -> Vec<Found> {
    let guess = |name: &'static str, bad: &str| {
        container.value_of(name).filter(|value| *value == bad).map(|value| (name, value.to_owned()))
    };
    [guess("NCCL_IB_DISABLE", "1"), guess("NCCL_SOCKET_IFNAME", "eth0"), guess("GLOO_SOCKET_IFNAME", "eth0")]
        .into_iter()
        .flatten()
        .map(|(name, value)| {
            let evidence = format!("{name}={value} is right on some clusters, and slow or broken on others");
            (Check::warn("network-guess", evidence, "leave it out unless this cluster needs it"), "env")
        })
        .collect()
}

fn master_is_address(container: &Container) -> Option<Found> {
    let master = container.value_of("MASTER_ADDR")?;
    let addr: std::net::IpAddr = master.parse().ok()?;
    (!addr.is_loopback()).then(|| {
        let evidence = format!(
            "MASTER_ADDR={master} is the address of one pod; when that pod is rescheduled it changes"
        );
        (
            Check::warn(
                "master-is-address",
                evidence,
                "use a name: a Service, or pod 0 behind a headless Service",
            ),
            "env",
        )
    })
}

/// Kubeflow's Trainer v2 rejects a TrainJob that sets its variables.
fn operator_variables(pods: &Pods, container: &Container) -> Option<Found> {
    const ITS_OWN: [&str; 5] =
        ["PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"];
    if !pods.place.object.starts_with("TrainJob/") {
        return None;
    }
    let set: Vec<&str> =
        container.env.iter().map(|(name, _)| name.as_str()).filter(|name| ITS_OWN.contains(name)).collect();
    (!set.is_empty()).then(|| {
        let evidence = format!("a TrainJob that sets {} is rejected", set.join(", "));
        (Check::fail("operator-variables", evidence, "use spec.trainer.numNodes and numProcPerNode"), "env")
    })
}

fn image(container: &Container) -> Option<Found> {
    let image = container.value.get("image").and_then(Value::as_str)?;
    let name = image.rsplit('/').next().unwrap_or(image);
    let pinned = image.contains('@') || name.split_once(':').is_some_and(|(_, tag)| tag != "latest");
    (!pinned).then(|| {
        let evidence = format!("`{image}` may be another image on each node, with another PyTorch");
        (Check::warn("image-not-pinned", evidence, "name a version, or better a digest"), "image")
    })
}

/// Whether the container's torchrun uses the c10d backend.
pub(super) fn is_c10d(container: &Container) -> bool {
    let of_env = || container.value_of("PET_RDZV_BACKEND").map(Backend::parse);
    container.torchrun.as_ref().and_then(|torchrun| torchrun.backend().or_else(of_env)) == Some(Backend::C10d)
}

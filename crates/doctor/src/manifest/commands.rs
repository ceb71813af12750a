//! Mistakes within one container: its command, its variables, its image.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::{Check, check_command};
use super::container::Container;
use super::launch::{Launch, Tool};
use super::objects::{list, texts};
use super::pods::Pods;
use rallypoint_node::launch::Backend;
use rallypoint_node::makers::{Maker, env_of_field};
use rallypoint_shell::{Command, Text, Variable, basename};

pub(crate) fn check(pods: &Pods, checks: &mut Vec<Check>) {
    for container in pods.init_containers.iter().chain(&pods.containers) {
        let mut found = Vec::new();
        if container.trains() {
            for launch in &container.launches {
                found.extend(of_torchrun(pods, launch));
                found.extend(unset(pods, container, launch));
                found.extend(sleep_before(container, launch));
            }
            found.extend(ranks_beside(container));
            found.extend(network_guesses(pods, container));
            found.extend(shared_memory(pods, container));
            found.extend(trainers_variables(pods, container));
        }
        found.extend(left_as_written(pods, container));
        found.extend(image(container));
        checks.extend(found.into_iter().map(|(check, field)| check.at(pods.at(&container.at(field)))));
    }
}

type Found = (Check, &'static str);

/// Mistakes in torchrun's flags that any pod can have. Another check compares the endpoint with the other
/// pods.
fn of_torchrun(pods: &Pods, launch: &Launch) -> Vec<Found> {
    let Some(torchrun) = &launch.torchrun else { return Vec::new() };
    if launch.is_told_elsewhere {
        return Vec::new();
    }
    check_command(torchrun, &launch.environment)
        .into_iter()
        .filter(|check| match check.id {
            "rdzv-conf-keys" | "flags-of-other-backend" => true,
            // A variable outside these files may set it.
            "c10d-restarts" => !launch.open && !launch.by_rallypoint,
            _ => false,
        })
        .filter(|check| check.id != "flags-of-other-backend" || pods.are_several())
        .filter(|check| check.remedy.is_some())
        .map(|check| (check, "command"))
        .collect()
}

/// Unset variables in the values for the endpoint and the node's rank. Other values are left to the script.
fn unset(pods: &Pods, container: &Container, launch: &Launch) -> Vec<Found> {
    let mut said = BTreeSet::new();
    let mut found = Vec::new();
    if launch.open {
        return found;
    }
    for (what, told) in launch.told() {
        for name in told.text.unset() {
            let of_maker = pods.facts().prefixes.iter().any(|prefix| name.starts_with(prefix));
            let of_service = name.ends_with("_SERVICE_HOST") || name.contains("_SERVICE_PORT");
            // Another check names the cause: pods without an index.
            let is_index = pods.maker == Maker::Job && name == "JOB_COMPLETION_INDEX";
            let is_early = container.too_early.iter().any(|(_, early)| early == name);
            if of_maker || of_service || is_index || is_early || !said.insert(name.to_owned()) {
                continue;
            }
            let evidence = if name.contains('/') {
                format!(
                    "{what} comes from the label {name}, which a {} does not give to its pods: it is empty",
                    pods.facts().name
                )
            } else {
                format!("{what} ({}) is made of ${name}, but nothing sets it: it is empty", told.by)
            };
            found.push((Check::fail("unset-variable", evidence, remedy(pods, name)), "command"));
        }
    }
    found
}

/// `$(NAME)` that the kubelet does not expand: in a command without a shell, and in variables that come too
/// early.
fn left_as_written(pods: &Pods, container: &Container) -> Vec<Found> {
    let of_maker = |name: &str| pods.facts().prefixes.iter().any(|prefix| name.starts_with(prefix));
    let mut found = Vec::new();
    for (variable, name) in &container.too_early {
        let later = container.variables.contains_key(name);
        let why = match (later, container.own.contains(name)) {
            (true, true) => "which is defined only after it",
            (true, false) => "which the maker adds only after it",
            (false, _) => "which is not defined",
        };
        let evidence = format!("{variable} names $({name}), {why}: the text stays as it is written");
        let advice = match (later, container.own.contains(name)) {
            (true, false) => format!("use ${name} in the command, where it is filled in"),
            _ => remedy(pods, name),
        };
        found.push((Check::fail("unset-variable", evidence, advice), "env"));
    }
    for name in &container.left_as_written {
        if of_maker(name)
            || container
                .launches
                .iter()
                .any(|launch| launch.told().any(|(_, told)| told.text.unset().any(|unset| unset == name)))
        {
            continue;
        }
        let evidence =
            format!("$({name}) is used, but no variable of that name is defined: it stays as it is written");
        found.push((Check::fail("unset-variable", evidence, remedy(pods, name)), "command"));
    }
    found
}

fn remedy(pods: &Pods, name: &str) -> String {
    let facts = pods.facts();
    let is_rank = ["RANK", "INDEX", "ORDINAL"].iter().any(|word| name.to_uppercase().contains(word));
    let is_id = ["UID", "RUN_ID", "JOB_ID", "RDZV_ID"].iter().any(|word| name.to_uppercase().contains(word));
    match (facts.index, facts.run_id) {
        (Some(index), _) if is_rank => match index.in_env() {
            Some(line) => format!("put into env: {line}, and use $POD_INDEX"),
            None => format!("use {}, which a {} sets", index.in_shell(), facts.name),
        },
        (_, Some(path)) if is_id => format!("put into env: {}", env_of_field(name, path)),
        _ => format!("define {name} in env, before its first use; a {} does not set it", facts.name),
    }
}

/// Torch's variables for a process, set beside torchrun, which sets them itself.
fn ranks_beside(container: &Container) -> Option<Found> {
    let launch = container.launches.iter().find(|launch| launch.tool == Tool::Torchrun)?;
    let texts = container.argv.iter().chain(std::iter::empty());
    let values =
        list(&container.value, "/env").iter().filter_map(|item| item.get("value").and_then(Value::as_str));
    let all: Vec<&str> = texts.map(String::as_str).chain(values).collect();
    let is_used = |name: &str| {
        all.iter().any(|text| {
            [format!("${name}"), format!("${{{name}"), format!("$({name})")]
                .iter()
                .any(|form| text.contains(form.as_str()))
        })
    };
    let exported = |name: &str| {
        container.commands.get(launch.at).is_some_and(|command| {
            command.variables.contains_key(name)
                && command.variables.get(name) != container.variables.get(name)
        })
    };
    let set: Vec<&str> = ["RANK", "LOCAL_RANK", "WORLD_SIZE"]
        .into_iter()
        .filter(|name| (container.own.iter().any(|own| own == name) || exported(name)) && !is_used(name))
        .collect();
    (!set.is_empty() && container.unread.is_empty()).then(|| {
        let evidence =
            format!("{} set beside torchrun, which sets them for each worker itself", set.join(", "));
        (Check::warn("ranks-beside-torchrun", evidence, "leave them out"), "env")
    })
}

/// A pause before the launch, in the hope that the other pods are up by then.
fn sleep_before(container: &Container, launch: &Launch) -> Option<Found> {
    let several = launch.most_nodes().is_none_or(|nodes| nodes > 1);
    let sleep = container.commands[..launch.at.min(container.commands.len())].iter().find(|command| {
        command.words[0].literal() == Some("sleep")
            && !command.conditional
            && command.words.get(1).and_then(Text::literal) != Some("infinity")
    })?;
    let words: Vec<String> = sleep.words.iter().map(ToString::to_string).collect();
    several.then(|| {
        let check = Check::warn(
            "sleep-as-synchronisation",
            format!("`{}` hopes that the others are up by then", words.join(" ")),
            "wait for what is needed: an init container with `rallypoint wait --nodes N`, or start with \
             `rallypoint run`",
        );
        (check, "command")
    })
}

fn network_guesses(pods: &Pods, container: &Container) -> Vec<Found> {
    let is = |name: &str, bad: &str| container.variable(name).and_then(Text::literal) == Some(bad);
    let devices: Vec<String> = texts(container.value.pointer("/resources/limits"))
        .into_keys()
        .filter(|name| {
            name.starts_with("rdma/")
                || name.contains("infiniband")
                || name.contains("/hostdev")
                || name.contains("/ib")
        })
        .collect();
    let mut found = Vec::new();
    if is("NCCL_IB_DISABLE", "1") && !devices.is_empty() {
        let evidence = format!(
            "NCCL_IB_DISABLE=1, though the container asks for {}: NCCL uses slow TCP",
            devices.join(", ")
        );
        found.push((Check::warn("network-guess", evidence, "take NCCL_IB_DISABLE out"), "env"));
    }
    let on_host = pods.spec.get("hostNetwork") == Some(&Value::Bool(true));
    for name in ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"] {
        if on_host && is(name, "eth0") {
            let evidence = format!("{name}=eth0 with hostNetwork: few hosts call their network so");
            found.push((
                Check::warn(
                    "network-guess",
                    evidence,
                    "leave it out, or name what the hosts have (`ip -br link`)",
                ),
                "env",
            ));
        }
    }
    found
}

/// Processes of one pod communicate through `/dev/shm`, which has 64 MiB unless a volume is mounted there.
fn shared_memory(pods: &Pods, container: &Container) -> Option<Found> {
    let by_flag = |launch: &Launch| {
        let told = launch.processes.as_ref().filter(|told| told.by.starts_with("--"))?;
        told.text.literal()?.parse::<u64>().ok()
    };
    let said = container.launches.iter().find_map(by_flag);
    // Processes on CPUs communicate over TCP.
    let on_cpus = container.argv.iter().any(|text| text.contains("gloo"));
    let processes = said.or_else(|| container.gpus()).unwrap_or(1);
    let mounted = list(&container.value, "/volumeMounts").iter().any(|mount| {
        let at = mount.get("mountPath").and_then(Value::as_str).unwrap_or_default();
        matches!(at.trim_end_matches('/'), "/dev/shm" | "/dev")
    });
    let by_host = pods.spec.get("hostIPC") == Some(&Value::Bool(true));
    // A TrainJob has the volumes of its runtime.
    let elsewhere =
        pods.maker == Maker::TrainJob || container.launches.iter().all(|launch| launch.conditional);
    (processes > 1 && !on_cpus && !mounted && !by_host && !elsewhere && !pods.is_open).then(|| {
        let evidence = format!(
            "{processes} processes share the 64 MiB that /dev/shm has by itself; NCCL and \
             data loaders need more"
        );
        let remedy = "a volume {name: shm, emptyDir: {medium: Memory}}, mounted at /dev/shm";
        (Check::warn("shared-memory", evidence, remedy), "volumeMounts")
    })
}

/// Kubeflow's Trainer v2 rejects a TrainJob that sets its variables.
fn trainers_variables(pods: &Pods, container: &Container) -> Option<Found> {
    if pods.place.field != "spec.trainer" {
        return None;
    }
    let its_own = |name: &&String| {
        name.starts_with("PET_") && pods.facts().variables.iter().any(|known| known.name == name.as_str())
    };
    let set: Vec<&str> = container.own.iter().filter(its_own).map(String::as_str).collect();
    (!set.is_empty()).then(|| {
        let evidence = format!("a TrainJob that sets {} is rejected", set.join(", "));
        (Check::fail("operator-variables", evidence, "use spec.trainer.numNodes and numProcPerNode"), "env")
    })
}

fn image(container: &Container) -> Option<Found> {
    // A variable or `<YOUR IMAGE>` is a placeholder.
    let is_open = |image: &&str| image.contains(['$', '<']);
    let image = container.value.get("image").and_then(Value::as_str).filter(|image| !is_open(image))?;
    if only_waits(container) {
        return None;
    }
    let name = image.rsplit('/').next().unwrap_or(image);
    let pinned = image.contains('@') || name.split_once(':').is_some_and(|(_, tag)| tag != "latest");
    (!pinned).then(|| {
        let evidence = format!("`{image}` may be another image on each node, with another PyTorch");
        (Check::warn("image-not-pinned", evidence, "name a version, or better a digest"), "image")
    })
}

/// Whether the container runs only small programs of a shell, such as `sleep` in busybox: it needs no
/// PyTorch.
fn only_waits(container: &Container) -> bool {
    const SMALL: [&str; 12] = [
        "cat", "date", "echo", "exit", "false", "hostname", "nslookup", "printf", "set", "sleep", "test",
        "true",
    ];
    let is_small = |command: &Command| {
        command
            .words
            .first()
            .and_then(Text::literal)
            .is_some_and(|program| SMALL.contains(&basename(program)))
    };
    container.unread.is_empty() && !container.commands.is_empty() && container.commands.iter().all(is_small)
}

/// Whether the container's launch uses the c10d backend.
pub(crate) fn is_c10d(container: &Container) -> bool {
    container.launches.iter().any(|launch| launch.backend == Backend::C10d)
}

/// A variable's text at the time of the launch.
pub(crate) fn at_launch(container: &Container, launch: &Launch, name: &str) -> Option<Text> {
    let command = container.commands.get(launch.at);
    let variables = command.map_or(&container.variables, |command| &*command.variables);
    match variables.get(name)? {
        Variable::One(text) => Some(text.clone()),
        Variable::Array(_) => None,
    }
}

//! All nodes must meet at one store. Where each means itself, or a name that nothing has, or one of several
//! pods, or a pod that hosts no store, they wait until their time-out, or train alone.

use super::prelude::*;
use crate::manifest::launches::{flag, starts_ray};

pub(super) const RULE: Rule = Rule {
    id: "endpoint",
    sees: "FAIL: `--rdzv-endpoint=$HOSTNAME:29500`, `localhost`: every pod hosts a store of its own (unless \
           it has a [relay](relay.md)); `--master-addr=trainer-0.train`, but the pods are called `train-0`, \
           …, or have no subdomain; `train-0:2222` alone; a Service over all pods of the job; static \
           backend with `--master-addr=train-1.train`, but rank 0 hosts the store; `$(scontrol show \
           hostnames)` without `head`. WARN: a headless Service over all pods where no c10d backend is; the \
           host is nothing in these files or their folder, or a pod's address",
    examples: ["bad-job-localhost.yaml", "good-job-relay.yaml"],
    find: Find::Files(|manifests| {
        let of_launches = manifests.calls().filter_map(|call| {
            let (told, target) = call.meeting()?;
            let check = of_all(&call, told, &target).or_else(|| of_one(&call, told, target))?;
            Some(check.at(call.at("command")))
        });
        let of_address = manifests
            .calls()
            .filter_map(|call| of_address(&call).or_else(|| of_names(&call)).or_else(|| in_brackets(&call)));
        let of_rallypoint =
            manifests.containers().filter_map(|(pods, own)| of_rallypoint(manifests, pods, own));
        let of_ray = manifests.containers().filter_map(|(pods, own)| of_ray(manifests, pods, own));
        let of_words = manifests.pods.iter().filter_map(|pods| written(manifests, pods));
        of_launches.chain(of_address).chain(of_rallypoint).chain(of_ray).chain(of_words).collect()
    }),
};

/// `HOST:PORT` in a command or a variable, whose host is a pod's name without its domain.
fn written(manifests: &Manifests, pods: &Pods) -> Option<Check> {
    let is_told = |host: &str| {
        let mut hosts = pods.launches().filter_map(|launch| launch.host.as_ref());
        hosts.any(|told| told.text.literal() == Some(host))
    };
    let is_lone = |host: &str| pods.maker == Maker::Pod && pods.name == host;
    let found = pods.containers.iter().find_map(|own| {
        let of_commands = own.commands.iter().flat_map(|command| &command.words);
        let of_env = own.own.iter().filter_map(|name| own.variables.get(name)).flatten();
        let texts = of_commands.chain(of_env).filter_map(Text::literal);
        let mut pieces = texts.flat_map(|text| text.split([',', '=', ' ', '/', '@', '"', '\'', '[', ']']));
        pieces.find_map(|piece| {
            let (host, port) = piece.split_once(':').filter(|(host, _)| !host.contains('.'))?;
            port.parse::<u16>().ok().filter(|_| !is_told(host) && !is_lone(host))?;
            match resolve(&Text::known(host), pods, manifests) {
                Target::Nothing(why) => Some((own, piece.to_owned(), why)),
                _ => None,
            }
        })
    });
    let (own, piece, why) = found.filter(|_| !pods.on_host() && !pods.are_tasks())?;
    let evidence = format!("`{piece}` names nothing: {why}");
    Some(Check::fail(evidence, "the whole name of a pod, or a Service").at(pods.at(&own.at("command"))))
}

/// A host that is right until its pod is rescheduled.
fn of_address(call: &Call<'_>) -> Option<Check> {
    let Told { text, by } = call.launch.host.as_ref()?;
    let host = text.to_string();
    let is_address = call.sets("MASTER_ADDR")
        && !call.pods.are_tasks()
        && host.parse().is_ok_and(|it: std::net::IpAddr| !it.is_loopback() && !it.is_unspecified());
    is_address.then(|| {
        let evidence =
            format!("{by}={host} is the address of one pod; when that pod is rescheduled it changes");
        let remedy = "use a name: a Service, or pod 0 behind a headless Service";
        Check::warn(evidence, remedy).at(call.at("env"))
    })
}

/// Brackets are for the addresses of IPv6, which have colons. torchrun takes them off any host.
fn in_brackets(call: &Call<'_>) -> Option<Check> {
    if matches!(call.launch.tool(), Tool::Torchrun | Tool::Accelerate) {
        return None;
    }
    let Told { text, by } = call.launch.host.as_ref()?;
    let host = text.literal()?;
    let inner =
        host.strip_prefix('[')?.strip_suffix(']').filter(|it| !it.contains(':') && !is_placeholder(it))?;
    let evidence = format!("{by}={host}: no host has brackets in its name, so none finds it");
    Some(Check::fail(evidence, format!("{by}={inner}")).at(call.at("command")))
}

/// What Slurm answers is a line for each node.
fn of_names(call: &Call<'_>) -> Option<Check> {
    let nodes = call.pods.step.size.nodes.filter(|nodes| *nodes > 1)?;
    let Told { text, by } = call.launch.host.as_ref()?;
    let host = text.to_string();
    Some(of_all_nodes(&host, by, nodes)?.at(call.at("command")))
}

fn of_all_nodes(host: &str, by: &str, nodes: u64) -> Option<Check> {
    let is_list = ["SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST"]
        .contains(&host.trim_matches(['$', '{', '}']));
    let are_lines =
        host.starts_with("$(scontrol show hostname") && host.ends_with(')') && !host.contains('|');
    let evidence = format!("`{host}` ({by}) is the names of all {nodes} nodes, and no host");
    let names = if is_list { "$(scontrol show hostnames \"$SLURM_JOB_NODELIST\"" } else { host };
    let remedy = format!("{} | head -n 1)", names.trim_end_matches(')'));
    (is_list || are_lines).then(|| Check::fail(evidence, remedy))
}

/// A Service over all pods of the job. One that selects a single pod is a good endpoint.
fn of_all(call: &Call<'_>, told: &Told, target: &Target<'_>) -> Option<Check> {
    let pods = call.pods;
    let of_pods = |own: &Pods| match target {
        Target::Service(service) => match takes(service, own) {
            Taken::None => Some(0),
            Taken::One => Some(1),
            Taken::All => own.count,
        },
        Target::Governing => own.count.filter(|_| own.subdomain == pods.subdomain),
        _ => Some(0),
    };
    if call.manifests.together(pods).map(of_pods).sum::<Option<u64>>()? < 2 {
        return None;
    }
    let is_headless = !matches!(target, Target::Service(service) if !is_headless(service));
    let has_python = || call.launch.command.words.iter().any(|word| word.to_string().contains("python"));
    let is_torch = call.launch.tool() != Tool::Program || has_python();
    let (headless, then, is_found) = match (is_headless, &call.launch.backend) {
        (true, Backend::C10d) => (
            "headless ",
            "each finds its own address behind the name and hosts a store of its own; with --nnodes=1:N each \
             trains alone, and all exit 0",
            false,
        ),
        (true, _) if is_torch => (
            "headless ",
            "torch tries one after the other until it meets the store; what else uses the name gets any",
            true,
        ),
        (true, _) => ("headless ", "each connection goes to any of them, and only one has the store", false),
        (false, _) => ("", "each connection goes to another pod", false),
    };
    let object = &pods.place.object;
    let what = format!("is a {headless}Service over all pods of {object}: {then}");
    let tell = if is_found { Check::warn } else { Check::fail };
    Some(tell(format!("the endpoint `{}` {what}", told.text), first_pod(pods, &told.by)))
}

/// A host that is no store, or that nobody finds.
fn of_one(call: &Call<'_>, Told { text, by }: &Told, target: Target<'_>) -> Option<Check> {
    let Call { manifests, pods, launch, .. } = call;
    let is_other = |other: &Pods| other.object != pods.object;
    let is_absent = matches!(target, Target::Absent);
    let is_single = pods.maker == Maker::Pod && call.total() == Some(1);
    let (is_certain, what) = match target {
        Target::Own => {
            let is_first = pods.maker == Maker::Pod || pods.hosts.iter().any(|hosts| hosts.has_first);
            let are_others = pods.are_alike() || pods.nodes.is_some_and(|nodes| nodes > 1) && !is_first;
            if !are_others || call.is_of_one_node() || pods.relays(text) {
                return None;
            }
            (true, "is each pod itself: every one hosts a store of its own and waits there alone".into())
        }
        // A Service may have the name of a single Pod.
        Target::Nothing(why) => (!is_single, format!("names nothing: {why}")),
        _ if pods.are_tasks() => return None,
        // A standalone store is usually in other files.
        Target::Absent
            if matches!(launch.backend, Backend::Other(_))
                || text.to_string().contains("rallypoint")
                || manifests.is_beside(&text.to_string()) =>
        {
            return None;
        }
        Target::Absent => (false, "is no Service of these files, and no pod has this name for others".into()),
        Target::Pod { pods: other, .. }
            if is_other(other)
                && !other.serve()
                && manifests.training(other.object).next().is_none()
                && other.maker != Maker::Unknown
                && !call.is_together(other) =>
        {
            (false, format!("is a pod of {}, which launches no training", other.place.object))
        }
        Target::Pod { pods: other, is_first: false, index } if !is_other(other) && !hosts(call, other) => {
            let why = "but with the static backend rank 0 hosts the store: all wait for a store that nobody \
                       starts";
            (true, format!("is pod {index}, {why}"))
        }
        _ => return None,
    };
    let evidence = format!("the endpoint `{text}` ({by}) {what}");
    let remedy = first_pod(pods, by);
    if is_absent {
        let remedy = format!("give the file with the Service `{text}` as well; or {remedy}");
        return Some(Check::warn(evidence, remedy));
    }
    Some(if is_certain { Check::fail(evidence, remedy) } else { Check::warn(evidence, remedy) })
}

/// Whether a pod that is not the first may host the store.
fn hosts(call: &Call<'_>, other: &Pods) -> bool {
    let Call { pods, launch, .. } = call;
    // Each child Job may be a separate training.
    let units = pods.in_unit != pods.count;
    // The pod of rank 0 is known only if the rank is the index.
    let by_index = launch.node_rank.as_ref().is_none_or(|rank| {
        matches!(rank.text.source(), Some(Source::Index | Source::EndOfHostName | Source::EndOfPodName))
    });
    !launch.needs_rank()
        || launch.tool() == Tool::Other
        || launch.tool() == Tool::DeepSpeed
        || other.serve()
        || units
        || launch.by_rallypoint
        || other.maker == Maker::VolcanoJob
        || !by_index
}

/// The head that a worker of Ray is told.
fn of_ray(manifests: &Manifests, pods: &Pods, container: &Container) -> Option<Check> {
    let mut ray = container.commands.iter().filter(|command| starts_ray(&command.written()));
    let (host, _) = ray.find_map(|command| flag(&command.words, &["address"])?.text.split_once(':'))?;
    if pods.are_tasks() {
        let nodes = pods.step.size.nodes.filter(|nodes| *nodes > 1)?;
        let check = of_all_nodes(&host.to_string(), "--address", nodes)?;
        return Some(check.at(pods.at(&container.at("command"))));
    }
    host.literal()?;
    let (tell, what): (fn(String, String) -> Check, _) = match resolve(&host, pods, manifests) {
        Target::Nothing(why) => (Check::fail, format!("names nothing: {why}")),
        Target::Absent if !manifests.is_beside(&host.to_string()) => {
            (Check::warn, "is no Service of these files, and no pod has this name for others".into())
        }
        _ => return None,
    };
    let remedy = format!("a Service `{host}` that selects the pod of Ray's head");
    let check = tell(format!("Ray's head `{host}` (--address) {what}"), remedy);
    Some(check.at(pods.at(&container.at("command"))))
}

/// The endpoint of rallypoint's own commands.
fn of_rallypoint(manifests: &Manifests, pods: &Pods, container: &Container) -> Option<Check> {
    let (host, _) = container.rallypoint_endpoint()?;
    let what = match resolve(&host, pods, manifests) {
        Target::Nothing(why) => format!("names nothing: {why}"),
        Target::Service(service) if takes(service, pods) == Taken::All && pods.are_several() => {
            format!("is a Service over all pods of {}: each meets another store", pods.place.object)
        }
        _ => return None,
    };
    let evidence = format!("the endpoint `{host}` (RALLYPOINT_ENDPOINT) {what}");
    Some(Check::fail(evidence, first_pod(pods, "RALLYPOINT_ENDPOINT")).at(pods.at(&container.at("env"))))
}

//! Checks whether the pods have different ranks, and agree on their number.

use super::super::Check;
use super::Manifests;
use super::commands::at_launch;
use super::container::Container;
use super::launch::{Launch, Told, Tool};
use super::pods::Pods;
use rallypoint_node::makers::Maker;
use rallypoint_protocol::ids::{Nodes, counted};
use rallypoint_shell::{Source, Text};

pub(crate) fn check(pods: &Pods, manifests: &Manifests, checks: &mut Vec<Check>) {
    let total = manifests.nodes(pods);
    for container in &pods.containers {
        for launch in &container.launches {
            if launch.is_told_elsewhere && launch.tool != Tool::DeepSpeed {
                continue;
            }
            let found = [
                node_count(pods, launch, total),
                node_rank(pods, manifests, launch, total),
                world_size(pods, container, launch, total),
            ];
            for (check, field) in found.into_iter().flatten() {
                checks.push(check.at(pods.at(&container.at(field))));
            }
        }
    }
}

type Found = (Check, &'static str);

fn node_count(pods: &Pods, launch: &Launch, total: Option<u64>) -> Option<Found> {
    const ID: &str = "node-count";
    if launch.by_rallypoint || !matches!(launch.tool, Tool::Torchrun | Tool::Accelerate) {
        return None;
    }
    let total = total?;
    let Some(told) = &launch.nodes else {
        if launch.conditional || total < 2 || launch.open || pods.count.is_none_or(|count| count < 2) {
            return None;
        }
        let evidence = format!(
            "{} is not told how many nodes there are, and takes itself for the only one",
            launch.tool.name()
        );
        let remedy = format!("--nnodes={total}");
        let check = match &launch.host {
            Some(told) => {
                let evidence =
                    format!("{evidence}; but {total} pods are to meet at {} ({})", told.text, told.by);
                Check::fail(ID, evidence, remedy)
            }
            None => Check::warn(ID, format!("{evidence}: each of {total} pods trains alone"), remedy),
        };
        return Some((check, "command"));
    };
    let nodes = Nodes::parse(told.text.literal()?)?;
    let in_unit = pods.in_unit.filter(|_| !pods.is_alone);
    let possible: Vec<u64> = [Some(total), pods.count, in_unit, pods.nodes].into_iter().flatten().collect();
    let (min, max) = (u64::from(nodes.min), u64::from(nodes.max));
    let fits = |count: &u64| (min..=max).contains(count) || nodes.fixed().is_none() && *count > max;
    if launch.conditional || max == 1 || possible.iter().any(fits) {
        return None;
    }
    let evidence = format!(
        "{} expects {nodes} nodes ({}), but there are {total} pods: {}",
        launch.tool.name(),
        told.by,
        if min > total {
            "they wait for the missing ones until the time-out"
        } else {
            "those that are too many never get in"
        },
    );
    Some((Check::fail(ID, evidence, "change both together: the number of pods and --nnodes"), "command"))
}

fn node_rank(pods: &Pods, manifests: &Manifests, launch: &Launch, total: Option<u64>) -> Option<Found> {
    if !launch.needs_rank() || launch.conditional || launch.by_rallypoint {
        return None;
    }
    let world = launch.most_nodes();
    let alone = world == Some(1) || launch.tool != Tool::Program && launch.nodes.is_none();
    let all = total.unwrap_or(1);
    if alone && launch.tool != Tool::DeepSpeed || all < 2 {
        return None;
    }
    let fail = |id: &'static str, evidence: String| {
        let field = if launch.tool == Tool::Program { "env" } else { "command" };
        Some((Check::fail(id, evidence, remedy(pods, launch)), field))
    };
    let Some(Told { text, by }) = &launch.node_rank else {
        if launch.open || pods.count.is_none_or(|count| count < 2) {
            return None;
        }
        return missing(pods, manifests, launch, total);
    };
    if text
        .unset()
        .next()
        .is_some_and(|name| name == "JOB_COMPLETION_INDEX" || name.contains("completion-index"))
        && pods.maker == Maker::Job
    {
        return fail(
            "no-index",
            "the Job's pods have no index: JOB_COMPLETION_INDEX is empty, so no pod knows its rank".into(),
        );
    }
    if let Some(constant) = text.literal() {
        let same = pods.count.is_some_and(|count| count > 1) && !constant.is_empty();
        return same.then(|| {
            let evidence = format!(
                "every one of {} pods is rank {constant} ({by}): the others wait for ranks that never come",
                pods.count.unwrap_or_default()
            );
            fail("node-rank", evidence)
        })?;
    }
    let source = text.source()?;
    let (id, why) = unfit_source(pods, manifests, launch, source)?;
    fail(id, format!("the rank ({by}) is {why}"))
}

/// Why a rank from this source cannot be right, with the id of the check.
fn unfit_source(
    pods: &Pods,
    manifests: &Manifests,
    launch: &Launch,
    source: Source,
) -> Option<(&'static str, String)> {
    /// The id for a rank that is the random end of a name.
    const ID: &str = "rank-from-pod-name";
    match source {
        Source::PodName | Source::HostName => Some(("node-rank", format!("{}, not a number", source.name()))),
        Source::EndOfPodName
            if matches!(
                pods.maker,
                Maker::Job | Maker::IndexedJob | Maker::Deployment | Maker::JobSet | Maker::TrainJob
            ) =>
        {
            Some((ID, "the end of the pod's name, which is random here (`job-3-x7k2p`)".into()))
        }
        Source::EndOfHostName if matches!(pods.maker, Maker::Job | Maker::Deployment) => {
            Some((ID, "the end of the host name, which is random here (`job-x7k2p`)".into()))
        }
        Source::IndexInRole | Source::EndOfPodName | Source::EndOfHostName if !pods.is_alone => {
            let others = manifests.training(pods.object).count() > 1 || pods.in_unit != pods.count;
            let most_nodes = launch.most_nodes().filter(|_| launch.tool != Tool::Program);
            let spans =
                most_nodes.is_some_and(|most| pods.in_unit.is_some_and(|unit| u64::from(most) > unit));
            // The host name of a leader ends in the number of its group.
            let of_group = pods.maker == Maker::LeaderWorkerSet && source != Source::IndexInRole;
            let collides = others && spans && !of_group;
            collides.then(|| {
                let (what, object) = (source.name(), &pods.place.object);
                let why =
                    format!("{what}, which begins at 0 in each part of {object}: two pods have the same");
                ("node-rank", why)
            })
        }
        Source::PodUid | Source::PodIp | Source::Drawn | Source::ChildJobUid | Source::RunUid => {
            Some(("node-rank", format!("{}, not a number from 0 on", source.name())))
        }
        _ => None,
    }
}

/// Finds pods whose rank nothing sets.
fn missing(pods: &Pods, manifests: &Manifests, launch: &Launch, total: Option<u64>) -> Option<Found> {
    let has_index = pods.facts().index.is_some();
    let all = total.unwrap_or(1);
    if launch.tool == Tool::Program {
        let container = pods
            .containers
            .iter()
            .find(|container| container.launches.iter().any(|own| std::ptr::eq(own, launch)))?;
        let world = at_launch(container, launch, "WORLD_SIZE")?;
        let several =
            world.literal().is_none_or(|world| world.parse::<u64>().map_or(true, |world| world > 1));
        let names = [
            "NODE_RANK",
            "GROUP_RANK",
            "PET_NODE_RANK",
            "LOCAL_RANK",
            "SLURM_PROCID",
            "OMPI_COMM_WORLD_RANK",
        ];
        let other = names.iter().any(|name| at_launch(container, launch, name).is_some());
        // A variable with another name may hold the value from which the program derives its rank.
        let index_elsewhere =
            container.own.iter().any(|name| container.variable(name).is_some_and(Text::varies));
        if !several || other || index_elsewhere || manifests.training(pods.object).count() > 1 {
            return None;
        }
        let evidence =
            format!("WORLD_SIZE and MASTER_ADDR are set, but nothing tells {all} pods which RANK each has");
        let check = if has_index {
            Check::warn(
                "node-rank",
                format!("{evidence}, unless the program finds it out by itself"),
                remedy(pods, launch),
            )
        } else {
            Check::fail(
                "no-index",
                format!("{evidence}: the pods of a {} have no index", pods.facts().name),
                remedy(pods, launch),
            )
        };
        return Some((check, "env"));
    }
    // If there is no endpoint, another check reports that.
    launch.host.as_ref()?;
    let evidence = format!(
        "{} pods use the static backend without --node-rank: each takes itself for node 0",
        pods.count.unwrap_or(all)
    );
    let check = if has_index || pods.maker == Maker::Unknown {
        Check::fail("node-rank", evidence, remedy(pods, launch))
    } else {
        Check::fail(
            "no-index",
            format!("{evidence}, and the pods of a {} have no index", pods.facts().name),
            remedy(pods, launch),
        )
    };
    Some((check, "command"))
}

/// The remedy: the line to change.
fn remedy(pods: &Pods, launch: &Launch) -> String {
    let facts = pods.facts();
    let flag = match launch.tool {
        Tool::Torchrun => "--node-rank=",
        Tool::Accelerate => "--machine_rank=",
        Tool::DeepSpeed => "--node_rank=",
        Tool::Program => "RANK=",
    };
    let set = match pods.maker {
        Maker::Job => {
            return format!(
                "completionMode: Indexed with completions equal to parallelism, and \
                 {flag}$JOB_COMPLETION_INDEX"
            );
        }
        Maker::Deployment => {
            return format!("an Indexed Job with {flag}$JOB_COMPLETION_INDEX, or a StatefulSet");
        }
        _ => facts.index,
    };
    match set.map(|index| (index, index.in_env())) {
        Some((index, None)) => format!("{flag}{}, which a {} sets", index.in_shell(), facts.name),
        Some((index, Some(line))) => format!("{flag}{}, with this in env: {line}", index.in_shell()),
        None => {
            format!("give each pod its own number with {flag}N, from 0 on, or start it with `rallypoint run`")
        }
    }
}

/// Checks the number of processes that torch waits for.
fn world_size(pods: &Pods, container: &Container, launch: &Launch, total: Option<u64>) -> Option<Found> {
    const ID: &str = "world-size";
    let world: u64 = at_launch(container, launch, "WORLD_SIZE")?.literal()?.parse().ok()?;
    let own = container.own.iter().any(|name| name == "WORLD_SIZE")
        || at_launch(container, launch, "WORLD_SIZE") != container.variable("WORLD_SIZE").cloned();
    let total = total?;
    if !own || world < 2 || launch.conditional || launch.by_rallypoint || pods.in_unit != pods.count {
        return None;
    }
    let said = ["PET_NPROC_PER_NODE", "NPROC_PER_NODE", "GPUS_PER_NODE"];
    let said = said.iter().find_map(|name| Some(at_launch(container, launch, name)?.literal()?.to_owned()));
    let number = said.as_ref().and_then(|each| each.parse().ok());
    let each = number.or_else(|| container.gpus()).unwrap_or(1);
    match launch.tool {
        Tool::Program if world == total && said.as_ref().is_some_and(|each| each != "1") => {
            let each = said.unwrap_or_default();
            let evidence = format!("WORLD_SIZE={world} counts pods, but each has {each} processes");
            Some((
                Check::fail(ID, evidence, "WORLD_SIZE is pods x processes; with torchrun leave it out"),
                "env",
            ))
        }
        Tool::Program if world != total && world != total.saturating_mul(each) && pods.are_several() => {
            let evidence = format!(
                "WORLD_SIZE={world}, but there are {total} pods with {} each: torch waits for {world}",
                counted(each, "process", "processes")
            );
            Some((Check::fail(ID, evidence, format!("WORLD_SIZE={}", total.saturating_mul(each))), "env"))
        }
        _ => None,
    }
}

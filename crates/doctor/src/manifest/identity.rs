//! What a launch knows about its rank.

use super::launch::{Launch, Told, Tool};
use super::meeting::Call;
use super::pods::Pods;
use rallypoint_node::makers::{Index, Maker};
use rallypoint_shell::{Source, Text};

/// A rank that cannot be right, or may not.
pub(crate) enum Rank<'m> {
    /// Nothing sets it.
    Missing,
    /// One text for several pods, and the flag or variable that gives it.
    Constant(&'m str, &'m str),
    /// A value of this kind.
    Of(Source, &'m str),
    /// An index that these pods do not have, by the name of its variable or label.
    WithoutIndex(&'m str),
}

/// What a launch that needs a rank knows about it; `None` if it needs none, or may have the right one.
pub(crate) fn rank<'m>(call: &Call<'m>) -> Option<Rank<'m>> {
    let Call { pods, launch, .. } = *call;
    // What stands in the command counts more than what a config file says.
    let is_here = launch.is_configured && launch.nodes.is_some() && launch.node_rank.is_some();
    let elsewhere = launch.is_told_elsewhere && launch.tool != Tool::DeepSpeed && !is_here;
    if !launch.needs_rank() || launch.by_rallypoint || elsewhere || call.is_of_one_node() {
        return None;
    }
    let alone = launch.most_nodes() == Some(1) || launch.tool != Tool::Program && launch.nodes.is_none();
    let is_name = |told: &Told| matches!(told.text.source(), Some(Source::PodName | Source::PodUid));
    let named = launch.tool == Tool::Program && launch.node_rank.as_ref().is_some_and(is_name);
    if alone && launch.tool != Tool::DeepSpeed || call.total().unwrap_or(1) < 2 && !named {
        return None;
    }
    let Some(Told { text, by }) = &launch.node_rank else {
        // Nobody sets PET_NODE_RANK for a script, but perhaps who sets MASTER_ADDR for it. A program may read
        // Slurm's variables itself.
        let is_given = || launch.host.as_ref().is_some_and(|told| told.text.literal().is_none());
        let may_be_set = pods.step.as_ref().is_none_or(|step| step.is_by_hand() && is_given());
        let is_open = launch.command.open && (may_be_set || launch.tool == Tool::Program);
        let matters = !is_open && pods.are_several() && is_missed(call);
        return matters.then_some(Rank::Missing);
    };
    let without = |name: &&str| !pods.has_index() && is_index(name);
    if let Some(name) = text.unset().find(without).filter(|_| pods.maker != Maker::Unknown) {
        return Some(Rank::WithoutIndex(name));
    }
    if let Some(constant) = text.literal() {
        let several = call
            .manifests
            .together(pods)
            .filter(|other| has_rank(other, constant))
            .map(|it| it.count)
            .sum::<Option<u64>>();
        let shared = pods.are_alike() || several.is_some_and(|several| several > 1) && pods.count == Some(1);
        return (shared && !constant.is_empty()).then_some(Rank::Constant(constant, by));
    }
    Some(Rank::Of(text.source()?, by))
}

/// Whether a variable or a label of this name holds an index.
pub(crate) fn is_index(name: &str) -> bool {
    name == "JOB_COMPLETION_INDEX" || name.ends_with("-index")
}

/// Whether a launch of these pods always has this rank.
fn has_rank(pods: &Pods, rank: &str) -> bool {
    pods.launches()
        .filter(|launch| launch.needs_rank() && !launch.command.conditional)
        .any(|launch| launch.node_rank.as_ref().is_some_and(|told| told.text.literal() == Some(rank)))
}

/// Whether pods whose rank nothing sets lack one.
fn is_missed(call: &Call<'_>) -> bool {
    if call.launch.tool != Tool::Program {
        // If there is no endpoint, another check reports that.
        return call.launch.host.is_some();
    }
    let container = call.container;
    let counts = |word: &Text| {
        let word = word.to_string().replace('-', "_");
        word.split_once("num_nodes=")?.1.parse::<u32>().ok().filter(|count| *count > 1)
    };
    let several = match call.variable("WORLD_SIZE") {
        Some(world) => world.literal().is_none_or(|world| world.parse() != Ok(1)),
        None if call.launch.command.words.iter().any(|it| counts(it).is_some()) => true,
        // It may be no program with PyTorch.
        None => !call.pods.has_index() && container.gpus().is_some() && call.sets("MASTER_ADDR"),
    };
    // A variable with another name may hold the value from which the program derives its rank.
    let elsewhere = container.own.iter().any(|name| container.variable(name).is_some_and(Text::varies));
    let other = ["PET_NODE_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"];
    let elsewhere = elsewhere || other.iter().any(|name| call.variable(name).is_some());
    several && !elsewhere && call.manifests.training(call.pods.object).count() == 1
}

/// The field that gives a launch its rank.
pub(crate) fn field(launch: &Launch) -> &'static str {
    if launch.tool == Tool::Program { "env" } else { "command" }
}

/// The remedy: the line to change.
pub(crate) fn remedy(call: &Call<'_>) -> String {
    let Call { pods, launch, container, .. } = *call;
    let facts = pods.facts();
    let flag = match launch.tool {
        Tool::Accelerate => "--machine_rank=",
        Tool::DeepSpeed => "--node_rank=",
        Tool::Torchrun | Tool::Other => "--node-rank=",
        Tool::Program => "RANK=",
    };
    // Without a shell only Kubernetes fills in a variable.
    let written = |index: Index| match index.in_shell().strip_prefix('$') {
        Some(name) if container.is_exec() && launch.tool != Tool::Program => format!("$({name})"),
        _ => index.in_shell(),
    };
    let of_job = written(Index::Variable("JOB_COMPLETION_INDEX"));
    match (pods.maker, facts.index.map(|index| (index, index.in_env()))) {
        (Maker::Job, _) => {
            format!("completionMode: Indexed with completions equal to parallelism, and {flag}{of_job}")
        }
        (Maker::Deployment, _) => format!("an Indexed Job with {flag}{of_job}, or a StatefulSet"),
        (Maker::Slurm, _) => {
            format!("srun bash -c '… {flag}$SLURM_NODEID …', in single quotes, so that each node fills it in")
        }
        (_, Some((index, None))) => format!("{flag}{}, which a {} sets", written(index), facts.name),
        (_, Some((index, Some(line)))) => format!("{flag}{}, with this in env: {line}", written(index)),
        (_, None) => {
            format!("give each pod its own number with {flag}N, from 0 on, or start it with `rallypoint run`")
        }
    }
}

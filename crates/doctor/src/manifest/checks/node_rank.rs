//! Two nodes with one number, or none: the other numbers never come, and everybody waits for them.

use super::prelude::*;
use rallypoint_node::makers::Index;
use rallypoint_shell::{Part, is_script};

pub(super) const RULE: Rule = Rule {
    id: "node-rank",
    sees: "FAIL: `--node-rank=0` in every pod, none at all, the pod's name, a word without `$`, an index \
           that repeats, the index and one, `--node-rank=2` of 2; an index of pods without one (a Job \
           without `completionMode: Indexed`, a Deployment); `${POD_NAME##*-}` of a Job's pod; `srun python \
           train.py --rank=$SLURM_PROCID` in a batch script: each task gets 0. WARN: no `RANK`; a rank that \
           is wrong unless a config file says `c10d`, or the program reads `SLURM_PROCID`",
    examples: ["bad-job-rank-constant.yaml", "good-job-static.yaml"],
    find: Find::Files(|manifests| {
        let of_calls = manifests.calls().filter_map(|call| find(&call));
        let of_container =
            |(pods, own): (&Pods, &Container)| of_other(pods, own).or_else(|| filled_in_early(pods, own));
        of_calls.chain(manifests.containers().filter_map(of_container)).collect()
    }),
};

fn find(call: &Call<'_>) -> Option<Check> {
    let launch = call.launch;
    let told = launch.node_rank.as_ref().filter(|_| launch.needs_rank() && !launch.by_rallypoint);
    let check = told.and_then(|told| by_itself(call, told)).or_else(|| among_others(call))?;
    Some(check.at(call.at(if launch.tool() == Tool::Program { "env" } else { "command" })))
}

/// What is wrong with a rank whatever the others have.
fn by_itself(call: &Call<'_>, Told { text, by }: &Told) -> Option<Check> {
    let Call { pods, launch, .. } = call;
    let is_program = launch.tool() == Tool::Program;
    let word = text.literal().unwrap_or_default();
    let of = if is_program { launch.number("WORLD_SIZE") } else { launch.most_nodes() };
    if let (Ok(rank), Some(of)) = (word.parse::<u32>(), of)
        && rank >= of
    {
        let evidence = format!("rank {rank} ({by}) of {of}: ranks begin at 0, so one below it is missing");
        return Some(Check::fail(evidence, remedy(call)));
    }
    // Perhaps its `$` is missing. Capital letters stand for what is to be filled in.
    if word.chars().all(|c| c.is_ascii_lowercase() || c == '_') && word.len() > 1 {
        return Some(Check::fail(format!("the rank ({by}) is `{word}`, not a number"), remedy(call)));
    }
    let [Part::Computed { here, .. }] = text.parts() else { return None };
    let (index, rank, all) = (pods.index, here.parse::<u64>().ok()?, call.total()?);
    let is_all = pods.part_of.or(pods.count) == Some(all) && pods.are_several();
    (is_all && !is_program && index != rank).then(|| {
        let evidence = format!(
            "the pod with index {index} computes rank {rank}: the ranks of {all} pods begin at 0, so one is \
             missing"
        );
        Check::fail(evidence, remedy(call))
    })
}

/// What is wrong with a rank beside those of the others.
fn among_others(call: &Call<'_>) -> Option<Check> {
    let Call { manifests, pods, launch, .. } = *call;
    // What stands in the command counts more than what a config file says.
    let is_here = launch.is_configured && launch.nodes.is_some() && launch.node_rank.is_some();
    let elsewhere = launch.is_told_elsewhere && launch.tool() != Tool::DeepSpeed && !is_here;
    if !launch.needs_rank() || launch.by_rallypoint || elsewhere || call.is_of_one_node() {
        return None;
    }
    let is_program = launch.tool() == Tool::Program;
    let alone = launch.most_nodes() == Some(1) || !is_program && launch.nodes.is_none();
    let is_name = |told: &Told| matches!(told.text.source(), Some(Source::PodName | Source::PodUid));
    let named = is_program && launch.node_rank.as_ref().is_some_and(is_name);
    if alone && launch.tool() != Tool::DeepSpeed || call.total().unwrap_or(1) < 2 && !named {
        return None;
    }
    let Some(Told { text, by }) = &launch.node_rank else { return missing(call) };
    let without = |name: &&str| !pods.has_index() && is_index(name);
    if let Some(name) = text.unset().find(without).filter(|_| pods.maker != Maker::Unknown) {
        let maker = pods.facts().name;
        let evidence =
            format!("the pods of a {maker} have no index: {name} is empty, so no pod knows its rank");
        return Some(Check::fail(evidence, remedy(call)));
    }
    let wrong = |evidence: String| {
        let unless = match launch.is_configured {
            true => "its config file has `rdzv_backend: c10d`",
            false if is_program && pods.are_tasks() => "the program reads its task's own variables",
            false => return Check::fail(evidence, remedy(call)),
        };
        Check::warn(format!("{evidence}, unless {unless}"), remedy(call))
    };
    if let Some(rank) = text.literal() {
        let equal = manifests.together(pods).filter(|other| has_rank(other, rank));
        let several = equal.map(|it| it.count).sum::<Option<u64>>().is_some_and(|several| several > 1);
        let shared = pods.are_alike() || several && pods.count == Some(1);
        let who = match pods.count {
            Some(count) if count > 1 => format!("every one of {count} pods is"),
            _ => "several pods of the job are".into(),
        };
        let evidence = format!("{who} rank {rank} ({by}): the others wait for ranks that never come");
        return (shared && rank.parse::<u32>().is_ok()).then(|| wrong(evidence));
    }
    let source = text.source()?;
    if pods.are_random(source) {
        let end = if source == Source::EndOfPodName { "job-3-x7k2p" } else { "job-x7k2p" };
        let evidence = format!("the rank ({by}) is {}, which is random here (`{end}`)", source.name());
        return Some(Check::fail(evidence, remedy(call)));
    }
    Some(wrong(format!("the rank ({by}) is {}", unfit(call, source)?)))
}

/// Whether a variable or a label of this name holds an index.
pub(super) fn is_index(name: &str) -> bool {
    name == "JOB_COMPLETION_INDEX" || name.ends_with("-index")
}

/// Whether a launch of these pods always has this rank.
fn has_rank(pods: &Pods, rank: &str) -> bool {
    pods.launches()
        .filter(|launch| launch.needs_rank() && !launch.command.conditional)
        .any(|launch| launch.node_rank.as_ref().is_some_and(|told| told.text.literal() == Some(rank)))
}

/// Pods to which nothing gives a rank.
fn missing(call: &Call<'_>) -> Option<Check> {
    let Call { pods, launch, .. } = *call;
    // Nobody sets PET_NODE_RANK for a script, but perhaps who sets MASTER_ADDR for it. A program may read
    // Slurm's variables itself.
    let is_program = launch.tool() == Tool::Program;
    let may_be_set = !pods.are_tasks() || pods.are_by_hand() && is_given(launch);
    // A role of one pod beside the first one's is no node 0 either.
    let is_behind = pods.nodes > Some(1) && !pods.hosts.iter().any(|hosts| hosts.has_first);
    if launch.command.open && (may_be_set || is_program) || !pods.are_several() && !is_behind {
        return None;
    }
    if launch.is_own {
        let evidence = format!(
            "nothing tells {} which rank each has: the program has it from {}",
            who(call),
            takes(call)?
        );
        return Some(Check::fail(evidence, remedy(call)));
    }
    // If there is no endpoint, another check reports that.
    let is_missed = if is_program { misses_rank(call) } else { launch.host.is_some() };
    let (maker, all) = (pods.facts().name, call.total().unwrap_or(1));
    let lacks = format!("the pods of a {maker} have no index");
    let evidence = match is_program {
        true if pods.has_index() => {
            let evidence = format!(
                "WORLD_SIZE and MASTER_ADDR are set, but nothing tells {all} pods which RANK each has, \
                 unless the program finds it out by itself"
            );
            return is_missed.then(|| Check::warn(evidence, remedy(call)));
        }
        true => {
            format!("MASTER_ADDR is set, but nothing tells {all} pods which RANK each has: {lacks}")
        }
        false => {
            let is_known = pods.has_index() || matches!(pods.maker, Maker::Unknown | Maker::Slurm);
            let lacks = if is_known { String::new() } else { format!(", and {lacks}") };
            let who = who(call);
            let flag = launch.grammar.flag(Role::Rank).unwrap_or_else(|| "--node-rank".into());
            format!("no {flag} for {who} with the static backend: each takes itself for node 0{lacks}")
        }
    };
    let tell = if pods.are_by_hand() { Check::warn } else { Check::fail };
    is_missed.then(|| tell(evidence, remedy(call)))
}

fn who(call: &Call<'_>) -> String {
    let count = call.pods.count.or(call.total()).unwrap_or(1);
    if call.pods.are_by_hand() { "all nodes".into() } else { counted(count, "pod", "pods") }
}

/// The flag by which a program with flags of its own takes its rank: another part of the job has it, or the
/// source of the program, which reads no variable.
fn takes(call: &Call<'_>) -> Option<String> {
    const FLAGS: [&str; 5] = ["--node-rank", "--node_rank", "--machine_rank", "--machine-rank", "--rank"];
    const VARIABLES: [&str; 3] = ["environ", "getenv", "SLURM"];
    let Call { manifests, pods, launch, .. } = call;
    let others = manifests.together(pods).flat_map(Pods::launches).filter(|other| other.is_own);
    let of_others = others.filter_map(|other| other.node_rank.as_ref()).map(|told| told.by.clone()).next();
    of_others.or_else(|| {
        let words = launch.command.words.iter().filter_map(Text::literal);
        let source = words.filter(|word| is_python_file(word)).find_map(|it| manifests.beside.program(it))?;
        let has = |flag: &&str| ['"', '\''].iter().any(|it| source.contains(&format!("{it}{flag}{it}")));
        let reads = VARIABLES.iter().any(|name| source.contains(name));
        FLAGS.into_iter().find(has).filter(|_| !reads).map(str::to_owned)
    })
}

/// Whether the environment of a script gives some of a launch: it is not known what else it gives.
fn is_given(launch: &Launch) -> bool {
    let is_of_environment = |part: &Part| match part {
        Part::Unknown { written, .. } => {
            let name = written.trim_start_matches(['$', '{']);
            !name.starts_with(|c: char| c.is_ascii_digit())
        }
        part => !matches!(part, Part::Known(_)),
    };
    let told = [&launch.host, &launch.nodes].into_iter().flatten();
    told.flat_map(|told| told.text.parts()).any(is_of_environment)
}

/// Whether a program whose rank nothing sets lacks one.
fn misses_rank(call: &Call<'_>) -> bool {
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

/// Why a rank from this source cannot be right.
fn unfit(call: &Call<'_>, source: Source) -> Option<String> {
    let Call { pods, launch, .. } = call;
    let each = pods.step.size.tasks_each().filter(|each| *each > 1 && launch.starts() == Starts::One);
    match source {
        Source::Index if each.is_some() => {
            Some(format!("the number of the node, which its {} tasks have alike", each?))
        }
        Source::TaskOfNode if pods.step.size.nodes > Some(1) => {
            Some(format!("{}, which begins at 0 on each node", source.name()))
        }
        Source::FirstNode if pods.are_several() => {
            Some("filled in by the script's own shell, on the first node: it is 0 on each node".into())
        }
        Source::PodName | Source::HostName => Some(format!("{}, not a number", source.name())),
        Source::IndexInRole | Source::EndOfPodName | Source::EndOfHostName if !pods.is_alone => {
            let others = call.manifests.training(pods.object).count() > 1 || pods.in_unit != pods.count;
            let most_nodes = launch.most_nodes().filter(|_| launch.tool() != Tool::Program);
            let spans =
                most_nodes.is_some_and(|most| pods.in_unit.is_some_and(|unit| u64::from(most) > unit));
            // The host name of a leader ends in the number of its group.
            let of_group = pods.maker == Maker::LeaderWorkerSet && source != Source::IndexInRole;
            (others && spans && !of_group).then(|| {
                format!(
                    "{}, which begins at 0 in each part of {}: two pods have the same",
                    source.name(),
                    pods.place.object
                )
            })
        }
        Source::PodUid | Source::PodIp | Source::Drawn | Source::ChildJobUid | Source::RunUid => {
            Some(format!("{}, not a number from 0 on", source.name()))
        }
        _ => None,
    }
}

/// A program that is no launch may share out its work by the index.
fn of_other(pods: &Pods, container: &Container) -> Option<Check> {
    let lacks = |name: &&String| container.variable(name).is_some_and(|it| it.unset().any(is_index));
    let matters = !container.trains() && pods.maker == Maker::Job && pods.are_several();
    let name = container.own.iter().filter(|_| matters).find(lacks)?;
    let evidence = format!("the pods of a Job have no index: {name} is empty in each of them");
    let remedy = "completionMode: Indexed with completions equal to parallelism";
    Some(Check::fail(evidence, remedy).at(pods.at(&container.at("env"))))
}

/// The script's own shell fills in `$SLURM_PROCID` before `srun` starts anything, or without it.
fn filled_in_early(pods: &Pods, container: &Container) -> Option<Check> {
    let by = pods.step.by.as_deref().or(pods.step.usual)?;
    let is_read = |told: &Option<Told>| told.as_ref().is_some_and(|told| is_first(&told.text));
    // A launcher that gets it is said to have a wrong rank already.
    let are_several = pods.are_several() || pods.step.size.each > Some(1);
    if !are_several || container.launches.iter().any(|launch| is_read(&launch.node_rank)) {
        return None;
    }
    let step = container.script.get(pods.step.number);
    let mut all = container.script.iter().filter(|command| !Container::is_small(command));
    let unread = || {
        // A launcher in it that is started once a node may not need it.
        let are_ranks = pods.step.size.tasks_each() > Some(1) && !container.unread.is_empty();
        rank_variable(step?, false).filter(|_| are_ranks)
    };
    let of_commands = || container.commands.iter().find_map(|it| rank_variable(it, true)).or_else(unread);
    let mut variable = || of_commands().or_else(|| all.find_map(early_word));
    let (flag, is_flag) = match container.commands.iter().find_map(rank_flag) {
        Some(flag) => (flag, true),
        None => (variable().filter(|_| container.launches.is_empty())?, false),
    };
    let unless = if is_flag { "" } else { ", unless the program reads its task's own variables" };
    let tell = if is_flag { Check::fail } else { Check::warn };
    let evidence = format!(
        "`{flag}` is filled in by the script's own shell, before {by} starts anything: every task gets \
         0{unless}"
    );
    let remedy = format!("{by} bash -c '… {flag} …', in single quotes, so that each task fills it in");
    Some(tell(evidence, remedy).at(pods.at(&container.at("command"))))
}

/// A word of a program of Python, or of what starts one, with the number of the first node.
fn early_word(command: &Command) -> Option<String> {
    let starts = |word: &Text| word.literal().is_some_and(|it| Grammar::is_program(it) || is_script(it));
    let has_program = command.words.iter().any(starts);
    let word = command.words.iter().filter(|_| has_program).find(|word| is_first(word))?.to_string();
    Some(word.replace(&format!("$<{}>", Source::FirstNode.name()), "$SLURM_PROCID"))
}

/// A variable for a rank with the number of the first node, which a program of Python gets, or one that is
/// not known: a script that is not in the files.
fn rank_variable(command: &Command, is_known: bool) -> Option<String> {
    let is_python = |word: &Text| word.literal().is_some_and(|word| basename(word).starts_with("python"));
    let names = ["RANK", "NODE_RANK", "LOCAL_RANK"];
    let is_early = |name: &&str| {
        command.variable(name).is_some_and(is_first) && !command.private.iter().any(|own| own == name)
    };
    // A launcher may be told otherwise than by NODE_RANK.
    let is_it = |name: &&str| {
        if is_known { command.words.iter().any(is_python) } else { *name != "NODE_RANK" }
    };
    let name = names.into_iter().find(is_early).filter(is_it)?;
    Some(format!("{name}=…"))
}

fn is_first(text: &Text) -> bool {
    text.parts().iter().any(|part| matches!(part, Part::Of(Source::FirstNode)))
}

/// A flag for a rank with the number of the first node.
fn rank_flag(command: &Command) -> Option<String> {
    let is_rank = |word: &Text| {
        let word = word.to_string().to_lowercase();
        word.starts_with("--") && ["rank", "node_id", "node-id"].iter().any(|part| word.contains(part))
    };
    let words = &command.words;
    words.iter().enumerate().filter(|(_, word)| is_rank(word)).find_map(|(n, word)| {
        let behind = words.get(n.saturating_add(1)).filter(|next| is_first(next));
        let name = word.to_string();
        let name = name.split('=').next().unwrap_or_default();
        (is_first(word) || behind.is_some()).then(|| name.to_owned())
    })
}

/// The line to change.
fn remedy(call: &Call<'_>) -> String {
    let Call { pods, launch, container, .. } = *call;
    let facts = pods.facts();
    let own = launch.grammar.flag(Role::Rank);
    let flag = if launch.is_own { "--rank=".into() } else { own.map_or("RANK=".into(), |own| own + "=") };
    // Without a shell only Kubernetes fills in a variable.
    let written = |index: Index| match index.in_shell().strip_prefix('$') {
        Some(name) if container.is_exec() && launch.tool() != Tool::Program => format!("$({name})"),
        _ => index.in_shell(),
    };
    let of_job = written(Index::Variable("JOB_COMPLETION_INDEX"));
    match (pods.maker, facts.index.map(|index| (index, index.in_env()))) {
        (Maker::Job, _) => {
            format!("completionMode: Indexed with completions equal to parallelism, and {flag}{of_job}")
        }
        (Maker::Deployment, _) => format!("an Indexed Job with {flag}{of_job}, or a StatefulSet"),
        (Maker::Slurm, _) if pods.step.usual.is_none() && pods.step.by.is_some() => {
            format!("give each host its own number with {flag}N, from 0 on")
        }
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

//! Who waits at another port, with another backend or for another run than the others, waits alone.

use std::collections::BTreeSet;

use super::prelude::*;
use crate::manifest::given::given;
use crate::manifest::launches::flag;

pub(super) const RULE: Rule = Rule {
    id: "agreement",
    sees: "FAIL: Master and Worker, two `srun … &`, or `node0.sh` and `node1.sh` have different ports, \
           backends, ids of the run or numbers of nodes, or the port is `$RANDOM`. WARN: two values of \
           `NCCL_IB_DISABLE` or `--epochs`; a PyTorchJob's `MASTER_ADDR` of another job",
    examples: ["agreement.yaml", "good-pytorchjob.yaml"],
    find: Find::Launch(
        &[Tool::Torchrun, Tool::Accelerate, Tool::DeepSpeed, Tool::Other, Tool::Program],
        find,
    ),
};

fn find(call: &Call<'_>) -> Option<Check> {
    if !takes_part(call.launch) || !call.are_to_meet() {
        return None;
    }
    let found = of_values(call).or_else(|| of_transport(call)).or_else(|| of_scripts(call));
    found.or_else(|| of_operator(call)).or_else(|| of_steps(call))
}

/// How long a training lasts, by its own arguments: who ends first leaves the others in a collective call.
fn of_steps(call: &Call<'_>) -> Option<Check> {
    const STEPS: [&str; 6] =
        ["epochs", "num-epochs", "max-epochs", "num-train-epochs", "max-steps", "train-iters"];
    let steps = |pods: &Pods| {
        let words = pods.containers.iter().filter(|own| own.trains()).flat_map(|own| {
            let of_commands = own.commands.iter().flat_map(Command::written);
            if own.commands.is_empty() { own.argv.clone() } else { of_commands.collect() }
        });
        let words: Vec<Text> = words.map(Text::known).collect();
        STEPS.iter().find_map(|name| {
            let told = flag(&words, &[name])?;
            Some((told.by.clone(), told.text.literal()?.parse::<u64>().ok()?))
        })
    };
    let Call { manifests, pods, .. } = call;
    let (by, own) = steps(pods).filter(|_| !pods.are_tasks())?;
    let mut before = manifests.together(pods).take_while(|others| !std::ptr::eq(*pods, *others));
    let (others, theirs) = before.find_map(|others| {
        let (name, theirs) = steps(others).filter(|_| others.object == pods.object)?;
        (name == by && theirs != own).then_some((others, theirs))
    })?;
    let evidence = format!(
        "{by} is {own} here, but {theirs} in {} {}: who ends first leaves the others waiting",
        others.place.object, others.place.field
    );
    Some(Check::warn(evidence, format!("{by} is the same in all pods")).at(call.at("command")))
}

/// A variable in `env` that the operator sets otherwise: it appends its own, and the last one counts.
fn of_operator(call: &Call<'_>) -> Option<Check> {
    let Call { pods, container, .. } = call;
    let is_told = pods.maker == Maker::PyTorchJob && !pods.is_open;
    let given = given(pods).into_iter().filter(|(name, _)| is_told && name == "MASTER_ADDR");
    let differs = |(name, value): (String, Vec<Text>)| {
        let is_it = |item: &&Value| item.get("name").and_then(Value::as_str) == Some(name.as_str());
        let own = list(&container.value, "/env").iter().find(is_it)?.get("value")?.as_str()?;
        let counts = value.first()?.literal()?;
        // A longer name of that pod is no other address.
        let is_same = own.strip_prefix(counts).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        (!is_same && own != "0.0.0.0" && !own.contains("$(") && !is_placeholder(own))
            .then(|| format!("{name}={own} stands in env, and the operator sets {counts} behind it"))
    };
    let evidence = given.into_iter().find_map(differs)?;
    let remedy = "take it out: the operator's value counts";
    Some(Check::warn(evidence, remedy).at(call.at("env")))
}

/// What the scripts of single nodes launch, each started by hand on its own, with their names.
fn by_hand<'a>(call: &Call<'a>) -> impl Iterator<Item = (&'a str, &'a Launch)> {
    let Call { manifests, pods, .. } = *call;
    let is_other = move |other: &&Pods| other.are_by_hand() && other.object != pods.object;
    let given = manifests.pods.iter().filter(is_other);
    let given = given.flat_map(|other| other.launches().map(|launch| (other.name.as_str(), launch)));
    let beside = manifests.beside.scripts.iter();
    let beside = beside.flat_map(|(name, all)| all.iter().map(|launch| (name.as_str(), launch)));
    given.chain(beside).filter(move |_| pods.are_by_hand())
}

/// The scripts of two nodes, by their names: they are told another number of nodes, master or port, or one
/// rank.
fn of_scripts(call: &Call<'_>) -> Option<Check> {
    let Call { pods, launch, .. } = call;
    let rank = literal(launch.node_rank.as_ref())?;
    // A set of scripts with all ranks is a job of its own.
    let all = || by_hand(call).map(|(_, other)| other).chain([*launch]);
    let is_complete = |one: &Launch| {
        let of_it = all().filter(|other| are_told_alike(one, other));
        let ranks: BTreeSet<u64> =
            of_it.filter_map(|it| literal(it.node_rank.as_ref())?.parse().ok()).collect();
        let nodes = literal(one.nodes.as_ref()).and_then(|nodes| nodes.parse().ok());
        nodes.is_some_and(|nodes: usize| nodes > 1 && ranks.len() >= nodes)
    };
    let differs = |(name, other): (&str, &Launch)| {
        let is_pair = other.tool() == launch.tool() && are_of_nodes(&pods.name, name);
        let its_rank = literal(other.node_rank.as_ref()).filter(|_| is_pair)?;
        let alike = ["the number of nodes", "the master's address", "the port"];
        let found = launch.told().filter(|(what, _)| alike.contains(what)).find_map(|(what, own)| {
            let theirs = other.told().find(|(it, _)| *it == what)?.1;
            let are_there = ![own, theirs].iter().any(|told| is_localhost(&told.text));
            let (own, theirs) = own.text.literal().zip(theirs.text.literal())?;
            (own != theirs && are_there).then_some((what, own.to_owned(), theirs.to_owned()))
        });
        let is_whole = || {
            let is_one = found.is_none() && launch.nodes.is_some() && launch.needs_rank();
            is_one && !is_complete(launch)
        };
        if rank == its_rank {
            return is_whole().then(|| format!("the rank is {rank} here, and in {name}, too"));
        }
        let found = found.filter(|_| !is_complete(launch) && !is_complete(other));
        found.map(|(what, own, theirs)| format!("{what} is {own} here, but {theirs} in {name}"))
    };
    let evidence = format!("{}: these nodes never meet", by_hand(call).find_map(differs)?);
    Some(Check::fail(evidence, "one value for all nodes, and ranks from 0 on").at(call.at("command")))
}

/// Whether two scripts are for two nodes of one job, by their names: `run_node0.sh` and `run_node1.sh`.
fn are_of_nodes(one: &str, other: &str) -> bool {
    const NODES: [&str; 8] = ["node", "rank", "master", "worker", "slave", "head", "leader", "machine"];
    let parts = |name: &str| {
        let name = name.rsplit_once('.').map_or(name, |(name, _)| name).to_lowercase();
        // A number behind the word belongs to it.
        let (mut is_node, mut others, mut may_follow) = (false, Vec::new(), false);
        for word in name.split(['_', '-']) {
            let plain = word.trim_end_matches(|c: char| c.is_ascii_digit());
            let is_role = NODES.contains(&plain);
            if !(is_role || plain.is_empty() && may_follow) {
                others.push(word.to_owned());
            }
            is_node |= is_role;
            may_follow = is_role && plain == word;
        }
        (is_node, others)
    };
    let ((is_one, of_one), (is_other, of_other)) = (parts(one), parts(other));
    one != other && is_one && is_other && of_one == of_other
}

fn of_values(call: &Call<'_>) -> Option<Check> {
    let Call { manifests, pods, launch, .. } = call;
    if let Some(told) = launch.port.as_ref().filter(|told| told.text.varies() && pods.are_several()) {
        let what = told.text.source().map_or("another one in each pod", Source::name);
        let evidence = format!("the port ({}) is {what}: each pod calls at another port", told.by);
        return Some(Check::fail(evidence, "one port for all, such as 29500").at(call.at("command")));
    }
    // Two that differ are said once, at the later one.
    let mut before = manifests.together(pods).take_while(|others| !std::ptr::eq(*pods, *others));
    before.find_map(|others| {
        // A pod may start one training after the other, and each of these meets its own counterpart.
        let launches = others.launches().filter(|other| other.tool() == launch.tool() && takes_part(other));
        let theirs: Vec<_> = launches.flat_map(values).collect();
        let differs = |(what, own): &(&'static str, String)| {
            let mut of_others = theirs.iter().filter(|(name, _)| name == what).map(|(_, value)| value);
            let first = of_others.next().filter(|first| *first != own)?;
            of_others.all(|value| value != own).then(|| (*what, own.clone(), first.clone()))
        };
        let (what, own, theirs) = values(launch).iter().find_map(differs)?;
        let evidence = format!(
            "{what} is {own} here, but {theirs} in {} {}: they never meet",
            others.place.object, others.place.field
        );
        Some(Check::fail(evidence, format!("{what} is the same in all pods")).at(call.at("command")))
    })
}

/// NCCL of one node takes InfiniBand, and that of another sockets: neither answers the other.
fn of_transport(call: &Call<'_>) -> Option<Check> {
    const CHOICES: [&str; 2] = ["NCCL_IB_DISABLE", "NCCL_NET"];
    let Call { manifests, pods, launch, .. } = call;
    let own: Vec<_> = CHOICES.into_iter().filter_map(|name| Some((name, value(launch, name)?))).collect();
    let differs = |other: &Launch| {
        let differs = |(name, own): &&(&str, String)| value(other, name).is_some_and(|it| it != *own);
        let (name, own) = own.iter().find(differs)?;
        Some((*name, own.clone(), value(other, name)?))
    };
    let mut before = manifests.together(pods).take_while(|others| !std::ptr::eq(*pods, *others));
    let found = before.find_map(|others| Some((others.launches().find_map(differs)?, &others.place)));
    let found = found.map(|(found, place)| (found, format!("{} {}", place.object, place.field)));
    let ((name, own, theirs), place) = found.or_else(|| {
        let mut pairs = by_hand(call).filter(|(_, other)| !own.is_empty() && are_a_pair(launch, other));
        pairs.find_map(|(name, other)| Some((differs(other)?, name.to_owned())))
    })?;
    let evidence = format!(
        "{name} is {own} here, but {theirs} in {place}: they choose other transports, and never connect"
    );
    Some(Check::warn(evidence, format!("{name} is the same on all nodes")).at(call.at("command")))
}

/// A variable of a launch, also one that it gives to its container: `docker run --env NAME=VALUE`.
fn value(launch: &Launch, name: &str) -> Option<String> {
    let given = |word: &Text| {
        let word = word.literal()?;
        let word = word.strip_prefix("--env=").or_else(|| word.strip_prefix("-e")).unwrap_or(word);
        Some(word.trim().strip_prefix(name)?.strip_prefix('=')?.to_owned())
    };
    let own = || launch.command.variable(name)?.literal().map(str::to_owned);
    launch.command.words.iter().find_map(given).or_else(own)
}

fn literal(told: Option<&Told>) -> Option<&str> {
    told?.text.literal()
}

/// Whether two scripts start two nodes of one job.
fn are_a_pair(one: &Launch, other: &Launch) -> bool {
    let ranks = literal(one.node_rank.as_ref()).zip(literal(other.node_rank.as_ref()));
    ranks.is_some_and(|(one, other)| one != other) && are_told_alike(one, other)
}

fn are_told_alike(one: &Launch, other: &Launch) -> bool {
    let is_equal = |get: fn(&Launch) -> &Option<Told>| {
        literal(get(one).as_ref()).is_some_and(|own| literal(get(other).as_ref()) == Some(own))
    };
    one.tool() == other.tool()
        && is_equal(|it| &it.nodes)
        && is_equal(|it| &it.host)
        && is_equal(|it| &it.port)
}

fn takes_part(launch: &Launch) -> bool {
    !(launch.command.conditional || launch.by_rallypoint || launch.is_told_elsewhere)
}

/// What all nodes must have in common, as far as it is known.
fn values(launch: &Launch) -> Vec<(&'static str, String)> {
    // Variables that are not seen here may say what no flag does.
    let is_all = !launch.command.open;
    let backend = match &launch.backend {
        Backend::Static => Some("static"),
        Backend::C10d => Some("c10d"),
        Backend::Other(name) => Some(name.as_str()).filter(|name| *name != "$"),
        Backend::Rallypoint => None,
    };
    let port = launch.known_port().filter(|_| is_all || launch.port.is_some());
    let run_id = literal(launch.run_id.as_ref()).filter(|_| launch.backend != Backend::Static);
    let all = [
        ("the backend", backend.filter(|_| is_all).map(str::to_owned)),
        ("the number of nodes", literal(launch.nodes.as_ref()).filter(|_| !is_all).map(str::to_owned)),
        ("the port", port.map(str::to_owned)),
        ("the run's id", run_id.map(str::to_owned)),
    ];
    all.into_iter().filter_map(|(what, value)| Some((what, value?))).collect()
}

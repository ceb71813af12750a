//! A launcher reads only its own flags in front of the script, and refuses any other: the node never joins.

use super::prelude::*;
use crate::is_near;
use rallypoint_node::launch::GRAMMARS;

pub(super) const RULE: Rule = Rule {
    id: "unknown-flag",
    sees: "FAIL: `torchrun --nproc-per-gpu=4 train.py`, `-nnodes=2`, `--rdzv-backend=nccl`; `accelerate \
           launch --nnodes=2 train.py`",
    examples: ["unknown-flag.yaml", "good-job-static.yaml"],
    find: Find::Files(|manifests| manifests.all_calls().filter_map(|call| find(&call)).collect()),
};

fn find(call: &Call<'_>) -> Option<Check> {
    let called = call.launch.called.as_ref().filter(|called| called.grammar.refuses)?;
    let check = with_one_dash(called).or_else(|| unknown(called));
    let check = check.or_else(|| behind(called)).or_else(|| backend(&call.launch.backend));
    let check = check.or_else(|| number(call.launch));
    Some(check?.at(call.at("command")))
}

fn is_plain(word: &&str) -> bool {
    !name_of(word).contains(['$', ' '])
}

/// Such a word is another flag with a value, as `-r` in `-rdzv-id`, or none.
fn with_one_dash(called: &Called) -> Option<Check> {
    let is_long = |word: &&str| {
        let name = name_of(word).strip_prefix('-').unwrap_or_default().replace('_', "-");
        name.len() > 2 && called.grammar.flags().any(|flag| flag == name)
    };
    let word = called.own().iter().map(String::as_str).filter(is_plain).find(is_long)?;
    let name = called.grammar.name;
    let evidence = format!("`{word}` has one dash, and {name} knows it with two: it refuses to start");
    Some(Check::fail(evidence, format!("-{word}")))
}

/// A flag of another launcher, one that is misspelled by a letter, or any other that no release has.
fn unknown(called: &Called) -> Option<Check> {
    let grammar = called.grammar;
    let mut unknown = called.unknown_flags().filter(is_plain).filter(|word| word.starts_with("--"));
    let right = |word: &str| {
        let name = name_of(word).trim_start_matches('-').replace('_', "-");
        let of_others = GRAMMARS.iter().find_map(|other| grammar.flag(other.role(&name)?));
        let near = || grammar.flags().find(|known| is_near(known, &name) && !known.starts_with(&name));
        of_others.or_else(|| Some(grammar.spelled(near()?)))
    };
    let (word, right) = unknown.find_map(|word| match right(word) {
        Some(right) => Some((word, right)),
        None if grammar.is_complete => Some((
            word,
            format!("the flag as `{} --help` spells it, or behind the script, for that", grammar.name),
        )),
        None => None,
    })?;
    let evidence = format!("`{}` is no flag of {}: it refuses to start", name_of(word), grammar.name);
    Some(Check::fail(evidence, right))
}

/// A flag that only torchrun has, and that it does not get, as it stands behind the script.
fn behind(torchrun: &Called) -> Option<Check> {
    const OWN: [&str; 5] = ["nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "nnodes"];
    let is_own = |word: &&String| {
        let name = name_of(word).strip_prefix("--").unwrap_or_default().replace('_', "-");
        OWN.iter().any(|own| *own == name && !torchrun.has(own))
    };
    let mut words = torchrun.program().iter().filter(|_| torchrun.grammar.is_complete);
    let script = words.next().filter(|script| is_python_file(script))?;
    let flag = name_of(words.take_while(|word| basename(word) != "torchrun").find(is_own)?);
    let evidence = format!("`{flag}` stands behind `{script}`: that gets it, and torchrun does not");
    Some(Check::warn(evidence, format!("{flag} in front of {script}")))
}

fn name_of(word: &str) -> &str {
    word.split('=').next().unwrap_or_default()
}

/// A number of nodes or processes that is none: torchrun's `parse_min_max_nnodes` and
/// `determine_local_world_size`.
fn number(launch: &Launch) -> Option<Check> {
    let is_open =
        |text: &str| text.is_empty() || text.contains(|c: char| !c.is_ascii_alphanumeric() && c != ':');
    let written = |told: &Option<Told>| {
        let told =
            told.as_ref().filter(|told| told.by.starts_with("--") && launch.tool() == Tool::Torchrun)?;
        // A word in capitals is to be filled in.
        let text =
            told.text.literal().filter(|it| !is_open(it) && !it.contains(|c: char| c.is_ascii_uppercase()));
        Some((told.by.clone(), text?.to_owned()))
    };
    let is_wrong = |text: &str| {
        let range: Option<Vec<u32>> = text.split(':').map(|part| part.parse().ok()).collect();
        range.is_none_or(|range| range.len() > 2 || range[0] == 0 || range.last() < range.first())
    };
    // Plugins have devices of other names.
    let is_no_device = |text: &str| {
        matches!(text, "gpus" | "cpus" | "cuda" | "all" | "max")
            || text.starts_with(|c: char| c.is_ascii_digit()) && text.parse::<u32>().is_err()
    };
    let nodes = written(&launch.nodes).filter(|(_, text)| is_wrong(text));
    let (flag, text) = nodes.or_else(|| written(&launch.processes).filter(|(_, text)| is_no_device(text)))?;
    let evidence = format!("torchrun cannot read {flag}={text}: it refuses to start");
    Some(Check::fail(evidence, "a number; MIN:MAX of nodes, `gpu` or `auto` of processes"))
}

/// What is a backend of the process group, and none of the rendezvous. Plugins may have other names.
fn backend(backend: &Backend) -> Option<Check> {
    let Backend::Other(name) = backend else { return None };
    let is_of_group =
        matches!(name.to_lowercase().as_str(), "nccl" | "gloo" | "mpi" | "ucc" | "c10" | "c10b");
    let evidence = format!("torchrun has no rendezvous backend `{name}`: it refuses to start");
    is_of_group.then(|| Check::fail(evidence, "--rdzv-backend=c10d; the program chooses nccl or gloo"))
}

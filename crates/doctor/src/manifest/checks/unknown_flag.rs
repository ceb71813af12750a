//! A launcher reads only its own flags in front of the script, and refuses any other: the node never joins.

use super::misread_word::SWITCHES;
use super::prelude::*;
use super::unset_variable::is_near;
use rallypoint_node::launch::{Torchrun, is_flag_of_torchrun};

pub(super) const RULE: Rule = Rule {
    id: "unknown-flag",
    sees: "FAIL: `torchrun --nproc-per-gpu=4 train.py`, `-nnodes=2`, `--rdzv-backend=nccl`; `accelerate \
           launch --nnodes=2 train.py`",
    examples: ["unknown-flag.yaml", "good-job-static.yaml"],
    find: Find::Files(|manifests| manifests.all_calls().filter_map(|call| find(&call)).collect()),
};

fn find(call: &Call<'_>) -> Option<Check> {
    let check = match (&call.launch.torchrun, call.launch.tool) {
        (Some(torchrun), _) => of_torchrun(torchrun).or_else(|| backend(&call.launch.backend)),
        (None, Tool::Accelerate) => of_other("accelerate launch", call.launch, &ACCELERATE, &SWITCHES),
        (None, Tool::DeepSpeed) => of_other("deepspeed", call.launch, &DEEPSPEED, &[]),
        _ => None,
    };
    Some(check?.at(call.at("command")))
}

fn of_torchrun(torchrun: &Torchrun) -> Option<Check> {
    let is_plain = |word: &&str| !name_of(word).contains(['$', ' ']);
    let unknown = || torchrun.unknown_flags().filter(is_plain).find(|word| word.starts_with("--"));
    let own = torchrun.argv().get(torchrun.caller().len()..)?;
    let own = own.get(..own.len().saturating_sub(torchrun.program().len()))?.iter().map(String::as_str);
    // Such a word is another flag with a value, as `-r` in `-rdzv-id`, or none.
    let is_long = |word: &&str| {
        let name = name_of(word).strip_prefix('-').unwrap_or_default();
        name.len() > 2 && is_flag_of_torchrun(&name.replace('_', "-"))
    };
    if let Some(word) = own.filter(is_plain).find(is_long) {
        let evidence = format!("`{word}` has one dash, and torchrun knows it with two: it refuses to start");
        return Some(Check::fail(evidence, format!("-{word}")));
    }
    let Some(flag) = unknown() else { return behind(torchrun) };
    let evidence = format!("`{flag}` is no flag of torchrun: it refuses to start");
    let remedy = "the flag as `torchrun --help` spells it, or behind the script, for that";
    Some(Check::fail(evidence, remedy))
}

/// A flag that only torchrun has, and that it does not get, as it stands behind the script.
fn behind(torchrun: &Torchrun) -> Option<Check> {
    const OWN: [&str; 5] = ["nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "nnodes"];
    let is_own = |word: &&String| {
        let name = name_of(word).strip_prefix("--").unwrap_or_default().replace('_', "-");
        OWN.iter().any(|own| *own == name && !torchrun.has(own))
    };
    let mut words = torchrun.program().iter();
    let script = words.next().filter(|script| script.contains(".py"))?;
    let flag = name_of(words.take_while(|word| basename(word) != "torchrun").find(is_own)?);
    let evidence = format!("`{flag}` stands behind `{script}`: that gets it, and torchrun does not");
    Some(Check::warn(evidence, format!("{flag} in front of {script}")))
}

fn name_of(word: &str) -> &str {
    word.split('=').next().unwrap_or_default()
}

/// What is a backend of the process group, and none of the rendezvous. Plugins may have other names.
fn backend(backend: &Backend) -> Option<Check> {
    let Backend::Other(name) = backend else { return None };
    let is_of_group =
        matches!(name.to_lowercase().as_str(), "nccl" | "gloo" | "mpi" | "ucc" | "c10" | "c10b");
    let evidence = format!("torchrun has no rendezvous backend `{name}`: it refuses to start");
    is_of_group.then(|| Check::fail(evidence, "--rdzv-backend=c10d; the program chooses nccl or gloo"))
}

/// The flags by which the launchers know their nodes, each with those of the others for the same.
const MEANT: [[&str; 3]; 6] = [
    ["nnodes", "num-machines", "num-nodes"],
    ["nproc-per-node", "num-processes", "num-gpus"],
    ["node-rank", "machine-rank", "node-rank"],
    ["master-addr", "main-process-ip", "master-addr"],
    ["master-port", "main-process-port", "master-port"],
    ["rdzv-endpoint", "main-process-ip", "master-addr"],
];
const ACCELERATE: [&str; 5] =
    ["num-machines", "num-processes", "machine-rank", "main-process-ip", "main-process-port"];
const DEEPSPEED: [&str; 5] = ["num-nodes", "num-gpus", "node-rank", "master-addr", "master-port"];

/// A flag of another launcher, or one that is misspelled by a letter.
fn of_other(name: &str, launch: &Launch, known: &[&str], switches: &[&str]) -> Option<Check> {
    let words = launch.command.written();
    let entries = match name {
        "deepspeed" => ["deepspeed", "deepspeed.launcher.runner"],
        _ => ["launch", "accelerate.commands.launch"],
    };
    let is_entry = |word: &String| entries.contains(&basename(word));
    let at = words.iter().position(is_entry)?.saturating_add(1);
    let mut own = words.get(at..)?.iter();
    while let Some(word) = own.next().filter(|word| word.starts_with('-')) {
        let (flag, is_whole) = (name_of(word), word.contains('='));
        let plain = flag.trim_start_matches('-').replace('_', "-");
        if plain == "m" || plain == "module" {
            return None;
        }
        let is_long = flag.starts_with("--");
        let column = if name == "deepspeed" { 2 } else { 1 };
        let meant = MEANT.iter().find(|row| row.contains(&plain.as_str())).map(|row| row[column]);
        let near =
            || known.iter().copied().find(|known| is_near(known, &plain) && !known.starts_with(&plain));
        let right = meant.or_else(near).filter(|right| !is_long || *right != plain);
        if let Some(right) = right {
            let evidence = format!("`{flag}` is no flag of {name}: it refuses to start");
            return Some(Check::fail(evidence, format!("--{}", right.replace('-', "_"))));
        }
        if !is_whole && !switches.contains(&plain.as_str()) {
            own.next();
        }
    }
    None
}

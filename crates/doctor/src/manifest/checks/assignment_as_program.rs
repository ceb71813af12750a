//! Only a shell reads `NAME=value` in front of a command. srun, the kubelet and others look for a program of
//! that name, find none, and the task ends at once.

use super::prelude::*;
use rallypoint_shell::Part;

pub(super) const RULE: Rule = Rule {
    id: "assignment-as-program",
    sees: "FAIL: `srun NCCL_DEBUG=INFO torchrun …`, `command: [RANK=0, python, t.py]`: no shell reads it",
    fails: "slurm-assignment.sbatch",
    passes: "good-slurm.sbatch",
    find: Find::Container(|pods, container| find(pods, container).into_iter().collect()),
};

fn find(pods: &Pods, container: &Container) -> Option<Check> {
    let word = container.commands.iter().find_map(|command| assignment(command.words.first()?))?;
    let evidence = format!("`{word}=…` is taken for the program to start: no shell reads this command");
    let remedy = format!("export {word} before it, or start `env {word}=…`");
    Some(Check::fail(evidence, remedy).at(pods.at(&container.at("command"))))
}

/// The name of the variable, if the word is an assignment.
fn assignment(word: &Text) -> Option<&str> {
    let Part::Known(begin) = word.parts().first()? else { return None };
    let (name, _) = begin.split_once('=')?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (name.starts_with(|c: char| c.is_ascii_uppercase() || c == '_') && name.chars().all(is_name))
        .then_some(name)
}

//! Only a shell reads `NAME=value` in front of a command. srun, the kubelet and others look for a program of
//! that name, find none, and the task ends at once. With a blank around the `=` the shell itself does so, and
//! the variable stays empty.

use super::prelude::*;
use rallypoint_shell::Part;

pub(super) const RULE: Rule = Rule {
    id: "assignment-as-program",
    sees: "FAIL: `srun NCCL_DEBUG=INFO torchrun …`, `command: [RANK=0, python, t.py]`: no shell reads it; \
           `MASTER_ADDR = $HEAD`, a program with two arguments",
    fails: "slurm-assignment.sbatch",
    passes: "good-slurm.sbatch",
    find: Find::Container(|pods, container| find(pods, container).into_iter().collect()),
};

fn find(pods: &Pods, container: &Container) -> Option<Check> {
    let words = || container.all_commands().map(|command| command.words.as_slice());
    let is_apart = |words: &[Text]| Some(words.get(1)?.literal()? == "=").filter(|is| *is);
    let apart = words().find_map(|words| is_apart(words).and_then(|_| words.first()?.literal()));
    let check = if let Some(name) = apart {
        let evidence = format!("`{name} = …` starts a program `{name}`: the variable stays empty");
        Check::fail(evidence, format!("{name}=…, without blanks"))
    } else {
        let word = container.commands.iter().find_map(|command| assignment(command.words.first()?))?;
        let evidence = format!("`{word}=…` is taken for the program to start: no shell reads this command");
        Check::fail(evidence, format!("export {word} before it, or start `env {word}=…`"))
    };
    Some(check.at(pods.at(&container.at("command"))))
}

/// The name of the variable, if the word is an assignment.
fn assignment(word: &Text) -> Option<&str> {
    let Part::Known(begin) = word.parts().first()? else { return None };
    let (name, _) = begin.split_once('=')?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (name.starts_with(|c: char| c.is_ascii_uppercase() || c == '_') && name.chars().all(is_name))
        .then_some(name)
}

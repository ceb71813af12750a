//! In quotes, several flags are one argument: the launcher knows no flag of this name, or takes it for the script.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "one-argument",
    sees: "FAIL: `torchrun \"$ARGS\"`, `torchrun \"${ARGS[*]}\"`, `args: [\"--nnodes 2 --node-rank 0\"]`",
    fails: "one-argument.sbatch",
    passes: "good-slurm.sbatch",
    find: Find::Container(|pods, container| find(pods, container).into_iter().collect()),
};

fn find(pods: &Pods, container: &Container) -> Option<Check> {
    let is_flag = |word: &str| word.starts_with("--") && !word.contains(char::is_whitespace);
    // Several flags may be the value of one: `--launcher_args "--a 1 --b 2"`.
    let are_several = |two: &[String]| {
        let mut pieces = two[1].split_whitespace();
        let is_first = pieces.next().is_some_and(|first| is_flag(first) && !first.contains("=-"));
        let is_value = is_flag(&two[0]) && !two[0].contains('=');
        is_first && !is_value && pieces.any(is_flag)
    };
    let word = container.commands.iter().find_map(|command| {
        let words: Vec<String> = command.words.iter().map(ToString::to_string).collect();
        let at = words.iter().position(|word| is_launcher(word))?;
        // Behind the script are arguments of its own.
        let end = words.iter().position(|word| word.ends_with(".py")).unwrap_or(words.len());
        let pair = words.get(at..end)?.windows(2).find(|two| are_several(two))?;
        Some(pair[1].clone())
    })?;
    let evidence =
        format!("`{word}` is one argument, as it stands in quotes: the launcher knows no such flag");
    let remedy = "an array, \"${ARGS[@]}\", or no quotes; in a list of arguments one item for each";
    Some(Check::fail(evidence, remedy).at(pods.at(&container.at("command"))))
}

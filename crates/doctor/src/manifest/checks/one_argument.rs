//! Who starts a program splits nothing: several words in quotes are one, and items of a list stay apart. The
//! launcher gets other arguments than its reader thinks, or is not started at all.

use super::prelude::*;
use rallypoint_shell::is_shell;

pub(super) const RULE: Rule = Rule {
    id: "one-argument",
    sees: "FAIL: `torchrun \"$ARGS\"`, `torchrun \"${ARGS[*]}\"`; `command: [\"torchrun --nnodes=2\"]`; \
           `command: [bash, -c, torchrun, --nnodes=2]`, `command: [sh, torchrun]`; `–nnodes=2` with a dash \
           from a text; a folded script (`>`) whose comment has the launcher",
    fails: "one-argument.sbatch",
    passes: "good-slurm.sbatch",
    find: Find::Container(|pods, container| {
        let found = of_list(container).or_else(|| of_launcher(container)).or_else(|| remark(container));
        found.into_iter().map(|check| check.at(pods.at(&container.at("command")))).collect()
    }),
};

/// What a list of arguments makes of them.
fn of_list(container: &Container) -> Option<Check> {
    let argv = &container.argv;
    let has_blanks = |word: &str| word.split_whitespace().nth(1).is_some();
    let first = argv.first()?;
    if has_blanks(first) && is_launcher(first.split_whitespace().next()?) {
        let evidence =
            format!("`{first}` is one word, and no program is called so: the container cannot start");
        return Some(Check::fail(evidence, "an item for each word, or [sh, -c, …]"));
    }
    let (shell, behind) = (first, argv.get(1..)?);
    if !is_shell(shell) {
        return None;
    }
    let is_option = |word: &&String| word.starts_with(['-', '+']);
    let options: Vec<&String> = behind.iter().take_while(is_option).collect();
    let word = behind.get(options.len()).filter(|word| is_launcher(word) && !has_blanks(word))?;
    let reads_text = options.iter().any(|option| !option.starts_with("--") && option.contains('c'));
    let others = behind.get(options.len().saturating_add(1)..).filter(|others| !others.is_empty());
    let evidence = match (reads_text, others) {
        (true, Some(_)) => {
            format!(
                "`{word}` is the whole script of `{shell} -c`: the items behind it are no arguments of it"
            )
        }
        (true, None) => return None,
        (false, _) => format!("`{shell} {word}` reads {word} as a shell script, which it is not"),
    };
    Some(Check::fail(evidence, format!("the command without `{shell}`, or one text behind `{shell} -c`")))
}

/// What quotes make of flags.
fn of_launcher(container: &Container) -> Option<Check> {
    let is_flag = |word: &str| word.starts_with("--") && !word.contains(char::is_whitespace);
    // Several flags may be the value of one: `--launcher_args "--a 1 --b 2"`.
    let are_several = |before: &str, word: &str| {
        let mut pieces = word.split_whitespace();
        let is_first = pieces.next().is_some_and(|first| is_flag(first) && !first.contains("=-"));
        let is_value = is_flag(before) && !before.contains('=');
        is_first && !is_value && pieces.any(is_flag)
    };
    container.commands.iter().find_map(|command| {
        let words: Vec<String> = command.words.iter().map(ToString::to_string).collect();
        let at = words.iter().position(|word| is_launcher(word))?;
        // Behind the script are arguments of its own.
        let end = words.iter().position(|word| word.ends_with(".py")).unwrap_or(words.len());
        words.get(at..end)?.windows(2).find_map(|two| {
            let word = &two[1];
            if word.starts_with(['–', '—']) {
                let evidence =
                    format!("`{word}` begins with a dash of a text: the launcher takes it for a script");
                return Some(Check::fail(evidence, "two hyphens, --"));
            }
            are_several(&two[0], word).then(|| {
                let evidence = format!(
                    "`{word}` is one argument, as it stands in quotes: the launcher knows no such flag"
                );
                Check::fail(evidence, "an array, \"${ARGS[@]}\", or no quotes; in a list one item for each")
            })
        })
    })
}

/// A comment that goes on to the end of a script whose lines YAML has joined.
fn remark(container: &Container) -> Option<Check> {
    let text = container.argv.iter().find(|text| text.trim().lines().count() == 1 && text.contains(" # "))?;
    let (_, remark) = text.split_once(" # ")?;
    let launcher = remark.split_whitespace().skip(1).find(|word| is_launcher(word))?;
    let evidence =
        format!("YAML makes one line of the script (`>`): `{launcher}` is in the comment before it");
    (!container.trains()).then(|| Check::fail(evidence, "`|` instead of `>`"))
}

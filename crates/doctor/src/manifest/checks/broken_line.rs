//! A command goes on in the next line only if the backslash is the last character. A blank or a comment
//! behind it, or a line that is a comment, ends the command, as does one without a backslash: its other flags
//! become a command of their own. A quote that nothing closes has no end at all.

use super::prelude::*;
use rallypoint_shell::Mistake;

pub(super) const RULE: Rule = Rule {
    id: "broken-line",
    sees: "FAIL: a blank or a comment behind the `\\` at the end of a line, no `\\`, or a comment, an \
           empty line or `/` instead: torchrun does not get what follows; what bash cannot parse; DOS \
           line ends. WARN: `<NAME>` in a script",
    examples: ["broken-line.sbatch", "good-slurm.sbatch"],
    find: Find::Files(find),
};

const JOINED: &str = "a backslash at the end of each line but the last of a command";

fn find(manifests: &Manifests) -> Vec<Check> {
    // A script that nothing starts is read as well.
    let of_map = |object: &Object| {
        let texts = || object.value.get("data").into_iter().filter_map(Value::as_object).flatten();
        let scripts = texts().filter_map(|(_, text)| text.as_str()).filter(|text| text.starts_with("#!"));
        let alone = object.script().filter(|_| manifests.of_object(object.number).next().is_none());
        let mut all = scripts.chain(alone);
        Some(
            all.find_map(|text| broken(text).or_else(|| dangling(text)).or_else(|| quoted(text)))?
                .at(object.place("-")),
        )
    };
    let of_container = |(pods, container): (&Pods, &Container)| {
        let found = container.texts().find_map(broken).or_else(|| unjoined(container));
        let found = found.or_else(|| container.texts().find_map(dangling));
        let found = found.or_else(|| container.texts().find_map(quoted));
        let script = || container.script_of_command().filter(|text| is_of_bash(text));
        let found = found.or_else(|| grammar(script()?))?;
        Some(found.at(pods.at(&container.at("command"))))
    };
    let of_script =
        |object: &Object| of_dos(object).or_else(|| of_merge(object)).or_else(|| of_grammar(object));
    let maps = manifests.objects.iter().filter_map(|object| of_map(object).or_else(|| of_script(object)));
    maps.chain(manifests.containers().filter_map(of_container)).collect()
}

fn of_dos(object: &Object) -> Option<Check> {
    object.is_dos().then(|| {
        let evidence =
            "the lines end as in DOS: a shell takes the carriage return for a part of the last word";
        Check::fail(evidence, "dos2unix, or `sed -i 's/\\r$//'`").at(object.place("-"))
    })
}

fn of_merge(object: &Object) -> Option<Check> {
    let mut lines = (1_u32..).zip(object.script()?.lines());
    let (number, line) = lines.find(|(_, line)| line.starts_with("<<<<<<< "))?;
    lines.find(|(_, line)| line.starts_with(">>>>>>> "))?;
    let evidence = format!("line {number}: `{line}` is the mark of a merge: the shell runs nothing of it");
    Some(Check::fail(evidence, "take out the marks, and one of the two parts").at(object.place("-")))
}

/// Another shell than this may have another grammar.
fn of_grammar(object: &Object) -> Option<Check> {
    let text = object.script().filter(|text| is_of_bash(text))?;
    Some(grammar(text)?.at(object.place("-")))
}

fn grammar(text: &str) -> Option<Check> {
    let (mistake, line) = rallypoint_shell::mistake(text)?;
    let at = line.map_or_else(String::new, |line| format!("line {line}: "));
    let check = match mistake {
        Mistake::Quote(quote) => {
            let evidence =
                format!("{at}nothing closes this `{quote}`: the shell runs nothing of what follows");
            Check::fail(evidence, format!("a second {quote}"))
        }
        Mistake::Document(end) => {
            let evidence =
                format!("{at}no line is `{end}` alone: the rest of the script is a part of its document");
            Check::fail(evidence, format!("`{end}` at the begin of a line, and nothing behind it"))
        }
        Mistake::Place(name) => {
            let evidence = format!(
                "{at}as it stands, `<{name}>` is an error of syntax: it is a place that is to be filled in"
            );
            Check::warn(evidence, "its value")
        }
        Mistake::Syntax => {
            let written = line.and_then(|line| text.lines().nth(line.checked_sub(1)?));
            let evidence = match written {
                Some(line) => {
                    format!("{at}`{}` is an error of syntax, at which the shell stops", line.trim())
                }
                None => {
                    "the script ends within something, such as an `if` without `fi`: the shell stops".into()
                }
            };
            Check::fail(evidence, "`bash -n SCRIPT` says more")
        }
    };
    Some(check)
}

fn is_of_bash(text: &str) -> bool {
    let first = text.lines().next().unwrap_or_default();
    let interpreter = first.strip_prefix("#!").and_then(|rest| rest.split_whitespace().next_back());
    interpreter.is_none_or(|it| matches!(basename(it), "sh" | "bash" | "dash") || it.starts_with('-'))
}

/// A backslash before a blank within a line quotes it: the blank belongs to the next word, and in an array
/// makes one.
fn quoted(text: &str) -> Option<Check> {
    let mut is_array = false;
    let code = (1_u32..).zip(text.lines()).filter(|(_, line)| !line.trim_start().starts_with('#'));
    code.into_iter().find_map(|(number, line)| {
        let was_array = is_array;
        is_array = (is_array || line.trim_end().ends_with("=(")) && !line.contains(')');
        let (before, behind) = [" \\ ", "\t\\ "].iter().find_map(|mark| line.split_once(mark))?;
        let is_quoted = before.matches('"').count() % 2 == 1 || before.matches('\'').count() % 2 == 1;
        let word = behind.split(' ').next().unwrap_or_default();
        let is_flag =
            word.strip_prefix("--").is_some_and(|name| name.starts_with(|c: char| c.is_ascii_lowercase()));
        let leads =
            before.trim_start().starts_with("--") || before.split_whitespace().any(Grammar::is_program);
        let evidence = match () {
            () if is_quoted => return None,
            () if is_flag && leads && !was_array => {
                format!("line {number}: the backslash quotes the blank behind it: ` {word}` is no flag")
            }
            () if was_array && is_array && behind.trim_start().starts_with('#') => format!(
                "line {number}: the backslash quotes the blank: ` #` and the remark are values of the array"
            ),
            () if was_array && is_array && behind.trim().is_empty() => {
                format!("line {number}: the backslash quotes the blank, which is a value of the array")
            }
            () => return None,
        };
        let tell = if is_flag { Check::fail } else { Check::warn };
        Some(tell(evidence, "no backslash there".to_owned()))
    })
}

/// Flags that stand where a program should.
fn unjoined(container: &Container) -> Option<Check> {
    // Elsewhere it may be a rest that nothing needs.
    let lines: Vec<&str> = container.texts().flat_map(str::lines).map(str::trim).collect();
    let is_next = |flag: &str| {
        let ends = |line: &str| !line.is_empty() && !line.starts_with('#') && !line.ends_with('\\');
        lines.windows(2).any(|two| two[1].starts_with(flag) && ends(two[0]))
    };
    let flag = container.all_commands().filter(|_| !container.is_exec()).find_map(|command| {
        let name = command.words.first()?.to_string().split('=').next()?.to_owned();
        (name.starts_with("--") && is_next(&name)).then_some(name)
    })?;
    let evidence = format!("`{flag}` stands where a program should: the line before has no backslash");
    Some(Check::fail(evidence, JOINED))
}

/// A launcher or a flag in a line of its own, as deep as those of the command above it: no backslash joins
/// them.
fn dangling(text: &str) -> Option<Check> {
    let deep = |line: &str| line.len().saturating_sub(line.trim_start().len());
    let lines: Vec<&str> = text.lines().collect();
    let ends_open = |line: &str| line.trim_end().ends_with(['\\', ';', '&', '|', '(', '{', '\'', '"']);
    let goes_on = |at: usize| lines.get(at).is_some_and(|line| line.ends_with('\\'));
    // The lines of an array or of a text in quotes need no backslash.
    let is_list = |text: &str| {
        let quotes = |quote| text.matches(quote).count() % 2 == 1;
        quotes('"') || quotes('\'') || text.matches('(').count() > text.matches(')').count()
    };
    let at = (2..lines.len()).find(|&at| {
        let (last, next) = (lines[at.saturating_sub(1)], lines[at]);
        let begin = (0..at.saturating_sub(1))
            .rev()
            .find(|&above| !goes_on(above))
            .map_or(0, |it| it.saturating_add(1));
        let is_flag = |word: &str| word.starts_with("--") && !is_list(&lines[begin..at].join(" "));
        let leads =
            next.split_whitespace().next().is_some_and(|word| Grammar::is_program(word) || is_flag(word));
        let is_block =
            last.split_whitespace().last().is_some_and(|word| matches!(word, "then" | "do" | "else"));
        goes_on(at.saturating_sub(2))
            && leads
            && !is_block
            && !ends_open(last)
            && !last.trim().is_empty()
            && deep(next) >= deep(last)
            && deep(last) > deep(lines[begin])
    })?;
    let evidence = format!(
        "line {at} has no backslash, and `{}` in the next line is a command of its own",
        lines[at].trim().trim_end_matches('\\').trim_end()
    );
    Some(Check::fail(evidence, JOINED))
}

/// The first line that ends a command too early, and what the command loses.
fn broken(text: &str) -> Option<Check> {
    let is_remark = |line: &&str| line.trim_start().starts_with('#');
    let is_empty = |line: &&str| line.trim().is_empty();
    let lines: Vec<&str> = text.lines().collect();
    let (mut is_array, mut value) = (false, None);
    (1..).zip(&lines).filter(|(_, line)| !is_remark(line)).find_map(|(number, line)| {
        // The lines of an array need no backslash.
        let was_array = is_array;
        is_array = (is_array || line.contains("=(")) && !line.contains(')');
        if line.matches('"').count() % 2 == 1 {
            value = if value.is_none() { opens_value(line) } else { None };
        }
        let (_, behind) = line.rsplit_once('\\').unwrap_or((line, "none"));
        let mut next = lines.iter().skip(number).copied();
        let blank = behind.starts_with([' ', '\t']);
        let why = match behind.trim() {
            _ if was_array => return None,
            "" if blank => "a blank behind the backslash",
            remark if blank && remark.starts_with('#') => "a comment behind the backslash",
            "" if lines.get(number).is_some_and(is_remark) => "the comment in the next line",
            "" if lines.get(number).is_some_and(is_empty) => "the empty next line",
            _ if line.trim_end().ends_with(" /") && line.contains("--") => "`/`, which is no backslash,",
            _ => return None,
        };
        let lost = next.find(|line| !is_remark(line) && !is_empty(line))?;
        let first = lost.split_whitespace().next()?;
        let is_script = lost.starts_with([' ', '\t']) && is_python_file(first);
        let starts =
            |program: &&str| matches!(*program, "srun" | "jsrun" | "mpirun" | "mpiexec" | "torchrun");
        // The command may have begun some lines above.
        let above = lines.iter().take(number.saturating_sub(1)).rev().take_while(|it| it.ends_with('\\'));
        let begin = above.last().unwrap_or(line);
        let is_start = blank && begin.split_whitespace().next().as_ref().is_some_and(starts);
        if !lost.trim_start().starts_with('-') && !is_script && !is_start {
            return None;
        }
        if let Some(name) = value.filter(|name| blank && !is_run(text, name)) {
            let evidence = format!("line {number}: with {why} it stays in {name}, as a word of its own");
            return Some(Check::warn(evidence, "nothing behind the backslash"));
        }
        let lost = lost.trim().trim_end_matches('\\').trim_end();
        let evidence = format!("line {number}: {why} ends the command there, and `{lost}` is not part of it");
        Some(Check::fail(evidence, "nothing behind the backslash, and comments above the command"))
    })
}

/// Whether a shell reads the value of a variable as a script.
fn is_run(text: &str, name: &str) -> bool {
    ["-c ", "-lc ", "eval ", "ssh "].iter().any(|reader| {
        let behind = text.split(reader).skip(1).filter_map(|it| it.lines().next());
        behind.into_iter().any(|it| it.contains(&format!("${name}")) || it.contains(&format!("${{{name}}}")))
    })
}

/// The variable whose value in quotes begins in a line.
fn opens_value(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let (name, _) = line.strip_prefix("export ").unwrap_or(line).split_once("=\"")?;
    name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_').then_some(name)
}

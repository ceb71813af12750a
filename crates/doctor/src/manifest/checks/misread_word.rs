//! A word is another one than its reader thinks: who starts a program splits nothing, a shell reads what no
//! shell was to read, a flag takes the next word or does not. The launcher gets other arguments, or is not
//! started at all.

use super::prelude::*;
use rallypoint_shell::{Part, is_script, is_shell};

pub(super) const RULE: Rule = Rule {
    id: "misread-word",
    sees: "FAIL: `torchrun \"$ARGS\"`; `command: [\"torchrun --nnodes=2\"]`; `command: [bash, -c, \
           torchrun, --nnodes=2]`, `- --nnodes 2`; `–nnodes=2` with a dash from a text; `srun \
           NCCL_DEBUG=INFO torchrun …`, `command: [RANK=0, python, t.py]`, `MASTER_ADDR = $HEAD`, \
           `--nnodes = 2`; `torchrun python t.py`, `torchrun run.sh`, `accelerate launch \
           --zero3_init_flag train.py`, `--master_addr` twice. WARN: `${N:=-2}`, `${SLURM_NODELIST//,/ \
           }`, `lrs=(0.1, 0.2)`, `nodes_array=(\"$nodes\")`, `[ $A = b]`",
    examples: ["one-argument.sbatch", "good-slurm.sbatch"],
    find: Find::Container(|pods, container| {
        // KubeRay makes one text of the command and the arguments, for a shell.
        let is_rays = pods.maker == Maker::Ray && pods.is_first(container);
        let of_list = Some(container).filter(|_| !is_rays).and_then(of_list);
        let of_script = || container.script.iter().find_map(|command| of_shell_of(&command.written()));
        let of_words = of_list.or_else(|| of_launcher(container)).or_else(of_script);
        let of_launch = |it: &Launch| of_switches(it).or_else(|| twice(it)).or_else(|| program(it));
        let of_flags = container.launches.iter().find_map(of_launch);
        let of_lines = compressed(container).or_else(|| negative(container));
        let found = [of_words, of_assignment(container), of_flags, array(container), of_lines];
        let found = found.into_iter().flatten().chain(of_shell(container));
        found.map(|check| check.at(pods.at(&container.at("command")))).collect()
    }),
};

/// The lines of the scripts that are no remarks.
fn lines(container: &Container) -> impl Iterator<Item = &str> {
    container.texts().flat_map(str::lines).filter(|line| !line.trim_start().starts_with('#'))
}

/// Slurm's list of nodes, parted as if it had a name for each.
fn compressed(container: &Container) -> Option<Check> {
    const PARTS: [&str; 8] = ["tr ','", "tr \",\"", "//,/", "%,*", "-d','", "-d ','", "-d,", "-F','"];
    const LISTS: [&str; 3] = ["SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"];
    const READ: [&str; 3] = ["hostnames", "hostlist", "nodeset"];
    let reads =
        |line: &str, name: &str| line.contains(&format!("${name}")) || line.contains(&format!("${{{name}"));
    // A variable may have taken the list over.
    let taken = lines(container).filter_map(|line| {
        let (name, value) = line.trim().trim_start_matches("export ").split_once('=')?;
        let is_list = LISTS.iter().any(|list| reads(value, list)) || value.contains("/NodeList/");
        let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        (is_name && is_list && !READ.iter().any(|it| value.contains(it))).then_some(name)
    });
    // A list of one node is its name.
    let is_one = container.variable("SLURM_NNODES").is_some_and(|nodes| nodes.literal() == Some("1"));
    let names: Vec<&str> = LISTS.into_iter().chain(taken).filter(|_| !is_one).collect();
    let list = |line: &str| names.iter().copied().find(|name| reads(line, name));
    let is_parted = |line: &str| {
        PARTS.iter().any(|part| line.contains(part))
            || line.contains("read ") && ["IFS=,", "IFS=','", "IFS=\",\""].iter().any(|it| line.contains(it))
    };
    let is_whole = |line: &&str| is_parted(line) && !READ.iter().any(|it| line.contains(it));
    let name = lines(container).filter(is_whole).find_map(list)?;
    let evidence =
        format!("${name} is short for several names (`node[01-02]`): parted at its commas it gives no hosts");
    Some(Check::warn(evidence, format!("scontrol show hostnames \"${name}\"")))
}

/// `${N:=-2}`: a minus that belongs to the value.
fn negative(container: &Container) -> Option<Check> {
    let mut found = lines(container).filter_map(|line| {
        let (before, behind) = line.split_once(":=-")?;
        let (name, digits) = (before.rsplit_once("${")?.1, behind.split_once('}')?.0);
        let are_digits = !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit());
        (are_digits && !name.contains('}')).then(|| format!("${{{name}:=-{digits}}}"))
    });
    let written = found.next()?;
    let evidence = format!("`{written}` makes it negative where it is not set");
    Some(Check::warn(evidence, written.replace(":=-", ":-")))
}

/// What a list of arguments makes of them.
fn of_list(container: &Container) -> Option<Check> {
    let argv = &container.argv;
    let has_blanks = |word: &str| word.split_whitespace().nth(1).is_some();
    let (first, behind) = argv.split_first()?;
    // Without a command the first of `args` is an argument.
    let is_program = container.value.pointer("/command/0").is_some();
    if has_blanks(first) && (is_program || Grammar::is_program(first.split_whitespace().next()?)) {
        let evidence =
            format!("`{first}` is one word, and no program is called so: the container cannot start");
        return Some(Check::fail(evidence, "an item for each word, or [sh, -c, …]"));
    }
    of_shells_words(first, behind)
}

/// The shell that a command of a script starts.
fn of_shell_of(words: &[String]) -> Option<Check> {
    let at = words.iter().position(|word| is_shell(word))?;
    of_shells_words(&words[at], &words[at..][1..])
}

/// What `bash -c` takes of several words.
fn of_shells_words(shell: &str, behind: &[String]) -> Option<Check> {
    let has_blanks = |word: &str| word.split_whitespace().nth(1).is_some();
    let shell = Some(shell).filter(|first| is_shell(first))?;
    let (options, words) = behind.split_at(behind.iter().take_while(|it| it.starts_with(['-', '+'])).count());
    let word = words.first().filter(|word| Grammar::is_program(word) && !has_blanks(word))?;
    let reads_text = options.iter().any(|option| !option.starts_with("--") && option.contains('c'));
    let evidence = match reads_text {
        true if words.len() == 1 => return None,
        true => format!("`{word}` is all that `{shell} -c` runs: the items behind it are no arguments of it"),
        false => format!("`{shell} {word}` reads {word} as a shell script, which it is not"),
    };
    Some(Check::fail(evidence, format!("the command without `{shell}`, or one text behind `{shell} -c`")))
}

/// A test without its end, and more than one environment for conda.
fn of_shell(container: &Container) -> impl Iterator<Item = Check> {
    container.all_commands().filter_map(|command| {
        let words = command.written();
        let (first, last) = (words.first()?.as_str(), words.last()?);
        let is_bare = |word: &&String| !word.starts_with('-');
        if first == "[" && last.ends_with(']') && last != "]" {
            let evidence = format!("`{last}` has no blank before the `]`: the test is an error, and fails");
            return Some(Check::warn(evidence, format!("{} ]", last.trim_end_matches(']'))));
        }
        let envs = words.get(2..)?.iter().filter(is_bare).count();
        (first == "conda" && words[1] == "activate" && envs > 1).then(|| {
            let evidence = format!("`{}` has several words, and conda takes one", words.join(" "));
            Check::warn(evidence, "a `#` in front of a remark")
        })
    })
}

/// What quotes make of flags.
fn of_launcher(container: &Container) -> Option<Check> {
    let is_flag = |word: &str| word.starts_with("--") && !word.contains(char::is_whitespace);
    // Several flags may be the value of one: `--launcher_args "--a 1 --b 2"`. Those in `$(…)` are of another
    // command.
    let are_several = |before: &str, word: &str| {
        let mut pieces = word.split_whitespace();
        let is_value_of = |first: &str| ["=-", "$(", "`"].iter().any(|mark| first.contains(mark));
        let is_first = pieces.next().is_some_and(|first| is_flag(first) && !is_value_of(first));
        let is_value = is_flag(before) && !before.contains('=');
        is_first && !is_value && pieces.any(is_flag)
    };
    if let Some(check) = of_item(container) {
        return Some(check);
    }
    container.commands.iter().find_map(|command| {
        let words = command.written();
        let at = words.iter().position(|word| Grammar::is_program(word))?;
        // Behind the script are arguments of its own.
        let end = words.iter().position(|word| is_python_file(word)).unwrap_or(words.len());
        words.get(at..end)?.windows(2).find_map(|two| {
            let word = &two[1];
            if word.starts_with(['–', '—']) {
                let evidence =
                    format!("`{word}` begins with a dash of a text: the launcher takes it for a script");
                return Some(Check::fail(evidence, "two hyphens, --"));
            }
            let has_blank =
                two[0].starts_with("--") && (word == "=" || two[0].ends_with('=') && !word.starts_with('-'));
            if has_blank {
                let evidence = format!(
                    "`{} {word}` has a blank beside the `=`: the flag gets nothing of what follows",
                    two[0]
                );
                return Some(Check::fail(
                    evidence,
                    format!("{}=…, without blanks", two[0].trim_end_matches('=')),
                ));
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

/// An item of a list of arguments with a flag and its value: `- --nnodes 2`.
fn of_item(container: &Container) -> Option<Check> {
    let argv = &container.argv;
    let first = argv.first().filter(|_| container.is_exec())?;
    if Starter::of(first).is_some() {
        let begins = |word: &&String| Grammar::is_program(word) || is_shell(word) || is_python_file(word);
        let own: Vec<&String> = argv.iter().take_while(|word| !begins(word)).collect();
        let is_option = |two: &&[&String]| {
            let is_value = two[0].trim_start_matches('-') == "mca" && two[0].starts_with('-');
            // A value may have blanks: `--mpi-args="-x A"`, `--export=ALL,A="b c"`.
            let name = two[1].trim().split_once(' ').map(|(name, _)| name);
            let is_flag = |name: &str| name.starts_with('-') && !name.contains('=');
            let takes_any = two[0].ends_with("args") || two[0].ends_with("comment");
            name.is_some_and(|name| is_flag(name) && !takes_any || is_value)
        };
        let word = own.windows(2).find(is_option)?[1];
        let evidence = format!("`{word}` is one argument of {first}, with a blank in it: it is no option");
        return Some(Check::fail(evidence, "an item for each word"));
    }
    let first = Some(first).filter(|first| Grammar::is_program(first))?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let name = |word: &str| word.strip_prefix("--").is_some_and(|name| name.chars().all(is_name));
    let (word, flag) = argv.windows(2).find_map(|two| {
        let (flag, value) = two[1].split_once([' ', '='])?;
        let flag = flag.trim_end();
        let has_blank = two[1].contains(' ') && two[1].get(flag.len()..)?.starts_with(' ');
        (has_blank && name(flag) && !name(&two[0]) && !value.contains("--")).then_some((&two[1], flag))
    })?;
    let evidence = format!("`{word}` is one argument of {first}, with a blank in it: no flag is called so");
    Some(Check::fail(evidence, format!("{flag}=…, or an item for each of the two")))
}

/// Only a shell reads `NAME=value` in front of a command, and none reads it with blanks.
fn of_assignment(container: &Container) -> Option<Check> {
    let mut commands = container.all_commands().filter(|command| !Container::is_small(command));
    let is_sign = |word: &Text| word.to_string().starts_with('=') && !word.to_string().starts_with("==");
    let before = |Command { words, .. }: &Command| {
        let at = words.iter().take(3).position(is_sign)?.checked_sub(1)?;
        let is_declared =
            at == 0 || matches!(words[0].literal()?, "export" | "declare" | "local" | "readonly");
        Some(words[at].literal().filter(|_| is_declared)?.to_owned())
    };
    if let Some(name) = commands.find_map(before) {
        let evidence = format!("`{name} = …` starts a program `{name}`: the variable stays empty");
        return Some(Check::fail(evidence, format!("{name}=…, without blanks")));
    }
    let word = container.commands.iter().find_map(|command| assignment(command.words.first()?))?;
    let evidence = format!("`{word}=…` is taken for the program to start: no shell reads this command");
    Some(Check::fail(evidence, format!("export {word} before it, or start `env {word}=…`")))
}

/// The name of the variable, if the word is an assignment.
fn assignment(word: &Text) -> Option<&str> {
    let Part::Known(begin) = word.parts().first()? else { return None };
    let (name, _) = begin.split_once('=')?;
    let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    (is_name && name.starts_with(|c: char| c.is_ascii_uppercase() || c == '_')).then_some(name)
}

/// A launcher starts Python itself, and its program is a script for it.
fn program(launch: &Launch) -> Option<Check> {
    const ANY: [&str; 8] =
        ["no-python", "module", "m", "run-path", "module-mode", "command-mode", "c", "help"];
    let called = launch.called.as_ref().filter(|called| !called.grammar.is_open && !called.is_open)?;
    let (program, words) = called.program().split_first()?;
    let version = basename(program).strip_prefix("python");
    let is_python = version.is_some_and(|it| it.chars().all(|c| c.is_ascii_digit() || c == '.'));
    let starts = is_python || is_shell(program) || Starter::of(program).is_some();
    let is_flag = |name: &str| called.grammar.flags().any(|flag| flag.len() > 3 && flag == name);
    if let Some((name, _)) = program.split_once('=').filter(|(name, _)| is_flag(&name.replace('_', "-"))) {
        let evidence = format!("{} takes `{program}` for its script: two hyphens lack", called.grammar.name);
        return Some(Check::fail(evidence, format!("--{name}=…")));
    }
    let what = match () {
        () if ANY.iter().any(|flag| called.has(flag)) => return None,
        () if starts && !words.is_empty() => "for a script, and finds no such file",
        () if program.parse::<u32>().is_ok() => "for a script: a blank stands before it",
        () if is_script(program) && !program.contains('$') => "for a script in Python, which it is not",
        () => return None,
    };
    let evidence = format!("{} takes `{program}` {what}", called.grammar.name);
    let remedy = match () {
        () if is_python => format!("no `{program}` there; or --no-python before it"),
        () if program.parse::<u32>().is_ok() => "no blank there".into(),
        () => "--no-python before it, or the script in Python".into(),
    };
    Some(Check::fail(evidence, remedy))
}

/// A flag that stands twice: the last one counts.
fn twice(launch: &Launch) -> Option<Check> {
    let called = launch.called.as_ref().filter(|called| !called.grammar.is_open)?;
    let mut seen = std::collections::BTreeMap::new();
    let mut told = called.all().filter(|(name, _)| called.grammar.role(name).is_some());
    told.find_map(|(name, value)| {
        let value = value?;
        let before = seen.insert(name, value).filter(|before| *before != value)?;
        let flag = called.written(name)?;
        let evidence = format!("`{flag}` stands twice, with {before} and {value}: the last one counts");
        Some(Check::fail(evidence, format!("{flag} once")))
    })
}

/// There are flags that look like switches and take a word, and switches that take none. With the other form
/// the launcher starts another program than the training.
fn of_switches(launch: &Launch) -> Option<Check> {
    let called = launch.called.as_ref().filter(|called| !called.grammar.is_open)?;
    let next = called.program().first().map_or("", String::as_str);
    let is_script = |value: &&str| is_python_file(value) && !is_python_file(next);
    let taken = called.all().find_map(|(name, value)| Some((name, value.filter(is_script)?)));
    if let Some((flag, script)) = taken.and_then(|(name, value)| Some((called.written(name)?, value))) {
        let evidence = format!("{flag} takes a word, and here that is the script `{script}`");
        return Some(Check::fail(evidence, format!("{flag} true {script}")));
    }
    let (name, value) = called.all().last()?;
    let flag = called.written(name)?;
    let evidence = format!("{flag} takes no word: {} takes `{next}` for the script", called.grammar.name);
    (value.is_none() && matches!(next, "true" | "false" | "True" | "False"))
        .then(|| Check::fail(evidence, format!("{flag} alone")))
}

/// The values of an array are parted by blanks alone, and in quotes by none.
fn array(container: &Container) -> Option<Check> {
    let in_line = |text: &str, line: &str| {
        let (name, values) = line.trim().split_once("=(")?;
        if !text.contains(&format!("${{{name}[")) {
            return None;
        }
        let first = values.split_whitespace().next()?;
        let is_quoted = values.strip_prefix("\"$").and_then(|rest| rest.strip_suffix("\")"));
        if let Some(inner) = is_quoted.filter(|it| it.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
        {
            let evidence = format!("`{name}=(\"${inner}\")` has one value, which keeps all of the names");
            return Some(Check::warn(evidence, format!("{name}=(${inner})")));
        }
        let evidence =
            format!("`{first}` keeps its comma: a shell parts the values of an array by blanks alone");
        first.ends_with(',').then(|| Check::warn(evidence, "blanks in place of the commas"))
    };
    let lines = |text| str::lines(text).find_map(|line| in_line(text, line));
    container.texts().find_map(lines).filter(|_| container.may_train(false))
}

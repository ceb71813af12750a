//! An endpoint, a rank or a number that is made of an empty variable is another one than its reader thinks.

use super::node_rank::is_index;
use super::prelude::*;
use crate::is_near;
use crate::manifest::launches::flag;
use crate::manifest::scripts::MISSPELLED;
use rallypoint_shell::Part;

pub(super) const RULE: Rule = Rule {
    id: "unset-variable",
    sees: "FAIL: a launch value uses `$(NAME)` or `$NAME` that nothing sets (`$SLURM_NODES`) or reads \
           (`'$NAME'`), or is a variable's name without `$`. WARN in a batch script, whose submitter may \
           set it, or that sets it later; `$3` of two arguments; `MASTER_ADDR` or `NCCL_DEBUG` without \
           `export`",
    examples: ["unset-variable.yaml", "good-job-static.yaml"],
    find: Find::Container(find),
};

fn find(pods: &Pods, container: &Container) -> Vec<Check> {
    let of_launch = |launch| in_launch(pods, container, launch);
    // `rallypoint run` sets the variables of a launch.
    let is_read = |launch: &&Launch| container.trains() && !launch.by_rallypoint;
    let launches: Vec<Check> = container.launches.iter().filter(is_read).flat_map(of_launch).collect();
    let nowhere = container.launches.iter().filter(is_read).find_map(|it| set_nowhere(pods, container, it));
    let missing = missing_argument(pods, container).filter(|_| launches.is_empty());
    let kept = of_ray(pods, container)
        .or_else(|| not_exported(pods, container))
        .or_else(|| for_no_program(pods, container))
        .or_else(|| of_slurm(pods, container));
    let kept = kept.filter(|_| launches.is_empty());
    let found = launches.into_iter().chain(nowhere).chain(missing).chain(kept);
    found.chain(left_as_written(pods, container)).chain(in_quotes(pods, container)).collect()
}

/// A variable in single quotes, which no other shell reads either.
fn in_quotes(pods: &Pods, container: &Container) -> Option<Check> {
    let is_launcher = |launch: &&Launch| {
        let begin = launch.command.words.first().map(ToString::to_string).unwrap_or_default();
        Grammar::is_program(&begin) || basename(&begin).starts_with("python")
    };
    // As an id of the run it does no harm.
    let told = container.launches.iter().filter(is_launcher).flat_map(Launch::told);
    let (what, written) = told.filter(|(what, _)| *what != "the run's id").find_map(|(what, told)| {
        let written = told.text.literal().filter(|_| told.by.starts_with("--"))?;
        let (_, name) = written.split_once('$')?;
        name.trim_start_matches('{').starts_with(|c: char| c.is_ascii_uppercase()).then_some((what, written))
    })?;
    let evidence = format!("{what} is `{written}` as it is written: no shell reads these quotes");
    let is_script = pods.are_tasks() || !container.is_exec();
    is_script.then(|| Check::fail(evidence, "double quotes").at(pods.at(&container.at("command"))))
}

/// The head of Ray that a worker is told by a variable which nothing sets.
fn of_ray(pods: &Pods, container: &Container) -> Option<Check> {
    let told = |command: &Command| {
        let is_ray = command.words.iter().any(|word| word.to_string().contains("ray"));
        flag(&command.words, &["address", "ray-address"]).filter(|_| is_ray)
    };
    let mut unset = container.commands.iter().filter_map(told).filter_map(|told| {
        let name = told.text.unset().find(|name| !name.contains("_SERVICE_"))?.to_owned();
        Some((told, name))
    });
    let of_maker = |name: &str| pods.facts().prefixes.iter().any(|prefix| name.starts_with(prefix));
    let (told, name) = unset.find(|(_, name)| !pods.are_tasks() && !of_maker(name))?;
    let evidence = format!("Ray's head ({}) is made of ${name}, but nothing sets it: it is empty", told.by);
    Some(Check::fail(evidence, remedy(pods, &name)).at(pods.at(&container.at("command"))))
}

/// A variable that Slurm does not set, by a letter.
fn of_slurm(pods: &Pods, container: &Container) -> Option<Check> {
    #[rustfmt::skip]
    const SET: [&str; 18] = [
        "SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_PROCID",
        "SLURM_NODEID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE",
        "SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE", "SLURM_CPUS_ON_NODE", "SLURM_CPUS_PER_TASK",
        "SLURM_SUBMIT_DIR", "SLURM_NPROCS", "SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU",
    ];
    let text = container.texts().last().filter(|_| pods.step.usual == Some("srun"))?;
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let names = text.match_indices("$SLURM_").chain(text.match_indices("${SLURM_"));
    let read = names.filter_map(|(at, begin)| {
        let rest = text.get(at..)?.trim_start_matches(['$', '{']);
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        // `${NAME:-…}` stands for a name that may be empty.
        let is_whole = !begin.starts_with("${") || rest[end..].starts_with('}');
        is_whole.then(|| &rest[..end])
    });
    let is_set = |name: &str| SET.contains(&name) || text.contains(&format!("{name}="));
    // A launch that uses one of those is told of.
    let is_told = |name: &str| MISSPELLED.iter().any(|(wrong, _)| *wrong == name);
    let near = |name: &&str| SET.iter().any(|set| is_near(set, name)) && !is_set(name) && !is_told(name);
    let name = read.into_iter().find(near)?;
    let right = SET.iter().find(|set| is_near(set, name))?;
    let evidence = format!("Slurm sets no ${name}: it is empty, unless whoever submits the script sets it");
    Some(Check::warn(evidence, format!("${right}")).at(pods.at(&container.at("command"))))
}

/// A variable of torch's that a script keeps to itself: no program gets it.
fn not_exported(pods: &Pods, container: &Container) -> Option<Check> {
    const OF_TORCH: [&str; 2] = ["MASTER_ADDR", "MASTER_PORT"];
    let is_read = |name: &str| {
        let forms = [format!("${name}"), format!("${{{name}")];
        container.texts().any(|text| forms.iter().any(|form| text.contains(form)))
    };
    let is_given = |name: &str| {
        let has = |line: &str| {
            let gives = ["export", "declare"].iter().any(|word| line.contains(word));
            gives && line.contains(name) && !line.starts_with('#')
        };
        exports_all(container) || container.texts().any(|text| text.contains("${!") || text.lines().any(has))
    };
    let is_python = |command: &&Command| {
        command.words.iter().any(|word| word.literal().is_some_and(|it| basename(it).starts_with("python")))
    };
    // Launchers do not read them.
    let is_alone = container.launches.iter().all(|launch| launch.tool() == Tool::Program);
    let command = container.commands.iter().rfind(is_python).filter(|_| is_alone)?;
    let is_kept = |name: &&str| command.private.contains(*name) && !is_read(name) && !is_given(name);
    let name = OF_TORCH.into_iter().find(is_kept)?;
    let evidence = format!("{name} is set, and neither exported nor read: no program gets it");
    Some(Check::warn(evidence, format!("export {name}=…")).at(pods.at(&container.at("command"))))
}

/// Whether a script exports whatever it sets.
fn exports_all(container: &Container) -> bool {
    container.texts().any(|text| text.contains("set -a") || text.contains("allexport"))
}

/// A variable of a library's in a line of its own, which stands nowhere else.
fn for_no_program(pods: &Pods, container: &Container) -> Option<Check> {
    const PREFIXES: [&str; 5] = ["NCCL_", "GLOO_", "TORCH_", "PYTORCH_", "TORCHINDUCTOR_"];
    let last = container.script.last().or_else(|| container.commands.last())?;
    // `#SBATCH --export=ALL,NCCL_DEBUG=INFO` has exported it.
    let is_code = |line: &&str| !line.trim_start().starts_with('#') || line.starts_with("#SBATCH");
    let lines = || container.texts().flat_map(str::lines).filter(is_code);
    let times = |name: &str| lines().map(|line| line.matches(name).count()).sum::<usize>();
    let is_alone =
        |name: &&String| PREFIXES.iter().any(|prefix| name.starts_with(prefix)) && times(name) == 1;
    let name = last.private.iter().find(is_alone).filter(|_| !exports_all(container))?;
    let evidence = format!("{name} is set, and neither exported nor read: no program gets it");
    Some(Check::warn(evidence, format!("export {name}=…")).at(pods.at(&container.at("command"))))
}

/// An argument that a command of a script needs, and that the call of the script does not have.
fn missing_argument(pods: &Pods, container: &Container) -> Option<Check> {
    let is_number = |name: &&str| name.parse::<u32>().is_ok();
    let missing = |command: &Command| {
        let name = command.words.iter().flat_map(Text::unset).find(is_number)?.to_owned();
        Some((command.written().into_iter().take(2).collect::<Vec<_>>().join(" "), name))
    };
    let commands = container.commands.iter().filter(|command| !Container::is_small(command));
    let (command, name) = commands.clone().find_map(missing)?;
    let evidence =
        format!("`{command} …` uses ${name}, and its script is called with fewer arguments: it is empty");
    let remedy = format!("argument {name} in the call of the script");
    Some(Check::warn(evidence, remedy).at(pods.at(&container.at("command"))))
}

/// Whether the only script reads a variable, and sets it only further below.
fn set_later(scripts: &[&str], name: &str) -> bool {
    let [text] = scripts else { return false };
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let lines: Vec<&str> = text.lines().map(|line| line.split(" #").next().unwrap_or_default()).collect();
    let is_remark = |line: &str| line.trim_start().starts_with('#');
    let reads = [format!("${name}"), format!("${{{name}}}")];
    let at = |line: &str, word: &str| {
        let mut found = line.match_indices(word);
        found.any(|(at, _)| {
            let (before, behind) = (&line[..at], &line[at.saturating_add(word.len())..]);
            let is_itself = behind.starts_with(&reads[0]) || behind.starts_with(&reads[1]);
            if word.starts_with('$') {
                !behind.starts_with(is_word) && !before.ends_with('\\')
            } else {
                !before.ends_with(is_word) && !before.ends_with('$') && !is_itself
            }
        })
    };
    // A test or a message may ask whether it is set.
    let asks = |line: &str| {
        let first = line.split_whitespace().next().unwrap_or_default();
        matches!(first, "[" | "[[" | "test" | "if" | "elif" | "while" | "echo" | "printf" | ":")
    };
    let read = lines
        .iter()
        .position(|line| !is_remark(line) && !asks(line) && reads.iter().any(|word| at(line, word)));
    let words = [format!("{name}="), format!("{name}:="), format!("read {name}"), format!("for {name} ")];
    let is_said = |line: &str| is_remark(line) || line.trim_start().starts_with("echo");
    let set = lines.iter().position(|line| !is_said(line) && words.iter().any(|word| at(line, word)));
    // A function or a quoted text is read later than it stands there.
    let is_plain = |line: &&str| !line.contains("()") && !line.contains("function ") && !line.contains("<<");
    read.zip(set).is_some_and(|(read, set)| read < set && lines[..read].iter().all(is_plain))
}

/// What a launcher is to start.
fn program(launch: &Launch) -> Option<Told> {
    let called = launch.called.as_ref().filter(|called| !called.grammar.is_open)?;
    let at = launch.command.words.len().checked_sub(called.program().len())?;
    let text = launch.command.words.get(at)?.clone();
    Some(Told { text, by: called.grammar.name.into() })
}

/// A variable that a script only reads, and gets from no file either. Who starts one for no batch system may
/// give it any, but rather none that differs by a letter from one that is set.
fn set_nowhere(pods: &Pods, container: &Container, launch: &Launch) -> Option<Check> {
    const OF_SYSTEMS: [&str; 8] = ["SLURM", "PBS", "LSB", "OMPI_", "PMI", "PALS_", "HOST", "CUDA_"];
    const OF_GRID_ENGINE: [&str; 5] = ["NHOSTS", "NSLOTS", "JOB_ID", "PE_HOSTFILE", "TMPDIR"];
    pods.are_tasks().then_some(())?;
    let scripts: Vec<&str> = container.texts().collect();
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    // A name that stands only in another script may be set there.
    let is_only_read = |name: &str| {
        scripts.iter().any(|text| text.contains(name))
            && scripts.iter().all(|text| {
                text.match_indices(name).all(|(at, _)| {
                    let (before, behind) = (&text[..at], &text[at.saturating_add(name.len())..]);
                    let is_part = before.ends_with(is_word) || behind.starts_with(is_word);
                    // `NAME=$NAME` sets nothing.
                    let mut own = [format!("=${name}"), format!("=${{{name}}}")].into_iter();
                    let is_itself = own.any(|own| behind.lines().next() == Some(own.as_str()));
                    let is_read = before.ends_with('$') || before.ends_with("${");
                    is_part || is_itself || is_read && !behind.starts_with(":=")
                })
            })
    };
    let is_filled_elsewhere = |line: &str| {
        const ENVIRONMENTS: [&str; 4] = ["activate", "conda.sh", ".bashrc", ".bash_profile"];
        let mut words = line.split_whitespace();
        match words.next() {
            Some("source" | ".") => words.next().is_none_or(|file| !ENVIRONMENTS.contains(&basename(file))),
            word => word == Some("eval"),
        }
    };
    let is_filled = scripts.iter().any(|text| text.lines().any(is_filled_elsewhere));
    // Who starts a script by hand may give it a value that it changes later.
    let is_early = |name: &str| pods.step.usual.is_some() && set_later(&scripts, name);
    let name_of = |part: &'_ Part| match part {
        Part::Unknown { written, .. } => {
            let name = written.strip_prefix('$')?.trim_start_matches('{').trim_end_matches('}');
            let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(is_word);
            let is_of_grid = pods.step.usual == Some("mpirun") && OF_GRID_ENGINE.contains(&name);
            let is_own = !is_of_grid && !OF_SYSTEMS.iter().any(|system| name.starts_with(system));
            let is_unset = is_only_read(name) || is_early(name);
            (is_name && is_own && is_unset).then(|| name.to_owned())
        }
        _ => None,
    };
    let set = |line: &&str| line.split_whitespace().find_map(|word| Some(word.split_once('=')?.0.to_owned()));
    let set: Vec<String> =
        scripts.iter().flat_map(|text| text.lines()).filter_map(|line| set(&line)).collect();
    let program = program(launch);
    let told = program.iter().map(|told| ("the program", told)).chain(launch.told());
    told.into_iter().find_map(|(what, told)| {
        let name = told.text.parts().iter().find_map(name_of)?;
        let is_program = what == "the program";
        // The name of a program may well be given by the submitter, but not if another one is never used.
        let is_left = |other: &&String| {
            let last = container.script.last().unwrap_or(&launch.command);
            let text = rallypoint_shell::text(&last.variables, other).and_then(Text::literal);
            let is_read =
                |text: &&str| text.contains(&format!("${other}")) || text.contains(&format!("{{{other}"));
            text.is_some_and(is_python_file) && !scripts.iter().any(is_read)
        };
        let near = if is_program {
            set.iter().find(is_left)
        } else {
            set.iter().find(|other| is_near(&name, other))
        };
        let is_open = is_program || pods.step.usual.is_none();
        if near.is_none() && is_open || is_filled && !is_program {
            return None;
        }
        if is_early(&name) {
            let evidence = format!(
                "{what} ({}) is made of ${name} before the script sets it: it is empty, or a former value",
                told.by
            );
            let remedy = format!("{name}=… further above");
            return Some(Check::warn(evidence, remedy).at(pods.at(&container.at("command"))));
        }
        let evidence = format!(
            "{what} ({}) is made of ${name}, which nothing in the script sets: it is empty, unless whoever \
             starts the script has set it",
            told.by
        );
        let master = "MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)";
        let is_master = name == "MASTER_ADDR" && pods.step.usual == Some("srun");
        let remedy = match near {
            Some(near) => format!("${near}"),
            None if is_master => master.to_owned(),
            None => format!("{name}=…, in the script"),
        };
        Some(Check::warn(evidence, remedy).at(pods.at(&container.at("command"))))
    })
}

/// Unset variables in the values for the endpoint and the node's rank. Other values are left to the script.
fn in_launch(pods: &Pods, container: &Container, launch: &Launch) -> Vec<Check> {
    let mut said = std::collections::BTreeSet::new();
    let mut found = Vec::new();
    for (what, told) in launch.told() {
        // Other checks look at ranks and ports that are words. An id may be any word.
        let is_name = matches!(what, "the master's address" | "the number of nodes");
        let name = told.text.literal().filter(|_| is_name);
        if let Some(name) = name.filter(|name| launch.command.variables.contains_key(*name)) {
            let evidence = format!(
                "{what} ({}) is the word `{name}`, and a variable is called so: a `$` is missing",
                told.by
            );
            let check = Check::fail(evidence, format!("${name}"));
            found.push(check.at(pods.at(&container.at("command"))));
        }
        for name in told.text.unset() {
            let of_maker =
                !pods.are_tasks() && pods.facts().prefixes.iter().any(|prefix| name.starts_with(prefix));
            let of_service = name.ends_with("_SERVICE_HOST") || name.contains("_SERVICE_PORT");
            // Another check names the cause: pods without an index.
            let is_index = is_index(name) && !pods.has_index() && what == "the node rank";
            let is_early = container.too_early().any(|(_, early)| early == name);
            if of_maker || of_service || is_index || is_early || !said.insert(name.to_owned()) {
                continue;
            }
            let (by, maker) = (&told.by, pods.facts().name);
            let evidence = if name.contains(' ') {
                format!(
                    "{what} ({by}) comes from the {name}, which neither the template nor a {maker} gives to \
                     the pods: it is empty"
                )
            } else if container.left_as_written().contains(name) {
                format!("{what} ({by}) names $({name}), which is not defined: it stays as it is written")
            } else {
                format!("{what} ({by}) is made of ${name}, but nothing sets it: it is empty")
            };
            found.push(Check::fail(evidence, remedy(pods, name)).at(pods.at(&container.at("command"))));
        }
    }
    found
}

/// `$(NAME)` that the kubelet does not expand: in a command without a shell, and in variables that come too
/// early.
fn left_as_written(pods: &Pods, container: &Container) -> Vec<Check> {
    let of_maker = |name: &str| pods.facts().prefixes.iter().any(|prefix| name.starts_with(prefix));
    // Kustomize fills in such names, too, in what is no training as a rule.
    let tell = if pods.train() { Check::fail } else { Check::warn };
    let mut found = Vec::new();
    for (variable, name) in container.too_early() {
        let later = container.variables.contains_key(name);
        let is_own = container.own.iter().any(|own| own == name);
        let (why, advice) = match later {
            true if is_own => ("which is defined only after it", remedy(pods, name)),
            true => (
                "which the maker adds only after it",
                format!("use ${name} in the command, where it is filled in"),
            ),
            false => ("which is not defined", remedy(pods, name)),
        };
        let evidence = format!("{variable} names $({name}), {why}: the text stays as it is written");
        found.push(tell(evidence, advice).at(pods.at(&container.at("env"))));
    }
    let unexpanded = container.argv.iter().filter_map(|word| Some((word, container.unexpanded(word)?)));
    for (written, name) in unexpanded {
        let known = container.variables.contains_key(name);
        if !known && (pods.is_open || !container.trains()) {
            continue;
        }
        let evidence = format!(
            "`{written}` stays as it is written: no shell reads it, and Kubernetes fills in only $(NAME)"
        );
        let remedy = if known { format!("write $({name})") } else { remedy(pods, name) };
        found.push(Check::fail(evidence, remedy).at(pods.at(&container.at("command"))));
    }
    for name in container.left_as_written() {
        let is_unset = |(_, told): (&str, &Told)| told.text.unset().any(|unset| unset == name);
        if of_maker(name) || container.launches.iter().any(|launch| launch.told().any(is_unset)) {
            continue;
        }
        let evidence =
            format!("$({name}) is used, but no variable of that name is defined: it stays as it is written");
        found.push(tell(evidence, remedy(pods, name)).at(pods.at(&container.at("command"))));
    }
    found
}

fn remedy(pods: &Pods, name: &str) -> String {
    let facts = pods.facts();
    if name.parse::<u32>().is_ok() {
        return format!("argument {name} in the call of the script");
    }
    if let Some((_, right)) = MISSPELLED.iter().find(|(wrong, _)| *wrong == name) {
        return format!("${right}");
    }
    if let Some(option) = name.strip_prefix("SLURM_").filter(|_| pods.are_tasks()) {
        return format!("#SBATCH --{}=…, which sets it", option.to_lowercase().replace('_', "-"));
    }
    if pods.are_tasks() {
        let advice = format!("bash -c '… ${name} …', in single quotes, so that each task fills it in");
        let exported = format!("export {name}: no other program gets what the script sets without");
        return if name.contains("RANK") { advice } else { exported };
    }
    let is_rank = ["RANK", "INDEX", "ORDINAL"].iter().any(|word| name.to_uppercase().contains(word));
    let is_id = ["UID", "RUN_ID", "JOB_ID", "RDZV_ID"].iter().any(|word| name.to_uppercase().contains(word));
    match (facts.index, facts.run_id) {
        (Some(index), _) if is_rank => match index.in_env() {
            Some(line) => format!("put into env: {line}, and use $POD_INDEX"),
            None => format!("use {}, which a {} sets", index.in_shell(), facts.name),
        },
        (_, Some(path)) if is_id => format!("put into env: {}", env_of_field(name, path)),
        _ => format!("define {name} in env, before its first use; a {} does not set it", facts.name),
    }
}

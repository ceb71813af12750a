//! Launch scripts: which commands run on which nodes. A script for a batch system runs once, on the first
//! node: what its shell fills in has one value for all nodes. Only what `srun` and its like start runs on
//! several. A script of no batch system, which starts nothing on other nodes, is started on each node by
//! something else.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use serde_json::json;

use super::container::Container;
use super::launch::{Launch, Told};
use super::launches;
use super::objects::{Object, batch_system, is_localhost};
use super::pods::{Pods, Size, Step};
use super::remote;
use rallypoint_node::launch::{Grammar, Starter, Tool};
use rallypoint_node::makers::Maker;
use rallypoint_shell::{self as shell, Command, Part, Reading, Source, Surroundings, Text, Variables};

/// What a batch system tells its tasks, and not the script itself: their number among all.
const RANKS: [&str; 5] =
    ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "PALS_RANKID", "MV2_COMM_WORLD_RANK"];

/// The number of a task on its node.
const LOCAL_RANKS: [&str; 4] =
    ["SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID"];

/// The value of one of these options, wherever it stands: `-n 4`, `-n4`, `--np=4`. The last one counts.
fn value<'w>(words: &'w [String], names: &[&str]) -> Option<&'w str> {
    words.iter().enumerate().rev().find_map(|(n, word)| {
        let begins =
            |rest: &&str| rest.is_empty() || rest.starts_with(|c: char| c == '=' || c.is_ascii_digit());
        let rest = names.iter().find_map(|name| word.strip_prefix(name).filter(begins))?;
        let next = || words.get(n.saturating_add(1)).map_or("", String::as_str);
        Some(if rest.is_empty() { next() } else { rest.trim_start_matches('=') })
    })
}

/// A number of one of these options; `--nodes=2-4` asks for a range.
fn number(words: &[String], names: &[&str]) -> Option<u64> {
    value(words, names)?.parse().ok()
}

/// What the options of a program that starts others ask for; sbatch has those of srun.
fn asked_of(starter: &Starter, words: &[String]) -> Size {
    let number = |names: &[&str]| number(words, names);
    Size { nodes: number(starter.nodes), tasks: number(starter.tasks), each: number(starter.each) }
}

/// What the options of sbatch ask for. The parts of a heterogeneous job are too many to count.
fn of_slurm(words: &[String]) -> Size {
    let is_of_parts = words.iter().any(|word| word == "hetjob" || word == "packjob");
    let srun = Starter::of("srun").filter(|_| !is_of_parts);
    srun.map_or_else(Size::default, |srun| asked_of(srun, words))
}

/// How many GPUs the options of sbatch ask for on each node; `--gpus` is for all nodes.
fn gpus_each(options: &[String], job: Size) -> Option<u64> {
    let count = |names: &[&str]| value(options, names)?.rsplit(':').next()?.parse::<u64>().ok();
    let of_gres = || {
        count(&["--gres"]).filter(|_| value(options, &["--gres"]).is_some_and(|it| it.starts_with("gpu:")))
    };
    let all = || count(&["--gpus", "-G"])?.checked_div(job.nodes?);
    let of_tasks = || gpus_of_task(options)?.checked_mul(job.tasks_each()?);
    count(&["--gpus-per-node"]).or_else(of_gres).or_else(all).or_else(of_tasks)
}

/// How many GPUs each task sees, if the options bind them to the tasks.
fn gpus_of_task(options: &[String]) -> Option<u64> {
    let is_free = value(options, &["--gpu-bind"]).is_some();
    value(options, &["--gpus-per-task"])?.rsplit(':').next()?.parse().ok().filter(|_| !is_free)
}

/// How many of the words behind srun are its own.
fn own_words(words: &[String], switches: &[&str]) -> usize {
    let mut at: usize = 0;
    while let Some(word) = words.get(at).filter(|word| word.starts_with('-') && *word != "--") {
        let has_value = word.contains('=') || !word.starts_with("--") && word.len() > 2;
        let is_alone = has_value || switches.contains(&word.as_str()) || word.starts_with("--no-");
        at = at.saturating_add(if is_alone { 1 } else { 2 });
    }
    at.min(words.len())
}

/// What a script asks its batch system for.
fn asked(text: &str, mark: &str) -> (Size, Vec<String>) {
    let lines = text.lines().filter_map(|line| line.strip_prefix(mark));
    let words: Vec<String> = lines
        .flat_map(|line| line.split(" #").next().unwrap_or_default().split_whitespace())
        .map(|word| word.trim_matches(['"', '\'']).to_owned())
        .collect();
    let parts: Vec<String> =
        words.iter().flat_map(|word| word.split([':', ',', '[', ']'])).map(str::to_owned).collect();
    let size = match mark {
        "#SBATCH" => of_slurm(&words),
        // Several kinds of nodes are too many to count.
        "#PBS" if parts.iter().any(|part| part.contains('+')) => Size::default(),
        "#PBS" => Size {
            nodes: number(&parts, &["select", "nodes"]),
            tasks: None,
            each: number(&parts, &["mpiprocs", "ppn"]),
        },
        "#BSUB" => {
            let (tasks, each) = (number(&parts, &["-n"]), number(&parts, &["ptile"]));
            let nodes = number(&parts, &["-nnodes"]).or_else(|| tasks?.checked_div(each?));
            Size { nodes, tasks, each }
        }
        _ => Size::default(),
    };
    (size, words)
}

/// What a command starts on other nodes: by which program, how often, and where the started command begins.
struct Start<'w> {
    by: &'w str,
    size: Size,
    at: usize,
}

impl<'w> Start<'w> {
    fn of(words: &'w [String], job: Size) -> Option<Self> {
        // A profiler or a limit may stand in front of it.
        const AROUND: [&str; 6] = ["nsys", "ncu", "time", "timeout", "numactl", "env"];
        let is_around = AROUND.contains(&shell::basename(words.first()?));
        let is_start = |word: &String| Starter::of(word).is_some();
        let first = words.iter().position(is_start).filter(|_| is_around).unwrap_or_default();
        let inner = Self::behind(words.get(first..)?, job)?;
        Some(Self { at: inner.at.saturating_add(first), ..inner })
    }

    fn behind(words: &'w [String], job: Size) -> Option<Self> {
        let starter = Starter::of(words.first()?)?;
        let by = starter.name;
        if let Some(switches) = starter.switches {
            let at = own_words(words.get(1..)?, switches).saturating_add(1);
            let own = words.get(1..at)?;
            let is_of_parts =
                ["--het-group", "--pack-group"].iter().any(|name| value(own, &[name]).is_some())
                    || words.iter().any(|word| word == ":");
            if is_of_parts {
                return Some(Self { by, size: Size::default(), at });
            }
            let given = asked_of(starter, own);
            let (nodes, each) = (given.nodes.or(job.nodes), given.each.or(job.each));
            let filled = nodes.map(|nodes| nodes.saturating_mul(each.unwrap_or(1)));
            let tasks = match (given.tasks, value(own, starter.nodes).is_some()) {
                (Some(tasks), _) => Some(tasks),
                (None, true) => filled.or_else(|| Some(each.unwrap_or(1))),
                (None, false) => job.tasks.or(filled),
            };
            let each = each.filter(|_| given.tasks.is_none());
            return Some(Self { by, size: Size { nodes, tasks, each }, at });
        }
        let begins =
            |word: &String| Grammar::is_program(word) || shell::is_shell(word) || shell::is_script(word);
        let at = words.iter().skip(1).position(begins)?.saturating_add(1);
        let own = words.get(1..at).unwrap_or_default();
        let ppr = own.iter().find_map(|word| {
            let (_, count) =
                word.split_once("ppr:").filter(|(begin, _)| begin.is_empty() || begin.ends_with('='))?;
            count.split(':').next()?.parse().ok()
        });
        let is_one = |word: &String| matches!(word.as_str(), "-pernode" | "--pernode");
        let ppr = ppr.or_else(|| own.iter().any(is_one).then_some(1));
        let Size { tasks, each, .. } = asked_of(starter, own);
        let (tasks, each) = match by {
            "jsrun" => {
                let of_set = number(own, &["-a", "--tasks_per_rs"]).unwrap_or(1);
                let times = |sets: u64| sets.saturating_mul(of_set);
                (tasks.map(times), each.map(times))
            }
            "blaunch" if own.iter().any(|word| word == "-z") => (None, Some(1)),
            "pbsdsh" if own.iter().any(|word| word == "-u") => (None, Some(1)),
            "blaunch" | "pbsdsh" => return None,
            _ => (tasks, each.or(ppr)),
        };
        let of_each = tasks.zip(each).and_then(|(tasks, each)| tasks.checked_div(each));
        let filled = || tasks?.checked_next_multiple_of(job.each?)?.checked_div(job.each?);
        let filled = if each.is_none() && !is_spread(own) { filled() } else { None };
        let nodes = of_each.or_else(|| Some(filled?.min(job.nodes?))).or(job.nodes);
        let tasks = tasks.or_else(|| Some(nodes?.saturating_mul(each.or(job.each)?)));
        Some(Self { by, size: Size { nodes, tasks, each }, at })
    }
}

/// By which program a command of MPI starts another one, and how often.
pub(crate) fn of_mpi(words: &[String], job: Size) -> Option<(String, Size)> {
    let start = Start::of(words, job).filter(|start| start.by != "srun")?;
    Some((start.by.to_owned(), start.size))
}

/// The program that a command starts on other nodes.
pub(crate) fn started(words: &[String]) -> Option<&str> {
    let start = Start::of(words, Size::default())?;
    words.get(start.at).map(String::as_str)
}

/// Whether options of `mpirun` say which node gets which task. Without it fills a node before it takes the
/// next one.
fn is_spread(own: &[String]) -> bool {
    const WHERE: [&str; 10] =
        ["map-by", "bynode", "by-node", "pernode", "ppr", "rankfile", "-rr", "host", "machine", "-f"];
    own.iter().any(|word| word.starts_with('-') && WHERE.iter().any(|it| word.contains(it)))
        && !own.iter().any(|word| word.contains("PBS_NODEFILE"))
}

/// Whether a command starts another one on one other node, or hands it to something that does.
fn leads_elsewhere(program: &str) -> bool {
    const OTHERS: [&str; 9] =
        ["ssh", "pdsh", "clush", "parallel", "xargs", "sbatch", "kubectl", "tmux", "screen"];
    OTHERS.contains(&shell::basename(program))
}

/// The parts of a script that launch a training, as the pods of a job.
///
/// Also returns how many readings of it there are.
pub(crate) fn of(object: &Object, objects: &[Object], choice: usize) -> (Vec<Pods>, usize) {
    let text = object.script().unwrap_or_default();
    let system = batch_system(text);
    if system.is_none() && object.is_called() {
        return (Vec::new(), 1);
    }
    let file = |path: &str| {
        let mut named = objects.iter().filter(|other| other.name == shell::basename(path));
        named.find_map(|other| other.script().map(str::to_owned))
    };
    let (job, options) = system.map(|(mark, _)| asked(text, mark)).unwrap_or_default();
    let gpus = gpus_each(&options, job);
    let variables = match system {
        Some((mark, _)) => variables(mark, job, &options),
        None => BTreeMap::from([one("HOSTNAME", Part::Of(Source::HostName))]),
    };
    let here: &[(Source, String)] = &[];
    let surroundings = Surroundings { variables: variables.clone(), open: true, file: &file, here, choice };
    let reading = shell::read(text, &[], surroundings);
    let script: Rc<[Command]> = reading.commands.into();
    let file = |path: &str| reading.written.get(path).cloned().or_else(|| file(path));
    let (mut all, mut others, mut is_spread) = (Vec::new(), Vec::new(), script.is_empty());
    let mut ways = reading.ways;
    for (number, command) in script.iter().enumerate() {
        let words = command.written();
        let start = Start::of(&words, job);
        is_spread |= start.is_some() || leads_elsewhere(&words[0]) || Starter::of(&words[0]).is_some();
        if Container::is_small(command) {
            continue;
        }
        let gpus = gpus_of_task(&options).filter(|_| start.is_some()).or(gpus);
        let begin = || {
            let (variables, script) = (variables.clone(), Rc::clone(&script));
            Container { variables, script, ..Container::of_script(object, gpus) }
        };
        let with_launches = |read: Container| Container { launches: launches::of(&read), ..read };
        let on_nodes = |start: &Start<'_>, index: u64| {
            // The command may give what the script has not exported: `srun --export=ALL,NAME=VALUE`.
            let is_lost = |name: &&String| !words.iter().any(|it| it.contains(&format!("{name}=")));
            let private: Vec<String> = command.private.iter().filter(is_lost).cloned().collect();
            let (words, variables) = on_nodes(command, start);
            let here = [(Source::Index, index.to_string())];
            let inner = Surroundings { variables, open: true, file: &file, here: &here, choice };
            let Reading { commands, unread, ways, is_by_pod, .. } =
                launches::started(&words, command.conditional, &private, inner);
            let read = with_launches(Container { commands, unread, ways, is_by_pod, ..begin() });
            // A script that is handed a launcher starts that, in a container for example.
            let handed = words.iter().position(|word| Grammar::is_program(&word.to_string()));
            let handed =
                handed.filter(|_| read.launches.is_empty() && shell::is_script(&words[0].to_string()));
            match handed.and_then(|at| words.get(at..)) {
                Some(words) => {
                    let started = Command { words: words.to_vec(), ..command.clone() };
                    with_launches(Container { commands: vec![started], unread: Vec::new(), ..read })
                }
                None => read,
            }
        };
        if leads_elsewhere(&words[0]) {
            let Some((by, words)) = remote::started(command) else { continue };
            // What the script has set itself is not known on another host.
            let own = command.variables.keys().filter(|name| !variables.contains_key(*name));
            let lost = own.filter(|_| by == "ssh").map(|name| one(name, Part::Unset(name.clone())));
            let variables = lost.chain([one("HOSTNAME", Part::Of(Source::HostName))]).collect();
            let inner = Surroundings { variables, open: true, file: &file, here: &[], choice };
            let Reading { commands, unread, .. } = launches::started(&words, command.conditional, &[], inner);
            let read = with_launches(Container { commands, unread, ..begin() });
            let step = Step {
                number,
                moment: command.moment,
                by: Some(by.to_owned()),
                usual: system.map(|(_, usual)| usual),
                ..Step::default()
            };
            let made = elsewhere(read, step, command.repeated.then_some(text), &all);
            all.extend(made.map(|(read, count, step)| Pods {
                count,
                in_unit: count,
                step,
                containers: vec![read],
                ..Pods::of_script(object)
            }));
            continue;
        }
        let once = |command: &Command| if system.is_some() { once(command) } else { command.clone() };
        let here = || with_launches(Container { commands: vec![once(command)], ..begin() });
        let read = start.as_ref().map_or_else(here, |start| on_nodes(start, 0));
        ways = ways.max(read.ways);
        let by = start.as_ref().map(|start| start.by.to_owned());
        let is_srun = by.as_deref() == Some("srun");
        // A program that runs once in a job of several nodes is alone, unless it starts others.
        let is_alone = system.is_some() && start.is_none() && job.nodes > Some(1);
        let is_lone = is_alone && read.launches.iter().all(|launch| launch.tool() == Tool::Program);
        if (read.launches.is_empty() || is_lone) && (read.unread.is_empty() || !is_srun) {
            others.extend(if is_srun { read.commands } else { vec![once(command)] });
            continue;
        }
        let size = match &start {
            Some(start) => start.size,
            None => Size { nodes: job.nodes, tasks: system.map(|_| 1), each: job.each },
        };
        let is_launcher = |launch: &Launch| launch.tool() != Tool::Program && !launch.counts_processes();
        let count = match (&start, system) {
            (Some(_), _) if read.launches.iter().any(is_launcher) => size.on_nodes(),
            (None, None) => read.launches.iter().find_map(by_hand),
            (None, Some(_)) if job.nodes.is_none() => None,
            _ => size.tasks,
        };
        let usual = system.map(|(_, usual)| usual);
        let step = Step { number, moment: command.moment, size, by, usual };
        let made = Pods { count, in_unit: count, step, containers: vec![read], ..Pods::of_script(object) };
        let rest = |rest: Pods| {
            let containers = start.iter().map(|start| on_nodes(start, 1)).collect();
            Pods { index: 1, containers, ..rest }
        };
        all.extend(made.apart(rest, start.is_some()));
    }
    if all.is_empty() && system.is_some() {
        let (commands, unread) = (others, reading.unread);
        let script = Rc::clone(&script);
        let read = Container { commands, script, unread, ..Container::of_script(object, None) };
        let count = job.nodes.max(job.all_tasks());
        let usual = system.map(|(_, usual)| usual);
        let by = usual.filter(|_| is_spread).map(str::to_owned);
        let step = Step { by, usual, size: job, ..Step::default() };
        all.push(Pods { count, in_unit: count, step, containers: vec![read], ..Pods::of_script(object) });
    }
    // A script may write others, and hand them to a batch system.
    for (n, text) in batch_scripts(&reading.written, &script).into_iter().enumerate() {
        // Each is a job of its own.
        let number = object.number.saturating_add(objects.len().saturating_mul(n));
        let value = json!({ "script": text });
        all.extend(of(&Object { number, value, ..object.clone() }, objects, choice).0);
    }
    (all, ways)
}

/// What a script starts on another host, and on how many, if these are known to be several.
fn elsewhere(
    mut read: Container,
    step: Step,
    looped: Option<&str>,
    before: &[Pods],
) -> Option<(Container, Option<u64>, Step)> {
    read.launches.retain(|launch| launch.tool() != Tool::Program);
    // These start it on several hosts at once. Others do the same once more for the next host.
    let same: Vec<Vec<String>> = read.launches.iter().map(|it| it.command.written()).collect();
    let mut launches = before.iter().flat_map(Pods::launches);
    let are_several = matches!(step.by.as_deref(), Some("pdsh" | "clush"))
        || looped.is_some()
        || launches.any(|launch| same.contains(&launch.command.written()));
    // The rank of a loop's first turn is that of all turns only if the script has it as it is.
    let is_plain = |it: &&Launch| {
        it.node_rank.as_ref().is_none_or(|told| {
            !told.text.is_unknown() && looped.is_none_or(|text| has_rank(text, &told.text.to_string()))
        })
    };
    let count = read.launches.iter().filter(|it| are_several && is_plain(it)).find_map(by_hand);
    (!read.launches.is_empty()).then_some((read, count, step))
}

/// Whether a script has a flag with this rank.
fn has_rank(script: &str, rank: &str) -> bool {
    let words: Vec<&str> = script
        .split(|c: char| c.is_whitespace() || matches!(c, '=' | '"' | '\'' | ';'))
        .filter(|word| !word.is_empty())
        .collect();
    words.windows(2).any(|two| two[0].starts_with("--") && two[0].contains("rank") && two[1] == rank)
}

/// On how many nodes a script runs that each node starts: on as many as it waits for. Two stand for several.
fn by_hand(launch: &Launch) -> Option<u64> {
    let own = |told: &Told| {
        matches!(told.text.source(), Some(Source::HostName | Source::PodIp)) || is_localhost(&told.text)
    };
    let is_told = launch.nodes.is_some() && launch.node_rank.is_some();
    let lacks_rank = || {
        launch.nodes.is_some()
            && launch.host.is_some()
            && launch.tool() == Tool::Torchrun
            && launch.needs_rank()
            && launch.node_rank.is_none()
    };
    let several = || is_told && launch.host.as_ref().is_some_and(own) || lacks_rank();
    launch.most_nodes().map(u64::from).or_else(|| several().then_some(2))
}

/// Names that look like Slurm's and that it does not set, each with the right one.
pub(crate) const MISSPELLED: [(&str, &str); 14] = [
    ("SLURM_NODES", "SLURM_NNODES"),
    ("SLURM_NUM_NODES", "SLURM_NNODES"),
    ("SLURM_JOB_NODES", "SLURM_NNODES"),
    ("SLURM_JOB_NNODES", "SLURM_NNODES"),
    ("SLURM_NODE_ID", "SLURM_NODEID"),
    ("SLURM_NODE_RANK", "SLURM_NODEID"),
    ("SLURM_NODERANK", "SLURM_NODEID"),
    ("SLURM_PROC_ID", "SLURM_PROCID"),
    ("SLURM_RANK", "SLURM_PROCID"),
    ("SLURM_LOCAL_ID", "SLURM_LOCALID"),
    ("SLURM_LOCAL_RANK", "SLURM_LOCALID"),
    ("SLURM_NUM_TASKS", "SLURM_NTASKS"),
    ("SLURM_TASKS", "SLURM_NTASKS"),
    ("SLURM_WORLD_SIZE", "SLURM_NTASKS"),
];

fn one(name: &str, part: Part) -> (String, Vec<Text>) {
    (name.to_owned(), vec![Text::of(part)])
}

fn variables(mark: &str, job: Size, options: &[String]) -> Variables {
    let unset = |name: &str| one(name, Part::Unset(name.to_owned()));
    let counted = |(name, number): (&str, Option<u64>)| {
        let text = number.map(|number| Text::known(number.to_string()));
        (name.to_owned(), vec![text.unwrap_or_else(|| Text::unknown(format!("${name}"), false))])
    };
    let ids = ["SLURM_JOB_ID", "SLURM_JOBID", "PBS_JOBID", "LSB_JOBID"];
    let mut all: Variables = RANKS.into_iter().map(unset).collect();
    all.extend(ids.map(|name| one(name, Part::Of(Source::RunUid))));
    if mark != "#SBATCH" {
        all.extend([("PBS_NUM_NODES", job.nodes), ("PBS_NUM_PPN", job.each)].map(counted));
        return all;
    }
    let tasks = job.all_tasks();
    all.extend(
        [
            ("SLURM_NNODES", job.nodes),
            ("SLURM_JOB_NUM_NODES", job.nodes),
            ("SLURM_NTASKS", tasks),
            ("SLURM_NPROCS", tasks),
            ("SLURM_NTASKS_PER_NODE", job.each),
            ("SLURM_GPUS_PER_NODE", number(options, &["--gpus-per-node"])),
            ("SLURM_GPUS", number(options, &["--gpus", "-G"])),
        ]
        .map(counted),
    );
    all.extend(MISSPELLED.map(|(name, _)| unset(name)));
    let of_script = ["SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID"];
    all.extend(of_script.map(|name| one(name, Part::Of(Source::FirstNode))));
    // Each of these is set for its own option only, however else the same is asked for.
    let has = |names: &[&str]| value(options, names).is_some();
    let gpus = has(&["--gres", "--gpus", "-G", "--gpus-per-node", "--gpus-per-task"]);
    for (name, option, is_asked) in [
        ("SLURM_GPUS_PER_NODE", "--gpus-per-node", gpus),
        ("SLURM_GPUS", "--gpus", gpus && !has(&["-G"])),
        ("SLURM_GPUS_PER_TASK", "--gpus-per-task", gpus),
        ("SLURM_NTASKS_PER_NODE", "--ntasks-per-node", has(&["--ntasks", "-n"]) && job.each.is_none()),
    ] {
        all.extend((is_asked && !has(&[option])).then(|| unset(name)));
    }
    all
}

/// What the script's own shell fills in has one value for all nodes.
fn fixed(text: &Text) -> Text {
    text.map(|part| match part {
        Part::Of(source) if source.varies() => {
            Part::Unknown { written: format!("$<{} of the first node>", source.name()), varies: false }
        }
        Part::Unknown { written, .. } => Part::Unknown { written: written.clone(), varies: false },
        part => part.clone(),
    })
}

fn fixed_variables(variables: &Variables) -> Variables {
    variables.iter().map(|(name, items)| (name.clone(), items.iter().map(fixed).collect())).collect()
}

/// The batch scripts among those that a script writes, with the names of what it does not know.
fn batch_scripts(written: &HashMap<String, String>, script: &[Command]) -> Vec<String> {
    let values = script.last().map(|command| &*command.variables);
    let parts = || values.into_iter().flatten().filter(|(name, _)| name.starts_with("_PART_"));
    let whole = |text: &String| {
        let named = |text: String, (name, value): (&String, &Vec<Text>)| {
            let value = value.first().map(ToString::to_string).unwrap_or_default();
            text.replace(&format!("${{{name}}}"), &value)
        };
        parts().fold(text.clone(), named)
    };
    let mut all: Vec<String> =
        written.values().filter(|text| batch_system(text).is_some()).map(whole).collect();
    all.sort();
    all
}

/// A command that runs on the first node.
fn once(command: &Command) -> Command {
    let first = |text: &Text| {
        fixed(text).map(|part| match part {
            Part::Of(Source::FirstNode) => Part::Known("0".into()),
            part => part.clone(),
        })
    };
    let variables = Rc::new(fixed_variables(&command.variables));
    Command { words: command.words.iter().map(first).collect(), variables, ..command.clone() }
}

/// The variables of a command, as `srun --export=ALL,NAME=VALUE` hands them on.
fn exported(command: &Command) -> Variables {
    let mut variables = command.environment();
    let is_export = |word: &&Text| {
        word.parts()
            .first()
            .is_some_and(|part| matches!(part, Part::Known(text) if text.starts_with("--export=")))
    };
    let Some((_, list)) = command.words.iter().find(is_export).and_then(|word| word.split_once('=')) else {
        return variables;
    };
    let items = list.split(',');
    let names = || items.iter().filter_map(Text::literal);
    if !list.is_unknown() && !names().any(|name| name == "ALL") {
        // What it names, and Slurm's own, is all.
        let is_lost = |name: &String| !name.starts_with("SLURM_") && !names().any(|kept| kept == name);
        let lost: Vec<String> = variables.keys().filter(|name| is_lost(name)).cloned().collect();
        variables.extend(lost.into_iter().map(|name| one(&name, Part::Unset(name.clone()))));
    }
    let given = items.iter().filter_map(|item| item.split_once('='));
    variables.extend(given.filter_map(|(name, value)| Some((name.literal()?.to_owned(), vec![value]))));
    variables
}

/// What `srun` and its like start on each node: its words, and the variables that it gets there.
fn on_nodes(command: &Command, start: &Start<'_>) -> (Vec<Text>, Variables) {
    let words: Vec<Text> = command.words.iter().skip(start.at).map(fixed).collect();
    let mut variables = fixed_variables(&exported(command));
    let is_one_each = start.size.tasks.is_some() && start.size.tasks == start.size.nodes;
    let unknown = |name: &str| Part::Unknown { written: format!("${name}"), varies: true };
    let rank = |name| one(name, if is_one_each { Part::Of(Source::Index) } else { unknown(name) });
    let host = |name| one(name, Part::Of(Source::HostName));
    variables.extend(RANKS.map(rank));
    let local = if is_one_each { Part::Known("0".into()) } else { Part::Of(Source::TaskOfNode) };
    variables.extend(LOCAL_RANKS.map(|name| one(name, local.clone())));
    variables.extend([rank("SLURM_PROCID")]);
    variables.extend([one("SLURM_NODEID", Part::Of(Source::Index))]);
    variables.extend(["HOSTNAME", "SLURMD_NODENAME"].map(host));
    (words, variables)
}

impl Container {
    fn of_script(object: &Object, gpus: Option<u64>) -> Self {
        let gpus = gpus.map(|gpus| json!({ "limits": { "slurm.schedmd.com/gpu": gpus.to_string() } }));
        Self {
            open: true,
            value: json!({ "name": object.name, "script": object.script(), "resources": gpus }),
            ..Self::default()
        }
    }
}

impl Pods {
    /// The parts of a script, before it is read.
    fn of_script(object: &Object) -> Self {
        Self { is_open: true, ..Self::bare(object, Maker::Slurm, "", Some(1)) }
    }
}

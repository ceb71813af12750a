//! Scripts for sbatch: which commands run on which nodes. The script itself runs once, on the first node.
//! What the shell fills in there has one value for all nodes; only what `srun` starts runs on several.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Value, json};

use super::container::Container;
use super::launches;
use super::objects::{Object, is_for_sbatch};
use super::pods::{Pods, Step};
use rallypoint_node::makers::Maker;
use rallypoint_shell::{
    self as shell, Called, Command, Part, Source, Surroundings, Text, Variable, Variables,
};

/// Options of sbatch and srun by their long names, and the words after them.
struct Options {
    values: BTreeMap<String, String>,
    rest: usize,
}

impl Options {
    fn read(words: &[String]) -> Self {
        const SHORT: [(&str, &str); 3] = [("-N", "nodes"), ("-n", "ntasks"), ("-w", "nodelist")];
        #[rustfmt::skip]
        const SWITCHES: [&str; 25] = [
            "exclusive", "label", "unbuffered", "overlap", "pty", "quiet", "verbose", "kill-on-bad-exit",
            "exact", "no-kill", "requeue", "no-requeue", "hold", "multi-prog", "overcommit",
            "container-writable", "-l", "-u", "-v", "-Q", "-O", "-s", "-K", "-H", "-W",
        ];
        let mut values = BTreeMap::new();
        let mut at: usize = 0;
        while let Some(word) = words.get(at).filter(|word| word.starts_with('-') && *word != "--") {
            let (name, value) = match (word.strip_prefix("--"), word.split_at_checked(2)) {
                (Some(long), _) => {
                    long.split_once('=').map_or((long, None), |(own, value)| (own, Some(value)))
                }
                (None, Some((short, value))) => {
                    let name = SHORT.iter().find(|(own, _)| *own == short).map_or(short, |(_, name)| name);
                    (name, Some(value.trim_start_matches('=')).filter(|value| !value.is_empty()))
                }
                (None, None) => (word.as_str(), None),
            };
            let is_switch = SWITCHES.contains(&name) || name.starts_with("no-");
            let next = words.get(at.saturating_add(1)).filter(|_| value.is_none() && !is_switch);
            values.insert(name.to_owned(), value.or(next.map(String::as_str)).unwrap_or_default().to_owned());
            at = at.saturating_add(if next.is_some() { 2 } else { 1 });
        }
        Self { values, rest: at.min(words.len()) }
    }

    fn number(&self, name: &str) -> Option<u64> {
        let text = self.values.get(name)?;
        // `--nodes=2-4` asks for a range.
        text.parse().ok()
    }
}

/// The parts of a script that launch a training, as the pods of a job.
pub(crate) fn of(object: &Object, objects: &[Object]) -> Vec<Pods> {
    let text = object.value.get("script").and_then(Value::as_str).unwrap_or_default();
    if !is_for_sbatch(text) {
        return Vec::new();
    }
    let file = |path: &str| {
        let scripts = objects.iter().filter_map(|other| Some((other, other.value.get("script")?.as_str()?)));
        let mut named = scripts.filter(|(other, _)| other.name == shell::basename(path));
        named.next().map(|(_, text)| text.to_owned())
    };
    let words = text.lines().filter_map(|line| line.strip_prefix("#SBATCH"));
    let words: Vec<String> = words
        .flat_map(|line| {
            let line = line.split(" #").next().unwrap_or_default();
            line.split_whitespace().map(|word| word.trim_matches(['"', '\'']).to_owned()).collect::<Vec<_>>()
        })
        .collect();
    let job = Options::read(&words);
    let nodes = job.number("nodes");
    let each = job.number("ntasks-per-node");
    let tasks = job.number("ntasks").or_else(|| Some(nodes?.saturating_mul(each?)));
    let variables = variables(nodes, tasks, each);
    let surroundings = Surroundings { variables: variables.clone(), open: true, file: &file };
    let reading = shell::read(text, &[], surroundings);
    let base = Pods::of_script(object);
    let (mut all, mut others) = (Vec::new(), Vec::new());
    for command in &reading.commands {
        let words: Vec<String> = command.words.iter().map(ToString::to_string).collect();
        if Container::is_small(command) {
            continue;
        }
        let is_srun = shell::basename(&words[0]) == "srun";
        let own = Options::read(if is_srun { words.get(1..).unwrap_or_default() } else { &[] });
        let nodes = own.number("nodes").or(nodes);
        let each = own.number("ntasks-per-node").or(each);
        let tasks = match (own.number("ntasks"), own.values.contains_key("nodes"), is_srun) {
            (Some(tasks), ..) => Some(tasks),
            (None, _, false) => Some(1),
            (None, true, _) => Some(nodes.unwrap_or(1).saturating_mul(each.unwrap_or(1))),
            (None, false, _) => tasks.or_else(|| Some(nodes?.saturating_mul(each.unwrap_or(1)))),
        };
        let step = Step { nodes, tasks, by_srun: is_srun };
        let mut read = Container::of_script(object, base.is_open);
        if is_srun {
            let inner = own.rest.saturating_add(1);
            (read.commands, read.unread) = on_nodes(command, inner, tasks == nodes, &file);
        } else {
            read.commands = vec![once(command)];
        }
        read.variables.clone_from(&variables);
        read.launches = launches::of(&base, &read);
        if read.launches.is_empty() && (read.unread.is_empty() || !is_srun) {
            others.extend(read.commands);
            continue;
        }
        let is_launcher = |launch: &super::launch::Launch| launch.tool != super::launch::Tool::Program;
        let count = if read.launches.iter().any(is_launcher) && is_srun { nodes } else { tasks };
        all.push(Pods {
            count,
            in_unit: count,
            step: Some(step),
            containers: vec![read],
            ..Pods::of_script(object)
        });
    }
    if all.is_empty() {
        let mut read = Container::of_script(object, true);
        (read.commands, read.unread) = (others, reading.unread);
        let count = nodes.max(tasks);
        all.push(Pods { count, in_unit: count, containers: vec![read], ..base });
    }
    all
}

fn variables(nodes: Option<u64>, tasks: Option<u64>, each: Option<u64>) -> Variables {
    let number = |name: &str, number: Option<u64>| {
        number.map_or_else(
            || Text::unknown(format!("${name}"), false),
            |number| Text::known(number.to_string()),
        )
    };
    let mut all: Variables = [
        ("SLURM_NNODES", nodes),
        ("SLURM_JOB_NUM_NODES", nodes),
        ("SLURM_NTASKS", tasks),
        ("SLURM_NPROCS", tasks),
        ("SLURM_NTASKS_PER_NODE", each),
        // In the script itself.
        ("SLURM_NODEID", Some(0)),
        ("SLURM_PROCID", Some(0)),
        ("SLURM_LOCALID", Some(0)),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), Variable::One(number(name, value))))
    .collect();
    for name in ["SLURM_JOB_ID", "SLURM_JOBID"] {
        all.insert(name.into(), Variable::One(Text::of(Part::Of(Source::RunUid))));
    }
    all
}

/// What the script's own shell fills in has one value for all nodes.
fn fixed(text: &Text) -> Text {
    let mut made = Text::default();
    for part in text.parts() {
        made.push(match part {
            Part::Of(source) if source.varies() => {
                Part::Unknown { written: format!("$<{} of the first node>", source.name()), varies: false }
            }
            Part::Unknown { written, .. } => Part::Unknown { written: written.clone(), varies: false },
            part => part.clone(),
        });
    }
    made
}

fn fixed_variables(variables: &Variables) -> Variables {
    let one = |(name, value): (&String, &Variable)| {
        let value = match value {
            Variable::One(text) => Variable::One(fixed(text)),
            Variable::Array(items) => Variable::Array(items.iter().map(fixed).collect()),
        };
        (name.clone(), value)
    };
    variables.iter().map(one).collect()
}

fn once(command: &Command) -> Command {
    Command {
        words: command.words.iter().map(fixed).collect(),
        variables: Rc::new(fixed_variables(&command.variables)),
        ..command.clone()
    }
}

/// The commands that `srun` starts on each node.
fn on_nodes(
    command: &Command,
    inner: usize,
    is_one_each: bool,
    file: &dyn Fn(&str) -> Option<String>,
) -> (Vec<Command>, Vec<String>) {
    let words: Vec<Text> = command.words.iter().skip(inner).map(fixed).collect();
    let mut variables = fixed_variables(&command.variables);
    let index = || Text::of(Part::Of(Source::Index));
    let rank = if is_one_each { index() } else { Text::unknown("$SLURM_PROCID", true) };
    for (name, text) in [
        ("SLURM_NODEID", index()),
        ("SLURM_PROCID", rank),
        ("SLURM_LOCALID", Text::unknown("$SLURM_LOCALID", true)),
        ("HOSTNAME", Text::of(Part::Of(Source::HostName))),
        ("SLURMD_NODENAME", Text::of(Part::Of(Source::HostName))),
    ] {
        variables.insert(name.into(), Variable::One(text));
    }
    let shell_at = words.iter().position(|word| word.literal().is_some_and(shell::is_shell));
    let behind = |at: usize| words.get(at.saturating_add(1)..).unwrap_or_default();
    let is_script = |word: &Text| word.literal().is_some_and(shell::is_script);
    let (text, arguments) = if let Some(at) = shell_at {
        match shell::called(behind(at)) {
            Called::Script(script, arguments) => {
                (Ok(script.as_script(&mut variables)), arguments.get(1..).unwrap_or_default())
            }
            Called::File(path, arguments) => (file(&path.to_string()).ok_or(path), arguments),
            Called::Input => return (Vec::new(), Vec::new()),
        }
    } else if let Some(at) = words.iter().position(is_script) {
        // Whatever is in front of a script starts it.
        (file(&words[at].to_string()).ok_or(&words[at]), behind(at))
    } else {
        let command = Command { words, variables: Rc::new(variables), ..command.clone() };
        return (vec![command], Vec::new());
    };
    let text = match text {
        Ok(text) => text,
        Err(path) => {
            let unread = vec![format!("`{path}` is not in these files")];
            // A script in front of a launcher starts it.
            let is_launcher = |word: &Text| word.literal().is_some_and(launches::is_launcher);
            let wraps = arguments.first().is_some_and(is_launcher);
            let words = arguments.to_vec();
            let inner = Command { words, variables: Rc::new(variables), ..command.clone() };
            return (wraps.then_some(inner).into_iter().collect(), unread);
        }
    };
    let reading = shell::read(&text, arguments, Surroundings { variables, open: true, file });
    let mut commands = reading.commands;
    for inner in &mut commands {
        inner.conditional |= command.conditional;
    }
    (commands, reading.unread)
}

impl Container {
    fn of_script(object: &Object, open: bool) -> Self {
        Self { open, value: json!({ "name": object.name }), ..Self::default() }
    }
}

impl Pods {
    /// The parts of a script, before it is read.
    fn of_script(object: &Object) -> Self {
        Self { is_open: true, ..Self::bare(object, Maker::Slurm, "", Some(1)) }
    }
}

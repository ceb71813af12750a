//! Finds the launches of a container: torchrun and similar launchers, and programs that read torch's
//! variables themselves.

use std::rc::Rc;

use super::container::Container;
use super::launch::{Launch, Told};
use super::objects::scalar;
use rallypoint_node::launch::{
    BY_FLAGS, Backend, Called, Grammar, PROGRAM, Role, Starts, Tool, is_python_file,
};
use rallypoint_shell::{Command, Part, Reading, Surroundings, Text, basename, is_script, is_shell};
use serde_json::Value;

/// The launches of a container.
pub(crate) fn of(container: &Container) -> Vec<Launch> {
    let mut by_rallypoint = false;
    let mut found = Vec::new();
    let commands = container.commands.iter().enumerate();
    for (at, command) in commands.filter(|(_, command)| !Container::is_small(command)) {
        let run = command.words.windows(2).any(|pair| {
            pair[0].literal().is_some_and(|word| basename(word) == "rallypoint")
                && pair[1].literal() == Some("run")
        });
        by_rallypoint |= run;
        if let Some(launch) = launch(command, at) {
            found.push(Launch { by_rallypoint, ..launch });
        } else if run {
            let launch = empty(&PROGRAM, command, at);
            found.push(Launch { by_rallypoint: true, is_told_elsewhere: true, ..launch });
        }
    }
    // Lightning reads torch's variables as well.
    if found.iter().all(|launch| launch.tool() == Tool::Lightning) {
        found.extend(program(container));
    }
    found
}

/// Whether these words start a part of Ray.
pub(crate) fn starts_ray(words: &[String]) -> bool {
    Called::find(words).is_some_and(|called| called.grammar.is("ray start"))
}

/// The words behind `ray symmetric-run`, which is to run on every node.
pub(crate) fn symmetric_run(words: &[String]) -> Option<&[String]> {
    let at = words.windows(2).position(|two| basename(&two[0]) == "ray" && two[1] == "symmetric-run")?;
    words.get(at..)?.get(2..)
}

/// Whether the shell or the script in a command is the program of a launcher in front of it.
pub(crate) fn is_handed_a_shell(written: &[String]) -> bool {
    let at = written.iter().position(|word| is_shell(word) || is_script(word));
    let called = Called::find(written).filter(|called| !called.grammar.is_open);
    at.zip(called).is_some_and(|(at, called)| called.caller().len() < at)
}

/// Reads what a command runs that no shell starts.
pub(crate) fn started(
    words: &[Text],
    conditional: bool,
    private: &[String],
    surroundings: Surroundings<'_>,
) -> Reading {
    let written: Vec<String> = words.iter().map(ToString::to_string).collect();
    if !is_handed_a_shell(&written) {
        return rallypoint_shell::started(words, conditional, private, surroundings);
    }
    let (variables, open) = (Rc::new(surroundings.variables), surroundings.open);
    let whole = Command { words: words.to_vec(), variables, open, conditional, ..Command::default() };
    Reading { commands: vec![whole], ..Reading::default() }
}

fn empty(grammar: &'static Grammar, command: &Command, at: usize) -> Launch {
    Launch { grammar, command: command.clone(), at, ..Launch::default() }
}

fn variable(command: &Command, names: &[&str]) -> Option<Told> {
    names.iter().find_map(|name| Some(Told { text: command.variable(name)?.clone(), by: (*name).to_owned() }))
}

fn backend(told: Option<Told>) -> Backend {
    let unknown = || Backend::Other("$".into());
    told.map_or(Backend::Static, |told| told.text.literal().map_or_else(unknown, Backend::parse))
}

/// The parts of `HOST:PORT`, also of `tcp://HOST:PORT`. With another scheme, such as `file`, no host is
/// named.
fn host_and_port(told: &Told) -> Option<(Told, Option<Told>)> {
    let text = match told.text.split_once('/') {
        None => told.text.clone(),
        Some((scheme, rest)) => rest.split_once('/').filter(|_| scheme.literal() == Some("tcp:"))?.1,
    };
    // The colons of `[::1]:29500` are within the brackets.
    let address = text.literal().filter(|it| it.starts_with('[')).and_then(|it| it.split_once("]:"));
    let (host, port) = match address {
        Some((host, port)) => (Text::known(format!("{host}]")), Some(Text::known(port))),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let of = |text| Told { text, by: told.by.clone() };
    Some((of(host), port.map(of)))
}

/// Hydra's `launcher.nnodes=2` as the flag `--nnodes=2`.
fn of_hydra(word: &Text) -> Text {
    let Some((key, value)) = word.split_once('=') else { return word.clone() };
    let Some((_, name)) = key.literal().and_then(|key| key.rsplit_once('.')) else { return word.clone() };
    let mut flag = Text::known(format!("--{name}="));
    flag.extend(value);
    flag
}

/// A call of a launcher, and its words.
struct Read<'c> {
    command: &'c Command,
    words: Vec<Text>,
    called: Called,
}

impl Read<'_> {
    /// What a flag, or else a variable, tells.
    fn told(&self, role: Role) -> Option<Told> {
        let names = self.called.grammar.names(role);
        let flag = |name: &&str| {
            let (at, has_name) = self.called.place(name)?;
            let behind = || self.words.get(at)?.split_once('=').map(|(_, text)| text);
            let text = if has_name { behind() } else { self.words.get(at).cloned() };
            let text = text.or_else(|| Some(Text::unknown(self.called.flag(name)?, false)))?;
            let is_torchrun = self.called.grammar.tool == Tool::Torchrun;
            let by = self.called.written(name).filter(|_| !is_torchrun);
            Some(Told { text, by: by.map_or_else(|| format!("--{name}"), str::to_owned) })
        };
        names.iter().find_map(flag).or_else(|| variable(self.command, names))
    }
}

/// The call of a launcher in a command.
pub(crate) fn launch(command: &Command, at: usize) -> Option<Launch> {
    let written = command.written();
    let found = Called::find(&written).map(|called| Read { command, words: command.words.clone(), called });
    let of_own = |read: Read<'_>| of_call(&read, at);
    found.and_then(of_own).or_else(|| {
        let words: Vec<Text> = command.words.iter().map(of_hydra).collect();
        let written: Vec<String> = words.iter().map(ToString::to_string).collect();
        BY_FLAGS.iter().find_map(|grammar| {
            let called = Called::parse(&written, grammar, 0);
            of_own(Read { command, words: words.clone(), called })
        })
    })
}

fn of_call(read: &Read<'_>, at: usize) -> Option<Launch> {
    let Read { command, words, called } = read;
    let grammar = called.grammar;
    let is_torchrun = grammar.tool == Tool::Torchrun;
    let here = |text: &str, by: &str| Some(Told { text: Text::known(text), by: by.into() });
    let endpoint = read.told(Role::Endpoint).filter(|told| told.text.literal() != Some(""));
    let is_set = || called.has("standalone") || command.variable("PET_STANDALONE").is_some();
    // torchtune sets it if there is no endpoint.
    let alone = match () {
        () if is_torchrun && is_set() => Some("--standalone"),
        () if grammar.is("tune run") && endpoint.is_none() => Some("no --rdzv-endpoint"),
        () => None,
    };
    let by_id = grammar.is("llamafactory-cli train") && read.told(Role::RunId).is_some();
    let backend = if by_id { Backend::C10d } else { backend(read.told(Role::Backend)) };
    let (host, port) = match endpoint {
        Some(told) => match host_and_port(&told) {
            Some((host, port)) => {
                (Some(host), port.or_else(|| read.told(Role::Port).filter(|_| !is_torchrun)))
            }
            None if grammar.is_any() => return None,
            None => (Some(told), None),
        },
        // With another backend torchrun reads the endpoint alone.
        None if is_torchrun && backend != Backend::Static => (None, None),
        None => (read.told(Role::Host), read.told(Role::Port)),
    };
    let world = read.told(Role::World);
    let processes = read.told(Role::Processes);
    let by_world = || divided(world.as_ref()?, processes.as_ref()?);
    let usual = || match () {
        // It keeps the number of nodes beside --standalone, and each node then waits alone.
        () if alone.is_some() => here("1", alone?),
        () if grammar.is("sglang") => here("1", "no --nnodes"),
        () => None,
    };
    let nodes = read.told(Role::Nodes).or_else(by_world).or_else(usual);
    let of_all = || match &nodes {
        Some(nodes) if grammar.tool == Tool::Other => {
            let told = divided(world.as_ref()?, nodes)?;
            Some(Told { by: format!("{}, {}", told.by, nodes.by), ..told })
        }
        Some(nodes) => divided(world.as_ref()?, nodes),
        None => world.clone(),
    };
    let processes = processes.or_else(of_all);
    let (host, backend) = match alone {
        Some(by @ "--standalone") => (here("localhost", by), Backend::C10d),
        Some(_) => (None, Backend::C10d),
        None => (host, backend),
    };
    // Unreadable arguments may be flags.
    let is_unreadable = called.is_open
        || match words.get(words.len().saturating_sub(called.program().len())) {
            None => words.iter().any(Text::is_unknown),
            Some(word) => {
                !matches!(word.parts().first(), Some(Part::Known(_))) && !is_python_file(&word.to_string())
            }
        };
    let is_known = !grammar.is_any()
        || command.words.iter().any(|word| word.to_string().trim_start_matches('+').starts_with(HYDRA));
    let launch = Launch {
        node_rank: read.told(Role::Rank),
        run_id: read.told(Role::RunId),
        local_addr: called.has("local-addr") || command.variable("PET_LOCAL_ADDR").is_some(),
        is_configured: grammar.tool == Tool::Accelerate && (is_unreadable || called.has("config-file")),
        is_told_elsewhere: match grammar.tool {
            Tool::Accelerate => is_unreadable || called.has("config-file") || nodes.is_none(),
            // Its file of hosts says what no flag does.
            Tool::DeepSpeed => called.starts() == Starts::All || nodes.is_none(),
            Tool::Torchrun => is_unreadable,
            _ => false,
        },
        is_own: !is_known,
        called: Some(called.clone()),
        ..empty(grammar, command, at)
    };
    let is_launch = match grammar.tool {
        Tool::Torchrun | Tool::Accelerate | Tool::DeepSpeed => true,
        Tool::Lightning => {
            let is_of_trainer =
                |word: &Text| word.to_string().trim_start_matches(['-', '+']).starts_with("trainer.");
            processes.is_some() && (nodes.is_some() || command.words.iter().any(is_of_trainer))
        }
        _ if !grammar.is_open => nodes.is_some() || called.program().iter().any(|it| is_python_file(it)),
        // Who has a number of nodes and no host meets nobody.
        _ if !grammar.is_any() && read.told(Role::Nodes).is_some() => true,
        _ => nodes.is_some() && host.is_some(),
    };
    is_launch.then_some(Launch { backend, nodes, processes, host, port, ..launch })
}

/// The beginning of what says that Hydra's own launcher starts the nodes.
const HYDRA: &str = "hydra.launcher.";

/// A number of all nodes by one of each, or by their number.
fn divided(all: &Told, by: &Told) -> Option<Told> {
    let each = number(all)?.checked_div(number(by)?)?;
    Some(Told { text: Text::known(each.to_string()), by: all.by.clone() })
}

fn number(told: &Told) -> Option<u64> {
    told.text.literal()?.parse().ok()
}

/// The value of a flag; `-` and `_` are equal in its name.
pub(crate) fn flag(words: &[Text], names: &[&str]) -> Option<Told> {
    for (n, word) in words.iter().enumerate() {
        let Some(Part::Known(begin)) = word.parts().first() else { continue };
        let Some(plain) = begin.strip_prefix("--") else { continue };
        let (name, inline) = match plain.split_once('=') {
            Some((name, _)) => (name, true),
            None => (plain, false),
        };
        let name = name.replace('_', "-");
        if !names.contains(&name.as_str()) {
            continue;
        }
        let text = if inline { word.split_once('=')?.1 } else { words.get(n..)?.get(1)?.clone() };
        return Some(Told { text, by: format!("--{}", plain.split('=').next().unwrap_or(plain)) });
    }
    None
}

/// The configuration of accelerate that a launch names.
pub(crate) fn configuration(launch: &Launch) -> Option<String> {
    let told = flag(&launch.command.words, &["config-file"]).filter(|_| launch.tool() == Tool::Accelerate)?;
    told.text.literal().map(str::to_owned)
}

/// Takes from a configuration of accelerate what no flag says.
pub(crate) fn configure(launch: &mut Launch, told: &Value) {
    let said = |name: &str| {
        let value = told.get(name).and_then(scalar)?;
        Some(Told { text: Text::known(value), by: format!("{name} of --config_file") })
    };
    let words = &launch.command.words;
    launch.nodes = launch.nodes.take().or_else(|| said("num_machines"));
    launch.node_rank = launch.node_rank.take().or_else(|| said("machine_rank"));
    launch.host = launch.host.take().or_else(|| said("main_process_ip"));
    launch.port = launch.port.take().or_else(|| said("main_process_port"));
    if launch.backend == Backend::Static && flag(words, &["rdzv-backend"]).is_none() {
        launch.backend = backend(said("rdzv_backend"));
    }
    let all = flag(words, &["num-processes"]).or_else(|| said("num_processes"));
    launch.processes = all.zip(launch.nodes.as_ref()).and_then(|(all, nodes)| divided(&all, nodes));
    (launch.is_configured, launch.is_told_elsewhere) = (false, false);
}

/// A program that reads torch's variables: `MASTER_ADDR` or `RANK` is set, and no launcher is called.
fn program(container: &Container) -> Option<Launch> {
    let variables = Rc::new(container.variables.clone());
    let whole = Command { variables, open: container.open, ..Command::default() };
    let is_python = |command: &&Command| {
        command
            .words
            .iter()
            .any(|word| word.literal().is_some_and(|word| basename(word).starts_with("python")))
    };
    let commands = || container.commands.iter().enumerate();
    // Another program reads torch's variables if it is given all of them.
    let has_all = |command: &&Command| {
        let has = |names: &[&str]| variable(command, names).is_some();
        has(&["WORLD_SIZE"]) && has(&["RANK", "NODE_RANK"]) && !Container::is_small(command)
    };
    let started =
        commands().rfind(|(_, it)| is_python(it)).or_else(|| commands().rfind(|(_, it)| has_all(it)));
    if started.is_none() && !container.commands.is_empty() {
        // It runs something else, such as a server or a waiting shell.
        return None;
    }
    let (at, command) = started.unwrap_or((0, &whole));
    let host = variable(command, &["MASTER_ADDR"]);
    // The master may be in the program itself. A rank that is no number may be something else.
    let has_rank = || {
        let rank = variable(command, &["RANK"]).filter(|_| container.own.iter().any(|own| own == "RANK"));
        rank.is_some_and(|rank| rank.text.literal().is_none_or(|rank| rank.parse::<u32>().is_ok()))
    };
    if host.is_none() && !has_rank() {
        return None;
    }
    Some(Launch {
        host,
        port: variable(command, &["MASTER_PORT"]),
        node_rank: variable(command, &["RANK", "NODE_RANK"]),
        ..empty(&PROGRAM, command, at)
    })
}

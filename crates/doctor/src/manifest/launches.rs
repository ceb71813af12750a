//! Finds the launches of a container: torchrun and similar launchers, and programs that read torch's
//! variables themselves.

use std::rc::Rc;

use super::container::Container;
use super::launch::{Launch, Told, Tool};
use super::objects::scalar;
use rallypoint_node::launch::{Backend, Torchrun};
use rallypoint_shell::{Command, Part, Text, basename};
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
        let launch = torchrun(command, at)
            .or_else(|| accelerate(command, at))
            .or_else(|| deepspeed(command, at))
            .or_else(|| other(command, at))
            .or_else(|| lightning(command, at));
        if let Some(launch) = launch {
            found.push(Launch { by_rallypoint, ..launch });
        } else if run {
            found.push(Launch {
                by_rallypoint: true,
                is_told_elsewhere: true,
                ..empty(Tool::Program, command, at)
            });
        }
    }
    // Lightning reads torch's variables as well.
    if found.iter().all(|launch| launch.tool == Tool::Lightning) {
        found.extend(program(container));
    }
    found
}

/// Whether these words start a part of Ray.
pub(crate) fn starts_ray(words: &[String]) -> bool {
    words.windows(2).any(|two| basename(&two[0]) == "ray" && two[1] == "start")
}

/// Whether a program starts others, or is Python.
pub(crate) fn is_launcher(program: &str) -> bool {
    let name = basename(program);
    matches!(name, "torchrun" | "accelerate" | "deepspeed") || name.starts_with("python")
}

fn empty(tool: Tool, command: &Command, at: usize) -> Launch {
    Launch { tool, command: command.clone(), at, ..Launch::default() }
}

fn variable(command: &Command, names: &[&str]) -> Option<Told> {
    names.iter().find_map(|name| Some(Told { text: command.variable(name)?.clone(), by: (*name).to_owned() }))
}

fn backend(told: Option<Told>) -> Backend {
    let unknown = || Backend::Other("$".into());
    told.map_or(Backend::Static, |told| told.text.literal().map_or_else(unknown, Backend::parse))
}

/// The parts of `HOST:PORT`.
fn host_and_port(told: Told) -> (Told, Option<Told>) {
    match told.text.split_once(':') {
        Some((text, port)) => (Told { text, by: told.by.clone() }, Some(Told { text: port, by: told.by })),
        None => (told, None),
    }
}

fn torchrun(command: &Command, at: usize) -> Option<Launch> {
    let words = &command.words;
    let shown = command.written();
    let parsed = Torchrun::parse(&shown)?;
    let told = |flag: &'static str, names: &[&str]| {
        let Some((at, has_name)) = parsed.place(flag) else { return variable(command, names) };
        let behind = || words[at].split_once('=').map(|(_, text)| text);
        let text = if has_name { behind() } else { words.get(at).cloned() };
        let text = text.or_else(|| Some(Text::unknown(parsed.flag(flag)?, false)))?;
        Some(Told { text, by: format!("--{flag}") })
    };
    let backend = backend(told("rdzv-backend", &["PET_RDZV_BACKEND"]));
    let endpoint =
        told("rdzv-endpoint", &["PET_RDZV_ENDPOINT"]).filter(|told| told.text.literal() != Some(""));
    let (host, port) = match endpoint {
        Some(told) => {
            let (host, port) = host_and_port(told);
            (Some(host), port)
        }
        None if backend == Backend::Static => {
            (told("master-addr", &["PET_MASTER_ADDR"]), told("master-port", &["PET_MASTER_PORT"]))
        }
        None => (None, None),
    };
    let standalone = parsed.has("standalone") || command.variable("PET_STANDALONE").is_some();
    // torchrun keeps the number of nodes beside --standalone, and each node then waits for the others alone.
    let nodes = told("nnodes", &["PET_NNODES"]);
    let here = |text: &str| Some(Told { text: Text::known(text), by: "--standalone".into() });
    let nodes = if standalone { nodes.or_else(|| here("1")) } else { nodes };
    let (host, backend) = if standalone { (here("localhost"), Backend::C10d) } else { (host, backend) };
    Some(Launch {
        nodes,
        processes: told("nproc-per-node", &["PET_NPROC_PER_NODE"]),
        node_rank: told("node-rank", &["PET_NODE_RANK"]),
        host,
        port,
        run_id: told("rdzv-id", &["PET_RDZV_ID"]),
        local_addr: parsed.has("local-addr") || command.variable("PET_LOCAL_ADDR").is_some(),
        // Unreadable arguments may be flags.
        is_told_elsewhere: match words.get(words.len().saturating_sub(parsed.program().len())) {
            None => words.iter().any(Text::is_unknown),
            Some(word) => {
                !matches!(word.parts().first(), Some(Part::Known(_))) && !word.to_string().contains(".py")
            }
        },
        torchrun: Some(parsed),
        backend,
        ..empty(Tool::Torchrun, command, at)
    })
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

pub(crate) fn accelerate(command: &Command, at: usize) -> Option<Launch> {
    let plain = command.written();
    let entry = plain
        .iter()
        .position(|word| basename(word) == "accelerate" || word == "accelerate.commands.launch")?;
    let is_module = plain[entry].starts_with("accelerate.");
    if !is_module && plain[entry..].get(1).map(String::as_str) != Some("launch") {
        return None;
    }
    let words = command.words[entry..].get(1..).unwrap_or_default();
    // An unknown word may be any flag, unless it is the value of one.
    let is_any = |word: &Text| word.literal().is_none() && word.parts().len() == 1 && word.is_unknown();
    let is_flag = |word: &Text| word.literal().is_some_and(|word| word.starts_with("--"));
    let configured = flag(words, &["config-file"]).is_some()
        || words.windows(2).any(|pair| is_any(&pair[1]) && !is_flag(&pair[0]));
    let nodes = flag(words, &["num-machines"]);
    Some(Launch {
        processes: flag(words, &["num-processes"])
            .and_then(|all| of_a_node(all, number(nodes.as_ref()).unwrap_or(1))),
        is_configured: configured,
        is_told_elsewhere: configured || nodes.is_none(),
        nodes,
        node_rank: flag(words, &["machine-rank"]),
        host: flag(words, &["main-process-ip"]),
        port: flag(words, &["main-process-port"]),
        backend: backend(flag(words, &["rdzv-backend"])),
        ..empty(Tool::Accelerate, command, at)
    })
}

fn number(told: Option<&Told>) -> Option<u64> {
    told?.text.literal()?.parse().ok()
}

/// accelerate counts the processes of all nodes.
fn of_a_node(all: Told, nodes: u64) -> Option<Told> {
    let each = number(Some(&all))?.checked_div(nodes)?;
    Some(Told { text: Text::known(each.to_string()), ..all })
}

/// The configuration of accelerate that a launch names.
pub(crate) fn configuration(launch: &Launch) -> Option<String> {
    let told = flag(&launch.command.words, &["config-file"]).filter(|_| launch.tool == Tool::Accelerate)?;
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
    let processes = flag(words, &["num-processes"]).or_else(|| said("num_processes"));
    launch.processes =
        processes.zip(number(launch.nodes.as_ref())).and_then(|(all, nodes)| of_a_node(all, nodes));
    (launch.is_configured, launch.is_told_elsewhere) = (false, false);
}

fn deepspeed(command: &Command, at: usize) -> Option<Launch> {
    let plain = command.written();
    let entry = plain.iter().position(|word| {
        matches!(basename(word), "deepspeed" | "deepspeed.launcher.runner" | "deepspeed.launcher.launch")
    })?;
    if plain[..entry].last().is_some_and(|word| word.starts_with("--"))
        || plain.iter().any(|word| basename(word) == "pip")
    {
        return None;
    }
    let words = command.words[entry..].get(1..).unwrap_or_default();
    Some(Launch {
        host: flag(words, &["master-addr"]),
        port: flag(words, &["master-port"]),
        node_rank: flag(words, &["node-rank"]),
        nodes: flag(words, &["num-nodes", "nnodes"]),
        processes: flag(words, &["num-gpus"]),
        is_told_elsewhere: true,
        ..empty(Tool::DeepSpeed, command, at)
    })
}

/// Flags of programs for the master, also as a URL.
#[rustfmt::skip]
const HOSTS: [&str; 8] = [
    "master-addr", "master-ip", "master-host", "dist-init-addr", "dist-url", "init-method", "main-address",
    "rdzv-endpoint",
];

/// The endpoint in `tcp://HOST:PORT`. With another scheme, such as `file`, no host is named.
fn without_scheme(told: Told) -> Option<Told> {
    let Some((scheme, rest)) = told.text.split_once('/') else { return Some(told) };
    let (_, text) = rest.split_once('/')?;
    (scheme.literal() == Some("tcp:")).then_some(Told { text, ..told })
}

/// Hydra's `launcher.nnodes=2` as the flag `--nnodes=2`.
fn of_hydra(word: &Text) -> Text {
    let Some((key, value)) = word.split_once('=') else { return word.clone() };
    let Some((_, name)) = key.literal().and_then(|key| key.rsplit_once('.')) else { return word.clone() };
    let mut flag = Text::known(format!("--{name}="));
    flag.extend(value);
    flag
}

/// Any program with flags for the number of nodes, their rank and the master.
fn other(command: &Command, at: usize) -> Option<Launch> {
    let words = &command.words.iter().map(of_hydra).collect::<Vec<_>>();
    let is_known = |word: &Text| is_known(&word.to_string());
    let is_sglang = words.iter().any(|word| word.to_string().contains("sglang"));
    let alone = || is_sglang.then(|| Told { text: Text::known("1"), by: "no --nnodes".into() });
    let nodes = flag(words, &["nnodes", "num-nodes", "num-machines", "world-size"]).or_else(alone)?;
    let node_rank = flag(words, &["node-rank", "machine-rank", "rank"]);
    let host = flag(words, &HOSTS)?;
    let (host, port) = host_and_port(without_scheme(host)?);
    Some(Launch {
        processes: is_sglang.then(|| of_engine(words, &nodes)).flatten(),
        nodes: Some(nodes),
        node_rank,
        host: Some(host),
        port: port.or_else(|| flag(words, &["master-port", "main-port"])),
        backend: backend(flag(words, &["rdzv-backend"])),
        is_own: !command.words.iter().any(is_known),
        ..empty(Tool::Other, command, at)
    })
}

/// Whether a word is a program whose flags for the nodes are documented: without a rank it is node 0.
fn is_known(word: &str) -> bool {
    let name = basename(word);
    word.trim_start_matches('+').starts_with("hydra.launcher.")
        || matches!(name, "vllm" | "composer" | "sglang")
        || name.starts_with("vllm.")
        || name.starts_with("sglang.")
}

/// The processes of a node of SGLang: its share of those that hold a part of each tensor.
fn of_engine(words: &[Text], nodes: &Told) -> Option<Told> {
    let tensors = flag(words, &["tp", "tp-size", "tensor-parallel-size"])?;
    let each =
        tensors.text.literal()?.parse::<u64>().ok()?.checked_div(nodes.text.literal()?.parse().ok()?)?;
    Some(Told { text: Text::known(each.to_string()), by: format!("{}, {}", tensors.by, nodes.by) })
}

/// A program with the flags of Lightning's Trainer.
fn lightning(command: &Command, at: usize) -> Option<Launch> {
    let words = &command.words.iter().map(of_hydra).collect::<Vec<_>>();
    let nodes = flag(words, &["num-nodes", "trainer.num-nodes"]);
    let processes = flag(words, &["devices", "trainer.devices"]);
    let is_of_trainer = |word: &Text| word.to_string().trim_start_matches(['-', '+']).starts_with("trainer.");
    let is_whole = nodes.is_some() && processes.is_some();
    let is_lightning = is_whole || command.words.iter().any(is_of_trainer) && processes.is_some();
    is_lightning.then(|| Launch { nodes, processes, ..empty(Tool::Lightning, command, at) })
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
        ..empty(Tool::Program, command, at)
    })
}

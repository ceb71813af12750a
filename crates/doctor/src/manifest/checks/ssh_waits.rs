//! ssh returns when nothing on the other host holds its output any more, not when the shell there has ended.
//! The script does not get to the next node, and what it has started waits for that.

use super::prelude::*;
use crate::manifest::{launches, remote};
use rallypoint_shell::{Surroundings, Variables};

pub(super) const RULE: Rule = Rule {
    id: "ssh-waits",
    sees: "FAIL: `ssh node \"cd work && nohup torchrun --nnodes=2 … > log 2>&1 &\"`: the redirection is for \
           the last command alone, and ssh waits for the shell behind it; no `&` in a loop over the \
           nodes. WARN: another program",
    examples: ["ssh-waits.sh", "good-ssh.sh"],
    find: Find::Files(|manifests| {
        manifests.objects.iter().filter_map(|object| Some(of_script(object)?.at(object.place("-")))).collect()
    }),
};

fn of_script(object: &Object) -> Option<Check> {
    let surroundings =
        Surroundings { variables: Variables::new(), open: true, file: &|_| None, here: &[], choice: 0 };
    let commands = rallypoint_shell::read(object.script()?, &[], surroundings).commands;
    let found = one_by_one(&commands).or_else(|| here_one_by_one(&commands));
    if let Some(check) = found.or_else(|| cut_off(&commands)) {
        return Some(check);
    }
    let (remote, why) = commands.iter().filter(|command| !command.background).find_map(held_by)?;
    let evidence = format!("ssh does not return while `{remote}` runs: {why}");
    let remedy = "ssh -f, or a `&` behind the whole ssh; or `(…; …) > log 2>&1 < /dev/null &` there";
    let tell = if is_of_several(&remote) { Check::fail } else { Check::warn };
    Some(tell(evidence, remedy.to_owned()))
}

/// Whether a launch has flags that only one of several nodes needs.
fn is_of_several(text: &str) -> bool {
    const FLAGS: [&str; 5] = ["--nnodes", "--node_rank", "--node-rank", "--num_machines", "--machine_rank"];
    FLAGS.iter().any(|flag| text.contains(flag))
}

/// A launch on another host that ends before the script starts the next one, which it waits for.
fn one_by_one(commands: &[Command]) -> Option<Check> {
    const LAUNCHERS: [&str; 4] = ["torchrun", "torch.distributed", "accelerate launch", "deepspeed"];
    // These go on when ssh has returned.
    const APART: [&str; 7] = ["nohup", "setsid", "tmux", "screen", "docker run", "sbatch", " -f "];
    let is_ssh =
        |command: &Command| command.words.first().is_some_and(|it| basename(&it.to_string()) == "ssh");
    let launch = |command: &Command| {
        let text = command.written().join(" ");
        let has = |all: &[&str]| all.iter().any(|part| text.contains(part));
        let is_one = has(&["nnodes=1 ", "nnodes 1 ", "nnodes=1:", "nnodes 1:"]);
        (has(&LAUNCHERS) && is_of_several(&text) && !is_one).then(|| text.clone())
    };
    let waits = |command: &Command| {
        let text = launch(command).filter(|_| is_ssh(command) && !command.background)?;
        let is_apart = APART.iter().any(|part| text.contains(part)) || text.trim_end().ends_with('&');
        (!is_apart).then_some(text)
    };
    let (at, text) = commands.iter().enumerate().find_map(|(at, command)| Some((at, waits(command)?)))?;
    let behind = commands.get(at.saturating_add(1)..).unwrap_or_default();
    // In a loop the node has another number each time.
    let flag = ["rank=", "rank "].iter().find_map(|flag| text.split_once(flag))?.1;
    let is_in_loop = (commands.get(at)?.conditional || commands.get(at)?.repeated)
        && !flag.starts_with(|c: char| c.is_ascii_digit());
    let is_followed = behind.iter().any(|command| launch(command).is_some() && !command.conditional);
    (is_in_loop || is_followed).then(|| {
        let evidence = "ssh returns when the training of its node has ended, which waits for the nodes that \
                        the script starts after it";
        Check::fail(evidence, "a `&` behind each ssh, and `wait` after the last")
    })
}

/// Launches of two nodes in a row: a list for two hosts, unless somebody runs it.
fn here_one_by_one(commands: &[Command]) -> Option<Check> {
    let rank = |command: &Command| {
        let launch = launches::launch(command, 0).filter(|it| it.most_nodes() > Some(1))?;
        let rank = launch.node_rank?.text.literal()?.parse::<u32>().ok()?;
        Some((rank, command.background || command.conditional))
    };
    let mut ranks = commands.iter().filter_map(rank);
    let (first, _) = ranks.next().filter(|(_, is_beside)| !is_beside)?;
    let (next, _) = ranks.find(|(rank, _)| *rank != first)?;
    let evidence = format!(
        "the launch of node {first} waits for that of node {next}, which the script starts only after it"
    );
    Some(Check::warn(evidence, "each on its own host, or a `&` behind the first"))
}

/// What only prepares a shell, alone on another host: the `;` behind it has ended the ssh.
fn cut_off(commands: &[Command]) -> Option<Check> {
    const PREPARE: [&str; 7] = ["cd", "module", "ml", "source", ".", "export", "conda activate"];
    commands.windows(2).find_map(|two| {
        let [ssh, next] = two else { return None };
        let (_, words) = remote::started(ssh).filter(|(by, _)| *by == "ssh")?;
        let text = words.last()?.to_string();
        let text = text.trim();
        let only = PREPARE.iter().any(|it| text == *it || text.starts_with(&format!("{it} ")));
        let is_whole = !text.contains([';', '&', '|', '\n']);
        let launch = next.written().join(" ");
        let has_rank = launch.contains("rank");
        let is_in_loop = ssh.repeated && next.repeated && !ssh.background;
        (only && is_whole && is_in_loop && has_rank && !Container::is_small(next)).then(|| {
            let program = next.words.first().map(ToString::to_string).unwrap_or_default();
            let evidence = format!(
                "the `;` ends the ssh: the other host gets `{text}` alone, and `{program}` runs here"
            );
            Check::fail(evidence, "quotes around all that the other host is to run")
        })
    })
}

/// The command behind an ssh that waits for it although a `&` ends it, and why.
fn held_by(command: &Command) -> Option<(String, &'static str)> {
    let words = command.written();
    let (program, remote) = (words.first()?, words.last()?);
    // Also `$SSH`.
    if !basename(program).to_ascii_lowercase().ends_with("ssh") || words.len() < 3 {
        return None;
    }
    let list = remote.trim_end().strip_suffix('&').filter(|list| !list.ends_with('&'))?;
    let list = list.rsplit([';', '\n']).next().unwrap_or_default().trim();
    let is_block = matches!(list.split_whitespace().last(), Some("done" | "fi"));
    let begin = list.split_once('>').map_or(list, |(begin, _)| begin).trim_end_matches([' ', '1', '2', '&']);
    let is_whole = begin.trim_end().ends_with([')', '}']);
    let has_both = list.contains("&>") || list.contains('>') && (list.contains("2>") || list.contains(">&"));
    // `-f` goes into the background, and a terminal (`-t`) is closed with its shell.
    let is_apart = |word: &String| {
        let switches = word.strip_prefix('-').filter(|switches| switches.len() < 4);
        switches.is_some_and(|switches| switches.contains(['f', 't']))
    };
    let why = match () {
        () if words.iter().any(is_apart) || is_whole || is_block => return None,
        () if !has_both => "its output is not redirected, and ssh waits for the end of that",
        () if list.contains("&&") => {
            "its redirection is for the last command alone; the shell that runs the list holds ssh's output"
        }
        () => return None,
    };
    let last = list.rsplit("&&").next().unwrap_or_default();
    Some((last.split('>').next().unwrap_or_default().trim().to_owned(), why))
}

//! ssh returns when nothing on the other host holds its output any more, not when the shell there has ended.
//! The script does not get to the next node, and what it has started waits for that.

use super::prelude::*;
use rallypoint_shell::{Surroundings, Variables};

pub(super) const RULE: Rule = Rule {
    id: "ssh-waits",
    sees: "FAIL: `ssh node \"cd work && nohup torchrun --nnodes=2 … > log 2>&1 &\"`: the redirection is for \
           the last command alone, and ssh waits for the shell behind it. WARN: another program",
    examples: ["ssh-waits.sh", "good-ssh.sh"],
    find: Find::Files(|manifests| {
        manifests.objects.iter().filter_map(|object| Some(of_script(object)?.at(object.place("-")))).collect()
    }),
};

fn of_script(object: &Object) -> Option<Check> {
    let surroundings =
        Surroundings { variables: Variables::new(), open: true, file: &|_| None, here: &[], choice: 0 };
    let commands = rallypoint_shell::read(object.script()?, &[], surroundings).commands;
    let (remote, why) = commands.iter().filter(|command| !command.background).find_map(held_by)?;
    let evidence = format!("ssh does not return while `{remote}` runs: {why}");
    let remedy = "ssh -f, or a `&` behind the whole ssh; or `(…; …) > log 2>&1 < /dev/null &` there";
    let launches = ["--nnodes", "--node_rank", "--node-rank", "--num_machines", "--machine_rank"];
    let is_of_several = launches.iter().any(|flag| remote.contains(flag));
    let tell = if is_of_several { Check::fail } else { Check::warn };
    Some(tell(evidence, remedy.to_owned()))
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

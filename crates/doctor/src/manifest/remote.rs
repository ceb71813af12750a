//! Commands that a script starts on another host by name, such as by `ssh`.

use rallypoint_shell::{Command, Part, Text, basename};

/// A program that hands a text to the shell of another host, and its options with a value.
struct Remote {
    name: &'static str,
    values: &'static str,
    /// Whether the host is the first word behind the options.
    names_host: bool,
}

const REMOTES: [Remote; 3] = [
    Remote {
        name: "ssh",
        values: "-B -b -c -D -E -e -F -I -i -J -L -l -m -O -o -p -Q -R -S -W -w",
        names_host: true,
    },
    Remote { name: "pdsh", values: "-w -x -g -X -l -f -t -u -R -o -P -M", names_host: false },
    Remote {
        name: "clush",
        values: "-w -x -g -X -l -f -t -u -o -m -O -R --hostfile --machinefile",
        names_host: false,
    },
];

/// What the shell fills in here is the same for all hosts: `"… $(hostname)"` is this one's name.
fn filled_in(part: &Part) -> Part {
    let one = |written: String| Part::Unknown { written, varies: false };
    match part {
        Part::Of(source) if source.varies() => one(format!("$<{}>", source.name())),
        Part::Unknown { written, .. } => one(written.clone()),
        other => other.clone(),
    }
}

/// By which program a command starts another one elsewhere, and the words of that.
pub(super) fn started(command: &Command) -> Option<(&'static str, Vec<Text>)> {
    let words = command.written();
    let program = basename(words.first()?);
    if program == "kubectl" && words.get(1).is_some_and(|word| word == "exec") {
        let at = words.iter().position(|word| word == "--")?.saturating_add(1);
        return Some(("kubectl exec", command.words.get(at..)?.to_vec())).filter(|(_, it)| !it.is_empty());
    }
    let remote = REMOTES.iter().find(|remote| remote.name == program)?;
    let mut at: usize = 1;
    while let Some(word) = words.get(at).filter(|word| word.starts_with('-')) {
        let has_value = remote.values.split(' ').any(|option| option == word);
        at = at.saturating_add(if has_value { 2 } else { 1 });
    }
    let at = at.saturating_add(usize::from(remote.names_host));
    let mut text = Text::default();
    for word in command.words.get(at..).filter(|rest| !rest.is_empty())? {
        text.extend(Text::known(" "));
        text.extend(word.map(filled_in));
    }
    // pdsh fills in `%h` and `%n`.
    let is_filled_in = text.to_string().contains('%');
    (!is_filled_in).then(|| (remote.name, vec![Text::known("sh"), Text::known("-c"), text]))
}

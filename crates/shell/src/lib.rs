//! A reader of shell scripts that knows the limits of its knowledge: which commands a script runs, with which
//! words and variables, as far as this is clear without running it.
//!
//! The grammar is brush-parser's. A word becomes a [`Text`]: a list of known parts, parts of a known kind
//! (the pod's index), unknown parts, and variables that nothing sets. A condition is decided by the values in
//! the pod for which the script is read. Where this is not possible, and a branch launches something, one
//! reading takes one branch. Of other conditions both branches are read, and every variable that they leave
//! with different values is unknown afterwards.
//!
//! | module | what it is for |
//! |---|---|
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss
    )
)]
//! | `text` | a text whose parts may be unknown |
//! | `words` | turns words into texts: quotes, parameters, substitutions |
//! | `choices` | which branch a reading takes |
//! | `conditions` | decides the conditions of a script |
//! | `parse` | parses a script, and says where a shell cannot read it |
//! | `run` | runs the commands in order, and tracks the variables |
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::print_stdout, clippy::print_stderr)]

mod choices;
mod conditions;
mod parse;
mod run;
mod text;
mod words;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

pub use parse::{Mistake, mistake};
pub use run::{read, started};
pub use text::{Part, Source, Text};

/// Variables by name. One that is no array has a single item.
pub type Variables = BTreeMap<String, Vec<Text>>;

/// The text of a variable; of an array its first item, as in a shell.
pub fn text<'v>(variables: &'v Variables, name: &str) -> Option<&'v Text> {
    variables.get(name)?.first()
}

/// The surroundings of a script.
pub struct Surroundings<'a> {
    /// The process's variables.
    pub variables: Variables,
    /// Whether other variables may be set, too.
    pub open: bool,
    /// The text of a file, if it is available.
    pub file: &'a dyn Fn(&str) -> Option<String>,
    /// The values in the pod for which it is read. Only conditions are decided by them.
    pub here: &'a [(Source, String)],
    /// The number of the reading: which branches it takes where nothing decides.
    pub choice: usize,
}

/// A command that a script runs.
#[derive(Debug, Clone, Default)]
pub struct Command {
    /// Its words.
    pub words: Vec<Text>,
    /// The variables at the time of the command.
    pub variables: Rc<Variables>,
    /// The variables that the script has set for itself only, without `export`.
    pub private: Rc<BTreeSet<String>>,
    /// Whether other variables may be set, too.
    pub open: bool,
    /// Whether it is behind a condition that may differ between pods, or in the background of a loop: it may
    /// run in some only.
    pub conditional: bool,
    /// Whether it is in a loop of which the number of turns is not known.
    pub repeated: bool,
    /// When it runs: the commands of one moment run side by side.
    pub moment: usize,
    /// Whether another command of a pipe reads what it prints, and gives the exit code.
    pub piped: bool,
    /// Whether the script goes on while it runs: a `&` stands behind it.
    pub background: bool,
}

impl Command {
    /// Its words as they are written, with what is not known of them.
    pub fn written(&self) -> Vec<String> {
        self.words.iter().map(ToString::to_string).collect()
    }

    /// The text of a variable that the command itself gets.
    pub fn variable(&self, name: &str) -> Option<&Text> {
        text(&self.variables, name).filter(|_| !self.private.contains(name))
    }

    /// The variables that the command itself gets.
    pub fn environment(&self) -> Variables {
        let own = self.variables.iter().filter(|(name, _)| !self.private.contains(*name));
        own.map(|(name, value)| (name.clone(), value.clone())).collect()
    }
}

/// The result of reading a script.
#[derive(Debug, Default)]
pub struct Reading {
    /// The commands, in their order in the script.
    pub commands: Vec<Command>,
    /// The parts that could not be read, and why.
    pub unread: Vec<String>,
    /// The files that the script writes.
    pub written: HashMap<String, String>,
    /// How many readings there are, by the branches that they take.
    pub ways: usize,
    /// Whether a condition was decided by the values in the pod.
    pub is_by_pod: bool,
}

/// Whether a program is a shell, by its name.
pub fn is_shell(program: &str) -> bool {
    const SHELLS: [&str; 6] = ["sh", "bash", "dash", "ash", "zsh", "ksh"];
    SHELLS.contains(&basename(program))
}

/// Whether a command is a script, by its name.
pub fn is_script(program: &str) -> bool {
    program.rsplit_once('.').is_some_and(|(_, ending)| ending == "sh")
}

/// The last part of a path.
pub fn basename(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

/// What a shell runs by its arguments: whether that is a script (`-c SCRIPT`) or a file, itself, and the
/// arguments behind it. Without any the shell reads its standard input.
#[expect(clippy::arithmetic_side_effects, reason = "positions in a list of words")]
fn called(arguments: &[Text]) -> Option<(bool, &Text, &[Text])> {
    let mut is_script = false;
    let mut at = 0;
    while let Some(word) = arguments.get(at) {
        let text = word.to_string();
        if text == "--" || text == "-" {
            at += 1;
            break;
        }
        if !text.starts_with(['-', '+']) {
            break;
        }
        at += 1;
        if text.starts_with("--") {
            at += usize::from(matches!(text.as_str(), "--rcfile" | "--init-file"));
            continue;
        }
        is_script |= text.starts_with('-') && text.contains('c');
        // `-o pipefail`, `-eo pipefail` and `-O extglob` take a word.
        at += usize::from(text.ends_with(['o', 'O']));
    }
    Some((is_script, arguments.get(at)?, &arguments[at + 1..]))
}

#[cfg(test)]
mod tests;

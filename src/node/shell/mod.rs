//! A reader of shell scripts that knows what it does not know: which commands a script runs, with which words and
//! variables, as far as that can be said without running it.
//!
//! The grammar is brush-parser's. What a word becomes is a [`Text`]: parts that are known, parts of which it is known what
//! they are (the pod's index), parts that nobody can know here, and variables that nothing sets. Both ways of an `if` are
//! read, and what they leave differently is unknown afterwards.
//!
//! | module | what it is for |
//! |---|---|
//! | `text` | what is known of a text |
//! | `words` | words to texts: quotes, parameters, substitutions |
//! | `run` | commands in their order, with the variables at that point |
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::print_stdout, clippy::print_stderr)]

mod run;
mod text;
mod words;

use std::collections::BTreeMap;
use std::rc::Rc;

pub use run::read;
pub use text::{Part, Source, Text};

/// A shell variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Variable {
    /// With one value.
    One(Text),
    /// An array.
    Array(Vec<Text>),
}

/// Variables by name.
pub type Variables = BTreeMap<String, Variable>;

/// The surroundings of a script.
pub struct Surroundings<'a> {
    /// The process's variables.
    pub variables: Variables,
    /// Whether variables may be set that are not among them.
    pub open: bool,
    /// The text of a file, if it is at hand.
    pub file: &'a dyn Fn(&str) -> Option<String>,
}

/// A command that a script runs.
#[derive(Debug, Clone)]
pub struct Command {
    /// Its words.
    pub words: Vec<Text>,
    /// The variables that it finds.
    pub variables: Rc<Variables>,
    /// Whether variables may be set that are not among them.
    pub open: bool,
    /// Whether it is in an `if`, a `case`, a loop, or behind a test: it may run only in some pods.
    pub conditional: bool,
}

/// What was read of a script.
#[derive(Debug, Default)]
pub struct Reading {
    /// The commands, in their order in the script.
    pub commands: Vec<Command>,
    /// What could not be read, and why.
    pub unread: Vec<String>,
}

/// Shells, by the name of their program.
pub fn is_shell(program: &str) -> bool {
    const SHELLS: [&str; 6] = ["sh", "bash", "dash", "ash", "zsh", "ksh"];
    SHELLS.contains(&basename(program))
}

/// Whether a command is a script by its name.
pub fn is_script(program: &str) -> bool {
    program.rsplit_once('.').is_some_and(|(_, ending)| ending == "sh")
}

/// The last part of a path.
pub fn basename(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

/// What a shell has to run.
#[derive(Debug, PartialEq, Eq)]
pub enum Called<'w> {
    /// `-c SCRIPT`, and what follows it.
    Script(&'w Text, &'w [Text]),
    /// A file, and its arguments.
    File(&'w Text, &'w [Text]),
    /// Nothing: it reads its input.
    Input,
}

/// Reads the arguments of a shell, without its own name.
#[expect(clippy::arithmetic_side_effects, reason = "positions in a list of words")]
pub fn called(arguments: &[Text]) -> Called<'_> {
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
        // `-o pipefail`, `-eo pipefail`, `-O extglob` take a word.
        at += usize::from(text.ends_with(['o', 'O']));
    }
    match arguments.get(at) {
        None => Called::Input,
        Some(word) if is_script => Called::Script(word, &arguments[at + 1..]),
        Some(word) => Called::File(word, &arguments[at + 1..]),
    }
}

#[cfg(test)]
mod tests;

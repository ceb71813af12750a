//! The commands of a shell script that stands in a command, as in `sh -c 'torchrun …'`.
//!
//! Enough of the grammar to find a launcher and its flags: quotes, comments, and where a command ends.
//! Variables and substitutions stay as they are written; every branch counts, here-documents too.

use super::Environment;

/// Whether a word names a file of Python.
pub fn is_python_file(word: &str) -> bool {
    word.rsplit_once('.').is_some_and(|(_, ending)| ending == "py")
}

/// Words before a command that are no part of it.
const BEFORE: [&str; 14] = [
    "!", "builtin", "command", "do", "elif", "else", "exec", "if", "nohup", "then", "time", "until", "while",
    "{",
];

/// The commands of the script that a command gives to a shell, as words, those of scripts in it too. None,
/// unless the command calls a shell with `-c`.
pub(super) fn scripts(argv: &[String]) -> Vec<Vec<String>> {
    let Some(script) = script_of(argv) else { return Vec::new() };
    let mut found = Vec::new();
    for command in commands(script) {
        let inner = scripts(&command);
        found.push(command);
        found.extend(inner);
    }
    found
}

/// The script in `sh -ec SCRIPT`.
fn script_of(argv: &[String]) -> Option<&str> {
    let (_, arguments) = argv.split_first().filter(|(program, _)| is_shell(program))?;
    let mut words = arguments.iter();
    let mut is_script = false;
    loop {
        let word = words.next()?;
        if !word.starts_with(['-', '+']) {
            return is_script.then_some(word);
        }
        is_script |= word.starts_with('-') && !word.starts_with("--") && word.contains('c');
        // `-o pipefail` takes a word, and so does `-euo pipefail`.
        if word.ends_with(['o', 'O']) {
            words.next();
        }
    }
}

/// The word with the values of `$NAME` and `${NAME}`. A variable that is not set stays as it is written.
pub(super) fn expanded(word: &str, env: &Environment) -> String {
    let mut parts = word.split('$');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_braced = part.starts_with('{');
        let start = &part[usize::from(is_braced)..];
        let end = start.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(start.len());
        let (name, rest) = start.split_at(end);
        let rest = if is_braced { rest.strip_prefix('}') } else { Some(rest) };
        match (env.get(name), rest) {
            (Some(value), Some(rest)) => text.extend([value, rest]),
            _ => text.extend(["$", part]),
        }
    }
    text
}

/// The last part of a program's path.
pub fn basename(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

fn is_shell(program: &str) -> bool {
    ["sh", "bash", "dash", "ash", "zsh", "ksh"].contains(&basename(program))
}

/// Whether a word before a command sets a variable.
fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

/// The commands of a script, as words.
fn commands(script: &str) -> Vec<Vec<String>> {
    let mut reader = Reader { rest: script, done: Vec::new(), command: Vec::new(), word: None };
    reader.read();
    reader.done
}

struct Reader<'s> {
    rest: &'s str,
    done: Vec<Vec<String>>,
    command: Vec<String>,
    /// The word that has begun.
    word: Option<String>,
}

impl<'s> Reader<'s> {
    fn read(&mut self) {
        while let Some(c) = self.take() {
            match c {
                '\\' => match self.take() {
                    Some('\n') | None => {}
                    Some(c) => self.word().push(c),
                },
                '\'' => {
                    let text = self.until('\'');
                    self.word().push_str(text);
                }
                '"' => self.quoted(),
                '$' | '`' => self.expansion(c),
                '#' if self.word.is_none() => self.rest = self.rest.trim_start_matches(|c| c != '\n'),
                ' ' | '\t' | '\r' => self.end_word(),
                // `2>&1` and `&>log` are words here.
                '&' if self.rest.starts_with('>') || self.is_redirection() => self.word().push('&'),
                ';' | '&' | '|' | '(' | ')' | '\n' => self.end_command(),
                c => self.word().push(c),
            }
        }
        self.end_command();
    }

    fn take(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let taken = chars.next()?;
        self.rest = chars.as_str();
        Some(taken)
    }

    /// Takes the text before `end`, and `end` itself.
    fn until(&mut self, end: char) -> &'s str {
        let (text, rest) = self.rest.split_once(end).unwrap_or((self.rest, ""));
        self.rest = rest;
        text
    }

    /// The word that has begun, or begins here.
    fn word(&mut self) -> &mut String {
        self.word.get_or_insert_default()
    }

    fn is_redirection(&self) -> bool {
        self.word.as_ref().is_some_and(|word| word.ends_with(['>', '<']))
    }

    /// The text in double quotes.
    fn quoted(&mut self) {
        self.word();
        while let Some(c) = self.take() {
            match c {
                '"' => return,
                '\\' if self.rest.starts_with('\n') => drop(self.take()),
                '\\' if self.rest.starts_with(['"', '\\', '$', '`']) => {
                    let escaped = self.take();
                    self.word().extend(escaped);
                }
                '$' | '`' => self.expansion(c),
                c => self.word().push(c),
            }
        }
    }

    /// `$(…)`, `${…}` and `` `…` ``, as they are written.
    fn expansion(&mut self, first: char) {
        self.word().push(first);
        if first == '`' {
            let text = self.until('`');
            self.word().push_str(text);
            return self.word().push('`');
        }
        let (open, close) = match self.rest.chars().next() {
            Some('(') => ('(', ')'),
            Some('{') => ('{', '}'),
            _ => return,
        };
        let mut depth = 0_usize;
        while let Some(c) = self.take() {
            self.word().push(c);
            if c == open {
                depth = depth.saturating_add(1);
            } else if c == close {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return;
                }
            }
        }
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else { return };
        let is_before = BEFORE.contains(&word.as_str()) || is_assignment(&word);
        if !self.command.is_empty() || !is_before {
            self.command.push(word);
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        if !self.command.is_empty() {
            self.done.push(std::mem::take(&mut self.command));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(script: &str) -> Vec<String> {
        commands(script).iter().map(|words| words.join("|")).collect()
    }

    #[test]
    fn a_script_is_cut_into_commands_and_words_as_a_shell_does() {
        for (script, commands) in [
            ("torchrun --nnodes=2 t.py", vec!["torchrun|--nnodes=2|t.py"]),
            ("a 'b c' \"d 'e' f\" g\\ h ''", vec!["a|b c|d 'e' f|g h|"]),
            ("a \\\n  b # not d\nc", vec!["a|b", "c"]),
            ("a#b \"#c\"", vec!["a#b|#c"]),
            ("a && b || c; d & e | f\n\n;; g", vec!["a", "b", "c", "d", "e", "f", "g"]),
            ("a >log 2>&1 && b &>log", vec!["a|>log|2>&1", "b|&>log"]),
            ("if [ -e x ]; then exec a; else B=1 C= b; fi", vec!["[|-e|x|]", "a", "b", "fi"]),
            ("(a; { b; }) & x=1", vec!["a", "b", "}"]),
            (
                "a --id=$(date -d 'x y' +$(echo %s)) ${B:-c d} `e f`",
                vec!["a|--id=$(date -d 'x y' +$(echo %s))|${B:-c d}|`e f`"],
            ),
            ("a \"$(b; c)\" \"\\$D\\\\\\n\" $E", vec!["a|$(b; c)|$D\\\\n|$E"]),
            ("a 'b; c", vec!["a|b; c"]),
            ("a \"b $(c", vec!["a|b $(c"]),
            ("a \\", vec!["a"]),
        ] {
            assert_eq!(of(script), commands, "{script}");
        }
    }

    #[test]
    fn the_script_is_found_among_the_flags_of_its_shell() {
        let script = |words: &str| {
            let argv = shlex::split(words).expect("words");
            script_of(&argv).map(str::to_owned)
        };
        for words in [
            "sh -c X",
            "/bin/bash -ec X a b",
            "bash -euo pipefail -c X",
            "bash -ceuo pipefail X",
            "bash --norc +x -l -c X",
        ] {
            assert_eq!(script(words).as_deref(), Some("X"), "{words}");
        }
        for words in ["sh", "sh X", "bash -e start.sh -c", "bash --rcfile X", "python -c X", "shc -c X"] {
            assert_eq!(script(words), None, "{words}");
        }
    }

    #[test]
    fn a_script_in_a_script_is_read_too() {
        let argv = shlex::split(r#"sh -c "exec bash -c 'cd /w; torchrun t.py'""#).expect("words");
        let found = scripts(&argv);
        assert_eq!(found.last(), Some(&vec!["torchrun".to_owned(), "t.py".to_owned()]), "{found:?}");
    }

    #[test]
    fn a_variable_has_its_value_if_it_is_set() {
        let env: Environment = [("HOST", "train-0"), ("PORT", "29500")].into_iter().collect();
        for (word, value) in [
            ("$HOST:${PORT}", "train-0:29500"),
            ("$HOSTNAME:${POR}$", "$HOSTNAME:${POR}$"),
            ("${PORT:-1}$PORT.", "${PORT:-1}29500."),
            ("$(hostname)", "$(hostname)"),
            ("plain", "plain"),
        ] {
            assert_eq!(expanded(word, &env), value);
        }
    }
}

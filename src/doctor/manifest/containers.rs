//! A container's variables and commands.

use std::collections::HashSet;

use serde_json::Value;

use super::objects::list;
use crate::launch::{Environment, Torchrun, find_torchrun, scripts};

/// A container of a pod template.
#[derive(Debug)]
pub(super) struct Container {
    /// `containers[0]`.
    pub(super) field: String,
    pub(super) value: Value,
    /// Its command and arguments.
    pub(super) argv: Vec<String>,
    /// Variables in their order, with the value if it stands there.
    pub(super) env: Vec<(String, Option<String>)>,
    /// Whether more variables come from elsewhere.
    pub(super) env_from: bool,
    pub(super) torchrun: Option<Torchrun>,
}

impl Container {
    pub(super) fn all(spec: &Value, role: &str) -> Vec<Self> {
        let read = |(n, value): (usize, &Value)| Self::read(format!("{role}[{n}]"), value.clone());
        list(spec, &format!("/{role}")).iter().enumerate().map(read).collect()
    }

    fn read(field: String, value: Value) -> Self {
        let text = |value: &Value| match value {
            Value::String(text) => Some(text.clone()),
            Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
            _ => None,
        };
        let argv: Vec<String> =
            ["/command", "/args"].into_iter().flat_map(|at| list(&value, at)).filter_map(text).collect();
        let env = list(&value, "/env")
            .iter()
            .filter_map(|item| {
                Some((item.get("name")?.as_str()?.to_owned(), item.get("value").and_then(text)))
            })
            .collect();
        let torchrun = find_torchrun(&argv);
        Self { field, env_from: value.get("envFrom").is_some(), argv, env, torchrun, value }
    }

    /// Whether it launches a training: torchrun, or torch's variables.
    pub(super) fn trains(&self) -> bool {
        let told = |name: &str| self.env.iter().any(|(known, _)| known == name);
        !self.serves() && (self.torchrun.is_some() || told("MASTER_ADDR") || self.is_run())
    }

    /// Whether rallypoint serves there.
    pub(super) fn serves(&self) -> bool {
        self.rallypoint_command() == Some("serve")
    }

    /// Whether `rallypoint run` starts the command.
    pub(super) fn is_run(&self) -> bool {
        self.rallypoint_command() == Some("run")
            || scripts(&self.argv)
                .iter()
                .any(|line| line.windows(2).any(|pair| pair == ["rallypoint", "run"]))
    }

    fn rallypoint_command(&self) -> Option<&str> {
        let image = self.value.get("image").and_then(Value::as_str).unwrap_or_default();
        let first = self.argv.first()?;
        if first.rsplit('/').next() == Some("rallypoint") {
            return self.argv.get(1).map(String::as_str);
        }
        // The image's own entry point.
        let of_image = image.contains("rallypoint") && self.value.get("command").is_none();
        of_image.then_some(first.as_str())
    }

    /// The variables whose values stand there.
    pub(super) fn environment(&self) -> Environment {
        self.env
            .iter()
            .map(|(name, value)| (name.clone(), value.clone().unwrap_or_else(|| "$(…)".into())))
            .collect()
    }

    /// A variable's value, if it stands there.
    pub(super) fn value_of(&self, name: &str) -> Option<&str> {
        self.env.iter().rev().find(|(known, _)| known == name)?.1.as_deref()
    }

    /// The text with the variables filled in that are known.
    pub(super) fn filled(&self, text: &str) -> String {
        let mut filled = text.to_owned();
        // A value may name others, once.
        for _ in 0..2 {
            for (name, value) in &self.env {
                if let Some(value) = value {
                    for form in [format!("$({name})"), format!("${{{name}}}"), format!("${name}")] {
                        filled = filled.replace(&form, value);
                    }
                }
            }
        }
        filled
    }

    /// Whether the script, if there is one, or the variables define this name.
    pub(super) fn defines(&self, name: &str) -> bool {
        let known: HashSet<&str> = self.env.iter().map(|(name, _)| name.as_str()).collect();
        let assigned = || {
            self.argv
                .iter()
                .any(|text| text.contains(&format!("{name}=")) || text.contains(&format!("read {name}")))
        };
        known.contains(name) || self.env_from || assigned()
    }
}

/// The names of `$(NAME)`, `${NAME…}` and `$NAME` in a text; the first form only if it is not for a shell.
pub(super) fn variables(text: &str, in_shell: bool) -> Vec<&str> {
    let mut names = Vec::new();
    for (at, _) in text.match_indices('$') {
        let rest = &text[at + 1..];
        let rest = match rest.chars().next() {
            Some('(') if !in_shell => &rest[1..],
            Some('{') if in_shell => &rest[1..],
            Some(c) if in_shell && (c.is_ascii_alphabetic() || c == '_') => rest,
            _ => continue,
        };
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        if end > 0 && !rest.starts_with(|c: char| c.is_ascii_digit()) {
            names.push(&rest[..end]);
        }
    }
    names
}

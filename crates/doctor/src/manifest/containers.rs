//! Reads a container: its variables, and the commands that it runs.

use std::rc::Rc;

use serde_json::Value;

use super::container::Container;
use super::given::{field, given};
use super::launches;
use super::objects::{Object, list, scalar};
use super::pods::Pods;
use rallypoint_shell::{self as shell, Command, Part, Surroundings, Text, is_shell};

impl Container {
    pub(crate) fn all(pods: &Pods, objects: &[Object], role: &str, choice: usize) -> Vec<Self> {
        let read = |(n, value): (usize, &Value)| {
            Self::read(pods, objects, format!("{role}[{n}]"), value.clone(), choice)
        };
        list(&pods.spec, &format!("/{role}")).iter().enumerate().map(read).collect()
    }

    fn read(pods: &Pods, objects: &[Object], field: String, value: Value, choice: usize) -> Self {
        let argv: Vec<String> = ["/command", "/args"]
            .into_iter()
            .flat_map(|at| list(&value, at))
            .filter_map(scalar)
            .chain(source(&value))
            .collect();
        let field = if pods.is_container { String::new() } else { field };
        let mut container = Self { open: pods.is_open, field, argv, value, ..Self::default() };
        container.read_env(pods, objects);
        container.read_command(pods, objects, choice);
        container.launches = launches::of(&container);
        container
    }

    fn read_env(&mut self, pods: &Pods, objects: &[Object]) {
        let prepends = pods.maker == rallypoint_node::makers::Maker::LeaderWorkerSet;
        let injected = given(pods);
        if prepends {
            self.variables.extend(injected.clone());
        }
        for source in list(&self.value, "/envFrom").to_vec() {
            let map = source.pointer("/configMapRef/name").and_then(Value::as_str);
            match map.and_then(|name| config_map(objects, pods, name)) {
                Some(data) => {
                    self.variables
                        .extend(data.into_iter().map(|(name, value)| (name, vec![Text::known(value)])));
                }
                None => self.open = true,
            }
        }
        for item in list(&self.value, "/env").to_vec() {
            let Some(name) = item.get("name").and_then(Value::as_str) else { continue };
            let text = if let Some(value) = item.get("value").and_then(scalar) {
                self.expanded(&value)
            } else if let Some(path) = item.pointer("/valueFrom/fieldRef/fieldPath").and_then(Value::as_str) {
                field(pods, path)
            } else if let Some(from) = item.pointer("/valueFrom/configMapKeyRef") {
                let key = from.get("key").and_then(Value::as_str).unwrap_or_default();
                let map = from.get("name").and_then(Value::as_str).unwrap_or_default();
                let found = config_map(objects, pods, map)
                    .and_then(|data| data.into_iter().find(|(name, _)| name == key));
                found
                    .map_or_else(|| Text::unknown(format!("${name}"), false), |(_, value)| Text::known(value))
            } else if item.get("valueFrom").is_some() {
                Text::unknown(format!("${name}"), false)
            } else {
                Text::default()
            };
            self.own.push(name.to_owned());
            self.variables.insert(name.to_owned(), vec![text]);
        }
        if !prepends {
            for (name, value) in injected {
                // The Job controller keeps a variable that is already there. The operators append theirs, and
                // the last one counts.
                let keeps = name == "JOB_COMPLETION_INDEX";
                if !keeps || !self.variables.contains_key(&name) {
                    self.variables.insert(name, value);
                }
            }
        }
        self.variables
            .entry("HOSTNAME".into())
            .or_insert_with(|| vec![Text::of(Part::Of(shell::Source::HostName))]);
    }

    /// Expands `$(NAME)`, as the kubelet does. Names without a definition stay as written.
    fn expanded(&self, written: &str) -> Text {
        let mut text = Text::default();
        if written.contains("{{") {
            return Text::unknown(written, false);
        }
        for piece in references(written) {
            match piece {
                Piece::Text(known) => text.push(Part::Known(known.into())),
                Piece::Reference(name) => match self.variable(name) {
                    Some(value) => text.extend(value.clone()),
                    None if self.open => text.extend(Text::unknown(format!("$({name})"), false)),
                    None => text.push(Part::Unset(name.to_owned())),
                },
            }
        }
        text
    }

    fn read_command(&mut self, pods: &Pods, objects: &[Object], choice: usize) {
        let file = |path: &str| self.file(pods, objects, path);
        let shell_at = self.argv.iter().take(12).position(|word| is_shell(word) && !word.is_empty());
        let shell_at = shell_at.filter(|_| !launches::is_handed_a_shell(&self.argv));
        let expand = |word: &String| match self.unexpanded(word) {
            // What a program makes of a word that is left as it is, is not known.
            Some(_) => Text::unknown(word, false),
            None => self.expanded(word),
        };
        let (before, inner) = self.argv.split_at(shell_at.unwrap_or_default());
        let before: Vec<Text> = before.iter().map(expand).collect();
        let words: Vec<Text> = match shell_at {
            Some(_) => inner.iter().map(|word| Text::known(self.for_shell(word))).collect(),
            None => inner.iter().map(expand).collect(),
        };
        let (variables, open, here) = (self.variables.clone(), self.open, &pods.here());
        let surroundings = Surroundings { variables, open, file: &file, here, choice };
        let mut reading = launches::started(&words, false, &[], surroundings);
        if !before.is_empty() {
            // The part before the shell counts as a separate command: `rallypoint run --`, `numactl`, …
            let variables = Rc::new(self.variables.clone());
            let command = Command { words: before, variables, open, ..Command::default() };
            reading.commands.insert(0, command);
        }
        (self.commands, self.unread) = (reading.commands, reading.unread);
        (self.ways, self.is_by_pod) = (reading.ways, reading.is_by_pod);
    }

    /// The variable in a word of its command that is written for a shell, which does not read it.
    pub(crate) fn unexpanded<'w>(&self, word: &'w str) -> Option<&'w str> {
        dollar(word).filter(|_| self.is_exec())
    }

    /// A script as the shell gets it: the kubelet expands `$(NAME)` if the variable exists, and leaves the
    /// rest.
    fn for_shell(&self, script: &str) -> String {
        // A name in capital letters is not a command, but a variable without a definition.
        let is_capital = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_';
        let made = |piece: Piece<'_>| match piece {
            Piece::Text(text) => text.to_owned(),
            Piece::Reference(name) if self.variables.contains_key(name) || name.bytes().all(is_capital) => {
                format!("${{{name}}}")
            }
            Piece::Reference(name) => format!("$({name})"),
        };
        references(script).into_iter().map(made).collect()
    }

    /// The text of a file in this container, if a ConfigMap of these files holds it.
    pub(crate) fn file(&self, pods: &Pods, objects: &[Object], path: &str) -> Option<String> {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        for mount in list(&self.value, "/volumeMounts") {
            let (volume, at, below) =
                (text(mount.get("name")), text(mount.get("mountPath")), text(mount.get("subPath")));
            let Some(inside) = path.strip_prefix(at.trim_end_matches('/')).filter(|_| !at.is_empty()) else {
                continue;
            };
            let inside = inside.trim_start_matches('/');
            let volumes = list(&pods.spec, "/volumes");
            let Some(volume) = volumes.iter().find(|item| text(item.get("name")) == volume) else { continue };
            let Some(map) = volume.pointer("/configMap/name").and_then(Value::as_str) else { continue };
            let Some(data) = config_map(objects, pods, map) else { continue };
            let wanted = if below.is_empty() { inside.to_owned() } else { below };
            let items = list(volume, "/configMap/items");
            let key = items
                .iter()
                .find(|item| text(item.get("path")) == wanted)
                .map_or_else(|| wanted.clone(), |item| text(item.get("key")));
            if let Some((_, content)) = data.into_iter().find(|(name, _)| *name == key) {
                return Some(content);
            }
        }
        // No mount tells the ConfigMap: take the only file with this name, also a script beside them.
        let name = shell::basename(path);
        let mut named = objects.iter().filter_map(|object| match object.kind.as_str() {
            "ConfigMap" if path.starts_with('/') => object.value.pointer("/data")?.get(name)?.as_str(),
            "Script" if object.name == name => object.script(),
            _ => None,
        });
        match (named.next(), named.next()) {
            (Some(content), None) => Some(content.to_owned()),
            _ => None,
        }
    }
}

/// A part of a text that the kubelet fills in.
enum Piece<'t> {
    Text(&'t str),
    /// `$(NAME)`.
    Reference(&'t str),
}

/// The parts of a text. `$$` stands for `$`.
fn references(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('$') {
        pieces.push(Piece::Text(before));
        let reference = behind.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        let (piece, after) = match (behind.strip_prefix('$'), reference.filter(|(name, _)| is_name(name))) {
            (Some(after), _) => (Piece::Text("$"), after),
            (_, Some((name, after))) => (Piece::Reference(name), after),
            _ => (Piece::Text("$"), behind),
        };
        pieces.push(piece);
        rest = after;
    }
    pieces.push(Piece::Text(rest));
    pieces
}

/// The words of Argo's `script`, whose `source` a shell reads.
fn source(value: &Value) -> Vec<String> {
    let program = value.pointer("/command/0").and_then(Value::as_str);
    match value.get("source").and_then(Value::as_str) {
        Some(text) if program.is_none_or(is_shell) => vec!["-c".into(), text.into()],
        _ => Vec::new(),
    }
}

/// The variable in a word that is written for a shell, such as `--rank=$RANK`.
fn dollar(word: &str) -> Option<&str> {
    let (_, rest) = word.split_once('$').filter(|_| !word.contains(char::is_whitespace))?;
    let name = rest.strip_prefix('{').unwrap_or(rest);
    let end = name.find(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit() && c != '_');
    let name = &name[..end.unwrap_or(name.len())];
    name.starts_with(|c: char| c.is_ascii_uppercase()).then_some(name).filter(|name| name.len() > 1)
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-' || b == b'.')
        && !name.bytes().all(|b| b.is_ascii_digit())
}

fn config_map(objects: &[Object], pods: &Pods, name: &str) -> Option<Vec<(String, String)>> {
    let map = objects.iter().find(|object| {
        object.kind == "ConfigMap"
            && object.name == name
            && object.shares_namespace(pods.namespace.as_deref())
    })?;
    Some(super::objects::texts(map.value.pointer("/data")).into_iter().collect())
}

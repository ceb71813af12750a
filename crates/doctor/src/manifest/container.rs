//! A parsed container: its variables, its commands, its launches.

use std::collections::BTreeSet;
use std::rc::Rc;

use serde_json::Value;

use super::launch::Launch;
use super::objects::scalar;
use rallypoint_shell::{Command, Text, Variables, basename};

/// A container of a pod template.
#[derive(Debug, Clone, Default)]
pub(crate) struct Container {
    /// The field's path, such as `containers[0]`.
    pub(super) field: String,
    pub(super) value: Value,
    /// Its command and arguments, as written.
    pub(super) argv: Vec<String>,
    /// Its variables, including the ones that the maker injects.
    pub(super) variables: Variables,
    /// The names in its own `env`, in order.
    pub(super) own: Vec<String>,
    /// Whether other variables may be set that are not visible here.
    pub(super) open: bool,
    pub(super) commands: Vec<Command>,
    /// Every command of the script for a batch system that starts it.
    pub(super) script: Rc<[Command]>,
    /// The parts that could not be read.
    pub(super) unread: Vec<String>,
    pub(super) launches: Vec<Launch>,
    /// How many readings of its script there are.
    pub(super) ways: usize,
    /// Whether its script does something else in another pod.
    pub(super) is_by_pod: bool,
}

impl Container {
    /// The path of a field of this container.
    pub(crate) fn at(&self, field: &str) -> String {
        if self.field.is_empty() { field.to_owned() } else { format!("{}.{field}", self.field) }
    }

    /// Its commands, and those of the script that starts it.
    pub(crate) fn all_commands(&self) -> impl Iterator<Item = &Command> {
        self.commands.iter().chain(&*self.script)
    }

    /// Its scripts, as they are written.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &str> {
        let script = self.value.get("script").and_then(Value::as_str);
        self.argv.iter().map(String::as_str).chain(script)
    }

    /// The text that a shell in its command reads, if nothing of it could be read.
    pub(crate) fn script_of_command(&self) -> Option<&str> {
        let at = self.argv.iter().position(|word| word.starts_with('-') && word.ends_with('c'))?;
        let is_read = !self.unread.is_empty() && !self.is_exec();
        self.argv.get(at.checked_add(1)?).map(String::as_str).filter(|_| is_read)
    }

    /// Whether it launches a training: by torchrun or a similar launcher, or by torch's variables.
    pub(crate) fn trains(&self) -> bool {
        !self.serves() && !self.launches.is_empty()
    }

    /// Whether no shell reads its command.
    pub(crate) fn is_exec(&self) -> bool {
        !self.argv.is_empty() && !self.argv.iter().any(|word| rallypoint_shell::is_shell(word))
    }

    /// Variables of its `env` that refer to names without an earlier definition, each with that name.
    pub(crate) fn too_early(&self) -> impl Iterator<Item = (&str, &str)> {
        let own = self.own.iter().filter_map(|own| Some((own.as_str(), self.variable(own)?)));
        let names = own.flat_map(|(own, text)| text.unset().map(move |name| (own, name)));
        // A label has two words.
        names.filter(|(_, name)| !name.contains(' '))
    }

    /// `$(NAME)` in its command, without a definition, where no shell reads it.
    pub(crate) fn left_as_written(&self) -> BTreeSet<&str> {
        let is_written = |name: &&str| self.argv.iter().any(|word| word.contains(&format!("$({name})")));
        let words = self.commands.iter().filter(|_| self.is_exec()).flat_map(|command| &command.words);
        words.flat_map(Text::unset).filter(is_written).collect()
    }

    /// Whether it runs a rallypoint server.
    pub(crate) fn serves(&self) -> bool {
        self.rallypoint_command() == Some("serve")
    }

    /// Whether it runs a relay, which brings a server to the pod's loopback.
    pub(crate) fn relays(&self) -> bool {
        self.rallypoint_command() == Some("relay")
    }

    fn rallypoint_command(&self) -> Option<&str> {
        let image = self.value.get("image").and_then(Value::as_str).unwrap_or_default();
        let first = self.argv.first()?;
        if basename(first) == "rallypoint" {
            return self.argv.get(1).map(String::as_str);
        }
        // The image has its own entry point.
        let of_image = image.contains("rallypoint") && self.value.get("command").is_none();
        of_image.then_some(first.as_str())
    }

    /// Whether it is an init container that runs beside the others.
    pub(crate) fn is_sidecar(&self) -> bool {
        self.value.get("restartPolicy").and_then(Value::as_str) == Some("Always")
    }

    /// The host and the port that rallypoint's own commands use.
    pub(crate) fn rallypoint_endpoint(&self) -> Option<(Text, Text)> {
        let text = self.variable("RALLYPOINT_ENDPOINT")?;
        Some(text.split_once(':').unwrap_or_else(|| (text.clone(), Text::default())))
    }

    /// A variable of the container.
    pub(crate) fn variable(&self, name: &str) -> Option<&Text> {
        rallypoint_shell::text(&self.variables, name)
    }

    /// Whether it runs only small programs of a shell, such as `sleep` in busybox: it needs no PyTorch.
    pub(crate) fn only_waits(&self) -> bool {
        self.unread.is_empty() && !self.commands.is_empty() && self.commands.iter().all(Self::is_small)
    }

    /// Whether a command is a small program of a shell.
    pub(crate) fn is_small(command: &Command) -> bool {
        const SMALL: [&str; 16] = [
            "[", "cat", "command", "date", "echo", "exit", "false", "hostname", "nslookup", "printf", "set",
            "sleep", "test", "true", "type", "which",
        ];
        let program = command.words.first().and_then(Text::literal);
        program.is_some_and(|program| SMALL.contains(&basename(program)))
    }

    /// Whether anything hints at a training with PyTorch. A check without such a hint says nothing: the pods
    /// may be servers, or anything else. `by_kind`: the object's kind, or its runtime, is for PyTorch. Code
    /// that stands here hides nothing: it imports PyTorch, or it is no training.
    pub(crate) fn may_train(&self, by_kind: bool) -> bool {
        const LIBRARIES: [&str; 7] =
            ["torch", "accelerate", "deepspeed", "lightning", "megatron", "nemo", "transformers"];
        const NAMES: [&str; 7] = [".py", "train", "tune", "trl", "distribut", "ddp", "fsdp"];
        const VARIABLES: [&str; 5] = ["MASTER_ADDR", "PET_", "RANK", "TORCH", "WORLD_SIZE"];
        let has = |text: &str, parts: &[&str]| parts.iter().any(|part| text.contains(part));
        let is_named = |text: &str| has(text, &LIBRARIES) || has(text, &NAMES);
        let commands: Vec<Vec<String>> =
            (self.commands.iter().filter(|command| !Self::is_small(command))).map(Command::written).collect();
        let code: Vec<&String> = commands.iter().filter_map(|words| python_code(words)).collect();
        if !code.is_empty() && code.len() == commands.len() {
            return code.iter().any(|code| has(code, &LIBRARIES));
        }
        let image = self.value.get("image").and_then(Value::as_str).unwrap_or_default();
        by_kind
            || is_named(image)
            || self.own.iter().any(|name| has(name, &VARIABLES))
            || commands.iter().flatten().any(|word| is_named(word))
    }

    /// Whether it requests GPUs, and has forgotten how many.
    pub(crate) fn gpus_are_blank(&self) -> bool {
        let limits = self.value.pointer("/resources/limits").and_then(Value::as_object);
        limits.is_some_and(|limits| {
            limits.iter().any(|(name, count)| name.ends_with("/gpu") && count.is_null())
        })
    }

    /// The number of GPUs that it requests.
    pub(crate) fn gpus(&self) -> Option<u64> {
        ["limits", "requests"].into_iter().find_map(|kind| {
            let resources = self.value.pointer(&format!("/resources/{kind}")).and_then(Value::as_object)?;
            let (_, count) = resources.iter().find(|(name, _)| name.ends_with("/gpu"))?;
            scalar(count)?.parse().ok()
        })
    }
}

/// The code in `python -c CODE`.
fn python_code(words: &[String]) -> Option<&String> {
    let is_python = words.first().is_some_and(|program| basename(program).starts_with("python"));
    let at = words.iter().position(|word| word == "-c").filter(|_| is_python)?;
    words.get(at.saturating_add(1))
}

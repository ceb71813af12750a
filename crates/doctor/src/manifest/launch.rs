//! One call of a launcher in a container: which values it gets, and which it lacks.

use rallypoint_node::launch::{Backend, Environment, Torchrun};
use rallypoint_shell::{Command, Text};

/// The kind of launcher.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Tool {
    Torchrun,
    Accelerate,
    DeepSpeed,
    /// A program of Lightning's, which makes the processes of a node, or which srun starts that often.
    Lightning,
    /// Another program with flags for the nodes, their rank and the master: vLLM, SGLang, composer, …
    Other,
    /// A program that reads `MASTER_ADDR`, `RANK` and `WORLD_SIZE` itself.
    #[default]
    Program,
}

impl Tool {
    pub(crate) const ALL: &'static [Self] =
        &[Self::Torchrun, Self::Accelerate, Self::DeepSpeed, Self::Lightning, Self::Other, Self::Program];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Torchrun => "torchrun",
            Self::Accelerate => "accelerate launch",
            Self::DeepSpeed => "deepspeed",
            Self::Lightning => "Lightning",
            Self::Other | Self::Program => "the program",
        }
    }
}

/// A value of a launch, and the flag or variable that gives it.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    pub(crate) text: Text,
    pub(super) by: String,
}

/// One call of a launcher.
#[derive(Debug, Clone, Default)]
pub(crate) struct Launch {
    pub(super) tool: Tool,
    /// The command in the form of `check_command`.
    pub(super) torchrun: Option<Torchrun>,
    pub(super) backend: Backend,
    pub(super) nodes: Option<Told>,
    pub(super) processes: Option<Told>,
    pub(super) node_rank: Option<Told>,
    pub(crate) host: Option<Told>,
    pub(crate) port: Option<Told>,
    pub(super) run_id: Option<Told>,
    /// Whether another program sets all values: `rallypoint run`, or an `accelerate` configuration.
    pub(super) is_told_elsewhere: bool,
    /// Whether it reads a file with its configuration.
    pub(super) is_configured: bool,
    pub(super) by_rallypoint: bool,
    pub(super) local_addr: bool,
    /// Whether its flags are those of a program of which only its source says what they mean.
    pub(super) is_own: bool,
    pub(super) command: Command,
    /// Its index among the container's commands.
    pub(super) at: usize,
}

impl Launch {
    /// The number in a variable.
    pub(crate) fn number(&self, name: &str) -> Option<u32> {
        self.command.variable(name)?.literal()?.parse().ok()
    }

    /// Its variables, as far as they are known.
    pub(crate) fn environment(&self) -> Environment {
        let variables = self.command.environment().into_iter();
        let texts = variables.filter_map(|(name, items)| Some((name, items.into_iter().next()?)));
        texts.filter(|(_, text)| !text.is_empty()).map(|(name, text)| (name, text.to_string())).collect()
    }

    /// Every value on which the nodes must agree, or by which they differ.
    pub(crate) fn told(&self) -> impl Iterator<Item = (&'static str, &Told)> {
        [
            ("the number of nodes", &self.nodes),
            ("the number of processes", &self.processes),
            ("the node rank", &self.node_rank),
            ("the master's address", &self.host),
            ("the port", &self.port),
            ("the run's id", &self.run_id),
        ]
        .into_iter()
        .filter_map(|(what, told)| Some((what, told.as_ref()?)))
    }

    /// The port of the store, if that is known.
    pub(crate) fn known_port(&self) -> Option<&str> {
        match (&self.port, &self.backend) {
            (Some(told), _) => told.text.literal(),
            (None, Backend::C10d) => Some("29400"),
            (None, Backend::Static) if self.tool == Tool::Torchrun => Some("29500"),
            (None, _) => None,
        }
    }

    /// The most nodes that it expects, if that is known.
    pub(crate) fn most_nodes(&self) -> Option<u32> {
        let text = self.nodes.as_ref()?.text.literal()?;
        Some(rallypoint_protocol::ids::Nodes::parse(text)?.max)
    }

    /// Whether its number of nodes is one of processes, each of which something else starts.
    pub(crate) fn counts_processes(&self) -> bool {
        self.nodes.as_ref().is_some_and(|told| told.by.contains("world"))
    }

    /// Whether the nodes choose a leader, whose agent tells the workers its host's name.
    pub(crate) fn has_a_leader(&self) -> bool {
        match &self.backend {
            Backend::C10d => true,
            Backend::Other(name) => name.starts_with("etcd"),
            Backend::Static | Backend::Rallypoint => false,
        }
    }

    /// Whether each node must know its number.
    pub(crate) fn needs_rank(&self) -> bool {
        match self.tool {
            Tool::Torchrun | Tool::Accelerate | Tool::Other => self.backend == Backend::Static,
            Tool::Program => true,
            Tool::DeepSpeed => self.node_rank.is_some(),
            Tool::Lightning => false,
        }
    }
}

//! One call of a launcher in a container: which values it gets, and which it lacks.

use rallypoint_node::launch::{Backend, Called, Environment, Grammar, Role, Starts, Tool, Torchrun};
use rallypoint_shell::{Command, Text};

/// A value of a launch, and the flag or variable that gives it.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    pub(crate) text: Text,
    pub(super) by: String,
}

/// One call of a launcher.
#[derive(Debug, Clone, Default)]
pub(crate) struct Launch {
    pub(super) grammar: &'static Grammar,
    /// The call of its launcher.
    pub(super) called: Option<Called>,
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
    pub(crate) fn tool(&self) -> Tool {
        self.grammar.tool
    }

    /// The command in the form of `check_command`.
    pub(crate) fn torchrun(&self) -> Option<Torchrun> {
        Torchrun::of(self.called.clone()?)
    }

    /// What one call of it starts.
    pub(crate) fn starts(&self) -> Starts {
        match &self.called {
            _ if self.counts_processes() => Starts::One,
            Some(called) => called.starts(),
            None => self.grammar.starts,
        }
    }

    /// Whether deepspeed is told other nodes by a file, as far as its flags can be read. It passes over what
    /// is no plain file.
    pub(crate) fn has_hosts(&self) -> bool {
        let is_told = |it: &Called| it.has("hostfile") || it.has("H") || it.is_open;
        let is_none = self.command.words.iter().any(|word| word.to_string().ends_with("/dev/null"));
        self.called.as_ref().is_some_and(is_told) && !is_none
    }

    /// Whether it has no program, as a command that a broken line has cut short.
    pub(crate) fn starts_nothing(&self) -> bool {
        self.called.as_ref().is_some_and(|called| called.program().is_empty())
    }

    /// Its flag for the number of nodes.
    pub(crate) fn nodes_flag(&self) -> String {
        self.grammar.flag(Role::Nodes).unwrap_or_else(|| "--nnodes".into())
    }

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
            (None, Backend::Static) if self.tool() == Tool::Torchrun => Some("29500"),
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
        let is_read = self.grammar.role("world-size") == Some(Role::Nodes);
        is_read && self.nodes.as_ref().is_some_and(|told| told.by.contains("world"))
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
        let has_ranks = !self.grammar.names(Role::Rank).is_empty();
        match self.starts() {
            Starts::Node => has_ranks && self.backend == Backend::Static,
            Starts::All => self.node_rank.is_some(),
            Starts::One => true,
        }
    }
}

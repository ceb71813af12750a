//! Launchers that are not torchrun: their flags and variables, and the cases in which they would start each
//! node alone.

use super::script::{basename, scripts};
use super::{Called, Environment, LaunchEnv, Mode, PlanError, Tool};

/// The kind of a command that is not torchrun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Launcher {
    /// `accelerate launch`, which starts torchrun's agent with its own flags.
    Accelerate(Accelerate),
    /// `deepspeed`, which reaches other nodes by ssh. Without a list of hosts it starts only this node.
    DeepSpeed,
    /// A Python program: one process.
    Python,
    /// Any other command, such as a script that calls a launcher with the present variables.
    Other,
}

impl Launcher {
    /// Recognizes a command that is not torchrun.
    pub fn of(argv: &[String]) -> Self {
        if let Some(accelerate) = Accelerate::find(argv) {
            return Self::Accelerate(accelerate);
        }
        let is_python = argv.first().is_some_and(|word| basename(word).starts_with("python"));
        match Called::find(argv).map(|called| called.grammar.tool) {
            Some(Tool::DeepSpeed) => Self::DeepSpeed,
            _ if is_python => Self::Python,
            _ => Self::Other,
        }
    }

    /// How the command's processes meet. Refuses a command that would start one of several nodes alone.
    pub fn mode(&self, env: &Environment, launch: &LaunchEnv) -> Result<Mode, PlanError> {
        if launch.nodes.as_ref().is_none_or(|nodes| nodes.value.max == 1) {
            return Ok(Mode::Env);
        }
        match self {
            Self::Accelerate(accelerate) => accelerate.check(launch).map(|()| Mode::C10d),
            Self::DeepSpeed => Err(PlanError::DeepSpeed),
            Self::Python if launch.rank.is_none() && env.get("RANK").is_none() => Err(PlanError::NoRank),
            Self::Python | Self::Other => Ok(Mode::Env),
        }
    }
}

/// A call of `accelerate launch`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accelerate {
    called: Called,
    /// Whether its words are the command itself, and not a line of a shell script.
    is_argv: bool,
}

/// Without one of these flags it starts one process.
const KINDS: [&str; 6] =
    ["multi-gpu", "use-fsdp", "use-deepspeed", "use-megatron-lm", "tpu-cluster", "config-file"];

impl Accelerate {
    fn find(argv: &[String]) -> Option<Self> {
        let of_script = || {
            let found = scripts(argv).iter().find_map(|command| Self::parse(command))?;
            Some(Self { is_argv: false, ..found })
        };
        Self::parse(argv).or_else(of_script)
    }

    fn parse(argv: &[String]) -> Option<Self> {
        let called = Called::find(argv).filter(|called| called.grammar.tool == Tool::Accelerate)?;
        Some(Self { called, is_argv: true })
    }

    fn has(&self, name: &str) -> bool {
        self.called.has(name)
    }

    /// Checks whether flags can tell it which node this is.
    fn check(&self, launch: &LaunchEnv) -> Result<(), PlanError> {
        let needs = if self.has("cpu") {
            "--cpu starts one process on each node that knows nothing of the others; use torchrun, and \
             Accelerator(cpu=True)"
        } else if self.has("num-machines") {
            return Ok(());
        } else if !KINDS.iter().any(|kind| self.has(kind)) {
            "say what it starts: --multi_gpu, --use_fsdp, --use_deepspeed, or --config_file"
        } else if !self.is_argv {
            "it stands in a shell script, where it cannot be given its flags; write there --num_machines, \
             --machine_rank, --num_processes, --main_process_ip and --main_process_port, or use torchrun"
        } else if launch.node_rank.is_none()
            || launch.nodes.as_ref().is_none_or(|nodes| nodes.value.fixed().is_none())
        {
            "it needs a fixed number of nodes and the node rank; set --nodes and --node-rank"
        } else if all_processes(launch).is_none() && !self.has("num-processes") && !self.has("config-file") {
            "it needs the number of processes; set --nproc-per-node to a number"
        } else {
            return Ok(());
        };
        Err(PlanError::Accelerate(needs))
    }

    /// The command with its missing flags: the node's place, and a store that no node hosts.
    pub fn with_flags(&self, launch: &LaunchEnv, (host, port, conf): (&str, u16, &str)) -> Vec<String> {
        let nodes = launch.nodes.as_ref().and_then(|nodes| nodes.value.fixed());
        let rank = launch.node_rank.as_ref().map(|rank| rank.value);
        let number = |number: Option<u32>| number.map(|number| number.to_string());
        let multinode = self.has("use-deepspeed").then(|| "standard".to_owned());
        let flags = [
            ("num_machines", number(nodes)),
            ("machine_rank", number(rank)),
            ("num_processes", number(all_processes(launch))),
            ("main_process_ip", Some(host.to_owned())),
            ("main_process_port", Some(port.to_string())),
            ("rdzv_backend", Some("c10d".to_owned())),
            ("rdzv_conf", Some(conf.to_owned())),
            // DeepSpeed's other launchers reach the nodes by ssh.
            ("deepspeed_multinode_launcher", multinode),
        ];
        let lacks = flags.into_iter().filter(|(name, _)| !self.has(&name.replace('_', "-")));
        let lacks = lacks.filter_map(|(name, value)| Some(format!("--{name}={}", value?)));
        let mut argv = self.called.argv().to_vec();
        let at = self.called.caller().len().saturating_add(1);
        argv.splice(at..at, lacks);
        argv
    }

    /// Whether the command sets everything itself, or cannot be changed.
    pub fn stays(&self) -> bool {
        !self.is_argv || self.has("num-machines")
    }
}

/// The number of processes on all nodes. A node has one process if nothing tells the number.
fn all_processes(launch: &LaunchEnv) -> Option<u32> {
    let each = launch.nproc_per_node.as_ref().map_or(Some(1), |processes| processes.value.count())?;
    each.checked_mul(launch.nodes.as_ref()?.value.fixed()?)
}

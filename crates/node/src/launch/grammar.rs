//! The table of launchers: how each is called, what its flags mean, and what one call of it starts.
//!
//! Everything that reads a launcher's command line goes by it.

use super::script::{basename, is_python_file};

type Names = &'static [&'static str];

/// The kind of launcher.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tool {
    /// torchrun, or what has its flags.
    Torchrun,
    /// `accelerate launch`.
    Accelerate,
    /// DeepSpeed's launchers.
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
    /// All of them.
    pub const ALL: &'static [Self] =
        &[Self::Torchrun, Self::Accelerate, Self::DeepSpeed, Self::Lightning, Self::Other, Self::Program];
}

/// What one call of a launcher starts. It says how often it has to be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Starts {
    /// The processes of its own node: once on each.
    Node,
    /// The processes of all nodes: once.
    All,
    /// Itself alone: once for each process.
    One,
}

/// What a flag or a variable tells a launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The number of nodes.
    Nodes,
    /// The number of processes of a node.
    Processes,
    /// The number of processes of all nodes.
    World,
    /// The number of its own node.
    Rank,
    /// The host of the store.
    Host,
    /// The port of the store.
    Port,
    /// Host and port, also as a URL.
    Endpoint,
    /// The id of the run.
    RunId,
    /// The backend of the rendezvous.
    Backend,
}

/// A launcher. Names of flags have dashes, as `-` and `_` mean the same; those in capitals are variables.
#[derive(Debug, PartialEq, Eq)]
pub struct Grammar {
    /// Its kind.
    pub tool: Tool,
    /// Its name in messages.
    pub name: &'static str,
    /// The programs, with the words that belong to them. Names with a dot are modules of Python.
    called: Names,
    /// What a call of it starts.
    pub starts: Starts,
    roles: &'static [(Role, Names)],
    /// Other flags with a value, and those without, parted by blanks.
    values: &'static str,
    switches: &'static str,
    /// With one of these it starts the processes of its own node only.
    on_its_node: Names,
    /// Whether its flags may stand anywhere, and not only in front of a script.
    pub is_open: bool,
    /// Whether it takes the beginning of a flag for the flag.
    abbreviates: bool,
    /// Whether it refuses to start with a flag that it does not know.
    pub refuses: bool,
    /// Whether these are the flags of all its releases.
    pub is_complete: bool,
}

const NO_FLAGS: Grammar = Grammar {
    tool: Tool::Program,
    name: "the program",
    called: &[],
    starts: Starts::One,
    roles: &[
        (Role::Rank, &["RANK", "NODE_RANK"]),
        (Role::Host, &["MASTER_ADDR"]),
        (Role::Port, &["MASTER_PORT"]),
    ],
    values: "",
    switches: "",
    on_its_node: &[],
    is_open: true,
    abbreviates: false,
    refuses: false,
    is_complete: false,
};

/// A program that reads torch's variables.
pub static PROGRAM: Grammar = NO_FLAGS;

/// Releases 1.13 to 2.15.
const TORCHRUN: Grammar = Grammar {
    tool: Tool::Torchrun,
    name: "torchrun",
    called: &["torchrun", "torch.distributed.run", "torch.distributed.launch"],
    starts: Starts::Node,
    roles: &[
        (Role::Nodes, &["nnodes", "PET_NNODES"]),
        (Role::Processes, &["nproc-per-node", "PET_NPROC_PER_NODE"]),
        (Role::Rank, &["node-rank", "PET_NODE_RANK"]),
        (Role::Host, &["master-addr", "PET_MASTER_ADDR"]),
        (Role::Port, &["master-port", "PET_MASTER_PORT"]),
        (Role::Endpoint, &["rdzv-endpoint", "PET_RDZV_ENDPOINT"]),
        (Role::RunId, &["rdzv-id", "PET_RDZV_ID"]),
        (Role::Backend, &["rdzv-backend", "PET_RDZV_BACKEND"]),
    ],
    values: "rdzv-conf max-restarts monitor-interval start-method event-log-handler role log-dir \
        redirects tee log-line-prefix-template local-ranks-filter duplicate-stdout-filters \
        duplicate-stderr-filters local-addr logs-specs numa-binding signals-to-handle \
        shutdown-timeout print-completion r t",
    switches: "standalone module no-python run-path virtual-local-rank use-env help h m",
    is_open: false,
    abbreviates: true,
    refuses: true,
    is_complete: true,
    ..NO_FLAGS
};

/// What has torchrun's flags, and some more, and an operator that tells it the rest.
const BY_OPERATOR: Grammar = Grammar {
    tool: Tool::Other,
    roles: &[
        (Role::Nodes, &["nnodes", "PET_NNODES"]),
        (Role::Processes, &["nproc-per-node", "PET_NPROC_PER_NODE"]),
    ],
    refuses: false,
    is_complete: false,
    ..TORCHRUN
};

/// It counts the processes of all nodes. Its default configuration may say what no flag does.
const ACCELERATE: Grammar = Grammar {
    tool: Tool::Accelerate,
    name: "accelerate launch",
    called: &["accelerate launch", "accelerate-launch", "accelerate.commands.launch"],
    starts: Starts::Node,
    roles: &[
        (Role::Nodes, &["num-machines"]),
        (Role::World, &["num-processes"]),
        (Role::Rank, &["machine-rank"]),
        (Role::Host, &["main-process-ip"]),
        (Role::Port, &["main-process-port"]),
        (Role::Backend, &["rdzv-backend"]),
    ],
    values: "config-file mixed-precision num-cpu-threads-per-process dynamo-backend dynamo-mode gpu-ids t \
        tee log-dir role rdzv-conf max-restarts monitor-interval vm env main-training-function \
        deepspeed-config-file zero-stage offload-optimizer-device offload-param-device \
        offload-optimizer-nvme-path offload-param-nvme-path gradient-accumulation-steps \
        gradient-clipping zero3-init-flag zero3-save-16bit-model deepspeed-hostfile \
        deepspeed-exclusion-filter deepspeed-inclusion-filter deepspeed-multinode-launcher \
        deepspeed-moe-layer-cls-names fsdp-version fsdp-offload-params fsdp-min-num-params \
        fsdp-sharding-strategy fsdp-reshard-after-forward fsdp-auto-wrap-policy \
        fsdp-transformer-layer-cls-to-wrap fsdp-backward-prefetch fsdp-state-dict-type \
        fsdp-forward-prefetch fsdp-use-orig-params fsdp-cpu-ram-efficient-loading \
        fsdp-sync-module-states fsdp-activation-checkpointing megatron-lm-tp-degree \
        megatron-lm-pp-degree megatron-lm-num-micro-batches megatron-lm-sequence-parallelism \
        megatron-lm-recompute-activations megatron-lm-use-distributed-optimizer \
        megatron-lm-gradient-clipping fp8-backend mpirun-hostfile mpirun-ccl",
    switches: "cpu multi-gpu tpu ipex use-xpu use-deepspeed use-fsdp use-megatron-lm same-network module m \
        no-python enable-cpu-affinity dynamo-use-fullgraph dynamo-use-dynamic \
        dynamo-use-regional-compilation use-parallelism-config downcast-bf16 tpu-cluster \
        no-tpu-cluster tpu-use-sudo quiet q debug help h",
    is_open: false,
    refuses: true,
    ..NO_FLAGS
};

/// It reaches the other nodes of its hostfile by ssh, or starts only its own.
const DEEPSPEED: Grammar = Grammar {
    tool: Tool::DeepSpeed,
    name: "deepspeed",
    called: &["deepspeed", "deepspeed.launcher.runner"],
    starts: Starts::All,
    roles: &[
        (Role::Nodes, &["num-nodes"]),
        (Role::Processes, &["num-gpus", "num-accelerators"]),
        (Role::Rank, &["node-rank"]),
        (Role::Host, &["master-addr"]),
        (Role::Port, &["master-port"]),
    ],
    values: "hostfile H include i exclude e min-elastic-nodes max-elastic-nodes launcher launcher-args \
        enable-each-rank-log autotuning bind-core-list ssh-port venv-script log-level",
    switches: "module no-python no-local-rank no-ssh-check force-multi save-pid elastic-training \
        bind-cores-to-rank no-ssh quiet q help h",
    on_its_node: &["no-ssh"],
    is_open: false,
    abbreviates: true,
    refuses: true,
    is_complete: true,
};

/// vLLM's own way to several nodes, without Ray.
const VLLM: Grammar = Grammar {
    tool: Tool::Other,
    name: "vLLM",
    called: &["vllm serve", "vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server"],
    starts: Starts::Node,
    roles: &[
        (Role::Nodes, &["nnodes", "n"]),
        (Role::Rank, &["node-rank", "r"]),
        (Role::Host, &["master-addr"]),
        (Role::Port, &["master-port"]),
    ],
    ..NO_FLAGS
};

/// What starts torchrun with the values of these variables, and has no flags for them. With an id of the run
/// the nodes meet by c10d.
const BY_VARIABLES: Grammar = Grammar {
    tool: Tool::Other,
    name: "llamafactory-cli",
    called: &["llamafactory-cli train", "lmf train"],
    starts: Starts::Node,
    roles: &[
        (Role::Nodes, &["NNODES"]),
        (Role::Processes, &["NPROC_PER_NODE"]),
        (Role::Rank, &["NODE_RANK"]),
        (Role::Host, &["MASTER_ADDR"]),
        (Role::Port, &["MASTER_PORT"]),
        (Role::RunId, &["RDZV_ID"]),
    ],
    ..NO_FLAGS
};

#[rustfmt::skip]
const ENDPOINTS: Names = &[
    "master-addr", "master-ip", "master-host", "dist-init-addr", "dist-url", "init-method", "main-address",
    "rdzv-endpoint",
];

/// Any program with flags of these names.
const OTHER: Grammar = Grammar {
    tool: Tool::Other,
    called: &[],
    starts: Starts::Node,
    roles: &[
        (Role::Nodes, &["nnodes", "num-nodes", "num-machines", "world-size"]),
        (Role::Rank, &["node-rank", "machine-rank", "rank"]),
        (Role::Endpoint, ENDPOINTS),
        (Role::Port, &["master-port", "main-port"]),
        (Role::Backend, &["rdzv-backend"]),
    ],
    ..NO_FLAGS
};

/// In the order in which they are looked for.
pub static GRAMMARS: [Grammar; 16] = [
    TORCHRUN,
    // The program of nvidia-resiliency-ext has torchrun's flags, and some more.
    Grammar {
        called: &["ft_launcher", "nvidia_resiliency_ext.fault_tolerance.launcher"],
        refuses: false,
        is_complete: false,
        ..TORCHRUN
    },
    // Their operators tell the nodes their ranks and where they meet.
    Grammar { name: "hyperpodrun", called: &["hyperpodrun"], ..BY_OPERATOR },
    Grammar {
        name: "dlrover-run",
        called: &["dlrover-run", "dlrover.trainer.torch.elastic_run"],
        ..BY_OPERATOR
    },
    // torchtune's, which has torchrun's flags in front of its recipe.
    Grammar { name: "tune run", called: &["tune run"], refuses: false, is_complete: false, ..TORCHRUN },
    ACCELERATE,
    DEEPSPEED,
    // What the other one starts on each node.
    Grammar { called: &["deepspeed.launcher.launch"], starts: Starts::Node, refuses: false, ..DEEPSPEED },
    Grammar {
        tool: Tool::Other,
        name: "composer",
        called: &["composer", "composer.cli.launcher"],
        starts: Starts::Node,
        roles: &[
            (Role::Processes, &["nproc", "n", "LOCAL_WORLD_SIZE"]),
            (Role::World, &["world-size", "WORLD_SIZE"]),
            (Role::Rank, &["node-rank", "base-rank", "NODE_RANK", "BASE_RANK"]),
            (Role::Host, &["master-addr", "MASTER_ADDR"]),
            (Role::Port, &["master-port", "MASTER_PORT"]),
        ],
        values: "stdout stderr",
        switches: "verbose v module-mode m command-mode c version help h",
        is_open: false,
        abbreviates: true,
        refuses: true,
        ..NO_FLAGS
    },
    // Flags that it does not know it hands to the script.
    Grammar {
        tool: Tool::Other,
        name: "fabric run",
        called: &["fabric run", "lightning run model", "lightning run"],
        starts: Starts::Node,
        roles: &[
            (Role::Nodes, &["num-nodes"]),
            (Role::Processes, &["devices"]),
            (Role::Rank, &["node-rank"]),
            (Role::Host, &["main-address"]),
            (Role::Port, &["main-port"]),
        ],
        values: "accelerator strategy precision",
        is_open: false,
        ..NO_FLAGS
    },
    Grammar {
        tool: Tool::Other,
        name: "colossalai run",
        called: &["colossalai run"],
        starts: Starts::All,
        roles: &[
            (Role::Nodes, &["num-nodes"]),
            (Role::Processes, &["nproc-per-node"]),
            (Role::Host, &["master-addr"]),
            (Role::Port, &["master-port"]),
        ],
        values: "host H hostfile include exclude extra-launch-args ssh-port",
        switches: "m",
        is_open: false,
        ..NO_FLAGS
    },
    VLLM,
    // It shares out its parts of each tensor among the nodes, and is one node if nothing says more.
    Grammar {
        name: "SGLang",
        called: &["sglang.launch_server", "sglang serve", "sglang"],
        roles: &[
            (Role::Nodes, &["nnodes"]),
            (Role::World, &["tp", "tp-size", "tensor-parallel-size"]),
            (Role::Rank, &["node-rank"]),
            (Role::Endpoint, &["dist-init-addr", "nccl-init-addr"]),
        ],
        ..VLLM
    },
    BY_VARIABLES,
    // It hands on only what is set, and torchrun has the rest from its own variables.
    Grammar {
        name: "swift",
        called: &["swift sft", "swift pt", "swift rlhf", "megatron sft"],
        roles: &[
            (Role::Nodes, &["NNODES", "PET_NNODES"]),
            (Role::Processes, &["NPROC_PER_NODE", "PET_NPROC_PER_NODE"]),
            (Role::Rank, &["NODE_RANK", "PET_NODE_RANK"]),
            (Role::Host, &["MASTER_ADDR", "PET_MASTER_ADDR"]),
            (Role::Port, &["MASTER_PORT", "PET_MASTER_PORT"]),
        ],
        ..BY_VARIABLES
    },
    // Each part of a Ray cluster is started once on its node.
    Grammar {
        tool: Tool::Other,
        name: "ray start",
        called: &["ray start"],
        starts: Starts::Node,
        ..NO_FLAGS
    },
];

/// Launchers that are known by their flags.
pub static BY_FLAGS: [Grammar; 2] = [
    OTHER,
    Grammar {
        tool: Tool::Lightning,
        name: "Lightning",
        starts: Starts::Node,
        roles: &[
            (Role::Nodes, &["num-nodes", "trainer.num-nodes"]),
            (Role::Processes, &["devices", "trainer.devices"]),
        ],
        ..NO_FLAGS
    },
];

impl Default for &'static Grammar {
    fn default() -> Self {
        &PROGRAM
    }
}

impl Grammar {
    /// The names of the flags and variables for something.
    pub fn names(&self, role: Role) -> Names {
        self.roles.iter().find(|(own, _)| *own == role).map_or(&[], |(_, names)| names)
    }

    /// Its flag for something, as people write it, or its variable.
    pub fn flag(&self, role: Role) -> Option<String> {
        let mut flags = self.names(role).iter().filter(|name| !is_variable(name));
        let variable = || self.names(role).first().map(|name| (*name).to_owned());
        flags.next().map(|name| self.spelled(name)).or_else(variable)
    }

    /// Whether it is no launcher that is known, but any program.
    pub fn is_any(&self) -> bool {
        self.name == PROGRAM.name
    }

    /// Whether it is the launcher that this program calls.
    pub fn is(&self, program: &str) -> bool {
        self.called.contains(&program)
    }

    /// A flag as people write it.
    pub fn spelled(&self, name: &str) -> String {
        let is_dashed = matches!(self.tool, Tool::Torchrun | Tool::Other);
        format!("--{}", if is_dashed { name.to_owned() } else { name.replace('-', "_") })
    }

    /// What a flag of this name means.
    pub fn role(&self, name: &str) -> Option<Role> {
        self.roles.iter().find(|(_, names)| names.contains(&name)).map(|(role, _)| *role)
    }

    fn with_value(&self) -> impl Iterator<Item = &'static str> {
        let of_roles = self.roles.iter().flat_map(|(_, names)| *names).copied();
        of_roles.filter(|name| !is_variable(name)).chain(self.values.split_whitespace())
    }

    /// All flags.
    pub fn flags(&self) -> impl Iterator<Item = &'static str> {
        self.with_value().chain(self.switches.split_whitespace())
    }

    /// Whether a word starts a call of a launcher, or Python.
    pub fn is_program(word: &str) -> bool {
        let name = basename(word);
        let is_it = |called: &&str| called.split(' ').next() == Some(name);
        name.starts_with("python") || GRAMMARS.iter().flat_map(|it| it.called).any(is_it)
    }

    /// The flag that a word means to its parser.
    fn meant(&self, word: &str) -> Option<&'static str> {
        let plain = word.trim_start_matches('-');
        let name = plain.split('=').next()?.replace('_', "-");
        let exact = self.flags().find(|known| known.len() > 1 && *known == name);
        // With one dash it is refused; it is read as what it is meant for.
        if exact.is_some() || !word.starts_with("--") {
            return exact
                .or_else(|| self.flags().filter(|known| known.len() == 1).find(|it| plain.starts_with(it)));
        }
        if name.is_empty() {
            return None;
        }
        let mut begins = self.flags().filter(|known| known.len() > 1 && known.starts_with(&name));
        begins.next().filter(|_| self.abbreviates && begins.next().is_none())
    }
}

fn is_variable(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase()) && name.len() > 1
}

/// A call of a launcher, read as the launcher reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Called {
    /// The launcher.
    pub grammar: &'static Grammar,
    argv: Vec<String>,
    /// The index of the word before the first flag: `torchrun`, or the module's name.
    entry: usize,
    flags: Vec<Flag>,
    /// The index of the first word of the training program.
    program: usize,
    /// Whether a word among the flags may be any flags.
    pub is_open: bool,
}

/// A flag, or a word that looks like one and is none.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Flag {
    name: Option<&'static str>,
    value: Option<String>,
    /// The index of the word with the flag; `words` is the number of words that it takes.
    at: usize,
    words: usize,
}

impl Called {
    /// The launcher that a command calls, behind `env` and similar programs, too.
    pub fn find(argv: &[String]) -> Option<Self> {
        // What only names it.
        const NAMES: [&str; 8] =
            ["install", "uninstall", "which", "pkill", "pgrep", "killall", "grep", "activate"];
        const OF_FILES: [&str; 10] = ["cd", "cp", "ln", "mv", "rm", "rsync", "git", "mkdir", "module", "ml"];
        let names = |at: usize| {
            let before = &argv[..at];
            let are_files = before.first().is_some_and(|first| OF_FILES.contains(&basename(first)));
            are_files || before.iter().any(|word| NAMES.contains(&basename(word)) || is_python_file(word))
        };
        (0..argv.len()).find_map(|at| {
            let (grammar, words) = GRAMMARS.iter().find_map(|it| Some((it, it.call_at(argv, at)?)))?;
            (!names(at)).then(|| Self::parse(argv, grammar, at.saturating_add(words).saturating_sub(1)))
        })
    }

    /// Reads the flags behind a word of a command, or all of it.
    #[expect(clippy::arithmetic_side_effects, reason = "positions in a list of words")]
    pub fn parse(argv: &[String], grammar: &'static Grammar, entry: usize) -> Self {
        let mut flags = Vec::new();
        let mut is_open = false;
        let mut at = if grammar.called.is_empty() { 0 } else { entry + 1 };
        while let Some(word) = argv.get(at) {
            if !word.starts_with('-') || word.len() < 2 {
                if !grammar.is_open {
                    if !word.starts_with('$') || !grammar.goes_on(&argv[at..]) {
                        break;
                    }
                    is_open = true;
                }
                at += 1;
                continue;
            }
            if word == "--" {
                at += 1;
                continue;
            }
            let name = grammar.meant(word);
            let inline = match word.strip_prefix("--") {
                Some(long) => long.split_once('=').map(|(_, value)| value.to_owned()),
                None if name.is_some_and(|name| name.len() > 1) => {
                    word.split_once('=').map(|(_, it)| it.to_owned())
                }
                None => Some(word.chars().skip(2).collect::<String>()).filter(|value| !value.is_empty()),
            };
            let next = argv.get(at + 1);
            // An unknown flag is from another release, or a mistake that the launcher will report.
            let is_value = |next: &String| !next.starts_with('-') && !is_python_file(next);
            let takes_next = match name {
                Some(name) => inline.is_none() && grammar.with_value().any(|own| own == name),
                None => !grammar.is_open && !word.contains('=') && next.is_some_and(is_value),
            };
            let value = if takes_next { next.cloned() } else { inline };
            let words = if takes_next { 2 } else { 1 };
            flags.push(Flag { name, value, at, words });
            at += words;
        }
        let program = at.min(argv.len());
        Self { grammar, argv: argv.to_vec(), entry, flags, program, is_open }
    }

    fn find_flag(&self, name: &str) -> Option<&Flag> {
        self.flags.iter().rev().find(|flag| flag.name == Some(name))
    }

    /// The value of a flag, by its name with dashes. The last occurrence counts.
    pub fn flag(&self, name: &str) -> Option<&str> {
        self.find_flag(name)?.value.as_deref()
    }

    /// Where the value of a flag stands: its word, and whether that begins with the flag's name.
    pub fn place(&self, name: &str) -> Option<(usize, bool)> {
        let flag = self.find_flag(name)?;
        flag.value.as_ref()?;
        Some((flag.at.saturating_add(flag.words).saturating_sub(1), flag.words == 1))
    }

    /// The flag as it is written.
    pub fn written(&self, name: &str) -> Option<&str> {
        self.argv.get(self.find_flag(name)?.at)?.split('=').next()
    }

    /// Whether a flag is present, with or without a value.
    pub fn has(&self, name: &str) -> bool {
        self.find_flag(name).is_some()
    }

    /// The flags in their order, with their values.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, Option<&str>)> {
        self.flags.iter().filter_map(|flag| Some((flag.name?, flag.value.as_deref())))
    }

    /// The words before the program that look like flags, and are flags of no known release.
    pub fn unknown_flags(&self) -> impl Iterator<Item = &str> {
        self.flags.iter().filter(|flag| flag.name.is_none()).map(|flag| self.argv[flag.at].as_str())
    }

    /// What this call starts.
    pub fn starts(&self) -> Starts {
        let is_here = self.grammar.on_its_node.iter().any(|name| self.has(name));
        if is_here { Starts::Node } else { self.grammar.starts }
    }

    /// The words of the command.
    pub fn argv(&self) -> &[String] {
        &self.argv
    }

    /// The words before the launcher.
    pub fn caller(&self) -> &[String] {
        &self.argv[..self.entry]
    }

    /// The launcher's own words.
    pub fn own(&self) -> &[String] {
        &self.argv[self.entry..self.program]
    }

    /// The training program with its arguments.
    pub fn program(&self) -> &[String] {
        &self.argv[self.program..]
    }

    /// The command with a flag's value set in place, or the flag inserted in front of the others.
    pub fn with_flag(&self, name: &str, word: String) -> Vec<String> {
        let mut argv = self.argv.clone();
        let end = |flag: &Flag| flag.at.saturating_add(flag.words);
        match self.find_flag(name) {
            Some(flag) => drop(argv.splice(flag.at..end(flag), [word])),
            None => argv.insert(self.entry.saturating_add(1), word),
        }
        argv
    }
}

impl Grammar {
    /// How many words call it at this place.
    fn call_at(&self, argv: &[String], at: usize) -> Option<usize> {
        // Others of one letter are mostly switches: `sudo -E torchrun`.
        const SHORT: [&str; 7] = ["-b", "-f", "-n", "-o", "-p", "-s", "-w"];
        let before = at.checked_sub(1).and_then(|before| argv.get(before));
        // In `--launcher torchrun`, torchrun is the value of another program's flag.
        let is_value = before.is_some_and(|word| {
            word.starts_with("--") && word.len() > 2 && !word.contains('=') || SHORT.contains(&word.as_str())
        });
        let own = argv.get(at..)?;
        self.called.iter().find_map(|called| {
            let words: Vec<&str> = called.split(' ').collect();
            let (first, others) = words.split_first()?;
            let is_it = if first.contains('.') {
                own.first()? == first && before.is_some_and(|word| word == "-m")
            } else {
                basename(own.first()?) == *first && !is_value
            };
            (is_it && own.get(1..words.len())? == others).then_some(words.len())
        })
    }

    /// Whether flags of its own follow an unknown word.
    fn goes_on(&self, words: &[String]) -> bool {
        let mut own = words.iter().take_while(|word| !is_python_file(word));
        let name = |word: &String| Some(word.strip_prefix("--")?.split('=').next()?.replace('_', "-"));
        own.any(|word| name(word).is_some_and(|name| self.role(&name).is_some()))
    }
}

/// A program that starts another one on the nodes of a batch system, and its options.
#[derive(Debug)]
pub struct Starter {
    /// The program.
    pub name: &'static str,
    /// The options for the number of nodes.
    pub nodes: Names,
    /// The options for the number of all tasks.
    pub tasks: Names,
    /// The options for the number of tasks of a node.
    pub each: Names,
    /// Options without a value. `None`: what it starts is the first program behind it.
    pub switches: Option<Names>,
}

const MPI: Starter = Starter {
    name: "mpirun",
    nodes: &[],
    tasks: &["-np", "--np", "-n", "--n"],
    each: &["-ppn", "--ppn", "-npernode", "--npernode", "-N", "-perhost"],
    switches: None,
};

static STARTERS: [Starter; 12] = [
    Starter {
        name: "srun",
        nodes: &["--nodes", "-N"],
        tasks: &["--ntasks", "-n"],
        each: &["--ntasks-per-node", "--tasks-per-node"],
        #[rustfmt::skip]
        switches: Some(&[
            "--exclusive", "--label", "--unbuffered", "--overlap", "--pty", "--quiet", "--verbose",
            "--exact", "--kill-on-bad-exit", "--requeue", "--hold", "--multi-prog", "--overcommit",
            "--container-writable", "--contiguous", "--spread-job", "--use-min-nodes", "--preserve-env",
            "--disable-status", "--oversubscribe", "-l", "-u", "-v", "-vv", "-Q", "-O", "-s", "-k", "-K",
            "-H", "-X", "-Z", "-E",
        ]),
    },
    MPI,
    Starter { name: "mpiexec", ..MPI },
    Starter { name: "mpiexec.hydra", ..MPI },
    Starter { name: "orterun", ..MPI },
    Starter { name: "prterun", ..MPI },
    Starter { name: "aprun", ..MPI },
    Starter { name: "ibrun", each: &[], ..MPI },
    Starter { name: "horovodrun", tasks: &["-np", "--num-proc"], each: &[], ..MPI },
    // It counts sets of resources.
    Starter { name: "jsrun", tasks: &["-n", "--nrs"], each: &["-r", "--rs_per_host"], ..MPI },
    Starter { name: "blaunch", tasks: &[], each: &[], ..MPI },
    Starter { name: "pbsdsh", tasks: &[], each: &[], ..MPI },
];

impl Starter {
    /// The one that a word calls.
    pub fn of(word: &str) -> Option<&'static Self> {
        STARTERS.iter().find(|starter| starter.name == basename(word))
    }
}

//! The changes of `rallypoint run` to a command, so that it uses a rallypoint server: variables, flags, and a
//! note about each change. The rules per launch mode were tried with torch 2.15 (`docs/launch-modes.md`).

use std::time::Duration;

use super::{Backend, Environment, LaunchEnv, Launcher, RdzvConf, Torchrun, restarts_workers, variables};
use crate::endpoint::Endpoint;

/// How the processes of a command meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// torchrun with rallypoint's plugin: agents and workers use the server.
    Plugin,
    /// torchrun's c10d backend: agents use the server, and workers use a store of rank 0's agent.
    C10d,
    /// torchrun's static backend: agents and workers use the server.
    Static,
    /// Any program with `env://` or `tcp://`.
    Env,
}

impl Mode {
    /// The value of the flag `--mode`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plugin => "plugin",
            Self::C10d => "c10d",
            Self::Static => "static",
            Self::Env => "env",
        }
    }

    /// Chooses the mode. The user's choice comes first, then the command's flags, then the best possible
    /// mode.
    pub fn choose(
        asked: Option<Self>,
        argv: &[String],
        torchrun: Option<&Torchrun>,
        env: &Environment,
        launch: &LaunchEnv,
        plugin: bool,
    ) -> Result<Self, PlanError> {
        let Some(torchrun) = torchrun else {
            return match asked {
                None => Launcher::of(argv).mode(env, launch),
                Some(Self::Env) => Ok(Self::Env),
                Some(mode) => Err(PlanError::NotTorchrun(mode.name())),
            };
        };
        if torchrun.has("standalone") {
            return Err(PlanError::Standalone);
        }
        if torchrun.is_ft_launcher() {
            return Self::of_ft_launcher(asked, launch);
        }
        let of_flag = torchrun.backend();
        let said = match &of_flag {
            Some(backend) => Some(Self::of(backend)?),
            None => env.get("PET_RDZV_BACKEND").map(|name| Self::of(&Backend::parse(name))).transpose()?,
        };
        let mode = match (asked, said) {
            (Some(Self::Env), _) => return Ok(Self::Env),
            (Some(mode), Some(said)) if of_flag.is_some() && mode != said => {
                return Err(PlanError::FlagContradicts { asked: mode.name(), flag: said.name() });
            }
            (Some(mode), _) | (None, Some(mode)) => mode,
            (None, None) if plugin => Self::Plugin,
            (None, None) if Self::can_be_static(launch) => Self::Static,
            (None, None) => Self::C10d,
        };
        match mode {
            Self::Plugin if !plugin => Err(PlanError::NoPlugin),
            Self::Static if !Self::can_be_static(launch) => Err(PlanError::NotStatic),
            _ => Ok(mode),
        }
    }

    /// `ft_launcher` has a rendezvous of its own over a TCPStore. One of its nodes must lead it.
    fn of_ft_launcher(asked: Option<Self>, launch: &LaunchEnv) -> Result<Self, PlanError> {
        let is_alone = launch.nodes.as_ref().is_some_and(|nodes| nodes.value.max == 1);
        match asked {
            Some(Self::Env) => Ok(Self::Env),
            None | Some(Self::C10d) if launch.node_rank.is_some() || is_alone => Ok(Self::C10d),
            None | Some(Self::C10d) => Err(PlanError::NoLeader),
            Some(mode) => Err(PlanError::FtLauncher(mode.name())),
        }
    }

    fn of(backend: &Backend) -> Result<Self, PlanError> {
        match backend {
            Backend::Static => Ok(Self::Static),
            Backend::C10d => Ok(Self::C10d),
            Backend::Rallypoint => Ok(Self::Plugin),
            Backend::Other(name) => Err(PlanError::OtherBackend(name.clone())),
        }
    }

    fn can_be_static(launch: &LaunchEnv) -> bool {
        let fixed = launch.nodes.as_ref().and_then(|nodes| nodes.value.fixed());
        fixed.is_some_and(|nodes| nodes == 1 || launch.node_rank.is_some())
    }

    /// Whether the workers of this mode use the store itself, so that the run should have its own store.
    pub const fn wants_own_store(self) -> bool {
        matches!(self, Self::Static | Self::Env)
    }
}

/// Why a command cannot be launched in the requested way.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A mode of torchrun for another command.
    #[error("--mode {0} is for torchrun, and the command is not torchrun; use --mode env or auto")]
    NotTorchrun(&'static str),
    /// `--standalone`.
    #[error(
        "torchrun --standalone meets nobody; remove the flag, or start the command without rallypoint run"
    )]
    Standalone,
    /// torchrun obeys the flag in the command.
    #[error(
        "--mode {asked} contradicts the command's --rdzv-backend, which means {flag}; torchrun obeys its \
         flag, so remove it or say --mode {flag}"
    )]
    FlagContradicts {
        /// The requested mode.
        asked: &'static str,
        /// The mode that the flag means.
        flag: &'static str,
    },
    /// The Python package is missing.
    #[error(
        "the Python package `rallypoint` with its torchrun plugin is not installed for the command's \
         interpreter (it needs torch 2.6 or later); install it, or use --mode c10d or static"
    )]
    NoPlugin,
    /// The static mode lacks the number of nodes or the node rank.
    #[error(
        "the static mode needs a fixed number of nodes and the node rank; set --nodes and --node-rank, or \
         use --mode c10d"
    )]
    NotStatic,
    /// Another mode for `ft_launcher`.
    #[error(
        "--mode {0} is for torchrun, and ft_launcher has one rendezvous, its own; use --mode c10d or auto"
    )]
    FtLauncher(&'static str),
    /// `ft_launcher` without a node rank.
    #[error(
        "exactly one node must lead the rendezvous of ft_launcher (is_host=1), and nothing says which node \
         this is; set --node-rank"
    )]
    NoLeader,
    /// A backend that does not speak to a TCPStore.
    #[error(
        "--rdzv-backend={0} does not meet on rallypoint; remove it, or say --mode env to leave it as it is"
    )]
    OtherBackend(String),
    /// `accelerate launch` that would start this node alone.
    #[error("accelerate launch: {0}; --mode env leaves the command as it is")]
    Accelerate(&'static str),
    /// `deepspeed`, which starts the node alone, or all nodes by ssh.
    #[error(
        "the deepspeed launcher knows nothing of the other nodes here, so each would train alone; start \
         torchrun in its place, whose variables deepspeed.init_distributed() reads; --mode env leaves the \
         command as it is"
    )]
    DeepSpeed,
    /// A Python program without a rank, on one of several nodes.
    #[error(
        "the command is one Python process, and nothing gives it a rank among several nodes, so each may \
         train alone; start several processes of a node with torchrun, or say --nproc-per-node=1 and \
         --node-rank; --mode env starts it as it is"
    )]
    NoRank,
    /// There is no address.
    #[error("nothing says where the server is; set --endpoint (RALLYPOINT_ENDPOINT)")]
    NoEndpoint,
}

/// The addresses of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// The store of this run: its own store, or the main one.
    pub store: Endpoint,
    /// The admin port.
    pub admin: Endpoint,
}

/// The prepared command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The command.
    pub argv: Vec<String>,
    /// Variables to set, in addition to the present ones.
    pub set: Vec<(String, String)>,
    /// The changes, in words.
    pub notes: Vec<String>,
}

/// Makes every process a client, so that no process tries to host the store. This is harmless with a server
/// elsewhere, and needed beside a sidecar. torch expects exactly this text.
const CLIENTS_ONLY: (&str, &str) = ("TORCHELASTIC_USE_AGENT_STORE", "True");
/// torch before 2.6 also reads this in such a client. Without it, `init_process_group` fails there with a
/// `KeyError`.
const FIRST_ATTEMPT: (&str, &str) = ("TORCHELASTIC_RESTART_COUNT", "0");
/// Processes that save checkpoints for the ranks (`dcp.async_save` in processes) then meet in the job's
/// store. Otherwise, a process beside rank 0 hosts a store on a free port of its own host, and all processes
/// look for it at `MASTER_ADDR`, which is no rank's host here. torch before 2.10 does not read this variable.
pub(crate) const SAVE_BY_STORE: (&str, &str) = ("DCP_USE_PREFIX_STORE", "1");
/// With c10d, rank 0 of each round then hosts a new store. Otherwise, torch 2.5 and later keep the ranks in
/// the store of node 0's agent, where ranks after a restart read the stale addresses of their predecessors.
/// torch before 2.5 does not read this variable.
pub const NEW_STORE_EACH_ROUND: (&str, &str) = ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1");
/// The time-out of each call of torchrun's c10d backend, unless the user sets another one.
const READ_TIMEOUT: Duration = Duration::from_mins(5);

/// A command before its start, and the facts about its job.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// The command.
    pub argv: &'a [String],
    /// The torchrun in it, if it has one.
    pub torchrun: Option<&'a Torchrun>,
    /// The variables that it would get without a plan.
    pub env: &'a Environment,
    /// The values derived from these variables.
    pub launch: &'a LaunchEnv,
    /// The addresses of the server.
    pub server: &'a Server,
    /// How long a node waits for the others.
    pub patience: Duration,
}

impl Job<'_> {
    /// Prepares the command.
    pub fn plan(&self, mode: Mode) -> Plan {
        let mut draft = Draft {
            torchrun: self.torchrun.cloned(),
            plan: Plan { argv: self.argv.to_vec(), set: Vec::new(), notes: Vec::new() },
        };
        self.hand_on(mode, &mut draft);
        match mode {
            Mode::Plugin => self.with_plugin(&mut draft),
            Mode::C10d => self.with_c10d(&mut draft),
            Mode::Static => {
                draft.set("PET_RDZV_BACKEND", "static");
                self.as_clients(&mut draft);
                draft.set("PET_RDZV_ENDPOINT", self.server.store.to_string());
            }
            Mode::Env => self.as_clients(&mut draft),
        }
        if self.torchrun.is_none() {
            self.for_launcher(mode, &mut draft);
        }
        let Draft { torchrun, mut plan } = draft;
        if let Some(torchrun) = torchrun.filter(Torchrun::can_change) {
            plan.argv = torchrun.argv().to_vec();
        }
        plan
    }

    /// Adds flags and variables for launchers that are not torchrun.
    fn for_launcher(&self, mode: Mode, draft: &mut Draft) {
        let several = self.launch.nodes.as_ref().is_some_and(|nodes| nodes.value.max > 1);
        match Launcher::of(self.argv) {
            Launcher::Accelerate(accelerate) if mode == Mode::C10d && !accelerate.stays() => {
                // accelerate has no variables for these values, and its flags override torchrun's variables.
                let set = draft.plan.set.iter().rev().find(|(name, _)| name == "PET_RDZV_CONF");
                let conf = set.map(|(_, conf)| conf.as_str()).or_else(|| self.env.get("PET_RDZV_CONF"));
                let store = &self.server.store;
                let flags = (store.host(), store.port(), conf.unwrap_or_default());
                draft.plan.argv = accelerate.with_flags(self.launch, flags);
                draft.note("accelerate launch gets the flags that say who this node is");
            }
            _ if mode == Mode::Env => {
                // For Lightning, and for programs that start the processes of a node themselves.
                if let Some(rank) = &self.launch.node_rank {
                    draft.set("NODE_RANK", rank.value.to_string());
                }
                if several && self.launch.rank.is_none() && self.env.get("RANK").is_none() {
                    draft.note(
                        "the command gets no RANK, as a node has several processes or its rank is not known; \
                         what it starts must be torchrun, or read NODE_RANK",
                    );
                }
            }
            _ => {}
        }
    }

    /// Sets the derived values, except for the endpoint.
    fn hand_on(&self, mode: Mode, draft: &mut Draft) {
        for (name, value, _) in variables(self.launch) {
            let wanted = match name {
                "PET_RDZV_ENDPOINT" | "PET_MASTER_ADDR" | "PET_MASTER_PORT" | "MASTER_ADDR"
                | "MASTER_PORT" => false,
                // c10d orders the nodes itself, and warns about a rank.
                "PET_NODE_RANK" => mode != Mode::C10d,
                "RANK" | "WORLD_SIZE" | "LOCAL_RANK" => mode == Mode::Env && self.torchrun.is_none(),
                _ => true,
            };
            if wanted {
                draft.set(name, value);
            }
        }
    }

    /// Sets a variable, unless the user has set it.
    fn set_new(&self, draft: &mut Draft, (name, value): (&'static str, &'static str)) {
        if self.env.get(name).is_none() {
            draft.set(name, value);
        }
    }

    fn with_plugin(&self, draft: &mut Draft) {
        draft.set("PET_RDZV_BACKEND", "rallypoint");
        self.set_new(draft, SAVE_BY_STORE);
        draft.endpoint(&self.server.admin, "the plugin speaks to the admin port");
        draft.conf(self.env, |conf, _| {
            // The plugin itself reads `timeout` as join_timeout.
            let has = conf.get("join_timeout").is_some() || conf.get("timeout").is_some();
            if !has {
                conf.set("join_timeout", self.patience.as_secs().to_string());
            }
        });
    }

    fn with_c10d(&self, draft: &mut Draft) {
        draft.set("PET_RDZV_BACKEND", "c10d");
        draft.endpoint(&self.server.store, "the rallypoint server");
        let leads = self.leads();
        draft.conf(self.env, |conf, notes| c10d_conf(conf, notes, self.patience, leads));
        if leads {
            // It opens the port of the store too, which is taken where the server or a relay is on its host.
            draft.set("MASTER_PORT", self.server.store.port().to_string());
            draft.set(CLIENTS_ONLY.0, CLIENTS_ONLY.1);
        }
        let nodes = self.launch.nodes.as_ref().map(|nodes| nodes.value);
        // accelerate's number of restarts may be in its configuration file.
        if self.torchrun.is_none() || restarts_workers(self.torchrun, self.env, nodes) {
            self.set_new(draft, NEW_STORE_EACH_ROUND);
        }
        let has_local = self.torchrun.is_some_and(|torchrun| torchrun.has("local-addr"));
        if let (Some(ip), false) =
            (&self.launch.pod.address, has_local || self.env.get("PET_LOCAL_ADDR").is_some())
        {
            draft.set("PET_LOCAL_ADDR", ip);
            draft.note(format!(
                "PET_LOCAL_ADDR={ip}: torchrun gives the workers this instead of the host's name, which \
                 other pods may not resolve"
            ));
        }
    }

    /// Whether this node closes the rounds of `ft_launcher`: it hosts the store where no server is.
    fn leads(&self) -> bool {
        let is_first = self.launch.node_rank.as_ref().is_none_or(|rank| rank.value == 0);
        is_first && self.torchrun.is_some_and(Torchrun::is_ft_launcher)
    }

    /// Makes every process a client of the store.
    fn as_clients(&self, draft: &mut Draft) {
        let store = &self.server.store;
        for name in ["PET_MASTER_ADDR", "MASTER_ADDR"] {
            draft.set(name, store.host());
        }
        for name in ["PET_MASTER_PORT", "MASTER_PORT"] {
            draft.set(name, store.port().to_string());
        }
        draft.set(CLIENTS_ONLY.0, CLIENTS_ONLY.1);
        self.set_new(draft, SAVE_BY_STORE);
        // torchrun itself counts the attempts of its workers.
        if self.torchrun.is_none() {
            self.set_new(draft, FIRST_ATTEMPT);
        }
    }
}

/// Gives the c10d backend timers that fit a server which waits for slow pods.
fn c10d_conf(conf: &mut RdzvConf, notes: &mut Vec<String>, patience: Duration, leads: bool) {
    if let Some(timeout) = conf.remove("timeout") {
        if conf.get("join_timeout").is_none() {
            notes.push(format!(
                "the c10d backend ignores timeout={timeout}; join_timeout={timeout} is what was meant and is \
                 set"
            ));
            conf.set("join_timeout", timeout);
        } else {
            notes.push(format!(
                "the c10d backend ignores timeout={timeout}, so it is left out; join_timeout counts"
            ));
        }
    }
    if conf.get("join_timeout").is_none() {
        conf.set("join_timeout", patience.as_secs().to_string());
        notes.push(format!(
            "join_timeout={}, as long as --gather-timeout (torchrun's own is 600)",
            patience.as_secs()
        ));
    }
    if conf.get("read_timeout").is_none() {
        conf.set("read_timeout", READ_TIMEOUT.as_secs().to_string());
        notes.push(format!("read_timeout={} (torchrun's own is 60)", READ_TIMEOUT.as_secs()));
    }
    match conf.get("is_host") {
        _ if leads => conf.set("is_host", "1"),
        Some("0" | "false" | "f" | "no" | "n") => {}
        None => conf.set("is_host", "0"),
        Some(said) => {
            notes.push(format!(
                "is_host={said} is changed to is_host=0: the server is rallypoint, no node hosts it"
            ));
            conf.set("is_host", "0");
        }
    }
}

struct Draft {
    torchrun: Option<Torchrun>,
    plan: Plan,
}

impl Draft {
    fn set(&mut self, name: &str, value: impl Into<String>) {
        self.plan.set.push((name.to_owned(), value.into()));
    }

    fn note(&mut self, note: impl Into<String>) {
        self.plan.notes.push(note.into());
    }

    /// Changes a flag of the command, or notes that this is impossible.
    fn change(&mut self, name: &'static str, value: &str) {
        match &self.torchrun {
            Some(torchrun) if torchrun.can_change() => self.torchrun = Some(torchrun.with_flag(name, value)),
            _ => self.note(format!(
                "--{name} stands in a shell script, where it cannot be changed; write --{name}={value} there"
            )),
        }
    }

    fn endpoint(&mut self, endpoint: &Endpoint, why: &str) {
        let endpoint = endpoint.to_string();
        let said = self.torchrun.as_ref().and_then(|torchrun| torchrun.flag("rdzv-endpoint"));
        if let Some(said) = said.filter(|said| *said != endpoint).map(str::to_owned) {
            self.note(format!("--rdzv-endpoint={said} is changed to {endpoint}: {why}"));
            self.change("rdzv-endpoint", &endpoint);
        }
        self.set("PET_RDZV_ENDPOINT", endpoint);
    }

    /// Changes `--rdzv-conf` in the command, or the variable if the command has no such flag.
    fn conf(&mut self, env: &Environment, change: impl FnOnce(&mut RdzvConf, &mut Vec<String>)) {
        let in_command = self.torchrun.as_ref().and_then(Torchrun::conf);
        let old =
            in_command.clone().or_else(|| env.get("PET_RDZV_CONF").map(RdzvConf::parse)).unwrap_or_default();
        let (mut new, mut notes) = (old.clone(), Vec::new());
        change(&mut new, &mut notes);
        if new == old {
            return;
        }
        let text = new.to_string();
        for note in notes {
            self.note(format!("rdzv_conf: {note}"));
        }
        if in_command.is_some() {
            self.change("rdzv-conf", &text);
        }
        self.set("PET_RDZV_CONF", text);
    }
}

#[cfg(test)]
mod tests;

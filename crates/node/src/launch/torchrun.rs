//! The command line of torchrun, parsed as torchrun parses it (options of 2.15 and older), so that flags can
//! be read and changed without guessing.

use super::names::first_label;
use super::script::{basename, expanded, scripts};
use super::{Called, Environment, Tool};
use rallypoint_protocol::ids::Nodes;

/// A call of torchrun, or of `ft_launcher` of nvidia-resiliency-ext, which has its flags and some more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Torchrun {
    called: Called,
    /// Whether its words are the command itself, and not a line of a shell script.
    is_argv: bool,
}

impl std::ops::Deref for Torchrun {
    type Target = Called;

    fn deref(&self) -> &Called {
        &self.called
    }
}

/// The rendezvous backend in `--rdzv-backend`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Backend {
    /// torchrun's default.
    #[default]
    Static,
    /// The dynamic rendezvous over a TCPStore.
    C10d,
    /// rallypoint's plugin.
    Rallypoint,
    /// Another backend, such as etcd.
    Other(String),
}

impl Backend {
    /// Reads the flag's value.
    pub fn parse(text: &str) -> Self {
        match text.trim().to_ascii_lowercase().as_str() {
            "static" => Self::Static,
            "c10d" => Self::C10d,
            "rallypoint" => Self::Rallypoint,
            _ => Self::Other(text.trim().to_owned()),
        }
    }
}

/// Finds torchrun in a command: as its program, as `python -m torch.distributed.run`, behind `env` and
/// similar programs, or in a shell script that is an argument.
pub fn find_torchrun(argv: &[String]) -> Option<Torchrun> {
    find_torchrun_in(argv, &Environment::default())
}

/// Finds torchrun as it would start with these variables: in a shell script they have their values.
pub fn find_torchrun_in(argv: &[String], env: &Environment) -> Option<Torchrun> {
    let in_env = |command: &Vec<String>| command.iter().map(|word| expanded(word, env)).collect::<Vec<_>>();
    Torchrun::parse(argv).or_else(|| {
        let found = scripts(argv).iter().find_map(|command| Torchrun::parse(&in_env(command)))?;
        Some(Torchrun { is_argv: false, ..found })
    })
}

impl Torchrun {
    /// Parses a command; `None` if it is neither torchrun nor `ft_launcher`.
    pub fn parse(argv: &[String]) -> Option<Self> {
        Self::of(Called::find(argv)?)
    }

    /// A call that is one of torchrun.
    pub fn of(called: Called) -> Option<Self> {
        (called.grammar.tool == Tool::Torchrun).then_some(Self { called, is_argv: true })
    }

    /// The backend, if the command names one.
    pub fn backend(&self) -> Option<Backend> {
        self.flag("rdzv-backend").filter(|name| !name.contains('$')).map(Backend::parse)
    }

    /// `--rdzv-conf`, if the command has one.
    pub fn conf(&self) -> Option<RdzvConf> {
        self.flag("rdzv-conf").map(RdzvConf::parse)
    }

    /// Whether it is `ft_launcher`.
    pub fn is_ft_launcher(&self) -> bool {
        self.grammar.is("ft_launcher")
    }

    /// Whether its flags can be changed: not in a shell script.
    pub const fn can_change(&self) -> bool {
        self.is_argv
    }

    /// The interpreter that runs torchrun, if the command names it.
    pub fn interpreter(&self) -> Option<&str> {
        let first = self.argv().first()?;
        first_label(basename(first)).starts_with("python").then_some(first)
    }

    /// Sets a flag's value in place, or inserts the flag before the program.
    #[must_use]
    pub fn with_flag(&self, name: &'static str, value: &str) -> Self {
        let argv = self.called.with_flag(name, format!("--{name}={value}"));
        Self::parse(&argv).map_or_else(|| self.clone(), |parsed| Self { is_argv: self.is_argv, ..parsed })
    }
}

/// Whether agents of the c10d backend may restart their workers: after a failure (`--max-restarts`), or
/// because a node comes or goes. `nodes` is the number of nodes of the job, if it is known. An unreadable
/// number may be any number.
pub fn restarts_workers(torchrun: Option<&Torchrun>, env: &Environment, nodes: Option<Nodes>) -> bool {
    let told = |flag, variable| torchrun.and_then(|it| it.flag(flag)).or_else(|| env.get(variable));
    let nodes = nodes.or_else(|| Nodes::parse(told("nnodes", "PET_NNODES")?));
    told("max-restarts", "PET_MAX_RESTARTS").is_some_and(|most| most.trim().parse() != Ok(0_u32))
        || nodes.is_some_and(|nodes| nodes.fixed().is_none())
}

/// `--rdzv-conf`: keys and values, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RdzvConf(Vec<(String, String)>);

/// The keys that the c10d backend and its dynamic handler read (torch 2.15). They silently ignore any other
/// key.
const C10D_KEYS: [&str; 10] = [
    "join_timeout",
    "last_call_timeout",
    "close_timeout",
    "heartbeat_timeout",
    "keep_alive_interval",
    "keep_alive_max_attempt",
    "cas_backoff_max_seconds",
    "is_host",
    "read_timeout",
    "store_type",
];
/// The keys that the static backend reads. The launcher itself sets `rank`.
const STATIC_KEYS: [&str; 2] = ["timeout", "rank"];

impl RdzvConf {
    /// Parses `KEY=VALUE,KEY=VALUE`.
    pub fn parse(text: &str) -> Self {
        let pair = |pair: &str| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (key.trim().to_owned(), value.trim().to_owned())
        };
        Self(text.split(',').filter(|part| !part.trim().is_empty()).map(pair).collect())
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().rev().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    /// Sets a key in place, or appends it.
    pub fn set(&mut self, key: &str, value: impl Into<String>) {
        let value = value.into();
        match self.0.iter_mut().rev().find(|(known, _)| known == key) {
            Some((_, old)) => *old = value,
            None => self.0.push((key.to_owned(), value)),
        }
    }

    /// Removes a key and returns its value.
    pub fn remove(&mut self, key: &str) -> Option<String> {
        let value = self.get(key).map(str::to_owned)?;
        self.0.retain(|(known, _)| known != key);
        Some(value)
    }

    /// The keys that a backend ignores.
    pub fn ignored_by(&self, backend: &Backend) -> Vec<&str> {
        let known: &[&str] = match backend {
            Backend::C10d => &C10D_KEYS,
            Backend::Static => &STATIC_KEYS,
            // The plugin accepts the keys of both and refuses others. Keys of etcd belong to etcd.
            Backend::Rallypoint | Backend::Other(_) => return Vec::new(),
        };
        self.0.iter().map(|(key, _)| key.as_str()).filter(|key| !known.contains(key)).collect()
    }
}

impl std::fmt::Display for RdzvConf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (n, (key, value)) in self.0.iter().enumerate() {
            write!(f, "{}{key}={value}", if n == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        shlex::split(text).expect("words")
    }

    #[test]
    fn torchrun_is_read_as_it_reads_itself() {
        let command = words(
            "torchrun --nnodes=4 --nproc_per_node 8 --rdzv_back c10d --rdzv-id job -r 3 --no-python \
             --rdzv_conf timeout=1800,read_timeout=120 train.py --nnodes 9 --config x",
        );
        let torchrun = Torchrun::parse(&command).expect("torchrun");
        assert_eq!(torchrun.flag("nnodes"), Some("4"), "the program's flags are not torchrun's");
        assert_eq!(torchrun.flag("nproc-per-node"), Some("8"));
        assert_eq!(torchrun.backend(), Some(Backend::C10d), "by an unambiguous beginning");
        assert_eq!(torchrun.flag("r"), Some("3"));
        assert!(torchrun.has("no-python") && !torchrun.has("standalone"));
        assert_eq!(torchrun.program(), words("train.py --nnodes 9 --config x"));
        let conf = torchrun.conf().expect("a conf");
        assert_eq!(conf.ignored_by(&Backend::C10d), ["timeout"]);
        assert_eq!(conf.ignored_by(&Backend::Static), ["read_timeout"]);
    }

    #[test]
    fn torchrun_is_found_in_what_calls_it() {
        for command in [
            "torchrun t.py",
            "/opt/bin/torchrun t.py",
            "python -u -m torch.distributed.run t.py",
            "python3.11 -m torch.distributed.launch t.py",
            "env A=1 torchrun t.py",
            "numactl -N 0 torchrun t.py",
            "rallypoint run --nodes=2 -- torchrun t.py",
            "ft_launcher --ft-ignore-missing-cfg --ft-cfg-path f.yaml --term-timeout=9 --nnodes 2 t.py",
            "python -m nvidia_resiliency_ext.fault_tolerance.launcher t.py",
        ] {
            assert_eq!(find_torchrun(&words(command)).expect(command).program(), ["t.py"], "{command}");
        }
        let script = [
            "bash",
            "-ec",
            "# start\nsleep 5 && exec torchrun --nnodes=$N \\\n  --rdzv-id x t.py; echo done",
        ];
        let found = find_torchrun(&script.map(str::to_owned)).expect("in the script");
        assert_eq!((found.flag("rdzv-id"), found.program()), (Some("x"), &["t.py".to_owned()][..]));
        assert!(!found.can_change());
        for other in
            ["python train.py", "deepspeed --launcher torchrun x", "bash start.sh", "python -m torch.utils"]
        {
            assert_eq!(find_torchrun(&words(other)), None, "{other}");
        }
    }

    #[test]
    fn a_flag_is_changed_where_it_stands_or_added_before_the_program() {
        let torchrun =
            Torchrun::parse(&words("torchrun --rdzv_conf a=1 --nnodes=2 t.py -x")).expect("torchrun");
        let changed = torchrun.with_flag("rdzv-conf", "b=2");
        assert_eq!(changed.argv(), words("torchrun --rdzv-conf=b=2 --nnodes=2 t.py -x"));
        let added = changed.with_flag("rdzv-id", "job");
        assert_eq!(added.argv(), words("torchrun --rdzv-id=job --rdzv-conf=b=2 --nnodes=2 t.py -x"));
    }

    #[test]
    fn a_conf_keeps_its_order() {
        let mut conf = RdzvConf::parse("timeout=1800, read_timeout=120");
        assert_eq!(conf.remove("timeout").as_deref(), Some("1800"));
        conf.set("join_timeout", "1800");
        conf.set("read_timeout", "300");
        assert_eq!(conf.to_string(), "read_timeout=300,join_timeout=1800");
        assert_eq!(RdzvConf::parse("").to_string(), "");
    }
}

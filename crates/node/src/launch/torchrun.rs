//! The command line of torchrun, parsed as torchrun parses it (options of 2.15 and older), so that flags can
//! be read and changed without guessing.

use super::Environment;
use super::names::first_label;
use super::script::{basename, expanded, scripts};
use rallypoint_protocol::ids::Nodes;

/// Flags with a value. Torchrun treats `-` and `_` as equal, and accepts each long flag by any unambiguous
/// prefix.
const WITH_VALUE: [&str; 29] = [
    "nnodes",
    "nproc-per-node",
    "rdzv-backend",
    "rdzv-endpoint",
    "rdzv-id",
    "rdzv-conf",
    "max-restarts",
    "monitor-interval",
    "start-method",
    "event-log-handler",
    "role",
    "log-dir",
    "redirects",
    "tee",
    "log-line-prefix-template",
    "local-ranks-filter",
    "duplicate-stdout-filters",
    "duplicate-stderr-filters",
    "node-rank",
    "master-addr",
    "master-port",
    "local-addr",
    "logs-specs",
    "numa-binding",
    "signals-to-handle",
    "shutdown-timeout",
    "print-completion",
    "r",
    "t",
];
const WITHOUT_VALUE: [&str; 9] =
    ["standalone", "module", "no-python", "run-path", "virtual-local-rank", "use-env", "help", "h", "m"];

/// The program of nvidia-resiliency-ext, and its module.
const FT_LAUNCHER: &str = "ft_launcher";
const FT_MODULE: &str = "nvidia_resiliency_ext.fault_tolerance.launcher";
const MODULES: [&str; 3] = ["torch.distributed.run", "torch.distributed.launch", FT_MODULE];

/// Whether any known release of torchrun has this flag. `name` has no leading dashes.
pub fn is_flag_of_torchrun(name: &str) -> bool {
    WITH_VALUE.contains(&name) || WITHOUT_VALUE.contains(&name)
}

/// A call of torchrun, or of `ft_launcher` of nvidia-resiliency-ext, which has its flags and some more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Torchrun {
    argv: Vec<String>,
    is_ft: bool,
    /// The index of the word before the first flag: `torchrun`, or the module's name.
    entry: usize,
    flags: Vec<Flag>,
    /// The index of the first word of the training program.
    program: usize,
    /// Whether `argv` is the command itself, and not a line of a shell script.
    is_argv: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Flag {
    name: &'static str,
    value: Option<String>,
    /// The index of the word with the flag; `words` is the number of words that it takes.
    at: usize,
    words: usize,
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

/// The flag that a word means to torchrun's parser.
fn flag_name(word: &str) -> Option<&'static str> {
    let known = || WITH_VALUE.into_iter().chain(WITHOUT_VALUE);
    let short = word.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
    if let Some(short) = short {
        return known().filter(|name| name.len() == 1).find(|name| short.starts_with(name));
    }
    let name = word.strip_prefix("--")?.split('=').next()?.replace('_', "-");
    if name.is_empty() {
        return None;
    }
    let mut begins = known().filter(|known| known.len() > 1 && known.starts_with(&name));
    match (known().find(|known| *known == name), begins.next(), begins.next()) {
        (Some(exact), ..) | (None, Some(exact), None) => Some(exact),
        _ => None,
    }
}

impl Torchrun {
    /// Parses a command; `None` if it is neither torchrun nor `ft_launcher`.
    #[expect(clippy::arithmetic_side_effects, reason = "positions in a list of words")]
    pub fn parse(argv: &[String]) -> Option<Self> {
        let entry = argv.iter().enumerate().position(|(at, word)| {
            let module = MODULES.contains(&word.as_str()) && at > 0 && argv[at - 1] == "-m";
            // In `--launcher torchrun`, torchrun is the value of another program's flag.
            let option = at > 0 && argv[at - 1].starts_with("--") && argv[at - 1].len() > 2;
            let program = matches!(basename(word), "torchrun" | FT_LAUNCHER) && !option;
            module || program
        })?;
        let is_ft = matches!(basename(&argv[entry]), FT_LAUNCHER | FT_MODULE);
        let mut flags = Vec::new();
        let mut at = entry + 1;
        while let Some(word) = argv.get(at).filter(|word| word.starts_with('-') && word.len() > 1) {
            let Some(name) = flag_name(word) else {
                // An unknown flag: from a later release, or a mistake that torchrun will report.
                let has_value = is_ft && !word.contains('=') && !word.ends_with("-missing-cfg");
                at += if has_value { 2 } else { 1 };
                continue;
            };
            let inline = match word.strip_prefix("--") {
                Some(long) => long.split_once('=').map(|(_, value)| value.to_owned()),
                None => Some(word[2..].to_owned()).filter(|value| !value.is_empty()),
            };
            let takes_next = WITH_VALUE.contains(&name) && inline.is_none();
            let value = if takes_next { argv.get(at + 1).cloned() } else { inline };
            let words = if takes_next { 2 } else { 1 };
            flags.push(Flag { name, value, at, words });
            at += words;
        }
        let program = at.min(argv.len());
        Some(Self { argv: argv.to_vec(), is_ft, entry, flags, program, is_argv: true })
    }

    /// The value of a flag, by its name with dashes. As in torchrun, the last occurrence counts.
    pub fn flag(&self, name: &str) -> Option<&str> {
        self.flags.iter().rev().find(|flag| flag.name == name)?.value.as_deref()
    }

    /// Where the value of a flag stands: its word, and whether that begins with the flag's name.
    pub fn place(&self, name: &str) -> Option<(usize, bool)> {
        let flag = self.flags.iter().rev().find(|flag| flag.name == name)?;
        flag.value.as_ref()?;
        Some((flag.at.saturating_add(flag.words).saturating_sub(1), flag.words == 1))
    }

    /// Whether a flag is present, with or without a value.
    pub fn has(&self, name: &str) -> bool {
        self.flags.iter().any(|flag| flag.name == name)
    }

    /// The words before the program that look like flags, and are flags of no known release.
    pub fn unknown_flags(&self) -> impl Iterator<Item = &str> {
        let is_known = |at: usize| self.flags.iter().any(|flag| at.wrapping_sub(flag.at) < flag.words);
        let own = self.argv.iter().enumerate().take(self.program).skip(self.entry).skip(1);
        own.filter(move |(at, _)| !self.is_ft && !is_known(*at)).map(|(_, word)| word.as_str())
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
    pub const fn is_ft_launcher(&self) -> bool {
        self.is_ft
    }

    /// The words of the command.
    pub fn argv(&self) -> &[String] {
        &self.argv
    }

    /// The training program with its arguments.
    pub fn program(&self) -> &[String] {
        &self.argv[self.program..]
    }

    /// The words before torchrun in the command.
    pub fn caller(&self) -> &[String] {
        &self.argv[..self.entry]
    }

    /// Whether its flags can be changed: not in a shell script.
    pub const fn can_change(&self) -> bool {
        self.is_argv
    }

    /// The interpreter that runs torchrun, if the command names it.
    pub fn interpreter(&self) -> Option<&str> {
        let first = self.argv.first()?;
        first_label(basename(first)).starts_with("python").then_some(first)
    }

    /// Sets a flag's value in place, or inserts the flag before the program.
    #[expect(clippy::arithmetic_side_effects, reason = "positions in a list of words")]
    #[must_use]
    pub fn with_flag(&self, name: &'static str, value: &str) -> Self {
        let mut argv = self.argv.clone();
        let word = format!("--{name}={value}");
        match self.flags.iter().rev().find(|flag| flag.name == name) {
            Some(flag) => drop(argv.splice(flag.at..flag.at + flag.words, [word])),
            None => argv.insert(self.entry + 1, word),
        }
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

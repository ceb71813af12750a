//! The flags of `rallypoint serve`. Their defaults are those of [`ServerConfig`].

use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::BoolishValueParser;
use ipnet::IpNet;

use crate::cli::etcd::{EtcdFlags, JournalPlace};
use crate::cli::units::{MaybeOff, duration, duration_or_off, on_or_off, size, size_text};
use rallypoint_protocol::LegacyRelease;
use rallypoint_server::config::{Durability, OnJournalError, ServerConfig};

/// The groups of flags in the help. Each flag is in one.
mod heading {
    pub(super) const FIRST: &str = "The ten that matter first";
    pub(super) const LISTENS: &str = "Where it listens";
    pub(super) const ACCESS: &str = "Who may connect";
    pub(super) const LIMITS: &str = "Limits";
    pub(super) const KEYS: &str = "Keys that jobs leave behind";
    pub(super) const JOBS: &str = "What it expects of jobs, and tells of them";
    pub(super) const JOURNAL: &str = "How the journal is kept";
    pub(super) const OTHER: &str = "Log, stop, compatibility";
}

/// Run the server: one store for each --listen, and the admin port.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Address of a store; repeat it for more stores. Two jobs on one store corrupt each other. `none`: no
    /// store has a port, neither the main one nor a run's, and all clients come through relays
    #[arg(
        long,
        help_heading = heading::FIRST,
        env = "RALLYPOINT_LISTEN",
        value_name = "ADDR|none",
        default_values_t = ServerConfig::default().listen.into_iter().map(ListenOn::Address),
        value_delimiter = ','
    )]
    pub(super) listen: Vec<ListenOn>,

    /// Address of the admin port: health, metrics, API
    #[arg(
        long,
        help_heading = heading::FIRST,
        env = "RALLYPOINT_ADMIN",
        value_name = "ADDR",
        default_value_t = ServerConfig::default().admin,
        value_parser = listen_address
    )]
    pub(super) admin: SocketAddr,

    /// Ports for stores of single runs
    #[arg(
        long,
        help_heading = heading::FIRST,
        env = "RALLYPOINT_STORE_PORTS",
        value_name = "FIRST-LAST",
        default_value_t = PortRange(ServerConfig::default().store_ports)
    )]
    pub(super) store_ports: PortRange,

    /// Number of nodes to expect of unmodified jobs: N, or MIN:MAX for elastic ones
    #[arg(
        long,
        help_heading = heading::FIRST,
        env = "RALLYPOINT_NODES",
        value_name = "MIN[:MAX]",
        value_parser = nodes
    )]
    pub(super) nodes: Option<(u32, u32)>,

    /// Certificate of the admin port, with the chain to its authority. API, page, metrics and links then
    /// speak TLS
    #[arg(
        long,
        help_heading = heading::FIRST,
        env = "RALLYPOINT_TLS_CERT",
        value_name = "FILE",
        requires = "tls_key"
    )]
    pub(super) tls_cert: Option<PathBuf>,

    /// Key of --tls-cert. New files of both are taken within 30 s
    #[arg(
        long,
        help_heading = heading::FIRST,
        env = "RALLYPOINT_TLS_KEY",
        value_name = "FILE",
        requires = "tls_cert"
    )]
    pub(super) tls_key: Option<PathBuf>,

    /// File with all tokens, one a line: TOKEN ROLE [RUN-PATTERN], with the role viewer, member or operator.
    /// A TOKEN without a role is an operator's
    #[arg(long, help_heading = heading::FIRST, env = "RALLYPOINT_TOKEN_FILE", value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,

    /// Every request to the admin port and every link needs a token of --token-file, except /livez and
    /// /readyz
    #[arg(
        long,
        help_heading = heading::FIRST,
        env = "RALLYPOINT_REQUIRE_TOKEN",
        value_parser = BoolishValueParser::new()
    )]
    pub(super) require_token: bool,

    /// Folder in which the stores are kept, so that the next server goes on where this one ended. Or
    /// etcd://HOST:2379,HOST:2379/PREFIX: one of its servers serves, and the others stand by
    #[arg(
        long,
        help_heading = heading::FIRST,
        env = "RALLYPOINT_JOURNAL",
        value_name = "PATH|etcd://…|off",
        default_value = "off"
    )]
    pub(super) journal: JournalPlace,

    /// Memory for all stores, large buffers and runs [default: 75% of the control group's limit, else 1GiB]
    #[arg(
        long,
        help_heading = heading::FIRST,
        env = "RALLYPOINT_MAX_MEMORY",
        value_name = "SIZE",
        value_parser = size
    )]
    pub(super) max_memory: Option<usize>,

    /// Host name that a run's store is announced with [default: the address that the request came in on]
    #[arg(long, help_heading = heading::LISTENS, env = "RALLYPOINT_ADVERTISE_HOST", value_name = "HOST")]
    pub(super) advertise_host: Option<String>,

    /// File that gets the bound ports as JSON once all listeners are bound, for scripts that listen on port 0
    #[arg(long, help_heading = heading::LISTENS, env = "RALLYPOINT_PORTS_FILE", value_name = "FILE")]
    pub(super) ports_file: Option<PathBuf>,

    /// Serve only if the pod's index is N; in other pods stay up, idle and healthy
    #[arg(long, help_heading = heading::LISTENS, env = "RALLYPOINT_ONLY_ON_INDEX", value_name = "N")]
    pub(super) only_on_index: Option<u32>,

    /// Networks that may connect to the store and admin ports; repeat it for more [default: all]
    #[arg(
        long,
        help_heading = heading::ACCESS,
        env = "RALLYPOINT_ALLOW",
        value_name = "CIDR",
        value_delimiter = ',',
        value_parser = cidr
    )]
    pub(super) allow: Vec<IpNet>,

    /// Another name by which browsers and clients on loopback may address the admin port: NAME, .DOMAIN for
    /// all names in it, or * for any. Addresses, names without a dot, names of Services, and the host's own
    /// domains always work
    #[arg(
        long,
        help_heading = heading::ACCESS,
        env = "RALLYPOINT_ALLOW_HOST",
        value_name = "NAME",
        value_delimiter = ','
    )]
    pub(super) allow_host: Vec<String>,

    /// /metrics needs neither token nor certificate
    #[arg(
        long,
        help_heading = heading::ACCESS,
        env = "RALLYPOINT_OPEN_METRICS",
        value_parser = BoolishValueParser::new()
    )]
    pub(super) open_metrics: bool,

    /// Authority of the certificates that clients of the admin port must show, except for /livez and /readyz
    #[arg(
        long,
        help_heading = heading::ACCESS,
        env = "RALLYPOINT_TLS_CLIENT_CA",
        value_name = "FILE",
        requires = "tls_cert"
    )]
    pub(super) tls_client_ca: Option<PathBuf>,

    /// Largest value
    #[arg(
        long,
        help_heading = heading::LIMITS,
        env = "RALLYPOINT_MAX_VALUE",
        value_name = "SIZE",
        default_value = bytes(|config| config.limits.value),
        value_parser = |text: &str| size_up_to(text, 1 << 30)
    )]
    pub(super) max_value: usize,

    /// Most connections to all stores together
    #[arg(
        long,
        help_heading = heading::LIMITS,
        env = "RALLYPOINT_MAX_CONNECTIONS",
        value_name = "N",
        default_value_t = ServerConfig::default().max_connections
    )]
    pub(super) max_connections: usize,

    /// Most connections from one address
    #[arg(
        long,
        help_heading = heading::LIMITS,
        env = "RALLYPOINT_MAX_CONNECTIONS_PER_ADDRESS",
        value_name = "N",
        default_value_t = ServerConfig::default().max_connections_per_address
    )]
    pub(super) max_connections_per_address: usize,

    /// Most runs at the same time, of unmodified jobs and of the native rendezvous, and native barriers
    #[arg(
        long,
        help_heading = heading::LIMITS,
        env = "RALLYPOINT_MAX_RUNS",
        value_name = "N",
        default_value_t = ServerConfig::default().max_runs
    )]
    pub(super) max_runs: usize,

    /// Drop the keys of a run, or of a NIXL agent, when its last connection has been gone for this long; or
    /// off. The keys of a run that finished go after 10 s
    #[arg(
        long,
        help_heading = heading::KEYS,
        env = "RALLYPOINT_FORGET_RUN_AFTER",
        value_name = "TIME",
        default_value_t = MaybeOff(ServerConfig::default().stale_keys.forget_run_after),
        value_parser = duration_or_off
    )]
    pub(super) forget_run_after: MaybeOff,

    /// Empty a store when the last connection of its job has been gone for this long, or off
    #[arg(
        long,
        help_heading = heading::KEYS,
        env = "RALLYPOINT_RESET_WHEN_IDLE",
        value_name = "TIME",
        default_value_t = MaybeOff(ServerConfig::default().stale_keys.reset_when_idle),
        value_parser = duration_or_off
    )]
    pub(super) reset_when_idle: MaybeOff,

    /// One job at a time on each store: it is emptied, with all its keys, when its last connection has closed
    /// (on or off). For programs whose keys no rule knows; a key that must outlive its clients needs another
    /// store
    #[arg(
        long,
        help_heading = heading::KEYS,
        env = "RALLYPOINT_ONE_JOB",
        value_name = "ON|OFF",
        default_value = switch(|config| config.stale_keys.one_job),
        value_parser = on_or_off,
        action = clap::ArgAction::Set
    )]
    pub(super) one_job: bool,

    /// The clients of a relay stay for this long while its link is away
    #[arg(
        long,
        help_heading = heading::JOBS,
        env = "RALLYPOINT_LINK_GRACE",
        value_name = "TIME",
        default_value = time(|config| config.link_grace),
        value_parser = duration
    )]
    pub(super) link_grace: Duration,

    /// Native rendezvous: how long a round may gather after its first join, unless the run's first join sets
    /// another time
    #[arg(
        long,
        help_heading = heading::JOBS,
        env = "RALLYPOINT_SERVE_JOIN_TIMEOUT",
        value_name = "TIME",
        default_value = time(|config| config.rendezvous.join_timeout),
        value_parser = duration
    )]
    pub(super) join_timeout: Duration,

    /// Look at the jobs' traffic: who has joined, who is missing, who waits for what (on or off)
    #[arg(
        long,
        help_heading = heading::JOBS,
        env = "RALLYPOINT_INSIGHT",
        value_name = "ON|OFF",
        default_value = switch(|config| config.insight.enabled),
        value_parser = on_or_off,
        action = clap::ArgAction::Set
    )]
    pub(super) insight: bool,

    /// Explain a wait when it has lasted this long
    #[arg(
        long,
        help_heading = heading::JOBS,
        env = "RALLYPOINT_EXPLAIN_AFTER",
        value_name = "TIME",
        default_value = time(|config| config.insight.explain_after),
        value_parser = duration
    )]
    pub(super) explain_after: Duration,

    /// What acknowledged changes survive, where the journal is a folder [default: process]
    #[arg(long, help_heading = heading::JOURNAL, env = "RALLYPOINT_DURABILITY", value_name = "WHAT")]
    pub(super) durability: Option<Durability>,

    /// What to do when the journal cannot be written, where it is a folder [default: continue]
    #[arg(long, help_heading = heading::JOURNAL, env = "RALLYPOINT_ON_JOURNAL_ERROR", value_name = "WHAT")]
    pub(super) on_journal_error: Option<OnJournalError>,

    #[command(flatten, next_help_heading = heading::JOURNAL)]
    pub(super) etcd: EtcdFlags,

    /// What to log: error, warn, info, debug, or a filter such as rallypoint_server=debug
    #[arg(
        long,
        help_heading = heading::OTHER,
        env = "RALLYPOINT_LOG",
        value_name = "FILTER",
        default_value = "info"
    )]
    pub(super) log: String,

    /// How log lines look
    #[arg(
        long,
        help_heading = heading::OTHER,
        env = "RALLYPOINT_LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "text"
    )]
    pub(super) log_format: LogFormat,

    /// How long to wait for clients to leave when stopping (SIGTERM, SIGINT, SIGHUP); a second signal stops
    /// at once
    #[arg(
        long,
        help_heading = heading::OTHER,
        env = "RALLYPOINT_DRAIN",
        value_name = "TIME",
        default_value = time(|config| config.drain),
        value_parser = duration
    )]
    pub(super) drain: Duration,

    /// PyTorch release of clients that send no hello, if their bytes do not show it
    #[arg(
        long,
        help_heading = heading::OTHER,
        env = "RALLYPOINT_LEGACY_DIALECT",
        value_name = "RELEASE",
        default_value = legacy_dialect()
    )]
    pub(super) legacy_dialect: LegacyDialect,

    /// For the tests of this project only: CONTRIBUTING.md
    #[arg(long, hide = true, value_name = "NAME=VALUE", value_delimiter = ',')]
    pub(super) test_settings: Vec<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum LegacyDialect {
    #[value(name = "2.0")]
    V2_0,
    #[value(name = "2.1")]
    V2_1,
}

impl LegacyDialect {
    pub(super) const fn release(self) -> LegacyRelease {
        match self {
            Self::V2_0 => LegacyRelease::V2_0,
            Self::V2_1 => LegacyRelease::V2_1,
        }
    }
}

/// Where a store listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListenOn {
    Address(SocketAddr),
    Nowhere,
}

impl std::fmt::Display for ListenOn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Address(addr) => addr.fmt(f),
            Self::Nowhere => f.write_str("none"),
        }
    }
}

impl std::str::FromStr for ListenOn {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" { Ok(Self::Nowhere) } else { listen_address(text).map(Self::Address) }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum LogFormat {
    Text,
    Json,
}

/// The name of the default dialect.
fn legacy_dialect() -> &'static str {
    let is_default = |one: &&LegacyDialect| one.release() == ServerConfig::default().legacy_dialect;
    let one = LegacyDialect::value_variants().iter().find(is_default);
    one.and_then(LegacyDialect::to_possible_value).map_or("", |one| shown(&one.get_name()))
}

/// A default of the server as the command line shows it. Clap keeps these for as long as the program runs.
fn shown(text: &dyn ToString) -> &'static str {
    text.to_string().leak()
}

fn time(of: fn(&ServerConfig) -> Duration) -> &'static str {
    shown(&humantime::format_duration(of(&ServerConfig::default())))
}

fn bytes(of: fn(&ServerConfig) -> usize) -> &'static str {
    shown(&size_text(of(&ServerConfig::default())))
}

fn switch(of: fn(&ServerConfig) -> bool) -> &'static str {
    if of(&ServerConfig::default()) { "on" } else { "off" }
}

/// A size with a bound: beyond it the dialects could not be told apart, or one request could fill the memory.
fn size_up_to(text: &str, most: usize) -> Result<usize, String> {
    let bytes = size(text)?;
    if bytes <= most { Ok(bytes) } else { Err(format!("must be at most {} MiB", most >> 20)) }
}

/// `FIRST-LAST`.
#[derive(Debug, Clone)]
pub(super) struct PortRange(pub(super) std::ops::RangeInclusive<u16>);

impl std::fmt::Display for PortRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.0.start(), self.0.end())
    }
}

impl std::str::FromStr for PortRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let range =
            text.split_once('-').and_then(|(first, last)| Some(first.parse().ok()?..=last.parse().ok()?));
        range
            .filter(|range| !range.is_empty() && *range.start() > 0)
            .map(Self)
            .ok_or_else(|| "write it like 29510-29599".into())
    }
}

/// `ADDR:PORT`, `HOST:PORT` with a name of this host, or a port alone for all addresses. A name with
/// addresses of both families means the IPv4 one: every client of that name tries it.
fn listen_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse() {
        return Ok(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)));
    }
    let mut found: Vec<SocketAddr> = match text.to_socket_addrs() {
        Ok(found) => found.collect(),
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
            return Err("write ADDR:PORT, such as 0.0.0.0:29500 or [::]:29500, or the port alone".into());
        }
        Err(error) => return Err(format!("{error}; write ADDR:PORT with an address of this host")),
    };
    found.sort_by_key(SocketAddr::is_ipv6);
    found.into_iter().next().ok_or_else(|| "the name has no address; write ADDR:PORT".into())
}

/// A network, or one address.
fn cidr(text: &str) -> Result<IpNet, String> {
    let one = || text.parse::<IpAddr>().map(IpNet::from);
    text.parse().or_else(|_| one()).map_err(|_| "write it like 10.0.0.0/8 or fd00::/8".into())
}

/// `MIN[:MAX]`.
fn nodes(text: &str) -> Result<(u32, u32), String> {
    let (min, max) = text.split_once(':').unwrap_or((text, text));
    let range = min.parse().ok().zip(max.parse().ok());
    range
        .filter(|&(min, max)| 0 < min && min <= max)
        .ok_or_else(|| "write it like 4, or 2:4 for at least 2 and at most 4".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_to_listen_on_is_read_as_people_write_it() {
        for (text, wanted) in [
            ("localhost:29500", "127.0.0.1:29500"),
            ("[::1]:1", "[::1]:1"),
            ("0.0.0.0:0", "0.0.0.0:0"),
            ("29500", "[::]:29500"),
        ] {
            assert_eq!(listen_address(text).map(|addr| addr.to_string()), Ok(wanted.to_owned()), "{text}");
        }
        for text in ["localhost", "10.0.0.1", "::1", "", "70000", "name.invalid:1"] {
            let error = listen_address(text).expect_err(text);
            assert!(error.contains("write ADDR:PORT"), "{text}: {error}");
        }
    }
}

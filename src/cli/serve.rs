//! `rallypoint serve`: flags to [`ServerConfig`], whose defaults are theirs, binding, logging, signals.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use clap::builder::BoolishValueParser;
use ipnet::IpNet;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::etcd::{EtcdFlags, JournalPlace};
use super::launch::{environment, hostname, on_host_network};
use super::test_settings;
use super::units::{MaybeOff, duration, duration_or_off, on_or_off, size, size_text};
use super::{Outcome, UsageError};
use rallypoint_access::tls::{ServerTls, TlsConfig};
use rallypoint_access::tokens::TokenFile;
use rallypoint_node::launch::{self, Given};
use rallypoint_process as process;
use rallypoint_protocol::{LegacyRelease, Limits};
use rallypoint_rendezvous::Terms;
use rallypoint_server::admin::{self, standby};
use rallypoint_server::config::{
    AccessConfig, Durability, InsightConfig, JournalConfig, OnJournalError, ServerConfig,
};
use rallypoint_server::journal::etcd::Etcd;
use rallypoint_server::{self as server, DescriptorShares, Server};
use rallypoint_store::StaleKeyConfig;

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
pub(super) struct Args {
    /// Address of a store; repeat it for more stores. Two jobs on one store corrupt each other. `none`: one store without
    /// a port, and so are those of runs; all clients come through relays
    #[arg(
        long,
        help_heading = heading::FIRST,
        env = "RALLYPOINT_LISTEN",
        value_name = "ADDR|none",
        default_values_t = ServerConfig::default().listen.into_iter().map(ListenOn::Address),
        value_delimiter = ','
    )]
    listen: Vec<ListenOn>,

    /// Address of the admin port: health, metrics, API
    #[arg(long, help_heading = heading::FIRST, env = "RALLYPOINT_ADMIN", value_name = "ADDR", default_value_t = ServerConfig::default().admin,
        value_parser = listen_address)]
    admin: SocketAddr,

    /// Ports for stores of single runs
    #[arg(long, help_heading = heading::FIRST, env = "RALLYPOINT_STORE_PORTS", value_name = "FIRST-LAST", default_value_t = PortRange(ServerConfig::default().store_ports))]
    store_ports: PortRange,

    /// Number of nodes to expect of unmodified jobs: N, or MIN:MAX for elastic ones
    #[arg(long, help_heading = heading::FIRST, env = "RALLYPOINT_NODES", value_name = "MIN[:MAX]", value_parser = nodes)]
    nodes: Option<(u32, u32)>,

    /// Certificate of the admin port, with those that lead to its authority: API, page, metrics and links speak TLS then
    #[arg(long, help_heading = heading::FIRST, env = "RALLYPOINT_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// Its key. New files are taken within 30 s
    #[arg(long, help_heading = heading::FIRST, env = "RALLYPOINT_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// File with all tokens, one a line: TOKEN ROLE [RUN-PATTERN], with the role viewer, member or operator. One word
    /// alone is an operator's
    #[arg(long, help_heading = heading::FIRST, env = "RALLYPOINT_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Every request to the admin port and every link needs a token of --token-file, all but those of /livez and /readyz
    #[arg(long, help_heading = heading::FIRST, env = "RALLYPOINT_REQUIRE_TOKEN", value_parser = BoolishValueParser::new())]
    require_token: bool,

    /// Folder in which the stores are kept, so that a server that starts again goes on with what the last one had. Or
    /// etcd://HOST:2379,HOST:2379/PREFIX: of all servers with the same one, one serves and the others stand by
    #[arg(long, help_heading = heading::FIRST, env = "RALLYPOINT_JOURNAL", value_name = "PATH|etcd://…|off", default_value = "off")]
    journal: JournalPlace,

    /// Memory for all stores, large buffers and runs [default: 75% of the control group's limit, else 1GiB]
    #[arg(long, help_heading = heading::FIRST, env = "RALLYPOINT_MAX_MEMORY", value_name = "SIZE", value_parser = size)]
    max_memory: Option<usize>,

    /// Host name that a run's store is announced with [default: the address that the request came in on]
    #[arg(long, help_heading = heading::LISTENS, env = "RALLYPOINT_ADVERTISE_HOST", value_name = "HOST")]
    advertise_host: Option<String>,

    /// File to write the bound ports to as JSON once all listeners are bound, for scripts that listen on port 0
    #[arg(long, help_heading = heading::LISTENS, env = "RALLYPOINT_PORTS_FILE", value_name = "FILE")]
    ports_file: Option<PathBuf>,

    /// Serve only if the pod's index is N; in other pods stay up, idle and healthy
    #[arg(long, help_heading = heading::LISTENS, env = "RALLYPOINT_ONLY_ON_INDEX", value_name = "N")]
    only_on_index: Option<u32>,

    /// Networks that may connect to the store and admin ports; repeat it for more [default: all]
    #[arg(long, help_heading = heading::ACCESS, env = "RALLYPOINT_ALLOW", value_name = "CIDR", value_delimiter = ',', value_parser = cidr)]
    allow: Vec<IpNet>,

    /// Another name by which browsers and clients on loopback may address the admin port: NAME, .DOMAIN for
    /// all names in it, or * for any. Addresses, names without a dot, names of Services, and the host's own
    /// domains always work
    #[arg(long, help_heading = heading::ACCESS, env = "RALLYPOINT_ALLOW_HOST", value_name = "NAME", value_delimiter = ',')]
    allow_host: Vec<String>,

    /// /metrics needs neither token nor certificate
    #[arg(long, help_heading = heading::ACCESS, env = "RALLYPOINT_OPEN_METRICS", value_parser = BoolishValueParser::new())]
    open_metrics: bool,

    /// Authority of the certificates that clients of the admin port must show, all but those of /livez and /readyz
    #[arg(long, help_heading = heading::ACCESS, env = "RALLYPOINT_TLS_CLIENT_CA", value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,

    /// Largest value
    #[arg(
        long,
        help_heading = heading::LIMITS,
        env = "RALLYPOINT_MAX_VALUE",
        value_name = "SIZE",
        default_value = bytes(|config| config.limits.value),
        value_parser = |text: &str| size_up_to(text, 1 << 30)
    )]
    max_value: usize,

    /// Most connections to all stores together
    #[arg(long, help_heading = heading::LIMITS, env = "RALLYPOINT_MAX_CONNECTIONS", value_name = "N", default_value_t = ServerConfig::default().max_connections)]
    max_connections: usize,

    /// Most connections from one address
    #[arg(long, help_heading = heading::LIMITS, env = "RALLYPOINT_MAX_CONNECTIONS_PER_ADDRESS", value_name = "N", default_value_t = ServerConfig::default().max_connections_per_address)]
    max_connections_per_address: usize,

    /// Most runs at the same time, of unmodified jobs and of the native rendezvous, and native barriers
    #[arg(long, help_heading = heading::LIMITS, env = "RALLYPOINT_MAX_RUNS", value_name = "N", default_value_t = ServerConfig::default().max_runs)]
    max_runs: usize,

    /// Drop a run's keys when its last connection has been gone for this long, and so a NIXL agent's; or off. A run that
    /// finished goes after 10 s
    #[arg(
        long,
        help_heading = heading::KEYS,
        env = "RALLYPOINT_FORGET_RUN_AFTER",
        value_name = "TIME",
        default_value_t = MaybeOff(ServerConfig::default().stale_keys.forget_run_after),
        value_parser = duration_or_off
    )]
    forget_run_after: MaybeOff,

    /// Empty a store when the last connection of its job has been gone for this long, or off
    #[arg(
        long,
        help_heading = heading::KEYS,
        env = "RALLYPOINT_RESET_WHEN_IDLE",
        value_name = "TIME",
        default_value_t = MaybeOff(ServerConfig::default().stale_keys.reset_when_idle),
        value_parser = duration_or_off
    )]
    reset_when_idle: MaybeOff,

    /// One job at a time on each store: it is emptied, with all its keys, when its last connection has closed
    /// (on or off). For programs whose keys no rule knows; a key that must outlive its clients needs another
    /// store
    #[arg(long, help_heading = heading::KEYS, env = "RALLYPOINT_ONE_JOB", value_name = "ON|OFF", default_value = switch(|config| config.stale_keys.one_job), value_parser = on_or_off,
        action = clap::ArgAction::Set)]
    one_job: bool,

    /// The clients of a relay stay for this long while its link is away
    #[arg(long, help_heading = heading::JOBS, env = "RALLYPOINT_LINK_GRACE", value_name = "TIME", default_value = time(|config| config.link_grace), value_parser = duration)]
    link_grace: Duration,

    /// Native rendezvous: how long a round may gather after its first join, unless the run's first join sets
    /// another time
    #[arg(long, help_heading = heading::JOBS, env = "RALLYPOINT_SERVE_JOIN_TIMEOUT", value_name = "TIME", default_value = time(|config| config.rendezvous.join_timeout), value_parser = duration)]
    join_timeout: Duration,

    /// Look at the jobs' traffic: who has joined, who is missing, who waits for what (on or off)
    #[arg(long, help_heading = heading::JOBS, env = "RALLYPOINT_INSIGHT", value_name = "ON|OFF", default_value = switch(|config| config.insight.enabled), value_parser = on_or_off,
        action = clap::ArgAction::Set)]
    insight: bool,

    /// Explain a wait when it has lasted this long
    #[arg(long, help_heading = heading::JOBS, env = "RALLYPOINT_EXPLAIN_AFTER", value_name = "TIME", default_value = time(|config| config.insight.explain_after), value_parser = duration)]
    explain_after: Duration,

    /// What acknowledged changes survive, where the journal is a folder [default: process]
    #[arg(long, help_heading = heading::JOURNAL, env = "RALLYPOINT_DURABILITY", value_name = "WHAT")]
    durability: Option<Durability>,

    /// What to do when the journal cannot be written, where it is a folder [default: continue]
    #[arg(long, help_heading = heading::JOURNAL, env = "RALLYPOINT_ON_JOURNAL_ERROR", value_name = "WHAT")]
    on_journal_error: Option<OnJournalError>,

    #[command(flatten, next_help_heading = heading::JOURNAL)]
    etcd: EtcdFlags,

    /// What to log: error, warn, info, debug, or a filter such as rallypoint_server=debug
    #[arg(long, help_heading = heading::OTHER, env = "RALLYPOINT_LOG", value_name = "FILTER", default_value = "info")]
    log: String,

    /// How log lines look
    #[arg(long, help_heading = heading::OTHER, env = "RALLYPOINT_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,

    /// How long to wait for clients to leave when stopping (SIGTERM, SIGINT, SIGHUP); a second signal stops
    /// at once
    #[arg(long, help_heading = heading::OTHER, env = "RALLYPOINT_DRAIN", value_name = "TIME", default_value = time(|config| config.drain), value_parser = duration)]
    drain: Duration,

    /// PyTorch release of clients that send no hello, if their bytes do not show it
    #[arg(long, help_heading = heading::OTHER, env = "RALLYPOINT_LEGACY_DIALECT", value_name = "RELEASE", default_value = legacy_dialect())]
    legacy_dialect: LegacyDialect,

    /// For the tests of this project only: CONTRIBUTING.md
    #[arg(long, hide = true, value_name = "NAME=VALUE", value_delimiter = ',')]
    test_settings: Vec<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LegacyDialect {
    #[value(name = "2.0")]
    V2_0,
    #[value(name = "2.1")]
    V2_1,
}

impl LegacyDialect {
    const fn release(self) -> LegacyRelease {
        match self {
            Self::V2_0 => LegacyRelease::V2_0,
            Self::V2_1 => LegacyRelease::V2_1,
        }
    }
}

/// Where a store listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListenOn {
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

/// What this server is among others.
enum Place {
    /// It has no others.
    Alone,
    /// It leads them. With it goes its admin port, at which it still stands by.
    Leads(Arc<Etcd>, (std::net::TcpListener, admin::Serving)),
    /// It was stopped before that.
    Stopped,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// The name of the default.
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
struct PortRange(std::ops::RangeInclusive<u16>);

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

/// `ADDR:PORT`, `HOST:PORT` with a name of this host, or a port alone for all addresses. Of a name with addresses of both
/// families the IPv4 one is taken: every client of that name tries it.
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

impl Args {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let _flushed_on_drop = self.start_log()?;
        let runtime = super::client_runtime()?;
        // Before anything says that the server is there: from then on it must listen to signals that stop it.
        let mut signals = StopSignals::listen(&runtime)?;
        if !self.is_mine()? {
            return self.stay_idle(&runtime, signals);
        }
        let tls = self.tls()?;
        let descriptors = process::raise_descriptor_limit();
        let config = self.config(descriptors)?;
        let (etcd, standby) = match self.lead(&runtime, &mut signals, &config.access)? {
            Place::Stopped => return Ok(Outcome::Done),
            Place::Alone => (None, None),
            Place::Leads(etcd, standby) => (Some(etcd), Some(standby)),
        };
        let sockets =
            config.listen.iter().map(|&addr| bind(addr, "--listen")).collect::<anyhow::Result<Vec<_>>>()?;
        let (admin_socket, standby) = match standby {
            None => (bind(config.admin, "--admin")?, None),
            Some((socket, serving)) => (socket, Some(serving)),
        };
        let stores: Vec<SocketAddr> = sockets.iter().filter_map(|socket| socket.local_addr().ok()).collect();
        let admin = admin_socket.local_addr()?;
        server::warn_of_small_backlog();
        if config.max_connections < self.max_connections {
            let room = format!(
                "the limit on open files has room for {} connections to the stores and {} to the admin port; for more \
                 raise it (ulimit -n, LimitNOFILE, the container runtime's default)",
                config.max_connections, config.max_admin_connections
            );
            // What nobody asked for is not missed.
            if self.asks_for_connections() {
                tracing::warn!(descriptors, "{room}");
            } else {
                tracing::info!(descriptors, "{room}");
            }
        }
        let on = if config.relays_only {
            "to relays only (--listen none)".to_owned()
        } else {
            format!("on {stores:?}")
        };
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            threads = config.threads,
            max_memory = config.max_memory,
            max_connections = config.max_connections,
            descriptors,
            "rallypoint serves stores {on} and admin on {admin}"
        );
        if config.access.require_token && stores.iter().any(|addr| !addr.ip().is_loopback()) {
            tracing::warn!(
                "nobody can show a token on a store's port, so all that reach {stores:?} may use the stores: --listen none lets \
                 clients in through relays only"
            );
        }
        let server = Server::start_with(config, sockets, etcd.as_ref())?;
        drop(standby);
        self.write_ports_file(&stores, admin)?;
        runtime.block_on(serve_until_stopped(server, admin_socket, tls, signals))?;
        Ok(Outcome::Done)
    }

    /// Where the stores listen.
    fn addresses(&self) -> Result<Vec<SocketAddr>, UsageError> {
        let address = |on: &ListenOn| match on {
            ListenOn::Address(addr) => Some(*addr),
            ListenOn::Nowhere => None,
        };
        if self.listen.contains(&ListenOn::Nowhere) && self.listen.len() > 1 {
            return Err(UsageError("--listen none means no other --listen".into()));
        }
        Ok(self.listen.iter().filter_map(address).collect())
    }

    /// Whether `--max-connections` says something else than the default.
    fn asks_for_connections(&self) -> bool {
        self.max_connections != ServerConfig::default().max_connections
    }

    fn config(&self, descriptors: Option<u64>) -> Result<ServerConfig, UsageError> {
        let listeners = self.listen.len().saturating_add(self.store_ports.0.len());
        let asked = self.asks_for_connections();
        let shares = DescriptorShares::of(descriptors, listeners, self.max_connections, asked);
        let config = ServerConfig {
            listen: self.addresses()?,
            relays_only: self.listen.contains(&ListenOn::Nowhere),
            admin: self.admin,
            threads: default_threads(),
            allow: self.allow.clone(),
            access: self.access()?,
            limits: Limits { value: self.max_value, ..Limits::default() },
            legacy_dialect: self.legacy_dialect.release(),
            max_connections: shares.stores,
            max_admin_connections: shares.admin,
            max_connections_per_address: self.max_connections_per_address,
            max_memory: self.max_memory.unwrap_or_else(server::default_max_memory),
            stale_keys: StaleKeyConfig {
                forget_run_after: self.forget_run_after.0,
                reset_when_idle: self.reset_when_idle.0,
                one_job: self.one_job,
                ..StaleKeyConfig::default()
            },
            insight: InsightConfig {
                enabled: self.insight,
                explain_after: self.explain_after,
                nodes: self.nodes,
            },
            drain: self.drain,
            store_ports: self.store_ports.0.clone(),
            link_grace: self.link_grace,
            own_names: self.own_names(),
            advertise_host: self.advertise_host.clone(),
            rendezvous: Terms { join_timeout: self.join_timeout, ..Terms::default() },
            max_runs: self.max_runs,
            journal: match &self.journal {
                JournalPlace::Folder(path) => Some(JournalConfig {
                    path: path.clone(),
                    durability: self.durability.unwrap_or_default(),
                    on_error: self.on_journal_error.unwrap_or_default(),
                }),
                JournalPlace::Off | JournalPlace::Etcd(..) => None,
            },
            ..ServerConfig::default()
        };
        test_settings::apply(&self.test_settings, config)
    }

    /// Waits until this server leads, if others are at the same etcd: until then only its health can be asked for.
    fn lead(
        &self,
        runtime: &Runtime,
        signals: &mut StopSignals,
        access: &AccessConfig,
    ) -> anyhow::Result<Place> {
        self.etcd.check(&self.journal)?;
        let JournalPlace::Etcd(members, prefix) = &self.journal else { return Ok(Place::Alone) };
        if self.durability.is_some() || self.on_journal_error.is_some() {
            return Err(UsageError(
                "--durability and --on-journal-error are for a journal in a folder, and --journal names an etcd: there \
                 each change waits for a majority of the members, and nothing goes on in memory. Leave them out \
                 (RALLYPOINT_DURABILITY and RALLYPOINT_ON_JOURNAL_ERROR too)"
                    .into(),
            )
            .into());
        }
        let etcd = Etcd::stand(self.etcd.config(members, prefix))?;
        let admin = bind(self.admin, "--admin")?;
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            "looks who leads at {}; health is on {}",
            etcd.place(),
            admin.local_addr()?
        );
        // It goes on until the journal has been read: health is answered all the time.
        let standby = standby::serve(admin.try_clone()?, Arc::clone(&etcd), self.tls()?, access)?;
        let stopped_by = runtime.block_on(async {
            tokio::select! {
                () = etcd.standing().elected() => None,
                signal = signals.next() => Some(signal),
            }
        });
        Ok(match stopped_by {
            None => Place::Leads(etcd, (admin, standby)),
            Some(signal) => {
                tracing::info!("stopped ({signal}) while standing by");
                Place::Stopped
            }
        })
    }

    fn start_log(&self) -> anyhow::Result<tracing_appender::non_blocking::WorkerGuard> {
        let filter = tracing_subscriber::EnvFilter::try_new(&self.log)
            .map_err(|error| UsageError(format!("--log {:?} is no filter: {error}", self.log)))?;
        // Lines are dropped if stderr is read too slowly: a store must not wait for its reader.
        let (writer, guard) = tracing_appender::non_blocking(std::io::stderr());
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_target(false);
        match self.log_format {
            LogFormat::Json => log.json().flatten_event(true).init(),
            LogFormat::Text => {
                use std::io::IsTerminal;
                let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
                log.with_ansi(colour).init();
            }
        }
        Ok(guard)
    }

    /// Whether this is the pod that serves.
    fn is_mine(&self) -> anyhow::Result<bool> {
        let Some(wanted) = self.only_on_index else { return Ok(true) };
        let index = pod_index().map_err(UsageError)?;
        tracing::info!(index, wanted, "this pod {}", if index == wanted { "serves" } else { "stays idle" });
        Ok(index == wanted)
    }

    /// All ranks have the same pod template: in a pod without the store, the sidecar must stay up and pass
    /// its probes.
    fn stay_idle(&self, runtime: &Runtime, signals: StopSignals) -> anyhow::Result<Outcome> {
        let admin_socket = bind(self.admin, "--admin")?;
        let admin = admin_socket.local_addr()?;
        let descriptors = process::raise_descriptor_limit();
        // The journal is the serving pod's.
        let config = ServerConfig {
            listen: Vec::new(),
            relays_only: false,
            journal: None,
            ..self.config(descriptors)?
        };
        let server = Server::start(config, Vec::new())?;
        self.write_ports_file(&[], admin)?;
        runtime.block_on(serve_until_stopped(server, admin_socket, self.tls()?, signals))?;
        Ok(Outcome::Done)
    }

    /// Who may do what.
    fn access(&self) -> Result<AccessConfig, UsageError> {
        if self.require_token && self.token_file.is_none() {
            return Err(UsageError("--require-token needs --token-file, which says the tokens".into()));
        }
        let tokens = self.token_file.as_deref().map(TokenFile::open).transpose();
        let tokens = tokens.map_err(|error| UsageError(error.to_string()))?.map(Arc::new);
        Ok(AccessConfig {
            tokens,
            require_token: self.require_token,
            open_metrics: self.open_metrics,
            ..AccessConfig::default()
        })
    }

    /// The certificates of the admin port.
    fn tls(&self) -> anyhow::Result<Option<ServerTls>> {
        let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) else { return Ok(None) };
        let files = TlsConfig { cert: cert.clone(), key: key.clone(), client_ca: self.tls_client_ca.clone() };
        let tls = ServerTls::new(files).map_err(|error| UsageError(format!("--tls-cert: {error}")))?;
        Ok(Some(tls))
    }

    /// Names of this server, as far as it can know them.
    fn own_names(&self) -> Vec<String> {
        let resolv_conf = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        let given = self.allow_host.iter().chain(&self.advertise_host).cloned();
        given.chain([hostname()]).chain(own_domains(&resolv_conf, &hostname())).collect()
    }

    fn write_ports_file(&self, stores: &[SocketAddr], admin: SocketAddr) -> anyhow::Result<()> {
        self.ports_file.as_deref().map_or(Ok(()), |file| write_ports_file(file, stores, admin))
    }
}

/// Writes the ports that were bound, for `--ports-file`.
pub(super) fn write_ports_file(file: &Path, stores: &[SocketAddr], admin: SocketAddr) -> anyhow::Result<()> {
    let ports: Vec<u16> = stores.iter().map(SocketAddr::port).collect();
    let text = serde_json::json!({ "stores": ports, "admin": admin.port() }).to_string();
    // Renamed into place, so that nobody reads half of it.
    let draft = file.with_extension("draft");
    std::fs::write(&draft, text)
        .and_then(|()| std::fs::rename(&draft, file))
        .with_context(|| format!("cannot write --ports-file {}", file.display()))
}

/// Half the cores, 1 to 4. One thread carries about 150,000 requests a second, so four are enough for any
/// job. The kernel does nine tenths of the work and needs cores too. A thread that is mostly idle costs a
/// sixth more for each request, because the request has to wake it (docs/performance.md).
fn default_threads() -> NonZeroUsize {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    NonZeroUsize::new((cores / 2).min(4)).unwrap_or(NonZeroUsize::MIN)
}

/// The domains in which names without a dot are looked up, except whole top-level domains. In Kubernetes also
/// the name that other namespaces use for a Service: its own name, with which the pod's name begins, and the
/// pod's namespace. A namespace alone may be a public domain (`dev`).
fn own_domains(resolv_conf: &str, pod: &str) -> Vec<String> {
    let services: Vec<&str> = pod.match_indices('-').map(|(at, _)| &pod[..at]).chain([pod]).collect();
    let lines = resolv_conf.lines().map(str::split_whitespace);
    let domains = lines.filter_map(|mut words| matches!(words.next()?, "search" | "domain").then_some(words));
    let mut own = Vec::new();
    for domain in domains.flatten().filter(|domain| domain.trim_matches('.').contains('.')) {
        own.push(format!(".{}", domain.trim_matches('.')));
        if let Some((namespace, _)) = domain.split_once(".svc.") {
            own.extend(services.iter().map(|service| format!("{service}.{namespace}")));
            own.extend(services.iter().map(|service| format!(".{service}.{namespace}")));
        }
    }
    own
}

fn bind(addr: SocketAddr, flag: &str) -> anyhow::Result<std::net::TcpListener> {
    server::bind(addr).map_err(|error| {
        let hint = match error.kind() {
            std::io::ErrorKind::AddrInUse => format!(": {}", process::holder_of(addr)),
            std::io::ErrorKind::PermissionDenied => ": ports below 1024 need privileges".into(),
            _ => String::new(),
        };
        UsageError(format!("cannot listen on {addr} ({flag}): {error}{hint}")).into()
    })
}

/// The pod's index, as the platform gives it.
fn pod_index() -> Result<u32, String> {
    let index = launch::node_rank(
        &environment(),
        &Given { hostname: hostname(), host_network: on_host_network(), ..Given::default() },
    );
    let index = index.map_err(|error| format!("--only-on-index needs the pod's index: {error}"))?;
    index.map(|index| index.value).ok_or_else(|| {
        "--only-on-index needs the pod's index, but RALLYPOINT_POD_INDEX and JOB_COMPLETION_INDEX are unset or empty, \
         and nothing else says it; an Indexed Job sets the latter, in a StatefulSet set the former from the label \
         apps.kubernetes.io/pod-index (`rallypoint env --explain` shows what is there)"
            .into()
    })
}

/// The signals that stop the server.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
    /// The terminal is gone. The server has nothing to load again, so it stops as with the other signals.
    hangup: Option<Signal>,
}

impl StopSignals {
    fn listen(runtime: &Runtime) -> std::io::Result<Self> {
        let _entered = runtime.enter();
        let hangup = (!process::ignores_hangup()).then(|| signal(SignalKind::hangup())).transpose()?;
        let (terminate, interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        Ok(Self { terminate, interrupt, hangup })
    }

    /// Waits for one and returns its name.
    async fn next(&mut self) -> &'static str {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = hangup => "SIGHUP",
        }
    }
}

async fn serve_until_stopped(
    server: Arc<Server>,
    admin_socket: std::net::TcpListener,
    tls: Option<ServerTls>,
    mut signals: StopSignals,
) -> anyhow::Result<()> {
    let _admin = admin::serve(admin_socket, Arc::clone(&server), tls)?;
    let background = tokio::spawn(Arc::clone(&server).look_after());
    let journal = server.stores().journal().cloned();
    let broken = async {
        match &journal {
            Some(journal) => journal.broken().await,
            None => std::future::pending().await,
        }
    };
    let signal = tokio::select! {
        signal = signals.next() => signal,
        why = broken => anyhow::bail!("{why}"),
    };
    let clients = server.stores().connections();
    tracing::info!(clients, "stopping ({signal}): no new connections; waiting for clients to leave");
    tokio::select! {
        () = server.drain() => tracing::info!("stopped"),
        signal = signals.next() => tracing::info!("stopped at once by a second signal, {signal}"),
    }
    background.abort();
    if let Some(journal) = journal {
        journal.close();
    }
    Ok(())
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

    #[test]
    fn a_host_knows_its_domains() {
        let pod = "search train.svc.k8s.example.com svc.k8s.example.com. lan\nnameserver 10.96.0.10\noptions ndots:5\n";
        let own = own_domains(pod, "rally-0");
        let wanted = [
            ".train.svc.k8s.example.com",
            "rally.train",
            "rally-0.train",
            ".rally.train",
            ".rally-0.train",
            ".svc.k8s.example.com",
        ];
        assert_eq!(own, wanted);
        assert_eq!(own_domains("domain hpc.example.edu\n# search x.y\n", "head"), [".hpc.example.edu"]);
        assert!(own_domains("", "head").is_empty());
    }
}

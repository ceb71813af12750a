//! The settings of a server: one validated value. The command line takes its defaults from here.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use rallypoint_access::tls::ClientTls;
use rallypoint_access::tokens::{Grant, TokenFile};
use rallypoint_protocol::{LegacyRelease, Limits};
use rallypoint_rendezvous::Terms;
use rallypoint_store::StaleKeyConfig;

/// The port of the main store, by which its clients name it.
pub const MAIN_STORE: u16 = 29500;

/// Settings of `rallypoint serve`.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Addresses of the stores; each is a store of its own.
    pub listen: Vec<SocketAddr>,
    /// There is one store and it has no port, nor have those of runs: their clients come through relays.
    pub relays_only: bool,
    /// Address of the admin port.
    pub admin: SocketAddr,
    /// Threads that serve connections.
    pub threads: NonZeroUsize,
    /// Networks that may connect; empty for all.
    pub allow: Vec<IpNet>,
    /// Who may do what on the admin port.
    pub access: AccessConfig,
    /// The largest request.
    pub limits: Limits,
    /// The meaning of operation 8 from a client without a hello.
    pub legacy_dialect: LegacyRelease,
    /// Connections to all stores together.
    pub max_connections: usize,
    /// Connections from one address.
    pub max_connections_per_address: usize,
    /// Connections to the admin port.
    pub max_admin_connections: usize,
    /// Names in one store.
    pub max_keys: usize,
    /// Bytes of all stores and large buffers together.
    pub max_memory: usize,
    /// From the first byte to a whole first request.
    pub handshake_timeout: Duration,
    /// How long an unfinished request may stand still.
    pub request_timeout: Duration,
    /// How long a peer may read no reply.
    pub write_timeout: Duration,
    /// When left-over keys are dropped.
    pub stale_keys: StaleKeyConfig,
    /// What to look for in the jobs' traffic, and when to explain it.
    pub insight: InsightConfig,
    /// How long to wait for clients to leave when stopping.
    pub drain: Duration,
    /// Ports of the stores that are opened for single runs.
    pub store_ports: RangeInclusive<u16>,
    /// How long a run's store lives without a client.
    pub store_linger: Duration,
    /// How long a relay's clients stay while its link is away.
    pub link_grace: Duration,
    /// How long after a restart the relays of the last server are named that are not back.
    pub recovery: Duration,
    /// How long an announced pod counts after its last sign of life.
    pub pod_timeout: Duration,
    /// The host name that clients get for a run's store; by default the address on which a request came in.
    pub advertise_host: Option<String>,
    /// Names by which clients may address the admin port, besides addresses and names that only the server's
    /// own network knows: a name, `.DOMAIN` for all names in it, or `*`.
    pub own_names: Vec<String>,
    /// Values for runs of the native rendezvous whose first join leaves them open.
    pub rendezvous: Terms,
    /// Runs that are tracked at the same time (unmodified jobs and native ones), and native barriers.
    pub max_runs: usize,
    /// What is kept for a restart.
    pub journal: Option<JournalConfig>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        let any = |port| SocketAddr::new(std::net::Ipv6Addr::UNSPECIFIED.into(), port);
        Self {
            listen: vec![any(MAIN_STORE)],
            relays_only: false,
            admin: any(29501),
            threads: NonZeroUsize::MIN,
            allow: Vec::new(),
            access: AccessConfig::default(),
            limits: Limits::default(),
            legacy_dialect: LegacyRelease::default(),
            // As many as 100,000 ranks and their launchers need.
            max_connections: 250_000,
            max_connections_per_address: 250_000,
            max_admin_connections: 65_536,
            max_keys: 10_000_000,
            max_memory: 1 << 30,
            handshake_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_mins(1),
            stale_keys: StaleKeyConfig::default(),
            insight: InsightConfig::default(),
            drain: Duration::from_secs(30),
            store_ports: 29510..=29599,
            store_linger: Duration::from_mins(10),
            link_grace: Duration::from_secs(10),
            recovery: Duration::from_secs(2),
            pod_timeout: Duration::from_secs(30),
            advertise_host: None,
            own_names: Vec::new(),
            rendezvous: Terms::default(),
            max_runs: 1000,
            journal: None,
        }
    }
}

/// Who may do what on the admin port.
#[derive(Debug, Clone)]
pub struct AccessConfig {
    /// The tokens that there are. Without them operators are the peers on loopback.
    pub tokens: Option<Arc<TokenFile>>,
    /// Whether every request needs one.
    pub require_token: bool,
    /// Whether `/metrics` needs neither token nor certificate.
    pub open_metrics: bool,
    /// Time between two looks at the files of certificates and tokens.
    pub reload_every: Duration,
}

impl Default for AccessConfig {
    fn default() -> Self {
        let reload_every = Duration::from_secs(30);
        Self { tokens: None, require_token: false, open_metrics: false, reload_every }
    }
}

impl AccessConfig {
    /// Whether a peer that was let in by `grant` may go on. One that needed no token may.
    pub fn holds(&self, grant: Option<&Grant>) -> bool {
        grant.is_none_or(|grant| self.tokens.as_ref().is_some_and(|tokens| tokens.holds(grant)))
    }
}

/// What a server keeps where a restart finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalConfig {
    /// The folder.
    pub path: PathBuf,
    /// What acknowledged changes survive.
    pub durability: Durability,
    /// What happens when the folder takes no more.
    pub on_error: OnJournalError,
}

/// An etcd that keeps a journal for several servers, of which one leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdConfig {
    /// Its members.
    pub members: Vec<EtcdMember>,
    /// What the names of all keys begin with.
    pub prefix: String,
    /// The authority of its certificates, and this server's own; without it the connection is plain.
    pub tls: Option<ClientTls>,
    /// The user, and the file with the password.
    pub user: Option<(String, PathBuf)>,
    /// What this server is called among those at this etcd.
    pub name: String,
}

/// One member of an etcd.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EtcdMember {
    /// Its name or address.
    pub host: String,
    /// Its port for clients.
    pub port: u16,
}

impl std::fmt::Display for EtcdMember {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl EtcdConfig {
    /// The key that names the leader.
    pub fn leader(&self) -> String {
        format!("{}/leader", self.prefix)
    }
}

impl std::fmt::Display for EtcdConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let members: Vec<String> = self.members.iter().map(ToString::to_string).collect();
        write!(f, "etcd://{}/{}", members.join(","), self.prefix)
    }
}

/// What acknowledged changes survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Durability {
    /// The end of the process: each change is written to the file before its reply leaves.
    #[default]
    Process,
    /// Also a loss of power: replies wait until the disk has the change, many at once.
    Disk,
}

/// What happens when the journal cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum OnJournalError {
    /// Go on in memory, say so, and go on writing when it is possible again.
    #[default]
    Continue,
    /// End the server.
    Stop,
}

/// What insight does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InsightConfig {
    /// Whether the jobs' traffic is looked at.
    pub enabled: bool,
    /// A wait is explained when it has lasted this long.
    pub explain_after: Duration,
    /// Nodes to expect of unmodified jobs: minimum and maximum.
    pub nodes: Option<(u32, u32)>,
}

impl Default for InsightConfig {
    fn default() -> Self {
        Self { enabled: true, explain_after: Duration::from_secs(30), nodes: None }
    }
}

impl ServerConfig {
    /// Whether a peer with this address may connect.
    pub fn allows(&self, addr: IpAddr) -> bool {
        self.allow.is_empty() || self.allow.iter().any(|net| net.contains(&addr))
    }
}

//! `rallypoint serve`: its flags become a [`ServerConfig`]; binding, logging, signals.

mod flags;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::flags::{ListenOn, LogFormat};
use super::etcd::JournalPlace;
use super::launch::{environment, hostname, on_host_network};
use super::test_settings;
use super::{Outcome, UsageError};
use rallypoint_access::tls::{ServerTls, TlsConfig};
use rallypoint_access::tokens::TokenFile;
use rallypoint_node::launch::{self, Given};
use rallypoint_process as process;
use rallypoint_protocol::Limits;
use rallypoint_rendezvous::Terms;
use rallypoint_server::admin::{self, standby};
use rallypoint_server::config::{AccessConfig, InsightConfig, JournalConfig, ServerConfig};
use rallypoint_server::journal::etcd::Etcd;
use rallypoint_server::{self as server, DescriptorShares, Server};
use rallypoint_store::StaleKeyConfig;

pub(super) use self::flags::Args;

/// What this server is among the servers of one etcd.
enum Place {
    /// There is no etcd.
    Alone,
    /// It leads. Its admin port still answers as that of a server that stands by.
    Leads(Arc<Etcd>, (std::net::TcpListener, admin::Serving)),
    /// It was stopped before it led.
    Stopped,
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
                "the limit on open files has room for {} connections to the stores and {} to the admin port; \
                 for more raise it (ulimit -n, LimitNOFILE, the container runtime's default)",
                config.max_connections, config.max_admin_connections
            );
            // Nobody misses connections that nobody asked for.
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
                "nobody can show a token on a store's port, so all that reach {stores:?} may use the stores: \
                 --listen none lets clients in through relays only"
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

    /// Waits until this server leads, if others are at the same etcd. Until then it only answers for its
    /// health.
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
                "--durability and --on-journal-error are for a journal in a folder, and --journal names an \
                 etcd: there each change waits for a majority of the members, and nothing goes on in memory. \
                 Leave them out (RALLYPOINT_DURABILITY and RALLYPOINT_ON_JOURNAL_ERROR too)"
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
        "--only-on-index needs the pod's index, but RALLYPOINT_POD_INDEX and JOB_COMPLETION_INDEX are unset \
         or empty, and nothing else says it; an Indexed Job sets the latter, in a StatefulSet set the former \
         from the label apps.kubernetes.io/pod-index (`rallypoint env --explain` shows what is there)"
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
    fn a_host_knows_its_domains() {
        let pod = "search train.svc.k8s.example.com svc.k8s.example.com. lan\n\
                   nameserver 10.96.0.10\n\
                   options ndots:5\n";
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

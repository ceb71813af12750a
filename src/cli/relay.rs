//! `rallypoint relay`: a server on this node's loopback.

use std::future::poll_fn;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use super::serve::write_ports_file;
use super::terminal::say;
use super::units::{MaybeOff, duration_or_off, size};
use super::{Outcome, UsageError, poll, process, run_client};
use rallypoint_link::RelayLife;
use rallypoint_node::client::http::{self, AdminUrl};
use rallypoint_node::client::{resolve, source_towards};
use rallypoint_node::relay::{Bound, RelayConfig, RelayError, default_max_memory};
use rallypoint_process::{raise_descriptor_limit, random_number};

const AFTER_HELP: &str = "Point the processes of this node at the relay: MASTER_ADDR=127.0.0.1 \
                          MASTER_PORT=29500, --rdzv-endpoint 127.0.0.1:29500. Exit code: 0 stopped, 1 the \
                          server refuses this relay or a port is taken, 2 usage";

/// Bring a server to this node's loopback: processes here meet as if the server were on this host, and only
/// wait while the network to it is broken.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Args {
    /// The server's admin port
    #[arg(long, env = "RALLYPOINT_SERVER", value_name = "HOST:PORT")]
    server: AdminUrl,

    /// Where TCPStore clients of this node connect
    #[arg(long, env = "RALLYPOINT_RELAY_LISTEN", value_name = "ADDR:PORT", default_value_t = loopback(29500))]
    listen: SocketAddr,

    /// Where clients of the API on this node connect
    #[arg(long, env = "RALLYPOINT_RELAY_ADMIN", value_name = "ADDR:PORT", default_value_t = loopback(29501))]
    admin: SocketAddr,

    /// The relay's place at the server: each relay has its own [default: the pod's name with its UID or
    /// address; elsewhere the host's, with port and address]
    #[arg(long, env = "RALLYPOINT_RELAY_NAME", value_name = "NAME")]
    name: Option<String>,

    /// Close the clients when the server has been away for this long; off holds them for ever
    #[arg(long, env = "RALLYPOINT_GIVE_UP", value_name = "TIME", default_value_t = MaybeOff(Some(GIVE_UP)),
        value_parser = duration_or_off)]
    give_up: MaybeOff,

    /// Only processes of this user may connect, by the kernel's word [default: all that can reach the ports]
    #[arg(long, env = "RALLYPOINT_CLIENT_UID", value_name = "UID")]
    client_uid: Option<u32>,

    /// Memory for what clients send and for what they have not read [default: half of the control group's
    /// limit, 256MiB at most]
    #[arg(long, env = "RALLYPOINT_RELAY_MAX_MEMORY", value_name = "SIZE", value_parser = size)]
    max_memory: Option<usize>,

    /// File to write the bound ports to as JSON, for scripts that listen on port 0
    #[arg(long, env = "RALLYPOINT_RELAY_PORTS_FILE", value_name = "FILE")]
    ports_file: Option<PathBuf>,
}

/// How long clients are held by default while the server is unreachable.
pub(super) const GIVE_UP: Duration = Duration::from_mins(10);

/// Does `work` while the relay serves, and then stops the relay. If the server refuses the relay, users of
/// the relay see a closed port.
pub(super) async fn behind<T>(
    relay: Bound,
    config: RelayConfig,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    /// Time limit for the goodbye.
    const LAST: Duration = Duration::from_secs(2);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let mut serving = pin!(relay.serve(config, Box::new(say), async { drop(stopped.await) }));
    let mut work = pin!(work);
    let done = tokio::select! {
        done = &mut work => done,
        ended = &mut serving => {
            if let Err(error) = ended {
                say(error);
            }
            return work.await;
        }
    };
    drop(stop);
    let _said = tokio::time::timeout(LAST, serving).await;
    done
}

/// A relay without a given name.
#[derive(Debug)]
pub(super) struct Place<'a> {
    pub(super) server: &'a AdminUrl,
    /// The port on which it listens.
    pub(super) port: u16,
    /// The node's rank, if it is known.
    pub(super) node_rank: Option<u32>,
}

impl Place<'_> {
    /// A name that is unique, and that the successor of this relay gets again.
    pub(super) async fn name(&self) -> Result<String, UsageError> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let host = match variable("POD_NAME") {
            Some(pod) => pod,
            None if variable("KUBERNETES_SERVICE_HOST").is_some() => poll::host_name()?,
            None => format!("{}:{}", poll::host_name()?, self.port),
        };
        Ok(match variable("POD_UID") {
            Some(uid) => name_in_pod(&host, &uid),
            None => name_on_host(&host, self.own_address().await, self.node_rank),
        })
    }

    /// The address of this host towards the server; while the server's name does not resolve, the address
    /// towards the internet.
    async fn own_address(&self) -> Option<IpAddr> {
        const LIMIT: Duration = Duration::from_secs(3);
        /// An address for documentation; no host has it.
        const OUT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9);
        let server = resolve(self.server.endpoint(), LIMIT).await;
        let towards = server.ok().and_then(|addrs| addrs.first().copied());
        source_towards(towards.unwrap_or(OUT)).filter(|own| !own.is_loopback())
    }
}

/// Pods in several namespaces and clusters may share a name, but not a UID.
fn name_in_pod(pod: &str, uid: &str) -> String {
    format!("{pod}@{}", uid.chars().take(8).collect::<String>())
}

/// Hosts may share a name and, behind an address translation, an address as well.
fn name_on_host(host: &str, address: Option<IpAddr>, node_rank: Option<u32>) -> String {
    let address = address.map_or_else(String::new, |address| format!("@{address}"));
    let rank = node_rank.map_or_else(String::new, |rank| format!("#{rank}"));
    format!("{host}{address}{rank}")
}

/// Whether a server takes relays on its admin port. The error says why not.
pub(super) async fn takes_relays(admin: &AdminUrl) -> Result<(), String> {
    const LIMIT: Duration = Duration::from_secs(5);
    match http::request(admin, "GET", "/api/v1/link", LIMIT).await {
        // The server asks for the upgrade that a relay sends.
        Ok(answer) if answer.status == 426 => Ok(()),
        Ok(answer) => Err(format!("{admin} takes no relays: {} {}", answer.status, answer.text())),
        Err(error) => Err(format!("{admin}: {error}")),
    }
}

/// The loopback address with a port.
pub(super) const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let mut config = RelayConfig {
            server: self.server.clone(),
            listen: self.listen,
            admin: Some(self.admin),
            name: String::new(),
            life: RelayLife(random_number()),
            give_up: self.give_up.0,
            client_uid: self.client_uid,
            max_memory: self.max_memory.unwrap_or_else(default_max_memory),
        };
        raise_descriptor_limit();
        run_client(async {
            let place = Place { server: &self.server, port: self.listen.port(), node_rank: None };
            config.name = match self.name.clone() {
                Some(name) => name,
                None => place.name().await?,
            };
            let bound = Bound::bind(&config)?;
            let (store, admin) = (bound.store_addr()?, bound.admin_addr().unwrap_or(self.admin));
            if let Some(file) = &self.ports_file {
                write_ports_file(file, &[store], admin)?;
            }
            say(format_args!("relaying {} to {store} (store) and {admin} (API)", config.server.endpoint()));
            let mut stopped = pin!(process::unless_stopped(std::future::pending::<anyhow::Result<()>>()));
            let mut outcome = Outcome::Done;
            let stop = poll_fn(|cx| stopped.as_mut().poll(cx).map(drop));
            match bound.serve(config, Box::new(say), stop).await {
                Ok(()) => {}
                Err(error @ (RelayError::Refused(_) | RelayError::Mistaken(_))) => {
                    say(error);
                    outcome = Outcome::NotDone;
                }
                Err(error) => return Err(error.into()),
            }
            Ok(outcome)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_with_one_host_name_have_names_of_their_own() {
        assert_eq!(name_in_pod("train-0", "3c1f20aa-0000-4000-8000-000000000000"), "train-0@3c1f20aa");
        let address = |last| Some(IpAddr::from([10, 0, 0, last]));
        let three = [1, 2, 3].map(|last| name_on_host("gpu:29500", address(last), None));
        assert_eq!(three, ["gpu:29500@10.0.0.1", "gpu:29500@10.0.0.2", "gpu:29500@10.0.0.3"]);
        let behind_one = [0, 1].map(|rank| name_on_host("gpu:29500", address(15), Some(rank)));
        assert_eq!(behind_one, ["gpu:29500@10.0.0.15#0", "gpu:29500@10.0.0.15#1"]);
        assert_eq!(name_on_host("gpu:29500", None, None), "gpu:29500");
    }
}

//! `rallypoint relay`: the server on this node's loopback.

use std::future::poll_fn;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::pin::pin;

use super::serve::write_ports_file;
use super::terminal::say;
use super::units::{MaybeOff, duration_or_off};
use super::{Outcome, poll, process, run_client};
use crate::core::link::RelayLife;
use crate::node::client::http::AdminUrl;
use crate::node::relay::{Bound, RelayConfig, RelayError};

const AFTER_HELP: &str = "Point the processes of this node at the relay: MASTER_ADDR=127.0.0.1 MASTER_PORT=29500, \
                          --rdzv-endpoint 127.0.0.1:29500. Exit code: 0 stopped, 1 the server refuses this relay or a port is \
                          taken, 2 usage";

/// Bring a server to this node's loopback: processes here meet as if the server were on this host, and only wait while
/// the network to it is broken.
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

    /// The relay's place at the server: each relay has its own [default: the host's name, in Kubernetes the pod's]
    #[arg(long, env = "RALLYPOINT_RELAY_NAME", value_name = "NAME")]
    name: Option<String>,

    /// Close the clients when the server has been away for this long; off holds them for ever
    #[arg(long, env = "RALLYPOINT_GIVE_UP", value_name = "TIME", default_value = "10m", value_parser = duration_or_off)]
    give_up: MaybeOff,

    /// File to write the bound ports to as JSON, for scripts that listen on port 0
    #[arg(long, env = "RALLYPOINT_RELAY_PORTS_FILE", value_name = "FILE")]
    ports_file: Option<PathBuf>,
}

const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let name = self.name.map_or_else(poll::host_name, Ok)?;
        let config = RelayConfig {
            server: self.server.endpoint().clone(),
            listen: self.listen,
            admin: Some(self.admin),
            name,
            life: RelayLife(RandomState::new().hash_one(std::process::id())),
            give_up: self.give_up.0,
        };
        run_client(async {
            let bound = Bound::bind(&config).await?;
            let (store, admin) = (bound.store_addr()?, bound.admin_addr().unwrap_or(self.admin));
            if let Some(file) = &self.ports_file {
                write_ports_file(file, &[store], admin)?;
            }
            say(format_args!("relaying {} to {store} (store) and {admin} (API)", config.server));
            let mut stopped = pin!(process::unless_stopped(std::future::pending::<anyhow::Result<()>>()));
            let mut outcome = Outcome::Done;
            let stop = poll_fn(|cx| stopped.as_mut().poll(cx).map(drop));
            match bound.serve(config, Box::new(say), stop).await {
                Ok(()) => {}
                Err(error @ RelayError::Refused(_)) => {
                    say(error);
                    outcome = Outcome::NotDone;
                }
                Err(error) => return Err(error.into()),
            }
            Ok(outcome)
        })
    }
}

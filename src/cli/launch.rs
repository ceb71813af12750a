//! The common parts of the launch commands: their flags, the process's environment, and the derivation's
//! errors as usage errors.

use super::UsageError;
use rallypoint_node::client::Endpoint;
use rallypoint_node::launch::{Derived, Environment, Given, LaunchEnv, Meeting, Processes, Torchrun, derive};
use rallypoint_protocol::ids::Nodes;

/// Values that the user may give instead of a derivation.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct LaunchArgs {
    /// This node's rank, if the environment does not say it or contradicts itself
    #[arg(long, env = "RALLYPOINT_NODE_RANK", value_name = "N")]
    node_rank: Option<String>,

    /// Number of nodes
    #[arg(long, env = "RALLYPOINT_NODES", value_name = "N|MIN:MAX")]
    nodes: Option<String>,

    /// Processes on each node: a number, or auto, gpu, cpu
    #[arg(long, env = "RALLYPOINT_NPROC_PER_NODE", value_name = "N|auto")]
    nproc_per_node: Option<String>,

    /// Name of the run
    #[arg(long, env = "RALLYPOINT_RUN_ID", value_name = "ID")]
    run_id: Option<String>,
}

impl LaunchArgs {
    /// Whether the user gives a number of nodes: `wait` then also waits for them.
    pub(super) fn gathers(&self) -> bool {
        self.nodes.as_deref().is_some_and(|nodes| !nodes.trim().is_empty())
    }

    /// The values that the user gives. An empty variable counts as unset.
    pub(super) fn given(&self, endpoint: Option<&str>) -> Result<Given, UsageError> {
        fn read<T>(
            text: Option<&str>,
            flag: &str,
            form: &str,
            parse: impl Fn(&str) -> Option<T>,
        ) -> Result<Option<T>, UsageError> {
            let Some(text) = text.map(str::trim).filter(|text| !text.is_empty()) else { return Ok(None) };
            let wrong = || {
                let variable =
                    format!("RALLYPOINT_{}", flag.trim_start_matches('-').replace('-', "_").to_uppercase());
                let from_it = std::env::var(&variable).is_ok_and(|value| value.trim() == text);
                let from = if from_it { &variable } else { flag };
                UsageError(format!("{from} is `{text}`; write {form}"))
            };
            parse(text).map(Some).ok_or_else(wrong)
        }
        let endpoint = endpoint.filter(|text| !text.trim().is_empty());
        Ok(Given {
            node_rank: read(self.node_rank.as_deref(), "--node-rank", "a number from 0", |text| {
                text.parse().ok()
            })?,
            nodes: read(self.nodes.as_deref(), "--nodes", "N or MIN:MAX", Nodes::parse)?,
            processes: read(
                self.nproc_per_node.as_deref(),
                "--nproc-per-node",
                "a number from 1, or auto",
                Processes::parse,
            )?,
            endpoint: endpoint.map(parse_endpoint).transpose()?,
            run_id: read(self.run_id.as_deref(), "--run-id", "1 to 256 bytes", |text| {
                (text.len() <= 256).then(|| text.to_owned())
            })?,
            hostname: hostname(),
            host_network: on_host_network(),
        })
    }

    /// Derives the place of this process in its job.
    pub(super) fn derive(
        &self,
        endpoint: Option<&str>,
        env: &Environment,
        command: Option<&Torchrun>,
    ) -> Result<LaunchEnv, UsageError> {
        let launch = derive(env, &self.given(endpoint)?, command);
        launch.map_err(|error| UsageError(error.to_string()))
    }
}

fn parse_endpoint(text: &str) -> Result<Endpoint, UsageError> {
    text.parse().map_err(|error| UsageError(format!("HOST:PORT (RALLYPOINT_ENDPOINT): {error}")))
}

/// The process's environment. Variables that are not UTF-8 are ignored.
pub(super) fn environment() -> Environment {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).collect()
}

/// The host's name from the system, since a shell may not export `HOSTNAME`.
pub(super) fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Whether the pod has its node's network and name, as the kubelet says in the file that it writes.
pub(super) fn on_host_network() -> Option<bool> {
    let hosts = std::fs::read_to_string("/etc/hosts").ok()?;
    let line = hosts.lines().next().filter(|line| line.contains("Kubernetes-managed"))?;
    Some(line.contains("host network"))
}

/// The endpoint for a command that needs no other value, and takes the endpoint as its first word.
pub(super) fn endpoint(given: Option<&str>) -> Result<Derived<Meeting>, UsageError> {
    let given = given.filter(|text| !text.trim().is_empty()).map(parse_endpoint).transpose()?;
    let env = environment();
    let said =
        Given { endpoint: given, hostname: hostname(), host_network: on_host_network(), ..Given::default() };
    let found =
        rallypoint_node::launch::endpoint(&env, &said).map_err(|error| UsageError(error.to_string()))?;
    let mut found = found.ok_or_else(|| UsageError(no_endpoint(&env)))?;
    if found.from == "--endpoint" {
        found.from = "HOST:PORT".into();
    }
    Ok(found)
}

/// The advice if nothing names the store.
pub(super) fn no_endpoint(env: &Environment) -> String {
    const ASKED: [&str; 4] = ["RALLYPOINT_ENDPOINT", "PET_RDZV_ENDPOINT", "PET_MASTER_ADDR", "MASTER_ADDR"];
    let message = "no endpoint; give HOST:PORT, or set RALLYPOINT_ENDPOINT, PET_RDZV_ENDPOINT, or \
                   MASTER_ADDR and MASTER_PORT";
    let empty: Vec<&str> = ASKED.into_iter().filter(|name| env.is_blank(name)).collect();
    if empty.is_empty() {
        message.into()
    } else {
        format!("{message} ({} is set but empty)", empty.join(", "))
    }
}

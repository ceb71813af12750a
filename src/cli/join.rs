//! `rallypoint join`: meets the other nodes of a run and prints them, for launchers that are not PyTorch.

use std::fmt::Write as _;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use clap::builder::BoolishValueParser;

use super::terminal::{print, print_line, say};
use super::units::{peer_duration, positive_duration};
use super::{Outcome, poll, run_client};
use rallypoint_api::{self as api, PeerDuration};
use rallypoint_node::client::http::{self, AdminUrl, DEFAULT_ADMIN};

const AFTER_HELP: &str = "The node holds its place until the round is complete; afterwards nobody notices \
                          when it is gone. A second `join` of the same --node is a new process in its place. \
                          Exit code: 0 met, 1 not in time or refused, 2 usage";

/// Meet the other nodes of a run: waits until enough are there and prints who they are, by rank.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Args {
    /// Name of the run, the same for all nodes that meet
    #[arg(long, env = "RALLYPOINT_RUN_ID", value_name = "RUN")]
    run_id: String,

    /// How many nodes meet; with MIN:MAX at least MIN, and up to MAX if they come within --last-call
    #[arg(long, env = "RALLYPOINT_NODES", value_name = "MIN[:MAX]")]
    nodes: Nodes,

    /// This node's id; each node has its own [default: another one for each process, with the host's name as
    /// node name]
    #[arg(long, env = "RALLYPOINT_NODE", value_name = "ID")]
    node: Option<String>,

    /// The rank this node must get
    #[arg(long, env = "RALLYPOINT_NODE_RANK", value_name = "RANK")]
    node_rank: Option<u32>,

    /// What this node is, such as head; its peers see it
    #[arg(long, env = "RALLYPOINT_ROLE", value_name = "ROLE")]
    role: Option<String>,

    /// Any text for its peers, at most 4 KiB; with --format json they read it among the participants
    #[arg(long, env = "RALLYPOINT_PAYLOAD", value_name = "TEXT")]
    payload: Option<String>,

    /// Where its peers reach this node [default: the address that the server sees]
    #[arg(long, env = "RALLYPOINT_ADDR", value_name = "ADDR")]
    addr: Option<String>,

    /// With MIN:MAX, how long to wait for more once MIN are there [default: the server's, 30s]
    #[arg(long, env = "RALLYPOINT_JOIN_LAST_CALL", value_name = "TIME", value_parser = peer_duration)]
    last_call: Option<PeerDuration>,

    /// Also open a TCPStore for the workers of this round, printed as MASTER_ADDR and MASTER_PORT
    #[arg(long, env = "RALLYPOINT_STORE_PER_ROUND", value_parser = BoolishValueParser::new())]
    store: bool,

    /// Give up after this time, and leave
    #[arg(long, env = "RALLYPOINT_JOIN_TIMEOUT", value_name = "TIME", default_value = "60s",
        value_parser = positive_duration)]
    timeout: Duration,

    /// What to print: the answer as JSON, variables for a shell's eval, or the addresses by rank, one a line
    #[arg(
        short = 'o',
        long,
        alias = "output",
        env = "RALLYPOINT_JOIN_FORMAT",
        value_name = "FORMAT",
        default_value = "json"
    )]
    format: Format,

    /// The server's admin port
    #[arg(long, env = "RALLYPOINT_ADMIN", value_name = "URL", default_value = DEFAULT_ADMIN)]
    admin: AdminUrl,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Json,
    Env,
    Hosts,
}

/// A number of nodes: `4` or `4:8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Nodes {
    min: u32,
    max: u32,
}

impl FromStr for Nodes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (min, max) = text.split_once(':').unwrap_or((text, text));
        match (min.parse(), max.parse()) {
            (Ok(min), Ok(max)) if 0 < min && min <= max => Ok(Self { min, max }),
            _ => Err("write it like 4, or 4:8 with the least first".into()),
        }
    }
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let (node, name) = if let Some(node) = &self.node {
            (node.clone(), None)
        } else {
            let host = poll::host_name()?;
            (poll::node_id(&host), Some(host))
        };
        let path = |what: &str| format!("/api/v1/runs/{}/{what}", http::path_part(&self.run_id));
        let join_id = poll::unique_token();
        let body =
            |wait_seconds| api::Join { name: name.clone(), ..self.body(&node, &join_id, wait_seconds) };
        let reason = |waiting: &api::JoinWaiting| {
            format!("{} round {}: {}", waiting.run_id, waiting.round, waiting.reason)
        };
        let joined = run_client(async {
            let joined = poll::until_done(&self.admin, &path("join"), self.timeout, body, reason).await;
            if matches!(joined, Err(poll::Ended::Late(..))) {
                // The others must not count on this node. If the server is unreachable, the missing
                // keep-alives have the same effect.
                let leave =
                    api::Leave { node: node.clone(), reason: Some("gave up waiting".into()), outcome: None };
                let _ = http::post(&self.admin, &path("leave"), &leave, Duration::from_secs(5)).await;
            }
            joined.map_err(|ended| match ended {
                poll::Ended::Refused(answer) if answer.code().as_deref() == Some("replaced") => {
                    anyhow!("{}; another process joins as {node}: give each its own --node", answer.text())
                }
                other => other.into_error(),
            })
        })?;
        let round: api::JoinComplete =
            serde_json::from_slice(&joined.body).context("the server's answer is not understood")?;
        say(format_args!(
            "{} round {} is complete: rank {} of {}",
            round.run_id, round.round, round.group_rank, round.group_world_size
        ));
        let peers = round.participants.as_deref().unwrap_or_default();
        match self.format {
            Format::Json => print_line(serde_json::to_string(&round)?)?,
            Format::Env => print(variables(&round, peers).as_bytes())?,
            Format::Hosts => peers.iter().try_for_each(|peer| print_line(&peer.address))?,
        }
        Ok(Outcome::Done)
    }

    fn body(&self, node: &str, join_id: &str, wait_seconds: PeerDuration) -> api::Join {
        api::Join {
            node: node.to_owned(),
            join_id: join_id.to_owned(),
            name: None,
            address: self.addr.clone(),
            node_rank: self.node_rank,
            role: self.role.clone(),
            payload: self.payload.clone(),
            local_world_size: None,
            torch_version: None,
            min_nodes: self.nodes.min,
            max_nodes: Some(self.nodes.max),
            join_timeout_seconds: None,
            last_call_seconds: self.last_call,
            keep_alive_seconds: None,
            keep_alive_misses: None,
            grace_seconds: None,
            store: Some(self.store),
            heartbeat: false,
            previous: None,
            participants: true,
            wait_seconds,
        }
    }
}

/// Assignments that a shell can evaluate. Values from peers are quoted.
fn variables(round: &api::JoinComplete, peers: &[api::Participant]) -> String {
    let mut text = String::new();
    let mut set = |name: &str, value: &str| {
        let _ = writeln!(text, "{name}='{}'", value.replace('\'', r"'\''"));
    };
    set("ROUND", &round.round.to_string());
    set("NODE_RANK", &round.group_rank.to_string());
    set("NNODES", &round.group_world_size.to_string());
    if let Some(store) = &round.store {
        set("MASTER_ADDR", &store.host);
        set("MASTER_PORT", &store.port.to_string());
    }
    let addresses = |role: Option<&str>| {
        let wanted = peers.iter().filter(|peer| role.is_none() || peer.role.as_deref() == role);
        wanted.map(|peer| peer.address.as_str()).collect::<Vec<_>>().join(" ")
    };
    set("PEERS", &addresses(None));
    let roles: std::collections::BTreeSet<&str> =
        peers.iter().filter_map(|peer| peer.role.as_deref()).collect();
    for role in roles {
        let is_word = |c: char| c.is_ascii_alphanumeric();
        let name: String =
            role.chars().map(|c| if is_word(c) { c.to_ascii_uppercase() } else { '_' }).collect();
        set(&format!("PEERS_{name}"), &addresses(Some(role)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_nodes_are_read_as_written() {
        assert_eq!("4".parse(), Ok(Nodes { min: 4, max: 4 }));
        assert_eq!("2:4".parse(), Ok(Nodes { min: 2, max: 4 }));
        for bad in ["0", "4:2", "", "4:", "a"] {
            assert!(bad.parse::<Nodes>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_peers_chose_cannot_run_in_a_shell() {
        let peer = |rank: u32, role: &str, address: &str| api::Participant {
            group_rank: rank,
            node: rank.to_string(),
            name: rank.to_string(),
            address: address.into(),
            role: Some(role.into()),
            local_world_size: None,
            payload: None,
        };
        let round = api::JoinComplete {
            state: api::JoinState::Complete,
            run_id: "r".into(),
            round: 3,
            group_rank: 1,
            group_world_size: 2,
            store: Some(api::StoreAddress { host: "rally".into(), port: 29510 }),
            keep_alive_seconds: 5.0,
            keep_alive_misses: 3,
            gathered_seconds: 0.1,
            participants: None,
        };
        let peers = [peer(0, "head", "10.0.0.1"), peer(1, "gpu;x", "'$(reboot)'")];
        let wanted = "ROUND='3'\nNODE_RANK='1'\nNNODES='2'\nMASTER_ADDR='rally'\nMASTER_PORT='29510'\n\
                      PEERS='10.0.0.1 '\\''$(reboot)'\\'''\nPEERS_GPU_X=''\\''$(reboot)'\\'''\n\
                      PEERS_HEAD='10.0.0.1'\n";
        assert_eq!(variables(&round, &peers), wanted);
    }
}

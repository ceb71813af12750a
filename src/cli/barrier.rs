//! `rallypoint barrier`: waits until all have arrived.

use std::time::Duration;

use super::flags::Output;
use super::terminal::print_line;
use super::units::positive_peer_duration;
use super::{Outcome, poll, run_client};
use rallypoint_api::{self as api, PeerDuration};
use rallypoint_node::client::http::{self, AdminUrl, DEFAULT_ADMIN};

/// Wait until all have arrived at a barrier. It can be used again once it is released.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Name of the barrier, the same for all that meet at it, such as RUN/epoch
    #[arg(value_name = "NAME", env = "RALLYPOINT_BARRIER")]
    name: String,

    /// How many participants arrive
    #[arg(
        long,
        env = "RALLYPOINT_BARRIER_NODES",
        value_name = "N",
        required_unless_present = "members",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    nodes: Option<u32>,

    /// Ids of all participants, so that the missing ones can be named
    #[arg(long, env = "RALLYPOINT_MEMBERS", value_name = "ID,ID", value_delimiter = ',')]
    members: Option<Vec<String>>,

    /// This node's id; each node has its own [default: another one for each process; with --members the
    /// host's name]
    #[arg(long, env = "RALLYPOINT_NODE", value_name = "ID")]
    node: Option<String>,

    /// Give up after this time; the arrival is taken back
    #[arg(long, env = "RALLYPOINT_BARRIER_TIMEOUT", value_name = "TIME", default_value = "60s",
        value_parser = positive_peer_duration)]
    timeout: PeerDuration,

    #[command(flatten)]
    output: Output,

    /// The server's admin port
    #[arg(long, env = "RALLYPOINT_ADMIN", value_name = "URL", default_value = DEFAULT_ADMIN)]
    admin: AdminUrl,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let path = format!("/api/v1/barriers/{}/arrive", http::path_part(&self.name));
        let participant = match &self.node {
            Some(node) => node.clone(),
            // With --members, the id must be one of them.
            None if self.members.is_some() => poll::host_name()?,
            None => poll::node_id(&poll::host_name()?),
        };
        let arrival_id = poll::unique_token();
        let body = |wait_seconds| api::Arrive {
            participant: participant.clone(),
            arrival_id: arrival_id.clone(),
            world_size: self.nodes,
            members: self.members.clone(),
            timeout_seconds: self.timeout,
            wait_seconds,
        };
        let reason = |waiting: &api::ArriveWaiting| {
            let missing = match waiting.missing.as_slice() {
                [] => String::new(),
                names => format!("; missing: {}", names.join(", ")),
            };
            format!("{}: {} of {} arrived{missing}", waiting.barrier, waiting.arrived, waiting.world_size)
        };
        // The server knows the missing participants when the time is over, so give it a moment to answer.
        let patience = self.timeout.get().saturating_add(Duration::from_secs(2));
        let released = run_client(async {
            let released = poll::until_done(&self.admin, &path, patience, body, reason).await;
            released.map_err(poll::Ended::into_error)
        })?;
        if self.output.is_json() {
            print_line(String::from_utf8_lossy(&released.body))?;
        }
        Ok(Outcome::Done)
    }
}

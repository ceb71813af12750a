//! `rallypoint leave`: tells the other nodes that a node leaves.

use std::time::Duration;

use anyhow::{Context, bail};
use clap::ValueEnum;

use super::terminal::say;
use super::units::duration;
use super::{Outcome, poll, run_client};
use rallypoint_api as api;
use rallypoint_node::client::http::{self, AdminUrl, DEFAULT_ADMIN};

/// Leave a run: the node's place is free at once, and the others know at once.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The run
    #[arg(long, env = "RALLYPOINT_RUN_ID", value_name = "RUN")]
    run_id: String,

    /// This node's id, as it joined, or its name if no other node has it [default: the host's name]
    #[arg(long, env = "RALLYPOINT_NODE", value_name = "ID")]
    node: Option<String>,

    /// The reason that the other nodes are told
    #[arg(long, env = "RALLYPOINT_REASON", value_name = "TEXT")]
    reason: Option<String>,

    /// How the node's work ended, if it is known: when all nodes of the round have succeeded, the run has
    /// finished
    #[arg(long, env = "RALLYPOINT_OUTCOME", value_name = "OUTCOME")]
    outcome: Option<OutcomeFlag>,

    /// Give up after this time
    #[arg(long, env = "RALLYPOINT_LEAVE_TIMEOUT", value_name = "TIME", default_value = "10s",
        value_parser = duration)]
    timeout: Duration,

    /// The server's admin port
    #[arg(long, env = "RALLYPOINT_ADMIN", value_name = "URL", default_value = DEFAULT_ADMIN)]
    admin: AdminUrl,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OutcomeFlag {
    /// The work is done: the others go on without the node
    Succeeded,
    /// The work failed: the others are told to join again
    Failed,
}

impl From<OutcomeFlag> for api::Outcome {
    fn from(flag: OutcomeFlag) -> Self {
        match flag {
            OutcomeFlag::Succeeded => Self::Succeeded,
            OutcomeFlag::Failed => Self::Failed,
        }
    }
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let node = self.node.clone().map_or_else(poll::host_name, Ok)?;
        let left = run_client(async {
            if self.leave(&node).await? {
                return Ok(true);
            }
            // `node` may be a name: the name is what every output shows.
            match self.ids_of(&node).await.as_slice() {
                [] => Ok(false),
                [id] => self.leave(id).await,
                ids => bail!(
                    "{} nodes of run {} have the name {node}: say the id of one of them with --node: {}",
                    ids.len(),
                    self.run_id,
                    ids.join(", ")
                ),
            }
        })?;
        say(format_args!("{node} {} run {}", if left { "left" } else { "was not in" }, self.run_id));
        Ok(if left { Outcome::Done } else { Outcome::NotDone })
    }

    fn path(&self) -> String {
        format!("/api/v1/runs/{}", http::path_part(&self.run_id))
    }

    /// Leaves with this id. Returns whether the node was in the run.
    async fn leave(&self, node: &str) -> anyhow::Result<bool> {
        let path = format!("{}/leave", self.path());
        let outcome = self.outcome.map(Into::into);
        let body = api::Leave { node: node.to_owned(), reason: self.reason.clone(), outcome };
        let asked = http::post(&self.admin, &path, &body, self.timeout).await;
        let answer = asked.with_context(|| format!("{}{path}", self.admin))?;
        if !answer.is_success() {
            bail!("{} ({})", answer.text(), answer.status);
        }
        let done: api::Left =
            serde_json::from_slice(&answer.body).context("the server's answer is not understood")?;
        Ok(done.left)
    }

    /// The ids of present nodes with this name, if the server shows them.
    async fn ids_of(&self, name: &str) -> Vec<String> {
        let path = format!("{}?kind=native", self.path());
        let asked = http::request(&self.admin, "GET", &path, self.timeout).await.ok();
        let shown = asked.and_then(|answer| serde_json::from_slice::<api::Run>(&answer.body).ok());
        let nodes = shown.into_iter().flat_map(|run| run.participants);
        let is_there = |node: &api::Node| node.name == name && node.state != api::NodeState::Gone;
        nodes.filter(is_there).map(|node| node.node_id).collect()
    }
}

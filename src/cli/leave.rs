//! `rallypoint leave`: tells the others that a node goes.

use std::time::Duration;

use anyhow::{Context, bail};

use super::terminal::say;
use super::units::duration;
use super::{Outcome, poll, run_client};
use crate::api;
use crate::node::client::http::{self, AdminUrl, DEFAULT_ADMIN};

/// Leave a run: the node's place is free at once, and the others know at once.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The run
    #[arg(long, env = "RALLYPOINT_RUN_ID", value_name = "RUN")]
    run_id: String,

    /// This node's id, as it joined [default: the host's name]
    #[arg(long, env = "RALLYPOINT_NODE", value_name = "ID")]
    node: Option<String>,

    /// The reason that the other nodes are told
    #[arg(long, env = "RALLYPOINT_REASON", value_name = "TEXT")]
    reason: Option<String>,

    /// How the node's work ended, if it is known: when all nodes of the round have succeeded, the run has finished
    #[arg(long, env = "RALLYPOINT_OUTCOME", value_name = "OUTCOME")]
    outcome: Option<api::Outcome>,

    /// Give up after this time
    #[arg(long, env = "RALLYPOINT_LEAVE_TIMEOUT", value_name = "TIME", default_value = "10s", value_parser = duration)]
    timeout: Duration,

    /// The server's admin port
    #[arg(long, env = "RALLYPOINT_ADMIN", value_name = "URL", default_value = DEFAULT_ADMIN)]
    admin: AdminUrl,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let path = format!("/api/v1/runs/{}/leave", http::path_part(&self.run_id));
        let node = self.node.map_or_else(poll::host_name, Ok)?;
        let body = api::Leave { node: node.clone(), reason: self.reason, outcome: self.outcome };
        let answer = run_client(async {
            let asked = http::post(&self.admin, &path, &body, self.timeout).await;
            asked.with_context(|| format!("{}{path}", self.admin))
        })?;
        if !answer.is_success() {
            bail!("{} ({})", answer.text(), answer.status);
        }
        let done: api::Left =
            serde_json::from_slice(&answer.body).context("the server's answer is not understood")?;
        say(format_args!("{node} {} run {}", if done.left { "left" } else { "was not in" }, self.run_id));
        Ok(if done.left { Outcome::Done } else { Outcome::NotDone })
    }
}

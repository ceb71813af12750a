//! `rallypoint health`: turns the answer of the admin port's health routes into an exit code.

use std::time::Duration;

use anyhow::{Context, bail};
use clap::builder::BoolishValueParser;

use super::flags::AdminPort;
use super::units::duration;
use super::{Outcome, run_client};
use rallypoint_node::client::http;

/// Tell by the exit code whether a server is healthy: 0 if it is ready, 1 if not. For exec probes in an image
/// without a shell.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    admin: AdminPort,

    /// Ask if the server is alive, not if it is ready
    #[arg(long, env = "RALLYPOINT_LIVE", value_parser = BoolishValueParser::new())]
    live: bool,

    /// Give up after this time
    #[arg(long, env = "RALLYPOINT_HEALTH_TIMEOUT", value_name = "TIME", default_value = "2s",
        value_parser = duration)]
    timeout: Duration,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let admin = self.admin.url();
        let path = if self.live { "/livez" } else { "/readyz" };
        let answer = run_client(async {
            let asked = http::request(&admin, "GET", path, self.timeout).await;
            asked.with_context(|| format!("{admin}{path}"))
        })?;
        if !answer.is_success() {
            bail!("{admin}{path}: {} ({})", answer.text(), answer.status);
        }
        println!("ok");
        Ok(Outcome::Done)
    }
}

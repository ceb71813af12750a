//! `rallypoint wait`: waits until a TCPStore answers and, with `--nodes`, until all pods are there. Says why
//! it waits.

use std::time::Duration;

use anyhow::bail;
use tokio::time::Instant;

use super::flags::Output;
use super::gather::{self, RetryPolicy};
use super::launch::{self, LaunchArgs, environment};
use super::news::Reason;
use super::reach::{Ended, admin_beside, reach, until_relays_only};
use super::terminal::{print_line, say};
use super::units::duration;
use super::{Outcome, UsageError, process, run_client};
use crate::core::ids::Elapsed;
use crate::node::client::Endpoint;
use crate::node::client::http::AdminUrl;
use crate::node::doctor::{RELAYS_ONLY, RELAYS_ONLY_REMEDY};
use crate::node::launch::LaunchEnv;

const AFTER_HELP: &str = "Each try resolves the name, connects, says hello and pings. stderr says which step fails and \
                          why. Exit code: 0 it answers, 1 it did not in time, 2 usage";

/// Wait until a TCPStore answers: resolve, connect, hello, ping; with --nodes also until that many pods have
/// announced themselves. stderr says which step fails and why, and which pods are missing.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Args {
    /// The store [default: from PET_RDZV_ENDPOINT, else PET_MASTER_ADDR or MASTER_ADDR with their ports]
    #[arg(value_name = "HOST:PORT", env = "RALLYPOINT_ENDPOINT")]
    endpoint: Option<String>,

    #[command(flatten)]
    launch: LaunchArgs,

    /// The admin port, for --nodes [default: port 29501 of the store's host]
    #[arg(long, env = "RALLYPOINT_ADMIN", value_name = "URL")]
    admin: Option<AdminUrl>,

    /// Give up after this time
    #[arg(long, env = "RALLYPOINT_WAIT_TIMEOUT", value_name = "TIME", default_value = "10m", value_parser = duration)]
    timeout: Duration,

    /// Pause between two tries
    #[arg(long, env = "RALLYPOINT_WAIT_INTERVAL", value_name = "TIME", default_value = "1s", value_parser = duration)]
    interval: Duration,

    #[command(flatten)]
    output: Output,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let found = launch::endpoint(self.endpoint.as_deref())?;
        let (endpoint, from) = (found.value, format!(" (from {})", found.from));
        let gathers = if self.launch.gathers() {
            Some(self.launch.derive(self.endpoint.as_deref(), &environment(), None)?)
        } else {
            None
        };
        say(format_args!("waiting up to {} for {endpoint}{from}", Elapsed(self.timeout)));
        let outcome = run_client(process::unless_stopped(self.wait_for_all(&endpoint, gathers.as_ref())))?;
        Ok(outcome.unwrap_or_else(|stopped| stopped))
    }

    async fn wait_for_all(
        &self,
        endpoint: &Endpoint,
        gathers: Option<&LaunchEnv>,
    ) -> anyhow::Result<Outcome> {
        let mut say = |line: String| say(line);
        let (started, beside) = (Instant::now(), AdminUrl::beside(endpoint));
        let ended = tokio::select! {
            ended = reach(endpoint, self.timeout, self.interval, &mut say) => ended,
            () = until_relays_only(self.admin.as_ref().unwrap_or(&beside)) => {
                let text = format!("{RELAYS_ONLY}: {RELAYS_ONLY_REMEDY}");
                Ended { waited: started.elapsed(), outcome: Err(Reason { step: "relay", text }) }
            }
        };
        if self.output.is_json() && (gathers.is_none() || ended.outcome.is_err()) {
            print_line(ended.to_json(endpoint))?;
        }
        let addr = match &ended.outcome {
            Ok(addr) => *addr,
            Err(reason) => bail!("gave up on {endpoint} after {}: {}", Elapsed(ended.waited), reason.text),
        };
        say(format!("{addr} answers after {}", Elapsed(ended.waited)));
        let Some(launch) = gathers else { return Ok(Outcome::Done) };
        let admin = match &self.admin {
            Some(admin) => admin.clone(),
            None => admin_beside(endpoint, addr).await,
        };
        // Whether a finished run is started again is for `run` to ask.
        let payload = gather::AnnouncePayload::of(launch, None, true).map_err(UsageError)?;
        let patience = RetryPolicy { whole: self.timeout.saturating_sub(ended.waited), pause: self.interval };
        let gathered = gather::gather(endpoint, &admin, &payload, patience, &mut say).await;
        if self.output.is_json() {
            print_line(gathered.to_json(endpoint))?;
        }
        gathered.finish(&payload).map(|_| Outcome::Done)
    }
}

//! `rallypoint wait`: waits until a TCPStore answers and, with `--nodes`, until all pods have announced
//! themselves. Reports why it waits.

use std::time::Duration;

use anyhow::bail;
use tokio::time::Instant;

use super::exit_codes::ExitCodes;
use super::flags::Output;
use super::gather::{self, RetryPolicy};
use super::launch::{self, LaunchArgs, environment};
use super::news::Reason;
use super::reach::{Ended, Port, admin_beside, admin_of, reach, until_relays_only};
use super::terminal::{print_line, say};
use super::units::duration;
use super::{Outcome, UsageError, process, run_client};
use rallypoint_doctor::{RELAYS_ONLY, RELAYS_ONLY_REMEDY};
use rallypoint_node::client::http::AdminUrl;
use rallypoint_node::launch::{LaunchEnv, Meeting};
use rallypoint_protocol::ids::Elapsed;

const AFTER_HELP: &str = "Each try resolves the name, connects, says hello and pings. stderr says which step \
                          fails and why. Exit code: 0 it answers, 1 it did not in time, 2 usage";

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
    #[arg(long, env = "RALLYPOINT_WAIT_TIMEOUT", value_name = "TIME", default_value = "10m",
        value_parser = duration)]
    timeout: Duration,

    /// Pause between two tries
    #[arg(long, env = "RALLYPOINT_WAIT_INTERVAL", value_name = "TIME", default_value = "1s",
        value_parser = duration)]
    interval: Duration,

    #[command(flatten)]
    exit_codes: ExitCodes,

    #[command(flatten)]
    output: Output,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        self.exit_codes.of(self.wait())
    }

    fn wait(&self) -> anyhow::Result<Outcome> {
        let found = launch::endpoint(self.endpoint.as_deref())?;
        let (meeting, from) = (found.value, format!(" (from {})", found.from));
        let gathers = if self.launch.gathers() {
            Some(self.launch.derive(self.endpoint.as_deref(), &environment(), None)?)
        } else {
            None
        };
        say(format_args!("waiting up to {} for {meeting}{from}", Elapsed(self.timeout)));
        let outcome = run_client(process::unless_stopped(self.wait_for_all(&meeting, gathers.as_ref())))?;
        Ok(outcome.unwrap_or_else(|stopped| stopped))
    }

    async fn wait_for_all(&self, meeting: &Meeting, gathers: Option<&LaunchEnv>) -> anyhow::Result<Outcome> {
        let mut say = |line: String| say(line);
        let (started, endpoint) = (Instant::now(), meeting.endpoint());
        let admin = admin_of(meeting, self.admin.as_ref());
        let ended = match meeting {
            Meeting::Admin(_) => reach(Port::Admin(&admin), self.timeout, self.interval, &mut say).await,
            Meeting::Store(store) => tokio::select! {
                ended = reach(Port::Store(store), self.timeout, self.interval, &mut say) => ended,
                () = until_relays_only(&admin) => {
                    let text = format!("{RELAYS_ONLY}: {RELAYS_ONLY_REMEDY}");
                    Ended { waited: started.elapsed(), outcome: Err(Reason { step: "relay", text }) }
                }
            },
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
        let admin = match (&self.admin, meeting) {
            (None, Meeting::Store(store)) => admin_beside(store, addr).await,
            _ => admin,
        };
        // Only `run` decides whether a finished run may start again.
        let payload = gather::AnnouncePayload::of(launch, None, true).map_err(UsageError)?;
        let whole = self.timeout.saturating_sub(ended.waited);
        let patience = RetryPolicy { whole, first_answer: whole, pause: self.interval };
        let gathered = gather::gather(&meeting.store(), &admin, &payload, patience, &mut say).await;
        if self.output.is_json() {
            print_line(gathered.to_json(endpoint))?;
        }
        gathered.finish(&payload).map(|_| Outcome::Done)
    }
}

//! `rallypoint ctl`: the admin routes that change a running server.

use std::io::{BufRead, IsTerminal, Write};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::builder::BoolishValueParser;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::flags::Output;
use super::terminal::{print_line, say};
use super::units::{duration, positive_peer_duration};
use super::{Outcome, UsageError, run_client};
use rallypoint_api::{self as api, PeerDuration};
use rallypoint_node::client::http::{self, AdminUrl, Answer, DEFAULT_ADMIN, HttpError};
use rallypoint_node::client::{Endpoint, parse_port};
use rallypoint_protocol::ids::{Elapsed, Nodes, Shown};

/// Change a running server.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Drop all keys, queues and barriers of a store; clients and their waits stay. A run's own store is
    /// closed
    Reset(Reset),
    /// Close a run of the native rendezvous: nodes that wait are refused, the others are told to stop
    Close(Close),
    /// Give more time to a round whose nodes still gather
    Extend(Extend),
    /// Say how many nodes to expect of a run; a round of a native one is complete as soon as so many are
    /// there
    Expect(Expect),
    /// Forget a run and drop the keys of its rendezvous; a native run is closed
    Forget(Forget),
}

/// The name of the run: the first word, or `--run-id`.
#[derive(Debug, clap::Args)]
struct RunName {
    /// The run, as `rallypoint status` names it
    #[arg(value_name = "RUN", required_unless_present = "run_id")]
    first_word: Option<String>,

    /// The run as a flag; RUN, if given, overrides it
    #[arg(long, env = "RALLYPOINT_RUN_ID", value_name = "RUN")]
    run_id: Option<String>,
}

impl RunName {
    fn get(&self) -> &str {
        self.first_word.as_deref().or(self.run_id.as_deref()).unwrap_or_default()
    }
}

/// The flags of an operator's request.
#[derive(Debug, clap::Args)]
struct Operator {
    /// The server's admin port
    #[arg(long, env = "RALLYPOINT_ADMIN", value_name = "URL", default_value = DEFAULT_ADMIN)]
    admin: AdminUrl,

    /// Give up after this time
    #[arg(long, env = "RALLYPOINT_CTL_TIMEOUT", value_name = "TIME", default_value = "10s",
        value_parser = duration)]
    timeout: Duration,

    #[command(flatten)]
    output: Output,
}

#[derive(Debug, clap::Args)]
struct Close {
    #[command(flatten)]
    run: RunName,

    /// The reason that the nodes are told
    #[arg(long, env = "RALLYPOINT_REASON", value_name = "TEXT")]
    reason: Option<String>,

    #[command(flatten)]
    consent: Consent,

    #[command(flatten)]
    operator: Operator,
}

#[derive(Debug, clap::Args)]
struct Extend {
    #[command(flatten)]
    run: RunName,

    /// How much more time
    #[arg(long, env = "RALLYPOINT_BY", value_name = "TIME", value_parser = positive_peer_duration)]
    by: PeerDuration,

    #[command(flatten)]
    operator: Operator,
}

#[derive(Debug, clap::Args)]
struct Expect {
    /// The run, as `rallypoint status` names it
    #[arg(value_name = "RUN")]
    run_id: String,

    /// How many nodes
    #[arg(value_name = "N|MIN:MAX", value_parser = nodes)]
    nodes: Nodes,

    /// Their names, so that the missing ones can be named
    #[arg(long, env = "RALLYPOINT_NAMES", value_name = "NAME,NAME", value_delimiter = ',')]
    names: Vec<String>,

    #[command(flatten)]
    operator: Operator,
}

#[derive(Debug, clap::Args)]
struct Forget {
    #[command(flatten)]
    run: RunName,

    #[command(flatten)]
    consent: Consent,

    #[command(flatten)]
    operator: Operator,
}

#[derive(Debug, clap::Args)]
struct Reset {
    /// Port of the store
    #[arg(
        long,
        env = "RALLYPOINT_STORE",
        value_name = "PORT",
        default_value = "29500",
        value_parser = StorePort::read
    )]
    store: StorePort,

    #[command(flatten)]
    consent: Consent,

    #[command(flatten)]
    operator: Operator,
}

/// The consent to a destructive command.
#[derive(Debug, clap::Args)]
struct Consent {
    /// Do it without asking
    #[arg(long, env = "RALLYPOINT_YES", value_parser = BoolishValueParser::new())]
    yes: bool,
}

/// A store by its port, or by `HOST:PORT` as in the `store` command: both commands read one environment
/// variable.
#[derive(Debug, Clone)]
struct StorePort {
    host: Option<String>,
    port: u16,
}

impl StorePort {
    fn read(text: &str) -> Result<Self, String> {
        if text.contains(':') {
            let endpoint =
                Endpoint::parse(text, Endpoint::DEFAULT_PORT).map_err(|error| error.to_string())?;
            return Ok(Self { host: Some(endpoint.host().to_owned()), port: endpoint.port() });
        }
        match parse_port(text, text) {
            Ok(port) => Ok(Self { host: None, port }),
            Err(_) => Err("write the port of the store, from 1 to 65535".into()),
        }
    }
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        match self.command {
            Command::Reset(reset) => reset.run(),
            Command::Close(close) => close.run(),
            Command::Extend(extend) => extend.run(),
            Command::Expect(expect) => expect.run(),
            Command::Forget(forget) => forget.run(),
        }
    }
}

impl Operator {
    /// Sends a request. Returns its answer if the request succeeded.
    fn ask(
        &self,
        path: &str,
        send: impl AsyncFnOnce(&AdminUrl, Duration) -> Result<Answer, HttpError>,
    ) -> anyhow::Result<Answer> {
        http::authorization().map_err(|error| UsageError(error.to_string()))?;
        run_client(async {
            let asked = send(&self.admin, self.timeout).await;
            asked.with_context(|| format!("{}{path}", self.admin))
        })
    }

    /// Sends `body` to a route of a run and prints what was done.
    fn change_run<T: DeserializeOwned + Serialize>(
        &self,
        method: &str,
        (run_id, change): (&str, &str),
        body: &impl Serialize,
        said: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<Outcome> {
        let path = format!("/api/v1/runs/{}{change}", http::path_part(run_id));
        let send = async |admin: &AdminUrl, limit| http::send(admin, method, &path, body, limit).await;
        let answer = self.ask(&path, send)?;
        if !answer.is_success() {
            bail!("{} ({})", answer.text(), answer.status);
        }
        let done: T =
            serde_json::from_slice(&answer.body).context("the server's answer is not understood")?;
        if self.output.is_json() {
            print_line(serde_json::to_string(&done)?)?;
        } else {
            say(said(&done));
        }
        Ok(Outcome::Done)
    }
}

impl Close {
    fn run(self) -> anyhow::Result<Outcome> {
        let question = format!("Close run {} on {}, for all its nodes?", self.run.get(), self.operator.admin);
        if !self.consent.given(&question)? {
            return Ok(Outcome::NotDone);
        }
        let body = api::Close { node: None, reason: self.reason };
        self.operator.change_run("POST", (self.run.get(), "/close"), &body, |done: &api::Closed| {
            format!("run {} {}", done.run_id, if done.closed { "is closed" } else { "was closed already" })
        })
    }
}

impl Extend {
    fn run(self) -> anyhow::Result<Outcome> {
        let body = api::Extend { by_seconds: self.by };
        self.operator.change_run("POST", (self.run.get(), "/extend"), &body, |done: &api::Extended| {
            let left = Elapsed(Duration::from_secs_f64(done.deadline_seconds.clamp(0.0, 1e9)));
            format!("run {} round {} has {left} left", done.run_id, done.round)
        })
    }
}

impl Expect {
    fn run(self) -> anyhow::Result<Outcome> {
        let (min, max) = (Some(self.nodes.min), Some(self.nodes.max));
        let body = api::Expect { nodes: None, min, max, names: self.names };
        self.operator.change_run("PUT", (&self.run_id, "/expect"), &body, |done: &api::Expects| {
            let nodes = Nodes { min: done.min, max: done.max };
            let comes = done.comes.as_ref().map_or_else(String::new, |comes| format!("; {comes}"));
            format!("of run {}, {nodes} nodes are expected{comes}", done.run_id)
        })
    }
}

impl Forget {
    fn run(self) -> anyhow::Result<Outcome> {
        let question = format!("Forget run {} on {} and drop its keys?", self.run.get(), self.operator.admin);
        if !self.consent.given(&question)? {
            return Ok(Outcome::NotDone);
        }
        self.operator.change_run("DELETE", (self.run.get(), ""), &json!({}), |done: &api::Forgotten| {
            format!("run {} is forgotten; keys dropped: {}", done.run_id, done.dropped_keys)
        })
    }
}

/// Parses a number of nodes.
fn nodes(text: &str) -> Result<Nodes, String> {
    Nodes::parse(text).ok_or_else(|| "write it like 4, or 2:4 for at least 2 and at most 4".into())
}

impl Reset {
    fn run(self) -> anyhow::Result<Outcome> {
        let (admin, port) = (&self.operator.admin, self.store.port);
        if let Some(host) = self.store.host.as_deref().filter(|&host| host != admin.host()) {
            let message = format!(
                "the store is on `{host}`, but --admin is {admin}; name the admin port of the same server, \
                 or only the port of the store"
            );
            return Err(UsageError(message).into());
        }
        if !self.consent.given(&format!("Drop all keys of the store on port {port} of {admin}?"))? {
            return Ok(Outcome::NotDone);
        }
        let path = format!("/api/v1/stores/{port}");
        let delete = async |admin: &AdminUrl, limit| http::request(admin, "DELETE", &path, limit).await;
        let answer = self.operator.ask(&path, delete)?;
        if !answer.is_success() {
            bail!("the store on port {port} was not reset: {} ({})", answer.text(), answer.status);
        }
        let reset: Option<api::StoreReset> = serde_json::from_slice(&answer.body).ok();
        let closed = reset.is_some_and(|reset| reset.closed);
        if self.operator.output.is_json() {
            print_line(json!({"port": port, "reset": true, "closed": closed}))?;
        } else if closed {
            say(format_args!(
                "the store on port {port} was that of a run's round, and is closed: its ranks are \
                 disconnected, and have to start again"
            ));
        } else {
            say(format_args!("the store on port {port} is empty"));
        }
        Ok(Outcome::Done)
    }
}

impl Consent {
    /// Asks on the terminal, unless --yes is given. Without a terminal, --yes is required.
    fn given(&self, question: &str) -> anyhow::Result<bool> {
        let stdin = std::io::stdin();
        if self.yes {
            return Ok(true);
        }
        if !stdin.is_terminal() {
            let message = format!("{question} There is no terminal to answer on; add --yes to do it");
            return Err(UsageError(message).into());
        }
        eprint!("{} [y/N] ", Shown(question));
        std::io::stderr().flush()?;
        let mut line = String::new();
        stdin.lock().read_line(&mut line)?;
        let given = matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes");
        if !given {
            say("nothing was changed");
        }
        Ok(given)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_named_by_port_or_endpoint() {
        let read = |text: &str| StorePort::read(text).map(|store| (store.host, store.port));
        assert_eq!(read("29510"), Ok((None, 29510)));
        assert_eq!(read("rallypoint:29510"), Ok((Some("rallypoint".into()), 29510)));
        assert!(read("0").is_err() && read("rallypoint").is_err() && read("tcp://10.0.0.1:29500").is_err());
    }
}

//! `rallypoint ctl`: the admin routes that change a running server.

use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::builder::BoolishValueParser;
use serde_json::json;

use super::units::duration;
use super::{Outcome, UsageError, run_client, token};
use crate::client::http::{self, AdminUrl, DEFAULT_ADMIN};
use crate::client::{Endpoint, parse_port};

/// Change a running server.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Drop all keys, queues and barriers of a store; clients and their waits stay. A run's own store is closed
    Reset(Reset),
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

    /// The server's admin port
    #[arg(long, env = "RALLYPOINT_ADMIN", value_name = "URL", default_value = DEFAULT_ADMIN)]
    admin: AdminUrl,

    /// File with the token of the server's --token-file; without one the server obeys its own host only
    #[arg(long, env = "RALLYPOINT_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Do it without asking
    #[arg(long, env = "RALLYPOINT_YES", value_parser = BoolishValueParser::new())]
    yes: bool,

    /// Give up after this time
    #[arg(long, env = "RALLYPOINT_TIMEOUT", value_name = "TIME", default_value = "10s", value_parser = duration)]
    timeout: Duration,

    /// Print the outcome as JSON
    #[arg(long, env = "RALLYPOINT_JSON", value_parser = BoolishValueParser::new())]
    json: bool,
}

/// A store by its port, or as the `store` command names it, with which this shares an environment variable.
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
        }
    }
}

impl Reset {
    fn run(self) -> anyhow::Result<Outcome> {
        let (admin, port) = (&self.admin, self.store.port);
        if let Some(host) = self.store.host.as_deref().filter(|&host| host != admin.host()) {
            let message = format!(
                "the store is on `{host}`, but --admin is {admin}; name the admin port of the same server, or only \
                 the port of the store"
            );
            return Err(UsageError(message).into());
        }
        let token = self.token_file.as_deref().map(token).transpose()?;
        if !self.yes && !confirm(&format!("Drop all keys of the store on port {port} of {admin}?"))? {
            eprintln!("rallypoint: nothing was changed");
            return Ok(Outcome::NotDone);
        }
        let path = format!("/api/v1/stores/{port}");
        let answer = run_client(async {
            let asked = http::request(admin, "DELETE", &path, token.as_ref(), self.timeout).await;
            asked.with_context(|| format!("{admin}{path}"))
        })?;
        if !answer.is_success() {
            bail!("the store on port {port} was not reset: {} ({})", answer.text(), answer.status);
        }
        if self.json {
            println!("{}", json!({"port": port, "reset": true}));
        } else {
            eprintln!("rallypoint: the store on port {port} is empty");
        }
        Ok(Outcome::Done)
    }
}

/// Asks on the terminal. Without one nothing destructive is done unless it was said beforehand.
fn confirm(question: &str) -> anyhow::Result<bool> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        let message = format!("{question} Nobody is here to answer; say --yes if it is meant");
        return Err(UsageError(message).into());
    }
    eprint!("{question} [y/N] ");
    std::io::stderr().flush()?;
    let mut line = String::new();
    stdin.lock().read_line(&mut line)?;
    Ok(matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
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

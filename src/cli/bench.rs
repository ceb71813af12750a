//! `rallypoint bench`: flags to a [`Plan`], live progress, and the report.

use std::io::IsTerminal;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use clap::builder::BoolishValueParser;
use indicatif::{ProgressBar, ProgressStyle};

use super::flags::Output;
use super::units::{duration, size};
use super::{Outcome, UsageError, run_client};
use rallypoint_bench::{self as loadgen, Error, Plan, Relayed, Scenario, Settings, Tick};
use rallypoint_node::client::http::{AdminUrl, DEFAULT_ADMIN};
use rallypoint_node::client::{Endpoint, resolve};

const AFTER_HELP: &str = "CPU time per unit (with --pid) is the figure to compare servers by: wall-clock \
                          time also measures whatever else runs on the machine. Exit code: 0 done, 1 not, 2 \
                          usage";

/// Load test of any TCPStore server, rallypoint's or PyTorch's.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Args {
    /// What to measure
    #[arg(value_enum)]
    scenario: Scenario,

    /// The store, or for join the admin port [default: 127.0.0.1:29500; of join --admin]
    #[arg(value_name = "HOST:PORT")]
    target: Option<Endpoint>,

    /// The admin port, which join tests
    #[arg(long, env = "RALLYPOINT_ADMIN", value_name = "URL", default_value = DEFAULT_ADMIN)]
    admin: AdminUrl,

    /// Ranks, nodes or waiters
    #[arg(short = 'n', long, env = "RALLYPOINT_RANKS", value_name = "N")]
    ranks: Option<usize>,

    /// Connections that send requests
    #[arg(short, long, env = "RALLYPOINT_CONNECTIONS", value_name = "N")]
    connections: Option<usize>,

    /// How long to send requests; for cas and join, how long they may take
    #[arg(short = 'z', long, env = "RALLYPOINT_DURATION", value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,

    /// Requests a second over all connections. Each is sent when it is due, even if earlier ones have no
    /// answer yet, and its latency counts from then. Without this flag each connection sends the next request
    /// when the last is answered
    #[arg(short = 'q', long, env = "RALLYPOINT_RATE", value_name = "N")]
    rate: Option<f64>,

    /// Requests in flight on each connection, sent in one write [default: 1]
    #[arg(long, env = "RALLYPOINT_DEPTH", value_name = "N")]
    depth: Option<usize>,

    /// Number of keys: for mix in total, for big in one request
    #[arg(long, env = "RALLYPOINT_KEYS", value_name = "N")]
    keys: Option<usize>,

    /// Size of a value
    #[arg(long, env = "RALLYPOINT_SIZE", value_name = "SIZE", value_parser = size)]
    size: Option<usize>,

    /// How often to do the measured thing
    #[arg(long, env = "RALLYPOINT_ROUNDS", value_name = "N")]
    rounds: Option<usize>,

    /// For cas: the time a node takes for each participant in a state before its next attempt, at least 1ms
    /// in all. torchrun's nodes take 3us. Nodes that are in the state then read it every second until all are
    /// in it. Without this flag nodes answer at once and only join. Few of them lose to others then, so the
    /// result shows the cost of an attempt, not the number of attempts
    #[arg(long, env = "RALLYPOINT_THINK", value_name = "TIME", value_parser = duration)]
    think: Option<Duration>,

    /// Threads of the load generator [default: half the cores, 1 to 8]
    #[arg(long, env = "RALLYPOINT_BENCH_THREADS", value_name = "N")]
    threads: Option<usize>,

    /// Process id of the server, on this machine: report its CPU time and memory
    #[arg(long, env = "RALLYPOINT_PID", value_name = "PID")]
    pid: Option<u32>,

    /// Addresses to connect from, in turn [default: the system's choice; several 127.0.0.x where ports run
    /// out]
    #[arg(long, env = "RALLYPOINT_SOURCE", value_name = "IP", value_delimiter = ',')]
    source: Vec<IpAddr>,

    /// Store ports of relays on this machine (`rallypoint relay`): each takes as many connections in a row
    #[arg(long, env = "RALLYPOINT_RELAY_ENDPOINTS", value_name = "HOST:PORT", value_delimiter = ',')]
    relay: Vec<Endpoint>,

    /// Process ids of these relays: report their CPU time
    #[arg(long, env = "RALLYPOINT_RELAY_PID", value_name = "PID", value_delimiter = ',', requires = "relay")]
    relay_pid: Vec<u32>,

    /// Play the relays too: so many links to the admin port (--admin), with --per-link ranks or connections
    /// each
    #[arg(long, env = "RALLYPOINT_LINKS", value_name = "N", requires = "per_link", conflicts_with = "relay")]
    links: Option<usize>,

    /// Ranks or connections on each of the --links; for join, nodes that ask in turn on one connection
    #[arg(long, env = "RALLYPOINT_PER_LINK", value_name = "N", requires = "links")]
    per_link: Option<usize>,

    /// Longest time for one step of the scenario, on top of --duration [default: 60s]
    #[arg(long, env = "RALLYPOINT_PATIENCE", value_name = "TIME", value_parser = duration)]
    patience: Option<Duration>,

    /// Test a server on another machine
    #[arg(long, env = "RALLYPOINT_ALLOW_REMOTE", value_parser = BoolishValueParser::new())]
    allow_remote: bool,

    /// Test a store that holds keys; a job that uses it is disturbed
    #[arg(long, env = "RALLYPOINT_ALLOW_IN_USE", value_parser = BoolishValueParser::new())]
    allow_in_use: bool,

    #[command(flatten)]
    output: Output,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let settings = Settings { relayed: self.relayed()?, ..self.settings() };
        let target = match &self.target {
            Some(target) => find_target(target)?,
            None if self.scenario.is_of_admin_port() => find_target(self.admin.endpoint())?,
            None => SocketAddr::from(([127, 0, 0, 1], Endpoint::DEFAULT_PORT)),
        };
        let plan =
            Plan::new(self.scenario, target, &settings).map_err(|error| UsageError(error.to_string()))?;
        let display = Display::new();
        let report = loadgen::run(&plan, &mut |tick| display.show(tick));
        display.clear();
        let report = report.map_err(|error| match error {
            Error::Process { .. } | Error::InUse { .. } | Error::HasKeys { .. } => {
                UsageError(error.to_string()).into()
            }
            other => anyhow::Error::from(other),
        })?;
        if self.output.is_json() {
            println!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            print!("{report}");
        }
        Ok(if report.complete { Outcome::Done } else { Outcome::NotDone })
    }

    fn relayed(&self) -> anyhow::Result<Option<Relayed>> {
        if let (Some(links), Some(per_link)) = (self.links, self.per_link) {
            let (admin, url) = (find_target(self.admin.endpoint())?, self.admin.clone());
            return Ok(Some(Relayed::Links { admin, url, links, per_link }));
        }
        let relays: Vec<_> = self.relay.iter().map(find_target).collect::<Result<_, _>>()?;
        Ok((!relays.is_empty()).then_some(Relayed::Relays(relays)))
    }

    fn settings(&self) -> Settings {
        Settings {
            ranks: self.ranks,
            connections: self.connections,
            duration: self.duration,
            rate: self.rate,
            depth: self.depth,
            keys: self.keys,
            size: self.size,
            rounds: self.rounds,
            think: self.think,
            threads: self.threads,
            sources: self.source.clone(),
            pid: self.pid,
            relay_pids: self.relay_pid.clone(),
            patience: self.patience,
            allow_remote: self.allow_remote,
            allow_in_use: self.allow_in_use,
            relayed: None,
        }
    }
}

/// The address to test: the first one, if the name has several.
fn find_target(target: &Endpoint) -> anyhow::Result<SocketAddr> {
    const RESOLVER_LIMIT: Duration = Duration::from_secs(10);
    run_client(async { Ok(resolve(target, RESOLVER_LIMIT).await?[0]) })
}

/// The progress, on stderr if that is a terminal.
struct Display(Option<ProgressBar>);

impl Display {
    fn new() -> Self {
        Self(std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            let style = ProgressStyle::with_template("{spinner} {elapsed} {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            bar
        }))
    }

    fn show(&self, tick: Tick) {
        let Some(bar) = &self.0 else { return };
        let left = tick.lasts.map_or(String::new(), |lasts| {
            format!(", {:.0} s to go", lasts.saturating_sub(tick.elapsed).as_secs_f64())
        });
        bar.set_message(format!("{}: {} measured{left}", tick.section, tick.done));
        bar.tick();
    }

    fn clear(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

//! The plan of a load test: the scenario and its numbers, checked before anything is sent.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "numbers of the load test itself"
)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use rallypoint_node::client::http::AdminUrl;
use rallypoint_process::{local_ports, raise_descriptor_limit};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scenario {
    /// Round trips of the cheapest request
    Rtt,
    /// SET, GET as real clients send it (WAIT and GET), ADD and CHECK
    Mix,
    /// Ranks wait for one key: time from its SET to each release
    Fanout,
    /// Ranks start: connect, hello, ping, count in `init/`, store-based barrier
    Init,
    /// Every rank publishes a value, then all read all
    Exchange,
    /// One rank of 128 publishes an NCCL id, then all ranks read all ids
    #[value(name = "ncclids")]
    NcclIds,
    /// WAIT and its cancellation while ranks wait for other keys
    Cancel,
    /// Waiting ranks disconnect at once: time until the server has let go of each
    Leave,
    /// torchrun nodes join one rendezvous state: read, compare-and-set, again if another was faster
    Cas,
    /// Large values (--size) or requests of many keys (--keys)
    Big,
    /// Ranks meet in the BARRIER operation
    Barrier,
    /// Nodes meet in one round of rallypoint's own rendezvous, on its admin port
    Join,
}

/// How connections reach the server, if not directly.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Relayed {
    /// Through these relays. Each has an equal number of neighbouring connections.
    Relays(Vec<SocketAddr>),
    /// Over links that the load generator itself makes, like relays.
    Links {
        /// The admin port.
        admin: SocketAddr,
        /// The admin port as the user gave it, with its name and scheme.
        #[serde(skip)]
        url: AdminUrl,
        /// The number of links.
        links: usize,
        /// Connections on each link. For `join`: nodes that ask in turn on one connection.
        per_link: usize,
    },
}

/// The user's settings. Every other number has the scenario's default.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Ranks, nodes or waiters.
    pub ranks: Option<usize>,
    /// Connections that send requests.
    pub connections: Option<usize>,
    /// How long to send requests.
    pub duration: Option<Duration>,
    /// Requests a second over all connections: an open loop.
    pub rate: Option<f64>,
    /// Requests in flight on each connection.
    pub depth: Option<usize>,
    /// The number of keys.
    pub keys: Option<usize>,
    /// Bytes of a value.
    pub size: Option<usize>,
    /// The number of repetitions.
    pub rounds: Option<usize>,
    /// Threads of the load generator.
    pub threads: Option<usize>,
    /// Addresses to connect from, in turn.
    pub sources: Vec<IpAddr>,
    /// The process of the server, to be watched.
    pub pid: Option<u32>,
    /// The processes of the relays, to be watched.
    pub relay_pids: Vec<u32>,
    /// How long nodes of `cas` take to react to a state, for each participant in it.
    pub think: Option<Duration>,
    /// Longest time for one section, on top of `duration`.
    pub patience: Option<Duration>,
    /// How connections reach the server, if not directly.
    pub relayed: Option<Relayed>,
    /// Whether the target may be another machine.
    pub allow_remote: bool,
    /// Whether the target may hold keys. A job that uses them is disturbed.
    pub allow_in_use: bool,
}

/// Why a plan is not possible.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The target is not on this machine.
    #[error(
        "{0} is not a loopback address; a load test disturbs every job on that server. If it is meant, say \
         --allow-remote"
    )]
    Remote(IpAddr),
    /// The scenario does not have this number.
    #[error("the scenario {scenario} has no {option}; it has {known}")]
    Foreign {
        /// The scenario.
        scenario: &'static str,
        /// The option given.
        option: &'static str,
        /// The options that it has.
        known: String,
    },
    /// One number is given in two ways.
    #[error("--links times --per-link is the number of {0}: leave out --{0}")]
    CountedTwice(&'static str),
    /// A number is too small.
    #[error("{0} must be at least {1}")]
    TooSmall(&'static str, usize),
    /// The rate is invalid.
    #[error("--rate must be more than 0 requests a second, and at most 10 million")]
    Rate,
    /// A rate without a duration.
    #[error("--rate needs --duration")]
    RateWithoutDuration,
    /// The process may not open that many files.
    #[error(
        "this needs {needed} connections, but this process may have {limit} files open, {} of them for \
         connections; raise `ulimit -Hn`, or take fewer ranks", .limit.saturating_sub(PlanError::OTHER_FILES)
    )]
    Descriptors {
        /// Connections.
        needed: u64,
        /// The limit on open files.
        limit: u64,
    },
    /// The source addresses do not have that many ports.
    #[error(
        "{needed} connections need {addresses} addresses to connect from, as each has {} ports; give them \
         with --source",
        usable_ports()
    )]
    Sources {
        /// Connections.
        needed: usize,
        /// Addresses.
        addresses: usize,
    },
    /// A source address belongs to another address family than the target.
    #[error("--source {0} and the target are not of one address family")]
    SourceFamily(IpAddr),
}

impl PlanError {
    /// Files that are no connections: runtimes, standard streams, `/proc`.
    const OTHER_FILES: u64 = 64;
}

/// How many connections one address can make to one port: the system's ports, without a margin for ports that
/// other programs use or that closed connections still hold.
fn usable_ports() -> usize {
    (local_ports() / 8 * 7).max(1)
}

/// A checked load test.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Plan {
    /// The scenario.
    pub scenario: Scenario,
    /// The server.
    pub target: SocketAddr,
    /// Ranks, nodes or waiters; 0 if the scenario has none.
    pub ranks: usize,
    /// Connections that send requests.
    pub connections: usize,
    /// How long to send requests; for `cas` and `join`, the time limit.
    #[serde(rename = "duration_seconds", serialize_with = "seconds")]
    pub duration: Duration,
    /// Requests a second in an open loop; `None` in a closed loop.
    pub rate: Option<f64>,
    /// Requests in flight on each connection.
    pub depth: usize,
    /// The number of keys; 0 means one for each connection.
    pub keys: usize,
    /// Bytes of a value.
    pub size: usize,
    /// The number of repetitions.
    pub rounds: usize,
    /// Threads of the load generator.
    pub threads: usize,
    /// The server's process.
    pub pid: Option<u32>,
    /// The relays' processes.
    pub relay_pids: Vec<u32>,
    /// Addresses to connect from.
    pub sources: Vec<IpAddr>,
    /// How long nodes of `cas` take to react to a state, for each participant in it; 0 means at once.
    #[serde(rename = "think_seconds", serialize_with = "seconds")]
    pub think: Duration,
    /// Longest time for one section, on top of `duration`.
    #[serde(rename = "patience_seconds", serialize_with = "seconds")]
    pub patience: Duration,
    /// Whether the target may hold keys.
    pub allow_in_use: bool,
    /// How connections reach the server, if not directly.
    pub relayed: Option<Relayed>,
}

fn seconds<S: serde::Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(duration.as_secs_f64())
}

/// The numbers of a scenario, with their defaults; 0, `false` or `None` for numbers that it does not have.
#[derive(Default)]
struct Defaults {
    ranks: usize,
    connections: usize,
    seconds: u64,
    rate: bool,
    depth: bool,
    keys: Option<usize>,
    size: usize,
    rounds: usize,
    think: bool,
}

impl Scenario {
    /// Every scenario.
    pub const ALL: [Self; 12] = [
        Self::Rtt,
        Self::Mix,
        Self::Fanout,
        Self::Init,
        Self::Exchange,
        Self::NcclIds,
        Self::Cancel,
        Self::Leave,
        Self::Cas,
        Self::Big,
        Self::Barrier,
        Self::Join,
    ];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rtt => "rtt",
            Self::Mix => "mix",
            Self::Fanout => "fanout",
            Self::Init => "init",
            Self::Exchange => "exchange",
            Self::NcclIds => "ncclids",
            Self::Cancel => "cancel",
            Self::Leave => "leave",
            Self::Cas => "cas",
            Self::Big => "big",
            Self::Barrier => "barrier",
            Self::Join => "join",
        }
    }

    /// Whether the target is rallypoint's admin port, not a store.
    pub const fn is_of_admin_port(self) -> bool {
        matches!(self, Self::Join)
    }

    fn defaults(self) -> Defaults {
        let none = Defaults::default();
        match self {
            Self::Rtt => Defaults { connections: 64, seconds: 5, rate: true, depth: true, ..none },
            Self::Mix => Defaults {
                connections: 64,
                seconds: 5,
                rate: true,
                depth: true,
                keys: Some(0),
                size: 16,
                ..none
            },
            Self::Fanout | Self::Barrier => Defaults { ranks: 1000, rounds: 1, ..none },
            Self::Init | Self::Leave => Defaults { ranks: 1000, ..none },
            // The size of gloo's published address for one rank.
            Self::Exchange => Defaults { ranks: 128, size: 221, rounds: 1, ..none },
            // The size of an ncclUniqueId.
            Self::NcclIds => Defaults { ranks: 1024, size: 128, rounds: 1, ..none },
            Self::Cancel => Defaults { ranks: 1000, connections: 1, seconds: 5, ..none },
            Self::Cas => Defaults { ranks: 100, seconds: 120, think: true, ..none },
            Self::Join => Defaults { ranks: 1000, seconds: 120, ..none },
            Self::Big => Defaults { connections: 1, keys: Some(1), size: 7_900_000, rounds: 10, ..none },
        }
    }

    /// The fewest useful ranks.
    const fn least_ranks(self) -> usize {
        match self {
            // Cancelling works without waiting ranks.
            Self::Cancel => 0,
            _ => 1,
        }
    }
}

impl Plan {
    /// Checks the settings, and fills in the defaults. Raises this process's limit on open files.
    pub fn new(scenario: Scenario, target: SocketAddr, settings: &Settings) -> Result<Self, PlanError> {
        if !settings.allow_remote && !target.ip().to_canonical().is_loopback() {
            return Err(PlanError::Remote(target.ip()));
        }
        let defaults = scenario.defaults();
        check_options(scenario, &defaults, settings)?;
        if settings.rate.is_some() && settings.duration.is_none() {
            return Err(PlanError::RateWithoutDuration);
        }
        if settings.rate.is_some_and(|rate| !(rate > 0.0 && rate <= 1e7)) {
            return Err(PlanError::Rate);
        }
        let at_least = |name, value: Option<usize>, least| match value {
            Some(value) if value < least => Err(PlanError::TooSmall(name, least)),
            _ => Ok(()),
        };
        at_least("--ranks", settings.ranks, scenario.least_ranks())?;
        at_least("--connections", settings.connections, 1)?;
        at_least("--depth", settings.depth, 1)?;
        at_least("--keys", settings.keys, 1)?;
        at_least("--rounds", settings.rounds, 1)?;
        at_least("--threads", settings.threads, 1)?;
        match &settings.relayed {
            Some(Relayed::Links { links, per_link, .. }) => {
                at_least("--links", Some(*links), 1)?;
                at_least("--per-link", Some(*per_link), 1)?;
            }
            Some(Relayed::Relays(relays)) => at_least("--relay", Some(relays.len()), 1)?,
            None => {}
        }
        if settings.duration.is_some_and(|duration| duration.is_zero()) {
            return Err(PlanError::TooSmall("--duration", 1));
        }
        let (ranks, connections) = on_links(&defaults, settings)?;
        let many_keys = scenario == Scenario::Big && settings.keys.is_some_and(|keys| keys > 1);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut plan = Self {
            scenario,
            target,
            ranks: ranks.unwrap_or(defaults.ranks),
            connections: connections.unwrap_or(defaults.connections),
            duration: settings.duration.unwrap_or(Duration::from_secs(defaults.seconds)),
            rate: settings.rate,
            depth: settings.depth.unwrap_or(1),
            keys: settings.keys.or(defaults.keys).unwrap_or(0),
            size: settings.size.unwrap_or(if many_keys { 8 } else { defaults.size }),
            rounds: settings.rounds.unwrap_or(if many_keys { 3 } else { defaults.rounds.max(1) }),
            // The other half of the cores is for the server.
            threads: settings.threads.unwrap_or((cores / 2).clamp(1, 8)),
            pid: settings.pid,
            relay_pids: settings.relay_pids.clone(),
            sources: settings.sources.clone(),
            think: settings.think.unwrap_or_default(),
            patience: settings.patience.unwrap_or(Duration::from_mins(1)),
            allow_in_use: settings.allow_in_use,
            relayed: settings.relayed.clone(),
        };
        plan.check_descriptors(raise_descriptor_limit())?;
        plan.choose_sources()?;
        Ok(plan)
    }

    /// Connections open at the same time, besides the bystander's.
    pub fn links(&self) -> usize {
        match self.scenario {
            Scenario::Rtt | Scenario::Mix | Scenario::Big => self.connections,
            Scenario::Init
            | Scenario::Exchange
            | Scenario::NcclIds
            | Scenario::Leave
            | Scenario::Cas
            | Scenario::Barrier
            | Scenario::Join => self.ranks,
            Scenario::Cancel => self.ranks + self.connections,
            Scenario::Fanout => self.ranks + 1,
        }
    }

    /// Connections that the generator makes for these.
    pub fn connections_made(&self) -> usize {
        self.per_link().map_or(self.links(), |per_link| self.links().div_ceil(per_link))
    }

    /// Connections on each link, if the generator plays the relays.
    pub fn per_link(&self) -> Option<usize> {
        match self.relayed {
            Some(Relayed::Links { per_link, .. }) => Some(per_link.max(1)),
            _ => None,
        }
    }

    fn check_descriptors(&self, limit: Option<u64>) -> Result<(), PlanError> {
        let needed = self.connections_made() as u64;
        match limit {
            Some(limit) if needed + PlanError::OTHER_FILES > limit => {
                Err(PlanError::Descriptors { needed, limit })
            }
            _ => Ok(()),
        }
    }

    /// Chooses source addresses: one address has ports for a limited number of connections. Loopback has many
    /// addresses.
    fn choose_sources(&mut self) -> Result<(), PlanError> {
        /// Links from each address, as real nodes have different addresses. When many ports of an address are
        /// in use, also by connections that have just ended, the kernel searches long for a free one.
        const LINKS_EACH: usize = 125;
        if let Some(&other) = self.sources.iter().find(|ip| ip.is_ipv4() != self.target.is_ipv4()) {
            return Err(PlanError::SourceFamily(other));
        }
        let needed = self.connections_made();
        let addresses = needed.div_ceil(usable_ports());
        let is_loopback = self.target.is_ipv4() && self.target.ip().is_loopback();
        if !self.sources.is_empty() || !is_loopback {
            let are_enough = addresses <= self.sources.len().max(1);
            return are_enough.then_some(()).ok_or(PlanError::Sources { needed, addresses });
        }
        let addresses = match self.relayed {
            Some(Relayed::Links { .. }) => needed.div_ceil(LINKS_EACH),
            _ => addresses,
        };
        if addresses <= 1 {
            return Ok(());
        }
        self.sources =
            (1..=addresses).map(|n| Ipv4Addr::new(127, 0, (n >> 8) as u8, n as u8).into()).collect();
        Ok(())
    }
}

/// The requested number of ranks and of connections, if given. With links, the product of the two link flags
/// gives it.
fn on_links(has: &Defaults, given: &Settings) -> Result<(Option<usize>, Option<usize>), PlanError> {
    let (ranks, connections) = (given.ranks, given.connections);
    let Some(Relayed::Links { links, per_link, .. }) = given.relayed else { return Ok((ranks, connections)) };
    let all = Some(links.saturating_mul(per_link));
    match (has.ranks > 0, ranks, connections) {
        (true, Some(_), _) => Err(PlanError::CountedTwice("ranks")),
        (true, None, connections) => Ok((all, connections)),
        (false, _, Some(_)) => Err(PlanError::CountedTwice("connections")),
        (false, ranks, None) => Ok((ranks, all)),
    }
}

/// Refuses options that the scenario would silently ignore.
fn check_options(scenario: Scenario, has: &Defaults, given: &Settings) -> Result<(), PlanError> {
    let options = [
        ("--ranks", has.ranks > 0, given.ranks.is_some()),
        ("--connections", has.connections > 0, given.connections.is_some()),
        ("--duration", has.seconds > 0, given.duration.is_some()),
        ("--rate", has.rate, given.rate.is_some()),
        ("--depth", has.depth, given.depth.is_some()),
        ("--keys", has.keys.is_some(), given.keys.is_some()),
        ("--size", has.size > 0, given.size.is_some()),
        ("--rounds", has.rounds > 0, given.rounds.is_some()),
        ("--think", has.think, given.think.is_some()),
    ];
    let Some((option, ..)) = options.iter().find(|(_, has, given)| *given && !has) else { return Ok(()) };
    let known: Vec<_> = options.iter().filter(|(_, has, _)| *has).map(|(name, ..)| *name).collect();
    Err(PlanError::Foreign { scenario: scenario.name(), option, known: known.join(", ") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(port: u16) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, port))
    }

    fn error(scenario: Scenario, settings: &Settings) -> String {
        Plan::new(scenario, local(1), settings).expect_err("refused").to_string()
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_name_of_the_flag() {
        let zero = Settings { connections: Some(0), ..Settings::default() };
        assert_eq!(error(Scenario::Mix, &zero), "--connections must be at least 1");
        let endless = Settings { rate: Some(10.0), ..Settings::default() };
        assert_eq!(error(Scenario::Rtt, &endless), "--rate needs --duration");
        let still =
            Settings { rate: Some(0.0), duration: Some(Duration::from_secs(1)), ..Settings::default() };
        assert!(error(Scenario::Rtt, &still).starts_with("--rate must be more than 0"));
        let ranks = Settings { ranks: Some(5), ..Settings::default() };
        assert_eq!(
            error(Scenario::Rtt, &ranks),
            "the scenario rtt has no --ranks; it has --connections, --duration, --rate, --depth"
        );
        let depth = Settings { depth: Some(2), ..Settings::default() };
        assert!(error(Scenario::Init, &depth).ends_with("it has --ranks"));
    }

    #[test]
    fn links_say_how_many_are_on_them() {
        let url = "http://127.0.0.1:1".parse().expect("a URL");
        let links = Relayed::Links { admin: local(1), url, links: 5, per_link: 8 };
        let settings = Settings { relayed: Some(links), ..Settings::default() };
        let counts = |scenario| {
            let plan = Plan::new(scenario, local(1), &settings).expect("a plan");
            (plan.ranks, plan.connections, plan.connections_made())
        };
        assert_eq!(counts(Scenario::Init), (40, 0, 5));
        assert_eq!(counts(Scenario::Mix), (0, 40, 5));
        assert_eq!(counts(Scenario::Fanout), (40, 0, 6), "and one that sets the key");
        let both = Settings { ranks: Some(40), ..settings.clone() };
        assert!(error(Scenario::Init, &both).ends_with("leave out --ranks"));
        let both = Settings { connections: Some(40), ..settings };
        assert!(error(Scenario::Rtt, &both).ends_with("leave out --connections"));
    }

    #[test]
    fn another_machine_is_refused_unless_it_is_meant() {
        let elsewhere = SocketAddr::from(([192, 0, 2, 1], 29500));
        let refused = Plan::new(Scenario::Rtt, elsewhere, &Settings::default());
        assert_eq!(refused, Err(PlanError::Remote(elsewhere.ip())));
        let meant = Settings { allow_remote: true, ..Settings::default() };
        assert!(Plan::new(Scenario::Rtt, elsewhere, &meant).is_ok());
        let mapped: SocketAddr = "[::ffff:127.0.0.1]:29500".parse().expect("an address");
        assert!(Plan::new(Scenario::Rtt, mapped, &Settings::default()).is_ok());
    }

    #[test]
    fn more_connections_than_files_are_refused_with_the_limit() {
        let mut plan = Plan::new(Scenario::Init, local(1), &Settings::default()).expect("a plan");
        plan.ranks = 1000;
        assert_eq!(plan.check_descriptors(Some(1064)), Ok(()));
        assert_eq!(plan.check_descriptors(None), Ok(()));
        let refused = plan.check_descriptors(Some(1063)).expect_err("one too many").to_string();
        assert!(
            refused.starts_with("this needs 1000 connections, but this process may have 1063 files open")
        );
    }

    #[test]
    fn more_connections_than_ports_take_more_loopback_addresses() {
        let mut plan = Plan::new(Scenario::Init, local(1), &Settings::default()).expect("a plan");
        plan.ranks = usable_ports();
        assert_eq!((plan.choose_sources(), plan.sources.len()), (Ok(()), 0));
        plan.ranks += 1;
        assert_eq!((plan.choose_sources(), plan.sources.len()), (Ok(()), 2));
        plan.sources.clear();
        let url = "http://127.0.0.1:1".parse().expect("a URL");
        plan.relayed = Some(Relayed::Links { admin: local(1), url, links: 12_500, per_link: 8 });
        plan.ranks = 100_000;
        assert_eq!((plan.choose_sources(), plan.sources.len()), (Ok(()), 100), "12,500 links");
        plan.relayed = None;
        plan.target = SocketAddr::from(([192, 0, 2, 1], 1));
        plan.ranks = usable_ports() + 1;
        plan.sources.truncate(1);
        assert!(matches!(plan.choose_sources(), Err(PlanError::Sources { addresses: 2, .. })));
        plan.sources = vec!["::1".parse().expect("an address")];
        assert!(matches!(plan.choose_sources(), Err(PlanError::SourceFamily(_))));
    }
}

//! `rallypoint run`: derives, checks, waits for the server, gathers, and then becomes the command, or
//! supervises it beside a relay.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use clap::ValueEnum;
use serde::Deserialize;
use tokio::time::Instant;

use super::gather::{self, AnnouncePayload, RetryPolicy};
use super::launch::{LaunchArgs, environment, no_endpoint};
use super::reach::Port;
use super::terminal::say;
use super::units::{MaybeOff, duration, duration_or_off};
use super::{Outcome, UsageError, process, reach, relay, run_client};
use rallypoint_doctor::{Check, RELAYS_ONLY, Verdict, check_command, check_environment, probe, run_stores};
use rallypoint_link::RelayLife;
use rallypoint_node::client::http::AdminUrl;
use rallypoint_node::client::{Endpoint, source_towards};
use rallypoint_node::launch::{self, Environment, Job, LaunchEnv, Meeting, Mode, Plan, Server, Torchrun};
use rallypoint_node::relay::{Bound, RelayConfig, default_max_memory};
use rallypoint_process::random_number;
use rallypoint_protocol::ids::Elapsed;

const AFTER_HELP: &str = "The command gets the variables that `rallypoint env` prints, and those that make \
                          it a client of the server. stderr says what is changed about the command. Exit \
                          code: the command's, 128 + N if signal N ended it; 1 if it was not started in \
                          time, 2 usage or a contradiction";

/// Start a command on this node once the server answers and all nodes are there.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Args {
    #[command(flatten)]
    launch: LaunchArgs,

    /// The store [default: what the environment or the command names]
    #[arg(long, env = "RALLYPOINT_ENDPOINT", value_name = "HOST:PORT")]
    endpoint: Option<String>,

    /// The admin port [default: port 29501 of the store's host]
    #[arg(long, env = "RALLYPOINT_ADMIN", value_name = "URL")]
    admin: Option<AdminUrl>,

    /// How the processes meet: torchrun with rallypoint's plugin, torchrun's c10d or static backend, or
    /// env://
    #[arg(long, env = "RALLYPOINT_MODE", value_name = "MODE", default_value = "auto")]
    mode: ModeFlag,

    /// Whether to hold the command until all nodes have announced themselves
    #[arg(long, env = "RALLYPOINT_GATHER", value_name = "ON|OFF", default_value = "on",
        value_parser = super::units::on_or_off,
        action = clap::ArgAction::Set)]
    gather: bool,

    /// How long to wait for all nodes and for the run's own store, and torchrun's join_timeout if the command
    /// sets none; off waits for ever
    #[arg(long, env = "RALLYPOINT_GATHER_TIMEOUT", value_name = "TIME", default_value = "30m",
        value_parser = duration_or_off)]
    gather_timeout: MaybeOff,

    /// Whether to start a run again that has finished (all its nodes came to the end); off refuses with exit
    /// code 1
    #[arg(long, env = "RALLYPOINT_RESTART_FINISHED", value_name = "ON|OFF", default_value = "off",
        value_parser = super::units::on_or_off, action = clap::ArgAction::Set)]
    restart_finished: bool,

    /// How long to wait for the server
    #[arg(long, env = "RALLYPOINT_RUN_TIMEOUT", value_name = "TIME", default_value = "10m",
        value_parser = duration)]
    timeout: Duration,

    /// Whether the run gets its own store in the static and env modes; off uses the endpoint itself
    #[arg(long, env = "RALLYPOINT_OWN_STORE", value_name = "ON|OFF", default_value = "on",
        value_parser = super::units::on_or_off,
        action = clap::ArgAction::Set)]
    own_store: bool,

    /// Whether the command reaches the server through a relay in this process, which outlives breaks of the
    /// network; auto: unless the server is on this host
    #[arg(long, env = "RALLYPOINT_RELAY", value_name = "WHEN", default_value = "auto")]
    relay: RelayFlag,

    /// The command and its arguments; `--` may stand before it
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true)]
    command: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RelayFlag {
    Auto,
    On,
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ModeFlag {
    Auto,
    Plugin,
    C10d,
    Static,
    Env,
}

impl ModeFlag {
    const fn asked(self) -> Option<Mode> {
        match self {
            Self::Auto => None,
            Self::Plugin => Some(Mode::Plugin),
            Self::C10d => Some(Mode::C10d),
            Self::Static => Some(Mode::Static),
            Self::Env => Some(Mode::Env),
        }
    }
}

/// The requests to the server.
struct Needs<'a> {
    /// Announce the pod, to start together with the others.
    payload: Option<AnnouncePayload>,
    /// Ask for a store of this run.
    own: Option<&'a str>,
    /// How long the admin port may take for its first answer.
    first_answer: Duration,
    /// The store, if it has already answered.
    tried: Option<Endpoint>,
    /// Whether everything goes through a relay in this process.
    is_relayed: bool,
}

/// The command and its surroundings.
struct Party<'a> {
    mode: Mode,
    launch: &'a LaunchEnv,
    env: &'a Environment,
    torchrun: Option<&'a Torchrun>,
}

impl Party<'_> {
    fn is_accelerate(&self) -> bool {
        self.torchrun.is_none() && self.mode == Mode::C10d
    }
}

/// A server that answers.
struct Reached {
    store: Endpoint,
    /// Whether the store itself has answered.
    is_tried: bool,
    /// The address that answered; `None` if the server's stores have no ports.
    addr: Option<SocketAddr>,
    admin: AdminUrl,
}

/// The next step.
enum Start {
    Command(Plan),
    Over(Outcome),
}

/// Time limit for a question to the server.
const ASK_STEP: Duration = Duration::from_secs(5);
/// Pause between attempts.
const PAUSE: Duration = Duration::from_secs(1);
/// Stands for "for ever".
const FOR_EVER: Duration = Duration::from_hours(24 * 365);

impl Args {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let env = environment();
        let torchrun = launch::find_torchrun(&self.command);
        let launch = self.launch.derive(self.endpoint.as_deref(), &env, torchrun.as_ref())?;
        launch.notes.iter().for_each(say);
        refuse_mistakes(check_environment(&env, &Ok(launch.clone()), torchrun.as_ref()))?;
        let meeting = launch.endpoint.as_ref().map(|endpoint| endpoint.value.clone());
        let meeting = meeting.ok_or_else(|| UsageError(no_endpoint(&env)))?;
        let python = self.ask_python(&env, torchrun.as_ref());
        let asked = self.mode.asked();
        let mode = Mode::choose(asked, &self.command, torchrun.as_ref(), &env, &launch, python.plugin);
        let mode = mode.map_err(|error| UsageError(error.to_string()))?;
        self.refuse_command(
            &Party { mode, launch: &launch, env: &env, torchrun: torchrun.as_ref() },
            &meeting,
        )?;
        // Report every mistake in the pod itself before waiting for anybody.
        let payload = self.gather.then(|| AnnouncePayload::of(&launch, python.torch, self.restart_finished));
        let payload = payload.transpose().map_err(UsageError)?;
        let own = self.run_with_store(mode, &launch, torchrun.as_ref());
        let payload = payload.map(|payload| if own.is_some() { payload.with_store() } else { payload });
        let party = Party { mode, launch: &launch, env: &env, torchrun: torchrun.as_ref() };
        let plan = run_client(async {
            let started = Instant::now();
            let reached = match process::unless_stopped(self.reach(&meeting)).await? {
                Ok(reached) => reached,
                Err(stopped) => return Ok(Start::Over(stopped)),
            };
            let (store, admin) = (&reached.store, &reached.admin);
            let needs = |tried, is_relayed| {
                let first_answer = self.timeout.saturating_sub(started.elapsed());
                Needs { payload, own, first_answer, tried, is_relayed }
            };
            if !self.wants_relay(&party, &reached).await? {
                let tried = reached.is_tried.then(|| store.clone());
                let plan = self.meet(&party, store, admin, needs(tried, false));
                return Ok(process::unless_stopped(plan).await?.map_or_else(Start::Over, Start::Command));
            }
            let (relay, config) = self.relay(&party, admin).await?;
            let local = Endpoint::new(&relay.store_addr()?.ip().to_string(), relay.store_addr()?.port())?;
            let admin = relay.admin_addr().map_or(Ok(admin.clone()), |admin| admin.to_string().parse());
            let admin = admin.map_err(UsageError)?;
            let server = &config.server;
            say(format_args!(
                "the command meets on {local}, a relay to the first store of {server}; --relay off connects \
                 to {store} directly"
            ));
            let work = async {
                let plan = self.meet(&party, &local, &admin, needs(None, true));
                match process::unless_stopped(plan).await? {
                    Err(stopped) => Ok(stopped),
                    Ok(plan) => {
                        tell(&plan, mode);
                        Ok(process::run_command(&plan.argv, &plan.set).await)
                    }
                }
            };
            relay::behind(relay, config, Box::pin(work)).await.map(Start::Over)
        })?;
        match plan {
            Start::Over(outcome) => Ok(outcome),
            Start::Command(plan) => {
                tell(&plan, mode);
                process::become_command(&plan.argv, &plan.set)
            }
        }
    }

    /// Waits for the server, on its known port.
    async fn reach(&self, meeting: &Meeting) -> anyhow::Result<Reached> {
        let mut line = |line: String| say(line);
        say(format_args!("waiting up to {} for {meeting}", Elapsed(self.timeout)));
        let admin = reach::admin_of(meeting, self.admin.as_ref());
        let store = meeting.store();
        let ended = match meeting {
            Meeting::Admin(_) => reach::reach(Port::Admin(&admin), self.timeout, PAUSE, &mut line).await,
            Meeting::Store(_) => tokio::select! {
                ended = reach::reach(Port::Store(&store), self.timeout, PAUSE, &mut line) => ended,
                () = reach::until_relays_only(&admin) => {
                    return Ok(Reached { store, is_tried: false, addr: None, admin });
                }
            },
        };
        let addr = match ended.outcome {
            Ok(addr) => addr,
            Err(reason) => bail!("gave up on {meeting} after {}: {}", Elapsed(ended.waited), reason.text),
        };
        if let Meeting::Admin(_) = meeting {
            let has_ports = !probe::relays_only(&admin, ASK_STEP).await;
            return Ok(Reached { store, is_tried: false, addr: Some(addr).filter(|_| has_ports), admin });
        }
        let admin = match &self.admin {
            Some(admin) => admin.clone(),
            None => reach::admin_beside(&store, addr).await,
        };
        Ok(Reached { store, is_tried: true, addr: Some(addr), admin })
    }

    /// Whether to put a relay before the command.
    async fn wants_relay(&self, party: &Party<'_>, reached: &Reached) -> anyhow::Result<bool> {
        let Reached { addr, admin, .. } = reached;
        let Some(addr) = *addr else {
            if self.relay == RelayFlag::Off {
                bail!("--relay off connects directly, but {RELAYS_ONLY}");
            }
            return Ok(true);
        };
        // accelerate refuses a port on which localhost answers, so for accelerate the server counts as
        // remote.
        let is_here = is_here(addr) && !party.is_accelerate();
        if self.relay == RelayFlag::Off || (self.relay == RelayFlag::Auto && is_here) {
            return Ok(false);
        }
        match relay::takes_relays(admin).await {
            Ok(()) => Ok(true),
            Err(why) if self.relay == RelayFlag::On => bail!("no relay, which --relay on asks for: {why}"),
            Err(why) => {
                say(format_args!("without a relay, so a break of the network ends the command: {why}"));
                Ok(false)
            }
        }
    }

    /// A relay on the usual ports, or on others if these are in use.
    async fn relay(&self, party: &Party<'_>, admin: &AdminUrl) -> anyhow::Result<(Bound, RelayConfig)> {
        let mut config = RelayConfig {
            server: admin.clone(),
            listen: relay::loopback(29500),
            admin: Some(relay::loopback(29501)),
            name: String::new(),
            life: RelayLife(random_number()),
            give_up: Some(relay::GIVE_UP),
            client_uid: None,
            max_memory: default_max_memory(),
        };
        if party.is_accelerate() {
            // accelerate checks whether the port answers on 127.0.0.1.
            config.listen = SocketAddr::from(([127, 0, 0, 2], 0));
        }
        let bound = if let Ok(bound) = Bound::bind(&config) {
            bound
        } else {
            (config.listen, config.admin) =
                (SocketAddr::new(config.listen.ip(), 0), Some(relay::loopback(0)));
            Bound::bind(&config)?
        };
        let node_rank = party.launch.node_rank.as_ref().map(|rank| rank.value);
        let place = relay::Place { server: admin, port: bound.store_addr()?.port(), node_rank };
        config.name = place.name().await?;
        Ok((bound, config))
    }

    /// Does everything else that takes time: the run's own store, and the gathering of the pods.
    async fn meet(
        &self,
        party: &Party<'_>,
        store: &Endpoint,
        admin: &AdminUrl,
        needs: Needs<'_>,
    ) -> anyhow::Result<Plan> {
        let mut line = |line: String| say(line);
        let patience = self.gather_timeout.0.unwrap_or(FOR_EVER);
        let tries = RetryPolicy { whole: patience, first_answer: needs.first_answer, pause: PAUSE };
        let own = if let Some(payload) = &needs.payload {
            let gathered = gather::gather(store, admin, payload, tries, &mut line).await;
            if let Err(reason) = &gathered.outcome
                && reason.step == "announce"
            {
                bail!(
                    "{}; announcing needs the server's admin port: name it with --admin, open it in the \
                     NetworkPolicy, or start without waiting for the others and on the main store: --gather \
                     off --own-store off, on every node",
                    reason.text
                );
            }
            gathered.finish(payload)?.store
        } else if let Some(reason) = reach::several_stores(store).await {
            bail!("{}", reason.text);
        } else if let Some(run_id) = needs.own {
            Some(gather::own_store(admin, run_id, tries, &mut line).await?)
        } else {
            None
        };
        if let Some(own) = &own {
            say(format_args!("the run has its own store on {own}"));
        }
        let Party { mode, launch, env, torchrun } = *party;
        let is_own = own.is_some();
        let server = Server { store: own.unwrap_or_else(|| store.clone()), admin: admin.endpoint().clone() };
        if mode == Mode::Plugin {
            // Each round has its own store, which is not open yet.
            let stores = probe::probe_run_stores(admin, ASK_STEP).await;
            if let Some(check) =
                stores.as_ref().map(run_stores).filter(|check| check.verdict != Verdict::Pass)
            {
                say(format_args!("warning: {check}"));
            }
        } else if needs.tried.as_ref() != Some(&server.store) {
            self.try_store(&server.store, is_own, needs.is_relayed).await?;
        }
        let job = Job { argv: &self.command, torchrun, env, launch, server: &server, patience };
        let mut plan = job.plan(mode);
        // A program that speaks to the server itself, such as rallypoint.elastic, goes the same way.
        let addresses = [("RALLYPOINT_ENDPOINT", store.to_string()), ("RALLYPOINT_ADMIN", admin.to_string())];
        plan.set.extend(addresses.map(|(name, value)| (name.to_owned(), value)));
        Ok(plan)
    }

    /// Tries the store that the workers will use: a command that cannot reach it is silent for minutes.
    async fn try_store(&self, store: &Endpoint, is_own: bool, is_relayed: bool) -> anyhow::Result<()> {
        const ENOUGH: Duration = Duration::from_secs(20);
        let mut line = |line: String| say(line);
        let ended = reach::reach(Port::Store(store), ENOUGH.min(self.timeout), PAUSE, &mut line).await;
        let Err(reason) = ended.outcome else { return Ok(()) };
        let what = if is_own { "the run's own store" } else { "the store" };
        let remedy = if is_relayed {
            "the way there is this node's relay: look at what it says of its link"
        } else if is_own {
            "open the ports of serve --store-ports (29510-29599) from here, in the NetworkPolicy and in \
             firewalls; or start behind a relay, which needs the admin port alone (--relay on); or use the \
             main store, on every node (--own-store off)"
        } else {
            "name the server's store with --endpoint, and open its port from here"
        };
        bail!("not started: {what} {store} does not answer: {}; {remedy}", reason.text)
    }

    /// Refuses a command that would certainly fail. Checks it in its final form, with the planned flags and
    /// variables.
    fn refuse_command(&self, party: &Party<'_>, meeting: &Meeting) -> Result<(), UsageError> {
        let Party { mode, launch, env, torchrun } = *party;
        let admin = reach::admin_of(meeting, self.admin.as_ref());
        let server = Server { store: meeting.store(), admin: admin.endpoint().clone() };
        let patience = self.gather_timeout.0.unwrap_or(FOR_EVER);
        let plan = Job { argv: &self.command, torchrun, env, launch, server: &server, patience }.plan(mode);
        let Some(torchrun) = launch::find_torchrun(&plan.argv) else { return Ok(()) };
        let checks = check_command(&torchrun, &env.with(&plan.set));
        // `run` itself sets the endpoint; every other setting is the command's own.
        refuse_mistakes(checks.into_iter().filter(|check| check.id != "command-endpoint").collect())
    }

    /// The run that gets its own store, if workers would otherwise share the main store with other jobs.
    fn run_with_store<'a>(
        &self,
        mode: Mode,
        launch: &'a LaunchEnv,
        torchrun: Option<&Torchrun>,
    ) -> Option<&'a str> {
        let named_by_command = torchrun.and_then(|torchrun| {
            ["master-addr", "rdzv-endpoint"].into_iter().find(|flag| torchrun.has(flag))
        });
        let run_id = launch.run_id.as_ref()?;
        if !self.own_store || !mode.wants_own_store() {
            return None;
        }
        if let Some(flag) = named_by_command {
            say(format_args!(
                "--{flag} of the command keeps the run on the main store; without the flag it gets one of \
                 its own"
            ));
            return None;
        }
        Some(&run_id.value)
    }

    /// Asks the command's interpreter for the plugin and the version of torch.
    fn ask_python(&self, env: &Environment, torchrun: Option<&Torchrun>) -> Python {
        let wanted = matches!(self.mode, ModeFlag::Auto | ModeFlag::Plugin) || self.gather;
        let interpreter = match torchrun {
            Some(torchrun) => interpreter(torchrun, env),
            None => self.command.first().filter(|program| is_python(program)).map(PathBuf::from),
        };
        match interpreter.filter(|_| wanted) {
            Some(interpreter) => Python::ask(&interpreter),
            None => Python::default(),
        }
    }
}

/// Warns about possible harm, and refuses a command that would certainly fail.
fn refuse_mistakes(checks: Vec<Check>) -> Result<(), UsageError> {
    for check in
        checks.iter().filter(|check| check.verdict == Verdict::Warn && check.id != "environment-complete")
    {
        say(format_args!("warning: {check}"));
    }
    match checks.into_iter().find(|check| check.verdict == Verdict::Fail) {
        Some(check) => Err(UsageError(check.to_string())),
        None => Ok(()),
    }
}

fn is_python(program: &str) -> bool {
    Path::new(program)
        .file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| name.starts_with("python"))
}

/// The interpreter of a torchrun command: its own first word, or the one in the first line of torchrun's
/// file.
fn interpreter(torchrun: &Torchrun, env: &Environment) -> Option<PathBuf> {
    if let Some(interpreter) = torchrun.interpreter() {
        return Some(interpreter.into());
    }
    let is_launcher = |word: &str| matches!(word, "torchrun" | "ft_launcher");
    let program = torchrun.argv().iter().find(|word| word.rsplit('/').next().is_some_and(is_launcher))?;
    let file = if program.contains('/') {
        PathBuf::from(program)
    } else {
        std::env::split_paths(env.get("PATH")?).map(|dir| dir.join(program)).find(|file| file.is_file())?
    };
    let text = std::fs::read(file).ok()?;
    let first = text.split(|&b| b == b'\n').next()?.strip_prefix(b"#!")?;
    let first = std::str::from_utf8(first).ok()?.trim();
    // A line such as `#!/usr/bin/env python3`.
    let mut words = first.split_whitespace().filter(|word| !word.ends_with("/env"));
    words.next().filter(|word| is_python(word)).map(PathBuf::from)
}

/// The packages of an interpreter.
#[derive(Debug, Default, Deserialize)]
struct Python {
    plugin: bool,
    torch: Option<String>,
}

impl Python {
    /// Reads metadata only: importing torch takes seconds.
    const QUESTION: &str = "
import importlib.metadata as m, json
try: torch = m.version('torch')
except m.PackageNotFoundError: torch = None
names = [e.name for e in m.entry_points(group='torchrun.handlers')]
new = torch is not None and tuple(int(p) for p in torch.split('+')[0].split('.')[:2]) >= (2, 6)
print(json.dumps({'plugin': new and 'rallypoint' in names, 'torch': torch}))
";

    fn ask(interpreter: &Path) -> Self {
        /// Long enough for a cold file system, but a hanging interpreter must not delay the job for long.
        const LIMIT: Duration = Duration::from_secs(20);
        let args = [OsString::from("-c"), Self::QUESTION.into()];
        let output = process::output(interpreter, &args, LIMIT);
        let told = output.and_then(|text| serde_json::from_slice(&text).map_err(std::io::Error::from));
        told.unwrap_or_else(|error| {
            say(format_args!(
                "cannot ask {} for its packages, so without the plugin: {error}",
                interpreter.display()
            ));
            Self::default()
        })
    }
}

fn tell(plan: &Plan, mode: Mode) {
    plan.notes.iter().for_each(say);
    say(format_args!("starting in mode {}: {}", mode.name(), shown(&plan.argv)));
}

/// Whether an address belongs to this host: packets to it then leave from the same address.
fn is_here(addr: SocketAddr) -> bool {
    addr.ip().is_loopback() || source_towards(addr) == Some(addr.ip())
}

/// A command in printable form.
fn shown(argv: &[String]) -> String {
    shlex::try_join(argv.iter().map(String::as_str)).unwrap_or_else(|_| argv.join(" "))
}

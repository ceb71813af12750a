//! The command line: types and texts here, one command per file beside it. A command returns whether the
//! requested thing happened. stdout has data, stderr has the log.

#[cfg(any(test, not(all(feature = "bench", feature = "manifests"))))]
mod absent;
mod barrier;
#[cfg(feature = "bench")]
mod bench;
mod ctl;
mod demo;
mod doctor;
mod env;
mod etcd;
mod exit_codes;
mod flags;
mod gather;
mod health;
mod join;
mod journal;
mod launch;
mod leave;
#[cfg(feature = "manifests")]
mod manifests;
mod manual;
mod news;
mod poll;
mod process;
mod reach;
mod relay;
mod run;
mod sarif;
mod serve;
mod status;
mod store;
mod terminal;
mod test_settings;
mod units;
mod version;
mod wait;

use std::process::ExitCode;

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

#[cfg(not(feature = "bench"))]
use absent as bench;
#[cfg(not(feature = "manifests"))]
use absent as manifests;

/// The meeting point of distributed PyTorch jobs: a standalone c10d TCPStore server.
#[derive(Debug, Parser)]
#[command(name = "rallypoint", version, max_term_width = 100, help_expected = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server
    Serve(Box<serve::Args>),
    /// Start a command once the server answers and all nodes are there
    Run(Box<Client<run::Args>>),
    /// Bring a server to this node's loopback, through breaks of the network
    Relay(Client<relay::Args>),
    /// Wait until a TCPStore answers, or until all pods are there
    Wait(Box<Client<wait::Args>>),
    /// Derive the launch environment from what the platform gives
    Env(env::Args),
    /// Check what makes jobs hang, in this pod or in manifests
    Doctor(Box<Client<doctor::Args>>),
    /// Tell by the exit code whether a server is healthy (for exec probes)
    Health(Client<health::Args>),
    /// Tell who has joined, who is missing, and who waits for what
    Status(Client<status::Args>),
    /// Look inside any TCPStore, rallypoint's or PyTorch's
    Store(store::Args),
    /// Meet the other nodes of a run, and print who they are
    Join(Client<join::Args>),
    /// Wait until all have arrived at a barrier
    Barrier(Client<barrier::Args>),
    /// Leave a run
    Leave(Client<leave::Args>),
    /// Look into the journal of a server, without changing it
    Journal(journal::Args),
    /// Change a running server
    Ctl(Client<ctl::Args>),
    /// Load test of any TCPStore server, rallypoint's or PyTorch's
    Bench(Box<Client<bench::Args>>),
    /// Show what a job looks like while one of its pods is missing
    Demo(demo::Args),
    /// Tell the version, the commit, and the dialects that it speaks
    Version(version::Args),
    /// Print the completions of a shell
    Completions(manual::Completions),
    /// Print the manual page, or write all pages into a folder
    Man(manual::Manual),
}

/// A command that speaks with an admin port: its own flags, and those that show who the client is.
#[derive(Debug, clap::Args)]
struct Client<A: clap::Args> {
    #[command(flatten)]
    args: A,

    #[command(flatten)]
    tls: flags::Tls,

    #[command(flatten)]
    token: flags::TokenFlag,
}

impl<A: clap::Args> Client<A> {
    fn run(self, command: fn(A) -> anyhow::Result<Outcome>) -> anyhow::Result<Outcome> {
        self.tls.hold();
        self.token.hold();
        command(self.args)
    }
}

/// The result of a command, apart from usage errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Exit code 0.
    Done,
    /// The requested thing did not happen: exit code 1.
    NotDone,
    /// The exit code of a command that it ran.
    Code(u8),
}

/// An error in usage or configuration: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

impl Cli {
    /// Parses the command line of this process. An invalid one ends the process, with exit code 2 unless the
    /// line asks for another convention.
    pub fn of_process() -> Self {
        let mut command = Self::command();
        let line: Vec<_> = std::env::args_os().collect();
        let matches = command.try_get_matches_from_mut(&line).unwrap_or_else(|error| {
            // A closed stderr changes nothing.
            let _ = error.print();
            std::process::exit(exit_codes::of_refused(&command, &line, &error))
        });
        unread_variables(&command, &matches).into_iter().for_each(terminal::say);
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit())
    }

    /// Runs the command. Errors are printed to stderr.
    pub fn run(self) -> ExitCode {
        let ended = match self.command {
            Command::Serve(args) => args.run(),
            Command::Run(client) => client.run(run::Args::run),
            Command::Relay(client) => client.run(relay::Args::run),
            Command::Wait(client) => client.run(wait::Args::run),
            Command::Env(args) => args.run(),
            Command::Doctor(client) => client.run(doctor::Args::run),
            Command::Health(client) => client.run(health::Args::run),
            Command::Status(client) => client.run(status::Args::run),
            Command::Store(args) => args.run(),
            Command::Join(client) => client.run(join::Args::run),
            Command::Barrier(client) => client.run(barrier::Args::run),
            Command::Leave(client) => client.run(leave::Args::run),
            Command::Journal(args) => args.run(),
            Command::Ctl(client) => client.run(ctl::Args::run),
            Command::Bench(client) => client.run(bench::Args::run),
            Command::Demo(args) => args.run(),
            Command::Version(args) => args.run(),
            Command::Completions(args) => args.run(),
            Command::Man(args) => args.run(),
        };
        match ended {
            Ok(Outcome::Done) => ExitCode::SUCCESS,
            Ok(Outcome::NotDone) => ExitCode::from(1),
            Ok(Outcome::Code(code)) => ExitCode::from(code),
            Err(error) => {
                terminal::say(format_args!("{error:#}"));
                ExitCode::from(if error.is::<UsageError>() { 2 } else { 1 })
            }
        }
    }
}

/// Hints for variables `RALLYPOINT_<FLAG>` that a flag does not read, because it has a variable of its own:
/// another command gives that word another meaning. There is no hint for a flag that is given.
fn unread_variables(command: &clap::Command, matches: &ArgMatches) -> Vec<String> {
    let (mut command, mut matches) = (command, matches);
    let mut path = Vec::new();
    while let Some((name, below)) = matches.subcommand() {
        let Some(found) = command.find_subcommand(name) else { break };
        (command, matches) = (found, below);
        path.push(name);
    }
    let hint = |arg: &clap::Arg| {
        let (variable, flag) = (arg.get_env()?.to_str()?, arg.get_long()?);
        let short = format!("RALLYPOINT_{}", flag.to_uppercase().replace('-', "_"));
        let is_set = std::env::var_os(&short).is_some_and(|value| !value.is_empty());
        let source = matches.value_source(arg.get_id().as_str());
        let is_given = matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable));
        (variable != short && is_set && !is_given).then(|| {
            format!("{short} says nothing to `{}`: its --{flag} is set by {variable}", path.join(" "))
        })
    };
    command.get_arguments().filter_map(hint).collect()
}

/// A small runtime on one thread.
fn client_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Runs the work of a client command.
fn run_client<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = client_runtime()?;
    let done = runtime.block_on(work);
    // The resolver may still be busy with an abandoned look-up; nobody waits for it.
    runtime.shutdown_background();
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    /// Users must be able to choose among the flags.
    #[test]
    fn the_flags_of_serve_are_few_and_in_groups_with_the_ten_that_matter_first() {
        let mut command = Cli::command();
        command.build();
        let serve = command.find_subcommand("serve").expect("the command");
        let all: Vec<&clap::Arg> = serve.get_arguments().filter(|arg| arg.get_id() != "help").collect();
        let (hidden, shown): (Vec<_>, Vec<_>) = all.into_iter().partition(|arg| arg.is_hide_set());
        assert!(shown.len() <= 40, "{} flags", shown.len());
        let hidden: Vec<_> = hidden.iter().map(|arg| arg.get_id().as_str()).collect();
        assert_eq!(hidden, ["test_settings"]);
        let mut headings: Vec<&str> = shown.iter().filter_map(|arg| arg.get_help_heading()).collect();
        assert_eq!(headings.len(), shown.len(), "a flag has no heading");
        assert_eq!(headings.iter().filter(|heading| heading.starts_with("The ten")).count(), 10);
        assert!(headings[..10].iter().all(|heading| heading == &headings[0]), "{headings:?}");
        headings.dedup();
        let different: BTreeSet<_> = headings.iter().collect();
        assert_eq!(different.len(), headings.len(), "a group is in two places: {headings:?}");
    }

    /// Collects the commands that read each variable. The subcommands of `store` and of `ctl` count as one
    /// command each.
    fn readers(command: &clap::Command, top: &str, found: &mut BTreeMap<String, BTreeSet<String>>) {
        for variable in command.get_arguments().filter_map(|arg| arg.get_env()?.to_str()) {
            found.entry(variable.to_owned()).or_default().insert(top.to_owned());
        }
        for below in command.get_subcommands() {
            readers(below, if top.is_empty() { below.get_name() } else { top }, found);
        }
    }

    /// A variable in a pod's environment is read by every command in the pod.
    #[test]
    fn a_variable_means_one_thing_to_all_commands() {
        /// Variables of a pod or a run, with one meaning in all commands.
        const SHARED: [&str; 20] = [
            "RALLYPOINT_ADMIN",
            "RALLYPOINT_ENDPOINT",
            "RALLYPOINT_ETCD_CA",
            "RALLYPOINT_ETCD_CERT",
            "RALLYPOINT_ETCD_KEY",
            "RALLYPOINT_ETCD_PASSWORD_FILE",
            "RALLYPOINT_ETCD_USER",
            "RALLYPOINT_EXIT_CODES",
            "RALLYPOINT_JSON",
            "RALLYPOINT_NODE",
            "RALLYPOINT_NODES",
            "RALLYPOINT_NODE_RANK",
            "RALLYPOINT_NPROC_PER_NODE",
            "RALLYPOINT_REASON",
            "RALLYPOINT_RUN_ID",
            "RALLYPOINT_STORE",
            "RALLYPOINT_TLS_CA",
            "RALLYPOINT_TLS_CLIENT_CERT",
            "RALLYPOINT_TLS_CLIENT_KEY",
            "RALLYPOINT_TOKEN_FILE",
        ];
        let mut found = BTreeMap::new();
        readers(&Cli::command(), "", &mut found);
        assert!(found.len() > 60, "{found:?}");
        let shared = found.iter().filter(|(_, readers)| readers.len() > 1).map(|(name, _)| name.as_str());
        assert_eq!(shared.collect::<Vec<_>>(), SHARED);
    }
}

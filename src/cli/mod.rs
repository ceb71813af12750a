//! The command line: types and texts here, one command a file beside it. Commands return whether what was asked for
//! happened; stdout is data, stderr is log.

mod barrier;
mod bench;
mod ctl;
mod doctor;
mod env;
mod gather;
mod health;
mod join;
mod launch;
mod leave;
mod news;
mod poll;
mod process;
mod reach;
mod run;
mod serve;
mod status;
mod store;
mod terminal;
mod units;
mod wait;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    Run(Box<run::Args>),
    /// Wait until a TCPStore answers, or until all pods are there
    Wait(Box<wait::Args>),
    /// Derive the launch environment from what the platform gives
    Env(env::Args),
    /// Check what makes jobs hang, in this pod or in manifests
    Doctor(Box<doctor::Args>),
    /// Tell by the exit code whether a server is healthy (for exec probes)
    Health(health::Args),
    /// Tell who has joined, who is missing, and who waits for what
    Status(status::Args),
    /// Look inside any TCPStore, rallypoint's or PyTorch's
    Store(store::Args),
    /// Meet the other nodes of a run, and print who they are
    Join(join::Args),
    /// Wait until all have arrived at a barrier
    Barrier(barrier::Args),
    /// Leave a run
    Leave(leave::Args),
    /// Change a running server
    Ctl(ctl::Args),
    /// Load test of any TCPStore server, rallypoint's or PyTorch's
    Bench(Box<bench::Args>),
}

/// How a command ended, apart from errors of usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Exit code 0.
    Done,
    /// The asked-for thing did not happen: exit code 1.
    NotDone,
    /// The exit code of a command that was run.
    Code(u8),
}

/// An error in usage or configuration: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

impl Cli {
    /// Runs the command. Errors are printed to stderr.
    pub fn run(self) -> ExitCode {
        let ended = match self.command {
            Command::Serve(args) => args.run(),
            Command::Run(args) => args.run(),
            Command::Wait(args) => args.run(),
            Command::Env(args) => args.run(),
            Command::Doctor(args) => args.run(),
            Command::Health(args) => args.run(),
            Command::Status(args) => args.run(),
            Command::Store(args) => args.run(),
            Command::Join(args) => args.run(),
            Command::Barrier(args) => args.run(),
            Command::Leave(args) => args.run(),
            Command::Ctl(args) => args.run(),
            Command::Bench(args) => args.run(),
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

/// The token in `--token-file`, for the server that asks for it and the client that sends it.
fn token(file: &std::path::Path) -> Result<crate::config::Token, UsageError> {
    crate::config::Token::read(file).map_err(|error| UsageError(error.to_string()))
}

/// A small runtime for one thread.
fn client_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Runs the work of a command that is a client.
fn run_client<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = client_runtime()?;
    let done = runtime.block_on(work);
    // A look-up that was given up may still sit in the resolver; nobody waits for it.
    runtime.shutdown_background();
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}

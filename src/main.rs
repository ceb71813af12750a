//! Parses the command line and exits with what the command says.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    rallypoint::cli::Cli::parse().run()
}

//! Parses the command line and exits with what the command says.

use std::process::ExitCode;

fn main() -> ExitCode {
    rallypoint::cli::Cli::of_process().run()
}

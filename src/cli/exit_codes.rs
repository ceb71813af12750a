//! The meaning of an exit code, for programs that know another convention than ours.

use std::ffi::OsString;

use clap::ValueEnum;

use super::terminal::say;
use super::{Outcome, UsageError};
use rallypoint_doctor::Verdict;

#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct ExitCodes {
    /// Convention of the exit code. kep-3416 is that of Kubeflow Trainer's init containers: 0 pass, 10
    /// warning, 20 try again, 30 fatal
    #[arg(long, env = "RALLYPOINT_EXIT_CODES", value_name = "CONVENTION", default_value = "own")]
    exit_codes: Convention,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Convention {
    Own,
    #[value(name = "kep-3416")]
    Kep3416,
}

const WARNING: u8 = 10;
const TRY_AGAIN: u8 = 20;
const FATAL: u8 = 30;

impl ExitCodes {
    /// The outcome of checks, where our own convention says `own`.
    pub(super) fn of_checks(self, worst: Verdict, own: Outcome) -> Outcome {
        match (self.exit_codes, worst) {
            (Convention::Own, _) => own,
            (Convention::Kep3416, Verdict::Pass) => Outcome::Done,
            (Convention::Kep3416, Verdict::Warn) => Outcome::Code(WARNING),
            (Convention::Kep3416, Verdict::Fail) => Outcome::Code(FATAL),
        }
    }

    /// The outcome of a command: what did not come may come later, and a wrong call stays wrong.
    pub(super) fn of(self, ended: anyhow::Result<Outcome>) -> anyhow::Result<Outcome> {
        match (self.exit_codes, ended) {
            (Convention::Kep3416, Ok(Outcome::NotDone)) => Ok(Outcome::Code(TRY_AGAIN)),
            (Convention::Kep3416, Err(error)) => {
                say(format_args!("{error:#}"));
                Ok(Outcome::Code(if error.is::<UsageError>() { FATAL } else { TRY_AGAIN }))
            }
            (_, ended) => ended,
        }
    }
}

/// The exit code for a command line that clap refuses. It tells no values then, so the flag is read as text.
pub(super) fn of_refused(program: &clap::Command, line: &[OsString], error: &clap::Error) -> i32 {
    let line: Vec<_> =
        line.iter().map(|word| word.to_string_lossy()).take_while(|word| word != "--").collect();
    let has_flag = |command: &clap::Command| command.get_arguments().any(|arg| arg.get_id() == "exit_codes");
    let command = line.get(1).and_then(|name| program.find_subcommand(&**name));
    let flag = line.windows(2).find_map(|pair| match &*pair[0] {
        "--exit-codes" => Some(pair[1].to_string()),
        _ => pair[1].strip_prefix("--exit-codes=").map(str::to_owned),
    });
    let asked = flag.or_else(|| std::env::var("RALLYPOINT_EXIT_CODES").ok());
    let kep = asked.and_then(|asked| Convention::from_str(&asked, false).ok()) == Some(Convention::Kep3416);
    if kep && error.use_stderr() && command.is_some_and(has_flag) { FATAL.into() } else { error.exit_code() }
}

//! The meaning of an exit code, for programs that know another convention than ours.

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

    /// The outcome of a command that waits: what did not come may come later, and a wrong call stays wrong.
    pub(super) fn of_waiting(self, ended: anyhow::Result<Outcome>) -> anyhow::Result<Outcome> {
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

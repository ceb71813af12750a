//! The place of a process in its job, derived from the platform's environment variables, and the changes of
//! `rallypoint run` to a command, so that its processes meet on a rallypoint server.
//!
//! Pure: an [`Environment`] and a few facts go in, a [`LaunchEnv`] with the origin of each value comes out.
//! Nothing here reads a variable, a file or a clock.
//!
//! | module | what it is for |
//! |---|---|
//! | `environment` | the variables, and reading numbers out of them |
//! | `platform` | the table of platforms: the meaning of their variables |
//! | `hosts` | lists of hosts as platforms write them |
//! | `names` | ordinals in pod names, and suffixes that only look like one |
//! | `slurm` | the place of a process in a Slurm job step |
//! | `derive` | the derivation: all sources of a value must agree |
//! | `export` | the variables that follow, as shell, JSON or docker |
//! | `script` | the commands of a shell script in a command |
//! | `grammar` | the table of launchers: their flags, and what a call of each starts |
//! | `torchrun` | the command line of torchrun: flags, `--rdzv-conf` |
//! | `launcher` | other launchers, and their flags and variables |
//! | `plan` | the changes to a command, by launch mode |
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::print_stdout, clippy::print_stderr)]

mod derive;
mod environment;
mod error;
mod export;
mod grammar;
mod hosts;
mod launcher;
mod names;
mod plan;
mod platform;
mod script;
mod slurm;
mod torchrun;

pub use derive::{Derived, Given, LaunchEnv, Meeting, Pod, Processes, derive, endpoint, node_rank};
pub use environment::Environment;
pub use error::{Difference, LaunchError};
pub use export::{Format, for_torch, variables};
pub use grammar::{BY_FLAGS, Called, GRAMMARS, Grammar, PROGRAM, Role, Starter, Starts, Tool};
pub use launcher::Launcher;
pub use names::{ordinal, random_suffix};
pub use plan::{Job, Mode, NEW_STORE_EACH_ROUND, Plan, PlanError, Server};
pub use platform::Platform;
pub use script::{basename, is_python_file};
pub use torchrun::{Backend, RdzvConf, Torchrun, find_torchrun, find_torchrun_in, restarts_workers};

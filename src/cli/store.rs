//! To be written.

use super::Outcome;

/// To be written.
#[derive(Debug, clap::Args)]
pub(super) struct Args {}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        Ok(Outcome::NotDone)
    }
}

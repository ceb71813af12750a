//! The scenarios, one idea a file. Each prepares, measures its sections and clears up.

mod steady;

use super::frame::{Answer, Frame};
use super::pace::pace;
use super::session::{Session, Units};
use super::{Error, Link, Plan, Scenario};

/// Does what the session's plan says.
pub(super) fn run(session: &mut Session<'_>) -> Result<(), Error> {
    match session.plan.scenario {
        Scenario::Rtt => steady::rtt(session),
        Scenario::Mix => steady::mix(session),
        _ => Err(Error::System(std::io::ErrorKind::Unsupported.into())),
    }
}

/// Keys that jobs use and this scenario writes; they must not be there before.
pub(super) fn keys_of_jobs(plan: &Plan) -> Vec<String> {
    match plan.scenario {
        _ => Vec::new(),
    }
}

//! The scenarios, one idea per file. Each prepares, measures its sections and cleans up.

mod join;
mod large;
mod parked;
mod ranks;
mod rendezvous;
mod steady;

use super::frame::{Answer, Frame};
use super::pace::pace;
use super::session::{Session, Units};
use super::{Error, Link, Plan, Scenario};

/// Carries out the session's plan.
pub(crate) fn run(session: &mut Session<'_>) -> Result<(), Error> {
    match session.plan.scenario {
        Scenario::Rtt => steady::rtt(session),
        Scenario::Mix => steady::mix(session),
        Scenario::Fanout => parked::fanout(session),
        Scenario::Init => ranks::init(session),
        Scenario::Exchange => ranks::exchange(session),
        Scenario::NcclIds => ranks::nccl_ids(session),
        Scenario::Cancel => parked::cancel(session),
        Scenario::Leave => parked::leave(session),
        Scenario::Cas => rendezvous::cas(session),
        Scenario::Big => large::big(session),
        Scenario::Barrier => ranks::barrier(session),
        Scenario::Join => join::join(session),
    }
}

/// The keys of jobs that this scenario also writes, under names that servers know. They must be absent before
/// the test.
pub(crate) fn keys_of_jobs(plan: &Plan) -> Vec<String> {
    match plan.scenario {
        Scenario::Init => ranks::INIT_KEYS.map(str::to_owned).into(),
        Scenario::Exchange => vec![ranks::INIT_KEYS[0].to_owned(), ranks::address_key(0, 0)],
        Scenario::NcclIds => vec![ranks::INIT_KEYS[0].to_owned(), ranks::nccl_id_key(0, 0)],
        _ => Vec::new(),
    }
}

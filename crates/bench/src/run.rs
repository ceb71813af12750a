//! Runs one load test, from its plan to its report.

use super::session::{Session, Tick};
use super::{Dialer, Error, Plan, Report, scenarios};
use rallypoint_node::client::{Client, Options};

/// Simultaneous connection attempts. Accept queues hold at least about as many. The kernel repeats a dropped
/// attempt a second later, which would be a measurement of the kernel.
const CONNECTS_AT_ONCE: usize = 256;

/// Carries out `plan`. Calls `watch` several times a second.
pub fn run(plan: &Plan, watch: &mut dyn FnMut(Tick)) -> Result<Report, Error> {
    let dialer = if plan.scenario.is_of_admin_port() {
        Dialer::silent(plan, CONNECTS_AT_ONCE)
    } else {
        Dialer::new(plan, CONNECTS_AT_ONCE, look_at_target(plan)?)
    };
    let mut session = Session::start(plan, dialer, watch)?;
    scenarios::run(&mut session)?;
    Ok(session.report())
}

/// Checks that the target is a store without a job. Returns whether it knows PING.
fn look_at_target(plan: &Plan) -> Result<bool, Error> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::System)?;
    runtime.block_on(async {
        let mut client = Client::connect_addr(plan.target, &Options::default()).await?;
        for key in scenarios::keys_of_jobs(plan) {
            let there = client.check(&[key.as_bytes()]).await;
            if there.map_err(|error| Error::System(std::io::Error::other(error)))? {
                return Err(Error::InUse { target: plan.target, key });
            }
        }
        let keys = client.num_keys().await;
        let keys = keys.map_err(|error| Error::System(std::io::Error::other(error)))?;
        if keys > 0 && !plan.allow_in_use {
            return Err(Error::HasKeys { target: plan.target, keys });
        }
        Ok(client.pings())
    })
}

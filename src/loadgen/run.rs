//! One load test from its plan to its report.

use super::session::{Session, Tick};
use super::{Dialer, Error, Plan, Report, scenarios};
use crate::node::client::{Client, Options};

/// Connection attempts at once. Accept queues hold at least about as many; what does not fit is sent again by the
/// kernel a second later, which would measure the kernel.
const CONNECTS_AT_ONCE: usize = 256;

/// Does what `plan` says. `watch` is called some times a second meanwhile.
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

/// Makes sure that the target is a store and not a job's. Returns whether it knows PING.
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

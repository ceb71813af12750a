//! What happened to a store, and who came to the wrong one.

use std::fmt::Display;

use crate::facts::{Foreign, TrackedRun};
use crate::reason::{Code, Evidence, Finding, Hold, Names};
use crate::rules::Held;
use rallypoint_api::Severity;
use rallypoint_protocol::ids::{Elapsed, Timestamp, counted};

/// An operator emptied a store, and with it these addresses of ranks that had not met.
pub(crate) fn reset(lost: Vec<Evidence>, at: Timestamp) -> Finding {
    let ranks = Names::of(lost.iter().map(|address| address.who.clone()));
    let (addresses, are) = if ranks.count() == 1 { ("address", "is") } else { ("addresses", "are") };
    let reason = Code::StoreReset
        .says(format!(
            "an operator reset the store before all ranks had met: the {addresses} of {ranks} {are} gone"
        ))
        .held(&ranks);
    Finding::new(reason, format!("{at:?}"), at).seen(lost)
}

/// c10d: nobody can say who has joined.
pub(crate) fn unreadable_state(why: &impl Display, at: Timestamp) -> Finding {
    let reason = Code::UnreadableState.says(format!("the rendezvous state cannot be read: {why}"));
    Finding::new(reason, "", at)
}

/// The store of a native round is gone, and the round goes on.
pub(crate) fn store_closed(run: &TrackedRun, now: Timestamp) -> Option<Finding> {
    let round = &run.round;
    let since = round.reset.filter(|_| run.goes_on() && round.completed.is_some())?;
    let ago = Elapsed(now.since(since));
    let reason = Code::StoreReset
        .says(format!("an operator's reset closed the store of round {} {ago} ago", round.number))
        .severe(Severity::Info)
        .hold(Hold::Soon)
        .look_at(
            "nothing, if the ranks go on and need no store any more; else start all agents of the job again, \
             together: the next round has a store of its own",
        );
    Some(Finding::of_round(reason, run.round.number, since))
}

/// A client of another protocol came to a port.
pub(crate) fn wrong_port(foreign: &Foreign, now: Timestamp) -> Held {
    let Foreign { port, peer, protocol, stores, times, last } = foreign;
    let (often, ago) = (counted(*times, "time", "times"), Elapsed(now.since(*last)));
    let a = if *protocol == "HTTP" { "an" } else { "a" };
    let reason = Code::WrongPort
        .says(format!("{a} {protocol} client at {peer} came to port {port} {often}, the last {ago} ago"))
        .and("stores have ports", &Names::of(stores.iter().flatten().map(u16::to_string)));
    let finding = Finding::new(reason, format!("{peer} {protocol}"), *last);
    Held { store: stores.is_none().then_some(*port), run: None, finding }
}

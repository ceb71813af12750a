//! What happened to a store, and who came to the wrong one.

use std::collections::BTreeMap;
use std::fmt::Display;

use crate::facts::{Foreign, RunKey, TrackedRun, Waiting};
use crate::identity::processes::{Graph, WAITS_SHOWN};
use crate::reason::{Code, Evidence, Finding, Hold, Names, clients};
use crate::rules::Held;
use rallypoint_api::Severity;
use rallypoint_protocol::ids::{Elapsed, RunId, Timestamp, counted};
use rallypoint_protocol::keys::{KeyPattern, RendezvousPart, classify};

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

impl Graph<'_> {
    /// Agents wait for the state of their c10d rendezvous only when it was dropped: it is there from the
    /// first of them on.
    pub(crate) fn of_dropped_states(&self) -> Vec<(Option<RunKey>, Finding)> {
        let mut by_run: BTreeMap<RunId, Vec<&Waiting>> = BTreeMap::new();
        for wait in self.store.waits.values() {
            let key = wait.view.missing.first().and_then(|key| classify(key));
            if let Some(KeyPattern::Rendezvous { run_id, part: RendezvousPart::State, .. }) = key {
                by_run.entry(RunId::new(run_id)).or_default().push(wait);
            }
        }
        let found = by_run.into_iter().filter_map(|(id, waits)| {
            let since = waits.iter().map(|wait| wait.since).min()?;
            let run_id = id.to_string();
            let who = Names::of_some(&waits, |wait| self.who(wait.view.conn));
            let (waiting, waited) = (clients(&who), Elapsed(self.now.since(since)));
            let reason = Code::StoreReset
                .says(format!(
                    "{waiting} {waited} for the rendezvous state of run {run_id}, which was dropped: an \
                     operator reset the store, or had the run forgotten"
                ))
                .severe(Severity::Warning)
                .hold(Hold::Lasting)
                .look_at(
                    "a node that joins writes it again, and the others join it; if none is to come, restart \
                     all agents of the job together",
                )
                .held(&who);
            let evidence = waits.iter().take(WAITS_SHOWN).map(|wait| self.evidence(wait.view.conn, wait));
            let key = Some(self.store.key_of(&id)).filter(|key| self.runs.contains_key(key));
            Some((key, Finding::new(reason, run_id, since).seen(evidence)))
        });
        found.collect()
    }
}

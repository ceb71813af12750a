//! What is known, the same for all backends: level-triggered, what is so now and since when.
//!
//! [`adapters`](crate::adapters) and [`identity`](crate::identity) change it, rules and reports only read it.

mod links;
mod missing;
mod plan;
mod run;
mod store;

use std::collections::BTreeMap;

pub(crate) use self::links::Links;
pub use self::links::{AwayLink, LinkEvent, LinkNews};
pub(crate) use self::missing::{Absent, count_of_missing, joined, lost, missing, turned_away};
pub use self::plan::Expectation;
pub(crate) use self::plan::{Plan, Plans};
pub(crate) use self::run::*;
pub use self::store::StoreOwner;
pub(crate) use self::store::{
    Claim, Claimed, Client, Foreign, ForeignClients, GivenUp, Passed, Published, StoreWatch, Waiting, process,
};
use crate::reason::Finding;

/// All runs.
pub(crate) type Runs = BTreeMap<RunKey, TrackedRun>;

/// Something that was found about a run, or only about a store.
pub(crate) struct Held {
    pub(crate) store: Option<u16>,
    pub(crate) run: Option<RunKey>,
    pub(crate) finding: Finding,
}

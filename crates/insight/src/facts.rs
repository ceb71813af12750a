//! What is known, the same for all backends: level-triggered, what is so now and since when.
//!
//! [`adapters`](crate::adapters) and [`identity`](crate::identity) change it, rules and reports only read it.

mod links;
mod missing;
mod plan;
mod run;
mod store;

pub(crate) use self::links::Links;
pub use self::links::{AwayLink, LinkEvent, LinkNews};
pub(crate) use self::missing::{Absent, count_of_missing, joined, lost, missing, turned_away};
pub use self::plan::Expectation;
pub(crate) use self::plan::{Plan, Plans};
pub(crate) use self::run::*;
pub use self::store::StoreOwner;
pub(crate) use self::store::{
    Claim, Clash, Client, CountedRanks, Foreign, ForeignClients, GivenUp, Passed, Poll, Published,
    StoreWatch, Waiting, process,
};

//! What is known, the same for all backends: level-triggered, what is so now and since when.
//!
//! [`adapters`](crate::adapters) and [`identity`](crate::identity) change it, rules and reports only read it.

pub(crate) mod links;
pub(crate) mod missing;
pub(crate) mod plan;
pub(crate) mod run;
pub(crate) mod store;
pub(crate) mod wanted;

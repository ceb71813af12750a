//! What is said of the facts.

pub(crate) mod addresses;
pub(crate) mod conditions;
pub(crate) mod ends;
pub(crate) mod links;
pub(crate) mod losses;
mod native;
mod silence;
pub(crate) mod starts;
pub(crate) mod waiting;

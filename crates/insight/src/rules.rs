//! What is said of the facts.

pub(crate) mod addresses;
pub(crate) mod conditions;
mod native;
pub(crate) mod waiting;

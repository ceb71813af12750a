//! The repository itself: borders of the code, true documents, understood recordings, plain comments.

#[path = "../common/mod.rs"]
mod common;

mod borders;
mod budgets;
mod claims;
mod docs;
mod metrics;
mod notes;
mod openapi;
mod recordings;
mod words;

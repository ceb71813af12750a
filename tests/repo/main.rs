//! The repository itself: borders of the code, documents that tell the truth, recordings that are understood.

#[path = "../common/mod.rs"]
mod common;

mod borders;
mod docs;
mod metrics;
mod notes;
mod openapi;
mod recordings;

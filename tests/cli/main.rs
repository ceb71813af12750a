//! The commands, run as a user runs them.

#[path = "../common/mod.rs"]
mod common;

mod bench;
mod clients;
mod doctor;
mod launch;
mod meeting;
mod status;

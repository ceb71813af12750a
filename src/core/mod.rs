//! The core: state machines. An event and the time go in, and their effects come out. Nothing here does I/O,
//! reads a clock, takes a lock or logs, so each rule can be tested without a server.
//!
//! | module | what it is for |
//! |---|---|
//! | [`ids`] | names and numbers that have a meaning: run ids, connections, the server's time |
//! | [`protocol`] | bytes to requests, replies to bytes |
//! | [`store`] | the key-value state machine with its rules for stale keys |
//! | [`rendezvous`] | joins, rounds, ranks, keep-alives, closing; barriers with names |
//! | [`journal`] | rows that outlive the server: their form, and how they are read again |
//! | [`link`] | one connection for all clients of a node, which may break at any byte |
//! | [`map`] | a hash map whose order a simulation decides |
//! | [`gate`] | where the pods of a run wait for each other |
//! | [`insight`] | what the traffic says about the jobs, and why they wait |
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::print_stdout, clippy::print_stderr)]

pub mod gate;
pub mod ids;
pub mod insight;
pub mod journal;
pub mod link;
pub mod map;
pub mod protocol;
pub mod rendezvous;
pub mod store;

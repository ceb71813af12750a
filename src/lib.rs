//! rallypoint: the meeting point of distributed PyTorch jobs.
//!
//! A standalone server that speaks PyTorch's c10d TCPStore protocol. The pure core knows no I/O, clock, lock or log;
//! the shell around it is replaceable.
//!
//! | module | what it is for |
//! |---|---|
//! | [`core`] | the state machines: protocol, store, rendezvous, gate, insight |
//! | [`api`] | the bodies of the HTTP API |
//! | [`server`] | sockets, locks and time around the core; the admin port and the metrics |
//! | [`node`] | what runs on a node: launch, doctor, client |
//! | [`loadgen`] | load tests of any TCPStore |
//! | [`config`] | the server's settings and their defaults |
//! | [`process`] | what the system knows about a process |
//! | [`tls`] | certificates, and connections that are plain or encrypted |
//! | [`tokens`] | who may do what, by the token that is shown |
//! | [`cli`] | the command line |
// Numbers come from peers, files and the environment. A file that has only its own says so.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss
    )
)]

pub mod api;
pub mod cli;
pub mod config;
pub mod core;
pub mod loadgen;
pub mod node;
pub mod process;
pub mod server;
pub mod tls;
pub mod tokens;

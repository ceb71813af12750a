//! rallypoint: the meeting point of distributed PyTorch jobs.
//!
//! A standalone server that speaks PyTorch's c10d TCPStore protocol. The pure core knows no I/O, clock, lock or log;
//! the shell around it is replaceable.
//!
//! | module | what it is for |
//! |---|---|
//! | [`protocol`] | bytes to requests and replies (core) |
//! | [`store`] | the key-value state machine with its rules for stale keys (core) |
//! | [`rendezvous`] | joins, rounds, ranks, keep-alives, closing; barriers with names (core) |
//! | [`engine`] | one lock around one store; order, wake-ups, memory budget |
//! | [`server`] | listeners, connections, stores of runs, lifecycle |
//! | [`admin`] | HTTP: health, metrics, API |
//! | [`api`] | the bodies of the HTTP API |
//! | [`metrics`] | names and help texts of all metrics |
//! | [`client`] | a client of any TCPStore |
//! | [`cli`] | the command line |

pub mod admin;
pub mod api;
pub mod cli;
pub mod client;
pub mod config;
pub mod engine;
pub mod ids;
pub mod metrics;
pub mod protocol;
pub mod rendezvous;
pub mod server;
pub mod store;

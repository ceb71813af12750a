//! rallypoint: the meeting point of distributed PyTorch jobs.
//!
//! A standalone server that speaks PyTorch's c10d TCPStore protocol. The pure core knows no I/O, clock, lock or log;
//! the shell around it is replaceable.
//!
//! | module | what it is for |
//! |---|---|
//! | [`protocol`] | bytes to requests and replies (core) |
//! | [`store`] | the key-value state machine with its rules for stale keys (core) |
//! | [`engine`] | one lock around one store; order, wake-ups, memory budget |
//! | [`server`] | listeners, connections, stores of runs, lifecycle |
//! | [`admin`] | HTTP: health, metrics, API |
//! | [`metrics`] | names and help texts of all metrics |
//! | [`client`] | a client of any TCPStore |
//! | [`endpoint`] | where a server is, as people and platforms write it |
//! | [`gather`] | the gate where the pods of a run wait for each other (core) |
//! | [`launch`] | who a process is in its job, by its environment (core) |
//! | [`doctor`] | checks that tell before a job hangs why it would |
//! | [`cli`] | the command line |

pub mod admin;
pub mod cli;
pub mod client;
pub mod config;
pub mod doctor;
pub mod endpoint;
pub mod engine;
pub mod gather;
pub mod ids;
pub mod launch;
pub mod metrics;
pub mod protocol;
pub mod server;
pub mod store;

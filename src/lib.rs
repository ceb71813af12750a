//! rallypoint: the meeting point of distributed PyTorch jobs.
//!
//! A standalone server that speaks PyTorch's c10d TCPStore protocol. The pure core knows no I/O, clock, lock or log;
//! the shell around it is replaceable.
//!
//! | module | what it is for |
//! |---|---|
//! | [`protocol`] | bytes to requests and replies (core) |
//! | [`store`] | the key-value state machine with its rules for stale keys (core) |
//! | [`insight`] | what the traffic says about the jobs, and why they wait (core) |
//! | [`rendezvous`] | joins, rounds, ranks, keep-alives, closing; barriers with names (core) |
//! | [`engine`] | one lock around one store; order, wake-ups, memory budget |
//! | [`server`] | listeners, connections, stores of runs, lifecycle |
//! | [`admin`] | HTTP: health, metrics, API |
//! | [`api`] | the bodies of the HTTP API |
//! | [`metrics`] | names and help texts of all metrics |
//! | [`client`] | a client of any TCPStore |
//! | [`loadgen`] | load tests of any TCPStore |
//! | [`process`] | what the system knows about a process |
//! | [`endpoint`] | where a server is, as people and platforms write it |
//! | [`gather`] | the gate where the pods of a run wait for each other (core) |
//! | [`launch`] | who a process is in its job, by its environment (core) |
//! | [`makers`] | what makes pods in Kubernetes, and what each maker gives them (core) |
//! | [`shell`] | which commands a shell script runs, as far as that can be read (core) |
//! | [`doctor`] | checks that tell before a job hangs why it would |
//! | [`cli`] | the command line |

pub mod admin;
pub mod api;
pub mod cli;
pub mod client;
pub mod config;
pub mod doctor;
pub mod endpoint;
pub mod engine;
pub mod gather;
pub mod ids;
pub mod insight;
pub mod launch;
pub mod loadgen;
pub mod makers;
pub mod metrics;
pub mod process;
pub mod protocol;
pub mod rendezvous;
pub mod server;
pub mod shell;
pub mod store;

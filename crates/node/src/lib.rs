//! The code that runs on a node, beside the job: the place of a process in its job, and the clients of a
//! server.
//!
//! | module | what it is for |
//! |---|---|
//! | [`client`] | a client of any TCPStore, and of the HTTP API |
//! | [`endpoint`] | the address of a server, as people and platforms write it |
//! | [`launch`] | the place of a process in its job, from its environment |
//! | [`makers`] | the makers of pods in Kubernetes, and the values that each gives to its pods |
//! | [`relay`] | a server on this node's loopback: its clients survive breaks of the network |
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

pub mod client;
pub mod endpoint;
pub mod launch;
pub mod makers;
pub mod relay;

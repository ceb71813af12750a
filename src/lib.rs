//! The program `rallypoint`: its command line, and the wiring of the crates below `crates/`.
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

pub mod cli;

//! Who may connect to the admin port, and what they may do there.
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

pub mod tls;
pub mod tokens;

//! The journal, without its files: what the next server must know after a server was killed.
//!
//! The changes of one critical section are one *commit*: its rows count all or not at all. Rows hold values,
//! never commands ([`Row`]). So a row may be read twice or copied at any time, and a newer release can read
//! what an older one wrote. Commits follow each other in *segments* ([`segment`]), numbered files that only
//! grow.
//!
//! Segments are not tidied one by one. The server walks through everything it holds in small steps, and
//! writes each row again between the commits of its clients. At the end of the walk, a row [`Row::Whole`]
//! says so, and earlier segments are not needed any more. Deletions in between have rows of their own behind
//! the copies.
//!
//! [`Recovery`] reads the segments in order into an [`Image`].
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
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::print_stdout, clippy::print_stderr)]

mod codec;
mod image;
mod recovery;
mod row;
pub mod segment;
#[cfg(test)]
mod tests;

pub use codec::BadRow;
pub use image::{
    ClientImage, Entries, Image, JobImage, KeyImage, LinkImage, QueueImage, Readers, RelayImage,
    SessionImage, SessionState, StoreImage, grown,
};
pub use recovery::{Damage, Recovered, Recovery, Torn, WhatIsWrong};
pub use row::{
    BarrierPlace, ClientRow, Epoch, JobRow, KeyRow, LinkId, LinkRow, OpenStore, Reached, Row, SessionId,
    SessionRow, StoreId, Table, rows,
};

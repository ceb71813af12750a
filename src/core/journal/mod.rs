//! The journal, without its files: what a server that was killed must know when it starts again.
//!
//! A critical section that changed something is one *commit*: the rows that it changed, whole or not at all. Rows hold
//! values, never commands ([`Row`]), so a row may be read twice or copied at any time, and a newer release reads what
//! an older one wrote. Commits stand one behind the other in *segments* ([`segment`]), numbered files that only grow.
//!
//! Segments are not tidied one by one. The server goes through all it holds in small steps and writes each row again,
//! among the commits of its clients. When it has been through, a row [`Row::Whole`] says so, and the segments from
//! before are not needed any more. What was deleted in between has its own row behind the copy.
//!
//! [`Recovery`] reads the segments in order into an [`Image`].

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

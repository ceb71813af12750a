//! Bounds of what is kept of one run, and for how long things that happen together are collected.

use std::time::Duration;

/// Most nodes that are tracked in one run.
pub(crate) const MOST_NODES: usize = 16_384;
/// Most events kept of one run.
pub(crate) const MOST_MOMENTS: usize = 256;
/// Most missing nodes shown of one run.
pub(crate) const MISSING_SHOWN: usize = 1024;
/// Things that happen at the same time are reported together after this long.
pub(crate) const SETTLE: Duration = Duration::from_millis(1500);
/// Heartbeats that a node has missed when it is silent. torch takes it out of the round after one more.
pub(crate) const LATE: u32 = 2;
/// It is not before so long.
pub(crate) const LATEST: Duration = Duration::from_secs(10);

//! The bodies of the HTTP API's requests and answers, for the server that takes them and the commands that send them.
//! `openapi.json` beside this file is the same in the form that other programs read.

mod announce;
mod barrier;
mod rendezvous;

pub use announce::{Announce, AnnounceAnswer, AnnounceState, Announced, AnnouncedPod, MAX_ANNOUNCE_SECONDS};
pub use barrier::{Arrive, ArriveReleased, ArriveWaiting};
pub use rendezvous::{
    Action, Close, Closed, Extend, Extended, Heartbeat, HeartbeatAnswer, Join, JoinComplete, JoinState,
    JoinWaiting, Leave, Left, Outcome, Participant, Placed, StoreAddress,
};

/// The OpenAPI 3.1 description of every route.
pub const OPENAPI: &str = include_str!("openapi.json");

/// How long a request waits for news if it does not say, in seconds.
pub const DEFAULT_WAIT_SECONDS: f64 = 15.0;
/// The longest that a request may wait for news, in seconds.
pub const MAX_WAIT_SECONDS: f64 = 60.0;

fn default_wait() -> f64 {
    DEFAULT_WAIT_SECONDS
}

fn yes() -> bool {
    true
}

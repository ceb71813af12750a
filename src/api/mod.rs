//! The bodies of the HTTP API's requests and answers, for the server that takes them and the commands that send them.
//! `openapi.json` beside this file is the same in the form that other programs read.
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

mod announce;
mod barrier;
mod rendezvous;
mod time;

use std::time::Duration;

pub use announce::{Announce, AnnounceAnswer, AnnounceState, Announced, AnnouncedPod, MAX_ANNOUNCE_WAIT};
pub use barrier::{Arrive, ArriveReleased, ArriveWaiting};
pub use rendezvous::{
    Action, Close, Closed, Extend, Extended, Heartbeat, HeartbeatAnswer, Join, JoinComplete, JoinState,
    JoinWaiting, Leave, Left, Outcome, Participant, Placed, StoreAddress,
};
pub use time::{BadDuration, PeerDuration};

/// The OpenAPI 3.1 description of every route.
pub const OPENAPI: &str = include_str!("openapi.json");

/// The longest that a request may wait for news.
pub const MAX_WAIT: Duration = Duration::from_mins(1);

/// How long a request waits for news if it does not say.
fn default_wait() -> PeerDuration {
    PeerDuration::from_secs(15)
}

fn yes() -> bool {
    true
}

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
//! The bodies of the HTTP API's requests and answers, for the server and for the commands that are its
//! clients. The server makes its OpenAPI document from them, with the feature `openapi`.

mod announce;
mod barrier;
mod expect;
mod explanations;
mod health;
mod links;
mod login;
mod problem;
mod rendezvous;
mod runs;
mod stores;
mod time;
mod waits;

use std::time::Duration;

pub use announce::{Announce, AnnounceAnswer, AnnounceState, Announced, AnnouncedPod, MAX_ANNOUNCE_WAIT};
pub use barrier::{Arrive, ArriveReleased, ArriveWaiting};
pub use expect::{Expect, Expects, Forgotten};
pub use explanations::{Certainty, Evidence, Explanation, Seen, Severity, TimelineEvent};
pub use health::{JournalHealth, ServerHealth, StorePorts};
pub use links::{Link, LinkCounts, LinkList};
pub use login::{COOKIE, LoggedIn, Login, own_cookie};
pub use problem::Problem;
pub use rendezvous::{
    Action, Close, Closed, Extend, Extended, Heartbeat, HeartbeatAnswer, Join, JoinComplete, JoinState,
    JoinWaiting, Leave, Left, Outcome, Participant, Placed, StoreAddress,
};
pub use runs::{
    ExitCounts, Expected, ExpectedFrom, MissingNode, Node, NodeCounts, NodeState, Presence, Rank, RankCounts,
    RankGrid, Run, RunGone, RunKind, RunList, RunState, RunSummary, Snapshot,
};
pub use stores::{OpenStore, RunStore, Store, StoreList, StoreReset};
pub use time::{BadDuration, PeerDuration};
pub use waits::{Wait, WaitList};

/// The longest time that a request may wait for news.
pub const MAX_WAIT: Duration = Duration::from_mins(1);

/// The header with a relay's name in the requests that it forwards.
pub const RELAY_HEADER: &str = "rallypoint-relay";

/// How long a request waits for news by default.
fn default_wait() -> PeerDuration {
    PeerDuration::from_secs(15)
}

fn yes() -> bool {
    true
}

//! The link: one connection between a relay and the server that carries the sessions of all the relay's
//! clients. It may break at any byte, and no client notices.
//!
//! A session is two streams of bytes, the client's requests and the store's replies, exactly as they would be
//! on a connection of its own. The link numbers the bytes of each stream. The sending end keeps them until
//! the other end does not need them any more: the server when it has applied a request, the relay when its
//! client has the reply. After a break both ends say how far they have come and go on from there, so nothing
//! is lost and nothing comes twice. A WAIT or BARRIER counts as applied when it ends. So the relay still has
//! the outstanding ones, and sends them again to a server that has forgotten them.
//!
//! Sessions that would send equal bytes at the same time share one frame: when eight ranks read one key, the
//! link carries one request and one reply.
//!
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
//! Pure: bytes and the time go in, frames and events come out. The sockets are in `server/link` and
//! `node/relay`.

mod dialogue;
mod frame;
mod pulse;
mod relay;
mod server;
mod stream;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use frame::{Amounts, End, Frame, FrameError, Refuse, Sessions};
pub use relay::{RelayEnd, RelayEvent, SessionLost};
pub use server::{BeforeBreak, ServerEnd, ServerEvent};

/// The name of the protocol in the header `Upgrade`.
pub const UPGRADE: &str = "rallypoint-link/1";
/// An end that has sent nothing for this long sends a sign of life.
pub const PING_EVERY: Duration = Duration::from_secs(2);
/// How often an end that has nothing else to do checks both ends.
pub const TICK: Duration = Duration::from_secs(1);
/// A link on which nothing has come for this long is broken, whatever TCP says.
pub const BROKEN_AFTER: Duration = Duration::from_secs(6);
/// The most sessions of one link.
pub const MAX_SESSIONS: usize = 4096;
/// Bytes of a session that may be in flight in each direction.
pub const WINDOW: usize = 256 * 1024;
/// Bytes that a new client may send before the server gives it more room. So many clients that begin at the
/// same time take little memory.
pub const FIRST_WINDOW: usize = 16 * 1024;
/// Bytes of frames that are prepared before they are written.
pub const FRAMES_AT_ONCE: usize = 256 * 1024;

/// The name of the server's first store: a relay need not know its port.
pub const FIRST_STORE: u16 = 0;

/// One session of a link. The relay numbers its sessions and uses no number twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionNo(pub u32);

/// One life of a relay, as a random number. A relay that is started again has another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayLife(pub u64);

/// One life of a server's memory, as a random number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerLife(pub u64);

/// The identity of a relay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its name. There is one relay of each name.
    pub name: String,
    /// The life of the relay with this name.
    pub life: RelayLife,
}

/// The first frame of a relay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Who it is.
    #[serde(flatten)]
    pub identity: Identity,
    /// The number of this connection, as the relay counts them, so that a late hello of an earlier connection
    /// is recognized. 0 from a release that does not count.
    #[serde(default)]
    pub connection: u64,
    /// Whether it begins each session with the room that the [`Welcome`] says. A release that does not know
    /// this field begins with [`WINDOW`].
    #[serde(default)]
    pub small_first: bool,
    /// The sessions that the server knew before the connection broke.
    pub sessions: Vec<Point>,
}

/// How far a session has come at one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// The session.
    pub no: SessionNo,
    /// Bytes of the other end's stream that have arrived. The other end goes on from here.
    pub received: u64,
    /// How many of them this end does not need again.
    pub done: u64,
    /// The offset up to which the other end may send.
    pub limit: u64,
}

/// The server's answer to a [`Hello`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The life of the server's memory.
    pub life: ServerLife,
    /// Whether the server still had this relay's sessions. If so, it has never heard of sessions that it does
    /// not name.
    pub resumed: bool,
    /// Bytes that may be sent in a new session. [`WINDOW`] from a release that does not say it.
    #[serde(default = "window")]
    pub first: usize,
    /// The sessions that it has.
    pub sessions: Vec<Point>,
}

const fn window() -> usize {
    WINDOW
}

/// A new session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// Its number.
    pub no: SessionNo,
    /// The port of the store that the client wants, or [`FIRST_STORE`].
    pub port: u16,
    /// The client's address, as the relay sees it.
    pub client: SocketAddr,
}

/// Why a link ends: the peer breaks the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The peer sent bytes that are not a frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The peer sent a frame that is not allowed here.
    #[error("a frame came that has no place here: {0}")]
    Unexpected(&'static str),
    /// The peer named a session that was never opened.
    #[error("session {} was never opened", .0.0)]
    UnknownSession(SessionNo),
    /// The peer sent more than it was allowed to.
    #[error("session {} sent more than it may", .0.0)]
    BeyondWindow(SessionNo),
    /// The peer acknowledged bytes that were never sent.
    #[error("session {}: the other end speaks of bytes that were never sent", .0.0)]
    NeverSent(SessionNo),
    /// The peer opened too many sessions.
    #[error("more than {MAX_SESSIONS} sessions on one link")]
    TooManySessions,
    /// Nothing came from the peer.
    #[error("nothing came for {} s", BROKEN_AFTER.as_secs())]
    Silent,
}

//! The link: one connection between a relay and the server that carries the sessions of all the relay's clients,
//! and that may break at any byte without any of them noticing.
//!
//! A session is two streams of bytes, the client's requests and the store's replies, exactly as they would be on a
//! connection of its own. The link numbers the bytes of each stream. The end that sends keeps them until the other end is
//! done with them: the server is done with a request when it is applied, the relay with a reply when its client has it.
//! After a break both ends say how far they have come and go on from there, so nothing is lost and nothing comes
//! twice. A WAIT or BARRIER is applied when it is over: so the relay still has those that are outstanding, and a server
//! that forgot them gets them again.
//!
//! Sessions that would send the same bytes at the same time share them in one frame: eight ranks that read one key cost
//! the link one request and one reply.
//!
//! Pure: bytes and the time go in, frames and events come out. `server/link` and `node/relay` have the sockets.

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

/// The protocol that `Upgrade` names.
pub const UPGRADE: &str = "rallypoint-link/1";
/// An end that has sent nothing for this long says that it is there.
pub const PING_EVERY: Duration = Duration::from_secs(2);
/// How often an end that has nothing else to do looks at both.
pub const TICK: Duration = Duration::from_secs(1);
/// A link on which nothing has come for this long is broken, whatever TCP says.
pub const BROKEN_AFTER: Duration = Duration::from_secs(6);
/// Sessions that one link may have.
pub const MAX_SESSIONS: usize = 4096;
/// Bytes of a session that may be on their way, in each direction.
pub const WINDOW: usize = 256 * 1024;
/// Bytes that a client may send before the server has given it more room: many clients that begin at the same time
/// take little memory.
pub const FIRST_WINDOW: usize = 16 * 1024;
/// Bytes of frames that are made before they are written.
pub const FRAMES_AT_ONCE: usize = 256 * 1024;

/// What the server's first store is called: a relay need not know its port.
pub const FIRST_STORE: u16 = 0;

/// One session of a link. The relay counts them and uses no number twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionNo(pub u32);

/// One life of a relay, as a random number: a relay that was started again has another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayLife(pub u64);

/// One life of a server's memory, as a random number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerLife(pub u64);

/// Who a relay is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The place it takes: there is one relay of each name.
    pub name: String,
    /// Which relay of this name it is.
    pub life: RelayLife,
}

/// The first frame of a relay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Who it is.
    #[serde(flatten)]
    pub identity: Identity,
    /// The so-many-th connection of this relay, so that a late hello of an earlier one is known. 0 from a relay of a release
    /// that does not count.
    #[serde(default)]
    pub connection: u64,
    /// Whether it begins each session with the room that the [`Welcome`] says. A relay of a release that does not know it
    /// begins with [`WINDOW`].
    #[serde(default)]
    pub small_first: bool,
    /// The sessions that it told the server of before the connection broke.
    pub sessions: Vec<Point>,
}

/// How far a session has come at one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// Which one.
    pub no: SessionNo,
    /// Bytes of the other end's stream that have come: it goes on from here.
    pub received: u64,
    /// How many of them this end is done with.
    pub done: u64,
    /// Up to here the other end may send.
    pub limit: u64,
}

/// The server's answer to a [`Hello`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Which server it is.
    pub life: ServerLife,
    /// Whether it still had this relay's sessions: then it has never heard of those that it does not name.
    pub resumed: bool,
    /// Bytes that may be sent of a new session. A release that does not say it means [`WINDOW`].
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

/// Why a link ends: the peer does not keep to the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// Bytes that are no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A frame that has no place here.
    #[error("a frame came that has no place here: {0}")]
    Unexpected(&'static str),
    /// A session that nobody opened.
    #[error("session {} was never opened", .0.0)]
    UnknownSession(SessionNo),
    /// More than was allowed.
    #[error("session {} sent more than it may", .0.0)]
    BeyondWindow(SessionNo),
    /// A number of bytes that were never sent.
    #[error("session {}: the other end speaks of bytes that were never sent", .0.0)]
    NeverSent(SessionNo),
    /// Too many sessions.
    #[error("more than {MAX_SESSIONS} sessions on one link")]
    TooManySessions,
    /// Nothing came.
    #[error("nothing came for {} s", BROKEN_AFTER.as_secs())]
    Silent,
}

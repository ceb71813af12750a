//! The ends of connections, and their outcomes.

use std::io;
use std::time::Duration;

use rallypoint_protocol::ProtocolError;
use rallypoint_store::Refusal;

/// The outcome of a connection, as `rallypoint_connections_total` counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A good client, or a connection that sent nothing.
    Ok,
    /// Its first bytes were wrong.
    BadHandshake,
    /// Its first request did not become whole in time.
    HandshakeTimeout,
    /// Later bytes were wrong.
    ProtocolError,
    /// It exceeded a limit.
    Limit,
    /// Its address is not allowed.
    Denied,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 6] = [
        Self::Ok,
        Self::BadHandshake,
        Self::HandshakeTimeout,
        Self::ProtocolError,
        Self::Limit,
        Self::Denied,
    ];

    /// The metric's label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::BadHandshake => "bad_handshake",
            Self::HandshakeTimeout => "handshake_timeout",
            Self::ProtocolError => "protocol_error",
            Self::Limit => "limit",
            Self::Denied => "denied",
        }
    }
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum End {
    /// The peer closed it.
    #[error("closed by the peer")]
    Closed,
    /// The network broke the connection.
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    /// The peer's bytes are wrong.
    #[error("{0}")]
    Protocol(#[from] ProtocolError),
    /// The store refused a request.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The first request did not become whole in time.
    #[error("the first request was not whole {0:?} after its first byte")]
    HandshakeTimeout(Duration),
    /// A later request stood still.
    #[error("an unfinished request stood still for {0:?}")]
    RequestTimeout(Duration),
    /// The peer did not take its replies.
    #[error("the peer took no reply for {0:?}")]
    WriteStalled(Duration),
    /// Its store was closed.
    #[error("its store was closed")]
    StoreClosed,
    /// The connection's buffers do not fit into the memory budget.
    #[error("no memory for the connection's buffers (--max-memory)")]
    OutOfMemory,
}

impl End {
    /// The protocol that the peer speaks instead, if its first bytes show it.
    pub fn foreign(&self) -> Option<&'static str> {
        match self {
            Self::Protocol(ProtocolError::Foreign(foreign)) => Some(foreign.name()),
            _ => None,
        }
    }

    /// Whether the peer's host did not answer, so that the peer's state is unknown.
    pub(super) fn is_unanswered(&self) -> bool {
        use io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
        matches!(
            self,
            Self::Io(error) if matches!(error.kind(), TimedOut | HostUnreachable | NetworkUnreachable)
        )
    }

    pub(super) fn outcome(&self, greeted: bool) -> Outcome {
        match self {
            Self::Closed | Self::StoreClosed | Self::Io(_) => Outcome::Ok,
            Self::Protocol(_) if !greeted => Outcome::BadHandshake,
            Self::Protocol(_) | Self::Refused(Refusal::NotANumber { .. }) => Outcome::ProtocolError,
            Self::HandshakeTimeout(_) => Outcome::HandshakeTimeout,
            Self::RequestTimeout(_) | Self::WriteStalled(_) | Self::OutOfMemory | Self::Refused(_) => {
                Outcome::Limit
            }
        }
    }
}

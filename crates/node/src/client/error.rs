//! Failures with a server: on the way to it ([`ConnectError`]), and in a call ([`Error`]).

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::{Answerer, Endpoint};
use rallypoint_protocol::Op;
use rallypoint_protocol::ids::Elapsed;

/// The steps from a name to an answering store, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Resolve the name to addresses.
    Resolve,
    /// Open the TCP connection.
    Connect,
    /// Send the hello, which only a TCPStore of PyTorch 2.2 or later understands.
    Hello,
    /// Ask one question and read its answer.
    Ping,
}

impl Step {
    /// The name in messages and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Resolve => "resolve",
            Self::Connect => "connect",
            Self::Hello => "hello",
            Self::Ping => "ping",
        }
    }
}

/// Whether waiting helps after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlook {
    /// The server or the network may still come: try again.
    Transient,
    /// The failure lasts until somebody corrects the input: stop at once, and name the correction.
    Permanent,
}

/// A failed step. The message names its object and ends with advice.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The resolver has no address. A name that is unknown now may be known soon, whatever the resolver says.
    #[error("cannot resolve `{host}`: {reason}; does the Service or pod exist, under this name?")]
    Unresolved {
        /// The name.
        host: String,
        /// The resolver's words.
        reason: String,
    },
    /// The resolver itself does not answer.
    #[error("cannot resolve `{host}`: no answer from the name server within {}", Elapsed(*.after))]
    ResolverSilent {
        /// The name.
        host: String,
        /// The time-out.
        after: Duration,
    },
    /// Nothing listens there.
    #[error("cannot connect to {addr}: refused; the server is not up (yet), or listens on another port")]
    Refused {
        /// The address.
        addr: SocketAddr,
    },
    /// The SYN packet was lost.
    #[error("cannot connect to {addr}: no answer within {}; the host is down, or a NetworkPolicy or firewall \
             drops packets", Elapsed(*.after))]
    Unreachable {
        /// The address.
        addr: SocketAddr,
        /// The time-out.
        after: Duration,
    },
    /// The system refuses for another reason.
    #[error("cannot connect to {addr}: {source}")]
    Connect {
        /// The address.
        addr: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The peer accepted the connection and closed it without an answer.
    #[error(
        "{addr} closed the connection without an answer; it is no TCPStore of PyTorch 2.2 or later, or does \
         not let this address in"
    )]
    Closed {
        /// The address.
        addr: SocketAddr,
    },
    /// The peer accepted the connection and sent nothing.
    #[error("{addr} accepts connections but did not answer within {}; it is no TCPStore of PyTorch 2.2 or \
             later, or it hangs", Elapsed(*.after))]
    Silent {
        /// The address.
        addr: SocketAddr,
        /// The time-out.
        after: Duration,
    },
    /// Another kind of server answered.
    #[error("{addr} is not a TCPStore: {answerer}")]
    Foreign {
        /// The address.
        addr: SocketAddr,
        /// The kind that it seems to be.
        answerer: Answerer,
    },
}

impl StepError {
    /// The step that failed.
    pub const fn step(&self) -> Step {
        match self {
            Self::Unresolved { .. } | Self::ResolverSilent { .. } => Step::Resolve,
            Self::Refused { .. } | Self::Unreachable { .. } | Self::Connect { .. } => Step::Connect,
            Self::Closed { .. } | Self::Foreign { .. } => Step::Hello,
            Self::Silent { .. } => Step::Ping,
        }
    }

    /// Whether waiting helps. A port of another protocol does not become a store. But unknown bytes may come
    /// from a store that died in the middle of an answer.
    pub const fn outlook(&self) -> Outlook {
        match self {
            Self::Foreign { answerer: Answerer::Unknown(..), .. } => Outlook::Transient,
            Self::Foreign { .. } => Outlook::Permanent,
            _ => Outlook::Transient,
        }
    }

    /// Whether the step ran into its time-out.
    pub const fn is_late(&self) -> bool {
        matches!(self, Self::ResolverSilent { .. } | Self::Unreachable { .. } | Self::Silent { .. })
    }
}

/// No address of an endpoint led to a store.
#[derive(Debug)]
pub struct ConnectError {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// One failure for each address that was tried, or the one failure to resolve the name. Never empty.
    pub failures: Vec<StepError>,
}

impl ConnectError {
    /// The furthest step that failed on any address.
    pub fn step(&self) -> Step {
        self.failures.iter().map(StepError::step).max().unwrap_or(Step::Resolve)
    }

    /// Whether waiting helps. If one address can never be a store, another address that refuses is only the
    /// other IP family of that host.
    pub fn outlook(&self) -> Outlook {
        let lasts = |failure: &StepError| failure.outlook() == Outlook::Permanent;
        let hopeless = |failure| lasts(failure) || matches!(failure, StepError::Refused { .. });
        if self.failures.iter().any(lasts) && self.failures.iter().all(hopeless) {
            Outlook::Permanent
        } else {
            Outlook::Transient
        }
    }
}

impl std::fmt::Display for ConnectError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const SHOWN: usize = 3;
        for (n, failure) in self.failures.iter().take(SHOWN).enumerate() {
            write!(f, "{}{failure}", if n == 0 { "" } else { " | " })?;
        }
        match self.failures.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, " | and {more} more addresses"),
        }
    }
}

impl std::error::Error for ConnectError {}

/// A failed call. After [`Error::NotInTime`] the client is still usable; after any other error it is not.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The awaited event did not happen in time. The wait was cancelled at the server.
    #[error("not there within {}", Elapsed(*.after))]
    NotInTime {
        /// The time-out.
        after: Duration,
    },
    /// The server did not answer a call that needs no wait.
    #[error("no answer to {} within {}", .op.name(), Elapsed(*.after))]
    NoAnswer {
        /// The call.
        op: Op,
        /// The time-out.
        after: Duration,
    },
    /// The server closed the connection.
    #[error("the server closed the connection at {}{}", .op.name(), why_closed(*.op))]
    Closed {
        /// The call.
        op: Op,
    },
    /// The connection broke in another way.
    #[error("{}: {source}", .op.name())]
    Io {
        /// The call.
        op: Op,
        /// The system's error.
        source: io::Error,
    },
    /// The answer does not belong to this call.
    #[error("the answer to {} makes no sense: {what}; this is not a TCPStore, or a fault", .op.name())]
    Garbage {
        /// The call.
        op: Op,
        /// The unexpected part.
        what: String,
    },
    /// The answer is larger than this client accepts.
    #[error("the answer to {} has more than {limit} bytes", .op.name())]
    TooLarge {
        /// The call.
        op: Op,
        /// [`Options::max_reply`](super::Options::max_reply).
        limit: usize,
    },
    /// An earlier call was not finished, so the next bytes belong to no call.
    #[error("an earlier call on this connection failed; connect again")]
    OutOfStep,
}

/// The likely reason why a PyTorch server closed the connection on this operation; the server never says it.
const fn why_closed(op: Op) -> &'static str {
    match op {
        Op::Get | Op::MultiGet => " (PyTorch's legacy server does so when a key is missing)",
        Op::Add => " (the value is no number?)",
        Op::Set | Op::Append | Op::CompareSet | Op::MultiSet => " (the key or the value is too large?)",
        Op::QueuePush | Op::QueuePop | Op::QueueLen => {
            " (PyTorch has queues from 2.8 on, and only in the libuv server)"
        }
        Op::ListKeys => " (PyTorch's server can list keys from 2.10 on)",
        Op::Barrier => " (PyTorch's server has barriers from 2.12 on)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_addresses_make_a_short_message() {
        let refused = |n| StepError::Refused { addr: SocketAddr::from(([10, 0, 0, n], 29500)) };
        let error = ConnectError {
            endpoint: Endpoint::new("train", 29500).expect("valid"),
            failures: (1..=5).map(refused).collect(),
        };
        let text = error.to_string();
        assert!(text.starts_with("cannot connect to 10.0.0.1:29500: refused;"), "{text}");
        assert!(text.ends_with("| and 2 more addresses"), "{text}");
        assert_eq!(error.step(), Step::Connect);
    }

    #[test]
    fn waiting_helps_unless_another_protocol_is_spoken_there() {
        let addr = SocketAddr::from(([10, 0, 0, 1], 29500));
        let refused = || StepError::Refused { addr };
        let late = || StepError::Silent { addr, after: Duration::from_secs(1) };
        let foreign = |answerer| StepError::Foreign { addr, answerer };
        let unknown = || foreign(Answerer::Unknown([1; 8], 2));
        let outlook = |failures| {
            ConnectError { endpoint: Endpoint::new("train", 29500).expect("valid"), failures }.outlook()
        };
        assert_eq!(outlook(vec![foreign(Answerer::Http)]), Outlook::Permanent);
        assert_eq!(outlook(vec![refused(), foreign(Answerer::Ssh)]), Outlook::Permanent);
        for failures in
            [vec![refused()], vec![unknown()], vec![late(), foreign(Answerer::Http)], vec![refused(), late()]]
        {
            let shown = format!("{failures:?}");
            assert_eq!(outlook(failures), Outlook::Transient, "{shown}");
        }
    }
}

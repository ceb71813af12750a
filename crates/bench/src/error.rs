//! Errors that end a load test early.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::PlanError;
use rallypoint_node::client::StepError;
use rallypoint_protocol::Op;
use rallypoint_protocol::ids::Elapsed;

/// Why a load test did not reach its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The plan is not possible on this machine.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The target does not answer as a store.
    #[error(transparent)]
    Unfit(#[from] StepError),
    /// The target's store holds keys.
    #[error(
        "{target} holds {keys} keys, so a job uses it or has left them behind, and a load test would disturb \
         that job; give it a store of its own, or, if it is meant, say --allow-in-use"
    )]
    HasKeys {
        /// The server.
        target: SocketAddr,
        /// The number of keys.
        keys: u64,
    },
    /// A job uses the target's store.
    #[error(
        "{target} holds the key `{key}`, so a job uses it or has left it behind, and this scenario would \
         disturb that job; give it a store of its own, or delete the key (`rallypoint store --raw delete \
         {key}`)"
    )]
    InUse {
        /// The server.
        target: SocketAddr,
        /// A key of the job that this scenario also writes.
        key: String,
    },
    /// A connection was refused during the test.
    #[error("cannot connect to {target}: {source}")]
    Connect {
        /// The server.
        target: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// Every port of this address is in use.
    #[error(
        "no port is left for another connection to {target}; give more addresses to connect from (--source), \
         or wait a minute until closed connections have left"
    )]
    NoPorts {
        /// The server.
        target: SocketAddr,
    },
    /// The server closed a connection.
    #[error("the server closed a connection at {}{}", .op.name(), why_closed(*.op))]
    Closed {
        /// The current operation.
        op: Op,
    },
    /// A connection broke.
    #[error("a connection broke at {}: {source}", .op.name())]
    Io {
        /// The current operation.
        op: Op,
        /// The system's error.
        source: io::Error,
    },
    /// The answer does not fit the request.
    #[error("the answer to {} makes no sense", .op.name())]
    Garbage {
        /// The current operation.
        op: Op,
    },
    /// The admin port does not answer, or does not speak HTTP.
    #[error("no answer from the admin port: {0}; is the target rallypoint's admin port, and not a store?")]
    Http(#[source] io::Error),
    /// The admin port answers with an error.
    #[error("the server answers {status}: {detail}")]
    Answer {
        /// The HTTP status.
        status: u16,
        /// The detail of the answer.
        detail: String,
    },
    /// A section did not end.
    #[error("not done within {}; --patience sets this limit", Elapsed(*.after))]
    NotInTime {
        /// The limit.
        after: Duration,
    },
    /// The watched process cannot be observed.
    #[error("cannot look at process {pid} (--pid): {source}")]
    Process {
        /// Its id.
        pid: u32,
        /// The system's error.
        source: io::Error,
    },
    /// A system call of this program failed.
    #[error("{0}")]
    System(#[source] io::Error),
    /// A thread of the load generator died of its own fault.
    #[error("a thread of the load generator died")]
    ThreadDied,
}

const fn why_closed(op: Op) -> &'static str {
    match op {
        Op::Barrier => " (PyTorch's server has barriers from 2.12 on, and only with libuv)",
        Op::Set | Op::MultiSet | Op::Check | Op::CompareSet => " (a request beyond its limits?)",
        _ => "",
    }
}

impl Error {
    /// A connection that could not be made.
    pub fn connect(target: SocketAddr, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrNotAvailable | io::ErrorKind::AddrInUse => Self::NoPorts { target },
            _ => Self::Connect { target, source },
        }
    }

    /// A connection that broke during an operation.
    pub fn broken(op: Op, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof => {
                Self::Closed { op }
            }
            _ => Self::Io { op, source },
        }
    }
}

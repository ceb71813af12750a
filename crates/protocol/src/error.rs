//! What can be wrong with a peer's bytes. Each message says what was seen. The server adds who sent it.

use super::Op;

/// A reason to close a connection because of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The first bytes belong to another protocol.
    #[error("{0}; point it at the right port")]
    Foreign(Foreign),
    /// The first bytes are neither the hello of PyTorch 2.2+ nor a request of an older release.
    #[error("the first bytes are not a TCPStore hello")]
    NotAHello,
    /// The hello came twice.
    #[error("the hello was sent a second time")]
    SecondHello,
    /// A number that is not an operation in this dialect.
    #[error("operation {0} is unknown; a newer PyTorch may need a newer rallypoint")]
    UnknownOp(u8),
    /// A key is longer than the limit.
    #[error("{op} names a key of {len} bytes; the limit is {limit}", op = op.name())]
    KeyTooLong {
        /// The operation.
        op: Op,
        /// Announced length in bytes.
        len: u64,
        /// The limit in bytes.
        limit: usize,
    },
    /// A value is longer than the limit.
    #[error("{op} carries a value of {len} bytes; the limit is {limit} (--max-value)", op = op.name())]
    ValueTooLong {
        /// The operation.
        op: Op,
        /// Announced length in bytes.
        len: u64,
        /// The limit in bytes.
        limit: usize,
    },
    /// A request names more keys than the limit.
    #[error("{op} names {count} keys; the limit is {limit}", op = op.name())]
    TooManyKeys {
        /// The operation.
        op: Op,
        /// Announced count.
        count: u64,
        /// The limit.
        limit: usize,
    },
}

/// Another protocol, known by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Foreign {
    /// `GET `, `POST`, …
    #[error("an HTTP client talks to the store port")]
    Http,
    /// A TLS record of type handshake.
    #[error("a TLS client talks to the store port")]
    Tls,
}

impl Foreign {
    /// The protocol's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "HTTP",
            Self::Tls => "TLS",
        }
    }

    /// Recognizes the first bytes of a connection from a client that does not speak the TCPStore protocol.
    pub(super) fn recognize(start: &[u8]) -> Option<Self> {
        const METHODS: [&[u8; 4]; 8] =
            [b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"CONN", b"PRI "];
        if start.starts_with(&[0x16, 0x03]) {
            Some(Self::Tls)
        } else if METHODS.iter().any(|method| start.starts_with(&method[..])) {
            Some(Self::Http)
        } else {
            None
        }
    }
}

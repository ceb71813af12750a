//! The operations and their numbers in each dialect (`proto-notes/wire.md`, "Operations").

use super::Dialect;

/// An operation of the protocol, without its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// The hello of dialect C.
    Validate,
    /// Store a value.
    Set,
    /// Compare and store.
    CompareSet,
    /// Read a value.
    Get,
    /// Add to a counter.
    Add,
    /// Are the keys there?
    Check,
    /// Wait for keys.
    Wait,
    /// Count keys.
    NumKeys,
    /// Delete a key.
    Delete,
    /// Append to a value.
    Append,
    /// Read several values.
    MultiGet,
    /// Store several values.
    MultiSet,
    /// Cancel a wait.
    CancelWait,
    /// Echo a nonce.
    Ping,
    /// Append to a queue.
    QueuePush,
    /// Take from a queue.
    QueuePop,
    /// Length of a queue.
    QueueLen,
    /// Names of all keys.
    ListKeys,
    /// Arrive at a barrier.
    Barrier,
}

impl Op {
    /// Every operation, in the order of dialect C's numbers: `ALL[n] as u8 == n`.
    pub const ALL: [Self; 19] = [
        Self::Validate,
        Self::Set,
        Self::CompareSet,
        Self::Get,
        Self::Add,
        Self::Check,
        Self::Wait,
        Self::NumKeys,
        Self::Delete,
        Self::Append,
        Self::MultiGet,
        Self::MultiSet,
        Self::CancelWait,
        Self::Ping,
        Self::QueuePush,
        Self::QueuePop,
        Self::QueueLen,
        Self::ListKeys,
        Self::Barrier,
    ];

    /// The operation that the byte `code` means in `dialect`, if it means one.
    ///
    /// In [`Dialect::Legacy`], where 2.0 and 2.1 cannot be told apart yet, 8 has no meaning; the decoder asks
    /// its `LegacyRelease` setting. Source: PyTorch 1.13.1, 2.0.1, 2.1.2 and 2.2.2 to 2.15.0 as recorded in
    /// `tests/data/transcripts`.
    pub const fn from_code(dialect: Dialect, code: u8) -> Option<Self> {
        let c_code = match (dialect, code) {
            (Dialect::C, 0..=18) => code,
            (Dialect::A | Dialect::B | Dialect::Legacy, 0..=6) | (Dialect::A, 8) => match code {
                8 => Self::Delete as u8,
                _ => code.saturating_add(1),
            },
            (Dialect::B, 7..=11) | (Dialect::Legacy, 7 | 9..=11) => code.saturating_add(1),
            _ => return None,
        };
        Some(Self::ALL[c_code as usize])
    }

    /// The byte for this operation in `dialect`, if the dialect has it.
    pub fn code(self, dialect: Dialect) -> Option<u8> {
        (0..=18).find(|&code| Self::from_code(dialect, code) == Some(self))
    }

    /// The name in metrics and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Validate => "validate",
            Self::Set => "set",
            Self::CompareSet => "compare_set",
            Self::Get => "get",
            Self::Add => "add",
            Self::Check => "check",
            Self::Wait => "wait",
            Self::NumKeys => "num_keys",
            Self::Delete => "delete",
            Self::Append => "append",
            Self::MultiGet => "multi_get",
            Self::MultiSet => "multi_set",
            Self::CancelWait => "cancel_wait",
            Self::Ping => "ping",
            Self::QueuePush => "queue_push",
            Self::QueuePop => "queue_pop",
            Self::QueueLen => "queue_len",
            Self::ListKeys => "list_keys",
            Self::Barrier => "barrier",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_follow_the_tables_of_the_three_dialects() {
        for (n, op) in Op::ALL.into_iter().enumerate() {
            assert_eq!(op as usize, n);
            assert_eq!(op.code(Dialect::C), Some(n as u8));
        }
        assert_eq!(Op::from_code(Dialect::C, 19), None);
        assert_eq!(Op::from_code(Dialect::A, 0), Some(Op::Set));
        assert_eq!(Op::from_code(Dialect::A, 6), Some(Op::NumKeys));
        assert_eq!(Op::from_code(Dialect::A, 7), None, "WATCH_KEY is never sent by a real client");
        assert_eq!(Op::from_code(Dialect::A, 8), Some(Op::Delete));
        assert_eq!(Op::from_code(Dialect::A, 9), None);
        assert_eq!(Op::from_code(Dialect::B, 7), Some(Op::Delete));
        assert_eq!(Op::from_code(Dialect::B, 8), Some(Op::Append));
        assert_eq!(Op::from_code(Dialect::B, 11), Some(Op::CancelWait));
        assert_eq!(Op::from_code(Dialect::B, 12), None);
        assert_eq!(Op::from_code(Dialect::Legacy, 8), None);
        assert_eq!(Op::Barrier.code(Dialect::B), None);
    }
}

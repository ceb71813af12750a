//! Which keys clients have deleted, and which queues they have emptied: an awaited key may have been there
//! before.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use rallypoint_protocol::ids::{ConnId, Timestamp};

/// What is known of the past of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyPast {
    /// The key has never been there.
    #[default]
    NotDeleted,
    /// The key is there: this client wrote it last.
    Written(ConnId),
    /// This client deleted the key then.
    Deleted(ConnId, Timestamp),
    /// This client took the last item of the queue then.
    Taken(ConnId, Timestamp),
    /// Not known: more keys were deleted since then than are remembered, or the server has restarted.
    NotKnown,
}

/// The last keys that clients have deleted, by the hashes of their names, and how.
#[derive(Debug, Default)]
pub(super) struct Deleted {
    last: VecDeque<(u64, KeyPast)>,
    has_forgotten: bool,
}

impl Deleted {
    const MOST: usize = 1024;

    pub(super) fn add(&mut self, key: &[u8], how: KeyPast) {
        let key = hash(key);
        // A queue may be emptied many times in a row.
        if self.last.back().is_some_and(|(last, _)| *last == key) {
            self.last.pop_back();
        }
        if self.last.len() == Self::MOST {
            self.last.pop_front();
            self.has_forgotten = true;
        }
        self.last.push_back((key, how));
    }

    /// Begins without knowing which keys were deleted before.
    pub(super) const fn begin_late(&mut self) {
        self.has_forgotten = true;
    }

    pub(super) fn past_of(&self, key: &[u8]) -> KeyPast {
        let key = hash(key);
        match self.last.iter().rfind(|(deleted, _)| *deleted == key) {
            Some((_, how)) => *how,
            None if self.has_forgotten => KeyPast::NotKnown,
            None => KeyPast::NotDeleted,
        }
    }
}

fn hash(key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forgotten_is_not_said_to_be_new() {
        let mut deleted = Deleted::default();
        let by = |n| KeyPast::Deleted(ConnId::new(n, 1), Timestamp::default());
        deleted.add(b"first", by(0));
        deleted.add(b"first", by(1));
        assert_eq!(deleted.past_of(b"first"), by(1));
        assert_eq!(deleted.past_of(b"other"), KeyPast::NotDeleted);
        (0..Deleted::MOST as u32).for_each(|n| deleted.add(&n.to_be_bytes(), by(2)));
        assert_eq!(deleted.past_of(b"first"), KeyPast::NotKnown);
        assert_eq!(deleted.last.len(), Deleted::MOST);
    }
}

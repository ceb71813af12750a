//! Reads segments, in order, into the state of the last whole commit.
//!
//! A commit that is not whole at the end of a segment was never acknowledged, so it is cut off. Anything else
//! that cannot be read is damage: without an operator's consent, nothing is served from what is left.

use bytes::Bytes;

use super::codec::BadRow;
use super::image::Image;
use super::row::{Row, rows};
use super::segment::{
    BadHeader, End, FIRST, FORMAT, Header, Pieces, Position, commit_in, end_of, later_promise, piece_at,
};

/// What cannot be read, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("segment {segment}, byte {at}: {what}")]
pub struct Damage {
    /// The number of the segment.
    pub segment: u64,
    /// The byte where the damage begins.
    pub at: u32,
    /// What is wrong there.
    pub what: WhatIsWrong,
}

/// What is wrong with a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WhatIsWrong {
    /// A commit that was acknowledged cannot be read.
    #[error("a commit that was acknowledged cannot be read")]
    Commit,
    /// The header of a segment cannot be read.
    #[error("this is not the start of a segment of this number")]
    Header,
    /// A segment is missing.
    #[error("this segment is missing, and later ones are there")]
    Missing,
    /// A segment does not end where its successor expects it.
    #[error("the segment has another end: it was {0} bytes long when the next one was begun")]
    End(u32),
    /// A segment has other bytes than its successor expects.
    #[error("this is another segment than the one behind which the next one was written")]
    Other,
    /// A newer release wrote the segment, in a newer format.
    #[error(
        "the segment has format {0}, which a newer release of rallypoint writes; this one reads up to \
         {FORMAT}"
    )]
    NewerFormat(u16),
    /// This release does not know a row, or cannot read it.
    #[error("{0}")]
    Row(BadRow),
}

/// What was read from a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// The state after the last whole commit. Empty if there is an `unfinished` end: then another
    /// [`Recovery`] must read the segments before that one.
    pub image: Image,
    /// The end of what counts. Segments behind it do not count.
    pub end: End,
    /// Commits read.
    pub commits: u64,
    /// What is to be cut off from the ends of segments: it was never acknowledged.
    pub torn: Vec<Torn>,
    /// The first segment that does not count: the server began anew there, after commits that it could not
    /// write, and did not finish the new copy.
    pub unfinished: Option<u64>,
}

/// The end of a segment, if it was not written whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Torn {
    /// The number of the segment.
    pub segment: u64,
    /// The byte where it begins. At 0, not even the header is whole, and the segment does not count.
    pub at: u32,
    /// Its length in bytes.
    pub len: u64,
}

/// A new copy of the state that a segment has begun, and that is not whole yet.
#[derive(Debug)]
struct Anew {
    /// The last segment that began anew.
    since: u64,
    /// The first segment that began anew. It and everything behind it does not count yet.
    first: u64,
    /// The end of what was written before it.
    before: End,
}

/// Whether a commit behind `from` says that `from` was safe. Reads the whole segment, which is damaged or
/// torn there.
fn is_promised(segment: &mut dyn Pieces, number: u64, from: u32) -> bool {
    later_promise(&segment.get(0, segment.len()), number, from).is_some()
}

/// Reads segments in the order of their numbers.
#[derive(Debug, Default)]
pub struct Recovery {
    image: Image,
    anew: Option<Anew>,
    last_segment: u64,
    end: End,
    /// This segment and the ones before it are missing. They are not needed if a later copy is whole.
    missing: Option<u64>,
    commits: u64,
    torn: Vec<Torn>,
}

impl Recovery {
    /// Reads the next segment, one commit at a time. `number` comes from its name; `next` is the header of
    /// the segment behind it. The end of a segment may be torn if it is the last one, or if the next one
    /// begins anew because of that.
    pub fn read(
        &mut self,
        number: u64,
        segment: &mut dyn Pieces,
        next: Option<Result<Header, BadHeader>>,
    ) -> Result<(), Damage> {
        let expected = self.last_segment.saturating_add(1);
        if self.last_segment > 0 && number != expected {
            return Err(Damage { segment: expected, at: 0, what: WhatIsWrong::Missing });
        }
        let is_first = self.last_segment == 0;
        self.last_segment = number;
        let next = next.map(Result::ok);
        let may_be_torn = next.is_none_or(|next| next.is_some_and(|next| next.anew));
        // Known since format 2.
        let end = next.flatten().and_then(|next| next.follows).filter(|end| end.segment == number);
        let damaged = |at, what| Damage { segment: number, at, what };
        let header = match Header::decode(&segment.get(0, FIRST as usize)) {
            Ok(header) if header.number == number => header,
            // If no commit says that this place was promised to last, the segment never began.
            Err(BadHeader::Short | BadHeader::Damaged)
                if may_be_torn && end.is_none() && !is_promised(segment, number, 0) =>
            {
                self.torn.push(Torn { segment: number, at: 0, len: segment.len() as u64 });
                return Ok(());
            }
            Err(BadHeader::Newer(format)) => {
                return Err(damaged(0, WhatIsWrong::NewerFormat(format)));
            }
            Ok(_) | Err(BadHeader::Short | BadHeader::Damaged) => {
                return Err(damaged(0, WhatIsWrong::Header));
            }
        };
        if is_first {
            let before = header.follows.map_or(number.saturating_sub(1), |end| end.segment);
            self.missing = (before > 0).then_some(before);
        } else if header.follows.is_some_and(|end| end != self.end) {
            return Err(Damage { segment: self.end.segment, at: 0, what: WhatIsWrong::Other });
        }
        if header.anew {
            let (first, before) =
                self.anew.as_ref().map_or((number, self.end), |anew| (anew.first, anew.before));
            self.anew = Some(Anew { since: number, first, before });
            // The old state is usually not needed, and there may be no memory for two.
            self.image = Image::default();
        }
        let mut at = header.first();
        let mut kept = End { segment: number, ..End::default() }.with(&segment.get(0, at as usize));
        while (at as usize) < segment.len() && end.is_none_or(|end| at < end.at) {
            let piece = piece_at(segment, at);
            let Some(commit) = commit_in(&piece, Position { segment: number, at }) else {
                if !may_be_torn || end.is_some() || is_promised(segment, number, at) {
                    return Err(damaged(at, WhatIsWrong::Commit));
                }
                break;
            };
            for row in rows(commit.rows) {
                let row = row.map_err(|bad| damaged(at, WhatIsWrong::Row(bad)))?;
                if let Some(row) = row {
                    self.take(row, &piece);
                }
            }
            self.commits = self.commits.saturating_add(1);
            at = end_of(&commit).ok_or_else(|| damaged(at, WhatIsWrong::Commit))?;
            kept = kept.and_then(|end| end.with(&piece));
        }
        let rest = segment.len().saturating_sub(at as usize) as u64;
        if let Some(end) = end
            && (at != end.at || !may_be_torn && rest > 0)
        {
            return Err(damaged(at.min(end.at), WhatIsWrong::End(end.at)));
        }
        if rest > 0 {
            self.torn.push(Torn { segment: number, at, len: rest });
        }
        self.end = kept.unwrap_or_default();
        Ok(())
    }

    fn take(&mut self, row: Row<'_>, commit: &Bytes) {
        if let Row::Whole(from) = row {
            self.missing.take_if(|missing| *missing < from);
            self.anew.take_if(|anew| anew.since == from);
        }
        self.image.apply_of(row, Some(commit));
    }

    /// The result of all segments.
    pub fn finish(mut self) -> Result<Recovered, Damage> {
        if let Some(segment) = self.missing {
            return Err(Damage { segment, at: 0, what: WhatIsWrong::Missing });
        }
        let (end, unfinished) = match self.anew {
            Some(Anew { first, before, .. }) => {
                self.image = Image::default();
                (before, Some(first))
            }
            None => (self.end, None),
        };
        self.image.drop_remains();
        Ok(Recovered { image: self.image, end, commits: self.commits, torn: self.torn, unfinished })
    }
}

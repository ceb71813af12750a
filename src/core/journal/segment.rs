//! How commits stand in a segment: a header, then one commit behind the other, each with its checksum.
//!
//! ```text
//! header   "RALLYJRN"  format u16  flags u16  number u64  crc32c u32       (24 bytes, numbers little-endian)
//! follows  number u64  length u32  sum u32  crc32c u32                     (20 bytes; not in format 1)
//! commit   "RJc1"  length u32  safe u32  crc32c u32  rows                  (16 bytes and the rows)
//! ```
//!
//! A segment says what it *follows*: the number of the one before, how long that was when this one was begun, and the
//! checksum of those bytes; zeros where there was none. So what is missing between two segments is noticed, wherever the
//! first of them ends.
//!
//! The checksum of a commit covers its length, `safe`, its position (the segment's number and where it begins) and its
//! rows, so a block that a disk put in the wrong place is not taken for a commit. `safe` is how much of the segment was
//! promised to last when the commit was made. It tells a torn end from damage: where a commit cannot be read, and a
//! later one says that this position was safe, something that was acknowledged is lost.

use bytes::Bytes;

/// The format that this release writes. It reads this and all older ones.
pub const FORMAT: u16 = 2;
/// Bytes of a segment's header, as older and newer releases know it.
const HEADER: u32 = 24;
/// Bytes before the first commit.
pub const FIRST: u32 = 44;
/// Bytes of a commit before its rows.
pub const COMMIT: usize = 16;

const MAGIC: [u8; 8] = *b"RALLYJRN";
const COMMIT_MAGIC: [u8; 4] = *b"RJc1";
/// Flag: the segment starts over. What was written before does not count once [`super::Row::Whole`] names this segment.
const ANEW: u16 = 1;

/// How far a segment counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct End {
    /// The number of the segment; 0 where there is none.
    pub segment: u64,
    /// The byte behind its last commit.
    pub at: u32,
    /// The checksum of all bytes before.
    pub sum: u32,
}

impl End {
    /// Where it ends with these bytes behind it. `None` if that is longer than a segment can be.
    #[must_use]
    pub fn with(self, bytes: &[u8]) -> Option<Self> {
        let at = self.at.checked_add(u32::try_from(bytes.len()).ok()?)?;
        Some(Self { at, sum: crc32c::crc32c_append(self.sum, bytes), ..self })
    }
}

/// The header of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The number of the segment, which is also its name.
    pub number: u64,
    /// Whether it starts over, after commits that could not be written.
    pub anew: bool,
    /// What was before it when it was begun. `None` in format 1, which does not say it.
    pub follows: Option<End>,
}

/// Why a header is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadHeader {
    /// The file is shorter than a header.
    Short,
    /// A newer release wrote it, in this format.
    Newer(u16),
    /// It is no segment, or damaged.
    Damaged,
}

impl Header {
    /// Its bytes.
    pub fn encode(self) -> Vec<u8> {
        fn seal(bytes: &mut Vec<u8>, from: usize) {
            let sum = crc32c::crc32c(bytes.get(from..).unwrap_or_default());
            bytes.extend(sum.to_le_bytes());
        }
        let format = if self.follows.is_some() { FORMAT } else { 1 };
        let mut bytes = MAGIC.to_vec();
        bytes.extend(format.to_le_bytes());
        bytes.extend((if self.anew { ANEW } else { 0 }).to_le_bytes());
        bytes.extend(self.number.to_le_bytes());
        seal(&mut bytes, 0);
        if let Some(End { segment, at, sum }) = self.follows {
            bytes.extend(segment.to_le_bytes());
            bytes.extend(at.to_le_bytes());
            bytes.extend(sum.to_le_bytes());
            seal(&mut bytes, HEADER as usize);
        }
        bytes
    }

    /// Reads it from the start of a segment.
    pub fn decode(segment: &[u8]) -> Result<Self, BadHeader> {
        let (bytes, rest) = segment.split_first_chunk::<{ HEADER as usize }>().ok_or(BadHeader::Short)?;
        if bytes[..8] != MAGIC || crc32c::crc32c(&bytes[..20]) != number_at(bytes, 20) {
            return Err(BadHeader::Damaged);
        }
        let format = u16::from_le_bytes([bytes[8], bytes[9]]);
        let flags = u16::from_le_bytes([bytes[10], bytes[11]]);
        let follows = match format {
            1 => None,
            FORMAT => {
                let (end, _) =
                    rest.split_first_chunk::<{ (FIRST - HEADER) as usize }>().ok_or(BadHeader::Short)?;
                if crc32c::crc32c(&end[..16]) != number_at(end, 16) {
                    return Err(BadHeader::Damaged);
                }
                Some(End { segment: long_at(end, 0), at: number_at(end, 8), sum: number_at(end, 12) })
            }
            newer => return Err(BadHeader::Newer(newer)),
        };
        Ok(Self { number: long_at(bytes, 12), anew: flags & ANEW != 0, follows })
    }

    /// Where the first commit of its segment begins.
    pub const fn first(&self) -> u32 {
        if self.follows.is_some() { FIRST } else { HEADER }
    }
}

/// Where a commit stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The number of its segment.
    pub segment: u64,
    /// The byte with which it begins.
    pub at: u32,
}

fn number_at(bytes: &[u8], at: usize) -> u32 {
    let number = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
    number.map_or(0, |number| u32::from_le_bytes(*number))
}

fn long_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(number_at(bytes, at.saturating_add(4))) << 32 | u64::from(number_at(bytes, at))
}

fn checksum(position: Position, len: u32, safe: u32, rows: &[u8]) -> u32 {
    let mut covered = [0; 20];
    covered[..8].copy_from_slice(&position.segment.to_le_bytes());
    covered[8..12].copy_from_slice(&position.at.to_le_bytes());
    covered[12..16].copy_from_slice(&len.to_le_bytes());
    covered[16..].copy_from_slice(&safe.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&covered), rows)
}

/// Makes a commit of what is in `commit` behind its first [`COMMIT`] bytes, which are overwritten. `None` if it is
/// longer than a segment can be.
#[must_use]
pub fn seal(commit: &mut [u8], position: Position, safe: u32) -> Option<()> {
    let (head, rows) = commit.split_at_mut_checked(COMMIT)?;
    let len = u32::try_from(rows.len()).ok()?;
    position.at.checked_add(len)?.checked_add(u32::try_from(COMMIT).ok()?)?;
    head[..4].copy_from_slice(&COMMIT_MAGIC);
    head[4..8].copy_from_slice(&len.to_le_bytes());
    head[8..12].copy_from_slice(&safe.to_le_bytes());
    head[12..].copy_from_slice(&checksum(position, len, safe, rows).to_le_bytes());
    Some(())
}

/// The bytes of a segment, a part at a time: beside the state there is no room for all of them.
pub trait Pieces {
    /// How many there are.
    fn len(&self) -> usize;
    /// Those from `at` on, up to `most` of them. What keeps them keeps not much more than them.
    fn get(&mut self, at: usize, most: usize) -> Bytes;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Pieces for &[u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn get(&mut self, at: usize, most: usize) -> Bytes {
        let behind = <[u8]>::get(self, at..).unwrap_or_default();
        Bytes::copy_from_slice(&behind[..behind.len().min(most)])
    }
}

/// The bytes of the commit that begins at `at`, as many as it says it has and as far as they are there.
pub(super) fn piece_at(segment: &mut dyn Pieces, at: u32) -> Bytes {
    let at = at as usize;
    let head = segment.get(at, COMMIT);
    segment.get(at, COMMIT.saturating_add(number_at(&head, 4) as usize))
}

/// A commit as it stands in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit<'a> {
    /// Where it begins.
    pub at: u32,
    /// How much of the segment was promised to last when it was made.
    pub safe: u32,
    /// Its rows.
    pub rows: &'a [u8],
}

/// The commit that begins at `position`, if a whole one does.
pub fn commit_at(segment: &[u8], position: Position) -> Option<Commit<'_>> {
    commit_in(segment.get(position.at as usize..)?, position)
}

/// The commit that these bytes of a segment begin with, from `position` on.
pub(super) fn commit_in(bytes: &[u8], position: Position) -> Option<Commit<'_>> {
    let (head, rest) = bytes.split_first_chunk::<COMMIT>()?;
    if head[..4] != COMMIT_MAGIC {
        return None;
    }
    let (len, safe, crc) = (number_at(head, 4), number_at(head, 8), number_at(head, 12));
    let rows = rest.get(..len as usize)?;
    (checksum(position, len, safe, rows) == crc).then_some(Commit { at: position.at, safe, rows })
}

/// The whole commits of a segment from its header on; ends at the first that is not whole.
pub fn commits(segment: &[u8], number: u64) -> impl Iterator<Item = Commit<'_>> {
    let mut at = Header::decode(segment).ok().map(|header| header.first());
    std::iter::from_fn(move || {
        let commit = commit_at(segment, Position { segment: number, at: at? })?;
        at = end_of(&commit);
        Some(commit)
    })
}

/// Where the next commit begins.
pub(super) fn end_of(commit: &Commit<'_>) -> Option<u32> {
    commit.at.checked_add(u32::try_from(COMMIT.checked_add(commit.rows.len())?).ok()?)
}

/// The first whole commit behind `from` that says that `from` was safe.
pub(super) fn later_promise(segment: &[u8], number: u64, from: u32) -> Option<Commit<'_>> {
    let start = from as usize;
    let behind = segment.get(start..)?;
    let places = behind.windows(COMMIT_MAGIC.len()).enumerate().filter(|(_, four)| *four == COMMIT_MAGIC);
    places
        .filter_map(|(at, _)| {
            let at = u32::try_from(start.checked_add(at)?).ok()?;
            commit_at(segment, Position { segment: number, at })
        })
        .find(|commit| commit.safe > from)
}

//! How commits are written in a segment: a header, then the commits, one behind the other, each with its
//! checksum.
//!
//! ```text
//! header   "RALLYJRN"  format u16  flags u16  number u64  crc32c u32       (24 bytes, numbers little-endian)
//! follows  number u64  length u32  sum u32  crc32c u32                     (20 bytes; not in format 1)
//! commit   "RJc1"  length u32  safe u32  crc32c u32  rows                  (16 bytes and the rows)
//! ```
//!
//! A segment says what it *follows*: the number of the segment before, the length of that segment when this
//! one was begun, and the checksum of those bytes; zeros if there was none. So a gap between two segments is
//! noticed, wherever the first of them ends.
//!
//! The checksum of a commit covers its length, `safe`, its position (number of the segment, and offset) and
//! its rows, so a block that a disk has put in the wrong place is not mistaken for a commit. `safe` says how
//! much of the segment was promised to last when the commit was made. It distinguishes a torn end from
//! damage: if a commit cannot be read, and a later commit says that this position was safe, then something
//! that was acknowledged is lost.

use bytes::Bytes;

/// The format that this release writes. It reads this and all older ones.
pub const FORMAT: u16 = 2;
/// Bytes of a segment's header, as all releases know it.
const HEADER: u32 = 24;
/// Bytes before the first commit.
pub const FIRST: u32 = 44;
/// Bytes of a commit before its rows.
pub const COMMIT: usize = 16;

const MAGIC: [u8; 8] = *b"RALLYJRN";
const COMMIT_MAGIC: [u8; 4] = *b"RJc1";
/// Flag: the segment begins anew. Everything before it does not count once [`super::Row::Whole`] names this
/// segment.
const ANEW: u16 = 1;

/// How much of a segment counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct End {
    /// The number of the segment. 0 if there is none.
    pub segment: u64,
    /// The byte behind its last commit.
    pub at: u32,
    /// The checksum of all bytes before `at`.
    pub sum: u32,
}

impl End {
    /// The end after these bytes are appended. `None` if a segment cannot be that long.
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
    /// Whether it begins anew, after commits that could not be written.
    pub anew: bool,
    /// The end of the segment before it, when this one was begun. `None` in format 1, which does not say it.
    pub follows: Option<End>,
}

/// Why bytes are not a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadHeader {
    /// The file is shorter than a header.
    Short,
    /// A newer release wrote it, in this format.
    Newer(u16),
    /// The file is not a segment, or is damaged.
    Damaged,
}

impl Header {
    /// The header as bytes.
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

    /// Reads a header from the start of a segment.
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

    /// The offset of the first commit in its segment.
    pub const fn first(&self) -> u32 {
        if self.follows.is_some() { FIRST } else { HEADER }
    }
}

/// The position of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The number of its segment.
    pub segment: u64,
    /// Its offset in the segment.
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

/// Makes a commit of the rows in `commit` behind its first [`COMMIT`] bytes, which it overwrites. `None` if a
/// segment cannot be that long.
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

/// The bytes of a segment, read in parts: there may be no memory for the state and a whole segment.
pub trait Pieces {
    /// How many bytes there are.
    fn len(&self) -> usize;
    /// The bytes from `at` on, `most` of them at most. The result keeps not much more memory than these
    /// bytes.
    fn get(&mut self, at: usize, most: usize) -> Bytes;
    /// Whether there are no bytes.
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

/// The bytes of the commit that begins at `at`, with the length that its head says, as far as they are there.
pub(super) fn piece_at(segment: &mut dyn Pieces, at: u32) -> Bytes {
    let at = at as usize;
    let head = segment.get(at, COMMIT);
    segment.get(at, COMMIT.saturating_add(number_at(&head, 4) as usize))
}

/// A commit as it is written in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit<'a> {
    /// Its offset in the segment.
    pub at: u32,
    /// How much of the segment was promised to last when it was made.
    pub safe: u32,
    /// Its rows.
    pub rows: &'a [u8],
}

/// The commit at `position`, if there is a whole one.
pub fn commit_at(segment: &[u8], position: Position) -> Option<Commit<'_>> {
    commit_in(segment.get(position.at as usize..)?, position)
}

/// The commit at the start of these bytes, which are at `position` in a segment.
pub(super) fn commit_in(bytes: &[u8], position: Position) -> Option<Commit<'_>> {
    let (head, rest) = bytes.split_first_chunk::<COMMIT>()?;
    if head[..4] != COMMIT_MAGIC {
        return None;
    }
    let (len, safe, crc) = (number_at(head, 4), number_at(head, 8), number_at(head, 12));
    let rows = rest.get(..len as usize)?;
    (checksum(position, len, safe, rows) == crc).then_some(Commit { at: position.at, safe, rows })
}

/// The whole commits of a segment, in order. Ends at the first one that is not whole.
pub fn commits(segment: &[u8], number: u64) -> impl Iterator<Item = Commit<'_>> {
    let mut at = Header::decode(segment).ok().map(|header| header.first());
    std::iter::from_fn(move || {
        let commit = commit_at(segment, Position { segment: number, at: at? })?;
        at = end_of(&commit);
        Some(commit)
    })
}

/// The offset of the next commit.
pub(super) fn end_of(commit: &Commit<'_>) -> Option<u32> {
    commit.at.checked_add(u32::try_from(COMMIT.checked_add(commit.rows.len())?).ok()?)
}

/// The first whole commit behind `from` which says that `from` was safe.
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

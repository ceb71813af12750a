//! The disk of the server: it can stop at any of its steps, and notes the place of each commit.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use super::mutants::Mutant;
use super::random::Random;
use rallypoint_journal::segment::{COMMIT, Header, commits};
use rallypoint_journal::{Row, rows};
use rallypoint_server::journal::faults::Disk;
use rallypoint_server::journal::{Backend, CommitNumber, Journal, Segment, Segments};

/// The places of commits: segment and byte, with the commit's number in the life of the server that wrote it.
type Book = Arc<Mutex<BTreeMap<(u64, u32), u64>>>;

/// A disk for one life of the server.
#[derive(Debug, Clone)]
pub(super) struct Noted {
    pub(super) disk: Disk,
    book: Book,
    journal: Arc<OnceLock<Weak<Journal>>>,
    digest: Arc<AtomicU64>,
    mutant: Option<Mutant>,
}

impl Noted {
    pub(super) fn new(disk: Disk, mutant: Option<Mutant>) -> Self {
        Self { disk, book: Book::default(), journal: Arc::default(), digest: Arc::default(), mutant }
    }

    /// The disk in the next life of the server, with the bytes that are left.
    pub(super) fn again(&self, left: Disk) -> Self {
        Self { digest: Arc::clone(&self.digest), ..Self::new(left, self.mutant) }
    }

    /// Names the journal that writes to the disk.
    pub(super) fn written_by(&self, journal: &Arc<Journal>) {
        let _first = self.journal.set(Arc::downgrade(journal));
    }

    /// A digest of every byte that was ever written to it.
    pub(super) fn digest(&self) -> u64 {
        self.digest.load(Ordering::Relaxed)
    }

    fn book(&self) -> MutexGuard<'_, BTreeMap<(u64, u32), u64>> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last whole commit in `left` that was written in this life.
    pub(super) fn last_commit(&self, left: &Disk) -> u64 {
        let mut last = 0;
        for number in left.list().unwrap_or_default() {
            let segment = left.read(number).unwrap_or_default();
            for commit in commits(&segment, number) {
                last = last.max(self.book().get(&(number, commit.at)).copied().unwrap_or(0));
            }
        }
        last
    }

    /// The last commit of `left`, behind `since`, which says that everything before it was written again.
    pub(super) fn whole_behind(&self, left: &Disk, since: u64) -> Option<u64> {
        let mut whole = None;
        for number in left.list().unwrap_or_default() {
            let segment = left.read(number).unwrap_or_default();
            for commit in commits(&segment, number) {
                let is_whole = rows(commit.rows).any(|row| matches!(row, Ok(Some(Row::Whole(_)))));
                let known = self.book().get(&(number, commit.at)).copied();
                whole = known.filter(|&known| is_whole && known > since).or(whole);
            }
        }
        whole
    }

    /// What is left when the process is killed.
    pub(super) fn after_kill(&self) -> Disk {
        self.disk.after_kill()
    }

    /// What is left when the power is cut.
    pub(super) fn after_power_cut(&self, random: &mut Random) -> Disk {
        let all = random.one_in(3);
        self.disk.after_power_cut(|| !all && !random.one_in(4))
    }
}

impl Segments for Noted {
    fn list(&self) -> io::Result<Vec<u64>> {
        self.disk.list()
    }

    fn read(&self, number: u64) -> io::Result<Vec<u8>> {
        self.disk.read(number)
    }

    fn name(&self, number: u64) -> String {
        self.disk.name(number)
    }
}

impl Backend for Noted {
    fn create(&self, number: u64) -> io::Result<Arc<dyn Segment>> {
        let segment = self.disk.create(number)?;
        let at = Mutex::new(0);
        Ok(Arc::new(Written { noted: self.clone(), number, at, segment }))
    }

    fn sync(&self, number: u64) -> io::Result<()> {
        match self.mutant {
            Some(Mutant::SyncDoesNothing | Mutant::LeftUnsynced) => Ok(()),
            _ => self.disk.sync(number),
        }
    }

    fn write_again(&self, number: u64) -> io::Result<()> {
        match self.mutant {
            Some(Mutant::SyncDoesNothing | Mutant::LeftUnsynced) => Ok(()),
            _ => self.disk.write_again(number),
        }
    }

    fn cut(&self, number: u64, len: u64) -> io::Result<()> {
        if self.mutant == Some(Mutant::TornEndStays) { Ok(()) } else { self.disk.cut(number, len) }
    }

    fn remove(&self, number: u64) -> io::Result<()> {
        self.disk.remove(number)
    }
}

#[derive(Debug)]
struct Written {
    noted: Noted,
    number: u64,
    at: Mutex<u32>,
    segment: Arc<dyn Segment>,
}

impl Segment for Written {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        let journal = self.noted.journal.get().and_then(Weak::upgrade);
        // The write that begins a segment has no commit number.
        if Header::decode(bytes).is_err()
            && let Some(journal) = journal
        {
            let CommitNumber(last) = journal.commit(|_| ());
            let mut places = Vec::new();
            let mut place = 0;
            while let Some(len) = bytes.get(place + 4..place + 8).and_then(|len| len.first_chunk()) {
                places.push(*at + place as u32);
                place += COMMIT + u32::from_le_bytes(*len) as usize;
            }
            for (place, number) in places.into_iter().rev().zip((0..=last).rev()) {
                self.noted.book().insert((self.number, place), number);
            }
        }
        let mut hasher = DefaultHasher::new();
        (self.noted.digest(), bytes).hash(&mut hasher);
        self.noted.digest.store(hasher.finish(), Ordering::Relaxed);
        self.segment.append(bytes)?;
        *at += bytes.len() as u32;
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let synced = match self.noted.mutant {
            Some(Mutant::SyncDoesNothing) => return Ok(()),
            _ => self.segment.sync(),
        };
        if self.noted.mutant == Some(Mutant::SyncErrorPassedOver) { Ok(()) } else { synced }
    }
}

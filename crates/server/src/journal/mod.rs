//! Writes commits to segments, and says when replies that depend on them may leave.
//!
//! Whoever holds a store's lock encodes its rows into a queue in memory ([`Journal::commit`]) and gets a
//! number. Before a reply leaves, its connection asks for that number ([`Journal::poll_safe`]). The first
//! caller writes all queued commits, for everybody, in one system call. With [`Durability::Disk`] a thread
//! then syncs the written bytes, again for everybody at once, and wakes the callers.
//!
//! With an etcd, that thread also writes, and a leader that etcd has not heard of for too long lets no reply
//! leave ([`etcd`]).
//!
//! When the disk does not take a commit, the server goes on in memory, or ends ([`OnError`]). Once writing is
//! possible again, a new segment begins with a copy of all that the server holds, as when the log is tidied.
//! If that fails, too, the copy is removed at once, so that the next attempt has all the free room.

mod backend;
pub mod etcd;
#[cfg(any(test, feature = "sim"))]
pub mod faults;
mod open;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::config::{Durability, OnJournalError as OnError};
pub use backend::{Backend, Folder, Look, NoFolder, Segment, Segments, written_ago};
use etcd::Etcd;
#[cfg(any(test, feature = "sim"))]
pub use open::Failed;
pub use open::{CannotOpen, Restored, read};
use rallypoint_journal::segment::{COMMIT, End, Header, Position, seal};
use rallypoint_journal::{Epoch, OpenStore, Row, StoreId};

/// A segment of this length is closed, and the next one begins. The log is tidied when it has grown by this
/// much, and by twice the size of the last copy.
const SEGMENT: u32 = 64 << 20;
/// A buffer for queued commits is reused up to this size.
const ROOM_KEPT: usize = 1 << 20;
/// Pause before the next attempt to write. It doubles with each attempt, up to the longest.
const TRY_AGAIN: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(40);
/// How often the log repeats that writing is not possible.
const SAY_AGAIN: Duration = Duration::from_mins(1);

/// The number of a commit. Commits are written in the order of their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct CommitNumber(pub u64);

impl CommitNumber {
    /// The number of a change that will never be written.
    const NEVER: Self = Self(u64::MAX);
}

/// Names one copy of all that the server holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tidy {
    /// The first segment of the copy. A copy that failed may have begun with the same number.
    since: u64,
    /// How many copies were begun before it.
    no: u64,
}

/// Commits that are not written yet.
#[derive(Debug)]
struct Queue {
    /// The commits, each with room for its head.
    bytes: Vec<u8>,
    /// Where each commit begins.
    starts: Vec<usize>,
    /// The number of the last commit.
    last: u64,
    /// Whether commits are queued at all: not while writing is impossible.
    is_on: bool,
    /// The server is ending: later changes are not written, so no answer to them may leave.
    is_closed: bool,
}

/// An open store. Each segment begins with the list of them.
#[derive(Debug)]
struct Store {
    port: u16,
    owner: Box<[u8]>,
}

#[derive(Debug)]
struct Writer {
    segment: Arc<dyn Segment>,
    /// Where the segment ends.
    end: End,
    /// The end of the bytes that are safe.
    safe: End,
    /// The oldest segment that exists.
    oldest: u64,
    /// The highest number of a segment that may exist.
    newest: u64,
    epoch: Epoch,
    stores: BTreeMap<StoreId, Store>,
    last_store: StoreId,
    tidying: Tidying,
    stats: Stats,
    trouble: Option<Trouble>,
}

/// The state of tidying.
#[derive(Debug, Default)]
struct Tidying {
    /// The copy in progress.
    copy: Option<Tidy>,
    /// How many copies were begun.
    begun: u64,
    /// Bytes written since the last copy began.
    written: u64,
    /// Bytes of the last copy.
    size: u64,
}

/// Writing has failed, and the log is not whole again. A copy in progress writes the log anew.
#[derive(Debug)]
struct Trouble {
    error: String,
    since: Instant,
    tried_at: Instant,
    /// Pause before the next attempt.
    pause: Duration,
    said_at: Instant,
    /// The end of the log before the failure.
    end: End,
}

impl Writer {
    /// Whether commits are written at present.
    const fn is_writing(&self) -> bool {
        self.trouble.is_none() || self.tidying.copy.is_some()
    }

    /// Begins a copy of all that the server holds, in the current segment.
    fn begin_copy(&mut self) -> Tidy {
        let Tidying { copy, begun, written, .. } = &mut self.tidying;
        let tidy = Tidy { since: self.end.segment, no: *begun };
        (*copy, *begun, *written) = (Some(tidy), begun.saturating_add(1), 0);
        tidy
    }

    fn count_segments(&mut self) {
        self.stats.segments = self.newest.saturating_sub(self.oldest).saturating_add(1);
    }
}

/// The journal's counters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Commits written.
    pub commits: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Writes; each one has one or more commits.
    pub writes: u64,
    /// Syncs.
    pub syncs: u64,
    /// Writes and syncs that failed.
    pub errors: u64,
    /// Segments that exist.
    pub segments: u64,
    /// How often the log was tidied.
    pub tidied: u64,
    /// For how long the journal has not been whole.
    pub broken_for: Option<Duration>,
}

/// Commits that wait for the disk.
#[derive(Debug, Default)]
struct Unsynced {
    /// The highest number that was written.
    written: u64,
    waiting: Vec<(u64, Waker)>,
    ends: bool,
}

/// The journal of a server.
#[derive(Debug)]
pub struct Journal {
    backend: Box<dyn Backend>,
    durability: Durability,
    on_error: OnError,
    queue: Mutex<Queue>,
    writer: Mutex<Writer>,
    /// Replies that depend on commits up to this number may leave.
    safe: AtomicU64,
    unsynced: Mutex<Unsynced>,
    to_sync: Condvar,
    /// Notified when the server has to end.
    broken: tokio::sync::Notify,
    segment_size: u32,
    /// The etcd where this server leads, if the journal is in one.
    etcd: Option<Arc<Etcd>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Journal {
    /// Queues the rows that `rows` encodes as one commit. It makes no system call, so the caller may hold a
    /// store's lock. Without rows it returns the number of the last commit.
    pub fn commit(&self, rows: impl FnOnce(&mut Vec<u8>)) -> CommitNumber {
        let mut queue = lock(&self.queue);
        let Queue { bytes, starts, last, is_on, is_closed } = &mut *queue;
        if *is_closed {
            return CommitNumber::NEVER;
        }
        if *is_on {
            let start = bytes.len();
            bytes.resize(start.saturating_add(COMMIT), 0);
            rows(bytes);
            if bytes.len() > start.saturating_add(COMMIT) {
                starts.push(start);
                *last = last.saturating_add(1);
            } else {
                bytes.truncate(start);
            }
        } else {
            // Call `rows` nevertheless, so that the caller's rows do not pile up. Writing later begins with a
            // copy of everything.
            rows(&mut Vec::new());
        }
        CommitNumber(*last)
    }

    /// Whether a reply that depends on this commit may leave. If not, `cx` is woken when it may.
    #[inline]
    pub fn poll_safe(&self, commit: CommitNumber, cx: &Context<'_>) -> Poll<()> {
        if self.safe.load(Ordering::Acquire) >= commit.0 && self.may_answer() {
            Poll::Ready(())
        } else {
            self.poll_write(commit, cx)
        }
    }

    /// Whether this server may answer: no other server can lead yet.
    #[inline]
    pub fn may_answer(&self) -> bool {
        self.etcd.as_ref().is_none_or(|etcd| etcd.standing().may_answer())
    }

    fn poll_write(&self, CommitNumber(number): CommitNumber, cx: &Context<'_>) -> Poll<()> {
        self.write_queued();
        let mut unsynced = lock(&self.unsynced);
        // Checked under the lock, because the syncing thread raises the number under this lock.
        if self.safe.load(Ordering::Acquire) >= number && self.may_answer() {
            return Poll::Ready(());
        }
        if self.durability == Durability::Disk {
            unsynced.waiting.push((number, cx.waker().clone()));
            self.to_sync.notify_one();
        }
        Poll::Pending
    }

    /// Waits until a reply that depends on this commit may leave.
    pub async fn safe(&self, commit: CommitNumber) {
        std::future::poll_fn(|cx| self.poll_safe(commit, cx)).await;
    }

    /// Writes all queued commits.
    pub fn write_queued(&self) {
        let mut writer = lock(&self.writer);
        self.write(&mut writer);
    }

    fn write(&self, writer: &mut Writer) {
        let (mut bytes, starts, last) = {
            let mut queue = lock(&self.queue);
            (std::mem::take(&mut queue.bytes), std::mem::take(&mut queue.starts), queue.last)
        };
        if starts.is_empty() || !writer.is_writing() {
            return;
        }
        match self.write_commits(writer, &mut bytes, &starts) {
            Ok(()) => self.is_written(last),
            Err(error) => self.fail(writer, &error),
        }
        // Reuse the buffer, unless it has grown large.
        let mut queue = lock(&self.queue);
        if queue.bytes.capacity() == 0 && bytes.capacity() <= ROOM_KEPT {
            bytes.clear();
            queue.bytes = bytes;
        }
    }

    fn is_written(&self, last: u64) {
        match self.durability {
            Durability::Process => self.safe.store(last, Ordering::Release),
            Durability::Disk => {
                lock(&self.unsynced).written = last;
                self.to_sync.notify_one();
            }
        }
    }

    fn write_commits(&self, writer: &mut Writer, bytes: &mut [u8], starts: &[usize]) -> io::Result<()> {
        if writer.end.at >= self.segment_size {
            self.begin_segment(writer, false)?;
        }
        let ends = starts.iter().skip(1).copied().chain([bytes.len()]);
        let mut at = writer.end.at;
        for (&start, end) in starts.iter().zip(ends) {
            let safe = match self.durability {
                Durability::Process => at,
                Durability::Disk => writer.safe.at,
            };
            let commit = bytes.get_mut(start..end).unwrap_or_default();
            let place = Position { segment: writer.end.segment, at };
            seal(commit, place, safe).ok_or_else(|| io::Error::other("a commit of more than 4 GiB"))?;
            at = u32::try_from(commit.len()).ok().and_then(|len| at.checked_add(len)).ok_or_else(too_long)?;
        }
        let end = writer.end.with(bytes).ok_or_else(too_long)?;
        writer.segment.append(bytes)?;
        writer.end = end;
        let stats = &mut writer.stats;
        stats.commits = stats.commits.saturating_add(starts.len() as u64);
        stats.bytes = stats.bytes.saturating_add(bytes.len() as u64);
        stats.writes = stats.writes.saturating_add(1);
        writer.tidying.written = writer.tidying.written.saturating_add(bytes.len() as u64);
        Ok(())
    }

    /// Begins the next segment with the list of the open stores, which a reader needs first.
    fn begin_segment(&self, writer: &mut Writer, anew: bool) -> io::Result<()> {
        if !anew {
            // Only the last segment may have a torn end.
            self.settle(writer)?;
        }
        let number = writer.end.segment.saturating_add(1);
        writer.newest = number;
        let segment = self.backend.create(number)?;
        let mut bytes = Header { number, anew, follows: Some(writer.end) }.encode();
        let at = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        let mut commit = vec![0; COMMIT];
        Row::Epoch(writer.epoch).encode(&mut commit);
        for (&id, Store { port, owner }) in &writer.stores {
            Row::Store(id, Some(OpenStore { port: *port, owner })).encode(&mut commit);
        }
        let safe = if self.durability == Durability::Process { at } else { 0 };
        seal(&mut commit, Position { segment: number, at }, safe).ok_or_else(too_long)?;
        bytes.append(&mut commit);
        let end = End { segment: number, ..End::default() }.with(&bytes).ok_or_else(too_long)?;
        segment.append(&bytes)?;
        if self.durability == Durability::Disk {
            self.backend.sync(number)?;
        }
        (writer.segment, writer.end, writer.safe) = (segment, end, end);
        writer.count_segments();
        Ok(())
    }

    /// Ensures that no later write can survive without the bytes that are there.
    fn settle(&self, writer: &mut Writer) -> io::Result<()> {
        if self.durability == Durability::Disk {
            writer.segment.settle()?;
            writer.safe = writer.end;
        }
        Ok(())
    }

    /// Removes the segments behind this end. Their numbers are free again.
    fn go_back(&self, writer: &mut Writer, end: End) -> io::Result<()> {
        while writer.newest > end.segment {
            match self.backend.remove(writer.newest) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => writer.newest = writer.newest.saturating_sub(1),
            }
        }
        (writer.end, writer.safe) = (end, end);
        writer.count_segments();
        Ok(())
    }

    /// Handles a failed write or sync of a commit.
    fn fail(&self, writer: &mut Writer, error: &io::Error) {
        writer.stats.errors = writer.stats.errors.saturating_add(1);
        writer.tidying.copy = None;
        let now = Instant::now();
        let again = writer.trouble.take();
        let is_first = again.is_none();
        let trouble = again.unwrap_or_else(|| Trouble {
            error: String::new(),
            since: now,
            tried_at: now,
            pause: TRY_AGAIN,
            said_at: now,
            // A file system reports a failed sync once, and may have dropped the unwritten bytes.
            end: if self.durability == Durability::Disk { writer.safe } else { writer.end },
        });
        let end = trouble.end;
        writer.trouble = Some(Trouble { error: error.to_string(), ..trouble });
        if self.etcd.is_some() {
            // The standing has logged it: this server leads no more.
            return self.broken.notify_one();
        }
        // The bytes behind the end were not acknowledged. If their removal fails, too, a later attempt or the
        // next start removes them. Segments behind go first: nothing is cut while a segment follows it.
        let _ = self.go_back(writer, end).and_then(|()| self.backend.cut(end.segment, end.at.into()));
        let make_room = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "Make room on the volume. ",
            _ => "",
        };
        if self.on_error == OnError::Stop {
            tracing::error!(
                "cannot write to the journal ({error}); the server ends (--on-journal-error stop). What was \
                 acknowledged is kept. {make_room}Start it again when the journal can be written"
            );
            return self.broken.notify_one();
        }
        if is_first {
            tracing::error!(
                "cannot write to the journal ({error}); going on in memory (--on-journal-error continue): \
                 what happens from now on is lost if the server dies. {make_room}Once the journal can be \
                 written, it goes on by itself"
            );
        }
        let last = {
            let mut queue = lock(&self.queue);
            (queue.bytes, queue.starts, queue.is_on) = (Vec::new(), Vec::new(), false);
            queue.last
        };
        self.release(last);
    }

    /// Lets replies that depend on commits up to `last` leave.
    fn release(&self, last: u64) {
        let mut woken = Vec::new();
        {
            let mut unsynced = lock(&self.unsynced);
            self.safe.store(last, Ordering::Release);
            unsynced.waiting.retain(|(number, waker)| {
                let waits = *number > last;
                if !waits {
                    woken.push(waker.clone());
                }
                waits
            });
        }
        for waker in woken {
            waker.wake();
        }
    }

    /// Syncs written bytes, for ever: the work of the syncing thread.
    fn keep_syncing(&self) {
        loop {
            {
                let mut unsynced = lock(&self.unsynced);
                while unsynced.written <= self.safe.load(Ordering::Acquire) && !unsynced.ends {
                    unsynced = self.to_sync.wait(unsynced).unwrap_or_else(PoisonError::into_inner);
                }
                if unsynced.ends {
                    return;
                }
            }
            if !self.sync() {
                std::thread::sleep(Duration::from_millis(500));
            }
        }
    }

    /// Writes the queue and syncs. `false` if that is not possible at present.
    pub fn sync(&self) -> bool {
        let (written, segment, end) = {
            let mut writer = lock(&self.writer);
            self.write(&mut writer);
            let written = lock(&self.unsynced).written;
            (written, Arc::clone(&writer.segment), writer.end)
        };
        let synced = segment.sync();
        let mut writer = lock(&self.writer);
        if !writer.is_writing() {
            return false;
        }
        if let Err(error) = synced {
            self.fail(&mut writer, &error);
            return false;
        }
        writer.stats.syncs = writer.stats.syncs.saturating_add(1);
        if Arc::ptr_eq(&writer.segment, &segment) && writer.safe.at < end.at {
            writer.safe = end;
        }
        drop(writer);
        self.release(written);
        true
    }

    /// Records a new store. Returns its number, which no other store has had.
    pub fn open_store(&self, port: u16, owner: &[u8]) -> StoreId {
        let mut writer = lock(&self.writer);
        writer.last_store = writer.last_store.saturating_add(1);
        let id = writer.last_store;
        self.say_store(&mut writer, id, Some(OpenStore { port, owner }));
        id
    }

    /// Records that a restored store is open again, or that its owner has changed.
    pub fn keep_store(&self, id: StoreId, port: u16, owner: &[u8]) {
        self.say_store(&mut lock(&self.writer), id, Some(OpenStore { port, owner }));
    }

    /// Records that a store is closed, with all its contents.
    pub fn close_store(&self, id: StoreId) {
        self.say_store(&mut lock(&self.writer), id, None);
    }

    fn say_store(&self, writer: &mut Writer, id: StoreId, open: Option<OpenStore<'_>>) {
        match open {
            Some(OpenStore { port, owner }) => {
                writer.stores.insert(id, Store { port, owner: owner.into() });
            }
            None => drop(writer.stores.remove(&id)),
        }
        self.commit(|out| Row::Store(id, open).encode(out));
    }

    /// Begins a copy of all that the server holds, if that is worth it. The caller then writes everything
    /// again, and calls [`Self::is_tidy`] at the end.
    pub fn begin_tidying(&self) -> Option<Tidy> {
        let mut writer = lock(&self.writer);
        if let Some(tidy) = writer.tidying.copy {
            return Some(tidy);
        }
        let worth = u64::from(self.segment_size).max(writer.tidying.size.saturating_mul(2));
        if writer.trouble.is_some() || writer.tidying.written < worth {
            return None;
        }
        self.write(&mut writer);
        if writer.trouble.is_some() {
            return None;
        }
        if let Err(error) = self.begin_segment(&mut writer, false) {
            self.fail(&mut writer, &error);
            return None;
        }
        Some(writer.begin_copy())
    }

    /// Ends a copy: all that the server holds was written since [`Self::begin_tidying`], or since writing was
    /// possible again. Removes the older segments.
    pub fn is_tidy(&self, tidy: Tidy) {
        let since = tidy.since;
        if lock(&self.writer).tidying.copy != Some(tidy) {
            // Writing failed meanwhile: the copy is not complete.
            return;
        }
        self.commit(|out| Row::Whole(since).encode(out));
        let mut writer = lock(&self.writer);
        self.write(&mut writer);
        if writer.tidying.copy != Some(tidy) {
            return;
        }
        if let Err(error) = self.settle(&mut writer) {
            return self.fail(&mut writer, &error);
        }
        writer.tidying.size = writer.tidying.written;
        writer.tidying.copy = None;
        writer.stats.tidied = writer.stats.tidied.saturating_add(1);
        if let Some(trouble) = writer.trouble.take() {
            let lasted = rallypoint_protocol::ids::Elapsed(trouble.since.elapsed());
            tracing::info!("the journal is whole again after {lasted}, with what happened meanwhile");
        }
        let oldest = std::mem::replace(&mut writer.oldest, since);
        drop(writer);
        // A file system needs time to remove large files, and commits need not wait for that.
        let stays = (oldest..since).find(|&number| {
            let removed = self.backend.remove(number);
            let is_there = removed.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::NotFound);
            if let (true, Err(error)) = (is_there, removed) {
                tracing::warn!(%error, "cannot remove an old segment of the journal; trying again later");
            }
            is_there
        });
        let mut writer = lock(&self.writer);
        writer.oldest = stays.unwrap_or(since);
        writer.count_segments();
    }

    /// Tries to write again after a failure, and logs from time to time that writing is impossible.
    pub fn tick(&self, now: Instant) {
        self.write_queued();
        if self.etcd.is_some() {
            // Wake the callers that had to wait while etcd had not heard of this leader.
            self.release(self.safe.load(Ordering::Acquire));
        }
        let mut writer = lock(&self.writer);
        if writer.is_writing() {
            let from = match (&writer.trouble, writer.tidying.copy) {
                (Some(_), Some(anew)) => anew.since,
                _ => writer.oldest,
            };
            if let Err(error) = self.backend.check(from..=writer.end.segment) {
                self.fail(&mut writer, &error);
            }
            return;
        }
        let Some(trouble) = &mut writer.trouble else { return };
        if self.on_error == OnError::Stop || now.saturating_duration_since(trouble.tried_at) < trouble.pause {
            return;
        }
        if now.saturating_duration_since(trouble.said_at) >= SAY_AGAIN {
            trouble.said_at = now;
            let Trouble { error, since, .. } = trouble;
            let lasts = rallypoint_protocol::ids::Elapsed(since.elapsed());
            tracing::error!(
                "still cannot write to the journal, for {lasts} ({error}); what has happened since is lost \
                 if the server dies"
            );
        }
        trouble.tried_at = now;
        trouble.pause = trouble.pause.saturating_mul(2).min(LONGEST_PAUSE);
        if let Err(error) = self.begin_anew(&mut writer) {
            return self.fail(&mut writer, &error);
        }
        writer.begin_copy();
        lock(&self.queue).is_on = true;
    }

    /// Begins to write everything anew, behind the end of the log before the failure.
    fn begin_anew(&self, writer: &mut Writer) -> io::Result<()> {
        let Some(trouble) = &mut writer.trouble else { return Ok(()) };
        if self.backend.take_again()? {
            // All segments are gone.
            trouble.end = End::default();
            (writer.oldest, writer.newest) = (1, 0);
        }
        let end = trouble.end;
        self.go_back(writer, end)?;
        self.begin_segment(writer, true)
    }

    /// The identity by which relays know the server of this journal.
    pub fn life(&self) -> u64 {
        lock(&self.writer).epoch.life
    }

    /// The counters so far.
    pub fn stats(&self) -> Stats {
        let writer = lock(&self.writer);
        let broken_for = writer.trouble.as_ref().map(|trouble| trouble.since.elapsed());
        Stats { broken_for, ..writer.stats.clone() }
    }

    /// The error that prevents writing, if there is one.
    pub fn trouble(&self) -> Option<String> {
        lock(&self.writer).trouble.as_ref().map(|trouble| trouble.error.clone())
    }

    /// Waits until the server has to end because the journal cannot be written. Returns the reason.
    pub async fn broken(&self) -> String {
        if let Some(etcd) = &self.etcd {
            return etcd.standing().over().await.to_string();
        }
        self.broken.notified().await;
        "the journal cannot be written (--on-journal-error stop)".into()
    }

    /// The etcd of this journal, if it is in one.
    pub fn etcd(&self) -> Option<&Arc<Etcd>> {
        self.etcd.as_ref()
    }

    /// Writes and syncs all commits, at the end of the server.
    pub fn close(&self) {
        // Clients that stay connected until the process ends must not be recorded as gone, and get no more
        // replies.
        lock(&self.queue).is_closed = true;
        let mut writer = lock(&self.writer);
        self.write(&mut writer);
        if writer.is_writing() {
            let _ = self.backend.close(&*writer.segment);
        }
        drop(writer);
        lock(&self.unsynced).ends = true;
        self.to_sync.notify_all();
    }
}

fn too_long() -> io::Error {
    io::Error::other("a segment of more than 4 GiB")
}

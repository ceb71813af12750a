//! Writes commits to segments, and says when what depends on them may leave.
//!
//! Whoever holds a store's lock encodes its rows into a queue in memory ([`Journal::commit`]) and gets a number. Before
//! a reply leaves, its connection asks for that number ([`Journal::poll_safe`]): the first to ask writes all that is
//! queued, for everybody, in one system call. With [`Durability::Disk`] a thread syncs what was written, again for
//! everybody at once, and those who asked are woken.
//!
//! In an etcd it is the same thread that writes, and a leader that etcd has not heard of for too long lets nothing leave
//! ([`etcd`]).
//!
//! When the disk does not take a commit, the server goes on in memory, or ends ([`OnError`]). Once writing is possible
//! again, a new segment begins anew: all that the server holds is written into it, as it is when the log is tidied.

mod backend;
pub mod etcd;
#[cfg(test)]
pub(crate) mod faults;
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
use crate::core::journal::segment::{COMMIT, Header, Position, seal};
use crate::core::journal::{Epoch, OpenStore, Row, StoreId};
pub use backend::{Backend, Folder, NoFolder, Segment, written_ago};
use etcd::Etcd;
#[cfg(test)]
pub(crate) use open::Failed;
pub use open::{CannotOpen, Restored, read};

/// A segment is closed when it is this long, and the next one begins. The log is tidied when it has grown by this much,
/// and by twice of what was held when that was done last.
const SEGMENT: u32 = 64 << 20;
/// Room for queued commits that is kept for the next ones.
const ROOM_KEPT: usize = 1 << 20;
/// How often it is tried again to write, and said that it is not possible.
const TRY_AGAIN: Duration = Duration::from_secs(5);
const SAY_AGAIN: Duration = Duration::from_mins(1);

/// The number of a commit; those with lower numbers are written before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct CommitNumber(pub(crate) u64);

impl CommitNumber {
    /// Of what will not be kept any more.
    const NEVER: Self = Self(u64::MAX);
}

/// Stands for one walk through all that the server holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tidy(u64);

/// Commits that are not written yet.
#[derive(Debug)]
struct Queue {
    /// Each with room for its head before it.
    bytes: Vec<u8>,
    /// Where each begins.
    starts: Vec<usize>,
    /// The number of the last.
    last: u64,
    /// Whether commits are kept at all: not while writing is impossible.
    is_on: bool,
    /// The server ends: what happens now is not kept, so no answer to it may leave.
    is_closed: bool,
}

/// An open store, as it stands at the start of each segment.
#[derive(Debug)]
struct Store {
    port: u16,
    owner: Box<[u8]>,
}

#[derive(Debug)]
struct Writer {
    segment: Arc<dyn Segment>,
    number: u64,
    /// How long the segment is.
    at: u32,
    /// How much of it is safe.
    safe: u32,
    /// The oldest segment that is there.
    oldest: u64,
    epoch: Epoch,
    stores: BTreeMap<StoreId, Store>,
    last_store: StoreId,
    tidying: Tidying,
    stats: Stats,
    trouble: Option<Trouble>,
}

/// How the log is tidied.
#[derive(Debug, Default)]
struct Tidying {
    /// The segment with which the copy that is being made began.
    since: Option<u64>,
    /// Bytes written since the last one began.
    written: u64,
    /// Bytes that the last one wrote.
    size: u64,
}

/// Writing is not possible.
#[derive(Debug)]
struct Trouble {
    error: String,
    since: Instant,
    tried_at: Instant,
    said_at: Instant,
}

/// What the journal has done so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Commits written.
    pub commits: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Writes: each is of one or more commits.
    pub writes: u64,
    /// Syncs.
    pub syncs: u64,
    /// Writes and syncs that failed.
    pub errors: u64,
    /// Segments that are there.
    pub segments: u64,
    /// How often all that is held was written again.
    pub tidied: u64,
    /// For how long writing has been impossible.
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
    /// What depends on commits up to this number may leave.
    safe: AtomicU64,
    unsynced: Mutex<Unsynced>,
    to_sync: Condvar,
    /// Told when the server has to end.
    broken: tokio::sync::Notify,
    segment_size: u32,
    /// Where only a leader may answer.
    etcd: Option<Arc<Etcd>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Journal {
    /// Queues what `rows` encodes as one commit. Costs no system call, so a store's lock may be held. Without rows it is
    /// the last commit that was made.
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
            // Taken all the same: it would only become more. Writing begins with a copy of all that there is.
            rows(&mut Vec::new());
        }
        CommitNumber(*last)
    }

    /// Whether what depends on this commit may leave. If not, `cx` is woken when it may.
    #[inline]
    pub fn poll_safe(&self, commit: CommitNumber, cx: &Context<'_>) -> Poll<()> {
        if self.safe.load(Ordering::Acquire) >= commit.0 && self.may_answer() {
            Poll::Ready(())
        } else {
            self.poll_write(commit, cx)
        }
    }

    /// Whether no other server can lead yet.
    #[inline]
    pub fn may_answer(&self) -> bool {
        self.etcd.as_ref().is_none_or(|etcd| etcd.standing().may_answer())
    }

    fn poll_write(&self, CommitNumber(number): CommitNumber, cx: &Context<'_>) -> Poll<()> {
        self.write_queued();
        let mut unsynced = lock(&self.unsynced);
        // Under the lock: the thread that syncs raises it under the same.
        if self.safe.load(Ordering::Acquire) >= number && self.may_answer() {
            return Poll::Ready(());
        }
        if self.durability == Durability::Disk {
            unsynced.waiting.push((number, cx.waker().clone()));
            self.to_sync.notify_one();
        }
        Poll::Pending
    }

    /// Waits until what depends on this commit may leave.
    pub async fn safe(&self, commit: CommitNumber) {
        std::future::poll_fn(|cx| self.poll_safe(commit, cx)).await;
    }

    /// Writes all that is queued.
    pub fn write_queued(&self) {
        let mut writer = lock(&self.writer);
        self.write(&mut writer);
    }

    fn write(&self, writer: &mut Writer) {
        let (mut bytes, starts, last) = {
            let mut queue = lock(&self.queue);
            (std::mem::take(&mut queue.bytes), std::mem::take(&mut queue.starts), queue.last)
        };
        if starts.is_empty() || writer.trouble.is_some() {
            return;
        }
        match self.write_commits(writer, &mut bytes, &starts) {
            Ok(()) => self.is_written(last),
            Err(error) => self.fail(writer, &error),
        }
        // The room is for the next ones, unless it is much.
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
        if writer.at >= self.segment_size {
            self.begin_segment(writer, false)?;
        }
        let ends = starts.iter().skip(1).copied().chain([bytes.len()]);
        let mut at = writer.at;
        for (&start, end) in starts.iter().zip(ends) {
            let safe = match self.durability {
                Durability::Process => at,
                Durability::Disk => writer.safe,
            };
            let commit = bytes.get_mut(start..end).unwrap_or_default();
            let place = Position { segment: writer.number, at };
            seal(commit, place, safe).ok_or_else(|| io::Error::other("a commit of more than 4 GiB"))?;
            at = u32::try_from(commit.len()).ok().and_then(|len| at.checked_add(len)).ok_or_else(too_long)?;
        }
        writer.segment.append(bytes)?;
        writer.at = at;
        let stats = &mut writer.stats;
        stats.commits = stats.commits.saturating_add(starts.len() as u64);
        stats.bytes = stats.bytes.saturating_add(bytes.len() as u64);
        stats.writes = stats.writes.saturating_add(1);
        writer.tidying.written = writer.tidying.written.saturating_add(bytes.len() as u64);
        Ok(())
    }

    /// Begins the next segment with what must be known before all else: which stores are open.
    fn begin_segment(&self, writer: &mut Writer, anew: bool) -> io::Result<()> {
        if self.durability == Durability::Disk && !anew {
            // A segment that is not the last has no torn end.
            writer.segment.settle()?;
        }
        let number = writer.number.saturating_add(1);
        let segment = self.backend.create(number)?;
        let mut bytes = Header { number, anew }.encode().to_vec();
        let at = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        let mut commit = vec![0; COMMIT];
        Row::Epoch(writer.epoch).encode(&mut commit);
        for (&id, Store { port, owner }) in &writer.stores {
            Row::Store(id, Some(OpenStore { port: *port, owner })).encode(&mut commit);
        }
        let safe = if self.durability == Durability::Process { at } else { 0 };
        seal(&mut commit, Position { segment: number, at }, safe).ok_or_else(too_long)?;
        bytes.append(&mut commit);
        let begun = segment.append(&bytes).and_then(|()| match self.durability {
            Durability::Process => Ok(()),
            Durability::Disk => self.backend.sync(number),
        });
        if let Err(error) = begun {
            // Without its first commit it is none; the number is free again.
            let _ = self.backend.remove(number);
            return Err(error);
        }
        (writer.segment, writer.number) = (segment, number);
        writer.at = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        writer.safe = writer.at;
        writer.stats.segments = number.saturating_sub(writer.oldest).saturating_add(1);
        Ok(())
    }

    /// A commit could not be written or synced.
    fn fail(&self, writer: &mut Writer, error: &io::Error) {
        writer.stats.errors = writer.stats.errors.saturating_add(1);
        // What is there of it was not acknowledged. Where this fails too, it is cut at the next start.
        let _ = self.backend.cut(writer.number, writer.at.into());
        let now = Instant::now();
        writer.tidying.since = None;
        writer.trouble = Some(Trouble { error: error.to_string(), since: now, tried_at: now, said_at: now });
        if self.etcd.is_some() {
            // It has been said: this server leads no more.
            return self.broken.notify_one();
        }
        if self.on_error == OnError::Stop {
            tracing::error!(
                "cannot write to the journal ({error}); the server ends (--on-journal-error stop). What was acknowledged is \
                 kept: make room and start it again"
            );
            return self.broken.notify_one();
        }
        tracing::error!(
            "cannot write to the journal ({error}); going on in memory (--on-journal-error continue): what happens from now \
             on is lost if the server dies. Make room on the volume; the journal then goes on by itself"
        );
        let last = {
            let mut queue = lock(&self.queue);
            (queue.bytes, queue.starts, queue.is_on) = (Vec::new(), Vec::new(), false);
            queue.last
        };
        self.release(last);
    }

    /// What depends on commits up to `last` may leave.
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

    /// Syncs what was written, for ever: the work of a thread of its own.
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

    /// Syncs what was written, and what is queued with it. `false` where that is not possible at present.
    pub(crate) fn sync(&self) -> bool {
        let (written, segment, number, at) = {
            let mut writer = lock(&self.writer);
            self.write(&mut writer);
            let written = lock(&self.unsynced).written;
            (written, Arc::clone(&writer.segment), writer.number, writer.at)
        };
        let synced = segment.sync();
        let mut writer = lock(&self.writer);
        if writer.trouble.is_some() {
            return false;
        }
        if let Err(error) = synced {
            self.fail(&mut writer, &error);
            return false;
        }
        writer.stats.syncs = writer.stats.syncs.saturating_add(1);
        if writer.number == number {
            writer.safe = at;
        }
        drop(writer);
        self.release(written);
        true
    }

    /// A store opens: its number, which no other store has had.
    pub fn open_store(&self, port: u16, owner: &[u8]) -> StoreId {
        let mut writer = lock(&self.writer);
        writer.last_store = writer.last_store.saturating_add(1);
        let id = writer.last_store;
        self.say_store(&mut writer, id, Some(OpenStore { port, owner }));
        id
    }

    /// A store that was there before is open again, or what belongs to it has changed.
    pub fn keep_store(&self, id: StoreId, port: u16, owner: &[u8]) {
        self.say_store(&mut lock(&self.writer), id, Some(OpenStore { port, owner }));
    }

    /// A store is closed, with all that was in it.
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

    /// Begins to write again all that the server holds, if that is worth it. The caller then goes through it, and says
    /// when it is through with [`Self::is_tidy`].
    pub fn begin_tidying(&self) -> Option<Tidy> {
        let mut writer = lock(&self.writer);
        if let Some(since) = writer.tidying.since {
            return Some(Tidy(since));
        }
        let worth = u64::from(self.segment_size).max(writer.tidying.size.saturating_mul(2));
        if writer.trouble.is_some() || writer.tidying.written < worth {
            return None;
        }
        self.write(&mut writer);
        if let Err(error) = self.begin_segment(&mut writer, false) {
            self.fail(&mut writer, &error);
            return None;
        }
        writer.tidying.since = Some(writer.number);
        writer.tidying.written = 0;
        Some(Tidy(writer.number))
    }

    /// All that the server holds was written since [`Self::begin_tidying`] or since writing was possible again: the
    /// segments before are removed.
    pub fn is_tidy(&self, Tidy(since): Tidy) {
        if lock(&self.writer).tidying.since != Some(since) {
            // Writing failed meanwhile: what was copied is not all of it.
            return;
        }
        self.commit(|out| Row::Whole(since).encode(out));
        let mut writer = lock(&self.writer);
        self.write(&mut writer);
        if writer.trouble.is_some() || writer.tidying.since != Some(since) {
            return;
        }
        if self.durability == Durability::Disk
            && let Err(error) = writer.segment.settle()
        {
            return self.fail(&mut writer, &error);
        }
        writer.tidying.size = writer.tidying.written;
        writer.tidying.since = None;
        writer.stats.tidied = writer.stats.tidied.saturating_add(1);
        let oldest = writer.oldest;
        drop(writer);
        // A file system takes its time to remove what is large, and commits need not wait for that.
        let stays = (oldest..since).find(|&number| {
            let removed = self.backend.remove(number);
            if let Err(error) = &removed {
                tracing::warn!(%error, "cannot remove an old segment of the journal; trying again later");
            }
            removed.is_err()
        });
        let mut writer = lock(&self.writer);
        writer.oldest = stays.unwrap_or(since);
        writer.stats.segments = writer.number.saturating_sub(writer.oldest).saturating_add(1);
    }

    /// Tries to write again where that was not possible, and says that it is not, from time to time.
    pub fn tick(&self, now: Instant) {
        self.write_queued();
        if self.etcd.is_some() {
            // Whom a leader that etcd had not heard of did not answer.
            self.release(self.safe.load(Ordering::Acquire));
        }
        let mut writer = lock(&self.writer);
        let Some(trouble) = &mut writer.trouble else { return };
        if self.on_error == OnError::Stop || now.saturating_duration_since(trouble.tried_at) < TRY_AGAIN {
            return;
        }
        trouble.tried_at = now;
        let error = match self.begin_segment(&mut writer, true) {
            Ok(()) => return self.resume(&mut writer),
            Err(error) => error,
        };
        writer.stats.errors = writer.stats.errors.saturating_add(1);
        let is_due = |trouble: &&mut Trouble| now.saturating_duration_since(trouble.said_at) >= SAY_AGAIN;
        if let Some(trouble) = writer.trouble.as_mut().filter(is_due) {
            trouble.said_at = now;
            let lasts = crate::core::ids::Elapsed(trouble.since.elapsed());
            tracing::error!(
                "still cannot write to the journal, for {lasts} ({error}); what has happened since is lost if the server dies"
            );
        }
    }

    fn resume(&self, writer: &mut Writer) {
        let lasted = writer.trouble.take().map_or(Duration::ZERO, |trouble| trouble.since.elapsed());
        writer.tidying = Tidying { since: Some(writer.number), ..Tidying::default() };
        lock(&self.queue).is_on = true;
        let lasted = crate::core::ids::Elapsed(lasted);
        tracing::info!(
            "the journal can be written again after {lasted}; what happened meanwhile is added to it"
        );
    }

    /// As which server relays know the one that keeps this journal.
    pub fn life(&self) -> u64 {
        lock(&self.writer).epoch.life
    }

    /// What it has done so far.
    pub fn stats(&self) -> Stats {
        let writer = lock(&self.writer);
        let broken_for = writer.trouble.as_ref().map(|trouble| trouble.since.elapsed());
        Stats { broken_for, ..writer.stats.clone() }
    }

    /// The error that keeps it from writing.
    pub fn trouble(&self) -> Option<String> {
        lock(&self.writer).trouble.as_ref().map(|trouble| trouble.error.clone())
    }

    /// Waits until the server has to end because the journal cannot be written, and says why.
    pub async fn broken(&self) -> String {
        if let Some(etcd) = &self.etcd {
            return etcd.standing().over().await.to_string();
        }
        self.broken.notified().await;
        "the journal cannot be written (--on-journal-error stop)".into()
    }

    /// The etcd that keeps it.
    pub fn etcd(&self) -> Option<&Arc<Etcd>> {
        self.etcd.as_ref()
    }

    /// Writes and syncs all that there is, at the end of the server.
    pub fn close(&self) {
        // Clients that are there until the process ends are not to be taken for gone, and hear nothing more.
        lock(&self.queue).is_closed = true;
        let mut writer = lock(&self.writer);
        self.write(&mut writer);
        if writer.trouble.is_none() {
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

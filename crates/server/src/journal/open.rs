//! Opens a journal: locks its folder, reads the segments, and begins the next one.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex};

use super::backend::{Backend, Folder, NoFolder, Segments, file};
use super::etcd::{Etcd, Log};
use super::{Journal, Queue, SEGMENT, Stats, Store, Tidying, Unsynced, Writer};
use crate::config::{Durability, JournalConfig, OnJournalError};
use rallypoint_journal::segment::{End, FIRST, Header, Pieces};
use rallypoint_journal::{Damage, Epoch, Image, Recovered, Recovery};
use rallypoint_process::random_number;
use rallypoint_protocol::ids::counted;

/// Like [`SEGMENT`], for an etcd. It is shorter, because an etcd is meant for little data, and keeps old
/// versions until it compacts.
const ETCD_SEGMENT: u32 = 4 << 20;

/// Why a journal cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum CannotOpen {
    /// Its folder cannot be used.
    #[error("{0}")]
    Folder(#[from] NoFolder),
    /// A file in it cannot be read or written.
    #[error("the journal in {}: {error}", path.display())]
    Io {
        /// The file, or the folder.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The journal is damaged.
    #[error(
        "the journal is damaged: {segment}, byte {}: {}. Nothing was changed. Put that back from a copy, or \
         give up what is in the journal: {} (all jobs then start anew). `rallypoint journal dump {place}` \
         shows what can be read",
        damage.at, damage.what,
        if place.contains("://") {
            "start with another prefix"
        } else {
            "move the folder away and start with an empty one"
        }
    )]
    Damaged {
        /// The folder, or the URL of an etcd.
        place: String,
        /// The name of the segment.
        segment: String,
        /// The position and the kind of the damage.
        damage: Damage,
    },
}

/// The state with which a server starts.
#[derive(Debug)]
pub struct Restored {
    /// The state at the end of the last server.
    pub image: Image,
    /// Bytes read.
    pub bytes: u64,
    /// Commits read.
    pub commits: u64,
    /// Bytes cut from the end: a commit that was never acknowledged.
    pub cut: u64,
    /// Whether the changes after a failed write are lost.
    pub is_old: bool,
}

impl Restored {
    /// Logs what was found.
    pub fn log(&self) {
        let Self { bytes, commits, cut, .. } = *self;
        if self.is_old {
            tracing::error!(
                "the last server could not write to its journal at the end: the state is that from before; \
                 what happened afterwards is lost"
            );
        }
        if cut > 0 {
            tracing::info!(
                cut,
                "cut {cut} bytes from the end of the journal: nothing in them was acknowledged"
            );
        }
        let starts = self.image.epoch.number;
        if starts > 0 {
            let starts = counted(starts, "earlier start", "earlier starts");
            tracing::info!(bytes, commits, "read the journal of {starts}");
        }
    }
}

/// Reads all segments of a folder and changes nothing. Passes each segment with its bytes to `see`.
pub fn read(
    backend: &dyn Segments,
    see: impl FnMut(u64, &mut dyn Pieces),
) -> io::Result<Result<Recovered, Damage>> {
    let all = read_up_to(backend, u64::MAX, see)?;
    Ok(match all {
        Ok(Recovered { unfinished: Some(first), .. }) => {
            let before = read_up_to(backend, first, |_, _| ())?;
            before.and_then(|before| Ok(Recovered { image: before.image, ..all? }))
        }
        all => all,
    })
}

/// Reads the segments with lower numbers than `end`.
fn read_up_to(
    backend: &dyn Segments,
    end: u64,
    mut see: impl FnMut(u64, &mut dyn Pieces),
) -> io::Result<Result<Recovered, Damage>> {
    let numbers = backend.list()?;
    let mut recovery = Recovery::default();
    let mut next = match numbers.first() {
        Some(&first) => Some((first, backend.pieces(first)?)),
        None => None,
    };
    let mut rest = numbers.iter().skip(1);
    while let Some((number, mut segment)) = next.take().filter(|(number, _)| *number < end) {
        if let Some(&following) = rest.next() {
            next = Some((following, backend.pieces(following)?));
        }
        see(number, &mut *segment);
        let following = next.as_mut().map(|(_, next)| Header::decode(&next.get(0, FIRST as usize)));
        let read = recovery.read(number, &mut *segment, following);
        segment.error()?;
        if let Err(damage) = read {
            return Ok(Err(damage));
        }
    }
    Ok(recovery.finish())
}

impl Journal {
    /// Opens the journal in a folder, and returns its state.
    pub fn open(config: &JournalConfig) -> Result<(Arc<Self>, Restored), CannotOpen> {
        let folder = Folder::take(&config.path)?;
        let name = |number| file(&config.path, number).display().to_string();
        let opened = Self::with(Box::new(folder), config, SEGMENT, random_number().max(1));
        let (journal, restored) = opened.map_err(|error| error.at(&config.path, name))?;
        if config.durability == Durability::Disk {
            journal.start_syncing().map_err(|error| CannotOpen::Io { path: config.path.clone(), error })?;
        }
        Ok((journal, restored))
    }

    /// Opens the journal in an etcd, as the leader there.
    pub fn lead(etcd: &Arc<Etcd>) -> Result<(Arc<Self>, Restored), CannotOpen> {
        let path = PathBuf::from(etcd.place());
        let name = |number| Log::of_leader(etcd).name(number);
        let (journal, restored) = Self::at(etcd, ETCD_SEGMENT).map_err(|error| error.at(&path, name))?;
        journal.start_syncing().map_err(|error| CannotOpen::Io { path, error })?;
        Ok((journal, restored))
    }

    /// Like [`Self::lead`], without the syncing thread.
    pub(super) fn at(etcd: &Arc<Etcd>, segment_size: u32) -> Result<(Arc<Self>, Restored), Failed> {
        // No reply leaves before etcd has its commit. A request that failed may still take effect later.
        let config = JournalConfig {
            path: PathBuf::new(),
            durability: Durability::Disk,
            on_error: OnJournalError::Stop,
        };
        let log = Box::new(Log::of_leader(etcd));
        let (mut journal, restored) = Self::with(log, &config, segment_size, random_number().max(1))?;
        // Relays learn the identity of this server, so the next server must find it in the journal.
        let begun = super::lock(&journal.writer).segment.sync();
        begun.map_err(Failed::Io)?;
        if let Some(journal) = Arc::get_mut(&mut journal) {
            journal.etcd = Some(Arc::clone(etcd));
        }
        Ok((journal, restored))
    }

    /// Starts the syncing thread.
    fn start_syncing(self: &Arc<Self>) -> io::Result<()> {
        let syncing = Arc::clone(self);
        let thread = std::thread::Builder::new().name("journal".into());
        thread.spawn(move || syncing.keep_syncing()).map(drop)
    }

    /// Opens the journal of a backend. Relays know the server as `new_life` if they cannot go on with the
    /// last one.
    pub fn with(
        backend: Box<dyn Backend>,
        config: &JournalConfig,
        segment_size: u32,
        new_life: u64,
    ) -> Result<(Arc<Self>, Restored), Failed> {
        let mut bytes = 0_u64;
        let read = read(&*backend, |_, segment| bytes = bytes.saturating_add(segment.len() as u64));
        let recovered = read.map_err(Failed::Io)?.map_err(Failed::Damaged)?;
        let numbers = backend.list().map_err(Failed::Io)?;
        tidy_end(&*backend, &recovered, &numbers).map_err(Failed::Io)?;
        if config.durability == Durability::Disk {
            // A killed process leaves bytes that it had not synced. They are read here, and later commits
            // build on them. What could not be synced is in the last segment: nothing is written behind it.
            let last = recovered.end.segment;
            let mut left = numbers.iter().copied().filter(|number| *number <= last);
            let keep =
                |number| if number < last { backend.sync(number) } else { backend.write_again(number) };
            left.try_for_each(keep).map_err(Failed::Io)?;
        }
        let Recovered { mut image, end, commits, torn, unfinished } = recovered;
        // Relays may know later changes than a stale state has: they must not go on from it.
        let is_old = unfinished.is_some();
        if is_old {
            image.links.clear();
        }
        let life = if is_old || image.epoch.life == 0 { new_life } else { image.epoch.life };
        let stores = image.stores.iter();
        let stores = stores.map(|(&id, it)| (id, Store { port: it.port, owner: it.owner.clone() }));
        let writer = Writer {
            segment: Arc::new(NoSegment),
            end,
            safe: end,
            oldest: numbers.first().copied().unwrap_or(1).min(end.segment.saturating_add(1)),
            newest: end.segment,
            epoch: Epoch { number: image.epoch.number.saturating_add(1), life },
            stores: stores.collect(),
            last_store: image.last_store,
            // The log may be long already: count it as written, so that it is tidied soon.
            tidying: Tidying { written: bytes, ..Tidying::default() },
            stats: Stats::default(),
            trouble: None,
        };
        let journal = Self {
            backend,
            durability: config.durability,
            on_error: config.on_error,
            queue: Mutex::new(Queue {
                bytes: Vec::new(),
                starts: Vec::new(),
                last: 0,
                is_on: true,
                is_closed: false,
            }),
            safe: AtomicU64::new(0),
            unsynced: Mutex::new(Unsynced::default()),
            to_sync: Condvar::new(),
            broken: tokio::sync::Notify::new(),
            segment_size,
            etcd: None,
            writer: Mutex::new(writer),
        };
        journal.begin_segment(&mut super::lock(&journal.writer), false).map_err(Failed::Io)?;
        let cut = torn.iter().fold(0_u64, |sum, torn| sum.saturating_add(torn.len));
        Ok((Arc::new(journal), Restored { image, bytes, commits, cut, is_old }))
    }
}

/// Prepares the end of the log, so that the next segment can follow it.
fn tidy_end(backend: &dyn Backend, recovered: &Recovered, numbers: &[u64]) -> io::Result<()> {
    let End { segment: last, .. } = recovered.end;
    // Start with the last one, so that no gap remains if this stops in between.
    for &number in numbers.iter().rev().take_while(|number| **number > last) {
        backend.remove(number)?;
    }
    for torn in recovered.torn.iter().filter(|torn| torn.segment <= last && torn.at > 0) {
        backend.cut(torn.segment, torn.at.into())?;
    }
    Ok(())
}

/// Why the journal of a backend cannot be opened.
#[derive(Debug)]
pub enum Failed {
    /// A file could not be read or written.
    Io(io::Error),
    /// What is in the files is not what was written.
    Damaged(Damage),
}

impl Failed {
    fn at(self, path: &Path, name: impl Fn(u64) -> String) -> CannotOpen {
        match self {
            Self::Io(error) => CannotOpen::Io { path: path.into(), error },
            Self::Damaged(damage) => CannotOpen::Damaged {
                place: path.display().to_string(),
                segment: name(damage.segment),
                damage,
            },
        }
    }
}

/// Stands for the first segment until it is there.
#[derive(Debug)]
struct NoSegment;

impl super::Segment for NoSegment {
    fn append(&self, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

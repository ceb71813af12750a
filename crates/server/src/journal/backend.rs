//! Where segments are kept: a folder, or an etcd ([`super::etcd`]). The journal needs only one small trait of
//! a backend, so that tests can stop a backend at every write.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::RangeInclusive;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use rallypoint_journal::segment::Pieces;

/// Reads segments by their numbers.
pub trait Segments: std::fmt::Debug + Send + Sync {
    /// The numbers of all segments, in rising order.
    fn list(&self) -> io::Result<Vec<u64>>;
    /// All bytes of a segment.
    fn read(&self, number: u64) -> io::Result<Vec<u8>>;
    /// The bytes of a segment, read as they are needed.
    fn pieces(&self, number: u64) -> io::Result<Box<dyn Readable>> {
        Ok(Box::new(InMemory(self.read(number)?.into())))
    }
    /// The name by which people find a segment.
    fn name(&self, number: u64) -> String;
}

/// Writes segments.
pub trait Backend: Segments {
    /// Creates a new, empty segment.
    fn create(&self, number: u64) -> io::Result<Arc<dyn Segment>>;
    /// Waits until a segment survives a loss of power, with its name and all its bytes, whoever wrote them.
    fn sync(&self, number: u64) -> io::Result<()>;
    /// As [`Self::sync`], of bytes that a killed process may have tried to sync in vain: the system says so
    /// once, and then takes them for synced.
    fn write_again(&self, number: u64) -> io::Result<()> {
        self.sync(number)
    }
    /// Cuts a segment to this length.
    fn cut(&self, number: u64, len: u64) -> io::Result<()>;
    /// Removes a segment.
    fn remove(&self, number: u64) -> io::Result<()>;
    /// Checks that these segments are where the next server looks for them.
    fn check(&self, _: RangeInclusive<u64>) -> io::Result<()> {
        Ok(())
    }
    /// Makes the place of the segments usable again. Returns whether it was gone, and all segments with it.
    fn take_again(&self) -> io::Result<bool> {
        Ok(false)
    }
    /// Syncs the last segment, at the end of the server.
    fn close(&self, segment: &dyn Segment) -> io::Result<()> {
        segment.sync()
    }
}

/// A segment that is read.
pub trait Readable: Pieces {
    /// The error that ended the reading early, if there was one.
    fn error(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A segment read as a whole.
struct InMemory(Bytes);

impl Pieces for InMemory {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&mut self, at: usize, most: usize) -> Bytes {
        let end = self.0.len().min(at.saturating_add(most));
        let bytes = self.0.slice(at.min(end)..end);
        let is_most = bytes.len().saturating_mul(8) >= self.0.len().saturating_mul(7);
        if is_most || bytes.len() < LARGE { bytes } else { Bytes::copy_from_slice(&bytes) }
    }
}

impl Readable for InMemory {}

/// Parts of at least this many bytes get a buffer of their own.
const LARGE: usize = 16 * 1024;

/// A file read one window at a time.
struct InWindows {
    file: File,
    len: usize,
    window: Bytes,
    /// Where the window begins in the file.
    at: usize,
    error: Option<io::Error>,
}

impl InWindows {
    const WINDOW: usize = 256 * 1024;

    fn open(file: File) -> io::Result<Box<dyn Readable>> {
        let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        Ok(Box::new(Self { file, len, window: Bytes::new(), at: 0, error: None }))
    }

    fn read(&mut self, at: usize, len: usize) -> Bytes {
        let mut bytes = vec![0; len.min(self.len.saturating_sub(at))];
        match self.file.read_exact_at(&mut bytes, at as u64) {
            Ok(()) => bytes.into(),
            Err(error) => {
                self.error.get_or_insert(error);
                Bytes::new()
            }
        }
    }
}

impl Pieces for InWindows {
    fn len(&self) -> usize {
        self.len
    }

    fn get(&mut self, at: usize, most: usize) -> Bytes {
        let most = most.min(self.len.saturating_sub(at));
        let within = |window: &Bytes, from: usize| {
            let at = at.checked_sub(from)?;
            let end = at.checked_add(most).filter(|end| *end <= window.len())?;
            Some(window.slice(at..end))
        };
        match within(&self.window, self.at) {
            Some(bytes) if most < LARGE => bytes,
            Some(bytes) => Bytes::copy_from_slice(&bytes),
            None if most >= LARGE => self.read(at, most),
            None => {
                self.window = Bytes::new();
                (self.window, self.at) = (self.read(at, Self::WINDOW), at);
                self.window.slice(..most.min(self.window.len()))
            }
        }
    }
}

impl Readable for InWindows {
    fn error(&mut self) -> io::Result<()> {
        self.error.take().map_or(Ok(()), Err)
    }
}

/// The segment under construction.
pub trait Segment: std::fmt::Debug + Send + Sync {
    /// Appends bytes. After an error a part of them may be there.
    fn append(&self, bytes: &[u8]) -> io::Result<()>;
    /// Waits until all written bytes survive a loss of power, provided that the segment's name survives.
    fn sync(&self) -> io::Result<()>;
    /// Ensures that no later write can survive without these bytes.
    fn settle(&self) -> io::Result<()> {
        self.sync()
    }
}

/// Why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NoFolder {
    /// Another process uses it.
    #[error(
        "--journal {}: {holder} writes here; each server needs a folder of its own (or wait until that one \
         has ended)",
        path.display()
    )]
    InUse {
        /// The folder.
        path: PathBuf,
        /// The process that uses it, as far as the lock file says.
        holder: String,
    },
    /// The system refuses access.
    #[error("--journal {}: {error}", path.display())]
    Io {
        /// The folder.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}

/// How long ago a segment in this folder was last written, by the system's clock.
pub fn written_ago(path: &Path) -> Option<Duration> {
    let segments = numbers(path).ok()?.into_iter().map(|number| file(path, number));
    let last = segments.filter_map(|file| file.metadata().ok()?.modified().ok()).max()?;
    SystemTime::now().duration_since(last).ok()
}

const LOCK: &str = "lock";
const EXTENSION: &str = "rows";

/// The path of a segment.
pub(super) fn file(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:012}.{EXTENSION}"))
}

/// The numbers of all segments in a folder, in rising order.
fn numbers(folder: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = PathBuf::from(entry?.file_name());
        if path.extension().is_some_and(|it| it == EXTENSION) {
            numbers.extend(path.file_stem().and_then(|stem| stem.to_str()?.parse::<u64>().ok()));
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Locks the folder for this process. Creates it if it is absent.
fn take(path: &Path) -> Result<File, NoFolder> {
    let failed = |error| NoFolder::Io { path: path.into(), error };
    std::fs::create_dir_all(path).map_err(failed)?;
    let name = path.join(LOCK);
    let lock = OpenOptions::new().create(true).append(true).open(&name).map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let pid = std::fs::read_to_string(&name).unwrap_or_default();
            let holder = match pid.trim() {
                "" => "another process".to_owned(),
                pid => format!("another rallypoint (process {})", rallypoint_protocol::ids::Shown(pid)),
            };
            return Err(NoFolder::InUse { path: path.into(), holder });
        }
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    lock.set_len(0).and_then(|()| writeln!(&lock, "{}", std::process::id())).map_err(failed)?;
    Ok(lock)
}

/// A folder with one file for each segment. The folder belongs to this process while this value lives.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// The open lock file; closing it would release the lock.
    lock: Mutex<File>,
}

impl Folder {
    /// Locks the folder. Creates it if it is absent.
    pub fn take(path: &Path) -> Result<Self, NoFolder> {
        Ok(Self { path: path.into(), lock: Mutex::new(take(path)?) })
    }

    fn file(&self, number: u64) -> PathBuf {
        file(&self.path, number)
    }

    /// Whether the folder with this name is still the one that was locked.
    fn is_ours(&self) -> io::Result<bool> {
        let held = super::lock(&self.lock).metadata()?;
        match self.path.join(LOCK).metadata() {
            Ok(there) => Ok((there.dev(), there.ino()) == (held.dev(), held.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Segments for Folder {
    fn list(&self) -> io::Result<Vec<u64>> {
        numbers(&self.path)
    }

    fn read(&self, number: u64) -> io::Result<Vec<u8>> {
        std::fs::read(self.file(number))
    }

    fn pieces(&self, number: u64) -> io::Result<Box<dyn Readable>> {
        InWindows::open(File::open(self.file(number))?)
    }

    fn name(&self, number: u64) -> String {
        self.file(number).display().to_string()
    }
}

impl Backend for Folder {
    fn create(&self, number: u64) -> io::Result<Arc<dyn Segment>> {
        let file = OpenOptions::new().create(true).append(true).open(self.file(number))?;
        // Removes what an earlier attempt on a full disk may have left. Do not cut an empty file: ext4 writes
        // out a file when it is closed after a cut to zero. Then the start of the next segment would wait for
        // the whole of this one.
        if file.metadata()?.len() > 0 {
            file.set_len(0)?;
        }
        Ok(Arc::new(Written { file, cannot_sync: Mutex::new(false) }))
    }

    fn sync(&self, number: u64) -> io::Result<()> {
        File::open(self.file(number))?.sync_all()?;
        File::open(&self.path)?.sync_all()
    }

    fn write_again(&self, number: u64) -> io::Result<()> {
        const PIECE: usize = 1 << 20;
        let file = OpenOptions::new().read(true).write(true).open(self.file(number))?;
        let (mut piece, mut at) = (vec![0; PIECE], 0);
        loop {
            let read = file.read_at(&mut piece, at)?;
            if read == 0 {
                return self.sync(number);
            }
            file.write_all_at(piece.get(..read).unwrap_or_default(), at)?;
            at = at.saturating_add(read as u64);
        }
    }

    fn cut(&self, number: u64, len: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.file(number))?;
        file.set_len(len)?;
        file.sync_all()
    }

    fn remove(&self, number: u64) -> io::Result<()> {
        std::fs::remove_file(self.file(number))
    }

    fn check(&self, mut numbers: RangeInclusive<u64>) -> io::Result<()> {
        let gone = |path: &Path| io::Error::other(format!("{} was removed", path.display()));
        if !self.is_ours()? {
            return Err(gone(&self.path));
        }
        let missing = numbers.find(|&number| {
            self.file(number).metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        });
        missing.map_or(Ok(()), |number| Err(gone(&self.file(number))))
    }

    fn take_again(&self) -> io::Result<bool> {
        if self.is_ours()? {
            return Ok(false);
        }
        let lock = take(&self.path).map_err(io::Error::other)?;
        if numbers(&self.path)?.is_empty() {
            *super::lock(&self.lock) = lock;
            return Ok(true);
        }
        Err(io::Error::other(format!("{} is the folder of another journal now", self.path.display())))
    }
}

/// The file of the segment under construction.
#[derive(Debug)]
struct Written {
    file: File,
    /// Set after a failed sync: bytes may be lost. The system reports the error only once, and drops the
    /// bytes.
    cannot_sync: Mutex<bool>,
}

impl Segment for Written {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut file = &self.file;
        file.write_all(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        // Held during the sync: of two threads that sync at the same time, only one hears of an error.
        let mut cannot_sync = super::lock(&self.cannot_sync);
        if *cannot_sync {
            return Err(io::Error::other("what was written before could not be synced"));
        }
        let synced = self.file.sync_data();
        *cannot_sync = synced.is_err();
        synced
    }
}

/// The segments of a folder at one moment, whoever writes there. They can be read to their ends even if they
/// are removed meanwhile.
#[derive(Debug)]
pub struct Look {
    path: PathBuf,
    files: BTreeMap<u64, File>,
}

impl Look {
    /// Opens all segments in a folder.
    pub fn at(path: &Path) -> io::Result<Self> {
        /// Each failed attempt means that a segment came or went meanwhile.
        const ATTEMPTS: usize = 1000;
        for _ in 0..ATTEMPTS {
            let listed = numbers(path)?;
            let opened = listed.iter().map(|&number| Ok((number, File::open(file(path, number))?)));
            match opened.collect::<io::Result<_>>() {
                Ok(files) if numbers(path)? == listed => return Ok(Self { path: path.into(), files }),
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Err(io::Error::other("segments come and go faster than they can be opened"))
    }
}

impl Segments for Look {
    fn list(&self) -> io::Result<Vec<u64>> {
        Ok(self.files.keys().copied().collect())
    }

    fn read(&self, number: u64) -> io::Result<Vec<u8>> {
        let mut file = self.files.get(&number).ok_or(io::ErrorKind::NotFound)?;
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut bytes))?;
        Ok(bytes)
    }

    fn pieces(&self, number: u64) -> io::Result<Box<dyn Readable>> {
        InWindows::open(self.files.get(&number).ok_or(io::ErrorKind::NotFound)?.try_clone()?)
    }

    fn name(&self, number: u64) -> String {
        file(&self.path, number).display().to_string()
    }
}

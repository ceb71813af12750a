//! Where segments are: a folder, or an etcd ([`super::etcd`]). What the journal needs of it is one small trait, so that
//! tests can stop it at every write.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Keeps segments by their numbers.
pub trait Backend: std::fmt::Debug + Send + Sync {
    /// The numbers of all segments, rising.
    fn list(&self) -> io::Result<Vec<u64>>;
    /// All bytes of a segment.
    fn read(&self, number: u64) -> io::Result<Vec<u8>>;
    /// A new, empty segment.
    fn create(&self, number: u64) -> io::Result<Arc<dyn Segment>>;
    /// Waits until a segment survives a loss of power, with its name and all that it holds, whoever wrote it.
    fn sync(&self, number: u64) -> io::Result<()>;
    /// Cuts a segment to this length.
    fn cut(&self, number: u64, len: u64) -> io::Result<()>;
    /// Removes a segment.
    fn remove(&self, number: u64) -> io::Result<()>;
    /// How people find a segment.
    fn name(&self, number: u64) -> String;
    /// Syncs the last segment, at the end of the server.
    fn close(&self, segment: &dyn Segment) -> io::Result<()> {
        segment.sync()
    }
}

/// The segment that is written.
pub trait Segment: std::fmt::Debug + Send + Sync {
    /// Writes bytes at its end. After an error some of them may be there.
    fn append(&self, bytes: &[u8]) -> io::Result<()>;
    /// Waits until all that was written survives a loss of power, where the segment's name does.
    fn sync(&self) -> io::Result<()>;
    /// Sees to it that nothing that is written from now on survives without it.
    fn settle(&self) -> io::Result<()> {
        self.sync()
    }
}

/// Why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NoFolder {
    /// Another process has it.
    #[error(
        "--journal {}: {holder} writes here; each server needs a folder of its own (or wait until that one has ended)",
        path.display()
    )]
    InUse {
        /// The folder.
        path: PathBuf,
        /// Who has it, as far as the lock file says.
        holder: String,
    },
    /// The system refuses it.
    #[error("--journal {}: {error}", path.display())]
    Io {
        /// The folder.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}

/// How long ago a segment in this folder was written last, by the system's clock.
pub fn written_ago(path: &Path) -> Option<Duration> {
    let folder = Folder::look(path);
    let segments = folder.list().ok()?.into_iter().map(|number| folder.file(number));
    let last = segments.filter_map(|file| file.metadata().ok()?.modified().ok()).max()?;
    SystemTime::now().duration_since(last).ok()
}

/// A folder with one file for each segment. It is this process's own for as long as this value lives.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Held, so that the lock is.
    _lock: Option<File>,
}

impl Folder {
    const LOCK: &str = "lock";
    const EXTENSION: &str = "rows";

    /// Takes the folder, which is made if it is not there.
    pub fn take(path: &Path) -> Result<Self, NoFolder> {
        let failed = |error| NoFolder::Io { path: path.into(), error };
        std::fs::create_dir_all(path).map_err(failed)?;
        let name = path.join(Self::LOCK);
        let lock = OpenOptions::new().create(true).append(true).open(&name).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let pid = std::fs::read_to_string(&name).unwrap_or_default();
                let holder = match pid.trim() {
                    "" => "another process".to_owned(),
                    pid => format!("another rallypoint (process {})", crate::core::ids::Shown(pid)),
                };
                return Err(NoFolder::InUse { path: path.into(), holder });
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        lock.set_len(0).and_then(|()| writeln!(&lock, "{}", std::process::id())).map_err(failed)?;
        Ok(Self { path: path.into(), _lock: Some(lock) })
    }

    /// Only to read, whoever writes there.
    pub fn look(path: &Path) -> Self {
        Self { path: path.into(), _lock: None }
    }

    /// The file of a segment.
    pub(super) fn file(&self, number: u64) -> PathBuf {
        self.path.join(format!("{number:012}.{}", Self::EXTENSION))
    }
}

impl Backend for Folder {
    fn list(&self) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let path = PathBuf::from(entry?.file_name());
            if path.extension().is_some_and(|it| it == Self::EXTENSION) {
                numbers.extend(path.file_stem().and_then(|stem| stem.to_str()?.parse::<u64>().ok()));
            }
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn read(&self, number: u64) -> io::Result<Vec<u8>> {
        std::fs::read(self.file(number))
    }

    fn create(&self, number: u64) -> io::Result<Arc<dyn Segment>> {
        let file = OpenOptions::new().create(true).append(true).open(self.file(number))?;
        // What an attempt on a full disk may have left. A file that was cut to nothing, even an empty one, ext4 writes out when
        // it is closed, so whoever begins the next segment would wait for all of this one.
        if file.metadata()?.len() > 0 {
            file.set_len(0)?;
        }
        Ok(Arc::new(file))
    }

    fn sync(&self, number: u64) -> io::Result<()> {
        File::open(self.file(number))?.sync_all()?;
        File::open(&self.path)?.sync_all()
    }

    fn cut(&self, number: u64, len: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.file(number))?;
        file.set_len(len)?;
        file.sync_all()
    }

    fn remove(&self, number: u64) -> io::Result<()> {
        std::fs::remove_file(self.file(number))
    }

    fn name(&self, number: u64) -> String {
        self.file(number).display().to_string()
    }
}

impl Segment for File {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut file = self;
        file.write_all(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

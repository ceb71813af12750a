//! A backend for tests that stops at any of its steps, and shows what a killed process or a cut of power leaves of it.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use super::backend::{Backend, Segment, Segments};

/// One file: what was written, and how much of it is sure to survive.
#[derive(Debug, Clone, Default)]
struct File {
    bytes: Vec<u8>,
    synced: usize,
    /// What could not be synced. The system has said so, and syncs it never again.
    dropped: Vec<Range<usize>>,
}

/// What the disk cannot do at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    Create,
    Remove,
    Sync,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<u64, File>,
    /// What was under a name before it was given or taken away, since names were synced last.
    renamed: Vec<(u64, Option<File>)>,
    /// Steps until the machine stops.
    steps: Option<usize>,
    stopped: bool,
    /// Bytes that all files may have.
    capacity: Option<usize>,
    refused: Option<Refused>,
}

impl State {
    /// Whether this step still happens.
    fn step(&mut self) -> bool {
        match &mut self.steps {
            Some(0) => self.stopped = true,
            Some(left) => *left -= 1,
            None => {}
        }
        !self.stopped
    }

    /// Whether this step happens, as one that may be refused.
    fn begin(&mut self, what: Refused) -> io::Result<()> {
        let happens = self.step() && self.refused != Some(what);
        if happens { Ok(()) } else { Err(stopped()) }
    }

    fn used(&self) -> usize {
        self.files.values().map(|file| file.bytes.len()).sum()
    }

    fn put(&mut self, number: u64, file: Option<File>) {
        let before = match file {
            Some(file) => self.files.insert(number, file),
            None => self.files.remove(&number),
        };
        self.renamed.push((number, before));
    }

    fn sync(&mut self, number: u64) -> io::Result<()> {
        let refused = self.begin(Refused::Sync);
        let file = self.files.get_mut(&number).ok_or(io::ErrorKind::NotFound)?;
        let new = file.synced..file.bytes.len();
        if !self.stopped {
            file.synced = new.end;
            file.dropped.extend(refused.is_err().then_some(new));
        }
        refused
    }
}

/// A disk in memory. Clones are the same disk.
#[derive(Debug, Clone, Default)]
pub(crate) struct Disk(Arc<Mutex<State>>);

fn stopped() -> io::Error {
    io::Error::other("stopped")
}

impl Disk {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().expect("not poisoned")
    }

    /// Stops after so many steps; the one at which it stops happens in part.
    pub(crate) fn stopping_after(steps: usize) -> Self {
        let disk = Self::default();
        disk.stop_after(steps);
        disk
    }

    /// The same from now on.
    pub(crate) fn stop_after(&self, steps: usize) {
        self.state().steps = Some(steps);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.state().stopped
    }

    /// Only so many bytes more fit.
    pub(crate) fn limit(&self, room: Option<usize>) {
        let mut state = self.state();
        state.capacity = room.map(|room| state.used() + room);
    }

    /// Bytes of all files.
    pub(crate) fn used(&self) -> usize {
        self.state().used()
    }

    /// Cannot do this from now on.
    pub(crate) fn refuse(&self, what: Option<Refused>) {
        self.state().refused = what;
    }

    /// What there is after the process was killed: all that it wrote.
    pub(crate) fn after_kill(&self) -> Self {
        let files = self.state().files.clone();
        Self(Arc::new(Mutex::new(State { files, ..State::default() })))
    }

    /// What there is after a loss of power: what was synced, and of the rest each block of 8 bytes that `kept` says. Of names
    /// it is what was done up to some moment.
    pub(crate) fn after_power_cut(&self, mut kept: impl FnMut() -> bool) -> Self {
        let disk = self.after_kill();
        let mut state = disk.state();
        let renamed = self.state().renamed.clone();
        let names = renamed.iter().take_while(|_| kept()).count();
        for (number, before) in renamed.into_iter().skip(names).rev() {
            state.put(number, before);
        }
        for file in state.files.values_mut() {
            for range in std::mem::take(&mut file.dropped) {
                file.bytes[range].chunks_mut(8).filter(|_| !kept()).for_each(|block| block.fill(0));
            }
            let unsynced = &mut file.bytes[file.synced..];
            let mut end = 0;
            for (n, block) in unsynced.chunks_mut(8).enumerate() {
                if kept() {
                    end = n * 8 + block.len();
                } else {
                    block.fill(0);
                }
            }
            file.bytes.truncate(file.synced + end);
            file.synced = file.bytes.len();
        }
        state.renamed.clear();
        drop(state);
        disk
    }
}

impl Segments for Disk {
    fn list(&self) -> io::Result<Vec<u64>> {
        Ok(self.state().files.keys().copied().collect())
    }

    fn read(&self, number: u64) -> io::Result<Vec<u8>> {
        self.state().files.get(&number).map(|file| file.bytes.clone()).ok_or_else(stopped)
    }

    fn name(&self, number: u64) -> String {
        number.to_string()
    }
}

impl Backend for Disk {
    fn create(&self, number: u64) -> io::Result<Arc<dyn Segment>> {
        let mut state = self.state();
        state.begin(Refused::Create)?;
        state.put(number, Some(File::default()));
        Ok(Arc::new(Open { disk: self.clone(), number }))
    }

    fn sync(&self, number: u64) -> io::Result<()> {
        let mut state = self.state();
        state.sync(number)?;
        state.renamed.clear();
        Ok(())
    }

    fn cut(&self, number: u64, len: u64) -> io::Result<()> {
        let mut state = self.state();
        if !state.step() {
            return Err(stopped());
        }
        let file = state.files.get_mut(&number).ok_or(io::ErrorKind::NotFound)?;
        let len = file.bytes.len().min(len as usize);
        file.bytes.truncate(len);
        file.dropped.retain(|range| range.end <= len);
        file.synced = len;
        Ok(())
    }

    fn remove(&self, number: u64) -> io::Result<()> {
        let mut state = self.state();
        state.begin(Refused::Remove)?;
        if !state.files.contains_key(&number) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.put(number, None);
        Ok(())
    }
}

#[derive(Debug)]
struct Open {
    disk: Disk,
    number: u64,
}

impl Segment for Open {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.state();
        let was_stopped = state.stopped;
        let room = state.capacity.map_or(usize::MAX, |capacity| capacity.saturating_sub(state.used()));
        let fits = room.min(bytes.len());
        let whole = state.step() && fits == bytes.len();
        // Half of it, where it stops here.
        let part = if state.stopped { bytes.len() / 2 } else { fits };
        if let Some(file) = state.files.get_mut(&self.number).filter(|_| !was_stopped) {
            file.bytes.extend_from_slice(&bytes[..part]);
        }
        if whole { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.state().sync(self.number)
    }
}

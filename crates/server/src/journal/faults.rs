//! A backend for tests. It can stop at any step, and shows what remains after a killed process or a loss of
//! power.

#![expect(missing_docs, reason = "it is there for tests only")]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_wrap,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::unwrap_used,
    reason = "it is there for tests only"
)]

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use super::backend::{Backend, Segment, Segments};

/// One file: its bytes, and how many of them are sure to survive.
#[derive(Debug, Clone, Default)]
struct File {
    bytes: Vec<u8>,
    synced: usize,
    /// Bytes that could not be synced. The system reported the error once, and never syncs them again.
    dropped: Vec<Range<usize>>,
}

/// An operation that the disk refuses at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    Create,
    Remove,
    Sync,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<u64, File>,
    /// The files whose names changed since names were last synced, as they were before.
    renamed: Vec<(u64, Option<File>)>,
    /// Steps until the machine stops.
    steps: Option<usize>,
    stopped: bool,
    /// The most bytes of all files together.
    capacity: Option<usize>,
    refused: Option<Refused>,
}

impl State {
    /// Counts a step; returns whether it still happens.
    fn step(&mut self) -> bool {
        match &mut self.steps {
            Some(0) => self.stopped = true,
            Some(left) => *left -= 1,
            None => {}
        }
        !self.stopped
    }

    /// Like [`Self::step`], for an operation that the disk may refuse.
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
pub struct Disk(Arc<Mutex<State>>);

fn stopped() -> io::Error {
    io::Error::other("stopped")
}

impl Disk {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().expect("not poisoned")
    }

    /// Stops after this many steps. The step at which it stops happens in part.
    pub fn stopping_after(steps: usize) -> Self {
        let disk = Self::default();
        disk.stop_after(steps);
        disk
    }

    /// From now on stops after this many steps.
    pub fn stop_after(&self, steps: usize) {
        self.state().steps = Some(steps);
    }

    pub fn is_stopped(&self) -> bool {
        self.state().stopped
    }

    /// From now on only this many more bytes fit.
    pub fn limit(&self, room: Option<usize>) {
        let mut state = self.state();
        state.capacity = room.map(|room| state.used() + room);
    }

    /// Bytes of all files.
    pub fn used(&self) -> usize {
        self.state().used()
    }

    /// From now on refuses this operation.
    pub fn refuse(&self, what: Option<Refused>) {
        self.state().refused = what;
    }

    /// The disk after the process was killed: it has all written bytes.
    #[must_use]
    pub fn after_kill(&self) -> Self {
        let files = self.state().files.clone();
        Self(Arc::new(Mutex::new(State { files, ..State::default() })))
    }

    /// The disk after a loss of power. It has all synced bytes. Of the others, it has each block of 8 bytes
    /// for which `kept` returns true. Changes of names survive up to some moment.
    #[must_use]
    pub fn after_power_cut(&self, mut kept: impl FnMut() -> bool) -> Self {
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

    fn write_again(&self, number: u64) -> io::Result<()> {
        self.sync(number)?;
        self.state().files.get_mut(&number).ok_or(io::ErrorKind::NotFound)?.dropped.clear();
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
        // Half of the bytes, if the disk stops here.
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

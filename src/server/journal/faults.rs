//! A backend for tests that stops at any of its steps, and shows what a killed process or a cut of power leaves of it.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use super::backend::{Backend, Segment};

/// One file: what was written, and how much of it is sure to survive.
#[derive(Debug, Clone, Default)]
struct File {
    bytes: Vec<u8>,
    synced: usize,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<u64, File>,
    /// Steps until the machine stops.
    steps: Option<usize>,
    stopped: bool,
    /// Bytes that still fit.
    room: Option<usize>,
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
        self.state().room = room;
    }

    /// What there is after the process was killed: all that it wrote.
    pub(crate) fn after_kill(&self) -> Self {
        let files = self.state().files.clone();
        Self(Arc::new(Mutex::new(State { files, ..State::default() })))
    }

    /// What there is after a loss of power: what was synced, and of the rest each block of 8 bytes that `kept` says.
    pub(crate) fn after_power_cut(&self, mut kept: impl FnMut() -> bool) -> Self {
        let disk = self.after_kill();
        for file in disk.state().files.values_mut() {
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
        }
        disk
    }
}

impl Backend for Disk {
    fn list(&self) -> io::Result<Vec<u64>> {
        Ok(self.state().files.keys().copied().collect())
    }

    fn read(&self, number: u64) -> io::Result<Vec<u8>> {
        self.state().files.get(&number).map(|file| file.bytes.clone()).ok_or_else(stopped)
    }

    fn create(&self, number: u64) -> io::Result<Arc<dyn Segment>> {
        let mut state = self.state();
        if !state.step() {
            return Err(stopped());
        }
        state.files.insert(number, File::default());
        Ok(Arc::new(Open { disk: self.clone(), number }))
    }

    fn sync(&self, number: u64) -> io::Result<()> {
        let mut state = self.state();
        if !state.step() {
            return Err(stopped());
        }
        let file = state.files.get_mut(&number).ok_or_else(stopped)?;
        file.synced = file.bytes.len();
        Ok(())
    }

    fn cut(&self, number: u64, len: u64) -> io::Result<()> {
        let mut state = self.state();
        if !state.step() {
            return Err(stopped());
        }
        let file = state.files.get_mut(&number).ok_or_else(stopped)?;
        file.bytes.truncate(len as usize);
        file.synced = file.bytes.len();
        Ok(())
    }

    fn remove(&self, number: u64) -> io::Result<()> {
        let mut state = self.state();
        if !state.step() {
            return Err(stopped());
        }
        state.files.remove(&number).map(drop).ok_or_else(stopped)
    }

    fn name(&self, number: u64) -> String {
        number.to_string()
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
        let fits = state.room.unwrap_or(usize::MAX).min(bytes.len());
        let whole = state.step() && fits == bytes.len();
        // Half of it, where it stops here.
        let part = if state.stopped { bytes.len() / 2 } else { fits };
        if let Some(file) = state.files.get_mut(&self.number).filter(|_| !was_stopped) {
            file.bytes.extend_from_slice(&bytes[..part]);
        }
        if let Some(room) = &mut state.room {
            *room -= fits;
        }
        if whole { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.sync(self.number)
    }
}

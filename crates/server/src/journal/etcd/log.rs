//! The segments of a journal as keys of etcd: `PREFIX/segments/NUMBER/AT` holds the bytes of segment `NUMBER`
//! from `AT` on. Appended bytes gather in memory, and each sync writes them all, in order.
//!
//! A commit may take several transactions, as etcd allows 1.5 MiB in one. If only a part of the last commit
//! is there, the next start removes it.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::super::{Backend, Segment, Segments, lock};
use super::wire::{Range, base64, number, range};
use super::{ATTEMPT, Etcd, PAUSE, READ};

/// etcd allows 1.5 MiB in one request. Unit tests use a tiny limit, so that even a small commit takes several
/// transactions.
const CHUNK: usize = if cfg!(test) { 64 } else { 1 << 20 };
/// Most bytes of values in one answer.
const PAGE: u64 = 4 * CHUNK as u64;
/// Most keys in one answer.
const KEYS: usize = if cfg!(test) { 3 } else { 10_000 };

/// A change that is not written yet.
#[derive(Debug)]
enum Change {
    /// Bytes of a segment, from a position on.
    Put { segment: u64, at: u64, bytes: Vec<u8> },
    /// Removes the bytes of a segment from a position on.
    Delete { segment: u64, from: u64 },
}

/// The journal of the leader, or a reader's view of it.
#[derive(Debug, Clone)]
pub struct Log(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    etcd: Arc<Etcd>,
    /// The revision that a reader sees; 0 until its first answer. `None` for the leader.
    look: Option<Mutex<u64>>,
    changes: Mutex<VecDeque<Change>>,
    /// Held while changes are written: a part of them is only useful if their order is kept.
    writing: Mutex<()>,
}

impl Log {
    /// Reads and writes, as the leader.
    pub fn of_leader(etcd: &Arc<Etcd>) -> Self {
        Self::new(etcd, None)
    }

    /// Reads only, whoever writes there.
    pub fn look(etcd: &Arc<Etcd>) -> Self {
        Self::new(etcd, Some(Mutex::default()))
    }

    fn new(etcd: &Arc<Etcd>, look: Option<Mutex<u64>>) -> Self {
        let (changes, writing) = (Mutex::default(), Mutex::default());
        Self(Arc::new(Inner { etcd: Arc::clone(etcd), look, changes, writing }))
    }
}

impl Inner {
    fn segments(&self) -> String {
        format!("{}/segments/", self.etcd.config.prefix)
    }

    /// Fixed width, so that keys sort by their numbers.
    fn key(&self, segment: u64, at: u64) -> String {
        format!("{}{segment:016x}/{at:08x}", self.segments())
    }

    /// The end of a segment's range of keys.
    fn end(&self, segment: u64) -> String {
        // `0` sorts behind `/`.
        format!("{}{segment:016x}0", self.segments())
    }

    /// A key's segment and position.
    fn place(&self, key: &str) -> Option<(u64, u64)> {
        let (segment, at) = key.strip_prefix(&self.segments())?.split_once('/')?;
        Some((u64::from_str_radix(segment, 16).ok()?, u64::from_str_radix(at, 16).ok()?))
    }

    /// Reads keys. The leader retries until etcd answers; a reader gives up after some attempts.
    fn range(&self, mut body: Value) -> io::Result<Range> {
        let mut revision = self.look.as_ref().map(lock);
        if let Some(revision) = revision.as_deref().filter(|revision| **revision > 0) {
            body["revision"] = revision.to_string().into();
        }
        let mut attempts = self.etcd.config.members.len().max(3);
        loop {
            let (etcd, body) = (Arc::clone(&self.etcd), body.clone());
            let asked = async move { etcd.client.lock().await.ask::<Range>(READ, &body, ATTEMPT).await };
            let error = match self.etcd.wait(asked)? {
                Ok(found) => {
                    // Later reads keep the revision of the first answer: by then, segments that it listed may
                    // be gone.
                    if let Some(revision) = revision.as_deref_mut().filter(|revision| **revision == 0) {
                        *revision = number(&found.header.revision);
                    }
                    return Ok(found);
                }
                Err(error) => error,
            };
            self.etcd.standing.failed(&error);
            attempts = attempts.saturating_sub(1);
            if let Some(lost) = self.etcd.standing.lost() {
                return Err(io::Error::other(lost));
            }
            if self.look.is_some() && attempts == 0 {
                return Err(io::Error::other(error));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The positions where the parts of a segment begin.
    fn parts(&self, segment: u64) -> io::Result<Vec<u64>> {
        let mut parts: Vec<u64> = Vec::new();
        loop {
            let from = parts.last().map_or(0, |last| last.saturating_add(1));
            let mut body = range(&self.key(segment, from), Some(&self.end(segment)));
            body["keys_only"] = true.into();
            body["limit"] = KEYS.to_string().into();
            let found = self.range(body)?;
            parts.extend(found.kvs.iter().filter_map(|it| Some(self.place(&it.key())?.1)));
            if found.kvs.len() < KEYS {
                return Ok(parts);
            }
        }
    }

    /// Reads the bytes of a segment from one part up to another.
    fn read_parts(&self, segment: u64, from: u64, to: Option<u64>, bytes: &mut Vec<u8>) -> io::Result<()> {
        let end = to.map_or_else(|| self.end(segment), |to| self.key(segment, to));
        for it in self.range(range(&self.key(segment, from), Some(&end)))?.kvs {
            let at = self.place(&it.key()).map(|(_, at)| at);
            if at != Some(bytes.len() as u64) {
                let what = format!("a part of segment {segment} is missing at byte {}", bytes.len());
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            bytes.extend(it.value());
        }
        Ok(())
    }

    /// Writes all gathered changes.
    fn write(&self) -> io::Result<()> {
        let _one_at_a_time = lock(&self.writing);
        let changes = std::mem::take(&mut *lock(&self.changes));
        let mut puts = Vec::new();
        for change in changes {
            match change {
                Change::Put { segment, at, bytes } => self.gather(&mut puts, segment, at, &bytes)?,
                Change::Delete { segment, from } => {
                    self.put(&mut puts)?;
                    let (key, end) = (self.key(segment, from), self.end(segment));
                    self.transact(vec![json!({ "request_delete_range": range(&key, Some(&end)) })])?;
                }
            }
        }
        self.put(&mut puts)
    }

    /// Adds bytes to the next transaction. Sends it when it is full.
    fn gather(
        &self,
        puts: &mut Vec<(u64, u64, Vec<u8>)>,
        segment: u64,
        mut at: u64,
        mut bytes: &[u8],
    ) -> io::Result<()> {
        while !bytes.is_empty() {
            let held = puts.iter().fold(0_usize, |sum, (.., bytes)| sum.saturating_add(bytes.len()));
            if held >= CHUNK {
                self.put(puts)?;
                continue;
            }
            let (some, rest) = bytes.split_at(bytes.len().min(CHUNK.saturating_sub(held)));
            match puts.last_mut().filter(|last| last.0 == segment) {
                Some((.., last)) => last.extend_from_slice(some),
                None => puts.push((segment, at, some.to_vec())),
            }
            at = at.saturating_add(some.len() as u64);
            bytes = rest;
        }
        Ok(())
    }

    fn put(&self, puts: &mut Vec<(u64, u64, Vec<u8>)>) -> io::Result<()> {
        let put = |(segment, at, bytes): (u64, u64, Vec<u8>)| {
            json!({
                "request_put": { "key": base64(self.key(segment, at)), "value": base64(bytes) }
            })
        };
        let puts: Vec<Value> = std::mem::take(puts).into_iter().map(put).collect();
        if puts.is_empty() { Ok(()) } else { self.transact(puts) }
    }

    fn transact(&self, changes: Vec<Value>) -> io::Result<()> {
        let etcd = Arc::clone(&self.etcd);
        self.etcd.wait(async move { etcd.transact(&changes).await })?.map_err(io::Error::other)
    }

    fn push(&self, change: Change) -> io::Result<()> {
        if let Some(lost) = self.etcd.standing.lost() {
            return Err(io::Error::other(lost));
        }
        lock(&self.changes).push_back(change);
        Ok(())
    }
}

impl Segments for Log {
    fn name(&self, number: u64) -> String {
        format!("etcd's keys {}{number:016x}/", self.0.segments())
    }

    fn list(&self) -> io::Result<Vec<u64>> {
        let inner = &self.0;
        let mut numbers: Vec<u64> = Vec::new();
        loop {
            let from = numbers.last().map_or_else(|| inner.segments(), |last| inner.end(*last));
            let end = format!("{}/segments0", inner.etcd.config.prefix);
            let mut body = range(&from, Some(&end));
            body["keys_only"] = true.into();
            body["limit"] = "1".into();
            let found = inner.range(body)?;
            let Some(first) = found.kvs.first() else { return Ok(numbers) };
            let key = first.key();
            let Some((number, _)) = inner.place(&key) else {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("`{key}` is not the journal's"),
                ));
            };
            numbers.push(number);
        }
    }

    fn read(&self, number: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let parts = self.0.parts(number)?;
        let mut from = parts.first().copied();
        let mut rest = parts.into_iter().skip(1).peekable();
        while let Some(first) = from {
            let mut to = rest.next();
            while to.is_some_and(|to| to.saturating_sub(first) < PAGE.saturating_sub(CHUNK as u64)) {
                to = rest.next();
            }
            self.0.read_parts(number, first, to, &mut bytes)?;
            from = to;
        }
        Ok(bytes)
    }
}

impl Backend for Log {
    fn create(&self, number: u64) -> io::Result<Arc<dyn Segment>> {
        Ok(Arc::new(Open { log: self.clone(), number, at: Mutex::new(0) }))
    }

    fn sync(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn cut(&self, number: u64, len: u64) -> io::Result<()> {
        let parts = self.0.parts(number)?;
        self.0.push(Change::Delete { segment: number, from: len })?;
        if let Some(&at) = parts.iter().rev().find(|at| **at < len) {
            let mut bytes = vec![0; usize::try_from(at).unwrap_or(0)];
            let behind = parts.into_iter().find(|it| *it > at);
            self.0.read_parts(number, at, behind, &mut bytes)?;
            let part =
                bytes.get(usize::try_from(at).unwrap_or(0)..usize::try_from(len).unwrap_or(usize::MAX));
            if let Some(bytes) = part.map(<[u8]>::to_vec) {
                self.0.push(Change::Put { segment: number, at, bytes })?;
            }
        }
        Ok(())
    }

    fn remove(&self, number: u64) -> io::Result<()> {
        self.0.push(Change::Delete { segment: number, from: 0 })
    }

    fn close(&self, _: &dyn Segment) -> io::Result<()> {
        self.0.etcd.hurry();
        let written = self.0.write();
        let etcd = Arc::clone(&self.0.etcd);
        self.0.etcd.wait(async move { etcd.resign().await })?;
        written
    }
}

/// The segment under construction.
#[derive(Debug)]
struct Open {
    log: Log,
    number: u64,
    /// Its length.
    at: Mutex<u64>,
}

impl Segment for Open {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut at = lock(&self.at);
        self.log.0.push(Change::Put { segment: self.number, at: *at, bytes: bytes.to_vec() })?;
        *at = at.saturating_add(bytes.len() as u64);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.log.0.write()
    }

    fn settle(&self) -> io::Result<()> {
        // Later bytes are written behind these ones.
        Ok(())
    }
}

//! The lower bound for the figures of docs/performance.md: a server that makes the system calls of each
//! request and connection, and hardly anything else. It has one thread, epoll, no limits and no error
//! handling: any problem ends it. It answers the requests that `rallypoint bench` sends in `rtt`, `mix`,
//! `init`, `fanout`, `leave` and `big` (one key).
//!
//! `cargo build --profile dist --example floor`; then `benches/scale --only floor` starts it beside
//! rallypoint. Its only argument is the file for its port.

use std::collections::HashMap;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::sockopt::set_tcp_nodelay;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send};

const LISTENER: u64 = u64::MAX;
const READ_AT_ONCE: usize = 64 * 1024;

#[derive(Default)]
struct Store {
    /// Each value with the buffer in which it came, and where it starts there.
    values: HashMap<Vec<u8>, (Vec<u8>, usize)>,
    numbers: HashMap<Vec<u8>, i64>,
    /// The waiting clients, by missing key.
    waiters: HashMap<Vec<u8>, Vec<usize>>,
}

/// The fields of a request; `None` if the request is not complete.
struct Fields<'a> {
    input: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let bytes = self.input.get(self.at..self.at.checked_add(len)?)?;
        self.at += len;
        Some(bytes)
    }

    fn number(&mut self) -> Option<i64> {
        self.take(8)?.try_into().ok().map(i64::from_le_bytes)
    }

    fn text(&mut self) -> Option<&'a [u8]> {
        let len = self.number()?;
        self.take(usize::try_from(len).ok()?)
    }

    fn texts(&mut self) -> Option<Vec<&'a [u8]>> {
        (0..self.number()?).map(|_| self.text()).collect()
    }
}

impl Store {
    fn has(&self, key: &[u8]) -> bool {
        self.values.contains_key(key) || self.numbers.contains_key(key)
    }

    /// Keeps the buffer of a SET with a large value, if nothing else is in it. A small value is copied like
    /// any other.
    fn keep(&mut self, input: &mut Vec<u8>) {
        let mut fields = Fields { input, at: 0 };
        if input.len() > READ_AT_ONCE
            && fields.take(1) == Some(&[1])
            && let Some(key) = fields.text().map(<[u8]>::to_vec)
            && fields.number().and_then(|len| usize::try_from(len).ok()) == Some(input.len() - fields.at)
        {
            let start = fields.at;
            self.values.insert(key, (std::mem::take(input), start));
        }
    }

    /// Serves the first request and returns its length, if it is complete. Clients whose wait ends go into
    /// `released`.
    fn serve(
        &mut self,
        who: usize,
        input: &[u8],
        out: &mut Vec<u8>,
        released: &mut Vec<usize>,
    ) -> Option<usize> {
        let mut fields = Fields { input, at: 0 };
        match fields.take(1)?[0] {
            0 => drop(fields.take(4)?),
            1 => {
                let (key, value) = (fields.text()?, fields.text()?);
                self.values.insert(key.to_vec(), (value.to_vec(), 0));
                released.extend(self.waiters.remove(key).into_iter().flatten());
            }
            3 => {
                let (bytes, start) = &self.values[fields.text()?];
                let value = &bytes[*start..];
                out.extend_from_slice(&value.len().to_le_bytes());
                out.extend_from_slice(value);
            }
            4 => {
                let (key, delta) = (fields.text()?, fields.number()?);
                let sum = self.numbers.get(key).copied().unwrap_or_default() + delta;
                self.numbers.insert(key.to_vec(), sum);
                out.extend_from_slice(&sum.to_le_bytes());
            }
            5 => out.push(u8::from(!fields.texts()?.iter().all(|key| self.has(key)))),
            6 => match fields.texts()?.iter().find(|key| !self.has(key)) {
                None => out.push(0),
                Some(missing) => self.waiters.entry(missing.to_vec()).or_default().push(who),
            },
            7 => out.extend_from_slice(&(self.values.len() + self.numbers.len()).to_le_bytes()),
            8 => {
                let key = fields.text()?;
                let was_there = self.values.remove(key).is_some() | self.numbers.remove(key).is_some();
                out.extend_from_slice(&i64::from(was_there).to_le_bytes());
            }
            13 => out.extend_from_slice(fields.take(4)?),
            other => panic!("operation {other} is not for this server"),
        }
        Some(fields.at)
    }
}

/// A client's socket, and the start of an unfinished request.
struct Client(OwnedFd, Vec<u8>);

fn main() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    set_tcp_nodelay(&listener, true)?;
    // The standard library's accept queue is too short for a connection storm.
    rustix::net::listen(&listener, 65_535)?;
    let path = std::env::args().nth(1).expect("where to write the port");
    std::fs::write(path, listener.local_addr()?.port().to_string())?;
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&poll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    let (mut store, mut clients) = (Store::default(), Vec::<Option<Client>>::new());
    let (mut events, mut input) = (Vec::with_capacity(1024), Vec::with_capacity(READ_AT_ONCE));
    let (mut out, mut released) = (Vec::new(), Vec::new());
    loop {
        events.clear();
        epoll::wait(&poll, spare_capacity(&mut events), None)?;
        for event in &events {
            if event.data.u64() == LISTENER {
                while let Ok(client) = accept_with(&listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                    let at = usize::try_from(client.as_raw_fd()).expect("a descriptor");
                    epoll::add(&poll, &client, EventData::new_u64(at as u64), EventFlags::IN)?;
                    clients.resize_with(clients.len().max(at + 1), || None);
                    clients[at] = Some(Client(client, Vec::new()));
                }
                continue;
            }
            let at = usize::try_from(event.data.u64()).expect("a descriptor");
            let Some(Client(socket, rest)) = &mut clients[at] else { continue };
            let buffer = if rest.is_empty() { &mut input } else { &mut *rest };
            if recv(&*socket, spare_capacity(buffer), RecvFlags::empty()).map_or(0, |(read, _)| read) == 0 {
                clients[at] = None;
                continue;
            }
            store.keep(buffer);
            let mut done = 0;
            while let Some(len) = store.serve(at, &buffer[done..], &mut out, &mut released) {
                done += len;
            }
            if rest.is_empty() {
                rest.extend_from_slice(&input[done..]);
                input.clear();
            } else {
                drop(rest.drain(..done));
            }
            // Reserve space for the value of a SET; no other request is large.
            if let Some(len) = missing(rest) {
                rest.reserve_exact(len);
            }
            answer(&clients, at, &out)?;
            out.clear();
            for at in released.drain(..) {
                answer(&clients, at, &[0])?;
            }
        }
    }
}

/// The missing bytes of a SET; for any other request one read.
fn missing(rest: &[u8]) -> Option<usize> {
    let mut fields = Fields { input: rest, at: 0 };
    if fields.take(1)? != [1] {
        return Some(READ_AT_ONCE);
    }
    fields.text()?;
    let len = usize::try_from(fields.number()?).ok()?;
    Some((fields.at + len).saturating_sub(rest.len()))
}

fn answer(clients: &[Option<Client>], at: usize, mut bytes: &[u8]) -> io::Result<()> {
    let Some(Client(socket, _)) = &clients[at] else { return Ok(()) };
    while !bytes.is_empty() {
        match send(socket, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            // Only an answer of several megabytes gets here, and no measured scenario has one.
            Err(Errno::AGAIN) => std::thread::yield_now(),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

//! A bystander is another client of the server under test. From its own blocking thread, it asks for a short
//! answer about a thousand times a second, and records the time of each answer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::tally::Counts;
use super::{Error, Tally};
use rallypoint_protocol::{Dialect, Op, Request, encode_hello, encode_request};

/// Pause between an answer and the next question.
const PAUSE: Duration = Duration::from_millis(1);

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_mins(2);

/// A running bystander.
#[derive(Debug)]
pub(crate) struct Bystander {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Counts, Error>>,
}

impl Bystander {
    /// Starts a bystander. Returns after its first answer.
    pub(crate) fn start(target: SocketAddr) -> Result<Self, Error> {
        let mut stream = TcpStream::connect(target).map_err(|source| Error::connect(target, source))?;
        let ready = stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(PATIENCE)));
        ready.map_err(Error::System)?;
        let tally = Tally::default();
        let mut bytes = Vec::new();
        encode_hello(&mut bytes);
        let question = question();
        bytes.extend_from_slice(&question);
        ask(&mut stream, &bytes)?;
        tally.sent(&[Op::Validate, Op::NumKeys]);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("bystander".into()).spawn(move || {
            // At least once, however short the work beside it is.
            loop {
                let started = Instant::now();
                ask(&mut stream, &question)?;
                tally.took("bystander", started.elapsed());
                tally.sent(&[Op::NumKeys]);
                if stopped.load(Ordering::Relaxed) {
                    return Ok(tally.take());
                }
                std::thread::sleep(PAUSE);
            }
        });
        Ok(Self { stop, thread: thread.map_err(Error::System)? })
    }

    /// Ends the bystander and returns its counts.
    pub(crate) fn stop(self) -> Result<Counts, Error> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| Error::ThreadDied)?
    }
}

/// NUM_KEYS: short, without side effects, and known to every server.
fn question() -> Vec<u8> {
    let mut bytes = Vec::new();
    let _known = encode_request(&Request::NumKeys, Dialect::C, &mut bytes);
    bytes
}

fn ask(stream: &mut TcpStream, bytes: &[u8]) -> Result<(), Error> {
    let mut answer = [0; 8];
    let done = stream.write_all(bytes).and_then(|()| stream.read_exact(&mut answer));
    done.map_err(|error| Error::broken(Op::NumKeys, error))
}

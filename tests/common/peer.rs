//! A client that sends raw bytes, and knows when the server must have answered.
//!
//! A probe shows that there was no answer: it is a request with a known reply, sent after the tested bytes.
//! Replies come in order, so everything before the probe's reply is the answer, however slow the machine is.

use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use rallypoint_protocol::{Decoded, Decoder, Dialect, LegacyRelease, Limits, Op, Request};

use super::PATIENCE;

/// How long silence must last if no probe can be sent: after half a request, and after a WAIT of a release
/// that accepts no other request meanwhile.
const SILENCE: Duration = Duration::from_millis(40);

/// The hello of PyTorch 2.2 and later.
pub(crate) const HELLO: [u8; 5] = [0, 0xce, 0xf7, 0x85, 0x3c];

/// The server's answer to one step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) bytes: Vec<u8>,
    /// Whether the connection is still open.
    pub(crate) open: bool,
}

/// One connection.
pub(crate) struct Peer {
    stream: TcpStream,
    dialect: Dialect,
    /// Decodes the sent bytes, to know whether they end in the middle of a request.
    decoder: Decoder,
    unfinished: Vec<u8>,
    is_foreign: bool,
    waits: bool,
    last_op: Option<Op>,
    probes: u32,
}

impl Peer {
    /// Connects, and sends nothing. `dialect` is the dialect to speak.
    pub(crate) fn connect(server: SocketAddr, dialect: Dialect) -> Self {
        let stream = TcpStream::connect(server).expect("the server listens");
        stream.set_nodelay(true).expect("a socket option");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket option");
        stream.set_write_timeout(Some(PATIENCE)).expect("a socket option");
        let legacy = if dialect == Dialect::A { LegacyRelease::V2_0 } else { LegacyRelease::V2_1 };
        // Above the server's limits: the server must refuse, not the decoder here.
        let limits = Limits { key: 1 << 30, value: 1 << 30, keys_per_request: 1 << 30 };
        Self {
            stream,
            dialect,
            decoder: Decoder::new(limits, legacy),
            unfinished: Vec::new(),
            is_foreign: false,
            waits: false,
            last_op: None,
            probes: 0,
        }
    }

    /// Connects like PyTorch 2.2 and later.
    pub(crate) fn greet(server: SocketAddr) -> Self {
        let mut peer = Self::connect(server, Dialect::C);
        peer.send(&HELLO);
        peer
    }

    /// Sends bytes. If the server has closed the connection, [`Self::answer`] notices it.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
        self.unfinished.extend_from_slice(bytes);
        let mut decoded = 0;
        loop {
            match self.decoder.decode(&self.unfinished[decoded..], None) {
                Ok(Decoded::Hello { len }) => decoded += len,
                Ok(Decoded::Request { request, len }) => {
                    decoded += len;
                    self.last_op = Some(request.op());
                    match request {
                        Request::Wait(_) | Request::Barrier { .. } => self.waits = true,
                        Request::CancelWait => self.waits = false,
                        _ => {}
                    }
                }
                Ok(Decoded::Incomplete { .. }) => break,
                Err(_) => {
                    self.is_foreign = true;
                    break;
                }
            }
        }
        self.unfinished.drain(..decoded);
    }

    /// The operation of the last whole request.
    pub(crate) fn last_op(&self) -> Option<Op> {
        self.last_op
    }

    /// Whether the last request was a WAIT or BARRIER that has not been answered.
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// The byte of `op` in the dialect of this connection.
    pub(crate) fn code(&self, op: Op) -> u8 {
        let said = self.decoder.dialect();
        let dialect = if said == Dialect::Unknown { self.dialect } else { said };
        op.code(dialect).expect("the dialect has it")
    }

    /// The server's answer to all sent bytes, if `expected` bytes and an open or closed connection are
    /// expected. Also finds surplus bytes. Do not use it for effects of another peer: a connection that was
    /// woken for an item of a queue must not send anything before it asks for the item.
    pub(crate) fn answer(&mut self, expected: usize, expected_open: bool) -> Answer {
        if !expected_open {
            return self.until_closed();
        }
        if let Some((probe, reply)) = self.probe() {
            let _ = self.stream.write_all(&probe);
            let mut answer = self.read(expected + reply.len());
            if answer.bytes.ends_with(&reply) {
                answer.bytes.truncate(answer.bytes.len() - reply.len());
            }
            return answer;
        }
        let mut answer = self.read(expected);
        if answer.open && answer.bytes.len() == expected {
            let _ = self.stream.set_read_timeout(Some(SILENCE));
            let more = self.read(usize::MAX);
            let _ = self.stream.set_read_timeout(Some(PATIENCE));
            answer.bytes.extend(more.bytes);
            answer.open = more.open;
        }
        answer
    }

    /// Waits until the server has handled all sent bytes, which must have no answer yet.
    pub(crate) fn settle(&mut self) {
        let answer = self.answer(0, true);
        assert_eq!(answer, Answer { bytes: Vec::new(), open: true }, "no answer is due yet");
    }

    /// Reads exactly `len` bytes, or fewer if no more come.
    pub(crate) fn read(&mut self, len: usize) -> Answer {
        let mut bytes = Vec::new();
        let mut part = vec![0; 64 * 1024];
        let open = loop {
            let wanted = part.len().min(len - bytes.len());
            if wanted == 0 {
                break true;
            }
            match self.stream.read(&mut part[..wanted]) {
                Ok(0) => break false,
                Ok(read) => bytes.extend_from_slice(&part[..read]),
                Err(err) if matches!(err.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break true,
                Err(err) if err.kind() == ErrorKind::Interrupted => {}
                Err(_) => break false,
            }
        };
        if !bytes.is_empty() {
            self.waits = false;
        }
        Answer { bytes, open }
    }

    /// Reads until the server closes the connection.
    pub(crate) fn until_closed(&mut self) -> Answer {
        self.read(usize::MAX)
    }

    /// Sends FIN, like a client that has finished.
    pub(crate) fn finish(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Closes the connection, waits until the server has closed it, too, and returns the last received bytes.
    pub(crate) fn leave(mut self) -> Vec<u8> {
        self.finish();
        let answer = self.until_closed();
        assert!(!answer.open, "the server does not let a connection go that its client has closed");
        answer.bytes
    }

    /// Ends the connection with RST.
    pub(crate) fn reset(self) {
        let linger = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
        linger.expect("a socket option");
    }

    /// A request that leaves no trace, and its reply; `None` if none can be sent now.
    fn probe(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        if self.is_foreign || !self.unfinished.is_empty() {
            return None;
        }
        self.probes += 1;
        match self.decoder.dialect() {
            Dialect::Unknown => None,
            Dialect::C => {
                let nonce = (0xa5f0_0000 | self.probes).to_le_bytes();
                Some(([&[Op::Ping as u8][..], &nonce].concat(), nonce.to_vec()))
            }
            // CHECK of no keys. Not during a WAIT, which 1.13 and 2.0 give up at any further request.
            Dialect::Legacy | Dialect::A | Dialect::B => {
                (!self.waits).then(|| ([&[self.code(Op::Check)][..], &[0; 8]].concat(), vec![0]))
            }
        }
    }
}

/// A string as it is on the wire.
pub(crate) fn wire(string: &[u8]) -> Vec<u8> {
    [&(string.len() as u64).to_le_bytes()[..], string].concat()
}

/// Bytes from hexadecimal digits.
pub(crate) fn unhex(hex: &str) -> Vec<u8> {
    let digit = |digit: u8| char::from(digit).to_digit(16).expect("a hexadecimal digit") as u8;
    hex.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// Hexadecimal digits of bytes, shortened for a message.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digits = |bytes: &[u8]| {
        bytes.iter().fold(String::new(), |mut digits, byte| {
            let _ = write!(digits, "{byte:02x}");
            digits
        })
    };
    match bytes.len() {
        0..=120 => digits(bytes),
        len => format!("{}..({len} bytes)..{}", digits(&bytes[..50]), digits(&bytes[len - 10..])),
    }
}

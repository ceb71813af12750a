//! The progress of a client's conversation with its store: which of its requests are not answered yet.
//!
//! A relay needs this for one purpose. When a client's WAIT takes too long, the client sends CANCEL_WAIT and
//! expects an answer at once, even while the server is away. If nothing else is unanswered, the relay answers
//! it, and later removes the server's own answer from the stream. This works only for clients of PyTorch 2.2
//! and later, which send a hello. Other clients wait until the server is back.

use std::collections::VecDeque;

use arrayvec::ArrayVec;
use bytes::Bytes;

use rallypoint_protocol::{Dialect, MAGIC, Op};

/// With more unanswered requests than this, a client is not followed any more: it does not wait for answers.
const MOST: usize = 1024;
/// The answer to a CANCEL_WAIT.
pub(super) const CANCELLED: &[u8] = &[1];

/// A part of a request or a reply.
#[derive(Debug, Clone, Copy)]
enum Part {
    /// This many bytes.
    Bytes(u64),
    /// This many strings: a length and bytes.
    Strings(u64),
    /// A number, and for each unit of it this many strings.
    List(u64),
    /// A number, and a string if the number is above 0.
    Optional,
}

type Parts = ArrayVec<Part, 3>;

/// Walks through a request or a reply that arrives in pieces.
#[derive(Debug, Default)]
struct Walk {
    /// The parts that are still to come, the last one first.
    parts: Parts,
    strings: u64,
    skip: u64,
    number: ArrayVec<u8, 8>,
    /// The number of the last list.
    listed: u64,
}

impl Walk {
    fn begin(&mut self, parts: &[Part]) {
        self.parts = parts.iter().rev().copied().collect();
    }

    /// Removes from `bytes` what it walks over. Returns whether it has reached the end.
    fn go_on(&mut self, bytes: &mut &[u8]) -> bool {
        loop {
            if self.skip > 0 {
                let there = bytes.len().min(usize::try_from(self.skip).unwrap_or(usize::MAX));
                *bytes = &bytes[there..];
                self.skip = self.skip.saturating_sub(there as u64);
                if self.skip > 0 {
                    return false;
                }
            }
            if self.strings > 0 {
                let Some(len) = self.read_number(bytes) else { return false };
                self.strings = self.strings.saturating_sub(1);
                self.skip = len;
                continue;
            }
            match self.parts.last() {
                None => return true,
                Some(&Part::Bytes(count)) => self.skip = count,
                Some(&Part::Strings(count)) => self.strings = count,
                Some(&Part::List(each)) => {
                    let Some(count) = self.read_number(bytes) else { return false };
                    self.listed = count;
                    self.strings = count.saturating_mul(each);
                }
                Some(&Part::Optional) => {
                    let Some(count) = self.read_number(bytes) else { return false };
                    self.strings = u64::from(count.cast_signed() > 0);
                }
            }
            self.parts.pop();
        }
    }

    fn read_number(&mut self, bytes: &mut &[u8]) -> Option<u64> {
        while !self.number.is_full() {
            let (&byte, rest) = bytes.split_first()?;
            self.number.push(byte);
            *bytes = rest;
        }
        let number = self.number.take().into_inner().ok()?;
        Some(u64::from_le_bytes(number))
    }
}

/// The parts of a request, behind its operation.
fn request(op: Op) -> &'static [Part] {
    const STRING: Part = Part::Strings(1);
    match op {
        Op::Set | Op::Append | Op::QueuePush => &[STRING, STRING],
        Op::CompareSet => &[STRING, STRING, STRING],
        Op::Get | Op::Delete | Op::QueuePop | Op::QueueLen => &[STRING],
        Op::Add | Op::Barrier => &[STRING, Part::Bytes(8)],
        Op::Check | Op::Wait | Op::MultiGet => &[Part::List(1)],
        Op::MultiSet => &[Part::List(2)],
        Op::NumKeys | Op::CancelWait | Op::ListKeys => &[],
        Op::Ping | Op::Validate => &[Part::Bytes(4)],
    }
}

/// The parts of the reply to a request that named this many keys. `None` if there is no reply.
fn reply(op: Op, keys: u64) -> Option<Part> {
    match op {
        Op::Set | Op::Append | Op::QueuePush | Op::MultiSet | Op::Validate => None,
        Op::CompareSet | Op::Get => Some(Part::Strings(1)),
        Op::Add | Op::NumKeys | Op::Delete | Op::QueueLen => Some(Part::Bytes(8)),
        Op::Check | Op::Wait | Op::Barrier | Op::CancelWait => Some(Part::Bytes(1)),
        Op::MultiGet => Some(Part::Strings(keys)),
        Op::Ping => Some(Part::Bytes(4)),
        Op::QueuePop => Some(Part::Optional),
        Op::ListKeys => Some(Part::List(1)),
    }
}

/// A request without a reply so far.
#[derive(Debug, Clone, Copy)]
struct Unanswered {
    op: Op,
    keys: u64,
    /// The relay has answered it. The server's reply is not for the client.
    answered_here: bool,
}

/// One client's conversation.
#[derive(Debug)]
pub(super) struct Dialogue {
    /// The progress in the request that is arriving.
    asking: Option<(Op, Walk)>,
    unanswered: VecDeque<Unanswered>,
    /// The progress in the reply that is arriving, if it has begun.
    answering: Option<Walk>,
    /// The hello, as far as it has arrived. `None` after it.
    hello: Option<ArrayVec<u8, 5>>,
    is_followed: bool,
}

impl Dialogue {
    pub(super) fn new() -> Self {
        Self {
            asking: None,
            unanswered: VecDeque::new(),
            answering: None,
            hello: Some(ArrayVec::new()),
            is_followed: true,
        }
    }

    /// Whether the client may be in the middle of a request.
    pub(super) fn is_amid(&self) -> bool {
        !self.is_followed || self.asking.is_some()
    }

    /// Takes bytes that the client has sent.
    pub(super) fn asked(&mut self, mut bytes: &[u8]) {
        if self.is_followed && !self.read_hello(&mut bytes) {
            return;
        }
        while self.is_followed {
            let (op, mut walk) = if let Some(asking) = self.asking.take() {
                asking
            } else {
                let Some((&code, rest)) = bytes.split_first() else { return };
                bytes = rest;
                let Some(op) = Op::from_code(Dialect::C, code) else { return self.give_up() };
                let mut walk = Walk::default();
                walk.begin(request(op));
                (op, walk)
            };
            if !walk.go_on(&mut bytes) {
                self.asking = Some((op, walk));
                return;
            }
            if reply(op, walk.listed).is_some() {
                self.unanswered.push_back(Unanswered { op, keys: walk.listed, answered_here: false });
                if self.unanswered.len() > MOST {
                    self.give_up();
                }
            }
        }
    }

    /// Removes the hello from the first bytes. `false` until it is whole, or if there is none.
    fn read_hello(&mut self, bytes: &mut &[u8]) -> bool {
        let Some(hello) = &mut self.hello else { return true };
        while !hello.is_full() {
            let Some((&byte, rest)) = bytes.split_first() else { return false };
            hello.push(byte);
            *bytes = rest;
        }
        let is_hello = hello[0] == 0 && hello[1..] == MAGIC;
        self.hello = None;
        if !is_hello {
            self.give_up();
        }
        is_hello
    }

    /// Stops following the client. By now no answer of the relay can be waiting to be removed: the client
    /// would have to send much without waiting for any answer.
    fn give_up(&mut self) {
        if !self.unanswered.iter().any(|unanswered| unanswered.answered_here) {
            self.is_followed = false;
            self.asking = None;
            self.unanswered = VecDeque::new();
        }
    }

    /// Called while the server does not answer. Whether the client has cancelled a wait, and nothing else of
    /// it is unanswered: then it gets [`CANCELLED`], and the server's own answer will not reach it.
    pub(super) fn cancels_alone(&mut self) -> bool {
        if !self.is_followed || self.asking.is_some() {
            return false;
        }
        let is_wait = |op| matches!(op, Op::Wait | Op::Barrier);
        let mut open = self.unanswered.iter_mut().filter(|unanswered| !unanswered.answered_here);
        match (open.next(), open.next(), open.next()) {
            (Some(wait), Some(cancel), None) if is_wait(wait.op) && cancel.op == Op::CancelWait => {
                (wait.answered_here, cancel.answered_here) = (true, true);
            }
            (Some(cancel), None, None) if cancel.op == Op::CancelWait => cancel.answered_here = true,
            _ => return false,
        }
        true
    }

    /// Takes bytes that the server has sent, and hands on the ones that are for the client.
    pub(super) fn answered(&mut self, bytes: &Bytes, mut hand_on: impl FnMut(Bytes)) {
        let mut rest: &[u8] = bytes;
        // The start of what is not handed on yet.
        let mut from = 0;
        while self.is_followed && !rest.is_empty() {
            let at = bytes.len().saturating_sub(rest.len());
            let Some(&first) = self.unanswered.front() else {
                // An answer without a request should not happen. The client gets it as it is.
                self.is_followed = false;
                break;
            };
            let mut walk = self.answering.take().unwrap_or_else(|| {
                let mut walk = Walk::default();
                walk.begin(reply(first.op, first.keys).as_slice());
                walk
            });
            // A wait that was cancelled has no answer of its own, unless it had ended before.
            let is_given_up = matches!(first.op, Op::Wait | Op::Barrier)
                && rest.first() == CANCELLED.first()
                && self.unanswered.get(1).is_some_and(|next| next.op == Op::CancelWait);
            if is_given_up {
                self.unanswered.pop_front();
            }
            if !walk.go_on(&mut rest) {
                self.answering = Some(walk);
                break;
            }
            self.unanswered.pop_front();
            if first.answered_here {
                if from < at {
                    hand_on(bytes.slice(from..at));
                }
                from = bytes.len().saturating_sub(rest.len());
            }
        }
        if from < bytes.len() {
            hand_on(bytes.slice(from..));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hello and a WAIT for `k`.
    fn waiting() -> Dialogue {
        let mut dialogue = Dialogue::new();
        let mut bytes = vec![0];
        bytes.extend(MAGIC);
        bytes.extend([Op::Wait as u8, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, b'k']);
        bytes.chunks(3).for_each(|some| dialogue.asked(some));
        dialogue
    }

    fn answered(dialogue: &mut Dialogue, bytes: &'static [u8]) -> Vec<u8> {
        let mut all = Vec::new();
        for byte in Bytes::from_static(bytes).chunks(1) {
            dialogue.answered(&Bytes::copy_from_slice(byte), |bytes| all.extend_from_slice(&bytes));
        }
        all
    }

    #[test]
    fn a_wait_given_up_alone_is_answered_once() {
        for server in [&[1][..], &[0, 1]] {
            let mut dialogue = waiting();
            assert!(!dialogue.cancels_alone());
            dialogue.asked(&[Op::CancelWait as u8]);
            assert!(dialogue.cancels_alone());
            assert!(!dialogue.cancels_alone(), "once");
            // NUM_KEYS, which the server answers behind its answer to the wait.
            dialogue.asked(&[Op::NumKeys as u8]);
            let mut from_server = server.to_vec();
            from_server.extend([7, 0, 0, 0, 0, 0, 0, 0]);
            assert_eq!(answered(&mut dialogue, from_server.leak()), [7, 0, 0, 0, 0, 0, 0, 0]);
        }
    }

    #[test]
    fn a_wait_given_up_behind_another_request_is_left_to_the_server() {
        let mut dialogue = Dialogue::new();
        dialogue.asked(&[0]);
        dialogue.asked(&MAGIC);
        dialogue.asked(&[Op::NumKeys as u8]);
        let mut wait = vec![Op::Wait as u8];
        wait.extend([1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, b'k', Op::CancelWait as u8]);
        dialogue.asked(&wait);
        assert!(!dialogue.cancels_alone());
        let reply = &[3, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        assert_eq!(answered(&mut dialogue, reply), reply);
    }

    #[test]
    fn an_old_client_is_not_followed_and_gets_every_byte() {
        let mut dialogue = Dialogue::new();
        dialogue.asked(&[1, 0, 0, 0, 0, 0]);
        dialogue.asked(&[Op::CancelWait as u8]);
        assert!(!dialogue.cancels_alone());
        assert_eq!(answered(&mut dialogue, &[1, 2, 3]), [1, 2, 3]);
    }
}

//! How far a client's conversation with its store has come: which of its requests are not answered yet.
//!
//! A relay needs this for one thing. When a client's WAIT takes too long, the client sends CANCEL_WAIT and expects an
//! answer at once, also while the server is away. The relay answers it, if nothing else is unanswered, and later takes the
//! server's own answer out of the stream. Only clients of PyTorch 2.2 and later, which say hello, are followed; the others
//! wait until the server is back.

use std::collections::VecDeque;

use arrayvec::ArrayVec;
use bytes::Bytes;

use crate::core::protocol::{Dialect, MAGIC, Op};

/// With more unanswered requests than this the client is not followed any more: it does not wait for answers.
const MOST: usize = 1024;
/// The answer to a CANCEL_WAIT.
pub(super) const CANCELLED: &[u8] = &[1];

/// What a request or a reply is made of.
#[derive(Debug, Clone, Copy)]
enum Part {
    /// So many bytes.
    Bytes(u64),
    /// So many times a length and bytes.
    Strings(u64),
    /// A number, and that many times so many strings.
    List(u64),
    /// A number, and a string if it is above 0.
    Optional,
}

type Parts = ArrayVec<Part, 3>;

/// Walks over a request or a reply that comes in pieces.
#[derive(Debug, Default)]
struct Walk {
    /// The parts still to come, the last one first.
    parts: Parts,
    strings: u64,
    skip: u64,
    number: ArrayVec<u8, 8>,
    /// What the number of the last list was.
    listed: u64,
}

impl Walk {
    fn begin(&mut self, parts: &[Part]) {
        self.parts = parts.iter().rev().copied().collect();
    }

    /// Takes what it walks over off `bytes`. Returns whether it has come to the end.
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

/// What a request is made of, behind its operation.
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

/// What the reply to a request that named so many keys is made of. `None`: there is none.
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

/// A request without a reply yet.
#[derive(Debug, Clone, Copy)]
struct Unanswered {
    op: Op,
    keys: u64,
    /// The relay has answered it; the server's reply is not for the client.
    answered_here: bool,
}

/// One client's conversation.
#[derive(Debug)]
pub(super) struct Dialogue {
    /// Where it is in the request that comes.
    asking: Option<(Op, Walk)>,
    unanswered: VecDeque<Unanswered>,
    /// Where it is in the reply that comes, if it has begun.
    answering: Option<Walk>,
    /// The hello, as far as it has come; `None` behind it.
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

    /// The client has sent these bytes.
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

    /// Takes the hello off the first bytes. `false` while it is not whole, or when there is none.
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

    /// The client is not followed any more. Answers that were given here are known to be over by then, for the
    /// client would have to send much without waiting for any answer.
    fn give_up(&mut self) {
        if !self.unanswered.iter().any(|unanswered| unanswered.answered_here) {
            self.is_followed = false;
            self.asking = None;
            self.unanswered = VecDeque::new();
        }
    }

    /// The server does not answer now. Whether the client has given up a wait, and nothing else of it is
    /// unanswered: then it gets [`CANCELLED`], and the server's own answer will not reach it.
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

    /// The server has sent these bytes. Hands on what is for the client.
    pub(super) fn answered(&mut self, bytes: &Bytes, mut hand_on: impl FnMut(Bytes)) {
        let mut rest: &[u8] = bytes;
        // Where what is not handed on yet begins.
        let mut from = 0;
        while self.is_followed && !rest.is_empty() {
            let at = bytes.len().saturating_sub(rest.len());
            let Some(&first) = self.unanswered.front() else {
                // It should not be: let the client see it.
                self.is_followed = false;
                break;
            };
            let mut walk = self.answering.take().unwrap_or_else(|| {
                let mut walk = Walk::default();
                walk.begin(reply(first.op, first.keys).as_slice());
                walk
            });
            // A wait that was given up has no answer of its own, unless it was over before.
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
            // NUM_KEYS, which the server answers behind what it said to the wait.
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

//! A client that behaves like torch's: it has one outstanding request, cancels a wait that takes too long
//! with CANCEL_WAIT, and ends when its connection breaks.

use bytes::{Buf, BytesMut};

use super::plan::{ClientPlan, Micros};
use rallypoint_protocol::encode_hello;
use rallypoint_store::testing::Said;
use rallypoint_store::testing::model::Act;
use rallypoint_store::testing::request;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It will send its next request.
    Thinking,
    /// It waits for the reply to this request.
    Reading(usize),
    /// It has closed its connection, or the server has.
    Gone,
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) plan: ClientPlan,
    pub(super) state: State,
    /// All its requests so far.
    pub(super) issued: Vec<Act>,
    /// The answers, by request. `None` for an answer that has not arrived.
    pub(super) seen: Vec<Option<Vec<Said>>>,
    /// It has done everything in its plan.
    pub(super) has_finished: bool,
    /// The store that it uses, if it is not the first one.
    pub(super) store: Option<u16>,
    next_step: usize,
    inbox: BytesMut,
}

/// What the world must do for a client.
#[derive(Debug, Default)]
pub(super) struct Sends {
    pub(super) bytes: Vec<u8>,
    /// When the client acts next.
    pub(super) next_after: Option<Micros>,
    /// When the client cancels the wait that begins.
    pub(super) patience: Option<Micros>,
    /// The client closes its connection.
    pub(super) closes: bool,
}

impl Client {
    pub(super) fn new(plan: ClientPlan) -> Self {
        Self {
            plan,
            state: State::Thinking,
            issued: Vec::new(),
            seen: Vec::new(),
            has_finished: false,
            store: None,
            next_step: 0,
            inbox: BytesMut::new(),
        }
    }

    /// How long it waits before its next request.
    fn think(&self) -> Micros {
        self.plan.steps.get(self.next_step).map_or(1000, |step| step.think)
    }

    /// Sends the next request, or leaves.
    pub(super) fn act(&mut self) -> Sends {
        let mut sends = Sends::default();
        if self.state != State::Thinking {
            return sends;
        }
        let Some(step) = self.plan.steps.get(self.next_step).cloned() else {
            (self.state, self.has_finished) = (State::Gone, true);
            return Sends { closes: true, ..sends };
        };
        self.next_step += 1;
        if self.issued.is_empty() {
            encode_hello(&mut sends.bytes);
        }
        self.issue(step.act, &mut sends);
        match self.state {
            State::Reading(_) => sends.patience = step.patience,
            _ => sends.next_after = Some(self.think()),
        }
        sends
    }

    fn issue(&mut self, act: Act, sends: &mut Sends) {
        sends.bytes.extend(request(&act).expect("a request").0);
        let is_answered = !matches!(act, Act::Set(..) | Act::Append(..) | Act::MultiSet(_) | Act::Push(..));
        self.seen.push((!is_answered).then(Vec::new));
        self.issued.push(act);
        if is_answered && self.state == State::Thinking {
            self.state = State::Reading(self.issued.len() - 1);
        }
    }

    /// The wait `no` has taken too long.
    pub(super) fn give_up(&mut self, no: usize) -> Option<Sends> {
        let still_waits = self.state == State::Reading(no) && no + 1 == self.issued.len();
        still_waits.then(|| {
            let mut sends = Sends::default();
            self.issue(Act::Cancel, &mut sends);
            sends
        })
    }

    /// The next step of its plan.
    pub(super) fn next_step(&self) -> usize {
        self.next_step
    }

    /// Whether it has the answers to all steps before the last one, or has taken the last step.
    pub(super) fn has_done_all_but_one(&self) -> bool {
        let last = self.plan.steps.len().saturating_sub(1);
        self.next_step > last || self.next_step == last && self.state == State::Thinking
    }

    /// The request in which it waits, unless it has cancelled that.
    pub(super) fn waits(&self) -> Option<usize> {
        match self.state {
            State::Reading(no) if matches!(self.issued[no], Act::Wait(_) | Act::Barrier(..)) => {
                (no + 1 == self.issued.len()).then_some(no)
            }
            _ => None,
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.state == State::Gone
    }

    /// Takes bytes of replies. Returns the requests that are answered now, and when the client acts next.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> Result<(Vec<usize>, Option<Micros>), String> {
        let mut answered = Vec::new();
        let mut next = None;
        if self.is_gone() {
            return Ok((answered, next));
        }
        self.inbox.extend_from_slice(bytes);
        while let State::Reading(no) = self.state {
            let mut rest = &self.inbox[..];
            let is_wait = matches!(self.issued[no], Act::Wait(_) | Act::Barrier(..));
            let has_given_up = is_wait && no + 1 < self.issued.len();
            if has_given_up && rest.first() == Some(&1) {
                // The answer belongs to the CANCEL_WAIT.
                self.seen[no] = Some(Vec::new());
                answered.push(no);
                self.state = State::Reading(no + 1);
                continue;
            }
            let Some(said) = read(&self.issued[no], &mut rest)? else { break };
            let taken = self.inbox.len() - rest.len();
            self.inbox.advance(taken);
            self.seen[no] = Some(said);
            answered.push(no);
            if has_given_up {
                self.state = State::Reading(no + 1);
            } else {
                self.state = State::Thinking;
                next = Some(self.think());
            }
        }
        if self.state == State::Thinking && !self.inbox.is_empty() {
            return Err(format!("bytes that nobody asked for: {:?}", &self.inbox[..]));
        }
        Ok((answered, next))
    }
}

/// Reads a whole reply.
fn read(act: &Act, bytes: &mut &[u8]) -> Result<Option<Vec<Said>>, String> {
    fn number(bytes: &mut &[u8]) -> Option<i64> {
        let (number, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        Some(i64::from_le_bytes(*number))
    }
    fn text(bytes: &mut &[u8]) -> Option<Said> {
        let len = usize::try_from(number(bytes)?).ok()?;
        let (text, rest) = bytes.split_at_checked(len)?;
        *bytes = rest;
        Some(Said::Bytes(text.to_vec()))
    }
    fn byte(bytes: &mut &[u8]) -> Option<u8> {
        let (&first, rest) = bytes.split_first()?;
        *bytes = rest;
        Some(first)
    }
    let said = match act {
        Act::CompareSet(..) | Act::Get(_) => text(bytes).map(|text| vec![text]),
        Act::Add(..) | Act::NumKeys | Act::Delete(_) | Act::Len(_) => {
            number(bytes).map(|it| vec![Said::Number(it)])
        }
        Act::Check(_) => byte(bytes).map(|it| vec![Said::Ready(it == 0)]),
        Act::Wait(_) | Act::Barrier(..) => match byte(bytes) {
            Some(0) => Some(vec![Said::StopWaiting]),
            Some(other) => return Err(format!("a wait is answered with {other}")),
            None => None,
        },
        Act::Cancel => match byte(bytes) {
            Some(1) => Some(vec![Said::Cancelled]),
            Some(other) => return Err(format!("a CANCEL_WAIT is answered with {other}")),
            None => None,
        },
        Act::MultiGet(keys) => keys.iter().map(|_| text(bytes)).collect(),
        Act::Ping(_) => bytes.split_first_chunk().map(|(nonce, rest)| {
            *bytes = rest;
            vec![Said::Nonce(u32::from_le_bytes(*nonce))]
        }),
        Act::Pop(_) => number(bytes).and_then(|len| {
            let item = if len > 0 { vec![text(bytes)?] } else { Vec::new() };
            Some([vec![Said::Number(len)], item].concat())
        }),
        Act::List => number(bytes).and_then(|len| {
            let mut keys = (0..len).map(|_| text(bytes)).collect::<Option<Vec<_>>>()?;
            // Keys are listed in no order.
            keys.sort();
            Some([vec![Said::Number(len)], keys].concat())
        }),
        _ => return Err(format!("{act:?} has no reply")),
    };
    Ok(said)
}

//! Requests that are encoded once and sent many times, with the expected replies.

use rallypoint_protocol::{Dialect, Op, Request, encode_request};

/// The form of a reply. The bytes do not show it, so the sender has to know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// CHECK, WAIT, BARRIER, CANCEL_WAIT.
    Code,
    /// PING.
    Nonce,
    /// ADD, NUM_KEYS, DELETE, QUEUE_LEN.
    Number,
    /// GET, COMPARE_SET.
    Value,
    /// MULTI_GET of this many keys.
    Values(usize),
}

impl Answer {
    /// The reply to a request; `None` for a request without a reply.
    fn to(request: &Request<'_>) -> Option<Self> {
        match request {
            Request::Check(_) | Request::Wait(_) | Request::Barrier { .. } | Request::CancelWait => {
                Some(Self::Code)
            }
            Request::Ping { .. } => Some(Self::Nonce),
            Request::Add { .. } | Request::NumKeys | Request::Delete { .. } | Request::QueueLen { .. } => {
                Some(Self::Number)
            }
            Request::Get { .. } | Request::CompareSet { .. } => Some(Self::Value),
            Request::MultiGet(keys) => Some(Self::Values(keys.len())),
            // QUEUE_POP and LIST_KEYS have replies of several parts, and no scenario sends them.
            Request::Set { .. }
            | Request::Append { .. }
            | Request::MultiSet(_)
            | Request::QueuePush { .. }
            | Request::QueuePop { .. }
            | Request::ListKeys => None,
        }
    }
}

/// One or more requests as the bytes of one write.
#[derive(Debug, Clone, Default)]
pub(crate) struct Frame {
    pub(super) bytes: Vec<u8>,
    /// The operations of its requests, in order.
    pub(super) ops: Vec<Op>,
    /// The expected replies, in order.
    pub(super) answers: Vec<(Op, Answer)>,
}

impl Frame {
    /// A frame of one request.
    pub(crate) fn of(request: &Request<'_>) -> Self {
        let mut frame = Self::default();
        frame.push(request);
        frame
    }

    /// A frame of several requests that are in flight together.
    pub(crate) fn batch<'a>(requests: impl IntoIterator<Item = Request<'a>>) -> Self {
        let mut frame = Self::default();
        requests.into_iter().for_each(|request| frame.push(&request));
        frame
    }

    /// A request whose reply does not come now, followed by a question with an immediate answer.
    pub(crate) fn unanswered(request: &Request<'_>, question: &Self) -> Self {
        let mut frame = Self::of(request);
        frame.bytes.extend_from_slice(&question.bytes);
        frame.ops.extend_from_slice(&question.ops);
        frame.answers.clone_from(&question.answers);
        frame
    }

    /// The frame repeated `times` times.
    pub(crate) fn repeated(&self, times: usize) -> Self {
        Self {
            bytes: self.bytes.repeat(times),
            ops: self.ops.repeat(times),
            answers: self.answers.repeat(times),
        }
    }

    fn push(&mut self, request: &Request<'_>) {
        // Dialect C has every operation.
        let _known = encode_request(request, Dialect::C, &mut self.bytes);
        self.ops.push(request.op());
        self.answers.extend(Answer::to(request).map(|answer| (request.op(), answer)));
    }
}

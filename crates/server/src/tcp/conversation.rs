//! One client's conversation with its store: bytes in, requests applied, replies out. It has no socket: a
//! direct connection feeds it, or the link of a relay.

use std::task::{Context, Poll, Waker, ready};

use arrayvec::ArrayVec;
use bytes::Bytes;

use super::end::End;
use crate::engine::{LinkSide, Session};
use rallypoint_protocol::{Decoded, Decoder, Dialect, ReplyBuffer, Request};

/// Requests applied in one critical section.
const BATCH: usize = 64;

/// When a long request is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Long {
    /// At once, like any other request.
    AtOnce,
    /// Only by permission: `asks` is then set.
    Asks,
    /// Now: it has permission.
    Let,
}

impl Long {
    /// Whether a request may take as long as hundreds of small ones.
    fn takes_long(request: &Request<'_>) -> bool {
        const FEW_KEYS: usize = 1024;
        match request {
            Request::ListKeys => true,
            Request::Check(keys) | Request::Wait(keys) | Request::MultiGet(keys) => keys.len() > FEW_KEYS,
            Request::MultiSet(pairs) => pairs.len() > FEW_KEYS,
            _ => false,
        }
    }
}

/// The state of a client's conversation.
pub struct Conversation {
    session: Session,
    /// Reads the requests.
    pub decoder: Decoder,
    /// The least number of bytes of the unfinished request.
    pub need: usize,
    /// Whether whole requests may be left in the input, because replies had to leave first, or because it was
    /// the turn of others.
    pub more_to_apply: bool,
    /// Whether it is the turn of others.
    pub pausing: bool,
    /// A request that goes on in slices.
    pub long: Long,
    /// Whether the next request is long and asks for permission.
    pub asks: bool,
    /// Whether a WAIT or BARRIER is outstanding.
    pub waiting: bool,
    /// Whether a whole first request or hello has come.
    pub greeted: bool,
    /// The reason to end the conversation once the replies are out.
    pub ending: Option<End>,
    /// What the link adds to each batch for the journal, if the client came over a link.
    pub side: Option<LinkSide>,
}

impl Conversation {
    /// At its first byte.
    pub fn new(session: Session, decoder: Decoder) -> Self {
        Self {
            session,
            decoder,
            need: 1,
            more_to_apply: false,
            pausing: false,
            long: Long::AtOnce,
            asks: false,
            waiting: false,
            greeted: false,
            ending: None,
            side: None,
        }
    }

    /// The conversation of a client behind a relay. If it `is_kept`, the journal records it.
    pub fn linked(session: Session, decoder: Decoder, is_kept: bool) -> Self {
        Self { side: is_kept.then(LinkSide::default), ..Self::new(session, decoder) }
    }

    /// Whether the replies may leave: the journal has everything that they depend on. If not, the task is
    /// woken when it has.
    pub fn poll_safe(&self, cx: &Context<'_>) -> Poll<()> {
        self.session.poll_safe(cx)
    }

    /// Records that the client is lost with its link, or because its host does not answer. Call it before the
    /// drop.
    pub fn cut_off(&self, link: Option<&str>) {
        self.session.cut_off(link);
    }

    /// Asks whether the outstanding wait has ended. If not, `waker` is woken later.
    pub fn poll_wake_up(&mut self, replies: &mut ReplyBuffer, waker: &Waker) -> Poll<()> {
        ready!(self.session.poll_wake_up(replies, waker));
        self.waiting = false;
        Poll::Ready(())
    }

    /// Applies the whole requests in `input` and returns the number of their bytes. It stops early when many
    /// replies have gathered, and sets `more_to_apply`.
    #[expect(clippy::arithmetic_side_effects, reason = "`at` and `done` count bytes of `input`")]
    pub fn apply(
        &mut self,
        input: &[u8],
        owner: Option<&Bytes>,
        replies: &mut ReplyBuffer,
        waker: &Waker,
    ) -> usize {
        let mut done = 0;
        (self.more_to_apply, self.asks) = (false, false);
        loop {
            let mut batch = ArrayVec::<(Request<'_>, usize), BATCH>::new();
            let mut at = done;
            let mut is_last = false;
            while !batch.is_full() && !is_last {
                match self.decoder.decode(&input[at..], owner) {
                    Ok(Decoded::Request { request, .. })
                        if self.long == Long::Asks && Long::takes_long(&request) =>
                    {
                        self.asks = batch.is_empty();
                        break;
                    }
                    Ok(Decoded::Request { request, len }) => {
                        at += len;
                        batch.push((request, len));
                    }
                    Ok(Decoded::Hello { len }) => {
                        at += len;
                        done = at;
                        self.greeted = true;
                        if let Some(side) = &mut self.side {
                            side.before = len;
                        }
                    }
                    Ok(Decoded::Incomplete { need }) => {
                        self.need = need;
                        is_last = true;
                    }
                    Err(error) => {
                        self.ending = Some(error.into());
                        is_last = true;
                    }
                }
            }
            if batch.is_empty() {
                self.more_to_apply = self.asks;
                return done;
            }
            self.greeted = true;
            let cannot_cancel = matches!(self.decoder.dialect(), Dialect::Legacy | Dialect::A);
            if let Some(side) = &mut self.side {
                side.dialect = self.decoder.dialect();
            }
            let submitted = self.session.submit(&batch, cannot_cancel, self.side.as_ref(), replies, waker);
            if let Some(side) = &mut self.side {
                side.before = 0;
            }
            self.waiting = submitted.waiting;
            done += batch[..submitted.applied].iter().map(|(_, len)| len).sum::<usize>();
            if let Some(refusal) = submitted.refusal {
                self.ending = Some(refusal.into());
                return done;
            }
            if submitted.applied < batch.len() {
                self.ending = None;
                self.more_to_apply = true;
                self.pausing = submitted.worked_enough;
                self.asks = submitted.worked_enough && self.long != Long::AtOnce;
                self.decoder.rewind();
                return done;
            }
            if is_last {
                return done;
            }
        }
    }
}

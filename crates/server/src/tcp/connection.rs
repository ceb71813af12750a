//! One task per connection: read, decode, submit to the engine, write. An idle connection owns no buffer.
//! Requests are read into a buffer of the thread and decoded there, and replies gather in another one. Only a
//! remainder (an unfinished request, or replies that the peer does not take) moves to the connection. Nothing
//! is read while replies wait for the peer. So TCP slows a slow reader down, and the server holds at most one
//! batch of replies for it.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

use super::admission::Admission;
use super::conversation::{Conversation, Long};
use super::end::End;
use crate::clock::deadline_in;
use crate::engine::{BufferReservation, Session};
use rallypoint_protocol::{Decoded, Decoder, ReplyBuffer};

/// Bytes read at once into the thread's buffer.
const READ_AT_ONCE: usize = 64 * 1024;
/// The rest of a request up to this size is completed in the thread's buffer; a larger rest gets its own
/// buffer.
const SHORT_REST: usize = 4 * 1024;
/// Buffers up to this size are not counted in the memory budget.
const UNCOUNTED: usize = SHORT_REST;
/// A request that comes slower than this many bytes a second counts as standing still.
const SLOWEST: f64 = 16.0 * 1024.0;
/// How often a connection that waits for memory checks for it.
const LOOK_FOR_MEMORY: Duration = Duration::from_millis(100);
/// Replies up to this size fit into the window of a peer that reads none of them.
const FILLS_A_WINDOW: usize = 16 * 1024;

/// A dead host is noticed when it has not answered for this long.
pub(super) const DEAD_AFTER: Duration = Duration::from_secs(20);

/// Buffers that all connections of a thread share. Each is empty between two polls.
struct Scratch {
    input: Box<[u8]>,
    replies: ReplyBuffer,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch {
        input: vec![0; READ_AT_ONCE].into_boxed_slice(),
        replies: ReplyBuffer::default(),
    });
}

thread_local! {
    /// Long requests are applied one after the other, and between two of them all other connections have
    /// their turn. Otherwise a new request would wait for all long ones before it.
    static LONG_ONES: Arc<Semaphore> = Arc::new(Semaphore::new(1));
}

/// The turn of a long request.
enum Turn {
    Awaited(Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>),
    /// Lasts until the connection is polled the next time.
    Taken {
        _permit: Option<OwnedSemaphorePermit>,
    },
}

fn with_scratch<T>(work: impl FnOnce(&mut [u8], &mut ReplyBuffer) -> T) -> T {
    SCRATCH.with_borrow_mut(|Scratch { input, replies }| {
        if !replies.is_empty() {
            // Only a panic can have left these bytes; they belong to another peer.
            *replies = ReplyBuffer::default();
        }
        let result = work(input, replies);
        replies.shrink();
        result
    })
}

/// One client's connection: a future that serves it until its end. Dropping it disconnects. It is a struct,
/// because the future of an `async fn` would store it twice.
pub(crate) struct Connection {
    /// Dropped before the stream: the store must forget the connection before the peer can see its end.
    conversation: Conversation,
    stream: TcpStream,
    admission: Admission,
    /// Received bytes that are not applied yet: the start of a request, or whole requests if `more_to_apply`
    /// is set.
    input: BytesMut,
    /// Replies the peer has not taken yet.
    replies: Option<Box<ReplyBuffer>>,
    /// The rest of the request is not read before there is memory for it.
    starved: bool,
    /// The kernel's time-out is as long as the server's `write_timeout`.
    patient: bool,
    turn: Option<Box<Turn>>,
    timer: Option<Box<Deadline>>,
    reservation: Option<Box<BufferReservation>>,
}

/// A deadline that can be moved later.
struct Deadline {
    at: Instant,
    sleep: Pin<Box<Sleep>>,
}

impl Deadline {
    fn after(time: Duration) -> Self {
        let at = deadline_in(time);
        Self { at, sleep: Box::pin(tokio::time::sleep_until(at)) }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.sleep.as_mut().poll(cx));
            if Instant::now() >= self.at {
                return Poll::Ready(());
            }
            self.sleep.as_mut().reset(self.at);
        }
    }
}

impl Connection {
    pub(crate) fn new(stream: TcpStream, session: Session, admission: Admission) -> Self {
        let config = admission.listener.config();
        let decoder = Decoder::new(config.limits, config.legacy_dialect);
        let mut conversation = Conversation::new(session, decoder);
        conversation.long = Long::Asks;
        Self {
            conversation,
            stream,
            admission,
            input: BytesMut::new(),
            replies: None,
            starved: false,
            patient: false,
            turn: None,
            timer: None,
            reservation: None,
        }
    }

    /// Makes one step, or arranges a wake-up for the next one.
    fn poll_once(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        if self.replies.is_some() {
            return self.poll_rest_of_replies(cx);
        }
        if let Some(end) = self.conversation.ending.take() {
            return Poll::Ready(Err(end));
        }
        if std::mem::take(&mut self.conversation.pausing) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.conversation.more_to_apply {
            if self.conversation.asks {
                ready!(self.poll_turn(cx));
            }
            return Poll::Ready(self.serve_own(cx));
        }
        let in_own_buffer = self.input.len() > SHORT_REST || self.conversation.need > READ_AT_ONCE;
        let read = if in_own_buffer { self.poll_read_own(cx) } else { self.poll_read_shared(cx) };
        if read.is_pending() && !self.starved && !self.input.is_empty() {
            ready!(self.poll_unfinished(cx))?;
        }
        if read.is_pending() && self.conversation.waiting {
            return self.poll_wake_up(cx);
        }
        read
    }

    /// Waits for the turn of a long request.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let wait = || Turn::Awaited(Box::pin(LONG_ONES.with(Arc::clone).acquire_owned()));
        match &mut **self.turn.get_or_insert_with(|| Box::new(wait())) {
            Turn::Awaited(turn) => {
                let permit = ready!(turn.as_mut().poll(cx)).ok();
                self.turn = Some(Box::new(Turn::Taken { _permit: permit }));
                self.conversation.long = Long::Let;
                Self::look_again(cx);
                Poll::Ready(())
            }
            Turn::Taken { .. } => {
                Self::look_again(cx);
                Poll::Pending
            }
        }
    }

    /// Polls this connection again after all others and their sockets.
    fn look_again(cx: &mut Context<'_>) {
        let _later = pin!(tokio::task::yield_now()).poll(cx);
    }

    /// Ends the turn: other long requests come first.
    fn end_turn(&mut self) {
        if self.turn.as_ref().is_some_and(|turn| matches!(**turn, Turn::Taken { .. })) {
            self.turn = None;
            self.conversation.long = Long::Asks;
        }
    }

    /// Ends the connection when its unfinished request is late.
    fn poll_unfinished(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        let config = self.admission.listener.config();
        let (timeout, end): (_, fn(Duration) -> End) = if self.conversation.greeted {
            (config.request_timeout, End::RequestTimeout)
        } else {
            (config.handshake_timeout, End::HandshakeTimeout)
        };
        match self.poll_timer(timeout, cx) {
            Poll::Ready(()) => Poll::Ready(Err(end(timeout))),
            Poll::Pending => Poll::Ready(Ok(())),
        }
    }

    /// More of an unfinished request came. This extends its deadline, unless the bytes come too slowly.
    #[expect(clippy::cast_precision_loss, reason = "the bytes of one read")]
    fn progressed(&mut self, bytes: usize) {
        if let Some(timer) = self.timer.as_mut().filter(|_| self.conversation.greeted) {
            let latest = deadline_in(self.admission.listener.config().request_timeout);
            let put_off = timer.at.checked_add(Duration::from_secs_f64(bytes as f64 / SLOWEST));
            timer.at = put_off.map_or(latest, |at| latest.min(at));
        }
    }

    /// Waits for memory. Other connections give it back when their requests are complete or given up.
    /// Meanwhile the kernel buffers what the peer sends.
    fn poll_starved(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        // Longer than earlier requests may stand still.
        const TIMES: u32 = 4;
        if !std::mem::replace(&mut self.starved, true) {
            let own = self.reservation.as_ref().map_or(0, |own| own.unfinished());
            if self.admission.unfinished() <= own {
                return Poll::Ready(Err(End::OutOfMemory));
            }
            let patience = self.admission.listener.config().request_timeout.saturating_mul(TIMES);
            self.timer = Some(Box::new(Deadline::after(patience)));
        }
        let Some(timer) = &mut self.timer else { return Poll::Ready(Err(End::OutOfMemory)) };
        let now = Instant::now();
        if now >= timer.at {
            return Poll::Ready(Err(End::OutOfMemory));
        }
        // Nothing is read here, so only this shows the end of the connection.
        if let Some(error) = self.stream.take_error()? {
            return Poll::Ready(Err(error.into()));
        }
        timer.sleep.as_mut().reset(timer.at.min(deadline_in(LOOK_FOR_MEMORY)));
        timer.sleep.as_mut().poll(cx).map(Ok)
    }

    /// Ends the wait for memory.
    fn is_fed(&mut self) {
        if std::mem::take(&mut self.starved) {
            self.timer = None;
        }
    }

    /// Asks the engine whether the outstanding wait has ended. If not, the engine wakes this task later.
    fn poll_wake_up(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        with_scratch(|_, replies| {
            ready!(self.conversation.poll_wake_up(replies, cx.waker()));
            Poll::Ready(self.write(replies, cx))
        })
    }

    /// Reads into the thread's buffer, behind the short rest of the last read.
    fn poll_read_shared(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        let room = self.admission.listener.budget().room().min(self.admission.share.room());
        let most = if room >= READ_AT_ONCE { READ_AT_ONCE } else { ready!(self.poll_first_request(cx))? };
        if self.input.len() >= most {
            return self.poll_starved(cx);
        }
        self.is_fed();
        with_scratch(|input, replies| {
            let rest = self.input.len();
            let mut space = ReadBuf::new(&mut input[..most]);
            space.put_slice(&self.input);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut space))?;
            let filled = space.filled().len();
            if filled == rest {
                return Poll::Ready(Err(End::Closed));
            }
            let done = self.apply(&input[..filled], None, replies, cx);
            match done {
                0 => self.progressed(filled.saturating_sub(rest)),
                _ => self.timer = None,
            }
            self.keep(&input[done..filled])?;
            Poll::Ready(self.write(replies, cx))
        })
    }

    /// How much may be read when there is no memory for a rest: the next request if it has arrived
    /// completely, otherwise as much as need not be counted.
    fn poll_first_request(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        with_scratch(|input, _| {
            let mut space = ReadBuf::new(input);
            space.put_slice(&self.input);
            if ready!(self.stream.poll_peek(cx, &mut space))? == 0 {
                return Poll::Ready(Ok(READ_AT_ONCE));
            }
            Poll::Ready(Ok(match self.conversation.decoder.clone().decode(space.filled(), None) {
                Ok(Decoded::Request { len, .. } | Decoded::Hello { len }) => len,
                Ok(Decoded::Incomplete { .. }) => UNCOUNTED,
                Err(_) => READ_AT_ONCE,
            }))
        })
    }

    /// Reads the rest of a large request into the connection's own buffer. It never reads past the end of the
    /// request, so the request's values can keep the buffer.
    fn poll_read_own(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        let missing = self.conversation.need.saturating_sub(self.input.len()).max(1);
        if self.input.capacity() == self.input.len() {
            // Memory is given for bytes that a peer has sent, not for bytes that it announces. Of many short
            // keys only the next one is announced.
            let len = self.input.len();
            let more = missing.clamp(len / 4, len.max(READ_AT_ONCE).saturating_mul(4));
            if !self.try_reserve(len.saturating_add(more), 0) {
                return self.poll_starved(cx);
            }
            self.is_fed();
            // `BytesMut::reserve` may take twice as much as is counted.
            let mut exact = Vec::from(std::mem::take(&mut self.input));
            exact.reserve_exact(more);
            self.input = BytesMut::from(Bytes::from(exact));
        }
        let mut space = (&mut self.input).limit(missing);
        let stream = Pin::new(&mut self.stream);
        let read = ready!(tokio_util::io::poll_read_buf(stream, cx, &mut space))?;
        if read == 0 {
            return Poll::Ready(Err(End::Closed));
        }
        self.progressed(read);
        if self.input.len() < self.conversation.need {
            return Poll::Ready(Ok(()));
        }
        // Decoding the bytes in place keeps the decoder's progress. The bytes are taken only when a request
        // is whole.
        let mut decoder = self.conversation.decoder.clone();
        match decoder.decode(&self.input, None)? {
            Decoded::Incomplete { need } => {
                self.conversation.decoder = decoder;
                self.conversation.need = need;
                Poll::Ready(Ok(()))
            }
            Decoded::Request { .. } | Decoded::Hello { .. } => Poll::Ready(self.serve_own(cx)),
        }
    }

    /// Serves the bytes in the connection's own buffer, and keeps the unapplied rest.
    fn serve_own(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        let input = std::mem::take(&mut self.input).freeze();
        with_scratch(|_, replies| {
            let done = self.apply(&input, Some(&input), replies, cx);
            self.timer = None;
            match input.try_into_mut() {
                // A large request that is done in part only: do not copy it each time.
                Ok(own) if done == 0 => self.input = own,
                Ok(own) => self.keep(&own[done..])?,
                Err(shared) => self.keep(&shared[done..])?,
            }
            self.write(replies, cx)
        })
    }

    /// Moves the unapplied bytes into a buffer of the connection. Call it before [`Self::write`]: nothing is
    /// received while replies wait.
    fn keep(&mut self, rest: &[u8]) -> Result<(), End> {
        self.input.clear();
        if rest.is_empty() {
            self.input = BytesMut::new();
            self.reservation = None;
            return Ok(());
        }
        self.reserve(rest.len(), 0)?;
        self.input.extend_from_slice(rest);
        Ok(())
    }

    fn apply(
        &mut self,
        input: &[u8],
        owner: Option<&Bytes>,
        replies: &mut ReplyBuffer,
        cx: &Context<'_>,
    ) -> usize {
        let was_greeted = self.conversation.greeted;
        let done = self.conversation.apply(input, owner, replies, cx.waker());
        if self.conversation.greeted && !was_greeted {
            self.timer = None;
            self.admission.listener.greeted();
        }
        done
    }

    /// Writes as much as the peer takes at once. The rest moves to the connection and precedes everything
    /// else.
    fn write(&mut self, replies: &mut ReplyBuffer, cx: &mut Context<'_>) -> Result<(), End> {
        // Ask even without replies: changes without a reply, too, are written to the journal before the
        // client goes on.
        let is_safe = self.conversation.poll_safe(cx).is_ready();
        if replies.is_empty() {
            return Ok(());
        }
        self.tell_kernel(replies.len() > FILLS_A_WINDOW);
        let written = if is_safe { poll_write_some(&mut self.stream, replies, cx) } else { Poll::Pending };
        if !replies.is_empty() {
            self.replies = Some(Box::new(std::mem::take(replies)));
        }
        if let Poll::Ready(written) = written {
            return Ok(written?);
        }
        // From here on the server waits for the peer to read, not for the rest of its request.
        self.timer = None;
        self.starved = false;
        self.reserve(self.input.capacity(), self.replies.as_ref().map_or(0, |rest| rest.own()))
    }

    /// To the kernel, a peer that reads nothing looks like a dead host, and the kernel gives up after 20 s.
    /// If the replies are large enough for that, the kernel gets a slightly longer time-out than this
    /// server's own, so that the server can report the end.
    fn tell_kernel(&mut self, patient: bool) {
        if patient == self.patient {
            return;
        }
        self.patient = patient;
        #[expect(clippy::arithmetic_side_effects, reason = "a quarter of a time is less than it")]
        let allowed = self.admission.listener.config().write_timeout.saturating_add(DEAD_AFTER / 4);
        if allowed > DEAD_AFTER {
            let timeout = if patient { allowed } else { DEAD_AFTER };
            // If this fails, the connection ends earlier.
            let _ = SockRef::from(&self.stream).set_tcp_user_timeout(Some(timeout));
        }
    }

    fn poll_rest_of_replies(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        ready!(self.conversation.poll_safe(cx));
        let Some(replies) = &mut self.replies else { return Poll::Ready(Ok(())) };
        let before = replies.len();
        let written = poll_write_some(&mut self.stream, replies, cx)?;
        if replies.is_empty() {
            self.replies = None;
            self.timer = None;
            self.reserve(self.input.capacity(), 0)?;
        } else if replies.len() < before {
            self.timer = None;
        }
        if written.is_pending() {
            let timeout = self.admission.listener.config().write_timeout;
            if self.poll_timer(timeout, cx).is_ready() {
                return Poll::Ready(Err(End::WriteStalled(timeout)));
            }
        }
        written.map(Ok)
    }

    fn poll_timer(&mut self, after: Duration, cx: &mut Context<'_>) -> Poll<()> {
        self.timer.get_or_insert_with(|| Box::new(Deadline::after(after))).poll(cx)
    }

    /// Counts the buffers of a request and of replies in the memory budget.
    fn reserve(&mut self, unfinished: usize, replies: usize) -> Result<(), End> {
        if self.try_reserve(unfinished, replies) { Ok(()) } else { Err(End::OutOfMemory) }
    }

    fn try_reserve(&mut self, unfinished: usize, replies: usize) -> bool {
        if unfinished.saturating_add(replies) <= UNCOUNTED && self.reservation.is_none() {
            return true;
        }
        let admission = &self.admission;
        let new = || Box::new(BufferReservation::new(admission.listener.budget(), &admission.share));
        self.reservation.get_or_insert_with(new).resize(unfinished, replies)
    }
}

impl Future for Connection {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        this.end_turn();
        loop {
            if let Err(end) = ready!(this.poll_once(cx)) {
                if end.is_unanswered() {
                    this.conversation.cut_off(None);
                }
                this.admission.ended(end.outcome(this.conversation.greeted), this.conversation.greeted, &end);
                return Poll::Ready(());
            }
        }
    }
}

/// Writes until all replies are out or the socket is full.
fn poll_write_some(
    stream: &mut TcpStream,
    replies: &mut ReplyBuffer,
    cx: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    while !replies.is_empty() {
        let mut slices = [IoSlice::new(&[]); 16];
        let used = replies.as_slices(&mut slices);
        let written = match &slices[..used] {
            [one] => Pin::new(&mut *stream).poll_write(cx, one),
            many => Pin::new(&mut *stream).poll_write_vectored(cx, many),
        };
        match ready!(written)? {
            0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            written => replies.advance(written),
        }
    }
    Poll::Ready(Ok(()))
}

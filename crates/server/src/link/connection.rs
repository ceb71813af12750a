//! One connection of a relay: reads and writes frames until a newer connection takes over.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::sessions::Woken;
use super::{Bearer, Link, LinkHost};
use crate::engine::Reservation;
use rallypoint_access::tls::{Moved, Stream};
use rallypoint_link::{FRAMES_AT_ONCE, Frame, Hello, LinkError, Refuse, TICK};

/// Bytes of frames that are made before a write, however little memory is left.
const FEWEST: usize = 16 * 1024;
/// The time within which a relay must send its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("the relay closed the connection")]
    Closed,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Link(#[from] LinkError),
    #[error("the relay did not say who it is within {} s", HELLO_TIMEOUT.as_secs())]
    NoHello,
    #[error("the relay begins with something else than a hello")]
    NotAHello,
    #[error("the server has no memory for what the relay says (--max-memory)")]
    NoMemory,
    #[error("its token was taken out of --token-file, or means something else now")]
    Revoked,
}

/// A connection that serves a link.
pub struct Line {
    pub(super) link: Arc<Link>,
    /// Its number among the link's connections. A higher number in the link means that a newer one has taken
    /// over.
    pub(super) connection: u64,
}

impl Line {
    /// Notified when there is work that did not arrive as bytes from the relay.
    pub fn woken(&self) -> Arc<Woken> {
        self.link.lock().sessions.woken()
    }

    /// Call it every [`TICK`]: sends signs of life. An error means that the relay has sent none.
    pub fn tick(&self) -> Result<(), LinkError> {
        self.link.lock().sessions.tick()
    }
}

/// The result of a [`LinkHost::turn`].
pub enum Turn {
    /// A newer connection has taken over, or the relay has gone.
    Over,
    /// The connection goes on.
    On {
        /// Whether there is more work at once.
        has_more: bool,
        /// Whether there are new frames. They may leave when everything that has happened is safe.
        has_new: bool,
    },
}

impl LinkHost {
    /// Serves a connection that was upgraded to a link. `early` holds bytes that were already read. `place`
    /// is kept while the connection lasts.
    pub fn serve<P: Send + 'static>(
        self: &Arc<Self>,
        stream: Stream,
        early: Bytes,
        bearer: Bearer,
        place: P,
    ) {
        let (host, peer) = (Arc::clone(self), bearer.peer);
        self.stores.workers().round_robin().next().spawn(async move {
            let _place = place;
            let served = match stream.moved_here() {
                Ok(stream) => host.serve_link(stream, early, &bearer).await,
                Err(error) => Err(error.into()),
            };
            if let Err(why) = served {
                tracing::debug!(%peer, "a link's connection ended: {why}");
            }
        });
    }

    async fn serve_link(&self, mut stream: Stream, early: Bytes, bearer: &Bearer) -> Result<(), Broken> {
        let mut input = BytesMut::from(early);
        let mut memory = self.stores.budget().reservation();
        let hello = tokio::time::timeout(HELLO_TIMEOUT, read_hello(&mut stream, &mut input, &mut memory));
        let hello = hello.await.map_err(|_| Broken::NoHello)??;
        drop(memory);
        let line = match self.take_in(&hello, bearer) {
            Ok(line) => line,
            Err(refuse) => return say_no(&mut stream, refuse).await,
        };
        let served = self.keep_going(&mut stream, &mut input, &line, bearer).await;
        match &served {
            Ok(()) => {}
            Err(why) => self.lost(&line, &why.to_string()),
        }
        served
    }

    /// Does the pending work of a connection: handles its input, and makes frames if all earlier ones are
    /// written.
    pub fn turn(&self, line: &Line, input: &mut BytesMut, out: &mut BytesMut) -> Result<Turn, LinkError> {
        let mut state = line.link.lock();
        if state.connection != line.connection {
            return Ok(Turn::Over);
        }
        let has_more = state.sessions.work(input)?;
        if state.sessions.is_over() {
            drop(state);
            self.bye(&line.link);
            return Ok(Turn::Over);
        }
        let has_new = out.is_empty() && state.sessions.has_frames();
        if has_new {
            let room = self.stores.budget().room() / 2;
            state.sessions.put_frames(out, room.clamp(FEWEST, FRAMES_AT_ONCE));
        }
        state.sessions.count_line(input.len().saturating_add(out.len()));
        Ok(Turn::On { has_more, has_new })
    }

    /// Serves a link until its connection breaks (an error), a newer one has taken over, or the relay leaves.
    async fn keep_going(
        &self,
        stream: &mut Stream,
        input: &mut BytesMut,
        line: &Line,
        bearer: &Bearer,
    ) -> Result<(), Broken> {
        let woken = line.woken();
        let mut out = BytesMut::new();
        let mut ticks = tokio::time::interval(TICK);
        let mut is_closed = false;
        loop {
            let Turn::On { has_more, has_new } = self.turn(line, input, &mut out)? else { return Ok(()) };
            if is_closed && !has_more {
                return Err(Broken::Closed);
            }
            if has_new {
                // A crash must not take back a reply that has left.
                self.stores.safe().await;
            }
            // Handle the input before much more is read.
            let goes_on = !is_closed && (!has_more || input.len() < FRAMES_AT_ONCE);
            tokio::select! {
                moved = stream.exchange(&mut out, input), if goes_on => {
                    is_closed = moved? == Moved::Read(0);
                }
                () = woken.notify.notified() => {}
                _ = ticks.tick() => {
                    if !self.stores.config().access.holds(bearer.grant.as_ref()) {
                        return Err(Broken::Revoked);
                    }
                    line.tick()?;
                }
                () = tokio::task::yield_now(), if has_more => {}
            }
        }
    }
}

async fn read_hello(
    stream: &mut Stream,
    input: &mut BytesMut,
    memory: &mut Reservation,
) -> Result<Hello, Broken> {
    loop {
        match Frame::take(input).map_err(LinkError::from)? {
            Some(Frame::Hello(hello)) => return Ok(hello),
            Some(_) => return Err(Broken::NotAHello),
            None => {}
        }
        if stream.read_buf(input).await? == 0 {
            return Err(Broken::Closed);
        }
        if input.len() > FEWEST && !memory.resize(input.capacity()) {
            return Err(Broken::NoMemory);
        }
    }
}

async fn say_no(stream: &mut Stream, refuse: Refuse) -> Result<(), Broken> {
    let mut out = BytesMut::new();
    Frame::Refuse(refuse).put(&mut out);
    stream.write_all(&out).await?;
    // Unread bytes would turn the end of the connection into a reset, which can overtake the answer.
    stream.shutdown().await?;
    let mut rest = BytesMut::new();
    let _ = tokio::time::timeout(TICK, async {
        while stream.read_buf(&mut rest).await? > 0 {
            rest.clear();
        }
        io::Result::Ok(())
    })
    .await;
    Ok(())
}

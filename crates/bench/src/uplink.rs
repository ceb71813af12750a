//! The generator in the role of a cluster's relays: many ranks share a link to the server's admin port. The
//! loopback connections of real relays are left out. The link's end is the relay's own code.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::Tally;
use rallypoint_access::tls::{Moved, Stream};
use rallypoint_link::{
    FIRST_STORE, FRAMES_AT_ONCE, Identity, RelayEnd, RelayEvent, RelayLife, SessionNo, TICK,
};
use rallypoint_node::client::http::AdminUrl;
use rallypoint_node::client::link::upgrade;
use rallypoint_process::random_number;
use rallypoint_protocol::ids::Timestamp;

/// The replies for one rank, and the tasks that wait for it.
#[derive(Debug, Default)]
struct Mailbox {
    /// Ranks with equal answers share the bytes.
    replies: VecDeque<Bytes>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

#[derive(Debug)]
struct State {
    end: RelayEnd,
    ranks: HashMap<SessionNo, Mailbox>,
    /// The link has ended, and all its sessions.
    broken: bool,
}

/// One link and its ranks.
#[derive(Debug)]
pub(crate) struct Uplink {
    state: Mutex<State>,
    frames: Notify,
    started: Instant,
    client: SocketAddr,
}

impl Uplink {
    /// Turns a connection to the admin port into a link. This thread moves its frames until the last owner
    /// drops it.
    pub(crate) async fn open(
        admin: &AdminUrl,
        stream: TcpStream,
        number: usize,
        tally: &Arc<Tally>,
    ) -> io::Result<Arc<Self>> {
        let client = stream.local_addr()?;
        let (stream, input) = upgrade(admin, stream.peer_addr()?, stream).await.map_err(io::Error::other)?;
        let name = format!("bench-{}-{number}", std::process::id());
        let mut end = RelayEnd::new(Identity { name, life: RelayLife(random_number()) });
        end.connected(Timestamp(Duration::ZERO));
        let uplink = Arc::new(Self {
            state: Mutex::new(State { end, ranks: HashMap::new(), broken: false }),
            frames: Notify::new(),
            started: Instant::now(),
            client,
        });
        tokio::spawn(talk(Arc::downgrade(&uplink), stream, input, Arc::clone(tally)));
        Ok(uplink)
    }

    /// Opens a session for a rank of this link's node.
    pub(crate) fn rank(self: &Arc<Self>) -> io::Result<Rank> {
        let mut state = self.state();
        let no = state.end.open(FIRST_STORE, self.client).ok_or(io::ErrorKind::QuotaExceeded)?;
        state.ranks.insert(no, Mailbox::default());
        drop(state);
        self.frames.notify_one();
        Ok(Rank { uplink: Arc::clone(self), no })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Timestamp {
        Timestamp(self.started.elapsed())
    }

    /// Handles received bytes, and puts bytes to send into `out`.
    fn turn(&self, input: &mut BytesMut, out: &mut BytesMut) -> io::Result<()> {
        let mut state = self.state();
        let State { end, ranks, broken } = &mut *state;
        end.receive(input, self.now()).map_err(io::Error::other)?;
        while let Some(event) = end.next_event() {
            match event {
                RelayEvent::Up => {}
                RelayEvent::Reply(no, bytes) => {
                    if let Some(rank) = ranks.get_mut(&no).filter(|_| !bytes.is_empty()) {
                        rank.replies.push_back(bytes);
                        wake(&mut rank.reader);
                    }
                }
                RelayEvent::Lost(..) | RelayEvent::Refused(_) | RelayEvent::Unheard(_) => *broken = true,
            }
        }
        if *broken {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if out.is_empty() {
            end.put_frames(out, FRAMES_AT_ONCE, self.now());
            for rank in ranks.values_mut() {
                wake(&mut rank.writer);
            }
        }
        Ok(())
    }

    fn give_up(&self) {
        let mut state = self.state();
        state.broken = true;
        for rank in state.ranks.values_mut() {
            wake(&mut rank.reader);
            wake(&mut rank.writer);
        }
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

/// Moves frames until the link ends or its last rank has gone.
async fn talk(uplink: Weak<Uplink>, mut stream: Stream, mut input: BytesMut, tally: Arc<Tally>) {
    let mut out = BytesMut::new();
    let mut ticks = tokio::time::interval(TICK);
    while let Some(uplink) = uplink.upgrade() {
        if uplink.turn(&mut input, &mut out).is_err() {
            return uplink.give_up();
        }
        let is_alive = tokio::select! {
            moved = stream.exchange(&mut out, &mut input) => match moved {
                Ok(Moved::Read(read)) => {
                    tally.fact("link_bytes_received", read as u64);
                    read > 0
                }
                moved => moved.is_ok(),
            },
            () = uplink.frames.notified() => true,
            _ = ticks.tick() => uplink.state().end.tick(uplink.now()).is_ok(),
        };
        if !is_alive {
            return uplink.give_up();
        }
    }
}

/// A rank's session of a link, in place of its own connection.
#[derive(Debug)]
pub(crate) struct Rank {
    uplink: Arc<Uplink>,
    no: SessionNo,
}

impl AsyncRead for Rank {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = self.uplink.state();
        let State { end, ranks, broken } = &mut *state;
        let Some(rank) = ranks.get_mut(&self.no) else { return Poll::Ready(Ok(())) };
        if rank.replies.is_empty() && !*broken {
            rank.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let before = buf.remaining();
        while let Some(first) = rank.replies.front_mut().filter(|_| buf.remaining() > 0) {
            buf.put_slice(&first.split_to(first.len().min(buf.remaining())));
            if first.is_empty() {
                rank.replies.pop_front();
            }
        }
        end.delivered(self.no, before.saturating_sub(buf.remaining()));
        if end.has_frames() {
            self.uplink.frames.notify_one();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Rank {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.uplink.state();
        let State { end, ranks, broken } = &mut *state;
        if *broken {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let taken = bytes.len().min(end.room(self.no));
        if taken == 0 {
            if let Some(rank) = ranks.get_mut(&self.no) {
                rank.writer = Some(cx.waker().clone());
            }
            return Poll::Pending;
        }
        end.from_client(self.no, Bytes::copy_from_slice(&bytes[..taken]));
        self.uplink.frames.notify_one();
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.uplink.state().end.finish(self.no);
        self.uplink.frames.notify_one();
        Poll::Ready(Ok(()))
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let mut state = self.uplink.state();
        state.ranks.remove(&self.no);
        state.end.close(self.no);
        drop(state);
        self.uplink.frames.notify_one();
    }
}

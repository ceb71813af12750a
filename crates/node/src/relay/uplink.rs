//! The relay's connection to the server. It is made again after each break, and the name is resolved each
//! time.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::{Relay, RelayError};
use crate::client::link::{NoUpgrade, upgrade};
use crate::client::mistaken::store_at;
use crate::client::{StepError, open, resolve};
use rallypoint_access::tls::{Moved, Stream};
use rallypoint_link::{FRAMES_AT_ONCE, LinkError, Refuse, RelayEvent, TICK};
use rallypoint_process::random_number;
use rallypoint_protocol::ids::{Elapsed, counted};

/// Time limit of one step of a connection: the look-up, the handshake, the answer to the request.
const STEP: Duration = Duration::from_secs(3);
/// Pauses between attempts.
const SHORTEST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(2);
/// How long until the first log line about an unreachable server; further lines come at growing intervals.
const FIRST_WORD: Duration = Duration::from_secs(2);

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
enum NoLink {
    #[error(transparent)]
    Step(#[from] StepError),
    #[error("{0} does not answer within {t}", t = Elapsed(STEP))]
    Late(SocketAddr),
    #[error(transparent)]
    Upgrade(#[from] NoUpgrade),
    #[error("the server closed the link")]
    Closed,
    #[error("the link broke: {0}")]
    Io(#[from] io::Error),
    #[error("the link is broken: {0}")]
    Link(#[from] LinkError),
    #[error("the server does not take this relay: {}", .0.reason)]
    Refused(Refuse),
    #[error("the relay was stopped")]
    Stopped,
}

impl Relay {
    /// Keeps the link up until `stop` is done or the server refuses the relay for good.
    pub(crate) async fn keep_link(self: Rc<Self>, stop: impl Future<Output = ()>) -> Result<(), RelayError> {
        tokio::pin!(stop);
        let mut away = Away::new();
        loop {
            let connected = tokio::select! {
                connected = self.connect() => connected,
                () = &mut stop => return Ok(()),
            };
            let why = match connected {
                Ok((mut stream, mut input)) => {
                    self.end.borrow_mut().connected(self.now());
                    let why = self.talk(&mut stream, &mut input, &mut away, stop.as_mut()).await;
                    self.end.borrow_mut().lost();
                    let _told_by_the_link = self.deliver();
                    away.begins();
                    why
                }
                Err(why) => why,
            };
            match why {
                NoLink::Stopped => return Ok(()),
                NoLink::Refused(Refuse { reason, retry: false }) => return Err(RelayError::Refused(reason)),
                NoLink::Upgrade(NoUpgrade::Http { .. }) if away.was_never_up() => {
                    // A store closes the connection on HTTP, but so does a server that has just died.
                    if let Some(mistaken) = store_at(self.config.server.endpoint()).await {
                        return Err(RelayError::Mistaken(mistaken.to_string()));
                    }
                    self.tell_away(&mut away, &why);
                }
                _ => self.tell_away(&mut away, &why),
            }
            tokio::select! {
                () = tokio::time::sleep(away.pause()) => {}
                () = &mut stop => return Ok(()),
            }
        }
    }

    fn tell_away(&self, away: &mut Away, why: &NoLink) {
        let since = away.since.elapsed();
        if since >= away.next_word {
            away.next_word = since.max(FIRST_WORD).saturating_mul(2);
            let held = self.clients.borrow().len();
            self.say(format!(
                "the server {} has been away for {}, {} held: {why}",
                self.config.server.endpoint(),
                Elapsed(since),
                counted(held, "client is", "clients are")
            ));
        }
        if self.config.give_up.is_some_and(|limit| since >= limit) && !self.clients.borrow().is_empty() {
            self.say(format!(
                "gave up on the server after {} (--give-up): closing all clients",
                Elapsed(since)
            ));
            self.give_up();
        }
    }

    /// Makes a connection that has become a link. Also returns the bytes that were already read.
    async fn connect(&self) -> Result<(Stream, BytesMut), NoLink> {
        let mut last = None;
        for addr in resolve(self.config.server.endpoint(), STEP).await? {
            match tokio::time::timeout(STEP, self.upgrade(addr)).await {
                Ok(Ok(link)) => return Ok(link),
                Ok(Err(why)) => last = Some(why),
                Err(_) => last = Some(NoLink::Late(addr)),
            }
        }
        // There is at least one address, so `last` is set.
        Err(last.unwrap_or(NoLink::Closed))
    }

    async fn upgrade(&self, addr: SocketAddr) -> Result<(Stream, BytesMut), NoLink> {
        Ok(upgrade(&self.config.server, addr, open(addr, STEP).await?).await?)
    }

    /// Moves frames until the link breaks or the relay is stopped. Returns the reason.
    async fn talk(
        &self,
        stream: &mut Stream,
        input: &mut BytesMut,
        away: &mut Away,
        stop: Pin<&mut impl Future<Output = ()>>,
    ) -> NoLink {
        let mut out = BytesMut::new();
        let stopped = tokio::select! {
            Err(why) = self.move_frames(stream, input, &mut out, away) => return why,
            () = stop => NoLink::Stopped,
        };
        self.end.borrow_mut().goodbye();
        self.end.borrow_mut().put_frames(&mut out, FRAMES_AT_ONCE, self.now());
        // Without a goodbye, the server would wait for the relay until its patience is over.
        let _said = tokio::time::timeout(TICK, say_goodbye(stream, &out)).await;
        stopped
    }

    async fn move_frames(
        &self,
        stream: &mut Stream,
        input: &mut BytesMut,
        out: &mut BytesMut,
        away: &mut Away,
    ) -> Result<Infallible, NoLink> {
        let mut ticks = tokio::time::interval(TICK);
        loop {
            self.end.borrow_mut().receive(input, self.now())?;
            self.wake_relieved();
            while let Some(event) = self.deliver() {
                match event {
                    RelayEvent::Refused(refuse) => return Err(NoLink::Refused(refuse)),
                    _ => self.tell_up(away),
                }
            }
            if out.is_empty() && self.end.borrow().has_frames() {
                self.end.borrow_mut().put_frames(out, FRAMES_AT_ONCE, self.now());
                self.wake_full();
            }
            tokio::select! {
                moved = stream.exchange(out, input) => {
                    if moved? == Moved::Read(0) {
                        return Err(NoLink::Closed);
                    }
                }
                () = self.frames.notified() => {}
                _ = ticks.tick() => self.end.borrow_mut().tick(self.now())?,
            }
        }
    }

    fn tell_up(&self, away: &mut Away) {
        let held = self.clients.borrow().len();
        let server = self.config.server.endpoint();
        if std::mem::replace(&mut away.was_up, true) {
            self.say(format!(
                "the server {server} is back after {}, {} on",
                Elapsed(away.since.elapsed()),
                counted(held, "client goes", "clients go")
            ));
        } else {
            self.say(format!("linked to {server} as {}", self.config.name));
        }
        away.is_up = true;
    }
}

/// Writes the last frames, and then reads until the server has them. Closing a connection with unread bytes
/// resets it, and the reset could overtake the frames.
async fn say_goodbye(stream: &mut Stream, last: &[u8]) -> io::Result<()> {
    stream.write_all(last).await?;
    stream.shutdown().await?;
    let mut unread = [0; 4096];
    while stream.read(&mut unread).await? > 0 {}
    Ok(())
}

/// The state of an unreachable server.
struct Away {
    was_up: bool,
    is_up: bool,
    since: Instant,
    attempts: u32,
    /// The next log line comes when the server has been unreachable for this long.
    next_word: Duration,
}

impl Away {
    fn new() -> Self {
        Self { was_up: false, is_up: false, since: Instant::now(), attempts: 0, next_word: FIRST_WORD }
    }

    /// Whether there has never been a link.
    const fn was_never_up(&self) -> bool {
        !self.was_up && !self.is_up
    }

    /// A connection has ended. If the link was up, the server counts as unreachable from now on, which is
    /// logged at once.
    fn begins(&mut self) {
        if self.is_up {
            *self = Self { was_up: true, next_word: Duration::ZERO, ..Self::new() };
        }
    }

    /// The pause before the next attempt. It grows, and differs between relays.
    fn pause(&mut self) -> Duration {
        let longest = SHORTEST.saturating_mul(2_u32.saturating_pow(self.attempts)).min(LONGEST);
        self.attempts = self.attempts.saturating_add(1);
        let random = random_number() % 1000;
        longest.mul_f64(0.5 + 0.0005 * f64::from(u32::try_from(random).unwrap_or(0)))
    }
}

//! The relay's clients: loopback connections of ordinary TCPStore clients. One task each moves bytes between
//! the socket and the link's end.

use std::cell::RefCell;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::net::{TcpListener, TcpStream};

use super::{Client, Relay, bind};
use rallypoint_link::{SessionLost, SessionNo};

/// Bytes read at once from a client.
const READ_AT_ONCE: usize = 64 * 1024;
/// After the end of its session, a client must read its last replies within this time; then it is closed.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// How many ports may be opened for runs and rounds.
const MOST_PORTS: usize = 1000;

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_AT_ONCE].into_boxed_slice());
}

impl Relay {
    /// Accepts clients of the store that the server has on `port`.
    pub(crate) async fn accept(self: Rc<Self>, listener: TcpListener, port: u16) {
        loop {
            match listener.accept().await {
                Ok((stream, addr)) => {
                    if !self.lets_in(&stream, addr) {
                        continue;
                    }
                    if self.connected.get() >= self.most_clients && !self.end.borrow_mut().make_place() {
                        self.say_crowded(format_args!(
                            "{addr}: refused, for this process may not open more files (ulimit -n)"
                        ));
                        continue;
                    }
                    self.connected.set(self.connected.get().saturating_add(1));
                    let relay = Rc::clone(&self);
                    tokio::task::spawn_local(async move {
                        relay.serve_client(stream, addr, port).await;
                        relay.connected.set(relay.connected.get().saturating_sub(1));
                    });
                }
                Err(error) => {
                    self.say_crowded(format_args!("cannot accept a client: {error}; trying again"));
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// The loopback port for the server's store on `port`. Opens it if it is not open.
    pub(crate) fn local_port(self: &Rc<Self>, port: u16) -> io::Result<u16> {
        if let Some(&local) = self.ports.borrow().get(&port) {
            return Ok(local);
        }
        if self.ports.borrow().len() >= MOST_PORTS {
            return Err(io::Error::other("the relay has opened as many ports as it may"));
        }
        // Try the same number first; another program on this host may have it.
        let ip = self.config.listen.ip();
        let listener = bind((ip, port).into()).or_else(|_| bind((ip, 0).into()))?;
        let local = listener.local_addr()?.port();
        self.ports.borrow_mut().insert(port, local);
        tokio::task::spawn_local(Rc::clone(self).accept(listener, port));
        Ok(local)
    }

    /// The address at which clients on this node reach the relay's ports.
    pub(crate) fn local_host(&self) -> String {
        let ip = self.config.listen.ip();
        if ip.is_unspecified() { Ipv4Addr::LOCALHOST.to_string() } else { ip.to_string() }
    }

    async fn serve_client(&self, stream: TcpStream, addr: SocketAddr, port: u16) {
        // A request and its reply are small, and each side waits for the other.
        let _ = stream.set_nodelay(true);
        let Some(no) = self.end.borrow_mut().open(port, addr) else {
            return self
                .say_crowded(format_args!("{addr}: refused, for there are as many clients as there may be"));
        };
        self.frames.notify_one();
        // The new client may have taken the place of another one, which must hear of it.
        let _told_by_the_link = self.deliver();
        let client = Rc::new(Client::default());
        self.clients.borrow_mut().insert(no, Rc::clone(&client));
        let lost = self.converse(&stream, no, &client).await;
        self.clients.borrow_mut().remove(&no);
        self.taken(&mut client.mailbox.borrow_mut(), usize::MAX);
        self.end.borrow_mut().close(no);
        self.frames.notify_one();
        if let Some(why) = lost.filter(|why| *why != SessionLost::Finished) {
            self.say(format!("closed the client at {addr}: {why}"));
        }
    }

    /// Moves bytes until the client disconnects, or until its session is over. Returns the reason in the
    /// second case.
    async fn converse(&self, stream: &TcpStream, no: SessionNo, client: &Client) -> Option<SessionLost> {
        let mut out = BytesMut::new();
        let mut sends = true;
        loop {
            let lost = {
                let mut mailbox = client.mailbox.borrow_mut();
                if out.is_empty() {
                    out = std::mem::take(&mut mailbox.replies);
                }
                mailbox.lost.clone()
            };
            let is_over = |why: &SessionLost| out.is_empty() || *why == SessionLost::NotRead;
            if lost.as_ref().is_some_and(is_over) {
                return lost;
            }
            if !out.is_empty() {
                match stream.try_write(&out) {
                    Ok(written) => {
                        out.advance(written);
                        self.taken(&mut client.mailbox.borrow_mut(), written);
                        self.end.borrow_mut().delivered(no, written);
                        if self.end.borrow().has_frames() {
                            self.frames.notify_one();
                        }
                        continue;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return None,
                }
            }
            let has_room = sends && self.end.borrow().room(no) > 0;
            if sends && !has_room {
                self.full.borrow_mut().insert(no);
            }
            tokio::select! {
                ready = stream.writable(), if !out.is_empty() => ready.ok()?,
                ready = stream.readable(), if has_room => {
                    ready.ok()?;
                    match self.read(stream, no) {
                        Ok(0) => {
                            sends = false;
                            self.end.borrow_mut().finish(no);
                            self.frames.notify_one();
                        }
                        Ok(_) => self.frames.notify_one(),
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        Err(_) => return None,
                    }
                }
                () = client.notify.notified() => {}
                // The client can still read its last replies.
                () = tokio::time::sleep(LAST_WORDS), if lost.is_some() => return lost,
            }
        }
    }

    fn read(&self, stream: &TcpStream, no: SessionNo) -> io::Result<usize> {
        SCRATCH.with_borrow_mut(|scratch| {
            let most = self.end.borrow().room(no).min(scratch.len());
            if most == 0 {
                // Other clients have used the room meanwhile. An empty read would look like the client's end.
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let read = stream.try_read(&mut scratch[..most])?;
            if read > 0 {
                let bytes = Bytes::copy_from_slice(&scratch[..read]);
                self.end.borrow_mut().from_client(no, bytes);
                self.wake_relieved();
                // While the server is unreachable, the answer may come from the relay.
                let _told_by_the_link = self.deliver();
            }
            Ok(read)
        })
    }
}

//! The relay: the store and the API of a server on this node's loopback, for processes that know nothing of it. All of
//! them share one connection to the server, the link. It may break, and the server may move: they only wait.
//! The rules are in [`crate::core::link`].

mod api;
mod clients;
mod owner;
mod uplink;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Notify;
use tokio::task::LocalSet;

use crate::core::ids::Timestamp;
use crate::core::link::{FIRST_STORE, Identity, RelayEnd, RelayEvent, RelayLife, SessionLost, SessionNo};
use crate::node::client::http::AdminUrl;
use crate::process::{self, descriptor_limit, memory_limit};

/// What a relay is told.
#[derive(Debug, Clone)]
pub struct RelayConfig {
    /// The server's admin port.
    pub server: AdminUrl,
    /// Where the clients of the server's first store come.
    pub listen: SocketAddr,
    /// Where the clients of the server's API come.
    pub admin: Option<SocketAddr>,
    /// The place it takes at the server.
    pub name: String,
    /// A number that no other relay has.
    pub life: RelayLife,
    /// For how long clients are held while the server is away.
    pub give_up: Option<Duration>,
    /// The only user on this host whose processes may connect.
    pub client_uid: Option<u32>,
    /// Bytes of memory for what clients send, and for what they have not read.
    pub max_memory: usize,
}

/// Half of what the control group may have. More than 256 MiB helps nobody.
pub fn default_max_memory() -> usize {
    const MOST: usize = 256 << 20;
    memory_limit().map_or(MOST, |limit| (limit / 2).min(MOST))
}

/// Why a relay ends.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// A port of its own cannot be had.
    #[error("cannot listen on {addr}: {source}{}", why_in_use(*addr, source))]
    Listen {
        /// Which.
        addr: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// It makes no sense to come again.
    #[error("the server does not take this relay: {0}")]
    Refused(String),
    /// Another port was meant.
    #[error("{0}")]
    Mistaken(String),
}

/// What has the port, if that is why it cannot be had.
fn why_in_use(addr: SocketAddr, error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::AddrInUse {
        format!(": {}", process::holder_of(addr))
    } else {
        String::new()
    }
}

/// What has come for a client, until its task takes it.
#[derive(Debug, Default)]
struct Mailbox {
    replies: BytesMut,
    /// Bytes that the client has not taken, with those that its task has.
    unread: usize,
    /// When it took some last.
    took: Option<Instant>,
    lost: Option<SessionLost>,
}

/// A client as the relay's other tasks see it.
#[derive(Debug, Default)]
struct Client {
    mailbox: RefCell<Mailbox>,
    notify: Notify,
}

/// What the relay's tasks share: they run on one thread.
struct Relay {
    config: RelayConfig,
    started: Instant,
    end: RefCell<RelayEnd>,
    clients: RefCell<HashMap<SessionNo, Rc<Client>>>,
    /// Bytes that all clients together have not taken.
    unread: Cell<usize>,
    /// So many connections of clients leave descriptors for the API, and so many there are.
    most_clients: usize,
    connected: Cell<usize>,
    /// Those that are not read from until more of what they sent has gone out.
    full: RefCell<HashSet<SessionNo>>,
    /// There are frames to send.
    frames: Notify,
    /// Loopback ports of the server's other stores.
    ports: RefCell<HashMap<u16, u16>>,
    say: Box<dyn Fn(String)>,
    /// Clients of other users, which were refused.
    strangers: RefCell<Repeated>,
    /// Clients that were refused for want of places or descriptors.
    crowded: RefCell<Repeated>,
    /// Clients that left unheard.
    unheard: RefCell<Repeated>,
}

/// Something that peers can make happen again and again: it is said now and then, with how often it was so.
#[derive(Default)]
struct Repeated {
    count: u64,
    said: Option<Instant>,
}

impl Repeated {
    /// It has happened once more. Returns how often it has, if it is to be said.
    fn again(&mut self) -> Option<u64> {
        const SELDOM: Duration = Duration::from_secs(10);
        self.count = self.count.saturating_add(1);
        let is_due = self.said.is_none_or(|said| said.elapsed() >= SELDOM);
        is_due.then(|| {
            self.said = Some(Instant::now());
            self.count
        })
    }
}

impl Relay {
    /// Whether a client may connect: it is of the one user, if there is one. If not, that is said, but not too often.
    fn lets_in(&self, stream: &TcpStream, addr: SocketAddr) -> bool {
        let Some(wanted) = self.config.client_uid else { return true };
        let user = match owner::user_of_client(stream) {
            Ok(Some(user)) if user == wanted => return true,
            Ok(Some(user)) => format!("it is of user {user}"),
            Ok(None) => "it is not on this host, or has gone".to_owned(),
            Err(error) => format!("the kernel does not tell its user: {error}"),
        };
        if let Some(count) = self.strangers.borrow_mut().again() {
            self.say(format!(
                "{addr}: refused, for {user} and only user {wanted} may connect (--client-uid); {count} refused so far"
            ));
        }
        false
    }

    /// A client cannot be served, for this reason.
    fn say_crowded(&self, why: impl std::fmt::Display) {
        if let Some(count) = self.crowded.borrow_mut().again() {
            self.say(format!("{why}; {count} times so far"));
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp(self.started.elapsed())
    }

    fn say(&self, line: impl Into<String>) {
        (self.say)(line.into());
    }

    /// Hands on what the link's end has for the clients. Returns what it has to say about the link itself.
    fn deliver(&self) -> Option<RelayEvent> {
        loop {
            let event = self.end.borrow_mut().next_event()?;
            let no = match event {
                RelayEvent::Reply(no, _) | RelayEvent::Lost(no, _) => no,
                RelayEvent::Up | RelayEvent::Refused(_) => return Some(event),
                RelayEvent::Unheard(addr) => {
                    if let Some(count) = self.unheard.borrow_mut().again() {
                        let why =
                            "left while the server was away, and there is no room for what it said last";
                        self.say(format!("{addr}: {why}; {count} times so far"));
                    }
                    continue;
                }
            };
            let Some(client) = self.clients.borrow().get(&no).cloned() else { continue };
            let mut mailbox = client.mailbox.borrow_mut();
            match event {
                RelayEvent::Reply(_, bytes) => {
                    mailbox.replies.extend_from_slice(&bytes);
                    if mailbox.unread == 0 {
                        mailbox.took = Some(Instant::now());
                    }
                    mailbox.unread = mailbox.unread.saturating_add(bytes.len());
                    self.unread.set(self.unread.get().saturating_add(bytes.len()));
                }
                RelayEvent::Lost(_, why) => mailbox.lost = Some(why),
                RelayEvent::Up | RelayEvent::Refused(_) | RelayEvent::Unheard(_) => {}
            }
            drop(mailbox);
            client.notify.notify_one();
            self.cut_off_who_reads_nothing();
        }
    }

    /// Where unread replies take too much memory, of the clients that take none the one that has most is closed.
    fn cut_off_who_reads_nothing(&self) {
        const STANDS_STILL: Duration = Duration::from_secs(2);
        if self.unread.get() <= self.config.max_memory / 2 {
            return;
        }
        let clients = self.clients.borrow();
        let unread = |client: &&Rc<Client>| client.mailbox.borrow().unread;
        let stands_still = |client: &&Rc<Client>| {
            let mailbox = client.mailbox.borrow();
            mailbox.unread > 0 && mailbox.took.is_some_and(|took| took.elapsed() >= STANDS_STILL)
        };
        if let Some(client) = clients.values().filter(stands_still).max_by_key(unread) {
            let mut mailbox = client.mailbox.borrow_mut();
            mailbox.replies = BytesMut::new();
            mailbox.lost = Some(SessionLost::NotRead);
            self.taken(&mut mailbox, usize::MAX);
            drop(mailbox);
            client.notify.notify_one();
        }
    }

    /// A client has taken so many bytes, or will take them no more.
    fn taken(&self, mailbox: &mut Mailbox, bytes: usize) {
        mailbox.took = Some(Instant::now());
        let bytes = bytes.min(mailbox.unread);
        mailbox.unread = mailbox.unread.saturating_sub(bytes);
        self.unread.set(self.unread.get().saturating_sub(bytes));
    }

    /// There may be memory again for clients that had none.
    fn wake_relieved(&self) {
        if self.end.borrow_mut().take_relief() {
            self.wake_full();
        }
    }

    /// Frames have gone out: clients that were not read from may have room now.
    fn wake_full(&self) {
        let clients = self.clients.borrow();
        for no in self.full.borrow_mut().drain() {
            if let Some(client) = clients.get(&no) {
                client.notify.notify_one();
            }
        }
    }

    /// Ends all clients: the server has been away for too long.
    fn give_up(&self) {
        for client in self.clients.borrow().values() {
            client.mailbox.borrow_mut().lost = Some(SessionLost::Ended("the relay has given up".into()));
            client.notify.notify_one();
        }
    }
}

/// Connections that the kernel may hold ready: all ranks of a node start at once.
const BACKLOG: u32 = 4096;

fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

/// Sockets of a relay that are bound: its clients can connect from here on.
#[derive(Debug)]
pub struct Bound {
    store: TcpListener,
    admin: Option<TcpListener>,
}

impl Bound {
    /// Binds the relay's sockets.
    pub fn bind(config: &RelayConfig) -> Result<Self, RelayError> {
        let listen = |addr| bind(addr).map_err(|source| RelayError::Listen { addr, source });
        Ok(Self { store: listen(config.listen)?, admin: config.admin.map(listen).transpose()? })
    }

    /// Where the clients of the first store come.
    pub fn store_addr(&self) -> io::Result<SocketAddr> {
        self.store.local_addr()
    }

    /// Where the clients of the API come.
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin.as_ref().and_then(|admin| admin.local_addr().ok())
    }

    /// Serves until `stop` is done or the server refuses the relay for good. `say` gets each line for people.
    pub async fn serve(
        self,
        config: RelayConfig,
        say: Box<dyn Fn(String)>,
        stop: impl Future<Output = ()>,
    ) -> Result<(), RelayError> {
        /// Descriptors that are left to the API and the link, of those that there are.
        const FOR_OTHERS: usize = 4096;
        let identity = Identity { name: config.name.clone(), life: config.life };
        let descriptors = descriptor_limit().unwrap_or(usize::MAX);
        let for_others = FOR_OTHERS.min(descriptors / 4);
        let end = RelayEnd::new(identity).within(config.max_memory / 2);
        let relay = Rc::new(Relay {
            config,
            started: Instant::now(),
            end: RefCell::new(end),
            clients: RefCell::default(),
            unread: Cell::new(0),
            most_clients: descriptors.saturating_sub(for_others),
            connected: Cell::new(0),
            full: RefCell::default(),
            frames: Notify::new(),
            ports: RefCell::default(),
            say,
            strangers: RefCell::default(),
            crowded: RefCell::default(),
            unheard: RefCell::default(),
        });
        let local = LocalSet::new();
        local.spawn_local(Rc::clone(&relay).accept(self.store, FIRST_STORE));
        if let Some(admin) = self.admin {
            // Each has a connection here and one to the server.
            let at_once = (for_others / 4).max(1);
            local.spawn_local(Rc::clone(&relay).serve_api(admin, at_once));
        }
        local.run_until(relay.keep_link(stop)).await
    }
}

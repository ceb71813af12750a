//! The relay offers the store and the API of a server on this node's loopback, to processes that know nothing
//! about it. All of them share one connection to the server, the link. The link may break and the server may
//! move: the processes then only wait. The rules are in [`rallypoint_link`].

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

use crate::client::http::AdminUrl;
use rallypoint_link::{FIRST_STORE, Identity, RelayEnd, RelayEvent, RelayLife, SessionLost, SessionNo};
use rallypoint_process::{self as process, descriptor_limit, memory_limit};
use rallypoint_protocol::ids::Timestamp;

/// The settings of a relay.
#[derive(Debug, Clone)]
pub struct RelayConfig {
    /// The server's admin port.
    pub server: AdminUrl,
    /// The address for clients of the server's first store.
    pub listen: SocketAddr,
    /// The address for clients of the server's API.
    pub admin: Option<SocketAddr>,
    /// The name by which the server knows this relay.
    pub name: String,
    /// A unique number of this relay process.
    pub life: RelayLife,
    /// How long clients are held while the server is unreachable; `None` means for ever.
    pub give_up: Option<Duration>,
    /// The only user on this host whose processes may connect.
    pub client_uid: Option<u32>,
    /// Memory for bytes from clients, and for replies that they have not read.
    pub max_memory: usize,
}

/// Half of the control group's limit. More than 256 MiB would not help.
pub fn default_max_memory() -> usize {
    const MOST: usize = 256 << 20;
    memory_limit().map_or(MOST, |limit| (limit / 2).min(MOST))
}

/// Why a relay ended.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// One of its ports cannot be bound.
    #[error("cannot listen on {addr}: {source}{}", why_in_use(*addr, source))]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The server refuses the relay for good.
    #[error("the server does not take this relay: {0}")]
    Refused(String),
    /// The given port is another kind of port.
    #[error("{0}")]
    Mistaken(String),
}

/// Names the process that has the port, if the port is in use.
fn why_in_use(addr: SocketAddr, error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::AddrInUse {
        format!(": {}", process::holder_of(addr))
    } else {
        String::new()
    }
}

/// Replies for a client, until its task takes them.
#[derive(Debug, Default)]
struct Mailbox {
    replies: BytesMut,
    /// Bytes that the client has not read, including the ones in its task's buffer.
    unread: usize,
    /// When the client last read some bytes.
    took: Option<Instant>,
    lost: Option<SessionLost>,
}

/// A client, as the relay's other tasks see it.
#[derive(Debug, Default)]
struct Client {
    mailbox: RefCell<Mailbox>,
    notify: Notify,
}

/// The state that the relay's tasks share. They run on one thread.
struct Relay {
    config: RelayConfig,
    started: Instant,
    end: RefCell<RelayEnd>,
    clients: RefCell<HashMap<SessionNo, Rc<Client>>>,
    /// Bytes that all clients together have not read.
    unread: Cell<usize>,
    /// The most client connections, so that descriptors remain for the API; then the present number.
    most_clients: usize,
    connected: Cell<usize>,
    /// Clients that are not read from until more of their bytes have been sent.
    full: RefCell<HashSet<SessionNo>>,
    /// Notified when there are frames to send.
    frames: Notify,
    /// Loopback ports of the server's other stores.
    ports: RefCell<HashMap<u16, u16>>,
    say: Box<dyn Fn(String)>,
    /// Refused clients of other users.
    strangers: RefCell<Repeated>,
    /// Clients that were refused for lack of places or descriptors.
    crowded: RefCell<Repeated>,
    /// Clients that disconnected before the server heard of them.
    unheard: RefCell<Repeated>,
}

/// An event that peers can repeat. It is logged at most every few seconds, with its count.
#[derive(Default)]
struct Repeated {
    count: u64,
    said: Option<Instant>,
}

impl Repeated {
    /// Counts the event. Returns the count if it is time to log it.
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
    /// Whether a client may connect: `client_uid`, if set, must own it. A refusal is logged, but not too
    /// often.
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
                "{addr}: refused, for {user} and only user {wanted} may connect (--client-uid); {count} \
                 refused so far"
            ));
        }
        false
    }

    /// Logs that a client cannot be served, with the reason.
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

    /// Delivers the events of the link's end to the clients. Returns an event about the link itself.
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

    /// If unread replies use too much memory, closes a client that reads nothing: the one with the most
    /// unread bytes.
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

    /// Records that a client has read `bytes` bytes, or will not read them any more.
    fn taken(&self, mailbox: &mut Mailbox, bytes: usize) {
        mailbox.took = Some(Instant::now());
        let bytes = bytes.min(mailbox.unread);
        mailbox.unread = mailbox.unread.saturating_sub(bytes);
        self.unread.set(self.unread.get().saturating_sub(bytes));
    }

    /// Wakes clients that lacked memory, if there is some again.
    fn wake_relieved(&self) {
        if self.end.borrow_mut().take_relief() {
            self.wake_full();
        }
    }

    /// Wakes clients that were not read from: frames have left, so there may be room.
    fn wake_full(&self) {
        let clients = self.clients.borrow();
        for no in self.full.borrow_mut().drain() {
            if let Some(client) = clients.get(&no) {
                client.notify.notify_one();
            }
        }
    }

    /// Ends all clients: the server was unreachable for too long.
    fn give_up(&self) {
        for client in self.clients.borrow().values() {
            client.mailbox.borrow_mut().lost = Some(SessionLost::Ended("the relay has given up".into()));
            client.notify.notify_one();
        }
    }
}

/// Connections that the kernel may queue: all ranks of a node start at once.
const BACKLOG: u32 = 4096;

fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

/// The bound sockets of a relay. From here on its clients can connect.
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

    /// The address for clients of the first store.
    pub fn store_addr(&self) -> io::Result<SocketAddr> {
        self.store.local_addr()
    }

    /// The address for clients of the API.
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
        /// Descriptors for the API and the link; at most a quarter of all.
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
            // Each API client needs one connection here and one to the server.
            let at_once = (for_others / 4).max(1);
            local.spawn_local(Rc::clone(&relay).serve_api(admin, at_once));
        }
        local.run_until(relay.keep_link(stop)).await
    }
}

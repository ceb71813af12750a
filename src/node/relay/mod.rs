//! The relay: the store and the API of a server on this node's loopback, for processes that know nothing of it. All of
//! them share one connection to the server, the link. It may break, and the server may move: they only wait.
//! The rules are in [`crate::core::link`].

mod api;
mod clients;
mod owner;
mod uplink;

use std::cell::RefCell;
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
use crate::process;

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
    /// Those that are not read from until more of what they sent has gone out.
    full: RefCell<HashSet<SessionNo>>,
    /// There are frames to send.
    frames: Notify,
    /// Loopback ports of the server's other stores.
    ports: RefCell<HashMap<u16, u16>>,
    say: Box<dyn Fn(String)>,
    strangers: RefCell<Strangers>,
}

/// Clients of other users, which were refused.
#[derive(Default)]
struct Strangers {
    count: u64,
    said: Option<Instant>,
}

impl Relay {
    /// Whether a client may connect: it is of the one user, if there is one. If not, that is said, but not too often.
    fn lets_in(&self, stream: &TcpStream, addr: SocketAddr) -> bool {
        const SELDOM: Duration = Duration::from_secs(1);
        let Some(wanted) = self.config.client_uid else { return true };
        let user = match owner::user_of_client(stream) {
            Ok(Some(user)) if user == wanted => return true,
            Ok(Some(user)) => format!("it is of user {user}"),
            Ok(None) => "it is not on this host, or has gone".to_owned(),
            Err(error) => format!("the kernel does not tell its user: {error}"),
        };
        let mut strangers = self.strangers.borrow_mut();
        strangers.count = strangers.count.saturating_add(1);
        if strangers.said.is_none_or(|said| said.elapsed() >= SELDOM) {
            strangers.said = Some(Instant::now());
            let count = strangers.count;
            self.say(format!(
                "{addr}: refused, for {user} and only user {wanted} may connect (--client-uid); {count} refused so far"
            ));
        }
        false
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
            let (RelayEvent::Reply(no, _) | RelayEvent::Lost(no, _)) = event else { return Some(event) };
            let Some(client) = self.clients.borrow().get(&no).cloned() else { continue };
            let mut mailbox = client.mailbox.borrow_mut();
            match event {
                RelayEvent::Reply(_, bytes) => mailbox.replies.extend_from_slice(&bytes),
                RelayEvent::Lost(_, why) => mailbox.lost = Some(why),
                RelayEvent::Up | RelayEvent::Refused(_) => {}
            }
            client.notify.notify_one();
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
        let identity = Identity { name: config.name.clone(), life: config.life };
        let relay = Rc::new(Relay {
            config,
            started: Instant::now(),
            end: RefCell::new(RelayEnd::new(identity)),
            clients: RefCell::default(),
            full: RefCell::default(),
            frames: Notify::new(),
            ports: RefCell::default(),
            say,
            strangers: RefCell::default(),
        });
        let local = LocalSet::new();
        local.spawn_local(Rc::clone(&relay).accept(self.store, FIRST_STORE));
        if let Some(admin) = self.admin {
            local.spawn_local(Rc::clone(&relay).serve_api(admin));
        }
        local.run_until(relay.keep_link(stop)).await
    }
}

//! The TCP sockets of this host, as the kernel lists them in `/proc/net/tcp` and `tcp6`. They show which
//! process is at the other end of a connection within the host, and which one uses a port.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// A socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Socket {
    /// Its own address.
    pub local: SocketAddr,
    /// The address of the other end.
    pub remote: SocketAddr,
    /// Its state.
    pub state: State,
    /// The user to whom it belongs. Not known if its process has closed it.
    pub user: Option<u32>,
    inode: u64,
}

/// The state of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It accepts connections.
    Listens,
    /// It waits for an answer to its first packet.
    Dials,
    /// It is connected.
    Connected,
    /// Its connection has ended, or is about to.
    Ends,
    /// Its connection has ended. The port is kept for a minute, so that late packets do no harm.
    TimeWait,
}

impl State {
    /// The state for its number in the tables.
    fn parse(text: &str) -> Option<Self> {
        match u8::from_str_radix(text, 16).ok()? {
            2 => Some(Self::Dials),
            1 | 3 | 12 => Some(Self::Connected),
            6 => Some(Self::TimeWait),
            10 => Some(Self::Listens),
            4..=11 => Some(Self::Ends),
            _ => None,
        }
    }
}

impl Socket {
    /// Reads a row of a table.
    fn parse(row: &str) -> Option<Self> {
        let mut words = row.split_whitespace().skip(1);
        let (local, remote) = (address(words.next()?)?, address(words.next()?)?);
        let state = State::parse(words.next()?)?;
        // The next fields are queues, timer and retransmits, then the user, a time-out and the inode.
        let (user, inode) = (words.nth(3)?.parse().ok()?, words.nth(1)?.parse().ok()?);
        Some(Self { local, remote, state, user: Some(user).filter(|_| inode != 0), inode })
    }

    /// The name and id of the process that has the socket. `None` if this user may not look, or if the
    /// process is in another container.
    fn process(&self) -> Option<(String, u32)> {
        if self.inode == 0 {
            return None;
        }
        let link = format!("socket:[{}]", self.inode);
        let has_it = |process: &Path| {
            let files = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
            files.filter_map(|file| std::fs::read_link(file.path()).ok()).any(|to| to.as_os_str() == &*link)
        };
        std::fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let path = entry.path();
            let name = std::fs::read_to_string(path.join("comm")).ok().filter(|_| has_it(&path))?;
            Some((name.trim().to_owned(), pid))
        })
    }

    /// Its process, for people.
    pub fn owner(&self) -> String {
        match (self.process(), self.user) {
            (Some((name, pid)), _) => format!("{name} (pid {pid})"),
            (None, Some(user)) => format!("a process of user {user} that cannot be seen from here"),
            (None, None) => "a process that cannot be seen from here".into(),
        }
    }
}

/// All TCP sockets in the network of this process.
pub fn sockets() -> io::Result<Vec<Socket>> {
    let mut all = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        match std::fs::read_to_string(table) {
            Ok(table) => all.extend(table.lines().filter_map(Socket::parse)),
            // A host without IPv6 has no such table.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// Why it is not possible to listen on a port in use, and what to do, for people.
pub fn holder_of(wanted: SocketAddr) -> String {
    match sockets() {
        Ok(sockets) => explain(&sockets, wanted, Socket::owner),
        Err(error) => format!("/proc/net/tcp, which says what has the port, cannot be read: {error}"),
    }
}

fn explain(sockets: &[Socket], wanted: SocketAddr, owner: impl Fn(&Socket) -> String) -> String {
    let any = |ip: IpAddr| ip.is_unspecified();
    let ip = wanted.ip().to_canonical();
    let is_in_the_way = |socket: &&Socket| {
        let other = socket.local.ip();
        // A socket on `::` also takes IPv4 connections.
        socket.local.port() == wanted.port() && (any(ip) || any(other) || ip == other)
    };
    let find = |state| sockets.iter().filter(is_in_the_way).find(|socket| socket.state == state);
    let port = wanted.port();
    if let Some(socket) = find(State::Listens) {
        return format!(
            "{} listens on {}; stop it, or choose another port (`rallypoint doctor` shows what a store \
             answers)",
            owner(socket),
            socket.local
        );
    }
    if let Some(socket) = find(State::Connected).or_else(|| find(State::Dials)) {
        return format!(
            "{} has it for a connection to {}; choose a port outside net.ipv4.ip_local_port_range, or add \
             {port} to net.ipv4.ip_local_reserved_ports, so that no connection gets it",
            owner(socket),
            socket.remote
        );
    }
    if let Some(socket) = find(State::Ends).or_else(|| find(State::TimeWait)) {
        return format!(
            "a connection to {} that has ended keeps it for a minute or so (TIME_WAIT, FIN_WAIT); try again \
             then",
            socket.remote
        );
    }
    "no TCP socket that can be seen has it: one that is bound and does not listen may, or one that is closed \
     by now"
        .into()
}

/// Reads an address of the tables: words of 32 bits in the byte order of this machine.
fn address(word: &str) -> Option<SocketAddr> {
    let (ip, port) = word.split_once(':')?;
    let word_at =
        |at: usize| Some(u32::from_str_radix(ip.get(at..at.checked_add(8)?)?, 16).ok()?.to_ne_bytes());
    let ip = match ip.len() {
        8 => IpAddr::from(Ipv4Addr::from(word_at(0)?)),
        32 => {
            let words = [word_at(0)?, word_at(8)?, word_at(16)?, word_at(24)?];
            let mut bytes = [0; 16];
            bytes.iter_mut().zip(words.as_flattened()).for_each(|(to, from)| *to = *from);
            IpAddr::from(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some((ip, u16::from_str_radix(port, 16).ok()?).into())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn what_listens_and_what_is_connected_is_named_with_its_process() {
        let own = format!("(pid {})", std::process::id());
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let at = listener.local_addr().expect("an address");
        for wanted in
            [at, (Ipv4Addr::UNSPECIFIED, at.port()).into(), (Ipv6Addr::UNSPECIFIED, at.port()).into()]
        {
            let said = holder_of(wanted);
            assert!(said.contains(&own) && said.contains(&format!("listens on {at}")), "{wanted}: {said}");
        }
        let client = TcpStream::connect(at).expect("connected");
        let said = holder_of(client.local_addr().expect("an address"));
        assert!(said.contains(&own) && said.contains(&format!("for a connection to {at}")), "{said}");
        let elsewhere = SocketAddr::from((Ipv4Addr::new(127, 0, 0, 9), at.port()));
        assert!(holder_of(elsewhere).contains("no TCP socket"), "another address of this host is free");
    }

    #[test]
    fn each_kind_of_socket_is_explained_and_a_listener_before_its_connections() {
        let at = |ip: [u8; 4], port: u16| SocketAddr::from((ip, port));
        let socket = |local, remote, state| Socket { local, remote, state, user: Some(7), inode: 0 };
        let (mine, any, peer) = (at([10, 0, 0, 1], 29500), at([0; 4], 29500), at([10, 0, 0, 2], 443));
        let said = |sockets: &[Socket]| explain(sockets, mine, |_| "python (pid 5)".into());
        let ended = socket(mine, peer, State::TimeWait);
        let dials = socket(mine, peer, State::Connected);
        let listens = socket(any, at([0; 4], 0), State::Listens);
        assert!(
            said(&[ended]).starts_with("a connection to 10.0.0.2:443 that has ended"),
            "{}",
            said(&[ended])
        );
        assert!(said(&[ended, dials]).starts_with("python (pid 5) has it for a connection to 10.0.0.2:443"));
        assert!(said(&[ended, dials, listens]).starts_with("python (pid 5) listens on 0.0.0.0:29500"));
        let others =
            [socket(at([10, 0, 0, 3], 29500), peer, State::Listens), socket(peer, mine, State::Connected)];
        assert!(said(&others).starts_with("no TCP socket"), "{}", said(&others));
    }

    #[test]
    fn a_row_tells_addresses_state_and_user() {
        let row = |state: &str, user: &str, inode: &str| {
            format!(
                "  1: 0100007F:9C40 0100007F:733C {state} 00000000:00000000 00:00000000 00000000 {user} 0 \
                 {inode} 1"
            )
        };
        let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if cfg!(target_endian = "little") {
            let socket = Socket::parse(&row("01", "1000", "4242")).expect("a row");
            assert_eq!((socket.local, socket.remote), (loopback(40000), loopback(29500)));
            assert_eq!((socket.state, socket.user), (State::Connected, Some(1000)));
            let closed = Socket::parse(&row("06", "0", "0")).expect("a row");
            assert_eq!((closed.state, closed.user), (State::TimeWait, None));
        }
        for no_row in ["sl local_address rem_address", "", "1: 0100007F:9C40 0100007F:733C 01"] {
            assert_eq!(Socket::parse(no_row), None, "{no_row}");
        }
    }
}

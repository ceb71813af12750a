//! Whose socket a client on this host is, by the kernel's word: `/proc/net/tcp` has the user of each socket.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::TcpStream;

/// The user that the client's end of a connection within this host belongs to; `None` if there is no such socket any
/// more.
pub(super) fn user_of_client(stream: &TcpStream) -> io::Result<Option<u32>> {
    let (client, relay) = (stream.peer_addr()?, stream.local_addr()?);
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        match std::fs::read_to_string(table) {
            Ok(table) => {
                if let Some(user) = table.lines().find_map(|row| user_in(row, client, relay)) {
                    return Ok(Some(user));
                }
            }
            // A host without IPv6 has no table of it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// The user in a row, if it is that of the socket from `client` to `relay`.
fn user_in(row: &str, client: SocketAddr, relay: SocketAddr) -> Option<u32> {
    let mut words = row.split_whitespace().skip(1);
    let is = |word: &str, addr: SocketAddr| {
        address(word).is_some_and(|(ip, port)| (ip, port) == (addr.ip().to_canonical(), addr.port()))
    };
    if !is(words.next()?, client) || !is(words.next()?, relay) {
        return None;
    }
    // Behind them: state, queues, timer, retransmits, then the user, a timeout and the inode.
    let user = words.nth(4)?.parse().ok()?;
    // A socket that its process has closed has no inode, and its user is no longer told.
    (words.nth(1)? != "0").then_some(user)
}

/// An address as these tables have it: words of 32 bits in the order of this machine.
fn address(word: &str) -> Option<(IpAddr, u16)> {
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
    Some((ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_kernel_tells_the_user_of_a_client_and_nothing_of_one_that_has_gone() {
        for (listen, connect) in
            [("127.0.0.1:0", Ipv4Addr::LOCALHOST.into()), ("[::]:0", IpAddr::V4(Ipv4Addr::LOCALHOST))]
        {
            let Ok(listener) = tokio::net::TcpListener::bind(listen).await else { continue };
            let port = listener.local_addr().expect("bound").port();
            let client = TcpStream::connect((connect, port)).await.expect("connected");
            let (accepted, _) = listener.accept().await.expect("a client");
            let own = rustix::process::getuid().as_raw();
            assert_eq!(user_of_client(&accepted).expect("a table"), Some(own), "{listen}");
            drop(client);
            assert_eq!(user_of_client(&accepted).expect("a table"), None, "{listen}: it is closed");
        }
    }

    #[test]
    fn a_row_of_another_socket_says_nothing() {
        let row = "  1: 0100007F:9C40 0100007F:733C 01 00000000:00000000 00:00000000 00000000  1000        0 4242 1";
        let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if cfg!(target_endian = "little") {
            assert_eq!(user_in(row, at(40000), at(29500)), Some(1000));
        }
        assert_eq!(user_in(row, at(29500), at(40000)), None, "that is the relay's end");
        assert_eq!(user_in("sl local_address rem_address", at(1), at(2)), None);
        assert_eq!(user_in("", at(1), at(2)), None);
    }
}

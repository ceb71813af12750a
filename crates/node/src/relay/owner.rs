//! Finds the user of a client on this host, from the kernel's tables.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpStream;

use rallypoint_process::sockets;

/// The user who owns the client's end of a connection within this host. `None` if that socket no longer
/// exists.
pub(crate) fn user_of_client(stream: &TcpStream) -> io::Result<Option<u32>> {
    let plain = |addr: SocketAddr| SocketAddr::from((addr.ip().to_canonical(), addr.port()));
    let (client, relay) = (plain(stream.peer_addr()?), plain(stream.local_addr()?));
    let mut ends = sockets()?.into_iter().filter(|socket| (socket.local, socket.remote) == (client, relay));
    Ok(ends.find_map(|socket| socket.user))
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

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
}

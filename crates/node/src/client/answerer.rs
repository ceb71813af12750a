//! Recognizes a foreign server in place of a store, so that people need not read hex.

/// The kind of server that answered the hello of a TCPStore client, by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Answerer {
    /// An HTTP/1 server.
    #[error("an HTTP server answers there; the store has a port of its own (29500, while 29501 is for HTTP)")]
    Http,
    /// An HTTP/2 server, such as etcd or another gRPC server.
    #[error("an HTTP/2 (gRPC) server answers there; is this the right port?")]
    Http2,
    /// A TLS server.
    #[error("a TLS server answers there; is this the right port?")]
    Tls,
    /// An SSH server.
    #[error("an SSH server answers there; is this the right port?")]
    Ssh,
    /// A Redis server.
    #[error("a Redis server answers there; is this the right port?")]
    Redis,
    /// None of these.
    #[error("it answers with {}; is this the right port?", Hex(.0, *.1))]
    Unknown(
        /// The first bytes.
        [u8; 8],
        /// How many bytes there are.
        usize,
    ),
}

impl Answerer {
    /// Recognizes the first bytes of an answer.
    pub fn recognize(answer: &[u8]) -> Self {
        // Some HTTP servers answer garbage with a bare page, as HTTP 0.9 did.
        const HTTP: [&[u8]; 4] = [b"HTTP/", b"<!DOCTYPE", b"<!doctype", b"<html"];
        let begins = |with: &&[u8]| !answer.is_empty() && answer.iter().zip(*with).all(|(a, b)| a == b);
        if HTTP.iter().any(begins) {
            Self::Http
        } else if begins(&&b"SSH-"[..]) {
            Self::Ssh
        } else if answer.len() >= 2 && matches!(answer[0], 0x14..=0x17) && answer[1] == 3 {
            Self::Tls
        } else if answer.len() >= 5 && answer[..2] == [0, 0] && answer[3..5] == [4, 0] {
            // A SETTINGS frame: 24 bits of length, type 4, no flags.
            Self::Http2
        } else if begins(&&b"-ERR"[..]) {
            Self::Redis
        } else {
            let mut first = [0; 8];
            let len = answer.len().min(8);
            first[..len].copy_from_slice(&answer[..len]);
            Self::Unknown(first, len)
        }
    }
}

struct Hex<'a>(&'a [u8; 8], usize);

impl std::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (n, byte) in self.0.iter().take(self.1).enumerate() {
            write!(f, "{}{byte:02x}", if n == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_servers_are_known_by_their_first_bytes() {
        assert_eq!(Answerer::recognize(b"HTTP/1.1 400 Bad Request\r\n"), Answerer::Http);
        assert_eq!(Answerer::recognize(b"HTTP"), Answerer::Http, "also by less than its name");
        assert_eq!(Answerer::recognize(b"<!DOCTYPE HTML>\n"), Answerer::Http);
        assert_eq!(Answerer::recognize(b"SSH-2.0-OpenSSH_9.2"), Answerer::Ssh);
        assert_eq!(Answerer::recognize(&[0x15, 3, 1, 0, 2, 2, 70]), Answerer::Tls);
        assert_eq!(Answerer::recognize(&[0, 0, 18, 4, 0, 0, 0, 0, 0]), Answerer::Http2);
        assert_eq!(Answerer::recognize(b"-ERR unknown command"), Answerer::Redis);
        let unknown = Answerer::recognize(&[1, 2, 255]);
        assert_eq!(unknown.to_string(), "it answers with 01 02 ff; is this the right port?");
        assert_eq!(Answerer::recognize(b""), Answerer::Unknown([0; 8], 0));
    }
}

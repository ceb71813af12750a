//! The request that turns a connection to the admin port into a relay's link.

use std::io;
use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONNECTION, HOST, UPGRADE, USER_AGENT};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::http::{AdminUrl, authorization};
use rallypoint_access::tls::{Handshake, Stream};
use rallypoint_access::tokens::BadTokenFile;
use rallypoint_api::Problem;
use rallypoint_link as link;

/// Largest body of an answer that explains why there is no link.
const MOST_WORDS: usize = 16 * 1024;

/// Why a connection has not become a link.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says it")]
pub enum NoUpgrade {
    #[error("{addr}: {source}")]
    Tls { addr: SocketAddr, source: Handshake },
    #[error("{addr} answered {status} and not with a link; is it the admin port (29501) of rallypoint?")]
    Status { addr: SocketAddr, status: StatusCode },
    #[error("{addr} answered {}: {}", problem.status, problem.detail)]
    Problem { addr: SocketAddr, problem: Problem },
    #[error(transparent)]
    Token(#[from] BadTokenFile),
    #[error("{addr} does not speak HTTP; is it the admin port (29501)? {source}")]
    Http { addr: SocketAddr, source: hyper::Error },
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Turns a new connection to this server into a link. Also returns the bytes of the link that were already
/// read.
pub async fn upgrade(
    server: &AdminUrl,
    addr: SocketAddr,
    stream: TcpStream,
) -> Result<(Stream, BytesMut), NoUpgrade> {
    let stream = server.secure(stream).await.map_err(|source| NoUpgrade::Tls { addr, source })?;
    let http = |error| match Handshake::refused(&error) {
        Some(source) => NoUpgrade::Tls { addr, source },
        None => NoUpgrade::Http { addr, source: error },
    };
    let (mut sender, connection) =
        http1::Builder::new().handshake(TokioIo::new(stream)).await.map_err(http)?;
    let connection = tokio::spawn(connection.with_upgrades());
    let token = authorization()?.into_iter();
    let request = token.fold(Request::get("/api/v1/link"), |it, token| it.header(AUTHORIZATION, token));
    let request = request
        .header(HOST, server.endpoint().to_string())
        .header(USER_AGENT, concat!("rallypoint-relay/", env!("CARGO_PKG_VERSION")))
        .header(CONNECTION, "upgrade")
        .header(UPGRADE, link::UPGRADE)
        .body(Empty::<Bytes>::new())
        .map_err(io::Error::other)?;
    let answer = sender.send_request(request).await.map_err(http)?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        let status = answer.status();
        let why = Limited::new(answer.into_body(), MOST_WORDS).collect().await;
        connection.abort();
        // A rallypoint server explains the reason.
        let why = why.ok().and_then(|why| serde_json::from_slice::<Problem>(&why.to_bytes()).ok());
        return Err(match why.filter(|_| status != StatusCode::NOT_FOUND) {
            Some(problem) => NoUpgrade::Problem { addr, problem },
            None => NoUpgrade::Status { addr, status },
        });
    }
    let upgraded = hyper::upgrade::on(answer).await.map_err(http)?;
    let parts = upgraded.downcast::<TokioIo<Stream>>();
    let parts = parts.map_err(|_| io::Error::other("the link is no socket"))?;
    Ok((parts.io.into_inner(), BytesMut::from(parts.read_buf)))
}

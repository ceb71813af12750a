//! Requests to the admin port, for commands that need one answer. Each uses one HTTP/1.1 connection. Every
//! answer has a largest size and a time limit.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Request;
use hyper::body::Body;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, CONNECTION, CONTENT_TYPE, DATE, HOST, USER_AGENT};
use hyper::http::request;
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::{Endpoint, Outlook, StepError, open, resolve};
use rallypoint_access::tls::{ClientTls, Handshake, Stream};
use rallypoint_access::tokens::{BadTokenFile, Token};
use rallypoint_protocol::ids::Elapsed;

/// The default URL of the admin port.
pub const DEFAULT_ADMIN: &str = "http://127.0.0.1:29501";
const DEFAULT_PORT: u16 = 29501;

const MAX_HEAD: usize = 16 * 1024;
const MAX_BODY: usize = 16 * 1024 * 1024;

/// The authorities that this process trusts, and its client certificate, for every connection to an admin
/// port.
static TLS: OnceLock<ClientTls> = OnceLock::new();

/// Sets the TLS side of this process, once, before the first connection.
pub fn use_tls(tls: ClientTls) {
    // A second call would come from a second command line.
    let _first = TLS.set(tls);
}

/// The file with the token that this process sends in every request to an admin port.
static TOKEN_FILE: OnceLock<PathBuf> = OnceLock::new();

/// Sets the token file of this process, once, before the first request.
pub fn use_token(file: PathBuf) {
    let _first = TOKEN_FILE.set(file);
}

/// The value of the header that carries the token. It is read anew each time, so that a new token in the file
/// takes effect at once.
pub fn authorization() -> Result<Option<String>, BadTokenFile> {
    TOKEN_FILE.get().map(|file| Ok(Token::read(file)?.authorization())).transpose()
}

/// An admin port, as `http://HOST:PORT`, `https://HOST:PORT` or `HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminUrl {
    endpoint: Endpoint,
    /// Whether the scheme is `https`; `None` without a scheme.
    encrypted: Option<bool>,
}

impl AdminUrl {
    /// The host of the address.
    pub fn host(&self) -> &str {
        self.endpoint.host()
    }

    /// The host and the port.
    pub const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The admin port at exactly this endpoint.
    pub const fn at(endpoint: Endpoint) -> Self {
        Self { endpoint, encrypted: None }
    }

    /// The usual admin port on the host of a store.
    pub fn beside(store: &Endpoint) -> Self {
        Self::at(store.with_port(DEFAULT_PORT))
    }

    /// Without a scheme, the port is encrypted if certificates were given; but not on loopback, where a relay
    /// is plain.
    fn is_encrypted(&self) -> bool {
        self.encrypted.unwrap_or_else(|| TLS.get().is_some() && !self.endpoint.is_loopback())
    }

    /// A client's new connection, encrypted if this port is.
    pub async fn secure(&self, stream: tokio::net::TcpStream) -> Result<Stream, Handshake> {
        match self.tls()? {
            Some(tls) => tls.connect(self.host(), stream).await,
            None => Ok(Stream::Plain(stream)),
        }
    }

    fn tls(&self) -> Result<Option<&'static ClientTls>, Handshake> {
        if self.is_encrypted() { TLS.get().ok_or(Handshake::NoAuthority).map(Some) } else { Ok(None) }
    }

    /// Connects to the first address that accepts a connection.
    pub async fn connect(&self, limit: Duration) -> Result<(Stream, SocketAddr), HttpError> {
        self.tls().map_err(HttpError::NoAuthority)?;
        let mut last = None;
        for addr in resolve(&self.endpoint, limit).await? {
            match open(addr, limit).await {
                Ok(stream) => {
                    let secured = self.secure(stream).await;
                    return Ok((secured.map_err(|source| HttpError::Tls { addr, source })?, addr));
                }
                Err(error) => last = Some(error),
            }
        }
        // There is at least one address, so `last` is set.
        Err(last
            .unwrap_or_else(|| StepError::ResolverSilent { host: self.host().into(), after: limit })
            .into())
    }
}

impl FromStr for AdminUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (endpoint, encrypted) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (rest, Some(true)),
            (_, Some(rest)) => (rest, Some(false)),
            (None, None) => (text, None),
        };
        let endpoint = endpoint.strip_suffix('/').unwrap_or(endpoint);
        let endpoint = Endpoint::parse(endpoint, DEFAULT_PORT).map_err(|error| error.to_string())?;
        // The server would report a request there as a foreign client.
        if endpoint.port() == Endpoint::DEFAULT_PORT {
            return Err(format!(
                "{} is the port of a store; the admin port is {DEFAULT_PORT} by default",
                endpoint.port()
            ));
        }
        // `serve --admin` reads the same environment variable, and there it is an address to listen on.
        let here = match endpoint.host() {
            "0.0.0.0" | "::" => {
                Endpoint::new("127.0.0.1", endpoint.port()).map_err(|error| error.to_string())?
            }
            _ => endpoint,
        };
        Ok(Self { endpoint: here, encrypted })
    }
}

impl std::fmt::Display for AdminUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.is_encrypted() { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.endpoint)
    }
}

/// The server's answer.
#[derive(Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The server's clock, from its `Date` header.
    pub date: Option<String>,
    /// The body as received.
    pub body: Vec<u8>,
}

impl Answer {
    /// Whether its status is one of success.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The `code` of an error of rallypoint's API.
    pub fn code(&self) -> Option<String> {
        let problem: serde_json::Value = serde_json::from_slice(&self.body).ok()?;
        Some(problem.get("code")?.as_str()?.to_owned())
    }

    /// The answer in words: `detail` of an error of rallypoint's API, otherwise the start of the body.
    pub fn text(&self) -> String {
        const SHOWN: usize = 300;
        let problem: Option<serde_json::Value> = serde_json::from_slice(&self.body).ok();
        let detail =
            problem.as_ref().and_then(|problem| problem.get("detail")).and_then(|detail| detail.as_str());
        match detail {
            Some(detail) => detail.to_owned(),
            None => String::from_utf8_lossy(&self.body).trim().chars().take(SHOWN).collect(),
        }
    }
}

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says it")]
pub enum HttpError {
    #[error(transparent)]
    Step(#[from] StepError),
    #[error("{0}")]
    NoAuthority(Handshake),
    #[error("{addr}: {source}")]
    Tls { addr: SocketAddr, source: Handshake },
    #[error(transparent)]
    Token(#[from] BadTokenFile),
    #[error("no answer within {}", Elapsed(*.0))]
    Late(Duration),
    #[error(
        "{0} closed the connection without an HTTP answer; is it the admin port (29501), and not a store's \
         (29500)?"
    )]
    Closed(SocketAddr),
    #[error("the answer of {0} is not HTTP; is it the admin port (29501), and not a store's (29500)?")]
    NotHttp(SocketAddr),
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
    #[error("the connection broke: {0}")]
    Broken(hyper::Error),
    #[error("the request cannot be written: {0}")]
    Request(#[from] hyper::http::Error),
    #[error("the request cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl HttpError {
    /// Whether waiting helps, for a port that has not answered before.
    pub const fn outlook(&self) -> Outlook {
        match self {
            Self::NotHttp(_) | Self::NoAuthority(_) | Self::Request(_) | Self::Json(_) => Outlook::Permanent,
            _ => Outlook::Transient,
        }
    }

    /// The message for a port that has answered before, so it is the right one.
    pub fn of_known_port(&self) -> String {
        match self {
            Self::Closed(addr) | Self::NotHttp(addr) => {
                format!(
                    "{addr} closed the connection before it answered: the server has ended, or is restarted"
                )
            }
            other => other.to_string(),
        }
    }

    fn of(failure: Failure, addr: SocketAddr) -> Self {
        match failure {
            Failure::TooLarge => Self::TooLarge(MAX_BODY),
            Failure::Head(error) if error.is_parse_too_large() => Self::TooLarge(MAX_HEAD),
            Failure::Head(error) if error.is_parse() => Self::NotHttp(addr),
            Failure::Head(error) if error.is_incomplete_message() => Self::Closed(addr),
            Failure::Head(error) | Failure::Body(error) => match Handshake::refused(&error) {
                Some(source) => Self::Tls { addr, source },
                None => Self::Broken(error),
            },
        }
    }
}

/// Sends one request without a body.
pub async fn request(
    admin: &AdminUrl,
    method: &str,
    path: &str,
    limit: Duration,
) -> Result<Answer, HttpError> {
    exchange(admin, Request::builder().method(method).uri(path), String::new(), limit).await
}

/// Posts `body` as JSON.
pub async fn post(
    admin: &AdminUrl,
    path: &str,
    body: &impl serde::Serialize,
    limit: Duration,
) -> Result<Answer, HttpError> {
    send(admin, "POST", path, body, limit).await
}

/// Sends `body` as JSON.
pub async fn send(
    admin: &AdminUrl,
    method: &str,
    path: &str,
    body: &impl serde::Serialize,
    limit: Duration,
) -> Result<Answer, HttpError> {
    let request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, "application/json");
    exchange(admin, request, serde_json::to_string(body)?, limit).await
}

/// Characters that need no escape in a part of a path. All others could have a meaning there.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A part of a path, with every character escaped that could have a meaning there.
pub fn path_part(text: &str) -> String {
    utf8_percent_encode(text, PLAIN).to_string()
}

async fn exchange(
    admin: &AdminUrl,
    request: request::Builder,
    body: String,
    limit: Duration,
) -> Result<Answer, HttpError> {
    let request =
        authorization()?.into_iter().fold(request, |request, token| request.header(AUTHORIZATION, token));
    let request = request
        .header(HOST, admin.endpoint.to_string())
        .header(USER_AGENT, concat!("rallypoint/", env!("CARGO_PKG_VERSION")))
        .header(ACCEPT, "application/json, */*")
        .header(CONNECTION, "close")
        .body(body)?;
    let exchange = async {
        let (stream, addr) = admin.connect(limit).await?;
        answer(stream, request).await.map_err(|error| HttpError::of(error, addr))
    };
    tokio::time::timeout(limit, exchange).await.unwrap_or(Err(HttpError::Late(limit)))
}

/// Why an exchange failed, without the peer's address.
#[derive(Debug)]
enum Failure {
    Head(hyper::Error),
    Body(hyper::Error),
    TooLarge,
}

async fn answer(stream: Stream, request: Request<String>) -> Result<Answer, Failure> {
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(MAX_HEAD)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(Failure::Head)?;
    let exchange = async {
        let (head, mut body) = sender.send_request(request).await.map_err(Failure::Head)?.into_parts();
        let mut bytes = Vec::new();
        // Checked before the first byte: a body that is too large is not read at all.
        if body.size_hint().lower() > MAX_BODY as u64 {
            return Err(Failure::TooLarge);
        }
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(Failure::Body)?.into_data() else { continue };
            if bytes.len().saturating_add(data.len()) > MAX_BODY {
                return Err(Failure::TooLarge);
            }
            bytes.extend_from_slice(&data);
        }
        let date = head.headers.get(DATE).and_then(|date| date.to_str().ok()).map(str::to_owned);
        Ok(Answer { status: head.status.as_u16(), date, body: bytes })
    };
    // The connection moves only while it is polled. Its own end adds nothing to the answer.
    tokio::pin!(exchange);
    tokio::select! {
        answer = &mut exchange => answer,
        _ = connection => exchange.await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    async fn answered(answer: &'static [u8]) -> Result<Answer, HttpError> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let admin: AdminUrl = listener.local_addr().expect("bound").to_string().parse().expect("an address");
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let mut heard = Vec::new();
            while !heard.ends_with(b"\r\n\r\n") {
                stream.read_buf(&mut heard).await.expect("a request");
            }
            // In two parts, as a network may split it.
            let (first, second) = answer.split_at(answer.len() / 2);
            stream.write_all(first).await.expect("written");
            tokio::task::yield_now().await;
            stream.write_all(second).await.expect("written");
        });
        request(&admin, "GET", "/readyz", Duration::from_secs(20)).await
    }

    #[tokio::test]
    async fn each_way_to_end_a_body_is_understood() {
        for answer in [
            &b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\nrest"[..],
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n1;x=y\r\n\n\r\n0\r\n\r\n",
            b"HTTP/1.0 200 OK\r\n\r\nok\n",
        ] {
            let answer = answered(answer).await.expect("an answer");
            assert_eq!((answer.status, &answer.body[..]), (200, &b"ok\n"[..]));
        }
    }

    #[tokio::test]
    async fn what_is_not_http_is_an_error() {
        assert!(matches!(answered(b"").await, Err(HttpError::Closed(_))));
        assert!(matches!(answered(b"\0\0\x12\x04").await, Err(HttpError::NotHttp(_))));
        assert!(matches!(answered(b"HTTP/1.1 abc\r\n\r\n").await, Err(HttpError::NotHttp(_))));
        let cut = b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\nok";
        assert!(matches!(answered(cut).await, Err(HttpError::Broken(_))));
        let huge = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n";
        assert!(matches!(answered(huge).await, Err(HttpError::TooLarge(_))));
        let endless_chunk = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n";
        assert!(matches!(answered(endless_chunk).await, Err(HttpError::Broken(_))), "it ends too early");
    }

    #[test]
    fn a_run_id_cannot_leave_its_place_in_the_path() {
        assert_eq!(path_part("a/../b?c#d e"), "a%2F..%2Fb%3Fc%23d%20e");
        assert_eq!(path_part("train-17_x.y~z"), "train-17_x.y~z");
    }

    #[tokio::test]
    async fn a_problem_is_shown_by_its_detail() {
        let problem = b"HTTP/1.1 404 Not Found\r\n\r\n{\"status\":404,\"detail\":\"no store on 1\"}";
        let answer = answered(problem).await.expect("an answer");
        assert!(!answer.is_success());
        assert_eq!(answer.text(), "no store on 1");
    }

    #[test]
    fn an_admin_url_is_read_as_people_write_it() {
        let shown = |text: &str| text.parse::<AdminUrl>().map(|admin| admin.to_string());
        assert_eq!(shown("rallypoint"), Ok("http://rallypoint:29501".into()));
        assert_eq!(shown("http://[::1]:8080/"), Ok("http://[::1]:8080".into()));
        assert_eq!(shown("[::]:29501"), Ok("http://127.0.0.1:29501".into()));
        assert_eq!(shown("0.0.0.0:1"), Ok("http://127.0.0.1:1".into()));
        assert_eq!(shown("https://host"), Ok("https://host:29501".into()));
        assert!(shown("http://host/path").is_err());
        assert!(shown("tcp://10.0.0.1:29501").expect_err("link").contains("Kubernetes"));
    }
}

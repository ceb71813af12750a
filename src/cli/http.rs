//! Requests to the admin port, for the commands that need one answer. HTTP/1.1 over one connection each; every answer
//! has a largest size and an end in time.

use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{self, Endpoint, Seconds, StepError};
use crate::config::Token;

/// Where the admin port is if nothing else is said.
pub(super) const DEFAULT_ADMIN: &str = "http://127.0.0.1:29501";
const DEFAULT_PORT: u16 = 29501;

const MAX_HEAD: usize = 16 * 1024;
const MAX_BODY: usize = 16 * 1024 * 1024;

/// An admin port, as `http://HOST:PORT` or `HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AdminUrl(Endpoint);

impl AdminUrl {
    pub(super) fn host(&self) -> &str {
        self.0.host()
    }
}

impl FromStr for AdminUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("https://") {
            return Err("the admin port speaks plain HTTP; write http://HOST:PORT".into());
        }
        let endpoint = text.strip_prefix("http://").unwrap_or(text);
        let endpoint = endpoint.strip_suffix('/').unwrap_or(endpoint);
        let endpoint = Endpoint::parse(endpoint, DEFAULT_PORT).map_err(|error| error.to_string())?;
        // `serve --admin` and this share an environment variable, and there it is an address to listen on.
        let here = match endpoint.host() {
            "0.0.0.0" | "::" => {
                Endpoint::new("127.0.0.1", endpoint.port()).map_err(|error| error.to_string())?
            }
            _ => endpoint,
        };
        Ok(Self(here))
    }
}

impl std::fmt::Display for AdminUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "http://{}", self.0)
    }
}

/// What the server answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

impl Answer {
    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The `code` of an error of our API.
    pub(super) fn code(&self) -> Option<String> {
        let problem: serde_json::Value = serde_json::from_slice(&self.body).ok()?;
        Some(problem.get("code")?.as_str()?.to_owned())
    }

    /// The answer in words: `detail` of an error of our API, else the start of the body.
    pub(super) fn text(&self) -> String {
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

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum HttpError {
    #[error(transparent)]
    Step(#[from] StepError),
    #[error("no answer within {}", Seconds(*.0))]
    Late(Duration),
    #[error(
        "{0} closed the connection without an HTTP answer; is it the admin port (29501), and not a store's (29500)?"
    )]
    Closed(SocketAddr),
    #[error("the answer of {0} is not HTTP; is it the admin port (29501), and not a store's (29500)?")]
    NotHttp(SocketAddr),
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
}

/// Sends one request without a body.
pub(super) async fn request(
    admin: &AdminUrl,
    method: &str,
    path: &str,
    token: Option<&Token>,
    limit: Duration,
) -> Result<Answer, HttpError> {
    send(admin, method, path, token, None, limit).await
}

/// Posts `body` as JSON.
pub(super) async fn post(
    admin: &AdminUrl,
    path: &str,
    token: Option<&Token>,
    body: &impl serde::Serialize,
    limit: Duration,
) -> Result<Answer, HttpError> {
    let body = serde_json::to_string(body).map_err(io::Error::other)?;
    send(admin, "POST", path, token, Some(&body), limit).await
}

/// A part of a path, with everything escaped that could mean something else there.
pub(super) fn path_part(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let escape =
        |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(escape).collect()
}

async fn send(
    admin: &AdminUrl,
    method: &str,
    path: &str,
    token: Option<&Token>,
    body: Option<&str>,
    limit: Duration,
) -> Result<Answer, HttpError> {
    let content = body
        .map(|body| format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()))
        .unwrap_or_default();
    let authorization =
        token.map(|token| format!("Authorization: {}\r\n", token.authorization())).unwrap_or_default();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {}\r\nUser-Agent: rallypoint/{}\r\nAccept: application/json, */*\r\n\
         {authorization}{content}Connection: close\r\n\r\n{}",
        admin.0,
        env!("CARGO_PKG_VERSION"),
        body.unwrap_or_default(),
    );
    let exchange = async {
        let (mut stream, addr) = connect(&admin.0, limit).await?;
        stream.write_all(head.as_bytes()).await?;
        Reader { stream, addr, bytes: Vec::new() }.answer().await
    };
    tokio::time::timeout(limit, exchange).await.unwrap_or(Err(HttpError::Late(limit)))
}

async fn connect(endpoint: &Endpoint, limit: Duration) -> Result<(TcpStream, SocketAddr), StepError> {
    let mut last = None;
    for addr in client::resolve(endpoint, limit).await? {
        match client::open(addr, limit).await {
            Ok(stream) => return Ok((stream, addr)),
            Err(error) => last = Some(error),
        }
    }
    // There is at least one address, so `last` is there too.
    Err(last.unwrap_or_else(|| StepError::ResolverSilent { host: endpoint.host().into(), after: limit }))
}

/// How the end of a body is told.
enum Body {
    Length(usize),
    Chunked,
    UntilClose,
}

struct Reader {
    stream: TcpStream,
    addr: SocketAddr,
    /// Read, and not yet used.
    bytes: Vec<u8>,
}

impl Reader {
    async fn answer(&mut self) -> Result<Answer, HttpError> {
        let head_end = loop {
            if let Some(at) = find(&self.bytes, b"\r\n\r\n") {
                break at + 4;
            }
            if self.bytes.len() > MAX_HEAD {
                return Err(HttpError::TooLarge(MAX_HEAD));
            }
            if !self.more().await? {
                let silent = self.bytes.is_empty();
                return Err(if silent {
                    HttpError::Closed(self.addr)
                } else {
                    HttpError::NotHttp(self.addr)
                });
            }
            if !self.bytes.iter().zip(b"HTTP/1.").all(|(a, b)| a == b) {
                return Err(HttpError::NotHttp(self.addr));
            }
        };
        let head: Vec<u8> = self.bytes.drain(..head_end).collect();
        let (status, body) = parse_head(&head).ok_or(HttpError::NotHttp(self.addr))?;
        let body = match body {
            _ if matches!(status, 204 | 304) => Vec::new(),
            Body::Length(length) => self.take(length).await?,
            Body::Chunked => self.chunks().await?,
            Body::UntilClose => {
                while self.more().await? {
                    if self.bytes.len() > MAX_BODY {
                        return Err(HttpError::TooLarge(MAX_BODY));
                    }
                }
                std::mem::take(&mut self.bytes)
            }
        };
        Ok(Answer { status, body })
    }

    async fn chunks(&mut self) -> Result<Vec<u8>, HttpError> {
        let mut body = Vec::new();
        loop {
            let line = self.line().await?;
            let digits = line.split(|&b| b == b';').next().unwrap_or_default().trim_ascii();
            let size =
                std::str::from_utf8(digits).ok().and_then(|digits| usize::from_str_radix(digits, 16).ok());
            let size = size.ok_or(HttpError::NotHttp(self.addr))?;
            if size == 0 {
                // What may follow is of no interest, and the connection is closed.
                return Ok(body);
            }
            if body.len().saturating_add(size) > MAX_BODY {
                return Err(HttpError::TooLarge(MAX_BODY));
            }
            body.append(&mut self.take(size).await?);
            if !self.line().await?.is_empty() {
                return Err(HttpError::NotHttp(self.addr));
            }
        }
    }

    async fn line(&mut self) -> Result<Vec<u8>, HttpError> {
        loop {
            if let Some(at) = find(&self.bytes, b"\r\n") {
                let line = self.bytes[..at].to_vec();
                self.bytes.drain(..at + 2);
                return Ok(line);
            }
            if self.bytes.len() > MAX_HEAD || !self.more().await? {
                return Err(HttpError::NotHttp(self.addr));
            }
        }
    }

    async fn take(&mut self, length: usize) -> Result<Vec<u8>, HttpError> {
        if length > MAX_BODY {
            return Err(HttpError::TooLarge(MAX_BODY));
        }
        while self.bytes.len() < length {
            if !self.more().await? {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
        Ok(self.bytes.drain(..length).collect())
    }

    /// Reads once. `false` at the end.
    async fn more(&mut self) -> Result<bool, HttpError> {
        match self.stream.read_buf(&mut self.bytes).await {
            Ok(n) => Ok(n > 0),
            // The answer may be whole although the server was in a hurry.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

fn parse_head(head: &[u8]) -> Option<(u16, Body)> {
    let head = std::str::from_utf8(head).ok()?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let mut body = Body::UntilClose;
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        if name.eq_ignore_ascii_case("transfer-encoding") && value.eq_ignore_ascii_case("chunked") {
            body = Body::Chunked;
        } else if name.eq_ignore_ascii_case("content-length") && !matches!(body, Body::Chunked) {
            body = Body::Length(value.parse().ok()?);
        }
    }
    Some((status, body))
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    async fn answered(answer: &'static [u8]) -> Result<Answer, HttpError> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let admin: AdminUrl = listener.local_addr().expect("bound").to_string().parse().expect("an address");
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let mut heard = Vec::new();
            while find(&heard, b"\r\n\r\n").is_none() {
                stream.read_buf(&mut heard).await.expect("a request");
            }
            // In two parts, as a network may cut it.
            let (first, second) = answer.split_at(answer.len() / 2);
            stream.write_all(first).await.expect("written");
            tokio::task::yield_now().await;
            stream.write_all(second).await.expect("written");
        });
        request(&admin, "GET", "/readyz", None, Duration::from_secs(20)).await
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
        let bad_chunk = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n";
        assert!(matches!(answered(bad_chunk).await, Err(HttpError::TooLarge(_))));
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
        assert!(shown("https://host").expect_err("TLS").contains("plain HTTP"));
        assert!(shown("http://host/path").is_err());
        assert!(shown("tcp://10.0.0.1:29501").expect_err("link").contains("Kubernetes"));
    }
}

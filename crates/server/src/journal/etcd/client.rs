//! Sends requests to etcd's JSON gateway: one at a time over a connection that stays open. When a member does
//! not answer, the next request goes to the next member.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Request;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::config::{EtcdConfig, EtcdMember};
use rallypoint_access::tls::{Handshake, Stream};
use rallypoint_protocol::ids::{Elapsed, Shown};

/// Larger than any answer that the journal asks for.
const MAX_BODY: usize = 32 << 20;

/// Why a request to etcd failed.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// No connection.
    #[error("no connection to etcd at {member}: {why}")]
    Connect {
        /// The member.
        member: EtcdMember,
        /// The system's error.
        why: io::Error,
    },
    /// No encrypted connection.
    #[error("no TLS connection to etcd at {member}: {why} (--etcd-ca, --etcd-cert, --etcd-key)")]
    Tls {
        /// The member.
        member: EtcdMember,
        /// The cause.
        why: Handshake,
    },
    /// The connection broke.
    #[error("the connection to etcd at {member} broke: {why}")]
    Http {
        /// The member.
        member: EtcdMember,
        /// The cause.
        why: hyper::Error,
    },
    /// No answer in time.
    #[error("etcd at {member} did not answer within {}", Elapsed(*.after))]
    Late {
        /// The member.
        member: EtcdMember,
        /// The time that it had.
        after: Duration,
    },
    /// It answers with a refusal or an error.
    #[error("etcd at {member} says: {}", Shown(.says))]
    Says {
        /// The member.
        member: EtcdMember,
        /// Its own words.
        says: String,
    },
    /// The answer does not come from etcd.
    #[error("the answer of {member} is not etcd's: {what}; is it an etcd of release 3.4 or later?")]
    NotEtcd {
        /// The member.
        member: EtcdMember,
        /// What is wrong with the answer.
        what: String,
    },
    /// The user's password cannot be read.
    #[error("--etcd-password-file {file}: {why}")]
    Password {
        /// The file.
        file: String,
        /// The system's error.
        why: io::Error,
    },
}

/// A connection to one of the members.
#[derive(Debug)]
pub(super) struct Client {
    config: Arc<EtcdConfig>,
    /// Index of the member that is asked.
    member: usize,
    connection: Option<http1::SendRequest<String>>,
    token: Option<String>,
}

impl Client {
    pub(super) const fn new(config: Arc<EtcdConfig>) -> Self {
        Self { config, member: 0, connection: None, token: None }
    }

    fn member(&self) -> EtcdMember {
        let members = &self.config.members;
        let at = self.member.checked_rem(members.len()).unwrap_or(0);
        members.get(at).cloned().unwrap_or_default()
    }

    /// Makes one attempt. After an error the next attempt goes to another member; whether etcd did what was
    /// asked is then unknown.
    pub(super) async fn ask<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &Value,
        limit: Duration,
    ) -> Result<T, EtcdError> {
        let member = self.member();
        let answer = tokio::time::timeout(limit, self.exchange(&member, path, body)).await;
        let answer = answer.unwrap_or(Err(EtcdError::Late { member, after: limit }));
        if answer.is_err() {
            (self.connection, self.token) = (None, None);
            self.member = self.member.wrapping_add(1);
        }
        answer
    }

    async fn exchange<T: DeserializeOwned>(
        &mut self,
        member: &EtcdMember,
        path: &str,
        body: &Value,
    ) -> Result<T, EtcdError> {
        if let (None, Some((user, file))) = (&self.token, &self.config.user) {
            let password = std::fs::read_to_string(file)
                .map_err(|why| EtcdError::Password { file: file.display().to_string(), why })?;
            let body = json!({ "name": user, "password": password.trim_end_matches(['\r', '\n']) });
            let answer: Value = self.post(member, "/v3/auth/authenticate", &body).await?;
            self.token = answer.get("token").and_then(Value::as_str).map(str::to_owned);
        }
        self.post(member, path, body).await
    }

    async fn post<T: DeserializeOwned>(
        &mut self,
        member: &EtcdMember,
        path: &str,
        body: &Value,
    ) -> Result<T, EtcdError> {
        let not_etcd = |what: String| EtcdError::NotEtcd { member: member.clone(), what };
        let broke = |why| match Handshake::refused(&why) {
            Some(why) => EtcdError::Tls { member: member.clone(), why },
            None => EtcdError::Http { member: member.clone(), why },
        };
        let mut connection = match self.connection.take().filter(|it| !it.is_closed()) {
            Some(connection) => connection,
            None => self.connect(member).await?,
        };
        let mut request = Request::post(path)
            .header(HOST, member.to_string())
            .header(USER_AGENT, concat!("rallypoint/", env!("CARGO_PKG_VERSION")))
            .header(CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        let request = request.body(body.to_string()).map_err(|error| not_etcd(error.to_string()))?;
        connection.ready().await.map_err(broke)?;
        let (head, body) = connection.send_request(request).await.map_err(broke)?.into_parts();
        let body = read(body).await.map_err(broke)?.ok_or_else(|| not_etcd("it is too long".into()))?;
        self.connection = Some(connection);
        if head.status.is_success() {
            return serde_json::from_slice(&body).map_err(|error| not_etcd(error.to_string()));
        }
        let problem: Option<Value> = serde_json::from_slice(&body).ok();
        let says = problem.as_ref().and_then(|it| it.get("error")?.as_str());
        match says {
            Some(says) => Err(EtcdError::Says { member: member.clone(), says: says.to_owned() }),
            None => Err(not_etcd(format!("status {}", head.status))),
        }
    }

    async fn connect(&self, member: &EtcdMember) -> Result<http1::SendRequest<String>, EtcdError> {
        let stream = TcpStream::connect((member.host.as_str(), member.port)).await;
        let stream = stream.map_err(|why| EtcdError::Connect { member: member.clone(), why })?;
        // A small request must not wait for the acknowledgement of its predecessor.
        let _ = stream.set_nodelay(true);
        let stream = match &self.config.tls {
            None => Stream::Plain(stream),
            Some(tls) => {
                let secured = tls.connect(&member.host, stream).await;
                secured.map_err(|why| EtcdError::Tls { member: member.clone(), why })?
            }
        };
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|why| EtcdError::Http { member: member.clone(), why })?;
        // If the connection ends, the next request fails.
        tokio::spawn(connection);
        Ok(sender)
    }
}

/// The whole body; `None` if it is larger than every expected answer.
async fn read(mut body: Incoming) -> Result<Option<Vec<u8>>, hyper::Error> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        if bytes.len().saturating_add(data.len()) > MAX_BODY {
            return Ok(None);
        }
        bytes.extend_from_slice(&data);
    }
    Ok(Some(bytes))
}

//! The server's API on loopback. Requests are forwarded as they are; stores in the answers become ports of
//! the relay.

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1 as client;
use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, HeaderValue};
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::Relay;
use crate::client::http::authorization;
use rallypoint_access::tls::Stream;
use rallypoint_api::{Problem, RELAY_HEADER, own_cookie};

/// How long a request waits for an unreachable server.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(250);
const STEP: Duration = Duration::from_secs(3);
/// A request's head must be complete within this time.
const HEAD: Duration = Duration::from_secs(10);
/// Largest answer that is searched for stores.
const LARGEST: usize = 16 * 1024 * 1024;

type Body = BoxBody<Bytes, hyper::Error>;

impl Relay {
    /// Serves the API's clients.
    pub(crate) async fn serve_api(self: Rc<Self>, listener: TcpListener, at_once: usize) {
        let places = Arc::new(Semaphore::new(at_once));
        while let Ok(place) = Arc::clone(&places).acquire_owned().await {
            match listener.accept().await {
                Ok((stream, addr)) => {
                    if !self.lets_in(&stream, addr) {
                        continue;
                    }
                    let relay = Rc::clone(&self);
                    tokio::task::spawn_local(async move {
                        let _place = place;
                        let service = service_fn(move |request| {
                            let relay = Rc::clone(&relay);
                            async move { Ok::<_, Infallible>(relay.pass_on(request).await) }
                        });
                        // The client itself sees how the connection ends.
                        let _ended = server::Builder::new()
                            .timer(TokioTimer::new())
                            .header_read_timeout(HEAD)
                            .serve_connection(TokioIo::new(stream), service)
                            .await;
                    });
                }
                Err(error) => {
                    self.say_crowded(format_args!(
                        "cannot accept a client of the API: {error}; trying again"
                    ));
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    async fn pass_on(self: Rc<Self>, request: Request<Incoming>) -> Response<Body> {
        // The relay is alive if it answers this, and ready if its link is up.
        match request.uri().path() {
            "/livez" => return text(StatusCode::OK, "ok\n"),
            "/readyz" if self.end.borrow().is_up() => return text(StatusCode::OK, "ok\n"),
            "/readyz" => return text(StatusCode::SERVICE_UNAVAILABLE, "the link to the server is away\n"),
            _ => {}
        }
        let names_store = request.method() == Method::POST
            && ["/stores", "/join", "/announce", "/heartbeat"]
                .iter()
                .any(|end| request.uri().path().ends_with(end));
        let answer = match self.ask(request).await {
            Ok(answer) => answer,
            Err(why) => return problem(&why),
        };
        if !names_store {
            return answer.map(BodyExt::boxed);
        }
        self.with_local_stores(answer).await.unwrap_or_else(|why| problem(&why))
    }

    async fn ask(&self, mut request: Request<Incoming>) -> Result<Response<Incoming>, String> {
        let stream = self.connect_api().await?;
        let (mut sender, connection) =
            client::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        tokio::task::spawn_local(connection);
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
        if let Ok(name) = HeaderValue::try_from(&self.config.name) {
            request.headers_mut().insert(RELAY_HEADER, name);
        }
        // The relay's own token is for clients without a token.
        let cookies = request.headers().get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let has_cookie = cookies.into_iter().any(|cookies| own_cookie(cookies).is_some());
        let has_token = has_cookie || request.headers().contains_key(AUTHORIZATION);
        if let Some(token) = authorization().map_err(|error| error.to_string())?.filter(|_| !has_token) {
            let token = HeaderValue::try_from(token).map_err(|error| error.to_string())?;
            request.headers_mut().insert(AUTHORIZATION, token);
        }
        *request.uri_mut() = path.parse().map_err(|_| "the request's path is wrong".to_owned())?;
        sender.send_request(request).await.map_err(|error| format!("the server went away: {error}"))
    }

    /// Connects to the server; retries until [`PATIENCE`] is over.
    async fn connect_api(&self) -> Result<Stream, String> {
        let give_up = Instant::now().checked_add(PATIENCE);
        loop {
            let why = match self.config.server.connect(STEP).await {
                Ok((stream, _)) => return Ok(stream),
                Err(why) => why,
            };
            if give_up.is_none_or(|at| Instant::now() >= at) {
                return Err(format!("the server {} is away: {why}", self.config.server.endpoint()));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The answer, with the relay's own ports in place of the server's stores.
    async fn with_local_stores(
        self: &Rc<Self>,
        answer: Response<Incoming>,
    ) -> Result<Response<Body>, String> {
        let (mut head, body) = answer.into_parts();
        let body = Limited::new(body, LARGEST).collect().await.map_err(|error| error.to_string())?.to_bytes();
        let is_json = head
            .headers
            .get(CONTENT_TYPE)
            .is_some_and(|value| value.as_bytes().starts_with(b"application/json"));
        let body = match serde_json::from_slice::<Value>(&body) {
            Ok(mut value) if is_json && head.status.is_success() => {
                // In the answer for a run's own store, the store is the top level; in other answers it is the
                // field `store`.
                for store in [Some("/store"), Some("")].into_iter().flatten() {
                    if let Some(store) = value.pointer_mut(store) {
                        self.make_local(store)?;
                    }
                }
                Bytes::from(value.to_string())
            }
            _ => body,
        };
        head.headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        Ok(Response::from_parts(head, full(body)))
    }

    fn make_local(self: &Rc<Self>, store: &mut Value) -> Result<(), String> {
        let Some(Ok(port)) = store.get("port").and_then(Value::as_u64).map(u16::try_from) else {
            return Ok(());
        };
        if !store.get("host").is_some_and(Value::is_string) {
            return Ok(());
        }
        let local = self.local_port(port);
        let local =
            local.map_err(|error| format!("the relay cannot open a port for the store {port}: {error}"))?;
        store["host"] = Value::from(self.local_host());
        store["port"] = Value::from(local);
        Ok(())
    }
}

fn full(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed()
}

fn text(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut answer = Response::new(full(Bytes::from_static(text.as_bytes())));
    *answer.status_mut() = status;
    answer
}

/// The error that makes clients of the API try again.
fn problem(detail: &str) -> Response<Body> {
    let status = StatusCode::BAD_GATEWAY;
    let problem = Problem {
        title: status.canonical_reason().unwrap_or_default().into(),
        status: status.as_u16(),
        detail: detail.into(),
        code: Some("server_away".into()),
        arrived: None,
        missing: None,
    };
    let mut answer = Response::new(full(serde_json::to_vec(&problem).unwrap_or_default().into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    answer
}

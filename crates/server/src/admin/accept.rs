//! The admin port's connections: how many may be open, and what happens to more. Every connection is
//! accepted. A connection with a place may send every request, and wait for long. A connection without a
//! place enters a small reserve: there health and metrics are answered, and all other requests get 503. In
//! the reserve a new connection takes the place of the oldest one. So an active client gets an answer, and a
//! silent client keeps no other out.
//!
//! Health is always answered, whatever else is asked for. One thread reads all connections and answers
//! `/livez` and `/readyz`: it waits for no lock, and none of its work grows with the jobs. A second thread
//! makes `/metrics`, one page at a time. The API is answered on the runtime that called [`serve`].

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinSet};
use tower::ServiceExt;

use super::access::{Encrypted, LacksCertificate};
use super::problem::Problem;
use super::{ANSWER_TIMEOUT, MAX_BODY, REQUEST_TIMEOUT, all, api, guarded, probes};
use crate::config::AccessConfig;
use crate::engine::Reservation;
use crate::tcp::{Workers, is_hello};
use crate::{Place, Places, Server, Throttle, keep_running};
use rallypoint_access::tls::{ServerTls, Stream};
use rallypoint_access::tokens::TokenFile;

/// The memory of a connection whose request waits or has waited (15 KiB were measured). It counts for
/// `--max-memory`.
const CONNECTION_MEMORY: usize = 16 * 1024;
/// All connections together may use at most this fraction (one half) of the memory.
const SHARE: usize = 2;
/// This many connections have a place even when no memory is left: otherwise nobody could look for the cause.
const LEAST_CONNECTIONS: usize = 64;
/// Most connections in the reserve.
pub(super) const RESERVE: usize = 256;
/// Pause after an error of the system, for example when no descriptor is left.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// The log lines that could be repeated without end.
#[derive(Clone, Copy)]
enum Repeated {
    CannotAccept,
    TurnedAway,
}

/// The admin port is served until this value is dropped.
#[derive(Debug)]
#[must_use]
pub struct Serving(
    #[expect(dead_code, reason = "what it does when it is dropped is what it is for")] Workers,
);

impl Serving {
    /// Serves on this thread.
    pub(super) fn on(thread: Workers) -> Self {
        Self(thread)
    }
}

/// Serves the admin port, with `tls` or without. The API is answered on the runtime of the caller.
pub fn serve(
    listener: std::net::TcpListener,
    server: Arc<Server>,
    tls: Option<ServerTls>,
) -> io::Result<Serving> {
    let thread = Workers::start("admin", NonZeroUsize::MIN)?;
    let runtime = thread.round_robin().next().clone();
    let listener = {
        let _entered = runtime.enter();
        Arc::new(TcpListener::from_std(listener)?)
    };
    let api_runtime = Handle::current();
    let tls = tls.map(Arc::new);
    keep_files(&runtime, tls.clone(), &server.stores().config().access);
    runtime.spawn(keep_running("admin", move || {
        let (listener, server) = (Arc::clone(&listener), Arc::clone(&server));
        let (api_runtime, tls) = (api_runtime.clone(), tls.clone());
        async move { accept(&listener, server, api_runtime, tls).await }
    }));
    Ok(Serving(thread))
}

/// Reads the files of certificates and tokens again at each interval.
pub(super) fn keep_files(runtime: &Handle, tls: Option<Arc<ServerTls>>, access: &AccessConfig) {
    let every = access.reload_every;
    if let Some(tls) = tls {
        runtime.spawn(keep_running("certificates", move || keep_certificates(Arc::clone(&tls), every)));
    }
    if let Some(tokens) = access.tokens.clone() {
        runtime.spawn(keep_running("tokens", move || keep_tokens(Arc::clone(&tokens), every)));
    }
}

async fn keep_certificates(tls: Arc<ServerTls>, every: Duration) {
    loop {
        match tls.reload() {
            Ok(false) => {}
            Ok(true) => tracing::info!("new connections to the admin port get the new certificate"),
            Err(error) => tracing::warn!("{error}; the certificate that was read before is still used"),
        }
        tokio::time::sleep(every).await;
    }
}

async fn keep_tokens(tokens: Arc<TokenFile>, every: Duration) {
    loop {
        match tokens.reload() {
            Ok(false) => {}
            Ok(true) => {
                tracing::info!("the tokens are others: links and pages of those that were taken out end");
            }
            Err(error) => tracing::warn!("{error}; the tokens that were read before still hold"),
        }
        tokio::time::sleep(every).await;
    }
}

async fn accept(
    listener: &TcpListener,
    server: Arc<Server>,
    api_runtime: Handle,
    tls: Option<Arc<ServerTls>>,
) {
    let config = server.stores().config();
    let by_memory = (config.max_memory / SHARE / CONNECTION_MEMORY).max(LEAST_CONNECTIONS);
    let connections = config.max_admin_connections.min(by_memory);
    let mut reserve = Reserve::new((connections / 4).clamp(1, RESERVE));
    let most = connections.saturating_sub(reserve.most).max(1);
    let most_each = config.max_connections_per_address.min(most.div_ceil(2));
    let places = Arc::new(Places::new(most, most_each));
    let throttle = Throttle::new(2);
    let api = api(&server).layer(axum::middleware::from_fn_with_state(api_runtime, answered_on));
    let everything = all(api, Arc::clone(&server));
    let little = turning_away(Arc::clone(&server));
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(held_back) = throttle.pass(Repeated::CannotAccept as usize) {
                    tracing::warn!(held_back, "cannot accept admin connections: {error}; trying again");
                }
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let place = Place::take(&places, peer.ip().to_canonical());
        let memory = || server.reserve(CONNECTION_MEMORY, places.taken() <= LEAST_CONNECTIONS);
        if let Some(place) = place.and_then(|place| Some((place, memory()?))) {
            let (router, tls, server) = (everything.clone(), tls.clone(), Arc::clone(&server));
            tokio::spawn(async move {
                // A connection that becomes a link keeps its place.
                let place = Arc::new(place);
                if has_started(&stream, peer, &server).await {
                    serve_connection(stream, peer, tls, router, Some(place)).await;
                }
            });
            continue;
        }
        if let Some(held_back) = throttle.pass(Repeated::TurnedAway as usize) {
            tracing::warn!(
                %peer,
                held_back,
                memory_left = server.stores().budget().room(),
                "the admin port has {} connections, of {most} and {most_each} from one address: only health \
                 and metrics are answered to more; the limits follow --max-memory, \
                 --max-connections-per-address and the limit on open files",
                places.taken()
            );
        }
        let (router, tls, server) = (little.clone(), tls.clone(), Arc::clone(&server));
        let served = tokio::spawn(async move {
            if has_started(&stream, peer, &server).await {
                serve_connection(stream, peer, tls, router, None).await;
            }
        });
        reserve.enter(served.abort_handle());
        // A new connection may send its request before the next one takes its place.
        tokio::task::yield_now().await;
    }
}

/// Answers a connection that has no place.
fn turning_away(server: Arc<Server>) -> Router {
    async fn turn_away(request: Request) -> Problem {
        // Read the body first: an answer before that could be lost with the connection.
        let body = axum::body::to_bytes(request.into_body(), MAX_BODY);
        let _ = tokio::time::timeout(REQUEST_TIMEOUT, body).await;
        let detail = "the admin port has as many connections as it may, in all, from this address or by its \
                      memory; only /livez, /readyz and /metrics are answered now, so try again in a moment";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).with_code("busy")
    }
    guarded(probes().fallback(turn_away), server)
}

/// Answers a request on another runtime. When the client disconnects, the work ends too. A request that
/// becomes a link stays on this runtime: its handler does little, and thousands of relays may ask at once.
async fn answered_on(State(runtime): State<Handle>, request: Request, next: Next) -> Response {
    if request.uri().path() == "/api/v1/link" {
        return next.run(request).await;
    }
    let mut work = JoinSet::new();
    work.spawn_on(next.run(request), &runtime);
    if let Some(Ok(response)) = work.join_next().await {
        return response;
    }
    let detail = "this request ended in a panic, which is a bug: please report it with the server's log";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail).into_response()
}

/// Connections without a place, the oldest first.
pub(super) struct Reserve {
    most: usize,
    tasks: VecDeque<AbortHandle>,
}

impl Reserve {
    pub(super) fn new(most: usize) -> Self {
        Self { most, tasks: VecDeque::with_capacity(most) }
    }

    pub(super) fn enter(&mut self, task: AbortHandle) {
        if self.tasks.len() >= self.most {
            self.tasks.retain(|task| !task.is_finished());
        }
        if self.tasks.len() >= self.most
            && let Some(oldest) = self.tasks.pop_front()
        {
            oldest.abort();
        }
        self.tasks.push_back(task);
    }
}

/// The place of a connection, and its share of the memory.
pub(super) type HeldPlace = Arc<(Place, Reservation)>;

/// Peeks at the first bytes; the bytes stay in the socket. A PyTorch client sends its hello in one piece. If
/// the client was given this port instead of a store's port, it would retry until its time-out with no
/// explanation. So the stores record the mistake, and the HTTP answer ends the connection.
///
/// Returns whether any byte came. A silent client is not waited for a second time.
async fn has_started(stream: &TcpStream, peer: SocketAddr, server: &Server) -> bool {
    let mut start = [0; 5];
    let came = tokio::time::timeout(REQUEST_TIMEOUT, stream.peek(&mut start)).await;
    let Ok(Ok(1..)) = came else { return false };
    if let (true, Ok(own)) = (is_hello(start), stream.local_addr()) {
        server.stores().came_to_admin(own.port(), peer.ip().to_canonical());
    }
    true
}

/// The connection as it came, or its encrypted stream; `None` if the connection is over.
async fn welcome(stream: TcpStream, peer: SocketAddr, tls: Option<&ServerTls>) -> Option<Stream> {
    let Some(tls) = tls else { return Some(Stream::Plain(stream)) };
    match tokio::time::timeout(REQUEST_TIMEOUT, tls.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%peer, %error, "no TLS connection");
            None
        }
        Err(_) => None,
    }
}

pub(super) async fn serve_connection(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<Arc<ServerTls>>,
    router: Router,
    place: Option<HeldPlace>,
) {
    // An answer in two parts must not wait for the acknowledgement of its first part.
    let _ = stream.set_nodelay(true);
    let local = stream.local_addr().ok();
    let Some(stream) = welcome(stream, peer, tls.as_deref()).await else { return };
    let lacks_certificate =
        tls.as_ref().is_some_and(|tls| tls.wants_certificate()) && !stream.has_client_certificate();
    let (keep_alive, is_encrypted) = (place.is_some(), tls.is_some());
    let service = hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let mut request = super::arrived(request, peer, local);
        if lacks_certificate {
            request.extensions_mut().insert(LacksCertificate);
        }
        if is_encrypted {
            request.extensions_mut().insert(Encrypted);
        }
        if let Some(place) = &place {
            request.extensions_mut().insert(Arc::clone(place));
        }
        let answer = router.clone().oneshot(request);
        async move {
            let answer: Result<Response, Infallible> =
                match tokio::time::timeout(ANSWER_TIMEOUT, answer).await {
                    Ok(answer) => answer,
                    Err(_) => Ok(Problem::timeout().into()),
                };
            answer
        }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT)
        .max_buf_size(MAX_BODY)
        .keep_alive(keep_alive)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "an admin connection ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use axum::routing::get;

    async fn panics() {
        panic!("injected");
    }

    /// A handler that notifies when it is dropped.
    struct Held(Arc<tokio::sync::Notify>);

    impl Drop for Held {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }

    #[test]
    fn a_request_that_panics_is_answered_and_one_that_is_given_up_is_worked_on_no_longer() {
        let gone = Arc::new(tokio::sync::Notify::new());
        let given_up = Arc::clone(&gone);
        let wait = move || {
            let held = Held(given_up);
            async move {
                std::future::pending::<()>().await;
                drop(held);
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let router = Router::new()
            .route("/panic", get(panics))
            .route("/wait", get(wait))
            .layer(axum::middleware::from_fn_with_state(runtime.handle().clone(), answered_on));
        let ask = |path: &str| {
            let request = Request::get(path).body(Body::empty()).expect("a request");
            router.clone().oneshot(request)
        };
        runtime.block_on(async {
            let answer = ask("/panic").await.expect("an answer");
            assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
            assert!(tokio::time::timeout(Duration::from_millis(50), ask("/wait")).await.is_err());
            tokio::time::timeout(REQUEST_TIMEOUT, gone.notified()).await.expect("it is worked on no longer");
        });
    }
}

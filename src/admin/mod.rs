//! The admin port.
//!
//! | route | who may | what |
//! |---|---|---|
//! | `GET /` | all | the page: runs, nodes and ranks, live |
//! | `GET /livez` | all | the event loop turns |
//! | `GET /readyz` | all | every listener is bound and new clients are welcome |
//! | `GET /metrics` | all | Prometheus text |
//! | `GET /api/v1/stores` | all | the stores with their sizes |
//! | `GET /api/v1/waits` | all | outstanding WAITs and BARRIERs, the oldest first |
//! | `GET /api/v1/runs` | all | every run: who has joined, who is missing, what matters most |
//! | `GET /api/v1/runs/{run_id}` | all | one run with its nodes, ranks, waits and explanations |
//! | `GET /api/v1/events` | all | the same live, as server-sent events |
//! | `PUT /api/v1/runs/{run_id}/expect` | operators | how many nodes to expect |
//! | `DELETE /api/v1/runs/{run_id}` | operators | forgets a run and drops its rendezvous' keys |
//! | `POST /api/v1/stores` | members | a store of its own for a run |
//! | `POST /api/v1/runs/{run_id}/announce` | members | waits until all pods of the run announced themselves |
//! | `GET /api/v1/runs/{run_id}/announce` | all | who announced himself |
//! | `DELETE /api/v1/stores/{port}` | operators | empties a store; a run's own store is closed |
//! | `POST /api/v1/runs/{run_id}/join` | members | joins the next round of a run and waits for it |
//! | `POST /api/v1/runs/{run_id}/heartbeat` | members | keeps a node's place and waits for a change |
//! | `POST /api/v1/runs/{run_id}/leave` | members | leaves a run |
//! | `POST /api/v1/runs/{run_id}/close` | the run's nodes, operators | closes a run |
//! | `POST /api/v1/runs/{run_id}/extend` | operators | moves the deadline of the round that gathers |
//! | `POST /api/v1/barriers/{name}/arrive` | members | arrives at a barrier and waits for the others |
//! | `GET /api/v1/openapi.json` | all | all of this for programs |
//!
//! "All" and "members" are the peers within `--allow`. Operators send the token of `--token-file`, or come over
//! loopback where there is none. Errors are `application/problem+json` (RFC 9457).

mod access;
mod announce;
mod barriers;
mod body;
mod page;
mod problem;
mod rendezvous;
mod routes;
mod runs;
mod target;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{delete, get, post, put};

use crate::api;
use crate::server::Server;

/// Bytes of a request's body at the most.
const MAX_BODY: usize = 64 * 1024;
/// A request is whole within this time, and answered within as long, plus the time that it asks to wait.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest that a request may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2 * REQUEST_TIMEOUT.as_secs() + api::MAX_WAIT.as_secs());
/// Connections to the admin port at the same time: each node of a job may hold one.
const MAX_CONNECTIONS: usize = 65_536;
/// What a waiting request takes (15 KiB were measured), with room for a body. All together are kept within the memory
/// that the stores may use.
const CONNECTION_MEMORY: usize = 32 * 1024;

/// The admin port's routes.
pub fn router(server: Arc<Server>) -> Router {
    Router::new()
        .route("/", get(page::page))
        .route("/livez", get(routes::livez))
        .route("/readyz", get(routes::readyz))
        .route("/metrics", get(routes::metrics))
        .route("/api/v1/stores", get(routes::stores).post(routes::open_store))
        .route("/api/v1/stores/{port}", delete(routes::reset_store))
        .route("/api/v1/runs/{run_id}/announce", get(announce::announced).post(announce::announce))
        .route("/api/v1/waits", get(routes::waits))
        .route("/api/v1/runs", get(runs::list))
        .route("/api/v1/runs/{run_id}", get(runs::one).delete(runs::forget))
        .route("/api/v1/runs/{run_id}/expect", put(runs::expect))
        .route("/api/v1/events", get(runs::events))
        .route("/api/v1/runs/{run_id}/join", post(rendezvous::join))
        .route("/api/v1/runs/{run_id}/heartbeat", post(rendezvous::heartbeat))
        .route("/api/v1/runs/{run_id}/leave", post(rendezvous::leave))
        .route("/api/v1/runs/{run_id}/close", post(rendezvous::close))
        .route("/api/v1/runs/{run_id}/extend", post(rendezvous::extend))
        .route("/api/v1/barriers/{name}/arrive", post(barriers::arrive))
        .route("/api/v1/openapi.json", get(routes::openapi))
        .fallback(routes::not_found)
        .method_not_allowed_fallback(routes::not_allowed)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&server), access::only_allowed))
        .with_state(server)
}

/// Serves the admin port for ever.
pub async fn serve(listener: std::net::TcpListener, server: Arc<Server>) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let connections = (server.config().max_memory / CONNECTION_MEMORY).clamp(64, MAX_CONNECTIONS);
    let places = Arc::new(tokio::sync::Semaphore::new(connections));
    let router = router(server);
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return Ok(()) };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept an admin connection; trying again");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let router = router.clone();
        tokio::spawn(async move {
            let _place = place;
            serve_connection(stream, peer, router).await;
        });
    }
}

async fn serve_connection(stream: tokio::net::TcpStream, peer: SocketAddr, router: Router) {
    use hyper_util::rt::{TokioIo, TokioTimer};
    use tower::ServiceExt;

    // An answer of two parts must not wait for the acknowledgement of the first.
    let _ = stream.set_nodelay(true);
    let local = stream.local_addr().map(|local| access::LocalAddr(local.ip().to_canonical())).ok();
    let service = hyper::service::service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(access::PeerAddr(peer));
        if let Some(local) = local {
            request.extensions_mut().insert(local);
        }
        let answer = router.clone().oneshot(request);
        async move {
            match tokio::time::timeout(ANSWER_TIMEOUT, answer).await {
                Ok(answer) => answer,
                Err(_) => Ok(problem::Problem::timeout().into()),
            }
        }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT)
        .max_buf_size(MAX_BODY)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "an admin connection ended");
    }
}
